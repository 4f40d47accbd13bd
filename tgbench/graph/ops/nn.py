"""Ops of neural networks, each written out in atomic ones.

No region rule stands here: what an edit dirties and what an output needs follow from the
decompositions alone. Attention is nothing but two products, a mask and a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box
from tgbench.graph.graph import Node, axis_of
from tgbench.graph.op_table import (
    Array,
    Attrs,
    Call,
    OpDef,
    TensorType,
    known_value,
    last_decides,
    register,
)
from tgbench.graph.ops.create import full
from tgbench.graph.ops.elementwise import (
    _erf,
    erf,
    exp,
    log,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    tanh,
    where,
)
from tgbench.graph.ops.functions import isinf
from tgbench.graph.ops.layout import concat, split
from tgbench.graph.ops.reduce import max_, mean, sum_

Axes = tuple[int, ...]


def _first(attrs: Attrs, dtypes: tuple[str, ...]) -> str:
    return dtypes[0]


def _nowhere(call: Call) -> Axes:
    return ()


def _last(call: Call) -> Axes:
    return (-1,)


def _fused(
    name: str,
    decompose: Callable[..., Node],
    reference: Callable[..., Array],
    *,
    whole: Callable[[Call], Axes] = _nowhere,
    aligned: tuple[int, ...] = (0,),
    inplace: tuple[int, ...] = (0,),
    flops: Callable[[Call, Box], int] = lambda call, box: 10 * box.elements,
    multiplies: bool = False,
    arity: Sequence[int] = (1,),
    check: Callable[[Attrs, tuple[TensorType, ...]], None] | None = None,
    **facts: Any,
) -> None:
    def checked(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        if len(types) not in arity:
            wanted = " or ".join(map(str, arity))
            raise GraphError(f"{name} takes {wanted} inputs, got {len(types)}")
        if check is not None:
            check(attrs, types)

    register(
        OpDef(
            name,
            _first,
            reference,
            check=checked,
            decompose=decompose,
            whole=whole,
            aligned=aligned,
            inplace=inplace,
            flops=flops,
            multiplies=multiplies,
            **facts,
        )
    )


# --- softmax and norms ---------------------------------------------------------------------------


def _softmax(attrs: Attrs, x: Node) -> Node:
    axis = attrs["axis"]
    weights = exp(x - max_(x, axis, keepdims=True))
    return weights / sum_(weights, axis, keepdims=True)  # never 0: each line of weights has a 1


def _softmax_reference(attrs: Attrs, x: Array) -> Array:
    weights = np.exp(x - x.max(axis=attrs["axis"], keepdims=True))
    return np.asarray(weights / weights.sum(axis=attrs["axis"], keepdims=True))


_fused("softmax", _softmax, _softmax_reference, whole=lambda call: (call.attrs["axis"],))


def softmax(x: Node, axis: int = -1) -> Node:
    """exp(x) over its sum along `axis`, computed from x less its maximum."""
    return x.builder.apply("softmax", x, axis=axis_of(x, axis))


def _rms_norm(attrs: Attrs, x: Node, weight: Node) -> Node:
    return x * rsqrt(mean(x * x, -1, keepdims=True) + attrs["eps"]) * weight


def _rms_norm_reference(attrs: Attrs, x: Array, weight: Array) -> Array:
    scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(attrs["eps"]))
    return np.asarray(x * scale * weight)


def _weights_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    for type_ in types[1:]:
        if not types[0].rank or type_.shape != types[0].shape[-1:]:
            raise GraphError(
                f"a norm of {types[0]} needs weights [{types[0].shape[-1:]}], got {type_}; "
                "it works along the last dimension"
            )


_fused("rms_norm", _rms_norm, _rms_norm_reference, whole=_last, arity=(2,), check=_weights_check)


def rms_norm(x: Node, weight: Node, eps: float = 1e-6) -> Node:
    """x / √(mean(x²) + eps) · weight over the last dimension (Zhang, Sennrich 2019)."""
    return x.builder.apply("rms_norm", x, weight, eps=eps)


def _layer_norm(attrs: Attrs, x: Node, weight: Node, bias: Node) -> Node:
    centred = x - mean(x, -1, keepdims=True)
    variance = mean(centred * centred, -1, keepdims=True)
    return centred * rsqrt(variance + attrs["eps"]) * weight + bias


def _layer_norm_reference(attrs: Attrs, x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + x.dtype.type(attrs["eps"])) * weight + bias)


_fused(
    "layer_norm", _layer_norm, _layer_norm_reference, whole=_last, arity=(3,), check=_weights_check
)


def layer_norm(
    x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5, dims: int = 1
) -> Node:
    """(x − mean) / √(variance + eps) · weight + bias over the last `dims` dimensions.

    weight (1 without one) and bias (0) have the shape of these dimensions (Ba et al. 2016).
    """
    shape = x.shape[x.rank - dims :]
    flat = x.reshape(*x.shape[: x.rank - dims], -1) if dims != 1 else x
    line = (flat.shape[-1],)
    weights = [
        full(x.builder, line, value, x.dtype) if given is None else given.reshape(*line)
        for given, value in ((weight, 1), (bias, 0))
    ]
    for given in (weight, bias):
        if given is not None and given.shape != shape:
            raise GraphError(f"a norm over {list(shape)} needs weights of that shape: {given.type}")
    result = x.builder.apply("layer_norm", flat, *weights, eps=eps)
    return result.reshape(*x.shape) if dims != 1 else result


# --- norms over channels --------------------------------------------------------------------------


def _of_channels(vector: Node, x: Node) -> Node:
    return vector.reshape(vector.shape[0], *([1] * (x.rank - 2)))


def _affine(attrs: Attrs, x: Node, scale: Node, shift: Node) -> Node:
    return x * _of_channels(scale, x) + _of_channels(shift, x)


def _channels(x: Array, vector: Array) -> Array:
    return vector.reshape(-1, *([1] * (x.ndim - 2)))


def _channels_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    x = types[0]
    for vector in types[1:]:
        if x.rank < 2 or vector.shape != (x.shape[1],):
            raise GraphError(f"channels of {x} need vectors [{x.shape[1:2]}], got {vector}")


_fused(
    "channel_affine",
    _affine,
    lambda attrs, x, scale, shift: np.asarray(x * _channels(x, scale) + _channels(x, shift)),
    arity=(3,),
    check=_channels_check,
    flops=lambda call, box: 2 * box.elements,
    on_images=True,
)


def channel_affine(x: Node, scale: Node, shift: Node) -> Node:
    """x [N, C, …] · scale [C] + shift [C]."""
    return x.builder.apply("channel_affine", x, scale, shift)


def batch_norm(
    x: Node,
    mean: Node,
    var: Node,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """(x − mean) / √(var + eps) · weight + bias per channel of x [N, C, …], with given statistics.

    What depends on parameters alone is computed once: a run costs one product and one sum
    (Ioffe, Szegedy 2015).
    """
    scale = rsqrt(var + eps) if weight is None else rsqrt(var + eps) * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return channel_affine(x, scale, shift)


def _group_norm(attrs: Attrs, x: Node, *weights: Node) -> Node:
    groups = attrs["groups"]
    split = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    axes = range(2, split.rank)
    centred = split - mean(split, axes, keepdims=True)
    variance = mean(centred * centred, axes, keepdims=True)
    result = (centred * rsqrt(variance + attrs["eps"])).reshape(*x.shape)
    return _affine({}, result, *weights) if weights else result


def _group_norm_reference(attrs: Attrs, x: Array, *weights: Array) -> Array:
    split = x.reshape(x.shape[0], attrs["groups"], -1)
    centred = split - split.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    result = (centred / np.sqrt(variance + x.dtype.type(attrs["eps"]))).reshape(x.shape)
    if weights:
        result = result * _channels(x, weights[0]) + _channels(x, weights[1])
    return np.asarray(result)


def _group_norm_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _channels_check(attrs, types)
    x = types[0]
    if x.rank < 3 or x.shape[1] % attrs["groups"]:
        raise GraphError(f"group_norm: {attrs['groups']} groups do not divide the channels of {x}")


_fused(
    "group_norm",
    _group_norm,
    _group_norm_reference,
    arity=(1, 3),
    check=_group_norm_check,
    whole=lambda call: tuple(range(2, len(call.out.shape))),
    inplace=(),
    on_images=True,
)


def group_norm(
    x: Node,
    groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """Mean 0 and variance 1 over each group of channels of x [N, C, *S], then weight and bias [C].

    `groups=C` is the instance norm (Wu, He 2018).
    """
    if weight is None and bias is None:
        return x.builder.apply("group_norm", x, groups=groups, eps=eps)
    channels = (x.shape[1],)
    scale = full(x.builder, channels, 1, x.dtype) if weight is None else weight
    shift = full(x.builder, channels, 0, x.dtype) if bias is None else bias
    return x.builder.apply("group_norm", x, scale, shift, groups=groups, eps=eps)


# --- activations ---------------------------------------------------------------------------------

_CUBIC, _ROOT = 0.044715, 0.7978845608028654  # √(2/π)


def _gelu(attrs: Attrs, x: Node) -> Node:
    if attrs["approximate"] == "tanh":
        return x * 0.5 * (tanh((x + x * x * x * _CUBIC) * _ROOT) + 1.0)
    return x * 0.5 * (erf(x * 0.7071067811865476) + 1.0)


def _gelu_reference(attrs: Attrs, x: Array) -> Array:
    if attrs["approximate"] == "tanh":
        return np.asarray(x * 0.5 * (np.tanh((x + x * x * x * _CUBIC) * _ROOT) + 1))
    return np.asarray(x * 0.5 * (_erf(x * 0.7071067811865476) + 1))


def _silu(attrs: Attrs, x: Node) -> Node:
    return x * sigmoid(x)


def _relu(attrs: Attrs, x: Node) -> Node:
    return maximum(x, 0.0 if x.dtype.startswith(("float", "bfloat")) else 0)


def _gelu_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if attrs["approximate"] not in ("none", "tanh"):
        raise GraphError(f"gelu approximate={attrs['approximate']!r}; use 'none' or 'tanh'")


_fused(
    "gelu",
    _gelu,
    lambda attrs, x: _gelu_reference(attrs, x).astype(x.dtype),
    check=_gelu_check,
)
_fused("silu", _silu, lambda attrs, x: np.asarray(x / (1 + np.exp(-x))))
_fused("relu", _relu, lambda attrs, x: np.maximum(x, 0).astype(x.dtype), merges=last_decides)


def gelu(x: Node, approximate: str = "none") -> Node:
    """The Gaussian error linear unit, exact (`none`) or with `tanh` (Hendrycks, Gimpel 2016)."""
    return x.builder.apply("gelu", x, approximate=approximate)


def silu(x: Node) -> Node:
    """x · sigmoid(x)."""
    return x.builder.apply("silu", x)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    return x.builder.apply("relu", x)


_fused(
    "clamp",
    lambda attrs, x: minimum(maximum(x, attrs["low"]), attrs["high"]),
    lambda attrs, x: np.clip(x, attrs["low"], attrs["high"]).astype(x.dtype),
    flops=lambda call, box: 2 * box.elements,
)
_fused(
    "leaky_relu",
    lambda attrs, x: where(x > 0.0, x, x * attrs["slope"]),
    lambda attrs, x: np.where(x > 0, x, x * x.dtype.type(attrs["slope"])),
    flops=lambda call, box: 2 * box.elements,
)
_fused(
    "prelu",
    lambda attrs, x, slope: where(x > 0.0, x, x * slope),
    lambda attrs, x, slope: np.where(x > 0, x, x * slope),
    flops=lambda call, box: 2 * box.elements,
    aligned=(0, 1),
    arity=(2,),
)
_fused(
    "elu",
    lambda attrs, x: where(x > 0.0, x, (exp(minimum(x, 0.0)) - 1.0) * attrs["alpha"]),
    lambda attrs, x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * x.dtype.type(attrs["alpha"])),
)
_fused(
    "softplus",
    lambda attrs, x: where(
        x * attrs["beta"] > attrs["threshold"],
        x,
        log(exp(minimum(x * attrs["beta"], attrs["threshold"])) + 1.0) / attrs["beta"],
    ),
    lambda attrs, x: np.where(
        x * attrs["beta"] > attrs["threshold"],
        x,
        np.log1p(np.exp(np.minimum(x * attrs["beta"], attrs["threshold"]))) / attrs["beta"],
    ).astype(x.dtype),
)
_fused(
    "hardsigmoid",
    lambda attrs, x: clamp(x + 3.0, 0.0, 6.0) / 6.0,
    lambda attrs, x: np.clip(x + 3, 0, 6) / x.dtype.type(6),
)
_fused(
    "hardswish",
    lambda attrs, x: x * clamp(x + 3.0, 0.0, 6.0) / 6.0,
    lambda attrs, x: x * np.clip(x + 3, 0, 6) / x.dtype.type(6),
)
_fused(
    "mish",
    lambda attrs, x: x * tanh(softplus(x)),
    lambda attrs, x: np.asarray(x * np.tanh(np.logaddexp(x, 0))).astype(x.dtype),
)


def clamp(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """`x` kept between two numbers; None leaves a side open."""
    if low is None or high is None:
        x = x if low is None else maximum(x, low)
        return x if high is None else minimum(x, high)
    return x.builder.apply("clamp", x, low=low, high=high)


def relu6(x: Node) -> Node:
    """`x` kept between 0 and 6."""
    return clamp(x, 0.0, 6.0)


def leaky_relu(x: Node, slope: float = 0.01) -> Node:
    """x where it is positive, else x · slope."""
    return x.builder.apply("leaky_relu", x, slope=slope)


def prelu(x: Node, slope: Node) -> Node:
    """x where it is positive, else x · slope (He and others 2015).

    Args:
        slope: that broadcasts to x: one number, or [channels, 1, 1] for an image's channels.
    """
    return x.builder.apply("prelu", x, slope)


def elu(x: Node, alpha: float = 1.0) -> Node:
    """x where it is positive, else alpha · (eˣ − 1) (Clevert et al. 2015)."""
    return x.builder.apply("elu", x, alpha=alpha)


def softplus(x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + e^(beta · x)) / beta; x itself where beta · x is above the threshold."""
    return x.builder.apply("softplus", x, beta=beta, threshold=threshold)


