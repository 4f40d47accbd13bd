"""How threads of a library wait: asleep while others compute, spinning after it; equal bits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tgbench as tg
from benchmarks.measure import threads
from tgbench import ops
from tgbench.base.machine import usable_cores
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels import waiting
from tgbench.kernels.turns import FIRST_NS, SOON
from tgbench.kernels.waiting import LEAST_NS, LONGEST_S, SHARE, Sitter, Waiting

TOLD = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & {*os.environ}
IS_GNUS = waiting.runtime() is not None and not TOLD and usable_cores() > 1
gnus = pytest.mark.skipif(not IS_GNUS, reason="another OpenMP, told how to wait, or one core")
LONG_S, SPUN_NS = 60.0, 600_000


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with threads(2):
        waiting.waiting().spin()  # whatever ran before
        yield


@pytest.fixture
def busy() -> Iterator[None]:
    """Two other processes compute."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for one in started:
        one.kill()
        one.wait()


# --- when ----------------------------------------------------------------------------------------


class Sat:
    """A sitter that is there as long as it is said to be."""

    is_there = True

    def end(self) -> None:
        self.is_there = False


class Machine:
    """What threads waited, and sitters, for a `Waiting` in a test's hand."""

    def __init__(self) -> None:
        self.waited_ns, self.sat, self.seconds = 0, Sat(), list[float]()
        self.waiting = Waiting(lambda: self.waited_ns, self.sit)  # type: ignore[arg-type]

    def sit(self, seconds: float) -> Sat:
        self.sat = Sat()
        self.seconds.append(seconds)
        return self.sat

    def run(self, took_ns: int, waited_ns: int) -> bool:
        """Whether threads are asleep after a run whose threads waited for so long."""
        self.waiting.begins(time.perf_counter_ns())
        self.waited_ns += waited_ns
        self.waiting.ends(took_ns)
        return self.waiting.is_asleep


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is looked at."""
    monkeypatch.setattr(waiting, "RARELY", 0)


def test_asleep_where_threads_wait_for_processors() -> None:
    machine = Machine()
    assert machine.run(400_000_000, 500_000_000)
    assert machine.seconds == [LONGEST_S]


@pytest.mark.parametrize("waited_ns", [0, 10_000_000, 90_000_000])
def test_not_where_they_wait_for_little(waited_ns: int, restless: None) -> None:
    machine = Machine()
    assert not any(machine.run(400_000_000, waited_ns) for _ in range(20))


def test_short_runs_are_judged_together() -> None:
    machine, took_ns = Machine(), LEAST_NS // 5 + 1
    asleep = [machine.run(took_ns, took_ns) for _ in range(5)]
    assert asleep == [False] * 4 + [True]


def test_what_happens_between_runs_does_not_count(restless: None) -> None:
    machine = Machine()
    for _ in range(20):
        machine.waited_ns += 10**9
        assert not machine.run(LEAST_NS, 0)


@pytest.mark.parametrize(("waited_ns", "is_there"), [(0, False), (10, False), (30, True)])
def test_contention_is_a_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, waited_ns: int, is_there: bool
) -> None:
    waited, now = iter((5, 1000, 1000 + waited_ns)), iter((0, 500, 600))
    monkeypatch.setattr(waiting, "waited_ns", lambda: next(waited))
    monkeypatch.setattr(waiting.time, "perf_counter_ns", lambda: next(now))
    contention = waiting.Contention()
    contention.begin()  # what was before does not count
    assert contention.is_there is is_there


def test_not_looked_at_all_the_time() -> None:
    asked = []

    def waited() -> int:
        asked.append(sum(range(100_000)))  # a millisecond
        return 0

    there = Waiting(waited)
    for _ in range(50):
        there.begins(time.perf_counter_ns())
        there.ends(LEAST_NS)
    assert len(asked) == 2


def test_awake_again_and_asleep_again(restless: None) -> None:
    machine = Machine()
    assert machine.run(10**9, 10**9)
    assert machine.run(10**9, 10**9)
    assert len(machine.seconds) == 1  # whoever sits is not asked to again
    first = machine.sat
    assert not machine.run(10**9, 10**8)
    assert not first.is_there
    assert machine.run(10**9, 10**9)
    machine.sat.end()  # by itself, after a while
    assert machine.run(10**9, 10**9)
    assert len(machine.seconds) == 3
    machine.waiting.spin()
    assert not machine.waiting.is_asleep


def test_one_thread_waits_for_nobody() -> None:
    torch.set_num_threads(1)
    assert not Machine().run(10**9, 10**9)


def test_another_runtime_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "runtime", lambda: None)
    waited = iter((0, 10**10))
    there = Waiting(lambda: next(waited))
    there.begins(time.perf_counter_ns())
    there.ends(10**9)
    assert not there.is_asleep


RUNS = st.tuples(st.integers(1, 10**9), st.integers(0, 10**9), st.booleans())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RUNS, max_size=40))
def test_asleep_as_long_as_threads_wait(restless: None, runs: list[tuple[int, int, bool]]) -> None:
    """Runs are judged together until they are long enough; asleep or not, by what threads waited,
    and not both by one sitter and by another. Who went by itself sits again before those that are
    judged next.
    """
    machine, since_ns, waited_ns, sleeps = Machine(), 0, 0, False
    for took_ns, waits_ns, ends in runs:
        if ends:
            machine.sat.end()
        expected, known = machine.waiting.is_asleep, len(machine.seconds)
        if not since_ns:
            known, expected = known + (sleeps and not expected), sleeps
        since_ns, waited_ns = since_ns + took_ns, waited_ns + waits_ns
        is_asleep = machine.run(took_ns, waits_ns)
        if since_ns < LEAST_NS:
            assert is_asleep is expected
            assert len(machine.seconds) == known
            continue
        began, sleeps = not sleeps, waited_ns >= SHARE * since_ns
        assert is_asleep is (sleeps and (began or expected))
        assert len(machine.seconds) == known + (sleeps and began)
        since_ns = waited_ns = 0


# --- which takes less ----------------------------------------------------------------------------


class Program:
    """Something that runs."""


class Timed:
    """Runs that take so many milliseconds where threads spin and where they sleep, and wait for
    such shares of it.
    """

    def __init__(self, takes: tuple[float, float], waits: tuple[float, float]) -> None:
        self.takes, self.waits = takes, waits
        self.now, self.waited_ns, self.asleep = 1, 0, list[bool]()
        self.waiting = Waiting(lambda: self.waited_ns, lambda seconds: Sat())  # type: ignore

    def go_on(self, seconds: float, programs: int = 1) -> None:
        every, until = [Program() for _ in range(programs)], self.now + seconds * 1e9
        while self.now < until:
            for program in every:
                self.waiting.begins(self.now, program)
                way = self.waiting.is_asleep
                took_ns = round(1e6 * self.takes[way])
                self.now += took_ns
                self.waited_ns += round(self.waits[way] * took_ns)
                self.waiting.ends(took_ns)
                self.asleep.append(way)

    def asleep_lately(self) -> float:
        late = self.asleep[len(self.asleep) // 2 :]
        return sum(late) / len(late)


@pytest.fixture
def by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """When runs are watched next is said by the clock that tests move."""
    monkeypatch.setattr(waiting, "RARELY", 0)
    monkeypatch.setattr(waiting.time, "perf_counter_ns", lambda: 0)


@pytest.mark.parametrize("programs", [1, 2])
def test_threads_that_wait_for_each_other_only_where_they_sleep_spin(
    by_its_clock: None, programs: int
) -> None:
    """They were found waiting once, as others computed for a moment; asleep they go on waiting."""
    machine = Timed(takes=(7.0, 12.5), waits=(0.5, 0.5))
    machine.go_on(0.1)
    assert any(machine.asleep)
    machine.waits = 0.0, 0.5
    machine.go_on(60, programs)
    assert not machine.waiting.is_asleep
    assert machine.asleep_lately() < 0.02


@pytest.mark.parametrize("waits", [(0.5, 0.5), (0.3, 0.9), (0.5, 0.26)])
def test_threads_sleep_where_that_is_quicker(
    by_its_clock: None, waits: tuple[float, float]
) -> None:
    machine = Timed(takes=(70.0, 20.0), waits=waits)
    machine.go_on(120)
    assert machine.asleep_lately() > 0.97


def test_and_spin_once_others_are_gone(by_its_clock: None) -> None:
    machine = Timed(takes=(70.0, 20.0), waits=(0.5, 0.5))
    machine.go_on(5)
    assert machine.waiting.is_asleep
    machine.takes, machine.waits = (7.0, 12.5), (0.0, 0.5)  # asleep, they wait for each other
    machine.go_on(120)
    assert not machine.waiting.is_asleep


@pytest.mark.parametrize("takes", [(7.0, 12.5), (70.0, 20.0), (0.4, 0.1), (5.0, 5.1)])
def test_comparing_costs_little(by_its_clock: None, takes: tuple[float, float]) -> None:
    machine = Timed(takes, waits=(0.5, 0.5))
    machine.go_on(300)
    slower = takes[1] > takes[0]
    lost_ns = abs(takes[1] - takes[0]) * 1e6 * machine.asleep.count(slower)
    assert lost_ns <= FIRST_NS + 2 / SOON * machine.now


def test_what_an_interrupt_left_is_no_run_of_another_program(by_its_clock: None) -> None:
    machine, program = Timed(takes=(7.0, 12.5), waits=(0.5, 0.5)), Program()
    for _ in range(4):
        machine.waiting.begins(machine.now, program)
        if machine.waiting.turns.is_comparing:
            break
        machine.now += LEAST_NS
        machine.waited_ns += LEAST_NS
        machine.waiting.ends(LEAST_NS)
    assert machine.waiting.watches  # and then it is interrupted
    machine.waiting.begins(machine.now, Program())
    machine.waiting.ends(10**12)
    took = machine.waiting.turns.comparison(program).took  # type: ignore[union-attr]
    assert took == ([], [])


# --- how -----------------------------------------------------------------------------------------


def spins() -> bool:
    """Whether threads of the runtime use a processor after a call, while nobody computes: some
    milliseconds of it where they spin, a hundredth of that where they sleep. What most calls did:
    a thread that had to wait for a processor, or is about to end, says nothing.
    """
    values, used = torch.zeros(1 << 18), []
    for _ in range(9):
        values.add_(1)
        began = time.process_time_ns()
        time.sleep(0.05)
        used.append(time.process_time_ns() - began)
    return median(used) > SPUN_NS


def a_sitter(seconds: float) -> Sitter:
    library = waiting.runtime()
    assert library is not None
    return Sitter(library, seconds)


@gnus
def test_threads_sleep_as_long_as_somebody_sits() -> None:
    assert spins()
    sitter = a_sitter(LONG_S)
    assert not spins()
    sitter.end()
    assert not sitter.is_there
    assert spins()


@gnus
def test_who_sits_goes_by_itself() -> None:
    sitter = a_sitter(0.05)
    assert sitter.is_there
    time.sleep(0.5)
    assert not sitter.is_there
    assert spins()


def test_without_a_thread_nobody_sits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(waiting, "Sitter", refused)
    monkeypatch.setattr(waiting, "runtime", object)
    assert waiting._sitting(1.0) is None


# --- sessions ------------------------------------------------------------------------------------


def network() -> Graph:
    """A convolution and products that threads share."""
    g = GraphBuilder()
    x = g.input("x", (1, 8, 32, 32))
    x = ops.relu(ops.conv(x, g.parameter("k", (16, 8, 3, 3)), padding=((1, 1), (1, 1))))
    x = x.reshape(64, 256)
    for i in range(3):
        x = ops.relu(ops.linear(x, g.parameter(f"w{i}", (256, 256)), g.parameter(f"b{i}", (256,))))
    g.output("y", x)
    return g.build()


def session(graph: Graph, **more: object) -> tg.GraphSession:
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, 0.1, node.shape).astype(np.float32)
        for name, node in graph.parameters.items()
    }
    return tg.GraphSession(graph, weights=weights, calibrate=False, making="always", **more)


@gnus
@pytest.mark.parametrize("exact", [{}, {"exact": "bitwise"}])
def test_no_bit_depends_on_it(
    exact: dict[str, str], busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full runs and edits, beside others, threads asleep and not: as those that never slept."""
    monkeypatch.setattr("tgbench.session.running.waiting", lambda: Waiting(lambda: 0))
    graph, rng = network(), np.random.default_rng(1)
    spinning, changing = session(graph, **exact), session(graph, **exact)
    values = rng.normal(size=(1, 8, 32, 32)).astype(np.float32)
    for turn in range(12):
        values[0, :, turn : turn + 3, turn : turn + 3] += 1
        if turn % 4 == 0:
            spinning.forget()
            changing.forget()
        expected = spinning.run({"x": values})["y"]
        sitter = a_sitter(LONG_S) if turn % 3 else None
        found = changing.run({"x": values})["y"]
        if sitter is not None:
            sitter.end()
        np.testing.assert_array_equal(found, expected)


@gnus
def test_a_session_beside_others_has_threads_sleep(
    busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Waiting()
    monkeypatch.setattr("tgbench.session.running.waiting", lambda: there)
    made, values = session(network()), np.zeros((1, 8, 32, 32), np.float32)
    until = time.monotonic() + 60
    while not there.is_asleep and time.monotonic() < until:
        made.forget()
        made.run({"x": values})
    assert there.is_asleep
    there.spin()
    assert not there.is_asleep
