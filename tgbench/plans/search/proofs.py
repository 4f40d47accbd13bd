"""Integer programs beside the search: they prove how good a plan can be, and propose some.

    search ── program ─→ │ thread │ ─→ answers ── bound, retention ─→ search
                 └─ what is left of the allowance, or a share of it

Short ones come first, in the order in which they were asked.

Where time is what counts, they are solved in a thread of their own, as the solver lets go of the
interpreter. Where steps are, they are solved when asked for: what comes of the search must not
depend on who is faster. Then all of them together have so much work for each step, and what that
does not suffice for is not bounded.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Any

from tgbench.plans.retention.exact import IntegerProgram, Relaxed
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.search.effort import Spending

SHORTEST_S = 0.05  # that a program is given
SHORT = 0.125  # of what is left: what an integer program may take that does not wait for others
FIRST_WORK, WORK_A_STEP = 5e5, 1e5  # of the solver: for any search by steps, and for each of them


class ProofAllowance:
    """What the programs of one search may take together: the time left, or work by steps."""

    def __init__(self, spending: Spending) -> None:
        steps = spending.effort.steps
        self.spending = spending
        self.work = math.inf if steps is None else FIRST_WORK + steps * WORK_A_STEP

    @property
    def is_spent(self) -> bool:
        return self.work <= 0 or self.spending.is_late()

    @property
    def seconds(self) -> float:
        return max(self.spending.left_s, SHORTEST_S)

    def solve(self, program: IntegerProgram, *, integer: bool, share: float = 1.0) -> Relaxed:
        """With all that is left, or a share of it."""
        limits = SolverLimits(share * self.seconds, work=share * self.work)
        found = program.solve(limits, integer=integer)
        self.work -= found.work
        return found


@dataclass(frozen=True)
class Question:
    """A program to be solved.

    Fields:
        about: whatever the answer is for.
        integer: False leaves `keep` fractional: only the bound is asked for.
        attempt: how often it was asked before, in less memory each time.
        share: of what is left of the allowance.
    """

    about: Any
    program: IntegerProgram
    allowance: ProofAllowance
    integer: bool = False
    attempt: int = 0
    share: float = 1.0

    @property
    def is_long(self) -> bool:
        """Whether others come before it."""
        return self.integer and self.share > SHORT

    def answered(self) -> Answer:
        """Solve it."""
        solve = self.allowance.solve
        return Answer(self, solve(self.program, integer=self.integer, share=self.share))


@dataclass(frozen=True)
class Answer:
    """What came of a question."""

    question: Question
    found: Relaxed


class Proofs:
    """Questions and their answers, in order.

    Args:
        beside: in a thread; else a question is answered when it is asked.
    """

    def __init__(self, beside: bool) -> None:
        self.open = 0
        self._asked: PriorityQueue[tuple[bool, int, Question | None]] = PriorityQueue()
        self._number = count()
        self._answers: SimpleQueue[Answer | Exception] = SimpleQueue()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if beside:
            # Not a daemon: a process that ends while the solver runs would abort in it.
            self._thread = threading.Thread(target=self._serve)
            self._thread.start()

    def ask(self, question: Question) -> None:
        self.open += 1
        if self._thread is None:
            self._answers.put(question.answered())
        else:
            self._asked.put((question.is_long, next(self._number), question))

    def answers(self, seconds: float = 0.0) -> list[Answer]:
        """What was answered since the last call; waits so long for the first one."""
        found: list[Answer] = []
        while self.open:
            try:
                one = self._answers.get(timeout=1e-6 if found else max(seconds, 1e-6))
            except Empty:
                break
            self.open -= 1
            if isinstance(one, Exception):
                raise one
            found.append(one)
        return found

    def close(self) -> None:
        """No more questions; one that is being solved ends by its own limits, and nobody waits."""
        self._is_closed = True
        self._asked.put((False, -1, None))

    def _serve(self) -> None:
        while (question := self._asked.get()[-1]) is not None and not self._is_closed:
            try:
                self._answers.put(question.answered())
            except Exception as error:
                self._answers.put(error)
