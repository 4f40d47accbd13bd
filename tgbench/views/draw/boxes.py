"""A region alone, drawn in the plane of two of its dimensions, within its hull.

[2:3, 0:5] and [0:5, 3:4]

    · · · # ·
    · · · # ·
    # # # # #
    · · · # ·
    · · · # ·
"""

from __future__ import annotations

from html import escape

from tgbench.base.regions import Box, Region
from tgbench.views.draw.svg import THEME

WIDE, HIGH, LEFT, TOP = 320, 200, 44, 22
MOST_BOXES = 2000


def to_svg(region: Region) -> str:
    """The region as one SVG, or "" where there is nothing to draw: rank 0, or no elements.

    One that moves has no place of its own to be drawn at: `region.at(origin)` has.
    """
    if not region.boxes or not len(region.boxes[0]) or len(region) > MOST_BOXES or region.moves:
        return ""
    hull = _numbers(region.hull())
    shown = sorted(sorted(range(len(hull)), key=lambda i: -(hull[i][1] - hull[i][0]))[:2])
    rows, columns = (shown[0], shown[1]) if len(shown) == 2 else (-1, shown[0])
    (r0, r1), (c0, c1) = ((0, 1) if rows < 0 else hull[rows]), hull[columns]
    down, across = min(HIGH / (r1 - r0), 24.0), min(WIDE / (c1 - c0), 24.0)
    parts = []
    for box in region:
        here = _numbers(box)
        (a, b), (c, d) = ((0, 1) if rows < 0 else here[rows]), here[columns]
        parts.append(
            f'<rect class="tg-input" fill-opacity=".6" stroke="currentColor" stroke-width=".4" '
            f'x="{LEFT + (c - c0) * across:.1f}" y="{TOP + (a - r0) * down:.1f}" '
            f'width="{max((d - c) * across, 1):.1f}" height="{max((b - a) * down, 1):.1f}">'
            f"<title>{escape(repr(box))}</title></rect>"
        )
    wide, high = (c1 - c0) * across, (r1 - r0) * down
    labels = (
        f'<text class="tg-text" x="{LEFT}" y="{TOP - 8}">{c0}</text>'
        f'<text class="tg-text" x="{LEFT + wide:.0f}" y="{TOP - 8}" text-anchor="end">{c1}</text>'
        f'<text class="tg-text" x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">{r0}</text>'
        f'<text class="tg-text" x="{LEFT - 6}" y="{TOP + high:.0f}" text-anchor="end">{r1}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + wide + 12:.0f}" '
        f'height="{TOP + high + 8:.0f}" role="img" font-family="system-ui, sans-serif" '
        f'font-size="11"><title>{escape(repr(region))}</title><style>{THEME}</style>'
        f"{''.join(parts)}{labels}</svg>"
    )


def _numbers(box: Box) -> list[tuple[int, int]]:
    return [(int(start), int(stop)) for start, stop in box]
