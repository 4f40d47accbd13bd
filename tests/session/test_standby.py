"""Plans that take each other's place: what runs take longer than under the other one counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tgbench as tg
from tgbench.graph.graph import Graph
from tgbench.plans.decisions import Decisions, Instead
from tgbench.runs.split import WHOLE
from tgbench.session.purse import SHARE
from tgbench.session.standby import CHANGING, CLEARLY, LEAST, TRIAL, Standby
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

TOKENS = 64
PIECES_BYTES, WHOLE_BYTES = 130_000, 180_000  # in which large runs are in pieces, and not


@pytest.fixture(scope="module")
def graph() -> Graph:
    return gemma3(gemma3_reduced(), TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tiny")
    gemma3_checkpoint(found, gemma3_reduced())
    return found


def opened(graph: Graph, folder: Path, memory: int | None = PIECES_BYTES, **how: Any) -> Any:
    how = {"making": "measured", "calibrate": False} | how
    return tg.GraphSession(graph, folder, memory=memory, **how)


def edits(count: int) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    ids = random.integers(0, 100, (1, TOKENS))
    found = [ids]
    for _ in range(count):
        ids = ids.copy()
        ids[0, random.integers(TOKENS)] = random.integers(100)
        found.append(ids)
    return found


def decisions_of(session: Any) -> Decisions:
    found: Decisions = session.keeper.memory.decisions
    return found


def pair(share: float = 0.5, price_ns: float = 1_000.0) -> Standby | None:
    other: Any = object()
    first: Any = type("Made", (), {"instead": Instead(other, share)})()
    return Standby.of(first, price_ns)


def test_what_is_hardly_quicker_does_not_stand_by() -> None:
    assert pair(CLEARLY + 0.01) is None
    assert pair(CLEARLY) is not None
    alone: Any = type("Made", (), {"instead": None})()
    assert Standby.of(alone, 100.0) is None


def test_plans_change_when_that_is_what_runs_took_longer() -> None:
    standby = pair(0.5)
    assert standby is not None
    first, second = standby.in_force, standby.other
    runs = 100 * CHANGING
    assert not any(standby.ran(took_ns=30.0, full_ns=40.0) for _ in range(runs))  # 10 longer each
    assert standby.ran(30.0, 40.0)
    assert standby.change() is second
    assert standby.in_force is second
    assert standby.other is first


def test_runs_that_took_less_put_a_change_off_but_not_for_ever() -> None:
    standby = pair(0.5)
    assert standby is not None
    for _ in range(1_000):
        assert not standby.ran(took_ns=1.0, full_ns=40.0)
    runs = next(i for i in range(1, 10_000) if standby.ran(30.0, 40.0))
    assert runs == 100 * CHANGING + 101, "what was saved counts as far as changing takes"


def test_what_everything_takes_has_to_be_known() -> None:
    standby = pair()
    assert standby is not None
    assert not any(standby.ran(took_ns=1e9, full_ns=0.0) for _ in range(10))
    assert not standby.aside_ns


def test_the_first_plan_gets_a_trial_once_that_is_saved_up() -> None:
    standby = pair()
    assert standby is not None
    standby.change()
    runs = next(i for i in range(1, 100_000) if standby.ran(took_ns=20.0, full_ns=20.0))
    assert runs == int(TRIAL * 1_000.0 / (SHARE * 20.0)) + 1
    assert standby.change() is standby.first


def test_plans_do_not_change_to_and_fro_where_programs_came_from_a_file() -> None:
    standby = pair(price_ns=0.0)
    assert standby is not None
    changes = 0
    for _ in range(10_000):
        if standby.ran(took_ns=60.0, full_ns=40.0):
            standby.change()
            changes += 1
    assert 2 <= changes <= 10_000 / (TRIAL * LEAST / SHARE) * 2 + 1


def test_a_plan_with_runs_in_pieces_says_what_competed(graph: Graph, folder: Path) -> None:
    session = opened(graph, folder)
    session.run({"ids": edits(0)[0]})
    made = decisions_of(session)
    assert made.cut != WHOLE
    assert made.instead is not None
    other = made.instead.decisions
    assert other.cut == WHOLE
    assert other.placement.size_bytes <= PIECES_BYTES
    assert other.classes == made.classes
    assert 0.0 < made.instead.share < 1.0
    assert session.runner.standby is not None
    roomy = opened(graph, folder, WHOLE_BYTES)
    roomy.run({"ids": edits(0)[0]})
    assert decisions_of(roomy).cut == WHOLE
    assert decisions_of(roomy).instead is None
    assert roomy.runner.standby is None


@pytest.mark.parametrize("keep", [True, False])
def test_results_are_the_same_whichever_is_in_force(
    graph: Graph, folder: Path, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed after every third run, and back."""
    session, fresh = opened(graph, folder), opened(graph, folder, None)
    seen: list[Decisions] = []
    monkeypatch.setattr(Standby, "ran", lambda self, took_ns, full_ns: len(seen) % 3 == 2)
    for i, ids in enumerate(edits(18)):
        seen.append(decisions_of(session) if i else None)  # type: ignore[arg-type]
        want = {"logits": np.s_[0, 5 + i]} if i % 2 else None
        found = session.run({"ids": ids}, want=want, keep=keep or i % 4 == 0)["logits"]
        fresh.forget()
        expected = fresh.run({"ids": ids}, want=want)["logits"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len({id(made) for made in seen[1:]}) == 2
    assert {made.cut == WHOLE for made in seen[1:]} == {True, False}
    assert session.counters.planned == 1, "nothing was planned again"


def test_edits_anywhere_end_with_runs_that_are_whole(
    graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By times that a test says: pieces take ten times as long as was expected."""
    session = opened(graph, folder)
    session.run({"ids": edits(0)[0]})
    standby = session.runner.standby
    standby.price_ns = 50.0 / CHANGING
    monkeypatch.setattr("tgbench.session.standby.LEAST", 0)
    ran = Standby.ran

    def told(self: Standby, took_ns: float, full_ns: float) -> bool:
        return ran(self, 10.0 if self.is_first else 1.0, 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Standby, "ran", told)
        cuts = []
        for ids in edits(40)[1:]:
            session.run({"ids": ids})
            cuts.append(decisions_of(session).cut == WHOLE)
    assert cuts == [False] * cuts.index(True) + [True] * (40 - cuts.index(True))
    assert cuts.index(True) == 6


def test_a_plan_that_somebody_asked_for_is_left_alone(graph: Graph, folder: Path) -> None:
    session = opened(graph, folder)
    for ids in edits(4):
        session.run({"ids": ids})
    session.runner._changes = True
    session.optimize("greedy", steps=0)
    asked = decisions_of(session)
    for ids in edits(8)[4:]:
        session.run({"ids": ids})
        assert decisions_of(session) is asked
    assert session.runner.standby is None


def test_nothing_changes_where_other_sessions_have_the_room(graph: Graph, folder: Path) -> None:
    session = opened(graph, folder)
    session.run({"ids": edits(0)[0]})
    made, seat = decisions_of(session), session.keeper.seat
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(seat), "excess_bytes", lambda self, placement: 1)
        session.runner._changes = True
        session.run({"ids": edits(1)[1]})
    assert decisions_of(session) is made
    assert session.runner.standby is None


def test_memory_that_was_given_back_changes_no_plan(graph: Graph, folder: Path) -> None:
    session = opened(graph, folder)
    session.run({"ids": edits(0)[0]})
    session.runner._changes = True
    session.release()
    found = session.run({"ids": edits(1)[1]})["logits"]
    fresh = opened(graph, folder, None)
    expected = fresh.run({"ids": edits(1)[1]})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_interrupted_change_leaves_a_session_that_goes_on(
    graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(graph, folder)
    first, second = edits(1)
    session.run({"ids": first})
    session.runner._changes = True
    install = type(session.keeper).install

    def stopped(self: Any, decisions: Decisions) -> None:
        install(self, decisions)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(session.keeper), "install", stopped)
        with pytest.raises(KeyboardInterrupt):
            session.run({"ids": second})
    found = session.run({"ids": second})["logits"]
    expected = opened(graph, folder, None).run({"ids": second})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_programs_made_for_each_run_keep_their_plan(graph: Graph, folder: Path) -> None:
    """`making="always"`: what re-runs does not depend on the clock."""
    session = opened(graph, folder, making="always")
    for ids in edits(6):
        session.run({"ids": ids})
    assert session.runner.standby is None
    assert decisions_of(session).instead is not None