def hardsigmoid(x: Node) -> Node:
    """(x + 3) / 6 kept between 0 and 1."""
    return x.builder.apply("hardsigmoid", x)


def hardswish(x: Node) -> Node:
    """x · hardsigmoid(x) (Howard et al. 2019)."""
    return x.builder.apply("hardswish", x)


def mish(x: Node) -> Node:
    """x · tanh(softplus(x)) (Misra 2019)."""
    return x.builder.apply("mish", x)


def glu(x: Node, axis: int = -1) -> Node:
    """The first half along an axis, times the sigmoid of the second (Dauphin et al. 2016)."""
    if x.shape[axis] % 2:
        raise GraphError(f"glu halves dimension {axis} of {x.type}, which is odd")
    half = x.shape[axis] // 2
    value, gate = split(x, (half, half), axis)
    return value * sigmoid(gate)


def logsumexp(x: Node, axis: int | Sequence[int] = -1, keepdims: bool = False) -> Node:
    """log Σ eˣ over `axis`, computed from x less its maximum, where that is finite."""
    most = max_(x, axis, keepdims=True)
    top = where(isinf(most), 0.0, most)
    result = log(sum_(exp(x - top), axis, keepdims=True)) + top
    return result if keepdims else sum_(result, axis)


def log_softmax(x: Node, axis: int = -1) -> Node:
    """The logarithm of the softmax, computed from x less its maximum."""
    centred = x - max_(x, axis, keepdims=True)
    return centred - log(sum_(exp(centred), axis, keepdims=True))


