"""Which nodes are retained, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts_cases import fused
from session.test_session import causal, deep, share_of_examples
from session_cases import CheckedSession
from strategies import Maker, graphs

from tgbench import ops
from tgbench.base.coords import value_of
from tgbench.base.errors import BudgetError, PlanError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import Call
from tgbench.graph.simplify import simplify
from tgbench.kernels.registry import Kernel, Site, candidates, scratch_bytes
from tgbench.memory.draft import Draft
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Decisions
from tgbench.plans.following import Reach, change_as_asked, unit_change, whole_lines
from tgbench.plans.plan import Plan
from tgbench.plans.planner import DEAR, Planner
from tgbench.plans.scenarios import Scenario
from tgbench.programs.choices import Choices
from tgbench.programs.specialiser import Specialiser
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE


def planner_of(graph: Graph) -> Planner:
    return Planner(ScheduledGraph.of(simplify(graph)), Rules(), "cpu")


def decode(graph: Graph, at: int = 4) -> Bucket:
    """Row `at` of x changes, row `at` of y is asked for."""
    row = Region((Box(((at, at + 1), (0, 2))),))
    return Bucket.of({"x": row}, {"y": row})


def scenarios(planner: Planner, *buckets: Bucket) -> list[Scenario]:
    found = [bucket.classify(planner.scheduled.graph) for bucket in buckets]
    return planner.scenarios({kind: (1.0, origin) for kind, origin in found})


def choose(graph: Graph, budget: int | None, keep_all: bool = False) -> Decisions:
    planner = planner_of(graph)
    return planner.plan(scenarios(planner, decode(graph)), budget, keep_all)


def names(nodes: Any) -> set[str]:
    return {node.name for node in nodes}


def test_the_frontier_of_decoding_is_what_later_rows_read() -> None:
    """In this graph k and x itself are read by later rows; scores and sums are not."""
    graph = causal(rows=16)
    planner = planner_of(graph)
    assert names(planner.frontier(scenarios(planner, decode(graph)))) == {"k0", "out0", "k1"}


def all_at_0(draft: Draft, scratch_bytes: Mapping[Node, int], packed: Any = Draft.packed) -> Any:
    """A packer that has forgotten what it is for."""
    made: Placement = packed(draft, scratch_bytes)
    slots = {n: s if n.is_leaf else replace(s, offset_bytes=0) for n, s in made.slots.items()}
    found = replace(made, slots=slots, scratch={}, donors={})
    size = found.reach_bytes
    return replace(found, size_bytes=size, kept_bytes=min(made.kept_bytes, size))


@pytest.mark.parametrize("asked", ["1", "0"])
def test_a_broken_planner_is_caught_where_that_is_asked_for(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Draft, "packed", all_at_0)
    monkeypatch.setenv("TGBENCH_CHECK", asked)
    if asked == "0":
        assert choose(causal(rows=16), None).placement.size_bytes
    else:
        with pytest.raises(PlanError, match="share bytes while both are live"):
            choose(causal(rows=16), None)


def test_nothing_is_worth_keeping_when_everything_changes() -> None:
    graph = causal(rows=16)
    planner = planner_of(graph)
    whole = {"x": Region.full((16, 2))}, {"y": Region.full((16, 2))}
    assert planner.frontier(scenarios(planner, Bucket.of(*whole))) == []


def test_everything_is_a_candidate_when_all_is_to_be_kept() -> None:
    graph = causal(rows=16)
    chosen = choose(graph, None, keep_all=True)
    assert {"k0", "where", "maximum", "out0", "k1", "where_1"} <= names(chosen.retained)


def two_halves() -> Graph:
    """Two outputs that have nothing in common but an input."""
    g = GraphBuilder()
    a, b = g.input("a", (16, 16)), g.input("b", (16, 16))
    g.output("c", g.name(ops.exp(g.name(a @ b, "product") * 0.01), "c"))
    g.output("d", g.name(ops.relu(a), "relu") + 1.0)
    return g.build()


@pytest.mark.parametrize("room", [None, 4 << 10, 7 << 9])
def test_what_no_run_touches_is_not_retained_though_all_is_to_be(room: int | None) -> None:
    """Of the first run alone; its plan is read again, and the rest comes when it is asked for."""
    ones = {name: np.ones((16, 16), np.float32) for name in "ab"}
    first = CheckedSession(two_halves(), ones, retain="all", memory=room)
    first.run(want={"d": np.s_[0:12]})
    assert "relu" in first.session.plan.retained or room == 7 << 9
    assert "product" not in first.session.plan.retained
    plan = Plan.from_json(first.session.plan.to_json())
    again = CheckedSession(two_halves(), ones, retain="all", memory=room, plan=plan)
    again.run(want={"d": np.s_[0:12]})
    assert again.session.counters.planned == 0
    if room is None:
        first.run()
        assert "product" in first.session.plan.retained


@pytest.mark.parametrize("retain", ["auto", "all"])
def test_of_an_output_nobody_reads_only_the_cross_is_computed(retain: str) -> None:
    g = GraphBuilder()
    g.output("c", g.name(g.input("a", (5, 5)) @ g.input("b", (5, 5)), "c"))
    values = {name: np.ones((5, 5), np.float32) for name in "ab"}
    session = CheckedSession(g.build(), values, retain=retain)
    session.run()
    left, right = values["a"].copy(), values["b"].copy()
    left[2], right[:, 3] = 2, 3
    session.run({"a": left, "b": right})
    report = session.session.last
    assert report is not None
    assert report.compute["c"].elements == 9


def test_worth_is_what_runs_take_longer_without() -> None:
    graph = causal(rows=64)
    planner = planner_of(graph)
    runs = scenarios(planner, decode(graph, at=40))
    frontier = planner.frontier(runs)
    worth = planner.worth(frontier, runs)
    assert all(value > 0 for value in worth.values())
    base = planner.expected_ns(planner.runs.propagator(frontier), runs, WHOLE)
    nothing = planner.expected_ns(planner.runs.propagator([]), runs, WHOLE)
    assert nothing > base
    assert max(worth.values()) <= nothing - base + 1e-6


def test_less_memory_retains_less_and_never_too_much() -> None:
    graph = causal(rows=48)
    roomy = choose(graph, None)
    kept, sizes = [], []
    with pytest.raises(BudgetError) as caught:
        choose(graph, 0)
    low = caught.value.needed_bytes
    for share in (1.0, 0.6, 0.3, 0.0):
        budget = low + int(share * (roomy.placement.size_bytes - low))
        chosen = choose(graph, budget)
        assert chosen.placement.size_bytes <= budget
        assert names(chosen.retained) | names(chosen.dropped) == names(roomy.retained)
        assert not names(chosen.retained) & names(chosen.dropped)
        kept.append(len(chosen.retained))
        sizes.append(chosen.expected_ns)
    assert kept == sorted(kept, reverse=True), kept
    assert all(more <= less * (1 + 1e-9) for more, less in pairwise(sizes)), sizes


def test_large_runs_are_cut_where_that_is_quicker_than_dropping() -> None:
    """Pieces cost launches, and what is dropped is computed again."""
    graph = simplify(deep())
    scheduled, shape = ScheduledGraph.of(graph), graph.inputs["x"].shape
    row = Region((Box(((63, 64), *((0, size) for size in shape[1:]))),))
    runs = [Bucket.of({"x": Region.full(shape)}, {"y": row}), Bucket.of({"x": row}, {"y": row})]

    def planned(cost: Any, budget: int | None) -> Decisions:
        planner = Planner(scheduled, Rules(), "cpu", cost)
        (whole, at), (one, last) = (run.classify(graph) for run in runs)
        return planner.plan(planner.scenarios({whole: (9.0, at), one: (1.0, last)}), budget)

    def by_element(call: Call, box: Box) -> float:
        return float(box.elements)

    def by_launch(call: Call, box: Box) -> float:
        return 1.0

    roomy = planned(by_element, None)
    with pytest.raises(BudgetError) as caught:
        planned(by_element, 0)
    planner = Planner(scheduled, Rules(), "cpu", by_element)
    kinds = {kind: (1.0, at) for kind, at in (run.classify(graph) for run in runs)}
    all_kept = planner.attempts.always(roomy.retained, planner.scenarios(kinds), WHOLE)
    least, most = caught.value.needed_bytes, all_kept.within().size_bytes
    middle = least + 2 * (most - least) // 5
    cut, dropped = planned(by_element, middle), planned(by_launch, middle)
    assert cut.cut.parts > 1
    assert not cut.dropped
    assert cut.retained == roomy.retained
    assert dropped.cut == WHOLE
    assert dropped.dropped


def test_what_has_room_is_not_expected_to_run_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt has to be cut; a row behind it does not, and no session cuts it."""
    monkeypatch.setattr("tgbench.plans.planner.DEAR", 1.5)  # or so little is computed again at once
    graph = simplify(fused(2, 16, 8))
    planner = planner_of(graph)
    x, y = (Region((Box(((4, 5), (0, wide))),)) for wide in (8, 16))
    last = {"y": Region((Box(((15, 16), (0, 16))),))}
    buckets = Bucket.of({"x": Region.full((16, 8))}, last), Bucket.of({"x": x}, {"y": y})
    prompt, row = ([one for one in scenarios(planner, b) if one.weight] for b in buckets)
    runs = scenarios(planner, *buckets)
    made = planner.plan_once(runs, planner.plan(runs, None).placement.size_bytes - 1024)
    assert made.cut.parts == 2
    propagator = planner.runs.propagator(made.retained)
    in_pieces = planner.expected_ns(propagator, row, made.cut)
    whole = planner.expected_ns(propagator, row)
    cut = planner.expected_ns(propagator, prompt, made.cut)
    assert whole < in_pieces
    assert made.expected_ns == pytest.approx((whole + cut) / 2)
    specialiser = Specialiser(planner.scheduled, made.placement, made.cut, Rules(), "cpu")
    assert len(specialiser.specialise({}, row[0].kind, row[0].origin).pieces) == 1


