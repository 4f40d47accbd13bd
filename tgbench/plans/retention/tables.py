"""What every node would compute, read and cost in every situation, as small tables.

For one run, what is needed of a node takes few values, and they nest: nothing, the row of a new
token, all rows up to it. Those are its *levels*. From the level and from whether the node's earlier
value is there follows what it computes, its *code*; from the code follow the time, and the levels
that it asks of the nodes it reads.

    level of n  =  largest that a reader's code asks of it
    code of n   =  0               where the level is 0
                   level           where its earlier value is there: the rest is computed
                   levels + level  where it is not: all that is needed is computed

The region rules are asked once, here; what a set of retained nodes costs is then table lookups.
Where regions do not nest, the larger level is their union: costs are never too low for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base.coords import value_of
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.memory.placement import ALIGNMENT, aligned, donors
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.along import Along
from tgbench.plans.retention.workload import Workload, asked
from tgbench.runs.propagate import Propagator, covered, widened
from tgbench.runs.rules import Rules, begun, less_known
from tgbench.runs.split import Cut, demands

Cost: TypeAlias = Callable[[Call, Box], float]  # nanoseconds
Floats: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]
Levels: TypeAlias = "tuple[Region, ...]"  # each holds the ones before it
NOTHING, ALWAYS = -1, -2
MOST_LEVELS = 4  # more are merged into the next larger one
MOST_WALKED, LEAST_WALKED = 20_000, 32  # nodes times calls, and calls, of a trace that are walked


@dataclass(frozen=True)
class Situation:
    """A run, or a piece of one, whose cost is tabulated.

    Fields:
        before: position of the turn whose retention decides what is there; NOTHING: nothing is;
            ALWAYS: what is kept through all turns, as for the later pieces of a run.
        of: the turn that runs.
        weight: its share of all transitions; 0 for runs that only have to fit.
    """

    before: int
    of: int
    weight: float


@dataclass(frozen=True)
class NodeTable:
    """One node in all situations; arrays are [situation, code] unless said otherwise.

    Fields:
        levels: how many there are.
        cost_ns: time to compute.
        size_bytes: of the slice that holds what is computed and read.
        demanded, wished: [situation] level asked for by the run itself: always, and if retained.
        asks: for each node read (by position): the level asked of it.
    """

    levels: int
    cost_ns: Floats
    size_bytes: NDArray[np.int64]
    demanded: Bytes
    wished: Bytes
    asks: tuple[tuple[int, Bytes], ...]


@dataclass(frozen=True)
class Tables:
    """A workload, tabulated; arrays are over the stored nodes, in schedule order.

    Fields:
        names: of the nodes.
        situations: weighed ones first.
        start, stop: live range in the schedule, stop exclusive; an operand that gives its bytes
            to an in-place result ends where that begins.
        kept_bytes: what the node takes when it is retained.
        scratch_bytes: what its kernel takes besides, at its step.
        base_bytes: inputs and states, always there.
        worthwhile: whether retaining it can change anything.
        left: [situation, node] whether the run leaves anything of an earlier value.
        walk: situations in the order in which they happened.
    """

    names: tuple[str, ...]
    table: tuple[NodeTable, ...]
    situations: tuple[Situation, ...]
    turns: int
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    kept_bytes: NDArray[np.int64]
    scratch_bytes: NDArray[np.int64]
    base_bytes: int
    worthwhile: NDArray[np.bool_]
    left: NDArray[np.bool_]
    walk: NDArray[np.int64]

    @cached_property
    def digest(self) -> str:
        """Equal for equal tables, in every process."""
        found = hashlib.sha256(repr((self.names, self.situations, self.turns)).encode())
        found.update(str(self.base_bytes).encode())
        arrays: list[NDArray[Any]] = [self.start, self.stop, self.kept_bytes, self.scratch_bytes]
        arrays += [self.worthwhile, self.left, self.walk]
        for table in self.table:
            arrays += [table.cost_ns, table.size_bytes, table.demanded, table.wished]
            for parent, asks in table.asks:
                arrays += [np.array(parent), asks]
        for array in arrays:
            found.update(repr(array.shape).encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()


@dataclass
class _Setting:
    """A situation while it is being tabulated: regions of the run, numeric.

    Fields:
        left: what is valid and not dirty, were everything retained, or
            of what is retained for the piece at hand.
        demand: what the run asks for, of stored nodes.
        wished: what it computes of retained nodes for later pieces.
    """

    situation: Situation
    left: Mapping[Node, Region]
    demand: Mapping[Node, Region]
    wished: Mapping[Node, Region] = field(default_factory=dict)


def tabulate(
    scheduled: ScheduledGraph,
    rules: Rules,
    workload: Workload,
    cost: Cost,
    scratch_bytes: Mapping[Node, int] | None = None,
    along: Along | None = None,
) -> Tables:
    """Ask the region rules about every node in every situation of a workload, uncut.

    Runs that fit are never cut, and those that do not take little longer in pieces: so these times
    are lower bounds for every cut.

    Args:
        cost: nanoseconds for one box of one op application.
        scratch_bytes: temporary memory per node, where it is known.
        along: knows what takes no time of its own; None: nothing is.
    """
    whole = scheduled.propagator(rules, scheduled.stored)
    weighed = [
        _setting(scheduled, whole, workload, Situation(row.before, row.of, row.weight), row.origin,
                 row.valid)
        for row in workload.rows
    ]  # fmt: skip
    cold = [_cold(scheduled, workload, of) for of in range(len(workload.kinds))]
    told_by = [row for row in workload.told_by if row >= 0]
    most = max(MOST_WALKED // max(len(scheduled.stored), 1), LEAST_WALKED)
    return _tables(
        scheduled, rules, workload, [*weighed, *cold], cost, scratch_bytes or {}, told_by[:most],
        along,
    )  # fmt: skip


def tabulate_pieces(
    scheduled: ScheduledGraph,
    rules: Rules,
    workload: Workload,
    cut: Cut,
    frontier: Iterable[Node],
) -> Tables:
    """The same for what runs from nothing compute piece by piece: the sizes of slices.

    Of many pieces only the first and the last ones are looked at.

    Args:
        frontier: nodes whose earlier values some run reads, if everything is retained.
    """
    keep = frozenset(frontier)
    settings: list[_Setting] = []
    for of in range(len(workload.kinds)):
        settings += _pieces(scheduled, rules, workload, of, keep, cut)
    return _tables(scheduled, rules, workload, settings, lambda call, box: 0.0, {})


def _tables(
    scheduled: ScheduledGraph,
    rules: Rules,
    workload: Workload,
    settings: Sequence[_Setting],
    cost: Cost,
    scratch_bytes: Mapping[Node, int],
    walk: Sequence[int] = (),
    along: Along | None = None,
) -> Tables:
    maker = _Maker(scheduled, rules, cost, settings, along)
    tables = maker.tables()
    nodes = scheduled.stored
    slots = {node: tuple(value_of(b - a) for a, b in maker.hulls[node]) for node in maker.hulls}
    inplace = donors(scheduled, frozenset(), slots)
    stop = np.array([scheduled.live[node].stop for node in nodes], np.int64)
    for result, operand in inplace.items():
        stop[maker.index[operand]] = scheduled.position[result]
    return merged(Tables(
        tuple(node.name for node in nodes),
        tuple(tables),
        tuple(setting.situation for setting in settings),
        len(workload.turns),
        np.array([scheduled.live[node].start for node in nodes], np.int64),
        stop,
        np.array([maker.kept_bytes(node) for node in nodes], np.int64),
        np.array([aligned(scratch_bytes.get(node, 0)) for node in nodes], np.int64),
        sum(aligned(node.type.size_bytes) for node in scheduled.kept),
        np.array([maker.is_worthwhile(table) for table in tables], bool),
        np.array([[bool(s.left.get(n, EMPTY).boxes) for n in nodes] for s in settings], bool),
        np.array(walk, np.int64),
    ))  # fmt: skip


def merged(tables: Tables) -> Tables:
    """Situations that differ in times and sizes alone as one, of their mean time and largest size.

    Nothing is lost: whatever is retained, they compute the same nodes.
    """
    alike: dict[object, list[int]] = {}
    for s, one in enumerate(tables.situations):
        alike.setdefault((one.before, one.of, one.weight > 0, _structure(tables, s)), []).append(s)
    groups = list(alike.values())
    first = [group[0] for group in groups]
    weights = np.array([one.weight for one in tables.situations])
    totals = [float(weights[group].sum()) for group in groups]
    shares = np.zeros((len(groups), len(weights)))
    for i, (group, total) in enumerate(zip(groups, totals, strict=True)):
        shares[i, group] = weights[group] / total if total else 1 / len(group)

    def table(old: NodeTable) -> NodeTable:
        return NodeTable(
            old.levels,
            shares @ old.cost_ns,
            np.array([old.size_bytes[group].max(axis=0) for group in groups]),
            old.demanded[first],
            old.wished[first],
            tuple((parent, asks[first]) for parent, asks in old.asks),
        )

    return replace(
        tables,
        table=tuple(map(table, tables.table)),
        situations=tuple(
            replace(tables.situations[s], weight=total)
            for s, total in zip(first, totals, strict=True)
        ),
        left=tables.left[first],
        walk=(shares > 0).argmax(axis=0)[tables.walk],
    )


def _structure(tables: Tables, s: int) -> tuple[object, ...]:
    """All of a situation but how long things take and how large they are."""
    return tables.left[s].tobytes(), tuple(
        (one.demanded[s], one.wished[s], (one.size_bytes[s] > 0).tobytes(),
         tuple(asks[s].tobytes() for _, asks in one.asks))
        for one in tables.table
    )  # fmt: skip


# --- the situations ------------------------------------------------------------------------------


def _setting(
    scheduled: ScheduledGraph,
    whole: Propagator,
    workload: Workload,
    situation: Situation,
    origin: Sequence[int],
    valid: Mapping[Node, Region],
) -> _Setting:
    changed, demand = asked(scheduled, workload.kind(situation.of), origin)
    dirty = whole.forward(changed)
    left = {
        node: region.subtract(dirty[node]) if node in dirty else region
        for node, region in valid.items()
    }
    return _Setting(situation, left, demand)


def _cold(scheduled: ScheduledGraph, workload: Workload, of: int) -> _Setting:
    """A turn from nothing, at its far end: nothing else needs larger slices."""
    kind = workload.kinds[of]
    cold = Situation(NOTHING, workload.first_turn(of), 0.0)
    return _Setting(cold, {}, asked(scheduled, kind, kind.farthest)[1])


def _pieces(
    scheduled: ScheduledGraph,
    rules: Rules,
    workload: Workload,
    of: int,
    keep: frozenset[Node],
    cut: Cut,
) -> list[_Setting]:
    """A turn from nothing, in pieces; each may use what the ones before it made."""
    kind = workload.kinds[of]
    demand = asked(scheduled, kind, kind.farthest)[1]
    changed = {leaf: Region.full(leaf.shape) for leaf in scheduled.kept}
    propagator = scheduled.propagator(rules, keep)
    parts = demands(propagator, propagator.step({}, changed, demand), cut, demand)
    found: list[_Setting] = []
    for i, part in enumerate(parts):
        if i >= 2 and i < len(parts) - 2:
            continue
        made = parts[i - 1] if i else {}
        last = i == len(parts) - 1
        situation = Situation(ALWAYS if i else NOTHING, workload.first_turn(of), 0.0)
        found.append(_Setting(situation, made, part if last else {}, {} if last else part))
    return found


# --- the tables ----------------------------------------------------------------------------------


class _Maker:
    """Fills the tables from the last node of the schedule to the first.

    Equal layers share their calls, so what a call does in equal situations is worked out once.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        cost: Cost,
        settings: Sequence[_Setting],
        along: Along | None,
    ) -> None:
        self.along = along
        self.scheduled = scheduled
        self.rules = rules
        self.cost = cost
        self.settings = settings
        self.index = {node: i for i, node in enumerate(scheduled.stored)}
        self.hulls: dict[Node, Box] = {}
        self._chains: dict[tuple[Region, ...], Levels] = {}
        self._answers: dict[tuple[Any, ...], _Answers] = {}
        self._levels: dict[tuple[Levels, Region], int] = {}
        self._shown: dict[tuple[tuple[Call, ...], Region], Region] = {}
        self._paths: dict[Node, tuple[tuple[Call, ...], Node]] = {}
        self._needs: list[dict[Node, list[Region]]] = [{} for _ in settings]
        self._asked = [self._on_bases(setting.demand.items()) for setting in settings]
        self._wished = [self._on_bases(setting.wished.items()) for setting in settings]

    def tables(self) -> list[NodeTable]:
        made: dict[Node, list[_Column]] = {}
        chains: dict[Node, list[Levels]] = {}
        for node in reversed(self.scheduled.stored):
            made[node] = [self._column(node, s) for s in range(len(self.settings))]
            chains[node] = [column.answers.chain for column in made[node]]
        return [self._table(made[node], chains) for node in self.scheduled.stored]

    def _column(self, node: Node, s: int) -> _Column:
        """One node in one situation; tells the nodes that it reads what they may be asked."""
        needs, left = self._needs[s].pop(node, []), self.settings[s].left.get(node, EMPTY)
        asked, wished = self._asked[s].get(node, EMPTY), self._wished[s].get(node, EMPTY)
        answers = self._answered(node, self._chain((*needs, asked, wished)), left)
        if answers.hull is not None and answers.hull != (known := self.hulls.get(node)):
            self.hulls[node] = answers.hull if known is None else known.hull(answers.hull)
        mine = self._needs[s]
        asks = [
            self._on_bases(zip(node.inputs, reads, strict=True)) if reads else {}
            for reads in answers.reads
        ]
        for parts in asks:
            for parent, part in parts.items():
                mine.setdefault(parent, []).append(part)
        chain = answers.chain
        return _Column(answers, asks, self._level(chain, asked), self._level(chain, wished))

    def _chain(self, needs: tuple[Region, ...]) -> Levels:
        found = self._chains.get(needs)
        if found is None:
            found = self._chains[needs] = tuple(nested(needs))
        return found

    def _level(self, chain: Levels, region: Region) -> int:
        if not region.boxes:
            return 0
        found = self._levels.get((chain, region))
        if found is None:
            found = self._levels[chain, region] = level(chain, region)
        return found

    def _answered(self, node: Node, chain: Levels, left: Region) -> _Answers:
        if not chain:
            return NONE
        key = (
            node.call,
            self.scheduled.dense[node],
            chain,
            left,
            self.along and self.along.chain(node),
        )
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._answer(node, chain, left)
        return found

    def _answer(self, node: Node, chain: Levels, left: Region) -> _Answers:
        call, rules = node.call, self.rules
        computed = [EMPTY]
        computed += [self._computed(call, region.subtract(left), left) for region in chain]
        computed += [self._computed(call, region, EMPTY) for region in chain]
        boxes = [self._stored(node, region) for region in computed]
        sizes = [0 if box is None else _bytes(node, box) for box in boxes]
        looked = [box for box in (self._stored(node, chain[-1]), *boxes) if box is not None]
        return _Answers(
            chain,
            [self._time_ns(node, region) for region in computed],
            sizes,
            [rules.needed_beside(call, region) if region.boxes else () for region in computed],
            reduce(Box.hull, looked) if looked else None,
        )

    def _time_ns(self, node: Node, region: Region) -> float:
        call, along = node.call, self.along
        return sum(
            self.cost(call, box)
            for box in self.rules.parts(call, region)
            if along is None or not along.has(node, box)
        )

    def _computed(self, call: Call, region: Region, keep: Region) -> Region:
        region = widened(call, less_known(call, region))
        if call.op.continues is not None and region.boxes:
            region = Region((region.hull(),)) if keep.boxes else begun(call, region)
        region = self.rules.rounded(call, region)
        return covered(call, region, keep) if region.boxes else region

    def _stored(self, node: Node, region: Region) -> Box | None:
        return self.scheduled.stored_box(node, region.hull()) if region.boxes else None

    # --- through views ---------------------------------------------------------------------------

    def _on_bases(self, regions: Iterable[tuple[Node, Region]]) -> dict[Node, Region]:
        """What of stored nodes these regions show."""
        found: dict[Node, Region] = {}
        for node, region in regions:
            if not region.boxes:
                continue
            path, base = self._path(node)
            if base not in self.index:
                continue
            region = self._through(path, region) if path else region
            if region.boxes:
                before = found.get(base)
                found[base] = region if before is None else self.rules.union(before, region)
        return found

    def _path(self, node: Node) -> tuple[tuple[Call, ...], Node]:
        """The views from a node down to the one with bytes, and that one."""
        if node not in self._paths:
            calls, at, base = list[Call](), node, self.scheduled.base[node]
            while at is not base:
                calls.append(at.call)
                at = at.inputs[0]
            self._paths[node] = tuple(calls), base
        return self._paths[node]

    def _through(self, path: tuple[Call, ...], region: Region) -> Region:
        key = path, region
        if key not in self._shown:
            for call in path:
                if not region.boxes:
                    break
                region = widened(call, less_known(call, region))
                region = self.rules.needed(call, region)[0]
            self._shown[key] = region
        return self._shown[key]

    # --- what comes of it ------------------------------------------------------------------------

    def kept_bytes(self, node: Node) -> int:
        hull = self.hulls.get(node)
        return _bytes(node, hull) if hull else ALIGNMENT

    def is_worthwhile(self, table: NodeTable) -> bool:
        """Whether its codes with and without its earlier value differ in what they do."""
        k = table.levels
        arrays: list[NDArray[Any]] = [table.cost_ns, *(asks for _, asks in table.asks)]
        return any((a[:, 1 : k + 1] != a[:, k + 1 : 2 * k + 1]).any() for a in arrays)

    def _table(
        self, columns: Sequence[_Column], chains: Mapping[Node, Sequence[Levels]]
    ) -> NodeTable:
        levels = max(len(column.answers.chain) for column in columns)
        shape = (len(columns), 2 * levels + 1)
        cost, size = np.zeros(shape), np.zeros(shape, np.int64)
        asks: dict[int, Bytes] = {}
        for s, column in enumerate(columns):
            for code, place in column.codes(levels):
                answers = column.answers
                cost[s, place], size[s, place] = answers.cost_ns[code], answers.size_bytes[code]
                for parent, region in column.asks[code].items():
                    array = asks.setdefault(self.index[parent], np.zeros(shape, np.uint8))
                    array[s, place] = self._level(chains[parent][s], region)
        return NodeTable(
            levels,
            cost,
            size,
            np.array([column.demanded for column in columns], np.uint8),
            np.array([column.wished for column in columns], np.uint8),
            tuple(sorted(asks.items())),
        )


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a call does where so much is needed of it; lists are by code.

    Fields:
        reads: what is needed of each input.
        hull: of all that is needed and computed, as it is stored.
    """

    chain: Levels
    cost_ns: list[float]
    size_bytes: list[int]
    reads: list[tuple[Region, ...]]
    hull: Box | None


NONE = _Answers((), [0.0], [0], [()], None)


@dataclass(frozen=True, slots=True)
class _Column:
    """One node in one situation; `asks` of stored nodes, by code."""

    answers: _Answers
    asks: list[dict[Node, Region]]
    demanded: int
    wished: int

    def codes(self, levels: int) -> list[tuple[int, int]]:
        """(own code, the same in a table with this many levels)."""
        own = len(self.answers.chain)
        there = [(i, i) for i in range(1, own + 1)]
        return [*there, *((own + i, levels + i) for i in range(1, own + 1))]


def _bytes(node: Node, box: Box) -> int:
    return aligned(value_of(box.elements) * node.type.itemsize_at_home)


def nested(regions: Sequence[Region]) -> list[Region]:
    """These regions as a chain, each holding the ones before it; at most `MOST_LEVELS`."""
    there = {region for region in regions if region.boxes}
    distinct = sorted(there, key=lambda region: (value_of(region.elements), region.boxes))
    chain: list[Region] = []
    for region in distinct:
        if chain and not region.contains(chain[-1]):
            region = chain[-1].union(region)
        if not chain or region != chain[-1]:
            chain.append(region)
    while len(chain) > MOST_LEVELS:
        growth = [value_of(b.elements) - value_of(a.elements) for a, b in pairwise(chain)]
        del chain[int(np.argmin(growth))]
    return chain


def level(chain: Sequence[Region], region: Region) -> int:
    """The lowest level that holds a region; 0 for nothing."""
    if not region.boxes:
        return 0
    return next(i for i, wide in enumerate(chain, 1) if wide.contains(region))
