"""Loops that were written out are rolled up: the same values, in nodes that no length adds to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench.graph.ops as ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.recognise.loops import LEAST, rolled_up
from tgbench.graph.reference import evaluate
from tgbench.graph.simplify import simplify

BATCH, UNITS, MORE = 2, 3, 4
Step = Callable[[int], Node]


def counted(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def rolled(graph: Graph) -> Graph:
    return simplify(rolled_up(simplify(graph)))


def assert_equal(one: Graph, other: Graph, seed: int = 0) -> None:
    """On small whole numbers, which neither order of adding rounds."""
    random = np.random.default_rng(seed)
    leaves = {n.name: n for n in one.nodes if n.op in ("input", "parameter")}
    values = {
        name: random.integers(-1, 2, node.shape).astype(node.dtype) for name, node in leaves.items()
    }
    expected = evaluate(one, values)
    named = {n.name for n in other.nodes if n.op in ("input", "parameter")}
    found = evaluate(other, {name: v for name, v in values.items() if name in named})
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-12)


class Loop:
    """Draws a loop over the steps of some inputs.

    Args:
        axis: of x, along which the steps lie.
    """

    def __init__(self, draw: Any, steps: int) -> None:
        self.draw, self.steps, self.g = draw, steps, GraphBuilder()
        self.axis = draw(st.integers(0, 1))
        self.backwards = draw(st.booleans())

    def of(self, name: str, units: int = UNITS) -> Step:
        """[batch, units] of a step: of an input, and sometimes of what follows from one."""
        shape = (self.steps, BATCH, units) if self.axis == 0 else (BATCH, self.steps, units)
        x = self.g.input(name, shape, "float64")
        weight = self.g.parameter(f"{name}.w", (units, units), "float64")
        scale = self.g.parameter(f"{name}.s", (units,), "float64")
        between: list[Callable[[Node], Node]] = [
            lambda x: -x, lambda x: x + x, lambda x: x * scale, lambda x: ops.linear(x, weight),
            lambda x: ops.maximum(x, x * 0.5), lambda x: ops.flip(x, 2),
            lambda x: x.permute(1, 0, 2).permute(1, 0, 2),
        ]  # fmt: skip
        for _ in range(self.draw(st.integers(0, 2))):
            x = self.draw(st.sampled_from(between))(x)
        return (lambda t: x[t]) if self.axis == 0 else (lambda t: x[:, t])

    def decay(self) -> Step:
        kind = self.draw(st.sampled_from(["step", "number", "parameter", "one", "wide"]))
        if kind == "step":
            return self.of("a")
        if kind == "wide":
            of = self.of("a", 1)
            return lambda t: of(t).expand(BATCH, UNITS)
        parameter = self.g.parameter("decay", (UNITS,), "float64")
        number = self.g.scalar(2.0 if kind == "number" else 1.0, "float64")
        return lambda t: parameter if kind == "parameter" else number

    def begins(self) -> Node:
        shape = (BATCH, UNITS)
        kind = self.draw(st.sampled_from(["zeros", "parameter", "input"]))
        if kind == "zeros":
            return self.g.constant(np.zeros(shape), "float64")
        return self.g.parameter("h", shape, "float64") if kind == "parameter" else self.g.input(
            "h", shape, "float64")  # fmt: skip

    def follows(self) -> Callable[[Node, int], Node]:
        """What a step makes of the one before."""
        a, x = self.decay(), self.of("x")
        return self.draw(
            st.sampled_from([
                lambda h, t: a(t) * h + x(t), lambda h, t: x(t) + h * a(t), lambda h, t: h - x(t),
                lambda h, t: x(t) - h, lambda h, t: h + a(t) * (x(t) - h), lambda h, t: -(h * a(t)),
                lambda h, t: (h + x(t)) / self.g.scalar(2.0, "float64"), lambda h, t: h + x(t) + h,
            ])
        )  # fmt: skip

    def looks(self) -> Callable[[Node, int], Node]:
        """What a step gives."""
        c, weights = self.of("c"), self.g.parameter("u", (MORE, UNITS), "float64")
        return self.draw(
            st.sampled_from([
                lambda h, t: h, lambda h, t: h * c(t) + 1.0, lambda h, t: ops.linear(h, weights),
                lambda h, t: ops.sum_(h * c(t), -1, keepdims=True), lambda h, t: h[:, :2],
                lambda h, t: (c(t).reshape(BATCH, 1, UNITS) @ h.reshape(BATCH, UNITS, 1))[:, 0],
                lambda h, t: h.permute(1, 0),
            ])
        )  # fmt: skip

    def together(self, parts: list[Node]) -> Node:
        kind = self.draw(st.sampled_from(["stack", "concat", "writes"]))
        axis = self.draw(st.integers(0, 1))
        if kind != "writes":
            return ops.stack(parts, axis) if kind == "stack" else ops.concat(parts, axis)
        shape = list(parts[0].shape)
        shape.insert(axis, len(parts))
        whole = self.g.constant(np.zeros(shape), "float64")
        for i, part in enumerate(parts):
            start = [0] * len(shape)
            start[axis] = i
            whole = ops.update(whole, part.reshape(*shape[:axis], 1, *shape[axis + 1 :]), start)
        return whole


@st.composite
def loops(draw: Any) -> tuple[Graph, bool]:
    """A graph, and whether its steps follow from each other."""
    loop = Loop(draw, draw(st.integers(LEAST + 1, 9)))
    is_recurrent = draw(st.booleans())
    looks = loop.looks()
    order = range(loop.steps)[::-1] if loop.backwards else range(loop.steps)
    found: dict[int, Node] = {}
    if is_recurrent:
        follows = loop.follows()
        h, order = loop.begins(), list(order)
        if draw(st.booleans()):  # the first step is what it begins with
            h = loop.of("first")(order[0])
            found[order[0]] = looks(h, order[0])
            order = order[1:]
        for t in order:
            h = follows(h, t)
            found[t] = looks(h, t)
        if draw(st.booleans()):
            loop.g.output("last", h)
    else:
        x = loop.of("x")
        found = {t: looks(x(t), t) for t in order}
    loop.g.output("y", loop.together([found[t] for t in sorted(found)]))
    return loop.g.build(), is_recurrent


@given(loops())
def test_any_loop_is_rolled_up_and_gives_the_same(drawn: tuple[Graph, bool]) -> None:
    graph, is_recurrent = drawn
    found = rolled(graph)
    assert_equal(graph, found)
    assert set(found.inputs) <= set(graph.inputs)
    assert counted(found)["linear_recurrence"] == is_recurrent
    assert counted(found)["concat"] <= 1  # of what it begins with
    assert counted(found)["update"] == 0


def ema(steps: int, step: Callable[[Node, Node], Node]) -> Graph:
    g = GraphBuilder()
    x, h, rows = g.input("x", (steps, 4)), g.parameter("h", (4,)), []
    for t in range(steps):
        h = step(h, x[t])
        rows.append(h)
    g.output("y", ops.stack(rows))
    return g.build()


@pytest.mark.parametrize("steps", [LEAST, 12, 100])
def test_a_longer_loop_has_no_more_nodes(steps: int) -> None:
    found = rolled(ema(steps, lambda h, x: h * 0.5 + x))
    assert counted(found)["linear_recurrence"] == 1
    assert len(found.nodes) == len(rolled(ema(30, lambda h, x: h * 0.5 + x)).nodes)


@pytest.mark.parametrize(
    "step",
    [
        lambda h, x: ops.tanh(h) + x,
        lambda h, x: h * h + x,
        lambda h, x: x / (h + 2.0),
        lambda h, x: ops.maximum(h, x),
        lambda h, x: h * ops.sum_(h, 0, keepdims=True) + x,
    ],
)
def test_steps_that_are_not_linear_stay(step: Callable[[Node, Node], Node]) -> None:
    graph = simplify(ema(6, step))
    assert rolled_up(graph) is graph


def test_layers_with_weights_of_their_own_are_no_steps() -> None:
    g = GraphBuilder()
    h, rows = g.input("x", (2, 4)), []
    for i in range(6):
        h = h + ops.linear(h, g.parameter(f"w{i}", (4, 4)))
        rows.append(h)
    g.output("y", ops.concat(rows, 1))
    graph = simplify(g.build())
    assert rolled_up(graph) is graph


def test_few_steps_stay() -> None:
    graph = simplify(ema(LEAST - 1, lambda h, x: h * 0.5 + x))
    assert rolled_up(graph) is graph


def test_what_a_step_in_between_is_asked_for_is_a_row() -> None:
    """Also where a second loop begins with it."""
    g = GraphBuilder()
    x, h, both = g.input("x", (8, 4), "float64"), g.parameter("h", (4,), "float64"), []
    for name in ("one", "two"):
        rows = []
        for t in range(8):
            h = h * 2.0 + x[t]
            rows.append(h)
        g.output(name, ops.stack(rows) * 3.0)
        g.output(f"{name} in between", rows[5] * 2.0)
        both += rows
    g.output("last", h)
    graph = g.build()
    found = rolled(graph)
    assert_equal(graph, found)
    assert counted(found)["linear_recurrence"] == 2
    assert counted(found)["add"] == 0


def test_a_loop_over_what_follows_from_its_own_steps_gives_the_same() -> None:
    """The second half of the steps reads what was made of the first."""
    g = GraphBuilder()
    x, h, rows = g.input("x", (6, 4), "float64"), g.parameter("h", (4,), "float64"), []
    for t in range(6):
        h = h * 2.0 + x[t]
        rows.append(h)
    x = ops.concat([x, ops.stack(rows)], 0)
    for t in range(6, 12):
        h = h * 2.0 + x[t]
        rows.append(h)
    g.output("y", ops.stack(rows))
    g.output("last", h)
    graph = g.build()
    assert_equal(graph, rolled(graph))


def test_windows_that_overlap_are_no_steps_and_chunks_are() -> None:
    def summed(step: int) -> Graph:
        g = GraphBuilder()
        x = g.input("x", (20, 3), "float64")
        parts = [x[i : i + 4].reshape(1, 12) * 2.0 for i in range(0, 17, step)]
        g.output("y", ops.concat(parts, 0))
        return simplify(g.build())

    overlapping, chunks = summed(1), summed(4)
    assert rolled_up(overlapping) is overlapping
    found = simplify(rolled_up(chunks))
    assert_equal(chunks, found)
    assert counted(found)["concat"] == 0
