"""Margins of zeros, taken into the convolutions that read them.

    x ─→ pad ─→ conv, no padding          `F.pad`, "same" padding of strided networks, causal ones
    x ─→ conv, padding on either side     which may differ

What is padded is a copy of all of x that a convolution does not need: windows say of themselves
where they hang over the border.
"""

from __future__ import annotations

from math import copysign

from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node


def into_windows(graph: Graph) -> Graph:
    """The graph with convolutions that pad by themselves; itself where there is nothing to do.

    >>> import tgbench.graph.ops as ops
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x, w = g.input("x", (1, 2, 8)), g.parameter("w", (4, 2, 3))
    >>> g.output("y", ops.conv(ops.pad(x, (0, 0, 2), (0, 0, 0)), w))
    >>> into_windows(g.build()).outputs["y"].attrs["padding"]
    ((2, 0),)
    """
    if not any(map(_pads_first, graph.nodes)):
        return graph

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        if not _pads_first(node):
            return copy_node(builder, node, inputs)
        margin = inputs[0]
        sides = zip(margin.attrs["low"][2:], margin.attrs["high"][2:], strict=True)
        padding = tuple(
            (low + more, high + beyond)
            for (low, high), (more, beyond) in zip(node.attrs["padding"], sides, strict=True)
        )
        return copy_node(builder, node, (margin.inputs[0], *inputs[1:]), padding=padding)

    return graph.rebuild(make)


def _pads_first(node: Node) -> bool:
    """Whether it is a convolution of something that zeros were put around."""
    if node.op != "conv" or node.inputs[0].op != "pad":
        return False
    attrs = node.inputs[0].attrs
    are_zeros = attrs["value"] == 0 and copysign(1.0, attrs["value"]) > 0
    return are_zeros and not any((*attrs["low"][:2], *attrs["high"][:2]))
