"""Maps that hold scenarios, by what is retained and how runs are cut.

scenarios ── what they run ──→ steps ── what these touch ──→ Draft ── what kernels want ──→ map
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import TypeAlias

import numpy as np

from tgbench.base.coords import Coord, Footing, swept_symbol, value_of
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Node
from tgbench.memory.draft import Draft, Passage
from tgbench.memory.placement import Placement, Retention, aligned, givers
from tgbench.plans.scenarios import Runs, Scenario
from tgbench.plans.tally import Computed, StepTally
from tgbench.programs.sizing import Sizer
from tgbench.runs.propagate import Step
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut, finest

AT_HAND = 256  # at hand
PARTS = 2, 4, 8  # of a tensor, one in so many

Wanted: TypeAlias = "dict[Node, frozenset[tuple[int, ...]]]"  # scratch bytes of a node's calls


@dataclass(frozen=True, eq=False)
class Attempt:
    """The maps of one draft: one for every amount of scratch memory.

    Fields:
        computed: what the scenarios compute of each node.
        sizer: knows how much scratch memory that takes.
        anywhere: what runs compute that may happen anywhere on an image, where they do.
    """

    draft: Draft
    computed: Computed
    sizer: Sizer
    anywhere: Sequence[Step] = ()

    @property
    def bound_bytes(self) -> int:
        """No map is smaller."""
        return self.draft.bound_bytes

    @cached_property
    def _wants(self) -> Wanted:
        return self.sizer.wants(self.computed.items(), self.draft)

    @cached_property
    def _packed(self) -> dict[Hashable, Placement]:
        return {}

    def within(self, budget_bytes: int | None = None) -> Placement:
        """The map that fits a budget; the smallest if none does.

        Where the fastest kernels' scratch memory is too much for it, others are taken that want
        less.
        """
        if budget_bytes is not None and budget_bytes < self.bound_bytes:
            return self._placed(0, self._wants)
        found = self._placed(math.inf, self._wants)
        if budget_bytes is None or found.size_bytes <= budget_bytes:
            return found
        least = self._placed(0, self._wants)
        if least.size_bytes > budget_bytes:
            return least
        found = self._placed(budget_bytes, self._wants)
        if found.size_bytes > budget_bytes:  # by what packing adds
            found = self._placed(2 * budget_bytes - found.size_bytes, self._wants)
        return found if found.size_bytes <= budget_bytes else least

    def roomy(self, budget_bytes: int | None = None) -> Placement:
        """The map that fits a budget, with scratch memory besides for any part of what is computed
        in part, as far as there is room: for runs that nobody planned for.
        """
        fits = self.within(budget_bytes)
        if budget_bytes is None:
            return self._with_room(fits, math.inf)
        room_bytes = budget_bytes
        for _ in range(2):
            found = self._with_room(fits, room_bytes)
            if found.size_bytes <= budget_bytes:
                return found
            room_bytes -= found.size_bytes - budget_bytes  # what packing adds
        return fits

    def _with_room(self, fits: Placement, budget_bytes: float) -> Placement:
        draft, position = self.draft, self.draft.scheduled.position
        scratch = {node: room.size_bytes for node, room in fits.scratch.items()}
        for node, wants in self._roomy_wants.items():
            room_bytes = budget_bytes - draft.in_use[position[node]]
            fitting = (next((n for n in sizes if n <= room_bytes), 0) for sizes in wants)
            scratch[node] = max(scratch.get(node, 0), max(fitting, default=0))
        return self._packed_with(scratch)

    @cached_property
    def _roomy_wants(self) -> Wanted:
        wanted = self.sizer.wants(self._computed_roughly, self.draft)
        for step in self.anywhere:
            with Footing((0,) * max((len(node.shape) for node in step.compute), default=0)):
                swept = (
                    (node, tuple(_swept(region, node.shape)))
                    for node, region in step.compute.items()
                    if self._reads_slots(node)
                )
                for node, wants in self.sizer.wants(swept, self.draft).items():
                    wanted[node] = wanted.get(node, frozenset()) | wants
        return wanted

    @property
    def _computed_roughly(self) -> Iterator[tuple[Node, tuple[Region, ...]]]:
        """Wherever a part is computed, larger ones, of whole tiles where bits must agree; not where
        these read what nobody computes.
        """
        rounded = self.sizer.rules.rounded
        for node, regions in self.computed.items():
            if not self._reads_slots(node):
                continue
            boxes = (box for region in regions for box in region)
            larger = {one for box in boxes for one in _larger(box, node.shape)}
            yield node, tuple(dict.fromkeys(rounded(node.call, Region((box,))) for box in larger))

    def _reads_slots(self, node: Node) -> bool:
        """Whether a larger part of a node than is computed reads what has bytes, too."""
        scheduled, slots = self.draft.scheduled, self.draft.slots
        bases = [scheduled.base[one] for one in node.inputs]
        return all(base in scheduled.frozen or base in slots for base in bases)

    def _placed(self, budget_bytes: float, wanted: Wanted) -> Placement:
        """Packed with the scratch memory that fits beside what is in use at each step."""
        draft, position = self.draft, self.draft.scheduled.position
        scratch = {
            node: _reserved(wants, budget_bytes - draft.in_use[position[node]])
            for node, wants in wanted.items()
        }
        return self._packed_with(scratch)

    def _packed_with(self, scratch: Mapping[Node, int]) -> Placement:
        key = frozenset(scratch.items())
        if key not in self._packed:
            self._packed[key] = self.draft.packed(scratch)
        return self._packed[key]


class Attempts:
    """Attempts over one order of a graph's nodes; what does not depend on an attempt is shared."""

    def __init__(self, runs: Runs, sizer: Sizer, may_slide: bool = False) -> None:
        """`may_slide` if of what is kept a window is enough, where that takes less."""
        self.runs = runs
        self.sizer = sizer
        self.may_slide = may_slide
        self._always = runs.rules.allowance.memo(AT_HAND)
        self._floor = lru_cache(AT_HAND)(self._new_floor)
        self._tally = StepTally(runs.footprint_of)

    def always(self, retained: Iterable[Node], scenarios: Sequence[Scenario], cut: Cut) -> Attempt:
        """The maps with these nodes kept through everything; remembered."""
        nodes = tuple(retained)
        key = frozenset(nodes), tuple(scenarios), cut
        retention = Retention.always(nodes, may_slide=frozenset(nodes if self.may_slide else ()))
        found: Attempt = self._always.get(key, self.of, retention, scenarios, cut)
        return found

    def floor_bytes(self, retained: Iterable[Node], scenarios: Sequence[Scenario]) -> int:
        """However finely runs are cut, no map with these nodes retained is smaller; remembered.

        The last piece of a run from nothing computes what depends on the last element of an input,
        where no more is there than what lasts and does not. Beside that lies all that lasts; of
        what slides, as much as this piece touches.
        """
        return self._floor(frozenset(retained), tuple(one for one in scenarios if one.cold))

    def _new_floor(self, retained: frozenset[Node], scenarios: tuple[Scenario, ...]) -> int:
        runs = self.runs
        propagator, whole = runs.propagator(retained), list(map(runs.from_nothing, scenarios))
        ways = [
            [runs.latest(propagator, one, cut) for one in scenarios] for cut in finest(propagator)
        ]
        beside_bytes = min(self._beside_bytes(retained, steps) for steps in ways or [whole])
        if self.may_slide:
            extents = [runs.footprint(steps).extents for steps in ways or [whole]]
            return beside_bytes + min(_size_bytes(retained, found) for found in extents)
        hulls = runs.footprint(whole).hulls
        return beside_bytes + _size_bytes(retained, {n: box.extents for n, box in hulls.items()})

    def _beside_bytes(self, retained: frozenset[Node], steps: Iterable[Step]) -> int:
        """At least what there is beside retained nodes in these steps: inputs and states, and
        slices, of which a result may lie on an operand.
        """
        scheduled, extents = self.runs.scheduled, self.runs.footprint(steps).extents
        sizes = {
            node: aligned(math.prod(sides) * node.type.itemsize_at_home)
            for node, sides in extents.items()
            if node not in retained
        }
        in_use = np.zeros(len(scheduled.schedule) + 1, np.int64)
        for node, size in sizes.items():
            live, given = scheduled.live[node], givers(scheduled, node)
            in_use[live.start : live.stop] += size
            in_use[live.start] -= max((min(size, sizes.get(one, 0)) for one in given), default=0)
        return int(in_use.max()) + sum(aligned(leaf.type.size_bytes) for leaf in scheduled.kept)

    def of(
        self,
        retention: Retention,
        scenarios: Sequence[Scenario],
        cut: Cut,
        whole: bool = False,
        besides: Sequence[Scenario] = (),
    ) -> Attempt:
        """The maps that hold every scenario with this retention.

        Args:
            whole: cut what only has to fit, and hold weighed transitions uncut.
            besides: more scenarios, uncut.
        """
        partial = any(map(retention.is_partial, retention.after))
        if not whole and not partial:
            scenarios = [scenario for scenario in scenarios if scenario.of is None]
        runs = list(self.runs.under(retention, scenarios, cut, whole))
        likely = list(self.runs.under(retention, besides, WHOLE))
        runs += likely
        uses, found = self._tally.of(step for _, made in runs for step in made)
        computed = {node: found[node] for node in self.runs.scheduled.schedule if node in found}
        passages = _passages(retention, runs, self.runs.rules) if partial else []
        draft = Draft.of(self.runs.scheduled, retention, uses, passages)
        anywhere = [step for one, made in likely if one.kind.is_swept for step in made]
        return Attempt(draft, computed, self.sizer, anywhere)


