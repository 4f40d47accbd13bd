"""One-pass packers: an order of the buffers, and a choice among the gaps that are free for each.

A gap is a run of bytes that is free for the whole life of a buffer, below one that is placed. A
buffer that fits into none goes on top of those it meets.

    by pressure   buffers that are live where the most bytes are live come first; the lowest gap
    by size       the largest first; the lowest gap
    by start      the earliest first; the tightest gap
    promoted      what ended above the aim comes earlier, and the pass is repeated

Which orders are kept was measured on minimalloc's problems, on layered networks, and on lifetimes
with gaps (`docs/decisions/0014-complete-packing-search.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tgbench.memory.packing.lifetimes import Lifetimes, Staircase
from tgbench.memory.packing.problem import Buffer, Ints, Problem, Solution, occupying

PROMOTIONS = 4  # repeated passes for each order
FREE = -1  # no offset yet


@dataclass(frozen=True)
class ProblemArrays:
    """A problem as arrays, over the buffers that can clash; sizes in alignment units.

    Fields:
        pins: offsets that are given, `FREE` for the others.
    """

    problem: Problem
    buffers: tuple[Buffer, ...]
    sizes: Ints
    pins: Ints
    lifetimes: Lifetimes

    @classmethod
    def of(cls, problem: Problem) -> ProblemArrays:
        """Raises `ValueError` when two pins clash."""
        buffers, unit = tuple(occupying(problem)), problem.alignment
        sizes = np.array([-(-buffer.size_bytes // unit) for buffer in buffers], np.int64)
        given = [problem.pinned.get(buffer.name, FREE * unit) // unit for buffer in buffers]
        pins = np.array(given, np.int64)
        prepared = cls(problem, buffers, sizes, pins, Lifetimes.of(buffers))
        prepared._check_pins()
        return prepared

    @cached_property
    def neighbours(self) -> list[Ints]:
        """For each buffer, those that share a step with it."""
        return [self.lifetimes.neighbours(index) for index in range(len(self.buffers))]

    @cached_property
    def profile(self) -> Staircase:
        return Staircase.of(self.lifetimes, self.sizes)

    @cached_property
    def pressure(self) -> Ints:
        """The most units live at any step of each buffer's life."""
        return self.profile.highest_during(self.lifetimes)

    @cached_property
    def steps(self) -> Ints:
        return self.lifetimes.steps

    @cached_property
    def floor(self) -> int:
        """Where the highest pin ends, or the largest buffer at the bottom; in units."""
        unit, pinned = self.problem.alignment, self.problem.pinned
        ends = (
            pinned.get(b.name, 0) // unit - (-b.size_bytes // unit)
            for b in self.problem.buffers
            if b.size_bytes
        )
        return max(ends, default=0)

    @property
    def bound(self) -> int:
        """No packing has fewer units: the floor, and the most that is live at a step."""
        live = int(self.profile.live.max()) if self.buffers else 0
        return max(self.floor, live)

    def solution(self, offsets: Ints, packer: str) -> Solution:
        """Offsets in units, as bytes; what cannot clash lies at its pin or at the bottom."""
        problem = self.problem
        placed = dict.fromkeys((buffer.name for buffer in problem.buffers), 0)
        placed |= problem.pinned
        in_bytes = (offsets * problem.alignment).tolist()
        placed |= {b.name: low for b, low in zip(self.buffers, in_bytes, strict=True)}
        return Solution.of(problem, placed, packer)

    def _check_pins(self) -> None:
        fixed = np.flatnonzero(self.pins != FREE)
        for index in fixed.tolist():
            low, high = self.pins[index], self.pins[index] + self.sizes[index]
            others = np.intersect1d(self.lifetimes.neighbours(index), fixed)
            ends = self.pins[others] + self.sizes[others]
            clash = others[(self.pins[others] < high) & (ends > low)]
            if clash.size:
                one, other = self.buffers[index], self.buffers[clash[0]]
                raise ValueError(
                    f"buffers {one.name!r} and {other.name!r} are pinned to the same bytes (from "
                    f"offset {int(low) * self.problem.alignment} B) and both live at step "
                    f"{_first_shared(one, other)}; move or unpin one of them"
                )


def _first_shared(one: Buffer, other: Buffer) -> int:
    return min(
        max(start, begin)
        for start, stop in one.intervals
        for begin, end in other.intervals
        if max(start, begin) < min(stop, end)
    )


