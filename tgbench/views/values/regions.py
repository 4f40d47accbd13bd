"""What one run did with one node, drawn on its tensor.

           0 ───────── columns ──────→
    rows   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓   reused: needed, and still there
     │     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
     ↓     ██████████████████████████    computed: dirty, and needed
           ░░░░░░░░░░░░░░░░░░░░░░░░░░    stale: dirty, and nobody asked for it

`inspect_last` reads what a session's last run did, `inspect_class` decides a run of a planned class
at an origin, with everything there that the plan keeps. A tensor of higher rank is cut: two of its
dimensions are drawn, the others stand at one index each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, TypeAlias

import numpy as np

from tgbench.base.errors import PlanError
from tgbench.base.known import Bools
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.words import cut as shortened
from tgbench.graph.graph import Graph, Node, fact_of
from tgbench.plans.planner import Planner
from tgbench.plans.scenarios import Scenario
from tgbench.runs.buckets import BucketClass
from tgbench.runs.propagate import Step
from tgbench.session.session import GraphSession
from tgbench.views.draw.svg import THEME
from tgbench.views.values.runs import Place, classes_of

Kind: TypeAlias = Literal["valid", "needed", "reused", "dirty", "stale", "computed"]
KINDS: tuple[Kind, ...] = ("valid", "needed", "reused", "dirty", "stale", "computed")
NOT_THERE = "not there"  # what is left blank
MEANINGS: Mapping[str, str] = {
    "valid": "holds its value in memory after the run",
    "needed": "some result of the run depends on it",
    "reused": "needed, and still there from earlier runs",
    "dirty": "can differ from the run before",
    "stale": "dirty, and not computed, because nobody needed it",
    "computed": "computed in this run",
    NOT_THERE: "neither in memory nor changed: never computed, or let go since",
}
MOST_KNOWN = 1 << 22  # elements of a pattern of known ones that are handed to a script


@dataclass(frozen=True)
class NodeRegions:
    """What a run did with one node.

    Fields:
        regions: by kind; what is empty is left out.
        open: elements that no constant gives, as an array that broadcasts to the shape; or None.
    """

    node: Node
    regions: Mapping[Kind, Region]
    open: Bools | None = None

    @property
    def known_share(self) -> float:
        """Share of the elements that follow from constants."""
        return 0.0 if self.open is None else 1.0 - float(self.open.mean())

    def words(self) -> list[tuple[str, str, str]]:
        """(kind, elements, boxes) for people."""
        rows: list[tuple[str, str, str]] = []
        for kind in KINDS:
            region = self.regions.get(kind, EMPTY)
            if region.boxes:
                rows.append((kind, f"{region.elements:,}", str(region)))
        if self.open is not None:
            rows.append(("known", f"{self.known_share:.1%}", "from constants alone"))
        return rows


@dataclass(frozen=True)
class Inspection:
    """What a run did with every node.

    Fields:
        title: which run.
        regions: node name → kind → elements.
    """

    title: str
    graph: Graph
    regions: Mapping[str, Mapping[Kind, Region]] = field(default_factory=dict)

    def node(self, name: str) -> NodeRegions:
        """One node's part; raises GraphError for an unknown name."""
        node, fact = self.graph.node(name), None
        if all(isinstance(size, int) for size in node.shape):
            fact = fact_of(node)
        small = fact is not None and fact.open.array.size <= MOST_KNOWN
        known = fact.open.array if fact is not None and small else None
        return NodeRegions(node, self.regions.get(name, {}), known)

    @property
    def touched(self) -> tuple[str, ...]:
        """Names of the nodes that the run computed, read or made stale, in graph order."""
        return tuple(node.name for node in self.graph.nodes if self.regions.get(node.name))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        names = [name for name in self.touched if "computed" in self.regions[name]]
        first = names[0] if names else next(iter(self.touched), None)
        svg = to_svg(self.node(first), self.title) if first else ""
        return {"image/svg+xml": svg, "text/plain": str(self)} if svg else {"text/plain": str(self)}

    def __str__(self) -> str:
        counts = (
            f"{sum(kind in found for found in self.regions.values())} {kind}" for kind in KINDS
        )
        return f"{self.title}: nodes {', '.join(counts)}"


