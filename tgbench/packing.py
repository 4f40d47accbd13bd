"""The static offset-assignment problem: give each buffer one offset for its whole life.

Two buffers that are live at the same step must not share a byte; the aim is a low total height.
Sizes are rounded up to whole units of the alignment, here and in every height and bound.

    problem   Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)))

    192 B |  bbbbbb     b 64 B, live [1, 4)
          |aaaacccc     a 128 B, live [0, 2)
          |aaaacccc     c 128 B, live [2, 4), takes over the bytes of a
      0 B +--------

The packers are one-pass heuristics: an order of the buffers, and a choice among the gaps that are
free for the whole life of the next one. The capacity is not a limit on them: a solution may be
higher than `capacity_bytes`, and the caller, or `validate`, says so.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named extent of bytes, live at the steps `start <= step < stop`."""

    name: str
    size_bytes: int
    start: int  # schedule step that defines it
    stop: int  # exclusive: first step that no longer reads it

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ValueError(f"buffer {self.name!r} has size {self.size_bytes} B; sizes are >= 0")
        if self.stop < self.start:
            raise ValueError(
                f"buffer {self.name!r} is live over [{self.start}, {self.stop}), which ends before "
                "it starts; the range is half-open, so a buffer live at one step s is [s, s + 1)"
            )


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers to place, the offsets that are already decided, and the units they come in.

    Raises `ValueError` for a repeated name, an alignment below 1, or a pin that names no buffer,
    is negative or is not aligned.
    """

    buffers: tuple[Buffer, ...]
    capacity_bytes: int | None = None
    alignment: int = 64  # bytes
    pinned: Mapping[str, int] = field(default_factory=dict, hash=False)  # name -> offset in bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "pinned", dict(self.pinned))
        if self.alignment < 1:
            raise ValueError(f"alignment is {self.alignment} B; use 1 for none")
        names = {buffer.name for buffer in self.buffers}
        if len(names) < len(self.buffers):
            raise ValueError(f"buffer name {_first_repeated(self.buffers)!r} is used twice")
        for name, offset in self.pinned.items():
            _check_pin(name, offset, self.alignment, names)


@dataclass(frozen=True, slots=True)
class Solution:
    """An offset in bytes for each buffer, in the problem's order, and the height they reach."""

    offsets: dict[str, int] = field(hash=False)
    height_bytes: int
    packer: str

    @classmethod
    def of(cls, problem: Problem, offsets: Mapping[str, int], packer: str) -> Solution:
        """The solution with these offsets: put in the problem's order, its height computed."""
        ordered = {buffer.name: offsets[buffer.name] for buffer in problem.buffers}
        ends = (
            ordered[buffer.name] + aligned_size(buffer.size_bytes, problem.alignment)
            for buffer in problem.buffers
            if buffer.size_bytes
        )
        return cls(ordered, max(ends, default=0), packer)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """The most bytes live at one step: no placement is lower."""

    size_bytes: int
    step: int  # the earliest that reaches it
    buffers: tuple[Buffer, ...]  # live there, largest first

    def __str__(self) -> str:
        named = ", ".join(f"{b.name} {format_bytes(b.size_bytes)}" for b in self.buffers[:3])
        more = f", and {len(self.buffers) - 3} more" if len(self.buffers) > 3 else ""
        return f"{format_bytes(self.size_bytes)} at step {self.step} ({named}{more})"


Packer: TypeAlias = Callable[[Problem], Solution]


def _first_repeated(buffers: Iterable[Buffer]) -> str:
    counts = Counter(buffer.name for buffer in buffers)
    return next(name for name, count in counts.items() if count > 1)


def _check_pin(name: str, offset: int, alignment: int, names: set[str]) -> None:
    if name not in names:
        raise ValueError(f"pinned names {name!r}, which is not a buffer of the problem")
    if offset < 0:
        raise ValueError(f"buffer {name!r} is pinned at {offset} B; offsets are >= 0")
    if offset % alignment:
        raise ValueError(
            f"buffer {name!r} is pinned at {offset} B, not a multiple of the alignment {alignment} "
            f"B; the nearest below is {offset // alignment * alignment} B"
        )


