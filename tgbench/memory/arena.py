"""Bytes that several sessions share, one running at a time.

What must outlive a session's run (inputs, states, retained nodes) has bytes of its own, its *fixed
part*. What only lives inside a run lies in the *common part*, where every run of one session
writes over what another session left:

    0 ┌───────────────┐
      │ encoder       │  fixed parts: disjoint, at the lowest place that is free
      │ decoder       │
      │               │  free
      ├───────────────┤  ceiling: the largest of the common parts reaches down to here
      │ ┌───────────┐ │
      │ │ encoder   │ │  common parts: each reaches up to the end, so none moves when
      │ └─ decoder ─┘ │  another one grows
      └───────────────┘  size_bytes

A session that is alone is the same with one part, in an arena that is as large as that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from threading import RLock
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.errors import BudgetError, GraphError, PlanError
from tgbench.base.safetensors import device_of
from tgbench.base.surroundings import plainly
from tgbench.base.words import format_bytes
from tgbench.graph.op_table import ITEMSIZE
from tgbench.memory.estimate import Budget, resident_bytes
from tgbench.memory.placement import ALIGNMENT, SPACE_BYTES, Placement, Scratch, aligned

NOBODY = 0


class Placed(Protocol):
    """A plan, as far as an arena has to know it."""

    @property
    def placement(self) -> Placement: ...


Made = TypeVar("Made", bound=Placed)
BISECTIONS = 4  # each is a plan; the last one decides over 1/16 of what there is to gain


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one session in an arena.

    Fields:
        offset_bytes: where its fixed part begins.
        fixed_bytes: inputs, states and retained nodes.
        common_bytes: slices and scratch, at the end of the arena.
    """

    offset_bytes: int
    fixed_bytes: int
    common_bytes: int

    @property
    def stop_bytes(self) -> int:
        """Exclusive end of the fixed part."""
        return self.offset_bytes + self.fixed_bytes


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What lies where; an arena replaces it as a whole, so an interrupt finds the old or the new.

    Fields:
        bytes: the arena's memory.
        parts: by number of the seat.
        moving: bytes that have to be copied to an offset before anything is read or placed.
    """

    bytes: torch.Tensor
    parts: Mapping[int, Part]
    moving: tuple[int, torch.Tensor] | None = None


def ceiling(parts: Iterable[Part], size_bytes: int) -> int:
    """How far up fixed parts may reach."""
    common = max((part.common_bytes for part in parts), default=0)
    return (size_bytes - common) // ALIGNMENT * ALIGNMENT


def lay_out(parts: Mapping[int, Part], key: int, new: Part, size_bytes: int) -> dict[int, Part]:
    """The parts with a new or another one under `key`; the others move only if they must.

    The caller has made sure that there is room for all of them.

    >>> parts = {1: Part(0, 64, 0), 3: Part(192, 64, 128)}
    >>> lay_out(parts, 2, Part(0, 128, 64), 512)[2].offset_bytes
    64
    """
    others = {k: part for k, part in parts.items() if k != key}
    top = ceiling([*others.values(), new], size_bytes)
    offset = _gap(others.values(), new.fixed_bytes, top)
    if offset is None:
        offset = 0
        for k, part in sorted(others.items(), key=lambda item: item[1].offset_bytes):
            others[k] = replace(part, offset_bytes=offset)
            offset += part.fixed_bytes
    return {**others, key: replace(new, offset_bytes=offset)}


def _gap(parts: Iterable[Part], size_bytes: int, top: int) -> int | None:
    """The lowest free place below `top`; None also where one of the parts reaches over it."""
    offset, found = 0, None
    for part in sorted(parts, key=lambda part: part.offset_bytes):
        if found is None and offset + size_bytes <= part.offset_bytes:
            found = offset
        offset = max(offset, part.stop_bytes)
    if offset > top:
        return None
    return offset if found is None and offset + size_bytes <= top else found


def check_map(placement: Placement) -> None:
    """Raise PlanError if what lies below `kept_bytes` cannot be told from the rest.

    No planner makes such a placement; a file can hold one.
    """
    top = placement.kept_bytes
    if top % ALIGNMENT:
        raise PlanError(f"kept_bytes: {top} is not a multiple of {ALIGNMENT}")
    spans = [(n.name, s.offset_bytes, placement.size_of(n)) for n, s in placement.slots.items()]
    spans += [(n.name, s.offset_bytes, s.size_bytes) for n, s in placement.scratch.items()]
    for name, offset, size in spans:
        if offset < top < offset + size:
            raise PlanError(f"kept_bytes: {top} lies inside {name}; delete the plan to plan anew")
    for node, slot in placement.slots.items():
        if node.is_leaf and slot.offset_bytes >= top:
            raise PlanError(f"kept_bytes: {node.name} lies above; delete the plan to plan anew")


def moved(placement: Placement, fixed_shift: int, common_shift: int) -> Placement:
    """A placement with all below `kept_bytes` shifted by one number of bytes, the rest by another.

    Its sizes stay as they were.
    """
    if not fixed_shift and not common_shift:
        return placement

    def at(offset: int) -> int:
        if offset >= SPACE_BYTES:  # on another device
            return offset
        return offset + (fixed_shift if offset < placement.kept_bytes else common_shift)

    slots = {
        node: replace(slot, offset_bytes=at(slot.offset_bytes))
        for node, slot in placement.slots.items()
    }
    scratch = {
        node: Scratch(at(room.offset_bytes), room.size_bytes)
        for node, room in placement.scratch.items()
    }
    return replace(placement, slots=slots, scratch=scratch)


def memory_of(device: str, size_bytes: int) -> torch.Tensor:
    """Bytes of a device with anything in them: nothing is read that was not written.

    Raises BudgetError where it does not give as many.
    """
    size = max(size_bytes, ITEMSIZE["float64"])
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise BudgetError(
            f"{device} does not give the {format_bytes(size)} that the arena needs; pass a smaller "
            "`memory`, or demand less at once",
            budget_bytes=size, needed_bytes=size, lower_bound_bytes=size, step=0, nodes=(),
        ) from error  # fmt: skip


class Arena:
    """One byte buffer that sessions on a device lie in; pass it to each as `arena=`.

    Sessions of one arena run one at a time: a run in a second thread waits for the first. A
    session that is released or collected gives its part back.

    Args:
        device: "cpu" or "cuda:0".
        size: bytes, "2GiB": taken at once, and never changed. None: as large as the sessions
            need, "auto" or "auto:2GiB": up to what the device has left beside their weights;
            these two grow, and every growth makes all sessions prepare their programs again.

    Raises GraphError for a size that is none, and a device that is not there.
    """

    @plainly
    def __init__(self, device: str = "cpu", size: int | str | None = None) -> None:
        device_of(device, GraphError)
        self.device = device
        self.budget = Budget.parse(size, "size")
        self.grows = self.budget.auto or self.budget.limit_bytes is None
        self.lock = RLock()
        self.last_ran = NOBODY  # whose slices the common part holds
        self._resting_bytes = resident_bytes(device)
        self._taken_bytes: int | None = None
        self._seats: WeakValueDictionary[int, Seat] = WeakValueDictionary()
        self._numbers = count(NOBODY + 1)
        size_bytes = 0 if self.grows else self.budget.limit_bytes or 0
        self.layout = Occupancy(self._allocated(size_bytes), {})
        self._host: tuple[object, NDArray[Any]] = (None, np.empty(0))

    def _allocated(self, size_bytes: int) -> torch.Tensor:
        return memory_of(self.device, size_bytes)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Two arenas of the same bytes would lay sessions over each other's."""
        raise PlanError(
            "an arena cannot be copied or pickled; make another one, tg.Arena(device, size)"
        )

    def shows(self, array: NDArray[Any]) -> bool:
        """Whether an array may be a view of the arena's bytes."""
        if self._host[0] is not self.bytes:  # looking at it as an array takes longer than asking
            self._host = (self.bytes, self.bytes.numpy() if self.bytes.is_cpu else np.empty(0))
        return np.may_share_memory(array, self._host[1])

    def join(self, name: str, weights_bytes: int) -> Seat:
        """A place for one more session; it holds no bytes until it takes some."""
        seat = Seat(self, next(self._numbers), name, weights_bytes)
        with self.lock:
            self._seats[seat.number] = seat
        return seat

    @property
    def bytes(self) -> torch.Tensor:
        """Its memory; another one after it has grown."""
        return self.layout.bytes

    @property
    def seats(self) -> list[Seat]:
        """Of the sessions that hold a part, in order of creation."""
        with self.lock:
            return [seat for _, seat in sorted(self._seats.items()) if seat.part is not None]

    @property
    def parts(self) -> dict[int, Part]:
        """By number of the seat."""
        return {seat.number: seat.part for seat in self.seats if seat.part is not None}

    @property
    def size_bytes(self) -> int:
        return self.bytes.numel()

    @property
    def limit_bytes(self) -> int | None:
        """What the fixed parts and the largest common part may take together, or None."""
        with self.lock:
            weights = sum(seat.weights_bytes for seat in self._seats.values())
        return self.budget.bytes(self.device, weights, self.compute_peak_bytes)

    @property
    def used_bytes(self) -> int:
        """What they take."""
        return self.fixed_bytes + self.common_bytes

    @property
    def fixed_bytes(self) -> int:
        return sum(part.fixed_bytes for part in self.parts.values())

    @property
    def common_bytes(self) -> int:
        return max((part.common_bytes for part in self.parts.values()), default=0)

    @property
    def compute_peak_bytes(self) -> int | None:
        """The most of the device that was taken beside arena and weights; None before any run.

        What was in use when the arena was made, and the most that any one run of its sessions
        took: what the libraries under its kernels allocate, and results that it handed out.
        """
        return None if self._taken_bytes is None else self._resting_bytes + self._taken_bytes

    def took(self, size_bytes: int) -> None:
        """A run took this much beside the arena."""
        self._taken_bytes = max(self._taken_bytes or 0, size_bytes)

    def place(self, key: int, new: Part) -> None:
        """Lay the parts out with this one; what the others' fixed parts hold goes with them.

        An interrupt, in whatever line, leaves every other part whole, where its seat says.
        """
        self.finish_move()
        others = {k: part for k, part in self.parts.items() if k != key}
        size = self._size_for([*others.values(), new])
        after = lay_out(others, key, new, size)
        self.layout = replace(self.layout, parts=others)
        if size != self.size_bytes:
            self._grow(size, after)
        for k, old in sorted(others.items(), key=lambda item: item[1].offset_bytes):
            if self.layout.parts[k] != after[k]:
                self._move(k, old, after[k])
        self.layout = replace(self.layout, parts=after)

    def _grow(self, size_bytes: int, after: Mapping[int, Part]) -> None:
        """Copy the parts to where they go in other memory, then take that."""
        target, parts = self._allocated(size_bytes), self.layout.parts
        for k, old in parts.items():
            held = self.bytes[old.offset_bytes : old.stop_bytes]
            target[after[k].offset_bytes : after[k].stop_bytes] = held
        self.last_ran = NOBODY
        self.layout = Occupancy(target, {k: after[k] for k in parts})

    def _move(self, key: int, old: Part, new: Part) -> None:
        """Move a part down, over nobody's bytes but its own.

        The parts below have moved before, so that each stop on the way is a layout, too.
        """
        held = self.bytes[old.offset_bytes : old.stop_bytes].clone()
        parts = {**self.layout.parts, key: new}
        self.layout = replace(self.layout, parts=parts, moving=(new.offset_bytes, held))
        self.finish_move()

    def finish_move(self) -> None:
        """Bring a part to where it is said to be; done again after an interrupt."""
        if self.layout.moving is None:
            return
        offset, held = self.layout.moving
        self.bytes[offset : offset + held.numel()] = held
        self.layout = replace(self.layout, moving=None)

    def leave(self, key: int) -> None:
        """Take a part away, and let go of memory that no session holds a part of."""
        left = {k: part for k, part in self.parts.items() if k != key}
        self.layout = replace(self.layout, parts=left)
        if self.grows and not left:
            self.layout, self.last_ran = Occupancy(self._allocated(0), {}), NOBODY

    def _size_for(self, parts: Collection[Part]) -> int:
        if not self.grows:
            return self.size_bytes
        common = max((part.common_bytes for part in parts), default=0)
        return sum(part.fixed_bytes for part in parts) + common

    def __str__(self) -> str:
        limit = self.limit_bytes
        lines = [f"arena on {self.device}: {format_bytes(self.size_bytes)}"]
        if limit is not None and self.grows:
            lines[0] += f" of {format_bytes(limit)}"
        for seat in self.seats:
            lines.append(f"  {seat}")
        lines.append(f"  common {format_bytes(self.common_bytes)}")
        return "\n".join(lines)


