"""Which values to compute again so that the bytes live at once fit a budget.

    starts      policies and repairs, each a tape within the budget
    search      neighbours of the best tape, for as many steps as there are

More steps go on where fewer stop, so they are never worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tgbench.base.stopping import StopReason
from tgbench.base.words import counted
from tgbench.memory.remat.repair import vacuum
from tgbench.memory.remat.schedule import Schedule, budget_error, check_budget, least_bytes
from tgbench.memory.remat.search import neighbour, squeezed, starts
from tgbench.memory.remat.tape import Tape, record

STALE = 100  # steps without a better tape, after which dearer ones are followed
SLACK = (0.002, 0.01)  # of the least cost, that a tape may be dearer: before, and after that
CHANCE = (0.05, 0.5)  # that a dearer tape is followed: before, and after that

MEANINGS = {
    StopReason.OPTIMAL: "nothing is computed twice",
    StopReason.STEPS: "max_steps reached",
}


@dataclass(frozen=True, slots=True)
class Rematerialisation:
    """The best tape found, and how.

    Fields:
        steps: neighbours tried.
        history: (step, cost in nanoseconds) at every improvement; step 0 is the start.
    """

    tape: Tape
    seed: int
    steps: int
    stop: StopReason
    history: tuple[tuple[int, float], ...]

    def __str__(self) -> str:
        return (
            f"{self.tape}; {MEANINGS[self.stop]} after {counted(self.steps, 'step')} (seed "
            f"{self.seed})"
        )


def rematerialise(
    schedule: Schedule, budget_bytes: int, *, max_steps: int, seed: int = 0
) -> Rematerialisation:
    """The cheapest sequence of computations found whose live bytes fit the budget.

    Equal arguments give equal results. Raises `BudgetError` when the budget is below what every
    sequence needs, or when none was found.

    >>> from tgbench.memory.remat import Schedule, Value
    >>> a, b, c = Value("a", 5, 64), Value("b", 90, 64, (0,)), Value("c", 90, 128, (1,))
    >>> d = Value("d", 90, 64, (0, 2), output=True)
    >>> print(rematerialise(Schedule((a, b, c, d)), 256, max_steps=0).tape)
    4 computations, 0 of them repeated: 0.00% extra time in 256 B

    Sources: the objective is that of Jain et al., "Checkmate" (2020); values as intervals are
    Bartan et al., "Moccasin" (2023); the search is Shaw's large-neighbourhood search (1998). Left
    out: integer and constraint programs.
    """
    check_budget(schedule, budget_bytes)
    search = _NeighbourhoodSearch(_start(schedule, budget_bytes, seed), budget_bytes, Random(seed))
    while not search.is_optimal and search.steps < max_steps:
        search.advance()
    stop = StopReason.OPTIMAL if search.is_optimal else StopReason.STEPS
    return Rematerialisation(search.best, seed, search.steps, stop, tuple(search.history))


def tightest(schedule: Schedule, seed: int = 0) -> Tape:
    """A tape with as few live bytes as repairs get to: what it takes does not count."""
    once = record(schedule, schedule.once)
    return squeezed(once, least_bytes(schedule).size_bytes, Random(seed))


def _start(schedule: Schedule, budget_bytes: int, seed: int) -> Tape:
    """The best tape within the budget that is found at once. Raises `BudgetError` for none."""
    once = record(schedule, schedule.once)
    if once.peak_bytes <= budget_bytes:
        return once
    tapes = list(starts(schedule, budget_bytes))
    if not tapes:
        least = tightest(schedule, seed)
        if least.peak_bytes > budget_bytes:
            raise budget_error(schedule, budget_bytes, least_bytes(schedule), least.peak_bytes)
        tapes.append(vacuum(least, budget_bytes))
    return min(tapes, key=lambda tape: tape.worth)


class _NeighbourhoodSearch:
    """The state of one search.

    Attributes:
        best: the cheapest tape so far.
        tape: the one whose neighbours are tried.
        stale: steps without a better one.
    """

    def __init__(self, start: Tape, budget_bytes: int, random: Random) -> None:
        self.best = self.tape = start
        self.budget_bytes, self.random = budget_bytes, random
        self.steps = self.stale = 0
        self.history = [(0, start.cost_ns)]

    @property
    def is_optimal(self) -> bool:
        """Nothing is computed twice, so that nothing costs less."""
        return not self.best.repeats

    def advance(self) -> None:
        """Try one neighbour."""
        self.steps += 1
        self.stale += 1
        if not self.tape.repeats or self.stale > 2 * STALE:
            self.tape, self.stale = self.best, 0
        bold = self.stale > STALE
        found = neighbour(self.tape, self.budget_bytes, SLACK[bold], self.random)
        if found is not None and self._accepts(found, bold):
            self.tape = found
            if found.worth < self.best.worth:
                self.best, self.stale = found, 0
                self.history.append((self.steps, found.cost_ns))

    def _accepts(self, tape: Tape, bold: bool) -> bool:
        return tape.worth <= self.tape.worth or self.random.random() < CHANCE[bold]
