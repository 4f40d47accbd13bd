"""Keys pressed in a view stay there: in JupyterLab x cuts a cell, a and b insert one, m turns it.

Every kind of element that takes the focus is focused in turn, in every panel of the
screen. JupyterLab has its shortcuts for whatever has the focus in a notebook.
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
    "session = busy_session()\nbench = session.explore()\nbench",
    "1 + 1",
]
# cut, insert, delete, undo, turn, copy, paste, join, and what moves from cell to cell
KEYS = [*"xabddzmyrcv", "Shift+M", "Shift+ArrowDown", "ArrowUp", "ArrowDown", "ArrowLeft"]
PRESSES = [" ", "Enter"]  # on what they do not press
KINDS = """(place) => {
  const all = [...place.querySelectorAll("button,select,input,[tabindex='0']")];
  const kinds = new Map();
  for (const one of all.filter((one) => one.getClientRects().length && !one.disabled)) {
    const page = one.closest(".tg-page")?.getAttribute("aria-label");
    const area = page ?? one.closest(".tg-area")?.classList[1] ?? "head";
    kinds.set([area, one.tagName, one.type, one.classList?.[0]].join(" "), one);
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
    opened.page.locator("[data-painted]").wait_for()
    opened.page.wait_for_timeout(200)
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


def test_keys_in_a_panel_leave_the_cells_alone(notebook: browsers.Notebook) -> None:
    done: set[str] = set()
    place = output(notebook, 0)
    for name in ("graph", "program", "memory"):
        place.get_by_role("tab", name=name, exact=True).click()
        press_all(notebook, place, done)
    assert {kind.split()[0] for kind in done if "CANVAS" in kind} == {"memory", "graph"}
    assert {kind.split()[0] for kind in done} >= {"head", "tg-left", "tg-right", "tg-bottom"}
    assert any("tg-program" in kind for kind in done)


def test_arrows_move_what_has_the_focus(notebook: browsers.Notebook) -> None:
    place, keyboard = output(notebook, 0), notebook.page.keyboard
    slider = place.get_by_label("memory budget")
    slider.focus()
    before = float(slider.input_value())
    keyboard.press("ArrowLeft")
    assert float(slider.input_value()) == before - 1
    slider.evaluate("(one, value) => { one.value = value; }", before)
    canvas = place.locator('canvas[aria-label^="memory:"]')
    canvas.focus()
    keyboard.press("Escape")
    keyboard.press("ArrowRight")
    place.locator(".tg-right h4", has_text="in use at step").wait_for()
    tab = place.get_by_role("tab", name="memory", exact=True)
    tab.focus()
    keyboard.press("ArrowRight")
    place.locator('canvas[aria-label^="graph"]').wait_for()
