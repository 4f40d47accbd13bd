"""Pools tap by tap, resampling, and norms over channels, on slices.

A pool is the output box combined with one strided view of the input per tap of its window; taps
that see padding are left out. Nothing is copied and nothing allocated, for any rank and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tgbench.base.coords import Coord, moves_freely, same, smaller, value_of
from tgbench.base.regions import Box
from tgbench.graph.op_table import FLOATS, LINE_RANK, Call
from tgbench.graph.ops.images.fold import tap_windows
from tgbench.graph.ops.images.pool import least, pool_windows
from tgbench.graph.ops.images.resample import TAPS, changed_axes, matrix_of, nearest_index, taps_of
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.torch.conv import overhang, tap_views
from tgbench.kernels.torch.elementwise import (
    BYTES_PER_NS,
    CALL_NS,
    calls_cost,
    pointwise,
    torch_dtype,
)
from tgbench.kernels.torch.layout import Pairs, copies
from tgbench.kernels.views import Bound, inputs, is_complete, split, whole_reads

MANY_TAPS = 4

# --- pools ---------------------------------------------------------------------------------------


def _pool(function: Any, start: float, out: Tensor, *rest: Tensor) -> None:
    out.fill_(start)
    for i in range(0, len(rest), 2):
        function(rest[i], rest[i + 1], out=rest[i])


def _pool_from(function: Any, first: Tensor, out: Tensor, *rest: Tensor) -> None:
    out.copy_(first)
    for source in rest:
        function(out, source, out=out)


def _of_a_copy(copy: Tensor, source: Tensor, pool: Any, *rest: Any) -> None:
    copy.copy_(source)
    pool(*rest)


def _lies_across(site: Site) -> bool:
    """Whether what is read has its elements side by side along another dimension than the result:
    every tap would go across memory.
    """
    (x,), out = inputs(site), site.out
    return same(out.strides[-1], 1) and not same(x.strides[-1], 1)


def _pool_scratch(site: Site) -> tuple[Scratch, ...]:
    """A copy that lies as the result does, where there are taps enough."""
    if whole_reads(site)[0] is None or prod(site.call.attrs["kernel"]) < MANY_TAPS:
        return ()
    (x,) = inputs(site)
    return ((tuple(x.shape), x.dtype),) if _lies_across(site) else ()


def _bind_pool(site: Site, scratch: tuple[View, ...], function: Any, start: float) -> Bound:
    have = whole_reads(site)[0]
    if have is None:
        return _pool, (function, start, site.out)
    (x,) = inputs(site)
    if scratch:
        pool, arguments = _bound_pool(site, scratch[0], have, function, start)
        return _of_a_copy, (scratch[0], x, pool, *arguments)
    return _bound_pool(site, x, have, function, start)


def _bound_pool(site: Site, x: View, have: Box, function: Any, start: float) -> Bound:
    windows = pool_windows(site.call.attrs, site.call.in_shapes[0])
    taps = tap_views(windows, x, have, site.out, site.out_box)
    if all(_is_all(target, site.out) for _, _, target in taps):
        sources = [source for _, source, _ in taps]
        return _pool_from, (function, sources[0], site.out, *sources[1:])
    views = [view for _, source, target in taps for view in (target, source)]
    return _pool, (function, start, site.out, *views)


def _is_all(target: View, out: View) -> bool:
    sides = zip(target.shape, out.shape, strict=True)
    return all(a == b if moves_freely(a) else same(a, b) for a, b in sides)


def _pool_cost(site: Site) -> float:
    taps = prod(site.call.attrs["kernel"])
    return (1 + taps) * (1.3 * CALL_NS + 3 * site.out.size_bytes / BYTES_PER_NS)


def _bind_max(site: Site, scratch: tuple[View, ...]) -> Bound:
    return _bind_pool(site, scratch, torch.maximum, least(site.out.dtype))


def _bind_sum(site: Site, scratch: tuple[View, ...]) -> Bound:
    return _bind_pool(site, scratch, torch.add, 0)


register(Kernel("max_pool", "max_pool", is_complete, _pool_cost, _bind_max, _pool_scratch))
register(Kernel("sum_pool", "sum_pool", is_complete, _pool_cost, _bind_sum, _pool_scratch))


def _max_of_lines(x: Tensor, out: Tensor, kernel: int, stride: int, dilation: int) -> None:
    out.copy_(torch.max_pool1d(x, kernel, stride, 0, dilation))


def _is_inside(site: Site) -> bool:
    """Whether windows along a line see nothing beside it."""
    if not is_complete(site) or whole_reads(site)[0] is None or site.out.rank != LINE_RANK:
        return False
    margins = overhang(site, pool_windows(site.call.attrs, site.call.in_shapes[0]))
    is_near = all(type(margin) is int and margin == 0 for pair in margins for margin in pair)
    return is_near and site.out.dtype in ("float32", "float64")


def _bind_lines(site: Site, scratch: tuple[View, ...]) -> Bound:
    attrs = site.call.attrs
    numbers = [attrs[name][0] for name in ("kernel", "stride", "dilation")]
    return _max_of_lines, (*inputs(site), site.out, *numbers)


register(
    Kernel(
        "max_pool_lines",
        "max_pool",
        _is_inside,
        lambda site: 4 * CALL_NS + 4 * site.operand(0).size_bytes / BYTES_PER_NS,
        _bind_lines,
        devices=("cpu",),
        allocates=lambda site: site.out.size_bytes,
    )
)


# --- resampling ----------------------------------------------------------------------------------


def _is_whole(site: Site) -> bool:
    """Whether all is asked for, and all is read: shrinking may leave rows at the end unread."""
    box = site.in_boxes[0]
    return (
        is_complete(site)
        and box is not None
        and _is_spatially(site.out_box, site.call.out.shape)
        and _is_spatially(box, site.call.in_shapes[0])
    )


def _is_spatially(box: Box, shape: Sequence[int]) -> bool:
    """Whether a box has every spatial dimension from end to end."""
    return all(same(a, 0) and same(b, n) for (a, b), n in zip(box[2:], shape[2:], strict=True))


WIDE = 128  # inputs along a dimension: past this, taps are added up, not multiplied with a matrix

# What PyTorch calls them, by rank.
_MODES = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear",
          ("cubic", 4): "bicubic"}  # fmt: skip


def _upsample(x: Tensor, out: Tensor, options: dict[str, Any]) -> None:
    out.copy_(interpolate(x, **options))


def _takes_whole(site: Site) -> bool:
    attrs, rank = site.call.attrs, site.out.rank
    is_known = (attrs["mode"], rank) in _MODES if attrs["mode"] in TAPS else rank <= 5
    sizes = zip(attrs["scales"], attrs["size"], site.call.in_shapes[0][2:], strict=True)
    follow = all(scale is None or scale * count == size for scale, count, size in sizes)
    return _is_whole(site) and site.out.dtype in FLOATS and follow and is_known


def _bind_upsample(site: Site, scratch: tuple[View, ...]) -> Bound:
    attrs, mode = site.call.attrs, site.call.attrs["mode"]
    options: dict[str, Any] = {"size": attrs["size"], "mode": mode.replace("_", "-")}
    if mode in TAPS:
        name = _MODES[mode, site.out.rank]
        options |= {"mode": name, "align_corners": attrs["align_corners"]}
    return _upsample, (*inputs(site), site.out, options)


register(
    Kernel(
        "upsample",
        "upsample",
        _takes_whole,
        lambda site: 3 * CALL_NS + 4 * site.out.size_bytes / BYTES_PER_NS,
        _bind_upsample,
        allocates=lambda site: site.out.size_bytes,
    )
)


@lru_cache(4096)
def _rows(key: tuple[Any, ...], first: int, stop: int, low: int, dtype: str) -> Tensor:
    """The indices of these outputs, counted from the input slice's first row."""
    return torch.tensor(nearest_index(*key)[first:stop] - low)


