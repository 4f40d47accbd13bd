"""Work that pauses gives what it gives at once, wherever it stands and whatever else goes on."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from tgbench.base.coords import origin_symbol, record, standing, value_of
from tgbench.runs.pausing import Paused, Pausing, at_once

U = origin_symbol(0)


def _counting(origin: int, count: int) -> Pausing[tuple[int, int]]:
    """How often a moving coordinate is below the next number, and how many guards that takes."""
    with record([origin]) as guards:
        below = 0
        for i in range(count):
            with standing([origin]):
                below += i > U
                yield
    return below, len(guards)


def test_two_works_in_turns_give_what_each_gives_at_once() -> None:
    works = [Paused(_counting(origin, 9)) for origin in (3, 5)]
    while not (works[0].go_on(lambda: True) & works[1].go_on(lambda: True)):
        with pytest.raises(IndexError):
            value_of(U)  # nobody stands anywhere outside
    assert [work.result for work in works] == [at_once(_counting(3, 9)), at_once(_counting(5, 9))]
    assert works[0].result[0] == 5


def test_guards_are_those_of_the_work_alone() -> None:
    work = Paused(_counting(3, 4))
    with record([100]) as guards:
        while not work.go_on(lambda: True):
            assert U > 50
    assert len(guards) == 1


def test_work_at_once_records_for_whoever_records() -> None:
    with record([3]) as guards:
        at_once(_counting(3, 4))
    assert len(guards) == 4


def test_work_that_is_given_up_leaves_others_where_they_stand() -> None:
    work = Paused(_counting(3, 9))
    work.go_on(lambda: True)
    with record([7]) as guards:
        del work
        gc.collect()
        assert value_of(U) == 7
        assert U > 5
    assert len(guards) == 1


def _raising() -> Generator[None, None, None]:
    with record([3]):
        yield
        raise KeyboardInterrupt


def test_whatever_stops_work_leaves_others_where_they_stand() -> None:
    for run in (at_once, lambda work: Paused(work).go_on(lambda: False)):
        with standing([7]), pytest.raises(KeyboardInterrupt):
            run(_raising())
        with standing([7]):
            with pytest.raises(KeyboardInterrupt):
                run(_raising())
            assert value_of(U) == 7


def test_it_goes_on_until_it_is_enough() -> None:
    left = iter([False, False, True, True])
    work = Paused(_counting(0, 9))
    assert not work.go_on(lambda: next(left))
    assert next(left)
    assert work.go_on(lambda: False)
    assert work.is_done
