"""Tensors that follow the origin: they are pointed elsewhere in place.

    forms of shapes, strides and offsets  +  origin  →  numbers

Equal layers share forms: each that differs is worked out once a move (`Forms`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch

from tgbench.base.coords import Coord, Moving, at, total_at
from tgbench.base.swept import Terms, entry
from tgbench.kernels.binding import Buffers, tensor_of
from tgbench.kernels.registry import View

Origin: TypeAlias = tuple[int, ...]
Saved: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]  # (where it lies, its copy)


class Here(NamedTuple):
    """What forms are at an origin.

    Fields:
        tuples: shapes and strides, by number.
        sums: Σ coefficient · origin[index] of what offsets are made of, by number.
    """

    tuples: list[tuple[int, ...]]
    sums: list[int]


class Forms:
    """What views of a program share, numbered."""

    def __init__(self) -> None:
        self._tuples: dict[tuple[Coord, ...], int] = {}
        self._moving: list[int] = []  # of these, that differ from place to place
        self._sums: dict[Terms, int] = {}
        self._entries: dict[int, None] = {}  # of the origin, and tables, that forms go with

    def of_tuple(self, forms: tuple[Coord, ...]) -> int:
        found = self._tuples.get(forms)
        if found is None:
            found = self._tuples[forms] = len(self._tuples)
            if Moving in map(type, forms):
                self._moving.append(found)
                self._take(i for one in forms if isinstance(one, Moving) for i, _ in one.terms)
        return found

    def _take(self, entries: Iterable[int]) -> None:
        self._entries.update(dict.fromkeys(entries))

    def of_coord(self, form: Coord) -> tuple[int, int, int]:
        """const, which sum, per: the form is (const + sum) / per."""
        const, terms, per = (
            (form.const, form.terms, form.per) if isinstance(form, Moving) else (form, (), 1)
        )
        self._take(i for i, _ in terms)
        return const, self._sums.setdefault(terms, len(self._sums)), per

    def at(self, origin: Origin) -> Here:
        here = {i: entry(origin, i) for i in self._entries}
        tuples: list[Any] = list(self._tuples)
        for i in self._moving:
            tuples[i] = tuple([at(one, here) for one in tuples[i]])
        return Here(tuples, [total_at(0, terms, here) for terms in self._sums])


def moves(view: View) -> bool:
    return (
        type(view.offset) is Moving
        or Moving in map(type, view.shape)
        or Moving in map(type, view.strides)
    )


def pointed(view: View, buffers: Buffers, origin: Origin) -> torch.Tensor:
    """The tensor that a view describes at an origin."""
    if not moves(view):
        return tensor_of(view, buffers)
    flat = buffers[view.buffer, view.dtype]
    shape, strides = ([at(one, origin) for one in forms] for forms in (view.shape, view.strides))
    return flat.as_strided(shape, strides, int(flat.storage_offset()) + at(view.offset, origin))


class Follower:
    """A tensor that follows the origin."""

    __slots__ = ("const", "per", "shape", "strides", "tensor", "which")

    def __init__(self, tensor: torch.Tensor, view: View, buffers: Buffers, forms: Forms) -> None:
        self.tensor = tensor
        lead = int(buffers[view.buffer, view.dtype].storage_offset())
        self.shape, self.strides = forms.of_tuple(view.shape), forms.of_tuple(view.strides)
        self.const, self.which, self.per = forms.of_coord(view.offset + lead)

    def move(self, here: Here) -> None:
        tuples, sums = here
        offset = (self.const + sums[self.which]) // self.per
        self.tensor.as_strided_(tuples[self.shape], tuples[self.strides], offset)


class Spared:
    """What a program writes over that may still be wanted, and where copies of it go.

    Fields:
        origin: the one at hand; None where it is left nowhere.
        places: where it lies, there.
        pairs: each place, and its copy.
    """

    def __init__(self, views: Iterable[View], buffers: Buffers, origin: Origin) -> None:
        self.origin: Origin | None = origin
        self.pairs: Saved = []
        self.places: list[torch.Tensor] = []
        self._forms, self._moving = Forms(), list[Follower]()
        self._is_of_a_size = True
        for view in views:
            tensor = pointed(view, buffers, origin)
            self.places.append(tensor)
            if moves(view):
                self._is_of_a_size &= Moving not in map(type, view.shape)
                self._moving.append(Follower(tensor, view, buffers, self._forms))

    def moves_to(self, origin: Origin) -> bool:
        """Point the places at another origin's memory; False where they are of other sizes there,
        and so are copies.
        """
        if origin == self.origin:
            return True
        if not self._is_of_a_size:
            return False
        here, self.origin = self._forms.at(origin), None  # an interrupt leaves them nowhere
        for moving in self._moving:
            moving.move(here)
        self.origin = origin
        return True
