"""Kernels written in Triton's language: by its interpreter the reference's numbers, whatever the
steps, the part and the layout; by its compiler code for GPUs that are not here.

Skipped, with the reason, without Triton. A GPU runs them compiled (`tests/gpu`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.test_kernels import Memory, evaluate, make_site, run
from places import ROOT
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
from tgbench.base.regions import Box
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.op_table import OPS
from tgbench.graph.ops.rowwise import ARITY, LOGICAL, Step
from tgbench.kernels import candidates
from tgbench.kernels.triton import rowwise

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("functions are compiled here, for a GPU: tests/gpu", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


def by_kernel(node: Node, leaves: dict[str, Array], box: Box, seed: int) -> Array:
    """What the written kernel computes, in the first random layout that it takes."""
    values = [evaluate(parent, leaves) for parent in node.inputs]
    for attempt in range(60):
        memory = Memory()
        site = make_site(node, box, values, memory, np.random.default_rng((seed, attempt)))
        for kernel in candidates(replace(site, home="cuda:0")):
            if kernel.name == "rowwise_triton":
                return run(kernel, site, memory)
    raise AssertionError(f"{node.op} at {box}: no layout suits the kernel")


@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_whole_numbers_have_the_bits_of_the_reference(data: st.DataObject, seed: int) -> None:
    node = data.draw(expressions((*WHOLE, "sum", "max", "min"), 5))
    check_whole_numbers(by_kernel, node, data.draw(parts(node)), seed)


@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_what_is_no_number_comes_out_as_from_the_reference(data: st.DataObject, seed: int) -> None:
    node = data.draw(expressions((*PLAIN, *COMPARED, "max", "min", "maximum", "minimum"), 4))
    check_special_numbers(by_kernel, node, seed)


@pytest.mark.parametrize("name", ["neg", "abs", "floor", "ceil", "sqrt", "tanh", "erf"])
def test_zeros_keep_their_signs(name: str) -> None:
    check_zeros(by_kernel, name)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_what_is_no_number_is_the_larger_and_the_smaller(name: str) -> None:
    g, pairs = GraphBuilder(), np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32)
    node = ops.rowwise(((name, 0, 1),), g.input("x", (1, 49)), g.input("y", (1, 49)))
    leaves = {"x": pairs[None, :, 0], "y": pairs[None, :, 1]}
    found = by_kernel(node, leaves, Box.full(node.shape), 0)
    np.testing.assert_array_equal(found, OPS[name].reference({}, *leaves.values()))


@pytest.mark.parametrize("name", ["max", "min"])
def test_what_is_no_number_is_the_extreme_of_its_row(name: str) -> None:
    signs = (np.nan, np.copysign(np.nan, -1.0))
    rows = [np.roll([one, np.inf, -np.inf, 2.0], i) for one in signs for i in range(4)]
    line = np.array(rows, np.float32)
    node = ops.rowwise(((name, 0), ("add", 0, 1)), GraphBuilder().input("x", line.shape))
    assert np.isnan(by_kernel(node, {"x": line}, Box.full(node.shape), 0)).all()
    line[line != line] = 0.0
    found = by_kernel(node, {"x": line}, Box.full(node.shape), 0)
    np.testing.assert_array_equal(found, evaluate(node, {"x": line}))


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid"])
def test_functions_are_right_to_four_units(name: str) -> None:
    values = {"log": np.logspace(-44, 38, 3_001)}.get(name, np.linspace(-12, 12, 3_001))
    line = values.astype(np.float32)
    node = ops.rowwise(((name, 0),), GraphBuilder().input("x", line.shape))
    found = by_kernel(node, {"x": line}, Box.full(node.shape), 0)
    expected = OPS[name].reference({}, line.astype(np.float64))
    unit = np.spacing(np.abs(expected).astype(np.float32))
    assert (np.abs(found - expected) <= 4 * unit).all()


@pytest.mark.parametrize("columns", [2, 301, rowwise.MOST_COLUMNS, 2 * rowwise.MOST_COLUMNS + 5])
def test_rows_of_any_length_in_one_block_or_in_several(columns: int) -> None:
    node = ops.rowwise(NORM, GraphBuilder().input("x", (3, columns)))
    rng = np.random.default_rng(columns)
    leaves = {"x": rng.normal(size=(3, columns)).astype(np.float32)}
    whole = by_kernel(node, leaves, Box.full(node.shape), 0)
    np.testing.assert_allclose(whole, evaluate(node, leaves), 4e-6, 4e-6)
    alone = by_kernel(node, leaves, Box([(1, 2), (0, columns)]), 1)
    np.testing.assert_array_equal(alone[0], whole[1])


def test_extremes_and_nan_of_rows_in_several_blocks() -> None:
    steps = (("max", 0), ("min", 0), ("add", 1, 2), ("add", 0, 3))
    columns = 2 * rowwise.MOST_COLUMNS + 5
    node = ops.rowwise(steps, GraphBuilder().input("x", (3, columns)))
    line = -1 - np.arange(3 * columns, dtype=np.float32).reshape(3, columns) % 97
    line[1, -1], line[2, 0] = np.nan, -np.inf
    found = by_kernel(node, {"x": line}, Box.full(node.shape), 0)
    np.testing.assert_array_equal(found, evaluate(node, {"x": line}))


def test_elements_of_many_columns_are_shared_out() -> None:
    steps = (("tanh", 0), ("mul", 1, 0))
    node = ops.rowwise(steps, GraphBuilder().input("x", (2, 3 * rowwise.MOST_COLUMNS)))
    rng = np.random.default_rng(0)
    leaves = {"x": rng.normal(size=node.shape).astype(np.float32)}
    box = Box([(0, 2), (5, node.shape[1] - 7)])
    expected = part(evaluate(node, leaves), box)
    np.testing.assert_allclose(by_kernel(node, leaves, box, 0), expected, 4e-6, 4e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_half_floats_are_rounded_at_the_end(dtype: str) -> None:
    steps = (("mean", 0), ("sub", 0, 2), ("mul", 3, 1))
    g = GraphBuilder()
    node = ops.rowwise(steps, g.input("x", (4, 70), dtype), g.input("w", (70,), dtype))
    rng = np.random.default_rng(0)
    leaves = {"x": rng.normal(size=(4, 70)), "w": rng.normal(size=70)}
    leaves = {name: array.astype(dtype) for name, array in leaves.items()}
    found = by_kernel(node, leaves, Box.full(node.shape), 0)
    exact = evaluate(node, leaves)
    assert found.dtype == dtype
    assert (np.abs(found - exact) <= np.spacing(np.abs(exact).astype(dtype)) + 1e-7).all()


def test_a_gpu_has_it_beside_the_calls_of_torch_and_a_cpu_does_not() -> None:
    node = ops.rowwise(NORM, GraphBuilder().input("x", (6, 301)))
    leaf = np.zeros((6, 301), np.float32)
    box = Box.full(node.shape)
    site = make_site(node, box, [leaf], Memory(), np.random.default_rng(3))
    there = replace(site, home="cuda:0")
    assert [kernel.name for kernel in candidates(there)] == ["rowwise", "rowwise_triton"]
    assert "rowwise_triton" not in [kernel.name for kernel in candidates(site)]


# --- compiled -------------------------------------------------------------------------------------

COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tgbench.kernels.passes import row_passes
from tgbench.kernels.triton import written

steps, dtype, capability = eval(sys.argv[1], {"inf": float("inf")}), sys.argv[2], int(sys.argv[3])
for is_whole in (True, False):
    rows = row_passes(steps, (True, False, True), is_whole)
    function = written.function(rows, (False, False, True), is_whole)
    kinds = {"a0": f"*{dtype}", "a1": f"*{dtype}", "a2": "*i1", "y": f"*{dtype}"}
    signature = {name: kinds.get(name, "i32") for name in written.arguments(3)}
    signature |= dict.fromkeys(("ROWS", "COLUMNS", "BLOCKS"), "constexpr")
    source = ASTSource(function, signature, {"ROWS": 2, "COLUMNS": 1024, "BLOCKS": 3})
    made = triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": 4})
    print(*made.asm)
"""


def every_step() -> tuple[Step, ...]:
    """Each kind of step, of numbers (0), one number a row (1) and bools (2), all of it added up."""
    steps: list[Step] = [(name, 0, 1) for name in LOGICAL]
    steps += [("where", i, 0, 1) for i in range(2, 3 + len(LOGICAL))]
    pairs = [name for name, arity in ARITY.items() if arity == 2 and name not in LOGICAL]
    steps += [("number", 0.5), ("number", float("inf"))]
    steps += [(name, 0, 1) for name in pairs]
    steps += [(name, 0) for name, arity in ARITY.items() if arity == 1]
    numbers = [i for i, step in enumerate(steps, 3) if step[0] not in LOGICAL]
    for i in numbers:
        steps.append(("add", 2 + len(steps), i))
    return tuple(steps)


@pytest.mark.parametrize(("dtype", "capability"), [("fp32", 80), ("fp16", 90), ("bf16", 90)])
def test_every_step_compiles_to_machine_code(dtype: str, capability: int, tmp_path: Path) -> None:
    """Without a GPU, and in a process of its own: here functions are the interpreter's."""
    environment = {
        **os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, repr(every_step()), dtype, str(capability)],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("cubin") == 2
