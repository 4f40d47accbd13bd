"""Kernels tried while runs go on: what was not timed before a plan is found out where it runs.

    a program that ran a few times ─→ its heavy calls, of whose kernels too little is known
    ─→ one call of one run is another kernel's, and timed ─→ records
    ─→ from then on those calls are the quickest one's

The call that is tried computes what its run needs. So nothing is done twice, results are right to
the rounding of another kernel, and caches are as a run finds them. What it takes longer than usual,
and looking for it, call by call, is bounded by a hundredth of what runs take, never more than that
of a hundred runs at once. Where a call that was timed takes much longer, or much less, its kernels
are timed again: others use the machine, or its clock is another one.

The source of the method is the incremental autotuning of cuTENSOR; what is different here is that
the time it may take is an amount, and that what it finds is a record.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from tgbench.base.coords import Guard, record, standing
from tgbench.base.errors import KernelError
from tgbench.base.memo import Latest
from tgbench.base.switches import STEPS, tell
from tgbench.base.words import counted
from tgbench.costs.model import Estimate
from tgbench.kernels.binding import once
from tgbench.kernels.helping import helping
from tgbench.kernels.registry import Kernel, Prepared, Site, is_by_team, kernel_named
from tgbench.kernels.views import Bound
from tgbench.kernels.waiting import waiting
from tgbench.programs.calibrate import (
    LEAST_NS,
    Calibrator,
    Score,
    Task,
    clock_of,
    finish,
    heavy,
    rivals,
)
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Instruction, Program, called, site_at
from tgbench.runs.pausing import Paused, Pausing, at_once
from tgbench.session.memory import Memory
from tgbench.session.regaining import Regainer

SHARE = 0.01  # of what runs take: what trying may take longer
AT_ONCE = 100  # runs whose share may be spent at a time
WARM = 4  # runs of a program before anything is tried
LOOK_NS = 400_000.0  # a call, to find out what is not known of it, until one was looked at
SEEN = 64  # runs after which a call that was timed is timed again
SAMPLES = 5  # of it
DRIFT = 1.5  # times as long as it took, or as short: something else is going on
UNSEEN = -1  # the version of a program that is to be looked at
MOST_KNOWN = 1000  # kinds of calls of which something is remembered


class Course(Score):
    """The kernels of equal calls, taking turns from run to run, in whatever program runs.

    Fields:
        prepared: what kernels keep of weights, until it is over.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.prepared: dict[Prepared, Any] = {}
        self._warm: set[str] = set()

    def note(self, name: str, took_ns: int) -> None:
        """A kernel took so long; the first time says nothing, and a clock may stand still."""
        self.spent_ns += max(took_ns, 0)
        if name in self._warm and took_ns > 0:
            self.times[name].append(took_ns)
            self.drop_losers()
        self._warm.add(name)

    @property
    def next(self) -> str:
        """The kernel that was timed least."""
        return min(self.racing, key=lambda name: (name in self._warm, len(self.times[name])))


class Watch(Course):
    """One kernel alone: whether it takes what it took when it was timed.

    Fields:
        expected_ns: what that was.
    """

    def __init__(self, task: Task, expected_ns: float) -> None:
        super().__init__(task)
        self.expected_ns = expected_ns

    @property
    def is_over(self) -> bool:
        return len(self.times[self.task.kernels[0].name]) >= SAMPLES

    @property
    def ratio(self) -> float:
        """Of what it takes to what it took."""
        return statistics.median(self.times[self.task.kernels[0].name]) / self.expected_ns


class CallGroup(NamedTuple):
    """Where a course is held: equal calls of a program, and the kernel that computes them."""

    course: Course
    indices: Sequence[int]
    own: str


@dataclass
class Tryout:
    """What is tried in one program.

    Fields:
        version: how much was known when it was looked at.
        most: the largest places where it may be about to run.
        look: while it is looked at.
        looked_ns: how long that took so far.
        groups: of courses that are not over.
        watched: a heavy call that was timed.
        needs_ns: what has to be left for the next call of the first course.
    """

    version: int
    most: Sequence[int]
    look: Paused[None] | None = None
    looked_ns: int = 0
    groups: list[CallGroup] = field(default_factory=list)
    watched: CallGroup | None = None
    needs_ns: float = 0.0


class TriedCall(NamedTuple):
    """What one run tries: a call by the next kernel of a course."""

    group: CallGroup
    name: str
    call: Bound


