"""One row times a weight matrix, as many dot products.

What such a product takes is reading the matrix once. BLAS multiplies a matrix and a vector at half
the speed of that on some processors; NumPy's `vecdot` asks BLAS for one dot product a row of the
matrix, which reads it from front to back, nearly as quickly as one thread can. The loops of
`kernels.numba` do that as well, and need numba and a moment to compile; these are there at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tgbench.kernels.registry import ONE, Host, Kernel, Site, View, register
from tgbench.kernels.torch.elementwise import CALL_NS
from tgbench.kernels.torch.products import ACTIVATIONS, one_row, product_of, rows_of
from tgbench.kernels.views import Bound, is_single, line

DTYPES = ("float32", "float64")
LONGEST = 10_000  # numbers of a line: BLAS shares longer ones among threads of its own
STREAM = 36.0  # bytes of a weight matrix a nanosecond

Array = NDArray[Any]


def _takes(site: Site) -> bool:
    p = rows_of(site) if site.out.dtype in DTYPES and is_single(site.out) else None
    if p is None or not p.depth <= LONGEST:
        return False
    return all(view.is_row_contiguous for view in (*p.weights, p.x))


def _cost(site: Site) -> float:
    p = product_of(site)
    return CALL_NS * 2 * len(p.weights) + p.weight_bytes / STREAM


def _dots(weight: Array, x: Array, out: Array) -> None:
    np.vecdot(weight, x, out=out)


def _dots_bias(weight: Array, x: Array, out: Array, bias: Array) -> None:
    np.vecdot(weight, x, out=out)
    np.add(out, bias, out=out)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = product_of(site)
    operands = Host(p.weights[0]), Host(line(p.x)), Host(line(p.out))
    return (_dots, operands) if p.bias is None else (_dots_bias, (*operands, Host(p.bias)))


def _gated_dots(
    activate: Any, gate: Array, up: Array, x: Array, gates: Array, ups: Array, out: Tensor,
    factors: Tensor,
) -> None:  # fmt: skip
    np.vecdot(gate, x, out=gates)
    activate(out, out)
    np.vecdot(up, x, out=ups)
    out.mul_(factors)


def _bind_gated(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (wide,) = product_of(site), scratch
    out = line(p.out)
    return _gated_dots, (
        ACTIVATIONS[site.call.attrs["activation"]], *map(Host, p.weights), Host(line(p.x)),
        Host(out), Host(wide), out, wide,
    )  # fmt: skip


register(Kernel("linear_row_dots", "linear", _takes, _cost, _bind, devices=("cpu",), threads=ONE))
register(
    Kernel(
        "gated_linear_row_dots", "gated_linear", _takes, _cost, _bind_gated, one_row, ("cpu",),
        threads=ONE,
    )
)  # fmt: skip
