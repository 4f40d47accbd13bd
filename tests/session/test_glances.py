"""What was made ready is seen at a glance, where looking for all programs does not pay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tgbench as tg
from tgbench.graph.graph import Graph
from tgbench.programs.program import SURE
from tgbench.session.choosing import FIRST_NS, Measured
from tgbench.session.glances import HOPES, Glances
from tgbench.session.purse import Purse
from tgbench.session.serving import EXACTLY, WIDER
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
    for _ in range(3 * HOPES):
        glances.note(60.0, 700.0)
        assert glances.pay(_purse(-1e12))
    seen = 0
    while glances.pay(_purse(-1e12)):  # until they find nothing any more
        glances.note(60.0, None)
        seen += 1
    assert 3 < seen < 3 * HOPES


def test_what_is_slower_than_everything_is_not_taken() -> None:
    chooser = Measured(lambda *_: iter(()))  # type: ignore[arg-type, return-value]
    chooser._purse = _purse(1_000.0)
    assert not chooser.glances(EXACTLY)
    chooser.made_ready(EXACTLY, 50)
    assert chooser.glances(EXACTLY)
    assert not chooser.glances(WIDER)  # each rung for itself
    assert not chooser.glanced(EXACTLY, 50, None)
    assert not chooser.glanced(EXACTLY, 50, 1_000.0)
    assert chooser._purse.left_ns == 900.0
    assert chooser.glanced(EXACTLY, 50, 999.0)


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
