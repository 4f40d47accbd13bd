"""Permutes moved behind ops that work on rows, so that values are stored as their producers lay
them.

    x ─→ permute ─→ norm ─→ rope ─→ attention      becomes      x ─→ norm ─→ rope ─→ permute ─→ attention

A permute that leaves the last dimension where it is changes nothing for an op that treats every row
of it alike. As a view for the reader it costs nothing; in front of a norm it decides how the result
lies in memory: with a token's heads together an append writes one piece, not one per head.
"""

from __future__ import annotations

from tgbench.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.optable import LEAVES

ROWS = ("rms_norm", "layer_norm", "rope")
ELEMENTS = (
    "gelu", "silu", "relu", "clamp", "leaky_relu", "elu", "softplus", "hardsigmoid", "hardswish",
    "mish", "tanh", "sigmoid", "exp", "neg", "abs", "sqrt", "rsqrt",
)  # fmt: skip


def rows_first(graph: Graph) -> Graph:
    """The graph with permutes moved towards the outputs; itself where none is in the way."""
    fixed: dict[Node, bool] = {}
    for node in graph.nodes:
        is_leaf = node.op in LEAVES
        within = all(fixed[parent] for parent in node.inputs)
        fixed[node] = node.op in ("parameter", "constant") if is_leaf else within
    if not any(_can_move(node, fixed) for node in graph.nodes):
        return graph
    still_fixed: dict[Node, bool] = {}

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        made = _moved(builder, node, inputs, still_fixed)
        still_fixed[made] = fixed[node]
        return made

    return graph.rebuild(make)


def _can_move(node: Node, fixed: dict[Node, bool]) -> bool:
    """Whether the first input is a permute that the op does not mind."""
    if node.op not in (*ROWS, *ELEMENTS) or node.inputs[0].op != "permute":
        return False
    axes = node.inputs[0].attrs["axes"]
    keeps_rows = node.op in ELEMENTS or axes[-1] == len(axes) - 1
    return keeps_rows and all(fixed.get(other, False) for other in node.inputs[1:])


def _moved(
    builder: GraphBuilder, node: Node, inputs: tuple[Node, ...], fixed: dict[Node, bool]
) -> Node:
    made = copy_node(builder, node, inputs)
    if not _can_move(made, fixed) or made.rank != made.inputs[0].rank:
        return made
    view = made.inputs[0]
    axes = view.attrs["axes"]
    others = [_turned_back(other, axes) for other in made.inputs[1:]]
    inner = builder.apply(made.op, view.inputs[0], *others, **made.attrs)
    made.name, inner.name = builder._fresh(made.op), made.name
    result = inner.permute(*axes)
    return result


def _turned_back(other: Node, axes: tuple[int, ...]) -> Node:
    """An operand that broadcasts against a permuted value, for the value itself."""
    if other.rank <= 1:
        return other
    full = other.reshape(*[1] * (len(axes) - other.rank), *other.shape)
    turned = full.permute(*(axes.index(axis) for axis in range(len(axes))))
    shape = turned.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return turned.reshape(*shape)
