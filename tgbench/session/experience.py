"""What programs take, made or not, as far as this session knows: measured, else modelled.

running     where the run is: what the model says of a class at that place, in the proportion in
            which it was right about those of the class that were made; before any was, about a run
            that computes everything. Of classes nobody asked about, the median of those that
            change about as much in the same way; of one rung
making      as long as such ones took; before any did, as others took, but no longer than in
            proportion to asking the model about it, which decides the same regions
modelling   as long as it took; before it was asked but once, no longer than that or than making
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median_low
from typing import TypeAlias

from tgbench.base.coords import Domain
from tgbench.base.memo import Latest
from tgbench.programs.program import Program, Use
from tgbench.runs.pausing import Pausing
from tgbench.runs.propagate import Step
from tgbench.runs.work import Place, Work
from tgbench.session.serving import EXACTLY, Offer

MOST_ASKED = 8  # times that a model is asked about a class, as it computes other things elsewhere
MOST_STANDING = 1  # the same of one whose programs stand: asking takes as long as making one
LAST_COUNTED = 8  # programs that tell how many runs the next one will serve
HOPED_RUNS = 16  # that the hope before any was made counts for
LACKING = 16  # runs without what a model was asked about, half of the first that it is asked of: of
# every further one, twice as many
LAST_MADE = 32  # programs that tell how often one of theirs is met again
MOST_CLASSES = 10_000  # of runs, that something is known of
COLD = 1.5  # times what making one takes, that making the first one does
MOVING = 2.0  # times what making one takes that stands, that one does that moves; before any did
OVER_MODEL = 2.0  # times what asking the model about a program takes, that making it does

# what a run computes, where it does so, and on what state it counts
Decided: TypeAlias = Pausing[tuple[Step, Domain, int]]
Asked: TypeAlias = tuple[Work, Domain, int]  # how long it takes, wherever it is decided so
Modelled: TypeAlias = Callable[[Iterable[Step], Place, Place | None], Pausing[Work]]  # elsewhere


@dataclass
class Family:
    """What is known of programs that are alike, and were made although others were there.

    Fields:
        asked: how long a model says that one takes, the last first: elsewhere a run of the class
            may compute other things.
        modelled_ns: what it said of a place; None before it was asked.
        asking_ns: what asking it took.
        uses: of the last ones made.
        making_ns: what making them took.
        shares: of the places of a class, at which the last ones asked about compute the same.
        lacked: runs since it was asked, at which nothing that it was asked about was there.
    """

    asked: list[Asked] = field(default_factory=list)
    modelled_ns: float | None = None
    asking_ns: float = 0.0
    uses: deque[Use] = field(default_factory=lambda: deque(maxlen=LAST_MADE))
    making_ns: deque[int] = field(default_factory=lambda: deque(maxlen=LAST_MADE))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_ASKED))
    lacked: int = 0

    @property
    def made_for_one_met(self) -> float:
        """How many are made for one that is met again."""
        return (1 + len(self.uses)) / (1 + sum(use.ran > 1 for use in self.uses))

    def there_ns(self, offer: Offer, scale: float, most: int) -> float | None:
        """What a run of theirs takes at a place of theirs, where what it counts on is there; None
        where nobody asked, unless they were asked about at so many others.
        """
        place = offer.spot.origin
        ratios = [ratio for use in self.uses if (ratio := use.ratio) is not None]
        for work, domain, state in self.asked:
            if domain.holds(place) and offer.finds(state, place):
                return work.at(place) * (median(ratios) or scale)
        return self.running_ns(scale) if len(self.asked) >= most else None

    def lacks(self, offer: Offer) -> bool:
        """Whether they were asked about at places like an offer's, and what they count on is not
        there. Not for good: it may be something else by now that is there in each run.
        """
        place = offer.spot.origin
        states = [state for _, domain, state in self.asked if domain.holds(place)]
        if not states or self.lacked >= LACKING << len(self.asked):
            return False
        return not any(offer.finds(state, place) for state in states)

    def answered(self, place: Place, found: Asked) -> None:
        """A model was asked at a place."""
        self.lacked = 0
        asked = ((domain, state) for _, domain, state in self.asked)
        if not any(domain.holds(place) and state == found[2] for domain, state in asked):
            self.asked = [found, *self.asked[: MOST_ASKED - 1]]

    def running_ns(self, scale: float) -> float | None:
        """What a run of theirs takes, or is modelled to; None where nobody asked."""
        modelled = None if self.modelled_ns is None else self.modelled_ns * scale
        return median(use.time_ns for use in self.uses if use.ran) or modelled


UNKNOWN = Family()  # nothing was made yet


class Experience:
    """What programs of one session take.

    Args:
        modelled: how long all that steps compute is expected to take, asked at two places.
        clock: of this thread's work, in nanoseconds.

    Fields:
        reference: a program that computes everything of what is asked for now.
        serving: the one that serves now, for less than that; None if there is none.
    """

    def __init__(
        self,
        modelled: Modelled,
        clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.modelled, self.clock = modelled, clock
        self._planning_ns: deque[int] = deque(maxlen=LAST_MADE)
        self._modelling_ns: deque[float] = deque(maxlen=LAST_MADE)  # of one box
        self._cold_asking_ns = inf  # the first time, when rules and times were not known yet
        self._making_ns: dict[bool, deque[int]] = {
            moves: deque(maxlen=LAST_MADE) for moves in (False, True)
        }
        self.forget()

    def forget(self) -> None:
        """All programs are gone: another plan is in force, where they take other times."""
        self._families = Latest[Hashable, Family](MOST_CLASSES)
        self._unfit = Latest[Hashable, bool](MOST_CLASSES)  # whether another plan may help
        self._made_ns = 0  # what making all programs that are there took
        self._cold_ns = 0  # the first of them
        self.reference: Program | None = None
        self.serving: Program | None = None

    @property
    def states(self) -> Iterator[int]:
        """The numbers of what programs would count on that the model was asked about."""
        for family in self._families.values():
            yield from (state for _, _, state in family.asked)

    # --- running ---------------------------------------------------------------------------------

    def running(self, offer: Offer) -> float | None:
        """What a run of an offer takes where it is: what programs like it do where it is not made;
        None if nobody knows.
        """
        place = offer.spot.origin
        if offer.program is not None:
            return offer.program.takes_ns(place)
        own, form, rung = map(self._families.get, _keys(offer))
        if own is not None and own.asked:
            most = MOST_ASKED if offer.rung.moves else MOST_STANDING
            return own.there_ns(offer, self._scale(offer), most)
        known = None
        for family in (own or form, None if offer.rung is EXACTLY else rung):
            if known is None and family is not None:
                known = family.running_ns(self._scale(offer))
        return known

    def modelled_ns(self, offer: Offer) -> float | None:
        """What the model says of a run of an offer where it is; None where it was not asked about
        what such a run computes.
        """
        place, asked = offer.spot.origin, self._families.get(_kind(offer), UNKNOWN).asked
        return next((work.at(place) for work, domain, _ in asked if domain.holds(place)), None)

    def is_asked(self, offer: Offer) -> bool:
        """Whether what a run of an offer takes is known of its own class: its program is there, or
        the model was asked about one.
        """
        return offer.program is not None or bool(self._families.get(_kind(offer), UNKNOWN).asked)

    def lacks(self, offer: Offer) -> bool:
        """Whether what a run of an offer would count on is not there: it computes more than such
        ones do.
        """
        return self._families.get(_kind(offer), UNKNOWN).lacks(offer)

    def lacked(self, offer: Offer, runs: int) -> None:
        """So many runs lacked it."""
        self._families[_kind(offer)].lacked += runs

    def domains(self, offer: Offer) -> Sequence[Domain]:
        """Where a run of an offer computes what it does where it is. If nobody knows, where ones
        elsewhere do, once the model was asked about so many; nothing before: the first one may have
        been at a border, where hardly any other is.
        """
        own = self._families.get(_kind(offer), UNKNOWN)
        domains = [domain for _, domain, _ in own.asked]
        here = [one for one in domains if one.holds(offer.spot.origin)]
        return here or (domains if len(domains) >= MOST_ASKED else [])

    def anywhere(self, offer: Offer) -> float:
        """At what share of its places a program that moves is right, of which nothing is known:
        at all of them, until those of its rung turn out not to be.
        """
        shares = self._families.get(offer.rung, UNKNOWN).shares
        return (1 + sum(shares)) / (1 + len(shares))

    def asking(self, offer: Offer, decided: Decided) -> Pausing[Asked]:
        """Ask the model how long a run of an offer takes."""
        step, domain, state = yield from decided
        return (yield from self._working(offer, [step], domain)), domain, state

    def _working(self, offer: Offer, steps: Iterable[Step], domain: Domain) -> Pausing[Work]:
        kind, place = offer.spot
        there = kind.elsewhere(place)
        return (yield from self.modelled(steps, place, there if domain.holds(there) else None))

    def asked(self, offer: Offer, found: Asked, took_ns: float, is_cold: bool = False) -> float:
        """The model was asked; what the run takes, as far as it is right about what serves now."""
        if is_cold:
            self._cold_asking_ns = took_ns / _size(offer)
        else:
            self._modelling_ns.append(took_ns / _size(offer))
        (work, domain, _), place = found, offer.spot.origin
        here_ns = work.at(place)
        for key in _keys(offer):
            family = self._families.setdefault(key, Family())
            family.modelled_ns, family.asking_ns = here_ns, took_ns
            family.shares.append(domain.share(offer.spot.kind.bounds))
        self._families[_kind(offer)].answered(place, found)
        return here_ns * self._scale(offer)

    def _scale(self, offer: Offer) -> float:
        """Measured over modelled time, of what is most like an offer: a part is computed in smaller
        calls than everything, with colder caches, as is what serves now; a model may be as wrong
        about both.
        """
        serving, full = self.serving, self.reference
        if serving is not None and not offer.rung.is_afresh and serving.use.is_warm:
            return serving.use.ratio or 1.0
        if full is None or not full.use.modelled_ns:
            return 1.0
        return full.use.takes_ns / full.use.modelled_ns

    # --- making ----------------------------------------------------------------------------------

    def modelling_of(self, offer: Offer, program: Program) -> Pausing[None]:
        """Ask the model about a program that is made: until it ran, nothing else tells of it, and
        then it tells what one takes elsewhere. Of those that stand, one of a class tells of all.
        """
        alike = self._families.get(_kind(offer), UNKNOWN).modelled_ns
        if not offer.rung.moves and alike is not None:
            program.use.modelled_ns = alike
            return
        program.work = yield from self._working(offer, program.steps, program.domain)
        program.use.modelled_ns = program.work.at(offer.spot.origin)

    def made(self, offer: Offer, program: Program, took_ns: int, instead_ns: float) -> None:
        """A program was made, instead of taking one that takes so long; infinitely, of none."""
        program.use.instead_ns = instead_ns
        if self._made_ns:
            self._making_ns[_moves(offer)].append(took_ns)
        else:
            self._cold_ns = took_ns
        self._made_ns += took_ns
        if instead_ns == inf:  # it had to be made: that says nothing about those that are worth it
            family = self._families.setdefault(offer.rung, Family())
            family.shares.append(program.domain.share(offer.spot.kind.bounds))
            return
        for key in _keys(offer):
            family = self._families.setdefault(key, Family())
            family.uses.append(program.use)
            family.making_ns.append(took_ns)
        if program.work is not None:
            own = self._families[_kind(offer)]
            own.answered(offer.spot.origin, (program.work, program.domain, program.counts_on))

    def often(self, offer: Offer) -> float:
        """How many such programs are made for one that is met again."""
        own, rung = self._about(offer)
        return (own if own.uses else rung).made_for_one_met

    def serves(self, offer: Offer, hoped: float, runs: int) -> float:
        """The share of runs that a program will serve: what the last ones of its class did, since
        they were made. Before any was, what is hoped.
        """
        own, _ = self._about(offer)
        last = list(own.uses)[-LAST_COUNTED:]
        ran, age = sum(use.ran for use in last), sum(runs - use.since for use in last)
        return (hoped * HOPED_RUNS + ran) / (HOPED_RUNS + age)

    def making(self, offer: Offer) -> float:
        """What making a program takes: the more boxes change, the more meet each other."""
        own, rung = self._about(offer)
        if own.making_ns:
            return median(own.making_ns) or 0.0
        alike = (median(rung.making_ns) or self._making_any(_moves(offer))) * _size(offer)
        return float(min(alike, own.asking_ns * OVER_MODEL or inf))

    def _making_any(self, moves: bool) -> float:
        """Of any program; one that moves takes longer, which the first one of them shows."""
        stands, moving = median(self._making_ns[False]), median(self._making_ns[True])
        if moves:
            return moving or (stands or self._cold_ns / COLD) * MOVING
        return stands or moving or self._cold_ns / COLD

    def modelling(self, offer: Offer) -> float:
        """What asking the model takes; no longer than when it was asked for the first time."""
        alike = median(self._modelling_ns)
        if alike is None:
            return min(self.making(offer), self._cold_asking_ns * _size(offer))
        return alike * _size(offer)

    # --- plans -----------------------------------------------------------------------------------

    def planned(self, took_ns: int) -> None:
        self._planning_ns.append(took_ns)

    @property
    def planning_ns(self) -> float:
        """What making a plan takes."""
        return median(self._planning_ns) or 0.0

    def plan(self, offer: Offer) -> float:
        """What it costs to make room for an offer: a plan, and all programs once more."""
        can_plan = self._unfit.get(_kind(offer))
        if can_plan is None:
            return 0.0
        return self.planning_ns + self._made_ns if can_plan else inf

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        """An offer does not fit; whether that was known, and another plan may help."""
        is_known = _kind(offer) in self._unfit
        self._unfit[_kind(offer)] = can_plan
        return is_known and can_plan

    def _about(self, offer: Offer) -> tuple[Family, Family]:
        found = self._families.get
        kind, form, rung = _keys(offer)
        return found(kind) or found(form, UNKNOWN), found(rung, UNKNOWN)


def median(samples: Iterable[float]) -> float | None:
    """The middle one of some samples, the lower of two (the first was cold); None of none."""
    found = list(samples)
    return median_low(found) if found else None


def _moves(offer: Offer) -> bool:
    """Whether coordinates of a program for an offer follow an origin."""
    return offer.rung.moves and bool(offer.spot.origin)


def _size(offer: Offer) -> float:
    """How much longer than of one box all takes that is worked out of an offer's changes."""
    return float(max(sum(len(region) for _, region in offer.bucket.changed), 1) ** 1.5)


def _keys(offer: Offer) -> tuple[Hashable, Hashable, Hashable]:
    """What tells of an offer's programs: those of its class, of classes alike, of its rung."""
    return _kind(offer), (offer.rung, offer.spot.kind.form), offer.rung


def _kind(offer: Offer) -> Hashable:
    return offer.rung, offer.spot.kind
