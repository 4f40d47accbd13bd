"""Searchers in a race: each against exhaustion, all against each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import cut_rectangle, optimum, pinned_problems
from places import DATA

from benchmarks.packing import instances, layered, packed, reshaped
from tgbench.base.stopping import Limits, StopReason
from tgbench.memory.check import validate
from tgbench.memory.packing import Problem, Solution, lower_bound, pack, race
from tgbench.memory.packing.heuristics import PACKERS, ProblemArrays
from tgbench.memory.packing.parts import Arrays, separate
from tgbench.memory.packing.race import REPAIRERS
from tgbench.memory.packing.repair import SPREADS, Repair
from tgbench.memory.packing.search import ALONE, TOGETHER

pytest.importorskip("llvmlite", reason="the loops are compiled by LLVM (the extra `cpu`)")

STEPS = 300_000
untimed = settings(deadline=None)

PACKED = DATA / "minimalloc" / "packed"


def like(name: str, seed: int) -> Problem:
    """A problem like one of minimalloc's; that it fits into its capacity is known."""
    return reshaped(*packed(PACKED / f"{name}.1048576.csv"), seed)


def test_there_are_eleven_packed_problems() -> None:
    given = dict(instances(PACKED.parent))
    assert "".join(given) == "ABCDEFGHIJK"
    for path in sorted(PACKED.glob("*.csv")):
        problem, offsets = packed(path)
        assert problem == given[path.name[0]]
        assert validate(problem, Solution.of(problem, offsets, "file")) == []


@pytest.mark.parametrize("name", "ABCDEFGHIJK")
def test_the_published_problems_fit(name: str) -> None:
    problem, _ = packed(PACKED / f"{name}.1048576.csv")
    assert validate(problem, searched(problem, STEPS)) == []


def test_unseen_problems_fit_by_construction() -> None:
    for path in sorted(PACKED.glob("*.csv")):
        problem, offsets = packed(path)
        other = reshaped(problem, offsets, 1)
        assert other == reshaped(problem, offsets, 1)
        assert len(other.buffers) == len(problem.buffers)
        assert lower_bound(other).size_bytes <= other.capacity_bytes


# --- the race ---


def searched(problem: Problem, steps: int) -> Solution:
    solution = pack(problem, search=True, max_steps=steps)
    assert validate(replace(problem, capacity_bytes=None), solution) == []
    assert solution.steps == sum(solution.turns.values()) <= steps
    return solution


@contextmanager
def only(*racers: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "RACERS", racers)
        yield


def steps_of(problem: Problem, steps: int, racers: Sequence[object] = race.RACERS) -> int | None:
    """How many steps these take until the problem fits; None if so many do not do."""
    with only(*racers):
        solution = searched(problem, steps)
    return solution.steps if solution.stop_reason is StopReason.FITS else None


@pytest.mark.parametrize(("name", "seed", "lost"), [("A", 0, TOGETHER), ("B", 1, ALONE)])
def test_a_race_packs_what_half_of_it_does_not(
    name: str, seed: int, lost: Sequence[object]
) -> None:
    """Strategies that learn from each other's failures are led astray in A, those alone in B."""
    assert steps_of(like(name, seed), 80_000) is not None
    assert steps_of(like(name, seed), 80_000, lost) is None


def test_where_something_is_free_the_repair_is_the_fastest() -> None:
    problem, _ = packed(PACKED / "J.1048576.csv")
    assert searched(problem, STEPS).packer.startswith("repair")


FAMILY = [
    *(cut_rectangle(1024, 60, 60, seed, left_out=0.1) for seed in range(3)),
    *(like("E", seed) for seed in range(2)),
    *(packed(PACKED / f"{name}.1048576.csv")[0] for name in "BCJ"),
]
FACTOR = 40  # eight of the complete search, and two whose moves are counted several times


def test_a_race_packs_whatever_one_of_it_packs() -> None:
    """Within so many times the steps of the one."""
    alone = [[steps_of(problem, 4_000, [racer]) for racer in race.RACERS] for problem in FAMILY]
    assert all(any(steps is None for steps in column) for column in zip(*alone, strict=True))
    for problem, each in zip(FAMILY, alone, strict=True):
        least = min((steps for steps in each if steps is not None), default=None)
        if least is not None:
            assert steps_of(problem, FACTOR * max(least, race.FIRST_LIMIT)) is not None


def test_it_says_who_found_it_and_what_each_took() -> None:
    problem = cut_rectangle(capacity=1024, steps=60, pieces=70, seed=0, left_out=0.05)
    solution = searched(problem, 20_000)
    assert solution.stop_reason is StopReason.FITS
    assert solution.packer in map(str, race.RACERS)
    assert solution.turns[solution.packer] > 0
    assert len({str(racer) for racer in race.RACERS}) == len(race.RACERS)


