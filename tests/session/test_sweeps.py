"""Runs on images: one program for a patch wherever it stands, beside full recomputation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import CheckedSession

import tgbench as tg
from tgbench.base.coords import here, larger, origin_symbol, record, smaller, swept_symbol
from tgbench.base.regions import Box, Region
from tgbench.costs.model import CostModel
from tgbench.graph.reference import evaluate
from tgbench.kernels import KERNELS, panels
from tgbench.kernels.onednn import direct
from tgbench.kernels.onednn.library import library
from tgbench.kernels.registry import candidates
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Program
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.pausing import Pausing
from tgbench.session import running
from tgbench.session.chooser import Larger, Own
from tgbench.session.making import Maker
from tgbench.session.serving import SWEPT, Offer

Shape = tuple[int, int, int, int]


class Anywhere(Own):
    """Takes a run as one that may stand anywhere, if that is offered."""

    strict = False

    def __init__(self) -> None:
        self.refusals = set[BucketClass]()

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        swept = (one for one in larger() if one.rung is SWEPT)
        return next((one for one in swept if one.spot.kind not in self.refusals), own)

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        """Memory was not reserved for it; it does not matter where it stands."""
        if offer.rung is SWEPT:
            assert not can_plan
            self.refusals.add(offer.spot.kind)
        return can_plan


def _checked(
    graph: tg.Graph, values: dict[str, Any], *, any_size: bool = False, **options: Any
) -> CheckedSession:
    """Args: any_size: products are taken to be computed by code that serves any size."""
    checked = CheckedSession(graph, values, calibrate=False, **options)
    if any_size:
        checked.session.rules.serves_any_size = lambda call: True
    serve_anywhere(checked.session)
    return checked


def serve_anywhere(session: tg.GraphSession) -> None:
    session.keeper.chooser = session.runner.chooser = Anywhere()


def shuffled(x: tg.Node, layer: Callable[[tg.Node], tg.Node]) -> tg.Node:
    """Half of the channels go through a layer, the others past it; then they take turns."""
    batch, channels, *space = x.shape
    half = channels // 2
    both = tg.ops.concat([x[:, :half], layer(x[:, half:])], 1)
    pairs = both.reshape(batch, 2, half, *space).permute(0, 2, 1, 3, 4)
    return pairs.reshape(batch, channels, *space)


class Network:
    """A random network of windows over small integers: sums are exact."""

    def __init__(self, data: Any, shape: Shape) -> None:
        self.draw, self.graph = data.draw, tg.GraphBuilder()
        self.values: dict[str, Any] = {}
        x = self.graph.input("x", shape)
        for _ in range(self.draw(st.integers(1, 4))):
            x = self._layer(x)
        self.graph.output("y", x)

    def _layer(self, x: tg.Node) -> tg.Node:
        kinds = ["conv", "conv", "points", "max_pool", "relu", "residual", "pad", "sum", "rows"]
        kind = self.draw(st.sampled_from([*kinds, "shuffle", "dense"]))
        small, channels = min(x.shape[2:]), x.shape[1]
        if kind == "shuffle" and channels % 2 == 0:
            return shuffled(x, lambda half: tg.ops.clamp(self._conv(half, 3, 1, 1), -9, 9))
        if kind == "dense":
            both = tg.ops.concat([x, tg.ops.clamp(self._conv(x, 3, 1, 1), -9, 9)], 1)
            less = tg.ops.conv(tg.ops.relu(both), self._weight(channels, 2 * channels, 1, 1))
            return tg.ops.clamp(less, -9, 9)
        if kind == "relu":
            return tg.ops.relu(x)
        if kind == "sum":
            return x + tg.ops.relu(x) if self.draw(st.booleans()) else tg.ops.relu(x) + x
        if kind == "rows":
            rows = tg.ops.linear(x.permute(0, 2, 3, 1), self._weight(x.shape[1], x.shape[1]))
            return tg.ops.clamp(rows, -9, 9).permute(0, 3, 1, 2)
        if kind == "max_pool" and small >= 3:
            return tg.ops.max_pool(x, 3, stride=self.draw(st.integers(1, 2)), padding=1)
        if kind == "residual":
            more = tg.ops.clamp(self._conv(tg.ops.relu(self._conv(x, 3, 1, 1)), 3, 1, 1), -9, 9)
            return x + more if self.draw(st.booleans()) else more + x
        if kind == "points":
            return self._conv(x, 1, self.draw(st.integers(1, 2)), 0)
        if kind == "pad" and small > 2:
            return x[:, :, 1:]
        kernel = self.draw(st.integers(1, min(4, small)))
        pads = self.draw(st.tuples(*[st.integers(0, kernel - 1)] * 4))
        stride = self.draw(st.integers(1, 3))
        padding = ((pads[0], pads[1]), (pads[2], pads[3]))
        return tg.ops.clamp(self._conv(x, kernel, stride, padding), -9, 9)

    def _conv(self, x: tg.Node, kernel: int, stride: int, padding: Any) -> tg.Node:
        weight = self._weight(x.shape[1], x.shape[1], kernel, kernel)
        return tg.ops.conv(x, weight, stride=stride, padding=padding)

    def _weight(self, *shape: int) -> tg.Node:
        name, random = f"w{len(self.values)}", np.random.default_rng(len(self.values))
        self.values[name] = random.integers(-1, 2, size=shape).astype(np.float32)
        return self.graph.parameter(name, shape)


@given(st.data())
def test_runs_anywhere_are_right_at_every_place(data: Any) -> None:
    """Of a patch of any size, kept or not, in one image or in each of several."""
    batch = data.draw(st.integers(1, 2))
    channels = data.draw(st.sampled_from([2, 2, 4]))
    shape = (batch, channels, data.draw(st.integers(4, 9)), data.draw(st.integers(4, 9)))
    network = Network(data, shape)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random.integers(-4, 5, size=shape).astype(np.float32)
    values = {**network.values, "x": x}
    checked = _checked(network.graph.build(), values, any_size=data.draw(st.booleans()))
    checked.run()
    high, wide = (data.draw(st.integers(1, n)) for n in shape[2:])
    places = list(product(range(shape[2] - high + 1), range(shape[3] - wide + 1)))
    random.shuffle(places)
    for place in places[:12]:
        x = x.copy()
        for image, (top, left) in zip(range(batch), (place, places[0]), strict=False):
            part = np.s_[image, :, top : top + high, left : left + wide]
            x[part] = random.integers(-4, 5, size=x[part].shape)
        checked.run({"x": x}, keep=data.draw(st.booleans()))


def _deep(size: int = 24) -> tuple[tg.Graph, dict[str, Any]]:
    """Strides, borders, a residual and a pool: what made a program of every place."""
    g, values = tg.GraphBuilder(), {}
    random = np.random.default_rng(0)

    def conv(x: tg.Node, kernel: int, stride: int = 1) -> tg.Node:
        name = f"w{len(values)}"
        shape = (4, x.shape[1], kernel, kernel)
        values[name] = random.integers(-1, 2, size=shape).astype(np.float32)
        weight = g.parameter(name, shape)
        made = tg.ops.conv(x, weight, stride=stride, padding=kernel // 2)
        return tg.ops.clamp(made, -9, 9)

    x = tg.ops.relu(conv(g.input("x", (1, 3, size, size)), 5, 2))
    x = tg.ops.max_pool(x, 3, stride=1, padding=1)
    x = tg.ops.relu(conv(tg.ops.relu(conv(x, 3)), 3) + x)
    x = tg.ops.relu(conv(conv(x, 3, 2), 3) + conv(x, 1, 2))
    g.output("y", x)
    return g.build(), values


def test_one_program_serves_a_patch_at_every_place() -> None:
    graph, values = _deep()
    random = np.random.default_rng(1)
    x = random.integers(-4, 5, size=(1, 3, 24, 24)).astype(np.float32)
    checked = _checked(graph, {**values, "x": x})
    checked.run()
    made = checked.session.counters.specialised
    for top, left in product(range(0, 22), range(0, 22, 3)):
        before, x, keep = x, x.copy(), (top + left) % 2 == 0
        x[:, :, top : top + 3, left : left + 3] += 1
        checked.run({"x": x}, keep=keep)
        x = x if keep else before
        assert checked.session.report().served == SWEPT.name
    assert checked.session.counters.specialised == made + 1
    assert checked.session.report().recomputed < 1


@pytest.mark.parametrize(("size", "least_share"), [(24, 0.0), (56, 0.3)])
def test_a_patch_anywhere_is_served_in_little_memory(
    size: int, least_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan leaves room for it, also where large runs are cut; the next run finds what it left."""
    monkeypatch.setattr("tgbench.plans.planner.DEAR", 1.5)  # so that some are cut
    graph, values = _deep(size)
    part = size // 8
    x = np.random.default_rng(1).integers(-4, 5, size=(1, 3, size, size)).astype(np.float32)
    free = _checked(graph, {**values, "x": x})
    free.run()
    most = free.session.placement.size_bytes
    with pytest.raises(tg.BudgetError) as caught:
        _checked(graph, {**values, "x": x}, memory=1).run()
    least, cuts = caught.value.needed_bytes, set()
    least += int(least_share * (most - least))
    for budget in np.linspace(least, most, 8).astype(int):
        checked = _checked(graph, {**values, "x": x}, memory=int(budget))
        checked.run()
        cuts.add(checked.session.plan.cut)
        for top, left in ((0, 0), (3, 6), (size - part, 0), (size // 2,) * 2, (3, size - part)):
            x = x.copy()
            x[:, :, top : top + part, left : left + part] += 1
            checked.run({"x": x})
            assert checked.session.report().served == SWEPT.name
    assert len(cuts) > 1


class Ready(Anywhere):
    """Has programs for any place of an image made with the first answer."""

    def rehearsing(self, offer: Offer, decided: Any) -> Pausing[bool]:
        yield
        return offer.rung is SWEPT


def _width(offer: Offer) -> int:
    """Of the part of an image that changes."""
    ((_, region),) = offer.bucket.changed
    ((*_, (start, stop)),) = region
    return stop - start


@pytest.mark.parametrize(("widest", "expected"), [(7, [7]), (6, [7, 5]), (2, [7, 5, 4])])
def test_where_there_is_no_room_for_a_part_a_narrower_one_is_made_ready(
    widest: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, values = _deep(56)
    checked = _checked(graph, {**values, "x": np.zeros((1, 3, 56, 56), np.float32)})
    checked.session.keeper.chooser = checked.session.runner.chooser = Ready()
    make, tried = Maker.make, []

    def made(maker: Maker, offer: Offer) -> Program:
        width = _width(offer)
        if offer.rung is SWEPT:
            tried.append(width)
        if widest < width < 56:
            raise DoesNotFit(graph.nodes[-1], width, "little room")
        return make(maker, offer)

    monkeypatch.setattr(Maker, "make", made)
    checked.run()
    assert tried == expected


class Refusing(Anywhere):
    """Finds that no program for any place would be quick."""

    def rehearsing(self, offer: Offer, decided: Any) -> Pausing[bool]:
        yield from decided
        return False


def _gated(size: int) -> tuple[tg.Graph, dict[str, Any]]:
    """A channel's sum is part of every pixel: a patch reaches everything."""
    g = tg.GraphBuilder()
    x = tg.ops.conv(g.input("x", (1, 3, size, size)), g.parameter("w", (4, 3, 1, 1)))
    x = x * tg.ops.sum_(x, (2, 3), keepdims=True)
    for name in ("v", "u"):
        x = tg.ops.relu(tg.ops.conv(x, g.parameter(name, (4, 4, 3, 3)), padding=1))
    g.output("y", x)
    shapes = {"w": (4, 3, 1, 1), "v": (4, 4, 3, 3), "u": (4, 4, 3, 3)}
    return g.build(), {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("make", "expected"), [(_gated, []), (_deep, [7, 5])])
def test_a_change_that_reaches_nearly_everything_is_not_followed_to_all_places(
    make: Any, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that is narrower and reaches as much: with strides, 4 pixels do what 5 do."""
    graph, values = make(52)
    checked = _checked(graph, {**values, "x": np.zeros((1, 3, 52, 52), np.float32)})
    checked.session.keeper.chooser = checked.session.runner.chooser = Refusing()
    decided, followed = Maker.decided, []

    def asked(maker: Maker, offer: Offer) -> Any:
        if offer.rung is SWEPT:
            followed.append(_width(offer))
        return decided(maker, offer)

    monkeypatch.setattr(Maker, "decided", asked)
    monkeypatch.setattr(running.Runner, "_steady_ns", lambda runner: 0)  # there is time
    checked.run()
    assert followed[:3] == expected


@pytest.mark.parametrize("make", [_gated, _deep])
def test_what_follows_a_first_answer_in_little_memory_is_of_its_plan(make: Any) -> None:
    """Which has an order of its own, or computes nodes in parts or again."""
    graph, values = make(24)
    x = np.random.default_rng(1).integers(-1, 2, size=(1, 3, 24, 24)).astype(np.float32)
    free = CheckedSession(graph, {**values, "x": x}, calibrate=False)
    free.run()
    with pytest.raises(tg.BudgetError) as caught:
        CheckedSession(graph, {**values, "x": x}, calibrate=False, memory=1).run()
    least, most = caught.value.needed_bytes, free.session.placement.size_bytes
    for budget in np.linspace(least, most, 6).astype(int):
        checked = CheckedSession(
            graph, {**values, "x": x}, calibrate=False, memory=int(budget), making="measured"
        )
        checked.run()
        for at in (0, 9, 21):
            x = x.copy()
            x[:, :, at : at + 3, at : at + 3] += 1
            checked.run({"x": x})


def test_what_changes_reach_is_found_again_over_another_order() -> None:
    graph, values = _deep(24)
    planning = _checked(
        graph, {**values, "x": np.zeros((1, 3, 24, 24), np.float32)}
    ).session.planning
    bucket, other = (
        Bucket.of({}, {"y": Region((Box(((0, 1), (0, 4), (0, 6), (0, stop))),))}) for stop in (6, 3)
    )
    found = planning.reach(bucket)
    assert planning.reach(bucket) is found
    planning.scheduled = ScheduledGraph.of(graph)
    again = planning.reach(bucket)
    assert again is not found
    assert planning.reach(bucket) is again
    assert planning.reach(other) is not again


class Endless(Anywhere):
    """Never has enough of asking what may come next."""

    asked = 0

    def rehearsing(self, offer: Offer, decided: Any) -> Pausing[bool]:
        with record((7,)):
            while True:
                self.asked += origin_symbol(0) < 8
                yield


def test_asking_what_may_come_next_ends_in_time_whatever_it_is_at() -> None:
    """The first answer waits for it as long again as it took, at most."""
    graph, values = _deep(56)
    checked = _checked(graph, {**values, "x": np.zeros((1, 3, 56, 56), np.float32)})
    checked.session.keeper.chooser = checked.session.runner.chooser = endless = Endless()
    checked.run()
    assert endless.asked
    assert here() == ()


def test_what_a_machine_compiles_once_leaves_as_much_time_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Endless):
        def rehearsing(self, offer: Offer, decided: Any) -> Pausing[bool]:
            for _ in super().rehearsing(offer, decided):
                clock["works"] += 1001
                running.once.SPENT.ns += 1000
                yield
            raise AssertionError

    def compiled(lowerer: Any) -> None:
        clock["works"] += 5

    clock = {"works": 0}
    graph, values = _deep(56)
    checked = _checked(graph, {**values, "x": np.zeros((1, 3, 56, 56), np.float32)})
    runner = checked.session.runner
    checked.session.keeper.chooser = runner.chooser = slow = Slow()
    monkeypatch.setattr(running, "compile_loops", compiled)
    monkeypatch.setattr(running.once.SPENT, "ns", 0)
    monkeypatch.setattr(runner, "_work_ns", lambda: clock["works"])
    checked.run()
    assert 3 < slow.asked < 10


@pytest.mark.parametrize("any_size", [False, True])
def test_what_is_computed_is_what_has_to_be_here_or_as_much_as_anywhere(any_size: bool) -> None:
    """A convolution of 5 with stride 2: a patch of 3 reaches at most 4 of its outputs. Where code
    is for one size they are computed at every place, else those that it reaches there.
    """
    g = tg.GraphBuilder()
    weights = np.ones((1, 1, 5), np.float32)
    x = g.input("x", (1, 1, 20))
    g.output("y", tg.ops.conv(x, g.parameter("w", (1, 1, 5)), stride=2, padding=2))
    graph = g.build()
    reached = []
    for at in range(18):
        windows = [set(range(2 * i - 2, 2 * i + 3)) for i in range(10)]
        reached.append(sum(bool(window & {at, at + 1, at + 2}) for window in windows))
    values = {"w": weights, "x": np.zeros((1, 1, 20), np.float32)}
    checked = _checked(graph, values, any_size=any_size)
    checked.run()
    x = np.zeros((1, 1, 20), np.float32)
    for at in (0, 17, 8, 9, 1):
        x = x.copy()
        x[..., at : at + 3] += 1
        checked.run({"x": x})
        (step,) = checked.session.last.program.steps
        (region,) = (part for node, part in step.compute.items() if node.op == "conv")
        assert region.at((at,)).elements == (reached[at] if any_size else max(reached))


def test_a_program_for_any_place_survives(tmp_path: Path) -> None:
    """Tables are written with the forms that go with them."""
    graph, values = _deep()
    x = np.zeros((1, 3, 24, 24), np.float32)
    plan, path = tmp_path / "plan.json", tmp_path / "programs"
    first = _checked(graph, {**values, "x": x})
    first.run()
    x = x.copy()
    x[:, :, 4:7, 9:12] = 2
    first.run({"x": x})
    first.session.save_plan(plan)
    first.session.save_programs(path)
    second = _checked(graph, {**values, "x": x * 0}, plan=plan)
    second.run()
    assert second.session.load_programs(path) > 0
    before = second.session.counters.specialised
    for top, left in product((0, 9, 21), (0, 12, 20)):
        x = np.zeros_like(x) if top == left == 0 else x.copy()
        x[:, :, top : top + 3, left : left + 3] += 1
        second.run({"x": x})
        assert second.session.report().served == SWEPT.name
    assert second.session.counters.specialised == before


@pytest.mark.skipif(library is None, reason="the extra `onednn` is not installed")
def test_strips_hold_no_program_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where zeros are around what is read at some places, they are copied around it at all."""
    monkeypatch.setattr(panels, "is_taken", lambda site: False)
    monkeypatch.setattr(direct, "_described", lambda site, of, by: None)
    computed = computed_by_one_program("conv_strips_direct", monkeypatch)
    assert computed[0, 0] == computed[9, 9], "code for one size"


@pytest.mark.skipif(panels.blocks is None, reason="numba is not installed")
@pytest.mark.parametrize(
    ("name", "groups"), [("conv_panels", 1), ("conv_winograd", 1), ("conv_depthwise", 64)]
)
def test_loops_hold_no_program_to_its_place(
    name: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Borders are arguments, and sizes: at a border less is reached."""
    computed = computed_by_one_program(name, monkeypatch, groups)
    assert computed[0, 0] < computed[0, 11] < computed[9, 9]


def computed_by_one_program(
    name: str, monkeypatch: pytest.MonkeyPatch, groups: int = 1
) -> dict[tuple[int, int], int]:
    """A kernel, taken wherever it can be, serves all places of a window by one program; returns how
    many elements that computes at some.
    """
    only("conv", name, "conv", monkeypatch)
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    channels = 16 if groups == 1 else groups  # and whole panels of any processor
    shapes = {"w0": (64, channels // groups, 3, 3), "w1": (64, 64 // groups, 3, 3)}
    values = {name: random.integers(-1, 2, shape) for name, shape in shapes.items()}
    x = g.input("x", (1, channels, 24, 24))
    for weight, shape in shapes.items():
        x = tg.ops.conv(x, g.parameter(weight, shape), padding=1, groups=groups)
    g.output("y", tg.ops.max_(x, (2, 3)))
    image = random.integers(-4, 5, size=(1, channels, 24, 24)).astype(np.float32)
    arrays = {name: value.astype(np.float32) for name, value in values.items()}
    checked = _checked(g.build(), {**arrays, "x": image})
    return computed_at_places(checked.session, checked.run, image, name)


def only(op: str, name: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of an op are computed by a kernel wherever that takes them, else by another one."""
    both = [one for one in (*KERNELS[op], *panels.PANELS) if one.name in (other, name)]
    kernels = {one.name: replace(one, cost_ns=lambda site: 0.0) for one in both}
    kernels[other] = replace(kernels[other], cost_ns=lambda site: 1e9)
    monkeypatch.setitem(KERNELS, op, [*kernels.values()])


def computed_at_places(
    session: tg.GraphSession, run: Callable[[Any], Any], image: np.ndarray, name: str
) -> dict[tuple[int, int], int]:
    """What one program without guards computes at some places of a window of 24²."""
    computed = {}
    run({"x": image})
    for place in ((9, 9), (0, 0), (0, 11), (20, 20), (13, 2)):
        image = image.copy()
        image[..., place[0] : place[0] + 4, place[1] : place[1] + 4] += 1
        run({"x": image})
        assert session.last is not None
        program = session.last.program
        assert name in {made.kernel for made in program.instructions}
        assert program.domain.share((20, 20)) == 1.0
        (step,) = program.steps
        computed[place] = sum(region.at(place).elements for region in step.compute.values())
    assert session.counters.specialised == 2
    return computed


@pytest.mark.skipif(panels.blocks is None, reason="numba is not installed")
def test_layers_over_channels_hold_no_program_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and products of an image's points, whose channels are their rows' columns: windows of
    an image are no rows one behind the other, and how many there are is a product of two sizes.
    """
    only("conv", "conv_panels", "conv", monkeypatch)
    only("linear", "linear_panels", "linear_rows", monkeypatch)
    random, g, wide = np.random.default_rng(0), tg.GraphBuilder(), 64
    shapes = {"w": (wide, wide, 3, 3), "scale": (wide,), "bias": (wide,), "a": (wide, wide),
              "b": (wide, wide)}  # fmt: skip
    values = {name: random.normal(0, 0.2, shape) for name, shape in shapes.items()}
    given = {name: g.parameter(name, shape) for name, shape in shapes.items()}
    x = g.input("x", (1, wide, 24, 24))
    for _ in range(2):
        y = tg.ops.conv(x, given["w"], padding=1).permute(0, 2, 3, 1)
        y = tg.ops.layer_norm(y, given["scale"], given["bias"])
        y = tg.ops.linear(tg.ops.gelu(tg.ops.linear(y, given["a"])), given["b"])
        x = x + y.permute(0, 3, 1, 2)
    g.output("y", tg.ops.max_(x, (2, 3)))
    graph, image = g.build(), random.normal(size=(1, wide, 24, 24)).astype(np.float32)
    arrays = {name: value.astype(np.float32) for name, value in values.items()}
    session = tg.GraphSession(graph, arrays, calibrate=False)
    serve_anywhere(session)

    def run(inputs: dict[str, Any]) -> None:
        expected = evaluate(graph, {**arrays, **inputs})["y"]
        np.testing.assert_allclose(session.run(inputs)["y"], expected, 1e-4, 1e-4)

    computed = computed_at_places(session, run, image, "linear_panels")
    assert computed[0, 0] < computed[0, 11] < computed[9, 9]


@pytest.mark.skipif(panels.blocks is None, reason="numba is not installed")
@pytest.mark.parametrize("layers", [2, 5])
def test_windows_of_channels_that_are_shuffled_are_as_many_calls_as_an_image_takes(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer reaches further in half of the channels than the one before it in the other half:
    as many windows as channels, of which neither is in the other at every place. They are taken
    for one around them, by calls that ask nothing of the place.
    """
    only("conv", "conv_panels", "conv", monkeypatch)
    random, g, wide = np.random.default_rng(0), tg.GraphBuilder(), 64
    weights = [g.parameter(f"w{i}", (wide // 2, wide // 2, 3, 3)) for i in range(layers)]
    x = g.input("x", (1, wide, 24, 24))
    for weight in weights:
        x = tg.ops.clamp(shuffled(x, partial(tg.ops.conv, weight=weight, padding=1)), -9, 9)
    g.output("y", tg.ops.max_(x, (2, 3)))
    values = {one.name: random.integers(-1, 2, one.shape).astype(np.float32) for one in weights}
    image = random.integers(-4, 5, size=(1, wide, 24, 24)).astype(np.float32)
    checked = _checked(g.build(), {**values, "x": image})
    computed = computed_at_places(checked.session, checked.run, image, "conv_panels")
    assert computed[0, 0] < computed[0, 11] < computed[9, 9]
    calls = len(checked.session.last.program.instructions)
    checked.session.forget()
    checked.run()
    assert calls <= len(checked.session.last.program.instructions) + 2


def test_what_calls_are_modelled_at_holds_no_program_to_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Costs only rank: what they ask of sizes is not asked of the place."""
    g = tg.GraphBuilder()
    node = tg.ops.conv(g.input("x", (1, 8, 9, 9)), g.parameter("w", (8, 8, 3, 3)), padding=1)
    own = [one for one in KERNELS["conv"] if not one.by_size]
    asks = [replace(one, cost_ns=lambda site: float(site.out.shape[2] > 3)) for one in own]
    monkeypatch.setitem(KERNELS, "conv", asks)
    u, costs = swept_symbol(0, 8), CostModel()
    side = larger(u - 1, 0), smaller(u + 3, 9)
    box = Box(((0, 1), (0, 8), side, side))
    with record([4]) as guards:
        site = costs.site(node.call, box)
        assert len(candidates(site)) > 1
        assert len(costs.ranked(site)) > 1
    assert not guards
