"""Recurrent steps by PyTorch, one after the other: every number is written where it stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
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


def rows_of(op: str, reverse: bool, out: Any, state: Any) -> Iterator[tuple[int, Any, Any]]:
    """Each step in its order: which it is, h before it, and where h behind it goes."""
    extra = CELLS[op].states - 1
    steps = out.shape[0] - extra
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    first = state.select(0, extra) if reverse else state.select(0, 0)
    places = [out.select(0, extra + t if reverse else t) for t in order]
    for t, (before, after) in zip(order, pairwise([first, *places]), strict=True):
        yield t, before, after


def _lstm(
    reverse: bool, gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor, total: Tensor,
    out: Tensor,
) -> None:  # fmt: skip
    c, columns, units = out[0 if reverse else -1], weight.t(), weight.shape[1]
    c.copy_(state[0 if reverse else 1])
    torch.add(gates, bias, out=total)
    for t, before, after in rows_of("lstm", reverse, out, state):
        row = total[t].addmm_(before, columns)
        enters, stays = row[:, :units], row[:, units : 2 * units]
        row[:, : 2 * units].sigmoid_()
        new, leaves = row[:, 2 * units : 3 * units].tanh_(), row[:, 3 * units :].sigmoid_()
        c.mul_(stays).addcmul_(enters, new)
        torch.tanh(c, out=after)
        after.mul_(leaves)


def _gru(
    reverse: bool, gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor, row: Tensor,
    out: Tensor,
) -> None:  # fmt: skip
    columns, units = weight.t(), weight.shape[1]
    new, both = row[:, 2 * units :], row[:, : 2 * units]
    for t, before, after in rows_of("gru", reverse, out, state):
        torch.addmm(bias, before, columns, out=row)
        both.add_(gates[t, :, : 2 * units]).sigmoid_()
        new.mul_(row[:, :units]).add_(gates[t, :, 2 * units :]).tanh_()
        torch.sub(before, new, out=after)
        after.mul_(row[:, units : 2 * units]).add_(new)


def _rnn(
    reverse: bool, gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor, total: Tensor,
    out: Tensor, function: str,
) -> None:  # fmt: skip
    columns = weight.t()
    torch.add(gates, bias, out=total)
    for t, before, after in rows_of("rnn", reverse, out, state):
        row = total[t].addmm_(before, columns)
        if function == "tanh":
            torch.tanh(row, out=after)
        else:
            torch.clamp_min(row, 0, out=after)


FUNCTIONS = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}


def _shape(site: Site) -> Sequence[Any]:
    """Of what is added up: all steps at once, but where a gate takes part of the sum only."""
    shape = inputs(site)[GATES].shape
    return shape[1:] if site.call.op.name == "gru" else shape


def _scratch(site: Site) -> tuple[Scratch, ...]:
    return ((tuple(_shape(site)), site.out.dtype),)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    more = [site.call.attrs["function"]] if "function" in site.call.attrs else []
    operands = (site.call.attrs["reverse"], *inputs(site), *scratch, site.out, *more)
    function: Any = FUNCTIONS[site.call.op.name]
    return function, operands


def _cost(site: Site) -> float:
    gates, weight, *_ = inputs(site)
    product = gates.elements * value_of(weight.shape[1]) / FLOPS_PER_NS
    each = CALLS[site.call.op.name] * CALL_NS + weight.size_bytes / BYTES_PER_NS
    return float(value_of(gates.shape[0]) * each + product)


for _name in CELLS:
    register(Kernel(_name, _name, is_complete, _cost, _bind, _scratch))
