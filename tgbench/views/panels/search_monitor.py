"""The interactive search: what it has found, and buttons that stop it, resume it and fork it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tgbench.base.errors import SearchError, TgbenchError
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import Panel, Selection
from tgbench.views.values.search import SearchRun, optimize_async, to_svg

SECONDS = 30.0  # of a leg, unless the view is told otherwise


class SearchMonitor(Panel):
    """Best so far, bound, gap and steps a second of a search.

    Args:
        shown: a search (`session.optimize_async()`), or a session whose search it starts.
        seconds: what a leg takes that is started here.
        planned: called with each plan that a leg found.
        budgets: least and most bytes of the slider; None for no slider.
    """

    script = "search_monitor.js"
    answers: ClassVar[Mapping[str, str]] = {
        "start": "_start", "stop": "_stop", "fork": "_fork", "budget": "_budget",
    }  # fmt: skip

    def __init__(
        self,
        shown: SearchRun | GraphSession,
        seconds: float = SECONDS,
        *,
        planned: Callable[[Plan], None] | None = None,
        budgets: tuple[int, int] | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.run = shown if isinstance(shown, SearchRun) else None
        self.session = shown.session if isinstance(shown, SearchRun) else shown
        self.seconds, self._planned, self._budgets = seconds, planned, budgets
        self._unwatch: Callable[[], None] = lambda: None
        self._told: Plan | None = None
        super().__init__(selection, **self._state())
        if self.run is not None:
            self._follow(self.run)

    def _follow(self, run: SearchRun) -> None:
        self._unwatch()
        self.run, self._unwatch = run, run.watch(self._changed)
        self._changed()

    def _changed(self) -> None:
        with self.hold_sync():
            for name, value in self._state().items():
                setattr(self, name, value)
        if self.run is None or self.run.is_running or self._planned is None:
            return
        if self.run.plan is not None and self.run.plan is not self._told:
            self._told = self.run.plan
            self._planned(self.run.plan)

    def _state(self) -> dict[str, Any]:
        run = self.run
        shown = run.history if run is not None else None
        last = shown.last if shown is not None else None
        least, most = self._budgets or (0, 0)
        return {
            "data": pack(shown.columns()) if shown is not None else b"",
            "facts": {
                "is_running": run is not None and run.is_running,
                "is_new": run is None or run.plan is None,
                "step": last.step if last else 0,
                "best": last.best_ns if last else 0.0,
                "bound": last.bound_ns if last else 0.0,
                "rate": shown.steps_per_second if shown is not None else 0.0,
                "message": last.message if last else "",
                "state": str(run) if run is not None else "not started",
                "budget": self.session.budget_bytes or 0, "least": least, "most": most,
            },
            "label": f"search: {run if run is not None else 'not started'}",
            "table": {
                "header": ["step", "best", "bound"],
                "rows": [[last.step, last.best_ns, last.bound_ns]] if last else [],
            },
        }  # fmt: skip

    # --- answers ---------------------------------------------------------------------------------

    def _start(self, request: Mapping[str, Any]) -> str:
        """Start, or go on."""
        if self.run is None:
            self._follow(optimize_async(self.session, seconds=self.seconds))
        else:
            self.run.resume(self.seconds)
        return "searching"

    def _stop(self, _: Mapping[str, Any]) -> str:
        if self.run is None:
            raise SearchError("nothing is searched yet; start it first")
        self.run.stop()
        return str(self.run)

    def _fork(self, _: Mapping[str, Any]) -> str:
        """Leave this search as it is, and go on from its plan with another seed."""
        if self.run is None:
            raise SearchError("nothing is searched yet; start it first")
        if self.run.is_running:
            self.run.stop()
        before, made = self.run, self.run.fork()
        made.start(self.seconds)
        self._follow(made)
        before.close()
        return f"seed {made.seed}"

    def _budget(self, request: Mapping[str, Any]) -> str:
        """Search anew within another budget."""
        budget_bytes, before = int(request["bytes"]), self.session.budget_bytes
        if self.run is not None:
            self.run.close()
        try:
            self._follow(optimize_async(self.session, seconds=self.seconds, budget=budget_bytes))
        except TgbenchError:
            self.session.budget_bytes = before
            raise
        return "searching"

    def static(self) -> dict[str, str]:
        if self.run is None:
            return super().static()
        return {"image/svg+xml": to_svg(self.run.history), "text/plain": str(self.run)}
