"""What differs between two arrays, as few boxes.

compare ─→ a byte an element ─→ one box, or else slices side by side
    and, for whoever asks, ───→ runs of slices that are alike, cut further inside: exact boxes
                                or, where those are many,
                                cells of a grid, their hull cut in two again and again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, Box, Region, row_major

Side: TypeAlias = "tuple[Any, Any]"
Sides: TypeAlias = "tuple[Side, ...]"  # what a box is made of
Row: TypeAlias = "tuple[int, int, tuple[int, ...]]"  # first element, stop, of an array of a shape
Rows: TypeAlias = "Latest[Row, Region]"

UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}  # by bytes
AT_ONCE = 16  # slices
MOST_BOXES = 8  # a comparison that would find more changed boxes than this takes larger ones
MOST_CELLS = 64  # along a dimension, where boxes are looked for
MOST_RUNS = MOST_CELLS // 2  # along a dimension, each with a gap behind it


@dataclass(frozen=True, eq=False)
class Scattered:
    """True elements that are no one box.

    Fields:
        flags: where they are.
        around: the slices side by side that hold them, as one box.
    """

    flags: NDArray[np.bool_]
    around: Region

    @cached_property
    def boxes(self) -> Region:
        """All of them in at most `MOST_BOXES`: exactly if that many do, else with some more.

        Finding those may take as long as a small model's run.
        """
        cells = self.flags.tobytes()
        boxes = _banded(cells, self.flags.shape, 0, len(cells), cells.find(1))
        if len(boxes) <= MOST_BOXES:
            return Region(tuple([Box(sides) for sides in boxes]))
        return _few_of_a_row(boxes) or _coarse(self.flags)


def compared(old: NDArray[Any], new: NDArray[Any], rows: Rows | None = None) -> Region | Scattered:
    """Where two arrays of one shape and dtype differ, bit for bit (NaN equals itself).

    What lies in `rows` that were found before is the same object again, which knows its hash.
    """
    if new.dtype.kind in "iub":
        return _found(old != new, rows)
    bits = UNSIGNED[new.itemsize]
    return _found(old.view(bits) != new.view(bits), rows)


def difference(old: NDArray[Any], new: NDArray[Any], apart: Region = EMPTY) -> Region:
    """The same as at most `MOST_BOXES` boxes; of what lies outside a region, if one is given."""
    found = compared(old, new)
    if not isinstance(found, Scattered):
        return found.subtract(apart)
    if apart.boxes:
        flags = found.flags.copy()
        for index in apart.indices:
            flags[index] = False
        found = _found(flags, None)
    return found.boxes if isinstance(found, Scattered) else found


def _found(flags: NDArray[np.bool_] | np.bool_, rows: Rows | None) -> Region | Scattered:
    cells, shape = flags.tobytes(), flags.shape
    at = cells.find(1)
    if at < 0:
        return EMPTY
    stop = cells.rfind(1) + 1
    only: Region | None = None
    if cells.find(0, at, stop) < 0:
        row = at, stop, shape
        only = None if rows is None else rows.get(row)
        if only is None:
            only = _known_row(row, rows)
    if only is None:
        only = _only_box(cells, shape, at)
    return Scattered(np.asarray(flags), _slices(at, stop, shape, rows)) if only is None else only


def _slices(start: int, stop: int, shape: tuple[int, ...], rows: Rows | None) -> Region:
    """Whole slices side by side that hold all from one element to another, and no more."""
    step = 1
    for size in reversed(shape):
        if start // (step * size) == (stop - 1) // (step * size):
            break
        step *= size
    row = _known_row((start - start % step, stop + -stop % step, shape), rows)
    assert row is not None
    return row


def _known_row(key: Row, rows: Rows | None) -> Region | None:
    found = None if rows is None else rows.get(key)
    if found is None:
        found = _row(*key)
        if rows is not None and found is not None:
            rows[key] = found
    return found


def _row(start: int, stop: int, shape: Sequence[int]) -> Region | None:
    """Elements in a row as one box; None where they are none. Most changes are a word, or rows."""
    sides: list[Side] = []
    for size in reversed(shape):
        row = start // size
        if (stop - 1) // size == row:
            sides.append((start - row * size, stop - row * size))
            start, stop = row, row + 1
        elif start % size == 0 and stop % size == 0:
            sides.append((0, size))
            start, stop = row, stop // size
        else:
            return None
    return Region((Box(sides[::-1]),))


def _only_box(cells: bytes, shape: Sequence[int], at: int) -> Region | None:
    """The box of all true cells, the first of which is there; None where they are more than one.

    As `_banded` finds it, from the inside out: a patch.
    """
    sides, begin, step = [], at, 1
    for size in reversed(shape):
        if size == 1:
            sides.append((0, 1))
            continue
        start = begin - begin % (step * size)
        end = start + step * size
        stop = _stop(cells, cells[begin : begin + step], begin + step, end)
        if cells.find(1, stop, end) >= 0:
            return None
        sides.append(((begin - start) // step, (stop - start) // step))
        begin, step = start, step * size
    return Region((Box(sides[::-1]),))


def _few_of_a_row(boxes: Sequence[Sides]) -> Region | None:
    """Boxes that differ along one dimension in fewer ones; None where there are others."""
    by_axis = list(zip(*boxes, strict=True))
    differ = [axis for axis, sides in enumerate(by_axis) if sides.count(sides[0]) < len(sides)]
    if len(differ) > 1 or len(boxes) > MOST_RUNS:
        return None
    return _in_few(boxes[0], differ[0], by_axis[differ[0]])


def _banded(cells: bytes, shape: Sequence[int], start: int, end: int, at: int) -> list[Sides]:
    """The boxes of true cells, canonical: runs of slices that are alike, cut further inside.

    `at` is the first one from `start` on. A slice along the first dimension is bytes side by side:
    looking for the next true cell, and comparing two slices, is one pass over them. It ends early
    where there are more than `MOST_RUNS`.
    """
    size, inner = shape[0], shape[1:]
    if not inner:
        return [(run,) for run in _runs(cells, start, end, at)]
    if size == 1:
        return [((0, 1), *rest) for rest in _banded(cells, inner, start, end, at)]
    step = (end - start) // size
    found: list[Sides] = []
    inside: list[Sides] = []
    like = b""
    while at >= 0 and len(found) <= MOST_RUNS:
        first = (at - start) // step
        begin = start + first * step
        stop = begin + step
        if not (like and cells.startswith(like, begin)):
            inside = _banded(cells, inner, begin, stop, at)
            like = cells[begin:stop]
        stop = _stop(cells, like, stop, end)
        side = first, (stop - start) // step
        found += [(side, *rest) for rest in inside]
        at = cells.find(1, stop, end)
    return found


def _runs(cells: bytes, start: int, end: int, at: int) -> list[Side]:
    """True cells in a row, from the first one on; no more of them than `MOST_RUNS` and one."""
    found: list[Side] = []
    while at >= 0 and len(found) <= MOST_RUNS:
        stop = cells.find(0, at, end)
        stop = end if stop < 0 else stop
        found.append((at - start, stop - start))
        at = cells.find(1, stop, end)
    return found


def _stop(cells: bytes, like: bytes, stop: int, end: int) -> int:
    """Where slices that are alike end, of which one stops here; many are compared at once."""
    if len(like) == 1:
        stop = cells.find(0, stop, end)
        return end if stop < 0 else stop
    for _ in range(AT_ONCE):
        if not cells.startswith(like, stop, end):
            return stop
        stop += len(like)
    stop = _stop(cells, like * AT_ONCE, stop, end)
    while cells.startswith(like, stop, end):
        stop += len(like)
    return stop


def _in_few(first: Sides, axis: int, runs: Sequence[Side]) -> Region:
    """As many boxes as may be of runs along one dimension: the widest gaps stay open."""
    widths = [start - stop for (_, stop), (start, _) in pairwise(runs)]
    widest = sorted(range(len(widths)), key=widths.__getitem__, reverse=True)[: MOST_BOXES - 1]
    cuts = [0, *sorted([i + 1 for i in widest if widths[i]]), len(runs)]
    sides = [(runs[a][0], runs[b - 1][1]) for a, b in pairwise(cuts)]
    before, behind = first[:axis], first[axis + 1 :]
    return Region(tuple([Box((*before, side, *behind)) for side in sides]))


def _all_but(rank: int, *axes: int) -> tuple[int, ...]:
    return tuple([axis for axis in range(rank) if axis not in axes])


def hull_of(flags: NDArray[np.bool_]) -> Box | None:
    """The smallest box around the true elements; None where there are none."""
    sides, left = [], np.asarray(flags)
    for step in row_major(flags.shape):
        cells = left.tobytes()
        first = cells.find(1)
        if first < 0:
            return None
        side = first // step, cells.rfind(1) // step + 1
        sides.append(side)
        left = np.asarray(left[slice(*side)].any(axis=0))
    return Box(sides) if left.all() else None


def _coarse(flags: NDArray[np.bool_]) -> Region:
    """The hull, cut in two where that saves most, again and again while the boxes stay few."""
    whole = _grid(flags)
    if sum(size > 1 for size in whole.flags.shape) == 1:
        return whole.in_a_row
    parts, cuts = [whole], [whole.best_cut]
    region = Region((whole.hull,))
    while max(cuts).saved:
        i = cuts.index(max(cuts))
        parts[i : i + 1] = halves = parts[i].halves(cuts[i])
        cuts[i : i + 1] = [half.best_cut for half in halves]
        finer = Region.of(*(part.hull for part in parts))
        if len(finer) > MOST_BOXES:
            return region
        region = finer
    return region


class Cutting(NamedTuple):
    """Elements saved by cutting a grid in two, along which axis, and before which of them."""

    saved: int = 0
    axis: int = 0
    at: int = 0


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells that lie in rows along every dimension, or a part of them.

    Fields:
        flags: which are true; no slice along any dimension is without one.
        starts, stops: by dimension, where cells begin and where they stop.
    """

    flags: NDArray[np.bool_]
    starts: Sequence[NDArray[np.int64]]
    stops: Sequence[NDArray[np.int64]]

    @staticmethod
    def of(
        flags: NDArray[np.bool_],
        starts: Sequence[NDArray[np.int64]],
        stops: Sequence[NDArray[np.int64]],
    ) -> Grid:
        """Without the slices that hold nothing."""
        starts, stops = list(starts), list(stops)
        for axis in range(flags.ndim):
            used = flags.any(axis=_all_but(flags.ndim, axis))
            if 0 in used.tobytes():
                flags = flags.compress(used, axis=axis)
                starts[axis], stops[axis] = starts[axis][used], stops[axis][used]
        return Grid(flags, starts, stops)

    @cached_property
    def hull(self) -> Box:
        ends = zip(self.starts, self.stops, strict=True)
        return Box((int(starts[0]), int(stops[-1])) for starts, stops in ends)

    @property
    def in_a_row(self) -> Region:
        """What there is of cells along one dimension: all but the widest gaps, if need be."""
        axis = max(range(self.flags.ndim), key=self.flags.shape.__getitem__)
        runs = zip(self.starts[axis].tolist(), self.stops[axis].tolist(), strict=True)
        return _in_few(self.hull, axis, list(runs))

    def halves(self, cut: Cutting) -> list[Grid]:
        """The cells before a cut, and those behind it."""
        sides = slice(None, cut.at), slice(cut.at, None)
        return [self._part((slice(None),) * cut.axis + (side,), cut.axis) for side in sides]

    def _part(self, index: tuple[slice, ...], axis: int) -> Grid:
        starts, stops = list(self.starts), list(self.stops)
        starts[axis], stops[axis] = starts[axis][index[-1]], stops[axis][index[-1]]
        return Grid.of(self.flags[index], starts, stops)

    @property
    def best_cut(self) -> Cutting:
        """Where the hulls of the two sides are smallest together."""
        best = Cutting()
        for axis, cells in enumerate(self.flags.shape):
            if cells > 1:
                before, behind = self._hulls(axis)
                saved = before[-1] - before[:-1] - behind[1:]
                at = int(saved.argmax())
                if saved[at] > best.saved:
                    best = Cutting(int(saved[at]), axis, at + 1)
        return best

    def _hulls(self, axis: int) -> tuple[Any, Any]:
        """Elements of the hulls of all cells up to each one along a dimension, and from it on."""
        starts, stops = self.starts[axis], self.stops[axis]
        before, behind = stops - starts[0], stops[-1] - starts
        for other, cells in enumerate(self.flags.shape):
            if other != axis and cells > 1:
                low, high = self._spans(axis, other)
                up_to, from_on = np.maximum.accumulate(high), np.maximum.accumulate(high[::-1])
                before = before * (up_to - np.minimum.accumulate(low))
                behind = behind * (from_on - np.minimum.accumulate(low[::-1]))[::-1]
            elif other != axis:
                thick = int(self.stops[other][0] - self.starts[other][0])
                before, behind = before * thick, behind * thick
        return before, behind

    def _spans(self, axis: int, other: int) -> tuple[Any, Any]:
        """From where to where along `other` there is something, for every cell along `axis`."""
        used: Any = self.flags
        if used.ndim > 2:
            used = used.any(axis=_all_but(used.ndim, axis, other))
        used = used if axis < other else used.T
        last = -1 - used[:, ::-1].argmax(axis=1)
        return self.starts[other][used.argmax(axis=1)], self.stops[other][last]


def _grid(flags: NDArray[np.bool_]) -> Grid:
    """Neighbouring slices that are alike are one cell; some neighbours where there are many."""
    hull: Any = hull_of(flags)
    flags = flags[hull.slices()]
    starts, stops = [], []
    for axis, (first, stop) in enumerate(hull):
        ahead = np.moveaxis(flags, axis, 0).reshape(flags.shape[axis], -1)
        breaks = np.flatnonzero((ahead[1:] != ahead[:-1]).any(axis=1)) + 1
        edges = np.append(0, breaks)
        if len(edges) <= MOST_CELLS:
            flags = flags.take(edges, axis=axis)  # the slices of a cell are alike
        else:
            edges = edges[:: -(-len(edges) // MOST_CELLS)]
            flags = np.logical_or.reduceat(flags, edges, axis=axis)
        starts.append(first + edges)
        stops.append(np.append(first + edges[1:], stop))
    return Grid.of(flags, starts, stops)
