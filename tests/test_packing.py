"""Packers against a checker, a bound, and the optimum of tiny problems."""

from __future__ import annotations

import doctest
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tgbench import packing, validate
from tgbench.packing import (
    PACKERS,
    Buffer,
    LowerBound,
    Problem,
    Solution,
    aligned_size,
    best_fit,
    draw,
    first_fit_by_start,
    format_bytes,
    greedy_by_size,
    lower_bound,
    pack,
    read_minimalloc,
)
from tgbench.validate import (
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

A, B, C = Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)
ABC = Problem((A, B, C))

untimed = settings(deadline=None)
any_packer = pytest.mark.parametrize("packer", [*PACKERS.values(), pack], ids=[*PACKERS, "pack"])


@st.composite
def problems(draw: st.DrawFn, most: int = 14, sizes: int = 300) -> Problem:
    """Random buffers, among them empty ones and ones that are never live."""
    alignment = draw(st.sampled_from([1, 8, 64]))
    shapes = st.tuples(st.integers(0, sizes), st.integers(0, 12), st.integers(0, 6))
    buffers = tuple(
        Buffer(f"b{index}", size, start, start + steps)
        for index, (size, start, steps) in enumerate(draw(st.lists(shapes, max_size=most)))
    )
    return Problem(buffers, alignment=alignment)


@st.composite
def pinned_problems(draw: st.DrawFn, most: int = 14, sizes: int = 300) -> Problem:
    """Pins that do not clash: some offsets of a valid solution, lifted apart by gaps."""
    problem = draw(problems(most, sizes))
    names = [buffer.name for buffer in problem.buffers]
    chosen = draw(st.sets(st.sampled_from(names))) if names else set()
    sources = [*PACKERS.values(), _stacked]
    offsets = draw(st.sampled_from(sources))(problem).offsets
    lift = problem.alignment * draw(st.integers(0, 3))
    return replace(problem, pinned={name: offsets[name] + lift for name in sorted(chosen)})


def _stacked(problem: Problem) -> Solution:
    """No byte used twice, and a gap of one unit above each buffer."""
    offsets, top = {}, 0
    for buffer in problem.buffers:
        offsets[buffer.name] = top
        top += aligned_size(buffer.size_bytes, problem.alignment) + problem.alignment
    return Solution.of(problem, offsets, "stacked")


def _optimum(problem: Problem) -> int:
    """The least height, by every order of lowest fits: one of them is an optimum pushed down."""
    free = [buffer for buffer in problem.buffers if buffer.name not in problem.pinned]
    heights = [_lowest_fit(problem, order) for order in permutations(free)]
    return min(heights)


def _lowest_fit(problem: Problem, order: Sequence[Buffer]) -> int:
    taken: dict[str, tuple[Buffer, int, int]] = {}
    for buffer in (b for b in problem.buffers if b.name in problem.pinned):
        size = aligned_size(buffer.size_bytes, problem.alignment)
        low = problem.pinned[buffer.name]
        taken[buffer.name] = (buffer, low, low + size)
    for buffer in order:
        size = aligned_size(buffer.size_bytes, problem.alignment)
        low = 0
        while any(
            _share_a_step(buffer, other) and max(low, start) < min(low + size, stop)
            for other, start, stop in taken.values()
        ):
            low += problem.alignment
        taken[buffer.name] = (buffer, low, low + size)
    return max((stop for b, _, stop in taken.values() if b.size_bytes), default=0)


def _share_a_step(one: Buffer, other: Buffer) -> bool:
    return bool(set(range(one.start, one.stop)) & set(range(other.start, other.stop)))


def _cut(capacity: int, steps: int, pieces: int, seed: int) -> Problem:
    """A full rectangle cut into buffers: the optimum is the capacity, as is the bound."""
    chance = random.Random(seed)
    boxes = [(0, steps, 0, capacity)]
    while len(boxes) < pieces:
        start, stop, low, high = boxes.pop(chance.randrange(len(boxes)))
        if stop - start > 1 and (high - low == 1 or chance.random() < 0.5):
            at = chance.randrange(start + 1, stop)
            boxes += [(start, at, low, high), (at, stop, low, high)]
        elif high - low > 1:
            at = chance.randrange(low + 1, high)
            boxes += [(start, stop, low, at), (start, stop, at, high)]
        else:
            boxes.append((start, stop, low, high))
    buffers = (Buffer(str(i), h - w, s, e) for i, (s, e, w, h) in enumerate(boxes))
    return Problem(tuple(buffers), capacity, alignment=1)


