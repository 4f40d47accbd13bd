"""The interactive transition matrix: which class of runs follows which, with an example of each."""

from __future__ import annotations

from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import MOST_ROWS, Panel, Selection
from tgbench.views.values.transitions import Matrix, matrix, matrix_of_plan, to_svg


class TransitionMap(Panel):
    """A square per pair of classes; a click shows an example and chooses the class.

    Args:
        shown: a trace with its graph, a plan (whose classes have no order), or a payload.
        graph: of the trace.

    Raises TraceError for calls of another graph.
    """

    script = "transition_map.js"

    def __init__(
        self,
        shown: Trace | Plan | Matrix,
        graph: Graph | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.matrix = _matrix(shown, graph)
        super().__init__(
            selection,
            data=pack(self.matrix.columns()),
            facts={"has_order": bool(self.matrix.cells)},
            label=f"bucket transitions: {self.matrix}",
            table={
                "header": ["class", "next", "count", "probability", "mean"],
                "rows": self.matrix.rows()[:MOST_ROWS],
            },
        )

    def static(self) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self.matrix), "text/plain": str(self.matrix)}


def _matrix(shown: Trace | Plan | Matrix, graph: Graph | None) -> Matrix:
    if isinstance(shown, Matrix):
        return shown
    if isinstance(shown, Plan):
        return matrix_of_plan(shown)
    assert graph is not None, "a trace needs its graph"
    return matrix(shown, graph)
