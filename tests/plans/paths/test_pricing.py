"""What paths are expected to take is what their programs do: the same calls, laid alike."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from library_cases import NEEDS_LIBRARY
from strategies import Maker, graphs

import tgbench.graph.ops as ops
import tgbench.plans.paths.laid
from tgbench.base.regions import Box, Region
from tgbench.costs.model import CostModel, CostTable, Measurement
from tgbench.costs.signature import source_hash, without_layout
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.graph.rewrite.ways import count_ways, ways
from tgbench.kernels.numba import panels
from tgbench.kernels.registry import KERNELS
from tgbench.plans.paths.occasions import PlannedRun
from tgbench.plans.paths.paths import Path, Paths, Space
from tgbench.plans.paths.pricing import Chain, Pricing
from tgbench.runs.rules import Rules
from tgbench.session.profile import ProfiledCall, predict, survey
from tgbench.session.session import GraphSession

FEW = SaturationLimits(nodes=200, seconds=60)
Values = Mapping[str, Any]


def opened(graph: Graph, values: Values) -> GraphSession:
    weights = {name: values[name] for name in graph.parameters}
    return GraphSession(graph, weights=weights, calibrate=False)


def programmed(session: GraphSession, values: Values) -> list[ProfiledCall]:
    """The calls of a run from nothing, but for fills of what is known."""
    session.run({name: values[name] for name in session.graph.inputs})
    assert session.last is not None
    return [call for call in survey(session, session.last.program) if call.kernel.name != "fill"]


def check(path: Path, session: GraphSession, values: Values, *, more: bool = False) -> None:
    """Whether a path makes the calls of a session's program; or what takes longer, if it may.

    It may where other ways need more of a class than this one does: what of it is computed is
    asked once for all of them.
    """
    calls = programmed(session, values)
    found = Counter((call.lying, call.kernels[0][0].name) for call in path.calls)
    expected = Counter((call.signature.text, call.kernel.name) for call in calls)
    lowered_ns = predict(calls, session.costs).time_ns
    if more and found != expected:
        assert lowered_ns < path.time_ns
        return
    assert found == expected
    assert path.time_ns == pytest.approx(lowered_ns)


def check_sizes(path: Path, session: GraphSession, values: Values) -> None:
    """The same where elements are known, or not computed, but for layouts: what is left of a value
    may lie side by side.
    """
    calls = programmed(session, values)
    found = Counter(call.signature for call in path.calls)
    if found != Counter(without_layout(call.signature.text) for call in calls):
        assert predict(calls, session.costs).time_ns < path.time_ns


def seeded(graph: Graph) -> Values:
    rng = np.random.default_rng(1)
    leaves = (*graph.inputs.items(), *graph.parameters.items())
    return {name: rng.normal(0, 0.3, node.shape).astype("float32") for name, node in leaves}


def test_examples_in_docstrings() -> None:
    failed, tried = doctest.testmod(tgbench.plans.paths.laid)
    assert tried
    assert not failed


@given(case=graphs(most_ops=7))
@settings(max_examples=40)
def test_what_is_modelled_is_what_is_lowered(case: tuple[Graph, Maker]) -> None:
    """Call by call: op, extents, how operands lie, the kernel; and so the sum."""
    graph, make = case
    values = make(1)
    session = opened(graph, values)
    paths = session.paths(limits=FEW)
    own = set(paths.paths.egraph.of.values())
    is_whole = all(
        region == Region.full(name.shape)
        for occasion in paths.paths.pricing.occasions
        for name, region in occasion.computed.items()
    )
    for path in [paths.given, *islice(paths.paths.graphs(), 4)]:
        made = paths.open(path)
        if path is paths.given and not own.issuperset(path.nodes):
            continue  # what it computes in circles was left out
        knows = any(node.call.fact is not None for node in made.graph.nodes if not node.is_leaf)
        if knows or not is_whole:
            check_sizes(path, made, values)
        else:
            check(path, made, values, more=path is not paths.given)


@given(case=graphs(most_ops=7))
@settings(max_examples=25)
def test_ways_of_a_cluster_come_in_order(case: tuple[Graph, Maker]) -> None:
    """What options cost among others is never less than what they were expected to alone."""
    space = Space.of(case[0], Rules(), limits=FEW)
    paths = Paths(space, CostModel())
    for group in paths.choices.clusters:
        count = count_ways(group[0])
        if count is None or count > 500:
            continue
        found = list(ways(group[0]))
        costs = [one.cost for one in found]
        assert len(found) == count
        assert costs == pytest.approx(sorted(costs))
        for one in found:
            chains = paths.pricing.chains(group[0], one.value)
            assert one.cost == pytest.approx(sum(map(paths.pricing.time_ns, chains)))


def attention(heads: int = 4, width: int = 64, tokens: int = 16) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (tokens, width))

    def headed(name: str) -> Any:
        y = ops.linear(x, g.parameter(name, (width, width)))
        return y.reshape((1, tokens, heads, width // heads)).permute(0, 2, 1, 3)

    q, k, v = map(headed, "qkv")
    y = ops.attention(q, k, v).permute(0, 2, 1, 3).reshape((tokens, width))
    h = ops.linear(y, g.parameter("o", (width, width))) + x
    g.output("y", ops.gelu(ops.linear(h, g.parameter("up", (2 * width, width)))))
    return g.build()


def test_slices_of_one_product_are_read_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "is_taken", lambda site: False)  # they have all columns, or none
    graph = attention()
    values = seeded(graph)
    session = opened(graph, values)
    paths = session.paths(limits=SaturationLimits(nodes=600, seconds=60))
    first, *others = islice(paths.paths.graphs(), 6)
    assert "products together" in first.rules
    check(first, paths.open(first), values)
    check(paths.given, session, values)
    for path in others:
        check(path, paths.open(path), values, more=True)


def test_what_slices_cost_decides() -> None:
    """An op that was measured to be slow on slices is not given any."""
    g = GraphBuilder()
    x = g.input("x", (16, 64))
    a, b = (ops.linear(x, g.parameter(name, (64, 64))) for name in "ab")
    g.output("y", ops.sin(a) * b)  # no step of a written loop
    space = Space.of(g.build(), Rules(), limits=SaturationLimits(nodes=100, seconds=60))
    usual = Paths(space, CostModel())
    assert "products together" in usual[0].rules
    points = []
    for path, factor in ((usual[0], 1e6), (usual.given, 1.0)):
        (call,) = (c for c in path.calls if c.node.op == "sin")
        time_ns = factor * call.kernels[0][1].time_ns
        points += [
            Measurement(kernel.name, source_hash(kernel), call.lying, time_ns, 0.0, 1.0, 1, time_ns)
            for kernel in KERNELS["sin"]
        ]
    table = CostTable("cpu", True, CostModel().table().fingerprint, tuple(points))
    known = Paths(space, CostModel(table))
    assert "products together" not in known[0].rules
    assert known[0].time_ns == pytest.approx(known.given.time_ns)
    slow = points[0].signature
    assert all(path.time_ns > 1e6 for path in known if slow in {c.lying for c in path.calls})


@NEEDS_LIBRARY
def test_what_is_done_to_each_number_is_one_call() -> None:
    graph = attention(width=256, tokens=64)
    values = seeded(graph)
    session = opened(graph, values)
    given = session.paths(limits=FEW).given
    check(given, session, values)
    folded = [call.lying for call in given.calls if "; then " in call.lying]
    assert len(folded) == 2  # the residual, and the activation
    assert given.estimate.time_ns == pytest.approx(given.time_ns)


@NEEDS_LIBRARY
def test_what_is_read_again_is_no_part_of_a_call() -> None:
    """Where an edit leaves rows of a product for a later run, it has to be written."""
    g = GraphBuilder()
    x, u = g.input("x", (64, 256)), g.input("u", (64, 256))
    g.output("y", ops.linear(x, g.parameter("w", (256, 256))) + u)
    graph = g.build()
    whole, row = PlannedRun.whole(graph), Region.of(Box(((3, 4), (0, 256))))
    edit = PlannedRun(1.0, {"u": row}, {graph.outputs["y"]: row})
    once = Paths(Space.of(graph, Rules(), [whole], limits=FEW), CostModel()).given
    again = Paths(Space.of(graph, Rules(), [whole, edit], limits=FEW), CostModel()).given
    assert [call.node.op for call in once.calls] == ["linear"]
    assert sorted(call.node.op for call in again.calls) == ["add", "add", "linear"]


def test_a_path_that_knows_more_computes_less() -> None:
    """m·a + m·b is a sum of which nothing is known; m·(a + b) is 0 where the mask m is, and a
    product does not read what is.
    """
    g = GraphBuilder()
    a, b = g.input("a", (256, 256)), g.input("b", (256, 256))
    mask = g.constant((np.arange(256) < 16).astype("float32"))
    g.output("y", (ops.exp(a) * mask + ops.exp(b) * mask) @ g.input("c", (256, 64)))
    graph = g.build()
    values = seeded(graph)
    paths = opened(graph, values).paths(limits=FEW)
    factored = next(path for path in paths.paths.graphs() if "factor" in path.rules)
    check_sizes(factored, paths.open(factored), values)
    (multiplied,) = (call for call in factored.calls if call.node.op == "matmul")
    assert "= float32[256,16], float32[16,64]" in multiplied.signature


def test_images_lie_as_convolutions_want_them() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 3, 16, 16))
    h = ops.relu(ops.conv(x, g.parameter("a", (8, 3, 3, 3)), padding=1))
    h = ops.relu(ops.conv(h, g.parameter("b", (8, 8, 3, 3)), padding=1) + h)
    g.output("y", ops.mean(h, (2, 3)) @ g.parameter("c", (8, 4)))
    graph = g.build()
    values = seeded(graph)
    session = opened(graph, values)
    check(session.paths(limits=FEW).given, session, values)


def test_equal_layers_are_priced_once_and_as_each_of_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = GraphBuilder()
    at = g.input("x", (8, 16))
    for i in range(6):
        weight, bias = g.parameter(f"w{i}", (16, 16)), g.parameter(f"b{i}", (16,))
        at = ops.relu(ops.linear(at, weight, bias)) + at
    g.output("y", at)
    made, really = Counter[int](), Pricing._made

    def counted(pricing: Pricing, chain: Chain) -> Any:
        made[len(chain)] += 1
        return really(pricing, chain)

    monkeypatch.setattr(Pricing, "_made", counted)
    rules = Rules()
    pricing = Paths(Space.of(g.build(), rules, limits=FEW), CostModel(rules=rules)).pricing
    assert pricing._times
    for chain, time_ns in pricing._times.items():
        calls = list(really(pricing, chain))
        assert time_ns == sum(call.weight * call.kernels[0][1].time_ns for call in calls)
    assert max(made) > 1
    assert 2 * made[1] < sum(len(chain) == 1 for chain in pricing._times)
    assert 2 * sum(made.values()) < len(pricing._times)
