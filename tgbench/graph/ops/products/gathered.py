"""Rows times the matrices that indices name: the layers of a mixture of experts.

    y[s] = weight[index[s]] @ x[s]

Who is sent where is data. A row depends on what it holds, on its own index, and on the weights, so
one more token is one more row, whatever experts the others went to.

Sources: mixtures of experts chosen by a gate (Shazeer et al. 2017); a product with gathered
matrices, as in DGL's `gather_mm`.
"""

from __future__ import annotations

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node
from tgbench.graph.op_table import FLOATS, Array, Attrs, Call, OpDef, TensorType, register
from tgbench.graph.ops.index import INTEGERS

WEIGHT, ROWS, INDEX = range(3)  # inputs: [matrices, n, k], [..., k] and [...]


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 3 or types[WEIGHT].rank != 3 or not types[ROWS].rank:
        raise GraphError(f"gather_linear takes matrices, rows and an index, got {types}")
    weight, x, index = types
    if x.shape[-1] != weight.shape[2] or x.shape[:-1] != index.shape:
        raise GraphError(
            f"gather_linear of {x} takes matrices [m, n, {x.shape[-1]}] and an index "
            f"{list(x.shape[:-1])}, got {weight} and {index}"
        )
    if x.dtype not in FLOATS or weight.dtype != x.dtype:
        raise GraphError(f"gather_linear takes floats of one dtype, got {x} and {weight}")
    if index.dtype not in INTEGERS:
        raise GraphError(f"the index must be integers, got {index.dtype}; cast it first")


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    """The rows that changed, or whose index did; and what any matrix gives, of all rows."""
    wide = (0, call.in_shapes[WEIGHT][1])
    rows = Box.full(call.in_shapes[INDEX])
    found = [Box((*box[:-1], wide)) for box in regions[ROWS]]
    found += [Box((*box, wide)) for box in regions[INDEX]]
    found += [Box((*rows, columns)) for _, columns, _ in regions[WEIGHT].boxes]
    return around(*found)


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    """These rows, and their columns of every matrix: an index may be any."""
    count, _, depth = call.in_shapes[WEIGHT]
    return (
        Region((Box(((0, count), box[-1], (0, depth))),)),
        Region((Box((*box[:-1], (0, depth))),)),
        Region((Box(box[:-1]),)),
    )


def _reference(attrs: Attrs, weight: Array, x: Array, index: Array) -> Array:
    return np.asarray((weight[index] @ x[..., None])[..., 0])


register(
    OpDef(
        "gather_linear",
        lambda attrs, dtypes: dtypes[ROWS],
        _reference,
        _forward,
        _needed,
        check=_check,
        flops=lambda call, box: 2 * box.elements * int(call.in_shapes[WEIGHT][2]),
        multiplies=True,
        picks=(WEIGHT,),
        cancels=_reference,
    )
)


def gather_linear(x: Node, weight: Node, index: Node) -> Node:
    """Each row of x times the transposed matrix that its index names.

    Args:
        x: [..., k], any float dtype.
        weight: [matrices, n, k] of that dtype.
        index: [...], integers that name one of the matrices, from the last one on if negative.

    Returns:
        [..., n]

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x, experts = g.input("x", (5, 2, 8)), g.parameter("experts", (4, 16, 8))
    >>> gather_linear(x, experts, g.input("index", (5, 2), "int64")).shape
    (5, 2, 16)
    """
    return x.builder.apply("gather_linear", weight, x, index)
