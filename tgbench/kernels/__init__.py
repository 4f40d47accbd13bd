"""Kernels: the registry, and importing this fills it."""

from tgbench.kernels import adapters, copied
from tgbench.kernels.numba import rows, rowwise
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
    elementwise,
    fused,
    layout,
    opaque,
    order,
    packed,
    pool,
    products,
    stepwise,
    widening,
)
from tgbench.kernels.torch.elementwise import copy_, fill_
from tgbench.kernels.triton import rowwise as rowwise_triton
from tgbench.kernels.views import dense

if library is not None:
    direct.register_direct()
    strips.register_strips()
    heads.register_attention()
elif packed.is_built_in():  # one layout of weights is enough
    packed.register_packed()
adapters.register_adapters()

__all__ = [
    "ARENA", "KERNELS", "Kernel", "Scratch", "Site", "View", "adapters", "candidates", "conv",
    "copied", "copy_", "dense", "direct", "elementwise", "fill_", "fused", "heads", "layout",
    "opaque", "order", "packed", "pool", "products", "register", "rows", "rowwise",
    "rowwise_triton", "scratch_bytes", "stepwise", "strips", "widening",
]  # fmt: skip
