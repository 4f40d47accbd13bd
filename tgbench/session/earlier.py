"""What is there still after runs that computed everything that was asked for.

    before ── a run that counts on nothing ──→ what it computed
       └──── less what changed, less what it wrote over ──→ is there as well

A program for everything takes all inputs for changed, and so it leaves what it computes and nothing
else. But where less was asked for than there is, and less has changed, the rest of what stood
before is still there, and right. Such a run only makes a note of what stood before it. The notes
are read when somebody looks for a program that counts on something. Equal layers fare alike, and
are followed as one.
"""

from __future__ import annotations

import time
from math import inf
from typing import NamedTuple, TypeAlias

from tgbench.base.coords import Footing
from tgbench.base.regions import EMPTY, Region
from tgbench.graph.graph import Node
from tgbench.programs.held import Held
from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING, ValidityPattern
from tgbench.runs.buckets import Boxes, Bucket, Place, Spot
from tgbench.runs.raster import onwards
from tgbench.session.memory import Fates, Memory

MOST_NOTES = 8  # past this the oldest is forgotten


class Note(NamedTuple):
    """A run that counted on nothing.

    Fields:
        valid, last: what stood before it, a number of `States`, and what run that was of.
        changed: what of the inputs and states differed.
        program, origin: what computed it, and where.
    """

    valid: int
    last: Spot | None
    changed: Boxes
    program: Program
    origin: Place


Notes: TypeAlias = "tuple[Note, ...]"  # the oldest first; each stands on what the one before left


class Reader:
    """Works out what notes say.

    Args:
        memory: the plan in force.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory, self._leaves_all = memory, dict[int, bool]()

    def is_all(self, notes: Notes, valid: int, program: Program) -> bool:
        """Whether what a program leaves is all there is: nothing stood before it, or all that is
        kept is there now.
        """
        if valid == NOTHING and not notes:
            return True
        found = self._leaves_all.get(program.after)
        if found is None:
            found = self._leaves_all[program.after] = self._is_whole(program.after)
        return found

    def _is_whole(self, state: int) -> bool:
        """Whether all that is kept is there in a state."""
        left = self.memory.states.patterns[state].regions
        return all(
            node in left and left[node][0] == Region.full(node.shape) for node in self.memory.kept
        )

    def read(self, notes: Notes, most_ns: float = inf) -> int:
        """What is there after the last of them, a number of `States`; what that run computed and
        nothing else, where it takes longer than `most_ns` to find out.
        """
        states, kept, first = self.memory.states, self.memory.kept, notes[0]
        before = {} if first.last is None else states.here(first.valid, first.last.origin).regions
        bases = [before[node][0] if node in before else EMPTY for node in kept]
        spots = [self._around(note.changed) for note in notes]
        fates, until_ns = list[Fates](), time.thread_time_ns() + most_ns
        for note, spot in zip(notes, spots, strict=True):
            if time.thread_time_ns() > until_ns:
                return notes[-1].program.after
            fates.append(self._fates(note, spot))
        places = [(spot.origin, note.origin) for note, spot in zip(notes, spots, strict=True)]
        known = dict[tuple[Region, tuple[int, ...]], Region]()
        left = dict[Node, Held]()
        slots = self.memory.placement.slots
        for node, base, *which in zip(kept, bases, *(each for _, each in fates), strict=True):
            key = base, tuple(which)
            region = known.get(key)
            if region is None:
                region = base
                for (different, _), i, at in zip(fates, which, places, strict=True):
                    region = different[i].at(*at).after(region)
                known[key] = region
            if region.boxes:
                left[node] = Held(region, slots[node].start)
        return states.number(ValidityPattern.of(left | self._windows(notes[-1])))

    def follow(self, changed: Boxes, program: Program) -> None:
        """Find out what reading a note of such a run takes: the first time is the longest."""
        spot = self._around(changed)
        with Footing(spot.origin):
            self.memory.fates(program, spot.kind)

    def _windows(self, note: Note) -> dict[Node, Held]:
        """What the last of the runs left in windows."""
        there = self.memory.states.here(note.program.after, note.origin).state
        return {node: held for node, held in there.items() if node in self.memory.placement.sliding}

    def _around(self, changed: Boxes) -> Spot:
        """All from what changed on: so that there are few classes."""
        graph = self.memory.scheduled.graph
        leaves = {**graph.inputs, **graph.states}
        more = {name: onwards(region, leaves[name].shape) for name, region in changed}
        return Bucket.of(more, {}).classify(graph, "onwards")

    def _fates(self, note: Note, spot: Spot) -> Fates:
        """What becomes of each node that is kept."""
        with Footing(spot.origin):
            return self.memory.fates(note.program, spot.kind)
