"""Known elements: those whose value follows from constants alone.

A causal mask makes half of the attention scores −inf and half of the weights 0, whatever the
inputs are. A `Fact` says which elements of a node are known so, and what they are:

    scores = where(mask, q·kᵀ, −inf)        closed (known) elements ■, open elements ·

        · ■ ■ ■        support of row 2 along the columns: [0, 3)
        · · ■ ■        rows that see column 1:             [1, 4)
        · · · ■
        · · · ·

The set is a `SparsityPattern`: one boolean array, 1 wide in every dimension along which it does not
change, with first/last tables per row so that a question costs a look-up, not a scan, and keeps
its linear form when the row moves with the origin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.base.coords import (
    Coord,
    Moving,
    Table,
    all_so,
    at_least,
    at_most,
    larger_in,
    smaller_in,
)
from tgbench.base.memo import Memo, outlives
from tgbench.base.regions import EMPTY, Box, Interval, Region, union

Bools = NDArray[np.bool_]
HUGE = 1e30  # as good as infinite: no score comes near it
MOST_KNOWN = 1 << 28  # flags of one value; of more, nothing is known
MOST_FOUND = 1_000  # answers that a constant keeps with it
MOST_PIECES = 64  # a box whose open part would split into more than this shrinks to its hull


@outlives
class ConstantData:
    """An immutable array that compares and hashes by content; `found` is what follows from it."""

    __slots__ = ("array", "digest", "found")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = np.ascontiguousarray(array).reshape(np.shape(array))
        self.array.setflags(write=False)
        digest = hashlib.sha256(f"{self.array.dtype.str}{self.array.shape}".encode())
        digest.update(self.array.reshape(-1).view(np.uint8).data)  # no copy of it
        self.digest = digest.hexdigest()
        self.found = Memo(MOST_FOUND)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantData) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        if self.array.size <= 4:
            return repr(self.array.tolist())
        return f"<{self.array.dtype} {list(self.array.shape)} {self.digest[:8]}>"


@dataclass(frozen=True, eq=False)
class _Rows:
    """For each row of a boolean matrix: where its open columns start and stop.

    `monotone`: the rows that are open anywhere are neighbours, each is one unbroken interval, both
    ends never decrease, and neighbours touch, so that any range of rows opens one interval whose
    ends two look-ups give.
    """

    matrix: Bools
    used: tuple[int, int]  # the rows that are open anywhere, when monotone
    first: Table
    last: Table  # exclusive
    monotone: bool

    @staticmethod
    def of(matrix: Bools) -> _Rows:
        columns = matrix.shape[1]
        rows = np.flatnonzero(matrix.any(axis=1))
        top, bottom = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        first = matrix.argmax(axis=1)
        last = np.where(matrix.any(axis=1), columns - matrix[:, ::-1].argmax(axis=1), first)
        inner_first, inner_last = first[top:bottom], last[top:bottom]
        dense = bool((matrix.sum(axis=1) == last - first).all())
        touching = bool((inner_first[1:] <= inner_last[:-1]).all())
        rising = bool((np.diff(inner_first) >= 0).all() and (np.diff(inner_last) >= 0).all())
        unbroken = len(rows) == bottom - top
        monotone = unbroken and dense and touching and rising
        return _Rows(matrix, (top, bottom), Table(first), Table(last), monotone)

    def opened_by(self, rows: Interval, columns: Interval) -> list[Interval]:
        """Columns, inside `columns`, that are open in at least one of the rows."""
        if self.monotone:
            both = Box((rows,)).intersect(Box((self.used,)))
            if both is None:
                return []
            top, bottom = both[0]
            start = larger_in(self.first, top, columns[0])
            stop = smaller_in(self.last, bottom - 1, columns[1])
            return [(start, stop)] if start < stop else []
        r0, r1, c0, c1 = (_pin(coord) for coord in (*rows, *columns))
        return intervals_of(np.asarray(self.matrix[r0:r1, c0:c1].any(axis=0)), c0)

    def all_open(self, rows: Interval, columns: Interval) -> bool:
        if self.monotone:
            return all_so(
                [
                    lambda: self.used[0] <= rows[0],
                    lambda: rows[1] <= self.used[1],
                    lambda: at_most(self.first, rows[1] - 1, columns[0]),
                    lambda: at_least(self.last, rows[0], columns[1]),
                ]
            )
        r0, r1, c0, c1 = (_pin(coord) for coord in (*rows, *columns))
        return bool(self.matrix[r0:r1, c0:c1].all())


def _pin(coord: Coord) -> int:
    return coord.pin() if isinstance(coord, Moving) else coord


def intervals_of(flags: Bools, offset: int) -> list[Interval]:
    """The maximal runs of True, as half-open intervals shifted by `offset`."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [
        (int(a) + offset, int(b) + offset) for a, b in zip(edges[::2], edges[1::2], strict=True)
    ]


