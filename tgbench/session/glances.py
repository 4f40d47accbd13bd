"""Whether a look at some of the programs that may serve a run pays.

Looking for all of them takes as long as short runs do, and is left out where it does not pay.

    glances     see what was made ready with the first answer, where nothing else is looked for
    elsewhere   see what there is on other rungs than where the last choice stands, where that has a
                program as well
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tgbench.programs.program import SURE
from tgbench.session.purse import LATELY, Purse

HOPES = 16  # glances, whether they find anything or not
IN_VAIN = 1 / 512  # of what runs take, that looking elsewhere may take and bring nothing


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
        paid for. What the first ones say is not sure: as much may be owed as everything takes.
        """
        takes_ns = self.takes_ns
        if takes_ns <= self.found * (purse.full_ns - self.runs_ns):
            return not self.hopes or purse.room_ns() > -purse.full_ns
        return self.hopes > 0 and takes_ns < inf and purse.holds(takes_ns)

    def note(self, took_ns: float, ran_ns: float | None) -> None:
        """There was another one, and what the run took with what it found."""
        self.count += 1
        self.hopes = max(self.hopes - 1, 0)
        share = max(1 / self.count, LATELY)
        if self.count > SURE:  # others may have had the processor meanwhile
            self.takes_ns += (min(took_ns, 2 * self.takes_ns) - self.takes_ns) * LATELY
        elif self.count == 1 or took_ns < self.takes_ns:  # much is done for the first time
            self.takes_ns = took_ns
        self.found += ((ran_ns is not None) - self.found) * share
        if ran_ns is not None:
            self.runs_ns += (ran_ns - self.runs_ns) * (share if self.runs_ns else 1.0)


@dataclass
class Elsewhere:
    """What looking elsewhere takes and saves, on average of late.

    Fields:
        takes_ns: how long it takes; 0 while nobody looked.
        saves_ns: what runs took less with what it found.
        passed: runs since the last look.
    """

    takes_ns: float = 0.0
    saves_ns: float = 0.0
    passed: int = 0

    def pays(self, run_ns: float) -> bool:
        """Whether it saves as much as it takes, beside a run that takes so long, or may."""
        self.passed += 1
        return self.takes_ns <= max(self.saves_ns, self.passed * IN_VAIN * run_ns)

    def note(self, took_ns: float, saved_ns: float) -> None:
        """Somebody looked."""
        share = LATELY if self.takes_ns else 1.0
        self.takes_ns += (took_ns - self.takes_ns) * share
        self.saves_ns += (saved_ns - self.saves_ns) * share
        self.passed = 0
