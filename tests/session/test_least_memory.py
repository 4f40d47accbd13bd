"""Real modules in the least memory: whatever was asked for before, what fits by itself is run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tgbench as tg
from tgbench.base.errors import BudgetError
from tgbench.session.chooser import Own
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch


class Skips(nn.Module):
    """Down and up again beside a skip; a second output that little depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.down, self.up = nn.Conv2d(8, 8, 3, 2, 1), nn.ConvTranspose2d(8, 8, 2, 2)
        self.leave = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = nn.functional.silu(self.norm(self.enter(x)) + t[:, :, None, None])
        half = self.down(whole)
        left = self.leave(torch.cat([self.up(half), whole], 1))
        return left, nn.functional.interpolate(half, scale_factor=2.0, mode="bilinear")


def made(make: Any, *shapes: Sequence[int]) -> tuple[nn.Module, Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    module = make().eval()
    given = [torch.randn(*shape) for shape in shapes]
    return module, from_torch(module, tuple(given)), given


@cache
def grown() -> tuple[nn.Module, Any, list[torch.Tensor]]:
    return made(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.Conv2d(8, 4, 3, padding=1),
        ),
        (2, 3, 8, 8),
    )


@cache
def padded() -> tuple[nn.Module, Any, list[torch.Tensor]]:
    """Groups, and edges that show what is at other ends."""
    return made(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1),
            nn.Conv2d(4, 8, 3, dilation=2, groups=2, padding="same"),
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(8, 4, 3, padding=2, padding_mode="reflect"),
            nn.ConvTranspose2d(4, 4, 3, groups=2, dilation=2),
        ),
        (2, 3, 8, 8),
    )


def least(imported: Any, inputs: Any) -> int:
    with pytest.raises(BudgetError) as caught:
        GraphSession(imported, memory=1).run(inputs)
    return int(caught.value.needed_bytes)


@pytest.mark.parametrize("making", ["always", "measured"])
@pytest.mark.parametrize("times", [1.0, 1.3])
def test_a_row_is_found_wherever_it_is_after_everything(making: Any, times: float) -> None:
    """Of what follows a batch and a channel at once, weights seem to move; none is laid out."""
    module, imported, (x,) = grown()
    memory = int(times * least(imported, x))
    for row in range(16):
        session = GraphSession(imported, memory=memory, making=making)
        session.run(x)
        session.forget()
        found = session.run(x, np.s_[0, 0, row])["output"]
        torch.testing.assert_close(found, module(x)[0, 0, row], atol=1e-5, rtol=0)
        found = session.run(x + 1, np.s_[0, 0, row])["output"]
        torch.testing.assert_close(found, module(x + 1)[0, 0, row], atol=1e-5, rtol=0)


def test_what_is_rounded_up_over_an_origin_is_made_for_its_place_alone() -> None:
    """A plan has room for the numbers of a run; said of every origin, it would take more."""
    module, imported, (x,) = padded()
    memory, want = least(imported, x), np.s_[0, 0, 7:9, 5]
    session = GraphSession(imported, memory=memory, making="always")
    found = session.run(x, want)["output"]
    torch.testing.assert_close(found, module(x)[want], atol=1e-5, rtol=0)
    assert session.counters.planned <= 2


@pytest.mark.parametrize("making", ["always", "measured"])
def test_everything_that_fits_by_itself_is_run_after_a_part(making: Any) -> None:
    """One map for both is larger; nothing else of earlier runs stands in its way."""
    module, imported, (x, t) = made(Skips, (2, 3, 12, 12), (2, 8))
    inputs = {"x": x, "t": t}
    memory = least(imported, inputs)
    session = GraphSession(imported, memory=memory, making=making)
    part = {"output[1]": np.s_[0, 0, 8:12, 2:9]}
    for step in range(3):
        inputs = {"x": x, "t": t + step}
        wanted = module(x, t + step)
        found = session.run(inputs, part)["output[1]"]
        torch.testing.assert_close(found, wanted[1][0, 0, 8:12, 2:9], atol=1e-5, rtol=0)
        both = session.run({"x": x, "t": t + step + 0.5})
        for name, one in zip(both, module(x, t + step + 0.5), strict=True):
            torch.testing.assert_close(both[name], one, atol=1e-5, rtol=0)
    assert session.counters.planned <= 4


def test_what_does_not_fit_by_itself_leaves_a_session_as_it_was() -> None:
    module, imported, (x, t) = made(Skips, (2, 3, 12, 12), (2, 8))
    part = {"output[1]": np.s_[0, 0, 8:12, 2:9]}
    with pytest.raises(BudgetError) as caught:
        GraphSession(imported, memory=1).run({"x": x, "t": t}, part)
    session = GraphSession(imported, memory=caught.value.needed_bytes)
    session.run({"x": x, "t": t}, part)
    classes = dict(session.planning.classes)
    with pytest.raises(tg.BudgetError):
        session.run({"x": x, "t": t + 1})
    assert dict(session.planning.classes) == classes
    found = session.run({"x": x, "t": t + 2}, part)["output[1]"]
    wanted = module(x, t + 2)[1][0, 0, 8:12, 2:9]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


class Recurrent(nn.Module):
    """Steps written out, whose sums lie where those before them did."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = nn.functional.elu(self.k(x)) + 1, self.v(x)
        steps = [v[:, 0]]
        for t in range(1, x.shape[1]):
            steps.append(steps[-1] * k[:, t - 1] + (v[:, t] if t % 2 else v[:, t - 1]))
        return torch.stack(steps, 1)


@pytest.mark.parametrize("making", ["always", "measured"])
@pytest.mark.parametrize("part", [np.s_[:, :8], np.s_[0], np.s_[:, 3:5, 2], np.s_[1, 8]])
def test_a_part_is_there_wherever_all_of_it_is(making: Any, part: Any) -> None:
    """What it takes by itself may be more: then all of it is computed, and a part handed out."""
    module, imported, (x,) = made(Recurrent, (2, 9, 8))
    session = GraphSession(imported, memory=least(imported, x), making=making, calibrate=False)
    for row in range(4):
        found = session.run(x, part)["output"]
        torch.testing.assert_close(found, module(x)[part], atol=1e-5, rtol=1e-5)
        x[0, row] += 1
    found = session.run(x)["output"]
    torch.testing.assert_close(found, module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("memory", [None, "16MiB", "24KiB"])
def test_what_was_answered_is_held_for_who_asks_again(memory: str | None) -> None:
    """Every change reaches everything, so nothing else reads what was answered. Under a budget it
    was not held, and the same asked for again was computed again.
    """
    _, imported, (x,) = made(lambda: nn.TransformerEncoderLayer(32, 4, 64), (8, 1, 32))
    session = GraphSession(imported, memory=memory, making="measured", calibrate=False)
    first = session.run(x)["output"]
    scheduled, placement = session.scheduled, session.memory.placement
    assert scheduled.base[scheduled.graph.outputs["output"]] in placement.retained
    session.keeper.chooser = session.runner.chooser = Own()
    assert torch.equal(session.run(x)["output"], first)
    assert session.last is not None
    assert session.last.instructions == 0
