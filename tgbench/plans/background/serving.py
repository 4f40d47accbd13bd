"""In the process that searches: whatever is asked, until the connection ends."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from tgbench.base.switches import telling
from tgbench.plans.background.messages import Done, Event, Failed, Halt, Leg, Told, begun
from tgbench.plans.background.task import SearchTask
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.plan_search import LaidOut, Looked


def serve(connection: Connection) -> None:
    """The child: searches whenever it is told to, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to act upon
    desk = _Desk(connection)
    task: SearchTask = desk.next()
    optimiser: Optimiser | None = None
    while True:
        run: Leg = desk.next()
        desk.begin(run.leg)
        try:
            if optimiser is None:
                optimiser = task.optimiser(
                    workers=run.workers,
                    progress=telling(desk.tell),
                    stop=desk.stops,
                    watch=desk.watch,
                    look=desk.look,
                )
                desk.optimiser = optimiser
            if run.budget_bytes != optimiser.budget_bytes:
                desk.forget()
            optimiser.budget_bytes, optimiser.proven_ns = run.budget_bytes, run.bound_ns
            start = _start(run.start_json, optimiser)
            made = optimiser.run(run.mode, run.effort, run.seed, start)
            made = replace(made, records=task.costs.basis)
            desk.send(Done(run.leg, made.expected_ns, _plan_json(optimiser, made)))
        except Exception as error:
            desk.send(Failed.of(run.leg, error))


def _start(text: str | None, optimiser: Optimiser) -> Decisions | None:
    if text is None:
        return None
    judge = optimiser.judge
    return Plan.from_json(text).placement_for(judge.scheduled.folded, judge.device)


def _plan_json(optimiser: Optimiser, made: Decisions) -> str:
    judge, budget_bytes = optimiser.judge, optimiser.budget_bytes
    graph, exact = judge.scheduled.folded, judge.rules.exact
    return Plan.of(graph, made, judge.device, budget_bytes, exact).to_json()


class _Desk:
    """The child's end of the connection."""

    def __init__(self, connection: Connection) -> None:
        self.optimiser: Optimiser | None = None
        self._connection = connection
        self._asked: SimpleQueue[Any] = SimpleQueue()
        self._leg, self._stopped = 0, 0
        self._event, self._shown = Event(0, 0.0, 0.0), float("inf")
        begun(self._listen)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Halt):
                    self._stopped = message.leg
                else:
                    self._asked.put(message)
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone, in whatever way

    def next(self) -> Any:
        """What is asked next; waits for it."""
        return self._asked.get()

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def begin(self, leg: int) -> None:
        self._leg = leg

    def forget(self) -> None:
        """Another budget: no plan of it was shown yet."""
        self._event, self._shown = Event(0, 0.0, 0.0), float("inf")

    def stops(self) -> bool:
        return self._stopped >= self._leg

    def watch(self, made: Decisions) -> None:
        """Note where the search stands, for the next message."""
        record, text = made.search, self._event.plan_json
        assert record is not None
        assert self.optimiser is not None
        if record.best_ns < self._shown:
            self._shown, text = record.best_ns, _plan_json(self.optimiser, made)
        self._event = replace(
            self._event, step=record.steps, best_ns=record.best_ns, bound_ns=record.bound_ns,
            plan_json=text,
        )  # fmt: skip

    def tell(self, message: str) -> None:
        self.send(Told(self._leg, replace(self._event, message=message)))
        self._event = replace(self._event, plan_json=None, tried=(), windows=())

    def look(self, found: Looked) -> None:
        """Note what was tried, for the next message."""
        event = self._event
        if isinstance(found, LaidOut):
            self._event = replace(event, tried=(*event.tried, found))
        else:
            self._event = replace(event, windows=(*event.windows, found))
