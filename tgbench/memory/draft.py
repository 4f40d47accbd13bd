"""From what runs touch to a map: first how many bytes there are and when, then where they lie.

    Footprint + Retention  ──→  Draft: who has bytes, when  ── scratch memory, packed ──→  Placement

How much scratch memory kernels want depends on how their operands lie, not where. So it is asked
of a draft, and a draft is packed once it is known; what no packing can be below is known before.

Time, to the packer, is the schedule once for what may never overlap, and once more for the runs of
each turn after each other one: what is there, and when, depends on both. A node (h) that is kept
after the runs of some turns only:

    schedule          | h is kept from before | h is made and kept | h is read, and then let go
    ....hhhh....      | hhhhhhhhhhhhhhhhhhhhh | .......hhhhhhhhhhh | hhhhhhhhhhh...............

What such runs never touch is not there in their part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from tgbench.base.regions import Box
from tgbench.graph.graph import Node
from tgbench.memory.packing import Buffer, Problem, lower_bound, pack
from tgbench.memory.placement import (
    ALIGNMENT,
    Footprint,
    Placement,
    Retention,
    Scratch,
    Slot,
    aligned,
    donors,
    elsewhere,
    largest,
)
from tgbench.memory.storage import LiveRange, ScheduledGraph


@dataclass(frozen=True)
class Passage:
    """What the runs of a turn after another one do with nodes that share bytes.

    Fields:
        touched: computed, read or kept on.
        from_start: an earlier value is read, or kept on.
        to_end: its value is kept.
    """

    touched: frozenset[Node]
    from_start: frozenset[Node]
    to_end: frozenset[Node]

    def led(self, leader: Mapping[Node, Node]) -> Passage:
        """The same of the first owners of bytes."""
        sets = (self.touched, self.from_start, self.to_end)
        return Passage(*(frozenset(leader.get(node, node) for node in one) for one in sets))

    def covers(self, other: Passage) -> bool:
        """Whether all that lives in the other one lives as long in this one."""
        return (
            other.touched <= self.touched
            and other.from_start <= self.from_start
            and other.to_end <= self.to_end
        )


Spans: TypeAlias = "list[tuple[int, int]]"  # half-open, in packing steps


def _spans(
    scheduled: ScheduledGraph, leader: Mapping[Node, Node], passages: Iterable[Passage]
) -> Callable[[Node, LiveRange], Spans]:
    """When a node's bytes are in use: over the schedule, then over each passage that counts."""
    length = len(scheduled.schedule) + 1
    parts: list[Passage] = []
    for part in (passage.led(leader) for passage in passages):
        if not any(one.covers(part) for one in parts):
            parts = [*(one for one in parts if not part.covers(one)), part]

    def spans(node: Node, live: LiveRange) -> Spans:
        found = [(live.start, live.stop)]
        for i, part in enumerate(parts, 1):
            if node in part.touched:
                start = 0 if node in part.from_start else live.start
                stop = length if node in part.to_end else live.stop
                found.append((i * length + start, i * length + stop))
        return found

    return spans


def _buffer(name: str, size_bytes: int, spans: Spans) -> Buffer:
    gaps = tuple((a, b) for (_, a), (b, _) in pairwise(spans) if a < b)
    return Buffer(name, size_bytes, spans[0][0], spans[-1][1], gaps)


