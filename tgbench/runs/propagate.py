"""One run, decided: what is dirty, what is needed, what is computed, what stays valid.

    0  felt      what of the change anything valid depends on
    1  forward   dirty[n] from the inputs;               valid'[n] = valid[n] − dirty[n]
    2  backward  needed[outputs] = demand
                 compute[n] = needed[n] − valid'[n] − known[n]
                 needed[parents] from what is computed
    3  a cached value that an overlapping write destroys before its last read is unusable: repeat 2
    4  valid''[n] = valid'[n] ∪ compute[n], less what later writes destroyed

Step 0 changes nothing but where a decision is right: a token behind all that is valid makes rows
dirty as far as a window reaches, which ends where the text does, and nobody has to know (`felt`).
A node computes when something needed is not there; nothing else is ever run. Where bits are to be
the same in every run, what is dirty and what is computed are whole tiles (`base.tiles`): an element
is then as dirty as its tile, for its last bits may follow from its neighbours' operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from tgbench.base.coords import Coord, Moving, moves_freely, value_of
from tgbench.base.regions import EMPTY, NOTHING, Box, Left, Region, Sides, thinned
from tgbench.base.sweeps import around, is_free, steadied
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import Call
from tgbench.runs.buckets import BucketClass, Place
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.rules import Rules, begun, less_known

MOST_FELT = 1_000  # states of which it is remembered what they follow from
ALWAYS = 1 << 60  # later than every step: demanded outputs are read after the last one


@dataclass(frozen=True)
class Storage:
    """Where values live, as far as propagation has to know.

    Fields:
        views: nodes without bytes, with the node whose bytes they show.
        frozen: nodes that depend on no input; they are computed once, before the first run.
        retained: nodes kept in absolute coordinates: what is computed adds to what is there.
        overlaps: for every stored node that shares bytes, those whose computation destroys it.
        sliding: nodes of which a window is kept: the same, as far as that reaches.
    """

    views: Mapping[Node, Node] = field(default_factory=dict)
    frozen: frozenset[Node] = frozenset()
    retained: frozenset[Node] = frozenset()
    overlaps: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)
    sliding: frozenset[Node] = frozenset()

    @cached_property
    def lasting(self) -> frozenset[Node]:
        """Nodes of which what is computed adds to what is there."""
        return self.retained | self.sliding


@dataclass(frozen=True, eq=False)
class Step:
    """What one run does, before it is lowered to instructions.

    Fields:
        dirty, needed: for every node where they are not empty; dirty as far as it was felt.
        compute: for every executed node, in schedule order.
        reused: parts that were needed and already there.
        valid: for every stored node, what holds its value afterwards.
        unusable: cached values that could not be used, because this run overwrites them.
        filled: slices of which only known values are read: they are put there, not computed.
        run: the same for runs that were decided from each other (`redeciding`).
    """

    dirty: Mapping[Node, Region]
    needed: Mapping[Node, Region]
    compute: Mapping[Node, Region]
    reused: Mapping[Node, Region]
    valid: Mapping[Node, Region]
    unusable: tuple[Node, ...]
    filled: frozenset[Node] = frozenset()
    run: Hashable = None


class ValueFate(NamedTuple):
    """What becomes of what is valid of a kept node in a run that counts on none of it.

    Fields:
        dirty: what of it changed.
        steps: of each, whether what was there stays, and what is computed.
    """

    dirty: Region
    steps: tuple[tuple[bool, Region], ...]

    def at(self, changed_at: Place, ran_at: Place) -> ValueFate:
        """The same in numbers, where the change and the run are."""
        steps = tuple([(stays, computed.at(ran_at)) for stays, computed in self.steps])
        return ValueFate(self.dirty.at(changed_at), steps)

    def lost(self) -> Region:
        """What of the change is not computed by the first step: not valid, whatever was."""
        if self.steps and self.steps[0][0]:
            return self.dirty.subtract(self.steps[0][1])
        return self.dirty

    def after(self, valid: Region, lost: Region | None = None) -> Region:
        """What is valid then; `lost` where that is known."""
        gone = next((i for i, (stays, _) in enumerate(self.steps[::-1]) if not stays), None)
        if gone is None:
            left, more = valid.subtract(self.lost() if lost is None else lost), self.steps
        else:
            more = self.steps[len(self.steps) - gone :]
            left = self.steps[-1 - gone][1]
        for _, computed in more:
            left = left.union(computed)
        return left

    @property
    def without_the_rest(self) -> ValueFate:
        """The same where nothing stays but what is computed."""
        return self._replace(steps=tuple([(False, computed) for _, computed in self.steps]))

    @property
    def regions(self) -> tuple[Region, ...]:
        """All that it is made of."""
        return self.dirty, *(computed for _, computed in self.steps)

    def thinned(self, sides: Sides) -> ValueFate:
        """The same without the dimensions that have a common side."""
        steps = tuple([(stays, thinned(computed, sides)) for stays, computed in self.steps])
        return ValueFate(thinned(self.dirty, sides), steps)


Regions: TypeAlias = Mapping[Node, Region]
_place = itemgetter(0)


class NodePart(NamedTuple):
    """What a run does about one node.

    Fields:
        compute: of what it has bytes for.
        reused: what was needed and is there.
        reads: what is then needed of each input; () for nothing of any.
    """

    compute: Region
    reused: Region
    reads: tuple[Region, ...]


NO_PART = NodePart(EMPTY, EMPTY, ())


class Propagator:
    """Decides runs of one graph, in one schedule, over one storage."""

    def __init__(
        self, graph: Graph, storage: Storage, rules: Rules, schedule: Sequence[Node] | None = None
    ) -> None:
        self.graph = graph
        self.storage = storage
        self.rules = rules
        self.schedule = [
            node
            for node in (schedule or graph.nodes)
            if not node.is_leaf and node not in storage.frozen
        ]
        self.position = {node: i for i, node in enumerate(self.schedule)}
        self._ends = graph.ends
        self._over: dict[Node, list[tuple[int, Node]]] = {}
        self._read_bases: dict[Node, list[tuple[int, Node]]] = {}
        self._depended_on = rules.allowance.memo(MOST_FELT)

    def felt(
        self, changed: Mapping[Node, Region], valid: Mapping[Node, Region]
    ) -> Mapping[Node, Region]:
        """The changes that anything valid depends on; all of them where nothing is, and in a sweep.

        What is not dirty then, although it differs, is not valid; what is valid besides may be
        dirty all the same.
        """
        if not valid or any(map(is_free, changed.values())):
            return changed
        first = min(valid, key=lambda node: self.position.get(node, ALWAYS))
        felt = self._felt_by({first: valid[first]}, changed)
        if len(felt) < len(changed):  # most are felt next to the inputs already
            felt = self._felt_by(valid, changed)
        return felt

    def _felt_by(
        self, valid: Mapping[Node, Region], changed: Mapping[Node, Region]
    ) -> Mapping[Node, Region]:
        needed = self._depended_on.get(key_of(valid), self._dependencies, valid)
        return {
            leaf: region
            for leaf, region in changed.items()
            if region == Region.full(leaf.shape) or region.intersects(needed.get(leaf, EMPTY))
        }

    def _dependencies(self, valid: Mapping[Node, Region]) -> dict[Node, Region]:
        """What of the inputs and states these parts follow from."""
        needed, _, _ = at_once(self._going_back({}, valid))
        return {node: region for node, region in needed.items() if node.is_leaf}

    def forward(self, changed: Mapping[Node, Region]) -> dict[Node, Region]:
        """dirty[n] for every node that can differ when these leaves did."""
        return at_once(self.forwarding(changed))

    def forwarding(self, changed: Mapping[Node, Region]) -> Pausing[dict[Node, Region]]:
        dirty = {node: region for node, region in changed.items() if region.boxes}
        rules, views = self.rules.dirty, self.storage.views
        for node in self.schedule:
            parents = tuple([dirty.get(parent, EMPTY) for parent in node.inputs])
            region = rules(node.call, parents)
            if node not in views:
                region = self.rules.rounded(node.call, region)
            if region.boxes:
                dirty[node] = region
            yield
        return dirty

    def step(
        self,
        valid: Mapping[Node, Region],
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        avoid: Iterable[Node] = (),
    ) -> Step:
        """Decide a run: which parts changed, which are asked for, which are still there.

        Cached values of the nodes in `avoid` are computed again if they are needed.
        """
        return at_once(self.stepping(valid, changed, demand, avoid))

    def stepping(
        self,
        valid: Mapping[Node, Region],
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        avoid: Iterable[Node] = (),
    ) -> Pausing[Step]:
        dirty = yield from self.forwarding(changed)
        left = {node: Left(region, dirty.get(node, EMPTY)) for node, region in valid.items()}
        unusable: dict[Node, None] = dict.fromkeys(avoid)
        while True:
            usable = {node: there for node, there in left.items() if node not in unusable}
            needed, compute, reused = yield from self._going_back(usable, demand)
            filled = self._filled(needed, compute, reused)
            lost = self._destroyed_before_read(needed, compute, reused, filled)
            if not lost:
                break
            unusable.update(dict.fromkeys(lost))
        after = self._valid_after(left, compute, compute.keys() | filled)
        return Step(dirty, needed, compute, reused, after, tuple(unusable), filled)

    def _going_back(
        self, usable: Mapping[Node, Left], demand: Mapping[Node, Region]
    ) -> Pausing[tuple[Regions, Regions, Regions]]:
        needed = dict(demand)
        compute: dict[Node, Region] = {}
        reused: dict[Node, Region] = {}
        for node in reversed(self.schedule):
            region = needed.get(node)
            if region is None or not region.boxes:
                continue
            yield
            part = self._part(node, region, usable.get(node, NOTHING))
            if part.compute.boxes:
                compute[node] = part.compute
            if part.reused.boxes:
                reused[node] = part.reused
            for parent, read in zip(node.inputs, part.reads, strict=False):
                if read.boxes:
                    before = needed.get(parent)
                    needed[parent] = read if before is None else self.rules.union(before, read)
        return needed, dict(reversed(compute.items())), reused

    def _part(self, node: Node, region: Region, there: Left) -> NodePart:
        """What of a needed region is computed, where some of it may be there."""
        rules, reused = self.rules, EMPTY
        if node in self.storage.views:
            return NodePart(EMPTY, EMPTY, rules.needed(node.call, region))
        if node.call.op.continues is not None:
            return self._going_on(node, region, there)
        if is_free(there.dirty) or is_free(region):
            return self._anywhere(node, region, there)
        is_lasting = node in self.storage.lasting
        if there.valid.boxes:
            missing = rules.lacking(there, region)
            if not missing.boxes:
                return NodePart(EMPTY, region, ())
            if is_lasting:
                reused = rules.subtract(region, missing)
                region = missing
        region = widened(node.call, less_known(node.call, region))
        if not region.boxes:
            return NodePart(EMPTY, reused, ())
        region = rules.rounded(node.call, region)
        keep = there if is_lasting else NOTHING
        if len(region) > 1:
            if region.moves or there.moves:  # how large they are depends on where one stands
                region = covered(node.call, region, keep)
            else:
                key = node.call, region, keep
                region = rules.covered.get(key, covered, *key)
        return NodePart(region, reused, rules.needed(node.call, region))

    def _going_on(self, node: Node, region: Region, there: Left) -> NodePart:
        """The same of an op that goes on from row to row: what is needed and not there, behind a
        row that is, or else from the first one that is not there on; all of it in a sweep.
        """
        rules, call, reused = self.rules, node.call, EMPTY
        if is_free(there.dirty) or is_free(region):
            whole = Region.full(node.shape)
            return NodePart(whole, EMPTY, rules.needed(call, whole))
        if there.valid.boxes and not rules.lacking(there, region).boxes:
            return NodePart(EMPTY, region, ())
        region = widened(call, region)
        if node in self.storage.lasting and there.valid.boxes:
            missing = rules.lacking(there, region).hull()
            first = self._behind_what_is_there(there, missing)
            if first is not None:
                (_, stop), *sides = missing
                compute = Region((Box(((first, stop), *sides)),))
                asked = rules.union(region, Region((Box(((first - 1, first), *sides)),)))
            else:
                asked = begun(call, region)
                compute = Region((rules.lacking(there, asked).hull(),))
            compute = rules.rounded(call, compute)
            reused = rules.subtract(asked, compute)
        else:
            compute = rules.rounded(call, begun(call, region))
        return NodePart(compute, reused, rules.needed_beside(call, compute))

    def _behind_what_is_there(self, there: Left, missing: Box) -> Coord | None:
        """The first row that is computed where one before it is there, the last one that is: what
        lies before that is none of anybody's business.
        """
        (start, _), *sides = missing
        found: Coord | None = None
        for (first, stop), *wide in self.rules.subtract(there.valid, there.dirty):
            last = start if stop > start else stop
            is_all = Box(wide).contains(Box(sides))
            if is_all and first < last and (found is None or last > found):
                found = last
        return found

    def _anywhere(self, node: Node, region: Region, there: Left) -> NodePart:
        """The same in a sweep: all that is dirty, so that what is there afterwards does not depend
        on where it stood; as large a box wherever that is, where code is for one size.
        """
        rules, reused = self.rules, EMPTY
        if there.valid.boxes:
            missing = rules.lacking(there, region)
            if not missing.boxes:
                return NodePart(EMPTY, region, ())
            if node in self.storage.lasting:
                reused, region = region, around(*missing, *there.dirty)
        region = widened(node.call, less_known(node.call, region))
        region = rules.rounded(node.call, region)
        if len(region) > 1:
            region = covered(node.call, region, EMPTY)
        if self._is_for_one_size(node):
            region = steadied(region, node.shape)
        return NodePart(region, reused, rules.needed(node.call, region))

    @cached_property
    def _read_by(self) -> Counter[Node]:
        """How many times each node is read; only sweeps ask."""
        return Counter(parent for node in self.graph.nodes for parent in node.inputs)

    def _is_for_one_size(self, node: Node) -> bool:
        """Whether code of a product is for one size, or of one that this may be a part of."""
        op = node.call.op
        if op.multiplies:
            return not self.rules.serves_any_size(node.call)
        before = [node.inputs[i] for i in op.aligned]
        return any(
            self._read_by[one] == 1 and not one.is_leaf and self._is_for_one_size(one)
            for one in before
        )

    def _filled(
        self,
        needed: Mapping[Node, Region],
        compute: Mapping[Node, Region],
        reused: Mapping[Node, Region],
    ) -> frozenset[Node]:
        """Slices that a kernel or the caller looks at although all that it needs there is known."""
        storage, found = self.storage, set[Node]()

        def is_bare(base: Node) -> bool:
            if base in compute or base in reused or base in found:
                return False
            return not (base in storage.lasting and not storage.overlaps.get(base))

        for node, region in compute.items():
            for i, base in self._bases_of_inputs(node):
                if is_bare(base) and self._reads_of(node, region, i):
                    found.add(base)
        return frozenset(found.union(filter(is_bare, self._handed_out(needed))))

    def _reads_of(self, node: Node, region: Region, i: int) -> bool:
        """Whether computing a region reads anything of an input."""
        return any(self.rules.reads(node.call, box)[i] is not None for box in region)

    def _handed_out(self, needed: Mapping[Node, Region]) -> list[Node]:
        """Whose bytes are looked at as they are handed out, and are computed in runs."""
        views, frozen = self.storage.views, self.storage.frozen
        bases = [views.get(node, node) for node in self._ends if node in needed]
        return [base for base in bases if not (base.is_leaf or base in frozen)]

    def _bases_of_inputs(self, node: Node) -> list[tuple[int, Node]]:
        """Whose bytes a node reads that are computed in runs, by input."""
        found = self._read_bases.get(node)
        if found is None:
            views, frozen = self.storage.views, self.storage.frozen
            bases = enumerate(views.get(parent, parent) for parent in node.inputs)
            found = [(i, base) for i, base in bases if not (base.is_leaf or base in frozen)]
            self._read_bases[node] = found
        return found

    def _last_reads(
        self, needed: Mapping[Node, Region], compute: Mapping[Node, Region]
    ) -> dict[Node, int]:
        """For each stored node, the last executed step that reads its bytes."""
        views = self.storage.views
        last: dict[Node, int] = {}
        for node in compute:
            for parent in node.inputs:
                last[views.get(parent, parent)] = self.position[node]
        for node in self._ends:
            if node in needed:
                last[views.get(node, node)] = ALWAYS
        return last

    def _destroyed_before_read(
        self,
        needed: Mapping[Node, Region],
        compute: Mapping[Node, Region],
        reused: Mapping[Node, Region],
        filled: frozenset[Node],
    ) -> list[Node]:
        overlaps = self.storage.overlaps
        cached = [node for node in reused if overlaps.get(node)]
        if not cached:
            return []
        last, written = self._last_reads(needed, compute), compute.keys() | filled
        return [
            node for node in cached if self._is_destroyed(node, -1, last.get(node, ALWAYS), written)
        ]

    def _valid_after(
        self,
        left: Mapping[Node, Left],
        compute: Mapping[Node, Region],
        written: Set[Node],
    ) -> dict[Node, Region]:
        """Of what was left, and of what was computed, where nothing was written since."""
        after: dict[Node, Region] = {}
        for node, there in left.items():
            if node not in compute and self._fares(node, compute, written)[0]:
                region = self.rules.subtract(there.valid, there.dirty)
                if region.boxes:
                    after[node] = region
        for node in self._outlasting(compute, written):
            there = left.get(node, NOTHING) if self._adds(node, written) else NOTHING
            after[node] = self.rules.joined(there, compute[node])
        return after

    def _outlasting(self, compute: Mapping[Node, Region], written: Set[Node]) -> Iterable[Node]:
        """What is computed and nothing is written over afterwards."""
        position = self.position
        return [n for n in compute if not self._is_destroyed(n, position[n], ALWAYS, written)]

    def _adds(self, node: Node, written: Set[Node]) -> bool:
        """Whether what is computed of a node adds to what was there."""
        if node not in self.storage.lasting:
            return False
        return not self._is_destroyed(node, -1, self.position[node], written)

    def fate(self, node: Node, dirty: Region, steps: Sequence[Step]) -> ValueFate:
        """What becomes of a kept node in steps that were decided for larger changes."""
        found = []
        for step in steps:
            stays, lasts = self._fares(node, step.compute, step.compute.keys() | step.filled)
            found.append((stays, step.compute[node] if lasts else EMPTY))
        return ValueFate(dirty, tuple(found))

    def _fares(
        self, node: Node, compute: Mapping[Node, Region], written: Set[Node]
    ) -> tuple[bool, bool]:
        """Whether what was there of a node is there when all is written, and what is computed."""
        if node not in compute:
            return node not in written and not self._is_destroyed(node, -1, ALWAYS, written), False
        if self._is_destroyed(node, self.position[node], ALWAYS, written):
            return False, False
        return self._adds(node, written), True

    def _is_destroyed(
        self,
        node: Node,
        first: int,
        last: int,
        written: Set[Node],
    ) -> bool:
        """Whether something written after step `first` and before step `last` lies over it."""
        for at, other in self._overlapping(node):
            if at <= first:
                break
            if at < last and other in written:
                return True
        return False

    def _overlapping(self, node: Node) -> list[tuple[int, Node]]:
        """What lies over a node, and when it is written, the last one first."""
        found = self._over.get(node)
        if found is None:
            position, over = self.position, self.storage.overlaps.get(node, ())
            known = ((position[other], other) for other in over if other in position)
            found = self._over[node] = sorted(known, key=_place, reverse=True)
        return found


def key_of(regions: Mapping[Node, Region]) -> Hashable:
    """For dictionaries of the same regions of the same nodes."""
    return frozenset(regions.items())


Asked: TypeAlias = "dict[str, tuple[Node, Region]]"  # what is handed out, by name


def changes(graph: Graph, kind: BucketClass, origin: Sequence[Coord]) -> dict[Node, Region]:
    """What of the inputs and states changed in a run of a class."""
    leaves = {**graph.inputs, **graph.states}
    return {leaves[name]: region for name, region in kind.regions("changed", origin).items()}


def handed_out(graph: Graph, kind: BucketClass, origin: Sequence[Coord]) -> Asked:
    """What a run of a class is asked for: demanded outputs, and the states' next values."""
    wanted = kind.regions("demand", origin)
    found = {name: (graph.outputs[name], region) for name, region in wanted.items()}
    for name, writes in graph.writes.items():
        for node in (node for write in writes for node in write.nodes):
            found[update_key(name, node)] = (node, Region.full(node.shape))
    return found


