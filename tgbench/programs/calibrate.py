"""Kernels timed before a plan, where nothing is known of the calls that carry its runs.

    sites of the planned runs ─→ heaviest signatures ─→ what takes them, in turns ─→ records

Only what counts is timed: the calls that make up all but a fiftieth of a run's modelled time, and
of each the kernels that are modelled anywhere near the best, be it a single one. Alternatives take
turns, and turns go over the weights of all equal layers: one matrix used again and again would lie
in the cache, where a run does not find it. What is clearly slower than the best gets one turn and
no more. What one thread computes is timed by that thread's own clock, which stands still while
others have the processor.

The source of the method is autotuning as cuTENSOR and cuDNN do it; what is different here is that
the weights timed are those that run.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from tgbench.base.errors import RecordsError, RecordsWarning
from tgbench.base.machine import (
    Machine,
    cache_bytes,
    computes_alone,
    give_back_freed,
    last_cache_bytes,
    usable_cores,
)
from tgbench.base.memo import Latest
from tgbench.base.regions import Box
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.base.switches import STEPS, tell, telling
from tgbench.base.words import counted
from tgbench.costs.model import SENTINEL_NS, CostModel, Estimate, modelled_ns
from tgbench.costs.records import Record, Records, failure_of
from tgbench.costs.signature import source_hash
from tgbench.costs.users_records import asked_users
from tgbench.graph.graph import Node
from tgbench.graph.op_table import FLOATS
from tgbench.kernels.apart import apart
from tgbench.kernels.binding import bound
from tgbench.kernels.numba.chain import in_a_row
from tgbench.kernels.registry import (
    KERNELS,
    TEAM,
    Kernel,
    Prepared,
    Site,
    View,
    by_team,
    known_as,
)
from tgbench.kernels.views import Bound
from tgbench.kernels.waiting import QUIET_S, Contention, waiting
from tgbench.programs.choices import Called
from tgbench.programs.pool import Pool
from tgbench.programs.sites import canonical

LEAST_NS = 20_000.0  # shorter calls are not worth a plan that waits, nor a clock in a run
ROW_NS, MOST_IN_A_ROW = 200_000.0, 64  # what calls take that are timed together, and how many
REST = 0.02  # of a run: lighter calls are not timed
WITHIN = 8.0  # kernels modelled at most so many times as slow as the best are timed
LOSER = 1.5  # times the best: gets no second turn
DISTURBED = 2.0  # times the least of a kernel, by the wall's clock: others had a processor
SECONDS = 3.0  # of turns before one plan; heaviest first, and the rest before the next one
MOST_SECONDS = 5.0  # of a plan's rounds of that, all that they prepare included
MOST_BYTES = 512 << 20  # of weights that are prepared for kernels which take turns
WAIT_S = 1.0  # for another process that writes into the user's own database: a run waits for it
LONG_S = 0.2  # of calls of one signature: then the least turns are enough
LEAST_TURNS, MOST_TURNS = 3, 9
MOST_ROUNDS = 3
MOST_EQUAL = 24  # of equal layers that turns go over
MOST_DOUBTFUL = 1_000
RAMP = 1 << 16  # different numbers that operands are made of
Key = TypeVar("Key")
Weight: TypeAlias = "tuple[Any, str]"  # a buffer, and as what dtype it is seen
Progress: TypeAlias = "Callable[[str], None]"


@dataclass
class Task:
    """Equal calls, and how much of a run they are.

    Fields:
        sites: one for each place, in schedule order; only their weights differ.
        kernels: those worth timing, the modelled fastest first.
        expected_ns: what one call is expected to take.
    """

    signature: str
    sites: list[Site] = field(default_factory=list)
    kernels: tuple[Kernel, ...] = ()
    expected_ns: float = LEAST_NS

    @property
    def in_a_row(self) -> int:
        """How many calls are timed together: a short one takes less than reading a clock does, and
        the one before it leaves its code and operands in the cache, as those around it do in a run.
        """
        return min(max(round(ROW_NS / max(self.expected_ns, 1.0)), 1), MOST_IN_A_ROW)

    @property
    def is_by_team(self) -> bool:
        """Whether its kernels are a team's."""
        return any(kernel.threads == TEAM for kernel in self.kernels)

    def __str__(self) -> str:
        return self.signature.partition(" = ")[0]


