"""Element-wise ops: PyTorch's promotion of dtypes, then one op of ours or a few."""

from __future__ import annotations

from typing import Any

from tgbench.graph import ops
from tgbench.graph.graph import Node, Operand, Scalar
from tgbench.sources.torch.table import CallSite, Rule, lowers, promoted, refuse


def _unary(name: str) -> Rule:
    def rule(site: CallSite, x: Operand) -> Node:
        return site.builder.apply(name, site.node(x, site.dtype))

    return rule


for _aten, _name in {
    "abs": "abs", "ceil": "ceil", "cos": "cos", "erf": "erf", "exp": "exp", "floor": "floor",
    "log": "log", "neg": "neg", "reciprocal": "reciprocal", "round": "round", "rsqrt": "rsqrt",
    "sigmoid": "sigmoid", "sign": "sign", "sin": "sin", "sqrt": "sqrt", "tanh": "tanh",
    "acos": "arccos", "asin": "arcsin", "atan": "arctan", "cosh": "cosh", "exp2": "exp2",
    "expm1": "expm1", "log10": "log10", "log1p": "log1p", "log2": "log2", "sinh": "sinh",
    "tan": "tan", "trunc": "trunc",
}.items():  # fmt: skip
    lowers(f"aten.{_aten}.default")(_unary(_name))


def _binary(name: str) -> Rule:
    def rule(site: CallSite, a: Operand, b: Operand) -> Node:
        return site.builder.apply(name, site.node(a, site.dtype), site.node(b, site.dtype))

    return rule


for _aten, _name in {
    "mul.Tensor": "mul", "mul.Scalar": "mul", "maximum.default": "maximum",
    "minimum.default": "minimum", "max.other": "maximum", "min.other": "minimum",
    "atan2.default": "arctan2",
    "remainder.Tensor": "mod", "remainder.Scalar": "mod",
}.items():  # fmt: skip
    lowers(f"aten.{_aten}")(_binary(_name))


@lowers("aten.add.Tensor", "aten.add.Scalar")
def _add(site: CallSite, a: Operand, b: Operand, alpha: Scalar = 1) -> Node:
    return site.node(a, site.dtype) + _scaled(site, b, alpha)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(site: CallSite, a: Operand, b: Operand, alpha: Scalar = 1) -> Node:
    return site.node(a, site.dtype) - _scaled(site, b, alpha)


