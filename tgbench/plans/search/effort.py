"""How a plan is looked for, and how long that may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tgbench.base.stopping import StopReason

Mode: TypeAlias = Literal["greedy", "search", "exact"]
MODES: tuple[Mode, ...] = ("greedy", "search", "exact")
Clock: TypeAlias = Callable[[], float]  # seconds since whenever


@dataclass(frozen=True)
class Effort:
    """When to stop: whatever comes first. With `steps` alone the result is reproducible.

    Fields:
        seconds: wall time.
        steps: windows that are solved.
    """

    seconds: float | None = None
    steps: int | None = None

    def after(self, seconds: float) -> Effort:
        """What is left of it when so much time is gone.

        >>> Effort(seconds=2.0, steps=8).after(0.5)
        Effort(seconds=1.5, steps=8)
        """
        left_s = None if self.seconds is None else max(self.seconds - seconds, 0.0)
        return replace(self, seconds=left_s)


class Spending:
    """What of an effort is spent, and what is left.

    Args:
        stops: asked now and then; True: somebody said stop.
        clock: what seconds are counted by.
    """

    def __init__(
        self, effort: Effort, stops: Callable[[], bool], clock: Clock = time.monotonic
    ) -> None:
        self.effort, self.stops, self.clock = effort, stops, clock
        self.began, self.steps = clock(), 0

    @property
    def is_timed(self) -> bool:
        """Whether time is what ends it, and not the number of steps: then it need not repeat."""
        return self.effort.seconds is not None and self.effort.steps is None

    @property
    def gone_s(self) -> float:
        return self.clock() - self.began

    @property
    def left_s(self) -> float:
        seconds = self.effort.seconds
        return math.inf if seconds is None else max(seconds - self.gone_s, 0.0)

    @property
    def left_steps(self) -> float:
        steps = self.effort.steps
        return math.inf if steps is None else max(steps - self.steps, 0)

    def is_late(self, share: float = 1.0) -> bool:
        """Whether so much of the time is gone, or somebody said stop."""
        seconds = self.effort.seconds
        return self.stops() or (seconds is not None and self.left_s <= (1 - share) * seconds)

    def has(self, seconds: float, share: float = 1.0) -> bool:
        """Whether what takes so long would be over within a share of the time."""
        most = self.effort.seconds
        return most is None or self.gone_s + seconds <= share * most

    @property
    def over(self) -> StopReason | None:
        """Why it is, if it is."""
        if self.left_steps <= 0:
            return StopReason.STEPS
        if self.left_s <= 0:
            return StopReason.SECONDS
        return StopReason.STOPPED if self.stops() else None
