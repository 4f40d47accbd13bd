"""What an attempt's runs touch and compute, found from the attempt before by what differs.

    steps before   a b c d     the boxes of b count one less
    steps now      a   c d e   those of e one more
                               of a node whose boxes are others than before, the hull is found anew

Attempts at one plan differ in few of their steps: one more value is kept after the runs of a turn,
say. So what is joined over all of them is not joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import reduce
from typing import Any, TypeVar

from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Node
from tgbench.memory.placement import Footprint, largest
from tgbench.runs.propagate import Step

Value = TypeVar("Value", bound=Hashable)
Computed = Mapping[Node, tuple[Region, ...]]  # each region of a node once, the same while they are
Used = tuple[Footprint, Mapping[Node, Region]]  # what steps touch, and compute


class _Counted(dict[Node, dict[Value, int]]):
    """How many steps have each value of a node.

    Fields:
        differ: nodes that have other values than when that was last looked at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.differ: set[Node] = set()

    def add(self, values: Iterable[tuple[Node, Value]]) -> None:
        for node, value in values:
            there = self.setdefault(node, {})
            count = there.get(value, 0)
            if not count:
                self.differ.add(node)
            there[value] = count + 1

    def remove(self, values: Iterable[tuple[Node, Value]]) -> None:
        for node, value in values:
            there = self[node]
            if there[value] > 1:
                there[value] -= 1
                continue
            del there[value]
            self.differ.add(node)
            if not there:
                del self[node]

    def put(self, found: dict[Node, Any], join: Callable[[Iterable[Value]], Any]) -> None:
        """Bring what was found of each node's values up to date."""
        for node in self.differ:
            if node in self:
                found[node] = join(self[node])
            else:
                found.pop(node, None)
        self.differ.clear()


class StepTally:
    """Joins what steps touch and compute.

    Args:
        footprint: of one step; steps that have the same one compute the same.
    """

    def __init__(self, footprint: Callable[[Step], Footprint]) -> None:
        self._footprint = footprint
        self._used: dict[int, Used] | None = None  # until it is known what is in there

    def _begin(self) -> None:
        self._boxes, self._sizes = _Counted[Box](), _Counted[tuple[int, ...]]()
        self._regions = _Counted[Region]()
        self._hulls: dict[Node, Box] = {}
        self._extents: dict[Node, tuple[int, ...]] = {}
        self._computed: dict[Node, tuple[Region, ...]] = {}

    def of(self, steps: Iterable[Step]) -> tuple[Footprint, Computed]:
        """What they touch in all, and what they compute of each node, until others are asked of."""
        before, self._used = self._used, None  # as an interrupt leaves it: begin anew
        if before is None:
            self._begin()
            before = {}
        pairs = ((self._footprint(step), step.compute) for step in steps)
        now = {id(used): (used, compute) for used, compute in pairs}
        for number, (used, compute) in now.items():
            if number not in before:
                self._boxes.add(used.hulls.items())
                self._sizes.add(used.extents.items())
                self._regions.add(compute.items())
        for number, (used, compute) in before.items():
            if number not in now:
                self._boxes.remove(used.hulls.items())
                self._sizes.remove(used.extents.items())
                self._regions.remove(compute.items())
        self._used = now
        every = [used for used, _ in now.values()]
        self._boxes.put(self._hulls, lambda boxes: reduce(Box.hull, boxes))
        self._sizes.put(self._extents, lambda sizes: reduce(largest, sizes))
        self._regions.put(self._computed, tuple)
        made = tuple([one for used in every for one in used.made])
        behind = frozenset[Node]().union(*(used.behind for used in every))
        ahead = frozenset[Node]().union(*(used.ahead for used in every))
        found = Footprint(dict(self._hulls), dict(self._extents), made, behind, ahead)
        return found, self._computed
