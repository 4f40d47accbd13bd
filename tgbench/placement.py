"""Where every node's bytes lie: one fixed map for a whole plan.

    0 ┌──────────────┐
      │ inputs       │  kept: the last value of every input
      │ K V K V …    │  retained: absolute coordinates, nobody else's bytes
      ├──────────────┤
      │ x  ┌─ q ─┐   │  the rest: one slice each, live from its definition to its last use;
      │ ───┘ s │ └── │  slices that are never live together may share bytes (alias)
      └──────────────┘

A slice is sized for the largest one that the planned buckets need, and holds one box at a time.
An in-place result takes the bytes of an operand that dies there. Kernels' scratch memory is one
more buffer, live for one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tgbench.anatomy import Anatomy, LiveRange
from tgbench.coords import value_of
from tgbench.graph import Node
from tgbench.optable import OPS
from tgbench.packing import Buffer, Problem, lower_bound, pack
from tgbench.propagate import Step, Storage
from tgbench.regions import Box, row_major
from tgbench.rules import Rules

ALIGNMENT = 64


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Slot:
    """The bytes of one node.

    Fields:
        offset_bytes: from the start of the arena.
        extents: elements per dimension that fit, laid out row-major.
        start: coordinates of the first element of a retained node; a slice's move with each run.
    """

    offset_bytes: int
    extents: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return row_major(self.extents)

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
        retained: nodes whose bytes nobody else overlaps (inputs and states among them).
        scratch: per node whose kernel needs some.
        donors: in-place result → the operand whose bytes it takes over.
        size_bytes: the arena's size.
        kept_bytes: inputs, states and retained nodes.
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
        """For every slice, the nodes whose computation may write over it: who invalidates whom."""
        slices = [node for node in self.slots if node not in self.retained]
        start = np.array([self.slots[n].offset_bytes for n in slices], dtype=np.int64)
        stop = start + [aligned(self.size_of(n)) for n in slices]
        writers = [(n, a, b) for n, a, b in zip(slices, start, stop, strict=True)]
        writers += [
            (n, s.offset_bytes, s.offset_bytes + s.size_bytes) for n, s in self.scratch.items()
        ]
        result: dict[Node, list[Node]] = {node: [] for node in slices}
        for writer, low, high in writers:
            for i in np.flatnonzero((start < high) & (low < stop)):
                if slices[i] is not writer:
                    result[slices[i]].append(writer)
        return {node: tuple(dict.fromkeys(found)) for node, found in result.items()}

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


@dataclass(frozen=True)
class Footprint:
    """What a set of runs touches of each stored node.

    Fields:
        hulls: everything touched, in absolute coordinates (for retained nodes).
        extents: the largest slice of any one run.
    """

    hulls: Mapping[Node, Box]
    extents: Mapping[Node, tuple[int, ...]]

    def join(self, other: Footprint) -> Footprint:
        hulls, extents = dict(self.hulls), dict(self.extents)
        for node, box in other.hulls.items():
            hulls[node] = hulls[node].hull(box) if node in hulls else box
        for node, sizes in other.extents.items():
            mine = extents.get(node, sizes)
            extents[node] = tuple(max(a, b) for a, b in zip(mine, sizes, strict=True))
        return Footprint(hulls, extents)


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
    for output in [*anatomy.graph.outputs.values(), *anatomy.graph.updates.values()]:
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
    return Footprint(hulls, sizes)


def donors(
    anatomy: Anatomy, retained: frozenset[Node], extents: Mapping[Node, tuple[int, ...]]
) -> dict[Node, Node]:
    """In-place pairs: a result and the operand that dies where it is computed."""
    outputs = {anatomy.base[node] for node in anatomy.graph.outputs.values()}
    outputs |= {anatomy.base[node] for node in anatomy.graph.updates.values()}
    found: dict[Node, Node] = {}
    given: set[Node] = set()
    for node in anatomy.stored:
        if node in retained or node not in extents:
            continue
        for i in OPS[node.op].inplace:
            operand = node.inputs[i]
            if (
                operand in extents
                and operand not in retained
                and operand not in outputs
                and operand not in given
                and operand.type == node.type
                and node.inputs.count(operand) == 1
                and anatomy.live[operand].stop == anatomy.position[node] + 1
                and not _seen_otherwise(anatomy, operand, node)
            ):
                found[node] = operand
                given.add(operand)
                break
    return found


def _seen_otherwise(anatomy: Anatomy, operand: Node, node: Node) -> bool:
    """Whether `node` also reads the operand's bytes through a view."""
    return any(parent is not operand and anatomy.base[parent] is operand for parent in node.inputs)


