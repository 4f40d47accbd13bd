"""A part of a problem as arrays: buffers that are to be placed together.

Time is cut into the sections at which the set of live buffers is largest (the maximal cliques).
Where no buffer crosses, the parts of a problem are separate.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tgbench.memory.packing.heuristics import FREE, ProblemArrays
from tgbench.memory.packing.problem import Ints


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
        """Pairs of a buffer and a section: what a node of the complete search costs."""
        return int((self.hi - self.lo).sum())

    @property
    def meetings(self) -> Ints:
        """Per buffer, how many others it shares a step with, pins too."""
        return np.diff(self.near_first) + np.diff(self.pin_first)


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


def totals(a: Arrays) -> Ints:
    """The units live in each section."""
    changes = np.zeros(a.sections + 1, np.int64)
    each = np.repeat(a.sizes, np.diff(a.first))
    np.add.at(changes, a.lo, each)
    np.add.at(changes, a.hi, -each)
    return np.cumsum(changes)[:-1]
