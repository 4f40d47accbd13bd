"""A slow, obvious checker of recipes. It shares no code with the planner.

It runs the recipe on an arena of bytes, poisoned everywhere. Every byte of a value holds a mark of
its own; a read that finds another one is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tgbench.memory.remat.recipe import Recipe


@dataclass(frozen=True, slots=True)
class BadRead:
    """A value is not in its place when it is read."""

    name: str
    at_step: int  # the length of the sequence for the end


@dataclass(frozen=True, slots=True)
class SelfOverlap:
    """A computation writes over what it reads, or over its own scratch."""

    name: str
    at_step: int


@dataclass(frozen=True, slots=True)
class OutsideArena:
    """A buffer does not lie within the budget, or not at a multiple of the alignment."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class WrongStages:
    """The stages do not ascend, do not make up the sequence, or demand too little."""

    stage: int


Finding: TypeAlias = BadRead | SelfOverlap | OutsideArena | WrongStages


def replay(recipe: Recipe, budget_bytes: int) -> list[Finding]:
    """Everything wrong with a recipe; an empty list when it is right.

    Sizes are whole units of the alignment, and one byte of the arena stands for one unit.
    """
    return [*_outside(recipe, budget_bytes), *_run(recipe, budget_bytes), *_stages(recipe)]


def _outside(recipe: Recipe, budget_bytes: int) -> Iterator[OutsideArena]:
    for offsets, suffix in ((recipe.offsets, ""), (recipe.scratch_offsets, " scratch")):
        for i, offset in offsets.items():
            value = recipe.schedule.values[i]
            size = value.scratch_bytes if suffix else value.size_bytes
            if offset < 0 or offset % recipe.schedule.alignment or offset + size > budget_bytes:
                yield OutsideArena(value.name + suffix, offset)


def _run(recipe: Recipe, budget_bytes: int) -> Iterator[Finding]:
    schedule = recipe.schedule
    values, unit = schedule.values, schedule.alignment
    arena = np.full(budget_bytes // unit + 1, -1, np.int64)  # -1 is poison

    def place(offset: int, size_bytes: int) -> slice:
        return slice(offset // unit, offset // unit + -(-size_bytes // unit))

    def home(i: int) -> slice:
        return place(recipe.offsets[i], values[i].size_bytes)

    def right(i: int) -> bool:
        return bool((arena[home(i)] == i).all()) and (values[i].resident or i in done)

    done: set[int] = set()
    for i, value in enumerate(values):
        if value.resident:
            arena[home(i)] = i
    for step, i in enumerate(recipe.sequence):
        for read in values[i].inputs:
            if not right(read):
                yield BadRead(values[read].name, step)
        if values[i].scratch_bytes:
            arena[place(recipe.scratch_offsets[i], values[i].scratch_bytes)] = -1
        arena[home(i)] = i
        done.add(i)
        if not all(right(read) for read in values[i].inputs):
            yield SelfOverlap(values[i].name, step)
        if values[i].scratch_bytes:
            arena[place(recipe.scratch_offsets[i], values[i].scratch_bytes)] = -1
            if not right(i) or not all(right(read) for read in values[i].inputs):
                yield SelfOverlap(values[i].name, step)
    for i, value in enumerate(values):
        if value.output and not right(i):
            yield BadRead(value.name, len(recipe.sequence))


def _stages(recipe: Recipe) -> Iterator[WrongStages]:
    """A stage that reads what it does not compute relies on a demand of an earlier one."""
    values = recipe.schedule.values
    demanded: set[int] = set()
    for number, stage in enumerate(recipe.stages):
        own: set[int] = set()
        ascends = list(stage.computed) == sorted(set(stage.computed))
        for i in stage.computed:
            asked = own | demanded
            reads = (read for read in values[i].inputs if not values[read].resident)
            ascends = ascends and all(read in asked for read in reads)
            own.add(i)
        if not ascends:
            yield WrongStages(number)
        demanded = (demanded - own) | set(stage.demanded)
    joined = tuple(i for stage in recipe.stages for i in stage.computed)
    outputs = {i for i, value in enumerate(values) if value.output and not value.resident}
    if joined != recipe.sequence or not outputs <= demanded:
        yield WrongStages(len(recipe.stages))
