"""The best plan that a budget and some time allow, with a bound on how much better any could be.

    ladder per cut: what goes first ─→ greedy plan ─┐
                         │            saved plan ──┼─→ best ←── really laid out, really replayed
                         └─→ rollouts, windows ────┘              ↑
    beside: relaxed and integer program per cut ──→ bound, retentions

The tabulated model proposes; offsets and the replayed trace dispose. A retention whose slices do
not pack is tried again with as much less memory as it was over. What was found is never given up
for less: the result is as fast as the greedy plan at least, and as the plan it began with.

The search goes on while programs are solved. What they bound is said once every way of cutting has
a bound: one that some plan of the search may be below is none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base.coords import value_of
from tgbench.base.errors import BudgetError, PlanError, check_choice
from tgbench.base.regions import Box
from tgbench.base.stopping import StopReason
from tgbench.base.words import format_bytes, format_time
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Ranking, candidates
from tgbench.memory.placement import ALIGNMENT, ANY, Placement, Retention, Turn, aligned
from tgbench.memory.schedule import lowest_peak
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Classes, Decisions, SearchRecord
from tgbench.plans.plan import Plan
from tgbench.plans.planner import Cost, Planner
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.chain import (
    ROUND,
    WINDOW_NODES,
    Chain,
    Submits,
    Visited,
    run_round,
    together,
)
from tgbench.plans.search.exact import IntegerProgram, Relaxed, SolverLimits
from tgbench.plans.search.ladder import Ladder
from tgbench.plans.search.mcts import worth_ns
from tgbench.plans.search.model import Model
from tgbench.plans.search.polish import polished
from tgbench.plans.search.proofs import Answer, Proofs, Question
from tgbench.plans.search.replay import Misfit, Replayed, replay
from tgbench.plans.search.tables import Tables, tabulate, tabulate_pieces
from tgbench.plans.search.workload import Workload
from tgbench.programs.program import Instruction
from tgbench.runs.buckets import BucketClass
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut

Mode: TypeAlias = Literal["greedy", "search", "exact"]
MODES: tuple[Mode, ...] = ("greedy", "search", "exact")
FILL_NS = 1_000.0  # putting known values where somebody looks
CLOSE = 1e-4  # a gap that counts as none
LOWER = 0.99  # what another order of the graph has to save to be taken
ORDER_STEPS = 500_000  # of the search for one
SAMPLED = 2e-3  # what examples of transitions may be off from all of them
MOST_SPARE = 0.25  # of the budget: how much less the model is given, because packing takes more
TRIED_A_ROUND = 3  # retentions laid out and replayed
MOST_TRIES = 6  # of one retention, each with less memory than the one before
MOST_PARTS = 32  # of a cut run
MOST_BRANCHES = 400  # of the search tree that is shown
MORE = 2.0  # times as long as before: what an integer program is given to be solved again
DEAR = 1.01  # times what runs take where all is kept: what costs more is weighed against cuts
BEGINNING = 0.25  # of the time: what the first plans may take
WINDOWS_LEFT = 8  # of the time that is left, the share that one window may take
SOON = 0.025  # of the time: a first plan made so soon leaves enough for the planner's beside it
OPENING = 0.5  # of the time: for how long ways of cutting come before rounds
MOST_NODES = 2_000  # of an integer program, where steps are what counts
LOOKED_AT_S = 0.05  # between two looks at what is solved, where nothing else is left to do
FINER = 0.998  # a finer cut has to promise to be this much faster
MOST_AXES = 3  # input dimensions along which runs may be cut
BONUS = 1.02  # a retention the model puts this much behind the best may be ahead when replayed


@dataclass(frozen=True)
class Effort:
    """When to stop: whatever comes first. With `steps` alone the result is reproducible.

    Fields:
        seconds: wall time.
        steps: rollouts, and windows that are solved.
    """

    seconds: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A plan that fits, and what its trace takes.

    Fields:
        modelled_ns: mean run in the tabulated model.
        time_ns: mean run of the replayed trace; modelled where hardly two of its runs are alike
            and replaying them all would take too long.
    """

    retention: Retention
    cut: Cut
    placement: Placement
    replayed: Replayed
    modelled_ns: float
    time_ns: float

    @property
    def key(self) -> tuple[float, int]:
        """Faster first, then smaller."""
        return self.time_ns, self.placement.size_bytes

    def beats(self, other: Candidate) -> bool:
        """Faster, or as fast and smaller; by the model where not both were replayed to the end."""
        if self.replayed.is_whole == other.replayed.is_whole:
            return self.key < other.key
        mine, others = (one.placement.size_bytes for one in (self, other))
        return (self.modelled_ns, mine) < (other.modelled_ns, others)


@dataclass
class Arm:
    """One way of cutting large runs, and the model of it.

    Fields:
        ladder: what its retentions let go of first.
        relaxed: what bounds it, where that is known.
        optimum_ns: of its integer program, where that packed at once.
        spare_bytes: what packing took beyond the model, so far.
        examined_s: what its integer programs could take when they were solved; 0: they were not.
        visited: the search tree of all rounds.
    """

    cut: Cut
    model: Model
    ladder: Ladder
    relaxed: Relaxed | None = None
    optimum_ns: float = math.inf
    spare_bytes: int = 0
    examined_s: float = 0.0
    tried: set[bytes] = field(default_factory=set)
    visited: Visited = field(default_factory=dict)

    @property
    def bound_ns(self) -> float:
        """No retention is faster; 0 as long as that is not known."""
        return 0.0 if self.relaxed is None else self.relaxed.bound_ns

    def promise_ns(self, budget_bytes: int) -> float:
        """What the ladder comes to; infinite where nothing fits."""
        keep = self.ladder.within(budget_bytes)
        return math.inf if keep is None else float(self.model.score(keep[None]).time_ns[0])


@dataclass(frozen=True)
class LaidOut:
    """A plan that was laid out and replayed, whether it is the best or not."""

    time_ns: float
    size_bytes: int
    kept: int  # nodes
    parts: int  # of a large run
    plan_json: str = ""


