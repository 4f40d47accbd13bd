"""The search for an order with a lower peak, part by part.

best first    all states that can matter; if it ends, the answer is the best there is
beam          the few states with the fewest live bytes
lowering      one step that makes the peak at a time: shift a value out of it, or search a
              short window around it
kicks         random shifts near the peak, then lowering again; what is no worse stays
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeAlias

from tgbench.base.stopping import Limits
from tgbench.memory.schedule.tasks import Tasks, covers, highest
from tgbench.memory.schedule.units import Unit, cuts_of
from tgbench.memory.schedule.window import Window, bits, window_of

Progress: TypeAlias = Callable[[str], None]
Path: TypeAlias = "tuple[int, Path] | None"  # the last unit, and what came before it
Ready: TypeAlias = "tuple[int, ...]"

EXACT_SHARE = 8  # the exact search of a part may take this fraction of the steps that are left
EXACT_BITS = 1 << 31  # and its states about so much memory
BEAM_WIDTHS = (1, 4)
WINDOWS = (8, 16, 32)  # units
WINDOW_STEPS = 20_000
KICKS = (1, 2, 4)  # shifts at once
KICK_REACH = 10  # units before and after the peak
PATIENCE = 300  # kicks in a row that may lead nowhere


# --- through the states ---------------------------------------------------------------------------


def _unwound(path: Path) -> list[int]:
    order = []
    while path is not None:
        unit, path = path
        order.append(unit)
    return order[::-1]


def _first(window: Window) -> Ready:
    return tuple(unit for unit, before in enumerate(window.before) if not before)


def _next(window: Window, ready: Ready, unit: int, done: int) -> Ready:
    """What may run when `unit` has, `done` included."""
    before = window.before
    freed = [user for user in window.after[unit] if before[user] & done == before[user]]
    rest = [other for other in ready if other != unit]
    return tuple(sorted(rest + freed) if freed else rest)


def _moves(
    window: Window, done: int, live: int, ready: Ready, peak: int, below: int
) -> list[tuple[int, int, int]]:
    """(unit, its highest step, bytes live afterwards) of what may run next below a limit.

    One that takes no more than it frees, and no more than was taken already, is the only one: any
    order from here is no worse when that unit comes first.
    """
    found = []
    for unit in ready:
        high, after = window.run(unit, done, live)
        if high <= peak and high < below and covers(live, after):
            return [(unit, high, after)]
        if high < below:
            found.append((unit, high, after))
    return found


def best_first(
    window: Window, floor: int, below: int, limits: Limits, limit: int
) -> tuple[list[int] | None, bool]:
    """The order with the lowest peak under `below`, or None; and whether the search ended.

    Peaks up to `floor` are as good as one another. A search that ended missed nothing.
    """
    everything = (1 << len(window.rows)) - 1
    reached = {0: floor}
    heap: list[tuple[int, int, int, int, int, Ready, Path]] = [
        (floor, 0, 0, 0, window.live, _first(window), None)
    ]
    serial, last = 0, limits.steps + limit
    while heap:
        peak, count, _, done, live, ready, path = heapq.heappop(heap)
        if done == everything:
            return _unwound(path), True
        if reached[done] < peak:
            continue
        if limits.steps >= last or limits.reached():
            return None, False
        limits.steps += len(ready)
        for unit, high, after in _moves(window, done, live, ready, peak, below):
            child, worst = done | 1 << unit, max(peak, high)
            if reached.get(child, below) <= worst:
                continue
            reached[child] = worst
            serial += 1
            following = _next(window, ready, unit, child)
            heapq.heappush(heap, (worst, count - 1, serial, child, after, following, (unit, path)))
    return None, True


def beam(window: Window, floor: int, below: int, width: int, limits: Limits) -> list[int] | None:
    """An order with a peak under `below`, keeping the states with the fewest live bytes."""
    states: list[tuple[int, int, int, Ready, Path]] = [
        (0, window.live, floor, _first(window), None)
    ]
    for _ in window.rows:
        children: dict[int, tuple[int, int, int, Ready, Path]] = {}
        for done, live, peak, ready, path in states:
            if limits.reached():
                return None
            limits.steps += len(ready)
            for unit, high, after in _moves(window, done, live, ready, peak, below):
                child, worst = done | 1 << unit, max(peak, high)
                if child not in children or children[child][2] > worst:
                    children[child] = (child, after, worst, ready, (unit, path))
        best = heapq.nsmallest(width, children.values(), key=lambda s: (highest(s[1]), s[2]))
        states = [
            (done, live, peak, _next(window, ready, path[0], done), path)
            for done, live, peak, ready, path in best
            if path is not None
        ]
    return _unwound(min(states, key=lambda state: state[2])[4]) if states else None


# --- an order that is being changed ---------------------------------------------------------------


class LiveOrder:
    """An order of a window's units, and what is live along it.

    Fields:
        order, place: units by position, and positions by unit.
        highs: the highest step of each position.
        states: (units done, packed bytes live) before each position.
    """

    def __init__(self, window: Window, order: Sequence[int]) -> None:
        self.window = window
        self.order = list(order)
        count = len(self.order)
        self.place, self.highs = [0] * count, [0] * count
        self.states: list[tuple[int, int]] = [(0, window.live)] * (count + 1)
        self._follow(0, count)

    @property
    def peak(self) -> int:
        return max(self.highs, default=0)

    def put(self, low: int, units: Sequence[int]) -> None:
        """Change the order from `low` on; the same units as before, otherwise arranged."""
        high = low + len(units)
        self.order[low:high] = units
        self._follow(low, high)

    def _follow(self, low: int, high: int) -> None:
        done, live = self.states[low]
        for i in range(low, high):
            unit = self.order[i]
            self.place[unit] = i
            self.states[i] = (done, live)
            self.highs[i], live = self.window.run(unit, done, live)
            done |= 1 << unit
        self.states[high] = (done, live)

    def stays_below(self, low: int, units: Sequence[int], limit: int, limits: Limits) -> bool:
        """Whether these units, from `low` on, would make no step of `limit` bytes."""
        done, live = self.states[low]
        for unit in units:
            limits.steps += 1
            high, live = self.window.run(unit, done, live)
            if high >= limit:
                return False
            done |= 1 << unit
        return True

    def shifts(self, at: int) -> Iterator[tuple[int, list[int]]]:
        """Ways of getting a value out of position `at`: where a change begins, and what it puts.

        A value is made later, with all that follows from it, or read earlier, with all that
        leads there.
        """
        window, place, now = self.window, self.place, self.order[at]
        needs, leads = window.ancestors[now], window.descendants[now]
        for _, maker, readers, outlives in window.values:
            if maker >= 0 and place[maker] >= at:
                continue
            left = [reader for reader in bits(readers) if place[reader] > at]
            if not left and not outlives:
                continue
            if maker >= 0 and not needs >> maker & 1:
                yield place[maker], self._put_off(place[maker], at, maker)
            if not outlives and not any(leads >> reader & 1 for reader in left):
                yield at, self._brought_forward(at, left)

    def _put_off(self, low: int, at: int, maker: int) -> list[int]:
        later = self.window.descendants[maker] | 1 << maker
        part = self.order[low : at + 1]
        moved = [unit for unit in part if later >> unit & 1]
        return [unit for unit in part if not later >> unit & 1] + moved

    def _brought_forward(self, at: int, readers: Sequence[int]) -> list[int]:
        sooner = 0
        for reader in readers:
            sooner |= self.window.ancestors[reader] | 1 << reader
        part = self.order[at : max(self.place[reader] for reader in readers) + 1]
        moved = [unit for unit in part if sooner >> unit & 1]
        return moved + [unit for unit in part if not sooner >> unit & 1]


# --- the parts ------------------------------------------------------------------------------------


@dataclass
class Stretch:
    """The units between two cuts, in their best order so far, and its peak.

    Fields:
        low: position of the first unit among all.
        order: of the window's units, by their numbers in it.
    """

    low: int
    units: list[Unit]
    window: Window
    order: list[int]
    peak: int


class OrderSearch:
    """Lowers the peak of every part, the worst first, as far as that lowers the whole.

    Fields:
        floor: a peak below this in one part helps nobody, since another one is as high.
        bound: no order has a lower peak.
    """

    def __init__(
        self, tasks: Tasks, units: list[Unit], limits: Limits, rng: random.Random, tell: Progress
    ) -> None:
        self.tasks, self.limits, self.rng, self.tell = tasks, limits, rng, tell
        self.where = [0] * len(tasks.nodes)
        for i, unit in enumerate(units):
            for task in unit:
                self.where[task] = i
        self.parts: list[Stretch] = []
        live = self.bound = 0
        for low, high in pairwise(cuts_of(tasks, units)):
            window = window_of(tasks, units, self.where, low, high, live)
            order = list(range(high - low))
            profile = LiveOrder(window, order)
            self.parts.append(Stretch(low, units[low:high], window, order, profile.peak))
            live = profile.states[-1][1]
            self.bound = max(self.bound, window.bound, highest(live))
        self.floor = self.bound

    @property
    def order(self) -> list[int]:
        """All tasks."""
        return [t for part in self.parts for i in part.order for t in part.units[i]]

    def improve(self) -> None:
        """Work on one part after the other until no other peak is higher than the floor."""
        for part in sorted(self.parts, key=lambda part: -part.peak):
            if part.peak <= self.floor:
                break
            self.tell(f"{len(part.units)} units, peak {part.peak} B, at least {self.floor} B")
            if self._solve(part):
                self.bound = max(self.bound, part.peak)
            self.floor = max(self.floor, part.peak)

    def _solve(self, part: Stretch) -> bool:
        """Lower the peak of a part; whether no lower one is possible, or of use."""
        limit = self.limits.left(EXACT_SHARE * EXACT_BITS // len(part.units)) // EXACT_SHARE
        window, given = part.window, part.order
        found, ended = best_first(window, self.floor, part.peak, self.limits, limit)
        if ended:
            self._offer(part, found or given)
            return True
        starts = [given]
        for width in BEAM_WIDTHS:
            starts.append(beam(window, self.floor, part.peak, width, self.limits) or given)
        for start in starts:
            if part.peak > self.floor:
                self._offer(part, self._lowered(part, LiveOrder(window, start)))
        self._kick(part)
        return part.peak <= self.floor

    def _offer(self, part: Stretch, order: list[int]) -> bool:
        """Take an order that is no worse; whether it is better."""
        peak, before = LiveOrder(part.window, order).peak, part.peak
        if peak < before:
            self.tell(f"peak {peak} B after {self.limits.steps} steps")
        if peak <= before:
            part.order, part.peak = order, peak
        return peak < before

    def _kick(self, part: Stretch) -> None:
        """Disturb the order near its peak and lower it again, until that leads nowhere."""
        fruitless = 0
        while fruitless < PATIENCE and part.peak > self.floor and not self.limits.reached():
            profile = LiveOrder(part.window, part.order)
            self.limits.steps += len(part.order)
            top = profile.highs.index(part.peak)
            for _ in range(self.rng.choice(KICKS)):
                at = top + self.rng.randint(-KICK_REACH, KICK_REACH)
                shifts = list(profile.shifts(min(max(at, 0), len(part.order) - 1)))
                self.limits.steps += len(shifts)
                if shifts:
                    profile.put(*self.rng.choice(shifts))
            better = self._offer(part, self._lowered(part, profile))
            fruitless = 0 if better else fruitless + 1

    def _lowered(self, part: Stretch, profile: LiveOrder) -> list[int]:
        """Lower the steps that make the peak one by one, as long as that raises no other to it."""
        while profile.peak > self.floor and not self.limits.reached():
            at = profile.highs.index(profile.peak)
            changes = chain(self._shifted(profile, at), self._rearranged(part, profile, at))
            change = next(changes, None)
            if change is None:
                break
            profile.put(*change)
        return profile.order

    def _shifted(self, profile: LiveOrder, at: int) -> Iterator[tuple[int, list[int]]]:
        for low, units in profile.shifts(at):
            if self.limits.reached():
                return
            if profile.stays_below(low, units, profile.highs[at], self.limits):
                yield low, units

    def _rearranged(
        self, part: Stretch, profile: LiveOrder, at: int
    ) -> Iterator[tuple[int, list[int]]]:
        """The answers of exact searches of short windows around a step."""
        units = [part.units[i] for i in profile.order]
        where = self._places(part, units)
        for width in WINDOWS:
            for low in self._windows_around(at, width, len(units)):
                high = min(low + width, len(units))
                live = profile.states[low][1]
                window = window_of(self.tasks, units, where, low, high, live)
                found, _ = best_first(
                    window, self.floor, profile.highs[at], self.limits, WINDOW_STEPS
                )
                if found is not None:
                    yield low, [profile.order[low + i] for i in found]

    def _places(self, part: Stretch, units: Sequence[Unit]) -> list[int]:
        """For each task, its unit's position within the part; outside it, before or behind all."""
        where = [-1 if i < part.low else len(units) for i in self.where]
        for i, unit in enumerate(units):
            for task in unit:
                where[task] = i
        return where

    def _windows_around(self, at: int, width: int, count: int) -> list[int]:
        """Where to begin a window that holds a step: in the middle, and somewhere."""
        lowest, highest = max(0, at - width + 1), max(0, min(at, count - width))
        middle = max(0, min(at - width // 2, count - width))
        drawn = self.rng.randint(min(lowest, highest), highest)
        return list(dict.fromkeys((middle, drawn)))
