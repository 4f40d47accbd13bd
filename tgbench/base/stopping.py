"""Why a search ended: the word that every search of this package says it with, in files too."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why a search ended; equal to its word.

    >>> StopReason("steps") is StopReason.STEPS, StopReason.STEPS == "steps"
    (True, True)
    """

    NO_SEARCH = "greedy"  # none was asked for: what is quickly found is the answer
    FITS = "everything fits"  # within what is given, so that nothing is to be chosen
    OPTIMAL = "optimal"  # it is shown that nothing is better
    INFEASIBLE = "nothing fits"  # it is shown, or found, that nothing meets the limit
    NOTHING_BETTER = "nothing better"  # the bounds of all that is left say so
    SETTLED = "settled"  # nothing that is tried improves it
    PACKED = "packed"  # the model's best answer packs, or what comes nearest to it
    STEPS = "steps"  # all that were given are taken
    SECONDS = "time"  # it is over
    STOPPED = "stopped"  # the caller asked for it
    INTERRUPTED = "interrupted"  # from the keyboard
    RUNNING = "running"  # it did not end: it told of its best so far, and nothing after it
    WORKERS_LOST = "workers lost"
    PROCESS_LOST = "process lost"
