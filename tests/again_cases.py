"""Graphs whose values are read again long after they were made, and what they take made once.

unet        halves its rows and doubles its channels on the way down: every level has the same
            bytes, and on the way up each meets what it was on the way down
residual    blocks between a first convolution and the sum with its result
skipping    products in a row that also read random earlier ones
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tgbench import ops
from tgbench.base.errors import BudgetError
from tgbench.base.regions import Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.following import unit_change
from tgbench.plans.planner import Planner
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules

Array = np.ndarray[Any, Any]


def unet(depth: int = 4, rows: int = 16, wide: int = 4, *, stateful: bool = False) -> Graph:
    """With a state, two rows of the last picture are taken off every image."""
    g = GraphBuilder()
    x = g.input("image", (rows, wide))
    if stateful:
        x = x - g.state("held", (rows, wide))
    skips: list[Node] = []
    for level in range(depth):
        x = mixed(g, x, f"down{level}")
        skips.append(x)
        x = x.reshape(x.shape[0] // 2, 2 * x.shape[1])
    for level in reversed(range(depth)):
        x = mixed(g, x, f"up{level}").reshape(2 * x.shape[0], x.shape[1] // 2)
        x = g.name(x - skips[level], f"met{level}")
    picture = mixed(g, x, "last")
    g.output("picture", picture)
    if stateful:
        g.update(g.state("held", (rows, wide)), picture[2:4], at=1)
    return g.build()


def mixed(g: GraphBuilder, x: Node, name: str) -> Node:
    """Channels mixed, and kept so small that sums are exact."""
    return small(g, x @ g.parameter(f"{name}.weight", (x.shape[1], x.shape[1])), name)


def residual(blocks: int = 2, side: int = 8, wide: int = 4) -> Graph:
    g = GraphBuilder()
    x = head = convolved(g, g.input("image", (1, 2, side, side)), "head", wide)
    for block in range(blocks):
        inner = convolved(g, x, f"inner{block}", wide)
        x = g.name(x + convolved(g, inner, f"outer{block}", wide), f"sum{block}")
    g.output("picture", convolved(g, x + head, "tail", 1))
    return g.build()


def convolved(g: GraphBuilder, x: Node, name: str, wide: int) -> Node:
    weight = g.parameter(f"{name}.weight", (wide, x.shape[1], 3, 3))
    return small(g, ops.conv(x, weight, padding=(1, 1)), name)


def small(g: GraphBuilder, x: Node, name: str) -> Node:
    return g.name(ops.maximum(ops.minimum(x, 9.0), -9.0), name)


def skipping(seed: int, count: int = 8) -> Graph:
    random, g = np.random.default_rng(seed), GraphBuilder()
    made = [g.input("image", (4, 4))]
    for i in range(count):
        x = made[-1]
        for earlier in random.choice(len(made), random.integers(0, 3)):
            x = x - made[earlier].transpose()
        made.append(mixed(g, x, f"v{i}"))
    g.output("picture", made[-1] + made[1])
    return g.build()


def values_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Small whole numbers."""
    random = np.random.default_rng(seed)
    leaves = {**graph.inputs, **graph.parameters}
    return {n: random.integers(-2, 3, leaf.shape).astype(leaf.dtype) for n, leaf in leaves.items()}


def made_once(graph: Graph) -> BudgetError:
    """What is said of no memory at all, where every node is computed once in a run."""
    scheduled = ScheduledGraph.of(simplify(graph))
    planner, graph = Planner(scheduled, Rules(), "cpu"), scheduled.graph
    everything = {name: Region.full(leaf.shape) for name, leaf in graph.inputs.items()}
    wanted = {name: Region.full(node.shape) for name, node in graph.outputs.items()}
    bucket = Bucket.of(everything, wanted)
    following = [unit_change(bucket, scheduled, name) for name in graph.inputs]
    spots = [b.classify(graph) for b in (bucket, *following) if b is not None]
    try:
        planner.plan_once(planner.scenarios({kind: (1.0, at) for kind, at in spots}), 0)
    except BudgetError as error:
        return error
    raise AssertionError("nothing fits in no memory")
