"""What of each class is computed in a run, before it is decided how.

    dirty     what a change reaches: of a class, by options of which different elements are known
    needed    what readers need of it, any of them
    computed  needed and dirty: whatever is clean is taken to be there

An e-class is a value, and what of a value changes does not depend on how it is computed, but for
what its ways show to be known. So times are asked for what runs compute, not for whole tensors: a
product that a full run would do for every row is one row of it after an edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tgbench.base.regions import EMPTY, Region
from tgbench.graph.graph import Graph, Node, fact_of
from tgbench.graph.op_table import Call
from tgbench.graph.rewrite.choices import Alternatives
from tgbench.runs.propagate import covered, widened
from tgbench.runs.rules import Rules, less_known


@dataclass(frozen=True)
class PlannedRun:
    """A kind of run.

    Fields:
        weight: its share of all runs.
        changed: what changes of inputs and states, by name.
        demand: what is asked for, by the node of the graph.
        cold: nothing is there yet.
    """

    weight: float
    changed: Mapping[str, Region]
    demand: Mapping[Node, Region]
    cold: bool = False

    @staticmethod
    def whole(graph: Graph) -> PlannedRun:
        """Everything new, everything asked for."""
        leaves = {**graph.inputs, **graph.states}
        return PlannedRun(
            1.0,
            {name: Region.full(node.shape) for name, node in leaves.items()},
            {node: Region.full(node.shape) for node in graph.ends},
            cold=True,
        )


@dataclass(frozen=True, eq=False)
class Occasion:
    """What a run computes of each class that it touches, by the class's name.

    Fields:
        weight: its share of all runs.
        computed: what it computes of each.
        left: what stays of each as it was.
        reused: the classes of which it reads what an earlier run left.
    """

    weight: float
    computed: Mapping[Node, Region]
    left: Mapping[Node, Region]
    reused: frozenset[Node]


def occasions(
    found: Alternatives, rules: Rules, runs: Iterable[PlannedRun]
) -> tuple[Occasion, ...]:
    """What runs compute of every class of an e-graph."""
    finder = _Finder(found, rules)
    return tuple(finder.occasion(run) for run in runs)


class _Finder:
    def __init__(self, found: Alternatives, rules: Rules) -> None:
        self.egraph, self.rules = found.egraph, rules
        self.order, self.options = found.order, found.options

    def occasion(self, run: PlannedRun) -> Occasion:
        dirty = self._dirty(run.changed)
        needed: dict[Node, Region] = {}
        for node, region in run.demand.items():
            name = self.egraph.find(self.egraph.of[node])
            needed[name] = needed.get(name, EMPTY).union(region)
        computed: dict[Node, Region] = {}
        left: dict[Node, Region] = {}
        reused: set[Node] = set()
        for name in self.order:
            if name not in needed:
                continue
            region = needed[name] if run.cold else needed[name].intersect(dirty.get(name, EMPTY))
            if not run.cold and self.rules.subtract(needed[name], region).boxes:
                reused.add(name)
            if not region.boxes:
                continue
            if not run.cold:
                left[name] = self.rules.subtract(Region.full(name.shape), dirty[name])
            for node in self.options[name]:
                if not node.is_leaf:
                    self._need(node, region, left.get(name, EMPTY), needed)
            if not name.is_leaf:
                computed[name] = region
        return Occasion(run.weight, computed, left, frozenset(reused))

    def _dirty(self, changed: Mapping[str, Region]) -> dict[Node, Region]:
        dirty: dict[Node, Region] = {}
        for name in reversed(self.order):
            region = EMPTY
            for node in {fact_of(node): node for node in reversed(self.options[name])}.values():
                region = self.rules.union(region, self._reached(node, changed, dirty))
            if region.boxes:
                dirty[name] = region
        return dirty

    def _reached(
        self, node: Node, changed: Mapping[str, Region], dirty: Mapping[Node, Region]
    ) -> Region:
        if node.is_leaf:
            return changed.get(node.name, EMPTY)
        inputs = self.egraph.inputs(node)
        return self.rules.dirty(node.call, tuple(dirty.get(n, EMPTY) for n in inputs))

    def _need(self, node: Node, region: Region, left: Region, needed: dict[Node, Region]) -> None:
        asked = worked_on(self.rules, node.call, region, left)
        for name, part in zip(
            self.egraph.inputs(node), self.rules.needed(node.call, asked), strict=True
        ):
            needed[name] = self.rules.union(needed.get(name, EMPTY), part)


def worked_on(rules: Rules, call: Call, region: Region, left: Region) -> Region:
    """What an e-node computes of its class for a region of it: less what is known, in whole lines
    and tiles where its kernels work on such, and boxes as one where that pays.

    Args:
        left: what stays of the class as it was.
    """
    region = rules.rounded(call, widened(call, less_known(call, region)))
    return covered(call, region, left)
