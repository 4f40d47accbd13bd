"""Convolutions of three dimensions as those of two, a tap of the window's depth after the other.

    out[d]  =  bias + Σⱼ  image[stride · d + gap · j − low] ∗ window[j]

Images of one depth are a batch of images, and the library's convolution of two dimensions is two to
four times as fast as that of three where images are large (AVX2, one thread). The first tap is the
one that reaches every image of the result; each other one adds to it.

The costs are a model of one machine; records replace them.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from tgbench.base.coords import value_of
from tgbench.graph.ops.images.conv import conv_windows
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.torch.conv import (
    CONV_NS,
    Halo,
    conv_allocates,
    is_even,
    is_ragged,
    only_bias,
    overhang,
    pad,
    padded_scratch,
    sees_input,
    strides_at,
)
from tgbench.kernels.torch.elementwise import BYTES_PER_NS
from tgbench.kernels.views import Bound, inputs

FLOPS_PER_NS = 150.0
WEIGHT_BYTES_PER_NS = 1.0  # those of one tap do not lie side by side
DEPTH = 3  # dimensions of an image
Tap: TypeAlias = "tuple[int, int, int, int]"  # which, images made, the first one read


def _takes(site: Site) -> bool:
    if len(site.out.shape) != DEPTH + 2 or site.call.attrs["groups"] != 1 or not sees_input(site):
        return False
    sizes = (site.out.shape[2], inputs(site)[0].shape[2])
    return all(type(size) is int for size in sizes) and not is_ragged(overhang(site)[:1])


def _scratch(site: Site) -> tuple[Scratch, ...]:
    """Where images have other borders on both sides, they are copied first."""
    return () if is_even(overhang(site)[1:]) else padded_scratch(site)


def _taps(depth: int, made: int, low: int, window: int, stride: int, gap: int) -> list[Tap]:
    """What each tap adds to which images of a result; those that reach the most first.

    >>> _taps(4, 4, 1, 3, 1, 1)
    [(1, 0, 4, 0), (0, 1, 4, 0), (2, 0, 3, 1)]
    """
    found: list[Tap] = []
    for tap in range(window):
        behind = low - gap * tap  # how far it begins before what there is
        start = max(-(-behind // stride), 0)
        stop = min((depth - 1 + behind) // stride + 1, made)
        if start < stop:
            found.append((tap, start, stop, stride * start - behind))
    return sorted(found, key=lambda one: (one[1] - one[2], one[0]))


def _by_depth(
    padded: Tensor | None, inside: Tensor | None, x: Tensor | None, source: Tensor, weight: Tensor,
    bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...], gaps: tuple[int, ...],
    taps: list[Tap], out: Tensor,
) -> None:  # fmt: skip
    pad(padded, inside, x)
    step, *strides = stride
    for image, result in zip(source, out, strict=True):
        images, made = image.transpose(0, 1), result.transpose(0, 1)
        is_begun = not taps or taps[0][2] - taps[0][1] < len(made)
        if is_begun:
            only_bias(None if bias is None else bias[:, None, None], made)
        for tap, start, stop, first in taps:
            read = images[first : first + (stop - start - 1) * step + 1 : step]
            more = None if is_begun else bias
            found = torch.conv2d(read, weight[:, :, tap], more, strides, padding[1:], gaps[1:])
            if is_begun:
                made[start:stop].add_(found)
            else:
                made.copy_(found)
            is_begun = True


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    _, weight, *bias = inputs(site)
    attrs, halo = site.call.attrs, Halo.of(site, scratch)
    window = conv_windows(attrs, *site.call.in_shapes[:2])[0]
    taps = _taps(
        int(halo.source.shape[2]), int(site.out.shape[2]), halo.padding[0], int(weight.shape[2]),
        window.stride, window.dilation,
    )  # fmt: skip
    return _by_depth, (
        *halo.copied, halo.source, weight, bias[0] if bias else None, strides_at(site),
        halo.padding, attrs["dilation"], taps, site.out,
    )  # fmt: skip


def _cost(site: Site) -> float:
    taps = int(site.call.in_shapes[1][2])
    flops = site.call.op.flops(site.call, site.out_box) / FLOPS_PER_NS
    weights = site.operand(1).size_bytes / WEIGHT_BYTES_PER_NS
    moved = 2 * taps * site.out.size_bytes / BYTES_PER_NS
    return float(CONV_NS * taps * value_of(site.out.shape[0]) + flops + weights + moved)


register(Kernel("conv_by_depth", "conv", _takes, _cost, _bind, _scratch, allocates=conv_allocates))
