"""Numbers on the command line: what is none, or out of bounds, is a wrong argument.

argument --count: -1 is no whole number from 0 on
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

MOST_TOKENS, MOST_SAMPLES = 1 << 17, 1 << 20  # more are no model's, and no window's


def whole(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number within bounds.

    >>> whole(1)("8")
    8
    """

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            end = "on" if most is None else f"to {most}"
            raise argparse.ArgumentTypeError(f"{text} is no whole number from {least} {end}")
        return value

    return read


def seconds(text: str) -> float:
    """Reads a time, which may be 0.

    >>> seconds("1.5")
    1.5
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def some_seconds(text: str) -> float:
    """Reads a time above 0.

    >>> some_seconds("1.5")
    1.5
    """
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("0 seconds are no time; give more")
    return value
