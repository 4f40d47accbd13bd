"""Chains on several processes and on a Dask cluster: the same plans, and what lost workers do."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from search_cases import busy_case, loaded_once

from tgbench.plans.decisions import SearchRecord
from tgbench.plans.plan import Plan
from tgbench.plans.search.chain import Chain, ChainResult
from tgbench.plans.search.sending import KEPT, Known, Message, UnknownProgram, run_round

loaded_once()
CASE = busy_case()
STEPS = 64
CHAINS = (1, 3)


@pytest.fixture(scope="module")
def here() -> dict[int, str]:
    """Plans of a search in this process, by its number of chains."""
    return {chains: CASE.plan(STEPS, workers=chains).to_json() for chains in CHAINS}


def record_of(plan: Plan) -> SearchRecord:
    assert plan.search is not None
    return plan.search


class Killer:
    """As `progress`: kills a process when the search has made so many steps."""

    def __init__(self, pids: Sequence[int], at: str = "step 48") -> None:
        self.pids, self.at, self.killed = pids, at, 0

    def __call__(self, message: str) -> None:
        if message.startswith(self.at) and not self.killed:
            self.killed = self.pids[0]
            os.kill(self.killed, signal.SIGKILL)


def test_processes_change_nothing_and_may_die(here: dict[int, str]) -> None:
    """Equal chains give equal plans; a pool that breaks down ends the search with its best."""
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        for chains in CHAINS:
            assert CASE.plan(STEPS, workers=chains, executor=pool).to_json() == here[chains]
        killer = Killer(list(pool._processes))
        plan = CASE.plan(100_000, workers=3, executor=pool, progress=killer)
    record = record_of(plan)
    assert killer.killed
    assert record.stop == "workers lost"
    assert record.steps >= 32
    assert record.best_ns <= record_of(Plan.from_json(here[3])).greedy_ns
    assert plan.placement_for(CASE.graph, "cpu").placement.size_bytes <= CASE.budget_bytes


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Of a real local cluster of two processes."""
    distributed = pytest.importorskip("distributed", reason="needs `pip install tgbench[cluster]`")
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(
            processes=True, n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_cluster_changes_nothing(client: Any, here: dict[int, str]) -> None:
    assert CASE.plan(STEPS, workers=3, executor=client).to_json() == here[3]


def test_a_cluster_replaces_a_worker_that_dies(client: Any, here: dict[int, str]) -> None:
    """Dask starts the chain again elsewhere, so that the plan is the same."""
    killer = Killer(list(client.run(os.getpid).values()))
    plan = CASE.plan(STEPS, workers=3, executor=client, progress=killer)
    assert killer.killed
    assert plan.to_json() == here[3]


def test_a_client_that_is_closed_ends_the_search(client: Any) -> None:
    distributed = pytest.importorskip("distributed")
    other = distributed.Client(client.scheduler.address, set_as_default=False)
    with closing(other):
        record = record_of(
            CASE.plan(
                100_000,
                workers=2,
                executor=other,
                progress=lambda message: other.close() if message.startswith("step 32") else None,
            )
        )
    assert record.stop == "workers lost"
    assert record.steps >= 32


class Cluster:
    """A scheduler and two workers that are processes of their own, on a port that stays."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        port = self.address.split(":")[1]
        self._run("scheduler", "--host", "127.0.0.1", "--port", port)
        for _ in range(2):
            self._run("worker", self.address, "--nthreads", "1", "--no-nanny")

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        self.started.clear()

    def _run(self, what: str, *arguments: str) -> None:
        module = f"distributed.cli.dask_{what}"
        command = [sys.executable, "-m", module, *arguments, "--no-dashboard"]
        path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
        self.started.append(
            subprocess.Popen(
                command, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.DEVNULL
            )
        )


def test_a_cluster_may_start_again() -> None:
    """What was under way is lost, what was found stays, and the search goes on."""
    distributed = pytest.importorskip("distributed")
    cluster, restarted = Cluster(), list[str]()

    def progress(message: str) -> None:
        if message.startswith("step 48") and not restarted:
            restarted.append(message)
            cluster.stop()
            cluster.start()

    cluster.start()
    try:
        with distributed.Client(cluster.address, timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            record = record_of(CASE.plan(96, workers=3, executor=client, progress=progress))
    finally:
        cluster.stop()
    assert restarted
    assert record.stop in ("steps", "workers lost")
    assert record.steps >= 48
    assert record.best_ns <= record.greedy_ns


# --- a round, without processes ------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """Stands for one where nothing is solved."""

    packed: bytes = pickle.dumps("a program")


CHAIN = Chain(cast(Any, Program()), np.zeros((1, 1)), (), (1,), steps=1)


class Given:
    """An executor whose calls come to what is given: a result, a lost worker, or nothing yet."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.futures: list[Future[Any]] = []

    def submit(self, function: object, chain: object) -> Future[Any]:
        outcome, future = self.outcomes.pop(0), Future[Any]()
        if isinstance(outcome, OSError):
            future.set_exception(outcome)
        elif outcome is not None:
            future.set_result(outcome)
        self.futures.append(future)
        return future


def test_a_lost_chain_takes_nothing_with_it() -> None:
    given = Given(ChainResult(steps=3), OSError("connection lost"), ChainResult(steps=4))
    assert run_round([CHAIN] * 3, given) == ChainResult((), 7, 1)


def test_a_program_is_sent_where_it_is_not_known_and_once() -> None:
    """Two workers that take turns: each says once that it does not know the program."""
    sent, workers = list[Message](), (Known(), Known())

    class Taking:
        def submit(self, function: Any, message: Message) -> Future[Any]:
            future, known = Future[Any](), workers[len(done) % 2]
            sent.append(message)
            program = known.of(message.name, message.program)
            if program is not None:
                done.append(pickle.dumps(program))
            future.set_result(ChainResult(steps=1) if program is not None else UnknownProgram())
            return future

    done = list[bytes]()
    for _ in range(3):
        assert run_round([CHAIN] * 2, Taking()).steps == 2
    assert [message.program is not None for message in sent].count(True) == 2
    assert len(sent) == 3 * 2 + 2
    assert {message.name for message in sent} == {sent[0].name}
    assert len(done) == 6


def test_a_worker_forgets_the_oldest_programs() -> None:
    known = Known()
    for i in range(KEPT + 1):
        assert known.of(str(i), pickle.dumps(i)) == i
    assert known.of("0", None) is None
    assert known.of("1", None) == 1


def test_an_executor_that_takes_no_more_calls_loses_all_of_them() -> None:
    assert run_round([CHAIN] * 2, Given()) == ChainResult((), 0, 2)


def test_an_error_in_the_search_is_not_a_lost_worker() -> None:
    with pytest.raises(ZeroDivisionError):
        run_round([CHAIN], Given(ZeroDivisionError()))


def test_a_stop_does_not_wait_for_chains_elsewhere() -> None:
    given = Given(ChainResult(steps=3), None)
    asked = iter([False, False, True])
    assert run_round([CHAIN] * 2, given, lambda: next(asked)) == ChainResult((), 3, 0)
    assert given.futures[1].cancelled()


def test_an_interrupt_cancels_what_is_left() -> None:
    given = Given(None, None)

    def stop() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_round([CHAIN] * 2, given, stop)
    assert all(future.cancelled() for future in given.futures)
