"""Runs decided from how they were decided before: the same as if nothing had been."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from strategies import changes, demands, graphs, regions, storages

from tgbench.base.coords import origin_symbol, record
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, Node
from tgbench.runs.propagate import Propagator, Step, Storage
from tgbench.runs.redeciding import Before, Redecider
from tgbench.runs.rules import Rules


def facts(step: Step) -> dict[str, Any]:
    """A step in its order, without whom it was decided from."""
    found = vars(step) | {"run": None}
    return found | {"compute": list(step.compute.items())}


def schedule_of(graph: Graph, storage: Storage) -> list[Node]:
    return [node for node in graph.nodes if not node.is_leaf and node not in storage.frozen]


@given(st.data())
def test_a_run_decided_from_earlier_ones_is_decided_as_if_it_were_the_first(
    data: st.DataObject,
) -> None:
    """One value more or less is retained, valid or overlapped; now and then it is another run."""
    graph, _ = data.draw(graphs(most_ops=8))
    storage = data.draw(storages(graph))
    schedule, rules = schedule_of(graph, storage), Rules()
    stored = [node for node in schedule if node not in storage.views]
    before = Before(graph, schedule, rules)
    runs = []
    for _ in range(2):
        changed = data.draw(changes(graph))
        by_node = {graph.inputs[name]: region for name, region in changed.items()}
        runs.append((by_node, data.draw(demands(graph))))
    valid = {node: Region.full(node.shape) for node in stored if data.draw(st.booleans())}
    for _ in range(data.draw(st.integers(2, 6))):
        run = data.draw(st.sampled_from(runs))
        given_ = graph, storage, rules, schedule
        first, again = Propagator(*given_), Redecider(*given_, before)
        assert again.felt(run[0], valid) == first.felt(run[0], valid)
        expected = first.step(valid, *run)
        found = again.step(valid, *run)
        assert facts(found) == facts(expected)
        if not stored:
            return
        node = data.draw(st.sampled_from(stored))
        what = data.draw(st.sampled_from(("retained", "valid", "overlaps")))
        if what == "retained":
            storage = replace(storage, retained=storage.retained ^ {node})
        elif what == "overlaps":
            storage = replace(storage, overlaps=dict(storage.overlaps) | {node: ()})
        elif node in valid:
            del valid[node]
        else:
            valid[node] = data.draw(regions(node.shape))


@given(st.data())
def test_what_moves_is_guarded_as_if_it_were_the_first(data: st.DataObject) -> None:
    """What is remembered of a place brings its guards, as often as it is asked there."""
    graph, _ = data.draw(graphs(most_ops=6))
    names = [name for name, node in graph.inputs.items() if node.shape and node.shape[0] > 1]
    if not names:
        return
    leaf = graph.inputs[names[0]]
    storage = data.draw(storages(graph))
    schedule, rules = schedule_of(graph, storage), Rules()
    before = Before(graph, schedule, rules)
    demand = data.draw(demands(graph))
    row = origin_symbol(0)
    changed = {leaf: Region((Box(((row, row + 1), *((0, size) for size in leaf.shape[1:]))),))}
    behind = [node for node in schedule if node not in storage.views and node.shape]
    for _ in range(4):
        at = data.draw(st.integers(0, leaf.shape[0] - 1))
        valid = {}
        node = data.draw(st.sampled_from([None, *behind]))
        if node is not None and 0 < at <= node.shape[0]:
            valid[node] = Region((Box(((0, row), *((0, size) for size in node.shape[1:]))),))
        with record((at,)) as mine:
            again = Redecider(graph, storage, rules, schedule, before)
            felt = again.felt(changed, valid)
            found = again.step(valid, felt, demand)
        with record((at,)) as others:
            first = Propagator(graph, storage, Rules(), schedule)
            assert felt == first.felt(changed, valid)
            expected = first.step(valid, felt, demand)
        assert facts(found) == facts(expected)
        assert mine == others
