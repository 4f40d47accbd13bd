"""What may be switched on from outside, for whoever works on this package.

TGBENCH_CHECK=1       every memory map is checked, the slow way, before it counts, and every run for
                      being within what serves it
TGBENCH_MAKING=always every run has a program of its own, where `making=` says nothing
TGBENCH_COMPILING=first kernels are compiled where they are first bound, and not beside
TGBENCH_DEBUG=1..4    what goes on, a line each on standard error; read once, at the first line

| level | tells of                                                            |
| ----- | ------------------------------------------------------------------- |
| 1     | plans: what for, how many bytes, how long it took                   |
| 2     | and runs: class and origin, program found, moved or made, time      |
| 3     | and programs that are made: how many calls, by which kernels        |
| 4     | and steps: kernels timed, bits compared, plans looked for           |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

from tgbench.base.errors import InputError, check_choice

CHECK = "TGBENCH_CHECK"
MAKING = "TGBENCH_MAKING"
COMPILING = "TGBENCH_COMPILING"
DEBUG = "TGBENCH_DEBUG"
PLANS, RUNS, PROGRAMS, STEPS = LEVELS = (1, 2, 3, 4)


def checks() -> bool:
    """Whether every memory map is to be checked."""
    return os.environ.get(CHECK, "0") not in ("", "0")


def making() -> str:
    """When programs are made, where a session does not say."""
    return os.environ.get(MAKING) or "measured"


def compiling() -> str:
    """Where kernels are compiled of which no machine code is there yet; raises InputError for what
    is no such place.
    """
    found = os.environ.get(COMPILING) or "beside"
    check_choice(InputError, COMPILING, found, ("beside", "first"))
    return found


@cache
def debug_level() -> int:
    """How much is to be told; raises InputError for what is no level."""
    asked = os.environ.get(DEBUG) or "0"
    if asked not in map(str, (0, *LEVELS)):
        raise InputError(f"{DEBUG}={asked}: give a level from 1 to {LEVELS[-1]}, or 0 for nothing")
    return int(asked)


def tell(level: int, line: Callable[[], str]) -> None:
    """A line on standard error, made only where so much is to be told."""
    if level <= debug_level():
        print(f"tgbench {level}: {line()}", file=sys.stderr, flush=True)


def telling(progress: Callable[[str], None] | None) -> Callable[[str], None]:
    """Somebody to tell the steps of a search to, whether or not anybody listens."""

    def told(message: str) -> None:
        tell(STEPS, lambda: message)
        if progress is not None:
            progress(message)

    return told
