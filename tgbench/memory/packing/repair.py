"""The repair: what does not fit pushes out what weighs least, and that looks for another place.

    capacity  ┌──────────────┐    ┌──────────────┐    ┌──────────────┐
              │┌────┐    ┌───│    │┌────┐┌───┐   │    │┌────┐┌───┐   │
              ││ a  │    │ b │    ││ a  ││ d │   │    ││ a  ││ d │   │
              │└────┤    └───│    │└────┤└───┘   │    │└────┤└───┘┌──│
              │  c  │        │    │  c  │        │    │  c  │     │ b│
              └─────┴────────┘    └─────┴────────┘    └─────┴─────┴──┘
               d is out            d is in, b out       b is in

It begins with a packing that is too high: what ends above the capacity is out. One buffer at a
time goes back, to where what it meets weighs least. What had to push becomes heavier, so that the
same few do not push each other for ever. A move costs what one buffer meets, however many there
are, so this is what large problems need; it proves nothing, and finds little where nothing is
free: there the complete search is better.

Source: Nagata and Bräysy, "A powerful route minimization heuristic for the vehicle routing problem
with time windows" (2009), for ejections by weights that grow. Left out: its random moves between.
"""

from __future__ import annotations

import numpy as np

from tgbench.base.stopping import Limits
from tgbench.memory.packing.parts import Arrays
from tgbench.memory.packing.problem import Ints
from tgbench.memory.packing.running import load, stretches

SPREADS = (0.5, 1.0)  # exponents of size × meetings, for what a buffer weighs at first
MEAN_WEIGHT = 64
A_VISIT = 8  # visits of the complete search that take as long as one buffer that is met
CHUNK = 2_000_000  # buffers met between two looks at the clock; about 50 ms


class Repair:
    """The weights of the buffers, and chance; both go on from attempt to attempt."""

    def __init__(self, arrays: Arrays, spread: float) -> None:
        meetings = np.maximum(arrays.meetings, 1)
        weights = (arrays.sizes * meetings.astype(np.float64)) ** spread
        self._arrays = arrays
        weights = np.rint(weights * (MEAN_WEIGHT / weights.mean()))
        self._own = np.maximum(1, weights).astype(np.int64)
        self._weight = self._own.copy()
        self._chance = 1
        self._room = np.empty((8, int(meetings.max()) + 1), np.int64)
        self._effort = int((meetings**2).sum() // meetings.sum())  # what a move meets

    @property
    def moves_a_node(self) -> int:
        """How many moves take about as long as a node of the complete search."""
        return max(1, self._arrays.visits // (A_VISIT * self._effort))

    def attempt(self, low: Ints, capacity: int, limit: int, limits: Limits) -> Ints | None:
        """A packing below a capacity, or None when so many moves did not do.

        Raises `LimitError`.
        """
        a, push = self._arrays, load("repair_loops").push
        low, queue = low.copy(), np.zeros(len(low), np.int64)
        out = np.flatnonzero(low + a.sizes > capacity)
        low[out] = -1
        queue[: len(out)] = out[np.argsort(-self._own[out], kind="stable")]
        at = np.array([0, len(out), self._chance, 0])
        for moves in stretches(limits, limit, max(16, CHUNK // self._effort)):
            before = int(at[-1])
            is_packed = push(
                capacity, moves, a.sizes, a.near_first, a.near, a.pin_first, a.pin_low, a.pin_high,
                self._own, low, self._weight, queue, at, self._room,
            )  # fmt: skip
            limits.steps += int(at[-1]) - before
            self._chance = int(at[2])
            if is_packed:
                return low
            if at[-1] < before + moves:  # one has no place among the pins
                return None
        return None
