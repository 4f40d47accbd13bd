"""Numbers that go with a place in any way: tables over the places that an entry of an origin takes.

A linear form of a patch's place says where it is after a convolution only at every second one, and
not at a border. A *table* says it everywhere: one number for each place.

    place            u0 =  0  1  2  3  4  5  6         of a patch of 2, in 8 elements
    first output           0  0  1  1  2  2  2         stride 2, and two outputs wherever it is

Tables are numbered from `FIRST` on, where linear forms name entries of an origin (`coords.Moving`):
what a form with such a term is, is known at all places, so that a comparison which comes out the
same at each of them needs no guard.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Terms: TypeAlias = tuple[tuple[int, int], ...]  # (entry of an origin, or table; coefficient)
Numbers: TypeAlias = NDArray[np.int64]
Entries: TypeAlias = Sequence[int] | Mapping[int, int]  # of an origin; and what tables say there
FIRST = 1 << 20  # the number of the first table
MOST_NUMBERS = 1 << 21  # of all tables, three times 8 bytes each: past them, what is not linear
# is held to its number
MOST_PLACES = 1 << 12  # that an entry may take


class Swept(NamedTuple):
    """What a number is at each place.

    Fields:
        of: the entry of an origin whose places these are.
        numbers: one for each value of that entry, from 0 on.
        listed: the same, which is quicker to look up.
    """

    of: int
    numbers: Numbers
    listed: array[int]


class _Tables:
    """All tables of the process: by number, and what they are; how many numbers that is."""

    def __init__(self) -> None:
        self.found: list[Swept] = []
        self.known: dict[tuple[int, bytes], int] = {}
        self.size = 0


_HELD = _Tables()


def table(index: int, numbers: Numbers) -> int | None:
    """The number of a table, the same for equal ones; None where there are too many."""
    key = index, numbers.tobytes()
    found = _HELD.known.get(key)
    if found is None and _HELD.size + len(numbers) <= MOST_NUMBERS:
        _HELD.size += len(numbers)
        _HELD.found.append(Swept(index, numbers, array("q", numbers.tolist())))
        found = _HELD.known[key] = FIRST + len(_HELD.found) - 1
    return found


def read(index: int) -> Swept:
    """The table of a number."""
    return _HELD.found[index - FIRST]


def entry(origin: Entries, index: int) -> int:
    """An entry of an origin, or what a table says there."""
    if index < FIRST:
        return origin[index]
    known = read(index)
    return known.listed[origin[known.of]]


class Lookup:
    """Some tables, read together: dozens of them for each move of a program over an image."""

    def __init__(self, tables: Iterable[int]) -> None:
        found = [read(index) for index in tables]
        self._of = np.array([one.of for one in found], np.intp)
        stops = np.cumsum([0, *(len(one.numbers) for one in found)])
        self._begins = stops[:-1]
        self._numbers = np.concatenate([np.zeros(0, np.int64), *(one.numbers for one in found)])

    def at(self, origin: Numbers) -> Numbers:
        """What each says at an origin."""
        found: Numbers = self._numbers[self._begins + origin[self._of]]
        return found


def total(const: int, terms: Terms, origin: Entries) -> int:
    """const + Σ coefficient · entry."""
    for index, coefficient in terms:
        const += coefficient * entry(origin, index)
    return const


def is_swept(terms: Terms) -> bool:
    """Whether a table is among the terms."""
    return bool(terms) and terms[-1][0] >= FIRST


def base(index: int) -> int:
    """The entry of an origin that a term goes with."""
    return index if index < FIRST else read(index).of


@lru_cache(1 << 14)
def sums(terms: Terms) -> Mapping[int, Numbers] | None:
    """Σ coefficient · table of each entry's tables; None where an entry itself is among the terms,
    of whose places nothing is known.
    """
    found: dict[int, Numbers] = {}
    for index, coefficient in terms:
        if index < FIRST:
            return None
        known = read(index)
        mine = coefficient * known.numbers
        before = found.get(known.of)
        if before is not None and len(before) != len(mine):
            return None  # of boxes that differ in size; they are not of one class
        found[known.of] = mine if before is None else before + mine
    return found


def alone(terms: Terms) -> tuple[int, Numbers] | None:
    """The entry that terms go with, and their sum at each of its places; None where they go with
    several.
    """
    found = sums(terms)
    return None if found is None or len(found) > 1 else next(iter(found.items()))


@lru_cache(1 << 14)
def spread(terms: Terms) -> tuple[int, int] | None:
    """The least and the largest sum at any place; None where that is not known."""
    found = sums(terms)
    if found is None:
        return None
    parts = found.values()
    return sum(int(one.min()) for one in parts), sum(int(one.max()) for one in parts)


def around(is_so: NDArray[np.bool_], here: int) -> tuple[int, int]:
    """The longest run of places about one, where something holds as it does there: first, last."""
    wrong = np.flatnonzero(~is_so)
    at = int(np.searchsorted(wrong, here))
    low = int(wrong[at - 1]) + 1 if at else 0
    high = int(wrong[at]) - 1 if at < len(wrong) else len(is_so) - 1
    return low, high


def bases(terms: Iterable[tuple[int, int]]) -> set[int]:
    """The entries of an origin that terms go with."""
    return {base(index) for index, _ in terms}