class Calibrator:
    """Times kernels for one session, and teaches its cost model.

    Args:
        records: where times are looked up and kept; None for the user's own database, which is
            asked about an op when there are calls of it. Where that cannot be written, and while
            other programs have the processors, what is timed serves this session alone.
        progress: told what is going on; None for a bar on a terminal.

    Fields:
        doubtful: signatures that were timed while others had the processors.
    """

    def __init__(
        self,
        pool: Pool,
        costs: CostModel,
        records: Records | None,
        device: str,
        progress: Progress | None,
    ) -> None:
        self.pool, self.costs, self.records = pool, costs, records
        self.device, self.progress = device, progress
        self.doubtful = Latest[str, None](MOST_DOUBTFUL)
        self._ops: set[str] = set()  # that the user's own database was asked about
        self._tried: set[tuple[str, str]] = set()  # signatures, and kernels to leave alone there
        self._is_lost = False

    def may_learn(self, nodes: Iterable[Node]) -> bool:
        """Whether any of these is worth timing, if all of it is computed."""
        whole = ((node.call, Box.full(node.shape)) for node in nodes)
        return any(self.costs.time_ns(call, box) >= LEAST_NS for call, box in whole)

    def learn(self, runs: Sequence[Sequence[Site]]) -> int:
        """Time what is not known of the heaviest calls of some runs; returns how many were timed.

        What is timed by an interrupt is kept.
        """
        if self.records is None:
            self._look_up({site.call.op.name for sites in runs for site in sites} - self._ops)
        until, timed = time.monotonic() + MOST_SECONDS, 0
        tasks = self._untried(heaviest(runs, self.costs))
        for i in range(MOST_ROUNDS):  # what is measured tells what else is heavy
            left = until - time.monotonic() if i else SECONDS
            if not tasks or left <= 0:
                break
            timed += self._time(tasks, min(left, SECONDS), until)
            tasks = self._untried(heaviest(runs, self.costs))
        return timed

    def learn_calls(self, runs: Sequence[Sequence[Called]], seconds: float) -> int:
        """The same of calls that are planned, each by a kernel: as they lie, as what one takes with
        its operands elsewhere tells too little. Turns end after so many seconds; what is lacking
        then, or turns out to be heavy, is for the next time.
        """
        tasks = self._untried(heaviest_calls(runs, self.costs))
        return self._time(tasks, seconds, time.monotonic() + seconds) if tasks else 0

    def _untried(self, tasks: Iterable[Task]) -> list[Task]:
        """Tasks without kernels that were tried in vain."""
        for task in tasks:
            text = task.signature
            task.kernels = tuple([k for k in task.kernels if (text, k.name) not in self._tried])
        return [task for task in tasks if task.kernels]

    def _time(self, tasks: Sequence[Task], seconds: float, until: float) -> int:
        """Turns of so many seconds; none begins after some time.

        Operands and prepared weights of all kernels are many times what a plan takes: they are
        given back, not only freed.
        """
        contention = Contention()
        try:
            return sum(self._timed(lane, contention, seconds, until) for lane in by_threads(tasks))
        finally:
            give_back_freed()

    def _timed(
        self, lane: Sequence[Task], contention: Contention, seconds: float, until: float
    ) -> int:
        """The heaviest tasks first, as many at a time as there is time and memory for; of a large
        model the rest is for the next plan, and for runs meanwhile.
        """
        timed = 0
        for i, tasks in enumerate(self._at_once(lane, seconds)):
            if i and (seconds <= 0 or time.monotonic() > until):
                break
            races = list[Race]()
            try:
                seconds -= self._race(tasks, races, contention, seconds)
            finally:
                timed += len(self.found(races, contention.is_there))
                for one in races:
                    self._hold(one)
        return timed

    def _at_once(self, lane: Sequence[Task], seconds: float) -> Iterator[list[Task]]:
        """Tasks that two turns may take so long of, and whose weights are so many bytes."""
        found, takes_s, held = list[Task](), 0.0, 0
        for task in lane:
            times = (self.costs.of_site(task.sites[0], kernel).time_ns for kernel in task.kernels)
            turns_s = 2e-9 * task.in_a_row * sum(times)
            size = len(task.kernels) * _prepared_bytes(task, self.pool)
            if found and (takes_s + turns_s > seconds or held + size > MOST_BYTES):
                yield found
                found, takes_s, held = [], 0.0, 0
            found.append(task)
            takes_s, held = takes_s + turns_s, held + size
        yield found

    def found(self, scores: Sequence[Score], is_contended: bool) -> list[Record]:
        """Take what was timed into account, and keep it.

        What a team takes while others compute is nothing to go by later: nobody times it again.

        Args:
            is_contended: others had processors that threads waited for meanwhile.
        """
        fingerprint = Machine.here(self.device).fingerprint
        is_disturbed = _is_disturbed(self.device, is_contended)
        told = [one for one in scores if not (is_disturbed and one.task.is_by_team)]
        found = [record for one in told for record in self._records(one, fingerprint)]
        self.costs.learn(found)
        for one in scores:
            self._tried |= {(one.task.signature, name) for name in one.in_vain}
        for one in told:
            if is_disturbed:
                self.doubtful[one.task.signature] = None
            else:
                self.doubtful.pop(one.task.signature, None)
        if not is_disturbed:
            self._keep(found)
        return found

    def _look_up(self, ops: set[str]) -> None:
        """Find what this machine knows already of some ops."""
        self._ops |= ops
        names = [kernel.name for op in sorted(ops) for kernel in KERNELS.get(op, ())]
        fingerprint = Machine.here(self.device).fingerprint
        if names:
            self._asked(lambda records: self.costs.learn(records.of(fingerprint, names)))

    def _keep(self, found: Sequence[Record]) -> None:
        if found:
            machine = Machine.here(self.device)
            self._asked(lambda records: records.add(found, machine))

    def _asked(self, question: Callable[[Records], None]) -> None:
        """Ask the database; one that does not answer is left alone from then on."""
        if self._is_lost:
            return
        try:
            if self.records is not None:
                question(self.records)
            else:
                asked_users(question, timeout_s=WAIT_S)
        except (OSError, RecordsError) as error:
            self._is_lost = True
            warnings.warn(
                f"measured times of kernels are not kept: {error}; pass records=, or "
                "calibrate=False",
                RecordsWarning,
                stacklevel=2,
            )

    def _race(
        self, tasks: Sequence[Task], races: list[Race], contention: Contention, seconds: float
    ) -> float:
        """Let the kernels of some tasks take turns, for so long as there is time for; how long
        they did.
        """
        told = f"timing the kernels of {counted(len(tasks), 'call')}, once a machine"
        total = sum(len(task.kernels) for task in tasks) + 1 + MOST_TURNS
        first = "compiling or loading kernels"
        with tqdm(desc=first, total=total, delay=0.5, leave=False, disable=self._bar) as bar:
            for task in tasks:
                races.append(Race(task, self.pool, self.device))
                for kernel in task.kernels:
                    self._tell(f"{told}: compiling or loading {kernel.name}")
                    races[-1].bind(kernel)
                    bar.update()
            flushed = rest_of(races, self.pool) if self.costs.streams else []
            if races[0].task.is_by_team:
                time.sleep(QUIET_S)
            bar.set_description_str(told, refresh=False)
            contention.begin()
            began = time.monotonic()
            for turn in race(races, flushed):
                bar.update()
                self._tell(f"{told}: turn {turn}")
                if not turn and not computes_alone(self.device):  # threads wait as in runs to come
                    waiting().note(contention.is_there)
                    contention.begin()
                if turn and time.monotonic() > began + seconds:
                    break
            return time.monotonic() - began

    @property
    def _bar(self) -> bool | None:
        """Whether no bar is drawn; None for none where nobody is looking."""
        return None if self.progress is None else True

    def _tell(self, message: str) -> None:
        telling(self.progress)(message)

    def _records(self, one: Score, fingerprint: str) -> Iterator[Record]:
        """What a race found."""
        site = one.task.sites[0]
        signature = self.costs.signature(site)
        for kernel in one.task.kernels:
            times, failure = one.times.get(kernel.name, []), one.failures.get(kernel.name)
            if not times and failure is None:
                continue
            if not computes_alone(self.device):
                times = undisturbed(times)
            yield Record(
                kernel.name,
                source_hash(kernel),
                signature.text,
                fingerprint,
                tuple(times),
                failure,
                flops=signature.flops,
                size_bytes=signature.size_bytes,
                modelled_ns=modelled_ns(site, kernel),
            )

    def _hold(self, one: Race) -> None:
        """Programs will want what the kernel prepared that is chosen now."""
        chosen = next((k.name for k in self.costs.kernels(one.task.sites[0])), "")
        if one.times.get(chosen):
            names = {name for name, _ in one.weights}
            made = one.prepared[chosen].items()
            self.pool.keep({want: found for want, found in made if want.view.buffer in names})
            tell(STEPS, lambda: f"{chosen} is taken for {one.task}")


