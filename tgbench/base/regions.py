"""Boxes and regions: which elements of a tensor.

    Box      one half-open interval per dimension
    Region   a set of elements, as disjoint boxes in one canonical order
    Left     a region less another, not worked out

A region is kept *banded*: cut along dimension 0 at every start and stop, the cross-section of each
band is a region of one dimension less, and neighbouring bands with equal cross-sections are one.
Two regions with the same elements are therefore the same boxes.

    dirty row 2 and dirty column 3 of a 5 × 5 matmul (a cross, not its bounding box):

        · · · # ·      [0:2, 3:4]
        · · · # ·
        # # # # #      [2:3, 0:5]
        · · · # ·      [3:5, 3:4]
        · · · # ·

Coordinates are `coords.Coord`: plain integers, or forms that follow a bucket's origin. All code
here compares with `<` and `same`, never with `==`, so that forms record their guards.

The banded form generalises the y-x bands of the X11 server's Region to any rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, reduce
from itertools import chain, pairwise
from typing import TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tgbench.base.bands import (
    DIFFERENCE,
    FAR,
    INTERSECTION,
    UNION,
    How,
    Section,
    banded,
    combined,
)
from tgbench.base.coords import (
    Coord,
    Moving,
    fixed,
    highest,
    larger,
    lowest,
    moves_freely,
    same,
    same_anywhere,
    smaller,
    value_of,
)

MOST_LISTED, MOST_BANDED = 1024, 4096  # boxes of a region in a file, and once they are banded
MANY = 16  # boxes of a region, of which those near another one are looked for together

Interval: TypeAlias = "tuple[Coord, Coord]"
Index: TypeAlias = "tuple[slice, ...]"
Size = TypeVar("Size", int, "int | Moving")


class Box(tuple[Interval, ...]):
    """One half-open interval per dimension, never empty: `Box(((0, 4), (2, 3)))`."""

    __slots__ = ()

    @staticmethod
    def full(shape: Sequence[Coord]) -> Box:
        return Box((0, size) for size in shape)

    @property
    def starts(self) -> tuple[Coord, ...]:
        return tuple([start for start, _ in self])

    @property
    def extents(self) -> tuple[Coord, ...]:
        return tuple([stop - start for start, stop in self])

    @property
    def elements(self) -> int:
        """How many elements, where one stands."""
        count = 1
        for start, stop in self:
            if type(start) is int and type(stop) is int:
                count *= stop - start
            else:
                count *= value_of(stop) - value_of(start)
        return count

    def intersect(self, other: Box) -> Box | None:
        result = []
        for mine, (c, d) in zip(self, other, strict=True):
            a, b = mine
            start = (a if c <= a else c) if type(a) is type(c) is int else larger(a, c)
            stop = (b if b <= d else d) if type(b) is type(d) is int else smaller(b, d)
            if not start < stop:
                return None
            result.append(mine if start is a and stop is b else (start, stop))
        return Box(result)

    def contains(self, other: Box) -> bool:
        return all(a <= c and d <= b for (a, b), (c, d) in zip(self, other, strict=True))

    def hull(self, other: Box) -> Box:
        sides = zip(self, other, strict=True)
        return Box([(lowest(a, c), highest(b, d)) for (a, b), (c, d) in sides])

    def subtract(self, other: Box) -> list[Box]:
        """What is left of this box: at most two disjoint pieces per dimension."""
        inner = self.intersect(other)
        if inner is None:
            return [self]
        pieces: list[Box] = []
        core = list(self)
        for axis, ((a, b), (c, d)) in enumerate(zip(self, inner, strict=True)):
            if a < c:
                pieces.append(Box([*core[:axis], (a, c), *core[axis + 1 :]]))
            if d < b:
                pieces.append(Box([*core[:axis], (d, b), *core[axis + 1 :]]))
            core[axis] = (c, d)
        return pieces

    def at(self, origin: Sequence[int]) -> Box:
        """This box at another origin, as plain integers."""
        if not self.moves:
            return self
        return Box(
            [
                (
                    start.at(origin) if type(start) is Moving else start,
                    stop.at(origin) if type(stop) is Moving else stop,
                )
                for start, stop in self
            ]
        )

    @property
    def moves(self) -> bool:
        """Whether a side of it follows the origin."""
        return Moving in map(type, chain.from_iterable(self))

    def fixed(self, numbers: Mapping[int, int]) -> Box:
        """This box where these entries of the origin are numbers."""
        return Box((fixed(start, numbers), fixed(stop, numbers)) for start, stop in self)

    def slices(self) -> Index:
        """For indexing an array, where one stands."""
        return tuple(
            [
                slice(start, stop)
                if type(start) is int and type(stop) is int
                else slice(value_of(start), value_of(stop))
                for start, stop in self
            ]
        )

    def __repr__(self) -> str:
        return f"[{', '.join(f'{start}:{stop}' for start, stop in self)}]"


class Region:
    """A set of elements of a tensor of known rank: disjoint boxes, banded, in order.

    >>> row, column = Box(((2, 3), (0, 5))), Box(((0, 5), (3, 4)))
    >>> Region.of(row, column)
    {[0:2, 3:4], [2:3, 0:5], [3:5, 3:4]}
    """

    __slots__ = ("_ends", "_hash", "_indices", "_moves", "boxes")

    def __init__(self, boxes: tuple[Box, ...]) -> None:
        """`boxes` must be canonical already; use `Region.of` for any others."""
        self.boxes = boxes
        self._hash: int | None = None
        self._indices: tuple[Index, ...] | None = None
        self._ends: _Ends | None = None
        self._moves: bool | None = None

    @staticmethod
    def of(*boxes: Box) -> Region:
        """The union of any boxes of one rank."""
        if len(boxes) >= MANY or not any(box.moves for box in boxes):
            return _banded(boxes)  # bands join what overlaps
        if (widest := _widest(boxes)) is not None:
            return Region((widest,))
        disjoint: tuple[Box, ...] = ()
        for box in boxes:
            disjoint += tuple(_outside([box], Region(disjoint)))
        return _banded(disjoint)

    @staticmethod
    def of_numbers(boxes: Section) -> Region:
        """Boxes of numbers, in bands."""
        found = Region(tuple(map(Box, boxes)))
        found._moves = False
        return found

    @staticmethod
    def full(shape: Sequence[Coord]) -> Region:
        """Every element of a tensor of this shape; empty when a dimension is 0."""
        if any(size == 0 for size in shape):
            return EMPTY
        return Region((Box.full(shape),))

    @property
    def is_empty(self) -> bool:
        return not self.boxes

    @property
    def indices(self) -> tuple[Index, ...]:
        """For indexing an array, box by box; of a region of numbers, as it is remembered."""
        found = self._indices
        if found is None:
            found = self._indices = tuple([box.slices() for box in self.boxes])
        return found

    @property
    def moves(self) -> bool:
        """Whether any of it follows the origin."""
        if self._moves is None:
            self._moves = any(box.moves for box in self.boxes)
        return self._moves

    @property
    def elements(self) -> int:
        """How many elements, where one stands."""
        return sum(box.elements for box in self.boxes)

    def hull(self) -> Box:
        """The smallest box around a region that is not empty."""
        result = self.boxes[0]
        for box in self.boxes[1:]:
            result = result.hull(box)
        return result

    def union(self, other: Region) -> Region:
        if not other.boxes or self is other:
            return self
        if not self.boxes or self == other:
            return other
        if not (self.moves or other.moves):
            return self._with(other, UNION)
        if len(self.boxes) + len(other.boxes) > MANY:
            for one, more in ((self, other), (other, self)):
                if len(one.boxes) == 1 and one.contains(more):
                    return one
            return _banded([*self.boxes, *other.boxes])
        if widest := _widest([*self.boxes, *other.boxes]):
            return Region((widest,))
        extra = _outside(other.boxes, self)
        return _banded([*self.boxes, *extra]) if extra else self

    def intersect(self, other: Region) -> Region:
        if not self.boxes or self is other or self == other:
            return self
        if not other.boxes:
            return EMPTY
        if len(self.boxes) + len(other.boxes) > 2 and not (self.moves or other.moves):
            return self._with(other, INTERSECTION)
        pairs = ((a, b) for a in self.boxes for b in other.near(a))
        return _banded([box for a, b in pairs if (box := a.intersect(b)) is not None])

    def subtract(self, other: Region) -> Region:
        if not self.boxes or not other.boxes:
            return self
        if self is other or self == other:
            return EMPTY
        if not (self.moves or other.moves):
            return self._with(other, DIFFERENCE)
        if len(self.boxes) + len(other.boxes) > MANY:
            return Region(tuple(_bands(self.boxes, other.boxes)))
        return _banded(_outside(self.boxes, other))

    def _with(self, other: Region, how: How) -> Region:
        """The two in one; both are of numbers."""
        found = tuple(combined(cast("Section", self.boxes), cast("Section", other.boxes), how))
        return self if found == self.boxes else Region.of_numbers(found)

    def contains(self, other: Region) -> bool:
        if len(self.boxes) == 1:
            return all(map(self.boxes[0].contains, other.boxes))
        if self.moves or other.moves:
            return not _outside(other.boxes, self)
        if len(self.boxes) >= MANY:
            return all(map(self._sides.cover, other.boxes))
        if len(other.boxes) == 1:  # mostly inside one of these
            [box] = other.boxes
            if any(mine.contains(box) for mine in self.boxes):
                return True
        return not other.subtract(self).boxes

    def near(self, box: Box) -> Sequence[Box]:
        """The boxes that may overlap one: of few, any may; most of hundreds lie apart from it."""
        if len(self.boxes) < MANY:
            return self.boxes
        return [self.boxes[i] for i in self._sides.near(box)]

    @property
    def _sides(self) -> _Ends:
        """Where its boxes start and stop."""
        if self._ends is None:
            self._ends = _Ends.of(self.boxes)
        return self._ends

    def intersects(self, other: Region) -> bool:
        return any(a.intersect(b) is not None for a in self.boxes for b in other.near(a))

    def at(self, origin: Sequence[int]) -> Region:
        """This region at another origin, as plain integers."""
        return Region(tuple([box.at(origin) for box in self.boxes])) if self.moves else self

    def fixed(self, numbers: Mapping[int, int]) -> Region:
        """This region where these entries of the origin are numbers."""
        return Region(tuple(box.fixed(numbers) for box in self.boxes))

    def __iter__(self) -> Iterator[Box]:
        return iter(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)

    def __eq__(self, other: object) -> bool:
        """The same boxes with the same coordinate forms."""
        return self is other or (isinstance(other, Region) and self.boxes == other.boxes)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.boxes)
        return self._hash

    def __repr__(self) -> str:
        return "{" + ", ".join(map(repr, self.boxes)) + "}"


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where many boxes start and stop, along the dimensions in which all of them are of numbers.

    Fields:
        axes: these dimensions.
        starts, stops: [box, one of these dimensions].
    """

    axes: Sequence[int]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @staticmethod
    def of(boxes: Sequence[Box]) -> _Ends:
        dimensions = [list(chain.from_iterable(sides)) for sides in zip(*boxes, strict=True)]
        axes = [i for i, ends in enumerate(dimensions) if Moving not in map(type, ends)]
        ends = np.array([dimensions[i] for i in axes], np.int64).reshape(len(axes), len(boxes), 2)
        return _Ends(axes, ends[:, :, 0].T, ends[:, :, 1].T)

    def near(self, box: Box) -> list[int]:
        """Which of them may overlap a box: what moves may be anywhere."""
        sides = [box[axis] for axis in self.axes]
        start = [-FAR if type(side[0]) is Moving else side[0] for side in sides]
        stop = [FAR if type(side[1]) is Moving else side[1] for side in sides]
        meets = (self.starts < np.array(stop)) & (np.array(start) < self.stops)
        found: list[int] = np.flatnonzero(meets.all(axis=1)).tolist()
        return found

    def cover(self, box: Box) -> bool:
        """Whether they hold all of a box, where none moves: as they are disjoint, as many elements
        as it has.
        """
        start, stop = np.array(box, np.int64).reshape(-1, 2).T
        inside = np.minimum(self.stops, stop) - np.maximum(self.starts, start)
        return bool(np.maximum(inside, 0).prod(axis=1).sum() == box.elements)


