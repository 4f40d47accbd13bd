"""Packings as text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tgbench.base.words import format_bytes, printable
from tgbench.memory.packing.problem import Buffer, Problem, Solution, aligned_size, occupying

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LABEL = 11  # columns of the offset labels, with their bar


def draw(problem: Problem, solution: Solution, width: int = 72, rows: int = 12) -> str:
    """The solution as text: steps to the right, offsets upwards, one letter a buffer.

    A cell shows the buffer at its centre, `.` where the bytes are free, `#` where two buffers
    clash. Letters repeat after 52 buffers; up to then a legend names them. `rows` is the most
    lines the offsets get; there are fewer when the height has fewer alignment units.
    Gaps of a lifetime stay free. Raises `ValueError` when `width` leaves no column for the steps.

    >>> problem = Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)))
    >>> solution = Solution.of(problem, {"a": 0, "b": 128, "c": 0}, "by hand")
    >>> print(draw(problem, solution, width=19))
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
    shown = [b for b in occupying(problem) if b.name in solution.offsets]
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
        for start, stop in buffer.intervals:
            box = np.ix_((heights >= low) & (heights < high), (times >= start) & (times < stop))
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
        yield printable(f"{symbol} = {buffer.name} {format_bytes(buffer.size_bytes)}")[:width]
