"""Kernels: the registry, and importing this fills it."""

from tgbench.kernels import adapters, copied
from tgbench.kernels.numba import rows
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
    widening,
)
from tgbench.kernels.torch.elementwise import copy_, fill_
from tgbench.kernels.views import dense

adapters.register_adapters()

__all__ = [
    "ARENA", "KERNELS", "Kernel", "Scratch", "Site", "View", "adapters", "candidates", "conv",
    "copied", "copy_", "dense", "elementwise", "fill_", "fused", "layout", "opaque", "order",
    "packed", "pool", "products", "register", "rows", "scratch_bytes",
    "widening",
]  # fmt: skip
