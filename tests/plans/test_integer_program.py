"""The integer program against trying everything, on tables that no graph needs to have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from search_cases import every_retention

from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.model import Keep, Model
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import NOTHING, NodeTable, Situation, Tables

UNIT = 64  # bytes


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    """Up to four nodes, three turns that come after each other in any way, two levels."""
    nodes, turns = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, turns - 1), st.integers(0, turns - 1)), min_size=1, max_size=5
        )
    )
    weights = [draw(st.integers(1, 4)) for _ in pairs]
    situations = [
        Situation(before, of, weight / sum(weights))
        for (before, of), weight in zip(pairs, weights, strict=True)
    ]
    situations += [Situation(NOTHING, of, 0.0) for of in range(turns)]
    left = np.array(
        [
            [one.before != NOTHING and draw(st.booleans()) for _ in range(nodes)]
            for one in situations
        ]
    )
    levels = [draw(st.integers(1, 2)) for _ in range(nodes)]
    table = tuple([draw(node_tables(n, left[:, n], levels)) for n in range(nodes)])
    start = np.arange(1, nodes + 1)
    readers = [
        [m for m in range(nodes) if any(p == n for p, _ in table[m].asks)] for n in start - 1
    ]
    stop = np.array([max([start[n], *(start[m] for m in readers[n])]) + 1 for n in range(nodes)])
    return Tables(
        tuple(f"n{n}" for n in range(nodes)),
        table,
        tuple(situations),
        turns,
        start,
        stop,
        np.array([UNIT * draw(st.integers(1, 4)) for _ in range(nodes)]),
        np.zeros(nodes, np.int64),
        UNIT,
        np.ones(nodes, bool),
        left,
        np.zeros(0, np.int64),
    )


@st.composite
def node_tables(
    draw: st.DrawFn, n: int, left: NDArray[np.bool_], levels: Sequence[int]
) -> NodeTable:
    """What a node costs and asks of those before it; less, but maybe slower, where it is left."""
    own, rows = levels[n], len(left)
    parents = [m for m in range(n) if draw(st.booleans())]
    cost = np.zeros((rows, 2 * own + 1))
    size = np.zeros((rows, 2 * own + 1), np.int64)
    asks = {m: np.zeros((rows, 2 * own + 1), np.uint8) for m in parents}
    for s in range(rows):
        afresh = slice(own + 1, 2 * own + 1)
        cost[s, afresh] = np.cumsum([draw(st.integers(1, 9)) for _ in range(own)])
        size[s, afresh] = UNIT
        for m in parents:
            asks[m][s, afresh] = sorted(draw(st.integers(0, levels[m])) for _ in range(own))
        for array in (cost, size, *asks.values()):
            array[s, 1 : own + 1] = array[s, afresh]
        if left[s]:
            rest = [draw(st.booleans()) for _ in range(own)]
            rest = [any(rest[: i + 1]) for i in range(own)]  # what a level computes, larger ones do
            slower = draw(st.integers(0, 3))
            for i, computes in enumerate(rest, 1):
                cost[s, i] = computes * draw(st.integers(1, int(cost[s, own + i]) + slower))
                size[s, i] *= computes
            for m in parents:
                most = asks[m][s, 1 : own + 1].tolist()
                fewer = sorted(draw(st.integers(0, one)) for one in most)
                asks[m][s, 1 : own + 1] = np.minimum(fewer, most) * rest
    last = n == len(levels) - 1
    demanded = [
        draw(st.integers(int(last), own)) if last or draw(st.booleans()) else 0 for _ in left
    ]
    return NodeTable(
        own,
        cost,
        size,
        np.array(demanded, np.uint8),
        np.zeros(rows, np.uint8),
        tuple((m, asks[m]) for m in parents),
    )


def best_of(keep: Keep, model: Model, data: st.DataObject) -> tuple[int, float]:
    """Some budget that one of these retentions fits, and the least that one within it takes."""
    scores = model.score(keep)
    low, high = int(scores.size_bytes.min()), int(scores.size_bytes.max())
    budget = UNIT * data.draw(st.integers(low // UNIT, high // UNIT))
    best = scores.best(budget)
    assert best is not None
    right = float(scores.time_ns[best])
    return budget, right


@given(st.data())
def test_bounds_hold_whatever_the_tables_say(data: st.DataObject) -> None:
    model = Model(data.draw(tables()))
    assume(model.turns * model.nodes <= 9)
    budget, right = best_of(every_retention(model), model, data)
    program = IntegerProgram(model, budget)
    relaxed, solved = program.solve(integer=False), program.solve(SolverLimits(gap=1e-9))
    assert relaxed.bound_ns <= solved.bound_ns * (1 + 1e-4) + 1e-3
    assert solved.bound_ns <= right * (1 + 1e-6) + 1e-3


@given(st.data())
def test_what_is_kept_throughout_is_the_best_of_what_is(data: st.DataObject) -> None:
    """A program of its own with a decision a node: no better than where each turn has its own."""
    model = Model(data.draw(tables()))
    assume(model.turns * model.nodes <= 9)
    keep = every_retention(model)
    keep = keep[(keep == keep[:, :1]).all(axis=(1, 2))]
    budget, right = best_of(keep, model, data)
    program, limits = IntegerProgram(model, budget, throughout=True), SolverLimits(gap=1e-9)
    relaxed, solved = program.solve(integer=False), program.solve(limits)
    assert relaxed.bound_ns <= solved.bound_ns * (1 + 1e-4) + 1e-3
    assert solved.bound_ns <= right * (1 + 1e-6) + 1e-3
    freer = IntegerProgram(model, budget).solve(limits)
    assert freer.bound_ns <= right * (1 + 1e-6) + 1e-3
    assert solved.keep is not None
    [found] = solved.keep
    assert (found == found[0]).all()
    assert (relaxed.share == relaxed.share[0]).all()
    fits = model.scored(found, budget)
    assert fits is None or fits.time_ns <= right * (1 + 1e-4) + 1e-3
