"""Retention as an integer program: the optimum of the tabulated model, or a bound on it.

    model, budget ─→ program (see `formulation`) ─→ HiGHS ─→ the best retention, and a bound

The relaxation in which what is kept need not be integer gives a bound that no retention of the
model can beat.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.formulation import Formulation, formulated
from tgbench.plans.retention.model import Keep, Model
from tgbench.plans.retention.solver import Linear, SolverLimits, solve
from tgbench.plans.retention.tables import Floats

TIE = 2e-5  # weight of a tie-breaker, as a share of the time with nothing retained


@dataclass(frozen=True)
class Relaxed:
    """What the program says.

    Fields:
        keep: the best retention found, [1, turn, node]; None if time ran out before one was.
        share: [turn, node] how much of a node is kept where `keep` need not be integer.
        bound_ns: no retention of the model within the budget is faster; 0 where limits came first.
        is_optimal: whether `keep` was proven to be within the tolerance of the bound.
        seconds, work: how long it took, and what of its limit.
    """

    keep: Keep | None
    share: Floats
    bound_ns: float
    is_optimal: bool
    seconds: float
    work: float = 0.0


@dataclass(frozen=True)
class HeldAnswers:
    """What is decided already: [turn, node] where, and how."""

    nodes: NDArray[np.bool_]
    keep: NDArray[np.bool_]


@dataclass(frozen=True)
class IntegerProgram:
    """The integer program of one model under one budget; written out when it is first solved.

    Fields:
        has_slices: False leaves out the memory of what is not kept. What then bounds whole runs
            bounds them however they are cut.
        throughout: what is kept is kept after all turns: far fewer decisions.
    """

    model: Model
    budget_bytes: int
    has_slices: bool = True
    throughout: bool = False

    def __reduce__(self) -> tuple[type[IntegerProgram], tuple[Model, int, bool, bool]]:
        """Another process writes it out again."""
        about = self.model, self.budget_bytes, self.has_slices, self.throughout
        return IntegerProgram, about

    @cached_property
    def packed(self) -> bytes:
        """As it is sent to another process."""
        return pickle.dumps(self)

    @cached_property
    def _formulation(self) -> Formulation:
        return formulated(
            self.model, self.budget_bytes, has_slices=self.has_slices, throughout=self.throughout
        )

    def solve(
        self,
        limits: SolverLimits | None = None,
        *,
        integer: bool = True,
        held: HeldAnswers | None = None,
    ) -> Relaxed:
        """Minimise; with `integer` False, only the bound and the shares; what is held stays."""
        began, written = time.monotonic(), self._formulation
        shape = written.turns, self.model.nodes
        keep, cost, integers = shape[0] * shape[1], written.cost.copy(), written.cost * 0
        if integer:  # of equally fast ones, the retention that keeps the least
            cost[:keep] += TIE * written.slowest_ns / max(keep, 1)
            integers[:keep] = 1
        limited = _limits(written, held)
        program = Linear(cost, *limited, written.matrix, written.low, integers)
        solved = solve(program, limits or SolverLimits())
        bound_ns = max(solved.bound + written.always_ns - TIE * written.slowest_ns * integer, 0.0)
        share, found = np.zeros(shape), solved.values is not None
        if solved.values is not None:
            share = solved.values[:keep].reshape(shape)
        share = np.repeat(share, self.model.turns // written.turns, axis=0)
        return Relaxed(
            (share > 0.5)[None] if integer and found else None,
            share,
            bound_ns,
            solved.is_optimal and (integer or not found),
            time.monotonic() - began,
            solved.work,
        )


def _limits(written: Formulation, held: HeldAnswers | None) -> tuple[Floats, Floats]:
    """Of all variables, the least and the most; what is held is both."""
    low, most = np.zeros_like(written.high), written.high.copy()
    if held is not None:
        at = np.flatnonzero(held.nodes[: written.turns])
        low[at] = most[at] = held.keep[: written.turns].reshape(-1)[at]
    return low, most
