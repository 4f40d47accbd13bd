"""Lists that are sorted by cost and made as far as anybody asks.

    CostStream(source)      what an iterator hands out in order, remembered
    together(a, b, …)       one of each, cheapest sums first
    either(heads)           whichever is next, of streams that come in order of their first

Choices that do not depend on each other are streams, and so is everything that is made of them:
10^80 combinations are no more work than the few that are looked at.

Source: Huang and Chiang, Better k-best parsing (2005), algorithm 3; here costs are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import fsum
from typing import Generic, TypeVar

from tgbench.base.errors import PlanError

Value = TypeVar("Value", covariant=True)
One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Priced(Generic[Value]):
    """Something and what it costs."""

    cost: float
    value: Value


class CostStream(Generic[One]):
    """What a source hands out, cheapest first.

    An iterator that something stopped looks as if it had nothing left. So one that was interrupted
    is made anew, and goes on behind what was seen: what it is made of is remembered in streams of
    its own, and only the innermost has its work to do again.

    Args:
        make: makes the source; the same one each time.

    >>> stream = CostStream(lambda: (Priced(float(n), n) for n in range(3)))
    >>> stream[1].value, stream.get(3)
    (1, None)
    """

    def __init__(self, make: Callable[[], Iterable[Priced[One]]]) -> None:
        self._make = make
        self._source: Iterator[Priced[One]] | None = iter(make())
        self._seen: list[Priced[One]] = []

    def get(self, place: int) -> Priced[One] | None:
        """The one at a place; None where there are not so many.

        Raises PlanError if a source that was interrupted comes to other costs when it is made anew.
        """
        while len(self._seen) <= place:
            source, self._source = self._source, None  # whatever stops it stops it for good
            source = source if source is not None else self._made_anew()
            found = next(source, None)
            self._source = source
            if found is None:
                return None
            self._seen.append(found)
        return self._seen[place]

    def _made_anew(self) -> Iterator[Priced[One]]:
        """The source, behind what was seen of it."""
        source = iter(self._make())
        for before in self._seen:
            again = next(source, None)
            if again is None or again.cost != before.cost:
                raise PlanError(
                    "what paths cost has changed since they were interrupted; ask for paths anew"
                )
        return source

    def __getitem__(self, place: int) -> Priced[One]:
        found = self.get(place)
        if found is None:
            raise IndexError(place)
        return found

    def __iter__(self) -> Iterator[Priced[One]]:
        place = 0
        while (found := self.get(place)) is not None:
            yield found
            place += 1


def together(streams: Sequence[CostStream[One]]) -> Iterator[Priced[tuple[One, ...]]]:
    """One of each stream, by the sum of costs; each combination once.

    Sums are rounded once, so that more of one is never less of the sum, and the order holds.

    >>> digits = [CostStream(lambda: (Priced(float(n), n) for n in range(10)))] * 2
    >>> [priced.value for _, priced in zip(range(4), together(digits))]
    [(0, 0), (0, 1), (1, 0), (0, 2)]
    """
    if any(stream.get(0) is None for stream in streams):
        return
    start = (0,) * len(streams)
    heap = [(fsum(stream[0].cost for stream in streams), start, 0)]
    while heap:
        cost, places, first = heappop(heap)
        chosen = [stream[i] for stream, i in zip(streams, places, strict=True)]
        yield Priced(cost, tuple(one.value for one in chosen))
        for at in range(first, len(streams)):  # a combination is reached from one other alone
            after = streams[at].get(places[at] + 1)
            if after is not None:
                moved = (*places[:at], places[at] + 1, *places[at + 1 :])
                costs = [one.cost for one in chosen]
                costs[at] = after.cost
                heappush(heap, (fsum(costs), moved, at))


def either(streams: Iterable[CostStream[One]]) -> Iterator[Priced[One]]:
    """What streams hold that come in the order of their first ones; none of them is empty."""
    source = iter(streams)
    coming = next(source, None)
    heap: list[tuple[float, int, int, CostStream[One]]] = []
    count = 0
    while heap or coming is not None:
        while coming is not None and (not heap or coming[0].cost < heap[0][0]):
            heappush(heap, (coming[0].cost, count, 0, coming))
            coming, count = next(source, None), count + 1
        _, number, place, stream = heappop(heap)
        yield stream[place]
        after = stream.get(place + 1)
        if after is not None:
            heappush(heap, (after.cost, number, place + 1, stream))
