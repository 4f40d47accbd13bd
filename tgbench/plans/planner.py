"""Which nodes to retain, and where to cut, under a budget.

The candidates are the nodes whose earlier values some planned run reads: its *frontier*. For a
decoder that appends tokens these come out as K and V, because nothing else of an earlier row is
read again; no rule says so. Each candidate's worth is what the planned runs would take longer
without it; by worth per byte they are retained while the rest still packs. What does not fit
shares bytes and is computed again when it is needed. Where a run does not fit all the same, some of
its nodes are computed more than once in it (`again`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from tgbench.base.coords import value_of
from tgbench.base.errors import BudgetError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.switches import checks
from tgbench.base.words import counted, format_bytes
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Ranking, Site, candidates
from tgbench.memory.placement import (
    Footprint,
    Life,
    Placement,
    Retention,
    aligned,
    bytes_in_use,
    footprint,
    place,
)
from tgbench.memory.remat import least_bytes
from tgbench.memory.storage import Anatomy
from tgbench.plans.again import Values
from tgbench.plans.checks import check_placement
from tgbench.plans.decisions import Decisions
from tgbench.programs.lowering import Held, Sizer, Surveyor
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.propagate import Propagator, Step, changes, handed_out, joined, rough_ns
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut, Demand, contains, cuts, pieces, supersets

Progress = Callable[[str], None]
Cost = Callable[[Call, Box], float]  # expected nanoseconds of one box of one call
LEAST_GAIN = 0.01  # a finer cut that saves less than this share of the arena is the last one tried


@dataclass(frozen=True)
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


class Tried(NamedTuple):
    """A map, and the order that it is for."""

    anatomy: Anatomy
    placement: Placement


def unit_change(bucket: Bucket, anatomy: Anatomy, name: str) -> Bucket | None:
    """The smallest change there is of one input, with the same demand: what may come next.

    It lies at the end, or where the demand ends in an output dimension of the same size.
    """
    graph, demand = anatomy.graph, dict(bucket.demand)
    shape = graph.inputs[name].shape
    if not shape or not demand:
        return None
    ends: dict[int, int] = {}  # size of a demanded dimension → where the demand ends in it
    for output, region in demand.items():
        for (_, stop), size in zip(region.hull(), graph.outputs[output].shape, strict=True):
            ends[size] = max(ends.get(size, 0), value_of(stop))
    stops = [ends.get(size, int(size)) for size in shape]
    box = [(stop - 1, stop) for stop in stops]
    return Bucket.of({name: Region((Box(box),))}, demand)


class Planner:
    """Decides one plan for one graph; holds what is reused between trials."""

    def __init__(
        self,
        anatomy: Anatomy,
        rules: Rules,
        device: str,
        cost: Cost = rough_ns,
        progress: Progress | None = None,
        ranking: Ranking = candidates,
    ) -> None:
        self.anatomy = anatomy
        self.cost = cost
        self.rules = rules
        self.device = device
        self.ranking = ranking
        self.tell = progress or (lambda message: None)

    def over(self, anatomy: Anatomy) -> Planner:
        """The same for another order of the graph's nodes."""
        return Planner(anatomy, self.rules, self.device, self.cost, self.tell, self.ranking)

    def scenarios(
        self, weights: Mapping[BucketClass, tuple[float, tuple[int, ...]]]
    ) -> list[Scenario]:
        """Every class at its seen and extreme origins, warm; and each once from nothing."""
        found: list[Scenario] = []
        for kind, (weight, origin) in weights.items():
            corners = kind.corners(origin)
            found += [Scenario(kind, at, weight if at == origin else 0.0) for at in corners]
            found += [Scenario(kind, at, 0.0, cold=True) for at in corners]
        return found

    def survey(self, scenarios: Sequence[Scenario]) -> list[list[Site]]:
        """The sites of each run that counts, where everything worth keeping is retained.

        They lie as a plan with memory to spare would lay them.
        """
        counted = self._distinct([one for one in scenarios if one.weight])
        retention = Retention.always(self.frontier(counted))
        runs = [steps for _, steps in self.runs(retention, counted, WHOLE)]
        roomy = place(self.anatomy, retention, self._footprint(runs), {})
        found = []
        for steps in runs:
            surveyor = Surveyor(self.anatomy, roomy, self.rules, self.device)
            for step in steps:
                surveyor.lower(step, _reused(step, roomy))
            found.append(surveyor.sites)
        return found

    def _footprint(self, runs: Iterable[Sequence[Step]]) -> Footprint:
        """What these runs touch."""
        uses = Footprint({}, {})
        for steps in runs:
            for step in steps:
                uses = uses.join(footprint(step, self.anatomy, self.rules))
        return uses

    def propagator(self, retained: Iterable[Node]) -> Propagator:
        return self.anatomy.propagator(self.rules, retained)

    def steps(self, propagator: Propagator, scenario: Scenario, cut: Cut) -> list[Step]:
        """What a scenario runs when these nodes are retained and everything clean is there."""
        graph, kind, demand = self.anatomy.graph, scenario.kind, self.demand(scenario)
        if scenario.cold:
            changed = {leaf: Region.full(leaf.shape) for leaf in self.anatomy.kept}
            return pieces(propagator, {}, changed, demand, cut)
        changed = changes(graph, kind, scenario.origin)
        valid = {
            node: Region.full(node.shape) if scenario.valid is None else scenario.valid[node]
            for node in propagator.storage.retained
            if not node.is_leaf and (scenario.valid is None or node in scenario.valid)
        }
        return pieces(propagator, valid, changed, demand, cut)

    def demand(self, scenario: Scenario) -> Demand:
        """What a scenario computes of the outputs and of what states become."""
        if scenario.demand is not None:
            return scenario.demand
        return joined(handed_out(self.anatomy.graph, scenario.kind, scenario.origin).values())

    def runs(
        self,
        retention: Retention,
        scenarios: Sequence[Scenario],
        cut: Cut,
        whole: bool = False,
    ) -> Iterator[tuple[Scenario, list[Step]]]:
        """Every scenario with its steps, where what is kept after the class before is there."""
        always = [node for node in retention.nodes if not retention.is_partial(node)]
        everywhere = self.propagator(always)
        for scenario in scenarios:
            if scenario.of is None or scenario.before is None:
                yield scenario, self.steps(everywhere, scenario, cut)
            else:
                there = retention.there(scenario.before)
                how = WHOLE if whole else cut
                yield scenario, self.steps(self.propagator(there), scenario, how)

    def frontier(self, scenarios: Sequence[Scenario]) -> list[Node]:
        """Nodes whose earlier values are read again when everything is retained."""
        everything = self.propagator(self.anatomy.stored)
        found: dict[Node, None] = {}
        for scenario in scenarios:
            if not scenario.cold and scenario.of is None:
                for step in self.steps(everything, scenario, WHOLE):
                    found.update(dict.fromkeys(step.reused))
        return [node for node in self.anatomy.stored if node in found]

    def everything(self, scenarios: Sequence[Scenario]) -> list[Node]:
        """Every stored node that another one reads, and the frontier.

        What is left is handed out, and not looked at again.
        """
        read = {self.anatomy.base[p] for node in self.anatomy.schedule for p in node.inputs}
        read.update(self.frontier(scenarios))
        return [node for node in self.anatomy.stored if node in read]

    def expected_ns(self, propagator: Propagator, scenarios: Sequence[Scenario], cut: Cut) -> float:
        """The modelled mean time of the weighted scenarios."""
        total = weight = 0.0
        for scenario in scenarios:
            if scenario.weight:
                weight += scenario.weight
                total += scenario.weight * sum(
                    self.step_ns(step) for step in self.steps(propagator, scenario, cut)
                )
        return total / weight if weight else 0.0

    def step_ns(self, step: Step) -> float:
        """The expected time of a step."""
        views = self.anatomy.views
        return sum(
            self.cost(node.call, box)
            for node, region in step.compute.items()
            if node not in views
            for box in region
        )

    def worth(self, nodes: Sequence[Node], scenarios: Sequence[Scenario]) -> dict[Node, float]:
        """Modelled nanoseconds a run saves by retaining each node, the others retained too."""
        weighted = [scenario for scenario in scenarios if scenario.weight]
        base = self.expected_ns(self.propagator(nodes), weighted, WHOLE)
        result = {}
        for i, node in enumerate(nodes):
            self.tell(f"weighing {i + 1}/{len(nodes)} {node.name}")
            without = [other for other in nodes if other is not node]
            result[node] = self.expected_ns(self.propagator(without), weighted, WHOLE) - base
        return result

    def lay_out(
        self,
        retention: Retention,
        scenarios: Sequence[Scenario],
        cut: Cut,
        whole: bool = False,
        budget_bytes: int | None = None,
    ) -> Placement:
        """The placement that holds every scenario with this retention.

        Args:
            whole: cut what only has to fit, and hold weighed transitions uncut.
            budget_bytes: where the fastest kernels' scratch memory is too much for it, others are
                taken that want less.

        Raises PlanError for a map in which live values overlap, if `TGBENCH_CHECK` is set.
        """
        found = self._laid_out(retention, scenarios, cut, whole, budget_bytes)
        if checks():
            check_placement(found, self.anatomy)
        return found

    def _laid_out(
        self,
        retention: Retention,
        scenarios: Sequence[Scenario],
        cut: Cut,
        whole: bool,
        budget_bytes: int | None,
    ) -> Placement:
        partial = any(map(retention.is_partial, retention.after))
        if not whole and not partial:
            scenarios = [scenario for scenario in scenarios if scenario.of is None]
        runs = list(self.runs(retention, scenarios, cut, whole))
        uses = self._footprint(steps for _, steps in runs)
        lives = self._lives(retention, runs) if partial else {}
        roomy = place(self.anatomy, retention, uses, {}, lives)
        sizer = Sizer(self.anatomy, roomy, self.rules, self.device, self.ranking)
        for _, steps in runs:
            for step in steps:
                sizer.lower(step, _reused(step, roomy))
        used = bytes_in_use(roomy, self.anatomy)

        def placed(budget_bytes: float) -> Placement:
            room = {node: budget_bytes - used[self.anatomy.position[node]] for node in sizer.wants}
            scratch = {node: _reserved(wants, room[node]) for node, wants in sizer.wants.items()}
            return place(self.anatomy, retention, uses, scratch, lives)

        found = placed(math.inf)
        if budget_bytes is None or found.size_bytes <= budget_bytes:
            return found
        least = placed(0)
        if least.size_bytes > budget_bytes:
            return least
        found = placed(budget_bytes)
        if found.size_bytes > budget_bytes:  # by what packing adds
            found = placed(2 * budget_bytes - found.size_bytes)
        return found if found.size_bytes <= budget_bytes else least

    def _lives(
        self, retention: Retention, runs: Sequence[tuple[Scenario, list[Step]]]
    ) -> dict[int, dict[Node, Life]]:
        """How the weighed runs of each class use every node."""
        early: dict[int, set[Node]] = {}
        touched: dict[int, set[Node]] = {}
        for scenario, steps in runs:
            if scenario.of is None or scenario.before is None:
                continue
            k, kept = scenario.of, retention.there(scenario.of)
            first = early.setdefault(k, set())
            for step in steps:
                first.update(node for node in step.reused if node not in step.compute)
                touched.setdefault(k, set()).update(step.compute, step.filled)
            valid, dirty = scenario.valid or {}, steps[0].dirty
            for node in retention.there(scenario.before):
                left = valid[node].subtract(dirty.get(node, EMPTY)) if node in valid else EMPTY
                if left.boxes and (node in kept or any(node in step.reused for step in steps)):
                    first.add(node)
        return {
            k: {
                node: Life(node in first, k in retention.after.get(node, ()))
                for node in first | touched.get(k, set())
            }
            for k, first in early.items()
        }

    def plan(
        self, scenarios: Sequence[Scenario], budget_bytes: int | None, keep_all: bool = False
    ) -> Decisions:
        """The best plan found for a budget (None: whatever it takes), its classes left open.

        Where nothing fits otherwise, some nodes are computed more than once in a run.
        Raises BudgetError naming the smallest budget that was found to work.
        """
        tried: list[Tried] = []
        found = self._once(scenarios, budget_bytes, keep_all, tried)
        if found is None and budget_bytes is not None:
            tried.append(self.again(scenarios, budget_bytes))
            if tried[-1].placement.size_bytes <= budget_bytes:
                planner = self.over(tried[-1].anatomy)
                found = planner._once(scenarios, budget_bytes, keep_all, [])
        if found is None:
            raise self.too_small(budget_bytes or 0, tried)
        return found

    def plan_once(self, scenarios: Sequence[Scenario], budget_bytes: int | None) -> Decisions:
        """The best plan found in this order. Raises BudgetError if nothing fits."""
        tried: list[Tried] = []
        found = self._once(scenarios, budget_bytes, False, tried)
        if found is None:
            raise self.too_small(budget_bytes or 0, tried)
        return found

    def _once(
        self,
        scenarios: Sequence[Scenario],
        budget_bytes: int | None,
        keep_all: bool,
        tried: list[Tried],
    ) -> Decisions | None:
        """The best plan in this order; None, and what was tried, if nothing fits."""
        for weighed, held in self._enough(self._distinct(scenarios)):
            found = self._planned(weighed, held, budget_bytes, keep_all, tried)
            if found is not None:
                return found
        return None

    def again(self, scenarios: Sequence[Scenario], budget_bytes: int) -> Tried:
        """An order that computes some nodes more than once in a run, and the least map for it.

        If none was found that fits, it is the one that takes least, the same for every budget.
        """
        smallest = Tried(self.anatomy, self._smallest(scenarios))
        for anatomy in Values.of(*smallest, self.cost).anatomies(budget_bytes):
            self.tell(f"{len(anatomy.schedule)} steps instead of {len(self.anatomy.schedule)}")
            smallest = Tried(anatomy, self.over(anatomy)._smallest(scenarios))
            if smallest.placement.size_bytes <= budget_bytes:
                break
        return smallest

    def _smallest(self, scenarios: Sequence[Scenario]) -> Placement:
        """The map of the least that serves all scenarios."""
        *_, (_, held) = self._enough(self._distinct(scenarios))
        return self.lay_out(Retention.always(()), held, WHOLE, budget_bytes=0)

    def _enough(
        self, scenarios: Sequence[Scenario]
    ) -> Iterator[tuple[Sequence[Scenario], Sequence[Scenario]]]:
        """What a map has to hold to serve all scenarios, ever less; with what to weigh for it.

        All of them; those that ask for no part of what another one does; of these, some superset,
        from nothing. The last two need not serve well, but they serve (`Specialiser`).
        """
        yield scenarios, scenarios
        outer = self._outer(scenarios)
        if len(outer) < len(scenarios):
            yield outer, outer
        afresh = self._distinct(
            [replace(one, weight=0.0, cold=True, of=None, before=None) for one in outer]
        )
        yield outer, [self._least(one, afresh) for one in afresh]

    def _outer(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """Scenarios whose demand is no part of a larger one's that runs from nothing."""
        asked = [self.demand(one) for one in scenarios if one.cold]
        return [
            one
            for one in scenarios
            if not any(
                contains(other, mine) and not contains(mine, other)
                for mine in [self.demand(one)]
                for other in asked
            )
        ]

    def _least(self, scenario: Scenario, among: Sequence[Scenario]) -> Scenario:
        """The same, computing the superset of its demand that takes the least memory."""
        planned = [self.demand(other) for other in among]
        larger = supersets(self.demand(scenario), planned)
        ways = [scenario, *(replace(scenario, demand=demand) for demand in larger)]
        nothing = Retention.always(())

        def least_bytes(one: Scenario) -> int:
            return self.lay_out(nothing, [one], WHOLE, budget_bytes=0).size_bytes

        return min(ways, key=least_bytes)

    def _planned(
        self,
        weighed: Sequence[Scenario],
        held: Sequence[Scenario],
        budget_bytes: int | None,
        keep_all: bool,
        tried: list[Tried],
    ) -> Decisions | None:
        """The best retention for some scenarios; None, and what was tried, if nothing fits."""
        wanted = self.everything(weighed) if keep_all else self.frontier(weighed)
        first = self.lay_out(Retention.always(wanted), held, WHOLE, budget_bytes=budget_bytes)
        frontier = [node for node in wanted if node in first.slots]  # not what no run touches
        self.tell(f"{counted(len(frontier), 'candidate')} to retain")
        if budget_bytes is None or first.size_bytes <= budget_bytes:
            return self._decided(frontier, frontier, WHOLE, first, weighed)
        cut, placed = self._try_cuts(frontier, held, budget_bytes, first)
        if placed.size_bytes <= budget_bytes:
            return self._decided(frontier, frontier, cut, placed, weighed)
        worth = self.worth(frontier, weighed)
        ranked = sorted(
            frontier, key=lambda n: (-worth[n] / first.size_of(n), self.anatomy.position[n])
        )
        longest = _room_for(ranked, first, budget_bytes)
        found = self._most_that_fit(ranked, longest, held, budget_bytes)
        if found is not None:
            return self._decided(frontier, *found, weighed)
        tightest = self._try_cuts(frontier, held, 0)[1]
        maps = (placed, tightest, self._try_cuts([], held, 0)[1])
        tried += [Tried(self.anatomy, placement) for placement in maps]
        return None

    def _distinct(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """Each run once, with what it weighs in all; from nothing, only the demand counts."""
        found: dict[Hashable, Scenario] = {}
        for one in scenarios:
            key: Hashable = one.kind, one.origin, one.of, one.before, id(one.valid)
            if one.cold:
                key = frozenset(self.demand(one).items())
            first = found.get(key)
            weight = one.weight + (first.weight if first is not None else 0.0)
            found[key] = replace(first or one, weight=weight)
        return list(found.values())

    def _most_that_fit(
        self,
        ranked: Sequence[Node],
        longest: int,
        scenarios: Sequence[Scenario],
        budget_bytes: int,
    ) -> tuple[Sequence[Node], Cut, Placement] | None:
        """The longest prefix of a ranking that was found to fit when retained.

        Longer ones may fit where shorter ones do not: runs are cut at what is retained. So prefixes
        are tried from the longest whose bytes are there, in strides that double; then in between.
        """
        tried, stride = longest, 1
        too_long = longest + 1
        found = None
        while tried >= 0:
            found = self._fitting(ranked[:tried], scenarios, budget_bytes)
            if found is not None or not tried:
                break
            too_long, tried, stride = tried, max(tried - stride, 0), stride * 2
        while found is not None and too_long - len(found[0]) > 1:
            middle = (len(found[0]) + too_long) // 2
            better = self._fitting(ranked[:middle], scenarios, budget_bytes)
            if better is None:
                too_long = middle
            else:
                found = better
        return found

    def _fitting(
        self, retained: Sequence[Node], scenarios: Sequence[Scenario], budget_bytes: int
    ) -> tuple[Sequence[Node], Cut, Placement] | None:
        cut, placed = self._try_cuts(retained, scenarios, budget_bytes)
        self.tell(f"{len(retained)} retained: {format_bytes(placed.size_bytes)}")
        return (retained, cut, placed) if placed.size_bytes <= budget_bytes else None

    def _try_cuts(
        self,
        retained: Sequence[Node],
        scenarios: Sequence[Scenario],
        budget_bytes: int,
        uncut: Placement | None = None,
    ) -> tuple[Cut, Placement]:
        """The coarsest cut that fits, or the one that comes nearest.

        `uncut` is the map without a cut, where it was made already.
        """
        retention = Retention.always(retained)
        whole = uncut or self.lay_out(retention, scenarios, WHOLE, budget_bytes=budget_bytes)
        best = (WHOLE, whole)
        useless: set[tuple[str, int]] = set()
        for cut in cuts(self.propagator(retained)) if retained else ():
            if best[1].size_bytes <= budget_bytes:
                break
            if (cut.input, cut.axis) in useless or 0 < budget_bytes < best[1].kept_bytes:
                continue
            placed = self.lay_out(retention, scenarios, cut, budget_bytes=budget_bytes)
            gained = best[1].size_bytes - placed.size_bytes
            if gained < LEAST_GAIN * best[1].size_bytes:
                useless.add((cut.input, cut.axis))
            if gained > 0:
                best = (cut, placed)
        return best

    def _decided(
        self,
        frontier: Sequence[Node],
        retained: Sequence[Node],
        cut: Cut,
        placement: Placement,
        scenarios: Sequence[Scenario],
    ) -> Decisions:
        expected = self.expected_ns(self.propagator(retained), scenarios, WHOLE)
        dropped = tuple(node for node in frontier if node not in set(retained))
        return Decisions(
            self.anatomy, placement, Retention.always(retained), dropped, cut, {}, expected
        )

    def too_small(self, budget_bytes: int, tried: Sequence[Tried]) -> BudgetError:
        """The smallest map works; its bound holds however often a run computes a node."""
        anatomy, smallest = min(tried, key=lambda one: one.placement.size_bytes)
        values = Values.of(anatomy, smallest, self.cost)
        need = least_bytes(values.schedule)
        step = (
            anatomy.position[values.nodes[need.position]]
            if values.nodes[need.position :]
            else len(anatomy.schedule)
        )
        names = ", ".join(f"{name} {format_bytes(size)}" for name, size in need.parts[:4])
        return BudgetError(
            f"budget {format_bytes(budget_bytes)} is too small: the lower bound is "
            f"{format_bytes(need.size_bytes)} at step {step} ({names}); "
            f"the smallest budget found to work is {format_bytes(smallest.size_bytes)}: "
            f"pass memory={smallest.size_bytes} or more",
            budget_bytes=budget_bytes,
            needed_bytes=smallest.size_bytes,
            lower_bound_bytes=need.size_bytes,
            step=step,
            nodes=need.parts,
        )


def _reserved(wants: Iterable[tuple[int, ...]], room_bytes: float) -> int:
    """Scratch memory for a node's calls: of each the best kernel's that fits, or else the least.

    >>> _reserved([(900, 64), (128,)], 500)
    128
    """
    return max(next((size for size in sizes if size <= room_bytes), min(sizes)) for sizes in wants)


def _reused(step: Step, roomy: Placement) -> dict[Node, Held]:
    """A state that holds all that a step reads of earlier runs."""
    return {
        node: Held(region, roomy.slots[node].start)
        for node, region in step.reused.items()
        if node in roomy.slots
    }


def _room_for(ranked: Sequence[Node], placed: Placement, budget_bytes: int) -> int:
    """How many of a ranking fit beside the inputs, all else being nothing.

    `placed` is a map in which all of them are retained.
    """
    sizes = [aligned(placed.size_of(node)) for node in ranked]
    free = budget_bytes - (placed.kept_bytes - sum(sizes))
    return sum(taken <= free for taken in accumulate(sizes))
