"""Tensors that follow the origin: they are pointed elsewhere in place.

    forms of shapes, strides and offsets  +  origin  →  numbers

Equal layers share forms: each that differs is worked out once a move (`ViewForms`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch

from tgbench.base.coords import Coord, Moving, at
from tgbench.base.forms import Forms
from tgbench.kernels.binding import Buffers, tensor_of
from tgbench.kernels.registry import View

Origin: TypeAlias = tuple[int, ...]
Part: TypeAlias = tuple[int, int]  # see `ViewForms.of_coord`
Saved: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]  # (where it lies, its copy)


class Here(NamedTuple):
    """What views are made of at an origin.

    Fields:
        tuples: shapes and strides, by number.
        numbers: what forms are, by number.
    """

    tuples: list[tuple[int, ...]]
    numbers: list[int]


class ViewForms:
    """What views of a program share, numbered."""

    def __init__(self) -> None:
        self._forms = Forms()
        self._tuples: dict[tuple[Coord, ...], int] = {}
        self._moving: dict[int, list[Part]] = {}  # of these, that differ from place to place

    def of_tuple(self, forms: tuple[Coord, ...]) -> int:
        """The number of a shape, or of strides."""
        found = self._tuples.get(forms)
        if found is None:
            found = self._tuples[forms] = len(self._tuples)
            if Moving in map(type, forms):
                self._moving[found] = list(map(self.of_coord, forms))
        return found

    def of_coord(self, form: Coord) -> Part:
        """A number, and which form is added to it; −1 for none."""
        return (0, self._forms.number(form)) if isinstance(form, Moving) else (form, -1)

    def at(self, origin: Origin) -> Here:
        numbers = [*self._forms.at(origin), 0]
        tuples: list[Any] = list(self._tuples)
        for i, parts in self._moving.items():
            tuples[i] = tuple([const + numbers[which] for const, which in parts])
        return Here(tuples, numbers)


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

    __slots__ = ("offset", "shape", "strides", "tensor")

    def __init__(
        self, tensor: torch.Tensor, view: View, buffers: Buffers, forms: ViewForms
    ) -> None:
        self.tensor = tensor
        lead = int(buffers[view.buffer, view.dtype].storage_offset())
        self.shape, self.strides = forms.of_tuple(view.shape), forms.of_tuple(view.strides)
        self.offset = forms.of_coord(view.offset + lead)

    def move(self, here: Here) -> None:
        (tuples, numbers), (const, which) = here, self.offset
        self.tensor.as_strided_(tuples[self.shape], tuples[self.strides], const + numbers[which])


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
        self._forms, self._moving = ViewForms(), list[Follower]()
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