@lowers("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(site: CallSite, a: Operand, b: Operand, alpha: Scalar = 1) -> Node:
    return site.node(b, site.dtype) - _scaled(site, a, alpha)


def _scaled(site: CallSite, value: Operand, alpha: Scalar) -> Node:
    node = site.node(value, site.dtype)
    return node if alpha == 1 else node * site.node(alpha, site.dtype)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def _div(site: CallSite, a: Operand, b: Operand) -> Node:
    return site.node(a, site.dtype) / site.node(b, site.dtype)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(site: CallSite, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode == "floor":
        return _floor_divide(site, a, b)
    ratio = _div(site, a, b)
    if rounding_mode is None:
        return ratio
    refuse(
        site.dtype.startswith(("int", "uint")),
        "rounding_mode='trunc' of integers; use 'floor', which agrees for positive numbers",
    )
    return ops.trunc(ratio)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divide(site: CallSite, a: Operand, b: Operand) -> Node:
    return site.node(a, site.dtype) // site.node(b, site.dtype)


@lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(site: CallSite, a: Operand, b: Operand) -> Node:
    return site.node(a, site.dtype) ** site.node(b, site.dtype)


@lowers("aten.pow.Tensor_Scalar")
def _pow_scalar(site: CallSite, x: Node, exponent: Scalar) -> Node:
    x = x.cast(site.dtype)
    if exponent in (1, 2, 3):
        return x if exponent == 1 else x * x if exponent == 2 else x * x * x
    if exponent in (0.5, -0.5):
        return ops.sqrt(x) if exponent > 0 else ops.rsqrt(x)
    return ops.reciprocal(x) if exponent == -1 else _pow(site, x, exponent)


@lowers("aten.square.default")
def _square(site: CallSite, x: Node) -> Node:
    return x * x


# --- comparisons and logic ----------------------------------------------------------------------


def _comparison(name: str) -> Rule:
    def rule(site: CallSite, a: Operand, b: Operand) -> Node:
        dtype = promoted(a, b)
        return site.builder.apply(name, site.node(a, dtype), site.node(b, dtype))

    return rule


for _aten, _name in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}.items():  # fmt: skip
    lowers(f"aten.{_aten}.Tensor", f"aten.{_aten}.Scalar")(_comparison(_name))


def _as_bool(site: CallSite, x: Operand) -> Node:
    if isinstance(x, Node) and x.dtype != "bool":
        return site.builder.apply("not_equal", x, site.node(0, x.dtype))
    return site.node(x, "bool")


@lowers("aten.logical_and.default")
def _and(site: CallSite, a: Operand, b: Operand) -> Node:
    return _as_bool(site, a) & _as_bool(site, b)


@lowers("aten.logical_or.default")
def _or(site: CallSite, a: Operand, b: Operand) -> Node:
    return _as_bool(site, a) | _as_bool(site, b)


@lowers("aten.logical_xor.default")
def _xor(site: CallSite, a: Operand, b: Operand) -> Node:
    return site.builder.apply("not_equal", _as_bool(site, a), _as_bool(site, b))


@lowers("aten.logical_not.default")
def _not(site: CallSite, x: Operand) -> Node:
    return ~_as_bool(site, x)


def _of_bools(rule: Rule) -> Rule:
    def checked(site: CallSite, *operands: Operand) -> Any:
        refuse(
            site.dtype != "bool",
            f"bitwise logic of {site.dtype}; compare first (`x != 0`) to get bool",
        )
        return rule(site, *operands)

    return checked


_LOGIC: dict[str, Rule] = {
    "bitwise_and.Tensor": _and, "bitwise_and.Scalar": _and, "__and__.Tensor": _and,
    "__and__.Scalar": _and, "bitwise_or.Tensor": _or, "bitwise_or.Scalar": _or,
    "__or__.Tensor": _or, "__or__.Scalar": _or, "bitwise_xor.Tensor": _xor,
    "__xor__.Tensor": _xor, "bitwise_not.default": _not,
}  # fmt: skip
for _aten, _logical in _LOGIC.items():
    lowers(f"aten.{_aten}")(_of_bools(_logical))


@lowers("aten.isnan.default")
def _isnan(site: CallSite, x: Node) -> Node:
    return ops.isnan(x)


@lowers("aten.isinf.default")
def _isinf(site: CallSite, x: Node) -> Node:
    return ops.isinf(x)


# --- choices ------------------------------------------------------------------------------------


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def _where(site: CallSite, condition: Node, a: Operand, b: Operand) -> Node:
    chosen = _as_bool(site, condition)
    return site.builder.apply("where", chosen, site.node(a, site.dtype), site.node(b, site.dtype))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(site: CallSite, x: Node, mask: Node, value: Operand) -> Node:
    return _where(site, mask, value, x)


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
def _clamp(
    site: CallSite, x: Node, low: Operand | None = None, high: Operand | None = None
) -> Node:
    result = x.cast(site.dtype)
    if low is not None:
        result = ops.maximum(result, site.node(low, site.dtype))
    return result if high is None else ops.minimum(result, site.node(high, site.dtype))


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def _clamp_min(site: CallSite, x: Node, low: Operand) -> Node:
    return _clamp(site, x, low)


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _clamp_max(site: CallSite, x: Node, high: Operand) -> Node:
    return _clamp(site, x, None, high)


@lowers("aten.addcmul.default")
def _addcmul(site: CallSite, x: Node, a: Node, b: Node, *, value: Scalar = 1) -> Node:
    product = a.cast(site.dtype) * b.cast(site.dtype)
    return x.cast(site.dtype) + (product if value == 1 else product * site.node(value, site.dtype))


@lowers("aten.outer.default")
def _outer(site: CallSite, a: Node, b: Node) -> Node:
    return a.cast(site.dtype).reshape(-1, 1) * b.cast(site.dtype).reshape(1, -1)


# --- dtypes, and what does nothing ---------------------------------------------------------------


@lowers(
    "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other",
    "aten._to_copy.default",    "aten.type_as.default",
)  # fmt: skip
def _cast(site: CallSite, x: Node, *_: Any, **__: Any) -> Node:
    """Wherever a tensor goes, the graph has one device: only the dtype is left."""
    return x.cast(site.dtype)


@lowers(
    "aten.alias.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default",
    "aten.detach_.default", "aten.lift_fresh_copy.default",
    "aten.positive.default", "aten.resolve_conj.default", "aten.resolve_neg.default",
)  # fmt: skip
def _same(site: CallSite, x: Node, **_: Any) -> Node:
    return x


@lowers("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def _dropout(site: CallSite, x: Node, p: float, train: bool) -> Node:
    refuse(train and p > 0, "dropout that is on is random; call `module.eval()` before export")
    return x


@lowers("aten.fill.Scalar", "aten.fill.Tensor", "aten.copy.default")
def _fill(site: CallSite, x: Node, value: Operand, *_: Any) -> Node:
    filled = site.node(value, site.dtype)
    return filled if filled.shape == site.shape else filled.expand(*site.shape)
