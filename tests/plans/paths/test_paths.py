"""Paths: in order, by what runs compute and what was measured; and what they say is what runs."""

from __future__ import annotations

import doctest
import pathlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Maker, graphs

import tgbench as tg
import tgbench.graph.ops as ops
import tgbench.plans.paths.paths
from tgbench.base.errors import PlanError
from tgbench.base.regions import Box, Region
from tgbench.costs.model import CostModel
from tgbench.costs.records import Records
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.reference import evaluate
from tgbench.graph.rewrite import ways
from tgbench.graph.rewrite.choices import Cluster, Way
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.plans.paths.occasions import PlannedRun
from tgbench.plans.paths.paths import Path, Paths, Space
from tgbench.plans.paths.pricing import Pricing
from tgbench.runs.propagate import Propagator, Storage
from tgbench.runs.rules import Rules
from tgbench.session.paths import SessionPaths
from tgbench.session.session import GraphSession

FEW = SaturationLimits(nodes=200, seconds=60)


def paths_of(graph: Graph, *runs: PlannedRun) -> Paths:
    return Paths(Space.of(graph, Rules(), runs, limits=FEW), CostModel())


def test_examples_in_docstrings() -> None:
    failed, tried = doctest.testmod(tgbench.plans.paths.paths)
    assert tried
    assert not failed


def layers(count: int = 2, width: int = 16) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (8, width))
    for i in range(count):
        with g.scope(f"layer_{i}"):
            h = ops.rms_norm(x, g.parameter(f"n{i}", (width,)))
            q, k, v = (ops.linear(h, g.parameter(f"{n}{i}", (width, width))) for n in "qkv")
            x = x + ops.softmax(q @ k.transpose()) @ v
    g.output("y", x)
    return g.build()


def weights_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(0, 0.3, node.shape).astype("float32")
        for name, node in graph.parameters.items()
    }


@pytest.fixture
def session() -> GraphSession:
    graph = layers()
    made = GraphSession(graph, weights=weights_of(graph), calibrate=False)
    made.run({"x": np.ones((8, 16), np.float32)})
    return made


@given(case=graphs(most_ops=7))
@settings(max_examples=25)
def test_paths_come_in_order_and_differ(case: tuple[Graph, Maker]) -> None:
    found = paths_of(case[0]).first(60)
    times = [path.time_ns for path in found]
    assert times == pytest.approx(sorted(times), rel=1e-12)  # sums are rounded
    keys = {(tuple(p.taken.values()), tuple(sorted(p.kernels.items()))) for p in found}
    assert len(keys) == len(found)
    for path in found[:5]:
        assert path.estimate.time_ns == pytest.approx(path.time_ns)


@given(case=graphs(most_ops=7), work=st.sampled_from([0, 10, 60]))
@settings(max_examples=25)
def test_where_the_fastest_is_not_found_it_is_said_how_much_faster_it_may_be(
    case: tuple[Graph, Maker], work: int
) -> None:
    best = paths_of(case[0])
    assert best.gap == 0.0
    with pytest.MonkeyPatch.context() as patch:
        for most in ("MOST_WORK", "LESS_WORK"):
            patch.setattr(ways, most, work)
        found = paths_of(case[0])
        first, gap = found[0], found.gap
        times = [path.time_ns for path in islice(found, 20)]
    assert best[0].time_ns <= first.time_ns * (1 + 1e-9)
    assert first.time_ns <= best[0].time_ns * (1 + gap) * (1 + 1e-9)
    assert first.time_ns <= found.given.time_ns * (1 + 1e-9)
    assert times == sorted(times)
    assert ("more than the fastest" in str(found)) is (gap > 0)


