"""Building, checking and rewriting graphs; the reference evaluator."""

from __future__ import annotations

import doctest
import operator
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array, Maker, graphs

import tgbench.graph.graph as module
import tgbench.graph.ops as ops
import tgbench.graph.reference as reference
from tgbench.base.errors import GraphError, InputError, KernelError
from tgbench.base.regions import Region
from tgbench.graph.dims import dim
from tgbench.graph.graph import MOST_RANK, Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import OPS, OpDef, register
from tgbench.graph.reference import evaluate
from tgbench.session.session import GraphSession


def two_inputs(dtype: str = "float32") -> tuple[GraphBuilder, Node, Node]:
    g = GraphBuilder()
    return g, g.input("x", (2, 3), dtype), g.input("y", (3,), dtype)


def value_of(node: Node, **values: Array) -> Array:
    g = node.builder
    g.outputs.clear()
    g.output("out", node)
    graph = g.build()
    return evaluate(graph, {k: v for k, v in values.items() if k in graph.inputs})["out"]


X = np.array([[1, -2, 3], [0, 5, -6]], dtype=np.float32)
Y = np.array([2, 3, -1], dtype=np.float32)


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "lt", "le", "gt", "ge"])
def test_operators_on_nodes_and_numbers(name: str) -> None:
    function = getattr(operator, name)
    _, x, y = two_inputs()
    assert np.array_equal(value_of(function(x, y), x=X, y=Y), function(X, Y))
    assert np.array_equal(value_of(function(x, 2.0), x=X), function(X, np.float32(2)))
    assert np.array_equal(value_of(function(2, y), y=Y), function(np.float32(2), Y))


def test_other_operators() -> None:
    _, x, y = two_inputs()
    assert np.array_equal(value_of(-x, x=X), -X)
    assert np.array_equal(value_of(abs(x), x=X), abs(X))
    assert np.array_equal(value_of(x // 2.0, x=X), X // 2)
    assert np.array_equal(value_of(x % 2.0, x=X), X % 2)
    assert np.array_equal(value_of(x**2.0, x=X), X**2)
    assert np.array_equal(value_of(x.equals(3.0), x=X), X == 3)
    assert np.array_equal(value_of((x > 0) & ~(x > 2) | (x < y), x=X, y=Y),
                          (X > 0) & ~(X > 2) | (X < Y))  # fmt: skip
    assert np.array_equal(value_of(x @ x.transpose(), x=X), X @ X.T)
    assert np.array_equal(value_of(x.reshape(-1, 2), x=X), X.reshape(-1, 2))
    assert np.array_equal(value_of(x.reshape((3, 2)), x=X), X.reshape(3, 2))
    assert np.array_equal(value_of(x.reshape(6)[0].reshape(), x=X), X[0, 0])
    assert x.cast("float32") is x


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 2, 3), (3,)), ((3,), (2, 3, 4))]
)
def test_matmul_of_vectors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    g = GraphBuilder()
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-3, 4, shape).astype(np.float32) for shape in (a, b))
    node = ops.matmul(g.input("x", a), g.input("y", b))
    assert np.array_equal(value_of(node, x=left, y=right), left @ right)


INDICES = (
    np.s_[0], np.s_[-1], np.s_[1:], np.s_[:, 1], np.s_[..., 0], np.s_[::2, ::-1], np.s_[None],
    np.s_[:, None, 1:3], np.s_[..., None], np.s_[1, 2, 3], np.s_[-2:, ..., -1], np.s_[:99, 0:1],
    np.s_[..., 3:0:-2], np.s_[()],
)  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_numpy_s(index: Any) -> None:
    g = GraphBuilder()
    array = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    found = value_of(g.input("x", (2, 3, 4))[index], x=array)
    assert found.shape == array[index].shape
    assert np.array_equal(found, array[index])


@pytest.mark.parametrize(
    "index", [np.s_[2], np.s_[-3], np.s_[0, 0, 0], np.s_[1:1], np.s_[..., ...], np.s_[::0],
              "a", 1.5, np.array([0])], ids=str,
)  # fmt: skip
def test_bad_indices(index: Any) -> None:
    _, x, _ = two_inputs()
    with pytest.raises(GraphError):
        x[index]


