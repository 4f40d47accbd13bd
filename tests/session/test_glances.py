"""What was made ready is seen at a glance, where looking for all programs does not pay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tgbench as tg
from tgbench.graph.graph import Graph
from tgbench.programs.program import SURE
from tgbench.session.choosing import FIRST_NS, Measured
from tgbench.session.glances import HOPES, IN_VAIN, Elsewhere, Glances
from tgbench.session.purse import Purse
from tgbench.session.running import Runner
from tgbench.session.serving import CONTINUING, EXACTLY, ONWARDS, WIDER, Rung
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

TOKENS, PROMPT = 512, 128
SESSIONS = 5  # of which one decodes while nobody else has the processor


def _purse(left_ns: float) -> Purse:
    return Purse(left_ns=left_ns, full_ns=1_000.0, ahead=0)


def test_nothing_is_glanced_at_where_nothing_was_made_ready() -> None:
    assert not Glances().pay(_purse(1e12))


def test_glances_in_vain_are_few_and_paid_for() -> None:
    glances = Glances(takes_ns=50.0)
    assert not glances.pay(_purse(49.0))
    for _ in range(HOPES):
        assert glances.pay(_purse(51.0))
        glances.note(50.0, None)
    assert not glances.pay(_purse(1e12))


def test_glances_that_save_more_than_they_take_go_on_whatever_is_owed() -> None:
    glances = Glances(takes_ns=50.0)
    for i in range(3 * HOPES):
        glances.note(60.0, 700.0)
        assert glances.pay(_purse(-900.0))
        assert glances.pay(_purse(-1e12)) == (i + 1 >= HOPES), "the first ones are not sure"
    seen = 0
    while glances.pay(_purse(-1e12)):  # until they find nothing any more
        glances.note(60.0, None)
        seen += 1
    assert 3 < seen < 3 * HOPES


def test_the_first_glances_count_for_no_more_than_the_least_of_them() -> None:
    """Much is done for the first time; from then on what they take is followed."""
    glances = Glances()
    for took_ns in (900.0, 50.0, 800.0):
        glances.note(took_ns, 700.0)
    assert glances.takes_ns == 50.0
    assert glances.pay(_purse(-900.0))
    for _ in range(30):
        glances.note(800.0, 700.0)
    assert not glances.pay(_purse(-1e12))
    glances.note(50.0, 700.0)
    assert not glances.pay(_purse(-1e12)), "one that is short says no more than another"


def test_what_is_slower_than_everything_is_not_taken() -> None:
    chooser = Measured(lambda *_: iter(()))  # type: ignore[arg-type, return-value]
    chooser._purse = _purse(1_000.0)
    assert not chooser.glances()
    chooser.made_ready(EXACTLY, 50)
    assert chooser.glances() == [EXACTLY]  # each rung for itself
    assert not chooser.glanced(EXACTLY, 50, None)
    assert not chooser.glanced(EXACTLY, 50, 1_000.0)
    assert chooser._purse.left_ns == 900.0
    assert chooser.glanced(EXACTLY, 50, 999.0)


def test_elsewhere_is_looked_on_where_it_saves_what_it_takes() -> None:
    elsewhere = Elsewhere()
    assert elsewhere.pays(1_000.0), "nobody knows what it takes"
    for _ in range(20):
        elsewhere.note(100.0, 120.0)
        assert elsewhere.pays(1_000.0)


def test_elsewhere_is_looked_in_vain_for_a_small_share_of_what_runs_take() -> None:
    elsewhere, looks = Elsewhere(), 0
    for _ in range(1_000):
        if elsewhere.pays(1_000.0):
            elsewhere.note(100.0, 0.0)
            looks += 1
    share = (looks - 1) * 100.0 / (1_000 * 1_000.0)  # the first one finds out what it takes
    assert IN_VAIN / 2 < share <= IN_VAIN

    for _ in range(100):  # and what may be saved from now on is found
        if elsewhere.pays(1_000.0):
            elsewhere.note(100.0, 900.0)
    assert elsewhere.pays(1_000.0)


@pytest.mark.parametrize(
    ("takes_ns", "pays", "asked", "taken"),
    [
        ({ONWARDS: 9.0, WIDER: 5.0}, False, [ONWARDS], ONWARDS),
        ({ONWARDS: 9.0, WIDER: 5.0}, True, [ONWARDS, *CONTINUING], WIDER),
        ({ONWARDS: 5.0, WIDER: 9.0}, True, [ONWARDS, *CONTINUING], ONWARDS),
        ({WIDER: 9.0}, False, [ONWARDS, *CONTINUING], WIDER),
        ({}, False, [ONWARDS, *CONTINUING], None),
    ],
)
def test_where_a_choice_stands_others_are_asked_if_that_pays(
    takes_ns: dict[Rung, float], pays: bool, asked: list[Rung], taken: Rung | None
) -> None:
    seen, saved = list[Rung](), list[float]()

    def quickest(bucket: object, rungs: list[Rung], own: object) -> Any:
        seen.extend(rungs)
        there = [SimpleNamespace(rung=r, takes_ns=takes_ns[r]) for r in rungs if r in takes_ns]
        return min(there, key=lambda one: one.takes_ns, default=None)

    chooser = SimpleNamespace(
        again=lambda own, planned: (ONWARDS, *CONTINUING),
        looks_elsewhere=lambda takes_ns: pays,
        elsewhere=lambda took_ns, saved_ns: saved.append(saved_ns),
    )
    runner: Any = SimpleNamespace(
        chooser=chooser, scout=SimpleNamespace(quickest=quickest),
        planning=SimpleNamespace(classes={}),
    )  # fmt: skip
    found = Runner._again(runner, SimpleNamespace(bucket=None))  # type: ignore[arg-type]
    assert seen == asked
    assert (None if found is None else found.rung) is taken
    assert saved == ([max(takes_ns[ONWARDS] - takes_ns[WIDER], 0.0)] if pays else [])


def test_computing_everything_is_compared_with_all_that_is_there() -> None:
    chooser = Measured(lambda *_: iter(()))  # type: ignore[arg-type, return-value]
    for _ in range(5):
        chooser.elsewhere(100, 0.0)
        assert chooser.looks_elsewhere(1.0), "nothing else was chosen yet"
    chooser._rung = ONWARDS
    assert not chooser.looks_elsewhere(1.0)


@pytest.mark.parametrize("memory", [None, "4MiB"])
def test_a_small_model_decodes_by_rows_after_a_few_tokens(
    memory: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Though a run of everything takes less than looking for programs would; that is measured, as
    no record says what it takes. Where others have the processor just then, a glance is measured
    to take too long as well: one session of several is left alone for twenty runs.
    """
    config, folder = gemma3_reduced(), tmp_path_factory.mktemp("tiny")
    gemma3_checkpoint(folder, config)
    graph = gemma3(config, TOKENS)
    assert any(_decodes_by_rows(graph, folder, memory) for _ in range(SESSIONS))


def _decodes_by_rows(graph: Graph, folder: Path, memory: str | None) -> bool:
    """Whether all runs behind the first few compute little; that they are right is asserted."""
    session = tg.GraphSession(graph, folder, memory=memory, making="measured", calibrate=False)
    ids = np.zeros((1, TOKENS), np.int64)
    ids[0, :PROMPT] = np.random.default_rng(0).integers(0, 100, PROMPT)
    session.run({"ids": ids}, want={"logits": np.s_[0, PROMPT - 1]})
    chooser = session.keeper.chooser
    assert isinstance(chooser, Measured)
    chooser._looking.note(FIRST_NS)
    chooser._looking.note(FIRST_NS)
    assert not chooser.looks()
    recomputed = []
    for at in range(PROMPT, PROMPT + 20):
        ids[0, at] = at
        found = session.run({"ids": ids}, want={"logits": np.s_[0, at]})["logits"]
        recomputed.append(session.report().recomputed)
    fresh = tg.GraphSession(graph, folder, calibrate=False)
    expected = fresh.run({"ids": ids}, want={"logits": np.s_[0, at]})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return max(recomputed[2 * SURE :]) < 0.2
