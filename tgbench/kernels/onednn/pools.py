"""The largest of each window, by oneDNN: one pass over an image, where taps are a pass each.

Windows that see nothing but padding have another kernel, and so have gaps between taps, which may
make such. What does not lie channels-last goes by way of scratch memory, as in `direct`.

The cost is a model of one machine; records replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tgbench.graph.ops.images.pool import pool_windows
from tgbench.kernels.onednn.direct import (
    CPU,
    WIDE,
    as_image,
    computed,
    copies,
    form_of,
    laid,
    own_room,
    placed,
)
from tgbench.kernels.onednn.library import Computation, Description, described
from tgbench.kernels.registry import Kernel, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.conv import reaching_over, sees_input
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.torch.packed import SPATIAL
from tgbench.kernels.views import Bound, inputs

PASSES = 3  # the image is read, its windows are compared, the result is written


@dataclass(frozen=True, slots=True)
class Pooled:
    """How a site is computed."""

    x: View
    out: View
    by: Description

    @property
    def window(self) -> tuple[tuple[int, ...], ...]:
        """As the library has it."""
        return self.by.computation.window


@once_a_site
def _pooled(site: Site) -> Pooled | None:
    if site.out.dtype != WIDE or site.out.rank > 2 + SPATIAL or not sees_input(site):
        return None
    attrs, lines = site.call.attrs, SPATIAL + 2 - site.out.rank
    over = reaching_over(site, pool_windows(attrs, site.call.in_shapes[0]))
    if any(
        step > 1 or max(reach) >= size
        for step, reach, size in zip(attrs["dilation"], over, attrs["kernel"], strict=True)
    ):
        return None
    one, none = (1,) * lines, (0,) * lines
    low, high = ((*none, *side) for side in zip(*over, strict=True))
    window = ((*one, *attrs["stride"]), (0,) * SPATIAL, low, high)
    x, out = (as_image(view) for view in (inputs(site)[0], site.out))
    source, target = (form_of(laid(view, window)) for view in (x, out))
    kernel, threads = (*one, *attrs["kernel"]), torch.get_num_threads()
    found = described(
        Computation(source, None, None, target, None, window, (), threads, kernel)
    )  # fmt: skip
    return None if found is None else Pooled(x, out, found)


def _takes(site: Site) -> bool:
    return _pooled(site) is not None


def _found(site: Site) -> Pooled:
    found = _pooled(site)
    assert found is not None
    return found


def _scratch(site: Site) -> tuple[Scratch, ...]:
    p = _found(site)
    return (*own_room(p.by), *copies(p.x, p.out, p.window))


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, pieces = _found(site), list(scratch)
    own = pieces.pop(0) if p.by.scratch_bytes else None
    x, copy, source = placed(p.x, p.window, pieces)
    out, result, target = placed(p.out, p.window, pieces)
    return computed, (p.by.computation, copy, source, target, result, own, x, out)


def _cost(site: Site) -> float:
    moved = sum(room.elements for room in (site.out, inputs(site)[0])) * 4
    return 2 * CALL_NS + PASSES * moved / BYTES_PER_NS


def register_pools() -> None:
    """Register the kernel; called where the library is there."""
    register(Kernel("max_pool_direct", "max_pool", _takes, _cost, _bind, _scratch, CPU))
