"""The numba kernel for convolutions of 3 × 3 that multiplies less: `conv_winograd`.

It takes what `conv_panels` takes, with windows that begin one point apart, whole vectors of
channels, and no activation but bounds. Its weights are laid out in a way of their own, 16/9
times as large; whether a call has them so is decided by what was measured of the whole call.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tgbench.base.coords import value_of
from tgbench.graph.op_table import Call
from tgbench.kernels.numba import panels
from tgbench.kernels.numba.panels import Image, convolution_of, scratch_of, strides_of
from tgbench.kernels.numba.rows import STREAM, compiled, span
from tgbench.kernels.registry import (
    Kernel,
    Prepared,
    Scratch,
    Site,
    View,
    once_a_site,
    register,
)
from tgbench.kernels.views import Bound

try:
    from tgbench.kernels.numba import blocks, winograd
except ImportError:
    winograd = None  # type: ignore[assignment]

CALL_NS = 1200.0
FLOPS_PER_NS = 200.0  # of those that are left
TURNED_PER_NS = 8.0  # elements of tiles, and of what is made of them
POSTS = frozenset({"relu", "clamp", "add"})


def _is_ours(call: Call) -> bool:
    """Whether weights are of such a convolution, wherever its operands lie."""
    columns, depth, *window = call.in_shapes[1]
    is_whole = depth % blocks.LANES == 0 and columns % blocks.LANES == 0
    is_close = set(call.attrs["stride"]) == {1}
    return is_whole and is_close and tuple(window) == (winograd.WINDOW, winograd.WINDOW)


@once_a_site
def _image(site: Site) -> Image | None:
    """What a call computes; None where it is no convolution that this kernel takes."""
    return convolution_of(site) if _is_ours(site.call) else None


def _found(site: Site) -> Image:
    found = _image(site)
    assert found is not None
    return found


def laid_out(weight: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = winograd.laid_out(weight.numpy())
    return found


def _elements(call: Call, i: int) -> int:
    """Of weights that are laid out."""
    columns, depth, *window = call.in_shapes[i]
    return int(columns * depth * (winograd.PLACES if _is_ours(call) else prod(window)))


def _group(site: Site) -> int:
    """Tiles that go by one panel after the other; where sizes move, as many as of the whole, as
    whoever made room for that has no more.
    """
    of = site.out if all(type(size) is int for size in site.out.shape) else site.call.out
    image, (count, _, *sides) = _found(site), map(value_of, of.shape)
    tiles = count * prod(map(winograd.tiles_along, sides, image.gaps))
    return int(winograd.group_of(tiles, image.depth))


def _room(site: Site) -> int:
    image = _found(site)
    return int(winograd.room_of(_group(site), image.depth, image.columns))


def _scratch(site: Site) -> tuple[Scratch, ...]:
    image = _found(site)
    return scratch_of(image, winograd.JOB + panels.threads() * _room(site))


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    image, none = _found(site), winograd.NONE
    words, *copied = map(span, scratch)
    more = image.ends.more
    sizes = *image.x.shape[2:], image.out.shape[0], *image.out.shape[2:]
    return compiled(
        winograd.convolve,
        (
            words, span(image.x), copied[0] if copied else none,
            Prepared(image.weights[0], laid_out),
            none if image.bias is None else span(image.bias), span(image.out),
            none if more is None else span(more), blocks.ZEROS,
            *strides_of(image), *sizes,
            *image.gaps, *(first for first, _ in image.over), image.depth, image.columns,
            image.ends.least, image.ends.most, _group(site), panels.threads(), _room(site),
            *blocks.runtime_addresses(), *winograd.computing(),
        ),
    )  # fmt: skip


def _cost(site: Site) -> float:
    image = _found(site)
    tiles = winograd.PLACES * value_of(site.out.elements) / image.columns / winograd.RESULT**2
    weights = winograd.PLACES * image.depth * image.columns
    computing = 2 * tiles * image.depth * image.columns / FLOPS_PER_NS
    turning = tiles * (image.depth + image.columns) / TURNED_PER_NS
    return CALL_NS + max(computing, 4 * weights / STREAM) + turning


WINOGRAD = Kernel(
    "conv_winograd", "conv", lambda site: _image(site) is not None, _cost, _bind, _scratch,
    ("cpu",), prepares=(1,), layout="winograd", posts=POSTS, compiles=True, prepared=_elements,
)  # fmt: skip


def register_filters() -> None:
    """Register the kernel, where numba is there."""
    if winograd is not None:
        register(WINOGRAD)
