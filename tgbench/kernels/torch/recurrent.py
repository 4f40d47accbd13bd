"""Recurrent steps by PyTorch, one after the other: every number is written where it stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import value_of
from tgbench.graph.ops.recurrent import CELLS, GATES
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.views import Bound, inputs, is_complete

FLOPS_PER_NS = 20.0  # of a product with one row
CALLS = {"lstm": 8, "gru": 9, "rnn": 2}  # of a step


def _steps(each: Tensor, state: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each step: what there is of it, the row before it, and its own."""
    rows = [*state.unbind(0), *out.unbind(0)]
    return zip(each.unbind(0), rows, rows[1:], strict=False)


def _lstm(
    gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor, total: Tensor, out: Tensor
) -> None:
    columns, units = weight.t(), weight.shape[1]
    torch.add(gates, bias, out=total)
    for row, before, after in _steps(total, state, out):
        row.addmm_(before[:, :units], columns)
        enters, stays = row[:, :units], row[:, units : 2 * units]
        row[:, : 2 * units].sigmoid_()
        new, leaves = row[:, 2 * units : 3 * units].tanh_(), row[:, 3 * units :].sigmoid_()
        h, c = after[:, :units], after[:, units:]
        torch.mul(before[:, units:], stays, out=c)
        c.addcmul_(enters, new)
        torch.tanh(c, out=h)
        h.mul_(leaves)


def _gru(
    gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor, row: Tensor, out: Tensor
) -> None:
    columns, units = weight.t(), weight.shape[1]
    new, both = row[:, 2 * units :], row[:, : 2 * units]
    for given, before, after in _steps(gates, state, out):
        torch.addmm(bias, before, columns, out=row)
        both.add_(given[:, : 2 * units]).sigmoid_()
        new.mul_(row[:, :units]).add_(given[:, 2 * units :]).tanh_()
        torch.sub(before, new, out=after)
        after.mul_(row[:, units : 2 * units]).add_(new)


def _rnn(
    gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor, total: Tensor, out: Tensor,
    activation: str,
) -> None:  # fmt: skip
    columns = weight.t()
    torch.add(gates, bias, out=total)
    for row, before, after in _steps(total, state, out):
        row.addmm_(before, columns)
        if activation == "tanh":
            torch.tanh(row, out=after)
        else:
            torch.clamp_min(row, 0, out=after)


def _scan(decay: Tensor, added: Tensor, state: Tensor, out: Tensor) -> None:
    for row, more, before, after in zip(
        decay.unbind(0), added.unbind(0), [*state.unbind(0), *out.unbind(0)], out.unbind(0),
        strict=False,
    ):  # fmt: skip
        torch.addcmul(more, row, before, out=after)


FUNCTIONS = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}


def _shape(site: Site) -> Sequence[Any]:
    """Of what is added up: all steps at once, but where a gate takes part of the sum only."""
    shape = inputs(site)[GATES].shape
    return shape[1:] if site.call.op.name == "gru" else shape


def _scratch(site: Site) -> tuple[Scratch, ...]:
    return ((tuple(_shape(site)), site.out.dtype),)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    more = [site.call.attrs["activation"]] if "activation" in site.call.attrs else []
    operands = (*inputs(site), *scratch, site.out, *more)
    function: Any = FUNCTIONS[site.call.op.name]
    return function, operands


def _cost(site: Site) -> float:
    gates, weight, *_ = inputs(site)
    product = gates.elements * value_of(weight.shape[1]) / FLOPS_PER_NS
    each = CALLS[site.call.op.name] * CALL_NS + weight.size_bytes / BYTES_PER_NS
    return float(value_of(gates.shape[0]) * each + product)


def _scan_cost(site: Site) -> float:
    moved = sum(view.size_bytes for view in (site.out, site.out, *inputs(site)))
    return float(value_of(site.out.shape[0]) * CALL_NS + moved / BYTES_PER_NS)


for _name in CELLS:
    register(Kernel(_name, _name, is_complete, _cost, _bind, _scratch))
register(
    Kernel(
        "linear_recurrence", "linear_recurrence", is_complete, _scan_cost,
        lambda site, scratch: (_scan, (*inputs(site), site.out)),
    )
)  # fmt: skip
