"""Pools: the largest, or the sum, of a sliding window of x [N, C, *S]; means by a count.

Padding belongs to no window: it is −∞ to a maximum and 0 to a sum. An average is a sum times
the reciprocal of how many elements its window counts, which is a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.memo import once_each
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around
from tgbench.graph.dims import is_symbolic
from tgbench.graph.graph import Node
from tgbench.graph.op_table import (
    FLOATS,
    Array,
    Attrs,
    Call,
    OpDef,
    TensorType,
    numpy_dtype,
    register,
    same_dtype,
)
from tgbench.graph.ops.images.windows import Windows, combined, overhangs, per_axis
from tgbench.graph.ops.reduce import mean


def pool_windows(attrs: Attrs, shape: Sequence[Any]) -> list[Windows]:
    """The windows of each spatial dimension."""
    rows = zip(
        shape[2:],
        attrs["count"],
        attrs["kernel"],
        attrs["stride"],
        attrs["dilation"],
        attrs["low"],
        strict=True,
    )
    return [Windows(*row) for row in rows]


@once_each
def _windows(call: Call) -> list[Windows]:
    return pool_windows(call.attrs, call.in_shapes[0])


def _check(name: str) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        if len(types) != 1 or types[0].rank != 2 + len(attrs["kernel"]):
            raise GraphError(f"{name} takes one [batch, channels, *dimensions], got {types}")
        if types[0].dtype == "bool":
            raise GraphError(f"{name} needs numbers, got bool; cast the input first")
        numbers = (*attrs["kernel"], *attrs["stride"], *attrs["dilation"], *attrs["count"])
        if min(numbers) < 1 or min(attrs["low"]) < 0:
            raise GraphError(f"{name} of {types[0]} with {dict(attrs)} has empty windows")
        for window in pool_windows(attrs, types[0].shape):
            room = window.size + 2 * window.low + window.stride
            first = (window.count - 1) * window.stride - window.low
            if is_symbolic(window.size):
                continue
            if window.span > room or first >= window.size:
                raise GraphError(
                    f"{name} of {types[0]} with {dict(attrs)} has windows that do not fit"
                )

    return check


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    shape = call.in_shapes[0]
    if regions[0] == Region.full(shape):
        return Region.full((*shape[:2], *call.attrs["count"]))
    boxes: list[Box] = []
    for box in regions[0]:
        reached = [w.reached(part) for w, part in zip(_windows(call), box[2:], strict=True)]
        boxes += combined(box[:2], reached)
    return around(*boxes)


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    parts = [w.read(part) for w, part in zip(_windows(call), box[2:], strict=True)]
    return (around(*combined(box[:2], parts)),)


def least(dtype: str) -> float | int:
    """The identity of a maximum."""
    if dtype in FLOATS:
        return float("-inf")
    return int(np.iinfo(numpy_dtype(dtype)).min)


def _reference(
    attrs: Attrs, x: Array, start: float, combine: Callable[[Array, Array], Array]
) -> Array:
    windows = pool_windows(attrs, x.shape)
    reach = [(w.count - 1) * w.stride + w.span for w in windows]
    pads = [(w.low, max(0, n - w.low - w.size)) for w, n in zip(windows, reach, strict=True)]
    padded = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=start)
    taps = []
    for tap in np.ndindex(*attrs["kernel"]):
        place = tuple(
            slice(k * w.dilation, k * w.dilation + (w.count - 1) * w.stride + 1, w.stride)
            for k, w in zip(tap, windows, strict=True)
        )
        taps.append(padded[(slice(None), slice(None), *place)])
    return np.asarray(reduce(combine, taps)).astype(x.dtype)


def _max_reference(attrs: Attrs, x: Array) -> Array:
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _reference(attrs, x, lowest, np.maximum)


def _flops(call: Call, box: Box) -> int:
    return box.elements * prod(call.attrs["kernel"])


for _name, _function in (
    ("max_pool", _max_reference),
    ("sum_pool", lambda attrs, x: _reference(attrs, x, 0, np.add)),
):
    register(
        OpDef(
            _name,
            same_dtype,
            _function,
            _forward,
            _needed,
            check=_check(_name),
            flops=_flops,
            place=lambda call, box: overhangs(_windows(call), box),
            on_images=True,
        )
    )


def _count(size: int, kernel: int, stride: int, dilation: int, pad: int, ceil_mode: bool) -> int:
    """How many windows; the last one of `ceil_mode` begins inside, or in the front padding."""
    room = size + 2 * pad - (kernel - 1) * dilation - 1
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + pad else count


def _pool(
    name: str, x: Node, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Node:
    rank = x.rank - 2
    taps = per_axis(kernel, rank, "kernel")
    steps = taps if stride is None else per_axis(stride, rank, "stride")
    pads = per_axis(padding, rank, "padding")
    apart = per_axis(dilation, rank, "dilation")
    rows = zip(x.shape[2:], taps, steps, apart, pads, strict=True)
    counts = tuple(_count(*row, ceil_mode) for row in rows)
    return x.builder.apply(
        name, x, kernel=taps, stride=steps, dilation=apart, low=pads, count=counts
    )


def max_pool(
    x: Node,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Node:
    """The largest element of each window of x [N, C, *S]; `stride` defaults to `kernel`.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> max_pool(GraphBuilder().input("x", (1, 2, 7, 7)), 3, stride=2, padding=1).shape
    (1, 2, 4, 4)
    """
    return _pool("max_pool", x, kernel, stride, padding, dilation, ceil_mode)


def avg_pool(
    x: Node,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The mean of each window of x [N, C, *S], padding counted among it or not."""
    total = _pool("sum_pool", x, kernel, stride, padding, 1, ceil_mode)
    pads = total.attrs["low"]
    counts = [
        _counted(window, pad, count_include_pad)
        for window, pad in zip(pool_windows(total.attrs, x.shape), pads, strict=True)
    ]
    numbers = reduce(np.multiply.outer, counts)
    share = (1 / numbers).astype(numpy_dtype(x.dtype))
    if (share == share.flat[0]).all():
        return total * float(1 / numbers.flat[0])
    return total * x.builder.constant(share).cast(x.dtype)


