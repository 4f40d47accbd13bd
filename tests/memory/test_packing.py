"""Packers against a checker, a bound, and the optimum of tiny problems."""

from __future__ import annotations

import doctest
import pickle
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import cut_rectangle, live_steps, optimum, pinned_problems, problems

from tgbench.base.errors import PackingError
from tgbench.base.stopping import StopReason
from tgbench.base.words import format_bytes
from tgbench.memory.check import Finding, OutOfBounds, validate
from tgbench.memory.packing import (
    PACKERS,
    Buffer,
    LowerBound,
    Problem,
    Solution,
    aligned_size,
    draw,
    lower_bound,
    pack,
    read_minimalloc,
    write_minimalloc,
)
from tgbench.memory.packing.heuristics import ProblemArrays, attempts

Packer: TypeAlias = Callable[[Problem], Solution]
A, B, C = Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)
ABC = Problem((A, B, C))
STACKED = Solution.of(ABC, {"a": 0, "b": 128, "c": 0}, "by hand")

untimed = settings(deadline=None)
any_packer = pytest.mark.parametrize("packer", [*PACKERS.values(), pack], ids=[*PACKERS, "pack"])


def findings(problem: Problem, solution: Solution) -> list[Finding]:
    return validate(problem, solution)


# --- packers ---


@any_packer
@untimed
@given(problem=pinned_problems())
def test_solutions_are_valid_and_not_below_the_bound(packer: Packer, problem: Problem) -> None:
    solution = packer(problem)
    assert findings(problem, solution) == []
    assert solution.height_bytes >= lower_bound(problem).size_bytes
    assert list(solution.offsets) == [buffer.name for buffer in problem.buffers]


@any_packer
@untimed
@given(problem=pinned_problems(most=5, sizes=20))
def test_no_packer_is_below_the_optimum(packer: Packer, problem: Problem) -> None:
    assert lower_bound(problem).size_bytes <= optimum(problem) <= packer(problem).height_bytes


@any_packer
@untimed
@given(problem=pinned_problems())
def test_the_same_problem_gives_the_same_solution(packer: Packer, problem: Problem) -> None:
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem
    assert packer(again) == packer(problem)


@any_packer
@untimed
@given(problem=pinned_problems())
def test_packing_again_with_every_buffer_pinned_changes_nothing(
    packer: Packer, problem: Problem
) -> None:
    solution = packer(problem)
    again = packer(replace(problem, pinned=solution.offsets))
    assert again.offsets == solution.offsets
    assert again.height_bytes == solution.height_bytes


@any_packer
def test_an_empty_problem_has_height_zero(packer: Packer) -> None:
    solution = packer(Problem(()))
    assert (solution.offsets, solution.height_bytes) == ({}, 0)


@any_packer
def test_what_cannot_clash_lies_at_the_bottom(packer: Packer) -> None:
    problem = Problem(
        (Buffer("full", 64, 0, 9), Buffer("no_bytes", 0, 0, 9), Buffer("dead", 9, 3, 3))
    )
    solution = packer(problem)
    assert solution.offsets == {"full": 0, "no_bytes": 0, "dead": 0}
    assert solution.height_bytes == 64


def test_a_dead_buffer_still_lies_inside_the_height() -> None:
    assert pack(Problem((Buffer("dead", 100, 3, 3),))).height_bytes == 128


def test_a_pin_in_the_future_is_packed_around() -> None:
    early, late = Buffer("early", 128, 0, 5), Buffer("late", 64, 4, 6)
    problem = Problem((early, late), pinned={"late": 64})
    for packer in PACKERS.values():
        assert packer(problem).offsets == {"early": 128, "late": 64}


def test_equal_buffers_are_placed_in_the_order_given() -> None:
    problem = Problem(tuple(Buffer(name, 64, 0, 1) for name in "zax"))
    for packer in PACKERS.values():
        assert packer(problem).offsets == {"z": 0, "a": 64, "x": 128}


@any_packer
def test_pins_that_clash_are_refused_by_name(packer: Packer) -> None:
    with pytest.raises(ValueError, match=r"'a' and 'b' are pinned.*both live at step 1"):
        packer(replace(ABC, pinned={"a": 0, "b": 64}))


