"""Sessions that are checked at every run: poisoned memory, full recomputation, honest validity.

CheckedSession   before a run, every byte that no valid node holds is garbage;
                 after it, results and everything claimed to be valid equal the references
small_sessions   random graphs with their values, and the budgets that are worth trying
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tgbench.base.errors import BudgetError
from tgbench.base.regions import Region
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import HOME
from tgbench.graph.reference import evaluate
from tgbench.kernels.registry import ARENA, OnDevice
from tgbench.memory.placement import SPACE_BYTES, Slot
from tgbench.programs.held import Held
from tgbench.runs.buckets import region_of_index
from tgbench.session.check.copies import parameters
from tgbench.session.memory import Memory
from tgbench.session.running import Decision, Outcome, Runner
from tgbench.session.session import GraphSession
from tgbench.session.standing import Keeper

Array = np.ndarray[Any, Any]
HUGE = np.float32(1e30).tobytes()  # as float64 1e237, as float16 10824 and −13904: all finite


class Wrong(AssertionError):  # noqa: N818
    """A result, or something held to be valid, differs from full recomputation."""


class PoisonedRunner(Runner):
    """Before every run, fills each byte of the arena that holds nothing valid with garbage."""

    poison: bytes = HUGE

    def execute(self, run: Decision, turn: Any = None) -> Outcome:
        fill_invalid(self.keeper, self.poison)
        return super().execute(run, turn)


class PoisonedSession(GraphSession):
    runs_by = PoisonedRunner


def held_values(keeper: Keeper) -> dict[Node, Held]:
    """What the session says that its arena holds, at the last run's origin; what notes say too."""
    standing = keeper.standing
    if standing.last is None:
        return {}
    valid = keeper.earlier.read(standing.notes) if standing.notes else standing.valid
    return keeper.states.patterns[valid].at(standing.last.origin).state


def valid_bytes(keeper: Keeper, device: str) -> Array:
    """A flag per byte of a device's memory: whether an input, a state or a valid element lies
    there.
    """
    memory = keeper.memory
    flags = np.zeros(_memory_of(memory, device).numel(), bool)
    for node in memory.placement.slots:
        if node.is_leaf and not device:
            flags[_bytes_of(memory, node)] = True
    for node, held in held_values(keeper).items():
        if node.type.device != device:
            continue
        slot = memory.placement.slots[node]
        inside = in_slot(flags[_bytes_of(memory, node)], slot)
        for box in held.valid:
            inside[_within(box, held.start)] = True
    return flags


def _memory_of(memory: Memory, device: str) -> torch.Tensor:
    return memory.elsewhere[device] if device else memory.arena


def in_slot(flat: Array, slot: Slot) -> Array:
    """A slot's numbers, or the bytes of each, by coordinate: a view of the flat array."""
    order = slot.order or tuple(range(len(slot.extents)))
    shaped = flat.reshape(*(slot.extents[axis] for axis in order), -1)
    return shaped.transpose(*map(order.index, range(len(order))), len(order))


def _bytes_of(memory: Memory, node: Node) -> slice:
    slot = memory.placement.slots[node]
    first = slot.offset_bytes % SPACE_BYTES
    return slice(first, first + slot.elements * node.type.itemsize)


def _within(box: Any, start: Any) -> tuple[slice, ...]:
    return tuple(slice(int(a - s), int(b - s)) for (a, b), s in zip(box, start, strict=True))