@dataclass(frozen=True)
class Visit:
    """A branch of the search tree.

    Fields:
        above: position of the branch that it hangs from; −1 for the root.
        node, is_kept: what it answers, and how; "" for the root.
        value: mean reward of its rollouts, from 0 to 1.
    """

    above: int
    node: str
    is_kept: bool
    visits: int
    value: float


class Optimiser:
    """Searches one graph's plans for one workload.

    Args:
        cost: expected nanoseconds of one box of one call.
        classes: every class that has to fit, with how often it came and where it was last seen.
        executor: anything with `submit(function, *arguments) → future`: a process pool, a Dask
            client; None to search here.
        stop: asked now and then; True ends the search.
        watch: shown every better plan, and the best one after every round.
        look: shown every plan that was laid out, and the search tree after every round, if given.
        ranking: which kernels take a site, the best first; the same that runs use.

    What a call of `run` proves holds for the next one within the same budget: orders, the ways of
    cutting and their bounds are found once. `proven_ns` is a bound that was found elsewhere.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        workload: Workload,
        budget_bytes: int | None,
        cost: Cost,
        device: str = "cpu",
        *,
        classes: Classes | None = None,
        executor: Submits | None = None,
        workers: int = 1,
        progress: Callable[[str], None] | None = None,
        stop: Callable[[], bool] | None = None,
        watch: Callable[[Decisions], None] | None = None,
        look: Callable[[LaidOut | tuple[Visit, ...]], None] | None = None,
        ranking: Ranking = candidates,
    ) -> None:
        self.scheduled, self.rules, self.device = scheduled, rules, device
        self.workload, self.cost = workload, checked(cost)
        self.budget_bytes = budget_bytes
        rare = {k: v for k, v in (classes or {}).items() if k not in workload.seen}
        common = {kind: workload.seen[kind] for kind in workload.kinds}
        self.classes: Classes = {**common, **workload.seen, **rare}
        self.tell = progress or (lambda message: None)
        self.planner = Planner(scheduled, rules, device, self.cost, progress, ranking)
        self.executor = executor
        self.workers = workers
        self.stops = stop or (lambda: False)
        self.watch, self.look = watch or (lambda decisions: None), look
        self._places: dict[tuple[BucketClass, tuple[int, ...]], None] = {}  # that maps lacked
        self._times: dict[tuple[Any, ...], float] = {}
        self._ordered: dict[int | None, tuple[list[Optimiser], Iterator[Optimiser]]] = {}
        self.opened: dict[tuple[int, Cut, bool], Arm] = {}
        self.least_ns: dict[int, float] = {}  # by budget: no plan is faster, however runs are cut
        self.proven_ns = 0.0

    # --- what is common to all modes -------------------------------------------------------------

    def run(
        self,
        mode: Mode = "search",
        effort: Effort | None = None,
        seed: int = 0,
        start: Decisions | None = None,
    ) -> Decisions:
        """Plan; goes on from `start` if that is a plan for the same graph.

        Raises BudgetError if nothing fits, PlanError for an unknown mode.
        """
        check_choice(PlanError, "mode", mode, MODES)
        effort = effort or Effort(seconds=30.0)
        first = _PlanSearch(self, mode, effort, seed, start)
        first.begin()
        try:
            begun = [first, *self._elsewhere(first)]
            return min(begun, key=_PlanSearch.standing).run()
        except BudgetError as error:
            search = _PlanSearch(self._again(error), mode, effort, seed, start, first.began)
            search.begin()
            return search.run()

    def _elsewhere(self, first: _PlanSearch) -> Iterator[_PlanSearch]:
        """The same search in other orders, where there is something to gain, and time."""
        is_plain = self.scheduled is self.scheduled.once.copying(())
        if is_plain and (first.keeps_all or (first.mode == "greedy" and first.loses_little)):
            return
        made, more = self._ordered.setdefault(self.budget_bytes, ([], self._others()))
        others = chain(list(made), more)
        while not first.is_late(BEGINNING) and (other := next(others, None)) is not None:
            if other not in made:
                made.append(other)
            other.proven_ns = self.proven_ns
            search = _PlanSearch(
                other, first.mode, first.effort, first.seed, first.start, first.began
            )
            search.begin()
            yield search

    def over(self, scheduled: ScheduledGraph) -> Optimiser:
        """The same search over another order of the graph's nodes, or with other views copied."""
        same = _is_alike(scheduled, self.scheduled)
        workload = self.workload if same else self.workload.over(scheduled, self.rules)
        return Optimiser(
            scheduled, self.rules, workload, self.budget_bytes, self.cost, self.device,
            classes=self.classes, executor=self.executor, workers=self.workers,
            progress=self.tell, stop=self.stops, watch=self.watch, look=self.look,
            ranking=self.planner.choices.ranking,
        )  # fmt: skip

    def _again(self, error: BudgetError) -> Optimiser:
        """Over an order that computes some nodes more than once. Raises BudgetError for none."""
        plain, budget_bytes = self.scheduled.once.copying(()), self.budget_bytes or 0
        planner = self.planner.over(plain)
        scenarios = planner.scenarios(self.classes)
        found = planner.again(scenarios, budget_bytes)
        if found.placement.size_bytes <= budget_bytes:
            return self.over(found.planner.scheduled)
        other = planner.too_small(budget_bytes, [found], scenarios)
        raise min(error, other, key=lambda one: one.needed_bytes)

    def _others(self) -> Iterator[Optimiser]:
        """Where not all fits: the same with parts of nodes, and in another order.

        What a plan chose, its order and the views that it copies, is kept, and so is what it would
        be without: it may not have to compute nodes more than once any more, nor to divide them.
        """
        plain = self.scheduled.once.copying(())
        if plain is not self.scheduled:
            as_given = self.over(plain)
            known = self.scheduled.schedule, self.scheduled.copied
            for one in (as_given, *as_given._others()):
                if (one.scheduled.schedule, one.scheduled.copied) != known:
                    yield one
            return
        if self.budget_bytes is None:
            return
        scenarios = self.planner.scenarios(self.classes)
        divided = self.planner.in_parts(scenarios)
        begun = [self, *([] if divided is None else [self.over(divided.scheduled)])]
        yield from begun[1:]
        for one in begun:
            other = one._reordered(scenarios)
            if other is not None:
                yield other

    def _reordered(self, scenarios: Sequence[Scenario]) -> Optimiser | None:
        """The same in another order of the graph, if slices then take less.

        Only the graph's own order is improved on: a plan's was chosen already.
        """
        graph, copied = self.scheduled.graph, self.scheduled.copied
        if self.scheduled.schedule != ScheduledGraph.of(graph).schedule:
            return None
        everything = Retention.always(self.planner.frontier(scenarios))
        placed = self.planner.lay_out(everything, scenarios, WHOLE)
        slices = [node for node in placed.slots if node not in placed.retained]
        found = lowest_peak(
            graph,
            {node: aligned(placed.size_of(node)) for node in slices},
            scratch={node: aligned(room.size_bytes) for node, room in placed.scratch.items()},
            max_steps=ORDER_STEPS,
            copied=copied,
        )
        if found.peak_bytes > LOWER * found.given_bytes:
            return None
        other = self.over(ScheduledGraph.of(graph, found.schedule, copied))
        packed = other.planner.lay_out(everything, scenarios, WHOLE)
        if packed.size_bytes > LOWER * placed.size_bytes:
            return None
        self.tell(
            f"another order: {format_bytes(placed.size_bytes)} → {format_bytes(packed.size_bytes)}"
        )
        return other

    def scenarios(self) -> list[Scenario]:
        """Everything that has to fit, and the weighed transitions.

        Classes fit at their extremes; where a map had no room for a run in between, there too.
        """
        found = self.planner.scenarios(self.classes)
        for kind, origin in self._places:
            found += [Scenario(kind, origin, 0.0, cold=cold) for cold in (False, True)]
        for row in self.workload.rows:
            kind = self.workload.kind(row.of)
            found.append(Scenario(kind, row.origin, 0.0, False, row.of, row.before, row.valid))
        return found

    def candidate(
        self,
        retention: Retention,
        cut: Cut,
        placement: Placement,
        *,
        modelled: bool = True,
        stop: Callable[[], bool] = lambda: False,
    ) -> Candidate | None:
        """A plan with its replayed trace; None if some call of the trace does not fit it.

        That call is one of the `scenarios` then.

        Args:
            modelled: without it the tables are not made for it, and the replay stands for the
                model.
            stop: ends the replay before its time; the model then says how fast the plan is.
        """
        try:
            replayed = replay(
                self.scheduled, self.rules, placement, cut, self.workload.circle,
                self.instruction_ns, self.device, self.planner.choices.ranking, self.classes,
                stop,
            )  # fmt: skip
        except Misfit as found:
            self._places[found.kind, found.origin] = None
            return None
        tabulated = modelled or not replayed.is_whole
        modelled_ns = self.modelled_ns(retention) if tabulated else replayed.mean_ns
        time_ns = replayed.mean_ns if replayed.is_whole else modelled_ns
        return Candidate(retention, cut, placement, replayed, modelled_ns, time_ns)

    @cached_property
    def uncut(self) -> Model:
        """The model with whole runs; its times hold for every cut."""
        return Model(tabulate(self.scheduled, self.rules, self.workload, self.cost))

    @cached_property
    def ladder(self) -> Ladder:
        """What to let go of first: the same for every cut, whose times are the same."""
        return Ladder.of(self.uncut)

    def bits(self, retention: Retention) -> NDArray[np.bool_]:
        """A retention as [class, node]."""
        keep = np.zeros((self.uncut.turns, self.uncut.nodes), bool)
        for n, node in enumerate(self.scheduled.stored):
            for k in retention.after.get(node, ()):
                keep[k, n] = True
        return keep

    def modelled_ns(self, retention: Retention) -> float:
        return float(self.uncut.score(self.bits(retention)[None]).time_ns[0])

    def instruction_ns(self, made: Instruction, origin: tuple[int, ...]) -> float:
        """The expected time of one instruction, at an origin."""
        if made.kernel == "fill":
            return FILL_NS
        box = made.box.at(origin)
        key = (made.node.call, box)
        found = self._times.get(key)
        if found is None:
            found = self._times[key] = self.cost(made.node.call, box)
        return found


