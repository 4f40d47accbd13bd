"""One small application, or several, of every op of the table: `CASES`, by name.

case.node      the application, in a graph of its own (`case.graph`)
case.draw(rng) values of its leaves; `case.inputs(rng)` the arrays that the op itself gets
case.exact     its region rules are equal to what probing finds, not just around it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from strategies import Array

import tgbench.graph.ops as ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import Call, numpy_dtype
from tgbench.graph.reference import evaluate


@dataclass(frozen=True)
class OpCase:
    """An op applied to small tensors.

    Fields:
        make: builds the application.
        low, high: range of the integers that leaves are filled with (indices: from 0 to `below`).
        exact: whether rules are tight here, or only sound (masks shrink to boxes, long reshapes).
        independent: the op by another library; None where the test module has no second opinion.
    """

    name: str
    make: Callable[[GraphBuilder], Node]
    low: int = -3
    high: int = 4
    below: int = 0
    exact: bool = True
    independent: Callable[..., Any] | None = None

    @cached_property
    def graph(self) -> Graph:
        g = GraphBuilder()
        g.output("out", self.make(g))
        return g.build()

    @property
    def node(self) -> Node:
        return self.graph.outputs["out"]

    @property
    def call(self) -> Call:
        return self.node.call

    def draw(self, rng: np.random.Generator) -> dict[str, Array]:
        values = {}
        for node in {**self.graph.inputs, **self.graph.parameters}.values():
            is_index = self.below and node.dtype.startswith("int")
            low, high = (0, self.below) if is_index else (self.low, self.high)
            if node.dtype == "bool":
                low, high = 0, 2
            numbers = np.asarray(rng.integers(low, high, node.shape))
            values[node.name] = numbers.astype(numpy_dtype(node.dtype))
        return values

    def inputs(self, rng: np.random.Generator) -> list[Array]:
        parents = self.node.inputs
        found = evaluate(self.graph, self.draw(rng), [parent.name for parent in parents])
        return [found[parent.name] for parent in parents]

    def run(self, arrays: list[Array]) -> Array:
        with np.errstate(all="ignore"):
            return self.call.op.reference(self.call.attrs, *arrays)


CASES: dict[str, OpCase] = {}


def case(name: str, make: Callable[[GraphBuilder], Node], **options: Any) -> None:
    assert name not in CASES, name
    CASES[name] = OpCase(name, make, **options)


def _torch(function: str) -> Callable[..., Any]:
    """`torch.<function>` on arrays."""
    import torch

    target = torch
    for part in function.split("."):
        target = getattr(target, part)
    return lambda attrs, *arrays: target(*map(torch.tensor, arrays)).numpy()  # type: ignore[operator]


def x_of(g: GraphBuilder, *shape: int, dtype: str = "float32", name: str = "x") -> Node:
    return g.input(name, shape, dtype)


# --- element-wise ---------------------------------------------------------------------------------

_UNARY = {
    "neg": "neg", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "round": "round",
    "exp": "exp", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "special.erf",
    "sigmoid": "sigmoid", "reciprocal": "reciprocal",
}  # fmt: skip
for _op, _name in _UNARY.items():
    case(_op, lambda g, op=_op: g.apply(op, x_of(g, 2, 3) * 0.75), independent=_torch(_name))
for _op in ("log", "sqrt", "rsqrt"):
    case(_op, lambda g, op=_op: g.apply(op, x_of(g, 2, 3)), low=1, high=7, independent=_torch(_op))

_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "maximum": "maximum", "minimum": "minimum",
    "div": "true_divide", "floordiv": "floor_divide", "mod": "remainder", "equal": "eq",
    "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
_LOW = {"div": 1, "floordiv": 1, "mod": 1}
for _op, _name in _BINARY.items():
    case(
        _op,
        lambda g, op=_op: g.apply(op, x_of(g, 2, 3), x_of(g, 2, 3, name="y")),
        low=_LOW.get(_op, -3),
        independent=_torch(_name),
    )
    case(
        f"{_op} broadcast",
        lambda g, op=_op: g.apply(op, x_of(g, 2, 1, 3), x_of(g, 4, 1, name="y")),
        low=_LOW.get(_op, -3),
        independent=_torch(_name),
    )
case(
    "pow",
    lambda g: g.apply("pow", x_of(g, 2, 3), x_of(g, 3, name="y")),
    low=2,
    high=5,
    independent=_torch("pow"),
)
for _op in ("logical_and", "logical_or"):
    case(
        _op,
        lambda g, op=_op: g.apply(
            op, x_of(g, 2, 3, dtype="bool"), x_of(g, 3, dtype="bool", name="y")
        ),
        independent=_torch(_op),
    )
case(
    "logical_not",
    lambda g: ~x_of(g, 2, 3, dtype="bool"),
    independent=_torch("logical_not"),
)
case("add scalars", lambda g: x_of(g) + x_of(g, name="y"), independent=_torch("add"))
case("cast", lambda g: x_of(g, 2, 3).cast("int32"), independent=lambda attrs, x: np.int32(x))
case(
    "copy_to",
    lambda g: ops.copy_to(-ops.copy_to(x_of(g, 2, 3), "cpu:1")),
    independent=lambda attrs, x: x,
)
case("cast bool", lambda g: x_of(g, 2, 3).cast("bool"), independent=lambda attrs, x: x != 0)
case(
    "where",
    lambda g: ops.where(x_of(g, 2, 3, dtype="bool", name="c"), x_of(g, 2, 3), x_of(g, 3, name="y")),
    independent=_torch("where"),
)
case(
    "where condition broadcasts",
    lambda g: ops.where(x_of(g, 2, 1, dtype="bool", name="c"), x_of(g, 3), x_of(g, name="y")),
    independent=_torch("where"),
)

# --- reductions -----------------------------------------------------------------------------------

for _op in ("sum", "mean", "max", "min", "prod"):
    for _axes, _keep in (((1,), False), ((0, 2), True), ((0, 1, 2), False)):
        _high = {"low": 1} if _op == "prod" else {}
        case(
            f"{_op} {_axes} {'keep' if _keep else 'drop'}",
            lambda g, op=_op, axes=_axes, keep=_keep: g.apply(
                op, x_of(g, 2, 3, 2), axes=axes, keepdims=keep
            ),
            independent=lambda attrs, x, op=_op: np.apply_over_axes(
                lambda a, axis: getattr(np, op)(a, axis=axis, keepdims=True), x, attrs["axes"]
            ).reshape(
                [1 if i in attrs["axes"] else n for i, n in enumerate(x.shape)
                 if attrs["keepdims"] or i not in attrs["axes"]]
            ),
            **_high,
        )  # fmt: skip

# --- matmul ---------------------------------------------------------------------------------------

for _a, _b in (
    ((3, 4), (4, 2)),
    ((2, 3, 4), (4, 2)),
    ((2, 3, 2), (2, 2, 3)),
    ((2, 1, 2, 2), (3, 2, 2)),
    ((1, 1), (1, 1)),
):
    case(
        f"matmul {list(_a)} {list(_b)}",
        lambda g, a=_a, b=_b: x_of(g, *a) @ x_of(g, *b, name="y"),
        independent=_torch("matmul"),
    )

# --- layout ---------------------------------------------------------------------------------------

for _a, _b in (
    ((2, 6), (3, 4)),
    ((12,), (2, 2, 3)),
    ((2, 2, 3), (12,)),
    ((2, 3, 4), (6, 4)),
    ((4, 3), (2, 2, 3)),
    ((1, 6), (6, 1)),
    ((2, 3, 2), (2, 6)),
    ((1,), ()),
    ((), (1, 1)),
    ((5, 4), (2, 10)),
    ((3, 1, 4), (3, 4)),
):
    case(
        f"reshape {list(_a)} {list(_b)}",
        lambda g, a=_a, b=_b: x_of(g, *a).reshape(b),
        independent=lambda attrs, x: np.array(list(x.flat), x.dtype).reshape(attrs["shape"]),
    )
case("permute", lambda g: x_of(g, 2, 3, 4).permute(2, 0, 1),
     independent=lambda attrs, x: np.einsum("abc->cab", x))  # fmt: skip
case("permute matrix", lambda g: x_of(g, 2, 3).transpose(),
     independent=lambda attrs, x: np.einsum('ab->ba', x))  # fmt: skip
_SLICES: dict[str, Any] = {
    "1:3": np.s_[1:3],
    "::2": np.s_[::2],
    "1::3": np.s_[1::3, 1:],
    "::-1": np.s_[::-1],
    "5:1:-2": np.s_[5:1:-2, ::-1],
    "negative": np.s_[-3:-1, -1:],
}
for _name, _index in _SLICES.items():
    case(
        f"slice {_name}",
        lambda g, index=_index: x_of(g, 7, 3)[index],
        independent=lambda attrs, x, index=_index: x[index],
    )
case("expand", lambda g: x_of(g, 2, 1, 3).expand(4, 2, 2, 3),
     independent=lambda attrs, x: np.tile(x, (4, 1, 2, 1)))  # fmt: skip
case("expand scalar", lambda g: x_of(g).expand(2, 3),
     independent=lambda attrs, x: np.full((2, 3), x))  # fmt: skip
case(
    "concat",
    lambda g: ops.concat([x_of(g, 2, 2), x_of(g, 2, 1, name="y"), x_of(g, 2, 3, name="z")], 1),
    independent=lambda attrs, *xs: np.hstack(xs),
)
case(
    "concat rows",
    lambda g: ops.concat([x_of(g, 1, 3), x_of(g, 2, 3, name="y")], 0),
    independent=lambda attrs, *xs: np.vstack(xs),
)
case("pad", lambda g: ops.pad(x_of(g, 2, 3), (1, 0), (0, 2), 5.0),
     independent=lambda attrs, x: np.block(
         [[np.full((1, 3), 5, x.dtype), np.full((1, 2), 5, x.dtype)],
          [x, np.full((2, 2), 5, x.dtype)]]))  # fmt: skip
case("pad a scalar", lambda g: ops.pad(x_of(g), (), (), 1.0), independent=lambda attrs, x: x)
case("pad int", lambda g: ops.pad(x_of(g, 3, dtype="int32"), (2,), (1,), 7))

# --- index ----------------------------------------------------------------------------------------

case(
    "gather rows",
    lambda g: ops.embedding(x_of(g, 3, 2), x_of(g, 2, 2, dtype="int64", name="i")),
    below=3,
    independent=lambda attrs, x, i: x[i],
)
case(
    "gather columns",
    lambda g: ops.gather(x_of(g, 2, 4, 2), x_of(g, 3, dtype="int32", name="i"), axis=1),
    below=4,
    independent=lambda attrs, x, i: x[:, i],
)
case(
    "gather one",
    lambda g: ops.gather(x_of(g, 2, 3), x_of(g, dtype="int64", name="i"), axis=1),
    below=3,
    independent=lambda attrs, x, i: x[:, int(i)],
)


def _scatter_by_hand(attrs: Any, x: Array, indices: Array, value: Array) -> Array:
    result = x.copy()
    for row, index in enumerate(indices):
        if attrs["axis"] == 0:
            result[index] = value[row]
        else:
            result[:, index] = value[:, row]
    return result


for _axis, _shape in ((0, (2, 3)), (1, (3, 2))):
    case(
        f"scatter axis {_axis}",
        lambda g, axis=_axis, shape=_shape: ops.scatter(
            x_of(g, 3, 3), x_of(g, 2, dtype="int64", name="i"), x_of(g, *shape, name="v"), axis
        ),
        below=3,
        independent=_scatter_by_hand,
    )


def _update_by_hand(attrs: Any, x: Array, value: Array) -> Array:
    low = attrs["start"]
    inside = np.pad(
        value, [(a, n - a - m) for a, n, m in zip(low, x.shape, value.shape, strict=True)]
    )
    place = np.pad(
        np.ones(value.shape, bool),
        [(a, n - a - m) for a, n, m in zip(low, x.shape, value.shape, strict=True)],
    )
    return np.where(place, inside, x).astype(x.dtype)


case("update", lambda g: ops.update(x_of(g, 4, 4), x_of(g, 2, 3, name="v"), (1, 1)),
     independent=_update_by_hand)  # fmt: skip
case("update all", lambda g: ops.update(x_of(g, 2), x_of(g, 2, name="v"), (0,)),
     independent=_update_by_hand)  # fmt: skip

# --- made from nothing ----------------------------------------------------------------------------

case("iota", lambda g: ops.iota(g, (2, 3), 1), independent=lambda attrs: np.indices((2, 3))[1])
case(
    "full",
    lambda g: ops.full(g, (2, 2), 2.5),
    independent=lambda attrs: np.float32([[2.5] * 2] * 2),
)

# --- fused ----------------------------------------------------------------------------------------


def _functional(name: str, *names: str, **options: Any) -> Callable[..., Any]:
    """`torch.nn.functional.<name>`; later arrays go in under these names."""
    import torch

    def run(attrs: Any, x: Array, *rest: Array) -> Array:
        given = {key: torch.tensor(array) for key, array in zip(names, rest, strict=False)}
        result = getattr(torch.nn.functional, name)(torch.tensor(x), **given, **options)
        return np.asarray(result)

    return run


def _norm_by_torch(attrs: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    import torch

    f, shape = torch.nn.functional, x.shape[-1:]
    tensors = [torch.tensor(a) for a in (x, weight) + (() if bias is None else (bias,))]
    if bias is None:
        return f.rms_norm(tensors[0], shape, tensors[1], attrs["eps"]).numpy()
    return f.layer_norm(tensors[0], shape, tensors[1], tensors[2], attrs["eps"]).numpy()


def _attention_by_torch(attrs: Any, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    import torch

    given = torch.tensor(np.broadcast_to(mask[0], (*q.shape[:3], k.shape[2]))) if mask else None
    return torch.nn.functional.scaled_dot_product_attention(
        *map(torch.tensor, (q, k, v)), attn_mask=given, scale=attrs["scale"], enable_gqa=True
    ).numpy()


case("softmax", lambda g: ops.softmax(x_of(g, 2, 3)), independent=_functional("softmax", dim=-1))
case("softmax rows", lambda g: ops.softmax(x_of(g, 3, 2), 0),
     independent=_functional("softmax", dim=0))  # fmt: skip
case("rms_norm", lambda g: ops.rms_norm(x_of(g, 2, 4), x_of(g, 4, name="w")),
     independent=_norm_by_torch)  # fmt: skip
case(
    "layer_norm",
    lambda g: ops.layer_norm(x_of(g, 2, 4), x_of(g, 4, name="w"), x_of(g, 4, name="b")),
    independent=_norm_by_torch,
)
case("gelu", lambda g: ops.gelu(x_of(g, 2, 3)), independent=_functional("gelu"))
case("gelu tanh", lambda g: ops.gelu(x_of(g, 2, 3), "tanh"),
     independent=_functional("gelu", approximate="tanh"))  # fmt: skip
case("silu", lambda g: ops.silu(x_of(g, 2, 3)), independent=_functional("silu"))
case("relu", lambda g: ops.relu(x_of(g, 2, 3)), independent=_functional("relu"))
case("relu int", lambda g: ops.relu(x_of(g, 2, 3, dtype="int32")),
     independent=_functional("relu"))  # fmt: skip
case("linear", lambda g: ops.linear(x_of(g, 2, 3), x_of(g, 4, 3, name="w")),
     independent=_functional("linear", "weight"))  # fmt: skip
case(
    "linear bias",
    lambda g: ops.linear(x_of(g, 2, 2, 3), x_of(g, 2, 3, name="w"), x_of(g, 2, name="b")),
    independent=_functional("linear", "weight", "bias"),
)
case("linear vector", lambda g: ops.linear(x_of(g, 3), x_of(g, 4, 3, name="w")),
     independent=_functional("linear", "weight"))  # fmt: skip
case(
    "widening_linear",
    lambda g: ops.widening_linear(
        x_of(g, 2, 3), x_of(g, 4, 3, dtype="bfloat16", name="w"), x_of(g, 4, name="b")
    ),
    independent=_functional("linear", "weight", "bias"),
)
for _activation in ("gelu_tanh", "gelu", "silu", "relu"):
    case(
        f"gated_linear {_activation}",
        lambda g, activation=_activation: ops.gated_linear(
            x_of(g, 2, 3), x_of(g, 2, 3, name="gate"), x_of(g, 2, 3, name="up"), activation
        ),
        independent=lambda attrs, x, gate, up: _functional(
            attrs["activation"].split("_")[0],
            **({"approximate": "tanh"} if attrs["activation"] == "gelu_tanh" else {}),
        )(attrs, x @ gate.T) * (x @ up.T),
    )  # fmt: skip
case(
    "rope",
    lambda g: ops.rope(x_of(g, 2, 3, 4), x_of(g, 3, 4, name="c"), x_of(g, 3, 4, name="s")),
    independent=lambda attrs, x, c, s: x * c + np.concatenate([-x[..., 2:], x[..., :2]], -1) * s,
)


def _attention(g: GraphBuilder, heads: int, shared: int, mask: Any = None) -> Node:
    q = x_of(g, 1, heads, 3, 2, name="q")
    k, v = x_of(g, 1, shared, 4, 2, name="k"), x_of(g, 1, shared, 4, 2, name="v")
    return ops.attention(q, k, v, mask)


case("attention", lambda g: _attention(g, 2, 2), independent=_attention_by_torch)
case("attention shared", lambda g: _attention(g, 4, 2), independent=_attention_by_torch)
case(
    "attention bool mask",
    lambda g: _attention(g, 2, 1, g.constant(np.tril(np.ones((3, 4), dtype=bool), 1))),
    independent=_attention_by_torch,
)
case(
    "attention added mask",
    lambda g: _attention(
        g, 2, 2, g.constant(np.where(np.tri(3, 4, 1) > 0, 0, -np.inf).astype(np.float32))
    ),
    independent=_attention_by_torch,
)
case(
    "attention mask input",
    lambda g: _attention(g, 1, 1, x_of(g, 3, 4, name="mask")),
    independent=_attention_by_torch,
)

case(
    "attention bool mask of an input in a band",
    lambda g: _attention(
        g, 2, 1, x_of(g, 1, 4, dtype="bool", name="c") & g.constant(np.tri(3, 4, 1, dtype=bool))
    ),
)

# --- with known elements --------------------------------------------------------------------------

_BAND = np.tril(np.ones((4, 4), dtype=bool))
_GAPS = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=bool)
_PADDING = np.array([1, 0, 1, 0], dtype=bool)


def _flags(g: GraphBuilder, name: str) -> Node:
    return x_of(g, 1, 4, dtype="bool", name=name)


def _masked(g: GraphBuilder, mask: Array, value: float, name: str = "x") -> Node:
    return ops.where(g.constant(mask), x_of(g, 4, 4, name=name), value)


for _label, _mask in (("band", _BAND), ("gaps", _GAPS), ("padding", _PADDING)):
    _alike = {"exact": False}
    case(f"where {_label}", lambda g, m=_mask: ops.where(
        g.constant(m), x_of(g, 4, 4), x_of(g, 4, 4, name="y")), **_alike)  # fmt: skip
    case(f"and {_label}", lambda g, m=_mask: _flags(g, "c") & g.constant(m), **_alike)
    case(f"and of both {_label}", lambda g, m=_mask: (_flags(g, "c") & g.constant(m)) & (
        _flags(g, "d") & g.constant(m.T)), **_alike)  # fmt: skip
    case(f"or {_label}", lambda g, m=_mask: _flags(g, "c") | g.constant(~m), **_alike)
    case(f"not of and {_label}", lambda g, m=_mask: ~(_flags(g, "c") & g.constant(m)), **_alike)
    case(f"cast of and {_label}", lambda g, m=_mask: (_flags(g, "c") & g.constant(m)).cast(
        "float32"), **_alike)  # fmt: skip
    case(f"any of and {_label}", lambda g, m=_mask: ops.max_(
        _flags(g, "c") & g.constant(m), 1), **_alike)  # fmt: skip
    for _value in (0.0, -np.inf, -1e38):
        case(f"where and, else {_value} {_label}", lambda g, m=_mask, value=_value: ops.where(
            _flags(g, "c") & g.constant(m), x_of(g, 4, 4), value), **_alike)  # fmt: skip
        case(f"where or {_value} {_label}", lambda g, m=_mask, value=_value: ops.where(
            _flags(g, "c") | g.constant(~m), x_of(g, 4, 4) * 0.0 + value, x_of(g, 4, name="y")),
            **_alike)  # fmt: skip
    case(f"exp of −inf {_label}", lambda g, m=_mask: ops.exp(_masked(g, m, -np.inf)), **_alike)
    case(f"max of −inf {_label}", lambda g, m=_mask: ops.max_(_masked(g, m, -np.inf), 1), **_alike)
    case(f"min of inf {_label}", lambda g, m=_mask: ops.min_(_masked(g, m, np.inf), 1), **_alike)
    case(f"sum of 0 {_label}", lambda g, m=_mask: ops.sum_(_masked(g, m, 0.0), 1), **_alike)
    case(f"mean of 0 {_label}", lambda g, m=_mask: ops.mean(_masked(g, m, 0.0), 1), **_alike)
    case(f"tanh of 0 {_label}", lambda g, m=_mask: ops.tanh(_masked(g, m, 0.0)), **_alike)
    case(
        f"mul by 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0) * x_of(g, 4, name="y"), **_alike
    )
    case(f"mul by mask {_label}", lambda g, m=_mask: x_of(g, 4, 4) * g.constant(m).cast("float32"),
         **_alike)  # fmt: skip
    case(f"div 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0) / g.constant(
        np.arange(1, 5, dtype=np.float32)), **_alike)  # fmt: skip
    case(f"add −inf {_label}", lambda g, m=_mask: x_of(g, 4, 4) + g.constant(
        np.where(m, 0, -np.inf).astype(np.float32)), **_alike)  # fmt: skip
    case(f"matmul of 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0) @ x_of(g, 4, 2, name="y"),
         **_alike)  # fmt: skip
    case(f"matmul by 0 {_label}", lambda g, m=_mask: x_of(g, 2, 4, name="y") @ _masked(g, m, 0.0),
         **_alike)  # fmt: skip
    case(f"matmul 0 by 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0) @ _masked(
        g, m.T, 0.0, "y"), **_alike)  # fmt: skip
    case(
        f"softmax of −inf {_label}",
        lambda g, m=_mask: ops.softmax(_masked(g, m, -np.inf)),
        **_alike,
    )
    case(f"reshape of 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0).reshape(2, 8), **_alike)
    case(f"permute of 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0).transpose(), **_alike)
    case(f"slice of 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0)[::-2, 1:], **_alike)
    case(f"expand of 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0).expand(2, 4, 4), **_alike)
    case(f"concat of 0 {_label}", lambda g, m=_mask: ops.concat(
        [_masked(g, m, 0.0), x_of(g, 4, 2, name="y")]), **_alike)  # fmt: skip
    case(
        f"pad of 0 {_label}",
        lambda g, m=_mask: ops.pad(_masked(g, m, 0.0), (1, 0), (0, 2)),
        **_alike,
    )
    case(f"cast of 0 {_label}", lambda g, m=_mask: _masked(g, m, 0.0).cast("int32"), **_alike)
    case(f"cast of −inf {_label}", lambda g, m=_mask: _masked(g, m, -np.inf).cast("bool"), **_alike)
    case(f"rms_norm of 0 {_label}", lambda g, m=_mask: ops.rms_norm(
        _masked(g, m, 0.0), x_of(g, 4, name="w")), **_alike)  # fmt: skip
    case(f"sub of −inf {_label}", lambda g, m=_mask: _masked(g, m, -np.inf) - x_of(g, 4, name="y"),
         **_alike)  # fmt: skip
for _op in ("sum", "mean", "max", "min", "prod"):
    for _value in (0.0, 7.0, -np.inf):
        case(
            f"{_op} of {_value} in a band",
            lambda g, op=_op, value=_value: g.apply(
                op, _masked(g, _BAND, value), axes=(1,), keepdims=True
            ),
            exact=False,
        )
case("mul a scalar by 0", lambda g: x_of(g) * 0.0, exact=False)
case("scaled −inf", lambda g: _masked(g, _BAND, -np.inf) * 0.5, exact=False)
case("add −inf twice", lambda g: _masked(g, _BAND, -np.inf) + _masked(g, _GAPS, -np.inf, "y"),
     exact=False)  # fmt: skip
case("add −inf to inf", lambda g: _masked(g, _BAND, -np.inf) + _masked(g, _GAPS, np.inf, "y"),
     exact=False)  # fmt: skip
case("sub −inf from −inf", lambda g: _masked(g, _BAND, -np.inf) - _masked(g, _GAPS, -np.inf, "y"),
     exact=False)  # fmt: skip
case("sub a constant −inf", lambda g: _masked(g, _BAND, -np.inf) - g.constant(
    np.where(_GAPS, 1, -np.inf).astype(np.float32)), exact=False)  # fmt: skip
case("mul 0 by −inf", lambda g: _masked(g, _BAND, 0.0) * _masked(g, _GAPS, -np.inf, "y"),
     exact=False)  # fmt: skip
case("div 0 by constant 0", lambda g: _masked(g, _BAND, 0.0) / g.constant(
    np.where(_GAPS, 1, 0).astype(np.float32)), exact=False)  # fmt: skip
case("div 0 by 0", lambda g: _masked(g, _BAND, 0.0) / _masked(g, _GAPS, 0.0, "y"),
     low=1, exact=False)  # fmt: skip
case("where of known", lambda g: ops.where(g.constant(_GAPS), _masked(g, _BAND, -np.inf), -np.inf),
     exact=False)  # fmt: skip
case("all zeros", lambda g: _masked(g, np.zeros(4, dtype=bool), 0.0) @ x_of(g, 4, 2, name="y"),
     exact=False)  # fmt: skip
case("reshape beyond the runs", lambda g: x_of(g, 16, 16, 2)[:, ::2].reshape(16, 16), exact=False)
case("slice far apart", lambda g: x_of(g, 150)[::2], exact=False)

# --- windows --------------------------------------------------------------------------------------


def _conv_by_torch(attrs: Any, x: Array, weight: Array, *bias: Array) -> Array:
    import torch

    rank = x.ndim - 2
    pads = [n for pair in reversed(attrs["padding"]) for n in pair]
    padded = torch.nn.functional.pad(torch.tensor(x), pads)
    function = getattr(torch.nn.functional, f"conv{rank}d")
    options = {key: attrs[key] for key in ("stride", "dilation", "groups")}
    given = torch.tensor(bias[0]) if bias else None
    return np.asarray(function(padded, torch.tensor(weight), given, **options))


def _transposed_by_torch(attrs: Any, x: Array, weight: Array, *bias: Array) -> Array:
    import torch

    function = getattr(torch.nn.functional, f"conv_transpose{x.ndim - 2}d")
    options = {key: attrs[key] for key in ("stride", "dilation", "groups", "output_padding")}
    options["padding"] = tuple(low for low, _ in attrs["padding"])
    return np.asarray(function(*map(torch.tensor, (x, weight, *bias)), **options))


def _pool_by_torch(name: str, **options: Any) -> Callable[..., Any]:
    import torch

    def run(attrs: Any, x: Array) -> Array:
        function = getattr(torch.nn.functional, f"{name}{x.ndim - 2}d")
        return np.asarray(function(torch.tensor(x), **options))

    return run


def _weight(g: GraphBuilder, *shape: int) -> Node:
    """A constant, so that its taps at borders are no question."""
    numbers = np.arange(np.prod(shape)) % 5 - 2.0
    return g.constant(np.where(numbers == 0, 3, numbers).reshape(shape).astype("float32"))


_CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((1, 2, 5), (2, 2, 3), {}),
    "line padded": ((2, 1, 5), (2, 1, 3), {"padding": 1}),
    "causal": ((1, 1, 7), (1, 1, 3), {"padding": ((4, 0),), "dilation": 2}),
    "strided": ((1, 1, 7), (1, 1, 3), {"stride": 2, "padding": 1}),
    "far strides": ((1, 1, 8), (1, 1, 2), {"stride": 3}),
    "points": ((1, 2, 5, 4), (1, 2, 1, 1), {"stride": 2}),
    "dilated strides": ((1, 1, 9), (1, 1, 2), {"stride": 2, "dilation": 3, "padding": 1}),
    "groups": ((1, 4, 3), (2, 2, 2), {"groups": 2}),
    "depthwise": ((1, 2, 3, 4), (2, 1, 3, 3), {"groups": 2, "padding": 1}),
    "image": ((1, 2, 4, 4), (2, 2, 3, 3), {"padding": ((0, 1), (1, 0))}),
    "same": ((1, 1, 3, 4), (1, 1, 2, 3), {"padding": "same"}),
    "volume": ((1, 1, 2, 3, 3), (1, 1, 2, 2, 2), {"padding": (1, 0, 0)}),
}
for _name, (_x, _w, _options) in _CONVS.items():
    case(
        f"conv {_name}",
        lambda g, x=_x, w=_w, o=_options: ops.conv(x_of(g, *x), _weight(g, *w), **o),
        independent=_conv_by_torch,
    )
case(
    "conv weights",
    lambda g: ops.conv(x_of(g, 1, 2, 4), x_of(g, 2, 2, 2, name="w"), x_of(g, 2, name="b")),
    independent=_conv_by_torch,
)
case(
    "conv weights in groups",
    lambda g: ops.conv(
        x_of(g, 1, 2, 4), x_of(g, 2, 1, 2, name="w"), x_of(g, 2, name="b"), groups=2, padding=1
    ),
    exact=False,  # a tap that only ever sees padding counts as read
    independent=_conv_by_torch,
)
case(
    "conv far padding",
    lambda g: ops.conv(x_of(g, 1, 1, 2), _weight(g, 1, 1, 2), x_of(g, 1, name="b"), padding=4),
    independent=_conv_by_torch,
)
_TURNED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "doubled": ((1, 2, 3), (2, 1, 2), {"stride": 2}),
    "cut": ((1, 1, 4), (1, 2, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "gaps": ((1, 1, 3), (1, 1, 2), {"stride": 3, "output_padding": 2}),
    "dilated": ((1, 1, 4), (1, 1, 2), {"dilation": 3}),
    "groups": ((1, 4, 2), (4, 1, 2), {"groups": 2}),
    "image": ((1, 1, 2, 3), (1, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "volume": ((1, 1, 2, 2, 2), (1, 1, 2, 1, 2), {"stride": 2}),
}
for _name, (_x, _w, _options) in _TURNED.items():
    case(
        f"conv_transpose {_name}",
        lambda g, x=_x, w=_w, o=_options: ops.conv_transpose(x_of(g, *x), _weight(g, *w), **o),
        independent=_transposed_by_torch,
    )
case(
    "conv_transpose weights",
    lambda g: ops.conv_transpose(
        x_of(g, 1, 2, 3), x_of(g, 2, 2, 2, name="w"), x_of(g, 2, name="b"), stride=2
    ),
    exact=False,  # a tap counts as used by every output
    independent=_transposed_by_torch,
)
case(
    "conv_transpose weights in groups",
    lambda g: ops.conv_transpose(x_of(g, 1, 4, 3), x_of(g, 4, 2, 2, name="w"), groups=2),
    exact=False,  # a weight's columns are read for all groups
    independent=_transposed_by_torch,
)
_POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "pairs": ((1, 2, 4, 4), {"kernel_size": 2}),
    "overlapping": ((1, 1, 6, 5), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "line": ((2, 1, 7), {"kernel_size": 3, "stride": 1}),
    "up": ((1, 1, 6, 6), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "up padded": ((1, 1, 5), {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True}),
    "gaps": ((1, 1, 9), {"kernel_size": 2, "stride": 4}),
    "volume": ((1, 1, 2, 2, 4), {"kernel_size": (1, 2, 2)}),
}
for _name, (_x, _options) in _POOLS.items():
    _rest = {key: value for key, value in _options.items() if key != "kernel_size"}
    case(
        f"max_pool {_name}",
        lambda g, x=_x, k=_options["kernel_size"], o=_rest: ops.max_pool(x_of(g, *x), k, **o),
        independent=_pool_by_torch("max_pool", **_options),
    )
    if len(_x) == 4:
        case(
            f"sum_pool {_name}",
            lambda g, x=_x, k=_options["kernel_size"], o=_rest: ops.avg_pool(
                x_of(g, *x), k, **o
            ).inputs[0],
            independent=_pool_by_torch("avg_pool", divisor_override=1, **_options),
        )
case(
    "max_pool dilated",
    lambda g: ops.max_pool(x_of(g, 1, 1, 7), 2, stride=1, dilation=3),
    independent=_pool_by_torch("max_pool", kernel_size=2, stride=1, dilation=3),
)
case("max_pool int", lambda g: ops.max_pool(x_of(g, 1, 1, 4, dtype="int32"), 3, padding=1))


def _resampled(**options: Any) -> Callable[..., Any]:
    import torch

    return lambda attrs, x: np.asarray(torch.nn.functional.interpolate(torch.tensor(x), **options))


_UPSAMPLES: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "double": ((1, 2, 3), {"scale": 2.0}, {"scale_factor": 2.0}),
    "image": ((1, 1, 3, 4), {"size": (5, 7)}, {"size": (5, 7)}),
    "down": ((1, 1, 7), {"size": 3}, {"size": 3}),
    "exact": (
        (1, 1, 4), {"size": 7, "mode": "nearest_exact"}, {"size": 7, "mode": "nearest-exact"},
    ),
    "linear": ((1, 2, 4), {"size": 7, "mode": "linear"}, {"size": 7, "mode": "linear"}),
    "bilinear": (
        (1, 1, 3, 4), {"scale": 2.0, "mode": "linear"}, {"scale_factor": 2.0, "mode": "bilinear"},
    ),
    "bilinear odd": (
        (1, 1, 4, 5), {"scale": 1.7, "mode": "linear"}, {"scale_factor": 1.7, "mode": "bilinear"},
    ),
    "a signal twice as long": (
        (1, 2, 7), {"scale": 2.0, "mode": "linear"}, {"scale_factor": 2.0, "mode": "linear"},
    ),
    "corners": (
        (1, 1, 3, 3), {"size": (5, 4), "mode": "linear", "align_corners": True},
        {"size": (5, 4), "mode": "bilinear", "align_corners": True},
    ),
    "trilinear": (
        (1, 1, 2, 2, 3), {"size": (3, 2, 5), "mode": "linear"},
        {"size": (3, 2, 5), "mode": "trilinear"},
    ),
    "bicubic": (
        (1, 1, 7, 5), {"size": (5, 9), "mode": "cubic"}, {"size": (5, 9), "mode": "bicubic"},
    ),
    "bicubic by a scale": (
        (1, 1, 4, 6), {"scale": 1.7, "mode": "cubic"}, {"scale_factor": 1.7, "mode": "bicubic"},
    ),
    "bicubic corners": (
        (1, 1, 3, 6), {"size": (5, 4), "mode": "cubic", "align_corners": True},
        {"size": (5, 4), "mode": "bicubic", "align_corners": True},
    ),
}  # fmt: skip
for _name, (_x, _options, _torchs) in _UPSAMPLES.items():
    case(
        f"upsample {_name}",
        lambda g, x=_x, o=_options: ops.upsample(x_of(g, *x), **o),
        exact=_name not in ("bilinear", "trilinear", "a signal twice as long")
        and "cubic" not in _name,  # matrices that are mostly open
        independent=_resampled(**_torchs),
    )


def _folded(**options: Any) -> Callable[..., Any]:
    import torch

    def fold(attrs: Any, x: Array) -> Array:
        columns = torch.tensor(x).flatten(1, 3).flatten(2)
        made = torch.nn.functional.fold(columns, attrs["size"], x.shape[2:4], **options)
        return np.asarray(made)

    return fold


for _name, _x, _size, _kernel, _options in (
    ("shared", (1, 4, 4), (3, 3), 2, {}),
    ("strided", (2, 8, 9), (5, 4), 2, {"stride": (2, 1), "padding": (1, 0)}),
    ("gaps", (1, 4, 4), (5, 5), (2, 2), {"stride": 2, "dilation": 2, "padding": 0}),
):
    case(
        f"fold {_name}",
        lambda g, x=_x, s=_size, k=_kernel, o=_options: ops.fold(x_of(g, *x), s, kernel=k, **o),
        independent=_folded(**_options),
    )

# --- norms over channels, activations -------------------------------------------------------------

case(
    "channel_affine",
    lambda g: ops.channel_affine(x_of(g, 2, 3, 2), x_of(g, 3, name="s"), x_of(g, 3, name="t")),
    independent=lambda attrs, x, s, t: x * s[None, :, None] + t[None, :, None],
)


def _group_norm_by_torch(attrs: Any, x: Array, *weights: Array) -> Array:
    import torch

    given = map(torch.tensor, weights)
    return np.asarray(
        torch.nn.functional.group_norm(torch.tensor(x), attrs["groups"], *given, eps=attrs["eps"])
    )


case("group_norm", lambda g: ops.group_norm(x_of(g, 2, 4, 3), 2), exact=False,
     independent=_group_norm_by_torch)  # fmt: skip
case(
    "group_norm weights",
    lambda g: ops.group_norm(x_of(g, 1, 4, 2, 2), 4, x_of(g, 4, name="w"), x_of(g, 4, name="b")),
    independent=_group_norm_by_torch,
)
_ACTIVATIONS: dict[str, tuple[Callable[[Node], Node], Callable[..., Any]]] = {
    "clamp": (lambda x: ops.clamp(x, -1.0, 2.0), _functional("hardtanh", min_val=-1, max_val=2)),
    "leaky_relu": (
        lambda x: ops.leaky_relu(x, 0.25),
        _functional("leaky_relu", negative_slope=0.25),
    ),
    "elu": (lambda x: ops.elu(x, 1.5), _functional("elu", alpha=1.5)),
    "softplus": (lambda x: ops.softplus(x, 2.0, 3.0), _functional("softplus", beta=2, threshold=3)),
    "hardsigmoid": (ops.hardsigmoid, _functional("hardsigmoid")),
    "hardswish": (ops.hardswish, _functional("hardswish")),
    "mish": (ops.mish, _functional("mish")),
}
case(
    "prelu",
    lambda g: ops.prelu(x_of(g, 2, 3, 4), x_of(g, 3, 1, name="slope")),
    exact=False,  # of what is positive, no slope moves anything
    independent=lambda attrs, x, slope: np.where(x > 0, x, x * slope),
)
for _name, (_make, _other) in _ACTIVATIONS.items():
    case(_name, lambda g, make=_make: make(x_of(g, 2, 3)), independent=_other)
for _op in ("tan", "sinh", "cosh", "arctan", "expm1", "exp2", "trunc"):
    case(_op, lambda g, op=_op: g.apply(op, x_of(g, 2, 3) * 0.75), independent=_torch(_op))
for _op in ("log1p", "log2", "log10"):
    case(_op, lambda g, op=_op: g.apply(op, x_of(g, 2, 3)), low=1, independent=_torch(_op))
for _op in ("arcsin", "arccos"):
    case(_op, lambda g, op=_op: g.apply(op, x_of(g, 2, 3) * 0.25), independent=_torch(_op))
for _op in ("isnan", "isinf"):
    case(_op, lambda g, op=_op: g.apply(op, 1.0 / x_of(g, 2, 3)), exact=False,
         independent=_torch(_op))  # fmt: skip
case("arctan2", lambda g: ops.arctan2(x_of(g, 2, 3), x_of(g, 3, name="y")), low=1,
     independent=_torch("arctan2"))  # fmt: skip
case(
    "logical_xor",
    lambda g: ops.logical_xor(x_of(g, 2, 3, dtype="bool"), x_of(g, 3, dtype="bool", name="y")),
    independent=_torch("logical_xor"),
)

ROWS_OF_STEPS = (("mul", 0, 1), ("max", 3), ("sub", 3, 4), ("number", 0.5), ("mul", 5, 6),
                 ("less", 0, 2), ("where", 8, 7, 1), ("sum", 9), ("add", 9, 10))  # fmt: skip


def _stepwise(attrs: Any, x: Array, weight: Array, bound: Array) -> Array:
    scaled = x * weight
    low = np.where(x < bound, (scaled - scaled.max(-1, keepdims=True)) * 0.5, weight)
    return np.asarray(low + low.sum(-1, keepdims=True))


case(
    "rowwise",
    lambda g: ops.rowwise(
        ROWS_OF_STEPS, x_of(g, 2, 3), x_of(g, 3, name="w"), x_of(g, 2, 1, name="y")
    ),
    independent=_stepwise,
)
case(
    "rowwise, elements",
    lambda g: ops.rowwise((("neg", 0), ("mul", 2, 1)), x_of(g, 2, 3), x_of(g, 3, name="w")),
    independent=lambda attrs, x, w: -x * w,
)

# --- products with matrices that an index names ---------------------------------------------------


def _each_by_its_own(attrs: Any, weight: Array, x: Array, index: Array) -> Array:
    return np.stack([np.einsum("k,nk->n", row, weight[i]) for row, i in zip(x, index, strict=True)])


case(
    "gather_linear",
    lambda g: ops.gather_linear(
        x_of(g, 5, 3), x_of(g, 4, 2, 3, name="w"), x_of(g, 5, dtype="int64", name="i")
    ),
    below=4, independent=_each_by_its_own,
)  # fmt: skip
case(
    "gather_linear of a batch",
    lambda g: ops.gather_linear(
        x_of(g, 2, 3, 2), x_of(g, 4, 3, 2, name="w"), x_of(g, 2, 3, dtype="int32", name="i")
    ),
    below=4,
)  # fmt: skip

# --- recurrent steps ------------------------------------------------------------------------------


def _recurrent(op: str, g: GraphBuilder) -> Node:
    gates, states = {"lstm": (4, 2), "gru": (3, 1), "rnn": (1, 1)}[op]
    more = {"activation": "tanh"} if op == "rnn" else {}
    return g.apply(
        op, x_of(g, 3, 2, gates * 2) * 0.25, x_of(g, gates * 2, 2, name="w") * 0.25,
        x_of(g, gates * 2, name="b") * 0.25, x_of(g, 1, 2, states * 2, name="s") * 0.25, **more,
    )  # fmt: skip


def _recurrent_by_torch(op: str) -> Callable[..., Any]:
    """PyTorch's own layer, of which the weights of the input pass on what the gates are given."""

    def run(attrs: Any, *arrays: Array) -> Any:
        import torch

        gates, weight, bias, state = map(torch.tensor, arrays)
        passes_on, none, units = torch.eye(len(bias)), torch.zeros(len(bias)), weight.shape[1]
        weights, flags = [passes_on, weight, none, bias], (True, 1, 0.0, False, False, False)
        if op != "lstm":
            layer = torch.gru if op == "gru" else torch.rnn_tanh
            return layer(gates, state, weights, *flags)[0].numpy()
        h, c, rows = state[..., :units].contiguous(), state[..., units:].contiguous(), []
        for row in gates:
            _, h, c = torch.lstm(row[None], (h, c), weights, *flags)
            rows.append(torch.cat([h[0], c[0]], -1))
        return torch.stack(rows).numpy()

    return run


