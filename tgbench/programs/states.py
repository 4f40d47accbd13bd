"""Validity between runs, as patterns that do not mention positions.

After "append at t" the K of every layer holds rows [0, t+1); before the next append, at t' = t + 1,
that is [0, t'). Written over the run's origin u the two states are one pattern, `K: [0:u0]`, and
one small integer stands for it. Programs are keyed by that integer and the bucket class.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias

from tgbench.base.coords import Coord, Footing, Moving, at, origin_symbol, same
from tgbench.base.memo import Allowance, Latest
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.swept import is_swept
from tgbench.graph.graph import Node
from tgbench.programs.held import Held, State
from tgbench.runs.buckets import Spot
from tgbench.runs.raster import Raster

Coords: TypeAlias = "tuple[Coord, ...]"
Entry: TypeAlias = "tuple[Node, Region, Coords]"
_Held: TypeAlias = "Mapping[tuple[int, Coords | None], Region]"  # by themselves and their starts
Gaps: TypeAlias = "tuple[tuple[int, int], ...]"  # (symbol of a start, how far behind an end)
Change: TypeAlias = Callable[[Moving], Coord]

# Of a pattern: a part of it, a box, one of its sides, and a node wherever it is looked up.
PART_BYTES, BOX_BYTES, SIDE_BYTES, NODE_BYTES = 600, 100, 200, 200


class Alike(NamedTuple):
    """Nodes of one shape of which the same is there, as of equal layers.

    Fields:
        valid: what holds values.
        start: where their slots start.
        nodes: by index.
    """

    valid: Region
    start: Coords
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class ValidityPattern:
    """What the arena holds, over some run's origin.

    Fields:
        parts: no two of them alike, by their first nodes. Whatever is done to a pattern is done
            once for the nodes of a part.
    """

    parts: tuple[Alike, ...]

    @staticmethod
    def of(state: State) -> ValidityPattern:
        return ValidityPattern.joined(
            Alike(held.valid, held.start, (node,)) for node, held in state.items()
        )

    @staticmethod
    def joined(parts: Iterable[Alike]) -> ValidityPattern:
        """Of any parts that have no node in common."""
        found = dict[tuple[Region, Coords, tuple[int, ...]], list[tuple[Node, ...]]]()
        for valid, start, nodes in parts:
            found.setdefault((valid, start, nodes[0].shape), []).append(nodes)
        alike = [Alike(valid, start, _by_index(them)) for (valid, start, _), them in found.items()]
        return ValidityPattern(tuple(sorted(alike, key=_first)))

    @property
    def entries(self) -> list[Entry]:
        """Each node, what of it is valid, and where its slot starts; by index."""
        found = [(node, valid, start) for valid, start, nodes in self.parts for node in nodes]
        return sorted(found, key=lambda entry: entry[0].index)

    @property
    def state(self) -> dict[Node, Held]:
        """The state this is, wherever the origin is."""
        return {node: Held(region, start) for node, region, start in self.entries}

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        found = PART_BYTES
        for valid, start, nodes in self.parts:
            a_box = BOX_BYTES + SIDE_BYTES * len(start)
            found += PART_BYTES + NODE_BYTES * len(nodes) + a_box * len(valid.boxes)
        return found

    @cached_property
    def is_fixed(self) -> bool:
        """Whether no run moves it: all boxes are numbers, and stop where their dimensions do."""
        return self.is_numbers and all(
            stop == size
            for valid, _, nodes in self.parts
            for box in valid
            for (_, stop), size in zip(box, nodes[0].shape, strict=True)
        )

    @cached_property
    def is_numbers(self) -> bool:
        """Whether nothing in it follows the origin."""
        for valid, start, _ in self.parts:
            if valid.moves or Moving in map(type, start):
                return False
        return True

    @cached_property
    def is_swept(self) -> bool:
        """Whether tables are in it: what a run of another place moves has none."""
        return not self.is_numbers and any(is_swept(form.terms) for form in self._moving)

    @property
    def _moving(self) -> Iterator[Moving]:
        """Whatever follows the origin: where boxes start and stop, and slots."""
        for valid, start, _ in self.parts:
            sides = (form for box in valid for side in box for form in side)
            yield from (form for form in (*sides, *start) if isinstance(form, Moving))

    @cached_property
    def ahead(self) -> tuple[tuple[int, int], ...]:
        """Where boxes stop beyond a symbol of the origin, and by how much at most."""
        found = dict[int, int]()
        for valid, _, _ in self.parts:
            for box in valid:
                for _, end in box:
                    symbol, more = _ahead(end) or (0, 0)
                    if more:
                        found[symbol] = max(found.get(symbol, 0), more)
        return tuple(found.items())

    @cached_property
    def apart(self) -> frozenset[int]:
        """The symbols of the origin that some number has without the next symbol, as often, or the
        other way round: of one that begins at the one and is as large as the other, it is not
        where that stops, or so far from there.
        """
        found = set[int]()
        for form in self._moving:
            terms = dict(form.terms)
            found |= {i for i, k in form.terms if terms.get(i + 1) != k}
            found |= {i - 1 for i, k in form.terms if terms.get(i - 1) != k}
        return frozenset(found)

    def changed(self, change: Change, stop: Change | None = None) -> ValidityPattern:
        """The same with all that follows the origin rewritten; where boxes stop, by `stop` if it is
        given.
        """
        ends, parts = change if stop is None else stop, list[Alike]()
        for valid, start, nodes in self.parts:
            if valid.moves:
                valid = Region(tuple([_rewritten(box, change, ends) for box in valid.boxes]))
            first = tuple([change(form) if type(form) is Moving else form for form in start])
            parts.append(Alike(valid, first, nodes))
        return ValidityPattern.joined(parts)

    def at(self, origin: Sequence[int]) -> ValidityPattern:
        """The same at one origin: numbers. Boxes may meet there, or be empty."""
        parts = list[Alike]()
        for valid, start, nodes in self.parts:
            if valid.moves:
                boxes = [box for box in valid.at(origin).boxes if not _is_empty(box)]
                valid = Region.of(*boxes) if len(boxes) > 1 else Region(tuple(boxes))
            if valid.boxes:
                first = tuple([at(form, origin) for form in start])
                parts.append(Alike(valid, first, nodes))
        return ValidityPattern.joined(parts)

    @cached_property
    def regions(self) -> dict[Node, tuple[Region, Coords]]:
        """What is valid of every node, and where its slot starts."""
        return {node: (valid, start) for valid, start, nodes in self.parts for node in nodes}

    def holds(self, other: ValidityPattern) -> bool:
        """Whether all that another pattern counts on is there, where one stands.

        A pattern may name boxes that are empty elsewhere; it is not for such places.
        """
        there = self.regions
        for counted, start, nodes in other.parts:
            seen = set[int]()  # a part's regions are one object
            for node in nodes:
                region, first = there.get(node, _NOWHERE)
                if id(region) in seen and first is not None:
                    continue
                if first is None or (first != start and not all(map(same, first, start))):
                    return False
                if any(map(_is_empty, counted.boxes)):
                    return False
                if not region.contains(counted):
                    return False
                seen.add(id(region))
        return True

    def of_those(self, are_kept: Callable[[Node], bool]) -> ValidityPattern:
        """Of some of the nodes."""
        left = []
        for part in self.parts:
            nodes = tuple(filter(are_kept, part.nodes))
            if nodes:
                left.append(part._replace(nodes=nodes))
        return ValidityPattern.joined(left)

    def within(self, raster: Raster, kept: Container[Node]) -> ValidityPattern:
        """Less of a pattern of numbers: whole tiles of nodes that are kept."""
        found = []
        for valid, start, nodes in self.of_those(kept.__contains__).parts:
            left = raster.within(valid, nodes[0].shape)
            if left.boxes:
                found.append(Alike(left, start, nodes))
        return ValidityPattern.joined(found)


def _is_empty(box: Box) -> bool:
    return any(not a < b for a, b in box)


def _rewritten(box: Box, change: Change, stop: Change) -> Box:
    return Box([
        (change(a) if type(a) is Moving else a, stop(b) if type(b) is Moving else b)
        for a, b in box
    ])  # fmt: skip


def _by_index(parts: Sequence[tuple[Node, ...]]) -> tuple[Node, ...]:
    """The nodes of parts, each of which has its own by index."""
    return parts[0] if len(parts) == 1 else tuple(sorted(chain(*parts), key=_index))


def _index(node: Node) -> int:
    return node.index


def _first(part: Alike) -> int:
    return part.nodes[0].index


_NOWHERE: tuple[Region, None] = EMPTY, None
EMPTY_STATE = ValidityPattern(())
NOTHING = 0  # the number of it
MOST_PLACES = 1_000  # where states are remembered as numbers
MOST_MOVES = 20_000  # of which it is remembered what they make of a state


class States:
    """Patterns, each with its small integer; 0 is the empty one.

    Fields:
        patterns: by number. One that is forgotten leaves its number to no other.
        size_bytes: what they take.
        windows: of nodes that slide, along which dimension and how many elements.
    """

    def __init__(self, allowance: Allowance | None = None) -> None:
        self._allowance = Allowance() if allowance is None else allowance
        self.windows: Mapping[Node, tuple[int, int]] = {}
        self._numbers: dict[ValidityPattern, int] = {EMPTY_STATE: NOTHING}
        self.patterns: dict[int, ValidityPattern] = {NOTHING: EMPTY_STATE}
        self.size_bytes = self._last = 0
        self._remember()

    def _remember(self) -> None:
        """Nothing is remembered yet of what becomes of patterns."""
        memo = self._allowance.memo
        self._moves, self._rounded = memo(MOST_MOVES), memo(MOST_PLACES)
        self._here, self._held = memo(MOST_PLACES), memo(MOST_MOVES)
        self._asked = Latest[tuple[int, int], None](MOST_PLACES)

    def number(self, pattern: ValidityPattern) -> int:
        found = self._numbers.get(pattern)
        if found is None:
            self.size_bytes += pattern.size_bytes
            self._last = found = self._last + 1
            self.patterns[found] = pattern  # first: an interrupt in between wastes a number
            self._numbers[pattern] = found
        return found

    def forget_others(self, numbers: Iterable[int]) -> None:
        """Drop every pattern but some, and the empty one.

        What names numbers goes before what they stand for, in case of an interrupt.
        """
        stay = {NOTHING, *numbers}
        self._remember()
        self._numbers = {one: number for one, number in self._numbers.items() if number in stay}
        self.patterns = {number: one for one, number in self._numbers.items()}
        self.size_bytes = sum(one.size_bytes for one in self._numbers if one is not EMPTY_STATE)

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
            if self.patterns[number].is_numbers:
                return number
            gaps = _gaps(now.kind.sized, before.origin, now.origin)
            pattern, ends = self.patterns[number], zip(before.origin, now.origin, strict=True)
            delta = [b - a for a, b in ends]
            for i, _ in gaps:
                if i not in pattern.apart:  # then it does not matter where that began before
                    delta[i : i + 2] = 0, 0
            way = tuple(delta), gaps
            moved = self._moves.get((number, way), self._shifted, number, *way)
            return self._left_behind(moved, before.origin, now)
        key = number, before.origin, now.origin
        return self._moves.get(key, self._carried, number, before.origin, now.origin)

    def _plain(self, number: int, origin: Sequence[int]) -> int:
        """A state left at an origin, as numbers where it has tables."""
        pattern = self.patterns[number]
        if pattern.is_fixed or not pattern.is_swept:
            return number
        return self.number(self.here(number, origin))

    def _shifted(self, number: int, delta: Sequence[int], gaps: Gaps) -> int:
        """To a run of the same class."""
        pattern = self.patterns[number]
        return self.number(pattern.changed(lambda form: _shifted(form, delta, gaps)))

    def _left_behind(self, number: int, before: Sequence[int], now: Spot) -> int:
        """What lies further on than a run that goes forwards does not go with it: it stops at a
        number from then on, the same for every run to come.
        """
        further = {i for i, more in self.patterns[number].ahead if _is_ahead(i, more, before, now)}
        if not further:
            return number
        key = number, frozenset(further), now.origin
        return self._moves.get(key, self._standing, number, further, now.origin)

    def _standing(self, number: int, further: Container[int], origin: Sequence[int]) -> int:
        """A state whose boxes stop at numbers if they stop beyond some symbols of an origin."""

        def stop(form: Moving) -> Coord:
            more = _ahead(form)
            return at(form, origin) if more is not None and more[0] in further else form

        return self.number(self.patterns[number].changed(lambda form: form, stop))

    def _carried(self, number: int, before: Sequence[int], now: Sequence[int]) -> int:
        """To a run of another class."""
        pattern = ValidityPattern.joined(
            Alike(_grown(valid, nodes[0].shape, now), start, nodes)
            for valid, start, nodes in self.here(number, before).parts
        )
        if self.windows:
            pattern = ValidityPattern.joined(
                self._with_window(part._replace(nodes=(node,)), now)
                for part in pattern.parts
                for node in part.nodes
            )
        return self.number(pattern)

    def _with_window(self, part: Alike, now: Sequence[int]) -> Alike:
        """A window that ends where the origin is begins so many elements before it, wherever that
        is: as in runs of the same class.
        """
        valid, start, (node,) = part
        if node not in self.windows or not valid.boxes:
            return part
        axis, extent = self.windows[node]
        end = valid.boxes[-1][axis][1]
        if type(end) is not Moving or at(end, now) - extent != start[axis]:
            return part
        return part._replace(start=(*start[:axis], end - extent, *start[axis + 1 :]))

    def here(self, number: int, origin: Sequence[int]) -> ValidityPattern:
        """A state at one origin: numbers."""
        pattern = self.patterns[number]
        if pattern.is_numbers:
            return pattern
        return self._here.get((number, tuple(origin)), pattern.at, origin)

    def are_there(
        self, wanted: int, origin: Sequence[int], number: int, last: Sequence[int]
    ) -> bool:
        """Whether one state at its origin is part of another one; see `ValidityPattern.holds`."""
        if wanted == number and self.patterns[wanted].is_numbers:
            return True
        pattern = self.patterns[number]
        if pattern.is_numbers and not pattern.is_fixed:  # as it is there at hardly any other place
            return self._is_there_here(wanted, origin, number, last)
        number = self._plain(number, last)
        pair = wanted, number
        if pair not in self._asked:  # most are never asked of again, and in numbers it takes less
            self._asked[pair] = None
            return self._is_there_here(wanted, origin, number, last)
        with Footing((*origin, *last)):  # over both, so that it is known at places never seen
            return self._held.get((*pair, len(origin)), self._are_there, *pair, len(origin))

    def _is_there_here(
        self, wanted: int, origin: Sequence[int], number: int, last: Sequence[int]
    ) -> bool:
        """The same in numbers."""
        there = self.here(number, last).regions
        for part in self.patterns[wanted].parts:
            if not _is_part(part, origin, _held(part, there)):
                return False
        return True

    def _are_there(self, wanted: int, number: int, count: int) -> bool:
        """Where entries of the second origin stand behind so many of the first."""
        return self._behind(number, count).holds(self.patterns[wanted])

    def _behind(self, number: int, count: int) -> ValidityPattern:
        """A state over entries that stand behind others."""
        pattern = self.patterns[number]
        if pattern.is_numbers:
            return pattern
        return pattern.changed(lambda form: _further(form, count))

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
        for part in self.patterns[wanted].parts:
            held = _held(part, there)
            if _is_part(part, places(start), held):
                continue
            low, high = 0, start - 1
            while low < high:
                middle = (low + high + 1) // 2
                is_there = _is_part(part, places(middle), held)
                low, high = (middle, high) if is_there else (low, middle - 1)
            if low > high or not _is_part(part, places(low), held):
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


def _held(part: Alike, there: Mapping[Node, tuple[Region, Coords]]) -> _Held:
    """What there is of the nodes of a part, and where their slots start; what is alike once."""
    found: dict[tuple[int, Coords | None], Region] = {}
    for node in part.nodes:
        region, begins = there.get(node, _NOWHERE)
        found[id(region), begins] = region
    return found


def _is_part(part: Alike, origin: Sequence[int], held: _Held) -> bool:
    """Whether what a pattern has of some nodes is there, in numbers."""
    counted, start, _ = part
    boxes, first = counted.at(origin), tuple([at(form, origin) for form in start])
    if any(map(_is_empty, boxes.boxes)):
        return False
    if counted.moves and len(boxes) > 1:
        boxes = Region.of(*boxes)  # elsewhere they may meet
    for (_, begins), region in held.items():
        if begins != first or not region.contains(boxes):
            return False
    return True


def _gaps(sized: Sequence[int], before: Sequence[int], now: Sequence[int]) -> Gaps:
    """Of what has any size and begins further on than before: how far behind where that ended."""
    return tuple([(i, now[i] - before[i] - before[i + 1]) for i in sized if now[i] > before[i]])


def _shifted(form: Moving, delta: Sequence[int], gaps: Gaps) -> Coord:
    """The same number, over an origin that lies `delta` further.

    Where something ended that has any size is written over where it begins now: block after block
    finds the same state, whatever their sizes.
    """
    const, terms = form.const, dict(form.terms)
    for i, gap in gaps:
        if terms.get(i) == terms.get(i + 1):
            const -= terms.get(i, 0) * (gap - delta[i])
            terms.pop(i + 1, None)
    const -= sum(k * delta[i] for i, k in terms.items())
    return Moving(const, tuple(terms.items()), form.per)


def _ahead(form: Coord) -> tuple[int, int] | None:
    """By how much a number lies beyond a symbol of the origin; None where it does not."""
    if type(form) is not Moving or form.per != 1 or form.const <= 0 or len(form.terms) != 1:
        return None
    ((symbol, coefficient),) = form.terms
    return (symbol, form.const) if coefficient == 1 else None


def _is_ahead(symbol: int, more: int, before: Sequence[int], now: Spot) -> bool:
    """Whether that is further on than a run that goes forwards changes, or asks for."""
    kind, origin = now
    extent = origin[symbol + 1] if symbol in kind.sized else kind.longest[symbol]
    return origin[symbol] > before[symbol] and more > extent > 0


def _further(form: Moving, count: int) -> Coord:
    """The same number, over an origin with so many more entries in front."""
    return Moving(form.const, tuple([(i + count, k) for i, k in form.terms]), form.per)


def _grown(region: Region, shape: Sequence[int], origin: Sequence[int]) -> Region:
    """Numbers inside their dimensions that equal the origin are written as the origin.

    Those where boxes stop: what grows, grows there. A start that equals the origin once (the first
    column behind a padding, say) stays where it is, and would fall behind run after run.

    Which way it is written changes no answer: guards hold every form to what was decided from it.
    """
    found = tuple([
        Box([
            (a, origin_symbol(origin.index(b)) if 0 < b < size and b in origin else b)
            for (a, b), size in zip(box, shape, strict=True)
        ])
        for box in region.boxes
    ])  # fmt: skip
    return region if found == region.boxes else Region(found)


def describe(state: Mapping[Node, Held]) -> str:
    """One line per node: what of it is valid."""
    return "\n".join(f"{node.name}: {held.valid}" for node, held in state.items())
