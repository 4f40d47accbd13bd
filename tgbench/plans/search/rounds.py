"""A round: chains of windows side by side, what they find polished, the best of it laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base.stopping import StopReason
from tgbench.graph.graph import Node
from tgbench.plans.retention.neighbourhoods import SolvedWindow
from tgbench.plans.retention.polish import exchanged, polished
from tgbench.plans.search.arms import Arm, by_promise
from tgbench.plans.search.chain import ROUND, Chain, ChainResult, Submits
from tgbench.plans.search.layouts import Layouts
from tgbench.plans.search.sending import run_round
from tgbench.runs.split import Cut

TRIED_A_ROUND = 3  # retentions laid out and replayed
NEAR = 8  # besides, of those near the best plan
WINDOWS_LEFT = 8  # of the time that is left, the share that one window may take
SHORTEST_S = 0.05  # that a window is given

Kept: TypeAlias = "NDArray[np.bool_]"  # [turn, node]


@dataclass(frozen=True)
class Neighbourhood:
    """A part of the values that was decided anew, the others as they were.

    Fields:
        step: when, the steps of earlier searches included.
        values: which.
        kept, dropped: those that are kept after more turns than before, and after fewer.
        before_ns, after_ns: modelled mean run.
        is_optimal: there is nothing better in it; else its limits came first.
    """

    step: int
    values: tuple[str, ...]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    before_ns: float
    after_ns: float
    is_optimal: bool

    @staticmethod
    def of(window: SolvedWindow, nodes: Sequence[Node], step: int) -> Neighbourhood:
        more = window.after.keep.sum(axis=0) - window.before.keep.sum(axis=0)

        def named(which: NDArray[np.bool_]) -> tuple[str, ...]:
            return tuple(nodes[n].name for n in np.flatnonzero(which).tolist())

        return Neighbourhood(
            step, named(window.free), named(more > 0), named(more < 0),
            window.before.time_ns, window.after.time_ns, window.is_optimal,
        )  # fmt: skip


class Rounds:
    """The rounds of one search, numbered on from those of the searches that it goes on.

    Args:
        executor: what chains run on; None: here, one after the other.
        workers: chains in a round.
        told: of the windows that chains solved, before what they found is laid out.
    """

    def __init__(
        self,
        layouts: Layouts,
        seed: int,
        executor: Submits | None,
        workers: int,
        told: Callable[[Sequence[SolvedWindow]], None],
    ) -> None:
        self.layouts, self.seed, self.told = layouts, seed, told
        self.executor, self.workers = executor, workers
        self.spending, self.incumbent = layouts.spending, layouts.incumbent

    @property
    def steps(self) -> int:
        """In a chain of the next round."""
        return int(min(ROUND, -(-self.spending.left_steps // self.workers)))

    def run(self, arm: Arm, number: int) -> StopReason | None:
        """A round for one way of cutting; why nothing can come after it, if so."""
        starts = self._starts(arm)
        made = self._solved(arm, number, starts)
        self.spending.steps += made.steps
        self.told(made.windows)
        keeps = [*starts, *(one.keep for one in made.found)]
        self._try(arm, self._ranked(arm, keeps, number), TRIED_A_ROUND)
        self._try_near(arm, number)
        return StopReason.WORKERS_LOST if made.lost == self.workers else None

    def _try(self, arm: Arm, ranked: Iterable[tuple[float, Kept]], most: int) -> None:
        """Lay the first of some retentions out that are new and may be better than the best."""
        tries = 0
        for time_ns, keep in ranked:
            new = keep.tobytes() not in arm.tried and self.incumbent.may_be_behind(time_ns)
            if new and tries < most and not self.spending.is_late():
                tries += 1
                self.layouts.attempt(arm, keep)

    def _starts(self, arm: Arm) -> tuple[Kept, ...]:
        first, best = arm.ladder.within(arm.room), self.incumbent.best
        starts = () if first is None else (first,)
        if best is not None and best.cut == arm.cut:
            keep = self.layouts.judge.bits(best.retention)
            starts = (*starts, throughout(keep) if arm.is_throughout else keep)
        return starts

    def _solved(self, arm: Arm, number: int, starts: tuple[Kept, ...]) -> ChainResult:
        """Windows of all chains; the size of the next one follows from the last."""
        program, share = arm.program(arm.room), arm.ladder.share(arm.room)
        window_s = max(self.spending.left_s / WINDOWS_LEFT, SHORTEST_S)
        chains = [
            Chain(program, share, starts, (self.seed, number, i), self.steps, arm.size, window_s)
            for i in range(self.workers)
        ]
        made = run_round(chains, self.executor, lambda: self.spending.over is not None)
        if made.windows:
            last, most = made.windows[-1], int(arm.model.tables.worthwhile.sum())
            arm.size = last.next_size(float(last.free.sum()), most)
        return made

    def _try_near(self, arm: Arm, number: int) -> None:
        """Lay out what differs by few values from the best plan: which of those that the model has
        take about as long is the fastest, replays know.
        """
        best, room = self.incumbent.best, arm.room
        if best is None or best.cut != arm.cut or not arm.is_throughout:
            return
        keep, random = throughout(self.layouts.judge.bits(best.retention)), (self.seed, number)
        candidates = np.flatnonzero(arm.model.tables.worthwhile)
        near = exchanged(keep, candidates, np.random.default_rng(random))
        near = near[arm.model.score(near).size_bytes <= room]
        if len(near):
            self._try(arm, _timed(arm, list(near)), NEAR)

    def _ranked(self, arm: Arm, found: Sequence[Kept], number: int) -> list[tuple[float, Kept]]:
        """What was found, the best of it polished, and each kept throughout; the fastest first."""
        keeps = {keep.tobytes(): keep for one in found for keep in (one, throughout(one))}
        if not keeps:
            return []
        ranked = _timed(arm, list(keeps.values()))
        if arm.is_throughout:
            return ranked
        late, first = self.spending.is_late, ranked[0][1]
        better = polished(arm.model, arm.room, first, (self.seed, number), late)
        if better is not None:
            keeps[better.keep.tobytes()] = better.keep
        return _timed(arm, list(keeps.values()))


def throughout(keep: Kept) -> Kept:
    """The same nodes, kept after all classes: nothing is then left to chance."""
    found: Kept = np.broadcast_to(keep.any(axis=0), keep.shape).copy()
    return found


def in_turn(arms: Sequence[Arm], number: int, off_by: Callable[[Cut], float]) -> Arm:
    """Whose round it is: the second best comes half as often as the best, the third a third."""
    ranked = by_promise(arms, off_by)
    shares = [1 / (rank + 1) for rank in range(len(ranked))]
    place = (number * 0.618034) % 1.0 * sum(shares)  # spread evenly, and the same every time
    return next(arm for arm, end in zip(ranked, accumulate(shares), strict=True) if place < end)


def _timed(arm: Arm, keeps: Sequence[Kept]) -> list[tuple[float, Kept]]:
    """Retentions with their mean times over the trace, the fastest first."""
    times = arm.model.walked_ns(np.stack(keeps)).tolist()
    return sorted(zip(times, keeps, strict=True), key=lambda pair: (pair[0], pair[1].tobytes()))
