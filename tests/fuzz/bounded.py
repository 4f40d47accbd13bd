"""Numbers with a bound on their error: what an op of some dtype may at most be away from them.

    value   float64 for the floats, int64 for the integers, bool
    error   how far a correct result may lie from it; inf where nothing can be said

Running error analysis (Wilkinson; Higham, *Accuracy and Stability of Numerical Algorithms*, 3.3):
an op passes the errors of its inputs on, and adds its own rounding. Sums of n products are
bounded by n·u·Σ|a||b| whatever the order, u being the unit roundoff of the dtype. Sums of
integers that stay below 1/u are exact in any order, and so have error 0 and are compared bit for
bit. Where a small error can flip a result (a comparison, a rounding), the error is inf: such an
element is not compared. The same holds for NaN, overflow and infinities that no mask put there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Tensor = torch.Tensor
INF = float("inf")

TORCH = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
    "bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32,
    "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LARGEST = {dtype: torch.finfo(TORCH[dtype]).max for dtype in FLOATS}
TINY = {dtype: 4 * torch.finfo(TORCH[dtype]).tiny for dtype in FLOATS}  # flushed to 0, or not
TINY["float16"] = 2.0**-22  # computed in float32, so never flushed
HALVES = ("float16", "bfloat16")  # computed and added up in float32, then rounded


@dataclass(frozen=True)
class Bounded:
    """A tensor with a bound on its error, and the dtype that it is computed in.

    `mass` is the sum of the absolute values of everything that was added up to it, and `depth` how
    many roundings lie on the way: an engine may add up sums of sums, products and biases in an
    order of its own. None: the absolute value.
    """

    value: Tensor
    error: Tensor
    dtype: str
    mass: Tensor | None = None
    depth: float = 0

    @property
    def weight(self) -> Tensor:
        return self.value.abs() if self.mass is None else self.mass

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def rank(self) -> int:
        return self.value.dim()

    @property
    def is_exact(self) -> bool:
        return not bool(self.error.any())

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


def exact(values: Any, dtype: str) -> Bounded:
    """Numbers that the dtype holds as they are."""
    wide = torch.float64 if dtype in FLOATS else torch.bool if dtype == "bool" else torch.int64
    value = torch.as_tensor(values).to(wide)
    return Bounded(value, torch.zeros(value.shape, dtype=torch.float64), dtype)


def wrapped(value: Tensor, dtype: str) -> Tensor:
    """Integers modulo the range of their dtype, as two's complement holds them."""
    return value.to(TORCH[dtype]).to(torch.int64) if dtype != "int64" else value


def settled(value: Tensor, error: Tensor, dtype: str, *, masks: bool = True) -> Bounded:
    """The result of a float op: NaN, overflow and what no mask explains are beyond saying."""
    largest = LARGEST[dtype]
    far = ~(value.abs() + error <= largest)  # NaN as well
    if bool(far.any()):
        known = value.isinf() & (error == 0) if masks else torch.zeros_like(far)
        error = torch.where(far & ~known, INF, error)
        value = torch.where(value.isnan(), 0.0, value)
    return Bounded(value, error, dtype)


# --- structure: elements move ---------------------------------------------------------------------


def moved(function: Callable[..., Tensor], *xs: Bounded) -> Bounded:
    """An op that picks elements: errors move along."""
    values, errors = function(*(x.value for x in xs)), function(*(x.error for x in xs))
    if all(x.mass is None for x in xs):
        return Bounded(values, errors, xs[0].dtype)
    depth = max(x.depth for x in xs)
    return Bounded(values, errors, xs[0].dtype, function(*(x.weight for x in xs)), depth)


def unknown(x: Bounded, *causes: Bounded) -> Bounded:
    """The same, beyond saying if any of its causes (indices, conditions) is."""
    if all(cause.is_exact for cause in causes):
        return x
    return Bounded(x.value, torch.full(x.shape, INF, dtype=torch.float64), x.dtype)


# --- arithmetic -----------------------------------------------------------------------------------


def is_whole(x: Bounded) -> bool:
    return bool((x.value == x.value.round()).all())


