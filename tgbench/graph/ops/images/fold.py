"""Columns put back where windows took them from: `fold`, as PyTorch's.

    out[y, x] = Σ columns[i, j, r, c]   over windows r, c whose tap i, j stands there

Each tap alone is a map of single elements, so the rules go tap by tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Interval, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Array, Attrs, Call, OpDef, TensorType, register, same_dtype
from tgbench.graph.ops.images.windows import Windows, combined, per_axis


def tap_windows(attrs: Attrs, columns: Sequence[int], tap: Sequence[int]) -> list[Windows]:
    """Per spatial dimension, where one tap of each window stands in the image."""
    rows = zip(
        attrs["size"], columns[4:], tap, attrs["stride"], attrs["padding"], attrs["dilation"],
        strict=True,
    )  # fmt: skip
    return [
        Windows(size, count, 1, stride, 1, low - k * dilation)
        for size, count, k, stride, low, dilation in rows
    ]


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 1 or types[0].rank != 6 or types[0].dtype == "bool":
        raise GraphError(
            f"fold needs numbers [batch, channels, taps, taps, windows, windows], got {types}"
        )
    counts = window_counts(
        attrs["size"], types[0].shape[2:4], attrs["stride"], attrs["padding"], attrs["dilation"]
    )
    if types[0].shape[4:] != counts:
        raise GraphError(f"fold to {attrs['size']} takes {counts} windows, got {types[0]}")


def window_counts(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """How many windows an image of this size has, in each dimension."""
    rows = zip(size, kernel, stride, padding, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows)


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    columns = call.in_shapes[0]
    if regions[0] == Region.full(columns):
        return Region.full((*columns[:2], *call.attrs["size"]))
    boxes: list[Box] = []
    for box in regions[0]:
        for tap in product(_numbers(box[2]), _numbers(box[3])):
            windows = tap_windows(call.attrs, columns, tap)
            places = [window.read(part) for window, part in zip(windows, box[4:], strict=True)]
            boxes += combined(box[:2], places)
    return around(*boxes)


def _numbers(interval: Interval) -> range:
    return range(int(interval[0]), int(interval[1]))


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    columns, boxes = call.in_shapes[0], list[Box]()
    for tap in np.ndindex(*columns[2:4]):
        windows = tap_windows(call.attrs, columns, tap)
        read = [window.reached(part) for window, part in zip(windows, box[2:], strict=True)]
        boxes += combined((*box[:2], *((k, k + 1) for k in tap)), read)
    return (around(*boxes),)


def _reference(attrs: Attrs, columns: Array) -> Array:
    steps = list(zip(attrs["stride"], attrs["dilation"], attrs["padding"], strict=True))
    taps, counts = columns.shape[2:4], columns.shape[4:]
    whole = [
        max(p + n, (count - 1) * s + (k - 1) * d + 1)
        for n, count, k, (s, d, p) in zip(attrs["size"], counts, taps, steps, strict=True)
    ]
    result = np.zeros((*columns.shape[:2], *whole), columns.dtype)
    for tap in np.ndindex(*taps):
        place = tuple(
            slice(k * d, k * d + (count - 1) * s + 1, s)
            for k, count, (s, d, _) in zip(tap, counts, steps, strict=True)
        )
        result[(slice(None), slice(None), *place)] += columns[:, :, tap[0], tap[1]]
    inside = tuple(slice(p, p + n) for n, (_, _, p) in zip(attrs["size"], steps, strict=True))
    return np.ascontiguousarray(result[(slice(None), slice(None), *inside)])


register(
    OpDef(
        "fold",
        same_dtype,
        _reference,
        _forward,
        _needed,
        check=_check,
        flops=lambda call, box: box.elements * prod(call.in_shapes[0][2:4]),
        on_images=True,
        cancels=_reference,
    )
)


def fold(
    columns: Node,
    size: int | Sequence[int],
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
) -> Node:
    """Columns [N, C · taps, windows] as an image [N, C, *size]: what windows share is added up.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> fold(GraphBuilder().input("x", (1, 8, 9)), (4, 4), kernel=2).shape
    (1, 2, 4, 4)
    """
    sizes, taps = per_axis(size, 2, "size"), per_axis(kernel, 2, "kernel")
    attrs: dict[str, Any] = {
        "stride": per_axis(stride, 2, "stride"),
        "padding": per_axis(padding, 2, "padding"),
        "dilation": per_axis(dilation, 2, "dilation"),
    }
    counts = window_counts(sizes, taps, **attrs)
    if columns.rank != 3 or columns.shape[1] % prod(taps) or columns.shape[2] != prod(counts):
        raise GraphError(
            f"fold to {sizes} with windows of {taps} needs [batch, channels · {prod(taps)}, "
            f"{prod(counts)}], got {columns.type}"
        )
    channels = columns.shape[1] // prod(taps)
    split = columns.reshape(columns.shape[0], channels, *taps, *counts)
    return split.builder.apply("fold", split, size=sizes, **attrs)
