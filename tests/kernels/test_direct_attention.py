"""Attention by oneDNN: heads that lie between each other, and all kinds of masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgbench import ops
from tgbench.base.regions import Box
from tgbench.graph.graph import GraphBuilder
from tgbench.kernels import KERNELS, Kernel, Site
from tgbench.kernels.binding import bound
from tgbench.kernels.onednn.library import library
from tgbench.kernels.registry import OUT, View
from tgbench.kernels.views import dense
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession

pytestmark = pytest.mark.skipif(library is None, reason="the extra `onednn` is not installed")
MASKS = (None, "causal", "columns", "added", "added by head")
POISON = 1e30


def kernel() -> Kernel:
    return next(one for one in KERNELS["attention"] if one.name == "attention_direct")


def between(key: Any, shape: tuple[int, ...]) -> View:
    """Heads as layers write them: those of one row side by side."""
    batch, heads, rows, width = shape
    view = dense((batch, rows, heads, width), "float32").permute(0, 2, 1, 3)
    return View(key, view.dtype, view.shape, view.strides, 0)


def masked(
    g: GraphBuilder, kind: str | None, batch: int, heads: int, rows: int, columns: int
) -> Any:
    if kind == "causal":
        return g.constant(np.tril(np.ones((rows, columns), bool), columns - rows))
    if kind == "columns":
        return g.input("m", (batch, 1, 1, columns), "bool")
    if kind is None:
        return None
    return g.input("m", (1, heads if kind == "added by head" else 1, rows, columns))


def attended(
    batch: int, heads: int, rows: int, columns: int, width: int, kind: str | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What the kernel computes, and what is right; None if it refuses."""
    g, generator = GraphBuilder(), torch.Generator().manual_seed(0)
    q = g.input("q", (batch, heads, rows, width))
    k, v = (g.input(name, (batch, heads, columns, width)) for name in "kv")
    node = ops.attention(q, k, v, mask=masked(g, kind, batch, heads, rows, columns))
    box = Box.full(node.shape)
    reads = Rules().reads(node.call, box)
    assert all(have == Box.full(one.shape) for have, one in zip(reads, node.inputs, strict=True))
    values = [torch.randn(one.shape, generator=generator) for one in node.inputs]
    views = [between(i, one.shape) for i, one in enumerate(node.inputs[:3])]
    buffers: dict[tuple[Any, str], torch.Tensor] = {}
    for view, value in zip(views, values, strict=False):
        flat = torch.empty(value.numel())
        flat.as_strided(view.shape, view.strides).copy_(value)
        buffers[view.buffer, "float32"] = flat
    bias = torch.zeros(rows, columns)
    if kind is not None:
        mask = node.inputs[3]
        if mask.dtype == "bool":
            opened = torch.tensor(mask.attrs["data"].array) if kind == "causal" else values[3] > 0
            opened[..., 0] = True
            bias = bias.masked_fill(~opened, -torch.inf)
            buffers[3, "bool"] = opened.flatten()
        else:
            bias = values[3]
            buffers[3, "float32"] = bias.flatten()
        views.append(View(3, mask.dtype, *dense_of(mask.shape)))
    target = between(OUT, node.shape)
    buffers[OUT, "float32"] = torch.full((batch * heads * rows * width,), POISON)
    site = Site(node.call, box, reads, target, tuple(views), "cpu")
    if not kernel().takes(site):
        return None
    function, arguments = bound(kernel(), site, buffers, "cpu")
    function(*arguments)
    found = buffers[OUT, "float32"].as_strided(target.shape, target.strides)
    wide = [value.double() for value in values[:3]]
    scores = wide[0] @ wide[1].mT * node.attrs["scale"] + bias.double()
    return found, scores.softmax(-1) @ wide[2]


def dense_of(shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    view = dense(shape, "float32")
    return view.shape, view.strides, view.offset


@given(st.data())
def test_it_is_attention(data: st.DataObject) -> None:
    def pick(low: int, high: int) -> int:
        return int(data.draw(st.integers(low, high)))

    rows = pick(1, 40)
    sizes = (pick(1, 3), pick(1, 4), rows, rows + pick(0, 20), pick(1, 24))
    result = attended(*sizes, data.draw(st.sampled_from(MASKS)))
    if result is not None:
        torch.testing.assert_close(result[0].double(), result[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", MASKS[:-1])
def test_usual_sizes_are_taken(kind: str | None) -> None:
    result = attended(2, 4, 64, 64, 32, kind)
    assert result is not None
    torch.testing.assert_close(result[0].double(), result[1], rtol=0, atol=1e-5)


def test_one_row_with_a_mask_that_is_repeated_reads_its_own_memory_alone() -> None:
    for kind in MASKS[1:]:
        result = attended(1, 2, 1, 10, 2, kind)
        assert result is None or bool(torch.isfinite(result[0]).all())


def test_it_is_no_kernel_for_tiles_that_move() -> None:
    assert kernel().is_fixed


@given(st.integers(0, 1000))
def test_rows_change_here_and_there(seed: int) -> None:
    """A session whose attention has a mask: incremental runs equal full ones."""
    rng, rows, width = np.random.default_rng(seed), 24, 16
    g = GraphBuilder()
    x = g.input("x", (1, rows, 2 * width))
    heads = x.reshape(1, rows, 2, width).permute(0, 2, 1, 3)
    mask = g.constant(np.tril(np.ones((rows, rows), bool)))
    g.output("y", ops.attention(heads, heads, heads, mask=mask))
    graph = g.build()
    kept, fresh = (GraphSession(graph, {}, calibrate=False) for _ in range(2))
    value = rng.normal(size=(1, rows, 2 * width)).astype("float32")
    for _ in range(4):
        first = int(rng.integers(rows))
        value[0, first : first + int(rng.integers(1, 4))] += 1
        fresh.forget()
        found, right = (one.run({"x": value})["y"] for one in (kept, fresh))
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5)
