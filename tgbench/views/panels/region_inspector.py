"""The interactive region inspector: one node's tensor, cut as you like, for any class of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tgbench.runs.buckets import BucketClass
from tgbench.session.session import GraphSession
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import Panel, Selection
from tgbench.views.values.regions import (
    KINDS,
    MEANINGS,
    Inspection,
    best_cut,
    columns_of,
    inspect_class,
    inspect_last,
    to_svg,
)
from tgbench.views.values.runs import classes_of

LAST = "last run"
MOST_NAMES = 2000  # offered in the list of nodes


class RegionInspector(Panel):
    """Dirty, needed, known, valid, computed and stale elements of the chosen node.

    Args:
        session: with a plan in force.
        selection: the first chosen node is drawn; its class of runs is the chosen one.

    Raises PlanError for a session that nothing ran in.
    """

    script = "region_inspector.js"
    answers: ClassVar[Mapping[str, str]] = {"show": "_show"}

    def __init__(self, session: GraphSession, selection: Selection | None = None) -> None:
        self.session = session
        self._run = LAST if session.last is not None else ""
        self.inspection = self._inspected()
        self._name = self._first()
        super().__init__(selection, **self._state())
        self.observe(self._chosen, ["selected", "bucket"])

    def refresh(self) -> None:
        """Another run, or another plan: decide anew what is shown."""
        if self._run != LAST and self._run not in self._classes():
            self._run = LAST
        self.inspection = self._inspected()
        self._draw()

    def _classes(self) -> dict[str, BucketClass]:
        return classes_of(self.session.plan, self.session.trace.origins(self.session.graph))

    def _inspected(self) -> Inspection:
        if self._run == LAST:
            return inspect_last(self.session)
        classes = self._classes()
        return inspect_class(self.session, classes.get(self._run, next(iter(classes.values()))))

    def _first(self) -> str:
        found = self.inspection
        computed = [name for name in found.touched if "computed" in found.regions[name]]
        names = computed or list(found.touched) or [found.graph.nodes[0].name]
        return names[len(names) // 2]

    def _state(self) -> dict[str, Any]:
        shown = self.inspection.node(self._name)
        cut = best_cut(shown.node.shape, shown.regions)
        return {
            "data": pack(columns_of(shown)),
            "facts": {
                "node": self._name, "type": str(shown.node.type), "title": self.inspection.title,
                "kinds": list(KINDS), "meanings": dict(MEANINGS), "run": self._run or LAST,
                "runs": [*([LAST] if self.session.last is not None else []), *self._classes()],
                "rows": cut.rows, "columns": cut.columns, "at": list(cut.at),
                "names": list(self.inspection.touched[:MOST_NAMES]),
                "words": [list(row) for row in shown.words()],
            },
            "label": f"regions of {self._name}: {self.inspection.title}",
            "table": {
                "header": ["kind", "elements", "boxes"],
                "rows": [list(row) for row in shown.words()],
            },
        }  # fmt: skip

    def _draw(self) -> None:
        with self.hold_sync():
            for name, value in self._state().items():
                setattr(self, name, value)

    def _chosen(self, _: Any) -> None:
        """Another node or class was chosen in some view."""
        before = self._name, self._run
        known = {node.name for node in self.session.graph.nodes}
        self._name = next((name for name in self.selected if name in known), self._name)
        if self.bucket in self._classes():
            self._run = self.bucket
        if self._run != before[1]:
            self.inspection = self._inspected()
        if before != (self._name, self._run):
            self._draw()

    def _show(self, request: Mapping[str, Any]) -> str:
        """The run and the node that are asked for here; the others follow."""
        run, name = str(request.get("run", self._run)), str(request.get("node", self._name))
        self.session.graph.node(name)
        if run != self._run and (run == LAST or run in self._classes()):
            self._run = run
            self.bucket = "" if run == LAST else run
            self.inspection = self._inspected()
        self._name = name
        if [name] != self.selected[:1]:
            self.selected = [name]
        self._draw()
        return self.inspection.title

    def static(self) -> dict[str, str]:
        svg = to_svg(self.inspection.node(self._name), self.inspection.title)
        return {"image/svg+xml": svg, "text/plain": str(self.inspection)}
