"""Buckets: the signature of one kind of run.

    bucket   which boxes of the inputs changed, which boxes of the outputs are asked for
    class    the same without the positions:      ids[0, u0:+1] → logits[0, u0:+1]
    origin   the positions:                       u0 = 130

Starts that are equal share a symbol, so that "append at t, ask for row t" is one class for all t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.coords import Coord, origin_symbol
from tgbench.errors import DemandError, GraphError
from tgbench.graph import Graph
from tgbench.regions import EMPTY, Box, Region

Boxes: TypeAlias = "tuple[tuple[str, Region], ...]"  # by name, sorted, no empty regions
Rounding: TypeAlias = Literal["exact", "pow2", "full"]
Span: TypeAlias = "tuple[int | None, int]"  # symbol (None: the start is fixed at 0), extent
MOST_BOXES = 8  # a comparison that finds more changed boxes than this takes hulls


@dataclass(frozen=True)
class BucketClass:
    """A bucket without its positions.

    Fields:
        changed, demand: (name, boxes) pairs; each box is a tuple of spans.
        bounds: for each origin symbol, the largest value it can take.
    """

    changed: tuple[tuple[str, tuple[tuple[Span, ...], ...]], ...]
    demand: tuple[tuple[str, tuple[tuple[Span, ...], ...]], ...]
    bounds: tuple[int, ...]

    def regions(
        self, part: Literal["changed", "demand"], origin: Sequence[Coord]
    ) -> dict[str, Region]:
        """The regions at an origin, of integers or of symbols."""
        spans = self.changed if part == "changed" else self.demand
        return {
            name: Region.of(*(_placed(box, origin) for box in boxes)) for name, boxes in spans
        }

    def symbols(self, origin: Sequence[int]) -> tuple[Coord, ...]:
        """The origin as coordinates that remember that they are the origin."""
        return tuple(origin_symbol(i, value) for i, value in enumerate(origin))

    def bucket(self, origin: Sequence[int]) -> Bucket:
        return Bucket(
            tuple(sorted(self.regions("changed", origin).items())),
            tuple(sorted(self.regions("demand", origin).items())),
        )

    def corners(self, origin: Sequence[int]) -> list[tuple[int, ...]]:
        """The origin at hand and the extreme ones, for sizing."""
        low, high = (0,) * len(self.bounds), self.bounds
        first_low = tuple(0 if i == 0 else bound for i, bound in enumerate(self.bounds))
        return list(dict.fromkeys([tuple(origin), low, high, first_low]))

    def __str__(self) -> str:
        changed = ", ".join(_show(name, box) for name, boxes in self.changed for box in boxes)
        demand = ", ".join(_show(name, box) for name, boxes in self.demand for box in boxes)
        return f"{changed or 'nothing'} → {demand or 'nothing'}"


@dataclass(frozen=True)
class Bucket:
    """One run's changed input boxes and demanded output boxes, at their positions."""

    changed: Boxes
    demand: Boxes

    @staticmethod
    def of(changed: Mapping[str, Region], demand: Mapping[str, Region]) -> Bucket:
        def listed(regions: Mapping[str, Region]) -> Boxes:
            return tuple(sorted((name, region) for name, region in regions.items() if region.boxes))

        return Bucket(listed(changed), listed(demand))

    def classify(self, graph: Graph) -> tuple[BucketClass, tuple[int, ...]]:
        """Its class and its origin."""
        symbols: dict[int, int] = {}
        bounds: dict[int, int] = {}

        def spans(boxes: Region, shape: tuple[int, ...]) -> tuple[tuple[Span, ...], ...]:
            return tuple(tuple(map(span, box, shape)) for box in boxes)

        def span(interval: Any, size: int) -> Span:
            start, stop = interval
            if (start, stop) == (0, size):
                return None, size
            symbol = symbols.setdefault(start, len(symbols))
            room = size - (stop - start)
            bounds[symbol] = min(bounds.get(symbol, room), room)
            return symbol, stop - start

        changed = tuple((n, spans(r, _leaf_shape(graph, n))) for n, r in self.changed)
        demand = tuple((n, spans(r, graph.outputs[n].shape)) for n, r in self.demand)
        limits = tuple(bounds[i] for i in range(len(symbols)))
        return BucketClass(changed, demand, limits), tuple(symbols)

    def __str__(self) -> str:
        def listed(boxes: Boxes) -> str:
            return ", ".join(f"{name}{box}" for name, region in boxes for box in region) or "nothing"

        return f"{listed(self.changed)} → {listed(self.demand)}"


def _leaf_shape(graph: Graph, name: str) -> tuple[int, ...]:
    return (graph.inputs.get(name) or graph.states[name]).shape


def _placed(spans: tuple[Span, ...], origin: Sequence[Coord]) -> Box:
    return Box(
        (0, extent) if symbol is None else (origin[symbol], origin[symbol] + extent)
        for symbol, extent in spans
    )


def _show(name: str, spans: tuple[Span, ...]) -> str:
    parts = [":" if symbol is None else f"u{symbol}:+{extent}" for symbol, extent in spans]
    return f"{name}[{', '.join(parts)}]"


