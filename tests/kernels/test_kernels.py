"""Every kernel against the NumPy reference, on sub-boxes, odd strides and poisoned memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from op_cases import ROWS_OF_STEPS
from torch.profiler import ProfilerActivity, profile

from tgbench import ops
from tgbench.base.coords import Moving, at, origin_symbol, record, standing
from tgbench.base.errors import KernelError
from tgbench.base.regions import Box, Region
from tgbench.costs.model import plain_site
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.op_table import FLOATS, OPS, Call, numpy_dtype
from tgbench.kernels import KERNELS, Kernel, Site, View, candidates, copy_, fill_
from tgbench.kernels.binding import array_of
from tgbench.kernels.registry import Host, Prepared, prepared_inputs
from tgbench.kernels.registry import scratch_views as placed
from tgbench.kernels.views import dense, part
from tgbench.runs.rules import Rules, row_before

RULES = Rules()
Build = Callable[[GraphBuilder], Node]


# --- the cases ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A node to compute. `data`: "integers" (arithmetic is exact), "normal" or "positive"."""

    name: str
    build: Build
    data: str = "normal"

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def case(name: str, build: Build, data: str = "normal") -> None:
    CASES.append(Case(name, build, data))


def x(g: GraphBuilder, *shape: int, dtype: str = "float32", name: str = "x") -> Node:
    return g.input(name, shape, dtype)


ROUNDING = {"arithmetic": "bfloat16"}  # which is exact of small integers


def causal(rows: int, columns: int, window: int = 99) -> np.ndarray:
    i, j = np.ogrid[:rows, :columns]
    seen = j - (columns - rows)
    return (seen <= i) & (i - seen < window)


for _op in ("neg", "abs", "sign", "floor", "ceil", "round"):
    case(_op, lambda g, op=_op: g.apply(op, x(g, 3, 4, 5)), "integers")
for _op in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "sigmoid"):
    case(_op, lambda g, op=_op: g.apply(op, x(g, 3, 4, 5)), "positive")
for _op in ("add", "sub", "mul", "maximum", "minimum", "equal", "less", "less_equal", "greater",
            "greater_equal", "not_equal", "logical_and", "logical_or"):  # fmt: skip
    for _dtype in ("float32", "int32"):
        case(
            f"{_op}_{_dtype}",
            lambda g, op=_op, d=_dtype: g.apply(
                op, x(g, 3, 4, 5, dtype=d), x(g, 4, 1, dtype=d, name="y")
            ),
            "integers",
        )
for _op in ("div", "pow", "floordiv", "mod"):
    case(_op, lambda g, op=_op: g.apply(op, x(g, 3, 4, 5), x(g, 5, name="y")), "positive")
for _op in ("floordiv", "mod"):
    case(
        f"{_op}_integer",
        lambda g, op=_op: g.apply(op, x(g, 4, 5, dtype="int32"), x(g, 5, dtype="int32", name="y")),
        "integers",
    )
case("iota_columns", lambda g: ops.iota(g, (4, 7), 1))
case("add_scalar", lambda g: x(g, 3, 5) + 2.0, "integers")
case("mul_known", lambda g: x(g, 4, 5) * g.constant(causal(4, 5).astype("float32")), "integers")
case("logical_not", lambda g: ~x(g, 3, 5, dtype="bool"), "integers")
case("abs_bool", lambda g: abs(x(g, 3, 5, dtype="bool")), "integers")
case("where", lambda g: ops.where(x(g, 4, 5, dtype="bool", name="c"), x(g, 4, 5), 3.0), "integers")
case(
    "where_mask", lambda g: ops.where(g.constant(causal(4, 5)), x(g, 2, 4, 5), -np.inf), "integers"
)
for _from, _to in (("float32", "int64"), ("int64", "float32"), ("float32", "bool"),
                   ("bool", "float32"), ("float32", "float64"),
                   ("float32", "float16")):  # fmt: skip
    case(f"cast_{_from}_{_to}", lambda g, a=_from, b=_to: x(g, 3, 5, dtype=a).cast(b), "integers")

for _op in ("sum", "mean", "max", "min", "prod"):
    for _axes, _keep in (((1,), True), ((0, 2), False), ((0, 1, 2), False)):
        case(
            f"{_op}_{_axes}_{_keep}",
            lambda g, op=_op, a=_axes, k=_keep: g.apply(op, x(g, 3, 4, 5), axes=a, keepdims=k),
        )
    for _dtype in {"max": ("int32", "bool"), "min": ("int32", "bool"), "mean": ()}.get(
        _op, ("int32",)
    ):
        case(
            f"{_op}_{_dtype}",
            lambda g, op=_op, d=_dtype: g.apply(op, x(g, 4, 5, dtype=d), axes=(1,), keepdims=True),
            "integers",
        )


def masked(g: GraphBuilder, value: float) -> Node:
    return ops.where(g.constant(causal(4, 6)), x(g, 2, 4, 6), value)


case("sum_known", lambda g: ops.sum_(masked(g, 0.0), -1), "integers")
case("mean_known", lambda g: ops.mean(masked(g, 0.0), -1), "integers")
case("max_known", lambda g: ops.max_(masked(g, -np.inf), -1, keepdims=True), "integers")
case("sum_all_known", lambda g: ops.sum_(ops.pad(x(g, 2, 3), (2, 0), (0, 0)), -1), "integers")

case("matmul", lambda g: x(g, 4, 6) @ x(g, 6, 5, name="y"), "integers")
case(
    "matmul_int",
    lambda g: x(g, 4, 6, dtype="int64") @ x(g, 6, 5, dtype="int64", name="y"),
    "integers",
)
case(
    "matmul_bool",
    lambda g: x(g, 4, 6, dtype="bool") @ x(g, 6, 5, dtype="bool", name="y"),
    "integers",
)
case("matmul_rows", lambda g: x(g, 2, 3, 4, 6) @ x(g, 6, 5, name="y"), "integers")
case("matmul_batch", lambda g: x(g, 2, 3, 4, 6) @ x(g, 2, 3, 6, 5, name="y"), "integers")
case("matmul_spread", lambda g: x(g, 2, 1, 4, 6) @ x(g, 3, 6, 5, name="y"), "integers")
case("matmul_turned", lambda g: x(g, 3, 4, 6) @ x(g, 3, 5, 6, name="y").transpose(), "integers")
for _dtype in ("float32", "float64"):
    case(f"matmul_column_{_dtype}", lambda g, d=_dtype:
         x(g, 3, 2, 20, 16, dtype=d) @ x(g, 3, 2, 16, 1, dtype=d, name="y"))  # fmt: skip
    case(f"matmul_column_spread_{_dtype}", lambda g, d=_dtype:
         x(g, 3, 1, 20, 16, dtype=d) @ x(g, 2, 16, 1, dtype=d, name="y"))  # fmt: skip
    case(f"matmul_row_turned_{_dtype}", lambda g, d=_dtype:
         x(g, 3, 4, 1, 7, dtype=d) @ x(g, 3, 4, 9, 7, dtype=d, name="y").transpose()
         )  # fmt: skip
    case(f"matmul_column_of_one_{_dtype}", lambda g, d=_dtype:
         x(g, 20, 16, dtype=d) @ x(g, 16, 1, dtype=d, name="y"))  # fmt: skip
