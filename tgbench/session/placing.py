"""Which ops are computed on which device, by what was measured on each: `tgbench.place`.

a graph, devices and what they may give ─→ kernels timed on each ─→ `plans.devices` ─→ copies
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box
from tgbench.base.safetensors import device_of
from tgbench.base.surroundings import plainly
from tgbench.base.words import format_time
from tgbench.costs.link import Link
from tgbench.costs.model import CostModel, lying_site
from tgbench.costs.records import Records
from tgbench.graph.graph import Graph, graph_of
from tgbench.graph.simplify import simplify
from tgbench.memory.estimate import Sizes, by_device
from tgbench.plans.devices import Device, PlacedGraph, PlacedRun, boxes_of_runs, place_ops
from tgbench.plans.paths.occasions import PlannedRun
from tgbench.plans.paths.paths import Paths, Space
from tgbench.programs.calibrate import Calibrator
from tgbench.programs.pool import Pool
from tgbench.runs.buckets import Bucket
from tgbench.sources.torch.imported import Imported

if TYPE_CHECKING:
    import pandas as pd

MOST_RUNS = 16  # that differ, of those placed for; the most frequent ones


@dataclass(frozen=True)
class Placing:
    """Where ops are computed; pass its `model` to a session.

    Fields:
        model: the graph with copies in it, or the module that was imported, with that graph.
        found: which device each op is on, and what that takes.
        links: what copying takes, by device, as measured.
        costs: what is known of kernels, by device; the session's own first.
    """

    model: Graph | Imported
    found: PlacedGraph
    links: Mapping[str, Link]
    costs: Mapping[str, CostModel]

    def to_frame(self) -> pd.DataFrame:
        """A row for every op: where it is computed, and what all of it takes on each device."""
        import pandas as pd

        rows = []
        home = next(iter(self.costs))
        for node in self.found.given.nodes:
            if node.name in self.found.devices:
                row: dict[str, Any] = {"node": node.name, "op": node.op}
                row["device"] = self.found.devices[node.name] or home
                for name, costs in self.costs.items():
                    row[f"{name}, µs"] = costs.time_ns(node.call, Box.full(node.shape)) * 1e-3
                rows.append(row)
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        links = [
            f"{name}: {format_time(link.latency_ns)} a copy and {link.bytes_per_ns:.1f} GB/s"
            for name, link in self.links.items()
        ]
        return "\n".join([str(self.found), *links])


@plainly
def place(
    model: Graph | Imported,
    memory: Sizes,
    device: str = "cpu",
    *,
    runs: Iterable[Bucket] = (),
    ways: int = 1,
    records: Records | None = None,
    calibrate: bool = True,
    progress: Any = None,
) -> Placing:
    """A model with its ops where they take least, copies included.

    Args:
        memory: what each device may give, by name, {"cuda:0": "2GiB"}; None for no bound. The
            session's own, if it is there, is passed over: its plans find out.
        device: the session's.
        runs: what is placed for, `[call.bucket for call in trace]`; everything at once where there
            are none.
        ways: how many graphs that compute the same are placed, those first that take least on the
            session's device (`session.paths()`); the best of them is taken.
        records: measured times; None for the user's own.
        calibrate: time the heaviest calls on each device where records know nothing of them, each
            with operands of its own. False takes the models of kernels, which are another CPU's.
        progress: told what is going on.

    Raises GraphError for a device that is not there.

    >>> from tgbench.graph import ops
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> g.output("y", ops.relu(g.input("x", (8, 64))))
    >>> place(g.build(), {"cpu:1": "1MiB"}, calibrate=False).found.copies
    0
    """
    if not isinstance(memory, Mapping) or not set(memory) - {device}:
        raise GraphError("name other devices and what they may give: memory={'cuda:0': '2GiB'}")
    names = [name for name in memory if name != device]
    for name in (device, *names):
        device_of(name, GraphError)
    _, limits = by_device(memory, device)
    graph = simplify(graph_of(model))
    occasions = _occasions(runs)

    def known(name: str, graphs: Sequence[Graph]) -> CostModel:
        return _known(graphs, occasions, name, records, calibrate, progress)

    graphs = [graph, *(_others(graph, occasions, known(device, [graph]), ways) if ways > 1 else ())]
    costs = {name: known(name, graphs) for name in (device, *names)}
    links = {name: Link.measured(device, name) for name in names}
    devices = [Device(name, costs[name].time_ns, links[name], limits.get(name)) for name in names]
    placed = (place_ops(one, costs[device].time_ns, devices, occasions) for one in graphs)
    found = min(placed, key=lambda one: one.time_ns)
    made = replace(model, graph=found.graph) if isinstance(model, Imported) else found.graph
    return Placing(made, found, links, costs)


def _others(
    graph: Graph, occasions: Sequence[PlacedRun], costs: CostModel, count: int
) -> list[Graph]:
    """Other graphs that compute the same, and differ in what they take."""
    runs = [
        PlannedRun(
            run.weight,
            run.changed,
            {graph.outputs[name]: part for name, part in run.demand.items()},
        )
        for run in occasions
        if run.changed is not None
    ]
    paths = Paths(Space.of(graph, costs.rules, runs), costs)
    return [path.graph for path in paths.different(count).values() if path.graph is not graph]


def _occasions(runs: Iterable[Bucket]) -> list[PlacedRun]:
    """The most frequent runs."""
    counts = Counter(runs).most_common(MOST_RUNS)
    return [
        PlacedRun(float(count), dict(bucket.changed), dict(bucket.demand))
        for bucket, count in counts
    ]


def _known(
    graphs: Sequence[Graph],
    occasions: Sequence[PlacedRun],
    device: str,
    records: Records | None,
    calibrate: bool,
    progress: Any,
) -> CostModel:
    """What the calls of some runs take on a device."""
    costs = CostModel(records, device)
    if calibrate:
        sites = [
            [lying_site(node.call, box, costs.rules, device) for node, box in made]
            for graph in graphs
            for made in boxes_of_runs(graph, occasions)
        ]
        Calibrator(Pool(), costs, records, device, progress).learn(sites)
    return costs
