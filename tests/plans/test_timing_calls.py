"""A search times the calls of a plan, as they lie in its map, before the plan becomes the best."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from plans.test_replay import convolutions
from plans.test_search_time import SECONDS, WorkClock
from search_cases import SearchCase, busy_case

from tgbench.base.regions import Box, Region
from tgbench.costs.model import position_free
from tgbench.kernels.registry import Site, candidates
from tgbench.plans.decisions import Decisions
from tgbench.plans.search.effort import Effort, Spending
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.plan_search import TIMING
from tgbench.programs.choices import Called, Choices
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE

CASE = busy_case(8, ops=12)  # in which the greedy plan is not the best
STEPS = 32
PLACES = (4, 4), (0, 8), (8, 2), (5, 5)
Runs = Sequence[Sequence[Called]]
SLOW_NS = 1e9


def calls_of(runs: Iterable[Iterable[Called]]) -> set[Hashable]:
    return {(site.call, position_free(site)) for run in runs for site, _ in run}


@dataclass
class Timer:
    """Who times calls: what they take is made up.

    Fields:
        takes_ns: of calls that are met for the first time.
        known: what was timed.
        given: seconds that there were for it, each time.
    """

    takes_ns: Callable[[Hashable], float] = lambda call: 0.0
    known: dict[Hashable, float] = field(default_factory=dict)
    given: list[float] = field(default_factory=list)

    def learn(self, runs: Runs, seconds: float) -> bool:
        new = calls_of(runs) - self.known.keys()
        self.known.update({call: self.takes_ns(call) for call in new})
        self.given.append(seconds)
        return bool(new)

    def takes(self, site: Site, kernel: str) -> float:
        return self.known.get((site.call, position_free(site)), 0.0)


@cache
def images() -> SearchCase:
    """Patches of an image, in less than half of the memory that keeping everything takes."""
    graph = convolutions(32)
    everything = {"image": Region.full((1, 3, 32, 32))}
    want = {"features": Region.full(graph.outputs["features"].shape)}
    patches = [Box(((0, 1), (0, 3), (i, i + 4), (j, j + 4))) for i, j in PLACES]
    changed = [everything, *({"image": Region((patch,))} for patch in patches)]
    return SearchCase(graph, tuple([Bucket.of(one, want) for one in changed]), 0.45)


def searching(timer: Timer, case: SearchCase = CASE, **more: Any) -> Optimiser:
    rules = Rules()
    return Optimiser(
        case.scheduled, rules, case.workload, case.budget_bytes, case.cost, learn=timer.learn,
        choices=Choices(rules, candidates, timer.takes), **more,
    )  # fmt: skip


def calls_under(made: Decisions, case: SearchCase = CASE) -> set[Hashable]:
    """What runs of the trace call under a plan."""
    judge = searching(Timer(), case).judge
    found = judge.candidate(made.retention, made.cut, made.placement, modelled=False)
    assert found is not None
    return calls_of(judge.calls(found))


@pytest.fixture(autouse=True)
def _in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that end after some steps may do what else only those do that end in time."""
    monkeypatch.setattr(Spending, "is_timed", property(lambda self: True))


def test_calls_of_a_plan_are_timed_before_it_becomes_the_best() -> None:
    timer, lacking = Timer(), list[set[Hashable]]()
    shown = list[Decisions]()

    def watch(made: Decisions) -> None:
        if not any(made.placement is one.placement for one in shown):
            shown.append(made)
            lacking.append(calls_under(made) - timer.known.keys())

    searching(timer, watch=watch).run("search", Effort(600.0, STEPS))
    assert len(shown) > 1
    assert not any(lacking)


def test_what_is_timed_decides() -> None:
    """Runs go in two pieces, until the calls of these turn out to be slow as they lie."""
    case = images()
    in_pieces = searching(Timer(), case).run("greedy", Effort(steps=0))
    assert in_pieces.cut != WHOLE
    roomy = replace(case, share=1.0)
    whole = searching(Timer(), roomy).run("greedy", Effort(steps=0))
    slow = calls_under(in_pieces, case) - calls_under(whole, roomy)
    timer = Timer(lambda call: SLOW_NS if call in slow else 0.0)
    made = searching(timer, case).run("search", Effort(600.0, STEPS))
    assert made.cut != in_pieces.cut
    assert made.expected_ns < SLOW_NS / 1000
    assert not calls_under(made, case) & slow


def test_a_plan_that_turns_out_slower_is_left_for_the_greedy_one() -> None:
    """All calls are slow that the greedy plan has not."""
    greedy = searching(Timer()).run("greedy", Effort(steps=0))
    known = calls_under(greedy)
    timer = Timer(lambda call: 0.0 if call in known else SLOW_NS)
    made = searching(timer).run("search", Effort(600.0, STEPS))
    assert calls_under(made) <= known
    assert made.search is not None
    assert made.search.best_ns <= made.search.greedy_ns
    assert [time_ns for _, time_ns in made.search.history] == sorted(
        {time_ns for _, time_ns in made.search.history}, reverse=True
    )


def test_timing_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the last time, whose calls are as many as they are."""
    clock, timer = WorkClock(monkeypatch), Timer()
    learn = clock.timed(timer.learn, "learn", TIMING * SECONDS / 2)
    monkeypatch.setattr(timer, "learn", learn)
    searching(timer, clock=clock).run("search", Effort(SECONDS, 10_000))
    assert timer.given[0] == pytest.approx(TIMING * SECONDS)
    assert len(timer.given) <= 2
    assert timer.given == sorted(timer.given, reverse=True)
