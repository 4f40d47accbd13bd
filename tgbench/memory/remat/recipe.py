"""The answer: what to compute in which order, and where each value lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from tgbench.base.words import counted, format_bytes
from tgbench.memory.packing import Buffer, Problem
from tgbench.memory.remat.schedule import Schedule
from tgbench.memory.remat.tape import Ints, Tape, record


@dataclass(frozen=True, slots=True)
class Stage:
    """Computations in schedule order, so that an engine can take them as one step.

    Fields:
        computed: positions in the schedule, ascending.
        demanded: those of them that a later stage reads or that are outputs.
    """

    computed: tuple[int, ...]
    demanded: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """A sequence of computations, and one fixed place in memory for each value.

    Fields:
        sequence: positions in the schedule; some come several times.
        offsets: in bytes, by position, of all that is computed or resident.
        scratch_offsets: in bytes, by position, of the scratch of each computation.
        height_bytes: where the highest buffer ends.
        peak_bytes: the most bytes live at once.
    """

    schedule: Schedule = field(repr=False)
    sequence: tuple[int, ...]
    offsets: Mapping[int, int] = field(hash=False, repr=False)
    scratch_offsets: Mapping[int, int] = field(hash=False, repr=False)
    height_bytes: int
    peak_bytes: int

    @cached_property
    def cost_ns(self) -> float:
        """Nanoseconds of all computations."""
        return self.schedule.cost_ns(self.sequence)

    @property
    def extra(self) -> float:
        """The share of time that goes into computing again; 0 where nothing is."""
        least = self.schedule.least_cost_ns
        return self.cost_ns / least - 1 if least else 0.0

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The sequence in maximal ascending pieces."""
        tape = record(self.schedule, self.sequence)
        return tuple(_stage(tape, start, stop) for start, stop in _ascents(self.sequence))

    def __str__(self) -> str:
        again = len(self.sequence) - len(set(self.sequence))
        return (
            f"{counted(len(self.sequence), 'computation')} in "
            f"{counted(len(self.stages), 'stage')}, {again} of them "
            f"repeated: {self.extra:.2%} extra time in {format_bytes(self.height_bytes)}"
        )


def _ascents(sequence: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Half-open pieces of ascending positions."""
    start = 0
    for step in range(1, len(sequence) + 1):
        if step == len(sequence) or sequence[step] < sequence[step - 1]:
            yield start, step
            start = step


def _stage(tape: Tape, start: int, stop: int) -> Stage:
    demanded = (tape.sequence[t] for t in range(start, stop) if tape.reads[t][-1] >= stop)
    return Stage(tape.sequence[start:stop], tuple(demanded))


# --- packing --------------------------------------------------------------------------------------


def packing_problem(tape: Tape, budget_bytes: int | None = None) -> Problem:
    """The buffers of a tape: values by position, and `position scratch`.

    A value that is computed several times is one buffer, with gaps where it is not live.
    """
    schedule, end = tape.schedule, max(len(tape.sequence), 1)
    buffers = [
        Buffer(str(i), value.size_bytes, 0, end)
        for i, value in enumerate(schedule.values)
        if value.resident
    ]
    for value, steps in sorted(tape.steps_of.items()):
        lives = [(step, min(tape.reads[step][-1] + 1, end)) for step in steps]
        buffers.append(_buffer(str(value), schedule.values[value].size_bytes, lives))
        scratch = schedule.values[value].scratch_bytes
        if scratch:
            buffers.append(
                _buffer(f"{value} scratch", scratch, [(step, step + 1) for step in steps])
            )
    return Problem(tuple(buffers), budget_bytes, schedule.alignment)


def _buffer(name: str, size_bytes: int, lives: list[tuple[int, int]]) -> Buffer:
    """A buffer that is live over these half-open intervals."""
    gaps = tuple((stop, start) for (_, stop), (start, _) in pairwise(lives) if stop < start)
    return Buffer(name, size_bytes, lives[0][0], lives[-1][1], gaps=gaps)


def recipe_of(tape: Tape, offsets: Mapping[str, int], height_bytes: int) -> Recipe:
    """The recipe with these offsets of `packing_problem`'s buffers."""
    values = {int(name): at for name, at in offsets.items() if name.isdigit()}
    scratch = {int(name.split()[0]): at for name, at in offsets.items() if not name.isdigit()}
    return Recipe(tape.schedule, tape.sequence, values, scratch, height_bytes, tape.peak_bytes)


def tops(tape: Tape, recipe: Recipe) -> Ints:
    """For each step, the end in bytes of the highest buffer that is live there."""
    schedule = tape.schedule
    residents = (
        recipe.offsets[i] + schedule.sizes[i] for i, v in enumerate(schedule.values) if v.resident
    )
    found = np.full(len(tape.sequence), max(residents, default=0), np.int64)
    for step, value in enumerate(tape.sequence):
        live = found[step : tape.reads[step][-1] + 1]
        np.maximum(live, recipe.offsets[value] + schedule.sizes[value], out=live)
        if schedule.scratch[value]:
            top = recipe.scratch_offsets[value] + schedule.scratch[value]
            found[step] = max(found[step], top)
    return found
