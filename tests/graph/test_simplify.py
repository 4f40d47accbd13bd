"""Simplification: each rule, what it must leave alone, and the same values on random graphs."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from places import GOLDEN
from strategies import Maker, graphs

import tgbench.graph.ops as ops
import tgbench.graph.simplify as module
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.reference import evaluate
from tgbench.graph.simplify import simplify
from tgbench.session.session import GraphSession


def built(make: Callable[[GraphBuilder, Node], Node], dtype: str = "float32") -> Graph:
    g = GraphBuilder()
    g.output("y", make(g, g.input("x", (2, 6), dtype)))
    return g.build()


def chain(graph: Graph) -> list[str]:
    """The ops on the way from the input to the output, constants left out."""
    return [node.op for node in graph.nodes if node.op != "constant"]


def negated(x: Node, times: int) -> Node:
    for _ in range(times):
        x = -x
    return x


ONES = np.ones((2, 6), dtype=np.float32)
RULES: dict[str, tuple[Callable[[GraphBuilder, Node], Node], list[str]]] = {
    "reshape twice": (lambda g, x: x.reshape(12).reshape(3, 4), ["input", "reshape"]),
    "reshape there and back": (lambda g, x: x.reshape(12).reshape(2, 6), ["input"]),
    "reshape to itself": (lambda g, x: g.apply("reshape", x, shape=(2, 6)), ["input"]),
    "permute twice": (
        lambda g, x: x.reshape(2, 3, 2).permute(1, 2, 0).permute(1, 0, 2),
        ["input", "reshape", "permute"],
    ),
    "permute there and back": (lambda g, x: x.transpose().transpose(), ["input"]),
    "permute in order": (lambda g, x: x.permute(0, 1), ["input"]),
    "slice twice": (lambda g, x: x[:, 1:5][1:, ::2], ["input", "slice"]),
    "slice back and forth": (lambda g, x: ops.flip(ops.flip(x, 1), 1), ["input"]),
    "slice of everything": (
        lambda g, x: g.apply("slice", x, starts=(0, 0), stops=(2, 6), steps=(1, 1)),
        ["input"],
    ),
    "expand twice": (
        lambda g, x: x[:, :1].expand(2, 3).expand(4, 2, 3),
        ["input", "slice", "expand"],
    ),
    "expand to itself": (lambda g, x: x.expand(2, 6), ["input"]),
    "pad by nothing": (lambda g, x: ops.pad(x, (0, 0), (0, 0)), ["input"]),
    "cast to itself": (lambda g, x: g.apply("cast", x, dtype="float32"), ["input"]),
    "cast and back": (lambda g, x: x.cast("float64").cast("float32"), ["input"]),
    "cast wider twice": (lambda g, x: x.cast("float64").cast("int32"), ["input", "cast"]),
    "x + (−0)": (lambda g, x: x + -0.0, ["input"]),
    "(−0) + x": (lambda g, x: -0.0 + x, ["input"]),
    "x + zeros": (lambda g, x: x + g.constant(ONES * -0.0), ["input"]),
    "x + iota·0": (
        lambda g, x: x + ops.iota(g, (6,)).cast("float32") * -0.0,
        ["input"],
    ),
    "x − 0": (lambda g, x: x - 0.0, ["input"]),
    "x · 1": (lambda g, x: x * g.constant(ONES), ["input"]),
    "x / 1": (lambda g, x: x / 1.0, ["input"]),
    "x ** 1": (lambda g, x: x**1.0, ["input"]),
    "−−x": (lambda g, x: negated(x, 2), ["input"]),
    "−−−x": (lambda g, x: negated(x, 3), ["input", "neg"]),
    "relu twice": (lambda g, x: ops.relu(ops.relu(x)), ["input", "relu"]),
    "where true": (
        lambda g, x: ops.where(g.constant(np.ones((2, 6), dtype=bool)), x, 3.0),
        ["input"],
    ),
    "where false": (
        lambda g, x: ops.where(g.constant(np.zeros(6, dtype=bool)), x * 2.0, x),
        ["input"],
    ),
    "where of one": (lambda g, x: ops.where(x > 0.0, x, x), ["input"]),
    "concat of one": (lambda g, x: g.apply("concat", x, axis=0), ["input"]),
    "all at once": (
        lambda g, x: negated((x - 0.0).reshape(12).reshape(2, 6) * 1.0, 2).transpose().transpose(),
        ["input"],
    ),
    "constants": (
        lambda g, x: x + ops.exp(g.constant(ONES) * 2.0).reshape(12)[:6],
        ["input", "add"],
    ),
    "causal mask": (
        lambda g, x: ops.where(ops.tril(ops.full(g, (2, 6), True, "bool")), x, 0.0),
        ["input", "where"],
    ),
}
LEFT: dict[str, tuple[Callable[[GraphBuilder, Node], Node], list[str]]] = {
    "x + 0 that widens": (
        lambda g, x: x + g.constant(np.zeros((3, 2, 6), dtype=np.float32)),
        ["input", "add"],
    ),
    "0 − x": (lambda g, x: 0.0 - x, ["input", "sub"]),
    "1 / x": (lambda g, x: 1.0 / x, ["input", "div"]),
    "1 ** x": (lambda g, x: g.scalar(1.0, "float32") ** x, ["input", "pow"]),
    "cast narrower and back": (
        lambda g, x: x.cast("int32").cast("float32"),
        ["input", "cast", "cast"],
    ),
    "where partly": (
        lambda g, x: ops.where(g.constant(np.arange(6) > 2), x, 0.0),
        ["input", "where"],
    ),
    "where that widens": (
        lambda g, x: ops.where(g.constant(np.ones((2, 2, 6), dtype=bool)), x, 3.0),
        ["input", "where"],
    ),
    "neg of abs": (lambda g, x: -abs(x), ["input", "abs", "neg"]),
}


@pytest.mark.parametrize("name", [*RULES, *LEFT])
def test_rule(name: str) -> None:
    make, expected = {**RULES, **LEFT}[name]
    graph = built(make)
    simple = simplify(graph)
    assert chain(simple) == expected
    x = np.random.default_rng(0).integers(-3, 4, (2, 6)).astype(np.float32)
    with np.errstate(all="ignore"):
        before, after = evaluate(graph, {"x": x})["y"], evaluate(simple, {"x": x})["y"]
    assert before.dtype == after.dtype
    np.testing.assert_array_equal(before, after)


def test_large_integers_are_not_taken_through_floats() -> None:
    graph = built(lambda g, x: x.cast("float64").cast("int64"), "int64")
    assert chain(simplify(graph)) == ["input", "cast", "cast"]


def test_booleans() -> None:
    assert chain(simplify(built(lambda g, x: ~~x, "bool"))) == ["input"]
    graph = built(lambda g, x: ~~x, "float32")  # ¬¬x is not x for a number
    assert chain(simplify(graph)) == ["input", "logical_not", "logical_not"]


def test_folding_stops_at_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = built(lambda g, x: x + ops.iota(g, (2, 6)).cast("float32"))
    assert chain(simplify(graph)) == ["input", "add"]
    monkeypatch.setattr(module, "LARGEST_BYTES", 60)
    assert chain(simplify(graph)) == ["input", "iota", "cast", "add"]


def test_bfloat16_constants_stay_casts() -> None:
    graph = simplify(built(lambda g, x: x * 3.0, "bfloat16"))
    assert chain(graph) == ["input", "cast", "mul"]
    assert chain(simplify(built(lambda g, x: x * 1.0, "bfloat16"))) == ["input"]


def test_facts_follow_folding() -> None:
    """A mask computed from iotas masks as a constant one does, once it is folded."""
    graph = built(lambda g, x: ops.exp(ops.where(
        ops.iota(g, (2, 6), 1) <= ops.iota(g, (2, 6), 0), x, -np.inf)))  # fmt: skip
    assert graph.outputs["y"].call.fact is None
    fact = simplify(graph).outputs["y"].call.fact
    assert fact is not None
    assert fact.value == 0


def test_names_outputs_and_updates_stay() -> None:
    g = GraphBuilder()
    x, s = g.input("x", (2, 3)), g.state("s", (2, 3))
    with g.scope("layer_3"):
        a = g.name(x - 0.0, "gone")
        b = g.name((a * 2.0).reshape(6).reshape(3, 2), "kept")
        c = g.name(s + a, "fc_1")
    g.output("first", a)
    g.output("second", b)
    g.output("third", c)
    g.update(s, c)
    simple = simplify(g.build())
    assert {name: node.name for name, node in simple.outputs.items()} == {
        "first": "x", "second": "layer_3.kept", "third": "layer_3.fc_1",
    }  # fmt: skip
    assert simple.updates == {"s": simple.outputs["third"]}
    assert "layer_3.mul" in {node.name for node in simple.nodes}


def test_golden_block() -> None:
    """A block as an importer would leave it, full of reshapes and constants."""
    g = GraphBuilder()
    x = g.input("x", (4, 6))
    h = (x.reshape(1, 4, 6) - 0.0).reshape(4, 6) * ops.full(g, (6,), 1.0)
    q = (h @ g.parameter("wq", (6, 6))).reshape(1, 4, 2, 3).permute(0, 2, 1, 3).reshape(2, 4, 3)
    mask = ops.iota(g, (4, 4), 1) <= ops.iota(g, (4, 4), 0)
    scores = ops.where(mask, q @ q.transpose() * (1.0 / np.sqrt(3.0)), -np.inf)
    context = (ops.softmax(scores) @ q).reshape(1, 2, 4, 3).permute(0, 2, 1, 3)
    g.output("y", context.reshape(1, 4, 6).reshape(4, 6).cast("float64").cast("float32"))
    graph = g.build()
    simple = simplify(graph)
    assert f"{simple}\n" == (GOLDEN / "simplified_block.txt").read_text()
    rng = np.random.default_rng(0)
    values = {
        "x": rng.normal(size=(4, 6)).astype(np.float32),
        "wq": rng.normal(size=(6, 6)).astype(np.float32),
    }
    assert np.array_equal(evaluate(graph, values)["y"], evaluate(simple, values)["y"])


@given(graphs(most_ops=14))
def test_random_graphs_keep_their_values_and_are_done_in_one_pass(
    drawn: tuple[Graph, Maker],
) -> None:
    graph, make = drawn
    simple = simplify(graph)
    ops_before, ops_after = (sum(not n.is_leaf for n in g.nodes) for g in (graph, simple))
    assert ops_after <= ops_before
    values = make(0)
    kept = {node.name for node in simple.nodes}
    before = evaluate(graph, values)
    after = evaluate(simple, {name: array for name, array in values.items() if name in kept})
    for name, array in before.items():
        assert np.array_equal(array, after[name], equal_nan=True)
    assert simplify(simple).fingerprint == simple.fingerprint


def test_examples() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("dtype", "make", "stays"),
    [
        ("float32", lambda x: x + 0.0, True),
        ("float32", lambda x: x + (-0.0), False),
        ("float32", lambda x: x - 0.0, False),
        ("float32", lambda x: x - (-0.0), True),
        ("bfloat16", lambda x: x + 0.0, True),
        ("bfloat16", lambda x: x + (-0.0), False),
        ("int64", lambda x: x + 0, False),
    ],
)
def test_a_zero_that_would_lose_its_sign_is_added(dtype: str, make: Any, stays: bool) -> None:
    """(−0) + 0 is +0; x + (−0) and x − 0 are x, whatever x is."""
    g = GraphBuilder()
    g.output("y", make(g.input("x", (2,), dtype)))
    assert (simplify(g.build()).outputs["y"].op != "input") == stays


def test_negative_zeros_of_margins_and_constants_have_their_sign() -> None:
    g = GraphBuilder()
    x = g.input("x", (2,))
    g.output("margin", ops.pad(x, (1,), (1,), -0.0) * 1.0)
    g.output("filled", ops.concat([x, ops.full(g, (2,), -0.0)], 0))
    g.output("listed", ops.concat([x, g.constant(np.array([-0.0, 0.0]), "float32")], 0))
    found = GraphSession(g.build(), calibrate=False).run(np.ones(2, "float32"))
    assert np.signbit(found["margin"]).tolist() == [True, False, False, True]
    assert np.signbit(found["filled"]).tolist() == [False, False, True, True]
    assert np.signbit(found["listed"]).tolist() == [False, False, True, False]
