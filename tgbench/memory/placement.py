"""Where every node's bytes lie: one fixed map for a whole plan.

    0 ┌──────────────┐
      │ inputs       │  kept: the last value of every input
      │ K V K V …    │  retained through every run: nobody else's bytes
      ├──────────────┤
      │ x  ┌─ q ─┐ h │  the rest: one slice each, live from its definition to its last use;
      │ ───┘ s │ └── │  slices that are never live together may share bytes (alias)
      └──────────────┘

Retained nodes are laid out in absolute coordinates. One that is kept after the runs of some classes
only (h) shares its bytes with others while it is not there. A sliding one keeps a window of itself,
which moves along with what runs compute: what it still covers is copied to its front then.

    earlier   ▓▓▓▓▓▓▓▓▓▓            rows t − 10 to t of as many as there may be
    now         ▓▓▓▓▓▓▓▓░░          two more

A slice is sized for the largest one that the planned buckets need, and holds one box at a time.
An in-place result takes the bytes of an operand that dies there. Kernels' scratch memory is one
more buffer, live for one step.

What is computed on another device lies there, whole and kept, one value behind the other, each
device in a space of its own: offsets there begin at a multiple of `SPACE_BYTES`, so that one number
says where something lies, and none of it meets what lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TypeAlias

import numpy as np

from tgbench.base.coords import Coord, value_of
from tgbench.base.regions import Box, Region, in_order, row_major
from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.overlaps import Overlaps
from tgbench.runs.propagate import Step, Storage
from tgbench.runs.rules import Rules

ALIGNMENT = 64
MOST_TOGETHER = 4  # ways in which a node shares bytes with others, that are remembered
SPACE_BYTES = 1 << 56  # more than any device has
MOST_DEVICES = 64  # whose spaces 64 bits tell apart


def is_elsewhere(offset_bytes: int) -> bool:
    """Whether something lies on another device than the session's."""
    return offset_bytes >= SPACE_BYTES