class Seat:
    """One session's place in an arena; the session alone keeps it alive.

    Fields:
        number: unique in the arena.
        name: for messages.
        weights_bytes: what the session has outside the arena.
    """

    def __init__(self, arena: Arena, number: int, name: str, weights_bytes: int) -> None:
        self.arena = arena
        self.number = number
        self.name = name
        self.weights_bytes = weights_bytes

    @property
    def part(self) -> Part | None:
        """Its bytes; None before a plan."""
        return self.arena.layout.parts.get(self.number)

    def take(self, placement: Placement) -> None:
        """Give the session the bytes of this placement, in place of those that it had.

        Other sessions may be moved. What this one held is lost.
        """
        self.arena.place(self.number, _part(placement))

    def leave(self) -> None:
        """Give the bytes back."""
        self.arena.leave(self.number)

    def map(self, placement: Placement) -> Placement:
        """The placement where the seat's bytes are."""
        assert self.part is not None
        size = self.arena.size_bytes
        common = (size - placement.size_bytes) // ALIGNMENT * ALIGNMENT
        return moved(placement, self.part.offset_bytes, common)

    @property
    def others_fixed_bytes(self) -> int:
        return self.arena.fixed_bytes - (self.part.fixed_bytes if self.part is not None else 0)

    @property
    def others_common_bytes(self) -> int:
        others = [part for key, part in self.arena.parts.items() if key != self.number]
        return max((part.common_bytes for part in others), default=0)

    @property
    def room_bytes(self) -> int | None:
        """What a placement may take beside the fixed parts of the others, or None for anything."""
        limit = self.arena.limit_bytes
        return None if limit is None else max(limit - self.others_fixed_bytes, 0)

    def excess_bytes(self, placement: Placement) -> int:
        """How much the fixed part of a placement is too large; 0 or less if it fits."""
        room, part = self.room_bytes, _part(placement)
        if room is None:
            return 0
        common = max(part.common_bytes, self.others_common_bytes)
        return part.fixed_bytes - (room - common) // ALIGNMENT * ALIGNMENT

    def choose(self, plan: Callable[[int | None], Made], limit_bytes: int | None) -> Made:
        """The plan for the largest budget that leaves room for the others.

        `plan` makes one for a budget in bytes. Raises BudgetError naming who holds what.
        """
        bounds = [bound for bound in (limit_bytes, self.room_bytes) if bound is not None]
        budget = min(bounds, default=None)
        try:
            made = plan(budget)
            excess = self.excess_bytes(made.placement)
            return made if excess <= 0 else self._keeping_less(plan, made)
        except BudgetError as error:
            if error.budget_bytes == limit_bytes:
                raise
            raise self._crowded(error) from error

    def _keeping_less(self, plan: Callable[[int | None], Made], roomy: Made) -> Made:
        """A plan whose fixed part ends where the others' common parts begin.

        A planner's budget is for both parts. So the right one is searched: what `roomy` has too
        much is taken off, or, as keeping less makes the common part larger, by bisection from the
        smallest budget that works.
        """
        high = roomy.placement.size_bytes
        with suppress(BudgetError):
            made = plan(high - self.excess_bytes(roomy.placement))
            if self.excess_bytes(made.placement) <= 0:
                return made
        try:
            return plan(0)
        except BudgetError as error:
            low = error.needed_bytes
            found = plan(low)
            if self.excess_bytes(found.placement) > 0:
                raise
        for _ in range(BISECTIONS):
            middle = (low + high) // 2
            made = plan(middle)
            if self.excess_bytes(made.placement) <= 0:
                found, low = made, middle
            else:
                high = middle
        return found

    def _crowded(self, error: BudgetError) -> BudgetError:
        """The planner's error, where it is the others that leave too little."""
        others = [str(seat) for seat in self.arena.seats if seat is not self]
        enough = self.others_fixed_bytes + self.others_common_bytes + error.needed_bytes
        return BudgetError(
            f"{self.name} needs {format_bytes(error.needed_bytes)}, which an arena of "
            f"{format_bytes(self.arena.limit_bytes or 0)} does not have beside "
            f"{'; '.join(others) or 'nothing'}; give it {enough} bytes or more, release() a "
            "session, or let one have less (its optimize(budget=…))",
            budget_bytes=self.room_bytes or 0,
            needed_bytes=error.needed_bytes,
            lower_bound_bytes=error.lower_bound_bytes,
            step=error.step,
            nodes=error.nodes,
        )

    def __str__(self) -> str:
        fixed = self.part.fixed_bytes if self.part is not None else 0
        common = self.part.common_bytes if self.part is not None else 0
        return f"{self.name}: {format_bytes(fixed)} fixed, {format_bytes(common)} in common"


def _part(placement: Placement) -> Part:
    return Part(0, aligned(placement.kept_bytes), placement.size_bytes - placement.kept_bytes)
