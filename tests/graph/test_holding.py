"""Weights in less: which parameters can be, and what the graph becomes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.holding import hold, products_of
from tgbench.graph.reference import evaluate

Make = Callable[[GraphBuilder, Node], Node]


def graph_of(make: Make, dtype: str = "float32") -> Graph:
    g = GraphBuilder()
    g.output("y", make(g, g.parameter("w", (4, 4), dtype)))
    return g.build()


def rows(g: GraphBuilder, dtype: str = "float32") -> Node:
    return g.input("x", (2, 4), dtype)


def ids(g: GraphBuilder) -> Node:
    return g.input("ids", (3,), "int64")


def bias(g: GraphBuilder) -> Node:
    return g.parameter("b", (4,))


WIDENED: dict[str, tuple[Make, list[str]]] = {
    "linear": (lambda g, w: ops.linear(rows(g), w), ["widening_linear"]),
    "with a bias": (lambda g, w: ops.linear(rows(g), w, bias(g)), ["widening_linear"]),
    "gather": (lambda g, w: ops.embedding(w, ids(g)), ["gather", "cast"]),
    "tied": (lambda g, w: ops.linear(ops.embedding(w, ids(g)), w),
             ["gather", "cast", "widening_linear"]),
    "gated": (lambda g, w: ops.gated_linear(rows(g), w, g.parameter("u", (4, 4))),
              ["widening_linear", "silu", "linear", "mul"]),
}  # fmt: skip
KEPT: dict[str, Make] = {
    "another op reads it too": lambda g, w: ops.linear(rows(g), w) + w[0],
    "as an operand": lambda g, w: ops.linear(w, g.parameter("v", (4, 4))),
    "twice in one op": lambda g, w: ops.linear(w, w),
    "turned": lambda g, w: ops.linear(rows(g), w.transpose()),
    "matmul": lambda g, w: rows(g) @ w,
    "columns of a table": lambda g, w: ops.gather(w, ids(g), axis=1),
    "an output": lambda g, w: w,
}


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if not node.is_leaf]


@pytest.mark.parametrize("name", WIDENED)
def test_what_widens_reads_less(name: str) -> None:
    make, expected = WIDENED[name]
    graph = graph_of(make)
    held = hold(graph, {"w": "bfloat16"})
    assert held.graph.parameters["w"].dtype == "bfloat16"
    assert sorted(ops_of(held.graph)) == sorted(expected)
    assert held.graph.outputs["y"].type == graph.outputs["y"].type
    assert held.graph.outputs["y"].name == graph.outputs["y"].name


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_widen_keeps_its_weights(name: str) -> None:
    graph = graph_of(KEPT[name])
    assert hold(graph, {"w": "bfloat16"}).graph is graph


def test_weights_of_another_dtype_stay() -> None:
    graph = graph_of(lambda g, w: ops.linear(rows(g, "float64"), w), "float64")
    assert hold(graph, {"w": "bfloat16"}).graph is graph
    graph = graph_of(WIDENED["linear"][0])
    assert hold(graph, {"w": "float64"}).graph is graph


@pytest.mark.parametrize("name", WIDENED)
def test_a_row_of_int8_is_times_its_scale(name: str) -> None:
    rng = np.random.default_rng(0)
    graph = graph_of(WIDENED[name][0])
    held = hold(graph, {"w": "int8"})
    assert dict(held.scales) == {"w": "w.scale"}
    codes, scale = rng.integers(-127, 128, (4, 4)).astype("int8"), rng.random(4, "float32")
    values = {
        leaf.name: rng.integers(0, 4, leaf.shape) if leaf.dtype == "int64"
        else rng.normal(size=leaf.shape).astype("float32")
        for leaf in graph.nodes if leaf.is_leaf
    }  # fmt: skip
    expected = evaluate(graph, values | {"w": codes * scale[:, None]})["y"]
    found = evaluate(held.graph, values | {"w": codes, "w.scale": scale})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_scale_has_a_name_of_its_own() -> None:
    graph = graph_of(lambda g, w: ops.linear(rows(g), w, g.parameter("w.scale", (4,))))
    held = hold(graph, {"w": "int8"})
    assert held.scales["w"] not in graph.parameters
    assert {"w", "w.scale", held.scales["w"]} == set(held.graph.parameters)


def test_products_are_what_is_worth_rounding() -> None:
    g = GraphBuilder()
    table, w, u = (g.parameter(name, (4, 4)) for name in ("table", "w", "u"))
    x = ops.embedding(table, ids(g))
    g.output("y", ops.gated_linear(x, w, u) + ops.linear(x, w))
    assert products_of(g.build()) == {"w", "u"}