def own_formulas(layers: int = 2, width: int = 64, rows: int = 32) -> Graph:
    """Layers of which nothing is a fused op: norms by magnitudes, capped scores, a softmax that
    may leave everything out, gates; rules move products and sums across each other everywhere.
    """
    g = GraphBuilder()
    x = g.input("x", (rows, width))

    def linear(x: Node, name: str) -> Node:
        weight, bias = g.parameter(name, (width, width)), g.parameter(f"{name}.bias", (width,))
        return ops.linear(x, weight) + bias

    def norm(x: Node, name: str) -> Node:
        size = ops.mean(ops.maximum(x, -x), -1, keepdims=True) + 1e-5
        return x / size * g.parameter(name, (width,)) + x * 0.1

    def split(x: Node) -> Node:
        return x.reshape(rows, 4, width // 4).permute(1, 0, 2)

    for i in range(layers):
        h = norm(x, f"n{i}")
        q, k, v = (split(linear(h, f"{name}{i}")) for name in "qkv")
        scores = ops.tanh(q @ k.permute(0, 2, 1) * 0.01) * 30.0
        shares = ops.exp(scores - ops.max_(scores, -1, keepdims=True))
        shares = shares / (ops.sum_(shares, -1, keepdims=True) + 1.0)
        x = x + linear((shares @ v).permute(1, 0, 2).reshape(rows, width), f"o{i}")
        h = norm(x, f"m{i}")
        gate = linear(h, f"a{i}")
        x = x + linear(gate * ops.sigmoid(gate * 1.7) * linear(h, f"b{i}"), f"c{i}")
    g.output("y", x)
    return g.build()


def test_formulas_of_its_own_have_a_first_path_after_so_much_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, more = 0, Pricing.more

    def counted(pricing: Pricing, cluster: Cluster, way: Way) -> float:
        nonlocal looked
        looked += 1
        return more(pricing, cluster, way)

    monkeypatch.setattr(Pricing, "more", counted)
    limits = SaturationLimits(nodes=4_000, seconds=60)
    space = Space.of(own_formulas(), Rules(), limits=limits)
    best = Paths(space, CostModel())
    assert best[0].time_ns < best.given.time_ns
    assert best.gap == 0.0
    for most in ("MOST_WORK", "LESS_WORK", "MOST_BESIDE"):
        monkeypatch.setattr(ways, most, 3_000)
    looked, found = 0, Paths(space, CostModel())
    times = [path.time_ns for path in islice(found, 50)]
    assert looked < 3_000
    assert times == sorted(times)
    assert 0.0 < found.gap < 0.1
    assert best[0].time_ns <= times[0] <= best[0].time_ns * (1 + found.gap + 1e-9)


def test_beside_ways_that_are_found_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all can be looked through there are more than the few that promise most."""
    for most in ("MOST_WORK", "LESS_WORK"):
        monkeypatch.setattr(ways, most, 0)
    found = paths_of(layers())
    times = [path.time_ns for path in islice(found.graphs(), 300)]
    assert len(times) > 20
    assert times == sorted(times)
    assert len(found.different(10, 300)) == 10
    monkeypatch.setattr(ways, "MOST_BESIDE", 0)
    assert len(list(paths_of(layers()).graphs())) <= 3


@given(case=graphs(most_ops=7))
@settings(max_examples=25)
def test_the_given_graph_is_a_path(case: tuple[Graph, Maker]) -> None:
    graph, make = case
    paths = paths_of(graph)
    assert paths.given.time_ns >= paths[0].time_ns - 1e-6
    assert evaluate(paths.given.graph, make(1)).keys() == graph.outputs.keys()


@given(case=graphs(most_ops=7), seed=st.integers(0, 5))
@settings(max_examples=25)
def test_a_whole_run_computes_what_a_run_from_nothing_does(
    case: tuple[Graph, Maker], seed: int
) -> None:
    """What is computed of the graph's own nodes is what the engine computes of them, or more."""
    graph, _ = case
    space = Space.of(graph, Rules(), limits=FEW)
    (occasion,) = space.occasions
    propagator = Propagator(graph, Storage(frozen=graph.frozen), Rules())
    changed = {node: Region.full(node.shape) for node in (*graph.inputs.values(),)}
    step = propagator.step({}, changed, {n: Region.full(n.shape) for n in graph.ends})
    for node, region in step.compute.items():
        name = space.egraph.find(space.egraph.of[node])
        if name in occasion.computed:  # what no end needs any more is not
            assert occasion.computed[name].contains(region)
    for end in space.egraph.ends:
        if not end.is_leaf and not space.egraph.is_fixed(end):
            assert end in occasion.computed


def test_ops_that_were_written_out_are_found_again() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (8, 16)), g.parameter("w", (16,))
    h = x / ops.sqrt(ops.mean(x * x, -1, keepdims=True) + 1e-6) * w
    q, k, v = (h @ g.parameter(name, (16, 16)).transpose() for name in "qkv")
    scores = (q @ k.transpose()) * 0.25
    scores = ops.exp(scores - ops.max_(scores, -1, keepdims=True))
    g.output("y", (scores / ops.sum_(scores, -1, keepdims=True)) @ v)
    graph = g.build()
    paths = Paths(Space.of(graph, Rules(), limits=SaturationLimits(nodes=900)), CostModel())
    found = {node.op for node in paths[0].graph.nodes}
    assert "rms_norm" in found
    assert {"softmax", "attention"} & found
    assert "recognised" in paths[0].rules
    assert paths[0].time_ns < paths.given.time_ns
    values = {name: np.asarray(value) for name, value in weights_of(graph).items()}
    values["x"] = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
    right, got = evaluate(graph, values)["y"], evaluate(paths[0].graph, values)["y"]
    np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def test_what_an_edit_computes_decides() -> None:
    """One row of a product of two weights: the small product first; all rows: the weights first."""
    g = GraphBuilder()
    x, a, b = g.input("x", (512, 64)), g.input("a", (64, 64)), g.input("b", (64, 64))
    g.output("y", (x @ a) @ b)
    graph = g.build()
    y, row = graph.outputs["y"], Box(((7, 8), (0, 64)))
    edit = PlannedRun(1.0, {"x": Region.of(row)}, {y: Region.of(row)})
    whole = paths_of(graph)
    assert "right first" in whole[0].rules
    assert whole[0].time_ns < whole.given.time_ns
    assert paths_of(graph, edit)[0].time_ns < whole[0].time_ns / 2


