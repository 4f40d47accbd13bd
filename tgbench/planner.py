"""Which nodes to retain, and where to cut, under a budget.

The candidates are the nodes whose earlier values some planned run reads: its *frontier*. For a
decoder that appends tokens these come out as K and V, because nothing else of an earlier row is
read again; no rule says so. Each candidate's worth is what the planned runs would take longer
without it; by worth per byte they are retained while the rest still packs. What does not fit
shares bytes and is computed again when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tgbench.anatomy import Anatomy
from tgbench.buckets import Bucket, BucketClass
from tgbench.coords import value_of
from tgbench.errors import BudgetError
from tgbench.graph import Node
from tgbench.lowering import Held, Lowerer
from tgbench.packing import format_bytes
from tgbench.placement import Footprint, Placement, footprint, place
from tgbench.propagate import Propagator, Step, Storage, joined, rough_ns
from tgbench.regions import Box, Region
from tgbench.rules import Rules
from tgbench.split import WHOLE, Cut, cuts, pieces

Progress = Callable[[str], None]
LEAST_GAIN = 0.01  # a finer cut that saves less than this share of the arena is the last one tried


@dataclass(frozen=True)
class Scenario:
    """A run that the plan has to hold.

    Fields:
        kind: its class.
        origin: where it happens.
        weight: how often, relative to the others (0: it must fit, but costs nothing).
        cold: nothing is valid yet, every input is new.
    """

    kind: BucketClass
    origin: tuple[int, ...]
    weight: float
    cold: bool = False


@dataclass(frozen=True)
class Choice:
    """A plan's decisions: what is retained, where runs are cut, and the map that follows.

    Fields:
        dropped: nodes whose earlier values are read again, but which did not fit: computed again.
        expected_ns: the modelled mean run.
        worth: modelled nanoseconds a run that retaining each candidate saves, where weighed.
    """

    retained: tuple[Node, ...]
    dropped: tuple[Node, ...]
    cut: Cut
    placement: Placement
    expected_ns: float
    worth: Mapping[Node, float] = field(default_factory=dict)


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
        self, anatomy: Anatomy, rules: Rules, device: str, progress: Progress | None = None
    ):
        self.anatomy = anatomy
        self.rules = rules
        self.device = device
        self.tell = progress or (lambda message: None)

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

    def propagator(self, retained: Iterable[Node]) -> Propagator:
        keep = frozenset([*retained, *self.anatomy.kept])
        storage = Storage(self.anatomy.views, self.anatomy.frozen, keep, {})
        return Propagator(self.anatomy.graph, storage, self.rules, self.anatomy.schedule)

    def steps(self, propagator: Propagator, scenario: Scenario, cut: Cut) -> list[Step]:
        """What a scenario runs when these nodes are retained and everything clean is there."""
        graph = self.anatomy.graph
        asked = scenario.kind.regions("demand", scenario.origin)
        demand = joined(
            [
                *((graph.outputs[name], region) for name, region in asked.items()),
                *((node, Region.full(node.shape)) for node in graph.updates.values()),
            ]
        )
        if scenario.cold:
            changed = {leaf: Region.full(leaf.shape) for leaf in self.anatomy.kept}
            return pieces(propagator, {}, changed, demand, cut)
        leaves = {leaf.name: leaf for leaf in self.anatomy.kept}
        changed = {
            leaves[name]: region
            for name, region in scenario.kind.regions("changed", scenario.origin).items()
        }
        valid = {
            node: Region.full(node.shape)
            for node in propagator.storage.retained
            if not node.is_leaf
        }
        return pieces(propagator, valid, changed, demand, cut)

    def frontier(self, scenarios: Sequence[Scenario]) -> list[Node]:
        """Nodes whose earlier values are read again when everything is retained."""
        everything = self.propagator(self.anatomy.stored)
        found: dict[Node, None] = {}
        for scenario in scenarios:
            if not scenario.cold:
                for step in self.steps(everything, scenario, WHOLE):
                    found.update(dict.fromkeys(step.reused))
        return [node for node in self.anatomy.stored if node in found]

    def read_by_others(self) -> list[Node]:
        """Every stored node that some other node reads; the rest is only ever handed out."""
        read = {self.anatomy.base[p] for node in self.anatomy.schedule for p in node.inputs}
        return [node for node in self.anatomy.stored if node in read]

    def expected_ns(self, propagator: Propagator, scenarios: Sequence[Scenario], cut: Cut) -> float:
        """The modelled mean time of the weighted scenarios."""
        total = weight = 0.0
        for scenario in scenarios:
            if scenario.weight:
                weight += scenario.weight
                total += scenario.weight * sum(
                    step_ns(step) for step in self.steps(propagator, scenario, cut)
                )
        return total / weight if weight else 0.0

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
        self, retained: Sequence[Node], scenarios: Sequence[Scenario], cut: Cut
    ) -> Placement:
        """The placement that holds every scenario when these nodes are retained."""
        propagator = self.propagator(retained)
        runs = [(s, self.steps(propagator, s, cut)) for s in scenarios]
        uses = Footprint({}, {})
        for _, steps in runs:
            for step in steps:
                uses = uses.join(footprint(step, self.anatomy, self.rules))
        roomy = place(self.anatomy, retained, uses, {})
        lowerer = Lowerer(self.anatomy, roomy, self.rules, self.device)
        scratch: dict[Node, int] = {}
        for _, steps in runs:
            for step in steps:
                state = {
                    node: Held(region, roomy.slots[node].start)
                    for node, region in step.reused.items()
                    if node in roomy.slots
                }
                for node, used in lowerer.lower(step, state, provisional=True).scratch.items():
                    scratch[node] = max(scratch.get(node, 0), used)
        return place(self.anatomy, retained, uses, scratch)

    def plan(
        self, scenarios: Sequence[Scenario], budget_bytes: int | None, keep_all: bool = False
    ) -> Choice:
        """The best retention found for a budget (None: whatever it takes).

        Raises BudgetError naming the smallest budget that was found to work.
        """
        frontier = self.read_by_others() if keep_all else self.frontier(scenarios)
        self.tell(f"{len(frontier)} candidates to retain")
        first = self.lay_out(frontier, scenarios, WHOLE)
        if budget_bytes is None or first.size_bytes <= budget_bytes:
            return self._choice(frontier, frontier, WHOLE, first, scenarios, {})
        cut, placed = self._try_cuts(frontier, scenarios, budget_bytes)
        if placed.size_bytes <= budget_bytes:
            return self._choice(frontier, frontier, cut, placed, scenarios, {})
        worth = self.worth(frontier, scenarios)
        ranked = sorted(
            frontier, key=lambda n: (-worth[n] / first.size_of(n), self.anatomy.position[n])
        )
        found = self._most_that_fit(ranked, scenarios, budget_bytes)
        if found is None:
            smallest = [placed, *(self._try_cuts(some, scenarios, 0)[1] for some in (frontier, []))]
            raise _too_small(budget_bytes, min(smallest, key=lambda p: p.size_bytes))
        return self._choice(frontier, *found, scenarios, worth)

    def _most_that_fit(
        self, ranked: Sequence[Node], scenarios: Sequence[Scenario], budget_bytes: int
    ) -> tuple[Sequence[Node], Cut, Placement] | None:
        """The longest prefix of a ranking that fits when retained, by bisection."""
        low, high = 0, len(ranked)  # retaining `high` of them does not fit
        found: tuple[Sequence[Node], Cut, Placement] | None = None
        while low < high:
            count = (low + high) // 2
            cut, placed = self._try_cuts(ranked[:count], scenarios, budget_bytes)
            self.tell(f"{count} retained: {format_bytes(placed.size_bytes)}")
            if placed.size_bytes <= budget_bytes:
                found, low = (ranked[:count], cut, placed), count + 1
            else:
                high = count
        return found

    def _try_cuts(
        self, retained: Sequence[Node], scenarios: Sequence[Scenario], budget_bytes: int
    ) -> tuple[Cut, Placement]:
        """The coarsest cut that fits, or the one that comes nearest."""
        best = (WHOLE, self.lay_out(retained, scenarios, WHOLE))
        useless: set[tuple[str, int]] = set()
        for cut in cuts(self.propagator(retained)) if retained else ():
            if best[1].size_bytes <= budget_bytes:
                break
            if (cut.input, cut.axis) in useless or 0 < budget_bytes < best[1].kept_bytes:
                continue
            placed = self.lay_out(retained, scenarios, cut)
            gained = best[1].size_bytes - placed.size_bytes
            if gained < LEAST_GAIN * best[1].size_bytes:
                useless.add((cut.input, cut.axis))
            if gained > 0:
                best = (cut, placed)
        return best

    def _choice(
        self,
        frontier: Sequence[Node],
        retained: Sequence[Node],
        cut: Cut,
        placement: Placement,
        scenarios: Sequence[Scenario],
        worth: Mapping[Node, float],
    ) -> Choice:
        expected = self.expected_ns(self.propagator(retained), scenarios, WHOLE)
        dropped = tuple(node for node in frontier if node not in set(retained))
        return Choice(tuple(retained), dropped, cut, placement, expected, worth)


def step_ns(step: Step) -> float:
    """The modelled time of a step."""
    return sum(rough_ns(node.call, box) for node, region in step.compute.items() for box in region)


def _too_small(budget_bytes: int, smallest: Placement) -> BudgetError:
    names = ", ".join(f"{name} {format_bytes(size)}" for name, size in smallest.bound_nodes[:4])
    return BudgetError(
        f"budget {format_bytes(budget_bytes)} is too small: the lower bound is "
        f"{format_bytes(smallest.bound_bytes)} at step {smallest.bound_step} ({names}); "
        f"the smallest budget found to work is {format_bytes(smallest.size_bytes)}: "
        f"pass memory={smallest.size_bytes} or more",
        budget_bytes=budget_bytes,
        needed_bytes=smallest.size_bytes,
        lower_bound_bytes=smallest.bound_bytes,
        step=smallest.bound_step,
        nodes=smallest.bound_nodes,
    )
