"""Weights in a kernel's own layout: who gets them, what they cost, and images channels-last."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tgbench as tg
from tgbench import ops
from tgbench.base.errors import GraphError
from tgbench.base.safetensors import save
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.registry import KERNELS, prepared_bytes, prepared_inputs
from tgbench.kernels.torch.packed import is_built_in
from tgbench.memory.placement import Slot
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.program import Instruction
from tgbench.session.session import GraphSession

pytestmark = pytest.mark.skipif(not is_built_in(), reason="PyTorch was built without oneDNN")
NAMES = (
    ("conv_panels", "conv_panels", "linear_panels"),
    ("conv_direct", "conv_points_direct", "linear_direct"),
    ("conv_packed", "conv_points", "linear_packed"),
)
THERE = {kernel.name for op in ("conv", "linear") for kernel in KERNELS[op]}
WINDOWS, POINTS, ROWS = next(names for names in NAMES if THERE.issuperset(names))
SIZE, WIDE = 12, 128  # pixels, channels: enough for the other layout to pay


def network(repeats: int = 2) -> tuple[Graph, dict[str, np.ndarray]]:
    """Convolutions, points and a linear layer over a small image."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> Any:
        arrays[name] = rng.integers(-2, 3, shape).astype(np.float32)
        return g.parameter(name, shape)

    h = g.input("x", (1, WIDE, SIZE, SIZE))
    for i in range(repeats):
        h = ops.conv(h, weight(f"window{i}", WIDE, WIDE, 3, 3), padding=((1, 1), (1, 1)))
        h = ops.relu(ops.conv(h, weight(f"point{i}", WIDE, WIDE, 1, 1)))
        h = ops.minimum(h, 3.0)
    rows = h.permute(0, 2, 3, 1).reshape(SIZE * SIZE, WIDE)
    g.output("y", ops.linear(rows, weight("rows", 512, WIDE)))
    return g.build(), arrays


def instructions_of(session: GraphSession) -> list[Instruction]:
    return [made for _, _, program in session.programs for made in program.instructions]


def kernels_of(session: GraphSession) -> set[str]:
    return {made.kernel for made in instructions_of(session)}


def edited(session: GraphSession, count: int = 6) -> None:
    """Edits of many sizes and places, each compared with a run from nothing."""
    graph, arrays = network()
    whole = GraphSession(graph, arrays, packed_bytes=0)
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (1, WIDE, SIZE, SIZE)).astype(np.float32)
    session.run({"x": x})
    for _ in range(count):
        size = int(rng.integers(1, SIZE))
        top, left = rng.integers(0, SIZE - size + 1, 2)
        window = np.s_[:, :, top : top + size, left : left + size]
        x = x.copy()
        x[window] = rng.integers(-3, 4, x[window].shape)
        found = session.run({"x": x})["y"]
        whole.forget()
        np.testing.assert_array_equal(found, whole.run({"x": x})["y"])


def test_frozen_weights_are_laid_out_once() -> None:
    graph, arrays = network()
    session = GraphSession(graph, arrays, calibrate=False)
    edited(session)
    assert {WINDOWS, POINTS, ROWS} <= kernels_of(session)
    kept = session.pool._prepared
    assert len(kept) == len({wanted.view.buffer for wanted in kept}) == len(arrays)


def _resident_bytes(file: Path) -> int:
    """Of a mapped file, as the system counts it."""
    mapped = Path("/proc/self/smaps").read_text().split(str(file))[1:]
    return sum(1024 * int(re.findall(r"^Rss: +(\d+) kB", part, re.M)[0]) for part in mapped)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux counts so")
