"""Nodes whose bytes meet in a map, and when a run writes over each of them.

    over       a b c d e    in the order of the schedule; written: a, b, d
    c          · # · # #    written over: before it is computed (b), and later (d)

Overlaps    node → those that lie over it, listed where somebody asks
WrittenOver     of all nodes at once, whether a run writes over them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tgbench.graph.graph import Node


class Overlaps(Mapping[Node, tuple[Node, ...]]):
    """For every computed node, those whose computation may write over it.

    Args:
        over: [node, writer] whether their bytes meet; of a node with itself nothing is said.
        writers: nodes, for what they write and for their scratch memory.

    Fields:
        rows: where nodes are in `over`.
    """

    def __init__(
        self, nodes: Sequence[Node], writers: Sequence[Node], over: NDArray[np.bool_]
    ) -> None:
        self.rows = {node: i for i, node in enumerate(nodes)}
        self.writers, self.over = writers, over.copy()
        for j, writer in enumerate(writers):
            if writer in self.rows:
                self.over[self.rows[writer], j] = False
        self._listed: dict[Node, tuple[Node, ...]] = {}

    def __getitem__(self, node: Node) -> tuple[Node, ...]:
        found = self._listed.get(node)
        if found is None:
            there = np.flatnonzero(self.over[self.rows[node]]).tolist()
            found = self._listed[node] = tuple(dict.fromkeys([self.writers[j] for j in there]))
        return found

    def __iter__(self) -> Iterator[Node]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class WrittenOver:
    """What runs over one map write over. Whether it is anything at all of a node is asked of all
    nodes at once: a bit each for who may write over it.

    Args:
        position: of nodes in the schedule; others write nothing.
    """

    def __init__(self, overlaps: Overlaps, position: Mapping[Node, int]) -> None:
        self.rows, self._writers = overlaps.rows, overlaps.writers
        self._at, own = (
            np.array([position.get(node, -1) for node in nodes], np.int64)
            for nodes in (overlaps.writers, overlaps.rows)
        )
        self._over = overlaps.over & (self._at >= 0)
        self._ever = np.packbits(self._over, axis=1)
        self._later = np.packbits(self._over & (self._at > own[:, None]), axis=1)
        self._last: tuple[Set[Node], _Writes] | None = None

    def ever(self, node: Node, written: Set[Node]) -> bool:
        """Whether something that is written lies over a node."""
        row = self.rows.get(node)
        return row is not None and self._writes(written).ever[row]

    def later(self, written: Set[Node]) -> list[bool]:
        """By row, whether something is written over a node after it is computed itself."""
        return self._writes(written).later

    def before(self, node: Node, step: int, written: Set[Node]) -> bool:
        """Whether something is written over a node before a step."""
        row = self.rows.get(node)
        if row is None:
            return False
        return bool((self._over[row] & self._writes(written).is_there & (self._at < step)).any())

    def _writes(self, written: Set[Node]) -> _Writes:
        """The last answer is at hand: it is asked of one node after the other."""
        if self._last is None or self._last[0] is not written:
            is_there = np.array([node in written for node in self._writers], np.bool_)
            bits = np.packbits(is_there)
            self._last = (
                written,
                _Writes(is_there, _any_of(self._ever, bits), _any_of(self._later, bits)),
            )
        return self._last[1]


def _any_of(rows: NDArray[np.uint8], bits: NDArray[np.uint8]) -> list[bool]:
    """Of each row, whether it has any of these bits."""
    found: list[bool] = np.any(rows & bits, axis=1).tolist()
    return found


class _Writes(NamedTuple):
    """What follows from what is written.

    Fields:
        is_there: by writer, whether it writes.
        ever, later: by row, whether anything is written over a node; whether after it.
    """

    is_there: NDArray[np.bool_]
    ever: list[bool]
    later: list[bool]
