"""What is there still after runs that computed everything: neither changed nor written over."""

from __future__ import annotations

from contextlib import suppress
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
from tgbench.session import serving
from tgbench.session.choosing import Larger, Own
from tgbench.session.earlier import MOST_NOTES
from tgbench.session.serving import AFRESH, EXACTLY, LARGER, ONWARDS, Offer

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
    graph, make = case
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
