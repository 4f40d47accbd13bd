"""Which parts of nodes are worth bytes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts_cases import fused, small

from tgbench import ops
from tgbench.base.errors import BudgetError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.simplify import simplify
from tgbench.memory.placement import Retention
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Decisions
from tgbench.plans.parts import parts_read_again
from tgbench.plans.planner import DEAR, Planner
from tgbench.plans.scenarios import Scenario
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE

ROWS, WIDE = 48, 64


Take = Callable[[GraphBuilder, Node], tuple[Node, Node, Node]]  # a product → query, key, value


def decoder(take: Take) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (ROWS, WIDE))
    product = g.name(small(x @ g.parameter("w", (WIDE, 3 * WIDE))), "product")
    q, k, v = take(g, product)
    seen = ops.where(g.constant(np.tri(ROWS, dtype=bool)), q @ k.transpose(), 0.0) @ v
    g.output("y", g.name(seen @ g.parameter("head", (v.shape[1], WIDE)), "y"))
    return g.build()


def slices(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    q, k, v = (x[:, i * WIDE : (i + 1) * WIDE] for i in range(3))
    return q, g.name(k, "k"), g.name(v, "v")


def planner_of(graph: Graph) -> Planner:
    return Planner(ScheduledGraph.of(simplify(graph)), Rules(), "cpu")


def appends(planner: Planner, at: int = ROWS - 2) -> list[Scenario]:
    """A prompt, and a row behind it."""
    graph = planner.scheduled.graph
    x, y = graph.inputs["x"], graph.outputs["y"]
    demand = {"y": Region((Box(((at, at + 1), (0, y.shape[1]))),))}
    changes = Region.full(x.shape), Region((Box(((at, at + 1), (0, x.shape[1]))),))
    spots = [Bucket.of({"x": change}, demand).classify(graph) for change in changes]
    return planner.scenarios({kind: (1.0, origin) for kind, origin in spots})


def parts(graph: Graph) -> set[str]:
    planner = planner_of(graph)
    return {node.name for node in parts_read_again(planner.runs, appends(planner))}


# --- which ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
def test_keys_and_values_are_parts_along_any_axis(axis: int) -> None:
    assert parts(fused(2, ROWS, WIDE, axis)) == {"k0", "v0", "k1", "v1"}


def test_nothing_is_a_part_where_nothing_is_read_again() -> None:
    graph = decoder(slices)
    planner = planner_of(graph)
    prompt = [one for one in appends(planner) if one.kind.changed[0][1][0][0][0] is None]
    assert not parts_read_again(planner.runs, prompt)
    assert planner.in_parts(prompt) is None


def one_slice(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    q, k, _ = slices(g, x)
    return q, k, k


def read_as_it_is(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    q, k, _ = slices(g, x)
    return q, k, x


def all_read_again(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    q, k, _ = slices(g, x)
    return k, q, x[:, WIDE:]


def overlapping(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    return x[:, : 2 * WIDE], x[:, WIDE:], x[:, WIDE // 2 : -WIDE // 2]


def hardly_less(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    return x[:, 5:], x[:, 5:], x[:, 5:]


def of_views(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    """Rows of `both` are read in halves: as much as all of it, and so it is kept itself."""
    q, both = x[:, :WIDE], g.name(x[:, WIDE:], "both").reshape(ROWS, 2, WIDE)
    return q, both[:, 0].reshape(ROWS, WIDE), both[:, 1].reshape(ROWS, WIDE)


def of_less(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    q, both = x[:, : WIDE // 2], x[:, WIDE:].reshape(ROWS, 2, WIDE)
    key = g.name(both[:, :1, : WIDE // 2], "key").reshape(ROWS, WIDE // 2)
    return q, key, g.name(both[:, 1:], "value").reshape(ROWS, WIDE)


@pytest.mark.parametrize(
    ("take", "found"),
    [
        (slices, {"k", "v"}), (one_slice, {"k"}), (read_as_it_is, set()), (all_read_again, set()),
        (overlapping, set()), (hardly_less, set()), (of_views, {"both"}),
        (of_less, {"key", "value"}),
    ],
)  # fmt: skip
def test_parts_are_what_is_read_again_and_clearly_less(take: Take, found: set[str]) -> None:
    assert parts(decoder(take)) == found


# --- when -----------------------------------------------------------------------------------------


def kept(made: Decisions) -> int:
    nodes = made.retention.nodes
    return sum(made.placement.size_of(node) for node in nodes)


def test_parts_are_kept_where_not_all_of_every_node_can_be() -> None:
    graph = fused(4, ROWS, WIDE)
    planner = planner_of(graph)
    scenarios = appends(planner)
    roomy = planner.plan(scenarios, None)
    budget = int(0.85 * roomy.placement.size_bytes)
    before, made = planner.plan_once(scenarios, budget), planner.plan(scenarios, budget)
    assert len(before.retained) < len(roomy.retained) == 4
    assert before.dropped
    assert not made.dropped
    assert len(made.retained) == len(made.scheduled.copied) == 8
    assert 3 * kept(made) == 2 * kept(roomy)
    assert made.placement.size_bytes <= budget
    assert made.expected_ns < before.expected_ns
    assert not roomy.scheduled.copied


def test_parts_in_pieces_are_better_than_leaving_some_out() -> None:
    """As long as that takes little longer than by what leaves some out."""
    planner = planner_of(fused(4, ROWS, WIDE))
    scenarios = appends(planner)
    roomy = planner.plan(scenarios, None)
    budget = int(0.75 * roomy.placement.size_bytes)
    before, made = planner.plan_once(scenarios, budget), planner.plan(scenarios, budget)
    assert before.dropped
    assert not made.dropped
    assert made.cut.parts == 2
    assert before.expected_ns < made.expected_ns < DEAR * before.expected_ns
    much_less = planner.plan(scenarios, int(0.6 * roomy.placement.size_bytes))
    assert not much_less.scheduled.copied  # in more pieces, that would take too long


def test_copies_cost_what_they_take() -> None:
    """Where copying takes longer than it saves, nodes are computed again instead."""
    graph = simplify(fused(4, ROWS, WIDE))

    def dear(call: Any, box: Box) -> float:
        return 1e6 if call.op.name == "slice" else 1.0

    planner = Planner(ScheduledGraph.of(graph), Rules(), "cpu", dear)
    scenarios = appends(planner)
    size = planner.plan(scenarios, None).placement.size_bytes
    assert not planner.plan(scenarios, int(0.85 * size)).scheduled.copied


def hourglass(depth: int = 2, rows: int = 16, wide: int = 16) -> Graph:
    """A decoder's layer, around which values are held until they are met again."""
    g = GraphBuilder()
    x = g.input("x", (rows, wide))
    skips = []
    for i in range(depth):
        x = mixed(g, x, f"down{i}")
        skips.append(x)
    q, k, v = (mixed(g, x, "qkv", 3 * wide)[:, i * wide : (i + 1) * wide] for i in range(3))
    x = small(ops.where(g.constant(np.tri(rows, dtype=bool)), q @ k.transpose(), 0.0) @ v)
    for i in reversed(range(depth)):
        x = mixed(g, x, f"up{i}") - skips[i]
    g.output("y", x)
    return g.build()


