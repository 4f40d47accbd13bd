"""A search in a process of its own, which its caller can watch, stop and resume.

    this process                                          its child (spawned, ends with it)
    BackgroundSearch ── task, run, stop ─→ outbox thread ─→ listener thread ─→ Optimiser
                     ←─ events, plans ── inbox ←─ reader thread ←── progress, best plan

Nothing here waits for the child, except where asked to: threads carry what is said, both ways. What
crosses is plain data between our own two processes; plans cross as JSON and are checked like files.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, TypeAlias

from tgbench.base import errors
from tgbench.base.errors import SearchError, TgbenchError
from tgbench.base.stopping import StopReason
from tgbench.base.switches import telling
from tgbench.base.tiles import Tiling
from tgbench.costs.model import CostModel, CostTable
from tgbench.graph.graph import Graph, Node
from tgbench.graph.graph_file import graph_from_json, graph_to_json
from tgbench.graph.op_table import LEAVES, OPS, Call
from tgbench.graph.unfold import named
from tgbench.kernels.registry import KERNELS
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Classes, Decisions, PlanBucket
from tgbench.plans.plan import Plan
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.effort import Effort, Mode
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.plan_search import LaidOut, Looked
from tgbench.plans.search.rounds import Neighbourhood
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.rules import Rules

CONTEXT = multiprocessing.get_context("spawn")  # nothing of the caller's threads and locks
GRACE_S = 0.5  # what a search has to hand over its plan when it is stopped
ENDING_S = 5.0  # what a process has to end before it is killed
MOST_EVENTS = 10_000  # kept for `poll`; older ones go first
DEFAULT = Effort(seconds=30.0)


# --- what is sent ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchTask:
    """Everything that a search needs, as plain data for another process.

    Fields:
        graph_json: as a graph file has it: no recursion, however deep the graph.
        schedule: names of the executable nodes, in order; see `graph.unfold`.
        classes: what has to fit besides the trace.
        start_json: a plan to go on from.
        modules: where ops and kernels of the graph are registered, outside of tgbench.
        tilings: of every computed node by name, in bit-exact mode; None in the normal one.
        unpacked: nodes whose weights are read as they lie.
        copied: views that have bytes of their own.
    """

    graph_json: str
    schedule: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    budget_bytes: int | None
    costs: CostTable
    device: str
    classes: tuple[PlanBucket, ...]
    start_json: str | None
    modules: tuple[str, ...]
    tilings: Mapping[str, Tiling] | None = None
    unpacked: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()

    @staticmethod
    def of(
        scheduled: ScheduledGraph,
        buckets: Sequence[Bucket],
        budget_bytes: int | None,
        costs: CostModel,
        device: str = "cpu",
        classes: Classes | None = None,
        start: Plan | None = None,
        tilings: Mapping[str, Tiling] | None = None,
        unpacked: frozenset[Call] = frozenset(),
    ) -> SearchTask:
        """The task of `Optimiser(scheduled, …)`.

        Raises SearchError if an op or kernel is defined where no other process finds it, and
        GraphError for an attribute that a graph file cannot hold.
        """
        return SearchTask(
            graph_to_json(scheduled.folded),
            tuple(node.name for node in scheduled.schedule),
            tuple(buckets),
            budget_bytes,
            costs.table(),
            device,
            tuple(
                PlanBucket(kind.changed, kind.demand, kind.bounds, weight, origin)
                for kind, (weight, origin) in (classes or {}).items()
            ),
            start.to_json() if start is not None else None,
            modules_of(scheduled.folded),
            tilings,
            tuple(node.name for node in scheduled.once.schedule if node.call in unpacked),
            tuple(node.name for node in scheduled.folded.nodes if node in scheduled.copied),
        )

    def optimiser(self, **more: Any) -> Optimiser:
        """The search over this process's own copy of the graph."""
        for module in self.modules:
            importlib.import_module(module)
        graph = graph_from_json(self.graph_json)
        nodes = {node.name: node for node in graph.nodes}
        unpacked = frozenset(nodes[name].call for name in self.unpacked)
        rules = Rules(self._tilings_of(nodes), unpacked)
        copied = [nodes[name] for name in self.copied]
        scheduled = ScheduledGraph.of(graph, named(graph, self.schedule), copied)
        costs = CostModel(self.costs, rules=rules)
        # Made anew: a class remembers its hash, and hashes of text differ between processes.
        classes = {
            BucketClass(b.changed, b.demand, b.bounds): (b.weight, b.origin) for b in self.classes
        }
        workload = Workload.of(scheduled, rules, self.buckets)
        return Optimiser(
            scheduled, rules, workload, self.budget_bytes, costs.time_ns, self.device,
            classes=classes, ranking=costs.kernels, **more,
        )  # fmt: skip

    def _tilings_of(self, nodes: Mapping[str, Node]) -> dict[Call, Tiling] | None:
        if self.tilings is None:
            return None
        return {nodes[name].call: tiling for name, tiling in self.tilings.items()}


