"""Masks: −inf, and huge negative numbers that are as good as −inf under a softmax.

    x + [0, −1e30, 0]      the sum varies with x in theory; exp of it, less the maximum, does not

What adds to a mask, takes from it or scales it has to stay well away from its size, or it is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tgbench.base.known import HUGE, Fact, pattern_fact
from tgbench.graph.op_table import Array, TensorType

# An additive mask at or below this leaves exp(score − maximum) exactly 0, for scores that stay
# well away from the end of the dtype's range.
MASKED = {"float64": -HUGE, "float32": -HUGE, "bfloat16": -HUGE, "float16": -3e4}
# Scaled or moved, it does so as long as it is below this: exp(−745) is 0 in every dtype.
LEAST_MASK = -1e3
SMALLEST = {
    "float64": float(np.finfo("float64").min),
    "float32": float(np.finfo("float32").min),
    "bfloat16": -(2.0**127) * (2 - 2.0**-7),
    "float16": float(np.finfo("float16").min),
}


def aligned(array: Array, rank: int) -> Array:
    """An array with as many dimensions, further ones in front."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


@dataclass(frozen=True)
class Mask:
    """Masked elements of an operand.

    Fields:
        closed: which, as wide as they vary.
        value: what they are at most; −inf where all of them are.
    """

    closed: Array
    value: float

    def within(self, region: Array) -> Mask:
        """Those of them that are in a region."""
        return Mask(self.closed & region, self.value)


def mask_of(fact: Fact | None, type_: TensorType, rank: int) -> Mask | None:
    """Where an operand is −inf, or a constant or a sum that is as good as that."""
    if fact is None or type_.dtype not in MASKED:
        return None
    if fact.constant is None:
        closed = aligned(~fact.open.array, rank)
        return Mask(closed, fact.value) if fact.is_mask and fact.value is not None else None
    array = fact.constant.array
    closed = array <= MASKED[type_.dtype]
    return Mask(aligned(closed, rank), float(array[closed].max())) if closed.any() else None


def mask_fact(masks: Sequence[Mask], dtype: str) -> Fact | None:
    """What is masked by one of several: hard where all are −inf, else by a finite number."""
    closed = np.logical_or.reduce(np.broadcast_arrays(*(mask.closed for mask in masks)))
    value = max(mask.value for mask in masks)
    if value == -np.inf:
        return pattern_fact(value, ~closed)
    value = max(value, SMALLEST[dtype])
    return pattern_fact(value, ~closed, hard=False) if value <= LEAST_MASK else None


def not_below(fact: Fact | None, limit: float, rank: int) -> Array:
    """Where an operand may be at or above a limit (where it is NaN, too)."""
    if fact is None:
        return np.zeros([1] * rank, dtype=bool)
    if fact.wild:
        return np.ones([1] * rank, dtype=bool)
    if fact.constant is not None:
        return aligned(~(fact.constant.array < limit), rank)
    below = fact.value is None or fact.value < limit
    return aligned(~fact.open.array & (not below), rank)


def not_above(fact: Fact | None, limit: float, rank: int) -> Array:
    """Where an operand may be at or below a limit (where it is NaN, too)."""
    if fact is None:
        return np.zeros([1] * rank, dtype=bool)
    if fact.wild:
        return np.ones([1] * rank, dtype=bool)
    if fact.constant is not None:
        return aligned(~(fact.constant.array > limit), rank)
    above = fact.value is None or fact.value > limit
    return aligned(~fact.open.array & (not above), rank)
