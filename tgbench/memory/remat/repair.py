"""Two passes over a tape: drop values until it fits a budget, and keep values while it still fits.

`repair` takes a step that holds too much and looks at every value that is live there and not read.
To *drop* it is to compute it again just before its next read:

    before   a . . . . a        a is live over a step with excess
    after    a .       a' a     a' computes a again, from what is live there

What a' reads may be gone by then. Each such input is either *extended*, where there is room, or
computed again too; together they are the *closure* of the drop. The drop with the least cost for
each byte of excess that goes is made, and so on.

`vacuum` is the inverse: it takes computations out that are not needed, because the value can be
kept from its last read on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from tgbench.memory.remat.tape import Ints, Tape, record


@dataclass(frozen=True, slots=True)
class Taste:
    """How a repair weighs its candidates.

    Fields:
        noise: the standard deviation of the logarithm of a random factor on every score.
        thrift: bytes of extended inputs over steps with excess, for each byte that is dropped.
    """

    noise: float = 0.0
    thrift: float = 0.75


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A candidate: what to compute, where, and what that brings.

    Fields:
        before: the step in front of which it is inserted.
        closure: values in schedule order.
        moved: the step that it replaces; -1 for none.
        cost_ns: of the closure, less what is dead then.
        relief: bytes of excess that go, summed over steps.
    """

    before: int
    closure: tuple[int, ...]
    moved: int
    cost_ns: float
    relief: int

    def made(self, tape: Tape) -> Tape:
        """The tape after it."""
        sequence = list(tape.sequence)
        if self.moved >= 0:
            del sequence[self.moved]  # it lies behind `before`
        sequence[self.before : self.before] = self.closure
        return record(tape.schedule, sequence)

    @property
    def score(self) -> float:
        """Nanoseconds for each byte of relief; where nothing costs anything, the most relief."""
        return (max(self.cost_ns, 0.0) + TINY_NS) / self.relief

    def key(self, tape: Tape) -> tuple[int, ...]:
        """Tells it from other changes, also where steps have shifted."""
        return (tape.sequence[self.before - 1], self.moved >= 0, *self.closure)


TINY_NS = 1e-6  # decides between changes that cost nothing
PATIENCE = 20  # changes that do not reduce the excess, until a repair gives up


def repair(
    tape: Tape, budget_bytes: int, limit_ns: float, taste: Taste, random: Random
) -> Tape | None:
    """The tape with values dropped until it fits; None where that fails or costs over the limit."""
    failed: set[tuple[int, ...]] = set()
    while tape.peak_bytes > budget_bytes and len(failed) < PATIENCE:
        excess = tape.held - budget_bytes
        change = _best_change(tape, excess, taste, random, limit_ns - tape.cost_ns, failed)
        if change is None:
            return None
        after = change.made(tape)
        if _total(after.held - budget_bytes) < _total(excess):
            tape = after
        else:
            failed.add(change.key(tape))
    return tape if tape.peak_bytes <= budget_bytes and tape.cost_ns <= limit_ns else None


def _total(excess: Ints) -> int:
    return int(excess.clip(0).sum())


def _best_change(
    tape: Tape,
    excess: Ints,
    taste: Taste,
    random: Random,
    left_ns: float,
    failed: set[tuple[int, ...]],
) -> Recomputation | None:
    """The change with the best score at one step with excess."""
    step = _step_with_excess(excess, taste, random)
    best, least = None, math.inf
    for event in _loose(tape, step):
        luck = math.exp(random.gauss(0.0, taste.noise)) if taste.noise else 1.0
        for change in _changes(tape, excess, event, step, taste.thrift, left_ns, least / luck):
            if change.score * luck < least and change.key(tape) not in failed:
                best, least = change, change.score * luck
    return best


def _changes(
    tape: Tape,
    excess: Ints,
    event: int,
    step: int,
    thrift: float,
    left_ns: float,
    least: float,
) -> Iterator[Recomputation]:
    """What frees the bytes of this result at this step, with a score below `least`."""
    reader = tape.reads[event][-1]
    if reader < len(tape.sequence):
        change = _advance(tape, excess, reader, step)
        if change is not None and change.relief > 0:
            yield change
            least = min(least, change.score)
    change = _drop(tape, excess, event, step, thrift, left_ns, least)
    if change is not None and change.relief > 0:
        yield change


def _advance(tape: Tape, excess: Ints, reader: int, step: int) -> Recomputation | None:
    """Computing something earlier, before this step, so that what it reads last is free sooner."""
    schedule, value = tape.schedule, tape.sequence[reader]
    sources = [tape.latest(read, reader) for read in schedule.inputs[value]]
    freed = [event for event in sources if tape.reads[event][-1] == reader]
    before = max(max(sources), max(_last_but_one(tape, event) for event in freed)) + 1
    if before > step:
        return None
    after = excess[before:reader].copy()
    after += schedule.sizes[value] - sum(schedule.sizes[tape.sequence[e]] for e in freed)
    there = int(after[0]) - schedule.scratch[tape.sequence[before]]  # as the step before, roughly
    there += schedule.scratch[value] - schedule.sizes[tape.sequence[before]]
    there += sum(schedule.sizes[tape.sequence[e]] for e in freed)
    relief = _total(excess[before:reader]) - _total(after) - max(0, there)
    return Recomputation(before, (value,), reader, 0.0, relief)