def update_key(name: str, node: Node) -> str:
    """The name under which what a state becomes, or where, is handed out."""
    return f"update {name} {node.name}"


def joined(parts: Iterable[tuple[Node, Region]]) -> dict[Node, Region]:
    """One region per node: several outputs may be the same node."""
    found: dict[Node, Region] = {}
    for node, region in parts:
        found[node] = found[node].union(region) if node in found else region
    return found


def widened(call: Call, region: Region) -> Region:
    """A region rounded up to the dimensions that kernels of this op compute whole."""
    axes = call.op.whole(call)
    if not axes or not region.boxes:
        return region
    shape = call.out.shape
    whole = {axis % len(shape) for axis in axes}
    wide = Region.of(
        *(
            Box((0, shape[i]) if i in whole else interval for i, interval in enumerate(box))
            for box in region
        )
    )
    return less_known(call, wide)


# Two cores of a present server: enough to rank choices, until costs are measured.
LAUNCH_NS = 2_000.0
BYTES_PER_NS = 25.0
FLOPS_PER_NS = 120.0


def _streamed_bytes(call: Call) -> int:
    """Bytes of weights that a call reads whatever its box."""
    return sum(int(call.inputs[i].size_bytes) for i in call.op.streams(call))


def rough_ns(call: Call, box: Box) -> float:
    """A modelled time for one box: launch, arithmetic, and the bytes of weights it streams."""
    moved = _streamed_bytes(call) + box.elements * call.out.itemsize * 2
    return LAUNCH_NS + call.op.flops(call, box) / FLOPS_PER_NS + moved / BYTES_PER_NS


