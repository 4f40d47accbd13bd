"""What to let go of first: in one order for every budget, weighed again as others go."""

from __future__ import annotations

import time
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from plans.test_search import any_model, decoding, judge, kv_bytes, optimiser
from search_cases import busy_case

from tgbench.base.errors import BudgetError
from tgbench.graph.simplify import simplify
from tgbench.plans.retention.ladder import Ladder
from tgbench.plans.search.effort import Effort, Mode


@given(st.data())
def test_rungs_hold_everything_once_and_what_fits_fits(data: st.DataObject) -> None:
    model = any_model(data, most_ops=7)
    ladder = Ladder.of(model)
    assert sorted(ladder.order) == np.flatnonzero(model.tables.worthwhile).tolist()
    ends = model.score(np.concatenate([model.none(), ~model.none()]))
    budget = data.draw(st.integers(0, int(ends.size_bytes.max())))
    keep = ladder.within(budget)
    if keep is None:
        assert ends.size_bytes[0] > budget
    else:
        scores = model.score(keep[None])
        assert scores.size_bytes[0] <= budget
        assert scores.time_ns[0] <= ends.time_ns[0] or ends.size_bytes[0] > budget
        assert set(np.flatnonzero(keep.any(axis=0))) <= set(ladder.order)
    share = ladder.share(budget)
    assert ((share >= 0) & (share <= 1)).all()


def test_layers_are_let_go_of_from_the_first_one_on() -> None:
    """K and V of a layer are of no use to what lies below, so the last layers are kept longest.

    Weighed once, with all others there, every one of them seems worth the same.
    """
    graph, calls = decoding(4)
    model = judge(simplify(graph), calls).uncut
    ladder = Ladder.of(model)
    roomy = int(model.score(model.none()).size_bytes[0]) + kv_bytes(graph) // 2
    keep = ladder.within(roomy)
    assert keep is not None
    kept = {
        name for name, is_kept in zip(model.tables.names, keep.all(axis=0), strict=True) if is_kept
    }
    assert {"layer_3.k", "layer_3.v"} <= kept
    assert not {"layer_0.k", "layer_0.v"} & kept


@pytest.mark.parametrize("share", [0.6, 0.8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_search_by_the_clock_ends_in_time_and_bounds_only_what_it_covers(
    share: float, seed: int
) -> None:
    """Whatever was opened by then: no plan is faster than the bound that is said with it."""
    case = replace(busy_case(seed=seed, ops=12, runs=8), share=share)
    for seconds in (0.05, 1.0):
        began = time.process_time()
        optimiser_ = case.task().optimiser()
        try:
            made = optimiser_.run("search", Effort(seconds=seconds))
        except BudgetError:
            return
        assert made.search is not None
        assert made.search.bound_ns <= made.search.modelled_ns * (1 + 1e-9)
        assert time.process_time() - began < 30 * seconds + 10


def test_a_bound_says_nothing_of_cuts_that_were_not_looked_at() -> None:
    """With all slices uncut a prompt seems to take room that its pieces leave to K and V."""
    graph, calls = decoding(1)
    ways: list[tuple[Mode, Effort]] = [("search", Effort(seconds=0.5)), ("exact", Effort(steps=64))]
    found = [
        optimiser(simplify(graph), calls, 2 * kv_bytes(graph)).run(mode, effort).search
        for mode, effort in ways
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].bound_ns <= found[1].modelled_ns * (1 + 1e-9)
