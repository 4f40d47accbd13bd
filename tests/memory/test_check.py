"""The checker of packings finds planted faults, and nothing else."""

from __future__ import annotations

import doctest
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packing_cases import live_steps, pinned_problems, problems, share_a_step

from tgbench.memory import check as validate
from tgbench.memory.check import (
    Finding,
    Misaligned,
    Missing,
    Moved,
    NegativeOffset,
    OutOfBounds,
    Overlap,
    Unknown,
    WrongHeight,
)
from tgbench.memory.packing import Buffer, Problem, Solution, aligned_size, pack

A, B, C = Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)
ABC = Problem((A, B, C))
GAP = Problem((Buffer("a", 128, 0, 9, gaps=((2, 5),)), Buffer("b", 64, 2, 7, gaps=((3, 4),))))

untimed = settings(deadline=None)


def findings(problem: Problem, solution: Solution) -> list[Finding]:
    return validate.validate(problem, solution)


@untimed
@given(problem=problems(), data=st.data())
def test_a_planted_overlap_is_found(problem: Problem, data: st.DataObject) -> None:
    pairs = [
        (one, other)
        for one, other in combinations(problem.buffers, 2)
        if one.size_bytes and other.size_bytes and share_a_step(one, other)
    ]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))
    good = pack(problem)
    bad = Solution.of(problem, good.offsets | {one.name: good.offsets[other.name]}, "planted")
    step = min(live_steps(one) & live_steps(other))
    assert Overlap(one.name, other.name, step) in findings(problem, bad)


@untimed
@given(problem=problems(most=5, sizes=12), data=st.data())
def test_overlaps_are_the_shared_bytes_of_shared_steps(
    problem: Problem, data: st.DataObject
) -> None:
    unit = problem.alignment
    offsets = {b.name: unit * data.draw(st.integers(0, 12)) for b in problem.buffers}
    solution = Solution.of(problem, offsets, "random")
    owned = {
        b.name: {
            (step, byte)
            for step in live_steps(b)
            for byte in range(offsets[b.name], offsets[b.name] + aligned_size(b.size_bytes, unit))
        }
        for b in problem.buffers
    }
    expected: list[Finding] = [
        Overlap(one.name, other.name, min(owned[one.name] & owned[other.name])[0])
        for one, other in combinations(problem.buffers, 2)
        if owned[one.name] & owned[other.name]
    ]
    assert findings(problem, solution) == expected


PLANTED: list[tuple[Problem, dict[str, int], int, list[Finding]]] = [
    (ABC, {"a": 0, "b": 128, "c": 0}, 192, []),
    (ABC, {"a": 0, "b": 64, "c": 128}, 256, [Overlap("a", "b", at_step=1)]),
    (ABC, {"a": 0, "b": 129, "c": 0}, 193, [Misaligned("b", 129)]),
    (ABC, {"a": 0, "b": 128}, 192, [Missing("c")]),
    (GAP, {"a": 0, "b": 0}, 128, [Overlap("a", "b", at_step=5)]),
    (replace(GAP, buffers=(GAP.buffers[0], B)), {"a": 0, "b": 0}, 128, [Overlap("a", "b", 1)]),
    (ABC, {"a": 0, "b": 128, "c": 0, "d": 0}, 192, [Unknown("d")]),
    (ABC, {"a": 0, "b": 128, "c": -128}, 192, [NegativeOffset("c", -128)]),
    (ABC, {"a": 0, "b": 128, "c": 0}, 128, [WrongHeight(128, 192)]),
    (
        replace(ABC, capacity_bytes=191),
        {"a": 0, "b": 128, "c": 0},
        192,
        [OutOfBounds("b", end_bytes=192, capacity_bytes=191)],
    ),
    (
        replace(ABC, pinned={"a": 64}),
        {"a": 0, "b": 128, "c": 0},
        192,
        [Moved("a", offset=0, pinned_offset=64)],
    ),
]


@pytest.mark.parametrize(("problem", "offsets", "height_bytes", "expected"), PLANTED)
def test_each_planted_fault_is_the_only_finding(
    problem: Problem, offsets: dict[str, int], height_bytes: int, expected: list[Finding]
) -> None:
    assert findings(problem, Solution(offsets, height_bytes, "by hand")) == expected


@untimed
@given(problem=pinned_problems(), slack=st.integers(-200, 200))
def test_out_of_bounds_means_higher_than_the_capacity(problem: Problem, slack: int) -> None:
    solution = pack(problem)
    capped = replace(problem, capacity_bytes=solution.height_bytes + slack)
    has_bytes = any(b.size_bytes for b in problem.buffers)
    assert bool(findings(capped, solution)) == (slack < 0 and has_bytes)


def test_the_examples_run() -> None:
    outcome = doctest.testmod(validate)
    assert outcome.attempted > 0
    assert outcome.failed == 0
