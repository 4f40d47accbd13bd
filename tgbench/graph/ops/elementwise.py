"""Element-wise ops with broadcasting, and what masks make known of them.

Output element i depends on element i of every input (repeated dimensions: on element 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.known import (
    ConstantData,
    Fact,
    SparsityPattern,
    constant_fact,
    open_fact,
    pattern_fact,
)
from tgbench.base.memo import once_each
from tgbench.base.regions import EMPTY, Box, Region, union
from tgbench.graph.graph import Node, Operand
from tgbench.graph.op_table import (
    FLOATS,
    ITEMSIZE,
    Array,
    Attrs,
    Call,
    Facts,
    OpDef,
    TensorType,
    first_input,
    last_decides,
    numpy_dtype,
    register,
    same_dtype,
)
from tgbench.graph.ops.broadcasting import broadcast_shape, down, up
from tgbench.graph.ops.masks import Mask, aligned, mask_fact, mask_of, not_above, not_below

KnownRule = Callable[[Call, Facts], "Fact | None"]


def forward(call: Call, regions: tuple[Region, ...]) -> Region:
    shape = broadcast_shape(call.in_shapes)
    result = EMPTY
    for region, small in zip(regions, call.in_shapes, strict=True):
        if not region.is_empty:
            result = result.union(up(region, small, shape))
    return result


def needed(call: Call, box: Box) -> tuple[Region, ...]:
    return tuple(down(box, shape) for shape in call.in_shapes)


def _arity(name: str, count: int) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        if len(types) != count:
            raise GraphError(f"{name} takes {count} inputs, got {len(types)}")

    return check


def _floats_only(name: str, count: int) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    arity = _arity(name, count)

    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        arity(attrs, types)
        if types[0].dtype not in FLOATS:
            raise GraphError(f"{name} needs floats, got {types[0].dtype}; cast the input first")

    return check


def _numbers_only(name: str, count: int) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    arity = _arity(name, count)

    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        arity(attrs, types)
        if types[0].dtype == "bool":
            raise GraphError(f"{name} needs numbers, got bool; cast the input or use a logical op")

    return check


def _to_bool(attrs: Attrs, dtypes: tuple[str, ...]) -> str:
    same_dtype(attrs, dtypes)
    return "bool"


def _pointwise(
    name: str,
    function: Callable[..., Any],
    count: int,
    *,
    dtype: Callable[[Attrs, tuple[str, ...]], str] = same_dtype,
    known: KnownRule | None = None,
    relates: Callable[[tuple[Node, ...], Facts], Facts] | None = None,
    tames: bool = False,
    check: Callable[[str, int], Callable[[Attrs, tuple[TensorType, ...]], None]] = _arity,
    cost: int = 1,
    **facts: Any,
) -> OpDef:
    def reference(attrs: Attrs, *arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays))

    return register(
        OpDef(
            name,
            dtype,
            reference,
            forward,
            needed,
            check=check(name, count),
            known=known,
            relates=relates,
            tames=tames,
            flops=lambda call, box: cost * box.elements,
            aligned=tuple(range(count)),
            inplace=tuple(range(count)) if dtype is same_dtype else (),
            place=_anywhere,
            **facts,
        )
    )


def _anywhere(call: Call, box: Box) -> None:
    """An element depends on the elements above it, wherever they are."""


def _constant(fact: Fact | None) -> Array | None:
    return None if fact is None or fact.constant is None else fact.constant.array


def _known_add(call: Call, facts: Facts) -> Fact | None:
    """−inf plus anything finite is −inf; a huge negative number is as good under a softmax."""
    rank, found = call.out.rank, []
    for i, other in enumerate(reversed(facts)):
        mask = mask_of(facts[i], call.inputs[i], rank)
        if mask is None:
            continue
        if (mask.closed & not_below(other, -mask.value / 2, rank)).any():
            return None
        found.append(mask if other is None else Mask(mask.closed, mask.value / 2))
    return mask_fact(found, call.out.dtype) if found else None


def _known_sub(call: Call, facts: Facts) -> Fact | None:
    """−inf less something that is not as low is −inf; −inf less −inf is nothing known."""
    (left, right), rank = facts, call.out.rank
    mask = mask_of(left, call.inputs[0], rank)
    if mask is None:
        return None
    if right is None:
        return mask_fact([mask], call.out.dtype)
    there = mask.within(~not_above(right, mask.value / 2, rank))
    value = mask.value if right.constant is None and right.value is None else mask.value / 2
    found = mask_fact([Mask(there.closed, value)], call.out.dtype)
    return found if found is None else replace(found, peak=right.peak)


def _less_its_peak(inputs: tuple[Node, ...], facts: Facts) -> Facts:
    """Of x − max(x), that the right side is the maximum of the left."""
    left, right = inputs
    if right.op != "max" or right.inputs[0] is not left or not right.attrs["keepdims"]:
        return facts
    fact = facts[1] if facts[1] is not None else open_fact(right.rank)
    return facts[0], replace(fact, peak=right.attrs["axes"])


def _known_exp(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    if fact is None or not fact.is_mask:
        return None
    return Fact(0.0, fact.open, peak=fact.peak)


def _zeros(fact: Fact | None) -> Array | None:
    """Where an input is known to be 0. Of constants, only 0/1 masks count as masks."""
    if fact is None:
        return None
    array = _constant(fact)
    if array is not None:
        is_mask = bool(((array == 0) | (array == 1)).all())
        return (array == 0) if is_mask else None
    return ~fact.open.array if fact.closes_with(0.0) else None


def _known_mul(call: Call, facts: Facts) -> Fact | None:
    """0 times anything finite is 0."""
    rank = len(call.out.shape)
    closed: Any = False
    for fact, other in zip(facts, reversed(facts), strict=True):
        zeros = _zeros(fact)
        if zeros is not None:
            closed = closed | (aligned(zeros, rank) & ~_known_infinite(other, rank))
    if not np.any(closed):
        return _known_scaled(call, facts)
    return pattern_fact(0.0, ~np.asarray(closed))


def _known_infinite(fact: Fact | None, rank: int) -> Array:
    """Where an operand is known to be infinite or NaN, or may be all but infinite."""
    array = _constant(fact)
    if array is not None:
        return aligned(~np.isfinite(array), rank)
    if fact is not None and fact.is_huge and not fact.wild:
        return aligned(~fact.open.array, rank)
    return np.full([1] * rank, fact is not None and fact.wild)


def _known_scaled(call: Call, facts: Facts) -> Fact | None:
    """A mask times a positive constant is one, while it stays huge."""
    for i, other in enumerate(reversed(facts)):
        mask, factor = mask_of(facts[i], call.inputs[i], call.out.rank), _constant(other)
        if mask is not None and factor is not None and bool((factor > 0).all()):
            return mask_fact([Mask(mask.closed, mask.value * float(factor.min()))], call.out.dtype)
    return None


def _known_div(call: Call, facts: Facts) -> Fact | None:
    """0 divided by what is known not to be 0 is 0; by 0, it is not a number."""
    top, bottom = facts
    if top is None or bottom is None or not top.closes_with(0.0):
        return None
    rank = call.out.rank
    is_open = aligned(top.open.array, rank)
    if bottom.constant is not None:
        bad = (bottom.constant.array == 0) | np.isnan(bottom.constant.array)
        return pattern_fact(0.0, is_open | aligned(bad, rank))
    if bottom.positive:
        return pattern_fact(0.0, is_open)
    is_zero = not bottom.hard or not bottom.value or np.isnan(bottom.value)
    return pattern_fact(0.0, is_open | aligned(bottom.open.array, rank) | np.bool_(is_zero))


def _keeps_zero(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    return (
        pattern_fact(0.0, fact.open.array) if fact is not None and fact.closes_with(0.0) else None
    )


def _known_cast(call: Call, facts: Facts) -> Fact | None:
    """The known value, cast; infinities stay only among floats. A constant stays constant."""
    fact, dtype = facts[0], call.out.dtype
    if fact is None:
        return None
    if fact.constant is not None:
        with np.errstate(all="ignore"):
            return constant_fact(ConstantData(fact.constant.array.astype(numpy_dtype(dtype))))
    if fact.value is None or (fact.is_huge and dtype not in FLOATS):
        return None
    if not fact.hard:
        return mask_fact([Mask(~fact.open.array, fact.value)], dtype)
    with np.errstate(all="ignore"):
        value = float(
            np.asarray(fact.value, numpy_dtype(call.inputs[0].dtype)).astype(numpy_dtype(dtype))
        )
    return pattern_fact(value, fact.open.array)


def _known_flags(decides: bool, call: Call, facts: Facts) -> Fact | None:
    """One flag that decides is enough: False of a conjunction, True of a disjunction."""
    closed: Any = np.zeros([1] * call.out.rank, dtype=bool)
    for fact in facts:
        known = _known_as(fact, float(decides), call.out.rank)
        closed = closed if known is None else closed | known
    return pattern_fact(float(decides), ~closed)


def _turned(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    if fact is None or fact.value is None or not fact.hard:
        return None
    return pattern_fact(float(not fact.value), fact.open.array)


def _added(attrs: Attrs, a: Array, b: Array) -> Array:
    return np.asarray(np.add(a, b))


_pointwise(
    "add", np.add, 2, known=_known_add, cancels=_added, neutral=((0, -0.0), (1, -0.0)),
    commutes=True,
)  # fmt: skip
_pointwise(
    "sub", np.subtract, 2, check=_numbers_only, known=_known_sub, relates=_less_its_peak,
    cancels=_added, neutral=((1, 0),),
)  # fmt: skip
_pointwise("mul", np.multiply, 2, known=_known_mul, neutral=((0, 1), (1, 1)), commutes=True)
_pointwise("div", np.true_divide, 2, known=_known_div, check=_floats_only, neutral=((1, 1),))
_pointwise("floordiv", np.floor_divide, 2, check=_numbers_only)
_pointwise("mod", np.mod, 2, check=_numbers_only)
_pointwise("pow", np.power, 2, check=_numbers_only, cost=10, neutral=((1, 1),))
_pointwise("maximum", np.maximum, 2)
_pointwise("minimum", np.minimum, 2)
for _name, _function, _commutes in (
    ("equal", np.equal, True),
    ("not_equal", np.not_equal, True),
    ("less", np.less, False),
    ("less_equal", np.less_equal, False),
    ("greater", np.greater, False),
    ("greater_equal", np.greater_equal, False),
):
    _pointwise(_name, _function, 2, dtype=_to_bool, commutes=_commutes)
_pointwise(
    "logical_and", np.logical_and, 2, dtype=_to_bool, known=partial(_known_flags, False),
    commutes=True,
)  # fmt: skip
_pointwise(
    "logical_or", np.logical_or, 2, dtype=_to_bool, known=partial(_known_flags, True), commutes=True
)
_pointwise("logical_not", np.logical_not, 1, dtype=_to_bool, known=_turned, undoes_itself=True)
_pointwise("neg", np.negative, 1, check=_numbers_only, known=_keeps_zero, undoes_itself=True)
_pointwise("abs", np.abs, 1, known=_keeps_zero, merges=last_decides)
_pointwise("sign", np.sign, 1, check=_numbers_only, known=_keeps_zero, tames=True)
_pointwise("floor", np.floor, 1, check=_floats_only, known=_keeps_zero, merges=last_decides)
_pointwise("ceil", np.ceil, 1, check=_floats_only, known=_keeps_zero, merges=last_decides)
_pointwise("round", np.rint, 1, check=_floats_only, known=_keeps_zero, merges=last_decides)
_pointwise("exp", np.exp, 1, check=_floats_only, known=_known_exp, tames=True, cost=10)
_pointwise("log", np.log, 1, check=_floats_only, cost=10)
_pointwise("sqrt", np.sqrt, 1, check=_floats_only, known=_keeps_zero, cost=4)
_pointwise("rsqrt", lambda x: 1 / np.sqrt(x), 1, check=_floats_only, cost=4)
_pointwise("reciprocal", lambda x: 1 / x, 1, check=_floats_only)
_pointwise("sin", np.sin, 1, check=_floats_only, known=_keeps_zero, cost=10)
_pointwise("cos", np.cos, 1, check=_floats_only, cost=10)
_pointwise("tanh", np.tanh, 1, check=_floats_only, known=_keeps_zero, tames=True, cost=10)


def _erf(x: Array) -> Array:
    """The error function in float64 by torch, NumPy having none."""
    import torch

    return np.asarray(torch.special.erf(torch.from_numpy(np.array(x, dtype=np.float64)))).astype(
        x.dtype
    )


_pointwise("erf", _erf, 1, check=_floats_only, known=_keeps_zero, tames=True, cost=10)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_pointwise("sigmoid", _sigmoid, 1, check=_floats_only, tames=True, cost=10)


def _cast_dtype(attrs: Attrs, dtypes: tuple[str, ...]) -> str:
    dtype: str = attrs["dtype"]
    if dtype not in ITEMSIZE:
        raise GraphError(f"cannot cast to {dtype!r}; use one of {', '.join(ITEMSIZE)}")
    return dtype


def _casts(inner: Call, call: Call) -> Attrs | None:
    """A cast of a cast that lost nothing."""
    lost_nothing = _is_lossless(inner.inputs[0].dtype, inner.out.dtype)
    return call.attrs if lost_nothing else None


def _is_lossless(source: str, target: str) -> bool:
    """Whether every value of one dtype is a value of the other."""
    if "bfloat16" in (source, target):
        return source == target or (source == "bfloat16" and target in ("float32", "float64"))
    if (source, target) == ("int64", "float64"):
        return False  # safe for NumPy, but integers above 2⁵³ are rounded
    return np.can_cast(numpy_dtype(source), numpy_dtype(target), casting="safe")


register(
    OpDef(
        "cast",
        _cast_dtype,
        lambda attrs, x: x.astype(numpy_dtype(attrs["dtype"])),
        forward,
        needed,
        check=_arity("cast", 1),
        known=_known_cast,
        aligned=(0,),
        converts=True,
        same_as=first_input,
        merges=_casts,
    )
)


def _where_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _arity("where", 3)(attrs, types)
    if types[0].dtype != "bool":
        raise GraphError(
            f"the condition of `where` is {types[0].dtype}; compare it first (`x > 0`)"
        )


def _branches(call: Call) -> tuple[SparsityPattern, SparsityPattern] | None:
    """Where each branch may be taken, when something is known of the condition."""
    fact, rank = call.facts[0] if call.facts else None, len(broadcast_shape(call.in_shapes))
    if fact is None:
        return None
    if fact.constant is not None:
        return _taken(fact.constant, rank)
    is_open, other = SparsityPattern.of(aligned(fact.open.array, rank)), _everywhere(rank)
    if fact.closes_with(0.0):
        return is_open, other
    return (other, is_open) if fact.closes_with(1.0) else None


@once_each
def _taken(condition: ConstantData, rank: int) -> tuple[SparsityPattern, SparsityPattern]:
    whole = aligned(condition.array, rank)
    return SparsityPattern.of(whole), SparsityPattern.of(~whole)


@cache
def _everywhere(rank: int) -> SparsityPattern:
    return SparsityPattern(np.ones([1] * rank, dtype=bool))


def _where_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    taken, shapes = _branches(call), call.in_shapes
    if taken is None:
        return forward(call, regions)
    shape = broadcast_shape(shapes)
    changed = (
        pattern.trim(up(region, small, shape))
        for region, small, pattern in zip(regions[1:], shapes[1:], taken, strict=True)
    )
    return union([up(regions[0], shapes[0], shape), *changed])


def _where_needed(call: Call, box: Box) -> tuple[Region, ...]:
    taken = _branches(call)
    if taken is None:
        return needed(call, box)
    regions = [down(box, call.in_shapes[0])]
    for i, (pattern, small) in enumerate(zip(taken, call.in_shapes[1:], strict=True), start=1):
        if _constant(call.facts[i]) is not None:
            regions.append(down(box, small))  # never computed, so nothing is gained by trimming
        else:
            regions.append(union(down(part, small) for part in pattern.trim(Region((box,)))))
    return tuple(regions)


def _known_where(call: Call, facts: Facts) -> Fact | None:
    """Known where the condition is known to take a branch whose value is known there.

    Where it is an input's in other elements, a huge number is no mask: if it is taken throughout a
    line, that is a line of equal scores, among which are those that are known.
    """
    may = _branches(Call(call.op, call.attrs, call.inputs, call.out, facts))
    if may is None or facts[0] is None:
        return None
    rank, is_constant = call.out.rank, facts[0].constant is not None
    taken = ~may[1].array, ~may[0].array  # the other one is not
    masks = [
        mask.within(branch)
        for i, branch in enumerate(taken, 1)
        if (mask := mask_of(facts[i], call.inputs[i], rank)) is not None
        if is_constant or mask.value == -np.inf
    ]
    if any(mask.closed.any() for mask in masks):
        return mask_fact(masks, call.out.dtype)
    for wanted in (0.0, np.inf):
        closed: Any = False
        for branch, fact in zip(taken, facts[1:], strict=True):
            if (known := _known_as(fact, wanted, rank)) is not None:
                closed = closed | (branch & known)
        if np.any(closed):
            return pattern_fact(wanted, ~np.asarray(closed))
    return None


def _known_as(fact: Fact | None, value: float, rank: int) -> Array | None:
    array = _constant(fact)
    if array is not None:
        return aligned(array == value, rank)
    if fact is not None and fact.closes_with(value):
        return aligned(~fact.open.array, rank)
    return None


def _taken_throughout(call: Call, inputs: tuple[Node, ...]) -> int | None:
    """The branch that a constant condition takes everywhere, or either where both are one node."""
    condition, a, b = inputs
    if a is b:
        return 1
    if condition.op != "constant":
        return None
    array = condition.attrs["data"].array
    return 1 if array.all() else None if array.any() else 2


register(
    OpDef(
        "where",
        lambda attrs, dtypes: same_dtype(attrs, dtypes[1:]),
        lambda attrs, *arrays: np.asarray(np.where(*arrays)),
        _where_forward,
        _where_needed,
        check=_where_check,
        known=_known_where,
        aligned=(0, 1, 2),
        inplace=(1, 2),
        same_as=_taken_throughout,
    )
)


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """`a` where the condition holds, else `b`; either may be a number.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (2, 3))
    >>> where(x > 0.0, x, 0.0).type
    TensorType(shape=(2, 3), dtype='float32')
    """
    builder = condition.builder
    like = a if isinstance(a, Node) else b
    dtype = like.dtype if isinstance(like, Node) else "float32"
    first = a if isinstance(a, Node) else builder.scalar(a, dtype)
    second = b if isinstance(b, Node) else builder.scalar(b, dtype)
    return builder.apply("where", condition, first, second)


def _unary(name: str) -> Callable[[Node], Node]:
    def function(x: Node) -> Node:
        return x.builder.apply(name, x)

    function.__name__ = name
    function.__doc__ = f"Element-wise {name}; the shape and dtype of `x`."
    return function


exp, log, sqrt, rsqrt = _unary("exp"), _unary("log"), _unary("sqrt"), _unary("rsqrt")
sin, cos, tanh, erf = _unary("sin"), _unary("cos"), _unary("tanh"), _unary("erf")
sigmoid, reciprocal, sign = _unary("sigmoid"), _unary("reciprocal"), _unary("sign")
floor, ceil, round_ = _unary("floor"), _unary("ceil"), _unary("round")


def maximum(a: Node, b: Operand) -> Node:
    """The larger of two, element by element."""
    return a._binary("maximum", b)


def minimum(a: Node, b: Operand) -> Node:
    """The smaller of two, element by element."""
    return a._binary("minimum", b)