def mixed(g: GraphBuilder, x: Node, name: str, wide: int = 0) -> Node:
    return g.name(small(x @ g.parameter(f"{name}.w", (x.shape[1], wide or x.shape[1]))), name)


def test_less_memory_is_enough_with_parts() -> None:
    """Runs in pieces leave behind what is retained; that is less of parts."""
    planner = planner_of(hourglass())
    scenarios = appends(planner, 14)
    with pytest.raises(BudgetError) as whole:
        planner.plan_once(scenarios, 0)
    with pytest.raises(BudgetError) as divided:
        planner.plan(scenarios, 0)
    low = divided.value.needed_bytes
    assert low < 0.8 * whole.value.needed_bytes
    made = planner.plan(scenarios, low)
    assert made.placement.size_bytes <= low
    assert len(made.scheduled.copied) == len(made.retained) == 2
    assert not made.scheduled.repeats
    with pytest.raises(BudgetError):
        planner.plan(scenarios, low - 1)


def test_computing_again_begins_with_what_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(hourglass())
    scenarios = appends(planner, 14)
    divided = planner.in_parts(scenarios)
    assert divided is not None
    sizes = [one._smallest(scenarios).placement.size_bytes for one in (planner, divided)]
    assert sizes[0] < sizes[1]
    assert not planner.again(scenarios, 0).planner.scheduled.copied
    monkeypatch.setattr(planner, "_smallest", lambda _: divided._smallest(scenarios))
    found = planner.again(scenarios, 0).planner.scheduled
    assert found.repeats
    assert found.copied == divided.scheduled.copied
    assert planner.over(found).in_parts(scenarios) is None


