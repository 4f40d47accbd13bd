"""The complete search: a packing below a capacity, or the proof that there is none.

    capacity  ┌───────────────────────┐   Depth-first, from the bottom up. Every unplaced buffer
              │    ?     ┆     ?      │   has the lowest offset that it can still have. A node takes
              │ ┌────┐┌──┴─┐  ┌─────┐ │   a buffer under which nothing unplaced fits: either it lies
              │ │ a  ││ b  ├──┤  c  │ │   exactly there, or something unplaced comes below it.
              └─┴────┴┴────┴──┴─────┴─┘   Where no unplaced buffer crosses, the parts are separate.

Time is cut into the sections at which the set of live buffers is largest (the maximal cliques).
If any packing exists, then one in which every buffer stands on the bottom, on another buffer, or
on a pin; only such packings are looked for. Failures add weight to the sections at which they
happen, and weighted sections come first when the search starts again with another order and a
larger limit of nodes. Several searchers take turns (`race`): some learn from each other's failures,
others from their own alone.

Sources: Moffitt, "MiniMalloc" (2023), for canonical packings, sections, and their separation;
Carlier and Pinson (1989), for the rule about what can be first on a machine; Boussemart et al.,
"Boosting systematic search by weighting constraints" (2004), for the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tgbench.base.stopping import Limits
from tgbench.memory.packing.heuristics import Order, ProblemArrays, by_area, by_pressure
from tgbench.memory.packing.parts import Arrays
from tgbench.memory.packing.problem import Ints
from tgbench.memory.packing.running import load, stretches

Floats: TypeAlias = npt.NDArray[np.float64]
REMEMBERED = 1 << 16  # failed states
CHUNK = 4_000_000  # visits of (buffer, section) between two looks at the clock; about 50 ms
RUNNING, SOLVED, EXHAUSTED, FULL = range(4)  # what the compiled loop returns


@dataclass(frozen=True, slots=True)
class Pruning:
    """What cuts the search short. Each can be left out, and no answer changes.

    Fields:
        stacking: what is unplaced in a section has to fit above the lowest of it, whatever comes
            first (the bound of a machine with release times).
        not_first: a buffer with which at the bottom of a section the rest would not fit stands
            above one that can be there.
        support: a buffer that is lifted stands on the lowest end of a neighbour, not one unit up.
        anywhere: every buffer under which nothing fits may be decided next, not only the lowest.
        twins: equal buffers lie in the order in which they are given.
        parts: sections between which no unplaced buffer is live are solved one after the other.
        failed: states that failed before are not searched again.
    """

    stacking: bool = True
    not_first: bool = True
    support: bool = True
    anywhere: bool = True
    twins: bool = True
    parts: bool = True
    failed: bool = True

    @property
    def bits(self) -> int:
        return sum(getattr(self, rule.name) << bit for bit, rule in enumerate(fields(self)))


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the next buffer is chosen, among those under which nothing fits.

    Fields:
        name: says what comes first.
        order: the last criterion.
        branching: bits for the compiled loop. 1: where the fewest can be first (else: where only
            one can). 2: by weight of the sections, 4: by offset over weight (else: by offset).
            8: by weight after that (else: by order).
    """

    name: str
    order: Order
    branching: int


STRATEGIES = (
    Strategy("heaviest", by_area, 1 | 2),
    Strategy("fewest", by_area, 1),
    Strategy("lowest", by_pressure, 8),
    Strategy("low and heavy", by_pressure, 4),
)


@dataclass(frozen=True, slots=True)
class Searcher:
    """A strategy, and whose failures it learns from.

    What one strategy learns helps another on some problems and misleads it on others, by factors
    of a hundred either way; a race of both costs twice the better one at most.

    Fields:
        strategy: its place in `STRATEGIES`.
        weights: searchers of the same number share the weights of sections.
    """

    strategy: int
    weights: int

    def __str__(self) -> str:
        return f"{STRATEGIES[self.strategy].name}, {'alone' if self.weights else 'together'}"


TOGETHER = tuple(Searcher(i, 0) for i in range(len(STRATEGIES)))
ALONE = tuple(Searcher(i, 1 + i) for i in range(len(STRATEGIES)))
SEARCHERS = (*TOGETHER, *ALONE)


