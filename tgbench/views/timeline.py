"""The memory timeline: schedule steps to the right, arena offsets upwards, a rectangle per slot.

    offset │ ┌─q─┐  ┌─scores─┐ ┌─up─┐
           │ └───┘▒ └────────┘ └────┘     ▒ scratch of one kernel, live for one step
           │ ╌╌╌╌┌─h─┐╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌     partial: kept after the runs of some classes
           │═══════════════ K V ═════     retained: its bytes survive from run to run
           │─────────────── ids ─────     input: its last value is kept
           └────────────────────────→ step

`timeline` builds the payload from a memory map; `to_svg` is its static form, which needs no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any, Literal, TypeAlias

import numpy as np

from tgbench.anatomy import Anatomy, LiveRange
from tgbench.graph import Graph, Node
from tgbench.packing import format_bytes
from tgbench.placement import Placement
from tgbench.plan import Plan
from tgbench.views.svg import THEME, ticks

Kind: TypeAlias = Literal["input", "retained", "partial", "slice", "scratch"]
KINDS: tuple[Kind, ...] = ("input", "retained", "partial", "slice", "scratch")
MEANINGS: Mapping[Kind, str] = {
    "input": "inputs and states: their last value is kept",
    "retained": "retained values: they survive from run to run",
    "partial": "partly retained values: they survive some runs, on bytes that others use meanwhile",
    "slice": "slices: they share bytes with others that are never live at the same step",
    "scratch": "scratch: temporary memory of one kernel",
}
MOST_DRAWN = 3000  # rectangles in the static picture; the smallest are left out


@dataclass(frozen=True, slots=True)
class Rectangle:
    """The bytes of one node, or of its kernel's scratch, over the steps where they are taken.

    Fields:
        start, stop: schedule steps, half-open; what is kept, or partly so, takes all of them.
        retained: nobody else ever uses these bytes.
        group: the first owner of bytes that in-place results took over, else the node itself.
        detail: dtype and extents that fit, for people.
    """

    name: str
    kind: Kind
    offset_bytes: int
    size_bytes: int
    start: int
    stop: int
    retained: bool
    group: str
    detail: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} (scratch)" if self.kind == "scratch" else self.name

    @property
    def when(self) -> str:
        """The steps, in words."""
        if self.kind == "partial":
            return "always, while it is there"
        return "always" if self.retained else f"steps {self.start} to {self.stop - 1}"


@dataclass(frozen=True)
class Timeline:
    """A memory map over its schedule.

    Fields:
        rectangles: one per slot, and one per scratch buffer.
        steps: the schedule's length, and one more for what outlives it (outputs).
        size_bytes: the arena.
        bound_bytes: no packing of these buffers can be smaller.
        budget_bytes: what was allowed, or None.
        computed: for named runs, the nodes that they computed.
    """

    rectangles: tuple[Rectangle, ...]
    steps: int
    size_bytes: int
    bound_bytes: int
    budget_bytes: int | None = None
    computed: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes in use at each step by some run; those that several nodes take count once."""
        ends = {(r.offset_bytes, r.offset_bytes + r.size_bytes) for r in self.rectangles}
        edges = np.array(sorted({0, *(edge for pair in ends for edge in pair)}), np.int64)
        row = {int(edge): i for i, edge in enumerate(edges)}
        takers = np.zeros((len(edges), self.steps + 1), np.int32)  # differences in both directions
        for r in self.rectangles:
            low, high = row[r.offset_bytes], row[r.offset_bytes + r.size_bytes]
            takers[[low, high], r.start] += 1, -1
            takers[[low, high], r.stop] += -1, 1
        taken = takers.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] > 0
        return tuple((np.diff(edges) @ taken).tolist())

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes, default=0)

    @property
    def peak_step(self) -> int:
        return int(np.argmax(self.live_bytes)) if self.live_bytes else 0

    def bytes_of(self, kind: Kind) -> int:
        """All bytes of one kind, each byte once."""
        spans = sorted(
            (r.offset_bytes, r.offset_bytes + r.size_bytes)
            for r in self.rectangles
            if r.kind == kind
        )
        total = reached = 0
        for low, high in spans:
            total += max(high - max(low, reached), 0)
            reached = max(reached, high)
        return total

    def payload(self) -> dict[str, Any]:
        """Plain data for a script that draws: a column per field."""
        rows = self.rectangles
        return {
            "kinds": list(KINDS),
            "name": [r.label for r in rows],
            "kind": [KINDS.index(r.kind) for r in rows],
            "offset": [r.offset_bytes for r in rows],
            "size": [r.size_bytes for r in rows],
            "start": [r.start for r in rows],
            "stop": [r.stop for r in rows],
            "group": [r.group for r in rows],
            "detail": [r.detail for r in rows],
            "live": list(self.live_bytes),
            "steps": self.steps,
            "size_bytes": self.size_bytes,
            "bound_bytes": self.bound_bytes,
            "budget_bytes": self.budget_bytes,
            "computed": {
                run: [i for i, r in enumerate(rows) if r.name in names]
                for run, names in self.computed.items()
            },
        }

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {format_bytes(self.bytes_of(kind))}" for kind in KINDS)
        return (
            f"{len(self.rectangles)} rectangles over {self.steps} steps in "
            f"{format_bytes(self.size_bytes)} ({kinds}); most in use at step {self.peak_step}: "
            f"{format_bytes(self.peak_bytes)}"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self), "text/plain": str(self)}


