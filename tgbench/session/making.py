"""Programs, and what a model says of them, made at once or bit by bit while runs go on.

Making a program takes as long as some runs do. Where something else serves meanwhile, each run
bears a part of that: no run takes much longer than computing everything, and the program serves
from the run on that finished it. There is one such piece of work at a time; it is the chooser's
(`Wanted`), and forgotten with all that it knows of programs.

    chosen ──→ wanted ── a part in each run ──→ there
                  └── interrupted ──→ forgotten; chosen again, and what was remembered is found
"""

from __future__ import annotations

import time
from typing import Any

from tgbench.base.collector import lasting
from tgbench.programs.ahead import compile_sizes
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Program
from tgbench.runs.buckets import Spot
from tgbench.runs.pausing import Paused, Pausing, at_once
from tgbench.session.chooser import Chooser, Wanted
from tgbench.session.experience import Decided
from tgbench.session.planning import Planning
from tgbench.session.report import Counters
from tgbench.session.serving import EXACTLY, Offer
from tgbench.session.standing import Keeper, Standing


class NeedsPlan(Exception):  # noqa: N818  (a signal to plan anew)
    """What serves a run best does not fit the plan in force."""

    def __init__(self, spot: Spot, why: str) -> None:
        super().__init__(why)
        self.spot = spot


class Maker:
    """Makes the programs of one session, and asks the model about them."""

    def __init__(self, planning: Planning, keeper: Keeper, counters: Counters) -> None:
        self.planning, self.keeper, self.counters = planning, keeper, counters

    @property
    def chooser(self) -> Chooser:
        return self.keeper.chooser

    def placed(self, offer: Offer, standing: Standing) -> Offer:
        """The same, and what its program may count on: of one that moves, all that is there."""
        if offer.state is not None:
            return offer
        state = self.keeper.states.moved(standing.valid, standing.last, offer.spot)
        return offer._replace(state=state)

    def decided(self, offer: Offer) -> Decided:
        """What a run of an offer would compute where it stands."""
        state = self.placed(offer, self.keeper.standing).state
        assert state is not None
        return self.keeper.memory.deciding(state, *offer.spot)

    def make(self, offer: Offer) -> Program:
        """The program of an offer; raises DoesNotFit where the plan in force has no room.

        Plans, programs and choices are bought with the work of this thread that they are: waiting
        for others who use the machine is nobody's fault.
        """
        began_ns, paid_ns = time.perf_counter_ns(), time.thread_time_ns()
        try:
            with lasting():
                program = at_once(self._making(offer))
        finally:
            self.counters.making_ns += time.perf_counter_ns() - began_ns
            took_ns = time.thread_time_ns() - paid_ns
            self.chooser.spent(offer, took_ns)
        self._keep(offer, program)
        self.chooser.made(offer, program, took_ns)
        return program

    def or_plan(self, offer: Offer) -> Program:
        """The same; raises NeedsPlan where another plan is worth what it takes.

        Else the chooser knows that it does not fit, and DoesNotFit is raised.
        """
        try:
            return self.make(offer)
        except DoesNotFit as error:
            self._refuse(offer, error)
            raise

    def begin(self, wanted: Wanted) -> None:
        """From now on it is got ready bit by bit; nothing is done yet."""
        offer = self.placed(wanted.offer, self.keeper.standing)
        work: Pausing[Any] = (
            self.chooser.asking(offer, self.decided(offer))
            if wanted.is_hope
            else self._making(offer)
        )
        wanted.offer, wanted.work = offer, Paused(work)

    def go_on(self, takes_ns: float, spent_ns: int) -> bool:
        """Go on with what is wanted, as long as a run may that takes so long.

        Whatever stops it in the middle of something, an interrupt too: it is not wanted any more.

        Args:
            spent_ns: what this run took until now.

        Returns:
            Whether there is something to choose for: a program, or what one would take.

        Raises NeedsPlan where it does not fit, and another plan is worth what it takes.
        """
        wanted = self.chooser.wanted
        room_ns = self.chooser.room_ns(takes_ns, spent_ns)
        if wanted is None or wanted.work is None or room_ns <= 0:
            return False
        self.chooser.wanted = None
        try:
            is_done = self._worked(wanted, wanted.work, room_ns)
        except DoesNotFit as error:
            self._refuse(wanted.offer, error)
            return True
        if not is_done:
            self.chooser.wanted = wanted
        elif wanted.is_hope:
            self.chooser.asked(wanted, wanted.work.result)
        else:
            self._keep(wanted.offer, wanted.work.result)
            self.chooser.made(wanted.offer, wanted.work.result, wanted.took_ns, wanted)
        return is_done

    def _worked(self, wanted: Wanted, work: Paused[Any], room_ns: float) -> bool:
        """Whether it is done, after that long at most."""
        began_ns, paid_ns = time.perf_counter_ns(), time.thread_time_ns()
        until_ns = paid_ns + room_ns
        try:
            with lasting():
                return work.go_on(lambda: time.thread_time_ns() > until_ns)
        finally:
            took_ns = time.thread_time_ns() - paid_ns
            wanted.took_ns += took_ns
            self.chooser.spent(wanted.offer, took_ns)
            if not wanted.is_hope:
                self.counters.making_ns += time.perf_counter_ns() - began_ns

    def _refuse(self, offer: Offer, error: DoesNotFit) -> None:
        """Tell the chooser of an offer that does not fit; raises NeedsPlan if that is paid for.

        Plans are for places, and a run that is swept stands at none. Whole outputs are worth memory
        where nothing else serves.
        """
        is_own, free = offer.rung is EXACTLY, self.planning.limit_bytes is None
        is_modest = offer.rung.is_modest or self.chooser.serves_none
        can_plan = is_own or (free and is_modest and not offer.rung.is_swept)
        if self.chooser.refused(offer, can_plan):
            raise NeedsPlan(offer.spot, str(error)) from None

    def _keep(self, offer: Offer, program: Program) -> None:
        self.keeper.programs.add(program.counts_on, offer.spot.kind, program)
        self.counters.specialised += 1

    def _making(self, offer: Offer) -> Pausing[Program]:
        assert offer.state is not None
        is_fixed, strict = not offer.rung.moves, self.chooser.strict
        is_free = not strict and self.planning.limit_bytes is None  # another plan, not pieces
        program = yield from self.keeper.memory.specialising(
            offer.state, *offer.spot, or_more=self.planning.takes_more(offer.spot),
            as_planned=is_fixed or is_free, is_fixed=is_fixed, leftovers=strict,
        )  # fmt: skip
        yield from compile_sizes(program)
        yield from self.chooser.modelling(offer, program)
        return program
