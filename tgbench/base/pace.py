"""Progress of work that has a great many small steps: told of now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from tgbench.base.words import Progress

EVERY_S = 0.1  # as often as people read


def paced(progress: Progress, clock: Callable[[], float] = time.monotonic) -> Progress:
    """The same, told no more often than each tenth of a second; whoever raises is heard then.

    >>> seconds = iter([0.0, 0.05, 0.15])
    >>> tell = paced(lambda done, of, what: print(done, of, what), lambda: next(seconds))
    >>> for done in range(3): tell(done, 3, "steps")
    0 3 steps
    2 3 steps
    """
    last_s = float("-inf")

    def told(done: int, of: int, what: str) -> None:
        nonlocal last_s
        now_s = clock()
        if now_s - last_s >= EVERY_S:
            last_s = now_s
            progress(done, of, what)

    return told
