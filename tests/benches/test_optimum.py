"""The exact optimum of small decision processes, and how far the search is behind it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.optimum import Process, compare, mean_ns, optimum_ns, processes, steady


def tiny(seed: int) -> Process:
    return processes("mixed", seed, 4, 2)


def policies(process: Process) -> list[tuple[int, ...]]:
    """Every way of keeping the same after each turn."""
    return list(itertools.product(range(1 << process.count), repeat=len(process.turns)))


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_not_behind_any_policy_of_turns(seed: int) -> None:
    process = tiny(seed)
    budget = int(process.size_bytes.sum() // 2)
    rng = np.random.default_rng(seed)
    drawn = policies(process)
    some = [drawn[int(i)] for i in rng.integers(len(drawn), size=300)]
    best = min(mean_ns(process, keep, budget) for keep in some)
    assert optimum_ns(process, budget) <= best * (1 + 1e-6)


def test_with_all_memory_everything_is_kept() -> None:
    process = tiny(1)
    everything = [(1 << process.count) - 1] * len(process.turns)
    plenty = int(process.size_bytes.sum())
    assert optimum_ns(process, plenty) == pytest.approx(mean_ns(process, everything, plenty))


def test_with_no_memory_every_run_computes_all_that_it_needs() -> None:
    process = tiny(2)
    share = dict.fromkeys(range(2), 0.0)
    for (turn, _), part in steady(process, [0] * len(process.turns)).items():
        share[process.turns[turn][1]] += part
    alone = sum(part * process.time_ns(process.computed(k, 0)) for k, part in share.items())
    assert optimum_ns(process, 0) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("kind", "seed", "budget"),
    [("mixed", 0, 0.3), ("adversarial", 1, 0.5), ("branchy", 2, 0.15), ("sticky", 1, 0.15)],
)
def test_the_search_comes_within_a_percent(kind: str, seed: int, budget: float) -> None:
    found = compare(kind, seed, budget, count=9)
    assert 1 - 1e-6 <= found.ratio <= 1.01


def test_memory_within_a_run_counts() -> None:
    """A value that is read while another is made takes room beside it."""
    process = Process(
        ((), (0,)), np.array([5.0, 1.0]), np.array([64, 64]), (0b10, 0b10), (0b10, 0b10),
        np.full((2, 2), 0.5),
    )  # fmt: skip
    assert optimum_ns(process, 64) == pytest.approx(1.0)  # keep the first, make the second
    assert process.peak_bytes(0, 0b01, 0b01) == 64
    assert process.peak_bytes(0, 0b01, 0b11) == 128
