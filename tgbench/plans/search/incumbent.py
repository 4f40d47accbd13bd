"""The best plan so far, and how it came about."""

from __future__ import annotations

import math

from tgbench.plans.search.judge import Candidate
from tgbench.runs.split import Cut

FINER = 0.998  # a finer cut has to promise to be this much faster
BONUS = 1.02  # a retention the model puts this much behind the best may be ahead when replayed


class Incumbent:
    """The best plan so far; None while nothing fits.

    Args:
        history: (step, mean run) of better and better plans, of the search that this one goes on.
    """

    def __init__(self, history: tuple[tuple[int, float], ...] = ()) -> None:
        self.best: Candidate | None = None
        self.history = list(history)
        self.least_ns = math.inf  # of all replays, those of plans that are not the best included

    @property
    def key(self) -> tuple[float, int]:
        """How good it is; what fits comes first."""
        return self.best.key if self.best is not None else (math.inf, 0)

    def take(self, found: Candidate, step: int) -> bool:
        """Whether it is the best so far."""
        self.least_ns = min(self.least_ns, found.time_ns)
        if self.best is not None and not found.beats(self.best):
            return False
        self.best = found
        if not self.history or found.time_ns < self.history[-1][1]:
            self.history.append((step, found.time_ns))
        return True

    def told_anew(self, best: Candidate) -> None:
        """More is known of what calls take: what took less by what was known before, does not."""
        self.best, self.least_ns = best, best.time_ns
        found = [(step, time_ns) for step, time_ns in self.history if time_ns > best.time_ns]
        self.history = [*found, (self.history[-1][0], best.time_ns)]

    def off_by(self, cut: Cut) -> float:
        """What plans cut so may be off by beside the best one (`Candidate.off_by`)."""
        return 1.0 if self.best is None else self.best.off_by(cut)

    def is_behind(self, promise_ns: float, cut: Cut) -> bool:
        """Whether another way of cutting promises clearly more."""
        best, least_ns = self.best, promise_ns * self.off_by(cut)
        return best is None or least_ns < FINER * max(best.modelled_ns, best.time_ns)

    def may_be_behind(self, modelled_ns: float) -> bool:
        """Whether what the model says so of may turn out to be better."""
        best = self.best
        return best is None or modelled_ns < BONUS * max(best.modelled_ns, best.time_ns)
