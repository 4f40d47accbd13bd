"""What changes reach, beside what a run after them computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from strategies import changes, demands, graphs

from tgbench import ops
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.following import Reach, in_between, in_sight
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules


def operations(computed: Mapping[Node, Region]) -> int:
    parts = ((n.call, region) for n, region in computed.items() if not n.is_leaf)
    return sum(call.op.flops(call, box) for call, region in parts for box in region)


@given(st.data())
def test_a_change_reaches_no_more_than_follows_from_it_or_is_asked_for(data: Any) -> None:
    graph, _ = data.draw(graphs())
    scheduled, rules = ScheduledGraph.of(graph), Rules()
    asked, changed = data.draw(demands(graph)), data.draw(changes(graph))
    names = {node: name for name, node in graph.outputs.items()}
    reach = Reach([(names[node], part) for node, part in asked.items()], scheduled, rules)
    found = reach.operations(changed.items())
    given = {graph.inputs[name]: part for name, part in changed.items()}
    propagator = scheduled.propagator(rules, scheduled.stored)
    assert found <= operations(propagator.forward(given))
    assert found <= operations(propagator.step({}, given, asked).compute)
    assert 0 <= reach.share(changed.items()) <= 1
    whole = [(name, Region.full(node.shape)) for name, node in graph.inputs.items()]
    assert reach.operations(whole) >= found


def test_shares_are_of_operations() -> None:
    """Two of eight rows of a product, one of them demanded of the second one."""
    g = GraphBuilder()
    x = g.input("x", (8, 4))
    y = x @ g.parameter("w", (4, 4))
    g.output("y", y)
    g.output("z", y @ g.parameter("v", (4, 4)))
    g.output("side", ops.gelu(g.input("other", (8,))))
    graph = g.build()
    demand = {"y": Region.full((8, 4)), "z": rows(0, 4)}
    reach = Reach(list(demand.items()), ScheduledGraph.of(graph), Rules())
    assert reach.share([("x", rows(3, 5))]) == (2 + 1) / (8 + 4)
    assert reach.share([("x", rows(6, 8))]) == 2 / 12
    assert reach.share([("other", Region.full((8,)))]) == 0


def test_what_a_state_becomes_reaches_what_reads_it() -> None:
    g = GraphBuilder()
    x, kept = g.input("x", (2, 4)), g.state("kept", (8, 4))
    g.update(kept, x, at=0, axis=0)
    g.output("y", kept @ g.parameter("w", (4, 4)))
    graph = g.build()
    demand = Bucket.of({}, {"y": Region.full((8, 4))}).demand
    written = Bucket.of({"kept": rows(0, 2)}, {})
    assert in_between(written, graph) == [("kept", rows(1, 3))]
    reach = Reach(demand, ScheduledGraph.of(graph), Rules())
    assert reach.share(in_between(written, graph)) == 2 / 8


def rows(start: int, stop: int) -> Region:
    return Region((Box(((start, stop), (0, 4))),))


def test_a_line_and_what_lies_beside_it() -> None:
    """Of each output that has a dimension as long; all of one that has none."""
    g = GraphBuilder()
    x = g.input("x", (8, 4))
    g.output("y", x @ g.parameter("w", (4, 4)))
    g.output("sum", ops.sum_(x, [0, 1]))
    graph = g.build()
    whole = {"y": Region.full((8, 4)), "sum": Region.full(graph.outputs["sum"].shape)}
    found = in_sight(Bucket.of({"x": rows(7, 8)}, whole), graph)
    assert found is not None
    assert dict(found.changed) == {"x": rows(4, 5)}
    assert dict(found.demand) == {"y": rows(4, 5), "sum": whole["sum"]}


def test_nothing_is_in_sight_of_a_part_or_of_everything() -> None:
    g = GraphBuilder()
    x = g.input("x", (8, 4))
    g.output("y", x * 2.0)
    graph, whole = g.build(), {"y": Region.full((8, 4))}
    element, everything = Region((Box(((7, 8), (3, 4))),)), Region.full((8, 4))
    assert in_sight(Bucket.of({"x": rows(7, 8)}, {"y": rows(0, 7)}), graph) is None
    assert in_sight(Bucket.of({"x": element}, whole), graph) is None
    assert in_sight(Bucket.of({"x": everything}, whole), graph) is None


def test_of_an_image_one_looks_at_all() -> None:
    g, shape = GraphBuilder(), (1, 3, 8, 8)
    g.output("y", g.input("x", shape) * 2.0)
    line = Region((Box(((0, 1), (0, 3), (7, 8), (0, 8))),))
    assert in_sight(Bucket.of({"x": line}, {"y": Region.full(shape)}), g.build()) is None
