"""Plans that take each other's place: what runs take longer than under the other one counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tgbench as tg
from tgbench.graph.graph import Graph
from tgbench.plans.decisions import Decisions, Instead
from tgbench.runs.split import WHOLE, Cut
from tgbench.session.purse import SHARE
from tgbench.session.standby import CHANGING, CLEARLY, LEAST, TRIAL, Standby
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

TOKENS = 128
LEAST_BYTES, MOST_BYTES, STEP = 200_000, 600_000, 1.03  # between which budgets are tight


LAYERS = {"layer_types": ["full_attention"] * 4, "num_hidden_layers": 4}


class Tight(NamedTuple):
    """A model, and a budget at which its large runs are in pieces, or whole, and might be the other
    as well: which one that is depends on the scratch memory that kernels want here.
    """

    graph: Graph
    folder: Path
    memory: int


def first_of(folder: Path, in_pieces: bool, **changes: Any) -> Tight:
    config = gemma3_reduced(**changes)
    graph, memory = gemma3(config, TOKENS), LEAST_BYTES
    gemma3_checkpoint(folder, config)
    while memory < MOST_BYTES:
        session = opened(graph, folder, memory)
        session.run({"ids": edits(0)[0]})
        standby = session.runner.standby
        if standby is not None and standby.in_pieces is in_pieces:
            return Tight(graph, folder, memory)
        memory = int(memory * STEP)
    raise AssertionError("no budget is tight")


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Tight:
    return first_of(tmp_path_factory.mktemp("pieces"), True, **LAYERS)


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Tight:
    return first_of(tmp_path_factory.mktemp("middle"), False)


def opened(graph: Graph, folder: Path, memory: int | None, **how: Any) -> Any:
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


KIND: Any = "of rows"
OTHER: Any = "of anything"


def pair(
    share: float = 0.5, price_ns: float = 1_000.0, hopes: Any = None, in_pieces: bool = True
) -> Standby:
    other: Any = object()
    cut = Cut("x", 0, 4) if in_pieces else WHOLE
    instead = Instead(other, share, hopes or {})
    first: Any = type("Made", (), {"instead": instead, "cut": cut})()
    found = Standby.of(first, price_ns)
    assert found is not None
    assert found.in_force is first
    assert found.other is other
    return found


def runs_until_change(standby: Standby, took_ns: float, full_ns: float, kind: Any = OTHER) -> int:
    return next(i for i in range(1, 1_000_000) if standby.ran(kind, took_ns, full_ns))


@pytest.mark.parametrize("cut", [WHOLE, Cut("x", 0, 4)])
def test_what_is_hardly_quicker_does_not_stand_by(cut: Cut) -> None:
    for instead in (None, Instead(object(), CLEARLY + 0.01, {})):  # type: ignore[arg-type]
        made: Any = type("Made", (), {"instead": instead, "cut": cut})()
        assert Standby.of(made, 100.0) is None
    assert pair(CLEARLY, in_pieces=cut != WHOLE) is not None


def test_plans_change_when_runs_took_longer_by_a_few_times_what_that_takes() -> None:
    standby = pair(0.5)
    first, second = standby.in_force, standby.other
    assert runs_until_change(standby, 30.0, 40.0) == 100 * CHANGING + 1  # 10 longer each
    assert standby.change() is second
    assert standby.in_force is second
    assert standby.other is first


def test_runs_that_took_less_put_a_change_off_but_not_for_ever() -> None:
    standby = pair(0.5)
    assert not any(standby.ran(OTHER, took_ns=1.0, full_ns=40.0) for _ in range(1_000))
    runs = runs_until_change(standby, 30.0, 40.0)
    assert runs == 100 * CHANGING + 101, "what was saved counts as far as changing takes"


def test_the_price_is_what_programs_of_either_plan_took() -> None:
    standby = pair(0.5)
    standby.change()
    standby.changed(900.0)
    assert standby.price_ns == 1_000.0
    standby.changed(4_000.0)
    standby.change()
    assert runs_until_change(standby, 30.0, 40.0) == 400 * CHANGING + 1


@pytest.mark.parametrize("in_pieces", [True, False])
def test_what_everything_takes_has_to_be_known(in_pieces: bool) -> None:
    standby = pair(hopes={KIND: 1.0}, in_pieces=in_pieces)
    assert not any(standby.ran(KIND, took_ns=1e9, full_ns=0.0) for _ in range(10))
    assert not standby.aside_ns
    assert not standby.saved_ns


def test_pieces_get_a_trial_once_that_is_saved_up() -> None:
    standby = pair()
    standby.change()
    runs = runs_until_change(standby, took_ns=20.0, full_ns=20.0)
    assert runs == int(TRIAL * 1_000.0 / (SHARE * 20.0)) + 1
    assert standby.change() is standby.pieces


@pytest.mark.parametrize("was_whole", [True, False])
def test_pieces_get_a_trial_where_runs_in_a_row_would_take_less(was_whole: bool) -> None:
    """Decoding, after edits or from the first run on."""
    standby = pair(hopes={KIND: 5.0}, in_pieces=not was_whole)
    if not was_whole:
        standby.change()
    first = runs_until_change(standby, took_ns=35.0, full_ns=40.0, kind=KIND)
    assert first == 100 * CHANGING // 3 + 1
    assert standby.change() is standby.pieces
    assert runs_until_change(standby, 60.0, 40.0) > 0
    assert standby.change() is standby.whole
    again = runs_until_change(standby, took_ns=35.0, full_ns=40.0, kind=KIND)
    assert again == 2 * (100 * CHANGING // 3) + 1, "it has to promise twice as much"


def test_runs_of_other_classes_in_between_are_no_row() -> None:
    """A chat: tokens, and now and then a block that nothing is expected of."""
    standby = pair(hopes={KIND: 5.0}, in_pieces=False)
    for _ in range(20):
        assert not any(standby.ran(KIND, took_ns=35.0, full_ns=40.0) for _ in range(20))
        assert not standby.ran(OTHER, took_ns=35.0, full_ns=40.0)
        assert not standby.aside_ns


def test_what_is_expected_to_take_as_long_gets_no_trial_for_that() -> None:
    """An edit anywhere: the first row is one of the places of its class."""
    standby = pair(hopes={KIND: 60.0}, in_pieces=False)
    runs = runs_until_change(standby, took_ns=40.0, full_ns=40.0, kind=KIND)
    assert runs == int(TRIAL * 1_000.0 / (SHARE * 40.0)) + 1


def test_plans_do_not_change_to_and_fro_where_programs_came_from_a_file() -> None:
    standby, changes = pair(price_ns=0.0), 0
    for _ in range(10_000):
        if standby.ran(OTHER, took_ns=60.0, full_ns=40.0):
            standby.change()
            changes += 1
    assert 2 <= changes <= 10_000 / (TRIAL * LEAST / SHARE) * 2 + 1


def test_a_plan_with_runs_in_pieces_says_what_competed(tight: Tight) -> None:
    session = opened(*tight)
    session.run({"ids": edits(0)[0]})
    made = decisions_of(session)
    assert made.cut != WHOLE
    assert made.instead is not None
    other = made.instead.decisions
    assert other.cut == WHOLE
    assert other.placement.size_bytes <= tight.memory
    assert other.classes == made.classes
    assert 0.0 < made.instead.share < 1.0
    assert made.instead.hopes.keys() == made.classes.keys()
    assert session.runner.standby is not None
    roomy = opened(*tight[:2], None)
    roomy.run({"ids": edits(0)[0]})
    assert decisions_of(roomy).cut == WHOLE
    assert decisions_of(roomy).instead is None
    assert roomy.runner.standby is None


@pytest.mark.parametrize("keep", [True, False])
def test_results_are_the_same_whichever_is_in_force(
    tight: Tight, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed after every third run, and back."""
    session, fresh = opened(*tight), opened(*tight[:2], None)
    seen: list[Decisions] = []
    monkeypatch.setattr(Standby, "ran", lambda self, kind, took_ns, full_ns: len(seen) % 3 == 2)
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
    tight: Tight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By times that a test says: pieces take ten times as long as was expected."""
    session = opened(*tight)
    session.run({"ids": edits(0)[0]})
    standby = session.runner.standby
    standby.price_ns = 50.0 / CHANGING
    monkeypatch.setattr("tgbench.session.standby.LEAST", 0)
    ran = Standby.ran

    def told(self: Standby, kind: Any, took_ns: float, full_ns: float) -> bool:
        return ran(self, kind, 10.0 if self.in_pieces else 0.0, 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Standby, "ran", told)
        cuts = []
        for ids in edits(40)[1:]:
            session.run({"ids": ids})
            cuts.append(decisions_of(session).cut == WHOLE)
    assert cuts == [False] * cuts.index(True) + [True] * (40 - cuts.index(True))
    assert cuts.index(True) == 6


@pytest.mark.parametrize("is_hoped", [True, False])
def test_runs_in_a_row_that_would_take_less_end_with_pieces(
    middle: Tight, is_hoped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By times that a test says; of a class that is planned for, and of one that is not."""
    session, fresh = opened(*middle), opened(*middle[:2], None)
    session.run({"ids": edits(0)[0]})
    assert decisions_of(session).cut == WHOLE
    standby = session.runner.standby
    standby.price_ns, longest = 50.0 / CHANGING, max(standby.hopes.values())
    monkeypatch.setattr("tgbench.session.standby.LEAST", 0)
    ran = Standby.ran

    def told(self: Standby, kind: Any, took_ns: float, full_ns: float) -> bool:
        return ran(self, kind, longest + 10.0 if not self.in_pieces else 0.0, 1.0)

    cuts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Standby, "ran", told)
        for ids in edits(20)[1:]:
            want = None if is_hoped else {"logits": np.s_[0, 7]}
            found = session.run({"ids": ids}, want=want)["logits"]
            fresh.forget()
            expected = fresh.run({"ids": ids}, want=want)["logits"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            cuts.append(decisions_of(session).cut == WHOLE)
    assert all(cuts) is not is_hoped
    assert cuts[-1] is not is_hoped


def test_a_trial_makes_what_it_runs_alone(middle: Tight, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change to pieces is for a row of runs: what else may come is not got ready."""
    session = opened(*middle)
    first, second, third = edits(2)
    session.run({"ids": first})
    assert session.counters.specialised > 1, "with a first answer it is"
    monkeypatch.setattr(Standby, "ran", lambda self, kind, took_ns, full_ns: True)
    session.run({"ids": second})
    made = session.counters.specialised
    session.run({"ids": third})
    assert decisions_of(session).cut != WHOLE
    assert session.counters.specialised == made + 1
    assert session.runner.standby.price_ns > 0


def test_a_plan_that_somebody_asked_for_is_left_alone(tight: Tight) -> None:
    session = opened(*tight)
    for ids in edits(4):
        session.run({"ids": ids})
    session.runner._changes = True
    session.optimize("greedy", steps=0)
    asked = decisions_of(session)
    for ids in edits(8)[4:]:
        session.run({"ids": ids})
        assert decisions_of(session) is asked
    assert session.runner.standby is None


def test_plans_made_anew_for_compiled_code_have_one_that_stands_by(tight: Tight) -> None:
    session = opened(*tight)
    session.run({"ids": edits(0)[0]})
    session.runner._take_up_code()
    session.run({"ids": edits(1)[1]})
    standby = session.runner.standby
    assert standby is not None
    assert standby.in_force is decisions_of(session)


def test_nothing_changes_where_other_sessions_have_the_room(tight: Tight) -> None:
    session = opened(*tight)
    session.run({"ids": edits(0)[0]})
    made, seat = decisions_of(session), session.keeper.seat
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(seat), "excess_bytes", lambda self, placement: 1)
        session.runner._changes = True
        session.run({"ids": edits(1)[1]})
    assert decisions_of(session) is made
    assert session.runner.standby is None


def test_memory_that_was_given_back_changes_no_plan(tight: Tight) -> None:
    session = opened(*tight)
    session.run({"ids": edits(0)[0]})
    session.runner._changes = True
    session.release()
    found = session.run({"ids": edits(1)[1]})["logits"]
    fresh = opened(*tight[:2], None)
    expected = fresh.run({"ids": edits(1)[1]})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_interrupted_change_leaves_a_session_that_goes_on(
    tight: Tight, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(*tight)
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
    expected = opened(*tight[:2], None).run({"ids": second})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_programs_made_for_each_run_keep_their_plan(tight: Tight) -> None:
    """`making="always"`: what re-runs does not depend on the clock."""
    session = opened(*tight, making="always")
    for ids in edits(6):
        session.run({"ids": ids})
    assert session.runner.standby is None
    assert decisions_of(session).instead is not None