def _last_but_one(tape: Tape, event: int) -> int:
    reads = tape.reads[event]
    return reads[-2] if len(reads) > 1 else event


def _step_with_excess(excess: Ints, taste: Taste, random: Random) -> int:
    if not taste.noise:
        return int(excess.argmax())
    over = np.flatnonzero(excess > 0)
    return int(over[random.randrange(over.size)])


def _loose(tape: Tape, step: int) -> Iterator[int]:
    """The computations whose results are live at this step and not read there, cheap ones first."""
    read = tape.schedule.inputs[tape.sequence[step]]
    live = np.flatnonzero(tape.last[:step] > step)
    for event in live[np.argsort(tape.rate[live], kind="stable")].tolist():
        if tape.sequence[event] not in read:
            yield event


def _drop(
    tape: Tape,
    excess: Ints,
    event: int,
    step: int,
    thrift: float,
    left_ns: float,
    least: float,
) -> Recomputation | None:
    """Dropping the result of a computation over this step; None where it costs too much."""
    schedule, reads = tape.schedule, tape.reads
    value = tape.sequence[event]
    index = bisect_right(reads[event], step)
    before = reads[event][index]
    previous = reads[event][index - 1] if index else event
    size = schedule.sizes[value]
    cost = schedule.costs[value] * (index > 0)
    lowest = previous + 1
    after = excess[:before].copy()
    after[lowest:] -= size
    most = _total(excess[lowest:before]) - _total(after[lowest:])
    left_ns = min(left_ns, least * most)
    if cost > left_ns:
        return None
    closure, todo, extended = {value}, [value], 0
    kept: set[int] = set()
    while todo:
        for read in schedule.inputs[todo.pop()]:
            if read in closure or read in kept:
                continue
            source = tape.latest(read, before)
            start = reads[source][-1] + 1
            if start > before:
                continue  # live there
            bytes_read = schedule.sizes[read]
            worst = int(after[start:].max(initial=-bytes_read)) + bytes_read
            if worst <= 0 or extended + bytes_read <= thrift * size:
                extended += bytes_read
                after[start:] += bytes_read
                kept.add(read)
                lowest = min(lowest, start)
                continue
            cost += schedule.costs[read]
            if cost > left_ns:
                return None
            closure.add(read)
            todo.append(read)
    relief = _total(excess[lowest:before]) - _total(after[lowest:])
    ordered = tuple(sorted(closure))
    relief -= _inserted(tape, excess, before, ordered, extended - size)
    return Recomputation(before, ordered, -1, cost, relief)


def _inserted(
    tape: Tape, excess: Ints, before: int, closure: tuple[int, ...], change_bytes: int
) -> int:
    """Bytes of excess, summed over the steps of the closure itself."""
    schedule = tape.schedule
    if before < len(tape.sequence):
        following = tape.sequence[before]
        live = int(excess[before]) - schedule.sizes[following] - schedule.scratch[following]
        live += schedule.sizes[following] * (before in tape.taken)
    else:
        end = before - 1
        gone = np.flatnonzero(tape.last == end).tolist()
        live = int(excess[end]) - schedule.scratch[tape.sequence[end]]
        live -= sum(schedule.sizes[tape.sequence[event]] for event in gone)
    live += change_bytes
    if len(closure) == 1:
        return max(0, live + schedule.sizes[closure[0]] + schedule.scratch[closure[0]])
    last = {value: value for value in closure}
    for value in closure:
        last.update({read: value for read in schedule.inputs[value] if read in last})
    last[closure[-1]] = -1  # what all this is for
    total = 0
    for value in closure:
        gone = [read for read in schedule.inputs[value] if last.get(read) == value]
        taken = schedule.sizes[value] * any(read in gone for read in schedule.over[value])
        live += schedule.sizes[value] - taken
        total += max(0, live + schedule.scratch[value])
        live -= sum(schedule.sizes[read] for read in gone) - taken
    return total


# --- keeping --------------------------------------------------------------------------------------


def vacuum(tape: Tape, budget_bytes: int) -> Tape:
    """The tape without the repeated computations whose values can be kept instead."""
    while True:
        step = _needless(tape, budget_bytes)
        if step is None:
            return tape
        tape = tape.without((step,))


def _needless(tape: Tape, budget_bytes: int) -> int | None:
    """The most expensive repeated computation that there is room to do without."""
    costs = tape.schedule.costs
    excess = tape.held - budget_bytes
    dearest = sorted(tape.repeats, key=lambda step: -costs[tape.sequence[step]])
    likely = (step for step in dearest if _may_fit_without(tape, excess, step))
    return next((at for at in likely if tape.without((at,)).peak_bytes <= budget_bytes), None)


def _may_fit_without(tape: Tape, excess: Ints, step: int) -> bool:
    """Whether the value can be kept from its last read on, as if no bytes were taken over."""
    schedule, value = tape.schedule, tape.sequence[step]
    start = tape.reads[tape.latest(value, step)][-1] + 1
    if start >= step:
        return True
    after = excess[start:step] + schedule.sizes[value]
    for read in schedule.inputs[value]:
        reads = tape.reads[tape.latest(read, step)]
        if reads[-1] == step:
            end = reads[-2] if len(reads) > 1 else tape.latest(read, step)
            after[max(end + 1 - start, 0) :] -= schedule.sizes[read]
    return int(after.max()) <= 0
