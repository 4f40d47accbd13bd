"""What a session hands out: parts of outputs as the caller indexed them.

    an index ── Wish ──→ pieces ── gather ──→ views of a program's tensors ──→ copies

What an index says is worked out when it is first met, and where a program has a piece of it when it
first hands that out where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from tgbench.base.regions import Box, Region
from tgbench.runs.buckets import Boxes, boxes_by_name, region_of_index

Parts: TypeAlias = Sequence[tuple[Box, torch.Tensor]]
Shown: TypeAlias = "dict[Piece, Any]"  # views of a program's tensors, where it stands
MOST_SHOWN = 64  # pieces of a program's results, of which it is remembered where they lie
Plain: TypeAlias = Sequence[tuple[Box, Any]]  # with arrays, where NumPy can: it slices quicker


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """One array that is handed out.

    Fields:
        box: the elements.
        within: how an array of them is indexed so that dimensions that were given as an integer are
            gone; None where there are none.
    """

    box: Box
    within: tuple[Any, ...] | None

    @staticmethod
    def of(box: Box, index: Any) -> Piece:
        dropped = _dropped(index, len(box))
        if not dropped:
            return Piece(box, None)
        sides = [0 if axis in dropped else slice(None) for axis in range(len(box))]
        return Piece(box, (..., *sides))  # `...`: what has no dimensions stays an array


@dataclass(frozen=True, eq=False, slots=True)
class Wish:
    """What is wanted of an output.

    Fields:
        region: all of it.
        pieces: the arrays that it is handed out as: a list of them, if it was asked for as one.
    """

    region: Region
    pieces: Sequence[Piece]
    is_list: bool = False

    @staticmethod
    def of(region: Region, index: Any, shape: Sequence[int]) -> Wish:
        """As the caller indexed it, an output of this shape."""
        if isinstance(index, Region):
            return Wish(region, [Piece(box, None) for box in index], is_list=True)
        if isinstance(index, list):
            hulls = [region_of_index(part, shape, "part").hull() for part in index]
            return Wish(region, list(map(Piece.of, hulls, index)), is_list=True)
        return Wish(region, [Piece.of(region.hull(), index)])


class Wishes:
    """What is wanted of each output.

    Fields:
        by_name: of each.
        boxes: the same as a bucket has it.
    """

    __slots__ = ("boxes", "by_name")

    def __init__(self, wishes: Mapping[str, Wish]) -> None:
        self.by_name = wishes
        self.boxes: Boxes = boxes_by_name({name: wish.region for name, wish in wishes.items()})


def gather(
    parts: Parts,
    origin: tuple[int, ...],
    wish: Wish,
    is_own: bool,
    shown: Shown,
    copy: bool,
    as_torch: bool,
) -> Any:
    """What is wanted of an output, as NumPy arrays or torch tensors.

    What is not a copy is a view that cannot be written through.

    Args:
        parts: boxes over a program's origin, with their tensors: those of the demanded region if
            the program is the run's own, else of a larger one.
        shown: views of them that were found at this origin; what is found now is added.
    """
    if not wish.is_list:
        [piece] = wish.pieces
        found = shown.get(piece)
        if found is None:
            found = _found(parts, origin, piece, is_own, shown)
        if copy and not as_torch and type(found) is np.ndarray:
            return found.copy()  # as most are
        return _handed(found, copy, as_torch)
    return [
        _handed(_found(parts, origin, piece, False, shown), copy, as_torch) for piece in wish.pieces
    ]


def _found(
    parts: Parts,
    origin: tuple[int, ...],
    piece: Piece,
    is_all: bool,
    shown: Shown,
) -> Any:
    """A piece: a view of a part, or assembled of several; `is_all` if it is all that is there."""
    found = shown.get(piece)
    if found is not None:
        return found
    if is_all and len(parts) == 1:
        found = _plain(parts[0][1])
    else:
        there = []
        for box, tensor in parts:
            here = box.at(origin)
            if here.contains(piece.box):
                found = _plain(tensor)[(..., *_inside(piece.box, here))]
                break
            there.append((here, tensor))
        else:
            plain = [(box, _plain(tensor)) for box, tensor in there]
            assembled = _assembled(plain, piece.box)
            return assembled if piece.within is None else assembled[piece.within]
    if piece.within is not None:
        found = found[piece.within]
    if len(shown) >= MOST_SHOWN:
        shown.clear()
    shown[piece] = found
    return found


def _plain(tensor: torch.Tensor) -> Any:
    return tensor.numpy() if tensor.is_cpu and tensor.dtype != torch.bfloat16 else tensor


def _handed(found: Any, copy: bool, as_torch: bool) -> Any:
    """NumPy copies on one core: torch's copy of a few rows waits for threads that may be busy."""
    if type(found) is not np.ndarray:
        owned = found.clone() if copy else found
        if as_torch:
            return owned
        return (owned.float() if owned.dtype == torch.bfloat16 else owned).cpu().numpy()
    if not copy:
        view = found.view()
        view.flags.writeable = False
        return view
    owned_array = found.copy()
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
