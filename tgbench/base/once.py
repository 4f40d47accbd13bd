"""Work that is done once, in the middle of something that is timed.

A library compiles code for a size when it first meets it. What that takes says nothing of how long
the next call of that size does, so whoever times a run leaves it out.

    before = once.spent_ns()
    call(…)                      # somewhere inside: with once.doing(): compile(…)
    took_ns - (once.spent_ns() - before)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Spent(threading.local):
    """How long this thread worked on such things, in nanoseconds."""

    ns = 0


_SPENT = _Spent()


def spent_ns() -> int:
    """How long this thread worked on what is done once, since it began."""
    return _SPENT.ns


@contextmanager
def doing() -> Iterator[None]:
    """What happens inside is done once.

    >>> before = spent_ns()
    >>> with doing():
    ...     found = sum(range(100_000))
    >>> spent_ns() > before
    True
    """
    began_ns = time.thread_time_ns()
    try:
        yield
    finally:
        _SPENT.ns += time.thread_time_ns() - began_ns
