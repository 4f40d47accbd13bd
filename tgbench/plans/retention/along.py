"""What is computed along: calls that the one before them does as well.

    linear  x    → t
    add     t, s → t      one call that does both: `add` takes no time of its own

Lowering finds such calls where it knows how bytes lie (`programs.folding`), and replays do. Tables
are made before there is a map: they take to be computed so what may be. What they say that runs
take is then no longer than in a replay, and what bounds the one bounds the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from tgbench.base.regions import Box
from tgbench.costs.model import half_octave_box, lying_site
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Ranking, Site, View
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.folding import chains_in, post
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
    _chains: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    _known: dict[tuple[Chain, Box], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chains.update({chain[-1]: chain for chain in chains_in(self.scheduled)})

    def chain(self, node: Node) -> Chain:
        """The calls that may be one with a node's, the first one first; none where none may."""
        return tuple([one.call for one in self._chains.get(node, ())])

    def has(self, node: Node, box: Box) -> bool:
        """Whether a kernel computes a box along, at the half-octave above its sizes, and is not
        known to take longer than the calls one by one.
        """
        chain = self._chains.get(node)
        if chain is None:
            return False
        key = self.chain(node), half_octave_box(node.call, box)
        if key not in self._known:
            self._known[key] = self._has(chain, key[1])
        return self._known[key]

    def _has(self, chain: Sequence[Node], box: Box) -> bool:
        first = lying_site(chain[0].call, box, self.rules, self.device)
        posts = tuple(self._post(first.out, pair, box) for pair in pairwise(chain))
        return any(True for _ in self.ranking(replace(first, out=posts[-1].out, posts=posts)))

    def _post(self, made: View, pair: tuple[Node, Node], box: Box) -> Site:
        """A node's call on what the one before it gives; what is as large lies as that does."""
        before, node = pair
        site = lying_site(node.call, box, self.rules, self.device)
        ins = [None if view is None else _lying(view, made) for view in site.ins]
        alike = replace(site, out=_lying(site.out, made), ins=tuple(ins))
        return post(alike, tuple(one is before for one in node.inputs))


def _lying(view: View, other: View) -> View:
    return replace(view, strides=other.strides) if view.shape == other.shape else view