def hungry(site: Site) -> list[Kernel]:
    """Kernels as if those that want most scratch memory were the fastest."""
    return sorted(
        candidates(site), key=lambda kernel: -value_of(scratch_bytes(kernel.scratch(site)))
    )


def test_where_memory_is_short_kernels_that_want_less_are_taken() -> None:
    """Before anything is dropped, and before runs are cut; the runs then find them."""
    g = GraphBuilder()
    x = g.name(ops.exp(g.input("x", (16, 64))), "e")
    g.output("y", g.name(ops.linear(x, g.parameter("w", (64, 64))), "y"))
    scheduled = ScheduledGraph.of(simplify(g.build()))
    rules = Rules()
    planner = Planner(scheduled, rules, "cpu", choices=Choices(rules, hungry))
    everything, row = Region.full((16, 64)), Region((Box(((3, 4), (0, 64))),))
    runs = scenarios(planner, Bucket.of({"x": everything}, {"y": everything}),
                     Bucket.of({"x": row}, {"y": everything}))  # fmt: skip
    roomy = planner.plan(runs, None)
    wanted = max(room.size_bytes for room in roomy.placement.scratch.values())
    budget = roomy.placement.size_bytes - wanted // 2
    tight = planner.plan(runs, budget)
    assert tight.placement.size_bytes <= budget
    assert tight.retained == roomy.retained
    assert tight.cut == WHOLE
    for run in runs:
        made = Specialiser(scheduled, tight.placement, WHOLE, Rules(), "cpu", hungry)
        assert made.specialise({}, run.kind, run.origin).instructions


