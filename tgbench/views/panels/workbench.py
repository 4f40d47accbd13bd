"""All views of a session at once, linked by one selection; or of a plan file, without its model.

┌ plan: words, export, code ────────────────────────┐
│ search: start, stop, resume, fork, budget         │
│ memory │ graph │ alias                            │   what is chosen in one
│ regions │ program                                 │   is chosen in all
│ transitions │ time by memory                      │
└───────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tgbench.base.errors import WidgetError
from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.views.panels.alias_map import AliasMap
from tgbench.views.panels.budget_curve import BudgetCurve
from tgbench.views.panels.graph_map import GraphMap
from tgbench.views.panels.memory_timeline import MemoryTimeline
from tgbench.views.panels.plan_bar import PlanBar
from tgbench.views.panels.program_list import ProgramList
from tgbench.views.panels.region_inspector import RegionInspector
from tgbench.views.panels.search_monitor import SECONDS, SearchMonitor
from tgbench.views.panels.transition_map import TransitionMap
from tgbench.views.panels.widget import Selection
from tgbench.views.values.pareto import Curve, curve_async

try:
    import ipywidgets
except ModuleNotFoundError as error:
    raise WidgetError(
        f"the workbench needs {error.name}; install it with: pip install 'tgbench[lab]'"
    ) from error

ROOM = 4  # budgets from a quarter of the plan's arena to four times as much


class Workbench(ipywidgets.VBox):  # type: ignore[misc, unused-ignore]
    """The linked views of a session with a plan in force.

    Args:
        session: what is looked at, and steered.
        seconds: of a leg of the search.

    Raises PlanError for a session that nothing ran in.
    """

    def __init__(self, session: GraphSession, seconds: float = SECONDS) -> None:
        self.session, self.selection, self.gestures = session, Selection(), list[str]()
        plan, shared = session.plan, self.selection
        self.plan_bar = PlanBar(plan, self.code, self._use_changes, shared)
        span = max(plan.size_bytes // ROOM, 1), plan.size_bytes * ROOM
        self.search = SearchMonitor(
            session, seconds, planned=self._planned, budgets=span, selection=shared
        )
        self.graph = GraphMap(session.graph, selection=shared)
        self.memory = MemoryTimeline(session, selection=shared)
        self.alias = AliasMap(session, selection=shared)
        self.regions = RegionInspector(session, shared)
        self.program = ProgramList(session, shared)
        self.transitions = TransitionMap(session.trace, session.graph, shared)
        self.budgets = BudgetCurve(Curve(()), self._use_point, shared, compute=self.try_budgets)
        self._maps = _tabs(memory=self.memory, graph=self.graph, alias=self.alias)
        self._details = _tabs(regions=self.regions, program=self.program)
        self._history = _tabs(transitions=self.transitions, **{"time by memory": self.budgets})
        self._trying: asyncio.Task[None] | None = None
        super().__init__([self.plan_bar, self.search, self._maps, self._details, self._history])

    # --- what is done here -----------------------------------------------------------------------

    def use(self, plan: Plan) -> None:
        """Put a plan in force, and show it everywhere."""
        if self.session.budget_bytes is not None and plan.size_bytes > self.session.budget_bytes:
            self.session.budget_bytes = plan.budget_bytes
        self.session.adopt(plan)
        self._planned(plan)

    def _use_point(self, plan: Plan) -> None:
        """Put the plan of a point of the curve in force."""
        record = plan.search
        mode, seed = ("greedy", 0) if record is None else (record.mode, record.seed)
        self.gestures.append(
            f"session.optimize({mode!r}, budget={plan.budget_bytes}, steps=32, seed={seed})"
        )
        self.use(plan)

    def _use_changes(self) -> str:
        """Put in force what was changed in the memory timeline."""
        what = self.memory.what
        if what is None or not what.changes:
            raise WidgetError("nothing was changed in the memory timeline yet")
        imported = "from tgbench.session.what_if import WhatIf"
        self.gestures += [] if imported in self.gestures else [imported]
        self.gestures.append(f"session.adopt({what.code()})")
        self.use(what.plan)
        return f"in force: {str(what.plan).splitlines()[0]}"

    def try_budgets(self) -> None:
        """Find the curve of time by memory, in the background."""
        self._trying = asyncio.get_running_loop().create_task(self._try_budgets())

    async def _try_budgets(self) -> None:
        self.budgets.put(await curve_async(self.session, told=self.budgets.put))

    def _planned(self, plan: Plan) -> None:
        """Another plan is in force: what shows it is drawn anew."""
        self.plan_bar.put(plan)
        self.memory = MemoryTimeline(self.session, selection=self.selection)
        self.alias = AliasMap(self.session, selection=self.selection)
        before, self._maps.children = (
            self._maps.children, (self.memory, self.graph, self.alias),
        )  # fmt: skip
        before[0].close()
        before[2].close()
        self.regions.refresh()

    def refresh(self) -> None:
        """The session ran: show its last run."""
        self.regions.refresh()
        self.program.refresh()

    def code(self) -> str:
        """What was done here, as Python that does it to `session`."""
        run = self.search.run
        lines = list(self.gestures)
        if run is not None and run.plan is not None and run.plan.search is not None:
            budget, found = self.session.budget_bytes, run.plan.search
            lines.append(
                f"session.optimize({found.mode!r}, steps={found.steps}, budget={budget}, "
                f"seed={run.seed})"
            )
        if self.selection.nodes:
            lines += [f"session.plan.explain({name!r})" for name in self.selection.nodes[:1]]
        return "\n".join(lines) or "session.plan"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widgets, and beside them the memory map for exported notebooks."""
        return _beside(super()._repr_mimebundle_(**kwargs), self.memory.static())


class PlanWorkbench(ipywidgets.VBox):  # type: ignore[misc, unused-ignore]
    """What a plan tells alone: its memory map, its classes, and its file.

    `graph` is what the plan is for; with it the graph is there, and changes can be tried.
    """

    def __init__(self, plan: Plan, graph: Graph | None = None) -> None:
        self.plan, self.selection = plan, Selection()
        self.plan_bar = PlanBar(plan, selection=self.selection)
        self.memory = MemoryTimeline(plan, graph, self.selection)
        self.transitions = TransitionMap(plan, selection=self.selection)
        maps: dict[str, Any] = {"memory": self.memory}
        if graph is not None:
            maps["graph"] = GraphMap(graph, selection=self.selection)
        super().__init__([self.plan_bar, _tabs(**maps), self.transitions])

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return _beside(super()._repr_mimebundle_(**kwargs), self.memory.static())


def explore(
    shown: GraphSession | Plan | str | Path, graph: Graph | None = None, seconds: float = SECONDS
) -> Workbench | PlanWorkbench:
    """The workbench of a session; or of a plan or its file, which needs no model and no weights.

    Raises PlanError for a session that nothing ran in, and a damaged plan.
    """
    if isinstance(shown, GraphSession):
        return Workbench(shown, seconds)
    return PlanWorkbench(shown if isinstance(shown, Plan) else Plan.load(shown), graph)


def _tabs(**views: Any) -> Any:
    made = ipywidgets.Tab(children=tuple(views.values()))
    for i, name in enumerate(views):
        made.set_title(i, name)
    return made


def _beside(found: Any, static: dict[str, str]) -> Any:
    data, metadata = found if isinstance(found, tuple) else (found or {}, {})
    return {**data, **static}, metadata
