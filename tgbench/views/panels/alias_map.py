"""The interactive alias and invalidation map; see `views.alias`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tgbench.base.errors import WidgetError
from tgbench.graph.graph import Graph
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.runs.rules import Rules
from tgbench.runs.trace import Trace
from tgbench.session.session import GraphSession
from tgbench.views.panels.widget import Panel, Selection
from tgbench.views.values.alias import Sharing, fates, ripple, table, to_svg
from tgbench.views.values.runs import ONLY, classes_of, run_of


class AliasMap(Panel):
    """Who shares bytes with whom, and what one class of runs does to everybody.

    Args:
        shown: a session, a plan, or a plan's file.
        graph: what the plan is for; without it, sharing alone.
        selection: shared with other views; its `bucket` is the class that is shown.
    """

    script = "alias_map.js"
    answers: ClassVar[Mapping[str, str]] = {"during": "_during"}

    def __init__(
        self,
        shown: GraphSession | Plan | str | Path,
        graph: Graph | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.rules: Rules | None = None
        self.trace = Trace()
        if isinstance(shown, GraphSession):
            graph, plan, self.rules = shown.graph, shown.plan, shown.rules
            self.trace = shown.trace
        else:
            plan = shown if isinstance(shown, Plan) else Plan.load(shown)
        self.plan, self.graph = plan, graph
        self.sharing = Sharing.of(plan)
        names: list[str] = []
        if graph is not None:
            names += classes_of(plan, self.trace.origins(graph))
            names += [f"{ONLY}{name}" for name in (*graph.inputs, *graph.states)]
        super().__init__(
            selection,
            data=self.sharing.columns(),
            facts={
                "steps": self.sharing.steps,
                "size_bytes": self.sharing.size_bytes,
                "schedule": list(plan.schedule),
                "classes": names,
            },
            label=f"alias map: {self.sharing}",
            table=table(self.sharing),
        )

    def during(self, bucket: str) -> Sharing:
        """The map with what a class of runs does; raises WidgetError for an unknown one."""
        if self.graph is None:
            raise WidgetError("fates need the graph; pass a session, or the plan's graph")
        made: Decisions = self.plan.placement_for(self.graph, self.plan.device)
        seen = self.trace.origins(self.graph)
        return Sharing.of(self.plan, run_of(made, bucket, seen, self.rules, self.plan.device))

    def static(self) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self.sharing), "text/plain": str(self.sharing)}

    def _during(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.sharing = self.during(str(request["bucket"]))
        self.table = table(self.sharing)
        assert self.sharing.run is not None
        return {**fates(self.sharing.run), "words": ripple(self.sharing.run)}
