"""The language of loops: compiled code does what Python does, and nothing else is taken."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite", reason="the loops are compiled by LLVM (the extra `cpu`)")

from tgbench.memory.packing.compiled import CompiledLoop, loop

WIDTH = 3
TEXTS = count()
integers = st.integers(-9, 9)
rows = st.lists(integers, min_size=1, max_size=9)


def written(lines: Sequence[str]) -> CompiledLoop:
    """The function f of a text. Its source is looked up, so it gets the place of a file."""
    name, text = f"<loop {next(TEXTS)}>", [f"{line}\n" for line in lines]
    linecache.cache[name] = (len(text), None, text, name)
    names: dict[str, Any] = {"np": np, "WIDTH": WIDTH, "both": both}
    exec(compile("".join(text), name, "exec"), names)
    return loop(names["f"])


# --- expressions at random ---


def sums(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*&|^"), inner),
        st.builds("({} % {})".format, inner, st.sampled_from(["3", "-5"])),
        st.builds("({} {} {})".format, inner, st.sampled_from(["<<", ">>"]), st.just("2")),
        st.builds("(-{})".format, inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("({} if {} else {})".format, inner, truths(inner), inner),
        st.builds("({} + {})".format, inner, truths(inner)),
        st.builds("np.int64({} / 8 - float({}))".format, inner, inner),
    )


def truths(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Comparisons, of floats too, and what joins them; two of them to a side at most."""
    signs = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    compared = st.builds("({} {} {})".format, inner, signs, inner)
    halves = st.builds("({} / 2 {} {})".format, inner, signs, inner)
    one = compared | halves
    joined = st.builds("({} {} {})".format, one, st.sampled_from(["and", "or", "&", "|"]), one)
    return one | joined | st.builds("(not {})".format, joined)


LEAVES = ["a", "b", "x[0]", "x[len(x) - 1]", "WIDTH", "2", "-1", "len(x)"]
expressions = st.recursive(st.sampled_from(LEAVES), sums, max_leaves=10)


@settings(deadline=None, max_examples=60)
@given(expressions, integers, integers, rows)
def test_expressions_are_worth_what_they_are_in_python(
    expression: str, a: int, b: int, x: list[int]
) -> None:
    own = written(["def f(a, b, x):", f"    return {expression}"])
    assert own(a, b, np.array(x)) == own.function(a, b, np.array(x))


# --- statements ---


@loop
def sort(x):
    """By insertion; returns how many moved."""
    moved = 0
    for i in range(1, len(x)):
        value, j = x[i], i - 1
        while j >= 0 and x[j] > value:
            x[j + 1] = x[j]
            j -= 1
        moved += j + 1 < i
        x[j + 1] = value
    return moved


@loop
def first_gap(x, longest):
    """The first place from the end where a number is no larger than its place, or -1."""
    for i in range(len(x) - 1, -1, -1):
        at = i
        while at < longest:
            if x[i] > at:
                at += 1
                continue
            if x[i] < 0:
                break
            return i
        else:
            x[i] = 100
        i = 0  # the range goes on
    return -1


@loop
def both(x, y):
    """Two values: for other loops alone."""
    if x < y:
        return y - x, True
    return x - y, False


@loop
def distance(x, y):
    apart, is_above = both(x, y)
    if is_above:
        apart += 100
    return apart


@loop
def columns(table, sums, marks):
    """Sums of columns; rows with something in them are marked."""
    for i in range(len(table)):
        row = table[i]
        for j in range(WIDTH):
            sums[j] += row[j]
            marks[i] |= row[j] != 0 and table[i, j] > -5
    sums[0] = sums[0] / 4 if sums[0] > 1 else np.inf


@loop
def mixed(x, key):
    """Unsigned arithmetic wraps, and shifts bring zeros."""
    one = np.uint64(7)
    for i in range(len(x)):
        one = (one ^ np.uint64(x[i])) * np.uint64(0x9E3779B97F4A7C15)
        one ^= one >> np.uint64(29)
    key[0], key[1] = one, np.uint64(np.int64(one) < 0)


