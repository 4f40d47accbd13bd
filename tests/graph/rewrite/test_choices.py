"""Choices and ways: beside all there are, beside CP-SAT, and with the values of the graph."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import EXAMPLES, example
from strategies import Maker, graphs

from tgbench.base.errors import PlanError
from tgbench.base.regions import Box
from tgbench.base.streams import CostStream, Priced, either, together
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import OPS
from tgbench.graph.reference import evaluate
from tgbench.graph.rewrite import exact
from tgbench.graph.rewrite import ways as ways_of
from tgbench.graph.rewrite.choices import Alternatives, Cluster, ClusterChoices, Way, choices
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rules import RULES
from tgbench.graph.rewrite.saturate import SaturationLimits, saturate
from tgbench.graph.rewrite.ways import WaySearch, count_ways, rewritten, ways
from tgbench.graph.simplify import simplify
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import GEMMA3_270M


def cost(node: Node) -> float:
    """A number for a call, whoever makes it; views are free."""
    if OPS[node.op].view is not None:
        return 0.0
    return float(1 + (sum(map(ord, node.op)) * 7 + int(node.type.elements)) % 23)


def work(node: Node) -> float:
    """Operations, and something for every call; views are free."""
    if OPS[node.op].view is not None:
        return 0.0
    return 50.0 + node.call.op.flops(node.call, Box.full(node.shape))


def saturated(graph: Graph, nodes: int = 300) -> EGraph:
    egraph = EGraph.of_graph(graph)
    saturate(egraph, RULES, SaturationLimits(nodes=nodes, seconds=60))
    return egraph


def everything(cluster: Cluster) -> Iterator[Priced[Way]]:
    """All ways, by trying every option of every class."""
    entries = {cluster.number[name] for name in cluster.entries}
    seen = set()
    for numbers in itertools.product(*(range(len(cluster.options[n])) for n in cluster.classes)):
        needed, way, total = set(entries), [], 0.0
        for place, name in enumerate(cluster.classes):
            if place not in needed:
                way.append(-1)
                continue
            node = cluster.options[name][numbers[place]]
            needed |= {cluster.number[inner] for inner in cluster.inner[node]}
            total += cluster.costs[node]
            way.append(numbers[place])
        if tuple(way) not in seen:
            seen.add(tuple(way))
            yield Priced(total, tuple(way))


def cheapest(found: ClusterChoices) -> tuple[float, dict[Cluster, Way]]:
    total, taken = found.cost, {}
    for group in found.clusters:
        best = next(ways(group[0]))
        total += best.cost * len(group)
        taken.update(dict.fromkeys(group, best.value))
    return total, taken


@given(case=graphs(most_ops=8))
@settings(max_examples=40)
def test_ways_are_all_there_are_in_order(case: tuple[Graph, Maker]) -> None:
    for group in choices(Alternatives.of(saturated(case[0], 120)), cost).clusters:
        for cluster in group[:1]:
            size = math.prod(len(cluster.options[name]) for name in cluster.classes)
            if size > 20_000:
                continue
            expected = sorted(everything(cluster), key=lambda one: one.cost)
            found = list(ways(cluster))
            assert [one.cost for one in found] == pytest.approx([one.cost for one in expected])
            assert {one.value for one in found} == {one.value for one in expected}
            assert count_ways(cluster) == len(expected)


@given(case=graphs(most_ops=8), work=st.sampled_from([0, 10, 40, 200]), states=st.booleans())
@settings(max_examples=60)
def test_where_all_ways_are_too_much_some_are_found_and_what_the_others_cost_at_least(
    case: tuple[Graph, Maker], work: int, states: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways_of, "MOST_WORK", work)
        patch.setattr(ways_of, "LESS_WORK", work)
        if not states:
            patch.setattr(ways_of, "MOST_STATES", 0)
        for group in choices(Alternatives.of(saturated(case[0], 120)), cost).clusters:
            cluster = group[0]
            if math.prod(len(cluster.options[name]) for name in cluster.classes) > 20_000:
                continue
            every = {one.value: one.cost for one in everything(cluster)}
            search = WaySearch(cluster)
            found = list(search)
            costs = [one.cost for one in found]
            assert found
            assert all(one.cost == pytest.approx(every[one.value]) for one in found)
            assert costs == sorted(costs)
            assert len({one.value for one in found}) == len(found)
            rest = every.keys() - {one.value for one in found}
            if search.bound is None:
                assert not rest
            assert all(search.bound <= every[way] + 1e-6 for way in rest)
            assert costs[0] == pytest.approx(min(every.values()))  # the integer program's, at last


@given(
    case=graphs(most_ops=8), nodes=st.sampled_from([0, 1, 1_000]), seconds=st.sampled_from([0, 10])
)
@settings(max_examples=40, deadline=None)
def test_the_integer_program_finds_the_cheapest_way_and_says_what_none_costs_less(
    case: tuple[Graph, Maker], nodes: int, seconds: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MOST_NODES", nodes)
        patch.setattr(exact, "SECONDS", float(seconds))
        for group in choices(Alternatives.of(saturated(case[0], 120)), cost).clusters:
            cluster = group[0]
            if math.prod(len(cluster.options[name]) for name in cluster.classes) > 20_000:
                continue
            every = {one.value: one.cost for one in everything(cluster)}
            search = WaySearch(cluster)
            options = [[(own, inner) for own, _, inner in one] for one in search._options]
            way, bound = exact.exact(options, search._start)
            assert bound <= min(every.values())
            assert way is None or way in every
            if nodes == 1_000 and seconds:
                assert way is not None
                assert every[way] == pytest.approx(min(every.values()))
                assert bound >= every[way] * (1 - 1e-4)


def test_the_example_of_the_integer_program() -> None:
    failed, tried = doctest.testmod(exact)
    assert tried
    assert not failed


def test_a_stream_that_was_interrupted_does_not_look_as_if_it_were_over() -> None:
    stops = [True, True]

    def source() -> Iterator[Priced[int]]:
        yield Priced(0.0, 0)
        if stops and stops.pop():
            raise KeyboardInterrupt
        yield Priced(1.0, 1)

    stream = CostStream(source)
    assert stream[0].value == 0
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            stream.get(1)
        assert stream[0].value == 0
    assert stream[1].value == 1
    assert stream.get(2) is None


def test_a_stream_that_comes_to_other_costs_says_so() -> None:
    costs = iter([0.0, 2.0])

    def source() -> Iterator[Priced[int]]:
        yield Priced(next(costs), 0)
        raise KeyboardInterrupt

    stream = CostStream(source)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    with pytest.raises(PlanError, match="changed since they were interrupted"):
        list(stream)


def optimum(egraph: EGraph, price: dict[Node, int]) -> int:
    """The cheapest graph of an e-graph, by OR-tools' CP-SAT: levels keep it free of circles."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    names = list(egraph.classes())
    is_needed = {name: model.new_bool_var("") for name in names}
    level = {name: model.new_int_var(0, len(names), "") for name in names}
    costs = []
    for name in names:
        taken = []
        for node in egraph.members(name):
            is_taken = model.new_bool_var("")
            taken.append(is_taken)
            costs.append(price[node] * is_taken)
            for parent in egraph.inputs(node):
                model.add_implication(is_taken, is_needed[parent])
                model.add(level[parent] < level[name]).only_enforce_if(is_taken)
        model.add(sum(taken) == is_needed[name])
    for end in egraph.ends:
        model.add(is_needed[end] == 1)
    model.minimize(sum(costs))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def check_against_optimum(egraph: EGraph) -> None:
    found = choices(Alternatives.of(egraph), cost)
    price = {
        node: 0 if node.is_leaf or egraph.is_fixed(node) else round(cost(node))
        for node in egraph.nodes()
    }
    assert cheapest(found)[0] == pytest.approx(optimum(egraph, price))


