"""Keys pressed in a view stay there: in JupyterLab x cuts a cell, a and b insert one, m turns it.

Every kind of element that takes the focus is focused in turn, in every view of the workbench and
in its tabs. JupyterLab has its shortcuts for whatever has the focus in a notebook.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import browsers

TESTS = Path(__file__).parents[1]
CELLS = [
    f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    "from busy_session import busy_session\n"
    "from tgbench.views import Listing\n"
    "session = busy_session()\nbench = session.explore()\nbench",
    "Listing([node.name for node in session.graph.nodes][:3], bench.selection)",
    "1 + 1",
]
# cut, insert, delete, undo, turn, copy, paste, join, and what moves from cell to cell
KEYS = [*"xabddzmyrcv", "Shift+M", "Shift+ArrowDown", "ArrowUp", "ArrowDown", "ArrowLeft"]
PRESSES = [" ", "Enter"]  # on what they do not press
KINDS = """(place) => {
  const all = [...place.querySelectorAll("button,select,input,[tabindex='0']")];
  const kinds = new Map();
  for (const one of all.filter((one) => one.getClientRects().length && !one.disabled)) {
    const view = one.closest(".tg-view")?.getAttribute("aria-label").split(/[ :]/)[0] ?? "";
    kinds.set([view, one.tagName, one.type, one.classList[0]].join(" "), one);
  }
  return kinds;
}"""
FOCUS = f"(place, name) => ({KINDS})(place).get(name)?.focus()"
CELLS_NOW = """() => {
  const shown = window.jupyterapp.shell.currentWidget.content;
  return [shown.activeCellIndex, ...shown.widgets.map(({ model }) => [
    model.id, model.type, model.sharedModel.getSource(), model.outputs?.length ?? 0])];
}"""


@pytest.fixture(scope="module")
def notebook(lab_page: browsers.Watched, lab_folder: Path) -> browsers.Notebook:
    opened = browsers.Notebook.instead(lab_page.page, lab_folder, "keys", CELLS)
    for _ in CELLS:
        opened.run()
    opened.page.locator(".tg-side").last.wait_for()
    return opened


def output(notebook: browsers.Notebook, number: int) -> Any:
    cell = notebook.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    return cell.locator(".jp-OutputArea-output")


def press_all(notebook: browsers.Notebook, place: Any, done: set[str]) -> None:
    """Every key on every kind of element that was not there yet; cells stay as they were."""
    page, found = notebook.page, place.evaluate(f"(place) => [...({KINDS})(place).keys()]")
    for kind in [kind for kind in found if kind not in done]:
        done.add(kind)
        place.evaluate(FOCUS, kind)
        before = page.evaluate(CELLS_NOW)
        for key in [*KEYS, *([] if "button" in kind.lower() else PRESSES)]:
            page.keyboard.press(key)
        assert page.evaluate(CELLS_NOW) == before, kind


def test_keys_in_a_view_leave_the_cells_alone(notebook: browsers.Notebook) -> None:
    done: set[str] = set()
    place = output(notebook, 0)
    for tab in ("memory", "graph", "alias", "program", "time by memory"):
        place.locator(".lm-TabBar-tabLabel", has_text=tab).first.click()
        press_all(notebook, place, done)
    press_all(notebook, output(notebook, 1), done)
    canvases = {kind.split()[0] for kind in done if "CANVAS" in kind}
    assert canvases == {"memory", "graph", "alias", "regions"}
    assert {kind.split()[0] for kind in done} >= {"LI", "plan", "search", "bucket", "3"}
    assert any("tg-program" in kind for kind in done)


def test_arrows_move_what_has_the_focus(notebook: browsers.Notebook) -> None:
    place, keyboard = output(notebook, 0), notebook.page.keyboard
    place.locator(".lm-TabBar-tabLabel", has_text="memory").first.click()
    slider = place.get_by_label("schedule step")
    slider.fill("3")
    slider.focus()
    keyboard.press("ArrowRight")
    assert slider.input_value() == "4"
    canvas = place.locator('canvas[aria-label^="memory"]')
    canvas.focus()
    keyboard.press("ArrowRight")
    place.locator(".tg-side h4", has_text="at step 5").wait_for()
    tab = place.locator(".lm-TabBar-tab").first
    tab.focus()
    keyboard.press("ArrowRight")
    keyboard.press("Enter")
    place.locator('.tg-view[aria-label^="graph"] canvas').wait_for()
