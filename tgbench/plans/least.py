"""What no map can be smaller than, whatever is retained, cut, ordered, or computed again.

    a run from nothing ─→ what it has to compute ─→ one element of each, and what that reads
                       └→ all that it hands out

A run may go in pieces as small as elements. But what an element is computed from has to be there
with it, and what was asked for has to be there at the end. Beside both lie inputs and states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tgbench.base.coords import value_of
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Node
from tgbench.memory.placement import aligned, givers
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.scenarios import Runs, Scenario
from tgbench.runs.propagate import widened


@dataclass(frozen=True)
class Least:
    """Bytes that have to be there together, and whose they are.

    Fields:
        step: of the schedule, where they are; its length for the end of a run.
        parts: names and bytes, the largest first.
    """

    step: int
    parts: tuple[tuple[str, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.parts)


def least(runs: Runs, scenarios: Iterable[Scenario]) -> Least:
    """The most that any of these runs takes at one step, however it is run."""
    asked = {frozenset(runs.demand(one).items()): one for one in scenarios}
    found = (need for one in asked.values() for need in _of(runs, one))
    return max(found, key=lambda need: need.size_bytes)


def _of(runs: Runs, scenario: Scenario) -> Iterator[Least]:
    scheduled, demand = runs.scheduled, runs.demand(scenario)
    outputs = set(scheduled.graph.outputs.values())
    boxes = [(node, box) for node, region in demand.items() if node in outputs for box in region]
    yield _together(scheduled, len(scheduled.schedule), _shown(runs, boxes))
    given = {leaf: Region.full(leaf.shape) for leaf in scheduled.kept}
    stored = set(scheduled.stored)
    for end in (0, -1):
        corner = {node: _corner(region, end) for node, region in demand.items() if region.boxes}
        step = runs.propagator(()).step({}, given, corner)
        for node, region in step.compute.items():
            if node in stored and region.boxes:
                found = _computing(runs, node, _corner(region, end))
                yield _together(scheduled, scheduled.position[node], found)


def _corner(region: Region, end: int) -> Region:
    """The first element of a region, or its last one."""
    box = region.boxes[end]
    at = [(value_of(a), value_of(b)) for a, b in box]
    return Region((Box((a, a + 1) if end == 0 else (b - 1, b) for a, b in at),))


def _computing(runs: Runs, node: Node, element: Region) -> dict[Node, int]:
    """What is there when an element is computed: it may lie on an operand that ends there."""
    rules, scheduled = runs.rules, runs.scheduled
    region = rules.rounded(node.call, widened(node.call, element))
    boxes = list(rules.parts(node.call, region))
    reads = [
        (parent, read)
        for parent, read in zip(node.inputs, rules.reads(node.call, boxes[0]), strict=True)
        if read is not None and parent not in scheduled.frozen
    ]
    found = _shown(runs, [(node, boxes[0]), *reads])
    for operand in givers(scheduled, node):
        found.pop(operand, None)
    return found


def _shown(runs: Runs, boxes: Iterable[tuple[Node, Box]]) -> dict[Node, int]:
    """Bytes of what is looked at of each node with bytes.

    A view may be copied, and then its base is not there: the smaller of both counts.
    """
    found, stored = dict[Node, int](), set(runs.scheduled.stored)
    for node, box in boxes:
        base, inside = runs.scheduled.base_box(node, box, runs.rules)
        if base in stored:
            elements = min(value_of(box.elements), value_of(inside.elements))
            found[base] = max(found.get(base, 0), elements * base.type.itemsize_at_home)
    return found


def _together(scheduled: ScheduledGraph, step: int, sizes: Mapping[Node, int]) -> Least:
    parts = [(leaf.name, aligned(leaf.type.size_bytes)) for leaf in scheduled.kept]
    parts += [(node.name, size) for node, size in sizes.items()]
    return Least(step, tuple(sorted(parts, key=lambda part: (-part[1], part[0]))))