def test_of_weights_that_are_laid_out_the_file_is_let_go(tmp_path: Path) -> None:
    rng, g, file = np.random.default_rng(0), GraphBuilder(), tmp_path / "weights.safetensors"
    h, arrays = g.input("x", (32, 512)), {}
    for i in range(8):
        arrays[f"w{i}"] = rng.integers(-1, 2, (512, 512)).astype(np.float32)
        h = ops.minimum(ops.relu(ops.linear(h, g.parameter(f"w{i}", (512, 512)))), 3.0)
    g.output("y", h)
    save(arrays, file)
    graph, x = g.build(), rng.integers(-2, 3, (32, 512)).astype(np.float32)
    kept = GraphSession(graph, file, packed_bytes=0, calibrate=False)
    found = kept.run({"x": x})["y"]
    size = sum(array.nbytes for array in arrays.values())
    assert _resident_bytes(file) >= size
    del kept
    gc.collect()
    session = GraphSession(graph, file, calibrate=False)
    np.testing.assert_array_equal(session.run({"x": x})["y"], found)
    assert ROWS in kernels_of(session)
    assert _resident_bytes(file) < size / 4
    session.forget()
    np.testing.assert_array_equal(session.run({"x": x})["y"], found)
    row = session.run({"x": np.roll(x, 1)}, want=np.s_[3])["y"]  # reads some of them as they lie
    kept = GraphSession(graph, arrays, packed_bytes=0, calibrate=False)
    np.testing.assert_array_equal(row, kept.run({"x": np.roll(x, 1)})["y"][3])


def test_no_weights_are_kept_twice_without_leave() -> None:
    graph, arrays = network()
    session = GraphSession(graph, arrays, packed_bytes=0)
    edited(session)
    assert not {WINDOWS, POINTS, ROWS} & kernels_of(session)
    assert not session.pool._prepared
    assert session.estimate_memory()["cpu"].packed_bytes == 0


def test_small_weights_go_first() -> None:
    graph, arrays = network()
    sizes = {name: array.nbytes for name, array in arrays.items()}
    small = sizes["point0"] + sizes["point1"] + sizes["rows"]
    limit = small + sizes["window0"]
    session = GraphSession(graph, arrays, packed_bytes=limit, calibrate=False)
    edited(session)  # both windows are one call: all of them, or none
    assert kernels_of(session) >= {POINTS, ROWS}
    laid_out = {made.node.name for made in instructions_of(session) if made.kernel == WINDOWS}
    convs = [node for node in graph.nodes if node.op == "conv"]
    windows = {node.name for node in convs if node.inputs[1].shape[2:] == (3, 3)}
    assert windows
    assert not windows & laid_out
    assert session.estimate_memory()["cpu"].packed_bytes == small
    assert "packed, at most" in str(session.estimate_memory()["cpu"])


def test_every_bound_gives_the_same_result() -> None:
    graph, arrays = network()
    for limit in (None, "300KiB", 100):
        edited(GraphSession(graph, arrays, packed_bytes=limit), count=2)
    with pytest.raises(GraphError, match="is not a size"):
        GraphSession(graph, arrays, packed_bytes=-1)


def test_weights_that_change_are_not_kept() -> None:
    g = GraphBuilder()
    x, scale = g.input("x", (1, 2, 6, 6)), g.input("scale", (3, 2, 3, 3))
    g.output("y", ops.conv(x, g.parameter("w", (3, 2, 3, 3)) * scale))
    session = GraphSession(g.build(), {"w": np.ones((3, 2, 3, 3), np.float32)})
    image = np.arange(72, dtype=np.float32).reshape(1, 2, 6, 6)
    for factor in (1.0, -2.0):
        given = np.full((3, 2, 3, 3), factor, np.float32)
        found = session.run({"x": image, "scale": given})["y"]
        expected = torch.conv2d(torch.from_numpy(image), torch.from_numpy(given)).numpy()
        np.testing.assert_array_equal(found, expected)
    assert WINDOWS not in kernels_of(session)


# --- images channels-last ------------------------------------------------------------------------


