"""The op families; importing this package fills the op table."""

from tgbench.ops.create import full, iota, tril, triu
from tgbench.ops.elementwise import (
    ceil,
    cos,
    erf,
    exp,
    floor,
    log,
    maximum,
    minimum,
    reciprocal,
    round_,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    tanh,
    where,
)
from tgbench.ops.index import embedding, gather, scatter, update
from tgbench.ops.layout import concat, flip, pad, split
from tgbench.ops.matmul import matmul
from tgbench.ops.nn import (
    attention,
    gated_linear,
    gelu,
    layer_norm,
    linear,
    relu,
    rms_norm,
    rope,
    silu,
    softmax,
)
from tgbench.ops.reduce import max_, mean, min_, prod, sum_

__all__ = [
    "attention", "ceil", "concat", "cos", "embedding", "erf", "exp", "flip", "floor", "full",
    "gated_linear", "gather", "gelu", "iota", "layer_norm", "linear", "log", "matmul", "max_",
    "maximum", "mean", "min_", "minimum", "pad", "prod", "reciprocal", "relu", "rms_norm", "rope",
    "round_", "rsqrt", "scatter", "sigmoid", "sign", "silu", "sin", "softmax", "split", "sqrt",
    "sum_", "tanh", "tril", "triu", "update", "where",
]  # fmt: skip
