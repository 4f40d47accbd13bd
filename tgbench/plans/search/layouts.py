"""Retentions of the model, laid out in real memory, and replayed: what comes of them counts.

retention ─→ map ─┬─ fits ─→ replayed ─→ taken, if it is the best
                  └─ does not ─→ the model has that much less memory next time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tgbench.graph.graph import Node
from tgbench.memory.placement import ALIGNMENT, ANY, Placement, Retention
from tgbench.plans.decisions import Decisions
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.arms import Arm
from tgbench.plans.search.carried import told_anew
from tgbench.plans.search.effort import Spending
from tgbench.plans.search.incumbent import FINER, Incumbent
from tgbench.plans.search.judge import Candidate, Judge
from tgbench.plans.search.race import ReplayRace
from tgbench.runs.split import WHOLE, Cut

BEGINNING = 0.25  # of the time: what the first plans may take
SAMPLED = 2e-3  # what examples of transitions may be off from all of them
MOST_SPARE = 0.25  # of the budget: how much less the model is given, because packing takes more


class Layouts:
    """Lays retentions out within one budget.

    Args:
        take: told of every plan that fits, and what it came of.
    """

    def __init__(
        self,
        judge: Judge,
        budget_bytes: int | None,
        spending: Spending,
        incumbent: Incumbent,
        take: Callable[[Candidate, str], None],
    ) -> None:
        self.judge, self.budget_bytes, self.spending = judge, budget_bytes, spending
        self.incumbent, self._take = incumbent, take
        self._took_s = 0.0  # the last attempt: the next one takes about as long
        self._longer: dict[Cut, float] = {}  # than in the model runs took, where that was least

    def fits(self, placement: Placement) -> bool:
        return self.budget_bytes is None or placement.size_bytes <= self.budget_bytes

    def attempt(self, arm: Arm, keep: NDArray[np.bool_]) -> bool:
        """Lay a retention of the model out, once; whether it packed.

        Nothing is interrupted: what would not end in time, by what the last one took, is not begun.
        """
        if keep.tobytes() in arm.tried or not self.spending.has(self._took_s):
            return True
        began_s = self.spending.gone_s
        packs, found = self.come_to(arm, keep)
        self._took_s = self.spending.gone_s - began_s
        if found is not None:
            self._take(found, "retention")
        return packs

    def come_to(
        self,
        arm: Arm,
        keep: NDArray[np.bool_],
        *,
        modelled: bool = True,
        beside: Candidate | None = None,
    ) -> tuple[bool, Candidate | None]:
        """Whether a retention of the model packs, and what comes of it; how much longer that takes
        than the model says is remembered of its cut.
        """
        laid = self.laid(arm, keep)
        if laid is None:
            return False, None
        found = self.candidate(laid[0], arm.cut, laid[1], modelled=modelled, beside=beside)
        if found is not None:
            longer = self.judge.over_model(found.retention, found.replayed)
            self._longer[arm.cut] = min(longer, self._longer.get(arm.cut, longer))
        return True, found

    def longer(self, cut: Cut) -> float:
        """How many times as long as in the model runs take at least that are cut so, by what was
        replayed. Coarser cuts along the same dimension say so too: finer pieces compute more twice.
        """
        along = [
            longer
            for other, longer in self._longer.items()
            if (other.input, other.axis) == (cut.input, cut.axis) and other.parts <= cut.parts
        ]
        return max(along, default=1.0)

    def off_by(self, cut: Cut) -> float:
        """The same, and beside the best plan by what pieces may be off (`Candidate.off_by`)."""
        return self.longer(cut) * self.incumbent.off_by(cut)

    def is_beaten(self, promise_ns: float, cut: Cut, best: Candidate) -> bool:
        """Whether what the model promises of a cut is no faster than a plan, by what was replayed
        of cuts like it.
        """
        longer = self.longer(cut)
        return longer > 1 and promise_ns * longer * best.off_by(cut) >= FINER * best.time_ns

    def laid(self, arm: Arm, keep: NDArray[np.bool_]) -> tuple[Retention, Placement] | None:
        """A retention's map; None where it does not fit, and by how much is remembered."""
        arm.tried.add(keep.tobytes())
        retention = self.judge.retention(keep)
        placement = self._placed(retention, arm)
        if not self.fits(placement) and (shared := self._shareable(arm, retention)):
            retention = replace(retention, shared=shared)
            placement = self._placed(retention, arm)
        if self.fits(placement):
            return retention, placement
        modelled = int(arm.model.score(keep[None]).size_bytes[0])
        spare = max(arm.spare_bytes + ALIGNMENT, placement.size_bytes - modelled)
        arm.spare_bytes = min(spare, int(MOST_SPARE * arm.budget_bytes))
        return None

    def lacking_bytes(self, arm: Arm, keep: NDArray[np.bool_]) -> int:
        """How much more than the budget a retention's map takes with the scratch memory that the
        fastest kernels want: with so much less kept, others need not be taken.
        """
        judge, budget_bytes = self.judge, self.budget_bytes
        if budget_bytes is None:
            return 0
        retention, whole = judge.retention(keep), arm.model.whole
        attempt = judge.planner.attempts.of(retention, judge.scenarios, arm.cut, whole)
        return max(attempt.within(None).size_bytes - budget_bytes, 0)

    def candidate(
        self,
        retention: Retention,
        cut: Cut,
        placement: Placement,
        *,
        modelled: bool = True,
        beside: Candidate | None = None,
    ) -> Candidate | None:
        """The replay of the first plan may take some of the time, and of no other more than is
        left; where it was not enough for the first, others are replayed as far as that one. A
        replay ends where it is behind the best one, or another that it is looked at beside.
        """
        first, spending = self.incumbent.best, self.spending
        share = BEGINNING if first is None else 1.0
        is_short = first is not None and not first.replayed.is_whole and spending.is_timed
        most = len(first.replayed.times_ns) if first is not None and is_short else None
        best = beside or first

        def is_late(times_ns: Sequence[float]) -> bool:
            return spending.is_timed and spending.is_late(share)

        def replayed(stop: Callable[[Sequence[float]], bool]) -> Candidate | None:
            return self.judge.candidate(
                retention, cut, placement, modelled=modelled, most=most, stop=stop
            )

        if best is None:
            return replayed(is_late)
        classes = [kind for kind, _ in self.judge.workload.circle]
        race = ReplayRace(classes, best.replayed.times_ns, best.off_by(cut))
        found = replayed(lambda times_ns: is_late(times_ns) or race.is_lost(times_ns))
        if found is None or not found.beats(best) or not race.is_lost(found.replayed.times_ns):
            return found
        return replayed(is_late)

    def replayed_on(self, found: Candidate, share: float) -> Candidate:
        """The same, replayed as far as a share of the time suffices, if it was not to the end."""
        spending = self.spending
        if found.replayed.is_whole or not spending.is_timed or spending.is_late(share):
            return found
        judge = self.judge
        further = judge.candidate(
            found.retention, found.cut, found.placement,
            modelled=judge.tabulated is not None, stop=lambda times_ns: spending.is_late(share),
        )  # fmt: skip
        gone = len(found.replayed.times_ns)
        return further if further and len(further.replayed.times_ns) > gone else found

    def roomier(self, best: Candidate, likely: Sequence[Scenario]) -> Candidate:
        """The same over a map with room for what may come as well, or without the first of that,
        where there is some and the trace takes no longer.
        """
        judge, gone = self.judge, len(best.replayed.times_ns)
        for first in range(len(likely)):
            for whole in (False, True)[: 1 if best.cut == WHOLE else 2]:
                attempt = judge.planner.attempts.of(
                    best.retention, judge.scenarios, best.cut, whole, likely[first:]
                )
                placement = attempt.roomy(self.budget_bytes)
                if not self.fits(placement):
                    continue
                found = judge.candidate(best.retention, best.cut, placement, most=gone)
                if found is not None and found.time_ns <= best.time_ns * (1 + SAMPLED):
                    return found
        return best

    def as_it_is(self, start: Decisions, *, modelled: bool) -> Candidate | None:
        """The map of an earlier plan, where it is for the same classes, schedule and budget."""
        judge, kinds = self.judge, list(self.judge.workload.kinds)
        same = list(start.classes)[: len(kinds)] == kinds
        same = same and start.retention.turns in (judge.workload.turns, ANY)
        same = same and start.scheduled.schedule == judge.scheduled.schedule
        if not (same and self.fits(start.placement)):
            return None
        retention = told_anew(start, judge.workload)
        return self.candidate(retention, start.cut, start.placement, modelled=modelled)

    def realised(self, start: Decisions) -> Candidate | None:
        """The retention of an earlier plan, laid out anew where it may turn out to be better."""
        judge, best = self.judge, self.incumbent.best
        retention = told_anew(start, judge.workload)
        if best is not None and (retention, start.cut) == (best.retention, best.cut):
            return None
        if best is not None and not self.incumbent.may_be_behind(judge.modelled_ns(retention)):
            return None
        placement = judge.planner.lay_out(
            retention, judge.scenarios, start.cut, budget_bytes=self.budget_bytes
        )
        return self.candidate(retention, start.cut, placement) if self.fits(placement) else None

    def _placed(self, retention: Retention, arm: Arm) -> Placement:
        """With room for what is better held whole, if there is any."""
        judge, budget_bytes = self.judge, self.budget_bytes

        def held(scenarios: Sequence[Scenario]) -> Placement:
            return judge.planner.lay_out(
                retention, scenarios, arm.cut, arm.model.whole, budget_bytes
            )

        if arm.cut == WHOLE and (wished := judge.wished):
            roomy = held([*judge.scenarios, *wished])
            if self.fits(roomy):
                return roomy
        return held(judge.scenarios)

    def _shareable(self, arm: Arm, retention: Retention) -> frozenset[Node]:
        """Retained nodes whose bytes are free until some class's runs compute them."""
        nodes, can = self.judge.scheduled.stored, arm.model.shareable
        return (
            frozenset(n for n, shares in zip(nodes, can, strict=True) if shares) & retention.nodes
        )
