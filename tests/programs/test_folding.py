"""Element-wise calls that become part of the call before them: which, and that nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_cases import worth_it
from session_cases import CheckedSession

from tgbench import ops
from tgbench.costs.signature import Signature
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.kernels.onednn.library import library
from tgbench.kernels.registry import KERNELS, Site, apart
from tgbench.session.session import GraphSession

pytestmark = pytest.mark.skipif(library is None, reason="the extra `onednn` is not installed")
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True, scope="module")
def direct_kernels() -> Iterator[None]:
    with worth_it(lambda kernel: kernel.posts):
        yield


class Net:
    """A graph of small whole numbers, which stay so small that sums of them are exact."""

    def __init__(self, seed: int) -> None:
        self.g, self.rng = GraphBuilder(), np.random.default_rng(seed)
        self.values: Arrays = {}

    def image(self, channels: int, size: int = 7) -> Node:
        shape = (1, channels, size, size)
        self.values["x"] = self.rng.integers(-2, 3, shape).astype(np.float32)
        return self.g.input("x", shape)

    def rows(self, count: int, width: int) -> Node:
        self.values["x"] = self.rng.integers(-2, 3, (count, width)).astype(np.float32)
        return self.g.input("x", (count, width))

    def weight(self, *shape: int) -> Node:
        name = f"w{len(self.values)}"
        self.values[name] = (self.rng.random(shape) < 0.15).astype(np.float32)
        self.values[name] *= self.rng.choice([-1, 1], shape)
        return self.g.parameter(name, shape)

    def conv(self, x: Node, channels: int, size: int = 3) -> Node:
        weight = self.weight(channels, x.shape[1], size, size)
        return ops.conv(x, weight, self.weight(channels), padding=size // 2)

    def linear(self, x: Node, width: int) -> Node:
        return ops.linear(x, self.weight(width, x.shape[-1]), self.weight(width))

    def graph(self, *outputs: Node) -> Graph:
        for i, node in enumerate(outputs):
            self.g.output(f"y{i}", node)
        return self.g.build()


def residual(net: Net) -> Graph:
    """A block of a residual network behind another convolution."""
    x = ops.relu(net.conv(net.image(8), 8))
    h = ops.relu(net.conv(x, 8))
    h = ops.relu(net.conv(h, 8, 1) + x)
    return net.graph(ops.mean(h * 49.0, (2, 3)))


def last_calls(session: GraphSession) -> Counter[str]:
    assert session.last is not None
    made = [(one.node, *one.posts) for one in session.last.program.instructions]
    return Counter(" + ".join(node.op for node in nodes) for nodes in made)


def edited(checked: CheckedSession, rng: np.random.Generator, count: int = 4) -> None:
    """A run from nothing and some of patches, each compared with the references."""
    checked.run()
    for _ in range(count):
        x = checked.values["x"].copy()
        box = tuple(slice(*sorted(rng.integers(0, n + 1, 2))) for n in x.shape)
        x[box] = rng.integers(-2, 3, x[box].shape)
        checked.run({"x": x})


def several_cost(monkeypatch: pytest.MonkeyPatch, cost_ns: Callable[[Site], float]) -> None:
    """What kernels are modelled at that may do something besides."""
    for op in ("conv", "linear"):
        others = [replace(one, cost_ns=cost_ns) if one.posts else one for one in KERNELS[op]]
        monkeypatch.setitem(KERNELS, op, others)


def test_a_residual_block_is_one_call_a_convolution() -> None:
    net = Net(0)
    checked = CheckedSession(residual(net), net.values, calibrate=False)
    checked.run()
    assert last_calls(checked.session) == {
        "conv + relu": 2, "conv + add + relu": 1, "mul": 1, "mean": 1,
    }  # fmt: skip
    edited(checked, net.rng)


def test_a_perceptron_with_a_residual_is_two_calls() -> None:
    net = Net(1)
    x = net.rows(6, 16)
    h = net.linear(ops.relu(net.linear(x, 32)), 16) + x
    checked = CheckedSession(net.graph(h), net.values, calibrate=False)
    checked.run()
    assert last_calls(checked.session) == {"linear + relu": 1, "linear + add": 1}
    edited(checked, net.rng)


@pytest.mark.parametrize("low", [0.0, -3.0])
def test_bounds_are_part_of_a_call(low: float) -> None:
    """Of images and of rows, behind something that is added."""
    net = Net(8)
    h = ops.clamp(net.conv(net.image(8), 8), low, 6.0)
    h = ops.clamp(net.conv(h, 8, 1) + h, low, 6.0)
    checked = CheckedSession(net.graph(ops.mean(h * 49.0, (2, 3))), net.values, calibrate=False)
    checked.run()
    made = last_calls(checked.session)
    assert (made["conv + clamp"], made["conv + add + clamp"], made["clamp"]) == (1, 1, 0)
    edited(checked, net.rng)
    net = Net(9)
    h = net.linear(ops.clamp(net.linear(net.rows(6, 16), 32), low, 2.0), 16)
    checked = CheckedSession(net.graph(h), net.values, calibrate=False)
    checked.run()
    assert last_calls(checked.session) == {"linear + clamp": 1, "linear": 1}
    edited(checked, net.rng)


def test_what_somebody_else_looks_at_stays() -> None:
    net = Net(2)
    h = net.conv(net.image(8), 8)
    checked = CheckedSession(net.graph(ops.relu(h), -h), net.values, calibrate=False)
    checked.run()
    assert set(last_calls(checked.session)) == {"conv", "relu", "neg"}
    net = Net(3)
    h = net.conv(net.image(8), 8)
    checked = CheckedSession(net.graph(ops.relu(h), h), net.values, calibrate=False)
    checked.run()
    assert last_calls(checked.session)["relu"] == 1


def test_bits_that_must_agree_are_those_of_single_calls() -> None:
    net = Net(4)
    graph = net.graph(ops.relu(net.conv(net.image(8), 8)))
    checked = CheckedSession(graph, net.values, exact="bitwise")
    checked.run()
    assert sum("+" in how for how in last_calls(checked.session)) == 0


def test_a_quicker_pair_of_calls_stays_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    several_cost(monkeypatch, lambda site: 1e9 if site.posts else 1.0)
    net = Net(5)
    checked = CheckedSession(net.graph(ops.relu(net.conv(net.image(8), 8))), net.values)
    checked.run()
    assert last_calls(checked.session) == {"conv": 1, "relu": 1}


def test_there_is_scratch_memory_for_what_only_calls_of_several_want(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is room for it; calls are apart where there is none."""
    several_cost(monkeypatch, lambda site: 1.0 if site.posts else 1e9)
    net = Net(1)
    x = net.rows(64, 32)
    graph = net.graph(net.linear(ops.relu(net.linear(x, 32)), 32) + x)
    checked = CheckedSession(graph, net.values, calibrate=False)
    checked.run()
    assert last_calls(checked.session) == {"linear + relu": 1, "linear + add": 1}
    placement = checked.session.placement
    scratch = max((room.size_bytes for room in placement.scratch.values()), default=0)
    if not scratch:
        pytest.skip("no kernel here wants any")
    edited(checked, net.rng)
    tight = CheckedSession(
        graph, net.values, calibrate=False, memory=placement.size_bytes - scratch
    )
    tight.run()
    assert sum(last_calls(tight.session).values()) > 2
    edited(tight, net.rng)


