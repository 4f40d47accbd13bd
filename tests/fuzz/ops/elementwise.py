"""Element-wise ops, casts, choices, and the functions of activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fuzz import bounded as b
from fuzz.bounded import FLOATS, INTEGERS, Bounded
from fuzz.drawing import Drawing
from fuzz.table import Unfit, op, pattern

Fits = Callable[[Bounded], bool]


def _within(low: float, high: float) -> Fits:
    return lambda x: bool(((x.value >= low) & (x.value <= high)).all())


def _unary(name: str, fits: Fits | None = None, kinds: str = "floats") -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        return d.apply(name, d.floats(fits=fits) if kinds == "floats" else d.numbers())

    return draw


def _filled(name: str, kind: str) -> Callable[[Drawing], int]:
    """Of a leaf whose numbers stay in the domain whatever a run edits."""

    def draw(d: Drawing) -> int:
        x = d.leaf(d.shape(), fill={"kind": kind})
        return d.apply(name, d.apply("abs", x) if kind == "positive" and d.chance(0.3) else x)

    return draw


_WAVES = {"sin": torch.sin, "cos": torch.cos, "tan": torch.tan}
_SMOOTH = {
    "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid, "arctan": torch.arctan,
}  # fmt: skip
_GROWING = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "sinh": torch.sinh,
    "cosh": torch.cosh,
}  # fmt: skip
_POSITIVE = {
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
}  # fmt: skip
_UNIT = {"arcsin": torch.arcsin, "arccos": torch.arccos}


def _function(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Bounded], Bounded]:
    return lambda x: b.smooth(function, x)


for _name, _torch in _WAVES.items():
    op(_name, f"ops.{_name}({{0}})", lambda x, wave=_torch: b.smooth(wave, x, waves=True),
       _unary(_name), 0.5)  # fmt: skip
for _name, _torch in _SMOOTH.items():
    op(_name, f"ops.{_name}({{0}})", _function(_torch), _unary(_name), 0.5)
for _name, _torch in _GROWING.items():
    op(_name, f"ops.{_name}({{0}})", _function(_torch), _unary(_name, _within(-30, 9)), 0.5)
for _name, _torch in _POSITIVE.items():
    op(_name, f"ops.{_name}({{0}})", _function(_torch), _filled(_name, "positive"), 0.4)
for _name, _torch in _UNIT.items():
    op(_name, f"ops.{_name}({{0}})", _function(_torch), _filled(_name, "unit"), 0.3)

_STEPPED = {
    "floor": torch.floor, "ceil": torch.ceil, "round_": torch.round, "trunc": torch.trunc,
}  # fmt: skip


def _steps(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Bounded], Bounded]:
    return lambda x: b.stepped(function, x)


for _name, _torch in _STEPPED.items():
    op(_name, f"ops.{_name}({{0}})", _steps(_torch), _unary(_name), 0.4)
op("sign", "ops.sign({0})", lambda x: b.stepped(torch.sign, x), _unary("sign", kinds="numbers"))
op("neg", "-{0}", b.neg, _unary("neg", kinds="numbers"))
op("abs", "abs({0})", b.absolute, _unary("abs", kinds="numbers"))


op("isnan", "ops.isnan({0})", lambda x: b.stepped(torch.isnan, x, "bool"), _unary("isnan"), 0.3)
op("isinf", "ops.isinf({0})", lambda x: b.stepped(torch.isinf, x, "bool"), _unary("isinf"), 0.3)


# --- binary ---------------------------------------------------------------------------------------


def _pair(name: str, *, bools: bool = False) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.anything() if bools else d.numbers()
        y = d.partner(x)
        return d.apply(name, *d.random.sample([x, y], 2))

    return draw


op("add", "{0} + {1}", b.add, _pair("add"), 3)
op("sub", "{0} - {1}", b.sub, _pair("sub"), 2)
op("mul", "{0} * {1}", b.mul, _pair("mul"), 3)
op("maximum", "ops.maximum({0}, {1})",
   lambda x, y: b.chosen(torch.maximum, x, y), _pair("maximum"))  # fmt: skip
op("minimum", "ops.minimum({0}, {1})",
   lambda x, y: b.chosen(torch.minimum, x, y), _pair("minimum"))  # fmt: skip


def _over_positive(name: str, *, floats: bool) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.floats() if floats else d.numbers()
        y = d.partner(x, {"kind": "positive"})
        return d.apply(name, x, y)

    return draw


op("div", "{0} / {1}", b.div, _over_positive("div", floats=True), 2)


def _whole(function: Callable[..., torch.Tensor]) -> Callable[[Bounded, Bounded], Bounded]:
    """Exact for whole numbers; for others a rounding may go either way."""

    def compute(x: Bounded, y: Bounded) -> Bounded:
        zero = y.value == 0
        value = function(x.value, torch.where(zero, torch.ones_like(y.value), y.value))
        small = (x.value.abs() < 1e6) & (x.value == x.value.round()) & (y.value == y.value.round())
        sure = small & (x.error == 0) & (y.error == 0) & ~zero
        return Bounded(value, b.beyond(~sure), x.dtype)

    return compute


op("floordiv", "{0} // {1}", _whole(torch.floor_divide), _over_positive("floordiv", floats=False))
op("mod", "{0} % {1}", _whole(torch.remainder), _over_positive("mod", floats=False))


def _power(d: Drawing) -> int:
    if d.chance(0.5):
        x = d.numbers()
        return d.apply("pow_number", x, number=d.pick([0, 1, 2, 3]))
    x = d.leaf(d.shape(), fill={"kind": "positive"})
    return d.apply("pow", x, d.partner(x))


def _power_of_number(x: Bounded, number: float) -> Bounded:
    if not x.is_float:
        return b.power(x, b.scalar(number, x))
    result = b.exact(torch.ones(x.shape), x.dtype)
    for _ in range(int(number)):
        result = b.mul(result, x)
    slack = 32 * b.ROUNDOFF[x.dtype] * result.value.abs() + b.TINY[x.dtype]
    return Bounded(result.value, torch.where(result.error > 0, result.error + slack, 0.0), x.dtype)


op("pow", "{0} ** {1}", b.power, _power, 0.5)
op("pow_number", "{0} ** {number}", _power_of_number, _power, 0.5)


def _arctan2(x: Bounded, y: Bounded) -> Bounded:
    value = torch.arctan2(x.value, y.value)
    sure = (x.error == 0) & (y.error == 0) & (x.value != 0)
    error = torch.where(sure, 32 * b.ROUNDOFF[x.dtype] * (1 + value.abs()), b.INF)
    return Bounded(value, error, x.dtype)


op("arctan2", "ops.arctan2({0}, {1})", _arctan2, _over_positive("arctan2", floats=True), 0.3)

_COMPARISONS = {
    "equals": ("{0}.equals({1})", torch.eq), "less": ("{0} < {1}", torch.lt),
    "less_equal": ("{0} <= {1}", torch.le), "greater": ("{0} > {1}", torch.gt),
    "greater_equal": ("{0} >= {1}", torch.ge),
    "not_equal": ("g.apply('not_equal', {0}, {1})", torch.ne),
}  # fmt: skip


def _comparison(function: Callable[..., torch.Tensor]) -> Callable[[Bounded, Bounded], Bounded]:
    return lambda x, y: b.compared(function, x, y)


for _name, (_code, _torch) in _COMPARISONS.items():
    op(_name, _code, _comparison(_torch), _pair(_name), 0.5)


def _logical(function: Callable[..., torch.Tensor]) -> Callable[..., Bounded]:
    def compute(*xs: Bounded) -> Bounded:
        truths = [b.cast(x, "bool") for x in xs]
        value = function(*(x.value for x in truths))
        error = sum(x.error for x in truths) + torch.zeros(value.shape)
        return Bounded(value, error.to(torch.float64), "bool")

    return compute


def _truths(name: str, count: int) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        shape = d.shape()
        return d.apply(name, *(d.booleans(shape) for _ in range(count)))

    return draw


op("and", "{0} & {1}", _logical(torch.logical_and), _truths("and", 2), 0.5)
op("or", "{0} | {1}", _logical(torch.logical_or), _truths("or", 2), 0.5)
op("xor", "ops.logical_xor({0}, {1})", _logical(torch.logical_xor), _truths("xor", 2), 0.5)
op("not", "~{0}", _logical(torch.logical_not), _truths("not", 1), 0.5)


# --- with a number --------------------------------------------------------------------------------


def _number(d: Drawing, x: int) -> float:
    whole = d.sample[x].dtype in INTEGERS
    choices: list[float] = [0, 1, 2, 3] if whole else [0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 0.1]
    return d.pick(choices)


def _with_number(name: str) -> Callable[[Drawing], int]:
    def draw(d: Drawing) -> int:
        x = d.numbers()
        return d.apply(name, x, number=_number(d, x))

    return draw


op("add_number", "{0} + {number}", b.add_number, _with_number("add_number"))
op("number_sub", "{number} - {0}",
   lambda x, number: b.sub(b.scalar(number, x), x), _with_number("number_sub"))  # fmt: skip
op("mul_number", "{0} * {number}", b.mul_number, _with_number("mul_number"), 2)
op("maximum_number", "ops.maximum({0}, {number})",
   lambda x, number: b.clamp(x, number, None), _with_number("maximum_number"))  # fmt: skip
op("greater_number", "{0} > {number}",
   lambda x, number: b.compared(torch.gt, x, b.scalar(number, x)),
   _with_number("greater_number"))  # fmt: skip


# --- on another device ----------------------------------------------------------------------------


def _there(d: Drawing) -> int:
    return d.apply("elsewhere", d.numbers(), device=d.pick(["cpu:1", "cpu:2"]))


op("elsewhere", "ops.copy_to(abs(ops.copy_to({0}, {device})))",
   lambda x, device: b.absolute(x), _there)  # fmt: skip


# --- casts, choices -------------------------------------------------------------------------------


def _cast(d: Drawing) -> int:
    x = d.anything()
    dtypes = [*FLOATS, *INTEGERS, "bool", d.dtype, d.dtype, d.dtype, d.dtype]
    dtype = d.pick([name for name in dtypes if name != d.sample[x].dtype])
    return d.apply("cast", x, dtype=dtype)


op("cast", "{0}.cast({dtype})", b.cast, _cast, 2)


def _where(d: Drawing) -> int:
    x = d.anything()
    y = d.partner(x)
    shape = torch.broadcast_shapes(d.sample[x].shape, d.sample[y].shape)
    return d.apply("where", d.booleans(shape), x, y)


op("where", "ops.where({0}, {1}, {2})", b.where, _where, 2)


def _where_number(condition: Bounded, x: Bounded, number: float) -> Bounded:
    return b.where(condition, x, b.scalar(number, x))


def _masked(d: Drawing) -> int:
    x = d.floats()
    mask = d.mask(d.smaller(d.sample[x].shape), "bool", False, True)
    return d.apply("where_number", mask, x, number=d.pick([0.0, 0.0, float("-inf"), 1.0]))


op("where_number", "ops.where({0}, {1}, {number})", _where_number, _masked, 2)


def _zeroed(d: Drawing) -> int:
    """Times a mask of zeros and ones."""
    x = d.floats(1)
    return d.apply("mul", x, d.mask(d.sample[x].shape, d.dtype, 0.0, 1.0))


pattern("zeroed", _zeroed)


def soft(d: Drawing) -> Any:
    """What an additive mask holds where it is closed."""
    return d.pick([float("-inf"), float("-inf"), "min", -1e30 if d.dtype != "float16" else "min"])


def _added_mask(d: Drawing) -> int:
    x = d.floats(2)
    return d.apply("add", x, d.mask(d.sample[x].shape, d.dtype, soft(d), 0.0))


pattern("added mask", _added_mask)


# --- activations ----------------------------------------------------------------------------------


def _gelu(x: Bounded, approximate: str) -> Bounded:
    half = b.mul_number(x, 0.5)
    if approximate == "tanh":
        cubic = b.add(x, b.mul_number(b.mul(b.mul(x, x), x), 0.044715))
        inner = b.smooth(torch.tanh, b.mul_number(cubic, (2 / torch.pi) ** 0.5))
    else:
        inner = b.smooth(torch.erf, b.mul_number(x, 0.5**0.5))
    # PyTorch's vectors have an erf for this that is as good beside 1, not beside a small result.
    beside_one = 8 * b.ROUNDOFF[x.dtype] * (inner.error > 0)
    inner = replace(inner, error=inner.error + beside_one)
    return b.mul(half, b.add_number(inner, 1.0))


def silu(x: Bounded) -> Bounded:
    return b.mul(x, b.sigmoid(x))


def _leaky(x: Bounded, slope: float) -> Bounded:
    return b.where(positive(x), x, b.mul_number(x, slope))


def positive(x: Bounded) -> Bounded:
    """Whether x > 0; functions of both sides meet at 0, so that either is right near it."""
    return Bounded(x.value > 0, torch.zeros(x.shape, dtype=torch.float64), "bool")


def _elu(x: Bounded, alpha: float) -> Bounded:
    negative = b.add_number(b.exp(b.clamp(x, None, 0.0)), -1.0)
    return b.where(positive(x), x, b.mul_number(negative, alpha))


def _softplus(x: Bounded, beta: float, threshold: float) -> Bounded:
    inside = b.mul_number(x, beta)
    raised = b.exp(b.clamp(inside, None, threshold))
    curve = b.log(b.multilinear(torch.add, raised, b.scalar(1.0, x)))  # or log1p: not absorbed
    linear = b.compared(torch.gt, inside, b.scalar(threshold, x))
    return b.where(linear, x, b.mul_number(curve, 1 / beta))


def _hardsigmoid(x: Bounded) -> Bounded:
    return b.div(b.clamp(b.add_number(x, 3.0), 0.0, 6.0), b.scalar(6.0, x))  # or times a sixth


def _mish(x: Bounded) -> Bounded:
    return b.mul(x, b.smooth(torch.tanh, _softplus(x, 1.0, 20.0)))


def relu(x: Bounded) -> Bounded:
    return b.clamp(x, 0.0, None)


def _clamp(d: Drawing) -> int:
    low, high = d.pick([(-1.0, 2.0), (0.0, 1.0), (None, 1.0), (-2.0, None)])
    return d.apply("clamp", d.floats(), low=low, high=high)


def _near(name: str, **attrs: Callable[[Drawing], Any]) -> Callable[[Drawing], int]:
    """Of moderate numbers, with attributes drawn."""

    def draw(d: Drawing) -> int:
        x = d.floats(fits=_within(-60, 60))
        return d.apply(name, x, **{key: pick(d) for key, pick in attrs.items()})

    return draw


def _prelu(x: Bounded, slope: Bounded) -> Bounded:
    return b.where(positive(x), x, b.mul(x, slope))


def _sloped(d: Drawing) -> int:
    x = d.floats(fits=_within(-60, 60))
    return d.apply("prelu", x, d.leaf(d.smaller(d.sample[x].shape), d.sample[x].dtype))


op("gelu", "ops.gelu({0}, {approximate})", _gelu,
   _near("gelu", approximate=lambda d: d.pick(["none", "tanh"])))  # fmt: skip
op("silu", "ops.silu({0})", silu, _near("silu"))
op("relu", "ops.relu({0})", relu, _unary("relu", kinds="numbers"), 2)
op("relu6", "ops.relu6({0})", lambda x: b.clamp(x, 0.0, 6.0), _unary("relu6"), 0.5)
op("clamp", "ops.clamp({0}, {low}, {high})", b.clamp, _clamp)
op("leaky_relu", "ops.leaky_relu({0}, {slope})", _leaky,
   _near("leaky_relu", slope=lambda d: d.pick([0.01, 0.25])), 0.5)  # fmt: skip
op("prelu", "ops.prelu({0}, {1})", _prelu, _sloped, 0.5)
op("elu", "ops.elu({0}, {alpha})", _elu, _near("elu", alpha=lambda d: d.pick([1.0, 1.5])),
   0.5)  # fmt: skip
op("softplus", "ops.softplus({0}, {beta}, {threshold})", _softplus,
   _near("softplus", beta=lambda d: d.pick([1.0, 2.0]), threshold=lambda d: 20.0), 0.5)  # fmt: skip
op("hardsigmoid", "ops.hardsigmoid({0})", _hardsigmoid, _near("hardsigmoid"), 0.5)
op("hardswish", "ops.hardswish({0})", lambda x: b.mul(x, _hardsigmoid(x)), _near("hardswish"),
   0.5)  # fmt: skip
op("mish", "ops.mish({0})", _mish, _near("mish"), 0.5)


def _glu(x: Bounded, axis: int) -> Bounded:
    if x.shape[axis] % 2:
        raise Unfit
    left, right = (
        b.moved(lambda v, part=part: v.chunk(2, axis)[part], x) for part in (0, 1)
    )  # fmt: skip
    return b.mul(left, b.sigmoid(right))


def _glu_drawn(d: Drawing) -> int:
    x = d.floats(1, fits=lambda x: any(size % 2 == 0 for size in x.shape))
    even = [i for i, size in enumerate(d.sample[x].shape) if size % 2 == 0]
    return d.apply("glu", x, axis=d.pick(even))


op("glu", "ops.glu({0}, {axis})", _glu, _glu_drawn, 0.5)
