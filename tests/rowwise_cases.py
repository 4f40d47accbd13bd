"""Random rowwise ops, and parts of them: for tests of the kernels that are written from steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from kernels.test_kernels import evaluate

from tgbench import ops
from tgbench.base.regions import Box
from tgbench.graph.graph import GraphBuilder, Node, topological
from tgbench.graph.op_table import OPS
from tgbench.graph.ops.rowwise import ELEMENTWISE, REDUCTIONS, Step
from tgbench.graph.rewrite.rules.rowwise import StepWriter

Array = np.ndarray[Any, Any]
By = Callable[[Node, dict[str, Array], Box, int], "Array | None"]  # what a kernel computes
SHAPES = ((), (1,), (5, 1), (3, 1, 1), (70,), (5, 70), (3, 5, 1), (3, 1, 70), (3, 5, 70))
COMPARED = ("less", "less_equal", "greater", "greater_equal")
WHOLE = ("add", "sub", "maximum", "minimum", "neg", "abs", "floor", "ceil", "where", *COMPARED)
PLAIN = ("add", "sub", "mul", "div", "neg", "abs", "floor", "sqrt", "tanh", "erf", "where")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0)
NORM: tuple[Step, ...] = (
    ("mean", 0), ("sub", 0, 1), ("exp", 2), ("sum", 3), ("div", 3, 4), ("tanh", 5), ("log", 3),
    ("mul", 6, 7), ("sigmoid", 8),
)  # fmt: skip


@st.composite
def expressions(draw: Any, names: Sequence[str], most: int = 7) -> Node:
    """Steps over a block of 3 × 5 rows of 70, a row, a column, a number; logical steps are chosen
    by, and whatever is given has 70 columns.
    """
    g = GraphBuilder()
    shapes = [(3, 5, 70), *draw(st.lists(st.sampled_from(SHAPES), max_size=3))]
    values = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    for _ in range(draw(st.integers(1, most))):
        floats = [i for i, one in enumerate(values) if one.dtype == "float32"]
        logical = [i for i, one in enumerate(values) if one.dtype == "bool"]
        wide = [i for i in floats if values[i].rank and values[i].shape[-1] == 70]
        known = [n for n in names if n != "where" or logical]
        name = draw(st.sampled_from(known))
        if name in REDUCTIONS:
            operands = [draw(st.sampled_from(wide))]
        else:
            operands = [draw(st.sampled_from(floats)) for _ in range(ELEMENTWISE[name])]
            if name == "where":
                operands[0] = draw(st.sampled_from(logical))
        made = [values[i] for i in operands]
        more = {"axes": (made[0].rank - 1,), "keepdims": True} if name in REDUCTIONS else {}
        values.append(g.apply(name, *made, **more))
    last = draw(st.sampled_from([i for i, one in enumerate(values) if one.dtype == "float32"]))
    end = values[0] + values[last]
    found = StepWriter(end, {one for one in topological([end]) if not one.is_leaf}).node()
    assert found is not None
    return found


@st.composite
def parts(draw: Any, node: Node) -> Box:
    """Some rows; some columns, too, where nothing is reduced."""
    found = []
    for axis, size in enumerate(node.shape):
        is_whole = axis == 2 and any(name in REDUCTIONS for name, *_ in node.attrs["calls"])
        start = 0 if is_whole else draw(st.integers(0, size - 1))
        found.append((start, size if is_whole else draw(st.integers(start + 1, size))))
    return Box(found)


def leaves_of(node: Node, draw: Callable[[tuple[int, ...]], Any]) -> dict[str, Array]:
    return {one.name: np.asarray(draw(one.shape), np.float32) for one in node.inputs}


def part(array: Array, box: Box) -> Array:
    return array[tuple(slice(*interval) for interval in box)]


# --- what every kernel that is written from steps has to give -------------------------------------


def check_whole_numbers(by: By, node: Node, box: Box, seed: int) -> None:
    """Of small integers, the bits of the reference."""
    rng = np.random.default_rng(seed)
    leaves = leaves_of(node, lambda shape: rng.integers(-3, 4, shape))
    found = by(node, leaves, box, seed)
    assert found is not None
    np.testing.assert_array_equal(found, part(evaluate(node, leaves), box))


def check_special_numbers(by: By, node: Node, seed: int) -> None:
    """NaN and infinities where the reference has them."""
    rng = np.random.default_rng(seed)
    leaves = leaves_of(node, lambda shape: rng.choice(SPECIAL, shape))
    found = by(node, leaves, Box.full(node.shape), seed)
    with np.errstate(all="ignore"):
        expected = OPS["rowwise"].reference(node.attrs, *(leaves[n.name] for n in node.inputs))
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=0)


def check_zeros(by: By, name: str) -> None:
    """Zeros with the signs that an op gives them."""
    line = np.zeros((2, 40), np.float32)
    line[0] = -0.0
    node = ops.rowwise(((name, 0), ("reciprocal", 1)), GraphBuilder().input("x", (2, 40)))
    found = by(node, {"x": line}, Box.full(node.shape), 0)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, 1 / OPS[name].reference({}, line))
