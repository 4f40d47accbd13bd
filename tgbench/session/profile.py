"""Kernels measured where they run: in the programs of a session's plan, with a clock between calls.

    program    call ─ call ─ call ─ …      run whole, again and again
    clock        t0     t1     t2          what lies between two readings is one sample

So weights come from memory or from the cache as they do in a real run, and what a call finds warm
is what the calls before it left. Equal layers give samples of one signature. What the database has
already for this machine and these sources is left out, so a stopped profile goes on where it was.
The arena is put back afterwards: the session never notices.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from tgbench.base.errors import ExactnessError
from tgbench.base.machine import Machine, computes_alone
from tgbench.base.surroundings import plainly
from tgbench.base.words import Progress, counted, silent
from tgbench.costs.model import SENTINEL_NS, CostModel, Estimate, modelled_ns, total
from tgbench.costs.probe import relative_error
from tgbench.costs.records import Record, Records, failure_of, thinned
from tgbench.costs.signature import Signature, source_hash, streams
from tgbench.graph.op_table import Call, OpDef, TensorType
from tgbench.kernels.binding import bound
from tgbench.kernels.copied import of_tiling
from tgbench.kernels.numba.chain import LoopChain, apart, is_part
from tgbench.kernels.registry import (
    Function,
    Kernel,
    Site,
    View,
    candidates,
    kernel_named,
    scratch_views,
)
from tgbench.kernels.torch.elementwise import calls_cost, fill_
from tgbench.kernels.torch.layout import slide_
from tgbench.programs.exact.findings import Finder
from tgbench.programs.lowering import SLIDE
from tgbench.programs.program import Instruction, Program, site_at
from tgbench.runs.rules import Rules
from tgbench.session.memory import Memory

if TYPE_CHECKING:
    from tgbench.session.session import GraphSession

WARM_ROUNDS = 2  # Python specialises new code in its first calls
LEAST_ROUNDS, MOST_ROUNDS = 5, 200
PROGRAM_S = 1.0  # how long one program is repeated, once it has had its least rounds
LONG_NS = 50_000  # calls from here on can be timed by the processor's clock, which is slow to read
WITHIN = 4.0  # alternatives are measured that are modelled at most so many times as slow
Calls: TypeAlias = "Sequence[tuple[Function, tuple[Any, ...]]]"


# --- what a program runs --------------------------------------------------------------------------

FILL = Kernel(
    "fill", "fill", lambda site: True, calls_cost(1), lambda site, scratch: (fill_, (site.out, 0.0))
)
SLIDE_KERNEL = Kernel(
    SLIDE,
    SLIDE,
    lambda site: True,
    calls_cost(1),
    lambda site, scratch: (slide_, (site.out, *site.ins)),
)
_BESIDES = {FILL.name: FILL, SLIDE: SLIDE_KERNEL}  # what programs call that computes nothing
_BESIDE_OPS = {
    name: OpDef(name, lambda attrs, dtypes: "", lambda attrs: np.zeros(())) for name in _BESIDES
}


@dataclass(frozen=True)
class ProfiledCall:
    """One call of a program, as records know it.

    Fields:
        kernel: the one that runs; `FILL` puts known values in place, `SLIDE_KERNEL` moves a window.
        site: where, in plain numbers at the program's origin.
    """

    kernel: Kernel
    site: Site
    signature: Signature

    @property
    def key(self) -> tuple[str, str]:
        """Kernel and signature."""
        return self.kernel.name, self.signature.text


def survey(session: GraphSession, program: Program) -> tuple[ProfiledCall, ...]:
    """What each call of a program is, in order."""
    if program.origin is None:  # read from a file, or stopped on its way
        program.move_to(program.made_at)
    origin = program.origin
    assert origin is not None
    streamed = streams(session.pool.parameter_bytes)
    found = []
    for made in program.instructions:
        site = site_at(made.site or _besides_site(made, session.device), origin)
        kernel = _kernel(made, site, session.rules)
        found.append(ProfiledCall(kernel, site, Signature.of(site, streams=streamed)))
    return tuple(found)


def _kernel(made: Instruction, site: Site, rules: Rules) -> Kernel:
    """The kernel of an instruction; in bit-exact mode in the form that its tiling has there."""
    if made.kernel in _BESIDES:
        return _BESIDES[made.kernel]
    tiling = rules.tilings.get(site.call)
    if tiling is not None:
        return of_tiling(site, tiling)
    return kernel_named(made.node.op, made.kernel)


def _besides_site(made: Instruction, device: str) -> Site:
    """Where something is put or moved to, and where from."""
    out, *ins = (one for one in made.arguments if isinstance(one, View))
    what = TensorType(out.shape, out.dtype)
    call = Call(_BESIDE_OPS[made.kernel], {}, (what,) * len(ins), what)
    return Site(call, made.box, (made.box,) * len(ins), out, tuple(ins), device)


# --- the clock ------------------------------------------------------------------------------------


def clocked(
    calls: Calls, device: str = "cpu", clock: Callable[[], int] = time.perf_counter_ns
) -> list[int]:
    """Run a program's calls once; nanoseconds of each, the clock's own time taken off.

    Args:
        clock: or `time.thread_time_ns`, which other processes do not stretch.
    """
    if device.startswith("cuda"):
        return _clocked_on_gpu(calls)
    marks = [clock()]
    mark = marks.append
    for function, arguments in calls:
        function(*arguments)
        mark(clock())
    own, step = clock_ns(clock), step_ns(clock) if any(map(is_part, calls)) else 0
    times = (stop - start - own for start, stop in pairwise(marks))
    return [
        max(took - step if is_part(call) else took, 1)
        for took, call in zip(times, calls, strict=True)
    ]


def _clocked_on_gpu(calls: Calls) -> list[int]:
    """By events on the stream; a call that the processor is late with includes the wait."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for (function, arguments), mark in zip(calls, marks[1:], strict=True):
        function(*arguments)
        mark.record()
    torch.cuda.synchronize()
    return [max(round(a.elapsed_time(b) * 1e6), 1) for a, b in pairwise(marks)]