def _counted(window: Windows, pad: int, with_padding: bool) -> Array:
    """How many elements each window of a dimension counts."""
    first = np.arange(window.count) * window.stride - pad
    stop = first + window.kernel
    if with_padding:
        return np.asarray(np.minimum(stop, window.size + pad) - first)
    return np.asarray(np.minimum(stop, window.size) - np.maximum(first, 0))


def adaptive_avg_pool(x: Node, size: int | Sequence[int | None]) -> Node:
    """Means over equal parts of each dimension of x [N, C, *S], `size` of them.

    Window i is [⌊i·S/n⌋, ⌈(i+1)·S/n⌉); None keeps a dimension.
    """
    shape = x.shape[2:]
    given = (size,) * len(shape) if isinstance(size, int) else tuple(size)
    wanted = [n if part is None else part for n, part in zip(shape, given, strict=True)]
    if all(n == 1 for n in wanted):
        return mean(x, range(2, x.rank), keepdims=True)
    if all(n % part == 0 for n, part in zip(shape, wanted, strict=True)):
        kernel = [n // part for n, part in zip(shape, wanted, strict=True)]
        return x if max(kernel) == 1 else avg_pool(x, kernel)
    for axis, (n, part) in enumerate(zip(shape, wanted, strict=True), start=2):
        if n != part:
            x = along(x, _parts(n, part), axis)
    return x


def _parts(size: int, parts: int) -> Array:
    """[parts, size]: the matrix of the means."""
    matrix = np.zeros((parts, size))
    for i in range(parts):
        first, stop = i * size // parts, -(-(i + 1) * size // parts)
        matrix[i, first:stop] = 1 / (stop - first)
    return matrix


def along(x: Node, matrix: Array, axis: int) -> Node:
    """`matrix` [out, in], a constant, times the vectors of `x` along an axis."""
    left = axis == x.rank - 2
    numbers = (matrix if left else matrix.T).astype(numpy_dtype(x.dtype))
    constant = x.builder.constant(numbers).cast(x.dtype)
    if left:
        return constant @ x
    if axis == x.rank - 1:
        return x @ constant
    return (x.transpose(axis, -1) @ constant).transpose(axis, -1)
