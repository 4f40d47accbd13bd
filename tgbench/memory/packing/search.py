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
larger limit of nodes. Several searchers take turns: some learn from each other's failures, others
from their own alone. Nothing depends on time or chance: equal limits of steps give equal offsets.

Sources: Moffitt, "MiniMalloc" (2023), for canonical packings, sections, and their separation;
Carlier and Pinson (1989), for the rule about what can be first on a machine; Boussemart et al.,
"Boosting systematic search by weighting constraints" (2004), for the weights.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tgbench.base.errors import PackingError
from tgbench.base.stopping import Limits, StopReason
from tgbench.memory.packing.heuristics import FREE, Order, ProblemArrays, by_area, by_pressure
from tgbench.memory.packing.problem import Ints

Floats: TypeAlias = npt.NDArray[np.float64]
FIRST_LIMIT, GROWTH = 500, 1.5  # nodes of the first attempts; by how much they grow
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
        order: the last criterion.
        branching: bits for the compiled loop. 1: where the fewest can be first (else: where only
            one can). 2: by weight of the sections, 4: by offset over weight (else: by offset).
            8: by weight after that (else: by order).
    """

    order: Order
    branching: int


STRATEGIES = (
    Strategy(by_area, 1 | 2),
    Strategy(by_area, 1),
    Strategy(by_pressure, 8),
    Strategy(by_pressure, 4),
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


TOGETHER = tuple(Searcher(i, 0) for i in range(len(STRATEGIES)))
ALONE = tuple(Searcher(i, 1 + i) for i in range(len(STRATEGIES)))
SEARCHERS = (*TOGETHER, *ALONE)


class LimitError(Exception):
    """Ends a search in the middle; `reason` says which limit it was."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def load_loops() -> Any:
    """The compiled loop; raises `PackingError` where numba is not installed."""
    try:
        from tgbench.memory.packing import search_loops
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise PackingError(
            "the complete packing search needs numba, which is not installed; run "
            "`pip install numba`, or install tgbench with its extra `cpu`, or call pack without "
            "search=True"
        ) from error
    return search_loops


# --- a part of a problem, as arrays ---------------------------------------------------------------


@dataclass(frozen=True)
class Arrays:
    """Buffers that are to be placed together, with sizes and offsets in common units.

    Fields:
        members: which buffers of the prepared problem.
        unit: what all sizes and pins are multiples of, in alignment units.
        first, lo, hi: per buffer its ranges of sections, half-open.
        near_first, near: per buffer the others that share a section.
        pin_first, pin_low, pin_high: per buffer the pins that share a step, the lowest first.
        twin: per buffer the equal one before it, or -1.
    """

    members: Ints
    unit: int
    sections: int
    sizes: Ints
    first: Ints
    lo: Ints
    hi: Ints
    near_first: Ints
    near: Ints
    pin_first: Ints
    pin_low: Ints
    pin_high: Ints
    twin: Ints

    @classmethod
    def of(cls, prepared: ProblemArrays, members: Ints, unit: int) -> Arrays:
        first, lo, hi, sections = _sections(prepared, members)
        near_first, near = _near(prepared, members)
        sizes = prepared.sizes[members] // unit
        pins = _pins(prepared, members, unit)
        ranges = [
            (lo[a:b].tobytes(), hi[a:b].tobytes(), pins[1][c:d].tobytes(), pins[2][c:d].tobytes())
            for a, b, c, d in zip(first, first[1:], pins[0], pins[0][1:], strict=False)
        ]
        twin = _twins(list(zip(sizes.tolist(), ranges, strict=True)))
        return cls(members, unit, sections, sizes, first, lo, hi, near_first, near, *pins, twin)

    @property
    def visits(self) -> int:
        """Pairs of a buffer and a section: what a node costs."""
        return int((self.hi - self.lo).sum())


def _intervals(prepared: ProblemArrays, members: Ints) -> tuple[Ints, Ints, Ints]:
    """The live intervals of some buffers: where each one's begin, starts, stops."""
    lifetimes = prepared.lifetimes
    counts = np.diff(lifetimes.first)[members]
    first = np.concatenate(([0], np.cumsum(counts)))
    chosen = np.repeat(lifetimes.first[members] - first[:-1], counts) + np.arange(first[-1])
    return first, lifetimes.start[chosen], lifetimes.stop[chosen]


