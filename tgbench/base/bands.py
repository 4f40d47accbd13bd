"""Sets of elements as bands: intervals of the first dimension, each with what is there in the rest.

    # # # · ·      [0:2, 0:3]
    # # # · ·
    · · · # #      [2:3, 3:5]

Bands lie apart, in order, and are as long as may be, so that a set has one form. Here they are of
numbers; those that follow an origin are in `regions`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

Sides: TypeAlias = "tuple[tuple[int, int], ...]"  # where a box starts and stops
Section: TypeAlias = "Sequence[Sides]"  # boxes, in bands
Band: TypeAlias = "tuple[int, int, Section]"  # start, stop, and what is there in the rest
FAR = 1 << 62  # beyond all coordinates
BEHIND: Band = FAR, FAR, ()  # all others


class How(NamedTuple):
    """Which elements of two sets: those of the first alone, of both, of the second alone."""

    ours: bool
    both: bool
    theirs: bool


UNION = How(ours=True, both=True, theirs=True)
INTERSECTION = How(ours=False, both=True, theirs=False)
DIFFERENCE = How(ours=True, both=False, theirs=False)


def combined(ours: Section, theirs: Section, how: How) -> Section:
    """Two sets in one: a pass over the bands of both.

    >>> combined([((0, 4), (0, 9))], [((1, 2), (3, 9))], DIFFERENCE)
    [((0, 1), (0, 9)), ((1, 2), (0, 3)), ((2, 4), (0, 9))]
    """
    if not ours:
        return theirs if how.theirs else ()
    if not theirs:
        return ours if how.ours else ()
    if ours == theirs:
        return ours if how.both else ()
    found: list[Band] = []
    mine, others = bands(ours), bands(theirs)
    i, j, count, count_there = 1, 1, len(mine), len(others)
    (a, b, here), (c, d, there) = mine[0], others[0]
    while a < FAR or c < FAR:
        if a < c:
            start, stop, section = a, b if b < c else c, here if how.ours else ()
        elif c < a:
            start, stop, section = c, d if d < a else a, there if how.theirs else ()
        else:
            start, stop, section = a, b if b < d else d, combined(here, there, how)
        if a == start:
            a = stop
            if a == b:
                a, b, here = mine[i] if i < count else BEHIND
                i += 1
        if c == start:
            c = stop
            if c == d:
                c, d, there = others[j] if j < count_there else BEHIND
                j += 1
        if not section:
            continue
        if found and found[-1][1] == start and found[-1][2] == section:
            found[-1] = found[-1][0], stop, section
        else:
            found.append((start, stop, section))
    return [((start, stop), *rest) for start, stop, section in found for rest in section]


def bands(boxes: Section) -> list[Band]:
    """The bands of boxes that are in bands already.

    >>> bands([((0, 2), (0, 3)), ((2, 3), (0, 1)), ((2, 3), (3, 5))])
    [(0, 2, [((0, 3),)]), (2, 3, [((0, 1),), ((3, 5),)])]
    """
    found, section, begins = list[Band](), list[Sides](), -FAR
    for box in boxes:
        start, stop = box[0]
        if start != begins:
            begins, section = start, []
            found.append((start, stop, section))
        section.append(box[1:])
    return found


def banded(boxes: Section) -> list[Sides]:
    """Any boxes, that may overlap, in bands.

    >>> banded([((0, 2), (0, 5)), ((1, 3), (4, 5))])
    [((0, 2), (0, 5)), ((2, 3), (4, 5))]
    """
    return _banded(boxes, 0)


def _banded(boxes: Section, axis: int) -> list[Sides]:
    """In the dimensions from one on."""
    first = boxes[0]
    if len(boxes) == 1 or axis == len(first):
        return [first[axis:]]
    side = first[axis]
    if all(box[axis] == side for box in boxes):
        return [(side, *rest) for rest in _banded(boxes, axis + 1)]
    found: list[Band] = []
    beginning = defaultdict[int, list[Sides]](list)
    for box in boxes:
        beginning[box[axis][0]].append(box)
    inside: list[Sides] = []
    for start, stop in pairwise(sorted({end for box in boxes for end in box[axis]})):
        inside = [box for box in inside if start < box[axis][1]]
        inside += beginning.get(start, ())
        if not inside:
            continue
        section = _banded(inside, axis + 1)
        if found and found[-1][1] == start and found[-1][2] == section:
            found[-1] = found[-1][0], stop, section
        else:
            found.append((start, stop, section))
    return [((start, stop), *rest) for start, stop, section in found for rest in section]
