"""Ops on the devices where they take least: beside every way there is, and beside what a graph with
copies in it takes by counting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import changes, demands, graphs

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.costs.link import Link
from tgbench.graph import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import HOME, Call
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.devices import (
    Device,
    PlacedGraph,
    PlacedRun,
    place_ops,
    with_copies,
    without_copies,
)
from tgbench.runs.rules import Rules, less_known

FEW = 6  # ops, of graphs that are placed in every way


def _cost(seed: int, dear: Callable[[Call], bool] = lambda call: False) -> Any:
    """Some time for each kind of call, besides a nanosecond an element."""

    def cost(call: Call, box: Box) -> float:
        if dear(call):
            return math.inf
        draw = np.random.default_rng([seed, len(call.op.name), *map(ord, call.op.name)])
        return float(draw.integers(1, 400)) + box.elements

    return cost


def _counted_ns(
    placed: Graph, home: Any, devices: Sequence[Device], run: PlacedRun | None = None
) -> float:
    """What a run of a graph with copies in it takes, or all of it: its ops where they are, its
    copies by the links that they go over, of all that anybody reads of a value.
    """
    by_name = {device.name: device for device in devices}
    bare = ScheduledGraph.of(without_copies(placed))
    propagator, outputs = bare.propagator(Rules(), bare.stored), bare.graph.outputs
    if run is None or run.changed is None:
        demand = {node: Region.full(node.shape) for node in outputs.values()}
        step = propagator.step({}, {}, demand)
    else:
        whole = {node: Region.full(node.shape) for node in bare.stored}
        changed = {bare.graph.inputs[name]: region for name, region in run.changed.items()}
        demand = {outputs[name]: region for name, region in run.demand.items()}
        step = propagator.step(whole, changed, demand)
    is_all = not step.dirty
    own = {node.name: node for node in bare.graph.nodes}
    total = 0.0
    for node in ScheduledGraph.of(placed).schedule:
        if node.op == "copy_to":
            source = own[node.inputs[0].name]
            region = step.needed.get(source, Region(()))
            region = region if is_all else region.intersect(step.dirty.get(source, Region(())))
            for box in region if source.is_leaf else less_known(source.call, region):
                for device in {node.inputs[0].type.device, node.type.device} - {HOME}:
                    size = box.elements * node.type.itemsize
                    total += by_name[device].link.time_ns(size)
        elif own[node.name] not in bare.views:
            cost = by_name[node.type.device].cost if node.type.device else home
            for box in step.compute.get(own[node.name], ()):
                total += cost(own[node.name].call, box)
    return total


def _ways(graph: Graph, devices: Sequence[Device]) -> list[dict[Node, str]]:
    nodes = ScheduledGraph.of(graph).schedule
    names = [HOME, *(device.name for device in devices)]
    return [dict(zip(nodes, way, strict=True)) for way in product(names, repeat=len(nodes))]


def _held(placed: Graph) -> dict[str, int]:
    """What other devices hold, by counting: values there, and weights that are read there."""
    scheduled, found = ScheduledGraph.of(placed), dict[str, int]()
    read = {scheduled.base[one] for node in scheduled.schedule for one in node.inputs}
    there = [*scheduled.stored, *(node for node in read if node in scheduled.frozen)]
    for node in there:
        if node.type.device:
            size = -(-node.type.size_bytes // 64) * 64
            found[node.type.device] = found.get(node.type.device, 0) + size
    return found


def _small() -> st.SearchStrategy[Any]:
    return graphs(most_ops=FEW).map(lambda made: simplify(made[0])).filter(_is_small)


def _is_small(graph: Graph) -> bool:
    return 1 <= len(ScheduledGraph.of(graph).schedule) <= FEW


@given(_small(), st.integers(0, 1000), st.sampled_from([0.0, 5.0, 60.0]))
def test_no_way_takes_less(graph: Graph, seed: int, latency_ns: float) -> None:
    devices = [Device("cpu:1", _cost(seed + 1), Link(latency_ns, 0.5))]
    home = _cost(seed)
    found = place_ops(graph, home, devices)
    best = min(_counted_ns(with_copies(graph, way), home, devices) for way in _ways(graph, devices))
    assert found.time_ns == pytest.approx(best)
    assert found.bound_ns <= best * (1 + 1e-9)
    assert found.time_ns == pytest.approx(_counted_ns(found.graph, home, devices))


@given(graphs(most_ops=3).map(lambda made: simplify(made[0])).filter(_is_small), st.integers(0, 99))
def test_three_devices(graph: Graph, seed: int) -> None:
    links = [Link(3.0, 1.0), Link(40.0, 4.0)]
    devices = [Device(f"cpu:{i}", _cost(seed + i), link) for i, link in enumerate(links, 1)]
    home = _cost(seed)
    found = place_ops(graph, home, devices)
    best = min(_counted_ns(with_copies(graph, way), home, devices) for way in _ways(graph, devices))
    assert found.time_ns == pytest.approx(best)


@given(_small(), st.integers(0, 1000), st.integers(0, 12))
def test_no_device_holds_more_than_it_may(graph: Graph, seed: int, units: int) -> None:
    limit = units * 64
    devices = [Device("cpu:1", _cost(seed + 1), Link(1.0, 10.0), limit)]
    home = _cost(seed)
    found = place_ops(graph, home, devices)
    assert _held(found.graph).get("cpu:1", 0) <= limit
    assert dict(found.size_bytes) == _held(found.graph)
    fits = [
        _counted_ns(placed, home, devices)
        for way in _ways(graph, devices)
        for placed in [with_copies(graph, way)]
        if _held(placed).get("cpu:1", 0) <= limit
    ]
    assert found.time_ns == pytest.approx(min(fits))


@given(graphs(most_ops=FEW), st.data())
def test_what_runs_compute_decides(drawn: Any, data: st.DataObject) -> None:
    """A run of a part is placed by what it computes, and copies of that part."""
    graph = simplify(drawn[0])
    assume(_is_small(graph))
    changed, demand = data.draw(changes(graph)), data.draw(demands(graph))
    names = {node: name for name, node in graph.outputs.items()}
    wanted = {names[node]: region for node, region in demand.items() if node in names}
    run = PlacedRun(1.0, changed, wanted)
    home, devices = _cost(1), [Device("cpu:1", _cost(3), Link(2.0, 2.0))]
    found = place_ops(graph, home, devices, [run])
    best = min(
        _counted_ns(with_copies(graph, way), home, devices, run) for way in _ways(graph, devices)
    )
    assert found.time_ns == pytest.approx(best)


def _chain(length: int) -> Graph:
    g = GraphBuilder()
    node = g.input("x", (64, 64))
    for i in range(length):
        node = g.name(ops.tanh(node + float(i)), f"t{i}")
    g.output("y", node)
    return g.build()


def _placed(graph: Graph, there_ns: float, link: Link, **options: Any) -> PlacedGraph:
    def cost(time_ns: float) -> Callable[[Call, Box], float]:
        return lambda call, box: time_ns if call.op.name == "tanh" else 0.0

    return place_ops(graph, cost(100.0), [Device("cuda:0", cost(there_ns), link, **options)])


def test_copies_that_cost_more_than_they_bring_are_not_made() -> None:
    """A copy there and one back take 100: an op that is quicker by 90 stays, two of them go."""
    link = Link(50.0, math.inf)
    assert set(_placed(_chain(1), 10.0, link).devices.values()) == {HOME}
    both = _placed(_chain(2), 10.0, link)
    assert [both.devices[name] for name in ("t0", "t1")] == ["cuda:0", "cuda:0"]
    assert both.copies == 2
    assert both.time_ns == pytest.approx(120.0)


def test_what_several_read_is_copied_once() -> None:
    g = GraphBuilder()
    x = g.input("x", (8, 8))
    for i in range(3):
        g.output(f"y{i}", ops.tanh(x + float(i)))
    found = _placed(g.build(), 1.0, Link(20.0, math.inf))
    assert found.copies == 4  # x there, and three results back
    assert found.time_ns == pytest.approx(3 * 1.0 + 4 * 20.0)


def test_copies_that_are_there_are_left_out_first() -> None:
    g = GraphBuilder()
    there = ops.copy_to(g.input("x", (8, 8)), "cpu:1")
    g.output("y", ops.copy_to(ops.tanh(there)))
    assert "copy_to" not in {node.op for node in without_copies(g.build()).nodes}
    assert _placed(g.build(), 200.0, Link(1.0, 1.0)).copies == 0


def test_what_a_device_cannot_compute_stays() -> None:
    home, there = _cost(1), _cost(2, dear=lambda call: call.op.name == "tanh")
    graph = _chain(4)
    found = place_ops(graph, home, [Device("cuda:0", there, Link(0.0, math.inf))])
    assert all(found.devices[f"t{i}"] == HOME for i in range(4))


def test_states_become_what_they_become_at_home() -> None:
    g = GraphBuilder()
    cache, row = g.state("cache", (8, 4)), g.input("row", (1, 4))
    at = g.input("at", (1,), "int64")
    g.update(cache, ops.tanh(row), at=at)
    g.output("y", ops.tanh(cache).reshape(32))
    found = _placed(g.build(), 1.0, Link(0.0, math.inf))
    assert "cuda:0" in found.devices.values()
    for node in found.graph.ends:
        assert node.type.device == HOME


def test_two_devices_of_one_name_are_refused() -> None:
    one = Device("cuda:0", _cost(1), Link(0.0, 1.0))
    with pytest.raises(GraphError, match="one name"):
        place_ops(_chain(1), _cost(1), [one, one])


def test_it_says_what_it_did() -> None:
    g = GraphBuilder()
    g.output("y", ops.tanh(ops.tanh(g.input("x", (64, 64)))))
    assert str(_placed(g.build(), 10.0, Link(50.0, math.inf))) == (
        "2 of 2 ops elsewhere (48 KiB on cuda:0), 2 copies a run: 120 ns, 200 ns at home, "
        "no less than 120 ns"
    )


def test_layers_go_as_far_as_there_is_room() -> None:
    """Of eight equal layers as many go as a device has room for the weights of."""
    g = GraphBuilder()
    node = g.input("x", (1, 64))
    weights: Mapping[str, Node] = {f"w{i}": g.parameter(f"w{i}", (64, 64)) for i in range(8)}
    for i, weight in enumerate(weights.values()):
        node = g.name(ops.linear(node, weight), f"layer{i}")
    g.output("y", node)

    def cost(time_ns: float) -> Callable[[Call, Box], float]:
        return lambda call, box: time_ns

    room = 3 * 64 * 64 * 4 + 4 * 64 * 4  # three matrices; what comes, and a row of each
    device = Device("cuda:0", cost(10.0), Link(1.0, math.inf), room)
    found = place_ops(g.build(), cost(100.0), [device])
    there = [name for name, where in found.devices.items() if where]
    assert len(there) == 3
    assert found.time_ns == pytest.approx(5 * 100.0 + 3 * 10.0 + found.copies)
    assert found.copies <= 2  # they lie side by side