EMPTY = Region(())


def coarsened(region: Region, most: int) -> Region:
    """A region around one, of no more boxes than these: the dimensions from the last one on are
    filled, between what there is, until they are as few.

    >>> coarsened(Region.of(*(Box(((i, i + 1), (i, i + 1))) for i in range(5))), 4)
    {[0:5, 0:5]}
    >>> columns = [Box(((0, 2), (i, i + 1))) for i in (0, 2, 4)]
    >>> coarsened(Region.of(Box(((3, 4), (0, 1))), *columns), 3)
    {[0:2, 0:5], [3:4, 0:1]}
    """
    rank = len(region.boxes[0]) if region.boxes else 0
    for axis in range(rank - 1, -1, -1):
        if len(region) <= most:
            break
        hulls: dict[tuple[Interval, ...], Box] = {}
        for box in region:
            there = hulls.get(box[:axis])
            hulls[box[:axis]] = box if there is None else there.hull(box)
        region = Region.of(*hulls.values())
    return region


@dataclass(frozen=True, slots=True)
class Left:
    """What a change leaves of a node's valid elements: `valid` less `dirty`.

        valid  # # # # # #        left   # # # # # #
               # # # # # #               # · · # # #      four boxes, and one of them is a hole:
               # # # # # #               # # # # # #      whoever looks at a part meets only it

    The difference is a tensor with holes, in many boxes, so questions are answered from the two.
    """

    valid: Region
    dirty: Region

    @property
    def moves(self) -> bool:
        """Whether any of the two follows the origin."""
        return self.valid.moves or self.dirty.moves

    @property
    def region(self) -> Region:
        """All of it."""
        return self.valid.subtract(self.dirty)

    def lacking(self, region: Region) -> Region:
        """What of a region is not there."""
        return region.intersect(self.dirty).union(region.subtract(self.valid))

    def intersects(self, region: Region) -> bool:
        """Whether anything of a region is there."""
        return not self.dirty.contains(self.valid.intersect(region))

    def joined(self, computed: Region) -> Region:
        """What is there when something was computed besides."""
        return self.valid.subtract(self.dirty.subtract(computed)).union(computed)


