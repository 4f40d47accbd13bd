"""Attention by two of oneDNN's products of many matrices, over memory of ours.

    scores = q · kᵀ · scale               a product for each head, scaled as it is written
    scores = softmax of scores + mask     PyTorch's, in place
    out    = scores · v                   written where the result goes

A head's rows are read where they lie between those of the others, as the layers before wrote them.
Each has keys of its own, and sizes are numbers: heads that share keys, and attention over rows or
columns that move, have other kernels.

The library could add the mask, too, but reads what is not its own where one row has one (3.2 does).

The cost is a model of one machine; records replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgbench.kernels.onednn.direct import CPU, WIDE, own_room
from tgbench.kernels.onednn.library import (
    Computation,
    Description,
    Post,
    TensorForm,
    compute,
    described,
)
from tgbench.kernels.registry import Kernel, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.torch.fused import MINUS_INFINITY, Heads, heads_of
from tgbench.kernels.views import Bound, dense

TIMES = 0x26  # the number of a function: x · alpha
FLOPS_PER_NS = 350.0
EXPONENTIALS_PER_NS = 1.5


@dataclass(frozen=True, slots=True)
class Products:
    """How a site is computed.

    Fields:
        heads: what it computes.
    """

    heads: Heads
    first: Description
    second: Description

    @property
    def mask(self) -> View | None:
        """What is open, of which has to be made what is added."""
        mask = self.heads.mask
        return mask if mask is not None and mask.dtype == "bool" else None


@once_a_site
def _products(site: Site) -> Products | None:
    h = heads_of(site)
    if h is None or h.group > 1 or site.out.dtype != WIDE or not _is_of_numbers(h):
        return None
    scores = dense(h.score_shape, WIDE)
    first = _described(h.q, h.k.transpose(), scores, Post(TIMES, h.scale))
    second = _described(_over_values(h, scores), h.v, h.out)
    return None if first is None or second is None else Products(h, first, second)


def _is_of_numbers(h: Heads) -> bool:
    """Whether sizes and strides are numbers, and no element of an operand stands for several."""
    views = [view for view in (h.q, h.k, h.v, h.out, h.mask) if view is not None]
    numbers = [n for view in views for n in (*view.shape, *view.strides)]
    return all(type(n) is int for n in (*numbers, h.first)) and all(
        step > 0 or size == 1
        for view in views
        for size, step in zip(view.shape, view.strides, strict=True)
    )


def _over_values(h: Heads, scores: View) -> View:
    """Those of the columns that have values."""
    return scores.narrow(-1, h.first, h.v.shape[2])


def _form(view: View) -> TensorForm:
    """How it lies; along a dimension of one element, as if that were outermost."""
    sizes, steps = tuple(map(int, view.shape)), tuple(map(int, view.strides))
    span = max(size * step for size, step in zip(sizes, steps, strict=True))
    strides = (span if size == 1 else step for size, step in zip(sizes, steps, strict=True))
    return TensorForm(sizes, tuple(strides), view.dtype)


def _described(x: View, y: View, out: View, *posts: Post) -> Description | None:
    forms = _form(x), _form(y), None, _form(out), None
    return described(Computation(*forms, posts=posts, threads=torch.get_num_threads()))


def _takes(site: Site) -> bool:
    return _products(site) is not None


def _found(site: Site) -> Products:
    found = _products(site)
    assert found is not None
    return found


def _scratch(site: Site) -> tuple[Scratch, ...]:
    p = _found(site)
    bias = () if p.mask is None else ((p.mask.shape, WIDE),)
    return ((p.heads.score_shape, WIDE), *own_room(p.first), *own_room(p.second), *bias)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (scores, *pieces) = _found(site), scratch
    own = [pieces.pop(0) if one.scratch_bytes else None for one in (p.first, p.second)]
    h, what = p.heads, (p.first.computation, p.second.computation)
    bias = h.mask if p.mask is None else pieces.pop(0)
    operands = (h.q, h.k.transpose(), h.v, scores, _over_values(h, scores), h.out)
    return _attend, (*what, *own, *operands, p.mask, bias)


def _attend(
    first: Computation, second: Computation, own: Tensor | None, other: Tensor | None, q: Tensor,
    k: Tensor, v: Tensor, scores: Tensor, read: Tensor, out: Tensor, mask: Tensor | None,
    bias: Tensor | None,
) -> None:  # fmt: skip
    compute(first, own, q, k, scores)
    if bias is not None:
        if mask is not None:
            bias.fill_(MINUS_INFINITY)
            bias.masked_fill_(mask, 0.0)
        scores.add_(bias)
    torch._softmax(scores, -1, False, out=scores)
    compute(second, other, read, v, out)


def _cost(site: Site) -> float:
    h = _found(site).heads
    scores, width = dense(h.score_shape, WIDE).elements, int(h.q.shape[3]) + int(h.v.shape[3])
    moved = sum(view.size_bytes for view in (h.q, h.k, h.v, h.out))
    work = 2.0 * scores * width / FLOPS_PER_NS + scores / EXPONENTIALS_PER_NS
    return 5 * CALL_NS + work + moved / BYTES_PER_NS


def register_attention() -> None:
    """Register the kernel; called where the library is there."""
    register(
        Kernel(
            "attention_direct", "attention", _takes, _cost, _bind, _scratch, CPU, is_fixed=True
        )
    )  # fmt: skip