def test_slots_of_images_are_channels_last() -> None:
    slot = Slot(0, (1, 4, 5, 6), (0, 0, 0, 0), (0, 2, 3, 1))
    assert slot.strides == (120, 1, 24, 4)
    assert slot.elements == 120
    assert Slot(0, (1, 4, 5, 6), (0, 0, 0, 0)).strides == (120, 30, 6, 1)


def test_images_are_channels_last_but_for_those_shown_flat() -> None:
    g = GraphBuilder()
    h = ops.conv(g.input("x", (1, 2, 8, 8)), g.parameter("w", (4, 2, 3, 3)))
    r = ops.relu(h)
    pooled = ops.max_pool(r, (2, 2), stride=(2, 2))
    flat = pooled.reshape(1, 36)
    g.output("y", ops.linear(flat, g.parameter("v", (3, 36))))
    scheduled = ScheduledGraph.of(g.build())
    orders = {node.op: scheduled.order(node) for node in scheduled.stored}
    assert orders["conv"] == orders["relu"] == (0, 2, 3, 1)
    assert orders["max_pool"] == orders["linear"] == ()
    assert all(scheduled.order(leaf) == () for leaf in scheduled.kept)


@pytest.mark.parametrize("making", ["always", "measured"])
def test_lines_lie_with_their_channels_side_by_side(making: Any) -> None:
    """As images do: each whole convolution of a line was copied in and out of that layout. What is
    seen as a row a point is not copied; what is handed out is row-major, as inputs are.
    """
    g = GraphBuilder()
    x = g.input("x", (1, 2, 24))
    h = ops.relu(ops.conv(ops.pad(x, (0, 0, 4), (0, 0, 0), 0.0), g.parameter("u", (16, 2, 5))))
    for i in range(2):
        weight = g.parameter(f"w{i}", (16, 16, 3))
        h = h + ops.relu(ops.conv(ops.pad(h, (0, 0, 4), (0, 0, 0), 0.0), weight, dilation=2))
    g.output("rows", ops.linear(h.permute(0, 2, 1), g.parameter("v", (3, 16))))
    g.output("line", ops.conv(h, g.parameter("t", (2, 16, 1))))
    graph = g.build()
    scheduled = ScheduledGraph.of(graph)
    handed_out = set(graph.outputs.values())
    lines = [node for node in scheduled.stored if node.op != "linear" and x not in node.inputs]
    assert len(lines) > 6
    for node in lines:
        assert scheduled.order(node) == (() if node in handed_out else (0, 2, 1)), node.name
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(-1, 2, node.shape).astype(np.float32)
        for name, node in graph.parameters.items()
    }
    session = GraphSession(graph, arrays, making=making)
    line = rng.integers(-2, 3, (1, 2, 24)).astype(np.float32)
    for at in (None, 23, 0, 7, slice(3, 9), 12, 12):
        if at is not None:
            line[:, rng.integers(2), at] = rng.integers(-4, 5)
        found, whole = session.run({"x": line}), tg.evaluate(graph, {"x": line, **arrays})
        for name in ("rows", "line"):
            np.testing.assert_array_equal(found[name], whole[name])


def test_what_joins_images_lies_as_they_do() -> None:
    """Also beside an input, whose order is its own; and what is put around one."""
    g = GraphBuilder()
    x = g.input("x", (1, 2, 8, 8))
    h = ops.relu(ops.conv(x, g.parameter("w", (4, 2, 3, 3)), padding=1))
    joined = ops.concat([x, h], 1)
    around = ops.pad(joined, (0, 0, 1, 1), (0, 0, 1, 1), 2.0)
    g.output("y", ops.conv(around, g.parameter("v", (3, 6, 3, 3))))
    scheduled = ScheduledGraph.of(g.build())
    orders = {node.op: scheduled.order(node) for node in scheduled.stored}
    assert orders["concat"] == orders["pad"] == (0, 2, 3, 1)


