"""What has to be put in order: stored nodes, their bytes, and who reads whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS
from tgbench.memory.storage import ScheduledGraph

Ints: TypeAlias = npt.NDArray[np.int64]

LANE = 64  # bits of one size map in a packed number
ONE_LANE = 1 << LANE


def pack(lanes: Iterable[int]) -> int:
    """One number for all size maps: sums of packed numbers are sums lane by lane."""
    return sum(int(lane) << (LANE * i) for i, lane in enumerate(lanes))


def unpacked(packed: int) -> Iterator[int]:
    while packed:
        yield packed & (ONE_LANE - 1)
        packed >>= LANE


def highest(packed: int) -> int:
    return packed if packed < ONE_LANE else max(unpacked(packed))


def covers(large: int, small: int) -> bool:
    """Whether no lane of `small` is above that of `large`."""
    if large < ONE_LANE and small < ONE_LANE:
        return small <= large
    lanes = max(large.bit_length(), small.bit_length()) // LANE + 1
    shifts = range(0, lanes * LANE, LANE)
    return all((small >> s) & (ONE_LANE - 1) <= (large >> s) & (ONE_LANE - 1) for s in shifts)


@dataclass(frozen=True)
class Tasks:
    """What has to be ordered: the stored nodes by number, in the given order.

    Fields:
        lanes: bytes, one row for each size map.
        sizes, scratch: packed bytes of the result, and of the kernel while it runs.
        inputs, users: tasks that must run before and after, each once.
        reads, readers: those among them whose bytes, or whose reading of these, matter.
        donors: operands whose bytes the result may take over when they die there, in order.
        held: whether somebody reads it after the run.
    """

    nodes: tuple[Node, ...]
    lanes: Ints
    sizes: tuple[int, ...]
    scratch: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    donors: tuple[tuple[int, ...], ...]
    held: tuple[bool, ...]

    @staticmethod
    def of(
        scheduled: ScheduledGraph, maps: Sequence[Mapping[Node, int]], scratch: Mapping[Node, int]
    ) -> Tasks:
        nodes = scheduled.stored
        number = {node: i for i, node in enumerate(nodes)}
        for given in (*maps, scratch):
            _check(given, number)
        lanes = np.array([[given.get(node, 0) for node in nodes] for given in maps], np.int64)
        sizes = tuple(pack(column) for column in lanes.T.tolist())
        temporary = tuple(pack([scratch.get(node, 0)] * len(maps)) for node in nodes)
        base = scheduled.base
        inputs = tuple(
            tuple(dict.fromkeys(number[base[p]] for p in node.inputs if base[p] in number))
            for node in nodes
        )
        users: list[list[int]] = [[] for _ in nodes]
        for i, parents in enumerate(inputs):
            for parent in parents:
                users[parent].append(i)
        held_bases = {base[node] for node in scheduled.graph.ends}
        held = tuple(node in held_bases for node in nodes)
        donors = tuple(tuple(_donors(node, base, number, sizes, held)) for node in nodes)
        after = tuple(map(tuple, users))
        return Tasks(nodes, lanes, sizes, temporary, inputs, after, donors, held)

    @cached_property
    def is_regular(self) -> bool:
        """Whether in-place pairs have equal sizes: then a state alone says how many bytes live."""
        pairs = ((i, d) for i, donors in enumerate(self.donors) for d in donors)
        return all(self.sizes[i] == self.sizes[d] for i, d in pairs)

    @cached_property
    def credits(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each task, its donors and the bytes that taking one over saves while it runs."""
        return tuple(
            tuple((d, pack(np.minimum(self.lanes[:, i], self.lanes[:, d]).tolist())) for d in some)
            for i, some in enumerate(self.donors)
        )

    def peak_bytes(self, order: Sequence[int]) -> int:
        """The most bytes live at one step of any class; a chain in place has its largest size.

        This is what a placement of these sizes can do no better than.
        """
        count = len(order)
        if not count:
            return 0
        step = np.empty(count, np.int64)
        step[np.asarray(order)] = np.arange(count)
        stop = [
            count if self.held[i] else max((int(step[u]) for u in self.users[i]), default=step[i])
            for i in range(count)
        ]
        leader = list(range(count))
        for i in order:
            dying = (d for d in self.donors[i] if stop[d] == step[i])
            leader[i] = leader[next(dying, i)] if self.donors[i] else i
        return max(
            self._peak_of(lane, temporary, step, np.array(stop), np.array(leader))
            for lane, temporary in zip(self.lanes, self._scratch_lanes, strict=True)
        )

    @cached_property
    def _scratch_lanes(self) -> Ints:
        one = np.array([packed & (ONE_LANE - 1) for packed in self.scratch], np.int64)
        return np.broadcast_to(one, self.lanes.shape)

    def _peak_of(self, lane: Ints, temporary: Ints, step: Ints, stop: Ints, leader: Ints) -> int:
        size, last = np.zeros_like(lane), np.zeros_like(stop)
        np.maximum.at(size, leader, lane)
        np.maximum.at(last, leader, stop)
        rises = np.zeros(len(lane) + 2, np.int64)
        np.add.at(rises, step, size)
        np.add.at(rises, last + 1, -size)
        live = np.cumsum(rises)
        np.add.at(live, step, temporary)
        return int(live.max())


def _check(given: Mapping[Node, int], number: Mapping[Node, int]) -> None:
    for node, size in given.items():
        if size < 0:
            raise ValueError(f"{node.name} has size {size} B; sizes are >= 0")
        if size and node not in number:
            raise ValueError(
                f"{node.name} is given {size} B, but it is a leaf, a view or frozen: it has no "
                "bytes that come and go; leave it out"
            )


def _donors(
    node: Node,
    base: Mapping[Node, Node],
    number: Mapping[Node, int],
    sizes: Sequence[int],
    held: Sequence[bool],
) -> Iterator[int]:
    """Operands that may give their bytes to a result, as a placement sees it."""
    if not sizes[number[node]]:
        return
    for i in OPS[node.op].inplace:
        operand = node.inputs[i]
        at = number.get(operand, -1)
        shown = sum(base[parent] is operand for parent in node.inputs)
        if at >= 0 and sizes[at] and not held[at] and operand.type == node.type and shown == 1:
            yield at
