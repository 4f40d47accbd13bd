"""Work that is done once, in the middle of something that is timed.

A library compiles code for a size when it first meets it. What that takes says nothing of how long
the next call of that size does, so whoever times a run leaves it out.

    before = once.SPENT.ns
    call(…)                      # somewhere inside: with once.doing(): compile(…)
    took_ns - (once.SPENT.ns - before)

Where it takes longer than doing without a few times, it may be put off (`is_put_off`): by those to
whom it is all the same which code computes something, not where bits have to agree. Each run says
which it is, whatever the one before was stopped at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent(threading.local):
    """Of this thread.

    Fields:
        ns: how long it worked on what is done once, since it began.
        puts_off: whether it puts such things off.
        stretches: how many runs there were.
    """

    ns = 0
    puts_off = False
    stretches = 0


SPENT = Spent()


def is_put_off() -> bool:
    """Whether this thread rather does without, as long as a size is met seldom."""
    return SPENT.puts_off


def stretch() -> int:
    """A number for the run that this thread is in."""
    return SPENT.stretches


@contextmanager
def doing() -> Iterator[None]:
    """What happens inside is done once.

    >>> before = SPENT.ns
    >>> with doing():
    ...     found = sum(range(100_000))
    >>> SPENT.ns > before
    True
    """
    began_ns = time.thread_time_ns()
    try:
        yield
    finally:
        SPENT.ns += time.thread_time_ns() - began_ns
