"""The fewest faults in a row that do the same harm: some left out, others sooner or smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from faults.case import Json, harm_of

TRIES = 3  # a kill comes at another moment each time
Harms = Callable[[Sequence[Json]], str | None]


def shrunk(faults: Sequence[Json], harm: str, seconds: float, harms: Harms = harm_of) -> list[Json]:
    """The smallest list found in that time; what is harmed stays the same."""
    end, found = time.monotonic() + seconds, list(faults)
    while time.monotonic() < end:
        smaller = next((one for one in _smaller(found, end) if _does(one, harm, harms)), None)
        if smaller is None:
            break
        found = smaller
    return found


def _does(faults: Sequence[Json], harm: str, harms: Harms) -> bool:
    what = harm.partition(":")[0]
    return any((harms(faults) or "").partition(":")[0] == what for _ in range(TRIES))


def _smaller(faults: list[Json], end: float) -> Iterator[list[Json]]:
    """Half of them, all but one, and one with a number halved; until the time is over."""
    half = len(faults) // 2
    proposals = [faults[half:], faults[:half]] if half else []
    proposals += [faults[:i] + faults[i + 1 :] for i in range(len(faults)) if len(faults) > 1]
    for i, fault in enumerate(faults):
        for key, value in fault.items():
            if isinstance(value, int) and value:
                proposals.append([*faults[:i], {**fault, key: value // 2}, *faults[i + 1 :]])
    for proposal in proposals:
        if time.monotonic() > end:
            return
        yield proposal
