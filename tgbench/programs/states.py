"""Validity between runs, as patterns that do not mention positions.

After "append at t" the K of every layer holds rows [0, t+1); before the next append, at t' = t + 1,
that is [0, t'). Written over the run's origin u the two states are one pattern, `K: [0:u0]`, and
one small integer stands for it. Programs are keyed by that integer and the bucket class.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from tgbench.base.coords import Coord, Footing, Moving, at, origin_symbol, same
from tgbench.base.memo import Allowance, bytes_of
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.swept import is_swept
from tgbench.graph.graph import Node
from tgbench.programs.lowering import Held, State
from tgbench.runs.buckets import Spot
from tgbench.runs.raster import Raster

Coords: TypeAlias = "tuple[Coord, ...]"
Entry: TypeAlias = "tuple[Node, Region, Coords]"
_Held: TypeAlias = "Mapping[tuple[int, Coords | None], Region]"  # by themselves and their starts
Change: TypeAlias = Callable[[Coord, int], Coord]  # (coordinate, size of its dimension) → another


@dataclass(frozen=True)
class ValidityPattern:
    """What the arena holds, over some run's origin: (node, what is valid, slot start) entries."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(state: State) -> ValidityPattern:
        ordered = sorted(state.items(), key=lambda item: item[0].index)
        return ValidityPattern(tuple((node, held.valid, held.start) for node, held in ordered))

    @property
    def state(self) -> dict[Node, Held]:
        """The state this is, wherever the origin is."""
        return {node: Held(region, start) for node, region, start in self.entries}

    @cached_property
    def is_fixed(self) -> bool:
        """Whether no run moves it: all boxes are numbers, and stop where their dimensions do."""
        return all(
            type(a) is int and type(b) is int and b == size
            for node, region, _ in self.entries
            for box in region
            for (a, b), size in zip(box, node.shape, strict=True)
        ) and all(type(form) is int for _, _, start in self.entries for form in start)

    @cached_property
    def is_swept(self) -> bool:
        """Whether tables are in it: what a run of another place moves has none."""
        boxes = [box for _, region, _ in self.entries for box in region]
        forms = [form for box in boxes for side in box for form in side]
        forms += [form for _, _, start in self.entries for form in start]
        return any(isinstance(form, Moving) and is_swept(form.terms) for form in forms)

    def changed(self, change: Change, stop: Change | None = None) -> ValidityPattern:
        """The same with every coordinate rewritten; where boxes stop, by `stop` if it is given.

        Equal layers hold the same elements of nodes of the same shape: each is rewritten once.
        """
        ends, known = change if stop is None else stop, dict[Any, tuple[Region, Coords]]()
        entries: list[Entry] = []
        for node, region, start in self.entries:
            key = region, start, node.shape
            found = known.get(key)
            if found is None:
                boxes = [_rewritten(box, node.shape, change, ends) for box in region]
                moved = [change(form, size) for form, size in zip(start, node.shape, strict=True)]
                found = known[key] = Region(tuple(boxes)), tuple(moved)
            entries.append((node, *found))
        return ValidityPattern(tuple(entries))

    def at(self, origin: Sequence[int]) -> ValidityPattern:
        """The same at one origin: numbers."""
        return self.changed(lambda form, size: at(form, origin))

    @cached_property
    def regions(self) -> dict[Node, tuple[Region, tuple[Coord, ...]]]:
        """What is valid of every node, of a pattern of numbers, and where its slot starts."""
        return {node: (region, start) for node, region, start in self.entries}

    @cached_property
    def alike(self) -> tuple[tuple[Region, Coords, tuple[Node, ...]], ...]:
        """What is valid and where its slot starts, each with all nodes of which that is so."""
        nodes = dict[tuple[Region, Coords], list[Node]]()
        for node, region, start in self.entries:
            nodes.setdefault((region, start), []).append(node)
        return tuple((*key, tuple(those)) for key, those in nodes.items())

    def holds(self, other: ValidityPattern) -> bool:
        """Whether all that another pattern counts on is there, where one stands.

        A pattern may name boxes that are empty elsewhere; it is not for such places.
        """
        there, seen = self.regions, set[tuple[int, int]]()  # equal layers' regions are one object
        for node, counted, start in other.entries:
            region, first = there.get(node, _NOWHERE)
            if first is None or not all(map(same, first, start)):
                return False
            pair = id(region), id(counted)
            if pair in seen:
                continue
            if not all(a < b for box in counted for a, b in box) or not region.contains(counted):
                return False
            seen.add(pair)
        return True

    def within(self, raster: Raster, kept: Container[Node]) -> ValidityPattern:
        """Less of a pattern of numbers: whole tiles of nodes that are kept."""
        found: list[Entry] = []
        for node, (region, start) in self.regions.items():
            left = raster.within(region, node.shape) if node in kept else EMPTY
            if left.boxes:
                found.append((node, left, start))
        return ValidityPattern(tuple(found))


