"""What a session hands out: parts of outputs as the caller indexed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tgbench.base.regions import Box, Region
from tgbench.runs.buckets import region_of_index

Parts = Sequence[tuple[Box, torch.Tensor]]
Plain = Sequence[tuple[Box, Any]]  # with arrays, where NumPy can: it slices quicker


def gather(
    parts: Parts,
    origin: tuple[int, ...],
    region: Region,
    index: Any,
    shape: Sequence[int],
    copy: bool,
    as_torch: bool,
    is_own: bool = True,
) -> Any:
    """The wanted part of an output of this shape as the caller indexed it, NumPy or torch.

    `parts` are boxes over a program's origin, with their tensors: those of the demanded region if
    the program is the run's own, else of a larger one. What is not a copy is a view that cannot be
    written through.
    """
    if len(parts) == 1 and not isinstance(index, (Region, list)):
        (box, tensor), wanted = parts[0], region.boxes[0]
        if is_own or box.at(origin) == wanted:
            return _handed(_plain(tensor), _dropped(index, len(wanted)), copy, as_torch)
    parts = [(box.at(origin), _plain(tensor)) for box, tensor in parts]
    if isinstance(index, Region):
        return [_piece(parts, box, ..., copy, as_torch) for box in index]
    if isinstance(index, list):
        hulls = [region_of_index(part, shape, "part").hull() for part in index]
        return [
            _piece(parts, hull, part, copy, as_torch)
            for hull, part in zip(hulls, index, strict=True)
        ]
    return _piece(parts, region.hull(), index, copy, as_torch)


def _plain(tensor: torch.Tensor) -> Any:
    return tensor.numpy() if tensor.is_cpu and tensor.dtype != torch.bfloat16 else tensor


def _piece(parts: Plain, hull: Box, index: Any, copy: bool, as_torch: bool) -> Any:
    for box, tensor in parts:
        if box.contains(hull):
            found = tensor[(..., *_inside(hull, box))]  # `...`: what has no dimensions stays one
            break
    else:
        found = _assembled(parts, hull)
    return _handed(found, _dropped(index, len(hull)), copy, as_torch)


def _handed(found: Any, dropped: Sequence[int], copy: bool, as_torch: bool) -> Any:
    """NumPy copies on one core: torch's copy of a few rows waits for threads that may be busy."""
    if isinstance(found, torch.Tensor):
        for axis in reversed(dropped):
            found = found.select(axis, 0)
        owned = found.clone() if copy else found
        if as_torch:
            return owned
        return (owned.float() if owned.dtype == torch.bfloat16 else owned).cpu().numpy()
    array = found
    if dropped:
        array = array[tuple([0 if axis in dropped else slice(None) for axis in range(array.ndim)])]
        array = np.asarray(array)
    if not copy:
        array.flags.writeable = False
        return array
    owned_array = array.copy()
    return torch.from_numpy(owned_array) if as_torch else owned_array


def _assembled(parts: Plain, hull: Box) -> Any:
    """A box that lies across several demanded ones."""
    first = parts[0][1]
    shape: Any = hull.extents
    found = (
        first.new_empty(shape) if isinstance(first, torch.Tensor) else np.empty(shape, first.dtype)
    )
    for box, tensor in parts:
        shared = box.intersect(hull)
        if shared is not None:
            found[_inside(shared, hull)] = tensor[_inside(shared, box)]
    return found


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """A box relative to the start of an outer one."""
    sides = zip(box, outer, strict=True)
    return tuple([slice(a - start, b - start) for (a, b), (start, _) in sides])


def _dropped(index: Any, rank: int) -> list[int]:
    """Axes that an index takes away: those given as integers."""
    if index is Ellipsis:
        return []
    parts = index if isinstance(index, tuple) else (index,)
    if set(map(type, parts)) == {int}:
        return list(range(len(parts)))
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts = (*parts[:at], *[slice(None)] * (rank - len(parts) + 1), *parts[at + 1 :])
    return [axis for axis, part in enumerate(parts) if isinstance(part, (int, np.integer))]