class Tryer:
    """Tries kernels in the programs of one session.

    Args:
        calibrator: knows what is known, and keeps what is found.
        clock: of what calls take, in nanoseconds.

    Fields:
        left_ns: how much longer runs may take.
        tried, settled, exchanged: calls of runs that were another kernel's; of how many kinds of
            calls the quickest kernel is known by that; calls of programs that have another kernel.
        drift: of calls that take other times than they did, by signature: how many times as long.
        regainer: measures what threads gain.
    """

    def __init__(self, calibrator: Calibrator, clock: Callable[[], int] | None = None) -> None:
        self.calibrator = calibrator
        self.clock = clock_of(calibrator.device) if clock is None else clock
        self.left_ns = 0.0
        self.tried = self.settled = self.exchanged = self.version = 0
        self.drift = Latest[str, float](MOST_KNOWN)
        self.regainer = Regainer()
        self._look_ns = LOOK_NS
        # A course keeps weights as its kernels want them: it goes with the programs that have it.
        self._courses = WeakValueDictionary[str, Course]()
        # Kernels that a plan has no scratch memory for.
        self._unfit = Latest[tuple[str, str], None](MOST_KNOWN)

    def __str__(self) -> str:
        known = f"{counted(self.settled, 'call')} timed in runs, {self.exchanged} exchanged"
        drift = [f"{text} takes {ratio:.2g} × what was timed" for text, ratio in self.drift.items()]
        alone = [] if helping().helps else ["helpers rest: others compute, and runs take less so"]
        return "; ".join([known, *drift, *alone])

    # --- a run -----------------------------------------------------------------------------------

    def before(self, program: Program, memory: Memory, most: Sequence[int]) -> None:
        """A program is about to run where it stands, at any place of those up to `most`: see what
        is to be tried in it, and what was found.
        """
        use = program.use
        share_ns = SHARE * use.time_ns
        left_ns, most_ns = self.left_ns + share_ns, AT_ONCE * share_ns
        self.left_ns = left_ns = left_ns if left_ns < most_ns else most_ns
        if use.ran < WARM or program.origin is None:
            return
        if self.regainer.is_stale(program, memory):
            self._exchange_all(program, memory, most)
            return
        tryout = program.tryout
        if tryout is None or (tryout.version != self.version and _is_idle(tryout)):
            tryout = program.tryout = Tryout(self.version, most)
            tryout.look = Paused(self._looking(program, tryout, memory))
        if tryout.look is not None:
            tryout.most = most
            if left_ns >= self._look_ns or left_ns == most_ns:  # or all that is saved up
                self._look(tryout.look, tryout, program)
        elif not tryout.groups:
            if tryout.watched is not None and program.use.ran % SEEN == 0:
                tryout.groups.append(tryout.watched)
        elif tryout.groups[0].course.is_over:
            self._paid(self._end, program, tryout, memory, most)

    def turn(self, program: Program, memory: Memory) -> TriedCall | None:
        """What a run tries of what is open in a program's `tryout`; None nearly always."""
        tryout = program.tryout
        if self.left_ns < tryout.needs_ns:
            return None
        tryout.needs_ns = 0.0
        if tryout.groups[0].course.is_over:
            return None
        return self._affordable(program, tryout, memory)

    def carry_out(self, calls: Sequence[Bound], turn: TriedCall) -> None:
        """A run's calls, one of them tried."""
        (course, (index, *_), own), name, (function, arguments) = turn
        for before, given in calls[:index]:
            before(*given)
        finish(self.calibrator.device)
        began_ns = self.clock()
        try:
            function(*arguments)
        except Exception as error:
            if name == own:
                raise
            course.fail(name, error)
            usual, given = calls[index]
            usual(*given)
        else:
            finish(self.calibrator.device)
            self._took(turn, self.clock() - began_ns)
        for after, given in calls[index + 1 :]:
            after(*given)

    def _took(self, turn: TriedCall, took_ns: int) -> None:
        turn.group.course.note(turn.name, took_ns)
        if turn.name != turn.group.own:
            self.tried += 1
            self.left_ns -= max(took_ns - self._usual_ns(turn.group), 0.0)

    def _paid(self, work: Callable[..., Any], *given: Any) -> Any:
        """Do something, and pay for it."""
        began_ns = self.clock()
        try:
            return work(*given)
        finally:
            self.left_ns -= self.clock() - began_ns

    # --- what is tried ---------------------------------------------------------------------------

    def _affordable(self, program: Program, tryout: Tryout, memory: Memory) -> TriedCall | None:
        """The next kernel's call, if what it may take longer can be spent."""
        group = tryout.groups[0]
        course, name = group.course, group.course.next
        if name == group.own:
            return TriedCall(group, name, program.each[group.indices[0]])
        kernel = next(one for one in course.task.kernels if one.name == name)
        expected_ns = self.calibrator.costs.of_site(course.task.sites[0], kernel).time_ns
        needs_ns = 2 * expected_ns - self._usual_ns(group)
        if needs_ns > self.left_ns:
            tryout.needs_ns = needs_ns
            return None
        call = self._paid(self._bound, program, group, name, memory)
        return None if call is None else TriedCall(group, name, call)

    def _usual_ns(self, group: CallGroup) -> float:
        """What the call takes by its own kernel."""
        times = group.course.times.get(group.own)
        if times:
            return statistics.median(times)
        site = group.course.task.sites[0]
        return self.calibrator.costs.of_site(
            site, kernel_named(site.call.op.name, group.own)
        ).time_ns

    def _bound(self, program: Program, group: CallGroup, name: str, memory: Memory) -> Bound | None:
        """The call by another kernel; one that does not suit is out of it."""
        assert program.origin is not None
        course, made = group.course, program.instructions[group.indices[0]]
        try:
            with record(program.origin):
                other = memory.specialiser.lowerer.by(made, name)
            prepared = once(course.prepared, memory.buffers)
            return called(other, memory.buffers, program.origin, prepared)
        except (DoesNotFit, KernelError):
            self._unfit[course.task.signature, name] = None
            course.leave(name)
        except Exception as error:
            course.fail(name, error)
        return None

    def _look(self, look: Paused[None], tryout: Tryout, program: Program) -> None:
        """Look at some more calls of a program, as far as what is left goes."""
        began_ns = self.clock()
        until_ns = began_ns + self.left_ns
        try:
            if look.go_on(lambda: self.clock() >= until_ns):
                tryout.look = None
        except BaseException:
            program.tryout = None  # what was stopped cannot go on
            raise
        finally:
            took_ns = self.clock() - began_ns
            self.left_ns -= took_ns
            tryout.looked_ns += took_ns
        if tryout.look is None:
            self._look_ns = tryout.looked_ns / max(len(program.instructions), 1)

    def _looking(self, program: Program, tryout: Tryout, memory: Memory) -> Pausing[None]:
        """Find the heavy calls of a program: those that another kernel computes quicker, as is
        known by now; those of which too little is known; and one that was timed.
        """
        groups, watched = list[CallGroup](), None
        found = yield from self._weighing(program)
        indices = [i for _, those in found for i in those]
        yield from self._exchanging(program, indices, memory, lambda: tryout.most)
        for task, indices in found:
            yield
            own = program.instructions[indices[0]].kernel
            raced = Task(task.signature, task.sites, self._rivals(task))
            if self._is_open(raced):
                groups.append(CallGroup(self._course(raced), indices, own))
            elif watched is None:
                watch = self._watch(task, own)
                watched = None if watch is None else CallGroup(watch, indices, own)
        tryout.groups, tryout.watched = groups, watched

    def _rivals(self, task: Task) -> tuple[Kernel, ...]:
        """The kernels that may be the quickest at a call."""
        site, costs = task.sites[0], self.calibrator.costs
        near = rivals(site, costs, costs.suiting(site))
        return tuple([one for one in near if (task.signature, one.name) not in self._unfit])

    def _is_open(self, task: Task) -> bool:
        """Whether too little is known of a call, and it does not write over what it reads."""
        costs, site = self.calibrator.costs, task.sites[0]
        least = 1 if site.posts else 2  # one call after the other is a choice as well
        if len(task.kernels) < least or any(site.out in one.ins for one in (site, *site.posts)):
            return False
        return not costs.are_timed(site, task.kernels) or self._is_doubtful(task)

    def _is_doubtful(self, task: Task) -> bool:
        """Whether a call was timed while others computed, and they do not any more."""
        return task.signature in self.calibrator.doubtful and _is_quiet()

    def _course(self, task: Task) -> Course:
        """The one of all programs that have such calls."""
        return self._courses.setdefault(task.signature, Course(task))

    def _watch(self, task: Task, own: str) -> Watch | None:
        """Of calls that were timed."""
        kernel = kernel_named(task.sites[0].call.op.name, own)
        found = self.calibrator.costs.of_site(task.sites[0], kernel)
        alone = Task(task.signature, task.sites, (kernel,))
        return Watch(alone, found.time_ns) if found.source == "measured" else None

    def _weighing(self, program: Program) -> Pausing[list[tuple[Task, list[int]]]]:
        """Equal calls by one kernel that make up nearly all of a program, and which they are; the
        heaviest first. Not those of a team: it computes a whole program, or nothing.
        """
        costs, origin = self.calibrator.costs, program.origin or ()
        alike: dict[tuple[str, str], list[int]] = {}
        sites: dict[tuple[str, str], Site] = {}
        once: dict[tuple[str, str], Estimate] = {}
        with standing(origin):
            for i, made in enumerate(program.instructions):
                site = made.site
                if site is None or is_by_team(site, made.kernel) or not costs.is_timed_here(site):
                    continue
                key = costs.signature(site).text, made.kernel
                alike.setdefault(key, []).append(i)
                if key not in sites:
                    sites[key] = site
                    once[key] = costs.of_site(site, kernel_named(site.call.op.name, made.kernel))
                    yield
        counts = {key: len(indices) for key, indices in alike.items()}
        return [
            (Task(key[0], [site_at(sites[key], origin)]), alike[key])
            for key in heavy(once, counts, LEAST_NS)
        ]

    # --- what was found --------------------------------------------------------------------------

    def _end(self, program: Program, tryout: Tryout, memory: Memory, most: Sequence[int]) -> None:
        """A course is over: what it found is kept, and calls have the quickest kernel."""
        group, tryout.needs_ns = tryout.groups.pop(0), 0.0
        if isinstance(group.course, Watch):
            self._compare(tryout, group, group.course)
            return
        if self._courses.pop(group.course.task.signature, None) is group.course:
            self.calibrator.found([group.course], not _is_quiet())
            group.course.prepared.clear()
            self.settled += 1
            self.version += 1
            self.drift.pop(group.course.task.signature, None)
            memory.specialiser.lowerer.choose_anew()
        self._exchange(program, group.indices, memory, most)

    def _compare(self, tryout: Tryout, group: CallGroup, watch: Watch) -> None:
        """Whether a call takes what it took; its kernels are timed again if it does not."""
        text, ratio = watch.task.signature, watch.ratio
        tryout.watched = group._replace(course=Watch(watch.task, watch.expected_ns))
        if 1 / DRIFT <= ratio <= DRIFT:
            self.drift.pop(text, None)
            if self.calibrator.doubtful and _is_quiet():
                tryout.version = UNSEEN  # any of its calls may be in doubt: it is looked at again
            return
        self.drift[text] = ratio
        tell(STEPS, lambda: f"{watch.task} takes {ratio:.2g} × what was timed: timed again")
        raced = Task(text, watch.task.sites, self._rivals(watch.task))
        if len(raced.kernels) > 1:
            tryout.groups.append(group._replace(course=self._course(raced)))

    def _exchange(
        self, program: Program, indices: Iterable[int], memory: Memory, most: Sequence[int]
    ) -> None:
        """Have some calls computed by the kernels that would be chosen now, where these suit
        wherever the program is right: it may be about to run at any such place. All, where threads
        may meet: whether they do is decided for all.
        """
        at_once(self._exchanging(program, indices, memory, lambda: most))

    def _exchanging(
        self,
        program: Program,
        indices: Iterable[int],
        memory: Memory,
        most: Callable[[], Sequence[int]],
    ) -> Pausing[None]:
        """The same; where it may be about to run is asked in the end."""
        assert program.origin is not None
        lowerer, origin = memory.specialiser.lowerer, program.origin
        if lowerer.teams:
            self._exchange_all(program, memory, most())
            return
        others = dict[int, tuple[Instruction, set[Guard]]]()
        for i in indices:
            made = program.instructions[i]
            with record(origin) as guards:
                other = lowerer.again(made)
            if other.kernel != made.kernel:
                others[i] = other, guards
            yield
        suit = {i: one for i, one in others.items() if _hold(one[1], program, most())}
        found = set[Guard]().union(*(guards for _, guards in suit.values()))
        self._put(program, {i: other for i, (other, _) in suit.items()}, found, memory)

    def _exchange_all(self, program: Program, memory: Memory, most: Sequence[int]) -> None:
        """The same of all calls together: whether a team computes them is decided for all."""
        assert program.origin is not None
        with record(program.origin) as guards:
            others = memory.specialiser.lowerer.all_again(program.instructions)
        pairs = enumerate(zip(others, program.instructions, strict=True))
        changed = {i: other for i, (other, made) in pairs if other.kernel != made.kernel}
        if _hold(guards, program, most):
            self._put(program, changed, guards, memory)

    def _put(
        self,
        program: Program,
        changed: Mapping[int, Instruction],
        guards: Iterable[Guard],
        memory: Memory,
    ) -> None:
        """Other calls in place of some."""
        if changed:
            self.exchanged += len(changed)
            program.exchange(changed, guards, memory.bind)
            tell(STEPS, lambda: f"{counted(len(changed), 'call')} by other kernels from now on")


def _is_idle(tryout: Tryout) -> bool:
    """Whether a program was looked at, and nothing is tried in it."""
    return tryout.look is None and not tryout.groups


def _is_quiet() -> bool:
    """Whether no others are known to compute."""
    return not waiting().is_asleep


def _hold(guards: Iterable[Guard], program: Program, most: Sequence[int]) -> bool:
    """Whether guards say no more than a program's own, at all places up to `most`."""
    return all(one in program.guards or program.domain.implies(one, most) for one in guards)
