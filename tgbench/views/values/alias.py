"""Who shares bytes with whom: arena offsets to the right, the schedule downwards.

    step │ 0        offset →
      k  │ ████████                 bytes below each other are shared: computing q destroys what
      q  │ ░░░░░░                   is left of k
      h  │          ████

For one class of runs, each node has a fate (`views.runs`): made again, used as it was, stale, or
destroyed, and by whom. That is the ripple of one changed input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from tgbench.base.words import counted, format_bytes
from tgbench.memory.placement import aligned
from tgbench.plans.plan import Plan
from tgbench.views.draw.columns import pack
from tgbench.views.draw.svg import THEME, ticks
from tgbench.views.values.runs import FATES, ClassRun

MOST_DRAWN = 2000


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes of one node.

    Fields:
        row: its schedule step; −1 for inputs and states.
        retained: kept after the runs of some class.
    """

    name: str
    offset_bytes: int
    size_bytes: int
    row: int
    retained: bool

    @property
    def stop_bytes(self) -> int:
        return self.offset_bytes + aligned(self.size_bytes)

    def shares(self, other: Bytes) -> bool:
        """Whether some byte is of both."""
        return self.offset_bytes < other.stop_bytes and other.offset_bytes < self.stop_bytes


@dataclass(frozen=True)
class Sharing:
    """The slots of a map.

    Fields:
        slots: in schedule order, inputs first.
        steps: the schedule's length.
        size_bytes: the arena.
        run: what one class of runs does, or None.
    """

    slots: tuple[Bytes, ...]
    steps: int
    size_bytes: int
    run: ClassRun | None = field(default=None)

    @staticmethod
    def of(plan: Plan, run: ClassRun | None = None) -> Sharing:
        """From a plan alone: no graph, no model and no weights."""
        position = {name: step for step, name in enumerate(plan.schedule)}
        slots = [
            Bytes(s.node, s.offset_bytes, s.size_bytes, position.get(s.node, -1), s.retained)
            for s in plan.slots
        ]
        slots.sort(key=lambda slot: (slot.row, slot.offset_bytes))
        return Sharing(tuple(slots), len(plan.schedule), plan.size_bytes, run)

    @cached_property
    def by_name(self) -> dict[str, Bytes]:
        return {slot.name: slot for slot in self.slots}

    def partners(self, name: str) -> tuple[str, ...]:
        """Whoever shares bytes with a node, in schedule order."""
        mine = self.by_name[name]
        return tuple(s.name for s in self.slots if s is not mine and s.shares(mine))

    def columns(self) -> bytes:
        """For the script: one row per slot."""
        rows = self.slots
        return pack(
            {
                "name": [r.name for r in rows],
                "offset": np.array([r.offset_bytes for r in rows], np.float64),
                "size": np.array([r.size_bytes for r in rows], np.float64),
                "stop": np.array([r.stop_bytes for r in rows], np.float64),
                "row": np.array([r.row for r in rows], np.int32),
                "retained": np.array([r.retained for r in rows], np.uint8),
            }
        )

    def __str__(self) -> str:
        shared = sum(1 for slot in self.slots if _is_shared(slot, self.slots))
        said = (
            f"{counted(len(self.slots), 'node')} in {format_bytes(self.size_bytes)}, "
            f"{shared} of them on bytes that others use too"
        )
        return f"{said}; {ripple(self.run)}" if self.run is not None else said

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self), "text/plain": str(self)}


def _is_shared(slot: Bytes, slots: tuple[Bytes, ...]) -> bool:
    return any(other is not slot and other.shares(slot) for other in slots)


def ripple(run: ClassRun) -> str:
    """What a run does, in one line."""
    found = fates(run)
    counts = {what: len(found[what]) for what in FATES if what in found}
    where = f"{run.bucket} {run.place}".rstrip()
    return f"{where}: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def fates(run: ClassRun) -> dict[str, Any]:
    """A run for the script: names by fate, and who destroys whom."""
    return {
        "changed": sorted(run.changed),
        "recomputed": sorted(run.recomputed - run.reused),
        "extended": sorted(run.recomputed & run.reused),
        "reused": sorted(run.reused - run.recomputed - run.changed),
        "stale": sorted(run.stale - run.reused),
        "destroyed": {name: list(by) for name, by in sorted(run.destroyed.items())},
    }


def table(shown: Sharing) -> Mapping[str, Any]:
    """The map as text: who shares with whom, and what becomes of it."""
    run = shown.run
    header = ["node", "bytes", "offset", "shares bytes with", *([] if run is None else ["fate"])]
    rows = []
    for slot in shown.slots[:400]:
        cells = [
            slot.name,
            format_bytes(slot.size_bytes),
            str(slot.offset_bytes),
            ", ".join(shown.partners(slot.name)) or "nobody",
        ]
        rows.append(cells if run is None else [*cells, run.fate(slot.name)])
    return {"header": header, "rows": rows}


# --- the static picture ---------------------------------------------------------------------------

LEFT, RIGHT, TOP, BOTTOM = 12, 12, 26, 26
COLOURS = {
    "changed": "input",
    "recomputed": "slice",
    "extended": "scratch",
    "reused": "retained",
    "stale": "partial",
    "destroyed": "b",
}


def to_svg(shown: Sharing, width: int = 960, height: int = 420) -> str:
    """The map as one SVG; hovering names a node."""
    across = (width - LEFT - RIGHT) / max(shown.size_bytes, 1)
    down = (height - TOP - BOTTOM) / max(shown.steps + 1, 1)
    drawn = sorted(shown.slots, key=lambda s: -s.size_bytes)[:MOST_DRAWN]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f"<title>{escape(str(shown))}</title><style>{THEME}</style>",
        f'<text class="tg-strong" x="{LEFT}" y="16">{escape(str(shown))}</text>',
    ]
    for size in ticks(max(shown.size_bytes, 1), 6):
        x = LEFT + size * across
        parts.append(
            f'<line class="tg-grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
            f'<text class="tg-text" x="{x:.1f}" y="{height - 10}">{format_bytes(size)}</text>'
        )
    for slot in drawn:
        fate = shown.run.fate(slot.name) if shown.run is not None else ""
        kind = "retained" if slot.retained else "slice"
        colour = COLOURS.get(fate, kind if shown.run is None else "none")
        faint = ' fill="none" style="stroke:var(--tg-soft)"' if colour == "none" else ""
        words = f"{slot.name}: {format_bytes(slot.size_bytes)} at offset {slot.offset_bytes}"
        words += f", {fate}" if fate else ""
        parts.append(
            f'<rect class="tg-{colour}"{faint} x="{LEFT + slot.offset_bytes * across:.2f}" '
            f'y="{TOP + (slot.row + 1) * down:.2f}" '
            f'width="{max(slot.size_bytes * across, 0.5):.2f}" height="{max(down, 0.5):.2f}">'
            f"<title>{escape(words)}</title></rect>"
        )
    return "".join([*parts, "</svg>"])
