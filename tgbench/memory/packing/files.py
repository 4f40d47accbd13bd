"""Problems and solutions as the CSV files of minimalloc.

    id,lower,upper,size,gaps            `lower`, `upper`: half-open steps; `size`: bytes
    kv,0,20,4096,3-5 8-15               `gaps`: half-open steps at which it is not live

A solution is the same file with a column `offset`.

Source: google/minimalloc, `converter`. Left out: alignments of single buffers, gaps that free only
some of the bytes (`3-5@0:64`), and the older inclusive `start`, `end` columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import PackingError
from tgbench.base.strict_json import bounded_text
from tgbench.base.words import is_name, shorten
from tgbench.memory.packing.problem import Buffer, Problem, Solution, Steps

_COLUMNS = ("id", "lower", "upper", "size")
_UNREAD = ("alignment", "start", "end")  # minimalloc columns that would change the problem


def read_minimalloc(
    path: str | Path, capacity_bytes: int | None = None, alignment: int = 1
) -> Problem:
    """The problem in a minimalloc CSV file; columns are found by name, unknown ones ignored.

    Raises `PackingError` naming the file, and the line and column where there is one.
    """
    try:
        reader = csv.DictReader(io.StringIO(bounded_text(path), newline=""))
        _check_columns(tuple(reader.fieldnames or ()))
        buffers = tuple(_read_buffer(reader.line_num, row) for row in reader)
        return Problem(buffers, capacity_bytes, alignment)
    except OSError as error:
        raise PackingError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, csv.Error) as error:
        raise PackingError(f"{path}: {error}") from error


def write_minimalloc(path: str | Path, problem: Problem, solution: Solution | None = None) -> None:
    """Write a problem, and its offsets if there are any, so that `read_minimalloc` reads it back.

    Atomically; raises `WeightsError` for what the file system refuses. Capacity, alignment and pins
    have no place in the file.
    """
    has_gaps = any(buffer.gaps for buffer in problem.buffers)
    header = [*_COLUMNS, *["gaps"] * has_gaps, *["offset"] * (solution is not None)]
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as lines,
    ):
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(header)
        for b in problem.buffers:
            row: list[str | int] = [b.name, b.start, b.stop, b.size_bytes]
            if has_gaps:
                row.append(" ".join(f"{start}-{stop}" for start, stop in b.gaps))
            if solution is not None:
                row.append(solution.offsets[b.name])
            writer.writerow(row)


def _check_columns(names: tuple[str, ...]) -> None:
    missing = [name for name in _COLUMNS if name not in names]
    unread = [name for name in _UNREAD if name in names]
    if missing:
        raise ValueError(f"line 1 has no column {missing[0]!r}; needed: {', '.join(_COLUMNS)}")
    if unread:
        raise ValueError(f"column {unread[0]!r} is not supported; only {', '.join(_COLUMNS)} are")


def _read_buffer(line: int, row: Mapping[str, str | None]) -> Buffer:
    start, stop, size = (_read_int(line, name, row[name]) for name in _COLUMNS[1:])
    gaps = tuple(_read_gap(line, text) for text in (row.get("gaps") or "").split())
    if not is_name(row["id"]):
        raise ValueError(f"line {line}: id is {shorten(row['id'])}, which is no name")
    try:
        return Buffer(row["id"] or "", size, start, stop, gaps)
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from error


def _read_int(line: int, column: str, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise ValueError(f"line {line}: {column} is {shorten(text)}, not a whole number") from None


def _read_gap(line: int, text: str) -> Steps:
    try:
        start, stop = text.split("-")
        return int(start), int(stop)
    except ValueError:
        raise ValueError(
            f"line {line}: gaps has {shorten(text)}; a gap is two steps, such as 3-5, and gaps are "
            "separated by spaces"
        ) from None
