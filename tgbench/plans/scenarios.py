"""Runs that a plan has to hold, and what each of them computes while some nodes are retained.

A plan is looked for by attempts: other nodes are retained, runs are cut otherwise. Most of what an
attempt asks was asked before, so answers are remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from tgbench.base.memo import Latest, Memo
from tgbench.base.regions import Region
from tgbench.graph.graph import Node
from tgbench.memory.placement import Footprint, Placement, Retention, footprint
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.buckets import BucketClass
from tgbench.runs.propagate import Propagator, Step, changes, handed_out, joined, key_of
from tgbench.runs.redeciding import Before, Redecider
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut, Demand, demands, early

REMEMBERED = 200_000  # regions, of each kind of answer
RETENTIONS = 16  # of which propagators are at hand
NO_FOOTPRINT = None, None, None


@dataclass(frozen=True, eq=False)
class Scenario:
    """A run that the plan has to hold.

    Fields:
        kind: its class.
        origin: where it happens.
        weight: how often, relative to the others (0: it must fit, but costs nothing).
        cold: nothing is valid yet, every input is new.
        of: which class of the plan's retention it is, and
        before: which one ran before it; None where that does not matter.
        valid: what would be there by then, if everything were retained; None for all of it.
        demand: what is computed, if that is more than what is asked for.
    """

    kind: BucketClass
    origin: tuple[int, ...]
    weight: float
    cold: bool = False
    of: int | None = None
    before: int | None = None
    valid: Mapping[Node, Region] | None = None
    demand: Demand | None = None


class _Begun(NamedTuple):
    """A scenario where it begins, and what it runs uncut."""

    valid: Mapping[Node, Region]
    changed: Mapping[Node, Region]
    demand: Demand
    whole: Step


class Runs:
    """What scenarios run, over one order of a graph's nodes."""

    def __init__(self, scheduled: ScheduledGraph, rules: Rules) -> None:
        self.scheduled = scheduled
        self.rules = rules
        most = max(REMEMBERED // max(len(scheduled.schedule), 1), 1)
        memo = rules.allowance.memo
        self._steps, self._footprints = memo(most), memo(most)
        self._alike = Latest[int, tuple[Any, Any, Footprint | None]](most)
        self.before = Before(scheduled.graph, scheduled.schedule, rules)
        self._demands, self._begun = memo(most), memo(most)
        self._distinct = lru_cache(RETENTIONS)(self._new_distinct)
        self._whole = {node: Region.full(node.shape) for node in scheduled.stored}
        self._all_changed = {leaf: Region.full(leaf.shape) for leaf in scheduled.kept}
        self._propagator = lru_cache(RETENTIONS)(self._new_propagator)

    def propagator(self, retained: Iterable[Node]) -> Propagator:
        """How runs are decided while these nodes are retained."""
        return self._propagator(frozenset(retained))

    def _new_propagator(self, retained: frozenset[Node]) -> Propagator:
        return _Remembering(self.scheduled, self.rules, retained, self.before, self._steps)

    def demand(self, scenario: Scenario) -> Demand:
        """What a scenario computes of the outputs and of what states become."""
        if scenario.demand is not None:
            return scenario.demand
        found: Demand = self._demands.get((scenario.kind, scenario.origin), self._asked, scenario)
        return found

    def _asked(self, scenario: Scenario) -> Demand:
        return joined(handed_out(self.scheduled.graph, scenario.kind, scenario.origin).values())

    def steps(self, propagator: Propagator, scenario: Scenario, cut: Cut) -> list[Step]:
        """What a scenario runs when these nodes are retained and everything clean is there.

        Slices are forgotten from one piece to the next.
        """
        begun = self._begin(propagator, scenario)
        asked = demands(propagator, begun.whole, cut, begun.demand)
        if len(asked) == 1:
            return [begun.whole]
        steps: list[Step] = []
        valid, changed = begun.valid, begun.changed
        retained = propagator.storage.retained
        for part in asked:
            steps.append(propagator.step(valid, changed, part))
            valid = {node: region for node, region in steps[-1].valid.items() if node in retained}
            changed = {}
        return steps

    def over(
        self, placement: Placement, propagator: Propagator, scenario: Scenario, cut: Cut
    ) -> list[Step]:
        """The same over a map, as sessions do it: cut only where there is no room for all of it."""
        whole = self.steps(propagator, scenario, WHOLE)
        if cut == WHOLE or placement.has_room(self.footprint(whole).hulls):
            return whole
        return self.steps(propagator, scenario, cut)

    def from_nothing(self, scenario: Scenario) -> Step:
        """What a scenario runs uncut where nothing is there, whatever is retained."""
        return self._begin(self.propagator(()), scenario).whole

    def latest(self, propagator: Propagator, scenario: Scenario, cut: Cut) -> Step:
        """What is left to the last piece from nothing, all that lasts made in one piece before."""
        whole = self.from_nothing(scenario)
        part = early(propagator, whole, cut, cut.parts - 2)
        before = propagator.step({}, self._all_changed, part)
        retained = propagator.storage.retained
        valid = {node: region for node, region in before.valid.items() if node in retained}
        return propagator.step(valid, {}, self.demand(scenario))

    def _begin(self, propagator: Propagator, scenario: Scenario) -> _Begun:
        key = propagator.storage.retained, scenario
        found: _Begun = self._begun.get(key, self._new_begun, propagator, scenario)
        return found

    def _new_begun(self, propagator: Propagator, scenario: Scenario) -> _Begun:
        demand = self.demand(scenario)
        if scenario.cold:
            valid = {}
            changed = self._all_changed
        else:
            valid = self._everything(propagator)
            changed = changes(self.scheduled.graph, scenario.kind, scenario.origin)
            there = scenario.valid
            if there is not None:
                valid = {node: there[node] for node in valid if node in there}
        return _Begun(valid, changed, demand, propagator.step(valid, changed, demand))

    def _everything(self, propagator: Propagator) -> dict[Node, Region]:
        retained, whole = propagator.storage.retained, self._whole
        return {node: whole[node] for node in retained if not node.is_leaf}

    def under(
        self, retention: Retention, scenarios: Sequence[Scenario], cut: Cut, whole: bool = False
    ) -> Iterator[tuple[Scenario, list[Step]]]:
        """Every scenario with its steps, where what is kept after the class before is there.

        Args:
            whole: hold weighed transitions uncut.
        """
        always = [node for node in retention.nodes if not retention.is_partial(node)]
        everywhere = self.propagator(always)
        for scenario in scenarios:
            if scenario.of is None or scenario.before is None:
                yield scenario, self.steps(everywhere, scenario, cut)
            else:
                there = retention.there(scenario.before)
                how = WHOLE if whole else cut
                yield scenario, self.steps(self.propagator(there), scenario, how)

    def footprint(self, steps: Iterable[Step]) -> Footprint:
        """What these steps touch."""
        return Footprint.joined(map(self.footprint_of, steps))

    def going_on(self, step: Step) -> Footprint:
        """What a step touches of nodes that it computes a part of and finds another of."""
        found = self.footprint_of(step)
        nodes = step.compute.keys() & step.reused.keys() & found.hulls.keys()
        return replace(
            found, hulls={node: found.hulls[node] for node in nodes},
            extents={node: found.extents[node] for node in nodes}, made=(),
        )  # fmt: skip

    def footprint_of(self, step: Step) -> Footprint:
        """What one step touches; of those that compute the same, mostly, it is one object."""
        found: Footprint = self._footprints.get(step, self._touched_by, step)
        return found

    def _touched_by(self, step: Step) -> Footprint:
        ends = tuple([step.needed.get(node) for node in self.scheduled.graph.ends])
        computed, about, found = self._alike.get(id(step.compute), NO_FOOTPRINT)
        if found is None or computed is not step.compute or about != (step.filled, ends):
            found = footprint(step, self.scheduled, self.rules)
            self._alike[id(step.compute)] = step.compute, (step.filled, ends), found
        return found

    def distinct(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """Each run once, with what it weighs in all; from nothing, only the demand counts.

        Remembered: what is known of scenarios is known of these very ones.
        """
        return list(self._distinct(tuple(scenarios)))

    def _new_distinct(self, scenarios: tuple[Scenario, ...]) -> list[Scenario]:
        found: dict[Hashable, Scenario] = {}
        for one in scenarios:
            key: Hashable = one.kind, one.origin, one.of, one.before, id(one.valid)
            if one.cold:
                key = frozenset(self.demand(one).items())
            first = found.get(key)
            weight = one.weight + (first.weight if first is not None else 0.0)
            found[key] = replace(first or one, weight=weight)
        return list(found.values())


class _Remembering(Redecider):
    """Decides runs at numbers, and remembers what it decided."""

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        retained: Iterable[Node],
        before: Before,
        steps: Memo,
    ) -> None:
        storage = scheduled.retaining(retained)
        super().__init__(scheduled.graph, storage, rules, scheduled.schedule, before)
        self._steps = steps

    def step(
        self,
        valid: Mapping[Node, Region],
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        avoid: Iterable[Node] = (),
    ) -> Step:
        key = (
            self.storage.retained,
            key_of(valid),
            key_of(changed),
            key_of(demand),
            frozenset(avoid),
        )
        found: Step = self._steps.get(key, super().step, valid, changed, demand, avoid)
        return found