def test_helpers_of_ops() -> None:
    _, x, y = two_inputs()
    assert np.array_equal(value_of(ops.concat([x, x], 0), x=X), np.concatenate([X, X]))
    left, right = ops.split(x, [1, 2])
    assert np.array_equal(value_of(ops.concat([right, left]), x=X), np.roll(X, -1, 1))
    assert np.array_equal(value_of(ops.flip(x, 0, -1), x=X), X[::-1, ::-1])
    assert np.array_equal(value_of(ops.tril(x, -1), x=X), np.tril(X, -1))
    assert np.array_equal(value_of(ops.triu(x), x=X), np.triu(X))
    assert np.array_equal(value_of(ops.maximum(x, y), x=X, y=Y), np.maximum(X, Y))
    assert np.array_equal(value_of(ops.minimum(x, 1.0), x=X), np.minimum(X, 1))
    assert np.array_equal(value_of(ops.where(x > 0, 1.0, x), x=X), np.where(X > 0, 1, X))
    assert np.array_equal(value_of(ops.sum_(x), x=X), X.sum())
    assert np.array_equal(value_of(ops.mean(x, -1, keepdims=True), x=X), X.mean(-1, keepdims=True))


# --- identity, names, scopes ----------------------------------------------------------------------


def test_equal_expressions_are_one_node() -> None:
    g, x, y = two_inputs()
    assert x + y is x + y
    assert x + y is not y + x
    assert (x + 1.0) is (x + 1)
    assert g.input("x", (2, 3)) is x
    assert g.constant(X) is g.constant(X.copy())
    assert g.constant(X) is not g.constant(X.astype(np.float64))


def test_names_are_unique_and_scoped() -> None:
    g, x, y = two_inputs()
    g.parameter("layer.mul", (3,))
    with g.scope("layer"):
        a = x * y
        with g.scope("inner"):
            b = x * 2.0
    c, d = g.name(a + b, "sum_1"), g.name(b - a, "sum")
    e = ops.sum_(d)
    f = g.apply("neg", e, name="sum")
    assert [n.name for n in (a, b, c, d)] == ["layer.mul_1", "layer.inner.mul", "sum_1", "sum"]
    assert len({n.name for n in g.nodes}) == len(g.nodes)
    assert e.name != f.name
    with pytest.raises(GraphError, match="leaves keep their names"):
        g.name(x, "z")


def test_nodes_of_two_graphs_have_names_of_their_own() -> None:
    g, x, y = two_inputs()
    other, a, b = two_inputs()
    theirs, ours = other.name(a * b, "add"), x + y
    copied = copy_node(g, theirs, (x, y))
    assert (copied.name, ours.name) == ("add", "add_1")
    g.rename(copied, "x")
    later = x - y
    g.rename(later, "sub")
    for i, node in enumerate((copied, ours, later)):
        g.output(str(i), node)
    names = [node.name for node in g.build().nodes]
    assert len(set(names)) == len(names)
    assert (x.name, copied.name, later.name) == ("x", "add", "sub")


def test_a_leaf_that_takes_an_op_s_name_is_refused() -> None:
    g, x, y = two_inputs()
    g.output("out", (x + y) * g.input("add", (3,)))
    with pytest.raises(GraphError, match="two nodes are called 'add'"):
        g.build()


def test_rewriting_keeps_names() -> None:
    g, x, y = two_inputs()
    out = x
    for i in range(3):
        with g.scope(f"layer_{i}"):
            out = g.name(out * y + 1.0, "fc_1")
    g.output("out", out)
    graph = g.build()
    again = graph.rebuild(copy_node)
    assert str(again) == str(graph)
    assert again.fingerprint == graph.fingerprint


@given(graphs())
def test_rebuilding_random_graphs_changes_nothing(drawn: tuple[Graph, Maker]) -> None:
    graph, _ = drawn
    assert str(graph.rebuild(copy_node)) == str(graph)


# --- errors ---------------------------------------------------------------------------------------


def test_building_errors_say_what_to_do() -> None:
    g, x, y = two_inputs()
    other = GraphBuilder()
    with pytest.raises(GraphError, match="unknown op 'conv9'"):
        g.apply("conv9", x)
    with pytest.raises(GraphError, match="another graph"):
        other.input("z", (3,)) + y
    with pytest.raises(GraphError, match="no output"):
        g.build()
    with pytest.raises(GraphError, match="unknown dtype"):
        g.input("z", (3,), "float8")
    with pytest.raises(GraphError, match="already"):
        g.parameter("x", (2, 3))
    with pytest.raises(GraphError, match="already"):
        g.input("x", (2, 4))
    with pytest.raises(GraphError, match="cannot be bfloat16"):
        g.constant(X, "bfloat16")
    with pytest.raises(GraphError, match="does not fit int32"):
        g.input("i", (3,), "int32") + 0.5
    with pytest.raises(GraphError, match="cast"):
        x + g.input("d", (3,), "float64")
    with pytest.raises(GraphError, match="do not broadcast"):
        x + g.input("w", (2,))
    g.output("out", x)
    with pytest.raises(GraphError, match="defined twice"):
        g.output("out", y)


