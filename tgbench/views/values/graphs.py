"""The graph, drawn: layers that are equal once, with what each of them takes as a small curve.

    ┌ gather ┐
    └────┬───┘
    ┌────┴──────── ×18 ┐      a frame: 18 equal layers
    │ rms_norm ▁▁▁▁▁▁▁ │      a curve: time or bytes, layer by layer
    │ linear   ▃▃▃▃▃▃▃ │
    └────┬─────────────┘
    ┌ logits ┐

`picture` builds the payload from a graph, `to_svg` is its static form. A graph too large to name
every node is drawn as dots, a very large one as the number of nodes of each depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np

from tgbench.base.regions import Box
from tgbench.base.words import counted
from tgbench.graph.dims import is_symbolic
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import OPS
from tgbench.runs.propagate import rough_ns
from tgbench.views.draw.folding import Folded, folded, inlined, unfolded
from tgbench.views.draw.layering import Floats, Positions, layout
from tgbench.views.draw.svg import THEME

Kind: TypeAlias = Literal["input", "parameter", "constant", "state", "op", "view", "output"]
KINDS: tuple[Kind, ...] = ("input", "parameter", "constant", "state", "op", "view", "output")
MOST_NAMED = 160  # nodes with their names in the static picture
MOST_DOTS = 3000  # nodes drawn one by one there
MOST_CURVE = 64  # points of a curve

NodeCost: TypeAlias = Callable[[Node], float]  # modelled nanoseconds of the whole node


@dataclass(frozen=True)
class Picture:
    """A graph with places for its nodes.

    Fields:
        graph: what is drawn.
        folded: which nodes are drawn, and for whom.
        layout: where.
        time_ns, size_bytes: per drawn node, one number for each node it stands for.
        inside: weights and constants that a drawn node alone reads, by its position.
    """

    graph: Graph
    folded: Folded
    layout: Positions
    time_ns: tuple[tuple[float, ...], ...]
    size_bytes: tuple[tuple[float, ...], ...]
    inside: Mapping[int, tuple[Node, ...]] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        outputs = {*self.graph.outputs.values(), *self.graph.updates.values()}
        return tuple(
            "output" if not outputs.isdisjoint(members) else _kind(members[0])
            for members in self.folded.members
        )

    def titles(self) -> list[str]:
        """One line a drawn node: op, type, and how many nodes it stands for."""
        found = []
        for i, members in enumerate(self.folded.members):
            many = f", ×{len(members)}" if len(members) > 1 else ""
            own = ", ".join(node.name for node in self.inside.get(i, ())[:: len(members)])
            found.append(f"{members[0].op} {members[0].type}{f' · {own}' if own else ''}{many}")
        return found

    def columns(self) -> dict[str, Any]:
        """Plain columns for a script that draws."""
        drawn = self.folded.members
        names = [node.name for members in drawn for node in members]
        curves = {"time": self.time_ns, "size": self.size_bytes}
        return {
            "name": [members[0].name for members in drawn],
            "title": self.titles(),
            "op": [members[0].op for members in drawn],
            "kind": np.array([KINDS.index(kind) for kind in self.kinds], np.uint8),
            "x": self.layout.x.astype(np.float32),
            "y": self.layout.y.astype(np.float32),
            "block": np.array(self.folded.block, np.int32),
            "edge": self.folded.edges.astype(np.int32).ravel(),
            "member": names,
            "inside": [node.name for nodes in self.inside.values() for node in nodes],
            "inside_of": np.array([i for i, nodes in self.inside.items() for _ in nodes], np.int32),
            "first": np.array([0, *accumulate(map(len, drawn))], np.int32),
            **{
                name: np.array([value for row in rows for value in row], np.float32)
                for name, rows in curves.items()
            },
        }

    def facts(self) -> dict[str, Any]:
        """Small values beside the columns."""
        return {
            "kinds": list(KINDS),
            "nodes": len(self.graph),
            "blocks": [{"count": b.count, "nodes": b.period} for b in self.folded.blocks],
            "is_folded": bool(self.folded.blocks),
        }

    def __str__(self) -> str:
        ops = Counter(node.op for node in self.graph.nodes if not node.is_leaf).most_common(4)
        most = ", ".join(f"{n} {op}" for op, n in ops)
        layers = ", ".join(
            f"{counted(b.count, 'layer')} of {counted(b.period, 'node')}"
            for b in self.folded.blocks
        )
        said = f"graph of {counted(len(self.graph), 'node')} ({most})"
        return f"{said}; drawn once: {layers}" if layers else said

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self), "text/plain": str(self)}


def picture(graph: Graph, cost: NodeCost | None = None, *, fold: bool = True) -> Picture:
    """A graph laid out; equal layers once, unless `fold` is false.

    Args:
        cost: modelled nanoseconds of a node; rough ones are taken where it is None.
    """
    drawn, inside = inlined(folded(graph) if fold else unfolded(graph))
    time_of = cost if cost is not None else _rough
    return Picture(
        graph,
        drawn,
        layout(len(drawn), drawn.edges),
        tuple(tuple(map(time_of, members)) for members in drawn.members),
        tuple(tuple(map(_bytes, members)) for members in drawn.members),
        inside,
    )


def _kind(node: Node) -> Kind:
    if node.is_leaf:
        kinds: Mapping[str, Kind] = {k: k for k in KINDS[:4]}
        return kinds[node.op]
    return "view" if OPS[node.op].view is not None else "op"


def _is_bound(node: Node) -> bool:
    types = (node.type, *(parent.type for parent in node.inputs))
    return not any(is_symbolic(size) for type_ in types for size in type_.shape)


def _rough(node: Node) -> float:
    if node.is_leaf or OPS[node.op].view is not None or not _is_bound(node):
        return 0.0
    return rough_ns(node.call, Box.full(node.shape))


def _bytes(node: Node) -> float:
    return float(node.type.size_bytes) if _is_bound(node) else 0.0


# --- the static picture -------------------------------------------------------------------------

ACROSS, DOWN, WIDE, HIGH = 168, 58, 152, 38  # pixels: between middles, and of a node
EDGE = 26
STYLE = (
    THEME + ":root{--tg-node:#fff}@media(prefers-color-scheme:dark){:root{--tg-node:#161b22}}"
    ".tg-node{fill:var(--tg-node);stroke:var(--tg-soft);stroke-width:1}"
    ".tg-node.tg-k-input{stroke:var(--tg-input);stroke-width:2}"
    ".tg-node.tg-k-state{stroke:var(--tg-scratch);stroke-width:2}"
    ".tg-node.tg-k-output{stroke:var(--tg-retained);stroke-width:2.5}"
    ".tg-node.tg-k-parameter,.tg-node.tg-k-constant{stroke-dasharray:3 3}"
    ".tg-node.tg-k-view{stroke-opacity:.45}"
    ".tg-edge{fill:none;stroke:var(--tg-soft);stroke-opacity:.45}"
    ".tg-frame{fill:var(--tg-soft);fill-opacity:.07;stroke:var(--tg-line)}"
    ".tg-curve{fill:none;stroke:var(--tg-slice);stroke-width:1.4}.tg-dot{fill:var(--tg-input)}"
)


def to_svg(shown: Picture) -> str:
    """The picture as one SVG; names, dots, or counts, as many as the nodes are."""
    if len(shown.folded) <= MOST_NAMED:
        return _named(shown)
    return _dotted(shown) if len(shown.folded) <= MOST_DOTS else _counted(shown)


def _svg(shown: Picture, width: float, height: float, parts: list[str]) -> str:
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{min(width, 960):.0f}" role="img" font-family="system-ui, sans-serif" '
            f'font-size="11"><title>{escape(str(shown))}</title><style>{STYLE}</style>',
            *parts,
            "</svg>",
        ]
    )


def _named(shown: Picture) -> str:
    x: Floats = shown.layout.x * ACROSS + EDGE + WIDE / 2
    y: Floats = shown.layout.y.astype(np.float64) * DOWN + EDGE + HIGH / 2
    parts = [*_frames(shown, x, y), *_edges(shown, x, y)]
    for i, (members, title) in enumerate(zip(shown.folded.members, shown.titles(), strict=True)):
        name, left, top = members[0].name, x[i] - WIDE / 2, y[i] - HIGH / 2
        parts.append(
            f'<g><title>{escape(name)}: {escape(title)}</title><rect class="tg-node '
            f'tg-k-{shown.kinds[i]}" x="{left:.1f}" y="{top:.1f}" width="{WIDE}" height="{HIGH}" '
            f'rx="4"/><text class="tg-strong" x="{left + 7:.1f}" y="{top + 15:.1f}">'
            f'{escape(_fitted(name, 18))}</text><text class="tg-text" x="{left + 7:.1f}" '
            f'y="{top + 30:.1f}" font-size="10">{escape(_subtitle(members[0]))}'
            f"</text>{_curve(shown.time_ns[i], x[i] + 34, top - 10)}</g>"
        )
    width = float(x.max() if len(x) else 0) + WIDE / 2 + EDGE
    height = float(y.max() if len(y) else 0) + HIGH / 2 + EDGE
    return _svg(shown, width, height, parts)


def _subtitle(node: Node) -> str:
    sizes = "×".join(map(str, node.shape)) or "scalar"
    return _fitted(f"{node.op} {sizes}", 26)


def _fitted(text: str, most: int) -> str:
    """The end of a long name says more than its beginning.

    >>> _fitted("model.layers.0.self_attn.q_proj.weight", 20)
    '…f_attn.q_proj.weight'
    """
    return text if len(text) <= most else "…" + text[-most:]


def _curve(values: tuple[float, ...], left: float, top: float) -> str:
    if len(values) < 2 or not max(values):
        return ""
    some = values[:: max(len(values) // MOST_CURVE, 1)]
    across, most = 36.0 / (len(some) - 1), max(some)
    points = (
        f"{left + i * across:.1f},{top + 26 - 12 * value / most:.1f}"
        for i, value in enumerate(some)
    )
    return f'<polyline class="tg-curve" points="{" ".join(points)}"/>'


def _frames(shown: Picture, x: Floats, y: Floats) -> list[str]:
    parts, block_of = [], np.array(shown.folded.block)
    for number, block in enumerate(shown.folded.blocks):
        inside = np.flatnonzero(block_of == number)
        left, top = x[inside].min() - WIDE / 2 - 10, y[inside].min() + HIGH / 2 - DOWN
        wide, high = np.ptp(x[inside]) + WIDE + 20, np.ptp(y[inside]) + DOWN + 8
        parts.append(
            f'<rect class="tg-frame" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" '
            f'height="{high:.1f}" rx="8"/><text class="tg-strong" x="{left + wide - 8:.1f}" '
            f'y="{top + 14:.1f}" text-anchor="end" font-size="13">×{block.count:,} layers</text>'
        )
    return parts


def _edges(shown: Picture, x: Floats, y: Floats, gap: float = HIGH / 2) -> list[str]:
    parts = []
    for before, after in shown.folded.edges.tolist():
        top, bottom = y[before] + gap, y[after] - gap
        bend = max((bottom - top) / 2, 10)
        parts.append(
            f"M{x[before]:.1f} {top:.1f}C{x[before]:.1f} {top + bend:.1f} {x[after]:.1f} "
            f"{bottom - bend:.1f} {x[after]:.1f} {bottom:.1f}"
        )
    return [f'<path class="tg-edge" d="{"".join(parts)}"/>'] if parts else []


def _dotted(shown: Picture) -> str:
    x: Floats = shown.layout.x * 12 + EDGE
    y: Floats = shown.layout.y.astype(np.float64) * 12 + EDGE
    parts = _edges(shown, x, y, 3)
    for i, (members, title) in enumerate(zip(shown.folded.members, shown.titles(), strict=True)):
        words = escape(f"{members[0].name}: {title}")
        parts.append(
            f'<circle class="tg-dot" cx="{x[i]:.1f}" cy="{y[i]:.1f}" r="3"><title>{words}</title>'
            "</circle>"
        )
    return _svg(shown, float(x.max()) + EDGE, float(y.max()) + EDGE, parts)


def _counted(shown: Picture) -> str:
    """How many nodes there are at each depth, for graphs that no page can show."""
    rows = min(shown.layout.height, 300)
    share = shown.layout.y * rows // shown.layout.height
    counts = np.bincount(share, minlength=rows)
    parts = [f'<text class="tg-strong" x="10" y="16">{escape(str(shown))}</text>']
    for row, count in enumerate(counts.tolist()):
        parts.append(
            f'<rect class="tg-input" x="10" y="{28 + row * 2}" height="1.6" '
            f'width="{max(700 * count / counts.max(), 0.5):.1f}"/>'
        )
    return _svg(shown, 720, 40 + rows * 2, parts)
