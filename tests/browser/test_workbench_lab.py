"""The workbench in a real JupyterLab: one selection, a search that stops and goes on, a budget."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import browsers

TESTS = Path(__file__).parents[1]
CELLS = [
    f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    "from busy_session import busy_session\n"
    "session = busy_session()\nbench = session.explore(seconds=60)\nbench",
    "print(bench.search.run.plan.search.best_ns, session.plan == bench.search.run.plan)",
    "print(session.budget_bytes, bench.selection.nodes, bench.code())",
    "import tgbench.views as views\nsession.save_plan('saved.json')\nviews.explore('saved.json')",
]


@pytest.fixture(scope="module")
def watched(lab_page: browsers.Watched) -> browsers.Watched:
    lab_page.faults.clear()
    return lab_page


@pytest.fixture(scope="module")
def notebook(watched: browsers.Watched, lab_folder: Path) -> browsers.Notebook:
    opened = browsers.Notebook.instead(watched.page, lab_folder, "workbench", CELLS)
    opened.run()
    opened.page.locator(".tg-view").nth(6).wait_for(state="attached")
    return opened


def view(notebook: browsers.Notebook, words: str) -> Any:
    """The view whose label begins so."""
    return notebook.page.locator(f'.tg-view[aria-label^="{words}"]').first


def tab(notebook: browsers.Notebook, name: str) -> None:
    notebook.page.locator(".lm-TabBar-tabLabel", has_text=re.compile(f"^{name}$")).first.click()


def test_a_choice_in_one_is_a_choice_in_all(notebook: browsers.Notebook) -> None:
    tab(notebook, "program")
    row = notebook.page.locator(".tg-rows .tg-row").nth(2)
    row.wait_for()
    name = row.locator("span").nth(1).inner_text()
    row.click()
    tab(notebook, "regions")
    view(notebook, f"regions of {name}:").wait_for()
    tab(notebook, "graph")
    view(notebook, "graph of").locator(".tg-seen", has_text=f"{name}:").wait_for()
    tab(notebook, "memory")
    view(notebook, "memory timeline").locator(".tg-seen", has_text=name).wait_for()


def test_stop_and_resume(notebook: browsers.Notebook) -> None:
    search = view(notebook, "search")
    search.get_by_role("button", name="start").click()
    search.locator(".tg-tiles b", has_text="µs").first.wait_for()
    stopped = notebook.page.evaluate(
        """() => new Promise((done) => {
          const all = [...document.querySelectorAll(".tg-view button")];
          const stop = all.find((button) => button.textContent === "stop");
          const began = performance.now();
          stop.click();
          const look = () => {
            if (stop.disabled) done(performance.now() - began);
            else setTimeout(look, 5);
          };
          look();
        })"""
    )
    assert stopped < 30_000  # before the search would end; docs/results has how long it takes
    first = float(notebook.run().locator(".jp-OutputArea-output").last.inner_text().split()[0])
    search.get_by_role("button", name="resume").click()
    search.get_by_role("button", name="stop").click()
    search.get_by_role("button", name="resume").wait_for()
    notebook.done = 1
    text = notebook.run().locator(".jp-OutputArea-output").last.inner_text().strip()
    assert float(text.split()[0]) <= first
    assert text.endswith("True")


def test_a_budget_starts_another_search(notebook: browsers.Notebook) -> None:
    search = view(notebook, "search")
    search.locator("input[type=range]").fill("60")
    search.locator("input[type=range]").dispatch_event("change")
    search.get_by_role("button", name="start").or_(
        search.get_by_role("button", name="resume")
    ).wait_for(state="hidden")
    search.get_by_role("button", name="resume").wait_for()  # roomy: the best plan is found soon
    notebook.done = 2
    said = notebook.run().locator(".jp-OutputArea-output").last.inner_text().strip()
    assert "session.optimize('search'" in said


def test_a_plan_alone_opens_and_the_theme_turns(
    notebook: browsers.Notebook, watched: browsers.Watched
) -> None:
    notebook.done = 3
    made = notebook.run()
    made.locator(".tg-view canvas").first.wait_for()
    notebook.theme("JupyterLab Dark")
    notebook.page.locator(".tg-view.tg-dark").first.wait_for()
    notebook.theme("JupyterLab Light")
    ours = [fault for fault in watched.faults if "blob:" in fault or "tg-" in fault]
    assert not ours
