"""The views in a real JupyterLab: a kernel, one selection, verdicts, themes, a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from views_cases import painted_share, words_lightness

from benchmarks import browsers

MAKE = """import numpy as np
import tgbench as tg
from tgbench.views import AliasMap, Listing, MemoryTimeline, Selection

g = tg.GraphBuilder()
x = g.input("x", (64, 32))
h = x
for i in range(4):
    h = g.name(tg.ops.softmax(g.name(h @ g.parameter(f"w{i}", (32, 32)), f"up{i}")), f"soft{i}")
g.output("y", h)
weights = {f"w{i}": np.eye(32, dtype="float32") for i in range(4)}
session = tg.GraphSession(g.build(), weights=weights)
for row in range(3):
    value = np.zeros((64, 32), "float32")
    value[row] = row
    session.run({"x": value}, want={"y": np.s_[row]})
selection = Selection()
timeline = MemoryTimeline(session, selection=selection)"""
CELLS = [
    MAKE,
    "timeline",
    "Listing(['up1', 'soft1', 'x'], selection)",
    "AliasMap(session, selection=selection)",
    "print(selection.nodes, timeline.what.code())",
]


@pytest.fixture(scope="module")
def watched(lab_page: browsers.Watched) -> browsers.Watched:
    lab_page.faults.clear()
    return lab_page


@pytest.fixture(scope="module")
def notebook(watched: browsers.Watched, lab_folder: Path) -> browsers.Notebook:
    opened = browsers.Notebook.instead(watched.page, lab_folder, "views", CELLS)
    for _ in CELLS[:4]:
        opened.run()
    for number in (1, 3):
        output(opened, number).locator("[data-painted]").wait_for()
    return opened


def output(notebook: browsers.Notebook, number: int) -> Any:
    return notebook.page.locator(".jp-Notebook .jp-CodeCell").nth(number)


def becomes(notebook: browsers.Notebook, number: int, where: str, words: str) -> None:
    """Wait until some text is there."""
    output(notebook, number).locator(where, has_text=words).wait_for()


def test_every_view_is_painted(notebook: browsers.Notebook) -> None:
    assert painted_share(notebook.page) > 0.3
    assert output(notebook, 2).locator("li").count() == 3


def test_a_click_in_one_view_selects_in_all(notebook: browsers.Notebook) -> None:
    output(notebook, 2).locator("button", has_text="soft1").click()
    becomes(notebook, 1, ".tg-seen", "soft1:")
    becomes(notebook, 3, ".tg-side h4", "soft1")
    output(notebook, 1).locator(".tg-side button").first.click()
    name = output(notebook, 1).locator(".tg-side button").first.locator("span").first.inner_text()
    becomes(notebook, 3, ".tg-side h4", name)


def test_a_drag_gets_a_verdict_from_python(notebook: browsers.Notebook) -> None:
    output(notebook, 2).locator("button", has_text="up1").click()
    becomes(notebook, 1, ".tg-seen", "up1:")
    canvas = output(notebook, 1).locator("canvas")
    canvas.focus()
    for _ in range(3):
        notebook.page.keyboard.press("Alt+ArrowDown")
    becomes(notebook, 1, ".tg-verdict", "shares bytes with")
    notebook.page.keyboard.press("Enter")
    becomes(notebook, 1, ".tg-verdict", "live at once on the same bytes")


def test_retaining_a_node_shows_the_new_map_and_its_time(notebook: browsers.Notebook) -> None:
    output(notebook, 2).locator("button", has_text="soft1").click()
    becomes(notebook, 1, ".tg-seen", "soft1:")
    output(notebook, 1).get_by_role("button", name="retain").click()
    becomes(notebook, 1, ".tg-verdict", "a run,")
    becomes(notebook, 1, ".tg-seen", "soft1: retained")
    said = notebook.run()
    assert ".retained('soft1').plan" in said.inner_text()


def test_the_class_of_runs_is_shared(notebook: browsers.Notebook) -> None:
    output(notebook, 3).locator("select").select_option(index=1)
    becomes(notebook, 3, ".tg-seen", "recomputed")
    output(notebook, 1).locator("select:has(option[value='0']:checked)").wait_for()


def test_the_dark_theme_repaints(notebook: browsers.Notebook) -> None:
    before = notebook.page.evaluate("() => performance.now()")
    notebook.theme("JupyterLab Dark")
    output(notebook, 1).locator(".tg-dark").wait_for()
    output(notebook, 1).scroll_into_view_if_needed()
    notebook.page.wait_for_function(
        "(before) => document.querySelector('.tg-dark[data-painted]')?.dataset.painted > before",
        arg=before,
    )
    assert painted_share(notebook.page) > 0.3
    notebook.page.wait_for_timeout(1600)  # style sheets may come late
    assert words_lightness(notebook.page) > 130
    notebook.theme("JupyterLab Light")


def test_nothing_went_wrong_in_the_page(
    notebook: browsers.Notebook, watched: browsers.Watched
) -> None:
    assert not [fault for fault in watched.faults if "tg-" in fault or "blob:" in fault]


def test_a_restarted_kernel_is_told(notebook: browsers.Notebook) -> None:
    notebook.restart()
    becomes(notebook, 1, ".tg-gone", "kernel that made this view is gone")