case("exp_far", lambda g: ops.exp(ops.minimum(x(g, 4, 50) * 30.0, x(g, 1, name="m") * 0.0 + 88.5)))
case("matmul_known", lambda g: masked(g, 0.0) @ x(g, 2, 6, 5, name="y"), "integers")
case("matmul_cut", lambda g: ops.pad(x(g, 3, 4), (2, 1), (0, 1)) @ x(g, 6, 5, name="y"), "integers")
case("matmul_64", lambda g: x(g, 3, 6, dtype="float64") @ x(g, 6, 5, dtype="float64", name="y"))

for _shape in ((7,), (1, 7), (4, 7), (2, 3, 7), (1, 1, 7), (12, 7)):
    for _bias in (False, True):
        case(
            f"linear_{_shape}_{_bias}",
            lambda g, s=_shape, b=_bias: ops.linear(
                x(g, *s), g.parameter("w", (6, 7)), g.parameter("b", (6,)) if b else None
            ),
            "integers",
        )
for _shape in ((7,), (1, 7), (4, 7), (2, 3, 7), (12, 7)):
    for _dtype in ("bfloat16", "float16", "int8"):
        case(
            f"widening_linear_{_shape}_{_dtype}",
            lambda g, s=_shape, d=_dtype: ops.widening_linear(
                x(g, *s), g.parameter("w", (6, 7), d), g.parameter("b", (6,))
            ),
            "integers",
        )
case(
    "widening_linear_cut",
    lambda g: ops.widening_linear(
        ops.pad(x(g, 3, 4), (2, 1), (0, 1)), g.parameter("w", (5, 6), "bfloat16")
    ),
    "integers",
)
for _shape in ((1, 7), (4, 7), (2, 3, 7), (12, 7)):
    for _dtype in ("float32", "bfloat16"):
        case(
            f"{'linear' if _dtype == 'float32' else 'widening_linear'}_{_shape}_rounding",
            lambda g, s=_shape, d=_dtype: g.apply(
                "linear" if d == "float32" else "widening_linear",
                x(g, *s), g.parameter("w", (6, 7), d), g.parameter("b", (6,)), **ROUNDING,
            ),
            "integers",
        )  # fmt: skip
case(
    "gated_linear_rounding",
    lambda g: g.apply(
        "gated_linear", x(g, 4, 7), g.parameter("w", (6, 7)), g.parameter("u", (6, 7)),
        activation="relu", **ROUNDING,
    ),
    "integers",
)  # fmt: skip
case("linear_big", lambda g: ops.linear(x(g, 1, 640), g.parameter("w", (512, 640))), "integers")
case(
    "linear_int",
    lambda g: ops.linear(x(g, 3, 4, dtype="int32"), g.parameter("w", (5, 4), "int32")),
    "integers",
)
case(
    "linear_bool",
    lambda g: ops.linear(x(g, 3, 4, dtype="bool"), g.parameter("w", (5, 4), "bool")),
    "integers",
)
case(
    "linear_cut",
    lambda g: ops.linear(
        ops.pad(x(g, 3, 4), (2, 1), (0, 1)), g.parameter("w", (5, 6)), g.parameter("b", (5,))
    ),
    "integers",
)
for _shape in ((7,), (1, 7), (2, 3, 7)):
    for _activation in ("gelu_tanh", "gelu", "silu", "relu"):
        case(
            f"gated_{_shape}_{_activation}",
            lambda g, s=_shape, a=_activation: ops.gated_linear(
                x(g, *s), g.parameter("w", (6, 7)), g.parameter("u", (6, 7)), a
            ),
        )

for _axis in (0, 1, 2):
    case(f"softmax_{_axis}", lambda g, a=_axis: ops.softmax(x(g, 3, 4, 5), a))
case("softmax_known", lambda g: ops.softmax(masked(g, -np.inf)))
case("softmax_64", lambda g: ops.softmax(x(g, 4, 5, dtype="float64")))
for _shape in ((8,), (1, 8), (4, 8), (2, 3, 8)):
    for _dtype in ("float32", "float16", "float64"):
        case(
            f"rms_norm_{_shape}_{_dtype}",
            lambda g, s=_shape, d=_dtype: ops.rms_norm(
                x(g, *s, dtype=d), g.parameter("w", (8,), d)
            ),
        )
        case(
            f"layer_norm_{_shape}_{_dtype}",
            lambda g, s=_shape, d=_dtype: ops.layer_norm(
                x(g, *s, dtype=d), g.parameter("w", (8,), d), g.parameter("b", (8,), d)
            ),
        )
case(
    "rms_norm_cut",
    lambda g: ops.rms_norm(x(g, 3, 4), g.constant(np.array([1, 1, 0, 0], "float32"))),
)
case("layer_norm_cut", lambda g: ops.layer_norm(
    ops.pad(x(g, 3, 4), (1, 0), (0, 2)), g.parameter("w", (6,)),
    g.parameter("b", (6,))))  # fmt: skip
for _approximate in ("none", "tanh"):
    case(f"gelu_{_approximate}", lambda g, a=_approximate: ops.gelu(x(g, 3, 4, 5), a))
case("silu", lambda g: ops.silu(x(g, 3, 4, 5)))
case("relu", lambda g: ops.relu(x(g, 3, 4, 5)), "integers")
case("relu_int", lambda g: ops.relu(x(g, 3, 5, dtype="int32")), "integers")
case(
    "rope",
    lambda g: ops.rope(x(g, 2, 4, 3, 8), x(g, 4, 1, 8, name="cos"), x(g, 4, 1, 8, name="sin")),
)
case("rope_number", lambda g: ops.rope(x(g, 2, 6), x(g, name="cos"), x(g, name="sin")))
case("rope_narrow", lambda g: ops.rope(x(g, 2, 6), x(g, 2, 6, name="cos"), x(g, 2, 1, name="sin")))


def attend(
    g: GraphBuilder, batch: int, heads: int, shared: int, rows: int, keys: int, mask: Any = None,
    dtype: str = "float32",
) -> Node:  # fmt: skip
    """q, k, v as permuted views of [B, T, H, D], the way models make them."""
    q = x(g, batch, rows, heads, 4, dtype=dtype, name="q").permute(0, 2, 1, 3)
    k = x(g, batch, keys, shared, 4, dtype=dtype, name="k").permute(0, 2, 1, 3)
    v = x(g, batch, keys, shared, 6, dtype=dtype, name="v").permute(0, 2, 1, 3)
    return ops.attention(q, k, v, None if mask is None else g.constant(mask))


case("attention", lambda g: attend(g, 2, 4, 2, 3, 5))
case("attention_64", lambda g: attend(g, 1, 4, 1, 3, 5, dtype="float64"))
case("attention_causal", lambda g: attend(g, 2, 4, 2, 5, 5, causal(5, 5)))
case("attention_one_head", lambda g: attend(g, 1, 2, 2, 5, 5, causal(5, 5)))
case("attention_window", lambda g: attend(g, 1, 4, 1, 8, 8, causal(8, 8, window=3)))
case("attention_4d", lambda g: attend(g, 2, 4, 2, 3, 5, causal(3, 5)[None, None]))
case("attention_per_head", lambda g: attend(
    g, 1, 2, 1, 3, 5, np.stack([causal(3, 5), causal(3, 5, window=2)])))  # fmt: skip
