"""Ops whose reads or writes depend on index values, and updates at a fixed place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fuzz import bounded as b
from fuzz.bounded import Bounded
from fuzz.drawing import Drawing
from fuzz.table import op

Tensor = torch.Tensor


def _gather(d: Drawing) -> int:
    x = d.anything(1)
    axis = d.axis(x)
    indices = d.indices([d.integer(1, 4) for _ in range(d.integer(0, 2))], d.sample[x].shape[axis])
    return d.apply("gather", x, indices, axis=axis)


def _gathered(x: Bounded, indices: Bounded, axis: int) -> Bounded:
    axis %= x.rank
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    flat = indices.value.reshape(-1)
    found = b.moved(lambda v: v.index_select(axis, flat).reshape(shape), x)
    return b.unknown(found, indices)


op("gather", "ops.gather({0}, {1}, {axis})", _gathered, _gather, 2)


def _embedding(d: Drawing) -> int:
    table = d.leaf([d.integer(1, 6), d.integer(1, 6)], kind=d.pick(["parameter", "input"]))
    rows = d.sample[table].shape[0]
    return d.apply("embedding", table, d.indices(d.shape(0, 2), rows))


op("embedding", "ops.embedding({0}, {1})", lambda x, i: _gathered(x, i, 0), _embedding)


def _select(d: Drawing) -> int:
    x = d.anything(1)
    axis = d.axis(x)
    return d.apply(
        "index_select", x, d.indices([d.integer(1, 4)], d.sample[x].shape[axis]), axis=axis
    )


op("index_select", "ops.index_select({0}, {axis}, {1})", _gathered, _select, 0.5)


# --- slices written at indices --------------------------------------------------------------------


def _scatter(d: Drawing) -> int:
    x = d.numbers(1)
    mine = d.sample[x]
    axis = d.axis(x) % mine.rank
    count = d.integer(1, 3)
    indices = d.indices([count], mine.shape[axis])
    value = d.exactly([*mine.shape[:axis], count, *mine.shape[axis + 1 :]], mine.dtype)
    return d.apply("scatter", x, indices, value, axis=axis)


def scattered(x: Bounded, indices: Bounded, value: Bounded, axis: int) -> Bounded:
    """A copy of x with slices replaced, one after the other."""

    def write(into: Tensor, part: Tensor) -> Tensor:
        into = into.clone()
        for i, at in enumerate(indices.value.tolist()):
            into.select(axis, at).copy_(part.select(axis, i))
        return into

    return b.unknown(b.moved(write, x, value), indices)


op("scatter", "ops.scatter({0}, {1}, {2}, {axis})", scattered, _scatter)


def _update(d: Drawing) -> int:
    x = d.numbers(1)
    shape = d.sample[x].shape
    start = [d.integer(0, size - 1) for size in shape]
    sizes = [d.integer(1, size - a) for size, a in zip(shape, start, strict=True)]
    return d.apply("update", x, d.exactly(sizes, d.sample[x].dtype), start=start)


def _updated(x: Bounded, value: Bounded, start: Sequence[int]) -> Bounded:
    place = tuple(slice(a, a + n) for a, n in zip(start, value.shape, strict=True))

    def write(into: Tensor, part: Tensor) -> Tensor:
        into = into.clone()
        into[place] = part
        return into

    return b.moved(write, x, value)


op("update", "ops.update({0}, {1}, {start})", _updated, _update)


# --- elements -------------------------------------------------------------------------------------


def _elements(d: Drawing, x: int) -> tuple[list[int], int, int]:
    """The shape of an index, the axis, and how many there are to pick from."""
    mine = d.sample[x]
    axis = d.axis(x) % mine.rank
    return [d.integer(1, size) for size in mine.shape], axis, mine.shape[axis]


def _gather_elements(d: Drawing) -> int:
    x = d.anything(1)
    shape, axis, below = _elements(d, x)
    return d.apply("gather_elements", x, d.indices(shape, below), axis=axis)


def _picked(x: Bounded, index: Bounded, axis: int) -> Bounded:
    return b.unknown(b.moved(lambda v: v.gather(axis, index.value), x), index)


op("gather_elements", "ops.gather_elements({0}, {1}, {axis})", _picked, _gather_elements)


def _scatter_elements(name: str) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.numbers(1)
        shape, axis, below = _elements(d, x)
        kind = {"kind": "distinct", "axis": axis, "below": below}
        where = d.pick(["parameter", "constant", "input"])
        repeats = name == "scatter_add" and d.chance(0.5)
        index = d.indices(shape, below) if repeats else d.leaf(shape, "int64", where, kind)
        return d.apply(name, x, index, d.exactly(shape, d.sample[x].dtype), axis=axis)

    return draw


def _put(x: Bounded, index: Bounded, value: Bounded, axis: int) -> Bounded:
    found = b.moved(lambda v, part: v.scatter(axis, index.value, part), x, value)
    return b.unknown(found, index)


def _added(x: Bounded, index: Bounded, value: Bounded, axis: int) -> Bounded:
    """x may be whole and value not: one linear map of both."""
    found = b.multilinear(
        lambda v: v[0].scatter_add(axis, index.value, v[1]),
        _both(x, value), terms=index.shape[axis] + 1,
    )  # fmt: skip
    return b.unknown(found, index)


def _both(x: Bounded, value: Bounded) -> Bounded:
    """Two tensors as one of twice the size, the second filled up with zeros."""

    def join(big: Tensor, small: Tensor) -> Tensor:
        room = torch.zeros_like(big)
        room[tuple(slice(n) for n in small.shape)] = small
        return torch.stack([big, room])

    return b.moved(join, x, value)


op("scatter_elements", "ops.scatter_elements({0}, {1}, {2}, {axis})", _put,
   _scatter_elements("scatter_elements"), 0.7)  # fmt: skip
op("scatter_add", "ops.scatter_add({0}, {1}, {2}, {axis})", _added,
   _scatter_elements("scatter_add"), 0.7)  # fmt: skip
