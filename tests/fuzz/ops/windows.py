"""Convolutions, pools, resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.nn import functional

from fuzz import bounded as b
from fuzz.bounded import Bounded
from fuzz.drawing import Drawing
from fuzz.table import Unfit, op

Tensor = torch.Tensor
_CONV = (functional.conv1d, functional.conv2d, functional.conv3d)
_TURNED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_MAX = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_AVERAGE = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
_ADAPTIVE = (
    functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d,
)  # fmt: skip


def image(d: Drawing) -> int:
    """[batch, channels, one to three dimensions], rather long ones."""
    found = d.some(lambda x: 3 <= x.rank <= 5 and x.dtype == d.dtype)
    if found is not None and d.chance(0.5):
        return found
    rank = d.pick([1, 1, 2, 2, 2, 3])
    longest = {1: 9, 2: 6, 3: 3}[rank]
    return d.leaf([d.integer(1, 2), d.integer(1, 4), *(d.integer(1, longest) for _ in range(rank))])


def _space(d: Drawing, x: int) -> tuple[int, ...]:
    return d.sample[x].shape[2:]


def _groups(d: Drawing, channels: int) -> int:
    return d.pick([1, 1, *(n for n in range(1, channels + 1) if channels % n == 0)])


# --- convolutions ---------------------------------------------------------------------------------


def _conv(d: Drawing) -> int:
    x = image(d)
    space, channels = _space(d, x), d.sample[x].shape[1]
    groups = _groups(d, channels)
    kernel = [d.integer(1, 3) for _ in space]
    attrs: dict[str, Any] = {
        "stride": [d.pick([1, 1, 2, 3]) for _ in space],
        "padding": [[d.integer(0, 2), d.integer(0, 2)] for _ in space],
        "dilation": [d.pick([1, 1, 2]) for _ in space],
        "groups": groups,
    }
    outputs = groups * d.integer(1, 2)
    weight = d.leaf([outputs, channels // groups, *kernel], kind=d.pick(["parameter", None]))
    bias = [d.exactly([outputs])] if d.chance(0.5) else []
    return d.apply("conv", x, weight, *bias, **attrs)


def _convolved(
    x: Bounded, weight: Bounded, *bias: Bounded,
    stride: Sequence[int], padding: Sequence[Sequence[int]], dilation: Sequence[int], groups: int,
) -> Bounded:  # fmt: skip
    rank = x.rank - 2
    widths = [n for pair in reversed(padding) for n in pair]
    sizes = zip(x.shape[2:], weight.shape[2:], dilation, padding, strict=True)
    if any(n + sum(pads) < (k - 1) * step + 1 for n, k, step, pads in sizes):
        raise Unfit

    def product(v: Tensor, w: Tensor) -> Tensor:
        padded = functional.pad(v, widths)
        return _CONV[rank - 1](
            padded, w, stride=tuple(stride), dilation=tuple(dilation), groups=groups
        )

    found = b.multilinear(product, x, weight, terms=prod(weight.shape[1:]) + 1)
    return b.add(found, _over_channels(bias[0], rank)) if bias else found


def _over_channels(bias: Bounded, rank: int) -> Bounded:
    """Where a processor multiplies halves, it may take what is smaller than all normal numbers for
    0, as PyTorch's convolutions do there.
    """
    if bias.dtype in b.HALVES:
        small = (bias.value != 0) & (bias.value.abs() < b.TINY[bias.dtype])
        bias = replace(bias, error=bias.error + torch.where(small, b.TINY[bias.dtype], 0.0))
    return b.moved(lambda v: v.reshape(-1, *([1] * rank)), bias)


_OPTIONS = "stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
op("conv", f"ops.conv({{all}}, {_OPTIONS})", _convolved, _conv, 3)


def _conv_transpose(d: Drawing) -> int:
    x = image(d)
    space, channels = _space(d, x), d.sample[x].shape[1]
    groups, outputs = _groups(d, channels), d.integer(1, 2)
    stride, dilation = [d.integer(1, 3) for _ in space], [d.pick([1, 1, 2]) for _ in space]
    weight = d.leaf([channels, outputs, *(d.integer(1, 3) for _ in space)])
    bias = [d.exactly([outputs * groups])] if d.chance(0.5) else []
    return d.apply(
        "conv_transpose", x, weight, *bias, stride=stride, dilation=dilation, groups=groups,
        padding=[d.pick([0, 0, 1]) for _ in space],
        output_padding=[d.integer(0, max(s, r) - 1) for s, r in zip(stride, dilation, strict=True)],
    )  # fmt: skip


def _spread_out(
    x: Bounded, weight: Bounded, *bias: Bounded, stride: Sequence[int], padding: Sequence[int],
    output_padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Bounded:  # fmt: skip
    rank = x.rank - 2
    rows = zip(
        x.shape[2:], weight.shape[2:], stride, dilation, padding, output_padding, strict=True
    )
    if any((n - 1) * s + (k - 1) * r + 1 - 2 * p + o < 1 for n, k, s, r, p, o in rows):
        raise Unfit

    def product(v: Tensor, w: Tensor) -> Tensor:
        return _TURNED[rank - 1](
            v, w, stride=tuple(stride), padding=tuple(padding),
            output_padding=tuple(output_padding), groups=groups, dilation=tuple(dilation),
        )  # fmt: skip

    taps = weight.shape[0] // groups * prod(weight.shape[2:])
    found = b.multilinear(product, x, weight, terms=taps + 1)
    return b.add(found, _over_channels(bias[0], rank)) if bias else found


op("conv_transpose", f"ops.conv_transpose({{all}}, {_OPTIONS}, output_padding={{output_padding}})",
   _spread_out, _conv_transpose, 1.5)  # fmt: skip


# --- pools ----------------------------------------------------------------------------------------


def _windows(d: Drawing, x: int) -> dict[str, Any]:
    """Windows, none of which lies in the padding alone."""
    kernel = [d.integer(1, min(3, size)) for size in _space(d, x)]
    return {
        "kernel": kernel,
        "stride": d.pick([None, [d.integer(1, 3) for _ in kernel]]),
        "padding": [d.integer(0, k // 2) for k in kernel],
        "ceil_mode": d.chance(0.3),
    }


def _pool(name: str) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = image(d)
        attrs = _windows(d, x)
        attrs |= {"dilation": d.pick([1, 1, 2])} if name == "max_pool" else {}
        attrs |= {"count_include_pad": d.chance(0.5)} if name == "avg_pool" else {}
        return d.apply(name, x, **attrs)

    return draw


def _max_pool(
    x: Bounded, kernel: Sequence[int], stride: Sequence[int] | None, padding: Sequence[int],
    ceil_mode: bool, dilation: int,
) -> Bounded:  # fmt: skip
    rows = zip(x.shape[2:], kernel, padding, strict=True)
    if any(n + 2 * p < (k - 1) * dilation + 1 for n, k, p in rows):
        raise Unfit

    def pool(v: Tensor) -> Tensor:
        return _MAX[x.rank - 3](
            v, tuple(kernel), None if stride is None else tuple(stride), tuple(padding),
            dilation, ceil_mode,
        )  # fmt: skip

    return b.chosen(pool, x)


def _avg_pool(
    x: Bounded, kernel: Sequence[int], stride: Sequence[int] | None, padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool,
) -> Bounded:  # fmt: skip
    def pool(v: Tensor) -> Tensor:
        return _AVERAGE[x.rank - 3](
            v, tuple(kernel), None if stride is None else tuple(stride), tuple(padding),
            ceil_mode, count_include_pad,
        )  # fmt: skip

    return b.multilinear(pool, x, terms=prod(kernel) + 2, rounds=prod(kernel) > 1)


_POOLED = "stride={stride}, padding={padding}, ceil_mode={ceil_mode}"
op("max_pool", f"ops.max_pool({{0}}, {{kernel}}, {_POOLED}, dilation={{dilation}})", _max_pool,
   _pool("max_pool"), 1.5)  # fmt: skip
op("avg_pool",
   f"ops.avg_pool({{0}}, {{kernel}}, {_POOLED}, count_include_pad={{count_include_pad}})",
   _avg_pool, _pool("avg_pool"), 1.5)  # fmt: skip


def _adaptive(d: Drawing) -> int:
    x = image(d)
    return d.apply("adaptive_avg_pool", x, size=[d.integer(1, size) for size in _space(d, x)])


def _parts(x: Bounded, size: Sequence[int]) -> Bounded:
    pool = _ADAPTIVE[x.rank - 3]
    return b.multilinear(
        lambda v: pool(v, tuple(size)), x, terms=prod(x.shape[2:]) + 8, rounds=True
    )


op("adaptive_avg_pool", "ops.adaptive_avg_pool({0}, {size})", _parts, _adaptive, 0.7)


def _fold(d: Drawing) -> int:
    size, kernel, stride, padding, dilation = (
        [d.integer(low, high) for _ in range(2)]
        for low, high in ((2, 6), (1, 2), (1, 3), (0, 1), (1, 2))
    )
    rows = zip(size, kernel, stride, padding, dilation, strict=True)
    counts = [(n + 2 * p - t * (k - 1) - 1) // s + 1 for n, k, s, p, t in rows]
    if min(counts) < 1:
        raise Unfit
    x = d.leaf([d.integer(1, 2), d.integer(1, 2) * prod(kernel), prod(counts)])
    return d.apply(
        "fold", x, size=size, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )


def _folded(x: Bounded, size: Sequence[int], kernel: Sequence[int], **options: Any) -> Bounded:
    def fold(v: Tensor) -> Tensor:
        return functional.fold(v.double(), size, kernel, **options).to(v.dtype)

    return b.multilinear(fold, x, terms=prod(kernel))


op("fold",
   "ops.fold({0}, {size}, kernel={kernel}, stride={stride}, padding={padding}, "
   "dilation={dilation})", _folded, _fold)  # fmt: skip


# --- resampling -----------------------------------------------------------------------------------

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


def _upsample(d: Drawing) -> int:
    x = image(d)
    mode = d.pick(["nearest", "nearest_exact", "linear", "linear"])
    size = [d.integer(1, 2 * n + 1) for n in _space(d, x)]
    corners = mode == "linear" and d.chance(0.4)
    return d.apply("upsample", x, size=size, mode=mode, align_corners=corners)


def _resampled(x: Bounded, size: Sequence[int], mode: str, align_corners: bool) -> Bounded:
    def resample(v: Tensor) -> Tensor:
        if mode == "linear":
            return functional.interpolate(
                v, tuple(size), mode=_LINEAR[x.rank], align_corners=align_corners
            )
        return functional.interpolate(v, tuple(size), mode=mode.replace("_", "-"))

    if mode != "linear":
        return b.moved(resample, x)
    found = b.multilinear(resample, x, terms=16 * x.rank + max(size), rounds=True)
    largest = _MAX[x.rank - 3](x.weight + x.error, 3, 1, 1)  # of a place and its neighbours
    off = 8 * (x.rank - 2) * max(x.shape[2:]) * b.ROUNDOFF["float32"]  # of a place, rounded
    return replace(found, error=found.error + off * resample(largest))


op("upsample", "ops.upsample({0}, size={size}, mode={mode}, align_corners={align_corners})",
   _resampled, _upsample)  # fmt: skip
op("upsample_nearest", "ops.upsample_nearest({0}, {scale})",
   lambda x, scale: _resampled(x, [n * scale for n in x.shape[2:]], "nearest", False),
   lambda d: d.apply("upsample_nearest", image(d), scale=d.integer(1, 3)), 0.5)  # fmt: skip