def _size_bytes(nodes: Iterable[Node], extents: Mapping[Node, Sequence[Coord]]) -> int:
    """Of nodes, as far as there is something of them."""
    sizes = ((n, math.prod(map(value_of, extents[n]))) for n in nodes if n in extents)
    return sum(aligned(size * node.type.itemsize_at_home) for node, size in sizes)


def _passages(
    retention: Retention, runs: Sequence[tuple[Scenario, list[Step]]], rules: Rules
) -> list[Passage]:
    """How the weighed runs of each turn after each other one use every node."""
    early: dict[tuple[int, int], set[Node]] = {}
    touched: dict[tuple[int, int], set[Node]] = {}
    for scenario, steps in runs:
        if scenario.of is None or scenario.before is None:
            continue
        pair, kept = (scenario.before, scenario.of), retention.there(scenario.of)
        first = early.setdefault(pair, set())
        for step in steps:
            first.update(node for node in step.reused if node not in step.compute)
            touched.setdefault(pair, set()).update(step.compute, step.filled)
        valid, dirty = scenario.valid or {}, steps[0].dirty
        for node in retention.there(scenario.before):
            left = rules.subtract(valid.get(node, EMPTY), dirty.get(node, EMPTY))
            if left.boxes and (node in kept or any(node in step.reused for step in steps)):
                first.add(node)
    return [
        Passage(
            every := frozenset(early[pair] | touched.get(pair, set())),
            frozenset(early[pair]),
            frozenset(every & retention.there(pair[1])),
        )
        for pair in sorted(early)
    ]


