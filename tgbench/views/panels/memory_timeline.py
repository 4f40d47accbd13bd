"""The interactive memory timeline: look at a map, and change it by hand.

    MemoryTimeline(session)                a session with a plan in force
    MemoryTimeline(plan, graph)            a plan and the graph that it is for
    MemoryTimeline(plan)                   a plan, or its file, alone: no model and no weights

Dragging a chosen buffer up or down shows at once what it would clash with; on release Python gives
the verdict (`whatif`), with the time of a run. `what` is the changed plan as a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tgbench.base.errors import WidgetError
from tgbench.base.words import format_bytes
from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace
from tgbench.session.session import GraphSession
from tgbench.session.what_if import Ground, WhatIf
from tgbench.views.panels.widget import MOST_ROWS, Panel, Selection
from tgbench.views.values.alias import ripple
from tgbench.views.values.runs import classes_of, run_of
from tgbench.views.values.timeline import Timeline, timeline_from_plan, timeline_of_plan, to_svg

MOST_STATIC = 600  # rectangles in the picture that every notebook with the widget carries


class MemoryTimeline(Panel):
    """The memory map as a picture that can be zoomed, searched, stepped through and changed.

    Args:
        shown: a session, a plan, a plan's file, or a payload (`views.timeline.Timeline`).
        graph: what the plan is for; without it, no changes, and live ranges as far as a plan tells.
        selection: shared with other views.

    Raises:
        PlanError: for a session without a plan, a damaged file, a plan of another graph.
    """

    script = "memory_timeline.js"
    answers: ClassVar[Mapping[str, str]] = {
        "move": "_move", "pin": "_pin", "drop": "_drop", "undo": "_undo", "code": "_code",
        "during": "_during",
    }  # fmt: skip

    def __init__(
        self,
        shown: GraphSession | Plan | str | Path | Timeline,
        graph: Graph | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.what: WhatIf | None = None
        self.plan: Plan | None = None
        self.trace = Trace()
        if isinstance(shown, GraphSession):
            self.what, self.trace = WhatIf.of(shown), shown.trace
        elif not isinstance(shown, Timeline):
            self.plan = shown if isinstance(shown, Plan) else Plan.load(shown)
            self.what = WhatIf(Ground(self.plan, graph)) if graph is not None else None
        if self.what is not None:
            self.plan = self.what.ground.plan
        self.timeline = shown if isinstance(shown, Timeline) else self._drawn()
        super().__init__(selection, **self._state())

    def _drawn(self) -> Timeline:
        if self.what is not None:
            plan = self.what.plan if self.what.changes else self.what.ground.plan
            return timeline_of_plan(plan, self.what.ground.graph)
        assert self.plan is not None
        return timeline_from_plan(self.plan)

    def _state(self) -> dict[str, Any]:
        shown = self.timeline
        names: list[str] = []
        if self.what is not None and self.plan is not None:
            names += classes_of(self.plan, self.trace.origins(self.what.ground.graph))
        return {
            "data": shown.columns(),
            "facts": {
                **shown.facts(), "can_change": self.what is not None,
                "classes": names,
            },
            "label": f"memory timeline: {shown}",
            "table": alternative(shown),
        }  # fmt: skip

    def static(self) -> dict[str, str]:
        picture = to_svg(self.timeline, most=MOST_STATIC)
        return {"image/svg+xml": picture, "text/plain": str(self.timeline)}

    # --- answers ---------------------------------------------------------------------------------

    def _changeable(self) -> WhatIf:
        if self.what is None:
            raise WidgetError("this view has a plan alone; pass a session, or the plan's graph")
        return self.what

    def _move(self, request: Mapping[str, Any]) -> dict[str, Any]:
        what, node = self._changeable(), str(request["node"])
        return self._judged(what.moved(node, int(request["offset_bytes"])))

    def _pin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._judged(self._changeable().retained(str(request["node"])))

    def _drop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._judged(self._changeable().dropped(str(request["node"])))

    def _undo(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if not self._changeable().changes:
            raise WidgetError("nothing was changed yet")
        return self._judged(self._changeable().undone())

    def _judged(self, what: WhatIf) -> dict[str, Any]:
        """The verdict; a change that is valid is shown, another leaves everything as it was."""
        verdict = what.verdict()
        if verdict.is_valid:
            self.what = what
            self.timeline = self._drawn()
            with self.hold_sync():
                for name, value in self._state().items():
                    setattr(self, name, value)
        return {
            "is_valid": verdict.is_valid,
            "message": verdict.message,
            "before_ns": verdict.before_ns,
            "expected_ns": verdict.expected_ns,
        }

    def _code(self, _: Mapping[str, Any]) -> str:
        return self._changeable().code()

    def _during(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Names of the nodes that a run of a class touches, the same class having run before."""
        what = self._changeable()
        ground = what.ground
        rules = ground.costs.rules if ground.costs is not None else None
        seen = self.trace.origins(ground.graph)
        run = run_of(what.decisions, str(request["bucket"]), seen, rules, ground.plan.device)
        return {"names": sorted(run.recomputed | run.reused | run.changed), "words": ripple(run)}


def alternative(shown: Timeline) -> dict[str, Any]:
    """The map as a table, the largest rectangles first."""
    rows = sorted(shown.rectangles, key=lambda r: -r.size_bytes)[:MOST_ROWS]
    return {
        "header": ["node", "kind", "bytes", "offset", "when", "detail"],
        "rows": [
            [r.label, r.kind, format_bytes(r.size_bytes), str(r.offset_bytes), r.when, r.detail]
            for r in rows
        ],
    }
