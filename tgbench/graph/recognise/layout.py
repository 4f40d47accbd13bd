"""Permutes moved behind ops that work on rows: values are stored as their producers lay them.

    x ─→ permute ─→ norm ─→ rope ─→ attention     before
    x ─→ norm ─→ rope ─→ permute ─→ attention     after

A permute that leaves the last dimension where it is changes nothing for an op that treats every row
of it alike. As a view for the reader it costs nothing; in front of a norm it decides how the result
lies in memory: with a token's heads together an append writes one piece, not one per head.
"""

from __future__ import annotations

from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node

ROWS = ("rms_norm", "layer_norm", "rope")
ELEMENTS = (
    "gelu", "silu", "relu", "clamp", "leaky_relu", "elu", "softplus", "hardsigmoid", "hardswish",
    "mish", "tanh", "sigmoid", "exp", "neg", "abs", "sqrt", "rsqrt",
)  # fmt: skip


def rows_first(graph: Graph) -> Graph:
    """The graph with permutes moved towards the outputs; itself where none is in the way."""
    fixed = graph.frozen
    if not any(_can_move(node, node.inputs, fixed) for node in graph.nodes):
        return graph

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        can_move = _can_move(node, inputs, fixed)
        return (_moved if can_move else copy_node)(builder, node, inputs)

    return graph.rebuild(make)


def _can_move(node: Node, inputs: tuple[Node, ...], fixed: frozenset[Node]) -> bool:
    """Whether the first of these inputs is a permute that the op does not mind."""
    if node.op not in (*ROWS, *ELEMENTS) or inputs[0].op != "permute":
        return False
    axes = inputs[0].attrs["axes"]
    keeps_rows = node.op in ELEMENTS or axes[-1] == len(axes) - 1
    are_fixed = fixed.issuperset(node.inputs[1:])
    return keeps_rows and are_fixed and node.shape == inputs[0].shape


def _moved(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
    view = inputs[0]
    axes = view.attrs["axes"]
    others, count = [turned_back(other, axes) for other in inputs[1:]], len(builder.nodes)
    inner = builder.apply(node.op, view.inputs[0], *others, **node.attrs)
    return builder.rename_new(inner, node.name, since=count).permute(*axes)


def turned_back(other: Node, axes: tuple[int, ...]) -> Node:
    """An operand that broadcasts against a permuted value, for the value itself."""
    if other.rank <= 1:
        return other
    full = other.reshape(*[1] * (len(axes) - other.rank), *other.shape)
    turned = full.permute(*(axes.index(axis) for axis in range(len(axes))))
    lead = next((i for i, size in enumerate(turned.shape[:-1]) if size != 1), turned.rank - 1)
    return turned.reshape(*turned.shape[lead:])