def inspect_last(session: GraphSession) -> Inspection:
    """What the session's last run did; raises PlanError before the first."""
    last = session.last
    if last is None:
        raise PlanError("nothing ran yet; call `run` first, or inspect a planned class")
    graph = last.propagator.graph
    # `at`: where what served it lies
    found = _joined(last.program.steps, last.at, last.dirty, _leaves(graph))
    return Inspection(f"last run, {last.bucket}", graph, found)


def inspect_class(
    session: GraphSession, kind: BucketClass, origin: Sequence[int] | None = None
) -> Inspection:
    """What a run of a class does when all is there that the plan keeps.

    `origin` is where the class was seen last, unless it is given, and halfway if it was not seen.
    Raises PlanError for a class that was neither planned nor seen, if no origin is given.
    """
    seen = session.trace.origins(session.graph)
    if origin is None and str(kind) not in classes_of(session.plan, seen):
        raise PlanError(f"{kind} was neither planned nor seen; pass origin= to inspect it anyway")
    if origin is None:
        place = Place.of(kind, seen)
    else:
        place = Place(tuple(origin))
    placement = session.placement
    planner = Planner(session.scheduled, session.rules, session.device, session.costs.time_ns)
    propagator = planner.runs.propagator(placement.lasting)
    cut = session.memory.decisions.cut
    steps = planner.runs.steps(propagator, Scenario(kind, place.origin, 1.0), cut)
    title = f"{kind} {place}".rstrip()
    dirty = {node.name: region.at(place.origin) for node, region in steps[0].dirty.items()}
    graph = session.scheduled.graph
    return Inspection(title, graph, _joined(steps, place.origin, dirty, _leaves(graph)))


def _leaves(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes if node.is_leaf}


def _joined(
    steps: Iterable[Step],
    origin: Sequence[int],
    dirty: Mapping[str, Region],
    leaves: Collection[str],
) -> dict[str, dict[Kind, Region]]:
    """All pieces of a run together; valid is what the last one leaves.

    What a piece reads of an earlier one is computed in this run, and not reused.
    """
    found: dict[str, dict[Kind, Region]] = {name: {"dirty": part} for name, part in dirty.items()}

    def put(node: Node, kind: Kind, region: Region, *, adds: bool = True) -> None:
        kinds = found.setdefault(node.name, {})
        here = region.at(origin)
        kinds[kind] = kinds.get(kind, EMPTY).union(here) if adds else here

    for step in steps:
        for node, region in step.reused.items():
            of_earlier = found.get(node.name, {}).get("computed", EMPTY)
            put(node, "reused", region.at(origin).subtract(of_earlier))
        sides: Sequence[tuple[Kind, Mapping[Node, Region]]]
        sides = ("needed", step.needed), ("computed", step.compute)
        for kind, regions in sides:
            for node, region in regions.items():
                put(node, kind, region)
        for kinds in found.values():
            kinds.pop("valid", None)
        for node, region in step.valid.items():
            put(node, "valid", region, adds=False)
    for name in found.keys() - leaves:  # what comes from outside is right as it came
        kinds = found[name]
        stale = kinds.get("dirty", EMPTY).subtract(kinds.get("computed", EMPTY))
        if stale.boxes:
            kinds["stale"] = stale
    return {name: {k: r for k, r in kinds.items() if r.boxes} for name, kinds in found.items()}


# --- a tensor as a plane --------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """A plane of a tensor: which dimensions go down and across, and where the others stand."""

    rows: int
    columns: int
    at: tuple[int, ...]


def best_cut(shape: Sequence[int], regions: Mapping[Kind, Region]) -> Plane:
    """The plane that shows most: dimensions that are cut by some box, then the longest ones.

    A tensor of rank 1 is one row, of rank 0 one cell: a dimension that is not there is −1.
    """
    boxes = [box for region in regions.values() for box in region.boxes]

    def interest(axis: int) -> tuple[bool, int]:
        is_cut = any(tuple(box[axis]) != (0, shape[axis]) for box in boxes)
        return is_cut and shape[axis] > 1, shape[axis]

    shown = sorted(sorted(range(len(shape)), key=interest, reverse=True)[:2])
    first = regions.get("computed") or regions.get("stale") or next(iter(regions.values()), EMPTY)
    at = tuple(int(start) for start, _ in first.boxes[0]) if first.boxes else (0,) * len(shape)
    rows, columns = ([-1, -1, *shown])[-2:] if len(shown) < 2 else shown
    return Plane(rows, columns, at)


