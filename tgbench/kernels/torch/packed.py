"""Products and convolutions with weights that are laid out once, not anew at every call.

    conv_packed           the box and its halo, as `conv`
    conv_points           windows of one element: every point is a row of a linear layer
    linear_packed         rows times a matrix; gated_linear_packed: times two

oneDNN wants weights in blocks of its own. `conv2d` gets them as they lie in the file and lays them
out at every call: for a slice, that takes as long as the arithmetic, or longer. Here they are laid
out when a program is bound, and kept as long as the pool is. The operators are those that PyTorch's
own compiler emits for frozen weights (torch/_inductor/mkldnn_ir.py); they are there wherever
PyTorch was built with oneDNN. On the processors measured, its products are also twice as fast as
those of the BLAS library behind `mm` (docs/decisions/0031).

The costs are a model of one machine; records replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from tgbench.base.regions import Box
from tgbench.kernels.registry import Kernel, Prepared, Site, View, once_a_site, register
from tgbench.kernels.torch.conv import (
    Halo,
    conv_allocates,
    overhang,
    pad,
    padded_scratch,
    sees_input,
    stepped,
    takes_taps,
)
from tgbench.kernels.torch.elementwise import BYTES_PER_NS
from tgbench.kernels.torch.products import ACTIVATIONS, product_of, rows_of
from tgbench.kernels.views import Bound, inputs, is_dense, is_one, is_single

CALL_NS = 16_000.0
FLOPS_PER_NS = 350.0
CONV_FLOPS_PER_NS = 400.0
WEIGHT_BYTES_PER_NS = 30.0
SPATIAL = 2  # dimensions; a line is an image of one row


def suits(site: Site) -> bool:
    """float32, all of the weights, and a bias side by side: the library ignores its strides."""
    weights = [i for i, shape in enumerate(site.call.in_shapes) if i and len(shape) > 1]
    biases = [view for view in site.ins[1:] if view is not None and view.rank == 1]
    return (
        site.out.dtype == "float32"
        and all(site.in_boxes[i] == Box.full(site.call.in_shapes[i]) for i in weights)
        and all(map(is_dense, biases))
    )


def _arithmetic_ns(flops: float, weight_bytes: int, flops_per_ns: float) -> float:
    return CALL_NS + max(flops / flops_per_ns, weight_bytes / WEIGHT_BYTES_PER_NS)


# --- conv ----------------------------------------------------------------------------------------


def takes_conv(site: Site) -> bool:
    """All output channels, at most two spatial dimensions."""
    return (
        len(site.call.in_shapes[1]) - 2 <= SPATIAL
        and not _is_held_in_vain(site)
        and suits(site)
        and sees_input(site)
        and not takes_points(site)
    )


def _is_held_in_vain(site: Site) -> bool:
    """Whether code for a size would hold a program to a place where taps take any size: lines of
    one channel per group, whose length moves.
    """
    is_line = len(site.call.in_shapes[1]) == 3
    return is_line and type(site.out.shape[-1]) is not int and takes_taps(site)


def conv_cost(site: Site) -> float:
    flops = site.call.op.flops(site.call, site.out_box)
    moved = site.out.size_bytes + inputs(site)[0].size_bytes
    work = _arithmetic_ns(flops, site.operand(1).size_bytes, CONV_FLOPS_PER_NS)
    return work + 2 * moved / BYTES_PER_NS


def laid_out_windows(
    weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """Weights [outputs, inputs per group, *kernel] as oneDNN wants them; opaque to all others."""
    while weight.dim() < 2 + SPATIAL:
        weight = weight.unsqueeze(2)
    nn: Any = torch._C._nn
    found: Tensor = nn.mkldnn_reorder_conv2d_weight(
        weight.contiguous().to_mkldnn(), [0] * SPATIAL, stride, dilation, groups
    )
    return found


def _convolve(
    padded: Tensor | None, inside: Tensor | None, x: Tensor | None, out: Tensor, source: Tensor,
    *rest: Any,
) -> None:  # fmt: skip
    pad(padded, inside, x)
    out.copy_(torch.ops.mkldnn._convolution_pointwise(source, *rest, "none", [], ""))


def _as_image(view: View) -> View:
    while view.rank < 2 + SPATIAL:
        view = view.insert(2)
    return view


def _filled(sizes: Sequence[int], by: int) -> tuple[int, ...]:
    return (*[by] * (SPATIAL - len(sizes)), *sizes)


def _bind_conv(site: Site, scratch: tuple[View, ...]) -> Bound:
    _, weight, *bias = inputs(site)
    attrs, halo = site.call.attrs, Halo.of(site, scratch)
    stride, dilation = _filled(attrs["stride"], 1), _filled(attrs["dilation"], 1)
    details = (stride, dilation, attrs["groups"])
    packed = Prepared(weight, laid_out_windows, details)
    given = (bias[0] if bias else None, _filled(halo.padding, 0), *details)
    return _convolve, (*halo.copied, _as_image(site.out), _as_image(halo.source), packed, *given)


# --- windows of one element ----------------------------------------------------------------------


@once_a_site
def takes_points(site: Site) -> bool:
    """One group, all output channels, no padding in sight, and several points: oneDNN lays weights
    out otherwise for one row.
    """
    sizes = [size for axis, size in enumerate(site.out.shape) if axis != 1]
    return (
        site.call.attrs["groups"] == 1
        and prod(site.call.in_shapes[1][2:]) == 1
        and suits(site)
        and sees_input(site)
        and overhang(site) == [(0, 0)] * (len(site.call.in_shapes[1]) - 2)
        and not all(map(is_one, sizes))
    )


def points_of(site: Site) -> tuple[View, View, View | None, View]:
    """The points that are read, the weight, the bias, and the points to write, channels last."""
    x, weight, *bias = inputs(site)
    for axis, step in enumerate(site.call.attrs["stride"], start=2):
        x = stepped(x, axis, 0, site.out.shape[axis], step)
    last = (0, *range(2, x.rank), 1)
    return x.permute(*last), weight, bias[0] if bias else None, site.out.permute(*last)


def laid_out_rows(weight: Tensor) -> Tensor:
    """Weights [columns, depth, 1 …] as oneDNN wants them; opaque to all others."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.flatten(1).contiguous())
    return found


