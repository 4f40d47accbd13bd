"""Rowwise ops by one torch call a step: for dtypes and devices that have no generated loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgbench.graph.ops.rowwise import NUMBER, Step
from tgbench.kernels.registry import Kernel, Site, View, register
from tgbench.kernels.torch.elementwise import BINARY, UNARY, calls_cost
from tgbench.kernels.views import Bound, inputs, is_complete

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    **UNARY, **BINARY, "abs": torch.abs, "where": torch.where,
    "sum": lambda x: torch.sum(x, -1, True), "mean": lambda x: torch.mean(x, -1, True),
    "max": lambda x: torch.amax(x, -1, True), "min": lambda x: torch.amin(x, -1, True),
}  # fmt: skip


def _rowwise(steps: tuple[Step, ...], dtype: torch.dtype, out: Tensor, *given: Tensor) -> None:
    values = list(given)
    for name, *operands in steps:
        if name == NUMBER:
            values.append(torch.tensor(operands[0], dtype=dtype, device=out.device))
        else:
            values.append(FUNCTIONS[name](*(values[i] for i in operands)))
    out.copy_(values[-1])


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    dtype: torch.dtype = getattr(torch, site.out.dtype)
    return _rowwise, (site.call.attrs["calls"], dtype, site.out, *inputs(site))


def _cost(site: Site) -> float:
    return calls_cost(1 + 1.5 * len(site.call.attrs["calls"]))(site)


def _allocates(site: Site) -> int:
    """No more than every step's value at once, and one of torch's pages each."""
    steps: list[Any] = site.call.attrs["calls"]
    return len(steps) * (site.out.size_bytes + 512)


register(Kernel("rowwise", "rowwise", is_complete, _cost, _bind, allocates=_allocates))