def test_pins_may_share_bytes_at_different_steps() -> None:
    assert pack(replace(ABC, pinned={"a": 64, "c": 64})).offsets == {"a": 64, "b": 0, "c": 64}


@pytest.mark.parametrize("seed", range(5))
def test_cut_rectangles_are_packed_at_or_above_their_optimum(seed: int) -> None:
    problem = cut_rectangle(capacity=4096, steps=60, pieces=200, seed=seed)
    assert lower_bound(problem).size_bytes == 4096
    solution = pack(problem)
    above = [f for f in findings(problem, solution) if not isinstance(f, OutOfBounds)]
    assert above == []
    assert solution.height_bytes >= 4096


def test_an_order_decides_who_lies_lowest() -> None:
    small, large = Buffer("small", 64, 0, 2), Buffer("large", 256, 1, 3)
    problem = Problem((small, large))
    assert PACKERS["greedy_by_size"](problem).offsets == {"small": 256, "large": 0}
    assert PACKERS["best_fit_by_start"](problem).offsets == {"small": 0, "large": 64}
    crowd = Buffer("crowd", 512, 2, 3)
    crowded = Problem((Buffer("early", 64, 0, 2), small, large, crowd))
    assert PACKERS["greedy_by_pressure"](crowded).offsets["large"] == 0


def test_best_fit_takes_the_tighter_gap_and_the_others_the_lower() -> None:
    low, high, new = Buffer("low", 64, 0, 4), Buffer("high", 64, 0, 4), Buffer("new", 64, 1, 2)
    problem = Problem((low, high, new), pinned={"low": 128, "high": 256})
    assert PACKERS["best_fit_by_start"](problem).offsets["new"] == 192
    assert PACKERS["greedy_by_size"](problem).offsets["new"] == 0


def test_ties_go_to_the_larger_and_then_to_the_longer() -> None:
    thin, thick = Buffer("thin", 64, 0, 2), Buffer("thick", 128, 0, 2)
    best_fit = PACKERS["best_fit_by_start"]
    assert best_fit(Problem((thin, thick))).offsets == {"thin": 128, "thick": 0}
    brief, long = Buffer("brief", 64, 0, 2), Buffer("long", 64, 0, 3)
    by_size = PACKERS["greedy_by_size"]
    assert by_size(Problem((brief, long))).offsets == {"brief": 64, "long": 0}


def test_bytes_are_used_again_inside_a_gap() -> None:
    cache = Buffer("cache", 64, 0, 9, gaps=((2, 4), (5, 6)))
    guest, late, clashing = Buffer("g", 64, 2, 4), Buffer("l", 64, 5, 6), Buffer("c", 64, 4, 5)
    assert pack(Problem((cache, guest, late))).height_bytes == 64
    assert pack(Problem((cache, guest, late, clashing))).height_bytes == 128


@untimed
@given(problem=pinned_problems())
def test_pack_is_the_earliest_of_the_lowest_attempts(problem: Problem) -> None:
    prepared = ProblemArrays.of(problem)
    solutions = list(attempts(prepared, prepared.bound))
    assert [s.packer for s in solutions[: len(PACKERS)]] == list(PACKERS)
    least = min(solution.height_bytes for solution in solutions)
    packed = pack(problem)
    first = next(s for s in solutions if s.height_bytes == least)
    assert (packed.offsets, packed.packer) == (first.offsets, first.packer)
    assert packed.stop_reason in (StopReason.OPTIMAL, StopReason.NO_SEARCH)
    assert packed.is_proven == (packed.height_bytes <= packed.bound_bytes)


def test_promotion_lowers_what_one_pass_leaves_too_high() -> None:
    problem = cut_rectangle(capacity=4096, steps=60, pieces=60, seed=0)
    heights = [packer(problem).height_bytes for packer in PACKERS.values()]
    assert pack(replace(problem, capacity_bytes=None)).height_bytes < min(heights)


def test_pack_stops_where_the_capacity_is_met() -> None:
    problem = cut_rectangle(capacity=4096, steps=60, pieces=60, seed=0)
    first = PACKERS["greedy_by_pressure"](problem)
    packed = pack(replace(problem, capacity_bytes=first.height_bytes))
    assert (packed.packer, packed.stop_reason) == (first.packer, StopReason.FITS)


