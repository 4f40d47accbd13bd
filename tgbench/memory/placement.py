"""Where every node's bytes lie: one fixed map for a whole plan.

    0 ┌──────────────┐
      │ inputs       │  kept: the last value of every input
      │ K V K V …    │  retained through every run: nobody else's bytes
      ├──────────────┤
      │ x  ┌─ q ─┐ h │  the rest: one slice each, live from its definition to its last use;
      │ ───┘ s │ └── │  slices that are never live together may share bytes (alias)
      └──────────────┘

Retained nodes are laid out in absolute coordinates. One that is kept after the runs of some classes
only (h) shares its bytes with others while it is not there. Time, to the packer, is the schedule
once for what may never overlap, and once more for the runs of each class:

    schedule          | h is kept from before | h is made and kept | h is read, and then let go
    ....hhhh....      | hhhhhhhhhhhhhhhhhhhhh | .......hhhhhhhhhhh | hhhhhhhhhhh...............

What a class never touches is not there in its part.

A slice is sized for the largest one that the planned buckets need, and holds one box at a time.
An in-place result takes the bytes of an operand that dies there. Kernels' scratch memory is one
more buffer, live for one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tgbench.base.coords import value_of
from tgbench.base.regions import Box, in_order, row_major
from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS
from tgbench.memory.packing import Buffer, Problem, lower_bound, pack
from tgbench.memory.storage import Anatomy, LiveRange
from tgbench.runs.propagate import Step, Storage
from tgbench.runs.rules import Rules

ALIGNMENT = 64


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Slot:
    """The bytes of one node.

    Fields:
        offset_bytes: from the start of the arena.
        extents: elements per dimension that fit.
        start: coordinates of the first element of a retained node; a slice's move with each run.
        order: dimensions from the outermost to the innermost; () for row-major.
    """

    offset_bytes: int
    extents: tuple[int, ...]
    start: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return in_order(self.extents, self.order) if self.order else row_major(self.extents)

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.extents:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class Scratch:
    """Temporary memory of one node's kernel."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Placement:
    """The memory map.

    Fields:
        slots: for inputs, states and every stored node that a planned run touches.
        retained: nodes in absolute coordinates (inputs and states among them).
        scratch: per node whose kernel needs some.
        donors: in-place result → the operand whose bytes it takes over.
        size_bytes: the arena's size.
        kept_bytes: inputs, states and the nodes whose bytes nobody else ever overlaps.
        bound_bytes: no packing of these buffers can be smaller.
        bound_step, bound_nodes: the step that makes the bound, and the (name, bytes) live there.
    """

    slots: Mapping[Node, Slot]
    retained: frozenset[Node]
    scratch: Mapping[Node, Scratch]
    donors: Mapping[Node, Node]
    size_bytes: int
    kept_bytes: int
    bound_bytes: int
    bound_step: int
    bound_nodes: tuple[tuple[str, int], ...]

    @cached_property
    def overlaps(self) -> dict[Node, tuple[Node, ...]]:
        """For every computed node, those whose computation may write over it."""
        nodes = [node for node in self.slots if not node.is_leaf]
        start = np.array([self.slots[n].offset_bytes for n in nodes], dtype=np.int64)
        stop = start + [aligned(self.size_of(n)) for n in nodes]
        writers = [(n, a, b) for n, a, b in zip(nodes, start, stop, strict=True)]
        writers += [
            (n, s.offset_bytes, s.offset_bytes + s.size_bytes) for n, s in self.scratch.items()
        ]
        result: dict[Node, list[Node]] = {node: [] for node in nodes}
        for writer, low, high in writers:
            for i in np.flatnonzero((start < high) & (low < stop)):
                if nodes[i] is not writer:
                    result[nodes[i]].append(writer)
        return {node: tuple(dict.fromkeys(found)) for node, found in result.items()}

    @property
    def always(self) -> tuple[Node, ...]:
        """Retained nodes that no run writes over."""
        return tuple(node for node in self.retained if not self.overlaps.get(node))

    @property
    def reach_bytes(self) -> int:
        """Where the last slot or scratch ends."""
        ends = [s.offset_bytes + aligned(self.size_of(n)) for n, s in self.slots.items()]
        ends += [s.offset_bytes + aligned(s.size_bytes) for s in self.scratch.values()]
        return max(ends, default=0)

    def size_of(self, node: Node) -> int:
        return self.slots[node].elements * node.type.itemsize

    def group(self, node: Node) -> Node:
        """The first owner of the bytes that an in-place result took over."""
        while node in self.donors:
            node = self.donors[node]
        return node

    def storage(self, anatomy: Anatomy) -> Storage:
        """What propagation has to know of this map."""
        return Storage(anatomy.views, anatomy.frozen, self.retained, self.overlaps)


