"""What a session says of itself, at any time, without doing anything."""

from __future__ import annotations

from tgbench.base.errors import PlanError
from tgbench.base.words import counted, format_bytes, listed
from tgbench.graph.graph import Graph
from tgbench.memory.arena import Seat
from tgbench.memory.estimate import MemoryEstimate, estimate_memory
from tgbench.memory.placement import Placement, elsewhere_bytes
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import PlanPath
from tgbench.plans.plan import Plan
from tgbench.programs.pool import Pool
from tgbench.runs.buckets import BucketSpace
from tgbench.session.arguments import ArgumentReader
from tgbench.session.memory import Memory
from tgbench.session.planning import Planning, Retain
from tgbench.session.report import Report
from tgbench.session.running import Runner
from tgbench.session.standing import Keeper, Standing
from tgbench.session.trying import Tryer


class Facts:
    """What is planned, in force and done; a session gives it its parts.

    Fields:
        graph: as it runs: simplified, with weights as they are held, along the path in force.
        path: how that comes of the graph that was given; None where it is that one.
        device: "cpu" or "cuda:0".
        pool: weights.
        rounded: names of weights that are held in less than they are stored in.
        seat: the session's place in the arena.
        reader: reads arguments.
        planning, keeper, runner: what decides, what stands between runs, what runs.
        since: what took the report of the last run with it; "" where nothing did.
    """

    graph: Graph
    path: PlanPath | None
    device: str
    pool: Pool
    rounded: frozenset[str]
    seat: Seat
    reader: ArgumentReader
    planning: Planning
    keeper: Keeper
    runner: Runner
    since: str = ""

    def __str__(self) -> str:
        ends = f"{listed(list(self.graph.inputs))} → {listed(list(self.graph.outputs))}"
        counters, budget = self.runner.counters, self.budget_bytes
        arena = format_bytes(self.placement.size_bytes) if self.is_planned else "not planned yet"
        return "\n".join(
            [
                f"session on {self.device}: {ends}, {counted(len(self.graph), 'node')}",
                f"arena {arena}, budget {'none' if budget is None else format_bytes(budget)}, "
                f"weights {format_bytes(self.pool.parameter_bytes)}",
                f"{counted(counters.runs, 'run')}, {counted(counters.planned, 'plan')} and "
                f"{counted(counters.specialised, 'program')} made",
            ]
        )

    __repr__ = __str__

    @property
    def last(self) -> Report | None:
        """What the last run did; None before the first."""
        finished = self.runner.finished
        return finished.report if finished is not None else None

    def report(self) -> Report:
        """What the last run did, in words when printed; raises PlanError before the first, also by
        another path.
        """
        if self.runner.finished is None:
            then = f"since {self.since}" if self.since else "yet"
            raise PlanError(f"nothing has run {then}; call `run` first")
        return self.runner.finished.report

    @property
    def trying(self) -> Tryer | None:
        """What runs found out about kernels, in words when printed; None where none are tried."""
        return self.runner.tryer

    @property
    def standing(self) -> Standing:
        """What stands between the last run and the next, as a value."""
        return self.keeper.standing

    @property
    def memory(self) -> Memory:
        """The plan in force and its bytes; raises PlanError before the first plan."""
        return self.keeper.memory

    @property
    def remembered(self) -> dict[str, int]:
        """Bytes of what is remembered to be quicker; all is bounded, and goes with the session.

        Programs and the patterns of what is valid, answers to questions about the graph, the
        latest calls of the trace.
        """
        return {
            "programs": self.keeper.programs.size_bytes,
            "states": round(self.keeper.states.size_bytes),
            "answers": self.planning.rules.allowance.size_bytes,
            "trace": self.runner.trace.size_bytes,
        }

    def estimate_memory(self) -> dict[str, MemoryEstimate]:
        """Bytes per device, before anything of the arena is allocated."""
        budget, others = self.planning.limit_bytes, self.seat.others_fixed_bytes
        found = self.placement if self.is_planned else None
        arena = found.size_bytes if found is not None else None
        fixed = found.kept_bytes if found is not None else None
        packed = self.pool.packed_bytes
        here = estimate_memory(self.graph, arena, budget, fixed, others, packed)
        return {self.device: here, **self._elsewhere()}

    def _elsewhere(self) -> dict[str, MemoryEstimate]:
        """The same of other devices, where all that is computed is kept."""
        pool, found = self.pool, self.placement if self.is_planned else None
        return {
            device: MemoryEstimate(
                pool.elsewhere_bytes.get(device, 0), 0, 0, size,
                None if found is None else found.reach_in(space), pool.limits.get(device),
            )
            for space, (device, size) in enumerate(elsewhere_bytes(self.scheduled).items(), 1)
        }  # fmt: skip

    @property
    def is_planned(self) -> bool:
        """Whether a plan is in force."""
        return self.standing.memory is not None

    @property
    def placement(self) -> Placement:
        """The memory map in force, from 0; raises PlanError before the first run."""
        return self.memory.decisions.placement

    @property
    def plan(self) -> Plan:
        """Everything decided, as a value that `save_plan` writes."""
        decisions = self.memory.decisions
        return Plan.of(self.graph, decisions, self.device, self.budget_bytes, self.exact, self.path)

    @property
    def exact(self) -> str | None:
        """What is promised of bits: "bitwise", or None; see `exactness` for how."""
        return self.planning.exact

    @property
    def scheduled(self) -> ScheduledGraph:
        """Who reads whom, and when each value is live, in the order in force."""
        return self.planning.scheduled

    @property
    def unused_inputs(self) -> tuple[str, ...]:
        """Inputs that no output depends on; they may be passed to `run`."""
        return tuple(self.reader.unused)

    @property
    def buckets(self) -> BucketSpace:
        """How changed input boxes are rounded."""
        return self.reader.space

    @property
    def retain(self) -> Retain:
        """What is kept between runs; another value counts from the next plan on."""
        return self.planning.retain

    @retain.setter
    def retain(self, retain: Retain) -> None:
        self.planning.retain = retain

    @property
    def budget_bytes(self) -> int | None:
        """Budget of the arena; another value counts from the next plan on."""
        return self.planning.budget_bytes

    @budget_bytes.setter
    def budget_bytes(self, budget_bytes: int | None) -> None:
        self.planning.budget_bytes = budget_bytes
