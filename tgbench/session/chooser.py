"""Who picks the program that serves a run: what choosers are asked, and the one that never chooses.

`choosing` has the one that goes by what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol, TypeAlias, get_args

from tgbench.base import switches
from tgbench.base.coords import Domain
from tgbench.base.errors import PlanError, check_choice
from tgbench.plans.decisions import Classes
from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING
from tgbench.runs.buckets import BucketClass
from tgbench.runs.pausing import Paused, Pausing
from tgbench.runs.work import Work
from tgbench.session.experience import Asked, Decided
from tgbench.session.serving import Offer, Rung

Making: TypeAlias = Literal["measured", "always"]
Seen: TypeAlias = "tuple[Offer, float]"  # and what a run takes
Larger: TypeAlias = Callable[[], Sequence[Offer]]  # asked for where it counts: finding them takes


def made_by(making: str | None) -> str:
    """When programs are made: as asked for, else as the environment says."""
    found = making or switches.making()
    check_choice(PlanError, "making", found, get_args(Making))
    return found


@dataclass(eq=False)
class Wanted:
    """A program that is to be made, or modelled first, while another one serves.

    Fields:
        offer: what it is for.
        is_hope: whether nobody knows yet what it takes, and the model is to be asked.
        hoped_ns: what it is taken to take.
        instead_ns: what the one takes that is there.
        work: what is done so far.
        took_ns: how long that took.
    """

    offer: Offer
    is_hope: bool
    hoped_ns: float
    instead_ns: float
    work: Paused[Any] | None = None
    took_ns: int = 0


class Chooser(Protocol):
    """Picks one of several programs that would serve a run, and hears how it went.

    Fields:
        strict: whether a run's own program counts on all that is there: values too that are left
            by accident. They make runs quicker that come again and again, and programs rare that
            are met again. If not, it counts on any part of what the plan keeps.
        wanted: what is got ready while runs go on, if anything is.
        states: the numbers of those of `States` that it knows something of, but for what is wanted.
        full_ns: what computing everything takes that is asked for now; 0 while that is not known.
        serves_none: whether no program that is there serves the run that is chosen for.
    """

    strict: bool
    wanted: Wanted | None
    serves_none: bool

    @property
    def full_ns(self) -> float: ...

    @property
    def states(self) -> Iterable[int]: ...

    def waits(self) -> bool:
        """Whether nothing is chosen for this run, as it cannot be paid for."""

    def found(self, took_ns: int) -> None:
        """How long a run took to find what changed."""

    @property
    def reading_ns(self) -> float:
        """How long it may take to find out what earlier runs left."""

    def looks(self) -> bool:
        """Whether looking for what is quicker than computing everything pays."""

    def passes(self) -> None:
        """A run computes everything, and nothing else is looked for, as that does not pay."""

    def glances(self) -> Sequence[Rung]:
        """On which rungs to see if a program was made ready for a run, where nothing is looked
        for.
        """

    def glanced(self, rung: Rung, took_ns: int, takes_ns: float | None) -> bool:
        """It was seen, and what the run takes with it, if there is one; whether to take that."""

    def rehearsing(self, offer: Offer, decided: Decided) -> Pausing[bool]:
        """Learn of a run that is planned for, and did not happen yet; whether to make it ready."""

    def rehearsing_on(self, there: Offer, anew: Offer, decided: Decided) -> Pausing[bool]:
        """The same of one that brings little where it was rehearsed: whether it does further on,
        beside computing everything that is asked for there.
        """

    def stands(self, offer: Offer) -> bool:
        """Whether a program for a run that was rehearsed is right at few other places."""

    def made_ready(self, rung: Rung, took_ns: int) -> None:
        """A program was made before a run needs it; seeing that it is there took so long."""

    def answered(self, is_free: bool) -> None:
        """The first answer of a plan is given, and what is planned for was looked at; free of
        charge, if somebody asked for that plan.
        """

    def asking(self, offer: Offer, decided: Decided) -> Pausing[Asked]:
        """Ask the model what a run takes."""

    def asked(self, wanted: Wanted, found: Asked) -> None:
        """The model was asked about what was wanted."""

    def room_ns(self, takes_ns: float, spent_ns: int) -> float:
        """How long a run may go on with what is wanted, that takes and took so long."""

    def again(self, own: Offer, planned: Classes) -> Sequence[Rung]:
        """On which rungs to look for a program if nothing is to be chosen now, that where the last
        choice stands first.
        """

    def looks_elsewhere(self, takes_ns: float) -> bool:
        """Whether to look on the others, too, where the first one has a program: a run takes so
        long with it.
        """

    def elsewhere(self, took_ns: int, saved_ns: float) -> None:
        """How long that took, and what the run takes less with what is there."""

    def choose(self, own: Offer, larger: Larger, planned: Classes) -> Offer:
        """The offer to take now, and what is `wanted` from now on; one whose program is missing is
        made at once. One that does not fit comes back as `refused`, and is asked again.
        """

    def took(self, took_ns: int) -> None:
        """How long choosing took."""

    def besides(self, program: Program, took_ns: int, looking_ns: int = 0) -> float:
        """Pay for the rest of a run, which took so long to find the program that serves it, to
        point it there, and to say what it leaves; of that, looking for others.

        Returns:
            How much of that is the program's: what computing everything would not take.
        """

    def ran(self, kind: BucketClass, program: Program, took_ns: int) -> None:
        """A run of a class is over, and a program served it."""

    def spent(self, offer: Offer, took_ns: int) -> None:
        """That long a program was being made for an offer, in vain or not."""

    def made(
        self, offer: Offer, program: Program, took_ns: int, wanted: Wanted | None = None
    ) -> None:
        """A program was made for an offer: at once, or because it was wanted."""

    def modelling(self, offer: Offer, program: Program) -> Pausing[None]:
        """Find out what a program is expected to take, as the last part of making it."""

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        """An offer does not fit the plan in force: it costs another one. True to pay that now."""

    def planned(self, took_ns: int) -> None:
        """A plan was made."""

    def forget(self) -> None:
        """All programs are gone: another plan is in force, where they take other times."""


class Own:
    """Every run has a program of its own, made as soon as it happens."""

    strict = True
    wanted: Wanted | None = None
    serves_none = False
    states: Iterable[int] = ()
    full_ns = 0.0

    def waits(self) -> bool:
        return False

    def found(self, took_ns: int) -> None:
        pass

    reading_ns = inf

    def looks(self) -> bool:
        return True

    def passes(self) -> None:
        pass

    def glances(self) -> Sequence[Rung]:
        return ()

    def glanced(self, rung: Rung, took_ns: int, takes_ns: float | None) -> bool:
        return False

    def rehearsing(self, offer: Offer, decided: Decided) -> Pausing[bool]:
        yield
        return False

    def rehearsing_on(self, there: Offer, anew: Offer, decided: Decided) -> Pausing[bool]:
        yield
        return False

    def stands(self, offer: Offer) -> bool:
        return False

    def made_ready(self, rung: Rung, took_ns: int) -> None:
        pass

    def answered(self, is_free: bool) -> None:
        pass

    def asking(self, offer: Offer, decided: Decided) -> Pausing[Asked]:
        yield
        return Work(), Domain(()), NOTHING

    def asked(self, wanted: Wanted, found: Asked) -> None:
        pass

    def room_ns(self, takes_ns: float, spent_ns: int) -> float:
        return inf

    def again(self, own: Offer, planned: Classes) -> Sequence[Rung]:
        return ()

    def looks_elsewhere(self, takes_ns: float) -> bool:
        return False

    def elsewhere(self, took_ns: int, saved_ns: float) -> None:
        pass

    def choose(self, own: Offer, larger: Larger, planned: Classes) -> Offer:
        return own

    def took(self, took_ns: int) -> None:
        pass

    def besides(self, program: Program, took_ns: int, looking_ns: int = 0) -> float:
        return 0

    def ran(self, kind: BucketClass, program: Program, took_ns: int) -> None:
        pass

    def spent(self, offer: Offer, took_ns: int) -> None:
        pass

    def made(
        self, offer: Offer, program: Program, took_ns: int, wanted: Wanted | None = None
    ) -> None:
        pass

    def modelling(self, offer: Offer, program: Program) -> Pausing[None]:
        yield from ()

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        return True

    def planned(self, took_ns: int) -> None:
        pass

    def forget(self) -> None:
        pass
