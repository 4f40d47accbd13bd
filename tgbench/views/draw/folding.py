"""Equal layers of a graph, folded into one: a 26-layer model is drawn as one layer, ×26.

    computed nodes in order     e  a b c d  a b c d  a b c d  n l
    tandem repeat                  └────── period 4, ×3 ────┘
    folded                      e  a b c d  n l             a stands for three nodes

What is compared is op, type, attributes and the types of what is read. Names do not count, so it
holds for imported modules too. Attributes that are arrays do not count either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tgbench.graph.graph import Graph, Node
from tgbench.views.draw.layering import Ints

SHORTEST = 3  # nodes of a block that is worth folding
LARGEST_PERIODS = 12  # candidates looked at
MOST_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Block:
    """A run of equal layers: `count` times `period` nodes, from position `start` on."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count


@dataclass(frozen=True)
class Folded:
    """A graph whose equal layers are one.

    Fields:
        members: for every drawn node, the nodes that it stands for.
        block: for every drawn node, the position of its block, or -1.
        blocks: the folded runs of layers.
        edges: [edges, 2] between drawn nodes, each from before to after.
    """

    members: tuple[tuple[Node, ...], ...]
    block: tuple[int, ...]
    blocks: tuple[Block, ...]
    edges: Ints

    def __len__(self) -> int:
        return len(self.members)


def unfolded(graph: Graph) -> Folded:
    """Every node for itself."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    pairs = [
        (number[p], i) for i, node in enumerate(graph.nodes) for p in dict.fromkeys(node.inputs)
    ]
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return Folded(tuple((node,) for node in graph.nodes), (-1,) * len(number), (), edges)


def folded(graph: Graph) -> Folded:
    """The graph with runs of equal layers drawn once; without any, the graph as it is."""
    computed = [node for node in graph.nodes if not node.is_leaf]
    blocks = repeats(_signatures(computed))
    if not blocks:
        return unfolded(graph)
    leader, block_of = _leaders(graph, computed, blocks)
    members: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(leader[node], []).append(node)
    return _drawn(graph, members, leader, block_of, blocks)


def inlined(drawn: Folded) -> tuple[Folded, dict[int, tuple[Node, ...]]]:
    """Without weights and constants that one drawn node reads: they stand inside that one.

    Returns what is left, and by its position what stands inside.
    """
    count = len(drawn)
    users = np.bincount(drawn.edges[:, 0], minlength=count) if len(drawn.edges) else np.zeros(count)
    goes = [
        members[0].op in ("parameter", "constant") and users[i] == 1
        for i, members in enumerate(drawn.members)
    ]
    place = np.cumsum([not gone for gone in goes]) - 1
    inside: dict[int, tuple[Node, ...]] = {}
    edges = []
    for before, after in drawn.edges.tolist():
        if goes[before]:
            at = int(place[after])
            inside[at] = (*inside.get(at, ()), *drawn.members[before])
        else:
            edges.append((place[before], place[after]))
    stays = [i for i, gone in enumerate(goes) if not gone]
    return Folded(
        tuple(drawn.members[i] for i in stays), tuple(drawn.block[i] for i in stays),
        drawn.blocks, np.array(edges, np.int64).reshape(-1, 2),
    ), inside  # fmt: skip


def _signatures(computed: Sequence[Node]) -> list[Hashable]:
    def signature(node: Node) -> Hashable:
        plain = tuple((k, v) for k, v in sorted(node.attrs.items()) if not hasattr(v, "array"))
        return (node.op, node.type, str(plain), tuple(str(parent.type) for parent in node.inputs))

    return [signature(node) for node in computed]


def repeats(signatures: Sequence[Hashable]) -> tuple[Block, ...]:
    """Runs of equal neighbouring blocks, the longest first found, in order of their start.

    >>> repeats(list("eabcabcabcn"))
    (Block(start=1, period=3, count=3),)
    """
    numbers: dict[Hashable, int] = {}
    code = np.array([numbers.setdefault(s, len(numbers)) for s in signatures], np.int64)
    found, open_spans = list[Block](), [(0, len(code))]
    while open_spans and len(found) < MOST_BLOCKS:
        start, stop = open_spans.pop()
        best = _longest(code[start:stop])
        if best is not None:
            block = Block(start + best.start, best.period, best.count)
            found.append(block)
            open_spans += [(start, block.start), (block.stop, stop)]
    return tuple(sorted(found, key=lambda block: block.start))


def _longest(code: Ints) -> Block | None:
    """The repeat that covers most nodes; of equal ones the shortest period."""
    best: Block | None = None
    for period in sorted(_periods(code)):
        equal = np.concatenate(([0], (code[:-period] == code[period:]).astype(np.int8), [0]))
        edge = np.flatnonzero(np.diff(equal))
        starts, lengths = edge[::2], edge[1::2] - edge[::2]
        if not len(lengths):
            continue
        longest = int(lengths.argmax())
        count = int(lengths[longest]) // period + 1
        if count >= 2 and (best is None or count * period > best.period * best.count):
            best = Block(int(starts[longest]), period, count)
    return best


def _periods(code: Ints) -> list[int]:
    """The commonest distances between one signature and its next occurrence."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, value in enumerate(code.tolist()):
        if value in last:
            distances[i - last[value]] += 1
        last[value] = i
    common = [d for d, _ in distances.most_common(LARGEST_PERIODS)]
    return [d for d in common if SHORTEST <= d < len(code)]


def _leaders(
    graph: Graph, computed: Sequence[Node], blocks: Sequence[Block]
) -> tuple[dict[Node, Node], dict[Node, int]]:
    """For every node the one that is drawn for it, and its block; leaves go with their user."""
    leader = {node: node for node in graph.nodes}
    block_of: dict[Node, int] = {}
    for number, block in enumerate(blocks):
        for i in range(block.start, block.stop):
            first = computed[block.start + (i - block.start) % block.period]
            leader[computed[i]] = first
            block_of[computed[i]] = number
    by_role: dict[Hashable, Node] = {}
    for node in graph.nodes:
        users = graph.consumers[node]
        if node.is_leaf and len(users) == 1 and users[0] in block_of:
            role = (leader[users[0]], users[0].inputs.index(node), node.op, node.type)
            leader[node] = by_role.setdefault(role, node)
            block_of[node] = block_of[users[0]]
    return leader, block_of


def _drawn(
    graph: Graph,
    members: dict[Node, list[Node]],
    leader: dict[Node, Node],
    block_of: dict[Node, int],
    blocks: Sequence[Block],
) -> Folded:
    """Drawn nodes in an order in which edges go forward; edges that would go back are left out."""
    shown = sorted(members, key=lambda node: node.index)
    number = {node: i for i, node in enumerate(shown)}
    pairs: dict[tuple[int, int], None] = {}
    for node in graph.nodes:
        for parent in node.inputs:
            before, after = number[leader[parent]], number[leader[node]]
            if before < after:
                pairs[before, after] = None
    edges = np.array(list(pairs), np.int64).reshape(-1, 2)
    return Folded(
        tuple(tuple(members[node]) for node in shown),
        tuple(block_of.get(node, -1) for node in shown),
        tuple(blocks),
        edges,
    )
