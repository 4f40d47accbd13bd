"""A search as plain data for another process: graphs as their files have them, costs, classes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tgbench.base.errors import SearchError
from tgbench.base.tiles import Tiling
from tgbench.costs.model import CostModel, CostTable
from tgbench.graph.graph import Graph, Node
from tgbench.graph.graph_file import graph_from_json, graph_to_json
from tgbench.graph.op_table import LEAVES, OPS, Call
from tgbench.graph.unfold import named
from tgbench.kernels import beside
from tgbench.kernels.registry import KERNELS
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Classes, PlanBucket
from tgbench.plans.plan import Plan
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.optimiser import Optimiser
from tgbench.programs.choices import Choices
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.rules import Rules


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
        is_compiled: whether kernels are there that a process beside compiles.
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
    is_compiled: bool = True

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
            beside.is_there(),
        )

    def optimiser(self, **more: Any) -> Optimiser:
        """The search over this process's own copy of the graph."""
        beside.agree(self.is_compiled)
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
            classes=classes, choices=Choices.by(costs), **more,
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