@given(case=graphs(most_ops=8))
@settings(max_examples=25, deadline=None)
def test_the_cheapest_graph_is_the_optimum(case: tuple[Graph, Maker]) -> None:
    check_against_optimum(saturated(case[0], 150))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_cheapest_graph_of_each_example_is_the_optimum(name: str) -> None:
    check_against_optimum(saturated(example(name, (3, 2, 4)), 150))


@given(case=graphs(most_ops=8), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_every_way_computes_the_same(case: tuple[Graph, Maker], seed: int) -> None:
    graph, make = case
    found = choices(Alternatives.of(saturated(graph, 150)), cost)
    expected = evaluate(graph, make(seed))
    taken = cheapest(found)[1]
    for group in found.clusters:
        for other in islice(ways(group[0]), 3):
            made = rewritten(found, {**taken, **dict.fromkeys(group, other.value)}, graph)
            assert made.outputs.keys() == graph.outputs.keys()
            result = evaluate(made, make(seed))
            for name, value in expected.items():
                np.testing.assert_allclose(result[name], value, rtol=2e-4, atol=2e-4)


def gemma(layers: int) -> Graph:
    sizes = {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
    return simplify(gemma3({**GEMMA3_270M, **sizes}, tokens=16))


def test_equal_layers_are_one_choice() -> None:
    """However many there are, as much is chosen; what is chosen for one is chosen for all."""
    groups = {}
    for layers in (5, 9):
        graph = gemma(layers)
        egraph = EGraph.of_graph(graph)
        saturate(egraph, RULES, SaturationLimits(nodes=250 * layers, seconds=60))
        found = choices(Alternatives.of(egraph), work, within=2.0)
        groups[layers] = len(found.clusters)
        assert sum(len(group) >= layers - 2 for group in found.clusters) >= 4
        made = rewritten(found, cheapest(found)[1], graph)
        layer_ops = [
            [node.op for node in made.nodes if node.name.startswith(f"layer_{i}.")]
            for i in range(1, layers - 1)
        ]
        assert all(one == layer_ops[0] for one in layer_ops)
    assert groups[9] <= groups[5] + 2


def stream_of(costs: list[Any]) -> CostStream[Any]:
    """Numbers that cost what they are."""
    return CostStream(lambda: (Priced(float(one), one) for one in sorted(costs)))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_combinations_come_in_order_each_once(costs: list[list[int]]) -> None:
    streams = [stream_of(row) for row in costs]
    found = list(together(streams))
    assert [one.cost for one in found] == sorted(float(sum(c)) for c in itertools.product(*costs))


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=2, max_size=4), min_size=3, max_size=4))
def test_rounding_of_sums_changes_no_order(costs: list[list[float]]) -> None:
    found = list(together([stream_of(row) for row in costs]))
    assert [one.cost for one in found] == sorted(map(math.fsum, itertools.product(*costs)))
    assert all(one.cost == math.fsum(one.value) for one in found)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=4))
def test_alternatives_come_in_order(costs: list[list[int]]) -> None:
    rows = sorted(map(sorted, costs), key=lambda row: row[0])
    found = [one.value for one in either(stream_of(row) for row in rows)]
    assert found == sorted(itertools.chain.from_iterable(costs))
