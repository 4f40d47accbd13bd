"""The memory timeline: schedule steps to the right, arena offsets upwards, a rectangle per slot.

    offset │ ┌─q─┐  ┌─scores─┐ ┌─up─┐
           │ └───┘▒ └────────┘ └────┘     ▒ scratch of one kernel, live for one step
           │ ╌╌╌╌┌─h─┐╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌     partial: kept after the runs of some classes
           │═══════════════ K V ═════     retained: its bytes survive from run to run
           │─────────────── ids ─────     input: its last value is kept
           └────────────────────────→ step

`timeline` builds the payload from a memory map; `to_svg` is its static form, which needs no script.
`timeline_from_plan` needs no graph: a plan does not say when a slice is last read, so there a slice
ends where its bytes are used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from tgbench.base.words import counted, format_bytes
from tgbench.graph.graph import Graph, Node
from tgbench.memory.placement import Placement, aligned, is_elsewhere
from tgbench.memory.storage import LiveRange, ScheduledGraph
from tgbench.plans.decisions import PlanSlot
from tgbench.plans.explain import after
from tgbench.plans.plan import Plan
from tgbench.views.draw.svg import THEME, ticks

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
        reads: steps that read it.
        live: the steps between which its bytes may not be another's in any run; None: all of its.
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
    reads: tuple[int, ...] = ()
    live: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        return f"{self.name} (scratch)" if self.kind == "scratch" else self.name

    @property
    def when(self) -> str:
        """The steps, in words."""
        if self.kind == "partial":
            return "always, while it is there"
        if self.retained:
            return "always"
        last = self.stop - 1
        return f"step {last}" if last == self.start else f"steps {self.start} to {last}"


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
        schedule: names of the steps, if they are known.
        device: where the bytes are.
        is_bound: slices end where their bytes are used again; when they are last read is not known.
    """

    rectangles: tuple[Rectangle, ...]
    steps: int
    size_bytes: int
    bound_bytes: int
    budget_bytes: int | None = None
    computed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    schedule: tuple[str, ...] = ()
    device: str = "cpu"
    is_bound: bool = False

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes in use at each step by some run; those that several nodes take count once."""
        rows = sorted(self.rectangles, key=lambda r: r.offset_bytes)
        spans = [(r.start, r.stop, r.offset_bytes, r.offset_bytes + r.size_bytes) for r in rows]
        start, stop, low, high = np.array(spans, np.int64).reshape(-1, 4).T
        always = (start <= 0) & (stop >= self.steps)
        below = _covered(low[always], high[always])
        some = ~always & (stop > start)
        taken = _union(start[some], stop[some], below(low[some]), below(high[some]), self.steps)
        whole = int(high.max(initial=0))
        found: list[int] = (taken + whole - int(below(np.array([whole]))[0])).tolist()
        return tuple(found)

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

    def columns(self) -> dict[str, Any]:
        """The same for a script that draws very many rectangles.

        `group` is a row; `read` lists the rows' reading steps, from `read_first[row]` on. `from`
        and `until` are `Rectangle.live`.
        """
        rows = self.rectangles
        first = {r.name: i for i, r in reversed(list(enumerate(rows))) if r.kind != "scratch"}
        live = np.array([r.live or (r.start, r.stop) for r in rows], np.int32).reshape(-1, 2)
        ends = np.cumsum([0, *(len(r.reads) for r in rows)])
        return {
            "name": [r.label for r in rows],
            "detail": [r.detail for r in rows],
            "kind": np.array([KINDS.index(r.kind) for r in rows], np.uint8),
            "offset": np.array([r.offset_bytes for r in rows], np.float64),
            "size": np.array([r.size_bytes for r in rows], np.float64),
            "start": np.array([r.start for r in rows], np.int32),
            "stop": np.array([r.stop for r in rows], np.int32),
            "from": live[:, 0],
            "until": live[:, 1],
            "group": np.array([first.get(r.group, i) for i, r in enumerate(rows)], np.int32),
            "read_first": ends.astype(np.int32),
            "read": np.array([step for r in rows for step in r.reads], np.int32),
            "live": np.array(self.live_bytes, np.float64),
            "schedule": list(self.schedule),
        }

    def facts(self) -> dict[str, Any]:
        """The small values beside `columns`."""
        return {
            "kinds": list(KINDS),
            "meanings": [MEANINGS[kind] for kind in KINDS],
            "steps": self.steps,
            "size_bytes": self.size_bytes,
            "bound_bytes": self.bound_bytes,
            "budget_bytes": self.budget_bytes,
            "device": self.device,
            "is_bound": self.is_bound,
        }

    def __str__(self) -> str:
        return self._said

    @cached_property
    def _said(self) -> str:
        sizes = ((kind, self.bytes_of(kind)) for kind in KINDS)
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in sizes if size)
        return (
            f"{counted(len(self.rectangles), 'rectangle')} over {counted(self.steps, 'step')} in "
            f"{format_bytes(self.size_bytes)}{f' ({kinds})' if kinds else ''}; most in use at step "
            f"{self.peak_step}: {format_bytes(self.peak_bytes)}"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self), "text/plain": str(self)}


# --- building -----------------------------------------------------------------------------------


def timeline(
    scheduled: ScheduledGraph,
    placement: Placement,
    budget_bytes: int | None = None,
    computed: Mapping[str, Iterable[str]] | None = None,
    after: Mapping[Node, Iterable[str]] | None = None,
    device: str = "cpu",
) -> Timeline:
    """The payload of a memory map: one rectangle per slot and per scratch buffer.

    Args:
        scheduled: of the graph that the map is for, with its schedule; it knows the live ranges.
        placement: the map.
        budget_bytes: drawn as a line.
        computed: run label → names of the nodes that it computed.
        after: the classes after whose runs a node is there, where it shares its bytes.
        device: where the bytes are.
    """
    steps = len(scheduled.schedule) + 1
    reads = reading_steps(scheduled)
    order = {
        node: (slot.offset_bytes, node.index)
        for node, slot in placement.slots.items()
        if not is_elsewhere(slot.offset_bytes)
    }
    found = []
    for node in sorted(order, key=lambda n: (_kind(n, placement) != "partial", *order[n])):
        rectangle = _rectangle(node, scheduled, placement, steps, reads.get(node, ()))
        kept = "; ".join((after or {}).get(node, ()))
        detail = f"{rectangle.detail}, there after {kept}" if kept else rectangle.detail
        found.append(replace(rectangle, detail=detail))
    for node, scratch in placement.scratch.items():
        if is_elsewhere(scratch.offset_bytes):
            continue
        step = scheduled.position[node]
        found.append(
            Rectangle(
                node.name, "scratch", scratch.offset_bytes, scratch.size_bytes,
                step, step + 1, False, node.name, f"for {node.op}",
            )
        )  # fmt: skip
    named = {run: frozenset(names) for run, names in (computed or {}).items()}
    return Timeline(
        tuple(found), steps, placement.size_bytes, placement.bound_bytes, budget_bytes, named,
        tuple(node.name for node in scheduled.schedule), device,
    )  # fmt: skip


def reading_steps(scheduled: ScheduledGraph) -> dict[Node, tuple[int, ...]]:
    """For every node with bytes, the steps that read them, through views too."""
    found: dict[Node, dict[int, None]] = {}
    for step, node in enumerate(scheduled.schedule):
        if scheduled.base[node] is node:
            for parent in node.inputs:
                found.setdefault(scheduled.base[parent], {})[step] = None
    return {node: tuple(steps) for node, steps in found.items()}


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
    return timeline(made.scheduled, made.placement, plan.budget_bytes, computed, after, plan.device)


def timeline_from_plan(plan: Plan) -> Timeline:
    """The payload of a saved plan alone: no graph, no model and no weights.

    Where the bytes of a slice are never used again, it is drawn to the end.
    """
    steps = len(plan.schedule) + 1
    position = {name: step for step, name in enumerate(plan.schedule)}
    taker = {slot.donor: slot.node for slot in plan.slots if slot.donor}
    donor = {slot.node: slot.donor for slot in plan.slots if slot.donor}
    next_use = _next_use(plan, position)
    found = []
    for slot in plan.slots:
        if is_elsewhere(slot.offset_bytes):
            continue
        kind = _kind_in_plan(slot, position)
        start, stop = 0, steps
        if kind == "slice":
            start = position[slot.node]
            stop = position[taker[slot.node]] + 1 if slot.node in taker else next_use[slot.node]
        kept = "; ".join(after(plan, slot)) if kind == "partial" else ""
        detail = f"[{', '.join(map(str, slot.extents))}]" + (
            f", there after {kept}" if kept else ""
        )
        group = slot.node
        while group in donor:
            group = donor[group]
        found.append(
            Rectangle(
                slot.node, kind, slot.offset_bytes, slot.size_bytes, start, stop,
                kind in ("input", "retained"), group, detail, live=_live_in_plan(slot, position),
            )
        )  # fmt: skip
        if slot.scratch_bytes:
            step = position[slot.node]
            found.append(
                Rectangle(
                    slot.node, "scratch", slot.scratch_offset_bytes, slot.scratch_bytes,
                    step, step + 1, False, slot.node,
                )
            )  # fmt: skip
    rank = {"partial": 0, "scratch": 2}
    found.sort(key=lambda r: (rank.get(r.kind, 1), r.offset_bytes))
    return Timeline(
        tuple(found), steps, plan.size_bytes, plan.bound_bytes, plan.budget_bytes,
        schedule=plan.schedule, device=plan.device, is_bound=True,
    )  # fmt: skip


def _kind_in_plan(slot: PlanSlot, position: Mapping[str, int]) -> Kind:
    if slot.node not in position:
        return "input"
    if not slot.retained:
        return "slice"
    return "retained" if slot.through is None else "partial"


def _live_in_plan(slot: PlanSlot, position: Mapping[str, int]) -> tuple[int, int] | None:
    """A shared node's bytes are its own at the step that computes it, at least."""
    at = position.get(slot.node)
    return (at, at + 1) if at is not None and slot.through is not None else None


