"""Scales and shifts in weights: what is folded, what is not, and the same values."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from session.test_check import broken
from torch import nn

import tgbench as tg
import tgbench.graph.ops as ops
from tgbench.commands.apps.cnn import NETWORKS, Basic, ResNet, seeded
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.graph_file import load_graph, save_graph
from tgbench.graph.recognise import affine
from tgbench.graph.recognise.affine import into_weights
from tgbench.graph.reference import evaluate
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.session.check import check
from tgbench.session.check.report import Cause

Array = np.ndarray[Any, Any]
CHANNELS, GROUPS = 6, 2
AXES = {"conv": 1, "conv grouped": 1, "conv 1d": 1, "conv_transpose": 1,
        "conv_transpose grouped": 1, "linear": -1, "linear of images": -1,
        "matmul": -1}  # fmt: skip


@dataclass(frozen=True)
class Making:
    """A graph that grows: leaves by shape, each new."""

    g: GraphBuilder
    dtype: str = "float64"

    def leaf(self, kind: str, *shape: int) -> Node:
        name = f"{kind}{len(self.g.nodes)}"
        make = self.g.input if kind == "input" else self.g.parameter
        return make(name, shape, self.dtype)

    def product(self, kind: str, bias: bool) -> Node:
        """A product of an input and weights, with 6 channels."""
        late = (self.leaf("w", CHANNELS),) if bias else ()
        if kind == "matmul":
            return self.leaf("input", 3, 4) @ self.leaf("w", 4, CHANNELS)
        if kind.startswith("linear"):
            x = self.leaf("input", *((2, 3, 3, 4) if "images" in kind else (3, 4)))
            return ops.linear(x, self.leaf("w", CHANNELS, 4), *late)
        groups, space = GROUPS if "grouped" in kind else 1, (5,) if "1d" in kind else (5, 4)
        taps = (2,) * len(space)
        x = self.leaf("input", 2, 4, *space)
        if kind.startswith("conv_transpose"):
            weight = self.leaf("w", 4, CHANNELS // groups, *taps)
            return ops.conv_transpose(x, weight, *late, stride=2, groups=groups)
        weight = self.leaf("w", CHANNELS, 4 // groups, *taps)
        return ops.conv(x, weight, *late, padding=1, groups=groups)

    def vector(self, x: Node, axis: int, scalar: bool, kind: str = "w") -> Node:
        """An operand that differs along one axis of x at most, as it broadcasts."""
        shape = [1] * (x.rank - axis % x.rank)
        shape[0] = 1 if scalar else x.shape[axis]
        return self.leaf(kind, *(() if scalar else shape))


STEPS = ("mul", "rmul", "add", "radd", "sub", "channel_affine", "permute")
Step = tuple[str, bool]


def stepped(making: Making, x: Node, axis: int, step: Step) -> tuple[Node, int]:
    """x after one more op, and where its channels are then."""
    kind, scalar = step
    if kind == "permute" or (kind == "channel_affine" and axis % x.rank != 1):
        order = [*range(1, x.rank), 0]
        return x.permute(*order), order.index(axis % x.rank)
    if kind == "channel_affine":
        return ops.channel_affine(x, *(making.leaf("w", x.shape[1]) for _ in range(2))), axis
    v = making.vector(x, axis, scalar)
    return {"mul": lambda: x * v, "rmul": lambda: v * x, "add": lambda: x + v,
            "radd": lambda: v + x, "sub": lambda: x - v}[kind](), axis  # fmt: skip


def values_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Small numbers with zeros and negative ones among them."""
    rng = np.random.default_rng(seed)
    leaves = [*graph.inputs.values(), *graph.parameters.values()]
    return {n.name: rng.normal(size=n.shape).round(1).astype(n.dtype) for n in leaves}


def run_ops(graph: Graph) -> list[str]:
    """What a run computes, views left out."""
    views = ("reshape", "permute", "expand")
    return [n.op for n in ScheduledGraph.of(graph).schedule if n.op not in views]


def assert_equal(graph: Graph, found: Graph, tolerance: float) -> None:
    values = values_of(graph)
    before, after = evaluate(graph, values), evaluate(found, values)
    for name, right in before.items():
        assert after[name].dtype == right.dtype
        assert np.abs(after[name] - right).max() <= tolerance * max(np.abs(right).max(), 1)