def covered(call: Call, region: Region, keep: Region | Left) -> Region:
    """The region as few boxes as pay: two boxes become their hull where that is modelled faster.

    A hull never covers `keep`, elements that are valid already and must not change their bits.
    """
    boxes = list(region.boxes)
    times = [rough_ns(call, box) for box in boxes] if len(boxes) > 1 else []
    i = 0
    while i + 1 < len(boxes):
        a, b = boxes[i : i + 2]
        hull, apart_ns = a.hull(b), times[i] + times[i + 1]
        together_ns = rough_ns(call, hull)
        pays = _pays(call, a, b, hull, together_ns, apart_ns)
        if pays and not keep.intersects(Region((hull,))):
            boxes[i : i + 2], times[i : i + 2] = [hull], [together_ns]
            i = max(i - 1, 0)
        else:
            i += 1
    return Region.of(*boxes) if len(boxes) != len(region) else region


def _pays(call: Call, a: Box, b: Box, hull: Box, together_ns: float, apart_ns: float) -> bool:
    """Whether the hull of two boxes takes no longer than both of them.

    Where they are rows, say, that move apart, what is found at one place is to pay at all others
    that it serves: they are joined over as wide a gap as a power of two, which few programs differ
    by. Boxes that differ in several dimensions are judged by where they are.
    """
    differ = [i for i, (mine, other) in enumerate(zip(a, b, strict=True)) if mine != other]
    gap = b[differ[0]][0] - a[differ[0]][1] if len(differ) == 1 else 0
    if type(gap) is not Moving or moves_freely(gap):
        return together_ns <= apart_ns
    [axis] = differ
    lengths, size = list(map(value_of, hull.extents)), call.out.shape[axis]
    both = lengths[axis] - value_of(gap)

    def takes_ns(width: int) -> float:
        lengths[axis] = min(both + width, size)
        return rough_ns(call, Box((0, length) for length in lengths))

    widths = (0, *(1 << k for k in range(size.bit_length() + 1)))
    most = max((width for width in widths if takes_ns(width) <= apart_ns), default=-1)
    return bool(gap <= most)
