"""Times and counts for people: the same words in plans, reports, tables and pictures."""

from __future__ import annotations

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def format_time(time_ns: float) -> str:
    """Four digits, in the largest unit that leaves a 1 or more before the point.

    >>> format_time(7_216), format_time(410_000), format_time(1_234_000), format_time(0)
    ('7.216 µs', '410 µs', '1.234 ms', '0 ns')
    """
    rounded = float(f"{time_ns:.4g}")
    for size, unit in UNITS:
        if abs(rounded) >= size:
            return f"{rounded / size:.4g} {unit}"
    return f"{time_ns:.3g} ns"


def counted(count: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "node"), counted(2, "class"), counted(12_000, "rectangle")
    ('1 node', '2 classes', '12,000 rectangles')
    """
    ending = "" if count == 1 else "es" if what.endswith(("s", "x")) else "s"
    return f"{count:,} {what}{ending}"
