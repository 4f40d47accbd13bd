"""Rematerialisation against an exact optimum, a byte-by-byte replay and the online policies."""

from __future__ import annotations

import doctest
import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.remat import layered
from tgbench.base.errors import BudgetError
from tgbench.base.stopping import StopReason
from tgbench.memory.packing import Problem, Solution, pack
from tgbench.memory.remat import (
    POLICIES,
    Progress,
    Recipe,
    Rematerialisation,
    Schedule,
    Stage,
    Value,
    least_bytes,
    planner,
    recipe,
    rematerialise,
    repair,
    replay,
    schedule,
    simulate,
    tape,
)
from tgbench.memory.remat.recipe import packing_problem, tops
from tgbench.memory.remat.repair import Taste, vacuum
from tgbench.memory.remat.replay import BadRead, OutsideArena, SelfOverlap, WrongStages
from tgbench.memory.remat.tape import record

UNIT = 64
ROOMY = 10**9


@st.composite
def schedules(draw: st.DrawFn, most: int = 8) -> Schedule:
    """Random graphs: some sources resident, some values with scratch, any outputs."""
    values: list[Value] = []
    for position in range(draw(st.integers(1, most))):
        earlier = st.integers(0, max(position - 1, 0))
        inputs = tuple(sorted(draw(st.sets(earlier, max_size=3)))) if position else ()
        values.append(
            Value(
                f"v{position}",
                draw(st.integers(0, 9)),
                UNIT * draw(st.integers(0, 4)),
                inputs,
                UNIT * draw(st.sampled_from((0, 0, 0, 1))),
                resident=not inputs and draw(st.booleans()),
                output=draw(st.integers(0, 3)) == 0 or position == most - 1,
            )
        )
    return Schedule(tuple(values))


def skipping(seed: int, count: int) -> Schedule:
    """A chain whose second half reads back into the first, as a U-Net does, and a few more."""
    random = Random(seed)
    values = []
    for position in range(count):
        inputs = {position - 1} if position else set()
        if position >= count // 2 and random.random() < 0.8:
            inputs.add(count - 1 - position)
        elif position > 1 and random.random() < 0.3:
            inputs.add(random.randrange(position))
        cost, size = random.randint(1, 20), UNIT * random.randint(1, 4)
        last = position == count - 1
        values.append(Value(f"v{position}", cost, size, tuple(sorted(inputs)), output=last))
    return Schedule(tuple(values))


def chain(length: int) -> Schedule:
    """Forward values, then gradients that read them in the opposite order."""
    forward = [Value(f"f{i}", 10, UNIT, (i - 1,) if i else ()) for i in range(length)]
    backward = [
        Value(f"g{i}", 10, UNIT, (i, 2 * length - 2 - i) if i < length - 1 else (i,), output=i == 0)
        for i in reversed(range(length))
    ]
    return Schedule((*forward, *backward))


# --- the oracle -----------------------------------------------------------------------------------


