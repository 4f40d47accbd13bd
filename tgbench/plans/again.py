"""What to compute again in one run, where nothing fits if all is computed once.

    a map that is too large ──→ values, their bytes and times ──→ sequences ──→ scheduled_graphs
                                                    memory.remat        unfold

A *value* is what `memory.remat` knows: a node with bytes. Views are looked at again wherever what
they show was computed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tgbench.base.regions import Box
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.memory.placement import Placement, givers
from tgbench.memory.remat import Schedule, Tape, Value, rematerialise, tightest
from tgbench.memory.storage import ScheduledGraph

Cost: TypeAlias = Callable[[Call, Box], float]
SHARES = (1.0, 0.95, 0.9)  # of the budget: a packing may take more than what is live
STEPS = 30  # of the search for what to compute again, for each share


@dataclass(frozen=True)
class Values:
    """What runs compute, as values that may be computed several times.

    Fields:
        nodes: one for each value of the schedule.
    """

    scheduled: ScheduledGraph
    nodes: tuple[Node, ...]
    schedule: Schedule

    @staticmethod
    def of(scheduled: ScheduledGraph, placement: Placement, cost: Cost) -> Values:
        """Of the largest slices that a map holds; what is retained is there throughout."""
        kept = [node for node in placement.slots if node in placement.retained]
        nodes = (*kept, *(node for node in scheduled.stored if node not in placement.retained))
        number = {node: i for i, node in enumerate(nodes)}
        values = (_value(node, scheduled, placement, number, cost) for node in nodes)
        return Values(scheduled, nodes, Schedule(tuple(values)))

    @cached_property
    def _tightest(self) -> Tape:
        return tightest(self.schedule)

    @cached_property
    def _least(self) -> ScheduledGraph:
        return self._scheduled(self._tightest.sequence)

    def scheduled_graphs(self, budget_bytes: int) -> Iterator[ScheduledGraph]:
        """Cheap ones first that may fit; the last takes least and is the same for every budget."""
        tapes: list[Tape] = []
        for share in SHARES:
            room = int(share * budget_bytes)
            if self._tightest.peak_bytes <= room:
                tapes.append(rematerialise(self.schedule, room, max_steps=STEPS).tape)
        for sequence in dict.fromkeys(tape.sequence for tape in [*tapes, self._tightest]):
            is_least = sequence == self._tightest.sequence
            yield self._least if is_least else self._scheduled(sequence)

    def _scheduled(self, order: tuple[int, ...]) -> ScheduledGraph:
        writing = _Sequence(self.scheduled)
        for value in order:
            writing.put(self.nodes[value])
        scheduled = self.scheduled
        return ScheduledGraph.of(scheduled.folded, writing.ended(), scheduled.copied)


def _value(
    node: Node,
    scheduled: ScheduledGraph,
    placement: Placement,
    number: Mapping[Node, int],
    cost: Cost,
) -> Value:
    slot, scratch = placement.slots.get(node), placement.scratch.get(node)
    size_bytes = 0 if slot is None else placement.size_of(node)
    if node in placement.retained:
        return Value(node.name, 0.0, size_bytes, resident=True)
    ends = {scheduled.base[end] for end in scheduled.graph.ends}
    bases = {scheduled.base[parent] for parent in node.inputs}
    return Value(
        node.name,
        0.0 if slot is None else cost(node.call, Box((0, extent) for extent in slot.extents)),
        size_bytes,
        tuple(sorted(number[base] for base in bases if base in number)),
        0 if scratch is None else scratch.size_bytes,
        output=node in ends,
        over=tuple(number[operand] for operand in givers(scheduled, node) if operand not in ends),
    )


class _Sequence:
    """A sequence that is being written: nodes with bytes as they are given, views where needed.

    Fields:
        nodes: so far.
        made: where each came last.
    """

    def __init__(self, scheduled: ScheduledGraph) -> None:
        self.scheduled = scheduled
        self.nodes: list[Node] = []
        self.made: dict[Node, int] = {}

    def put(self, node: Node) -> None:
        """Compute a node, and before it what it reads and was not looked at since."""
        for parent in node.inputs:
            self.renew(parent)
        self.made[node] = len(self.nodes)
        self.nodes.append(node)

    def renew(self, node: Node) -> None:
        """Compute a node that was not yet, or look again at what is behind a view."""
        if node in self.scheduled.position and self._is_stale(node):
            self.put(node)

    def _is_stale(self, node: Node) -> bool:
        is_view = self.scheduled.base[node] is not node
        return node not in self.made or (is_view and self._is_behind(node))

    def _is_behind(self, node: Node) -> bool:
        """Whether what a node reads was computed since."""
        return any(
            self.made.get(parent, -1) > self.made[node]
            or (parent in self.scheduled.position and self._is_stale(parent))
            for parent in node.inputs
        )

    def ended(self) -> list[Node]:
        """All of it: what is handed out is what was computed last, and so is what states become."""
        graph = self.scheduled.graph
        for node in graph.ends:
            self.renew(node)
        for node in graph.updates.values():
            if node not in graph.ends:
                self._write(node)
        return self.nodes

    def _write(self, node: Node) -> None:
        """The ops that say what of a state is written; as such they are never executed."""
        if node in self.scheduled.position:
            self._write(node.inputs[0])
            if node not in self.made or self._is_behind(node):
                self.put(node)
