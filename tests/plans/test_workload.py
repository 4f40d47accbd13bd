"""What a trace is read as: examples of transitions, and what is there by then."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import assume, given
from plans.test_search import traces
from strategies import graphs

from tgbench import ops
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.simplify import simplify
from tgbench.memory.placement import Turn
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.workload import Workload, asked
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules


def left_one_after_the_other(scheduled: ScheduledGraph, workload: Workload) -> list[object]:
    """What is valid before each call after the first, of nodes with bytes, decided in numbers."""
    propagator = scheduled.propagator(Rules(), scheduled.stored)
    valid: dict[object, Region] = {}
    found: list[object] = []
    for i, (kind, origin) in enumerate(workload.circle):
        if i:
            found.append(valid)
        changed, demand = asked(scheduled, kind, origin)
        valid = dict(propagator.step(valid, changed, demand).valid)  # type: ignore[arg-type]
    return found


def assert_read_right(scheduled: ScheduledGraph, buckets: list[Bucket]) -> Workload:
    workload = Workload.of(scheduled, Rules(), buckets)
    there = left_one_after_the_other(scheduled, workload)
    stood_for = {row for row in workload.told_by if row >= 0}
    assert stood_for == set(range(len(workload.rows)))
    for row in workload.rows:
        kind = workload.kind(row.of)
        calls = [i for i, call in enumerate(workload.circle[1:]) if call == (kind, row.origin)]
        assert any(row.valid == there[i] for i in calls)
    return workload


@given(st.data())
def test_examples_find_there_what_calls_in_numbers_leave(data: st.DataObject) -> None:
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    assert_read_right(ScheduledGraph.of(simple), data.draw(traces(simple, most=8)))


def strided() -> Graph:
    """A change at one place is another computation than at the next: strides add up."""
    g = GraphBuilder()
    x = g.input("x", (1, 1, 16, 16))
    for i in range(2):
        w = g.parameter(f"w{i}", (1, 1, 3, 3))
        x = ops.conv(x, w, stride=(2, 2), padding=(1, 1))
    g.output("y", x)
    return g.build()


def test_classes_whose_decisions_hold_nowhere_else_are_decided_in_numbers() -> None:
    graph = strided()
    everything = Bucket.of(
        {"x": Region.full((1, 1, 16, 16))}, {"y": Region.full(graph.outputs["y"].shape)}
    )

    def patch(i: int, j: int) -> Bucket:
        box = Box(((0, 1), (0, 1), (i, i + 2), (j, j + 2)))
        return Bucket.of({"x": Region((box,))}, dict(everything.demand))

    buckets = [everything, *(patch(i, j) for i, j in ((2, 4), (5, 9), (8, 8), (13, 1), (2, 5)))]
    scheduled = ScheduledGraph.of(simplify(graph))
    workload = assert_read_right(scheduled, buckets)
    assert {workload.calls[1][0]} <= workload.alone


def three_parts() -> Graph:
    g = GraphBuilder()
    for name in "abc":
        g.output(f"of_{name}", ops.relu(g.input(name, (4,))))
    return g.build()


@given(st.text("abc", min_size=1, max_size=12))
def test_a_turn_is_a_class_the_last_other_one_and_whether_it_ran_last(text: str) -> None:
    """Read off letter by letter, backwards around the circle; three classes have turns enough."""
    scheduled = ScheduledGraph.of(simplify(three_parts()))
    whole = Region.full((4,))
    buckets = [Bucket.of({c: whole}, {f"of_{c}": whole}) for c in text]
    workload = Workload.of(scheduled, Rules(), buckets)
    kinds = dict(zip(text, (kind for kind, _ in workload.calls), strict=True))
    number = {name: workload.kinds.index(kind) for name, kind in kinds.items()}
    told = []
    for i, name in enumerate(text):
        back = (text[i + 1 :] + text[: i + 1])[-2::-1] or name
        told.append((name, next((c for c in back if c != name), None), back[0] == name))

    def said(run: tuple[str, str | None, bool]) -> Turn:
        of, before, again = run
        others = {other for name, other, _ in told if name == of}
        ways = {way for name, other, way in told if (name, other) == (of, before)}
        several = before is not None and len(others) > 1
        return Turn(
            number[of], number[before] if several and before else None,
            again if len(ways) > 1 else None,
        )  # fmt: skip

    assert set(workload.turns) == set(map(said, told))
    turns = [workload.turns.index(said(run)) for run in told]
    follows = set(zip(turns, [*turns[1:], turns[0]], strict=True))
    assert {(row.before, row.of) for row in workload.rows} == follows
