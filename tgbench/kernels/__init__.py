"""Kernels: the registry, and importing this fills it."""

from tgbench.kernels import (
    adapters,
    fused,
    numba_cpu,
    opaque,
    packed,
    products,
    torch_any,
    torch_conv,
    torch_layout,
    torch_order,
    torch_pool,
)
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
from tgbench.kernels.torch_any import copy_, fill_
from tgbench.kernels.views import dense

__all__ = [
    "ARENA", "KERNELS", "Kernel", "Scratch", "Site", "View", "adapters", "candidates", "copy_",
    "dense", "fill_", "fused", "numba_cpu", "opaque", "packed", "products", "register",
    "scratch_bytes", "torch_any", "torch_conv", "torch_layout", "torch_order", "torch_pool",
]  # fmt: skip
