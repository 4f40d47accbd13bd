"""Large neighbourhoods of a retention: a part of the values is decided anew, by an integer program.

    keep ─→ hold most of it, free a window ─→ integer program ─→ the best there is inside the window

Windows are where another answer seems likely, or a stretch of the schedule, or scattered. A solved
window that gains nothing makes the next ones larger; one that its limits do not suffice for makes
them smaller. What was solved to its optimum is not solved again, nor any part of it, until
something is better elsewhere.

Source: Shaw, "Using constraint programming and local search methods" (1998); Danna, Rothberg and
Le Pape, "Exploring relaxation induced neighborhoods" (2005), for windows where relaxations differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.exact import HeldAnswers, IntegerProgram
from tgbench.plans.retention.model import ScoredRetention
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import Floats

FIRST, LEAST, GROWTH = 48, 4, 1.5  # values in a window, at first and at least; by how much it grows
NOISE = 0.3  # of how likely another answer is, from 0 to 1
GAIN = 1e-9  # of the time: what counts as one


@dataclass(frozen=True)
class SolvedWindow:
    """A part of the values that was decided anew.

    Fields:
        free: [node] which.
        before, after: the retention with the part as it was, and the best with another one.
        is_optimal: there is none better; else limits ended it.
    """

    free: NDArray[np.bool_]
    before: ScoredRetention
    after: ScoredRetention
    is_optimal: bool

    @property
    def gains(self) -> bool:
        return self.after is not self.before

    def next_size(self, size: float, most: int) -> float:
        """How many values the next window holds."""
        if not self.is_optimal:
            return max(size / GROWTH, LEAST)
        return size if self.gains else max(min(size * GROWTH, most), LEAST)


class Neighbourhoods:
    """Those of one model within one budget.

    Args:
        share: [turn, node] how likely a value is kept.
        random: which windows are tried depends on nothing else.
        size: values in the first window.
    """

    def __init__(
        self,
        program: IntegerProgram,
        share: Floats,
        random: np.random.Generator,
        size: float = FIRST,
    ) -> None:
        self.program, self.share, self.random, self.size = program, share, random, size
        self._candidates = np.flatnonzero(program.model.tables.worthwhile)
        self._best: ScoredRetention | None = None
        self._settled: list[NDArray[np.bool_]] = []  # windows in which nothing is better than that

    def step(self, best: ScoredRetention, limits: SolverLimits) -> SolvedWindow:
        """The best that there is with a part of the values decided anew."""
        if best is not self._best:
            self._best, self._settled = best, []
        free = self._free(best.keep)
        if any(not (free & ~whole).any() for whole in self._settled):
            window = SolvedWindow(free, best, best, is_optimal=True)
        else:
            window = self._solved(best, free, limits)
        self.size = window.next_size(self.size, len(self._candidates))
        return window

    def _solved(
        self, best: ScoredRetention, free: NDArray[np.bool_], limits: SolverLimits
    ) -> SolvedWindow:
        held = HeldAnswers(~np.broadcast_to(free, best.keep.shape), best.keep)
        solved = self.program.solve(limits, held=held)
        after = best if solved.keep is None else self._better(best, solved.keep[0])
        if after is not best:
            self._best, self._settled = after, []
        if solved.is_optimal:
            self._settled.append(free)
        return SolvedWindow(free, best, after, solved.is_optimal)

    def _better(self, best: ScoredRetention, keep: NDArray[np.bool_]) -> ScoredRetention:
        found = self.program.model.scored(keep, self.program.budget_bytes)
        is_faster = found is not None and found.time_ns < best.time_ns * (1 - GAIN)
        return found if found is not None and is_faster else best

    def _free(self, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[node] what is decided anew: likely ones, a stretch, or scattered ones."""
        nodes, kind = self._candidates, int(self.random.integers(3))
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
