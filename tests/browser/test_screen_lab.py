"""The screen in a real JupyterLab: one selection, verdicts, a search, other cells, themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from views_cases import painted_share, words_lightness

from benchmarks import browsers

TESTS = Path(__file__).parents[1]
CELLS = [
    f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    "from busy_session import busy_session\n"
    "session = busy_session()\nscreen = session.explore(seconds=60)\nscreen",
    "print(session.plan.search.best_ns, session.plan.search.bound_ns, screen.code())",
    "import numpy as np\nzeros = {n: np.zeros(i.shape, np.float32)"
    " for n, i in session.graph.inputs.items()}\nname = next(iter(zeros))\n"
    "zeros[name][0, 0] = 3\n_ = session.run(zeros)\nprint(session.last.kind)",
    "print(screen.to_frame().node.nunique(), screen.selected)",
    "import tgbench.views as views\nsession.save_plan('saved.json')\nviews.explore('saved.json')",
    "session.graph",
    "screen.beside('right')",
]
CLOSE = """() => { for (const area of ["main", "right"]) {
  for (const one of [...window.jupyterapp.shell.widgets(area)]) {
    if (one.node.querySelector(".tg-view") && !one.sessionContext) one.dispose();
  } } }"""


@pytest.fixture(scope="module")
def watched(lab_page: browsers.Watched) -> browsers.Watched:
    lab_page.faults.clear()
    return lab_page


@pytest.fixture(scope="module")
def notebook(watched: browsers.Watched, lab_folder: Path) -> Iterator[browsers.Notebook]:
    """Ends with a restart of the kernel, which the screen tells."""
    opened = browsers.Notebook.instead(watched.page, lab_folder, "screen", CELLS)
    opened.run()
    opened.page.locator("[data-painted]").first.wait_for()
    yield opened
    opened.restart()  # at last: whatever comes after it has no session
    gone = opened.page.locator(".tg-gone", has_text="kernel that made this view is gone")
    gone.first.wait_for()


@pytest.fixture
def screen(notebook: browsers.Notebook) -> Any:
    return notebook.page.locator(".tg-view").first


def ran(notebook: browsers.Notebook, number: int) -> str:
    """What a cell prints."""
    notebook.done = number
    output = notebook.run().locator(".jp-OutputArea-output").last
    output.wait_for()
    return str(output.inner_text()).strip()


def tab(screen: Any, name: str) -> None:
    screen.get_by_role("tab", name=name, exact=True).click()


def test_it_is_one_screen_high(notebook: browsers.Notebook, screen: Any) -> None:
    assert screen.bounding_box()["height"] <= 720
    assert painted_share(notebook.page) > 0.1


def test_a_choice_in_one_is_a_choice_in_all(screen: Any) -> None:
    tab(screen, "program")
    row = screen.locator(".tg-rows .tg-row").nth(2)
    row.wait_for()
    name = row.locator("span").nth(1).inner_text()
    row.click()
    screen.locator(".tg-right h4", has_text=name).wait_for()
    tab(screen, "graph")
    screen.locator(".tg-page:not([hidden]) .tg-line", has_text=f"{name}:").wait_for()
    tab(screen, "memory")
    screen.locator(".tg-page:not([hidden]) .tg-line", has_text=name).wait_for()


def test_retaining_a_node_is_proposed_and_taken_back(screen: Any) -> None:
    screen.locator(".tg-right").get_by_role("button", name="retain").click()
    screen.locator(".tg-said.tg-yes, .tg-said.tg-no").wait_for()
    if screen.locator(".tg-said.tg-yes").count():
        screen.locator(".tg-badge", has_text="changed by hand").wait_for()
        screen.get_by_role("button", name="undo").click()
    screen.locator(".tg-badge", has_text="in force").wait_for()


def test_a_drag_gets_a_verdict_from_python(notebook: browsers.Notebook, screen: Any) -> None:
    canvas = screen.locator("canvas").first
    if (unfold := screen.get_by_role("button", name="unfold kept")).is_visible():
        unfold.click()
    canvas.focus()
    keyboard = notebook.page.keyboard
    keyboard.press("Escape")
    for _ in range(12):
        keyboard.press("ArrowUp")
    for _ in range(3):
        keyboard.press("Alt+ArrowUp")
    screen.locator(".tg-said", has_text="at offset").wait_for()
    keyboard.press("Enter")
    screen.locator(".tg-said", has_text=re.compile("valid|live at once|more than")).wait_for()
    keyboard.press("Escape")
    if screen.get_by_role("button", name="dismiss").is_visible():
        screen.get_by_role("button", name="dismiss").click()


def test_a_search_stops_goes_on_and_keeps_what_it_proved(
    notebook: browsers.Notebook, screen: Any
) -> None:
    screen.get_by_role("button", name="search", exact=True).click()
    screen.locator(".tg-window").first.wait_for()
    screen.locator(".tg-left .tg-seen", has_text="gap").wait_for()  # proofs come beside the search
    screen.get_by_role("button", name="stop").click()
    screen.get_by_role("button", name="resume").wait_for()
    best, bound, *code = ran(notebook, 1).split()
    assert float(bound) > 0
    assert "session.optimize('search'," in " ".join(code)
    screen.get_by_role("button", name="resume").click()
    screen.locator(".tg-left .tg-seen", has_text="search:").wait_for()
    screen.get_by_role("button", name="stop").click()
    screen.get_by_role("button", name="resume").wait_for()
    again, still, *_ = ran(notebook, 1).split()
    assert float(again) <= float(best)
    assert float(still) > 0
    screen.locator(".tg-candidates .tg-open").first.click()
    screen.locator(".tg-badge", has_text="candidate 0").wait_for()
    screen.get_by_role("button", name="dismiss").click()


def test_a_run_in_another_cell_is_seen(notebook: browsers.Notebook, screen: Any) -> None:
    before = screen.locator(".tg-class").count()
    screen.locator("canvas").first.focus()
    notebook.page.keyboard.press("Escape")
    assert ran(notebook, 2)
    took = screen.locator(".tg-facts tr", has_text="last run")
    took.wait_for()
    assert screen.locator(".tg-class").count() >= before
    assert "Python" not in took.inner_text()


def test_what_is_brushed_are_rows(notebook: browsers.Notebook, screen: Any) -> None:
    canvas, mouse = screen.locator("canvas").first, notebook.page.mouse
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    screen.get_by_role("button", name="brush").click()
    mouse.move(box["x"] + 80, box["y"] + 60)
    mouse.down()
    mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 50, steps=4)
    mouse.up()
    screen.get_by_role("button", name="brush").click()
    screen.locator(".tg-said", has_text="chosen").wait_for()
    assert int(ran(notebook, 3).split()[0]) >= 2


def test_the_dark_theme_repaints(notebook: browsers.Notebook, screen: Any) -> None:
    notebook.theme("JupyterLab Dark")
    screen.and_(notebook.page.locator(".tg-dark")).wait_for()
    screen.scroll_into_view_if_needed()
    notebook.page.wait_for_timeout(1600)  # style sheets may come late
    assert words_lightness(notebook.page) > 130
    notebook.theme("JupyterLab Light")


def test_plans_and_graphs_alone_open(notebook: browsers.Notebook) -> None:
    cells = notebook.page.locator(".jp-Notebook .jp-CodeCell")
    for number in (4, 5):
        notebook.done = number
        notebook.run()
        cells.nth(number).locator(".tg-view canvas").first.wait_for()


@pytest.mark.parametrize("anchor", ["split-right", "right"])
def test_it_stands_beside_the_notebook(
    notebook: browsers.Notebook, screen: Any, anchor: str
) -> None:
    """Two views of one screen: what is chosen in one is chosen in the other."""
    if anchor == "split-right":
        screen.get_by_role("button", name="beside").click()
    else:
        notebook.done = 6
        notebook.run()
    side = "#jp-right-stack" if anchor == "right" else "#jp-main-dock-panel"
    beside = notebook.page.locator(f"{side} .jupyterlab-sidecar .tg-view")
    beside.and_(notebook.page.locator("[data-painted]")).wait_for()
    assert beside.evaluate("(e) => e.scrollWidth <= e.clientWidth")
    tab(screen, "program")
    row = screen.locator(".tg-rows .tg-row").nth(1)
    name = row.locator("span").nth(1).inner_text()
    row.click()
    told = beside.locator(".tg-right h4", has_text=name)
    told.wait_for()
    told.scroll_into_view_if_needed()  # the panel scrolls, however low it is
    box, place = told.bounding_box(), beside.locator("xpath=../../../..").bounding_box()
    assert place["y"] <= box["y"] <= place["y"] + place["height"]
    tab(beside, "graph")
    assert screen.get_by_role("tab", name="program").get_attribute("aria-selected") == "true"
    notebook.page.evaluate(CLOSE)


def test_nothing_went_wrong_in_the_page(
    notebook: browsers.Notebook, watched: browsers.Watched
) -> None:
    assert not [fault for fault in watched.faults if "tg-" in fault or "blob:" in fault]