@share_of_examples(2)
@given(graphs(most_ops=8), st.integers(0, 2000))
def test_the_budget_that_an_error_names_works(case: tuple[Graph, Maker], budget: int) -> None:
    graph, make = case
    session, needed = CheckedSession(graph, make(0), memory=budget), 0
    try:
        session.run()
    except BudgetError as error:
        needed = error.needed_bytes
    if needed:
        assert needed > budget
        session = CheckedSession(graph, make(0), memory=needed)
        session.run()
        assert session.session.placement.size_bytes == needed
    assert session.session.placement.size_bytes <= max(budget, needed)


@share_of_examples(2)
@given(graphs(most_ops=8), st.floats(0.3, 1.0))
def test_no_plan_is_smaller_than_the_bound_of_an_error(
    case: tuple[Graph, Maker], share: float
) -> None:
    graph = simplify(case[0])
    planner = planner_of(graph)
    asked = {name: Region.full(node.shape) for name, node in graph.outputs.items()}
    given = {name: Region.full(node.shape) for name, node in graph.inputs.items()}
    assert_bound_holds(planner, scenarios(planner, Bucket.of(given, asked)), share)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_the_bound_of_an_error_holds_where_runs_can_be_cut(share: float) -> None:
    """A prompt runs in pieces: of slices that are smaller, and so is what nothing can be below."""
    planner = planner_of(causal(rows=64))
    prompt = Bucket.of({"x": Region.full((64, 2))}, {"y": Region((Box(((63, 64), (0, 2))),))})
    runs = scenarios(planner, prompt, decode(planner.scheduled.graph, at=63))
    assert_bound_holds(planner, runs, share)


