"""What plans take: retentions in the tabulated model, and maps by walking the trace over them.

retention ─→ tables ─→ modelled time, at once
map       ─→ replay ─→ mean time of the trace, or the run that it has no room for
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.base.collector import tend
from tgbench.base.errors import PlanError
from tgbench.base.memo import Latest
from tgbench.base.regions import Box
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Site
from tgbench.memory.placement import Placement, Retention
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Classes
from tgbench.plans.planner import IN_PIECES, Cost, Planner, moving_ns
from tgbench.plans.retention.along import Along
from tgbench.plans.retention.ladder import Ladder
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.tables import tabulate
from tgbench.plans.retention.workload import Workload
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.replay import Misfit, Replayed, replay
from tgbench.programs.appraising import Appraisals
from tgbench.programs.choices import Called, Choices
from tgbench.programs.lowering import SLIDE
from tgbench.programs.program import Instruction, site_at
from tgbench.runs.buckets import BucketClass, Spot
from tgbench.runs.rules import Rules
from tgbench.runs.split import Cut

MOST_RUNS = 256  # of which it is remembered what their calls take
FILL_NS = 1_000.0  # putting known values where somebody looks


@dataclass(frozen=True)
class Candidate:
    """A plan that fits, and what its trace takes.

    Fields:
        modelled_ns: mean run in the tabulated model.
        time_ns: mean run of the replayed trace; where replaying all of it would take too long,
            the modelled one, by as much longer or shorter as what was replayed is.
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
        """Faster, or as fast and smaller; if its runs are in more pieces, by what replays of those
        may be off.
        """
        off = other.off_by(self.cut)
        return self.time_ns * off < other.time_ns if off > 1 else self.key < other.key

    def off_by(self, cut: Cut) -> float:
        """How many times too fast a plan cut so may be expected to be, beside this one: in more
        pieces many short calls find less in caches than where they were timed.
        """
        return IN_PIECES if cut.parts > self.cut.parts else 1.0


