"""A causal audio network in plain torch: gated dilated convolutions with residuals and skips.

    x ─ enter ─→ h ─┬─ conv(2 taps, dilation 1, 2, 4, …) ─ tanh · sigmoid ─┬─ mix ─→ + ─→ h …
                    └──────────────────────────────────────────────────────│──────────↗
                                                       Σ skip ←────────────┘ ─ leave ─→ y

Source: van den Oord et al., arXiv:1609.03499, section 2; left out: conditioning and the softmax
over quantised samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Wavenet(nn.Module):
    """x [1, inputs, time] → [1, outputs, time]; a sample sees `reach` samples, itself included."""

    def __init__(
        self, channels: int = 32, layers: int = 8, inputs: int = 1, outputs: int = 1, seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.enter = nn.Conv1d(inputs, channels, 1)
            self.gates = nn.ModuleList(
                nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(layers)
            )
            self.mixes = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
            self.leave = nn.Conv1d(channels, outputs, 1)
        self.eval()

    @property
    def reach(self) -> int:
        return 1 << len(self.gates)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        skip = torch.zeros_like(h)
        for i, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            wave, door = gate(F.pad(h, (1 << i, 0))).chunk(2, dim=1)
            mixed = mix(torch.tanh(wave) * torch.sigmoid(door))
            h, skip = h + mixed, skip + mixed
        found: Tensor = self.leave(F.relu(skip))
        return found
