"""One run, from what is asked to what is left.

    Request ── decide ──→ Decision ── execute ──→ Outcome ── commit ──→ the next Standing
                 │  ↑
                 └──┘ plan, where nothing fits

A request is read and checked. Deciding finds what differs from what stands (`standing`), the bucket
of that, and a program for it: its own, that of a larger run (`serving`), or one that is made now,
whichever costs least (`choosing`). What is executed counts for nothing until it is committed, in
one line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray

from tgbench.base import once, switches
from tgbench.base.collector import lasting
from tgbench.base.errors import BudgetError, KernelError
from tgbench.base.regions import Region
from tgbench.base.switches import RUNS, debug_level, tell
from tgbench.kernels import beside
from tgbench.kernels.apart import apart
from tgbench.kernels.helping import helping
from tgbench.kernels.waiting import waiting
from tgbench.plans.decisions import Decisions
from tgbench.plans.search.effort import Effort
from tgbench.programs.ahead import compile_loops
from tgbench.programs.lowering import DoesNotFit
from tgbench.runs.buckets import Bucket, Classifier, Spot, boxes_by_name
from tgbench.runs.difference import Scattered
from tgbench.runs.pausing import Paused
from tgbench.runs.propagate import Propagator
from tgbench.runs.trace import LoggedCall, Trace
from tgbench.session.arguments import ArgumentReader
from tgbench.session.chooser import Larger
from tgbench.session.earlier import Notes
from tgbench.session.making import Maker, NeedsPlan
from tgbench.session.memory import Memory
from tgbench.session.planning import Planning, Runs, Search, logged
from tgbench.session.rehearsing import Rehearser
from tgbench.session.report import Counters, Report, taken_bytes
from tgbench.session.results import Wishes, gather
from tgbench.session.scouting import Scout, Served
from tgbench.session.serving import EXACTLY, Offer, Rung
from tgbench.session.standby import Standby
from tgbench.session.standing import NONE, Keeper, Standing
from tgbench.session.trying import TriedCall, Tryer

Array = NDArray[Any]
Likely: TypeAlias = Sequence[tuple[Rung, Spot]]  # runs that may come, on which rungs
STATE_BYTES = 16 << 20  # of patterns; past this those that nothing counts on go
MOST_PLANS = 4  # a run that still fits nothing after this many plans is an error of ours


class Keeps(Enum):
    """What of a run lasts."""

    ALL = "inputs, values, and what it writes into states"
    VALUES = "inputs and values; the states do not advance, and nothing is handed out"
    NOTHING = "nothing"


class Request(NamedTuple):
    """What a run is asked for, read and checked.

    Fields:
        given: inputs by name; those left out keep the value that they are held at.
        wanted: of which outputs what.
        changed: where inputs may differ, if that was said; `check` it all the same.
        keeps: what of the run lasts.
        copy, as_torch: how results are handed out.
    """

    given: Mapping[str, Array]
    wanted: Wishes
    changed: Mapping[str, Region] | None = None
    check: bool = False
    keeps: Keeps = Keeps.ALL
    copy: bool = True
    as_torch: bool = False


class Decision(NamedTuple):
    """A run that is about to be executed.

    Fields:
        request: what it is for.
        arrays: every input, checked.
        differ: what the arena does not hold yet.
        bucket: the same with what is demanded.
        came_as: the bucket that it was before a plan for it moved what was held.
        spot: its class, and where it happens; None where nobody asked.
        served: by which program.
        found_ns: when it was known what differs, by the clock of this thread's work.
    """

    request: Request
    arrays: Mapping[str, Array]
    differ: Mapping[str, Region]
    bucket: Bucket
    spot: Spot | None
    served: Served
    found_ns: int
    came_as: Bucket


class Outcome(NamedTuple):
    """A run that is over, and may still be undone.

    Fields:
        results: by output name, as they are handed out.
        advanced: what of the states it changed.
    """

    results: dict[str, Any]
    advanced: Mapping[str, Region]


class Finished(NamedTuple):
    """What there is to say of a run; its `Report` is made when somebody asks.

    Fields:
        moved: whether its program was made for another origin, and pointed to this one.
        began_ns, decided_ns, done_ns: when it was, by the clock that goes on.
        worked_ns: how long this thread worked on its calls. On a machine that others use it is less
            than what went by, and choices are about the work.
    """

    bucket: Bucket
    served: Served
    moved: bool
    began_ns: int
    decided_ns: int
    done_ns: int
    worked_ns: int
    propagator: Propagator
    classifier: Classifier

    @property
    def took_ns(self) -> int:
        """All of it."""
        return self.done_ns - self.began_ns

    @property
    def report(self) -> Report:
        served, spot = self.served, self.classifier.spot(self.bucket)
        return Report(
            self.bucket, spot.kind, spot.origin, served.rung.name, served.spot.origin,
            served.is_new, self.moved, served.program,
            self.decided_ns - self.began_ns, self.done_ns - self.decided_ns, self.took_ns,
            self.propagator,
        )  # fmt: skip


def check_served(run: Decision) -> None:
    """Raise KernelError where a program would not do all of a run that it serves: what changed,
    unless it computes everything, and what is asked for.
    """
    program, (kind, origin) = run.served.program, run.served.spot
    there = kind.bucket(origin)
    asked = Bucket((), run.bucket.demand) if program.renews else run.bucket
    if not asked.is_within(there):
        raise KernelError(
            f"{run.bucket} is served as {there}, which is an error of ours; `session.forget()` has "
            "the next run compute everything"
        )


class Runner:
    """Runs one session's graph; whoever calls it holds the arena's lock.

    Fields:
        planning, keeper: what to plan for; what is in force and stands.
        reader: reads arguments.
        trace: every run is appended to it.
        classifier: of runs.
        scout, chooser: find the programs that would serve a run, and pick one.
        rehearser: sees what may come next.
        counters: how often things happened.
        finished: the last run; None before the first.
        standby: the plan in force, and one that may take its place; None where none does.
    """

    def __init__(
        self, planning: Planning, keeper: Keeper, reader: ArgumentReader, trace: Trace
    ) -> None:
        self.planning, self.keeper = planning, keeper
        self.scout, self.chooser = Scout(planning, keeper), keeper.chooser
        self.classifier = self.scout.server.classifier
        self.reader, self.trace = reader, trace
        self.arena = keeper.arena
        self.counters = Counters()
        self.maker = Maker(planning, keeper, self.counters)
        self.rehearser = Rehearser(planning, keeper, self.scout, self.maker)
        self.graph = planning.graph
        # compiling may be put off: which code computes something is all the same, but for bits
        self._puts_off = planning.exactness is None
        self.finished: Finished | None = None
        self._ended: Request | None = None  # the last one that was carried out
        self._rehearsed = self._bought = 0  # the last plan of which that is true
        self._likely: Likely = ()  # what may follow the first run
        self._quick = 0  # the last plan that was made in a run
        self.standby: Standby | None = None
        self._changes = False  # whether the next run begins with the plan that stands by
        self._made_ns = 0  # what making had taken when that was looked for
        self._awaits_code = not beside.is_there()
        self._checks = switches.checks()
        self.tryer = self._new_tryer()
        self.waiting, self.helping, self.apart = waiting(), helping(), apart()
        on_cpu = planning.device == "cpu"  # a thread that waits for another device does no work
        self._work_ns = time.thread_time_ns if on_cpu else time.perf_counter_ns

    def request(
        self, inputs: Any, want: Any, changed: Any, check: bool, copy: bool, keep: bool
    ) -> Request:
        """The arguments of `GraphSession.run`, read and checked."""
        named, wanted = self.reader.named(inputs), self.reader.wanted(want)
        hints = None if changed is None else self.reader.hints(changed)
        given = self.reader.arrays(named)
        keeps, as_torch = Keeps.ALL if keep else Keeps.NOTHING, False
        for name, value in named.items():
            array = given.get(name)
            if array is not value:  # no array of NumPy's
                as_torch = as_torch or isinstance(value, torch.Tensor)
            # results that come back as inputs may be views of what a run writes over
            if array is not None and array.base is not None and self.arena.shows(array):
                given[name] = array.copy()
        return Request(given, wanted, hints, check, keeps, copy or not keep, as_torch)

    def run(self, request: Request, began_ns: int) -> dict[str, Any]:
        """The results of a request that came at `began_ns`."""
        if self.keeper.standing.memory is not None:
            return self._run(request, began_ns)
        with lasting():  # no later run has to look at what is made for the first answer
            return self._run(request, began_ns)

    def _run(self, request: Request, began_ns: int) -> dict[str, Any]:
        began_work = 0 if self.standby is None else self._steady_ns()
        if self._changes:
            self._change_plan()
        decision = first = self.decide(request)
        while request.keeps is Keeps.NOTHING and self._lacks_a_start():
            self._start_again(request)
            decision = self.decide(request)
        results = self.carry_out(decision, began_ns)
        if self._rehearsed != self.keeper.plans and not self.chooser.strict:
            self._rehearse(first)
            self._stand_by()
        elif self.standby is not None:
            took_ns, spot = self._steady_ns() - began_work, self.classifier.spot(decision.bucket)
            self._changes = self.standby.ran(spot.kind, took_ns, self.chooser.full_ns)
        return results

    def _stand_by(self) -> None:
        """Have what competed with a plan of ours stand by."""
        made, price_ns = self.keeper.memory.decisions, self.counters.making_ns - self._made_ns
        self._made_ns = self.counters.making_ns
        if self.standby is None or self.standby.in_force is not made:
            is_ours = self._quick == self.keeper.plans
            self.standby = Standby.of(made, price_ns) if is_ours else None
        else:
            self.standby.changed(price_ns)

    def _change_plan(self) -> None:
        """Put in force what stands by."""
        self._changes, memory = False, self.keeper.standing.memory
        if self.standby is None or memory is None or self.standby.in_force is not memory.decisions:
            return
        if self.keeper.seat.excess_bytes(self.standby.other.placement) > 0:
            self.standby = None  # other sessions have that room by now
            return
        began_ns = time.perf_counter_ns()
        self._replace_plan(logged("changed", self.standby.change(), began_ns), is_ours=True)

    def _rehearse(self, first: Decision) -> None:
        """See with the first answer of a plan what may come next: for as long again, at most, but
        for code that a machine compiles when it first needs it. Runs to come would wait for that.

        Nothing where a plan is on trial: what comes next is what it is tried for.
        """
        until_ns = self._steady_ns() + self._work_ns() - first.found_ns
        if self.standby is None or not self.standby.is_trial_of(self.keeper.memory.decisions):
            work = Paused(self.rehearser.rehearsing(self._likely))
            work.go_on(lambda: self._steady_ns() >= until_ns)
        self._rehearsed = self.keeper.plans
        self.chooser.answered(is_free=self._bought != self.keeper.plans)

    def _steady_ns(self) -> int:
        """How long this thread worked, less what is done once."""
        return self._work_ns() - once.SPENT.ns

    def _lacks_a_start(self) -> bool:
        """No value is left to differ from: after a new plan, an interrupt or `forget`."""
        return bool(self.keeper.standing.held) and not self.keeper.standing.is_fresh

    def _start_again(self, request: Request) -> None:
        """Compute what is wanted of the inputs that are held, so that a what-if starts from it."""
        began_ns = time.perf_counter_ns()
        afresh = Request({}, request.wanted, keeps=Keeps.VALUES)
        self.carry_out(self.decide(afresh), began_ns)
        self.keeper.memory.settle()  # that run is over

    # --- deciding --------------------------------------------------------------------------------

    def decide(self, request: Request) -> Decision:
        """What of the inputs differs, its bucket, and the program; plans if nothing fits."""
        fits: Runs
        if self._awaits_code and beside.has_come():
            self._take_up_code()
        if self.keeper.states.size_bytes > STATE_BYTES:
            self.keeper.bound_states(STATE_BYTES)
        found_ns, came_as, before, fits = 0, None, None, ()
        for _ in range(MOST_PLANS):
            standing, began_ns = self.keeper.standing, time.perf_counter_ns()
            arrays = self.reader.completed(request.given, standing.held)
            differ, scattered = self._differences(arrays, request)  # a plan moves what is held
            found_ns = found_ns or self._work_ns()
            if standing.is_fresh:
                self.chooser.found(time.perf_counter_ns() - began_ns)
            is_first = standing.memory is None
            looks = is_first or self.chooser.looks()
            if scattered and looks:
                differ.update(self.reader.in_boxes(scattered))
            bucket = self.classifier.bucket(boxes_by_name(differ), request.wanted.boxes)
            came_as = came_as or bucket
            ready = None if looks else self._at_a_glance(bucket)
            known = ready
            if known is None and not (is_first or (looks and self.keeper.programs.continuing)):
                known = self._afresh(bucket, looks)
            if known is not None and (
                self.chooser.wanted is None or not self._goes_on(known, found_ns)
            ):
                asked = None if ready is None else ready.spot
                return Decision(request, arrays, differ, bucket, asked, known, found_ns, came_as)
            if standing.notes:
                self.keeper.read_notes()
            spot = self.classifier.spot(bucket)
            if is_first:
                fits = self._plan_first(bucket, spot)
            try:
                served = self.served(bucket, spot)
                while self.chooser.wanted is not None and self._goes_on(served, found_ns):
                    served = self.served(bucket, spot)
            except NeedsPlan as needs:
                failure = str(needs)  # an error kept in its own frame keeps the session alive
                self.planning.missed[needs.spot.kind] = None
                try:
                    self._buy_plan(needs.spot, is_due=self.chooser.serves_none)
                except BudgetError:
                    if before is not None:
                        self.keeper.standing = before
                    if not standing.is_fresh or request.keeps is Keeps.NOTHING:
                        raise
                    before = standing
                    self.keeper.forget()  # there may be room for it alone, from nothing
                continue
            if self.planning.deserves_a_plan(served.spot.kind, served.program):
                self._buy_plan(spot)
                continue
            if is_first and not self.chooser.strict:
                compile_loops(self.keeper.memory.specialiser.lowerer)
                self.rehearser.hold(whole for whole in fits if whole != spot)
            return Decision(request, arrays, differ, bucket, spot, served, found_ns, came_as)
        raise KernelError(
            f"{spot.kind} fits no plan made for it: {failure}; give the session more memory"
        )

    def _plan_first(self, bucket: Bucket, spot: Spot) -> Runs:
        """Plan for the first run, and for what may follow it; returns runs that fit as well."""
        fits: Runs = ()
        runs = self.planning.first_runs(bucket, spot, self.reader)
        if not self.chooser.strict:
            fits = self.planning.whole_runs()
            runs = [*runs, *self.planning.same_runs(bucket)]
            self._likely = self.rehearser.likely(bucket)
            for _, (kind, at) in self._likely:
                self.planning.likely[kind] = at
            self.planning.provide(bucket)
        with self._or_larger([bucket]):
            self._plan_with(runs, fits)
        return fits

    @contextmanager
    def _or_larger(self, asked: Iterable[Bucket]) -> Iterator[None]:
        """Where a plan for what is asked fits no memory, one for all of the outputs may: it serves
        that as well. A part of a sum of slices may need more than all of it, which lies in place.
        """
        try:
            yield
        except BudgetError as refused:
            larger = self.planning.afresh()
            if all(bucket == larger for bucket in asked):
                raise
            try:
                self._plan_with(self._first_runs(larger), alone=True)
            except BudgetError as other:
                raise min(refused, other, key=lambda one: one.needed_bytes) from None

    def _at_a_glance(self, bucket: Bucket) -> Served | None:
        """What was made ready for a run, if it is quicker, where seeing that pays."""
        own = None
        for rung in self.chooser.glances():
            began_ns = time.perf_counter_ns()
            if own is None:
                spot = self.classifier.spot(bucket)
                own = self.scout.own(bucket, spot, self.keeper.standing)
            found = self.scout.ready(own, rung)
            takes_ns = None if found is None else found.takes_ns
            if self.chooser.glanced(rung, time.perf_counter_ns() - began_ns, takes_ns):
                return found
        return None

    def _afresh(self, bucket: Bucket, looks: bool) -> Served | None:
        """A program for everything, where looking for others does not pay, or nothing else is there
        and nothing can be bought.
        """
        found = self.scout.afresh(bucket)
        if found is not None and not looks:
            self.chooser.passes()
            return found
        return found if found is not None and self.chooser.waits() else None

    def _goes_on(self, served: Served, began_ns: int) -> bool:
        """Do a part of what is wanted besides; whether there is more to choose from then."""
        return self.maker.go_on(served.takes_ns, self._work_ns() - began_ns)

    def _differences(
        self, arrays: Mapping[str, Array], request: Request
    ) -> tuple[dict[str, Region], Mapping[str, Scattered]]:
        """What the arena does not hold yet: everything at first, then what changed; and what of it
        is no one box, for whoever looks for more than to compute everything.
        """
        standing = self.keeper.standing
        if not standing.is_fresh:
            for name, array in arrays.items():
                self.reader.check_values(name, array, Region.full(array.shape))
            return self.planning.everything, {}
        found, scattered = self.reader.differences(
            arrays, standing.held, request.changed, request.check
        )
        return ({**standing.pending, **found} if standing.pending else found), scattered

    def _first_runs(self, bucket: Bucket) -> Runs:
        """A run, and the smallest changes that may follow it."""
        return self.planning.first_runs(bucket, bucket.classify(self.graph), self.reader)

    def plan_for(self, runs: Runs) -> None:
        """Plan for some more runs; if that fails or is interrupted, all stays as it was.

        Where not all that was planned for fits at once, for what these ask for alone, computed of
        nothing, as a first run would be: what fits by itself is run.
        """
        with suppress(BudgetError):
            return self._plan_with(runs)
        demands = (run.kind.bucket(run.origin).demand for run in runs)
        afresh = dict.fromkeys(self.planning.afresh(dict(demand)) for demand in demands)
        firsts = [one for bucket in afresh for one in self._first_runs(bucket)]
        with self._or_larger(afresh):
            self._plan_with(firsts, alone=True)

    def _plan_with(self, runs: Runs, fits: Runs = (), alone: bool = False) -> None:
        with self.planning.adding(runs, fits, alone):
            self.plan()

    def _take_up_code(self) -> None:
        """Plan and make programs anew, with the kernels that were compiled beside meanwhile; a plan
        that somebody asked for stays.
        """
        self.planning.know_anew()
        memory = self.keeper.standing.memory
        if memory is not None:
            decisions, is_ours = memory.decisions, self._quick == self.keeper.plans
            if is_ours:
                with suppress(BudgetError):
                    decisions = self.planning.quick()
            self._replace_plan(decisions, is_ours)
        self.tryer = self._new_tryer()
        self._awaits_code = False

    def _replace_plan(self, decisions: Decisions, is_ours: bool) -> None:
        """Put a plan in force in place of another one; ours, or one that somebody asked for."""
        self.keeper.install(decisions)
        if is_ours:
            self._quick = self.keeper.plans
        if not self.chooser.strict:
            compile_loops(self.keeper.memory.specialiser.lowerer)

    def _new_tryer(self) -> Tryer | None:
        calibrator = self.planning.calibrator
        return None if calibrator is None else Tryer(calibrator)

    def _buy_plan(self, spot: Spot, is_due: bool = False) -> None:
        """Plan for one more run, which nobody asked for: what that takes is paid for, unless it is
        `is_due`, as nothing that is there serves the run. That is told apart like a first answer.
        """
        self.planning.provide(spot.kind.bucket(spot.origin))
        self.plan_for([spot])
        if not is_due:
            self._bought = self.keeper.plans

    def plan(self) -> None:
        """Plan for the classes at hand, and put it in force."""
        began_ns = time.thread_time_ns()
        self.keeper.install(self.planning.quick())
        self._quick = self.keeper.plans
        self.counters.planned += 1
        self.chooser.planned(time.thread_time_ns() - began_ns)

    def plan_again(self) -> None:
        """Plan for the classes at hand; before the first plan, for what happened. Raises TraceError
        where nothing did.
        """
        runs = () if self.planning.classes else self.planning.seen(self.happened)
        self._plan_with(runs)

    @property
    def happened(self) -> list[Bucket]:
        """The buckets of all runs in the trace."""
        return [call.bucket for call in self.trace]

    def search(self, how: Search) -> None:
        """Look for a better plan for what happened, and put it in force."""
        standing = self.keeper.standing
        start = standing.memory.decisions if standing.memory is not None else None
        made = self.planning.searched(how, self.happened, start)
        self.planning.classes.clear()
        self.planning.take_in(made.classes)
        self.counters.planned += 1
        self.keeper.install(made)

    def served(self, bucket: Bucket, spot: Spot) -> Served:
        """A program for a run after what stands; raises NeedsPlan if that takes another plan."""
        standing = self.keeper.standing
        state, program = self.scout.found(spot, standing)
        if program is not None and program.is_good(spot.origin):
            return Served(EXACTLY, spot, program, False)
        own = self.scout.offered(bucket, spot, standing, state, program)
        return self._again(own) or self._chosen(own)

    def _again(self, own: Offer) -> Served | None:
        """The quickest program on one of the rungs that need no choice; where the last choice
        stands, if it is there and looking elsewhere does not pay.
        """
        bucket, rungs = own.bucket, self.chooser.again(own, self.planning.classes)
        first, others = rungs[:1], [rung for rung in rungs[1:] if rung is not rungs[0]]
        here = self.scout.quickest(bucket, first, own)
        if here is None:
            return self.scout.quickest(bucket, others, own)
        if not self.chooser.looks_elsewhere(here.takes_ns):
            return here
        began_ns = time.thread_time_ns()
        other = self.scout.quickest(bucket, others, own)
        saved_ns = 0.0 if other is None else max(here.takes_ns - other.takes_ns, 0.0)
        self.chooser.elsewhere(time.thread_time_ns() - began_ns, saved_ns)
        return other if saved_ns else here

    def _chosen(self, own: Offer) -> Served:
        """A program that is there, or is made at once as nothing is; raises NeedsPlan."""
        larger = cache(lambda: self.scout.larger(own))
        while True:
            offer = self._choice(own, larger)
            if offer.program is not None:
                return Served.by(offer, offer.program)
            with suppress(DoesNotFit):  # then another one is chosen
                placed = self.maker.placed(offer, self.keeper.standing)
                return Served.by(offer, self.maker.or_plan(placed), is_new=True)

    def _choice(self, own: Offer, larger: Larger) -> Offer:
        """What the chooser takes; what it wants besides is begun."""
        began_ns, before = time.thread_time_ns(), self.chooser.wanted
        try:
            offer = self.chooser.choose(own, larger, self.planning.classes)
        finally:
            self.chooser.took(time.thread_time_ns() - began_ns)
        wanted = self.chooser.wanted
        if wanted is not None and wanted is not before:
            self.maker.begin(wanted)
        return offer

    # --- executing -------------------------------------------------------------------------------

    def carry_out(self, run: Decision, began_ns: int) -> dict[str, Any]:
        """Execute a run and remember what it did; what it wrote stays from the last line on."""
        if self._checks:
            check_served(run)
        program, origin = run.served.program, run.served.spot.origin
        tryer, before, turn = self.tryer, self.keeper.standing, None
        memory = before.memory
        assert memory is not None
        moved = program.origin != origin
        if moved:
            program.move_to(origin)
        if tryer is not None:
            tryer.before(program, memory, run.served.spot.kind.bounds)
            if program.origin != origin:  # it has other calls
                program.move_to(origin)
            if program.tryout is not None and program.tryout.groups:
                turn = tryer.turn(program, memory)
        compiled_ns, waiting = once.SPENT.ns, self.waiting
        decided_ns = time.perf_counter_ns()
        if decided_ns >= waiting.due_ns:
            waiting.begins(decided_ns, None if program.by_team or turn is not None else program)
        began_work, is_apart = self._work_ns(), False
        try:
            if decided_ns < self.apart.until_ns:
                is_apart = self.apart.begins(program.by_team, program.use.time_ns)
            if program.by_team and turn is None:
                outcome = self.helping.during(program, lambda: self.execute(run, turn))
            else:
                outcome = self.execute(run, turn)
        finally:
            if is_apart:
                self.apart.ends()
        ended_work, done_ns = self._work_ns(), time.perf_counter_ns()
        if waiting.watches:
            waiting.ends(done_ns - decided_ns)
        compiled_ns = once.SPENT.ns - compiled_ns
        worked, deciding = ended_work - began_work, began_work - run.found_ns
        after = self._standing_after(run, memory, before, outcome)
        # what a program leaves that renews everything is known: there is nothing to work out
        told_ns = 0 if program.renews else time.perf_counter_ns() - done_ns
        more = self.chooser.besides(
            program, deciding + told_ns, 0 if run.spot is None else deciding
        )
        if turn is None:
            calls_ns = worked - compiled_ns
            program.ran((calls_ns if calls_ns > 0 else 0) + more)
        self.finish(
            run,
            Finished(
                run.bucket, run.served, moved, began_ns, decided_ns, done_ns, worked,
                memory.specialiser.propagator, self.classifier,
            ),
        )  # fmt: skip
        if run.request.keeps is not Keeps.NOTHING:
            self._ended = run.request
        self.keeper.standing = after
        return outcome.results

    def execute(self, run: Decision, turn: TriedCall | None = None) -> Outcome:
        """Write the inputs, run the calls, hand out results, advance the states or undo it all.

        Nothing is valid from the first write until the run is over, and what is written over is
        noted (`Memory.take_back`), so that whatever stops a run leaves a session that computes
        everything again from what it held before.
        """
        memory, keeps = self.keeper.standing.memory, run.request.keeps
        assert memory is not None
        _, spot, program, _ = run.served
        self.keeper.forget()
        self.arena.last_ran = self.keeper.seat.number
        try:
            saved = memory.saved(program) if keeps is Keeps.NOTHING else []
            memory.write(run.arrays, run.differ)
            once.SPENT.puts_off, once.SPENT.stretches = self._puts_off, once.SPENT.stretches + 1
            if turn is None:
                for function, arguments in program.calls:
                    function(*arguments)
            elif self.tryer is not None:
                self.tryer.carry_out(program.each, turn)
            results = self._results(run)
            if keeps is Keeps.NOTHING:
                memory.put_back(saved)
            return Outcome(results, memory.update_states(program) if keeps is Keeps.ALL else NONE)
        except Exception as error:
            raise KernelError(
                f"a kernel failed while running {spot.kind}: {error}; the session is usable, "
                "the next run computes everything again"
            ) from error
        finally:
            once.SPENT.puts_off = False

    def _results(self, run: Decision) -> dict[str, Any]:
        """What is handed out of a run, right now: its slices are written over by the next one."""
        request, program = run.request, run.served.program
        if request.keeps is Keeps.VALUES:
            return {}
        results, is_own = {}, run.served.rung is EXACTLY
        for name, wish in request.wanted.by_name.items():
            owned = request.copy or request.as_torch or self._is_state(name)
            results[name] = gather(
                program.results[name], program.origin or (), wish, is_own, program.shown, owned,
                request.as_torch,
            )  # fmt: skip
        return results

    def _is_state(self, output: str) -> bool:
        """Whether an output shows the bytes of a state, which a run writes after handing out."""
        scheduled = self.planning.scheduled
        return scheduled.base[scheduled.graph.outputs[output]].op == "state"

    def finish(self, run: Decision, finished: Finished) -> None:
        """Count a run, and log it."""
        _, served, moved, began_ns, decided_ns, done_ns, worked_ns, *_ = finished
        counters = self.counters
        counters.runs += 1
        counters.larger += served.rung is not EXACTLY
        counters.moved += moved
        counters.evicted = self.keeper.programs.evicted
        counters.deciding_ns += decided_ns - began_ns
        counters.computing_ns += done_ns - decided_ns
        counters.working_ns += worked_ns
        self.chooser.ran((run.spot or served.spot).kind, served.program, worked_ns)
        if served.program.use.ran == 1:
            self.arena.took(taken_bytes(served.program))
        took_ns = done_ns - began_ns
        self.trace.append(LoggedCall(run.came_as, not served.is_new, took_ns, time.time()))
        self.finished = finished
        if debug_level() >= RUNS:
            tell(RUNS, self._line)

    def _line(self) -> str:
        """Of the run that is over."""
        assert self.finished is not None
        return f"run {self.counters.runs}: {self.finished.report.line}"

    def _standing_after(
        self, run: Decision, memory: Memory, before: Standing, outcome: Outcome
    ) -> Standing:
        """What stands once a run counts, that left this of what stood `before`."""
        if run.request.keeps is Keeps.NOTHING:
            left = memory.surviving(before.valid, run.served.program)
            return before._replace(valid=left, notes=())
        advanced = outcome.advanced
        pending = self.reader.rounded_states(advanced) if advanced else NONE
        _, spot, program, _ = run.served
        notes: Notes = ()
        if program.renews:
            valid = program.after
            notes = self.keeper.noted(program, spot.origin, run.bucket.changed, before)
        else:
            valid = self.keeper.left_by(program, spot, before)
        return Standing(memory, memory.held, NONE, True, valid, spot, pending, notes)

    def abandon(self, asked: Sequence[Request]) -> None:
        """Whatever a run has written is taken back before the next one, though it was at its end.

        Until it has handed its results out it was none: who asks again must not find states that
        have advanced already.
        """
        once.SPENT.puts_off = False  # if that was stopped as well
        if any(self._ended is request for request in asked):
            self.keeper.forget()

    # --- ahead of time ---------------------------------------------------------------------------

    def prepare(self, seconds: float | None) -> int:
        """Programs for the planned classes, which are planned for first if none is; how many."""
        if self.keeper.standing.memory is None:
            self._plan_ahead()
        return self.rehearser.prepare(seconds)

    def _plan_ahead(self) -> None:
        """Plan for the runs in the trace; without any, for one of everything and small changes."""
        if self.happened:
            self.search(Search("greedy", Effort(steps=0)))
            return
        everything, fits = self.planning.afresh(), list[Spot]()
        runs = list(self._first_runs(everything))
        if not self.chooser.strict:
            fits += self.planning.whole_runs()
            runs += self.planning.same_runs(everything)
        self._plan_with(runs, fits)
        self.rehearser.hold(fits)
