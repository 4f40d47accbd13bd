"""Runs in a row, decided but not executed.

    calls ─→ (state, class) decided once, wherever the same decisions hold ─→ what each run does

What a run does depends on what the one before left behind. Written over the run's origin those
states are few (see `states`), so a trace of thousands of calls takes tens of decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tgbench.base.coords import Domain, Guard
from tgbench.programs.held import State
from tgbench.programs.states import States, ValidityPattern
from tgbench.runs.buckets import BucketClass, Spot

Made = TypeVar("Made")
Decide = Callable[[State, BucketClass, tuple[int, ...]], tuple[Made, State, frozenset[Guard]]]


@dataclass(frozen=True)
class _Known(Generic[Made]):
    domain: Domain
    made: Made
    after: int


class Walk(Generic[Made]):
    """A row of runs; `decide` says what one does, and what it leaves behind.

    Args:
        decide: (state, class, origin) → what was made of it, the state afterwards in coordinates
            that remember the origin, and where else the same holds.
        states: those that are known already.
    """

    def __init__(self, decide: Decide[Made], states: States | None = None) -> None:
        self.states = States() if states is None else states
        self._decide = decide
        self._known: dict[tuple[int, BucketClass], list[_Known[Made]]] = {}
        self._state = 0
        self._before: Spot | None = None
        self.decided = 0  # how many situations had to be thought through

    def state(self, kind: BucketClass, origin: tuple[int, ...]) -> State:
        """What is there before a run of this class at this origin, were it the next one."""
        number = self.states.moved(self._state, self._before, Spot(kind, origin))
        return self.states.patterns[number].state

    def step(self, kind: BucketClass, origin: tuple[int, ...]) -> Made:
        """The next run."""
        state = self.states.moved(self._state, self._before, Spot(kind, origin))
        known = self._find(state, kind, origin)
        self._state, self._before = known.after, Spot(kind, origin)
        return known.made

    def _find(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> _Known[Made]:
        shelf = self._known.setdefault((state, kind), [])
        for known in shelf:
            if known.domain.holds(origin):
                return known
        held = self.states.patterns[state].state
        made, left, guards = self._decide(held, kind, origin)
        known = _Known(Domain(guards), made, self.states.number(ValidityPattern.of(left)))
        shelf.insert(0, known)
        self.decided += 1
        return known
