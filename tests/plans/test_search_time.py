"""How a search spends its time, by a clock that only work moves; and what another one knows of it.

clock    0 ──first plan── 5 ──window── 6 ──layout── 8 ─ …  ── 30: nothing begins any more
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from search_cases import SearchCase, busy_case

from tgbench import GraphSession
from tgbench.plans.plan import Plan
from tgbench.plans.retention import polish
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.neighbourhoods import Neighbourhoods
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search import judge, orders
from tgbench.plans.search.arms import Arms
from tgbench.plans.search.effort import Effort, Mode, Spending
from tgbench.plans.search.layouts import Layouts
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.plan_search import PlanSearch
from tgbench.runs.rules import Rules

CASE = busy_case()
SECONDS = 30.0
TAKES = {  # seconds of each piece of work
    (PlanSearch, "begin"): 5.0, (Neighbourhoods, "step"): 1.0, (Layouts, "attempt"): 2.0,
    (IntegerProgram, "solve"): 0.5, (Arms, "of"): 0.25,
}  # fmt: skip


class WorkClock:
    """Seconds that pass while something is done; notes when each thing began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.begun = 0.0, list[tuple[str, float]]()
        for (owner, name), seconds in TAKES.items():
            monkeypatch.setattr(owner, name, self.timed(getattr(owner, name), name, seconds))

    def __call__(self) -> float:
        return self.now

    def timed(self, work: Callable[..., Any], name: str, seconds: float) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            self.begun.append((name, self.now))
            found = work(*arguments, **more)
            self.now += seconds
            self.begun.append((f"{name} done", self.now))
            return found

        return timed


def searched(clock: WorkClock, mode: Mode, seconds: float, case: SearchCase = CASE) -> Any:
    """Steps are bounded too, so programs are solved in turn, not beside it."""
    optimiser = Optimiser(
        case.scheduled, Rules(), case.workload, case.budget_bytes, case.cost, clock=clock
    )
    return optimiser.run(mode, Effort(seconds, 10_000)).search


@pytest.mark.parametrize("mode", ["search", "exact"])
@pytest.mark.parametrize("seconds", [1.0, 12.0, SECONDS])
def test_nothing_begins_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, seconds: float
) -> None:
    """But the first plan; so a search is over one piece of work later at the latest."""
    clock = WorkClock(monkeypatch)
    found = searched(clock, mode, seconds)
    begun = [(what, when) for what, when in clock.begun[1:] if not what.endswith("done")]
    late = [what for what, when in begun if when >= max(seconds, 5.0)]
    assert set(late) <= {"of"}, clock.begun  # ways of cutting of the first plan
    assert clock.now <= max(seconds, 5.0) + 3.0
    assert found.best_ns <= found.greedy_ns
    assert found.stop == "time" or mode == "exact" or clock.now < seconds


@pytest.mark.parametrize("takes_s", [2.0, 7.0])
def test_a_layout_that_would_not_end_in_time_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, takes_s: float
) -> None:
    """As long as one takes about as long as the one before it."""
    clock = WorkClock(monkeypatch)
    monkeypatch.setattr(Layouts, "laid", clock.timed(Layouts.laid, "laid", takes_s))
    monkeypatch.setattr(judge, "IN_PIECES", 1.0)  # finer cuts may be ahead as well
    case = replace(CASE, share=0.9)
    assert case.budget_bytes  # a share of what a greedy plan takes
    began, told = clock.now, len(clock.begun)
    searched(clock, "search", SECONDS, case)
    first = next(when for what, when in clock.begun[told:] if what == "begin done")
    begun = [when for what, when in clock.begun if what == "laid" and when >= first]
    assert len(begun) > 1 or takes_s > 2.0
    assert begun
    assert all(when + takes_s <= began + SECONDS for when in begun[1:])


def test_going_through_what_happened_is_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {
        name: np.zeros(node.shape, np.float32) for name, node in CASE.graph.parameters.items()
    }
    session = GraphSession(CASE.graph, weights=weights)
    inputs = {name: np.zeros(node.shape, np.float32) for name, node in CASE.graph.inputs.items()}
    session.run(inputs)
    session.run({name: x + 1 for name, x in inputs.items()})
    given, run, of, late_s = list[Effort](), Optimiser.run, Workload.of, [0.0]
    now = time.perf_counter_ns

    def slowly(*arguments: Any) -> Workload:
        late_s[0] += 2.0
        return of(*arguments)

    def noted(self: Optimiser, mode: Mode, effort: Effort, *more: Any) -> Any:
        given.append(effort)
        return run(self, mode, effort, *more)

    monkeypatch.setattr(time, "perf_counter_ns", lambda: now() + int(late_s[0] * 1e9))
    monkeypatch.setattr(Workload, "of", slowly)
    monkeypatch.setattr(Optimiser, "run", noted)
    session.optimize("greedy", 60.0)
    assert given
    assert all(0 < one.seconds <= 58.0 for one in given if one.seconds is not None)


