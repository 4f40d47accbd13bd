"""The paths of a session: how many there are, what each takes, how far off each is, and the best.

paths = session.paths(tolerance=1e-2)
for path in paths: …                     cheapest first, as far as you ask
paths.measure(path)                      what was not known is timed, and remembered
paths.error(path)                        beside the graph's references in float64
paths.open(path)                         a session that runs it, on the same weights
paths.optimize(seconds=10)               the session takes the best one, with a plan
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from tgbench.base.errors import (
    BudgetError,
    PlanError,
    RecordsError,
    TgbenchError,
    check_callable,
    check_choice,
    check_kind,
    check_number,
)
from tgbench.base.machine import Machine
from tgbench.base.regions import Region
from tgbench.base.surroundings import plainly
from tgbench.base.words import Progress, counted, format_bytes, format_time, shorten, silent
from tgbench.costs.model import CostModel
from tgbench.costs.records import Record, Records
from tgbench.graph.graph import Graph, Node
from tgbench.graph.graph_file import graph_to_json
from tgbench.graph.op_table import numpy_dtype
from tgbench.graph.rewrite.saturate import USUAL, SaturationLimits
from tgbench.memory.estimate import estimate_memory
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Classes
from tgbench.plans.paths.occasions import PlannedRun
from tgbench.plans.paths.paths import WITHIN, Path, Paths, Space
from tgbench.plans.plan import Plan
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.chain import Submits, check_executor
from tgbench.plans.search.effort import MODES, Mode
from tgbench.plans.search.optimiser import Optimiser
from tgbench.runs.propagate import changes, handed_out, joined
from tgbench.session.agreeing import Agreement, allowed_by
from tgbench.session.check.compare import difference
from tgbench.session.check.copies import parameters, twin
from tgbench.session.check.nodes import exact_values
from tgbench.session.drawing import random_inputs
from tgbench.session.opening import check_tolerance
from tgbench.session.profile import Profile
from tgbench.session.sweeping import (
    LEAST_S,
    Sweep,
    SweepResult,
    SweepTask,
    Wanted,
    measured,
    measured_there,
    wanted,
)

if TYPE_CHECKING:
    import pandas as pd

    from tgbench.session.session import GraphSession

Array = np.ndarray[Any, Any]
SAMPLES = 2
TRIED = 64  # paths in less whose error is measured
TOGETHER = 4  # paths that are planned for
ROUNDS = 7  # of whole runs beside each other


@dataclass(frozen=True)
class PlannedPath:
    """A path and what a run of it takes by a plan of its own.

    Fields:
        planned_ns: infinite where nothing fits the budget.
    """

    path: Path
    planned_ns: float
    size_bytes: int


@dataclass(frozen=True)
class JointChoice:
    """A path and a plan that were chosen together.

    Fields:
        tried: those that were planned, in the order of what they take with memory for everything.
        best: of them, with its quick plan.
        plan: what a search made of that.
        raced: what whole runs took of the path that was expected to be best, and of the given
            graph; None where nothing was run.
        left_out: those whose whole runs gave other results than the given graph's.
    """

    tried: tuple[PlannedPath, ...]
    best: PlannedPath
    plan: Plan
    raced: tuple[float, ...] | None = None
    left_out: tuple[PlannedPath, ...] = ()

    @property
    def bought(self) -> float:
        """The share that planning for several is expected to save, over the first path alone."""
        first = min(self.tried, key=lambda one: one.path.time_ns).planned_ns
        best = min(one.planned_ns for one in self.tried)
        if not first:  # nothing is computed
            return 0.0
        return 1.0 - best / first if math.isfinite(first) else 1.0

    def __str__(self) -> str:
        lines = [f"{self.best.path}"]
        for one in self.tried:
            told = "not, as nothing fits"
            if math.isfinite(one.planned_ns):
                told = f"{format_time(one.planned_ns)} in {format_bytes(one.size_bytes)}"
            mark = "→" if one is self.best else " "
            rules = ", ".join(one.path.rules) or "as it was given"
            lines.append(f"{mark} {format_time(one.path.time_ns)}, planned {told}: {rules}")
            if one in self.left_out:
                lines.append("  left out: whole runs of it give other results than the given graph")
        lines.append(f"chosen together: {self.bought:.1%} less than one after the other")
        if self.raced is not None:
            path, given = map(format_time, self.raced)
            lines.append(f"whole runs beside each other: {path}, and {given} as it was given")
        return "\n".join([*lines, str(self.plan)])


def _telling(session: GraphSession) -> Progress:
    """Whom the session tells of its steps, in words."""
    tell = session.planning.progress
    return lambda done, of, what: tell(f"looking for other ways: {what} {done:,}/{of:,}")


@dataclass(eq=False)
class SessionPaths:
    """All paths of a session's graph, for the runs that it plans for.

    Fields:
        session: stays as it is.
        space: of its graph.
        within: what takes more than so many times the best one is left out.
        tolerance: the largest relative error that a path may have; None for rounding alone.
        samples: inputs that errors are measured on.
        limits: how far paths were looked for.
        progress: is told (done, of, what is going on) while they are looked for.
    """

    session: GraphSession
    space: Space
    within: float
    tolerance: float | None
    samples: Sequence[Mapping[str, Array]]
    limits: SaturationLimits
    progress: Progress = silent
    _right: list[dict[str, Array]] = field(default_factory=list)
    _errors: dict[str, float] = field(default_factory=dict)
    _in_vain: set[tuple[str, str]] = field(default_factory=set)  # what no program calls
    _learnt: tuple[CostModel, int, tuple[Record, ...]] | None = None

    @staticmethod
    def of(
        session: GraphSession,
        tolerance: float | None = None,
        samples: Sequence[Mapping[str, Any]] = (),
        within: float = WITHIN,
        limits: SaturationLimits = USUAL,
        progress: Progress | None = None,
    ) -> SessionPaths:
        """The paths of a session; `samples` are seeded random inputs if none are given.

        `progress` is told (done, of, what is going on), here and while paths are put in order; None
        for whom the session tells. Ctrl-C, or what it raises, ends that and loses no path.
        """
        check_tolerance(tolerance, session.exact is not None)
        check_number(PlanError, "within", within, 1.0, optional=False)
        _check_given(PlanError, "limits", limits, SaturationLimits, "pass SaturationLimits(…)")
        check_callable(PlanError, "progress", progress, "pass one that is told what is looked at")
        told = progress if progress is not None else _telling(session)
        given = read_samples(session, samples)
        space = Space.of(
            session.ground.held, session.rules, runs_of(session), rounded=tolerance is not None,
            limits=limits, progress=told,
        )  # fmt: skip
        samples = given or random_inputs(space.graph, SAMPLES)
        return SessionPaths(session, space, within, tolerance, samples, limits, told)

    @cached_property
    def paths(self) -> Paths:
        """By what is known of times; made anew where more is."""
        return Paths(self.space, self.session.costs, self.within, self.progress)

    @property
    def graph(self) -> Graph:
        """What they are paths of: the session's graph, whichever path is in force."""
        return self.space.graph

    def __iter__(self) -> Iterator[Path]:
        return iter(self.paths)

    def __getitem__(self, number: int) -> Path:
        place = _place(number)
        try:
            return self.paths[place]
        except IndexError:
            raise _missing(place, self.paths, "path") from None

    def graph_at(self, place: int) -> Path:
        """The cheapest path of a graph, by its place among them: a row of the table."""
        number = _place(place)
        try:
            return self.paths.graph_at(number)
        except IndexError:
            raise _missing(number, self.paths.graphs(), "graph") from None

    @property
    def given(self) -> Path:
        """The graph as it was given."""
        return self.paths.given

    def filtered(self, keep: Callable[[Path], bool]) -> Iterator[Path]:
        """The paths of which something holds, cheapest first."""
        if not callable(keep):
            raise PlanError(
                f"keep={shorten(keep)} is no function; pass one that is asked of a path"
            )
        return (path for path in self if keep(path))

    @plainly
    def open(self, path: Path) -> GraphSession:
        """A session that runs a path, over the same weights, with memory as it needs."""
        self._check_path(path)
        opened = twin(self.session, path.graph)
        opened.costs.adopt(self.session.costs.table())
        opened.costs.pins = path.kernels
        return opened

    @plainly
    def race(self, paths: Sequence[Path], rounds: int = ROUNDS) -> list[float]:
        """What whole runs of some paths take, beside each other: nanoseconds of the mean run.

        Times of calls do not say what a call pays for operands that a path leaves lying otherwise,
        as slices of a larger product. In each round every path does every kind of run, one path
        after the other; of each kind the fastest counts, which other processes disturb least.

        Results of each kind of run are compared with the given graph's, or the first path's where
        it is not among them. A path whose results are off by more than rounding explains, or the
        tolerance where that is more, takes infinitely long.
        """
        check_number(PlanError, "rounds", rounds, 1, whole=True, optional=False)
        _check_given(PlanError, "paths", paths, (list, tuple), "pass a list of paths")
        for path in paths:
            self._check_path(path)
        runs, (first, other) = runs_of(self.session), random_inputs(self.graph, 2)
        asked = [wanted(self.graph, run) for run in runs]
        sessions = [self._ready(path, asked, first) for path in paths]
        took = np.full((len(paths), max(len(runs), 1)), np.inf)
        weights = np.array([run.weight for run in runs] or [1.0])
        given = [path.graph.fingerprint == self.graph.fingerprint for path in paths]
        agreement = Agreement(len(paths), given.index(True) if any(given) else 0)
        now = {name: value.copy() for name, value in first.items()}
        for turn in range(rounds * took.shape[1]):
            kind = turn % took.shape[1]
            changed, demand = asked[kind] if asked else (None, None)
            source = other if (turn // took.shape[1]) % 2 == 0 else first
            for name, value in now.items():
                for box in Region.full(value.shape) if changed is None else changed.get(name, ()):
                    value[box.slices()] = source[name][box.slices()]
            results = dict[int, Mapping[str, Any]]()
            for i in range(len(paths)):
                at = (i + turn) % len(paths)
                began = time.perf_counter_ns()
                found = sessions[at].run(now, demand)
                took[at, kind] = min(took[at, kind], time.perf_counter_ns() - began)
                if turn == kind:  # the first time
                    results[at] = found
            if results:
                agreement.compare(results)
        allowed = allowed_by(self.graph, self.tolerance)
        took[[agreement.is_off(at, allowed) for at in range(len(paths))]] = np.inf
        mean: list[float] = (took @ weights / weights.sum()).tolist()
        return mean

    def _ready(
        self, path: Path, asked: Sequence[Wanted], values: Mapping[str, Array]
    ) -> GraphSession:
        """A session that runs a path within the budget, and has its programs."""
        opened = self.open(path)
        opened.budget_bytes = self.session.budget_bytes
        opened.run(values, asked[0][1] if asked else None)
        if asked:
            opened.plan_for(asked)
            opened.run(values, asked[0][1])
        opened.prepare()
        return opened

    def _check_path(self, path: Any) -> None:
        """Raise PlanError for what is no path of the session's graph."""
        mend = "pass one of session.paths()"
        _check_given(PlanError, "path", path, Path, mend)
        if path.paths.graph.fingerprint != self.graph.fingerprint:
            raise PlanError(f"path={shorten(str(path))} is one of another graph; {mend}")

    # --- time -------------------------------------------------------------------------------------

    @plainly
    def measure(self, path: Path, records: Records, seconds: float | None = None) -> Profile:
        """Time the kernels of a path in its own programs, where the records know nothing of them.

        What is found counts from then on, here and in whatever reads these records.
        """
        _check_records(records)
        opened = self.open(path)
        opened.costs.pins = path.every_kernel
        found = measured(opened, self._runs, records, seconds)
        self._learn(records)
        return found

    @property
    def _runs(self) -> tuple[Wanted, ...]:
        return tuple(wanted(self.graph, run) for run in runs_of(self.session))

    def _learn(self, records: Records) -> None:
        """Let records count; paths stay, as far as they were enumerated, where nothing is new."""
        costs = self.session.costs
        found = records.all(Machine.here(self.session.device).fingerprint)
        if self._learnt != (costs, costs.version, found):
            costs.learn(found)
            for made in ("paths", "_exact"):
                vars(self).pop(made, None)
            self._learnt = costs, costs.version, found

    @plainly
    def sweep(
        self,
        records: Records,
        count: int = 50,
        seconds: float | None = None,
        progress: Progress | None = None,
        *,
        executor: Submits | None = None,
        workers: int = 1,
    ) -> Sweep:
        """Measure the first paths, one after the other, until each stands on measurements.

        What is measured changes the order, so paths come and go; the records keep every sample,
        and the same call goes on where this one was stopped.

        Args:
            count: how many of the first paths.
            seconds: stop after about so long, paths being looked for included; something is
                measured all the same, unless it is 0.
            progress: is told (paths known, paths, what is going on).
            executor: workers measure, so many at a time: a process pool, a Dask client. Each should
                have a machine for itself. What they find is of their machines, and counts here if
                that is one like this.
        """
        check_number(PlanError, "count", count, whole=True, optional=False)
        check_number(PlanError, "seconds", seconds)
        check_number(PlanError, "workers", workers, 1, whole=True)
        check_callable(PlanError, "progress", progress, "pass one that is told what is measured")
        check_executor(executor)
        _check_records(records)
        until = math.inf if seconds is None else time.monotonic() + seconds
        swept, tried, known, left = 0, set(self._in_vain), 0, seconds
        try:
            self._learn(records)
            while count:
                first, unknown = self._first(count, tried, until)
                known = len(first) - len(unknown)
                if not unknown or seconds == 0:
                    return Sweep(swept, known, "time" if unknown else "")
                if seconds is not None:
                    left = max(until - time.monotonic(), LEAST_S)
                if progress is not None:
                    progress(known, len(first), str(unknown[0]))
                some = _disjoint(unknown, tried, workers if executor is not None else 1)
                tried |= {key for path in some for key in _keys(path)}
                if executor is None:
                    found = self.measure(some[0], records, left)
                    swept += len(found.measured)
                    if found.stopped == "interrupt":
                        return Sweep(swept, known, "interrupt")
                    if not found.stopped:
                        self._in_vain |= _keys(some[0])
                else:
                    swept += self._measured_there(some, records, left, executor)
                # looking for paths by what is known now takes longer
                if swept and time.monotonic() >= until:
                    return Sweep(swept, sum(_keys(path) <= tried for path in first), "time")
            return Sweep(swept, known)
        except KeyboardInterrupt:
            return Sweep(swept, known, "interrupt")
        except (OSError, RuntimeError, CancelledError) as error:
            if executor is None or isinstance(error, TgbenchError):
                raise
            return Sweep(swept, known, "workers lost")

    def _first(
        self, count: int, tried: Set[tuple[str, str]], until: float
    ) -> tuple[list[Path], list[Path]]:
        """The first paths, and those of them that are to be measured: one, or as many as are found
        in time.
        """
        first, unknown = list[Path](), list[Path]()
        for path in islice(self, count):
            first.append(path)
            if not _keys(path) <= tried:
                unknown.append(path)
            if unknown and time.monotonic() >= until:
                break
        return first, unknown

    def _measured_there(
        self, paths: Sequence[Path], records: Records, seconds: float | None, executor: Submits
    ) -> int:
        """Have workers measure a path each; how many kernels they did."""
        text, device = graph_to_json(self.graph), self.session.device
        futures = [
            executor.submit(
                measured_there,
                SweepTask(
                    text, replace(path.chosen(self.tolerance), kernels=_pairs(path.every_kernel)),
                    self._runs, device, seconds,
                ),
            )
            for path in paths
        ]  # fmt: skip
        count = 0
        try:
            for future in futures:
                found: SweepResult = future.result()
                records.add(found.rows, found.machine)
                count += len(found.rows)
        finally:
            for future in futures:
                future.cancel()
        self._learn(records)
        return count

    # --- error ------------------------------------------------------------------------------------

    @plainly
    def error(self, path: Path) -> float:
        """The largest relative error of any output on the samples, beside float64.

        Of an output it is the largest difference over the largest magnitude.
        """
        self._check_path(path)
        key = f"{path.graph.fingerprint} {sorted(path.kernels.items())}"
        if key not in self._errors:
            opened = self.open(path)
            pairs = zip(self.samples, self._references(), strict=True)
            self._errors[key] = max(
                off(opened.run(given, keep=False), right)  # states begin anew with each sample
                for given, right in pairs
            )
        return self._errors[key]

    def _references(self) -> list[dict[str, Array]]:
        """What the session's graph gives for each sample, in float64."""
        if not self._right:
            weights = parameters(self.session)
            self._right += [references(self.graph, one, weights) for one in self.samples]
        return self._right

    def fastest(self) -> Path:
        """The first path whose measured error is within the tolerance; else the given one."""
        return next(self.allowed(), self.given)

    def allowed(self) -> Iterator[Path]:
        """The cheapest path of each graph, cheapest first, as far as its error may be what it is.

        That is within the tolerance, or no more than the given graph's own. Without a tolerance
        nothing is measured: paths round nothing but their results. What alone takes a larger error
        is not tried together with anything else, and not more than `TRIED` paths in less.
        """
        if self.tolerance is None:
            yield from self.paths.graphs()
            return
        most = max(self.tolerance, self.error(self.given))
        exact = (path for path in self._exact.graphs() if self.error(path) <= most)
        following = next(exact, None)
        for path in self._within(self.tolerance):
            while following is not None and following.time_ns <= path.time_ns:
                yield following
                following = next(exact, None)
            yield path
        if following is not None:
            yield following
        yield from exact

    def _within(self, tolerance: float) -> Iterator[Path]:
        """Paths in less whose error is within a tolerance, and which are faster than exact ones."""
        paths, exact_ns, tried = self.paths, self._exact[0].time_ns, set[str]()
        while True:
            for path in paths.graphs():
                if path.time_ns >= exact_ns or len(tried) >= TRIED:
                    return
                if not path.is_rounded or path.graph.fingerprint in tried:
                    continue
                tried.add(path.graph.fingerprint)
                if self.error(path) <= tolerance:
                    yield path
                elif banned := self._too_far_off(path, tolerance):
                    paths = paths.without(banned)
                    break
            else:
                return

    def _too_far_off(self, path: Path, tolerance: float) -> set[Node]:
        """What of a path, computed in less, takes a larger error alone."""
        parts = path.rounded_parts()
        too_far = (
            part
            for part, alone in parts.items()
            if len(parts) == 1 or self.error(alone) > tolerance
        )
        return {node for part in too_far for node in part}

    @cached_property
    def _exact(self) -> Paths:
        """The paths that round nothing but their results."""
        if self.tolerance is None:
            return self.paths
        return Paths(self._plain, self.session.costs, self.within, self.progress)

    @cached_property
    def _plain(self) -> Space:
        runs = runs_of(self.session)
        return Space.of(
            self.graph, self.session.rules, runs, limits=self.limits, progress=self.progress
        )

    # --- together with a plan ---------------------------------------------------------------------

    @plainly
    def optimize(
        self,
        mode: Mode = "search",
        seconds: float | None = None,
        budget: int | str | None = None,
        *,
        steps: int | None = None,
        seed: int = 0,
        count: int = TOGETHER,
        rounds: int = ROUNDS,
    ) -> JointChoice:
        """Let the session compute by the fastest path that is allowed, and plan with it.

        Paths are ranked as if there were memory for everything. Under a budget another one may be
        the fastest: what it does not compute need not be kept. So the first few are planned, each
        for itself and quickly, and the best one goes on to the search that `optimize` does, if
        whole runs of it are faster than of the given graph.

        Args:
            mode, budget, steps, seed: of that search.
            seconds: for all of this; where half of it is gone, no more paths are looked for, and
                none are planned or run, but for one that was begun with.
            count: how many paths are planned for, besides the given graph.
            rounds: of whole runs, of the best path and of the given graph (`race`); 0 for none,
                and what is expected decides.

        Raises what `GraphSession.optimize` does; whatever stops it, the session is as it was.
        """
        check_choice(PlanError, "mode", mode, MODES)
        check_number(PlanError, "seconds", seconds)
        check_number(PlanError, "steps", steps, whole=True)
        check_number(PlanError, "seed", seed, whole=True, optional=False)
        check_number(PlanError, "count", count, whole=True, optional=False)
        check_number(PlanError, "rounds", rounds, whole=True, optional=False)
        session, began = self.session, time.monotonic()
        until = math.inf if seconds is None else began + seconds / 2
        with session.intact(), session.budgeted(budget):
            given = self._planned(self.given)
            in_time = takewhile(lambda _: time.monotonic() <= until, self._others(count))
            tried = (*map(self._planned, in_time), given)
            best, raced, left_out = self._best(tried, rounds, until)
            if math.isfinite(best.planned_ns):
                self.take(best.path)
            left = None if seconds is None else max(seconds - (time.monotonic() - began), 0.0)
            plan = session.optimize(mode, left, steps=steps, seed=seed)
        return JointChoice(tried, best, plan, raced, left_out)

    def _best(
        self, tried: Sequence[PlannedPath], rounds: int, until: float
    ) -> tuple[PlannedPath, tuple[float, ...] | None, tuple[PlannedPath, ...]]:
        """Of those that were tried, the given graph the last, what is expected to be best if it is
        faster in a race; what that took; and what was left out for other results.
        """
        given, left_out = tried[-1], list[PlannedPath]()
        for one in sorted(tried, key=lambda one: one.planned_ns):
            if one is given or not rounds or not math.isfinite(given.planned_ns):
                return one, None, tuple(left_out)
            if time.monotonic() > until:
                break
            raced = tuple(self.race([one.path, given.path], rounds))
            if math.isfinite(raced[0]):
                return one if raced[0] < raced[1] else given, raced, tuple(left_out)
            left_out.append(one)
        return given, None, tuple(left_out)

    def _others(self, count: int) -> Iterator[Path]:
        """The first paths of other graphs than the given one, each graph once."""
        seen = {self.graph.fingerprint}
        for path in islice(self.allowed(), count):
            if path.graph.fingerprint not in seen:
                seen.add(path.graph.fingerprint)
                yield path

    @plainly
    def take(self, path: Path) -> None:
        """Let the session compute by a path from now on; see `GraphSession.take`."""
        self._check_path(path)
        if path.graph.fingerprint == self.graph.fingerprint:
            self.session.take(None)
            return
        with self.session.intact():
            if path.is_rounded:
                self.session.tolerance = max(self.session.tolerance or 0.0, self.tolerance or 0.0)
            self.session.take(path.chosen(self.tolerance))

    def _planned(self, path: Path) -> PlannedPath:
        """A path with a quick plan for what happened."""
        session = self.session
        planning, scheduled = session.planning, ScheduledGraph.of(path.graph)
        history = planning.history(session.runner.happened)
        optimiser = Optimiser(
            scheduled, session.rules, Workload.of(scheduled, session.rules, history),
            planning.limit_bytes, session.costs.time_ns, session.device,
            classes=planning.classes, choices=planning.choices,
        )  # fmt: skip
        try:
            made = optimiser.run("greedy")
        except BudgetError:
            return PlannedPath(path, math.inf, 0)
        return PlannedPath(path, made.expected_ns, made.placement.size_bytes)

    # --- all of it --------------------------------------------------------------------------------

    def frontier(self, count: int = 32) -> pd.DataFrame:
        """Time, error and memory, by paths that none is better than in all three.

        Of the first graphs that differ in time, the first that computes nothing in less, and the
        given one.
        """
        check_number(PlanError, "count", count, 1, whole=True, optional=False)
        exact = [] if self.tolerance is None else [self._exact.graph_at(0)]
        frame = self._frame([*self.paths.different(count).values(), *exact, self.given], True)
        kept = []
        for i, row in frame.iterrows():
            others = frame.drop(index=i)
            columns = ["time_ns", "error", "memory_bytes"]
            is_beaten = (others[columns] <= row[columns]).all(axis=1) & (
                others[columns] < row[columns]
            ).any(axis=1)
            kept.append(not is_beaten.any())
        best = frame[kept].drop_duplicates(subset=["time_ns", "error", "memory_bytes"])
        return best.reset_index(drop=True)

    def to_frame(self, count: int = 50, *, errors: bool = False) -> pd.DataFrame:
        """The first paths: number, time_ns, source, spread, rules, calls, kernels, memory_bytes.

        `errors` are of graphs: of each, its cheapest path.
        """
        check_number(PlanError, "count", count, whole=True, optional=False)
        return self._frame(islice(self.paths.graphs() if errors else self, count), errors)

    def _frame(self, paths: Iterable[Path], errors: bool) -> pd.DataFrame:
        import pandas as pd

        rows = []
        for path in paths:
            estimate = path.estimate
            row = {
                "number": path.number, "time_ns": path.time_ns, "source": estimate.source,
                "spread": estimate.spread, "measured": estimate.share("measured"),
                "calls": len(path.calls), "rules": ", ".join(path.rules),
                "kernels": len(path.kernels),
                "memory_bytes": int(estimate_memory(path.graph).keep_all_bytes),
            }  # fmt: skip
            rows.append({**row, "error": self.error(path)} if errors else row)
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        return str(self.paths)


def runs_of(session: GraphSession) -> list[PlannedRun]:
    """The runs that happened, or those that a session plans for; none before its first plan."""
    graph = session.ground.held
    return [
        PlannedRun(
            max(weight, 1e-9),
            {leaf.name: region for leaf, region in changes(graph, kind, origin).items()},
            joined(handed_out(graph, kind, origin).values()),
        )
        for kind, (weight, origin) in _classes(session).items()
    ]


def _classes(session: GraphSession) -> Classes:
    """How often runs of each class came, and where last."""
    found: Classes = {}
    for bucket in session.runner.happened:
        kind, origin = bucket.classify(session.ground.held)
        found[kind] = (found[kind][0] + 1.0 if kind in found else 1.0, origin)
    return found or dict(session.planning.classes)


def read_samples(session: GraphSession, samples: Any) -> list[dict[str, Array]]:
    """Inputs of the session's graph as arrays, whichever path is in force.

    Raises InputError as `run` does for inputs that it does not take, also where one is missing.
    """
    kinds, mend = (list, tuple), "pass a list of inputs, each as `run` takes them"
    _check_given(PlanError, "samples", samples, kinds, mend)
    reader = replace(session.ground, graph=session.ground.held).reader(None)
    found = []
    for one in samples:
        given = dict(reader.completed(reader.arrays(reader.named(one)), {}))
        for name, array in given.items():
            reader.check_values(name, array, Region.full(array.shape))
        found.append(given)
    return found


def references(
    graph: Graph, inputs: Mapping[str, Array], weights: Mapping[str, Array]
) -> dict[str, Array]:
    """Outputs by the references of a graph's ops, in float64; states are 0."""
    states = {n: np.zeros(node.shape, numpy_dtype(node.dtype)) for n, node in graph.states.items()}
    exact = exact_values(graph, {**inputs, **states}, weights)
    values = {node: exact(node) for node in graph.nodes if not node.is_leaf}
    return {name: values[node] for name, node in graph.outputs.items() if not node.is_leaf}


def _check_given(
    error: type[TgbenchError], what: str, given: Any, kinds: type | tuple[type, ...], mend: str
) -> None:
    """`check_kind` of what cannot be left out."""
    check_kind(error, what, given, kinds, mend)
    if given is None:
        raise error(f"{what}=None; {mend}")


def _check_records(records: Any) -> None:
    _check_given(RecordsError, "records", records, Records, "pass Records('records.db')")


def _place(number: Any) -> int:
    """A place among paths; raises PlanError for what is none."""
    is_place = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_place or number < 0:
        raise PlanError(f"[{shorten(number)}] names no path; they are counted from 0, the cheapest")
    return int(number)


def _missing(place: int, those: Iterable[Path], what: str) -> PlanError:
    return PlanError(
        f"[{place}] names no path; there are {counted(sum(1 for _ in those), what)}, counted from 0"
    )


def _keys(path: Path) -> set[tuple[str, str]]:
    """The kernels and signatures that nothing was measured of."""
    return {(kernel.name, call.lying) for call, kernel in path.unmeasured()}


def _disjoint(unknown: Sequence[Path], tried: Set[tuple[str, str]], count: int) -> list[Path]:
    """The first paths that have nothing to measure in common, at most so many."""
    found: list[Path] = []
    seen = set(tried)
    for path in unknown:
        keys = _keys(path) - tried
        if len(found) < count and not keys & (seen - tried):
            found.append(path)
            seen |= keys
    return found


def _pairs(kernels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(kernels.items()))


def off(found: Mapping[str, Any], right: Mapping[str, Array]) -> float:
    """The largest relative error of some outputs."""
    return max((difference(found[n], value).relative for n, value in right.items()), default=0.0)
