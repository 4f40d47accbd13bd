"""Weights that follow from others: held in place of these where no run reads them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tgbench as tg
from tgbench.base.errors import WeightsError
from tgbench.base.safetensors import save
from tgbench.sources.torch import from_torch


def network() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
    ).eval()  # fmt: skip
    for layer in (made[1], made[4]):
        nn.init.uniform_(layer.weight, 0.5, 2.0)
        nn.init.normal_(layer.running_mean)
    return made


def held_bytes(session: tg.GraphSession) -> int:
    return sum(tensor.nbytes for tensor in session.pool.buffers.values())


def read_bytes(module: nn.Module) -> int:
    """What a run reads: two weights, and a bias for each channel."""
    weights = (one.weight for one in module if isinstance(one, nn.Conv2d))
    return sum(4 * (weight.numel() + len(weight)) for weight in weights)


@pytest.mark.parametrize("way", ["module", "shared", "file", "arrays"])
def test_a_folded_weight_is_held_and_not_what_it_is_folded_of(way: str, tmp_path: Path) -> None:
    """They were both in memory: of a ResNet-152 452 MiB, where 229 are read."""
    module, image = network(), torch.randn(1, 3, 8, 8)
    imported = from_torch(module, (image,), share=way == "shared")
    given: Any = imported.weights
    if way == "file":
        given = tmp_path / "weights.safetensors"
        save({n: w.numpy() for n, w in imported.weights.items()}, given)
    taken = way in ("module", "shared")
    session = tg.GraphSession(imported if taken else imported.graph, None if taken else given)
    assert held_bytes(session) == read_bytes(module)
    assert session.estimate_memory()["cpu"].parameter_bytes == read_bytes(module)
    found = session.run({"input": image})["output"]
    assert torch.allclose(found, module(image), atol=1e-5)


def test_what_a_run_reads_as_well_is_held_beside_what_follows_from_it() -> None:
    g = tg.GraphBuilder()
    x, w, v = g.input("x", (2, 3)), g.parameter("w", (3,)), g.parameter("v", (3,))
    g.output("y", x * w + x * (w + 1.0) + x * (v + 1.0))
    weights = {"w": np.ones(3, np.float32), "v": np.full(3, 2.0, np.float32)}
    session, ones = tg.GraphSession(g.build(), weights), np.ones((2, 3), np.float32)
    assert {"w"} < set(session.graph.parameters)
    assert "v" not in session.graph.parameters
    assert held_bytes(session) == 3 * 12 + 4  # w, w + 1, v + 1, and the 1
    np.testing.assert_array_equal(session.run({"x": ones})["y"], 6 * ones)


def test_what_is_missing_is_named_as_it_is_in_the_file() -> None:
    imported = from_torch(network(), (torch.randn(1, 3, 8, 8),))
    weights = dict(imported.weights)
    del weights["1.running_mean"]
    with pytest.raises(WeightsError, match=r"1 weight missing, '1.running_mean'"):
        tg.GraphSession(imported.graph, weights)


def test_known_elements_stay_known() -> None:
    """A weight with a band of zeros: what they annihilate is not computed."""
    g = tg.GraphBuilder()
    x, w = g.input("x", (6, 6)), g.parameter("w", (6, 6))
    band = tg.ops.where(g.constant(np.tri(6, dtype=bool)), w, g.constant(np.float32(0.0)))
    g.output("y", tg.ops.matmul(band, x))
    session = tg.GraphSession(g.build(), {"w": np.ones((6, 6), np.float32)}, making="always")
    x_value = np.ones((6, 6), np.float32)
    session.run({"x": x_value})
    x_value[4] = 2.0
    session.run({"x": x_value})
    assert session.last is not None
    assert session.last.recomputed <= 0.5


def test_a_session_of_shared_weights_watches_what_was_folded() -> None:
    module, image = network(), torch.randn(1, 3, 8, 8)
    session = tg.GraphSession(from_torch(module, (image,), share=True))
    session.run({"input": image})
    with torch.no_grad():
        module[0].weight.mul_(2.0)
    with pytest.raises(WeightsError, match="changed in place"):
        session.run({"input": image})


def test_paths_and_checks_read_what_is_held() -> None:
    module, image = network(), torch.randn(1, 3, 8, 8)
    session = tg.GraphSession(from_torch(module, (image,)), calibrate=False)
    session.run({"input": image})
    pairs = [({"input": image}, {"output": module(image).detach()})]
    assert tg.check(session, pairs, against=copy.deepcopy(module)).passed
    session.take(None)
    assert torch.allclose(session.run({"input": image})["output"], module(image), atol=1e-5)
