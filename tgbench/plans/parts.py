"""Parts of nodes that are read again: views that are kept instead of all that they look into.

    qkv   q ··· k ### v ###     later runs read the earlier k and v again (#), and no earlier q
     │
     ├─ q     looked into by what computes new rows only
     ├─ k ─→ rows, heads        #: kept, k and v take two thirds of qkv
     └─ v ─→ rows, heads        #

What of a node is read again, and through which views, follows from the region rules of the runs
that are planned for. No op and no name is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Node
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.scenarios import Runs, Scenario
from tgbench.runs.propagate import Step
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE

LESS = 0.9  # of the bytes of a node: parts of it that take more are not copied out of it


def parts_read_again(runs: Runs, scenarios: Sequence[Scenario]) -> frozenset[Node]:
    """Views that hold all that is read again of some nodes, in clearly fewer bytes than these.

    Of views of views those that take least, and of equals the first one. A node that something
    reads again as it is, is not divided.
    """
    everything = runs.propagator(runs.scheduled.stored)
    again: set[Node] = set()
    hulls: dict[Node, Box] = {}
    for scenario in scenarios:
        for step in runs.steps(everything, scenario, WHOLE):
            if not scenario.cold and scenario.of is None:
                again.update(_read_again(step, runs.scheduled, runs.rules))
            _widen(hulls, step.needed)
    return _Looks(runs.scheduled, frozenset(again), hulls).parts()


def _widen(hulls: dict[Node, Box], needed: Mapping[Node, Region]) -> None:
    for node, region in needed.items():
        if region.boxes:
            box = region.hull()
            hulls[node] = hulls[node].hull(box) if node in hulls else box


def _read_again(step: Step, scheduled: ScheduledGraph, rules: Rules) -> Iterator[Node]:
    """Nodes and views that something reads earlier values from, as they are."""

    def is_there(node: Node, region: Region) -> bool:
        there = step.reused.get(scheduled.base[node])
        return there is not None and any(
            there.intersects(Region((scheduled.base_box(node, box, rules)[1],))) for box in region
        )

    for node, region in step.compute.items():
        if any(scheduled.base[parent] in step.reused for parent in node.inputs):
            read = zip(node.inputs, rules.needed_beside(node.call, region), strict=True)
            yield from (parent for parent, part in read if is_there(parent, part))
    for end in scheduled.graph.ends:
        if end in step.needed and is_there(end, step.needed[end]):
            yield end


@dataclass(frozen=True)
class _Part:
    """Views that show all that is read again of a node, and what they take."""

    size_bytes: int
    views: frozenset[Node]


@dataclass(frozen=True)
class _Looks:
    """Who looks into what.

    Fields:
        again: what is read again as it is.
        hulls: all that runs need of each node and view.
    """

    scheduled: ScheduledGraph
    again: frozenset[Node]
    hulls: Mapping[Node, Box]

    def parts(self) -> frozenset[Node]:
        found: set[Node] = set()
        best: dict[Node, _Part] = {}
        into = self._into()
        for node in reversed(self.scheduled.schedule if self.again else ()):
            inside = [best[view] for view in into.get(node, ()) if view in best]
            if node not in self.hulls or not (node in self.again or inside):
                continue  # of what is known to be a number, nothing is read
            whole, divided = self._whole(node), _joined(inside)
            is_less = node not in self.again and divided.size_bytes < whole.size_bytes
            best[node] = divided if is_less else whole
            goes_on = not node.is_leaf and node.call.op.continues is not None
            if self.scheduled.base[node] is node and is_less and not goes_on:
                found |= divided.views if divided.size_bytes <= LESS * whole.size_bytes else set()
        return frozenset(found)

    def _into(self) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = {}
        for view in self.scheduled.views:
            if view in self.scheduled.position:
                found.setdefault(view.inputs[0], []).append(view)
        return found

    def _whole(self, node: Node) -> _Part:
        box = self.scheduled.stored_box(node, self.hulls[node])
        return _Part(box.elements * node.type.itemsize, frozenset([node]))


def _joined(parts: Sequence[_Part]) -> _Part:
    views = frozenset(view for part in parts for view in part.views)
    return _Part(sum(part.size_bytes for part in parts), views)
