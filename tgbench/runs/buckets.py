"""Buckets: the signature of one kind of run.

    bucket   which boxes of the inputs changed, which boxes of the outputs are asked for
    class    the same without the positions:      ids[0, u0:+1] → logits[0, u0:+1]
    origin   the positions:                       u0 = 130

Starts that are equal share a symbol, so that "append at t, ask for row t" is one class for all t.
A change may go on to the end wherever it starts, `ids[0, u0:]`: its extent is what is left. Extents
may be entries of the origin, too, `ids[0, u0:+u1]`: then runs of any size are one class. A class
that is *swept* is for programs that are right wherever it stands on an image (`base.swept`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tgbench.base.coords import Coord, origin_symbol, swept_symbol, value_of
from tgbench.base.errors import DemandError, GraphError, check_choice
from tgbench.base.memo import Allowance, Latest
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.words import counted, shorten
from tgbench.graph.graph import Graph

Boxes: TypeAlias = "tuple[tuple[str, Region], ...]"  # by name, sorted, no empty regions
Rounding: TypeAlias = Literal["exact", "pow2", "full"]
Span: TypeAlias = "tuple[int | None, int]"  # symbol (None: from 0 on), extent; −n: on to n;
# SIZED: as far as the entry of the origin says that follows the symbol's
Spans: TypeAlias = "tuple[tuple[str, tuple[tuple[Span, ...], ...]], ...]"  # of boxes, by name
Place: TypeAlias = "tuple[int, ...]"  # an origin
Parts: TypeAlias = "tuple[Spans, Spans, Place, bool]"  # of a class: its fields
Use: TypeAlias = "tuple[str, str, int]"  # part, name, dimension of a box that moves
# what a class says of extents, or where its programs are right
Extents: TypeAlias = Literal["as they are", "onwards", "sized", "swept"]
SIZED = 0  # the extent of a span that has any
MOST_SPOTS = 2_000  # whose class is remembered
MOST_BUCKETS = 500  # that are found again as they are
SPOT_BYTES, NAME_BYTES, BOX_BYTES, SIDE_BYTES = 160, 200, 70, 118  # of parts of a bucket


@dataclass(frozen=True)
class BucketClass:
    """A bucket without its positions.

    Fields:
        changed, demand: (name, boxes) pairs; each box is a tuple of spans.
        bounds: for each origin symbol, the largest value it can take.
        is_swept: whether what follows from where it stands is known at all places.
    """

    changed: Spans
    demand: Spans
    bounds: tuple[int, ...]
    is_swept: bool = False

    def __hash__(self) -> int:
        """Computed once: every run looks its class up several times."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.changed, self.demand, self.bounds, self.is_swept))

    def __reduce__(self) -> tuple[Any, ...]:
        """Names have other hashes in another process."""
        return BucketClass, (self.changed, self.demand, self.bounds, self.is_swept)

    def regions(
        self, part: Literal["changed", "demand"], origin: Sequence[Coord]
    ) -> dict[str, Region]:
        """The regions at an origin, of integers or of symbols."""
        spans = self.changed if part == "changed" else self.demand
        return {name: Region.of(*(placed(box, origin) for box in boxes)) for name, boxes in spans}

    @cached_property
    def extents(self) -> tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]:
        """How large its boxes are, wherever they stand."""
        return tuple(
            (name, tuple(tuple(extent for _, extent in box) for box in boxes))
            for name, boxes in (*self.changed, *self.demand)
        )

    @cached_property
    def form(self) -> Hashable:
        """What classes have in common that change and ask for about as much, in the same way."""
        return tuple(
            (
                name,
                tuple(tuple((s, (abs(e).bit_length() + 1) // 2) for s, e in box) for box in boxes),
            )
            for name, boxes in (*self.changed, *self.demand)
        )

    @cached_property
    def uses(self) -> tuple[tuple[Use, ...], ...]:
        """For each origin symbol, what of the inputs and outputs starts there, or is as large."""
        found: list[dict[Use, None]] = [{} for _ in self.bounds]
        for part, spans in (("changed", self.changed), ("demand", self.demand)):
            for name, boxes in spans:
                for box in boxes:
                    for axis, (symbol, extent) in enumerate(box):
                        if symbol is not None:
                            found[symbol][part, name, axis] = None
                            if extent == SIZED:
                                found[symbol + 1][f"{part}, its size", name, axis] = None
        return tuple(map(tuple, found))

    @cached_property
    def of_batch(self) -> tuple[int, ...]:
        """The symbols of which images of a batch something is: boxes of others are others."""
        uses = enumerate(self.uses)
        return tuple(i for i, found in uses if any(axis == 0 for _, _, axis in found))

    @property
    def elements(self) -> int:
        """Changed and demanded elements together: how large its slices are, at most."""
        return sum(
            prod(abs(extent) or self.bounds[(symbol or 0) + 1] for symbol, extent in box)
            for _, boxes in (*self.changed, *self.demand)
            for box in boxes
        )

    @cached_property
    def symbols(self) -> tuple[Coord, ...]:
        """The origin as coordinates, wherever it is."""
        if self.is_swept:
            return tuple(map(swept_symbol, range(len(self.bounds)), self.bounds))
        return tuple(map(origin_symbol, range(len(self.bounds))))

    def bucket(self, origin: Sequence[int]) -> Bucket:
        return Bucket(
            tuple(sorted(self.regions("changed", origin).items())),
            tuple(sorted(self.regions("demand", origin).items())),
        )

    def around(self, bucket: Bucket) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Between which origins a run of this class changes and asks for all that a bucket does;
        None if nowhere. Looks at classes of one box a name.
        """
        low, high = list(self.inside((0,) * len(self.bounds))), list(self.bounds)
        sized = dict[int, tuple[int, int]]()  # between which sides what has any size lies
        for mine, theirs in zip((self.changed, self.demand), bucket.hulls, strict=True):
            known = dict(mine)
            for name, hull in theirs:
                boxes = known.get(name, ())
                if len(boxes) != 1:
                    return None
                for (symbol, extent), (start, stop) in zip(boxes[0], hull, strict=True):
                    if symbol is not None and extent == SIZED:
                        least, most = sized.get(symbol, (start, stop))
                        sized[symbol] = min(least, start), max(most, stop)
                    elif symbol is not None:
                        low[symbol] = max(low[symbol], stop - extent if extent > 0 else 0)
                        high[symbol] = min(high[symbol], start)
        for symbol, (start, stop) in sized.items():
            for entry, value in ((symbol, start), (symbol + 1, stop - start)):
                low[entry] = value
                high[entry] = min(high[entry], value)
        first, last = tuple(low), self.inside(tuple(high))  # what nobody asks for has some size
        return (first, last) if all(a <= b for a, b in zip(first, last, strict=True)) else None

    def corners(self, origin: Sequence[int]) -> list[tuple[int, ...]]:
        """The origin at hand and the extreme ones, for sizing."""
        low, high = (0,) * len(self.bounds), self.bounds
        first_low = tuple(0 if i == 0 else bound for i, bound in enumerate(self.bounds))
        return list(dict.fromkeys([tuple(origin), *map(self.inside, (low, high, first_low))]))

    def inside(self, origin: Place) -> Place:
        """The nearest origin at which what has any size has one, and ends where its dimension
        does.
        """
        found = list(origin)
        for symbol in self.sized:
            room = self.bounds[symbol + 1] - origin[symbol]
            found[symbol + 1] = min(max(origin[symbol + 1], 1), room)
        return tuple(found)

    @property
    def _spans(self) -> list[Span]:
        """Of all that changes and is asked for."""
        every = (*self.changed, *self.demand)
        return [span for _, boxes in every for box in boxes for span in box]

    @cached_property
    def sized(self) -> tuple[int, ...]:
        """The symbols of starts of which the next one is a size."""
        found = (symbol for symbol, extent in self._spans if symbol is not None and extent == SIZED)
        return tuple(sorted(set(found)))

    @cached_property
    def longest(self) -> tuple[int, ...]:
        """For each symbol of a start, the largest extent from there; SIZED where any, or none."""
        found = [SIZED] * len(self.bounds)
        for symbol, extent in self._spans:
            if symbol is not None:
                found[symbol] = max(found[symbol], extent)
        return tuple(found)

    @cached_property
    def reaching(self) -> int | None:
        """The symbol of the start of what changes, if that may begin earlier and end where it did:
        what goes on to the end, or has any size. None where there are several, or is none, and
        where something of a fixed size that is asked for begins there: it would move along.
        """
        found = [
            symbol
            for symbol, extent in _spans(self.changed)
            if symbol is not None and extent <= SIZED
        ]
        moved = {symbol for symbol, extent in _spans(self.demand) if extent > SIZED}
        return found[0] if len(found) == 1 and found[0] not in moved else None

    def earlier(self, origin: Place, start: int) -> Place:
        """The origin of a run that begins earlier and ends where this one does; see `reaching`."""
        symbol, found = self.reaching, list(origin)
        assert symbol is not None
        if symbol in self.sized:
            found[symbol + 1] += origin[symbol] - start
        found[symbol] = start
        return tuple(found)

    def starts(self, origin: Place, latest: int) -> list[int]:
        """Where a run may begin at the latest, and at places before where other things may be
        computed: one element earlier, and where it is asked for what lies before the change.
        """
        asked = [origin[symbol] for symbol, _ in _spans(self.demand) if symbol is not None]
        found = [at for start in (latest, *asked) if start <= latest for at in (start, start - 1)]
        return list(dict.fromkeys([max(at, 0) for at in found]))

    def ahead(self, origin: Sequence[int]) -> Place:
        """An origin one element on, or half-way where this one is at an end."""
        found = list(origin)
        for i, most in enumerate(self.bounds):
            if i - 1 in self.sized:
                continue  # as large as it is
            room = most - (origin[i + 1] - 1 if i in self.sized else 0)
            found[i] = origin[i] + 1 if origin[i] < room else room // 2
        return tuple(found)

    def further(self, origin: Place, count: int) -> Place | None:
        """An origin so many elements on, of the same sizes; None where that leaves a dimension."""
        found = tuple(at if i - 1 in self.sized else at + count for i, at in enumerate(origin))
        fits = all(at <= most for at, most in zip(found, self.bounds, strict=True))
        return found if fits and self.inside(found) == found else None

    def half_way(self, origin: Place) -> Place | None:
        """The origin half-way to the last one that is as many elements on in all dimensions, of the
        same sizes; None where this is the last one, or has no place.
        """
        rooms = [
            most - at - (origin[i + 1] - 1 if i in self.sized else 0)
            for i, (at, most) in enumerate(zip(origin, self.bounds, strict=True))
            if i - 1 not in self.sized
        ]
        count = (min(rooms, default=0) + 1) // 2
        return self.further(origin, count) if count > 0 else None

    @property
    def farthest(self) -> Place:
        """The last origin there is."""
        return self.inside(self.bounds)

    def elsewhere(self, origin: Sequence[int]) -> tuple[int, ...]:
        """Another origin, far from the one at hand: half-way, or a quarter where that is near."""
        found = tuple(
            bound // 2 if abs(at - bound // 2) > bound // 8 else bound // 4
            for at, bound in zip(origin, self.bounds, strict=True)
        )
        return self.inside(found)

    def __str__(self) -> str:
        changed = ", ".join(_show(name, box) for name, boxes in self.changed for box in boxes)
        demand = ", ".join(_show(name, box) for name, boxes in self.demand for box in boxes)
        anywhere = ", anywhere" if self.is_swept else ""
        return f"{changed or 'nothing'} → {demand or 'nothing'}{anywhere}"


def _spans(of: Spans) -> list[Span]:
    """Those of all boxes."""
    return [span for _, boxes in of for box in boxes for span in box]


class Spot(NamedTuple):
    """A class of runs, and where one of them happens: its origin."""

    kind: BucketClass
    origin: tuple[int, ...]


class Bucket:
    """One run's changed input boxes and demanded output boxes, at their positions."""

    by: object | None = None  # the classifier that made it, which knows its
    spot: Spot | None = None

    def __init__(self, changed: Boxes, demand: Boxes) -> None:
        self.changed, self.demand = changed, demand
        self._hash: int | None = None

    @staticmethod
    def of(changed: Mapping[str, Region], demand: Mapping[str, Region]) -> Bucket:
        return Bucket(boxes_by_name(changed), boxes_by_name(demand))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Bucket)
            and self.changed == other.changed
            and self.demand == other.demand
        )

    def __hash__(self) -> int:
        """Computed once, as that of a class."""
        if self._hash is None:
            self._hash = hash((self.changed, self.demand))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """As for a class."""
        return Bucket, (self.changed, self.demand)

    @cached_property
    def size_bytes(self) -> int:
        """What it takes in memory, less what equal ones share."""
        found = SPOT_BYTES
        for _, region in (*self.changed, *self.demand):
            found += NAME_BYTES
            for box in region.boxes:
                found += BOX_BYTES + SIDE_BYTES * len(box)
        return found

    @cached_property
    def hulls(self) -> tuple[tuple[tuple[str, tuple[tuple[int, int], ...]], ...], ...]:
        """Of what is changed and of what is demanded, between what each lies."""
        changed, demand = (
            tuple([(name, _numbers(region.hull())) for name, region in part])
            for part in (self.changed, self.demand)
        )
        return changed, demand

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Elements that are changed, and that are demanded."""
        changed, demand = (
            sum(value_of(region.elements) for _, region in part)
            for part in (self.changed, self.demand)
        )
        return changed, demand

    def share_of(self, other: Bucket) -> float:
        """The part that this one is of what another one changes and demands: at most all of each.

        >>> rows = [Region.of(Box(((0, n),))) for n in (2, 8)]
        >>> few, all_of_them = (Bucket.of({"x": part}, {"y": part}) for part in rows)
        >>> few.share_of(all_of_them), all_of_them.share_of(few)
        (0.0625, 1.0)
        """
        parts = zip(self.sizes, other.sizes, strict=True)
        return prod(min(mine / theirs, 1.0) if theirs else 1.0 for mine, theirs in parts)

    def is_within(self, other: Bucket) -> bool:
        """Whether another run changes and asks for all that this one does."""
        parts = (self.changed, dict(other.changed)), (self.demand, dict(other.demand))
        return all(
            there.get(name, EMPTY).contains(region)
            for mine, there in parts
            for name, region in mine
        )

    def classify(self, graph: Graph, extents: Extents = "as they are") -> Spot:
        """Its class and its origin; `onwards`, changes that go on to the end do so wherever;
        `sized`, boxes are of any size along the first dimension that they do not fill; `swept`, it
        is for programs that are right wherever its boxes stand, each by itself.
        """
        of, origin = self.spans(graph, extents)
        return Spot(BucketClass(*of), origin)

    def spans(self, graph: Graph, extents: Extents) -> tuple[Parts, Place]:
        """What its class is made of, and its origin."""
        symbols: dict[Any, int] = {}
        origin: list[int] = []
        bounds: list[int] = []
        sides = []
        for part in (self.changed, self.demand):
            named = []
            for name, region in part:
                shape = (
                    _leaf_shape(graph, name) if part is self.changed else graph.outputs[name].shape
                )
                boxes = []
                for number, box in enumerate(region.boxes):
                    spans: list[Span] = []
                    for axis, ((start, stop), size) in enumerate(zip(box, shape, strict=True)):
                        extent = stop - start
                        if type(extent) is not int:
                            extent = value_of(extent)
                        if extent == size:
                            spans.append((None, size))
                            continue
                        key: object = start
                        room = size - extent
                        if extents == "onwards" and part is self.changed and stop == size:
                            extent, room = -size, size - 1
                        elif extents == "sized" and all(symbol is None for symbol, _ in spans):
                            key, extent, room = (start, stop), SIZED, size - 1
                        elif extents == "swept":
                            key = start, number, axis
                        symbol = symbols.setdefault(key, len(origin))
                        if symbol == len(origin):
                            origin.append(start if type(start) is int else value_of(start))
                            bounds.append(room)
                            if extent == SIZED:
                                origin.append(value_of(stop - start))
                                bounds.append(size)
                        elif room < bounds[symbol]:
                            bounds[symbol] = room
                            if extent == SIZED:
                                bounds[symbol + 1] = size
                        spans.append((symbol, extent))
                    boxes.append(tuple(spans))
                named.append((name, tuple(boxes)))
            sides.append(tuple(named))
        return (sides[0], sides[1], tuple(bounds), extents == "swept"), tuple(origin)

    def __str__(self) -> str:
        def listed(boxes: Boxes) -> str:
            return (
                ", ".join(f"{name}{box}" for name, region in boxes for box in region) or "nothing"
            )

        return f"{listed(self.changed)} → {listed(self.demand)}"


def _numbers(box: Box) -> tuple[tuple[int, int], ...]:
    """Between what a box lies, where one stands."""
    return tuple([
        (a if type(a) is int else value_of(a), b if type(b) is int else value_of(b)) for a, b in box
    ])  # fmt: skip


def boxes_by_name(regions: Mapping[str, Region]) -> Boxes:
    """As a bucket has them."""
    if len(regions) == 1:
        [item] = regions.items()
        return (item,) if item[1].boxes else ()
    return tuple(sorted([item for item in regions.items() if item[1].boxes]))


class Classifier:
    """Buckets of a graph's runs, their classes and origins, remembered; equal ones are one object.

    Programs, states and costs are looked up by class several times a run, and finding an object is
    quicker than finding one that equals it.
    """

    def __init__(self, graph: Graph, allowance: Allowance) -> None:
        self.graph, self._me = graph, object()  # a bucket in a trace keeps no graph alive
        self._spots, self._kinds = allowance.memo(MOST_SPOTS), allowance.memo(MOST_SPOTS)
        self._buckets = Latest[tuple[Boxes, Boxes], Bucket](MOST_BUCKETS)

    def bucket(self, changed: Boxes, demand: Boxes) -> Bucket:
        """That of some regions of numbers."""
        key = changed, demand
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = Bucket(changed, demand)
            found.by = self._me
        return found

    def spot(self, bucket: Bucket, extents: Extents = "as they are") -> Spot:
        if bucket.by is self._me and extents == "as they are":
            found = bucket.spot
            if found is None:
                found = bucket.spot = self._classified(bucket, extents)
            return found
        return self._spots.get((bucket, extents), self._classified, bucket, extents)

    def _classified(self, bucket: Bucket, extents: Extents) -> Spot:
        of, origin = bucket.spans(self.graph, extents)
        return Spot(self._kinds.get(of, BucketClass, *of), origin)

    def known(self, spot: Spot) -> Spot:
        """The same, of the object that its class is."""
        kind, origin = spot
        of = kind.changed, kind.demand, kind.bounds, kind.is_swept
        return Spot(self._kinds.get(of, lambda: kind), origin)


def _leaf_shape(graph: Graph, name: str) -> tuple[int, ...]:
    return (graph.inputs if name in graph.inputs else graph.states)[name].shape


def placed(spans: tuple[Span, ...], origin: Sequence[Coord]) -> Box:
    """A box of a class, where its origin is."""
    return Box(_interval_of(span, origin) for span in spans)


def _interval_of(span: Span, origin: Sequence[Coord]) -> tuple[Coord, Coord]:
    symbol, extent = span
    if symbol is None:
        return 0, extent
    start = origin[symbol]
    if extent == SIZED:
        return start, start + origin[symbol + 1]
    return start, -extent if extent < 0 else start + extent


def _show(name: str, spans: tuple[Span, ...]) -> str:
    return f"{name}[{', '.join(map(_shown, spans))}]"


def _shown(span: Span) -> str:
    symbol, extent = span
    if symbol is None:
        return ":"
    if extent == SIZED:
        return f"u{symbol}:+u{symbol + 1}"
    return f"u{symbol}:" if extent < 0 else f"u{symbol}:+{extent}"


# --- rounding ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BucketSpace:
    """How changed boxes are rounded up, per input dimension, so that fewer classes arise.

    Fields:
        rounding: input name → one of "exact", "pow2" (extent up to a power of two, start aligned
            to it) and "full" per dimension, or one word for all of them.
    """

    rounding: Mapping[str, Rounding | Sequence[Rounding]]

    def __post_init__(self) -> None:
        for name, how in self.rounding.items():
            for word in (how,) if isinstance(how, str) else how:
                check_choice(GraphError, f"rounding of {name}", word, get_args(Rounding))

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise GraphError for a name that is not there, and a wrong number of dimensions."""
        for name in self.rounding:
            check_choice(GraphError, "buckets", name, shapes)
            self.round(name, EMPTY, shapes[name])

    def round(self, name: str, region: Region, shape: Sequence[int]) -> Region:
        how = self.rounding.get(name, "exact")
        if how == "exact":
            return region
        per_axis: Sequence[Rounding] = [how] * len(shape) if isinstance(how, str) else how
        if len(per_axis) != len(shape):
            raise GraphError(
                f"{name} has {len(shape)} dimensions, its rounding names {len(per_axis)}"
            )
        boxes = (
            Box(_rounded(a, b, n, r) for (a, b), n, r in zip(box, shape, per_axis, strict=True))
            for box in region
        )
        return Region.of(*boxes)


def _rounded(start: Any, stop: Any, size: int, how: Rounding) -> tuple[int, int]:
    if how == "full":
        return 0, size
    if how == "exact":
        return start, stop
    width = 1
    while start // width * width + width < stop:
        width *= 2
    first = start // width * width
    return first, min(first + width, size)


# --- reading what is asked for --------------------------------------------------------------------


def region_of_index(index: Any, shape: Sequence[int], what: str) -> Region:
    """A NumPy-style basic index, or a list of them, as a region.

    Raises DemandError naming `what` for anything outside the shape.
    """
    plain = _plain(index, shape) if type(index) is tuple else None
    if plain is not None:
        return Region((Box(plain),))
    if isinstance(index, Region):
        inside = Region.full(tuple(shape))
        if any(len(box) != len(shape) for box in index) or not inside.contains(index):
            raise DemandError(
                f"{what}: {shorten(index)} lies outside {list(shape)}; intersect it with "
                f"Region.full({tuple(shape)})"
            )
        return index
    if isinstance(index, list):
        return Region.of(*(box for part in index for box in region_of_index(part, shape, what)))
    parts = index if isinstance(index, tuple) else (index,)
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise DemandError(f"{what}: `...` stands {len(dots)} times; leave one")
    given = len(parts) - len(dots)
    if given > len(shape):
        raise DemandError(
            f"{what}: {given} indices for {counted(len(shape), 'dimension')}; leave out "
            f"{given - len(shape)}"
        )
    for at in dots:
        parts = (*parts[:at], *[slice(None)] * (len(shape) - given), *parts[at + 1 :])
    parts = (*parts, *[slice(None)] * (len(shape) - len(parts)))
    intervals = [
        _interval(part, size, f"{what} dimension {axis}")
        for axis, (part, size) in enumerate(zip(parts, shape, strict=True))
    ]
    return EMPTY if any(a >= b for a, b in intervals) else Region((Box(intervals),))


def _plain(index: tuple[Any, ...], shape: Sequence[int]) -> list[tuple[int, int]] | None:
    """Intervals of an index of numbers and slices that lie inside; None of any other."""
    if len(index) > len(shape):
        return None
    found = [(0, size) for size in shape]
    for axis, (part, size) in enumerate(zip(index, shape, strict=False)):
        if type(part) is int:
            start, stop = part, part + 1
        elif type(part) is slice and part.step is None:
            start = 0 if part.start is None else part.start
            stop = size if part.stop is None else part.stop
        else:
            return None
        if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= size:
            return None
        found[axis] = start, stop
    return found


def _interval(part: Any, size: int, what: str) -> tuple[int, int]:
    if isinstance(part, slice):
        if part.step not in (None, 1):
            raise DemandError(f"{what}: step {part.step} is not 1; ask for the enclosing range")
        for bound in (part.start, part.stop):
            if bound is None:
                continue
            if not isinstance(bound, (int, np.integer)):
                raise DemandError(
                    f"{what}: {shorten(bound)} is not an integer; give slices of integers, "
                    "`np.s_[0, 3:5]`"
                )
            if not -size <= bound <= size:
                raise DemandError(
                    f"{what}: {bound} is outside 0..{size}; end slices where it ends, or leave "
                    "that out (`3:`)"
                )
        start, stop, _ = part.indices(size)
        return start, stop
    if isinstance(part, (int, np.integer)) and not isinstance(part, bool):
        if not -size <= part < size:
            raise DemandError(
                f"{what}: index {part} is outside 0..{size - 1}; give one of these, or from the "
                f"end, -{size}..-1"
            )
        return int(part) % size, int(part) % size + 1
    raise DemandError(
        f"{what}: {shorten(part)} is not an integer or a slice (use `np.s_[0, 3:5]`, and a list of "
        "such for parts that lie apart)"
    )