def test_lines_and_points_are_one_dimension_of_an_image_as_it_lies() -> None:
    """What is seen as a row a point, as transformers on features of an image do, is not copied."""
    g = GraphBuilder()
    h = ops.relu(ops.conv(g.input("x", (1, 2, 8, 8)), g.parameter("w", (16, 2, 3, 3)), padding=1))
    rows = h.reshape(1, 16, 64).permute(0, 2, 1)
    g.output("y", ops.linear(rows, g.parameter("v", (3, 16))))
    graph = g.build()
    scheduled = ScheduledGraph.of(graph)
    orders = {node.op: scheduled.order(node) for node in scheduled.stored}
    assert orders == {"conv": (0, 2, 3, 1), "relu": (0, 2, 3, 1), "linear": ()}
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(-3, 4, node.shape).astype(np.float32)
        for name, node in graph.parameters.items()
    }
    session, x = GraphSession(graph, arrays), np.zeros((1, 2, 8, 8), np.float32)
    for _ in range(8):
        np.testing.assert_array_equal(
            session.run({"x": x})["y"], tg.evaluate(graph, {"x": x, **arrays})["y"]
        )
        x[0, rng.integers(2), rng.integers(8), rng.integers(8)] = rng.integers(-4, 5)


def test_what_is_like_an_image_with_channels_last_lies_so() -> None:
    """A norm over channels, as ConvNeXt has it: rows of a permuted image, with channels innermost.

    Rows of it that are permuted back are an image again.
    """
    g = GraphBuilder()
    h = ops.conv(g.input("x", (1, 2, 8, 8)), g.parameter("w", (4, 2, 3, 3)), padding=1)
    rows = ops.layer_norm(h.permute(0, 2, 3, 1), g.parameter("s", (4,)), g.parameter("b", (4,)))
    back = ops.relu(rows.permute(0, 3, 1, 2)[:, :, 1:7])
    g.output("y", ops.conv(back + 1.0, g.parameter("v", (3, 4, 3, 3))))
    scheduled = ScheduledGraph.of(g.build())
    orders = {n.op: scheduled.order(n) for n in scheduled.stored}
    assert orders["conv"] == ()  # handed out
    assert orders["layer_norm"] == ()  # [N, H, W, C] row-major
    first = next(n for n in scheduled.stored if n.op == "conv")
    assert scheduled.order(first) == (0, 2, 3, 1)


def test_plans_of_images_start_warm(tmp_path: Path) -> None:
    graph, arrays = network()
    first = tg.GraphSession(graph, arrays, plan=tmp_path / "plan.json")
    edited(first, 3)
    first.save_plan()
    again = tg.GraphSession(graph, arrays, plan=tmp_path / "plan.json")
    edited(again, 3)
    assert again.plan.slots == first.plan.slots


def test_other_devices_want_no_other_layout() -> None:
    g = GraphBuilder()
    image, rows, square = g.input("i", (1, 3, 5, 5)), g.input("x", (4, 3)), g.parameter("w", (3, 3))
    conv = ops.conv(image, g.parameter("k", (3, 3, 1, 1))).call
    assert prepared_inputs(conv, "cpu") == {1}
    assert prepared_inputs(ops.gated_linear(rows, square, square).call, "cpu") == {1, 2}
    assert not prepared_inputs(conv, "cuda:0")


def test_an_automatic_budget_leaves_room_for_packed_weights() -> None:
    graph, arrays = network()
    roomy = GraphSession(graph, arrays, memory="auto", packed_bytes=0)
    session = GraphSession(graph, arrays, memory="auto")
    assert session.pool.packed_bytes == sum(
        prepared_bytes(node.call, 1, "cpu") for node in graph.nodes if node.op in ("conv", "linear")
    )
    assert session.budget_bytes is not None
    assert session.budget_bytes < (roomy.budget_bytes or 0)


def test_a_wrong_size_is_said_before_weights_are_read() -> None:
    graph, _ = network()
    with pytest.raises(GraphError, match="is not a size"):
        GraphSession(graph, "no such file", memory="much")
