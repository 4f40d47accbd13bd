"""Regions of runs that are swept: known at all places, and as large wherever they stand if need be.

dirty       [2:4]  [2:5]  [3:5]  [3:6]      of a patch at 4, 5, 6, 7 behind a stride of 2
steadied    [2:5]  [2:5]  [3:6]  [3:6]      three wherever it is: code for one size computes that
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tgbench.base.coords import moves_freely, steady
from tgbench.base.regions import Box, Interval, Region


def is_free(region: Region) -> bool:
    """Whether a region is of a sweep: what it is, is known at all places. Asked of every region."""
    for box in region.boxes:
        for start, stop in box:
            if type(start) is not int and moves_freely(start):
                return True
            if type(stop) is not int and moves_freely(stop):
                return True
    return False


def steadied(region: Region, shape: Sequence[int]) -> Region:
    """A region around one of a sweep, whose boxes are as large wherever they stand."""
    if not is_free(region):
        return region
    return Region.of(
        *(
            Box(steady(*interval, size) for interval, size in zip(box, shape, strict=True))
            for box in region
        )
    )


def around(*boxes: Box) -> Region:
    """The union of boxes; in a sweep a region around it. What one box has beside another would be
    none, or other boxes, elsewhere: those that meet wherever neither moves are one, as those of an
    image of a batch.
    """
    if not any(box.moves for box in boxes):
        return Region.of(*boxes)
    free = [any(map(moves_freely, chain(*sides))) for sides in zip(*boxes, strict=True)]
    if not any(free):
        return Region.of(*boxes)
    found: dict[tuple[Interval, ...], Box] = {}
    for box in boxes:
        wide, stands = box, _standing(box, free)
        while (other := next((one for one in found if _meet(one, stands)), None)) is not None:
            wide = wide.hull(found.pop(other))
            stands = _standing(wide, free)
        found[stands] = wide
    return Region.of(*found.values())


def _standing(box: Box, free: Sequence[bool]) -> tuple[Interval, ...]:
    """The sides of a box that do not go with a sweep."""
    return tuple([side for side, is_free in zip(box, free, strict=True) if not is_free])


def _meet(one: Sequence[Interval], other: Sequence[Interval]) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))
