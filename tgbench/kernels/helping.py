"""Whether the helpers of a team are asked: by what runs take with them, and without.

What a team takes was timed where nobody else computed. Where another process has one of the
processors, helpers use up what the scheduler would give to the thread that they help, and a run may
take twice as long as without them. So runs of a program take turns now and then, some with helpers
and some without (`kernels.turns`), and the quicker way stands until the next time, which is soon
where processors are waited for. The same tiles are computed, whoever does it: no bit depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from tgbench.kernels.turns import Alternation

R = TypeVar("R")


class Helping:
    """Decides that for the runs of a process.

    Args:
        clock: nanoseconds on the wall.

    Fields:
        turns: with helpers, and without.
        is_asked: whether what is computed now has helpers.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.turns, self.is_asked = Alternation(), True
        self._clock = clock

    @property
    def helps(self) -> bool:
        """Whether runs take less with helpers, as far as that was compared."""
        return self.turns.stands

    def during(self, program: object, compute: Callable[[], R]) -> R:
        """A run of a program that a team computes."""
        found = self.turns.comparison(program)
        self.is_asked = self.turns.stands if found is None else found.next
        began_ns = self._clock()
        try:
            result = compute()
        finally:
            self.is_asked = True
        took_ns = self._clock() - began_ns
        if found is None:
            self.turns.ran(program, took_ns)
        else:
            self.turns.compared(found, took_ns)
        return result


@cache
def helping() -> Helping:
    """That of this process."""
    return Helping()