for _op in ("lstm", "gru", "rnn"):
    case(_op, partial(_recurrent, _op), exact=False, independent=_recurrent_by_torch(_op))
case(
    "rnn of relu",
    lambda g: g.apply(
        "rnn", x_of(g, 3, 1, 2), x_of(g, 2, 2, name="w"), x_of(g, 2, name="b"),
        x_of(g, 1, 1, 2, name="s"), activation="relu",
    ),
    exact=False,
)  # fmt: skip


def _recurrence(attrs: Any, decay: Array, added: Array, state: Array) -> Array:
    """By a matrix for each element: what each row adds to each that follows."""
    rows, found = len(added), np.zeros(added.shape)
    for element in np.ndindex(*added.shape[1:]):
        a, b = decay[:, *element], np.concatenate([state[:, *element], added[:, *element]])
        for i in range(rows):
            found[i, *element] = sum(np.prod(a[j : i + 1]) * b[j] for j in range(i + 2))
    return found


case(
    "linear_recurrence",
    lambda g: g.apply(
        "linear_recurrence", x_of(g, 4, 2, 3, name="a") * 0.25, x_of(g, 4, 2, 3),
        x_of(g, 1, 2, 3, name="s"),
    ),
    independent=_recurrence,
)  # fmt: skip
case(
    "linear_recurrence of one decay",
    lambda g: ops.linear_recurrence(
        x_of(g, 3, 1, name="a"), x_of(g, 3, 2), x_of(g, 1, 2, name="s")
    ),
    independent=_recurrence,
)

