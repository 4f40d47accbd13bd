"""Rematerialisation against an exact optimum, live bytes by definition, the online policies."""

from __future__ import annotations

import doctest
import heapq
import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.remat import layered
from tgbench.base.errors import BudgetError
from tgbench.base.stopping import StopReason
from tgbench.memory.remat import (
    POLICIES,
    Rematerialisation,
    Schedule,
    Value,
    least_bytes,
    planner,
    rematerialise,
    repair,
    schedule,
    simulate,
    tape,
    tightest,
)
from tgbench.memory.remat.repair import Taste, vacuum
from tgbench.memory.remat.tape import record

UNIT = 64
ROOMY = 10**9


@st.composite
def schedules(draw: st.DrawFn, most: int = 8) -> Schedule:
    """Random graphs: some sources resident, some with scratch, some in place; any outputs."""
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
                over=tuple(i for i in inputs if not values[i].output and draw(st.booleans())),
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
        for over in value.over:
            same = rounded[over] == rounded[i] and over not in resident
            if same and sum(rounded[j] for j in held) + scratch <= budget_bytes:
                yield held - {over} | {i}, value.cost_ns


def peak_of_once(plan: Schedule) -> int:
    return record(plan, plan.once).peak_bytes


def attempt(plan: Schedule, budget_bytes: int, steps: int = 20) -> Rematerialisation | None:
    try:
        return rematerialise(plan, budget_bytes, max_steps=steps)
    except BudgetError:
        return None


@settings(max_examples=120)
@given(schedules(), st.integers(0, 4))
def test_never_below_the_optimum(plan: Schedule, less: int) -> None:
    budget = max(least_bytes(plan).size_bytes, peak_of_once(plan) - less * UNIT)
    least = optimum(plan, budget)
    found = attempt(plan, budget)
    if least is None:
        assert found is None
    elif found is not None:
        assert found.tape.cost_ns >= least
        assert max(live_bytes(plan, found.tape.sequence), default=0) <= budget


def test_the_optimum_is_found() -> None:
    """Ten values, at every budget between what is needed and what is easy."""
    compared = 0
    for seed in range(12):
        plan = skipping(seed, 10)
        for budget in range(least_bytes(plan).size_bytes, peak_of_once(plan), UNIT):
            least = optimum(plan, budget)
            found = attempt(plan, budget)
            assert (least is None) == (found is None)
            if found is not None:
                assert found.tape.cost_ns == least
                compared += 1
    assert compared > 40


# --- against the policies -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
def test_never_worse_than_an_online_policy(seed: int, share: float) -> None:
    plan = skipping(seed, 30)
    budget = max(least_bytes(plan).size_bytes, int(share * peak_of_once(plan)))
    found = attempt(plan, budget, steps=0)
    for name, policy in POLICIES.items():
        sequence = simulate(plan, budget, policy, limit_ns=8 * plan.least_cost_ns)
        if policy.online and sequence is not None:
            assert found is not None, name
            assert found.tape.cost_ns <= plan.cost_ns(sequence), name


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
    costs = [one.tape.cost_ns for one in found]
    assert costs == sorted(costs, reverse=True)
    again = rematerialise(plan, budget, max_steps=40, seed=5)
    assert (again.tape.sequence, again.history) == (found[-1].tape.sequence, found[-1].history)
    assert found[-1].history[: len(found[0].history)] == found[0].history


def test_nothing_is_computed_twice_where_there_is_room() -> None:
    plan = chain(5)
    found = rematerialise(plan, ROOMY, max_steps=10)
    assert found.tape.sequence == plan.once
    assert (found.stop, found.steps, found.tape.extra) == (StopReason.OPTIMAL, 0, 0.0)
    assert str(found).endswith("in 384 B; nothing is computed twice after 0 steps (seed 0)")


def test_a_chain_keeps_every_other_value() -> None:
    small = chain(5)
    assert optimum(small, 5 * UNIT) == rematerialise(small, 5 * UNIT, max_steps=20).tape.cost_ns
    found = rematerialise(chain(9), 8 * UNIT, max_steps=50)
    assert found.tape.peak_bytes <= 8 * UNIT
    assert 0 < found.tape.extra < 0.5


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
    assert found.tape.sequence == (0, 2, 3, 1, 4)
    assert found.tape.extra == 0


