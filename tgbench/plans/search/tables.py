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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from tgbench.plans.search.workload import Workload, asked
from tgbench.runs.propagate import Propagator, covered, widened
from tgbench.runs.rules import Rules, less_known
from tgbench.runs.split import Cut, demands

Cost: TypeAlias = Callable[[Call, Box], float]  # nanoseconds
Floats: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]
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
) -> Tables:
    """Ask the region rules about every node in every situation of a workload, uncut.

    Runs that fit are never cut, and those that do not take little longer in pieces: so these times
    are lower bounds for every cut.

    Args:
        cost: nanoseconds for one box of one op application.
        scratch_bytes: temporary memory per node, where it is known.
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
        scheduled, rules, workload, [*weighed, *cold], cost, scratch_bytes or {}, told_by[:most]
    )


def tabulate_pieces(
    scheduled: ScheduledGraph, rules: Rules, workload: Workload, cut: Cut
) -> Tables:
    """The same for what runs from nothing compute piece by piece: the sizes of slices.

    Of many pieces only the first and the last ones are looked at.
    """
    keep = _frontier(scheduled, rules, workload)
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
) -> Tables:
    maker = _Maker(scheduled, rules, cost, settings)
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
    return _Setting(cold, {}, asked(scheduled, kind, kind.bounds)[1])


def _frontier(scheduled: ScheduledGraph, rules: Rules, workload: Workload) -> frozenset[Node]:
    """Nodes whose earlier values some run reads, if everything is retained."""
    propagator = scheduled.propagator(rules, scheduled.stored)
    found: set[Node] = set()
    for row in workload.rows:
        changed, demand = asked(scheduled, workload.kind(row.of), row.origin)
        found.update(propagator.step(row.valid, changed, demand).reused)
    return frozenset(found)


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
    demand = asked(scheduled, kind, kind.bounds)[1]
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
    """Fills the tables from the last node of the schedule to the first."""

    def __init__(
        self, scheduled: ScheduledGraph, rules: Rules, cost: Cost, settings: Sequence[_Setting]
    ) -> None:
        self.scheduled = scheduled
        self.rules = rules
        self.cost = cost
        self.settings = settings
        self.index = {node: i for i, node in enumerate(scheduled.stored)}
        self.hulls: dict[Node, Box] = {}
        self._needs: list[dict[Node, list[Region]]] = [{} for _ in settings]
        self._asked: list[dict[Node, Region]] = [
            self._on_bases(setting.demand) for setting in settings
        ]
        self._wished = [self._on_bases(setting.wished) for setting in settings]

    def tables(self) -> list[NodeTable]:
        made: dict[Node, list[_Column]] = {}
        chains: dict[Node, list[list[Region]]] = {}
        for node in reversed(self.scheduled.stored):
            made[node] = [self._column(node, s) for s in range(len(self.settings))]
            chains[node] = [column.chain for column in made[node]]
        return [self._table(made[node], chains) for node in self.scheduled.stored]

    def _column(self, node: Node, s: int) -> _Column:
        """One node in one situation; tells the nodes that it reads what they may be asked."""
        needs, left = self._needs[s].pop(node, []), self.settings[s].left.get(node, EMPTY)
        for extra in (self._asked[s].get(node), self._wished[s].get(node)):
            if extra is not None:
                needs.append(extra)
        chain = nested(needs)
        computed = [EMPTY]
        computed += [self._computed(node, region.subtract(left), left) for region in chain]
        computed += [self._computed(node, region, EMPTY) for region in chain]
        asks: list[dict[Node, Region]] = []
        for region in computed:
            parts = self._reads(node, region)
            for parent, part in parts.items():
                self._needs[s].setdefault(parent, []).append(part)
            asks.append(parts)
        self._touch(node, chain, computed)
        return _Column(
            chain,
            [self._time(node, region) for region in computed],
            [self._bytes(node, region) for region in computed],
            asks,
            level(chain, self._asked[s].get(node, EMPTY)),
            level(chain, self._wished[s].get(node, EMPTY)),
        )

    def _computed(self, node: Node, region: Region, keep: Region) -> Region:
        region = widened(node.call, less_known(node.call, region))
        region = self.rules.rounded(node.call, region)
        return covered(node.call, region, keep) if region.boxes else region

    def _time(self, node: Node, region: Region) -> float:
        return sum(self.cost(node.call, box) for box in self.rules.parts(node.call, region))

    def _reads(self, node: Node, region: Region) -> dict[Node, Region]:
        """What of stored nodes these elements are computed from, through views."""
        found: dict[Node, Region] = {}
        if not region.boxes:
            return found
        todo = list(zip(node.inputs, self.rules.needed(node.call, region), strict=True))
        for parent, part in todo:
            self._add_on_base(found, parent, part)
        return found

    def _add_on_base(self, found: dict[Node, Region], node: Node, region: Region) -> None:
        base = self.scheduled.base[node]
        while node is not base and region.boxes:
            region = widened(node.call, less_known(node.call, region))
            region = self.rules.needed(node.call, region)[0]
            node = node.inputs[0]
        if region.boxes and base in self.index:
            found[base] = found[base].union(region) if base in found else region

    def _on_bases(self, regions: Mapping[Node, Region]) -> dict[Node, Region]:
        found: dict[Node, Region] = {}
        for node, region in regions.items():
            self._add_on_base(found, node, region)
        return found

    def _touch(self, node: Node, chain: Sequence[Region], computed: Sequence[Region]) -> None:
        for region in (*chain[-1:], *computed):
            if region.boxes:
                box = self.scheduled.stored_box(node, region.hull())
                self.hulls[node] = self.hulls[node].hull(box) if node in self.hulls else box

    def _bytes(self, node: Node, region: Region) -> int:
        if not region.boxes:
            return 0
        box = self.scheduled.stored_box(node, region.hull())
        return aligned(value_of(box.elements) * node.type.itemsize)

    def kept_bytes(self, node: Node) -> int:
        hull = self.hulls.get(node)
        return aligned(value_of(hull.elements) * node.type.itemsize) if hull else ALIGNMENT

    def is_worthwhile(self, table: NodeTable) -> bool:
        """Whether its codes with and without its earlier value differ in what they do."""
        k = table.levels
        arrays: list[NDArray[Any]] = [table.cost_ns, *(asks for _, asks in table.asks)]
        return any((a[:, 1 : k + 1] != a[:, k + 1 : 2 * k + 1]).any() for a in arrays)

    def _table(
        self, columns: Sequence[_Column], chains: Mapping[Node, list[list[Region]]]
    ) -> NodeTable:
        levels = max(len(column.chain) for column in columns)
        shape = (len(columns), 2 * levels + 1)
        cost, size = np.zeros(shape), np.zeros(shape, np.int64)
        asks: dict[int, Bytes] = {}
        for s, column in enumerate(columns):
            for code, place in column.codes(levels):
                cost[s, place], size[s, place] = column.cost_ns[code], column.size_bytes[code]
                for parent, region in column.asks[code].items():
                    array = asks.setdefault(self.index[parent], np.zeros(shape, np.uint8))
                    array[s, place] = level(chains[parent][s], region)
        return NodeTable(
            levels,
            cost,
            size,
            np.array([column.demanded for column in columns], np.uint8),
            np.array([column.wished for column in columns], np.uint8),
            tuple(sorted(asks.items())),
        )


@dataclass(frozen=True)
class _Column:
    """One node in one situation; lists are by code."""

    chain: list[Region]
    cost_ns: list[float]
    size_bytes: list[int]
    asks: list[dict[Node, Region]]
    demanded: int
    wished: int

    def codes(self, levels: int) -> list[tuple[int, int]]:
        """(own code, the same in a table with this many levels)."""
        own = len(self.chain)
        there = [(i, i) for i in range(1, own + 1)]
        return [*there, *((own + i, levels + i) for i in range(1, own + 1))]


def nested(regions: Sequence[Region]) -> list[Region]:
    """These regions as a chain, each holding the ones before it; at most `MOST_LEVELS`."""
    distinct = sorted({r for r in regions if r.boxes}, key=lambda r: (value_of(r.elements), str(r)))
    chain: list[Region] = []
    for region in distinct:
        wider = region if not chain else chain[-1].union(region)
        if not chain or wider != chain[-1]:
            chain.append(wider)
    while len(chain) > MOST_LEVELS:
        growth = [value_of(b.elements) - value_of(a.elements) for a, b in pairwise(chain)]
        del chain[int(np.argmin(growth))]
    return chain


def level(chain: Sequence[Region], region: Region) -> int:
    """The lowest level that holds a region; 0 for nothing."""
    if not region.boxes:
        return 0
    return next(i for i, wide in enumerate(chain, 1) if wide.contains(region))
