"""A run for which there is room alone, but not beside what is kept, is computed from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgbench as tg
from tgbench import ops
from tgbench.base.errors import BudgetError
from tgbench.graph.graph import GraphBuilder
from tgbench.runs.buckets import Spot
from tgbench.session.making import NeedsPlan

X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def session() -> tg.GraphSession:
    g = GraphBuilder()
    x = g.input("x", (8, 8))
    g.output("y", ops.relu(ops.linear(x, g.parameter("w", (8, 8)))))
    made = tg.GraphSession(
        g.build(), weights={"w": np.eye(8, dtype=np.float32)}, making="always", calibrate=False
    )
    made.run({"x": X})
    return made


def cramped(session: tg.GraphSession, monkeypatch: pytest.MonkeyPatch, *, alone: bool) -> None:
    """Nothing fits beside what is there, and no memory suffices; from nothing it does, or not."""
    runner = session.runner
    served = runner.served

    def crammed(bucket: Any, spot: Spot) -> Any:
        if runner.keeper.standing.is_fresh or not alone:
            raise NeedsPlan(spot, "too large")
        return served(bucket, spot)

    def refused(*_: object, **__: object) -> None:
        raise BudgetError(
            "too small", budget_bytes=1, needed_bytes=2, lower_bound_bytes=2, step=0, nodes=()
        )

    monkeypatch.setattr(runner, "served", crammed)
    monkeypatch.setattr(runner, "_buy_plan", refused)


def kind_of(session: tg.GraphSession) -> str:
    assert session.last is not None
    return str(session.last.kind)


def changed() -> np.ndarray[Any, Any]:
    x = X.copy()
    x[3] += 1
    return x


def test_it_is_computed_of_nothing(
    session: tg.GraphSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    cramped(session, monkeypatch, alone=True)
    np.testing.assert_array_equal(session.run({"x": changed()})["y"], changed())
    assert kind_of(session).startswith("x[:, :]")


def test_what_is_kept_stays_where_there_is_no_room_for_it_alone(
    session: tg.GraphSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = session.keeper.standing
    with monkeypatch.context() as during:
        cramped(session, during, alone=False)
        with pytest.raises(BudgetError):
            session.run({"x": changed()})
    assert session.keeper.standing == before
    np.testing.assert_array_equal(session.run({"x": changed()})["y"], changed())
    assert kind_of(session).startswith("x[u0:+1, :]")


def test_a_run_that_is_not_kept_is_refused(
    session: tg.GraphSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to begin with what is there."""
    cramped(session, monkeypatch, alone=True)
    with pytest.raises(BudgetError):
        session.run({"x": changed()}, keep=False)
