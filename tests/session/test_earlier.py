"""What is there still after runs that computed everything: neither changed nor written over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import CheckedSession, smallest_budget
from strategies import Maker, changes, demands, edited, graphs

import tgbench as tg
from tgbench.base.coords import at
from tgbench.base.errors import BudgetError
from tgbench.graph.graph import Graph
from tgbench.programs import program
from tgbench.programs.program import IN_NUMBERS, LOOKED_AT, MOST_NEW, Beginnings
from tgbench.session import serving
from tgbench.session.chooser import Larger, Own
from tgbench.session.earlier import MOST_NOTES
from tgbench.session.memory import Memory
from tgbench.session.serving import AFRESH, EXACTLY, LARGER, ONWARDS, Offer
from tgbench.session.standing import Keeper

ROWS, WIDE, LAYERS = 24, 4, 3


class Either(Own):
    """Takes each run on the rung that it is told, looking for what is there or not."""

    strict = False

    def __init__(self, told: Any) -> None:
        self.told, self.rung = told, EXACTLY

    def looks(self) -> bool:
        self.rung, looks = next(self.told)
        return bool(looks)

    def again(self, own: Offer, planned: Any) -> Any:
        return ()

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        return next((one for one in larger() if one.rung is self.rung), own)


MADE, BLIND, OWN = (AFRESH, True), (AFRESH, False), (EXACTLY, True)


def _told(session: CheckedSession, told: Any) -> CheckedSession:
    inner = session.session
    inner.keeper.chooser = inner.runner.chooser = Either(iter(told))
    return session


def _drawn(seed: int) -> Any:
    """Mostly everything, so that there are notes to read."""
    random = Random(seed)
    while True:
        other = random.choice([ONWARDS, *LARGER]), True
        yield random.choice([MADE, BLIND, BLIND, BLIND, OWN, other])


@given(graphs(most_ops=8), st.integers(0, 2**16), st.floats(0, 1), st.data())
def test_what_notes_say_is_there_is_right(
    case: tuple[Graph, Maker], seed: int, share: float, data: st.DataObject
) -> None:
    """Before each run all is garbage that neither what stands nor a note calls valid; after it, all
    that they call valid equals what is computed anew. Under budgets, values share bytes.
    """
    _run_under_budgets(*case, seed, share, data)


def _run_under_budgets(
    graph: Graph, make: Maker, seed: int, share: float, data: st.DataObject
) -> None:
    runs = [(data.draw(changes(graph)), _wanted(graph, data)) for _ in range(8)]
    low = smallest_budget(graph, make(0), runs[0][1])
    roomy = CheckedSession(graph, make(0), calibrate=False)
    roomy.run(want=runs[0][1])
    room = max(roomy.session.placement.size_bytes - low, 0)
    for budget in (None, low + int(share * room)):
        session = CheckedSession(graph, make(0), memory=budget, calibrate=False)
        _told(session, _drawn(seed))
        with suppress(BudgetError):  # a larger run than was asked for may not fit
            for i, (change, want) in enumerate(runs):
                session.run(edited(session.values, change, make(i)), want)


def _wanted(graph: Graph, data: st.DataObject) -> dict[str, Any]:
    parts = {node.name: region for node, region in data.draw(demands(graph)).items()}
    return {name: parts[node.name] for name, node in graph.outputs.items() if node.name in parts}


# --- what re-runs ---------------------------------------------------------------------------------


def stream() -> Graph:
    """Each layer adds to a row the one before it."""
    g = tg.GraphBuilder()
    x = g.input("x", (ROWS, WIDE))
    for i in range(LAYERS):
        before = tg.ops.concat([x[:1], x[:-1]], 0)
        x = tg.ops.relu(tg.ops.linear(x + before, g.parameter(f"w{i}", (WIDE, WIDE))))
    g.output("y", x)
    return g.build()


def _session(told: Any) -> CheckedSession:
    random = np.random.default_rng(0)
    values = {
        f"w{i}": random.integers(-1, 2, (WIDE, WIDE)).astype(np.float32) for i in range(LAYERS)
    }
    values["x"] = random.integers(-1, 2, (ROWS, WIDE)).astype(np.float32)
    return _told(CheckedSession(stream(), values, retain="all", calibrate=False), told)


def _edit(session: CheckedSession, row: int, wanted: int) -> int:
    """Change a row and look at one; how many rows the first product was computed of."""
    x = session.values["x"].copy()
    x[row] += 1
    session.run({"x": x}, {"y": np.s_[wanted]})
    program = session.session.last.program
    return sum(
        at(box[0][1] - box[0][0], program.origin)
        for step in program.steps
        for node, region in step.compute.items()
        if node
        is next(node for node in session.session.scheduled.graph.nodes if node.op == "linear")
        for box in region
    )


@pytest.mark.parametrize("blind", [0, 1, 3, MOST_NOTES])
def test_rows_that_nothing_changed_are_there_after_runs_that_computed_less(
    blind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_takes_ns", lambda offer: offer.bucket.sizes[1])
    session = _session([MADE, *[BLIND] * blind, OWN])
    session.run(want={"y": np.s_[:]})
    for k in range(1 + blind):
        assert _edit(session, 15 + k % 3, 4) == LAYERS
    assert len(session.session.keeper.standing.notes) == min(1 + blind, MOST_NOTES)
    computed = _edit(session, 20, 12)
    assert not session.session.keeper.standing.notes
    assert computed == (0 if blind < MOST_NOTES else LAYERS), "what is older is forgotten"


def test_nothing_is_noted_where_all_is_there() -> None:
    session = _session([BLIND] * 3)
    for row in (0, 5, 9):
        x = session.values["x"].copy()
        x[row] += 1
        session.run({"x": x})
        assert not session.session.keeper.standing.notes


@pytest.mark.parametrize("what", ["forget", "keep", "plan", "states"])
def test_notes_go_with_what_they_stand_on(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_takes_ns", lambda offer: offer.bucket.sizes[1])
    session = _session([MADE, *[BLIND] * 9])
    session.run(want={"y": np.s_[:]})
    _edit(session, 15, 4)
    inner = session.session
    assert inner.keeper.standing.notes
    if what == "forget":
        inner.forget()
    elif what == "keep":
        inner.run({"x": session.values["x"] + 1}, want={"y": np.s_[2]}, keep=False)
    elif what == "plan":
        inner.plan_for([({"x": np.s_[0]}, {"y": np.s_[0]})])
    else:
        inner.keeper.bound_states(0)
    assert not inner.keeper.standing.notes
    session.run({"x": session.values["x"]}, {"y": np.s_[20]})


# --- over its place, or in numbers where it is always new -----------------------------------------


@contextmanager
def _always_new() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "MOST_NEW", 0)
        patch.setattr(program, "IN_NUMBERS", 1 << 40)
        yield patch


@given(graphs(most_ops=8), st.integers(0, 2**16), st.floats(0, 1), st.data())
def test_the_same_is_left_in_numbers(
    case: tuple[Graph, Maker], seed: int, share: float, data: st.DataObject
) -> None:
    """As over the place, there; and whatever is called valid is right, all else being garbage."""
    with _always_new() as patch:
        patch.setattr(Keeper, "left_by", _left_by_both(Keeper.left_by))
        _run_under_budgets(*case, seed, share, data)


def _left_by_both(left_by: Any) -> Any:
    def both(keeper: Keeper, made: Any, spot: Any, before: Any) -> int:
        found: int = left_by(keeper, made, spot, before)
        states = keeper.states
        if not made.renews:
            state = states.moved(before.valid, before.last, spot)
            over = keeper.memory.after(made, state, spot)
            assert states.here(found, spot.origin) == states.here(over, spot.origin)
        return found

    return both


def test_as_little_is_computed_after_what_was_left_in_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(made: program.Program, origin: tuple[int, ...]) -> float:
        every = (region for step in made.steps for region in step.compute.values())
        return sum(region.at(origin).elements for region in every)

    monkeypatch.setattr(program.Program, "takes_ns", rows)
    random = np.random.default_rng(3)
    edits = [(int(random.integers(ROWS)), int(random.integers(ROWS))) for _ in range(40)]

    def computed() -> list[int]:
        session = _session([MADE, *[OWN] * len(edits)])
        session.run(want={"y": np.s_[:]})
        return [_edit(session, row, wanted) for row, wanted in edits]

    over_the_place = computed()
    with _always_new():
        in_numbers = computed()
    assert sum(in_numbers) <= sum(over_the_place)
    assert 0 < sum(over_the_place) < ROWS * len(edits) / 2


@pytest.mark.parametrize("steps_on", [False, True])
def test_edits_anywhere_are_followed_in_numbers_and_rows_one_by_one_are_not(
    steps_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, after_here = [], Memory.after_here

    def counted(*given: Any) -> int:
        seen.append(given)
        return after_here(*given)

    monkeypatch.setattr(Memory, "after_here", counted)
    random = np.random.default_rng(5)
    runs = 3 * ROWS
    session = _session([MADE, *[OWN] * runs])
    session.run(want={"y": np.s_[:]})
    for i in range(runs):
        at = i % ROWS if steps_on else int(random.integers(ROWS))
        _edit(session, at, at if steps_on else int(random.integers(ROWS)))
    assert bool(seen) is not steps_on, len(seen)


def test_what_recurs_is_found_out_and_forgotten() -> None:
    found = Beginnings()
    assert all(_next(found, is_known=False) for _ in range(MOST_NEW))
    asked = [_next(found, is_known=False) for _ in range(4 * IN_NUMBERS)]
    assert 0 < sum(asked) <= 4 * LOOKED_AT
    asked = [_next(found, is_known=True) for _ in range(3 * IN_NUMBERS)]
    assert all(asked[2 * IN_NUMBERS :])


def _next(found: Beginnings, is_known: bool) -> bool:
    if not found.recur():
        return False
    found.began(is_known)
    return True