def told_offset(offset_bytes: int) -> str:
    """Where something lies, in words.

    >>> told_offset(128), told_offset(SPACE_BYTES + 64)
    ('128', '64 of another device')
    """
    if not is_elsewhere(offset_bytes):
        return str(offset_bytes)
    return f"{offset_bytes % SPACE_BYTES} of another device"


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Slot:
    """The bytes of one node.

    Fields:
        offset_bytes: from the start of the arena.
        extents: elements per dimension that fit.
        start: coordinates of the first element of a retained node; a slice's move with each run,
            and of a sliding node they are the lowest there are.
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

    def holds(self, box: Box, start: Sequence[Coord]) -> bool:
        """Whether a box lies inside, where its first element has these coordinates."""
        sides = zip(box, start, self.extents, strict=True)
        return not any(a < first or first + extent < b for (a, b), first, extent in sides)


def elsewhere(scheduled: ScheduledGraph) -> dict[Node, Slot]:
    """Where everything lies that is computed on other devices."""
    slots: dict[Node, Slot] = {}
    ends = {name: i * SPACE_BYTES for i, name in enumerate(scheduled.devices, 1)}
    for node in scheduled.elsewhere:
        at = ends[node.type.device]
        slots[node] = Slot(at, node.shape, (0,) * node.rank, scheduled.order(node))
        ends[node.type.device] = at + aligned(node.type.size_bytes)
    return slots


def elsewhere_bytes(scheduled: ScheduledGraph) -> dict[str, int]:
    """What values take on other devices, scratch memory apart."""
    found = dict.fromkeys(scheduled.devices, 0)
    for node in scheduled.elsewhere:
        found[node.type.device] += aligned(node.type.size_bytes)
    return found


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
        sliding: nodes that nobody writes over, of which a window is kept; along which dimension.
        scratch: per node whose kernel needs some.
        donors: in-place result → the operand whose bytes it takes over.
        size_bytes: the arena's size, other devices apart.
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
    sliding: Mapping[Node, int] = field(default_factory=dict)

    @cached_property
    def overlaps(self) -> Overlaps:
        """For every computed node, those whose computation may write over it."""
        nodes = [node for node in self.slots if not node.is_leaf]
        start = np.array([self.slots[n].offset_bytes for n in nodes], dtype=np.int64)
        stop = start + [aligned(self.size_of(n)) for n in nodes]
        rooms = [(room.offset_bytes, room.size_bytes) for room in self.scratch.values()]
        room_start, room_bytes = np.array(rooms, dtype=np.int64).reshape(-1, 2).T
        low, high = np.append(start, room_start), np.append(stop, room_start + room_bytes)
        return Overlaps(
            nodes, [*nodes, *self.scratch], (low < stop[:, None]) & (start[:, None] < high)
        )

    @cached_property
    def lasting(self) -> frozenset[Node]:
        """What is kept, whole or in a window."""
        return self.retained.union(self.sliding)

    @property
    def always(self) -> tuple[Node, ...]:
        """What is kept and no run writes over."""
        return tuple(node for node in self.lasting if not self.overlaps.get(node))

    @property
    def reach_bytes(self) -> int:
        """Where the last slot or scratch ends, in the arena."""
        return self.reach_in(0)

    def reach_in(self, space: int) -> int:
        """The same in one of the spaces: how many bytes there are taken."""
        ends = [s.offset_bytes + aligned(self.size_of(n)) for n, s in self.slots.items()]
        ends += [s.offset_bytes + aligned(s.size_bytes) for s in self.scratch.values()]
        low = space * SPACE_BYTES
        return max((end - low for end in ends if low < end <= low + SPACE_BYTES), default=0)

    def size_of(self, node: Node) -> int:
        return self.slots[node].elements * node.type.itemsize

    def has_room(self, touched: Mapping[Node, Box]) -> bool:
        """Whether there is room for what one run touches of nodes, scratch memory apart."""
        boxes: dict[Node, Box] = {}
        for node, box in touched.items():
            first = node if node in self.retained else self.group(node)
            boxes[first] = boxes[first].hull(box) if first in boxes else box
        return all(
            node in self.slots and self.slots[node].holds(box, self.begins(node, box))
            for node, box in boxes.items()
        )

    def begins(self, node: Node, box: Box) -> tuple[Coord, ...]:
        """Where a node's bytes begin in a run that touches a box of it.

        A window ends where the box does: behind it lies as much of what was as there is room for.
        """
        slot, axis = self.slots[node], self.sliding.get(node)
        if node in self.retained:
            return slot.start
        if axis is None:
            return box.starts
        first = box[axis][1] - slot.extents[axis]
        if first > slot.start[axis]:
            return (*slot.start[:axis], first, *slot.start[axis + 1 :])
        return slot.start

    def group(self, node: Node) -> Node:
        """The first owner of the bytes that an in-place result took over."""
        while node in self.donors:
            node = self.donors[node]
        return node

    def storage(self, scheduled: ScheduledGraph) -> Storage:
        """What propagation has to know of this map."""
        return Storage(
            scheduled.views, scheduled.frozen, self.retained, self.overlaps, frozenset(self.sliding)
        )


class WrittenBoxes(dict[Node, Box]):
    """What a run touches of each node that it writes."""

    def __init__(self, boxes: Mapping[Node, Box]) -> None:
        super().__init__(boxes)
        self._together: dict[tuple[Node, ...], tuple[int, ...]] = {}

    def together(self, nodes: tuple[Node, ...]) -> tuple[int, ...]:
        """How large a buffer of several nodes is, of which this is there at once; () where nothing
        is. Remembered: maps of one graph share bytes in few ways.
        """
        found = self._together.get(nodes)
        if found is None:
            boxes = [self[node] for node in nodes if node in self]
            found = tuple(map(int, reduce(hull_of, boxes).extents)) if boxes else ()
            if len(self._together) > MOST_TOGETHER * len(self):
                self._together.clear()
            self._together[nodes] = found
        return found


@dataclass(frozen=True)
class Footprint:
    """What a set of runs touches of each stored node.

    Fields:
        hulls: everything touched, in absolute coordinates (for retained nodes).
        extents: the largest slice of any one run.
        made: per run, what it touches of each node that it writes: nodes that turn out to be one
            buffer hold all of theirs at once.
        behind, ahead: nodes of which some run reads what lies before all that it computes of them,
            and does not come to their end; and what lies after that.
    """

    hulls: Mapping[Node, Box]
    extents: Mapping[Node, tuple[int, ...]]
    made: tuple[WrittenBoxes, ...] = ()
    behind: frozenset[Node] = frozenset()
    ahead: frozenset[Node] = frozenset()

    @staticmethod
    def joined(parts: Iterable[Footprint]) -> Footprint:
        """What several sets of runs touch."""
        boxes: dict[Node, dict[Box, None]] = {}
        sizes: dict[Node, dict[tuple[int, ...], None]] = {}
        made: list[WrittenBoxes] = []
        behind, ahead = set[Node](), set[Node]()
        for part in parts:
            for node, box in part.hulls.items():
                boxes.setdefault(node, {})[box] = None
            for node, size in part.extents.items():
                sizes.setdefault(node, {})[size] = None
            made += part.made
            behind |= part.behind
            ahead |= part.ahead
        hulls = {node: reduce(Box.hull, some) for node, some in boxes.items()}
        extents = {node: reduce(largest, some) for node, some in sizes.items()}
        return Footprint(hulls, extents, tuple(made), frozenset(behind), frozenset(ahead))


def largest(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The larger extent of each dimension.

    >>> largest((1, 8), (4, 2))
    (4, 8)
    """
    return tuple(map(max, a, b))