# --- rounding ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BucketSpace:
    """How changed boxes are rounded up, per input dimension, so that fewer classes arise.

    Fields:
        rounding: input name → one of "exact", "pow2" (extent up to a power of two, start aligned
            to it) and "full" per dimension, or one word for all of them.
    """

    rounding: Mapping[str, Rounding | Sequence[Rounding]]

    def round(self, name: str, region: Region, shape: Sequence[int]) -> Region:
        how = self.rounding.get(name, "exact")
        per_axis: Sequence[Rounding] = [how] * len(shape) if isinstance(how, str) else how
        if len(per_axis) != len(shape):
            raise GraphError(f"{name} has {len(shape)} dimensions, its rounding names {len(per_axis)}")
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
    if how != "pow2":
        raise GraphError(f"rounding {how!r} is not one of exact, pow2, full")
    width = 1
    while start // width * width + width < stop:
        width *= 2
    first = start // width * width
    return first, min(first + width, size)


# --- finding what changed, reading what is asked for ---------------------------------------------


def difference(old: NDArray[Any], new: NDArray[Any]) -> Region:
    """The boxes where two arrays of one shape differ, bit for bit (so NaN equals itself)."""
    if old.ndim == 0:
        return EMPTY if old.tobytes() == new.tobytes() else Region((Box(()),))
    unequal = old != new
    if new.dtype.kind == "f":
        unequal &= ~(np.isnan(old) & np.isnan(new))
        unequal |= (old == 0) & (np.signbit(old) != np.signbit(new))
    return boxes_of(unequal)


def boxes_of(flags: NDArray[np.bool_]) -> Region:
    """True elements as at most `MOST_BOXES` boxes; beyond that, neighbours merge into hulls."""
    if not flags.any():
        return EMPTY
    where = np.nonzero(flags)
    hull = Box((int(axis.min()), int(axis.max()) + 1) for axis in where)
    if len(where[0]) == hull.elements:
        return Region((hull,))
    boxes = _cut(flags[hull.slices()], hull.starts)
    while len(boxes) > MOST_BOXES:
        boxes = _merge_cheapest(boxes)
    return Region.of(*boxes)


def _cut(flags: NDArray[np.bool_], starts: Sequence[Any]) -> list[Box]:
    """Runs along the first axis whose cross-sections are equal, cut further inside."""
    if flags.ndim == 1:
        edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.view(np.int8), [0]))))
        return [
            Box(((starts[0] + int(a), starts[0] + int(b)),))
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]
    flat = flags.reshape(flags.shape[0], -1)
    breaks = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1)) + 1
    edges = np.concatenate(([0], breaks, [flags.shape[0]]))
    boxes = []
    for a, b in zip(edges, edges[1:], strict=False):
        if flat[a].any():
            front = (starts[0] + int(a), starts[0] + int(b))
            boxes += [Box((front, *rest)) for rest in _cut(flags[a], starts[1:])]
    return boxes


def _merge_cheapest(boxes: list[Box]) -> list[Box]:
    waste = [
        a.hull(b).elements - a.elements - b.elements for a, b in zip(boxes, boxes[1:], strict=False)
    ]
    i = int(np.argmin(waste))
    return [*boxes[:i], boxes[i].hull(boxes[i + 1]), *boxes[i + 2 :]]


def region_of_index(index: Any, shape: Sequence[int], what: str) -> Region:
    """A NumPy-style basic index, or a list of them, as a region.

    Raises DemandError naming `what` for anything outside the shape.
    """
    if isinstance(index, Region):
        inside = Region.full(tuple(shape))
        if not inside.contains(index):
            raise DemandError(f"{what}: {index} lies outside {list(shape)}")
        return index
    if isinstance(index, list):
        return Region.of(*(box for part in index for box in region_of_index(part, shape, what)))
    parts = index if isinstance(index, tuple) else (index,)
    given = sum(part is not Ellipsis for part in parts)
    if given > len(shape):
        raise DemandError(f"{what}: {given} indices for {len(shape)} dimensions")
    if Ellipsis in [part if part is Ellipsis else None for part in parts]:
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts = (*parts[:at], *[slice(None)] * (len(shape) - given), *parts[at + 1 :])
    parts = (*parts, *[slice(None)] * (len(shape) - len(parts)))
    intervals = [
        _interval(part, size, f"{what} dimension {axis}")
        for axis, (part, size) in enumerate(zip(parts, shape, strict=True))
    ]
    return EMPTY if any(a >= b for a, b in intervals) else Region((Box(intervals),))


def _interval(part: Any, size: int, what: str) -> tuple[int, int]:
    if isinstance(part, slice):
        if part.step not in (None, 1):
            raise DemandError(f"{what}: step {part.step} is not 1; ask for the enclosing range")
        for bound in (part.start, part.stop):
            if bound is not None and not -size <= bound <= size:
                raise DemandError(f"{what}: {bound} is outside 0..{size}")
        start, stop, _ = part.indices(size)
        return start, stop
    if isinstance(part, (int, np.integer)) and not isinstance(part, bool):
        if not -size <= part < size:
            raise DemandError(f"{what}: index {part} is outside 0..{size - 1}")
        return int(part) % size, int(part) % size + 1
    raise DemandError(f"{what}: {part!r} is not an integer or a slice (use `np.s_[0, 3:5]`)")
