"""Linear recurrences: a row is the one before it, times something, and something added.

    hᵢ = aᵢ · hᵢ₋₁ + bᵢ        element by element; rows lie along the first dimension

Selective state spaces, gated linear units and moving averages are this. As of recurrent layers, a
row is what the rows behind it begin with (`OpDef.continues`).

Sources: Blelloch 1990 (first-order recurrences as scans), Martin and Cundy 2018 (layers of them),
Gu and Dao 2023 (selective state spaces).
"""

from __future__ import annotations

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node
from tgbench.graph.op_table import (
    FLOATS,
    Array,
    Attrs,
    Call,
    OpDef,
    TensorType,
    register,
    same_dtype,
)

DECAY, ADDED, STATE = range(3)  # inputs: [rows, …], [rows, …] and [1, …]


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 3 or not types[ADDED].rank:
        raise GraphError(f"linear_recurrence takes decay, added and state, got {types}")
    shape = types[ADDED].shape
    wanted = (shape, shape, (1, *shape[1:]))
    found = tuple(type_.shape for type_ in types)
    if found != wanted:
        raise GraphError(f"linear_recurrence of rows {list(shape)} takes {wanted}, got {found}")
    if types[ADDED].dtype not in FLOATS:
        raise GraphError(f"linear_recurrence computes floats, not {types[ADDED].dtype}")


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    """All that follows the first row that changed, of the elements that did."""
    rows = call.in_shapes[ADDED][0]
    found = [
        Box(((start, rows), *sides))
        for region in (regions[DECAY], regions[ADDED])
        for (start, _), *sides in region.boxes
    ]
    found += [Box(((0, rows), *sides)) for _, *sides in regions[STATE].boxes]
    return around(*found)


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    """These elements of both, and of the row before them."""
    here = Region((box,))
    return here, here, Region((Box(((0, 1), *box[1:])),))


def _reference(attrs: Attrs, decay: Array, added: Array, state: Array) -> Array:
    rows = [state[0]]
    for a, b in zip(decay, added, strict=True):
        rows.append(a * rows[-1] + b)
    return np.stack(rows[1:]).astype(added.dtype)


register(
    OpDef(
        "linear_recurrence",
        same_dtype,
        _reference,
        _forward,
        _needed,
        check=_check,
        flops=lambda call, box: 2 * box.elements,
        cancels=_reference,
        continues=STATE,
    )
)


def linear_recurrence(decay: Node, added: Node, state: Node) -> Node:
    """Rows, each of which is the one before it times `decay`, and what is `added`.

    Args:
        decay: [rows, …], or what broadcasts to that; any float dtype.
        added: [rows, …].
        state: what the first row follows from, [1, …].

    Returns:
        [rows, …] of the same dtype.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> decay, x, state = g.input("decay", (20, 1)), g.input("x", (20, 6)), g.input("h", (1, 6))
    >>> linear_recurrence(decay, x, state).shape
    (20, 6)
    """
    return added.builder.apply("linear_recurrence", decay.expand(*added.shape), added, state)