def touched(step: Step, scheduled: ScheduledGraph, rules: Rules) -> dict[Node, Box]:
    """Per node with bytes, the hull of what a run computes and reads of it."""
    boxes: dict[Node, Box] = {}
    for node, region in step.compute.items():
        for base, box in touched_by(node, region, scheduled, rules):
            boxes[base] = hull_of(boxes[base], box) if base in boxes else box
    for output in scheduled.graph.ends:
        if output in step.needed and output not in scheduled.frozen and not output.is_leaf:
            for box in step.needed[output]:
                base, box = scheduled.base_box(output, box, rules)
                box = scheduled.stored_box(base, box)
                boxes[base] = hull_of(boxes[base], box) if base in boxes else box
    return boxes


def hull_of(one: Box, other: Box) -> Box:
    """The smallest box around both: most runs touch the same of the same nodes."""
    return one if one == other else one.hull(other)


Touched: TypeAlias = "tuple[tuple[Node, Box], ...]"


def touched_by(node: Node, region: Region, scheduled: ScheduledGraph, rules: Rules) -> Touched:
    """What computing a region of a node touches, in order; remembered."""
    key = node, region, scheduled.copied
    found: Touched = rules.touched.get(key, _touched_by, node, region, scheduled, rules)
    return found


def _touched_by(node: Node, region: Region, scheduled: ScheduledGraph, rules: Rules) -> Touched:
    boxes: dict[Node, Box] = {}

    def touch(base: Node, box: Box) -> None:
        boxes[base] = hull_of(boxes[base], box) if base in boxes else box

    for box in region:
        touch(node, box)
        for parent, read in zip(node.inputs, rules.reads(node.call, box), strict=True):
            if read is not None and parent not in scheduled.frozen:
                touch(*scheduled.base_box(parent, read, rules))
    return tuple((base, scheduled.stored_box(base, box)) for base, box in boxes.items())


def footprint(step: Step, scheduled: ScheduledGraph, rules: Rules) -> Footprint:
    """What one run touches, as numbers."""
    hulls = {
        node: Box((value_of(a), value_of(b)) for a, b in box) if box.moves else box
        for node, box in touched(step, scheduled, rules).items()
        if not node.is_leaf
    }
    sizes = {node: tuple(map(value_of, box.extents)) for node, box in hulls.items()}
    made = WrittenBoxes(
        {n: box for n, box in hulls.items() if n in step.compute or n in step.filled}
    )
    around = {node: _around(node, made[node], step.compute.get(node)) for node in made}
    behind = frozenset(node for node, (is_behind, _) in around.items() if is_behind)
    ahead = frozenset(node for node, (_, is_ahead) in around.items() if is_ahead)
    return Footprint(hulls, sizes, (made,), behind, ahead)