# --- order, elements by index ---------------------------------------------------------------------

case("cumsum", lambda g: ops.cumsum(x_of(g, 3, 4), 1),
     independent=lambda attrs, x: np.add.accumulate(x, 1))  # fmt: skip
case("cumsum int", lambda g: ops.cumsum(x_of(g, 4, 2, dtype="int32"), 0),
     independent=lambda attrs, x: np.add.accumulate(x, 0))  # fmt: skip
for _op in ("arg_max", "arg_min"):
    case(_op, lambda g, op=_op: g.apply(op, x_of(g, 3, 4), axis=1), exact=False,
         independent=lambda attrs, x, op=_op: getattr(np, op.replace("_", ""))(x, 1)[:, None]
         )  # fmt: skip
for _op in ("top_values", "top_indices"):
    for _largest in (False, True):
        case(
            f"{_op} {'largest' if _largest else 'smallest'}",
            lambda g, op=_op, largest=_largest: g.apply(
                op, x_of(g, 2, 4), k=3, axis=1, largest=largest
            ),
            exact=False,
        )


def aten_call(name: str, *arguments: Any) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
    return (f"{name}.default", arguments, ())


X0, X1 = ("input", 0), ("input", 1)
SPECTRUM = (aten_call("fft_rfft", X0), aten_call("abs", ("result", 0, 0)))
case("opaque", lambda g: ops.opaque([x_of(g, 3, 3)], (aten_call("linalg_det", X0),), ((0, 0),))[0],
     exact=False, independent=lambda attrs, x: np.linalg.det(x))  # fmt: skip