@dataclass(frozen=True)
class Draft:
    """A map before its offsets are known: who has bytes, how many, and when they are in use.

    Fields:
        slots: of all that have some; those of what shares bytes begin at 0 until it is packed.
        retained: nodes in absolute coordinates, inputs and states among them.
        sliding: nodes of which a window is kept, and along which dimension.
        partial: those retained that share bytes all the same.
        donors: in-place result → the operand whose bytes it takes over; a chain is one buffer.
        live: of every buffer of slices, by the first owner of its bytes.
        spans: when a buffer is in use, in packing steps.
        kept_bytes: where sharing begins.
    """

    scheduled: ScheduledGraph
    slots: Mapping[Node, Slot]
    retained: frozenset[Node]
    sliding: Mapping[Node, int]
    partial: tuple[Node, ...]
    donors: Mapping[Node, Node]
    leader: Mapping[Node, Node]
    live: Mapping[Node, LiveRange]
    spans: Callable[[Node, LiveRange], Spans]
    kept_bytes: int

    @staticmethod
    def of(
        scheduled: ScheduledGraph,
        retention: Retention,
        uses: Footprint,
        passages: Iterable[Passage] = (),
    ) -> Draft:
        """Kept inputs and always retained nodes lie one behind the other; the rest shares.

        Args:
            passages: of each turn after each other one; may be left out where no node is partial.
        """
        apart = elsewhere(scheduled)
        keep = frozenset(n for n in retention.nodes if n in uses.hulls and n not in apart)
        partial = tuple(n for n in scheduled.stored if n in keep and retention.is_partial(n))
        whole = keep.difference(partial)
        sliding = dict(slide(sorted(whole & retention.may_slide, key=_index), uses))
        slots, kept_bytes = _kept(scheduled, keep, frozenset(partial), uses, sliding)
        slots |= apart
        retained = frozenset([*scheduled.kept, *keep, *apart])
        pairs = donors(scheduled, keep.union(apart), uses.extents)
        slices = _slices(scheduled, retained, uses, pairs)
        for node, first in slices.leader.items():
            slots[node] = Slot(0, slices.extents[first], (0,) * node.rank, scheduled.order(node))
        spans = _spans(scheduled, slices.leader, passages if partial else ())
        return Draft(
            scheduled,
            slots,
            retained.difference(sliding),
            sliding,
            partial,
            pairs,
            slices.leader,
            slices.live,
            spans,
            kept_bytes,
        )

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """What shares bytes, scratch memory apart."""
        live = {**self.live, **{node: self.scheduled.live[node] for node in self.partial}}
        return tuple(
            _buffer(node.name, self.size_of(node), self.spans(node, at))
            for node, at in live.items()
        )

    @cached_property
    def bound_bytes(self) -> int:
        """No map of this can be smaller, however little scratch memory it has."""
        return self.kept_bytes + lower_bound(Problem(self.buffers, alignment=ALIGNMENT)).size_bytes

    @cached_property
    def in_use(self) -> list[int]:
        """Bytes that hold values at each step of the schedule, scratch memory apart.

        What is kept through some runs only counts at every step.
        """
        found = np.full(len(self.scheduled.schedule) + 1, self.kept_bytes, np.int64)
        for node, live in self.live.items():
            found[live.start : live.stop] += aligned(self.size_of(node))
        found += sum(aligned(self.size_of(node)) for node in self.partial)
        return [int(size) for size in found]

    def size_of(self, node: Node) -> int:
        return self.slots[node].elements * node.type.itemsize

    def packed(self, scratch_bytes: Mapping[Node, int]) -> Placement:
        """The whole map, with so much scratch memory for the kernels of some nodes."""
        wanting = {node: size for node, size in scratch_bytes.items() if size}
        apart = {node: size for node, size in wanting.items() if node.type.device}
        wanting = {node: size for node, size in wanting.items() if node not in apart}
        rooms = (self._scratch(node, size) for node, size in wanting.items())
        problem = Problem((*self.buffers, *rooms), alignment=ALIGNMENT)
        solution, bound = pack(problem), lower_bound(problem)
        top, offsets = self.kept_bytes, solution.offsets
        slots = dict(self.slots)
        for node in (*self.leader, *self.partial):
            first = self.leader.get(node, node)
            slots[node] = replace(slots[node], offset_bytes=top + offsets[first.name])
        scratch = {
            node: Scratch(top + offsets[f"{node.name} (scratch)"], size)
            for node, size in wanting.items()
        }
        scratch |= self._behind_all(apart)
        live_there = [(buffer.name, aligned(buffer.size_bytes)) for buffer in bound.buffers]
        kept = self.retained.union(self.sliding).difference(self.partial, self.scheduled.elsewhere)
        live_there += [(node.name, aligned(self.size_of(node))) for node in kept]
        return Placement(
            slots, self.retained, scratch, self.donors, top + solution.height_bytes, top,
            top + bound.size_bytes, bound.step % (len(self.scheduled.schedule) + 1),
            tuple(sorted(live_there, key=lambda item: (-item[1], item[0]))), self.sliding,
        )  # fmt: skip

    def _behind_all(self, wanting: Mapping[Node, int]) -> dict[Node, Scratch]:
        """The scratch memory of calls on other devices: one room there for all, behind values."""
        ends: dict[str, int] = {}
        for node in self.scheduled.elsewhere:
            ends[node.type.device] = self.slots[node].offset_bytes + aligned(self.size_of(node))
        return {node: Scratch(ends[node.type.device], size) for node, size in wanting.items()}

    def _scratch(self, node: Node, size_bytes: int) -> Buffer:
        """In use wherever a node is computed."""
        at, length = self.scheduled.position[node], len(self.scheduled.schedule) + 1
        runs = self.spans(self.leader.get(node, node), LiveRange(at, at + 1))
        in_use = [(a - a % length + at, a - a % length + at + 1) for a, _ in runs]
        return _buffer(f"{node.name} (scratch)", size_bytes, in_use)


