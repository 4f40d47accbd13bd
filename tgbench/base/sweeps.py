"""Regions of runs that are swept: known at all places, and as large wherever they stand if need be.

dirty       [2:4]  [2:5]  [3:5]  [3:6]      of a patch at 4, 5, 6, 7 behind a stride of 2
steadied    [2:5]  [2:5]  [3:6]  [3:6]      three wherever it is: code for one size computes that
"""

from __future__ import annotations

from collections.abc import Sequence

from tgbench.base.coords import moves_freely, steady
from tgbench.base.regions import Box, Region


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


def together(a: Region, b: Region) -> Region:
    """A region around two, at least one of them of a sweep: a union would be other boxes elsewhere.

    Boxes that differ in nothing but where they move are one, as those of one image of a batch.
    """
    boxes = list(a)
    for box in b:
        i = next((i for i, one in enumerate(boxes) if _stand_alike(one, box)), None)
        if i is None:
            boxes.append(box)
        else:
            boxes[i] = boxes[i].hull(box)
    return Region.of(*boxes)


def _stand_alike(one: Box, other: Box) -> bool:
    """Whether two boxes are the same where neither moves."""
    return all(
        mine == theirs or any(map(moves_freely, (*mine, *theirs)))
        for mine, theirs in zip(one, other, strict=True)
    )
