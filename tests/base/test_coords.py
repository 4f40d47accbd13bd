"""Moving coordinates: integers at one origin, and right at every other that the guards allow."""

from __future__ import annotations

import doctest
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgbench.base import coords
from tgbench.base.coords import (
    Domain,
    Guard,
    Moving,
    Table,
    at,
    fixed,
    lookup,
    origin_symbol,
    record,
    same,
    standing,
    value_of,
)
from tgbench.base.memo import ELSEWHERE, Memo

TABLES = (
    tuple(range(12)),
    (0,) * 12,
    (0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    (5, 3, 1, -1, -1, -1, 4, 4, 9, 0, 0, 1),
)

# A program is a list of instructions (name, operand, operand, number) over its earlier results;
# the first two results are the origin itself.
NAMES = (
    "add", "sub", "neg", "times", "product", "floor", "mod", "min", "max", "pick", "same",
    "lookup", "plus_number", "number_minus", "truth", "number", "less_number",
)  # fmt: skip
instructions = st.tuples(
    st.sampled_from(NAMES), st.integers(0, 30), st.integers(0, 30), st.integers(-4, 4)
)
programs = st.lists(instructions, min_size=1, max_size=10)
origins = st.tuples(st.integers(0, 11), st.integers(0, 11))


def execute(program: Any, start: tuple[Any, Any]) -> list[Any]:
    """Every result of a straight-line program, on numbers or on moving coordinates."""
    results: list[Any] = list(start)
    for name, i, j, number in program:
        a, b = results[i % len(results)], results[j % len(results)]
        results.append(STEPS[name](a, b, number))
    return results


def _lookup(a: Any, b: Any, number: int) -> Any:
    table = TABLES[number % len(TABLES)]
    return lookup(Table(table), a) if a >= 0 and a < len(table) else a


STEPS: dict[str, Callable[[Any, Any, int], Any]] = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "neg": lambda a, b, n: -a,
    "times": lambda a, b, n: a * n,
    "product": lambda a, b, n: a * b if a < 50 and b < 50 else a,
    "floor": lambda a, b, n: a // (abs(n) + 1),
    "mod": lambda a, b, n: a % (abs(n) + 1),
    "min": lambda a, b, n: a if a <= b else b,
    "max": lambda a, b, n: a if a >= b else b,
    "pick": lambda a, b, n: a + 1 if a < b else (b - 1 if a > b else n),
    "same": lambda a, b, n: 1 if same(a, b) else 0,
    "lookup": _lookup,
    "plus_number": lambda a, b, n: n + a,
    "number_minus": lambda a, b, n: n - a,
    "truth": lambda a, b, n: b if a else n,
    "number": lambda a, b, n: int(a) + b,
    "less_number": lambda a, b, n: a if n < a else b,
}


def moving() -> tuple[Moving, Moving]:
    return origin_symbol(0), origin_symbol(1)


@given(programs, origins)
def test_arithmetic_is_that_of_the_present_numbers(program: Any, origin: tuple[int, int]) -> None:
    with record(origin) as guards:
        found = execute(program, moving())
        assert [value_of(result) for result in found] == execute(program, origin)
    assert [at(result, origin) for result in found] == execute(program, origin)
    assert Domain(guards).holds(origin)


@given(programs, origins)
def test_guards_make_every_result_right_elsewhere(program: Any, origin: tuple[int, int]) -> None:
    with record(origin) as guards:
        found = execute(program, moving())
    for u in range(12):
        for v in range(12):
            if Domain(guards).holds((u, v)):
                assert [at(result, (u, v)) for result in found] == execute(program, (u, v))


@given(programs, origins)
def test_forms_with_fixed_entries_are_those_numbers(program: Any, origin: tuple[int, int]) -> None:
    with record(origin) as guards:
        found = execute(program, moving())
    placed = [fixed(result, {0: origin[0]}) for result in found]
    for v in range(12):
        if Domain(guards).holds((origin[0], v)):
            expected = [at(result, (origin[0], v)) for result in found]
            assert [at(result, (-99, v)) for result in placed] == expected
    assert [fixed(result, dict(enumerate(origin))) for result in found] == execute(program, origin)


def test_entries_stand_where_guards_leave_one_value() -> None:
    u, v = moving()
    with record((4, 7)) as guards:
        assert u < 5
        assert v < 8
        assert v >= 7
    assert list(Domain(guards).fixed) == [1]
    with record((4, 7)) as guards:
        u.pin()
    assert list(Domain(guards).fixed) == [0]


def test_a_straight_decision_holds_on_a_whole_range() -> None:
    with record([130]) as guards:
        low = max(0, origin_symbol(0) - 511)
    assert low == 0
    assert [Domain(guards).holds([u]) for u in (0, 511, 512)] == [True, True, False]


def test_divisible_forms_stay_forms() -> None:
    u = origin_symbol(0)
    with record([3]) as guards:
        row, inside = (u * 8 + 5) // 8, (u * 8 + 5) % 8
    assert guards == set()
    assert (at(row, [7]), inside) == (7, 5)


