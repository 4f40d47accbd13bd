"""The kernels of recurrent steps: all steps of an op are one call, and may be in a chain.

PyTorch's own layers take 5 to 190 µs a step, and those of oneDNN lay all weights out anew at every
call: 7 ms for 512 units, however few steps there are. Here weights are read as they lie, or, for
many samples, as panels that were laid out before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgbench.base.coords import same, value_of
from tgbench.graph.ops.recurrent import CELLS, GATES, WEIGHT
from tgbench.kernels.numba.panels import FLOPS_PER_NS, laid_out
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
from tgbench.kernels.registry import Prepared, Scratch, Site, View, once_a_site
from tgbench.kernels.views import Bound, inputs, is_complete, is_flat, merged

try:
    from tgbench.kernels.numba import blocks, steps
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
    weight = inputs(site)[WEIGHT]
    arguments = _arguments(site, (span(weight), weight.strides[0]), scratch)
    return compiled(getattr(steps, site.call.op.name), (*arguments, *_activation(site)))


def _arguments(site: Site, weight: tuple[Any, ...], scratch: tuple[View, ...]) -> tuple[Any, ...]:
    """What all steps are given, with the weights as they read them."""
    gates, held, bias, state = inputs(site)
    rows, samples, _ = gates.shape
    return (
        span(gates), *gates.strides[:2], *weight, span(bias), span(state), state.strides[1],
        span(site.out), *site.out.strides[:2], *map(span, scratch), rows, samples, held.shape[1],
    )  # fmt: skip


# --- by panels -----------------------------------------------------------------------------------

STEP_NS = 200.0  # of a step, in which panels begin and end


@once_a_site
def _in_panels(site: Site) -> tuple[View, ...] | None:
    """Operands, where panels have no columns but the weights' own."""
    found = _taken(site)
    width = int(site.call.in_shapes[WEIGHT][0])
    return found if found is not None and blocks.sums_for(width) == width else None


def _cost_by_panels(site: Site) -> float:
    gates, weight, *_ = inputs(site)
    each = value_of(weight.shape[1]) * 2 / FLOPS_PER_NS + GATE_NS
    return CALL_NS + value_of(gates.shape[0]) * STEP_NS + gates.elements * each


def _scratch_by_panels(site: Site) -> tuple[Scratch, ...]:
    samples = int(site.call.in_shapes[GATES][1])
    return (*_scratch(site), ((steps.room_of(samples),), "int64"))


def _bind_by_panels(site: Site, scratch: tuple[View, ...]) -> Bound:
    arguments = _arguments(site, (Prepared(inputs(site)[WEIGHT], laid_out),), scratch)
    more = blocks.address_of_blocks(), *_activation(site)
    return compiled(getattr(steps, f"{site.call.op.name}_by_panels"), (*arguments, *more))


def _activation(site: Site) -> list[int]:
    """The code of a plain cell's; nothing of others."""
    name = site.call.attrs.get("activation")
    return [] if name is None else [loops.ACTIVATIONS[name]]


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
    add_kernel(
        f"{_name}_panels", _name, _in_panels, _cost_by_panels, _bind_by_panels,
        scratch=_scratch_by_panels, prepares=(WEIGHT,), layout="panels",
    )  # fmt: skip
add_kernel("linear_recurrence_numba", "linear_recurrence", _scanned, _scan_cost, _bind_scan)
