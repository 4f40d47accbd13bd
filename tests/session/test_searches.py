"""Searches one after the other in a session: what they share, and what they must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgbench as tg
from tgbench import GraphSession, ops
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search import judge


def chain() -> tg.Graph:
    g = tg.GraphBuilder()
    x = g.input("x", (16, 8))
    for i in range(4):
        x = ops.tanh(x @ g.parameter(f"w{i}", (8, 8)))
    g.output("y", x)
    return g.build()


class Counted:
    """A function, and how often it was called."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.calls += 1
        return self.function(*arguments, **more)


def test_the_same_runs_are_read_and_tabulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, tabulated = Counted(Workload.of), Counted(judge.tabulate)
    monkeypatch.setattr(Workload, "of", staticmethod(read))
    monkeypatch.setattr(judge, "tabulate", tabulated)
    graph, random = chain(), np.random.default_rng(0)
    weights = {f"w{i}": random.random((8, 8), np.float32) for i in range(4)}
    session = GraphSession(graph, weights=weights, memory="2KiB")
    x = random.random((16, 8), np.float32)
    for row in (0, 3, 5):
        x = x.copy()
        x[row] += 1
        session.run({"x": x})
    plan = session.optimize("search", steps=2)
    assert (read.calls, tabulated.calls) == (1, 1)
    again = session.optimize("search", steps=2)
    assert (read.calls, tabulated.calls) == (1, 1)
    assert again.size_bytes <= plan.size_bytes
    x = x.copy()
    x[7] += 1
    session.run({"x": x})
    session.optimize("search", steps=2)
    assert (read.calls, tabulated.calls) == (2, 2)
    session.planning.costs.learn([])  # of what kernels take, more is known
    session.optimize("search", steps=2)
    assert (read.calls, tabulated.calls) == (3, 3)
    fresh = GraphSession(graph, weights=weights, plan=session.plan)
    assert (fresh.run({"x": x})["y"] == session.run({"x": x})["y"]).all()