# --- building -----------------------------------------------------------------------------------


def timeline(
    anatomy: Anatomy,
    placement: Placement,
    budget_bytes: int | None = None,
    computed: Mapping[str, Iterable[str]] | None = None,
    after: Mapping[Node, Iterable[str]] | None = None,
) -> Timeline:
    """The payload of a memory map: one rectangle per slot and per scratch buffer.

    Args:
        anatomy: of the graph that the map is for, with its schedule; it knows the live ranges.
        placement: the map.
        budget_bytes: drawn as a line.
        computed: run label → names of the nodes that it computed.
        after: the classes after whose runs a node is there, where it shares its bytes.
    """
    steps = len(anatomy.schedule) + 1
    order = {node: (slot.offset_bytes, node.index) for node, slot in placement.slots.items()}
    found = []
    for node in sorted(order, key=lambda n: (_kind(n, placement) != "partial", *order[n])):
        rectangle = _rectangle(node, anatomy, placement, steps)
        kept = "; ".join((after or {}).get(node, ()))
        detail = f"{rectangle.detail}, there after {kept}" if kept else rectangle.detail
        found.append(replace(rectangle, detail=detail))
    for node, scratch in placement.scratch.items():
        step = anatomy.position[node]
        found.append(
            Rectangle(
                node.name, "scratch", scratch.offset_bytes, scratch.size_bytes,
                step, step + 1, False, node.name, f"for {node.op}",
            )
        )  # fmt: skip
    named = {run: frozenset(names) for run, names in (computed or {}).items()}
    return Timeline(
        tuple(found), steps, placement.size_bytes, placement.bound_bytes, budget_bytes, named
    )


def timeline_of_plan(
    plan: Plan, graph: Graph, computed: Mapping[str, Iterable[str]] | None = None
) -> Timeline:
    """The payload of a saved plan; raises PlanError if it is for another graph.

    `graph` is the one that runs: `session.graph`.
    """
    made = plan.placement_for(graph, plan.device)
    kinds = list(made.classes)
    after = {
        node: [made.retention.turns[t].named(kinds) for t in sorted(turns)]
        for node, turns in made.retention.after.items()
        if made.retention.is_partial(node)
    }
    return timeline(made.anatomy, made.placement, plan.budget_bytes, computed, after)


def _kind(node: Node, placement: Placement) -> Kind:
    if node.is_leaf:
        return "input"
    if node not in placement.retained:
        return "slice"
    shared = placement.slots[node].offset_bytes >= placement.kept_bytes
    return "partial" if shared else "retained"


