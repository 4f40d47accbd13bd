"""Runs that are interrupted, of a session whose states are written whole and in part."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch

import tgbench as tg
from interrupts.injecting import Injector, Point
from tgbench import ops
from tgbench.base.collector import FEW
from tgbench.graph.graph import Graph, GraphBuilder

NUMBERS = np.geterr()
ROWS = 4
WARM = 6 * ROWS  # runs after which nothing is new


class Met(Enum):
    """What an error did to a run: it stopped it, or not, or never came about."""

    STOPPED = "stopped"
    SURVIVED = "survived"
    MISSED = "missed"


ERRORS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError)
# What a lack of memory is said as where a kernel or the arena asked for it.
TYPED: Mapping[type[BaseException], tuple[type[Exception], ...]] = {
    MemoryError: (tg.KernelError, tg.BudgetError)
}


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
        self.session = tg.GraphSession(graph(), weights, calibrate=False, making="always")
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
        assert np.array_equal(self.session.state_value("total"), self.right.total), "total"
        assert np.array_equal(self.session.state_value("ring"), self.right.ring), "ring"

    def assert_process(self) -> None:
        """What belongs to the process is as it was: the collector, how numbers are computed."""
        assert gc.isenabled(), "the collector is off"
        assert gc.get_freeze_count() < FEW, "objects are frozen"
        assert torch.is_grad_enabled(), "gradients are off"
        assert not torch.is_inference_mode_enabled(), "inference mode"
        assert np.geterr() == NUMBERS, "numpy's errors"

    def met(self, point: Point, error: type[BaseException]) -> Met:
        """Raise there in the next run; if that stopped it nothing has changed, else it is over."""
        values, injector = self.values(), Injector(point, error)
        try:
            found = injector.call(lambda: self.session.run(values))
        except (error, *TYPED.get(error, ())):
            self.assert_states()
            return Met.STOPPED
        right = self.right.run(values)
        assert all(np.array_equal(found[name], right[name]) for name in right), "results"
        self.number += 1
        return Met.SURVIVED if injector.has_raised else Met.MISSED


def warm() -> Tried:
    """One whose next run has been there before."""
    tried = Tried()
    for _ in range(WARM):
        tried.run()
    return tried


def planning() -> Tried:
    """One whose states are in memory of a plan that goes, as the next run's own plan comes."""
    tried = Tried()
    tried.run({"x": np.s_[:1]})
    return tried


RUNS: Mapping[str, Callable[[], Tried]] = {"warm": warm, "first": Tried, "planning": planning}
MORE = 4  # runs after which not only a run itself is compared, but the one behind it too