@pytest.mark.parametrize("u", range(8))
def test_a_stride_keeps_the_form_wherever_the_residue_is_the_same(u: int) -> None:
    with record([u]) as guards:
        row = (origin_symbol(0) + 3) // 4
        half = (row + 1) // 2
    domain = Domain(guards)
    alike = [v for v in range(64) if domain.holds([v])]
    assert alike == list(range(u % 8, 64, 8))
    assert [at(row, [v]) for v in alike] == [(v + 3) // 4 for v in alike]
    assert [at(half, [v]) for v in alike] == [((v + 3) // 4 + 1) // 2 for v in alike]
    assert half * 8 + (u - at(half, [u]) * 8) == origin_symbol(0)  # in lowest terms


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("i", range(12))
def test_lookup_follows_the_straight_piece(table: tuple[int, ...], i: int) -> None:
    with record([i]) as guards:
        found = lookup(Table(table), origin_symbol(0))
    allowed = [u for u in range(-3, 15) if Domain(guards).holds([u])]
    assert i in allowed
    assert all(0 <= u < len(table) and at(found, [u]) == table[u] for u in allowed)


def test_lookup_keeps_long_pieces() -> None:
    with record([4]) as guards:
        lookup(Table(tuple(range(12))), origin_symbol(0))
    assert sum(Domain(guards).holds([u]) for u in range(-3, 15)) == 12


def test_memo_replays_its_guards() -> None:
    calls = []

    def halve(a: Any) -> Any:
        calls.append(a)
        return a if a < 5 else 5

    memo, u = Memo(), origin_symbol(0)
    with record([3]) as first:
        memo.get(("halve", u), halve, u)
    with record([3]) as second:
        memo.get(("halve", u), halve, u)
    assert len(calls) == 1
    assert first == second == {Guard(4, ((0, -1),))}
    with record([3]) as outer, record([3]):
        memo.get(("halve", u), halve, u)
    assert outer == first


def test_a_memo_finds_an_answer_again_wherever_its_guards_hold() -> None:
    memo, u, calls = Memo(), origin_symbol(0), []

    def asked(at: int) -> Any:
        with standing([at]):
            return value_of(memo.get(u, lambda: calls.append(at) or (u if u < 5 else 5)))

    assert [asked(at) for at in (3, 7, 4, 9, 0, 5)] == [3, 5, 4, 5, 0, 5]
    assert calls == [3, 7]


@given(programs, st.lists(origins, min_size=1, max_size=6))
def test_what_a_memo_knows_of_other_places_changes_nothing(program: Any, places: Any) -> None:
    memo = Memo()
    for origin in places:
        with record(origin) as alone:
            found = execute(program, moving())
        with record(origin) as guards:
            known = memo.get("all of it", execute, program, moving())
        assert [at(one, origin) for one in known] == [at(one, origin) for one in found]
        assert Domain(guards).holds(origin)
        assert bool(guards) == bool(alone)


def test_a_memo_looks_through_few_answers_and_forgets_when_it_is_full() -> None:
    memo, u = Memo(most=20), origin_symbol(0)
    for at_ in range(50):
        with standing([at_]):
            assert value_of(memo.get(u, u.pin)) == at_
        assert memo.size <= 20
        assert sum(len(found.results) for found in memo.entries.values()) <= ELSEWHERE


def test_nobody_stands_anywhere_outside_a_block() -> None:
    with pytest.raises(IndexError):
        value_of(origin_symbol(0))


def test_a_raising_block_still_reports_its_guards() -> None:
    def fail() -> None:
        with record([3]):
            assert origin_symbol(0) < 5
            raise RuntimeError

    with record([3]) as outer, pytest.raises(RuntimeError):
        fail()
    assert outer == {Guard(4, ((0, -1),))}
    with standing([1]):
        assert origin_symbol(0) < 2  # nobody listens: no error


def test_threads_record_apart() -> None:
    seen: list[set[Guard]] = []

    def elsewhere() -> None:
        with record([3]) as guards:
            assert origin_symbol(0) < 9
        seen.append(guards)

    with record([99]) as mine:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert mine == set()
    assert seen == [{Guard(8, ((0, -1),))}]


def test_equality_is_of_forms_and_same_is_of_numbers() -> None:
    u, v = moving()
    assert u != v
    assert u != 3
    assert len({u, origin_symbol(0)}) == 1
    with record((3, 3)) as guards:
        assert same(u, v)
    assert Domain(guards).holds((8, 8))
    assert not Domain(guards).holds((8, 7))


def test_forms_print() -> None:
    u = origin_symbol(0)
    assert [repr(form) for form in (u, u + 1, u * 2 - 1)] == ["u0", "u0+1", "2·u0-1"]


def test_examples() -> None:
    assert doctest.testmod(coords).failed == 0
