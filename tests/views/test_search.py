"""Searches beside a notebook: start, stop, resume, fork, failure; history and its picture."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest
from busy_session import busy_session

from tgbench.base.errors import BudgetError, SearchError
from tgbench.plans.background.messages import Event
from tgbench.plans.plan import Plan
from tgbench.plans.search.plan_search import LaidOut
from tgbench.views.panels.screen import Screen
from tgbench.views.show import _search
from tgbench.views.values.search import (
    History,
    Listed,
    Moment,
    SearchRun,
    history_of,
    optimize_async,
    to_svg,
)

PATIENCE_S = 60.0


def alone(call: Callable[[], object]) -> None:
    """In a thread of its own: a browser that another test left open has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


async def until_better(run: SearchRun) -> None:
    """Wait for a plan, with an eye on the clock."""
    end = time.monotonic() + PATIENCE_S
    while not run.history.last.step and time.monotonic() < end:
        await asyncio.sleep(0.02)


@pytest.mark.usefixtures("forked")
def test_stop_and_resume_while_the_loop_goes_on() -> None:
    session, seen, longest = busy_session(), list[bool](), [0.0]

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            longest[0] = max(longest[0], time.perf_counter() - began)

    async def notebook() -> None:
        heart = asyncio.create_task(beat())
        run = optimize_async(session, seconds=PATIENCE_S)
        run.watch(lambda: seen.append(run.is_running))
        told = {"text/plain": "searching; no plan yet"}
        assert _search(run) == Screen(run, panels=("header", "frontier")).static() == told, (
            "no empty chart"
        )
        await until_better(run)
        assert "image/svg+xml" in _search(run)
        heart.cancel()
        first = run.stop()
        assert not run.is_running
        assert session.plan == first
        assert run.stop() is first, "stopping twice is stopping once"
        assert await run is first
        assert first.search is not None
        more = await run.resume(steps=first.search.steps + 32)
        assert more.search is not None
        assert more.search.steps > first.search.steps
        assert more.search.best_ns <= first.search.best_ns
        assert run.fork().seed == run.seed + 1
        run.close()

    alone(lambda: asyncio.run(notebook()))
    assert seen[0]
    assert not seen[-1]
    assert longest[0] < 2.0


@pytest.mark.usefixtures("forked")
def test_a_budget_that_is_too_small_leaves_everything_as_it_was() -> None:
    session = busy_session()
    before, plan = session.budget_bytes, session.plan

    async def notebook() -> None:
        run = optimize_async(session, budget=64, steps=8)
        with pytest.raises(BudgetError):
            await run
        assert isinstance(run.failure, BudgetError)
        run.close()

    alone(lambda: asyncio.run(notebook()))
    assert session.budget_bytes == before
    assert session.plan == plan


def test_the_best_plan_is_marked_and_faster_ones_say_why_they_are_none() -> None:
    """Its numbers are those that are known now: it may be none of what was laid out."""
    best = LaidOut(100.0, 64, 2, 2)
    tried = (
        LaidOut(90.0, 64, 2, 4), LaidOut(99.9, 128, 3, 2), LaidOut(98.0, 64, 3, 1),
        LaidOut(103.0, 60, 2, 2), LaidOut(120.0, 60, 2, 1),
    )  # fmt: skip
    rows = Listed.all_of(tried, best, 3)
    assert [(row.number, row.is_best) for row in rows] == [
        (0, False), (2, False), (1, False), (3, True), (4, False)
    ]  # fmt: skip
    assert rows[3].laid_out == best
    assert [row.why.split(",")[0] for row in rows] == [
        "in more parts", "its time stands on fewer runs or kernels than the best one's", "larger",
        "", "",
    ]  # fmt: skip
    assert [row.number for row in Listed.all_of(tried, best, -1)].count(-1) == 1
    assert [row.is_best for row in Listed.all_of(tried, None, -1)] == [False] * len(tried)


@pytest.mark.usefixtures("forked")
def test_the_plan_that_a_search_ends_with_is_marked() -> None:
    session = busy_session()

    async def notebook() -> None:
        run = optimize_async(session, steps=32)
        plan = await run
        (best,) = [row for row in run.listed if row.is_best]
        assert best.laid_out.time_ns == plan.expected_ns
        assert best.laid_out.size_bytes == plan.size_bytes
        run.close()

    alone(lambda: asyncio.run(notebook()))


@pytest.mark.usefixtures("forked")
def test_a_search_without_a_budget_says_what_to_give_it() -> None:
    session = busy_session()
    session.budget_bytes = None

    async def notebook() -> None:
        run = optimize_async(session, steps=8)
        plan = await run
        assert plan.unsearched
        assert plan.unsearched in str(run)
        run.close()

    alone(lambda: asyncio.run(notebook()))


class Slow:
    """A background search that has no plan yet when it is stopped."""

    is_running = False

    def start(self, *_: object) -> None:
        self.is_running = True

    def poll(self) -> list[Event]:
        return []

    def stop(self, *_: object) -> Plan:
        self.is_running = False
        return self.result()

    def result(self) -> Plan:
        raise SearchError("the search has no plan yet (stopped)")

    def close(self) -> None:
        pass


def test_stopping_before_there_is_a_plan_says_so() -> None:
    session, told = busy_session(), list[str]()

    async def notebook() -> None:
        run = SearchRun(session)
        run._search = Slow()  # type: ignore[assignment]
        run.watch(lambda: told.append(str(run)))
        run.start(PATIENCE_S)
        with pytest.raises(SearchError):
            run.stop()
        run.close()

    alone(lambda: asyncio.run(notebook()))
    assert told == ["searching; no plan yet", "stopped before there was a plan"]


def test_a_search_is_under_way_until_its_plan_is_in_force() -> None:
    """What is told between its last word and its end is not told as its end."""
    session, slow = busy_session(), Slow()

    async def notebook() -> None:
        run = SearchRun(session)
        run._search = slow  # type: ignore[assignment]
        run.start(PATIENCE_S)
        slow.is_running = False
        assert run.is_running
        assert "not started" not in str(run)
        run.close()
        assert not run.is_running

    alone(lambda: asyncio.run(notebook()))


def test_without_a_loop_it_says_what_to_call() -> None:
    with pytest.raises(SearchError, match=r"session\.optimize"):
        alone(lambda: optimize_async(busy_session()))


def test_history_tells_where_it_stands() -> None:
    moments = (
        Moment(0.0, 0, 0.0, 0.0, "starting"),
        Moment(1.0, 50, 4e6, 3e6),
        Moment(3.0, 90, 3.3e6, 3e6),
    )
    shown = History(moments)
    assert shown.last.gap == pytest.approx(0.1)
    assert shown.steps_per_second == pytest.approx(30.0)
    assert str(shown) == "step 90, best 3.3 ms, bound 3 ms, gap 10.0%"
    assert list(shown.columns()["best"]) == [4e6, 3.3e6]
    ElementTree.fromstring(to_svg(shown))
    assert "nothing to draw yet" in to_svg(History(()))
    assert str(History(moments[:1])) == "starting"
    assert History(moments[:1])._repr_mimebundle_() == {"text/plain": "starting"}
    assert "image/svg+xml" in shown._repr_mimebundle_()


def test_a_plan_has_a_history_too() -> None:
    session = busy_session()
    plan = session.optimize(steps=1)
    assert plan.search is not None
    shown = history_of(plan.search)
    assert shown.last.best_ns == plan.search.best_ns