def _larger(box: Box, shape: Sequence[int]) -> Iterator[Box]:
    """Larger parts: in dimensions of which it is a part, all, or all but an edge; and beside that
    edge a half, a quarter, an eighth, as all may be more than there is room for.

    An edge is wide enough that what lies beside it does not look at all of an input either: windows
    look at one element further, or at few.

    >>> list(_larger(Box(((0, 3), (4, 5))), (3, 16)))
    [[0:3, 2:16], [0:3, 2:9], [0:3, 2:6], [0:3, 2:4]]
    """
    whole = Box.full(shape)
    edges = [
        None if span == full else min(max(2, size // 8), size - 1)
        for span, full, size in zip(box, whole, shape, strict=True)
    ]
    sides = [
        ((0, size),) if edge is None else ((0, size), (edge, size))
        for edge, size in zip(edges, shape, strict=True)
    ]
    yield from (one for one in map(Box, product(*sides)) if one != whole)
    for parts in PARTS if edges.count(None) < len(edges) else ():
        yield Box(
            (0, size) if edge is None else (edge, edge + -(-(size - edge) // parts))
            for edge, size in zip(edges, shape, strict=True)
        )


def _swept(region: Region, shape: Sequence[int]) -> Iterator[Region]:
    """Boxes as large wherever they are; and an element larger, as some places may ask for."""
    for more in (0, 1):
        yield Region(tuple([_swept_box(box, shape, more) for box in region]))


def _swept_box(box: Box, shape: Sequence[int], more: int) -> Box:
    sides: list[tuple[Coord, Coord]] = []
    for axis, ((start, stop), size) in enumerate(zip(box, shape, strict=True)):
        extent = min(value_of(stop - start) + more, size)
        first = swept_symbol(axis, size - extent) if extent < size else 0
        sides.append((first, first + extent))
    return Box(sides)


def _reserved(wants: Iterable[tuple[int, ...]], room_bytes: float) -> int:
    """Scratch memory for a node's calls: of each the best kernel's that fits, or else the least.

    >>> _reserved([(900, 64), (128,)], 500)
    128
    """
    return max(next((size for size in sizes if size <= room_bytes), min(sizes)) for sizes in wants)
