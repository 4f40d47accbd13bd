"""The complete search against exhaustion, and each of its rules against leaving it out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import cut_rectangle, optimum, pinned_problems

from tgbench.base.stopping import StopReason
from tgbench.memory.check import validate
from tgbench.memory.packing import (
    PACKERS,
    Buffer,
    Problem,
    Pruning,
    Solution,
    pack,
)

pytest.importorskip("llvmlite", reason="the search is compiled by LLVM (the extra `cpu`)")

EVERY = Pruning()
RULES = [rule.name for rule in fields(Pruning)]
untimed = settings(deadline=None)


def searched(problem: Problem, rules: Pruning = EVERY, steps: int = 100_000) -> Solution:
    solution = pack(problem, search=True, max_steps=steps, rules=rules)
    uncapped = replace(problem, capacity_bytes=None)
    assert validate(uncapped, solution) == []
    return solution


# --- against exhaustion ---


@untimed
@given(problem=pinned_problems(most=6, sizes=40))
def test_the_lowest_height_is_found_and_proven(problem: Problem) -> None:
    solution = searched(problem)
    assert solution.height_bytes == optimum(problem)
    assert solution.stop_reason is StopReason.OPTIMAL


@untimed
@given(problem=pinned_problems(most=6, sizes=40), slack=st.integers(-2, 1))
def test_a_capacity_is_met_or_proven_to_be_too_low(problem: Problem, slack: int) -> None:
    least = optimum(problem)
    capacity = max(least + slack * problem.alignment, 0)
    solution = searched(replace(problem, capacity_bytes=capacity))
    assert (solution.height_bytes <= capacity) == (least <= capacity)
    assert solution.is_proven or solution.stop_reason is StopReason.FITS
    assert solution.bound_bytes <= least


@untimed
@given(problem=pinned_problems(most=6, sizes=40), rules=st.sets(st.sampled_from(RULES)))
def test_no_choice_of_rules_changes_the_answer(problem: Problem, rules: set[str]) -> None:
    chosen = Pruning(**{name: name in rules for name in RULES})
    solution = pack(problem, search=True, max_steps=20_000, rules=chosen)
    assert solution.height_bytes >= optimum(problem)
    if solution.is_proven:
        assert solution.height_bytes == optimum(problem)


# --- the rules ---


def _crowded(seed: int) -> Problem:
    """A cut rectangle with one more buffer, for which there is no room."""
    full = cut_rectangle(48, 24, 20, seed)
    extra = Buffer("extra", 1, 0, 24, gaps=((10, 12),))
    return Problem((*full.buffers, extra), alignment=1)


def _side_by_side(seed: int, easy: bool = False) -> Problem:
    """Two rectangles one after the other, a buffer along both, and too little room in the second.

    Where the first is easy, the time lost in it is what the rule about parts saves.
    """
    first = cut_rectangle(96, 16, 18, seed).buffers
    second = cut_rectangle(96, 16, 24 if easy else 18, seed + 50).buffers
    if easy:
        first = tuple(replace(b, size_bytes=max(1, b.size_bytes - 1)) for b in first)
    crowd = (Buffer("crowd", 1, 0, 16, gaps=((6, 9),)),) if easy else ()
    long = Buffer("long", 40, 0, 32) if easy else Buffer("long", 1, 0, 32, gaps=((6, 9),))
    later = (
        Buffer(
            f"later {b.name}", b.size_bytes, b.start + 16, b.stop + 16,
            tuple((start + 16, stop + 16) for start, stop in b.gaps),
        )
        for b in (*second, *crowd)
    )  # fmt: skip
    return Problem((*first, *later, long), alignment=1)


CROWDED = [_crowded(seed) for seed in range(8)]
SIDE_BY_SIDE = [_side_by_side(seed) for seed in range(10)]
JOINED = [_side_by_side(seed, easy=True) for seed in (18, 28)]
CASES = {
    "stacking": CROWDED,
    "not_first": CROWDED,
    "support": CROWDED,
    "anywhere": SIDE_BY_SIDE,
    "twins": CROWDED,
    "parts": JOINED,
    "failed": CROWDED,
}


@pytest.mark.parametrize("name", RULES)
def test_each_rule_reduces_the_work_and_changes_no_answer(name: str) -> None:
    with_it = [searched(problem, steps=20_000) for problem in CASES[name]]
    without = [searched(p, replace(EVERY, **{name: False}), 20_000) for p in CASES[name]]
    assert all(solution.is_proven for solution in (*with_it, *without))
    assert [s.height_bytes for s in with_it] == [s.height_bytes for s in without]
    assert sum(s.steps for s in with_it) < sum(s.steps for s in without)


def test_without_any_rule_the_answer_is_the_same() -> None:
    bare = Pruning(**dict.fromkeys(RULES, False))
    for problem in (cut_rectangle(12, 8, 7, seed) for seed in range(6)):
        low = replace(problem, capacity_bytes=None)
        assert searched(low, bare).height_bytes == searched(low).height_bytes == 12


# --- larger ones ---


@pytest.mark.parametrize("seed", range(4))
def test_cut_rectangles_are_packed_at_the_bound(seed: int) -> None:
    problem = cut_rectangle(capacity=1024, steps=60, pieces=70, seed=seed, left_out=0.05)
    solution = searched(problem)
    assert solution.height_bytes <= 1024
    assert solution.stop_reason is StopReason.FITS or solution.is_proven


def test_equal_limits_give_equal_solutions() -> None:
    problem = cut_rectangle(capacity=1024, steps=100, pieces=200, seed=3)
    for steps in (0, 1, 700, 2500):
        one, other = searched(problem, steps=steps), searched(problem, steps=steps)
        assert one == other
        assert one.offsets == other.offsets
        assert one.steps <= steps


def test_it_says_which_limit_ended_it() -> None:
    problem = cut_rectangle(capacity=1024, steps=200, pieces=400, seed=1)
    assert searched(problem, steps=50).stop_reason is StopReason.STEPS
    timed = pack(problem, search=True, seconds=0.05)
    assert timed.stop_reason is StopReason.SECONDS
    asked = pack(problem, search=True, should_stop=lambda: True)
    assert (asked.stop_reason, asked.steps) == (StopReason.STOPPED, 0)
    assert asked.packer in PACKERS


def test_parts_of_time_are_searched_for_themselves() -> None:
    one = cut_rectangle(capacity=256, steps=40, pieces=40, seed=5)
    later = tuple(
        Buffer(f"later {b.name}", b.size_bytes, b.start + 40, b.stop + 40) for b in one.buffers
    )
    both = searched(Problem((*one.buffers, *later), 256, alignment=1))
    assert both.stop_reason is StopReason.FITS
    assert both.steps == 2 * searched(one).steps


def test_only_the_search_needs_llvm() -> None:
    code = """
import sys; sys.modules["llvmlite"] = None
from tgbench.base.errors import PackingError
from tgbench.memory.packing import Buffer, Problem, pack

easy = Problem((Buffer("a", 64, 0, 2), Buffer("b", 64, 2, 3)))
assert pack(easy, search=True).height_bytes == 64  # at the bound before any search
shapes = ((5, 4, 7), (8, 0, 1), (7, 0, 2), (3, 1, 5), (8, 0, 4), (7, 2, 7), (4, 5, 7), (3, 4, 8),
          (5, 1, 7), (1, 0, 5), (21, 7, 8))
hard = Problem(tuple(Buffer(str(i), *shape) for i, shape in enumerate(shapes)), alignment=1)
assert pack(hard).height_bytes > pack(hard).bound_bytes
try:
    pack(hard, search=True)
except PackingError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install llvmlite" in done.stdout