def aligned_size(size_bytes: int, alignment: int) -> int:
    """Bytes in the whole units of `alignment` that hold `size_bytes`."""
    return -(-size_bytes // alignment) * alignment


def format_bytes(size_bytes: int) -> str:
    """A byte count for a person: `640 B`, `1.5 KiB`, `11 MiB`."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**exponent:
            return f"{size_bytes / 1024**exponent:.4g} {unit}"
    return f"{size_bytes} B"


def _occupying(problem: Problem) -> list[Buffer]:
    """The buffers that can clash: with bytes, and live at some step."""
    return [b for b in problem.buffers if b.size_bytes and b.start < b.stop]


# --- the bound ---


def lower_bound(problem: Problem) -> LowerBound:
    """The largest sum of aligned live sizes at any step, and what makes it.

    Sizes are in bytes. An empty problem is bounded by 0 at step 0. Where pins reach is not
    counted.

    >>> print(lower_bound(Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4)))))
    192 B at step 1 (a 128 B, b 64 B)
    """
    counted = _occupying(problem)
    if not counted:
        return LowerBound(0, 0, ())
    starts = np.array([b.start for b in counted], np.int64)
    stops = np.array([b.stop for b in counted], np.int64)
    sizes = np.array([aligned_size(b.size_bytes, problem.alignment) for b in counted], np.int64)
    steps = np.unique(starts)  # the live sum rises nowhere else
    live = _sum_until(starts, sizes, steps) - _sum_until(stops, sizes, steps)
    peak = int(live.argmax())
    step = int(steps[peak])
    makers = sorted(
        (b for b in counted if b.start <= step < b.stop), key=lambda b: b.size_bytes, reverse=True
    )
    return LowerBound(int(live[peak]), step, tuple(makers))


def _sum_until(events: Ints, sizes: Ints, steps: Ints) -> Ints:
    """For each step, the sizes of the events at or before it."""
    order = np.argsort(events)
    running = np.concatenate(([0], np.cumsum(sizes[order])))
    return running[np.searchsorted(events[order], steps, side="right")]


# --- the packers ---


def first_fit_by_start(problem: Problem) -> Solution:
    """Place in order of start (then larger, then earlier in the problem), each as low as it goes.

    Raises `ValueError` when two pins clash.

    >>> first_fit_by_start(Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4)))).offsets
    {'a': 0, 'b': 128}

    Source: the linear-scan order of register allocation.
    """
    return _pack_in_order(problem, _by_start, _lowest, "first_fit_by_start")


def greedy_by_size(problem: Problem) -> Solution:
    """Place in order of size, largest first (then longer, then earlier), each as low as it goes.

    Raises `ValueError` when two pins clash.

    >>> greedy_by_size(Problem((Buffer("a", 64, 0, 2), Buffer("b", 128, 1, 4)))).offsets
    {'a': 128, 'b': 0}

    Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020),
    section 5.2. Left out: its choice of the smallest gap, which is `best_fit`'s.
    """
    return _pack_in_order(problem, _by_size, _lowest, "greedy_by_size")


def best_fit(problem: Problem) -> Solution:
    """Place in order of start (then larger, then earlier), each in the gap that wastes the least.

    A gap is a run of bytes free for the whole life of the buffer, with a placed buffer above it;
    where none is large enough the buffer goes on top. Among equal gaps, the lowest. Order by start
    was measured to pack minimalloc's challenging problems lower than size x duration.
    Raises `ValueError` when two pins clash.

    >>> low, high, new = Buffer("low", 64, 0, 4), Buffer("high", 64, 0, 4), Buffer("new", 64, 1, 2)
    >>> best_fit(Problem((low, high, new), pinned={"low": 128, "high": 256})).offsets
    {'low': 128, 'high': 256, 'new': 192}
    """
    return _pack_in_order(problem, _by_start, _least_waste, "best_fit")


PACKERS: dict[str, Packer] = {
    "first_fit_by_start": first_fit_by_start,
    "greedy_by_size": greedy_by_size,
    "best_fit": best_fit,
}


def pack(problem: Problem) -> Solution:
    """The lowest solution of `PACKERS`; between equals the earlier packer's.

    Stops early at a packer that reaches the lower bound. Raises `ValueError` when two pins clash.

    >>> pack(Problem((Buffer("a", 64, 0, 2), Buffer("b", 64, 2, 3)))).height_bytes
    64
    """
    solutions = _until(lower_bound(problem).size_bytes, (p(problem) for p in PACKERS.values()))
    return min(solutions, key=lambda solution: solution.height_bytes)


def _until(bound_bytes: int, solutions: Iterable[Solution]) -> Iterator[Solution]:
    """The solutions up to the first that is at the bound."""
    for solution in solutions:
        yield solution
        if solution.height_bytes <= bound_bytes:
            return


Order: TypeAlias = Callable[[Buffer], tuple[int, int]]
Choice: TypeAlias = Callable[[Ints, int], int | None]  # gap sizes, wanted -> index of a gap


def _by_start(buffer: Buffer) -> tuple[int, int]:
    return buffer.start, -buffer.size_bytes


def _by_size(buffer: Buffer) -> tuple[int, int]:
    return -buffer.size_bytes, buffer.start - buffer.stop


def _lowest(gaps: Ints, size: int) -> int | None:
    fits = gaps >= size
    index = int(fits.argmax())
    return index if fits[index] else None


def _least_waste(gaps: Ints, size: int) -> int | None:
    wasted = np.where(gaps >= size, gaps, np.iinfo(np.int64).max)
    index = int(wasted.argmin())
    return index if gaps[index] >= size else None


def _pack_in_order(problem: Problem, order: Order, choose: Choice, packer: str) -> Solution:
    """Pins first, then the other buffers by `order`, each where `choose` says."""
    shelf = _Shelf(len(problem.buffers))
    offsets = dict.fromkeys((b.name for b in problem.buffers), 0) | dict(problem.pinned)
    occupying = _occupying(problem)
    unit = problem.alignment
    for buffer in (b for b in occupying if b.name in problem.pinned):
        _place_pin(shelf, buffer, offsets[buffer.name] // unit, unit)
    for buffer in sorted((b for b in occupying if b.name not in problem.pinned), key=order):
        size = -(-buffer.size_bytes // unit)
        low = shelf.find(buffer, size, choose)
        shelf.insert(buffer, low, low + size)
        offsets[buffer.name] = low * unit
    return Solution.of(problem, offsets, packer)


def _place_pin(shelf: _Shelf, buffer: Buffer, low: int, unit: int) -> None:
    high = low - (-buffer.size_bytes // unit)
    other = shelf.occupant(buffer, low, high)
    if other is not None:
        raise ValueError(
            f"buffers {other.name!r} and {buffer.name!r} are pinned to the same bytes (from offset "
            f"{low * unit} B) and both live at step {max(other.start, buffer.start)}; move or "
            "unpin one of them"
        )
    shelf.insert(buffer, low, high)


class _Shelf:
    """The buffers placed so far, in offset order, as parallel arrays in alignment units.

    A query is a few vector operations over what is placed: no Python loop over pairs.
    """

    def __init__(self, most: int) -> None:
        self._rows: Ints = np.empty((4, most), np.int64)  # low, high, start, stop
        self._buffers: list[Buffer] = []

    def _live(self, buffer: Buffer) -> Ints:
        """Positions of the placed buffers that share a step with this one, by offset."""
        _, _, start, stop = self._rows[:, : len(self._buffers)]
        return np.flatnonzero((start < buffer.stop) & (stop > buffer.start))

    def find(self, buffer: Buffer, size: int, choose: Choice) -> int:
        """The offset for the buffer: the chosen gap among its neighbours, or on top of them."""
        live = self._live(buffer)
        if not live.size:
            return 0
        low, high = self._rows[0, live], self._rows[1, live]
        tops = np.maximum.accumulate(high)
        gaps = low.copy()
        gaps[1:] -= tops[:-1]
        index = choose(gaps, size)
        if index is None:
            return int(tops[-1])
        return int(tops[index - 1]) if index else 0

    def occupant(self, buffer: Buffer, low: int, high: int) -> Buffer | None:
        """A placed buffer that shares a step with this one and bytes with [low, high)."""
        live = self._live(buffer)
        clash = live[(self._rows[0, live] < high) & (self._rows[1, live] > low)]
        return self._buffers[int(clash[0])] if clash.size else None

    def insert(self, buffer: Buffer, low: int, high: int) -> None:
        count = len(self._buffers)
        at = int(np.searchsorted(self._rows[0, :count], low, side="right"))
        self._rows[:, at + 1 : count + 1] = self._rows[:, at:count]
        self._rows[:, at] = (low, high, buffer.start, buffer.stop)
        self._buffers.insert(at, buffer)


# --- pictures and files ---

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LABEL = 11  # columns of the offset labels, with their bar


def draw(problem: Problem, solution: Solution, width: int = 72, rows: int = 12) -> str:
    """The solution as text: steps to the right, offsets upwards, one letter a buffer.

    A cell shows the buffer at its centre, `.` where the bytes are free, `#` where two buffers
    clash. Letters repeat after 52 buffers; up to then a legend names them. `rows` is the most
    lines the offsets get; there are fewer when the height has fewer alignment units.
    Raises `ValueError` when `width` leaves no column for the steps.

    >>> problem = Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)))
    >>> print(draw(problem, pack(problem), width=19))
        192 B |..bbbbbb
              |aaaacccc
              |aaaacccc
          0 B +--------
               0      4
    a = a 128 B
    b = b 64 B
    c = c 128 B
    """
    columns = width - _LABEL
    if columns < 1:
        raise ValueError(f"width {width} leaves no room beside the labels; use at least 20")
    shown = [b for b in _occupying(problem) if b.name in solution.offsets]
    if not shown:
        return "(nothing to draw: no placed buffer has both bytes and steps)"
    first, last = min(b.start for b in shown), max(b.stop for b in shown)
    columns = columns // (last - first) * (last - first) or columns  # whole columns a step
    rows = max(1, min(rows, solution.height_bytes // problem.alignment))
    cells = _paint(problem, solution, shown, (first, last), (rows, columns))
    return "\n".join((*_frame(cells, solution.height_bytes, first, last), *_legend(shown, width)))


def _paint(
    problem: Problem,
    solution: Solution,
    shown: list[Buffer],
    steps: tuple[int, int],
    shape: tuple[int, int],
) -> npt.NDArray[np.str_]:
    """Letters by (row from the bottom, column)."""
    cells = np.full(shape, ".", dtype="<U1")
    times = steps[0] + (np.arange(shape[1]) + 0.5) * (steps[1] - steps[0]) / shape[1]
    heights = (np.arange(shape[0]) + 0.5) * solution.height_bytes / shape[0]
    for index, buffer in enumerate(shown):
        low = solution.offsets[buffer.name]
        high = low + aligned_size(buffer.size_bytes, problem.alignment)
        box = np.ix_(
            (heights >= low) & (heights < high), (times >= buffer.start) & (times < buffer.stop)
        )
        cells[box] = np.where(cells[box] == ".", _SYMBOLS[index % len(_SYMBOLS)], "#")
    return cells


def _frame(cells: npt.NDArray[np.str_], height_bytes: int, first: int, last: int) -> Iterator[str]:
    for number, row in enumerate(cells[::-1]):
        label = format_bytes(height_bytes) if number == 0 else ""
        yield f"{label:>{_LABEL - 2}} |{''.join(row)}"
    columns = cells.shape[1]
    yield f"{'0 B':>{_LABEL - 2}} +{'-' * columns}"
    yield " " * _LABEL + f"{first}{last:>{max(columns - len(str(first)), 1)}}"


def _legend(shown: list[Buffer], width: int) -> Iterator[str]:
    if len(shown) > len(_SYMBOLS):
        return
    for symbol, buffer in zip(_SYMBOLS, shown, strict=False):
        yield f"{symbol} = {buffer.name} {format_bytes(buffer.size_bytes)}"[:width]


_COLUMNS = ("id", "lower", "upper", "size")
_UNREAD = ("gaps", "alignment", "start", "end")  # minimalloc columns that would change the problem


def read_minimalloc(
    path: str | Path, capacity_bytes: int | None = None, alignment: int = 1
) -> Problem:
    """The problem in a minimalloc CSV file.

    Columns by name: `id`, `lower`, `upper` (half-open steps), `size` in bytes; others are ignored.
    Raises `ValueError` naming the file, and the line and column where there is one.

    Source: google/minimalloc, `converter`. Left out: gaps in a lifetime, alignments of single
    buffers, and the older inclusive `start`, `end` columns.
    """
    try:
        with open(path, newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            _check_columns(tuple(reader.fieldnames or ()))
            buffers = tuple(_read_buffer(reader.line_num, row) for row in reader)
        return Problem(buffers, capacity_bytes, alignment)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from error


def _check_columns(names: tuple[str, ...]) -> None:
    missing = [name for name in _COLUMNS if name not in names]
    unread = [name for name in _UNREAD if name in names]
    if missing:
        raise ValueError(f"line 1 has no column {missing[0]!r}; needed: {', '.join(_COLUMNS)}")
    if unread:
        raise ValueError(f"column {unread[0]!r} is not supported; only {', '.join(_COLUMNS)} are")


def _read_buffer(line: int, row: Mapping[str, str | None]) -> Buffer:
    start, stop, size = (_read_int(line, name, row[name]) for name in _COLUMNS[1:])
    try:
        return Buffer(row["id"] or "", size, start, stop)
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from error


def _read_int(line: int, column: str, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise ValueError(f"line {line}: {column} is {text!r}, not a whole number") from None
