"""Region questions about one op application, answered from the op table and remembered.

    dirty(call, input regions)   → output region that can differ
    needed(call, output region)  → one region per input that must hold its value
    reads(call, output box)      → one box per input that a kernel touches
    rounded(call, region)        → the whole tiles around it, where bits must not depend on the run

For a fused op each question is put to its decomposition. Answers are memoised by (call, regions),
so the layers of a model, which share their calls, share the work too; the guards of a remembered
answer are replayed (`coords.Memo`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tgbench.base.memo import Allowance
from tgbench.base.regions import EMPTY, Box, Left, Region, coarsened, union
from tgbench.base.sweeps import around, is_free
from tgbench.base.tiles import Tiling
from tgbench.graph.graph import Expansion, Node, outline_of
from tgbench.graph.op_table import Call
from tgbench.graph.ops.broadcasting import down

MOST_BOXES = 64  # of what a change reaches, or a run needs: each is a call of its own


class Rules:
    """The memoised rules; one instance serves any number of graphs.

    Args:
        tilings: of calls whose elements are computed in tiles; none of the others are.
        unpacked: calls whose weights are read as they lie, by kernels that want no other layout.
        allowance: of bytes for what is remembered, here and by all who follow these rules.

    Fields:
        serves_any_size: whether weights of a call lie so that the same code serves any size.
    """

    def __init__(
        self,
        tilings: Mapping[Call, Tiling] | None = None,
        unpacked: frozenset[Call] = frozenset(),
        allowance: Allowance | None = None,
    ) -> None:
        self.allowance = Allowance() if allowance is None else allowance
        self.unpacked = unpacked
        self.exact = None if tilings is None else "bitwise"  # as a plan says it
        self.tilings = tilings or {}
        memo = self.allowance.memo
        self._dirty, self._needed, self._reads, self._atomic = memo(), memo(), memo(), memo()
        self._unions, self._differences, self._shown = memo(), memo(), memo()
        self._lacking, self._joined, self._rounded = memo(), memo(), memo()
        self.touched, self.seen = memo(), memo()  # by computing nodes of a schedule
        self.covered = memo()  # what is computed of a region of numbers
        self.serves_any_size: Callable[[Call], bool] = lambda call: False

    def rounded(self, call: Call, region: Region) -> Region:
        """The tiles of a call that a region touches; the region itself where it has no tiling."""
        tiling = self.tilings.get(call)
        if tiling is None or not region.boxes:
            return region
        return self._rounded.get((call, region), tiling.rounded, region, call.out.shape)

    def parts(self, call: Call, region: Region) -> Iterator[Box]:
        """What of a region each kernel call computes: its boxes, inside the chunks of a tiling."""
        tiling = self.tilings.get(call)
        for box in region:
            yield from (box,) if tiling is None else tiling.calls(box)

    def union(self, a: Region, b: Region) -> Region:
        """`a.union(b)`, remembered: equal layers ask it of equal regions."""
        if not a.boxes or a is b:
            return b
        return self._unions.get((a, b), _union, a, b) if b.boxes else a

    def subtract(self, a: Region, b: Region) -> Region:
        """`a.subtract(b)`, remembered."""
        if not a.boxes or not b.boxes:
            return a
        return EMPTY if a is b else self._differences.get((a, b), a.subtract, b)

    def lacking(self, left: Left, region: Region) -> Region:
        """`left.lacking(region)`, remembered."""
        if not left.dirty.boxes:
            return self.subtract(region, left.valid)
        return self._lacking.get((left, region), left.lacking, region)

    def joined(self, left: Left, computed: Region) -> Region:
        """`left.joined(computed)`, remembered."""
        if not left.valid.boxes:
            return computed
        return self._joined.get((left, computed), left.joined, computed)

    def dirty(self, call: Call, regions: tuple[Region, ...]) -> Region:
        """What of the output can differ when these parts of the inputs do."""
        if not any(region.boxes for region in regions):
            return EMPTY
        return self._dirty.get((call, regions), self._few_dirty, call, regions)

    def needed(self, call: Call, region: Region) -> tuple[Region, ...]:
        """What of each input must be right for this part of the output to be."""
        return self.needed_beside(call, begun(call, region))

    def needed_beside(self, call: Call, region: Region) -> tuple[Region, ...]:
        """The same where rows before are there, of an op that goes on from them."""
        if not region.boxes:
            return (EMPTY,) * len(call.inputs)
        return self._needed.get((call, region), self._few_needed, call, region)

    def reads(self, call: Call, box: Box) -> tuple[Box | None, ...]:
        """The box of each input that a kernel touches to compute this box of the output.

        It is the hull of what is needed, or more: an aligned input is read at exactly the output
        box. What is not needed of it only has to be readable (known, or any finite number).
        """
        return self._read(call, box).boxes

    def reads_needed(self, call: Call, box: Box) -> tuple[bool, ...]:
        """For each input, whether all that is read of it is needed, and so computed.

        What is not needed may never have been written: known elements, and what lies between two
        parts that are needed.
        """
        return self._read(call, box).are_needed

    def _read(self, call: Call, box: Box) -> _Reads:
        return self._reads.get((call, box), self._find_reads, call, box)

    def shown(self, call: Call, box: Box) -> Box:
        """The box of its input that a view shows in a box of its own, known elements and all."""
        return self._shown.get((call, box), self._find_shown, call, box)

    def _find_shown(self, call: Call, box: Box) -> Box:
        return self._parts(call, box)[0].hull()

    def _few_dirty(self, call: Call, regions: tuple[Region, ...]) -> Region:
        return _few(self._find_dirty(call, regions))

    def _find_dirty(self, call: Call, regions: tuple[Region, ...]) -> Region:
        if call.op.is_fused:
            return self._dirty_through(outline_of(call), regions)
        assert call.op.forward is not None
        return less_known(call, call.op.forward(call, regions))

    def _dirty_through(self, outline: Expansion, regions: tuple[Region, ...]) -> Region:
        dirty: dict[Node, Region] = dict(zip(outline.inputs, regions, strict=True))
        for node in outline.nodes:
            if not node.is_leaf:
                parents = tuple(dirty.get(parent, EMPTY) for parent in node.inputs)
                dirty[node] = self.dirty(node.call, parents)
        return dirty.get(outline.result, EMPTY)

    def _few_needed(self, call: Call, region: Region) -> tuple[Region, ...]:
        return tuple(map(_few, self._find_needed(call, region)))

    def _find_needed(self, call: Call, region: Region) -> tuple[Region, ...]:
        if call.op.is_fused:
            return self._needed_through(outline_of(call), region)
        parts = [self._parts(call, box) for box in region]
        result = [_joined(region, of_input) for of_input in zip(*parts, strict=True)]
        return tuple(
            _less_fact(call, i, part) if part.boxes else part for i, part in enumerate(result)
        )

    def _needed_through(self, outline: Expansion, region: Region) -> tuple[Region, ...]:
        needed: dict[Node, Region] = {outline.result: region}
        for node in reversed(outline.nodes):
            if node.is_leaf or node not in needed:
                continue
            for parent, part in zip(node.inputs, self.needed(node.call, needed[node]), strict=True):
                needed[parent] = needed[parent].union(part) if parent in needed else part
        return tuple(needed.get(node, EMPTY) for node in outline.inputs)

    def _find_reads(self, call: Call, box: Box) -> _Reads:
        """An atomic rule says what its kernel looks at, known elements that count among it."""
        needed = self.needed_beside(call, Region((box,)))
        parts = self._parts(call, box) if call.op.needed else needed
        boxes: list[Box | None] = []
        for i, region in enumerate(parts):
            hull = region.hull() if region.boxes else None
            if i in call.op.aligned:
                exact = down(box, call.in_shapes[i]).hull()
                hull = exact if hull is None else hull.hull(exact)
            boxes.append(hull)
        facts = call.facts or (None,) * len(boxes)
        are_needed = (
            fact is None and part.boxes == (hull,)
            for fact, part, hull in zip(facts, needed, boxes, strict=True)
        )
        return _Reads(tuple(boxes), tuple(are_needed))

    def _parts(self, call: Call, box: Box) -> tuple[Region, ...]:
        """What an atomic rule needs for one box."""
        assert call.op.needed is not None
        return self._atomic.get((call, box), call.op.needed, call, box)


def _few(region: Region) -> Region:
    """A region around it of boxes that can be thought about; all that a sweep meets stay apart."""
    if len(region) <= MOST_BOXES or is_free(region):
        return region
    return coarsened(region, MOST_BOXES)


def begun(call: Call, region: Region) -> Region:
    """Of an op that goes on from row to row: from the first one to the last of a region."""
    if call.op.continues is None or not region.boxes:
        return region
    (_, stop), *sides = region.hull()
    return Region((Box(((0, stop), *sides)),))


def row_before(call: Call, box: Box) -> Box | None:
    """Of such an op, the row that a box goes on from; None where it begins with an input."""
    start, _ = box[0] if call.op.continues is not None else (0, 0)
    return Box(((start - 1, start), *box[1:])) if start > 0 else None


def _joined(region: Region, parts: Sequence[Region]) -> Region:
    """What all boxes of a region need of an input: most ops need just these boxes."""
    is_same = all(part.boxes == (box,) for part, box in zip(parts, region, strict=True))
    return region if is_same else union(parts)


def _union(a: Region, b: Region) -> Region:
    """A region around it in a sweep."""
    return around(*a, *b) if is_free(a) or is_free(b) else a.union(b)


@dataclass(frozen=True, slots=True)
class _Reads:
    """The box of each input that a kernel touches, and whether all of it is needed."""

    boxes: tuple[Box | None, ...]
    are_needed: tuple[bool, ...]


def less_known(call: Call, region: Region) -> Region:
    """A region of the output without its known margins.

    Boxes of an op that computes dimensions whole stay in one piece: known elements between open
    ones are part of the line that its kernel works on.
    """
    fact = call.fact
    if fact is None or not fact.hard or not region.boxes:
        return region
    if not call.op.whole(call):
        return fact.open.trim(region)
    trimmed = [fact.open.trim(Region((box,))) for box in region]
    return Region.of(*(part.hull() for part in trimmed if part.boxes))


def _less_fact(call: Call, i: int, region: Region) -> Region:
    """A region of an input without its known margins; constants stay, they are read as they are."""
    fact = call.facts[i] if call.facts else None
    if fact is None or not fact.hard or fact.constant is not None:
        return region
    return fact.open.trim(region)
