"""Reductions: sum, mean, max, min, prod over some axes.

An output element depends on its line of the input along the reduced axes; known identities
(0 of a sum, −inf of a max) of that line are neither read nor able to make it dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.known import Fact, SparsityPattern, open_fact, pattern_fact
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node, axis_of
from tgbench.graph.op_table import (
    FLOATS,
    Array,
    Attrs,
    Call,
    Facts,
    OpDef,
    TensorType,
    register,
    same_dtype,
)
from tgbench.graph.ops.elementwise import sqrt


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 1:
        raise GraphError(f"a reduction takes one input, got {len(types)}")
    axes: tuple[int, ...] = attrs["axes"]
    if not axes or len({*axes}) < len(axes) or not all(0 <= a < types[0].rank for a in axes):
        raise GraphError(f"axes {axes} do not fit a tensor of rank {types[0].rank}")


def _identity_rows(call: Call) -> SparsityPattern | None:
    """The open elements that alone decide the result, when that is safe to say.

    A soft −inf is an identity of max only in a line that has an open element: lines without one
    are opened again.
    """
    fact, name = call.facts[0] if call.facts else None, call.op.name
    if fact is None:
        return None
    if name == "max" and not fact.hard and not fact.wild:
        axes = call.attrs["axes"]
        return SparsityPattern.of(fact.open.array | ~fact.open.array.any(axis=axes, keepdims=True))
    identity = {"sum": 0.0, "max": -np.inf, "min": np.inf}.get(name)
    return fact.open if fact.closes_with(identity) else None


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    region, pattern = regions[0], _identity_rows(call)
    axes, keep = call.attrs["axes"], call.attrs["keepdims"]
    if pattern is not None:
        region = pattern.trim(region)
    boxes = [
        Box(
            (0, 1) if axis in axes else interval
            for axis, interval in enumerate(box)
            if keep or axis not in axes
        )
        for box in region
    ]
    return around(*boxes)


def _lines(call: Call, box: Box) -> Box:
    """The input box that an output box reduces."""
    axes, keep = call.attrs["axes"], call.attrs["keepdims"]
    kept = iter(interval for axis, interval in enumerate(box) if not keep or axis not in axes)
    return Box(
        (0, size) if axis in axes else next(kept) for axis, size in enumerate(call.in_shapes[0])
    )


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    lines, pattern = _lines(call, box), _identity_rows(call)
    return (Region((lines,)) if pattern is None else pattern.trim(Region((lines,))),)


def _known(call: Call, facts: Facts) -> Fact | None:
    """A line of nothing but the identity reduces to it."""
    fact = facts[0]
    if fact is None or fact.value is None:
        return None
    axes, keep = call.attrs["axes"], call.attrs["keepdims"]
    if call.op.name in ("sum", "mean") and fact.value != 0:
        return None
    is_open = np.asarray(fact.open.array.any(axis=axes, keepdims=keep))
    return pattern_fact(fact.value, is_open, hard=fact.hard)


def _known_max(call: Call, facts: Facts) -> Fact | None:
    """Of a line with an open element, no mask is the maximum."""
    fact = facts[0]
    return _extreme(call, facts, fact is not None and fact.is_huge and not fact.is_mask)


def _known_min(call: Call, facts: Facts) -> Fact | None:
    """Of a line with a masked element, that is the minimum."""
    fact = facts[0]
    return _extreme(call, facts, fact is not None and fact.is_mask)


def _extreme(call: Call, facts: Facts, may_be_huge: bool) -> Fact | None:
    fact, found = facts[0], _known(call, facts)
    if fact is None or not (fact.wild or may_be_huge):
        return found
    return replace(found or open_fact(call.out.rank), wild=True)


def _known_sum(call: Call, facts: Facts) -> Fact | None:
    """Of a line with a 1 and nothing negative, the sum is above 0."""
    found, fact = _known(call, facts), facts[0]
    is_exp = fact is not None and fact.closes_with(0.0) and bool(fact.peak)
    if not is_exp or fact is None or not set(fact.peak) <= set(call.attrs["axes"]):
        return found
    return replace(found or open_fact(call.out.rank), positive=True)


def _check_mean(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _check(attrs, types)
    if types[0].dtype not in FLOATS:
        raise GraphError(f"mean needs floats, got {types[0].dtype}; cast the input first")


def _check_numbers(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _check(attrs, types)
    if types[0].dtype == "bool":
        raise GraphError("sum and prod need numbers, got bool; cast the input first")


_CHECKS = {"sum": _check_numbers, "prod": _check_numbers, "mean": _check_mean}


def _reduction(
    name: str,
    function: Callable[..., Any],
    known: Callable[[Call, Facts], Fact | None] | None = None,
) -> OpDef:
    def reference(attrs: Attrs, x: Array) -> Array:
        result = function(x, axis=attrs["axes"], keepdims=attrs["keepdims"])
        return np.asarray(result).astype(x.dtype)

    return register(
        OpDef(
            name,
            same_dtype,
            reference,
            _forward,
            _needed,
            check=_CHECKS.get(name, _check),
            known=known,
            tames=name in ("max", "min"),
            cancels=reference if name in ("sum", "mean") else None,
            flops=lambda call, box: _lines(call, box).elements,
        )
    )


_reduction("sum", np.sum, _known_sum)
_reduction("mean", np.mean, _known)
_reduction("max", np.max, _known_max)
_reduction("min", np.min, _known_min)
_reduction("prod", np.prod)


def _function(name: str) -> Callable[..., Node]:
    def function(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
        axes = range(x.rank) if axis is None else [axis] if isinstance(axis, int) else axis
        ordered = tuple(sorted(axis_of(x, a) for a in axes))
        return x.builder.apply(name, x, axes=ordered, keepdims=keepdims)

    function.__name__ = name
    function.__doc__ = f"The {name} over `axis` (one, several, or all when None)."
    return function


sum_, mean, max_, min_ = _function("sum"), _function("mean"), _function("max"), _function("min")
prod = _function("prod")


def var(
    x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: int = 1
) -> Node:
    """The variance over `axis`: squares of the distance from the mean, over n − correction."""
    centre = mean(x, axis, keepdims=True)
    centred = x - centre
    count = x.type.elements // centre.type.elements
    if count <= correction:
        raise GraphError(f"a variance of {count} elements with correction {correction} is empty")
    return sum_(centred * centred, axis, keepdims=keepdims) / float(count - correction)


def std(
    x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: int = 1
) -> Node:
    """The square root of the variance."""
    return sqrt(var(x, axis, keepdims, correction))
