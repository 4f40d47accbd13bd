"""The best plan that a budget and some time allow, with a bound on how much better any could be.

    ladder per cut: what goes first ─→ greedy plan ─┐
                         │            saved plan ──┼─→ best ←── really laid out, really replayed
                         └─→ windows solved again ─┘              ↑
    beside: relaxed and integer program per cut ──→ bound, retentions

The tabulated model proposes; offsets and the replayed trace dispose. A retention whose slices do
not pack is tried again with as much less memory as it was over. What was found is never given up
for less: the result is as fast as the greedy plan at least, and as the plan it began with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from tgbench.base.collector import lasting, unseen
from tgbench.base.errors import BudgetError, PlanError, check_choice
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Classes, Decisions
from tgbench.plans.planner import Cost
from tgbench.plans.retention.workload import Workload
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search import orders
from tgbench.plans.search.chain import Submits
from tgbench.plans.search.effort import MODES, Clock, Effort, Mode, Spending
from tgbench.plans.search.judge import Judge
from tgbench.plans.search.layouts import BEGINNING
from tgbench.plans.search.plan_search import OPENING, Asked, Findings, Learn, Looked, PlanSearch
from tgbench.programs.choices import Choices
from tgbench.runs.rules import Rules

REMEMBERED_BYTES = 256 << 20  # of what rules, steps and kernels are, while a search goes on
Others = tuple[list[Findings], Iterator[Findings]]  # made so far, and more


class Optimiser:
    """Searches one graph's plans for one workload.

    Args:
        cost: expected nanoseconds of one box of one call.
        classes: every class that has to fit, with how often it came and where it was last seen.
        executor: anything with `submit(function, *arguments) → future`: a process pool, a Dask
            client; None to search here.
        stop: asked now and then; True ends the search.
        watch: shown every better plan, and the best one after every round.
        look: shown every plan that was laid out, and every window that was solved, if given.
        choices: which kernels take a site, the best first; those that runs use.
        likely: runs that may come besides: what is found has room for them, if there is some.
        learn: times the calls of some runs, for no longer than so many seconds, where it is not
            known what they take as they lie; whether anything was. None where nobody does.
        clock: what seconds are counted by.

    What a call of `run` proves holds for the next one within the same budget: orders, the ways of
    cutting and their bounds are found once. `proven_ns` is a bound that was found elsewhere.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        workload: Workload,
        budget_bytes: int | None,
        cost: Cost,
        device: str = "cpu",
        *,
        classes: Classes | None = None,
        executor: Submits | None = None,
        workers: int = 1,
        progress: Callable[[str], None] | None = None,
        stop: Callable[[], bool] | None = None,
        watch: Callable[[Decisions], None] | None = None,
        look: Callable[[Looked], None] | None = None,
        choices: Choices | None = None,
        likely: Sequence[Scenario] = (),
        learn: Learn | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.judge = Judge(
            scheduled, rules, workload, cost, device, classes=classes, progress=progress,
            choices=choices,
        )  # fmt: skip
        self.budget_bytes, self.proven_ns = budget_bytes, 0.0
        self.stops, self.clock = stop or (lambda: False), clock
        self._asked = Asked(
            "search", budget_bytes, executor=executor, workers=workers,
            tell=progress or (lambda message: None), watch=watch or (lambda decisions: None),
            likely=likely, look=look, learn=learn,
        )  # fmt: skip
        self._known = Findings(self.judge)
        self._others: dict[int | None, Others] = {}

    def run(
        self,
        mode: Mode = "search",
        effort: Effort | None = None,
        seed: int = 0,
        start: Decisions | None = None,
    ) -> Decisions:
        """Plan; goes on from `start` if that is a plan for the same graph.

        Raises BudgetError if nothing fits, PlanError for an unknown mode.
        """
        check_choice(PlanError, "mode", mode, MODES)
        with self.judge.rules.allowance.raised(REMEMBERED_BYTES), unseen():
            return self._run(mode, effort, seed, start)

    def _run(
        self, mode: Mode, effort: Effort | None, seed: int, start: Decisions | None
    ) -> Decisions:
        asked = replace(
            self._asked, mode=mode, budget_bytes=self.budget_bytes, seed=seed, start=start,
            proven_ns=self.proven_ns,
        )  # fmt: skip
        spending = Spending(effort or Effort(seconds=30.0), self.stops, self.clock)
        first = _begun(self._known, asked, spending)
        try:
            begun = [first, *self._elsewhere(first)]
            return min(begun, key=lambda search: search.incumbent.key).run()
        except BudgetError:
            made = orders.planned(self.judge, self.budget_bytes or 0)
            other = Findings(self.judge.over(made.scheduled))
            return _begun(other, replace(asked, start=made), spending).run()

    def _elsewhere(self, first: PlanSearch) -> Iterator[PlanSearch]:
        """The same search in other orders, where there is time for it and something to gain.

        Where nothing fits in this one, there is always time.
        """
        is_greedy = first.asked.mode == "greedy"
        enough = first.keeps_all or (is_greedy and first.loses_little)
        if enough and orders.is_plain(self.judge.scheduled):
            return
        budget_bytes = self.budget_bytes
        if budget_bytes not in self._others:
            self._others[budget_bytes] = [], map(Findings, orders.others(self.judge, budget_bytes))
        made, more = self._others[budget_bytes]
        rest, spending, took_s = chain(list(made), more), first.spending, first.spending.gone_s
        fits = first.incumbent.best is not None
        while not fits or (not spending.is_late(BEGINNING) and spending.has(took_s, OPENING)):
            if (other := next(rest, None)) is None:
                break
            if other not in made:
                made.append(other)
            search = _begun(other, first.asked, spending)
            fits = fits or search.incumbent.best is not None
            yield search


def _begun(known: Findings, asked: Asked, spending: Spending) -> PlanSearch:
    search = PlanSearch(known, asked, spending)
    with lasting():
        search.begin()
    return search
