"""Two ways in which runs may go, of which the quicker one stands: they take turns now and then.

runs ──→ one way and the other, in turns ──→ the quicker way ──→ runs, for 200 times what that
  ↑                                               │                     cost
  └── something has changed: for 20 times ←───────┘
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from statistics import median

BLOCK_NS = 20_000_000  # of runs that are judged as one: as long as processors are given for
CLEAR = 4.0, 2.0, 1.2  # times as long as all of the other way: after one block of either, two, more
MANY = 9  # blocks of either way, that are enough
LITTLE, AGAIN = 0.97, 0.95  # of what runs take the second way: the first is left where it saves no
# more; it is taken again
PRICE, SOON = 200, 20  # times what comparing cost: until the next time; if something has changed
FIRST_NS, LONGEST_NS = 500e6, 60e9  # until the first time, and any
ELSEWHERE = 100  # runs of other programs, after which one that does not come back is let go of


@dataclass
class Comparison:
    """Runs of one program, blocks of them the second way and the first in turns.

    Fields:
        took: nanoseconds of a run, by block: those of the second way, those of the first.
        others: how many runs of other programs came meanwhile.
    """

    program: weakref.ref[object]
    took: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    others: int = 0
    _runs: int = 0  # of the block that is not over
    _block_ns: int = 0
    _is_first: bool = True  # the next one, of it
    _all: list[int] = field(default_factory=lambda: [0, 0])  # runs of either way

    @property
    def next(self) -> bool:
        """Whether the next run goes the first way."""
        second, first = self.took
        return len(first) <= len(second)

    def note(self, took_ns: int) -> None:
        """The next run took so long. Of several the first does not count: what changed, changes."""
        way = self.next
        self._all[way] += 1
        if self._is_first and took_ns < BLOCK_NS:
            self._is_first = False
            return
        self._runs += 1
        self._block_ns += took_ns
        if self._block_ns >= BLOCK_NS:
            self.took[way].append(self._block_ns / self._runs)
            self._runs, self._block_ns, self._is_first = 0, 0, True

    @property
    def is_over(self) -> bool:
        fewest = min(map(len, self.took))
        if fewest in (0, MANY):
            return fewest == MANY
        clear = CLEAR[min(fewest, len(CLEAR)) - 1]
        return max(map(min, self.took)) > clear * min(map(max, self.took))

    @property
    def run_ns(self) -> tuple[float, float]:
        """What a run takes the second way, and the first."""
        second, first = map(median, self.took)
        return second, first

    @property
    def cost_ns(self) -> float:
        """How much longer runs took than all of them the quicker way."""
        least_ns = min(self.run_ns)
        ways = zip(self._all, self.run_ns, strict=True)
        return sum(runs * (run_ns - least_ns) for runs, run_ns in ways)


class Alternation:
    """Decides which way runs go.

    Fields:
        stands: whether the first way does.
        changes: how often another one came to stand.
    """

    def __init__(self) -> None:
        self.stands, self.changes = True, 0
        self._comparison: Comparison | None = None
        self._last: weakref.ref[object] | None = None  # the program that ran last
        self._ran_ns, self._due_ns, self._cost_ns, self._rarer = 0.0, FIRST_NS, 0.0, 1

    @property
    def is_comparing(self) -> bool:
        return self._comparison is not None

    def comparison(self, program: object) -> Comparison | None:
        """What a run of a program is a part of, if ways are compared; that begins with a program
        that comes again.
        """
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

    def ran(self, program: object, took_ns: float) -> None:
        """A run that is no part of a comparison went the way that stands."""
        self._ran_ns += took_ns
        self._last = weakref.ref(program)

    def compared(self, found: Comparison, took_ns: int) -> None:
        """A run that is part of one took so long."""
        found.note(took_ns)
        if found.is_over:
            self._decide(found)

    def look_soon(self) -> None:
        """Something has changed: compare soon; not each time where it comes and goes."""
        self._due_ns, self._rarer = min(self._due_ns, SOON * self._cost_ns), 1

    def suppose(self, stands: bool) -> bool:
        """It has, and one of the ways is likely to be the quicker one now: it stands until they are
        compared, which is soon; not each time. Whether it does.
        """
        self.look_soon()
        if stands is not self.stands and self._ran_ns >= self._due_ns:
            self.stands = stands
            self.changes += 1
        return stands is self.stands

    def _decide(self, found: Comparison) -> None:
        second_ns, first_ns = found.run_ns
        stands = first_ns < (LITTLE if self.stands else AGAIN) * second_ns
        if stands is not self.stands:
            self.stands = stands
            self.changes += 1
            self._rarer = 1
        elif self.stands:  # else only trying shows whether what it was left for is over
            self._rarer *= 2
        self._comparison, self._ran_ns, self._cost_ns = None, 0.0, found.cost_ns
        self._due_ns = min(max(self._rarer * PRICE * self._cost_ns, FIRST_NS), LONGEST_NS)
