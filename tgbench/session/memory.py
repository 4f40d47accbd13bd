"""A plan in force: its bytes of the arena, and programs specialised to them.

`Memory` writes changed inputs, turns a (state, bucket class) pair into a bound
program, and carries states from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.collector import lasting
from tgbench.base.coords import Coord, Domain, Footing, record
from tgbench.base.errors import KernelError
from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, Box, Index, Region, common_sides, thinned, union, widened
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.base.switches import PROGRAMS, tell
from tgbench.graph.graph import Node, Write
from tgbench.graph.op_table import ITEMSIZE, numpy_dtype
from tgbench.kernels.registry import ARENA, OnDevice, Ranking, View
from tgbench.memory.arena import Occupancy, Seat, memory_of
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Decisions
from tgbench.programs.held import State
from tgbench.programs.lowering import FILL
from tgbench.programs.places import Saved, Spared
from tgbench.programs.pool import Pool
from tgbench.programs.program import Program
from tgbench.programs.sites import place_of
from tgbench.programs.specialiser import Specialiser
from tgbench.programs.states import NOTHING, Alike, Coords, States, ValidityPattern
from tgbench.programs.teamwork import Teamwork
from tgbench.runs.buckets import BucketClass, Spot
from tgbench.runs.difference import hull_of
from tgbench.runs.pausing import Pausing
from tgbench.runs.propagate import (
    Propagator,
    Step,
    ValueFate,
    changes,
    handed_out,
    update_key,
)
from tgbench.runs.rules import Rules

MOST_AFTERS = 1_000  # states that a program is known to have begun with
MOST_LEFT = 4_000  # of what was valid of a value and what becomes of that, together

Fates: TypeAlias = (
    "tuple[tuple[ValueFate, ...], tuple[int, ...]]"  # different ones; which, by kept node
)
Group: TypeAlias = "tuple[int, int, tuple[Node, ...]]"  # a part of a pattern, or -1; a fate; nodes
MOST_GROUPED = 64  # ways in which parts of patterns and fates share nodes, that are remembered


class Memory:
    """One plan's bytes, where its seat in the arena was when this was made.

    Fields:
        layout: of the arena, the last one in which all was in place.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        decisions: Decisions,
        pool: Pool,
        rules: Rules,
        states: States,
        seat: Seat,
        ranking: Ranking,
        team: Teamwork | None,
        elsewhere: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.scheduled = scheduled
        self.decisions = decisions
        self.pool = pool
        self.rules = rules
        self.states = states
        slots, sliding = decisions.placement.slots, decisions.placement.sliding
        states.windows = {n: (axis, slots[n].extents[axis]) for n, axis in sliding.items()}
        self.ranking, self.team = ranking, team
        self.seat, self.part = seat, seat.part
        self.layout: Occupancy | None = None
        self.placement = seat.map(decisions.placement)
        self.arena = seat.arena.bytes
        self.elsewhere = elsewhere or _taken_elsewhere(scheduled, self.placement)
        self.buffers = pool.buffers | _typed(ARENA, self.arena)
        for device, there in self.elsewhere.items():
            self.buffers |= _typed(OnDevice(device), there)
        self.specialiser = Specialiser(
            scheduled, self.placement, decisions.cut, rules, seat.arena.device, ranking,
            decisions.classes, team,
        )  # fmt: skip
        inputs = scheduled.graph.inputs
        self._in_place = {node for node in inputs.values() if self._is_read_in_place(node)}
        self.held = {name: self._host(node) for name, node in inputs.items()}
        self._inputs, self._writes = scheduled.graph.inputs, scheduled.graph.writes
        self._replaced: list[tuple[Node, Index, Any]] = []
        self._aside = torch.empty(0, dtype=torch.uint8)  # what runs that keep nothing write over
        memo = rules.allowance.memo
        self._dirty = memo(MOST_AFTERS)  # by class
        self._lost = memo(MOST_AFTERS)  # by fate, and
        self._left_of, self._thin_left_of = memo(MOST_LEFT), memo(MOST_LEFT)  # what was valid
        self._grouped = Latest[Hashable, Sequence[Group]](MOST_GROUPED)
        made = (node for node in self.placement.retained if not node.is_leaf)
        kept = (node for node in made if node not in scheduled.frozen)
        self.kept = sorted(kept, key=lambda node: node.index)

    @property
    def propagator(self) -> Propagator:
        """How runs are decided over this map."""
        return self.specialiser.propagator

    def place(self, node: Node) -> torch.Tensor:
        """The whole of an input or a state, where it lies in the arena."""
        slot = self.placement.slots[node]
        first = slot.offset_bytes // node.type.itemsize
        return self.buffers[ARENA, node.dtype][first : first + slot.elements].view(node.shape)

    def _host(self, node: Node) -> NDArray[Any]:
        """Where the session reads an input's last value: the arena itself, if NumPy can."""
        if node in self._in_place:
            return self.place(node).numpy()
        return np.zeros(node.shape, numpy_dtype(node.dtype))

    def _is_read_in_place(self, node: Node) -> bool:
        return self.arena.device.type == "cpu" and node.dtype != "bfloat16"

    @property
    def is_in_place(self) -> bool:
        """Whether the arena still has the seat where it was, and all of it is there; if not, see
        `followed`.
        """
        layout = self.seat.arena.layout
        if layout is self.layout:
            return True
        is_there = layout.moving is None and layout.bytes is self.arena
        if not is_there or self.seat.part != self.part:
            return False
        self.layout = layout
        return True

    def followed(self) -> Memory:
        """The same over the bytes that the arena moved this one's values to."""
        found = Memory(
            self.scheduled, self.decisions, self.pool, self.rules, self.states, self.seat,
            self.ranking, self.team, self.elsewhere,
        )  # fmt: skip
        for name, node in self.scheduled.graph.inputs.items():
            if node not in self._in_place:
                found.held[name] = self.held[name]
        found._replaced = self._replaced
        return found

    def outliving(self, state: int) -> int:
        """What of a state is left when another session has used the common part."""
        slots, kept_bytes = self.decisions.placement.slots, self.decisions.placement.kept_bytes

        def is_apart(node: Node) -> bool:
            return slots[node].offset_bytes < kept_bytes or bool(node.type.device)

        return self.states.number(self.states.patterns[state].of_those(is_apart))

    # --- what a run writes, and how it is undone --------------------------------------------------
    #
    # Every part of an input or a state is noted down before it is written over. A run that came to
    # its end throws the notes away in one step (`settle`); until then `take_back` undoes it, in
    # whatever line it stopped, and may itself be stopped and called again.

    def write(self, arrays: Mapping[str, NDArray[Any]], differ: Mapping[str, Region]) -> None:
        """Take over the changed boxes of the inputs."""
        for name, region in differ.items():
            if name not in arrays:
                continue  # a state: its bytes are there already
            node, held = self._inputs[name], self.held[name]
            for index in region.indices:
                self._replaced.append((node, index, held[index].copy()))
                held[index] = arrays[name][index]
                if node not in self._in_place:
                    self._bring(node, index)

    def _bring(self, node: Node, index: Index) -> None:
        """A part of an input to where the arena has it, from where the host does."""
        self.place(node)[index].copy_(torch.from_numpy(self.held[node.name])[index])

    def _hold(self, node: Node, index: Index, part: Any) -> None:
        """Let a state hold a part, or an input: on the host and in the arena."""
        if node.op == "state":
            self.place(node)[index].copy_(part)
            return
        self.held[node.name][index] = part
        if node not in self._in_place:
            self._bring(node, index)

    def take_back(self) -> None:
        """Let inputs and states hold what they did before a run that did not come to its end."""
        while self._replaced:
            self._hold(*self._replaced[-1])
            self._replaced.pop()

    def settle(self) -> None:
        """The run is over, and its results are handed out: what it wrote stays."""
        self._replaced.clear()

    # --- runs that leave no trace -----------------------------------------------------------------

    def saved(self, program: Program) -> Saved:
        """Copies of the values that a program writes over although they may still be wanted."""
        assert program.origin is not None
        spared = program.spared
        if spared is None or not spared.moves_to(program.origin):
            spared = program.spared = self._spared(program, program.origin)
        for place, copy in spared.pairs:
            copy.copy_(place)
        return spared.pairs

    def _spared(self, program: Program, origin: tuple[int, ...]) -> Spared:
        """Where those values lie, and where copies of them go."""
        kept, sliding = self.placement.retained, self.placement.sliding
        written = {(made.result, made.box): None for made in program.instructions}
        views = {self._part(node, box): None for node, box in written if node in kept}
        views |= {self._window(node): None for node, _ in written if node in sliding}
        found = Spared(views, self.buffers, origin)
        found.pairs = self._copies(found.places)
        return found

    def _copies(self, places: Sequence[torch.Tensor]) -> Saved:
        """Each place, and memory aside that is as large."""
        size = sum(place.numel() * place.element_size() for place in places)
        if self._aside.numel() < size:
            self._aside = torch.empty(size, dtype=torch.uint8, device=self.arena.device)
        copies, first = [], 0
        for place in sorted(places, key=lambda place: -place.element_size()):
            stop = first + place.numel() * place.element_size()
            copy = _like(place, self._aside[first:stop].view(place.dtype))
            copies.append((place, copy))
            first = stop
        return copies

    def _part(self, node: Node, box: Box) -> View:
        """A box of a retained node, where it lies."""
        slot = self.placement.slots[node]
        buffer, at_byte = place_of(slot.offset_bytes, self.scheduled)
        offset: Coord = at_byte // node.type.itemsize
        for start, at, step in zip(box.starts, slot.start, slot.strides, strict=True):
            offset = offset + (start - at) * step
        return View(buffer, node.dtype, box.extents, slot.strides, offset)

    def _window(self, node: Node) -> View:
        """All bytes of a node."""
        slot = self.placement.slots[node]
        first = slot.offset_bytes // node.type.itemsize
        return View(ARENA, node.dtype, slot.extents, slot.strides, first)

    def put_back(self, saved: Saved) -> None:
        """Undo what a run wrote into inputs and retained values; states it did not touch."""
        for place, copy in saved:
            place.copy_(copy)
        self.take_back()

    def surviving(self, state: int, program: Program) -> int:
        """What of a state is left when a program ran and what it retains was put back.

        Slices are given up even where no byte of theirs was written: fewer states, fewer programs.
        """
        written = {made.result for made in program.instructions}
        kept, overlaps = self.placement.lasting, self.placement.overlaps

        def stays(node: Node) -> bool:
            return node in kept and written.isdisjoint(overlaps.get(node, ()))

        return self.states.number(self.states.patterns[state].of_those(stays))

    def state_values(self) -> dict[str, torch.Tensor]:
        """Copies of what the states hold."""
        return {name: self.place(n).clone() for name, n in self.scheduled.graph.states.items()}

    def put_state(self, name: str, array: NDArray[Any]) -> Region:
        """Let a state hold an array; returns what of it changed."""
        place = self.place(self.scheduled.graph.states[name])
        new = torch.from_numpy(np.array(array, order="C")).to(place.device, place.dtype)
        changed = _differing(place, new)
        if changed is None:
            return EMPTY
        place.copy_(new)
        return Region((changed,))

    def put(self, inputs: Mapping[str, NDArray[Any]], states: Mapping[str, torch.Tensor]) -> None:
        """Begin with the last values of another plan's memory; states without one begin at 0."""
        for name, value in inputs.items():
            self.held[name][...] = value
        for name, node in self.scheduled.graph.states.items():
            place = self.place(node)
            place.copy_(states[name]) if name in states else place.zero_()

    def update_states(self, program: Program) -> dict[str, Region]:
        """Give the states their new values; what of them changed is dirty in the next run.

        Only the parts that the graph writes are looked at; a part that changed anywhere is dirty
        throughout, so that all such runs are of one class. All states advance, or none.
        Raises KernelError for an index that a state does not have.
        """
        graph = self.scheduled.graph
        pending: dict[str, Region] = {}
        if not self._writes:
            return pending
        after = [
            (name, box, value)
            for name, writes in self._writes.items()
            for write in writes
            for box, value in self._blocks(program, name, write)
        ]
        for name, box, new in after:
            state, index = graph.states[name], box.slices()
            place = self.place(state)[index]
            differ = _differing(place, new)
            if differ is not None:
                dirty = Region((box if box != Box.full(state.shape) else differ,))
                pending[name] = pending.get(name, EMPTY).union(dirty)
                self._replaced.append((state, index, place.clone()))
                place.copy_(new)
        return pending

    def _blocks(
        self, program: Program, name: str, write: Write
    ) -> Iterator[tuple[Box, torch.Tensor]]:
        """Where a write goes, and what it puts there: neighbouring slices as one block."""
        new = self._handed(program, name, write.value)
        if write.indices is None:
            sizes = zip(write.start, new.shape, strict=True)
            yield Box((start, start + size) for start, size in sizes), new
            return
        shape, axis = self.scheduled.graph.states[name].shape, write.axis
        indices = self._handed(program, name, write.indices).tolist()
        wrong = next((at for at in indices if not -shape[axis] <= at < shape[axis]), None)
        if wrong is not None:
            raise KernelError(
                f"state {name!r} has no slice {wrong} along dimension {axis}, it has "
                f"{shape[axis]}; set it back (`session.set_state`), or make it larger"
            )
        for start, source, count in _neighbours(indices, shape[axis]):
            box = Box((start, start + count) if i == axis else (0, n) for i, n in enumerate(shape))
            yield box, new.narrow(axis, source, count)

    def _handed(self, program: Program, name: str, node: Node) -> torch.Tensor:
        """A node's whole value after a run, safe from what updates write into states."""
        found = program.results[update_key(name, node)][0][1]
        return found.clone() if self.scheduled.base[node].op == "state" else found

    def specialising(
        self,
        state: int,
        kind: BucketClass,
        origin: tuple[int, ...],
        *,
        or_more: bool,
        as_planned: bool = False,
        is_fixed: bool = False,
        leftovers: bool = True,
    ) -> Pausing[Program]:
        """Decide, lower and bind a run; right at every origin that makes the same decisions.

        See `Specialiser.specialise`. Without `leftovers`, runs to come count on nothing that is not
        kept: the fewer states there are, the more often a program is met again.
        Raises DoesNotFit if nothing fits.
        """
        held: State = self.states.patterns[state].state
        if not leftovers:
            held = yield from self._counted(held, kind, origin)
            state = self._number(held)
        made = yield from self.specialiser.specialising(
            held, kind, origin, or_more=or_more, as_planned=as_planned, is_fixed=is_fixed,
            counts_on_all=leftovers,
        )  # fmt: skip
        yield
        kept = self.placement.lasting
        left = {n: held for n, held in made.after.items() if leftovers or n in kept}
        program = Program(
            instructions=made.instructions,
            guards=made.guards,
            after=self._number(left),
            outputs=made.pieces[-1][1].outputs,
            steps=tuple(step for step, _ in made.pieces),
            made_at=origin,
            start=state,
            counts_on=state if leftovers else self._number(made.counts_on),
            renews=self._renews([step for step, _ in made.pieces])
            or (not leftovers and state == NOTHING and self._changes_all(kind, origin)),
        )
        yield from program.binding(self.buffers, origin, self.pool.prepared)
        tell(PROGRAMS, lambda: f"program for {kind}: {program.summary}")
        return program

    def deciding(
        self, state: int, kind: BucketClass, origin: tuple[int, ...]
    ) -> Pausing[tuple[Step, Domain, int]]:
        """What a run would compute, where else it does, and what it counts on, a number of
        `States`: a third of making a program, and it is remembered for that.
        """
        held = yield from self._counted(self.states.patterns[state].state, kind, origin)
        return (*(yield from self.specialiser.deciding(held, kind, origin)), self._number(held))

    def _counted(self, held: State, kind: BucketClass, origin: tuple[int, ...]) -> Pausing[State]:
        """What of a state a run looks at, and what is there whole.

        How far the last run came is nothing to this one: whoever compares with that is right at few
        places. Neither is how far its own change comes, where that is not computed all the way: a
        run that counts on nothing that changes need not follow it. In a sweep nobody knows how far
        that is.
        """
        whole = {n: there for n, there in held.items() if there.valid == Region.full(n.shape)}
        is_all_there = len(whole) == len(held)
        if is_all_there and (kind.is_swept or self._asks_for_all(kind, origin)):
            return held
        counted, stale = yield from self.specialiser.counting(held, kind, origin)
        return counted if stale and not kind.is_swept else counted | whole

    def _asks_for_all(self, kind: BucketClass, origin: tuple[int, ...]) -> bool:
        """Whether a run hands out everything, so that nothing stays stale."""
        graph = self.scheduled.graph
        with record(origin):
            asked = handed_out(graph, kind, kind.symbols)
            return graph.outputs.keys() <= asked.keys() and all(
                region == Region.full(node.shape) for node, region in asked.values()
            )

    def bind(self, program: Program, origin: tuple[int, ...]) -> None:
        """Make a program's tensors."""
        with lasting():
            program.bind(self.buffers, origin, self.pool.prepared)

    def _number(self, state: State) -> int:
        return self.states.number(ValidityPattern.of(state))

    def _renews(self, steps: Sequence[Step]) -> bool:
        """Whether all that is kept is dirty or computed: rows before the first of an image's
        patches depend on no input, and are never dirty.
        """

        def is_new(node: Node) -> bool:
            full, dirty = Region.full(node.shape), steps[0].dirty.get(node, EMPTY)
            if dirty == full:
                return True
            computed = [step.compute.get(node, EMPTY) for step in steps]
            if any(region.moves for region in (dirty, *computed)):
                return full in computed
            return not full.subtract(union([dirty, *computed])).boxes

        return all(
            is_new(node)
            for node in self.placement.retained
            if not node.is_leaf and node not in self.scheduled.frozen
        )

    def _changes_all(self, kind: BucketClass, origin: tuple[int, ...]) -> bool:
        """Whether a run takes everything for changed. All that it leaves besides what it computes
        depends on no input: where runs count on what is kept, and not on what is left by accident,
        that may be forgotten, for a program that computes everything to be known as one though it
        is not asked for all that is kept.
        """
        changed = kind.regions("changed", origin)
        leaves = self.scheduled.kept
        return all(changed.get(one.name) == Region.full(one.shape) for one in leaves)

    def after(self, program: Program, state: int, spot: Spot) -> int:
        """The state that a program leaves in a run of its class when it begins with another one."""
        if program.renews or state == program.start:
            program.beginnings.began(is_known=True)
            return program.after
        for domain, number in program.afters.get(state, ()):
            if domain.holds(spot.origin):
                program.beginnings.began(is_known=True)
                return number
        program.beginnings.began(is_known=False)
        if len(program.afters) > MOST_AFTERS:
            program.afters.clear()
        with record(spot.origin) as guards:
            number = self.states.number(self._left(program, state, spot.kind))
        program.afters.setdefault(state, []).append((Domain(guards), number))
        return number

    def after_here(self, program: Program, before: ValidityPattern, spot: Spot) -> int:
        """The state, of numbers, that a program leaves in a run when it begins with another one."""
        with Footing(spot.origin):
            different, which = self.fates(program, spot.kind)
        fates = [fate.at(spot.origin, spot.origin) for fate in different]
        known = dict[tuple[Region, int], Region]()

        def left_of(valid: Region, fate: int) -> Region:
            found = known.get((valid, fate))
            if found is None:
                found = known[valid, fate] = fates[fate].after(valid)
            return found

        left = self._left_alike(before, which, left_of)
        if self.placement.sliding:
            dirty = {node: one.at(spot.origin) for node, one in self.dirty_in(spot.kind).items()}
            after = self.states.here(program.after, spot.origin)
            left += self._windows_left(program, before.regions, dirty, after.regions)
        return self.states.number(ValidityPattern.joined(left))

    def dirty_in(self, kind: BucketClass) -> Mapping[Node, Region]:
        """What differs in runs of a class, felt or not; remembered."""
        found: Mapping[Node, Region] = self._dirty.get(kind, self._new_dirty, kind)
        return found

    def _new_dirty(self, kind: BucketClass) -> dict[Node, Region]:
        return self.propagator.forward(changes(self.scheduled.graph, kind, kind.symbols))

    def _left(self, program: Program, state: int, kind: BucketClass) -> ValidityPattern:
        """What is kept of what was there, and what was computed."""
        before = self.states.patterns[state]
        different, which = self.fates(program, kind)

        def left_of(valid: Region, fate: int) -> Region:
            what = valid, different[fate]
            found: Region = self._left_of.get(what, self._in_few_dimensions, *what)
            return found

        left = self._left_alike(before, which, left_of)
        if self.placement.sliding:
            after = self.states.patterns[program.after].regions
            left += self._windows_left(program, before.regions, self.dirty_in(kind), after)
        return ValidityPattern.joined(left)

    def _in_few_dimensions(self, valid: Region, becomes: ValueFate) -> Region:
        """What is left of what was valid: worked out once for rows of any width."""
        sides = common_sides((valid, *becomes.regions))
        what = thinned(valid, sides), becomes.thinned(sides)
        return widened(self._thin_left_of.get(what, self._after, *what), sides)

    def _after(self, valid: Region, becomes: ValueFate) -> Region:
        return becomes.after(valid, self._lost.get(becomes, becomes.lost))

    def _left_alike(
        self,
        before: ValidityPattern,
        which: tuple[int, ...],
        left_of: Callable[[Region, int], Region],
    ) -> list[Alike]:
        """What is left of each node; worked out once for all nodes of which the same was there, and
        that fare alike.

        Args:
            left_of: what a fate leaves of what was valid.
        """
        left, slots = list[Alike](), self.placement.slots
        for part, fate, nodes in self._groups(tuple([one.nodes for one in before.parts]), which):
            region = left_of(before.parts[part].valid if part >= 0 else EMPTY, fate)
            if region.boxes:
                left.append(Alike(region, slots[nodes[0]].start, nodes))
        return left

    def _groups(
        self, parts: tuple[tuple[Node, ...], ...], which: tuple[int, ...]
    ) -> Sequence[Group]:
        """Nodes that are kept of which the same was there, and that fare alike; remembered."""
        found = self._grouped.get((parts, which))
        if found is None:
            there = {node: i for i, nodes in enumerate(parts) for node in nodes}
            alike = dict[tuple[int, int, Coords, tuple[int, ...]], list[Node]]()
            slots = self.placement.slots
            for node, fate in zip(self.kept, which, strict=True):
                key = there.get(node, -1), fate, slots[node].start, node.shape
                alike.setdefault(key, []).append(node)
            found = [(one[0], one[1], tuple(nodes)) for one, nodes in alike.items()]
            self._grouped[parts, which] = found
        return found

    def fates(self, program: Program, kind: BucketClass) -> Fates:
        """What becomes of each node that is kept, where one stands, when a program runs after
        changes of a class; remembered.
        """
        return program.fates.get(kind, self._fates, program, kind)

    def _fates(self, program: Program, kind: BucketClass) -> Fates:
        dirty, numbers = self.dirty_in(kind), dict[ValueFate, int]()
        filled = {made.node for made in program.instructions if made.kernel == FILL}
        which = []
        for node in self.kept:
            fate = self.propagator.fate(node, dirty.get(node, EMPTY), program.steps)
            if node in filled:  # over what it counted on: something may have been there besides
                fate = fate.without_the_rest
            which.append(numbers.setdefault(fate, len(numbers)))
        return tuple(numbers), tuple(which)

    def _windows_left(
        self,
        program: Program,
        before: Mapping[Node, tuple[Region, Coords]],
        dirty: Mapping[Node, Region],
        after: Mapping[Node, tuple[Region, Coords]],
    ) -> list[Alike]:
        """What is in windows: as a program leaves those that it moves or writes, and the others as
        they were.
        """
        touched = {made.result for made in program.instructions}
        left = list[Alike]()
        for node in self.placement.sliding:
            if node in touched and node in after:
                left.append(Alike(*after[node], (node,)))
            elif node not in touched and node in before:
                valid, start = before[node]
                valid = valid.subtract(dirty.get(node, EMPTY))
                left += [Alike(valid, start, (node,))] if valid.boxes else []
        return left


