"""One run decided and lowered for one memory map, before it is bound to any bytes.

    (what is there, class, origin) ─→ whole if it fits, else in pieces, else more than is asked for
                                   ─→ steps and instructions

Nothing here touches memory: a session binds the result, an optimiser only looks at it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tgbench.base.coords import Coord, Domain, Guard, fixed, origin_symbol, record
from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, Region
from tgbench.base.sweeps import is_free
from tgbench.graph.graph import Node
from tgbench.graph.op_table import IMAGE_RANK
from tgbench.kernels.registry import Ranking, candidates
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.held import Held, State
from tgbench.programs.lowering import DoesNotFit, Lowerer, Lowering, Unreadable
from tgbench.programs.program import Instruction
from tgbench.programs.teamwork import Teamwork
from tgbench.runs.buckets import BucketClass
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.propagate import Propagator, Step, changes, handed_out, joined
from tgbench.runs.redeciding import Before, Redecider
from tgbench.runs.rules import Rules, row_before
from tgbench.runs.split import WHOLE, Cut, Demand, cuts, demands, supersets

MOST_SEEN = 4096  # extents and uses whose fixed entries are remembered


@dataclass(frozen=True)
class Specialised:
    """A run in one or several pieces, right wherever its guards hold.

    Fields:
        pieces: what each piece decides, and its instructions.
        guards: over the origin.
        counts_on: what of what was held it looks at; it is right wherever that is there.
    """

    pieces: tuple[tuple[Step, Lowering], ...]
    guards: frozenset[Guard]
    counts_on: State

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Of all pieces, in execution order."""
        return tuple(made for _, lowering in self.pieces for made in lowering.instructions)

    @property
    def has_moving_sizes(self) -> bool:
        """Whether some kernel was chosen where sizes of operands follow the origin."""
        return any(
            type(size) is not int
            for made in self.instructions
            if made.site is not None
            for view in made.site.views
            for size in view.shape
        )

    @property
    def after(self) -> State:
        """What is there when the last piece is done."""
        return self.pieces[-1][1].after


@dataclass(frozen=True)
class Way:
    """How a run is computed.

    Fields:
        cut: in which pieces.
        more: of the supersets of what is asked for, which one is computed; 0 for none of them.
        afresh: nothing that is there is used.
        is_fixed: where it is counts as numbers, as a plan has it: over an origin a region may be
            rounded up to what there is no room for.
    """

    cut: Cut
    more: int = 0
    afresh: bool = False
    is_fixed: bool = False


class FixedEntries:
    """Where entries of an origin could not move: a program made there was right there alone.

    A coordinate that moves costs comparisons and their guards, and buys programs that are right at
    many origins. In a deep convolutional network forms buy nothing: strides add up to congruences,
    borders clip, and what is left is one position per program. So where a program turned out to be
    right for one value of an entry, the next run of that entry at that value takes it for a number.

    Runs whose boxes have other extents are another matter. And one value says little: a prompt
    always starts at 0, and what rules remember of it is in the form that moves.
    """

    def __init__(self) -> None:
        self._seen = Latest[Hashable, set[int]](MOST_SEEN)

    def of(self, kind: BucketClass, origin: Sequence[int]) -> dict[int, int]:
        """The entries of an origin that are taken for numbers; of one that is swept, which images
        of a batch these are.
        """
        if kind.is_swept:
            return {i: origin[i] for i in kind.of_batch}
        found = {}
        for i, value in enumerate(origin):
            values = [self._seen.get((kind.extents, use), ()) for use in kind.uses[i]]
            if all(len(seen) > 1 and value in seen for seen in values):
                found[i] = value
        return found

    def learn(self, kind: BucketClass, origin: Sequence[int], guards: Iterable[Guard]) -> None:
        """Take note of a program's guards."""
        for i in Domain(guards).fixed:
            for use in kind.uses[i]:
                self._seen.setdefault((kind.extents, use), set()).add(origin[i])