@share_of_examples(2)
@given(graphs(most_ops=8), st.floats(0, 1))
def test_what_an_error_names_is_the_least_that_works(
    case: tuple[Graph, Maker], share: float
) -> None:
    graph = simplify(case[0])
    asked = {name: Region.full(node.shape) for name, node in graph.outputs.items()}
    given = {name: Region.full(node.shape) for name, node in graph.inputs.items()}
    planner = planner_of(graph)
    assert_least_works(planner, scenarios(planner, Bucket.of(given, asked)), [share])


def test_so_it_is_where_runs_can_be_cut() -> None:
    """A larger budget may fail where a smaller one works: other nodes have room to be retained."""
    planner = planner_of(causal(rows=32))
    prompt = Bucket.of({"x": Region.full((32, 2))}, {"y": Region((Box(((31, 32), (0, 2))),))})
    runs = scenarios(planner, prompt, decode(planner.scheduled.graph, at=31))
    assert_least_works(planner, runs, [i / 8 for i in range(9)])


def assert_least_works(planner: Planner, runs: list[Scenario], shares: list[float]) -> None:
    """What an error names holds a plan, and between the bound and it no budget does."""
    try:
        planner.plan(runs, 0)
    except BudgetError as caught:
        low, needed = caught.lower_bound_bytes, caught.needed_bytes
    else:  # nothing is computed
        return
    assert planner.plan(runs, needed).placement.size_bytes == needed
    for share in shares:
        budget = low + int(share * (needed - 1 - low))
        if budget < needed:
            with pytest.raises(BudgetError) as other:
                planner.plan(runs, budget)
            assert other.value.needed_bytes == needed


def assert_bound_holds(planner: Planner, runs: list[Scenario], share: float) -> None:
    """No plan is smaller than an error says, which names what takes so much."""
    try:
        planner.plan(runs, 0)
    except BudgetError as caught:
        error = caught
    else:  # nothing is computed
        return
    assert 0 < error.lower_bound_bytes <= error.needed_bytes
    assert error.lower_bound_bytes == sum(size for _, size in error.nodes)
    with suppress(BudgetError):
        made = planner.plan(runs, int(share * error.needed_bytes))
        assert made.placement.size_bytes >= error.lower_bound_bytes


# --- what may come next ---------------------------------------------------------------------------


def test_the_next_run_is_guessed_as_the_smallest_change_at_the_demand() -> None:
    graph = causal(rows=16)
    scheduled = ScheduledGraph.of(simplify(graph))
    first = Bucket.of({"x": Region.full((16, 2))}, {"y": Region((Box(((9, 10), (0, 2))),))})
    guess = unit_change(first, scheduled, "x")
    assert guess is not None
    assert dict(guess.changed)["x"] == Region((Box(((9, 10), (1, 2))),))
    assert guess.demand == first.demand
    assert unit_change(Bucket.of({"x": Region.full((16, 2))}, {}), scheduled, "x") is None


def rows_of_layers(g: GraphBuilder) -> Node:
    x = g.input("x", (8, 6))
    return ops.linear(ops.relu(ops.linear(x, g.parameter("a", (4, 6)))), g.parameter("b", (4, 4)))


def pixels(g: GraphBuilder) -> Node:
    return ops.conv(g.input("x", (1, 3, 8, 8)), g.parameter("w", (4, 3, 3, 3)), padding=1)


def single_elements(g: GraphBuilder) -> Node:
    return ops.exp(g.input("x", (8, 6)))


def words(g: GraphBuilder) -> Node:
    return ops.embedding(g.parameter("t", (9, 4)), g.input("x", (1, 8), "int64"))


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (rows_of_layers, ((7, 8), (0, 6))),
        (pixels, ((0, 1), (0, 3), (7, 8), (7, 8))),
        (single_elements, ((7, 8), (5, 6))),
        (words, ((0, 1), (7, 8))),
    ],
)
def test_the_next_run_changes_whole_lines_where_layers_read_them_whole(
    make: Callable[[GraphBuilder], Node], changes: Box
) -> None:
    g = GraphBuilder()
    y = make(g)
    g.output("y", y)
    scheduled = ScheduledGraph.of(g.build())
    x = scheduled.graph.inputs["x"]
    first = Bucket.of({"x": Region.full(x.shape)}, {"y": Region.full(y.shape)})
    guess = unit_change(first, scheduled, "x")
    assert guess is not None
    found = whole_lines(guess, Reach(guess.demand, scheduled, Rules()), scheduled.graph)
    assert found == Bucket.of({"x": Region((Box(changes),))}, dict(first.demand))