def findings(problem: Problem, solution: Solution) -> list[Finding]:
    return validate.validate(problem, solution)


# --- packers ---


@any_packer
@untimed
@given(problem=pinned_problems())
def test_solutions_are_valid_and_not_below_the_bound(
    packer: packing.Packer, problem: Problem
) -> None:
    solution = packer(problem)
    assert findings(problem, solution) == []
    assert solution.height_bytes >= lower_bound(problem).size_bytes
    assert list(solution.offsets) == [buffer.name for buffer in problem.buffers]


@any_packer
@untimed
@given(problem=pinned_problems(most=5, sizes=20))
def test_no_packer_is_below_the_optimum(packer: packing.Packer, problem: Problem) -> None:
    assert lower_bound(problem).size_bytes <= _optimum(problem) <= packer(problem).height_bytes


@any_packer
@untimed
@given(problem=pinned_problems())
def test_the_same_problem_gives_the_same_solution(packer: packing.Packer, problem: Problem) -> None:
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem
    assert packer(again) == packer(problem)


@untimed
@given(problem=pinned_problems())
def test_pack_is_the_earliest_of_the_lowest(problem: Problem) -> None:
    solutions = [packer(problem) for packer in PACKERS.values()]
    least = min(solution.height_bytes for solution in solutions)
    assert pack(problem) == next(s for s in solutions if s.height_bytes == least)


@any_packer
@untimed
@given(problem=pinned_problems())
def test_packing_again_with_every_buffer_pinned_changes_nothing(
    packer: packing.Packer, problem: Problem
) -> None:
    solution = packer(problem)
    again = packer(replace(problem, pinned=solution.offsets))
    assert again.offsets == solution.offsets
    assert again.height_bytes == solution.height_bytes


@any_packer
def test_an_empty_problem_has_height_zero(packer: packing.Packer) -> None:
    solution = packer(Problem(()))
    assert (solution.offsets, solution.height_bytes) == ({}, 0)


@any_packer
def test_what_cannot_clash_lies_at_the_bottom(packer: packing.Packer) -> None:
    problem = Problem(
        (Buffer("full", 64, 0, 9), Buffer("no_bytes", 0, 0, 9), Buffer("dead", 9, 3, 3))
    )
    solution = packer(problem)
    assert solution.offsets == {"full": 0, "no_bytes": 0, "dead": 0}
    assert solution.height_bytes == 64


def test_a_dead_buffer_still_lies_inside_the_height() -> None:
    assert pack(Problem((Buffer("dead", 100, 3, 3),))).height_bytes == 128


def test_first_fit_reuses_bytes_that_are_free_again() -> None:
    assert first_fit_by_start(ABC).offsets == {"a": 0, "b": 128, "c": 0}


def test_greedy_by_size_places_the_largest_lowest() -> None:
    small, large = Buffer("small", 64, 0, 2), Buffer("large", 256, 1, 3)
    assert greedy_by_size(Problem((small, large))).offsets == {"small": 256, "large": 0}


def test_best_fit_takes_the_tighter_gap_and_first_fit_the_lower() -> None:
    low, high, new = Buffer("low", 64, 0, 4), Buffer("high", 64, 0, 4), Buffer("new", 64, 1, 2)
    problem = Problem((low, high, new), pinned={"low": 128, "high": 256})
    assert best_fit(problem).offsets["new"] == 192
    assert first_fit_by_start(problem).offsets["new"] == 0


def test_a_pin_in_the_future_is_packed_around() -> None:
    early, late = Buffer("early", 128, 0, 5), Buffer("late", 64, 4, 6)
    problem = Problem((early, late), pinned={"late": 64})
    for packer in PACKERS.values():
        assert packer(problem).offsets == {"early": 128, "late": 64}


def test_equal_buffers_are_placed_in_the_order_given() -> None:
    problem = Problem(tuple(Buffer(name, 64, 0, 1) for name in "zax"))
    for packer in PACKERS.values():
        assert packer(problem).offsets == {"z": 0, "a": 64, "x": 128}