def _multiply_points(x: Tensor, packed: Tensor, bias: Tensor | None, out: Tensor) -> None:
    out.copy_(torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""))


def _bind_points(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, weight, bias, out = points_of(site)
    return _multiply_points, (x, Prepared(weight, laid_out_rows), bias, out)


# --- linear --------------------------------------------------------------------------------------


def takes_rows(site: Site) -> bool:
    """At least two rows, all output columns: oneDNN lays weights out otherwise for one."""
    p = rows_of(site) if suits(site) else None
    return p is not None and not is_single(p.out)


def rows_cost(site: Site) -> float:
    p = product_of(site)
    flops = site.call.op.flops(site.call, site.out_box)
    work = (len(p.weights) - 1) * CALL_NS + _arithmetic_ns(flops, p.weight_bytes, FLOPS_PER_NS)
    return work + 2 * (p.x.size_bytes + p.out.size_bytes) / BYTES_PER_NS


def _rows_allocate(site: Site) -> int:
    p = product_of(site)
    return len(p.weights) * p.out.size_bytes + p.x.size_bytes


def _bind_rows(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = product_of(site)
    return _multiply_points, (p.x, Prepared(p.weights[0], laid_out_rows), p.bias, p.out)


def _multiply_gated(activate: Any, x: Tensor, gate: Tensor, up: Tensor, out: Tensor) -> None:
    linear = torch.ops.mkldnn._linear_pointwise
    gates = linear(x, gate, None, "none", [], "")
    activate(gates, gates)
    torch.mul(gates, linear(x, up, None, "none", [], ""), out=out)


def _bind_gated(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = product_of(site)
    packed = [Prepared(weight, laid_out_rows) for weight in p.weights]
    return _multiply_gated, (ACTIVATIONS[site.call.attrs["activation"]], p.x, *packed, p.out)


# --- registration --------------------------------------------------------------------------------


def is_built_in() -> bool:
    """Whether PyTorch was built with oneDNN, and has the operators."""
    names = ("_convolution_pointwise", "_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in names
    )


_CPU = ("cpu",)


def register_packed(is_others: Callable[[Site], bool]) -> None:
    """Register these kernels; called where oneDNN itself is not there, which takes as many.

    Args:
        is_others: whether other kernels compute a call, and lay its weights out.
    """

    def besides(takes: Callable[[Site], bool]) -> Callable[[Site], bool]:
        return lambda site: not is_others(site) and takes(site)

    register(
        Kernel(
            "conv_packed", "conv", besides(takes_conv), conv_cost, _bind_conv, padded_scratch,
            _CPU, conv_allocates, prepares=(1,), layout="packed", by_size=True,
        )
    )  # fmt: skip
    register(
        Kernel(
            "conv_points", "conv", besides(takes_points), conv_cost, _bind_points,
            devices=_CPU, allocates=conv_allocates, prepares=(1,), layout="packed", by_size=True,
        )
    )  # fmt: skip
    register(
        Kernel(
            "linear_packed", "linear", besides(takes_rows), rows_cost, _bind_rows,
            devices=_CPU, allocates=_rows_allocate, prepares=(1,), layout="packed", by_size=True,
        )
    )  # fmt: skip
    register(
        Kernel(
            "gated_linear_packed", "gated_linear", besides(takes_rows), rows_cost, _bind_gated,
            devices=_CPU, allocates=_rows_allocate, prepares=(1, 2), layout="packed", by_size=True,
        )
    )  # fmt: skip
