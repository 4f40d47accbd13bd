"""Which of two plans is in force, where one computes large runs in pieces and the other keeps less.

Under a budget there may be room for what small changes need, or for everything at once, and not for
both: then everything is computed in pieces, which takes longer than whole. A first plan is for what
is expected, and nobody knows what will come. So plans are changed as one buys skis: what runs took
longer than they would have under the other plan is put aside, and when that is a few times what
changing takes, it is put in force. (Programs are made in the first runs, and pay later: once what
changing takes is too soon.)

    in force             what a run would have taken under the other plan
    large runs in pieces     the share of everything that this takes whole; what runs took less
                             counts against what was put aside, as far as changing takes
    everything whole         what is expected of its class, wherever it is; nobody knows of other
                             classes, and it begins anew with nothing put aside

While everything is whole, a share of what runs take is saved up besides, and when it is what a
trial may lose, large runs are in pieces for one. Every trial but that has to promise twice as much
as the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tgbench.plans.decisions import Decisions
from tgbench.runs.buckets import BucketClass
from tgbench.runs.split import WHOLE
from tgbench.session.purse import SHARE

CLEARLY = 0.9  # of what everything takes in pieces, that it takes whole: else it is all the same
CHANGING = 3  # prices of changing, that runs may take longer before it is done
TRIAL = CHANGING + 2  # prices: of changing there and back, and what runs may take longer meanwhile
LEAST = 8  # times what everything takes, that changing does: programs may have come from a file


@dataclass
class Standby:
    """Two plans, one of which is in force.

    Fields:
        pieces: with large runs in pieces.
        whole: with none.
        share: what everything takes by the second, of what it takes by the first.
        hopes: what runs of a class are expected to take by the first.
        price_ns: what changing takes at least: programs are made anew; by either plan, as soon as
            that is known.
        in_pieces: whether the first one is in force.
        aside_ns: what is put aside for changing.
        saved_ns: and for a trial.
        trials: how many there were of the first one.
    """

    pieces: Decisions
    whole: Decisions
    share: float
    hopes: Mapping[BucketClass, float]
    price_ns: float
    in_pieces: bool
    aside_ns: float = 0.0
    saved_ns: float = 0.0
    trials: int = 0

    @staticmethod
    def of(made: Decisions, price_ns: float) -> Standby | None:
        """A plan in force, and what stands by; None where nothing does that may be quicker."""
        instead, in_pieces = made.instead, made.cut != WHOLE
        if instead is None or instead.share > CLEARLY:
            return None
        pieces, whole = made, instead.decisions
        if not in_pieces:
            pieces, whole = whole, pieces
        return Standby(pieces, whole, instead.share, instead.hopes, price_ns, in_pieces)

    @property
    def in_force(self) -> Decisions:
        return self.pieces if self.in_pieces else self.whole

    @property
    def other(self) -> Decisions:
        return self.whole if self.in_pieces else self.pieces

    def ran(self, kind: BucketClass, took_ns: float, full_ns: float) -> bool:
        """A run of a class took so long, all that was done in it included, where everything that it
        asked for takes so long under the plan in force, 0 if nobody knows; whether the other plan
        is to be put in force.
        """
        if not full_ns:
            return False
        price_ns = max(self.price_ns, LEAST * full_ns)
        if self.in_pieces:
            late_ns = took_ns - self.share * full_ns
            self.aside_ns = max(self.aside_ns + late_ns, -price_ns)
            return self.aside_ns > CHANGING * price_ns
        hoped_ns = self.hopes.get(kind)
        self.aside_ns = 0.0 if hoped_ns is None else max(self.aside_ns + took_ns - hoped_ns, 0.0)
        self.saved_ns += SHARE * full_ns
        promised = self.aside_ns > CHANGING * price_ns * 2**self.trials
        return promised or self.saved_ns > TRIAL * price_ns

    def is_trial_of(self, made: Decisions) -> bool:
        """Whether a plan is in force to be tried: with large runs in pieces, after the other."""
        return self.trials > 0 and self.in_pieces and self.pieces is made

    def changed(self, price_ns: float) -> None:
        """Programs of the plan that was put in force took so long."""
        self.price_ns = max(self.price_ns, price_ns)

    def change(self) -> Decisions:
        """The plan to put in force, from now on."""
        self.trials += not self.in_pieces
        self.in_pieces, self.aside_ns, self.saved_ns = not self.in_pieces, 0.0, 0.0
        return self.in_force
