"""The solver of integer programs, with limits that repeat: those of its own counts, not of time.

    program ─→ HiGHS ── may I go on? ─→ so many questions and simplex steps: all that is allowed?
                  └─→ solution, bound

A limit in nodes of the search tree alone ends nothing: the root node of 60,000 coefficients takes
8 s, and a node after it up to one. Between two questions lies about one solution of the relaxed
program, whatever it is for: cuts, a dive, a node. So questions are counted, and each counts as
many units of work as there are coefficients.

Source: Huangfu and Hall, "Parallelizing the dual revised simplex method" (2018). Solver: HiGHS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgbench.plans.retention.tables import Floats

STEPS_A_QUESTION = 1_000  # simplex steps that take about as long as what lies between two questions


@dataclass(frozen=True)
class SolverLimits:
    """When to stop: after so many seconds, nodes of the search tree, or work; or at this gap.

    Fields:
        work: in coefficients times questions. It ends the same program at the same place each time.
    """

    seconds: float = math.inf
    gap: float = 1e-4
    nodes: int | None = None
    work: float = math.inf


@dataclass(frozen=True)
class Linear:
    """The least cost · x so that low ≤ x ≤ high and least ≤ matrix · x, integers where asked."""

    cost: Floats
    low: Floats
    high: Floats
    matrix: Any  # compressed by columns
    least: Floats
    integers: Any  # of each variable 1, or 0

    @property
    def work(self) -> int:
        """Of a question."""
        return max(int(self.matrix.nnz), 1)


@dataclass(frozen=True)
class Solved:
    """What the solver says.

    Fields:
        values: of the variables, the best that were found; None if none were.
        bound: nothing costs less; infinite where nothing satisfies the program, minus infinite
            where limits came before a bound.
        is_optimal: the gap is closed, or there is nothing to find.
        work: what it took.
    """

    values: Floats | None
    bound: float
    is_optimal: bool
    work: float


def solve(program: Linear, limits: SolverLimits) -> Solved:
    """Minimise. Equal limits of nodes and work, and none of time, give the same values."""
    import highspy

    highs, questions = highspy.Highs(), _Questions(limits.work / program.work)
    is_integer = bool(np.any(program.integers))
    for name, value in _options(program, limits).items():
        highs.setOptionValue(name, value)
    if is_integer:
        highs.cbMipInterrupt.subscribe(questions)
    _pass(program, highs)
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    steps = 0 if is_integer else int(info.simplex_iteration_count)
    work = program.work * (questions.asked + steps / STEPS_A_QUESTION)
    states = highspy.HighsModelStatus
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):  # costs are never negative
        return Solved(None, math.inf, True, work)
    is_optimal = status == states.kOptimal
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = (
        np.array(highs.getSolution().col_value) if is_optimal or (is_integer and found) else None
    )
    if is_integer:
        bound = float(info.mip_dual_bound)
    else:
        bound = float(info.objective_function_value) if is_optimal else -math.inf
    return Solved(values, bound, is_optimal, work)


def _options(program: Linear, limits: SolverLimits) -> dict[str, Any]:
    """One thread: chains and proofs run side by side as it is."""
    options: dict[str, Any] = {"output_flag": False, "threads": 1, "mip_rel_gap": limits.gap}
    if math.isfinite(limits.seconds):
        options["time_limit"] = limits.seconds
    if limits.nodes is not None:
        options["mip_max_nodes"] = limits.nodes
    if math.isfinite(limits.work):
        options["simplex_iteration_limit"] = int(limits.work / program.work * STEPS_A_QUESTION)
    return options


def _pass(program: Linear, highs: Any) -> None:
    import highspy

    rows, columns = program.matrix.shape
    highs.passModel(
        columns, rows, program.matrix.nnz, int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMinimize), 0.0, program.cost, program.low, program.high,
        program.least, np.full(rows, np.inf), program.matrix.indptr.astype(np.int32),
        program.matrix.indices.astype(np.int32), program.matrix.data,
        np.asarray(program.integers).astype(np.int32),
    )  # fmt: skip


class _Questions:
    """Counts how often the solver asks whether to go on; says no after so many times."""

    def __init__(self, most: float) -> None:
        self.most, self.asked = most, 0

    def __call__(self, event: Any) -> None:
        self.asked += 1
        if self.asked > self.most:
            event.interrupt()
