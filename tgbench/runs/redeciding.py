"""Runs that are decided again and again, each time with a little else there: only that is redone.

    decided before   usable, lasting  ──→ a part for every node that something is needed of
    now              what of these differs ──→ its parts anew ──→ its operands' … while they differ

What is needed of a node follows from what its readers ask for, and from nothing else; so going back
from the nodes that differ, the last one first, and on to those whose readers ask for something else
than before, gives what going through all of them would.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any

from tgbench.base.coords import STANDING, Guard, record
from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, NOTHING, Left, Region
from tgbench.graph.graph import Graph, Node
from tgbench.runs.overlaps import Overlaps, WrittenOver
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.propagate import (
    ALWAYS,
    NO_PART,
    NodePart,
    Propagator,
    Regions,
    Step,
    Storage,
    key_of,
)
from tgbench.runs.rules import Rules

MOST_PARTS = 200_000  # of all decisions that are remembered together


@dataclass(eq=False)
class _Decision:
    """How a run was decided.

    Fields:
        usable: what was there.
        lasting: nodes of which what is computed adds to that.
        demand: what was asked for.
        needed: of every node that something was needed of.
        parts: of every node of those that is computed, or looks at one.
        guards: that parts stand on, where there are any.
        compute, reused: of the parts, in order.
        looks: bytes of nothing computed or there that are read from, where that was asked: whether
            anything is, and the guards that this stands on.
    """

    usable: Mapping[Node, Left] = field(default_factory=dict)
    lasting: frozenset[Node] = frozenset()
    demand: Mapping[Node, Region] = field(default_factory=dict)
    needed: Mapping[Node, Region] = field(default_factory=dict)
    parts: Mapping[Node, NodePart] = field(default_factory=dict)
    guards: Mapping[Node, set[Guard]] = field(default_factory=dict)
    compute: Mapping[Node, Region] = field(default_factory=dict)
    reused: Mapping[Node, Region] = field(default_factory=dict)
    looks: Mapping[Node, tuple[bool, set[Guard]]] | None = None


class Before:
    """How runs of a graph in one order were decided last, whatever was retained."""

    def __init__(self, graph: Graph, schedule: Sequence[Node], rules: Rules) -> None:
        most = max(MOST_PARTS // max(len(schedule), 1), 1)
        self.decisions = Latest[Hashable, _Decision](most)
        self.steps = Latest[Hashable, Step](most)
        self.dirty = rules.allowance.memo(most)
        self.depended_on = rules.allowance.memo(most)
        self.readers: dict[Node, list[tuple[Node, int]]] = {node: [] for node in graph.nodes}
        for node in reversed(schedule):
            for i, parent in enumerate(node.inputs):
                self.readers[parent].append((node, i))


class Redecider(Propagator):
    """Decides runs as a `Propagator` does, from how they were decided before.

    Runs are the same if the same changes, and the same is asked for, where one stands; what comes
    out as it did the last time is the very same step.
    """

    def __init__(
        self,
        graph: Graph,
        storage: Storage,
        rules: Rules,
        schedule: Sequence[Node],
        before: Before,
    ) -> None:
        super().__init__(graph, storage, rules, schedule)
        self.before = before
        self._depended_on = before.depended_on  # it does not depend on what is retained
        self._run: Hashable = None
        self._decision = _Decision()  # the last one
        self._change: Hashable = None  # that may be felt
        over = storage.overlaps
        self._written = WrittenOver(over, self.position) if isinstance(over, Overlaps) else None

    def felt(
        self, changed: Mapping[Node, Region], valid: Mapping[Node, Region]
    ) -> Mapping[Node, Region]:
        self._change = key_of(changed)
        return super().felt(changed, valid)

    def _dependencies(self, valid: Mapping[Node, Region]) -> dict[Node, Region]:
        self._run = self._change, len(valid) > 1, tuple(STANDING.origin)
        return super()._dependencies(valid)

    def forwarding(self, changed: Mapping[Node, Region]) -> Pausing[dict[Node, Region]]:
        """What is dirty does not depend on what is there."""
        yield
        found: dict[Node, Region] = self.before.dirty.get(key_of(changed), self._dirty, changed)
        return found

    def _dirty(self, changed: Mapping[Node, Region]) -> dict[Node, Region]:
        return at_once(super().forwarding(changed))

    def stepping(
        self,
        valid: Mapping[Node, Region],
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        avoid: Iterable[Node] = (),
    ) -> Pausing[Step]:
        self._run = key_of(changed), key_of(demand), bool(valid), tuple(STANDING.origin)
        made = yield from super().stepping(valid, changed, demand, avoid)
        made = replace(made, run=self._run)
        last = self.before.steps.get(self._run)
        if last is not None and vars(last) == vars(made):
            return last
        self.before.steps[self._run] = made
        return made

    def _is_destroyed(self, node: Node, first: int, last: int, written: Set[Node]) -> bool:
        """From before all steps on, as it is mostly asked, it is found for all nodes at once."""
        over = self._written
        if over is None or first >= 0:
            return super()._is_destroyed(node, first, last, written)
        return over.ever(node, written) if last == ALWAYS else over.before(node, last, written)

    def _outlasting(self, compute: Mapping[Node, Region], written: Set[Node]) -> Iterable[Node]:
        if self._written is None:
            return super()._outlasting(compute, written)
        later, rows = self._written.later(written), self._written.rows
        return [node for node in compute if node not in rows or not later[rows[node]]]

    def _going_back(
        self, usable: Mapping[Node, Left], demand: Mapping[Node, Region]
    ) -> Pausing[tuple[Regions, Regions, Regions]]:
        yield
        self._decision = made = self._decided(usable, demand)
        self.before.decisions[self._run] = made
        if STANDING.guards is not None:
            STANDING.guards.update(*made.guards.values())
        return made.needed, made.compute, made.reused

    def _filled(
        self,
        needed: Mapping[Node, Region],
        compute: Mapping[Node, Region],
        reused: Mapping[Node, Region],
    ) -> frozenset[Node]:
        """Who looks where follows from what is computed; what is there, from the map."""
        made = self._decision
        if made.looks is None:
            made.looks = self._looks(made)
        found, lasting, overlaps = set[Node](), self.storage.lasting, self.storage.overlaps
        for base, (is_looked_at, guards) in made.looks.items():
            if base in lasting and not overlaps.get(base):
                continue
            if guards and STANDING.guards is not None:
                STANDING.guards |= guards
            if is_looked_at:
                found.add(base)
        return frozenset(found)

    def _looks(self, made: _Decision) -> dict[Node, tuple[bool, set[Guard]]]:
        """See `_Decision`."""
        found: dict[Node, tuple[bool, set[Guard]]] = {}
        there = made.compute.keys() | made.reused
        for node, region in made.compute.items():
            for i, base in self._bases_of_inputs(node):
                is_found, guards = found.get(base, (False, set()))
                if is_found or base in there:
                    continue
                with record(STANDING.origin) as more:
                    is_found = self._reads_of(node, region, i)
                found[base] = is_found, guards | more
        for base in self._handed_out(made.needed):
            if base not in there:
                found[base] = True, found.get(base, (True, set()))[1]
        return found

    def _decided(self, usable: Mapping[Node, Left], demand: Mapping[Node, Region]) -> _Decision:
        """What differs from the last time, decided anew, from the last node to the first."""
        lasting, position = self.storage.lasting, self.position
        last = self.before.decisions.get(self._run)
        if last is None:
            last, differ = _Decision(), set(demand)
        else:
            adds = (lasting ^ last.lasting) & usable.keys()
            differ = differing(usable, last.usable) | adds
            differ.intersection_update(last.parts)
            differ |= differing(demand, last.demand)
            if not differ:
                return replace(last, usable=usable, lasting=lasting, demand=demand)
        needed, parts, guards = dict(last.needed), dict(last.parts), dict(last.guards)
        waiting = [-position[node] for node in differ if node in position]
        heapify(waiting)
        elsewhere = {node for node in differ if node not in position}
        last_place = 1
        while waiting:
            place = heappop(waiting)
            if place == last_place:
                continue
            last_place = place
            node = self.schedule[-place]
            before = parts.pop(node, NO_PART)
            needed.pop(node, None)
            guards.pop(node, None)
            with record(STANDING.origin) as found:
                region = self._needed(node, demand, parts)
                if region is not None:
                    needed[node] = region
                    if region.boxes:
                        parts[node] = self._part(node, region, usable.get(node, NOTHING))
            if found:
                guards[node] = found
            for parent in _asked_otherwise(node, before, parts.get(node, NO_PART)):
                if parent in position:
                    heappush(waiting, -position[parent])
                else:
                    elsewhere.add(parent)
        for node in elsewhere:
            region = self._needed(node, demand, parts)
            needed.pop(node, None)
            if region is not None:
                needed[node] = region
        if needed == last.needed and parts == last.parts and guards == last.guards:
            return replace(last, usable=usable, lasting=lasting, demand=demand)
        there = [(node, parts[node]) for node in self.schedule if node in parts]
        compute = {node: part.compute for node, part in there if part.compute.boxes}
        reused = {node: part.reused for node, part in there if part.reused.boxes}
        return _Decision(usable, lasting, demand, needed, parts, guards, compute, reused)

    def _needed(
        self, node: Node, demand: Mapping[Node, Region], parts: Mapping[Node, NodePart]
    ) -> Region | None:
        """What is needed of a node by those who ask, the last one first."""
        region = demand.get(node)
        for reader, i in self.before.readers[node]:
            part = parts.get(reader)
            if part is not None and part.reads and part.reads[i].boxes:
                read = part.reads[i]
                region = read if region is None else self.rules.union(region, read)
        return region


def differing(one: Mapping[Node, Any], other: Mapping[Node, Any]) -> set[Node]:
    """Nodes of which two maps have something else, or only one has something."""
    if one is other:
        return set()
    found = {node for node, value in one.items() if other.get(node) != value}
    return found | (other.keys() - one.keys())


def _asked_otherwise(node: Node, before: NodePart, after: NodePart) -> Iterator[Node]:
    """The operands that something else is needed of than before."""
    if before.reads == after.reads:
        return
    nothing = (EMPTY,) * len(node.inputs)
    pairs = zip(node.inputs, before.reads or nothing, after.reads or nothing, strict=True)
    yield from (parent for parent, one, other in pairs if one != other)