def fill_invalid(keeper: Keeper, poison: bytes) -> None:
    for device in (HOME, *keeper.memory.elsewhere):
        memory = _memory_of(keeper.memory, device).numpy()
        garbage = np.frombuffer(poison * (memory.size // len(poison) + 1), np.uint8)[: memory.size]
        np.copyto(memory, garbage, where=~valid_bytes(keeper, device))


def held_array(memory: Memory, node: Node, held: Held) -> list[tuple[Any, Array]]:
    """The valid boxes of a node, with the numbers that the arena has there."""
    slot = memory.placement.slots[node]
    place = in_slot(_flat(memory, node).numpy(), slot)[..., 0]
    return [(box, place[_within(box, held.start)]) for box in held.valid]


def held_beside(
    session: GraphSession, leaves: Mapping[str, Array]
) -> Iterator[tuple[Node, Any, Array, Array]]:
    """The valid boxes of every node, with what the arena has there, and what it should have."""
    held, graph = held_values(session.keeper), session.scheduled.graph
    known = parameters(session) | dict(leaves)  # some follow from those that were given
    used = {n: a for n, a in known.items() if any(n in group for group in _leaves(graph))}
    right = evaluate(graph, used, nodes=[node.name for node in held])
    for node, what in held.items():
        for box, found in held_array(session.memory, node, what):
            yield node, box, found, right[node.name][box.slices()]


def _flat(memory: Memory, node: Node) -> torch.Tensor:
    slot, device = memory.placement.slots[node], node.type.device
    flat = memory.buffers[OnDevice(device) if device else ARENA, node.dtype]
    first = slot.offset_bytes % SPACE_BYTES // node.type.itemsize
    return flat[first : first + slot.elements]


class CheckedSession:
    """Runs a poisoned session and compares every run with the references.

    Values are integers small enough that float arithmetic is exact, so equality is exact.
    """

    def __init__(
        self, graph: Graph, values: Mapping[str, Array], *, poison: bytes = HUGE, **options: Any
    ) -> None:
        parameters = {name: values[name] for name in graph.parameters}
        self.session = PoisonedSession(graph, weights=parameters, **options)
        self.session.runner.poison = poison
        self.graph = graph
        self.parameters = parameters
        self.values = {name: values[name] for name in graph.inputs}
        self.states = {
            name: np.zeros(node.shape, node.dtype) for name, node in graph.states.items()
        }

    def run(
        self, inputs: Mapping[str, Array] | None = None, want: Any = None, **options: Any
    ) -> dict[str, Any]:
        """One run; raises Wrong where anything differs from the references."""
        given = self.values if inputs is None else inputs
        result = self.session.run(given, want=want, **options)
        now = self.values | dict(given)
        last = self.session.last
        if last is not None and not last.program.domain.holds(last.program.origin or ()):
            raise Wrong(f"a program runs at {last.program.origin}, where it is not right")
        self._check_results(result, want, now | self.parameters | self.states)
        if options.get("keep", True):
            self.values = now
        leaves = self.values | self.parameters | self.states
        self._check_validity(leaves)
        self._advance(leaves)
        return result

    def _check_results(
        self, result: Mapping[str, Any], want: Any, leaves: Mapping[str, Array]
    ) -> None:
        expected = evaluate(self.graph, leaves)
        wanted = dict.fromkeys(self.graph.outputs, ...) if want is None else want
        if set(result) != set(wanted):
            raise Wrong(f"asked for {list(wanted)}, got {list(result)}")
        for name, index in wanted.items():
            for found, right in zip(*_parts(result[name], index, expected[name]), strict=True):
                if found.dtype != right.dtype or not np.array_equal(found, right):
                    raise Wrong(f"{name}[{index}] is\n{found}\nand should be\n{right}")

    def _check_validity(self, leaves: Mapping[str, Array]) -> None:
        """What is called valid holds the value for these inputs, asked for or not."""
        for node, box, found, right in held_beside(self.session, leaves):
            if not np.array_equal(found, right):
                raise Wrong(
                    f"{node!r} is held to be valid at {box}, holding\n{found}\n"
                    f"and should hold\n{right}"
                )

    def _advance(self, leaves: Mapping[str, Array]) -> None:
        self.states |= self.states_after(leaves)

    def states_after(self, leaves: Mapping[str, Array]) -> dict[str, Array]:
        """What the states hold after a run of these values."""
        names = {name: node.name for name, node in self.graph.updates.items()}
        found = evaluate(self.graph, leaves, nodes=list(names.values())) if names else {}
        return {name: found[node] for name, node in names.items()}


def _leaves(graph: Graph) -> tuple[Mapping[str, Node], ...]:
    return graph.inputs, graph.parameters, graph.states


def _parts(found: Any, index: Any, right: Array) -> tuple[list[Array], list[Array]]:
    if isinstance(index, Region):
        return list(found), [right[box.slices()] for box in index]
    if isinstance(index, list):
        return list(found), [right[part] for part in index]
    return [found], [right[index]]


def smallest_budget(
    graph: Graph, values: Mapping[str, Array], want: Any = None, **options: Any
) -> int:
    """The budget that the error names when there is none at all."""
    probe = CheckedSession(graph, values, memory=0, **options)
    try:
        probe.session.run(probe.values, want=want)
    except BudgetError as error:
        return error.needed_bytes
    return 0  # nothing depends on an input


def region_of(index: Any, shape: tuple[int, ...]) -> Region:
    """The region that an index asks for."""
    return region_of_index(index, shape, "want")
