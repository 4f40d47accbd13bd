"""Numbers so large that what is added to them loses digits: sums with them stay as they were. And
some so far from 1 that their products are no floats: products with them do.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tgbench as tg

ROUNDS = 1.5 * 2**23  # added and taken away again, the nearest integer is left


class Rounded(nn.Module):
    """As quantisation is written where it is tried out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) * 8 + ROUNDS) - ROUNDS


class Masked(nn.Module):
    """Attention with a bias, and the mask of the words that are there as numbers."""

    def __init__(self, low: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bias, self.low = nn.Parameter(torch.randn(16, 16)), low

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        hidden = self.bias + (1.0 - there[:, None, :]) * self.low
        return (x @ x.transpose(1, 2) + hidden).softmax(-1) @ x


class Running(nn.Module):
    """A state, and two products of one input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("total", torch.zeros(4, 8))
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.total.mul_(0.5).add_(x @ self.w + x @ self.w.T)
        return self.total * 2


class Scaled(nn.Module):
    """Factors whose products with each other are infinite, or nearly 0."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * 1e-20) * 1e20 * 1e-20 + x / (y * y + 1.0)


class Closed(nn.Module):
    """The least float closes a mask; what stands behind it would make it infinite."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        closed = (1.0 - (y > 0).float()) * torch.finfo(torch.float32).min
        return torch.softmax((x * 0.125 + closed) * 2.0, -1)


def test_what_rounds_is_no_shift_of_a_product() -> None:
    module, x = Rounded().eval(), torch.randn(4, 8)
    session = tg.GraphSession(tg.from_torch(module, (x,)), calibrate=False)
    for row in range(4):
        found = torch.as_tensor(session.run({"x": x})["output"])
        assert torch.equal(found, found.round())
        assert (found - module(x)).abs().max() <= 1  # halves may go either way
        x[row] += 1


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e9, -1e4])
def test_no_path_adds_scores_to_what_closes_a_mask(low: float) -> None:
    module, there = Masked(low).eval(), torch.ones(2, 16)
    there[:, 10:] = 0
    x = torch.randn(2, 16, 8) / 2
    session = tg.GraphSession(tg.from_torch(module, (x, there)), calibrate=False)
    session.run({"x": x, "there": there})
    expected, paths = module(x, there).detach(), session.paths()
    for path in islice(paths, 12):
        found = paths.open(path).run({"x": x, "there": there})["output"]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("module", [Scaled(), Closed()])
def test_no_path_has_products_that_are_no_floats(module: nn.Module) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 16, 16), torch.randn(2, 16, 16)
    session = tg.GraphSession(tg.from_torch(module.eval(), (x, y)), calibrate=False)
    session.run({"x": x, "y": y})
    expected, paths = module(x, y).detach(), session.paths()
    graphs = {path.graph.fingerprint: path for path in islice(paths, 24)}
    assert len(graphs) > 1
    for path in graphs.values():
        found = paths.open(path).run({"x": x, "y": y})["output"]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("form", ["softmax", "layer norm"])
def test_a_number_before_a_norm_is_no_term_along_an_axis(form: str) -> None:
    class Before(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = 1.0 - x.sigmoid()
            return h.softmax(-1) if form == "softmax" else nn.functional.layer_norm(h, (8,))

    module, x = Before().eval(), torch.randn(4, 8)
    session = tg.GraphSession(tg.from_torch(module, (x,)), calibrate=False)
    session.run({"x": x})
    paths = session.paths()
    found = paths.open(paths[0]).run({"x": x})["output"]
    np.testing.assert_allclose(found, module(x), atol=1e-5)


def test_paths_of_a_module_with_a_state_are_raced() -> None:
    module, x = Running().eval(), torch.randn(4, 8)
    session = tg.GraphSession(tg.from_torch(module, (x,)), calibrate=False)
    for _ in range(3):
        session.run({"x": torch.randn(4, 8)})
    paths = session.paths()
    assert all(took > 0 for took in paths.race([paths[0], paths.given], rounds=2))
