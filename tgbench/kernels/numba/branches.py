"""The kernels of ops that take one of two values for each number: `where`, and PReLU.

PyTorch's `where` goes another way for each number, which takes eight times as long where conditions
are mixed; here both values are there, and one is taken.
"""

from __future__ import annotations

from typing import Any

from tgbench.base.coords import Coord, same
from tgbench.kernels.numba.rows import SMALL, TYPES, add_kernel, compiled, loops, per_element, span
from tgbench.kernels.registry import Site, View, once_a_site
from tgbench.kernels.views import Bound, inputs, is_complete, merged

DIMENSIONS = 3


@once_a_site
def _lines(site: Site) -> tuple[View, ...] | None:
    """The operands and the result as [outer, inner, n], in the order in which the result lies; None
    where its last dimension there has gaps, or an operand is neither like it nor a number along it.
    """
    out = site.out
    if out.dtype not in TYPES or out.elements > 8 * SMALL or not is_complete(site):
        return None
    views = [*(view.expand(*out.shape) for view in inputs(site)), out]
    if not out.rank or not all(type(n) is int for view in views for n in view.strides):
        return None
    order = sorted(range(out.rank), key=lambda axis: -int(out.strides[axis]))
    found = merged([view.permute(*order) for view in views], DIMENSIONS)
    *operands, made = found
    fits = all(same(view.strides[-1], 1) or same(view.strides[-1], 0) for view in operands)
    if made.rank > DIMENSIONS or not same(made.strides[-1], 1) or not fits:
        return None
    return found


def _strided(view: View) -> tuple[Any, ...]:
    return (span(view), *view.strides)


def _bind_select(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _lines(site)
    assert found is not None
    condition, one, other, out = found
    ends: tuple[Coord, ...] = (*out.strides[:2], *out.shape)
    operands = (*_strided(condition), *_strided(one), *_strided(other))
    return compiled(loops.select, (*operands, span(out), *ends))


def _like_it(site: Site) -> tuple[View, ...] | None:
    """The same, where x lies as the result does."""
    found = _lines(site)
    return found if found is not None and same(found[0].strides[-1], 1) else None


def _bind_prelu(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _like_it(site)
    assert found is not None
    x, slope, out = found
    read = (span(x), *x.strides[:2], *_strided(slope))
    return compiled(loops.prelu, (*read, span(out), *out.strides[:2], *out.shape))


add_kernel("where_numba", "where", _lines, per_element(0.15), _bind_select)
add_kernel("prelu_numba", "prelu", _like_it, per_element(0.1), _bind_prelu)
