"""Regions on a grid: few enough of them that the next run meets one that was met before.

Raster(4) of 10 elements    |. . .|. . .|. . .|.|
around {4:5, 7:8}                 [3       9)       the hull, rounded out to whole tiles
banded {4:5}                      [3       9)       two tiles or more, in one dimension
windowed {4:5}                      [4   7)          a tile or more, wherever it is
within {2:7}                      [3   6)           whole tiles inside each box
onwards {4:5, 7:8}                  [4            10)   everything from the first element on
as_one {4:5, 6:7}                   [4    7)            one box around; by_image, in each image
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgbench.base.coords import value_of
from tgbench.base.regions import EMPTY, Box, Region


@dataclass(frozen=True)
class Raster:
    """Every dimension of a tensor cut into so many equal parts; the last may be shorter.

    >>> Raster(4).around(Region((Box(((4, 5),)), Box(((7, 8),)))), (10,))
    {[3:9]}
    >>> Raster(4).within(Region((Box(((2, 7),)),)), (10,))
    {[3:6]}
    """

    parts: int

    def around(self, region: Region, shape: Sequence[int]) -> Region:
        """One box of whole tiles that holds a region of integers."""
        if not region.boxes:
            return region
        sides = []
        for (start, stop), size in zip(region.hull(), shape, strict=True):
            tile = self._tile(size)
            sides.append((start // tile * tile, min(-(-stop // tile) * tile, size)))
        return Region((Box(sides),))

    def banded(self, region: Region, shape: Sequence[int]) -> Region:
        """A box of two tiles at least along the dimension of which a region of integers takes the
        smallest share, the first of such, and whole in the others. So boxes overlap, and few hold
        everything that is no larger than a tile; and rows lie one behind the other.

        >>> Raster(4).banded(Region((Box(((4, 5), (8, 9))),)), (10, 10))
        {[3:9, 0:10]}
        """
        if not region.boxes or not shape:
            return region
        hull = [(value_of(start), value_of(stop)) for start, stop in region.hull()]
        share = [(stop - start) / size for (start, stop), size in zip(hull, shape, strict=True)]
        axis = share.index(min(share))
        (start, stop), size = hull[axis], shape[axis]
        tile, sides = self._tile(size), list(Box.full(shape))
        first = min(start // tile, max(-(-size // tile) - 2, 0)) * tile
        last = max(-(-stop // tile) * tile, first + 2 * tile)
        sides[axis] = first, min(last, size)
        return Region((Box(sides),))

    def windowed(self, region: Region, shape: Sequence[int]) -> Region:
        """A box around a region of integers, as large as a tile at least, wherever that is.

        >>> Raster(4).windowed(Region((Box(((4, 5), (8, 9))),)), (10, 10))
        {[4:7, 7:10]}
        """
        if not region.boxes:
            return region
        sides = []
        for (start, stop), size in zip(region.hull(), shape, strict=True):
            extent = max(value_of(stop - start), self._tile(size))
            first = min(value_of(start), size - extent)
            sides.append((first, first + extent))
        return Region((Box(sides),))

    def within(self, region: Region, shape: Sequence[int]) -> Region:
        """The whole tiles in each box of a region of integers."""
        kept = [box for box in map(self._inside, region, [shape] * len(region)) if box is not None]
        return Region.of(*kept) if kept else EMPTY

    def _inside(self, box: Box, shape: Sequence[int]) -> Box | None:
        sides = []
        for (start, stop), size in zip(box, shape, strict=True):
            tile = self._tile(size)
            first = -(-start // tile) * tile
            last = size if stop == size else stop // tile * tile
            if first >= last:
                return None
            sides.append((first, last))
        return Box(sides)

    def _tile(self, size: int) -> int:
        return -(-size // self.parts)


def as_one(region: Region, shape: Sequence[int]) -> Region:
    """One box around a region.

    >>> as_one(Region((Box(((4, 5),)), Box(((6, 7),)))), (10,))
    {[4:7]}
    """
    return Region((region.hull(),)) if region.boxes else region


def by_image(region: Region, shape: Sequence[int]) -> Region:
    """One box around what of a region lies in each image of a batch.

    >>> parts = Box(((0, 1), (2, 3))), Box(((0, 1), (5, 6))), Box(((1, 2), (4, 5)))
    >>> by_image(Region(parts), (2, 8))
    {[0:1, 2:6], [1:2, 4:5]}
    """
    if not shape or len(region) < 2:
        return region
    found: list[Box] = []
    for box in sorted(region, key=lambda box: value_of(box[0][0])):
        if found and value_of(box[0][0]) < value_of(found[-1][0][1]):
            found[-1] = found[-1].hull(box)
        else:
            found.append(box)
    return Region.of(*found)


def onwards(region: Region, shape: Sequence[int]) -> Region:
    """All from a region's first element on, along the first dimension that it does not fill.

    >>> onwards(Region((Box(((0, 2), (4, 5))), Box(((0, 2), (7, 8))))), (2, 10))
    {[0:2, 4:10]}
    """
    if not region.boxes:
        return region
    sides = list(Box.full(shape))
    for axis, ((start, stop), size) in enumerate(zip(region.hull(), shape, strict=True)):
        if start or stop < size:
            sides[axis] = start, size
            break
    return Region((Box(sides),))
