"""Whether the helpers of a team are asked: by what runs take with them, and without.

What a team takes was timed where nobody else computed. Where another process has one of the
processors, helpers use up what the scheduler would give to the thread that they help, and a run may
take twice as long as without them. So runs of a program take turns now and then, some with helpers
and some without, and the quicker way stands until the next time. The same tiles are computed,
whoever does it: no bit depends on it.

    runs ──→ with and without, in turns ──→ the quicker way ──→ runs, for 200 times what that cost
      ↑                                                          │
      └── processors are waited for: for 20 times ←──────────────┘
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import TypeVar

R = TypeVar("R")
BLOCK_NS = 20_000_000  # of runs that are judged as one: as long as processors are given for
FEW, MANY = 3, 9  # blocks of either way: enough where all of one take longer, and enough
CLEAR = 1.2  # times as long: that is clear
LITTLE, AGAIN = 0.97, 0.95  # of what runs take without: helpers that save no more rest; they are
# asked again
PRICE, SOON = 200, 20  # times what comparing cost: until the next time; if others have begun
FIRST_NS, LONGEST_NS = 500e6, 60e9  # until the first time, and any
ELSEWHERE = 100  # runs of other programs, after which one that does not come back is let go of


@dataclass
class Comparison:
    """Runs of one program, blocks of them with helpers and without in turns.

    Fields:
        took: nanoseconds of a run, by block: those without, those with.
        others: how many runs of other programs came meanwhile.
    """

    program: weakref.ref[object]
    took: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    others: int = 0
    _runs: int = 0  # of the block that is not over
    _block_ns: int = 0
    _all: list[int] = field(default_factory=lambda: [0, 0])  # runs of either way

    @property
    def next(self) -> bool:
        """Whether the next run has helpers."""
        without, helped = self.took
        return len(helped) <= len(without)

    def note(self, took_ns: int) -> None:
        """The next run took so long."""
        self._runs += 1
        self._block_ns += took_ns
        if self._block_ns >= BLOCK_NS:
            way = self.next
            self.took[way].append(self._block_ns / self._runs)
            self._all[way] += self._runs
            self._runs = self._block_ns = 0

    @property
    def is_over(self) -> bool:
        fewest = min(map(len, self.took))
        if fewest >= MANY or fewest < FEW:
            return fewest >= MANY
        return max(map(min, self.took)) > CLEAR * min(map(max, self.took))

    @property
    def run_ns(self) -> tuple[float, float]:
        """What a run takes, without helpers and with."""
        without, helped = map(median, self.took)
        return without, helped

    @property
    def cost_ns(self) -> float:
        """How much longer runs took than all of them the quicker way."""
        least_ns = min(self.run_ns)
        ways = zip(self._all, self.run_ns, strict=True)
        return sum(runs * (run_ns - least_ns) for runs, run_ns in ways)


class Helping:
    """Decides that for the runs of a process.

    Args:
        clock: nanoseconds on the wall.

    Fields:
        helps: the way that stands.
        is_asked: whether what is computed now has helpers.
        changes: how often another way came to stand.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.helps = self.is_asked = True
        self.changes = 0
        self._clock = clock
        self._comparison: Comparison | None = None
        self._last: weakref.ref[object] | None = None  # the program that ran last
        self._ran_ns, self._due_ns, self._cost_ns, self._rarer = 0.0, FIRST_NS, 0.0, 1

    def during(self, program: object, compute: Callable[[], R]) -> R:
        """A run of a program that a team computes."""
        found = self._comparing(program)
        self.is_asked = self.helps if found is None else found.next
        began_ns = self._clock()
        try:
            result = compute()
        finally:
            self.is_asked = True
        took_ns = self._clock() - began_ns
        if found is None:
            self._ran_ns += took_ns
            self._last = weakref.ref(program)
        else:
            found.note(took_ns)
            if found.is_over:
                self._decide(found)
        return result

    def look_soon(self) -> None:
        """Others have begun to compute: compare soon; not each time for those who come and go."""
        self._due_ns, self._rarer = min(self._due_ns, SOON * self._cost_ns), 1

    def _comparing(self, program: object) -> Comparison | None:
        """The comparison that a run is a part of; one begins with a program that comes again."""
        found = self._comparison
        if found is None:
            if self._ran_ns < self._due_ns or self._last is None or self._last() is not program:
                return None
            found = self._comparison = Comparison(self._last)
        if found.program() is program:
            return found
        found.others += 1
        if found.others >= ELSEWHERE:
            self._comparison = None
        return None

    def _decide(self, found: Comparison) -> None:
        alone_ns, helped_ns = found.run_ns
        helps = helped_ns < (LITTLE if self.helps else AGAIN) * alone_ns
        if helps is not self.helps:
            self.helps = helps
            self.changes += 1
            self._rarer = 1
        elif self.helps:  # else only trying shows whether others still compute
            self._rarer *= 2
        self._comparison, self._ran_ns, self._cost_ns = None, 0.0, found.cost_ns
        self._due_ns = min(max(self._rarer * PRICE * self._cost_ns, FIRST_NS), LONGEST_NS)


@cache
def helping() -> Helping:
    """That of this process."""
    return Helping()
