"""Nodes whose bytes meet in a map, and when a run writes over each of them.

    over       a b c d e    in the order of the schedule; written: b, d
    node       · # · # #    earliest 1, latest 3

Overlaps    node → those that lie over it, listed where somebody asks
WrittenOver     of all nodes at once, the first and the last step of a run that writes over them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from tgbench.graph.graph import Node

NEVER = 1 << 61  # later than any step


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
    """What runs over one map write over.

    Args:
        position: of nodes in the schedule; others write nothing.
    """

    def __init__(self, overlaps: Overlaps, position: Mapping[Node, int]) -> None:
        at = [position.get(node, -1) for node in overlaps.writers]
        order = [j for j in np.argsort(at, kind="stable").tolist() if at[j] >= 0]
        self.rows = overlaps.rows
        self._writers = [overlaps.writers[j] for j in order]
        self._over, self._at = overlaps.over[:, order], np.array([at[j] for j in order], np.int64)
        self._last: tuple[Set[Node], list[int], list[int]] | None = None

    def over(self, written: Set[Node]) -> tuple[list[int], list[int]]:
        """By row, the first and the last step that writes over a node: `NEVER` and -1 for none.

        The last answer is at hand: it is asked of one node after the other.
        """
        if self._last is None or self._last[0] is not written:
            self._last = (written, *self._steps(written))
        return self._last[1:]

    def _steps(self, written: Set[Node]) -> tuple[list[int], list[int]]:
        there = np.flatnonzero([node in written for node in self._writers])
        if not there.size:
            return [NEVER] * len(self.rows), [-1] * len(self.rows)
        over, at = self._over[:, there], self._at[there]
        some = over.any(axis=1)
        earliest = np.where(some, at[over.argmax(axis=1)], NEVER)
        latest = np.where(some, at[::-1][over[:, ::-1].argmax(axis=1)], -1)
        return earliest.tolist(), latest.tolist()
