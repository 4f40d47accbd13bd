"""The nouns of the static offset-assignment problem.

    problem   Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)))

    192 B |  bbbbbb     b 64 B, live [1, 4)
          |aaaacccc     a 128 B, live [0, 2)
          |aaaacccc     c 128 B, live [2, 4), takes over the bytes of a
      0 B +--------

Sizes are rounded up to whole units of the alignment, here and in every height and bound. A buffer
keeps its offset for its whole life, the gaps included; inside a gap its bytes are anybody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tgbench.base.stopping import StopReason

Ints: TypeAlias = npt.NDArray[np.int64]
Steps: TypeAlias = tuple[int, int]  # start, stop; half-open

MOST = 1 << 62  # bytes of a height, and steps


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named extent of bytes, live at the steps `start <= step < stop` outside its gaps.

    Raises `ValueError` for a negative size, a range that ends before it starts, and gaps that are
    empty, not in order, not apart from each other, or not inside the range.

    >>> Buffer("cache", 64, 0, 9, gaps=((2, 4), (5, 6))).intervals
    ((0, 2), (4, 5), (6, 9))
    """

    name: str
    size_bytes: int
    start: int  # schedule step that defines it
    stop: int  # exclusive: first step that no longer reads it
    gaps: tuple[Steps, ...] = ()  # half-open steps between, at which others may use its bytes

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ValueError(f"buffer {self.name!r} has size {self.size_bytes} B; sizes are >= 0")
        if self.stop < self.start:
            raise ValueError(
                f"buffer {self.name!r} is live over [{self.start}, {self.stop}), which ends before "
                "it starts; the range is half-open, so a buffer live at one step s is [s, s + 1)"
            )
        if self.gaps:
            _check_gaps(self)

    @property
    def intervals(self) -> tuple[Steps, ...]:
        """The steps at which it is live, as half-open intervals in order; none is empty."""
        if not self.gaps:
            return ((self.start, self.stop),) if self.start < self.stop else ()
        edges = [self.start, *chain.from_iterable(self.gaps), self.stop]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple([pair for pair in pairs if pair[0] < pair[1]])


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers to place, the offsets that are already decided, and the units they come in.

    Raises `ValueError` for a repeated name, an alignment below 1, sizes or steps beyond 64 bits, or
    a pin that names no buffer, is negative or is not aligned.
    """

    buffers: tuple[Buffer, ...]
    capacity_bytes: int | None = None
    alignment: int = 64  # bytes
    pinned: Mapping[str, int] = field(default_factory=dict, hash=False)  # name -> offset in bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "pinned", dict(self.pinned))
        if self.alignment < 1:
            raise ValueError(f"alignment is {self.alignment} B; use 1 for none")
        _check_ranges(self.buffers, self.alignment)
        names = {buffer.name for buffer in self.buffers}
        if len(names) < len(self.buffers):
            raise ValueError(f"buffer name {_first_repeated(self.buffers)!r} is used twice")
        for name, offset in self.pinned.items():
            _check_pin(name, offset, self.alignment, names)


@dataclass(frozen=True, slots=True)
class Solution:
    """An offset in bytes for each buffer, in the problem's order, and how it came about.

    Fields:
        height_bytes: where the highest buffer ends.
        packer: what made the offsets.
        bound_bytes: no packing is lower, as far as was shown.
        stop_reason: why nothing lower was looked for; None for offsets that `pack` did not make.
        steps: nodes that the complete search visited, and moves of the repair.
        turns: how many of them each searcher took.
    """

    offsets: dict[str, int] = field(hash=False)
    height_bytes: int
    packer: str
    bound_bytes: int = 0
    stop_reason: StopReason | None = None
    steps: int = 0
    turns: dict[str, int] = field(default_factory=dict, hash=False)

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

    @property
    def is_proven(self) -> bool:
        """Whether no search could do better: the lowest height, or a capacity nobody can meet."""
        return self.stop_reason in (StopReason.OPTIMAL, StopReason.INFEASIBLE)

    @property
    def ratio(self) -> float:
        """Height over bound; 1 for nothing at all."""
        return self.height_bytes / self.bound_bytes if self.bound_bytes else 1.0


def _first_repeated(buffers: Iterable[Buffer]) -> str:
    counts = Counter(buffer.name for buffer in buffers)
    return next(name for name, count in counts.items() if count > 1)


def _check_ranges(buffers: Iterable[Buffer], alignment: int) -> None:
    """Heights and steps are numbers of 64 bits."""
    height = sum(aligned_size(buffer.size_bytes, alignment) for buffer in buffers)
    if height > MOST:
        raise ValueError("the buffers' sizes add up to more than 2^62 bytes")
    if any(buffer.start < -MOST or buffer.stop > MOST for buffer in buffers):
        raise ValueError("a buffer is live at steps beyond 2^62")


def _check_gaps(buffer: Buffer) -> None:
    after = buffer.start
    for start, stop in buffer.gaps:
        if stop <= start:
            raise ValueError(f"buffer {buffer.name!r} has the gap [{start}, {stop}) of no steps")
        if start < after or stop > buffer.stop:
            raise ValueError(
                f"buffer {buffer.name!r} has the gap [{start}, {stop}), which is not inside "
                f"[{after}, {buffer.stop}), what the gaps before it leave; give gaps in order, "
                "disjoint, and inside the live range"
            )
        after = stop


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


def occupying(problem: Problem) -> Iterator[Buffer]:
    """The buffers that can clash: with bytes, and live at some step."""
    return (b for b in problem.buffers if b.size_bytes and b.intervals)
