"""What a screen is about: a plan in force, and one that is not; what ran, what is searched.

    graph, plan ──── in force             frontier, candidates, changes by hand ──→ proposal
    session ──────── runs, costs          shown = proposal, or what is in force

Panels read it, the screen changes it. Nothing here knows of widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tgbench.base.errors import GraphError, PlanError, WidgetError
from tgbench.base.words import shorten
from tgbench.costs.model import CostModel
from tgbench.graph.graph import Graph
from tgbench.plans.diff import foreign
from tgbench.plans.plan import Plan
from tgbench.runs.buckets import BucketClass
from tgbench.runs.trace import Trace
from tgbench.session.session import GraphSession
from tgbench.session.what_if import Ground, WhatIf
from tgbench.views.panels.board import PathsBoard
from tgbench.views.values.pareto import Curve
from tgbench.views.values.regions import Inspection, inspect_class, inspect_last
from tgbench.views.values.runs import ONLY, ClassRun, classes_of, run_of
from tgbench.views.values.search import SearchRun
from tgbench.views.values.timeline import Timeline, timeline_from_plan, timeline_of_plan

Shown: TypeAlias = "GraphSession | Plan | Graph | Timeline | SearchRun | Curve | str | Path"


@dataclass(frozen=True)
class Proposal:
    """A plan that is not in force.

    Fields:
        origin: where it comes from, in words.
        code: Python that puts it in force in `session`, a line each.
        what: the changes by hand that made it, if it was made so.
    """

    plan: Plan
    origin: str
    code: tuple[str, ...] = ()
    what: WhatIf | None = None


@dataclass(frozen=True)
class Replaced:
    """What was in force before a plan that was put in force here.

    Fields:
        budget_bytes: the session's.
        gestures: what had been done until then, as Python.
    """

    plan: Plan
    budget_bytes: int | None
    gestures: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """What is chosen: names of nodes, a schedule step or −1, a class of runs in words or ""."""

    nodes: tuple[str, ...] = ()
    step: int = -1
    bucket: str = ""

    @property
    def node(self) -> str:
        return self.nodes[0] if self.nodes else ""


@dataclass
class Subject:
    """See the module's first lines.

    Fields:
        graph: the one that runs; None for a plan's file alone.
        plan: in force.
        timeline: a memory map without a plan.
        replaced: what to go back to, as long as nothing else was put in force.
        fold: whether equal layers of the graph are drawn once.
        is_live: whether somebody answers; a page only shows.
        board: the paths of the session.
    """

    graph: Graph | None = None
    plan: Plan | None = None
    session: GraphSession | None = None
    timeline: Timeline | None = None
    search: SearchRun | None = None
    curve: Curve = field(default_factory=lambda: Curve(()))
    proposal: Proposal | None = None
    replaced: Replaced | None = None
    fold: bool = True
    is_live: bool = True
    board: PathsBoard | None = None
    _remembered: dict[Any, Any] = field(default_factory=dict)

    @staticmethod
    def of(shown: Shown, graph: Graph | None = None) -> Subject:
        """Raises PlanError for a session that nothing ran in, and for a damaged plan, WidgetError
        for what is none of these.
        """
        if graph is not None and not isinstance(graph, Graph):
            raise WidgetError(f"graph={shorten(graph)} is no Graph; pass session.graph, or None")
        match shown:
            case GraphSession():
                return Subject(shown.graph, shown.plan, shown, board=PathsBoard(shown))
            case SearchRun(session=session):
                plan = session.plan if session.is_planned else None
                return Subject(session.graph, plan, session, search=shown)
            case Graph():
                return Subject(shown)
            case Timeline():
                return Subject(timeline=shown)
            case Curve():
                return Subject(curve=shown)
        if not isinstance(shown, Plan | str | Path):
            raise WidgetError(
                f"{shorten(shown)} cannot be shown; pass a session, a plan or its file, a graph, "
                "a memory map, a search or a curve"
            )
        plan = shown if isinstance(shown, Plan) else Plan.load(shown)
        if graph is not None:
            plan.placement_for(graph, plan.device)
        return Subject(graph, plan)

    def compare(self, against: Any) -> None:
        """Propose another plan, or its file, beside the plan at hand.

        Raises WidgetError for what has no plan, PlanError for a plan of another model, and of
        another graph where one is drawn.
        """
        plan = Subject.of(against).known_plan
        why = foreign(self.known_plan, plan)
        if why:
            named = f"{against}" if isinstance(against, str | Path) else "the other plan"
            raise PlanError(
                f"{named}: a plan of another model: {why}; compare plans of one model, as those "
                "for two budgets"
            )
        self.proposal = Proposal(Subject.of(plan, self.graph).known_plan, "the other plan")

    # --- what is shown ---------------------------------------------------------------------------

    @property
    def shown(self) -> Plan | None:
        """The plan that is drawn."""
        return self.proposal.plan if self.proposal is not None else self.plan

    @property
    def known_plan(self) -> Plan:
        """Raises WidgetError where there is none."""
        if self.plan is None:
            raise WidgetError("there is no plan in it; pass a session that ran, a plan or its file")
        return self.plan

    @property
    def before_ns(self) -> float:
        """What the plan in force takes, by the same clock as the one that is proposed: changes by
        hand are replayed, and so is what they change.
        """
        changed = self.proposal.what if self.proposal is not None else None
        if changed is not None and changed.ground.plan == self.plan:
            before_ns = changed.verdict().before_ns
            if before_ns is not None:
                return before_ns
        return self.known_plan.expected_ns

    @property
    def plan_words(self) -> str:
        """What the plan is called: a plan alone is in force nowhere that is known here."""
        return "in force" if self.session is not None else "this plan"

    @property
    def standing(self) -> str:
        """Where the plan stands: a page tells of the past."""
        if not self.is_live:
            return "saved"
        return "in force" if self.session is not None else "a plan alone"

    @property
    def trace(self) -> Trace:
        return self.session.trace if self.session is not None else Trace()

    @property
    def costs(self) -> CostModel | None:
        return self.session.costs if self.session is not None else None

    def forget(self) -> None:
        """The session ran, or another plan is in force: what was worked out is out of date."""
        self._remembered.clear()
        if self.session is not None:
            self.graph = self.session.graph
            self.plan = self.session.plan if self.session.is_planned else None

    def map_of(self, plan: Plan) -> Timeline:
        """A plan's memory map; with the graph at hand it knows when a slice is last read."""
        if self.graph is None:
            return timeline_from_plan(plan)
        return timeline_of_plan(plan, self.graph)

    @property
    def ground(self) -> WhatIf:
        """What changes by hand start from; raises WidgetError for a plan without its graph."""
        if self.proposal is not None and self.proposal.what is not None:
            return self.proposal.what
        if self.shown is None or self.graph is None:
            raise WidgetError("this is a plan alone; pass a session, or the plan's graph")
        history = tuple(call.bucket for call in self.trace)
        return WhatIf(Ground(self.shown, self.graph, history, self.costs))

    # --- classes of runs -------------------------------------------------------------------------

    def classes(self) -> dict[str, BucketClass]:
        """Those that ran, the most frequent first, and those that the plan is for."""
        if "classes" not in self._remembered:
            found: dict[str, BucketClass] = {}
            if self.graph is not None and len(self.trace):
                for kind, _ in self.trace.class_counts(self.graph).most_common():
                    found[str(kind)] = kind
            if self.plan is not None:
                found |= classes_of(self.plan, {})
            self._remembered["classes"] = found
        remembered: dict[str, BucketClass] = self._remembered["classes"]
        return remembered

    def alone(self) -> list[str]:
        """Runs in which one input or state is new and nothing else."""
        leaves = [] if self.graph is None else [*self.graph.inputs, *self.graph.states]
        return [f"{ONLY}{name}" for name in leaves]

    def class_at_hand(self, chosen: Chosen) -> str:
        """The chosen class, or that of the last run, or the first; "" where there is none."""
        if chosen.bucket in self.classes() or chosen.bucket in self.alone():
            return chosen.bucket
        last = self.session.last if self.session is not None else None
        if last is not None and str(last.kind) in self.classes():
            return str(last.kind)
        return next(iter(self.classes()), "")

    def run(self, bucket: str) -> ClassRun | None:
        """What a run of a class does under the plan that is shown; None without a graph.

        Raises WidgetError for an unknown class, and for a run that the map cannot hold.
        """
        if self.graph is None or self.shown is None or not bucket:
            return None
        key = "run", id(self.shown), bucket
        if key not in self._remembered:
            made = self.shown.placement_for(self.graph, self.shown.device)
            rules = self.costs.rules if self.costs is not None else None
            seen = self.trace.origins(self.graph)
            self._remembered[key] = run_of(made, bucket, seen, rules, self.shown.device), self.shown
        found: ClassRun = self._remembered[key][0]
        return found

    def runs_known(self) -> Sequence[ClassRun]:
        """Those that were worked out for the plan that is shown."""
        return [
            value[0]
            for key, value in self._remembered.items()
            if key[:2] == ("run", id(self.shown))
        ]

    def inspection(self, bucket: str) -> Inspection | None:
        """What a run of a class did, or does, to elements; None without a session."""
        session = self.session
        if session is None or not session.is_planned:
            return None
        last = session.last
        key = "inspection", bucket
        if key not in self._remembered:
            try:
                if last is not None and str(last.kind) == bucket:
                    self._remembered[key] = inspect_last(session)
                elif bucket in self.classes():
                    self._remembered[key] = inspect_class(session, self.classes()[bucket])
                else:
                    return None
            except (PlanError, GraphError):
                return None
        found: Inspection = self._remembered[key]
        return found
