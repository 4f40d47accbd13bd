"""How far two arrays are apart, and how far they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.base.regions import Box

Array = NDArray[Any]

# What kernels of a float type may differ by, as a share of the largest value: a few hundred units
# in the last place, which is what sums over some thousand elements come to.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
EXACT = 0.0  # integers and booleans


def tolerance_of(dtype: str, tolerance: float | None) -> float:
    """The allowed relative error of a dtype; a wish counts where the dtype can keep it."""
    own = TOLERANCES.get(dtype, EXACT)
    return own if tolerance is None or own == EXACT else max(tolerance, _EPSILON[dtype])


_EPSILON = {"float64": 1e-15, "float32": 2.4e-7, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far found values are from right ones.

    Fields:
        absolute: the largest distance; infinite where one of the two is no number.
        relative: that, by the largest right value (by 1 if all are 0).
        box: the smallest around all elements that are more than the tolerance apart.
    """

    absolute: float
    relative: float
    box: Box | None = None


def difference(
    found: Array, right: Array, tolerance: float = 0.0, scale: float | None = None
) -> Difference:
    """Compare in float64; `scale` is what a relative error is relative to, if not `right`.

    >>> difference(np.array([1.0, 2.0, 4.5]), np.array([1.0, 2.0, 4.0]))
    Difference(absolute=0.5, relative=0.125, box=[2:3])
    """
    a, b = np.asarray(found, np.float64), np.asarray(right, np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.asarray(a - b)
    np.abs(apart, out=apart)
    if (unknown := np.isnan(apart)).any():  # no numbers, or equal infinities
        apart[unknown] = np.where(a[unknown] == b[unknown], 0.0, np.inf)
    absolute = float(apart.max())
    scale = largest(b) if scale is None else scale
    limit = tolerance * (scale or 1.0)
    return Difference(absolute, absolute / (scale or 1.0), _hull(apart > limit))


def largest(array: Array) -> float:
    """The largest finite magnitude; 0 if there is none."""
    magnitudes = np.abs(np.asarray(array, np.float64))
    return float(np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0))


def _hull(flags: Array) -> Box | None:
    if not flags.any():
        return None
    sides = []
    for axis in range(flags.ndim):
        others = tuple(other for other in range(flags.ndim) if other != axis)
        places = np.flatnonzero(flags.any(axis=others))
        sides.append((int(places[0]), int(places[-1]) + 1))
    return Box(sides)
