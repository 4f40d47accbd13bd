"""Matrix products: matmul, linear, gated_linear.

One row times a weight matrix is bound by the bytes of the matrix. On the CPUs measured, BLAS
streams them faster by several threads when it multiplies two columns than when it multiplies one
vector (`mm(W, [x x])` against `mv(W, x)`), and few rows faster as columns of `W · xᵀ` than as rows
of `x · Wᵀ`: hence the `_doubled` and `_columns` kernels, which pay with a little scratch. By one
thread `kernels.numpy.dots` is faster, and the loops of `kernels.numba` are, up to some ten rows.
The costs here are a model of one machine; records replace them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import Coord, value_of
from tgbench.base.regions import Box
from tgbench.graph.op_table import FLOATS, ITEMSIZE
from tgbench.graph.ops.broadcasting import down
from tgbench.kernels.adapters import widen
from tgbench.kernels.registry import Kernel, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS, calls_cost, fill_
from tgbench.kernels.views import Bound, is_matrix, is_one, is_single, line, reshaped, same_box

GEMM_FLOPS_PER_NS = 200.0
GEMM_NS = 2_500.0


# --- what a linear site looks like -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """x · weightᵀ (+ bias), the weight of the output columns that are asked for.

    Fields:
        x: [..., depth]; weights: each [columns, depth]; out: [..., columns].
        depth, columns: sizes.
    """

    x: View
    weights: tuple[View, ...]
    bias: View | None
    out: View
    depth: Coord
    columns: Coord

    @property
    def rows(self) -> Coord:
        """How many there are, counted over all leading dimensions. The product of two sizes that go
        with a place holds one of them to it, so only who computes by that number asks.
        """
        found: Coord = 1
        for size in self.out.shape[:-1]:
            found = found * size
        return found

    @property
    def dtype(self) -> str:
        return self.out.dtype

    @property
    def weight_bytes(self) -> int:
        return sum(weight.size_bytes for weight in self.weights)


@once_a_site
def rows_of(site: Site) -> Rows | None:
    """The product at a site, or None where known zeros cut the operands in some other way than
    along the contraction.
    """
    x_box, weight_box = site.in_boxes[:2]
    if x_box is None or weight_box is None:
        return None
    *lead, columns = site.out_box
    depth = x_box[-1]
    expected = [Box([columns, depth])] * _matrices(site)
    if len(site.ins) > 1 + len(expected):
        expected.append(Box([columns]))
    if not same_box(x_box[:-1], lead):
        return None
    for have, want in zip(site.in_boxes[1:], expected, strict=True):
        if have is None or not same_box(have, want):
            return None
    weights = tuple(site.operand(1 + i) for i in range(_matrices(site)))
    bias = site.operand(2) if len(site.ins) > 1 + len(weights) else None
    x, out = site.operand(0), site.out
    return Rows(x, weights, bias, out, x.shape[-1], out.shape[-1])


def _matrices(site: Site) -> int:
    return 2 if site.call.op.name == "gated_linear" else 1


def product_of(site: Site) -> Rows:
    """The product at a site that a kernel has taken."""
    found = rows_of(site)
    assert found is not None
    return found


# --- who takes a site --------------------------------------------------------------------------


def _takes_any(site: Site) -> bool:
    return site.out.dtype != "bool" and rows_of(site) is not None


def _takes_row(site: Site) -> bool:
    p = rows_of(site) if is_single(site.out) else None
    return p is not None and all(map(is_matrix, p.weights)) and p.dtype != "bool"


def _takes_row_doubled(site: Site) -> bool:
    """Of weights that lie the other way, two rows take many times as long as one."""
    if site.out.dtype not in FLOATS or not _takes_row(site):
        return False
    return all(view.is_row_contiguous for view in product_of(site).weights)


def _takes_columns(site: Site) -> bool:
    p = rows_of(site)
    if p is None or p.dtype not in FLOATS or not all(map(is_matrix, p.weights)):
        return False
    x = p.x.rows()
    return x is not None and is_matrix(x) and p.out.rows() is not None


def _takes_rows(site: Site) -> bool:
    p = rows_of(site)
    if p is None or p.dtype == "bool" or not all(map(is_matrix, p.weights)):
        return False
    x, out = p.x.rows(), p.out.rows()
    return x is not None and is_matrix(x) and out is not None and is_matrix(out)


# --- what it costs -----------------------------------------------------------------------------


def stream_ns(size_bytes: int) -> float:
    """Reading a weight matrix once with `mv`: 16 bytes a nanosecond, 32 from the cache."""
    return size_bytes / (16.0 if size_bytes > 200_000 else 32.0)


def _row_cost(site: Site) -> float:
    p = product_of(site)
    return CALL_NS * (2 * len(p.weights) - 1) + stream_ns(p.weight_bytes)


def _doubled_cost(site: Site) -> float:
    p = product_of(site)
    share = 0.5 if value_of(p.depth) <= 1024 else 0.6 if value_of(p.depth) <= 2048 else 0.85
    columns = value_of(p.columns) * len(p.weights)
    return CALL_NS * (4 * len(p.weights)) + share * p.weight_bytes / 16.0 + columns


def _columns_cost(site: Site) -> float:
    p = product_of(site)
    rows, slow = value_of(p.rows), 1.0 if value_of(p.depth) <= 1536 else 2.0
    copied = rows * value_of(p.columns) * ITEMSIZE[p.dtype]
    streamed = (0.45 + 0.05 * rows) * slow * p.weight_bytes / 16.0
    return CALL_NS * (4 * len(p.weights)) + streamed + copied


def _rows_cost(site: Site) -> float:
    p = product_of(site)
    flops = 2.0 * value_of(p.rows) * value_of(p.depth) * value_of(p.columns) * len(p.weights)
    small = (1.3 + 0.04 * min(value_of(p.rows), 64)) * p.weight_bytes / 16.0
    return GEMM_NS * len(p.weights) + max(small, flops / GEMM_FLOPS_PER_NS)


def _gathered_cost(site: Site) -> float:
    p = product_of(site)
    moved = p.x.size_bytes + p.out.size_bytes
    return 4 * CALL_NS + _rows_cost(site) + 4 * moved / BYTES_PER_NS


# --- linear ------------------------------------------------------------------------------------


def _mv(weight: Tensor, x: Tensor, out: Tensor) -> None:
    torch.mv(weight, x, out=out)


def _addmv(bias: Tensor, weight: Tensor, x: Tensor, out: Tensor) -> None:
    torch.addmv(bias, weight, x, out=out)


def _mm(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.addmm(bias, a, b, out=out)


def _bind_row(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = product_of(site)
    operands = (p.weights[0], line(p.x), line(p.out))
    return (_mv, operands) if p.bias is None else (_addmv, (p.bias, *operands))


def _bind_rows(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = product_of(site)
    operands = (p.x.rows(), p.weights[0].transpose(), p.out.rows())
    return (_mm, operands) if p.bias is None else (_addmm, (p.bias, *operands))


def _doubled(
    x: Tensor,
    pair: Tensor,
    pair_t: Tensor,
    weight: Tensor,
    wide: Tensor,
    first: Tensor,
    out: Tensor,
) -> None:
    pair.copy_(x)
    torch.mm(weight, pair_t, out=wide)
    out.copy_(first)


def _doubled_bias(
    x: Tensor,
    pair: Tensor,
    pair_t: Tensor,
    weight: Tensor,
    wide: Tensor,
    first: Tensor,
    out: Tensor,
    bias: Tensor,
) -> None:
    pair.copy_(x)
    torch.mm(weight, pair_t, out=wide)
    torch.add(first, bias, out=out)


def _doubled_scratch(site: Site) -> tuple[Scratch, ...]:
    p = product_of(site)
    return ((2, p.depth), p.dtype), *[((p.columns, 2), p.dtype)] * len(p.weights)


def _bind_doubled(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (pair, wide) = product_of(site), scratch
    operands = (line(p.x), pair, pair.transpose(), p.weights[0], wide, wide.select(1, 0))
    if p.bias is None:
        return _doubled, (*operands, line(p.out))
    return _doubled_bias, (*operands, line(p.out), p.bias)


def _columns(weight: Tensor, x_t: Tensor, wide: Tensor, wide_t: Tensor, out: Tensor) -> None:
    torch.mm(weight, x_t, out=wide)
    out.copy_(wide_t)


def _columns_bias(
    weight: Tensor, x_t: Tensor, wide: Tensor, wide_t: Tensor, out: Tensor, bias: Tensor
) -> None:
    torch.mm(weight, x_t, out=wide)
    torch.add(wide_t, bias, out=out)


def _columns_scratch(site: Site) -> tuple[Scratch, ...]:
    p = product_of(site)
    return tuple([((p.columns, p.rows), p.dtype)] * len(p.weights))


def _bind_columns(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (wide,) = product_of(site), scratch
    x, out = p.x.rows(), p.out.rows()
    assert x is not None
    operands = (p.weights[0], x.transpose(), wide, wide.transpose(), out)
    return (_columns, operands) if p.bias is None else (_columns_bias, (*operands, p.bias))


def _gathered(
    x: Tensor, rows: Tensor, copied: Tensor, weight_t: Tensor, product: Tensor, shaped: Tensor,
    out: Tensor, weight: Tensor | None, laid: Tensor | None, bias: Tensor | None,
) -> None:  # fmt: skip
    copied.copy_(x)
    if laid is not None and weight is not None:
        laid.copy_(weight)
    torch.mm(rows, weight_t, out=product)
    if bias is None:
        out.copy_(shaped)
    else:
        torch.add(shaped, bias, out=out)


def _gathered_scratch(site: Site) -> tuple[Scratch, ...]:
    p = product_of(site)
    scratch: list[Scratch] = [((p.rows, p.depth), p.dtype), ((p.rows, p.columns), p.dtype)]
    scratch += [(w.shape, p.dtype) for w in p.weights if not is_matrix(w)]
    return tuple(scratch)


def _bind_gathered(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (rows, product, *laid) = product_of(site), scratch
    weight = laid[0] if laid else p.weights[0]
    return _gathered, (
        p.x,
        rows,
        reshaped(rows, p.x.shape),
        weight.transpose(),
        product,
        reshaped(product, p.out.shape),
        p.out,
        p.weights[0] if laid else None,
        weight if laid else None,
        p.bias,
    )


_CPU = ("cpu",)
register(Kernel("linear_row", "linear", _takes_row, _row_cost, _bind_row))
register(
    Kernel(
        "linear_row_doubled",
        "linear",
        _takes_row_doubled,
        _doubled_cost,
        _bind_doubled,
        _doubled_scratch,
        _CPU,
    )
)
register(
    Kernel(
        "linear_columns",
        "linear",
        _takes_columns,
        _columns_cost,
        _bind_columns,
        _columns_scratch,
        _CPU,
    )
)
register(Kernel("linear_rows", "linear", _takes_rows, _rows_cost, _bind_rows))
register(
    Kernel(
        "linear_gathered",
        "linear",
        _takes_any,
        _gathered_cost,
        _bind_gathered,
        _gathered_scratch,
    )
)


# --- gated_linear ------------------------------------------------------------------------------


gelu_: Callable[..., Tensor] = torch._C._nn.gelu  # torch has no public one that takes `out`
silu_: Callable[..., Tensor] = torch._C._nn.silu


def _gelu_tanh(x: Tensor, out: Tensor) -> None:
    gelu_(x, approximate="tanh", out=out)


def _gelu(x: Tensor, out: Tensor) -> None:
    gelu_(x, approximate="none", out=out)


def _silu(x: Tensor, out: Tensor) -> None:
    silu_(x, out=out)


def _relu(x: Tensor, out: Tensor) -> None:
    torch.clamp_min(x, 0, out=out)


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "gelu_tanh": _gelu_tanh,
    "gelu": _gelu,
    "silu": _silu,
    "relu": _relu,
}


def _gated_row(
    activate: Any, gate: Tensor, up: Tensor, x: Tensor, wide: Tensor, out: Tensor
) -> None:
    torch.mv(gate, x, out=out)
    activate(out, out)
    torch.mv(up, x, out=wide)
    out.mul_(wide)


def _bind_gated_row(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = product_of(site)
    activate = ACTIVATIONS[site.call.attrs["activation"]]
    return _gated_row, (activate, *p.weights, line(p.x), scratch[0], line(p.out))


def _gated_doubled(
    activate: Any, gate: Tensor, up: Tensor, x: Tensor, pair: Tensor, pair_t: Tensor,
    gates: Tensor, gate_first: Tensor, ups: Tensor, up_first: Tensor, out: Tensor,
) -> None:  # fmt: skip
    pair.copy_(x)
    torch.mm(gate, pair_t, out=gates)
    torch.mm(up, pair_t, out=ups)
    out.copy_(gate_first)
    activate(out, out)
    out.mul_(up_first)


def _bind_gated_doubled(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (pair, gates, ups) = product_of(site), scratch
    activate = ACTIVATIONS[site.call.attrs["activation"]]
    firsts = gates.select(1, 0), ups.select(1, 0)
    return _gated_doubled, (
        activate, *p.weights, line(p.x), pair, pair.transpose(), gates, firsts[0], ups, firsts[1],
        line(p.out),
    )  # fmt: skip


def _gated_columns(
    activate: Any, gate: Tensor, up: Tensor, x_t: Tensor, gates: Tensor, gates_t: Tensor,
    ups: Tensor, ups_t: Tensor, out: Tensor,
) -> None:  # fmt: skip
    torch.mm(gate, x_t, out=gates)
    activate(gates, gates)
    torch.mm(up, x_t, out=ups)
    torch.mul(gates_t, ups_t, out=out)


def _bind_gated_columns(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (gates, ups) = product_of(site), scratch
    x, activate = p.x.rows(), ACTIVATIONS[site.call.attrs["activation"]]
    assert x is not None
    return _gated_columns, (
        activate, *p.weights, x.transpose(), gates, gates.transpose(), ups, ups.transpose(),
        p.out.rows(),
    )  # fmt: skip


def _gated_rows(
    activate: Any, gate_t: Tensor, up_t: Tensor, x: Tensor, wide: Tensor, out: Tensor
) -> None:
    torch.mm(x, gate_t, out=out)
    activate(out, out)
    torch.mm(x, up_t, out=wide)
    out.mul_(wide)


def _bind_gated_rows(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, activate = product_of(site), ACTIVATIONS[site.call.attrs["activation"]]
    turned = [weight.transpose() for weight in p.weights]
    return _gated_rows, (activate, *turned, p.x.rows(), scratch[0], p.out.rows())


def _gated_gathered(
    activate: Any, x: Tensor, rows: Tensor, copied: Tensor, gate_t: Tensor, up_t: Tensor,
    gates: Tensor, gates_shaped: Tensor, ups: Tensor, ups_shaped: Tensor, out: Tensor,
    *laid: Tensor,
) -> None:  # fmt: skip
    copied.copy_(x)
    for target, source in zip(laid[::2], laid[1::2], strict=True):
        target.copy_(source)
    torch.mm(rows, gate_t, out=gates)
    activate(gates, gates)
    torch.mm(rows, up_t, out=ups)
    torch.mul(gates_shaped, ups_shaped, out=out)


def _gated_gathered_scratch(site: Site) -> tuple[Scratch, ...]:
    rows, product, *laid = _gathered_scratch(site)
    return (rows, product, product, *laid)


def _bind_gated_gathered(site: Site, scratch: tuple[View, ...]) -> Bound:
    p, (rows, gates, ups, *spare) = product_of(site), scratch
    weights, laid = [], []
    for weight in p.weights:
        if not is_matrix(weight):
            laid += [spare[0], weight]
            weight = spare.pop(0)
        weights.append(weight.transpose())
    return _gated_gathered, (
        ACTIVATIONS[site.call.attrs["activation"]], p.x, rows, reshaped(rows, p.x.shape), *weights,
        gates, reshaped(gates, p.out.shape), ups, reshaped(ups, p.out.shape), p.out, *laid,
    )  # fmt: skip


def _one_product(site: Site) -> tuple[Scratch, ...]:
    p = product_of(site)
    return (((p.rows, p.columns), p.dtype),)


def one_row(site: Site) -> tuple[Scratch, ...]:
    """Scratch memory for one of two products, of one row."""
    p = product_of(site)
    return (((p.columns,), p.dtype),)


register(
    Kernel("gated_linear_row", "gated_linear", _takes_row, _row_cost, _bind_gated_row, one_row)
)
register(
    Kernel(
        "gated_linear_row_doubled",
        "gated_linear",
        _takes_row_doubled,
        _doubled_cost,
        _bind_gated_doubled,
        _doubled_scratch,
        _CPU,
    )
)
register(
    Kernel(
        "gated_linear_columns",
        "gated_linear",
        _takes_columns,
        _columns_cost,
        _bind_gated_columns,
        _columns_scratch,
        _CPU,
    )
)
register(
    Kernel(
        "gated_linear_rows",
        "gated_linear",
        _takes_rows,
        _rows_cost,
        _bind_gated_rows,
        _one_product,
    )
)
register(
    Kernel(
        "gated_linear_gathered",
        "gated_linear",
        _takes_any,
        _gathered_cost,
        _bind_gated_gathered,
        _gated_gathered_scratch,
    )
)


# --- matmul ------------------------------------------------------------------------------------


@once_a_site
def _operands(site: Site) -> tuple[View, View] | None:
    """Both operands, broadcast over the output's batch; None where known zeros cut them in some
    other way than along the contraction.
    """
    a_box, b_box = site.in_boxes
    if a_box is None or b_box is None:
        return None
    *front, rows, columns = site.out_box
    shape_a, shape_b = site.call.in_shapes
    batch_a = down(Box(front), shape_a[:-2]).hull()
    batch_b = down(Box(front), shape_b[:-2]).hull()
    depth = a_box[-1]
    fits_a = same_box(a_box, (*batch_a, rows, depth))
    if not fits_a or not same_box(b_box, (*batch_b, depth, columns)):
        return None
    a, b, batch = site.operand(0), site.operand(1), site.out.shape[:-2]
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _both(site: Site) -> tuple[View, View]:
    found = _operands(site)
    assert found is not None
    return found


def _plane(view: View) -> View | None:
    """A batch of size 1 left out: [rows, columns]."""
    if not all(map(is_one, view.shape[:-2])):
        return None
    while view.rank > 2:
        view = view.select(0, 0)
    return view


def _batched(view: View) -> View | None:
    """[batch, rows, columns]."""
    flat = view.insert(0) if view.rank == 2 else view
    return flat.flatten(0, flat.rank - 2)


@once_a_site
def _planes(site: Site) -> tuple[View, View, View] | None:
    """One plain product: no batch, or a batch of rows that meet the same matrix."""
    both = _operands(site)
    if both is None or site.out.dtype == "bool":
        return None
    (a, b), out = both, site.out
    found = _plane(a), _plane(b), _plane(out)
    if found[0] is None and all(map(is_one, site.operand(1).shape[:-2])):
        found = a.rows(), _plane(site.operand(1)), out.rows()
    a2, b2, out2 = found
    if a2 is None or b2 is None or out2 is None:
        return None
    return (a2, b2, out2) if all(map(is_matrix, (a2, b2))) else None


def _one_plane(site: Site) -> tuple[View, View, View]:
    found = _planes(site)
    assert found is not None
    return found


def _takes_plane(site: Site) -> bool:
    found = _planes(site)
    return found is not None and is_matrix(found[2])


def _takes_vector(site: Site) -> bool:
    found = _planes(site)
    return found is not None and (is_one(found[2].shape[0]) or is_one(found[2].shape[1]))


@once_a_site
def _stacks(site: Site) -> tuple[View, View, View] | None:
    both = _operands(site)
    if both is None or site.out.dtype == "bool":
        return None
    a, b, out = _batched(both[0]), _batched(both[1]), _batched(site.out)
    if a is None or b is None or out is None:
        return None
    return (a, b, out) if all(map(is_matrix, (a, b, out))) else None


def _takes_stacks(site: Site) -> bool:
    return _stacks(site) is not None


def _takes_matmul(site: Site) -> bool:
    return site.out.dtype != "bool" and _operands(site) is not None


def _matmul_cost(site: Site) -> float:
    a, _ = _both(site)
    flops = 2.0 * site.out.elements * value_of(a.shape[-1])
    batch = max(site.out.elements // max(_plane_elements(site.out), 1), 1)
    moved = site.out.size_bytes + site.operand(0).size_bytes + site.operand(1).size_bytes
    return GEMM_NS + 500.0 * batch + max(flops / GEMM_FLOPS_PER_NS, moved / BYTES_PER_NS)


def _plane_elements(view: View) -> int:
    return value_of(view.shape[-1]) * value_of(view.shape[-2])


def _vector_cost(site: Site) -> float:
    rows, columns = (value_of(n) for n in site.out.shape[-2:])
    matrix = site.operand(1) if rows <= columns else site.operand(0)
    return CALL_NS + stream_ns(matrix.size_bytes)


def _bind_plane(site: Site, scratch: tuple[View, ...]) -> Bound:
    return _mm, _one_plane(site)


def _bind_vector(site: Site, scratch: tuple[View, ...]) -> Bound:
    a, b, out = _one_plane(site)
    if is_one(out.shape[0]):
        return _mv, (b.transpose(), a.select(0, 0), out.select(0, 0))
    return _mv, (a, b.select(1, 0), out.select(1, 0))


def _bmm(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.bmm(a, b, out=out)


def _bind_stacks(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _stacks(site)
    assert found is not None
    return _bmm, found


def _bmm_copied(
    a: Tensor, a_copy: Tensor, a_stack: Tensor, b: Tensor, b_copy: Tensor, b_stack: Tensor,
    stack: Tensor, shaped: Tensor, out: Tensor,
) -> None:  # fmt: skip
    a_copy.copy_(a)
    b_copy.copy_(b)
    torch.bmm(a_stack, b_stack, out=stack)
    out.copy_(shaped)


def _stacked_shape(view: View) -> tuple[Coord, ...]:
    batch: Coord = 1
    for size in view.shape[:-2]:
        batch = batch * size
    return (batch, *view.shape[-2:])


def _copied_scratch(site: Site) -> tuple[Scratch, ...]:
    return tuple((_stacked_shape(v), site.out.dtype) for v in (*_both(site), site.out))


def _bind_copied(site: Site, scratch: tuple[View, ...]) -> Bound:
    (a, b), (a_stack, b_stack, stack) = _both(site), scratch
    return _bmm_copied, (
        a, reshaped(a_stack, a.shape), a_stack, b, reshaped(b_stack, b.shape), b_stack,
        stack, reshaped(stack, site.out.shape), site.out,
    )  # fmt: skip


def _copied_cost(site: Site) -> float:
    a, b = _both(site)
    moved = a.size_bytes + b.size_bytes + site.out.size_bytes
    return 3 * CALL_NS + _matmul_cost(site) + 2 * moved / BYTES_PER_NS


def _bind_zero(site: Site, scratch: tuple[View, ...]) -> Bound:
    return fill_, (site.out, 0)


register(Kernel("matmul_vector", "matmul", _takes_vector, _vector_cost, _bind_vector))
register(Kernel("matmul_plane", "matmul", _takes_plane, _matmul_cost, _bind_plane))
register(Kernel("matmul_stacks", "matmul", _takes_stacks, _matmul_cost, _bind_stacks))
register(
    Kernel("matmul_copied", "matmul", _takes_matmul, _copied_cost, _bind_copied, _copied_scratch)
)
register(
    Kernel("matmul_known", "matmul", lambda s: None in s.in_boxes, calls_cost(0.5), _bind_zero)
)
for _op in ("linear", "matmul"):
    widen(_op, {"bool": "float32"})  # torch has no products of booleans
