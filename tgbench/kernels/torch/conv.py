"""Convolutions on slices, by the library's own convolution of the input box with its halo.

    conv            the box and its halo, padded by the convolution where both borders are alike,
                    else copied into zeroed scratch
    conv_rows       few output points: their windows as rows of scratch, and a linear layer's kernel
    conv_taps       one channel per group: the output plus one tap after another, nothing copied
    conv_transpose  the scattered product of the input box, cut to the output box

The costs are a model of one machine; records replace them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import Coord, larger, moves_freely, number, same, smaller, value_of
from tgbench.base.regions import Box
from tgbench.graph.op_table import ITEMSIZE, OPS, Call, TensorType
from tgbench.graph.ops.images.conv import conv_windows, turned_windows
from tgbench.graph.ops.images.windows import Windows, ceil_div
from tgbench.kernels.registry import Kernel, Scratch, Site, View, candidates, register
from tgbench.kernels.torch import products  # noqa: F401  (the kernels of linear)
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.views import Bound, dense, inputs, is_complete, reshaped, whole_reads

CONV_NS = 5_000.0
GROUPS_NS = 35_000.0
FLOPS_PER_NS = 150.0
WEIGHT_BYTES_PER_NS = 6.0  # the library lays the weights out anew at every call
LARGE_BYTES = 3 << 20  # weights that the library takes longer to turn than the slice of an image
MOST_POINTS = 12  # output points that are computed as rows of a linear layer
MOST_TAPS = 9
_FUNCTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


# --- what a site looks like ----------------------------------------------------------------------


def _windows(site: Site) -> list[Windows]:
    return conv_windows(site.call.attrs, *site.call.in_shapes[:2])


def _spatial(views: View) -> tuple[Coord, ...]:
    return views.shape[2:]


def overhang(site: Site, windows: Sequence[Windows] = ()) -> list[tuple[Coord, Coord]]:
    """How far the windows of the output box reach over each side of the input box; both ends of a
    table where that is another number elsewhere in a sweep.

    Args:
        windows: of each spatial dimension; those of a convolution if left out.
    """
    box = whole_reads(site)[0]
    assert box is not None
    found = []
    for window, have, outputs in zip(
        windows or _windows(site), box[2:], site.out_box[2:], strict=True
    ):
        first, stop = window.extent(outputs)
        found.append((number(have[0] - first), number(stop - have[1])))
    return found


def is_ragged(margins: Sequence[tuple[Coord, Coord]]) -> bool:
    """Whether how far windows reach over differs from place to place."""
    return any(type(margin) is not int for pair in margins for margin in pair)


def sees_input(site: Site) -> bool:
    return is_complete(site) and whole_reads(site)[0] is not None


def _sees_padding(site: Site) -> bool:
    return is_complete(site) and whole_reads(site)[0] is None


def _segments(site: Site, per_group: int) -> list[tuple[int, int, int]]:
    """(first output channel, how many, groups): a cut group by itself, whole ones together."""
    if site.call.attrs["groups"] == 1:
        return [(0, -1, 1)]
    start, stop = int(site.out_box[1][0]), int(site.out_box[1][1])
    first, last = -(-start // per_group), stop // per_group
    if last < first:
        return [(0, stop - start, 1)]
    pieces = [
        (start, first * per_group, 1),
        (first * per_group, last * per_group, last - first),
        (last * per_group, stop, 1),
    ]
    return [(a - start, b - a, groups) for a, b, groups in pieces if a < b]


def _cut(view: View, axis: int, first: Coord, count: Coord) -> View:
    return view if same(count, -1) else view.narrow(axis, first, count)


# --- conv ----------------------------------------------------------------------------------------


def _conv_cost(site: Site) -> float:
    flops = site.call.op.flops(site.call, site.out_box)
    weights = site.operand(1).size_bytes / WEIGHT_BYTES_PER_NS
    moved = site.out.size_bytes + (site.ins[0].size_bytes if site.ins[0] is not None else 0)
    groups = GROUPS_NS if site.call.attrs["groups"] > 1 else 0.0
    return CONV_NS + groups + flops / FLOPS_PER_NS + weights + 2 * moved / BYTES_PER_NS


def conv_allocates(site: Site) -> int:
    return site.out.size_bytes + (site.ins[0].size_bytes if site.ins[0] is not None else 0)


def pad(padded: Tensor | None, inside: Tensor | None, x: Tensor | None) -> None:
    """Copy a box to where zeros are around it; with nothing given, do nothing."""
    if padded is not None and inside is not None and x is not None:
        padded.zero_()
        inside.copy_(x)


def _conv(
    function: Any, turns: bool, padded: Tensor | None, inside: Tensor | None, x: Tensor | None,
    count: int, *rest: Any,
) -> None:  # fmt: skip
    pad(padded, inside, x)
    for i in range(count):
        source, weight, bias, stride, padding, dilation, groups, out = rest[8 * i : 8 * i + 8]
        if turns:
            source = source.contiguous()
        out.copy_(function(source, weight, bias, stride, padding, dilation, groups))


def is_even(margins: Sequence[tuple[Coord, Coord]]) -> bool:
    """Whether windows reach as far over both sides, wherever they are."""
    return all(low == high for low, high in margins) and not is_ragged(margins)


def padded_scratch(site: Site) -> tuple[Scratch, ...]:
    """Room for the padded box, channels-last where the box is: other orders are other bits."""
    margins = overhang(site)
    if is_even(margins):
        return ()
    x = inputs(site)[0]
    space = padded_space(x, margins)
    batch, channels = x.shape[:2]
    shape = (batch, *space, channels) if _is_channels_last(x) else (batch, channels, *space)
    return ((shape, x.dtype),)


def padded_space(x: View, margins: Sequence[tuple[Coord, Coord]]) -> list[Coord]:
    """How large a box is with what is around it: a number, wherever it stands."""
    return [n + low + high for n, (low, high) in zip(_spatial(x), margins, strict=True)]


def _is_channels_last(x: View) -> bool:
    return x.rank > 2 and same(x.strides[1], 1) and not same(x.shape[1], 1)


def _padded_view(x: View, room: View) -> View:
    """The room that `padded_scratch` asked for, in the order of dimensions of the box."""
    return room.permute(0, -1, *range(1, x.rank - 1)) if _is_channels_last(x) else room


def within(padded: View, margins: Sequence[tuple[Coord, Coord]], shape: Sequence[Coord]) -> View:
    """Where the box lies in it."""
    for axis, (low, _) in enumerate(margins, start=2):
        padded = padded.narrow(axis, low, shape[axis])
    return padded


@dataclass(frozen=True, slots=True)
class Halo:
    """The box that a convolution reads, and the padding that the library adds on both sides.

    Fields:
        copied: what `pad` is given first: the room with zeros, its inside, and the box.
    """

    source: View
    padding: tuple[int, ...]
    copied: tuple[View | None, View | None, View | None]

    @staticmethod
    def of(site: Site, scratch: tuple[View, ...]) -> Halo:
        x, margins = inputs(site)[0], overhang(site)
        if not scratch:
            return Halo(x, tuple(int(low) for low, _ in margins), (None, None, None))
        room = _padded_view(x, scratch[0])
        return Halo(room, (0,) * len(margins), (room, within(room, margins, x.shape), x))


def strides_at(site: Site) -> tuple[int, ...]:
    """1 where there is one window: oneDNN 3.12 gives garbage for it in bfloat16 otherwise."""
    strides = site.call.attrs["stride"]
    return tuple(1 if same(n, 1) else s for n, s in zip(site.out.shape[2:], strides, strict=True))


def _bind_conv(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, weight, *bias = inputs(site)
    attrs, halo = site.call.attrs, Halo.of(site, scratch)
    calls: list[Any] = []
    outputs, width = site.call.in_shapes[1][0] // attrs["groups"], site.call.in_shapes[1][1]
    segments = _segments(site, outputs)
    channel = 0
    for first, count, groups in segments:
        calls += [
            _cut(halo.source, 1, channel, -1 if count < 0 else groups * width),
            _cut(weight, 0, first, count),
            _cut(bias[0], 0, first, count) if bias else None,
            strides_at(site), halo.padding, attrs["dilation"], groups,
            _cut(site.out, 1, first, count),
        ]  # fmt: skip
        channel += groups * width
    turns = _is_channels_last(x) and site.call.inputs[1].size_bytes > LARGE_BYTES
    return _conv, (_FUNCTIONS[len(halo.padding)], turns, *halo.copied, len(segments), *calls)


register(
    Kernel(
        "conv", "conv", sees_input, _conv_cost, _bind_conv, padded_scratch,
        allocates=conv_allocates,
    )
)  # fmt: skip


# --- only padding in sight -----------------------------------------------------------------------


def only_bias(bias: Tensor | None, out: Tensor) -> None:
    """What there is without an image."""
    if bias is None:
        out.zero_()
    else:
        out.copy_(bias)


def _spread_bias(site: Site) -> View | None:
    if len(site.ins) < 3:
        return None
    bias = inputs(site)[-1] if sees_input(site) else site.operand(2)
    for _ in site.out.shape[2:]:
        bias = bias.insert(bias.rank)
    return bias


def _bind_bias(site: Site, scratch: tuple[View, ...]) -> Bound:
    return only_bias, (_spread_bias(site), site.out)


for _name in ("conv", "conv_transpose"):
    register(
        Kernel(
            f"{_name}_of_padding",
            _name,
            _sees_padding,
            lambda site: CALL_NS + site.out.size_bytes / BYTES_PER_NS,
            _bind_bias,
        )
    )


# --- few output points: rows of a linear layer ---------------------------------------------------


def _points(site: Site) -> int:
    return site.out.elements // value_of(site.out.shape[1])


def _takes_rows(site: Site) -> bool:
    if site.call.attrs["groups"] != 1 or not sees_input(site) or _points(site) > MOST_POINTS:
        return False
    weight = inputs(site)[1]
    return weight.flatten(1, weight.rank) is not None


@cache
def _linear_call(dtype: str, rows: int, depth: int, columns: int, with_bias: bool) -> Call:
    types = [TensorType((rows, depth), dtype), TensorType((columns, depth), dtype)]
    if with_bias:
        types.append(TensorType((columns,), dtype))
    out, facts = TensorType((rows, columns), dtype), (None,) * len(types)
    return Call(OPS["linear"], {}, tuple(types), out, facts)


def _row_shapes(site: Site) -> tuple[Scratch, ...]:
    """The padded box, the windows as rows, and the result as rows."""
    _, weight, *_ = inputs(site)
    points = int(prod(int(n) for n in (site.out.shape[0], *_spatial(site.out))))
    depth = prod(int(n) for n in weight.shape[1:])
    rows: list[Scratch] = [((points, depth), weight.dtype)]
    if not _is_row(site):
        rows.append(((points, int(site.out.shape[1])), weight.dtype))
    return (*_padded_scratch_any(site), *rows)


def _padded_scratch_any(site: Site) -> tuple[Scratch, ...]:
    """A padded copy is only wanted where there is padding."""
    margins = overhang(site)
    if not (is_ragged(margins) or any(n for pair in margins for n in pair)):
        return ()
    x = inputs(site)[0]
    return (((*x.shape[:2], *padded_space(x, margins)), x.dtype),)


def _is_row(site: Site) -> bool:
    """Whether the result is one row as it lies."""
    return _points(site) == 1 and all(same(n, 1) for n in (site.out.shape[0], *_spatial(site.out)))


def _linear_site(site: Site, rows: View, result: View) -> Site:
    _, weight, *bias = inputs(site)
    flat = weight.flatten(1, weight.rank)
    assert flat is not None
    points, depth, columns = int(rows.shape[0]), int(rows.shape[1]), int(flat.shape[0])
    call = _linear_call(site.out.dtype, points, depth, columns, bool(bias))
    boxes: list[Box | None] = [Box.full((points, depth)), Box.full((columns, depth))]
    if bias:
        boxes.append(Box.full((columns,)))
    ins: list[View | None] = [rows, flat, *bias]
    whole = Box.full((points, columns))
    return Site(call, whole, tuple(boxes), result, tuple(ins), site.device)


def _result_view(site: Site, scratch: Sequence[View]) -> View:
    if not _is_row(site):
        return scratch[-1]
    out = site.out
    while out.rank > 2:
        out = out.select(out.rank - 1, 0)
    return out


def _row_views(site: Site, scratch: Sequence[View]) -> tuple[View, View]:
    at = len(_padded_scratch_any(site))
    return scratch[at], _result_view(site, scratch[: at + 2])


def _rows_scratch(site: Site) -> tuple[Scratch, ...]:
    own = _row_shapes(site)
    placed = tuple(dense(shape, dtype) for shape, dtype in own)
    inner = _linear_site(site, *_row_views(site, placed))
    return (*own, *candidates(inner)[0].scratch(inner))


def _rows_cost(site: Site) -> float:
    own = _row_shapes(site)
    placed = tuple(dense(shape, dtype) for shape, dtype in own)
    inner = _linear_site(site, *_row_views(site, placed))
    moved = placed[-1].size_bytes + placed[0].size_bytes
    return candidates(inner)[0].cost_ns(inner) + 4 * CALL_NS + 4 * moved / BYTES_PER_NS


def _window_views(site: Site, source: View, rows: View) -> tuple[View, View]:
    """The windows of a padded box, and the same as they lie in the rows: [N, *S, C, *K]."""
    windows, rank = _windows(site), source.rank - 2
    steps = source.strides[2:]
    kernels = [w.kernel for w in windows]
    shape = (source.shape[0], *_spatial(site.out), source.shape[1], *kernels)
    strides = (
        source.strides[0],
        *(s * w.stride for s, w in zip(steps, windows, strict=True)),
        source.strides[1],
        *(s * w.dilation for s, w in zip(steps, windows, strict=True)),
    )
    assert len(shape) == 2 * rank + 2
    seen = View(source.buffer, source.dtype, shape, strides, source.offset)
    return seen, reshaped(rows, shape)


def _as_rows(
    padded: Tensor | None, inside: Tensor | None, x: Tensor, seen: Tensor, rows: Tensor,
    out: Tensor | None, result: Tensor | None, linear: Any, *arguments: Any,
) -> None:  # fmt: skip
    pad(padded, inside, x)
    rows.copy_(seen)
    linear(*arguments)
    if out is not None and result is not None:
        out.copy_(result)


def _bind_rows(site: Site, scratch: tuple[View, ...]) -> Bound:
    x = inputs(site)[0]
    own = len(_row_shapes(site))
    rows, result = _row_views(site, scratch[:own])
    inner = _linear_site(site, rows, result)
    function, arguments = candidates(inner)[0].bind(inner, scratch[own:])
    padded = inside = None
    source = x
    if _padded_scratch_any(site):
        padded = source = scratch[0]
        inside = within(padded, overhang(site), x.shape)
    out = turned = None
    if not _is_row(site):
        out = site.out
        shaped = reshaped(result, (out.shape[0], *_spatial(out), out.shape[1]))
        turned = shaped.permute(0, -1, *range(1, out.rank - 1))
    windows = _window_views(site, source, rows)
    return _as_rows, (padded, inside, x, *windows, out, turned, function, *arguments)


register(Kernel("conv_rows", "conv", _takes_rows, _rows_cost, _bind_rows, _rows_scratch))


# --- one channel per group: tap by tap -----------------------------------------------------------


def takes_taps(site: Site) -> bool:
    outputs, per_group, *kernel = site.call.in_shapes[1]
    alone = per_group == 1 and outputs == site.call.attrs["groups"]
    return alone and prod(kernel) <= MOST_TAPS and sees_input(site)


def _taps_cost(site: Site) -> float:
    taps = prod(site.call.in_shapes[1][2:])
    return (1 + taps) * (1.3 * CALL_NS + 3 * site.out.size_bytes / BYTES_PER_NS)


def tap_views(
    windows: Sequence[Windows], x: View, have: Box, out: View, box: Box
) -> list[tuple[tuple[int, ...], View, View]]:
    """For every tap: where it is, what it reads, and the outputs that find it inside the input.

    `have` and `box` are what x and out hold; nothing is returned for taps that see padding only.
    """
    ranges: list[list[tuple[int, Coord, Coord, Coord]]] = []
    for window, (low, high), (first, stop) in zip(windows, have[2:], box[2:], strict=True):
        found = []
        for tap in range(window.kernel):
            at = tap * window.dilation - window.low
            begin, end = _seen(first, stop, low - at, high - at, window.stride)
            if begin < end:
                found.append((tap, begin - first, end - begin, begin * window.stride + at - low))
        ranges.append(found)
    views = []
    for pick in product(*ranges):
        source, target = x, out
        for axis, ((_, place, count, start), window) in enumerate(
            zip(pick, windows, strict=True), start=2
        ):
            target = target.narrow(axis, place, count)
            source = stepped(source, axis, start, count, window.stride)
        views.append((tuple(tap for tap, *_ in pick), source, target))
    return views


def _seen(first: Coord, stop: Coord, low: Coord, high: Coord, stride: int) -> tuple[Coord, Coord]:
    """Those of the outputs for which low ≤ output · stride < high."""
    begin, end = first, stop
    is_free = any(map(moves_freely, (first, stop, low, high)))
    if is_free or first * stride < low:
        begin = larger(first, ceil_div(low, stride))
    if is_free or not (stop - 1) * stride < high:
        end = smaller(stop, ceil_div(high, stride))
    return begin, end


def stepped(view: View, axis: int, start: Coord, count: Coord, step: int) -> View:
    """Every `step`-th element along an axis."""
    view = view.narrow(axis, start, count)
    strides = (*view.strides[:axis], view.strides[axis] * step, *view.strides[axis + 1 :])
    return View(view.buffer, view.dtype, view.shape, strides, view.offset)


def _taps(out: Tensor, bias: Tensor | None, *rest: Tensor) -> None:
    if bias is None:
        out.zero_()
    else:
        out.copy_(bias)
    for i in range(0, len(rest), 3):
        rest[i].addcmul_(rest[i + 1], rest[i + 2])


def _bind_taps(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, weight, *_ = inputs(site)
    have = whole_reads(site)[0]
    assert have is not None
    arguments: list[View] = []
    for tap, source, target in tap_views(_windows(site), x, have, site.out, site.out_box):
        column = weight.select(1, 0)
        for k in reversed(tap):
            column = column.select(column.rank - 1, k)
        for _ in tap:
            column = column.insert(column.rank)
        arguments += [target, source, column]
    return _taps, (site.out, _spread_bias(site), *arguments)


register(Kernel("conv_taps", "conv", takes_taps, _taps_cost, _bind_taps))


# --- conv_transpose ------------------------------------------------------------------------------


def _reach(site: Site) -> list[tuple[int, int, int, int]]:
    """Per dimension, of what the input box makes: first and size inside the output box, where in
    it that lies, and the size of all that is made.
    """
    box = whole_reads(site)[0]
    assert box is not None
    found = []
    windows = turned_windows(site.call.attrs, *site.call.in_shapes[:2])
    for window, have, (first, stop) in zip(windows, box[2:], site.out_box[2:], strict=True):
        low, high = window.extent(have)
        begin = first if low <= first else low
        end = stop if stop <= high else high
        if not begin < end:
            found.append((0, 0, 0, int(high - low)))
            continue
        found.append((int(begin - low), int(end - begin), int(begin - first), int(high - low)))
    return found


def _transposed(
    function: Any, bias: Tensor | None, fills: bool, out: Tensor, count: int, *rest: Any
) -> None:
    if fills:
        only_bias(bias, out)
    for i in range(count):
        source, weight, flat, stride, dilation, groups, place, target = rest[8 * i : 8 * i + 8]
        made = function(source, weight, flat, stride, 0, 0, groups, dilation)
        target.copy_(made[place])


def _transpose_parts(site: Site) -> list[tuple[int, int, int, int, int]]:
    """Groups: (first input channel, how many, first output, how many, groups)."""
    inputs_, per_group = site.call.in_shapes[1][:2]
    width = inputs_ // site.call.attrs["groups"]
    found, channel = [], 0
    for first, count, groups in _segments(site, per_group):
        found.append((channel, -1 if count < 0 else groups * width, first, count, groups))
        channel += groups * width
    return found


def _columns(site: Site, weight: View, first: int, count: int, groups: int) -> View:
    """The weight's columns for a part: all of them for whole groups."""
    per_group = int(site.call.in_shapes[1][1])
    if site.call.attrs["groups"] == 1 or (groups >= 1 and count == groups * per_group):
        return weight
    start = (int(site.out_box[1][0]) + first) % per_group
    return weight.narrow(1, start, count)