def bytes_in_use(placement: Placement, anatomy: Anatomy) -> list[int]:
    """Bytes that hold values at each step of the schedule, scratch memory apart.

    What is kept through some runs only counts at every step.
    """
    end = len(anatomy.schedule)
    found = np.full(end + 1, placement.kept_bytes, np.int64)
    spans: dict[Node, tuple[int, int]] = {}
    for node, slot in placement.slots.items():
        if slot.offset_bytes < placement.kept_bytes:
            continue
        live = anatomy.live[node]
        span = (0, end) if node in placement.retained else (live.start, live.stop)
        first = placement.group(node)
        start, stop = spans.get(first, span)
        spans[first] = min(start, span[0]), max(stop, span[1])
    for first, (start, stop) in spans.items():
        found[start:stop] += aligned(placement.size_of(first))
    return [int(size) for size in found]


@dataclass(frozen=True)
class Footprint:
    """What a set of runs touches of each stored node.

    Fields:
        hulls: everything touched, in absolute coordinates (for retained nodes).
        extents: the largest slice of any one run.
        made: per run, what it touches of each node that it writes: nodes that turn out to be one
            buffer hold all of theirs at once.
    """

    hulls: Mapping[Node, Box]
    extents: Mapping[Node, tuple[int, ...]]
    made: tuple[Mapping[Node, Box], ...] = ()

    def join(self, other: Footprint) -> Footprint:
        hulls, extents = dict(self.hulls), dict(self.extents)
        for node, box in other.hulls.items():
            hulls[node] = hulls[node].hull(box) if node in hulls else box
        for node, sizes in other.extents.items():
            mine = extents.get(node, sizes)
            extents[node] = tuple(max(a, b) for a, b in zip(mine, sizes, strict=True))
        return Footprint(hulls, extents, self.made + other.made)


def touched(step: Step, anatomy: Anatomy, rules: Rules) -> dict[Node, Box]:
    """Per node with bytes, the hull of what a run computes and reads of it."""
    boxes: dict[Node, Box] = {}

    def touch(node: Node, box: Box) -> None:
        before = boxes.get(node)
        boxes[node] = box if before is None else before.hull(box)

    for node, region in step.compute.items():
        for box in region:
            touch(node, box)
            for parent, read in zip(node.inputs, rules.reads(node.call, box), strict=True):
                if read is not None and parent not in anatomy.frozen:
                    touch(*anatomy.base_box(parent, read, rules))
    for output in anatomy.graph.ends:
        if output in step.needed and output not in anatomy.frozen and not output.is_leaf:
            for box in step.needed[output]:
                touch(*anatomy.base_box(output, box, rules))
    return {node: anatomy.stored_box(node, box) for node, box in boxes.items()}


def footprint(step: Step, anatomy: Anatomy, rules: Rules) -> Footprint:
    """What one run touches, as numbers."""
    hulls = {
        node: Box((value_of(a), value_of(b)) for a, b in box)
        for node, box in touched(step, anatomy, rules).items()
        if not node.is_leaf
    }
    sizes = {node: tuple(map(value_of, box.extents)) for node, box in hulls.items()}
    made = {n: box for n, box in hulls.items() if n in step.compute or n in step.filled}
    return Footprint(hulls, sizes, (made,))


def donors(
    anatomy: Anatomy, retained: frozenset[Node], extents: Mapping[Node, tuple[int, ...]]
) -> dict[Node, Node]:
    """In-place pairs: a result and the operand that dies where it is computed."""
    outputs = {anatomy.base[node] for node in anatomy.graph.ends}
    found: dict[Node, Node] = {}
    given: set[Node] = set()
    for node in anatomy.stored:
        if node in retained or node not in extents:
            continue
        for operand in givers(anatomy, node):
            if (
                operand in extents
                and operand not in retained
                and operand not in outputs
                and operand not in given
                and anatomy.live[operand].stop == anatomy.position[node] + 1
            ):
                found[node] = operand
                given.add(operand)
                break
    return found


def givers(anatomy: Anatomy, node: Node) -> Iterator[Node]:
    """Operands that may give their bytes to a result, where they die when it is computed."""
    for i in OPS[node.op].inplace:
        operand = node.inputs[i]
        if (
            operand in anatomy.position
            and anatomy.base[operand] is operand
            and operand.type == node.type
            and anatomy.order(operand) == anatomy.order(node)
            and node.inputs.count(operand) == 1
            and not _seen_otherwise(anatomy, operand, node)
        ):
            yield operand