def _each(side: Interval) -> list[Coord]:
    return [side[0] + i for i in range(_pin(side[1] - side[0]))]


def _gaps(side: Interval, intervals: Sequence[Interval]) -> list[Interval]:
    """What of a side lies between intervals inside it."""
    edges = [side[0], *(edge for interval in intervals for edge in interval), side[1]]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, stop) for start, stop in pairs if start < stop]


def _replaced(box: Box, axis: int, interval: Interval) -> Box:
    return Box([*box[:axis], interval, *box[axis + 1 :]])


class SparsityPattern:
    """Which elements are open; `array` broadcasts to the tensor's shape.

    Compares by content; `SparsityPattern.of` brings every array to its narrowest form first.
    """

    def __init__(self, array: Bools) -> None:
        self.array = array
        self.digest = hashlib.sha256(
            f"{array.shape}".encode() + np.packbits(array).tobytes()
        ).digest()
        self.varying = tuple(axis for axis, size in enumerate(array.shape) if size > 1)

    @staticmethod
    def of(array: NDArray[Any]) -> SparsityPattern:
        narrow = np.asarray(array, dtype=bool)
        for axis, size in enumerate(narrow.shape):
            head = narrow.take([0], axis=axis) if size else narrow
            if size > 1 and bool((narrow == head).all()):
                narrow = head
        return SparsityPattern(np.ascontiguousarray(narrow).reshape(narrow.shape))  # keeps rank 0

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SparsityPattern) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"SparsityPattern({list(self.array.shape)}, {self.array.mean():.1%} open)"

    @property
    def is_all_open(self) -> bool:
        return bool(self.array.all())

    @cached_property
    def _tables(self) -> tuple[_Rows, _Rows]:
        """Rows of the two varying dimensions, and of their transpose."""
        if len(self.varying) == 2:
            matrix = self.array.reshape([self.array.shape[axis] for axis in self.varying])
        else:
            matrix = self.array.reshape(1, -1)
        return _Rows.of(matrix), _Rows.of(np.ascontiguousarray(matrix.T))

    def _plane(self, box: Box) -> tuple[Interval, Interval]:
        """The box's extent in the table's two dimensions."""
        if len(self.varying) == 2:
            return box[self.varying[0]], box[self.varying[1]]
        return (0, 1), box[self.varying[0]]

    def support(self, box: Box, axis: int) -> list[Interval]:
        """Indices along `axis` at which at least one element of the box is open."""
        if len(self.varying) > 2:
            return self._scan(box, axis)
        if not self.varying:
            return [box[axis]] if self.is_all_open else []
        rows, columns = self._plane(box)
        by_row, by_column = self._tables
        if axis == self.varying[-1]:
            return by_row.opened_by(rows, columns)
        if len(self.varying) == 2 and axis == self.varying[0]:
            return by_column.opened_by(columns, rows)
        return [box[axis]] if by_row.opened_by(rows, columns) else []

    def _scan(self, box: Box, axis: int) -> list[Interval]:
        box = Box(
            (_pin(start), _pin(stop)) if dim in self.varying else (start, stop)
            for dim, (start, stop) in enumerate(box)
        )
        inside = self.array[self._index(box)]
        if axis not in self.varying:
            return [box[axis]] if inside.any() else []
        others = tuple(dim for dim in range(inside.ndim) if dim != axis)
        return intervals_of(np.asarray(inside.any(axis=others)), _pin(box[axis][0]))

    def _index(self, box: Box) -> tuple[slice, ...]:
        return tuple(
            part if dim in self.varying else slice(0, 1) for dim, part in enumerate(box.slices())
        )

    def trim(self, region: Region) -> Region:
        """A region without its closed margins.

        Each box loses every index, along every dimension, at which nothing in it is open; what is
        left splits where such an index lies inside, into at most `MOST_PIECES` boxes.
        """
        if not self.varying:
            return region if self.is_all_open else EMPTY
        return union(Region((piece,)) for box in region for piece in self._pieces(box))

    def _pieces(self, box: Box) -> list[Box]:
        pieces = self._split([box], self.varying)
        if len(pieces) > 1:  # a piece may have closed margins where its neighbours had none
            pieces = self._split(pieces, self.varying[:-1])
        return pieces if len(pieces) <= MOST_PIECES else self._shrunk(box)

    def _split(self, pieces: list[Box], axes: Sequence[int]) -> list[Box]:
        for axis in axes:
            if len(pieces) > MOST_PIECES:
                break
            pieces = [
                _replaced(piece, axis, interval)
                for piece in pieces
                for interval in self.support(piece, axis)
            ]
        return pieces

    def _shrunk(self, box: Box) -> list[Box]:
        """The one smallest box around what is open in a box."""
        for axis in self.varying:
            intervals = self.support(box, axis)
            box = _replaced(box, axis, (intervals[0][0], intervals[-1][1]))
        return [box]

    def lines(self, box: Box) -> int:
        """How many lines of a box have gaps of their own."""
        return int(np.prod([_pin(box[axis][1] - box[axis][0]) for axis in self.varying[:-1]]))

    def closed(self, box: Box) -> list[Box]:
        """The closed elements of a box, and no other: in each of its lines, what is not open."""
        if self.all_open(box):
            return []
        if not self.varying:
            return [box]
        *outer, last = self.varying
        lines = [box]
        for axis in outer:
            lines = [_replaced(x, axis, (at, at + 1)) for x in lines for at in _each(x[axis])]
        return [
            _replaced(x, last, gap) for x in lines for gap in _gaps(x[last], self.support(x, last))
        ]

    def closed_mask(self, box: Box) -> Bools:
        """Whether each element of a box is closed; 1 wide where nothing varies."""
        pinned = Box((_pin(start), _pin(stop)) for start, stop in box)
        return np.asarray(~self.array[self._index(pinned)])

    def all_open(self, box: Box) -> bool:
        """Whether no element of the box is closed."""
        if not self.varying:
            return self.is_all_open
        if len(self.varying) > 2:
            pinned = Box((_pin(start), _pin(stop)) for start, stop in box)
            return bool(self.array[self._index(pinned)].all())
        rows, columns = self._plane(box)
        return self._tables[0].all_open(rows, columns)


