"""Ops that read or write where index values say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgbench.graph import ops
from tgbench.graph.graph import Node, axis_of
from tgbench.graph.ops.broadcasting import broadcast_shape
from tgbench.sources.torch.table import CallSite, lowers, refuse


@lowers("aten.embedding.default")
def _embedding(site: CallSite, table: Node, ids: Node, *_: object) -> Node:
    """Ids from 0 on; the index that pads, and what only gradients know of, change no value."""
    return ops.embedding(table, ids)


@lowers("aten.index_select.default")
def _index_select(site: CallSite, x: Node, dim: int, index: Node) -> Node:
    return ops.gather(x, index, dim)


@lowers("aten.gather.default")
def _gather(site: CallSite, x: Node, dim: int, index: Node) -> Node:
    return ops.gather_elements(x, index, axis_of(x, dim))


@lowers("aten.index.Tensor")
def _index(site: CallSite, x: Node, indices: Sequence[Node | None]) -> Node:
    """x[:, i, j]: neighbouring indices become one, into the dimensions flattened.

    Those that are apart (`x[i, :, j]`) go to the front first, where PyTorch puts their dimension.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if axes != list(range(axes[0], axes[-1] + 1)):
        x = x.permute(*axes, *(axis for axis in range(x.rank) if axis not in axes))
        indices = [indices[axis] for axis in axes]
        axes = list(range(len(axes)))
    picked = [index for index in indices if index is not None]
    refuse(
        any(index.dtype == "bool" for index in picked),
        "a boolean index gives a shape that depends on values; use `where`",
    )
    sizes = x.shape[axes[0] : axes[-1] + 1]
    flat = x.reshape(*x.shape[: axes[0]], -1, *x.shape[axes[-1] + 1 :])
    return ops.gather(flat, _linear(picked, sizes), axes[0])


def _linear(indices: Sequence[Node], sizes: Sequence[int]) -> Node:
    """The row-major place that indices along several dimensions mean."""
    shape = broadcast_shape([index.shape for index in indices])
    total = _from_zero(indices[0].cast("int64"), sizes[0])
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        total = total * size + _from_zero(index.cast("int64"), size)
    return total if total.shape == shape else total.expand(*shape)


def _from_zero(index: Node, size: int) -> Node:
    """Indices that count from the end, counted from the start."""
    if index.op == "constant":
        array = index.attrs["data"].array
        return index.builder.constant(np.where(array < 0, array + size, array))
    return ops.where(index < 0, index + size, index)


@lowers("aten.scatter.src")
def _scatter(site: CallSite, x: Node, dim: int, index: Node, source: Node) -> Node:
    return ops.scatter_elements(x, index, source, axis_of(x, dim))


@lowers("aten.scatter.value")
def _scatter_value(site: CallSite, x: Node, dim: int, index: Node, value: float) -> Node:
    return _scatter(site, x, dim, index, site.full(index.shape, value, x.dtype))


@lowers("aten.scatter_add.default")
def _scatter_add(site: CallSite, x: Node, dim: int, index: Node, source: Node) -> Node:
    return ops.scatter_add(x, index, source, axis_of(x, dim))


@lowers("aten.index_copy.default")
def _index_copy(site: CallSite, x: Node, dim: int, index: Node, source: Node) -> Node:
    return ops.scatter(x, index, source, dim)


@lowers("aten.index_put.default")
def _index_put(
    site: CallSite, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False
) -> Node:
    """x[…, i, …] = values along one dimension, or a number at a mask."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    index = indices[axes[0]]
    assert index is not None
    if index.dtype == "bool" and not accumulate and values.type.elements == 1 and axes == [0]:
        mask = index.reshape(*index.shape, *(1,) * (x.rank - index.rank))
        return ops.where(mask, values.cast(x.dtype).reshape(*(1,) * x.rank), x)
    refuse(len(axes) != 1 or accumulate, "an assignment at several index tensors, or that adds")
    refuse(index.dtype == "bool" or index.rank != 1, "an assignment of many values at a mask")
    shape = (*x.shape[: axes[0]], index.shape[0], *x.shape[axes[0] + 1 :])
    rows = values.cast(x.dtype)
    spread = rows if rows.shape == shape else rows.expand(*shape)
    return ops.scatter(x, _from_zero(index.cast("int64"), x.shape[axes[0]]), spread, axes[0])