case("opaque, complex inside", lambda g: ops.opaque([x_of(g, 2, 4)], SPECTRUM, ((1, 0),))[0],
     exact=False, independent=lambda attrs, x: np.abs(np.fft.rfft(x)))  # fmt: skip
case("opaque, two inputs", lambda g: ops.opaque([x_of(g, 2, 3), x_of(g, 4, 3, name="y")], (
     aten_call("cdist", X0, X1),), ((0, 0),))[0], exact=False,
     independent=lambda attrs, x, y: ((x[:, None] - y) ** 2).sum(-1) ** 0.5)  # fmt: skip
case("opaque, several results", lambda g: ops.opaque([x_of(g, 2, 3)], (
     aten_call("frac", X0), aten_call("square", ("result", 0, 0))), ((0, 0), (1, 0)),
     )[0].inputs[0].inputs[0], exact=False)  # fmt: skip
for _rows in ([0, 1, 1, 2], [3, 0, 0, 2], [1], [0, 2, 3], [-1, 0]):
    case(
        f"gather constant {_rows}",
        lambda g, rows=_rows: ops.gather(x_of(g, 4, 2), g.constant(np.array(rows))),
        exact=_rows != [-1, 0],
        independent=lambda attrs, x, i: x[i],
    )
_FILTER = np.float32([[1, 2, 0, 0, 0], [0, 1, 2, 0, 0], [0, 0, 1, 2, 0], [0, 0, 0, 1, 2]])
case("matmul by a band", lambda g: g.constant(_FILTER) @ x_of(g, 5, 2),
     independent=_torch("matmul"))  # fmt: skip
case("matmul of a band", lambda g: x_of(g, 2, 4) @ g.constant(_FILTER),
     independent=_torch("matmul"))  # fmt: skip
case(
    "gather_elements",
    lambda g: ops.gather_elements(x_of(g, 3, 3), x_of(g, 2, 3, dtype="int64", name="i"), 0),
    below=3,
    independent=lambda attrs, x, i: np.choose(i, x[:, None, :]),
)
case(
    "gather_elements fewer",
    lambda g: ops.gather_elements(x_of(g, 3, 3), x_of(g, 2, 2, dtype="int32", name="i"), 1),
    below=3,
)
case(
    "gather_elements constant",
    lambda g: ops.gather_elements(x_of(g, 3, 3), g.constant(np.array([[0, 2, -1], [0, 1, 0]])), 0),
    exact=False,
)
for _adds in (False, True):
    case(
        f"scatter_elements {'added' if _adds else 'put'}",
        lambda g, adds=_adds: g.apply(
            "scatter_elements", x_of(g, 3, 3), x_of(g, 1, 2, dtype="int64", name="i"),
            x_of(g, 1, 2, name="v"), axis=0, add=adds,
        ),
        below=3,
        exact=False,
    )  # fmt: skip