@cache
def step_ns(clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """What executing nothing of a chain takes: a program has that once a chain."""
    nothing, took = LoopChain(()), []
    nothing.close()
    for _ in range(1000):
        began = clock()
        nothing.execute(0, 0)
        took.append(clock() - began)
    return max(round(statistics.median(took)) - clock_ns(clock), 0)


@cache
def clock_ns(clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """What reading the clock adds to a call: short calls in a loop, with and without.

    The calls do a little work, which the processor overlaps with what follows unless it has to
    read a clock in between.
    """
    work: Calls = [(fill_, (torch.zeros(64), 0.0)) for _ in range(200)]
    extra = []
    for _ in range(100):
        began = clock()
        for function, arguments in work:
            function(*arguments)
        bare = clock() - began
        marks = [clock()]
        mark = marks.append
        for function, arguments in work:
            function(*arguments)
            mark(clock())
        extra.append((marks[-1] - marks[0] - bare) / len(work))
    return max(round(statistics.median(extra)), 0)


# --- profiling ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """What a profile did.

    Fields:
        measured: keys (kernel, signature) measured now, with the number of samples.
        known: keys that the database had already.
        failed: keys of kernels that raised.
        median_ns: by key, of what is measured and known.
        programs: how many programs were run.
        stopped: "" if everything is measured; else why not: "time", "interrupt".
        took_s: seconds.
    """

    measured: Mapping[tuple[str, str], int] = field(default_factory=dict)
    known: frozenset[tuple[str, str]] = frozenset()
    failed: frozenset[tuple[str, str]] = frozenset()
    median_ns: Mapping[tuple[str, str], float] = field(default_factory=dict)
    programs: int = 0
    stopped: str = ""
    took_s: float = 0.0

    def __str__(self) -> str:
        parts = [f"{len(self.measured)} measured in {counted(self.programs, 'program')}"]
        parts += [f"{len(self.known)} known before"] if self.known else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"stopped by {self.stopped}"] if self.stopped else []
        return f"{', '.join(parts)}, {self.took_s:.1f} s"

    __repr__ = __str__


@plainly
def profile(
    session: GraphSession,
    records: Records,
    seconds: float | None = None,
    progress: Progress = silent,
    *,
    alternatives: bool = True,
    programs: Sequence[tuple[int, Program]] | None = None,
) -> Profile:
    """Measure the kernels of every program that a session has, and write them down.

    Call `session.prepare()` first to have programs for all planned classes. The session's state is
    as before afterwards. In the end the tilings of bit-exact mode are found and written down, too,
    unless it is for some programs alone.

    Args:
        records: what is in there for this machine and these sources is not measured again.
        seconds: stop after about so long; what is measured by then is kept, as at Ctrl-C.
        progress: is told (programs done, programs, what is going on).
        alternatives: measure other kernels that take the same sites, too.
        programs: these alone, each with the number of the state that it begins in.

    Raises RecordsError where the database fails.
    """
    work = _Work(session, records, seconds, alternatives)
    try:
        with session.arena.lock, _arena_kept(session.memory):
            if not session.standing.held:  # what is looked up by inputs that nobody gave
                session.memory.arena.zero_()
            every = [(state, program) for state, _, program in session.programs]
            work.run(progress, every if programs is None else programs)
            if programs is None:
                work.find_tilings(progress)
    except KeyboardInterrupt:
        work.stopped = "interrupt"
    return work.profile()


class _Work:
    """One profile under way."""

    def __init__(
        self, session: GraphSession, records: Records, seconds: float | None, alternatives: bool
    ) -> None:
        self.session, self.records, self.alternatives = session, records, alternatives
        self.machine = Machine.here(session.device)
        self.began = time.monotonic()
        self.end = self.began + (seconds if seconds is not None else 1e9)
        found = records.all(self.machine.fingerprint)
        self.there = {(r.kernel, r.source_hash, r.signature) for r in found}
        self.measured: Counter[tuple[str, str]] = Counter()
        self.known: set[tuple[str, str]] = set()
        self.failed: set[tuple[str, str]] = set()
        self.median_ns: dict[tuple[str, str], float] = {}
        self._time(found)
        self.errors: dict[tuple[str, Call], float | None] = {}
        self.programs = 0
        self.stopped = ""

    def profile(self) -> Profile:
        took = time.monotonic() - self.began
        known, failed = frozenset(self.known), frozenset(self.failed)
        told = self.known.union(self.measured)
        times = {key: ns for key, ns in self.median_ns.items() if key in told}
        return Profile(dict(self.measured), known, failed, times, self.programs, self.stopped, took)

    def _time(self, records: Iterable[Record]) -> None:
        """Remember what calls took."""
        timed = (one for one in records if one.samples_ns)
        self.median_ns.update({(one.kernel, one.signature): one.median_ns for one in timed})

    def run(self, progress: Progress, programs: Iterable[tuple[int, Program]]) -> None:
        """Every program, those that are modelled fastest first."""
        session = self.session
        found = [(survey(session, program), program) for _, program in programs]
        found.sort(key=lambda item: sum(modelled_ns(p.site, p.kernel) for p in item[0]))
        for done, (places, program) in enumerate(found):
            progress(done, len(found), f"{counted(len(places), 'call')}")
            runs = _Runs(session, program, places)
            self._measure(runs, {i: p for i, p in enumerate(places) if self._is_new(p)})
            for some in self._alternatives(places) if self.alternatives else ():
                self._measure(runs, some)
            if self.stopped:
                return
        progress(len(found), len(found), "done")

    def _is_new(self, place: ProfiledCall) -> bool:
        if not self.session.costs.is_timed_here(place.site):
            return False
        if (place.kernel.name, source_hash(place.kernel), place.signature.text) not in self.there:
            return True
        if place.key not in self.measured and place.key not in self.failed:
            self.known.add(place.key)
        return False

    def _alternatives(self, places: Sequence[ProfiledCall]) -> Iterator[dict[int, ProfiledCall]]:
        """Other kernels for the calls of a program, one for each call at a time."""
        others = {i: self._others(place) for i, place in enumerate(places)}
        while any(others.values()):
            yield {i: rest.pop(0) for i, rest in others.items() if rest}

    def _others(self, place: ProfiledCall) -> list[ProfiledCall]:
        if place.kernel.name in _BESIDES:
            return []
        limit = WITHIN * modelled_ns(place.site, place.kernel)
        found = [
            replace(place, kernel=kernel)
            for kernel in candidates(place.site)
            if kernel.name != place.kernel.name and 0 < kernel.cost_ns(place.site) < SENTINEL_NS
        ]
        return [p for p in found if p.kernel.cost_ns(p.site) <= limit and self._is_new(p)]

    def _measure(self, runs: _Runs, places: Mapping[int, ProfiledCall]) -> None:
        """Repeat a program with these kernels in their places, and write the samples down."""
        if not places or self.stopped:
            return
        if time.monotonic() >= self.end:
            self.stopped = "time"
            return
        self.programs += 1
        samples, failures = runs.samples(places, self.end)
        rows = [self._record(place, times, size_bytes) for place, times, size_bytes in samples]
        rows += [self._record(place, (), 0, failure) for place, failure in failures]
        self.records.add(rows, self.machine)
        self._time(rows)
        self.there |= {(r.kernel, r.source_hash, r.signature) for r in rows}
        self.measured.update({(r.kernel, r.signature): len(r.samples_ns) for r in rows})
        self.failed |= {(r.kernel, r.signature) for r in rows if r.failure is not None}

    def _record(
        self,
        place: ProfiledCall,
        times: Sequence[int],
        workspace_bytes: int,
        failure: str | None = None,
    ) -> Record:
        kernel, signature = place.kernel, place.signature
        error = None if failure or kernel.name in _BESIDES else self._error(place)
        return Record(
            kernel.name,
            source_hash(kernel),
            signature.text,
            self.machine.fingerprint,
            thinned(times),
            failure,
            error,
            workspace_bytes,
            signature.flops,
            signature.size_bytes,
            modelled_ns(place.site, kernel),
        )

    def _error(self, place: ProfiledCall) -> float | None:
        key = (place.kernel.name, place.site.call)
        if key not in self.errors:
            call, device = place.site.call, self.session.device
            self.errors[key] = relative_error(place.kernel, call, device)
        return self.errors[key]

    def find_tilings(self, progress: Progress) -> None:
        """What bit-exact sessions of this graph would find out; an op without a tiling is left."""
        session = self.session
        finder = Finder(session.scheduled, session.pool.buffers, session.device, self.records)
        for done, call in enumerate(finder.calls):
            if time.monotonic() >= self.end:
                self.stopped = "time"
            if self.stopped:
                return
            progress(done, len(finder.calls), f"equal bits of {call.op.name}")
            with suppress(ExactnessError):
                finder.tiling(call)


class _Runs:
    """Repeats one program, with other kernels in some places if asked."""

    def __init__(
        self, session: GraphSession, program: Program, places: Sequence[ProfiledCall]
    ) -> None:
        self.device = session.device
        self.program = program
        self.places = places
        self.memory = session.memory
        self._scrubs = _reads_slices(program, self.memory)
        _scrub(self.memory)

    def samples(
        self, places: Mapping[int, ProfiledCall], end: float
    ) -> tuple[list[tuple[ProfiledCall, list[int], int]], list[tuple[ProfiledCall, str]]]:
        """Samples and workspace bytes of each place's signature; what failed, with its message.

        Args:
            places: by index of the call.
            end: when to stop at the latest, by `time.monotonic`; after one round.
        """
        calls, failures = self.program.each, []
        for i, place in places.items():
            try:
                calls[i] = self._call(i, place)
            except Exception as error:  # whatever a kernel may raise is a finding about it
                failures.append((place, failure_of(error)))
        failed = {place.key for place, _ in failures}
        kept = {i: place for i, place in places.items() if place.key not in failed}
        times = self._times(calls, kept, end)
        first = {place.key: (i, place) for i, place in reversed(kept.items())}
        found = [
            (place, times[key], workspace_bytes(place, calls[i]))
            for key, (i, place) in first.items()
        ]
        return found, failures

    def _call(self, i: int, place: ProfiledCall) -> tuple[Function, tuple[Any, ...]]:
        """The program's own call, or another kernel in its place, tried once."""
        if place.kernel is self.places[i].kernel:
            return self.program.each[i]
        other = bound(place.kernel, place.site, self.memory.buffers, self.device)
        function, arguments = apart(other)
        function(*arguments)
        return function, arguments

    def _times(
        self, calls: Calls, places: Mapping[int, ProfiledCall], end: float
    ) -> dict[tuple[str, str], list[int]]:
        """Samples by key.

        Where all work is on this thread, long calls are timed by the processor's clock: that
        leaves out what other processes take in between.
        """
        if not places:
            return {}
        times = self._by(time.perf_counter_ns, calls, places, end)
        long = {key for key, some in times.items() if statistics.median(some) > LONG_NS}
        if computes_alone(self.device) and long:
            own = self._by(time.thread_time_ns, calls, places, end)
            times |= {key: own[key] for key in long}
        return times

    def _by(
        self,
        clock: Callable[[], int],
        calls: Calls,
        places: Mapping[int, ProfiledCall],
        end: float,
    ) -> dict[tuple[str, str], list[int]]:
        times: dict[tuple[str, str], list[int]] = {place.key: [] for place in places.values()}
        for row in self._rounds(clock, calls, end):
            for i, place in places.items():
                times[place.key].append(row[i])
        return times

    def _rounds(self, clock: Callable[[], int], calls: Calls, end: float) -> Iterator[list[int]]:
        """Times of all calls, round after round, until there are enough."""
        began = time.monotonic()
        for i in range(WARM_ROUNDS + MOST_ROUNDS):
            if self._scrubs:
                _scrub(self.memory)
            row = clocked(calls, self.device, clock)
            now = time.monotonic()
            if i == WARM_ROUNDS - 1:
                began = now
            if i >= WARM_ROUNDS:
                yield row
            enough = i + 1 >= WARM_ROUNDS + LEAST_ROUNDS and now - began > PROGRAM_S
            if enough or (i >= WARM_ROUNDS and now > end):
                return


def _reads_slices(program: Program, memory: Memory) -> bool:
    """Whether a program reads cached values that it may overwrite later on.

    Run a second time it would read something else there: numbers of another dtype, even.
    """
    storage = memory.propagator.storage
    lasting = {node for node in storage.retained if not storage.overlaps.get(node)}
    return any(node not in lasting for step in program.steps for node in step.reused)


def _scrub(memory: Memory) -> None:
    """Zeros for all but inputs and states: right for any dtype, and never denormal."""
    kept = [(memory.place(node), memory.place(node).clone()) for node in memory.scheduled.kept]
    memory.arena.zero_()
    for place, values in kept:
        place.copy_(values)


@contextmanager
def _arena_kept(memory: Memory) -> Iterator[None]:
    """Put the arena's bytes back afterwards."""
    before = memory.arena.clone()
    try:
        yield
    finally:
        memory.arena.copy_(before)


def workspace_bytes(place: ProfiledCall, call: tuple[Function, tuple[Any, ...]]) -> int:
    """Scratch memory that a kernel was given, and what libraries allocate in one call of it."""
    from torch.autograd import profiler_legacy

    function, arguments = call
    with profiler_legacy.profile(profile_memory=True) as watched:
        function(*arguments)
    taken: list[int] = [
        max(event.self_cpu_memory_usage, event.self_device_memory_usage)
        for event in watched.function_events
    ]
    scratch = sum(view.size_bytes for view in scratch_views(place.kernel.scratch(place.site)))
    return scratch + sum(size for size in taken if size > 0)


# --- predicting -----------------------------------------------------------------------------------


def predict(places: Iterable[ProfiledCall], model: CostModel) -> Estimate:
    """What one run of a program's calls takes: the sum over its places (see `survey`)."""
    return total([model.of_site(place.site, place.kernel) for place in places])


def expect(program: Program, model: CostModel) -> Estimate:
    """The same as a planner sees it: from what the program's steps compute, no layouts known."""
    return total(
        model.estimate(node.call, box.at(program.origin or ()))
        for step in program.steps
        for node, region in step.compute.items()
        for box in region
    )
