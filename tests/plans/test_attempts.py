"""Maps for attempts at a plan: what is known of them before they are packed, and asked once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.test_session import causal, deep, share_of_examples
from strategies import Maker, graphs

from tgbench.base.errors import BudgetError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, Node
from tgbench.graph.simplify import simplify
from tgbench.kernels.registry import Kernel, Site, candidates
from tgbench.memory.placement import Retention
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.attempts import Attempt, Attempts
from tgbench.plans.following import unit_change
from tgbench.plans.planner import Planner
from tgbench.plans.scenarios import Scenario
from tgbench.programs.choices import Choices
from tgbench.programs.specialiser import Specialiser
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import Propagator
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut, cuts


def whole_run(graph: Graph) -> Bucket:
    everything = {name: Region.full(leaf.shape) for name, leaf in graph.inputs.items()}
    return Bucket.of(everything, {n: Region.full(node.shape) for n, node in graph.outputs.items()})


def runs_of(planner: Planner) -> list[Scenario]:
    """Everything anew, and the smallest change of each input."""
    graph = planner.scheduled.graph
    first = whole_run(graph)
    following = [unit_change(first, planner.scheduled, name) for name in graph.inputs]
    found = [bucket.classify(graph) for bucket in (first, *following) if bucket is not None]
    return planner.scenarios({kind: (1.0, origin) for kind, origin in found})


def planner_of(graph: Graph, ranking: Any = candidates) -> Planner:
    rules = Rules()
    scheduled = ScheduledGraph.of(simplify(graph))
    return Planner(scheduled, rules, "cpu", choices=Choices(rules, ranking))


@share_of_examples(2)
@given(graphs(most_ops=8))
def test_no_map_is_below_its_bound_and_all_that_is_in_use_is_in_it(
    case: tuple[Graph, Maker],
) -> None:
    planner = planner_of(case[0])
    runs = runs_of(planner)
    frontier = planner.frontier(runs)
    for cut in [WHOLE, *cuts(planner.runs.propagator(frontier))][:4]:
        attempt = planner.attempts.always(frontier, runs, cut)
        for budget in (0, attempt.bound_bytes, None):
            found = attempt.within(budget)
            assert attempt.bound_bytes <= found.size_bytes
            assert max(attempt.draft.in_use) <= found.size_bytes
        most = attempt.roomy().size_bytes
        for budget in (None, most, (most + attempt.within(None).size_bytes) // 2):
            tight = attempt.within(budget)
            roomy = attempt.roomy(budget)
            assert roomy.slots.keys() == tight.slots.keys()
            for node, room in tight.scratch.items():
                assert roomy.scratch[node].size_bytes >= room.size_bytes
            assert budget is None or roomy.size_bytes <= max(budget, tight.size_bytes)


def assert_no_cut_is_below_the_floor(planner: Planner, retained: list[Node]) -> None:
    runs = runs_of(planner)
    floor_bytes = planner.attempts.floor_bytes(retained, runs)
    for cut in [WHOLE, *cuts(planner.runs.propagator(retained))]:
        assert floor_bytes <= planner.attempts.always(retained, runs, cut).bound_bytes


@share_of_examples(2)
@given(graphs(most_ops=8), st.data())
def test_no_cut_brings_a_map_below_its_floor(
    case: tuple[Graph, Maker], data: st.DataObject
) -> None:
    planner = planner_of(case[0])
    some = [node for node in planner.scheduled.stored if data.draw(st.booleans())]
    assert_no_cut_is_below_the_floor(planner, some)


@pytest.mark.parametrize("graph", [causal(rows=32), deep()], ids=["causal", "deep"])
def test_so_it_is_of_runs_that_cuts_help(graph: Graph) -> None:
    """Pieces read of earlier rows what is retained, or compute it again."""
    planner = planner_of(graph)
    frontier = planner.frontier(one_row(planner))
    for count in range(len(frontier) + 1):
        assert_no_cut_is_below_the_floor(planner, frontier[:count])


@share_of_examples(2)
@given(graphs(most_ops=8))
def test_what_is_reserved_for_kernels_is_what_runs_take(case: tuple[Graph, Maker]) -> None:
    planner = planner_of(case[0])
    scheduled = planner.scheduled
    kind, origin = whole_run(scheduled.graph).classify(scheduled.graph)
    made = planner.plan(planner.scenarios({kind: (1.0, origin)}), None).placement
    program = Specialiser(scheduled, made, WHOLE, Rules(), "cpu").specialise({}, kind, origin)
    taken: Counter[str] = Counter()
    for one in program.instructions:
        taken[one.node.name] = max(taken[one.node.name], one.scratch_bytes)
    assert +taken == {node.name: room.size_bytes for node, room in made.scratch.items()}


def one_row(planner: Planner) -> list[Scenario]:
    """Row 20 changes, and is asked for."""
    graph = planner.scheduled.graph
    row = Region((Box(((20, 21), (0, graph.inputs["x"].shape[1]))),))
    kind, origin = Bucket.of({"x": row}, {"y": row}).classify(graph)
    return planner.scenarios({kind: (1.0, origin)})


def least_budget(planner: Planner) -> int:
    with pytest.raises(BudgetError) as caught:
        planner.plan(one_row(planner), 0)
    return caught.value.needed_bytes


@pytest.mark.parametrize("graph", [causal(rows=32), deep()], ids=["causal", "deep"])
@pytest.mark.parametrize("share", [0.5, 1, 1.5])
def test_however_many_trials_a_plan_takes_nothing_is_asked_twice(
    graph: Graph, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of calls whose operands lie alike; what a run computes of what is valid."""
    budget = int(share * least_budget(planner_of(graph)))
    ranked: Counter[Site] = Counter()
    decided: Counter[Hashable] = Counter()
    step = Propagator.step

    def ranking(site: Site) -> list[Kernel]:
        ranked[site] += 1
        return candidates(site)

    def counted(self: Propagator, *regions: Any) -> Any:
        given = (frozenset(dict(one).items()) for one in regions[:3])
        decided[(self.storage.retained, tuple(self.schedule), *given)] += 1
        return step(self, *regions)

    monkeypatch.setattr(Propagator, "step", counted)
    planner = planner_of(graph, ranking)
    with suppress(BudgetError):
        planner.plan(one_row(planner), budget)
    assert len(ranked) > 5
    assert len(decided) > 5
    assert set(ranked.values()) == {1}
    assert set(decided.values()) == {1}


def test_what_one_budget_asked_is_known_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that is too small is refused after smaller ones: maps and worths are the same."""
    asked: Counter[Hashable] = Counter()

    def told(scenarios: Sequence[Scenario]) -> Hashable:
        return tuple((one.kind, one.origin, one.cold, one.weight) for one in scenarios)

    def of(self: Attempts, retention: Retention, runs: Any, cut: Cut, *rest: Any) -> Attempt:
        demands = tuple(frozenset(self.runs.demand(one).items()) for one in runs)
        asked[(self, frozenset(retention.nodes), told(runs), demands, cut)] += 1
        return attempted(self, retention, runs, cut, *rest)

    def worth(self: Planner, nodes: Any, runs: Any) -> dict[Node, float]:
        asked[(self, nodes, told(runs))] += 1
        return weighed(self, nodes, runs)

    attempted, weighed = Attempts.of, Planner._new_worth
    monkeypatch.setattr(Attempts, "of", of)
    monkeypatch.setattr(Planner, "_new_worth", worth)
    planner = planner_of(causal(rows=32))
    with pytest.raises(BudgetError):
        planner.plan(one_row(planner), 0)
    assert len(asked) > 5
    assert set(asked.values()) == {1}
