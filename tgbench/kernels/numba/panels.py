"""Numba kernels for products of any number of rows, and for convolutions, over panels of weights.

    linear_panels      rows times a matrix; gated_linear_panels: times two; widening_linear_panels:
                       times one that is held in less than float32, and widened panel by panel
    conv_panels        windows of any size, of images that lie anywhere in others
    attention_panels   many rows that attend to the same keys

Weights are laid out once, in one way for all sizes. Sizes, borders and places are arguments (see
`blocks`), so a kernel serves every window of an image and every number of rows, and nothing is
compiled for them. A residual, a bias and an activation (`Site.posts`) are part of the call.

Keys and values are laid out by the call itself (see `attending`).

They are registered where no library has better code: see `kernels`. The costs are a model of one
machine; records replace them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgbench.base.coords import Coord, largest, same, value_of
from tgbench.graph.op_table import ITEMSIZE
from tgbench.kernels.numba.points import as_image, both
from tgbench.kernels.numba.rows import SINGLE, STREAM, compiled, heads_alike, span
from tgbench.kernels.registry import (
    OPENMP,
    Kernel,
    Prepared,
    Scratch,
    Site,
    View,
    once_a_site,
    register,
)
from tgbench.kernels.torch.conv import overhang, sees_input
from tgbench.kernels.torch.fused import Heads
from tgbench.kernels.torch.packed import SPATIAL, suits, takes_rows
from tgbench.kernels.torch.products import Rows, product_of
from tgbench.kernels.views import Bound, inputs

try:
    from tgbench.kernels.numba import attending, blocks, windows
except ImportError:
    blocks = None  # type: ignore[assignment]

CALL_NS = 800.0
FLOPS_PER_NS = 220.0
MOVED_PER_NS = 1.0  # elements of keys and values, into panels
SCORES_PER_NS = 1.0  # exponentials, and what is around them
LEAST_DEPTH = 8  # of an image: less is what a block begins and ends with
FUNCTIONS = frozenset({"silu", "gelu", "hardswish", "hardsigmoid"})
POSTS = FUNCTIONS | {"relu", "clamp", "add"}
LINE, POINT = 2, 3  # dimensions of an image


@dataclass(frozen=True, slots=True)
class Ends:
    """What is done to each number of a result: something is added, then a function is applied, or
    bounds are.

    Fields:
        more: lies as an image does.
        function: its code; −1 for none.
    """

    more: View | None = None
    function: int = -1
    least: float = -inf
    most: float = inf

    @property
    def is_done(self) -> bool:
        """Whether nothing may follow."""
        return self.function >= 0 or self.least > -inf or self.most < inf


@dataclass(frozen=True, slots=True)
class Image:
    """What a call computes: a product is a line of points, and windows of one element.

    Fields:
        x, out: [images, channels, lines, points]; the result's channels are side by side.
        weights: one, or two of a gated layer, the gate's first.
        window, stride, gaps, over: by lines and points; over: how far windows of the result reach
            over the borders, before the first and behind the last.
        most: points of a result that is computed whole: no part of it has more.
    """

    x: View
    out: View
    weights: tuple[View, ...]
    bias: View | None
    ends: Ends
    most: int
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    gaps: tuple[int, int] = (1, 1)
    over: tuple[tuple[Coord, Coord], tuple[Coord, Coord]] = ((0, 0), (0, 0))

    @property
    def depth(self) -> int:
        return int(self.x.shape[1])

    @property
    def columns(self) -> int:
        return int(self.out.shape[1])

    @property
    def held(self) -> int:
        """How its weights are held."""
        return blocks.HELD_AS.get(self.weights[0].dtype, blocks.LAID_OUT)

    @property
    def is_laid_out(self) -> bool:
        """Whether they are in panels."""
        return self.held == blocks.LAID_OUT

    @property
    def most_elements(self) -> Coord:
        """Of x, and what windows reach over: as many wherever it stands."""
        found: Coord = self.depth * self.x.shape[0]
        for size, (low, high) in zip(self.x.shape[2:], self.over, strict=True):
            found = found * largest(size + low + high)
        return found

    @property
    def group(self) -> int:
        """Rows that are multiplied by one panel after the other; where sizes move, no more than of
        the whole, as whoever made room for that has no more.
        """
        sizes = [size for size in (self.out.shape[0], *self.out.shape[2:]) if type(size) is int]
        points = prod(sizes) if len(sizes) == self.out.rank - 1 else self.most
        return max(1, min(points, windows.MOST_ROWS))


# --- what a site computes ------------------------------------------------------------------------


def _as_line(view: View) -> View | None:
    """Rows [..., n] as the points of an image of one line; None where strides do not allow it."""
    rows = view.rows()
    return None if rows is None else rows.transpose().insert(0).insert(2)


def _as_lines(view: View) -> View | None:
    """Rows [..., n] that lie in several dimensions, as those of an image."""
    if view.rank > 2 + SPATIAL:
        return None
    while view.rank < 2 + SPATIAL:
        view = view.insert(0)
    return view.permute(0, -1, 1, 2)


def _lies_well(view: View) -> bool:
    """Whether channels are side by side."""
    return same(view.strides[1], 1) or same(view.shape[1], 1)


def _code(call: Any, name: str) -> int:
    if call.attrs.get("approximate") == "tanh":
        name = "gelu_tanh"
    found: int = windows.ACTIVATIONS[name]
    return found


def _ends(site: Site, as_image: Callable[[View], View | None]) -> Ends | None:
    """None where more is done than there is room for, or in another order."""
    found = Ends()
    for post in site.posts:
        name, attrs = post.call.op.name, post.call.attrs
        if found.is_done:
            return None
        if name in FUNCTIONS:
            found = replace(found, function=_code(post.call, name))
            continue
        if name in ("relu", "clamp"):
            found = replace(found, least=attrs.get("low", 0.0), most=attrs.get("high", inf))
            continue
        other = as_image(post.read[0]) if name == "add" and post.read else None
        is_like = other is not None and all(map(same, post.read[0].shape, site.out.shape))
        if other is None or not is_like or found.more is not None:
            return None
        found = replace(found, more=other)
    return found


def _if_well(seen: Callable[[View], View | None]) -> Callable[[View], View | None]:
    """An image, where its channels are side by side."""

    def found(view: View) -> View | None:
        image = seen(view)
        return image if image is not None and _lies_well(image) else None

    return found


_channels_last = _if_well(as_image)


@once_a_site
def _product(site: Site) -> Image | None:
    if site.out.dtype not in SINGLE or not is_taken(site) or not takes_rows(site):
        return None
    return _of_rows(site, product_of(site))


@once_a_site
def _widening(site: Site) -> Image | None:
    if site.out.dtype not in SINGLE or not is_taken(site) or not takes_rows(site):
        return None
    p = product_of(site)
    return _of_rows(site, p) if p.weights[0].is_row_contiguous else None


def _of_rows(site: Site, p: Rows) -> Image | None:
    """A product as windows of one element."""
    for seen in (_as_line, _as_lines):
        x, out, ends = seen(p.x), seen(p.out), _ends(site, _if_well(seen))
        if x is None or out is None or not _lies_well(out) or ends is None:
            continue
        if len(p.weights) > 1:
            ends = Ends(function=_code(site.call, str(site.call.attrs["activation"])))
        return Image(x, out, p.weights, p.bias, ends, prod(site.call.out.shape[:-1]))
    return None


def convolution_of(site: Site) -> Image | None:
    return image_of(site) if is_taken(site) else None


@once_a_site
def image_of(site: Site) -> Image | None:
    """A convolution whose results' channels are side by side."""
    if not suits(site) or not sees_input(site):
        return None
    x, weight, *bias = inputs(site)
    out, ends = _channels_last(site.out), _ends(site, _channels_last)
    if out is None or ends is None:
        return None
    attrs, over = site.call.attrs, overhang(site)
    images, _, *sizes = site.call.out.shape
    return Image(
        as_image(x), out, (weight,), bias[0] if bias else None, ends, images * prod(sizes),
        both(tuple(map(int, weight.shape[2:])), 1), both(attrs["stride"], 1),
        both(attrs["dilation"], 1), both(over, (0, 0)),
    )  # fmt: skip


