"""Ops that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tgbench.graph import ops
from tgbench.graph.graph import Node, axis_of
from tgbench.sources.torch.table import CallSite, lowers, refuse


@lowers(
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
    "aten.view_as.default", "aten.reshape_as.default", "aten.flatten.using_ints",
    "aten.unflatten.int", "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim",
    "aten.squeeze.dims", "aten.ravel.default", "aten.atleast_1d.default",
)  # fmt: skip
def _reshape(site: CallSite, x: Node, *_: Any, **__: Any) -> Node:
    """Every op that keeps the row-major order is a reshape to the shape that PyTorch found."""
    return x if x.shape == site.shape else x.reshape(*site.shape)


@lowers("aten.permute.default")
def _permute(site: CallSite, x: Node, dims: Sequence[int]) -> Node:
    return x.permute(*dims)


@lowers("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def _transpose(site: CallSite, x: Node, a: int, b: int) -> Node:
    return x.transpose(a, b) if x.rank > 1 else x


@lowers("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
def _t(site: CallSite, x: Node) -> Node:
    return x.transpose() if x.rank > 1 else x


@lowers("aten.movedim.int", "aten.movedim.intlist")
def _movedim(site: CallSite, x: Node, source: Any, target: Any) -> Node:
    sources = [source] if isinstance(source, int) else source
    targets = [target] if isinstance(target, int) else target
    moved = {axis_of(x, t): axis_of(x, s) for s, t in zip(sources, targets, strict=True)}
    rest = iter(axis for axis in range(x.rank) if axis not in moved.values())
    return x.permute(*(moved[i] if i in moved else next(rest) for i in range(x.rank)))


@lowers("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def _expand(site: CallSite, x: Node, *_: Any, **__: Any) -> Node:
    return x if x.shape == site.shape else x.expand(*site.shape)


@lowers("aten.repeat.default", "aten.tile.default")
def _repeat(site: CallSite, x: Node, repeats: Sequence[int]) -> Node:
    """`tile` may name fewer dimensions than there are."""
    return ops.repeat(x, *[1] * (x.rank - len(repeats)), *repeats)


@lowers("aten.repeat_interleave.self_int")
def _interleave(site: CallSite, x: Node, times: int, dim: int | None = None, **_: Any) -> Node:
    return ops.repeat_interleave(x.reshape(-1) if dim is None else x, times, dim or 0)


# --- parts ----------------------------------------------------------------------------------------


def _along(axis: int, part: slice | int) -> tuple[slice | int, ...]:
    return (slice(None),) * axis + (part,)


@lowers("aten.slice.Tensor")
def _slice(
    site: CallSite,
    x: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    return x[_along(axis_of(x, dim), slice(start, end, step))]


@lowers("aten.narrow.default")
def _narrow(site: CallSite, x: Node, dim: int, start: int, length: int) -> Node:
    first = start % x.shape[dim] if length else start
    return x[_along(axis_of(x, dim), slice(first, first + length))]


@lowers("aten.select.int")
def _select(site: CallSite, x: Node, dim: int, index: int) -> Node:
    return x[_along(axis_of(x, dim), index)]


@lowers("aten.unbind.int")
def _unbind(site: CallSite, x: Node, dim: int = 0) -> tuple[Node | None, ...]:
    count = x.shape[axis_of(x, dim)]
    return tuple(_select(site, x, dim, i) if i in site.used else None for i in range(count))


@lowers(
    "aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default",
    "aten.tensor_split.sections", "aten.unsafe_chunk.default", "aten.unsafe_split.Tensor",
)  # fmt: skip
def _split(site: CallSite, x: Node, sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    """Where to cut follows from the shapes of the pieces."""
    axis = axis_of(x, dim)
    return tuple(ops.split(x, [out.shape[axis] for out in site.outs if out is not None], axis))


@lowers("aten.unfold.default")
def _unfold(site: CallSite, x: Node, dim: int, size: int, step: int) -> Node:
    """Windows along a dimension; what stands in each comes last."""
    axis = axis_of(x, dim)
    starts = np.arange(0, x.shape[axis] - size + 1, step)
    windows = ops.gather(x, x.builder.constant(starts[:, None] + np.arange(size)), axis)
    return windows.permute(*(i for i in range(x.rank + 1) if i != axis + 1), axis + 1)


@lowers("aten.diagonal.default")
def _diagonal(site: CallSite, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """Two dimensions as one, of which every so many elements are taken."""
    first, second = axis_of(x, dim1), axis_of(x, dim2)
    rest = [axis for axis in range(x.rank) if axis not in (first, second)]
    flat = x.permute(*rest, first, second).reshape(*(x.shape[axis] for axis in rest), -1)
    columns = x.shape[second]
    start = offset if offset >= 0 else -offset * columns
    places = start + np.arange(site.shape[-1]) * (columns + 1)
    return ops.gather(flat, x.builder.constant(places), -1)


@lowers("aten.tril.default")
def _tril(site: CallSite, x: Node, diagonal: int = 0) -> Node:
    return ops.tril(x, diagonal)


@lowers("aten.triu.default")
def _triu(site: CallSite, x: Node, diagonal: int = 0) -> Node:
    return ops.triu(x, diagonal)


# --- joining --------------------------------------------------------------------------------------


@lowers("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def _cat(site: CallSite, tensors: Sequence[Node | None], dim: int = 0) -> Node:
    """PyTorch lets empty tensors of rank 1 stand among the pieces; they arrive here as None."""
    pieces = [piece.cast(site.dtype) for piece in tensors if piece is not None]
    return ops.concat(pieces, dim % len(site.shape))


@lowers("aten.stack.default")
def _stack(site: CallSite, tensors: Sequence[Node], dim: int = 0) -> Node:
    return ops.stack([piece.cast(site.dtype) for piece in tensors], dim)


@lowers("aten.flip.default")
def _flip(site: CallSite, x: Node, dims: Sequence[int]) -> Node:
    return ops.flip(x, *dims)


@lowers("aten.roll.default")
def _roll(site: CallSite, x: Node, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    if dims:
        return ops.roll(x, tuple(shifts), tuple(dims))
    return ops.roll(x.reshape(-1), tuple(shifts), (0,)).reshape(*site.shape)


# --- margins --------------------------------------------------------------------------------------


def _sides(x: Node, padding: Sequence[int]) -> tuple[list[int], list[int]]:
    """(low, high) for the last dimension, then the one before, as lists over all dimensions."""
    low, high = [0] * x.rank, [0] * x.rank
    for i in range(len(padding) // 2):
        low[x.rank - 1 - i], high[x.rank - 1 - i] = padding[2 * i], padding[2 * i + 1]
    return low, high


@lowers("aten.constant_pad_nd.default")
def _constant_pad(site: CallSite, x: Node, padding: Sequence[int], value: float = 0.0) -> Node:
    """Padding below 0 cuts."""
    low, high = _sides(x, padding)
    cut = x[tuple(
        slice(max(-a, 0), size - max(-b, 0)) for a, b, size in zip(low, high, x.shape, strict=True)
    )]  # fmt: skip
    margins = [max(a, 0) for a in low], [max(b, 0) for b in high]
    return ops.pad(cut, *margins, value) if any(map(any, margins)) else cut


@lowers("aten.pad.default")
def _pad(
    site: CallSite,
    x: Node,
    padding: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Node:
    if mode == "constant":
        return _constant_pad(site, x, padding, 0.0 if value is None else value)
    return _mirrored(x, padding, mode)


@lowers("aten.reflection_pad1d.default", "aten.reflection_pad2d.default")
def _reflection(site: CallSite, x: Node, padding: Sequence[int]) -> Node:
    return _mirrored(x, padding, "reflect")


@lowers("aten.replication_pad1d.default", "aten.replication_pad2d.default")
def _replication(site: CallSite, x: Node, padding: Sequence[int]) -> Node:
    return _mirrored(x, padding, "replicate")


def _mirrored(x: Node, padding: Sequence[int], mode: str) -> Node:
    refuse(min(padding) < 0, f"{mode} padding {list(padding)} below 0; slice instead")
    low, high = _sides(x, padding)
    return ops.pad_with(x, low, high, mode)


# --- writing into a copy --------------------------------------------------------------------------


@lowers("aten.slice_scatter.default")
def _slice_scatter(
    site: CallSite,
    x: Node,
    source: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    refuse(step != 1, f"an assignment to a slice of step {step}; use step 1")
    axis = axis_of(x, dim)
    first, _, _ = slice(start, end).indices(x.shape[axis])
    starts = [first if i == axis else 0 for i in range(x.rank)]
    return ops.update(x, source.cast(site.dtype), starts)


@lowers("aten.select_scatter.default")
def _select_scatter(site: CallSite, x: Node, source: Node, dim: int, index: int) -> Node:
    axis = axis_of(x, dim)
    rows = source.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    first = index % x.shape[axis]
    return _slice_scatter(site, x, rows, axis, first, first + 1)
