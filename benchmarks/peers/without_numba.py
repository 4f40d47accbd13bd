"""tgbench itself where numba is not installed, as in `.venv-peers`: NumPy and PyTorch compute.

As in the process that has numba, every class of run has its program before what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.peers.child import Array, Job
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3

PACKAGES = ("torch", "numpy")
MEMORY = "64MiB"
REHEARSED = 16  # tokens


class Decode:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        config = json.loads((job.model / "config.json").read_text(encoding="utf-8"))
        graph = gemma3(config, job.tokens)
        self.session = GraphSession(graph, weights=job.model, memory=MEMORY)
        self.ids = np.zeros((1, job.tokens), np.int64)

    def prompt(self, ids: Sequence[int]) -> None:
        count = len(ids)
        self.ids[0, :count] = ids
        for at in range(count, count + REHEARSED):
            self.logits(at - 1)
            self.ids[0, at] = ids[at - count]
        self.ids[0, count:] = 0
        self.logits(count - 1)

    def step(self, token: int, at: int) -> Array:
        self.ids[0, at] = token
        return self.logits(at)

    def logits(self, at: int) -> Array:
        found: Array = self.session.run({"ids": self.ids}, want={"logits": np.s_[0, at]})["logits"]
        return found


decode = Decode