# --- linear layers -------------------------------------------------------------------------------


def _linear(attrs: Attrs, x: Node, weight: Node, *bias: Node) -> Node:
    rows = x if x.rank > 1 else x[None]
    product = rows @ weight.transpose()
    if x.rank == 1:
        product = product.reshape(product.shape[-1])
    return product + bias[0] if bias else product


def _linear_reference(attrs: Attrs, x: Array, weight: Array, *bias: Array) -> Array:
    product = x @ weight.T
    return np.asarray(product + bias[0] if bias else product)


def _linear_flops(call: Call, box: Box) -> int:
    return 2 * box.elements * int(call.in_shapes[0][-1])


def _linear_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    x, weight = types[:2]
    if not x.rank or weight.rank != 2 or weight.shape[1] != x.shape[-1]:
        raise GraphError(f"linear of {x} needs a weight [out, {x.shape[-1:]}], got {weight}")
    for bias in types[2:]:
        if bias.shape != weight.shape[:1]:
            raise GraphError(f"linear by {weight} needs a bias [{weight.shape[0]}], got {bias}")


def _in_less(attrs: Attrs, scales: Mapping[int, Node], x: Node, weight: Node, *bias: Node) -> Node:
    if 1 not in scales:
        return widening_linear(x, weight, *bias)
    product = widening_linear(x, weight) * scales[1]
    return product + bias[0] if bias else product


