"""A search on a Dask cluster: equal windows on 1, 2 and 4 workers, and what a hundred would send.

    client ── chain: what to begin with, the name of its program ─→ worker
           ←─ result: what was found, and the windows solved ──     or, once, "unknown":
           ── chain, program: tables of the model ─────────────→

Each search solves as many windows in all, so that it costs about as much of the processors. Time
is the processor's: of all workers, of the client with its scheduler, and the wall's. Messages are
counted with their bytes as they are pickled. From these follows, by counting, what a round of more
workers sends, and how long links of 1 and 10 Gbit/s take for it beside the windows.

    python -m benchmarks.cluster [--steps 16]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import cloudpickle

from benchmarks.measure import Command
from benchmarks.workloads import Workload, adversarial, unet_like
from tgbench.base.regions import Box
from tgbench.commands.progress import say, table
from tgbench.costs.model import CostModel
from tgbench.graph.op_table import Call
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.workload import Workload as Told
from tgbench.plans.search.chain import Submits
from tgbench.plans.search.effort import Effort
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.sending import UnknownProgram
from tgbench.runs.rules import Rules

WORKERS, STEPS, SHARE = (1, 2, 4), 16, 0.5
MANY = (4, 16, 100)
LINKS_BITS_S = (1e9, 1e10)
MODELS: Mapping[str, Callable[[], Workload]] = {
    "branches": partial(adversarial, "small"),
    "U-Net": partial(unet_like, "bench"),
}


@dataclass
class Counted:
    """An executor that counts what is sent to it and what comes back."""

    executor: Submits
    sent_bytes: list[int] = field(default_factory=list)
    program_bytes: list[int] = field(default_factory=list)
    futures: list[Any] = field(default_factory=list)

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        self.sent_bytes.append(len(cloudpickle.dumps((function, arguments))))
        self.program_bytes += [len(m.program) for m in arguments if m.program is not None]
        self.futures.append(self.executor.submit(function, *arguments))
        return self.futures[-1]

    @property
    def came_bytes(self) -> list[int]:
        return [len(cloudpickle.dumps(future.result())) for future in self.futures]


@dataclass(frozen=True)
class Row:
    """One search.

    Fields:
        best_ns, bound_ns: modelled time of the plan that was found, and what none is below.
        workers_cpu_s, here_cpu_s, wall_s: of the search.
        messages, sent_bytes, came_bytes: all of them.
        program_bytes: of the programs that were sent, the mean.
        chains: that were run.
    """

    model: str
    nodes: int
    workers: int
    steps: int
    best_ns: float
    bound_ns: float
    workers_cpu_s: float
    here_cpu_s: float
    wall_s: float
    messages: int
    sent_bytes: int
    came_bytes: int
    programs: int
    program_bytes: float
    chains: int


class Searched:
    """A workload with its tables, in a share of the memory that its greedy plan would take."""

    def __init__(self, workload: Workload) -> None:
        self.name, self.costs = workload.name, CostModel()
        self.scheduled = ScheduledGraph.of(workload.graph)
        self.told = Told.of(self.scheduled, Rules(), workload.buckets)
        self.nodes = len(workload.graph.nodes)
        roomy = self._optimiser(None).run("greedy").placement.size_bytes
        self.budget_bytes = int(SHARE * roomy)

    def _cost(self, call: Call, box: Box) -> float:
        return self.costs.estimate(call, box).time_ns

    def _optimiser(self, budget_bytes: int | None, **more: Any) -> Optimiser:
        return Optimiser(self.scheduled, Rules(), self.told, budget_bytes, self._cost, **more)

    def row(self, client: Any, workers: int, steps: int) -> Row:
        counted, before = Counted(client), _cpu_s(client)
        began, here = time.perf_counter(), time.process_time()
        optimiser = self._optimiser(self.budget_bytes, workers=workers, executor=counted)
        record = optimiser.run("search", Effort(steps=steps)).search
        assert record is not None
        wall_s, here_s = time.perf_counter() - began, time.process_time() - here
        sent, programs = counted.sent_bytes, counted.program_bytes
        unknown = sum(isinstance(future.result(), UnknownProgram) for future in counted.futures)
        return Row(
            self.name, self.nodes, workers, record.steps, record.best_ns, record.bound_ns,
            _cpu_s(client) - before, here_s, wall_s, 2 * len(sent), sum(sent),
            sum(counted.came_bytes), len(programs), sum(programs) / max(len(programs), 1),
            len(sent) - unknown,
        )  # fmt: skip


def _cpu_s(client: Any) -> float:
    return float(sum(client.run(time.process_time).values()))


def rows_of(searched: Searched, workers: int, steps: int) -> Row:
    """On a local cluster of so many processes of one thread each."""
    import distributed

    with (
        distributed.LocalCluster(
            processes=True, n_workers=workers, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(_warm)
        return searched.row(client, workers, steps)


def _warm() -> None:
    """A worker imports before it is timed."""
    import tgbench.plans.search.optimiser  # noqa: F401


def counted(row: Row, workers: int) -> dict[str, float]:
    """What a round of so many workers sends, from one chain's messages and time.

    Every worker solves the windows of a chain at the same time; the client sends and reads one
    message after the other. In the first round each asks for the program as well.
    """
    solving_s = row.workers_cpu_s / row.chains
    chain_bytes = (row.sent_bytes - row.programs * row.program_bytes) / (row.messages / 2)
    sent, came = workers * chain_bytes, workers * row.came_bytes / row.chains
    first = sent + workers * (chain_bytes + row.program_bytes)
    links = {
        f"{bits / 1e9:g} Gbit/s: share of {what}": (link := 8 * (sends + came) / bits)
        / (link + solving_s)
        for bits in LINKS_BITS_S
        for what, sends in (("the first round", first), ("a round", sent))
    }
    return {"workers": workers, "messages": 2 * workers, "sent_bytes": sent, "came_bytes": came,
            "first_sent_bytes": first, "solving_s": solving_s, **links}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("cluster", __doc__)
    command.add_argument("--steps", type=int, default=STEPS, help="windows of a search")
    add = command.add_argument
    add("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="these models")
    options, record = command.begin(argv)
    models = ["branches"] if options.quick else options.only
    numbers, steps = ((1,), 4) if options.quick else (WORKERS, options.steps)
    rows = [
        rows_of(searched, workers, steps)
        for searched in (Searched(MODELS[name]()) for name in models)
        for workers in numbers
    ]
    header = ["model", "workers", "windows", "best, µs", "best ÷ bound", "CPU s", "here", "wall",
              "messages", "programs", "sent", "came"]  # fmt: skip
    say(table(header, [_cells(row) for row in rows]))
    many = {row.model: [counted(row, n) for n in MANY] for row in rows if row.messages}
    record.write({"rows": [asdict(row) for row in rows], "counted": many}, options.output)
    return 0


def _cells(row: Row) -> list[str]:
    over = f"{row.best_ns / row.bound_ns:.4f}" if row.bound_ns else ""
    times = (row.workers_cpu_s, row.here_cpu_s, row.wall_s)
    counts = [f"{n:,}" for n in (row.messages, row.programs, row.sent_bytes, row.came_bytes)]
    return [row.model, str(row.workers), str(row.steps), f"{row.best_ns / 1e3:.2f}", over,
            *(f"{t:.2f}" for t in times), *counts]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
