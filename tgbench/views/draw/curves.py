"""Small line charts as SVG: named series over shared axes, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from tgbench.views.draw.svg import THEME

KEY_WIDE, LETTER_WIDE = 50, 6  # of a name among the keys: what is not letters, and a letter
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 76, 30, 30, 40


@dataclass(frozen=True)
class Series:
    """A line.

    Fields:
        points: (x, y, words); words are shown where a pointer rests.
        style: a or b, its colour; dashed and stepped as told.
        is_line: its points lie along a line; else they are alternatives, and stand alone.
    """

    name: str
    points: Sequence[tuple[float, float, str]]
    style: str = "a"
    is_dashed: bool = False
    is_stepped: bool = False
    is_line: bool = True


@dataclass(frozen=True)
class Axis:
    """A direction of a chart.

    Fields:
        label: a value in words.
        base: 10 for marks at 1, 2 and 5 times powers of ten, 2 for marks at powers of two.
        has_zero: it begins at 0, and not near the smallest value.
    """

    name: str
    label: Callable[[float], str]
    base: Literal[2, 10] = 10
    has_zero: bool = False

    def range(self, values: Sequence[float]) -> tuple[float, float]:
        """From the smallest value to the largest, with a little room."""
        low, high = min(values), max(values)
        room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
        return (0.0, high + room) if self.has_zero else (max(low - room, 0.0), high + room)

    def marks(self, low: float, high: float) -> list[float]:
        """Two to five round values in [low, high].

        >>> Axis("time", str).marks(5.96, 7.28), Axis("bytes", str, base=2).marks(7e3, 13e3)
        ([6.0, 6.5, 7.0], [8192.0, 10240.0, 12288.0])
        """
        step = _step((high - low) / MARKS, self.base)
        return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


MARKS = 5  # at most, on an axis


def _step(least: float, base: Literal[2, 10]) -> float:
    """The smallest round number that is not below `least`."""
    if base == 2:
        return 2.0 ** math.ceil(math.log2(least))
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least)


def chart(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """The series as one SVG."""
    points = [p for one in series for p in one.points if math.isfinite(p[1])]
    if not points:
        return _svg(title, '<text class="tg-text" x="20" y="40">nothing to draw yet</text>')
    low_x, high_x = x.range([p[0] for p in points])
    low_y, high_y = y.range([p[1] for p in points])

    def at(px: float, py: float) -> tuple[float, float]:
        across = LEFT + (px - low_x) / (high_x - low_x) * (WIDE - LEFT - RIGHT)
        return across, HIGH - BOTTOM - (py - low_y) / (high_y - low_y) * (HIGH - TOP - BOTTOM)

    parts = [_line(one, at) for one in series]
    for value in y.marks(low_y, high_y):
        _, height = at(low_x, value)
        parts.append(
            f'<line class="tg-grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{height:.1f}" '
            f'y2="{height:.1f}"/><text class="tg-text" x="{LEFT - 6}" y="{height + 4:.1f}" '
            f'text-anchor="end">{escape(y.label(value))}</text>'
        )
    for value in x.marks(low_x, high_x):
        across, _ = at(value, low_y)
        parts.append(
            f'<text class="tg-text" x="{across:.1f}" y="{HIGH - BOTTOM + 16}" '
            f'text-anchor="middle">{escape(x.label(value))}</text>'
        )
    parts.append(
        f'<text class="tg-text" x="{(LEFT + WIDE) / 2}" y="{HIGH - 6}" text-anchor="middle">'
        f"{escape(x.name)}</text>"
        f'<text class="tg-text" x="4" y="{TOP - 14}">{escape(y.name)}</text>'
    )
    across = LEFT + 130.0
    for one in series:
        parts.append(_key(one, across))
        across += KEY_WIDE + LETTER_WIDE * len(one.name)
    return _svg(title, "".join(parts))


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
    return line * one.is_line + dots


def _key(one: Series, x: float) -> str:
    dash = " tg-dash" if one.is_dashed else ""
    line = f'<line class="tg-{one.style} tg-line{dash}" x1="{x}" x2="{x + 18}" y1="12" y2="12"/>'
    dot = f'<circle class="tg-{one.style}" cx="{x + 9}" cy="12" r="3.2"/>'
    has_dots = any(words for _, _, words in one.points)
    return (
        f"{line * one.is_line}{dot * (has_dots or not one.is_line)}"
        f'<text class="tg-text" x="{x + 23}" y="16">{escape(one.name)}</text>'
    )


def _svg(title: str, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="11">'
        f"<title>{escape(title)}</title><style>{THEME}</style>{inside}</svg>"
    )
