"""What programs take, made or not, as far as this session knows: measured, else modelled.

running     the median of those of one class; of classes that change about as much in the same
            way; of one rung. Before one was made, what the model says of a run, in the
            proportion in which it is right about a run that computes everything.
making      as long as such ones took; before any did, as others took, but no longer than in
            proportion to asking the model about it, which decides the same regions
modelling   as long as it took; before it was asked, as making
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from math import inf
from statistics import median_low
from typing import TypeAlias

from tgbench.programs.program import Program, Use
from tgbench.runs.pausing import Pausing
from tgbench.runs.propagate import Step
from tgbench.session.serving import EXACTLY, Offer

LAST_MADE = 32  # programs that tell how often one of theirs is met again
COLD = 1.5  # times what making one takes, that making the first one does
MOVING = 2.0  # times what making one takes that stands, that one does that moves; before any did
OVER_MODEL = 2.0  # times what asking the model about a program takes, that making it does

Place: TypeAlias = "tuple[int, ...]"  # an origin
Decided: TypeAlias = Iterable[tuple[Place, Pausing[Step]]]  # what a run computes where
Modelled: TypeAlias = Callable[[Iterable[Step], Place], Iterable[float]]  # part by part


@dataclass
class Family:
    """What is known of programs that are alike, and were made although others were there.

    Fields:
        modelled_ns: how long a model says a run takes; None before it was asked.
        asking_ns: what asking it took.
        uses: of the last ones made.
        making_ns: what making them took.
    """

    modelled_ns: float | None = None
    asking_ns: float = 0.0
    uses: deque[Use] = field(default_factory=lambda: deque(maxlen=LAST_MADE))
    making_ns: deque[int] = field(default_factory=lambda: deque(maxlen=LAST_MADE))

    def made_for_one_met(self, places: int) -> float:
        """How many are made for one that is met again, of programs that stand at some places."""
        return (places + len(self.uses)) / (1 + sum(use.ran > 1 for use in self.uses))

    def running_ns(self, scale: float) -> float | None:
        """What a run of theirs takes, or is modelled to; None where nobody asked."""
        modelled = None if self.modelled_ns is None else self.modelled_ns * scale
        return median(use.time_ns for use in self.uses if use.ran) or modelled


UNKNOWN = Family()  # nothing was made yet


class Experience:
    """What programs of one session take.

    Args:
        modelled: expected nanoseconds of all that steps compute at an origin, part by part.
        clock: of this thread's work, in nanoseconds.

    Fields:
        reference: a program that computes everything of what is asked for now.
    """

    def __init__(
        self,
        modelled: Modelled,
        clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.modelled, self.clock = modelled, clock
        self._planning_ns: deque[int] = deque(maxlen=LAST_MADE)
        self._modelling_ns: deque[float] = deque(maxlen=LAST_MADE)  # of one box
        self._making_ns: dict[bool, deque[int]] = {
            moves: deque(maxlen=LAST_MADE) for moves in (False, True)
        }
        self.forget()

    def forget(self) -> None:
        """All programs are gone: another plan is in force, where they take other times."""
        self._families: dict[Hashable, Family] = {}
        self._unfit: dict[Hashable, bool] = {}  # whether another plan may help
        self._made_ns = 0  # what making all programs that are there took
        self._cold_ns = 0  # the first of them
        self.reference: Program | None = None

    # --- running ---------------------------------------------------------------------------------

    def anywhere(self, program: Program) -> float:
        """What a run takes at any place: where others serve the short ones, the rest are long."""
        takes_ns = program.use.takes_ns
        return min(takes_ns, program.use.least_ns) if program.made_at else takes_ns

    def running(self, offer: Offer) -> float | None:
        """What a run of an offer takes: what programs like it do where it is not made; None if
        nobody knows.
        """
        if offer.program is not None:
            return offer.program.use.takes_ns
        own, rung = self._about(offer)
        known = own.running_ns(self._scale)
        if known is None and offer.rung is not EXACTLY:
            known = rung.running_ns(self._scale)
        return known

    def asking(self, decided: Decided) -> Pausing[float]:
        """Ask the model what a run of an offer takes at best."""
        found = inf
        for place, deciding in decided:
            step, total = (yield from deciding), 0.0
            for part_ns in self.modelled([step], place):
                total += part_ns
                yield
            found = min(found, total)
        return found

    def asked(
        self, offer: Offer, modelled_ns: float, took_ns: float, is_cold: bool = False
    ) -> float:
        """The model was asked; what a run takes, as far as it is right about a full one."""
        if not is_cold:
            self._modelling_ns.append(took_ns / _size(offer))
        for key in _keys(offer):
            family = self._families.setdefault(key, Family())
            family.modelled_ns, family.asking_ns = modelled_ns, took_ns
        return modelled_ns * self._scale

    @property
    def _scale(self) -> float:
        """Measured over modelled time of what computes everything."""
        full = self.reference
        if full is None or not full.use.modelled_ns:
            return 1.0
        return full.use.takes_ns / full.use.modelled_ns

    # --- making ----------------------------------------------------------------------------------

    def modelling_of(self, program: Program) -> Pausing[None]:
        """Ask the model about a program that is made: until it ran, nothing else tells of it."""
        modelled_ns = 0.0
        for part_ns in self.modelled(program.steps, program.made_at):
            modelled_ns += part_ns
            yield
        program.use.modelled_ns = modelled_ns

    def made(self, offer: Offer, program: Program, took_ns: int, instead_ns: float) -> None:
        """A program was made, instead of taking one that takes so long; infinitely, of none."""
        program.use.instead_ns = instead_ns
        if self._made_ns:
            self._making_ns[_moves(offer)].append(took_ns)
        else:
            self._cold_ns = took_ns
        self._made_ns += took_ns
        if instead_ns == inf:
            return  # it had to be made: that says nothing about those that are worth it
        for key in _keys(offer):
            family = self._families.setdefault(key, Family())
            family.uses.append(program.use)
            family.making_ns.append(took_ns)

    def often(self, offer: Offer) -> float:
        """How many such programs are made for one that is met again."""
        own, rung = self._about(offer)
        return (own if own.uses else rung).made_for_one_met(offer.rung.places)

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
        """What asking the model takes."""
        alike = median(self._modelling_ns)
        return self.making(offer) if alike is None else alike * _size(offer)

    # --- plans -----------------------------------------------------------------------------------

    def planned(self, took_ns: int) -> None:
        self._planning_ns.append(took_ns)

    def plan(self, offer: Offer) -> float:
        """What it costs to make room for an offer: a plan, and all programs once more."""
        can_plan = self._unfit.get(_kind(offer))
        if can_plan is None:
            return 0.0
        return (median(self._planning_ns) or 0.0) + self._made_ns if can_plan else inf

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
