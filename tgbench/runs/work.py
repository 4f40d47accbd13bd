"""How long runs of one class take wherever they stand, as far as a model says.

    a part, asked about at two places       18 rows 41 µs, 64 rows 122 µs
    anywhere                                9 µs + 1.77 µs a row

A change in the first row of a text costs more than one in the last: whoever compares programs
compares them where the run is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from tgbench.base.coords import Coord, Moving, at
from tgbench.base.forms import Forms

Place: TypeAlias = tuple[int, ...]  # an origin


class Work:
    """Parts of some runs, added up: what takes as long anywhere, and what goes by extents.

    Fields:
        still_ns: the former.
        moves: whether it takes longer at some places than at others.

    >>> from tgbench.base.coords import origin_symbol
    >>> work = Work()
    >>> work.add((128 - origin_symbol(0), 4), lambda place: 10 + 2 * (128 - place[0]), (28,), (64,))
    >>> work.at((28,)), work.at((118,))
    (210.0, 30.0)
    """

    __slots__ = ("_extents", "_known", "_rates", "moves", "still_ns")

    def __init__(self) -> None:
        self.still_ns, self.moves = 0.0, False
        self._extents = Forms()
        self._rates: dict[tuple[int, ...], float] = {}  # nanoseconds by products of extents
        self._known: dict[Place, float] = {}

    def add(
        self,
        extents: Sequence[Coord],
        time_ns: Callable[[Place], float],
        here: Place,
        there: Place | None,
    ) -> None:
        """One more part.

        Args:
            extents: of what is computed.
            time_ns: what a model says of it at a place.
            here: where the run stands that it is asked about.
            there: another place of its class; None where it is no place for this part, which then
                goes in proportion.
        """
        here_ns = time_ns(here)
        moving = tuple([one for one in extents if type(one) is Moving])
        count = _product(moving, here)
        if not moving or count <= 0:
            self.still_ns += here_ns
            return
        rate = here_ns / count
        other = 0 if there is None else _product(moving, there)
        if there is not None and other > 0 and other != count:
            rate = min(max((time_ns(there) - here_ns) / (other - count), 0.0), rate)
        which = tuple(map(self._extents.number, moving))
        self._rates[which] = self._rates.get(which, 0.0) + rate
        self.moves = True
        self.still_ns += here_ns - rate * count

    def at(self, place: Place) -> float:
        """Nanoseconds at a place."""
        if not self.moves:
            return self.still_ns
        found = self._known.get(place)
        if found is None:
            if len(self._known) >= MOST_PLACES:
                self._known.clear()
            sizes = [max(size, 0) for size in self._extents.at(place)]
            found = self.still_ns
            for which, rate in self._rates.items():
                for i in which:
                    rate *= sizes[i]
                found += rate
            self._known[place] = found
        return found


MOST_PLACES = 256  # at which is remembered what it takes


def _product(extents: Sequence[Coord], place: Place) -> int:
    return prod(max(at(one, place), 0) for one in extents)
