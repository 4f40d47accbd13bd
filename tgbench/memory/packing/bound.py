"""A height that no packing of a problem can be below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tgbench.base.words import format_bytes
from tgbench.memory.packing.lifetimes import Lifetimes, Staircase
from tgbench.memory.packing.problem import Buffer, Problem, aligned_size, occupying


@dataclass(frozen=True, slots=True)
class LowerBound:
    """The most bytes live at one step: no placement is lower."""

    size_bytes: int
    step: int  # the earliest that reaches it
    buffers: tuple[Buffer, ...]  # live there, largest first

    def __str__(self) -> str:
        named = ", ".join(f"{b.name} {format_bytes(b.size_bytes)}" for b in self.buffers[:3])
        more = f", and {len(self.buffers) - 3} more" if len(self.buffers) > 3 else ""
        return f"{format_bytes(self.size_bytes)} at step {self.step} ({named}{more})"


def lower_bound(problem: Problem) -> LowerBound:
    """The largest sum of aligned live sizes at any step, and what makes it.

    Sizes are in bytes. An empty problem is bounded by 0 at step 0. Where pins reach is not
    counted.

    >>> print(lower_bound(Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4)))))
    192 B at step 1 (a 128 B, b 64 B)
    """
    counted = list(occupying(problem))
    if not counted:
        return LowerBound(0, 0, ())
    sizes = [aligned_size(buffer.size_bytes, problem.alignment) for buffer in counted]
    profile = Staircase.of(Lifetimes.of(counted), np.array(sizes, np.int64))
    peak = int(profile.live.argmax())
    step = int(profile.steps[peak])
    makers = (b for b in counted if any(start <= step < stop for start, stop in b.intervals))
    by_size = sorted(makers, key=lambda buffer: buffer.size_bytes, reverse=True)
    return LowerBound(int(profile.live[peak]), step, tuple(by_size))
