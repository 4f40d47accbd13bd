"""Integer programs beside the search: they prove how good a plan can be, and propose some.

    search ── program, limits ─→ │ thread │ ─→ answers ── bound, retention ─→ search

Where time is what counts, they are solved in a thread of their own, as the solver lets go of the
interpreter. Where steps are, they are solved when asked for: what comes of the search must not
depend on who is faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from tgbench.plans.retention.exact import IntegerProgram, Relaxed, SolverLimits

Limits = Callable[[], SolverLimits]  # asked when a program's turn comes


@dataclass(frozen=True)
class Question:
    """A program to be solved.

    Fields:
        about: whatever the answer is for.
        integer: False leaves `keep` fractional: only the bound is asked for.
        attempt: how often it was asked before, in less memory each time.
    """

    about: Any
    program: IntegerProgram
    limits: Limits
    integer: bool = False
    attempt: int = 0

    def answered(self) -> Answer:
        """Solve it."""
        limits = self.limits()
        return Answer(self, self.program.solve(limits, integer=self.integer))


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
        self._asked: SimpleQueue[Question | None] = SimpleQueue()
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
            self._asked.put(question)

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
        self._asked.put(None)

    def _serve(self) -> None:
        while (question := self._asked.get()) is not None and not self._is_closed:
            try:
                self._answers.put(question.answered())
            except Exception as error:
                self._answers.put(error)