def test_products_of_one_input_are_computed_at_once(session: GraphSession) -> None:
    paths = session.paths(limits=SaturationLimits(nodes=1_000))
    together = next(p for p in paths.paths.graphs() if "products together" in p.rules)
    assert len(together.calls) < len(paths.given.calls)
    assert together.differs(paths.given)


def test_a_path_runs_as_it_says(session: GraphSession) -> None:
    paths = session.paths(limits=SaturationLimits(nodes=1_000))
    x = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
    expected = session.run({"x": x})["y"]
    for path in islice(paths.paths.graphs(), 4):
        opened = paths.open(path)
        np.testing.assert_allclose(opened.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)
        edited = x.copy()
        edited[3] += 1
        right = session.run({"x": edited})["y"]
        np.testing.assert_allclose(opened.run({"x": edited})["y"], right, rtol=1e-4, atol=1e-5)
        session.run({"x": x})
        ran = {made.node.op for made in opened.last.program.instructions if opened.last}
        assert ran <= {node.op for node in path.graph.nodes}


def test_other_kernels_of_a_path_run(session: GraphSession) -> None:
    paths = session.paths(limits=SaturationLimits(nodes=300), within=50.0)
    path = next(paths.filtered(lambda path: len(path.kernels) == 1))
    ((_, name),) = path.kernels.items()
    opened = paths.open(path)
    opened.run({"x": np.ones((8, 16), np.float32)})
    assert name in {made.kernel for made in opened.last.program.instructions}


def test_measurements_change_the_order(session: GraphSession, tmp_path: pathlib.Path) -> None:
    paths = session.paths(limits=SaturationLimits(nodes=600))
    records = Records(tmp_path / "records.db")
    swept = paths.sweep(records, count=3)
    assert swept.measured > 0
    assert not swept.stopped
    assert paths[0].estimate.share("measured") > 0.5
    assert paths.sweep(records, count=3).measured == 0


def test_a_tolerance_is_kept(session: GraphSession) -> None:
    paths = session.paths(tolerance=1e-2, limits=SaturationLimits(nodes=1_500))
    fastest = paths.fastest()
    assert paths.error(fastest) <= 1e-2
    rounded = next(path for path in paths.paths.graphs() if path.is_rounded)
    assert 1e-6 < paths.error(rounded) < 0.2
    strict = session.paths(tolerance=1e-7, limits=SaturationLimits(nodes=1_500))
    found = strict.fastest()
    assert not found.is_rounded or strict.error(found) <= 1e-7
    frontier = paths.frontier(8)
    assert {"time_ns", "error", "memory_bytes"} <= set(frontier.columns)


def one_row(width: int = 512) -> GraphSession:
    """A session of a graph that does little but read its weight."""
    g = GraphBuilder()
    x = g.input("x", (1, width))
    g.output("y", ops.linear(ops.relu(x), g.parameter("w", (width, width))))
    graph = g.build()
    session = GraphSession(graph, weights=weights_of(graph), calibrate=False)
    session.run({"x": np.ones((1, width), np.float32)})
    return session


def held_in(graph: Graph) -> str:
    """What the weight of the only product is in."""
    (product,) = (node for node in graph.nodes if not node.is_leaf and node.call.op.multiplies)
    return product.inputs[1].dtype