def _seen_otherwise(anatomy: Anatomy, operand: Node, node: Node) -> bool:
    """Whether `node` also reads the operand's bytes through a view."""
    return any(parent is not operand and anatomy.base[parent] is operand for parent in node.inputs)


@dataclass(frozen=True)
class Turn:
    """A class of runs, after runs of another.

    Fields:
        of, before: positions of the two classes; None where it does not matter what ran before.
    """

    of: int
    before: int | None = None

    def named(self, kinds: Sequence[object]) -> str:
        """In words; `kinds` are the classes."""
        after = "" if self.before is None else f", after {kinds[self.before]}"
        return f"{kinds[self.of]}{after}" if kinds else "every run"


ANY = (Turn(0),)  # where turns are not told apart


@dataclass(frozen=True)
class Retention:
    """Which nodes are kept after the runs of which turns.

    Fields:
        after: node → positions of the turns after whose runs it is still there.
        turns: what is told apart.
        shared: nodes kept after all turns that share their bytes all the same, while a run has
            not computed them yet.
    """

    after: Mapping[Node, frozenset[int]]
    turns: tuple[Turn, ...] = ANY
    shared: frozenset[Node] = frozenset()

    @staticmethod
    def always(nodes: Iterable[Node], turns: tuple[Turn, ...] = ANY) -> Retention:
        """These nodes kept through everything."""
        return Retention(dict.fromkeys(nodes, frozenset(range(len(turns)))), turns)

    @property
    def nodes(self) -> frozenset[Node]:
        """What is kept after some turn."""
        return frozenset(node for node, turns in self.after.items() if turns)

    def there(self, before: int) -> frozenset[Node]:
        """What is there after a run of a turn."""
        return frozenset(node for node, turns in self.after.items() if before in turns)

    def is_partial(self, node: Node) -> bool:
        """Whether some runs write over it."""
        return len(self.after[node]) < len(self.turns) or node in self.shared


@dataclass(frozen=True)
class Life:
    """How a class's runs use a node that shares its bytes.

    Fields:
        from_start: an earlier value is read, or kept on.
        to_end: its value is kept.
    """

    from_start: bool
    to_end: bool


Lives: TypeAlias = Mapping[int, Mapping[Node, Life]]  # class → node → …; absent: not touched


def place(
    anatomy: Anatomy,
    retention: Retention,
    uses: Footprint,
    scratch_bytes: Mapping[Node, int],
    lives: Lives | None = None,
) -> Placement:
    """Lay out: kept inputs, always retained nodes stacked, the rest packed above.

    Args:
        lives: for each class, what its runs do with which nodes; may be left out where no node is
            partial.
    """
    keep = frozenset(node for node in retention.nodes if node in uses.hulls)
    partial = [n for n in anatomy.stored if n in keep and retention.is_partial(n)]
    slots: dict[Node, Slot] = {}
    top = 0
    for node in [*anatomy.kept, *(n for n in anatomy.stored if n in keep)]:
        box = Box.full(node.shape) if node.is_leaf else uses.hulls[node]
        extents = tuple(int(b - a) for a, b in box)
        slots[node] = Slot(top, extents, tuple(int(a) for a, _ in box), anatomy.order(node))
        if node.is_leaf or not retention.is_partial(node):
            top += aligned(slots[node].elements * node.type.itemsize)
    retained = frozenset([*anatomy.kept, *keep])
    shared = _Shared(anatomy, retained, uses, donors(anatomy, keep, uses.extents))
    spans = _spans(anatomy, shared.leader, lives or {} if partial else {})
    return shared.packed(slots, partial, scratch_bytes, spans, top)


Spans: TypeAlias = "list[tuple[int, int]]"  # half-open, in packing steps


def _spans(
    anatomy: Anatomy, leader: Mapping[Node, Node], lives: Lives
) -> Callable[[Node, LiveRange], Spans]:
    """When a node's bytes are in use: over the schedule, then over the runs of each class."""
    length = len(anatomy.schedule) + 1
    by_class: list[dict[Node, Life]] = []
    for k in sorted(lives):
        found: dict[Node, Life] = {}
        for node, life in lives[k].items():
            first = leader.get(node, node)
            old = found.get(first, life)
            found[first] = Life(old.from_start or life.from_start, old.to_end or life.to_end)
        by_class.append(found)

    def spans(node: Node, live: LiveRange) -> Spans:
        found = [(live.start, live.stop)]
        for i, lives_of in enumerate(by_class, 1):
            life, begin = lives_of.get(node), i * length
            if life is not None:
                start = 0 if life.from_start else live.start
                found.append((begin + start, begin + (length if life.to_end else live.stop)))
        return found

    return spans


