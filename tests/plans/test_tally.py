"""Evaluations by what differs from the one before: the same as if there had been none."""

from __future__ import annotations

from typing import NoReturn

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from plans.test_search import judge, traces
from strategies import graphs

from tgbench import ops
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.simplify import simplify
from tgbench.memory.placement import Footprint, Placement, Retention
from tgbench.plans.search.judge import Judge
from tgbench.plans.tally import StepTally
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import Step
from tgbench.runs.split import WHOLE, cuts


def steps_of(judge_: Judge, retention: Retention) -> list[Step]:
    runs = judge_.planner.runs.under(retention, judge_.scenarios, WHOLE)
    return [step for _, made in runs for step in made]


@given(st.data())
def test_what_steps_touch_and_compute_is_found_from_those_of_the_last_time(
    data: st.DataObject,
) -> None:
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    judge_ = judge(simple, data.draw(traces(simple, most=4)))
    runs, shape = judge_.planner.runs, (judge_.uncut.turns, judge_.uncut.nodes)
    tally = StepTally(runs.footprint_of)
    for seed in data.draw(st.lists(st.integers(0, 99), min_size=2, max_size=5)):
        keep = np.random.default_rng(seed).random(shape) < 0.5
        every = steps_of(judge_, judge_.retention(keep))
        steps = [step for step in every if data.draw(st.booleans())]
        used, computed = tally.of(steps)
        each = {id(used): used for used in map(runs.footprint_of, steps)}
        expected = Footprint.joined(each.values())
        assert (used.hulls, used.extents) == (expected.hulls, expected.extents)
        assert list(used.made) == list(expected.made)
        parts = {part for step in steps for part in step.compute.items()}
        assert {(node, region) for node, some in computed.items() for region in some} == parts
        assert sum(map(len, computed.values())) == len(parts)


def test_an_interrupt_leaves_nothing_half_counted() -> None:
    judge_ = judge(*a_few_runs())
    runs, keep = judge_.planner.runs, np.ones((judge_.uncut.turns, judge_.uncut.nodes), bool)
    every = [*dict.fromkeys(steps_of(judge_, judge_.retention(keep)))]
    tally = StepTally(runs.footprint_of)
    tally.of(every)
    gone = runs.footprint_of(every[0])
    counted, rest = gone.extents, [one for one in every if runs.footprint_of(one) is not gone]

    class Interrupting(dict[Node, tuple[int, ...]]):
        def items(self) -> NoReturn:
            raise KeyboardInterrupt

    object.__setattr__(gone, "extents", Interrupting(counted))
    with pytest.raises(KeyboardInterrupt):
        tally.of(rest)
    object.__setattr__(gone, "extents", counted)
    used, computed = tally.of(every)
    assert used.hulls == Footprint.joined(map(runs.footprint_of, every)).hulls
    assert set(computed) == {node for step in every for node in step.compute}


def a_few_runs() -> tuple[Graph, list[Bucket]]:
    g = GraphBuilder()
    x = g.input("x", (8, 4))
    g.output("y", ops.tanh(x @ g.parameter("w", (4, 4))))
    graph = simplify(g.build())
    outputs = {"y": Region.full((8, 4))}
    rows = [Region((Box(((i, i + 1), (0, 4))),)) for i in range(3)]
    return graph, [Bucket.of({"x": of}, outputs) for of in (Region.full((8, 4)), *rows)]


def evaluated(judge_: Judge, keep: np.ndarray, cut: object, budget: int) -> tuple[object, ...]:
    """The map of a retention, in the order of what it holds, and what its trace takes."""
    retention = judge_.retention(keep)
    placement: Placement = judge_.planner.lay_out(
        retention,
        judge_.scenarios,
        cut,
        budget_bytes=budget,  # type: ignore[arg-type]
    )
    found = judge_.candidate(retention, cut, placement, modelled=False)  # type: ignore[arg-type]
    times = None if found is None else found.replayed.times_ns
    return placement, sorted(placement.scratch, key=lambda node: node.index), times


@given(st.data())
def test_an_evaluation_by_difference_is_one_anew(data: st.DataObject) -> None:
    """Random graphs and retentions, some values flipped at a time, whole and in pieces."""
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    buckets = data.draw(traces(simple, most=4))
    judge_ = judge(simple, buckets)
    keep = np.random.default_rng(data.draw(st.integers(0, 99))).random(
        (judge_.uncut.turns, judge_.uncut.nodes)
    ) < data.draw(st.sampled_from((0.2, 0.5, 0.9)))
    assume(keep.size)
    ways = [WHOLE, *list(cuts(judge_.planner.runs.propagator(judge_.scheduled.stored)))[:1]]
    budget = data.draw(st.integers(0, 10_000))
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(0, 2))):
            keep.reshape(-1)[data.draw(st.integers(0, keep.size - 1))] ^= True
        cut = data.draw(st.sampled_from(ways))
        known = evaluated(judge_, keep, cut, budget)
        anew = judge(simple, buckets)
        for kind, origin in judge_._places:
            anew._places[kind, origin] = None
        assert evaluated(anew, keep, cut, budget) == known