# --- what is folded -------------------------------------------------------------------------------


@given(
    st.sampled_from(list(AXES)),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(STEPS), st.booleans()), min_size=1, max_size=5),
)
def test_chains_become_one_product(kind: str, bias: bool, steps: list[Step]) -> None:
    making, axis = Making(GraphBuilder()), AXES[kind]
    x = making.product(kind, bias)
    op, is_matmul = x.op, kind == "matmul"
    for step in steps:
        if is_matmul and step[0] not in ("mul", "rmul"):
            continue  # a product without a bias takes no shift
        x, axis = stepped(making, x, axis, step)
    making.g.output("y", x)
    graph = making.g.build()
    found = into_weights(simplify(graph))
    assert run_ops(found) == [op]
    assert found.outputs["y"].type == x.type
    assert_equal(graph, found, 1e-12)
    assert into_weights(found) is found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", AXES)
def test_sessions_give_the_same_whole_and_after_edits(kind: str, bias: bool) -> None:
    making = Making(GraphBuilder(), "float32")
    x, axis = making.product(kind, bias), AXES[kind]
    for step in [("mul", False), ("add", True)][: 1 if kind == "matmul" else 2]:
        x, axis = stepped(making, x, axis, step)
    making.g.output("y", x)
    graph = making.g.build()
    values = values_of(graph)
    weights = {name: values[name] for name in graph.parameters}
    sessions = [tg.GraphSession(g, weights) for g in (graph, into_weights(graph))]
    (name,) = graph.inputs
    for _ in range(2):
        before, after = (session.run({name: values[name]})["y"] for session in sessions)
        assert np.abs(before - after).max() <= 1e-5 * np.abs(before).max()
        values[name][..., -1] += 1
    assert sessions[1].report().instructions < sessions[0].report().instructions


def spoilt(making: Making, x: Node, axis: int, how: str) -> Node:
    """A node after a product that must stay."""
    v = making.vector(x, axis, scalar=False)
    if how == "read twice":
        making.g.output("other", ops.relu(x))
    elif how == "an output":
        making.g.output("other", x)
    elif how == "a state":
        making.g.update(making.g.state("s", x.shape, x.dtype), x)
    elif how == "scaled by an input":
        v = making.vector(x, axis, False, "input")
    elif how == "another axis":
        v = making.leaf("w", *(1 if i == axis % x.rank else n for i, n in enumerate(x.shape)))
    elif how == "widened":
        v = making.leaf("w", 2, *(1,) * x.rank)
    elif how == "weights from an input":
        x = ops.linear(making.leaf("input", 3, 4), making.leaf("input", CHANNELS, 4))
        v = making.leaf("w", CHANNELS)
    elif how == "scaled weight read as it is":
        making.g.output("other", x.inputs[1] * 2.0)
    elif how == "scaled weight read through a view":
        making.g.output("other", x.inputs[1].reshape(-1) * making.leaf("input", 1))
    elif how == "weight scaled in two ways":
        again = x.builder.apply(x.op, x.inputs[0] * 2.0, *x.inputs[1:], **x.attrs)
        making.g.output("other", again * making.vector(x, axis, False))
    return x * v


SPOILERS = (
    "read twice", "an output", "a state", "scaled by an input", "another axis", "widened",
    "weights from an input", "scaled weight read as it is", "scaled weight read through a view",
    "weight scaled in two ways",
)  # fmt: skip


@pytest.mark.parametrize("how", SPOILERS)
@pytest.mark.parametrize("kind", AXES)
def test_what_must_stay_stays(kind: str, how: str) -> None:
    making = Making(GraphBuilder())
    making.g.output("y", spoilt(making, making.product(kind, False), AXES[kind], how))
    graph = making.g.build()
    assert into_weights(graph) is graph


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_stay(dtype: str) -> None:
    making = Making(GraphBuilder(), dtype)
    x = making.product("conv", True)
    making.g.output("y", ops.channel_affine(x, *(making.leaf("w", CHANNELS) for _ in range(2))))
    graph = making.g.build()
    assert into_weights(graph) is graph


