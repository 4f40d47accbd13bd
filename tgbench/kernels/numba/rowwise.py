"""The kernel of rowwise ops: one loop over rows, written from the op's steps (`written`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgbench.base.coords import same
from tgbench.graph.ops.rowwise import REDUCTIONS, reduces
from tgbench.kernels.numba.rows import (
    CALL_NS,
    SINGLE,
    add_kernel,
    compiled,
    is_flat,
    merged,
    span,
)
from tgbench.kernels.registry import Scratch, Site, View, once_a_site
from tgbench.kernels.views import Bound, inputs, is_complete

try:
    from tgbench.kernels.numba import written
    from tgbench.kernels.numba.written import RowLoop
except ImportError:
    written = None  # type: ignore[assignment]

OPERATION_NS = 0.035  # as the op table counts them: an exponential is ten


def _row_loop(site: Site) -> RowLoop | None:
    """What is to be written; None where a row is one number, or a reduction is of one a row."""
    width = site.call.out.shape[-1] if site.call.out.shape else 1
    if width == 1:
        return None
    wide = tuple(type_.rank > 0 and type_.shape[-1] == width for type_ in site.call.inputs)
    logical = tuple(type_.dtype == "bool" for type_ in site.call.inputs)
    found = written.row_loop(site.call.attrs["calls"], wide, logical)
    reduced = (step[1] for step in found.steps if step[0] in REDUCTIONS)
    return found if all(found.is_wide[i] for i in (*reduced, found.last)) else None


@once_a_site
def _planes(site: Site) -> tuple[View, ...] | None:
    """Inputs and out as [outer, inner, columns]."""
    wanted = _row_loop(site) if site.out.dtype in SINGLE and is_complete(site) else None
    if wanted is None or any(view.dtype not in (*SINGLE, "bool") for view in site.read):
        return None
    views = [view.expand(*site.out.shape) for view in (*inputs(site), site.out)]
    if reduces(site.call):
        leads = merged([view.select(-1, 0) for view in views], 2)
        planes = tuple(map(_with_columns, leads, views))
    else:
        planes = merged(views)
    if planes[0].rank != 3:
        return None
    stay = zip(planes, (*wanted.wide, True), strict=True)
    fits = (is_flat(view) if wide else same(view.strides[-1], 0) for view, wide in stay)
    return planes if all(fits) else None


def _with_columns(lead: View, of: View) -> View:
    """Rows of a view, as they were merged, and their columns."""
    shape, strides = (*lead.shape, of.shape[-1]), (*lead.strides, of.strides[-1])
    return replace(lead, shape=shape, strides=strides)


def _cost(site: Site) -> float:
    return CALL_NS + OPERATION_NS * site.call.op.flops(site.call, site.out_box)


def _scratch(site: Site) -> tuple[Scratch, ...]:
    wanted, planes = _row_loop(site), _planes(site)
    assert wanted is not None
    assert planes is not None
    return (((max(1, len(wanted.kept)), planes[-1].shape[-1]), "float32"),)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    wanted, planes = _row_loop(site), _planes(site)
    assert wanted is not None
    assert planes is not None
    arguments: list[Any] = []
    for view in planes:
        arguments += [span(view), *view.strides[:2]]
    arguments += [span(scratch[0]), *planes[-1].shape]
    return compiled(
        written.function(tuple(wanted.steps), wanted.wide, wanted.logical), tuple(arguments)
    )


if written is not None:
    add_kernel("rowwise_numba", "rowwise", _planes, _cost, _bind, scratch=_scratch)
