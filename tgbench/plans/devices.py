"""Where each op of a graph is computed: on the session's device, or on another one.

    time of every node, there and here ─┐
    time of what is copied in between  ─┼─→ the least time in all ─→ the graph, with copies in it
    bytes of what is kept there        ─┘   within what devices give

With two devices and room for everything that is a minimum cut: an edge that is cut is a copy, a
node on one side costs what it takes there. So copy → op → copy is there only where it is quicker,
and is not where the op is as quick here. A value that several read elsewhere is copied once, and
weights and constants before the first run. What devices may give are two sums more, and then it is
an integer program, which HiGHS solves.

Source: H. S. Stone, "Multiprocessor Scheduling with the Aid of Network Flow Algorithms", IEEE
Transactions on Software Engineering SE-3(1), 1977. Left out: devices that compute at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.words import format_bytes, format_time
from tgbench.costs.link import Link
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import HOME
from tgbench.graph.ops.devices import copy_to
from tgbench.memory.placement import aligned, elsewhere_bytes
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.planner import Cost
from tgbench.runs.propagate import Propagator
from tgbench.runs.rules import Rules, less_known

SECONDS = 10.0  # for one placing


@dataclass(frozen=True)
class Device:
    """A device beside the session's.

    Fields:
        name: as torch has it, "cuda:0".
        cost: expected nanoseconds of a box of a call there; infinite for what it cannot compute.
        link: to the session's device.
        capacity_bytes: what weights and values may take there; None for no bound.
    """

    name: str
    cost: Cost
    link: Link
    capacity_bytes: int | None = None


@dataclass(frozen=True)
class PlacedRun:
    """A run that is placed for.

    Fields:
        weight: how often it comes, relative to the others.
        changed: of inputs and states; None for all, when nothing is there yet.
        demand: of outputs; those that are left out are not asked for.
    """

    weight: float
    changed: Mapping[str, Region] | None
    demand: Mapping[str, Region]


@dataclass(frozen=True)
class PlacedGraph:
    """A graph with its ops where they take least in all.

    Fields:
        given: the graph with all of it on one device.
        graph: what runs, copies and all.
        devices: of every computed node of the graph that was given, by name; "" for home.
        time_ns: the mean run, as expected; `home_ns` if nothing were computed elsewhere.
        bound_ns: no way to place it takes less, by the same costs.
        size_bytes: what other devices hold, weights and values.
    """

    given: Graph
    graph: Graph
    devices: Mapping[str, str]
    time_ns: float
    home_ns: float
    bound_ns: float
    size_bytes: Mapping[str, int]

    @property
    def copies(self) -> int:
        """How many values runs copy from device to device."""
        frozen = self.graph.frozen
        return sum(_brings(node) and node not in frozen for node in self.graph.nodes)

    def __str__(self) -> str:
        there = [f"{format_bytes(size)} on {name}" for name, size in self.size_bytes.items()]
        return (
            f"{sum(map(bool, self.devices.values()))} of {len(self.devices)} ops elsewhere "
            f"({', '.join(there) or 'nothing'}), {self.copies} copies a run: "
            f"{format_time(self.time_ns)}, {format_time(self.home_ns)} at home, "
            f"no less than {format_time(self.bound_ns)}"
        )


def place_ops(
    graph: Graph, home: Cost, devices: Sequence[Device], runs: Sequence[PlacedRun] = ()
) -> PlacedGraph:
    """A graph's ops on the devices where they take least in all; copies that it has are left out.

    What states become is computed at home, and outputs are handed out there.

    Args:
        home: expected nanoseconds of a box of a call on the session's device.
        runs: what is placed for; one of everything where there are none.

    Raises GraphError for two devices of one name.

    >>> from tgbench.graph import ops
    >>> g = GraphBuilder()
    >>> x, w = g.input("x", (8, 64)), g.parameter("w", (64, 64))
    >>> g.output("y", ops.relu(ops.linear(ops.linear(x, w), w)))
    >>> def cost(multiply_ns):
    ...     return lambda call, box: multiply_ns if call.op.multiplies else 10.0
    >>> gpu = Device("cuda:0", cost(50.0), Link(100.0, 10.0))
    >>> found = place_ops(g.build(), cost(1_000.0), [gpu])
    >>> [name for name, device in found.devices.items() if device]
    ['linear', 'linear_1']
    >>> found.time_ns, found.home_ns
    (719.6, 2010.0)
    """
    if len({device.name for device in devices}) < len(devices):
        raise GraphError("two devices have one name; give each what it may take once")
    bare = without_copies(graph)
    problem = _Problem.of(bare, home, devices, runs)
    where, bound_ns = problem.solved()
    placed = with_copies(bare, where)
    scheduled = ScheduledGraph.of(placed)
    sizes = elsewhere_bytes(scheduled)
    for node in _frozen_elsewhere(scheduled):
        sizes[node.type.device] = sizes.get(node.type.device, 0) + aligned(node.type.size_bytes)
    return PlacedGraph(
        bare, placed, {node.name: device for node, device in where.items()}, problem.time_ns(where),
        problem.time_ns(dict.fromkeys(where, HOME)), bound_ns, sizes,
    )  # fmt: skip


def _brings(node: Node) -> bool:
    return not node.is_leaf and node.call.op.brings


def without_copies(graph: Graph) -> Graph:
    """A graph with all of it on one device."""

    def made(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        return inputs[0] if _brings(node) else copy_node(builder, node, inputs)

    return graph.rebuild(made)


def with_copies(graph: Graph, where: Mapping[Node, str]) -> Graph:
    """The graph with every op on its device, HOME where none is said, and what it reads brought
    there.
    """

    def made(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        device = where.get(node, HOME) or None
        return copy_node(builder, node, tuple(copy_to(one, device) for one in inputs))

    return graph.rebuild(made, end=copy_to)


def _frozen_elsewhere(scheduled: ScheduledGraph) -> Iterator[Node]:
    """What the pool has on other devices."""
    read = {scheduled.base[one] for node in scheduled.schedule for one in node.inputs}
    return (node for node in read if node in scheduled.frozen and node.type.device)


@dataclass(frozen=True)
class _Problem:
    """The least time in all.

    Fields:
        nodes: those that may be computed elsewhere or are read by such, in order: computed in runs.
        devices: beside home.
        times: [node, device] nanoseconds of a mean run, home first.
        reads: (reader, what it reads) among `nodes`, as their numbers.
        fetched: of inputs, states, weights and constants, who reads them.
        handed: nodes that are read at home when a run ends.
        links: [value, device] nanoseconds of copying one between home and there, `nodes` first and
            then `fetched`.
        sizes: bytes of every value, in the same order; 0 for nodes without.
        kept: bytes that a node takes where it is computed.
    """

    nodes: Sequence[Node]
    devices: Sequence[Device]
    times: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    reads: Sequence[tuple[int, int]]
    fetched: Sequence[tuple[int, ...]]
    handed: frozenset[int]
    links: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    sizes: Sequence[int]
    kept: Sequence[int]

    @staticmethod
    def of(
        graph: Graph, home: Cost, devices: Sequence[Device], runs: Sequence[PlacedRun]
    ) -> _Problem:
        scheduled = ScheduledGraph.of(graph)
        nodes, work = scheduled.schedule, _MeanRun(scheduled, _happening(scheduled, runs))
        number = {node: i for i, node in enumerate(nodes)}
        readers: dict[Node, list[int]] = {}
        for node in nodes:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(number[node])
        leaves = [value for value in readers if value not in number]
        values = [*nodes, *leaves]
        costs = [home, *(device.cost for device in devices)]
        times = np.array([[work.taken_ns(node, cost) for cost in costs] for node in nodes])
        times[[number[node] for node in _at_home(graph) if node in number], 1:] = np.inf
        links = [[work.copied_ns(value, device.link) for device in devices] for value in values]
        sizes = [aligned(value.type.size_bytes) for value in values]
        return _Problem(
            nodes, devices, times.reshape(len(nodes), len(costs)),
            [(i, number[value]) for value in nodes for i in readers.get(value, ())],
            [tuple(readers[leaf]) for leaf in leaves],
            frozenset(number[node] for node in graph.ends if node in number),
            np.array(links).reshape(len(values), len(devices)), sizes,
            [0 if node in scheduled.views else sizes[i] for i, node in enumerate(nodes)],
        )  # fmt: skip

    def time_ns(self, where: Mapping[Node, str]) -> float:
        """The mean run with every node on its device."""
        names = [HOME, *(device.name for device in self.devices)]
        at = [names.index(where[node]) for node in self.nodes]
        read_at: list[set[int]] = [set() for _ in self.sizes]
        for i, value in self.reads:
            read_at[value].add(at[i])
        for k, them in enumerate(self.fetched, len(self.nodes)):
            read_at[k] = {at[i] for i in them}
        for i in self.handed:
            read_at[i].add(0)
        total = math.fsum(self.times[i, device] for i, device in enumerate(at))
        for value, devices in enumerate(read_at):
            own = at[value] if value < len(at) else 0
            total += sum(self.copying_ns(value, own, one) for one in devices - {own})
        return total

    def copying_ns(self, value: int, source: int, target: int) -> float:
        """A copy of a value from one device to another, by number; home is 0."""
        return math.fsum(float(self.links[value, d - 1]) for d in (source, target) if d)

    def solved(self) -> tuple[dict[Node, str], float]:
        """The device of every node, and what no way to place them takes less than."""
        stays = dict.fromkeys(self.nodes, HOME)
        at, bound_ns = _Program(self).solved() if stays else (None, 0.0)
        if at is None:
            return stays, bound_ns
        names = [HOME, *(device.name for device in self.devices)]
        where = {node: names[k] for node, k in zip(self.nodes, at, strict=True)}
        best = min((where, stays), key=self.time_ns)
        return best, min(bound_ns, self.time_ns(best))


class _Row(NamedTuple):
    """A sum of factors times columns, and what it is between."""

    terms: list[tuple[float, int]]
    least: float = 0.0
    most: float = np.inf


class _Program:
    """The integer program: which node is where, and what is copied from where to where.

        on[n, d]           a node is computed there: one device each
        copied[v, a, b]    ≥ on[v, a] + on[reader, b] − 1     once, for all who read it there

    Only where nodes are has to be whole: copies are what readers make of that.
    """

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        self.count = 1 + len(problem.devices)
        self.own = len(problem.nodes) * self.count
        self.pairs = {pair: i for i, pair in enumerate(permutations(range(self.count), 2))}
        self.size = self.own + len(problem.sizes) * len(self.pairs)

    def solved(self) -> tuple[list[int] | None, float]:
        """The device of every node by number, if there was time for any; and a lower bound."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        rows, costs = list(self.rows()), self.costs()
        cells = [(factor, i, j) for i, row in enumerate(rows) for factor, j in row.terms]
        factors, sums, columns = zip(*cells, strict=True)
        matrix = coo_array((factors, (sums, columns)), shape=(len(rows), self.size)).tocsr()
        scale = float(costs.max(initial=0.0)) or 1.0
        found = milp(
            costs / scale,
            integrality=self.integrality(),
            bounds=Bounds(0, self.highest()),
            constraints=LinearConstraint(
                matrix, [row.least for row in rows], [row.most for row in rows]
            ),
            options={"time_limit": SECONDS},
        )
        bound_ns = max(float(found.mip_dual_bound or 0.0) * scale, 0.0)
        if found.x is None:
            return None, bound_ns
        there = found.x[: self.own].reshape(-1, self.count)
        return there.argmax(axis=1).tolist(), bound_ns

    def on(self, node: int, device: int) -> int:
        return node * self.count + device

    def copied(self, value: int, source: int, target: int) -> int:
        return self.own + value * len(self.pairs) + self.pairs[source, target]

    def costs(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        times = self.problem.times
        copies = [
            self.problem.copying_ns(value, source, target)
            for value in range(len(self.problem.sizes))
            for source, target in self.pairs
        ]
        return np.append(np.where(np.isfinite(times), times, 0.0).reshape(-1), copies)

    def highest(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """0 for what a device cannot compute."""
        found = np.ones(self.size)
        found[: self.own] = np.isfinite(self.problem.times).reshape(-1)
        return found

    def integrality(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        found = np.zeros(self.size)
        found[: self.own] = 1
        return found

    def rows(self) -> Iterator[_Row]:
        """What holds of every placing; what nobody reads elsewhere is copied nowhere."""
        problem, on = self.problem, self.on
        for n in range(len(problem.nodes)):
            yield _Row([(1.0, on(n, d)) for d in range(self.count)], 1.0, 1.0)
        for a, b in self.pairs:
            for reader, value in problem.reads:
                both = [(-1.0, on(value, a)), (-1.0, on(reader, b))]
                yield _Row([(1.0, self.copied(value, a, b)), *both], -1.0)
        for d, device in enumerate(problem.devices, 1):
            for value, readers in enumerate(problem.fetched, len(problem.nodes)):
                for reader in readers:
                    yield _Row([(1.0, self.copied(value, 0, d)), (-1.0, on(reader, d))])
            for n in problem.handed:
                yield _Row([(1.0, self.copied(n, d, 0)), (-1.0, on(n, d))])
            if device.capacity_bytes is not None:
                yield self._capacity(d, float(device.capacity_bytes))

    def _capacity(self, device: int, limit: float) -> _Row:
        """What lies on a device: what is computed there, and what is copied there."""
        unit, sources = limit or 1.0, [a for a in range(self.count) if a != device]
        held = [(size / unit, self.on(n, device)) for n, size in enumerate(self.problem.kept)]
        for value, size in enumerate(self.problem.sizes):
            held += [(size / unit, self.copied(value, a, device)) for a in sources]
        return _Row(held, -np.inf, limit / unit)


def boxes_of_runs(graph: Graph, runs: Sequence[PlacedRun]) -> list[list[tuple[Node, Box]]]:
    """Of each run, what is computed, box by box."""
    scheduled = ScheduledGraph.of(graph)
    return [
        [
            (node, box)
            for node, region in done.computed.items()
            if node not in scheduled.views
            for box in region
        ]
        for _, done in _happening(scheduled, runs)
    ]


class _Done(NamedTuple):
    """What a run does.

    Fields:
        computed: of every node, kernels' whole lines included.
        new: what readers want of every value that was not there before.
    """

    computed: Mapping[Node, Region]
    new: Mapping[Node, Region]


def _happening(scheduled: ScheduledGraph, runs: Sequence[PlacedRun]) -> list[tuple[float, _Done]]:
    """How often each run comes, and what it does; one of everything where there are none."""
    outputs = scheduled.graph.outputs.items()
    everything = PlacedRun(1.0, None, {name: Region.full(node.shape) for name, node in outputs})
    propagator = scheduled.propagator(Rules(), scheduled.stored)
    return [(run.weight, _done(scheduled, propagator, run)) for run in runs or [everything]]


def _done(scheduled: ScheduledGraph, propagator: Propagator, run: PlacedRun) -> _Done:
    """What a run does, all values being there that were."""
    graph = scheduled.graph
    demand = {node: Region.full(node.shape) for node in graph.ends}
    demand = {n: part for n, part in demand.items() if n not in graph.outputs.values()}
    demand |= {graph.outputs[name]: part for name, part in run.demand.items()}
    if run.changed is None:
        step = propagator.step({}, {}, demand)
        return _Done(step.compute, _unknown(step.needed))
    leaves = {**graph.inputs, **graph.states}
    changed = {leaves[name]: part for name, part in run.changed.items()}
    whole = {node: Region.full(node.shape) for node in scheduled.stored}
    step = propagator.step(whole, changed, demand)
    fresh = {
        node: part.intersect(step.dirty[node])
        for node, part in step.needed.items()
        if node in step.dirty
    }
    return _Done(step.compute, _unknown(fresh))


class _MeanRun:
    """What ops and copies take in the mean of some runs."""

    def __init__(self, scheduled: ScheduledGraph, runs: Sequence[tuple[float, _Done]]) -> None:
        total = sum(weight for weight, _ in runs) or 1.0
        self._scheduled = scheduled
        self._runs = [(weight / total, done) for weight, done in runs]

    def taken_ns(self, node: Node, cost: Cost) -> float:
        """Computing a node; showing another one's bytes is nothing."""
        if node in self._scheduled.views:
            return 0.0
        return math.fsum(
            share * cost(node.call, box)
            for share, done in self._runs
            for box in done.computed.get(node, EMPTY)
        )

    def copied_ns(self, value: Node, link: Link) -> float:
        """Copying what is new of a value; what follows from weights is copied before."""
        if value in self._scheduled.frozen:
            return 0.0
        return math.fsum(
            share * link.time_ns(box.elements * value.type.itemsize)
            for share, done in self._runs
            for box in done.new.get(value, EMPTY)
        )


def _unknown(needed: Mapping[Node, Region]) -> dict[Node, Region]:
    """What is needed, less what constants say of it."""
    return {
        node: region if node.is_leaf else less_known(node.call, region)
        for node, region in needed.items()
    }


def _at_home(graph: Graph) -> frozenset[Node]:
    """What states become, and what that is made of from the state itself."""
    found: set[Node] = set()
    for name, node in graph.updates.items():
        state = graph.states[name]
        while node is not state and not node.is_leaf:
            found.add(node)
            writes = node.call.op.writes
            if writes is None:
                break
            node = node.inputs[0]
    return frozenset(found)