case("attention_decode", lambda g: attend(g, 2, 4, 2, 1, 6))
case(
    "attention_decode_mask",
    lambda g: attend(g, 2, 4, 2, 1, 6, np.array([[0, 1, 1, 0, 1, 1]], bool)),
)
case(
    "attention_sparse", lambda g: attend(g, 1, 4, 2, 3, 6, np.array([[0, 1, 0, 0, 1, 0]] * 3, bool))
)
case("attention_added", lambda g: attend(
    g, 1, 4, 2, 5, 5, np.where(causal(5, 5), 0.5, -np.inf).astype("float32")))  # fmt: skip
case("attention_finite", lambda g: attend(
    g, 1, 4, 2, 5, 5,
    np.where(causal(5, 5), 0, np.finfo("float32").min).astype("float32")))  # fmt: skip

for _axis in (0, 1, 2):
    for _shape in ((), (3,), (2, 3)):
        for _dtype in ("int64", "int32", "uint8"):
            case(
                f"gather_{_axis}_{_shape}_{_dtype}",
                lambda g, a=_axis, s=_shape, d=_dtype: ops.gather(
                    x(g, 4, 5, 4), x(g, *s, dtype=d, name="index"), a
                ),
                "integers",
            )
for _axis in (0, 1):
    case(
        f"scatter_{_axis}",
        lambda g, a=_axis: ops.scatter(
            x(g, 4, 5), x(g, 3, dtype="int64", name="index"),
            x(g, *((3, 5) if a == 0 else (4, 3)), name="value"), a,
        ),
        "integers",
    )  # fmt: skip
case("update", lambda g: ops.update(x(g, 5, 6), x(g, 2, 3, name="value"), (1, 2)), "integers")
case("update_rows", lambda g: ops.update(x(g, 5, 6), x(g, 2, 6, name="value"), (3, 0)), "integers")
case(
    "update_cut",
    lambda g: ops.update(ops.pad(x(g, 3, 6), (2, 0), (0, 0)), x(g, 2, 3, name="v"), (1, 2)),
    "integers",
)
case(
    "concat",
    lambda g: ops.concat([x(g, 3, 2), x(g, 3, 4, name="y"), x(g, 3, 1, name="z")], 1),
    "integers",
)
case(
    "concat_known",
    lambda g: ops.concat([ops.pad(x(g, 2, 3), (0, 0), (0, 2)), x(g, 2, 4, name="y")], 1),
    "integers",
)
case("pad", lambda g: ops.pad(x(g, 3, 4), (1, 0), (2, 3), 7.0), "integers")
case("permute", lambda g: x(g, 3, 4, 5).permute(2, 0, 1), "integers")
case("permute_cut", lambda g: ops.pad(x(g, 3, 4), (2, 0), (0, 1)).permute(1, 0), "integers")
case("expand", lambda g: x(g, 3, 1).expand(2, 3, 4), "integers")
case("slice", lambda g: x(g, 6, 9)[1:5, 2::3], "integers")
case("slice_back", lambda g: x(g, 6, 9)[::-1, 7:1:-2], "integers")
case("flip_three", lambda g: ops.flip(x(g, 3, 4, 5), 0, 1, 2), "integers")
for _before, _after in (((4, 6), (24,)), ((24,), (4, 6)), ((4, 6), (6, 4)), ((2, 3, 4), (2, 12)),
                        ((2, 12), (2, 3, 4)), ((6, 4), (2, 3, 4)), ((4, 6), (2, 12)),
                        ((1, 5), (5, 1, 1)), ((5,), (1, 5)), ((1, 1), ()), ((4, 1, 6), (2, 2, 6)),
                        ((3, 10), (5, 6)), ((8, 3), (2, 12))):  # fmt: skip
    case(
        f"reshape_{_before}_{_after}",
        lambda g, b=_before, a=_after: x(g, *b).reshape(a),
        "integers",
    )
for _before, _after in (((2, 8, 7, 8, 7), (2, 7, 8, 7, 8)), ((3, 4, 6, 2), (3, 6, 4, 2)),
                        ((4, 6, 1, 5), (2, 2, 6, 5)), ((6, 4), (4, 6))):  # fmt: skip
    case(
        f"reshape_otherwise_{_before}_{_after}",
        lambda g, a=_before, b=_after: x(g, *a).reshape(*b),
        "integers",
    )
case("reshape_cut", lambda g: ops.pad(x(g, 3, 4), (2, 0), (0, 2)).reshape(30), "integers")
case("iota", lambda g: ops.iota(g, (3, 5, 2), 1))
case("iota_float", lambda g: ops.iota(g, (4, 3), 0, "float32"))
case("full", lambda g: ops.full(g, (3, 4), 2.5))


def weight(g: GraphBuilder, *shape: int) -> Node:
    return g.parameter("w", shape)


_CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 9), (4, 3, 3), {"padding": 1}),
    "causal": ((1, 2, 9), (3, 2, 3), {"padding": ((4, 0),), "dilation": 2}),
    "image": ((1, 3, 7, 8), (4, 3, 3, 3), {"padding": 1}),
    "strided": ((1, 2, 9, 8), (3, 2, 3, 2), {"padding": ((1, 0), (2, 1)), "stride": 2}),
    "far": ((1, 2, 9, 8), (3, 2, 2, 1), {"stride": (3, 2)}),
    "groups": ((1, 4, 6, 5), (6, 2, 3, 3), {"padding": 1, "groups": 2}),
    "many_groups": ((2, 6, 5), (12, 1, 2), {"groups": 6}),
    "depthwise": ((1, 3, 7, 6), (3, 1, 3, 3), {"padding": 1, "groups": 3, "stride": 2}),
    "volume": ((1, 2, 4, 4, 5), (2, 2, 2, 3, 2), {"padding": (0, 1, 1)}),
    "volume_same": ((2, 3, 4, 5, 5), (4, 3, 3, 3, 3), {"padding": 1}),
    "volume_strided": (
        (2, 2, 7, 5, 4),
        (3, 2, 3, 2, 2),
        {"padding": ((2, 1), (1, 0), (1, 1)), "stride": (2, 1, 2), "dilation": (2, 1, 1)},
    ),
    "volume_deep": ((1, 2, 2, 4, 4), (2, 2, 5, 3, 3), {"padding": (3, 1, 1)}),
    "padding": ((1, 2, 3), (2, 2, 2), {"padding": 5}),
}
for _name, (_x, _w, _options) in _CONVS.items():
    for _bias in (False, True):
        case(
            f"conv_{_name}_{_bias}_rounding",
            lambda g, x_=_x, w=_w, o=_options, b=_bias: g.apply(
                "conv", x(g, *x_), weight(g, *w), *([g.parameter("b", w[:1])] if b else []),
                **ops.conv(x(g, *x_), weight(g, *w), **o).attrs, **ROUNDING,
            ),
            "integers",
        )  # fmt: skip
        case(
            f"conv_{_name}_{_bias}",
            lambda g, x_=_x, w=_w, o=_options, b=_bias: ops.conv(
                x(g, *x_), weight(g, *w), g.parameter("b", w[:1]) if b else None, **o
            ),
            "integers",
        )
case("conv_64", lambda g: ops.conv(x(g, 1, 2, 6, dtype="float64"), g.parameter(
    "w", (3, 2, 3), "float64"), padding=1))  # fmt: skip
case("conv_known", lambda g: ops.conv(ops.pad(x(g, 1, 2, 4), (0, 0, 3), (0, 0, 2)), weight(
    g, 2, 2, 3)), "integers")  # fmt: skip
