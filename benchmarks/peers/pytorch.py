"""PyTorch in a process of its own, where what tgbench does to its own process must not help it."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.peers.child import Array, Job

PACKAGES = ("torch",)


class Forward:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self.module = torch.export.load(job.model).module()
        self.given = torch.from_numpy(np.load(job.inputs))

    def run(self) -> Array:
        with torch.no_grad():
            found: Array = self.module(self.given).numpy()
        return found


forward = Forward
