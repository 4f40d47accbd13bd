"""Independent searches side by side, the best shared between rounds.

    round 1   chain 0  chain 1  chain 2  chain 3      each from its own seed
                 └────────┴─ best ──┴────────┘
    round 2   chain 0  chain 1  …                     each begins with that

What a chain does depends on its seed, its round and what it begins with, never on timing: any
number of workers gives the same result for the same number of chains.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.search.exact import SolverLimits
from tgbench.plans.search.mcts import Answers, ScoredRetention, TreeSearch
from tgbench.plans.search.model import Model
from tgbench.plans.search.neighbourhoods import Neighbourhoods
from tgbench.plans.search.tables import Floats, Tables

ROUND = 16  # steps a chain takes before the best is shared
WINDOW_EVERY, WINDOW_NODES = 4, 200  # steps; nodes of the program of a window
HANDED_BACK = 8  # of a chain's retentions, the fastest: not every one of them packs
ASKED_EVERY_S = 0.02  # how often `stop` is asked while chains run elsewhere

Stop: TypeAlias = Callable[[], bool]


def never() -> bool:
    """The `stop` of a search that runs to its end."""
    return False


class Submits(Protocol):
    """What chains run on: a `concurrent.futures` executor, a Dask client."""

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        """Start a call; what it gives has `done()`, `result()` and `cancel()`."""


@dataclass(frozen=True)
class ChainResult:
    """What chains came to.

    Fields:
        found: retentions; of each chain, each better than the one before.
        steps: how many were taken.
        lost: how many chains ended with their worker.
        visited: branches of their trees: visits, and the sum of rewards.
    """

    found: tuple[ScoredRetention, ...] = ()
    steps: int = 0
    lost: int = 0
    visited: Mapping[Answers, tuple[int, float]] = field(default_factory=dict)

    def __add__(self, other: ChainResult) -> ChainResult:
        return ChainResult(
            self.found + other.found, self.steps + other.steps, self.lost + other.lost,
            together(self.visited, other.visited),
        )  # fmt: skip


Visited: TypeAlias = "Mapping[Answers, tuple[int, float]]"


def together(one: Visited, other: Visited) -> Visited:
    """Two trees as one.

    >>> together({(): (1, 0.5)}, {(): (2, 0.25), ((3, True),): (1, 0.25)})
    {(): (3, 0.75), ((3, True),): (1, 0.25)}
    """
    found = dict(one)
    for answers, (visits, reward) in other.items():
        before = found.get(answers, (0, 0.0))
        found[answers] = before[0] + visits, before[1] + reward
    return found


LOST = ChainResult(lost=1)


@dataclass(frozen=True)
class Chain:
    """One search, as plain data: of every few steps one solves a window, the others are rollouts.

    Fields:
        tables, pieces, whole: what the model is made of.
        share: how likely values are kept.
        bound_ns: of the relaxed program; 0 where it is not known.
        starts: retentions to begin with.
        seed: numbers that decide everything: the user's, the round's, the chain's.
    """

    tables: Tables
    pieces: Tables | None
    whole: bool
    budget_bytes: int
    share: Floats
    bound_ns: float
    starts: tuple[NDArray[np.bool_], ...]
    seed: tuple[int, ...]
    steps: int
    window_s: float = math.inf  # what a window may take

    def run(self, stop: Stop = never) -> ChainResult:
        """Search; `stop` is asked before every step."""
        model = Model(self.tables, self.pieces, self.whole)
        search = TreeSearch(
            model, self.budget_bytes, self.share, self.starts, self.seed, self.bound_ns
        )
        random = np.random.default_rng([*self.seed, WINDOW_EVERY])
        near = Neighbourhoods(model, self.budget_bytes, self.share, random)
        limits = SolverLimits(self.window_s, nodes=WINDOW_NODES)
        found = {search.best.keep.tobytes(): search.best} if search.best is not None else {}
        while search.steps < self.steps and not stop():
            best = search.best
            if best is not None and search.steps % WINDOW_EVERY == WINDOW_EVERY - 1:
                one = search.offered(near.step(best.keep, limits))
            else:
                one = search.step()
            if one is not None:
                found.setdefault(one.keep.tobytes(), one)
        ranked = sorted(found.values(), key=lambda f: (f.time_ns, f.size_bytes))
        return ChainResult(tuple(ranked[:HANDED_BACK]), search.steps, visited=search.visited)


def run_chain(chain: Chain) -> ChainResult | Exception:
    """`Chain.run`, by a name that another process can import.

    A fault of the search is handed back, so that nobody takes it for a worker that died.
    """
    try:
        return chain.run()
    except MemoryError:
        raise
    except Exception as error:
        return error


def run_round(
    chains: Sequence[Chain], executor: Submits | None = None, stop: Stop = never
) -> ChainResult:
    """All chains of a round: on an executor, or here where there is none.

    A stop ends chains here at their next step; chains elsewhere are cancelled or left alone, and
    what they find is not waited for.
    """
    if executor is None:
        return sum((chain.run(stop) for chain in chains), ChainResult())
    futures = [_submitted(executor, chain) for chain in chains]
    try:
        while not stop() and not all(future.done() for future in futures):
            time.sleep(ASKED_EVERY_S)
        return sum((_collected(future) for future in futures if future.done()), ChainResult())
    finally:
        for future in futures:
            if not future.done():
                future.cancel()


def _submitted(executor: Submits, chain: Chain) -> Any:
    """A future, also where the executor has broken down and takes no more calls."""
    try:
        return executor.submit(run_chain, chain)
    except Exception as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def _collected(future: Any) -> ChainResult:
    """What a chain found."""
    try:
        found: ChainResult | Exception = future.result()
    except Exception:  # a worker that died takes its chain with it, no more
        return LOST
    if isinstance(found, Exception):
        raise found
    return found