def test_ties_go_to_the_larger_and_then_to_the_longer() -> None:
    thin, thick = Buffer("thin", 64, 0, 2), Buffer("thick", 128, 0, 2)
    assert first_fit_by_start(Problem((thin, thick))).offsets == {"thin": 128, "thick": 0}
    brief, long = Buffer("brief", 64, 0, 2), Buffer("long", 64, 0, 3)
    assert greedy_by_size(Problem((brief, long))).offsets == {"brief": 64, "long": 0}


def test_pack_tries_no_more_once_a_packer_reaches_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(_: Problem) -> Solution:
        raise AssertionError("tried after the bound was reached")

    monkeypatch.setattr(packing, "PACKERS", {"first": first_fit_by_start, "second": never})
    assert pack(ABC).height_bytes == lower_bound(ABC).size_bytes


@any_packer
def test_pins_that_clash_are_refused_by_name(packer: packing.Packer) -> None:
    with pytest.raises(ValueError, match=r"'a' and 'b' are pinned.*both live at step 1"):
        packer(replace(ABC, pinned={"a": 0, "b": 64}))


def test_pins_may_share_bytes_at_different_steps() -> None:
    assert pack(replace(ABC, pinned={"a": 64, "c": 64})).offsets == {"a": 64, "b": 0, "c": 64}


@pytest.mark.parametrize("seed", range(5))
def test_cut_rectangles_are_packed_at_or_above_their_optimum(seed: int) -> None:
    problem = _cut(capacity=4096, steps=60, pieces=200, seed=seed)
    assert lower_bound(problem).size_bytes == 4096
    solution = pack(problem)
    above = [f for f in findings(problem, solution) if not isinstance(f, OutOfBounds)]
    assert above == []
    assert solution.height_bytes >= 4096


# --- the problem and the bound ---


@untimed
@given(problem=problems())
def test_the_bound_is_the_highest_sum_over_steps(problem: Problem) -> None:
    live = {
        step: sum(
            aligned_size(b.size_bytes, problem.alignment)
            for b in problem.buffers
            if b.start <= step < b.stop
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


# --- the checker finds planted faults ---


@untimed
@given(problem=problems(), data=st.data())
def test_a_planted_overlap_is_found(problem: Problem, data: st.DataObject) -> None:
    pairs = [
        (one, other)
        for one, other in combinations(problem.buffers, 2)
        if one.size_bytes and other.size_bytes and _share_a_step(one, other)
    ]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))
    good = pack(problem)
    bad = Solution.of(problem, good.offsets | {one.name: good.offsets[other.name]}, "planted")
    step = max(one.start, other.start)
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
            for step in range(b.start, b.stop)
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


# --- drawing ---


def test_the_drawing_shows_steps_by_offsets() -> None:
    assert draw(ABC, pack(ABC), width=23) == "\n".join(
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


# --- minimalloc's files ---


def _write(path: Path, problem: Problem) -> Path:
    lines = [f"{b.name},{b.start},{b.stop},{b.size_bytes}" for b in problem.buffers]
    path.write_text("\n".join(["id,lower,upper,size", *lines, ""]))
    return path


@pytest.mark.parametrize("seed", range(3))
def test_a_minimalloc_file_reads_back(tmp_path: Path, seed: int) -> None:
    problem = _cut(capacity=1 << 20, steps=1000, pieces=50, seed=seed)
    path = _write(tmp_path / "cut.csv", problem)
    assert read_minimalloc(path, capacity_bytes=1 << 20) == problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'id'"),
        ("id,lower,upper\n", "no column 'size'"),
        ("id,lower,upper,size,gaps\n", "'gaps' is not supported"),
        ("id,lower,upper,size\n0,0,4,8\n1,0,x,8\n", "line 3: upper is 'x'"),
        ("id,lower,upper,size\n0,0,4\n", "line 2: size is None"),
        ("id,lower,upper,size\n0,4,0,8\n", "line 2: buffer '0' is live over"),
        ("id,lower,upper,size\n0,0,4,8\n0,0,4,8\n", "'0' is used twice"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "damaged.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"damaged.csv: .*{message}"):
        read_minimalloc(path)


@pytest.mark.parametrize("module", [packing, validate])
def test_the_examples_run(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted > 0
    assert outcome.failed == 0
