"""What is to be computed: values of a directed acyclic graph, in one fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tgbench.base.errors import BudgetError
from tgbench.base.words import format_bytes
from tgbench.memory.packing import aligned_size


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that one run computes from others, once or several times.

    Fields:
        cost_ns: of one computation.
        inputs: positions in the schedule, all earlier than its own.
        scratch_bytes: needed while it is computed, beside its inputs and itself.
        resident: a source that is there for the whole run and costs nothing.
        output: it must be there at the end.
        over: inputs of its own size whose bytes it may take over, where it reads them last.
    """

    name: str
    cost_ns: float
    size_bytes: int
    inputs: tuple[int, ...] = ()
    scratch_bytes: int = 0
    resident: bool = False
    output: bool = False
    over: tuple[int, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """Values in a topological order, and the units in bytes that buffers come in.

    Raises `ValueError` for a repeated name, a negative number, an input that does not come
    earlier, or a resident value that has inputs.

    >>> a, b = Value("a", 5, 64), Value("b", 7, 64, (0,), output=True)
    >>> Schedule((a, b)).least_cost_ns
    12
    """

    values: tuple[Value, ...]
    alignment: int = 64  # bytes

    def __post_init__(self) -> None:
        if self.alignment < 1:
            raise ValueError(f"alignment is {self.alignment} B; use 1 for none")
        counts = Counter(value.name for value in self.values)
        if len(counts) < len(self.values):
            raise ValueError(f"value name {counts.most_common(1)[0][0]!r} is used twice")
        for position, value in enumerate(self.values):
            _check(position, value)

    def bytes_of(self, size_bytes: int) -> int:
        """Rounded up to whole units of the alignment."""
        return aligned_size(size_bytes, self.alignment)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each value, in whole units."""
        return tuple(self.bytes_of(value.size_bytes) for value in self.values)

    @cached_property
    def scratch(self) -> tuple[int, ...]:
        """Scratch bytes of each value, in whole units."""
        return tuple(self.bytes_of(value.scratch_bytes) for value in self.values)

    @cached_property
    def costs(self) -> tuple[float, ...]:
        return tuple(value.cost_ns for value in self.values)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """What each value reads that is not resident, each once, in schedule order."""
        return tuple(
            tuple(sorted({i for i in value.inputs if not self.values[i].resident}))
            for value in self.values
        )

    @cached_property
    def over(self) -> tuple[tuple[int, ...], ...]:
        """Whose bytes each value may take over."""
        return tuple(
            tuple(i for i in value.over if self.sizes[i] == size and not self.values[i].resident)
            for value, size in zip(self.values, self.sizes, strict=True)
        )

    @cached_property
    def resident_bytes(self) -> int:
        """Bytes of all resident values, which are held throughout."""
        return sum(
            size for size, value in zip(self.sizes, self.values, strict=True) if value.resident
        )

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The outputs that have to be computed."""
        return tuple(i for i, v in enumerate(self.values) if v.output and not v.resident)

    @cached_property
    def once(self) -> tuple[int, ...]:
        """Everything that the outputs need, computed once, in schedule order."""
        needed = set(self.outputs)
        for position in range(len(self.values) - 1, -1, -1):
            if position in needed:
                needed.update(self.inputs[position])
        return tuple(sorted(needed))

    @cached_property
    def least_cost_ns(self) -> float:
        """Nanoseconds when nothing is computed twice: no sequence costs less."""
        return self.cost_ns(self.once)

    def cost_ns(self, sequence: Sequence[int]) -> float:
        """Nanoseconds that these computations take."""
        return sum(self.costs[value] for value in sequence)


def _check(position: int, value: Value) -> None:
    if min(value.cost_ns, value.size_bytes, value.scratch_bytes) < 0:
        raise ValueError(f"value {value.name!r} has a negative cost or size; all are >= 0")
    if value.resident and value.inputs:
        raise ValueError(f"value {value.name!r} is resident and has inputs; drop one of the two")
    late = [i for i in value.inputs if not 0 <= i < position]
    if late:
        raise ValueError(
            f"value {value.name!r} at position {position} reads position {late[0]}, which does "
            "not come before it; list the values in topological order"
        )


# --- the least memory -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that are live together in every sequence, and why.

    Fields:
        position: the value whose computation needs them; the number of values for the end.
        parts: names and bytes, largest first.
    """

    size_bytes: int
    position: int
    parts: tuple[tuple[str, int], ...]


def least_bytes(schedule: Schedule) -> Need:
    """The most that one computation, or holding the outputs, needs: no budget below it works.

    >>> a, b = Value("a", 1, 64), Value("b", 1, 128, (0,), output=True)
    >>> least_bytes(Schedule((a, b)))
    Need(size_bytes=192, position=1, parts=(('b', 128), ('a', 64)))
    """
    needs = [_need(schedule, value) for value in schedule.once]
    needs.append(_holding(schedule, len(schedule.values), set(schedule.outputs), 0))
    return max(needs, key=lambda need: need.size_bytes)


def _need(schedule: Schedule, value: int) -> Need:
    together = {value, *schedule.inputs[value]}.difference(schedule.over[value][:1])
    return _holding(schedule, value, together, schedule.scratch[value])


def _holding(schedule: Schedule, position: int, held: set[int], scratch_bytes: int) -> Need:
    residents = {i for i, value in enumerate(schedule.values) if value.resident}
    parts = [(schedule.values[i].name, schedule.sizes[i]) for i in sorted(held | residents)]
    if scratch_bytes:
        parts.append((f"scratch of {schedule.values[position].name}", scratch_bytes))
    parts.sort(key=lambda part: -part[1])
    return Need(sum(size for _, size in parts), position, tuple(parts))


def check_budget(schedule: Schedule, budget_bytes: int) -> None:
    """Raises `BudgetError`, naming the value, for a budget that no sequence can keep."""
    need = least_bytes(schedule)
    if budget_bytes < need.size_bytes:
        raise budget_error(schedule, budget_bytes, need, need.size_bytes)


def budget_error(
    schedule: Schedule, budget_bytes: int, need: Need, needed_bytes: int
) -> BudgetError:
    """The error for a budget that is too small; `needed_bytes` is the smallest known to do."""
    at_end = need.position == len(schedule.values)
    what = "holding the outputs" if at_end else f"computing {schedule.values[need.position].name}"
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in need.parts[:3])
    more = f", and {len(need.parts) - 3} more" if len(need.parts) > 3 else ""
    return BudgetError(
        f"budget {format_bytes(budget_bytes)} is too small: {what} alone takes "
        f"{format_bytes(need.size_bytes)} ({named}{more}); use at least {needed_bytes} B "
        f"({format_bytes(needed_bytes)}), or split that value",
        budget_bytes=budget_bytes,
        needed_bytes=needed_bytes,
        lower_bound_bytes=need.size_bytes,
        step=need.position,
        nodes=need.parts,
    )
