"""Replays that are behind the best plan's end early; those that are not go on to their end."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.test_replay import in_pieces, patches
from plans.test_search import optimiser

from tgbench.memory.placement import Retention
from tgbench.plans.search import layouts as layouts_module
from tgbench.plans.search.bounds import Bounds
from tgbench.plans.search.effort import Effort, Spending
from tgbench.plans.search.incumbent import Incumbent
from tgbench.plans.search.judge import Candidate, Judge
from tgbench.plans.search.layouts import Layouts
from tgbench.plans.search.race import SEEN, ReplayRace
from tgbench.runs.split import WHOLE, Cut

calls = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.integers(1, 50)),
    min_size=2,
    max_size=30,
)


@given(calls)
def test_at_the_end_what_takes_longer_is_lost(rows: list[tuple[str, int, int]]) -> None:
    kinds, mine, other = zip(*rows, strict=True)
    assert ReplayRace(kinds, other).is_lost(mine) == (sum(mine[1:]) > sum(other[1:]))


@given(calls, st.integers(1, 30), st.integers(0, 3))
def test_what_is_never_slower_is_never_lost(
    rows: list[tuple[str, int, int]], walked: int, less: int
) -> None:
    kinds, _, other = zip(*rows, strict=True)
    mine = [max(time - less, 0) for time in other[:walked]]
    assert not ReplayRace(kinds, other).is_lost(mine)


@given(
    st.lists(st.sampled_from("ab"), min_size=2, max_size=40),
    st.lists(st.integers(1, 20), min_size=8, max_size=8),
    st.integers(1, 40),
)
def test_where_kinds_take_the_same_each_time_nothing_is_lost_that_is_ahead_in_the_end(
    kinds: list[str], takes: list[int], walked: int
) -> None:
    """Brute force: all calls are there to compare with."""
    pairs = [kinds[i - 1] + kinds[i] for i in range(len(kinds))]
    known = {
        pair: (takes[2 * i], takes[2 * i + 1]) for i, pair in enumerate(["aa", "ab", "ba", "bb"])
    }
    mine, other = ([known[pair][k] for pair in pairs] for k in (0, 1))
    if ReplayRace(kinds, other).is_lost(mine[:walked]):
        assert sum(mine[1:]) > sum(other[1:])


def test_a_kind_that_was_not_seen_may_take_no_time() -> None:
    """Twenty tokens and then a prompt that takes as long as all of them."""
    kinds = [*"t" * 20, "p"]
    race = ReplayRace(kinds, [1.0] * 20 + [19.0])
    assert not race.is_lost([2.0] * 20)
    assert race.is_lost([2.0] * 20 + [1.0])
    assert race.is_lost([3.0] * (1 + SEEN))


def test_what_differs_by_chance_goes_on() -> None:
    """Of 200 traces whose calls take the same on average, few are given up that are ahead."""
    random, wrong, ended = np.random.default_rng(0), 0, 0
    for _ in range(200):
        mine, other = random.lognormal(0.0, 0.3, (2, 40))
        race = ReplayRace("a" * 40, other)
        lost = next((n for n in range(4, 41) if race.is_lost(mine[:n])), None)
        ended += lost is not None and lost < 40
        wrong += lost is not None and mine[1:].sum() < other[1:].sum()
    assert ended > 20
    assert wrong <= 10


def test_what_may_take_as_much_longer_as_pieces_do_has_to_be_ahead_by_that() -> None:
    kinds, other = "a" * 9, [10.0] * 9
    assert not ReplayRace(kinds, other).is_lost([9.0] * 5)
    assert ReplayRace(kinds, other, off=1.2).is_lost([9.0] * 5)


# --- in a search ----------------------------------------------------------------------------------


def beside(best: Candidate, times_ns: tuple[float, ...]) -> Candidate:
    """A best plan whose replay took so long."""
    replayed = replace(best.replayed, times_ns=times_ns)
    return replace(best, replayed=replayed, time_ns=replayed.mean_ns)


def layouts_of(judge: Judge, best: Candidate | None = None) -> Layouts:
    incumbent = Incumbent()
    incumbent.best = best
    spending = Spending(Effort(seconds=100.0), lambda: False)
    return Layouts(judge, None, spending, incumbent, lambda found, what: None)


def tried(best: Candidate, judge: Judge, plan: Candidate) -> Candidate:
    layouts = layouts_of(judge, best)
    found = layouts.candidate(plan.retention, plan.cut, plan.placement)
    assert found is not None
    return found


def test_a_replay_ends_once_it_is_behind_and_goes_on_while_it_is_not() -> None:
    judge, plan = in_pieces()
    took = plan.replayed.times_ns
    fast = beside(plan, tuple(0.5 * time_ns for time_ns in took))
    slow = beside(plan, tuple(2.0 * time_ns for time_ns in took))
    behind, ahead, level = (tried(best, judge, plan) for best in (fast, slow, plan))
    assert not behind.replayed.is_whole
    assert len(behind.replayed.times_ns) < len(took) - 2
    assert not behind.beats(fast)
    assert ahead.replayed.is_whole
    assert level.replayed.is_whole
    assert ahead.time_ns == level.time_ns == pytest.approx(plan.time_ns)


def test_what_was_given_up_and_is_said_to_be_ahead_all_the_same_is_replayed_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model may tell more of the rest than the calls that were seen do."""

    class Hasty(ReplayRace):
        def is_lost(self, times_ns: object) -> bool:
            return True

    monkeypatch.setattr(layouts_module, "ReplayRace", Hasty)
    judge, plan = in_pieces()
    slow = beside(plan, tuple(2.0 * time_ns for time_ns in plan.replayed.times_ns))
    found = tried(slow, judge, plan)
    assert found.replayed.is_whole
    assert math.isclose(found.time_ns, plan.time_ns)


