"""The solver's limits: what it says is true wherever it was ended, and the same each time."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array
from search_cases import busy_case

from tgbench.plans.decisions import SearchRecord
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.solver import Linear, SolverLimits, solve
from tgbench.plans.search import proofs
from tgbench.plans.search.effort import Effort, Mode, Spending
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.proofs import ProofAllowance
from tgbench.runs.rules import Rules

ITEMS, ROWS = 12, 6
CASE = busy_case()


def covering(seed: int, *, integer: bool = True, items: int = ITEMS, rows: int = ROWS) -> Linear:
    """Choose items so that each row has enough of them: random weights, no two programs alike."""
    random = np.random.default_rng(seed)
    matrix = random.integers(5, 40, (rows, items)).astype(float)
    return Linear(
        random.integers(20, 60, items).astype(float),
        np.zeros(items),
        np.ones(items),
        csc_array(matrix),
        matrix.sum(axis=1) * 0.55,
        np.full(items, int(integer)),
    )


def least(program: Linear) -> float:
    """By trying everything."""
    chosen = np.array(list(product([0.0, 1.0], repeat=ITEMS)))
    enough = (chosen @ program.matrix.toarray().T >= program.least - 1e-9).all(axis=1)
    return float((chosen[enough] @ program.cost).min())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.0, 1.0, 3.0, math.inf])
def test_what_it_says_is_true_wherever_it_ends(seed: int, share: float) -> None:
    program = covering(seed)
    limits = SolverLimits(work=share * program.work, gap=0.0)
    solved, right = solve(program, limits), least(program)
    assert solved.bound <= right + 1e-6
    if solved.values is not None:
        chosen = np.round(solved.values)
        assert (program.matrix @ chosen >= program.least - 1e-6).all()
        assert chosen @ program.cost >= right - 1e-6
    if share == math.inf:
        assert solved.is_optimal
        assert solved.bound == pytest.approx(right)


def test_work_ends_what_would_take_long_and_ends_it_alike() -> None:
    """Forty items in thirty rows take thousands of nodes."""
    program = covering(1, items=60, rows=30)
    limits = SolverLimits(work=40 * program.work)
    first, again = (solve(program, limits) for _ in range(2))
    assert not first.is_optimal
    assert first.work <= limits.work + 10 * program.work
    assert first.bound == again.bound
    assert first.work == again.work
    assert (first.values is None) == (again.values is None)
    if first.values is not None and again.values is not None:
        assert first.values.tobytes() == again.values.tobytes()


def test_a_bound_that_is_not_reached_is_none() -> None:
    program = covering(2, integer=False, items=60, rows=30)
    ended, whole = solve(program, SolverLimits(work=0.0)), solve(program, SolverLimits())
    assert ended.values is None
    assert ended.bound == -math.inf
    assert not ended.is_optimal
    assert whole.is_optimal
    assert whole.bound > 0


def test_nothing_satisfies_what_asks_too_much() -> None:
    program = covering(3)
    solved = solve(
        Linear(program.cost, program.low, program.high, program.matrix, 9 * program.least,
               program.integers), SolverLimits(),
    )  # fmt: skip
    assert solved.values is None
    assert solved.bound == math.inf
    assert solved.is_optimal


# --- in a search ---------------------------------------------------------------------------------


def searched(mode: Mode, steps: int) -> SearchRecord:
    optimiser = Optimiser(CASE.scheduled, Rules(), CASE.workload, CASE.budget_bytes, CASE.cost)
    record = optimiser.run(mode, Effort(steps=steps)).search
    assert record is not None
    return record


@pytest.mark.parametrize("mode", ["search", "exact"])
def test_steps_bound_the_programs_beside_the_search(
    monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """All of them together; a bound that is said with little work is below the one with much."""
    taken, given = list[float](), list[float]()
    plain = IntegerProgram.solve

    def counted(
        program: IntegerProgram, limits: SolverLimits | None = None, **more: object
    ) -> object:
        found = plain(program, limits, **more)  # type: ignore[arg-type]
        if "held" not in more:
            assert limits is not None
            given.append(limits.work)
            taken.append(found.work)
        return found

    whole = searched(mode, 8)
    monkeypatch.setattr(IntegerProgram, "solve", counted)
    monkeypatch.setattr(proofs, "WORK_A_STEP", 0.0)
    for work in (0.0, 2e3, 2e4, 2e5):
        monkeypatch.setattr(proofs, "FIRST_WORK", work)
        given.clear()
        taken.clear()
        found, again = searched(mode, 8), searched(mode, 8)
        assert all(0 < one <= work for one in given)
        assert sum(taken[:-1]) <= 2 * work + max(taken, default=0.0)
        assert found == again
        assert found.bound_ns <= whole.best_ns * (1 + 1e-9)
        assert found.bound_ns <= max(whole.bound_ns, whole.best_ns)


def test_an_allowance_is_for_all_programs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "FIRST_WORK", 100.0)
    monkeypatch.setattr(proofs, "WORK_A_STEP", 10.0)
    assert ProofAllowance(Spending(Effort(steps=3), lambda: False)).work == 130.0
    assert ProofAllowance(Spending(Effort(seconds=3.0), lambda: False)).work == math.inf


@given(st.data())
def test_a_program_of_both_kinds_of_variables_is_solved_to_its_optimum(data: st.DataObject) -> None:
    """HiGHS 1.14.0 does not: its presolve calls worse solutions optimal."""
    some = st.integers(0, 9)
    rows, integers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    cost = np.array([data.draw(some) for _ in range(integers + 1)], float)
    matrix = np.array([[data.draw(some) for _ in cost] for _ in range(rows)], float)
    least = matrix.sum(axis=1) * data.draw(st.sampled_from([0.3, 0.5, 0.8]))
    ones = np.ones(len(cost))
    program = Linear(cost, 0 * ones, ones, csc_array(matrix), least, np.array([1] * integers + [0]))
    right = math.inf
    for chosen in product([0.0, 1.0], repeat=integers):
        missing = least - matrix[:, :-1] @ np.array(chosen)
        if (matrix[:, -1] >= missing - 1e-9).all():
            parts = missing[matrix[:, -1] > 0] / matrix[matrix[:, -1] > 0, -1]
            rest = max(parts.max(initial=0.0), 0.0)
            right = min(right, float(np.array([*chosen, rest]) @ cost))
    solved = solve(program, SolverLimits(gap=0.0))
    assert solved.is_optimal
    assert solved.bound == pytest.approx(right, abs=1e-6)
