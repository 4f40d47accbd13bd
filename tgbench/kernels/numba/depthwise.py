"""The numba kernel for convolutions that leave channels to themselves: `conv_depthwise`.

As many channels come out as go in, each made of one: they lie side by side, so that a vector is of
one point, and the call takes any size, border and place (see `taps`). An activation, or bounds, are
part of it.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tgbench.base.coords import value_of
from tgbench.graph.op_table import Call
from tgbench.kernels.numba import panels
from tgbench.kernels.numba.panels import FUNCTIONS, Image, image_of, scratch_of, strides_of
from tgbench.kernels.numba.rows import compiled, span
from tgbench.kernels.registry import (
    Kernel,
    Prepared,
    Scratch,
    Site,
    View,
    once_a_site,
    register,
)
from tgbench.kernels.torch.packed import SPATIAL
from tgbench.kernels.views import Bound

try:
    from tgbench.kernels.numba import blocks, taps, windows
except ImportError:
    taps = None  # type: ignore[assignment]

CALL_NS = 800.0
TAPS_PER_NS = 20.0  # multiplications
PLACES = 7  # distances: of x and its channels, and of the result
POSTS = FUNCTIONS | {"relu", "clamp"}


def _is_ours(call: Call) -> bool:
    channels, depth, *window = call.in_shapes[1]
    is_alone = depth == 1 and call.attrs["groups"] == channels > 1
    return is_alone and len(window) <= SPATIAL and channels <= blocks.ZERO_COUNT


@once_a_site
def _image(site: Site) -> Image | None:
    """What a call computes; None where it is no convolution that this kernel takes."""
    return image_of(site) if _is_ours(site.call) else None


def _found(site: Site) -> Image:
    found = _image(site)
    assert found is not None
    return found


def laid_out(weight: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = taps.laid_out(weight.numpy())
    return found


def _elements(call: Call, i: int) -> int:
    """Of weights that are laid out."""
    channels, _, *window = call.in_shapes[i]
    return int(taps.elements_for(channels, prod(window)))


def _scratch(site: Site) -> tuple[Scratch, ...]:
    return scratch_of(_found(site), taps.JOB)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    image, none = _found(site), windows.NONE
    words, *copied = map(span, scratch)
    places = strides_of(image)[:PLACES]
    sizes = *image.x.shape[2:], image.out.shape[0], *image.out.shape[2:]
    low = tuple(first for first, _ in image.over)
    pairs = [n for pair in (image.window, image.stride, image.gaps, low) for n in pair]
    _, _, functions = windows.computing()
    return compiled(
        taps.convolve,
        (
            words, span(image.x), copied[0] if copied else none,
            Prepared(image.weights[0], laid_out),
            none if image.bias is None else span(image.bias), span(image.out),
            blocks.ZEROS, *places, *sizes, *pairs, image.columns, image.ends.function,
            image.ends.least, image.ends.most, panels.threads(), *blocks.runtime_addresses(),
            taps.computing(), functions,
        ),
    )  # fmt: skip


def _cost(site: Site) -> float:
    return CALL_NS + prod(_found(site).window) * value_of(site.out.elements) / TAPS_PER_NS


DEPTHWISE = Kernel(
    "conv_depthwise", "conv", lambda site: _image(site) is not None, _cost, _bind, _scratch,
    ("cpu",), prepares=(1,), layout="depthwise", posts=POSTS, compiles=True, prepared=_elements,
)  # fmt: skip


def register_depthwise() -> None:
    """Register the kernel, where numba is there."""
    if taps is not None:
        register(DEPTHWISE)
