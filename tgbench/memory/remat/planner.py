"""Which values to compute again, and where all of them lie: the whole of it.

    starts      policies and repairs, each a tape of live bytes within the budget
    settle      pack it; where it does not pack, repair it to a little less memory, and again
    search      neighbours of the best tape, for as long as there are steps or seconds

What is kept is the best recipe that packs. More steps go on where fewer stop, so they are never
worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TypeAlias

from tgbench.base.errors import BudgetError
from tgbench.base.stopping import StopReason
from tgbench.base.words import counted
from tgbench.memory.packing import pack
from tgbench.memory.remat.recipe import Recipe, packing_problem, recipe_of, tops
from tgbench.memory.remat.repair import relieved, repair
from tgbench.memory.remat.schedule import Schedule, budget_error, check_budget, least_bytes
from tgbench.memory.remat.search import any_taste, neighbour, squeezed, starts
from tgbench.memory.remat.tape import Tape, record

SQUEEZE = 0.97  # of the peak, where the best start does not pack
LOWER = 0.99  # of the peak, where better tapes do not pack
MISSES = 5  # of them, in a row
ROUNDS = 20  # changes, for a tape that does not pack
STALE = 100  # steps without a better tape, after which dearer ones are followed
SLACK = (0.002, 0.01)  # of the least cost, that a tape may be dearer: before, and after that
CHANCE = (0.05, 0.5)  # that a dearer tape is followed: before, and after that


MEANINGS = {
    StopReason.OPTIMAL: "nothing is computed twice",
    StopReason.STEPS: "max_steps reached",
    StopReason.SECONDS: "seconds are over",
    StopReason.INTERRUPTED: "interrupted",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands: its step, and the best recipe that packs."""

    step: int
    best: Recipe


@dataclass(frozen=True)
class Rematerialisation:
    """The best recipe found, and how.

    Fields:
        steps: neighbours tried.
        history: (step, cost in nanoseconds) at every improvement; step 0 is the start.
    """

    recipe: Recipe
    seed: int
    steps: int
    stop: StopReason
    history: tuple[tuple[int, float], ...]

    def __str__(self) -> str:
        return (
            f"{self.recipe}; {MEANINGS[self.stop]} after {counted(self.steps, 'step')} (seed "
            f"{self.seed})"
        )


Tell: TypeAlias = Callable[[Progress], None]


def rematerialise(
    schedule: Schedule,
    budget_bytes: int,
    *,
    seconds: float = 10.0,
    max_steps: int | None = None,
    seed: int = 0,
    progress: Tell | None = None,
) -> Rematerialisation:
    """The cheapest sequence of computations found whose values fit the budget, each in one place.

    `max_steps` decides when it is given, and then equal arguments give equal results; `seconds`
    does otherwise. An interrupt keeps the best recipe, once there is one.
    Raises `BudgetError` when the budget is below what every sequence needs, or when no sequence was
    found that packs into it.

    >>> from tgbench.memory.remat import Schedule, Value
    >>> a, b, c = Value("a", 5, 64), Value("b", 90, 64, (0,)), Value("c", 90, 128, (1,))
    >>> d = Value("d", 90, 64, (0, 2), output=True)
    >>> print(rematerialise(Schedule((a, b, c, d)), 256).recipe)
    4 computations in 1 stage, 0 of them repeated: 0.00% extra time in 256 B

    Sources: the objective is that of Jain et al., "Checkmate" (2020); values as intervals are
    Bartan et al., "Moccasin" (2023); the search is Shaw's large-neighbourhood search (1998). Left
    out: integer and constraint programs.
    """
    check_budget(schedule, budget_bytes)
    search = _Search(schedule, budget_bytes, seed, progress)
    stop = StopReason.OPTIMAL
    deadline = None if max_steps is not None else time.monotonic() + seconds
    try:
        search.begin(deadline)
        while not search.optimal:
            if max_steps is not None and search.steps >= max_steps:
                stop = StopReason.STEPS
                break
            if deadline is not None and time.monotonic() >= deadline:
                stop = StopReason.SECONDS
                break
            search.advance()
    except KeyboardInterrupt:
        if search.best is None:
            raise
        stop = StopReason.INTERRUPTED
    return Rematerialisation(search.found, seed, search.steps, stop, tuple(search.history))