def optimum(plan: Schedule, budget_bytes: int) -> float | None:
    """The least cost over all sequences by live bytes: Dijkstra over sets of values in memory."""
    resident = frozenset(i for i, v in enumerate(plan.values) if v.resident)
    wanted = {i for i, v in enumerate(plan.values) if v.output}
    rounded = [-(-v.size_bytes // plan.alignment) * plan.alignment for v in plan.values]
    best = {resident: 0.0}
    queue = [(0.0, 0, resident)]
    ties = 0
    while queue:
        cost, _, held = heapq.heappop(queue)
        if wanted <= held:
            return cost
        if cost > best[held]:
            continue
        for after, more in _moves(plan, rounded, held, resident, budget_bytes):
            if cost + more < best.get(after, math.inf):
                best[after] = cost + more
                ties += 1
                heapq.heappush(queue, (cost + more, ties, after))
    return None


def _moves(
    plan: Schedule,
    rounded: list[int],
    held: frozenset[int],
    resident: frozenset[int],
    budget_bytes: int,
) -> Iterator[tuple[frozenset[int], float]]:
    for i in held - resident:
        yield held - {i}, 0.0
    for i, value in enumerate(plan.values):
        if i in held or not held.issuperset(value.inputs):
            continue
        scratch = -(-value.scratch_bytes // plan.alignment) * plan.alignment
        if sum(rounded[j] for j in held | {i}) + scratch <= budget_bytes:
            yield held | {i}, value.cost_ns


def peak_of_once(plan: Schedule) -> int:
    return record(plan, plan.once).peak_bytes


def attempt(plan: Schedule, budget_bytes: int, steps: int = 20) -> Rematerialisation | None:
    try:
        return rematerialise(plan, budget_bytes, max_steps=steps)
    except BudgetError:
        return None


@settings(max_examples=120)
@given(schedules(), st.integers(0, 4))
def test_never_below_the_optimum_and_always_in_its_place(plan: Schedule, less: int) -> None:
    budget = max(least_bytes(plan).size_bytes, peak_of_once(plan) - less * UNIT)
    least = optimum(plan, budget)
    found = attempt(plan, budget)
    if least is None:
        assert found is None
    elif found is not None:
        assert found.recipe.cost_ns >= least
        assert found.recipe.height_bytes <= budget
        assert replay(found.recipe, budget) == []


def lowest(problem: Problem) -> Solution:
    """A packing that is as low as the live bytes, and wrong: for tests of the search alone."""
    live: Counter[int] = Counter()
    for one in problem.buffers:
        steps = set(range(one.start, one.stop)) - {t for gap in one.gaps for t in range(*gap)}
        live.update(dict.fromkeys(steps, -(-one.size_bytes // UNIT) * UNIT))
    return Solution({one.name: 0 for one in problem.buffers}, max(live.values(), default=0), "")


def test_the_optimum_by_live_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten values, at every budget between what is needed and what is easy."""
    monkeypatch.setattr(planner, "pack", lowest)
    compared = 0
    for seed in range(12):
        plan = skipping(seed, 10)
        for budget in range(least_bytes(plan).size_bytes, peak_of_once(plan), UNIT):
            least = optimum(plan, budget)
            found = attempt(plan, budget)
            assert (least is None) == (found is None)
            if found is not None:
                assert found.recipe.cost_ns == least
                compared += 1
    assert compared > 40


def packed_optimum(plan: Schedule, budget_bytes: int) -> float | None:
    """The least cost with one fixed offset for each value; no scratch, nothing resident.

    Dijkstra over what is in memory and the offsets so far. Computing a value takes it to its
    offset, or to any where it has none yet, and drops what lies there.
    """
    units, size = budget_bytes // UNIT, [-(-v.size_bytes // UNIT) for v in plan.values]
    wanted = {i for i, v in enumerate(plan.values) if v.output}
    start = (frozenset[int](), (-1,) * len(size))
    best, queue = {start: 0.0}, [(0.0, 0, start)]
    while queue:
        cost, _, (held, offsets) = heapq.heappop(queue)
        if wanted <= held:
            return cost
        for i, value in enumerate(plan.values):
            if i in held or not held.issuperset(value.inputs):
                continue
            own = offsets[i]
            for low in [own] if own >= 0 else range(units - size[i] + 1):
                hit = {j for j in held if offsets[j] < low + size[i] and low < offsets[j] + size[j]}
                after = (held - hit | {i}, (*offsets[:i], low, *offsets[i + 1 :]))
                if hit.isdisjoint(value.inputs) and cost + value.cost_ns < best.get(after, 1e9):
                    best[after] = cost + value.cost_ns
                    heapq.heappush(queue, (best[after], len(best), after))
    return None


def test_close_to_the_optimum_among_what_packs() -> None:
    ratios, missed = [], 0
    for seed in range(24):
        plan = skipping(seed, 6)
        for budget in range(least_bytes(plan).size_bytes, peak_of_once(plan), UNIT):
            least, found = packed_optimum(plan, budget), attempt(plan, budget)
            if least is None:
                assert found is None
            elif found is None:
                missed += 1
            else:
                assert found.recipe.cost_ns >= least
                ratios.append(found.recipe.cost_ns / least)
    assert len(ratios) > 5
    assert missed <= 0.1 * len(ratios)
    assert math.prod(ratios) ** (1 / len(ratios)) <= 1.02


# --- against the policies -------------------------------------------------------------------------


def packs(plan: Schedule, sequence: tuple[int, ...], budget_bytes: int) -> bool:
    problem = packing_problem(record(plan, sequence), budget_bytes)
    return pack(problem).height_bytes <= budget_bytes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
def test_never_worse_than_an_online_policy_that_packs(seed: int, share: float) -> None:
    plan = skipping(seed, 30)
    budget = max(least_bytes(plan).size_bytes, int(share * peak_of_once(plan)))
    found = attempt(plan, budget, steps=0)
    for name, policy in POLICIES.items():
        sequence = simulate(plan, budget, policy, limit_ns=8 * plan.least_cost_ns)
        if policy.online and sequence is not None and packs(plan, sequence, budget):
            assert found is not None, name
            assert found.recipe.cost_ns <= plan.cost_ns(sequence), name


@settings(max_examples=40)
@given(schedules(), st.integers(0, 3), st.sampled_from(sorted(POLICIES)))
def test_policies_keep_the_budget(plan: Schedule, less: int, name: str) -> None:
    budget = max(least_bytes(plan).size_bytes, peak_of_once(plan) - less * UNIT)
    sequence = simulate(plan, budget, POLICIES[name], limit_ns=math.inf)
    if sequence is not None:
        assert record(plan, sequence).peak_bytes <= budget


@pytest.mark.parametrize(
    ("name", "victim"), [("LRU", "x"), ("largest first", "y"), ("GDSF", "w"), ("DTR", "w")]
)
def test_policies_differ_in_what_they_drop(name: str, victim: str) -> None:
    """One of x, y and w has to go for c: x is the oldest, y the largest, w the cheapest."""
    values = (
        Value("x", 5, UNIT),
        Value("y", 90, 2 * UNIT),
        Value("w", 1, UNIT),
        Value("z", 1, UNIT),
        Value("c", 5, 2 * UNIT, (3,)),
        Value("d", 5, UNIT, (4,)),
        Value("e", 5, UNIT, (0, 1, 2, 5), output=True),
    )
    plan = Schedule(values)
    sequence = simulate(plan, 6 * UNIT, POLICIES[name], limit_ns=math.inf)
    assert sequence == (0, 1, 2, 3, 4, 5, "xyw".index(victim), 6)


def test_a_policy_that_needs_too_long_is_given_up() -> None:
    plan = chain(12)
    assert simulate(plan, 4 * UNIT, POLICIES["LRU"], limit_ns=plan.least_cost_ns) is None


# --- the search -----------------------------------------------------------------------------------


def test_more_steps_are_never_worse_and_equal_seeds_are_equal() -> None:
    plan = skipping(3, 40)
    budget = int(0.7 * peak_of_once(plan))
    found = [rematerialise(plan, budget, max_steps=steps, seed=5) for steps in (0, 10, 40)]
    costs = [one.recipe.cost_ns for one in found]
    assert costs == sorted(costs, reverse=True)
    assert rematerialise(plan, budget, max_steps=40, seed=5) == found[-1]
    assert found[-1].history[: len(found[0].history)] == found[0].history


def test_nothing_is_computed_twice_where_there_is_room() -> None:
    plan = chain(5)
    found = rematerialise(plan, ROOMY)
    assert found.recipe.sequence == plan.once
    assert (found.stop, found.steps, found.recipe.extra) == (StopReason.OPTIMAL, 0, 0.0)
    assert found.recipe.stages == (Stage(plan.once, (9,)),)


def test_a_chain_keeps_every_other_value() -> None:
    small = chain(5)
    assert optimum(small, 5 * UNIT) == rematerialise(small, 5 * UNIT, max_steps=20).recipe.cost_ns
    found = rematerialise(chain(9), 8 * UNIT, max_steps=50)
    assert replay(found.recipe, 8 * UNIT) == []
    assert 0 < found.recipe.extra < 0.5
    assert len(found.recipe.stages) > 1


def test_a_value_is_computed_late_where_that_is_free() -> None:
    """b is large and read at the end alone: it is not computed in its place."""
    values = (
        Value("a", 1, UNIT),
        Value("b", 9, 8 * UNIT, (0,)),
        Value("c", 9, 6 * UNIT, (0,)),
        Value("d", 9, UNIT, (2,)),
        Value("e", 9, UNIT, (1, 3), output=True),
    )
    found = rematerialise(Schedule(values), 10 * UNIT, max_steps=10)
    assert found.recipe.sequence == (0, 2, 3, 1, 4)
    assert found.recipe.extra == 0
    assert [stage.computed for stage in found.recipe.stages] == [(0, 2, 3), (1, 4)]
    assert [stage.demanded for stage in found.recipe.stages] == [(0, 3), (4,)]


def test_progress_and_interrupts() -> None:
    plan, seen = skipping(3, 40), list[Progress]()

    def tell(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 4:
            raise KeyboardInterrupt

    budget = int(0.6 * peak_of_once(plan))
    found = rematerialise(plan, budget, seconds=60, progress=tell)
    assert (found.stop, found.steps) == (StopReason.INTERRUPTED, 3)
    assert [progress.step for progress in seen] == [0, 1, 2, 3]
    assert "interrupted after 3 steps" in str(found)


def test_seconds_stop_a_search() -> None:
    plan = skipping(3, 40)
    found = rematerialise(plan, int(0.6 * peak_of_once(plan)), seconds=0.0)
    assert (found.stop, found.steps) == (StopReason.SECONDS, 0)


# --- tapes, repairs -------------------------------------------------------------------------------


def live_bytes(plan: Schedule, sequence: tuple[int, ...]) -> list[int]:
    """Bytes at each step, from the definition: who is read before it is computed again?"""
    found = []
    for step, value in enumerate(sequence):
        total = plan.scratch[value] + plan.resident_bytes
        for other, size in enumerate(plan.sizes):
            if other in sequence[: step + 1] and not plan.values[other].resident:
                total += size * (other == value or _read_again(plan, sequence, step, other))
        found.append(total)
    return found


def _read_again(plan: Schedule, sequence: tuple[int, ...], step: int, value: int) -> bool:
    if value in plan.inputs[sequence[step]]:
        return True
    for later in sequence[step + 1 :]:
        if value in plan.inputs[later]:
            return True
        if later == value:
            return False
    return plan.values[value].output


@settings(max_examples=100)
@given(schedules(), st.randoms(use_true_random=False))
def test_a_tape_knows_what_is_live(plan: Schedule, random: Random) -> None:
    sequence = list(plan.once)
    for _ in range(4):
        if sequence:
            step = random.randrange(len(sequence))
            sequence.insert(random.randint(step + 1, len(sequence)), sequence[step])
    found = record(plan, sequence)
    assert found.held.tolist() == live_bytes(plan, found.sequence)
    assert set(found.sequence) == set(plan.once)
    again = record(plan, found.sequence)
    assert again.sequence == found.sequence


def test_a_tape_refuses_what_was_not_computed() -> None:
    with pytest.raises(ValueError, match="step 0 reads"):
        record(chain(2), (1, 0))


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_repair_keeps_the_budget_and_vacuum_the_rest(share: float) -> None:
    for seed in range(6):
        plan = skipping(seed, 40)
        once = record(plan, plan.once)
        budget = int(share * once.peak_bytes)
        found = repair.repair(once, budget, math.inf, Taste(0.3), Random(seed))
        if found is None:
            continue
        assert found.peak_bytes <= budget
        clean = vacuum(found, budget)
        assert clean.peak_bytes <= budget
        assert clean.cost_ns <= found.cost_ns
        for step in clean.repeats:
            assert clean.without((step,)).peak_bytes > budget


@given(schedules())
def test_the_tops_are_those_of_the_buffers(plan: Schedule) -> None:
    if not plan.once:
        return
    one = record(plan, plan.once)
    made = rematerialise(plan, ROOMY).recipe
    highest = tops(one, made)
    assert max(highest.tolist()) <= made.height_bytes
    assert all(top >= held for top, held in zip(highest, one.held, strict=True))


# --- errors and findings --------------------------------------------------------------------------


def test_a_budget_below_every_sequence_names_the_value() -> None:
    values = (
        Value("x", 0, 100, resident=True),
        Value("a", 5, 64, (0,)),
        Value("big", 5, 256, (0, 1), scratch_bytes=10, output=True),
    )
    with pytest.raises(BudgetError, match="computing big alone takes 512 B") as caught:
        rematerialise(Schedule(values), 511)
    error = caught.value
    assert (error.needed_bytes, error.lower_bound_bytes, error.step) == (512, 512, 2)
    assert error.nodes == (("big", 256), ("x", 128), ("a", 64), ("scratch of big", 64))
    assert rematerialise(Schedule(values), 512).recipe.height_bytes == 512


def test_outputs_alone_may_be_too_large() -> None:
    values = (Value("a", 1, 64, output=True), Value("b", 1, 64, output=True))
    with pytest.raises(BudgetError, match="holding the outputs alone takes 128 B"):
        rematerialise(Schedule(values), 64)


def test_a_budget_that_no_sequence_was_found_for_names_one_that_works() -> None:
    """Two values that are read together at the end, each made through a large one."""
    plan = layered(60, 150, 1)
    budget = least_bytes(plan).size_bytes
    if attempt(plan, budget, steps=0) is None:
        with pytest.raises(BudgetError, match="use at least") as caught:
            rematerialise(plan, budget, max_steps=0)
        assert attempt(plan, caught.value.needed_bytes, steps=0) is not None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((Value("a", 1, 64), Value("a", 1, 64)), "used twice"),
        ((Value("a", -1, 64),), "negative"),
        ((Value("a", 1, 64, (0,)),), "does not come before"),
        ((Value("a", 1, 64), Value("b", 1, 64, (0,), resident=True)), "resident"),
    ],
)
def test_bad_schedules(values: tuple[Value, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(values)


def test_bad_alignment() -> None:
    with pytest.raises(ValueError, match="use 1 for none"):
        Schedule((), alignment=0)


def test_nothing_to_do() -> None:
    found = rematerialise(Schedule((Value("a", 1, 64), Value("x", 0, 64, resident=True))), 64)
    assert found.recipe.sequence == ()
    assert replay(found.recipe, 64) == []


def good() -> Recipe:
    values = (
        Value("x", 0, UNIT, resident=True, output=True),
        Value("a", 1, UNIT, (0,), scratch_bytes=UNIT),
        Value("b", 1, UNIT, (1,), output=True),
    )
    return rematerialise(Schedule(values), ROOMY).recipe


def test_replay_finds_what_is_wrong() -> None:
    right = good()
    assert replay(right, 3 * UNIT) == []
    outside = replace(right, offsets={**right.offsets, 1: 3 * UNIT})
    assert OutsideArena("a", 3 * UNIT) in replay(outside, 3 * UNIT)
    over_input = replace(right, offsets={**right.offsets, 2: right.offsets[1]})
    assert SelfOverlap("b", 1) in replay(over_input, 3 * UNIT)
    over_resident = replace(right, offsets={**right.offsets, 2: right.offsets[0]})
    assert BadRead("x", 2) in replay(over_resident, 3 * UNIT)
    over_scratch = replace(right, scratch_offsets={1: right.offsets[1]})
    assert SelfOverlap("a", 0) in replay(over_scratch, 3 * UNIT)
    forgotten = replace(right, sequence=(1, 2))
    forgotten.__dict__["stages"] = (Stage((1,), ()), Stage((2,), (2,)))
    assert replay(forgotten, 3 * UNIT) == [WrongStages(1)]


@pytest.mark.parametrize("module", [planner, recipe, repair, schedule, tape])
def test_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_a_tape_names_its_repeats() -> None:
    plan = chain(3)
    one = record(plan, (0, 1, 0, 2, 3, 4, 5))
    assert one.sequence == (0, 1, 0, 2, 3, 4, 5)
    assert one.repeats == (2,)
    assert one.without((2,)).sequence == plan.once
