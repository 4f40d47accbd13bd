"""Threads are kept off their caller's processor while it computes, and nobody else is told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import threads
from tgbench.base.machine import usable_cores
from tgbench.kernels.apart import LASTS_NS, WORTH, Apart, Linux, apart, helpers
from tgbench.kernels.openmp import runtime, workers
from tgbench.kernels.waiting import LEAST_NS, Waiting

ALL = frozenset(range(4))
gnus = pytest.mark.skipif(
    runtime() is None or usable_cores() < 2, reason="another OpenMP, or one core"
)


class Machine:
    """Threads 1 to 3, and what they are allowed; telling one takes 10 µs."""

    def __init__(self, here: int = 0) -> None:
        self.at, self.allows = here, dict.fromkeys((1, 2, 3), ALL)
        self.told, self.now = list[int](), 0
        self.apart = Apart(self, lambda: (1, 2), lambda: (3,), lambda: self.now)

    def here(self) -> int:
        return self.at

    def allowed(self, thread: int) -> frozenset[int]:
        if thread not in self.allows:
            raise ProcessLookupError(thread)
        return self.allows[thread]

    def allow(self, thread: int, processors: frozenset[int]) -> None:
        self.allowed(thread)
        assert processors, "the system refuses that"
        self.now += 10_000
        self.told.append(thread)
        self.allows[thread] = processors


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


@pytest.mark.parametrize("by_team", [False, True])
def test_off_the_callers_processor_and_back(by_team: bool) -> None:
    machine = Machine(here=2)
    assert machine.apart.begins(by_team)
    moved = {one for one, free in machine.allows.items() if free == ALL - {2}}
    assert moved == ({3} if by_team else {1, 2})
    machine.apart.ends()
    assert set(machine.allows.values()) == {ALL}


def test_who_is_bound_stays_there() -> None:
    machine = Machine()
    machine.allows[1], machine.allows[2] = frozenset({0}), frozenset({3})
    before = dict(machine.allows)
    machine.apart.begins(by_team=False)
    assert machine.allows == before
    machine.apart.ends()
    assert machine.allows == before
    assert not machine.told


def test_not_where_there_are_no_more_processors_than_threads() -> None:
    machine = Machine()
    machine.allows[1] = machine.allows[2] = frozenset({0, 1})
    machine.apart.begins(by_team=False)
    assert not machine.told


def test_one_thread_has_nobody() -> None:
    machine = Machine()
    with threads(1):
        assert not machine.apart.begins(by_team=False)
    assert not machine.told


def test_runs_that_take_little_are_not_worth_it() -> None:
    machine = Machine()
    assert machine.apart.begins(by_team=True, usual_ns=1)  # what telling takes is not known yet
    machine.apart.ends()
    assert not machine.apart.begins(by_team=True, usual_ns=WORTH * 20_000 - 1)
    assert machine.apart.begins(by_team=True, usual_ns=WORTH * 20_000)


def test_what_an_interrupt_put_off_is_made_up_for() -> None:
    machine = Machine(here=1)
    machine.apart.begins(by_team=False)
    machine.at = 3
    machine.apart.begins(by_team=False)
    assert machine.allows[1] == ALL - {3}
    machine.apart.ends()
    assert set(machine.allows.values()) == {ALL}


def test_threads_that_ended_are_looked_for_anew() -> None:
    machine, found = Machine(), [(1, 2), (1, 3)]
    machine.apart = Apart(machine, lambda: found.pop(0), lambda: ())
    machine.apart.begins(by_team=False)
    machine.apart.ends()
    del machine.allows[2]
    for _ in range(2):
        machine.apart.begins(by_team=False)
        machine.apart.ends()
    assert not found
    assert machine.told[-2:] == [1, 3]
    assert set(machine.allows.values()) == {ALL}


def test_another_number_of_threads_are_others() -> None:
    machine, asked = Machine(), list[int]()

    def found() -> Collection[int]:
        asked.append(torch.get_num_threads())
        return (1,)

    machine.apart = Apart(machine, found, lambda: ())
    for count in (2, 2, 3, 3):
        with threads(count):
            machine.apart.begins(by_team=False)
            machine.apart.ends()
    assert asked == [2, 3]


def test_callers_have_threads_of_their_own() -> None:
    own = {threading.get_ident(): (1,)}
    machine = Machine()
    machine.apart = Apart(machine, lambda: own.get(threading.get_ident(), (2,)), lambda: ())
    machine.apart.begins(by_team=False)
    with ThreadPoolExecutor(1) as other:
        other.submit(machine.apart.begins, False).result()
        assert machine.told == [1, 2]
        other.submit(machine.apart.ends).result()
    assert (machine.allows[1], machine.allows[2]) == (ALL - {0}, ALL)
    machine.apart.ends()
    assert machine.allows[1] == ALL


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=12),
    st.lists(st.frozensets(st.integers(0, 3), min_size=1), min_size=3, max_size=3),
)
def test_all_are_where_they_were_whatever_happens(
    runs: list[tuple[int, bool, bool]], allowed: list[frozenset[int]]
) -> None:
    with threads(2):
        machine = Machine()
        machine.allows = dict(zip((1, 2, 3), allowed, strict=True))
        before = dict(machine.allows)
        for here, by_team, is_interrupted in runs:
            machine.at = here
            if machine.apart.begins(by_team) and not is_interrupted:
                machine.apart.ends()
        machine.apart.ends()
        assert machine.allows == before


# --- when ----------------------------------------------------------------------------------------


def test_for_a_while_after_threads_were_found_waiting() -> None:
    machine, waited = Machine(), 0
    machine.now = 1
    waiting = Waiting(lambda: waited, lambda seconds: None, keep_apart=machine.apart.keep)
    with machine.apart.during(by_team=False):
        assert not machine.told
    waiting.begins(time.perf_counter_ns())
    waited = LEAST_NS
    waiting.ends(LEAST_NS)
    with machine.apart.during(by_team=False):
        assert machine.allows[1] == ALL - {0}
    assert machine.allows[1] == ALL
    machine.now += 2 * LASTS_NS
    machine.told.clear()
    with machine.apart.during(by_team=False):
        assert not machine.told


def test_before_threads_sleep_they_are_kept_apart() -> None:
    machine, slept = Machine(), list[float]()
    machine.now = 1
    waiting = Waiting(lambda: 0, slept.append, keep_apart=machine.apart.keep)  # type: ignore
    waiting.note(is_contended=True)
    assert machine.apart.until_ns
    assert not slept
    waiting.note(is_contended=True)  # although they are
    assert slept


def test_nobody_is_told_where_the_system_does_not_say() -> None:
    nowhere = Apart(None)
    assert not nowhere.keep()
    assert not nowhere.begins(by_team=False)
    nowhere.ends()


# --- Linux ---------------------------------------------------------------------------------------


@gnus
def test_threads_of_the_library_are_found_and_moved() -> None:
    torch.ones(1 << 18).add_(1)
    found = workers()
    assert len(found) == 1
    [worker] = found
    assert os.path.exists(f"/proc/self/task/{worker}")
    system = Linux()
    free, kept = system.allowed(worker), Apart(system)
    assert kept.begins(by_team=False)
    assert system.allowed(worker) == free - {system.here()} or free != system.allowed(0)
    kept.ends()
    assert system.allowed(worker) == free


@gnus
def test_runs_of_a_session_keep_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call computes; not before, and not afterwards."""
    from tests.kernels.test_waiting import network, session

    made, x, [worker] = session(network()), np.zeros((1, 8, 32, 32), np.float32), workers()
    free, seen = os.sched_getaffinity(worker), list[set[int]]()
    made.run({"x": x})
    execute = made.runner.execute

    def looking(*arguments: object) -> object:
        seen.append(os.sched_getaffinity(worker))
        return execute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(made.runner, "execute", looking)
    monkeypatch.setattr(apart(), "until_ns", 0)
    made.run({"x": x + 1})
    assert seen.pop() == free
    apart().keep()
    monkeypatch.setattr("tgbench.kernels.apart.WORTH", 0)
    made.run({"x": x + 2})
    assert len(seen.pop()) == len(free) - 1
    assert os.sched_getaffinity(worker) == free
    monkeypatch.setattr(made.runner, "execute", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.run({"x": x + 3})
    assert os.sched_getaffinity(worker) == free


def test_helpers_of_a_team_are_known() -> None:
    pytest.importorskip("numba")
    from tgbench.kernels.numba.team import _team

    _team(os.getpid())
    until = time.monotonic() + 30
    while not helpers() and time.monotonic() < until:
        time.sleep(0.01)
    assert all(os.path.exists(f"/proc/self/task/{one}") for one in helpers())
    assert len(helpers()) >= max(1, (os.cpu_count() or 1) - 1)


def test_a_session_says_what_it_always_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results while threads are kept apart are those of any time."""
    from tests.kernels.test_waiting import network, session

    one, other = session(network(), exact="bitwise"), session(network(), exact="bitwise")
    x = np.random.default_rng(0).normal(size=(1, 8, 32, 32)).astype(np.float32)
    expected = one.run({"x": x})["y"]
    monkeypatch.setattr(apart(), "until_ns", 0)  # as it is left again for other tests
    apart().keep()
    np.testing.assert_array_equal(other.run({"x": x})["y"], expected)
