"""Kernels written from steps: the reference's numbers, whatever the steps, the part and the layout.

Small integers make float arithmetic exact, so that equality is of bits; with NaN, infinities and
zeros of both signs it is seen that nothing was reordered but sums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.test_kernels import Memory, evaluate, make_site, run
from rowwise_cases import (
    COMPARED,
    NORM,
    PLAIN,
    SPECIAL,
    WHOLE,
    Array,
    check_special_numbers,
    check_whole_numbers,
    check_zeros,
    expressions,
    part,
    parts,
)

from tgbench import ops
from tgbench.base.errors import GraphError
from tgbench.base.machine import Machine
from tgbench.base.regions import Box
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import source_hash
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import OPS
from tgbench.graph.ops.rowwise import MOST_INPUTS
from tgbench.graph.rewrite.rules.rowwise import StepWriter, clusters
from tgbench.kernels import KERNELS, candidates
from tgbench.session.session import GraphSession

pytest.importorskip("numba")

from tgbench.kernels.numba import scalars as scalars


def by_loop(node: Node, leaves: dict[str, Array], box: Box, seed: int) -> Array | None:
    """What the written loop computes, in the first random layout that it takes."""
    values = [evaluate(parent, leaves) for parent in node.inputs]
    for attempt in range(60):
        memory = Memory()
        site = make_site(node, box, values, memory, np.random.default_rng((seed, attempt)))
        for kernel in candidates(site):
            if kernel.name == "rowwise_numba":
                return run(kernel, site, memory)
    return None


@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_whole_numbers_have_the_bits_of_the_reference(data: st.DataObject, seed: int) -> None:
    node = data.draw(expressions((*WHOLE, "sum", "max", "min"), 5))
    check_whole_numbers(by_loop, node, data.draw(parts(node)), seed)


@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_what_is_no_number_comes_out_as_from_the_reference(data: st.DataObject, seed: int) -> None:
    node = data.draw(expressions((*PLAIN, *COMPARED, "max", "min", "maximum", "minimum"), 4))
    check_special_numbers(by_loop, node, seed)


@pytest.mark.parametrize("name", ["neg", "abs", "floor", "ceil", "sqrt", "tanh", "erf"])
def test_zeros_keep_their_signs(name: str) -> None:
    check_zeros(by_loop, name)


def test_a_row_alone_has_the_same_bits() -> None:
    node = ops.rowwise(NORM, GraphBuilder().input("x", (6, 301)))
    leaves = {"x": np.random.default_rng(0).normal(size=(6, 301)).astype(np.float32)}
    whole = by_loop(node, leaves, Box.full(node.shape), 0)
    assert whole is not None
    np.testing.assert_allclose(whole, evaluate(node, leaves), 2e-6, 2e-6)
    for row in range(6):
        alone = by_loop(node, leaves, Box([(row, row + 1), (0, 301)]), row)
        assert alone is not None
        np.testing.assert_array_equal(alone[0], whole[row])


def test_columns_alone_have_the_same_bits_where_nothing_is_reduced() -> None:
    steps = (("tanh", 0), ("mul", 1, 0), ("log", 2), ("exp", 3), ("add", 4, 0))
    node = ops.rowwise(steps, GraphBuilder().input("x", (4, 77)))
    leaves = {"x": np.random.default_rng(0).normal(size=(4, 77)).astype(np.float32)}
    whole = by_loop(node, leaves, Box.full(node.shape), 0)
    assert whole is not None
    for start, stop in ((0, 1), (3, 19), (60, 77), (1, 77)):
        box = Box([(1, 3), (start, stop)])
        np.testing.assert_array_equal(by_loop(node, leaves, box, 1), part(whole, box))


def test_exp_is_no_zero_where_a_float32_is_none() -> None:
    node = ops.rowwise((("exp", 0),), GraphBuilder().input("x", (1, 64)))
    leaves = {"x": np.linspace(-104, 88.7, 64, dtype=np.float32)[None]}
    found = by_loop(node, leaves, Box.full(node.shape), 0)
    assert found is not None
    expected = evaluate(node, leaves).astype(np.float32)
    assert 0 < expected[0, 3] < 1.2e-38
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, 1e-5, 1e-45)


@pytest.mark.parametrize("name", ["tanh", "log"])
def test_functions_are_right_to_two_units(name: str) -> None:
    values = {"tanh": np.linspace(-12, 12, 9_001), "log": np.logspace(-44, 38, 9_001)}[name]
    line = values.astype(np.float32)
    expected = OPS[name].reference({}, line.astype(np.float64))
    function = getattr(scalars, f"{name}32")
    found = np.array([function(value) for value in line])
    unit = np.spacing(np.abs(expected).astype(np.float32))
    assert (np.abs(found - expected) <= 2 * unit).all()


# --- the op ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [
    (), (("gather", 0, 0),), (("add", 0),), (("add", 0, 1),), (("neg", -1),), (("neg", 0.0),),
    (("number", 1),), (("neg", True),), ("neg",), (("number", -0.0), ("add", 0, 1)),
    (("neg", 0),) * 65, (("where", 0, 0, 0),),
    (("__import__('os')", 0),), (("neg", 0), ("abs", 0)),
])  # fmt: skip
def test_what_is_no_step_is_refused(steps: Any) -> None:
    with pytest.raises(GraphError):
        ops.rowwise(steps, GraphBuilder().input("x", (2, 3)))


def test_an_input_that_no_step_reads_is_refused() -> None:
    g = GraphBuilder()
    with pytest.raises(GraphError, match="read"):
        ops.rowwise((("neg", 0),), g.input("x", (2, 3)), g.input("y", (2, 3)))


def test_too_many_inputs_are_refused() -> None:
    g = GraphBuilder()
    with pytest.raises(GraphError, match="up to 6 inputs"):
        ops.rowwise((("neg", 0),), *(g.input(f"x{i}", (2, 3)) for i in range(MOST_INPUTS + 1)))


# --- clusters -------------------------------------------------------------------------------------


def capped() -> Graph:
    """A product, and what no fused op covers: a softmax of capped scores, weighted and normed."""
    g = GraphBuilder()
    x, w = g.input("x", (8, 32)), g.parameter("w", (48, 32))
    scores = ops.softmax(ops.tanh(ops.linear(x, w) * 0.1) * 10.0)
    centred = scores - ops.mean(scores, -1, keepdims=True)
    g.output("y", centred / (ops.max_(abs(centred), -1, keepdims=True) + 0.5))
    return g.build()


def test_a_zero_below_zero_stays_one() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 40))
    g.output("y", (x + -0.0) / abs(ops.maximum(x, 0.0)))
    (found,) = clusters(g.build()).items()
    node = StepWriter(*found).node()
    assert node is not None
    leaves = {"x": np.array(SPECIAL * 10 + (0.0,) * 10, np.float32).reshape(2, 40)}
    expected = evaluate(found[0], leaves)
    np.testing.assert_array_equal(evaluate(node, leaves), expected)


def test_a_cluster_is_as_large_as_it_can_be() -> None:
    graph = capped()
    (found,) = clusters(graph).items()
    end, members = found
    assert end is graph.outputs["y"]
    assert {node.op for node in graph.nodes if not node.is_leaf} - {
        node.op for node in members
    } == {"linear"}


def test_what_is_read_elsewhere_ends_a_cluster() -> None:
    g = GraphBuilder()
    x = g.input("x", (4, 8))
    h = abs(ops.exp(x) + 1.0) * x
    g.output("h", h)
    g.output("y", ops.tanh(abs(ops.tanh(h) * 2.0)))
    graph = g.build()
    assert {*clusters(graph)} == {*graph.outputs.values()}


def session_of(graph: Graph, records: Records | None = None) -> GraphSession:
    rng = np.random.default_rng(1)
    weights = {
        name: rng.normal(0, 0.3, node.shape).astype("float32")
        for name, node in graph.parameters.items()
    }
    return GraphSession(graph, weights=weights, records=records, calibrate=False)


def as_rows() -> Graph:
    """The same with its cluster as one op."""
    (found,) = clusters(capped()).items()
    made = StepWriter(*found).node()
    assert made is not None
    return Graph.of({"y": made})


def test_a_cluster_is_one_call_with_the_same_result() -> None:
    x = np.random.default_rng(0).normal(size=(8, 32)).astype("float32")
    given, one = session_of(capped()), session_of(as_rows())
    np.testing.assert_allclose(given.run({"x": x})["y"], one.run({"x": x})["y"], 2e-6, 2e-6)
    report = one.last
    assert report is not None
    assert "rowwise_numba" in str(report.program)
    assert report.instructions == 2
    x[3] = 0.5
    np.testing.assert_allclose(given.run({"x": x})["y"], one.run({"x": x})["y"], 2e-6, 2e-6)
    report = one.last
    assert report is not None
    assert [str(made) for made in report.program.instructions] == [
        "linear[u0:u0+1, 0:48] ← linear_numba",
        "rowwise[u0:u0+1, 0:48] ← rowwise_numba",
    ]


def test_absurd_records_change_what_computes_a_cluster(tmp_path: Path) -> None:
    graph, records = as_rows(), Records(tmp_path / "absurd.db")
    plain, x = session_of(graph), np.ones((8, 32), np.float32)
    plain.run({"x": x})
    assert plain.last is not None
    site = next(
        one.site for one in plain.last.program.instructions if one.kernel == "rowwise_numba"
    )
    assert site is not None
    signature = plain.costs.signature(site)
    told = {"rowwise_numba": 10**9, "rowwise": 1_000}
    records.add(
        Record(
            kernel.name, source_hash(kernel), signature.text, Machine.here().fingerprint,
            (told[kernel.name],) * 3, flops=signature.flops, size_bytes=signature.size_bytes,
            modelled_ns=1000.0,
        )
        for kernel, _ in plain.costs.ranked(site) if kernel.name in told
    )  # fmt: skip
    other = session_of(graph, records)
    other.run({"x": x})
    assert "rowwise_numba" not in str(other.last.program if other.last else "rowwise_numba")


def test_measured_costs_decide_whether_a_path_has_a_cluster_as_one(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(8, 32)).astype("float32")
    session, records = session_of(capped()), Records(tmp_path / "slow.db")
    expected = session.run({"x": x})["y"]
    paths = session.paths()
    best = next(iter(paths))
    assert "rows as one" in best.rules
    opened = paths.open(best)
    np.testing.assert_allclose(opened.run({"x": x})["y"], expected, 2e-6, 2e-6)
    assert opened.last is not None
    assert "rowwise_numba" in str(opened.last.program)
    slow = [(call, kernel) for call in best.calls if call.node.op == "rowwise"
            for kernel in KERNELS["rowwise"]]  # fmt: skip
    records.add(
        Record(
            kernel.name, source_hash(kernel), call.lying, Machine.here().fingerprint,
            (10**9,) * 3, flops=1.0, size_bytes=1, modelled_ns=1e9,
        )
        for call, kernel in slow
    )  # fmt: skip
    other = session_of(capped(), records)
    other.run({"x": x})
    assert "rows as one" not in next(iter(other.paths())).rules
