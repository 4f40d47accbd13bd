"""Convolutions and transposed convolutions over one to three dimensions, in groups.

    conv             x [N, C, *S], weight [O, C/groups, *K], bias [O]     → [N, O, *S']
    conv_transpose   x [N, C, *S], weight [C, O/groups, *K], bias [O]     → [N, O, *S']

What a changed box reaches is, in every dimension, the windows that hold a part of it
(`windows.Windows`); channels stay in their groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import numpy as np

from tgbench.base.coords import value_of
from tgbench.base.errors import GraphError
from tgbench.base.memo import once_each
from tgbench.base.regions import Box, Interval, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node
from tgbench.graph.op_table import (
    FLOATS,
    Array,
    Attrs,
    Call,
    Dim,
    OpDef,
    TensorType,
    register,
    same_dtype,
)
from tgbench.graph.ops.images.windows import (
    Pads,
    Windows,
    ceil_div,
    combined,
    overhangs,
    pads_of,
    per_axis,
)

Shape = tuple[Dim, ...]


# --- what both share -----------------------------------------------------------------------------


def _check(name: str, attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) not in (2, 3):
        raise GraphError(f"{name} takes x, a weight and maybe a bias, got {len(types)} inputs")
    x, weight = types[:2]
    if not 3 <= x.rank <= 5 or weight.rank != x.rank or x.dtype not in FLOATS:
        raise GraphError(
            f"{name} of {x} by {weight}: x is floats [batch, channels, 1 to 3 dimensions] and the "
            "weight of the same rank; reshape or cast them"
        )
    numbers = (*attrs["stride"], *attrs["dilation"], attrs["groups"])
    pads = [n for pair in attrs["padding"] for n in pair]
    if min(numbers) < 1 or min(pads) < 0:
        raise GraphError(f"{name} needs stride, dilation, groups ≥ 1 and padding ≥ 0, got {attrs}")


def _channels_check(
    name: str, x: TensorType, weight: TensorType, bias: Sequence[TensorType], groups: int,
    inputs: Dim, outputs: Dim,
) -> None:  # fmt: skip
    if x.shape[1] != inputs or outputs % groups or inputs % groups:
        raise GraphError(
            f"{name} of {x} by {weight} in {groups} groups: x needs {inputs} channels, and "
            f"{groups} must divide them and the {outputs} outputs"
        )
    if bias and bias[0].shape != (outputs,):
        raise GraphError(f"{name} by {weight} needs a bias [{outputs}], got {bias[0]}")


def _grouped(interval: Interval, before: int, after: int) -> Interval:
    """The channels of the groups that an interval of channels touches, on the other side."""
    start, stop = interval
    return start // before * after, ceil_div(stop, before) * after


# --- conv ----------------------------------------------------------------------------------------


def conv_windows(attrs: Attrs, x: Shape, weight: Shape) -> list[Windows]:
    """The windows of each spatial dimension."""
    found = []
    rows = zip(x[2:], weight[2:], attrs["stride"], attrs["dilation"], attrs["padding"], strict=True)
    for size, kernel, stride, dilation, (low, high) in rows:
        count = (size + low + high - (kernel - 1) * dilation - 1) // stride + 1
        found.append(Windows(size, count, kernel, stride, dilation, low))
    return found


@once_each
def _windows(call: Call) -> list[Windows]:
    return conv_windows(call.attrs, *call.in_shapes[:2])


def _conv_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _check("conv", attrs, types)
    (x, weight), groups = types[:2], attrs["groups"]
    inputs, outputs = weight.shape[1] * groups, weight.shape[0]
    _channels_check("conv", x, weight, types[2:], groups, inputs, outputs)
    for window in conv_windows(attrs, x.shape, weight.shape):
        if isinstance(window.count, int) and window.count < 1:
            raise GraphError(f"conv of {x}: a window of {window.span} is wider than the padded x")


def _conv_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    x, weight = call.in_shapes[:2]
    windows, groups = _windows(call), call.attrs["groups"]
    space: list[Interval] = [(0, window.count) for window in windows]
    batch: Interval = (0, x[0])
    if regions[0] == Region.full(x):
        return Region.full((x[0], weight[0], *(window.count for window in windows)))
    boxes: list[Box] = []
    for box in regions[0]:
        outputs = _grouped(box[1], x[1] // groups, weight[0] // groups)
        reached = [window.reached(part) for window, part in zip(windows, box[2:], strict=True)]
        boxes += combined((box[0], outputs), reached)
    for region in regions[1:]:
        boxes += [Box((batch, box[0], *space)) for box in region]
    return around(*boxes)


def _conv_needed(call: Call, box: Box) -> tuple[Region, ...]:
    x, weight = call.in_shapes[:2]
    groups, outputs = call.attrs["groups"], box[1]
    inputs = _grouped(outputs, weight[0] // groups, x[1] // groups)
    parts = [window.read(part) for window, part in zip(_windows(call), box[2:], strict=True)]
    return around(*combined((box[0], inputs), parts)), *_weights(call, outputs)


@once_each
def _weights(call: Call, outputs: Interval) -> tuple[Region, ...]:
    """The weights, and the bias, of these channels: most boxes hold all of them."""
    shapes = call.in_shapes[1:]
    return tuple(Region((Box((outputs, *((0, n) for n in shape[1:]))),)) for shape in shapes)


def _padded(x: Array, pads: Pads) -> Array:
    return np.pad(x, ((0, 0), (0, 0), *pads))


def _patches(x: Array, windows: Sequence[Windows]) -> Array:
    """[N, C, *count, *kernel]: every window of a padded array, as a view."""
    steps = x.strides[2:]
    strides = [s * w.stride for s, w in zip(steps, windows, strict=True)]
    taps = [s * w.dilation for s, w in zip(steps, windows, strict=True)]
    shape = (*x.shape[:2], *(w.count for w in windows), *(w.kernel for w in windows))
    return np.lib.stride_tricks.as_strided(x, shape, (*x.strides[:2], *strides, *taps))


def _conv_reference(attrs: Attrs, x: Array, weight: Array, *bias: Array) -> Array:
    windows, groups = conv_windows(attrs, x.shape, weight.shape), attrs["groups"]
    rank = len(windows)
    patches = _patches(_padded(x, attrs["padding"]), windows)
    pieces = []
    for cut, rows in zip(
        np.split(patches, groups, axis=1), np.split(weight, groups, axis=0), strict=True
    ):
        taps = [2 + rank + i for i in range(rank)]
        pieces.append(np.tensordot(cut, rows, ([1, *taps], [1, *(2 + i for i in range(rank))])))
    result = np.moveaxis(np.concatenate(pieces, axis=-1), -1, 1)
    return _biased(result.astype(x.dtype), bias)


def _biased(result: Array, bias: tuple[Array, ...]) -> Array:
    if not bias:
        return result
    return np.asarray(result + bias[0].reshape(-1, *([1] * (result.ndim - 2))))


def _conv_place(call: Call, box: Box) -> Hashable:
    return box[1], overhangs(_windows(call), box)


def _conv_flops(call: Call, box: Box) -> int:
    return 2 * box.elements * prod(int(n) for n in call.in_shapes[1][1:])


register(
    OpDef(
        "conv",
        same_dtype,
        _conv_reference,
        _conv_forward,
        _conv_needed,
        check=_conv_check,
        flops=_conv_flops,
        multiplies=True,
        rounds=True,
        place=_conv_place,
        on_images=True,
        streams=lambda call: (1,),
        cancels=_conv_reference,
    )
)


def _same(kernel: int, dilation: int) -> tuple[int, int]:
    total = (kernel - 1) * dilation
    return total // 2, total - total // 2


def conv(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """A convolution (cross-correlation) of x [N, C, *S] by weight [O, C/groups, *K].

    `padding`: zeros on both sides, per dimension a number or (in front, behind); "valid" for
    none; "same" for as many as keep the size at stride 1, the odd one behind.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> conv(g.input("x", (1, 3, 8, 8)), g.parameter("w", (4, 3, 3, 3)), padding=1).shape
    (1, 4, 8, 8)
    """
    rank = weight.rank - 2
    steps = per_axis(dilation, rank, "dilation")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise GraphError(f"padding={padding!r}; use 'same', 'valid' or numbers")
        wide = padding == "same"
        pads: Pads = tuple(
            _same(kernel, step) if wide else (0, 0)
            for kernel, step in zip(weight.shape[2:], steps, strict=True)
        )
    else:
        pads = pads_of(padding, rank)
    return x.builder.apply(
        "conv",
        x,
        weight,
        *(() if bias is None else (bias,)),
        stride=per_axis(stride, rank, "stride"),
        padding=pads,
        dilation=steps,
        groups=groups,
    )


# --- conv_transpose: the windows turned round -----------------------------------------------------


def turned_windows(attrs: Attrs, x: Shape, weight: Shape) -> list[Windows]:
    """Per spatial dimension, windows whose *outputs* are the inputs of the convolution."""
    found = []
    rows = zip(
        x[2:],
        weight[2:],
        attrs["stride"],
        attrs["dilation"],
        attrs["padding"],
        attrs["output_padding"],
        strict=True,
    )
    for size, kernel, stride, dilation, (low, high), extra in rows:
        result = (size - 1) * stride + (kernel - 1) * dilation + 1 - low - high + extra
        found.append(Windows(result, size, kernel, stride, dilation, low))
    return found


@once_each
def _turned(call: Call) -> list[Windows]:
    return turned_windows(call.attrs, *call.in_shapes[:2])


def _transpose_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _check("conv_transpose", attrs, types)
    (x, weight), groups = types[:2], attrs["groups"]
    outputs = weight.shape[1] * groups
    _channels_check("conv_transpose", x, weight, types[2:], groups, weight.shape[0], outputs)
    for window, extra in zip(
        turned_windows(attrs, x.shape, weight.shape), attrs["output_padding"], strict=True
    ):
        if not 0 <= extra < max(window.stride, window.dilation):
            raise GraphError(f"output_padding {extra} must be less than stride or dilation")
        if isinstance(window.size, int) and window.size < 1:
            raise GraphError(f"conv_transpose of {x}: the padding removes the whole result")


def _transpose_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    x, weight = call.in_shapes[:2]
    windows, groups = _turned(call), call.attrs["groups"]
    outputs = weight[1] * groups
    space: list[Interval] = [(0, window.size) for window in windows]
    batch: Interval = (0, x[0])
    if regions[0] == Region.full(x):
        return Region.full((x[0], outputs, *(window.size for window in windows)))
    boxes: list[Box] = []
    for box in regions[0]:
        channels = _grouped(box[1], x[1] // groups, weight[1])
        reached = [window.read(part) for window, part in zip(windows, box[2:], strict=True)]
        boxes += combined((box[0], channels), reached)
    for box in regions[1]:
        boxes += [Box((batch, channels, *space)) for channels in _written(box, weight, groups)]
    for region in regions[2:]:
        boxes += [Box((batch, box[0], *space)) for box in region]
    return around(*boxes)


def _written(box: Box, weight: Shape, groups: int) -> list[Interval]:
    """The output channels that a part of the weight writes."""
    per_group = weight[0] // groups
    first, stop = int(box[0][0]) // per_group, -(-int(box[0][1]) // per_group)
    return [(g * weight[1] + box[1][0], g * weight[1] + box[1][1]) for g in range(first, stop)]


def _transpose_needed(call: Call, box: Box) -> tuple[Region, ...]:
    x, weight = call.in_shapes[:2]
    groups = call.attrs["groups"]
    inputs = _grouped(box[1], weight[1], x[1] // groups)
    parts = [window.reached(part) for window, part in zip(_turned(call), box[2:], strict=True)]
    columns: Interval = (0, weight[1]) if groups > 1 else box[1]
    taps = tuple((0, n) for n in weight[2:])
    rest = [Region((Box((inputs, columns, *taps)),))]
    if len(call.in_shapes) > 2:
        rest.append(Region((Box((box[1],)),)))
    return around(*combined((box[0], inputs), parts)), *rest


def _transpose_reference(attrs: Attrs, x: Array, weight: Array, *bias: Array) -> Array:
    windows, groups = turned_windows(attrs, x.shape, weight.shape), attrs["groups"]
    whole = [(w.count - 1) * w.stride + w.span for w in windows]
    ends = [max(w.low + w.size, n) for w, n in zip(windows, whole, strict=True)]
    result = np.zeros((x.shape[0], weight.shape[1] * groups, *ends), dtype=x.dtype)
    per_group = x.shape[1] // groups
    for tap in np.ndindex(*weight.shape[2:]):
        place = tuple(
            slice(k * w.dilation, k * w.dilation + (w.count - 1) * w.stride + 1, w.stride)
            for k, w in zip(tap, windows, strict=True)
        )
        for g in range(groups):
            rows = slice(g * per_group, (g + 1) * per_group)
            columns = slice(g * weight.shape[1], (g + 1) * weight.shape[1])
            part = np.tensordot(x[:, rows], weight[(rows, slice(None), *tap)], ([1], [0]))
            result[(slice(None), columns, *place)] += np.moveaxis(part, -1, 1)
    inside = tuple(slice(w.low, w.low + w.size) for w in windows)
    return _biased(np.ascontiguousarray(result[(slice(None), slice(None), *inside)]), bias)


def _transpose_flops(call: Call, box: Box) -> int:
    """Every input element that is read, times its weights of the output channels in the box."""
    weight = call.in_shapes[1]
    read, columns = _transpose_needed(call, box)[0].elements, box[1][1] - box[1][0]
    outputs = min(value_of(columns), int(weight[1]))
    return 2 * read * outputs * prod(int(n) for n in weight[2:])


register(
    OpDef(
        "conv_transpose",
        same_dtype,
        _transpose_reference,
        _transpose_forward,
        _transpose_needed,
        check=_transpose_check,
        flops=_transpose_flops,
        multiplies=True,
        on_images=True,
        streams=lambda call: (1,),
    )
)


def conv_transpose(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[Any] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """A transposed convolution of x [N, C, *S] by weight [C, O/groups, *K], as PyTorch defines it.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> conv_transpose(g.input("x", (1, 3, 8)), g.parameter("w", (3, 4, 2)), stride=2).shape
    (1, 4, 16)
    """
    rank = weight.rank - 2
    return x.builder.apply(
        "conv_transpose",
        x,
        weight,
        *(() if bias is None else (bias,)),
        stride=per_axis(stride, rank, "stride"),
        padding=pads_of(padding, rank),
        output_padding=per_axis(output_padding, rank, "output_padding"),
        dilation=per_axis(dilation, rank, "dilation"),
        groups=groups,
    )
