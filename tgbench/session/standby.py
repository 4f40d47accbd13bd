"""Which of two plans is in force, where one computes large runs in pieces and the other keeps less.

A first plan under a budget expects that most of what comes are small changes. It may keep what
these need, and have no room left for everything at once: that is computed in pieces, which takes
longer than everything whole under the best plan for that. Nobody knows what will come, so plans are
changed as one buys skis: what runs took longer than everything would under the other plan is put
aside, and when that is a few times what changing takes, it is put in force. (Programs are made in
the first runs, and pay later: once what changing takes is too soon.) What runs took less counts
against that, as far as changing takes. From then on a share of what runs take is saved up, and
when it is what another trial may lose, the first plan has one.

    large runs in pieces ─── took longer, by a few prices of changing ──→ everything whole
             ↑                                                                  │
             └──────────────── a trial's price is saved up ─────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass

from tgbench.plans.decisions import Decisions, Instead
from tgbench.session.purse import SHARE

CLEARLY = 0.9  # of what everything takes in pieces, that it takes whole: else it is all the same
CHANGING = 3  # prices of changing, that runs may take longer before it is done
TRIAL = CHANGING + 2  # prices: of changing there and back, and what runs may take longer meanwhile
LEAST = 8  # times what everything takes, that changing does: programs may have come from a file


@dataclass
class Standby:
    """Two plans, one of which is in force.

    Fields:
        first: with large runs in pieces.
        instead: with none, and what everything takes there of what it takes under the first.
        price_ns: what changing takes at least: programs are made anew.
        is_first: whether the first one is in force.
        aside_ns: what is put aside for changing.
    """

    first: Decisions
    instead: Instead
    price_ns: float
    is_first: bool = True
    aside_ns: float = 0.0

    @staticmethod
    def of(made: Decisions, price_ns: float) -> Standby | None:
        """A plan in force, and what stands by; None where nothing does that would be quicker."""
        instead = made.instead
        if instead is None or instead.share > CLEARLY:
            return None
        return Standby(made, instead, price_ns)

    @property
    def in_force(self) -> Decisions:
        return self.first if self.is_first else self.instead.decisions

    @property
    def other(self) -> Decisions:
        return self.instead.decisions if self.is_first else self.first

    def ran(self, took_ns: float, full_ns: float) -> bool:
        """A run took so long, all that was done in it included, where everything that it asked for
        takes so long under the plan in force, 0 if nobody knows; whether the other plan is to be
        put in force.
        """
        if not full_ns:
            return False
        price_ns = max(self.price_ns, LEAST * full_ns)
        if self.is_first:
            late_ns = took_ns - self.instead.share * full_ns
            self.aside_ns = max(self.aside_ns + late_ns, -price_ns)
            return self.aside_ns > CHANGING * price_ns
        self.aside_ns += SHARE * full_ns
        return self.aside_ns > TRIAL * price_ns

    def change(self) -> Decisions:
        """The plan to put in force, from now on."""
        self.is_first, self.aside_ns = not self.is_first, 0.0
        return self.in_force
