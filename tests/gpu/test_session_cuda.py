"""The same session on a GPU: equal logits, in an arena of its own. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tgbench.session.session import GraphSession
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced
from tgbench.sources.models.gemma3 import gemma3

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_gemma_decodes_on_the_gpu_as_on_the_cpu(tmp_path) -> None:
    config = gemma3_reduced()
    folder = gemma3_checkpoint(tmp_path / "gemma", config)
    sessions = [
        GraphSession(gemma3(config, 32), weights=folder, device=device)
        for device in ("cpu", "cuda:0")
    ]
    rng = np.random.default_rng(0)
    ids = np.zeros((1, 32), np.int64)
    ids[0, :8] = rng.integers(0, config["vocab_size"], 8)
    for t in [7, *range(8, 16)]:
        ids = ids.copy()
        ids[0, t] = rng.integers(0, config["vocab_size"])
        here, there = (
            session.run({"ids": ids}, want={"logits": np.s_[0, t]})["logits"]
            for session in sessions
        )
        assert np.abs(here - there).max() <= 1e-4 * np.abs(here).max()
    assert sessions[1].counters.moved > 0


def test_editing_in_the_middle_on_the_gpu(tmp_path) -> None:
    config = gemma3_reduced()
    folder = gemma3_checkpoint(tmp_path / "gemma", config)
    session = GraphSession(gemma3(config, 32), weights=folder, device="cuda:0")
    fresh = GraphSession(gemma3(config, 32), weights=folder, device="cuda:0")
    ids = np.arange(32, dtype=np.int64)[None] % config["vocab_size"]
    session.run({"ids": ids}, want={"logits": np.s_[0, 31]})
    edited = ids.copy()
    edited[0, 5] = 77
    got = session.run({"ids": edited}, want={"logits": np.s_[0, 31]})["logits"]
    expected = fresh.run({"ids": edited}, want={"logits": np.s_[0, 31]})["logits"]
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
