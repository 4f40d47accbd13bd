"""A slow, obvious checker of packings. It shares no code with the packers.

It takes the data classes of `packing` and nothing else from it, compares every pair of buffers,
and returns what is wrong as named findings; an empty list means the solution is valid.

A buffer owns whole alignment units, `[offset, offset + size rounded up)`, at the steps of its range
that are in none of its gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from tgbench.memory.packing import Buffer, Problem, Solution


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two buffers own a common byte at a step where both are live."""

    a: str  # the earlier of the two in the problem
    b: str
    at_step: int  # the first such step


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """A buffer ends above the capacity."""

    name: str
    end_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class NegativeOffset:
    """A buffer starts below the arena."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Misaligned:
    """An offset is not a multiple of the alignment."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A buffer of the problem has no offset."""

    name: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An offset is for no buffer of the problem."""

    name: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A pinned buffer is elsewhere."""

    name: str
    offset: int
    pinned_offset: int


@dataclass(frozen=True, slots=True)
class WrongHeight:
    """The stated height is not where the highest buffer ends."""

    stated_bytes: int
    actual_bytes: int


Finding: TypeAlias = (
    Overlap | OutOfBounds | NegativeOffset | Misaligned | Missing | Unknown | Moved | WrongHeight
)


def validate(problem: Problem, solution: Solution) -> list[Finding]:
    """Everything wrong with the solution; an empty list when it is valid.

    >>> problem = Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4)))
    >>> validate(problem, Solution({"a": 0, "b": 64}, 128, "by hand"))
    [Overlap(a='a', b='b', at_step=1)]
    """
    placed = [buffer for buffer in problem.buffers if buffer.name in solution.offsets]
    findings: list[Finding] = list(_names(problem, solution))
    for buffer in placed:
        findings.extend(_alone(problem, solution, buffer))
    for one, other in combinations(placed, 2):
        findings.extend(_together(problem, solution, one, other))
    ends = [_end(problem, solution, buffer) for buffer in placed if buffer.size_bytes > 0]
    height = max(ends, default=0)
    if solution.height_bytes != height:
        findings.append(WrongHeight(solution.height_bytes, height))
    return findings


def _end(problem: Problem, solution: Solution, buffer: Buffer) -> int:
    """The first byte above the buffer."""
    whole_units, rest = divmod(buffer.size_bytes, problem.alignment)
    units = whole_units + 1 if rest > 0 else whole_units
    return solution.offsets[buffer.name] + units * problem.alignment


def _names(problem: Problem, solution: Solution) -> Iterator[Finding]:
    names = [buffer.name for buffer in problem.buffers]
    for name in names:
        if name not in solution.offsets:
            yield Missing(name)
    for name in solution.offsets:
        if name not in set(names):
            yield Unknown(name)


def _alone(problem: Problem, solution: Solution, buffer: Buffer) -> Iterator[Finding]:
    name, offset = buffer.name, solution.offsets[buffer.name]
    end = _end(problem, solution, buffer)
    if offset < 0:
        yield NegativeOffset(name, offset)
    if offset % problem.alignment != 0:
        yield Misaligned(name, offset)
    capacity = problem.capacity_bytes
    if capacity is not None and buffer.size_bytes > 0 and end > capacity:
        yield OutOfBounds(name, end, capacity)
    if name in problem.pinned and offset != problem.pinned[name]:
        yield Moved(name, offset, problem.pinned[name])


def _together(
    problem: Problem, solution: Solution, one: Buffer, other: Buffer
) -> Iterator[Overlap]:
    byte = max(solution.offsets[one.name], solution.offsets[other.name])
    if byte >= min(_end(problem, solution, one), _end(problem, solution, other)):
        return
    begins = [step for buffer in (one, other) for step in _begins(buffer)]
    clashes = [step for step in begins if _is_live(one, step) and _is_live(other, step)]
    if clashes:
        yield Overlap(one.name, other.name, min(clashes))


def _begins(buffer: Buffer) -> list[int]:
    """The steps at which it may become live: what is shared begins with one of these."""
    return [buffer.start] + [stop for _, stop in buffer.gaps]


def _is_live(buffer: Buffer, step: int) -> bool:
    in_gap = any(start <= step < stop for start, stop in buffer.gaps)
    return buffer.start <= step < buffer.stop and not in_gap
