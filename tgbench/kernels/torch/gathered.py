"""Rows times matrices that an index names, by PyTorch: row by row, or sorted by matrix."""

from __future__ import annotations

from itertools import groupby, pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from tgbench.base.coords import value_of
from tgbench.graph.ops.products.gathered import INDEX, ROWS, WEIGHT
from tgbench.kernels.registry import Kernel, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.views import Bound, inputs, is_complete

FLOPS_PER_NS = 40.0  # of a product of several rows


class Gathered(NamedTuple):
    """A call's operands, with rows in one dimension: [rows, k], [m, n, k], [rows], [rows, n]."""

    x: View
    weight: View
    named: View
    out: View

    @property
    def depth(self) -> int:
        return value_of(self.x.shape[1])


@once_a_site
def gathered_of(site: Site) -> Gathered | None:
    """The operands of a site; None where strides do not allow it."""
    if not is_complete(site):
        return None
    read = inputs(site)
    index = read[INDEX].insert(0) if not read[INDEX].rank else read[INDEX]
    views = read[ROWS].rows(), index.flatten(0, index.rank), site.out.rows()
    x, index_row, out = views
    if x is None or index_row is None or out is None:
        return None
    return Gathered(x, read[WEIGHT], index_row, out)


def matrices_read(found: Gathered) -> int:
    """Bytes of weights that are read at most."""
    count = value_of(found.weight.shape[0])
    return found.weight.size_bytes // count * min(count, value_of(found.out.shape[0]))


def _by_row(weight: Tensor, x: Tensor, index: Tensor, out: Tensor) -> None:
    names = index.reshape(-1).tolist()
    for place, which in zip(product(*map(range, index.shape)), names, strict=True):
        torch.mv(weight[which], x[place], out=out[place])


def _sorted(
    x: Tensor, weight: Tensor, index: Tensor, rows: Tensor, results: Tensor, out: Tensor
) -> None:
    order = torch.argsort(index)
    torch.index_select(x, 0, order, out=rows)
    named = groupby(enumerate(index[order].tolist()), lambda pair: pair[1])
    begins = [(next(group)[0], which) for which, group in named]
    for (start, which), (stop, _) in pairwise((*begins, (len(rows), 0))):
        torch.mm(rows[start:stop], weight[which].t(), out=results[start:stop])
    out.index_copy_(0, order, results)


def _cost_by_row(site: Site) -> float:
    weight = inputs(site)[WEIGHT]
    rows = site.out.elements / value_of(weight.shape[1])
    return rows * (2 * CALL_NS + weight.size_bytes / value_of(weight.shape[0]) / BYTES_PER_NS)


def _cost_sorted(site: Site) -> float:
    found = gathered_of(site)
    assert found is not None
    rows, count = value_of(found.out.shape[0]), value_of(found.weight.shape[0])
    calls = 6 + 2 * min(rows, count)
    flops = 2 * site.out.elements * found.depth
    return calls * CALL_NS + matrices_read(found) / BYTES_PER_NS + flops / FLOPS_PER_NS


def _bind_sorted(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = gathered_of(site)
    assert found is not None
    return _sorted, (found.x, found.weight, found.named, *scratch, found.out)


def _is_fixed(site: Site) -> bool:
    """How many rows a matrix has decides about their last bits: nobody who needs these takes it."""
    found = gathered_of(site)
    sizes = () if found is None else (*found.out.shape, *found.x.shape)
    return found is not None and all(type(size) is int for size in sizes)


def _scratch(site: Site) -> tuple[Scratch, ...]:
    found = gathered_of(site)
    assert found is not None
    dtype = site.out.dtype
    return (found.x.shape, dtype), (found.out.shape, dtype)


register(
    Kernel(
        "gather_linear", "gather_linear", is_complete, _cost_by_row,
        lambda site, scratch: (_by_row, (*inputs(site), site.out)),
    )
)  # fmt: skip
register(
    Kernel(
        "gather_linear_sorted", "gather_linear", _is_fixed, _cost_sorted, _bind_sorted, _scratch,
        is_fixed=True,
    )
)  # fmt: skip
