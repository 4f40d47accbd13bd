"""Threads that help with long products, if they get a processor: a team without a barrier.

A product is cut into tiles of columns. The caller begins with the first at once; helpers wait in
compiled code, see the job in less than a microsecond, and begin further on; each takes the next
tile that nobody has. A tile has one word, and whoever changes it has the tile:

    free ──→ caller's ────────────────────→ done
      └────→ a helper's ──→ being copied ──→ done
                 └────────→ caller's ──────→ done       taken back, and computed again

A helper computes into memory of its own and copies when it is done. So the caller never waits for
a helper that another process has put aside: it takes the tile back, and what the helper finishes
later goes nowhere. Nobody needs Python's lock for any of this, and nobody waits at a barrier, where
a team of OpenMP's stands still while another process has one of the processors.

Helpers that had nothing to do for a while sleep; a caller wakes them and begins meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.kernels.apart import apart, helps
from tgbench.kernels.helping import helping
from tgbench.kernels.numba import loops, tiles
from tgbench.kernels.numba.ahead import measured_ahead
from tgbench.kernels.waiting import QUIET_S

IDLE_NS = 5_000_000  # without work, after which a helper sleeps: it is woken where a chain begins,
# and attention within it, which is no team's, takes as long
PATIENCE_NS = 200  # for a KiB of the weights of a tile: 5 GB/s, what the slowest memory gives
LEAST_BYTES = 1 << 17  # of a tile's weights: 5 to 20 µs, a hundred times what taking it costs
POLLS = 2_000  # that are timed together
COLD_BYTES = 64 << 20  # of the weights by which the gain is measured
TIMES = 8
ATTEMPTS, LITTLE = 3, 1.2  # at measuring the gain: while it is less


class Team:
    """The helpers of a process, and the words that they and callers share.

    Fields:
        words: int64, see `tiles`.
        free: whoever has it has the words.
        held: what calls were given whose memory a helper may still be reading.
        asleep: of each helper, whether it sleeps; it alone says so.
    """

    def __init__(self, helpers: int) -> None:
        self.words: NDArray[np.int64] = tiles.words_of(helpers)
        self.free = threading.Lock()
        self.held: list[tuple[Any, ...]] = []
        poll_ns = _poll_ns(self.words)
        self.words[tiles.PATIENCE] = max(1, round(PATIENCE_NS / poll_ns))
        self.words[tiles.IDLE] = round(IDLE_NS / poll_ns)
        self.words[tiles.LEAST] = LEAST_BYTES
        self.asleep = [False] * helpers
        self._beds = [threading.Lock() for _ in range(helpers)]
        for number, bed in enumerate(self._beds):
            bed.acquire()
            threading.Thread(
                target=self._serve, args=(number,), name=f"tgbench helper {number}", daemon=True
            ).start()

    def _serve(self, number: int) -> None:
        memory = tiles.memory_of_helper()
        helps()
        while True:
            tiles.serve(self.words, number, memory)
            if self.free.acquire(blocking=False):
                if not tiles.are_busy(self.words):
                    self.held.clear()
                self.free.release()
            self.asleep[number] = True
            self._beds[number].acquire()
            self.asleep[number] = False

    def wake(self, helpers: int) -> None:
        """Have so many helpers look for work, where they sleep."""
        for asleep, bed in zip(self.asleep[:helpers], self._beds[:helpers], strict=True):
            if asleep:
                with suppress(RuntimeError):  # it was woken already
                    bed.release()


def _poll_ns(words: NDArray[np.int64]) -> float:
    """What it takes to look once, and to wait a moment: 1 to 50 ns, on different processors."""
    tiles.wait(words, 1)  # compiled, or loaded
    took = []
    for _ in range(TIMES):
        began = time.perf_counter_ns()
        tiles.wait(words, POLLS)
        took.append(time.perf_counter_ns() - began)
    return max(min(took) / POLLS, 1.0)


@cache
def _team(process: int) -> Team:
    """The team of this process: threads do not survive a fork."""
    return Team(max(1, (os.cpu_count() or 1) - 1))


GAINS: dict[int, float] = {}  # by number of threads


def gain(threads: int) -> float:
    """How much faster so many threads read weights than one does, as it was measured last.

    Where that is little, others may have had the processors, or the memory, for a moment: the first
    time it is measured again, twice at most.
    """
    found = GAINS.get(threads)
    if found is None:
        for _ in range(ATTEMPTS):
            found = max(found or 0.0, measure_gain(threads))
            if found >= LITTLE:
                break
        assert found is not None
        GAINS[threads] = found
    return found


def measure_gain(threads: int) -> float:
    """The same, measured now: weights are more than caches hold. Where others use the processors
    there is nothing to gain.
    """
    columns, depth = COLD_BYTES // 4 // 1024, 1024
    x, w = np.ones(depth, np.float32), np.ones(columns * depth, np.float32)
    y, bias = np.empty(columns, np.float32), np.zeros(0, np.float32)
    kinds = "int64", "int", "int", *("float32", "int") * 2, *("float32",) * 2, *("int",) * 5
    product = loops.compiled(tiles.shared_linear, *kinds)
    address, distance = (
        tiles.computing("float32", "float32"),
        measured_ahead("float32"),
    )
    took: dict[int, int] = {}
    time.sleep(QUIET_S)
    for _ in range(TIMES):
        for helpers in (0, threads - 1):
            with apart().during(by_team=True):
                began = time.perf_counter_ns()
                _together(
                    helpers, product, address, x, depth, w, depth, bias, y, columns, 1, columns,
                    depth, distance,
                )  # fmt: skip
                spent = time.perf_counter_ns() - began
            took[helpers] = min(spent, took.get(helpers, spent))
    found = GAINS[threads] = max(1.0, took[0] / took[threads - 1])
    return found


def together(product: Callable[..., int], *arguments: Any) -> None:
    """`product(words, helpers, *arguments)` by as many threads as torch may use, where helpers make
    runs quicker.

    One caller at a time has the helpers; another one computes alone.
    """
    helpers = torch.get_num_threads() - 1 if helping().is_asked else 0
    _together(helpers, product, *arguments)


def _together(helpers: int, product: Callable[..., int], *arguments: Any) -> None:
    team = _team(os.getpid())
    if not team.free.acquire(blocking=False):
        product(team.words, 0, *arguments)
        return
    try:
        team.held.append(arguments)
        if helpers and True in team.asleep:
            team.wake(helpers)
        if not product(team.words, helpers, *arguments):
            team.held.clear()
    finally:
        team.free.release()
