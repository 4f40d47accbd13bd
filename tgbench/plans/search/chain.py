"""Independent searches side by side, the best shared between rounds.

    round 1   chain 0  chain 1  chain 2  chain 3      each from its own seed
                 └────────┴─ best ──┴────────┘
    round 2   chain 0  chain 1  …                     each begins with that

What a chain does depends on its seed, its round and what it begins with, never on timing: any
number of workers gives the same result for the same number of chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base.errors import PlanError
from tgbench.base.words import shorten
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.model import ScoredRetention
from tgbench.plans.retention.neighbourhoods import FIRST, Neighbourhoods, SolvedWindow
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import Floats

ROUND = 4  # windows that a chain solves before the best is shared
WINDOW_NODES, WINDOW_WORK = 200, 1e6  # that the program of a window may take
HANDED_BACK = 8  # of a chain's retentions, the fastest: not every one of them packs

Stop: TypeAlias = Callable[[], bool]


def never() -> bool:
    """The `stop` of a search that runs to its end."""
    return False


class Submits(Protocol):
    """What chains run on: a `concurrent.futures` executor, a Dask client."""

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        """Start a call; what it gives has `done()`, `result()` and `cancel()`."""


def check_executor(executor: Any) -> None:
    """Raise PlanError for what nothing can be submitted to.

    >>> check_executor(4)
    Traceback (most recent call last):
    tgbench.base.errors.PlanError: executor=4 has no `submit`; pass a process pool or a Dask client
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise PlanError(
            f"executor={shorten(executor)} has no `submit`; pass a process pool or a Dask client"
        )


@dataclass(frozen=True)
class ChainResult:
    """What chains came to.

    Fields:
        found: retentions; of each chain, the fastest first.
        steps: how many were taken.
        lost: how many chains ended with their worker.
        windows: what was solved; of each chain, in order.
    """

    found: tuple[ScoredRetention, ...] = ()
    steps: int = 0
    lost: int = 0
    windows: tuple[SolvedWindow, ...] = ()

    def __add__(self, other: ChainResult) -> ChainResult:
        return ChainResult(
            self.found + other.found, self.steps + other.steps, self.lost + other.lost,
            self.windows + other.windows,
        )  # fmt: skip


LOST = ChainResult(lost=1)


@dataclass(frozen=True)
class Chain:
    """One search, as plain data: windows of a retention, one after the other.

    Fields:
        share: [turn, node] how likely values are kept.
        starts: retentions to begin with, the best of them.
        seed: numbers that decide everything: the user's, the round's, the chain's.
        steps: windows to solve.
        size: values in the first one.
        window_s: what one may take.
    """

    program: IntegerProgram
    share: Floats
    starts: tuple[NDArray[np.bool_], ...]
    seed: tuple[int, ...]
    steps: int
    size: float = FIRST
    window_s: float = math.inf

    def run(self, stop: Stop = never) -> ChainResult:
        """Search; `stop` is asked before every step. Where nothing fits, there is nothing to do."""
        random = np.random.default_rng(list(self.seed))
        near = Neighbourhoods(self.program, self.share, random, self.size)
        limits = SolverLimits(self.window_s, nodes=WINDOW_NODES, work=WINDOW_WORK)
        if (best := self._first()) is None:
            return ChainResult(steps=self.steps)
        found, windows = [best], list[SolvedWindow]()
        while len(windows) < self.steps and not stop():
            windows.append(window := near.step(best, limits))
            if window.gains:
                found.append(best := window.after)
        return ChainResult(tuple(found[::-1][:HANDED_BACK]), len(windows), windows=tuple(windows))

    def _first(self) -> ScoredRetention | None:
        starts = [np.zeros_like(self.share, bool), *self.starts]
        room = self.program.budget_bytes
        scored = [self.program.model.scored(np.asarray(start, bool), room) for start in starts]
        return min((one for one in scored if one), key=lambda one: one.key, default=None)