def _sections(prepared: ProblemArrays, members: Ints) -> tuple[Ints, Ints, Ints, int]:
    """Ranges of sections. A section counts if some interval begins and some ends with it."""
    first, start, stop = _intervals(prepared, members)
    edges = np.unique(np.concatenate((start, stop)))
    counts = np.isin(edges[:-1], start) & np.isin(edges[1:], stop)
    before = np.concatenate(([0], np.cumsum(counts)))
    lo, hi = before[np.searchsorted(edges, start)], before[np.searchsorted(edges, stop)]
    return first, lo, hi, int(before[-1])


def _near(prepared: ProblemArrays, members: Ints) -> tuple[Ints, Ints]:
    position = np.full(len(prepared.buffers), -1, np.int64)
    position[members] = np.arange(len(members))
    lists = [position[prepared.neighbours[index]] for index in members]
    lists = [places[places >= 0] for places in lists]
    return _joined(lists)


def _joined(lists: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Lists one after the other, and where each begins."""
    first = np.concatenate(([0], np.cumsum([len(own) for own in lists]))).astype(np.int64)
    return first, np.concatenate([*lists, np.empty(0, np.int64)]).astype(np.int64)


def _pins(prepared: ProblemArrays, members: Ints, unit: int) -> tuple[Ints, Ints, Ints]:
    lists = []
    for index in members:
        near = prepared.neighbours[index]
        near = near[prepared.pins[near] != FREE]
        lists.append(near[np.argsort(prepared.pins[near], kind="stable")])
    first, pinned = _joined(lists)
    low = prepared.pins[pinned] // unit
    return first, low, low + prepared.sizes[pinned] // unit


def _twins(keys: Sequence[Hashable]) -> Ints:
    """For each key the place of the equal one before it, or -1."""
    seen: dict[Hashable, int] = {}
    twin = np.full(len(keys), -1, np.int64)
    for place, key in enumerate(keys):
        twin[place] = seen.get(key, -1)
        seen[key] = place
    return twin


def separate(prepared: ProblemArrays) -> list[Ints]:
    """The buffers without a pin, by the stretches of time that none of them crosses."""
    free = np.flatnonzero(prepared.pins == FREE)
    if not free.size:
        return []
    lifetimes = prepared.lifetimes
    start = lifetimes.start[lifetimes.first[free]]
    stop = lifetimes.stop[lifetimes.first[free + 1] - 1]
    by_start = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(stop[by_start])
    cuts = np.flatnonzero(start[by_start][1:] >= reach[:-1]) + 1
    return [np.sort(free[own]) for own in np.split(by_start, cuts)]


# --- attempts -------------------------------------------------------------------------------------


class Component:
    """Buffers that are packed for themselves, and what is known of them.

    Fields:
        low, height: the best packing so far, in units of `arrays`.
        bound: no packing is lower.
    """

    def __init__(self, prepared: ProblemArrays, arrays: Arrays, offsets: Ints) -> None:
        self.arrays = arrays
        self.low = offsets[arrays.members] // arrays.unit
        self.height = int((self.low + arrays.sizes).max())
        self.bound = int(_totals(arrays).max())
        self._weights: dict[int, Floats] = {
            searcher.weights: np.ones(arrays.sections) for searcher in SEARCHERS
        }
        self._failed = np.zeros((REMEMBERED, 2), np.uint64)
        self._failed_at = 0  # the capacity that the failed states are for
        self._tried = 0
        self._ranks = [_ranks(prepared, arrays, s.order) for s in STRATEGIES]

    def attempt(self, capacity: int, limit: int, rules: Pruning, limits: Limits) -> int:
        """Look for a packing below a capacity; keep it when there is one.

        Returns SOLVED, EXHAUSTED when there is none, or RUNNING when `limit` nodes did not do.
        Raises `LimitError`.
        """
        if capacity > self._failed_at:
            self._failed[:] = 0
        self._failed_at = capacity
        searcher = SEARCHERS[self._tried % len(SEARCHERS)]
        self._tried += 1
        state, weight = State.of(self.arrays), self._weights[searcher.weights]
        given = (capacity, rules.bits, STRATEGIES[searcher.strategy].branching)
        answer = self._run(state, given, self._ranks[searcher.strategy], weight, limit, limits)
        weight[:] = 1 + (weight - 1) / 2
        if answer == SOLVED:
            self.low = state.low
            self.height = int((self.low + self.arrays.sizes).max())
        return RUNNING if answer == FULL else answer

    def _run(
        self, state: State, given: tuple[int, int, int], rank: Ints, weight: Floats, limit: int,
        limits: Limits,
    ) -> int:  # fmt: skip
        loops = load_loops()
        chunk = max(16, CHUNK // self.arrays.visits)
        answer = RUNNING
        while answer == RUNNING and limit > 0:
            reason = limits.reached()
            if reason is not None:
                raise LimitError(reason)
            before = int(state.counters[-1])
            nodes = limits.left(min(chunk, limit))
            a = self.arrays
            answer = loops.descend(
                *given, nodes,
                a.sizes, a.first, a.lo, a.hi, a.near_first, a.near,
                a.pin_first, a.pin_low, a.pin_high, a.twin, rank,
                *state.arrays, weight, self._failed,
            )  # fmt: skip
            visited = int(state.counters[-1]) - before
            limits.steps += visited
            limit -= nodes
        return int(answer)


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


def _totals(a: Arrays) -> Ints:
    """The units live in each section."""
    changes = np.zeros(a.sections + 1, np.int64)
    each = np.repeat(a.sizes, np.diff(a.first))
    np.add.at(changes, a.lo, each)
    np.add.at(changes, a.hi, -each)
    return np.cumsum(changes)[:-1]


def _ranks(prepared: ProblemArrays, arrays: Arrays, order: Order) -> Ints:
    everywhere = np.empty(len(prepared.buffers), np.int64)
    everywhere[order(prepared)] = np.arange(len(prepared.buffers))
    return everywhere[arrays.members]


# --- the search -----------------------------------------------------------------------------------


@dataclass
class PackingSearch:
    """A problem in parts, on the way to a lower packing.

    Fields:
        unit: what all sizes and pins are multiples of, in alignment units.
        floor: nothing is gained below, because a pin or the largest buffer ends there.
    """

    prepared: ProblemArrays
    parts: list[Component]
    unit: int
    floor: int
    rules: Pruning
    limits: Limits

    @classmethod
    def of(
        cls, prepared: ProblemArrays, offsets: Ints, rules: Pruning, limits: Limits
    ) -> PackingSearch:
        """Begin with a packing, in alignment units."""
        load_loops()
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
            for limit in _growing():
                high = [part for part in self.parts if part.height > capacity]
                if self.floor > capacity:
                    return StopReason.INFEASIBLE
                if not high:
                    return StopReason.FITS
                for part in high:
                    if self._answer(part, capacity, limit) == EXHAUSTED:
                        return StopReason.INFEASIBLE
        except LimitError as stopped:
            return stopped.reason
        raise AssertionError("limits grow for ever")

    def minimise(self) -> StopReason:
        """Look for the lowest packing: at the bound, else half-way between it and the best."""
        try:
            for limit in _growing():
                aim = self.bound // self.unit
                high = [part for part in self.parts if part.height > aim]
                if not high:
                    return StopReason.OPTIMAL
                for part in high:
                    self._lower(part, aim, limit)
        except LimitError as stopped:
            return stopped.reason
        raise AssertionError("limits grow for ever")

    def _lower(self, part: Component, aim: int, limit: int) -> None:
        while aim < part.height:
            answer = self._answer(part, aim, limit)
            if answer != RUNNING:
                return
            aim = (aim + part.height + 1) // 2

    def _answer(self, part: Component, capacity: int, limit: int) -> int:
        if capacity < part.bound:
            return EXHAUSTED
        answer = part.attempt(capacity, limit, self.rules, self.limits)
        if answer == EXHAUSTED:
            part.bound = capacity + 1
        return answer


def _growing() -> Iterator[int]:
    """Limits of nodes: every searcher has its turn before they grow."""
    limit = float(FIRST_LIMIT)
    while True:
        for _ in SEARCHERS:
            yield int(limit)
        limit *= GROWTH