def _is_alike(one: ScheduledGraph, other: ScheduledGraph) -> bool:
    """Whether the same nodes have bytes, in whatever order."""
    return one.graph is other.graph and one.copied == other.copied


def _tree(visited: Visited, nodes: Sequence[Node]) -> tuple[Visit, ...]:
    """The branches that were visited most, each behind the one that it hangs from."""
    most = sorted(visited, key=lambda answers: (-visited[answers][0], len(answers), answers))
    shown = sorted(most[:MOST_BRANCHES], key=lambda answers: (len(answers), answers))
    position = {answers: i for i, answers in enumerate(shown)}
    found = []
    for answers in shown:
        visits, reward = visited[answers]
        node, kept = (nodes[answers[-1][0]].name, answers[-1][1]) if answers else ("", False)
        above = position.get(answers[:-1], -1) if answers else -1
        found.append(Visit(above, node, kept, visits, reward / visits))
    return tuple(found)


def checked(cost: Cost) -> Cost:
    """The same cost, which raises PlanError where it is not a number of nanoseconds."""

    def found(call: Call, box: Box) -> float:
        time_ns = cost(call, box)
        if not 0 <= time_ns < math.inf:
            raise PlanError(
                f"the cost of {call.op.name}{box} is {time_ns}, which is not a time; "
                "mend the cost model or the records that it reads"
            )
        return time_ns

    return found


