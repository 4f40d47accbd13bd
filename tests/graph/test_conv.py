"""Convolutional graphs against PyTorch: random convolutions, helpers, and sessions that re-run
what a moved patch, or one more sample, reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from session_cases import CheckedSession
from strategies import Array, mask_of, random_box

from tgbench import ops
from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.ops.images.windows import Windows
from tgbench.graph.reference import evaluate
from tgbench.plans.attempts import Attempt
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession

F = torch.nn.functional


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-2, 3, shape).astype("float32")


# --- windows by brute force ----------------------------------------------------------------------


@given(st.data())
def test_windows_against_their_definition(data: st.DataObject) -> None:
    """Both maps are sound, and exact wherever they did not have to take a hull."""
    draw = data.draw
    kernel, stride, dilation = (draw(st.integers(1, 4)) for _ in range(3))
    low, size = draw(st.integers(0, 5)), draw(st.integers(1, 12))
    count = draw(st.integers(1, 8))
    windows = Windows(size, count, kernel, stride, dilation, low)
    seen = {
        (o, i)
        for o, k in product(range(count), range(kernel))
        if 0 <= (i := o * stride - low + k * dilation) < size
    }
    first = draw(st.integers(0, count - 1))
    outputs = range(first, draw(st.integers(first + 1, count)))
    read = {i for a, b in windows.read((outputs.start, outputs.stop)) for i in range(a, b)}
    expected = {i for o, i in seen if o in outputs}
    assert read >= expected
    if len(outputs) * kernel <= 16:
        assert read == expected
    start = draw(st.integers(0, size - 1))
    inputs = range(start, draw(st.integers(start + 1, size)))
    reached = {o for a, b in windows.reached((inputs.start, inputs.stop)) for o in range(a, b)}
    assert reached == {o for o, i in seen if i in inputs}


# --- random convolutions -------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes and attributes of a convolution, transposed or not."""
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    axes = range(rank)
    kernel = [draw(st.integers(1, 3)) for _ in axes]
    return {
        "space": [draw(st.integers(k + 3, k + 6)) for k in kernel],
        "kernel": kernel,
        "channels": groups * draw(st.integers(1, 2)),
        "outputs": groups * draw(st.integers(1, 2)),
        "batch": draw(st.integers(1, 2)),
        "stride": tuple(draw(st.integers(1, 3)) for _ in axes),
        "dilation": tuple(draw(st.integers(1, 2)) for _ in axes),
        "padding": tuple(draw(st.integers(0, 1)) for _ in axes),
        "groups": groups,
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def _session_against(
    make: Callable[[GraphBuilder, Node], Node], values: dict[str, Array], shape: tuple[int, ...],
    by_torch: Callable[[Array], Array], rng: np.random.Generator,
) -> None:  # fmt: skip
    """A few edits of random boxes; every run equal to PyTorch, and dirty what may differ."""
    g = GraphBuilder()
    g.output("y", make(g, g.input("x", shape)))
    graph = g.build()
    x = integers(rng, shape)
    session = GraphSession(graph, weights=values, retain="all")
    assert np.array_equal(session.run({"x": x})["y"], by_torch(x))
    for _ in range(2):
        box = random_box(rng, shape)
        before = by_torch(x)
        x = x.copy()
        x[box.slices()] = integers(rng, tuple(b - a for a, b in box))
        assert np.array_equal(session.run({"x": x})["y"], by_torch(x))
        node = graph.outputs["y"]
        empty = [Region(())] * (len(node.call.inputs) - 1)
        dirty = Rules().dirty(node.call, (Region((box,)), *empty))
        moved = before != by_torch(x)
        assert not (moved & ~mask_of(dirty, node.shape)).any()


@given(convolutions())
@settings(max_examples=12)  # a session each
def test_random_convolutions(c: dict[str, Any]) -> None:
    rng = np.random.default_rng(c["seed"])
    weight = integers(rng, (c["outputs"], c["channels"] // c["groups"], *c["kernel"]))
    bias = integers(rng, (c["outputs"],))
    options = {key: c[key] for key in ("stride", "padding", "dilation", "groups")}
    function = F.conv1d if len(c["kernel"]) == 1 else F.conv2d

    def make(g: GraphBuilder, x: Node) -> Node:
        b = g.parameter("b", bias.shape) if c["bias"] else None
        return ops.conv(x, g.parameter("w", weight.shape), b, **options)

    def by_torch(x: Array) -> Array:
        given_bias = torch.tensor(bias) if c["bias"] else None
        return np.asarray(function(torch.tensor(x), torch.tensor(weight), given_bias, **options))

    values = {"w": weight} | ({"b": bias} if c["bias"] else {})
    shape = (c["batch"], c["channels"], *c["space"])
    _session_against(make, values, shape, by_torch, rng)


@given(convolutions(), st.data())
@settings(max_examples=12)
def test_random_transposed_convolutions(c: dict[str, Any], data: st.DataObject) -> None:
    rng = np.random.default_rng(c["seed"])
    weight = integers(rng, (c["channels"], c["outputs"] // c["groups"], *c["kernel"]))
    options = {key: c[key] for key in ("stride", "padding", "dilation", "groups")}
    most = [max(s, d) - 1 for s, d in zip(c["stride"], c["dilation"], strict=True)]
    options["output_padding"] = tuple(data.draw(st.integers(0, m)) for m in most)
    function = F.conv_transpose1d if len(c["kernel"]) == 1 else F.conv_transpose2d

    def by_torch(x: Array) -> Array:
        return np.asarray(function(torch.tensor(x), torch.tensor(weight), **options))

    shape = (c["batch"], c["channels"], *c["space"])
    _session_against(
        lambda g, x: ops.conv_transpose(x, g.parameter("w", weight.shape), **options),
        {"w": weight}, shape, by_torch, rng,
    )  # fmt: skip


# --- helpers against PyTorch ---------------------------------------------------------------------

HELPERS: dict[str, tuple[tuple[int, ...], Callable[[Node], Node], Callable[[Any], Any]]] = {
    "roll": ((4, 5), lambda x: ops.roll(x, (1, -2), (0, 1)), lambda t: t.roll((1, -2), (0, 1))),
    "roll by nothing": ((4,), lambda x: ops.roll(x, 4, 0), lambda t: t),
    "stack": ((2, 3), lambda x: ops.stack([x, x * 2.0], -1), lambda t: torch.stack([t, t * 2], -1)),
    "repeat": ((2, 3), lambda x: ops.repeat(x, 2, 1, 2), lambda t: t.repeat(2, 1, 2)),
    "repeat_interleave": (
        (2, 3), lambda x: ops.repeat_interleave(x, 2, 1), lambda t: t.repeat_interleave(2, 1),
    ),
    "reflect": (
        (1, 2, 5), lambda x: ops.pad_with(x, (0, 0, 2), (0, 0, 3), "reflect"),
        lambda t: F.pad(t, (2, 3), "reflect"),
    ),
    "replicate": (
        (1, 2, 5), lambda x: ops.pad_with(x, (0, 0, 7), (0, 0, 1), "replicate"),
        lambda t: F.pad(t, (7, 1), "replicate"),
    ),
    "circular": (
        (1, 2, 5), lambda x: ops.pad_with(x, (0, 0, 5), (0, 0, 2), "circular"),
        lambda t: F.pad(t, (5, 2), "circular"),
    ),
    "adaptive_avg_pool": (
        (1, 2, 6, 5), lambda x: ops.adaptive_avg_pool(x, (4, 3)),
        lambda t: F.adaptive_avg_pool2d(t, (4, 3)),
    ),
    "adaptive_avg_pool equal": (
        (1, 2, 6, 5), lambda x: ops.adaptive_avg_pool(x, (3, None)),
        lambda t: F.adaptive_avg_pool2d(t, (3, None)),
    ),
    "adaptive_avg_pool one": (
        (1, 2, 6), lambda x: ops.adaptive_avg_pool(x, 1), lambda t: F.adaptive_avg_pool1d(t, 1),
    ),
    "avg_pool": (
        (1, 2, 7, 6), lambda x: ops.avg_pool(x, 3, stride=2, padding=1),
        lambda t: F.avg_pool2d(t, 3, 2, 1),
    ),
    "avg_pool without padding": (
        (1, 2, 7, 6), lambda x: ops.avg_pool(x, 3, stride=2, padding=1, count_include_pad=False),
        lambda t: F.avg_pool2d(t, 3, 2, 1, count_include_pad=False),
    ),
    "avg_pool up": (
        (1, 2, 8, 7), lambda x: ops.avg_pool(x, 3, stride=2, padding=1, ceil_mode=True),
        lambda t: F.avg_pool2d(t, 3, 2, 1, ceil_mode=True),
    ),
    "upsample_nearest": (
        (1, 2, 3, 4), lambda x: ops.upsample_nearest(x, 3),
        lambda t: F.interpolate(t, scale_factor=3),
    ),
    "layer_norm of two": (
        (2, 3, 4), lambda x: ops.layer_norm(x, dims=2), lambda t: F.layer_norm(t, (3, 4)),
    ),
    "instance norm": (
        (1, 3, 4, 4), lambda x: ops.group_norm(x, 3), lambda t: F.instance_norm(t),
    ),
    "glu": ((2, 6), ops.glu, F.glu),
    "relu6": ((2, 6), lambda x: ops.relu6(x * 4.0), lambda t: F.relu6(t * 4)),
    "clamp below": ((2, 6), lambda x: ops.clamp(x, high=0.5), lambda t: t.clamp(max=0.5)),
    "log_softmax": ((2, 6), lambda x: ops.log_softmax(x, 0), lambda t: F.log_softmax(t, 0)),
    "logsumexp": ((2, 6), ops.logsumexp, lambda t: t.logsumexp(-1)),
    "var": ((2, 6), lambda x: ops.var(x, 1), lambda t: t.var(1)),
    "std": ((2, 6), lambda x: ops.std(x, correction=0), lambda t: t.std(correction=0)),
    "argmax of all": ((2, 6), ops.argmax, torch.argmax),
    "argmin": ((2, 6), lambda x: ops.argmin(x, 0), lambda t: t.argmin(0)),
    "topk": ((2, 6), lambda x: ops.topk(x, 2)[0], lambda t: t.topk(2)[0]),
    "sort": ((2, 6), lambda x: ops.sort(x, 0)[0], lambda t: t.sort(0)[0]),
    "argsort": (
        (2, 6), lambda x: ops.sort(x, descending=True)[1],
        lambda t: t.sort(descending=True, stable=True)[1],
    ),
    "index_select": (
        (4, 3), lambda x: ops.index_select(x, 0, x.builder.constant(np.array([2, 0, 2]))),
        lambda t: t.index_select(0, torch.tensor([2, 0, 2])),
    ),
    "conv same": (
        (1, 2, 5, 6),
        lambda x: ops.conv(x, x.builder.constant(np.ones((3, 2, 2, 3), "float32")), padding="same"),
        lambda t: F.conv2d(t, torch.ones(3, 2, 2, 3), padding="same"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HELPERS)
def test_helpers_in_a_session(name: str) -> None:
    """Three edits of one box each: the numbers are PyTorch's every time."""
    shape, make, by_torch = HELPERS[name]
    g = GraphBuilder()
    g.output("y", make(g.input("x", shape)))
    session = GraphSession(g.build())
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float32")
    for _ in range(4):
        expected = np.asarray(by_torch(torch.tensor(x)))
        found = session.run({"x": x})["y"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
        x = x.copy()
        box = random_box(rng, shape)
        x[box.slices()] = rng.standard_normal([b - a for a, b in box])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("bhtd,bhsd->bhts", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("...ij,...kj->...ki", [(2, 1, 2, 3), (2, 1, 4, 3)]),
        ("i,j->ji", [(2,), (3,)]),
        ("ij->", [(2, 3)]),
        ("ijk->kj", [(2, 3, 2)]),
        ("bi,ij,bj->b", [(2, 3), (3, 4), (2, 4)]),
        ("ij,ij->i", [(2, 3), (2, 3)]),
        ("abc,cd->abd", [(2, 2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    nodes = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    g.output("y", ops.einsum(equation, *nodes))
    arrays = [integers(rng, shape) for shape in shapes]
    found = evaluate(g.build(), {n.name: a for n, a in zip(nodes, arrays, strict=True)})["y"]
    assert np.array_equal(found, np.asarray(torch.einsum(equation, *map(torch.tensor, arrays))))


# --- what is refused -----------------------------------------------------------------------------

REFUSED: dict[str, Callable[[Node], Any]] = {
    "wider than the padded x": lambda x: ops.conv(x, x.builder.parameter("w", (1, 2, 9))),
    "needs 3 channels": lambda x: ops.conv(x, x.builder.parameter("w", (1, 3, 2))),
    "of the same rank": lambda x: ops.conv(x, x.builder.parameter("w", (1, 2, 2, 2))),
    "2 entries for 1": lambda x: ops.conv(x, x.builder.parameter("w", (1, 2, 2)), stride=(1, 1)),
    "use 'same'": lambda x: ops.conv(x, x.builder.parameter("w", (1, 2, 2)), padding="full"),
    "must be less than stride": lambda x: ops.conv_transpose(
        x, x.builder.parameter("w", (2, 1, 2)), output_padding=1
    ),
    "empty windows": lambda x: ops.max_pool(x, 9),
    "either size= or scale=": lambda x: ops.upsample(x),
    "mode 'lanczos'": lambda x: ops.upsample(x, size=4, mode="lanczos"),
    "do not divide": lambda x: ops.group_norm(x, 3),
    "which is odd": lambda x: ops.glu(x),
    "pad mode": lambda x: ops.pad_with(x, (0, 0, 1), (0, 0, 1), "mirror"),
    "widths 5, 0": lambda x: ops.pad_with(x, (0, 0, 5), (0, 0, 0), "reflect"),
    "one shift per axis": lambda x: ops.roll(x, (1, 2), 0),
    "at least one node": lambda x: ops.stack([]),
    "count ≥ 1": lambda x: ops.repeat(x, 0, 1, 1),
    "top 9": lambda x: ops.topk(x, 9),
    "is empty": lambda x: ops.var(x[:, :, :1], 2),
    "once each": lambda x: ops.einsum("iij->j", x),
    "2 terms for 1": lambda x: ops.einsum("ijk,jk->i", x),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_sense_is_refused(message: str) -> None:
    with pytest.raises(GraphError, match=message):
        REFUSED[message](GraphBuilder().input("x", (1, 2, 5)))


# --- exact costs ---------------------------------------------------------------------------------


def test_flops_are_two_per_multiply_add() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 4, 8, 8))
    dense = ops.conv(x, g.parameter("w", (6, 4, 3, 3)), padding=1)
    box = Box(((0, 1), (0, 6), (2, 4), (3, 6)))
    assert dense.call.op.flops(dense.call, box) == 2 * 6 * 6 * 4 * 9
    apart = ops.conv(x, g.parameter("d", (4, 1, 3, 3)), groups=4)
    assert apart.call.op.flops(apart.call, Box.full(apart.shape)) == 2 * 4 * 36 * 9
    up = ops.conv_transpose(x, g.parameter("u", (4, 3, 2, 2)), stride=2)
    assert up.call.op.flops(up.call, Box.full(up.shape)) == 2 * 4 * 64 * 3 * 4


# --- what re-runs --------------------------------------------------------------------------------


def _small_net(g: GraphBuilder) -> Node:
    """conv, norm, relu, pool; a residual block; an average; a linear layer."""
    x = g.input("x", (1, 1, 32, 32))

    def conv(node: Node, name: str, channels: int, **options: Any) -> Node:
        shape = (channels, node.shape[1], 3, 3)
        made = ops.conv(node, g.parameter(f"{name}.w", shape), padding=1, **options)
        vectors = {v: g.parameter(f"{name}.{v}", (channels,)) for v in ("m", "v", "s", "b")}
        return ops.batch_norm(made, vectors["m"], vectors["v"], vectors["s"], vectors["b"], 1.0)

    stem = g.name(ops.relu(conv(x, "stem", 2)), "stem")
    pooled = g.name(ops.max_pool(stem, 2), "pooled")
    inner = ops.relu(conv(pooled, "inner", 2))
    block = g.name(ops.relu(conv(inner, "outer", 2) + pooled), "block")
    means = ops.avg_pool(block, 4).reshape(1, -1)
    return ops.linear(means, g.parameter("head.w", (3, 32)), g.parameter("head.b", (3,)))


def _net_values(rng: np.random.Generator) -> dict[str, Array]:
    g = GraphBuilder()
    g.output("y", _small_net(g))
    values = {name: integers(rng, node.shape) for name, node in g.build().parameters.items()}
    # Roots of variances are 2.
    return {n: np.full_like(a, 3) if n.endswith(".v") else a for n, a in values.items()}


def _net_by_torch(values: dict[str, Array], x: Array) -> Array:
    t = {name: torch.tensor(array) for name, array in values.items()}

    def conv(node: Any, name: str) -> Any:
        made = F.conv2d(node, t[f"{name}.w"], padding=1)
        statistics = (t[f"{name}.m"], t[f"{name}.v"], t[f"{name}.s"], t[f"{name}.b"])
        return F.batch_norm(made, *statistics, eps=1.0)

    pooled = F.max_pool2d(F.relu(conv(torch.tensor(x), "stem")), 2)
    block = F.relu(conv(F.relu(conv(pooled, "inner")), "outer") + pooled)
    means = F.avg_pool2d(block, 4).flatten(1)
    return np.asarray(F.linear(means, t["head.w"], t["head.b"]))


def _net_session(rng: np.random.Generator) -> CheckedSession:
    g = GraphBuilder()
    g.output("y", _small_net(g))
    values = _net_values(rng) | {"x": integers(rng, (1, 1, 32, 32))}
    return CheckedSession(g.build(), values, retain="all")


def _computed(session: GraphSession, name: str) -> list[Box]:
    assert session.last is not None
    found = [i for i in session.last.program.instructions if i.node.name == name]
    return [i.box.at(session.standing.last.origin) for i in found if i.kernel != "fill"]


def _patched(image: Array, row: int, column: int, size: int = 2) -> Array:
    result = image.copy()
    result[:, :, row : row + size, column : column + size] = 9
    return result


def test_moving_a_patch_runs_its_old_and_its_new_place(rng: np.random.Generator) -> None:
    checked = _net_session(rng)
    image = checked.values["x"]
    checked.run()
    checked.run({"x": _patched(image, 2, 2)})
    assert _computed(checked.session, "stem") == [Box(((0, 1), (0, 2), (1, 5), (1, 5)))]
    assert _computed(checked.session, "pooled") == [Box(((0, 1), (0, 2), (0, 3), (0, 3)))]
    assert _computed(checked.session, "block") == [Box(((0, 1), (0, 2), (0, 5), (0, 5)))]
    checked.run({"x": _patched(image, 24, 26)})
    old, new = _computed(checked.session, "stem")
    assert old == Box(((0, 1), (0, 2), (1, 5), (1, 5)))
    assert new == Box(((0, 1), (0, 2), (23, 27), (25, 29)))
    assert len(_computed(checked.session, "block")) == 2  # and nothing between them


def test_random_patches_equal_pytorch(rng: np.random.Generator) -> None:
    checked = _net_session(rng)
    image = checked.values["x"]
    values = checked.parameters
    checked.run()
    for _ in range(3):
        row, column = rng.integers(0, 30, 2)
        moved = _patched(image, int(row), int(column))
        found = checked.run({"x": moved})["y"]
        np.testing.assert_allclose(found, _net_by_torch(values, moved), rtol=1e-6)


def _pooled(rng: np.random.Generator) -> CheckedSession:
    """Three convolutions at two resolutions."""
    g, values, width = GraphBuilder(), {}, 2
    node = g.input("x", (1, width, 48, 48))
    for i in range(3):
        values[f"w{i}"] = integers(rng, (width, width, 3, 3))
        node = ops.relu(ops.conv(node, g.parameter(f"w{i}", (width, width, 3, 3)), padding=1))
        node = ops.max_pool(node, 2) if i == 0 else node
    g.output("y", ops.max_(node, (2, 3)))
    return CheckedSession(g.build(), values | {"x": integers(rng, (1, width, 48, 48))})


def test_places_of_equal_residue_share_their_programs(rng: np.random.Generator) -> None:
    """A patch that moves by 2 over a stride of 2: inside the image every place runs the same."""
    checked = _pooled(rng)
    checked.run()
    for at in range(10, 30, 2):
        checked.run({"x": _patched(checked.values["x"], at, at)})
    before = checked.session.counters.specialised
    for at in range(31, 11, -2):
        checked.run({"x": _patched(checked.values["x"], at, at)})
    assert before <= 4
    assert checked.session.counters.specialised - before <= 4


def test_what_comes_again_in_pieces_is_planned_for_where_no_budget_is(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three places at once, by a plan without room for more than one, as a search makes it."""
    monkeypatch.setattr(Attempt, "roomy", lambda attempt, budget_bytes=None: attempt.within(None))
    checked = _pooled(rng)
    checked.run()
    image = checked.values["x"]
    pieces = []
    for at in range(4, 16, 2):
        three = _patched(_patched(_patched(image, at, 40), 40, at), at + 3, at + 3)
        checked.run({"x": three})
        assert checked.session.last is not None
        pieces.append(len(checked.session.last.program.steps))
    assert max(pieces) > 1
    assert pieces[-1] == 1
    assert checked.session.counters.planned == 2


def test_a_first_plan_has_room_for_several_places_at_once(rng: np.random.Generator) -> None:
    checked = _pooled(rng)
    checked.run()
    image = checked.values["x"]
    for at in range(4, 16, 2):
        checked.run({"x": _patched(_patched(_patched(image, at, 40), 40, at), at + 3, at + 3)})
        assert checked.session.last is not None
        assert len(checked.session.last.program.steps) == 1
    assert checked.session.counters.planned == 1


def test_a_new_sample_costs_the_same_in_a_longer_window() -> None:
    """Causal convolutions over a stream: each layer computes one new point."""
    costs = []
    for length in (32, 128):
        g, rng = GraphBuilder(), np.random.default_rng(0)
        node = g.input("x", (1, 2, length))
        for i, dilation in enumerate((1, 2, 4)):
            weight = g.parameter(f"w{i}", (2, 2, 3))
            node = ops.conv(node, weight, padding=((2 * dilation, 0),), dilation=dilation)
            node = ops.relu(node)
        g.output("y", node)
        values = {f"w{i}": integers(rng, (2, 2, 3)) for i in range(3)}
        x = integers(rng, (1, 2, length))
        checked = CheckedSession(g.build(), values | {"x": x}, retain="all")
        checked.run()
        for at in (20, 21, 22):
            x = x.copy()
            x[:, :, at] = 5
            checked.run({"x": x}, want={"y": np.s_[:, :, at]})
        session = checked.session
        assert session.last is not None
        boxes = [i.box for i in session.last.program.instructions]
        assert all(box[-1][1] - box[-1][0] == 1 for box in boxes)
        costs.append(len(boxes))
    assert costs[0] == costs[1]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
