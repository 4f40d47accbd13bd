"""The kernels of recurrent steps: all steps of an op are one call, and may be in a chain.

PyTorch's own layers take 5 to 190 µs a step, and those of oneDNN lay all weights out anew at every
call: 7 ms for 512 units, however few steps there are. Here weights are read as they lie.
"""

from __future__ import annotations

from typing import Any

from tgbench.base.coords import value_of
from tgbench.graph.ops.recurrent import CELLS, GATES
from tgbench.kernels.numba.rows import CALL_NS, DOTS, SINGLE, add_kernel, compiled, loops, span
from tgbench.kernels.registry import Scratch, Site, View, once_a_site
from tgbench.kernels.views import Bound, inputs, is_complete, is_flat

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


for _name in CELLS:
    add_kernel(f"{_name}_numba", _name, _taken, _cost, _bind, scratch=_scratch)
