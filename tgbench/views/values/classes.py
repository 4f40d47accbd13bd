"""An e-graph, drawn: a box for each class of equal values, in it the ways to compute it.

    ┌ x·a + x·b ─────┐      solid: what the graph says; others: by which rule
    │ add            │      filled: what the cheapest path takes
    │▐matmul▌        │      lines: from a way to the classes that it reads, above it
    └────────────────┘

What follows from weights alone is left out, as nothing runs for it. Only small ones are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from tgbench.base.words import counted, cut
from tgbench.graph.graph import Node
from tgbench.graph.rewrite.egraph import GIVEN
from tgbench.plans.paths.paths import Paths
from tgbench.views.draw.layering import layout
from tgbench.views.draw.svg import THEME

MOST = 60  # classes in a picture
MOST_LINES = 400  # of the text
WIDE, CHIP, ROOM, GAP, MARGIN = 132, 18, 8, 40, 10  # pixels
LETTERS = 17  # of a label; the whole is its title


@dataclass(frozen=True)
class ClassPicture:
    """Classes of an e-graph, each after what it may read.

    Fields:
        told: how many there are.
        classes: names, readers last.
        options: of each the e-nodes, the cheapest path's among them.
        reads: of each option, positions of the classes that it reads.
        rules: of each option, the rule that found it; "" for the graph's own.
        taken: e-nodes that the cheapest path computes.
    """

    told: str
    classes: tuple[Node, ...]
    options: tuple[tuple[Node, ...], ...]
    reads: dict[Node, tuple[int, ...]]
    rules: dict[Node, str]
    taken: frozenset[Node]

    @staticmethod
    def of(paths: Paths) -> ClassPicture:
        """All that the ends can be computed from."""
        found, egraph = paths.space.alternatives, paths.egraph
        classes = tuple(reversed(found.order))
        place = {name: i for i, name in enumerate(classes)}
        options = tuple(found.options[name] for name in classes)
        every = [node for some in options for node in some]
        reads = {
            node: tuple(place[n] for n in dict.fromkeys(egraph.inputs(node)) if n in place)
            for node in every
        }
        rules = {node: egraph.rules[node] for node in every}
        counts = f"{counted(len(every), 'e-node')} in {counted(len(classes), 'class')}"
        return ClassPicture(counts, classes, options, reads, rules, frozenset(paths[0].nodes))

    def to_svg(self) -> str:
        """The picture; "" where it would be too large to read."""
        if not 0 < len(self.classes) <= MOST:
            return ""
        edges = [(j, i) for i, some in enumerate(self.options) for n in some for j in self.reads[n]]
        at = layout(len(self.classes), np.array(edges, np.int64).reshape(-1, 2))
        high = [CHIP * (1 + len(some)) + ROOM for some in self.options]
        lines = [
            max(h for h, y in zip(high, at.y, strict=True) if y == i) for i in range(at.height)
        ]
        tops = np.cumsum([MARGIN, *(h + GAP for h in lines)])
        left = [MARGIN + float(x) * (WIDE + 24) for x in at.x]
        top = [float(tops[y]) for y in at.y]
        width = max(left) + WIDE + MARGIN
        height = float(tops[-1]) - GAP + MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="sans-serif" '
            f'font-size="11"><style>{THEME}</style><title>{escape(self.told)}</title>'
        ]
        bodies = []
        for i, some in enumerate(self.options):
            parts += [
                self._line(node, k, left[i], top[i], [(left[j], top[j] + high[j]) for j in reads])
                for k, node in enumerate(some)
                if (reads := self.reads[node])
            ]
            bodies.append(self._box(i, left[i], top[i], high[i]))
        return "".join([*parts, *bodies, "</svg>"])

    def _line(
        self, node: Node, row: int, x: float, y: float, ends: list[tuple[float, float]]
    ) -> str:
        """From the side of an option to what it reads."""
        is_taken, found = node in self.taken, []
        for end_x, end_y in ends:
            start, stop = (x, y + CHIP * (row + 1.5)), (end_x + WIDE / 2, end_y)
            bend = f"C{start[0] - 18:.0f} {start[1]:.0f} {stop[0]:.0f} {stop[1] + 26:.0f}"
            found.append(
                f'<path style="fill:none;stroke:var(--tg-{"a" if is_taken else "soft"});'
                f'stroke-width:{2 if is_taken else 1}" d="M{start[0]:.0f} {start[1]:.0f}{bend} '
                f'{stop[0]:.0f} {stop[1]:.0f}"/>'
            )
        return "".join(found)

    def _box(self, i: int, x: float, y: float, high: float) -> str:
        """A class with its options."""
        name = self.classes[i]
        parts = [
            f'<rect class="tg-live" x="{x:.0f}" y="{y:.0f}" width="{WIDE}" height="{high:.0f}" '
            f'rx="4"/><text class="tg-text" x="{x + 6:.0f}" y="{y + 13:.0f}">'
            f"{escape(cut(name.name, LETTERS))}<title>{escape(repr(name))}</title></text>"
        ]
        for k, node in enumerate(self.options[i]):
            row, rule = y + CHIP * (k + 1), self.rules[node]
            is_taken = node in self.taken
            if is_taken:
                parts.append(
                    f'<rect class="tg-input" fill-opacity="0.3" x="{x + 3:.0f}" y="{row + 2:.0f}" '
                    f'width="{WIDE - 6}" height="{CHIP - 2}" rx="3"/>'
                )
            kind = "tg-strong" if rule == GIVEN else "tg-text"
            style = "" if rule == GIVEN else ' font-style="italic"'
            parts.append(
                f'<text class="{kind}" x="{x + 8:.0f}" y="{row + 14:.0f}"{style}>'
                f"{escape(cut(node.op, LETTERS))}<title>{escape(_told(node, rule))}</title></text>"
            )
        return "".join(parts)

    def __str__(self) -> str:
        lines = [self.told]
        for name, some in zip(self.classes, self.options, strict=True):
            lines.append(f"{name.name}: {name.type}")
            for node in some:
                reads = ", ".join(self.classes[j].name for j in self.reads[node])
                mark = "→" if node in self.taken else " "
                lines.append(f"  {mark} {node.op}({reads})  {self.rules[node] or 'given'}")
        rest = len(lines) - MOST_LINES
        return "\n".join([*lines[:MOST_LINES], *([f"… {rest} lines more"] if rest > 0 else [])])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        svg = self.to_svg()
        return {"text/plain": str(self)} | ({"image/svg+xml": svg} if svg else {})


def _told(node: Node, rule: str) -> str:
    return f"{node!r}, {f'by “{rule}”' if rule else 'as it was given'}"