def crossing(box: Box, cut: Plane) -> tuple[int, int, int, int] | None:
    """(row start, row stop, column start, column stop) of a box in a plane; None if it is not."""
    for axis, (start, stop) in enumerate(box):
        if axis not in (cut.rows, cut.columns) and not start <= cut.at[axis] < stop:
            return None
    rows = box[cut.rows] if cut.rows >= 0 else (0, 1)
    columns = box[cut.columns] if cut.columns >= 0 else (0, 1)
    return (*rows, *columns)  # type: ignore[return-value]


def columns_of(shown: NodeRegions) -> dict[str, Any]:
    """Plain columns for a script: boxes by kind, and the open elements."""
    rank, rows, kinds = shown.node.rank, [], []
    for number, kind in enumerate(KINDS):
        for box in shown.regions.get(kind, EMPTY).boxes:
            kinds.append(number)
            rows += [edge for interval in box for edge in interval]
    is_open = shown.open if shown.open is not None else np.ones([1] * rank, bool)
    return {
        "kind": np.array(kinds, np.uint8),
        "box": np.array(rows, np.int32),
        "open": is_open.astype(np.uint8).ravel(),
        "open_shape": np.array(is_open.shape, np.int32),
        "shape": np.array(shown.node.shape, np.int32),
    }


# --- the static picture ---------------------------------------------------------------------------

STYLE = (
    THEME + ".tg-r-valid{fill:var(--tg-retained);fill-opacity:.28}"
    ".tg-r-reused{fill:var(--tg-retained);fill-opacity:.55}"
    ".tg-r-needed{fill:none;stroke:var(--tg-input);stroke-width:2}"
    ".tg-r-dirty{fill:none;stroke:var(--tg-slice);stroke-width:2;stroke-dasharray:5 3}"
    ".tg-r-stale{fill:var(--tg-scratch);fill-opacity:.5}"
    ".tg-r-computed{fill:var(--tg-b)}.tg-r-known{fill:var(--tg-soft);fill-opacity:.35}"
    ".tg-r-whole{fill:none;stroke:var(--tg-soft)}"
)
FILLED: tuple[Kind, ...] = ("valid", "reused", "stale", "computed")
ORDER: tuple[Kind, ...] = (*FILLED, "dirty", "needed")
WIDE, HIGH, LEFT, TOP = 520, 300, 56, 64
MOST_KNOWN_RUNS = 2000
HEAD_LETTERS, LETTERS = 62, 78  # of the first line and of those below it; the whole is its title


def to_svg(shown: NodeRegions, title: str = "", cut: Plane | None = None) -> str:
    """One plane of one node as SVG."""
    node = shown.node
    plane = cut if cut is not None else best_cut(node.shape, shown.regions)
    count = (
        node.shape[plane.rows] if plane.rows >= 0 else 1,
        node.shape[plane.columns] if plane.columns >= 0 else 1,
    )
    down, across = min(HIGH / count[0], 40.0), min(WIDE / count[1], 40.0)

    def rectangle(kind: str, span: tuple[int, int, int, int], words: str) -> str:
        top, bottom, left, right = span
        return (
            f'<rect class="tg-r-{kind}" x="{LEFT + left * across:.1f}" y="{TOP + top * down:.1f}" '
            f'width="{max((right - left) * across, 1):.1f}" '
            f'height="{max((bottom - top) * down, 1):.1f}"><title>{escape(words)}</title></rect>'
        )

    parts = [rectangle("whole", (0, count[0], 0, count[1]), str(node.type))]
    parts += [rectangle("known", span, "known") for span in _known_spans(shown, plane, count)]
    apart = _apart(shown.regions)
    for kind in sorted(apart, key="computed".__eq__):  # last: one row of many is seen
        for box in apart[kind].boxes:
            span = crossing(box, plane)
            if span is not None:
                parts.append(rectangle(kind, span, f"{kind} {box}"))
    bottom, right = TOP + count[0] * down, LEFT + count[1] * across
    filled = sum(region.elements for kind, region in apart.items() if kind in FILLED)
    is_blank = filled < math.prod(node.shape) * (1 - shown.known_share)
    legend, height = _legend(apart, shown.known_share, bottom + 36, is_blank=is_blank)
    heads = [
        f'<text class="tg-strong" x="{LEFT}" y="16" font-size="13">'
        f"{_line(node.name, f': {node.type}', HEAD_LETTERS)}</text>",
        f'<text class="tg-text" x="{LEFT}" y="32">{_line(title, "", LETTERS)}</text>',
        f'<text class="tg-text" x="{LEFT}" y="48">{escape(plane_words(node.shape, plane))}</text>',
        f'<text class="tg-text" x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">0</text>',
        f'<text class="tg-text" x="{LEFT - 6}" y="{bottom:.0f}" text-anchor="end">'
        f"{count[0]}</text>",
        f'<text class="tg-text" x="{LEFT}" y="{bottom + 14:.0f}">0</text>',
        f'<text class="tg-text" x="{max(right, LEFT + 40):.0f}" y="{bottom + 14:.0f}" '
        f'text-anchor="end">{count[1]}</text>',
        *legend,
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE + LEFT + 20} {height:.0f}" '
        f'width="{WIDE + LEFT + 20}" role="img" font-family="system-ui, sans-serif" '
        f'font-size="11"><title>{escape(f"{node.name}, {title}")}</title><style>{STYLE}</style>'
        f"{''.join([*parts, *heads])}</svg>"
    )