def test_products_that_share_a_weight_and_a_scale_are_folded() -> None:
    making = Making(GraphBuilder())
    weight, scale = making.leaf("w", CHANNELS, 4), making.leaf("w", CHANNELS)
    for name in "ab":
        making.g.output(name, ops.linear(making.leaf("input", 3, 4), weight) * scale)
    graph = making.g.build()
    found = into_weights(graph)
    assert run_ops(found) == ["linear", "linear"]
    assert found.outputs["a"].inputs[1] is found.outputs["b"].inputs[1]
    assert_equal(graph, found, 1e-12)


def test_a_late_bias_needs_no_copy_of_a_shared_weight() -> None:
    making = Making(GraphBuilder())
    weight = making.leaf("w", CHANNELS, 4)
    making.g.output("a", ops.linear(making.leaf("input", 3, 4), weight) + 2.0)
    making.g.output("b", ops.linear(making.leaf("input", 3, 4), weight))
    graph = making.g.build()
    assert run_ops(into_weights(graph)) == ["linear", "linear"]
    assert_equal(graph, into_weights(graph), 1e-12)


def test_a_repeated_weight_is_not_written_out() -> None:
    making = Making(GraphBuilder())
    weight = making.leaf("w", 4, CHANNELS).expand(3, 4, CHANNELS)
    making.g.output("y", making.leaf("input", 3, 2, 4) @ weight * making.leaf("w", CHANNELS))
    graph = making.g.build()
    assert into_weights(graph) is graph


def test_known_zeros_stay_known() -> None:
    making = Making(GraphBuilder())
    band = making.g.constant(np.eye(4) * [1, 2, 3, 4])
    product = making.leaf("input", 3, 4) @ band
    making.g.output("y", product * making.leaf("w", 4))
    graph = making.g.build()
    assert into_weights(graph) is graph


def test_constants_are_scaled_at_once() -> None:
    making = Making(GraphBuilder())
    making.g.output("y", making.leaf("input", 3, 4) @ making.g.constant(np.eye(4)) * 2.0)
    found = into_weights(making.g.build())
    assert [node.op for node in found.nodes] == ["input", "constant", "matmul"]


def test_a_frozen_product_is_left_to_the_pool() -> None:
    making = Making(GraphBuilder())
    made = ops.linear(making.leaf("w", 3, 4), making.leaf("w", CHANNELS, 4))
    making.g.output("y", made * making.leaf("w", CHANNELS) + making.leaf("input", 1))
    graph = making.g.build()
    assert into_weights(graph) is graph


def test_names_stay_and_new_weights_stand_where_the_product_stood() -> None:
    making = Making(GraphBuilder())
    with making.g.scope("first"):
        x = making.product("conv", False)
    with making.g.scope("bn"):
        x = ops.channel_affine(x, *(making.leaf("w", CHANNELS) for _ in range(2)))
    making.g.output("y", ops.relu(x))
    found = into_weights(making.g.build())
    (conv,) = [n for n in found.nodes if n.op == "conv"]
    assert conv.name == "bn.channel_affine"
    assert conv.inputs[1].name == "first.conv.mul"


# --- networks -------------------------------------------------------------------------------------


def small_resnet() -> nn.Module:
    return seeded(ResNet(Basic, (1, 1, 1, 1), width=8, classes=10))


def image(size: int) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "convs"), [("resnet18", 20), ("resnet50", 53)])
def test_no_batch_norm_is_left_of_a_resnet(name: str, convs: int) -> None:
    found = tg.from_torch(NETWORKS[name]().eval(), (image(64),)).graph
    computed = run_ops(found)
    assert computed.count("channel_affine") == 0
    assert computed.count("conv") == convs
    assert set(computed) == {"conv", "relu", "max_pool", "add", "mean", "linear"}


def test_what_is_folded_is_held_in_place_of_what_it_is_folded_of() -> None:
    imported = tg.from_torch(small_resnet(), (image(32),))
    session = tg.GraphSession(imported)
    convs = [node for node in session.graph.nodes if node.op == "conv"]
    assert all(read.op == "parameter" for conv in convs for read in conv.inputs[1:])
    weights = sum(node.type.size_bytes for node in session.graph.parameters.values())
    assert session.pool.owned_bytes == session.pool.parameter_bytes == weights
    assert weights <= imported.parameter_bytes


