"""Interrupted anywhere: at every bytecode of a run something is raised, and then it is tried again.

    run k ── KeyboardInterrupt at opcode 1, 2, 3, … ──→ states are what they were before run k
    run k again ──→ its results, and the states have advanced once

A real interrupt comes at some of these points; MemoryError comes at calls. The points are all of
the package's own bytecodes in a warm run, and every n-th of a first and of a planning run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import tgbench as tg
from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder

ROWS = 4


class Injector:
    """Counts the opcodes of the package's frames, and raises at one of them.

    The last opcodes of the outermost frame are left out: they only hand over what is finished.
    """

    def __init__(self, at: int | None, error: type[BaseException]) -> None:
        self.at, self.error, self.count = at, error, 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "/tgbench/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.at and not self._is_over(frame):
                raise self.error("injected")
        return self.step

    @staticmethod
    def _is_over(frame: FrameType) -> bool:
        is_outermost = frame.f_code is tg.GraphSession.run.__code__
        return is_outermost and frame.f_code.co_code[frame.f_lasti] == RETURN


RETURN = __import__("opcode").opmap["RETURN_VALUE"]


@contextmanager
def injected(at: int | None, error: type[BaseException] = KeyboardInterrupt) -> Iterator[Injector]:
    """Raise at one of the package's opcodes; None only counts them."""
    injector, before = Injector(at, error), sys.gettrace()
    sys.settrace(injector.trace)
    try:
        yield injector
    finally:
        sys.settrace(before)


def graph() -> Graph:
    """Two states, one written whole and one in part, and an output of each and of the input."""
    g = GraphBuilder()
    x, at = g.input("x", (ROWS, 2)), g.input("at", (1,), "int64")
    total, ring = g.state("total", (ROWS, 2)), g.state("ring", (ROWS, 2))
    g.update(total, total + x)
    g.update(ring, ops.sum_(total, (0,), keepdims=True) + 1.0, at=at)
    g.output("y", ops.exp(x * 0.0) + total * 2.0 + ring)
    g.output("x", x @ g.parameter("w", (2, 2)))
    return g.build()


class Right:
    """What the graph computes, in a few lines."""

    def __init__(self) -> None:
        self.total, self.ring = np.zeros((ROWS, 2), "float32"), np.zeros((ROWS, 2), "float32")

    def run(self, values: dict[str, Any]) -> dict[str, Any]:
        found = {"y": 1 + self.total * 2 + self.ring, "x": values["x"] @ np.ones((2, 2), "float32")}
        self.ring, before = self.ring.copy(), self.total
        self.ring[values["at"][0]] = before.sum(0) + 1
        self.total = before + values["x"]
        return found


class Tried:
    """A session beside what is right."""

    def __init__(self) -> None:
        weights = {"w": np.ones((2, 2), "float32")}
        self.session = tg.GraphSession(graph(), weights, calibrate=False)
        self.right, self.number = Right(), 0

    def values(self) -> dict[str, Any]:
        x = np.zeros((ROWS, 2), "float32")
        x[self.number % ROWS] = 1 + self.number % 5
        return {"x": x, "at": np.array([self.number % ROWS])}

    def run(self, want: Any = None) -> None:
        """One run, compared."""
        values = self.values()
        found, right = self.session.run(values, want), self.right.run(values)
        for name, array in found.items():
            wanted = right[name] if want is None else right[name][want[name]]
            assert np.array_equal(array, wanted), (self.number, name)
        self.number += 1

    def assert_states(self) -> None:
        assert np.array_equal(self.session.state_value("total"), self.right.total)
        assert np.array_equal(self.session.state_value("ring"), self.right.ring)

    def stopped(self, at: int, error: type[BaseException]) -> bool:
        """Whether a run was stopped there; then nothing has changed, else it is over."""
        values = self.values()
        try:
            with injected(at, error):
                found = self.session.run(values)
        except (error, tg.KernelError):
            self.assert_states()
            return True
        right = self.right.run(values)
        assert all(np.array_equal(found[name], right[name]) for name in right)
        self.number += 1
        return False


def opcodes(act: Callable[[], Any]) -> int:
    """How many of the package's are run."""
    with injected(None) as counting:
        act()
    return counting.count


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_every_point_of_a_warm_run(error: type[BaseException]) -> None:
    """After each point the run is tried again; some in a row are stopped, too."""
    tried = Tried()
    for _ in range(8):
        tried.run()
    count, stopped = min(opcodes(tried.run) for _ in range(4)), 0
    assert count > 1000
    for at in range(1, count + 50):
        stopped += tried.stopped(at, error)
        tried.run()
        tried.run()
    assert stopped > count * 0.9
    tried.assert_states()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_points_of_a_first_run(error: type[BaseException]) -> None:
    count = opcodes(Tried().run)
    points = settings().max_examples
    for at in [*range(1, count, count // points), *range(count - 20, count + 5)]:
        tried = Tried()
        tried.stopped(at, error)
        for _ in range(3):
            tried.run()
        tried.assert_states()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_points_of_a_run_that_plans(error: type[BaseException]) -> None:
    """The states are in memory of a plan that goes, and the run's own plan comes."""

    def begun() -> Tried:
        tried = Tried()
        for _ in range(3):
            tried.run({"x": np.s_[:1]})
        return tried

    tried = begun()
    before = tried.session.plan
    tried.run()
    assert tried.session.plan is not before, "a run that plans"
    count = opcodes(begun().run)
    for at in range(1, count, max(1, count // settings().max_examples)):
        tried = begun()
        tried.stopped(at, error)
        for _ in range(3):
            tried.run()
        tried.assert_states()
