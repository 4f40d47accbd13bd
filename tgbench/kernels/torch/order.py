"""Cumulative sums, arg max, top k; elements picked and put by index; more functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import Coord, same
from tgbench.graph.op_table import ITEMSIZE
from tgbench.graph.ops.functions import FLOAT_FUNCTIONS
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.torch.elementwise import (
    BYTES_PER_NS,
    CALL_NS,
    binary,
    calls_cost,
    pointwise,
    torch_dtype,
    unary,
)
from tgbench.kernels.views import Bound, inputs, is_complete, whole_reads

# --- cumsum --------------------------------------------------------------------------------------


def _cumsum(x: Tensor, axis: int, dtype: Any, whole: Tensor, tail: Tensor | None, out: Any) -> None:
    torch.cumsum(x, axis, dtype=dtype, out=whole)
    if tail is not None:
        out.copy_(tail)


def _starts_at_0(site: Site) -> bool:
    return same(site.out_box[site.call.attrs["axis"]][0], 0)


def _cumsum_scratch(site: Site) -> tuple[Scratch, ...]:
    return () if _starts_at_0(site) else ((inputs(site)[0].shape, site.out.dtype),)


def _bind_cumsum(site: Site, scratch: tuple[View, ...]) -> Bound:
    (x,), axis, dtype = inputs(site), site.call.attrs["axis"], torch_dtype(site.out.dtype)
    if not scratch:
        return _cumsum, (x, axis, dtype, site.out, None, None)
    start, stop = site.out_box[axis]
    tail = scratch[0].narrow(axis, start, stop - start)
    return _cumsum, (x, axis, dtype, scratch[0], tail, site.out)


register(Kernel("cumsum", "cumsum", is_complete, calls_cost(2), _bind_cumsum, _cumsum_scratch))


# --- arg max, arg min, top k ---------------------------------------------------------------------


def _arg(function: Callable[..., Any]) -> Callable[..., None]:
    def run(x: Tensor, axis: int, out: Tensor) -> None:
        function(x, axis, True, out=out)

    return run


def _bind_arg(run: Callable[..., None]) -> Callable[[Site, tuple[View, ...]], Bound]:
    return lambda site, scratch: (run, (*inputs(site), site.call.attrs["axis"], site.out))


for _name, _function in (("arg_max", torch.argmax), ("arg_min", torch.argmin)):
    register(Kernel(_name, _name, is_complete, calls_cost(3), _bind_arg(_arg(_function))))


def _lines(site: Site) -> View:
    return inputs(site)[0]


def _found_bytes(site: Site) -> int:
    """Of the first ones, and where they were."""
    return site.out.elements * (ITEMSIZE[_lines(site).dtype] + ITEMSIZE["int64"])


def _top_scratch(site: Site) -> tuple[Scratch, ...]:
    """All of the lines in order, and where each stood."""
    shape = _lines(site).shape
    return (shape, _lines(site).dtype), (shape, "int64")


def _top(
    x: Tensor, axis: int, largest: bool, source: int, values: Tensor, indices: Tensor, out: Tensor
) -> None:
    """The first ones, and one more, where no two of these are equal; else all are sorted, as ties
    stand in the order of their indices, and a 0 has two signs.
    """
    count = out.shape[axis]
    found = torch.topk(x, min(count + 1, x.shape[axis]), axis, largest)
    size = found.values.shape[axis] - 1
    before, after = (found.values.narrow(axis, at, size) for at in (0, 1))
    tied = torch.eq(before, after)
    if source == 0:
        tied &= before == 0
    if bool(tied.any()):
        torch.sort(x, dim=axis, descending=largest, stable=True, out=(values, indices))
        found = values, indices  # type: ignore[assignment]
    out.copy_(found[source].narrow(axis, 0, count))


def _bind_top(site: Site, scratch: tuple[View, ...]) -> Bound:
    axis, largest = site.call.attrs["axis"], site.call.attrs["largest"]
    source = 0 if site.call.op.name == "top_values" else 1
    return _top, (_lines(site), axis, largest, source, *scratch, site.out)


def _top_cost(site: Site) -> float:
    return 10 * CALL_NS + 8 * _lines(site).elements


for _name in ("top_values", "top_indices"):
    register(
        Kernel(
            _name, _name, is_complete, _top_cost, _bind_top, _top_scratch,
            allocates=lambda site: 3 * _found_bytes(site),
        )
    )  # fmt: skip


# --- elements by index ---------------------------------------------------------------------------


def _wrapped(index: Tensor, size: int, low: int, wide: Tensor, below: Tensor) -> None:
    """`wide` = indices counted from row `low`; negative ones count from the end."""
    wide.copy_(index)
    torch.signbit(wide, out=below)
    wide.add_(below, alpha=size)
    wide.sub_(low)


def _gather_elements(
    x: Tensor, axis: int, size: int, low: int, index: Tensor, wide: Tensor, below: Tensor,
    out: Tensor,
) -> None:  # fmt: skip
    _wrapped(index, size, low, wide, below)
    torch.gather(x, axis, wide, out=out)


def _element_scratch(site: Site) -> tuple[Scratch, ...]:
    shape = inputs(site)[1].shape
    return (shape, "int64"), (shape, "bool")


def _bind_gather_elements(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, index = inputs(site)
    axis, have = site.call.attrs["axis"], whole_reads(site)[0]
    assert have is not None
    size, low = int(site.call.in_shapes[0][axis]), have[axis][0]
    return _gather_elements, (x, axis, size, low, index, *scratch, site.out)


register(
    Kernel(
        "gather_elements",
        "gather_elements",
        is_complete,
        lambda site: 5 * CALL_NS + 6 * site.out.size_bytes / BYTES_PER_NS,
        _bind_gather_elements,
        _element_scratch,
    )
)


def _scatter_elements(
    x: Tensor, axis: int, size: int, adds: bool, index: Tensor, value: Tensor, wide: Tensor,
    below: Tensor, whole: Tensor, inside: Tensor, out: Tensor,
) -> None:  # fmt: skip
    _wrapped(index, size, 0, wide, below)
    inside.copy_(x)
    if adds:
        whole.scatter_add_(axis, wide, value)
    else:
        whole.scatter_(axis, wide, value)
    out.copy_(inside)


def _scatter_scratch(site: Site) -> tuple[Scratch, ...]:
    axis, shape = site.call.attrs["axis"], inputs(site)[1].shape
    whole: tuple[Coord, ...] = (
        *site.out.shape[:axis], site.call.in_shapes[0][axis], *site.out.shape[axis + 1 :],
    )  # fmt: skip
    return (shape, "int64"), (shape, "bool"), (whole, site.out.dtype)


def _reads_index(site: Site) -> bool:
    return is_complete(site) and whole_reads(site)[1] is not None


def _bind_scatter_elements(site: Site, scratch: tuple[View, ...]) -> Bound:
    """An index may lie outside the box that is asked for, so the axis is written whole."""
    x, index, value = inputs(site)
    axis, (wide, below, whole) = site.call.attrs["axis"], scratch
    start, stop = site.out_box[axis]
    inside = whole.narrow(axis, start, stop - start)
    size, adds = int(site.call.in_shapes[0][axis]), site.call.attrs["add"]
    arguments = (x, axis, size, adds, index, value, wide, below, whole, inside, site.out)
    return _scatter_elements, arguments


def _bind_untouched(site: Site, scratch: tuple[View, ...]) -> Bound:
    return Tensor.copy_, (site.out, site.operand(0))


register(
    Kernel(
        "scatter_elements",
        "scatter_elements",
        _reads_index,
        calls_cost(6),
        _bind_scatter_elements,
        _scatter_scratch,
    )
)
register(
    Kernel(
        "scatter_elements_none",
        "scatter_elements",
        lambda site: is_complete(site) and not _reads_index(site),
        calls_cost(1),
        _bind_untouched,
    )
)


# --- element-wise --------------------------------------------------------------------------------


def _is_nan(x: Tensor, out: Tensor) -> None:
    torch.ne(x, x, out=out)


def _is_inf(x: Tensor, positive: Tensor, out: Tensor) -> None:
    torch.isposinf(x, out=positive)
    torch.isneginf(x, out=out)
    out.logical_or_(positive)


for _name in FLOAT_FUNCTIONS:
    pointwise(_name, unary(getattr(torch, _name)), calls=2)
pointwise("isnan", _is_nan)
pointwise("arctan2", binary(torch.arctan2), calls=2)
pointwise("logical_xor", binary(torch.logical_xor))
register(
    Kernel(
        "isinf",
        "isinf",
        is_complete,
        calls_cost(3),
        lambda site, scratch: (_is_inf, (*inputs(site), *scratch, site.out)),
        lambda site: ((site.out.shape, "bool"),),
    )
)