def clock_of(device: str) -> Callable[[], int]:
    """What calls are timed by: the clock of the thread that computes, where it is one.

    With several threads the wall's. A thread's clock does not see what the others do; the sum of
    all counts what they do while they wait, which is to spin, and it does not tell a kernel that
    keeps two threads busy from one that keeps one busy for twice as long.
    """
    return time.thread_time_ns if computes_alone(device) else time.perf_counter_ns


def undisturbed(times: Sequence[int]) -> list[int]:
    """Without those of a kernel that took so long that others must have had a processor.

    Who is put aside loses a slice of the scheduler's, and threads that meet lose it together: on a
    busy machine that is the median of calls of half a millisecond, and the same for all kernels.
    """
    limit = DISTURBED * min(times, default=0)
    return [took for took in times if took <= limit]


def finish(device: str) -> None:
    """Wait for what was asked of a device that computes by itself."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _is_disturbed(device: str, is_contended: bool) -> bool:
    """Whether the wall's clock timed others, too: true for this session, but not for good."""
    if computes_alone(device):
        return False
    is_loaded = hasattr(os, "getloadavg") and os.getloadavg()[0] > 1 + (os.cpu_count() or 1)
    return is_contended or is_loaded or torch.get_num_threads() > usable_cores()


# --- what to time -----------------------------------------------------------------------------