def test_equal_limits_give_equal_turns() -> None:
    problem = replace(like("F", 5), capacity_bytes=None)
    for steps in (1, 3_000, 30_000):
        one, other = searched(problem, steps), searched(problem, steps)
        assert (one, one.offsets, one.turns) == (other, other.offsets, other.turns)


def test_more_steps_are_never_higher() -> None:
    problem = replace(like("D", 3), capacity_bytes=None)
    heights = [searched(problem, steps).height_bytes for steps in (500, 5_000, 20_000, 50_000)]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] < heights[0]


# --- the repair ---


@untimed
@given(problem=pinned_problems(most=6, sizes=40))
def test_a_repair_proves_nothing_and_is_valid(problem: Problem) -> None:
    with only(*REPAIRERS):
        solution = searched(problem, 500)
    assert solution.height_bytes >= optimum(problem)
    if solution.is_proven:
        assert solution.height_bytes == solution.bound_bytes


@untimed
@given(
    problem=pinned_problems(most=9, sizes=12),
    data=st.data(),
)
def test_a_move_pushes_out_what_weighs_least(problem: Problem, data: st.DataObject) -> None:
    """Beside every offset that there is."""
    prepared = ProblemArrays.of(problem)
    for members in separate(prepared):
        a = Arrays.of(prepared, members, 1)
        capacity = int(a.sizes.max()) + data.draw(st.integers(0, 20))
        low = _some_packed(a, capacity)
        before, out = low.copy(), np.flatnonzero(low == -1)
        if not out.size:
            continue
        weight = np.array(
            data.draw(st.lists(st.integers(1, 5), min_size=len(low), max_size=len(low))), np.int64
        )
        queue = np.resize(out, len(low)).astype(np.int64)
        _push_once(a, capacity, low, weight, queue, len(out))
        b = int(out[0])
        costs = [_cost(a, before, weight, b, offset) for offset in range(capacity + 1)]
        within = [c for c in costs[: capacity - int(a.sizes[b]) + 1] if c is not None]
        pushed = (before != -1) & (low == -1)
        if within:
            assert low[b] != -1
            assert weight[pushed].sum() == min(within)
            assert pushed.sum() == 0 or _cost(a, low, weight, b, int(low[b])) == 0
        else:
            assert (low == before).all()


def _some_packed(a: Arrays, capacity: int) -> np.ndarray:
    """Offsets that do not clash, by first fit; the others are out."""
    low = np.full(len(a.sizes), -1, np.int64)
    for b in range(len(low)):
        free = (o for o in range(capacity - int(a.sizes[b]) + 1) if _cost(a, low, low, b, o) == 0)
        low[b] = next(free, -1)
    return low


def _cost(a: Arrays, low: np.ndarray, weight: np.ndarray, b: int, offset: int) -> int | None:
    """The weight of what buffer b would push out at an offset; None where a pin is."""
    top = offset + int(a.sizes[b])
    for x in range(a.pin_first[b], a.pin_first[b + 1]):
        if a.pin_low[x] < top and a.pin_high[x] > offset:
            return None
    near = a.near[a.near_first[b] : a.near_first[b + 1]]
    meets = (low[near] != -1) & (low[near] < top) & (low[near] + a.sizes[near] > offset)
    return int(np.abs(weight[near[meets]]).sum()) if low is not weight else int(meets.sum())


def _push_once(
    a: Arrays, capacity: int, low: np.ndarray, weight: np.ndarray, queue: np.ndarray, count: int
) -> None:
    from tgbench.memory.packing.repair_loops import push

    room = np.empty((8, int(a.meetings.max()) + 1), np.int64)
    at = np.array([0, count, 1, 0])
    push(
        capacity, 1, a.sizes, a.near_first, a.near, a.pin_first, a.pin_low, a.pin_high,
        np.zeros(len(low), np.int64), low, weight, queue, at, room,
    )  # fmt: skip


def test_large_networks_are_packed_within_a_hundredth() -> None:
    problem = layered(1000, 2)
    passes = min(packer(problem).height_bytes for packer in PACKERS.values())
    bound = lower_bound(problem).size_bytes
    found = searched(problem, 30_000)
    assert passes > 1.01 * bound
    assert found.packer.startswith("repair")
    assert found.height_bytes <= 1.01 * bound


def test_a_repair_goes_on_with_what_it_learned() -> None:
    problem = like("J", 9)
    prepared = ProblemArrays.of(problem)
    (members,) = separate(prepared)
    arrays = Arrays.of(prepared, members, 1024)
    repair, low = Repair(arrays, SPREADS[0]), np.full(len(arrays.sizes), 1024)
    limits = Limits()
    first, second = (repair.attempt(low, 1024, 50, limits) for _ in range(2))
    assert first is None
    assert second is None
    assert limits.steps == 100
