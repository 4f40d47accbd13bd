"""What an error buys: the paths that none is better than in time, error and memory.

time │ ●                         a point for each, with what it takes in memory
     │   ╲
     │     ●───●
     └────────────→ digits of a result that hold
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tgbench.base.words import counted, format_bytes, format_time
from tgbench.session.paths import SessionPaths
from tgbench.views.draw.curves import Axis, Series, chart

DIGITS = 16.0  # of a float64, where nothing is off


@dataclass(frozen=True, slots=True)
class ErrorPoint:
    """One path: what a run takes, how far off it is, and the memory for every value."""

    time_ns: float
    error: float
    memory_bytes: int
    rules: str

    @property
    def digits(self) -> float:
        """How many digits of the largest result hold."""
        return min(-math.log10(self.error), DIGITS) if self.error > 0 else DIGITS

    def __str__(self) -> str:
        return (
            f"{format_time(self.time_ns)} a run, off by {self.error:.0e}, "
            f"{format_bytes(self.memory_bytes)}: {self.rules or 'as it was given'}"
        )


@dataclass(frozen=True)
class ErrorFrontier:
    """Points in order of the digits that hold."""

    points: Sequence[ErrorPoint]

    @staticmethod
    def of(paths: SessionPaths, count: int) -> ErrorFrontier:
        """Of the first paths that differ in time; errors are measured."""
        frame = paths.frontier(count)
        columns = zip(
            frame["time_ns"], frame["error"], frame["memory_bytes"], frame["rules"], strict=True
        )
        points = (ErrorPoint(float(t), float(e), int(m), str(r)) for t, e, m, r in columns)
        return ErrorFrontier(sorted(points, key=lambda one: (one.digits, one.time_ns)))

    def to_svg(self) -> str:
        """Time by digits; where a pointer rests, what the path is."""
        points = [(one.digits, one.time_ns, str(one)) for one in self.points]
        digits = Axis("digits that hold", lambda value: f"{value:g}")
        series = Series("path", points, is_line=False)
        return chart("paths by error", [series], digits, Axis("a run", format_time))

    def __str__(self) -> str:
        lines = [f"{counted(len(self.points), 'path')} that none is better than"]
        return "\n".join([*lines, *(f"  {point}" for point in self.points)])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": self.to_svg(), "text/plain": str(self)}