NOTHING = Left(EMPTY, EMPTY)


Sides: TypeAlias = "tuple[Interval | None, ...]"  # None: not the same everywhere


def common_sides(regions: Iterable[Region]) -> Sides:
    """For each dimension, the side there of all boxes of some regions, if it is the same one.

    Whatever is made of such regions has that side too, so it is made without the dimension:

    >>> rows, more = (Region((Box(((0, stop), (0, 5))),)) for stop in (2, 3))
    >>> sides = common_sides((rows, more))
    >>> sides
    (None, (0, 5))
    >>> thinned(more, sides).subtract(thinned(rows, sides))
    {[2:3]}
    >>> widened(thinned(more, sides).subtract(thinned(rows, sides)), sides)
    {[2:3, 0:5]}
    """
    boxes = (box for region in regions for box in region.boxes)
    sides = (set(there) for there in zip(*boxes, strict=True))
    return tuple(there.pop() if len(there) == 1 else None for there in sides)


def thinned(region: Region, sides: Sides) -> Region:
    """A region without the dimensions that have a common side."""
    kept = [axis for axis, common in enumerate(sides) if common is None]
    return Region(tuple(Box([box[axis] for axis in kept]) for box in region.boxes))


def widened(region: Region, sides: Sides) -> Region:
    """A region with those dimensions."""
    found = []
    for box in region.boxes:
        rest = iter(box)
        found.append(Box([next(rest) if common is None else common for common in sides]))
    return Region(tuple(found))