_fused(
    "linear",
    _linear,
    _linear_reference,
    aligned=(),
    inplace=(),
    flops=_linear_flops,
    multiplies=True,
    rounds=True,
    arity=(2, 3),
    check=_linear_check,
    cancels=_linear_reference,
    widens=lambda call: (1,),
    in_less=_in_less,
)


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x · weightᵀ (+ bias): x [..., in], weight [out, in] as checkpoints store it."""
    return x.builder.apply("linear", x, weight, *(() if bias is None else (bias,)))


NARROW = ("bfloat16", "float16", "int8")  # dtypes of weights that products widen as they read them


def _widening(attrs: Attrs, x: Node, weight: Node, *bias: Node) -> Node:
    return _linear(attrs, x, weight.cast(x.dtype), *bias)


def _widening_reference(attrs: Attrs, x: Array, weight: Array, *bias: Array) -> Array:
    return _linear_reference(attrs, x, weight.astype(x.dtype), *bias)


def _widening_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _linear_check(attrs, types)
    if types[0].dtype != "float32" or types[1].dtype not in NARROW:
        raise GraphError(
            f"widening_linear is of float32 and {', '.join(NARROW)} weights, got {types[0]} and "
            f"{types[1]}; use `linear` for weights of the same dtype"
        )


_fused(
    "widening_linear",
    _widening,
    _widening_reference,
    aligned=(),
    inplace=(),
    flops=_linear_flops,
    multiplies=True,
    rounds=True,
    arity=(2, 3),
    check=_widening_check,
    cancels=_widening_reference,
)


def widening_linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """`linear` of float32 rows and a weight in bfloat16, float16 or int8, widened as it is read."""
    return x.builder.apply("widening_linear", x, weight, *(() if bias is None else (bias,)))


_ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "gelu": gelu,
    "silu": silu,
    "relu": relu,
}


def _gated(attrs: Attrs, x: Node, gate: Node, up: Node) -> Node:
    return _ACTIVATIONS[attrs["activation"]](linear(x, gate)) * linear(x, up)


def _gated_reference(attrs: Attrs, x: Array, gate: Array, up: Array) -> Array:
    return np.asarray(activate(attrs["activation"], x @ gate.T) * (x @ up.T))


def activate(name: str, x: Array) -> Array:
    """The reference of a named activation."""
    if name == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    if name == "relu":
        return np.asarray(np.maximum(x, 0))
    return _gelu_reference({"approximate": "tanh" if name == "gelu_tanh" else "none"}, x)


def _gated_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if attrs["activation"] not in _ACTIVATIONS:
        raise GraphError(f"no activation {attrs['activation']!r}; use one of {[*_ACTIVATIONS]}")
    for weight in types[1:]:
        _linear_check(attrs, (types[0], weight))
    if types[1].shape != types[2].shape:
        raise GraphError(f"gate {types[1]} and up {types[2]} must have one shape")


def _gated_in_less(attrs: Attrs, scales: Mapping[int, Node], x: Node, *weights: Node) -> Node:
    gate, up = (
        linear(x, weight) if weight.dtype == x.dtype
        else _in_less(attrs, {1: scales[i]} if i in scales else {}, x, weight)
        for i, weight in enumerate(weights, start=1)
    )  # fmt: skip
    return _ACTIVATIONS[attrs["activation"]](gate) * up


_fused(
    "gated_linear",
    _gated,
    lambda attrs, x, gate, up: _gated_reference(attrs, x, gate, up).astype(x.dtype),
    aligned=(),
    inplace=(),
    flops=lambda call, box: 2 * _linear_flops(call, box),
    multiplies=True,
    rounds=True,
    arity=(3,),
    check=_gated_check,
    widens=lambda call: (1, 2),
    in_less=_gated_in_less,
)


def gated_linear(x: Node, gate: Node, up: Node, activation: str = "silu") -> Node:
    """activation(x · gateᵀ) · (x · upᵀ), the wide half of a gated MLP (Shazeer 2020).

    `activation` is one of gelu_tanh, gelu, silu, relu.
    """
    return x.builder.apply("gated_linear", x, gate, up, activation=activation)


# --- positions and attention ---------------------------------------------------------------------


def _rope(attrs: Attrs, x: Node, cos: Node, sin: Node) -> Node:
    half = x.shape[-1] // 2
    turned = concat([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos + turned * sin


def _rope_reference(attrs: Attrs, x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return np.asarray(x * cos + turned * sin)


def _rope_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if not types[0].rank or types[0].shape[-1] % 2 != 0:
        raise GraphError(f"rope turns pairs: the last dimension of {types[0]} must be even")


_fused("rope", _rope, _rope_reference, whole=_last, inplace=(), arity=(3,), check=_rope_check)


def rope(x: Node, cos: Node, sin: Node) -> Node:
    """Rotary positions, half-split (Su et al. 2021): x [..., D]; cos and sin broadcast to it."""
    return x.builder.apply("rope", x, cos, sin)


def _attention(attrs: Attrs, q: Node, k: Node, v: Node, *mask: Node) -> Node:
    heads, shared = q.shape[1], k.shape[1]
    if heads != shared:
        k, v = _repeat(k, heads // shared), _repeat(v, heads // shared)
    scores = (q @ k.transpose()) * attrs["scale"]
    if mask:
        scores = where(mask[0], scores, -np.inf) if mask[0].dtype == "bool" else scores + mask[0]
    return softmax(scores) @ v


def _repeat(x: Node, times: int) -> Node:
    batch, heads, length, depth = x.shape
    spread = x.reshape(batch, heads, 1, length, depth).expand(batch, heads, times, length, depth)
    return spread.reshape(batch, heads * times, length, depth)


def _attention_reference(attrs: Attrs, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    times = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, times, axis=1), np.repeat(v, times, axis=1)
    scores: Any = (q @ k.swapaxes(-1, -2)) * q.dtype.type(attrs["scale"])
    if mask:
        is_bool = mask[0].dtype == bool
        scores = np.where(mask[0], scores, -np.inf) if is_bool else scores + mask[0]
    weights = _softmax_reference({"axis": -1}, scores.astype(q.dtype))
    return np.asarray(weights @ v)


def _attention_flops(call: Call, box: Box) -> int:
    return 4 * box.elements * int(call.in_shapes[1][2])


def _attention_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    q, k, v = types[:3]
    if not q.rank == k.rank == v.rank == 4 or q.shape[1] % k.shape[1] != 0:
        raise GraphError(
            f"attention of q {q}, k {k}, v {v}: each is [batch, heads, length, depth], and "
            "q's heads are a multiple of k's"
        )
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise GraphError(f"attention of q {q}, k {k}, v {v}: batch, length or depth differ")


def _attention_absent(call: Call, i: int) -> float:
    """Of the mask, what closes: queries and keys are read only where it is open."""
    if i != 3:
        return known_value(call, i)
    return 0.0 if call.inputs[3].dtype == "bool" else float("-inf")


_fused(
    "attention",
    _attention,
    _attention_reference,
    arity=(3, 4),
    check=_attention_check,
    whole=lambda call: (1, 3),
    aligned=(),
    inplace=(),
    flops=_attention_flops,
    multiplies=True,
    absent=_attention_absent,
)


def attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, scale: float | None = None
) -> Node:
    """softmax(q · kᵀ · scale, masked) · v.

    q [batch, heads, T, D], k and v [batch, kv_heads, S, D] with heads a multiple of kv_heads;
    mask broadcasts to [batch, heads, T, S]: bool (True is open) or a number to add. scale
    defaults to D^-½ (Vaswani et al. 2017).
    """
    scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
    return q.builder.apply("attention", q, k, v, *(() if mask is None else (mask,)), scale=scale)