class Judge:
    """Judges plans of one graph for one workload, within any budget.

    Args:
        cost: expected nanoseconds of one box of one call.
        classes: every class that has to fit, with how often it came and where it was last seen.
        choices: which kernels take a site, the best first; those that runs use.

    Fields:
        tabulated: the model of whole runs, once it was asked for.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        workload: Workload,
        cost: Cost,
        device: str = "cpu",
        *,
        classes: Classes | None = None,
        progress: Callable[[str], None] | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.scheduled, self.rules, self.device = scheduled, rules, device
        self.workload, self.cost = workload, checked(cost)
        rare = {k: v for k, v in (classes or {}).items() if k not in workload.seen}
        common = {kind: workload.seen[kind] for kind in workload.kinds}
        self.classes: Classes = {**common, **workload.seen, **rare}
        self.planner = Planner(scheduled, rules, device, self.cost, progress, choices)
        self._known = Appraisals(self.planner.choices, scheduled)
        self._places: dict[tuple[BucketClass, tuple[int, ...]], None] = {}  # that maps lacked
        self._cramped: dict[Spot, None] = {}  # runs that maps held in pieces only
        self.tabulated: Model | None = None
        self._times: dict[tuple[Any, ...], float] = {}
        self._runs = Latest[Spot, tuple[tuple[Instruction, ...], float]](MOST_RUNS)

    def over(self, scheduled: ScheduledGraph) -> Judge:
        """The same over another order of the graph's nodes, or with other views copied."""
        same = is_alike(scheduled, self.scheduled)
        workload = self.workload if same else self.workload.over(scheduled, self.rules)
        return Judge(
            scheduled, self.rules, workload, self.cost, self.device, classes=self.classes,
            progress=self.planner.tell, choices=self.planner.choices,
        )  # fmt: skip

    @property
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

    @property
    def wished(self) -> list[Scenario]:
        """What is better held whole, besides: runs of the trace that replays found in pieces.

        Classes are held at their extremes, where windows are clipped; in between kernels may want
        more scratch memory.
        """
        return [Scenario(spot.kind, spot.origin, 0.0) for spot in self._cramped]

    # --- what calls take ---

    def calls(self, found: Candidate) -> list[list[Called]]:
        """Of each run of a trace that differs, its calls as they lie, over their own weights, and
        by whom.
        """
        return [
            [(self._over_weights(one, origin), one.kernel) for one in made if one.site is not None]
            for (_, origin), made in found.replayed.runs
        ]

    def _over_weights(self, made: Instruction, origin: tuple[int, ...]) -> Site:
        """A site is appraised for all equal layers at once."""
        assert made.site is not None
        site, base = site_at(made.site, origin), self.scheduled.base
        ins = tuple(
            view
            if view is None or not isinstance(view.buffer, str)
            else replace(view, buffer=base[operand].name)
            for view, operand in zip(site.ins, made.node.inputs, strict=True)
        )
        return replace(site, ins=ins)

    def know_anew(self) -> None:
        """More is known of what calls take: nothing that was appraised before counts."""
        self.planner.choices.forget()
        self._known = Appraisals(self.planner.choices, self.scheduled)
        self._times.clear()
        self._runs.clear()

    # --- over maps -------------------------------------------------------------------------------

    def candidate(
        self,
        retention: Retention,
        cut: Cut,
        placement: Placement,
        *,
        modelled: bool = True,
        most: int | None = None,
        stop: Callable[[Sequence[float]], bool] = lambda times_ns: False,
    ) -> Candidate | None:
        """A plan with its replayed trace; None if some call of the trace does not fit it.

        That call is one of the `scenarios` then.

        Args:
            modelled: without it the tables are not made for it, and the replay stands for the
                model.
            most, stop: end the replay before its time (see `replay`); the model, where there is
                one, then says what the rest takes.
        """
        tend()
        try:
            replayed = replay(
                self.scheduled, self.rules, placement, cut, self.workload.circle,
                self._run_ns, self.device, self._known, self.planner.runs.before,
                self.workload.alone, self.classes, most, stop,
            )  # fmt: skip
        except Misfit as found:
            self._places[found.kind, found.origin] = None
            return None
        self._cramped |= dict.fromkeys(replayed.cramped)
        if not modelled and (replayed.is_whole or self.tabulated is None):
            modelled_ns = time_ns = replayed.mean_ns
        else:
            modelled_ns, time_ns = self.modelled_ns(retention), replayed.mean_ns
            if not replayed.is_whole:
                time_ns = modelled_ns * self.over_model(retention, replayed)
        return Candidate(retention, cut, placement, replayed, modelled_ns, time_ns)

    def over_model(self, retention: Retention, replayed: Replayed) -> float:
        """How many times as long as in the model the calls took that were replayed: it knows
        nothing of what pieces compute twice, and of values that survive.
        """
        told = [i for i, row in enumerate(self.workload.told_by, 1) if row >= 0]
        modelled_ns = self.uncut.called_ns(self.bits(retention)).tolist()
        both = [
            (replayed.times_ns[i], time_ns)
            for i, time_ns in zip(told, modelled_ns, strict=False)  # no more than are walked
            if i < len(replayed.times_ns)
        ]
        known_ns = math.fsum(time_ns for _, time_ns in both)
        return math.fsum(took_ns for took_ns, _ in both) / known_ns if known_ns else 1.0

    def instruction_ns(self, made: Instruction, origin: tuple[int, ...]) -> float:
        """The expected time of one instruction, at an origin."""
        if made.kernel == SLIDE:
            return moving_ns(made.box.at(origin).elements * made.node.type.itemsize)
        if made.site is None:
            return FILL_NS
        where = origin if made.box.moves else ()
        found: float = made.site.found.get(where, self._call_ns, made, origin)
        return found

    def _call_ns(self, made: Instruction, origin: tuple[int, ...]) -> float:
        """No less than in the model, where operands lie plainly and bounds are proved."""
        assert made.site is not None
        key = (made.node.call, made.box.at(origin))
        found = self._times.get(key)
        if found is None:
            found = self._times[key] = self.cost(*key)
        if (takes := self.planner.choices.takes) is None:
            return found
        return max(found, takes(site_at(made.site, origin), made.kernel))

    def _run_ns(self, run: Spot, made: tuple[Instruction, ...]) -> float:
        """The expected time of a run; that of the last one is remembered of each."""
        known = self._runs.get(run)
        if known is None or known[0] != made:
            times = [self.instruction_ns(one, run.origin) for one in made]
            known = self._runs[run] = made, math.fsum(times)
        return known[1]

    # --- in the model ----------------------------------------------------------------------------

    @property
    def uncut(self) -> Model:
        """The model with whole runs; its times hold for every cut."""
        if self.tabulated is None:
            along = Along(self.scheduled, self.rules, self.planner.choices.ranking, self.device)
            tables = tabulate(self.scheduled, self.rules, self.workload, self.cost, along=along)
            self.tabulated = Model(tables)
        return self.tabulated

    @cached_property
    def ladder(self) -> Ladder:
        """What to let go of first: the same for every cut, whose times are the same."""
        return Ladder.of(self.uncut)

    @cached_property
    def all_kept_ns(self) -> float:
        """The mean run where all that is worth keeping is kept."""
        keep = np.broadcast_to(self.uncut.tables.worthwhile, self.uncut.none().shape)
        return float(self.uncut.score(keep).time_ns[0])

    def bits(self, retention: Retention) -> NDArray[np.bool_]:
        """A retention as [turn, node]."""
        keep = np.zeros((self.uncut.turns, self.uncut.nodes), bool)
        for n, node in enumerate(self.scheduled.stored):
            for k in retention.after.get(node, ()):
                keep[k, n] = True
        return keep

    def retention(self, keep: NDArray[np.bool_]) -> Retention:
        """The other way round."""
        after = {
            self.scheduled.stored[n]: frozenset(np.flatnonzero(keep[:, n]).tolist())
            for n in np.flatnonzero(keep.any(axis=0)).tolist()
        }
        return Retention(after, self.workload.turns)

    def modelled_ns(self, retention: Retention) -> float:
        return float(self.uncut.score(self.bits(retention)[None]).time_ns[0])


def is_alike(one: ScheduledGraph, other: ScheduledGraph) -> bool:
    """Whether the same nodes have bytes, in whatever order."""
    return one.graph is other.graph and one.copied == other.copied


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
