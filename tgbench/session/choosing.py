"""Which program serves a run: the quickest that is there, or a better one, made now.

Making a program costs more than many a run. Whether it will be met again is not known, so a missing
program is bought as one buys skis: what it would have saved is put aside at every run, and when
that is its price it is made (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, 1988).
All times are measured in this session.

    cost of a program that is there     how long it takes
    cost of one that is not             how long such ones take + its price − what was put aside
    how long such ones take             as measured; else as modelled, once one would be bought
    price                               what making takes × how many are made for one that is met

Whatever the hopes, the bill is bounded: programs, plans, models, choosing, and what a run takes
besides its calls that computing everything does not, are paid from a
*purse*. Into it goes what runs were quicker than computing everything, and a sixteenth of what that
takes; so at any time all runs together took at most a tenth more than they would have without any
of this. The share of the first runs is there at once. Until it is known what computing
everything takes, and while the purse is empty, nothing is chosen: runs are served as the last one
was, or computed as everything.

Choosing takes time as well: where runs are short, a choice stands for some of them. So does looking
for programs: where it brings less than it takes, on average of late, it may take a 64th of
computing everything, and other runs do just that. What is new is looked for at once, as far as the
purse goes.

A class is expected to come again as often as it did so far; one that the plan is for some times
besides, the more often the more it weighs. That is put aside for it from the start. A program is
expected to serve runs of smaller classes as well, from when the model was asked about it.

One missing program is wanted at a time, that saves most for its price; it is paid for bit by bit,
as far as the purse goes.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, log
from statistics import fmean

from tgbench.base.coords import Domain
from tgbench.base.memo import Latest
from tgbench.plans.decisions import Classes
from tgbench.programs.program import SURE, Program, Use
from tgbench.runs.buckets import BucketClass, Spot
from tgbench.runs.pausing import Pausing
from tgbench.runs.work import Place
from tgbench.session.chooser import Larger, Seen, Wanted
from tgbench.session.experience import MOST_CLASSES, Asked, Decided, Experience, Modelled
from tgbench.session.glances import HOPES, Elsewhere, Glances
from tgbench.session.purse import Purse
from tgbench.session.serving import AFRESH, CONTINUING, EXACTLY, THERE, WIDER, Offer, Rung

CLEARLY = 4 / 5  # of a full run: what takes less is made with the first answer, if planned for
MUCH = 1 / 2  # of a full run: what takes less is quicker, whatever that takes exactly
FEW = 1 / 4  # of the places of a class: rather a program that stands than one that moves so far
BORDER = 1 / 16  # of them: at fewer there is a border, where hardly any run is by chance
AGAIN = 5  # how often a class that the plan is for is expected to come again
MOST_ACCOUNTS = 20_000  # past this, what was put aside is forgotten
EASILY = 4  # times in the purse, what asking about everything that is asked for takes
MOST_MISSING = 16  # classes that the model was asked about, and no program was made for
LAST_MET = 32  # runs of a class, whose places are remembered
LEAST_RUNNING = 50  # of choosing's own time, that runs take on which a choice stands
LONGEST = 50  # runs
LONGEST_RUN = 1.3  # times what computing everything takes, that a run may with what is got ready
LEAST_PART = 1 / 4  # of computing everything, that is spent on it at a time: after each pause the
# processor's caches hold nothing of it, and ever smaller parts would take ever longer together
LATELY = 1 / 8  # of what places of runs count for, that the last one does
LOOKING = 1 / 64  # of computing everything, that looking for programs may take in vain
READING = 0.25  # of a whole run: to find out what earlier ones left
FIRST_NS = 500_000  # what is saved up for the first choice, or look, as none was timed yet
FIRST_TIMES = 3  # as long as where nothing is there yet, a first choice among several takes


@dataclass
class Everything:
    """What computing everything takes that runs of a class ask for, on average of late.

    Fields:
        program: that does it, and more where one for no more is not there.
        there_ns: what it takes.
        least_ns: what one for no more would; the same where it is that one.
    """

    program: Program
    there_ns: float
    least_ns: float

    @staticmethod
    def of(program: Program) -> Everything:
        """By one for no more than is asked for."""
        return Everything(program, program.use.takes_ns, program.use.takes_ns)

    def note(self, program: Program, there_ns: float, least_ns: float) -> None:
        """At the place of another run."""
        self.program = program
        self.there_ns += (there_ns - self.there_ns) * LATELY
        self.least_ns += (least_ns - self.least_ns) * LATELY

    def ran(self, took_ns: float) -> None:
        """It ran often enough to know what it takes, though nobody chooses."""
        if self.least_ns == self.there_ns:
            self.least_ns = took_ns
        self.there_ns = took_ns


class Met:
    """Runs of one class: how many there were, and where the last of them stood."""

    def __init__(self) -> None:
        self.count = 0
        self._last = deque[Place](maxlen=LAST_MET)

    def note(self, origin: Place, runs: int) -> None:
        self.count += runs
        self._last.append(origin)

    def others(self, domain: Domain) -> int:
        """How many of the last ones were where guards hold, but for the one that was asked of."""
        return max(sum(map(domain.holds, self._last)) - 1, 0)

    def share(self, offer: Offer, known: Experience) -> float:
        """The share of them that a program for an offer would have served.

        One that stands serves at its place, and one that moves where its guards hold, as far as
        these are known. What the last runs say, but for the one that a model was asked about,
        counts beside one that may stand anywhere.
        """
        kind, origin = offer.spot
        domains, runs = known.domains(offer), len(self._last)
        if not offer.rung.moves:
            return (self._last.count(origin) + 1 / offer.rung.places) / (1 + runs)
        if not domains:
            return known.anywhere(offer)
        right = fmean(self.others(domain) + domain.share(kind.bounds) for domain in domains)
        return right / max(runs, 1)


UNMET = Met()


class Measured:
    """Chooses by what making and running took in this session.

    Args:
        modelled: how long all that steps compute is expected to take, asked at two places.
        clock: of this thread's work, in nanoseconds.
    """

    strict = False

    def __init__(
        self,
        modelled: Modelled,
        clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._experience, self._purse = Experience(modelled, clock), Purse()
        self._choosing_ns: float = FIRST_NS  # what choosing took when it was last done
        self._plain = Use()  # what runs take besides that compute everything
        self._begin()

    def forget(self) -> None:
        self._experience.forget()
        self._begin()

    def _begin(self) -> None:
        """Nothing was chosen yet."""
        self.wanted: Wanted | None = None
        self._instead_ns = self._cost_ns = inf
        self.serves_none = False
        self._lack_ns = 0.0  # what making programs took as none was there, but for the first one
        self._rung, self._longest, self._skipped = AFRESH, 0, 0
        self._ran_ns = 0  # what runs took since the last choice, also those that had a program
        self._is_unsure = False  # whether the last choice was to find out what everything takes
        self._aside: defaultdict[Hashable, float] = defaultdict(float)
        self._runs = 0
        self._came = dict[BucketClass, Met]()  # of what was chosen for
        self._chosen = 0  # how often, in all
        self._counts: tuple[Sequence[Seen], Offer, float] | None = None  # when the run is over
        self._full = Latest[BucketClass, Everything](MOST_CLASSES)
        self._lately: Everything | None = None  # of the last run
        self._quick = Latest[BucketClass, None](MOST_MISSING)  # served by less than everything
        self._missing = Latest[tuple[Rung, BucketClass], None](MOST_MISSING)  # and asked about
        self._promising = Latest[tuple[Rung, BucketClass], int](MOST_MISSING)  # choices since then
        self._whole: Program | None = None  # what computes everything of anything
        self._ready: list[Program] = []  # made with the first answer, before that was measured
        self._glances = {EXACTLY: Glances(), WIDER: Glances()}
        self._glanced: tuple[Rung, float] | None = None  # what the one of this run took
        self._elsewhere = Elsewhere()
        self._look_at_once()

    def _look_at_once(self) -> None:
        """Nothing was looked for yet."""
        self._looking, self._found_ns = Use(), 0.0  # what it took, and saved, on average of late
        self._passed, self._hopes = 0, HOPES  # runs that did not look; looks for what is new

    @property
    def states(self) -> Iterable[int]:
        return self._experience.states

    @property
    def full_ns(self) -> float:
        return self._purse.full_ns

    def choose(self, own: Offer, larger: Larger, planned: Classes) -> Offer:
        """The offer that costs least; what the others would have saved is put aside.

        One whose program is missing is `wanted`, and the best of those that are there is taken.
        """
        if len(self._aside) + len(self._came) > MOST_ACCOUNTS:
            self._aside.clear()
            self._came.clear()
            self._full.clear()
        for promising in list(self._promising):
            self._promising[promising] += 1
        kind, seen = own.spot.kind, self._seen(self._with_asked(own, larger()))
        self._quick.pop(kind, None)
        unknown = self._compare(kind, seen)
        best, expected = self._least(seen, planned)
        self.serves_none = self._instead_ns == inf
        if self.serves_none:
            best, expected = self._to_make(seen, planned) or (best, expected)
        paid = expected + (self._experience.making(best) if best.program is None else 0.0)
        self._counts = seen, best, paid
        missing = best if best.program is None else unknown
        unsure = None if missing is None or self.wanted is not None else self._unsure(seen)
        if unsure is not None:
            best, paid = unsure
        elif self._instead_ns < inf and self.wanted is None and missing is not None:
            self._want(*next(one for one in seen if one[0] is missing))
        if best.program is None and self._instead_ns < inf:
            best, paid = _quickest_there(seen)
        self._is_unsure = unsure is not None
        counts_on_nothing = best.program is not None and best.program.renews
        self._rung = AFRESH if counts_on_nothing else best.rung
        self._cost_ns = paid
        return best

    def _unsure(self, seen: Sequence[Seen]) -> Seen | None:
        """What computes everything, where it ran too seldom to know what that takes, and what
        serves a run is not much quicker: it runs before anything is bought, as what is paid for
        that is what runs are taken to be quicker by. A model may be further off than they are.
        """
        there = [(offer.program, (offer, ns)) for offer, ns in seen if offer.program is not None]
        full = [(program, one) for program, one in there if program.renews]
        if not full or any(program.use.is_warm for program, _ in full):
            return None
        _, best = min(full, key=lambda found: found[1][1])
        return best if MUCH * best[1] < self._instead_ns < best[1] else None

    def _to_make(self, seen: Sequence[Seen], planned: Classes) -> Seen | None:
        """What is made where nothing serves a run: its own program in the first run of a class that
        is planned for, as there is room for it; else the one that will serve most other runs. None
        where that does not fit. Programs that serve a run each have paid for a plan, with room for
        one that serves all of them, when making them took as long.
        """
        kind, known = seen[0][0].spot.kind, self._experience
        can_plan = self._lack_ns > known.planning_ns
        fits = [
            one
            for one in seen
            if (price := known.plan(one[0])) == 0.0 or (can_plan and price < inf)
        ]
        if kind in planned and kind not in self._came:
            return seen[0] if fits and fits[0] is seen[0] else None
        return max(reversed(fits), key=lambda one: self._serves(one[0], planned), default=None)

    def _with_asked(self, own: Offer, larger: Sequence[Offer]) -> list[Offer]:
        """The offers, and those of other classes that the model was asked about and that do all of
        this run: a program serves such runs as well, so they count for it.
        """
        found = [own, *larger]
        classes = {(offer.rung, offer.spot.kind) for offer in found}
        for rung, kind in self._missing.keys() - classes:
            between = kind.around(own.bucket)
            if between is not None:
                origin = between[1]  # so that changes start together
                spot = Spot(kind, origin)
                found.append(Offer(rung, kind.bucket(origin), spot, None, None, own.finds))
        return found

    def _count(self, seen: Sequence[Seen], best: Offer, paid_ns: float) -> None:
        """What a run was chosen from; it stands for those before it that nothing was chosen for."""
        for offer, one in seen:
            if offer.program is None and offer is not best:
                self._aside[_account(offer)] += max(paid_ns - one, 0.0) * (1 + self._skipped)
                if self._experience.lacks(offer):
                    self._experience.lacked(offer, 1 + self._skipped)
        for kind, origin in {offer.spot for offer, _ in seen if offer.rung.goes_by_place}:
            self._came.setdefault(kind, Met()).note(origin, 1 + self._skipped)
        self._chosen += 1 + self._skipped
        self._skipped = 0

    def _want(self, offer: Offer, hoped_ns: float) -> None:
        """Get a program ready, or find out first what it takes."""
        self.wanted = Wanted(offer, self._is_hope(offer), hoped_ns, self._instead_ns)

    def _seen(self, offers: Sequence[Offer]) -> list[Seen]:
        """The offers and what runs of theirs take.

        One that is not made takes no less than one that is known and within it; where the model was
        asked about it, than one that was asked about too: what is said of others from all of their
        kind may be of one that hands out more. And one that is as quick as was hoped takes no more
        than one that is there and holds it. Where nobody knows
        anything, it is hoped that it takes the part of one that is there and holds it, computing
        everything for instance, that it changes and is asked for: all such parts together compute
        that. Of a graph where a small part takes nearly as long as everything, another one is hoped
        to as well (see `_exponent`).
        """
        known = self._experience
        found = [(offer, known.running(offer)) for offer in offers]
        sure = [(one, takes_ns) for one, takes_ns in found if takes_ns is not None]
        asked = [(one, ns) for one, ns in sure if known.is_asked(one)]
        there = [(one, one[0].program) for one in sure if one[0].program is not None]
        warm = [one for one, program in there if program.use.is_warm]
        quickest_ns = min((ns for (_, ns), _ in there), default=inf)

        exponent = _exponent(there)

        def hoped(offer: Offer) -> float:
            around = ((one, ns) for (one, ns), _ in there if offer.is_within(one))
            parts = (ns * offer.bucket.share_of(one.bucket) ** exponent for one, ns in around)
            return max(parts, default=0.0)

        def takes(offer: Offer, own_ns: float) -> float:
            if offer.program is None and quickest_ns < inf and known.lacks(offer):
                return quickest_ns  # computes more than such ones do: it is taken to bring nothing
            if offer.program is None:
                within = asked if known.is_asked(offer) else sure
                return max([own_ns, *(ns for one, ns in within if one.is_within(offer))])
            if not offer.program.is_good(offer.spot.origin):
                return own_ns
            return min([own_ns, *(ns for one, ns in warm if offer.is_within(one))])

        return [
            (offer, takes(offer, hoped(offer) if own_ns is None else own_ns))
            for offer, own_ns in found
        ]

    def _least(self, seen: Sequence[Seen], planned: Classes) -> Seen:
        """The one that costs least; of those that are not made and cost less than what is there,
        the one that saves most for what is to be paid for it.
        """
        costs = [self._cost(offer, expected, planned) for offer, expected in seen]
        least = seen[costs.index(min(costs))]
        if least[0].program is not None or self._instead_ns == inf:
            return least
        better = [
            (one, self._is_hope(one[0]))
            for one, cost in zip(seen, costs, strict=True)
            if one[0].program is None and cost < self._instead_ns
            if not one[0].rung.is_sized or self._differ_in_size(one[0], seen[0][0])
        ]
        better = [(one, is_hope) for one, is_hope in better if not is_hope or self._asks]
        sure_ns = min((one[1] for one, is_hope in better if not is_hope), default=inf)
        worth_it = [one for one, is_hope in better if not is_hope or one[1] < sure_ns]
        if not worth_it:
            return _quickest_there(seen)
        best = max(worth_it, key=lambda one: self._worth(one[0], one[1], planned))
        return best if self._may_have(best[0]) else _quickest_there(seen)

    @property
    def _asks(self) -> bool:
        """Whether to ask what others take: while a program is known to be worth making at places
        that other runs were at, these come first, as asking takes as long as making one.
        """
        return all(choices >= HOPES for choices in self._promising.values())

    def _differ_in_size(self, sized: Offer, own: Offer) -> bool:
        """Whether runs came of other sizes than this one: else one for any size serves no more."""
        came = self._came.get
        return came(sized.spot.kind, UNMET).count > came(own.spot.kind, UNMET).count

    def _may_have(self, offer: Offer) -> bool:
        """Whether a missing program may be wanted now: one at a time, as far as the purse goes."""
        return self.wanted is None and self._purse.room_ns(offer.rung.is_afresh) > 0.0

    def _compare(self, kind: BucketClass, seen: Sequence[Seen]) -> Offer | None:
        """Find what is there instead of making a program, and what computing everything takes.

        That is everything that is asked for: a program that does no more may not be there.

        Returns:
            The offer of that program, if the model is to be asked about it.
        """
        there = [(one, offer.program) for offer, one in seen if offer.program is not None]
        self._instead_ns = min((one for one, _ in there), default=inf)
        renewing = [found for found in there if found[1].renews]
        renewing = [found for found in renewing if found[1].use.is_warm] or renewing
        if not renewing:
            return None
        there_ns, full = min(renewing, key=lambda found: found[0])
        _, quickest = min(there, key=lambda found: found[0])
        is_known = not quickest.renews and quickest.use.ratio is not None
        self._experience.reference = full
        self._experience.serving = quickest if is_known else None
        least = next((o for o, _ in seen if o.rung is AFRESH and o.program is None), None)
        known = None if least is None else self._experience.running(least)
        least_ns = there_ns if known is None else min(there_ns, known)
        if kind in self._full:
            self._full[kind].note(full, there_ns, least_ns)
        else:
            self._full[kind] = Everything(full, there_ns, least_ns)
        if self._purse.full_ns:
            self._purse.takes(least_ns)
        can_ask = least is not None and known is None and self._can_ask(least)
        return least if can_ask else None

    def _can_ask(self, offer: Offer) -> bool:
        """Whether it can be paid for easily: it saves little, and programs come before it."""
        price = EASILY * self._experience.modelling(offer)
        return self._purse.holds(price, offer.rung.is_afresh)

    def waits(self) -> bool:
        # where something is wanted already, nothing else may be
        stands = self._stands if self.wanted is None else self._skipped < LONGEST
        waits = (self._rung.is_afresh and stands) or not self._purse.holds(self._choosing_ns)
        self._skipped += waits
        return waits

    def found(self, took_ns: int) -> None:
        self._glanced = None  # the run before may have come to no end
        self._purse.found(took_ns)

    def rehearsing(self, offer: Offer, decided: Decided) -> Pausing[bool]:
        known, whole = self._experience, self._whole
        began_ns = known.clock()
        found = yield from known.asking(offer, decided)
        known.asked(offer, found, known.clock() - began_ns, is_cold=True)
        modelled_ns = found[0].at(offer.spot.origin)
        return whole is not None and modelled_ns < CLEARLY * whole.use.modelled_ns

    def rehearsing_on(self, there: Offer, anew: Offer, decided: Decided) -> Pausing[bool]:
        known = self._experience
        part_ns = known.modelled_ns(there)
        if part_ns is None:
            return False
        if known.modelled_ns(anew) is None:
            began_ns = known.clock()
            found = yield from known.asking(anew, decided)
            known.asked(anew, found, known.clock() - began_ns, is_cold=True)
        return part_ns < CLEARLY * (known.modelled_ns(anew) or 0.0)

    def stands(self, offer: Offer) -> bool:
        return UNMET.share(offer, self._experience) < FEW

    def made_ready(self, rung: Rung, took_ns: int) -> None:
        glances = self._glances[rung]  # when runs come, less of all that is in near caches
        glances.takes_ns = min(glances.takes_ns, FIRST_TIMES * took_ns)

    def answered(self, is_free: bool) -> None:
        if is_free:
            self._purse.left_ns = max(self._purse.left_ns, 0.0)  # what it took is told apart
        self._look_at_once()
        self._looking.note(FIRST_NS)

    def asking(self, offer: Offer, decided: Decided) -> Pausing[Asked]:
        return self._experience.asking(offer, decided)

    def asked(self, wanted: Wanted, found: Asked) -> None:
        """What was put aside on a hope is as much less as the hope was too high."""
        offer = wanted.offer
        takes_ns = self._experience.asked(offer, found, wanted.took_ns)
        if offer.rung.moves and offer.rung.goes_by_place:
            self._missing[offer.rung, offer.spot.kind] = None
        if takes_ns < CLEARLY * wanted.instead_ns and self._is_met(offer.spot.kind, found[1]):
            self._promising[offer.rung, offer.spot.kind] = 0
        hoped_ns = wanted.instead_ns - wanted.hoped_ns
        if hoped_ns > 0.0:
            real_ns = min(max(wanted.instead_ns - takes_ns, 0.0), hoped_ns)
            self._aside[_account(offer)] *= real_ns / hoped_ns
        self._choose_soon()

    def room_ns(self, takes_ns: float, spent_ns: int) -> float:
        full_ns, wanted = self._purse.full_ns, self.wanted
        left_ns = LONGEST_RUN * full_ns - takes_ns - spent_ns
        is_afresh = wanted is not None and wanted.offer.rung.is_afresh
        part_ns, saved_ns = LEAST_PART * full_ns, self._purse.room_ns(is_afresh)
        return min(max(left_ns, part_ns), saved_ns) if saved_ns >= part_ns else 0.0

    def _is_met(self, kind: BucketClass, domain: Domain) -> bool:
        """Whether runs come where guards hold: at a border, hardly any may."""
        return domain.share(kind.bounds) >= BORDER or self._came.get(kind, UNMET).others(domain) > 0

    def _choose_soon(self) -> None:
        """There is more to choose from: the last choice does not stand any more."""
        self._longest = 0

    def again(self, own: Offer, planned: Classes) -> Sequence[Rung]:
        kind = own.spot.kind
        if self.waits():
            is_news = kind in self._quick and self._purse.holds(self._choosing_ns)
            return CONTINUING if is_news else self._rungs  # what it had is not right here
        if kind in planned and kind not in self._came:
            return ()
        if not self._stands or self._skipped >= self._chosen:
            return ()
        self._skipped += 1
        return self._rungs

    @property
    def _rungs(self) -> Sequence[Rung]:
        """Where the program is that was chosen last, or where it may be better elsewhere."""
        return THERE if self._rung.is_afresh else (self._rung, *THERE)

    def looks_elsewhere(self, takes_ns: float) -> bool:
        return self._rung.is_afresh or self._elsewhere.pays(takes_ns)

    def elsewhere(self, took_ns: int, saved_ns: float) -> None:
        self._elsewhere.note(took_ns, saved_ns)

    def took(self, took_ns: int) -> None:
        self._purse.pay(took_ns)
        if self._instead_ns < inf:  # where nothing is there, there is little to choose from
            self._choosing_ns, self._ran_ns = took_ns, 0
            self._let_stand(self._cost_ns)
        elif not self._chosen:  # slower processors take longer for that as well
            self._choosing_ns = max(self._choosing_ns, FIRST_TIMES * took_ns)
        if self._is_unsure:
            self._choose_soon()

    @property
    def _stands(self) -> bool:
        """Whether choosing again would take more of runs since the last choice than it may."""
        runs_ns = LEAST_RUNNING * self._choosing_ns
        return self._skipped < self._longest and self._ran_ns < runs_ns

    def _let_stand(self, running_ns: float) -> None:
        """How many runs of such a length a choice stands for at most; fewer while few were made."""
        runs = LEAST_RUNNING * self._choosing_ns / running_ns if running_ns else LONGEST
        self._longest = min(int(runs), LONGEST)

    def ran(self, kind: BucketClass, program: Program, took_ns: int) -> None:
        self._runs += 1
        self._ran_ns += took_ns
        self.serves_none = False
        if self._counts is not None:
            self._count(*self._counts)
            self._counts = None
        purse, use, renews = self._purse, program.use, program.renews
        is_warm = use.ran >= SURE
        if renews:
            self._whole = program
            if not purse.full_ns:
                purse.open(use.takes_ns)
            if self._ready and is_warm:  # what was made ready has to be quicker
                for ready in self._ready:
                    ready.use.instead_ns = use.takes_ns
                self._ready.clear()
        full, whole = self._full.get(kind), self._whole
        if full is None:
            full = self._lately  # that of another, as nobody chose for it
            if full is None or (renews and program is not full.program):
                # what computed all that others asked for is not there for this: so that is no less
                full = None if whole is None else Everything.of(whole)
        if full is not None:
            self._lately = full
            if program is full.program and is_warm:
                full.ran(use.time_ns)
            saved_ns, least_ns = 0.0, full.least_ns
            if renews:  # one for no more is not there, or not for this place
                there_ns = full.there_ns if program is full.program else took_ns
                if there_ns > least_ns:
                    purse.lost_ns += there_ns - least_ns
            else:
                saved_ns = least_ns - took_ns
                if saved_ns > 0.0 and kind is not next(reversed(self._quick), None):
                    self._quick[kind] = None
            purse.ran(least_ns, saved_ns)
            if self._glanced is not None:
                rung, glanced_ns = self._glanced
                self._glances[rung].note(glanced_ns, took_ns)
                self._glanced = None
            elif not self._passed:
                self._found_ns += (max(saved_ns, 0.0) - self._found_ns) * LATELY
                if self._hopes:
                    self._hopes -= 1

    def spent(self, offer: Offer, took_ns: int) -> None:
        self._purse.pay(took_ns, offer.rung.is_afresh)

    def made(
        self, offer: Offer, program: Program, took_ns: int, wanted: Wanted | None = None
    ) -> None:
        self._aside.pop(_account(offer), None)
        self._missing.pop((offer.rung, offer.spot.kind), None)
        self._promising.pop((offer.rung, offer.spot.kind), None)
        program.use.since = self._runs
        instead_ns = self._instead_ns if wanted is None else wanted.instead_ns
        self._experience.made(offer, program, took_ns, instead_ns)
        if instead_ns == inf:
            self._lack_ns += took_ns if self.serves_none and self._whole is not None else 0.0
            self._ready.append(program)
        if wanted is not None:
            self._choose_soon()
        self._hopes = HOPES

    def passes(self) -> None:
        self._skipped += 1

    def glances(self) -> Sequence[Rung]:
        found = list[Rung]()
        for rung, glances in self._glances.items():
            if (glances.hopes or glances.found) and glances.pay(self._purse):
                found.append(rung)
        return found

    def glanced(self, rung: Rung, took_ns: int, takes_ns: float | None) -> bool:
        if takes_ns is not None and takes_ns < self._purse.full_ns:
            self._glanced = rung, took_ns
            return True
        self._glances[rung].note(took_ns, None)
        self._purse.pay(took_ns)
        return False

    @property
    def reading_ns(self) -> float:
        """As long as the purse has room for, and a part of a whole run."""
        full_ns = self._purse.full_ns
        return max(self._purse.room_ns(), READING * full_ns) if full_ns else inf

    def looks(self) -> bool:
        """It brings as much as it takes, on average of late, or may bring something new."""
        looking_ns = self._looking.time_ns
        if looking_ns <= self._found_ns or looking_ns <= self._free_ns:
            return True
        return self._hopes > 0 and self._purse.holds(looking_ns)

    @property
    def _free_ns(self) -> float:
        """What looking may take and find nothing, without being paid for."""
        return (self._passed + 1) * LOOKING * self._purse.full_ns

    def besides(self, program: Program, took_ns: int, looking_ns: int = 0) -> float:
        purse, plain, renews = self._purse, self._plain, program.renews
        paid_ns = purse.paid_ns
        unpaid_ns = took_ns - paid_ns if took_ns > paid_ns else 0.0
        looked_ns = looking_ns - paid_ns if looking_ns > paid_ns else 0.0
        looked_ns = looked_ns if looked_ns < unpaid_ns else unpaid_ns
        if renews and not looked_ns:
            plain.note(unpaid_ns)
            purse.plain_ns = plain.time_ns
        # until then nobody knows how much of the rest is the program's
        more_ns = looked_ns
        if plain.ran:
            more_ns = unpaid_ns - plain.time_ns if unpaid_ns > plain.time_ns else 0.0
        if not renews:
            purse.pay(more_ns)
        elif looked_ns:
            purse.pay(max(more_ns - self._free_ns, 0.0))
        purse.paid_ns = 0.0
        if self._glanced is not None:  # what follows from it is a part of what it takes
            rung, glanced_ns = self._glanced
            self._glanced = rung, more_ns if plain.ran else glanced_ns
        has_looked = looked_ns and self._glanced is None
        self._passed = 0 if has_looked else self._passed + 1
        if has_looked:
            self._looking.note(looked_ns)
        return 0.0 if renews else more_ns

    def modelling(self, offer: Offer, program: Program) -> Pausing[None]:
        return self._experience.modelling_of(offer, program)

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
        put_aside = self._aside.get(_account(offer), 0.0)
        if offer.rung.goes_by_place:
            saving = self._instead_ns - expected
            put_aside *= self._share(offer) if offer.rung.moves else 1.0  # by all runs of its class
            put_aside += self._uses(offer, planned) * saving if 0.0 < saving < inf else 0.0
        return expected + max(plan + making * often - put_aside, 0.0)

    def _share(self, offer: Offer) -> float:
        """Of the runs of an offer's class, which its program serves."""
        return self._came.get(offer.spot.kind, UNMET).share(offer, self._experience)

    def _uses(self, offer: Offer, planned: Classes) -> float:
        """How many runs a program for an offer will serve, of as many to come as there were."""
        kind, runs = offer.spot.kind, max(self._chosen, 1)
        times = self._came.get(kind, UNMET).count * self._share(offer)
        times += AGAIN * planned[kind][0] if kind in planned else 0.0
        return runs * self._experience.serves(offer, times / runs, self._runs)

    def _serves(self, offer: Offer, planned: Classes) -> float:
        """The same, also of one for everything, which serves any run where it is right."""
        if offer.rung.goes_by_place:
            return self._uses(offer, planned)
        share = self._experience.anywhere(offer) if offer.rung.moves else 1.0
        return max(self._chosen, 1) * share

    def _worth(self, offer: Offer, expected: float, planned: Classes) -> float:
        """What a program for an offer will save of what is paid for it, asking included."""
        known = self._experience
        uses = self._uses(offer, planned) if offer.rung.goes_by_place else max(self._chosen, 1)
        price = known.plan(offer) + known.making(offer)
        price += known.modelling(offer) if self._is_hope(offer) else 0.0
        return uses * (self._instead_ns - expected) / max(price, 1.0)

    def _is_hope(self, offer: Offer) -> bool:
        """Whether nobody knows what a run of an offer takes, and the model is to be asked."""
        return self._experience.reference is not None and self._experience.running(offer) is None


def _exponent(there: Sequence[tuple[Seen, Program]]) -> float:
    """With what power of sizes times go down, by the quickest part that is there beside everything:
    1 where there is none.

        time of a part ÷ time of everything  =  (its size ÷ that of everything) ^ exponent
    """
    full = min((one for one, program in there if program.renews), key=_time, default=None)
    part = min((one for one, program in there if not program.renews), key=_time, default=None)
    if full is None or part is None or not 0.0 < part[1] < full[1]:
        return 1.0
    share = part[0].bucket.share_of(full[0].bucket)
    return min(log(part[1] / full[1]) / log(share), 1.0) if 0.0 < share < 1.0 else 1.0


def _time(seen: Seen) -> float:
    return seen[1]


def _quickest_there(seen: Sequence[Seen]) -> Seen:
    """Of those whose program is there."""
    return min((one for one in seen if one[0].program is not None), key=lambda one: one[1])


def _account(offer: Offer) -> Hashable:
    """Under what a saving is put aside: a program of its own moves, the others stand."""
    kind, origin = offer.spot
    return offer.rung, offer.state, kind, None if offer.rung.moves else origin
