"""The op families; importing this package fills the op table."""

from tgbench.graph.ops.create import full, iota, tril, triu
from tgbench.graph.ops.devices import copy_to
from tgbench.graph.ops.elementwise import (
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
from tgbench.graph.ops.functions import (
    arccos,
    arcsin,
    arctan,
    arctan2,
    cosh,
    exp2,
    expm1,
    isinf,
    isnan,
    log1p,
    log2,
    log10,
    logical_xor,
    sinh,
    tan,
    trunc,
)
from tgbench.graph.ops.images.conv import conv, conv_transpose
from tgbench.graph.ops.images.fold import fold
from tgbench.graph.ops.images.pool import adaptive_avg_pool, avg_pool, max_pool
from tgbench.graph.ops.images.resample import upsample, upsample_nearest
from tgbench.graph.ops.index import (
    embedding,
    gather,
    gather_elements,
    index_select,
    scatter,
    scatter_add,
    scatter_elements,
    update,
)
from tgbench.graph.ops.layout import (
    concat,
    flip,
    pad,
    pad_with,
    repeat,
    repeat_interleave,
    roll,
    split,
    stack,
)
from tgbench.graph.ops.nn import (
    attention,
    batch_norm,
    channel_affine,
    clamp,
    elu,
    gated_linear,
    gelu,
    glu,
    group_norm,
    hardsigmoid,
    hardswish,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    logsumexp,
    mish,
    prelu,
    relu,
    relu6,
    rms_norm,
    rope,
    silu,
    softmax,
    softplus,
    widening_linear,
)
from tgbench.graph.ops.opaque.op import opaque
from tgbench.graph.ops.order import argmax, argmin, cumsum, sort, topk
from tgbench.graph.ops.products.einsum import einsum
from tgbench.graph.ops.products.gathered import gather_linear
from tgbench.graph.ops.products.matmul import matmul
from tgbench.graph.ops.recurrent import recurrent
from tgbench.graph.ops.reduce import max_, mean, min_, prod, std, sum_, var
from tgbench.graph.ops.rowwise import rowwise
from tgbench.graph.ops.scan import linear_recurrence

__all__ = [
    "adaptive_avg_pool", "arccos", "arcsin", "arctan", "arctan2", "argmax", "argmin", "attention",
    "avg_pool", "batch_norm", "ceil", "channel_affine", "clamp", "concat", "conv", "conv_transpose",
    "copy_to", "cos", "cosh", "cumsum", "einsum", "elu", "embedding", "erf", "exp", "exp2", "expm1",
    "flip", "floor", "fold", "full", "gated_linear", "gather", "gather_elements", "gather_linear",
    "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "index_select", "iota", "isinf",
    "isnan", "layer_norm", "leaky_relu", "linear", "linear_recurrence", "log", "log1p", "log2",
    "log10", "log_softmax", "logical_xor", "logsumexp", "matmul", "max_", "max_pool", "maximum",
    "mean", "min_", "minimum", "mish", "opaque", "pad", "pad_with", "prelu", "prod", "reciprocal",
    "recurrent", "relu", "relu6", "repeat", "repeat_interleave", "rms_norm", "roll", "rope",
    "round_", "rowwise", "rsqrt", "scatter", "scatter_add", "scatter_elements", "sigmoid", "sign",
    "silu", "sin", "sinh", "softmax", "softplus", "sort", "split", "sqrt", "stack", "std", "sum_",
    "tan", "tanh", "topk", "tril", "triu", "trunc", "update", "upsample", "upsample_nearest", "var",
    "where", "widening_linear",
]  # fmt: skip