def place(
    anatomy: Anatomy,
    retained: Iterable[Node],
    uses: Footprint,
    scratch_bytes: Mapping[Node, int],
) -> Placement:
    """Lay out: kept inputs, retained nodes stacked, the slices packed above."""
    keep = frozenset([*anatomy.kept, *(node for node in retained if node in uses.hulls)])
    slots: dict[Node, Slot] = {}
    top = 0
    for node in [*anatomy.kept, *(n for n in anatomy.stored if n in keep)]:
        box = Box.full(node.shape) if node.is_leaf else uses.hulls[node]
        extents = tuple(int(b - a) for a, b in box)
        slots[node] = Slot(top, extents, tuple(int(a) for a, _ in box))
        top += aligned(slots[node].elements * node.type.itemsize)
    pairs = donors(anatomy, keep, uses.extents)
    return _pack_slices(anatomy, keep, uses, scratch_bytes, slots, pairs, top)


def _pack_slices(
    anatomy: Anatomy,
    keep: frozenset[Node],
    uses: Footprint,
    scratch_bytes: Mapping[Node, int],
    slots: dict[Node, Slot],
    pairs: dict[Node, Node],
    top: int,
) -> Placement:
    slices = [node for node in anatomy.stored if node in uses.extents and node not in keep]
    leader: dict[Node, Node] = {}
    extents: dict[Node, tuple[int, ...]] = {}
    ranges: dict[Node, LiveRange] = {}
    for node in slices:
        first = leader[node] = leader[pairs[node]] if node in pairs else node
        mine, live = uses.extents[node], anatomy.live[node]
        if first is not node:
            mine = tuple(max(a, b) for a, b in zip(mine, extents[first], strict=True))
            live = LiveRange(ranges[first].start, max(live.stop, ranges[first].stop))
        extents[first], ranges[first] = mine, live
    buffers = [
        Buffer(node.name, _size(node, extents[node]), ranges[node].start, ranges[node].stop)
        for node in extents
    ]
    buffers += [
        Buffer(f"{node.name} (scratch)", size, anatomy.position[node], anatomy.position[node] + 1)
        for node, size in scratch_bytes.items()
        if size
    ]
    problem = Problem(tuple(buffers), alignment=ALIGNMENT)
    solution, bound = pack(problem), lower_bound(problem)
    for node in slices:
        offset = top + solution.offsets[leader[node].name]
        slots[node] = Slot(offset, extents[leader[node]], (0,) * node.rank)
    scratch = {
        node: Scratch(top + solution.offsets[f"{node.name} (scratch)"], size)
        for node, size in scratch_bytes.items()
        if size
    }
    live_there = [(buffer.name, aligned(buffer.size_bytes)) for buffer in bound.buffers]
    kept_names = [(node.name, aligned(slots[node].elements * node.type.itemsize)) for node in keep]
    return Placement(
        slots, keep, scratch, pairs, top + solution.height_bytes, top, top + bound.size_bytes,
        bound.step, tuple(sorted(live_there + kept_names, key=lambda item: (-item[1], item[0]))),
    )  # fmt: skip


def _size(node: Node, extents: tuple[int, ...]) -> int:
    count = node.type.itemsize
    for extent in extents:
        count *= extent
    return int(count)
