"""What a session hands out: parts of outputs as the caller indexed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tgbench.buckets import region_of_index
from tgbench.regions import Box, Region

Parts = Sequence[tuple[Box, torch.Tensor]]


def gather(parts: Parts, region: Region, index: Any, copy: bool) -> Any:
    """The wanted part of an output as the caller indexed it."""
    if isinstance(index, Region):
        return [_piece(parts, box, ..., copy) for box in index]
    if isinstance(index, list):
        shape = tuple(1 << 62 for _ in region.hull())
        return [
            _piece(parts, region_of_index(part, shape, "part").hull(), part, copy) for part in index
        ]
    return _piece(parts, region.hull(), index, copy)


def _piece(parts: Parts, hull: Box, index: Any, copy: bool) -> Any:
    for box, tensor in parts:
        if box.contains(hull):
            found = tensor[_inside(hull, box)]
            break
    else:
        copy = False
        found = torch.empty([b - a for a, b in hull], dtype=parts[0][1].dtype)  # type: ignore[misc]
        found = found.to(parts[0][1].device)
        for box, tensor in parts:
            shared = box.intersect(hull)
            if shared is not None:
                found[_inside(shared, hull)] = tensor[_inside(shared, box)]
    for axis in reversed(_dropped(index, len(hull))):
        found = found.select(axis, 0)
    return found.clone() if copy else found


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """A box relative to the start of an outer one."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True))


def _dropped(index: Any, rank: int) -> list[int]:
    """Axes that an index takes away: those given as integers."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts = (*parts[:at], *[slice(None)] * (rank - len(parts) + 1), *parts[at + 1 :])
    return [axis for axis, part in enumerate(parts) if isinstance(part, (int, np.integer))]


def to_numpy(value: Any) -> Any:
    if isinstance(value, list):
        return [to_numpy(part) for part in value]
    tensor = value.cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