_TURNED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "doubled": ((1, 3, 4, 5), (3, 2, 2, 2), {"stride": 2}),
    "cut": ((2, 2, 6), (2, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "gaps": ((1, 2, 4), (2, 2, 2), {"stride": 4, "output_padding": 3}),
    "dilated": ((1, 2, 4, 3), (2, 2, 2, 3), {"dilation": (3, 1), "padding": (1, 0)}),
    "groups": ((1, 6, 4), (6, 4, 2), {"groups": 3, "stride": 2}),
    "volume": ((1, 2, 2, 3, 3), (2, 2, 1, 2, 2), {"stride": 2}),
}
for _name, (_x, _w, _options) in _TURNED.items():
    for _bias in (False, True):
        case(
            f"conv_transpose_{_name}_{_bias}",
            lambda g, x_=_x, w=_w, o=_options, b=_bias: ops.conv_transpose(
                x(g, *x_),
                weight(g, *w),
                g.parameter("b", (w[1] * o.get("groups", 1),)) if b else None,
                **o,
            ),
            "integers",
        )
for _op, _pool in (("max", ops.max_pool), ("avg", ops.avg_pool)):
    for _name, _x, _kernel, _options in (
        ("pairs", (1, 2, 6, 6), 2, {}),
        ("padded", (1, 2, 7, 6), 3, {"stride": 2, "padding": 1}),
        ("up", (2, 2, 8), 3, {"stride": 2, "ceil_mode": True}),
        ("gaps", (1, 1, 9, 4), 2, {"stride": 4}),
        ("volume", (1, 2, 4, 3, 4), (2, 3, 1), {"stride": 1}),
    ):
        case(
            f"{_op}_pool_{_name}",
            lambda g, f=_pool, x_=_x, k=_kernel, o=_options: f(x(g, *x_), k, **o),
            "integers" if _op == "max" else "normal",
        )
case("sum_pool", lambda g: ops.avg_pool(x(g, 1, 2, 7, 6), 3, padding=1).inputs[0], "integers")
for _name, _build in {
    "max_pool": lambda g: ops.max_pool(x(g, 1, 2, 9, 8), 3, stride=2, padding=1),
    "max_pool_line": lambda g: ops.max_pool(x(g, 1, 4, 12), 3, stride=2, padding=1),
    "max": lambda g: g.apply("max", x(g, 5, 8), axes=(1,), keepdims=False),
    "min": lambda g: g.apply("min", x(g, 5, 8), axes=(0,), keepdims=False),
    "maximum": lambda g: ops.maximum(x(g, 6, 8), x(g, 6, 8, name="y")),
    "relu": lambda g: ops.relu(x(g, 6, 8)),
}.items():
    case(f"{_name}_of_what_is_not_finite", _build, "not finite")
case("max_pool_int", lambda g: ops.max_pool(x(g, 1, 2, 7, dtype="int32"), 3, padding=1), "integers")
for _name, _x, _options in (
    ("double", (1, 2, 4, 5), {"scale": 2.0}),
    ("thrice", (2, 1, 4), {"scale": 3.0}),
    ("by_size", (1, 2, 3, 4), {"size": (6, 4), "mode": "nearest_exact"}),
    ("in_space", (1, 2, 2, 3, 2), {"scale": (1.0, 2.0, 4.0)}),
    ("sizes", (2, 2, 5), {"size": 7}),
    ("ints", (2, 2, 5), {"size": 7}),
    ("exact", (1, 2, 5, 4), {"size": (3, 9), "mode": "nearest_exact"}),
    ("smaller", (1, 2, 4, 9), {"size": 2}),  # the last rows are not read
    ("bismaller", (1, 2, 6, 9), {"size": (2, 3), "mode": "linear"}),
    ("linear", (1, 2, 6), {"size": 9, "mode": "linear"}),
    ("linear scale", (1, 2, 6), {"scale": 2.0, "mode": "linear"}),
    ("linear wide", (1, 1, 160), {"size": 320, "mode": "linear"}),
    ("cubic wide", (1, 1, 140), {"size": 150, "mode": "cubic"}),
    ("bilinear", (1, 2, 4, 5), {"scale": 2.0, "mode": "linear"}),
    ("corners", (1, 2, 4, 5), {"size": (7, 3), "mode": "linear", "align_corners": True}),
    ("trilinear", (1, 1, 3, 3, 4), {"size": (5, 3, 6), "mode": "linear"}),
    ("cubic", (1, 2, 7), {"size": 5, "mode": "cubic"}),
    ("bicubic", (1, 2, 6, 5), {"size": (9, 4), "mode": "cubic"}),
    ("bicubic scale", (1, 2, 4, 3), {"scale": 1.6, "mode": "cubic"}),
    ("bicubic corners", (1, 1, 5, 9), {"size": (7, 6), "mode": "cubic", "align_corners": True}),
):
    case(
        f"upsample_{_name}",
        lambda g, n=_name, x_=_x, o=_options: ops.upsample(
            x(g, *x_, dtype="int32" if n == "ints" else "float32"), **o
        ),
    )
for _count, _options in (
    (24, {}), (18, {"stride": (2, 1), "padding": (0, 1)}),
    (6, {"stride": 3, "dilation": 2, "padding": 2}),
):  # fmt: skip
    case(
        f"fold_{_count}",
        lambda g, n=_count, o=_options: ops.fold(x(g, 2, 18, n), (7, 6), kernel=(2, 3), **o),
        "integers",
    )
case(
    "channel_affine",
    lambda g: ops.channel_affine(x(g, 2, 3, 4, 2), g.parameter("s", (3,)), g.parameter("t", (3,))),
    "integers",
)
for _groups in (1, 2, 6):
    case(f"group_norm_{_groups}", lambda g, n=_groups: ops.group_norm(x(g, 2, 6, 3, 4), n))
    case(
        f"group_norm_weights_{_groups}",
        lambda g, n=_groups: ops.group_norm(
            x(g, 2, 6, 5), n, g.parameter("w", (6,)), g.parameter("b", (6,))
        ),
    )
for _name, _make in {
    "clamp": lambda n: ops.clamp(n, -0.5, 0.75),
    "leaky_relu": lambda n: ops.leaky_relu(n, 0.2),
    "elu": lambda n: ops.elu(n, 0.7),
    "softplus": lambda n: ops.softplus(n, 1.5, 2.0),
    "hardsigmoid": ops.hardsigmoid,
    "hardswish": ops.hardswish,
    "mish": ops.mish,
}.items():
    case(_name, lambda g, make=_make: make(x(g, 3, 4, 5)))
for _op in ("tan", "sinh", "cosh", "arctan", "expm1", "exp2", "trunc", "log1p", "log2", "log10",
            "isnan", "isinf"):  # fmt: skip
    case(_op, lambda g, op=_op: g.apply(op, x(g, 3, 4, 5)), "positive")
case(
    "rowwise",
    lambda g: ops.rowwise(ROWS_OF_STEPS, x(g, 3, 4, 5), x(g, 5, name="w"), x(g, 3, 1, 1, name="y")),
)
case(
    "rowwise_elements",
    lambda g: ops.rowwise((("neg", 0), ("mul", 2, 1)), x(g, 3, 4, 5), x(g, 5, name="w")),
    "integers",
)
for _op in ("arcsin", "arccos"):
    case(_op, lambda g, op=_op: g.apply(op, x(g, 3, 4) * 0.5), "positive")
case("arctan2", lambda g: ops.arctan2(x(g, 3, 4), x(g, 4, name="y")), "positive")
case("logical_xor", lambda g: ops.logical_xor(
    x(g, 3, 4, dtype="bool"), x(g, 4, dtype="bool", name="y")))  # fmt: skip
SPECTRUM = (
    ("fft_rfft.default", (("input", 0),), ()), ("abs.default", (("result", 0, 0),), ()),
    ("sum.default", (("result", 1, 0),), ()),
)  # fmt: skip
for _results in (((1, 0),), ((1, 0), (2, 0))):
    case(
        f"opaque_{len(_results)}",
        lambda g, r=_results: ops.opaque([x(g, 4, 6)], SPECTRUM, r)[0],
    )
FRAC = (("frac.default", (("input", 0),), ()),)
case("opaque_known", lambda g: ops.opaque([masked(g, 0.0)], FRAC, ((0, 0),))[0], "integers")
for _axis in (0, 1):
    case(f"cumsum_{_axis}", lambda g, a=_axis: ops.cumsum(x(g, 4, 5, 2), a), "integers")
    for _op in ("arg_max", "arg_min"):
        case(f"{_op}_{_axis}", lambda g, op=_op, a=_axis: g.apply(op, x(g, 4, 5), axis=a),
             "integers")  # fmt: skip
    for _op in ("top_values", "top_indices"):
        for _largest in (False, True):
            case(
                f"{_op}_{_axis}_{_largest}",
                lambda g, op=_op, a=_axis, up=_largest: g.apply(
                    op, x(g, 5, 6), k=3, axis=a, largest=up
                ),
                "integers",
            )


def recurrent(op: str, function: str, dtype: str, g: GraphBuilder) -> Node:
    """Steps of a few samples, whose gates are a part of something wider."""
    gates, states = {"lstm": (4, 2), "gru": (3, 1), "rnn": (1, 1)}[op]
    more = {"activation": function} if op == "rnn" else {}
    return g.apply(
        op, x(g, 7, 3, gates * 20 + 3, dtype=dtype)[1:6, :, 3:] * 0.5,
        x(g, gates * 20, 20, dtype=dtype, name="w") * 0.25,
        x(g, gates * 20, dtype=dtype, name="b"), x(g, 1, 3, states * 20, dtype=dtype, name="s"),
        **more,
    )  # fmt: skip


for _op in ("lstm", "gru", "rnn"):
    for _function, _dtype in itertools.product(
        ("tanh", "relu") if _op == "rnn" else ("tanh",), ("float32", "float64")
    ):
        case(f"{_op}_{_function}_{_dtype}", partial(recurrent, _op, _function, _dtype))


def named(dtype: str, index: str, shape: tuple[int, ...], turned: bool, g: GraphBuilder) -> Node:
    """Rows of something wider, times matrices that lie one way or the other."""
    weight = g.parameter("w", (4, 20, 9) if turned else (4, 9, 20), dtype)
    rows = x(g, *shape, 23, dtype=dtype)[..., 3:]
    weight = weight.permute(0, 2, 1) if turned else weight
    return ops.gather_linear(rows, weight, g.input("index", shape, index))


for _dtype, _index, _shape, _turned in itertools.product(
    ("float32", "float64"), ("int64", "int32"), ((1,), (13,), (3, 4)), (False, True)
):
    case(
        f"gather_linear_{_dtype}_{_index}_{_shape}_{_turned}",
        partial(named, _dtype, _index, _shape, _turned),
    )  # fmt: skip


def recurrence(dtype: str, order: tuple[int, ...], wide: int, g: GraphBuilder) -> Node:
    """Rows of a part of something wider, which lies in some order; decay may be one number."""
    shape = [(7, 2, 5, 4)[i] for i in order]
    back = [order.index(i) for i in range(4)]
    decay = x(g, *shape[:3], wide, dtype=dtype, name="a") if order[3] == 3 else x(
        g, *shape, dtype=dtype, name="a")  # fmt: skip
    added = x(g, *shape, dtype=dtype).permute(*back)[1:6]
    return ops.linear_recurrence(
        decay.permute(*back)[1:6] * 0.5, added, x(g, 1, 2, 5, 4, dtype=dtype, name="s")
    )


for _dtype, _order, _wide in itertools.product(
    ("float32", "float64"), ((0, 1, 2, 3), (1, 2, 0, 3), (3, 1, 0, 2)), (1, 4)
):
    case(f"linear_recurrence_{_dtype}_{_order}_{_wide}",
         partial(recurrence, _dtype, _order, _wide))  # fmt: skip
case("linear_recurrence_numbers",
     lambda g: ops.linear_recurrence(x(g, 9, name="a"), x(g, 9), x(g, 1, name="s")), "integers"
     )  # fmt: skip
case("cumsum_int", lambda g: ops.cumsum(x(g, 4, 5, dtype="int32"), 1), "integers")
for _rows in ([0, 1, 1, 2, 3], [3, 0, 0, 2], [2], [1, 3, 3], [-1, 0]):
    case(
        f"gather_constant_{_rows}",
        lambda g, r=_rows: ops.gather(x(g, 2, 4, 3), g.constant(np.array(r)), 1),
        "integers",
    )
    case(
        f"gather_constant_rows_{_rows}",
        lambda g, r=_rows: ops.gather(x(g, 4, 3), g.constant(np.array(r))),
        "integers",
    )
_BAND = np.where(causal(6, 8, window=2), 2.0, 0.0).astype("float32")
case("matmul_band", lambda g: g.constant(_BAND) @ x(g, 3, 8, 5), "integers")
case("matmul_band_behind", lambda g: x(g, 3, 4, 6) @ g.constant(_BAND), "integers")
case(
    "gather_elements",
    lambda g: ops.gather_elements(x(g, 4, 5), x(g, 3, 4, dtype="int64", name="index"), 0),
    "integers",
)
case(
    "gather_elements_32",
    lambda g: ops.gather_elements(x(g, 4, 5), x(g, 4, 2, dtype="int32", name="index"), 1),
    "integers",
)
case(
    "gather_elements_constant",
    lambda g: ops.gather_elements(x(g, 4, 5), g.constant(np.array([[3, 2], [-1, 1], [2, 3]])), 0),
    "integers",
)
case(
    "scatter_constant",
    lambda g: ops.scatter(x(g, 4, 5), g.constant(np.array([3, 0])), x(g, 2, 5, name="v")),
    "integers",
)
for _adds in (False, True):
    case(
        f"scatter_elements_{_adds}",
        lambda g, adds=_adds: g.apply(
            "scatter_elements", x(g, 5, 4), x(g, 1, 3, dtype="int64", name="index"),
            x(g, 1, 3, name="value"), axis=0, add=adds,
        ),
        "integers",
    )  # fmt: skip


# --- the harness -------------------------------------------------------------------------------

POISON = 1e30


def fill(array: np.ndarray) -> None:
    """What memory holds where nothing was written for this run."""
    array[...] = True if array.dtype == bool else 99
    if array.dtype.kind == "f" and array.dtype != np.float16:
        array[...] = POISON


def evaluate(node: Node, leaves: dict[str, np.ndarray]) -> np.ndarray:
    """The reference, in float64 where floats are."""
    if node.op == "constant":
        return widened(node.attrs["data"].array)
    if node.is_leaf:
        return widened(leaves[node.name])
    call = node.call
    arrays = [evaluate(parent, leaves) for parent in node.inputs]
    attrs = dict(call.attrs)
    with np.errstate(all="ignore"):
        found = np.asarray(OPS[node.op].reference(attrs, *arrays))
    return widened(found)


def widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def leaves_of(node: Node, rng: np.random.Generator, data: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    stack = [node]
    while stack:
        part_ = stack.pop()
        stack += part_.inputs
        if part_.is_leaf and part_.op != "constant":
            found[part_.name] = sample(part_, rng, data)
    return found


def sample(node: Node, rng: np.random.Generator, data: str) -> np.ndarray:
    dtype = numpy_dtype(node.dtype)
    if node.name == "index":
        low = 0 if node.dtype == "uint8" else -4
        return rng.integers(low, 4, node.shape).astype(dtype)
    if node.dtype == "bool":
        return rng.random(node.shape) < 0.5
    if data == "integers" or dtype.kind != "f":
        return rng.integers(0 if node.dtype == "uint8" else -3, 4, node.shape).astype(dtype)
    if data == "not finite":
        some = np.array([-np.inf, -np.inf, np.nan, np.inf, -1.0, 2.0], dtype)
        return rng.choice(some, node.shape)
    if data == "positive":
        return (rng.random(node.shape) + 0.5).astype(dtype)
    drawn = rng.standard_normal(node.shape).astype(dtype)
    if node.dtype == "bfloat16":
        return torch.from_numpy(np.asarray(drawn)).to(torch.bfloat16).float().numpy()
    return drawn


class Memory:
    """Flat buffers, and the tensors that views stand for."""

    def __init__(self) -> None:
        self.buffers: dict[Any, np.ndarray] = {}
        self.tensors: dict[Any, torch.Tensor] = {}

    def add(self, key: Any, size: int, dtype: str) -> np.ndarray:
        if dtype == "bfloat16":
            tensor = torch.full((size,), POISON, dtype=torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.empty(size, numpy_dtype(dtype)))
            fill(tensor.numpy())
        self.tensors[key] = tensor
        self.buffers[key] = array_of(tensor) if dtype == "bfloat16" else tensor.numpy()
        return self.buffers[key]

    def tensor(self, view: View, origin: Sequence[int] = ()) -> torch.Tensor:
        shape = [at(size, origin) for size in view.shape]
        strides = [at(stride, origin) for stride in view.strides]
        return torch.as_strided(self.tensors[view.buffer], shape, strides, at(view.offset, origin))

    def bound(self, arguments: tuple[Any, ...], origin: Sequence[int] = ()) -> list[Any]:
        return [self.argument(a, origin) for a in arguments]

    def argument(self, argument: Any, origin: Sequence[int]) -> Any:
        if isinstance(argument, Host):
            return array_of(self.tensor(argument.view, origin))
        if isinstance(argument, Prepared):
            return argument.make(self.tensor(argument.view, origin), *argument.details)
        if isinstance(argument, Moving):
            return argument.at(origin)
        return self.tensor(argument, origin) if isinstance(argument, View) else argument


def laid_out(
    key: Any, shape: Sequence[int], dtype: str, rng: np.random.Generator
) -> tuple[View, int]:
    """A view of this shape with dimensions in some order and gaps between them, and its span."""
    order = list(range(len(shape)))
    if rng.random() < 0.4:
        rng.shuffle(order)
    strides, step = [0] * len(shape), int(rng.random() < 0.15) + 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis] + (int(rng.integers(0, 3)) if rng.random() < 0.5 else 0)
    offset = int(rng.integers(0, 5))
    return View(key, dtype, tuple(shape), tuple(strides), offset), offset + step + 3


def put(memory: Memory, key: Any, array: np.ndarray, dtype: str, rng: np.random.Generator) -> View:
    view, span = laid_out(key, array.shape, dtype, rng)
    memory.add(key, span, dtype)
    memory.tensor(view).copy_(torch.from_numpy(np.array(array)))
    return view


def poisoned(call: Call, i: int, have: Box, out_box: Box, array: np.ndarray) -> np.ndarray:
    """What memory holds of an input: its values where needed, what is known, junk elsewhere."""
    held = np.array(array)
    fact = call.facts[i]
    if fact is not None and fact.constant is not None:
        return held[have.slices()]
    needed = np.zeros(array.shape, bool)
    for box in RULES.needed(call, Region((out_box,)))[i]:
        needed[box.slices()] = True
    junk = np.empty_like(held)
    fill(junk)
    if call.op.name == "attention":  # the scores of closed rows must stay finite
        junk = np.where(junk == POISON, 1e4, junk).astype(held.dtype)
    if fact is not None and fact.hard:
        known = ~np.broadcast_to(fact.open.array, array.shape)
        junk = np.where(known, fact.value, junk).astype(held.dtype)
    held = np.where(needed, held, junk)
    return np.asarray(held)[have.slices()]


def random_box(shape: Sequence[int], axes: set[int], rng: np.random.Generator, whole: bool) -> Box:
    result = []
    for axis, size in enumerate(shape):
        a, b = sorted(rng.integers(0, size + 1, 2).tolist())
        if whole or axis in axes or a == b:
            a, b = (0, size) if whole or axis in axes else (min(a, size - 1), min(a, size - 1) + 1)
        result.append((a, b))
    return Box(result)


def make_site(
    node: Node, box: Box, values: Sequence[np.ndarray], memory: Memory, rng: np.random.Generator
) -> Site:
    call = node.call
    boxes = RULES.reads(call, box)
    ins: list[View | None] = []
    for i, (have, array, type_) in enumerate(zip(boxes, values, call.inputs, strict=True)):
        if have is None:
            ins.append(None)
            continue
        held = poisoned(call, i, have, box, array.astype(numpy_dtype(type_.dtype)))
        ins.append(put(memory, ("in", i), held, type_.dtype, rng))
    out, span = laid_out("out", [b - a for a, b in box], call.out.dtype, rng)
    memory.add("out", span, call.out.dtype)
    return Site(call, box, boxes, out, tuple(ins), "cpu", prepared_inputs(call, "cpu"))


def scratch_views(kernel: Kernel, site: Site, memory: Memory) -> tuple[View, ...]:
    views = []
    for j, (shape, dtype) in enumerate(kernel.scratch(site)):
        view = replace(dense(shape, dtype), buffer=("scratch", j))
        memory.add(view.buffer, max(view.elements, 1), dtype)
        memory.tensors[view.buffer].fill_(np.nan if dtype in FLOATS else 1)
        views.append(view)
    return tuple(views)


def run(kernel: Kernel, site: Site, memory: Memory) -> np.ndarray:
    """Run a kernel and return the output box; nothing but it and the scratch may change."""
    function, arguments = kernel.bind(site, scratch_views(kernel, site, memory))
    out = memory.tensor(site.out)
    before = {key: buffer.copy() for key, buffer in memory.buffers.items()}
    function(*memory.bound(arguments))
    result = out.clone().numpy()
    out.copy_(memory_tensor(before[site.out.buffer], site.out))
    for key, buffer in memory.buffers.items():
        if not (isinstance(key, tuple) and key[0] == "scratch"):
            np.testing.assert_array_equal(buffer, before[key], f"{kernel.name} wrote into {key}")
    return result


def memory_tensor(buffer: np.ndarray, view: View) -> torch.Tensor:
    return torch.as_strided(torch.from_numpy(buffer), view.shape, view.strides, view.offset)


def check(kernel: Kernel, found: np.ndarray, expected: np.ndarray, exact: bool) -> None:
    if found.dtype == np.float16:
        np.testing.assert_allclose(found, expected, rtol=3e-3, atol=3e-3, err_msg=kernel.name)
    elif exact or found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected.astype(found.dtype), kernel.name)
    else:
        rtol = 1e-5 if found.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol / 5, err_msg=kernel.name)


