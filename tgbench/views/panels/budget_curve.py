"""The interactive curve of time by memory: every point opens its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tgbench.base.errors import WidgetError
from tgbench.base.words import counted
from tgbench.plans.plan import Plan
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import Panel, Selection
from tgbench.views.values.pareto import Curve, to_svg


class BudgetCurve(Panel):
    """Points of `views.pareto.curve`.

    Args:
        shown: the curve.
        use: called with the plan that "use this plan" stands for; None: no such button.
        compute: begins to find a curve that `put` then shows; None: no such button.
    """

    script = "budget_curve.js"
    answers: ClassVar[Mapping[str, str]] = {"open": "_open", "use": "_use", "compute": "_compute"}

    def __init__(
        self,
        shown: Curve,
        use: Callable[[Plan], None] | None = None,
        selection: Selection | None = None,
        *,
        compute: Callable[[], None] | None = None,
    ) -> None:
        self.curve, self._use_plan, self._begin = shown, use, compute
        self.plan: Plan | None = None
        super().__init__(selection, **self._state())

    def put(self, shown: Curve) -> None:
        """Show another curve."""
        self.curve = shown
        with self.hold_sync():
            for name, value in self._state().items():
                setattr(self, name, value)

    def _open(self, request: Mapping[str, Any]) -> str:
        """The plan of a point in words; it is `plan` then, and its retained nodes are chosen."""
        number = int(request["point"])
        if not 0 <= number < len(self.curve.points):
            raise WidgetError(f"there are {len(self.curve.points)} points, no point {number}")
        self.plan = self.curve.points[number].plan
        self.selected = list(self.plan.retained)
        return str(self.plan)

    def _use(self, request: Mapping[str, Any]) -> str:
        if self._use_plan is None:
            raise WidgetError("no session to use the plan in; save it: `view.plan.save(path)`")
        self._open(request)
        assert self.plan is not None
        self._use_plan(self.plan)
        return f"in force: {str(self.plan).splitlines()[0]}"

    def static(self) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self.curve), "text/plain": str(self.curve)}

    def _compute(self, _: Mapping[str, Any]) -> str:
        if self._begin is None:
            raise WidgetError("no session to try budgets with; `views.pareto.curve` does")
        self._begin()
        return "trying budgets, each in a process of its own"

    def _state(self) -> dict[str, Any]:
        shown = self.curve
        return {
            "data": pack(shown.columns()),
            "facts": {
                "can_use": self._use_plan is not None, "can_compute": self._begin is not None,
                "least": shown.least_bytes,
            },
            "label": f"expected time by memory: {counted(len(shown.points), 'budget')}",
            "table": {"header": ["budget", "arena", "mean run", "retained"], "rows": shown.rows()},
        }  # fmt: skip
