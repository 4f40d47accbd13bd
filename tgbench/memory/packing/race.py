"""The race: searchers take turns under growing limits, until one packs a problem or proves a bound.

    repair     ▮      ▮▮      ▮▮▮         what does not fit pushes others out; proves nothing
    together    ▮▮▮▮    ▮▮▮▮▮▮▮▮          the strategies of the complete search, learning from
    alone           ▮▮▮▮        ▮▮▮▮▮▮▮▮  each other's failures; the same, each from its own
               ─────────────────────────→ a turn of each takes about the same time

Which of them packs a problem soon is luck, by factors of a hundred either way; the best costs at
most as many times its own time as there are searchers, and hardly more where each is lucky
somewhere. Turns count nodes and moves, so equal limits of steps give equal offsets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tgbench.base.stopping import Limits, StopReason
from tgbench.memory.packing.heuristics import FREE, ProblemArrays
from tgbench.memory.packing.parts import Arrays, separate, totals
from tgbench.memory.packing.problem import Ints
from tgbench.memory.packing.repair import SPREADS, Repair
from tgbench.memory.packing.running import LimitError, load
from tgbench.memory.packing.search import (
    EXHAUSTED,
    RUNNING,
    SEARCHERS,
    SOLVED,
    Descent,
    Pruning,
    Searcher,
)

FIRST_LIMIT, GROWTH = 500, 1.5  # nodes of the first turns; by how much they grow


@dataclass(frozen=True, slots=True)
class Repairer:
    """A repair, by its place in `SPREADS`."""

    spread: int

    def __str__(self) -> str:
        return f"repair {SPREADS[self.spread]:g}"


REPAIRERS = tuple(Repairer(i) for i in range(len(SPREADS)))
RACERS: tuple[Repairer | Searcher, ...] = (*REPAIRERS, *SEARCHERS)


class Component:
    """Buffers that are packed for themselves, and what is known of them.

    Fields:
        low, height: the best packing so far, in units of `arrays`.
        bound: no packing is lower.
    """

    def __init__(self, prepared: ProblemArrays, arrays: Arrays, offsets: Ints) -> None:
        self.arrays = arrays
        self.bound = int(totals(arrays).max())
        self._keep(offsets[arrays.members] // arrays.unit)
        self._descent = Descent(prepared, arrays)
        self._repairs = [Repair(arrays, spread) for spread in SPREADS]

    def _keep(self, low: Ints) -> None:
        self.low = low
        self.height = int((low + self.arrays.sizes).max())

    def attempt(
        self, racer: Repairer | Searcher, capacity: int, limit: int, rules: Pruning, limits: Limits
    ) -> int:
        """Look for a packing below a capacity; keep it when there is one.

        Returns SOLVED, EXHAUSTED when there is none, or RUNNING when the time of `limit` nodes did
        not do. Raises `LimitError`.
        """
        if capacity < self.bound:
            return EXHAUSTED
        if isinstance(racer, Repairer):
            repair = self._repairs[racer.spread]
            found = repair.attempt(self.low, capacity, limit * repair.moves_a_node, limits)
            if found is None:
                return RUNNING
            self._keep(found)
            return SOLVED
        if limit < len(self.low):  # too few to place every buffer once
            return RUNNING
        answer, low = self._descent.attempt(racer, capacity, limit, rules, limits)
        if answer == SOLVED:
            self._keep(low)
        if answer == EXHAUSTED:
            self.bound = capacity + 1
        return answer


@dataclass
class PackingRace:
    """A problem in parts, on the way to a lower packing.

    Fields:
        unit: what all sizes and pins are multiples of, in alignment units.
        floor: nothing is gained below, because a pin or the largest buffer ends there.
        turns: the steps that each searcher took.
        winner: who found the newest packing.
    """

    prepared: ProblemArrays
    parts: list[Component]
    unit: int
    floor: int
    rules: Pruning
    limits: Limits
    turns: Counter[str] = field(default_factory=Counter)
    winner: str = ""

    @classmethod
    def of(
        cls, prepared: ProblemArrays, offsets: Ints, rules: Pruning, limits: Limits
    ) -> PackingRace:
        """Begin with a packing, in alignment units."""
        load("search_loops")
        pinned = prepared.pins[prepared.pins != FREE]
        unit = math.gcd(prepared.floor, *prepared.sizes.tolist(), *pinned.tolist())
        parts = [
            Component(prepared, Arrays.of(prepared, members, unit), offsets)
            for members in separate(prepared)
        ]
        return cls(prepared, parts, unit, prepared.floor // unit, rules, limits)

    @property
    def bound(self) -> int:
        """No packing is lower; in alignment units."""
        return max([self.floor, *(part.bound for part in self.parts)]) * self.unit

    @property
    def offsets(self) -> Ints:
        """The best packing so far, in alignment units."""
        offsets = self.prepared.pins.copy()
        for part in self.parts:
            offsets[part.arrays.members] = part.low * self.unit
        return offsets

    def fit(self, capacity: int) -> StopReason:
        """Look for a packing below a capacity in alignment units."""
        capacity //= self.unit
        try:
            for racer, limit in _turns():
                high = [part for part in self.parts if part.height > capacity]
                if self.floor > capacity:
                    return StopReason.INFEASIBLE
                if not high:
                    return StopReason.FITS
                for part in high:
                    if self._answer(part, racer, capacity, limit) == EXHAUSTED:
                        return StopReason.INFEASIBLE
        except LimitError as stopped:
            return stopped.reason
        raise AssertionError("limits grow for ever")

    def minimise(self) -> StopReason:
        """Look for the lowest packing."""
        try:
            for racer, limit in _turns():
                aim = self.bound // self.unit
                high = [part for part in self.parts if part.height > aim]
                if not high:
                    return StopReason.OPTIMAL
                lower = self._lowered if isinstance(racer, Repairer) else self._raised
                for part in high:
                    lower(part, racer, aim, limit)
        except LimitError as stopped:
            return stopped.reason
        raise AssertionError("limits grow for ever")

    def _lowered(self, part: Component, racer: Repairer | Searcher, aim: int, limit: int) -> None:
        """Half-way down to the aim, else an eighth; as often as one of them is packed."""
        answer = SOLVED
        while aim < part.height and answer == SOLVED:
            for share in (2, 8):
                lower = part.height - max(1, (part.height - aim) // share)
                answer = self._answer(part, racer, lower, limit)
                if answer == SOLVED:
                    break

    def _raised(self, part: Component, racer: Repairer | Searcher, aim: int, limit: int) -> None:
        """At the aim, else half-way between it and the best: what is exhausted is a bound."""
        while aim < part.height:
            if self._answer(part, racer, aim, limit) != RUNNING:
                return
            aim = (aim + part.height + 1) // 2

    def _answer(
        self, part: Component, racer: Repairer | Searcher, capacity: int, limit: int
    ) -> int:
        before, answer = self.limits.steps, RUNNING
        try:
            answer = part.attempt(racer, capacity, limit, self.rules, self.limits)
        finally:
            self.turns[str(racer)] += self.limits.steps - before
        if answer == SOLVED:
            self.winner = str(racer)
        return answer


def _turns() -> Iterator[tuple[Repairer | Searcher, int]]:
    """Who is next, under which limit of nodes: everyone has a turn before limits grow."""
    limit = float(FIRST_LIMIT)
    while True:
        for racer in RACERS:
            yield racer, int(limit)
        limit *= GROWTH
