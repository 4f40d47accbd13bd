"""Packing a problem: heuristics first, then the race of searchers where it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tgbench.base.stopping import Limits, StopReason
from tgbench.memory.packing.heuristics import ProblemArrays, attempts
from tgbench.memory.packing.problem import Ints, Problem, Solution
from tgbench.memory.packing.race import PackingRace
from tgbench.memory.packing.search import Pruning

EVERYTHING = Pruning()


def pack(
    problem: Problem,
    *,
    search: bool = False,
    seconds: float | None = None,
    max_steps: int | None = None,
    rules: Pruning = EVERYTHING,
    should_stop: Callable[[], bool] | None = None,
) -> Solution:
    """A packing as low as the capacity asks for; without a capacity, as low as is found.

    The heuristics stop at the first solution that meets the capacity or the lower bound. With
    `search`, a race of searchers goes on from there until one meets the same, one proves that
    nothing can, or a limit ends it: `seconds` on the clock, `max_steps` nodes and moves, or
    `should_stop`, which is asked several times a second. What was best by then is returned:
    `packer` says who found it, `stop_reason` why it ended, `turns` what each searcher took.
    Without limits on time, equal calls give equal solutions. The result may be higher than
    `capacity_bytes`; the caller decides what follows.

    Raises `ValueError` when two pins clash, or for limits without `search`; `PackingError` when
    `search` is asked for and llvmlite is not installed.

    >>> from tgbench.memory.packing import Buffer
    >>> pack(Problem((Buffer("a", 64, 0, 2), Buffer("b", 64, 2, 3)))).height_bytes
    64
    """
    limits = Limits(seconds, max_steps, should_stop)
    if not search and limits != Limits(began=limits.began):
        raise ValueError("limits are for the search; call pack with search=True as well")
    prepared = ProblemArrays.of(problem)
    best = _heuristic(prepared, limits)
    if best.stop_reason is StopReason.NO_SEARCH and search:
        return _searched(prepared, best, rules, limits)
    return best


def _heuristic(prepared: ProblemArrays, limits: Limits) -> Solution:
    """The lowest solution of the heuristics; between equals the earliest."""
    problem, unit = prepared.problem, prepared.problem.alignment
    bound = prepared.bound
    capacity = problem.capacity_bytes
    aim = bound if capacity is None else max(bound, capacity // unit)
    best: Solution | None = None
    for solution in attempts(prepared, aim):
        if best is None or solution.height_bytes < best.height_bytes:
            best = solution
        if best.height_bytes <= aim * unit or limits.reached() not in (None, StopReason.STEPS):
            break
    assert best is not None
    return replace(best, bound_bytes=bound * unit, stop_reason=_reason(best, bound, problem))


def _reason(solution: Solution, bound: int, problem: Problem) -> StopReason:
    """Why the heuristics need not, or may not, be followed by a search."""
    capacity, lowest = problem.capacity_bytes, bound * problem.alignment
    if capacity is not None and lowest > capacity:
        return StopReason.INFEASIBLE
    if solution.height_bytes <= lowest:
        return StopReason.OPTIMAL
    if capacity is not None and solution.height_bytes <= capacity:
        return StopReason.FITS
    return StopReason.NO_SEARCH


def _searched(prepared: ProblemArrays, best: Solution, rules: Pruning, limits: Limits) -> Solution:
    problem, unit = prepared.problem, prepared.problem.alignment
    early = limits.reached()
    if early is not None:
        return replace(best, stop_reason=early)
    race = PackingRace.of(prepared, _units(prepared, best), rules, limits)
    capacity = problem.capacity_bytes
    reason = race.minimise() if capacity is None else race.fit(capacity // unit)
    found = prepared.solution(race.offsets, race.winner)
    lower = found if found.height_bytes < best.height_bytes else best
    return replace(
        lower,
        bound_bytes=race.bound * unit,
        stop_reason=reason,
        steps=limits.steps,
        turns=dict(race.turns),
    )


def _units(prepared: ProblemArrays, solution: Solution) -> Ints:
    """The offsets of the buffers that can clash, in alignment units."""
    lows = [solution.offsets[buffer.name] for buffer in prepared.buffers]
    return np.array(lows, np.int64) // prepared.problem.alignment