def heaviest(runs: Sequence[Sequence[Site]], costs: CostModel) -> list[Task]:
    """The calls that make up nearly all of some run and of which too little is known."""

    def unknown(task: Task) -> tuple[Kernel, ...]:
        """Where there is no choice, what the only one takes is timed all the same: a plan weighs
        what a call takes against the memory that keeping its result does.
        """
        site = task.sites[0]
        worth = (*rivals(site, costs, costs.competing(site)), *_teams(site, costs))
        return () if costs.are_timed(site, worth) else worth

    here = [list(filter(costs.is_timed_here, sites)) for sites in runs]
    return _to_be_timed([_grouped(sites, costs) for sites in here], unknown)


def heaviest_calls(runs: Sequence[Sequence[Called]], costs: CostModel) -> list[Task]:
    """The same of calls by kernels, of which it is not known what these take as they lie."""
    by: dict[str, Kernel] = {}
    for site, name in chain.from_iterable(runs):
        if (kernel := known_as(site.call.op.name, name)) is not None:
            by[costs.signature(site).text] = kernel
    grouped = []
    for calls in runs:
        here = [site for site, _ in calls if costs.is_timed_here(site)]
        tasks, once = _grouped(here, costs)
        taken = {text: costs.of_site(tasks[text].sites[0], by[text]) for text in tasks.keys() & by}
        grouped.append((tasks, once | taken))

    def unknown(task: Task) -> tuple[Kernel, ...]:
        site, text = task.sites[0], task.signature
        own = [by[text]] if text in by else []
        others = (*rivals(site, costs, costs.competing(site)), *_teams(site, costs))
        worth = tuple(dict.fromkeys((*own, *others)))
        return () if all(costs.has_timed(text, kernel) for kernel in worth) else worth

    return _to_be_timed(grouped, unknown)


def _to_be_timed(
    runs: Iterable[tuple[dict[str, Task], dict[str, Estimate]]],
    unknown: Callable[[Task], tuple[Kernel, ...]],
) -> list[Task]:
    """The calls that make up nearly all of some run and have kernels of which too little is known,
    those first that take most.
    """
    found: dict[str, Task] = {}
    weights: dict[str, float] = defaultdict(float)
    for tasks, once in runs:
        counts = {text: len(task.sites) for text, task in tasks.items()}
        for text in heavy(once, counts):
            found.setdefault(text, tasks[text]).expected_ns = once[text].time_ns
            weights[text] += once[text].time_ns * counts[text]
    for task in found.values():
        task.kernels = unknown(task)
    open_ones = [text for text, task in found.items() if task.kernels]
    return [found[text] for text in sorted(open_ones, key=lambda text: -weights[text])]


