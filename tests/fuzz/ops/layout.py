"""Ops that move elements: views, joins, margins; and tensors made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from fuzz import bounded as b
from fuzz.bounded import FLOATS, Bounded
from fuzz.drawing import Drawing
from fuzz.table import basic_index, op

Tensor = torch.Tensor


def _reshape(d: Drawing) -> int:
    x = d.anything()
    size, shape = prod(d.sample[x].shape), []
    while size > 1 and len(shape) < 3:
        divisor = d.pick([n for n in range(1, size + 1) if size % n == 0])
        shape.append(divisor)
        size //= divisor
    return d.apply("reshape", x, shape=[*shape, size])


op("reshape", "{0}.reshape({shape})", lambda x, shape: b.moved(lambda v: v.reshape(shape), x),
   _reshape, 2)  # fmt: skip


def _permute(d: Drawing) -> int:
    x = d.anything(1)
    rank = d.sample[x].rank
    return d.apply("permute", x, axes=d.random.sample(range(rank), rank))


op("permute", "{0}.permute(*{axes})", lambda x, axes: b.moved(lambda v: v.permute(axes), x),
   _permute, 2)  # fmt: skip


def _index(d: Drawing) -> int:
    x = d.anything(1)
    parts: list[Any] = [_part(d, size) for size in d.sample[x].shape]
    if d.chance(0.15):
        parts.insert(d.integer(0, len(parts)), None)
    return d.apply("index", x, index=parts)


def _part(d: Drawing, size: int) -> Any:
    start = d.integer(0, size - 1)
    stop = d.integer(start + 1, size)
    backwards = [stop - 1, start - 1 if start else None, -d.pick([1, 1, 2])]
    return d.pick([
        [None, None, None], [None, None, None], [start, stop, None], [start, stop, d.integer(1, 3)],
        backwards, start, start - size,
    ])  # fmt: skip


def _indexed(x: Bounded, index: Sequence[Any]) -> Bounded:
    """By NumPy, which takes negative steps."""
    where = basic_index(index)
    return b.moved(lambda v: torch.from_numpy(np.array(v.numpy()[where])), x)


op("index", "{0}[{index}]", _indexed, _index, 3)


def _expand(d: Drawing) -> int:
    x = d.anything()
    shape = [d.integer(1, 3) if size == 1 else size for size in d.sample[x].shape]
    return d.apply("expand", x, shape=[*([2] if d.chance(0.4) else []), *shape])


op("expand", "{0}.expand(*{shape})", lambda x, shape: b.moved(lambda v: v.expand(shape), x),
   _expand)  # fmt: skip


def _flip(d: Drawing) -> int:
    return d.apply("flip", x := d.anything(1), axes=d.axes(x))


op("flip", "ops.flip({0}, *{axes})", lambda x, axes: b.moved(lambda v: v.flip(axes), x), _flip, 0.7)


# --- joins ----------------------------------------------------------------------------------------


def _concat(d: Drawing) -> int:
    x = d.anything(1)
    mine = d.sample[x]
    axis = d.axis(x) % mine.rank

    def fits(y: Bounded) -> bool:
        same = y.dtype == mine.dtype and y.rank == mine.rank
        return same and all(
            m == n for i, (m, n) in enumerate(zip(y.shape, mine.shape, strict=True)) if i != axis
        )

    found = [d.some(fits) for _ in range(d.integer(1, 2))]
    parts = [x, *(part for part in found if part is not None)]
    if d.chance(0.3):
        wide = [d.integer(1, 3) if i == axis else n for i, n in enumerate(mine.shape)]
        parts.append(d.leaf(wide, mine.dtype))
    d.random.shuffle(parts)
    return d.apply("concat", *parts, axis=axis)


def _joined(*xs: Bounded, axis: int) -> Bounded:
    return b.moved(lambda *vs: torch.cat(vs, axis), *xs)


op("concat", "ops.concat([{all}], {axis})", _joined, _concat, 2)


def _stack(d: Drawing) -> int:
    x = d.anything(0, 3)
    others = [d.exactly(d.sample[x].shape, d.sample[x].dtype) for _ in range(d.integer(1, 2))]
    return d.apply("stack", x, *others, axis=d.integer(0, d.sample[x].rank))


op("stack", "ops.stack([{all}], {axis})",
   lambda *xs, axis: b.moved(lambda *vs: torch.stack(vs, axis), *xs), _stack)  # fmt: skip


def _piece(d: Drawing) -> int:
    x = d.anything(1)
    axis = d.axis(x)
    size = d.sample[x].shape[axis]
    first = d.integer(1, size)
    sizes = [first, size - first] if first < size else [first]
    return d.apply("piece", x, sizes=sizes, axis=axis, which=d.integer(0, len(sizes) - 1))


op("piece", "ops.split({0}, {sizes}, {axis})[{which}]",
   lambda x, sizes, axis, which: b.moved(lambda v: v.split(list(sizes), axis)[which], x),
   _piece)  # fmt: skip


# --- margins --------------------------------------------------------------------------------------


def _pad(d: Drawing) -> int:
    x = d.numbers(1)
    rank = d.sample[x].rank
    low, high = [d.integer(0, 2) for _ in range(rank)], [d.integer(0, 1) for _ in range(rank)]
    value = d.pick([0.0, 0.0, 2.0])
    if d.sample[x].dtype in FLOATS and d.chance(0.15):
        value = float("-inf")
    return d.apply("pad", x, low=low, high=high, value=value)


def _padded(x: Bounded, low: Sequence[int], high: Sequence[int], value: float) -> Bounded:
    widths = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
    pad = torch.nn.functional.pad
    number = value if x.is_float else int(value)
    return Bounded(pad(x.value, widths, value=number), pad(x.error, widths), x.dtype)


op("pad", "ops.pad({0}, {low}, {high}, {value})", _padded, _pad, 2)


def _pad_with(d: Drawing) -> int:
    x = d.anything(1, 3)
    mode = d.pick(["reflect", "replicate", "circular"])
    most = [size - (mode == "reflect") for size in d.sample[x].shape]
    low, high = ([min(n, d.integer(0, 2)) for n in most] for _ in range(2))
    return d.apply("pad_with", x, low=low, high=high, mode=mode)


_NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _padded_with(x: Bounded, low: Sequence[int], high: Sequence[int], mode: str) -> Bounded:
    widths = list(zip(low, high, strict=True))

    def pad(v: Tensor) -> Tensor:
        return torch.from_numpy(np.pad(v.numpy(), widths, mode=_NUMPY_MODES[mode]))  # type: ignore[call-overload]

    return b.moved(pad, x)


op("pad_with", "ops.pad_with({0}, {low}, {high}, {mode})", _padded_with, _pad_with, 0.7)


def _roll(d: Drawing) -> int:
    x = d.anything(1)
    axes = d.axes(x)
    return d.apply("roll", x, shifts=[d.integer(-3, 3) for _ in axes], axes=axes)


op("roll", "ops.roll({0}, {shifts}, {axes})",
   lambda x, shifts, axes: b.moved(lambda v: v.roll(tuple(shifts), tuple(axes)), x),
   _roll, 0.7)  # fmt: skip


def _repeat(d: Drawing) -> int:
    x = d.anything(1)
    extra = d.integer(0, 1)
    times = [d.pick([1, 1, 2, 3]) for _ in range(d.sample[x].rank + extra)]
    return d.apply("repeat", x, times=times)


op("repeat", "ops.repeat({0}, *{times})", lambda x, times: b.moved(lambda v: v.repeat(times), x),
   _repeat, 0.7)  # fmt: skip


def _interleave(d: Drawing) -> int:
    x = d.anything(1)
    return d.apply("repeat_interleave", x, times=d.integer(1, 3), axis=d.axis(x))


op("repeat_interleave", "ops.repeat_interleave({0}, {times}, {axis})",
   lambda x, times, axis: b.moved(lambda v: v.repeat_interleave(times, axis), x),
   _interleave, 0.7)  # fmt: skip


def _band(name: str) -> Any:
    return lambda d: d.apply(name, d.numbers(2), diagonal=d.integer(-2, 2))


op("tril", "ops.tril({0}, {diagonal})",
   lambda x, diagonal: b.moved(lambda v: v.tril(diagonal), x), _band("tril"))  # fmt: skip
op("triu", "ops.triu({0}, {diagonal})",
   lambda x, diagonal: b.moved(lambda v: v.triu(diagonal), x), _band("triu"))  # fmt: skip


# --- made from nothing ----------------------------------------------------------------------------


def _iota(d: Drawing) -> int:
    shape = d.shape(1, 3)
    dtype = d.pick(["int64", "int32", "float32", "float64"])
    return d.apply("iota", shape=shape, axis=d.integer(0, len(shape) - 1), dtype=dtype)


def _counted(shape: Sequence[int], axis: int, dtype: str) -> Bounded:
    line = torch.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return b.exact(line.expand(list(shape)), dtype)


op("iota", "ops.iota(g, {shape}, {axis}, {dtype})", _counted, _iota, 0.4)


def _full(d: Drawing) -> int:
    value = d.pick([0.0, 1.0, -2.0, 0.5])
    return d.apply("full", shape=d.shape(0, 3), value=value, dtype=d.dtype)


def _filled(shape: Sequence[int], value: float, dtype: str) -> Bounded:
    return b.exact(torch.full(list(shape), value), dtype)


op("full", "ops.full(g, {shape}, {value}, {dtype})", _filled, _full, 0.4)
