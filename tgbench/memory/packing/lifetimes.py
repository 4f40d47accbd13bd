"""When buffers are live, as flat arrays, and which of them share a step.

buffer 0   ───      ──         intervals  start  0  9  3
buffer 1      ──────                      stop   3 11  9
                                          owner  0  0  1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tgbench.memory.packing.problem import Buffer, Ints


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The live intervals of some buffers, buffer by buffer.

    Fields:
        first: the intervals of buffer i are `first[i]` to `first[i + 1]`, exclusive.
        owner, start, stop: of each interval.
    """

    first: Ints
    owner: Ints
    start: Ints
    stop: Ints

    @classmethod
    def of(cls, buffers: Sequence[Buffer]) -> Lifetimes:
        """The lifetimes of buffers that are live at some step."""
        intervals = [buffer.intervals for buffer in buffers]
        counts = np.array([len(own) for own in intervals], np.int64)
        edges = [step for own in intervals for interval in own for step in interval]
        pairs = np.array(edges, np.int64).reshape(-1, 2)
        first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        owner = np.repeat(np.arange(len(buffers)), counts)
        return cls(first, owner, pairs[:, 0].copy(), pairs[:, 1].copy())

    @property
    def count(self) -> int:
        return len(self.first) - 1

    @property
    def steps(self) -> Ints:
        """At how many steps each buffer is live."""
        return np.bincount(self.owner, self.stop - self.start, self.count).astype(np.int64)

    def neighbours(self, index: int) -> Ints:
        """The other buffers that share a step with this one, in order."""
        own = slice(self.first[index], self.first[index + 1])
        if own.stop - own.start == 1:
            meets = (self.start < self.stop[own]) & (self.stop > self.start[own])
        else:  # the first own interval that ends after another's start has to begin before its stop
            after = np.searchsorted(self.stop[own], self.start, side="right")
            begins = np.append(self.start[own], np.iinfo(np.int64).max)
            meets = begins[after] < self.stop
        found = np.zeros(self.count, np.bool_)
        found[self.owner[meets]] = True
        found[index] = False
        return np.flatnonzero(found)


@dataclass(frozen=True, slots=True)
class Staircase:
    """How many bytes are live, as steps of a staircase.

    Fields:
        steps: where the sum changes; each value holds from its step to the next.
        live: the sum of the live sizes from there on.
    """

    steps: Ints
    live: Ints

    @classmethod
    def of(cls, lifetimes: Lifetimes, sizes: Ints) -> Staircase:
        """The staircase of at least one buffer."""
        edges = np.concatenate((lifetimes.start, lifetimes.stop))
        steps, place = np.unique(edges, return_inverse=True)
        changes = np.zeros(len(steps), np.int64)
        each = sizes[lifetimes.owner]
        np.add.at(changes, place, np.concatenate((each, -each)))
        return cls(steps, np.cumsum(changes))

    def highest_during(self, lifetimes: Lifetimes) -> Ints:
        """For each buffer, the most that is live at a step of its life."""
        edges = np.stack((lifetimes.start, lifetimes.stop), axis=1).ravel()
        highest = np.maximum.reduceat(self.live, np.searchsorted(self.steps, edges))[::2]
        return np.maximum.reduceat(highest, lifetimes.first[:-1])
