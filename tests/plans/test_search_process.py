"""Searches that go on, are interrupted, and run in a process of their own."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from search_cases import SearchCase, busy_case
from strategies import Maker, graphs

from tgbench import ops
from tgbench.base.errors import BudgetError, KernelError, SearchError
from tgbench.base.words import format_time
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import graph_from_json, graph_to_json
from tgbench.kernels.registry import KERNELS, Kernel
from tgbench.plans.background.inbox import Inbox
from tgbench.plans.background.messages import Done, Event, Failed, Told
from tgbench.plans.background.process import BackgroundSearch
from tgbench.plans.background.task import modules_of
from tgbench.plans.decisions import SearchRecord
from tgbench.plans.plan import Plan
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.search.chain import Chain, ChainResult
from tgbench.plans.search.effort import Effort
from tgbench.plans.search.sending import Message, UnknownProgram

PATIENCE_S = 60.0  # for a process to start, on a machine with other things to do
CASE = busy_case()


def record_of(plan: Plan) -> SearchRecord:
    assert plan.search is not None
    return plan.search


def never_rises(history: tuple[tuple[int, float], ...]) -> bool:
    return all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(history))


# --- more time, and interrupts -------------------------------------------------------------------


class Listed:
    """An executor that keeps the chains that it is given, and runs none."""

    def __init__(self) -> None:
        self.chains: list[Chain] = []

    def submit(self, function: object, message: Message) -> Future[Any]:
        done: Future[Any] = Future()
        if message.program is None:
            done.set_result(UnknownProgram())
            return done
        chain = Chain(pickle.loads(message.program), **message.rest)
        self.chains.append(replace(chain, steps=96))
        done.set_result(ChainResult(steps=chain.steps))
        return done


def test_a_longer_chain_finds_what_a_shorter_one_does_and_more() -> None:
    listed = Listed()
    busy = replace(busy_case(seed=2, ops=8, runs=8), share=0.9)
    busy.plan(64, executor=listed)
    chain = listed.chains[0]  # made to find things: other memory, and no hint where to look
    model = chain.program.model
    least, most = model.score(np.concatenate([model.none(), ~model.none()])).size_bytes.tolist()
    program = IntegerProgram(model, least + (most - least) // 5)
    chain = replace(chain, program=program, share=np.zeros_like(chain.share), starts=(), size=2)
    whole = replace(chain, steps=24).run()
    times = [one.time_ns for one in whole.found]
    assert whole.steps == len(whole.windows) == 24
    assert times == sorted(times)
    assert len(times) >= 2
    gains = [window.after.time_ns for window in whole.windows if window.gains]
    assert gains[::-1] == times[: len(gains)]
    before = np.inf
    for steps in (0, 1, 6, 24):
        asked = iter([False] * steps + [True])
        short = replace(chain, steps=24).run(lambda asked=asked: next(asked))  # type: ignore[misc]
        assert short.steps == steps
        best = min((one.time_ns for one in short.found), default=np.inf)
        assert best <= before
        before = best
    assert before == times[0]


def test_more_steps_are_never_worse_and_history_never_rises() -> None:
    plans = [CASE.plan(steps, workers=2) for steps in (16, 64, 128)]
    records = [record_of(plan) for plan in plans]
    assert [r.steps for r in records] == [16, 64, 128]
    assert all(never_rises(r.history) for r in records)
    best = [r.best_ns for r in records]
    assert best == sorted(best, reverse=True)
    assert best[0] <= records[0].greedy_ns
    assert all(r.history[-1][1] == r.best_ns for r in records)


@pytest.mark.parametrize("at", ["bounding", "integer program", "step 16", "step 32"])
def test_an_interrupt_keeps_the_best(at: str) -> None:
    said: list[str] = []

    def progress(message: str) -> None:
        said.append(message)
        if message.startswith(at):
            raise KeyboardInterrupt

    record = record_of(plan := CASE.plan(10_000, progress=progress))
    assert record.stop == "interrupted"
    assert plan.size_bytes <= CASE.budget_bytes
    assert record.best_ns <= record.greedy_ns
    assert any(f"best {format_time(record.best_ns)} " in message for message in said)


def test_a_stop_ends_a_round_in_the_middle() -> None:
    asked = iter([False] * 60 + [True] * 1000)
    record = record_of(CASE.plan(10_000, stop=lambda: next(asked)))
    assert record.stop == "stopped"
    assert 16 < record.steps < 60


def test_a_search_goes_on_from_a_saved_plan() -> None:
    first = CASE.plan(16)
    second = CASE.plan(32, Plan.from_json(first.to_json()))
    third = CASE.plan(16, second, seed=5)  # another seed counts its own steps
    assert record_of(second).steps == 48
    assert record_of(third).steps == 16
    assert record_of(first).best_ns >= record_of(second).best_ns >= record_of(third).best_ns
    assert never_rises(record_of(second).history)
    assert CASE.plan(32, first).to_json() == second.to_json()


def test_what_was_proved_is_not_proved_again() -> None:
    said: list[str] = []
    optimiser = CASE.task().optimiser(progress=said.append)
    first = optimiser.run("search", Effort(steps=16))
    assert any(message.startswith("bounding") for message in said)
    said.clear()
    second = optimiser.run("search", Effort(steps=16), start=first)
    assert not any(message.startswith(("bounding", "integer program")) for message in said)
    assert second.search is not None
    assert first.search is not None
    assert 0 < second.search.bound_ns == first.search.bound_ns


# --- what is sent --------------------------------------------------------------------------------


def sent(graph: Graph) -> Graph:
    return graph_from_json(graph_to_json(graph))


@given(graphs(most_ops=8))
def test_a_graph_arrives_as_it_was(case: tuple[Graph, Maker]) -> None:
    graph, _ = case
    assert sent(graph).fingerprint == graph.fingerprint
    assert str(sent(graph)) == str(graph)


def test_a_deep_graph_with_constants_states_and_masks_arrives() -> None:
    g = GraphBuilder()
    x, counter = g.input("x", (4, 4)), g.state("counter", (4, 4))
    mask = g.constant(np.tril(np.ones((4, 4), bool)))
    y = x
    for i in range(1500):
        y = g.name(y + float(i % 7), f"deep.{i}") if i % 2 else ops.maximum(y, counter)
    g.output("y", ops.softmax(ops.where(mask, y, float("-inf"))))
    g.update(counter, y)
    graph = g.build()
    assert len(graph) > 1500
    assert sent(graph).fingerprint == graph.fingerprint


def test_a_task_holds_the_graph_as_a_file_does() -> None:
    task = pickle.loads(pickle.dumps(CASE.task()))
    assert task.graph_json == graph_to_json(CASE.graph)
    assert task.optimiser().judge.scheduled.graph.fingerprint == CASE.graph.fingerprint


def test_typed_errors_arrive_with_their_attributes() -> None:
    error = BudgetError(
        "too small", budget_bytes=1, needed_bytes=9, lower_bound_bytes=8, step=3, nodes=(("a", 8),)
    )
    again = pickle.loads(pickle.dumps(Failed.of(1, error))).error()
    assert type(again) is BudgetError
    assert str(again) == "too small"
    assert vars(again) == vars(error)
    assert "division" in str(Failed.of(1, ZeroDivisionError("division")).error())


def test_what_is_told_is_never_worse_than_before() -> None:
    """A leg begins with the greedy plan, which the legs before it left behind."""
    inbox = Inbox("saved")
    first = inbox.begin()
    for best_ns, plan in [(9.0, "greedy"), (9.0, None), (5.0, "better")]:
        inbox.put(Told(first, Event(16, best_ns, 1.0, "", plan)))
    inbox.put(Done(first, 5.0, "better, explained"))
    assert inbox.plan_json == "better, explained"
    second = inbox.begin()
    inbox.put(Told(first, Event(99, 1.0, 1.0, "", "of a leg that is over")))
    inbox.put(Told(second, Event(16, 9.0, 1.0, "", "greedy")))
    assert inbox.plan_json == "better, explained"
    assert [event.best_ns for event in inbox.taken()] == [9.0, 9.0, 5.0, 5.0]
    inbox.put(Told(second, Event(20, 4.0, 1.0, "", "best")))
    inbox.end("process lost")
    inbox.put(Told(second, Event(30, 3.0, 1.0, "", "too late")))
    assert (inbox.plan_json, inbox.step, inbox.stop) == ("best", 20, "process lost")


def test_kernels_of_a_notebook_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(site: object, scratch: object) -> None:
        raise KernelError("never bound")

    def named(module: str) -> None:
        monkeypatch.setattr(bind, "__module__", module, raising=False)
        kernel = Kernel("mine", "add", lambda site: False, lambda site: 1.0, bind)  # type: ignore[arg-type]
        monkeypatch.setitem(KERNELS, "add", [*KERNELS["add"], kernel])

    assert modules_of(CASE.graph) == ()
    named("a_package.kernels")
    assert modules_of(CASE.graph) == ("a_package.kernels",)
    named("__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(SearchError, match="move it into a module"):
        modules_of(CASE.graph)


# --- in another process --------------------------------------------------------------------------


def background(case: SearchCase = CASE, **more: object) -> BackgroundSearch:
    return BackgroundSearch(case.task(**more), workers=2)


def until(search: BackgroundSearch, step: int, *, bounded: bool = False) -> list[Event]:
    """What happens up to a step, and a bound if one is waited for; fails if it ends before."""
    found: list[Event] = []
    end = time.monotonic() + PATIENCE_S
    while not any(
        event.step >= step and event.best_ns and event.bound_ns >= bounded for event in found
    ):
        assert search.is_running
        assert time.monotonic() < end, found
        time.sleep(0.02)
        found += search.poll()
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody asks about any more counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


def pid_of(search: BackgroundSearch) -> int:
    assert search._child is not None
    pid = search._child.process.pid
    assert pid is not None
    return pid


def test_the_other_process_finds_the_same_plan_and_goes_on() -> None:
    with background() as search:
        with pytest.raises(SearchError, match="not started"):
            search.result()
        search.start(steps=64)
        with pytest.raises(SearchError, match="is running"):
            search.start()
        assert search.wait(PATIENCE_S)
        first = search.result()
        here = CASE.plan(64, workers=2)
        assert first.to_json() == here.to_json()

        events = search.poll()
        assert search.poll() == []
        told = [event for event in events if event.best_ns]
        assert never_rises(tuple((event.step, event.best_ns) for event in told))
        plans = [Plan.from_json(e.plan_json) for e in told if e.plan_json is not None]
        assert [record_of(plan).best_ns for plan in plans] == sorted(
            {event.best_ns for event in told}, reverse=True
        )

        child = pid_of(search)
        search.resume(steps=32)
        assert search.wait(PATIENCE_S)
        assert search.result().to_json() == CASE.plan(32, first, workers=2).to_json()

        search.resume(seconds=10 * PATIENCE_S)
        os.kill(child, signal.SIGINT)  # as a terminal does to everybody: not for the child to take
        until(search, 128)
        stopped = record_of(search.stop(grace_s=PATIENCE_S))
        assert stopped.stop == "stopped"
        assert stopped.steps >= 128
        assert stopped.best_ns <= record_of(first).best_ns
        assert not search.is_running
        assert pid_of(search) == child
    assert is_gone(child)
    assert search.result().search == stopped  # what was found stays


@pytest.mark.usefixtures("forked")
def test_a_search_that_does_not_answer_is_ended_and_keeps_what_it_told() -> None:
    with background() as search:
        search.start(seconds=10 * PATIENCE_S)
        events = until(search, 16, bounded=True)
        child = pid_of(search)
        plan = search.stop(grace_s=0.0)
        assert is_gone(child)
        assert record_of(plan).stop == "stopped"
        assert record_of(plan).steps >= events[-1].step
        assert record_of(plan).best_ns == events[-1].best_ns
        assert record_of(plan).bound_ns == events[-1].bound_ns > 0
        assert plan.placement_for(CASE.graph, "cpu").placement.size_bytes <= CASE.budget_bytes

        search.resume(seconds=10 * PATIENCE_S)  # in a new process
        until(search, record_of(plan).steps + 1)
        os.kill(pid_of(search), signal.SIGKILL)
        assert search.wait(PATIENCE_S)
        lost = search.result()
        assert record_of(lost).stop == "process lost"
        assert record_of(lost).steps > record_of(plan).steps
        assert record_of(lost).best_ns <= record_of(plan).best_ns


@pytest.mark.usefixtures("forked")
def test_one_process_tries_one_budget_after_the_other() -> None:
    budgets = [CASE.budget_bytes, int(0.9 * CASE.budget_bytes), 2 * CASE.budget_bytes]
    with background() as search:
        plans, children = [], set()
        for budget_bytes in budgets:
            search.within(budget_bytes)
            search.start(steps=16)
            plans.append(search.result())
            children.add(pid_of(search))
        assert len(children) == 1
    assert [plan.budget_bytes for plan in plans] == budgets
    assert all(plan.size_bytes <= (plan.budget_bytes or 0) for plan in plans)
    assert plans[0].expected_ns <= plans[1].expected_ns


@pytest.mark.usefixtures("forked")
def test_errors_of_the_other_process_are_raised_here() -> None:
    with background(budget_bytes=1000) as search:
        search.start(steps=16)
        with pytest.raises(BudgetError) as caught:
            search.result()
        assert caught.value.budget_bytes == 1000
        assert caught.value.nodes


@pytest.mark.usefixtures("forked", "in_no_folder")
def test_a_search_in_a_folder_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with background() as search:
        with pytest.raises(SearchError, match="a working folder that is there"):
            search.start(steps=1)
        assert not search.is_running


def test_an_interrupt_leaves_no_process() -> None:
    search = background()
    with suppress(KeyboardInterrupt), search:
        search.start()
        child = pid_of(search)
        raise KeyboardInterrupt
    assert is_gone(child)
    assert not search.is_running
    with pytest.raises(SearchError, match="no plan yet"):
        search.result()


@pytest.mark.usefixtures("forked")
def test_a_search_that_nobody_holds_leaves_no_process() -> None:
    search = background()
    search.start()
    child = pid_of(search)
    del search
    assert is_gone(child)


@pytest.mark.usefixtures("forked")
def test_the_saved_plan_is_what_a_search_has_at_first() -> None:
    saved = CASE.plan(0)
    with background(start=saved) as search:
        search.start()
        assert search.stop(grace_s=0.0).slots == saved.slots


def search_and(waits: bool, told: Connection) -> None:
    search = background()
    search.start(seconds=600)
    told.send(pid_of(search))
    if waits:
        search.result()


@pytest.mark.parametrize("waits", [True, False], ids=["killed", "exits"])
def test_no_process_outlives_its_parent(waits: bool) -> None:
    context = get_context("fork")  # of the parent; the search is spawned as ever
    hears, told = context.Pipe(duplex=False)
    parent = context.Process(target=search_and, args=(waits, told))
    parent.start()
    child = hears.recv()
    if waits:
        time.sleep(random.Random(0).random())
        parent.kill()
    parent.join(PATIENCE_S)
    assert parent.exitcode == (-signal.SIGKILL if waits else 0)
    end = time.monotonic() + PATIENCE_S
    while not is_gone(child):
        assert time.monotonic() < end
        time.sleep(0.05)