def modules_of(graph: Graph) -> tuple[str, ...]:
    """Modules outside of tgbench that register an op of this graph, or a kernel for one.

    Raises SearchError for one that is defined in a notebook or at a prompt.
    """
    found: dict[str, str] = {}
    for op in sorted({node.op for node in graph.nodes} - set(LEAVES)):
        found.setdefault(OPS[op].reference.__module__, f"op {op!r}")
        for kernel in KERNELS.get(op, ()):
            found.setdefault(kernel.bind.__module__, f"kernel {kernel.name!r}")
    main = found.pop("__main__", None)
    if main is not None and not hasattr(sys.modules["__main__"], "__file__"):
        raise SearchError(
            f"{main} is defined where another process cannot import it; move it into a module, "
            "or search in this process (`session.optimize`)"
        )
    return tuple(sorted(name for name in found if name.split(".")[0] != "tgbench"))


@dataclass(frozen=True)
class Event:
    """Where a search stands.

    Fields:
        step: windows so far, those of the saved plan included.
        best_ns, bound_ns: mean run of the best plan, and what no plan is faster than; 0 as long as
            there is none.
        message: one line.
        plan_json: the best plan so far, where it is a new one.
        tried: plans that were laid out since the last event.
        windows: what was decided anew since then.
    """

    step: int
    best_ns: float
    bound_ns: float
    message: str = ""
    plan_json: str | None = None
    tried: tuple[LaidOut, ...] = ()
    windows: tuple[Neighbourhood, ...] = ()


@dataclass(frozen=True)
class _Run:
    leg: int
    mode: Mode
    effort: Effort
    seed: int
    workers: int
    budget_bytes: int | None
    start_json: str | None
    bound_ns: float


@dataclass(frozen=True)
class _Stop:
    leg: int


@dataclass(frozen=True)
class _Told:
    leg: int
    event: Event


@dataclass(frozen=True)
class _Done:
    leg: int
    best_ns: float
    plan_json: str


@dataclass(frozen=True)
class _Failed:
    """An exception by parts, as typed ones do not all survive pickling."""

    leg: int
    kind: str
    message: str
    details: Mapping[str, Any]

    @staticmethod
    def of(leg: int, error: Exception) -> _Failed:
        if isinstance(error, TgbenchError):
            return _Failed(leg, type(error).__name__, str(error), vars(error))
        told = "".join(traceback.format_exception(error))
        return _Failed(
            leg, "SearchError", f"the search failed, which is an error of ours:\n{told}", {}
        )

    def error(self) -> TgbenchError:
        kind = getattr(errors, self.kind)
        made: TgbenchError = kind.__new__(kind, self.message)
        vars(made).update(self.details)
        return made


# --- in the child ---------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """The child: searches whenever it is told to, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to act upon
    desk = _Desk(connection)
    task: SearchTask = desk.next()
    optimiser: Optimiser | None = None
    while True:
        run: _Run = desk.next()
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
            desk.send(_Done(run.leg, made.expected_ns, _plan_json(optimiser, made)))
        except Exception as error:
            desk.send(_Failed.of(run.leg, error))


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
        _thread(self._listen)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, _Stop):
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
        self.send(_Told(self._leg, replace(self._event, message=message)))
        self._event = replace(self._event, plan_json=None, tried=(), windows=())

    def look(self, found: Looked) -> None:
        """Note what was tried, for the next message."""
        event = self._event
        if isinstance(found, LaidOut):
            self._event = replace(event, tried=(*event.tried, found))
        else:
            self._event = replace(event, windows=(*event.windows, found))