@pytest.mark.parametrize(
    ("tolerance", "dtype"), [(3e-2, "int8"), (8e-4, "float16"), (1e-6, "float32")]
)
def test_what_is_fastest_is_as_little_as_a_tolerance_allows(tolerance: float, dtype: str) -> None:
    paths = one_row().paths(tolerance=tolerance, limits=SaturationLimits(nodes=200))
    fastest = paths.fastest()
    assert paths.error(fastest) <= tolerance
    assert held_in(fastest.graph) == dtype


def test_weights_in_float16_are_nearer_than_in_bfloat16() -> None:
    paths = one_row().paths(tolerance=1e-2, limits=SaturationLimits(nodes=200))
    found: dict[str, float] = {}
    for path in paths.paths.graphs():
        if path.is_rounded:
            found.setdefault(held_in(path.graph), paths.error(path))
    assert 2e-5 < found["float16"] < found["bfloat16"] / 4 < found["int8"] / 4


def test_what_is_too_far_off_is_left_out(session: GraphSession) -> None:
    paths = session.paths(tolerance=1e-2, limits=SaturationLimits(nodes=600)).paths
    rounded = next(path for path in paths.graphs() if path.is_rounded)
    banned = {node for part in rounded.rounded_parts() for node in part}
    left = paths.without(banned)
    assert banned
    assert not any(banned.intersection(path.nodes) for path in islice(left.graphs(), 20))
    assert left.given.time_ns == pytest.approx(paths.given.time_ns)


def test_what_exact_rules_make_of_less_is_less() -> None:
    """The weight of a product is narrow, and the rule that made a layer of that rounds nothing."""
    g = GraphBuilder()
    x, w, v = g.input("x", (8, 16)), g.parameter("w", (16, 16)), g.parameter("v", (16, 16))
    g.output("y", ops.linear(ops.linear(x, w), v) + ops.linear(x * 2.0, w))
    weights = {name: np.random.default_rng(0).standard_normal((16, 16)) for name in "wv"}
    session = GraphSession(g.build(), {n: w.astype(np.float32) for n, w in weights.items()})
    told = set[tuple[bool, bool]]()
    for path in islice(session.paths(tolerance=1e-2, limits=SaturationLimits(nodes=600)), 1500):
        nodes = path.graph.nodes
        is_less = any(n.dtype != "float32" or "arithmetic" in n.attrs for n in nodes)
        told.add((is_less, path.is_rounded))
    assert told == {(False, False), (True, True)}


def test_a_tolerance_that_allows_nothing_is_refused(session: GraphSession) -> None:
    with pytest.raises(PlanError, match="above 0"):
        session.paths(tolerance=0.0)


def test_without_a_tolerance_nothing_is_rounded(session: GraphSession) -> None:
    assert not any(path.is_rounded for path in session.paths().paths.first(50))


class Stopping:
    """A function that is stopped after some calls, then after half as many more, and so on."""

    def __init__(self, function: Callable[..., Any], after: int) -> None:
        self.function, self.left, self.after = function, after, after

    def __call__(self, *arguments: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.left = self.after = 1 + self.after * 3 // 2
            raise KeyboardInterrupt
        return self.function(*arguments)


@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_paths_that_were_interrupted_go_on(
    after: int, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever something is asked for what it costs; with a bound on work, too."""
    if most is not None:
        for name in ("MOST_WORK", "LESS_WORK"):
            monkeypatch.setattr(ways, name, most)
    graph = layers()
    undisturbed = paths_of(graph).first(40)
    paths = paths_of(graph)
    stops, found = 0, list[Path]()
    with monkeypatch.context() as patched:
        patched.setattr(paths.pricing, "chains", Stopping(paths.pricing.chains, after))
        while len(found) < len(undisturbed):
            try:
                found.append(paths[len(found)])
            except KeyboardInterrupt:
                stops += 1
    assert stops
    assert [str(path) for path in found] == [str(path) for path in undisturbed]
    assert [path.graph.fingerprint for path in found] == [
        path.graph.fingerprint for path in undisturbed
    ]


def test_a_graph_without_choices_has_one_path() -> None:
    g = GraphBuilder()
    g.output("y", ops.exp(g.input("x", (4,))))
    paths = paths_of(g.build())
    assert paths.count_graphs() == 1
    assert paths[0].rules == ()
    assert isinstance(tg.GraphSession(g.build()).paths(), SessionPaths)
