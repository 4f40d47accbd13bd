"""A layered drawing of a directed acyclic graph, in time linear in its edges.

    rank     the longest path from a source; then as late as the first user allows
    order    within a rank by the mean place of a node's neighbours (barycentre), some sweeps
    place    neighbours pull, and nodes of one rank keep their distance

    a   b          rank 0
     \\ / \\
      c   d        rank 1
       \\ /
        e          rank 2

Every sweep moves all ranks at once, with NumPy. Edges over several ranks get no dummy nodes, as a
mask that every layer reads would need one per layer. Source: Sugiyama, Tagawa and Toda, "Methods
for Visual Understanding of Hierarchical System Structures" (1981); crossings are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ORDERING = 12  # sweeps that look for an order
PULLING = 8  # sweeps that look for places
INWARD = 0.2  # of a line's distance from the middle, taken back a sweep
MOST_ACROSS = 64  # places of one rank; what does not fit goes on in a line below


@dataclass(frozen=True)
class Positions:
    """Where nodes stand: columns to the right, lines downwards, both from 0.

    Fields:
        x: the middle of each node, in widths of a node.
        y: its line.
    """

    x: Floats
    y: Ints

    @property
    def width(self) -> float:
        return float(self.x.max()) + 1.0 if len(self.x) else 0.0

    @property
    def height(self) -> int:
        return int(self.y.max()) + 1 if len(self.y) else 0


def layout(count: int, edges: Ints) -> Positions:
    """The drawing of a graph of `count` nodes; `edges` is [edges, 2], each from before to after.

    Nodes are numbered in topological order.

    >>> layout(3, np.array([[0, 2], [1, 2]])).y.tolist()
    [0, 0, 1]
    """
    if not count:
        return Positions(np.zeros(0), np.zeros(0, np.int64))
    links = np.asarray(edges, np.int64).reshape(-1, 2)
    rank = _ranks(count, links)
    place = _ordered(rank, links)
    line, place = _broken(rank, place)
    return Positions(_placed(line, place, links), line)


def _ranks(count: int, edges: Ints) -> Ints:
    """Longest paths; then every node as late as its first user allows."""
    users: list[list[int]] = [[] for _ in range(count)]
    for before, after in edges.tolist():
        users[before].append(after)
    rank = [0] * count
    for node, below in enumerate(users):
        for user in below:
            rank[user] = max(rank[user], rank[node] + 1)
    for node in range(count - 1, -1, -1):
        if users[node]:
            rank[node] = min([rank[user] for user in users[node]]) - 1
    return np.array(rank, np.int64)


def _ordered(rank: Ints, edges: Ints) -> Ints:
    """Each node's place within its rank."""
    place = _places(rank, np.arange(len(rank), dtype=np.float64))
    for _ in range(ORDERING):
        middle = place - _sizes(rank)[rank] / 2.0  # ranks of different sizes share their middle
        place = _places(rank, _pulled(middle, edges))
    return place


def _pulled(x: Floats, edges: Ints) -> Floats:
    """Half way from each node to the mean of its neighbours."""
    if not len(edges):
        return x
    before, after, count = edges[:, 0], edges[:, 1], len(x)
    total = np.bincount(before, x[after], count) + np.bincount(after, x[before], count)
    degree = np.bincount(before, minlength=count) + np.bincount(after, minlength=count)
    return np.where(degree > 0, 0.5 * x + 0.5 * total / np.maximum(degree, 1), x)


def _sizes(rank: Ints) -> Ints:
    return np.bincount(rank)


def _places(rank: Ints, key: Floats) -> Ints:
    """0, 1, 2, … within each rank, in the order of the keys."""
    order = np.lexsort((key, rank))
    starts = np.cumsum(_sizes(rank)) - _sizes(rank)
    place = np.empty(len(rank), np.int64)
    place[order] = np.arange(len(rank)) - starts[rank[order]]
    return place


def _broken(rank: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Lines of at most `MOST_ACROSS` nodes: a wide rank takes several."""
    lines = (_sizes(rank) - 1) // MOST_ACROSS + 1
    first = np.cumsum(lines) - lines
    return first[rank] + place // MOST_ACROSS, place % MOST_ACROSS


def _placed(line: Ints, place: Ints, edges: Ints) -> Floats:
    """Columns: each sweep pulls towards neighbours, then parts what is too near."""
    order = np.lexsort((place, line))
    sizes = _sizes(line)
    x = place - (sizes[line] - 1) / 2.0
    for _ in range(PULLING):
        x = _apart(_pulled(x, edges), line, place, order)
        x -= INWARD * (np.bincount(line, x) / sizes)[line]
    found: Floats = x - x.min()
    return found


def _apart(x: Floats, line: Ints, place: Ints, order: Ints) -> Floats:
    """The nearest columns, from both sides, in which nodes of a line are 1 apart."""
    far = float(np.ptp(x)) + len(x) + 1.0  # lines follow each other at this distance
    loose = (x - place + line * far)[order]
    right = np.maximum.accumulate(loose)
    left = np.minimum.accumulate(loose[::-1])[::-1]
    found = np.empty_like(x)
    found[order] = (right + left) / 2.0
    return found + place - line * far
