"""What the garbage collector is told comes to an end, whatever stops it in between."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from interrupts.injecting import Injector, Point, places

import tgbench as tg
from tgbench.base import collector
from tgbench.base.collector import FEW, collect_dropped, lasting, tend, unseen
from tgbench.session import running


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """The collector as a process has it, before and after."""
    gc.unfreeze()
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() < FEW


def make() -> list[object]:
    with lasting():
        assert not gc.isenabled()
        return [object() for _ in range(10)]


def test_the_collector_works_again_behind_it() -> None:
    assert len(make()) == 10


def test_what_a_process_keeps_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        make()
        # Other threads may let some of them go meanwhile.
        assert abs(gc.get_freeze_count() - count) < count / 10
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_so() -> None:
    gc.disable()
    with lasting():
        pass
    assert not gc.isenabled()
    gc.enable()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_whatever_stops_it_the_next_one_mends_it(error: type[BaseException]) -> None:
    """At every bytecode; once, `finally` was left before the collector was on again."""
    collector._Unseen.all = 0
    files = ("/tgbench/base/collector.py", "/contextlib.py")
    found = [place for place in places(make) if place.code.co_filename.endswith(files)]
    assert len(found) > 100
    for place in found:
        collector._Unseen.all = 0
        with pytest.raises(error):
            Injector(Point(place, 0), error).call(make)
        make()
        assert gc.isenabled()
        assert gc.get_freeze_count() < FEW, str(place)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_stops_what_is_made_leaves_it_on(error: type[BaseException]) -> None:
    with pytest.raises(error), lasting():
        raise error
    assert gc.isenabled()


def test_a_session_that_is_made_looks_for_dropped_ones() -> None:
    collector._Unseen.made, collector._Unseen.all = 3, 10
    collect_dropped()
    assert (collector._Unseen.made, collector._Unseen.all) == (0, 0)


def test_no_later_run_looks_at_what_was_made_for_the_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []

    @contextmanager
    def told() -> Iterator[None]:
        with lasting():
            yield
        runs.append(session.counters.runs)

    monkeypatch.setattr(running, "lasting", told)
    g = tg.GraphBuilder()
    g.output("y", tg.ops.tanh(g.input("x", (8, 8)) @ g.parameter("w", (8, 8))))
    session = tg.GraphSession(g.build(), {"w": np.eye(8, dtype=np.float32)}, calibrate=False)
    for i in range(3):
        session.run(np.full((8, 8), i, np.float32))
    assert runs == [1]


def rest() -> int:
    with unseen():
        return gc.get_freeze_count()


def test_what_was_there_is_unseen_while_a_block_runs() -> None:
    with unseen():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > FEW
    assert gc.isenabled()
    assert gc.get_freeze_count() < FEW
    gc.freeze()
    try:
        rest()
        assert gc.get_freeze_count() > FEW
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_an_interrupt_leaves_unseen_is_let_go(error: type[BaseException]) -> None:
    files = ("/tgbench/base/collector.py", "/contextlib.py")
    found = [place for place in places(rest) if place.code.co_filename.endswith(files)]
    assert len(found) > 50
    for place in found:
        with pytest.raises(error):
            Injector(Point(place, 0), error).call(rest)
        rest()
        assert gc.isenabled(), str(place)
        assert gc.get_freeze_count() < FEW, str(place)


class Circle:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_is_dropped_inside_goes_when_that_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MOST_YOUNG", 1_000)
    with unseen():
        gone = weakref.ref(Circle())
        tend()
        assert gone() is not None
        kept = [[] for _ in range(2_000)]
        tend()
        assert gone() is None
    assert len(kept) == 2_000
    tend()  # outside it does nothing
