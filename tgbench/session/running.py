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
from contextlib import nullcontext, suppress
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from tgbench.base import once
from tgbench.base.errors import KernelError
from tgbench.base.regions import Region
from tgbench.base.switches import RUNS, tell
from tgbench.base.words import counted
from tgbench.plans.search.effort import Effort
from tgbench.programs.ahead import compile_loops
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING
from tgbench.runs.buckets import Bucket, BucketClass, Classifier, Spot
from tgbench.runs.propagate import Propagator
from tgbench.runs.trace import LoggedCall, Trace
from tgbench.session.arguments import ArgumentReader, Wish
from tgbench.session.choosing import Larger
from tgbench.session.making import Maker, NeedsPlan
from tgbench.session.planning import Planning, Runs, Search
from tgbench.session.report import Counters, Report, taken_bytes
from tgbench.session.results import gather
from tgbench.session.serving import (
    ANEW,
    EXACTLY,
    ONWARDS,
    SIZED,
    WHOLE,
    Around,
    Offer,
    Rung,
    Server,
)
from tgbench.session.standing import NONE, Keeper, Standing
from tgbench.session.trying import TriedCall, Tryer

Array = NDArray[Any]
STATE_BYTES = 16 << 20  # of patterns; past this they and their programs start again
RUNS_AHEAD = 3  # how far `prepare` follows a class: two runs reach its steady state
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
    wanted: Mapping[str, Wish]
    changed: Mapping[str, Region] | None = None
    check: bool = False
    keeps: Keeps = Keeps.ALL
    copy: bool = True
    as_torch: bool = False


class Served(NamedTuple):
    """A program for a run.

    Fields:
        rung: how far the run is rounded to a larger one.
        spot: the class that the program is of, and where it runs.
        program: right for it, made now if `is_new`.
    """

    rung: Rung
    spot: Spot
    program: Program
    is_new: bool

    @property
    def takes_ns(self) -> float:
        """How long the run takes."""
        return self.program.takes_ns(self.spot.origin)


def _by(offer: Offer, program: Program, is_new: bool = False) -> Served:
    return Served(offer.rung, offer.spot, program, is_new)


class Decision(NamedTuple):
    """A run that is about to be executed.

    Fields:
        request: what it is for.
        arrays: every input, checked.
        differ: what the arena does not hold yet.
        bucket: the same with what is demanded.
        spot: its class, and where it happens; None where nobody asked.
        served: by which program.
        found_ns: when it was known what differs, by the clock of this thread's work.
        looked_ns: when what serves was found, where others were looked for.
    """

    request: Request
    arrays: Mapping[str, Array]
    differ: Mapping[str, Region]
    bucket: Bucket
    spot: Spot | None
    served: Served
    found_ns: int
    looked_ns: int


class Outcome(NamedTuple):
    """A run that is over, and may still be undone.

    Fields:
        results: by output name, as they are handed out.
        advanced: what of the states it changed.
    """

    results: dict[str, Any]
    advanced: Mapping[str, Region]


class Clock(NamedTuple):
    """When a run began, when it was decided, and when it was done, in nanoseconds.

    Fields:
        worked: how long this thread worked on its calls. On a machine that others use it is less
            than what went by, and choices are about the work.
    """

    began: int
    decided: int
    done: int
    worked: int


class Finished(NamedTuple):
    """What there is to say of a run; its `Report` is made when somebody asks.

    Fields:
        moved: whether its program was made for another origin, and pointed to this one.
    """

    bucket: Bucket
    served: Served
    moved: bool
    clock: Clock
    propagator: Propagator
    classifier: Classifier

    @property
    def report(self) -> Report:
        clock, served, spot = self.clock, self.served, self.classifier.spot(self.bucket)
        return Report(
            self.bucket, spot.kind, spot.origin, served.rung.name, served.spot.origin,
            served.is_new, self.moved, served.program,
            clock.decided - clock.began, clock.done - clock.decided, clock.done - clock.began,
            self.propagator,
        )  # fmt: skip


