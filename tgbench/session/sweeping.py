"""Paths measured one after the other: here, or by workers that are given all that it takes.

    first paths ─→ those that stand on something unmeasured ─→ timed in their own programs ─┐
         ↑                                                                                  │
         └──────────────── another order ←──── records ←────────────────────────────────────┘

A worker has the graph, the path and the runs; its weights are random, as times do not depend on
them. What it finds is of its machine, and is written down as that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from tgbench.base.machine import Machine
from tgbench.base.regions import Region
from tgbench.base.words import counted
from tgbench.costs.records import Record, Records
from tgbench.graph.graph import Graph
from tgbench.graph.graph_file import graph_from_json
from tgbench.plans.decisions import PlanPath
from tgbench.plans.paths.occasions import PlannedRun
from tgbench.session.drawing import random_inputs, random_weights
from tgbench.session.profile import Profile, profile

if TYPE_CHECKING:
    from tgbench.session.session import GraphSession

LEAST_S = 1.0  # of measuring, once there is something to measure
Wanted = tuple[Mapping[str, Region], Mapping[str, Region]]  # what changes, what is asked for


@dataclass(frozen=True)
class Sweep:
    """What a sweep did.

    Fields:
        measured: kernels at signatures that were timed now.
        paths: how many of the first paths stand on measurements throughout.
        stopped: "" where that is all that were asked for; else "time", "interrupt" or
            "workers lost".
    """

    measured: int
    paths: int
    stopped: str = ""

    def __str__(self) -> str:
        why = f"; stopped by {self.stopped}, the same call goes on" if self.stopped else ""
        return (
            f"{counted(self.measured, 'kernel')} measured, {counted(self.paths, 'path')} known{why}"
        )


@dataclass(frozen=True)
class SweepTask:
    """A path to be measured by another process, of whatever machine.

    Fields:
        graph: that it is a path of, as the text of a graph file.
        path: with a kernel for every call.
        runs: that it is measured for; none for one of everything.
        seconds: when to stop; None when all is measured.
    """

    graph: str
    path: PlanPath
    runs: tuple[Wanted, ...]
    device: str
    seconds: float | None


@dataclass(frozen=True)
class SweepResult:
    """What a worker found, and where."""

    rows: tuple[Record, ...]
    machine: Machine


def wanted(graph: Graph, run: PlannedRun) -> Wanted:
    """A run by names: what changes of the inputs, and what is asked for of the outputs; what states
    change by follows from these.
    """
    demand = {n: run.demand[node] for n, node in graph.outputs.items() if node in run.demand}
    return {name: part for name, part in run.changed.items() if name in graph.inputs}, demand


def measured(
    session: GraphSession,
    runs: Sequence[Wanted],
    records: Records,
    seconds: float | None = None,
) -> Profile:
    """Time what the programs of some runs call, where the records know nothing of it.

    Having programs is a part of the time; something is measured all the same, unless it is 0.
    """
    began = time.monotonic()
    session.run(random_inputs(session.graph, 1)[0])
    if runs:
        session.plan_for(runs)
        session.run({})
        session.prepare()
    if seconds:
        seconds = max(seconds - (time.monotonic() - began), LEAST_S)
    return profile(session, records, seconds, alternatives=False)


def measured_there(task: SweepTask) -> SweepResult:
    """What a worker does."""
    from tgbench.session.session import GraphSession

    graph = graph_from_json(task.graph)
    session = GraphSession(
        graph, random_weights(graph), device=task.device, calibrate=False, path=task.path,
        tolerance=task.path.tolerance,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        records = Records(FilePath(folder, "records.db"))
        measured(session, task.runs, records, task.seconds)
        machine = Machine.here(task.device)
        return SweepResult(records.all(machine.fingerprint), machine)
