"""The kernel of rowwise ops: one loop over rows, written from the op's steps (`written`)."""

from __future__ import annotations

from typing import Any

from tgbench.kernels.numba.rows import CALL_NS, SINGLE, add_kernel, compiled, span
from tgbench.kernels.passes import RowPasses, passes_of, planes
from tgbench.kernels.registry import Scratch, Site, View
from tgbench.kernels.views import Bound, is_flat

try:
    from tgbench.kernels.numba import written
except ImportError:
    written = None  # type: ignore[assignment]

OPERATION_NS = 0.035  # as the op table counts them: an exponential is ten


def _flat_planes(site: Site) -> tuple[View, ...] | None:
    """Inputs and out as [outer, inner, columns], where columns lie side by side."""
    found = planes(site, SINGLE)
    if found is None:
        return None
    stay = zip(found, (*_passes(site).wide, True), strict=True)
    return found if all(is_flat(view) for view, wide in stay if wide) else None


def _passes(site: Site) -> RowPasses:
    found = passes_of(site)
    assert found is not None
    return found


def _places(site: Site) -> tuple[View, ...]:
    found = _flat_planes(site)
    assert found is not None
    return found


def _cost(site: Site) -> float:
    return CALL_NS + OPERATION_NS * site.call.op.flops(site.call, site.out_box)


def _scratch(site: Site) -> tuple[Scratch, ...]:
    kept = len(_passes(site).kept)
    return (((max(1, kept), _places(site)[-1].shape[-1]), "float32"),)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    views = _places(site)
    arguments: list[Any] = []
    for view in views:
        arguments += [span(view), *view.strides[:2]]
    arguments += [span(scratch[0]), *views[-1].shape]
    return compiled(written.function(_passes(site)), tuple(arguments))


if written is not None:
    add_kernel("rowwise_numba", "rowwise", _flat_planes, _cost, _bind, scratch=_scratch)
