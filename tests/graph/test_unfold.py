"""Graphs in which nodes are computed several times, beside the graphs that they were made from."""

from __future__ import annotations

import doctest
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Maker, graphs

from tgbench.base.errors import GraphError
from tgbench.graph import unfold as unfold_module
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.reference import evaluate
from tgbench.graph.unfold import named, unfold
from tgbench.memory.storage import ScheduledGraph


def executable(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if not node.is_leaf and node not in graph.frozen]


@st.composite
def sequences(draw: Any, graph: Graph) -> list[Node]:
    """All that a run may execute, in graph order, and some of it again later."""
    found = executable(graph)
    for _ in range(draw(st.integers(0, 6)) if found else 0):
        at = draw(st.integers(0, len(found) - 1))
        found.insert(draw(st.integers(at + 1, len(found))), found[at])
    return found


@given(graphs(most_ops=8), st.data())
def test_an_unfolded_graph_has_the_same_values(case: tuple[Graph, Maker], data: Any) -> None:
    graph, make = case
    sequence = data.draw(sequences(graph))
    found = unfold(graph, sequence)
    right, values = evaluate(graph, make(0)), evaluate(found.graph, make(0))
    assert list(values) == list(right)
    for name in right:
        assert np.array_equal(values[name], right[name])
    assert set(found.graph.updates) == set(graph.updates)


@given(graphs(most_ops=8), st.data())
def test_every_computation_is_a_node_and_shares_its_call(
    case: tuple[Graph, Maker], data: Any
) -> None:
    graph, _ = case
    sequence = data.draw(sequences(graph))
    found = unfold(graph, sequence)
    fixed = [node for node in graph.nodes if node not in set(sequence)]
    assert found.graph.nodes == (*fixed, *found.schedule)
    assert found.graph.frozen == graph.frozen
    assert [node.call for node in found.schedule] == [node.call for node in sequence]
    assert named(graph, [node.name for node in found.schedule]) == sequence
    counts = Counter(sequence)
    plain = [node.name for node in found.schedule if node.name in {n.name for n in sequence}]
    assert len(plain) == len(counts)


@given(graphs(most_ops=8), st.data())
def test_what_is_read_was_computed_last(case: tuple[Graph, Maker], data: Any) -> None:
    graph, _ = case
    sequence = data.draw(sequences(graph))
    schedule = unfold(graph, sequence).schedule
    for step, (node, made) in enumerate(zip(sequence, schedule, strict=True)):
        for parent, read in zip(node.inputs, made.inputs, strict=True):
            before = [i for i in range(step) if sequence[i] is parent]
            assert read is (schedule[before[-1]] if before else parent)


def three() -> tuple[Graph, Node, Node]:
    g = GraphBuilder()
    a = g.name(g.input("x", (2,)) * 2.0, "a")
    b = g.name(abs(a), "b")
    g.output("y", b)
    return g.build(), a, b


def test_the_same_sequence_gives_the_same_nodes() -> None:
    graph, a, b = three()
    first, other = unfold(graph, [a, b, a]), unfold(graph, [a, a, b])
    assert unfold(graph, [a, b, a]).graph is first.graph
    assert other.graph is not first.graph


def test_names_of_others_are_left_to_them() -> None:
    g = GraphBuilder()
    a = g.name(g.input("x", (2,)) * 2.0, "a")
    b = g.name(abs(a), "a again")
    g.output("y", g.name(a + b, "c"))
    graph = g.build()
    sequence = [a, b, a, b, a, graph.outputs["y"]]
    names = [node.name for node in unfold(graph, sequence).schedule]
    assert names == ["a", "a again", "a again 2", "a again again", "a again 3", "c"]
    assert named(graph, names) == sequence


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("b a", "b comes before a, which it reads"),
        ("a a", "not the graph's nodes"),
        ("a b x", "not the graph's nodes"),
    ],
)
def test_what_is_no_sequence_is_refused(order: str, message: str) -> None:
    graph, *_ = three()
    with pytest.raises(GraphError, match=message):
        unfold(graph, [graph.node(name) for name in order.split()])


def test_unknown_names_are_refused() -> None:
    graph, *_ = three()
    for name in ("c", "c again", "again", " again 2"):
        with pytest.raises(GraphError, match="the graph has no node"):
            named(graph, [name])


def test_a_scheduled_graph_unfolds_a_schedule_with_repeats() -> None:
    graph, a, b = three()
    plain, again = ScheduledGraph.of(graph, [a, b]), ScheduledGraph.of(graph, [a, a, b])
    assert (plain.graph, plain.repeats, plain.once) == (graph, False, plain)
    assert (again.folded, again.repeats, again.once) == (graph, True, plain)
    assert [node.name for node in again.schedule] == ["a", "a again", "b"]
    assert again.graph.outputs["y"] is again.schedule[-1]
    first, second, _ = again.schedule
    assert (again.live[first].stop, again.live[second].stop) == (1, 3)


def test_docstrings() -> None:
    assert doctest.testmod(unfold_module).failed == 0
