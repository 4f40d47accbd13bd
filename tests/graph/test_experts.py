"""Products with matrices that an index names are one op, whichever way they are written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench as tg
import tgbench.graph.ops as ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.recognise import recognise
from tgbench.graph.recognise.experts import by_index
from tgbench.graph.reference import evaluate
from tgbench.graph.simplify import simplify

COUNT, WIDE, DEEP = 5, 6, 4


def experts(rows: tuple[int, ...], turned: bool, last: int = COUNT) -> Graph:
    """As an importer has it, where negative indices count from the end."""
    g = GraphBuilder()
    x, index = g.input("x", (*rows, DEEP)), g.input("index", rows, "int64")
    weight = g.parameter("w", (COUNT, DEEP, WIDE) if turned else (COUNT, WIDE, DEEP))
    named = ops.gather(weight, ops.where(index < 0, index + last, index))
    y = x.reshape(*rows, 1, DEEP) @ named if turned else named @ x.reshape(*rows, DEEP, 1)
    g.output("y", y.reshape(*rows, WIDE) * 2.0)
    return g.build()


def values(graph: Graph, random: np.random.Generator) -> dict[str, np.ndarray]:
    leaves = {**graph.inputs, **graph.parameters}
    return {
        name: np.asarray(random.integers(-COUNT, COUNT, node.shape))
        if name == "index"
        else random.integers(-3, 4, node.shape).astype("float32")
        for name, node in leaves.items()
    }


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [(), (1,), (7,), (2, 3)])
def test_both_ways_of_writing_it_are_found(rows: tuple[int, ...], turned: bool) -> None:
    graph = simplify(experts(rows, turned))
    found = recognise(graph)
    assert {n.op for n in found.nodes} & {"gather", "matmul", "where", "less"} == set()
    assert "gather_linear" in {n.op for n in found.nodes}
    given_values = values(graph, np.random.default_rng(0))
    expected, mine = evaluate(graph, given_values), evaluate(found, given_values)
    np.testing.assert_array_equal(mine["y"], expected["y"])


def test_an_index_that_is_moved_otherwise_stays() -> None:
    found = recognise(simplify(experts((7,), False, last=2)))
    assert {"gather_linear", "where"} <= {n.op for n in found.nodes}


@pytest.mark.parametrize(
    "other",
    [
        lambda named, x: named @ x.reshape(6, DEEP, 1).expand(6, DEEP, 2),  # several columns
        lambda named, x: named @ x.reshape(6, DEEP, 1)[:1],  # one row for all
        lambda named, x: named + x.reshape(6, 1, DEEP),
    ],
)
def test_others_stay(other: object) -> None:
    g = GraphBuilder()
    x, index = g.input("x", (6, DEEP)), g.input("index", (6,), "int64")
    named = ops.gather(g.parameter("w", (COUNT, WIDE, DEEP)), index)
    assert callable(other)
    y: Node = other(named, x)
    g.output("y", y)
    graph = g.build()
    assert by_index(graph) is graph


@given(st.data())
def test_only_rows_that_changed_are_computed(data: st.DataObject) -> None:
    """Whatever matrices the others go to, in bits too."""
    graph = recognise(simplify(experts((9,), data.draw(st.booleans()))))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    all_values = values(graph, random)
    weights = {"w": all_values.pop("w")}
    session = tg.GraphSession(graph, weights, exact=data.draw(st.sampled_from([None, "bitwise"])))
    session.run(all_values)
    for _ in range(4):
        all_values = {name: value.copy() for name, value in all_values.items()}
        row = data.draw(st.integers(0, 8))
        if data.draw(st.booleans()):
            all_values["index"][row] = random.integers(0, COUNT)
        all_values["x"][row] += 1.0
        found = session.run(all_values)["y"]
        expected = evaluate(graph, {**all_values, **weights})["y"]
        np.testing.assert_array_equal(found, expected)
    assert session.last is not None
    program = session.last.program
    boxes = [m.box.at(program.origin or ()) for m in program.instructions
             if m.node.op == "gather_linear"]  # fmt: skip
    assert [box[0] for box in boxes] == [(row, row + 1)]


def test_an_index_that_names_no_matrix_is_an_error() -> None:
    graph = recognise(simplify(experts((3,), False)))
    random = np.random.default_rng(0)
    all_values = values(graph, random)
    weights = {"w": all_values.pop("w")}
    session = tg.GraphSession(graph, weights)
    session.run(all_values)
    with pytest.raises((tg.TgbenchError, IndexError)):
        session.run({**all_values, "index": np.array([0, COUNT, 1])})
    found = session.run(all_values)["y"]
    np.testing.assert_array_equal(found, evaluate(graph, {**all_values, **weights})["y"])
