"""Operators of PyTorch that are computed whole, with memory of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from tgbench.base.errors import KernelError
from tgbench.graph.ops.opaque.aten import Script, outline
from tgbench.kernels.registry import Kernel, Site, View, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.views import Bound, is_complete

PLACES = 16  # elements; view_as_complex and view(dtype) ask for even places


def _run(script: Script, out: Tensor, *inputs: Tensor) -> None:
    """The operators; what they read lies side by side, so that bits do not depend on a plan."""
    made = script.run(*map(_side_by_side, inputs))
    result = made[0] if len(made) == 1 else torch.cat([one.reshape(-1) for one in made])
    if result.shape != out.shape or result.dtype != out.dtype:
        raise KernelError(
            f"{script.calls} gave {result.dtype}{[*result.shape]}, not {out.dtype}{[*out.shape]}"
        )
    out.copy_(result)


def _side_by_side(x: Tensor) -> Tensor:
    """Contiguous elements, from where a complex number may begin."""
    if x.is_contiguous() and not x.storage_offset() % PLACES:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    script = Script.of(site.call.attrs["calls"], site.call.attrs["results"])
    return _run, (script, site.out, *map(site.operand, range(len(site.ins))))


def _made_bytes(site: Site) -> int:
    """Everything that the operators make, and copies of what they read and give."""
    attrs, types = site.call.attrs, site.call.inputs
    made = outline(attrs["calls"], attrs["results"], types).size_bytes
    return made + int(site.call.out.size_bytes) + sum(int(type_.size_bytes) for type_ in types)


def _cost(site: Site) -> float:
    return 10 * CALL_NS * len(site.call.attrs["calls"]) + 20 * _made_bytes(site) / BYTES_PER_NS


register(Kernel("opaque", "opaque", is_complete, _cost, _bind, allocates=_made_bytes, repeats=True))