def multilinear(
    function: Callable[..., Tensor],
    *xs: Bounded,
    terms: float = 1,
    plain: Callable[..., Tensor] | None = None,
    rounds: bool = False,
    masks: bool = False,
) -> Bounded:
    """A sum of products of one factor of each input; `plain` is it with every sign positive.

    `terms` are added up one by one at worst, the halves in float32 or in a few parts. `rounds`
    says that whole numbers are not exact (a mean divides), `masks` that infinities keep to
    themselves: there are no factors but the inputs.
    """
    dtype, plain = xs[0].dtype, plain or function
    terms = max(x.depth for x in xs) + (2 + terms / 16 if dtype in HALVES else terms)
    value = function(*(x.value for x in xs))
    if dtype not in FLOATS:
        return _modular(value, dtype, xs)
    size = plain(*(x.weight for x in xs))
    if all(x.is_exact for x in xs):
        error = torch.zeros_like(value)
        if not rounds and all(is_whole(x) for x in xs):
            local = torch.where(size * ROUNDOFF[dtype] <= 1, 0.0, terms * ROUNDOFF[dtype] * size)
        else:
            local = terms * ROUNDOFF[dtype] * size + TINY[dtype]
    else:
        error = plain(*(x.weight + x.error for x in xs)) - size
        error = torch.where(error.isnan(), INF, error)
        local = terms * ROUNDOFF[dtype] * (size + error) + TINY[dtype]
    infinite = value.isinf() & (error == 0)
    if not masks and any(bool(x.value.isinf().any()) for x in xs):
        error = torch.full_like(error, INF)  # a factor of 0 that is not to be seen makes NaN of it
    found = settled(value, error + torch.where(infinite, 0.0, local), dtype)
    return replace(found, mass=size, depth=terms)


def _modular(value: Tensor, dtype: str, xs: Sequence[Bounded]) -> Bounded:
    result = Bounded(wrapped(value, dtype), torch.zeros(value.shape, dtype=torch.float64), dtype)
    return unknown(result, *xs)


def smooth(
    function: Callable[[Tensor], Tensor], x: Bounded, ulps: float = 16, *, waves: bool = False
) -> Bounded:
    """A function that is monotonous within the error of its argument; waves where that is small."""
    value = function(x.value)
    ulps = 2 if x.dtype in HALVES else ulps
    local = ulps * ROUNDOFF[x.dtype] * value.abs() + TINY[x.dtype]
    plain = (x.error == 0) & ((x.value == 0) | x.value.isinf()) & (value == value.round())
    error = torch.where(plain, 0.0, local)
    if not x.is_exact:
        high, low = function(x.value + x.error), function(x.value - x.error)
        error = error + torch.maximum((high - value).abs(), (low - value).abs())
    if waves:
        error = torch.where(x.error < 0.01, error + x.error**2, INF)
    error = torch.where(x.error == INF, INF, error)  # it may be no number, whatever the range
    return settled(value, error.nan_to_num(nan=INF, posinf=INF), x.dtype)


def add(a: Bounded, b: Bounded) -> Bounded:
    result = multilinear(torch.add, a, b, masks=True)
    return _absorbed(result, a, b)


def sub(a: Bounded, b: Bounded) -> Bounded:
    return _absorbed(multilinear(torch.sub, a, b, plain=torch.add, masks=True), a, neg(b))