def _buffer(name: str, size_bytes: int, spans: Spans) -> Buffer:
    gaps = tuple((a, b) for (_, a), (b, _) in pairwise(spans) if a < b)
    return Buffer(name, size_bytes, spans[0][0], spans[-1][1], gaps)


@dataclass(frozen=True)
class _Shared:
    """The part of the arena that nodes share: slices, what is kept through some classes, scratch.

    Fields:
        pairs: in-place results and their operands; a chain of them is one buffer.
    """

    anatomy: Anatomy
    retained: frozenset[Node]
    uses: Footprint
    pairs: dict[Node, Node]

    @cached_property
    def leader(self) -> dict[Node, Node]:
        """For every slice, the first owner of its bytes."""
        found: dict[Node, Node] = {}
        for node in self.slices:
            found[node] = found[self.pairs[node]] if node in self.pairs else node
        return found

    @cached_property
    def slices(self) -> list[Node]:
        return [n for n in self.anatomy.stored if n in self.uses.extents and n not in self.retained]

    def _together(self) -> Iterator[tuple[Node, tuple[int, ...]]]:
        """What one run holds of each buffer that several nodes own."""
        paired = {*self.pairs, *self.pairs.values()}
        for made in self.uses.made:
            hulls: dict[Node, Box] = {}
            for node in paired.intersection(made):
                first, box = self.leader[node], made[node]
                hulls[first] = hulls[first].hull(box) if first in hulls else box
            for first, box in hulls.items():
                yield first, tuple(map(int, box.extents))

    def packed(
        self,
        slots: dict[Node, Slot],
        partial: Sequence[Node],
        scratch_bytes: Mapping[Node, int],
        spans: Callable[[Node, LiveRange], Spans],
        top: int,
    ) -> Placement:
        """The whole map, given the slots of what is retained; `top` is where sharing begins."""
        anatomy, length = self.anatomy, len(self.anatomy.schedule) + 1
        extents: dict[Node, tuple[int, ...]] = {}
        ranges: dict[Node, LiveRange] = {}
        for node in self.slices:
            first, mine, live = self.leader[node], self.uses.extents[node], anatomy.live[node]
            if first is not node:
                mine = tuple(max(a, b) for a, b in zip(mine, extents[first], strict=True))
                live = LiveRange(ranges[first].start, max(live.stop, ranges[first].stop))
            extents[first], ranges[first] = mine, live
        for first, held in self._together():
            extents[first] = tuple(max(a, b) for a, b in zip(held, extents[first], strict=True))
        buffers = [_buffer(n.name, _size(n, extents[n]), spans(n, ranges[n])) for n in extents]
        buffers += [
            _buffer(n.name, _size(n, slots[n].extents), spans(n, anatomy.live[n])) for n in partial
        ]
        wanting = {node: size for node, size in scratch_bytes.items() if size}
        for node, size in wanting.items():
            at = anatomy.position[node]
            runs = spans(self.leader.get(node, node), LiveRange(at, at + 1))
            in_use = [(a - a % length + at, a - a % length + at + 1) for a, _ in runs]
            buffers.append(_buffer(f"{node.name} (scratch)", size, in_use))
        problem = Problem(tuple(buffers), alignment=ALIGNMENT)
        solution, bound = pack(problem), lower_bound(problem)
        for node in self.slices:
            first = self.leader[node]
            offset = top + solution.offsets[first.name]
            slots[node] = Slot(offset, extents[first], (0,) * node.rank, anatomy.order(node))
        for node in partial:
            slots[node] = replace(slots[node], offset_bytes=top + solution.offsets[node.name])
        scratch = {
            node: Scratch(top + solution.offsets[f"{node.name} (scratch)"], size)
            for node, size in wanting.items()
        }
        live_there = [(buffer.name, aligned(buffer.size_bytes)) for buffer in bound.buffers]
        kept_names = [
            (node.name, aligned(slots[node].elements * node.type.itemsize))
            for node in self.retained - frozenset(partial)
        ]
        return Placement(
            slots, self.retained, scratch, self.pairs, top + solution.height_bytes, top,
            top + bound.size_bytes, bound.step % length,
            tuple(sorted(live_there + kept_names, key=lambda item: (-item[1], item[0]))),
        )  # fmt: skip


def _size(node: Node, extents: tuple[int, ...]) -> int:
    count = node.type.itemsize
    for extent in extents:
        count *= extent
    return int(count)
