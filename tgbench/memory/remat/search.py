"""Large-neighbourhood search: keep some repeated values after all, repair elsewhere, compare.

Every feasible tape is a neighbour of others: take some of its repeated computations out, so that
too much is live, and `repair` it with other tastes. What fits again and costs less is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from tgbench.memory.remat.policies import POLICIES, simulate
from tgbench.memory.remat.repair import Taste, repair, vacuum
from tgbench.memory.remat.schedule import Schedule
from tgbench.memory.remat.tape import Tape, record

NOISE = (0.0, 0.3, 1.0)
THRIFT = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_COST = 8.0  # times the least cost, above which no start is followed
SQUEEZE = 0.97  # of the peak, that a squeeze aims at next
TRIES = 8  # repairs that may fail before a squeeze ends


def starts(schedule: Schedule, budget_bytes: int) -> Iterator[Tape]:
    """Tapes within the budget: of every policy, as it is and cleaned, and of repairs."""
    once = record(schedule, schedule.once)
    limit = MOST_COST * schedule.least_cost_ns
    for policy in POLICIES.values():
        sequence = simulate(schedule, budget_bytes, policy, limit)
        if sequence is not None:
            tape = record(schedule, sequence)
            yield vacuum(tape, budget_bytes)
            yield tape
    for thrift in THRIFT:
        found = repair(once, budget_bytes, limit, Taste(0.0, thrift), Random(0))
        if found is not None:
            yield vacuum(found, budget_bytes)


def squeezed(tape: Tape, budget_bytes: int, random: Random) -> Tape:
    """The tape repaired to lower and lower peaks, down to the budget or to where that fails.

    It gets where one repair does not, as each has little to do and so makes few mistakes.
    """
    limit = MOST_COST * tape.schedule.least_cost_ns
    failures = 0
    while tape.peak_bytes > budget_bytes and failures < TRIES:
        share = 1 - (1 - SQUEEZE) / 2**failures
        level = max(budget_bytes, int(tape.peak_bytes * share))
        found = repair(tape, level, limit, any_taste(random), random)
        if found is None:
            failures += 1
        else:
            tape, failures = found, 0
    return tape


def any_taste(random: Random) -> Taste:
    return Taste(random.choice(NOISE), random.choice(THRIFT))


# --- neighbours -----------------------------------------------------------------------------------


def neighbour(tape: Tape, budget_bytes: int, slack: float, random: Random) -> Tape | None:
    """Another tape within the budget, at most `slack` of the least cost dearer; None if not found.

    Raises `IndexError` for a tape without repeated computations, which has no neighbours.
    """
    limit = tape.cost_ns + slack * tape.schedule.least_cost_ns
    rest = tape.without(random.choice(CHOICES)(tape, random))
    found = repair(rest, budget_bytes, limit, any_taste(random), random)
    return None if found is None else vacuum(found, budget_bytes)


def few(tape: Tape, random: Random) -> list[int]:
    """Any repeated computations."""
    count = min(len(tape.repeats), random.choice((1, 2, 3, 5, 8)))
    return random.sample(tape.repeats, count)


def near(tape: Tape, random: Random) -> list[int]:
    """The repeated computations of a stretch of the tape."""
    at = random.randrange(len(tape.repeats))
    return list(tape.repeats[at : at + random.choice((2, 4, 8, 16))])


def across(tape: Tape, random: Random) -> list[int]:
    """Of the repeated computations whose values are gone at one step, some."""
    at = random.choice(tape.repeats)
    step = random.randrange(max(1, at))
    share = random.choice((0.3, 0.6, 1.0))
    gone = [t for t in tape.repeats if tape.latest(tape.sequence[t], t) < step <= t]
    return [t for t in gone if random.random() < share] or [at]


CHOICES: tuple[Callable[[Tape, Random], list[int]], ...] = (few, near, across)
