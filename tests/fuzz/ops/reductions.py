"""Reductions, scans, and what depends on an order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fuzz import bounded as b
from fuzz.bounded import Bounded
from fuzz.drawing import Drawing
from fuzz.table import op

Tensor = torch.Tensor


def _axes(x: Bounded, axis: int | Sequence[int] | None) -> list[int]:
    if axis is None:
        return list(range(x.rank))
    return [a % x.rank for a in ([axis] if isinstance(axis, int) else axis)]


def _reduction(name: str, *, floats: bool = False) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.floats(1) if floats else d.numbers(1)
        axis = d.pick([d.axis(x), d.axis(x), d.axes(x), None])
        return d.apply(name, x, axis=axis, keepdims=d.chance(0.5))

    return draw


Reduce = Callable[[Bounded, Sequence[int], bool], Bounded]


def _over(function: Reduce) -> Callable[..., Bounded]:
    return lambda x, axis, keepdims: function(x, _axes(x, axis), keepdims)


def _product(x: Bounded, axes: Sequence[int], keepdims: bool) -> Bounded:
    def product(v: Tensor) -> Tensor:
        for axis in sorted(axes, reverse=True):
            v = v.prod(axis, keepdim=keepdims)
        return v

    each = 16 if x.dtype in b.HALVES else 1  # products of halves are rounded at every factor
    found = b.multilinear(product, x, terms=each * b.count_of(x, axes))
    if x.dtype not in b.LARGEST:
        return found  # integers wrap, in whatever order
    largest = product(x.value.abs().clamp(min=1))  # of the products of some of the factors
    far = largest > b.LARGEST[x.dtype]
    lost = b.TINY[x.dtype] * largest  # one that is too small to be exact, or flushed to 0
    return replace(found, error=torch.where(far, b.INF, found.error + lost))


def variance(x: Bounded, axes: Sequence[int], keepdims: bool, correction: int) -> Bounded:
    centred = b.sub(x, b.mean(x, axes, True))
    count = b.count_of(x, axes)
    return b.mul_number(
        b.total(b.mul(centred, centred), axes, keepdims), 1 / max(count - correction, 1)
    )


def _variance(x: Bounded, axis: int | Sequence[int], keepdims: bool, correction: int) -> Bounded:
    return variance(x, _axes(x, axis), keepdims, correction)


def _deviation(x: Bounded, **attrs: object) -> Bounded:
    return b.smooth(torch.sqrt, _variance(x, **attrs))  # type: ignore[arg-type]


def _logsumexp(x: Bounded, axis: int | Sequence[int], keepdims: bool) -> Bounded:
    axes = _axes(x, axis)
    top = b.largest(x, axes, True)
    found = b.add(b.log(b.total(b.exp(b.sub(x, top)), axes, True)), top)
    return found if keepdims else b.moved(lambda v: v.sum(tuple(axes)), found)


_CODE = "ops.{name}({{0}}, {{axis}}, keepdims={{keepdims}})"
_REDUCTIONS: dict[str, tuple[Reduce, bool]] = {
    "sum_": (b.total, False), "mean": (b.mean, True), "max_": (b.largest, False),
    "min_": (b.smallest, False), "prod": (_product, False),
}  # fmt: skip
for _name, (_function, _floats) in _REDUCTIONS.items():
    op(_name, _CODE.format(name=_name), _over(_function), _reduction(_name, floats=_floats), 2)
op("logsumexp", _CODE.format(name="logsumexp"), _logsumexp,
   lambda d: d.apply("logsumexp", x := d.floats(1, fits=_moderate), axis=d.axis(x),
                     keepdims=d.chance(0.5)), 0.5)  # fmt: skip


def _moderate(x: Bounded) -> bool:
    return bool((x.value.abs() < 50).all())


def _spread(name: str) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.floats(1, fits=lambda x: _moderate(x) and any(size > 1 for size in x.shape))
        wide = [i for i, size in enumerate(d.sample[x].shape) if size > 1]
        return d.apply(
            name, x, axis=d.pick(wide), keepdims=d.chance(0.5), correction=d.pick([0, 1])
        )

    return draw


_SPREAD = "ops.{name}({{0}}, {{axis}}, keepdims={{keepdims}}, correction={{correction}})"
op("var", _SPREAD.format(name="var"), _variance, _spread("var"), 0.5)
op("std", _SPREAD.format(name="std"), _deviation, _spread("std"), 0.3)


# --- scans, orders --------------------------------------------------------------------------------


def _cumsum(x: Bounded, axis: int) -> Bounded:
    return b.multilinear(lambda v: v.cumsum(axis), x, terms=x.shape[axis])


op("cumsum", "ops.cumsum({0}, {axis})", _cumsum,
   lambda d: d.apply("cumsum", x := d.numbers(1), axis=d.axis(x)))  # fmt: skip


def _place(x: Bounded, axis: int, largest: bool) -> Tensor:
    """Where the first of the largest stands, by a stable order."""
    return _ranked(x.value, axis, largest).narrow(axis, 0, 1)


def _ranked(value: Tensor, axis: int, largest: bool) -> Tensor:
    """Indices in order; of equal ones the first comes first."""
    return torch.sort(value, dim=axis, descending=largest, stable=True).indices


def _arg(x: Bounded, axis: int | None, keepdims: bool, largest: bool) -> Bounded:
    if axis is None:
        x, axis = b.moved(lambda v: v.reshape(-1), x), 0
    value = _place(x, axis, largest)
    found = Bounded(value, torch.zeros(value.shape, dtype=torch.float64), "int64")
    found = b.unknown(found, x)
    return found if keepdims else b.moved(lambda v: v.squeeze(axis), found)


def _arg_drawn(name: str) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.numbers(1)
        axis = d.axis(x) if d.chance(0.8) else None
        return d.apply(name, x, axis=axis, keepdims=d.chance(0.5))

    return draw


op("argmax", "ops.argmax({0}, {axis}, {keepdims})",
   lambda x, axis, keepdims: _arg(x, axis, keepdims, True), _arg_drawn("argmax"), 0.7)  # fmt: skip
op("argmin", "ops.argmin({0}, {axis}, {keepdims})",
   lambda x, axis, keepdims: _arg(x, axis, keepdims, False), _arg_drawn("argmin"), 0.7)  # fmt: skip


def _top_values(x: Bounded, k: int, axis: int, largest: bool) -> Bounded:
    return b.chosen(
        lambda v: torch.sort(v, dim=axis, descending=largest, stable=True).values.narrow(
            axis, 0, k
        ),
        x,
    )


def _top_places(x: Bounded, k: int, axis: int, largest: bool) -> Bounded:
    value = _ranked(x.value, axis, largest).narrow(axis, 0, k)
    found = Bounded(value, torch.zeros(value.shape, dtype=torch.float64), "int64")
    return b.unknown(found, x)


def _top(name: str) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.numbers(1)
        axis = d.axis(x)
        k = d.integer(1, d.sample[x].shape[axis])
        return d.apply(name, x, k=k, axis=axis, largest=d.chance(0.5))

    return draw


def _sort(name: str) -> Callable[[Drawing], int]:
    return lambda d: d.apply(name, x := d.numbers(1), axis=d.axis(x), descending=d.chance(0.5))


op("top_values", "ops.topk({0}, {k}, {axis}, {largest})[0]", _top_values, _top("top_values"), 0.7)
op("top_places", "ops.topk({0}, {k}, {axis}, {largest})[1]", _top_places, _top("top_places"), 0.7)
op("sorted", "ops.sort({0}, {axis}, {descending})[0]",
   lambda x, axis, descending: _top_values(x, x.shape[axis], axis, descending),
   _sort("sorted"), 0.5)  # fmt: skip
op("sorted_places", "ops.sort({0}, {axis}, {descending})[1]",
   lambda x, axis, descending: _top_places(x, x.shape[axis], axis, descending),
   _sort("sorted_places"), 0.5)  # fmt: skip
