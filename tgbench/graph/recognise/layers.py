"""Products with weights as layers, whichever way the weights lie.

    x @ W            W [K, O]: as PyTorch's `Conv1D` of GPT-2 has it, `addmm`, `x @ W`
    linear(x, Wᵀ)    Wᵀ [O, K], a view of the same bytes

A layer has kernels that lay weights out once as they read them fastest, and takes a bias and
activations into its call; a product of two matrices has none of that, as its second operand may
change. Constants stay as they are: zeros of a band or a filter that are known save work.
"""

from __future__ import annotations

from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node


def as_layers(graph: Graph) -> Graph:
    """The graph with layers in place of products with weights; itself where there are none.

    >>> import tgbench.graph.ops as ops
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x, w = g.input("x", (2, 8)), g.parameter("w", (8, 4))
    >>> g.output("y", x @ w)
    >>> print(as_layers(g.build()))
    x: float32[2, 8] = input()
    w: float32[8, 4] = parameter()
    permute: float32[4, 8] = permute(w, axes=(1, 0))
    matmul: float32[2, 4] = linear(x, permute)
    output y = matmul
    """
    fixed = graph.frozen
    if not any(_is_layer(node, fixed) for node in graph.nodes):
        return graph

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        return (_layer if _is_layer(node, fixed) else copy_node)(builder, node, inputs)

    return graph.rebuild(make)


def _is_layer(node: Node, fixed: frozenset[Node]) -> bool:
    if node.op != "matmul" or node in fixed:
        return False
    _, weight = node.inputs
    return weight in fixed and weight.rank == 2 and _follows_from_parameters(weight)


def _follows_from_parameters(weight: Node) -> bool:
    return weight.op != "constant" and (
        weight.is_leaf or any(map(_follows_from_parameters, weight.inputs))
    )


def _layer(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
    x, weight = inputs
    turned, count = weight.permute(1, 0), len(builder.nodes)
    made = builder.apply("linear", x, turned, **node.attrs)
    return builder.rename_new(made, node.name, since=count)
