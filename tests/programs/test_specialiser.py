"""Entries of an origin that stood still are numbers: the same runs, and guards that say so."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.test_session import share_of_examples
from strategies import Maker, demands, graphs

import tgbench.graph.ops as ops
from tgbench.base.coords import Domain, Guard, Moving, standing
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.planner import Planner
from tgbench.programs import specialiser as specialiser_module
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.specialiser import FixedEntries, Specialised, Specialiser, Way
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.pausing import at_once
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, cuts
from tgbench.session.session import GraphSession

SIZE, PATCH = 16, 3


def strided() -> Graph:
    """Two strides of 2 and 3 × 3 windows: the last image is reached nearly whole."""
    g = GraphBuilder()
    x = g.input("x", (2, 1, SIZE, SIZE))
    for i, stride in enumerate((1, 2, 2)):
        x = ops.relu(ops.conv(x, g.parameter(f"w{i}", (1, 1, 3, 3)), stride=stride, padding=1))
    g.output("y", x)
    return g.build()


@pytest.fixture(scope="module")
def session() -> GraphSession:
    graph = strided()
    weights = {name: np.ones(n.shape, np.float32) for name, n in graph.parameters.items()}
    made = GraphSession(graph, weights)
    whole: Any = np.s_[:]
    made.plan_for([({"x": whole}, None)])
    made.run({"x": np.zeros((2, 1, SIZE, SIZE), np.float32)})
    return made


def patched(graph: Graph, places: Any) -> tuple[BucketClass, tuple[int, ...]]:
    """A patch in every row of the batch."""
    boxes = [
        Box(((i, i + 1), (0, 1), (row, row + PATCH), (column, column + PATCH)))
        for i, (row, column) in enumerate(places)
    ]
    demand = {"y": Region.full(graph.outputs["y"].shape)}
    return Bucket.of({"x": Region.of(*boxes)}, demand).classify(graph)


def specialised(session: GraphSession, places: Any) -> Specialised:
    kind, origin = patched(session.scheduled.graph, places)
    memory = session.memory
    held = session.states.patterns[session.standing.valid].state
    return memory.specialiser.specialise(held, kind, origin)


def seen_at_edges(session: GraphSession, count: int) -> FixedEntries:
    """What is fixed after runs of so many patches: two rows, two columns, places in the batch."""
    specialiser = session.memory.specialiser
    specialiser.fixed_entries = FixedEntries()
    for at in EDGES:
        specialised(session, [(at, EDGES[0] + EDGES[1] - at)] * count)
    return specialiser.fixed_entries


def decided(made: Specialised, origin: tuple[int, ...]) -> Any:
    """All that a program does, as numbers."""
    steps = [
        {node.name: region.at(origin) for node, region in part.items()}
        for step, _ in made.pieces
        for part in (step.dirty, step.needed, step.compute, step.valid)
    ]
    calls = [(i.node.name, i.box.at(origin), i.kernel) for i in made.instructions]
    return steps, calls


EDGES = (0, SIZE - PATCH)
edges = st.integers(0, SIZE - PATCH)
batches = st.lists(st.tuples(edges, edges), min_size=1, max_size=2)


@given(batches)
@settings(deadline=None)
def test_what_is_fixed_decides_the_same(session: GraphSession, places: Any) -> None:
    kind, origin = patched(session.scheduled.graph, places)
    entries = seen_at_edges(session, len(places))
    before = entries.of(kind, origin)
    first = specialised(session, places)
    numbers = entries.of(kind, origin)
    assert set(before) <= set(numbers) <= set(Domain(first.guards).fixed)
    second = specialised(session, places)
    assert decided(first, origin) == decided(second, origin)
    assert set(numbers) <= set(Domain(second.guards).fixed)
    for made in (first, second):
        assert Domain(made.guards).holds(origin)


@given(batches)
@settings(deadline=None)
def test_programs_hold_wherever_their_guards_do(session: GraphSession, places: Any) -> None:
    """Some entries are fixed and others are not; elsewhere all is decided again from nothing."""
    seen_at_edges(session, len(places))
    kind, origin = patched(session.scheduled.graph, places)
    made = specialised(session, places)
    specialiser = session.memory.specialiser
    for step, axis in itertools.product((-4, 4), range(len(origin))):
        near = (*origin[:axis], origin[axis] + step, *origin[axis + 1 :])
        inside = all(0 <= at <= bound for at, bound in zip(near, kind.bounds, strict=True))
        if inside and Domain(made.guards).holds(near):
            specialiser.fixed_entries = FixedEntries()
            held = session.states.patterns[session.standing.valid].state
            again = specialiser.specialise(held, kind, near)
            assert decided(made, near) == decided(again, near)


@given(st.lists(st.tuples(edges, edges), min_size=2, max_size=6))
@settings(deadline=None)
def test_what_is_remembered_of_other_places_changes_nothing(
    session: GraphSession, places: Any
) -> None:
    """One specialiser goes from place to place, another one is new at each."""
    of, placement = session.memory.specialiser, session.memory.placement
    held = session.states.patterns[session.standing.valid].state
    for place in places:
        kind, origin = patched(session.scheduled.graph, [place])
        of.fixed_entries = FixedEntries()
        known = of.specialise(held, kind, origin)
        fresh = Specialiser(
            session.scheduled, placement, of.cut, Rules(), "cpu", session.costs.kernels
        )
        assert decided(known, origin) == decided(fresh.specialise(held, kind, origin), origin)
        assert Domain(known.guards).holds(origin)


def test_entries_that_move_are_not_taken_for_numbers() -> None:
    kind, origin = patched(strided(), [(4, 8)])
    entries = FixedEntries()
    assert origin == (0, 4, 8)
    for row in (4, 3):
        assert entries.of(kind, origin) == {}
        pinned = [Guard(-row, ((1, 1),)), Guard(row, ((1, -1),))]
        entries.learn(kind, (0, row, 8), [*pinned, Guard(9, ((2, -1),))])
    assert entries.of(kind, origin) == {1: 4}
    assert entries.of(kind, (0, 5, 8)) == {}
    assert entries.of(*patched(strided(), [(4, 8), (4, 1)])) == {}  # another matter


def test_what_is_learnt_of_entries_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialiser_module, "MOST_SEEN", 1)
    entries = FixedEntries()
    for size in range(1, 5):
        kind, origin = patched(strided(), [(4, size)])
        entries.of(kind, origin)  # asking leaves nothing
        entries.learn(kind, origin, [Guard(-4, ((1, 1),)), Guard(4, ((1, -1),))])
    assert len(entries._seen) == 1


def test_numbers_leave_nothing_moving(session: GraphSession) -> None:
    seen_at_edges(session, 2)
    made = specialised(session, [(0, 0), (0, SIZE - PATCH)])
    boxes = [box for step, _ in made.pieces for region in step.compute.values() for box in region]
    numbers = [part for box in boxes for interval in box for part in interval]
    assert Moving not in map(type, numbers)


# --- what fits ------------------------------------------------------------------------------------


@share_of_examples(3)
@given(graphs(most_ops=8), st.data())
def test_where_some_cut_fits_the_last_piece_has_room(
    case: tuple[Graph, Maker], data: st.DataObject
) -> None:
    """What the planner and programs rely on, where they try no cut."""
    scheduled = ScheduledGraph.of(simplify(case[0]))
    graph, planner = scheduled.graph, Planner(scheduled, Rules(), "cpu")
    everything = {name: Region.full(leaf.shape) for name, leaf in graph.inputs.items()}
    one, other = (Bucket.of(everything, asked_of(graph, data.draw)).classify(graph) for _ in "ab")
    made = planner.plan(planner.scenarios({one[0]: (1.0, one[1])}), None).placement
    specialiser = Specialiser(scheduled, made, WHOLE, Rules(), "cpu")
    for cut in itertools.islice(cuts(specialiser.propagator), 12):
        with suppress(DoesNotFit):
            with standing(other[1]):
                at_once(specialiser._lowering({}, *other, Way(cut), is_fixed=True))
            assert specialiser._may_fit_in_pieces(*other)


def asked_of(graph: Graph, draw: Any) -> dict[str, Region]:
    names = {node: name for name, node in graph.outputs.items()}
    return {names[node]: region for node, region in draw(demands(graph)).items() if node in names}


def test_an_input_that_is_never_read_lies_nowhere() -> None:
    """An update that covers all of its first input: only the second one has bytes."""
    g = GraphBuilder()
    a, b, c = (g.input(name, (1, 1)) for name in "abc")
    g.output("y", ops.update(a + b, c, (0, 0)))
    session = GraphSession(g.build())
    one = np.ones((1, 1), np.float32)
    assert session.run({"a": one, "b": one, "c": 3 * one})["y"] == 3
