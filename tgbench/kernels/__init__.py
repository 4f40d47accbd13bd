"""Kernels: the registry, and importing this fills it."""

from tgbench.kernels import adapters, copied
from tgbench.kernels.numba import (
    branches,
    depthwise,
    filters,
    images,
    panels,
    points,
    rows,
    rowwise,
    vectors,
)
from tgbench.kernels.numba import gathered as gathered_numba
from tgbench.kernels.numba import recurrent as recurrent_numba
from tgbench.kernels.numpy import dots
from tgbench.kernels.onednn import direct, heads, strips
from tgbench.kernels.onednn.library import library
from tgbench.kernels.registry import (
    ARENA,
    KERNELS,
    Kernel,
    Scratch,
    Site,
    View,
    candidates,
    register,
    scratch_bytes,
)
from tgbench.kernels.torch import (
    conv,
    depth,
    elementwise,
    fused,
    gathered,
    layout,
    opaque,
    order,
    packed,
    pool,
    products,
    recurrent,
    stepwise,
    widening,
)
from tgbench.kernels.torch.elementwise import copy_, fill_
from tgbench.kernels.triton import rowwise as rowwise_triton
from tgbench.kernels.views import dense

# One layout of a weight is enough, so a call has it from one of these.
others = panels.register_panels()
filters.register_filters()
depthwise.register_depthwise()
if library is not None:
    direct.register_direct(others)
    strips.register_strips(others)
    heads.register_attention()
elif packed.is_built_in():
    packed.register_packed(others)
adapters.register_adapters()

__all__ = [
    "ARENA", "KERNELS", "Kernel", "Scratch", "Site", "View", "adapters", "branches", "candidates",
    "conv", "copied", "copy_", "dense", "depth", "depthwise", "direct", "dots", "elementwise",
    "fill_", "filters", "fused", "gathered", "gathered_numba", "heads", "images", "layout",
    "opaque", "order", "packed", "panels", "points", "pool", "products", "recurrent",
    "recurrent_numba", "register", "rows", "rowwise", "rowwise_triton", "scratch_bytes", "stepwise",
    "strips", "vectors", "widening",
]  # fmt: skip