@lru_cache(4096)
def _matrix(key: tuple[Any, ...], first: int, stop: int, low: int, high: int, dtype: str) -> Tensor:
    """How much of each row of the input slice is in each of these outputs."""
    return torch.tensor(matrix_of(*key)[first:stop, low:high], dtype=torch_dtype(dtype))


@lru_cache(4096)
def _shares(
    key: tuple[Any, ...], first: int, stop: int, low: int, beside: int, dtype: str
) -> tuple[tuple[Tensor, Tensor], ...]:
    """The rows of the input slice that these outputs are made of, and their shares."""
    inputs, shares = (torch.tensor(part[:, first:stop]) for part in taps_of(*key))
    shares = shares.to(torch_dtype(dtype)).reshape(len(shares), -1, *(1,) * beside)
    return tuple(zip(inputs - low, shares, strict=True))


def _resample(x: Tensor, out: Tensor, *steps: Any) -> None:
    for axis, numbers in zip(steps[::2], steps[1::2], strict=True):
        if isinstance(numbers, tuple):
            x = torch.stack([torch.index_select(x, axis, at).mul_(of) for at, of in numbers]).sum(0)
        elif numbers.ndim == 1:
            x = torch.index_select(x, axis, numbers)
        else:
            x = torch.movedim(torch.matmul(x.movedim(axis, -1), numbers.T), -1, axis)
    out.copy_(x)