def _next_use(plan: Plan, position: Mapping[str, int]) -> dict[str, int]:
    """For every slot, the first later step at which others use some of its bytes."""
    uses = [
        (position[slot.node], offset, offset + aligned(size))
        for slot in plan.slots
        if slot.node in position
        for offset, size in (
            (slot.offset_bytes, slot.size_bytes),
            (slot.scratch_offset_bytes, slot.scratch_bytes),
        )
        if size
    ]
    step, low, high = np.array(uses, np.int64).reshape(-1, 3).T
    found = {}
    for slot in plan.slots:
        begins = position.get(slot.node, -1)
        meets = (low < slot.offset_bytes + aligned(slot.size_bytes)) & (slot.offset_bytes < high)
        found[slot.node] = int(step[meets & (step > begins)].min(initial=len(plan.schedule) + 1))
    return found


def _kind(node: Node, placement: Placement) -> Kind:
    if node.is_leaf:
        return "input"
    if node not in placement.lasting:
        return "slice"
    shared = placement.slots[node].offset_bytes >= placement.kept_bytes
    return "partial" if shared else "retained"


def _rectangle(
    node: Node, scheduled: ScheduledGraph, placement: Placement, steps: int, reads: Sequence[int]
) -> Rectangle:
    slot, kind = placement.slots[node], _kind(node, placement)
    live = scheduled.live[node] if kind == "slice" else LiveRange(0, steps)
    shown = f"{node.dtype}[{', '.join(map(str, slot.extents))}]"
    if slot.extents != node.shape:
        shown += f" of [{', '.join(map(str, node.shape))}]"
    return Rectangle(
        node.name, kind, slot.offset_bytes, placement.size_of(node), live.start, live.stop,
        kind in ("input", "retained"), placement.group(node).name, f"{node.op}, {shown}",
        tuple(reads), (scheduled.live[node].start, scheduled.live[node].stop)
        if kind == "partial" else None,
    )  # fmt: skip


