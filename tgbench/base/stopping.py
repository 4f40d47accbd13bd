"""When a search ends, and why: in the words that every search of this package and files use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class StopReason(StrEnum):
    """Why a search ended; equal to its word.

    >>> StopReason("steps") is StopReason.STEPS, StopReason.STEPS == "steps"
    (True, True)
    """

    NO_SEARCH = "greedy"  # none was asked for: what is quickly found is the answer
    FITS = "everything fits"  # within what is given, so that nothing is to be chosen
    OPTIMAL = "optimal"  # it is shown that nothing is better
    INFEASIBLE = "nothing fits"  # it is shown, or found, that nothing meets the limit
    NOTHING_BETTER = "nothing better"  # the bounds of all that is left say so
    SETTLED = "settled"  # nothing that is tried improves it
    PACKED = "packed"  # the model's best answer packs, or what comes nearest to it
    STEPS = "steps"  # all that were given are taken
    SECONDS = "time"  # it is over
    STOPPED = "stopped"  # the caller asked for it
    INTERRUPTED = "interrupted"  # from the keyboard
    RUNNING = "running"  # it did not end: it told of its best so far, and nothing after it
    WORKERS_LOST = "workers lost"
    PROCESS_LOST = "process lost"


@dataclass
class Limits:
    """What a search may still spend.

    Fields:
        steps: how many it took so far.
        should_stop: asked several times a second.
    """

    seconds: float | None = None
    max_steps: int | None = None
    should_stop: Callable[[], bool] | None = None
    steps: int = 0
    began: float = field(default_factory=time.monotonic)

    def reached(self) -> StopReason | None:
        """The limit that is reached, if any."""
        if self.max_steps is not None and self.steps >= self.max_steps:
            return StopReason.STEPS
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            return StopReason.SECONDS
        if self.should_stop is not None and self.should_stop():
            return StopReason.STOPPED
        return None

    def left(self, wanted: int) -> int:
        """So many steps, or as many as there are left."""
        return wanted if self.max_steps is None else min(wanted, self.max_steps - self.steps)