def is_exact(case_: Case, node: Node) -> bool:
    return case_.data in ("integers", "not finite") and node.op != "mean"


INPLACE = [c for c in CASES if c.build(GraphBuilder()).call.op.inplace]
USED: set[str] = set()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case_", CASES, ids=str)
def test_kernels_against_reference(case_: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    node = case_.build(GraphBuilder())
    leaves = leaves_of(node, rng, case_.data)
    if node.op in ("floordiv", "mod") and node.dtype in FLOATS:
        leaves = {name: np.round(array * 8) / 4 for name, array in leaves.items()}
    values = [evaluate(parent, leaves) for parent in node.inputs]
    whole = {axis % node.rank for axis in node.call.op.whole(node.call)}
    box = random_box(node.shape, whole, rng, whole=seed == 0)
    if node.call.fact is not None and seed % 2:
        trimmed = node.call.fact.open.trim(Region((box,)))
        box = trimmed.hull() if trimmed.boxes else box
    rows = evaluate(node, leaves)
    expected, before = rows[box.slices()], row_before(node.call, box)
    if before is not None:
        values[node.call.op.continues] = rows[before[0][0] : before[0][1]]
    memory = Memory()
    site = make_site(node, box, values, memory, rng)
    found = candidates(site)
    for kernel in found:
        USED.add(kernel.name)
        check(kernel, run(kernel, site, memory), expected, is_exact(case_, node))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case_", INPLACE, ids=str)
def test_inplace(case_: Case, seed: int) -> None:
    """The output may lie exactly where an input of the same box lies."""
    rng = np.random.default_rng(seed)
    node = case_.build(GraphBuilder())
    leaves = leaves_of(node, rng, case_.data)
    values = [evaluate(parent, leaves) for parent in node.inputs]
    whole = {axis % node.rank for axis in node.call.op.whole(node.call)}
    box = random_box(node.shape, whole, rng, whole=False)
    expected = evaluate(node, leaves)[box.slices()]
    for i in node.call.op.inplace:
        memory = Memory()
        site = make_site(node, box, values, memory, rng)
        if site.in_boxes[i] != box or node.inputs[i].type != node.type:
            continue
        same_place = replace(site, out=site.operand(i))
        for kernel in candidates(same_place):
            snapshot = {key: buffer.copy() for key, buffer in memory.buffers.items()}
            check(kernel, run(kernel, same_place, memory), expected, is_exact(case_, node))
            for key, buffer in snapshot.items():
                if key[0] == "in":
                    memory.buffers[key][...] = buffer


# --- the same program at another origin --------------------------------------------------------


def absolute(memory: Memory, key: Any, array: np.ndarray, dtype: str) -> View:
    view = replace(dense(array.shape, dtype), buffer=key)
    memory.add(key, max(array.size, 1), dtype)
    memory.tensor(view).copy_(torch.from_numpy(np.array(array)))
    return view


def moving_axes(node: Node) -> list[int]:
    whole = {axis % node.rank for axis in node.call.op.whole(node.call)} if node.rank else set()
    return [axis for axis in range(node.rank) if axis not in whole and node.shape[axis] > 2]


@pytest.mark.parametrize("which", ["one", "up to", "onwards"])
@pytest.mark.parametrize("case_", CASES, ids=str)
def test_rebased(case_: Case, which: str) -> None:
    """Bound at one origin and pointed at another that satisfies the guards, all kernels agree."""
    rng = np.random.default_rng(0)
    node = case_.build(GraphBuilder())
    leaves = leaves_of(node, rng, case_.data)
    values = [evaluate(parent, leaves) for parent in node.inputs]
    expected = evaluate(node, leaves)
    for axis in moving_axes(node):
        for first in range(1, min(node.shape[axis] - 1, 5)):
            u = origin_symbol(0)
            side = {"one": (u, u + 1), "up to": (0, u + 1), "onwards": (u, node.shape[axis])}[which]
            box = Box((*Box.full(node.shape[:axis]), side, *Box.full(node.shape[axis + 1 :])))
            memory, rules = Memory(), Rules()
            full = [
                absolute(memory, ("in", i), array, type_.dtype)
                for i, (array, type_) in enumerate(zip(values, node.call.inputs, strict=True))
            ]
            out = absolute(memory, "out", np.zeros(node.shape), node.dtype)
            with record([first]) as guards:
                boxes = rules.reads(node.call, box)
                ins = tuple(
                    None if have is None else part(view, Box.full(view.shape), have)
                    for view, have in zip(full, boxes, strict=True)
                )
                target = part(out, Box.full(node.shape), box)
                before = row_before(node.call, box)
                if before is not None:
                    row = part(out, Box.full(node.shape), before)
                    first_row = node.call.op.continues
                    ins = tuple(row if i == first_row else view for i, view in enumerate(ins))
                frozen = prepared_inputs(node.call, "cpu")
                site = Site(node.call, box, boxes, target, ins, "cpu", frozen)
                kernels = candidates(site)
                bound = [k.bind(site, scratch_views(k, site, memory)) for k in kernels]
            for other in range(min(node.shape[axis], 16)):
                if not all(guard.holds((other,)) for guard in guards):
                    assert other != first
                    continue
                for kernel, (function, arguments) in zip(kernels, bound, strict=True):
                    with standing([first]):
                        scratch_at(kernel, site, memory, (other,))
                    fill(memory.buffers["out"])
                    if before is not None:
                        there = before.at((other,)).slices()
                        memory.tensor(out).numpy()[there] = expected[there]
                    function(*memory.bound(arguments, (other,)))
                    where = box.at((other,)).slices()
                    got = memory.tensor(out).numpy()[where]
                    check(kernel, got, expected[where], is_exact(case_, node))


def scratch_at(kernel: Kernel, site: Site, memory: Memory, origin: tuple[int, ...]) -> None:
    """Scratch buffers large enough for an origin."""
    for j, (shape, dtype) in enumerate(kernel.scratch(site)):
        size = int(np.prod([at(n, origin) for n in shape], dtype=int))
        memory.add(("scratch", j), max(size, 1), dtype)


@pytest.mark.parametrize("which", ["neither", "source", "target"])
def test_windows_cut_otherwise_are_one_copy_where_a_side_has_no_gaps(which: str) -> None:
    """8 windows of 7 as 7 of 8, in two dimensions, as a grid of attention does to its windows."""
    node = x(GraphBuilder(), 3, 8, 7, 8, 7).reshape(3, 7, 8, 7, 8)
    array = np.arange(np.prod(node.shape), dtype=np.float32).reshape(node.inputs[0].shape)
    memory = Memory()
    sides = {"source": node.inputs[0].shape, "target": node.shape}
    views = {}
    for side, shape in sides.items():
        wide = (*shape[:-1], shape[-1] + (side != which))
        view = replace(dense(wide, "float32"), buffer=side).narrow(len(shape) - 1, 0, shape[-1])
        memory.add(side, int(np.prod(wide)), "float32")
        views[side] = view
    memory.tensor(views["source"]).copy_(torch.from_numpy(array))
    whole, have = Box.full(node.shape), Box.full(node.inputs[0].shape)
    site = Site(node.call, whole, (have,), views["target"], (views["source"],), "cpu", (None,))
    (kernel,) = (one for one in KERNELS["reshape"] if one.name == "reshape")
    function, arguments = kernel.bind(site, ())
    function(*memory.bound(arguments))
    np.testing.assert_array_equal(memory.tensor(views["target"]), array.reshape(node.shape))
    if which == "neither":
        assert len(arguments) <= 2 * 14**2  # ends of windows of 7 and of 8, in two dimensions
    else:
        assert function is copy_


def test_elements_are_repeated_wherever_a_slice_begins() -> None:
    """Behind the first copy of an element, before its last one; bit for bit, channels last too."""
    node = ops.upsample(x(GraphBuilder(), 1, 2, 3, 4), scale=(2.0, 3.0))
    source = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    expected = source.repeat(2, 2).repeat(3, 3)
    (kernel,) = (one for one in KERNELS["upsample"] if one.name == "upsample_repeat")
    rows, columns = (list(itertools.combinations(range(n + 1), 2)) for n in node.shape[2:])
    for box in (Box(((0, 1), (0, 2), *sides)) for sides in itertools.product(rows, columns)):
        for seed in range(2):
            memory = Memory()
            site = make_site(node, box, [source], memory, np.random.default_rng(seed))
            assert kernel.takes(site)
            np.testing.assert_array_equal(run(kernel, site, memory), expected[box.slices()])


@pytest.mark.parametrize("scale", [1.5, 0.5])
def test_what_is_not_repeated_as_often_everywhere_is_no_repetition(scale: float) -> None:
    node = ops.upsample(x(GraphBuilder(), 1, 2, 4), scale=scale)
    whole = Box.full(node.shape)
    names = {one.name for one in candidates(plain_site(node.call, whole, (None,), "cpu"))}
    assert "upsample_slice" in names
    assert "upsample_repeat" not in names


# --- no allocation -----------------------------------------------------------------------------


def allocations(function: Callable[..., Any], arguments: Sequence[Any]) -> list[int]:
    """Sizes in bytes of what torch allocated during a second call."""
    function(*arguments)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function(*arguments)
    events = profiler.events() or []
    return [e.cpu_memory_usage for e in events if e.name == "[memory]" and e.cpu_memory_usage > 0]


def hot(g: GraphBuilder) -> dict[str, Node]:
    row, wide = x(g, 1, 64, name="row"), x(g, 1, 256, name="wide")
    w, weight = g.parameter("w", (256, 64)), g.parameter("n", (64,))
    return {
        "linear": ops.linear(row, w),
        "linear_bias": ops.linear(row, w, g.parameter("b", (256,))),
        "rows": ops.linear(x(g, 40, 64, name="rows"), w),
        "gated": ops.gated_linear(row, w, g.parameter("u", (256, 64)), "gelu_tanh"),
        "rms_norm": ops.rms_norm(row, weight),
        "rms_norms": ops.rms_norm(x(g, 5, 64, name="rows5"), weight),
        "layer_norm": ops.layer_norm(row, weight, g.parameter("b64", (64,))),
        "rope": ops.rope(
            x(g, 1, 4, 64, name="h"), x(g, 1, 64, name="cos"), x(g, 1, 64, name="sin")
        ),
        "attention": attend(g, 1, 4, 1, 1, 40),
        "attention_masked": attend(
            GraphBuilder(), 1, 4, 2, 1, 6, np.array([[1, 1, 0, 1, 1, 1]], bool)
        ),
        "add": row + x(g, 1, 64, name="other"),
        "mul": row * g.parameter("s", ()),
        "gelu": ops.gelu(wide, "tanh"),
        "silu": ops.silu(wide),
        "softmax": ops.softmax(wide),
        "gather": ops.embedding(w, x(g, 1, dtype="int64", name="index")),
        "mean": ops.mean(wide, -1),
        "concat": ops.concat([row, wide]),
    }


@pytest.mark.parametrize("name", hot(GraphBuilder()))
def test_hot_kernels_allocate_nothing(name: str) -> None:
    rng = np.random.default_rng(0)
    node = hot(GraphBuilder())[name]
    leaves = leaves_of(node, rng, "normal")
    memory = Memory()
    ins = tuple(
        absolute(memory, ("in", i), np.abs(evaluate(parent, leaves)), parent.dtype)
        for i, parent in enumerate(node.inputs)
    )
    out = absolute(memory, "out", np.zeros(node.shape), node.dtype)
    box = Box.full(node.shape)
    site = Site(node.call, box, RULES.reads(node.call, box), out, ins, "cpu")
    for kernel in candidates(site):
        function, arguments = kernel.bind(site, scratch_views(kernel, site, memory))
        assert allocations(function, memory.bound(arguments)) == [], kernel.name


# --- the table ---------------------------------------------------------------------------------


def test_every_op_has_a_kernel() -> None:
    assert not [name for name in OPS if name not in KERNELS]


def test_fill_and_copy() -> None:
    a, b = torch.zeros(3), torch.arange(3.0)
    fill_(a, 2.0)
    assert a.tolist() == [2, 2, 2]
    copy_(a, b)
    assert a.tolist() == [0, 1, 2]


def test_dot_products_are_chosen_for_large_weights_where_no_loops_are() -> None:
    g = GraphBuilder()
    for shape, name in (((2048, 640), "linear_row_dots"), ((64, 64), "linear_row")):
        w = g.parameter(f"w{shape}", shape)
        node = ops.linear(g.input(f"x{shape}", (1, shape[1])), w)
        views = tuple(dense(parent.shape, "float32") for parent in node.inputs)
        box = Box.full(node.shape)
        site = Site(
            node.call, box, RULES.reads(node.call, box), dense(node.shape, "float32"), views, "cpu"
        )
        by_torch = [k.name for k in candidates(site) if not k.name.endswith("_numba")]
        assert by_torch[0] == name


def test_allocations_are_counted() -> None:
    """torch makes a tensor of a Python number; the count must not be blind to it."""
    assert allocations(lambda a: torch.mul(a, 2.0, out=a), [torch.ones(3)])


# --- places --------------------------------------------------------------------------------------


def some_boxes(shape: Sequence[int], rng: np.random.Generator) -> list[Box]:
    """Every box of a small result; else many of few sizes, so that equal ones lie apart."""
    sides = [[(a, b) for a in range(n) for b in range(a + 1, n + 1)] for n in shape]
    if np.prod([len(side) for side in sides]) <= 400:
        return [Box(box) for box in itertools.product(*sides)]
    small = [[(a, b) for a, b in side if b - a in (2, 3, len(side))] or side for side in sides]
    return [Box(side[rng.integers(len(side))] for side in small) for _ in range(400)]


@pytest.mark.parametrize("case_", CASES, ids=str)
def test_kernels_cannot_tell_more_than_the_place_of_a_box(case_: Case) -> None:
    """Where an op says that two boxes are at the same place, the same is bound for both."""
    node = case_.build(GraphBuilder())
    call, whole = node.call, Box.full(node.shape)
    is_known = any(fact is not None for fact in call.facts)
    if is_known or call.op.place(call, whole) == whole:
        return  # its kernels may look at the whole of a box
    seen: dict[Any, Any] = {}
    for box in some_boxes(node.shape, np.random.default_rng(0)):
        site = plain_site(call, box, RULES.reads(call, box), "cpu")
        key = call.op.place(call, box), site.out, site.ins
        try:
            kernels = candidates(site)
        except KernelError:
            continue
        bound = [(k.name, s := k.scratch(site), k.bind(site, placed(s))) for k in kernels]
        assert seen.setdefault(key, bound) == bound, (box, key)
