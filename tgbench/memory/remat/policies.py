"""Eviction policies: what to drop when a computation does not fit, decided while the run goes on.

The schedule is followed in order. Whatever a computation reads and is gone is computed again
first, recursively. When bytes are missing, values that no scheduled computation will read go
first, then the one with the least *score*.

The *online* policies know the past alone, and never drop what a computation under way will read.
The others know when each value is read next. They are starting points for the search, so before
they give up they may drop even that, and compute it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tgbench.memory.remat.schedule import Schedule

Floats = npt.NDArray[np.float64]
MOST = 20  # computations for each needed value; a run that makes more is given up
NEVER = np.inf  # the next read of a value that nothing will read


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to choose what to drop.

    Fields:
        score: of every value, by position in the schedule; the least is dropped first.
        online: it looks at the past alone.
    """

    score: Callable[[Contents], Floats]
    online: bool


class Contents:
    """What is in memory, and what a policy may know of it; arrays by position in the schedule.

    Attributes:
        clock: computations so far.
        used_at: clock of the last computation or read.
        uses: computations and reads so far.
        inflation: the score of the value dropped last.
        next_read: scheduled position of the next read.
        at: scheduled position of the present computation.
        held: whether the value is in memory.
        pins: how many computations under way will read it.
    """

    def __init__(self, schedule: Schedule, budget_bytes: int) -> None:
        count = len(schedule.values)
        self.schedule = schedule
        self.costs = np.array(schedule.costs, np.float64)
        self.sizes = np.array(schedule.sizes, np.float64).clip(1)
        self.used_at = np.zeros(count)
        self.uses = np.zeros(count)
        self.priority = np.zeros(count)
        self.inflation = 0.0
        self.clock = 0
        self.spent_ns = 0.0
        self.at = 0
        self.held = np.zeros(count, bool)
        self.pins = np.zeros(count, np.int64)
        self.free_bytes = budget_bytes - schedule.resident_bytes
        self.sequence: list[int] = []
        self.readers = _readers(schedule)
        self.next_read = np.array([r[-1] if r else NEVER for r in self.readers], np.float64)
        self.dropped = _Components(schedule)

    @property
    def staleness(self) -> Floats:
        """Computations since the last use, from 1."""
        return self.clock - self.used_at + 1

    @property
    def distance(self) -> Floats:
        """Scheduled computations until the next read, from 1."""
        return self.next_read - self.at + 1

    @property
    def again_ns(self) -> Floats:
        """Nanoseconds to compute each held value again, dropped neighbours included."""
        costs = self.costs.copy()
        for value in np.flatnonzero(self.held & (self.pins == 0)):
            costs[value] += self.dropped.around(int(value))
        return costs

    def touch(self, value: int) -> None:
        """Note a use."""
        self.used_at[value] = self.clock
        self.uses[value] += 1
        worth = self.uses[value] * self.costs[value] / self.sizes[value]
        self.priority[value] = self.inflation + worth

    def compute(self, value: int) -> None:
        """Note a computation whose inputs and bytes are there."""
        self.clock += 1
        self.spent_ns += self.schedule.costs[value]
        self.sequence.append(value)
        self.free_bytes -= self.schedule.sizes[value]
        if self.uses[value]:
            self.dropped.remove(value)
        self.held[value] = True
        self.touch(value)
        for read in self.schedule.inputs[value]:
            self.touch(read)

    def drop(self, value: int) -> None:
        self.held[value] = False
        self.free_bytes += self.schedule.sizes[value]
        self.dropped.add(value)

    def advance(self, position: int) -> None:
        """The scheduled computation of this value is done: its inputs are next read later."""
        self.at = position + 1
        for read in self.schedule.inputs[position]:
            readers = self.readers[read]
            while readers and readers[-1] <= position:
                readers.pop()
            self.next_read[read] = readers[-1] if readers else NEVER


def _readers(schedule: Schedule) -> list[list[int]]:
    """For each value the needed positions that read it, last first; the length is the end."""
    readers: list[list[int]] = [[] for _ in schedule.values]
    for value in schedule.outputs:
        readers[value].append(len(schedule.values))
    for value in reversed(schedule.once):
        for read in schedule.inputs[value]:
            readers[read].append(value)
    return readers


