"""Consecutive units of an order, as a small problem of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from tgbench.memory.schedule.tasks import LANE, ONE_LANE, Ints, Tasks, highest, pack, unpacked
from tgbench.memory.schedule.units import Unit

Waits: TypeAlias = "tuple[tuple[int, int], ...]"  # (packed bytes, units that must have run before)
Row: TypeAlias = "tuple[int, int, Waits, Waits]"


@dataclass(frozen=True)
class Window:
    """Consecutive units of an order, to be put in another; sets of units are bit masks.

    Fields:
        rows: for each task of each unit: what it takes while it runs; what its result adds, less
            what surely dies with it; what taking over a donor saves; what else may die.
        before, after: units that it needs, and that need it.
        values: (packed bytes, making unit or −1, readers, whether it outlives the window).
        live: packed bytes when the window begins.
    """

    rows: tuple[tuple[Row, ...], ...]
    before: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, int, int, bool], ...]
    live: int

    def run(self, unit: int, done: int, live: int) -> tuple[int, int]:
        """Run a unit: the highest step of any class, and the packed bytes live afterwards."""
        peak = 0
        for rise, settles, donors, dying in self.rows[unit]:
            during = live + rise
            for saved, others in donors:
                if others & done == others:
                    during -= saved
                    break
            if during >= ONE_LANE:
                during = highest(during)
            if during > peak:
                peak = during
            live += settles
            for size, others in dying:
                if others & done == others:
                    live -= size
        return peak, live

    def steps(self, order: Sequence[int]) -> tuple[list[int], int]:
        """The highest step of each unit, in an order, and the packed bytes live at the end."""
        found, done, live = [], 0, self.live
        for unit in order:
            peak, live = self.run(unit, done, live)
            done |= 1 << unit
            found.append(peak)
        return found, live

    @cached_property
    def ancestors(self) -> list[int]:
        found: list[int] = []
        for before in self.before:
            mask = before
            for unit in bits(before):
                mask |= found[unit]
            found.append(mask)
        return found

    @cached_property
    def descendants(self) -> list[int]:
        found = [0] * len(self.rows)
        for unit in range(len(self.rows) - 1, -1, -1):
            for user in self.after[unit]:
                found[unit] |= found[user] | 1 << user
        return found

    @cached_property
    def bound(self) -> int:
        """No order of this window has a lower peak: what must be live while each unit runs."""
        count = len(self.rows)
        if not count:
            return highest(self.live)
        lanes = max(1, -(-self._total.bit_length() // LANE))
        forced = np.zeros((lanes, count), np.int64)
        passing = self.live - sum(size for size, maker, _, _ in self.values if maker < 0)
        for size, maker, readers, outlives in self.values:
            there = self.descendants[maker] if maker >= 0 else (1 << count) - 1
            if not outlives:
                until = readers
                for reader in bits(readers):
                    until |= self.ancestors[reader]
                there &= until
            forced += np.outer(_padded(size, lanes), _flags(there, count))
        everything = (1 << count) - 1
        peak = 0
        for unit in range(count):
            done = everything & ~self.descendants[unit]
            live = passing + pack(forced[:, unit].tolist())
            peak = max(peak, self._least(unit, done, live))
        return peak

    def _least(self, unit: int, done: int, live: int) -> int:
        """The highest step of a unit, if whatever may die does and the largest donor gives."""
        peak = 0
        for rise, settles, donors, dying in self.rows[unit]:
            able = [[*unpacked(saved)] for saved, others in donors if others & done == others]
            saved = pack(map(max, zip_longest(*able, fillvalue=0)))
            peak = max(peak, highest(live + rise - saved))
            live += settles - sum(size for size, others in dying if others & done == others)
        return peak

    @property
    def _total(self) -> int:
        return self.live + sum(size for size, _, _, _ in self.values)


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _flags(mask: int, count: int) -> Ints:
    raw = np.frombuffer(mask.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little")[:count].astype(np.int64)


def _padded(packed: int, lanes: int) -> Ints:
    found = list(unpacked(packed))
    return np.array([*found, *[0] * (lanes - len(found))], np.int64)


@dataclass(frozen=True, slots=True)
class Fate:
    """Who reads a value: units of a window, and whether anybody does after it."""

    size: int  # packed bytes
    readers: int
    outlives: bool


def window_of(
    tasks: Tasks, units: Sequence[Unit], where: Sequence[int], low: int, high: int, live: int
) -> Window:
    """The units `low <= i < high` of an order, in which task t belongs to unit `where[t]`."""
    inside = units[low:high]
    before = [0] * len(inside)
    fates: dict[int, Fate] = {}
    for i, unit in enumerate(inside):
        for task in unit:
            for value in (*tasks.inputs[task], task):
                if low <= where[value] < high and where[value] - low != i:
                    before[i] |= 1 << (where[value] - low)
                if tasks.sizes[value] and value not in fates:
                    fates[value] = _fate(tasks, value, where, low, high)
    after: list[list[int]] = [[] for _ in inside]
    for i, mask in enumerate(before):
        for parent in bits(mask):
            after[parent].append(i)
    values = tuple(
        (fate.size, where[value] - low if where[value] >= low else -1, fate.readers, fate.outlives)
        for value, fate in fates.items()
    )
    rows = tuple(tuple(_rows(tasks, unit, 1 << i, fates)) for i, unit in enumerate(inside))
    return Window(rows, tuple(before), tuple(map(tuple, after)), values, live)


def _fate(tasks: Tasks, value: int, where: Sequence[int], low: int, high: int) -> Fate:
    readers, outlives = 0, tasks.held[value]
    for user in tasks.users[value]:
        if where[user] >= high:
            outlives = True
        elif where[user] >= low:
            readers |= 1 << (where[user] - low)
    return Fate(tasks.sizes[value], readers, outlives)


def _rows(tasks: Tasks, unit: Unit, itself: int, fates: Mapping[int, Fate]) -> Iterator[Row]:
    last = {value: task for task in unit for value in (task, *tasks.inputs[task])}
    for task in unit:
        settles, dying = tasks.sizes[task], []
        for value in (*tasks.inputs[task], task):
            fate = fates.get(value)
            if fate is None or fate.outlives or last[value] != task:
                continue
            others = fate.readers & ~itself
            if not others:
                settles -= fate.size
            elif value != task:
                dying.append((fate.size, others))
        donors = tuple(
            (saved, fates[donor].readers & ~itself)
            for donor, saved in tasks.credits[task]
            if not fates[donor].outlives and last[donor] == task
        )
        yield tasks.sizes[task] + tasks.scratch[task], settles, donors, tuple(dying)
