"""What the static pictures share: colours for light and dark, and axis ticks.

The colours are Okabe and Ito's (2008), which stay apart for every kind of colour vision; what they
tell is also written beside them. A picture that stands for itself, or is an image, has the paper
that its colours are for: what shows it may be light where the system is dark.
"""

from __future__ import annotations

import math

THEME = (
    ":root{--tg-ink:#1b1f24;--tg-soft:#59636e;--tg-line:#d8dee4;--tg-input:#0072b2;"
    "--tg-retained:#009e73;--tg-partial:#f0e442;--tg-slice:#e69f00;--tg-scratch:#cc79a7;"
    "--tg-a:#0072b2;--tg-b:#d55e00}svg:root{background:#fff}"
    "@media(prefers-color-scheme:dark){:root{--tg-ink:#e6edf3;--tg-soft:#9aa4af;--tg-line:#30363d;"
    "--tg-input:#56b4e9;--tg-retained:#2ebd92;--tg-partial:#f0e442;--tg-slice:#e69f00;"
    "--tg-scratch:#dd9cc0;"
    "--tg-a:#56b4e9;--tg-b:#f0803c}svg:root{background:#111}}"
    ".tg-text{fill:var(--tg-soft)}.tg-strong{fill:var(--tg-ink)}"
    ".tg-grid{stroke:var(--tg-line);stroke-width:1}"
    ".tg-input{fill:var(--tg-input)}.tg-retained{fill:var(--tg-retained)}"
    ".tg-partial{fill:var(--tg-partial)}"
    ".tg-slice{fill:var(--tg-slice)}.tg-scratch{fill:var(--tg-scratch)}"
    ".tg-live{fill:none;stroke:var(--tg-ink);stroke-opacity:.6}"
    ".tg-a{stroke:var(--tg-a);fill:var(--tg-a)}.tg-b{stroke:var(--tg-b);fill:var(--tg-b)}"
    ".tg-line{fill:none;stroke-width:1.6}.tg-dash{stroke-dasharray:5 3}"
)


def ticks(most: int, count: int) -> list[int]:
    """At most about `count` byte counts from 0 up to `most`, a power of two apart.

    >>> ticks(24 << 20, 5)
    [0, 8388608, 16777216, 25165824]
    """
    step = 2 ** max(math.ceil(math.log2(max(most / count, 1))), 0)
    return list(range(0, most + 1, step))


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten in [low, high].

    >>> log_ticks(30, 700)
    [50.0, 100.0, 200.0, 500.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
    return [value for value in every if low <= value <= high]
