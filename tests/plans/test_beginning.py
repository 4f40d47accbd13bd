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


class Branched(nn.Module):
    """Each layer has branches that see further than one another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Conv2d(3, 16, 3, 2, 1)
        self.layers = nn.ModuleList(self._layer(given) for given in (16, 32, 32))

    @staticmethod
    def _layer(given: int) -> nn.ModuleList:
        near = nn.Conv2d(given, 8, 1)
        further = nn.Sequential(nn.Conv2d(given, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        far = nn.Sequential(nn.Conv2d(given, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2))
        pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(given, 8, 1))
        return nn.ModuleList([near, further, far, pooled])

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = torch.relu(torch.cat([branch(x) for branch in layer], 1))
        return x.mean((2, 3))


@pytest.mark.parametrize("share", [None, 10.0])
def test_with_memory_for_everything_runs_are_as_fast_as_with_half_of_it(
    share: float | None,
) -> None:
    rng, image = np.random.default_rng(3), torch.randn(2, 3, 64, 64)
    imported = tg.from_torch(Branched().eval(), (image,))
    everything = tg.GraphSession(imported, retain="all", making="always", calibrate=False)
    for _ in range(6):
        covered, (i, j) = image.clone(), rng.integers(56, size=2)
        covered[..., i : i + 8, j : j + 8] = 0
        everything.run({"x": covered})

    def within(share: float | None) -> float:
        most = everything.placement.size_bytes
        memory = None if share is None else int(share * most)
        session = tg.GraphSession(imported, memory=memory, calibrate=False)
        for call in everything.trace:
            session.trace.append(call)
        return session.optimize("greedy", steps=0).search.best_ns

    assert within(share) <= 1.1 * within(0.5)
