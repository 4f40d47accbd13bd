"""Weights in less: the graph whose parameters are narrower, and are widened as they are read.

    linear(x, w, b)         → widening_linear(x, w', b)                 w' in bfloat16, float16
                            → widening_linear(x, w') · scale + b        w' in int8
    gather(w, ids)          → cast(gather(w', ids)) (· gather(scale, ids))
    gated_linear(x, g, u)   → its two products, each as above

Arithmetic in less: the graph whose products may be of rounded factors. Which are is for kernels.

    linear(x, w, b)         → linear(x, w, b, arithmetic=bfloat16)

Weights in place of what they are made of: the graph that reads a folded weight, and knows nothing
of the two that it is folded of.

    conv(x, w · s, t − m · s)  → conv(x, w', t')

Every other op wants weights of its own dtype, so a parameter that one of them reads stays as it
is. Half floats are float32 numbers, too: nothing is rounded here. An int8 stands for itself times
the scale of its row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import tgbench.graph.ops  # noqa: F401  (fills the op table)
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.ops.nn import NARROW

WIDE = "float32"


@dataclass(frozen=True)
class HeldGraph:
    """A graph with weights in less.

    Fields:
        graph: with narrower parameters where that was asked for and can be.
        scales: of weights in int8, the name of the parameter [rows] that each row is times.
    """

    graph: Graph
    scales: Mapping[str, str]


def hold(graph: Graph, dtypes: Mapping[str, str]) -> HeldGraph:
    """The graph with parameters in these dtypes, by name, where all that reads them can widen.

    >>> from tgbench.graph.ops import linear
    >>> g = GraphBuilder(); x, w = g.input("x", (1, 3)), g.parameter("w", (2, 3))
    >>> g.output("y", linear(x, w))
    >>> print(hold(g.build(), {"w": "bfloat16"}).graph)
    x: float32[1, 3] = input()
    w: bfloat16[2, 3] = parameter()
    linear: float32[1, 2] = widening_linear(x, w)
    output y = linear
    """
    held = {name: dtype for name, dtype in dtypes.items() if _can_hold(graph, name, dtype)}
    holder = _Holder(held)
    made = graph.rebuild(holder.make) if held else graph
    return HeldGraph(made, {weight.name: scale.name for weight, scale in holder.scales.items()})


def allow_rounding(graph: Graph, dtype: str) -> Graph:
    """The graph with products whose kernels may round both factors to this dtype.

    >>> from tgbench.graph.ops import linear
    >>> g = GraphBuilder(); x, w = g.input("x", (1, 3)), g.parameter("w", (2, 3))
    >>> g.output("y", linear(x, w))
    >>> print(allow_rounding(g.build(), "bfloat16").nodes[-1])
    linear: float32[1, 2] = linear(x, w, arithmetic=bfloat16)
    """

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.is_leaf or not node.call.op.rounds or node.dtype != WIDE:
            return copy_node(builder, node, inputs)
        return copy_node(builder, node, inputs, arithmetic=dtype)

    return graph.rebuild(make)


def settle(graph: Graph, nodes: Collection[Node]) -> Graph:
    """The graph with parameters in place of some nodes, under their names.

    >>> g = GraphBuilder(); x, w = g.input("x", (1, 3)), g.parameter("w", (3,))
    >>> scale = g.name(w + 1.0, "scale")
    >>> g.output("y", g.name(x * scale, "y"))
    >>> print(settle(g.build(), {scale}))
    x: float32[1, 3] = input()
    scale: float32[3] = parameter()
    y: float32[1, 3] = mul(x, scale)
    output y = y
    """

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node in nodes:
            return builder.parameter(node.name, node.shape, node.dtype)
        return copy_node(builder, node, inputs)

    return graph.rebuild(make) if nodes else graph


def may_round(node: Node) -> bool:
    """Whether kernels may round what a node multiplies."""
    return "arithmetic" in node.attrs


def products_of(graph: Graph) -> frozenset[str]:
    """The names of parameters that products read as their weights."""
    return frozenset(
        node.inputs[i].name
        for node in graph.nodes
        for i in _widens(node)
        if node.call.op.multiplies and node.inputs[i].op == "parameter"
    )


def _widens(node: Node) -> tuple[int, ...]:
    return () if node.is_leaf else node.call.op.widens(node.call)


def _can_hold(graph: Graph, name: str, dtype: str) -> bool:
    node = graph.parameters.get(name)
    if node is None or node.dtype != WIDE or dtype not in NARROW or node.rank != 2:
        return False
    return node not in graph.ends and all(_reads(node, user) for user in graph.consumers[node])


def _reads(weight: Node, user: Node) -> bool:
    """Whether a node reads a weight nowhere but where it could widen it."""
    places = {i for i, parent in enumerate(user.inputs) if parent is weight}
    return places.issubset(_widens(user))


class _Holder:
    """Makes nodes over narrower weights; knows which of them have scales."""

    def __init__(self, held: Mapping[str, str]) -> None:
        self.held = held
        self.scales: dict[Node, Node] = {}

    def make(self, builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op == "parameter" and node.name in self.held:
            return self._weight(builder, node)
        if all(new.dtype == old.dtype for new, old in zip(inputs, node.inputs, strict=True)):
            return copy_node(builder, node, inputs)
        count, op = len(builder.nodes), node.call.op
        assert op.in_less is not None
        scales = {i: self.scales[new] for i, new in enumerate(inputs) if new in self.scales}
        made: Node = op.in_less(node.attrs, scales, *inputs)
        return builder.rename_new(made, node.name, since=count)

    def _weight(self, builder: GraphBuilder, node: Node) -> Node:
        dtype = self.held[node.name]
        weight = builder.parameter(node.name, node.shape, dtype)
        if dtype == "int8":
            name = builder._fresh(f"{node.name}.scale")
            self.scales[weight] = builder.parameter(name, node.shape[:1], WIDE)
        return weight
