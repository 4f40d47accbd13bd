"""Whether one plan's replay is behind another's before it is at its end.

calls of the trace ─→ by what runs, and after what ─→ of each kind, how much longer they took
                                                      └─ scaled to all of that kind, and summed up

Most plans that are laid out turn out to take longer than the best one, and most do within their
first calls. The means of kinds of calls add up to what the whole trace is expected to take longer,
and their spread to how far that may be off: stratified sampling, with the correction for finite
populations (Cochran, Sampling Techniques, 1977, ch. 5). Of a kind that was hardly seen the other
calls may take no time at all. Candidates that race, and leave once they are behind by more than
chance, are due to Maron and Moore (Hoeffding races, 1994).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise

SEEN = 4  # calls of a kind, before these tell what the others of it take
BEYOND = 3.0  # standard errors that are more than chance


class ReplayRace:
    """One replay against another one of the same calls.

    Args:
        classes: of the calls, in order; a call is of a kind with those of its class that come after
            the same one. The first counts for nothing, as it finds nothing.
        times_ns: what the other's calls took, as far as it was replayed.
        off: how many times too fast the calls may be expected to be, beside the other's.

    >>> race = ReplayRace("aaaaaaaab", [9.0, *7 * [2.0], 8.0])
    >>> race.is_lost([9.0, 3.0, 3.0, 3.0, 3.0])  # the last call is of a kind that may take nothing
    False
    >>> race.is_lost([9.0, 4.0, 4.0, 4.0, 4.0])  # and does not make up for that
    True
    """

    def __init__(
        self, classes: Sequence[Hashable], times_ns: Sequence[float], off: float = 1.0
    ) -> None:
        self._off = off
        self._calls = list(zip(pairwise(classes), times_ns[1:], strict=False))
        self._all: dict[tuple[Hashable, Hashable], list[float]] = {}
        for pair, other_ns in self._calls:
            self._all.setdefault(pair, []).append(other_ns)

    def is_lost(self, times_ns: Sequence[float]) -> bool:
        """Whether the calls of the whole trace take longer, by what the first of them took."""
        seen: dict[tuple[Hashable, Hashable], list[float]] = {pair: [] for pair in self._all}
        for (pair, other_ns), mine_ns in zip(self._calls, times_ns[1:], strict=False):
            seen[pair].append(mine_ns * self._off - other_ns)
        longer_ns = variance = 0.0
        for pair, others_ns in self._all.items():
            told, there = seen[pair], len(others_ns)
            left = there - len(told)
            if left and len(told) < SEEN:
                longer_ns += math.fsum(told) - math.fsum(others_ns[len(told) :])
                continue
            mean_ns = math.fsum(told) / len(told)
            longer_ns += there * mean_ns
            if left:
                squares = math.fsum((one - mean_ns) ** 2 for one in told) / (len(told) - 1)
                variance += there * left * squares / len(told)
        return longer_ns > BEYOND * math.sqrt(variance)
