"""What the calls of a trace compute and reuse, from whatever values are cached.

    call     valid = valid − dirty
    decide   what is computed and what is reused, by the rules of a run that retains every node
    uses     from which schedule step to which the run needs the bytes of each stored node

A decision depends on the cached values that it looks at, and on no others, so that policies and
budgets share most of them. Bytes are those of hulls, as a placement counts them, without its
alignment. Views have no bytes and take no time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base.errors import GraphError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS, Call
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.pausing import Pausing
from tgbench.runs.propagate import Propagator, Step, joined, rough_ns
from tgbench.runs.rules import Rules

Cost: TypeAlias = Callable[[Call, Box], float]  # nanoseconds to compute a box of an op's output
Floats: TypeAlias = NDArray[np.float64]
Valid: TypeAlias = "dict[int, Region]"  # by the place of the node in `Runs.stored`
MOST_VARIANTS = 16  # remembered decisions of one call; the oldest goes first


@dataclass(frozen=True, slots=True)
class Use:
    """How one run uses the bytes of one stored node.

    Fields:
        start: schedule step that writes it; −1 for a value that is only read.
        stop: exclusive: the first step that no longer needs it. A value that the step there may
            overwrite in place is free one step earlier.
        box: the hull of what the run touches, as it is stored.
        compute, reused: what is written, and what was there and is read.
        start_ns, stop_ns: modelled time from the start of the run.
    """

    index: int
    start: int
    stop: int
    box: Box
    compute: Region
    reused: Region
    start_ns: float
    stop_ns: float


@dataclass(frozen=True)
class Run:
    """One decided run.

    Fields:
        asked: what was valid of every node that the decision looked at; others do not matter.
        uses: in the order in which they start.
        ends: the same in the order in which they stop.
        time_ns: modelled.
    """

    asked: tuple[tuple[int, Region], ...]
    uses: tuple[Use, ...]
    ends: tuple[Use, ...]
    time_ns: float

    @cached_property
    def reused(self) -> tuple[Use, ...]:
        return tuple(use for use in self.uses if use.reused.boxes)


class _Remembering(Propagator):
    """Dirty regions depend on the change alone: found once for each."""

    def forwarding(self, changed: Mapping[Node, Region]) -> Pausing[dict[Node, Region]]:
        key = frozenset(changed.items())
        if key not in self.dirty:
            self.dirty[key] = yield from super().forwarding(changed)
        return self.dirty[key]

    @cached_property
    def dirty(self) -> dict[frozenset[tuple[Node, Region]], dict[Node, Region]]:
        return {}


class Runs:
    """What the calls of one trace do from any cached values; all policies share its answers.

    Args:
        calls: buckets in order. Before the first, nothing is there.
        cost: nanoseconds of one box of an op's output.

    Raises GraphError for a trace without calls.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        calls: Sequence[Bucket],
        cost: Cost = rough_ns,
    ) -> None:
        if not calls:
            raise GraphError("the trace is empty; give at least one call")
        self.scheduled, self.rules, self.calls, self.cost = scheduled, rules, tuple(calls), cost
        self.stored = scheduled.stored
        self.index = {node: i for i, node in enumerate(self.stored)}
        self.kept_bytes: int = sum(node.type.size_bytes for node in scheduled.kept)
        storage = scheduled.retaining(self.stored)
        self._propagator = _Remembering(scheduled.graph, storage, rules, scheduled.schedule)
        self._variants: dict[Bucket, list[Run]] = defaultdict(list)
        self._sizes: dict[tuple[int, Box], int] = {}
        self._costs: dict[tuple[Call, Region], float] = {}

    @cached_property
    def classes(self) -> tuple[BucketClass, ...]:
        """The class of each call."""
        found = {bucket: bucket.classify(self.scheduled.graph)[0] for bucket in set(self.calls)}
        return tuple(found[bucket] for bucket in self.calls)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each stored node, the stored nodes whose bytes it reads."""
        base, index = self.scheduled.base, self.index
        found = [{index.get(base[parent], -1) for parent in node.inputs} for node in self.stored]
        return tuple(tuple(sorted(parents - {-1})) for parents in found)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each stored node, those that it reads and those that read it."""
        found = [set(parents) for parents in self.reads]
        for i, parents in enumerate(self.reads):
            for parent in parents:
                found[parent].add(i)
        return tuple(tuple(sorted(others)) for others in found)

    def size_bytes(self, i: int, box: Box) -> int:
        """Bytes of a box of a stored node, rounded up to the dimensions that are stored whole."""
        if (i, box) not in self._sizes:
            node = self.stored[i]
            stored = self.scheduled.stored_box(node, box)
            self._sizes[i, box] = stored.elements * node.type.itemsize
        return self._sizes[i, box]

    def held_bytes(self, i: int, region: Region) -> int:
        """Bytes that hold a valid region between runs."""
        return self.size_bytes(i, region.hull()) if region.boxes else 0

    def cost_ns(self, call: Call, region: Region) -> float:
        key = (call, region)
        if key not in self._costs:
            self._costs[key] = sum(self.cost(call, box) for box in region)
        return self._costs[key]

    # --- decisions ---

    def left(self, number: int, valid: Valid) -> Valid:
        """What of the cached values is still right when a call begins."""
        dirty = self._propagator.forward(self._changed(number))
        left: Valid = {}
        for i, region in valid.items():
            changed = dirty.get(self.stored[i])
            rest = region if changed is None else self.rules.subtract(region, changed)
            if rest.boxes:
                left[i] = rest
        return left

    def decide(self, number: int, valid: Valid) -> Run:
        """The run of a call, from values that are all right."""
        variants = self._variants[self.calls[number]]
        for run in variants:
            if all(valid.get(i, EMPTY) == region for i, region in run.asked):
                return run
        run = self._decided(number, valid)
        variants.append(run)
        if len(variants) > MOST_VARIANTS:
            del variants[0]
        return run

    def _changed(self, number: int) -> dict[Node, Region]:
        leaves = {node.name: node for node in self.scheduled.kept}
        return {leaves[name]: region for name, region in self.calls[number].changed}

    def _demand(self, number: int) -> dict[Node, Region]:
        graph = self.scheduled.graph
        outputs = [(graph.outputs[name], region) for name, region in self.calls[number].demand]
        kept = [node for parts in graph.writes.values() for write in parts for node in write.nodes]
        return joined([*outputs, *((node, Region.full(node.shape)) for node in kept)])

    def _decided(self, number: int, valid: Valid) -> Run:
        held = {self.stored[i]: region for i, region in valid.items()}
        step = self._propagator.step(held, self._changed(number), self._demand(number))
        asked = tuple(
            (self.index[node], valid.get(self.index[node], EMPTY))
            for node in step.needed
            if node in self.index
        )
        uses = self._uses(step)
        time_ns = sum(self.cost_ns(n.call, r) for n, r in step.compute.items() if n in self.index)
        ends = tuple(sorted(uses, key=lambda use: (use.stop, use.start)))
        return Run(asked, tuple(uses), ends, time_ns)

    def _uses(self, step: Step) -> list[Use]:
        boxes, stops = self._touched(step)
        end = len(self.scheduled.schedule) + 1
        position = self.scheduled.position
        spent = [0.0] * (end + 1)  # [p]: the time that step p − 1 takes, then all before step p
        for node, region in step.compute.items():
            if node in self.index:
                spent[position[node] + 1] = self.cost_ns(node.call, region)
        spent = list(accumulate(spent))
        uses = []
        for node, box in boxes.items():
            compute, reused = step.compute.get(node, EMPTY), step.reused.get(node, EMPTY)
            start = -1 if reused.boxes and not compute.boxes else position[node]
            stop = stops.get(node, start + 1)
            stored = self.scheduled.stored_box(node, box)
            times = spent[max(start, 0)], spent[stop]
            uses.append(Use(self.index[node], start, stop, stored, compute, reused, *times))
        return sorted(uses, key=lambda use: (use.start, use.index))

    def _touched(self, step: Step) -> tuple[dict[Node, Box], dict[Node, int]]:
        """Hulls of what is computed and read, and the first steps that no longer read them."""
        boxes: dict[Node, Box] = {}
        stops: dict[Node, int] = {}

        def touch(node: Node, box: Box, stop: int) -> None:
            if node in self.index:
                boxes[node] = boxes[node].hull(box) if node in boxes else box
                stops[node] = max(stops.get(node, 0), stop)

        for node, region in step.compute.items():
            if node not in self.index:
                continue
            after = self.scheduled.position[node] + 1
            for box in region:
                touch(node, box, after)
                for parent, read in zip(node.inputs, self.rules.reads(node.call, box), strict=True):
                    if read is not None:
                        touch(*self.scheduled.base_box(parent, read, self.rules), after)
        graph = self.scheduled.graph
        for output in graph.ends:
            for box in step.needed.get(output, ()):
                end = len(self.scheduled.schedule) + 1
                touch(*self.scheduled.base_box(output, box, self.rules), end)
        self._free_donors(step, boxes, stops)
        return boxes, stops

    def _free_donors(self, step: Step, boxes: Mapping[Node, Box], stops: dict[Node, int]) -> None:
        """Operands that a result may overwrite are free one step earlier."""
        base = self.scheduled.base
        for node in step.compute:
            at = self.scheduled.position[node]
            for i in OPS[node.op].inplace if node in self.index else ():
                operand = node.inputs[i]
                if (
                    operand in self.index
                    and operand.type == node.type
                    and boxes.get(operand) == boxes[node]
                    and stops[operand] == at + 1
                    and sum(base.get(parent) is operand for parent in node.inputs) == 1
                ):
                    stops[operand] = at
                    break

    # --- the trace when memory does not matter ---

    @cached_property
    def ideal(self) -> tuple[Run, ...]:
        """The calls when everything is kept."""
        runs: list[Run] = []
        valid: Valid = {}
        for number in range(len(self.calls)):
            valid = self.left(number, valid)
            run = self.decide(number, valid)
            for use in run.uses:
                valid[use.index] = self.rules.union(valid.get(use.index, EMPTY), use.compute)
            runs.append(run)
        return tuple(runs)

    @cached_property
    def next_reuse(self) -> Floats:
        """[call, node] → the next later call that reuses the node when everything is kept."""
        table = np.full((len(self.calls) + 1, len(self.stored)), math.inf)
        for number in range(len(self.calls) - 1, 0, -1):
            table[number - 1] = table[number]
            table[number - 1, [use.index for use in self.ideal[number].reused]] = number
        return table

    def peak_bytes(self, run: Run, indices: Iterable[int] | None = None) -> int:
        """The most bytes that a run pins at once, of some nodes or of all."""
        chosen = None if indices is None else set(indices)
        held, peak, ends = 0, 0, list(reversed(run.ends))
        for use in run.uses:
            while ends[-1].stop <= use.start:
                held -= self._pinned_bytes(ends.pop(), chosen)
            held += self._pinned_bytes(use, chosen)
            peak = max(peak, held)
        return peak

    def _pinned_bytes(self, use: Use, chosen: set[int] | None) -> int:
        return self.size_bytes(use.index, use.box) if chosen is None or use.index in chosen else 0


def least_bytes(runs: Runs) -> int:
    """No policy gets through the trace with less: what the first call pins, from nothing."""
    return runs.kept_bytes + runs.peak_bytes(runs.decide(0, {}))


def enough_bytes(runs: Runs) -> int:
    """Every policy gets through the trace with this: the most that any call pins, from nothing."""
    return runs.kept_bytes + max(
        runs.peak_bytes(runs.decide(number, {})) for number in range(len(runs.calls))
    )


def keep_everything_bytes(runs: Runs) -> int:
    """The 100 % of budgets: inputs and states, every value that another reads, working slices.

    Values are counted by the hull of all that the trace touches of them when everything is kept;
    slices that are only handed out, by the most that one call holds at once.
    """
    read = {parent for parents in runs.reads for parent in parents}
    hulls: dict[int, Box] = {}
    for run in runs.ideal:
        for use in run.uses:
            hulls[use.index] = hulls[use.index].hull(use.box) if use.index in hulls else use.box
    others = hulls.keys() - read
    held = sum(runs.size_bytes(i, hulls[i]) for i in hulls.keys() & read)
    return runs.kept_bytes + held + max(runs.peak_bytes(run, others) for run in runs.ideal)