def test_nodes_are_neither_iterable_nor_true() -> None:
    _, x, _ = two_inputs()
    with pytest.raises(GraphError, match="cannot be iterated"):
        list(x)
    with pytest.raises(GraphError, match="no truth value"):
        bool(x > 0)
    with pytest.raises(GraphError, match="is a leaf"):
        _ = x.call


def test_empty_results_are_refused() -> None:
    g = GraphBuilder()
    with pytest.raises(GraphError, match="no empty tensors"):
        g.input("x", (2, 0))
    with pytest.raises(GraphError, match="no empty tensors"):
        g.constant(np.zeros((0,)))
    with pytest.raises(GraphError, match="selects nothing"):
        g.input("row", (2,))[1:1]
    with pytest.raises(GraphError, match="products must be equal"):
        g.input("some", (2,)).reshape(0, 2)
    with pytest.raises(GraphError, match="exchange"):
        g.input("line", (2,)).transpose()


@pytest.mark.parametrize("size", [2.5, "4", None, 1j])
def test_sizes_that_are_no_whole_numbers_are_refused(size: Any) -> None:
    with pytest.raises(GraphError, match="sizes are whole numbers"):
        GraphBuilder().input("x", (2, size))


def test_what_has_more_dimensions_than_libraries_take_is_refused() -> None:
    g = GraphBuilder()
    x = g.input("x", (1,) * MOST_RANK)
    g.output("y", ops.exp(x))
    session = GraphSession(g.build(), calibrate=False)
    assert session.run(np.zeros(x.shape, "float32"))["y"].shape == x.shape
    for make in (
        lambda: g.input("more", (1,) * (MOST_RANK + 1)), lambda: x.reshape(*x.shape, 1),
        lambda: g.constant(np.zeros((1,) * (MOST_RANK + 1))),
    ):  # fmt: skip
        with pytest.raises(GraphError, match="25 dimensions, more than the 24"):
            make()


def test_states_are_updated_with_their_own_type() -> None:
    g, x, _ = two_inputs()
    s = g.state("s", (2, 3))
    with pytest.raises(GraphError, match="types must be equal"):
        g.update(s, x.cast("float64"))
    with pytest.raises(GraphError, match="types must be equal"):
        g.update(x, s)
    g.update(s, s + x)
    g.output("out", s * 2.0)
    graph = g.build()
    assert list(graph.states) == ["s"]
    assert graph.updates["s"].op == "add"
    after = evaluate(graph, {"x": X}, [graph.updates["s"].name])
    assert np.array_equal(after[graph.updates["s"].name], X)
    assert np.array_equal(evaluate(graph, {"x": X, "s": X})["out"], 2 * X)


def test_the_op_table_refuses_duplicates_and_halves() -> None:
    with pytest.raises(GraphError, match="already in the table"):
        register(OPS["add"])
    with pytest.raises(GraphError, match="needs both"):
        register(OpDef("half", lambda attrs, dtypes: dtypes[0], lambda attrs, x: x))
    assert "half" not in OPS


# --- the graph ------------------------------------------------------------------------------------


def small() -> Graph:
    g, x, y = two_inputs()
    with g.scope("layer"):
        h = x * y
    g.output("out", ops.relu(h) + h)
    g.output("hidden", h)
    return g.build()


def test_a_graph_holds_what_its_outputs_need() -> None:
    g, x, y = two_inputs()
    _ = x - y
    g.output("out", x + y)
    graph = g.build()
    assert [node.name for node in graph.nodes] == ["x", "y", "add"]
    assert len(graph) == 3
    assert graph.node("add") is graph.outputs["out"]
    with pytest.raises(GraphError, match="no node 'sub'"):
        graph.node("sub")


def test_printing() -> None:
    assert str(small()) == (
        "x: float32[2, 3] = input()\n"
        "y: float32[3] = input()\n"
        "layer.mul: float32[2, 3] = mul(x, y)\n"
        "relu: float32[2, 3] = relu(layer.mul)\n"
        "add: float32[2, 3] = add(relu, layer.mul)\n"
        "output out = add\n"
        "output hidden = layer.mul"
    )
    dot = small().to_dot()
    assert dot.startswith("digraph")
    assert dot.count(" -> ") == 7


def test_consumers() -> None:
    graph = small()
    mul = graph.node("layer.mul")
    assert [node.name for node in graph.consumers[mul]] == ["relu", "add"]
    assert graph.consumers[graph.node("add")] == ()


def test_the_fingerprint_is_of_what_is_computed() -> None:
    assert small().fingerprint == small().fingerprint
    prints = set()
    for make in (
        lambda g, x: x + 1.0,
        lambda g, x: x + 2.0,
        lambda g, x: x - 1.0,
        lambda g, x: ops.softmax(x, 0),
        lambda g, x: ops.softmax(x, 1),
        lambda g, x: (x + 1.0).cast("float64"),
    ):
        g, x, _ = two_inputs()
        g.output("out", make(g, x))
        prints.add(g.build().fingerprint)
    assert len(prints) == 6