def is_taken(site: Site) -> bool:
    """Whether these kernels compute such a call, where its operands lie well: products of half a
    panel of columns, and convolutions of lines or images that are deep enough, half of whose sums
    are columns.
    """
    columns, depth, *window = site.call.in_shapes[1]
    if site.call.op.name != "conv":
        return bool(2 * columns >= blocks.PANEL)
    if 2 * columns < blocks.sums_for(columns):
        return False
    is_deep = LEAST_DEPTH <= depth <= blocks.ZERO_COUNT
    return is_deep and site.call.attrs["groups"] == 1 and len(window) <= SPATIAL


# --- kernels -------------------------------------------------------------------------------------


def laid_out(weight: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = blocks.laid_out(weight.numpy())
    return found


def threads() -> int:
    return torch.get_num_threads() if all(blocks.runtime_addresses()) else 1


def _room(image: Image) -> int:
    taps, is_gated = prod(image.window), len(image.weights) > 1
    widened = 0 if image.is_laid_out else image.depth
    return windows.room_of(image.group, taps, image.columns, is_gated, widened)


def scratch_of(image: Image, words: int) -> tuple[Scratch, ...]:
    """So many words, and a copy of an image that lies in another way."""
    found: Scratch = ((words,), "int64")
    return (found,) if _lies_well(image.x) else (found, ((image.most_elements,), image.x.dtype))


def _scratch_of(image: Image) -> tuple[Scratch, ...]:
    """What a job and its threads write."""
    return scratch_of(image, windows.JOB + threads() * _room(image))


def strides_of(image: Image) -> list[Coord]:
    """From image to image, line to line and point to point: of x, of its channels, of the result
    and of what is added.
    """
    seen = [image.x, image.out, image.ends.more or image.out]
    found = [view.strides[axis] for view in seen for axis in (0, LINE, POINT)]
    return [*found[:3], image.x.strides[1], *found[3:]]


def _bind(image: Image, scratch: tuple[View, ...]) -> Bound:
    none, more = windows.NONE, image.ends.more
    words, *copied = map(span, scratch)
    *gate, weight = (
        Prepared(weight, laid_out) if image.is_laid_out else span(weight)
        for weight in image.weights
    )
    apart = image.weights[0].strides[0] * ITEMSIZE[image.weights[0].dtype]
    sizes = *image.x.shape[2:], image.out.shape[0], *image.out.shape[2:]
    low = tuple(first for first, _ in image.over)
    pairs = [n for pair in (image.window, image.stride, image.gaps, low) for n in pair]
    return compiled(
        windows.multiply,
        (
            words, span(image.x), copied[0] if copied else none, weight, gate[0] if gate else none,
            none if image.bias is None else span(image.bias), span(image.out),
            none if more is None else span(more), blocks.ZEROS, *strides_of(image), *sizes, *pairs,
            image.depth, image.columns, image.ends.function, image.ends.least, image.ends.most,
            image.held, apart,
            0 if image.is_laid_out else windows.widening(), image.group, threads(),
            _room(image),
            *blocks.runtime_addresses(), *windows.computing(),
        ),
    )  # fmt: skip


def _cost(site: Site) -> float:
    weights = sum(site.operand(1 + i).size_bytes for i in range(1 + _is_gated(site)))
    flops = site.call.op.flops(site.call, site.out_box)
    return CALL_NS + max(flops / FLOPS_PER_NS, weights / STREAM)


def _is_gated(site: Site) -> bool:
    return site.call.op.name == "gated_linear"


def _kernel(
    op: str, find: Callable[[Site], Image | None], posts: frozenset[str], prepares: tuple[int, ...]
) -> Kernel:
    def image_of(site: Site) -> Image:
        found = find(site)
        assert found is not None
        return found

    return Kernel(
        f"{op}_panels", op, lambda site: find(site) is not None, _cost,
        lambda site, scratch: _bind(image_of(site), scratch),
        lambda site: _scratch_of(image_of(site)), ("cpu",),
        prepares=prepares, layout="panels" if prepares else "", posts=posts, threads=OPENMP,
        compiles=True,
    )  # fmt: skip


# --- attention -----------------------------------------------------------------------------------


def _masked_heads(site: Site) -> Heads | None:
    """What attends to what; a mask says what is open, or is added to scores."""
    h = heads_alike(site)
    is_taken = h is not None and (h.mask is None or h.mask.dtype in ("bool", *SINGLE))
    return h if is_taken else None


def _heads(site: Site) -> Heads:
    found = heads_alike(site)
    assert found is not None
    return found


def _room_of_heads(site: Site) -> int:
    """Of as many keys as there are anywhere, where their number moves."""
    h, most = _heads(site), int(site.call.in_shapes[1][2])
    keys = h.k.shape[2]
    return attending.room_of(
        keys if type(keys) is int else most, int(h.k.shape[3]), int(h.v.shape[3])
    )


def _scratch_of_heads(site: Site) -> tuple[Scratch, ...]:
    return (((attending.JOB + 1 + threads() * _room_of_heads(site),), "int64"),)


def _bind_heads(site: Site, scratch: tuple[View, ...]) -> Bound:
    h, (words,) = _heads(site), scratch
    batch, heads, rows, depth = h.q.shape
    _, shared, keys, wide = h.v.shape
    places = [one for view in (h.q, h.k, h.v) for one in (span(view), *view.strides[:3])]
    mask: list[Any] = [attending.NO_MASK, 0, 0, 0, -1]
    if h.mask is not None:
        seen = h.mask.expand(batch, heads, rows, keys)
        mask = [span(seen), *seen.strides]
    box = site.in_boxes[1]
    assert box is not None
    return compiled(
        attending.attend,
        (
            span(words), *places, *mask, span(h.out), *h.out.strides[:3], blocks.ZEROS, batch,
            heads, shared, rows, box[2][0], keys, depth, wide, h.scale, threads(),
            _room_of_heads(site), *blocks.runtime_addresses(), *attending.computing(),
        ),
    )  # fmt: skip


def _cost_of_heads(site: Site) -> float:
    h = _heads(site)
    rows, keys = value_of(h.q.shape[2]), value_of(h.k.shape[2])
    scores = value_of(h.q.shape[0]) * value_of(h.q.shape[1]) * rows * keys
    width = value_of(h.k.shape[3]) + value_of(h.v.shape[3])
    laid_out = (h.k.elements + h.v.elements) / MOVED_PER_NS
    return 2 * CALL_NS + laid_out + 2 * scores * width / FLOPS_PER_NS + scores / SCORES_PER_NS


ATTENTION = Kernel(
    "attention_panels", "attention", lambda site: _masked_heads(site) is not None, _cost_of_heads,
    _bind_heads, _scratch_of_heads, ("cpu",), threads=OPENMP, compiles=True,
)  # fmt: skip
PANELS = (
    ATTENTION,
    _kernel("linear", _product, POSTS, (1,)),
    _kernel("gated_linear", _product, frozenset(), (1, 2)),
    _kernel("conv", convolution_of, POSTS, (1,)),
    _kernel("widening_linear", _widening, POSTS, ()),
)


def register_panels() -> Callable[[Site], bool]:
    """Register these kernels, where numba is there. Whether they are who computes a call of some
    site, whatever libraries do: those have code of their own for AVX-512, and for nothing less.
    """
    if blocks is None:
        return lambda site: False
    for kernel in PANELS:
        register(kernel)
    return lambda site: not blocks.IS_WIDE and is_taken(site)
