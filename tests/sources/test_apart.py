"""Ops that write over their operand: written apart where nobody sees it, and right where somebody
does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import tgbench as tg
from tgbench.sources.torch import exporting
from tgbench.sources.torch.apart import write_apart
from tgbench.sources.torch.exporting import exported_program, writes_over

WIDE = 6
Forward = Callable[["Net", torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A forward pass over a few layers."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.eval()
        self._forward = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def _x() -> torch.Tensor:
    return torch.randn(4, WIDE, generator=torch.Generator().manual_seed(1))


def _writes(module: nn.Module, x: torch.Tensor) -> list[str]:
    program = exported_program(module, (x,), None)
    write_apart(program.graph_module)
    return [str(node.target) for node in writes_over(program)]


def _check(module: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        expected = module(x.clone()).numpy()
    found = tg.GraphSession(tg.from_torch(module, (x,)), calibrate=False).run(x.numpy())["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _residual(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = functional.relu(net.norm(net.conv(x.reshape(1, 2, 3, 4))), inplace=True)
    z = functional.hardswish(net.norm(net.conv(y[:, :2])), inplace=True)
    z += y
    functional.dropout(z, 0.5, training=False, inplace=True)
    return z.add_(1.0).mul_(2.0).relu_().flatten()


def test_what_networks_do_in_place_is_written_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then PyTorch need not go through the program once more."""
    monkeypatch.setattr(exporting, "_written_in_others", None)
    assert not _writes(Net(_residual), _x())
    _check(Net(_residual), _x())


def _seen_by_a_view(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.first(x)
    rows = y[1:3]
    y.relu_()
    return rows * 2


def _seen_by_dropout(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.first(x)
    same = functional.dropout(y, 0.5, training=False)
    same.relu_()
    return y - 1


def _seen_by_einsum(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.first(x)
    torch.einsum("ij->ji", y).relu_()
    torch.einsum("ji", y).add_(0.5)
    torch.einsum("ij->j", y).relu_()
    return y - 1


def _a_part(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.first(x)
    left, _ = y.chunk(2, 1)
    left.sigmoid_()
    return y


def _read_before(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.first(x)
    before = y * 3
    y.tanh_()
    return before + y


def _wider(net: Net, x: torch.Tensor) -> torch.Tensor:
    """What is added is float64; the sum stays float32."""
    y = net.first(x)
    y.add_(x.double() * 0.3)
    return y


def _itself(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.first(x)
    return y.add_(y).mul_(y)


@pytest.mark.parametrize(
    "forward",
    [_seen_by_a_view, _seen_by_dropout, _seen_by_einsum, _a_part, _read_before, _wider, _itself],
)
def test_whoever_sees_what_is_written_over_sees_it_changed(forward: Forward) -> None:
    _check(Net(forward), _x())


@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_views_and_writes_is_right(seed: int) -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        random = np.random.default_rng(seed)
        values = [net.first(x)]
        for _ in range(9):
            one, other = (values[int(random.integers(len(values)))] for _ in range(2))
            match int(random.integers(9)):
                case 0:
                    values.append(net.second(one))
                case 1:
                    values.append(one.relu_())
                case 2:
                    values.append(one.mul_(other))
                case 3:
                    values.append(one.view(WIDE, 4).view(4, WIDE))
                case 4:
                    values.append(functional.dropout(one, 0.1, training=False))
                case 5:
                    values.append(one.add_(0.25))
                case 6:
                    values.append(torch.tanh(one))
                case 7:
                    values.append(torch.einsum("ij->ji", one).t())
                case _:
                    values.append(functional.dropout(one, 0.1, training=False, inplace=True))
        return torch.stack([value * (i + 1) for i, value in enumerate(values)]).sum(0)

    _check(Net(forward), _x())


def test_an_exported_program_gives_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = exported_program(Net(_residual), (_x(),), None), _x()
    with torch.no_grad():
        before = program.module()(x)
        imported = tg.from_torch(program)
        assert torch.equal(program.module()(x), before)
    found = tg.GraphSession(imported, calibrate=False).run(x.numpy())["output"]
    np.testing.assert_allclose(found, before.numpy(), rtol=1e-5, atol=1e-6)


def test_an_input_is_not_written_over_unsaid() -> None:
    with pytest.raises(tg.ImporterError, match="clone it first"):
        tg.from_torch(Net(lambda net, x: x.relu_() + 1), (_x(),))
