"""The kernels of pools, means and resampling, for images whose channels lie side by side.

PyTorch's go over the result once a tap, or make a product of each dimension; here a point is
written once, or while it is near. Sizes, borders and places are arguments, so a kernel serves every
window of an image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.base.coords import Coord, same, value_of
from tgbench.graph.op_table import Call
from tgbench.graph.ops.images.pool import least, pool_windows
from tgbench.graph.ops.images.resample import changed_axes, nearest_index, taps_of
from tgbench.kernels.numba.points import as_image, both
from tgbench.kernels.numba.rows import CALL_NS, TYPES, add_kernel, compiled, span
from tgbench.kernels.registry import Site, View, once_a_site
from tgbench.kernels.torch.conv import overhang, sees_input
from tgbench.kernels.torch.elementwise import line_length, reduces
from tgbench.kernels.torch.packed import SPATIAL
from tgbench.kernels.views import Bound, inputs, whole_reads

try:
    from tgbench.kernels.numba import stencils
except ImportError:
    stencils = None  # type: ignore[assignment]

TAP_NS, BETWEEN_NS, POINT_NS = 0.06, 0.15, 3.0  # an element of a tap, or a result; a point
MOST_TABLES = 4096
Table = tuple[NDArray[np.int64], NDArray[Any]]


@once_a_site
def _images(site: Site) -> tuple[View, View] | None:
    """What is read and the result, [images, channels, lines, points]; None where channels lie
    elsewhere.
    """
    if site.out.dtype not in TYPES or site.out.rank > 2 + SPATIAL or not sees_input(site):
        return None
    x, out = map(as_image, (*inputs(site), site.out))
    is_beside = all(same(v.strides[1], 1) or same(v.shape[1], 1) for v in (x, out))
    return (x, out) if is_beside and all(not step < 0 for step in x.strides) else None


def _found(site: Site) -> tuple[View, View]:
    found = _images(site)
    assert found is not None
    return found


def _places(*images: View) -> list[Any]:
    """Each from its first element on, and how far images, lines and points are apart."""
    return [one for v in images for one in (span(v), v.strides[0], *v.strides[2:])]


def _points(site: Site) -> int:
    batch, _, *sizes = map(value_of, site.out.shape)
    return batch * prod(sizes)


# --- pools ---------------------------------------------------------------------------------------


def _pool_cost(site: Site) -> float:
    taps = prod(site.call.attrs["kernel"])
    return CALL_NS + taps * (TAP_NS * site.out.elements + POINT_NS * _points(site))


def _binding(is_largest: bool) -> Callable[[Site, tuple[View, ...]], Bound]:
    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        (x, out), attrs = _found(site), site.call.attrs
        over = overhang(site, pool_windows(attrs, site.call.in_shapes[0]))
        pairs = (attrs["kernel"], 1), (attrs["stride"], 1), (attrs["dilation"], 1)
        low: tuple[Coord, Coord] = both([first for first, _ in over], 0)
        arguments = (
            *_places(x, out), *x.shape[2:], out.shape[0], out.shape[1], *out.shape[2:],
            *(n for sizes, one in pairs for n in both(sizes, one)), *low, int(is_largest),
            float(least(out.dtype)) if is_largest else 0.0,
        )  # fmt: skip
        return compiled(stencils.pool, arguments)

    return bind


@once_a_site
def _all_points(site: Site) -> tuple[View, View] | None:
    """An image [images, channels, lines, points] whose points are all taken together, and the
    result's rows, a channel beside the other; None for other sums, or where channels lie elsewhere.
    """
    rank, out = len(site.call.in_shapes[0]), site.out
    is_spatial = sorted(site.call.attrs["axes"]) == [*range(2, rank)]
    if not is_spatial or out.dtype not in TYPES or rank > 2 + SPATIAL or not reduces(site):
        return None
    x = as_image(site.operand(0))
    is_beside = all(same(v.strides[1], 1) or same(v.shape[1], 1) for v in (x, out))
    return (x, out) if is_beside and all(not step < 0 for step in x.strides) else None


def _mean_cost(site: Site) -> float:
    return CALL_NS + TAP_NS * value_of(site.operand(0).elements)


def _bind_mean(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _all_points(site)
    assert found is not None
    x, out = found
    arguments = (
        span(x), x.strides[0], *x.strides[2:], span(out), out.strides[0], *x.shape,
        line_length(site),
    )  # fmt: skip
    return compiled(stencils.mean, arguments)


# --- resampling ----------------------------------------------------------------------------------


@lru_cache(MOST_TABLES)
def _table(key: tuple[Any, ...], mode: str, align_corners: bool, dtype: str) -> Table:
    """Of each element along an axis: the first that it is made of, and the next one's share."""
    if mode != "linear":
        at = nearest_index(*key, mode == "nearest_exact")
        return at, np.zeros(len(at), dtype)
    (at, after), (_, share) = taps_of("linear", *key, align_corners)
    return at, np.where(after > at, share, 0.0).astype(dtype)


def _tables(call: Call, dtype: str) -> list[Table]:
    """Of each spatial dimension."""
    attrs = call.attrs
    keys = {axis: tuple(key) for axis, *key in changed_axes(attrs, call.in_shapes[0])}
    mode, align_corners = attrs["mode"], attrs.get("align_corners", False)
    return [
        _table(keys[axis], mode, align_corners, dtype)
        if axis in keys
        else (np.arange(size), np.zeros(size, dtype))
        for axis, size in enumerate(call.in_shapes[0][2:], start=2)
    ]


def _by_two(site: Site) -> tuple[View, View] | None:
    """The same, where an element is made of no more than two along each dimension."""
    return None if site.call.attrs["mode"] == "cubic" else _images(site)


def _resample_cost(site: Site) -> float:
    return CALL_NS + BETWEEN_NS * site.out.elements + POINT_NS * _points(site)


def _bind_resample(site: Site, scratch: tuple[View, ...]) -> Bound:
    (x, out), have = _found(site), whole_reads(site)[0]
    assert have is not None
    none = np.zeros(1, np.int64), np.zeros(1, out.dtype)
    tables = both(_tables(site.call, out.dtype), none)
    starts = [both([start for start, _ in box[2:]], 0) for box in (site.out_box, have)]
    places = [one for pair in zip(*starts, strict=True) for one in pair]
    arguments = (
        *_places(x, out), out.shape[0], out.shape[1], *out.shape[2:], *places,
        *(array for table in tables for array in table),
    )  # fmt: skip
    return compiled(stencils.resample, arguments)


if stencils is not None:
    add_kernel("max_pool_numba", "max_pool", _images, _pool_cost, _binding(True))
    add_kernel("sum_pool_numba", "sum_pool", _images, _pool_cost, _binding(False))
    add_kernel("mean_numba", "mean", _all_points, _mean_cost, _bind_mean)
    add_kernel("upsample_numba", "upsample", _by_two, _resample_cost, _bind_resample)
