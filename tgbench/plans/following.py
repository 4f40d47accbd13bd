"""What may come next, where nothing happened yet: changes that are planned for with a first run.

a run that asks for ─→ the smallest change, with whole lines · a block as large as what is asked
                       for · all behind some element · an element behind all that is asked for ·
                       where all is asked for, a line of which just what lies beside it is looked at
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from tgbench.base.coords import value_of
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph
from tgbench.graph.op_table import IMAGE_RANK
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules

AS_LITTLE = 1.01  # times the operations that a change of one element takes


def unit_change(bucket: Bucket, scheduled: ScheduledGraph, name: str) -> Bucket | None:
    """The smallest change there is of one input, with the same demand: what may come next.

    It lies at the end, or where the demand ends in an output dimension of the same size.
    """
    asked = _asked(bucket, scheduled, name)
    if not asked:
        return None
    box = Box((stop - 1, stop) for _, stop in asked)
    return Bucket.of({name: Region((box,))}, dict(bucket.demand))


class Reach:
    """What runs with one demand compute again after a change, where all else of a run is there:
    what takes the change in, as far as the demand asks for it.

    Fields:
        in_full: what they compute of nothing.
    """

    def __init__(
        self, demand: Sequence[tuple[str, Region]], scheduled: ScheduledGraph, rules: Rules
    ) -> None:
        self._demand, self._scheduled = demand, scheduled
        self._leaves = {**scheduled.graph.inputs, **scheduled.graph.states}
        self._propagator = scheduled.propagator(rules, scheduled.stored)
        outputs = scheduled.graph.outputs
        self.in_full = self._propagator.step({}, {}, {outputs[name]: one for name, one in demand})

    def is_of(self, demand: Sequence[tuple[str, Region]], scheduled: ScheduledGraph) -> bool:
        """Whether it is of this demand, over these very nodes."""
        return scheduled is self._scheduled and demand == self._demand

    def operations(self, changed: Iterable[tuple[str, Region]]) -> int:
        """How many operations that is."""
        given = {self._leaves[name]: region for name, region in changed}
        dirty = self._propagator.forward(given)
        return sum(
            node.call.op.flops(node.call, box)
            for node, region in self.in_full.compute.items()
            if node in dirty
            for box in region.intersect(dirty[node])
        )

    def share(self, changed: Iterable[tuple[str, Region]]) -> float:
        """The same of all operations; 1 where there are none."""
        return self.operations(changed) / self._whole if self._whole else 1.0

    @cached_property
    def _whole(self) -> int:
        computed = self.in_full.compute.items()
        return sum(n.call.op.flops(n.call, box) for n, region in computed for box in region)


def whole_lines(change: Bucket, reach: Reach, graph: Graph) -> Bucket:
    """A change of one element, of all along those dimensions where that takes as little: of a row
    that a layer reads whole, of all channels of a pixel. Never of all of the input.
    """
    ((name, (box,)),) = change.changed
    shape = graph.inputs[name].shape
    if sum(size > 1 for size in shape) < 2:
        return change

    def operations(changed: Box) -> int:
        return reach.operations([(name, Region((changed,)))])

    most = AS_LITTLE * operations(box)
    for axis in reversed(range(len(shape))):  # a row sooner than a column, where both are as little
        wider = Box((*box[:axis], (0, shape[axis]), *box[axis + 1 :]))
        if wider not in (box, Box.full(shape)) and operations(wider) <= most:
            box = wider
    return Bucket.of({name: Region((box,))}, dict(change.demand))


def in_between(bucket: Bucket, graph: Graph) -> list[tuple[str, Region]]:
    """What a run changes, moved to where it is half as far from the edges of each input as in the
    middle: changes that may stand anywhere reach about as much on average.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> g.output("y", g.input("x", (3, 9)) * 2.0)
    >>> corner = Bucket.of({"x": Region((Box(((0, 3), (7, 9))),))}, {})
    >>> in_between(corner, g.build())
    [('x', {[0:3, 1:3]})]
    """
    found, leaves = [], {**graph.inputs, **graph.states}
    for name, region in bucket.changed:
        hull, shape = region.hull(), leaves[name].shape
        extents = [value_of(extent) for extent in hull.extents]
        starts = [(size - extent) // 4 for size, extent in zip(shape, extents, strict=True)]
        sides = zip(starts, extents, strict=True)
        found.append((name, Region((Box((start, start + size) for start, size in sides),))))
    return found


def change_as_asked(bucket: Bucket, scheduled: ScheduledGraph, name: str) -> Bucket | None:
    """As much of one input as is asked for, where that is a block of an output dimension of the
    same size: a stream goes on so. None where it is one element, or all.
    """
    asked = _asked(bucket, scheduled, name)
    shape = scheduled.graph.inputs[name].shape
    is_block = [1 < stop - start < size for (start, stop), size in zip(asked, shape, strict=False)]
    if not any(is_block):
        return None
    return Bucket.of({name: Region((Box(asked),))}, dict(bucket.demand))


def change_onwards(bucket: Bucket, scheduled: ScheduledGraph, name: str) -> Bucket | None:
    """All of one input from half-way to where is asked for on, with the same demand: what something
    put in before that changes. None where no output dimension has the size of one of the input's.
    """
    asked = _asked(bucket, scheduled, name)
    sizes = {
        size for output, _ in bucket.demand for size in scheduled.graph.outputs[output].shape
    } - {1}
    sides = list(Box.full(scheduled.graph.inputs[name].shape))
    for axis, (_, stop) in enumerate(asked):
        if sides[axis][1] in sizes and stop > 1:
            sides[axis] = (stop - 1) // 2, sides[axis][1]
            return Bucket.of({name: Region((Box(sides),))}, dict(bucket.demand))
    return None


def change_behind(bucket: Bucket, scheduled: ScheduledGraph, name: str) -> Bucket | None:
    """One element of an input half-way between what is asked for and the end, where one looks one
    element before that: what was asked for last has more there than what else may be looked at.
    None where all is asked for, or no output dimension has the size of one of the input's.
    """
    shape = scheduled.graph.inputs[name].shape
    sides = list(Box.full(shape))
    for axis, (start, stop) in enumerate(_asked(bucket, scheduled, name)):
        if (start, stop) != sides[axis] and stop < shape[axis]:
            at = (stop + shape[axis]) // 2
            sides[axis] = at, at + 1
            demand = {
                output: _before(region, _alike(shape, scheduled.graph.outputs[output].shape)[axis])
                for output, region in bucket.demand
            }
            return Bucket.of({name: Region((Box(sides),))}, demand)
    return None


def in_sight(change: Bucket, graph: Graph) -> Bucket | None:
    """A change of one line moved half-way to the end, where just what lies beside it is looked at:
    who asked for everything may look at less from then on. None where a part was asked for, nothing
    lies beside a line, or it is one of an image: one looks at all of that.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> g.output("y", g.input("x", (8, 3)) * 2.0)
    >>> last = Bucket.of({"x": Region((Box(((7, 8), (0, 3))),))}, {"y": Region.full((8, 3))})
    >>> found = in_sight(last, g.build())
    >>> found.changed, found.demand
    ((('x', {[4:5, 0:3]}),), (('y', {[4:5, 0:3]}),))
    """
    ((name, (box,)),) = change.changed
    shape = graph.inputs[name].shape
    axes = [i for i, (start, stop) in enumerate(box) if stop - start < shape[i]]
    demand = dict(change.demand)
    beside = {output: _alike(shape, graph.outputs[output].shape) for output in demand}
    is_all = all(region == Region.full(graph.outputs[one].shape) for one, region in change.demand)
    if not is_all or len(axes) != 1 or len(shape) >= IMAGE_RANK:
        return None
    (axis,) = axes
    if all(dims[axis] is None for dims in beside.values()):
        return None
    at = shape[axis] // 2
    for output, dims in beside.items():
        demand[output] = Region((_line(demand[output].hull(), dims[axis], at),))
    return Bucket.of({name: Region((_line(box, axis, at),))}, demand)


def _line(box: Box, axis: int | None, at: int) -> Box:
    """What of a box lies at one place along a dimension; all of it where there is none."""
    return box if axis is None else Box((*box[:axis], (at, at + 1), *box[axis + 1 :]))


def _before(region: Region, axis: int | None) -> Region:
    """A region one element before along a dimension, as far as there is one."""
    sides = list(region.hull())
    if axis is not None and sides[axis][0] > 0:
        start, stop = sides[axis]
        sides[axis] = start - 1, stop - 1
    return Region((Box(sides),))


def _asked(bucket: Bucket, scheduled: ScheduledGraph, name: str) -> list[tuple[int, int]]:
    """Between which elements of each dimension of an input an output dimension of the same size is
    asked for; all of it where there is none. Nothing of a number, or where nothing is asked for.
    """
    shape = scheduled.graph.inputs[name].shape
    found: dict[int, tuple[int, int]] = {}
    for output, region in bucket.demand:
        hull = region.hull()
        for axis, other in enumerate(_alike(shape, scheduled.graph.outputs[output].shape)):
            if other is not None:
                start, stop = hull[other]
                first, last = found.get(axis, (shape[axis], 0))
                found[axis] = min(first, value_of(start)), max(last, value_of(stop))
    return [found.get(i, (0, size)) for i, size in enumerate(shape) if bucket.demand]


def _alike(shape: Sequence[int], other: Sequence[int]) -> list[int | None]:
    """For each dimension of a shape the one of another that is as long; of several in order.

    >>> _alike((1, 512), (1, 512, 512)), _alike((8, 8), (8, 3))
    ([0, 1], [0, None])
    """
    left = list(enumerate(other))
    found: list[int | None] = []
    for size in shape:
        same = next((one for one in left if one[1] == size), None)
        found.append(None if same is None else same[0])
        if same is not None:
            left.remove(same)
    return found