class Descent:
    """What the searchers of a part learned: the weights of sections, and states that failed."""

    def __init__(self, prepared: ProblemArrays, arrays: Arrays) -> None:
        self._arrays = arrays
        self._weights: dict[int, Floats] = {
            searcher.weights: np.ones(arrays.sections) for searcher in SEARCHERS
        }
        self._failed = np.zeros((REMEMBERED, 2), np.uint64)
        self._failed_at = 0  # the capacity that the failed states are for
        self._ranks = [_ranks(prepared, arrays, s.order) for s in STRATEGIES]

    def attempt(
        self, searcher: Searcher, capacity: int, limit: int, rules: Pruning, limits: Limits
    ) -> tuple[int, Ints]:
        """Look for a packing below a capacity: an answer, and the offsets.

        The answer is SOLVED, EXHAUSTED when there is none, or RUNNING when `limit` nodes did not
        do. Raises `LimitError`.
        """
        if capacity > self._failed_at:
            self._failed[:] = 0
        self._failed_at = capacity
        state, weight = State.of(self._arrays), self._weights[searcher.weights]
        given = (capacity, rules.bits, STRATEGIES[searcher.strategy].branching)
        rank = self._ranks[searcher.strategy]
        answer = self._run(state, given, rank, weight, limit, limits)
        weight[:] = 1 + (weight - 1) / 2
        return (RUNNING if answer == FULL else answer), state.low

    def _run(
        self, state: State, given: tuple[int, int, int], rank: Ints, weight: Floats, limit: int,
        limits: Limits,
    ) -> int:  # fmt: skip
        a, descend = self._arrays, load("search_loops").descend
        for nodes in stretches(limits, limit, max(16, CHUNK // a.visits)):
            before = int(state.counters[-1])
            answer = descend(
                *given, nodes,
                a.sizes, a.first, a.lo, a.hi, a.near_first, a.near,
                a.pin_first, a.pin_low, a.pin_high, a.twin, rank,
                *state.arrays, weight, self._failed,
            )  # fmt: skip
            limits.steps += int(state.counters[-1]) - before
            if answer != RUNNING:
                return int(answer)
        return RUNNING


@dataclass(frozen=True, slots=True)
class State:
    """Where the compiled loop stands; see there for what the columns are."""

    low: Ints
    placed: npt.NDArray[np.uint8]
    cover: Ints
    counters: Ints
    frames: Ints
    parts: Ints
    trail: Ints
    undo: Ints
    order: Ints
    active: Ints
    keys: npt.NDArray[np.uint64]
    total: Ints
    firsts: Ints
    any_end: Ints
    first_end: Ints

    @classmethod
    def of(cls, a: Arrays) -> State:
        """Nothing is placed: every buffer is as low as pins let it."""
        count, frames = len(a.sizes), 4 * len(a.sizes) + 20_000
        low = _above_pins(a)
        cover = np.zeros(a.sections + 1, np.int64)
        np.add.at(cover, a.lo[a.first[:-1]] + 1, 1)
        np.add.at(cover, a.hi[a.first[1:] - 1], -1)
        parts = np.zeros((8 * (count + a.sections) + 64, 6), np.int64)
        parts[0] = (0, a.sections, 0, -1, -1, -1)
        return cls(
            low=low,
            placed=np.zeros(count, np.uint8),
            cover=np.cumsum(cover),
            counters=np.array([0, 1, 0, 0, 0, 1, 0]),
            frames=np.zeros((frames, 7), np.int64),
            parts=parts,
            trail=np.zeros(count, np.int64),
            undo=np.zeros((64 * count + 100_000, 2), np.int64),
            order=np.argsort(low, kind="stable"),
            active=np.zeros(count, np.int64),
            keys=np.zeros((frames, 2), np.uint64),
            total=np.zeros(a.sections, np.int64),
            firsts=np.zeros(a.sections, np.int64),
            any_end=np.zeros(a.sections, np.int64),
            first_end=np.zeros(a.sections, np.int64),
        )

    @property
    def arrays(self) -> Iterator[Any]:
        return (getattr(self, own.name) for own in fields(self))


def _above_pins(a: Arrays) -> Ints:
    """The lowest offset of each buffer at which it meets no pin."""
    low = np.zeros(len(a.sizes), np.int64)
    for index in np.flatnonzero(np.diff(a.pin_first)):
        for pin in range(a.pin_first[index], a.pin_first[index + 1]):
            if low[index] + a.sizes[index] > a.pin_low[pin]:
                low[index] = max(low[index], a.pin_high[pin])
    return low


def _ranks(prepared: ProblemArrays, arrays: Arrays, order: Order) -> Ints:
    everywhere = np.empty(len(prepared.buffers), np.int64)
    everywhere[order(prepared)] = np.arange(len(prepared.buffers))
    return everywhere[arrays.members]
