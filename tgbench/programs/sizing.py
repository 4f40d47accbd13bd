"""How much scratch memory a plan's calls want, before anything has an offset."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

from tgbench.base.coords import value_of
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Node
from tgbench.kernels.registry import Site
from tgbench.memory.draft import Draft
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.choices import Choices
from tgbench.programs.folding import chains_in, joined_site
from tgbench.programs.sites import Addresser, canonical, layout, site_of, taken
from tgbench.runs.rules import Rules


class _Wanted(NamedTuple):
    """What calls of a node want, which compute these regions and whose operands lie so."""

    regions: tuple[Region, ...]
    how: Hashable
    wanted: frozenset[tuple[int, ...]]


class Sizer:
    """How much scratch memory the kernels of calls want, before anything has an offset.

    That depends on how operands lie, not where. Attempts at one plan differ in few of them: what is
    known of a call whose operands lie alike is not asked again.
    """

    def __init__(
        self, scheduled: ScheduledGraph, rules: Rules, device: str, choices: Choices
    ) -> None:
        self.scheduled = scheduled
        self.rules = rules
        self.device = device
        self.choices = choices
        self._wants = rules.allowance.memo()
        self._hows: dict[Hashable, int] = {}
        self._last: dict[Node, _Wanted] = {}
        self._chains: dict[Node, list[tuple[Node, ...]]] = {}  # by the node that they begin with
        for chain in () if rules.tilings else chains_in(scheduled):
            self._chains.setdefault(chain[0], []).append(chain)

    def wants(
        self, computed: Iterable[tuple[Node, tuple[Region, ...]]], draft: Draft
    ) -> dict[Node, frozenset[tuple[int, ...]]]:
        """Of every node, what each of its calls would take: the best kernel's bytes first."""
        views = _Unplaced(self.scheduled, draft, self._hows)
        found: dict[Node, frozenset[tuple[int, ...]]] = {}
        for node, regions in computed:
            last, how = self._last.get(node), self._how(node, views)
            if last is None or last.regions is not regions or last.how != how:
                wanted = frozenset[tuple[int, ...]]().union(
                    *(
                        self._wants.get((node, region, how), self._wanted, node, region, views)
                        for region in regions
                    )
                )
                last = self._last[node] = _Wanted(regions, how, wanted)
            found[node] = found[node] | last.wanted if node in found else last.wanted
        return found

    def _how(self, node: Node, views: _Unplaced) -> Hashable:
        chains = self._chains.get(node)
        return tuple(map(views.how, chains[-1])) if chains else views.how(node)

    def _wanted(self, node: Node, region: Region, views: _Unplaced) -> frozenset[tuple[int, ...]]:
        found = set[tuple[int, ...]]()
        for box in self.rules.parts(node.call, region):
            found.add(self._asked((node,), box, views))
            for chain in self._chains.get(node, ()):
                if all(one in views.draft.slots for one in chain):
                    found.add((*self._asked(chain, box, views), 0))  # or they are calls apart
        return frozenset(found)

    def _asked(self, chain: Sequence[Node], box: Box, views: _Unplaced) -> tuple[int, ...]:
        """What kernels want that compute a box of all these nodes at once, the best one first."""
        there = joined_site(chain, [self._site(node, box, views) for node in chain])
        donors = views.draft.donors
        site = canonical(there, *(taken(node, self.scheduled, donors) for node in chain))
        options = self.choices.at(self.choices.key(site), site)
        return tuple(value_of(option.used_bytes) for option in options)

    def _site(self, node: Node, box: Box, views: _Unplaced) -> Site:
        prepares = node.call not in self.rules.unpacked
        return site_of(node, box, views.addresser, self.rules, self.device, prepares=prepares)


class _Unplaced:
    """How the operands of calls lie in a draft: their strides, and what is taken over in place."""

    def __init__(
        self, scheduled: ScheduledGraph, draft: Draft, numbers: dict[Hashable, int]
    ) -> None:
        self.scheduled, self.draft, self._numbers = scheduled, draft, numbers
        self._layout = cache(lambda node: layout(node, scheduled, draft.slots))
        self._hows: dict[Node, int] = {}

    @cached_property
    def addresser(self) -> Addresser:
        """Every slot begins at coordinate 0: wherever it does, its strides are the same."""
        starts = {node: (0,) * node.rank for node in self.draft.slots}
        return Addresser(self._layout, starts)

    def how(self, node: Node) -> int:
        """A number for the strides of what a node writes and reads; some inputs are never looked
        at.
        """
        found = self._hows.get(node)
        if found is not None:
            return found
        scheduled, slots = self.scheduled, self.draft.slots
        there = (one for one in (node, *node.inputs) if scheduled.base[one] in slots)
        strides = tuple([slots[scheduled.base[one]].strides for one in there])
        how = strides, node in self.draft.donors
        found = self._hows[node] = self._numbers.setdefault(how, len(self._numbers))
        return found