def replayed_cuts(budget: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Cut], float]:
    """The cuts of which a first plan's runs were replayed, and what it comes to."""
    seen, really = list[Cut](), Judge.candidate

    def candidate(judge: Judge, retention: Retention, cut: Cut, *given: Any, **more: Any) -> Any:
        seen.append(cut)
        return really(judge, retention, cut, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "candidate", candidate)
        made = optimiser(*patches(), budget).run("greedy", Effort(steps=0))
    return seen, made.expected_ns


@pytest.mark.parametrize("budget", [130_000, 140_000, 160_000, 200_000])
def test_finer_cuts_are_not_tried_where_coarser_ones_took_too_much_longer_than_promised(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of these would have been taken."""
    few, found_ns = replayed_cuts(budget, monkeypatch)
    monkeypatch.setattr(Layouts, "is_beaten", lambda *given: False)
    many, same_ns = replayed_cuts(budget, monkeypatch)
    assert len(few) < len(many)
    assert set(few) <= set(many)
    assert found_ns == same_ns


def test_what_a_cut_takes_longer_than_promised_is_said_of_finer_ones_along_its_dimension() -> None:
    judge, plan = in_pieces()
    layouts, keep = layouts_of(judge), judge.bits(plan.retention)
    arm: Any = SimpleNamespace(
        tried=set(), cut=plan.cut, model=judge.uncut, budget_bytes=1 << 30, spare_bytes=0
    )
    packs, found = layouts.come_to(arm, keep)
    assert packs
    assert found is not None
    along, finer = plan.cut, replace(plan.cut, parts=2 * plan.cut.parts)
    assert layouts.longer(along) == layouts.longer(finer) > 1.1
    assert layouts.longer(along) == pytest.approx(found.time_ns / found.modelled_ns, rel=0.1)
    assert layouts.longer(replace(along, parts=along.parts // 2)) == 1.0
    assert layouts.longer(replace(along, axis=3)) == layouts.longer(WHOLE) == 1.0
    promise_ns = 0.95 * found.time_ns / layouts.longer(along)
    assert not layouts.is_beaten(promise_ns, along, found)
    assert layouts.is_beaten(
        promise_ns, finer, found
    )  # which has to be ahead by what it may be off


def test_cuts_of_which_nothing_comes_are_opened_last_and_for_their_bound() -> None:
    cuts = [WHOLE, *(Cut("x", axis, parts) for axis in (2, 3) for parts in (2, 4, 8))]
    own, best = cuts[2], SimpleNamespace(cut=cuts[2])
    hopeless = {cuts[2], cuts[3], cuts[5]}
    arms: Any = SimpleNamespace(
        budget_bytes=0, cuts=lambda own: iter(cuts), hoped_ns=lambda cut: 1.0,
        of=lambda cut: [SimpleNamespace(freer=None, cut=cut, relaxed=None)],
    )  # fmt: skip
    layouts: Any = SimpleNamespace(
        spending=Spending(Effort(steps=0), lambda: False),
        incumbent=SimpleNamespace(best=best),
        is_beaten=lambda promise_ns, cut, best: cut in hopeless,
    )
    uncut = SimpleNamespace(tables=SimpleNamespace(base_bytes=0, kept_bytes=np.zeros(1, int)))
    judge: Any = SimpleNamespace(uncut=uncut, planner=SimpleNamespace(tell=print))
    bounds = Bounds(judge, arms, layouts, {0: 1.0}, 0.0, is_exact=False)
    bounds.allowance.work = 0.0
    found = [(arm.cut, bounds.is_for_bounds) for arm in bounds.opening()]
    assert [cut for cut, is_for_bounds in found if is_for_bounds] == [cuts[3], cuts[5]]
    assert [cut for cut, is_for_bounds in found if not is_for_bounds] == [
        cut for cut in cuts if cut == own or cut not in hopeless
    ]
