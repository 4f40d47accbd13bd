"""A plan in force: its arena, and programs specialised to it.

`Memory` owns the bytes. It writes changed inputs, turns a (state, bucket class) pair into a bound
program, and carries states from one run to the next. `Library` remembers programs.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.anatomy import Anatomy
from tgbench.buckets import BucketClass, boxes_of
from tgbench.coords import record
from tgbench.graph import Node
from tgbench.kernels.registry import ARENA
from tgbench.lowering import DoesNotFit, Lowerer, Lowering, State, Unreadable
from tgbench.optable import ITEMSIZE, numpy_dtype
from tgbench.plan import Decisions
from tgbench.pool import Pool
from tgbench.program import Program
from tgbench.propagate import Propagator, Step, joined
from tgbench.regions import Region
from tgbench.rules import Rules
from tgbench.split import WHOLE, Cut, cuts, demands
from tgbench.states import Pattern, States
from tgbench.weights import TORCH_DTYPES


class Memory:
    """One plan's arena, and what works on it."""

    def __init__(
        self,
        anatomy: Anatomy,
        decisions: Decisions,
        pool: Pool,
        rules: Rules,
        states: States,
        device: str,
    ) -> None:
        self.anatomy = anatomy
        self.decisions = decisions
        self.placement = decisions.placement
        self.states = states
        size = max(self.placement.size_bytes, ITEMSIZE["float64"])
        self.arena = torch.zeros(size, dtype=torch.uint8, device=device)
        self.buffers = pool.buffers | _typed(self.arena)
        storage = self.placement.storage(anatomy)
        self.propagator = Propagator(anatomy.graph, storage, rules, anatomy.schedule)
        self.held = {name: self._host(node) for name, node in anatomy.graph.inputs.items()}
        self.lowerer = Lowerer(anatomy, self.placement, rules, device)
        self._replaced: list[tuple[NDArray[Any], tuple[slice, ...], NDArray[Any]]] = []

    def place(self, node: Node) -> torch.Tensor:
        """The whole of an input or a state, where it lies in the arena."""
        slot = self.placement.slots[node]
        first = slot.offset_bytes // node.type.itemsize
        return self.buffers[ARENA, node.dtype][first : first + slot.elements].view(node.shape)

    def _host(self, node: Node) -> NDArray[Any]:
        """Where the session reads an input's last value: the arena itself, if NumPy can."""
        if self.arena.device.type == "cpu" and node.dtype != "bfloat16":
            return self.place(node).numpy()
        return np.zeros(node.shape, numpy_dtype(node.dtype))

    def write(self, arrays: Mapping[str, NDArray[Any]], differ: Mapping[str, Region]) -> None:
        """Take over the changed boxes of the inputs; `take_back` undoes it."""
        self._replaced.clear()
        for name, region in differ.items():
            if name not in arrays:
                continue  # a state: its bytes are there already
            held, node = self.held[name], self.anatomy.graph.inputs[name]
            for box in region:
                index = box.slices()
                self._replaced.append((held, index, held[index].copy()))
                held[index] = arrays[name][index]
                if self.arena.device.type != "cpu" or node.dtype == "bfloat16":
                    source = torch.from_numpy(np.array(held[index], order="C"))
                    self.place(node)[index].copy_(source)

    def take_back(self) -> None:
        """The inputs of a run that failed were none: let the ones before them be held again."""
        for held, index, old in reversed(self._replaced):
            held[index] = old

    def adopt_states(self, other: Memory) -> None:
        """Take over the values that another plan's arena holds for the states."""
        for node in self.anatomy.graph.states.values():
            self.place(node).copy_(other.place(node))

    def update_states(self, program: Program) -> dict[str, Region]:
        """Give the states their new values; what of them changed is dirty in the next run."""
        graph, pending = self.anatomy.graph, {}
        after = {name: program.results[_update_key(name)][0][1] for name in graph.updates}
        for name, node in graph.updates.items():
            if self.anatomy.base[node].op == "state":  # one that another update may overwrite
                after[name] = after[name].clone()
        before: dict[str, torch.Tensor] = {}
        try:
            for name, new in after.items():
                place = self.place(graph.states[name])
                region = boxes_of((place != new).cpu().numpy())
                if region.boxes:
                    pending[name] = region
                    before[name] = place.clone()
                    place.copy_(new)
        except BaseException:
            for name, old in before.items():  # all states advance, or none
                self.place(graph.states[name]).copy_(old)
            raise
        return pending

    def specialise(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> Program:
        """Decide, lower and bind a run; right at every origin that makes the same decisions.

        Whole if it fits, else in pieces, coarse ones first. Raises DoesNotFit if nothing does.
        """
        with _no_collection():
            return self._specialised(state, kind, origin)

    def _specialised(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> Program:
        planned = self.decisions.cut
        tried = [WHOLE, *([planned] if planned != WHOLE else []), *cuts(self.propagator)]
        for cut in tried:
            try:
                with record() as guards:
                    made = self._lowered(state, kind, origin, cut)
            except DoesNotFit as error:
                failure = error
                continue
            program = Program(
                instructions=tuple(i for _, lowering in made for i in lowering.instructions),
                guards=frozenset(guards),
                after=self.states.number(Pattern.of(made[-1][1].after)),
                outputs=made[-1][1].outputs,
                steps=tuple(step for step, _ in made),
            )
            program.bind(self.buffers, origin)
            return program
        raise failure

    def _lowered(
        self, state: int, kind: BucketClass, origin: tuple[int, ...], cut: Cut
    ) -> list[tuple[Step, Lowering]]:
        symbols = kind.symbols(origin)
        leaves = {node.name: node for node in self.anatomy.kept}
        changed: Mapping[Node, Region] = {
            leaves[name]: region for name, region in kind.regions("changed", symbols).items()
        }
        named = self._named(kind, symbols)
        demand = joined(named.values())
        held: State = self.states.patterns[state].state(origin)
        asked: Sequence[Mapping[Node, Region]] = [demand]
        if cut != WHOLE:
            whole = self.propagator.step(_valid(held), changed, demand)
            asked = demands(self.propagator, whole, cut, demand)
        made = []
        for i, part in enumerate(asked):
            names = named if i == len(asked) - 1 else {}
            step, lowering = self._readable(held, changed, part, names)
            made.append((step, lowering))
            held, changed = lowering.after, {}
        return made

    def _named(self, kind: BucketClass, symbols: Sequence[Any]) -> dict[str, tuple[Node, Region]]:
        """What is handed out: demanded outputs, and the next values of the states."""
        graph = self.anatomy.graph
        named = {
            name: (graph.outputs[name], region)
            for name, region in kind.regions("demand", symbols).items()
        }
        for name, node in graph.updates.items():
            named[_update_key(name)] = (node, Region.full(node.shape))
        return named

    def _readable(
        self,
        held: State,
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        named: Mapping[str, tuple[Node, Region]],
    ) -> tuple[Step, Lowering]:
        """Decide and lower, computing again what a kernel could not read where it lies."""
        avoid: list[Node] = []
        while True:
            step = self.propagator.step(_valid(held), changed, demand, avoid)
            try:
                return step, self.lowerer.lower(step, held, named)
            except Unreadable as found:
                avoid.append(found.node)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Specialising makes many small lasting objects; a full collection there costs more than it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _update_key(name: str) -> str:
    return f"update {name}"


def _valid(state: State) -> dict[Node, Region]:
    return {node: held.valid for node, held in state.items()}


def _typed(arena: torch.Tensor) -> dict[tuple[Any, str], torch.Tensor]:
    """The arena as one flat tensor per dtype."""
    flat: dict[tuple[Any, str], torch.Tensor] = {}
    for dtype, itemsize in ITEMSIZE.items():
        whole = arena.numel() // itemsize * itemsize
        flat[ARENA, dtype] = arena[:whole].view(TORCH_DTYPES[dtype])
    return flat


class Library:
    """Programs by (state, bucket class), bounded in bytes; the least used go first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.evicted = 0
        self._shelves: OrderedDict[tuple[int, BucketClass], list[Program]] = OrderedDict()

    def find(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> Program | None:
        """A program that is right at this origin, if one is there."""
        shelf = self._shelves.get((state, kind))
        for program in shelf or ():
            if program.domain.holds(origin):
                self._shelves.move_to_end((state, kind))
                return program
        return None

    def add(self, state: int, kind: BucketClass, program: Program) -> None:
        self._shelves.setdefault((state, kind), []).insert(0, program)
        self._shelves.move_to_end((state, kind))
        self.size_bytes += program.size_bytes
        while self.size_bytes > self.limit_bytes and len(self) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, shelf = next(iter(self._shelves.items()))
        self.size_bytes -= shelf.pop().size_bytes
        self.evicted += 1
        if not shelf:
            del self._shelves[key]

    def clear(self) -> None:
        self._shelves.clear()
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    def __iter__(self) -> Any:
        return (
            (state, kind, program)
            for (state, kind), shelf in self._shelves.items()
            for program in shelf
        )
