"""Searches one after the other in a session: what they share, and what they must not."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import tgbench as tg
from tgbench import GraphSession, ops
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search import judge
from tgbench.session.planning import Search

NAMES = [f"w{i}" for i in range(4)]


def chain() -> tg.Graph:
    g = tg.GraphBuilder()
    x = g.input("x", (16, 8))
    for name in NAMES:
        x = ops.tanh(x @ g.parameter(name, (8, 8)))
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
    weights = {name: random.random((8, 8), np.float32) for name in NAMES}
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


def test_timing_kernels_is_a_part_of_the_time_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, asked = dict.fromkeys(NAMES, np.eye(8, dtype=np.float32)), list[Search]()
    session = GraphSession(chain(), weights=weights)
    session.run({"x": np.ones((16, 8), np.float32)})
    monkeypatch.setattr(GraphSession, "_learn", lambda self: time.sleep(0.2))
    monkeypatch.setattr(session.runner, "search", asked.append)
    session.optimize(seconds=0.5)
    session.optimize(seconds=0.1)
    session.optimize(steps=2)
    in_time, too_late, by_steps = [how.effort.seconds for how in asked]
    assert in_time is not None
    assert 0.0 < in_time <= 0.3
    assert too_late == 0.0
    assert by_steps is None
