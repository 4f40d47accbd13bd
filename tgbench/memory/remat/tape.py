"""A sequence of computations, and what is live while it runs.

A value is live from each of its computations to the last read before it is computed again; an
output, after its last computation, to the end. Where its last reader takes over its bytes, it is
not live there any more. A computation whose result nobody reads is *dead* and is left out, so a
value that was dropped before its first read is simply computed later.

    schedule   a → b → c, and d reads a and c
    sequence   a b c a d      a is dropped after b and computed again for d

    step     0  1  2  3  4
    a        #  #  .  #  #    two intervals, each with bytes of its own
    b           #  #
    c              #  #  #
    d                    #
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tgbench.base.words import counted, format_bytes
from tgbench.memory.remat.schedule import Schedule

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tape:
    """Computations in the order in which they run, none of them dead.

    Fields:
        sequence: positions in the schedule.
        reads: for each computation, the steps that read its result; the length for the end.
    """

    schedule: Schedule
    sequence: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]

    @cached_property
    def cost_ns(self) -> float:
        """Nanoseconds of all computations."""
        return self.schedule.cost_ns(self.sequence)

    @property
    def extra(self) -> float:
        """The share of time that goes into computing again; 0 where nothing is."""
        least = self.schedule.least_cost_ns
        return self.cost_ns / least - 1 if least else 0.0

    @property
    def worth(self) -> tuple[float, int]:
        """What is minimised: the cost, then the number of computations."""
        return self.cost_ns, len(self.sequence)

    @cached_property
    def last(self) -> Ints:
        """For each computation, the last step that reads its result."""
        return np.array([reads[-1] for reads in self.reads], np.int64)

    @cached_property
    def taken(self) -> dict[int, int]:
        """Computations whose bytes are taken over, by the step that does."""
        found: dict[int, int] = {}
        for step, value in enumerate(self.sequence):
            sources = (self.latest(read, step) for read in self.schedule.over[value])
            dying = next((source for source in sources if self.reads[source][-1] == step), None)
            if dying is not None:
                found[step] = dying
        return found

    @cached_property
    def stop(self) -> Ints:
        """For each computation, the first step at which its bytes are not its own any more."""
        found = self.last + 1
        found[list(self.taken.values())] -= 1
        return found

    @cached_property
    def size(self) -> Ints:
        """For each computation, the bytes of its result."""
        sizes = self.schedule.sizes
        return np.array([sizes[value] for value in self.sequence], np.int64)

    @cached_property
    def rate(self) -> Floats:
        """For each computation, nanoseconds a byte."""
        costs, sizes = self.schedule.costs, self.schedule.sizes
        return np.array([costs[v] / max(sizes[v], 1) for v in self.sequence], np.float64)

    @cached_property
    def held(self) -> Ints:
        """Bytes live at each step: residents, values and scratch."""
        steps = len(self.sequence)
        ends = np.bincount(self.stop, weights=self.size, minlength=steps + 2)[:steps]
        scratch = self.schedule.scratch
        now = np.array([scratch[value] for value in self.sequence], np.int64)
        live = np.cumsum(self.size - ends.astype(np.int64))
        return live + now + self.schedule.resident_bytes

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes live at one step."""
        return int(self.held.max(initial=self.schedule.resident_bytes))

    @cached_property
    def steps_of(self) -> dict[int, list[int]]:
        """For each value, the steps that compute it."""
        steps: dict[int, list[int]] = {}
        for step, value in enumerate(self.sequence):
            steps.setdefault(value, []).append(step)
        return steps

    def latest(self, value: int, before: int) -> int:
        """The last step before this one that computes the value; -1 for none."""
        steps = self.steps_of.get(value, ())
        index = bisect_left(steps, before)
        return steps[index - 1] if index else -1

    @cached_property
    def repeats(self) -> tuple[int, ...]:
        """The steps that compute a value again."""
        seen: set[int] = set()
        found = []
        for step, value in enumerate(self.sequence):
            if value in seen:
                found.append(step)
            seen.add(value)
        return tuple(found)

    def __str__(self) -> str:
        return (
            f"{counted(len(self.sequence), 'computation')}, {len(self.repeats)} of them repeated: "
            f"{self.extra:.2%} extra time in {format_bytes(self.peak_bytes)}"
        )

    def without(self, steps: Iterable[int]) -> Tape:
        """The sequence less these computations, each of a value that was computed before."""
        gone = set(steps)
        return record(self.schedule, [v for t, v in enumerate(self.sequence) if t not in gone])


def record(schedule: Schedule, sequence: Sequence[int]) -> Tape:
    """The sequence without its dead computations, and who reads what.

    Raises `ValueError` when something is read, or asked for at the end, before it is computed.
    """
    while True:
        reads = _reads(schedule, sequence)
        alive = _alive(reads)
        if all(alive):
            return Tape(schedule, tuple(sequence), tuple(map(tuple, reads)))
        sequence = [value for value, read in zip(sequence, alive, strict=True) if read]


def _reads(schedule: Schedule, sequence: Sequence[int]) -> list[list[int]]:
    latest = [-1] * len(schedule.values)
    reads: list[list[int]] = [[] for _ in sequence]
    inputs = schedule.inputs
    missing: list[int] = []
    reads.append(missing)  # what latest = -1 refers to
    for step, value in enumerate(sequence):
        for read in inputs[value]:
            reads[latest[read]].append(step)
        latest[value] = step
    for value in schedule.outputs:
        reads[latest[value]].append(len(sequence))
    if missing:
        raise ValueError(f"step {missing[0]} reads a value that was not computed before")
    return reads[:-1]


def _alive(reads: list[list[int]]) -> list[bool]:
    """Which results reach an output: a read by a dead computation does not count."""
    alive = [False] * len(reads) + [True]
    for step in range(len(reads) - 1, -1, -1):
        alive[step] = any(alive[reader] for reader in reads[step])
    return alive[:-1]
