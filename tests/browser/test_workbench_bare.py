"""The views of graphs, regions, transitions, programs, searches and budgets in a bare page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from views_cases import painted_share

from benchmarks import browsers
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.session.session import GraphSession

HOSTILE = '<img src=x onerror="window.hit = 1">'


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


def show(watched: browsers.Watched, files: str, widget: Any, **facts: Any) -> Any:
    state = browsers.state_of(widget)
    state["facts"] = {**state["facts"], **facts}
    browsers.show(watched.page, files, type(widget).script, state)
    frame(watched.page)
    return watched.page


def frame(page: Any) -> None:
    page.evaluate(
        "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    )


def chosen(page: Any) -> list[str]:
    found: list[str] = page.evaluate("() => model.state.selected")
    return found


def test_a_folded_node_chooses_all_it_stands_for(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import GraphMap

    page = show(bare, files, GraphMap(layered(6)))
    page.locator("input[type=search]").fill("layer_2.exp")
    assert "1 found" in page.locator(".tg-bar").inner_text()
    assert chosen(page) == ["layer_2.exp"]
    page.locator("canvas").focus()
    page.keyboard.press("ArrowUp")
    assert chosen(page) == [f"layer_{i}.matmul" for i in range(6)]
    assert painted_share(page) > 0.02


@pytest.mark.parametrize("layers", [0, 1, 300])
def test_graphs_of_any_size_are_drawn(bare: browsers.Watched, files: str, layers: int) -> None:
    from tgbench.views import GraphMap

    page = show(bare, files, GraphMap(layered(layers), fold=layers < 2))
    page.locator("canvas").focus()
    for key in ("-", "-", "-", "0", "+", "Shift+ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    frame(page)
    assert painted_share(page) > 0.001


def test_names_are_text(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import GraphMap, PlanBar, ProgramList, RegionInspector, TransitionMap

    session = session_of(layered(2, HOSTILE))
    for widget in (
        GraphMap(session.graph),
        PlanBar(session.plan),
        ProgramList(session),
        RegionInspector(session),
        TransitionMap(session.trace, session.graph),
    ):
        page = show(bare, files, widget)
        assert page.evaluate("() => window.hit === undefined")
        assert page.locator(".tg-view img").count() == 0


def test_regions_are_drawn_and_asked_for(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import RegionInspector

    page = show(bare, files, RegionInspector(session_of(layered(2))))
    assert painted_share(page) > 0.02
    page.locator("canvas").hover(position={"x": 60, "y": 100})
    assert "layer_" in page.locator(".tg-seen").inner_text()
    page.locator("select").nth(1).select_option("layer_0.exp")
    assert page.evaluate("() => model.sent.at(-1).with") == {"node": "layer_0.exp"}
    page.locator(".tg-legend input").first.uncheck()


def test_a_cell_tells_its_example_and_chooses_its_class(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import TransitionMap

    session = session_of(layered(2))
    page = show(bare, files, TransitionMap(session.trace, session.graph))
    page.locator(".tg-heat").first.click()
    assert "for example call" in page.locator(".tg-seen").inner_text()
    assert page.evaluate("() => model.state.bucket") == "x[u0:+1, :] → y[u0:+1, :]"


def test_program_rows_choose_nodes(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import ProgramList

    session = session_of(layered(60))
    page = show(bare, files, ProgramList(session))
    page.locator(".tg-rows .tg-row").nth(1).click()
    assert chosen(page) == ["layer_0.exp"]
    page.locator(".tg-program").press("ArrowDown")
    assert chosen(page) == ["layer_0.add"]
    page.evaluate("() => model.set('selected', ['layer_59.add'])")
    frame(page)
    assert page.locator(".tg-row[aria-selected=true]").count() == 1


def test_the_search_view_asks_and_follows(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import SearchMonitor

    session = session_of(layered(2))
    page = show(bare, files, SearchMonitor(session, budgets=(1 << 10, 1 << 20)))
    page.get_by_role("button", name="start").click()
    assert page.evaluate("() => model.sent.at(-1).what") == "start"
    page.locator("input[type=range]").fill("50")
    page.locator("input[type=range]").dispatch_event("change")
    assert page.evaluate("() => model.sent.at(-1).with") == {"bytes": 1 << 15}
    page.evaluate("() => model.set('facts', {...model.state.facts, is_running: true})")
    frame(page)
    page.get_by_role("button", name="stop").click()
    assert page.evaluate("() => model.sent.at(-1).what") == "stop"


def test_a_budget_opens_its_plan(bare: browsers.Watched, files: str) -> None:
    from tgbench.views import BudgetCurve
    from tgbench.views.values.pareto import curve

    session = session_of(layered(4))
    page = show(bare, files, BudgetCurve(curve(session), use=print))
    page.evaluate("() => { model.answers.open = 'a plan'; }")
    page.locator(".tg-point").first.press("Enter")
    page.wait_for_function("() => document.querySelector('.tg-words').textContent === 'a plan'")
    assert page.get_by_role("button", name="use this plan").is_enabled()


def test_the_plan_is_exported_as_a_file(bare: browsers.Watched, files: str) -> None:
    from tgbench.plans.plan import Plan
    from tgbench.views import PlanBar

    bar = PlanBar(session_of(layered(2)).plan)
    page = show(bare, files, bar)
    page.evaluate("(answer) => { model.answers.json = answer; }", bar._json({}))
    with page.expect_download() as download:
        page.get_by_role("button", name="export plan JSON").click()
    assert Plan.load(download.value.path()) == bar.plan


def test_dark_pages_are_dark(chromium: Any, files: str) -> None:
    from tgbench.views import GraphMap, ProgramList, TransitionMap

    session = session_of(layered(2))
    context = chromium.new_context(color_scheme="dark")
    watched = browsers.Watched(context.new_page()).watch()
    for widget in (
        GraphMap(session.graph), ProgramList(session), TransitionMap(session.trace, session.graph),
    ):  # fmt: skip
        page = show(watched, files, widget)
        paper = page.evaluate(
            "() => getComputedStyle(document.querySelector('.tg-view')).backgroundColor"
        )
        assert paper == "rgb(13, 17, 23)"
    assert not watched.faults
    context.close()