def told_anew(start: Decisions, workload: Workload) -> Retention:
    """A plan's retention over a workload's turns: what it keeps after all that a turn may be."""
    old, kinds = start.retention, list(start.classes)
    theirs = [_named(turn, kinds) for turn in old.turns]
    alike = [
        frozenset(k for k, their in enumerate(theirs) if _alike(own, their))
        for own in (_named(turn, workload.kinds) for turn in workload.turns)
    ]
    everything = frozenset(range(len(workload.turns)))
    after = {
        node: frozenset(t for t, same in enumerate(alike) if same and same <= turns)
        for node, turns in old.after.items()
    }
    after |= {node: everything for node, turns in old.after.items() if len(turns) == len(theirs)}
    return Retention({n: t for n, t in after.items() if t}, workload.turns, old.shared)


Named: TypeAlias = "tuple[BucketClass | None, BucketClass | None]"  # a turn by its classes


def _named(turn: Turn, kinds: Sequence[BucketClass]) -> Named:
    of = kinds[turn.of] if turn.of < len(kinds) else None
    return of, None if turn.before is None else kinds[turn.before]


def _alike(one: Named, other: Named) -> bool:
    """Whether a run may be of both turns."""
    free = one[1] is None or other[1] is None
    return one[0] is not None and one[0] == other[0] and (free or one[1] == other[1])


