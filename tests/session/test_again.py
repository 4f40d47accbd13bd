"""Sessions in less memory than their values take when each is computed once in a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from again_cases import Array, made_once, residual, skipping, unet, values_of
from session_cases import CheckedSession, smallest_budget

from tgbench import ops
from tgbench.base.errors import BudgetError, PlanError
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.views.values.timeline import timeline_from_plan, timeline_of_plan

GRAPHS = {"unet": cache(unet), "residual": cache(residual)}
SHARE = {"unet": 0.67, "residual": 0.78}  # of the bytes that everything made once takes


@cache
def lowest(name: str, exact: str | None = None) -> int:
    """The smallest budget that the error names."""
    graph = GRAPHS[name]()
    return smallest_budget(graph, values_of(graph), exact=exact)


def again(session: GraphSession) -> list[str]:
    return [name for name in session.plan.schedule if name.endswith(" again")]


def tight(name: str) -> CheckedSession:
    """In the smallest budget; it has run once."""
    graph = GRAPHS[name]()
    session = CheckedSession(graph, values_of(graph), memory=lowest(name))
    session.run()
    assert again(session.session)
    return session


def images(graph: Graph, seed: int = 1) -> Iterator[dict[str, Array]]:
    """Edits of one element, of a piece, of nothing, and another image."""
    random = np.random.default_rng(seed)
    image = values_of(graph)["image"]
    for size in (1, 3, 0, 2, image.shape[-1]):
        image = image.copy()
        image[..., :size] = random.integers(-2, 3, image[..., :size].shape)
        yield {"image": image}


@pytest.mark.parametrize("name", GRAPHS)
def test_less_memory_than_everything_made_once(name: str) -> None:
    graph = GRAPHS[name]()
    values, once, low = values_of(graph), made_once(graph), lowest(name)
    assert low <= SHARE[name] * once.needed_bytes
    for budget in (low, once.needed_bytes - 1):
        session = CheckedSession(graph, values, memory=budget)
        session.run()
        assert session.session.placement.size_bytes <= budget
        assert again(session.session) or budget > low
        for inputs in images(graph):
            session.run(inputs)
    roomy = CheckedSession(graph, values, memory=once.needed_bytes)
    roomy.run()
    assert not again(roomy.session)


def test_parts_and_what_ifs() -> None:
    session = tight("unet")
    for i, inputs in enumerate(islice(images(session.graph), 2)):
        before = dict(session.values)
        session.session.run(inputs, keep=False)
        session.run(before, want={"picture": np.s_[..., i:3]})
        session.run(inputs, want={"picture": np.s_[0]})
        session.run()


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_in_the_least_memory(seed: int) -> None:
    graph = skipping(seed)
    values = values_of(graph, seed)
    session = CheckedSession(graph, values, memory=smallest_budget(graph, values))
    for inputs in images(graph, seed):
        session.run(inputs)
    assert session.session.placement.size_bytes <= made_once(graph).needed_bytes


def test_bits_are_those_of_a_full_run() -> None:
    graph, low = GRAPHS["residual"](), lowest("residual", "bitwise")
    session = CheckedSession(graph, values_of(graph), memory=low, exact="bitwise")
    session.run()
    assert again(session.session)
    for inputs in images(graph):
        session.run(inputs)


def test_states_advance_once() -> None:
    graph = unet(stateful=True)
    values = values_of(graph)
    session = CheckedSession(graph, values, memory=smallest_budget(graph, values))
    for inputs in images(graph):
        session.run(inputs)
        session.run(want={"picture": np.s_[2]})
        assert np.array_equal(session.session.state_value("held"), session.states["held"])
    assert again(session.session)


# --- what is said of it ---------------------------------------------------------------------------


def test_the_error_names_a_budget_that_works_and_a_bound_that_holds() -> None:
    graph = unet()
    values = values_of(graph)
    with pytest.raises(BudgetError, match="the smallest budget found to work") as caught:
        CheckedSession(graph, values, memory=1).run()
    error = caught.value
    assert error.lower_bound_bytes == sum(size for _, size in error.nodes) <= error.needed_bytes
    assert error.needed_bytes < made_once(graph).needed_bytes
    assert "want=" not in str(error)
    with pytest.raises(BudgetError) as caught:
        CheckedSession(graph, values, memory=error.needed_bytes - 1).run()
    assert caught.value.needed_bytes == error.needed_bytes
    CheckedSession(graph, values, memory=error.needed_bytes).run()


def test_the_error_says_to_ask_for_less_where_a_result_is_most_of_what_is_needed() -> None:
    g = GraphBuilder()
    g.output("wide", ops.linear(g.input("rows", (16, 4)), g.parameter("w", (256, 4))))
    weights, values = {"w": np.ones((256, 4), np.float32)}, {"rows": np.ones((16, 4), np.float32)}
    session = GraphSession(g.build(), weights, memory=4096)
    with pytest.raises(BudgetError, match=r"or ask for a part of 'wide' \(want=\)"):
        session.run(values)
    assert session.run(values, want={"wide": np.s_[-1]})["wide"].shape == (256,)


def test_a_repeated_node_has_a_name_bytes_and_steps() -> None:
    session = tight("unet").session
    plan, name = session.plan, next(n for n in again(session) if n.startswith("down"))
    first = name.removesuffix(" again")
    assert plan.schedule.index(first) < plan.schedule.index(name)
    assert str(plan.explain(name)).startswith(f"{name}: not retained")
    assert plan.explain("reshape again", session.graph).role == "view"
    assert {first, name} <= set(session.last.compute)
    assert str(session.report()).startswith("image[:, :] → picture[:, :]")
    assert session.estimate_memory()["cpu"].arena_bytes == session.placement.size_bytes
    for shown in (timeline_from_plan(plan), timeline_of_plan(plan, session.graph)):
        found = {rectangle.name: rectangle for rectangle in shown.rectangles}
        assert found[first].stop <= found[name].start


# --- plans ----------------------------------------------------------------------------------------


def test_plans_are_the_same_byte_for_byte_and_start_a_session(tmp_path: Path) -> None:
    one, other = tight("unet"), tight("unet")
    graph, values = one.graph, one.values | one.parameters
    path = one.session.save_plan(tmp_path / "plan.json")
    assert path.read_text() == other.session.plan.to_json()
    loaded = CheckedSession(graph, values, plan=path)
    assert loaded.session.is_planned
    for inputs in images(graph):
        loaded.run(inputs)
    assert loaded.session.counters.planned == 0
    assert loaded.session.plan.schedule == one.session.plan.schedule
    assert replace(loaded.session.plan, budget_bytes=one.session.budget_bytes) == one.session.plan


def test_schedules_that_are_none_are_refused() -> None:
    session = tight("unet").session
    right = json.loads(session.plan.to_json())
    names = right["schedule"]
    assert "down0 again" in names
    for schedule, message in [
        ([*names, "image"], "not the graph's nodes"),
        ([*names, "image again"], "not the graph's nodes"),
        ([*names, "nobody again"], "the graph has no node 'nobody again'"),
        ([names[-1], *names[:-1]], "comes before"),
        ([*names, "down0 again"], "'down0 again' is called down0 again 2 there"),
        ([name for name in names if name != "down0"], "comes before down0"),
    ]:
        with pytest.raises(PlanError, match=message):
            session.adopt(Plan.from_json(json.dumps({**right, "schedule": schedule})))


def test_a_search_goes_on_from_such_a_plan() -> None:
    session, low = tight("unet"), lowest("unet")
    session.run(next(images(session.graph)))
    plan = session.session.optimize("search", steps=4)
    assert plan.size_bytes <= low
    assert again(session.session)
    session.run()
    roomy = session.session.optimize("greedy", budget="1MiB")
    assert not again(session.session)
    session.run()
    assert roomy.expected_ns < plan.expected_ns
    assert session.session.optimize("greedy", budget=low).size_bytes <= low
    assert again(session.session)
    session.run(next(images(session.graph, 2)))


def test_a_search_elsewhere_finds_the_same() -> None:
    session = tight("unet")
    session.run(next(images(session.graph)))
    task = session.session.search("greedy").task
    optimiser = task.optimiser()
    start = Plan.from_json(task.start_json or "").placement_for(
        optimiser.judge.scheduled.folded, optimiser.judge.device
    )
    assert start.scheduled.schedule == optimiser.judge.scheduled.schedule
    made = optimiser.run("greedy", start=start)
    session.session.adopt(Plan.of(optimiser.judge.scheduled.folded, made, "cpu", task.budget_bytes))
    assert again(session.session)
    session.run()


def test_more_memory_computes_everything_once() -> None:
    session = tight("unet")
    session.session.budget_bytes = None
    session.session.plan_for([({"image": np.s_[0]}, None)])
    assert not again(session.session)
    session.run()
