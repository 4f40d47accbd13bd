"""Work that is done once, in the middle of something that is timed.

A library compiles code for a size when it first meets it. What that takes says nothing of how long
the next call of that size does, so whoever times a run leaves it out.

    before = once.spent_ns()
    call(…)                      # somewhere inside: with once.doing(): compile(…)
    took_ns - (once.spent_ns() - before)

Where it takes longer than doing without a few times, it may be put off (`is_put_off`): by those to
whom it is all the same which code computes something, not where bits have to agree.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Spent(threading.local):
    """Of this thread: how long it worked on such things, in nanoseconds; whether it puts them off,
    and how often it began to.
    """

    ns = 0
    puts_off = False
    stretches = 0


_SPENT = _Spent()


def is_put_off() -> bool:
    """Whether this thread rather does without, as long as a size is met seldom."""
    return _SPENT.puts_off


def stretch() -> int:
    """A number for the block `putting_off` that this thread is in: one run, say."""
    return _SPENT.stretches


class putting_off:  # noqa: N801  (read as a clause: `with putting_off()`)
    """Inside, what is done once for a size may wait until that size was met several times.

    >>> with putting_off():
    ...     is_put_off()
    True
    >>> is_put_off()
    False
    """

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = _SPENT.puts_off
        _SPENT.stretches += 1
        _SPENT.puts_off = True

    def __exit__(self, *_: object) -> None:
        _SPENT.puts_off = self.before


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
