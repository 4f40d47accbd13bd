"""One search for a plan: a first one, then rounds, with programs beside them.

begin   greedy plan, saved plan ──→ best so far
run     ways of cutting, opened one by one; rounds for those that may hold something better
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from tgbench.base.collector import lasting
from tgbench.base.errors import BudgetError, PlanError
from tgbench.base.stopping import StopReason
from tgbench.base.words import format_time
from tgbench.graph.graph import Node
from tgbench.memory.placement import aligned
from tgbench.plans.decisions import Decisions, SearchRecord
from tgbench.plans.plan import Plan
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.neighbourhoods import SolvedWindow
from tgbench.plans.retention.worth import worth_ns
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.arms import Arm, Arms
from tgbench.plans.search.beginning import DEAR, AllKept, Beginning
from tgbench.plans.search.bounds import Bounds
from tgbench.plans.search.chain import ROUND, Submits
from tgbench.plans.search.effort import Mode, Spending
from tgbench.plans.search.incumbent import Incumbent
from tgbench.plans.search.judge import Candidate, Judge, is_alike
from tgbench.plans.search.layouts import SAMPLED, Layouts
from tgbench.plans.search.rounds import Neighbourhood, Rounds, in_turn
from tgbench.programs.choices import Called
from tgbench.runs.split import Cut

CLOSE = 1e-4  # a gap that counts as none
FAR = 1.5  # times what runs take where all is kept: more is much
OPENING = 0.5  # of the time: for how long ways of cutting come before rounds
LOOKED_AT_S = 0.05  # between two looks at what is solved, where nothing else is left to do
TIMING = 0.2  # of the time: what calls of the best plans may be timed for
MARGIN = 100  # of the memory, the share that tells what one byte more is worth


@dataclass(frozen=True)
class LaidOut:
    """A plan that was laid out and replayed, whether it is the best or not."""

    time_ns: float
    size_bytes: int
    kept: int  # nodes
    parts: int  # of a large run
    plan_json: str = ""


Looked: TypeAlias = "LaidOut | Neighbourhood"
Learn: TypeAlias = Callable[[Sequence[Sequence[Called]], float], bool]


@dataclass(eq=False)
class Findings:
    """What was found out over one order of a graph's nodes; it holds for every search there.

    Fields:
        opened: ways of cutting, by budget, and whether runs that fit are whole.
        least_ns: by budget: no plan is faster, however runs are cut.
    """

    judge: Judge
    opened: dict[tuple[int, Cut, bool], Arm] = field(default_factory=dict)
    least_ns: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """What a search is asked to do.

    Fields:
        start: a plan to go on from.
        proven_ns: a bound that was found elsewhere.
        executor, workers: what chains run on, and how many there are.
        likely: runs that may come besides: what is found has room for them, if there is some.
        watch: shown every better plan, and the best one after every round.
        look: shown every plan that was laid out, and every window that was solved, if given.
        learn: times the calls of some runs for so long, where that is lacking; whether it did.
    """

    mode: Mode
    budget_bytes: int | None
    seed: int = 0
    start: Decisions | None = None
    proven_ns: float = 0.0
    executor: Submits | None = None
    workers: int = 1
    tell: Callable[[str], None] = lambda message: None
    likely: Sequence[Scenario] = ()
    watch: Callable[[Decisions], None] = lambda decisions: None
    look: Callable[[Looked], None] | None = None
    learn: Learn | None = None


class PlanSearch:
    """One search over one order of the nodes: `begin`, then `run`."""

    def __init__(self, known: Findings, asked: Asked, spending: Spending) -> None:
        self.known, self.judge, self.asked, self.spending = known, known.judge, asked, spending
        before = asked.start.search if asked.start is not None else None
        goes_on = before is not None and before.seed == asked.seed
        self.steps_before = before.steps if before is not None and goes_on else 0
        self.incumbent = Incumbent(before.history if before is not None and goes_on else ())
        self.layouts = Layouts(self.judge, asked.budget_bytes, spending, self.incumbent, self._take)
        self.beginning = Beginning(self.judge, self.layouts, modelled=asked.mode != "greedy")
        self.everything: AllKept | None = None
        self.arms: Arms | None = None
        self.bounds: Bounds | None = None
        self.refused: BudgetError | None = None  # what greedy planning said, if nothing fitted
        self.greedy: Candidate | None = None
        self._timing_s = 0.0  # what calls were timed for

    # --- beginning -------------------------------------------------------------------------------

    def begin(self) -> None:
        """The greedy plan, and the saved one."""
        self._greedy()
        start = self.asked.start
        if start is not None and is_alike(start.scheduled, self.judge.scheduled):
            found = self._carried_over(start)
            if found is not None:
                self._take(found, "saved plan")

    def _carried_over(self, start: Decisions) -> Candidate | None:
        """A plan of an earlier search, as far as it fits this workload and budget; laid out anew
        where the model, if something is let go of, does not say that this is in vain.
        """
        is_greedy = self.asked.mode == "greedy"
        found = self.layouts.as_it_is(start, modelled=not is_greedy)
        enough = is_greedy and self.keeps_all and self.incumbent.best is not None
        return found if found is not None or enough else self.layouts.realised(start)

    @property
    def keeps_all(self) -> bool:
        """Whether there is room for all that is read again."""
        return self.everything is not None and self.layouts.fits(self.everything.placement)

    @property
    def loses_little(self) -> bool:
        """Whether the best plan takes hardly longer than if all were kept."""
        best = self.incumbent.best
        return best is not None and best.modelled_ns <= DEAR * self.judge.all_kept_ns

    @property
    def loses_much(self) -> bool:
        """Whether the best plan takes far longer than if all were kept, or there is none."""
        best = self.incumbent.best
        return best is None or best.modelled_ns > FAR * self.judge.all_kept_ns

    def _greedy(self) -> None:
        """The plan for the runs of the trace; one that lacks a run of it is made again with it."""
        found = None
        while found is None:
            known = len(self.judge.scenarios)
            try:
                found = self._first()
            except BudgetError as error:
                self.refused = error
                return
            if found is None and len(self.judge.scenarios) == known:
                raise PlanError("a run does not fit the plan made for it; this is an error of ours")
        self.greedy = found
        self._take(found, "greedy")
        self.greedy = self.incumbent.best

    def _first(self) -> Candidate | None:
        scenarios, budget_bytes = self.judge.scenarios, self.asked.budget_bytes
        self.everything = AllKept.of(self.judge, scenarios, budget_bytes)
        arms = Arms(
            self.judge, self._most_bytes if budget_bytes is None else budget_bytes,
            self.everything.placement, self.everything.frontier, self.known.opened,
        )  # fmt: skip
        self.arms = None if budget_bytes is None else arms
        if self.keeps_all:
            return self.beginning.keeping(self.everything, arms)
        return self.beginning.within(arms, scenarios)

    @property
    def _most_bytes(self) -> int:
        """What is enough for any retention, where there is no budget."""
        assert self.everything is not None
        stored = sum(aligned(node.type.size_bytes) for node in self.judge.scheduled.stored)
        return stored + self.everything.placement.size_bytes

    # --- improving -------------------------------------------------------------------------------

    def run(self) -> Decisions:
        """Go on from where `begin` left it. Raises BudgetError if nothing fits."""
        stop = StopReason.NO_SEARCH
        if self.asked.mode != "greedy":
            try:
                stop = self._improve()
            except KeyboardInterrupt:
                stop = StopReason.INTERRUPTED
        best = self.incumbent.best
        if best is None:
            return self._in_force()
        best = self.layouts.roomier(self._last_word(best), self.asked.likely)
        return self._decisions_of(best, stop, explained=self.asked.mode != "greedy")

    def _last_word(self, best: Candidate) -> Candidate:
        """The best plan, replayed further; or the greedy one, if it was not so good after all."""
        found = self._replayed_on(best, 1.0)
        if self.greedy is None or not self._is_worth_less(found, self.greedy):
            return found
        greedy = self._replayed_on(self.greedy, 1.0)
        return greedy if self._is_worth_less(found, greedy) else found

    def _is_worth_less(self, found: Candidate, other: Candidate) -> bool:
        """Whether a plan takes longer than another, or needs more memory to be as good as it; where
        time matters to the last, not if it is better at all.
        """
        if self.asked.mode == "exact" or found.placement.size_bytes <= other.placement.size_bytes:
            return other.beats(found)
        return other.time_ns <= found.time_ns * (1 + SAMPLED)

    def _replayed_on(self, one: Candidate, share: float) -> Candidate:
        """A plan, replayed as far as a share of the time suffices."""
        with lasting():
            found = self.layouts.replayed_on(one, share)
        if one is self.greedy:
            self.greedy = found
        return found

    def _in_force(self) -> Decisions:
        """The plan that runs go by, where nothing holds all of them: it serves some as larger runs.

        Raises BudgetError if there is none of this size.
        """
        if self.asked.start is not None and self.layouts.fits(self.asked.start.placement):
            return self.asked.start
        assert self.refused is not None
        raise self.refused

    def _improve(self) -> StopReason:
        if self.arms is None:
            return StopReason.FITS
        self._ask_planner(OPENING)
        if self.incumbent.best is not None:
            self.incumbent.best = self._replayed_on(self.incumbent.best, OPENING)
        self.bounds = Bounds(
            self.judge, self.arms, self.layouts, self.known.least_ns, self._proven_ns,
            is_exact=self.asked.mode == "exact",
        )  # fmt: skip
        try:
            return self._search(self.bounds)
        finally:
            self.bounds.close()

    def _ask_planner(self, share: float) -> None:
        """What it finds, where the beginning had no time for it, and a share of all has."""
        takes_s = self.beginning.left_out_s
        if self.arms is None or not takes_s or not self.spending.has(takes_s, share):
            return
        self.beginning.left_out_s = 0.0
        budget_bytes = self.arms.budget_bytes
        found = self.beginning.planned(self.judge.scenarios, budget_bytes, is_needed=False)
        if found is not None:
            self._take(found, "the planner's")

    def _search(self, bounds: Bounds) -> StopReason:
        """Rounds of chains over the arms that may still hold something better.

        After the first round for whole runs all other arms are opened, coarse cuts first, for half
        of the time, then one before each round; as are those that promise nothing better. Where the
        first plan loses much, cuts may promise more than any window, and come first. Where steps
        are what counts, two ways of cutting are opened for the first round, and one for each other.
        """
        number, arms, spending = self.steps_before, bounds.opening(), self.spending
        asked = self.asked
        rounds = Rounds(self.layouts, asked.seed, asked.executor, asked.workers, self._solved)
        while True:
            # what is found out lasts, and the collector would go through all of it again and again
            with lasting():
                bounds.hear()
                if (reason := self._reason_to_stop(bounds)) is not None:
                    return reason
                if (more := next(arms, None)) is not None:
                    self._begun_with(more)
                    if not self._is_enough(bounds, number - self.steps_before):
                        continue
                hopeful = [arm for arm in bounds.opened if self._is_hopeful(arm)]
                in_vain = self.incumbent.best is None and number > self.steps_before + len(
                    bounds.opened
                )
                if asked.mode == "exact" or not hopeful or in_vain:
                    if more is None and not bounds.are_open:
                        return self._settled(bounds)
                    bounds.hear(LOOKED_AT_S)
                    continue
                if spending.steps and spending.left_steps < ROUND * asked.workers:
                    # rounds are whole, so that more steps only add to what was done
                    return StopReason.STEPS
                number += 1
                reason = rounds.run(in_turn(hopeful, number, self.layouts.off_by), number)
                if reason is not None:
                    return reason

    def _is_enough(self, bounds: Bounds, rounds: int) -> bool:
        """Whether so much is opened that another round comes before the next arm."""
        if self.asked.mode == "exact" or self.incumbent.best is None:
            return False
        cuts = {arm.cut for arm in bounds.opened}
        if not self.spending.is_timed:
            return len(cuts) > rounds + 1
        is_first = len(cuts) == 1 and not self.loses_much
        return is_first or bounds.is_for_bounds or self.spending.is_late(OPENING)

    def _begun_with(self, arm: Arm) -> None:
        """An arm's ladder, where it promises something better."""
        keep = arm.ladder.within(arm.room)
        best, promise_ns = self.incumbent.best, arm.promise_ns
        is_beaten = best is not None and self.layouts.is_beaten(promise_ns, arm.cut, best)
        is_behind = self.incumbent.is_behind(promise_ns, arm.cut) and not is_beaten
        if keep is not None and self.spending.is_timed and is_behind:
            self.layouts.attempt(arm, keep)

    def _is_hopeful(self, arm: Arm) -> bool:
        """Whether rounds may find something: the model has to have a retention that fits; or near
        the best plan.
        """
        bound_ns, best = arm.bound_ns * self.incumbent.off_by(arm.cut), self.incumbent.best
        is_open = not arm.is_settled or (best is not None and best.cut == arm.cut)
        may_be_better = is_open and self.incumbent.may_be_behind(bound_ns)
        return may_be_better and math.isfinite(arm.promise_ns)

    def _settled(self, bounds: Bounds) -> StopReason:
        self._ask_planner(1.0)
        if self.asked.mode == "exact":
            return StopReason.OPTIMAL if self._is_optimal(bounds) else StopReason.PACKED
        found = self.incumbent.best is not None
        return StopReason.NOTHING_BETTER if found else StopReason.INFEASIBLE

    def _reason_to_stop(self, bounds: Bounds) -> StopReason | None:
        return StopReason.OPTIMAL if self._is_optimal(bounds) else self.spending.over

    def _is_optimal(self, bounds: Bounds) -> bool:
        """The model knows nothing better, and the trace takes what the model says."""
        best = self.incumbent.best
        if best is None or not bounds.bound_ns:
            return False
        exact = best.modelled_ns <= bounds.bound_ns * (1 + CLOSE)
        return exact and best.time_ns <= best.modelled_ns * (1 + SAMPLED)

    # --- what is told ----------------------------------------------------------------------------

    @property
    def _step(self) -> int:
        return self.steps_before + self.spending.steps

    def _take(self, found: Candidate, what: str) -> None:
        if self.asked.look is not None:
            self.asked.look(self._laid_out(found))
        best = self.incumbent.best
        if (best is None or found.beats(best)) and self._learns_of(found):
            found = self._told_anew(found)
            if best is not None:
                self.incumbent.told_anew(self._told_anew(best))
        if self.incumbent.take(found, self._step):
            self._show(what)

    def _learns_of(self, found: Candidate) -> bool:
        """Time what is not known of a plan's calls before it becomes the best; whether anything is
        known now that was not.
        """
        learn, spending = self.asked.learn, self.spending
        if learn is None or not spending.is_timed or spending.is_late():
            return False
        began_s = spending.gone_s
        left_s = TIMING * (spending.gone_s + spending.left_s) - self._timing_s
        has_learnt = left_s > 0 and learn(self.judge.calls(found), left_s)
        self._timing_s += spending.gone_s - began_s
        if has_learnt:
            self.judge.know_anew()
        return has_learnt

    def _told_anew(self, before: Candidate) -> Candidate:
        """A plan by what is known of its calls by now, replayed as far as it was."""
        found = self.judge.candidate(
            before.retention, before.cut, before.placement,
            modelled=self.judge.tabulated is not None, most=len(before.replayed.times_ns),
        ) or before  # fmt: skip
        if before is self.greedy:
            self.greedy = found
        return found

    def _solved(self, windows: Sequence[SolvedWindow]) -> None:
        if self.asked.look is not None:
            for i, window in enumerate(windows, self._step - len(windows) + 1):
                self.asked.look(Neighbourhood.of(window, self.judge.scheduled.stored, i))
        self._show(f"step {self._step}")

    def _laid_out(self, found: Candidate) -> LaidOut:
        judge, size_bytes = self.judge, found.placement.size_bytes
        made = self._decisions_of(found, StopReason.RUNNING, explained=False)
        plan = Plan.of(judge.scheduled.folded, made, judge.device, self.asked.budget_bytes,
                       judge.rules.exact)  # fmt: skip
        return LaidOut(
            found.time_ns, size_bytes, len(found.retention.nodes), found.cut.parts, plan.to_json()
        )

    def _show(self, what: str) -> None:
        best = self.incumbent.best
        if best is not None:
            self.asked.watch(self._decisions_of(best, StopReason.RUNNING, explained=False))
        self.asked.tell(f"{what}: {self._said(best)}")

    def _said(self, best: Candidate | None) -> str:
        if best is None:
            return "nothing fits yet"
        bound = f", bound {format_time(self._bound_ns)}" if self._bound_ns else ""
        return f"best {format_time(best.time_ns)} a run{bound}"

    # --- the result ------------------------------------------------------------------------------

    @cached_property
    def _about(self) -> str:
        """What a bound holds for."""
        told = f"{self.judge.uncut.tables.digest} {self.asked.budget_bytes}"
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def _proven_ns(self) -> float:
        """What was proven before this search, of the same tables within the same budget."""
        start = self.asked.start
        before = start.search if start is not None else None
        saved_ns = before.bound_ns if before is not None and before.bound_of == self._about else 0.0
        return max(self.asked.proven_ns, saved_ns)

    @property
    def _bound_ns(self) -> float:
        """What no plan is faster than; 0 while that is not known.

        Of what is proved of the model it is the most that no replay contradicts: values that
        survive in shared bytes are not in the model. Examples stand for transitions there, so it
        may be a little above a replay, and is not said to be.
        """
        known = [self.asked.proven_ns] if self.bounds is None else self.bounds.known
        least_ns = self.incumbent.least_ns
        most_ns = least_ns * (1 + SAMPLED)
        true = [time_ns for time_ns in known if math.isfinite(time_ns) and time_ns <= most_ns]
        return min(max(true, default=0.0), least_ns)

    def _decisions_of(self, best: Candidate, stop: StopReason, *, explained: bool) -> Decisions:
        record = SearchRecord(
            mode=self.asked.mode,
            seed=self.asked.seed,
            steps=self._step,
            stop=stop,
            best_ns=best.time_ns,
            modelled_ns=best.modelled_ns,
            warm_up_ns=best.replayed.warm_up_ns,
            greedy_ns=0.0 if self.greedy is None else self.greedy.time_ns,
            bound_ns=self._bound_ns,
            history=tuple(self.incumbent.history),
            bound_of=self._about if self.bounds is not None and self._bound_ns else "",
        )
        everywhere = len(best.retention.turns)
        kept = {n for n, k in best.retention.after.items() if len(k) == everywhere}
        frontier = self.everything.frontier if self.everything is not None else ()
        dropped = {*frontier, *best.retention.nodes} - kept
        return Decisions(
            self.judge.scheduled,
            best.placement,
            best.retention,
            tuple(sorted(dropped, key=lambda node: node.index)),
            best.cut,
            self.judge.classes,
            best.time_ns,
            self._worth(best) if explained else {},
            self._price_ns(best) if explained else 0.0,
            record,
        )

    def _worth(self, best: Candidate) -> Mapping[Node, tuple[int, float]]:
        """What retaining each candidate saves beside the best plan."""
        arm = self._arm_of(best)
        model = self.judge.uncut if arm is None else arm.model
        keep = self.judge.bits(best.retention)
        worth = worth_ns(model, keep)
        return {
            node: (int(model.tables.kept_bytes[n]), float(worth[n]))
            for n, node in enumerate(self.judge.scheduled.stored)
            if worth[n] > 0 or keep[:, n].any()
        }

    def _price_ns(self, best: Candidate) -> float:
        """What the last byte is worth; 0 where that is not known in time."""
        arm = self._arm_of(best)
        relaxed = None if arm is None else arm.relaxed
        if arm is None or relaxed is None or self.bounds is None:
            return 0.0
        in_time = self.spending.has(relaxed.seconds) and not self.bounds.allowance.is_spent
        if not (math.isfinite(relaxed.bound_ns) and in_time):
            return 0.0
        more = max(arm.budget_bytes // MARGIN, 1)
        richer = IntegerProgram(arm.model, arm.budget_bytes + more)
        bound_ns = self.bounds.allowance.solve(richer, integer=False).bound_ns
        return max(relaxed.bound_ns - bound_ns, 0.0) / more if bound_ns else 0.0

    def _arm_of(self, best: Candidate) -> Arm | None:
        opened = self.bounds.opened if self.bounds is not None else []
        return next((arm for arm in opened if arm.cut == best.cut and arm.freer is None), None)