@pytest.mark.parametrize(
    ("asked", "changes"),
    [((3, 9), (3, 9)), ((9, 10), None), ((0, 16), None), ((10, 16), (10, 16))],
)
def test_a_stream_is_guessed_to_go_on_in_blocks_of_what_is_asked_for(
    asked: tuple[int, int], changes: tuple[int, int] | None
) -> None:
    scheduled = ScheduledGraph.of(simplify(causal(rows=16)))
    demand = {"y": Region((Box((asked, (0, 2))),))}
    found = change_as_asked(Bucket.of({"x": Region.full((16, 2))}, demand), scheduled, "x")
    if changes is None:
        assert found is None
    else:
        assert found == Bucket.of({"x": Region((Box((changes, (0, 2))),))}, demand)


def test_a_scalar_input_has_no_smaller_change() -> None:
    g = GraphBuilder()
    scale = g.input("scale", ())
    g.output("y", ops.full(g, (4,), 1.0) * scale)
    scheduled = ScheduledGraph.of(simplify(g.build()))
    bucket = Bucket.of({"scale": Region.full(())}, {"y": Region.full((4,))})
    assert unit_change(bucket, scheduled, "scale") is None
    session = CheckedSession(g.build(), {"scale": np.float32(2.0).reshape(())})
    session.run()
    session.run({"scale": np.float32(3.0).reshape(())}, {"y": np.s_[1]})


def test_every_class_is_planned_for_at_its_extremes_warm_and_cold() -> None:
    graph = causal(rows=16)
    planner = planner_of(graph)
    found = scenarios(planner, decode(graph, at=4))
    assert {(s.origin, s.cold) for s in found} == {
        ((at,), cold) for at in (4, 0, 15) for cold in (False, True)
    }
    assert [s.origin for s in found if s.weight] == [(4,)]


def pyramid(size: int) -> Graph:
    """Convolutions over an image, ever fewer points of ever more channels, and their means."""
    g = GraphBuilder()
    x = g.input("x", (1, 3, size, size))
    for i, (stride, wide) in enumerate([(1, 8), (1, 8), (2, 16), (1, 16), (2, 32), (1, 32)]):
        weight = g.parameter(f"w{i}", (wide, x.shape[1], 3, 3))
        x = ops.relu(ops.conv(x, weight, stride=stride, padding=1))
    g.output("y", ops.mean(x, (2, 3)))
    return g.build()


def square(size: int, first: int, extent: int) -> Bucket:
    """A part of an image changes, and all that follows from it is asked for."""
    side = (first, first + extent)
    return Bucket.of(
        {"x": Region((Box(((0, 1), (0, 3), side, side)),))}, {"y": Region.full((1, 32))}
    )


def test_more_memory_takes_little_longer_over_what_may_come() -> None:
    """Where all that is kept for a pixel would take runs in pieces, a larger part has to be cut as
    well, whose whole run then takes longer than in less memory.
    """
    size = 48
    planner = planner_of(pyramid(size))
    runs = scenarios(planner, square(size, 0, size), square(size, size - 1, 1))
    kind, origin = square(size, 18, 6).classify(planner.scheduled.graph)
    likely = [Scenario(kind, origin, 0.0)]
    most = planner.plan(runs, None).placement.size_bytes
    with pytest.raises(BudgetError) as caught:
        planner.plan(runs, 0)
    weighed, times, cuts = [one for one in runs if one.weight], [], set()
    weighed += [replace(one, weight=1.0) for one in likely]
    for budget in np.linspace(caught.value.needed_bytes, most, 40).astype(int).tolist():
        made = planner.plan(runs, budget, likely=likely)
        assert made.placement.size_bytes <= budget
        propagator = planner.runs.propagator(made.retained)
        times.append(planner.expected_ns(propagator, weighed, made.cut, made.placement))
        cuts.add(made.cut.parts)
    for i, time_ns in enumerate(times[1:], 1):
        assert time_ns <= DEAR * min(times[:i]), str(times)  # so much for what keeps everything
    assert len(cuts) > 1
