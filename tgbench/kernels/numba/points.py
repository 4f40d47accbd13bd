"""The kernel of convolutions of few points: windows as rows, times the weights as they lie.

A stream's next sample and a patch's last pixels are a few windows of a large image. A library's
convolution takes 6 to 40 µs for one, most of it before it computes anything. Here windows are
copied, one a row, and multiplied as rows of a linear layer are (`loops.products`), whichever way
images lie; the call is a loop, so that a step of a stream is a chain of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tgbench.kernels.numba.rows import (
    CALL_NS,
    DOTS,
    STREAM,
    TYPES,
    add_kernel,
    compiled,
    loops,
    span,
)
from tgbench.kernels.registry import Scratch, Site, View, once_a_site
from tgbench.kernels.torch.conv import MOST_POINTS, overhang, sees_input
from tgbench.kernels.torch.packed import SPATIAL
from tgbench.kernels.views import Bound, inputs, is_flat

COPIED_NS = 1.0  # an element of a window, which is looked at where it lies


@once_a_site
def _taken(site: Site) -> tuple[View, ...] | None:
    """x, weights as rows, perhaps a bias, and out; None where other kernels are meant."""
    if site.out.dtype not in TYPES or site.call.attrs["groups"] != 1 or not sees_input(site):
        return None
    x, weight, *bias = inputs(site)
    rows = weight.flatten(1, weight.rank)
    moves = any(type(size) is not int for size in site.out.shape)  # what x has of it may: borders
    if moves or x.rank > 2 + SPATIAL or rows is None:
        return None
    if prod(site.out.shape) > MOST_POINTS * site.out.shape[1] or not is_flat(rows):
        return None
    lie_forward = all(not stride < 0 for view in (x, site.out) for stride in view.strides)
    return (x, rows, *bias, site.out) if lie_forward and all(map(is_flat, bias)) else None


def _found(site: Site) -> tuple[View, ...]:
    found = _taken(site)
    assert found is not None
    return found


def _sizes(site: Site) -> tuple[int, int, int]:
    """How many points, how deep a window is, how many columns there are."""
    columns, depth = _found(site)[1].shape
    return prod(map(int, site.out.shape)) // int(columns), int(depth), int(columns)


def _cost(site: Site) -> float:
    points, depth, columns = _sizes(site)
    dots = points * depth * columns / DOTS
    return CALL_NS + _found(site)[1].size_bytes / STREAM + dots + COPIED_NS * points * depth


def _scratch(site: Site) -> tuple[Scratch, ...]:
    points, depth, columns = _sizes(site)
    return ((points, depth), site.out.dtype), ((points, columns), site.out.dtype)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, weight, *bias, out = _found(site)
    attrs, image, result = site.call.attrs, as_image(x), as_image(out)
    window = both(site.call.in_shapes[1][2:], 1)
    over = both([low for low, _ in overhang(site)], 0)
    steps = *both(attrs["stride"], 1), *both(attrs["dilation"], 1)
    arguments: tuple[Any, ...] = (
        span(image), *image.strides, span(weight), weight.strides[0],
        span(bias[0]) if bias else loops.NO_BIAS[out.dtype], span(result), *result.strides,
        *map(span, scratch), *image.shape, *result.shape[2:], result.shape[1], *window, *steps,
        *over,
    )  # fmt: skip
    return compiled(loops.few_windows, arguments)


def as_image(view: View) -> View:
    """[images, channels, lines, points]."""
    while view.rank < 2 + SPATIAL:
        view = view.insert(2)
    return view


def both(sizes: Sequence[Any], one: Any) -> tuple[Any, Any]:
    """Of lines and points; a line is an image of one."""
    return (one, sizes[0]) if len(sizes) < SPATIAL else (sizes[0], sizes[1])


add_kernel("conv_numba", "conv", _taken, _cost, _bind, scratch=_scratch, is_fixed=True)
