"""How large the errors of kernels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_cases import CASES

import tgbench.graph.ops as ops
from tgbench.base.errors import KernelError
from tgbench.base.regions import Box
from tgbench.costs.probe import MOST_ELEMENTS, MOST_FLOPS, Twin, relative_error
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import KERNELS, Kernel, Site


def doubled(shape: tuple[int, ...] = (40, 6)) -> Node:
    g = GraphBuilder()
    return ops.exp(g.input("x", shape))


def kernel(run: Callable[[torch.Tensor, torch.Tensor], Any], most_rows: int = 1000) -> Kernel:
    def accepts(site: Site) -> bool:
        return site.out.shape[0] <= most_rows

    return Kernel("made", "exp", accepts, lambda s: 1.0, lambda s, _: (run, (s.operand(0), s.out)))


def right(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.exp(x, out=out)


def wrong(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.exp(x, out=out)
    out[0, 0] *= 2


def test_a_right_kernel_has_a_small_error() -> None:
    found = relative_error(kernel(right), doubled().call, "cpu")
    assert found is not None
    assert found <= 1e-6


def test_a_wrong_number_is_found() -> None:
    found = relative_error(kernel(wrong), doubled().call, "cpu")
    assert found is not None
    assert found > 0.01


def test_a_kernel_for_few_rows_is_tried_on_those() -> None:
    call = doubled().call
    assert relative_error(kernel(right, 20), call, "cpu") is not None
    assert relative_error(kernel(right, 1), call, "cpu") is not None
    assert relative_error(kernel(right, 0), call, "cpu") is None


def test_a_kernel_that_refuses_is_no_finding() -> None:
    def fail(x: torch.Tensor, out: torch.Tensor) -> None:
        raise KernelError("not here; elsewhere")

    assert relative_error(kernel(fail), doubled().call, "cpu") is None


def _bounded(call: Call) -> bool:
    elements = sum(t.elements for t in (*call.inputs, call.out))
    return elements <= MOST_ELEMENTS and call.op.flops(call, Box.full(call.out.shape)) <= MOST_FLOPS


def test_large_calls_shrink_and_small_ones_do_not() -> None:
    g = GraphBuilder()
    small = ops.linear(g.input("x", (3, 8)), g.parameter("w", (5, 8)))
    large = ops.linear(g.input("y", (512, 640)), g.parameter("v", (262144, 640)))
    assert not _bounded(large.call)
    for node in (small, large):
        twin = Twin.of(node.call, "cpu")
        assert twin is not None
        assert _bounded(twin.call)
        assert twin.call.in_shapes[0][1] == node.call.in_shapes[0][1]  # the depth stays
    twin = Twin.of(small.call, "cpu")
    assert twin is not None
    assert twin.call.in_shapes == small.call.in_shapes


def test_rows_run_along_the_longest_dimension() -> None:
    for shape, axis in (((1, 9, 4, 64), 1), ((1, 4, 9, 64), 2), ((7,), 0), ((), 0), ((3, 99), 0)):
        twin = Twin.of(doubled(shape).call, "cpu")
        assert twin is not None
        assert twin.row_axis == axis


@pytest.mark.parametrize(
    "case", {case.node.op: case for case in CASES.values()}.values(), ids=lambda case: case.name
)
def test_every_op_can_be_probed(case: Any) -> None:
    call = case.node.call
    for made in KERNELS[case.node.op][:2]:
        found = relative_error(made, call, "cpu")
        tight = call.out.dtype in ("float32", "float64") and not made.name.endswith("completed")
        assert found is None or not tight or found < 1e-4, made.name
