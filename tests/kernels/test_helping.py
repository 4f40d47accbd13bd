"""Helpers are asked where runs take less with them: by a clock that stands for the machine."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tgbench as tg
from benchmarks.measure import threads
from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.helping import Helping, helping
from tgbench.kernels.turns import ELSEWHERE, FIRST_NS, PRICE, SOON
from tgbench.kernels.waiting import LEAST_NS, Waiting

MS = 1_000_000


class Program:
    """Something that runs."""


class Machine:
    """Runs of so many milliseconds with helpers, and without."""

    def __init__(self, helped: float, alone: float, noise: float = 0.0, seed: int = 0) -> None:
        self.takes = {True: helped, False: alone}
        self.noise, self.random, self.now = noise, random.Random(seed), 0
        self.helping, self.asked = Helping(lambda: self.now), list[bool]()

    def run(self, program: object) -> None:
        def compute() -> None:
            asked = self.helping.is_asked
            self.asked.append(asked)
            noisy = self.random.lognormvariate(0.0, self.noise)
            self.now += round(MS * self.takes[asked] * noisy)

        self.helping.during(program, compute)

    def go_on(self, program: object, seconds: float) -> None:
        until = self.now + seconds * 1e9
        while self.now < until:
            self.run(program)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("scale", [0.02, 1.0, 4.0])
def test_who_computes_alone_in_less_time_does(scale: float, noise: float, seed: int) -> None:
    machine, program = Machine(50 * scale, 30 * scale, noise, seed), Program()
    machine.go_on(program, 12)
    assert machine.helping.helps is False


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_helpers_that_help_stay(noise: float, seed: int) -> None:
    machine, program = Machine(40, 80, noise, seed), Program()
    machine.go_on(program, 60)
    assert machine.helping.helps


def test_helpers_that_save_next_to_nothing_rest() -> None:
    machine, program = Machine(30, 30.3), Program()
    machine.go_on(program, 12)
    assert not machine.helping.helps


def test_helpers_are_asked_again_once_others_are_gone() -> None:
    machine, program = Machine(50, 30), Program()
    machine.go_on(program, 5)
    machine.takes = {True: 20, False: 30}
    machine.go_on(program, 60)
    assert machine.helping.helps
    assert machine.helping.turns.changes == 2


@pytest.mark.parametrize(("helped", "alone"), [(40, 80), (80, 40), (5, 5.5), (0.1, 0.4)])
def test_comparing_costs_little(helped: float, alone: float) -> None:
    machine, program = Machine(helped, alone), Program()
    machine.go_on(program, 300)
    quicker = helped < alone
    lost = abs(alone - helped) * machine.asked.count(not quicker) * MS
    first = FIRST_NS + 20 * max(helped, alone) * MS  # until there was something to go by
    assert lost <= first + 2 / PRICE * machine.now


def test_others_that_begin_are_answered_soon() -> None:
    machine, program = Machine(27, 30), Program()
    machine.go_on(program, 60)
    machine.takes = {True: 50, False: 33}
    machine.helping.turns.look_soon()
    machine.go_on(program, 2)
    assert not machine.helping.helps


def test_others_that_come_and_go_are_not_answered_each_time() -> None:
    machine, program = Machine(10, 16), Program()
    machine.go_on(program, 10)
    began, machine.asked = machine.now, []
    for _ in range(200):
        machine.helping.turns.look_soon()
        machine.go_on(program, 0.1)
    lost = 6 * MS * machine.asked.count(False)
    assert 0 < lost <= 2 / SOON * (machine.now - began)


def test_waiting_for_processors_is_told() -> None:
    told, waited = list[bool](), iter([0, LEAST_NS])
    waiting = Waiting(lambda: next(waited), lambda seconds: None, lambda: told.append(True))
    with threads(2):
        waiting.begins(time.perf_counter_ns())
        waiting.ends(LEAST_NS)
    assert told == [True]


def test_programs_that_do_not_come_back_are_let_go_of() -> None:
    machine, lasting = Machine(50, 30), Program()
    gone = Program()
    machine.go_on(gone, 1)  # a comparison has begun, or will with the next run
    machine.helping.turns.look_soon()
    machine.run(gone)
    del gone
    for _ in range(ELSEWHERE + 1):
        machine.run(lasting)
    machine.helping.turns.look_soon()
    machine.go_on(lasting, 2)
    assert not machine.helping.helps


def test_programs_of_one_run_each_compare_nothing() -> None:
    machine = Machine(50, 30)
    for _ in range(100):
        machine.run(Program())
    assert all(machine.asked)


def test_whatever_stops_a_run_leaves_helpers_asked() -> None:
    machine, program = Machine(50, 30), Program()
    machine.go_on(program, 5)
    assert not machine.helping.helps

    def interrupted() -> None:
        assert not machine.helping.is_asked
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.helping.during(program, interrupted)
    assert machine.helping.is_asked


# --- in sessions ----------------------------------------------------------------------------------

WIDE = 512
WEIGHTS = {f"w{i}": np.full((WIDE, WIDE), i + 1.0, np.float32) for i in range(2)}


def layers() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (64, WIDE))
    for name in WEIGHTS:
        x = ops.relu(ops.linear(x, g.parameter(name, (WIDE, WIDE))))
    g.output("y", x)
    return g.build()


@pytest.fixture
def alone() -> Iterator[None]:
    """Runs take less without helpers, as it was found; nothing is compared for some time."""
    helping.cache_clear()
    helping().turns.stands = False
    with threads(2):
        yield
    helping.cache_clear()


@pytest.mark.usefixtures("alone")
def test_a_session_computes_alone_where_that_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from tgbench.kernels.numba import rows, team

    monkeypatch.setattr(rows, "gain", lambda threads: 1000.0)
    asked, together = list[int](), team._together

    def seen(helpers: int, product: Any, *arguments: Any) -> None:
        asked.append(helpers)
        together(helpers, product, *arguments)

    monkeypatch.setattr(team, "_together", seen)
    session = tg.GraphSession(layers(), WEIGHTS, calibrate=False, making="always")
    x = np.zeros((64, WIDE), np.float32)
    for i in range(4):
        x[3] = i
        found = session.run({"x": x}, want={"y": np.s_[3]})["y"]
        np.testing.assert_array_equal(found, np.full(WIDE, i * 2 * WIDE**2))
    assert set(asked) == {0}
    helping().turns.stands = True
    session.run({"x": x + 1}, want={"y": np.s_[3]})
    assert asked[-1] == 1
