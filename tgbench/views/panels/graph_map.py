"""The interactive graph: zoom, pan, search, fold and unfold equal layers, choose nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tgbench.base.errors import WidgetError
from tgbench.base.words import format_bytes, format_time
from tgbench.graph.graph import Graph
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import MOST_ROWS, Panel, Selection
from tgbench.views.values.graphs import NodeCost, Picture, picture, to_svg

MOST_DOT = 20_000  # nodes of a graph that is copied as Graphviz source


class GraphMap(Panel):
    """A graph as a picture; a click on a folded node chooses all the nodes that it stands for.

    Args:
        graph: what to draw.
        cost: modelled nanoseconds of a node; rough ones where it is None.
        fold: draw runs of equal layers once, to begin with.
        selection: shared with other views.
    """

    script = "graph_map.js"
    answers: ClassVar[Mapping[str, str]] = {"fold": "_fold", "dot": "_dot"}

    def __init__(
        self,
        graph: Graph,
        cost: NodeCost | None = None,
        *,
        fold: bool = True,
        selection: Selection | None = None,
    ) -> None:
        self.graph, self._cost = graph, cost
        self.picture = picture(graph, cost, fold=fold)
        super().__init__(selection, **_state(self.picture))

    def _fold(self, request: Mapping[str, Any]) -> bool:
        """Draw equal layers once, or each for itself."""
        self.picture = picture(self.graph, self._cost, fold=bool(request["fold"]))
        with self.hold_sync():
            for name, value in _state(self.picture).items():
                setattr(self, name, value)
        return bool(self.picture.folded.blocks)

    def _dot(self, _: Mapping[str, Any]) -> str:
        if len(self.graph) > MOST_DOT:
            raise WidgetError(
                f"{len(self.graph)} nodes are too many; write graph.to_dot() to a file"
            )
        return self.graph.to_dot()

    def static(self) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self.picture), "text/plain": str(self.picture)}


def _state(shown: Picture) -> dict[str, Any]:
    members, sizes, times = shown.folded.members, shown.size_bytes, shown.time_ns
    titles = shown.titles()
    order = sorted(range(len(members)), key=lambda i: -sum(times[i]))[:MOST_ROWS]
    return {
        "data": pack(shown.columns()),
        "facts": shown.facts(),
        "label": str(shown),
        "table": {
            "header": ["node", "op and type", "bytes", "modelled time, whole"],
            "rows": [
                [
                    members[i][0].name, titles[i],
                    format_bytes(int(sum(sizes[i]))), format_time(sum(times[i])),
                ]
                for i in order
            ],
        },
    }  # fmt: skip