# --- tapes, repairs -------------------------------------------------------------------------------


def live_bytes(plan: Schedule, sequence: tuple[int, ...]) -> list[int]:
    """Bytes at each step, from the definition: who is read before it is computed again?"""
    found = []
    for step, value in enumerate(sequence):
        total = plan.scratch[value] + plan.resident_bytes
        for other, size in enumerate(plan.sizes):
            if other in sequence[: step + 1] and not plan.values[other].resident:
                total += size * (other == value or _read_again(plan, sequence, step, other))
        over = any(not _read_later(plan, sequence, step, other) for other in plan.over[value])
        found.append(total - plan.sizes[value] * over)
    return found


def _read_again(plan: Schedule, sequence: tuple[int, ...], step: int, value: int) -> bool:
    """Whether what is there of a value is read at this step or later."""
    read_now = value in plan.inputs[sequence[step]]
    return read_now or _read_later(plan, sequence, step, value)


def _read_later(plan: Schedule, sequence: tuple[int, ...], step: int, value: int) -> bool:
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


def test_a_result_takes_over_what_is_read_last_there() -> None:
    """c is written over b when it is made first, and beside it when b is read once more."""
    values = (
        Value("a", 1, UNIT),
        Value("b", 1, UNIT, (0,)),
        Value("c", 1, UNIT, (1,), over=(1,)),
        Value("d", 1, UNIT, (1, 2), output=True),
    )
    kept, again = (
        record(Schedule(values), (0, 1, 2, 3)),
        record(Schedule(values), (0, 1, 2, 0, 1, 3)),
    )
    assert (kept.held // UNIT).tolist() == [1, 2, 2, 3]
    assert (again.held // UNIT).tolist() == [1, 2, 1, 2, 3, 3]
    assert again.taken == {2: 1}
    assert str(again) == "6 computations, 2 of them repeated: 50.00% extra time in 192 B"


def test_the_tightest_tape_needs_what_one_value_reads() -> None:
    plan = chain(12)
    found = tightest(plan)
    assert found.peak_bytes < peak_of_once(plan) / 2
    assert found.peak_bytes >= least_bytes(plan).size_bytes
    assert max(live_bytes(plan, found.sequence)) == found.peak_bytes


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


# --- errors and findings --------------------------------------------------------------------------


def test_a_budget_below_every_sequence_names_the_value() -> None:
    values = (
        Value("x", 0, 100, resident=True),
        Value("a", 5, 64, (0,)),
        Value("big", 5, 256, (0, 1), scratch_bytes=10, output=True),
    )
    with pytest.raises(BudgetError, match="computing big alone takes 512 B") as caught:
        rematerialise(Schedule(values), 511, max_steps=0)
    error = caught.value
    assert (error.needed_bytes, error.lower_bound_bytes, error.step) == (512, 512, 2)
    assert error.nodes == (("big", 256), ("x", 128), ("a", 64), ("scratch of big", 64))
    assert rematerialise(Schedule(values), 512, max_steps=0).tape.peak_bytes == 512


def test_outputs_alone_may_be_too_large() -> None:
    values = (Value("a", 1, 64, output=True), Value("b", 1, 64, output=True))
    with pytest.raises(BudgetError, match="holding the outputs alone takes 128 B"):
        rematerialise(Schedule(values), 64, max_steps=0)


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
    plan = Schedule((Value("a", 1, 64), Value("x", 0, 64, resident=True)))
    assert rematerialise(plan, 64, max_steps=0).tape.sequence == ()


@pytest.mark.parametrize("module", [planner, repair, schedule, tape])
def test_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_a_tape_names_its_repeats() -> None:
    plan = chain(3)
    one = record(plan, (0, 1, 0, 2, 3, 4, 5))
    assert one.sequence == (0, 1, 0, 2, 3, 4, 5)
    assert one.repeats == (2,)
    assert one.without((2,)).sequence == plan.once
