"""Which program serves a run: the quickest that is there, or a better one, made now.

Making a program costs more than many a run. Whether it will be met again is not known, so a missing
program is bought as one buys skis: what it would have saved is put aside at every run, and when
that is its price it is made (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, 1988).
All times are measured in this session.

    cost of a program that is there     how long it takes
    cost of one that is not             how long such ones take + its price − what was put aside
    price                               what making takes × how many are made for one that is met

Choosing takes time as well: where runs are short, a choice stands for some of them.

A class that the plan is for is expected to come again, the more often the more it weighs: that is
put aside for it from the start.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol, TypeAlias, get_args

from tgbench.base import switches
from tgbench.base.errors import PlanError, check_choice
from tgbench.plans.decisions import Classes
from tgbench.programs.program import Program, Use
from tgbench.runs.propagate import Step
from tgbench.session.serving import EXACTLY, Offer, Rung

AGAIN = 5  # how often a class that the plan is for is expected to come again
LAST_MADE = 32  # programs that tell how often one of theirs is met again
MOST_ACCOUNTS = 20_000  # past this, what was put aside is forgotten
LEAST_RUNNING = 10  # of choosing's own time, that runs take on which a choice stands
LONGEST = 15  # runs


Making: TypeAlias = Literal["measured", "always"]


def made_by(making: str | None) -> str:
    """When programs are made: as asked for, else as the environment says."""
    found = making or switches.making()
    check_choice(PlanError, "making", found, get_args(Making))
    return found


class Chooser(Protocol):
    """Picks one of several programs that would serve a run, and hears how it went."""

    def again(self) -> Rung | None:
        """How far to round a run, if the last choice stands."""

    def choose(self, offers: Sequence[Offer], planned: Classes) -> Offer:
        """The offer to take; one that does not fit comes back as `refused`, and is asked again."""

    def took(self, choosing_ns: int) -> None:
        """How long finding offers and choosing took."""

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

    def again(self) -> Rung | None:
        return None

    def choose(self, offers: Sequence[Offer], planned: Classes) -> Offer:
        return offers[0]

    def took(self, choosing_ns: int) -> None:
        pass

    def made(self, offer: Offer, program: Program, took_ns: int) -> None:
        pass

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        return True

    def planned(self, took_ns: int) -> None:
        pass

    def forget(self) -> None:
        pass


@dataclass
class Family:
    """What is known of programs that are alike.

    Fields:
        uses: of the last ones made.
        making_ns: what making them took.
    """

    uses: deque[Use] = field(default_factory=lambda: deque(maxlen=LAST_MADE))
    making_ns: deque[int] = field(default_factory=lambda: deque(maxlen=LAST_MADE))

    @property
    def made_for_one_met(self) -> float:
        """How many are made for one that is met again; 1 before anything is known."""
        return (1 + len(self.uses)) / (1 + sum(use.ran > 1 for use in self.uses))

    @property
    def running_ns(self) -> float | None:
        """What a run of theirs takes; None before the first."""
        return median(use.time_ns for use in self.uses if use.ran)


class Measured:
    """Chooses by what making and running took in this session.

    Args:
        modelled: expected nanoseconds of what a program computes that was never warm.
    """

    def __init__(self, modelled: Callable[[Iterable[Step]], float]) -> None:
        self._modelled = modelled
        self._planning_ns: deque[int] = deque(maxlen=LAST_MADE)
        self._making_ns: deque[int] = deque(maxlen=LAST_MADE)
        self.forget()

    def forget(self) -> None:
        self._instead_ns = self._cost_ns = inf
        self._rung, self._stands, self._skipped = EXACTLY, 0, 0
        self._families: defaultdict[Hashable, Family] = defaultdict(Family)
        self._aside: defaultdict[Hashable, float] = defaultdict(float)
        self._unfit: dict[Hashable, bool] = {}  # whether another plan may help

    def choose(self, offers: Sequence[Offer], planned: Classes) -> Offer:
        """The offer that costs least; what the others would have saved is put aside."""
        if len(self._aside) > MOST_ACCOUNTS:
            self._aside.clear()
        expected = [self._expected(offer) for offer in offers]
        there = [
            one for offer, one in zip(offers, expected, strict=True) if offer.program is not None
        ]
        self._instead_ns = min(there, default=inf)
        costs = [
            one + (self._owed(offer, one, planned) if offer.program is None else 0.0)
            for offer, one in zip(offers, expected, strict=True)
        ]
        best = min(range(len(offers)), key=costs.__getitem__)
        paid = expected[best]
        if offers[best].program is None:
            paid += self._making(offers[best])
        for offer, one in zip(offers, expected, strict=True):
            if offer.program is None and offer is not offers[best]:
                self._aside[_account(offer)] += max(paid - one, 0.0) * (1 + self._skipped)
        self._rung, self._cost_ns, self._skipped = offers[best].rung, paid, 0
        return offers[best]

    def again(self) -> Rung | None:
        if not self._stands:
            return None
        self._stands -= 1
        self._skipped += 1
        return self._rung

    def took(self, choosing_ns: int) -> None:
        runs = LEAST_RUNNING * choosing_ns / self._cost_ns if self._cost_ns else LONGEST
        self._stands = min(int(runs), LONGEST)

    def made(self, offer: Offer, program: Program, took_ns: int) -> None:
        program.use.instead_ns = self._instead_ns
        self._aside.pop(_account(offer), None)
        self._making_ns.append(took_ns)
        for family in self._about(offer):
            family.uses.append(program.use)
            family.making_ns.append(took_ns)

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        is_known = _kind(offer) in self._unfit
        self._unfit[_kind(offer)] = can_plan
        return is_known and can_plan

    def planned(self, took_ns: int) -> None:
        self._planning_ns.append(took_ns)

    def _expected(self, offer: Offer) -> float:
        """Of a program, its own time; of one that is not made, that of such ones; else hope."""
        if offer.program is not None:
            return self._time(offer.program)
        own, rung = self._about(offer)
        known = own.running_ns
        if known is None and offer.rung is not EXACTLY:
            known = rung.running_ns
        return known or 0.0

    def _time(self, program: Program) -> float:
        """What a run takes; the first one also took what was cold then."""
        use = program.use
        if use.ran > 1:
            return use.time_ns
        return min(use.time_ns or inf, self._modelled(program.steps))

    def _owed(self, offer: Offer, expected: float, planned: Classes) -> float:
        """What is left of the price of a program that is not made."""
        own, rung = self._about(offer)
        known = own if own.uses else rung
        price = self._plan(offer) + self._making(offer) * known.made_for_one_met
        put_aside = self._aside.get(_account(offer), 0.0)
        if offer.rung is EXACTLY and offer.spot.kind in planned and self._instead_ns < inf:
            weight = planned[offer.spot.kind][0]
            put_aside += AGAIN * weight * max(self._instead_ns - expected, 0.0)
        return max(price - put_aside, 0.0)

    def _making(self, offer: Offer) -> float:
        """What making a program takes: the more boxes change, the more meet each other."""
        own, rung = self._about(offer)
        if own.making_ns:
            return median(own.making_ns) or 0.0
        boxes = sum(len(region) for _, region in offer.bucket.changed)
        return (median(rung.making_ns or self._making_ns) or 0.0) * max(boxes, 1) ** 2

    def _plan(self, offer: Offer) -> float:
        """What it costs to make room for an offer."""
        can_plan = self._unfit.get(_kind(offer))
        if can_plan is None:
            return 0.0
        return (median(self._planning_ns) or 0.0) if can_plan else inf

    def _about(self, offer: Offer) -> tuple[Family, Family]:
        return self._families[_kind(offer)], self._families[offer.rung]


def median(samples: Iterable[float]) -> float | None:
    """The middle one of some samples; None of none."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 2] if ordered else None


def _kind(offer: Offer) -> Hashable:
    return offer.rung, offer.spot.kind


def _account(offer: Offer) -> Hashable:
    """Under what a saving is put aside: a program of its own moves, the others stand."""
    kind, origin = offer.spot
    return offer.rung, offer.state, kind, None if offer.rung is EXACTLY else origin
