"""Products with matrices that an index names: nobody copies a matrix for every row.

    weight[index] @ x[..., None]                 ─→  gather_linear(x, weight, index)
    x[..., None, :] @ weight[index]              ─→  gather_linear(x, weightᵀ, index)

Mixtures of experts are written so where rows do not have to be sorted by expert: each row, with a
copy of its expert's weights.
"""

from __future__ import annotations

from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import FLOATS
from tgbench.graph.ops.products.gathered import gather_linear
from tgbench.graph.simplify import is_all


def by_index(graph: Graph) -> Graph:
    """The graph with such products as one op each; itself where there are none.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> import tgbench.graph.ops as ops
    >>> g = GraphBuilder(); x, w = g.input("x", (5, 8)), g.parameter("w", (4, 16, 8))
    >>> y = ops.gather(w, g.input("index", (5,), "int64")) @ x.reshape(5, 8, 1)
    >>> g.output("y", y.reshape(5, 16))
    >>> [node.op for node in by_index(g.build()).nodes if not node.is_leaf]
    ['reshape', 'reshape', 'gather_linear', 'reshape', 'reshape']
    """
    if not any(_named(node) is not None for node in graph.nodes):
        return graph

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        side = _named(node)
        if side is None:
            return copy_node(builder, node, inputs)
        weight, index = inputs[side].inputs
        index = _as_given(index, weight.shape[0])
        rows, count = inputs[1 - side], len(builder.nodes)
        weight = weight if side == 0 else weight.permute(0, 2, 1)
        found = gather_linear(rows.reshape(*index.shape, weight.shape[2]), weight, index)
        return builder.rename_new(found, node.name, since=count).reshape(*node.shape)

    return graph.rebuild(make)


def _as_given(index: Node, count: int) -> Node:
    """An index without what counts negative ones from the end: the op does that itself."""
    if index.op != "where":
        return index
    is_negative, from_end, plain = index.inputs
    wraps = is_negative.op == "less" and is_negative.inputs[0] is plain and from_end.op == "add"
    if not wraps or plain not in from_end.inputs or not is_all(is_negative.inputs[1], 0):
        return index
    return plain if any(is_all(one, count) for one in from_end.inputs) else index


def _named(node: Node) -> int | None:
    """Which operand of a product with one row, or column, each is gathered from a parameter."""
    if node.op != "matmul" or node.dtype not in FLOATS:
        return None
    for side, one in ((0, -1), (1, -2)):
        named, rows = node.inputs[side], node.inputs[1 - side]
        if named.op == "gather" and named.attrs["axis"] == 0 and named.inputs[0].rank == 3:
            index = named.inputs[1]
            if rows.shape[one] == 1 and rows.shape[:-2] == index.shape:
                return side
    return None
