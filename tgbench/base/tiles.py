"""Tilings: which elements of a result are computed together where bits must not depend on the run.

    tile    the least that is computed: whole tiles, counted from coordinate 0
    chunk   the most that one call takes, counted the same way

         0      16      32      48      64
         ├───────┼───────┼───────┼───────┤     tiles of 16 rows, chunks of 32
                     ▓▓▓▓▓▓                    asked for: rows 24 to 36
                 ████████|████████             computed: two tiles, which lie in two chunks

What is asked for grows to whole tiles (`rounded`); what is computed falls apart into calls that
stay inside a chunk (`calls`). A kernel gives a tile the same bits in every call that may hold it,
so an element's bits depend on its tile alone. `exactness` finds out which tilings do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from tgbench.base.coords import Coord, value_of
from tgbench.base.regions import Box, Interval, Region
from tgbench.base.sweeps import is_free

Sizes: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the elements of one call are computed in every run.

    Fields:
        kernel: the name of the one that computes all of them.
        tile, chunk: sizes by dimension; a tile divides a chunk, or is the whole dimension.
        copied: the kernel works on copies, laid side by side, of its operands, but for those
        stays: the weights, which lie at one place in every run.
        hands_out: whether a caller sees the result, so that all NaN in it must be the same one.

    >>> rows = Tiling("linear_rows", (16, 8), (32, 8))
    >>> rows.rounded(Region((Box(((24, 36), (0, 3))),)), (64, 8))
    {[16:48, 0:8]}
    >>> list(rows.calls(Box(((16, 48), (0, 8)))))
    [[16:32, 0:8], [32:48, 0:8]]
    """

    kernel: str
    tile: Sizes
    chunk: Sizes
    copied: bool = False
    stays: tuple[int, ...] = ()
    hands_out: bool = False

    def rounded(self, region: Region, shape: Sequence[int]) -> Region:
        """The tiles that a region touches; of a sweep all of a dimension, wherever it stands."""
        if all(size == 1 for size in self.tile):
            return region
        return Region.of(*(_around(box, self.tile, shape) for box in region))

    def calls(self, box: Box) -> Iterator[Box]:
        """A box of whole tiles as the calls that compute it."""
        sides = [list(_pieces(side, size)) for side, size in zip(box, self.chunk, strict=True)]
        return map(Box, product(*sides))


def _around(box: Box, tile: Sizes, shape: Sequence[int]) -> Box:
    sides: list[Interval] = []
    for (start, stop), size, end in zip(box, tile, shape, strict=True):
        if size == 1:
            sides.append((start, stop))
        elif is_free(Region((Box(((start, stop),)),))):  # it touches others at other places
            sides.append((0, end))
        else:
            high = _below(stop - 1, size) + size
            sides.append((_below(start, size), min(high, end)))
    return Box(sides)


def _below(at: Coord, size: int) -> int:
    """The edge at or below a coordinate; the comparisons hold wherever the edge is the same."""
    edge = value_of(at) // size * size
    if at < edge or edge + size <= at:
        raise AssertionError(f"{at} is not in [{edge}, {edge + size})")
    return edge


def _pieces(side: Interval, size: int) -> Iterator[Interval]:
    """A side cut at the multiples of a size."""
    start, stop = side
    edge = _below(start, size) + size
    while edge < stop:
        yield start, edge
        start, edge = edge, edge + size
    yield start, stop
