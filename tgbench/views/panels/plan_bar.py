"""The plan in force, in words and as a file; and what was done by hand, as Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tgbench.base.errors import WidgetError
from tgbench.base.words import counted
from tgbench.plans.plan import Plan
from tgbench.views.panels.widget import Panel, Selection
from tgbench.views.values.search import ended

FILE = "plan.json"


class PlanBar(Panel):
    """A plan in words, with a button that exports it.

    Args:
        plan: what is shown; `put` shows another.
        code: gives what was done, as Python; None: nothing can be done.
        use: puts a changed plan in force and says so; None: no such button.
    """

    script = "plan_bar.js"
    answers: ClassVar[Mapping[str, str]] = {"json": "_json", "code": "_code", "use": "_use"}

    def __init__(
        self,
        plan: Plan,
        code: Callable[[], str] | None = None,
        use: Callable[[], str] | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.plan, self._told, self._change = plan, code, use
        super().__init__(selection, **self._state())

    def put(self, plan: Plan) -> None:
        """Show another plan."""
        self.plan = plan
        for name, value in self._state().items():
            setattr(self, name, value)

    def _state(self) -> dict[str, Any]:
        words = str(self.plan)
        record = self.plan.search
        if record is not None:
            words += f"\n  found by {record.mode}, {counted(record.steps, 'step')}: {ended(record)}"
        return {
            "facts": {"words": words, "can_use": self._change is not None},
            "label": words.splitlines()[0],
        }

    def _json(self, _: Mapping[str, Any]) -> dict[str, str]:
        return {"name": FILE, "text": self.plan.to_json()}

    def _code(self, _: Mapping[str, Any]) -> str:
        if self._told is None:
            raise WidgetError("a plan alone: there is nothing to do by hand here")
        return self._told()

    def _use(self, _: Mapping[str, Any]) -> str:
        if self._change is None:
            raise WidgetError("a plan alone: there is no session to put it in force in")
        return self._change()

    def static(self) -> dict[str, str]:
        return {"text/plain": str(self.plan)}
