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
from tgbench.views.values.search import (
    History,
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
        await until_better(run)
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


def test_a_plan_has_a_history_too() -> None:
    session = busy_session()
    plan = session.optimize(steps=1)
    assert plan.search is not None
    shown = history_of(plan.search)
    assert shown.last.best_ns == plan.search.best_ns
