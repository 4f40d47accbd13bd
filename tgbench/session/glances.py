"""Whether to see if a run's own program was made ready, where nothing else is looked for.

Looking for all programs that may serve a run takes as long as short runs do, and is left out where
it does not pay. What was made ready for a run with the first answer is found in a fraction of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tgbench.session.purse import LATELY, Purse

HOPES = 16  # glances, whether they find anything or not


@dataclass
class Glances:
    """What they take and save, on average of late.

    Fields:
        takes_ns: how long one takes; infinite while nothing was made ready.
        saves_ns: how much quicker runs are for it than computing everything.
        count: how many there were.
        hopes: how many more there may be, whether they save anything or not.
    """

    takes_ns: float = inf
    saves_ns: float = 0.0
    count: int = 0
    hopes: int = HOPES

    def pay(self, purse: Purse) -> bool:
        """Whether they save as much as they take, or may, and can be paid for."""
        if self.takes_ns <= self.saves_ns:
            return True
        return self.hopes > 0 and purse.holds(self.takes_ns)

    def note(self, took_ns: float, saved_ns: float) -> None:
        """There was another one."""
        self.count += 1
        self.hopes = max(self.hopes - 1, 0)
        share = max(1 / self.count, LATELY)
        self.takes_ns += (took_ns - self.takes_ns) * share
        self.saves_ns += (saved_ns - self.saves_ns) * share