Order: TypeAlias = Callable[[ProblemArrays], Ints]  # buffers, the first to place first
Choice: TypeAlias = Callable[[Ints, Ints], int]  # gaps that are large enough; the sizes of all


def by_start(prepared: ProblemArrays) -> Ints:
    """Start, then the larger.

    Source: the linear-scan order of register allocation.
    """
    starts = prepared.lifetimes.start[prepared.lifetimes.first[:-1]]
    return np.lexsort((-prepared.sizes, starts))


def by_size(prepared: ProblemArrays) -> Ints:
    """The largest, then the longest.

    Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020),
    section 5.2. Left out: its choice of the smallest gap.
    """
    return np.lexsort((-prepared.steps, -prepared.sizes))


def by_pressure(prepared: ProblemArrays) -> Ints:
    """Where the most is live, then the longest, then the most bytes × steps.

    Source: Moffitt, "MiniMalloc" (2023), the preordering TWA.
    """
    area = prepared.sizes * prepared.steps
    return np.lexsort((-area, -prepared.steps, -prepared.pressure))


def by_area(prepared: ProblemArrays) -> Ints:
    """The most bytes × steps."""
    return np.argsort(-prepared.sizes * prepared.steps, kind="stable")


def lowest(fits: Ints, gaps: Ints) -> int:
    """The first gap."""
    return int(fits[0])


def tightest(fits: Ints, gaps: Ints) -> int:
    """The gap that leaves the least."""
    return int(fits[gaps[fits].argmin()])


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A named way to place one buffer after the other."""

    name: str
    order: Order
    choice: Choice

    def __call__(self, problem: Problem) -> Solution:
        """One pass. Raises `ValueError` when two pins clash."""
        prepared = ProblemArrays.of(problem)
        offsets = placed_in_order(prepared, self.order(prepared), self.choice)
        return prepared.solution(offsets, self.name)


PACKERS: dict[str, Heuristic] = {
    heuristic.name: heuristic
    for heuristic in (
        Heuristic("best_fit_by_start", by_start, tightest),
        Heuristic("greedy_by_pressure", by_pressure, lowest),
        Heuristic("greedy_by_size", by_size, lowest),
    )
}


def placed_in_order(prepared: ProblemArrays, order: Ints, choice: Choice) -> Ints:
    """Offsets in units: pins first, then the others in this order, each where `choice` says."""
    offsets = prepared.pins.copy()
    ends = offsets + prepared.sizes
    for index in order.tolist():
        if prepared.pins[index] == FREE:
            near = prepared.neighbours[index]
            near = near[offsets[near] != FREE]
            low = _found(offsets[near], ends[near], prepared.sizes[index], choice)
            offsets[index] = low
            ends[index] = low + prepared.sizes[index]
    return offsets


def _found(lows: Ints, highs: Ints, size: int, choice: Choice) -> int:
    """Where a buffer goes among the buffers that it meets."""
    if not lows.size:
        return 0
    upwards = lows.argsort(kind="stable")
    tops = np.maximum.accumulate(highs[upwards])
    gaps = lows[upwards]
    gaps[1:] -= tops[:-1]
    fits = (gaps >= size).nonzero()[0]
    if not fits.size:
        return int(tops[-1])
    chosen = choice(fits, gaps)
    return int(tops[chosen - 1]) if chosen else 0


def attempts(prepared: ProblemArrays, aim: int) -> Iterator[Solution]:
    """Solutions of every heuristic, first plain and then with what ended above `aim` promoted.

    Source: Joslin and Clements, "Squeaky wheel optimization" (1999).
    """
    ranks = {name: _ranks(packer.order(prepared)) for name, packer in PACKERS.items()}
    for turn in range(PROMOTIONS + 1):
        for name, packer in PACKERS.items():
            order = np.argsort(ranks[name], kind="stable")
            offsets = placed_in_order(prepared, order, packer.choice)
            yield prepared.solution(offsets, f"{name}+{turn}" if turn else name)
            above = offsets + prepared.sizes > aim
            ranks[name] = np.where(above, ranks[name] / 2 - 1, ranks[name])


def _ranks(order: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ranks = np.empty(len(order))
    ranks[order] = np.arange(len(order))
    return ranks
