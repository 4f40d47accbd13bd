"""The first plan: everything, if there is room; else what the ladders keep, whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgbench.base.errors import BudgetError
from tgbench.graph.graph import Node
from tgbench.memory.placement import Placement, Retention
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.arms import Arm, Arms
from tgbench.plans.search.incumbent import FINER
from tgbench.plans.search.judge import Candidate, Judge
from tgbench.plans.search.layouts import BEGINNING, Layouts
from tgbench.runs.split import WHOLE, Cut

DEAR = 1.01  # times what runs take where all is kept: what costs more is weighed against cuts
SOON = 0.025  # of the time: a first plan made so soon leaves enough for the planner's beside it
PLANNING = 2.0  # times what was done until then, that the planner may take
MOST_TRIES = 6  # of one retention, each with less memory than the one before


@dataclass(frozen=True)
class AllKept:
    """A plan that retains all that is read again, uncut: nothing is computed again.

    It need not be the fastest: what is kept is computed exactly where it changed, in as many calls
    as that has parts, and what is not kept in one.

    Fields:
        frontier: what is read again, of nodes that have bytes.
    """

    frontier: tuple[Node, ...]
    placement: Placement

    @staticmethod
    def of(judge: Judge, scenarios: list[Scenario], budget_bytes: int | None) -> AllKept:
        planner, turns = judge.planner, judge.workload.turns
        wanted = planner.frontier(planner.runs.distinct(scenarios))
        placed = planner.lay_out(
            Retention.always(wanted, turns), scenarios, WHOLE, budget_bytes=budget_bytes
        )
        return AllKept(tuple(node for node in wanted if node in placed.slots), placed)


class Beginning:
    """Makes first plans.

    Args:
        modelled: whether to say what the model has them take, too.

    Fields:
        left_out_s: what the planner may take, where it was not asked for want of time; else 0.
    """

    def __init__(self, judge: Judge, layouts: Layouts, *, modelled: bool) -> None:
        self.judge, self.layouts, self.modelled = judge, layouts, modelled
        self.left_out_s = 0.0

    def keeping(self, everything: AllKept, arms: Arms) -> Candidate | None:
        """Where there is room for it; with less, where runs promise to be faster so."""
        best = self._roomy(everything)
        if best is None or self._is_late(best):
            return best
        [whole] = arms.of(WHOLE)
        return self._better(whole, best)

    def _roomy(self, everything: AllKept) -> Candidate | None:
        """All that is read again, and whole runs held whole if there is room for that."""
        found, judge = self._keeping(everything), self.judge
        if found is None or not found.replayed.cramped:
            return found
        scenarios = [*judge.scenarios, *judge.wished]
        roomier = AllKept.of(judge, scenarios, self.layouts.budget_bytes)
        other = self._keeping(roomier) if self.layouts.fits(roomier.placement) else None
        return other if other is not None and other.beats(found) else found

    def _keeping(self, everything: AllKept) -> Candidate | None:
        kept = Retention.always(everything.frontier, self.judge.workload.turns)
        return self.layouts.candidate(kept, WHOLE, everything.placement, modelled=self.modelled)

    def within(self, arms: Arms, scenarios: Sequence[Scenario]) -> Candidate | None:
        """What is let go of last, whole or in pieces; else what the planner finds.

        Raises BudgetError where nothing fits.
        """
        cuts = arms.cuts()
        [whole] = arms.of(next(cuts))
        best = self._climbed(whole)
        if self._is_ahead(arms.least_ns, WHOLE, best):  # else no cut promises less
            best = self._cut(arms, cuts, whole.promise_ns, best)
        if best is not None:
            if best.modelled_ns <= DEAR * self.judge.all_kept_ns:
                return best
            spending = self.layouts.spending
            takes_s = PLANNING * spending.gone_s
            if spending.is_late(SOON) and not spending.has(takes_s, BEGINNING):
                self.left_out_s = takes_s
                return best
        other = self.planned(scenarios, arms.budget_bytes, is_needed=best is None)
        return other if best is None or (other and other.beats(best)) else best

    def _is_late(self, best: Candidate | None) -> bool:
        """Whether there is a first plan, and no time left for others."""
        return best is not None and self.layouts.spending.is_late(BEGINNING)

    def _better(self, arm: Arm, best: Candidate | None) -> Candidate | None:
        """What a ladder holds, where it promises to be ahead and is."""
        if self._is_late(best) or not self._is_ahead(arm.promise_ns, arm.cut, best):
            return best
        found = self._climbed(arm, best)
        return found if best is None or (found and found.beats(best)) else best

    def _cut(
        self, arms: Arms, cuts: Iterator[Cut], best_ns: float, best: Candidate | None
    ) -> Candidate | None:
        """The best of the ways of cutting runs, as long as these promise to take longer than if all
        were kept.

        Coarser cuts come first: fewer pieces compute less twice, which no ladder knows of, and are
        replayed sooner; what they take tells what finer ones are worth that promise more. What may
        be no further ahead in the model than one before it comes behind all others.

        Args:
            best_ns: what the model promises of whole runs.
        """
        later = list[Cut]()
        best_ns = best_ns if best is None else min(best_ns, best.time_ns)
        for cut in cuts:
            if best_ns <= DEAR * self.judge.all_kept_ns or self._is_late(best):
                break
            hoped_ns = arms.hoped_ns(cut)
            if not self._is_ahead(hoped_ns, cut, best):
                continue
            if hoped_ns >= FINER * best_ns:
                later.append(cut)
                continue
            for arm in arms.of(cut):
                best = self._better(arm, best)
                best_ns = min(best_ns, arm.promise_ns)
        for cut in later:
            if not self._is_late(best) and self._is_ahead(arms.hoped_ns(cut), cut, best):
                for arm in arms.of(cut):
                    best = self._better(arm, best)
        return best

    def _is_ahead(self, promise_ns: float, cut: Cut, best: Candidate | None) -> bool:
        """Whether what a cut promises is that much less than what the best plan takes, in the model
        and by what was replayed.
        """
        if best is None:
            return True
        in_model = promise_ns * best.off_by(cut) < FINER * best.modelled_ns
        return in_model and not self.layouts.is_beaten(promise_ns, cut, best)

    def _climbed(self, arm: Arm, best: Candidate | None = None) -> Candidate | None:
        """What is let go of last, as much of it as packs; replayed as long as it is not behind."""
        before: NDArray[np.bool_] | None = None
        for _ in range(MOST_TRIES):
            keep = arm.ladder.within(arm.room)
            if keep is None or (before is not None and (keep == before).all()):
                break
            if (found := self._come_to(arm, keep, best)) is not None:
                cramped = found.replayed.cramped and not self.layouts.spending.is_late(BEGINNING)
                roomier = self._come_to(arm, keep, found) if cramped else None
                return roomier if roomier is not None and roomier.beats(found) else found
            before = keep
        return None

    def _come_to(
        self, arm: Arm, keep: NDArray[np.bool_], best: Candidate | None
    ) -> Candidate | None:
        return self.layouts.come_to(arm, keep, modelled=self.modelled, beside=best)[1]

    def planned(
        self, scenarios: Sequence[Scenario], budget_bytes: int, *, is_needed: bool
    ) -> Candidate | None:
        """What the planner finds, by maps instead of tables; raises BudgetError for nothing."""
        try:
            made = self.judge.planner.plan_once(scenarios, budget_bytes)
        except BudgetError:
            if is_needed:
                raise
            return None
        turns, may_slide = self.judge.workload.turns, made.retention.may_slide
        retention = Retention.always(made.retained, turns, may_slide)
        return self.layouts.candidate(retention, made.cut, made.placement)
