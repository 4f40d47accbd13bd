"""Video nets beside PyTorch: everything computed, and one patch of one frame changed.

    r3d        18 layers of windows of 3 × 3 × 3
    r2plus1d   each of them as one of 1 × 3 × 3 and one of 3 × 1 × 1

    round      PyTorch │ full │ edited       in turns, of the same video

What counts is the processor's time of one thread. Weights are random.

Source: Tran et al., "A closer look at spatiotemporal convolutions for action recognition" (2018).

python -m benchmarks.volumes
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.measure import Clocked, ms, rotated, run_models
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

FRAMES, SIDE, WARM, ROUNDS = 8, 64, 30, 30
WIDTHS = (64, 128, 256, 512)
Windows = Callable[[int, int, int], nn.Module]  # of so many channels, to so many, with a stride


def whole(inside: int, outside: int, stride: int) -> nn.Module:
    """A window of 3 × 3 × 3."""
    return nn.Conv3d(inside, outside, 3, stride, 1, bias=False)


def apart(inside: int, outside: int, stride: int) -> nn.Module:
    """One of 1 × 3 × 3, then one of 3 × 1 × 1, of about as many weights together."""
    between = 27 * inside * outside // (9 * inside + 3 * outside)
    return nn.Sequential(
        nn.Conv3d(inside, between, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
        nn.BatchNorm3d(between),
        nn.ReLU(),
        nn.Conv3d(between, outside, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
    )


class Residual(nn.Module):
    """Two convolutions, and what goes past them."""

    def __init__(self, windows: Windows, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            windows(inside, outside, stride), nn.BatchNorm3d(outside), nn.ReLU(),
            windows(outside, outside, 1), nn.BatchNorm3d(outside),
        )  # fmt: skip
        self.past = nn.Identity() if inside == outside else nn.Sequential(
            nn.Conv3d(inside, outside, 1, stride, bias=False), nn.BatchNorm3d(outside)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.past(x)).relu()


def video_net(windows: Windows, widths: Sequence[int]) -> nn.Module:
    """A stem, two blocks of each width, and ten classes."""
    layers: list[nn.Module] = [
        nn.Conv3d(3, widths[0], (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
        nn.BatchNorm3d(widths[0]), nn.ReLU(),
    ]  # fmt: skip
    inside = widths[0]
    for width in widths:
        layers.append(Residual(windows, inside, width, 1 if width == widths[0] else 2))
        layers.append(Residual(windows, width, width, 1))
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(inside, 10))


def measured(windows: Windows, name: str, cache: Path, *, quick: bool = False) -> dict[str, Any]:
    """One net; `cache` is not used, as there are no files of weights."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    side, widths = (16, WIDTHS[:1]) if quick else (SIDE, WIDTHS)
    module = video_net(windows, widths).eval()
    random = np.random.default_rng(0)
    video = random.normal(size=(1, 3, FRAMES, side, side)).astype(np.float32)
    imported = from_torch(module, (torch.from_numpy(video),))
    [given] = imported.graph.inputs
    edited, full = GraphSession(imported), GraphSession(imported, making="always")
    found: dict[str, NDArray[np.float32]] = {}

    def changed() -> None:
        frame, patch = random.integers(FRAMES), side // 8
        top, left = random.integers(0, side - patch + 1, 2)
        place = np.s_[:, :, frame, top : top + patch, left : left + patch]
        video[place] = random.normal(size=video[place].shape)

    def by_pytorch() -> None:
        with torch.inference_mode():
            found["PyTorch"] = module(torch.from_numpy(video)).numpy()

    def in_full() -> None:
        full.forget()
        [found["full"]] = full.run({given: video}).values()

    def by_what_changed() -> None:
        [found["edited"]] = edited.run({given: video}).values()

    work = {
        "PyTorch": Clocked(by_pytorch),
        "full": Clocked(in_full),
        "edited": Clocked(by_what_changed),
    }
    warm, rounds = (1, 1) if quick else (WARM, ROUNDS)
    worst = 0.0
    for i in range(warm + rounds):
        changed()
        for which in rotated(list(work), i):
            work[which]()
        right = found["PyTorch"]
        off = max(np.abs(found[which] - right).max() for which in ("full", "edited"))
        worst = max(worst, float(off / np.abs(right).max()))
        if i % 10 == 0:
            note(f"{name}: round {i + 1} of {warm + rounds}")
    cpu_ns = {which: one.cpu[warm:] for which, one in work.items()}
    medians = {which: statistics.median(times) for which, times in cpu_ns.items()}
    say(table(["", *medians], [[f"{name}, ms", *map(ms, medians.values())]]))
    return {
        "frames": FRAMES, "side": side, "nodes": len(imported.graph.nodes),
        "worst_error": worst, "medians_ns": medians, "cpu_ns": cpu_ns,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    nets: dict[str, Windows] = {"r3d": whole, "r2plus1d": apart}
    return run_models(
        "volumes",
        "Video nets beside PyTorch.",
        argv,
        {name: partial(measured, net, name, quick=True) for name, net in nets.items()},
        {name: partial(measured, net, name) for name, net in nets.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
