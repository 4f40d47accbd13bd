"""Numbers on the command line: what is none, or out of bounds, is a wrong argument.

argument --count: -1 is no whole number from 0 on
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tgbench.base.errors import InputError

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
    value = _number(text)
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


def tolerance(least: float = math.ulp(0.0)) -> Callable[[str], float]:
    """Reads a largest relative error: above 0, or from `least` on.

    >>> tolerance()("1e-5"), tolerance(0)("0")
    (1e-05, 0.0)
    """

    def read(text: str) -> float:
        value = _number(text)
        if not least <= value < math.inf:
            end = "from 0 on" if least <= 0 else "above 0"
            raise argparse.ArgumentTypeError(f"{text} is no number {end}; give one such as 1e-5")
        return value

    return read


def _number(text: str) -> float:
    """NaN, which is within no bounds, for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def finite(array: npt.NDArray[Any], option: str, file: object) -> npt.NDArray[np.float32]:
    """A file's numbers as float32; raises InputError where one is none.

    >>> finite(np.ones(2), "--signal", "s.npy")
    array([1., 1.], dtype=float32)
    """
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, np.float32)
    wrong = np.argwhere(~np.isfinite(found))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        raise InputError(f"{option} {file}: {array[at]} at {at} is no finite number; mend it")
    return found