class Scaled(nn.Module):
    """A layer scale behind a permute, as in torchvision's ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.tensor([0.5, -2.0, 0.0, 3.0]).reshape(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + made * self.scale


def test_a_layer_scale_behind_a_permute() -> None:
    module = Scaled().eval()
    x = torch.randn(1, 4, 3, 5, generator=torch.Generator().manual_seed(1))
    imported = tg.from_torch(module, (x,))
    assert run_ops(imported.graph) == ["linear", "relu", "linear", "add"]
    (output,) = tg.GraphSession(imported).run({"x": x}).values()
    with torch.no_grad():
        torch.testing.assert_close(output, module(x), rtol=1e-5, atol=1e-6)


def test_graph_files_bring_folded_graphs_back(tmp_path: Path) -> None:
    imported = tg.from_torch(small_resnet(), (image(32),))
    save_graph(imported.graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json").fingerprint == imported.graph.fingerprint
    assert into_weights(imported.graph) is imported.graph


# --- checking -------------------------------------------------------------------------------------


def pairs(module: nn.Module, x: torch.Tensor) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    session = tg.GraphSession(tg.from_torch(module, (x,)))
    ((given, output),) = zip(session.graph.inputs, session.graph.outputs, strict=True)
    with torch.no_grad():
        return [({given: x}, {output: module(x)})]


class Nested(nn.Module):
    """A scope whose last layer is folded with one outside; the layer before has its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1))
        self.bn = nn.BatchNorm2d(3)
        self.head = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.bn(self.body(x)))
        return made


def test_runs_of_a_folded_network_are_bitwise_those_from_nothing() -> None:
    imported = tg.from_torch(seeded(Nested()), (image(16),))
    edited, fresh = (tg.GraphSession(imported, exact="bitwise") for _ in range(2))
    x = image(16)
    edited.run({"x": x})
    x[..., 9:11, 9:11] = 1
    (found,), (right,) = edited.run({"x": x}).values(), fresh.run({"x": x}).values()
    assert torch.equal(found, right)


@pytest.mark.parametrize("make", [small_resnet, lambda: seeded(Nested()), Scaled])
def test_modules_agree_node_by_node(make: Callable[[], nn.Module]) -> None:
    """What was folded is compared with the module whose value it has, and with no other."""
    module = make().eval()
    x = torch.randn(1, 4 if make is Scaled else 3, 32, 32)
    session = tg.GraphSession(tg.from_torch(module, (x,)))
    ((given, right),) = pairs(module, x)
    wrong = {name: value + 1 for name, value in right.items()}
    report = check(session, [(given, wrong)], against=module)
    assert report.verdict is not None
    assert report.verdict.cause is Cause.GRAPH
    compared = [n for n in report.nodes if n.original is not None]
    assert compared
    assert all(n.original <= 1e-5 for n in compared if n.original is not None)


def test_a_wrong_kernel_of_a_folded_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node has the name of the batch norm whose value it has, and the op that computes it."""
    module, x = small_resnet(), image(32)
    session = tg.GraphSession(tg.from_torch(module, (x,)))
    given = pairs(module, x)
    assert check(session, given).passed

    def wrong(site: Any) -> Callable[[Any], Any] | None:
        return (lambda out: out.mul_(1.01)) if site.call.out.shape[1] == 32 else None

    broken(monkeypatch, "conv", wrong)
    report = check(session, given)
    assert report.verdict is not None
    assert report.verdict.cause is Cause.KERNEL
    assert report.verdict.node is not None
    assert report.verdict.node.name == "layer3.0.bn1.channel_affine"
    assert report.verdict.node.op == "conv"


def test_other_weights_are_found_where_they_act() -> None:
    module, x = small_resnet(), image(32)
    session = tg.GraphSession(tg.from_torch(module, (x,)))
    other = small_resnet()
    with torch.no_grad():
        dict(other.named_parameters())["layer2.0.bn2.weight"].mul_(1.5)
    report = check(session, pairs(other, x), against=other)
    assert report.verdict is not None
    assert report.verdict.cause is Cause.ORIGINAL
    assert report.verdict.node is not None
    assert report.verdict.node.name == "layer2.0.bn2.channel_affine"


def test_examples() -> None:
    assert doctest.testmod(affine).failed == 0
