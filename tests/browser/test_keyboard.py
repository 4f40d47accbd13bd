"""The keyboard alone: what a click does, keys do; all that takes the focus says what it is."""

from __future__ import annotations

from typing import Any

import pytest
from plans.paths.test_chosen import LIMITS, inputs
from plans.paths.test_chosen import session_of as session_with_paths
from plans.paths.test_paths import layers
from test_screen_bare import frame, layered, session_of, show, tab

from benchmarks import browsers
from tgbench.session.paths import SessionPaths

# Elements remember that somebody listens for clicks, or for keys.
LISTENING = """
const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) {
  (this.heard ??= new Set()).add(type);
  return add.call(this, type, ...rest);
};
"""
SEEN = "(e) => e.checkVisibility?.({ checkVisibilityCSS: true }) ?? true"
REACHED = "(e) => e.matches('button, select, input, textarea, a[href], summary') || e.tabIndex >= 0"
# What hears clicks, and neither takes the focus nor lies in a list that hears keys. A click into
# the frontier is a budget, which the slider is too.
SLIDER = "document.querySelector('input[aria-label=\"memory budget\"]')"
BY_MOUSE_ALONE = f"""() => [...document.querySelectorAll(".tg-view *")]
  .filter((e) => e.heard?.has("click") && ({SEEN})(e) && !({REACHED})(e))
  .filter((e) => !e.closest('[role="listbox"]')?.heard?.has("keydown"))
  .filter((e) => !(e.matches(".tg-field") && {SLIDER}))
  .map((e) => e.outerHTML.slice(0, 160))"""
NAMELESS = f"""() => [...document.querySelectorAll(".tg-view *")]
  .filter((e) => ({REACHED})(e) && ({SEEN})(e))
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.title))
  .filter((e) => !e.closest("label"))
  .map((e) => e.outerHTML.slice(0, 160))"""
REACHABLE = f"""() => [...document.querySelectorAll(".tg-view *")]
  .filter((e) => ({REACHED})(e) && ({SEEN})(e) && !e.disabled && e.tabIndex >= 0).length"""
FOCUSED = """() => {
  const all = [...document.querySelectorAll(".tg-view *")];
  return all.indexOf(document.activeElement);
}"""


def panels(page: Any) -> list[str]:
    return [one.inner_text() for one in page.get_by_role("tab").all() if one.is_visible()]


def screens(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One with a node chosen, and one with paths."""
    from tgbench.views import explore

    of = SessionPaths.of
    monkeypatch.setattr(SessionPaths, "of", lambda *a, **k: of(*a, **k, limits=LIMITS))
    chosen = explore(session_of(layered(3)))
    chosen.selected = ["layer_0.exp"]
    session = session_with_paths(layers(1))
    session.run(inputs())
    paths = explore(session)
    paths.board.find()
    paths.tell("paths")
    return {"chosen": chosen, "paths": paths}


@pytest.mark.parametrize("which", ["chosen", "paths"])
def test_what_a_click_does_keys_do(
    which: str, bare: browsers.Watched, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.page.add_init_script(LISTENING)
    page = show(bare, files, screens(monkeypatch)[which])
    assert len(panels(page)) > 3
    for name in panels(page):
        tab(page, name)
        frame(page)
        assert page.evaluate(BY_MOUSE_ALONE) == [], name
        assert page.evaluate(NAMELESS) == [], name


def test_tab_comes_to_everything(bare: browsers.Watched, files: str) -> None:
    page = show(bare, files, session_of(layered(2)))
    count = page.evaluate(REACHABLE)
    seen: set[int] = set()
    for _ in range(2 * count + 10):
        page.keyboard.press("Tab")
        seen.add(page.evaluate(FOCUSED))
    roles = page.evaluate("() => [...document.querySelectorAll('[role=tab]')].length")
    assert len(seen - {-1}) >= count - roles, "of tabs one takes the focus, arrows do the rest"


def test_the_check_sees_what_only_a_mouse_reaches(bare: browsers.Watched, files: str) -> None:
    bare.page.add_init_script(LISTENING)
    page = show(bare, files, session_of(layered(2)))
    page.evaluate("""() => {
      const made = document.createElement("span");
      made.addEventListener("click", () => {});
      document.querySelector(".tg-view").append(made, document.createElement("button"));
    }""")
    assert len(page.evaluate(BY_MOUSE_ALONE)) == 1
    assert len(page.evaluate(NAMELESS)) == 1
