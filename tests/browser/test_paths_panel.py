"""Other ways to compute a graph, in a bare page: what is drawn, chosen and asked for."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from plans.paths.test_chosen import LIMITS, inputs, session_of
from plans.paths.test_paths import layers
from test_screen_bare import frame, show, tab

from benchmarks import browsers
from tgbench.session.paths import SessionPaths
from tgbench.views.panels import board as boards
from tgbench.views.values.ways import PathMap, Stop


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tgbench.views import explore

    of = SessionPaths.of
    monkeypatch.setattr(SessionPaths, "of", lambda *a, **k: of(*a, **k, limits=LIMITS))
    session = session_of(layers(1))
    session.run(inputs())
    return explore(session)


def test_before_anybody_looked_there_is_a_button(
    bare: browsers.Watched, files: str, screen: Any
) -> None:
    page = show(bare, files, screen)
    tab(page, "paths")
    assert page.get_by_role("button", name="find the ways").is_visible()
    assert page.locator(".tg-way").first.is_hidden()
    assert "computed in other ways" in page.locator(".tg-page:not([hidden]) .tg-empty").inner_text()


def test_a_table_and_a_map_are_drawn(bare: browsers.Watched, files: str, screen: Any) -> None:
    screen.board.find()  # the loop that runs here is the browser's
    screen.tell("paths")
    page = show(bare, files, screen)
    tab(page, "paths")
    rows = page.locator(".tg-rows .tg-way")
    assert rows.count() > 3
    assert rows.first.get_attribute("aria-selected") == "true"
    assert page.locator(".tg-map circle.tg-taken").count() == len(screen.board.map().decisions)
    assert page.locator(".tg-page:not([hidden]) .tg-empty").is_hidden()
    last = screen.board.map().decisions[-1]
    assert page.locator(".tg-map .tg-decision").last.text_content() == last * 2, "and its title"
    for name in ("measure the next 50", "plan with this"):
        assert page.get_by_role("button", name=name).is_visible()
    place = list(screen.board.found)[2]
    screen._way({"place": place})
    page = show(bare, files, screen)
    tab(page, "paths")
    frame(page)
    assert page.locator(".tg-rows .tg-way").nth(2).get_attribute("aria-selected") == "true"


def asked(page: Any, what: str) -> int:
    found: int = page.evaluate("(w) => model.sent.filter((one) => one.what === w).length", what)
    return found


def test_rows_that_do_not_fill_what_is_seen_ask_for_more(
    bare: browsers.Watched, files: str, screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once by itself, and then when somebody wants it; where there are none, it says so."""
    monkeypatch.setattr(boards, "MORE", 2)
    screen.board.find()
    screen.tell("paths")
    page = show(bare, files, screen)
    page.evaluate("() => { model.answers.more_ways = 'nothing'; }")
    tab(page, "paths")
    page.wait_for_function("() => model.sent.some((one) => one.what === 'more_ways')")
    page.locator(".tg-end", has_text="the first 40 graphs take as long").wait_for()
    page.mouse.move(5, 5)
    assert asked(page, "more_ways") == 1
    page.get_by_role("button", name="more", exact=True).click()
    frame(page)
    assert asked(page, "more_ways") == 2
    facts = {"is_all": True, "end": "these are all"}
    page.evaluate("(facts) => model.put('paths', facts)", facts)
    assert page.locator(".tg-end").inner_text() == "these are all"
    assert page.get_by_role("button", name="more", exact=True).is_hidden()
    rows, end = page.locator(".tg-rows .tg-way").last, page.locator(".tg-end")
    assert rows.bounding_box()["y"] < end.bounding_box()["y"]
    frame(page)
    assert asked(page, "more_ways") == 2


HEADINGS = ("encoder.layers.0.matmul_1 × 12", "mmmm_attention.matmul × 12", "layer_2.matmul × 3")
OPTIONS = ("2 matmul, softmax, linear, rms_norm", "3 matmul, 2 softmax, mul", "nothing more")
WIDE = PathMap(
    HEADINGS,
    tuple(Stop(place, row, OPTIONS[row]) for place in range(3) for row in range(3)),
    ((0, 0, 0), (0, 1, 2), (1, 2, 1), (2, 0, 2)),
)
SPANS = """labels => labels.map((one) => {
    const box = one.getBoundingClientRect();
    return [Math.round(box.top / 20), box.left, box.right];
})"""


def assert_apart(svg: Any) -> None:
    """No label ends where the next one in its row begins, or beyond the picture."""
    spans = sorted(svg.locator("text").evaluate_all(SPANS))
    assert len(spans) == 12
    for (row, _, end), (below, begin, _) in pairwise(spans):
        assert row != below or end < begin, spans
    box = svg.bounding_box()
    assert max(end for _, _, end in spans) <= box["x"] + box["width"]


def test_labels_are_beside_each_other_and_all_there(
    bare: browsers.Watched, files: str, screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the screen, and in the picture of a notebook."""
    monkeypatch.setattr(boards.PathsBoard, "map", lambda _: WIDE)
    screen.board.find()
    screen.tell("paths")
    page = show(bare, files, screen)
    tab(page, "paths")
    assert_apart(page.locator(".tg-map svg"))
    page.set_content(f"<body>{WIDE.to_svg()}</body>")
    assert_apart(page.locator("svg"))


def test_the_map_is_there_in_a_notebook_that_nobody_trusted(
    lab_page: browsers.Watched, lab_folder: Path
) -> None:
    made = browsers.notebook_of(["session.paths()"])
    data = {"text/html": WIDE.to_html(), "text/plain": "in words"}
    made["cells"][0]["outputs"] = [
        {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": data}
    ]
    (lab_folder / "stored.ipynb").write_text(json.dumps(made))
    page = lab_page.page
    page.evaluate(browsers.SHOW_INSTEAD, "stored.ipynb")
    page.wait_for_function(browsers.IS_IDLE)
    image = page.locator(".jp-OutputArea-output img")
    image.wait_for()
    page.wait_for_function("(one) => one.naturalWidth > 0", arg=image.element_handle())
    assert image.get_attribute("title").startswith(f"1. {WIDE.decisions[0]}")
    assert image.bounding_box()["width"] == image.evaluate("(one) => one.naturalWidth")
    trusted = "() => window.jupyterapp.shell.currentWidget.content.widgets[0].model.trusted"
    assert not page.evaluate(trusted)