def _like(tensor: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """As many elements, side by side, in the order in which the tensor's lie."""
    order = np.argsort([-step for step in tensor.stride()], kind="stable").tolist()
    shape = [tensor.shape[axis] for axis in order]
    return flat.view(shape).permute([order.index(axis) for axis in range(tensor.dim())])


def _differing(old: torch.Tensor, new: torch.Tensor) -> Box | None:
    """The smallest box around what differs, bit for bit; None where nothing does."""
    whole = _BITS[old.dtype.itemsize]
    return hull_of((old.view(whole) != new.view(whole)).cpu().numpy())


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _neighbours(indices: Sequence[int], size: int) -> Iterator[tuple[int, int, int]]:
    """Runs (first index, its position, length) of indices in a row; of equal ones, the last.

    >>> list(_neighbours([4, 5, 0, -1], 8))
    [(0, 2, 1), (4, 0, 2), (7, 3, 1)]
    """
    last = {at % size: i for i, at in enumerate(indices)}
    order = sorted(last)
    breaks = [0, *(i for i in range(1, len(order)) if not _goes_on(order, last, i)), len(order)]
    for first, stop in pairwise(breaks):
        yield order[first], last[order[first]], stop - first


def _goes_on(order: Sequence[int], source: Mapping[int, int], i: int) -> bool:
    before, here = order[i - 1], order[i]
    return here == before + 1 and source[here] == source[before] + 1


def _typed(buffer: Any, memory: torch.Tensor) -> dict[tuple[Any, str], torch.Tensor]:
    """Memory as one flat tensor per dtype."""
    flat: dict[tuple[Any, str], torch.Tensor] = {}
    for dtype, itemsize in ITEMSIZE.items():
        whole = memory.numel() // itemsize * itemsize
        flat[buffer, dtype] = memory[:whole].view(TORCH_DTYPES[dtype])
    return flat


def _taken_elsewhere(scheduled: ScheduledGraph, placement: Placement) -> dict[str, torch.Tensor]:
    """Memory of other devices, as much as a map takes there; raises BudgetError for too much."""
    return {
        device: memory_of(device, placement.reach_in(space))
        for space, device in enumerate(scheduled.devices, 1)
    }