class _Components:
    """Dropped values by connected component, with the summed cost of each.

    A value that is computed again takes its cost out of its component, which is not split: the
    approximation of DTR's equivalence classes.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._costs = schedule.costs
        self._inputs = schedule.inputs
        self._near: list[list[int]] = [list(inputs) for inputs in schedule.inputs]
        for value in schedule.once:
            for read in schedule.inputs[value]:
                self._near[read].append(value)
        self._member: dict[int, int] = {}  # dropped value → node of the forest
        self._parent: list[int] = []
        self._sum: list[float] = []

    def _root(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def around(self, value: int) -> float:
        """Summed cost of the components beside this value."""
        member = self._member
        roots = {self._root(member[near]) for near in self._near[value] if near in member}
        return sum(self._sum[root] for root in roots)

    def add(self, value: int) -> None:
        node = len(self._parent)
        self._parent.append(node)
        self._sum.append(self._costs[value])
        self._member[value] = node
        for near in self._near[value]:
            if near in self._member:
                self._join(self._root(self._member[near]), self._root(node))

    def _join(self, one: int, other: int) -> None:
        if one != other:
            self._parent[one] = other
            self._sum[other] += self._sum[one]

    def remove(self, value: int) -> None:
        self._sum[self._root(self._member.pop(value))] -= self._costs[value]


# --- the policies ---------------------------------------------------------------------------------

POLICIES: Mapping[str, Policy] = {
    "LRU": Policy(lambda m: m.used_at, online=True),
    "largest first": Policy(lambda m: -m.sizes, online=True),
    "GDSF": Policy(lambda m: m.priority, online=True),
    "DTR, own cost": Policy(lambda m: m.costs / (m.sizes * m.staleness), online=True),
    "DTR": Policy(lambda m: m.again_ns / (m.sizes * m.staleness), online=True),
    "next read": Policy(lambda m: -m.distance, online=False),
    "cost": Policy(lambda m: m.costs / m.sizes, online=False),
    "again": Policy(lambda m: m.again_ns / m.sizes, online=False),
    "cost, next read": Policy(lambda m: m.costs / (m.sizes * m.distance), online=False),
    "again, next read": Policy(lambda m: m.again_ns / (m.sizes * m.distance), online=False),
    "size, next read": Policy(lambda m: -m.sizes * m.distance, online=False),
}


def simulate(
    schedule: Schedule, budget_bytes: int, policy: Policy, limit_ns: float
) -> tuple[int, ...] | None:
    """The computations that the policy makes; None when it runs out of memory or over the limit.

    Sources: GDSF is Cherkasova (1998); DTR is Kirisame et al., "Dynamic tensor rematerialization"
    (2021), with h_local and h_eq; next read is Belady (1966).
    """
    memory = Contents(schedule, budget_bytes)
    for value in schedule.once:
        if not _bring(memory, (value,), policy, limit_ns):
            return None
        memory.advance(value)
    if not _bring(memory, schedule.outputs, policy, limit_ns):
        return None
    return tuple(memory.sequence)


def _bring(memory: Contents, wanted: tuple[int, ...], policy: Policy, limit_ns: float) -> bool:
    """Have all of these in memory at once; False when that does not work out."""
    inputs = memory.schedule.inputs
    stack: list[tuple[int, tuple[int, ...]]] = [(-1, wanted)]  # (value under way, what it reads)
    memory.pins[list(wanted)] += 1
    while stack:
        value, reads = stack[-1]
        missing = next((read for read in reads if not memory.held[read]), None)
        if missing is not None:
            stack.append((missing, inputs[missing]))
            memory.pins[list(inputs[missing])] += 1
            continue
        if value >= 0:
            if not _make_room(memory, value, policy):
                return False
            memory.compute(value)
            if memory.spent_ns > limit_ns or memory.clock > MOST * len(memory.schedule.once):
                return False
        memory.pins[list(reads)] -= 1
        stack.pop()
    return True


def _make_room(memory: Contents, value: int, policy: Policy) -> bool:
    """Drop until this value and its scratch fit."""
    wanted = memory.schedule.sizes[value] + memory.schedule.scratch[value]
    while memory.free_bytes < wanted:
        victim = _victim(memory, value, policy)
        if victim is None:
            return False
        memory.drop(victim)
    return True


def _victim(memory: Contents, value: int, policy: Policy) -> int | None:
    """What to drop for the computation of this value."""
    loose = memory.held & (memory.pins == 0)
    unread = np.flatnonzero(loose & (memory.next_read == NEVER))
    if unread.size:
        return int(unread[memory.sizes[unread].argmax()])
    if not policy.online and not loose.any():
        loose = memory.held.copy()
        loose[list(memory.schedule.inputs[value])] = False
    indices = np.flatnonzero(loose)
    if not indices.size:
        return None
    scores = policy.score(memory)[indices]
    victim = int(indices[scores.argmin()])
    memory.inflation = memory.priority[victim]
    return victim
