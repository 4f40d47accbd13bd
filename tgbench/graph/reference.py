"""The whole graph by the ops' NumPy references: slow, obvious, the oracle of every test.

evaluate(graph, {"x": x, "w": w})               → {"y": …}, by output name
evaluate(graph, values, nodes=["scores"])       → and these nodes, by node name
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

import tgbench.graph.ops  # noqa: F401  (fills the op table)
from tgbench.base.dense import dense
from tgbench.base.errors import InputError, KernelError
from tgbench.base.surroundings import plainly
from tgbench.graph.graph import Graph, Node, Weighted, graph_of
from tgbench.graph.op_table import Array, numpy_dtype


@plainly
def evaluate(
    graph: Graph | Weighted, values: Mapping[str, Array], nodes: Iterable[str] | None = None
) -> dict[str, Array]:
    """Outputs of a graph for given leaves, by its ops' references.

    Args:
        graph: with every dimension a number; or an imported module.
        values: by leaf name; inputs and parameters have to be there, a state is 0 by default, and
            an imported module's parameters are its weights. bfloat16 leaves are given, and
            computed, in float32.
        nodes: names of further nodes to return, under their own names.

    Raises:
        GraphError: it is no graph.
        InputError: a leaf is missing, unknown, or of another shape or dtype.
        KernelError: an op's reference fails or returns another type than it was inferred to.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (3,)); g.output("y", x * 2.0)
    >>> evaluate(g.build(), {"x": np.array([1, 2, 3], np.float32)})["y"].tolist()
    [2.0, 4.0, 6.0]
    """
    if isinstance(graph, Weighted):
        values = {**_weights(graph), **values}
    graph = graph_of(graph)
    wanted = [graph.node(name) for name in nodes or ()]
    leaves = {node.name for node in graph.nodes if node.is_leaf and node.op != "constant"}
    for name in values:
        if name not in leaves:
            raise InputError(f"{name!r} is not a leaf of this graph; it has {', '.join(leaves)}")
    found: dict[Node, Array] = {}
    left = {node: len(users) for node, users in graph.consumers.items()}
    for node in (*graph.outputs.values(), *wanted):
        left[node] += 1  # never dropped
    for node in graph.nodes:
        found[node] = _leaf(node, values) if node.is_leaf else _apply(node, found)
        for parent in dict.fromkeys(node.inputs):
            left[parent] -= 1
            if not left[parent]:
                del found[parent]
    return {node.name: found[node] for node in wanted} | {
        name: found[node] for name, node in graph.outputs.items()
    }


def _weights(module: Weighted) -> dict[str, Array]:
    """The weights that a module's graph reads, bfloat16 ones in float32."""
    return {name: dense(module.weights[name])[0] for name in module.graph.parameters}


def _leaf(node: Node, values: Mapping[str, Array]) -> Array:
    if node.op == "constant":
        array: Array = node.attrs["data"].array
        return array
    dtype = numpy_dtype(node.dtype)
    if node.name not in values:
        if node.op == "state":
            return np.zeros(node.shape, dtype)
        raise InputError(f"{node.op} {node.name!r} ({node.type}) is missing")
    try:
        given, _ = dense(values[node.name])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{node.op} {node.name!r} is no array ({error}); pass a dense array or tensor"
        ) from error
    if given.shape != node.shape or given.dtype != dtype:
        raise InputError(
            f"{node.op} {node.name!r} is {node.type}, got {given.dtype}{list(given.shape)}"
        )
    return given


def _apply(node: Node, found: Mapping[Node, Array]) -> Array:
    call = node.call
    try:
        result = call.op.reference(call.attrs, *(found[parent] for parent in node.inputs))
    except Exception as error:
        raise KernelError(f"the reference of {node!r} failed: {error}") from error
    if result.shape != node.shape or result.dtype != numpy_dtype(node.dtype):
        raise KernelError(f"the reference of {node!r} returned {result.dtype}{list(result.shape)}")
    return result