@settings(deadline=None)
@given(rows)
def test_a_sort_sorts(x: list[int]) -> None:
    given = np.array(x)
    moved = sort(given)
    again = np.array(x)
    assert moved == sort.function(again)
    assert given.tolist() == again.tolist() == sorted(x)


@settings(deadline=None)
@given(rows, st.integers(0, 9))
def test_loops_end_where_they_do_in_python(x: list[int], longest: int) -> None:
    ours, theirs = np.array(x), np.array(x)
    assert first_gap(ours, longest) == first_gap.function(theirs, longest)
    assert ours.tolist() == theirs.tolist()


@settings(deadline=None)
@given(integers, integers)
def test_a_loop_takes_two_values_from_another(x: int, y: int) -> None:
    assert distance(x, y) == abs(x - y) + 100 * (x < y)


@settings(deadline=None)
@given(st.lists(st.tuples(integers, integers, integers), max_size=5))
def test_rows_are_rows_of_their_array(table: list[tuple[int, int, int]]) -> None:
    found = []
    for run in (columns, columns.function):
        sums, marks = np.zeros(WIDTH), np.zeros(len(table), np.uint8)
        run(np.array(table, np.int64).reshape(-1, WIDTH), sums, marks)
        found.append((sums.tolist(), marks.tolist()))
    assert found[0] == found[1]


@settings(deadline=None)
@given(st.lists(st.integers(0, (1 << 62)), max_size=5))
def test_unsigned_numbers_wrap(x: list[int]) -> None:
    key, wrapped = np.zeros(2, np.uint64), 7
    mixed(np.array(x, np.int64), key)
    for value in x:
        wrapped = (wrapped ^ value) * 0x9E3779B97F4A7C15 % (1 << 64)
        wrapped ^= wrapped >> 29
    assert key.tolist() == [wrapped, wrapped >> 63]


# --- what is not in the language ---


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["return sum(x)"], "`sum(x)` is not in the language"),
        (["return 0 < a < 3"], "`0 < a < 3` is not in the language"),
        (["return a is x"], "`a is x` is not in the language"),
        (["return x[1:]"], "is not in the language"),
        (["return a // 2"], "FloorDiv of int64"),
        (["return x[0, 0]"], "2 indices into 1 axes"),
        (["for i in range(0, 9, 2):", "    a += i"], "`2` is not in the language"),
        (["with a:", "    pass"], "is not in the language"),
        (["b = a", "b = 0.5"], "f: float64 where int64 is kept"),
        (["return np.uint64(a) + a"], "uint64 together with int64"),
        (["return 1 if a else 0.5"], "none of which is kept"),
        (["x = a"], "x is another array already"),
        (["if a:", "    return 1"], "returns 1 values, and 0"),
        (["return x"], "is not in the language"),
        (["return missing"], "`missing` is not in the language"),
        (["both(a)"], "takes 2 arguments, not 1"),
        (["return a, a"], "returns more than an integer or a truth"),
        (["return a / 2"], "returns more than an integer or a truth"),
    ],
)
def test_what_is_not_in_the_language_is_refused(lines: list[str], says: str) -> None:
    own = written(["def f(a, x):", *(f"    {line}" for line in lines)])
    with pytest.raises(TypeError) as error:
        own(1, np.zeros(3, np.int64))
    assert says in str(error.value)


def test_an_error_says_where_it_is() -> None:
    own = written(["# a line", "def f(a):", "    a += 1", "    return a ** 2"])
    with pytest.raises(TypeError, match=r"<loop \d+>:4, f: Pow of int64"):
        own(1)


@pytest.mark.parametrize(
    "given",
    [np.zeros(8, np.int64)[::2], np.zeros(3, np.float32), np.zeros((2, 2, 2), np.int64), 0.5, "a"],
)
def test_arguments_that_no_loop_holds_are_refused(given: Any) -> None:
    with pytest.raises(TypeError):
        sort(given)
