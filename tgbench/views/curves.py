"""Small line charts as SVG: named series over shared axes, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from tgbench.views.svg import THEME

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 76, 16, 30, 40


@dataclass(frozen=True)
class Series:
    """A line.

    Fields:
        points: (x, y, words); words are shown where a pointer rests.
        style: a or b, its colour; dashed and stepped as told.
    """

    name: str
    points: Sequence[tuple[float, float, str]]
    style: str = "a"
    is_dashed: bool = False
    is_stepped: bool = False


Label = Callable[[float], str]


def chart(title: str, series: Sequence[Series], x: Label, y: Label, axes: tuple[str, str]) -> str:
    """The series as one SVG; from the smallest value to the largest on both axes."""
    points = [p for one in series for p in one.points if math.isfinite(p[1])]
    if not points:
        return _svg(title, '<text class="tg-text" x="20" y="40">nothing to draw yet</text>')
    low_x, high_x = _range([p[0] for p in points])
    low_y, high_y = _range([p[1] for p in points])

    def at(px: float, py: float) -> tuple[float, float]:
        across = LEFT + (px - low_x) / (high_x - low_x) * (WIDE - LEFT - RIGHT)
        return across, HIGH - BOTTOM - (py - low_y) / (high_y - low_y) * (HIGH - TOP - BOTTOM)

    parts = [_line(one, at) for one in series]
    for share in (0.0, 0.5, 1.0):
        vx, vy = low_x + share * (high_x - low_x), low_y + share * (high_y - low_y)
        gx, gy = at(vx, vy)
        anchor = ("start", "middle", "end")[round(share * 2)]
        parts.append(
            f'<line class="tg-grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{gy:.1f}" y2="{gy:.1f}"/>'
            f'<text class="tg-text" x="{LEFT - 6}" y="{gy + 4:.1f}" text-anchor="end">'
            f'{escape(y(vy))}</text><text class="tg-text" x="{gx:.1f}" y="{HIGH - BOTTOM + 16}" '
            f'text-anchor="{anchor}">{escape(x(vx))}</text>'
        )
    parts.append(
        f'<text class="tg-text" x="{(LEFT + WIDE) / 2}" y="{HIGH - 6}" text-anchor="middle">'
        f"{escape(axes[0])}</text>"
        f'<text class="tg-text" x="4" y="{TOP - 14}">{escape(axes[1])}</text>'
    )
    for i, one in enumerate(series):
        parts.append(_key(one, LEFT + 130 + i * 150))
    return _svg(title, "".join(parts))


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return (low, high + room) if low == 0 else (max(low - room, 0.0), high + room)


def _line(one: Series, at: Callable[[float, float], tuple[float, float]]) -> str:
    places = [(*at(x, y), words) for x, y, words in one.points if math.isfinite(y)]
    path, before = [], None
    for x, y, _ in places:
        if one.is_stepped and before is not None:
            path.append(f"{x:.1f},{before:.1f}")
        path.append(f"{x:.1f},{y:.1f}")
        before = y
    dash = " tg-dash" if one.is_dashed else ""
    line = (
        f'<polyline class="tg-{one.style} tg-line{dash}" style="fill:none" '
        f'points="{" ".join(path)}"/>'
    )
    dots = "".join(
        f'<circle class="tg-{one.style}" cx="{x:.1f}" cy="{y:.1f}" r="3.2">'
        f"<title>{escape(words)}</title></circle>"
        for x, y, words in places
        if words
    )
    return line + dots


def _key(one: Series, x: float) -> str:
    dash = " tg-dash" if one.is_dashed else ""
    return (
        f'<line class="tg-{one.style} tg-line{dash}" x1="{x}" x2="{x + 18}" y1="12" y2="12"/>'
        f'<text class="tg-text" x="{x + 23}" y="16">{escape(one.name)}</text>'
    )


def _svg(title: str, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="11">'
        f"<title>{escape(title)}</title><style>{THEME}</style>{inside}</svg>"
    )