class Specialiser:
    """Decides and lowers runs over one placement.

    Args:
        lowerer: who lowers them, if not one of these settings.
        before: how runs were decided over other placements, where that is known.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        placement: Placement,
        cut: Cut,
        rules: Rules,
        device: str,
        ranking: Ranking = candidates,
        classes: Mapping[BucketClass, tuple[float, tuple[int, ...]]] | None = None,
        team: Teamwork | None = None,
        lowerer: Lowerer | None = None,
        before: Before | None = None,
    ) -> None:
        self.scheduled = scheduled
        self.cut = cut
        self.classes = classes or {}
        storage = placement.storage(scheduled)
        given = scheduled.graph, storage, rules, scheduled.schedule
        self.propagator = Propagator(*given) if before is None else Redecider(*given, before)
        self.lowerer = lowerer or Lowerer(scheduled, placement, rules, device, ranking, team)
        self.fixed_entries = FixedEntries()

    @cached_property
    def planned(self) -> list[Demand]:
        """What the map was made for: the demands of its classes, where they have to fit."""
        places = [(kind, at) for kind, (_, o) in self.classes.items() for at in kind.corners(o)]
        found = [joined(handed_out(self.scheduled.graph, *place).values()) for place in places]
        return [demand for i, demand in enumerate(found) if demand not in found[:i]]

    def specialise(
        self,
        held: State,
        kind: BucketClass,
        origin: tuple[int, ...],
        *,
        or_more: bool = True,
        as_planned: bool = False,
        is_fixed: bool = False,
        counts_on_all: bool = True,
    ) -> Specialised:
        """Whole if it fits, else cut as planned, else in ever smaller pieces; else more of it.

        Args:
            or_more: where it does not fit, compute more than what is asked for, or all afresh.
            as_planned: what does not fit whole, or cut as planned, does not fit.
            is_fixed: the origin is taken for numbers: made quickly, and right there alone.
            counts_on_all: of what is held, not only on what is looked at: working that out takes,
                and guards what it compares.

        Raises DoesNotFit if nothing fits.
        """
        return at_once(
            self.specialising(
                held, kind, origin, or_more=or_more, as_planned=as_planned, is_fixed=is_fixed,
                counts_on_all=counts_on_all,
            )
        )  # fmt: skip

    def specialising(
        self,
        held: State,
        kind: BucketClass,
        origin: tuple[int, ...],
        *,
        or_more: bool = True,
        as_planned: bool = False,
        is_fixed: bool = False,
        counts_on_all: bool = True,
    ) -> Pausing[Specialised]:
        for way in self._own_ways if as_planned else self._ways(kind, origin, or_more):
            try:
                with record(origin) as guards:
                    made, counts_on = yield from self._lowering(
                        held, kind, origin, way, is_fixed or way.is_fixed, counts_on_all
                    )
            except DoesNotFit as error:
                failure = error
                continue
            found = Specialised(tuple(made), frozenset(guards), counts_on)
            if not is_fixed and not way.is_fixed:
                self.fixed_entries.learn(kind, origin, guards)
                if self._moves_in_vain(found, kind, origin):
                    return (
                        yield from self._in_numbers(found, held, kind, origin, way, counts_on_all)
                    )
            return found
        raise failure

    def _moves_in_vain(
        self, found: Specialised, kind: BucketClass, origin: tuple[int, ...]
    ) -> bool:
        """Whether sizes follow an origin in a run that is right here alone, and what it leaves may
        be said in numbers: of images most is. In texts the next run begins with it elsewhere.
        """
        is_alone = not kind.is_swept and holds_alone(found.guards, origin)
        return is_alone and self._is_of_images and found.has_moving_sizes

    @cached_property
    def _is_of_images(self) -> bool:
        """Whether windows slide along two dimensions or more: along one, it may be a text."""
        nodes = (node for node in self.scheduled.graph.nodes if not node.is_leaf)
        return any(n.call.op.on_images and len(n.shape) >= IMAGE_RANK for n in nodes)

    def _in_numbers(
        self,
        found: Specialised,
        held: State,
        kind: BucketClass,
        origin: tuple[int, ...],
        way: Way,
        counts_on_all: bool,
    ) -> Pausing[Specialised]:
        """A run that turned out to be right here alone, for numbers, if that fits: where sizes move
        fewer kernels take a call, and often not the quickest, and here they do so in vain.
        """
        try:
            with record(origin) as guards:
                made, counts_on = yield from self._lowering(
                    held, kind, origin, way, True, counts_on_all
                )
        except DoesNotFit:
            return found
        return Specialised(tuple(made), frozenset(guards), counts_on)

    def deciding(
        self, held: State, kind: BucketClass, origin: tuple[int, ...]
    ) -> Pausing[tuple[Step, Domain]]:
        """What a run in one piece computes, before it is lowered, and where else it does that."""
        graph, numbers = self.scheduled.graph, self.fixed_entries.of(kind, origin)
        with record(origin) as guards:
            held, symbols = _with(numbers, held, kind)
            demand = joined(handed_out(graph, kind, symbols).values())
            changed = self._felt(held, kind, symbols)
            step = yield from self.propagator.stepping(_valid(held), changed, demand)
        return step, Domain(guards)

    def counting(
        self, held: State, kind: BucketClass, origin: tuple[int, ...]
    ) -> Pausing[tuple[dict[Node, Held], bool]]:
        """What of what is held a run in one piece looks at here, said over the origin; and whether
        more changes than it computes.
        """
        graph = self.scheduled.graph
        with record(origin):
            demand = joined(handed_out(graph, kind, kind.symbols).values())
            changed = self._felt(held, kind, kind.symbols)
            step = yield from self.propagator.stepping(_valid(held), changed, demand)
            computed = step.compute.get
            dirty = [(n, step.dirty[n]) for n in held if n in step.dirty and not n.is_leaf]
            is_stale = any(not computed(n, EMPTY).contains(d) for n, d in dirty)
            return (yield from self._looked_at(step, held, demand)), is_stale

    def _felt(
        self, held: State, kind: BucketClass, symbols: Sequence[Coord]
    ) -> Mapping[Node, Region]:
        """The changes of a run that anything held depends on."""
        return self.propagator.felt(changes(self.scheduled.graph, kind, symbols), _valid(held))

    @property
    def _own_ways(self) -> list[Way]:
        """Whole, or cut as planned."""
        return [Way(WHOLE), *([Way(self.cut)] if self.cut != WHOLE else [])]

    def _ways(self, kind: BucketClass, origin: tuple[int, ...], or_more: bool) -> Iterator[Way]:
        own = [way.cut for way in self._own_ways]
        yield from self._own_ways
        if self._may_fit_in_pieces(kind, origin):
            yield from (Way(cut) for cut in cuts(self.propagator) if cut not in own)
        if not or_more:
            return
        yield from (Way(cut, is_fixed=True) for cut in own)
        demand = joined(handed_out(self.scheduled.graph, kind, origin).values())
        larger = range(1, len(supersets(demand, self.planned)) + 1)
        yield from (Way(cut, more) for more in larger for cut in own)
        yield from (Way(cut, more, afresh=True) for more in (0, *larger) for cut in own)

    def _may_fit_in_pieces(self, kind: BucketClass, origin: tuple[int, ...]) -> bool:
        """Whether there is room for the last piece: it is asked for everything, and finds there
        what lasts. No way of cutting leaves less to it.
        """
        placement, graph = self.lowerer.placement, self.scheduled.graph
        lasting = {
            node: Held(Region.full(node.shape), placement.slots[node].start)
            for node in placement.always
            if not node.is_leaf
        }
        try:
            demand = joined(handed_out(graph, kind, origin).values())
            at_once(self._readable(lasting, {}, demand, {}))
        except DoesNotFit:
            return False
        return True

    def _lowering(
        self,
        held: State,
        kind: BucketClass,
        origin: tuple[int, ...],
        way: Way,
        is_fixed: bool,
        counts_on_all: bool = True,
    ) -> Pausing[tuple[list[tuple[Step, Lowering]], State]]:
        numbers = dict(enumerate(origin)) if is_fixed else self.fixed_entries.of(kind, origin)
        held, symbols = taken_for(numbers, {} if way.afresh else held, kind)
        changed = self._felt(held, kind, symbols)
        named = handed_out(self.scheduled.graph, kind, symbols)
        demand: Demand = joined(named.values())
        if way.more:
            demand = supersets(demand, self.planned)[way.more - 1]
        asked: Sequence[Demand] = [demand]
        if way.cut != WHOLE:
            whole = yield from self.propagator.stepping(_valid(held), changed, demand)
            asked = demands(self.propagator, whole, way.cut, demand)
        made: list[tuple[Step, Lowering]] = []
        before = held
        for i, part in enumerate(asked):
            names = named if i == len(asked) - 1 else {}
            step, lowering = yield from self._readable(held, changed, part, names)
            made.append((step, lowering))
            held, changed = lowering.after, {}
        if counts_on_all or len(made) > 1:
            return made, before
        return made, (yield from self._looked_at(made[0][0], before, demand))

    def _looked_at(self, step: Step, held: State, demand: Demand) -> Pausing[dict[Node, Held]]:
        """What a step reads of what is held, or hands out: also what a kernel touches in vain.

        In a sweep it is all of what is read of: parts of it are others elsewhere.
        """
        rules, base_box = self.lowerer.rules, self.scheduled.base_box
        parts = [base_box(node, box, rules) for node, region in demand.items() for box in region]
        for node, region in step.compute.items():
            for box in rules.parts(node.call, region):
                reads = zip(node.inputs, rules.reads(node.call, box), strict=True)
                parts += [base_box(one, read, rules) for one, read in reads if read is not None]
                before = row_before(node.call, box)
                parts += [] if before is None else [(node, before)]
            yield
        found: dict[Node, Region] = {}
        is_swept = any(map(is_free, step.dirty.values()))
        for node, box in parts:
            if node not in held:
                continue
            part = held[node].valid if is_swept else Region((box,))
            found[node] = found.get(node, EMPTY).union(part)
            yield
        if is_swept:
            return {node: held[node] for node in found}
        there = {
            node: region.intersect(held[node].valid).subtract(step.dirty.get(node, EMPTY))
            for node, region in found.items()
        }
        return {n: Held(region, held[n].start) for n, region in there.items() if region.boxes}

    def _readable(
        self,
        held: State,
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        named: Mapping[str, tuple[Node, Region]],
    ) -> Pausing[tuple[Step, Lowering]]:
        """Decide and lower, computing again what a kernel could not read where it lies."""
        avoid: list[Node] = []
        while True:
            step = yield from self.propagator.stepping(_valid(held), changed, demand, avoid)
            try:
                return step, (yield from self.lowerer.lowering(step, held, named))
            except Unreadable as found:
                avoid.append(found.node)


def holds_alone(guards: Iterable[Guard], origin: Sequence[int]) -> bool:
    """Whether a decision under these guards is right at this origin only."""
    return len([*Domain(guards).fixed]) == len(origin)


def taken_for(
    numbers: Mapping[int, int], held: State, kind: BucketClass
) -> tuple[State, Sequence[Coord]]:
    """The same as `_with`; guarded, as it is right where these entries have these numbers."""
    for index in numbers:
        origin_symbol(index).pin()
    return _with(numbers, held, kind)


def _with(
    numbers: Mapping[int, int], held: State, kind: BucketClass
) -> tuple[State, Sequence[Coord]]:
    """What is held, and the origin, where these entries of it are numbers."""
    if not numbers:
        return held, kind.symbols
    there = {node: part.fixed(numbers) for node, part in held.items()}
    return there, [fixed(symbol, numbers) for symbol in kind.symbols]


def _valid(state: State) -> dict[Node, Region]:
    return {node: held.valid for node, held in state.items()}
