"""The entries of the fuzzer's table, by family; importing this package fills it."""

from fuzz.ops import (
    elementwise,
    indexing,
    layout,
    networks,
    products,
    recurrent,
    reductions,
    windows,
)

__all__ = [
    "elementwise", "indexing", "layout", "networks", "products", "recurrent", "reductions",
    "windows",
]  # fmt: skip
