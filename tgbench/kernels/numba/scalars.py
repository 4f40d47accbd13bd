"""What written loops are made of: functions of one float32, which the vectoriser inlines.

Terms stay as they are written, and zeros keep their signs; the terms of a sum alone may be
reordered.
"""

from __future__ import annotations

import numpy as np

from tgbench.kernels.numba.loops import (
    F,
    U,
    erf32,
    exp32,
    full_exp32,
    kernel,
    ordered,
    plain,
    tanh32,
)

__all__ = ["F", "U", "erf32", "exp32", "full_exp32", "larger", "log32", "plus", "smaller", "tanh32"]

LOWEST, NAN = np.int32(-0x80000000), np.int32(0x7FC00000)


@kernel
def plus(total, x):
    """A term of a sum, which may be reordered."""
    return total + x


@plain
def place(x):
    """Where a float32 stands among all: an integer in their order, NaN above everything."""
    return ordered(F(x).view(np.int32)) if x == x else NAN


@plain
def number(place):
    return np.int32(ordered(place)).view(np.float32)


@plain
def larger(a, b):
    return a if a > b or a != a else b


@plain
def smaller(a, b):
    return a if a < b or a != a else b


@plain
def log32(x):
    """log of a float32, within 2 units in the last place. Source: Cephes, logf."""
    is_small = x < F(1.17549435e-38)
    bits = np.int32(F(x * F(8388608.0) if is_small else x).view(np.int32))
    power = F(np.int32(bits >> 23) - np.int32(126)) - (F(23) if is_small else F(0))
    m = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F000000)).view(np.float32)
    is_low = m < F(0.707106781186547524)
    power = power - F(1) if is_low else power
    m = m + m - F(1) if is_low else m - F(1)
    s = m * m
    p = F(7.0376836292e-2)
    p = p * m - F(1.1514610310e-1)
    p = p * m + F(1.1676998740e-1)
    p = p * m - F(1.2420140846e-1)
    p = p * m + F(1.4249322787e-1)
    p = p * m - F(1.6668057665e-1)
    p = p * m + F(2.0000714765e-1)
    p = p * m - F(2.4999993993e-1)
    p = p * m + F(3.3333331174e-1)
    p = p * m * s - F(2.12194440e-4) * power - F(0.5) * s
    found = m + p + F(0.693359375) * power
    found = F(-np.inf) if x == F(0) else F(np.nan) if x < F(0) else found
    return found if x < F(np.inf) else x + x