def heavy(
    once: Mapping[Key, Estimate], counts: Mapping[Key, int], least_ns: float = 0.0
) -> Iterator[Key]:
    """Of equal calls, so many and of such times, those that make up nearly all of a run and may be
    as long as that; the heaviest first.
    """
    weights = {key: one.time_ns * counts[key] for key, one in once.items()}
    total = left = sum(weights.values())
    for key in sorted(weights, key=lambda key: -weights[key]):
        if left < REST * total:
            return
        left -= weights[key]
        if once[key].time_ns * (1 + once[key].spread) >= least_ns:
            yield key


def _grouped(
    sites: Sequence[Site], costs: CostModel
) -> tuple[dict[str, Task], dict[str, Estimate]]:
    """Equal calls of a run, and what each is expected to take."""
    tasks: dict[str, Task] = {}
    for site in sites:
        text = costs.signature(site).text
        tasks.setdefault(text, Task(text)).sites.append(site)
    firsts = {text: task.sites[0] for text, task in tasks.items()}
    return tasks, {text: costs.ranked(site)[0][1] for text, site in firsts.items()}


def rivals(site: Site, costs: CostModel, kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Those of some kernels at a site that are modelled anywhere near the best."""
    known = (k for k in kernels if not costs.has_failed(site, k))
    own = [(kernel, kernel.cost_ns(site)) for kernel in known]
    limit = WITHIN * min((cost for _, cost in own), default=0.0)
    return tuple([kernel for kernel, cost in own if cost <= limit and cost < SENTINEL_NS])


def _teams(site: Site, costs: CostModel) -> tuple[Kernel, ...]:
    """The team that may compute a site: there for one has to be somebody to help."""
    if torch.get_num_threads() == 1 or costs.device != "cpu":
        return ()
    team = by_team(site)
    return () if team is None or costs.has_failed(site, team) else (team,)


def by_threads(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The kernels of some tasks whose threads may meet, and then those of teams, which are timed
    as programs have them: one after the other, and nobody spins meanwhile who waits for a call.
    """
    for is_team in (False, True):
        chosen = [[k for k in task.kernels if (k.threads == TEAM) == is_team] for task in tasks]
        lane = [
            replace(task, kernels=tuple(kernels))
            for task, kernels in zip(tasks, chosen, strict=True)
            if kernels
        ]
        if lane:
            yield lane


# --- how it is timed ----------------------------------------------------------------------------


class Score:
    """How kernels of one task do against each other.

    Fields:
        racing: who is not clearly slower than the best.
        times: nanoseconds of single calls, by kernel; first calls, which find nothing in place,
            are not among them, nor what a clock says that stands still or goes back.
        failures: what kernels raised that are out of it for that.
        spent_ns: of all calls.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.racing = [kernel.name for kernel in task.kernels]
        self.times: dict[str, list[int]] = {name: [] for name in self.racing}
        self.failures: dict[str, str] = {}
        self.spent_ns = 0

    @property
    def in_vain(self) -> list[str]:
        """Kernels that need not be timed again before a plan: those that failed, and teams."""
        return [k.name for k in self.task.kernels if k.threads == TEAM or k.name in self.failures]

    def leave(self, name: str) -> None:
        """A kernel is out of it, and nothing is said of its times."""
        self.racing = [other for other in self.racing if other != name]
        self.times.pop(name, None)

    def fail(self, name: str, error: Exception) -> None:
        """A kernel raised: that is a finding about it."""
        self.failures[name] = failure_of(error)
        self.leave(name)

    def drop_losers(self) -> None:
        """Leave those in the race that were ever nearly as fast as the fastest mostly is.

        One sample says little on a machine that does other things, too: only long calls, which
        are dear and hardly disturbed, are judged by it.
        """
        timed = {name: self.times[name] for name in self.racing if self.times[name]}
        if not timed or (not self._is_long and self._turns < LEAST_TURNS):
            return
        limit = LOSER * min(statistics.median(times) for times in timed.values())
        slow = {name for name, times in timed.items() if min(times) > limit}
        self.racing = [name for name in self.racing if name not in slow]

    @property
    def _is_long(self) -> bool:
        return self.spent_ns > LONG_S * 1e9

    @property
    def is_over(self) -> bool:
        """Whether one is left of several, or they were timed often enough."""
        most = LEAST_TURNS if self._is_long else MOST_TURNS
        fewest = min(2, len(self.task.kernels)) if self._turns else 1
        return self._turns >= most or len(self.racing) < fewest

    @property
    def _turns(self) -> int:
        return max(map(len, self.times.values()), default=0)


class Race(Score):
    """The kernels of one task, taking turns."""

    def __init__(self, task: Task, pool: Pool, device: str) -> None:
        super().__init__(task)
        self.device = device
        first = task.sites[0]
        apart = canonical(first, *(frozenset(range(len(s.ins))) for s in (first, *first.posts)))
        self._sites = [_with_weights(apart, site) for site in task.sites[:MOST_EQUAL]]
        self.weights = _weights(self._sites, pool)
        self.prepared: dict[str, dict[Prepared, Any]] = {k.name: {} for k in task.kernels}
        self._turn, self._count = 0, task.in_a_row if device == "cpu" else 1
        self._buffers = pool.buffers | _operands(self._sites[0], device) | self._copied(pool)
        _touch(self.weights.values())
        self._calls: dict[str, list[Bound]] = {}
        self._rooms: dict[int, torch.Tensor] = {}
        self._clock = clock_of(device)

    def _copied(self, pool: Pool) -> dict[Weight, torch.Tensor]:
        """Copies of weights for calls in a row, more than the second cache holds, where it does not
        hold all weights of the graph: a run finds none of them there.
        """
        own = sum(tensor.nbytes for tensor in self.weights.values())
        room, every = cache_bytes(2), sum(tensor.nbytes for tensor in pool.buffers.values())
        if self._count == 1 or not own or every <= room:
            return {}
        rounds = min(-(-room // own), -(-self._count // len(self._sites))) - 1
        sites, found = list(self._sites), dict[Weight, torch.Tensor]()
        for k in range(rounds):
            names = {key: (f"{key[0]}, copy {k}", key[1]) for key in self.weights}
            self._sites += [_over(names, site) for site in sites]
            found |= {names[key]: tensor.clone() for key, tensor in self.weights.items()}
        return found

    def bind(self, kernel: Kernel) -> None:
        """Compile or load a kernel, and prepare weights for it: nothing of that is timed."""
        made, buffers = self.prepared[kernel.name], self._buffers
        with self._or_out(kernel.name):
            calls = [
                bound(kernel, site, buffers, self.device, made, self._rooms) for site in self._sites
            ]
            self._calls[kernel.name] = calls if self._count == 1 else rows_of(calls, self._count)

    @contextmanager
    def _or_out(self, name: str) -> Iterator[None]:
        """Whatever a kernel may raise: it is out of the race."""
        try:
            yield
        except Exception as error:
            self.fail(name, error)

    def take_turn(self, name: str, *, counts: bool) -> None:
        """Call a kernel once, and note the time if that counts."""
        with self._or_out(name), apart().during(self.task.is_by_team):
            took = self.call(name)
            if counts and took > 0:
                self.times[name].append(took)

    def call(self, name: str) -> int:
        """One call, with the weights that were used longest ago, or a row of them with those of all
        layers in turn; the nanoseconds of one.
        """
        calls = self._calls[name]
        function, arguments = calls[self._turn % len(calls)]
        self._turn += 1
        finish(self.device)
        began = self._clock()
        function(*arguments)
        finish(self.device)
        took = self._clock() - began
        self.spent_ns += max(took, 0)
        return took // self._count


def rows_of(calls: Sequence[Bound], count: int) -> list[Bound]:
    """All calls in turn, so many in each row; some again where there are not enough for one."""
    rows = max(len(calls) // count, 1)
    others = cycle(calls)
    return [in_a_row([*islice(others, count)]) for _ in range(rows)]


def race(races: Sequence[Race], flushed: Sequence[torch.Tensor]) -> Iterator[int]:
    """Turn after turn, every kernel of every race once; yields the number of the turn.

    Kernels of one race are as far from each other as can be: what lies between them is the weights
    of all others, and `flushed`, which are read where those would fit the cache.
    """
    for turn in range(1 + MOST_TURNS):
        going = [one for one in races if not one.is_over]
        if not going:
            return
        lanes = [(one, list(one.racing)) for one in going]
        for k in range(max(len(names) for _, names in lanes)):
            for tensor in flushed:
                _read(tensor)
            for one, names in lanes:
                if k < len(names):
                    one.take_turn(names[(k + turn) % len(names)], counts=turn > 0)
        for one in going if turn else ():
            one.drop_losers()
        yield turn


def _read(tensor: torch.Tensor) -> None:
    """Read what lies in a row, by one thread: a library's would spin beside what is timed next."""
    if tensor.device.type != "cpu":
        tensor.sum()
        return
    numbers = tensor.view(torch.uint8).numpy()
    numbers[: numbers.size // 8 * 8].view(np.int64).max(initial=0)


def rest_of(races: Sequence[Race], pool: Pool) -> list[torch.Tensor]:
    """Weights to read in between, where those of all races would stay in the cache."""
    own = {key for one in races for key in one.weights}
    missing = 2 * last_cache_bytes() - sum(pool.buffers[key].nbytes for key in own)
    found = []
    for key, tensor in pool.buffers.items():
        if key not in own and missing > 0 and tensor.numel():
            part = tensor.view(-1)[: 1 + missing // tensor.element_size()]
            found.append(part)
            missing -= part.nbytes
    return found


def _over(names: Mapping[Weight, Weight], site: Site) -> Site:
    """A site over other weights of the same sizes."""
    ins = tuple(
        view and replace(view, buffer=names.get((view.buffer, view.dtype), (view.buffer, ""))[0])
        for view in site.ins
    )
    return replace(site, ins=ins, posts=tuple([_over(names, post) for post in site.posts]))


def _weights(sites: Sequence[Site], pool: Pool) -> dict[Weight, torch.Tensor]:
    """What never changes and is read at some sites."""
    keys = {(view.buffer, view.dtype): None for site in sites for view in site.read}
    return {key: pool.buffers[key] for key in keys if key in pool.buffers}


def _prepared_bytes(task: Task, pool: Pool) -> int:
    """What weights of a task take that are prepared for one kernel."""
    return sum(tensor.nbytes for tensor in _weights(task.sites[:MOST_EQUAL], pool).values())


def _touch(weights: Iterable[torch.Tensor]) -> None:
    """Bring weights in from their file, which is not what is timed."""
    for tensor in weights:
        tensor.view(-1).view(torch.uint8)[::4096].sum()


def _with_weights(apart: Site, site: Site) -> Site:
    """A layer's call over its own weights, and all else in buffers apart. Which operand of a sum is
    the result before it is the layer's own.
    """
    posts, others = tuple(map(_with_weights, apart.posts, site.posts)), iter(apart.read)
    ins = tuple([view and _own(view, next(others)) for view in site.ins])
    return replace(site, out=apart.out, ins=ins, posts=posts)


def _own(view: View, apart: View) -> View:
    """A weight as it lies in the pool; all else apart."""
    return view if isinstance(view.buffer, str) else apart


def _ramp(size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Numbers from a half to 1, again and again: copying some takes less than making all."""
    ramp = torch.linspace(0.5, 1.0, min(size, RAMP), device=device).to(dtype)
    return ramp.repeat(-(-size // RAMP))[:size] if size > RAMP else ramp


def _operands(site: Site, device: str) -> dict[tuple[Any, str], torch.Tensor]:
    """Buffers for what is no weight: small floats, none denormal; True; the first index."""
    found: dict[tuple[Any, str], torch.Tensor] = {}
    for view in (*site.views, *(view for post in site.posts for view in post.read)):
        if isinstance(view.buffer, str):
            continue
        size = 1 + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
        dtype = TORCH_DTYPES[view.dtype]
        if view.dtype in FLOATS:
            values = _ramp(int(size), dtype, device)
        elif view.dtype == "bool":
            values = torch.ones(int(size), dtype=dtype, device=device)
        else:
            values = torch.zeros(int(size), dtype=dtype, device=device)
        found[view.buffer, view.dtype] = values
    return found
