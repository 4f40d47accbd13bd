"""Kernels: the registry, and importing this fills it."""

from tgbench.kernels import adapters, fused, products, torch_any, torch_layout, numba_cpu
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
    "dense", "fill_", "fused", "products", "register", "scratch_bytes", "torch_any", "torch_layout",
]  # fmt: skip