# --- in the parent --------------------------------------------------------------------------------


class _Inbox:
    """What is known of a search: written by the reader, read by everybody."""

    def __init__(self, plan_json: str | None) -> None:
        self.changed = threading.Condition()
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.leg, self.is_running = 0, False
        self.stop: StopReason | None = None  # why the last leg ended, where its plan cannot say so
        self.failure: _Failed | None = None
        self.forget(plan_json)

    def forget(self, plan_json: str | None) -> None:
        """Nothing is known but a plan to begin with."""
        self.step, self.bound_ns = 0, 0.0
        self.best_ns, self.plan_json = float("inf"), plan_json

    def begin(self) -> int:
        with self.changed:
            self.leg += 1
            self.is_running, self.stop, self.failure = True, None, None
            return self.leg

    def end(self, stop: StopReason) -> None:
        """The leg is over, whatever its process says later."""
        with self.changed:
            if self.is_running:
                self.is_running, self.stop = False, stop
                self.changed.notify_all()

    def put(self, message: _Told | _Done | _Failed) -> None:
        with self.changed:
            if message.leg == self.leg and self.is_running:
                self._take(message)
                self.changed.notify_all()

    def _take(self, message: _Told | _Done | _Failed) -> None:
        if isinstance(message, _Told):
            event = message.event
            self._better(event.best_ns, event.plan_json)
            if event.best_ns:  # a leg begins with the greedy plan, which earlier ones left behind
                event = replace(event, best_ns=min(event.best_ns, self.best_ns))
            self.step, self.bound_ns = event.step, event.bound_ns or self.bound_ns
            self.events.append(event)
            return
        self.is_running = False
        if isinstance(message, _Done):
            self._better(message.best_ns, message.plan_json)
        else:
            self.failure = message

    def _better(self, best_ns: float, plan_json: str | None) -> None:
        if plan_json is not None and best_ns <= self.best_ns:
            self.best_ns, self.plan_json = best_ns, plan_json

    def taken(self) -> list[Event]:
        with self.changed:
            found = list(self.events)
            self.events.clear()
            return found

    def wait(self, seconds: float | None) -> bool:
        """Whether the leg is over, by then."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.is_running, seconds)


Outbox: TypeAlias = "SimpleQueue[Any]"


class _Child:
    """A process that searches, and the two threads that carry what is said."""

    def __init__(self, task: SearchTask, inbox: _Inbox) -> None:
        here, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(
            target=serve, args=(there,), name="tgbench search", daemon=True
        )
        self.process.start()
        there.close()
        self.outbox: Outbox = SimpleQueue()
        self.outbox.put(task)
        self._reader = _thread(_receive, here, self.process, inbox)
        _thread(_send, here, self.outbox)

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


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _send(connection: Connection, outbox: Outbox) -> None:
    with suppress(OSError):  # the reader finds out why
        while (message := outbox.get()) is not None:
            connection.send(message)


def _receive(connection: Connection, process: BaseProcess, inbox: _Inbox) -> None:
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
        self._inbox = _Inbox(task.start_json)
        self._child: _Child | None = None

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

        What earlier legs proved is not proved again. Raises SearchError if it is running.
        """
        if self.is_running:
            raise SearchError("the search is running; stop it first, or wait for its `result()`")
        if self._child is None or not self._child.process.is_alive():
            self.close()
            self._child = _Child(self.task, self._inbox)
            weakref.finalize(self, _end, self._child.process, self._child.outbox)
        effort = DEFAULT if seconds is None and steps is None else Effort(seconds, steps)
        inbox, leg = self._inbox, self._inbox.begin()
        self._child.outbox.put(
            _Run(
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
            self._child.outbox.put(_Stop(self._inbox.leg))
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
