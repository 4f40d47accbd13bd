"""What runs take beside a model, and what is done once besides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgbench.base import once
from tgbench.base.coords import origin_symbol
from tgbench.programs.pace import LEAST_RUNS, Pace
from tgbench.programs.program import SURE, Program
from tgbench.runs.work import Work


def program_of(rows: int) -> Program:
    """A program for what lies behind u0, by a model that says 1 µs a row."""
    work = Work()
    work.add((rows - origin_symbol(0),), lambda place: 1e3 * (rows - place[0]), (rows // 2,), None)
    return Program([], frozenset(), 0, {}, [], made_at=(rows // 2,), work=work)


def ran(program: Program, place: int, took_ns: float) -> None:
    program.origin = (place,)
    program.ran(int(took_ns))


def test_a_run_where_little_is_done_says_little_of_others() -> None:
    """Eight rows of 128 take as long as forty would, as they read as many weights."""
    program = program_of(128)
    for place in (64, 100, 110, 120, 90, 30, 120, 118):
        ran(program, place, 2e6 + 30e3 * (128 - place))
    for place in (0, 64, 120):
        right = 2e6 + 30e3 * (128 - place)
        assert program.takes_ns((place,)) == pytest.approx(right, rel=0.1)


def test_until_several_places_were_seen_it_goes_in_proportion() -> None:
    program = program_of(128)
    for _ in range(SURE + LEAST_RUNS + 2):
        ran(program, 64, 2e6)
    assert program.takes_ns((64,)) == pytest.approx(2e6)
    assert program.takes_ns((96,)) == pytest.approx(1e6)


@given(
    st.lists(st.tuples(st.integers(0, 126), st.floats(1e3, 1e9)), max_size=40),
    st.integers(0, 126), st.integers(0, 126),
)  # fmt: skip
@settings(max_examples=200)
def test_more_work_never_takes_less(runs: list[tuple[int, float]], first: int, second: int) -> None:
    """Whatever was measured, what is expected is finite, above 0, and grows with what is done."""
    program = program_of(128)
    for place, took_ns in runs:
        ran(program, place, took_ns)
    shares = [program.share((place,)) for place in sorted((first, second))]
    assert np.isfinite(shares).all()
    assert shares[0] >= shares[1] > 0.0
    assert program.share(program.made_at) == pytest.approx(1.0)


def test_a_run_that_others_disturbed_counts_for_little() -> None:
    pace = Pace()
    for work in (100.0, 200.0, 300.0, 150.0, 250.0):
        pace.note(work, 50.0 + work)
    before = pace.share(100.0, 300.0)
    pace.note(100.0, 1e9)
    assert pace.share(100.0, 300.0) == pytest.approx(before, rel=0.6)


def test_what_is_done_once_is_told_apart() -> None:
    before = once.SPENT.ns
    with once.doing():
        sum(range(200_000))
    spent = once.SPENT.ns - before
    assert spent > 0
    with pytest.raises(ZeroDivisionError), once.doing():
        _fail_late()
    assert once.SPENT.ns - before > spent  # what fails took its time, too


def _fail_late() -> None:
    sum(range(200_000))
    raise ZeroDivisionError