def _bind_resample(site: Site, scratch: tuple[View, ...]) -> Bound:
    (x,), have = inputs(site), whole_reads(site)[0]
    attrs = site.call.attrs
    assert have is not None
    steps: list[Any] = []
    for axis, *key in changed_axes(attrs, site.call.in_shapes[0]):
        first, stop = int(site.out_box[axis][0]), int(site.out_box[axis][1])
        low, high = int(have[axis][0]), int(have[axis][1])
        dtype = site.out.dtype
        if attrs["mode"] in TAPS:
            with_ends, beside = (attrs["mode"], *key, attrs["align_corners"]), x.rank - axis - 1
            is_wide = high - low > WIDE
            steps += [
                axis,
                _shares(with_ends, first, stop, low, beside, dtype)
                if is_wide
                else _matrix(with_ends, first, stop, low, high, dtype),
            ]
        else:
            exact = attrs["mode"] == "nearest_exact"
            steps += [axis, _rows((*key, exact), first, stop, low, dtype)]
    return _resample, (x, site.out, *steps)


def _resample_cost(site: Site) -> float:
    read = site.operand(0)
    steps = len(site.call.attrs["size"])
    sizes = (min(value_of(n), 4 * WIDE) for n in read.shape[2:])
    per = prod(sizes) if site.call.attrs["mode"] in TAPS else 1
    return float(steps * (4 * CALL_NS + site.out.size_bytes / BYTES_PER_NS * (2 + per**0.5 / 10)))


register(
    Kernel(
        "upsample_slice",
        "upsample",
        is_complete,
        _resample_cost,
        _bind_resample,
        devices=("cpu",),
        allocates=lambda site: 2 * site.out.size_bytes,
    )
)


Factors = list[tuple[int, int]]  # of each axis along which elements are repeated, how often


