"""Models whose runs are served by any program that may: right, and honest about what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.choosing import serve_any
from session_cases import held_beside
from torch import Tensor, nn
from zoo import seeded

import tgbench as tg

KINDS = ("one", "one", "box", "row", "tail", "scatter")
BATCH, TIME, DEPTH, RUNS = 3, 6, 8, 40


class Mixture(nn.Module):
    """Two of four experts a row: all rows times all experts, of which some are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(DEPTH, 4)
        self.experts = nn.Parameter(torch.randn(4, DEPTH, DEPTH) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        share, which = torch.softmax(self.gate(x), -1).topk(2, -1)
        y = torch.einsum("btc,ecd->bted", x, self.experts)
        y = y.gather(2, which[..., None].expand(*which.shape, DEPTH))
        return x + (y * share[..., None]).sum(2)


def mixture() -> tuple[nn.Module, Tensor]:
    return seeded(Mixture), torch.randn(BATCH, TIME, DEPTH)


def part(size: int, random: np.random.Generator) -> slice:
    start = int(random.integers(size))
    return slice(start, int(random.integers(start, size)) + 1)


def edited(x: Tensor, random: np.random.Generator, kind: str) -> Tensor:
    x, index = x.clone(), tuple[Any, ...]()
    if kind == "scatter":
        flags = torch.from_numpy(random.random(x.shape) < 0.2)
        return torch.where(flags, torch.from_numpy(random.standard_normal(x.shape)).float(), x)
    if kind == "one":
        index = tuple(int(random.integers(size)) for size in x.shape)
    elif kind == "box":
        index = tuple(part(size, random) for size in x.shape)
    else:
        axis = int(random.integers(3)) if kind == "row" else 1
        at = int(random.integers(x.shape[axis]))
        index = (slice(None),) * axis + (at if kind == "row" else slice(at, None),)
    x[index] = torch.from_numpy(np.asarray(random.standard_normal(x[index].shape))).float()
    return x


def wanted(shape: tuple[int, ...], random: np.random.Generator) -> Any:
    if random.random() < 0.3:
        return None
    if random.random() < 0.5:
        return tuple(slice(None) if random.random() < 0.4 else part(n, random) for n in shape)
    axis = int(random.integers(3))
    at = int(random.integers(shape[axis]))
    return (*(slice(None),) * axis, slice(at, at + 1))


def check_held(session: tg.GraphSession, leaves: Mapping[str, Any]) -> None:
    """What is said to be there is."""
    for node, _, found, right in held_beside(session, leaves):
        np.testing.assert_allclose(found, right, atol=1e-4, err_msg=node.name)


@pytest.mark.parametrize("seed", [5004, 5017, *range(6)])
def test_a_mixture_of_experts_is_right_whatever_serves_it(seed: int) -> None:
    """Programs of any size fill what kernels read beside rows; states are looked up elsewhere."""
    (module, x), random = mixture(), np.random.default_rng(seed)
    imported = tg.from_torch(module, (x,))
    retain = "all" if random.random() < 0.3 else "auto"
    session = tg.GraphSession(imported, retain=retain, calibrate=False)
    serve_any(session, seed).strict = bool(random.random() < 0.3)
    weights = {name: weight.numpy() for name, weight in imported.weights.items()}
    for step in range(RUNS):
        if step and random.random() < 0.8:
            x = edited(x, random, KINDS[random.integers(6)])
        want, keep = wanted(x.shape, random), bool(random.random() < 0.9)
        found = session.run({"x": x.clone()}, want={"output": want} if want else None, keep=keep)
        with torch.no_grad():
            right = module(x)
        torch.testing.assert_close(
            found["output"], right[want or ...], atol=1e-4, rtol=1e-4, msg=f"run {step}"
        )
        if keep:
            check_held(session, {"x": x.numpy(), **weights})
