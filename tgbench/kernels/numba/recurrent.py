"""The kernels of recurrent steps: all steps of an op are one call, and may be in a chain.

PyTorch's own layers take 5 to 190 µs a step, and those of oneDNN lay all weights out anew at every
call: 7 ms for 512 units, however few steps there are. Here weights are read as they lie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgbench.base.coords import same, value_of
from tgbench.graph.ops.recurrent import CELLS, GATES
from tgbench.kernels.numba.rows import (
    CALL_NS,
    DOTS,
    SINGLE,
    TYPES,
    add_kernel,
    compiled,
    loops,
    span,
)
from tgbench.kernels.registry import Scratch, Site, View, once_a_site
from tgbench.kernels.views import Bound, inputs, is_complete, is_flat, merged

try:
    from tgbench.kernels.numba import steps
except ImportError:
    steps = None  # type: ignore[assignment]

GATE_NS = 1.5  # of a number of a gate, in all passes


@once_a_site
def _taken(site: Site) -> tuple[View, ...] | None:
    """Operands whose numbers of one step and sample lie side by side."""
    if site.out.dtype not in SINGLE or not is_complete(site):
        return None
    found = inputs(site)
    return tuple(found) if all(map(is_flat, (*found, site.out))) else None


def _cost(site: Site) -> float:
    gates, weight, *_ = inputs(site)
    numbers = gates.elements
    return CALL_NS + numbers * (value_of(weight.shape[1]) / DOTS + GATE_NS)


def _scratch(site: Site) -> tuple[Scratch, ...]:
    return ((tuple(inputs(site)[GATES].shape[1:]), site.out.dtype),)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    gates, weight, bias, state = inputs(site)
    rows, samples, _ = gates.shape
    more: list[Any] = []
    if "activation" in site.call.attrs:
        more.append(loops.ACTIVATIONS[site.call.attrs["activation"]])
    arguments = (
        span(gates), *gates.strides[:2], span(weight), weight.strides[0], span(bias), span(state),
        state.strides[1], span(site.out), *site.out.strides[:2], span(scratch[0]), rows, samples,
        weight.shape[1], *more,
    )  # fmt: skip
    return compiled(getattr(steps, site.call.op.name), arguments)


# --- linear recurrences --------------------------------------------------------------------------

SCAN_NS = 0.5  # of an element


@once_a_site
def _scanned(site: Site) -> tuple[View, ...] | None:
    """decay, added, state and rows, [rows, outer, middle, n] each, the last side by side; decay may
    be one number for all of them.
    """
    if site.out.dtype not in TYPES or not is_complete(site):
        return None
    views = (*inputs(site), site.out)
    if site.out.rank == 1:
        views = tuple(view.insert(1) for view in views)
    sides = merged([view.select(0, 0) for view in views])
    if sides[0].rank > 3:
        return None
    decay, *others = sides
    flat = all(map(is_flat, others)) and (is_flat(decay) or same(decay.strides[-1], 0))
    rows = [v.strides[0] for v in views]
    if not flat or any(step < 0 for step in (*rows, *decay.strides)):
        return None
    sizes = zip(views, sides, strict=True)
    return tuple(
        replace(side, shape=(view.shape[0], *side.shape), strides=(view.strides[0], *side.strides))
        for view, side in sizes
    )


def _scan_cost(site: Site) -> float:
    return CALL_NS + SCAN_NS * site.out.elements


def _bind_scan(site: Site, scratch: tuple[View, ...]) -> Bound:
    views = _scanned(site)
    assert views is not None
    decay, added, state, out = views
    arguments = (
        span(decay), *decay.strides, span(added), *added.strides[:3], span(state),
        *state.strides[1:3], span(out), *out.strides[:3], *out.shape,
    )  # fmt: skip
    return compiled(steps.linear_recurrence, arguments)


for _name in CELLS:
    add_kernel(f"{_name}_numba", _name, _taken, _cost, _bind, scratch=_scratch)
add_kernel("linear_recurrence_numba", "linear_recurrence", _scanned, _scan_cost, _bind_scan)