def _line(text: str, ending: str, most: int) -> str:
    """As much of a text as has room before its ending; all of it as a title where it is cut."""
    told = shortened(text, max(most - len(ending), 12))
    title = "" if told == text else f"<title>{escape(text)}</title>"
    return f"{title}{escape(told + ending)}"


def plane_words(shape: Sequence[int], cut: Plane) -> str:
    """`[0, rows ↓, columns →]`, with the index at which other dimensions stand."""
    marks = {cut.rows: "↓", cut.columns: "→"}
    parts = (
        f"{marks[axis]}{size}" if axis in marks else str(cut.at[axis])
        for axis, size in enumerate(shape)
    )
    return f"plane [{', '.join(parts)}]"


def _known_spans(
    shown: NodeRegions, plane: Plane, count: tuple[int, int]
) -> list[tuple[int, int, int, int]]:
    """Runs of known elements, row by row; none where they are too many to draw."""
    if shown.open is None or not shown.open.ndim:
        return []
    index = tuple(
        slice(None) if axis in (plane.rows, plane.columns) else min(plane.at[axis], size - 1)
        for axis, size in enumerate(shown.open.shape)
    )
    flags = np.atleast_2d(~shown.open[index])
    if plane.rows > plane.columns >= 0:
        flags = flags.T
    flags = np.broadcast_to(flags, count)
    padded = np.pad(flags, ((0, 0), (1, 1))).astype(np.int8)
    row, start = np.nonzero(np.diff(padded, axis=1) > 0)
    stop = np.nonzero(np.diff(padded, axis=1) < 0)[1]
    if len(row) > MOST_KNOWN_RUNS:
        return []
    return [
        (r, r + 1, a, b)
        for r, a, b in zip(row.tolist(), start.tolist(), stop.tolist(), strict=True)
    ]


def _apart(regions: Mapping[Kind, Region]) -> dict[Kind, Region]:
    """What is drawn of each kind, in order: a colour under another would be a third one.

    What is reused or computed is valid, too: valid is what is left of it then.
    """
    found = {kind: regions[kind] for kind in ORDER if kind in regions}
    if "valid" in found:
        for kind in ("reused", "computed"):
            found["valid"] = found["valid"].subtract(regions.get(kind, EMPTY))
    return {kind: region for kind, region in found.items() if region.boxes}


def _legend(
    apart: Mapping[Kind, Region], known_share: float, y: float, *, is_blank: bool
) -> tuple[list[str], float]:
    """What is drawn, with how many elements it is, in lines that are as wide as the picture; and
    where they end.
    """
    told = [(kind, f"{kind} {r.elements:,}", MEANINGS[kind]) for kind, r in apart.items()]
    known = [("known", f"known {known_share:.1%}", "follows from constants alone")]
    parts, x = [], float(LEFT)
    blank = [("whole", NOT_THERE, MEANINGS[NOT_THERE])]
    rest = [*(known if known_share else []), *(blank if is_blank else [])]
    for kind, words, meaning in [*told, *rest]:
        wide = 34 + 6.2 * len(words)
        if x > LEFT and x + wide > LEFT + WIDE:
            x, y = LEFT, y + 18
        parts.append(
            f'<g><title>{escape(meaning)}</title><rect class="tg-r-{kind}" x="{x:.0f}" '
            f'y="{y - 9:.0f}" width="11" height="11"/><text class="tg-text" x="{x + 16:.0f}" '
            f'y="{y:.0f}">{words}</text></g>'
        )
        x += wide
    return parts, y + 10
