"""Upsampling (or shrinking) of the spatial dimensions: nearest, linear or cubic in each dimension.

All are a fixed map along each dimension, so the regions follow from what they decompose to: a
gather at constant indices, or a product with a constant matrix that has two or four open elements a
row. The maps are those of PyTorch's `interpolate`; cubic ones are R. Keys' convolution (IEEE
Transactions on Acoustics, Speech and Signal Processing, 1981) with a = −0.75.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.graph.graph import Node
from tgbench.graph.op_table import (
    FLOATS,
    Array,
    Attrs,
    OpDef,
    TensorType,
    numpy_dtype,
    register,
    same_dtype,
)
from tgbench.graph.ops.images.pool import along
from tgbench.graph.ops.images.windows import per_axis
from tgbench.graph.ops.index import gather

MOST_SIZES = 64  # of images that are remembered
LARGEST_MATRIX = 1 << 22  # elements; a signal of some thousand numbers
MODES = ("nearest", "nearest_exact", "linear", "cubic")
TAPS = {"linear": 2, "cubic": 4}  # inputs that an output is made of along a dimension
STEEP = -0.75  # the slope of a cubic at its first zero


@lru_cache(MOST_SIZES)
def nearest_index(size: int, count: int, scale: float | None, exact: bool) -> Array:
    """Which input each output copies; `scale` is inputs per output, where it is given.

    In float32, as PyTorch computes it.
    """
    step = np.float32(size / count if scale is None else scale)
    at = np.arange(count, dtype=np.float32) + np.float32(0.5 if exact else 0.0)
    index: Array = np.minimum(np.floor(at * step), size - 1).astype(np.int64)
    index.setflags(write=False)
    return index


class Taps(NamedTuple):
    """[taps, count] each: of every output the inputs that it is made of, and their shares, float64.

    At an end the same input may be there more than once.
    """

    inputs: Array
    shares: Array


@lru_cache(MOST_SIZES)
def taps_of(mode: str, size: int, count: int, scale: float | None, align_corners: bool) -> Taps:
    """What outputs along a dimension are made of; linear and cubic."""
    outputs = np.arange(count, dtype=np.float64)
    if align_corners:
        at = outputs * ((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        at = (outputs + 0.5) * (size / count if scale is None else scale) - 0.5
    if mode == "linear":
        at = np.maximum(at, 0.0)
    first = np.floor(at).astype(np.int64)
    past = at - first
    shares = {0: 1 - past, 1: past} if mode == "linear" else _cubic_shares(past)
    inputs = np.stack([np.clip(first + tap, 0, size - 1) for tap in shares])
    found = Taps(inputs, np.stack(list(shares.values())))
    for array in found:
        array.setflags(write=False)
    return found


@lru_cache(MOST_SIZES)
def matrix_of(mode: str, size: int, count: int, scale: float | None, align_corners: bool) -> Array:
    """[count, size]: how much of each input is in each output; float64."""
    matrix, rows = np.zeros((count, size)), np.arange(count)
    for inputs, shares in zip(*taps_of(mode, size, count, scale, align_corners), strict=True):
        np.add.at(matrix, (rows, inputs), shares)
    matrix.setflags(write=False)
    return matrix


def _cubic_shares(past: Array) -> dict[int, Array]:
    """Of the inputs around an output, that is so far past the one at 0."""

    def near(x: Array) -> Array:
        return np.asarray(((STEEP + 2) * x - (STEEP + 3)) * x * x + 1)

    def far(x: Array) -> Array:
        return np.asarray(((x - 5) * x + 8) * x * STEEP - 4 * STEEP)

    return {-1: far(past + 1), 0: near(past), 1: near(1 - past), 2: far(2 - past)}


def changed_axes(attrs: Attrs, shape: Sequence[Any]) -> list[tuple[int, int, int, float | None]]:
    """(axis, size, count, scale) of the dimensions that are not copied as they are."""
    rows = zip(shape[2:], attrs["size"], attrs["scales"], strict=True)
    return [
        (axis, size, count, scale)
        for axis, (size, count, scale) in enumerate(rows, start=2)
        if size != count or scale not in (None, 1.0)
    ]


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 1 or types[0].rank != 2 + len(attrs["size"]) or types[0].rank < 3:
        raise GraphError(
            f"upsample to {attrs['size']} needs one [batch, channels, *S], got {types}"
        )
    if attrs["mode"] not in MODES or min(attrs["size"]) < 1:
        raise GraphError(f"upsample mode {attrs['mode']!r}; use one of {', '.join(MODES)}")
    if attrs["mode"] in TAPS and types[0].dtype not in FLOATS:
        raise GraphError(
            f"{attrs['mode']} upsampling needs floats, got {types[0].dtype}; cast it first"
        )


def _decompose(attrs: Attrs, x: Node) -> Node:
    for axis, size, count, scale in changed_axes(attrs, x.shape):
        if attrs["mode"] in TAPS:
            key = attrs["mode"], size, count, scale, attrs["align_corners"]
            small = size * count <= LARGEST_MATRIX
            x = along(x, matrix_of(*key), axis) if small else _tapped(x, taps_of(*key), axis)
        else:
            exact = attrs["mode"] == "nearest_exact"
            index = x.builder.constant(nearest_index(size, count, scale, exact))
            x = gather(x, index, axis)
    return x


def _tapped(x: Node, taps: Taps, axis: int) -> Node:
    """The same as a product with a matrix that nobody has room for."""
    beside = (1,) * (x.rank - axis - 1)
    parts = [
        gather(x, x.builder.constant(inputs), axis)
        * x.builder.constant(shares.reshape(-1, *beside).astype(numpy_dtype(x.dtype))).cast(x.dtype)
        for inputs, shares in zip(*taps, strict=True)
    ]
    return reduce(add, parts)


def _reference(attrs: Attrs, x: Array) -> Array:
    dtype = x.dtype
    for axis, size, count, scale in changed_axes(attrs, x.shape):
        if attrs["mode"] in TAPS:
            taps = taps_of(attrs["mode"], size, count, scale, attrs["align_corners"])
            beside = (1,) * (x.ndim - axis - 1)
            x = sum(
                np.take(x, inputs, axis) * shares.reshape(-1, *beside)
                for inputs, shares in zip(*taps, strict=True)
            )
        else:
            exact = attrs["mode"] == "nearest_exact"
            x = np.take(x, nearest_index(size, count, scale, exact), axis=axis)
    return np.asarray(x).astype(dtype)


register(
    OpDef(
        "upsample",
        same_dtype,
        _reference,
        check=_check,
        decompose=_decompose,
        flops=lambda call, box: (
            2 * box.elements * TAPS.get(call.attrs["mode"], 0) ** (len(box) - 2)
        ),
        on_images=True,
    )
)


def upsample(
    x: Node,
    *,
    size: int | Sequence[int] | None = None,
    scale: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Node:
    """x [N, C, *S] at another spatial size, as PyTorch's `interpolate` does it.

    Args:
        size: the new size; or else
        scale: outputs per input: sizes are ⌊S · scale⌋, and positions follow the scale itself.
        mode: "nearest", "nearest_exact", "linear" (bilinear, trilinear by the rank) or "cubic".
        align_corners: linear, cubic: the corner elements keep their values.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> upsample(GraphBuilder().input("x", (1, 2, 3, 3)), scale=2).shape
    (1, 2, 6, 6)
    """
    rank = x.rank - 2
    if (size is None) == (scale is None):
        raise GraphError("upsample needs either size= or scale=")
    if scale is None:
        assert size is not None
        sizes = per_axis(size, rank, "size")
        scales: tuple[float | None, ...] = (None,) * rank
    else:
        factors = (scale,) * rank if isinstance(scale, (int, float)) else tuple(scale)
        if len(factors) != rank:
            raise GraphError(f"scale={scale!r} has {len(factors)} entries for {rank} dimensions")
        sizes = tuple(int(n * f) for n, f in zip(x.shape[2:], factors, strict=True))
        scales = tuple(1.0 / f for f in factors)
    return x.builder.apply(
        "upsample", x, size=sizes, scales=scales, mode=mode, align_corners=align_corners
    )


def upsample_nearest(x: Node, scale: int) -> Node:
    """Every element `scale` times in each spatial dimension."""
    return upsample(x, scale=float(scale))