Ints: TypeAlias = "NDArray[np.int64]"
MOST_PAIRS = 1 << 22  # of a rectangle and a step, held at once


def _covered(low: Ints, high: Ints) -> Callable[[Ints], Ints]:
    """How many bytes below an offset lie in none of these intervals; `low` ascends."""
    reached = np.maximum.accumulate(high) if len(high) else high
    before = np.concatenate([[0], reached[:-1]])
    gaps = np.concatenate([np.maximum(low - before, 0), [0]])  # free bytes right before each
    free = np.concatenate([[0], gaps.cumsum()[:-1]])
    edges = np.concatenate([[0], reached])

    def below(at: Ints) -> Ints:
        k = np.searchsorted(low, at, side="right")
        found: Ints = free[k] + np.maximum(at - edges[k], 0)
        return found

    return below


def _union(start: Ints, stop: Ints, low: Ints, high: Ints, steps: int) -> Ints:
    """Bytes under some rectangle at each step; `low` ascends.

    Every pair of a rectangle and a step is listed, by step and then by offset; each adds what
    reaches above those before it.
    """
    taken = np.zeros(steps, np.int64)
    length = stop - start
    if length.sum() > MOST_PAIRS and steps > 1:
        half = steps // 2
        early, late = start < half, stop > half
        mine = (start[early], np.minimum(stop[early], half), low[early], high[early])
        rest = (np.maximum(start[late] - half, 0), stop[late] - half, low[late], high[late])
        return np.concatenate([_union(*mine, half), _union(*rest, steps - half)])
    if not len(start):
        return taken
    first = np.repeat(start - (length.cumsum() - length), length)
    step, row = first + np.arange(len(first)), np.repeat(np.arange(len(start)), length)
    by_step = coo_array((row, (step, row)), shape=(steps, len(start))).tocsr()
    step, row = np.repeat(np.arange(steps), np.diff(by_step.indptr)), by_step.data
    apart = int(high.max()) + 1  # so that no step reaches into the next
    reached = np.maximum.accumulate(high[row] + step * apart)
    before = np.concatenate([[0], reached[:-1]]) - step * apart
    np.add.at(taken, step, np.maximum(high[row] - np.maximum(low[row], before), 0))
    return taken


# --- the static picture -------------------------------------------------------------------------

LEFT, RIGHT, TOP, BOTTOM = 74, 12, 30, 34


def to_svg(shown: Timeline, width: int = 960, height: int = 420, most: int = MOST_DRAWN) -> str:
    """The timeline as one SVG, light or dark as the system is; hovering names a rectangle.

    Args:
        most: rectangles that are drawn; the smallest are left out.
    """
    top_bytes = max(shown.size_bytes, 1)
    across = (width - LEFT - RIGHT) / max(shown.steps, 1)
    up = (height - TOP - BOTTOM) / top_bytes
    drawn = sorted(shown.rectangles, key=lambda r: -r.size_bytes * (r.stop - r.start))[:most]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'class="tg-timeline" font-family="system-ui, sans-serif" font-size="11">',
        f"<title>{escape(str(shown))}</title>",
        f"<style>{THEME}</style>",
        *_legend(shown),
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


def _legend(shown: Timeline) -> list[str]:
    parts, x, there = [], LEFT, {r.kind for r in shown.rectangles}
    for kind in (kind for kind in KINDS if kind in there):
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