def test_where_all_fits_nobody_looks_for_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*_: Any) -> Any:
        raise AssertionError("looked for")

    monkeypatch.setattr("tgbench.plans.planner.parts_read_again", found)
    planner = planner_of(fused(2, ROWS, WIDE))
    scenarios = appends(planner)
    size = planner.plan(scenarios, None).placement.size_bytes
    assert planner.plan(scenarios, size).placement.size_bytes == size
    with pytest.raises(AssertionError, match="looked for"):
        planner.plan(scenarios, size - 64)


# --- what a copied view is ------------------------------------------------------------------------


def test_a_copied_view_is_computed_and_its_base_comes_and_goes() -> None:
    graph = simplify(decoder(slices))
    k, v = graph.node("k"), graph.node("v")
    plain = ScheduledGraph.of(graph)
    copied = plain.copying([k, v])
    assert copied.copying(()).stored == plain.stored
    assert copied.copying([v, k]) is copied
    assert set(copied.stored) - set(plain.stored) == {k, v}
    assert copied.base[graph.node("permute")] is k
    product = graph.node("product")
    assert copied.live[product].stop < plain.live[product].stop  # only the query is shown in it
    assert copied.once is copied


def test_every_time_of_a_view_is_copied() -> None:
    graph = simplify(decoder(slices))
    k = graph.node("k")
    order = list(ScheduledGraph.of(graph).schedule)
    at = order.index(k)
    again = ScheduledGraph.of(graph, [*order[: at + 1], *order[: at + 1], *order[at + 1 :]], [k])
    assert again.repeats
    assert [node.name for node in again.stored if node.name.startswith("k")] == ["k", "k again"]
    assert again.once.copied == again.copied == {k}
    assert again.copying(()).schedule == again.schedule
    assert not [node for node in again.copying(()).stored if node.name.startswith("k")]


def test_parts_of_an_image_lie_as_the_image_does() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 3, 8, 8))
    image = g.name(ops.conv(x, g.parameter("w", (8, 3, 3, 3)), padding=(1, 1)), "image")
    half = g.name(image[:, :4], "half")
    g.output("y", ops.conv(half, g.parameter("u", (2, 4, 3, 3)), padding=(1, 1)))
    graph = g.build()
    scheduled = ScheduledGraph.of(graph, copied=[half])
    assert scheduled.order(half) == scheduled.order(image) == (0, 2, 3, 1)


def test_a_map_of_what_is_retained_by_hand() -> None:
    planner = planner_of(decoder(slices))
    scenarios = appends(planner)
    divided = planner.in_parts(scenarios)
    assert divided is not None
    assert planner.in_parts(scenarios) is divided
    frontier = divided.frontier(scenarios)
    assert [node.name for node in frontier] == ["k", "v"]
    placed = divided.lay_out(Retention.always(frontier), scenarios, WHOLE)
    whole = planner.lay_out(Retention.always(planner.frontier(scenarios)), scenarios, WHOLE)
    assert placed.kept_bytes < whole.kept_bytes