def _bind_transposed(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, weight, *bias = inputs(site)
    attrs, reach = site.call.attrs, _reach(site)
    whole = all(
        same(size, extent)
        for (_, size, _, _), extent in zip(reach, _spatial(site.out), strict=True)
    )
    place = (..., *(slice(first, first + size) for first, size, _, _ in reach))
    target = site.out
    for axis, (_, size, at, _) in enumerate(reach, start=2):
        target = target.narrow(axis, at, size)
    calls: list[Any] = []
    parts = _transpose_parts(site) if all(size for _, size, _, _ in reach) else []
    for channel, width, first, count, groups in parts:
        calls += [
            _cut(x, 1, channel, width),
            _columns(site, _cut(weight, 0, channel, width), first, count, groups),
            _cut(bias[0], 0, first, count) if bias else None,
            attrs["stride"], attrs["dilation"], groups, place, _cut(target, 1, first, count),
        ]  # fmt: skip
    function = _TRANSPOSED[len(reach)]
    return _transposed, (function, _spread_bias(site), not whole, site.out, len(parts), *calls)


def _transposed_allocates(site: Site) -> int:
    made = prod(total for *_, total in _reach(site)) if sees_input(site) else 0
    lead = value_of(site.out.shape[0]) * value_of(site.out.shape[1])
    return made * lead * ITEMSIZE[site.out.dtype] + site.operand(0).size_bytes


register(
    Kernel(
        "conv_transpose", "conv_transpose", sees_input, _conv_cost, _bind_transposed,
        allocates=_transposed_allocates,
    )
)  # fmt: skip
