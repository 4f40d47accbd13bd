"""Atomic ops as torch calls with `out=`: element-wise, reductions, indexing, values from nothing.

Everything is written into the given view. The same calls run on the CPU and on CUDA. Where torch
would make a tensor of a Python number at every call, the number is kept in a scratch element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import Coord, same
from tgbench.graph.op_table import FLOATS
from tgbench.kernels.adapters import HALVES, widen
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.views import Bound, dense, first_row, inputs, is_complete, same_interval

CALL_NS = 1_000.0  # one torch call on a tiny tensor
BYTES_PER_NS = 40.0  # from the caches, all cores
ELEMENT_NS = 8.0  # one that `index_select` picks by itself

fill_: Callable[[Tensor, float], Tensor] = Tensor.fill_
copy_: Callable[[Tensor, Tensor], Tensor] = Tensor.copy_


def torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def moved_bytes(site: Site) -> int:
    """Bytes of the views that a kernel reads and writes."""
    return sum(view.size_bytes for view in site.views)


def calls_cost(calls: float) -> Callable[[Site], float]:
    """A cost model: so many torch calls, each over all bytes."""
    return lambda site: calls * (CALL_NS + moved_bytes(site) / BYTES_PER_NS)


# --- element-wise ------------------------------------------------------------------------------


def pointwise(
    name: str,
    run: Callable[..., Any],
    *extra: str,
    calls: float = 1,
    takes: Callable[[Site], bool] = is_complete,
    variant: str = "",
) -> None:
    """Register `run(*inputs, *attributes, out)` for an element-wise op."""

    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        attrs = tuple(site.call.attrs[key] for key in extra)
        return run, (*inputs(site), *attrs, site.out)

    register(Kernel(name + variant, name, takes, calls_cost(calls), bind))


def unary(function: Callable[..., Any]) -> Callable[[Tensor, Tensor], None]:
    def run(x: Tensor, out: Tensor) -> None:
        function(x, out=out)

    return run


def binary(function: Callable[..., Any]) -> Callable[[Tensor, Tensor, Tensor], None]:
    def run(a: Tensor, b: Tensor, out: Tensor) -> None:
        function(a, b, out=out)

    return run


def _cast(x: Tensor, out: Tensor) -> None:
    out.copy_(x)


def _where(condition: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.where(condition, a, b, out=out)


UNARY: dict[str, Callable[..., Any]] = {
    "neg": torch.neg, "sign": torch.sign, "floor": torch.floor,
    "ceil": torch.ceil, "round": torch.round, "exp": torch.exp, "log": torch.log,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "sin": torch.sin,
    "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid,
    "logical_not": torch.logical_not,
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum, "equal": torch.eq, "not_equal": torch.ne,
    "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
}  # fmt: skip
for _name, _function in UNARY.items():
    pointwise(_name, unary(_function))
for _name, _function in BINARY.items():
    pointwise(_name, binary(_function))
widen("erf", HALVES)  # torch's formula for them has no digit left near 0
pointwise("abs", unary(torch.abs), takes=lambda site: site.out.dtype != "bool")
pointwise("abs", _cast, takes=lambda site: site.out.dtype == "bool", variant="_bool")
pointwise("cast", _cast)
pointwise("copy_to", _cast)
pointwise("where", _where)


def _prelu(x: Tensor, slope: Tensor, positive: Tensor, out: Tensor) -> None:
    torch.clamp(x, min=0, out=positive)
    torch.clamp(x, max=0, out=out)
    out.mul_(slope).add_(positive)


def _bind_prelu(site: Site, scratch: tuple[View, ...]) -> Bound:
    return _prelu, (*inputs(site), scratch[0], site.out)


register(
    Kernel(
        "prelu", "prelu", is_complete, calls_cost(4), _bind_prelu,
        scratch=lambda site: ((tuple(site.out.shape), site.out.dtype),),
    )
)  # fmt: skip


def _division(name: str, function: Callable[..., Any]) -> None:
    """floordiv and mod.

    By an integer 0 the result is 0, as in NumPy; torch would stop there, and a divisor that nobody
    needs may well be 0.
    """

    def is_float(site: Site) -> bool:
        return site.out.dtype in FLOATS and is_complete(site)

    def is_integer(site: Site) -> bool:
        return site.out.dtype not in FLOATS and is_complete(site)

    def divide(a: Tensor, b: Tensor, zero: Tensor, safe: Tensor, out: Tensor) -> None:
        torch.logical_not(b, out=zero)
        torch.add(b, zero, out=safe)
        function(a, safe, out=out)
        out.masked_fill_(zero, 0)

    def scratch(site: Site) -> tuple[Scratch, ...]:
        shape = inputs(site)[1].shape
        return (shape, "bool"), (shape, site.out.dtype)

    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        return run, (*inputs(site), site.out)

    def bind_safe(site: Site, scratch: tuple[View, ...]) -> Bound:
        return divide, (*inputs(site), *scratch, site.out)

    run = binary(function)
    register(Kernel(name, name, is_float, calls_cost(1), bind))
    register(Kernel(f"{name}_integer", name, is_integer, calls_cost(4), bind_safe, scratch))


_division("floordiv", torch.floor_divide)
_division("mod", torch.remainder)


# --- reductions --------------------------------------------------------------------------------

_IDENTITY = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "min": float("inf")}


def _kept(site: Site) -> list[tuple[int, int]]:
    """(input axis, output axis) of the dimensions that a reduction leaves."""
    axes, keep = site.call.attrs["axes"], site.call.attrs["keepdims"]
    left = [axis for axis in range(len(site.call.in_shapes[0])) if axis not in axes]
    return [(axis, axis if keep else place) for place, axis in enumerate(left)]


def reduces(site: Site) -> bool:
    """Whether the input is there for every output element.

    Its lines may be shorter than the tensor: what is missing is known to be the identity.
    """
    box = site.in_boxes[0]
    if box is None:
        return False
    if site.call.op.name not in _IDENTITY and not is_complete(site):
        return False
    return all(same_interval(box[i], site.out_box[j]) for i, j in _kept(site))


def _is_float(site: Site) -> bool:
    return site.out.dtype in FLOATS


def line_length(site: Site) -> int:
    shape, length = site.call.in_shapes[0], 1
    for axis in site.call.attrs["axes"]:
        length *= int(shape[axis])
    return length


def _sum(x: Tensor, axes: Any, keep: bool, dtype: Any, out: Tensor) -> None:
    torch.sum(x, axes, keep, dtype=dtype, out=out)


def _mean(x: Tensor, axes: Any, keep: bool, length: int, divisor: Tensor, out: Tensor) -> None:
    divisor.fill_(length)
    torch.sum(x, axes, keep, out=out)
    out.div_(divisor)


def _max(x: Tensor, axes: Any, keep: bool, out: Tensor) -> None:
    torch.amax(x, axes, keep, out=out)


def _min(x: Tensor, axes: Any, keep: bool, out: Tensor) -> None:
    torch.amin(x, axes, keep, out=out)


def _prod(x: Tensor, flat: Tensor, copy: Tensor, dtype: Any, out: Tensor) -> None:
    copy.copy_(x)
    torch.prod(flat, -1, False, dtype=dtype, out=out)


def _bind_reduction(run: Callable[..., None]) -> Callable[[Site, tuple[View, ...]], Bound]:
    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        attrs, x = site.call.attrs, site.operand(0)
        extra: tuple[Any, ...] = ()
        if run is _sum:
            extra = (torch_dtype(site.out.dtype),)
        if run is _mean:
            extra = (line_length(site), *scratch)
        return run, (x, attrs["axes"], attrs["keepdims"], *extra, site.out)

    return bind


_REDUCTIONS: dict[str, Callable[..., None]] = {"sum": _sum, "max": _max, "min": _min}
for _name, _run in _REDUCTIONS.items():
    register(Kernel(_name, _name, reduces, calls_cost(1), _bind_reduction(_run)))
register(
    Kernel(
        "mean",
        "mean",
        lambda site: _is_float(site) and reduces(site),
        calls_cost(2),
        _bind_reduction(_mean),
        lambda site: (((), site.out.dtype),),
    )
)


def _reduced_last(site: Site) -> tuple[View, tuple[Coord, ...], Coord]:
    """The input with its reduced axes last; the sizes before them; their product."""
    x, axes = site.operand(0), site.call.attrs["axes"]
    kept = [axis for axis in range(x.rank) if axis not in axes]
    length: Coord = 1
    for axis in axes:
        length = length * x.shape[axis]
    return x.permute(*kept, *axes), tuple(x.shape[axis] for axis in kept), length


def _prod_scratch(site: Site) -> tuple[Scratch, ...]:
    _, kept, length = _reduced_last(site)
    return (((*kept, length), site.out.dtype),)


def _bind_prod(site: Site, scratch: tuple[View, ...]) -> Bound:
    """torch multiplies along one dimension only, so the reduced ones are laid side by side."""
    x, _, _ = _reduced_last(site)
    flat, out = scratch[0], site.out
    strides = dense(x.shape, x.dtype).strides
    copy = View(flat.buffer, flat.dtype, x.shape, strides, flat.offset)
    if site.call.attrs["keepdims"]:
        for axis in reversed(site.call.attrs["axes"]):
            out = out.select(axis, 0)
    return _prod, (x, flat, copy, torch_dtype(out.dtype), out)


register(Kernel("prod", "prod", reduces, calls_cost(2), _bind_prod, _prod_scratch))


def _bind_identity(site: Site, scratch: tuple[View, ...]) -> Bound:
    return fill_, (site.out, _IDENTITY[site.call.op.name])


for _name in _IDENTITY:
    register(
        Kernel(
            f"{_name}_known",
            _name,
            lambda site: site.in_boxes[0] is None,
            calls_cost(0.5),
            _bind_identity,
        )
    )


# --- values made from nothing ------------------------------------------------------------------


def _iota(first: int, stop: int, numbers: Tensor, spread: Tensor, out: Tensor) -> None:
    torch.arange(first, stop, out=numbers)
    out.copy_(spread)


def _iota_scratch(site: Site) -> tuple[Scratch, ...]:
    start, stop = site.out_box[site.call.attrs["axis"]]
    return (((stop - start,), "int64"),)


def _bind_iota(site: Site, scratch: tuple[View, ...]) -> Bound:
    axis, numbers = site.call.attrs["axis"], scratch[0]
    start, stop = site.out_box[axis]
    spread = numbers
    for _ in range(site.out.rank - axis - 1):
        spread = spread.insert(spread.rank)
    return _iota, (start, stop, numbers, spread, site.out)


def _bind_full(site: Site, scratch: tuple[View, ...]) -> Bound:
    return fill_, (site.out, site.call.attrs["value"])


register(Kernel("iota", "iota", is_complete, calls_cost(2), _bind_iota, _iota_scratch))
register(Kernel("full", "full", is_complete, calls_cost(0.5), _bind_full))


# --- gather and scatter ------------------------------------------------------------------------


def _gather(pick: Callable[..., Any], x: Tensor, axis: int, index: Tensor, out: Tensor) -> None:
    try:
        pick(x, axis, index, out=out)
    except (
        IndexError,
        RuntimeError,
    ):  # negative indices count from the end; any others raise again
        from_front = torch.where(index < 0, index + x.shape[axis], index)
        pick(x, axis, from_front, out=out)


def _wrapped(index: Tensor, size: int, wide: Tensor, below: Tensor) -> None:
    """`wide` = indices counted from the front; negative ones count from the end."""
    wide.copy_(index)
    torch.signbit(wide, out=below)
    wide.add_(below, alpha=size)


def _gather_any(
    x: Tensor,
    axis: int,
    index: Tensor,
    size: int,
    first: int,
    wide: Tensor,
    flat: Tensor,
    below: Tensor,
    picked: Tensor,
    shaped: Tensor,
    out: Tensor,
) -> None:
    _wrapped(index, size, wide, below)
    if first:
        wide.sub_(first)
    torch.index_select(x, axis, flat, out=picked)
    out.copy_(shaped)


def _gather_parts(site: Site) -> tuple[View, View | None, View | None]:
    """The table, and indices and output with the index dimensions as one, where strides allow."""
    x, index = inputs(site)
    axis, rank = site.call.attrs["axis"], index.rank
    if not rank:
        return x, index.insert(0), site.out.insert(axis)
    return x, index.flatten(0, rank), site.out.flatten(axis, axis + rank)


def _gathers_directly(site: Site) -> bool:
    if not is_complete(site) or not same(first_row(site), 0):
        return False
    _, index, out = _gather_parts(site)
    is_flat = index is not None and out is not None and same(index.strides[0], 1)
    return is_flat and site.call.inputs[1].dtype in ("int32", "int64")


def _bind_gather(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, index, out = _gather_parts(site)
    return _gather, (torch.index_select, x, site.call.attrs["axis"], index, out)


def _gathers_last(site: Site) -> bool:
    """Whether single elements are picked, along the last dimension."""
    is_last = site.call.attrs["axis"] == len(site.call.in_shapes[0]) - 1
    return is_last and site.call.inputs[1].dtype == "int64" and _gathers_directly(site)


def _bind_gather_last(site: Site, scratch: tuple[View, ...]) -> Bound:
    """An index for each element: `index_select` takes twenty times as long for single ones."""
    x, index, out = _gather_parts(site)
    assert index is not None
    assert out is not None
    for _ in range(out.rank - 1):
        index = index.insert(0)
    return _gather, (torch.gather, x, out.rank - 1, index.expand(*out.shape), out)


def _gather_scratch(site: Site) -> tuple[Scratch, ...]:
    x, index = inputs(site)
    axis = site.call.attrs["axis"]
    number: Coord = 1
    for size in index.shape:
        number = number * size
    picked = (*x.shape[:axis], number, *x.shape[axis + 1 :])
    return ((number,), "int64"), (index.shape, "bool"), (picked, x.dtype)


def _bind_gather_any(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, index = inputs(site)
    axis, (flat, below, picked) = site.call.attrs["axis"], scratch
    wide = View(flat.buffer, "int64", index.shape, below.strides, flat.offset)
    strides = dense(site.out.shape, x.dtype).strides
    shaped = View(picked.buffer, x.dtype, site.out.shape, strides, picked.offset)
    size = int(site.call.in_shapes[0][axis])
    arguments = (x, axis, index, size, first_row(site), wide, flat, below, picked, shaped)
    return _gather_any, (*arguments, site.out)


def _scatter(
    x: Tensor,
    index: Tensor,
    value: Tensor,
    axis: int,
    size: int,
    wide: Tensor,
    below: Tensor,
    whole: Tensor,
    inside: Tensor,
    out: Tensor,
) -> None:
    _wrapped(index, size, wide, below)
    inside.copy_(x)
    whole.index_copy_(axis, wide, value)
    out.copy_(inside)


def _scatter_scratch(site: Site) -> tuple[Scratch, ...]:
    _, index, _ = inputs(site)
    axis, size = site.call.attrs["axis"], int(site.call.in_shapes[0][site.call.attrs["axis"]])
    whole = (*site.out.shape[:axis], size, *site.out.shape[axis + 1 :])
    return (index.shape, "int64"), (index.shape, "bool"), (whole, site.out.dtype)


def _bind_scatter(site: Site, scratch: tuple[View, ...]) -> Bound:
    """An index may lie outside the box that is asked for, so the axis is written whole."""
    x, index, value = inputs(site)
    axis, (wide, below, whole) = site.call.attrs["axis"], scratch
    start, stop = site.out_box[axis]
    inside = whole.narrow(axis, start, stop - start)
    size = int(site.call.in_shapes[0][axis])
    return _scatter, (x, index, value, axis, size, wide, below, whole, inside, site.out)


def _gathers(site: Site) -> float:
    """Only the rows that are picked are read, not the table."""
    return CALL_NS + 2 * site.out.size_bytes / BYTES_PER_NS


def _gathers_rows(site: Site) -> float:
    """The same, where rows are no single elements."""
    are_rows = site.call.attrs["axis"] < len(site.call.in_shapes[0]) - 1
    return _gathers(site) + (0.0 if are_rows else ELEMENT_NS * site.out.elements)


def _gathers_any(site: Site) -> float:
    return 4 * _gathers_rows(site)


# On CUDA an index out of range is an assertion of the device, so there they are wrapped first.
register(
    Kernel("gather", "gather", _gathers_directly, _gathers_rows, _bind_gather, devices=("cpu",))
)
register(
    Kernel(
        "gather_last", "gather", _gathers_last, _gathers, _bind_gather_last,
        devices=("cpu",),
    )
)  # fmt: skip
register(
    Kernel("gather_any", "gather", is_complete, _gathers_any, _bind_gather_any, _gather_scratch)
)
register(Kernel("scatter", "scatter", is_complete, calls_cost(5), _bind_scatter, _scatter_scratch))
