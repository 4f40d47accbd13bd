"""Ops on a GPU and on the CPU in one session. Skipped where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tgbench as tg
from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.session.session import GraphSession

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS, WIDTH = 64, 256


def layers(device: str | None) -> Graph:
    """Rows through four layers, the middle ones on another device."""
    g = GraphBuilder()
    x = g.input("x", (ROWS, WIDTH))
    weights = [g.parameter(f"w{i}", (WIDTH, WIDTH)) for i in range(4)]
    node = ops.gelu(ops.linear(x, weights[0]))
    node = node if device is None else ops.copy_to(node, device)
    for weight in weights[1:3]:
        node = ops.softmax(ops.linear(node, weight), -1)
    node = node if device is None else ops.copy_to(node)
    g.output("y", ops.linear(node, weights[3]))
    return g.build()


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"w{i}": rng.standard_normal((WIDTH, WIDTH)).astype("float32") for i in range(4)}


def test_edits_through_both_are_what_one_gives() -> None:
    here = GraphSession(layers(None), weights=weights())
    there = GraphSession(layers("cuda:0"), weights=weights(), memory={"cuda:0": "64MiB"})
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, WIDTH)).astype("float32")
    for i in range(40):
        x = x.copy()
        x[i % ROWS] = rng.standard_normal(WIDTH)
        want = {"y": np.s_[i % ROWS]} if i % 3 else None
        right, found = (one.run({"x": x}, want=want)["y"] for one in (here, there))
        assert np.abs(right - found).max() <= 1e-4 * np.abs(right).max()
    assert there.memory.elsewhere["cuda:0"].is_cuda


def test_placing_measures_both() -> None:
    g = GraphBuilder()
    x = g.input("x", (2048, 2048))
    node = x
    for i in range(4):
        node = ops.linear(node, g.parameter(f"w{i}", (2048, 2048)))
    g.output("y", node)
    placed = tg.place(g.build(), {"cuda:0": "1GiB"})
    assert set(placed.found.devices.values()) == {"cuda:0"}  # products of 17 GFLOP each
    assert placed.found.copies == 2
    assert placed.links["cuda:0"].latency_ns > 0
