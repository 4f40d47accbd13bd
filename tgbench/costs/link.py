"""What copying between two devices takes, measured here."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

SMALL_BYTES, LARGE_BYTES = 256, 16 << 20
TURNS = 9


@dataclass(frozen=True)
class Link:
    """What copying between a session's device and another one takes, either way.

    Fields:
        latency_ns: of each box.
        bytes_per_ns: besides.
    """

    latency_ns: float
    bytes_per_ns: float

    def time_ns(self, size_bytes: int) -> float:
        return self.latency_ns + size_bytes / self.bytes_per_ns

    @staticmethod
    def measured(home: str, other: str) -> Link:
        """By copies of two sizes there and back, the medians of some turns.

        >>> Link.measured("cpu", "cpu:1").bytes_per_ns > 0
        True
        """
        small_ns, large_ns = (
            _there_and_back_ns(home, other, n) for n in (SMALL_BYTES, LARGE_BYTES)
        )
        rate = (LARGE_BYTES - SMALL_BYTES) / max(large_ns - small_ns, 1.0)
        return Link(max(small_ns - SMALL_BYTES / rate, 0.0), rate)


def _there_and_back_ns(home: str, other: str, size_bytes: int) -> float:
    """Half of what a copy there and back takes, once a device is awake."""
    here = torch.zeros(size_bytes, dtype=torch.uint8, device=home)
    there = torch.zeros(size_bytes, dtype=torch.uint8, device=other)
    took = []
    for _ in range(1 + TURNS):
        began_ns = time.perf_counter_ns()
        there.copy_(here)
        here.copy_(there)
        if here.is_cuda or there.is_cuda:
            torch.cuda.synchronize()
        took.append(time.perf_counter_ns() - began_ns)
    return statistics.median(took[1:]) / 2