def row_major(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Strides, in elements, of a contiguous array of this shape. Where that would be a product of
    two sizes that go with a place, a dimension of one element before them has another stride.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[Size] = []
    step: Size = 1
    for axis, size in reversed(list(enumerate(shape))):
        strides.append(step)
        is_outer = moves_freely(step) and moves_freely(size) and set(shape[:axis]) <= {1}
        step = step if is_outer else step * size
    return tuple(reversed(strides))


def in_order(shape: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """Strides of an array whose dimensions lie in this order, from the outermost.

    >>> in_order((1, 4, 5, 6), (0, 2, 3, 1))
    (120, 1, 24, 4)
    """
    steps = dict(zip(order, row_major([shape[axis] for axis in order]), strict=True))
    return tuple(steps[axis] for axis in range(len(shape)))


def union(regions: Iterable[Region]) -> Region:
    """The union of any number of regions of one rank, two by two: of n boxes that lie apart one
    after the other would put all before it in order again, n times.
    """
    found = [region for region in regions if region.boxes]
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [a.union(b) for a, b in pairs] + found[len(found) & ~1 :]
    return found[0] if found else EMPTY


def listed_region(boxes: Sequence[Box]) -> Region | None:
    """The union of disjoint boxes of numbers, as a file lists them; None for any others.

    What others take grows with the power of their dimensions; so do the bands of disjoint ones, and
    these are counted before they are made.

    >>> listed_region([Box(((0, 2), (0, 5))), Box(((2, 3), (0, 5)))])
    {[0:3, 0:5]}
    >>> listed_region([Box(((0, 2), (0, 5))), Box(((1, 3), (4, 5)))])
    """
    if len(boxes) > MOST_LISTED:
        return None
    if len(boxes) > 1:
        sides = np.array(boxes, np.int64).reshape(len(boxes), -1, 2)
        starts, stops = sides[:, :, 0], sides[:, :, 1]
        for i in range(1, len(boxes)):
            together = (starts[:i] < stops[i]) & (starts[i] < stops[:i])
            if together.all(axis=1).any():
                return None
        if _band_count(boxes, MOST_BANDED) > MOST_BANDED:
            return None
    return _banded(list(boxes))


def _band_count(boxes: Sequence[Sequence[Interval]], most: int) -> int:
    """How many boxes the bands of disjoint boxes are, before any is joined; of many, just that."""
    if len(boxes) == 1:
        return 1
    count = 0
    for start, stop in pairwise(sorted({coord for box in boxes for coord in box[0]})):
        inside = [box[1:] for box in boxes if box[0][0] <= start and stop <= box[0][1]]
        count += _band_count(inside, most - count) if inside else 0
        if count > most:
            break
    return count


def _widest(boxes: Sequence[Box]) -> Box | None:
    """Of boxes of a sweep, the one that holds all others at all places, if one does: what layers
    that are wider each make of a part, one behind the other, are as many windows around it.
    """
    if not any(any(map(moves_freely, side)) for box in boxes for side in box):
        return None
    hull = reduce(Box.hull, boxes)
    return hull if hull in boxes else None


def _outside(boxes: Sequence[Box], holes: Region) -> list[Box]:
    """The parts of disjoint `boxes` that no hole covers, disjoint."""
    found: list[Box] = []
    for box in boxes:
        left = [box]
        for hole in holes.near(box):
            left = [piece for part in left for piece in part.subtract(hole)]
            if not left:
                break
        found += left
    return found


def _order(a: Coord, b: Coord) -> int:
    if a < b:
        return -1
    return 1 if b < a else 0


_coord_key = cmp_to_key(_order)


Order: TypeAlias = "tuple[list[Coord], dict[Coord, int]]"


def _ordered(different: Collection[Coord]) -> Order:
    """Coordinates in order, each number once; and where each of them is in that order.

    All that may be asked of two of them follows from it: whoever asks by rank writes no guards.
    """
    moves = Moving in map(type, different)
    ordered: list[Coord] = sorted(different, key=_coord_key if moves else None)
    cuts, ranks = ordered[:1], {ordered[0]: 0}
    for coord in ordered[1:]:
        if cuts[-1] < coord:
            cuts.append(coord)
        ranks[coord] = len(cuts) - 1
    return cuts, ranks


def _banded(boxes: Sequence[Box]) -> Region:
    """The canonical form of any boxes.

    Of few that move, it is right at more places where they are disjoint already: then nothing is
    compared with what another one covers.
    """
    if not boxes:
        return EMPTY
    if len(boxes) == 1:
        return Region((boxes[0],))
    if any(box.moves for box in boxes):
        return Region(tuple(_bands(boxes)))
    return Region.of_numbers(banded(cast("Section", boxes)))


def _bands(
    boxes: Sequence[Box],
    holes: Sequence[Box] = (),
    orders: dict[frozenset[Coord], Order] | None = None,
) -> list[Box]:
    """The bands of boxes without some holes; any of them may overlap.

    Ends are put in order once, and are numbers of that order from then on: bands of a cross meet
    the same columns, so what is ordered is remembered in `orders`.
    """
    if not boxes[0]:
        return [] if holes else [boxes[0]]
    if len(boxes) == 1 and not holes:
        return [boxes[0]]
    orders = {} if orders is None else orders
    every = (*boxes, *holes)
    ends = frozenset([end for box in every for end in box[0]])
    if ends not in orders:
        orders[ends] = _ordered(ends)
    cuts, ranks = orders[ends]
    beginning: list[list[tuple[int, bool, Box]]] = [[] for _ in cuts]
    for i, box in enumerate(every):
        (start, stop), *rest = box
        beginning[ranks[start]].append((ranks[stop], i >= len(boxes), Box(rest)))
    bands: list[tuple[Coord, Coord, list[Box]]] = []
    inside: list[tuple[int, bool, Box]] = []
    for i, (start, stop) in enumerate(pairwise(cuts)):
        inside = [one for one in inside if one[0] > i] + beginning[i]
        filled = [box for _, is_hole, box in inside if not is_hole]
        if not filled:
            continue
        section = _bands(filled, [box for _, is_hole, box in inside if is_hole], orders)
        if not section:
            continue
        if bands and same(bands[-1][1], start) and _same_boxes(bands[-1][2], section):
            bands[-1] = (bands[-1][0], stop, section)
        else:
            bands.append((start, stop, section))
    return [Box(((start, stop), *rest)) for start, stop, section in bands for rest in section]


def _same_boxes(a: list[Box], b: list[Box]) -> bool:
    return a == b or (
        len(a) == len(b)
        and all(
            same_anywhere(p, r) and same_anywhere(q, s)
            for x, y in zip(a, b, strict=True)
            for (p, q), (r, s) in zip(x, y, strict=True)
        )
    )