def _rewritten(box: Box, shape: Sequence[int], change: Change, stop: Change) -> Box:
    sides = zip(box, shape, strict=True)
    return Box([(change(a, size), stop(b, size)) for (a, b), size in sides])


_NOWHERE: tuple[Region, None] = EMPTY, None
EMPTY_STATE = ValidityPattern(())
NOTHING = 0  # the number of it
MOST_PLACES = 1_000  # where states are remembered as numbers
MOST_MOVES = 20_000  # of which it is remembered what they make of a state


class States:
    """All patterns seen, each with its small integer; 0 is the empty one.

    Fields:
        patterns: by number.
        size_bytes: what they take.
        windows: of nodes that slide, along which dimension and how many elements.
    """

    def __init__(self, allowance: Allowance | None = None) -> None:
        self._allowance = Allowance() if allowance is None else allowance
        self.windows: Mapping[Node, tuple[int, int]] = {}
        self._begin()

    def _begin(self) -> None:
        memo = self._allowance.memo
        self._moves, self._rounded = memo(MOST_MOVES), memo(MOST_PLACES)
        self._here, self._held = memo(MOST_PLACES), memo(MOST_MOVES)
        self._numbers: dict[ValidityPattern, int] = {EMPTY_STATE: 0}
        self.patterns: list[ValidityPattern] = [EMPTY_STATE]
        self.size_bytes = 0.0

    def number(self, pattern: ValidityPattern) -> int:
        found = self._numbers.get(pattern)
        if found is None:
            self.size_bytes += bytes_of(pattern)
            self.patterns.append(pattern)  # first: an interrupt in between wastes a number
            found = self._numbers[pattern] = len(self.patterns) - 1
        return found

    def forget_others(self, number: int) -> int:
        """Drop every pattern but one (and the empty one); returns that one's new number.

        What names numbers goes before what they stand for, in case of an interrupt.
        """
        kept = self.patterns[number]
        self._begin()
        return self.number(kept)

    def __len__(self) -> int:
        return len(self.patterns)

    def moved(self, number: int, before: Spot | None, now: Spot) -> int:
        """The state left by the run `before`, written over the origin of the run `now`."""
        if number == 0 or before is None:
            return 0
        number = self._plain(number, before.origin)
        if self.patterns[number].is_fixed:
            return number
        if before.kind is now.kind or before.kind == now.kind:
            ends = zip(before.origin, now.origin, strict=True)
            delta = tuple([b - a for a, b in ends])
            return self._moves.get((number, delta), self._shifted, number, delta)
        key = number, before.origin, now.origin
        return self._moves.get(key, self._carried, number, before.origin, now.origin)

    def _plain(self, number: int, origin: Sequence[int]) -> int:
        """A state left at an origin, as numbers where it has tables."""
        pattern = self.patterns[number]
        if pattern.is_fixed or not pattern.is_swept:
            return number
        return self.number(self.here(number, origin))

    def _shifted(self, number: int, delta: Sequence[int]) -> int:
        """To a run of the same class."""
        return self.number(self.patterns[number].changed(lambda form, size: _shifted(form, delta)))

    def _carried(self, number: int, before: Sequence[int], now: Sequence[int]) -> int:
        """To a run of another class."""
        pattern = self.patterns[number].changed(
            lambda form, size: at(form, before),
            lambda form, size: _recognised(at(form, before), now, size),
        )
        if self.windows:
            entries = [self._with_window(entry, now) for entry in pattern.entries]
            pattern = ValidityPattern(tuple(entries))
        return self.number(pattern)

    def _with_window(self, entry: Entry, now: Sequence[int]) -> Entry:
        """A window that ends where the origin is begins so many elements before it, wherever that
        is: as in runs of the same class.
        """
        node, region, start = entry
        if node not in self.windows or not region.boxes:
            return entry
        axis, extent = self.windows[node]
        end = region.boxes[-1][axis][1]
        if type(end) is not Moving or at(end, now) - extent != start[axis]:
            return entry
        return node, region, (*start[:axis], end - extent, *start[axis + 1 :])

    def here(self, number: int, origin: Sequence[int]) -> ValidityPattern:
        """A state at one origin: numbers."""
        pattern = self.patterns[number]
        if pattern.is_fixed:
            return pattern
        return self._here.get((number, tuple(origin)), pattern.at, origin)

    def are_there(
        self, wanted: int, origin: Sequence[int], number: int, last: Sequence[int]
    ) -> bool:
        """Whether one state at its origin is part of another one; see `ValidityPattern.holds`."""
        if wanted == number and self.patterns[wanted].is_fixed:
            return True
        number = self._plain(number, last)
        key = wanted, number, len(origin)
        with Footing((*origin, *last)):  # over both, so that it is known at places never seen
            return self._held.get(key, self._are_there, *key)

    def _are_there(self, wanted: int, number: int, count: int) -> bool:
        """Where entries of the second origin stand behind so many of the first."""
        return self._behind(number, count).holds(self.patterns[wanted])

    def _behind(self, number: int, count: int) -> ValidityPattern:
        """A state over entries that stand behind others."""
        pattern = self.patterns[number]
        if pattern.is_fixed:
            return pattern
        return pattern.changed(lambda form, size: _further(form, count))

    def reach(
        self,
        wanted: int,
        places: Callable[[int], Sequence[int]],
        start: int,
        number: int,
        last: Sequence[int],
    ) -> int | None:
        """The last of all starts up to one, where one state is part of another one.

        Args:
            places: the origin for a start. The earlier that is, the less is counted on.
            last: the origin of the other state.

        Returns:
            None where it is at no start.
        """  # fmt: skip
        there = self.here(number, last).regions
        for counted, first, nodes in self.patterns[wanted].alike:
            parts = (there.get(node, _NOWHERE) for node in nodes)
            held = {(id(region), begins): region for region, begins in parts}

            def is_there(
                start: int, counted: Region = counted, first: Coords = first, held: _Held = held
            ) -> bool:
                origin = places(start)
                here, boxes = tuple([at(form, origin) for form in first]), counted.at(origin)
                return all(a < b for box in boxes for a, b in box) and all(
                    begins == here and region.contains(boxes)
                    for (_, begins), region in held.items()
                )

            if not is_there(start):
                low, high = 0, start - 1
                while low < high:
                    middle = (low + high + 1) // 2
                    low, high = (middle, high) if is_there(middle) else (low, middle - 1)
                if low > high or not is_there(low):
                    return None
                start = low
        return start

    def within(self, number: int, last: Spot | None, raster: Raster, kept: Container[Node]) -> int:
        """What of the state that the run `last` left is whole tiles of what is kept."""
        if number == 0 or last is None:
            return 0
        place = None if self.patterns[number].is_fixed else last.origin
        key = number, place, raster.parts
        return self._rounded.get(key, self._tiles, number, last.origin, raster, kept)

    def _tiles(
        self, number: int, origin: Sequence[int], raster: Raster, kept: Container[Node]
    ) -> int:
        return self.number(self.here(number, origin).within(raster, kept))


def _shifted(form: Coord, delta: Sequence[int]) -> Coord:
    """The same number, over an origin that lies `delta` further."""
    if not isinstance(form, Moving):
        return form
    const = form.const - sum(k * delta[i] for i, k in form.terms)
    return Moving(const, form.terms, form.per)


def _further(form: Coord, count: int) -> Coord:
    """The same number, over an origin with so many more entries in front."""
    if not isinstance(form, Moving):
        return form
    return Moving(form.const, tuple([(i + count, k) for i, k in form.terms]), form.per)


def _recognised(value: int, origin: Sequence[int], size: int) -> Coord:
    """A number inside its dimension that equals the origin is written as the origin.

    It is asked where boxes stop: what grows, grows there. A start that equals the origin once (the
    first column behind a padding, say) stays where it is, and would fall behind run after run.

    Which way it is written changes no answer: guards hold every form to what was decided from it.
    """
    if 0 < value < size:
        for i, start in enumerate(origin):
            if start == value:
                return origin_symbol(i)
    return value


def describe(state: Mapping[Node, Held]) -> str:
    """One line per node: what of it is valid."""
    return "\n".join(f"{node.name}: {held.valid}" for node, held in state.items())