class Runner:
    """Runs one session's graph; whoever calls it holds the arena's lock.

    Fields:
        planning, keeper: what to plan for; what is in force and stands.
        reader: reads arguments.
        trace: every run is appended to it.
        server, chooser: find the programs that would serve a run, and pick one.
        counters: how often things happened.
        finished: the last run; None before the first.
    """

    def __init__(
        self, planning: Planning, keeper: Keeper, reader: ArgumentReader, trace: Trace
    ) -> None:
        self.planning, self.keeper = planning, keeper
        self.server, self.chooser = (
            Server(planning.graph, keeper.states, keeper.programs, planning.rules.allowance),
            keeper.chooser,
        )
        self.reader, self.trace = reader, trace
        self.arena = keeper.arena
        self.counters = Counters()
        self.maker = Maker(planning, keeper, self.counters)
        self.graph = planning.graph
        # compiling may be put off: which code computes something is all the same, but for bits
        self._compiling = once.putting_off if planning.exactness is None else nullcontext
        self.finished: Finished | None = None
        self._ended: Request | None = None  # the last one that was carried out
        calibrator = planning.calibrator
        self.tryer = None if calibrator is None else Tryer(calibrator)
        on_cpu = planning.device == "cpu"  # a thread that waits for another device does no work
        self._work_ns = time.thread_time_ns if on_cpu else time.perf_counter_ns

    def request(
        self, inputs: Any, want: Any, changed: Any, check: bool, copy: bool, keep: bool
    ) -> Request:
        """The arguments of `GraphSession.run`, read and checked."""
        named, wanted = self.reader.named(inputs), self.reader.wanted(want)
        hints, given = self.reader.hints(changed), self.reader.arrays(named)
        keeps = Keeps.ALL if keep else Keeps.NOTHING
        as_torch = any(isinstance(value, torch.Tensor) for value in named.values())
        return Request(self._apart(given), wanted, hints, check, keeps, copy or not keep, as_torch)

    def _apart(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Results that come back as inputs may be views of what a run writes over: copies then."""
        return {
            name: array.copy() if self.arena.shows(array) else array
            for name, array in arrays.items()
        }

    def run(self, request: Request, began_ns: int) -> dict[str, Any]:
        """The results of a request that came at `began_ns`."""
        is_first, worked_ns = self.keeper.standing.memory is None, self._work_ns()
        decision = self.decide(request)
        while request.keeps is Keeps.NOTHING and self._lacks_a_start():
            self._start_again(request)
            decision = self.decide(request)
        results = self.carry_out(decision, began_ns)
        if is_first and not self.chooser.strict:
            now_ns = self._work_ns()  # and as long again, at most
            self._rehearse(decision.bucket, now_ns + (now_ns - worked_ns))
            self.chooser.answered()
        return results

    def _rehearse(self, bucket: Bucket, until_ns: int) -> None:
        """Look at what may come next, with the first answer, and make programs where they pay, as
        long as this thread has not worked so long.
        """
        for offer, made in self._expected(bucket):
            if self._work_ns() >= until_ns:
                return
            is_quick = self.chooser.rehearse(offer, self.maker.decided(offer))
            for one in made if is_quick else ():
                if self._work_ns() < until_ns:
                    self._make_ready(one)

    def _expected(self, bucket: Bucket) -> Iterator[tuple[Offer, Iterable[Offer]]]:
        """What may come next, and what is made then if that is quick: blocks of any size, where a
        block was asked for; a change of all behind some element; and the changes that are planned
        for, one element on, or in the middle where they were at the end, as programs for an end are
        right there alone. Where these are right at few places, bands that hold them anywhere.
        """
        for rung, spot in self._likely(bucket):
            offer = Offer(rung, spot.kind.bucket(spot.origin), spot, None, None)
            yield offer, [offer]
        for kind, (_, origin) in self.planning.classes.items():
            ahead = kind.ahead(origin)
            own = self.own(kind.bucket(ahead), Spot(kind, ahead), self.keeper.standing)
            if own.program is not None:
                continue
            yield own, (one for one in [own] if not self.chooser.stands(one))
            if self.chooser.stands(own):
                for offer in self.server.larger(own, self._around(own.bucket)):
                    if offer.rung.stands and offer.program is None:
                        yield offer, self._bands(kind, offer.rung)

    def _bands(self, kind: BucketClass, rung: Rung) -> Iterator[Offer]:
        """Of runs in bands, those that hold changes of a class wherever they are."""
        if rung.changed is None or not rung.is_band:
            return
        count = 2 * rung.changed.parts
        places = [[bound * i // (count - 1) for bound in kind.bounds] for i in range(count)]
        found = [self.server.offer(self._around(kind.bucket(at)), rung) for at in places]
        yield from {one.spot: one for one in found if one and one.program is None}.values()

    def _likely(self, bucket: Bucket) -> list[tuple[Rung, Spot]]:
        """Runs of any size, or that go on to the end, which may follow one that is the first."""
        classify, planning = self.server.classifier.spot, self.planning
        blocks = [classify(one, SIZED.extents) for one in planning.blocks(bucket)]
        onwards = [classify(one, ONWARDS.extents) for one in planning.onwards(bucket)]
        return [
            *((SIZED, Spot(kind, kind.ahead(origin))) for kind, origin in blocks),
            *((ONWARDS, spot) for spot in onwards),
        ]

    def _make_ready(self, offer: Offer) -> None:
        """Make a program before it is asked for, if it fits with the kernels that are quickest."""
        with suppress(DoesNotFit):
            self.maker.make(self.maker.placed(offer, self.keeper.standing))

    def _lacks_a_start(self) -> bool:
        """No value is left to differ from: after a new plan, an interrupt or `forget`."""
        return bool(self.keeper.standing.held) and not self.keeper.standing.is_fresh

    def _start_again(self, request: Request) -> None:
        """Compute what is wanted of the inputs that are held, so that a what-if starts from it."""
        began_ns = time.perf_counter_ns()
        afresh = Request({}, request.wanted, keeps=Keeps.VALUES)
        self.carry_out(self.decide(afresh), began_ns)

    # --- deciding --------------------------------------------------------------------------------

    def decide(self, request: Request) -> Decision:
        """What of the inputs differs, its bucket, and the program; plans if nothing fits."""
        began_ns, found_ns = time.thread_time_ns(), 0
        demand = {name: wish.region for name, wish in request.wanted.items()}
        if self.keeper.states.size_bytes > STATE_BYTES:
            self.keeper.forget_states()
        for _ in range(MOST_PLANS):
            arrays = self.reader.completed(request.given, self.keeper.standing.held)
            differ = self._differences(arrays, request)  # a plan moves what is held
            found_ns = found_ns or self._work_ns()
            bucket = Bucket.of(differ, demand)
            is_first = self.keeper.standing.memory is None
            afresh = None if is_first else self._afresh(bucket)
            if afresh is not None and not self._goes_on(afresh, began_ns):
                return Decision(request, arrays, differ, bucket, None, afresh, found_ns, found_ns)
            spot = self.server.classifier.spot(bucket)
            if is_first:
                fits: Runs = ()
                if not self.chooser.strict:
                    fits = self.planning.whole_runs()
                    for _, (kind, at) in self._likely(bucket):
                        self.planning.likely[kind] = at
                self.plan_for(self.planning.first_runs(bucket, spot, self.reader), fits)
            try:
                served = self.served(bucket, spot)
                while self._goes_on(served, began_ns):
                    served = self.served(bucket, spot)
            except NeedsPlan as needs:
                failure = str(needs)  # an error kept in its own frame keeps the session alive
                self.planning.missed[needs.spot.kind] = None
                self.plan_for([needs.spot])
                continue
            if self.planning.deserves_a_plan(served.spot.kind, served.program):
                self.plan_for([spot])
                continue
            if is_first and not self.chooser.strict:
                compile_loops(self.keeper.memory.specialiser.lowerer)
                self._hold(whole for whole in fits if whole != spot)
            looked_ns = self._work_ns()
            return Decision(request, arrays, differ, bucket, spot, served, found_ns, looked_ns)
        raise KernelError(f"{spot.kind} fits no plan made for it: {failure}")

    def _afresh(self, bucket: Bucket) -> Served | None:
        """A program for everything, where looking for others does not pay, or nothing else is there
        and nothing can be bought.
        """
        is_alone, looks = self.keeper.programs.continue_nothing, self.chooser.looks()
        found = self._quickest(bucket, (ANEW,)) if is_alone or not looks else None
        if found is not None and not looks:
            self.chooser.passes()
            return found
        return found if found is not None and self.chooser.waits() else None

    def _goes_on(self, served: Served, began_ns: int) -> bool:
        """Do a part of what is wanted besides; whether there is more to choose from then."""
        if self.chooser.wanted is None:
            return False
        return self.maker.go_on(served.takes_ns, time.thread_time_ns() - began_ns)

    def _quickest(
        self, bucket: Bucket, rungs: Sequence[Rung], own: Offer | None = None
    ) -> Served | None:
        """The quickest of the programs that are there on some rungs, if any is."""
        around, found = self._around(bucket), []
        for rung in rungs:
            offer = own if rung is EXACTLY else self.server.offer(around, rung)
            if offer is not None and offer.program is not None:
                found.append(_by(offer, offer.program))
        return min(found, key=lambda one: one.takes_ns, default=None)

    def _hold(self, runs: Iterable[Spot]) -> None:
        """Make programs of runs that compute everything: they may serve any other."""
        for spot in runs:
            self._make_ready(Offer(WHOLE, spot.kind.bucket(spot.origin), spot, NOTHING, None))

    def _differences(self, arrays: Mapping[str, Array], request: Request) -> dict[str, Region]:
        """What the arena does not hold yet: everything at first, then what changed."""
        standing = self.keeper.standing
        if not standing.is_fresh:
            for name, array in arrays.items():
                self.reader.check_values(name, array, Region.full(array.shape))
            return self.planning.everything
        found = self.reader.differences(arrays, standing.held, request.changed, request.check)
        return {**standing.pending, **found}

    def plan_for(self, runs: Runs, fits: Runs = ()) -> None:
        """Plan for some more runs; if that fails or is interrupted, all stays as it was."""
        with self.planning.adding(runs, fits):
            self.plan()

    def plan(self) -> None:
        """Plan for the classes at hand, and put it in force."""
        began_ns = time.thread_time_ns()
        self.keeper.install(self.planning.quick())
        self.counters.planned += 1
        self.chooser.planned(time.thread_time_ns() - began_ns)

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
        own = self.own(bucket, spot, self.keeper.standing)
        if own.program is not None and own.program.is_good(own.spot.origin):
            return _by(own, own.program)
        return self._again(own) or self._chosen(own)

    def _again(self, own: Offer) -> Served | None:
        """The quickest program on one of the rungs that need no choice."""
        rungs = self.chooser.again(own, self.planning.classes)
        return self._quickest(own.bucket, rungs, own)

    def _chosen(self, own: Offer) -> Served:
        """A program that is there, or is made at once as nothing is; raises NeedsPlan."""
        larger = cache(lambda: self.server.larger(own, self._around(own.bucket)))
        while True:
            offer = self._choice(own, larger)
            if offer.program is not None:
                return _by(offer, offer.program)
            with suppress(DoesNotFit):  # then another one is chosen
                placed = self.maker.placed(offer, self.keeper.standing)
                return _by(offer, self.maker.or_plan(placed), is_new=True)

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

    def _around(self, bucket: Bucket) -> Around:
        standing = self.keeper.standing
        return Around(
            bucket, standing.valid, standing.last, self.keeper.memory.placement.retained,
            self.planning.leaves,
        )  # fmt: skip

    def own(self, bucket: Bucket, spot: Spot, standing: Standing) -> Offer:
        """A run's own program, if it is there."""
        if not self.chooser.strict:
            program = self.server.for_less(standing.valid, standing.last, spot)
            return Offer(EXACTLY, bucket, spot, None, program)
        state = self.keeper.states.moved(standing.valid, standing.last, spot)
        program = self.keeper.programs.find(state, spot.kind, spot.origin)
        return Offer(EXACTLY, bucket, spot, state, program)

    # --- executing -------------------------------------------------------------------------------

    def carry_out(self, run: Decision, began_ns: int) -> dict[str, Any]:
        """Execute a run and remember what it did; what it wrote stays from the last line on."""
        program, origin = run.served.program, run.served.spot.origin
        tryer, memory = self.tryer, self.keeper.memory
        if tryer is not None:
            tryer.before(program, memory)
        moved = program.origin != origin
        if moved:
            program.move_to(origin)
        turn = None if tryer is None else tryer.turn(program, memory)
        decided_ns, before = time.perf_counter_ns(), self.keeper.standing
        began_work, compiled_ns = self._work_ns(), once.spent_ns()
        outcome = self.execute(run, turn)
        ended_work, done_ns = self._work_ns(), time.perf_counter_ns()
        compiled_ns = once.spent_ns() - compiled_ns
        worked = ended_work - began_work
        after = self._standing_after(run, before, outcome)
        besides = began_work - run.found_ns + self._work_ns() - ended_work
        more = self.chooser.besides(program, besides, run.looked_ns - run.found_ns)
        if turn is None:
            program.ran(max(worked - compiled_ns, 0) + more)
        self.finish(run, moved, Clock(began_ns, decided_ns, done_ns, worked))
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
        memory, keeps = self.keeper.memory, run.request.keeps
        _, spot, program, _ = run.served
        memory.settle()
        self.keeper.forget()
        self.arena.last_ran = self.keeper.seat.number
        try:
            saved = memory.saved(program) if keeps is Keeps.NOTHING else []
            memory.write(run.arrays, run.differ)
            with self._compiling():
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

    def _results(self, run: Decision) -> dict[str, Any]:
        """What is handed out of a run, right now: its slices are written over by the next one."""
        request, program = run.request, run.served.program
        if request.keeps is Keeps.VALUES:
            return {}
        results, is_own = {}, run.served.rung is EXACTLY
        for name, (region, index) in request.wanted.items():
            parts, node = program.results[name], self.graph.outputs[name]
            owned = request.copy or request.as_torch or self._is_state(name)
            results[name] = gather(
                parts, program.origin or (), region, index, node.shape, owned, request.as_torch,
                is_own,
            )  # fmt: skip
        return results

    def _is_state(self, output: str) -> bool:
        """Whether an output shows the bytes of a state, which a run writes after handing out."""
        scheduled = self.planning.scheduled
        return scheduled.base[scheduled.graph.outputs[output]].op == "state"

    def finish(self, run: Decision, moved: bool, clock: Clock) -> None:
        """Count a run, and log it."""
        served = run.served
        counters = self.counters
        counters.runs += 1
        counters.larger += served.rung is not EXACTLY
        counters.moved += moved
        counters.evicted = self.keeper.programs.evicted
        counters.deciding_ns += clock.decided - clock.began
        counters.computing_ns += clock.done - clock.decided
        self.chooser.ran((run.spot or served.spot).kind, served.program, clock.worked)
        if served.program.use.ran == 1:
            self.arena.took(taken_bytes(served.program))
        took_ns = clock.done - clock.began
        self.trace.append(LoggedCall(run.bucket, not served.is_new, took_ns, time.time()))
        propagator = self.keeper.memory.propagator
        done = self.finished = Finished(
            run.bucket, served, moved, clock, propagator, self.server.classifier
        )
        tell(RUNS, lambda: f"run {counters.runs}: {done.report.line}")

    def _standing_after(self, run: Decision, before: Standing, outcome: Outcome) -> Standing:
        """What stands once a run counts, that left this of what stood `before`."""
        memory = self.keeper.memory
        if run.request.keeps is Keeps.NOTHING:
            left = memory.surviving(before.valid, run.served.program)
            return before._replace(valid=left)
        pending = self.reader.rounded_states(outcome.advanced)
        _, spot, program, _ = run.served
        valid = self._after(before, program, spot)
        return Standing(memory, memory.held, NONE, True, valid, spot, pending)

    def abandon(self, request: Request | None) -> None:
        """Whatever a run has written is taken back before the next one, though it was at its end.

        Until it has handed its results out it was none: who asks again must not find states that
        have advanced already.
        """
        if request is not None and self._ended is request:
            self.keeper.forget()

    def _after(self, before: Standing, program: Program, spot: Spot) -> int:
        """What a run leaves of what stood before, and what it computed."""
        if program.renews:
            return program.after
        state = self.keeper.states.moved(before.valid, before.last, spot)
        return self.keeper.memory.after(program, state, spot.origin)

    # --- ahead of time ---------------------------------------------------------------------------

    def prepare(self, seconds: float | None) -> int:
        """Programs for the planned classes, largest slices first; returns how many were made."""
        if self.keeper.standing.memory is None:
            self._plan_ahead()
        progress, made, walks = self.planning.progress, 0, self.planning.corners()
        end = time.monotonic() + (seconds if seconds is not None else 1e9)
        try:
            for i, spot in enumerate(walks):
                progress(f"preparing {i + 1}/{len(walks)} {spot.kind}")
                if time.monotonic() >= end:
                    break
                made += self._walk(spot)
        except KeyboardInterrupt:
            progress(f"stopped; {counted(made, 'program')} kept")
        return made

    def _plan_ahead(self) -> None:
        """Plan for the runs in the trace; without any, for one of everything and small changes."""
        if self.happened:
            self.search(Search("greedy", Effort(steps=0)))
            return
        fits: Runs = () if self.chooser.strict else self.planning.whole_runs()
        whole = self.planning.afresh()
        spot = whole.classify(self.graph)
        self.plan_for(self.planning.first_runs(whole, spot, self.reader), fits)
        self._hold(fits)

    def _walk(self, spot: Spot) -> int:
        """Make programs for a few runs of one class in a row."""
        standing, made = self.keeper.standing, 0
        for run in self._in_a_row(spot):
            offer = self.own(run.kind.bucket(run.origin), run, standing)
            try:
                program = offer.program
                if program is None:
                    program = self.maker.make(self.maker.placed(offer, standing))
            except DoesNotFit:
                return made
            made += offer.program is None
            standing = standing._replace(valid=self._after(standing, program, run), last=run)
        return made

    def _in_a_row(self, spot: Spot) -> Iterator[Spot]:
        """Runs of one class, one position further each time; behind a first one, if none was."""
        if not self.keeper.standing.is_fresh:
            demand = dict(spot.kind.bucket(spot.origin).demand)
            yield self.planning.afresh(demand).classify(self.graph)
        for ahead in range(RUNS_AHEAD):
            origin = spot.kind.further(spot.origin, ahead)
            if origin is not None:
                yield Spot(spot.kind, origin)
