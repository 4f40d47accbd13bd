"""A search that finds something and does not end by itself: for tests of where it runs.

graph    eight products and sums of three matrices, picked by a fixed seed
trace    one run of everything, then rows and whole inputs that change, one output read a time
budget   75 % of what the greedy plan takes; a gap to the bound remains and windows fit, so chains
         go on for ever
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from multiprocessing import set_forkserver_preload
from typing import Any

import numpy as np

from tgbench import ops
from tgbench.base.regions import Box, Region
from tgbench.costs.model import CostModel
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.op_table import Call
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.background.task import SearchTask
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.plans.retention.model import Keep, Model
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.effort import Effort
from tgbench.plans.search.optimiser import Optimiser
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules

ROWS, COLUMNS = 2, 64


def loaded_once() -> None:
    """Processes of a fork server are forks of one that has loaded what a search needs."""
    set_forkserver_preload(["tgbench.plans.background.process"])


@dataclass(frozen=True)
class SearchCase:
    """One graph, trace and budget; `plan` searches in this process."""

    graph: Graph
    buckets: tuple[Bucket, ...]
    share: float = 0.75

    @cached_property
    def scheduled(self) -> ScheduledGraph:
        return ScheduledGraph.of(self.graph)

    @cached_property
    def costs(self) -> CostModel:
        return CostModel()

    def cost(self, call: Call, box: Box) -> float:
        return self.costs.estimate(call, box).time_ns

    @cached_property
    def workload(self) -> Workload:
        return Workload.of(self.scheduled, Rules(), self.buckets)

    @cached_property
    def budget_bytes(self) -> int:
        roomy = Optimiser(self.scheduled, Rules(), self.workload, None, self.cost).run("greedy")
        return int(self.share * roomy.placement.size_bytes)

    def plan(self, steps: int, start: Plan | None = None, seed: int = 0, **more: Any) -> Plan:
        optimiser = Optimiser(
            self.scheduled, Rules(), self.workload, self.budget_bytes, self.cost, **more
        )
        before = start.placement_for(self.graph, "cpu") if start is not None else None
        return self.plan_of(optimiser.run("search", Effort(steps=steps), seed, before))

    def plan_of(self, made: Decisions) -> Plan:
        return Plan.of(self.graph, made, "cpu", self.budget_bytes)

    def task(self, **more: Any) -> SearchTask:
        return SearchTask.of(
            self.scheduled, self.buckets, more.pop("budget_bytes", self.budget_bytes), self.costs,
            **more,
        )  # fmt: skip


def busy_case(seed: int = 3, ops: int = 8, runs: int = 5) -> SearchCase:
    """The case of the module's first lines, or another one."""
    graph = _graph(random.Random(seed), ops)
    return SearchCase(graph, tuple(_trace(graph, random.Random(seed), runs)))


def _graph(choose: random.Random, ops: int) -> Graph:
    g = GraphBuilder()
    values = [g.input(f"x{i}", (ROWS, COLUMNS)) for i in range(3)]
    weights = [g.parameter(f"w{i}", (COLUMNS, COLUMNS)) for i in range(3)]
    for _ in range(ops):
        value = choose.choice(values[-5:])
        is_product = choose.random() < 0.5
        values.append(
            value @ choose.choice(weights) if is_product else value + choose.choice(values[-5:])
        )
    read = {parent for value in values for parent in value.inputs}
    ends = [value for value in values if value not in read and not value.is_leaf]
    for i, value in enumerate(ends):
        g.output(f"y{i}", value)
    return simplify(g.build())


def _trace(graph: Graph, choose: random.Random, runs: int) -> list[Bucket]:
    whole = Region.full((ROWS, COLUMNS))
    found = [Bucket.of(dict.fromkeys(graph.inputs, whole), dict.fromkeys(graph.outputs, whole))]
    for _ in range(runs):
        name, row = choose.choice(list(graph.inputs)), choose.randrange(ROWS)
        one_row = Region.of(Box(((row, row + 1), (0, COLUMNS))))
        changed = one_row if choose.random() < 0.7 else whole
        found.append(Bucket.of({name: changed}, {choose.choice(list(graph.outputs)): whole}))
    return found


def branching(runs: int) -> SearchCase:
    """Two blocks of three branches of convolutions, and patches that change in an image."""
    g, side, many = GraphBuilder(), 12, 4
    image = g.input("x", (1, 3, side, side))
    x = ops.conv(image, g.parameter("first", (2 * many, 3, 3, 3)), padding=1)
    for block in range(2):
        ends = [ops.conv(x, g.parameter(f"one{block}", (many, x.shape[1], 1, 1)))]
        for size in (3, 5):
            narrow = g.parameter(f"narrow{block}{size}", (many, x.shape[1], 1, 1))
            wide = g.parameter(f"wide{block}{size}", (many, many, size, size))
            ends.append(ops.conv(ops.relu(ops.conv(x, narrow)), wide, padding=size // 2))
        x = ops.relu(ops.concat(ends, 1))
    g.output("y", ops.mean(x, (2, 3)))
    graph, choose = simplify(g.build()), random.Random(1)
    everything = Region.full(graph.outputs["y"].shape)
    changed = [Region.full(image.shape)]
    for _ in range(runs):
        i, j = choose.randrange(side - 2), choose.randrange(side - 2)
        changed.append(Region.of(Box(((0, 1), (0, 3), (i, i + 2), (j, j + 2)))))
    buckets = [Bucket.of({"x": one}, {"y": everything}) for one in changed]
    return SearchCase(graph, tuple(buckets), share=0.6)


def every_retention(model: Model) -> Keep:
    """All of them: nodes that cannot matter are left out."""
    worthwhile = np.flatnonzero(model.tables.worthwhile)
    bits = list(product([False, True], repeat=model.turns * len(worthwhile)))
    keep = np.zeros((len(bits), model.turns, model.nodes), bool)
    keep[:, :, worthwhile] = np.array(bits).reshape(len(bits), model.turns, len(worthwhile))
    return keep
