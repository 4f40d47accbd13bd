"""Products, norms, convolutions, attention: the ops that stay whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.graph import ops
from tgbench.graph.graph import Node, axis_of
from tgbench.sources.torch.table import CallSite, Rule, UnsupportedCallError, lowers, pair, refuse

Sizes = int | Sequence[int]


# --- products -------------------------------------------------------------------------------------


@lowers("aten.linear.default")
def _linear(site: CallSite, x: Node, weight: Node, bias: Node | None = None) -> Node:
    if weight.rank == 1:
        product = ops.matmul(x, weight)
        return product if bias is None else product + bias
    return _listed(site, ops.linear(_rows_of(x), weight, bias))


def _rows_of(x: Node) -> Node:
    """The same rows as they were before all were made one list: [time, batch, depth] for
    [time · batch, depth]. Those of one batch are a box there; in the list they are strewn.
    """
    if x.op != "reshape" or x.rank != 2:
        return x
    rows, depth = list(x.inputs[0].shape), x.shape[-1]
    inner = 1
    while rows and inner < depth:
        inner *= rows.pop()
    is_same = inner == depth and sum(size > 1 for size in rows) > 1
    return x.inputs[0].reshape(*rows, depth) if is_same else x


def _listed(site: CallSite, x: Node) -> Node:
    """Rows as the one list that a call gives."""
    return x if x.shape == site.shape else x.reshape(*site.shape)


@lowers("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def _grouped_mm(
    site: CallSite,
    x: Node,
    weight: Node,
    offs: Node | None = None,
    bias: Node | None = None,
    out_dtype: object = None,
) -> Node:
    """Rows sorted by matrix, of which each has those up to its offset."""
    refuse(
        offs is None or x.rank != 2 or weight.rank != 3 or bias is not None,
        "is taken for rows [s, k], matrices [m, k, n] and offsets alone",
    )
    assert offs is not None
    rows = ops.iota(site.builder, (x.shape[0], 1), 0, offs.dtype)
    before = (offs.reshape(1, -1) <= rows).cast("int64")
    last = site.builder.scalar(weight.shape[0] - 1, "int64")
    which = ops.minimum(ops.sum_(before, 1), last)  # rows behind all offsets are anything
    return ops.gather_linear(x, weight.permute(0, 2, 1), which)


@lowers("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default",
        "aten.dot.default")  # fmt: skip
def _matmul(site: CallSite, a: Node, b: Node) -> Node:
    return _listed(site, ops.matmul(_rows_of(a), b)) if b.rank == 2 else ops.matmul(a, b)


@lowers("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def _addmm(
    site: CallSite, bias: Node, a: Node, b: Node, *, beta: float = 1, alpha: float = 1
) -> Node:
    is_of_rows = b.rank == 2 and bias.rank < 2
    product = ops.matmul(_rows_of(a) if is_of_rows else a, b)
    scaled = product if alpha == 1 else product * site.node(alpha, site.dtype)
    if beta == 0:
        return _listed(site, scaled)
    return _listed(site, (bias if beta == 1 else bias * site.node(beta, site.dtype)) + scaled)


@lowers("aten.bilinear.default")
def _bilinear(site: CallSite, a: Node, b: Node, weight: Node, bias: Node | None = None) -> Node:
    rows = [x.reshape(-1, x.shape[-1]) for x in (a, b)]
    product = ops.einsum("ni,oij,nj->no", rows[0], weight, rows[1]).reshape(*site.shape)
    return product if bias is None else product + bias


@lowers("aten.einsum.default")
def _einsum(site: CallSite, equation: str, tensors: Sequence[Node], *_: Any, **__: Any) -> Node:
    return ops.einsum(equation, *tensors)


# --- activations ----------------------------------------------------------------------------------


@lowers("aten.relu.default")
def _relu(site: CallSite, x: Node) -> Node:
    return ops.relu(x)


@lowers("aten.silu.default")
def _silu(site: CallSite, x: Node) -> Node:
    return ops.silu(x)


@lowers("aten.gelu.default")
def _gelu(site: CallSite, x: Node, *, approximate: str = "none") -> Node:
    return ops.gelu(x, approximate)


@lowers("aten.hardtanh.default")
def _hardtanh(site: CallSite, x: Node, low: float = -1.0, high: float = 1.0) -> Node:
    return ops.clamp(x, float(low), float(high))


@lowers("aten.leaky_relu.default")
def _leaky_relu(site: CallSite, x: Node, slope: float = 0.01) -> Node:
    return ops.leaky_relu(x, slope)


@lowers("aten.prelu.default")
def _prelu(site: CallSite, x: Node, weight: Node) -> Node:
    beside = x.rank - 2 if x.rank > 1 else 0
    return ops.prelu(x, weight if x.rank < 2 else weight.reshape(-1, *(1,) * beside))


@lowers("aten.rrelu.default")
def _rrelu(
    site: CallSite,
    x: Node,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> Node:
    refuse(training, "a leaky ReLU with random slopes; call `module.eval()` before export")
    return ops.leaky_relu(x, (low + high) / 2)


@lowers("aten.elu.default")
def _elu(
    site: CallSite, x: Node, alpha: float = 1.0, scale: float = 1, input_scale: float = 1
) -> Node:
    if (scale, input_scale) == (1, 1):
        return ops.elu(x, float(alpha))
    below = (ops.exp(ops.minimum(x, 0.0) * float(input_scale)) - 1.0) * float(alpha)
    return ops.where(x > 0.0, x, below) * float(scale)


@lowers("aten.log_sigmoid.default")
def _log_sigmoid(site: CallSite, x: Node) -> Node:
    return -ops.softplus(-x)


@lowers("aten.softplus.default")
def _softplus(site: CallSite, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    return ops.softplus(x, float(beta), float(threshold))


@lowers("aten.glu.default")
def _glu(site: CallSite, x: Node, dim: int = -1) -> Node:
    return ops.glu(x, dim)


def _simple(function: Callable[[Node], Node]) -> Rule:
    return lambda site, x: function(x)


for _name in ("hardsigmoid", "hardswish", "mish", "relu6"):
    lowers(f"aten.{_name}.default")(_simple(getattr(ops, _name)))


@lowers("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def _softmax(site: CallSite, x: Node, dim: int, *_: Any, **__: Any) -> Node:
    return ops.softmax(x.cast(site.dtype), dim)


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def _log_softmax(site: CallSite, x: Node, dim: int, *_: Any, **__: Any) -> Node:
    return ops.log_softmax(x.cast(site.dtype), dim)


# --- norms ----------------------------------------------------------------------------------------


def _weights(site: CallSite, value: Node | None, size: int, fill: float) -> Node:
    return site.full((size,), fill, site.dtype) if value is None else value.reshape(size)


def _flattened(x: Node, shape: Sequence[int]) -> tuple[Node, int]:
    """The normed trailing dimensions as one."""
    size = int(np.prod(shape))
    return (x if len(shape) == 1 else x.reshape(*x.shape[: x.rank - len(shape)], size)), size


@lowers("aten.layer_norm.default")
def _layer_norm(
    site: CallSite,
    x: Node,
    shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *_: bool,
) -> Node:
    flat, size = _flattened(x, shape)
    weights = _weights(site, weight, size, 1.0), _weights(site, bias, size, 0.0)
    return ops.layer_norm(flat, *weights, eps).reshape(*site.shape)


@lowers("aten.native_layer_norm.default")
def _native_layer_norm(site: CallSite, *arguments: Any) -> tuple[Node, None, None]:
    _only_first(site)
    return _layer_norm(site, *arguments), None, None


@lowers("aten.rms_norm.default")
def _rms_norm(
    site: CallSite,
    x: Node,
    shape: Sequence[int],
    weight: Node | None = None,
    eps: float | None = None,
) -> Node:
    flat, size = _flattened(x, shape)
    least = torch.finfo(TORCH_DTYPES[x.dtype]).eps if eps is None else eps
    return ops.rms_norm(flat, _weights(site, weight, size, 1.0), least).reshape(*site.shape)


@lowers("aten.group_norm.default")
def _group_norm(
    site: CallSite,
    x: Node,
    groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *_: bool,
) -> Node:
    return ops.group_norm(x, groups, weight, bias, eps)


@lowers("aten.native_group_norm.default")
def _native_group_norm(
    site: CallSite,
    x: Node,
    weight: Any,
    bias: Any,
    n: int,
    c: int,
    hw: int,
    groups: int,
    eps: float,
) -> tuple[Node, None, None]:
    _only_first(site)
    return _group_norm(site, x, groups, weight, bias, eps), None, None


@lowers("aten.instance_norm.default")
def _instance_norm(
    site: CallSite, x: Node, weight: Any, bias: Any, mean: Any, var: Any, from_input: bool,
    momentum: float, eps: float, *_: bool,
) -> Node:  # fmt: skip
    if not from_input:
        return _batch_norm(site, x, weight, bias, mean, var, False, momentum, eps)
    return _group_norm(site, x, x.shape[1], weight, bias, eps)


@lowers("aten.batch_norm.default")
def _batch_norm(
    site: CallSite, x: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
    momentum: float, eps: float, *_: bool,
) -> Node:  # fmt: skip
    refuse(
        training and mean is not None,
        "batch norm that changes its statistics; call `module.eval()` before export",
    )
    if training:
        return _affine(_normal(x, [0, *range(2, x.rank)], eps), weight, bias)
    return ops.batch_norm(x, mean, var, weight, bias, eps)


@lowers("aten._native_batch_norm_legit.no_stats")
def _batch_norm_of_the_batch(
    site: CallSite, x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Node, None, None]:
    _only_first(site)
    return _batch_norm(site, x, weight, bias, None, None, True, momentum, eps), None, None


def _normal(x: Node, axes: Sequence[int], eps: float) -> Node:
    """Mean 0 and variance 1 over these axes."""
    centred = x - ops.mean(x, axes, keepdims=True)
    return centred * ops.rsqrt(ops.mean(centred * centred, axes, keepdims=True) + eps)


def _affine(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """A scale and a shift for each channel."""
    lines = (1, x.shape[1], *(1,) * (x.rank - 2))
    scaled = x if weight is None else x * weight.reshape(*lines)
    return scaled if bias is None else scaled + bias.reshape(*lines)


@lowers("aten._native_batch_norm_legit_no_training.default")
def _native_batch_norm(
    site: CallSite,
    x: Node,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    momentum: float,
    eps: float,
) -> tuple[Node, None, None]:
    _only_first(site)
    return _batch_norm(site, x, weight, bias, mean, var, False, momentum, eps), None, None


def _only_first(site: CallSite) -> None:
    refuse(bool(site.used - {0}), "the statistics of a norm are read; compute them by `mean`")


@lowers("aten._weight_norm.default")
def _weight_norm(site: CallSite, v: Node, g: Node, dim: int = 0) -> Node:
    """g · v / |v|, the length taken over all dimensions but one (Salimans, Kingma 2016)."""
    axes = [axis for axis in range(v.rank) if dim == -1 or axis != axis_of(v, dim)]
    return v * (g / ops.sqrt(ops.sum_(v * v, axes, keepdims=True)))


# --- convolutions and images ----------------------------------------------------------------------


def _batched(x: Node, spatial: int) -> tuple[Node, bool]:
    """Images without a batch dimension get one."""
    return (x, True) if x.rank == spatial + 2 else (x[None], False)


def _conv(
    site: CallSite,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Node:
    spatial = weight.rank - 2
    image, has_batch = _batched(x, spatial)
    result = ops.conv(
        image, weight, bias, stride=pair(stride, spatial),
        padding=padding if isinstance(padding, str) else pair(padding, spatial),
        dilation=pair(dilation, spatial), groups=groups,
    )  # fmt: skip
    return result if has_batch else result.reshape(*site.shape)


def _conv_transpose(
    site: CallSite,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Node:
    spatial = weight.rank - 2
    image, has_batch = _batched(x, spatial)
    result = ops.conv_transpose(
        image, weight, bias, stride=pair(stride, spatial), padding=pair(padding, spatial),
        output_padding=pair(output_padding, spatial), dilation=pair(dilation, spatial),
        groups=groups,
    )  # fmt: skip
    return result if has_batch else result.reshape(*site.shape)


for _n in (1, 2, 3):
    lowers(f"aten.conv{_n}d.default", f"aten.conv{_n}d.padding")(_conv)
    lowers(f"aten.conv_transpose{_n}d.{'default' if _n == 1 else 'input'}")(_conv_transpose)


@lowers("aten.convolution.default")
def _convolution(
    site: CallSite, x: Node, weight: Node, bias: Node | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Node:  # fmt: skip
    if transposed:
        return _conv_transpose(
            site, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return _conv(site, x, weight, bias, stride, padding, dilation, groups)


def _max_pool(spatial: int) -> Rule:
    def rule(
        site: CallSite, x: Node, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0,
        dilation: Sizes = 1, ceil_mode: bool = False,
    ) -> Node:  # fmt: skip
        image, has_batch = _batched(x, spatial)
        result = ops.max_pool(
            image, pair(kernel, spatial), stride=pair(stride or kernel, spatial),
            padding=pair(padding, spatial), dilation=pair(dilation, spatial), ceil_mode=ceil_mode,
        )  # fmt: skip
        return result if has_batch else result.reshape(*site.shape)

    return rule


def _avg_pool(spatial: int) -> Rule:
    def rule(
        site: CallSite, x: Node, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
    ) -> Node:  # fmt: skip
        refuse(divisor is not None and ceil_mode, "divisor_override of windows that are cut off")
        image, has_batch = _batched(x, spatial)
        result = ops.avg_pool(
            image, pair(kernel, spatial), stride=pair(stride or kernel, spatial),
            padding=pair(padding, spatial), ceil_mode=ceil_mode,
            count_include_pad=count_include_pad or divisor is not None,
        )  # fmt: skip
        if divisor is not None:
            result = result * (float(np.prod(pair(kernel, spatial))) / divisor)
        return result if has_batch else result.reshape(*site.shape)

    return rule


def _adaptive(spatial: int) -> Rule:
    def rule(site: CallSite, x: Node, size: Any) -> Node:
        image, has_batch = _batched(x, spatial)
        result = ops.adaptive_avg_pool(image, site.shape[-spatial:])
        return result if has_batch else result.reshape(*site.shape)

    return rule


for _n in (1, 2, 3):
    lowers(f"aten.max_pool{_n}d.default")(_max_pool(_n))
    lowers(f"aten.avg_pool{_n}d.default")(_avg_pool(_n))
    lowers(f"aten.adaptive_avg_pool{_n}d.default")(_adaptive(_n))
lowers("aten._adaptive_avg_pool2d.default")(_adaptive(2))
lowers("aten._adaptive_avg_pool3d.default")(_adaptive(3))


@lowers("aten.max_pool2d_with_indices.default")
def _max_pool_with_indices(site: CallSite, x: Node, *arguments: Any) -> tuple[Node, None]:
    refuse(1 in site.used, "the places of a max pool are read; tgbench pools give values only")
    result: Node = _max_pool(2)(site, x, *arguments)
    return result, None


def _resampled(site: CallSite, x: Node, scales: Sequence[Any], mode: str, corners: bool) -> Node:
    """To the size that PyTorch found; a scale that was given decides where the pixels lie."""
    flat = pytree.tree_leaves(list(scales))
    given = [float(scale) for scale in flat if scale is not None]
    if len(given) == len(site.shape) - 2:
        return ops.upsample(x, scale=given, mode=mode, align_corners=corners)
    return ops.upsample(x, size=site.shape[2:], mode=mode, align_corners=corners)


def _nearest(mode: str) -> Rule:
    def rule(site: CallSite, x: Node, size: Any, *scales: Any) -> Node:
        return _resampled(site, x, scales, mode, False)

    return rule


def _interpolated(mode: str) -> Rule:
    def rule(site: CallSite, x: Node, size: Any, align_corners: bool, *scales: Any) -> Node:
        return _resampled(site, x, scales, mode, align_corners)

    return rule


for _n in (1, 2, 3):
    for _form in ("default", "vec"):
        lowers(f"aten.upsample_nearest{_n}d.{_form}")(_nearest("nearest"))
        lowers(f"aten._upsample_nearest_exact{_n}d.{_form}")(_nearest("nearest_exact"))
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    lowers(f"aten.{_name}.default", f"aten.{_name}.vec")(_interpolated("linear"))
lowers("aten.upsample_bicubic2d.default", "aten.upsample_bicubic2d.vec")(_interpolated("cubic"))


@lowers("aten.col2im.default")
def _fold(
    site: CallSite,
    x: Node,
    size: Sizes,
    kernel: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Node:
    columns = x if x.rank == 3 else x[None]
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    return ops.fold(columns, size, kernel=kernel, **options).reshape(*site.shape)


@lowers("aten.pixel_shuffle.default")
def _pixel_shuffle(site: CallSite, x: Node, factor: int) -> Node:
    *lead, channels, height, width = x.shape
    split = x.reshape(*lead, channels // factor**2, factor, factor, height, width)
    n = len(lead)
    return split.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*site.shape)


@lowers("aten.pixel_unshuffle.default")
def _pixel_unshuffle(site: CallSite, x: Node, factor: int) -> Node:
    *lead, channels, height, width = x.shape
    split = x.reshape(*lead, channels, height // factor, factor, width // factor, factor)
    n = len(lead)
    return split.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(*site.shape)


# --- attention ------------------------------------------------------------------------------------


@lowers("aten.scaled_dot_product_attention.default")
def _attention(
    site: CallSite,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    refuse(dropout > 0, "attention with dropout is random; call `module.eval()` before export")
    if is_causal:
        mask = site.builder.constant(np.tri(q.shape[-2], k.shape[-2], dtype=bool))
    if mask is not None and mask.rank > 4:
        raise UnsupportedCallError(
            f"an attention mask of {mask.rank} dimensions; reshape it to at most 4"
        )
    result = ops.attention(_four(q), _four(k), _four(v), mask, scale).reshape(*site.shape)
    return (
        result if mask is None or _all_rows_open(mask) else _zero_where_closed(site, result, mask)
    )


def _four(x: Node) -> Node:
    """[batch, heads, length, depth], missing ones in front, more than one batch as one."""
    lead = x.shape[:-2]
    if x.rank <= 4:
        return x if x.rank == 4 else x.reshape(*(1,) * (4 - x.rank), *x.shape)
    return x.reshape(int(np.prod(lead[:-1])), *x.shape[-3:])


def _all_rows_open(mask: Node) -> bool:
    if mask.op != "constant":
        return False
    array = mask.attrs["data"].array
    return bool((array if array.dtype == bool else ~np.isneginf(array)).any(-1).all())


def _zero_where_closed(site: CallSite, result: Node, mask: Node) -> Node:
    """PyTorch gives 0 where a row sees nothing; a softmax alone would give NaN."""
    is_open = mask if mask.dtype == "bool" else mask > float("-inf")
    rows = ops.max_(is_open, -1, keepdims=True)
    return ops.where(rows, result, site.node(0.0, site.dtype))
