"""What there was no time for at the beginning of a search is looked at later."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tgbench as tg
from tgbench.plans.search import beginning


class Gated(nn.Module):
    """Of which the planner keeps other values than the ladders let go of last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, g = torch.tanh(self.a(x)), torch.sigmoid(self.b(y))
        z = h * g
        return self.c(z), (h - g).cumsum(1), z.mean(1)


def test_a_search_in_a_hurry_is_not_behind_a_greedy_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, given = np.random.default_rng(0), {"x": torch.randn(2, 16, 8), "y": torch.randn(2, 16, 8)}
    imported = tg.from_torch(Gated().eval(), tuple(given.values()))
    everything = tg.GraphSession(imported, making="always", calibrate=False)
    for i in range(7):
        everything.run(given)
        given["xy"[i % 2]][:, int(rng.integers(16)), int(rng.integers(8))] += 1.0

    def within(seconds: float | None, steps: int | None) -> float:
        session = tg.GraphSession(imported, memory=7000, calibrate=False)
        for call in everything.trace:
            session.trace.append(call)
        mode = "search" if seconds is not None else "greedy"
        return session.optimize(mode, seconds=seconds, steps=steps).search.best_ns

    greedy_ns = within(None, 4)
    monkeypatch.setattr(beginning, "SOON", 0.0)
    monkeypatch.setattr(beginning, "BEGINNING", -1.0)
    assert within(4.0, None) <= greedy_ns
