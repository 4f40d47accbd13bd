"""The screen in a bare page, without a kernel: drawing, pointer, keys, themes, names, sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from views_cases import painted_share, place, tower, words_lightness

from benchmarks import browsers
from benchmarks.widgets import many
from tgbench.base.words import format_bytes, format_time
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace
from tgbench.session.session import GraphSession
from tgbench.views.draw.columns import pack, unpack
from tgbench.views.panels.subject import Proposal
from tgbench.views.show import SHOWN
from tgbench.views.values.pareto import curve
from tgbench.views.values.regions import inspect_last
from tgbench.views.values.regions import to_svg as regions_svg
from tgbench.views.values.timeline import Timeline

HOSTILE = '<img src=x onerror="window.hit = 1">'
PLAN = browsers.ROOT / "data" / "decode.plan.json"


def layered(layers: int, name: str = "x") -> Graph:
    """Equal layers: a product, an exponential, and a sum with what came in."""
    g = GraphBuilder()
    x = g.input(name, (8, 4))
    for i in range(layers):
        with g.scope(f"layer_{i}"):
            x = g.apply("exp", x @ g.parameter(f"w{i}", (4, 4))) + x
    g.output("y", x)
    return g.build()


def session_of(graph: Graph) -> GraphSession:
    """A session of such a graph after three runs."""
    weights = {name: np.zeros((4, 4), np.float32) for name in graph.parameters}
    session = GraphSession(graph, weights=weights)
    x, (name,) = np.zeros((8, 4), np.float32), graph.inputs
    for row in (0, 3, 3):
        x[row] += 1
        session.run({name: x}, want={"y": np.s_[row]})
    return session


def show(watched: browsers.Watched, files: str, shown: Any, **more: Any) -> Any:
    """The page with a screen in it, painted."""
    from tgbench.views import Screen, explore

    screen = shown if isinstance(shown, Screen) else explore(shown, **more)
    browsers.show(watched.page, files, screen)
    frame(watched.page)
    return watched.page


def show_map(watched: browsers.Watched, files: str, what: Timeline, **facts: Any) -> Any:
    page = show(watched, files, what)
    if facts:
        page.evaluate("(facts) => model.put('memory', facts)", facts)
    page.wait_for_selector("[data-painted], .tg-empty:not([hidden])")
    return page


def frame(page: Any) -> None:
    """Let the next two frames be drawn."""
    page.evaluate(
        "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    )


def said(page: Any, where: str = ".tg-centre .tg-bar .tg-line") -> str:
    return str(page.locator(where).first.inner_text())


def state(page: Any, name: str) -> Any:
    return page.evaluate("(name) => model.state[name]", name)


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    frame(page)


# --- the memory map -------------------------------------------------------------------------------


def test_hovering_names_what_is_there(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    page.mouse.move(*place(page, tower(), "q"))
    assert said(page).startswith("q: slice, 4 KiB at offset 8192, steps 1 to 3 (exp)")


def test_a_click_chooses_a_node_and_a_step(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    page.mouse.click(*place(page, tower(), "q"))
    assert [state(page, "selected"), state(page, "step")] == [["q"], 2]
    page.mouse.move(0, 0)
    frame(page)
    assert "next read at step 3 by d" in said(page)


def test_a_node_is_chosen_with_a_step_at_which_it_is_there(
    bare: browsers.Watched, files: str
) -> None:
    page = show_map(bare, files, tower())
    page.evaluate("() => model.set('step', 0)")
    page.locator("input[type=search]").evaluate("(e) => { e.closest('.tg-head').hidden = false; }")
    page.locator("input[type=search]").fill("s")
    page.locator("canvas").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        frame(page)
    node, step = state(page, "selected")[0], state(page, "step")
    r = next(r for r in tower().rectangles if r.name == node)
    assert r.start <= step < r.stop


def test_what_is_found_is_shown_where_it_is_there(bare: browsers.Watched, files: str) -> None:
    """Enter chooses who has the name, or the first match, at a step where its bytes are its own."""
    page = show_map(bare, files, tower())
    page.evaluate("() => model.set('step', 1)")
    search = page.locator("input[type=search]")
    search.evaluate("(e) => { e.closest('.tg-head').hidden = false; }")
    for name, step in (("q", 1), ("s", 3), ("k", 3)):
        search.fill(name)
        search.press("Enter")
        frame(page)
        assert [state(page, "selected"), state(page, "step")] == [[name], step]
        search.press("Escape")
        frame(page)
        assert said(page).startswith(f"{name}: ")
        assert f"; at step {step}: " in said(page)
        assert "others' then" not in said(page)


def test_the_line_is_of_the_step_that_is_chosen(bare: browsers.Watched, files: str) -> None:
    shown = tower()
    page = show_map(bare, files, shown)
    page.evaluate("() => model.set('step', 0)")
    page.locator("canvas").first.focus()
    for step, size in enumerate(shown.live_bytes):
        frame(page)
        name = (*shown.schedule, "the end")[step]
        assert said(page) == f"{format_bytes(size)} in use at step {step}, {name}"
        page.keyboard.press("ArrowRight")
    page.evaluate("() => model.set('selected', ['q'])")
    for step in (4, 3, 2, 1, 0):
        page.keyboard.press("ArrowLeft")
        frame(page)
        why = {4: "its bytes are others' then", 0: "its bytes are others' then"}.get(
            step, "next read at step 3 by d"
        )
        assert said(page).endswith(f"; at step {step}: {why}")


def test_what_is_kept_unfolds(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    x, y = place(page, tower(), "q")
    page.get_by_role("button", name="unfold kept").click()
    frame(page)
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(x, box["y"] + 42 + (1 - 6144 / 16384 / 1.03) * (box["height"] - 76))
    assert said(page).startswith("k: retained")
    page.get_by_role("button", name="fold kept").click()
    frame(page)
    page.mouse.move(x, y)
    assert said(page).startswith("q:")


def test_the_wheel_zooms_with_ctrl_alone(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    x, y = place(page, tower(), "q")
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    frame(page)
    page.mouse.move(x, y - 130)
    assert not said(page).startswith("q:"), "the wheel alone belongs to the page"
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -700)
    page.keyboard.up("Control")
    frame(page)
    page.mouse.move(x + 1, y)
    assert said(page).startswith("q:"), "zooming keeps what is under the pointer there"
    page.get_by_role("button", name="all", exact=True).click()
    frame(page)
    page.mouse.move(x, y)
    assert said(page).startswith("q:")


def test_the_strip_of_bytes_in_use_moves_through_time(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    box = page.locator("canvas").first.bounding_box()
    page.mouse.click(box["x"] + 70, box["y"] + 20)
    assert state(page, "step") == 0
    page.mouse.click(box["x"] + box["width"] - 12, box["y"] + 20)
    assert state(page, "step") == 5


def test_what_is_chosen_elsewhere_comes_into_sight(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, many(20_000))
    canvas = page.locator("canvas").first
    canvas.focus()
    for _ in range(8):
        page.keyboard.press("+")
    frame(page)
    before = painted_share(page)
    page.evaluate("() => model.set('selected', ['layer_0.node_0'])")
    frame(page)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 66 + (box["width"] - 74) / 2, box["y"] + 2)
    assert before > 0.2
    assert "layer_0.node_0" in said(page)


def test_a_rectangle_of_the_pointer_chooses_all_in_it(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    (x0, y0), (x1, y1) = place(page, tower(), "q"), place(page, tower(), "s")
    page.get_by_role("button", name="brush").click()
    page.mouse.move(x0, y0)
    page.mouse.down()
    page.mouse.move(x1, y1, steps=4)
    page.mouse.up()
    assert sorted(state(page, "selected")) == ["q", "s"]


def test_a_drag_takes_what_nobody_chose_while_all_is_seen(
    bare: browsers.Watched, files: str
) -> None:
    """There is nowhere to go then; what lies where it is says why."""
    page = show_map(bare, files, tower(), can_change=True)
    page.locator(".tg-head").evaluate("(e) => { e.hidden = false; }")
    frame(page)

    def drag(name: str) -> str:
        x, y = place(page, tower(), name)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x, y - 40, steps=5)
        page.mouse.up()
        frame(page)
        return said(page, ".tg-said")

    drag("q")
    sent = page.evaluate("() => model.sent.at(-1)")
    assert [sent["what"], sent["with"]["node"], state(page, "selected")] == ["move", "q", ["q"]]
    page.evaluate("() => { model.sent.length = 0; }")
    assert drag("k") == "unfold what is kept to move it"
    page.get_by_role("button", name="unfold kept").click()
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + box["height"] - 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + box["height"] - 90, steps=5)
    page.mouse.up()
    assert said(page, ".tg-said") == "ids: an input, which lies where it is"
    assert not page.evaluate("() => model.sent.length")
    page.locator("canvas").first.focus()
    for _ in range(4):
        page.keyboard.press("+")
    frame(page)
    page.evaluate("() => model.set('selected', [])")
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 190, steps=5)
    page.mouse.up()
    assert state(page, "selected") == [], "in a part of the map a drag moves the window"


def test_keys_do_all_of_it(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    canvas = page.locator("canvas").first
    canvas.focus()
    for key, step in (("ArrowLeft", 2), ("ArrowRight", 3), ("ArrowRight", 4)):
        page.keyboard.press(key)
        assert state(page, "step") == step
    for key, node in (("ArrowUp", "ids"), ("ArrowUp", "k"), ("ArrowUp", "s"), ("ArrowDown", "k")):
        page.keyboard.press(key)
        assert state(page, "selected")[0] == node
    for key in ("+", "Shift+ArrowRight", "0", "f", "f", "Escape"):
        page.keyboard.press(key)
    assert state(page, "selected") == []


def test_dragging_shows_clashes_at_once_and_asks_on_release(
    bare: browsers.Watched, files: str
) -> None:
    page = show_map(bare, files, tower(), can_change=True)
    page.evaluate("() => { model.answers.move = { is_valid: false, words: 'no room' }; }")
    page.locator(".tg-head").evaluate("(e) => { e.hidden = false; }")
    frame(page)
    x, y = place(page, tower(), "q")
    page.mouse.click(x, y)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 90, steps=5)
    assert "shares bytes with s while both are live" in said(page, ".tg-said")
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('.tg-said').textContent === 'no room'")
    sent = page.evaluate("() => model.sent.at(-1)")
    assert sent["what"] == "move"
    assert sent["with"]["node"] == "q"
    assert sent["with"]["offset_bytes"] % 64 == 0
    assert sent["with"]["offset_bytes"] > 8192


def test_a_buffer_is_moved_with_keys(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower(), can_change=True)
    page.evaluate("() => { model.answers.move = { is_valid: true, words: 'valid: 4 KiB' }; }")
    page.locator(".tg-head").evaluate("(e) => { e.hidden = false; }")
    frame(page)
    page.mouse.click(*place(page, tower(), "s"))
    page.keyboard.press("Alt+ArrowUp")
    assert "free" in said(page, ".tg-said")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.tg-said.tg-yes')")
    page.keyboard.press("p")
    assert page.evaluate("() => model.sent.map((m) => m.what)") == ["move", "pin"]


def test_a_larger_arena_stays_in_sight(bare: browsers.Watched, files: str) -> None:
    """What is retained by hand may make the arena larger than all that was drawn."""
    page = show_map(bare, files, tower())
    x, y = place(page, tower(), "s")
    page.evaluate("() => model.put('memory', { size_bytes: 65536 })")
    frame(page)
    page.mouse.move(x, y)
    assert not said(page).startswith("s:"), "the picture made room for the larger arena"
    assert painted_share(page) > 0.1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_draw_with_their_own_colours(
    bare: browsers.Watched, files: str, scheme: Any
) -> None:
    bare.page.emulate_media(color_scheme=scheme)
    page = show_map(bare, files, tower())
    assert painted_share(page) > 0.25
    paper = page.locator(".tg-view").evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert (words_lightness(page) > 130) == (scheme == "dark")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")


DETACHED = """async ([state, css]) => {
  const { FakeModel } = await import("/tests/browser/fake_model.js");
  const view = (await import("/widgets/screen.js")).default;
  const style = document.createElement("style"), el = document.createElement("div");
  style.textContent = css;
  document.head.append(style);
  view.render({ model: new FakeModel({ ...state, panels: [] }), el });
  const first = el.querySelector(".tg-view").className;
  document.body.append(el);
  return first;
}"""


@pytest.mark.parametrize(
    ("css", "is_dark"),
    [
        (":root { --jp-layout-color0: #111111; }", True),
        (":root { --jp-layout-color0: #fff; }", False),
        ("body { background: #14181d; }", True),
        ("html { background: white; }", False),
    ],
)
def test_the_page_tells_what_is_dark_before_the_view_stands_in_it(
    bare: browsers.Watched, files: str, css: str, is_dark: bool
) -> None:
    """JupyterLab has a view draw itself first and puts it into the page then."""
    bare.page.emulate_media(color_scheme="light" if is_dark else "dark")
    page = show_map(bare, files, tower())
    first = page.evaluate(DETACHED, [{"label": "", "table": {}}, css])
    assert ("tg-dark" in first.split()) == is_dark
    assert ("tg-plain" in first.split()) == ("--jp" not in css)


CONTRAST = """(all) => all.map((e) => {
  const pen = document.createElement("canvas").getContext("2d"), style = getComputedStyle(e);
  const light = (colour) => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((part) => {
      const x = part / 255;
      return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(style.color), light(style.backgroundColor)].sort((a, b) => a - b);
  return (b + 0.05) / (a + 0.05);
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shares_are_legible(bare: browsers.Watched, files: str, scheme: Any) -> None:
    """On the colour of what always follows, too (WCAG 2, 1.4.3)."""
    bare.page.emulate_media(color_scheme=scheme)
    page = show(bare, files, session_of(layered(2)))
    cells = page.locator("button.tg-heat")
    cells.evaluate_all("(all) => all.forEach((e) => e.style.setProperty('--tg-share', '80%'))")
    assert min(cells.evaluate_all(CONTRAST)) >= 4.5


@pytest.mark.parametrize("width", [800, 900, 1400])
def test_what_the_search_is_for_is_seen_whole(
    bare: browsers.Watched, files: str, width: int
) -> None:
    bare.page.set_viewport_size({"width": width, "height": 800})
    page = show(bare, files, session_of(layered(2)))
    room = page.locator("input[type=search]").evaluate(
        """(e) => {
        const style = getComputedStyle(e), pen = document.createElement("canvas").getContext("2d");
        pen.font = style.font;
        const sides = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
        return e.clientWidth - sides - pen.measureText(e.placeholder).width; }"""
    )
    assert room >= 12, "its cross has room beside it"


def test_the_theme_may_change_while_it_is_shown(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    bare.page.emulate_media(color_scheme="dark")
    page.wait_for_selector(".tg-dark")
    frame(page)
    assert painted_share(page) > 0.25


def test_a_screen_reader_gets_a_table(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    assert "most in use at step 3: 16 KiB" in page.locator(".tg-view").get_attribute("aria-label")
    assert page.locator(".tg-hidden table tr").count() == 5


def test_an_empty_map_says_so(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, Timeline((), 0, 0, 0))
    assert "there is no memory to draw" in said(page, ".tg-empty:not([hidden])")


def test_one_rectangle(bare: browsers.Watched, files: str) -> None:
    one = tower().rectangles[:1]
    page = show_map(bare, files, Timeline(one, 1, 4096, 4096))
    assert painted_share(page) > 0.25


def test_a_hundred_thousand_rectangles(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, many(100_000))
    assert painted_share(page) > 0.25
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 150)
    assert "layer_" in said(page)


def test_a_lost_kernel_shows(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    assert page.locator(".tg-gone").is_hidden()
    page.evaluate("() => { model.comm_live = false; model.tell('comm_live_update', model); }")
    assert "kernel that made this view is gone" in said(page, ".tg-gone")


def test_what_asks_a_lost_kernel_is_switched_off(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, session_of(layered(2)))
    page.evaluate("() => { model.comm_live = false; model.tell('comm_live_update', model); }")
    for name in ("search", "try budgets", "code", "export"):
        assert page.get_by_role("button", name=name, exact=True).is_disabled(), name
    page.locator("canvas").first.press("ArrowUp")  # choosing asks nobody
    assert state(page, "selected")
    page.locator("canvas").first.press("p")
    page.locator(".tg-said.tg-no", has_text="run its cell again").wait_for()
    assert not page.evaluate("() => model.sent.length")


def test_nothing_is_left_when_a_screen_is_closed(bare: browsers.Watched, files: str) -> None:
    page = show_map(bare, files, tower())
    page.evaluate("() => window.end()")
    assert page.evaluate("() => [...model.heard.values()].every((calls) => calls.size === 0)")


# --- one selection, every panel -------------------------------------------------------------------


def test_a_choice_in_one_panel_is_a_choice_in_all(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, session_of(layered(4)))
    tab(page, "program")
    page.locator(".tg-rows .tg-row").nth(1).click()
    frame(page)
    (node,) = state(page, "selected")
    assert page.locator(".tg-row[aria-selected=true]").count() == 1
    tab(page, "graph")
    assert said(page, ".tg-page:not([hidden]) .tg-line").startswith("layer_0")
    tab(page, "memory")
    assert said(page, ".tg-page:not([hidden]) .tg-bar .tg-line").startswith(node)


def test_a_class_of_runs_is_named_and_picked(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, session_of(layered(2)))
    head = page.locator(".tg-class").first
    assert head.inner_text().startswith("append 1 to x")
    page.locator(".tg-heat").first.click()
    assert state(page, "bucket") == "x[u0:+1, :] → y[u0:+1, :]"
    assert "for example call" in said(page, ".tg-said")


def test_a_class_that_ran_once_and_first_has_its_mean(bare: browsers.Watched, files: str) -> None:
    session = GraphSession(layered(1), weights={"w0": np.zeros((4, 4), np.float32)})
    session.run({"x": np.ones((8, 4), np.float32)})
    page = show(bare, files, session)
    cells = page.locator(".tg-bottom tr").nth(1).locator("td").all_inner_texts()
    assert cells[-2:] == ["1 ×", format_time(session.trace.calls[0].duration_ns)]


def test_a_released_session_says_that_no_plan_is_in_force(
    bare: browsers.Watched, files: str
) -> None:
    from tgbench.views import explore

    session = session_of(layered(2))
    screen = explore(session)
    session.release()
    screen.refresh()
    page = show(bare, files, screen)
    assert page.locator(".tg-numbers").inner_text().strip() == "no plan in force"
    assert "the next run makes one" in page.locator(".tg-empty:visible").first.inner_text()
    assert page.locator(".tg-class").count()
    assert not page.get_by_role("button", name="export").is_visible()


CUT = """(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)"""


@pytest.mark.parametrize("width", [800, 1300])
def test_numbers_of_a_program_are_seen_whole(
    bare: browsers.Watched, files: str, width: int
) -> None:
    """And kernels, where there is room for them."""
    bare.page.set_viewport_size({"width": width, "height": 800})
    session = session_of(layered(4))
    screen = explored(session)
    long = {"kernel": "layer_norm_numba", "scratch": 5824.0, "offset": 1234567.0}
    change(screen, "program", lambda found: {k: filled(found[k], v) for k, v in long.items()})
    page = show(bare, files, screen)
    tab(page, "program")
    whole = (4, 5, 6, 7) if width > 1000 else (5, 6, 7)
    for k in whole:
        cells = page.locator(f".tg-calls .tg-row > span:nth-child({k})")
        assert cells.count() > 4
        assert not cells.evaluate_all(CUT), k
    scroll = page.locator(".tg-calls")
    assert scroll.evaluate("(e) => e.scrollWidth <= e.clientWidth"), "nothing is out of view"
    heads, first = (
        page.locator(f".tg-calls {row}").first.locator("span").evaluate_all(
            "(all) => all.map((e) => Math.round(e.getBoundingClientRect().left))"
        )
        for row in ("> .tg-row", ".tg-rows .tg-row")
    )  # fmt: skip
    assert heads == first


def explored(session: GraphSession) -> Any:
    from tgbench.views import explore

    return explore(session)


def change(screen: Any, panel: str, changed: Any) -> None:
    """Another buffer for a panel: some of its columns are otherwise."""
    found = unpack(getattr(screen, panel))
    setattr(screen, panel, pack({**found, **changed(found)}))


def filled(column: Any, value: Any) -> Any:
    """A column as long, of one value."""
    return [value] * len(column) if isinstance(value, str) else np.full(len(column), value)


@pytest.mark.parametrize("width", [800, 900, 1000, 1400])
def test_the_list_of_candidates_fits(bare: browsers.Watched, files: str, width: int) -> None:
    bare.page.set_viewport_size({"width": width, "height": 900})
    screen = explored(session_of(layered(4)))
    tries = {
        "try_time": np.full(6, 21_940.0), "try_size": np.full(6, 55_932.0),
        "try_kept": np.full(6, 128, np.int32), "try_parts": np.full(6, 12, np.int32),
        "try_number": np.array([0, 1, 2, -1, 3, 4], np.int32),
        "try_best": np.array([0, 0, 0, 1, 0, 0], np.uint8),
        "try_why": ["more parts: twice", "larger", "more parts: twice", "", "", ""],
    }  # fmt: skip
    change(screen, "frontier", lambda found: tries)
    page = show(bare, files, screen)
    assert page.locator(".tg-candidates .tg-open").count() == 5
    best = page.locator(".tg-candidates .tg-best")
    assert best.inner_text().split("\t")[0] == "21.94 µs✓"
    notes = page.locator(".tg-left .tg-note").all_inner_texts()
    assert notes == ["* not taken: more parts: twice", "† not taken: larger"]
    told = page.locator(".tg-candidates .tg-open").all_inner_texts()
    assert told == ["21.94 µs*", "21.94 µs†", "21.94 µs*", "21.94 µs", "21.94 µs"]
    page.locator(".tg-candidates .tg-open").nth(3).click()
    assert page.evaluate("() => model.sent.at(-1).with") == {"number": 3}
    for one in (".tg-left", ".tg-left > .tg-scroll"):
        assert page.locator(one).evaluate("(e) => e.scrollWidth <= e.clientWidth"), one


def test_the_plan_of_one_node_is_told_beside_what_was_refused(
    bare: browsers.Watched, files: str
) -> None:
    g = GraphBuilder()
    g.output("y", g.apply("exp", g.input("x", (8,))))
    session = GraphSession(g.build())
    session.run({"x": np.zeros(8, np.float32)})
    size = session.plan.size_bytes
    page = show(bare, files, session)
    page.evaluate("(facts) => model.put('frontier', facts)", {"refused": size - 6})
    assert page.evaluate(TOLD) == [f"{size - 6} B", f"{size} B"]


def test_the_axis_ends_where_points_end(bare: browsers.Watched, files: str, tmp_path: Path) -> None:
    """Two plans of a budget that no plan reaches: each has a mark of its own."""
    from tgbench.session.what_if import WhatIf
    from tgbench.views.pages.screen_page import page as page_of

    session = session_of(layered(4))
    session.budget_bytes = 24 << 30
    kept = WhatIf.of(session).retained("layer_0.exp")
    before, after = kept.plan, kept.dropped("layer_0.exp").plan
    assert before.size_bytes != after.size_bytes
    path = tmp_path / "compared.html"
    path.write_text(page_of(before, session.graph, after), encoding="utf-8")
    bare.page.goto(path.as_uri())
    frame(bare.page)
    told = bare.page.evaluate(TOLD)
    assert set(told) == {format_bytes(plan.size_bytes) for plan in (before, after)}
    across = bare.page.locator(".tg-point").evaluate_all(
        "(all) => all.map((e) => Number(e.getAttribute('cx')))"
    )
    assert abs(across[0] - across[1]) > 1
    marks = bare.page.locator(".tg-chart:first-child svg > path")
    forms = marks.evaluate_all("(all) => all.map((e) => e.getAttribute('d').replace(/^[^m]*/, ''))")
    assert len(set(forms)) == 2
    legend = bare.page.locator(".tg-chart:first-child svg > text", has_text="memory")
    assert legend.text_content() == "memory; ◇ this plan □ proposed"


def test_names_without_an_end_leave_the_rest_in_sight(bare: browsers.Watched, files: str) -> None:
    name = "a_very_long_name_of_a_layer_that_never_ends_" * 4
    session = session_of(layered(1, name))
    table = SHOWN[Trace](session.trace)["text/html"]
    found = inspect_last(session)
    picture = regions_svg(found.node(name), found.title)
    bare.page.set_viewport_size({"width": 800, "height": 800})
    bare.page.set_content(table + picture)
    for cell in bare.page.locator("th, td").all():
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= 800
    wide = bare.page.locator("svg").evaluate("(e) => e.viewBox.baseVal.width")
    ends = bare.page.locator("svg text").evaluate_all(
        "(all) => all.map((e) => e.getBBox().x + e.getBBox().width)"
    )
    assert max(ends) <= wide
    lines = bare.page.locator("svg text").evaluate_all(
        "(all) => all.map((e) => e.lastChild.textContent)"
    )
    assert lines[0].endswith("…: float32[8, 4]")
    assert lines[1].endswith("…")
    assert name in bare.page.locator("svg text title").first.text_content()


def test_the_inspector_tells_why_and_what(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import explore

    graph = layered(2)
    graph.node("layer_0.exp").source = f"model/net.py:12, layer_0: y = exp({HOSTILE})"
    screen = explore(session_of(graph))
    screen.selected = ["layer_0.exp"]
    page = show(bare, files, screen)
    right = page.locator(".tg-right")
    assert right.locator(".tg-source").inner_text().endswith(f"y = exp({HOSTILE})")
    assert page.locator(".tg-view img").count() == 0
    for words in ("Why", "What runs do to it", "Its elements", "not there"):
        assert words in right.inner_text()
    right.get_by_role("button", name="drop").click()
    assert page.evaluate("() => model.sent.at(-1)")["with"] == {"node": "layer_0.exp"}


def test_names_in_the_inspector_go_on_behind_a_dot(bare: browsers.Watched, files: str) -> None:
    """And the words of runs are seen whole: those of two may differ in the last one alone."""
    screen = explored(session_of(layered(1)))
    screen.selected = ["layer_0.exp"]
    name = "model.layers.0.self_attention.query_projection"
    told = {"why": [f"shares 2.7% of its bytes with {name}, {name}"],
            "fates": [["", f"edit 1 of 4 in {'a_long_name_' * 4}", "recomputed"]],
            }  # fmt: skip
    page = show(bare, files, screen)
    page.evaluate("(facts) => model.put('inspector', facts)", told)
    why = page.locator(".tg-inspector p", has_text="shares").first
    assert why.inner_text() == told["why"][0]
    parts = why.evaluate("(e) => [...e.firstChild.childNodes].map((one) => one.textContent)")
    assert [part for part in parts if part][:3] == [
        "shares 2.7% of its bytes with model.", "layers.", "0.",
    ]  # fmt: skip
    words = page.locator(".tg-fates span").first
    assert words.evaluate("(e) => e.scrollWidth <= e.clientWidth")


def test_clicking_the_frontier_is_the_budget(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import explore

    session = session_of(layered(4))
    screen = explore(session)
    screen._told(curve(session, [400, 900]))
    page = show(bare, files, screen)
    page.locator(".tg-point").first.press("Enter")
    assert page.evaluate("() => model.sent.at(-1)")["what"] == "point"
    field = page.locator(".tg-field")
    box = field.bounding_box()
    field.click(position={"x": 0.7 * box["width"], "y": box["height"] / 2})
    sent = page.evaluate("() => model.sent.at(-1)")
    assert sent["what"] == "budget"
    assert sent["with"]["bytes"] >= screen.subject.curve.least_bytes
    page.evaluate(
        "(least) => model.put('frontier', { refused: least })", 10 * session.plan.size_bytes
    )
    count = page.evaluate("() => model.sent.length")
    page.locator(".tg-field").click(position={"x": 3, "y": 8})
    assert "is the least that was found" in said(page, ".tg-said"), "hatched: never searched"
    assert page.evaluate("() => model.sent.length") == count
    page.locator(".tg-field").hover(position={"x": 3, "y": 8})
    assert page.locator(".tg-chart text", has_text="nothing fits in").count() == 1
    hatch, field = (
        page.locator(of).evaluate(
            "(e) => { const { x, width, height } = e.getBBox(); return [x, width, height]; }"
        )
        for of in (".tg-hatch", ".tg-field")
    )
    assert hatch[0] == field[0]
    assert hatch[2] == field[2]
    assert 0.8 * field[1] < hatch[1] < field[1]
    assert page.locator(".tg-view [id]").count() == 0, "another screen's would be found instead"


def test_a_point_stays_in_hand_when_its_plan_is_proposed(
    bare: browsers.Watched, files: str
) -> None:
    """Its mark is drawn at once, and the next key goes to the same point."""
    session = session_of(layered(4))
    screen = explored(session)
    screen._told(curve(session, [400, 900]))
    page = show(bare, files, screen)
    point = page.locator(".tg-point").last
    point.click()
    size = session.plan.size_bytes
    page.evaluate("(at) => model.put('frontier', { proposal: at })", [size, 1e4])
    assert page.locator(".tg-chart:first-child text", has_text="□ proposed").count() == 1
    assert point.evaluate("(e) => e === document.activeElement")


def test_a_click_is_one_while_a_search_tells_of_itself(bare: browsers.Watched, files: str) -> None:
    screen = explored(session_of(layered(4)))
    screen._told(curve(screen.session, [400, 900]))
    page = show(bare, files, screen)
    box = page.locator(".tg-point").first.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.evaluate("() => model.put('frontier', { state: 'step 8' })")
    page.mouse.up()
    assert page.evaluate("() => model.sent.at(-1).what") == "point"
    frame(page)
    assert "step 8" in said(page, ".tg-left .tg-seen"), "it is told after the click"


@pytest.mark.parametrize("width", [1000, 1180, 1400])
def test_what_a_search_says_has_room(bare: browsers.Watched, files: str, width: int) -> None:
    """What there is no room for is left out whole, and told on its title."""
    bare.page.set_viewport_size({"width": width, "height": 768})
    page = show(bare, files, session_of(layered(4)))
    told = "step 16,048: best 126.3 µs a run, bound 123.6 µs"
    facts = {"is_running": True, "phase": "search", "bound": 1e5, "best": 1.11e5, "rate": 16.62}
    for message in ("step 48: best 26.32 µs a run, bound 23.69 µs", told):
        page.evaluate("(facts) => model.put('frontier', facts)", facts | {"message": message})
        seen = page.locator(".tg-left .tg-seen")
        assert seen.evaluate("(e) => e.scrollHeight <= e.clientHeight + 1")
        assert re.search(r"(bound 123.6\sµs|gap 11.0%|16.6 steps/s)$", seen.inner_text())
        assert re.search(r"best \d+\.\d+\u00a0µs, bound", seen.inner_text()), "no unit is alone"
        assert seen.get_attribute("title").endswith("gap 11.0% · 16.6 steps/s")


def test_points_that_lie_on_top_of_each_other_are_all_reached(
    bare: browsers.Watched, files: str
) -> None:
    screen = explored(session_of(layered(4)))
    points = {f"point_{name}": np.full(3, 1000.0) for name in ("size", "time", "bound", "budget")}
    points |= {"point_old": np.zeros(3, np.uint8), "point_words": ["a", "b", "c"]}
    change(screen, "frontier", lambda found: points)
    page = show(bare, files, screen)
    top = page.locator(".tg-point").last
    assert top.locator("title").text_content().splitlines()[:3] == ["a", "b", "c"]
    for _ in range(4):
        top.click()
    page.locator(".tg-point").nth(1).press("Enter")
    sent = page.evaluate("() => model.sent.map((one) => one.with.number)")
    assert sent == [0, 1, 2, 0, 1]


def test_a_budget_is_searched_once_its_slider_rests(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, session_of(layered(4)))
    slider = page.locator(".tg-budget")
    assert "searches" in slider.get_attribute("title")
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert not page.evaluate("() => model.sent.length"), "a key is no search"
    page.wait_for_function("() => model.sent.length")
    page.wait_for_timeout(300)
    assert page.evaluate("() => model.sent.map((one) => one.what)") == ["budget"]


def test_what_older_measurements_say_is_pale(bare: browsers.Watched, files: str) -> None:
    """It is no part of the line, and says so."""
    session = session_of(layered(4))
    screen = explored(session)
    screen._told(curve(session, [400, 900]))
    old = {"point_old": np.array([1, 0], np.uint8)}
    change(screen, "frontier", lambda found: old)
    page = show(bare, files, screen)
    assert page.locator(".tg-point.tg-old").count() == 1
    told = page.locator(".tg-point").first.get_attribute("aria-label")
    assert told.endswith("by older measurements")
    page.evaluate("() => model.put('frontier', { is_old: true, state: 'ended' })")
    assert said(page, ".tg-left .tg-seen") == "by older measurements: ended"


@pytest.mark.parametrize("width", [800, 1000, 1400])
def test_words_below_a_search_stand_beside_each_other(
    bare: browsers.Watched, files: str, width: int
) -> None:
    bare.page.set_viewport_size({"width": width, "height": 900})
    session = session_of(layered(4))
    session.optimize("search", steps=8)
    screen = explored(session)
    names = ["spawn", "weigh", "bound", "search"]
    told = {"phase": names, "phase_from": np.arange(4.0), "told_seconds": np.array([0.0, 4.34]),
            "told_best": np.full(2, 5e4), "told_bound": np.full(2, 4e4),
            "window_end": np.array([1], np.int32), "window_value": np.array([0], np.int32),
            "value_name": ["x"], "window_gain": np.array([0.1]), "window_words": ["one"],
            }  # fmt: skip
    change(screen, "frontier", lambda found: told)
    page = show(bare, files, screen)
    page.evaluate("() => model.put('frontier', { unit: 's' })")
    boxes = page.locator(".tg-left svg").nth(1).locator("text").evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect().toJSON())"
    )  # fmt: skip
    low = sorted((one for one in boxes if one["y"] > max(b["y"] for b in boxes) - 4),
                 key=lambda one: one["x"])  # fmt: skip
    assert len(low) == 2
    assert low[0]["right"] < low[1]["left"]
    for chart in page.locator(".tg-left svg").all():
        right = chart.bounding_box()["x"] + chart.bounding_box()["width"]
        ends = chart.locator("text").evaluate_all(
            "(all) => all.map((e) => e.getBoundingClientRect().right)"
        )
        assert max(ends) <= right + 1


TOLD = """() => [...document.querySelectorAll(".tg-chart:first-child text[y='174']")].map(
  (one) => one.textContent)"""
FRONTIER = """() => {
  const all = (what) => [...document.querySelectorAll(`.tg-chart:first-child svg > ${what}`)];
  const number = (one, name) => Number(one.getAttribute(name));
  const hatch = all(".tg-hatch")[0].getBBox(), budget = all("line[stroke-dasharray='6 3']")[0];
  return {
    ticks: all("line[y2='164']").map((one) => number(one, "x1")),
    ends: [hatch.x + hatch.width, number(budget, "x1")],
  };
}"""


@pytest.mark.parametrize("shares", [(0.7, 1.3), (0.1, 1.9)])
def test_the_frontier_tells_sizes_where_they_lie(
    bare: browsers.Watched, files: str, shares: tuple[float, float]
) -> None:
    session = session_of(layered(4))
    least, most = (round(share * session.plan.size_bytes) for share in shares)
    page = show(bare, files, session)
    page.evaluate("(facts) => model.put('frontier', facts)", {"refused": least, "budget": most})
    found = page.evaluate(FRONTIER)
    assert page.evaluate(TOLD) == [format_bytes(least), format_bytes(most)]
    assert found["ticks"] == pytest.approx(found["ends"], abs=0.1)
    letters = page.locator(".tg-chart:first-child svg > text[y='174']")
    left, right = (one.bounding_box() for one in letters.all())
    assert left["x"] + left["width"] <= right["x"], "they do not lie over each other"


def test_one_size_is_told_once(bare: browsers.Watched, files: str) -> None:
    """At the end of the axis it is the number that it is beside the mark: 23.38, and not 23.37."""
    page = show(bare, files, session_of(layered(4)))
    alone = {"refused": 0, "budget": None, "now": [23936, 5e4]}
    page.evaluate("(facts) => model.put('frontier', facts)", alone)
    assert page.evaluate(TOLD) == [format_bytes(23936)]


def test_maps_that_are_compared_are_as_wide_as_each_other(
    bare: browsers.Watched, files: str
) -> None:
    """A step is at one place in both, however long the words above them are."""
    session = session_of(layered(4))
    screen = explored(session)
    origin = "a plan of which much is to be told, that for 304.9 KiB and those of all other budgets"
    screen.propose(Proposal(session.plan, origin))
    page = show(bare, files, screen)
    tab(page, "compare")
    before, after = (one.bounding_box()["width"] for one in page.locator(".tg-two canvas").all())
    assert before == after


def test_a_search_alone_is_seen_whole(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import Screen

    session = session_of(layered(4))
    session.optimize("search", seconds=1)
    page = show(bare, files, Screen(session, panels=["header", "frontier"]))
    over = page.locator(".tg-left").evaluate("(e) => e.scrollHeight - e.clientHeight")
    assert over <= 2
    assert page.locator(".tg-left").evaluate("(e) => e.scrollWidth <= e.clientWidth")
    assert page.locator(".tg-left .tg-seen").bounding_box()["height"] >= 14
    head, left = (page.locator(one).bounding_box() for one in (".tg-head", ".tg-left"))
    assert left["y"] - head["y"] - head["height"] < 20, "no empty room above it"
    assert page.locator(".tg-view").bounding_box()["height"] <= 380, "and little below"
    widths = page.locator(".tg-left svg").evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect().width)"
    )
    assert widths
    assert max(widths) <= 310, "letters are as large as elsewhere"


@pytest.mark.parametrize(("bound", "lies"), [(2e4, "above"), (4.9e4, "below")])
def test_the_lines_of_a_search_and_its_plans_are_named(
    bare: browsers.Watched, files: str, bound: float, lies: str
) -> None:
    """Each name at the end of its line, where it covers none of the other's."""
    session = session_of(layered(4))
    session.optimize("search", steps=8)
    screen = explored(session)
    told = {"told_seconds": np.arange(3.0), "told_best": np.array([9e4, 6e4, 5e4]),
            "told_bound": np.full(3, bound),
            "try_time": np.array([5e4]), "try_size": np.full(1, 64.0),
            "try_kept": np.ones(1, np.int32), "try_parts": np.ones(1, np.int32), "try_why": [""],
            "try_number": np.zeros(1, np.int32), "try_best": np.ones(1, np.uint8),
            }  # fmt: skip
    change(screen, "frontier", lambda found: told)
    page = show(bare, files, screen)
    page.evaluate("() => model.put('frontier', { unit: 's', is_running: true })")
    run = page.locator(".tg-left svg").nth(1)
    best, least = (run.locator("text", has_text=words).bounding_box()
                   for words in ("best plan so far", "bound: no plan is faster"))  # fmt: skip
    ends = run.locator("polyline").evaluate_all(
        "(all) => all.map((one) => { const box = one.getBoundingClientRect(); return box.bottom; })"
    )  # of the bound, and of the best plan
    assert best["y"] + best["height"] <= ends[1] + 2
    is_above = least["y"] + least["height"] <= ends[0] + 2
    assert is_above is (lies == "above")
    assert best["y"] + best["height"] <= least["y"] + 2
    page.locator(".tg-left caption", has_text="plans that were laid out; ✓ the best").wait_for()
    for text in run.locator("text").all():
        inside = text.bounding_box()
        assert inside["y"] >= run.bounding_box()["y"] - 1


def test_a_search_of_one_moment_has_no_chart(bare: browsers.Watched, files: str) -> None:
    """A plan whose search took one step tells of it twice: where it began and where it ended."""
    screen = explored(session_of(layered(2)))
    one = {"told_seconds": np.ones(2), "told_best": np.full(2, 5e4), "told_bound": np.zeros(2)}
    change(screen, "frontier", lambda found: one)
    page = show(bare, files, screen)
    assert page.locator(".tg-left .tg-chart").nth(1).is_hidden()
    change(screen, "frontier", lambda found: one | {"told_seconds": np.arange(2.0)})
    page = show(bare, files, screen)
    assert page.locator(".tg-left .tg-chart").nth(1).is_visible()


@pytest.mark.parametrize("width", [700, 900, 1300])
def test_classes_and_words_are_seen_whole(bare: browsers.Watched, files: str, width: int) -> None:
    """Every class that follows has its column; what is said has room; letters keep their size."""
    bare.page.set_viewport_size({"width": width, "height": 760})
    session = session_of(layered(4))
    x = np.zeros((8, 4), np.float32)
    for rows in (slice(2, 4), slice(0, 8), slice(5, 6), slice(1, 8)):
        x[rows] += 1
        session.run({"x": x}, want={"y": np.s_[:]})
    page = show(bare, files, session)
    table = page.locator(".tg-bottom .tg-scroll")
    assert page.locator(".tg-class").count() >= 4
    assert table.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 1
    for line in (".tg-said", ".tg-centre .tg-bar .tg-line"):
        assert page.locator(line).first.evaluate("(e) => e.clientWidth") > 150, line
    sizes = page.locator(".tg-left svg").evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect().width / e.viewBox.baseVal.width)"
    )
    assert sizes == pytest.approx([1.0] * len(sizes), abs=0.02)


def test_a_graph_says_what_its_colours_are(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, layered(4))
    told = page.locator(".tg-page:not([hidden]) .tg-legend")
    assert "input" in told.inner_text()
    assert "layer by layer" in told.inner_text()
    page.get_by_label("colours").select_option("time")
    assert "modelled to take" in told.inner_text()


def test_a_proposed_plan_has_the_one_in_force_behind_it(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import explore

    screen = explore(session_of(layered(4)))
    assert screen._pin({"node": "layer_0.exp"})["is_valid"]
    page = show(bare, files, screen)
    assert said(page, ".tg-badge") == "changed by hand"
    assert "dashed: in force" in page.locator(".tg-centre .tg-legend").first.inner_text()
    tab(page, "compare")
    assert page.locator(".tg-two canvas").count() == 2
    legend = page.locator(".tg-page:not([hidden]) .tg-legend")
    assert "pale: the same in both" in legend.inner_text()
    page.locator(".tg-page:not([hidden]) .tg-list button").first.click()
    assert state(page, "selected")
    page.get_by_role("button", name="use it").click()
    assert page.evaluate("() => model.sent.at(-1).what") == "use"


def test_a_proposal_moves_nothing_and_says_what_it_is(bare: browsers.Watched, files: str) -> None:
    """As wide as a notebook on a laptop: buttons come, and what is said keeps its line."""
    from tgbench.views import explore

    bare.page.set_viewport_size({"width": 1190, "height": 700})
    screen = explore(session_of(layered(4)))
    before = show(bare, files, screen).locator(".tg-head").bounding_box()
    assert screen._pin({"node": "layer_0.exp"})["is_valid"]
    page = show(bare, files, screen)
    page.evaluate(
        "() => model.set('remark', 'keeps layer_0.exp: 12.5 KiB more, 1.25 µs less a run')"
    )
    frame(page)
    assert page.get_by_role("button", name="dismiss").is_visible()
    assert page.locator(".tg-head").bounding_box() == before
    assert page.locator(".tg-said").evaluate("(e) => e.scrollWidth <= e.clientWidth")


def test_names_are_text_in_every_panel(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import explore

    screen = explore(session_of(layered(2, HOSTILE)))
    screen.selected = [HOSTILE]
    page = show(bare, files, screen)
    for name in ("graph", "program", "memory"):
        tab(page, name)
    assert HOSTILE in page.locator(".tg-right").inner_text()
    assert HOSTILE in page.locator(".tg-hidden").inner_text()
    assert page.evaluate("() => window.hit === undefined")
    assert page.locator(".tg-view img").count() == 0


def test_copied_code_is_said_in_few_words(bare: browsers.Watched, files: str) -> None:
    """And not in the colour of what went wrong before it."""
    page = show(bare, files, session_of(layered(2)))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("() => { model.answers.code = 'import x\\nx.y()\\n'; }")
    page.evaluate("() => { model.answers.drop = { is_valid: false, words: 'too large' }; }")
    page.locator("canvas").first.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("d")
    page.locator(".tg-said.tg-no", has_text="too large").wait_for()
    page.get_by_role("button", name="code").click()
    page.locator(".tg-said", has_text="copied 2 lines").wait_for()
    assert page.locator(".tg-said").get_attribute("class") == "tg-said"
    assert page.evaluate("() => navigator.clipboard.readText()") == "import x\nx.y()\n"


def test_the_header_says_that_times_are_expected(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, session_of(layered(2)))
    page.evaluate("() => model.put('header', { stale: '' })")
    assert "s expected" in said(page, ".tg-numbers")
    page.evaluate("() => model.put('header', { stale: 'modelled times' })")
    assert "s modelled" in said(page, ".tg-numbers")


def test_grey_has_its_place_in_the_legend(bare: browsers.Watched, files: str) -> None:
    screen = explored(session_of(layered(4)))
    names = unpack(screen.fates)["name"]
    change(screen, "fates", lambda found: {"name": names[:1], "fate": found["fate"][:1]})
    page = show(bare, files, screen)
    legend = page.locator(".tg-centre .tg-legend").first
    assert "untouched" in legend.inner_text()
    swatch = legend.locator("li", has_text="untouched").locator("i")
    assert swatch.evaluate("(e) => getComputedStyle(e).backgroundColor") != "rgba(0, 0, 0, 0)"


def test_the_plan_is_exported_as_a_file(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import explore

    screen = explore(session_of(layered(2)))
    page = show(bare, files, screen)
    page.evaluate("(answer) => { model.answers.json = answer; }", screen._json({}))
    with page.expect_download() as download:
        page.get_by_role("button", name="export").click()
    assert Plan.load(download.value.path()) == screen.subject.plan


@pytest.mark.parametrize(("wide", "high"), [(1400, 900), (900, 700), (420, 700)])
def test_it_fits_its_window_and_nothing_is_cut_off(
    chromium: Any, files: str, wide: int, high: int
) -> None:
    context = chromium.new_context(viewport={"width": wide, "height": high})
    watched = browsers.Watched(context.new_page()).watch()
    page = show(watched, files, session_of(layered(4)))
    box = page.locator(".tg-view").bounding_box()
    assert box["width"] <= wide
    if wide > 560:
        assert box["height"] <= min(720, high)
    over = page.evaluate(
        """() => [...document.querySelectorAll(".tg-area, .tg-head")].filter((one) =>
          !one.hidden && one.scrollWidth > one.clientWidth + 2).map((one) => one.className)"""
    )
    assert not over
    assert not watched.faults
    context.close()


# --- graphs, pages --------------------------------------------------------------------------------


def test_layers_without_room_for_names_have_their_numbers(
    bare: browsers.Watched, files: str
) -> None:
    page = show(bare, files, layered(1))
    told = page.evaluate(
        """async () => { const { shared } = await import("/widgets/common.js");
        return [shared(["layer_0", "layer_12"]), shared(["a.3", "b.4"]), shared([])]; }"""
    )
    assert told == ["layer_", "", ""]


def test_an_edge_goes_around_what_lies_between(bare: browsers.Watched, files: str) -> None:
    """x is read by the sum below the product and the exponential: not behind these."""
    page = show(bare, files, layered(1))
    page.evaluate("() => model.set('selected', ['x'])")
    frame(page)
    drawn = page.evaluate(
        """() => { const pen = CanvasRenderingContext2D.prototype, found = [], old = pen.lineTo;
        pen.lineTo = function (x, y) { found.push([x, y]); return old.call(this, x, y); };
        model.set('selected', ['y']);
        return new Promise((go) => setTimeout(() => { pen.lineTo = old; go(found); }, 200)); }"""
    )
    assert drawn, "a straight piece beside the boxes"


def test_of_a_long_edge_the_ends_are_drawn(bare: browsers.Watched, files: str) -> None:
    """All of it where one of them is chosen; through every line it would be behind all boxes."""
    g = GraphBuilder()
    first = up = g.input("x", (4, 4))
    for i in range(70):
        up = g.apply("exp" if i % 3 else "tanh", up)
    g.output("y", up + first)
    screen = explored(g.build())
    screen._fold({})
    page = show(bare, files, screen)
    legend = page.locator(".tg-page:not([hidden]) .tg-legend, .tg-centre .tg-legend").last
    assert "ends alone" in legend.inner_text()
    page = show(bare, files, layered(2))
    legend = page.locator(".tg-page:not([hidden]) .tg-legend, .tg-centre .tg-legend").last
    assert "ends alone" not in legend.inner_text()


def test_a_folded_node_chooses_all_it_stands_for(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, layered(6))
    page.evaluate("() => model.set('selected', ['layer_2.exp'])")
    frame(page)
    page.locator("canvas").focus()
    page.keyboard.press("ArrowUp")
    assert state(page, "selected") == [f"layer_{i}.matmul" for i in range(6)]
    assert painted_share(page) > 0.02


AGAIN = """async () => {
  const view = (await import("/widgets/screen.js")).default, el = document.createElement("div");
  window.end();
  window.end = view.render({ model: window.model, el });
  document.getElementById("view").replaceChildren(el);
}"""


def test_nodes_are_found_before_the_graph_was_shown(bare: browsers.Watched, files: str) -> None:
    """As in JupyterLab, where a view is made before it stands in the page."""
    page = show(bare, files, session_of(layered(2)))
    page.evaluate(AGAIN)
    page.locator("input[type=search]").fill("layer_1.exp")
    frame(page)
    frame(page)
    assert not bare.faults
    tab(page, "graph")
    assert page.locator(".tg-page:not([hidden]) canvas").is_visible()


INTO_A_NOTEBOOK = """async () => {
  const view = (await import("/widgets/screen.js")).default, el = document.createElement("div");
  window.end();
  window.end = view.render({ model: window.model, el });
  const book = document.createElement("div");
  book.className = "jp-Notebook";
  book.style = "height:560px;overflow:auto";
  book.append(el);
  document.getElementById("view").replaceChildren(book);
}"""


def test_a_screen_is_not_higher_than_its_notebook(bare: browsers.Watched, files: str) -> None:
    """As in JupyterLab, where the view is made before it stands in the notebook."""
    page = show(bare, files, session_of(layered(2)))
    page.evaluate(INTO_A_NOTEBOOK)
    frame(page)
    frame(page)
    assert page.locator(".tg-view").bounding_box()["height"] <= 560


@pytest.mark.parametrize("layers", [0, 1, 300])
def test_graphs_of_any_size_are_drawn(bare: browsers.Watched, files: str, layers: int) -> None:
    from tgbench.views import explore

    screen = explore(layered(layers))
    if layers > 1:
        screen._fold({})
    page = show(bare, files, screen)
    page.locator("canvas").focus()
    for key in ("-", "-", "-", "0", "+", "Shift+ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    frame(page)
    assert painted_share(page) > 0.001


@pytest.mark.parametrize(("scheme", "paper"), [("light", "255, 255, 255"), ("dark", "17, 17, 17")])
def test_a_picture_has_the_paper_of_its_colours(
    chromium: Any, tmp_path: Path, scheme: str, paper: str
) -> None:
    """What shows it may be light where the system is dark, as exported notebooks are."""
    path = tmp_path / "plan.svg"
    path.write_text(SHOWN[Plan](Plan.load(PLAN))["image/svg+xml"])
    context = chromium.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    style = "() => getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(style) == f"rgb({paper})"
    context.close()


def test_a_page_from_a_file_alone_works(bare: browsers.Watched, tmp_path: Path) -> None:
    """No server: opened as a file. Memory, fates, frontier, and a choice in one is one in all."""
    from tgbench.views.pages.screen_page import page as page_of

    path, other = tmp_path / "plan.html", session_of(layered(4))
    path.write_text(page_of(other.plan, other.graph), encoding="utf-8")
    page = bare.page
    page.goto(path.as_uri())
    page.wait_for_selector("[data-painted]")
    frame(page)
    assert page.locator(".tg-point").count() == 1
    assert page.locator(".tg-view").bounding_box()["height"] == page.viewport_size["height"]
    page.locator(".tg-right .tg-list button").first.click()
    frame(page)
    assert "Why" in page.locator(".tg-right").inner_text()
    page.locator(".tg-class").last.click()
    frame(page)
    assert page.locator(".tg-class[aria-pressed=true]").count() == 1
    with page.expect_download() as download:
        page.get_by_role("button", name="export").click()
    assert Plan.load(download.value.path()) == other.plan
    path.write_text(page_of(PLAN), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("[data-painted]")
    assert painted_share(page) > 0.2
