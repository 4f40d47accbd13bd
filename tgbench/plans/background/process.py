"""A search in a process of its own, which its caller can watch, stop and resume.

    this process                                          its child (spawned, ends with it)
    BackgroundSearch ── task, run, stop ─→ outbox thread ─→ listener thread ─→ Optimiser
                     ←─ events, plans ── inbox ←─ reader thread ←── progress, best plan

Nothing here waits for the child, except where asked to: threads carry what is said, both ways. What
crosses is plain data between our own two processes; plans cross as JSON and are checked like files.
"""

from __future__ import annotations

import multiprocessing
import weakref
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, TypeAlias

from tgbench.base.errors import PlanError, SearchError, check_number
from tgbench.base.stopping import StopReason
from tgbench.plans.background.inbox import Inbox
from tgbench.plans.background.messages import Event, Halt, Leg, begun
from tgbench.plans.background.serving import serve
from tgbench.plans.background.task import SearchTask
from tgbench.plans.plan import Plan
from tgbench.plans.search.effort import Effort, Mode

CONTEXT = multiprocessing.get_context("spawn")  # nothing of the caller's threads and locks
GRACE_S = 0.5  # what a search has to hand over its plan when it is stopped
ENDING_S = 5.0  # what a process has to end before it is killed
DEFAULT = Effort(seconds=30.0)

Outbox: TypeAlias = "SimpleQueue[Any]"


class _Child:
    """A process that searches, and the two threads that carry what is said."""

    def __init__(self, task: SearchTask, inbox: Inbox) -> None:
        here, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(
            target=serve, args=(there,), name="tgbench search", daemon=True
        )
        self.process.start()
        there.close()
        self.outbox: Outbox = SimpleQueue()
        self.outbox.put(task)
        self._reader = begun(_receive, here, self.process, inbox)
        begun(_send, here, self.outbox)

    def end(self) -> None:
        """No process is left afterwards, and nothing more is heard of it."""
        _end(self.process, self.outbox)
        self._reader.join()


def _end(process: BaseProcess, outbox: Outbox) -> None:
    outbox.put(None)
    process.terminate()
    process.join(ENDING_S)
    if process.is_alive():
        process.kill()
        process.join()


def _send(connection: Connection, outbox: Outbox) -> None:
    with suppress(OSError):  # the reader finds out why
        while (message := outbox.get()) is not None:
            connection.send(message)


def _receive(connection: Connection, process: BaseProcess, inbox: Inbox) -> None:
    with suppress(EOFError, OSError):
        while True:
            inbox.put(connection.recv())
    process.join()
    inbox.end(StopReason.PROCESS_LOST)


class BackgroundSearch:
    """A search in another process, for one that has to stay responsive.

    Args:
        task: what to plan, and for what.
        mode, seed, workers: as in `session.optimize`; chains run one after the other.

    With the same seed and steps the plan is the one that a search in this process finds. Close it,
    or use it as a context manager; when this process ends, in whatever way, so does the other one.
    In a script, start it below `if __name__ == "__main__":`, as the process imports the script.

        with BackgroundSearch(SearchTask.of(scheduled, buckets, budget_bytes, costs)) as search:
            search.start(seconds=60)
            while search.is_running:
                for event in search.poll():
                    print(event.message)
            plan = search.result()
    """

    def __init__(
        self, task: SearchTask, mode: Mode = "search", seed: int = 0, workers: int = 1
    ) -> None:
        self.task = task
        self.mode, self.seed, self.workers = mode, seed, workers
        self._inbox = Inbox(task.start_json)
        self._child: _Child | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """It has a process of its own."""
        raise SearchError(
            "a search cannot be copied or pickled; begin another one, session.search()"
        )

    @property
    def is_running(self) -> bool:
        return self._inbox.is_running

    def within(self, budget_bytes: int | None, start: Plan | None = None) -> None:
        """Another budget for the legs to come, and a plan to begin with; the process stays.

        Raises SearchError if it is running.
        """
        if self.is_running:
            raise SearchError("the search is running; stop it first, or wait for its `result()`")
        self.task = replace(self.task, budget_bytes=budget_bytes)
        self._inbox.forget(start.to_json() if start is not None else None)

    def start(self, seconds: float | None = None, steps: int | None = None) -> None:
        """Search in the background, from the best plan so far; returns at once.

        What earlier legs proved is not proved again. Raises SearchError if it is running or no
        process can be started, and PlanError for what is no effort.
        """
        check_number(PlanError, "seconds", seconds)
        check_number(PlanError, "steps", steps, whole=True)
        if self.is_running:
            raise SearchError("the search is running; stop it first, or wait for its `result()`")
        if self._child is None or not self._child.process.is_alive():
            self.close()
            try:
                self._child = _Child(self.task, self._inbox)
            except OSError as error:
                raise SearchError(
                    f"no process can be started for the search ({error}); it takes a working "
                    "folder that is there, and room for one more process; `optimize` takes none"
                ) from error
            weakref.finalize(self, _end, self._child.process, self._child.outbox)
        effort = DEFAULT if seconds is None and steps is None else Effort(seconds, steps)
        inbox, leg = self._inbox, self._inbox.begin()
        self._child.outbox.put(
            Leg(
                leg, self.mode, effort, self.seed, self.workers, self.task.budget_bytes,
                inbox.plan_json, inbox.bound_ns,
            )
        )  # fmt: skip

    def resume(self, seconds: float | None = None, steps: int | None = None) -> None:
        """Go on from the best plan so far: another name of `start`."""
        self.start(seconds, steps)

    def poll(self) -> list[Event]:
        """What happened since the last call; waits for nothing."""
        return self._inbox.taken()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the search, so long at most; whether it is over."""
        return self._inbox.wait(seconds)

    def stop(self, grace_s: float = GRACE_S) -> Plan:
        """End the search; the best plan so far.

        A search that does not answer within `grace_s`, because it is in the middle of an integer
        program, is ended with its process. Then the plan is the last one it told of.

        Raises SearchError if it found none so far.
        """
        if self.is_running and self._child is not None:
            self._child.outbox.put(Halt(self._inbox.leg))
            if not self.wait(grace_s):
                self._inbox.end(StopReason.STOPPED)
                self.close()
        return self.result()

    def result(self) -> Plan:
        """The best plan; waits for the end of the search.

        Raises what the search raised, and SearchError if it found no plan.
        """
        inbox = self._inbox
        self.wait()
        if inbox.failure is not None:
            raise inbox.failure.error()
        if inbox.plan_json is None:
            raise SearchError(
                f"the search has no plan yet ({inbox.stop or 'not started'}); start it, and let it "
                "run until `poll()` tells of one, or search in this process (`session.optimize`)"
            )
        plan = Plan.from_json(inbox.plan_json)
        if inbox.stop and plan.search is not None:
            steps, bound_ns = max(plan.search.steps, inbox.step), inbox.bound_ns
            told = replace(
                plan.search, stop=inbox.stop, steps=steps, bound_ns=bound_ns or plan.search.bound_ns
            )
            plan = replace(plan, search=told)
        return plan

    def close(self) -> None:
        """End the process; what was found stays."""
        self._inbox.end(StopReason.STOPPED)
        if self._child is not None:
            self._child.end()
            self._child = None

    def __enter__(self) -> BackgroundSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
