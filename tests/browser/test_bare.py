"""The views in a bare page, without a kernel: drawing, pointer, keys, themes, names, sizes."""

from __future__ import annotations

from typing import Any

import pytest
from views_cases import painted_share, place, tower, words_lightness

from benchmarks import browsers
from benchmarks.widgets import many
from tgbench.plans.plan import Plan
from tgbench.views.values.timeline import Timeline

HOSTILE = '<img src=x onerror="window.hit = 1">'


def show(watched: browsers.Watched, files: str, what: Timeline, **facts: Any) -> Any:
    """The page with a timeline in it, painted."""
    from tgbench.views import MemoryTimeline

    state = browsers.state_of(MemoryTimeline(what))
    state["facts"] = {**state["facts"], **facts}
    browsers.show(watched.page, files, "memory_timeline.js", state)
    watched.page.wait_for_selector("[data-painted], .tg-empty")
    return watched.page


def said(page: Any, where: str = ".tg-seen") -> str:
    return str(page.locator(where).inner_text())


def frame(page: Any) -> None:
    """Let the next two frames be drawn."""
    page.evaluate(
        "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    )


def test_hovering_names_what_is_there(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    page.mouse.move(*place(page, tower(), "q"))
    assert said(page).startswith("q: slice, 4 KiB at offset 8192, steps 1 to 3 (exp)")


def test_a_click_chooses_a_node_and_a_step(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    page.mouse.click(*place(page, tower(), "q"))
    assert page.evaluate("() => [model.state.selected, model.state.step]") == [["q"], 2]
    assert "next read at step 3 by d" in said(page)
    rows = page.locator(".tg-side li button").all_inner_texts()
    assert [row.split("\n")[0] for row in rows] == ["ids", "k", "q"]


def test_the_peak_and_who_makes_it(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    assert said(page, ".tg-side h4") == "16 KiB in use at step 3, the peak"
    assert page.locator(".tg-side li").count() == 4
    page.locator("input[type=range]").fill("0")
    assert said(page, ".tg-side h4") == "8 KiB in use at step 0"
    page.get_by_role("button", name="peak").click()
    assert said(page, ".tg-side h4").endswith("the peak")


def test_a_list_keeps_the_focus_when_a_key_chooses(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    page.locator(".tg-side li button").nth(2).press("Enter")
    assert page.locator(".tg-side li button:focus").get_attribute("aria-pressed") == "true"
    focused = page.locator(":focus")
    assert focused.get_attribute("data-lm-suppress-shortcuts") == "true"
    focused.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("() => model.state.selected") == ["k"]


def test_a_long_name_shows_its_end(bare: browsers.Watched, files: str) -> None:
    """Names of an imported module differ at their ends; the last letter stays in sight."""
    name = "encoder.layers.0." + "attention." * 9 + "query (new)"
    page = show(bare, files, tower(name))
    shown = page.locator(".tg-side .tg-name", has_text="query")
    assert shown.inner_text() == name
    cut = shown.evaluate(
        """(one) => { const text = one.firstChild.firstChild, range = document.createRange();
        const at = (i) => { range.setStart(text, i); range.setEnd(text, i + 1);
          return range.getBoundingClientRect(); };
        const { left, right } = one.getBoundingClientRect();
        return [at(0).left < left, at(text.length - 1).right <= right + 1]; }"""
    )
    assert cut == [True, True]


def test_wheel_and_drag_move_the_picture(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    x, y = place(page, tower(), "q")
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    frame(page)
    page.mouse.move(x + 1, y)
    assert said(page).startswith("q:"), "zooming keeps what is under the pointer there"
    page.mouse.down()
    page.mouse.move(x + 1, y - 170, steps=4)
    page.mouse.up()
    frame(page)
    page.mouse.move(x + 1, y)
    assert said(page).startswith("k:"), "what was below has come up"
    page.get_by_role("button", name="all of it").click()
    frame(page)
    page.mouse.move(x, y)
    assert said(page).startswith("q:")


def test_keys_do_all_of_it(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    canvas = page.locator("canvas")
    canvas.focus()
    for key, step in (("ArrowLeft", 2), ("ArrowRight", 3), ("ArrowRight", 4)):
        page.keyboard.press(key)
        assert page.evaluate("() => model.state.step") == step
    for key, node in (("ArrowUp", "ids"), ("ArrowUp", "k"), ("ArrowUp", "s"), ("ArrowDown", "k")):
        page.keyboard.press(key)
        assert page.evaluate("() => model.state.selected[0]") == node
    page.keyboard.press("+")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("0")
    page.keyboard.press("/")
    page.keyboard.type("ID")
    assert said(page, ".tg-bar [role=status]") == "1 match"
    page.keyboard.press("Enter")
    assert page.evaluate("() => model.state.selected") == ["ids"]
    page.keyboard.press("Escape")
    assert page.evaluate("() => model.state.selected") == []


def test_dragging_shows_clashes_at_once_and_asks_on_release(
    bare: browsers.Watched, files: str
) -> None:
    page = show(bare, files, tower(), can_change=True)
    page.evaluate(
        "() => { model.answers.move = { is_valid: false, message: 'no room', before_ns: null,"
        " expected_ns: null }; }"
    )
    x, y = place(page, tower(), "q")
    page.mouse.click(x, y)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 60, steps=5)
    assert "shares bytes with k while both are live" in said(page, ".tg-verdict")
    page.mouse.move(x, y - 60, steps=5)
    assert "shares bytes with s while" in said(page, ".tg-verdict")
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('.tg-verdict').textContent === 'no room'")
    sent = page.evaluate("() => model.sent.at(-1)")
    assert sent["what"] == "move"
    assert sent["with"]["node"] == "q"
    assert sent["with"]["offset_bytes"] % 64 == 0
    assert sent["with"]["offset_bytes"] > 8192


def test_a_buffer_is_moved_with_keys(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower(), can_change=True)
    page.evaluate(
        "() => { model.answers.move = { is_valid: true, message: 'valid', before_ns: 2000,"
        " expected_ns: 1000 }; }"
    )
    page.mouse.click(*place(page, tower(), "s"))
    page.keyboard.press("Alt+ArrowUp")
    assert "free" in said(page, ".tg-verdict")
    page.keyboard.press("Enter")
    words = "valid; expected 1 µs a run, 2 µs before"
    page.wait_for_function(
        "(words) => document.querySelector('.tg-verdict').textContent === words", arg=words
    )
    page.keyboard.press("p")
    assert page.evaluate("() => model.sent.map((m) => m.what)") == ["move", "pin"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_draw_with_their_own_colours(
    bare: browsers.Watched, files: str, scheme: Any
) -> None:
    bare.page.emulate_media(color_scheme=scheme)
    page = show(bare, files, tower())
    assert painted_share(page) > 0.4
    paper = page.locator(".tg-view").evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert (words_lightness(page) > 130) == (scheme == "dark")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")


def test_the_theme_may_change_while_it_is_shown(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    bare.page.emulate_media(color_scheme="dark")
    page.wait_for_selector(".tg-dark")
    frame(page)
    assert painted_share(page) > 0.4


def test_names_are_text_wherever_they_stand(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower(HOSTILE))
    page.mouse.click(*place(page, tower(HOSTILE), HOSTILE))
    assert HOSTILE in said(page)
    assert HOSTILE in page.locator(".tg-hidden").inner_text()
    assert page.locator(".tg-view img").count() == 0
    assert page.evaluate("() => window.hit") is None


def test_a_screen_reader_gets_a_table(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    assert "most in use at step 3: 16 KiB" in page.locator(".tg-view").get_attribute("aria-label")
    assert page.locator(".tg-hidden table tr").count() == 5


def test_an_empty_map_says_so(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, Timeline((), 0, 0, 0))
    assert "there is no memory to draw" in said(page, ".tg-empty")


def test_one_rectangle(bare: browsers.Watched, files: str) -> None:
    one = tower().rectangles[:1]
    page = show(bare, files, Timeline(one, 1, 4096, 4096))
    assert painted_share(page) > 0.4


def test_a_hundred_thousand_rectangles(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, many(100_000))
    assert painted_share(page) > 0.4
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 200)
    assert "layer_" in said(page)
    page.locator("input[type=search]").fill("node_77777")
    assert said(page, ".tg-bar [role=status]") == "1 match"


def test_a_lost_kernel_shows(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    assert page.locator(".tg-gone").is_hidden()
    page.evaluate("() => { model.comm_live = false; model.tell('comm_live_update', model); }")
    assert "kernel that made this view is gone" in said(page, ".tg-gone")


def test_nothing_is_left_when_a_view_is_closed(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, tower())
    page.evaluate("() => window.end()")
    assert page.evaluate("() => [...model.heard.values()].every((calls) => calls.size === 0)")


def test_the_alias_map_shows_who_shares_and_what_a_run_does(
    bare: browsers.Watched, files: str, plan: Plan
) -> None:
    from tgbench.views import AliasMap

    state = browsers.state_of(AliasMap(plan))
    names = [slot.node for slot in plan.slots]
    state["facts"] = {**state["facts"], "classes": ["some run"]}
    browsers.show(bare.page, files, "alias_map.js", state)
    page = bare.page
    page.wait_for_selector("[data-painted]")
    page.evaluate(
        "(names) => { model.answers.during = { words: 'what it does', changed: [names[0]],"
        " recomputed: [names[1]], extended: [], reused: [], stale: [names[2]],"
        " destroyed: { [names[3]]: [names[1]] } }; }",
        names,
    )
    page.locator("select").select_option("some run")
    page.wait_for_function(
        "() => document.querySelector('.tg-seen').textContent === 'what it does'"
    )
    rows = page.locator(".tg-side li").all_inner_texts()
    assert sorted(row.split("\n")[0] for row in rows) == sorted(names[:4])
    page.evaluate("(name) => model.set('selected', [name])", names[3])
    assert f"destroyed by {names[1]}" in said(page)
    assert painted_share(page) > 0.1


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan.load(browsers.ROOT / "data" / "decode.plan.json")
