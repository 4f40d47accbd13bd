"""What takes one of two values for each number: beside PyTorch, however operands lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tgbench as tg
from tgbench import ops
from tgbench.base.regions import Box
from tgbench.costs.model import CostModel
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.kernels.binding import bound, tensor_of
from tgbench.kernels.registry import KERNELS, View
from tgbench.kernels.views import dense

pytestmark = pytest.mark.skipif(
    not any(k.name == "where_numba" for k in KERNELS["where"]), reason="needs numba"
)


def _laid(view: View, order: tuple[int, ...]) -> View:
    """The same elements, whose dimensions lie in another order."""
    inside = dense([view.shape[axis] for axis in order], view.dtype)
    back = sorted(range(len(order)), key=lambda axis: order[axis])
    permuted = inside.permute(*back)
    return View(view.buffer, view.dtype, permuted.shape, permuted.strides, 0)


def computed(node: Node, kernel: str, orders: list[tuple[int, ...]], values: list[Any]) -> Any:
    """A node by one kernel, its operands and result laid so; None where it does not take that."""
    costs = CostModel()
    site = costs.site(node.call, Box.full(node.shape))
    ins = [
        _laid(view, order[: view.rank]) if view is not None and view.rank == len(order) else view
        for view, order in zip(site.ins, orders, strict=False)
    ]
    laid = _laid(site.out, orders[-1])
    made = type(site)(site.call, site.out_box, site.in_boxes, laid, tuple(ins), "cpu")
    (chosen,) = (one for one in KERNELS[node.op] if one.name == kernel)
    if not chosen.takes(made):
        return None
    buffers: dict[tuple[Any, str], torch.Tensor] = {}
    for view, value in zip((*made.ins, made.out), (*values, np.zeros(node.shape)), strict=True):
        assert view is not None
        dtype = getattr(torch, view.dtype)
        buffers[view.buffer, view.dtype] = torch.zeros(int(np.prod(view.shape)), dtype=dtype)
        tensor_of(view, buffers).copy_(torch.from_numpy(np.asarray(value)).to(dtype))
    function, arguments = bound(chosen, made, buffers, "cpu")
    function(*arguments)
    return tensor_of(made.out, buffers).numpy()


ORDERS = st.permutations(range(4)).map(tuple)


@given(st.lists(ORDERS, min_size=4, max_size=4), st.sampled_from(["float32", "float64"]))
def test_where_however_operands_lie(orders: list[tuple[int, ...]], dtype: str) -> None:
    g, rng, shape = GraphBuilder(), np.random.default_rng(0), (2, 3, 4, 5)
    one, other = (g.input(name, shape, dtype) for name in "ab")
    node = ops.where(g.input("c", shape, "bool"), one, other)
    values = [rng.random(shape) > 0.5, *(rng.standard_normal(shape) for _ in range(2))]
    found = computed(node, "where_numba", orders, values)
    if found is not None:
        right = np.where(values[0], values[1].astype(dtype), values[2].astype(dtype))
        assert np.array_equal(found, right)


@given(ORDERS, st.booleans())
def test_prelu_however_images_lie(order: tuple[int, ...], one_number: bool) -> None:
    g, rng, shape = GraphBuilder(), np.random.default_rng(1), (2, 3, 4, 5)
    slopes = (1,) if one_number else (3, 1, 1)
    node = ops.prelu(g.input("x", shape), g.parameter("w", slopes))
    x, w = rng.standard_normal(shape), rng.standard_normal(slopes)
    found = computed(node, "prelu_numba", [order, order], [x, w])
    assert found is not None
    x, w = x.astype("float32"), w.astype("float32")
    assert np.array_equal(found, np.where(x > 0, x, x * w))


def test_images_whose_channels_lie_side_by_side_are_taken() -> None:
    g = GraphBuilder()
    node = ops.where(g.input("c", (1, 8, 6, 6), "bool"), g.input("a", (1, 8, 6, 6)), 0.0)
    last = (0, 2, 3, 1)
    values = [np.ones(node.shape, bool), np.ones(node.shape), np.zeros(())]
    assert computed(node, "where_numba", [last] * 4, values) is not None


NETS: dict[str, Callable[[], torch.nn.Module]] = {
    "conv": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.PReLU(8), torch.nn.Conv2d(8, 4, 3)
    ),
    "signal": lambda: torch.nn.Sequential(torch.nn.Conv1d(3, 8, 3, padding=1), torch.nn.PReLU()),
}


@pytest.mark.parametrize("name", NETS)
def test_modules_with_prelu_are_one_op_and_equal(name: str) -> None:
    torch.manual_seed(0)
    module = NETS[name]().eval()
    x = torch.randn(1, 3, 16, 12) if name == "conv" else torch.randn(1, 3, 40)
    imported = tg.from_torch(module, (x,))
    assert [node.op for node in imported.graph.nodes].count("prelu") == 1
    session = tg.GraphSession(imported, calibrate=False, making="always")
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for _ in range(8):
            at = int(rng.integers(0, 10))
            x[..., at : at + 2] = torch.randn(x[..., at : at + 2].shape)
            found = next(iter(session.run(x.numpy()).values()))
            np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-4, atol=1e-5)