def _absorbed(result: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """A sum in which one operand is too small to move the other is exactly the other."""
    if not result.is_float or result.is_exact:
        return result
    value, error = result.value, result.error
    for big, small in ((a, b), (b, a)):
        most = (small.weight + small.error) / (ROUNDOFF[result.dtype] / 4)
        sure = (big.error == 0) & (big.weight == big.value.abs()) & (big.weight < INF)
        gone = sure & (big.weight > most)
        value = torch.where(gone, big.value, value)
        error = torch.where(gone, 0.0, error)
    return replace(result, value=value, error=error)


def mul(a: Bounded, b: Bounded) -> Bounded:
    return multilinear(torch.mul, a, b, masks=True)


def neg(x: Bounded) -> Bounded:
    return replace(x, value=-x.value if x.is_float else wrapped(-x.value, x.dtype))


def absolute(x: Bounded) -> Bounded:
    value = x.value.abs() if x.is_float else wrapped(x.value.abs(), x.dtype)
    return Bounded(value, x.error, x.dtype)


def div(a: Bounded, b: Bounded) -> Bounded:
    value = a.value / b.value
    room = b.value.abs() - b.error
    error = (a.error + value.abs() * b.error) / room
    local = 4 * ROUNDOFF[a.dtype] * value.abs() + TINY[a.dtype]
    local = torch.where((a.value == 0) & (a.error == 0), 0.0, local)
    error = torch.where(room > 0, error + local, INF).nan_to_num(nan=INF, posinf=INF)
    return settled(value, error, a.dtype, masks=False)


def power(a: Bounded, b: Bounded) -> Bounded:
    """Powers of positive numbers, and whole powers of whole ones."""
    if not a.is_float:
        return _modular(_integer_power(a.value, b.value, a.dtype), a.dtype, (a, b))
    value = a.value**b.value
    ends = [(a.value + s * a.error) ** (b.value + t * b.error) for s in (1, -1) for t in (1, -1)]
    spread = torch.stack([(end - value).abs() for end in ends]).amax(0)
    error = spread + 32 * ROUNDOFF[a.dtype] * value.abs() + TINY[a.dtype]
    return settled(value, error.nan_to_num(nan=INF, posinf=INF), a.dtype, masks=False)


def _integer_power(base: Tensor, exponent: Tensor, dtype: str) -> Tensor:
    result = torch.ones_like(base * exponent)
    for i in range(int(exponent.max())):
        result = torch.where(exponent > i, wrapped(result * base, dtype), result)
    return result


def scalar(number: float, like: Bounded) -> Bounded:
    """A Python number in the dtype of a tensor, as the builder makes it."""
    if not like.is_float:
        return exact(torch.tensor(number), like.dtype)
    return exact(torch.tensor(number, dtype=torch.float64).to(TORCH[like.dtype]), like.dtype)


def add_number(x: Bounded, number: float) -> Bounded:
    return add(x, scalar(number, x))


def mul_number(x: Bounded, number: float) -> Bounded:
    return mul(x, scalar(number, x))


# --- choices: the largest, comparisons, roundings -------------------------------------------------


def chosen(function: Callable[..., Tensor], *xs: Bounded) -> Bounded:
    """A function that never decreases in any input and picks one of them: max, min, order."""
    value = function(*(x.value for x in xs))
    if all(x.is_exact for x in xs):
        return Bounded(value, torch.zeros(value.shape, dtype=torch.float64), xs[0].dtype)
    high = function(*(x.value + x.error for x in xs)) - value
    low = value - function(*(x.value - x.error for x in xs))
    error = torch.maximum(high, low).to(torch.float64)
    if value.is_floating_point():  # what nothing is known of may be no number, which is neither
        nan = function(*(torch.where(x.error == INF, torch.nan, x.value) for x in xs)).isnan()
        error = torch.where(nan, INF, error)
    return Bounded(value, error.nan_to_num(nan=INF, posinf=INF), xs[0].dtype)


def stepped(function: Callable[[Tensor], Tensor], x: Bounded, dtype: str | None = None) -> Bounded:
    """A function of steps: beyond saying where the error reaches over one."""
    value = function(x.value)
    error = torch.zeros(value.shape, dtype=torch.float64)
    if not x.is_exact:
        same = (function(x.value + x.error) == value) & (function(x.value - x.error) == value)
        error = beyond(~(same & (x.error < INF)))
    return Bounded(value, error, dtype or x.dtype)


def compared(function: Callable[[Tensor, Tensor], Tensor], a: Bounded, b: Bounded) -> Bounded:
    value = function(a.value, b.value)
    slack = a.error + b.error
    sure = (slack == 0) | ((a.value - b.value).abs() > slack)
    return Bounded(value, beyond(~sure).expand(value.shape), "bool")


def beyond(unsure: Tensor) -> Tensor:
    """The error of what is right to the bit, or beyond saying."""
    return torch.zeros(unsure.shape, dtype=torch.float64).masked_fill(unsure, INF)


def where(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    value = torch.where(condition.value, a.value, b.value)
    error = torch.where(condition.value, a.error, b.error)
    error = torch.where(condition.error == 0, error, INF)
    return Bounded(value, error, a.dtype)


def cast(x: Bounded, dtype: str) -> Bounded:
    if dtype == "bool":
        return Bounded(
            x.value != 0,
            beyond((x.error > 0) & (x.value.to(torch.float64).abs() <= x.error)),
            "bool",
        )
    if dtype in FLOATS:
        return _to_float(x, dtype)
    if not x.is_float:
        return Bounded(wrapped(x.value.to(torch.int64), dtype), x.error, dtype)
    limits = torch.iinfo(TORCH[dtype])
    inside = (x.value.abs() + x.error < min(limits.max, 2.0**53)) & (x.value - x.error > limits.min)
    whole = stepped(torch.trunc, x)
    value = torch.where(inside, whole.value, 0.0).to(torch.int64)
    return Bounded(value, torch.where(inside, whole.error, INF), dtype)


def _to_float(x: Bounded, dtype: str) -> Bounded:
    value = x.value.to(torch.float64).to(TORCH[dtype]).to(torch.float64)
    local = torch.zeros_like(value)
    if not x.is_exact:
        local = 2 * ROUNDOFF[dtype] * (value.abs() + x.error) + TINY[dtype]
        local = torch.where(x.error == 0, 0.0, local)
    mask = x.value.to(torch.float64).isinf()  # what became infinite here is beyond saying
    return settled(value, torch.where(value.isinf() & ~mask, INF, x.error + local), dtype)


# --- reductions and products ----------------------------------------------------------------------


def count_of(x: Bounded, axes: Sequence[int]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def total(x: Bounded, axes: Sequence[int], keepdims: bool) -> Bounded:
    return multilinear(
        lambda v: v.sum(tuple(axes), keepdim=keepdims), x, terms=count_of(x, axes), masks=True
    )


def mean(x: Bounded, axes: Sequence[int], keepdims: bool) -> Bounded:
    count = count_of(x, axes)
    found = multilinear(
        lambda v: v.mean(tuple(axes), keepdim=keepdims), x, terms=count + 2, rounds=count > 1
    )
    far = found.weight * count > LARGEST[x.dtype]  # the sum overflows before it is divided
    return replace(found, error=torch.where(far, INF, found.error))


def largest(x: Bounded, axes: Sequence[int], keepdims: bool) -> Bounded:
    return chosen(lambda v: v.amax(tuple(axes), keepdim=keepdims), x)


def smallest(x: Bounded, axes: Sequence[int], keepdims: bool) -> Bounded:
    return chosen(lambda v: v.amin(tuple(axes), keepdim=keepdims), x)


def matmul(a: Bounded, b: Bounded) -> Bounded:
    return multilinear(torch.matmul, a, b, terms=a.shape[-1] + 1)


def transposed(x: Bounded, a: int = -1, b: int = -2) -> Bounded:
    return moved(lambda v: v.transpose(a, b), x)


# --- functions ------------------------------------------------------------------------------------


def exp(x: Bounded) -> Bounded:
    return smooth(torch.exp, x)


def log(x: Bounded) -> Bounded:
    return smooth(torch.log, x)


def rsqrt(x: Bounded) -> Bounded:
    return smooth(torch.rsqrt, x)


def sigmoid(x: Bounded) -> Bounded:
    return smooth(torch.sigmoid, x)


def softmax(x: Bounded, axis: int) -> Bounded:
    weights = exp(sub(x, largest(x, (axis,), True)))
    return div(weights, total(weights, (axis,), True))


def clamp(x: Bounded, low: float | None, high: float | None) -> Bounded:
    if low is not None:
        x = chosen(torch.maximum, x, spread(scalar(low, x), x))
    if high is not None:
        x = chosen(torch.minimum, x, spread(scalar(high, x), x))
    return x


def spread(x: Bounded, like: Bounded) -> Bounded:
    return moved(lambda v: v.expand(like.shape), x)
