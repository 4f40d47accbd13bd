"""What a session plans for, and how: classes of runs in, decisions that fit out.

    runs ── adding ──→ classes, places ── calibrate ── quick | searched ──→ Decisions
                                          a plan file ───────── checked ──→ Decisions

What is decided comes back as a value; the session puts it in force, under the lock of its arena. A
run comes with a class and a place, its *origin*. Of each class the last place counts, and every
place where a run did not fit has to fit from then on. Of both the last ones are known: a run of a
class that was forgotten is planned for as one that never was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from tgbench.base.collector import lasting
from tgbench.base.coords import value_of
from tgbench.base.errors import PlanError
from tgbench.base.memo import Latest
from tgbench.base.regions import Box, Region
from tgbench.base.switches import PLANS, tell
from tgbench.base.words import counted, format_bytes, format_time, listed
from tgbench.costs.model import CostModel
from tgbench.costs.nearby import Nearby
from tgbench.graph.graph import Graph
from tgbench.memory.arena import Arena, Seat
from tgbench.memory.estimate import parse_bytes, total_bytes
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.background.task import SearchTask
from tgbench.plans.decisions import Classes, Decisions
from tgbench.plans.following import (
    Reach,
    change_as_asked,
    change_behind,
    change_onwards,
    in_sight,
    unit_change,
    whole_lines,
)
from tgbench.plans.plan import Plan
from tgbench.plans.planner import Planner, Progress
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.workload import Workload, frequent
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.chain import Submits
from tgbench.plans.search.effort import Effort, Mode
from tgbench.plans.search.optimiser import Optimiser
from tgbench.programs.calibrate import Calibrator
from tgbench.programs.choices import Called, Choices
from tgbench.programs.exact.findings import Exactness
from tgbench.programs.pool import Pool
from tgbench.programs.program import Program
from tgbench.programs.teamwork import Teamwork
from tgbench.runs.buckets import Bucket, BucketClass, Spot
from tgbench.runs.raster import Raster
from tgbench.runs.rules import Rules
from tgbench.session.arguments import ArgumentReader

SMALL_BYTES, SMALL_SHARE = 1 << 20, 16  # outputs that are held whole: so many, or of the weights
WINDOW = Raster(8)  # of an image, of which a part changes
MOST_IN_PIECES = 1000  # unplanned classes that are remembered to have run so
MOST_CLASSES, MOST_PLACES = 256, 64  # that are planned for, and places of each
AMPLY, MOST_AMPLE = 16, 2  # at least such a part of a dimension is asked for; the last ones

Retain: TypeAlias = Literal["auto", "all"]
Runs: TypeAlias = Sequence[Spot]
Place: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True)
class Search:
    """How to look for a better plan.

    Fields:
        mode, effort, seed: where it looks, how long, and in which of many ways.
        executor, workers: where chains of the search run, and how many.
        stop: asked now and then; True ends the search.
    """

    mode: Mode
    effort: Effort
    seed: int = 0
    executor: Submits | None = None
    workers: int = 1
    stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class ReadTrace:
    """What a search made of what happened: another one over the same need not find it again.

    Fields:
        scheduled, happened, costs: what it was read from; costs as they were then.
        model: of whole runs; None where nobody asked for it.
    """

    scheduled: ScheduledGraph
    happened: tuple[Bucket, ...]
    costs: Hashable
    workload: Workload
    model: Model | None = None


def _latest() -> Latest[BucketClass, Any]:
    return Latest(MOST_CLASSES)


@dataclass(eq=False)
class Planning:
    """One session's plans: what they are for, and how they are made.

    Fields:
        scheduled: the graph's, with the schedule in force.
        pool, rules, costs, exactness: of the session.
        seat: its place in the arena, which bounds a plan as well.
        progress: told what is going on.
        calibrator: times kernels before a plan; None where models do.
        retain: "auto", or "all" to keep everything that is read again.
        budget_bytes: of the arena; None for what is needed.
        classes: what is planned for: how often, and where last.
        places: where the runs of a class have to fit too.
        likely: classes that may come, and where: what they take decides what is made for them, and
            a plan holds them if there is room.
        ample: classes that ask for more than those that came, and where: a plan holds them if there
            is room, as a map for a row holds no second one.
        calibrated: classes whose calls were looked at.
        missed: classes whose runs fitted once in nothing but a new plan.
        in_pieces: unplanned classes that ran so.
    """

    scheduled: ScheduledGraph
    pool: Pool
    rules: Rules
    costs: CostModel
    exactness: Exactness | None
    seat: Seat
    progress: Progress
    calibrator: Calibrator | None
    retain: Retain
    budget_bytes: int | None
    classes: Latest[BucketClass, tuple[float, Place]] = field(default_factory=_latest)
    places: Latest[BucketClass, Latest[Place, None]] = field(default_factory=_latest)
    likely: Latest[BucketClass, Place] = field(default_factory=_latest)
    ample: Latest[BucketClass, Place] = field(default_factory=lambda: Latest(MOST_AMPLE))
    calibrated: Latest[BucketClass, None] = field(default_factory=_latest)
    missed: Latest[BucketClass, None] = field(default_factory=_latest)
    in_pieces: Latest[BucketClass, None] = field(default_factory=lambda: Latest(MOST_IN_PIECES))
    _smallest: Latest[Bucket, list[Bucket]] = field(default_factory=lambda: Latest(1))
    _reach: Reach | None = None
    _read: ReadTrace | None = None

    @cached_property
    def team(self) -> Teamwork:
        """Who computes products where no threads may meet."""
        return Teamwork(self.costs)

    @property
    def graph(self) -> Graph:
        """The session's, in which every node comes once."""
        return self.scheduled.folded

    @property
    def device(self) -> str:
        return self.seat.arena.device

    @property
    def exact(self) -> str | None:
        """What is promised of bits, as a plan file says it."""
        return None if self.exactness is None else "bitwise"

    # --- budgets ---------------------------------------------------------------------------------

    @property
    def limit_bytes(self) -> int | None:
        """What a plan may take: the budget, or what the arena has left if that is less."""
        bounds = [b for b in (self.budget_bytes, self.seat.room_bytes) if b is not None]
        return min(bounds, default=None)

    @contextmanager
    def budgeted(self, budget: int | str | None) -> Iterator[None]:
        """Another budget, where one is given; taken back if what is done under it fails."""
        before = self.budget_bytes
        try:
            if budget is not None:
                self.budget_bytes = parsed(budget, self.graph, self.seat.arena, self.pool)
            yield
        except BaseException:
            self.budget_bytes = before
            raise

    # --- what to plan for ------------------------------------------------------------------------

    def first_runs(self, bucket: Bucket, spot: Spot, reader: ArgumentReader) -> Runs:
        """With no history: this run, and the smallest change that may follow it."""
        following = [reader.rounded(one).classify(self.graph) for one in self._lines(bucket)]
        return [spot, *following]

    def _lines(self, bucket: Bucket) -> list[Bucket]:
        """The smallest changes that may follow a run; of the last one they are remembered."""
        known = self._smallest.get(bucket)
        if known is None:
            found = (unit_change(bucket, self.scheduled, name) for name in self.graph.inputs)
            known = self._smallest[bucket] = [
                whole_lines(one, self.reach(one), self.graph) for one in found if one is not None
            ]
        return known

    def reach(self, bucket: Bucket) -> Reach:
        """What runs with the demand of one compute, in the order of now; the last is remembered."""
        known = self._reach
        if known is None or not known.is_of(bucket.demand, self.scheduled):
            known = self._reach = Reach(bucket.demand, self.scheduled, self.rules)
        return known

    def windows(self, bucket: Bucket) -> list[Bucket]:
        """The same, as large as an eighth of what they do not fill, where inputs are images: how
        large a part changes next, nobody knows.
        """
        if not self.graph.is_of_images:
            return []
        shapes = {name: node.shape for name, node in self.graph.inputs.items()}
        return [
            Bucket.of({n: WINDOW.windowed(part, shapes[n]) for n, part in one.changed},
                      dict(one.demand))
            for one in self._lines(bucket)
        ]  # fmt: skip

    def narrower(self, window: Bucket) -> Bucket:
        """The same with parts that are two thirds as wide where they do not fill an input."""
        shapes = {name: node.shape for name, node in self.graph.inputs.items()}
        return Bucket.of({n: _narrowed(part, shapes[n]) for n, part in window.changed},
                         dict(window.demand))  # fmt: skip

    def blocks(self, bucket: Bucket) -> list[Bucket]:
        """Changes that would be as large as what a run was asked for, where that is a block."""
        return self._of_inputs(change_as_asked, bucket)

    def onwards(self, bucket: Bucket) -> list[Bucket]:
        """Changes of all that lies behind some element, which what was asked for depends on."""
        return self._of_inputs(change_onwards, bucket)

    def behind(self, bucket: Bucket) -> list[Bucket]:
        """Changes of one element behind all that was asked for."""
        return self._of_inputs(change_behind, bucket)

    def in_sight(self, bucket: Bucket) -> list[Bucket]:
        """The smallest changes, where all was asked for and just what lies beside them is looked at
        next, or beside what comes before: of images one looks at all.
        """
        found = (in_sight(one, self.graph) for one in self._lines(bucket))
        return [one for seen in found if seen is not None for one in (seen, *self.behind(seen))]

    def provide(self, bucket: Bucket) -> None:
        """Have room in the next plan, if a budget leaves some, for runs that ask for more than one
        did: from nothing, and after a change of as much.
        """
        if self.limit_bytes is None:
            return
        shapes = {name: node.shape for name, node in self.graph.outputs.items()}
        demand = {name: _more(region, shapes[name]) for name, region in bucket.demand}
        if demand == dict(bucket.demand):
            return
        afresh = self.afresh(demand)
        for one in (*self.blocks(afresh), afresh):
            kind, place = one.classify(self.graph)
            self.ample[kind] = place

    def _of_inputs(
        self, change: Callable[[Bucket, ScheduledGraph, str], Bucket | None], bucket: Bucket
    ) -> list[Bucket]:
        """A kind of change, of each input that there is one of."""
        found = (change(bucket, self.scheduled, name) for name in self.graph.inputs)
        return [one for one in found if one is not None]

    def whole_runs(self) -> Runs:
        """The run that computes everything and hands all of it out, where that is cheap to hold.

        Its program may serve any run; it is worth no budget, and no outputs that are large beside
        the weights (a row of logits is asked for, all of them are not).
        """
        is_free = self.limit_bytes is None
        return [self.afresh().classify(self.graph)] if is_free and self._holds_outputs else []

    def same_runs(self, bucket: Bucket) -> Runs:
        """All outputs asked for once more, where that was asked, nothing changed and holding them
        is cheap: where every change reaches everything, nothing else reads what was answered.

        Under a budget too: such a run fits where the one before it did, and what was answered is
        held if that saves more than what else its bytes may hold.
        """
        asks_for_all = bucket.demand == self.afresh().demand
        same = Bucket((), bucket.demand).classify(self.graph)
        return [same] if asks_for_all and self._holds_outputs else []

    @property
    def _holds_outputs(self) -> bool:
        """Whether all outputs are small beside the weights, and beside a budget, if there is one:
        a plan would rather run in pieces than leave out what is read again.
        """
        held = sum(node.type.size_bytes for node in self.graph.parameters.values())
        asked = sum(node.type.size_bytes for node in self.graph.outputs.values())
        most, limit = max(SMALL_BYTES, held // SMALL_SHARE), self.limit_bytes
        return bool(asked <= (most if limit is None else min(most, limit // SMALL_SHARE)))

    @property
    def everything(self) -> dict[str, Region]:
        """All of the inputs and states that count: what changed where nothing is known."""
        return {leaf.name: Region.full(leaf.shape) for leaf in self.scheduled.kept}

    @property
    def leaves(self) -> Sequence[str]:
        """Names of the inputs and states that count."""
        return self.scheduled.leaves

    def afresh(self, demand: Mapping[str, Region] | None = None) -> Bucket:
        """A run that finds nothing, and is asked for this; for all outputs if left out."""
        if demand is None:
            demand = {name: Region.full(node.shape) for name, node in self.graph.outputs.items()}
        return Bucket.of(self.everything, demand)

    @contextmanager
    def adding(self, runs: Runs, fits: Runs = (), alone: bool = False) -> Iterator[None]:
        """Some more runs to plan for, and some that have to fit; `alone`, they are all that is
        planned for from then on. Taken back if that fails.
        """
        before = self.classes.copy(), self.places.copy()
        tell(PLANS, lambda: f"a plan is needed for {listed([str(run.kind) for run in runs])}")
        try:
            if alone:
                self.classes.clear()
                self.places.clear()
            for kind, origin in runs:
                weight = self.classes[kind][0] if kind in self.classes else 1.0
                self.classes[kind] = (weight, origin)
            for kind, origin in (*runs, *fits):
                self.places[kind] = self.places.get(kind, Latest(MOST_PLACES)).copy()
                self.places[kind][origin] = None
            yield
        except BaseException:
            self.classes, self.places = before
            raise

    def history(self, happened: Iterable[Bucket]) -> list[Bucket]:
        """What happened; before anything did, the classes that a plan was made for."""
        return list(happened) or [kind.bucket(at) for kind, (_, at) in self.classes.items()]

    def deserves_a_plan(self, kind: BucketClass, program: Program) -> bool:
        """Whether an unplanned class comes again in pieces, although no budget asks for them."""
        if self.budget_bytes is not None or len(program.steps) == 1 or kind in self.classes:
            return False
        again = kind in self.in_pieces
        self.in_pieces[kind] = None
        return again

    def takes_more(self, spot: Spot) -> bool:
        """Whether a run is rather computed as a larger one, or afresh, than planned for.

        Where it was planned for, another plan is the same plan; and where its class was once
        planned for in vain, as it fits from nothing but not from what is there, elsewhere as well.
        """
        kind, origin = spot
        is_corner = kind in self.classes and origin in kind.corners(self.classes[kind][1])
        return is_corner or kind in self.missed or origin in self.places.get(kind, ())

    def corners(self) -> list[Spot]:
        """Where the planned classes lie last and at the ends, largest slices first."""
        found = [
            Spot(kind, at) for kind, (_, last) in self.classes.items() for at in kind.corners(last)
        ]
        return sorted(found, key=lambda spot: -spot.kind.elements)

    # --- how a plan is made ----------------------------------------------------------------------

    def planner(self, scheduled: ScheduledGraph) -> Planner:
        """Plans for an order of the graph's nodes with what this session knows of times."""
        nearby = Nearby(self.costs)  # of its own: a plan is the same whatever was asked
        return Planner(
            scheduled, self.rules, self.device, self.costs.time_ns, self.progress,
            Choices(self.rules, nearby.common),
        )  # fmt: skip

    @property
    def choices(self) -> Choices:
        """Kernels by what this session knows of times, as searches choose them."""
        return Choices.by(self.costs)

    def calibrate(self, planner: Planner, happened: Iterable[Bucket] = ()) -> None:
        """Time what counts in the runs of the classes at hand, in those that may come, and in the
        most frequent ones of those that happened, and was never timed here.
        """
        if self.calibrator is None:
            return
        runs = {kind: (1.0, place) for kind, place in self.likely.items()} | {**self.classes}
        runs |= frequent(self.graph, happened)
        new = {kind: how for kind, how in runs.items() if kind not in self.calibrated}
        if not new:
            return
        with lasting():  # the plan will ask the same
            is_worth_it = self.calibrator.may_learn(planner.scheduled.schedule)
            sites = planner.survey(planner.scenarios(new)) if is_worth_it else []
        self.calibrator.learn(sites)
        for kind in new:
            self.calibrated[kind] = None

    def know_anew(self) -> None:
        """Other kernels may be taken than when it was last looked at them."""
        self.costs.learn(())
        self.team.forget()
        self.calibrated.clear()
        self.pool.forget_prepared()

    @property
    def _may_come(self) -> list[Scenario]:
        """Runs that a plan has room for, if there is some; those that take most first."""
        return [
            Scenario(kind, tuple([bound // 2 for bound in kind.bounds]), 0.0)
            for kind in (*reversed(self.ample), *self.likely)
        ]

    def quick(self) -> Decisions:
        """A plan for the classes at hand: what happened in which order does not count."""
        began_ns = time.perf_counter_ns()
        planner = self.planner(self.scheduled.once.copying(()))
        self.calibrate(planner)
        scenarios = planner.scenarios(self.classes)
        for kind, places in self.places.items():
            scenarios += [Scenario(kind, at, 0.0) for at in sorted(places)]
        with lasting():
            made = self.seat.choose(
                lambda budget: planner.plan(
                    scenarios, budget, self.retain == "all", self._may_come
                ),
                self.budget_bytes,
            )
        return logged("planned", self._for_these(made), began_ns)

    def _for_these(self, made: Decisions) -> Decisions:
        """The same for the classes at hand, by what is known now; and so what competed."""
        if (instead := made.instead) is not None:
            instead = replace(instead, decisions=self._for_these(instead.decisions))
        return replace(made, classes=dict(self.classes), records=self.costs.basis, instead=instead)

    def searched(
        self, search: Search, happened: Iterable[Bucket], start: Decisions | None
    ) -> Decisions:
        """The best plan that a search finds for what happened, from `start` on.

        Going through what happened is a part of the time that a search has.
        """
        began_ns = time.perf_counter_ns()
        trace = self._trace(happened)

        def found(room: int | None) -> Decisions:
            effort = search.effort.after((time.perf_counter_ns() - began_ns) * 1e-9)
            optimiser = self._optimiser(trace.workload, room, search)
            judge = optimiser.judge
            judge.tabulated = trace.model
            made = optimiser.run(search.mode, effort, search.seed, start)
            self._read = replace(trace, model=judge.tabulated)
            return made

        made = self.seat.choose(found, self.budget_bytes)
        return logged("searched", replace(made, records=self.costs.basis), began_ns)

    def seen(self, happened: Iterable[Bucket]) -> Runs:
        """The classes of what happened, where each came last; TraceError as of a search."""
        found = self._trace(happened).workload
        return [Spot(kind, found.seen[kind][1]) for kind in found.kinds]

    def _trace(self, happened: Iterable[Bucket]) -> ReadTrace:
        """What happened, as it was read last if that is the same."""
        history, costs = tuple(self.history(happened)), self.costs
        known = costs.version, costs.asked, tuple(sorted(costs.pins.items()))
        last = self._read
        if (
            last is None
            or last.scheduled is not self.scheduled
            or ((last.happened, last.costs) != (history, known))
        ):
            workload = Workload.of(self.scheduled, self.rules, history)
            last = self._read = ReadTrace(self.scheduled, history, known, workload)
        return last

    def _optimiser(self, workload: Workload, room: int | None, search: Search) -> Optimiser:
        return Optimiser(
            self.scheduled, self.rules, workload, room, self.costs.time_ns, self.device,
            classes=self.classes, executor=search.executor, workers=search.workers,
            progress=self.progress, stop=search.stop, choices=self.choices,
            likely=self._may_come, learn=None if self.calibrator is None else self._learns,
        )  # fmt: skip

    def _learns(self, runs: Sequence[Sequence[Called]], seconds: float) -> bool:
        """Time the calls of a plan that may be put in force, as they lie; whether any were."""
        assert self.calibrator is not None
        return self.calibrator.learn_calls(runs, seconds) > 0

    def task(self, happened: Iterable[Bucket], start: Plan | None) -> SearchTask:
        """The same search, as what a process of its own is given."""
        return SearchTask.of(
            self.scheduled, self.history(happened), self.limit_bytes, self.costs, self.device,
            self.classes, start,
            self.exactness.by_node if self.exactness is not None else None, self.rules.unpacked,
        )  # fmt: skip

    # --- plans from elsewhere --------------------------------------------------------------------

    def checked(self, plan: Plan) -> Decisions:
        """A plan as it is, if it is for this session and fits; raises PlanError if not."""
        began_ns = time.perf_counter_ns()
        found = plan.placement_for(self.graph, self.device)
        if plan.exact != self.exact:
            raise PlanError(
                f"exact: the plan is for exact={plan.exact!r}, the session for {self.exact!r}; "
                f"make the session with exact={plan.exact!r}, or delete the plan to plan anew"
            )
        self._check_size(found.placement)
        return logged("taken over", found, began_ns)

    def _check_size(self, placement: Placement) -> None:
        """Raise PlanError for a map that is larger than the budget, the device or the arena."""
        size = placement.size_bytes
        if self.budget_bytes is not None and size > self.budget_bytes:
            raise PlanError(
                f"the plan needs {size} bytes, the budget is {self.budget_bytes}; raise memory=, "
                "or drop plan= to plan for this budget"
            )
        if size > total_bytes(self.device):
            raise PlanError(
                f"size_bytes: {size} is more than {self.device} has; delete the plan to plan anew"
            )
        if self.seat.excess_bytes(placement) > 0:
            raise PlanError(
                f"the plan needs {size} bytes, of which {self.seat.room_bytes} are left in the "
                "arena; make it larger, or drop plan= to plan for what is left"
            )

    def take_in(self, classes: Classes) -> None:
        """Plan from now on for these as well."""
        for kind, how in classes.items():
            self.classes[kind] = how

    def take_over(self, decisions: Decisions) -> None:
        """Plan from now on also for what a plan from elsewhere is for, and time what counts."""
        self.take_in(decisions.classes)
        self.calibrate(self.planner(decisions.scheduled))


def logged(how: str, made: Decisions, began_ns: int) -> Decisions:
    """The same, once whoever debugs has read of it."""
    took_ns = time.perf_counter_ns() - began_ns
    tell(
        PLANS,
        lambda: (
            f"{how} in {format_time(took_ns)}: {counted(len(made.classes), 'class')} in "
            f"{format_bytes(made.placement.size_bytes)}, {counted(len(made.retained), 'node')} "
            f"retained, {format_time(made.expected_ns)} expected"
        ),
    )
    return made


def parsed(memory: int | str | None, graph: Graph, arena: Arena, pool: Pool) -> int | None:
    """`memory=` in bytes, for a graph with these weights beside this arena."""
    return parse_bytes(memory, graph, arena.device, arena.compute_peak_bytes, pool.packed_bytes)


def _more(part: Region, shape: Sequence[int]) -> Region:
    """Twice as much of a part along dimensions that it does not fill, at least a 16th of each."""
    sides = []
    for (start, stop), size in zip(part.hull(), shape, strict=True):
        length = min(max(2 * (stop - start), -(-size // AMPLY)), size)
        first = min(start, size - length)
        sides.append((start, stop) if stop - start == size else (first, first + length))
    return Region((Box(sides),))


def _narrowed(part: Region, shape: Sequence[int]) -> Region:
    return Region(tuple([_narrow(box, shape) for box in part]))


def _narrow(box: Box, shape: Sequence[int]) -> Box:
    return Box(
        (start, stop if stop - start == size else start + -(-2 * value_of(stop - start) // 3))
        for (start, stop), size in zip(box, shape, strict=True)
    )
