"""Large neighbourhoods of a retention: a part of the values is decided anew, by an integer program.

    keep ─→ hold most of it, free a window ─→ integer program ─→ the best there is inside the window

Windows are where another answer seems likely, as the relaxed program has it, or a stretch of the
schedule, or scattered. A solved window that gains nothing makes the next ones larger; one that its
limits do not suffice for makes them smaller.

Source: Shaw, "Using constraint programming and local search methods" (1998); Danna, Rothberg and
Le Pape, "Exploring relaxation induced neighborhoods" (2005), for windows where relaxations differ.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.search.exact import HeldAnswers, IntegerProgram, SolverLimits
from tgbench.plans.search.model import Model
from tgbench.plans.search.tables import Floats

FIRST, LEAST, GROWTH = 48, 4, 1.5  # values in a window, at first and at least; by how much it grows
NOISE = 0.3  # of how likely another answer is, from 0 to 1


class Neighbourhoods:
    """Those of one model within one budget.

    Args:
        share: [turn, node] how likely a value is kept.
        random: which windows are tried depends on nothing else.
    """

    def __init__(
        self, model: Model, budget_bytes: int, share: Floats, random: np.random.Generator
    ) -> None:
        self.model, self.budget_bytes = model, budget_bytes
        self.share, self.random = share, random
        self.size = float(FIRST)
        self._candidates = np.flatnonzero(model.tables.worthwhile)
        self._number = 0

    @cached_property
    def _program(self) -> IntegerProgram:
        return IntegerProgram(self.model, self.budget_bytes)

    def step(self, keep: NDArray[np.bool_], limits: SolverLimits) -> NDArray[np.bool_] | None:
        """[turn, node] a faster retention than this one, which fits; None if none was found."""
        free = self._free(keep)
        held = HeldAnswers(~np.broadcast_to(free, keep.shape), keep)
        solved = self._program.solve(limits, held=held)
        found = None if solved.keep is None else self._better(keep, solved.keep[0])
        if not solved.is_optimal:
            self.size = max(self.size / GROWTH, LEAST)
        elif found is None:
            self.size = min(self.size * GROWTH, max(len(self._candidates), LEAST))
        return found

    def _better(
        self, keep: NDArray[np.bool_], found: NDArray[np.bool_]
    ) -> NDArray[np.bool_] | None:
        scores = self.model.score(np.stack([keep, found]))
        fits = scores.size_bytes[1] <= self.budget_bytes
        return found if fits and scores.time_ns[1] < scores.time_ns[0] * (1 - 1e-9) else None

    def _free(self, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[node] what is decided anew: likely ones, a stretch, scattered ones, in turns."""
        nodes, kind = self._candidates, self._number % 3
        self._number += 1
        most = min(int(self.size), len(nodes))
        if kind == 0:
            apart = np.abs(self.share - keep).max(axis=0)[nodes]
            chosen = np.argsort(-(apart + NOISE * self.random.random(len(nodes))))[:most]
        elif kind == 1:
            at = int(self.random.integers(len(nodes) - most + 1))
            chosen = np.arange(at, at + most)
        else:
            chosen = self.random.permutation(len(nodes))[:most]
        free = np.zeros(keep.shape[1], bool)
        free[nodes[chosen]] = True
        return free
