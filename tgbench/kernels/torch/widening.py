"""Products with weights in less than float32, widened a block at a time.

    weight rows 0…b    ─→ scratch, float32  ─→ x · scratchᵀ ─→ columns 0…b of the result
           rows b…2b   ─→ the same scratch  ─→ x · scratchᵀ ─→ columns b…2b

The products are those of the widened weight; only a block of it exists, which the cache holds.
"""

from __future__ import annotations

from torch import Tensor, add, mm

from tgbench.base.coords import value_of
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS
from tgbench.kernels.torch.products import GEMM_FLOPS_PER_NS, product_of, rows_of
from tgbench.kernels.views import Bound, is_matrix, reshaped

BLOCK_ELEMENTS = 1 << 18  # 1 MiB in float32
LEAST_ROWS = 256  # BLAS is slow with fewer columns
WIDEN_BYTES_PER_NS = 8.0


def _block_rows(site: Site) -> int:
    p = product_of(site)
    return min(value_of(p.columns), max(LEAST_ROWS, BLOCK_ELEMENTS // value_of(p.depth)))


def _as_rows(view: View) -> View | None:
    """[rows, n] as BLAS takes it, where it lies so."""
    flat = view.rows()
    return flat if flat is not None and is_matrix(flat) else None


def _scratch(site: Site) -> tuple[Scratch, ...]:
    p = product_of(site)
    found: list[Scratch] = [((_block_rows(site), p.depth), p.dtype)]
    if _as_rows(p.x) is None:
        found.append(((p.rows, p.depth), p.dtype))
    if _as_rows(p.out) is None:
        found.append(((p.rows, p.columns), p.dtype))
    return tuple(found)


def _multiply(x: Tensor, weight: Tensor, block: Tensor, out: Tensor, bias: Tensor | None) -> None:
    step = block.shape[0]
    for start in range(0, weight.shape[0], step):
        rows = weight[start : start + step]
        wide = block[: rows.shape[0]]
        wide.copy_(rows)
        mm(x, wide.t(), out=out[:, start : start + step])
    if bias is not None:
        add(out, bias, out=out)


def _multiply_apart(
    x: Tensor, copied: Tensor | None, product: Tensor | None, out: Tensor, rows: Tensor,
    weight: Tensor, block: Tensor, flat: Tensor, bias: Tensor | None,
) -> None:  # fmt: skip
    """The same where x has to be gathered first, or the result put where it belongs."""
    if copied is not None:
        copied.copy_(x)
    _multiply(rows, weight, block, flat, bias)
    if product is not None:
        out.copy_(product)


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (block, *spare) = product_of(site), scratch
    x, out = _as_rows(p.x), _as_rows(p.out)
    if x is not None and out is not None:
        return _multiply, (x, p.weights[0], block, out, p.bias)
    copied = product = None
    if x is None:
        x = spare.pop(0)
        copied = reshaped(x, p.x.shape)
    if out is None:
        out = spare.pop(0)
        product = reshaped(out, p.out.shape)
    return _multiply_apart, (p.x, copied, product, p.out, x, p.weights[0], block, out, p.bias)


def _cost(site: Site) -> float:
    p = product_of(site)
    elements = value_of(p.depth) * value_of(p.columns)
    blocks = -(-value_of(p.columns) // _block_rows(site))
    flops = 2.0 * value_of(p.rows) * elements
    moved = p.weight_bytes / BYTES_PER_NS + 4 * elements / WIDEN_BYTES_PER_NS
    return 6 * CALL_NS * blocks + moved + flops / GEMM_FLOPS_PER_NS


def _takes(site: Site) -> bool:
    return rows_of(site) is not None


register(
    Kernel("widening_linear_blocks", "widening_linear", _takes, _cost, _bind, _scratch, ("cpu",))
)
