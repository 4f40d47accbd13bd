"""A slow, obvious checker of packings and memory maps. It shares no code with what makes them.

It takes the data classes of `packing` and `placement` and nothing else from them, compares every
pair of buffers, and returns what is wrong as named findings; an empty list means that all is well.

    bytes 128 ┌───────┐          LiveBytes(low=0, high=128, start=0, stop=3, name="a")
              │ a  ┌──┼────┐     LiveBytes(low=64, high=192, start=2, stop=5, name="b")
            0 └────┴──┘ b  │     → Overlap("a", "b", at_step=2)

A buffer owns whole alignment units, `[offset, offset + size rounded up)`, at the steps of its range
that are in none of its gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tgbench.memory.packing import Buffer, Problem, Solution
from tgbench.memory.placement import Placement, aligned
from tgbench.memory.storage import ScheduledGraph


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Bytes that somebody owns at some steps; both ranges are half-open.

    Fields:
        group: members of one group may own the same bytes; None shares with nobody.
    """

    low: int
    high: int
    start: int
    stop: int
    name: str
    group: Any = None


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two buffers own a common byte at a step where both are live."""

    a: str  # of a packing: the earlier of the two in the problem; of a map: the lower one
    b: str
    at_step: int  # the first such step

    def __str__(self) -> str:
        return f"{self.a} and {self.b} from step {self.at_step} on"


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


def overlaps(owned: Iterable[LiveBytes]) -> Iterator[Overlap]:
    """Every pair that owns a byte at one step, the lowest first.

    >>> a, b = LiveBytes(0, 128, 0, 3, "a"), LiveBytes(64, 192, 2, 5, "b")
    >>> list(overlaps([b, a]))
    [Overlap(a='a', b='b', at_step=2)]
    """
    spans = sorted((span for span in owned if span.low < span.high), key=lambda span: span.low)
    for i, one in enumerate(spans):
        for other in spans[i + 1 :]:
            if other.low >= one.high:
                break  # nor does any after it reach down to this one
            first = max(one.start, other.start)
            is_shared = one.group is not None and one.group == other.group
            if first < min(one.stop, other.stop) and not is_shared:
                yield Overlap(one.name, other.name, first)


def live_bytes(placement: Placement, scheduled: ScheduledGraph) -> Iterator[LiveBytes]:
    """Who owns what of a memory map, and when: slots and scratch.

    What lies below `kept_bytes`, and inputs, are there at every step. A slice is live from its
    definition to its last use; so is a node that some runs keep, as it may be written over then.
    In-place results share their bytes with what they were given.
    """
    end = len(scheduled.schedule) + 1
    for node, slot in placement.slots.items():
        live = scheduled.live.get(node)
        always = live is None or slot.offset_bytes < placement.kept_bytes
        start, stop = (0, end) if always or live is None else (live.start, live.stop)
        high = slot.offset_bytes + aligned(placement.size_of(node))
        group = placement.group(node)
        yield LiveBytes(slot.offset_bytes, high, start, stop, node.name, group)
    for node, scratch in placement.scratch.items():
        step, high = scheduled.position[node], scratch.offset_bytes + scratch.size_bytes
        yield LiveBytes(scratch.offset_bytes, high, step, step + 1, f"{node.name} (scratch)")


def clashes(placement: Placement, scheduled: ScheduledGraph) -> list[Overlap]:
    """All pairs of a memory map that are live at one step and share bytes, by offset."""
    return list(overlaps(live_bytes(placement, scheduled)))


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
    findings.extend(_together(problem, solution, placed))
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


def _together(problem: Problem, solution: Solution, placed: list[Buffer]) -> list[Overlap]:
    """Each pair once, at its first step, in the problem's order."""
    owned = [
        LiveBytes(solution.offsets[b.name], _end(problem, solution, b), start, stop, b.name, b.name)
        for b in placed
        for start, stop in b.intervals
    ]
    order = {buffer.name: i for i, buffer in enumerate(placed)}
    first: dict[tuple[int, int], int] = {}
    for found in overlaps(owned):
        i, j = sorted((order[found.a], order[found.b]))
        first[i, j] = min(found.at_step, first.get((i, j), found.at_step))
    return [Overlap(placed[i].name, placed[j].name, step) for (i, j), step in sorted(first.items())]