def _around(node: Node, box: Box, computed: Region | None) -> tuple[bool, bool]:
    """Whether a box begins before what is computed of a node, and whether it ends after that.

    Where it ends with the node, nobody knows what would be read there.
    """
    if computed is None:
        return False, True
    sides = [
        (
            value_of(start) < value_of(own[0]) and value_of(stop) < size,
            value_of(stop) > value_of(own[1]),
        )
        for (start, stop), own, size in zip(box, computed.hull(), node.shape, strict=True)
    ]
    return any(before for before, _ in sides), any(after for _, after in sides)


def donors(
    scheduled: ScheduledGraph, retained: frozenset[Node], extents: Mapping[Node, tuple[int, ...]]
) -> dict[Node, Node]:
    """In-place pairs: a result and the operand that dies where it is computed."""
    outputs = {scheduled.base[node] for node in scheduled.graph.ends}
    found: dict[Node, Node] = {}
    given: set[Node] = set()
    for node in scheduled.stored:
        if node in retained or node not in extents:
            continue
        for operand in givers(scheduled, node):
            if (
                operand in extents
                and operand not in retained
                and operand not in outputs
                and operand not in given
                and scheduled.live[operand].stop == scheduled.position[node] + 1
            ):
                found[node] = operand
                given.add(operand)
                break
    return found


def givers(scheduled: ScheduledGraph, node: Node) -> Iterator[Node]:
    """Operands that may give their bytes to a result, where they die when it is computed."""
    for i in OPS[node.op].inplace:
        operand = node.inputs[i]
        if (
            operand in scheduled.position
            and scheduled.base[operand] is operand
            and operand.type == node.type
            and scheduled.order(operand) == scheduled.order(node)
            and node.inputs.count(operand) == 1
            and not _seen_otherwise(scheduled, operand, node)
        ):
            yield operand


def _seen_otherwise(scheduled: ScheduledGraph, operand: Node, node: Node) -> bool:
    """Whether `node` also reads the operand's bytes through a view."""
    return any(
        parent is not operand and scheduled.base[parent] is operand for parent in node.inputs
    )


@dataclass(frozen=True)
class Turn:
    """A class of runs, after runs of another.

    Fields:
        of, before: positions of the class, and of the last other one before it, however often this
            one has run since; None where it does not matter.
        again: whether this class ran last, or the run is the first in its row; None for both.
    """

    of: int
    before: int | None = None
    again: bool | None = None

    def holds(self, run: Turn) -> bool:
        """Whether a run that is told in full is one of this turn."""
        return (
            run.of == self.of
            and self.before in (None, run.before)
            and self.again in (None, run.again)
        )

    def named(self, kinds: Sequence[object]) -> str:
        """In words; `kinds` are the classes."""
        after = "" if self.before is None else f", after {kinds[self.before]}"
        row = {None: "", False: ", first in a row", True: ", again"}[self.again]
        return f"{kinds[self.of]}{after}{row}" if kinds else "every run"


ANY = (Turn(0),)  # where turns are not told apart


@dataclass(frozen=True)
class Retention:
    """Which nodes are kept after the runs of which turns.

    Fields:
        after: node → positions of the turns after whose runs it is still there.
        turns: what is told apart.
        shared: nodes kept after all turns that share their bytes all the same, while a run has
            not computed them yet.
        may_slide: nodes of which a window is enough, where that takes less.
    """

    after: Mapping[Node, frozenset[int]]
    turns: tuple[Turn, ...] = ANY
    shared: frozenset[Node] = frozenset()
    may_slide: frozenset[Node] = frozenset()

    @staticmethod
    def always(
        nodes: Iterable[Node],
        turns: tuple[Turn, ...] = ANY,
        may_slide: frozenset[Node] = frozenset(),
    ) -> Retention:
        """These nodes kept through everything."""
        after = dict.fromkeys(nodes, frozenset(range(len(turns))))
        return Retention(after, turns, may_slide=may_slide)

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
