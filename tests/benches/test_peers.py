"""Other systems are asked in processes of their own; those that are not there are named."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers import gemma, processes
from benchmarks.peers.child import Child
from benchmarks.peers.processes import Peer, opened
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

NOBODY = Peer("nobody-fp32", "Nobody", "nobody", "fp32")


def test_the_step_that_others_convert_is_the_model(tmp_path: Path) -> None:
    config = gemma3_reduced()
    folder = gemma3_checkpoint(tmp_path, config)
    module, _ = gemma.step(folder, tokens=8)
    ids = np.random.default_rng(0).integers(0, config["vocab_size"], (1, 8))
    kept = [torch.zeros(module.config.cache) for _ in "kv"]
    for at in range(8):
        earlier = [cache[i, :, :at] for i in range(len(module.layers)) for cache in kept]
        logits, *rows = module(torch.tensor([ids[0, at]]), torch.tensor([at]), *earlier)
        for cache, new in zip(kept, rows, strict=True):
            cache[:, :, at] = new[:, :, 0]
    session = GraphSession(gemma3(config, 8), weights=folder, calibrate=False)
    expected = session.run({"ids": ids}, want={"logits": np.s_[0, 7]})["logits"]
    np.testing.assert_allclose(logits[0].numpy(), expected, atol=1e-5)


def test_a_child_answers_with_both_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Decode:
        def __init__(self, job: Any) -> None:
            self.seen = [job.threads]

        def prompt(self, ids: list[int]) -> None:
            self.seen += ids

        def step(self, token: int, at: int) -> Any:
            return np.eye(9, dtype=np.float32)[sum(self.seen) + token + at]

    fake = SimpleNamespace(decode=Decode, PACKAGES=("numpy",))
    monkeypatch.setitem(sys.modules, "benchmarks.peers.fake", fake)
    child, file = Child(), tmp_path / "logits.npy"
    job = {"system": "fake", "task": "decode", "precision": "fp32", "threads": 1}
    assert child.answer({"do": "open", "model": "m", "work": "w", **job})["versions"]["numpy"]
    assert child.answer({"do": "prompt", "ids": [2]}) == {}
    found = child.answer({"do": "step", "token": 1, "at": 3, "save": str(file)})
    assert found["choice"] == np.load(file).argmax() == 7
    assert min(found["wall_ns"], found["cpu_ns"]) >= 0


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (sys.executable, "No module named 'benchmarks.peers.nobody'"),
        ("/bin/false", "its process ended"),
        ("/no/python", "make peers"),
    ],
)
def test_who_is_not_there_is_named_with_the_reason(
    python: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PYTHON", Path(python))
    job = {"task": "decode", "threads": 1, "model": "m", "work": str(tmp_path)}
    with opened([NOBODY], lambda process: None, **job) as (one,):
        assert one.process is None
        assert reason in one.to_dict()["missing"]
        assert one.to_dict()["name"] == "nobody-fp32"
