"""Modules that have a fused op beside a part of what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tgbench as tg
from tgbench.graph import recognise
from tgbench.graph.rewrite.rules import fused

MOST = 12  # times that a graph is gone through

Tensors = Tensor | tuple[Tensor, ...]
TWICE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensors]] = {
    "a tied autoencoder": lambda x, w, v: functional.linear(functional.linear(x, w).relu(), w.t()),
    "a tied autoencoder, by a product": lambda x, w, v: functional.linear(x, w).relu() @ w,
    "tied and masked": lambda x, w, v: functional.linear(x, w * v).relu() @ (w * v),
    "a layer norm, its mean and variance": lambda x, w, v: (
        functional.layer_norm(x, (8,)), x.mean(1), x.var(1)
    ),
    "a norm, its squares": lambda x, w, v: (
        functional.rms_norm(x, (8,)), (x * x).mean(-1, True)
    ),
    "a router, its z-loss": lambda x, w, v: (x.softmax(-1), x.logsumexp(-1).square().mean()),
}  # fmt: skip


class Twice(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.made = TWICE[name]
        self.w, self.v = (nn.Parameter(torch.randn(4, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensors:
        return self.made(x, self.w, self.v)


@pytest.mark.parametrize("name", TWICE)
def test_importing_and_looking_for_paths_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(where: ModuleType) -> None:
        times, really = list[None](), where.cover

        def cover(graph: Any) -> Any:
            times.append(None)
            assert len(times) <= MOST, "no end of it"
            return really(graph)

        monkeypatch.setattr(where, "cover", cover)

    counted(recognise)
    counted(fused)
    module, x = Twice(name).eval(), torch.rand(3, 8)
    session = tg.GraphSession(tg.from_torch(module, (x,)), calibrate=False)
    found = session.run(x.numpy())
    with torch.inference_mode():
        expected = module(x)
    for mine, theirs in zip(
        found.values(), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        np.testing.assert_allclose(mine, theirs.numpy(), 1e-5, 1e-5)
    assert next(iter(session.paths()))