class _PlanSearch:
    """One call of `Optimiser.run`: the best so far, and when to stop."""

    def __init__(
        self,
        optimiser: Optimiser,
        mode: Mode,
        effort: Effort,
        seed: int,
        start: Decisions | None,
        began: float | None = None,
    ) -> None:
        self.of = optimiser
        self.mode, self.effort, self.seed = mode, effort, seed
        before = start.search if start is not None and start.search is not None else None
        self.resumes = before is not None and before.seed == seed
        self.steps_before = before.steps if before is not None and self.resumes else 0
        self.history = list(before.history) if before is not None and self.resumes else []
        self.start = start
        self.steps = 0
        self.began = time.monotonic() if began is None else began
        self.best: Candidate | None = None
        self.keeps_all = False  # there is room for all that is read again
        self.refused: BudgetError | None = None  # what greedy planning said, if nothing fitted
        self.greedy_ns = 0.0
        self.bound_ns = optimiser.proven_ns
        self.arms: list[Arm] = []
        self.every: tuple[Arm, ...] = ()  # arms of all cuts, once these are known
        self.frontier: tuple[Node, ...] = ()
        self.sliced: dict[Cut, int] = {}
        self.scratch: dict[Cut, Mapping[Node, int]] = {}  # bytes that kernels want in this budget

    @property
    def is_timed(self) -> bool:
        """Whether time is what ends it, and not the number of steps: then it need not repeat."""
        return self.effort.seconds is not None and self.effort.steps is None

    def is_late(self, share: float = 1.0) -> bool:
        """Whether so much of the time is gone, or somebody said stop."""
        seconds, gone = self.effort.seconds, time.monotonic() - self.began
        return self.of.stops() or (seconds is not None and gone >= share * seconds)

    @property
    def scenarios(self) -> list[Scenario]:
        return self.of.scenarios()

    def begin(self) -> None:
        """The greedy plan, and the saved one."""
        self._greedy()
        if self.start is not None and _is_alike(self.start.scheduled, self.of.scheduled):
            self._resume(self.start)

    @property
    def loses_little(self) -> bool:
        """Whether the best plan takes hardly longer than if all were kept."""
        return self.best is not None and self.best.modelled_ns <= DEAR * self._all_kept_ns

    def standing(self) -> tuple[float, int]:
        """How good the best plan so far is; what fits comes first."""
        return self.best.key if self.best is not None else (math.inf, 0)

    def run(self) -> Decisions:
        """Go on from where `begin` left it. Raises BudgetError if nothing fits."""
        stop = StopReason.NO_SEARCH
        if self.mode != "greedy":
            try:
                stop = self._improve()
            except KeyboardInterrupt:
                stop = StopReason.INTERRUPTED
        if self.best is None:
            return self._in_force()
        return self._decisions(stop, explained=self.mode != "greedy")

    def _in_force(self) -> Decisions:
        """The plan that runs go by, where nothing holds all of them: it serves some as larger runs.

        Raises BudgetError if there is none of this size.
        """
        budget_bytes, start = self.of.budget_bytes, self.start
        if start is not None and (
            budget_bytes is None or start.placement.size_bytes <= budget_bytes
        ):
            return start
        assert self.refused is not None
        raise self.refused

    # --- beginning -------------------------------------------------------------------------------

    def _greedy(self) -> None:
        """The plan for the runs of the trace; one that lacks a run of it is made again with it."""
        found = None
        while found is None:
            scenarios = self.scenarios
            try:
                found = self._first(scenarios)
            except BudgetError as error:
                self.refused = error
                return
            if found is None and len(self.scenarios) == len(scenarios):
                raise PlanError("a run does not fit the plan made for it; this is an error of ours")
        self.greedy_ns = found.time_ns
        self._take(found, "greedy")

    def _first(self, scenarios: list[Scenario]) -> Candidate | None:
        """All that is read again, if there is room; else what is let go of last, whole or in
        pieces; else what the planner finds. Raises BudgetError where nothing fits.
        """
        of, turns, modelled = self.of, self.of.workload.turns, self.mode != "greedy"
        distinct = of.planner.runs.distinct(scenarios)
        wanted = of.planner.frontier(distinct)
        everything = Retention.always(wanted, turns)
        placed = of.planner.lay_out(everything, scenarios, WHOLE, budget_bytes=of.budget_bytes)
        self.frontier = tuple(node for node in wanted if node in placed.slots)
        if of.budget_bytes is None or placed.size_bytes <= of.budget_bytes:
            self.keeps_all = True
            everything = Retention.always(self.frontier, turns)
            return self._candidate(everything, WHOLE, placed, modelled=modelled)
        self.scratch[WHOLE] = {node: room.size_bytes for node, room in placed.scratch.items()}
        best: Candidate | None = None
        for arm in self._by_promise():
            dear = best is None or arm.promise_ns(self._budget) < FINER * best.modelled_ns
            if dear and (best is None or not self.is_late(BEGINNING)):
                found = self._climbed(arm, modelled=modelled)
                best = found if best is None or (found and found.beats(best)) else best
        if best is not None and (
            best.modelled_ns <= DEAR * self._all_kept_ns or self.is_late(SOON)
        ):
            return best
        other = self._planned(scenarios, is_needed=best is None)
        return other if best is None or (other and other.beats(best)) else best

    def _planned(self, scenarios: list[Scenario], *, is_needed: bool) -> Candidate | None:
        """What the planner finds, by maps instead of tables; raises BudgetError for nothing."""
        of = self.of
        try:
            made = of.planner.plan_once(scenarios, of.budget_bytes)
        except BudgetError:
            if is_needed:
                raise
            return None
        retention = Retention.always(made.retained, of.workload.turns)
        return self._candidate(retention, made.cut, made.placement)

    def _climbed(self, arm: Arm, *, modelled: bool) -> Candidate | None:
        """What is let go of last, as much of it as packs."""
        before: NDArray[np.bool_] | None = None
        for _ in range(MOST_TRIES):
            keep = arm.ladder.within(self._budget - arm.spare_bytes)
            if keep is None or (before is not None and (keep == before).all()):
                break
            if (laid := self._laid(arm, keep)) is not None:
                return self._candidate(laid[0], arm.cut, laid[1], modelled=modelled)
            before = keep
        return None

    def _by_promise(self) -> Iterator[Arm]:
        """Whole runs; where those take longer than if all were kept, also ways of cutting them,
        what their ladders come to first.
        """
        cuts = self._cuts()
        [whole] = self._arms_of(next(cuts))
        yield whole
        found: list[Arm] = []
        best_ns = whole.promise_ns(self._budget)
        for cut in cuts:
            if best_ns <= DEAR * self._all_kept_ns or self.is_late(BEGINNING):
                break
            found += self._arms_of(cut)
            best_ns = min(best_ns, found[-1].promise_ns(self._budget))
        yield from sorted(found, key=lambda arm: arm.promise_ns(self._budget))

    @cached_property
    def _all_kept_ns(self) -> float:
        model = self.of.uncut
        keep = np.broadcast_to(model.tables.worthwhile, model.none().shape)
        return float(model.score(keep).time_ns[0])

    def _candidate(
        self, retention: Retention, cut: Cut, placement: Placement, *, modelled: bool = True
    ) -> Candidate | None:
        """The replay of the first plan may take some of the time, and of no other more than is
        left; where it was not enough for the first, the model judges.
        """
        best, share = self.best, BEGINNING if self.best is None else 1.0
        by_model = best is not None and not best.replayed.is_whole and self.is_timed
        return self.of.candidate(
            retention, cut, placement, modelled=modelled,
            stop=lambda: by_model or (self.is_timed and self.is_late(share)),
        )  # fmt: skip

    def _resume(self, start: Decisions) -> None:
        """What an earlier search found counts, as far as it fits this workload and budget."""
        as_it_is = self._as_saved(start)
        if as_it_is is not None:
            self._take(as_it_is, "saved plan")
            return
        found = self._realised(told_anew(start, self.of.workload), start.cut)
        if found is not None:
            self._take(found, "saved plan")

    def _as_saved(self, start: Decisions) -> Candidate | None:
        """The saved plan's own map, where it is for the same classes, schedule and budget."""
        of, kinds = self.of, list(self.of.workload.kinds)
        fits = of.budget_bytes is None or start.placement.size_bytes <= of.budget_bytes
        same = list(start.classes)[: len(kinds)] == kinds
        same = same and start.retention.turns in (of.workload.turns, ANY)
        if not (fits and same and start.scheduled.schedule == of.scheduled.schedule):
            return None
        return self._candidate(told_anew(start, of.workload), start.cut, start.placement)

    # --- improving -------------------------------------------------------------------------------

    def _improve(self) -> StopReason:
        if self.of.budget_bytes is None:
            return StopReason.FITS
        self.proofs = Proofs(self.is_timed)
        try:
            return self._search()
        finally:
            self.proofs.close()

    def _search(self) -> StopReason:
        """Rounds of chains over the arms that may still hold something better.

        After the first round for whole runs all other arms are opened, coarse cuts first, for half
        of the time; then one before each round. Where the result has to be the same every time,
        all of them are opened before the first round.
        """
        number, arms = self.steps_before, self._opening()
        while True:
            more = next(arms, None)
            self._hear()
            if (reason := self._reason_to_stop()) is not None:
                return reason
            if more is not None:
                self._begun_with(more)
                begun = number > self.steps_before and self.is_late(OPENING)
                if self.mode == "exact" or not (self.is_timed and (begun or len(self.arms) == 1)):
                    continue
            hopeful = [arm for arm in self.arms if self._may_be_better(arm.bound_ns)]
            if self.mode == "exact" or not hopeful or self._in_vain(number):
                if more is None and not self.proofs.open:
                    return self._settled()
                self._hear(LOOKED_AT_S)
                continue
            limit = self.effort.steps
            if limit is not None and self.steps and self.steps + ROUND * self.of.workers > limit:
                # rounds are whole, so that more steps only add to what was done
                return StopReason.STEPS
            number += 1
            reason = self._round(_in_turn(hopeful, number, self._budget), number)
            if reason is not None:
                return reason

    def _begun_with(self, arm: Arm) -> None:
        """An arm's ladder, where it promises something better."""
        room = self._budget - arm.spare_bytes
        keep = arm.ladder.within(room)
        if keep is not None and self.is_timed and self._is_ahead(arm.promise_ns(room)):
            self._try(arm, keep)

    def _is_ahead(self, modelled_ns: float) -> bool:
        return self.best is None or modelled_ns < FINER * self.best.modelled_ns

    def _in_vain(self, number: int) -> bool:
        return self.best is None and number > self.steps_before + len(self.arms)

    def _settled(self) -> StopReason:
        if self.mode == "exact":
            return StopReason.OPTIMAL if self._is_optimal() else StopReason.PACKED
        return StopReason.NOTHING_BETTER if self.best is not None else StopReason.INFEASIBLE

    def _reason_to_stop(self) -> StopReason | None:
        effort = self.effort
        if self._is_optimal():
            return StopReason.OPTIMAL
        if effort.steps is not None and self.steps >= effort.steps:
            return StopReason.STEPS
        if effort.seconds is not None and time.monotonic() - self.began >= effort.seconds:
            return StopReason.SECONDS
        return StopReason.STOPPED if self.of.stops() else None

    def _is_optimal(self) -> bool:
        """The model knows nothing better, and the trace takes what the model says."""
        best = self.best
        if best is None or not self.bound_ns:
            return False
        exact = best.modelled_ns <= self.bound_ns * (1 + CLOSE)
        return exact and best.time_ns <= best.modelled_ns * (1 + SAMPLED)

    # --- programs beside it ----------------------------------------------------------------------

    def _opening(self) -> Iterator[Arm]:
        """The ways of going by all cuts, coarse ones first; each is asked for its bound."""
        every: list[Arm] = []
        if self._budget not in self.of.least_ns:
            uncut = Question(None, self.of.uncut, self._budget, self._limits, has_slices=False)
            self.proofs.ask(uncut)
        for cut in self._cuts():
            for arm in self._arms_of(cut):
                every.append(arm)
                self.arms.append(arm)
                if arm.relaxed is None:
                    self._ask(arm, integer=False)
                elif self._is_promising(arm):
                    self._examine(arm)
                yield arm
        self.every = tuple(every)

    def _ask(self, arm: Arm, *, integer: bool, less_bytes: int = 0, attempt: int = 0) -> None:
        spare_bytes = arm.spare_bytes if integer else 0
        self.of.tell(f"{'integer program of' if integer else 'bounding'} {arm.cut}")
        self.proofs.ask(
            Question(
                arm, arm.model, self._budget - spare_bytes - less_bytes, self._limits, integer,
                attempt,
            )
        )  # fmt: skip

    def _hear(self, seconds: float = 0.0) -> None:
        """Take what was answered: bounds, and what to try."""
        for answer in self.proofs.answers(seconds):
            arm: Arm | None = answer.question.about
            if arm is None:
                self.of.least_ns[self._budget] = answer.found.bound_ns
            elif answer.question.integer:
                self._proposed(arm, answer)
            else:
                arm.relaxed = answer.found
                if self._is_promising(arm):
                    self._examine(arm)
        known = bool(self.every) and all(arm.relaxed is not None for arm in self.every)
        over_all = min(arm.bound_ns for arm in self.every) if known else 0.0
        self.bound_ns = max(self.bound_ns, self.of.least_ns.get(self._budget, 0.0), over_all)

    def _is_promising(self, arm: Arm) -> bool:
        """A finer cut is looked at while the best plan so far is slower than it promises to be."""
        promise_ns = arm.bound_ns / FINER
        if self.best is not None and promise_ns > self.best.time_ns:
            return False
        return all(promise_ns <= other.optimum_ns for other in self.arms)

    def _examine(self, arm: Arm) -> None:
        """Ask for the model's optimum, unless that was asked before for hardly less long."""
        given_s = self._limits().seconds
        if not arm.examined_s or given_s > MORE * arm.examined_s:
            arm.examined_s = given_s
            self._ask(arm, integer=True)

    def _proposed(self, arm: Arm, answer: Answer) -> None:
        """The model's optimum, laid out; asked for again with less memory while it does not fit.

        The program may take too little memory for what nodes share, never too much: what a
        solution really takes in the model is taken off what the program is given next.
        """
        keep, question = answer.found.keep, answer.question
        if keep is None:
            return
        room = self._budget - arm.spare_bytes
        over = int(arm.model.score(keep).size_bytes[0]) - room
        less_bytes = max(self._budget - arm.spare_bytes - question.budget_bytes, 0)
        if over > 0:
            less_bytes += max(over, ALIGNMENT)
        elif self._try(arm, keep[0]):
            self._try(arm, self._throughout(keep[0]))
            arm.optimum_ns = answer.found.bound_ns if not question.attempt else math.inf
            return
        if question.attempt + 1 < MOST_TRIES and self._may_be_better(arm.bound_ns):
            self._ask(arm, integer=True, less_bytes=less_bytes, attempt=question.attempt + 1)

    def _limits(self) -> SolverLimits:
        """For one program: reproducible where steps are what counts, and no more of them."""
        effort = self.effort
        nodes = (
            None if effort.steps is None else min(max(effort.steps, 1) * WINDOW_NODES, MOST_NODES)
        )
        if effort.seconds is None:
            return SolverLimits(nodes=nodes)
        left_s = max(effort.seconds - (time.monotonic() - self.began), LOOKED_AT_S)
        return SolverLimits(left_s, nodes=nodes)

    def _arms_of(self, cut: Cut) -> Iterator[Arm]:
        """The ways of going by a cut; what was bounded before is not bounded again."""
        of, pieces = self.of, None
        for whole in (False,) if cut == WHOLE else (True, False):
            key = self._budget, cut, whole
            if key not in of.opened:
                of.tell(f"weighing {cut}")
                if cut != WHOLE and pieces is None:
                    pieces = tabulate_pieces(of.scheduled, of.rules, of.workload, cut)
                model = Model(self._tables(cut), pieces, whole)
                of.opened[key] = Arm(cut, model, of.ladder.over(model))
            yield of.opened[key]

    def _tables(self, cut: Cut) -> Tables:
        """The model's tables, with the scratch memory that kernels want under this cut."""
        of = self.of
        if cut not in self.scratch:
            everything = Retention.always(self.frontier)
            placed = of.planner.lay_out(
                everything, self.scenarios, cut, budget_bytes=of.budget_bytes
            )
            self.scratch[cut] = {node: room.size_bytes for node, room in placed.scratch.items()}
        known = self.scratch[cut]
        scratch = [aligned(known.get(node, 0)) for node in of.scheduled.stored]
        return replace(of.uncut.tables, scratch_bytes=np.array(scratch, np.int64))

    @property
    def _budget(self) -> int:
        assert self.of.budget_bytes is not None
        return self.of.budget_bytes

    def _cuts(self) -> Iterator[Cut]:
        """Uncut, the best plan's cut, and along each input dimension as long as slices shrink."""
        yield WHOLE
        if self.best is not None and self.best.cut != WHOLE:
            yield (own := self.best.cut)
        else:
            own = WHOLE
        axes = [
            (name, axis, size)
            for name, node in self.of.scheduled.graph.inputs.items()
            for axis, size in enumerate(node.shape)
            if size > 1
        ]
        for name, axis, size in sorted(axes, key=lambda a: -a[2])[:MOST_AXES]:
            parts, last = 2, self._slices_of(WHOLE)
            while parts <= min(size, MOST_PARTS):
                cut = Cut(name, axis, parts)
                bytes_now = self._slices_of(cut)
                if bytes_now > 0.97 * last:
                    break
                if cut != own:
                    yield cut
                parts, last = parts * 2, bytes_now

    def _slices_of(self, cut: Cut) -> int:
        """The largest slices when everything that is read again is retained."""
        if cut not in self.sliced:
            self.sliced[cut] = self._largest_slices(cut)
        return self.sliced[cut]

    def _largest_slices(self, cut: Cut) -> int:
        planner = self.of.planner
        total: dict[Node, int] = {}
        cold = [s for s in self.scenarios if s.cold]
        retention = Retention.always(self.frontier)
        for _, steps in planner.runs.under(retention, cold, cut):
            for step in steps:
                for node, region in step.compute.items():
                    if node not in retention.after:
                        size = value_of(region.hull().elements) * node.type.itemsize
                        total[node] = max(total.get(node, 0), size)
        return sum(total.values())

    def _round(self, arm: Arm, number: int) -> StopReason | None:
        effort, workers, steps = self.effort, self.of.workers, ROUND
        if effort.steps is not None:
            steps = min(steps, -(-(effort.steps - self.steps) // workers))
        best, room = self.best, self._budget - arm.spare_bytes
        first = arm.ladder.within(room)
        share = arm.ladder.share(room)
        starts = () if first is None else (first,)
        if best is not None and best.cut == arm.cut:
            starts = (*starts, self.of.bits(best.retention))
        window_s = math.inf
        if effort.seconds is not None:
            left_s = effort.seconds - (time.monotonic() - self.began)
            window_s = max(left_s / WINDOWS_LEFT, LOOKED_AT_S)
        chains = [
            Chain(
                arm.model.tables, arm.model.pieces, arm.model.whole, room,
                share, arm.bound_ns, starts, (self.seed, number, chain), steps, window_s,
            )
            for chain in range(workers)
        ]  # fmt: skip
        made = run_round(chains, self.of.executor, lambda: self._reason_to_stop() is not None)
        self.steps += made.steps
        arm.visited = together(arm.visited, made.visited)
        if self.of.look is not None:
            self.of.look(_tree(arm.visited, self.of.scheduled.stored))
        self._show(f"step {self.steps_before + self.steps}")
        tries = 0
        for time_ns, keep in self._ranked(
            arm, [*starts, *(one.keep for one in made.found)], number
        ):
            new = keep.tobytes() not in arm.tried and self._may_be_better(time_ns)
            if new and tries < TRIED_A_ROUND and not self.is_late():
                tries += 1
                self._try(arm, keep)
        return StopReason.WORKERS_LOST if made.lost == workers else None

    def _ranked(
        self, arm: Arm, found: Sequence[NDArray[np.bool_]], number: int
    ) -> list[tuple[float, NDArray[np.bool_]]]:
        """What was found, the best of it polished, and each kept throughout; the fastest first."""
        keeps = {keep.tobytes(): keep for one in found for keep in (one, self._throughout(one))}
        if not keeps:
            return []
        first = self._timed(arm, list(keeps.values()))[0][1]
        room = self._budget - arm.spare_bytes
        better = polished(arm.model, room, first, (self.seed, number))
        if better is not None:
            keeps[better.keep.tobytes()] = better.keep
        return self._timed(arm, list(keeps.values()))

    @staticmethod
    def _timed(
        arm: Arm, keeps: Sequence[NDArray[np.bool_]]
    ) -> list[tuple[float, NDArray[np.bool_]]]:
        """Retentions with their mean times over the trace, the fastest first."""
        times = arm.model.walked_ns(np.stack(keeps)).tolist()
        return sorted(zip(times, keeps, strict=True), key=lambda pair: (pair[0], pair[1].tobytes()))

    @staticmethod
    def _throughout(keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The same nodes, kept after all classes: nothing is then left to chance."""
        found: NDArray[np.bool_] = np.broadcast_to(keep.any(axis=0), keep.shape).copy()
        return found

    def _may_be_better(self, modelled_ns: float) -> bool:
        best = self.best
        return best is None or modelled_ns < BONUS * max(best.modelled_ns, best.time_ns)

    # --- candidates ------------------------------------------------------------------------------

    def _try(self, arm: Arm, keep: NDArray[np.bool_]) -> bool:
        """Lay a retention of the model out; what packing adds to it is remembered."""
        if keep.tobytes() in arm.tried:
            return True
        laid = self._laid(arm, keep)
        if laid is None:
            return False
        found = self._candidate(laid[0], arm.cut, laid[1])
        if found is not None:
            self._take(found, "retention")
        return True

    def _laid(self, arm: Arm, keep: NDArray[np.bool_]) -> tuple[Retention, Placement] | None:
        """A retention's map; None where it does not fit, and by how much is remembered."""
        arm.tried.add(keep.tobytes())
        nodes = self.of.scheduled.stored
        after = {
            nodes[n]: frozenset(np.flatnonzero(keep[:, n]).tolist())
            for n in np.flatnonzero(keep.any(axis=0))
        }
        retention = Retention(after, self.of.workload.turns)
        placement = self._placed(retention, arm)
        if placement.size_bytes > self._budget and (shared := self._shareable(arm, retention)):
            retention = replace(retention, shared=shared)
            placement = self._placed(retention, arm)
        if placement.size_bytes <= self._budget:
            return retention, placement
        modelled = int(arm.model.score(keep[None]).size_bytes[0])
        spare = max(arm.spare_bytes + ALIGNMENT, placement.size_bytes - modelled)
        arm.spare_bytes = min(spare, int(MOST_SPARE * self._budget))
        return None

    def _placed(self, retention: Retention, arm: Arm) -> Placement:
        return self.of.planner.lay_out(
            retention, self.scenarios, arm.cut, arm.model.whole, self._budget
        )

    def _shareable(self, arm: Arm, retention: Retention) -> frozenset[Node]:
        """Retained nodes whose bytes are free until some class's runs compute them."""
        nodes, can = self.of.scheduled.stored, arm.model.shareable
        return (
            frozenset(n for n, shares in zip(nodes, can, strict=True) if shares) & retention.nodes
        )

    def _realised(self, retention: Retention, cut: Cut) -> Candidate | None:
        budget_bytes = self.of.budget_bytes
        placement = self.of.planner.lay_out(
            retention, self.scenarios, cut, budget_bytes=budget_bytes
        )
        if budget_bytes is not None and placement.size_bytes > budget_bytes:
            return None
        return self._candidate(retention, cut, placement)

    def _take(self, found: Candidate, what: str) -> None:
        if self.of.look is not None:
            self.of.look(self._tried(found))
        if self.best is not None and not found.beats(self.best):
            return
        self.best = found
        if not self.history or found.time_ns < self.history[-1][1]:
            self.history.append((self.steps_before + self.steps, found.time_ns))
        self._show(what)

    def _tried(self, found: Candidate) -> LaidOut:
        size_bytes = found.placement.size_bytes
        made = self._decisions_of(found, StopReason.RUNNING, explained=False)
        plan = Plan.of(self.of.scheduled.folded, made, self.of.device, self.of.budget_bytes,
                       self.of.rules.exact)  # fmt: skip
        return LaidOut(
            found.time_ns, size_bytes, len(found.retention.nodes), found.cut.parts, plan.to_json()
        )

    def _show(self, what: str) -> None:
        if self.best is not None:
            self.of.watch(self._decisions(StopReason.RUNNING, explained=False))
        self.of.tell(f"{what}: {self._said()}")

    def _said(self) -> str:
        if self.best is None:
            return "nothing fits yet"
        bound = f", bound {format_time(self.bound_ns)}" if self.bound_ns else ""
        return f"best {format_time(self.best.time_ns)} a run{bound}"

    # --- the result ------------------------------------------------------------------------------

    def _decisions(self, stop: StopReason, *, explained: bool = True) -> Decisions:
        assert self.best is not None
        return self._decisions_of(self.best, stop, explained=explained)

    def _decisions_of(self, best: Candidate, stop: StopReason, *, explained: bool) -> Decisions:
        of = self.of
        bound_ns = self.bound_ns if math.isfinite(self.bound_ns) else 0.0
        record = SearchRecord(
            mode=self.mode,
            seed=self.seed,
            steps=self.steps_before + self.steps,
            stop=stop,
            best_ns=best.time_ns,
            modelled_ns=best.modelled_ns,
            warm_up_ns=best.replayed.warm_up_ns,
            greedy_ns=self.greedy_ns,
            bound_ns=bound_ns,
            history=tuple(self.history),
        )
        everywhere = len(best.retention.turns)
        kept = {n for n, k in best.retention.after.items() if len(k) == everywhere}
        dropped = {*self.frontier, *best.retention.nodes} - kept
        worth, price = self._worth(best) if explained else ({}, 0.0)
        return Decisions(
            of.scheduled,
            best.placement,
            best.retention,
            tuple(sorted(dropped, key=lambda node: node.index)),
            best.cut,
            of.classes,
            best.time_ns,
            worth,
            price,
            record,
        )

    def _worth(self, best: Candidate) -> tuple[Mapping[Node, tuple[int, float]], float]:
        """What retaining each candidate saves beside the best plan; the last byte's worth."""
        arm = next((arm for arm in self.arms if arm.cut == best.cut), None)
        model = arm.model if arm is not None else self.of.uncut
        keep = self.of.bits(best.retention)
        worth = worth_ns(model, keep)
        found = {
            node: (int(model.tables.kept_bytes[n]), float(worth[n]))
            for n, node in enumerate(self.of.scheduled.stored)
            if worth[n] > 0 or keep[:, n].any()
        }
        relaxed = None if arm is None else arm.relaxed
        if relaxed is None or not math.isfinite(relaxed.bound_ns) or not self._has(relaxed.seconds):
            return found, 0.0
        more = max(self._budget // 100, 1)
        richer = IntegerProgram(model, self._budget + more).solve(self._limits(), integer=False)
        return found, max(relaxed.bound_ns - richer.bound_ns, 0.0) / more

    def _has(self, seconds: float) -> bool:
        """Whether so much time is left."""
        limit = self.effort.seconds
        return limit is None or time.monotonic() - self.began + seconds < limit


def _in_turn(arms: Sequence[Arm], number: int, budget_bytes: int) -> Arm:
    """Whose round it is: the second best comes half as often as the best, the third a third."""
    ranked = sorted(arms, key=lambda arm: arm.promise_ns(budget_bytes - arm.spare_bytes))
    shares = [1 / (rank + 1) for rank in range(len(ranked))]
    place = (number * 0.618034) % 1.0 * sum(shares)  # spread evenly, and the same every time
    return next(arm for arm, end in zip(ranked, accumulate(shares), strict=True) if place < end)
