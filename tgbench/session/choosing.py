"""Which program serves a run: the quickest that is there, or a better one, made now.

Making a program costs more than many a run. Whether it will be met again is not known, so a missing
program is bought as one buys skis: what it would have saved is put aside at every run, and when
that is its price it is made (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, 1988).
All times are measured in this session.

    cost of a program that is there     how long it takes
    cost of one that is not             how long such ones take + its price − what was put aside
    how long such ones take             as measured; else as modelled, once one would be bought
    price                               what making takes × how many are made for one that is met

Whatever the hopes, the bill is bounded: programs, plans, models and choosing are paid from a
*purse*. Into it goes what runs were quicker than computing everything, and a sixteenth of what that
takes; so at any time all runs together took at most a tenth more than they would have without any
of this. The share of the first runs is there at once. Until it is known what computing
everything takes, and while the purse is empty, nothing is chosen: runs are served as the last one
was, or computed as everything.

Choosing takes time as well: where runs are short, a choice stands for some of them.

A class is expected to come again as often as it did so far; one that the plan is for some times
besides, the more often the more it weighs. That is put aside for it from the start.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Literal, Protocol, TypeAlias, get_args

from tgbench.base import switches
from tgbench.base.errors import PlanError, check_choice
from tgbench.plans.decisions import Classes
from tgbench.programs.program import Program
from tgbench.runs.buckets import BucketClass
from tgbench.session.experience import Decided, Experience, Modelled, is_warm
from tgbench.session.purse import SHARE, Purse
from tgbench.session.serving import AFRESH, FROM_NOTHING, Offer, Rung

CLEARLY = 0.5  # of a full run: what takes less is made with the first answer, if planned for
AGAIN = 5  # how often a class that the plan is for is expected to come again
MOST_ACCOUNTS = 20_000  # past this, what was put aside is forgotten
LEAST_RUNNING = 50  # of choosing's own time, that runs take on which a choice stands
LONGEST = 50  # runs
FIRST_CHOICE_NS = 500_000  # what is saved up for the first choice, as none was timed yet


Making: TypeAlias = Literal["measured", "always"]
Seen: TypeAlias = "tuple[Offer, float]"  # and what a run takes
Larger: TypeAlias = Callable[[], Sequence[Offer]]  # asked for where it counts: finding them takes


def made_by(making: str | None) -> str:
    """When programs are made: as asked for, else as the environment says."""
    found = making or switches.making()
    check_choice(PlanError, "making", found, get_args(Making))
    return found


class Chooser(Protocol):
    """Picks one of several programs that would serve a run, and hears how it went.

    Fields:
        strict: whether a run's own program counts on all that is there: values too that are left
            by accident. They make runs quicker that come again and again, and programs rare that
            are met again. If not, it counts on any part of what the plan keeps.
    """

    strict: bool

    def waits(self) -> bool:
        """Whether nothing is chosen for this run, as it cannot be paid for."""

    def rehearse(self, offer: Offer, decided: Decided) -> bool:
        """Learn of a run that is planned for, and did not happen yet; whether to make it ready."""

    def again(self, own: Offer, planned: Classes) -> Sequence[Rung]:
        """On which rungs to look for a program if nothing is to be chosen now, best first."""

    def choose(self, own: Offer, larger: Larger, decided: Decided, planned: Classes) -> Offer:
        """The offer to take; one that does not fit comes back as `refused`, and is asked again."""

    def took(self, took_ns: int) -> None:
        """How long all that took from finding offers to having a program."""

    def ran(self, kind: BucketClass, program: Program, took_ns: int) -> None:
        """A run of a class is over, and a program served it."""

    def spent(self, offer: Offer, took_ns: int) -> None:
        """That long a program was being made for an offer, in vain or not."""

    def made(self, offer: Offer, program: Program, took_ns: int) -> None:
        """A program was made for an offer."""

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        """An offer does not fit the plan in force: it costs another one. True to pay that now."""

    def planned(self, took_ns: int) -> None:
        """A plan was made."""

    def forget(self) -> None:
        """All programs are gone: another plan is in force, where they take other times."""


class Own:
    """Every run has a program of its own, made as soon as it happens."""

    strict = True

    def waits(self) -> bool:
        return False

    def rehearse(self, offer: Offer, decided: Decided) -> bool:
        return False

    def again(self, own: Offer, planned: Classes) -> Sequence[Rung]:
        return ()

    def choose(self, own: Offer, larger: Larger, decided: Decided, planned: Classes) -> Offer:
        return own

    def took(self, took_ns: int) -> None:
        pass

    def ran(self, kind: BucketClass, program: Program, took_ns: int) -> None:
        pass

    def spent(self, offer: Offer, took_ns: int) -> None:
        pass

    def made(self, offer: Offer, program: Program, took_ns: int) -> None:
        pass

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        return True

    def planned(self, took_ns: int) -> None:
        pass

    def forget(self) -> None:
        pass


class Measured:
    """Chooses by what making and running took in this session.

    Args:
        modelled: expected nanoseconds of all that steps compute at an origin, part by part.
        clock: of this thread's work, in nanoseconds.
    """

    strict = False

    def __init__(
        self,
        modelled: Modelled,
        clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._experience, self._purse = Experience(modelled, clock), Purse()
        self._choosing_ns: float = FIRST_CHOICE_NS  # what choosing took when it was last done
        self._paid_ns: float | None = None  # of the choice that is being made
        self._begin()

    def forget(self) -> None:
        self._experience.forget()
        self._begin()

    def _begin(self) -> None:
        """Nothing was chosen yet."""
        self._instead_ns = self._cost_ns = inf
        self._rung, self._longest, self._skipped = AFRESH, 0, 0
        self._kind: BucketClass | None = None  # what was chosen for last
        self._saving_up = 0  # for how many runs like it nothing better can be paid for
        self._aside: defaultdict[Hashable, float] = defaultdict(float)
        self._came: defaultdict[BucketClass, int] = defaultdict(int)  # of what was chosen for
        self._chosen = 0  # how often, in all
        self._full: dict[BucketClass, Program] = {}  # what computes everything of it
        self._least_ns: dict[BucketClass, float] = {}  # what that would take that is asked for
        self._whole: Program | None = None  # what computes everything of anything

    def choose(self, own: Offer, larger: Larger, decided: Decided, planned: Classes) -> Offer:
        """The offer that costs least; what the others would have saved is put aside."""
        self._paid_ns = self._paid_ns or 0.0
        if len(self._aside) + len(self._came) > MOST_ACCOUNTS:
            self._aside.clear()
            self._came.clear()
            self._full.clear()
            self._least_ns.clear()
        kind, seen = own.spot.kind, self._seen([own, *larger()])
        self._compare(kind, seen, decided)
        best, expected = self._least(seen, decided, planned)
        if self._instead_ns == inf and (kind in self._came or kind not in planned):
            fits = [one for one in seen if self._experience.plan(one[0]) == 0.0]
            best, expected = fits[-1] if fits else (best, expected)  # what serves most other runs
        paid = expected + (self._experience.making(best) if best.program is None else 0.0)
        for offer, one in seen:
            if offer.program is None and offer is not best:
                self._aside[_account(offer)] += max(paid - one, 0.0) * (1 + self._skipped)
        for met in {offer.spot.kind for offer, _ in seen if offer.rung.continues}:
            self._came[met] += 1 + self._skipped
        self._chosen += 1 + self._skipped
        counts_on_nothing = best.program is not None and best.program.renews
        self._rung = AFRESH if counts_on_nothing else best.rung
        self._cost_ns, self._skipped = paid, 0
        self._kind, self._saving_up = kind, self._until_payable(seen, paid)
        return best

    def _until_payable(self, seen: Sequence[Seen], paid_ns: float) -> int:
        """How many runs like this one it takes until some missing program can be paid for.

        Until then there is little to choose for them.
        """
        known, purse = self._experience, self._purse
        prices = [known.plan(one) + known.making(one) for one, _ in seen if one.program is None]
        missing = min(prices, default=0.0) - purse.room_ns
        grows = SHARE * purse.full_ns + max(purse.full_ns - paid_ns, 0.0)
        if not missing > 0.0:
            return 0
        return int(missing / grows) if missing < LONGEST * grows else LONGEST

    def _seen(self, offers: Sequence[Offer]) -> list[Seen]:
        """The offers and what runs of theirs take.

        What a program takes depends on where it stands, and what is known is a mean. But one that
        is not made takes no less here than one that is known and within it; and one that is as
        quick as was hoped, no more than one that is there and holds it.
        """
        known = [(one, self._experience.running(one)) for one in offers]
        sure = [(one, takes_ns) for one, takes_ns in known if takes_ns is not None]
        warm = [(one, takes_ns) for one, takes_ns in sure if is_warm(one.program)]

        def takes(offer: Offer, own_ns: float) -> float:
            if offer.program is None:
                return max([own_ns, *(ns for one, ns in sure if one.is_within(offer))])
            if not offer.program.use.is_good:
                return own_ns
            return min([own_ns, *(ns for one, ns in warm if offer.is_within(one))])

        return [(offer, takes(offer, own_ns or 0.0)) for offer, own_ns in known]

    def _least(self, seen: list[Seen], decided: Decided, planned: Classes) -> Seen:
        """The one that costs least; what would be bought on a hope is modelled first."""
        while True:
            i = min(range(len(seen)), key=lambda i: self._cost(*seen[i], planned))
            best, hoped = seen[i]
            is_hope = best.program is None and self._experience.running(best) is None
            if not is_hope or self._experience.reference is None or self._instead_ns == inf:
                return seen[i]
            modelled = self._paid_model(best, decided)
            seen[i] = best, max(hoped, modelled)
            if hoped < self._instead_ns and modelled < inf:
                real = max(self._instead_ns - seen[i][1], 0.0) / (self._instead_ns - hoped)
                self._aside[_account(best)] *= real

    def _paid_model(self, offer: Offer, decided: Decided) -> float:
        """What a run is modelled to take; infinitely long, where asking cannot be paid for yet."""
        is_afresh = offer.rung.is_afresh
        known, purse = self._experience, self._purse
        if not purse.holds(known.modelling(offer), is_afresh):
            return inf
        began_ns = known.clock()
        found = known.model(offer, decided, until_ns=began_ns + purse.room_ns)
        self._pay(known.clock() - began_ns, is_afresh)
        return found

    def _pay(self, took_ns: float, is_afresh: bool) -> None:
        """Pay at once for a part of the choice that is being made, if one is."""
        if self._paid_ns is not None:
            self._purse.pay(took_ns, is_afresh)
            self._paid_ns += took_ns

    def _compare(self, kind: BucketClass, seen: Sequence[Seen], decided: Decided) -> None:
        """Find what is there instead of making a program, and what computing everything takes.

        That is everything that is asked for: a program that does no more may not be there.
        """
        there = [(one, offer) for offer, one in seen if offer.program is not None]
        self._instead_ns = min((one for one, _ in there), default=inf)
        afresh = [one for one in there if one[1].program is not None and one[1].program.renews]
        afresh = [one for one in afresh if is_warm(one[1].program)] or afresh
        if afresh:
            full_ns, full = min(afresh, key=lambda one: one[0])
            assert full.program is not None
            self._full[kind] = self._experience.reference = full.program
            least = next((o for o, _ in seen if o.rung is AFRESH and o.program is None), None)
            if least is not None and kind not in self._least_ns:
                known = self._experience.running(least) or self._paid_model(least, decided)
                if known < inf:
                    self._least_ns[kind] = known
            if self._purse.full_ns:
                self._purse.full_ns = min(full_ns, self._least_ns.get(kind, inf))

    def waits(self) -> bool:
        stands = self._rung.is_afresh and self._skipped < self._stands_for
        waits = stands or not self._purse.holds(self._choosing_ns)
        self._skipped += waits
        return waits

    def rehearse(self, offer: Offer, decided: Decided) -> bool:
        modelled_ns, whole = self._experience.model(offer, decided), self._whole
        return whole is not None and modelled_ns < CLEARLY * whole.use.modelled_ns

    def again(self, own: Offer, planned: Classes) -> Sequence[Rung]:
        kind = own.spot.kind
        if self.waits():
            return FROM_NOTHING if self._rung.is_afresh else (self._rung, *FROM_NOTHING)
        if kind in planned and kind not in self._came:
            return ()
        stands_for = self._stands_for if kind is self._kind else self._longest
        if self._skipped >= min(stands_for, self._chosen):
            return ()
        self._skipped += 1
        return self._rungs

    @property
    def _rungs(self) -> Sequence[Rung]:
        """Where the program is that was chosen last."""
        return FROM_NOTHING if self._rung.is_afresh else (self._rung,)

    @property
    def _stands_for(self) -> int:
        """How many runs like the last one the choice made for it stands for."""
        return max(self._longest, self._saving_up // 2)

    def took(self, took_ns: int) -> None:
        choosing_ns, self._paid_ns = took_ns - (self._paid_ns or 0.0), None
        self._purse.pay(choosing_ns)
        if self._instead_ns < inf:  # where nothing is there, there is little to choose from
            self._choosing_ns = choosing_ns
            self._let_stand(self._cost_ns)

    def _let_stand(self, running_ns: float) -> None:
        """How many runs of such a length a choice stands for at most; fewer while few were made."""
        runs = LEAST_RUNNING * self._choosing_ns / running_ns if running_ns else LONGEST
        self._longest = min(int(runs), LONGEST)

    def ran(self, kind: BucketClass, program: Program, took_ns: int) -> None:
        if program.renews:
            self._whole = program
            self._purse.open(self._experience.takes(program))
        full = self._full.get(kind, self._whole)
        if full is not None:
            there_ns = self._experience.anywhere(full)
            if kind in self._full or not self._chosen:
                least_ns = min(there_ns, self._least_ns.get(kind, inf))
            else:  # nobody chose for it yet: as for those before
                least_ns = min(there_ns, self._purse.full_ns)
            is_full = program is full
            self._purse.lost_ns += there_ns - least_ns if is_full else 0.0
            self._purse.ran(least_ns, 0.0 if is_full else least_ns - took_ns)

    def spent(self, offer: Offer, took_ns: int) -> None:
        self._pay(took_ns, offer.rung.is_afresh)

    def made(self, offer: Offer, program: Program, took_ns: int) -> None:
        self._aside.pop(_account(offer), None)
        self._experience.made(offer, program, took_ns, self._instead_ns)

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        return self._experience.refused(offer, can_plan)

    def planned(self, took_ns: int) -> None:
        self._purse.pay(took_ns)
        self._experience.planned(took_ns)

    def _cost(self, offer: Offer, expected: float, planned: Classes) -> float:
        """What a run takes, and what is left of the price of a program that is not made."""
        if offer.program is not None:
            return expected
        known = self._experience
        often, plan, making = known.often(offer), known.plan(offer), known.making(offer)
        kind, put_aside = offer.spot.kind, self._aside.get(_account(offer), 0.0)
        saving = self._saving(offer, expected)
        can_pay = self._purse.holds(plan + making, offer.rung.is_afresh)
        if self._instead_ns < inf and not can_pay:
            return inf
        times = self._came.get(kind, 0) + (AGAIN * planned[kind][0] if kind in planned else 0.0)
        return expected + max(plan + making * often - times * saving / often - put_aside, 0.0)

    def _saving(self, offer: Offer, expected: float) -> float:
        """What a program that moves saves in a run to come, if its class comes as it did so far."""
        saving = self._instead_ns - expected
        if not offer.rung.continues or not 0.0 < saving < inf:
            return 0.0
        return saving * (1 + self._came.get(offer.spot.kind, 0)) / (1 + self._chosen)


def _account(offer: Offer) -> Hashable:
    """Under what a saving is put aside: a program of its own moves, the others stand."""
    kind, origin = offer.spot
    return offer.rung, offer.state, kind, None if offer.rung.moves else origin