def test_check_finds_a_node_out_of_order() -> None:
    graph = small()
    with pytest.raises(GraphError, match="before it is defined"):
        Graph(graph.nodes[::-1], graph.outputs).check()
    with pytest.raises(GraphError, match="is not a node of this graph"):
        Graph(graph.nodes[:-1], graph.outputs).check()


# --- symbolic dimensions --------------------------------------------------------------------------


def symbolic() -> Graph:
    T = dim("T", max=64)
    g = GraphBuilder()
    x = g.input("x", (T, 8))
    q, k = x @ g.parameter("wq", (8, 8)), x @ g.parameter("wk", (8, 8))
    heads = q.reshape(T, 2, 4).permute(1, 0, 2)
    keys = k.reshape(T, 2, 4).permute(1, 0, 2)
    weights = ops.softmax(heads @ keys.transpose())
    context = (weights @ keys).permute(1, 0, 2).reshape(T, 8)
    g.output("y", ops.concat([ops.rms_norm(context, g.parameter("n", (8,))), x], 1))
    g.output("twice", ops.concat([x, x], 0))
    g.output("total", ops.sum_(x * 2.0, 0))
    return g.build()


def test_shapes_hold_symbols_until_they_are_bound() -> None:
    graph = symbolic()
    T = sympy.Symbol("T", integer=True, positive=True)
    assert graph.symbols == (T,)
    assert graph.node("softmax").shape == (2, T, T)
    assert graph.outputs["twice"].shape == (2 * T, 8)
    assert graph.outputs["twice"].type.size_bytes == 64 * T
    bound = graph.bind(T=5)
    assert bound.symbols == ()
    assert bound.outputs["y"].shape == (5, 16)
    assert [n.name for n in bound.nodes] == [n.name for n in graph.nodes]
    rng = np.random.default_rng(0)
    values = {
        node.name: rng.normal(size=node.shape).astype(np.float32)
        for node in bound.nodes
        if node.is_leaf and node.op != "constant"
    }
    assert np.array_equal(evaluate(bound, values)["twice"], np.concatenate([values["x"]] * 2))


def test_binding_errors() -> None:
    with pytest.raises(GraphError, match="no dimension 'S'"):
        symbolic().bind(S=3)
    with pytest.raises(GraphError, match="declared range"):
        symbolic().bind(T=65)
    with pytest.raises(GraphError, match="bind before"):
        symbolic().inputs["x"][1:]


def test_a_symbolic_dimension_takes_no_index() -> None:
    x = symbolic().inputs["x"]
    with pytest.raises(GraphError, match="bind before"):
        x[0]
    assert x[:, 2:].shape == (x.shape[0], 6)


# --- the reference --------------------------------------------------------------------------------


def test_evaluate_captures_nodes() -> None:
    found = evaluate(small(), {"x": X, "y": Y}, ["relu", "x"])
    assert list(found) == ["relu", "x", "out", "hidden"]
    assert np.array_equal(found["relu"], np.maximum(X * Y, 0))
    assert np.array_equal(found["out"], np.maximum(X * Y, 0) + X * Y)


def test_evaluate_names_the_leaf_at_fault() -> None:
    for values, message in (
        ({"x": X}, "input 'y'"),
        ({"x": X, "y": Y, "z": Y}, "'z' is not a leaf"),
        ({"x": X, "y": X}, "input 'y' is float32"),
        ({"x": X, "y": Y.astype(np.float64)}, "got float64"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(small(), values)


def test_evaluate_names_the_node_at_fault() -> None:
    g = GraphBuilder()
    g.output("out", ops.gather(g.input("x", (2,)), g.input("i", (1,), "int64")) * 2.0)
    with pytest.raises(KernelError, match="gather"):
        evaluate(g.build(), {"x": Y[:2], "i": np.array([7])})


def test_evaluate_frees_what_nobody_reads_any_more() -> None:
    g, x, _ = two_inputs()
    out = x
    for _ in range(50):
        out = out + 1.0
    g.output("out", out)
    assert np.array_equal(evaluate(g.build(), {"x": X})["out"], X + 50)


@given(graphs(), st.integers(0, 5))
def test_shapes_of_random_graphs_are_inferred_right(drawn: tuple[Graph, Maker], seed: int) -> None:
    graph, make = drawn
    found = evaluate(graph, make(seed), [node.name for node in graph.nodes])
    for node in graph.nodes:
        assert found[node.name].shape == node.shape
        assert Region.full(node.shape).elements == found[node.name].size


def test_examples() -> None:
    for part in (module, reference, ops.elementwise, ops.layout):
        assert doctest.testmod(part).failed == 0
