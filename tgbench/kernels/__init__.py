"""Kernels: the registry, and importing this fills it."""

from tgbench.kernels import adapters
from tgbench.kernels.numba import rows as numba_cpu
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
from tgbench.kernels.torch import conv as torch_conv
from tgbench.kernels.torch import elementwise as torch_any
from tgbench.kernels.torch import fused, opaque, packed, products
from tgbench.kernels.torch import layout as torch_layout
from tgbench.kernels.torch import order as torch_order
from tgbench.kernels.torch import pool as torch_pool
from tgbench.kernels.torch.elementwise import copy_, fill_
from tgbench.kernels.views import dense

__all__ = [
    "ARENA", "KERNELS", "Kernel", "Scratch", "Site", "View", "adapters", "candidates", "copy_",
    "dense", "fill_", "fused", "numba_cpu", "opaque", "packed", "products", "register",
    "scratch_bytes", "torch_any", "torch_conv", "torch_layout", "torch_order", "torch_pool",
]  # fmt: skip