def test_a_capacity_below_the_bound_is_known_to_be_hopeless() -> None:
    packed = pack(replace(ABC, capacity_bytes=128))
    assert (packed.stop_reason, packed.is_proven) == (StopReason.INFEASIBLE, True)
    assert packed.height_bytes == 192


def test_limits_without_a_search_are_refused() -> None:
    with pytest.raises(ValueError, match="search=True"):
        pack(ABC, seconds=1)


# --- the problem and the bound ---


@untimed
@given(problem=problems())
def test_the_bound_is_the_highest_sum_over_steps(problem: Problem) -> None:
    live = {
        step: sum(
            aligned_size(b.size_bytes, problem.alignment)
            for b in problem.buffers
            if step in live_steps(b)
        )
        for step in range(20)
    }
    bound = lower_bound(problem)
    assert bound.size_bytes == max(live.values())
    sizes = [aligned_size(b.size_bytes, problem.alignment) for b in bound.buffers]
    assert sum(sizes) == bound.size_bytes
    assert sizes == sorted(sizes, reverse=True)
    if bound.size_bytes:
        assert bound.step == min(step for step in live if live[step] == bound.size_bytes)


def test_the_bound_says_what_makes_it() -> None:
    assert lower_bound(ABC) == LowerBound(192, 1, (A, B))
    assert str(lower_bound(ABC)) == "192 B at step 1 (a 128 B, b 64 B)"
    many = Problem(tuple(Buffer(name, 2048, 5, 6) for name in "vwxyz"))
    assert str(lower_bound(many)) == "10 KiB at step 5 (v 2 KiB, w 2 KiB, x 2 KiB, and 2 more)"
    assert lower_bound(Problem(())) == LowerBound(0, 0, ())


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (11 << 20, "11 MiB"), (3 << 30, "3 GiB")],
)
def test_byte_counts_read_well(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_malformed_buffers_are_refused() -> None:
    with pytest.raises(ValueError, match="'x' has size -1 B"):
        Buffer("x", -1, 0, 1)
    with pytest.raises(ValueError, match=r"\[3, 2\), which ends before it starts"):
        Buffer("x", 1, 3, 2)
    with pytest.raises(ValueError, match=r"gap \[3, 3\) of no steps"):
        Buffer("x", 1, 0, 9, gaps=((3, 3),))
    for gaps in [((0, 2), (1, 3)), ((4, 5), (2, 3)), ((8, 10),), ((-1, 1),)]:
        with pytest.raises(ValueError, match="in order, disjoint, and inside"):
            Buffer("x", 1, 0, 9, gaps=gaps)


@untimed
@given(problem=problems())
def test_intervals_are_the_live_steps(problem: Problem) -> None:
    for buffer in problem.buffers:
        steps = [step for start, stop in buffer.intervals for step in range(start, stop)]
        assert steps == sorted(live_steps(buffer))


def test_malformed_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' is used twice"):
        Problem((A, B, A))
    with pytest.raises(ValueError, match="alignment is 0 B"):
        Problem((A,), alignment=0)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"d": 0}, "'d', which is not a buffer"),
        ({"a": -64}, "pinned at -64 B"),
        ({"a": 100}, "the nearest below is 64 B"),
    ],
)
def test_malformed_pins_are_refused(pins: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Problem((A, B, C), pinned=pins)


def test_a_problem_keeps_its_own_pins() -> None:
    pins = {"a": 0}
    problem = Problem((A, B, C), pinned=pins)
    pins["b"] = 0
    assert problem.pinned == {"a": 0}
    assert hash(problem) == hash(ABC)


# --- drawing ---


def test_the_drawing_shows_steps_by_offsets() -> None:
    assert draw(ABC, STACKED, width=23) == "\n".join(
        [
            "    192 B |...bbbbbbbbb",
            "          |aaaaaacccccc",
            "          |aaaaaacccccc",
            "      0 B +------------",
            "           0          4",
            "a = a 128 B",
            "b = b 64 B",
            "c = c 128 B",
        ]
    )


def test_the_drawing_marks_clashes() -> None:
    clash = Solution({"a": 0, "b": 64, "c": 0}, 128, "by hand")
    assert draw(ABC, clash, width=15).splitlines()[:2] == [
        "    128 B |a###",
        "          |aacc",
    ]


@untimed
@given(problem=problems(most=60), width=st.integers(20, 100), rows=st.integers(1, 20))
def test_a_drawing_keeps_to_its_frame_and_shows_no_false_clash(
    problem: Problem, width: int, rows: int
) -> None:
    picture = draw(problem, pack(problem), width, rows)
    if not picture.startswith("(nothing"):
        assert max(map(len, picture.splitlines())) <= width
        assert "#" not in picture


def test_there_is_something_to_say_of_nothing() -> None:
    assert draw(Problem(()), pack(Problem(()))).startswith("(nothing to draw")
    with pytest.raises(ValueError, match="width 3 leaves no room"):
        draw(ABC, pack(ABC), width=3)


def test_the_drawing_leaves_gaps_free() -> None:
    problem = Problem((Buffer("a", 64, 0, 4, gaps=((1, 2),)),))
    assert draw(problem, pack(problem), width=15).splitlines()[0] == "     64 B |a.aa"


# --- minimalloc's files ---


@untimed
@given(problem=problems())
def test_a_minimalloc_file_reads_back(
    tmp_path_factory: pytest.TempPathFactory, problem: Problem
) -> None:
    path = tmp_path_factory.mktemp("files") / "problem.csv"
    for solution in (None, pack(problem)):
        write_minimalloc(path, problem, solution)
        assert read_minimalloc(path, alignment=problem.alignment) == problem


def test_a_solution_is_written_beside_its_problem(tmp_path: Path) -> None:
    problem = Problem((Buffer("a,b", 128, 0, 9, gaps=((2, 4), (5, 6))), B))
    write_minimalloc(tmp_path / "solution.csv", problem, pack(problem))
    assert (tmp_path / "solution.csv").read_text().splitlines() == [
        "id,lower,upper,size,gaps,offset",
        '"a,b",0,9,128,2-4 5-6,0',
        "b,1,4,64,,128",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'id'"),
        ("id,lower,upper\n", "no column 'size'"),
        ("id,lower,upper,size,alignment\n", "'alignment' is not supported"),
        ("id,lower,upper,size\n0,0,4,8\n1,0,x,8\n", "line 3: upper is 'x'"),
        ("id,lower,upper,size\n0,0,4\n", "line 2: size is None"),
        ("id,lower,upper,size\n0,4,0,8\n", "line 2: buffer '0' is live over"),
        ("id,lower,upper,size\n0,0,4,8\n0,0,4,8\n", "'0' is used twice"),
        ("id,lower,upper,size,gaps\n0,0,4,8,1:2\n", "line 2: gaps has '1:2'"),
        ("id,lower,upper,size\n\x1b[2J,0,4,8\n", r"line 2: id is '\\x1b\[2J', which is no name"),
        (f"id,lower,upper,size\n0,0,4,{2**70}\n", r"more than 2\^62 bytes"),
        (f"id,lower,upper,size\n0,0,4,{2**61}\n1,0,4,{2**62}\n", r"more than 2\^62 bytes"),
        (f"id,lower,upper,size\n0,0,{2**70},8\n", r"steps beyond 2\^62"),
        (f"id,lower,upper,size\n0,-{2**70},4,8\n", r"steps beyond 2\^62"),
        ("id,lower,upper,size,gaps\n0,0,9,8,3-5@0:4\n", "line 2: gaps has '3-5@0:4'"),
        ("id,lower,upper,size,gaps\n0,0,4,8,3-5\n", r"line 2: buffer '0' has the gap \[3, 5\)"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "damaged.csv"
    path.write_text(text)
    with pytest.raises(PackingError, match=f"damaged.csv: .*{message}"):
        read_minimalloc(path)


MODULES = ("bound", "drawing", "heuristics", "packer", "problem")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    outcome = doctest.testmod(import_module(f"tgbench.memory.packing.{name}"))
    assert outcome.failed == 0
