"""Element-wise calls folded into the call before them: a bias, an activation, a residual.

    conv   x    → t        conv   x, then add(·, s), then relu(·) → t
    add    t, s → t   ─→
    relu   t    → t

What the call before wrote is read by the next one alone, in whole, and by nobody after it: so it
need never be in memory. That follows from what lowering knows: who reads what, what is kept, and
where bytes lie. Whether a kernel does it all at once, and is quicker so, is asked of the kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

from tgbench.base.regions import Box
from tgbench.graph.graph import Node
from tgbench.kernels.registry import KERNELS, Site
from tgbench.kernels.views import same_box
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.program import Instruction

Calls = Sequence[Instruction]  # of one node, a box each


def does_besides(op: str, other: str) -> bool:
    """Whether a kernel of an op does another one to each number of its result."""
    return any(other in kernel.posts for kernel in KERNELS.get(op, ()))


def chains_in(scheduled: ScheduledGraph) -> Iterator[tuple[Node, ...]]:
    """Nodes that may be one call wherever their bytes lie: computed one after the other, each of
    which alone reads the one before it, number by number, once. Beginnings come before the whole.
    """
    readers, found = Folder.readers_in(scheduled), dict[Node, tuple[Node, ...]]()
    for before, node in pairwise(scheduled.stored):
        if (
            readers.get(before) == {node}
            and before.inputs
            and node.inputs.count(before) == 1
            and before.shape == node.shape
            and not any(fact is not None for fact in node.call.facts)
        ):
            chain = *found.get(before, (before,)), node
            if does_besides(chain[0].op, node.op):
                found[node] = chain
                yield chain


def joined(calls: Calls) -> Site:
    """The site of calls that are one: the first one's, with the others as what is done besides."""
    sites = [made.site for made in calls if made.site is not None]
    return joined_site([made.node for made in calls], sites)


def joined_site(nodes: Sequence[Node], sites: Sequence[Site]) -> Site:
    """The same of nodes at their sites, each on what the one before it gives, wherever it is."""
    first, *others = sites
    posts = tuple(
        post(site, tuple(one is before for one in node.inputs))
        for site, (before, node) in zip(others, pairwise(nodes), strict=True)
    )
    return replace(first, out=sites[-1].out, posts=posts)


def post(site: Site, is_result: Sequence[bool]) -> Site:
    """A site as one of `Site.posts`; some of its inputs are what the call before gives."""
    box = Box((0, size) for size in site.out.shape)
    ins = tuple(None if own else view for own, view in zip(is_result, site.ins, strict=True))
    return Site(
        site.call,
        box,
        tuple(None if view is None else box for view in ins),
        site.out,
        ins,
        site.home,
    )


@dataclass(frozen=True)
class Folder:
    """Which calls of runs over one placement may be one."""

    scheduled: ScheduledGraph
    placement: Placement

    def chains(self, made: Calls, asked: Collection[Node]) -> Iterator[list[Calls]]:
        """All calls in order, by node; those that may be one together.

        Args:
            asked: what is handed out.
        """
        found: list[Calls] = []
        for _, group in groupby(made, lambda one: (one.node, one.site is None)):
            calls = list(group)
            if found and self._follow(found, calls, asked):
                found.append(calls)
                continue
            if found:
                yield found
            found = [calls]
        if found:
            yield found

    def _follow(self, chain: Sequence[Calls], calls: Calls, asked: Collection[Node]) -> bool:
        """Whether calls take what a chain gives, and nobody else does, now or later."""
        before, after = chain[-1][0].node, calls[0].node
        return (
            self.readers.get(before) == {after}
            and before not in asked
            and before not in self.placement.retained
            and before not in self.placement.sliding
            and does_besides(chain[0][0].node.op, after.op)
            and _take(chain[-1], calls)
            and self._lies_clear([one[0].node for one in chain], after)
        )

    @cached_property
    def readers(self) -> Mapping[Node, set[Node]]:
        return self.readers_in(self.scheduled)

    @staticmethod
    def readers_in(scheduled: ScheduledGraph) -> Mapping[Node, set[Node]]:
        """For every stored node, who reads its bytes, and through no view."""
        found: dict[Node, set[Node]] = {}
        for node in scheduled.graph.nodes:
            for parent in node.inputs:
                found.setdefault(scheduled.base[parent], set()).add(node)
        for node in scheduled.graph.ends:
            found.setdefault(scheduled.base[node], set()).add(node)
        return found

    def _lies_clear(self, chain: Sequence[Node], last: Node) -> bool:
        """Whether the last one's bytes are nobody's that the calls before it read or write.

        They may be those of an operand that is read number by number, just before it is written.
        """
        own = self._bytes(last)
        first, *rest = chain
        for operand in first.inputs:
            if _meet(own, self._bytes(operand)):
                return False
        for node in (*rest, last):
            for operand in node.inputs:
                taken = self.placement.donors.get(node) is self.scheduled.base[operand]
                if operand not in chain and not taken and _meet(own, self._bytes(operand)):
                    return False
        room = self.placement.scratch.get(first)
        scratch = (room.offset_bytes, room.offset_bytes + room.size_bytes) if room else (0, 0)
        return not _meet(own, scratch)

    def _bytes(self, node: Node) -> tuple[int, int]:
        """Where a node's bytes lie in the arena; nowhere for what lies in the pool."""
        base = self.scheduled.base[node]
        slot = self.placement.slots.get(base)
        if slot is None or base in self.scheduled.frozen:
            return 0, 0
        return slot.offset_bytes, slot.offset_bytes + self.placement.size_of(base)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _take(before: Calls, calls: Calls) -> bool:
    """Whether calls read exactly what those before them wrote, box by box, once."""
    if len(before) != len(calls) or any(one.site is None for one in (*before, *calls)):
        return False
    return all(_takes(*pair) for pair in zip(before, calls, strict=True))


def _takes(before: Instruction, made: Instruction) -> bool:
    site = made.site
    assert site is not None
    own = [i for i, one in enumerate(made.node.inputs) if one is before.node]
    if len(own) != 1 or any(fact is not None for fact in site.call.facts):
        return False
    have = site.in_boxes[own[0]]
    return have is not None and _are_same(have, before.box) and _are_same(made.box, before.box)


def _are_same(one: Box, other: Box) -> bool:
    """Equal forms are the same wherever one stands."""
    return one == other or same_box(one, other)