@dataclass(frozen=True)
class Fact:
    """What constants say about a node's elements.

    Fields:
        value: what every closed element equals; for a `constant`, None (each has its own).
        open: the elements that are not known.
        hard: closed elements equal `value` exactly. A soft fact is an additive mask of a huge
            finite number: the element still varies, near `value` or below it, but `exp` of it,
            less the maximum of a row with an open element, is exactly 0. So `value` may stand for
            it wherever only that is asked, and is finite, so that a product with 0 is 0.
        constant: the node's whole array, when every element is known.
        wild: open elements may be as huge as a mask: it was added where no rule follows it. What
            is added to them, or compared with them, is no mask.
        peak: of the right side of a difference: it is the maximum of the left along these axes.
            Of the difference, and of `exp` of it: each line along them has a greatest element, 0
            and then 1.
        positive: every element is above 0.
    """

    value: float | None
    open: SparsityPattern
    hard: bool = True
    constant: ConstantData | None = None
    wild: bool = False
    peak: tuple[int, ...] = ()
    positive: bool = False

    def closes_with(self, value: float | None) -> bool:
        """Whether closed elements equal a value exactly."""
        return self.hard and self.value is not None and self.value == value

    @property
    def is_mask(self) -> bool:
        """Whether closed elements are −inf, or as good as that where there is an open one."""
        return not self.hard or (self.value is not None and self.value <= -HUGE)

    @property
    def is_huge(self) -> bool:
        """Whether closed elements are infinite, or as good as that."""
        return self.is_mask or (self.value is not None and self.value >= HUGE)


def constant_fact(data: ConstantData) -> Fact:
    """The fact about a constant node: all of it is known."""
    closed = SparsityPattern(np.zeros([1] * data.array.ndim, dtype=bool))
    return Fact(None, closed, constant=data)


def pattern_fact(value: float, is_open: NDArray[Any], *, hard: bool = True) -> Fact | None:
    """A fact with one known value, or None when nothing is known; −0 is known as 0."""
    pattern = SparsityPattern.of(is_open)
    return None if pattern.is_all_open else Fact(value + 0.0, pattern, hard)


def open_fact(rank: int, *, wild: bool = False, positive: bool = False) -> Fact:
    """No element is known, but something of all of them."""
    return Fact(
        None, SparsityPattern(np.ones([1] * rank, dtype=bool)), wild=wild, positive=positive
    )


def followed(fact: Fact | None, sources: Sequence[Fact | None], rank: int) -> Fact | None:
    """What a rule says of a result, and where masks went that it does not follow.

    >>> mask = pattern_fact(-1e30, np.array([True, False]), hard=False)
    >>> followed(None, [mask], 1).wild
    True
    """
    wild = any(source is not None and source.wild for source in sources)
    huge = any(source is not None and source.is_huge for source in sources)
    if not wild and (not huge or (fact is not None and fact.is_huge)):
        return fact
    return open_fact(rank, wild=True) if fact is None else replace(fact, wild=True)
