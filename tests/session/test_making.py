"""Programs made bit by bit while runs go on: in as many runs as they may, right in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

import tgbench as tg
from tgbench.runs.pausing import Paused
from tgbench.runs.work import Work
from tgbench.session.chooser import Larger, Own, Wanted
from tgbench.session.serving import Offer, Rung

ROWS, WIDTH = 16, 8


class Patient(Own):
    """Wants the own program of every run, and takes any that is there meanwhile."""

    strict = False

    def __init__(self, asks: bool = False) -> None:
        self.asks, self.asked_about = asks, list[float]()

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        there = [one for one in larger() if one.program is not None]
        if own.program is not None or not there:
            return own
        asks = self.asks and not self.asked_about
        self.wanted = self.wanted or Wanted(own, asks, 0.0, 1.0)
        return there[0]

    def asking(self, offer: Offer, decided: Any) -> Any:
        _, domain, state = yield from decided
        work = Work()
        work.still_ns = 5.0
        return work, domain, state

    def asked(self, wanted: Wanted, found: Any) -> None:
        self.asked_about.append(found[0].still_ns)

    def room_ns(self, takes_ns: float, spent_ns: int) -> float:
        return 1.0  # the clock is past that at the first pause

    def forget(self) -> None:
        self.wanted = None


def _session(chooser: Own) -> tuple[tg.GraphSession, Callable[[Any], Any]]:
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    x, weights = g.input("x", (ROWS, WIDTH)), {}
    for i in range(3):
        weights[f"w{i}"] = random.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        x = tg.ops.relu(x @ g.parameter(f"w{i}", (WIDTH, WIDTH)))
    g.output("y", x)
    session = tg.GraphSession(g.build(), weights, calibrate=False)
    session.keeper.chooser = session.runner.chooser = chooser

    def right(x: Any) -> Any:
        return tg.evaluate(session.graph, {"x": x, **weights})["y"]

    return session, right


def _edits(seed: int) -> Iterator[Any]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    while True:
        x = x.copy()
        x[random.integers(1, ROWS - 1)] += 1  # not at an end, where programs are right there alone
        yield x


def _check(session: tg.GraphSession, right: Callable[[Any], Any], x: Any) -> None:
    np.testing.assert_allclose(session.run({"x": x})["y"], right(x), rtol=1e-4, atol=1e-5)


def _forced(session: tg.GraphSession, edits: Iterator[Any]) -> int:
    """The first runs, and how many programs they had to make."""
    for _ in range(2):
        session.run({"x": next(edits)})
    return session.counters.specialised


@pytest.mark.parametrize("asks", [False, True])
def test_each_run_makes_a_part_and_the_last_part_serves_at_once(asks: bool) -> None:
    chooser = Patient(asks)
    session, right = _session(chooser)
    edits = _edits(0)
    made, rungs, parts = _forced(session, edits), list[str](), 0
    while session.counters.specialised == made:
        _check(session, right, next(edits))
        rungs.append(session.report().served)
        parts += 1
        assert parts < 500
    assert parts > 20
    assert rungs.index("exactly") == parts - 1
    assert session.report().recomputed < 1
    assert chooser.asked_about == [5.0] * asks
    assert chooser.wanted is None


def test_a_program_made_in_parts_is_the_one_that_is_made_at_once() -> None:
    found = []
    for chooser in (Patient(), Own()):
        chooser.strict = False
        session, _ = _session(chooser)
        edits = _edits(0)
        made = _forced(session, edits)
        for _ in range(300):
            session.run({"x": next(edits)})
        assert session.counters.specialised > made or isinstance(chooser, Own)
        found.append(
            {
                (str(kind), str(program), program.guards)
                for _, kind, program in session.programs
                if not program.renews
            }
        )
    assert found[0]
    assert found[0] <= found[1]


@pytest.mark.parametrize("at", [1, 7, 20, 30])
def test_an_interrupt_in_a_part_leaves_all_as_it_was(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = Patient()
    session, right = _session(chooser)
    edits = _edits(0)
    made, go_on, parts, armed = _forced(session, edits), Paused[Any].go_on, [0], [False]

    def stopped(self: Paused[Any], enough: Callable[[], bool]) -> bool:
        def counted() -> bool:
            parts[0] += 1
            if parts[0] >= at and armed[0]:
                raise KeyboardInterrupt
            return enough()

        return go_on(self, counted)

    monkeypatch.setattr(Paused, "go_on", stopped)
    interrupts = 0
    while session.counters.specialised == made:
        standing, x, armed[0] = session.standing, next(edits), not interrupts
        try:
            session.run({"x": x})
        except KeyboardInterrupt:
            interrupts += 1
            assert session.standing is standing  # what was there is there
            assert chooser.wanted is None  # and what was begun is chosen anew
        armed[0] = False
        _check(session, right, x)
    assert interrupts == 1


@pytest.mark.parametrize("seed", range(4))
def test_what_is_wanted_is_forgotten_with_the_plan(seed: int) -> None:
    chooser, random = Patient(), Random(seed)
    session, right = _session(chooser)
    edits = _edits(seed)
    _forced(session, edits)
    for _ in range(60):
        _check(session, right, next(edits))
        if random.random() < 0.1:
            session.runner.plan()
            assert chooser.wanted is None
        if random.random() < 0.1:
            session.keeper.bound_states(0)
            assert chooser.wanted is None
        if random.random() < 0.1:
            session.forget()


def test_what_does_not_fit_is_refused_when_that_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chooser, refused = Patient(), list[Rung]()
    session, right = _session(chooser)
    edits = _edits(0)
    _forced(session, edits)
    monkeypatch.setattr(
        chooser, "refused", lambda offer, can_plan: refused.append(offer.rung) or True
    )
    _check(session, right, next(edits))
    assert chooser.wanted is not None
    lowerer = session.memory.specialiser.lowerer
    monkeypatch.setattr(lowerer, "_reserved", lambda node: -1)
    for _ in range(100):
        _check(session, right, next(edits))
    assert refused
    assert session.counters.planned > 1
