"""Arithmetic in less, where it is allowed: rounded factors, sums in float32, and nothing hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from library_cases import NEEDS_LIBRARY, NEEDS_ROUNDING, ROUNDS, passes_with, worth_it
from session_cases import PoisonedSession

from tgbench import ops
from tgbench.base.errors import ExactnessError, KernelError, PlanError, ProgramsError
from tgbench.base.safetensors import save
from tgbench.commands.cli import main
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import save_graph
from tgbench.kernels.registry import prepared_bytes, prepared_inputs
from tgbench.session.check.check import check
from tgbench.session.session import GraphSession
from tgbench.views.values.paths import kernels_of

Arrays = dict[str, np.ndarray[Any, Any]]
OFF = 2.0**-7  # of the largest sum of absolute products: two roundings by 2⁻⁹, and some


@pytest.fixture(autouse=True, scope="module")
def rounding_kernels() -> Iterator[None]:
    with worth_it(lambda kernel: kernel.rounds):
        yield


def network() -> Graph:
    """Every op whose factors may be rounded, and some between them."""
    g = GraphBuilder()
    image = g.input("x", (1, 3, 9, 9))
    image = ops.relu(ops.conv(image, g.parameter("c", (8, 3, 3, 3)), padding=1))
    image = image + ops.conv(image, g.parameter("p", (8, 8, 1, 1)), g.parameter("q", (8,)))
    rows = image.reshape(8, 81)
    rows = ops.relu(ops.linear(rows, g.parameter("w", (16, 81)), g.parameter("b", (16,))))
    g.output("y", ops.gated_linear(rows, g.parameter("u", (5, 16)), g.parameter("v", (5, 16)),
                                   activation="relu"))  # fmt: skip
    return g.build()


def drawn(graph: Graph, seed: int, *, small: bool = False) -> Arrays:
    """Values of all leaves; small ones are 0 or ±1, mostly 0, so that bfloat16 holds all sums."""
    rng = np.random.default_rng(seed)

    def array(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if small:
            return rng.choice([-1.0, 1.0], shape) * (rng.random(shape) < 0.06)
        return rng.normal(size=shape) / np.sqrt(max(1, np.prod(shape[1:])))

    leaves = {**graph.inputs, **graph.parameters}
    return {name: array(node.shape).astype("float32") for name, node in leaves.items()}


def opened(graph: Graph, values: Arrays, **options: Any) -> GraphSession:
    weights = {name: values[name] for name in graph.parameters}
    return PoisonedSession(graph, weights, calibrate=False, **options)


def rounding(**options: Any) -> dict[str, Any]:
    return {"arithmetic": "bf16", **options}


def edited(x: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """One element is another one, a small whole number."""
    rng, found = np.random.default_rng(seed), x.copy()
    found.flat[rng.integers(x.size)] = rng.integers(-1, 2)
    return found


# --- what it computes -----------------------------------------------------------------------------


@NEEDS_ROUNDING
@given(st.integers(0, 10_000))
@settings(max_examples=15)
def test_whole_numbers_that_bfloat16_holds_are_exact(seed: int) -> None:
    graph = network()
    values = drawn(graph, seed, small=True)
    one, exact = opened(graph, values, **rounding()), opened(graph, values)
    x = values["x"]
    for i in range(4):
        found, right = one.run({"x": x})["y"], exact.run({"x": x})["y"]
        assert np.array_equal(found, right)
        x = edited(x, seed + i)
    assert one.report().rounded or not one.report().instructions


@NEEDS_ROUNDING
@given(st.integers(0, 10_000))
@settings(max_examples=15)
def test_incremental_runs_equal_full_ones_within_the_rounding(seed: int) -> None:
    graph = network()
    values = drawn(graph, seed)
    kept, exact = opened(graph, values, **rounding()), opened(graph, values)
    x = values["x"]
    for i in range(4):
        found = kept.run({"x": x})["y"]
        fresh = opened(graph, values, **rounding())
        full, right = fresh.run({"x": x})["y"], exact.run({"x": x})["y"]
        assert fresh.report().rounded == 4
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(found, full, rtol=0, atol=4 * OFF * scale)
        np.testing.assert_allclose(full, right, rtol=0, atol=4 * OFF * scale)
        x = edited(x, seed + i)


@NEEDS_LIBRARY
@given(st.integers(0, 10_000))
@settings(max_examples=15)
def test_clean_values_keep_their_bits(seed: int) -> None:
    g = GraphBuilder()
    x = g.input("x", (12, 20))
    g.output("y", ops.relu(ops.linear(x, g.parameter("w", (17, 20)))))
    graph = g.build()
    values = drawn(graph, seed)
    one = opened(graph, values, retain="all", **rounding())
    before = one.run({"x": values["x"]})["y"]
    changed = values["x"].copy()
    rows = np.unique(np.random.default_rng(seed).integers(0, 12, 3))
    changed[rows] += 1
    after = one.run({"x": changed})["y"]
    clean = np.setdiff1d(np.arange(12), rows)
    assert np.array_equal(after[clean], before[clean])
    assert not np.array_equal(after[rows], before[rows])


@NEEDS_ROUNDING
@pytest.mark.parametrize("weights_dtype", [None, "bf16"])
def test_factors_are_rounded_and_sums_are_not(weights_dtype: Any) -> None:
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (6, 50)), g.parameter("w", (9, 50))))
    graph = g.build()
    values = drawn(graph, 3)
    one = opened(graph, values, weights_dtype=weights_dtype, **rounding())
    found = one.run({"x": values["x"]})["y"]
    assert one.report().rounded == 1
    x, w = (torch.from_numpy(values[name]).bfloat16().double() for name in "xw")
    right = (x @ w.T).numpy()
    assert np.abs(found - right).max() < 1e-6 * np.abs(right).max()


def test_the_default_never_rounds() -> None:
    graph = network()
    values = drawn(graph, 1)
    for options in ({}, {"weights_dtype": "bf16"}):
        one = opened(graph, values, **options)
        one.run({"x": values["x"]})
        assert one.report().rounded == 0
        assert "arithmetic" not in str(one.graph)


# --- it shows -------------------------------------------------------------------------------------


@NEEDS_ROUNDING
def test_it_is_told_wherever_it_is_asked_about() -> None:
    graph = network()
    values = drawn(graph, 2)
    one, exact = opened(graph, values, **rounding()), opened(graph, values)
    right = exact.run({"x": values["x"]})
    one.run({"x": values["x"]})
    assert "4 instructions rounded what they multiply (arithmetic)" in str(one.report())
    frame = kernels_of(one, "linear").to_frame()
    assert set(frame.loc[frame["rounds to"] == "bfloat16", "name"]) == {"linear_direct_bf16"}
    assert "rounds to" not in kernels_of(exact, "linear").to_frame()
    found = check(one, [({"x": values["x"]}, right)], edits=3)
    assert not found.passed
    assert found.inexact == 4
    assert "4 products of factors that may be rounded (arithmetic)" in str(found)
    assert found.failure is None
    assert not any(node.is_wrong for node in found.nodes if node.op in ("conv", "linear"))
    plain = check(exact, [({"x": values["x"]}, right)])
    assert plain.passed
    assert plain.inexact == 0


@NEEDS_ROUNDING
def test_second_copies_of_weights_are_counted() -> None:
    graph = network()
    values = drawn(graph, 2)
    one, exact = opened(graph, values, **rounding()), opened(graph, values)
    assert 2 * one.pool.packed_bytes == 3 * exact.pool.packed_bytes  # in both dtypes, at most
    estimate = one.estimate_memory()["cpu"]
    one.run({"x": values["x"]})
    made = [tensor.nbytes for tensor in one.pool._prepared.values()]
    assert len(made) == 5
    assert str(one.pool.packed_bytes) == str(estimate.packed_bytes)
    for node in one.graph.nodes:
        if not node.is_leaf:
            for i in prepared_inputs(node.call, "cpu"):
                assert prepared_bytes(node.call, i, "cpu") == 6 * node.inputs[i].type.elements
    none = opened(graph, values, packed_bytes=0, **rounding())
    none.run({"x": values["x"]})
    assert not none.pool._prepared


@NEEDS_ROUNDING
def test_weights_held_in_less_are_laid_out_where_that_is_allowed() -> None:
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (6, 50)), g.parameter("w", (9, 50))))
    graph = g.build()
    values = drawn(graph, 3)
    found = []
    for allowed in (None, 0):
        one = opened(graph, values, weights_dtype="bf16", packed_bytes=allowed, **rounding())
        found.append(one.run({"x": values["x"]})["y"])
        assert one.pool.packed_bytes == (0 if allowed == 0 else 2 * 9 * 50)
        assert len(one.pool._prepared) == (allowed is None)
        assert one.report().rounded == 1
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


# --- where nothing rounds -------------------------------------------------------------------------


@pytest.mark.skipif(ROUNDS, reason="kernels here round; the test below hides them")
@pytest.mark.parametrize("weights_dtype", [None, "bf16"])
def test_where_no_kernel_rounds_all_is_float32_and_said(weights_dtype: Any) -> None:
    graph = network()
    values = drawn(graph, 2)
    exact = opened(graph, values, weights_dtype=weights_dtype)
    one = opened(graph, values, weights_dtype=weights_dtype, **rounding())
    x = values["x"]
    for i in range(3):
        assert np.array_equal(one.run({"x": x})["y"], exact.run({"x": x})["y"])
        assert one.report().rounded == 0
        told = "nothing was rounded (arithmetic): no kernel here does that" in str(one.report())
        assert told or not one.report().instructions
        x = edited(x, i)
    assert "(arithmetic)" not in str(exact.report())
    assert one.pool.packed_bytes == exact.pool.packed_bytes


@NEEDS_LIBRARY
def test_processors_that_do_not_round_compute_in_float32() -> None:
    assert passes_with("AVX2", [__file__], "no_kernel_rounds or commands or never_rounds") == 4


# --- refused, and kept apart ----------------------------------------------------------------------


def test_what_cannot_be_is_refused() -> None:
    graph = network()
    values = drawn(graph, 0)
    with pytest.raises(ExactnessError, match="leave one of the two out"):
        opened(graph, values, exact="bitwise", **rounding())
    with pytest.raises(KernelError, match="use one of bf16"):
        opened(graph, values, arithmetic="fp8")


def test_plans_and_programs_are_of_one_arithmetic(tmp_path: Path) -> None:
    graph = network()
    values = drawn(graph, 0)
    plan, programs, x = tmp_path / "p.plan.json", tmp_path / "p.programs", {"x": values["x"]}
    one = opened(graph, values, **rounding())
    one.run(x)
    one.save_plan(plan)
    one.save_programs(programs)
    again = opened(graph, values, plan=plan, **rounding())
    assert again.load_programs(programs)
    assert np.array_equal(again.run(x)["y"], opened(graph, values, **rounding()).run(x)["y"])
    with pytest.raises(PlanError):
        opened(graph, values, plan=plan)
    apart = opened(graph, values)
    apart.run(x)
    with pytest.raises(ProgramsError):
        apart.load_programs(programs)


def test_commands_see_the_graph_that_a_session_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = network()
    values = drawn(graph, 0)
    weights, plan = str(tmp_path / "w.safetensors"), str(tmp_path / "p.plan.json")
    save({n: torch.from_numpy(values[n]) for n in graph.parameters}, weights)
    model = str(save_graph(graph, tmp_path / "g.json"))
    one = opened(graph, values, **rounding())
    one.run({"x": values["x"]})
    one.save_plan(plan)
    given = ["plan", plan, "--graph", model, "--weights", weights]
    assert main([*given, "--arithmetic", "bf16"]) == 0
    assert main(given) != 0
    capsys.readouterr()
