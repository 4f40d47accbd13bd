"""Every rule finds its example, and whatever it finds has the same value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import EXAMPLES, example, leaf_values, node_values
from strategies import Maker, graphs

from tgbench.graph.graph import Graph
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rules import RULES
from tgbench.graph.rewrite.saturate import SaturationLimits, saturate

BY_NAME = {rule.name: rule for rule in RULES}
SIZES = st.tuples(st.integers(2, 5), st.integers(2, 5), st.integers(2, 5))


def test_every_rule_has_a_name_of_its_own_and_an_example() -> None:
    assert len(BY_NAME) == len(RULES)
    assert BY_NAME.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
@given(sizes=SIZES, seed=st.integers(0, 99))
@settings(max_examples=6)
def test_a_rule_finds_its_example_and_is_right(
    name: str, sizes: tuple[int, int, int], seed: int
) -> None:
    graph = example(name, sizes)
    egraph = EGraph.of_graph(graph)
    done = saturate(egraph, [BY_NAME[name]], SaturationLimits(nodes=400))
    assert any(name in iteration.merged for iteration in done.iterations), "the rule found nothing"
    egraph.check()
    members_agree(egraph, graph, seed, exact=not BY_NAME[name].rounds)


def members_agree(egraph: EGraph, graph: Graph, seed: int, *, exact: bool = False) -> None:
    values = node_values(egraph, leaf_values(graph, np.random.default_rng(seed)))
    for name in egraph.classes():
        for node in egraph.members(name):
            if exact:
                np.testing.assert_array_equal(values[node], values[name], err_msg=repr(node))
            else:
                np.testing.assert_allclose(
                    values[node], values[name], rtol=1e-9, atol=1e-9, err_msg=repr(node)
                )


@given(sizes=SIZES, names=st.lists(st.sampled_from(sorted(EXAMPLES)), min_size=1, max_size=2))
@settings(max_examples=60)
def test_all_rules_together_are_right(sizes: tuple[int, int, int], names: list[str]) -> None:
    for name in names:
        graph = example(name, sizes)
        egraph = EGraph.of_graph(graph)
        saturate(egraph, RULES, SaturationLimits(nodes=600, seconds=60))
        egraph.check()
        members_agree(egraph, graph, 1)


@given(case=graphs(most_ops=8))
@settings(max_examples=60)
def test_random_graphs_keep_their_values(case: tuple[Graph, Maker]) -> None:
    graph, make = case
    egraph = EGraph.of_graph(graph)
    saturate(egraph, RULES, SaturationLimits(nodes=600, seconds=60))
    egraph.check()
    values = node_values(egraph, make(3))
    for name in egraph.classes():
        for node in egraph.members(name):
            np.testing.assert_allclose(values[node], values[name], rtol=2e-4, atol=2e-4)