LESS = 0.75  # of a node: a window of it that takes more is not worth moving

_index = attrgetter("index")


def slide(nodes: Iterable[Node], uses: Footprint) -> Iterator[tuple[Node, int]]:
    """Nodes of which every run touches clearly less than all runs do, along one dimension: which.

    They go on: what they read besides what they compute lies before that. Else it is not known
    whether runs follow each other, and a window that jumps finds nothing.
    """
    for node in nodes:
        if node not in uses.behind or node in uses.ahead:
            continue
        once, all_of_it = uses.extents[node], tuple(map(int, uses.hulls[node].extents))
        axes = [i for i, (a, b) in enumerate(zip(once, all_of_it, strict=True)) if a < b]
        if len(axes) == 1 and once[axes[0]] <= LESS * all_of_it[axes[0]]:
            yield node, axes[0]


def _kept(
    scheduled: ScheduledGraph,
    keep: frozenset[Node],
    partial: frozenset[Node],
    uses: Footprint,
    sliding: Mapping[Node, int],
) -> tuple[dict[Node, Slot], int]:
    """The slots of inputs and retained nodes, and where those end that nobody else overlaps."""
    slots: dict[Node, Slot] = {}
    top = 0
    for node in [*scheduled.kept, *(n for n in scheduled.stored if n in keep)]:
        box = Box.full(node.shape) if node.is_leaf else uses.hulls[node]
        extents, start = tuple(int(b - a) for a, b in box), tuple(int(a) for a, _ in box)
        if node in sliding:
            extents = uses.extents[node]
        at = 0 if node in partial else top
        slots[node] = Slot(at, extents, start, scheduled.order(node))
        if node not in partial:
            top += aligned(slots[node].elements * node.type.itemsize)
    return slots, top


class _Slices(NamedTuple):
    """Buffers of slices: of each node the first owner of its bytes, and by owner their extents
    and when they live.
    """

    leader: dict[Node, Node]
    extents: dict[Node, tuple[int, ...]]
    live: dict[Node, LiveRange]


def _slices(
    scheduled: ScheduledGraph,
    retained: frozenset[Node],
    uses: Footprint,
    pairs: Mapping[Node, Node],
) -> _Slices:
    found = _Slices({}, {}, {})
    for node in (n for n in scheduled.stored if n in uses.extents and n not in retained):
        mine, live = uses.extents[node], scheduled.live[node]
        first = found.leader[node] = found.leader[pairs[node]] if node in pairs else node
        if first is not node:
            mine, before = largest(mine, found.extents[first]), found.live[first]
            live = LiveRange(before.start, max(live.stop, before.stop))
        found.extents[first], found.live[first] = mine, live
    for first, held in _together(uses, pairs, found.leader):
        found.extents[first] = largest(held, found.extents[first])
    return found


def _together(
    uses: Footprint, pairs: Mapping[Node, Node], leader: Mapping[Node, Node]
) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """What one run holds of each buffer that several nodes own."""
    owners: dict[Node, list[Node]] = {}
    for node in dict.fromkeys(chain(pairs, pairs.values())):
        owners.setdefault(leader[node], []).append(node)
    each = [(first, tuple(sorted(nodes, key=_index))) for first, nodes in owners.items()]
    for made in uses.made:
        for first, nodes in each:
            held = made.together(nodes)
            if held:
                yield first, held
