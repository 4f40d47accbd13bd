"""What stands between two runs: a plan in force, its bytes, and what they hold.

    nothing planned ── install ──→ in force ── install ──→ another plan, the same values
           ↑                           │
           └───────── release ─────────┘

All of it is one value, `Standing`, that is replaced as a whole. Whatever stops a run or a plan in
whatever line finds either the one before or the one after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from tgbench.base.errors import PlanError
from tgbench.base.regions import EMPTY, Region
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.graph.graph import Node
from tgbench.kernels.registry import Ranking
from tgbench.memory.arena import check_map
from tgbench.plans.decisions import Decisions
from tgbench.programs.program import Program
from tgbench.programs.program_file import Entry
from tgbench.programs.states import States
from tgbench.runs.buckets import Boxes, Place, Spot
from tgbench.session.chooser import Chooser
from tgbench.session.earlier import MOST_NOTES, Note, Notes, Reader
from tgbench.session.library import Library
from tgbench.session.memory import Memory
from tgbench.session.planning import Planning

Array = NDArray[Any]
UNPLANNED = "nothing is planned yet; call `run` or `optimize` first"
NONE: Mapping[str, Any] = MappingProxyType({})


class Standing(NamedTuple):
    """What stands between two runs.

    Fields:
        memory: the plan in force and its bytes; None before the first.
        held: the last value of every input; empty before there is one.
        states: what the states hold while no plan is in force.
        is_fresh: whether the bytes hold what the last run left; the next one computes everything
            if not.
        valid: which values are there, a number of `States`; 0 for none.
        last: what run they are of; None where nothing is valid.
        pending: what of the states the next run finds changed.
        notes: of runs before this one, of whose values some may be there as well.
    """

    memory: Memory | None = None
    held: Mapping[str, Array] = NONE
    states: Mapping[str, torch.Tensor] = NONE
    is_fresh: bool = False
    valid: int = 0
    last: Spot | None = None
    pending: Mapping[str, Region] = NONE
    notes: Notes = ()


class Keeper:
    """Keeps a plan in force, and what stands between the runs under it.

    Fields:
        standing: as it is now.
        states: the patterns that `standing.valid` counts.
        programs: what was made for this plan.
        plans: how many were put in force.
        chooser: picks one of them for a run.

    Args:
        ranking: which kernels its calls are lowered by, the best first.
    """

    def __init__(
        self, planning: Planning, program_bytes: int, chooser: Chooser, ranking: Ranking
    ) -> None:
        self.planning, self.ranking = planning, ranking
        self.seat, self.arena = planning.seat, planning.seat.arena
        self.states = States(planning.rules.allowance)
        self.programs, self.chooser = Library(program_bytes), chooser
        self.standing = self._stale = Standing()
        self.plans = 0
        self._reader: Reader | None = None

    @property
    def memory(self) -> Memory:
        """The plan in force and its bytes; raises PlanError before the first plan."""
        memory = self.standing.memory
        if memory is None:
            raise PlanError(UNPLANNED)
        return memory

    def check_planned(self) -> None:
        """Raise PlanError before the first plan."""
        if self.standing.memory is None:
            raise PlanError(UNPLANNED)

    # --- plans -----------------------------------------------------------------------------------

    def install(self, decisions: Decisions) -> None:
        """Put a plan that fits in force; an interrupt leaves none, and every value as it was."""
        check_map(decisions.placement)
        for space, device in enumerate(decisions.scheduled.devices, 1):
            self.planning.pool.check_room(device, decisions.placement.reach_in(space))
        self.follow_arena()
        self.planning.scheduled = decisions.scheduled
        self._stand_aside()
        self._drop_programs()
        self.seat.take(decisions.placement)
        held, states = self.standing.held, self.standing.states
        memory = Memory(
            decisions.scheduled, decisions, self.planning.pool, self.planning.rules, self.states,
            self.seat, self.ranking, self.planning.team,
        )  # fmt: skip
        memory.put(held, states)
        self.standing = Standing(memory, memory.held if held else NONE)
        self.plans += 1

    def _stand_aside(self) -> None:
        """No plan is in force; inputs and states are copies."""
        self.standing = self._stale = self.apart()

    def apart(self) -> Standing:
        """Inputs and states as they are now, apart from any plan."""
        memory, held, states, *_ = self.standing
        if memory is not None:
            held = {name: array.copy() for name, array in held.items()}
            states = memory.state_values()
        return Standing(None, held, states)

    def stand(self, other: Standing) -> None:
        """Start from what stood apart from the plan of another graph with the same leaves.

        A leaf that this one does not read any more counts for nothing.
        """
        graph = self.planning.graph
        held = {name: array for name, array in other.held.items() if name in graph.inputs}
        states = {name: value for name, value in other.states.items() if name in graph.states}
        self.standing = Standing(None, held, states)

    def follow_arena(self) -> None:
        """Take account of what happened since this session's last run came to its end.

        Other sessions of the arena ran or moved it; a run of this one was stopped in the middle.
        """
        memory = self.standing.memory
        if memory is None:
            return
        if memory.layout is not self.arena.layout and not memory.is_in_place:
            memory = self._followed(memory)
        memory.settle() if self.standing.is_fresh else memory.take_back()
        if self.arena.last_ran != self.seat.number:
            left = memory.outliving(self.standing.valid)
            self.standing = self.standing._replace(valid=left, notes=())

    def _followed(self, memory: Memory) -> Memory:
        """The same memory, where the arena has it now."""
        self.arena.finish_move()
        if memory.is_in_place:
            return memory
        self._drop_programs()
        memory = memory.followed()
        held = memory.held if self.standing.held else NONE
        self.standing = self.standing._replace(memory=memory, held=held, notes=())
        return memory

    def take(self, programs: Iterable[Entry]) -> int:
        """Remember programs that were made elsewhere; returns how many were not there."""
        taken = 0
        for _, alike in groupby(programs, lambda entry: entry[:2]):
            for state, kind, program in reversed(list(alike)):  # as a library has them, last first
                if self.programs.find(state, kind, program.made_at) is None:
                    self.programs.add(state, kind, program)
                    taken += 1
        return taken

    def _drop_programs(self) -> None:
        self.programs.clear()
        self.chooser.forget()
        self._reader = None

    def forget(self) -> None:
        """Let nothing count that was computed: the same inputs and states alone stand."""
        memory, held, states, *_ = self.standing
        stale = self._stale
        if stale.memory is not memory or stale.held is not held or stale.states is not states:
            stale = self._stale = Standing(memory, held, states)
        self.standing = stale

    def bound_states(self, most_bytes: int) -> None:
        """Drop patterns that nothing counts on, if they all take more; every program, too, if those
        that these count on are most of them.
        """
        if self.states.size_bytes <= most_bytes:
            return
        self.chooser.wanted = None  # what is begun may have numbered some
        for _, _, program in self.programs:
            program.afters.clear()
        self.states.forget_others(self._counted_on())
        if self.states.size_bytes > most_bytes // 2:
            self._drop_programs()
            self.standing = self.standing._replace(notes=())
            self.states.forget_others([self.standing.valid])

    def _counted_on(self) -> Iterator[int]:
        """The numbers of what is valid, of what programs that are there begin with, look at and
        leave, and of what the chooser knows something of.
        """
        yield self.standing.valid
        yield from self.chooser.states
        for state, _, program in self.programs:
            yield from (state, program.start, program.counts_on, program.after)
        for note in self.standing.notes:
            yield from (note.valid, note.program.after)

    def left_by(self, program: Program, spot: Spot, before: Standing) -> int:
        """What a program leaves of what stood before, and what it computed."""
        if program.renews:
            return program.after
        if before.last is None or self.chooser.strict or program.beginnings.recur():
            state = self.states.moved(before.valid, before.last, spot)
            return self.memory.after(program, state, spot)
        there = self.states.here(before.valid, before.last.origin)
        return self.memory.after_here(program, there, spot)

    @property
    def earlier(self) -> Reader:
        """Reads notes of runs under the plan in force."""
        if self._reader is None:
            self._reader = Reader(self.memory)
        return self._reader

    def noted(self, program: Program, origin: Place, changed: Boxes, before: Standing) -> Notes:
        """What to remember of what stood before a program that leaves what it computes."""
        reader = self._reader or self.earlier
        if self.chooser.strict or reader.is_all(before.notes, before.valid, program):
            return ()
        note = Note(before.valid, before.last, changed, program, origin)
        return (*before.notes, note)[-MOST_NOTES:]

    def read_notes(self) -> None:
        """Count what earlier runs left and none has written over, if that can be paid for."""
        valid = self.earlier.read(self.standing.notes, self.chooser.reading_ns)
        self.standing = self.standing._replace(valid=valid, notes=())

    def release(self) -> None:
        """Give the bytes back; inputs, states and all that was computed are gone."""
        self._drop_programs()
        self.standing = self._stale = Standing()
        self.seat.leave()

    # --- states ----------------------------------------------------------------------------------

    def state_value(self, node: Node) -> Array:
        """A copy of what a state holds now; 0 everywhere before the first run."""
        self.follow_arena()
        memory = self.standing.memory
        values = self.standing.states if memory is None else memory.state_values()
        zeros = torch.zeros(node.shape, dtype=TORCH_DTYPES[node.dtype])
        value = values.get(node.name, zeros).cpu()
        array: Array = (value.float() if node.dtype == "bfloat16" else value).numpy().copy()
        return array

    def set_state(self, node: Node, array: Array) -> None:
        """Let a state hold a checked array; what that changes is pending."""
        self.follow_arena()
        memory = self.standing.memory
        if memory is None:
            value = torch.from_numpy(array.copy()).to(self.arena.device, TORCH_DTYPES[node.dtype])
            states = {**self.standing.states, node.name: value}
            self.standing = self.standing._replace(states=states)
            return
        pending = self.standing.pending.get(node.name, EMPTY)
        self._await(node.name, Region.full(array.shape))  # in case of an interrupt
        self._await(node.name, pending.union(memory.put_state(node.name, array)))

    def _await(self, name: str, changed: Region) -> None:
        pending = {**self.standing.pending, name: changed}
        self.standing = self.standing._replace(pending=pending)