class _Search:
    """The state of one search.

    Attributes:
        best: the best recipe that packs.
        tape: the one whose neighbours are tried; its live bytes fit `level_bytes`.
        cheapest: the best tape at that level, packed or not.
    """

    def __init__(
        self, schedule: Schedule, budget_bytes: int, seed: int, progress: Tell | None
    ) -> None:
        self.schedule = schedule
        self.budget_bytes = budget_bytes
        self.random = Random(seed)
        self.progress = progress
        self.best: Recipe | None = None
        self.steps = 0
        self.stale = 0
        self.misses = 0
        self.level_bytes = budget_bytes
        self.history: list[tuple[int, float]] = []
        self.tape = self.cheapest = record(schedule, schedule.once)
        self.smallest_bytes = _packed(self.tape).height_bytes  # that anything was packed into

    @property
    def found(self) -> Recipe:
        """The best recipe. Raises `BudgetError` when there is none."""
        if self.best is None:
            raise self._too_small()
        return self.best

    @property
    def optimal(self) -> bool:
        """Nothing is computed twice, so that no recipe is better."""
        return self.best is not None and len(self.best.sequence) == len(self.schedule.once)

    def _too_small(self) -> BudgetError:
        need = least_bytes(self.schedule)
        return budget_error(self.schedule, self.budget_bytes, need, self.smallest_bytes)

    def begin(self, deadline: float | None) -> None:
        """Find a first recipe. Raises `BudgetError` when there is none."""
        tapes: list[Tape] = []
        if self.tape.peak_bytes <= self.budget_bytes:
            tapes.append(self.tape)
            self.settle(self.tape)
        if self.optimal:
            return
        for tape in starts(self.schedule, self.budget_bytes):
            tapes.append(tape)
            if deadline is not None and time.monotonic() >= deadline:
                break
        if not tapes:
            tapes.append(squeezed(self.tape, self.budget_bytes, self.random))
            self.smallest_bytes = min(self.smallest_bytes, _packed(tapes[0]).height_bytes)
            if tapes[0].peak_bytes > self.budget_bytes:
                raise self._too_small()
        tapes.sort(key=lambda tape: tape.worth)
        self._settle_all(tapes)
        self._squeeze_until_packed(tapes[0])
        self.tape = self.cheapest = tapes[0]
        self.tell()

    def _settle_all(self, tapes: Iterable[Tape]) -> None:
        """Settle the first with all it takes; the others, cheaper ones first, as they are."""
        for number, tape in enumerate(tapes):
            if self.best is not None and tape.worth >= _worth(self.best):
                return
            self.settle(tape, 1 if number else ROUNDS)

    def _squeeze_until_packed(self, tape: Tape) -> None:
        """Raises `BudgetError` when a tape with the least peak does not pack either."""
        while self.best is None:
            level = min(self.budget_bytes, int(tape.peak_bytes * SQUEEZE))
            lower = squeezed(tape, level, self.random)
            self.settle(lower)
            if self.best is None and lower.peak_bytes > level:
                raise self._too_small()
            tape = lower

    def settle(self, tape: Tape, rounds: int = ROUNDS) -> bool:
        """Keep its recipe if it packs, else that of a repaired one; whether it packs itself."""
        for attempt in range(rounds):
            recipe = _packed(tape, self.budget_bytes)
            self.smallest_bytes = min(self.smallest_bytes, recipe.height_bytes)
            if recipe.height_bytes <= self.budget_bytes:
                self._keep(recipe)
                return attempt == 0
            left_ns = inf if self.best is None else self.best.cost_ns - tape.cost_ns
            lower = relieved(tape, tops(tape, recipe) - self.budget_bytes, left_ns, self.random)
            if lower is None:
                return False
            tape = lower
        return False

    def _keep(self, recipe: Recipe) -> None:
        if self.best is None or _worth(recipe) < _worth(self.best):
            self.best = recipe
            self.history.append((self.steps, recipe.cost_ns))

    def tell(self) -> None:
        if self.progress is not None:
            self.progress(Progress(self.steps, self.found))

    def advance(self) -> None:
        """Try one neighbour."""
        self.steps += 1
        self.stale += 1
        if not self.tape.repeats or self.stale > 2 * STALE:
            self._return()
        bold = self.stale > STALE
        tape = neighbour(self.tape, self.level_bytes, SLACK[bold], self.random)
        if tape is not None and self._accepts(tape, bold):
            self.tape = tape
            self._weigh(tape)
        self.tell()

    def _return(self) -> None:
        """Go on from the best recipe."""
        self.tape = self.cheapest = record(self.schedule, self.found.sequence)
        self.level_bytes, self.stale, self.misses = self.budget_bytes, 0, 0

    def _accepts(self, tape: Tape, bold: bool) -> bool:
        return tape.worth <= self.tape.worth or self.random.random() < CHANCE[bold]

    def _weigh(self, tape: Tape) -> None:
        """Settle a tape that beats the best recipe; plan for less memory when such do not pack."""
        better = tape.worth < self.cheapest.worth
        if better:
            self.cheapest, self.stale = tape, 0
        if tape.worth >= _worth(self.found):
            return
        if self.settle(tape, ROUNDS if better else 1):
            self.misses = 0
            return
        self.misses += 1
        if self.misses >= MISSES:
            self._lower()

    def _lower(self) -> None:
        """Plan for a little less memory."""
        self.misses = 0
        level = int(self.tape.peak_bytes * LOWER)
        lower = repair(self.tape, level, self.found.cost_ns, any_taste(self.random), self.random)
        if lower is None:
            self._return()
        else:
            self.tape = self.cheapest = lower
            self.level_bytes = level


def _packed(tape: Tape, budget_bytes: int | None = None) -> Recipe:
    solution = pack(packing_problem(tape, budget_bytes))
    return recipe_of(tape, solution.offsets, solution.height_bytes)


def _worth(recipe: Recipe) -> tuple[float, int]:
    return recipe.cost_ns, len(recipe.sequence)