def _factors(call: Call) -> Factors | None:
    """How often every element is copied along each axis; None where not all as often."""
    if call.attrs["mode"] in TAPS:
        return None
    found = []
    for axis, size, count, scale in changed_axes(call.attrs, call.in_shapes[0]):
        times = count // size
        index = nearest_index(size, count, scale, call.attrs["mode"] == "nearest_exact")
        if count != times * size or not np.array_equal(index, np.arange(count) // times):
            return None
        found.append((axis, times))
    return found


def _each(view: View, axis: int, first: Coord, count: Coord, step: int) -> View:
    """So many rows of a view, each so many behind the one before."""
    rows = view.narrow(axis, first, count)
    strides = (*rows.strides[:axis], rows.strides[axis] * step, *rows.strides[axis + 1 :])
    return replace(rows, strides=strides)


def _repeated(source: View, target: View, starts: Sequence[Coord], factors: Factors) -> Pairs:
    """The first copy of every row, then the others from it. A slice may begin behind a first copy:

    rows    0 0 0 1 1 1 2 2 2 3 3 3
    slice         · F · F · · F        F: first in the slice, of row 1 (head) and of the others
    """
    if not factors:
        return [(target, source)]
    (axis, times), *others = factors
    extent, gone = target.shape[axis], starts[axis] % times
    head = smaller(times - gone, extent) if gone else 0
    pairs: Pairs = []
    if gone:
        first, rest = target.narrow(axis, 0, 1), target.narrow(axis, 1, head - 1)
        pairs += _repeated(source.narrow(axis, 0, 1), first, starts, others)
        pairs += [(rest, first)] if head > 1 else []
        source = source.narrow(axis, 1, source.shape[axis] - 1)
    if head < extent:
        counts = [(extent - head + times - 1 - i) // times for i in range(times)]
        each = [_each(target, axis, head + i, n, times) for i, n in enumerate(counts) if n > 0]
        pairs += _repeated(source.narrow(axis, 0, counts[0]), each[0], starts, others)
        pairs += [(one, each[0].narrow(axis, 0, one.shape[axis])) for one in each[1:]]
    return pairs


def _bind_repeat(site: Site, scratch: tuple[View, ...]) -> Bound:
    (x,), factors = inputs(site), _factors(site.call)
    assert factors is not None
    return copies(_repeated(x, site.out, site.out_box.starts, factors))


def _repeat_cost(site: Site) -> float:
    calls = sum(times for _, times in _factors(site.call) or ())
    return calls * CALL_NS + 2 * site.out.size_bytes / BYTES_PER_NS


register(
    Kernel(
        "upsample_repeat",
        "upsample",
        lambda site: is_complete(site) and _factors(site.call) is not None,
        _repeat_cost,
        _bind_repeat,
    )
)


# --- fold ----------------------------------------------------------------------------------------


def _zero(out: Tensor) -> None:
    out.zero_()


def _fold(x: Tensor, out: Tensor, *places: Any) -> None:
    out.zero_()
    for source, place in zip(places[::2], places[1::2], strict=True):
        out[place].add_(x[source])


def _bind_fold(site: Site, scratch: tuple[View, ...]) -> Bound:
    have = whole_reads(site)[0]
    if have is None:  # no window stands there
        return _zero, (site.out,)
    places: list[Any] = []
    for tap in np.ndindex(*site.call.in_shapes[0][2:4]):
        places += _tap_places(site, have, tap)
    return _fold, (*inputs(site), site.out, *places)


def _tap_places(site: Site, have: Box, tap: Sequence[int]) -> tuple[Any, ...]:
    """What of the columns' view one tap adds, and where in the result; nothing where it misses."""
    source: list[Any] = [k - int(first) for k, (first, _) in zip(tap, have[2:4], strict=True)]
    place: list[Any] = []
    windows = tap_windows(site.call.attrs, site.call.in_shapes[0], tap)
    for window, wanted, (first, _) in zip(windows, site.out_box[2:], have[4:], strict=True):
        rows = window.reached(wanted)
        if not rows:
            return ()
        start, stop = window.extent(rows[0])
        source.append(slice(int(rows[0][0] - first), int(rows[0][1] - first)))
        place.append(slice(int(start - wanted[0]), int(stop - wanted[0]), window.stride))
    return (slice(None), slice(None), *source), (..., *place)


register(
    Kernel(
        "fold",
        "fold",
        is_complete,
        lambda site: (
            prod(site.call.in_shapes[0][2:4])
            * (2 * CALL_NS + 2 * value_of(site.out.size_bytes) / BYTES_PER_NS)
        ),
        _bind_fold,
    )
)


# --- norms ---------------------------------------------------------------------------------------


def _column(vector: View, rank: int) -> View:
    for _ in range(rank - 2):
        vector = vector.insert(vector.rank)
    return vector


def _channel_affine(x: Tensor, scale: Tensor, shift: Tensor, out: Tensor) -> None:
    torch.addcmul(shift, x, scale, out=out)


def _bind_affine(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, scale, shift = inputs(site)
    rank = site.out.rank
    return _channel_affine, (x, _column(scale, rank), _column(shift, rank), site.out)


register(Kernel("channel_affine", "channel_affine", is_complete, calls_cost(1.2), _bind_affine))


def _group_norm(
    x: Tensor, groups: int, eps: float, first: int, scale: Any, shift: Any, out: Tensor
) -> None:
    made = torch.group_norm(x, groups, None, None, eps).narrow(1, first, out.shape[1])
    if scale is None:
        out.copy_(made)
    else:
        torch.addcmul(shift, made, scale, out=out)


def _bind_group_norm(site: Site, scratch: tuple[View, ...]) -> Bound:
    """Whole groups are normalised; of the vectors only the output's channels are there. PyTorch
    takes channels as they lie innermost in images alone: a line is one of one row.
    """
    x, *vectors = inputs(site)
    out = site.out
    if out.rank == LINE_RANK:
        x, out = (split(one, 2, (1, one.shape[2])) for one in (x, out))
    have = whole_reads(site)[0]
    assert have is not None
    width = site.call.in_shapes[0][1] // site.call.attrs["groups"]
    start, stop = (int(end) // width * width for end in (have[1][0], have[1][1] + width - 1))
    groups, first = (stop - start) // width, int(site.out_box[1][0]) - start
    columns: list[View | None] = [_column(vector, out.rank) for vector in vectors]
    columns = columns or [None, None]
    return _group_norm, (x, groups, site.call.attrs["eps"], first, *columns, out)


register(
    Kernel(
        "group_norm",
        "group_norm",
        lambda site: is_complete(site) and site.out.dtype in FLOATS,
        calls_cost(6),
        _bind_group_norm,
        allocates=lambda site: 2 * site.operand(0).size_bytes,
    )
)


# --- activations ---------------------------------------------------------------------------------


def _clamp(x: Tensor, low: float, high: float, out: Tensor) -> None:
    torch.clamp(x, low, high, out=out)


def _leaky_relu(x: Tensor, slope: float, out: Tensor) -> None:
    torch.ops.aten.leaky_relu.out(x, slope, out=out)


def _elu(x: Tensor, alpha: float, out: Tensor) -> None:
    torch.ops.aten.elu.out(x, alpha, out=out)


def _softplus(x: Tensor, beta: float, threshold: float, out: Tensor) -> None:
    torch.ops.aten.softplus.out(x, beta, threshold, out=out)


def _hardsigmoid(x: Tensor, out: Tensor) -> None:
    torch.ops.aten.hardsigmoid.out(x, out=out)


def _hardswish(x: Tensor, out: Tensor) -> None:
    torch.ops.aten.hardswish.out(x, out=out)


def _mish(x: Tensor, out: Tensor) -> None:
    torch.ops.aten.mish.out(x, out=out)


pointwise("clamp", _clamp, "low", "high")
pointwise("leaky_relu", _leaky_relu, "slope")
pointwise("elu", _elu, "alpha", calls=2)
pointwise("softplus", _softplus, "beta", "threshold", calls=3)
pointwise("hardsigmoid", _hardsigmoid)
pointwise("hardswish", _hardswish)
pointwise("mish", _mish, calls=4)
