"""Rows times matrices that an index names, row by row: nothing is copied or sorted."""

from __future__ import annotations

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
from tgbench.kernels.torch.gathered import Gathered, gathered_of, matrices_read
from tgbench.kernels.views import Bound, is_flat


@once_a_site
def _taken(site: Site) -> Gathered | None:
    """Operands whose numbers of a row lie side by side."""
    found = gathered_of(site)
    if found is None or site.out.dtype not in TYPES or found.named.dtype not in ("int64", "int32"):
        return None
    flat = map(is_flat, (found.x, found.weight, found.named, found.out))
    return found if all(flat) else None


def _cost(site: Site) -> float:
    found = gathered_of(site)
    assert found is not None
    count = site.out.elements * found.depth
    return CALL_NS + matrices_read(found) / STREAM + count / DOTS


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _taken(site)
    assert found is not None
    x, weight, index, out = found.x, found.weight, found.named, found.out
    arguments = (
        span(x), x.strides[0], span(weight), *weight.strides[:2], span(index), span(out),
        out.strides[0], out.shape[0], *weight.shape[:2], weight.shape[2], ahead_of(weight),
    )  # fmt: skip
    return compiled(loops.gather_linear, arguments)


add_kernel("gather_linear_numba", "gather_linear", _taken, _cost, _bind)