def _rectangle(node: Node, anatomy: Anatomy, placement: Placement, steps: int) -> Rectangle:
    slot, kind = placement.slots[node], _kind(node, placement)
    live = anatomy.live[node] if kind == "slice" else LiveRange(0, steps)
    shown = f"{node.dtype}[{', '.join(map(str, slot.extents))}]"
    if slot.extents != node.shape:
        shown += f" of [{', '.join(map(str, node.shape))}]"
    return Rectangle(
        node.name, kind, slot.offset_bytes, placement.size_of(node), live.start, live.stop,
        kind in ("input", "retained"), placement.group(node).name, f"{node.op}, {shown}",
    )  # fmt: skip


# --- the static picture -------------------------------------------------------------------------

LEFT, RIGHT, TOP, BOTTOM = 74, 12, 30, 34


def to_svg(shown: Timeline, width: int = 960, height: int = 420) -> str:
    """The timeline as one SVG, light or dark as the system is; hovering names a rectangle."""
    top_bytes = max(shown.size_bytes, 1)
    across = (width - LEFT - RIGHT) / max(shown.steps, 1)
    up = (height - TOP - BOTTOM) / top_bytes
    drawn = sorted(shown.rectangles, key=lambda r: -r.size_bytes * (r.stop - r.start))[:MOST_DRAWN]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'class="tg-timeline" font-family="system-ui, sans-serif" font-size="11">',
        f"<title>{escape(str(shown))}</title>",
        f"<style>{THEME}</style>",
        *_legend(width),
    ]
    for size in ticks(top_bytes, 5):
        y = height - BOTTOM - size * up
        parts.append(
            f'<line class="tg-grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tg-text" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{format_bytes(size)}</text>"
        )
    for r in drawn:
        x, y = LEFT + r.start * across, height - BOTTOM - (r.offset_bytes + r.size_bytes) * up
        words = escape(describe(r))
        parts.append(
            f'<rect class="tg-{r.kind}" x="{x:.2f}" y="{y:.2f}" '
            f'width="{max((r.stop - r.start) * across, 0.3):.2f}" '
            f'height="{max(r.size_bytes * up, 0.3):.2f}"><title>{words}</title></rect>'
        )
    parts.append(_live_line(shown, across, up, height))
    parts.append(
        f'<text class="tg-text" x="{LEFT}" y="{height - 10}">step 0</text>'
        f'<text class="tg-text" x="{width - RIGHT}" y="{height - 10}" text-anchor="end">'
        f"step {shown.steps}</text>"
    )
    if len(drawn) < len(shown.rectangles):
        left_out = len(shown.rectangles) - len(drawn)
        parts.append(
            f'<text class="tg-text" x="{width / 2}" y="{height - 10}" text-anchor="middle">'
            f"the {left_out} smallest rectangles are not drawn</text>"
        )
    return "".join([*parts, "</svg>"])


def describe(r: Rectangle) -> str:
    """One rectangle in words."""
    where = f"{format_bytes(r.size_bytes)} at offset {r.offset_bytes}"
    shared = f", bytes taken over from {r.group}" if r.group != r.name else ""
    return f"{r.label}: {r.kind}, {where}, {r.when}{shared} ({r.detail})"


def _legend(width: int) -> list[str]:
    parts, x = [], LEFT
    for kind in KINDS:
        parts.append(
            f'<rect class="tg-{kind}" x="{x}" y="8" width="12" height="12"/>'
            f'<text class="tg-text" x="{x + 17}" y="18">{kind}</text>'
        )
        x += 92
    parts.append(
        f'<line class="tg-live" x1="{x}" x2="{x + 18}" y1="14" y2="14"/>'
        f'<text class="tg-text" x="{x + 23}" y="18">bytes in use</text>'
    )
    return parts


def _live_line(shown: Timeline, across: float, up: float, height: int) -> str:
    points = []
    for step, size in enumerate(shown.live_bytes):
        y = height - BOTTOM - size * up
        points.append(
            f"{LEFT + step * across:.1f},{y:.1f} {LEFT + (step + 1) * across:.1f},{y:.1f}"
        )
    return f'<polyline class="tg-live" points="{" ".join(points)}"/>'
