"""Paths as a table, in cost order, and as a lattice of what they decide: lines on a railway map.

    decision   ●━━━━━━━●━━━━━━━●        the path that is looked at, thick
                 ╲   ╱           ╲
                   ○               ○    what other paths take there

Each column is a decision of equal layers, each stop an option of it; prefixes that paths share are
drawn once. The map stands in the table's HTML as an image, which is there in exports and in
notebooks that nobody trusted yet: of an SVG amid HTML these leave only its words, in one row.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from html import escape
from operator import and_
from typing import Any

from tgbench.base.words import counted, cut, format_bytes, format_share, format_time
from tgbench.graph.rewrite.saturate import SaturationEnd
from tgbench.memory.estimate import estimate_memory
from tgbench.memory.storage import is_look
from tgbench.plans.paths.paths import Path
from tgbench.session.paths import SessionPaths
from tgbench.views.draw.svg import THEME
from tgbench.views.draw.tables import TextTable

SHOWN = 12  # paths of a table, and lines of a map
STEP, ROW, LEFT, TOP = 176, 34, 20, 44  # pixels
LETTERS, MOST_LETTERS = 20, 72  # of a label, and of one with nothing beside it; all is its title
LETTER = 8  # pixels, of a heading
TITLE = "paths through their decisions"
PAPER = ":root{--paper:#fff}@media(prefers-color-scheme:dark){:root{--paper:#111}}"  # as in THEME
HALO = 'style="stroke:var(--paper)" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'


@dataclass(frozen=True)
class Stop:
    """An option of a decision.

    Fields:
        column, row: its place on the map; the cheapest path runs along row 0.
        label: what is computed there.
    """

    column: int
    row: int
    label: str


@dataclass(frozen=True)
class PathMap:
    """Some paths as lines through decisions.

    Fields:
        decisions: what is decided in each column.
        stops: every option that a path takes.
        lines: of each path, the row of its stop in every column.
    """

    decisions: tuple[str, ...]
    stops: tuple[Stop, ...]
    lines: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(paths: Sequence[Path]) -> PathMap:
        """The decisions in which these paths differ."""
        if not paths:
            return PathMap((), (), ())
        groups = paths[0].paths.choices.clusters
        calls = [[_calls(path, group) for group in groups] for path in paths]
        told = [[_told(row[i], [r[i] for r in calls]) for i in range(len(groups))] for row in calls]
        columns = [i for i in range(len(groups)) if len({row[i] for row in told}) > 1]
        stops: list[Stop] = []
        rows: list[dict[str, int]] = []
        for place, i in enumerate(columns):
            options = {label: row for row, label in enumerate(dict.fromkeys(r[i] for r in told))}
            rows.append(options)
            stops += [Stop(place, row, label) for label, row in options.items()]
        lines = tuple(tuple(rows[place][row[i]] for place, i in enumerate(columns)) for row in told)
        return PathMap(tuple(_decision(groups[i]) for i in columns), tuple(stops), lines)

    def to_svg(self, chosen: int = 0) -> str:
        """The map, one path thick; "" where there is nothing to decide."""
        if not self.decisions:
            return ""
        last = [self.decisions[-1], *(s.label for s in self.stops if self._is_last(s.column))]
        beside = min(max(map(len, last)), MOST_LETTERS) * LETTER
        width = LEFT * 2 + STEP * (len(self.decisions) - 1) + max(STEP, beside)
        height = TOP + ROW * max(stop.row for stop in self.stops) + LETTER
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" font-family="sans-serif" font-size="12"><style>{THEME}{PAPER}</style>',
            f"<title>{TITLE}</title>",
        ]
        for place, decision in enumerate(self.decisions):
            x = LEFT + place * STEP
            parts.append(
                f'<text class="tg-strong" x="{x}" y="14" font-weight="600">'
                f"{self._fitted(decision, place)}<title>{escape(decision)}</title></text>"
            )
        legs = {
            (place, line[place], line[place + 1])
            for line in self.lines
            for place in range(len(line) - 1)
        }
        thick = self.lines[chosen]
        of_chosen = {(i, thick[i], thick[i + 1]) for i in range(len(thick) - 1)}
        for leg in sorted(legs - of_chosen) + sorted(of_chosen):
            parts.append(_leg(*leg, is_chosen=leg in of_chosen))
        for stop in self.stops:
            is_chosen = thick[stop.column] == stop.row
            x, y = _place(stop.column, stop.row)
            fill, line = ("tg-a", "tg-a") if is_chosen else ("paper", "tg-ink")
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="{6 if is_chosen else 4}" '
                f'style="fill:var(--{fill});stroke:var(--{line})" stroke-width="1.5"/>'
                f'<text class="tg-strong" x="{x + 10}" y="{y + 16}" {HALO}>'
                f"{self._fitted(stop.label, stop.column)}"
                f"<title>{escape(stop.label)}</title></text>"
            )
        return "".join([*parts, "</svg>"])

    def to_html(self) -> str:
        """The map as an image that needs no other file; "" where there is nothing to decide.

        Its own size is kept, however narrow the page. An image shows no titles of its parts: its
        own has every heading, whole.
        """
        svg = self.to_svg()
        if not svg:
            return ""
        whole = "; ".join(f"{i + 1}. {one}" for i, one in enumerate(self.decisions))
        return (
            f'<img alt="{TITLE}" title="{escape(whole, quote=True)}" style="max-width:none" '
            f'src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'
        )

    def _is_last(self, column: int) -> bool:
        return column == len(self.decisions) - 1

    def _fitted(self, label: str, column: int) -> str:
        """As much of it as there is room for before the next column."""
        return escape(cut(label, MOST_LETTERS if self._is_last(column) else LETTERS))


def _place(column: int, row: int) -> tuple[int, int]:
    return LEFT + column * STEP + 4, TOP - 16 + row * ROW


def _leg(column: int, start: int, stop: int, *, is_chosen: bool) -> str:
    (x0, y0), (x1, y1) = _place(column, start), _place(column + 1, stop)
    middle = (x0 + x1) // 2
    colour = "a" if is_chosen else "ink"
    more = 'stroke-width="4"' if is_chosen else 'stroke-opacity="0.4"'
    return (
        f'<path d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}" '
        f'style="fill:none;stroke:var(--tg-{colour})" {more}/>'
    )


def _calls(path: Path, group: Sequence[Any]) -> Counter[str]:
    """What a path computes in a cluster: how often which op, views left out."""
    cluster = group[0]
    pairs = zip(cluster.classes, path.taken[cluster], strict=True)
    nodes = [cluster.options[name][number] for name, number in pairs if number >= 0]
    return Counter(node.op for node in nodes if not (node.is_leaf or is_look(node)))


def _told(calls: Counter[str], options: Sequence[Counter[str]]) -> str:
    """What of an option not every one does: "2 matmul, exp"; "nothing more"."""
    own = calls - reduce(and_, options)
    return ", ".join(op if n == 1 else f"{n} {op}" for op, n in own.items()) or "nothing more"


def _decision(group: Sequence[Any]) -> str:
    """Where a cluster is: the names of what every way computes; how many are like it."""
    first = group[0]
    several = [entry for entry in first.entries if len(first.options[entry]) > 1]
    names = ", ".join(entry.name for entry in several or first.entries)
    return names if len(group) == 1 else f"{names} × {len(group)}"


@dataclass(frozen=True)
class Ways:
    """Some paths of many, the cheapest first, with what is said of all of them.

    Fields:
        places: of each among the graphs (`SessionPaths.graph_at`).
    """

    told: str
    paths: tuple[Path, ...]
    places: tuple[int, ...]

    @property
    def map(self) -> PathMap:
        """What they decide."""
        return PathMap.of(self.paths)

    def table(self) -> TextTable:
        """One row a graph."""
        header = ("graph", "a run", "more", "measured", "calls", "kept at most", "by")
        best = self.paths[0].time_ns if self.paths else 0.0
        rows = [row(place, p, best) for place, p in zip(self.places, self.paths, strict=True)]
        return TextTable(self.told, header, tuple(rows))

    def __str__(self) -> str:
        return str(self.table())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle = self.table().bundle()
        return bundle | {"text/html": f"{self.map.to_html()}{bundle['text/html']}"}


def row(place: int, path: Path, best_ns: float) -> tuple[str, ...]:
    """A path in words: its place, time, how much more that is than the best one's and how much of
    it was measured, calls, bytes, and rules.
    """
    found = path.estimate
    kept = estimate_memory(path.graph).keep_all_bytes
    by = ", ".join(path.rules) or "as it was given"
    return (
        f"{place:,}",
        f"{format_time(path.time_ns)} ±{found.spread:.0%}",
        f"+{format_time(path.time_ns - best_ns)}" if path.time_ns > best_ns else "",
        format_share(found.share("measured")),
        f"{len(path.calls):,}",
        format_bytes(kept),
        by,
    )


def ways_of(paths: SessionPaths, count: int = SHOWN) -> Ways:
    """The first graphs that differ in time, each by its cheapest path, and how many there are."""
    found = paths.paths.different(count)
    return Ways(summary(paths), tuple(found.values()), tuple(found))


ENDS = {  # of looking for other forms
    SaturationEnd.SATURATED: "there are no others",
    SaturationEnd.NODES: "more are found where more may be looked at",
    SaturationEnd.ITERATIONS: "more are found where more may be looked at",
    SaturationEnd.SECONDS: "more are found in more time",
    SaturationEnd.FOUND: "what was looked for is there",
}


def summary(paths: SessionPaths) -> str:
    """How many there are, in words."""
    how_many, found = str(paths).split("; ")[0], paths.paths.space.saturation
    last = found.iterations[-1]
    looked = f"{counted(last.nodes, 'form')} of {counted(last.classes, 'value')}"
    return f"{how_many}; {looked} looked at in {found.seconds:.2f} s: {ENDS[found.stopped]}"