def test_programs_are_given_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, solve = WorkClock(monkeypatch), IntegerProgram.solve
    given = list[float]()

    def solved(program: IntegerProgram, limits: Any = None, **more: Any) -> Any:
        given.append(clock.now + limits.seconds)
        return solve(program, limits, **more)

    monkeypatch.setattr(IntegerProgram, "solve", solved)
    searched(clock, "search", SECONDS)
    assert given
    assert max(given) <= SECONDS + 0.1


def test_windows_come_right_after_the_first_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after all ways of cutting, nor after the program of all values."""
    clock = WorkClock(monkeypatch)
    monkeypatch.setattr(Spending, "is_timed", property(lambda self: True))
    searched(clock, "search", SECONDS, replace(CASE, share=0.9))
    names = [what for what, _ in clock.begun]
    last = max(i for i, what in enumerate(names) if what == "begin done")
    between = names[last : names.index("step")]
    assert between.count("of") <= 1, between
    assert next(when for what, when in clock.begun if what == "step") <= SECONDS / 2


def test_other_orders_are_tried_where_the_time_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "others", lambda judge, budget: iter([judge.over(judge.scheduled)]))
    for seconds, is_tried in ((8.0, False), (60.0, True)):
        with monkeypatch.context() as patch:
            clock = WorkClock(patch)
            searched(clock, "search", seconds)
        assert (sum(what == "begin" for what, _ in clock.begun) > 1) == is_tried


def test_polishing_ends_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CASE.task().optimiser().judge.uncut
    nothing, room = model.none()[0], 2 * int(model.score(model.none()).size_bytes[0])
    walked, walk = list[int](), model.walked_ns
    monkeypatch.setattr(model, "walked_ns", lambda keep: (walked.append(len(keep)), walk(keep))[1])
    assert polish.polished(model, room, nothing, (0,), lambda: True) is not None
    assert walked == [1]
    assert polish.polished(model, room, nothing, (0,)) is not None
    assert len(walked) > 2


ENDS_EARLY = """
import sys, time
from tgbench.plans.retention.exact import IntegerProgram, Relaxed
from tgbench.plans.search.effort import Effort, Spending
from tgbench.plans.search.proofs import ProofAllowance, Proofs, Question

def solve(program, limits=None, **more):
    time.sleep(0.5)
    print("solved", flush=True)
    return Relaxed(None, None, 0.0, False, 0.0)

IntegerProgram.solve = solve
proofs = Proofs(beside=True)
allowance = ProofAllowance(Spending(Effort(), lambda: False))
proofs.ask(Question(None, IntegerProgram(None, 0), allowance))
proofs.ask(Question(None, IntegerProgram(None, 0), allowance))
time.sleep(0.1)
proofs.close()
print("closed", flush=True)
"""


def test_a_process_ends_after_the_program_that_is_being_solved() -> None:
    """A solver in the middle of its work when the interpreter goes would abort the process."""
    told = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.split() == ["closed", "solved"]


# --- going on -------------------------------------------------------------------------------------


def again(plan: Plan, budget_bytes: int = CASE.budget_bytes, **more: Any) -> Any:
    """What a search that is stopped at once says of itself, which goes on from a saved plan."""
    optimiser = Optimiser(
        CASE.scheduled, Rules(), CASE.workload, budget_bytes, CASE.cost, stop=lambda: True, **more
    )
    start = Plan.from_json(plan.to_json()).placement_for(CASE.graph, "cpu")
    return optimiser.run("search", Effort(steps=4), start=start).search


def test_a_saved_plan_brings_its_bound_and_is_not_given_up() -> None:
    first = CASE.plan(16)
    assert first.search is not None
    assert first.search.bound_ns > 0
    goes_on = again(first)
    assert goes_on.bound_ns == first.search.bound_ns
    assert goes_on.best_ns <= first.search.best_ns
    assert (goes_on.steps, goes_on.stop) == (16, "stopped")


def test_a_bound_is_of_its_tables_and_budget_alone() -> None:
    first = CASE.plan(16)
    assert first.search is not None
    more = again(first, CASE.budget_bytes + 64)
    assert more.bound_ns == 0 or more.bound_of != first.search.bound_of
    forged = replace(first, search=replace(first.search, bound_of="0" * 64))
    assert again(forged).bound_ns == 0
