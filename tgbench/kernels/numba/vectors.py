"""Products of which one side is a row or a column, one for each of a stack of them.

A library takes a call's time, or 9 µs of its own, for each matrix of a stack; with rows of 16
numbers that is ten times what the loop takes.
"""

from __future__ import annotations

from typing import NamedTuple

from tgbench.base.coords import value_of
from tgbench.kernels.numba.rows import (
    CALL_NS,
    DOTS,
    STREAM,
    TYPES,
    add_kernel,
    ahead_of,
    compiled,
    loops,
    span,
)
from tgbench.kernels.registry import Site, View, once_a_site
from tgbench.kernels.views import Bound, inputs, is_complete, is_flat, is_one, merged

EACH_NS = 20.0  # of a matrix of the stack
STACK = 2  # dimensions of a stack that are loops


class Vectors(NamedTuple):
    """[..., k] times the rows of [..., n, k] are [..., n]; the stack of each is [outer, inner]."""

    vector: View
    rows: View
    out: View
    stacks: tuple[View, ...]


@once_a_site
def _taken(site: Site) -> Vectors | None:
    """Operands whose numbers that are multiplied lie side by side, and so do the results."""
    out = site.out
    if out.dtype not in TYPES or not is_complete(site) or None in site.ins:
        return None
    a, b = (one.expand(*out.shape[:-2], *one.shape[-2:]) for one in inputs(site))
    if is_one(out.shape[-1]):
        found = b.select(-1, 0), a, out.select(-1, 0)
    elif is_one(out.shape[-2]):
        found = a.select(-2, 0), b.transpose(), out.select(-2, 0)
    else:
        return None
    vector, rows, result = found
    if not all(map(is_flat, found)):
        return None
    stacks = merged(
        [vector.select(-1, 0), rows.select(-1, 0).select(-1, 0), result.select(-1, 0)], STACK
    )
    return Vectors(*found, stacks) if stacks[0].rank == STACK else None


def _cost(site: Site) -> float:
    found = _taken(site)
    assert found is not None
    count = site.out.elements * value_of(found.vector.shape[-1])
    stack = site.out.elements / value_of(found.out.shape[-1])
    return CALL_NS + EACH_NS * stack + found.rows.size_bytes / STREAM + count / DOTS


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _taken(site)
    assert found is not None
    vector, rows, out = found.vector, found.rows, found.out
    x, w, y = (stack.strides for stack in found.stacks)
    arguments = (
        span(vector), *x, span(rows), *w, rows.strides[-2], span(out), *y,
        *found.stacks[0].shape, *rows.shape[-2:], ahead_of(rows),
    )  # fmt: skip
    return compiled(loops.vector_products, arguments)


add_kernel("matmul_vectors_numba", "matmul", _taken, _cost, _bind)
