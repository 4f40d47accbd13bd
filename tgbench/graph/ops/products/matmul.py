"""Matrix products of any rank, batch dimensions broadcast.

    out[…, i, j] = Σ_k a[…, i, k] · b[…, k, j]

Dirty rows of `a` and dirty columns of `b` make a cross of dirty outputs. Where one operand is
known to be 0, the contraction does not read the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.known import ConstantData, Fact, SparsityPattern, pattern_fact
from tgbench.base.memo import once_each
from tgbench.base.regions import Box, Interval, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Attrs, Call, Dim, OpDef, TensorType, register, same_dtype
from tgbench.graph.ops.broadcasting import broadcast_shape, down, up


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 2:
        raise GraphError(f"matmul takes 2 inputs, got {len(types)}")
    a, b = types
    if a.rank < 2 or b.rank < 2:
        raise GraphError(
            f"matmul needs matrices, got {a} and {b}; reshape vectors to one row or column"
        )
    if a.shape[-1] != b.shape[-2]:
        raise GraphError(
            f"matmul of {a} and {b}: inner dimensions {a.shape[-1]} and {b.shape[-2]} differ; "
            "transpose one of them"
        )


def _batch(call: Call) -> tuple[Dim, ...]:
    return broadcast_shape([shape[:-2] for shape in call.in_shapes])


def _zero_pattern(call: Call, operand: int) -> SparsityPattern | None:
    """The open elements of an operand whose closed ones are known zeros."""
    fact = call.facts[operand] if call.facts else None
    if fact is None or fact.constant is not None:
        return None if fact is None or fact.constant is None else _banded(fact.constant)
    return fact.open if fact.closes_with(0.0) else None


@once_each
def _banded(data: ConstantData) -> SparsityPattern | None:
    """The elements of a constant that are not 0, where most are: bands, filters, means."""
    is_open = data.array != 0
    sparse = np.count_nonzero(is_open) <= is_open.size / 2 and np.isfinite(data.array).all()
    return SparsityPattern.of(is_open) if sparse else None


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    (*batch_a, rows, _), (*batch_b, _, columns) = call.in_shapes
    batch = _batch(call)
    boxes: list[Box] = []
    for box in regions[0]:
        for front in up(Region((Box(box[:-2]),)), tuple(batch_a), batch):
            slab = Box([*_front(front, batch_b), box[-1], (0, columns)])
            met = _met(call, 1, slab, len(batch_b) + 1)
            boxes += [Box([*front, box[-2], interval]) for interval in met]
    for box in regions[1]:
        for front in up(Region((Box(box[:-2]),)), tuple(batch_b), batch):
            slab = Box([*_front(front, batch_a), (0, rows), box[-2]])
            met = _met(call, 0, slab, len(batch_a))
            boxes += [Box([*front, interval, box[-1]]) for interval in met]
    return around(*boxes)


def _front(batch: Box, operand_batch: Sequence[Dim]) -> Box:
    """The batch dimensions of an operand that meet a batch box of the output."""
    return down(batch, tuple(operand_batch)).hull()


def _met(call: Call, operand: int, slab: Box, axis: int) -> list[Interval]:
    """Rows (or columns) of the other operand that are not 0 wherever the slab is."""
    pattern = _zero_pattern(call, operand)
    return [slab[axis]] if pattern is None else pattern.support(slab, axis)


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    (*batch_a, _, depth), (*batch_b, _, _) = call.in_shapes
    front_a, front_b = (_front(Box(box[:-2]), batch) for batch in (batch_a, batch_b))
    depths: list[Interval] = [(0, depth)]
    in_a, in_b = _zero_pattern(call, 0), _zero_pattern(call, 1)
    if in_a is not None:
        depths = [
            part
            for k in depths
            for part in in_a.support(Box([*front_a, box[-2], k]), len(batch_a) + 1)
        ]
    if in_b is not None:
        depths = [
            part for k in depths for part in in_b.support(Box([*front_b, k, box[-1]]), len(batch_b))
        ]
    if not depths:
        depths = [(0, 1)]  # nothing but known zeros; one of them makes the 0
    return (
        around(*(Box([*front_a, box[-2], k]) for k in depths)),
        around(*(Box([*front_b, k, box[-1]]) for k in depths)),
    )


def _known(call: Call, facts: tuple[Fact | None, ...]) -> Fact | None:
    """Rows of `a`, and columns of `b`, that are known to be 0 throughout make zeros."""
    rank = len(call.out.shape)
    closed = np.zeros([1] * rank, dtype=bool)
    for fact, axis in zip(facts, (-1, -2), strict=True):
        if fact is not None and fact.closes_with(0.0):
            lines = ~fact.open.array.any(axis=axis, keepdims=True)
            closed = closed | lines.reshape([1] * (rank - lines.ndim) + list(lines.shape))
    return pattern_fact(0.0, ~closed)


def _flops(call: Call, box: Box) -> int:
    return 2 * box.elements * int(call.in_shapes[0][-1])


register(
    OpDef(
        "matmul",
        same_dtype,
        lambda attrs, a, b: np.matmul(a, b),
        _forward,
        _needed,
        check=_check,
        known=_known,
        flops=_flops,
        multiplies=True,
        cancels=lambda attrs, a, b: np.matmul(a, b),
    )
)


def matmul(a: Node, b: Node) -> Node:
    """The matrix product over the last two dimensions; vectors are taken as one row or column."""
    if a.rank == 1 and b.rank == 1:
        return (a[None] @ b[:, None]).reshape()
    if a.rank == 1:
        product = a[None] @ b
        return product.reshape(*product.shape[:-2], product.shape[-1])
    if b.rank == 1:
        product = a @ b[:, None]
        return product.reshape(*product.shape[:-1])
    return a @ b
