"""Whether to see if a program was made ready for a run, where nothing else is looked for.

Looking for all programs that may serve a run takes as long as short runs do, and is left out where
it does not pay. What was made ready with the first answer is found in a fraction of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tgbench.session.purse import LATELY, Purse

HOPES = 16  # glances, whether they find anything or not


@dataclass
class Glances:
    """What they take and find, on average of late.

    Fields:
        takes_ns: how long one takes; infinite while nothing was made ready.
        found: the share of them that found something.
        runs_ns: what runs take then.
        count: how many there were.
        hopes: how many more there may be, whether they find anything or not.
    """

    takes_ns: float = inf
    found: float = 0.0
    runs_ns: float = 0.0
    count: int = 0
    hopes: int = HOPES

    def pay(self, purse: Purse) -> bool:
        """Whether they save as much as they take, beside computing everything, or may, and can be
        paid for.
        """
        if self.takes_ns <= self.found * (purse.full_ns - self.runs_ns):
            return True
        return self.hopes > 0 and purse.holds(self.takes_ns)

    def note(self, took_ns: float, ran_ns: float | None) -> None:
        """There was another one, and what the run took with what it found."""
        self.count += 1
        self.hopes = max(self.hopes - 1, 0)
        share = max(1 / self.count, LATELY)
        self.takes_ns += (took_ns - self.takes_ns) * share
        self.found += ((ran_ns is not None) - self.found) * share
        if ran_ns is not None:
            self.runs_ns += (ran_ns - self.runs_ns) * (share if self.runs_ns else 1.0)
