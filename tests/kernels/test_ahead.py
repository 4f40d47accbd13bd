"""How far ahead weights are asked for: found out here, and no result depends on it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from tgbench.kernels.numba import ahead, loops
from tgbench.kernels.registry import ARENA, View


def _view(rows: int, dtype: str = "float32") -> View:
    return View(ARENA, dtype, (rows, 1024), (1024, 1), 0)


def test_small_matrices_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "measured_ahead", lambda dtype: 2048)
    rows = ahead.MOST_BYTES // 4 // 1024
    assert ahead.ahead_of(_view(rows)) == 0
    assert ahead.ahead_of(_view(rows + 1)) == 2048


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("quickest", ahead.DISTANCES)
def test_the_quickest_distance_is_taken(
    quickest: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each weight dtype for itself; the nearest of those that are as quick."""
    now, asked = [0], list[tuple[Any, ...]]()

    def compiled(function: Any, *kinds: str) -> Any:
        assert kinds[2] == dtype

        def product(*arguments: Any) -> None:
            asked.append(arguments)
            now[0] += 1000 if arguments[-1] in (quickest, 4096) else 1100

        return product

    monkeypatch.setattr(ahead, "PART_BYTES", 1 << 16)
    monkeypatch.setattr(loops, "compiled", compiled)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    assert ahead.measured_ahead.__wrapped__(dtype) == quickest
    assert {arguments[-1] for arguments in asked} == set(ahead.DISTANCES)
    assert all(arguments[2].nbytes == 1 << 16 for arguments in asked)
    parts = {arguments[2].ctypes.data for arguments in asked}
    each = {(arguments[-1], arguments[2].ctypes.data) for arguments in asked}
    assert len(parts) == ahead.PARTS  # caches hold one or the other, not all
    assert len(each) == len(asked) == len(parts) * len(ahead.DISTANCES)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_no_bit_depends_on_it(rows: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 300)).astype(np.float32)
    w = random.standard_normal((50, 300)).astype(np.float32)
    found = []
    for distance in (*ahead.DISTANCES, 1 << 20):  # also far behind the end of w
        y = np.full((rows, 50), np.nan, np.float32)
        loops.linear(
            x.reshape(-1), 300, w.reshape(-1), 300, y.reshape(-1), 50, rows, 50, 300, distance
        )
        found.append(y)
    np.testing.assert_allclose(found[0], x @ w.T, rtol=1e-4, atol=1e-4)
    for y in found[1:]:
        np.testing.assert_array_equal(y, found[0])