def test_a_call_that_does_more_has_a_signature_of_its_own() -> None:
    net = Net(6)
    x = net.rows(6, 16)
    graph = net.graph(ops.relu(net.linear(x, 16) + x))
    checked = CheckedSession(graph, net.values, calibrate=False)
    checked.run()
    assert checked.session.last is not None
    (made,) = checked.session.last.program.instructions
    assert made.site is not None
    assert str(made).endswith(f"← {made.kernel} + add + relu")
    assert "; then add(" in str(Signature.of(made.site))
    assert "then" not in str(Signature.of(next(iter(apart(made.site)))))
    assert [one.call.op.name for one in apart(made.site)] == ["linear", "add", "relu"]


def test_programs_come_back_as_they_were(tmp_path: Path) -> None:
    def opened() -> tuple[GraphSession, Arrays]:
        net = Net(7)
        graph = residual(net)
        weights = {name: net.values[name] for name in graph.parameters}
        session = GraphSession(graph, weights, calibrate=False, plan=tmp_path / "plan.json")
        return session, {"x": net.values["x"]}

    first, x = opened()
    right = first.run(x)["y0"]
    first.save_plan()
    first.save_programs()
    again, _ = opened()
    assert again.load_programs()
    np.testing.assert_array_equal(again.run(x)["y0"], right)
    assert last_calls(again) == last_calls(first)
    assert "conv + add + relu" in last_calls(again)


@given(st.data())
def test_random_nets_give_what_they_gave(data: st.DataObject) -> None:
    """Chains of all kinds, of images or rows, with patches of any place and size."""
    net = Net(data.draw(st.integers(0, 999)))
    is_image = data.draw(st.booleans())
    made = [net.image(4, 5) if is_image else net.rows(5, 8)]
    for _ in range(data.draw(st.integers(2, 6))):
        x = data.draw(st.sampled_from(made[-2:]))
        kind = data.draw(st.sampled_from(["product", "product", "relu", "clamp", "add", "point"]))
        if kind == "relu":
            x = ops.relu(x)
        elif kind == "clamp":
            x = ops.clamp(x, -1.0, 2.0)
        elif kind == "add":
            x = x + data.draw(st.sampled_from(made))
        elif is_image:
            x = net.conv(x, 4, 1 if kind == "point" else 3)
        else:
            x = net.linear(x, 8)
        made.append(x)
    outputs = [made[-1], *data.draw(st.lists(st.sampled_from(made[1:]), max_size=1))]
    graph = net.graph(*dict.fromkeys(outputs))
    memory = data.draw(st.sampled_from([None, "auto"]))
    checked = CheckedSession(graph, net.values, calibrate=False, memory=memory)
    edited(checked, net.rng, 2)
