"""What is computed along: calls that the one before them does as well.

    linear  x    → t
    add     t, s → t      one call that does both: `add` takes no time of its own

Lowering finds such calls where it knows how bytes lie (`programs.folding`), and replays do. Tables
are made before there is a map: they take to be computed so what may be. What they say that runs
take is then no longer than in a replay, and what bounds the one bounds the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from tgbench.base.regions import Box
from tgbench.costs.model import half_octave_box, lying_site
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Ranking, Site, View
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.folding import chains_in, joined_site
from tgbench.runs.rules import Rules

Chain: TypeAlias = "tuple[Call, ...]"


@dataclass(frozen=True, eq=False)
class Along:
    """Of which nodes which boxes are computed along.

    Args:
        ranking: which kernels take a site, the best first; the same that runs use.
    """

    scheduled: ScheduledGraph
    rules: Rules
    ranking: Ranking
    device: str
    _known: dict[tuple[Chain, Box], bool] = field(default_factory=dict)

    @cached_property
    def _nodes(self) -> Mapping[Node, tuple[Node, ...]]:
        """By the last one of them, nodes that may be one call."""
        return {chain[-1]: chain for chain in chains_in(self.scheduled)}

    @cached_property
    def _calls(self) -> Mapping[Node, Chain]:
        return {last: tuple([one.call for one in chain]) for last, chain in self._nodes.items()}

    def chain(self, node: Node) -> Chain:
        """The calls that may be one with a node's, the first one first; none where none may."""
        return self._calls.get(node, ())

    def has(self, node: Node, box: Box) -> bool:
        """Whether a kernel computes a box along, at the half-octave above its sizes, and is not
        known to take longer than the calls one by one.
        """
        calls = self.chain(node)
        if not calls:
            return False
        key = calls, half_octave_box(node.call, box)
        if key not in self._known:
            self._known[key] = self._has(self._nodes[node], key[1])
        return self._known[key]

    def _has(self, chain: Sequence[Node], box: Box) -> bool:
        first, *others = (lying_site(one.call, box, self.rules, self.device) for one in chain)
        sites = [first, *(_lying_as(site, first.out) for site in others)]
        return any(True for _ in self.ranking(joined_site(chain, sites)))


def _lying_as(site: Site, made: View) -> Site:
    """The same, what is as large as the first call's result lying as that does."""
    ins = tuple([None if view is None else _lying(view, made) for view in site.ins])
    return replace(site, out=_lying(site.out, made), ins=ins)


def _lying(view: View, other: View) -> View:
    return replace(view, strides=other.strides) if view.shape == other.shape else view
