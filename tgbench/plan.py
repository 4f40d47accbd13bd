"""The plan: everything decided for a session, as JSON that any process can start from.

A plan carries no code and no weights: names, numbers and the graph's fingerprint. The schema is
`schemas/plan-3.json`; reading checks every field by hand, so that a damaged file is named by the
field that is wrong.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tgbench.anatomy import Anatomy
from tgbench.buckets import BucketClass, Span
from tgbench.calls import shorten
from tgbench.errors import PlanError
from tgbench.explain import Explanation, explain
from tgbench.graph import Graph, Node
from tgbench.optable import OPS
from tgbench.packing import format_bytes
from tgbench.placement import ALIGNMENT, ANY, Placement, Retention, Scratch, Slot, Turn, aligned
from tgbench.plandiff import PlanDiff
from tgbench.split import WHOLE, Cut
from tgbench.strictjson import bounded_text, parsed
from tgbench.weights import atomic_path
from tgbench.words import counted, format_time

if TYPE_CHECKING:
    from tgbench.exactness import Exactness

VERSION = 3


@dataclass(frozen=True)
class PlanSlot:
    """One node's bytes, as in `placement.Slot`.

    Fields:
        size_bytes: what the extents take.
        retained: laid out in absolute coordinates, and kept between runs.
        through: positions of the turns after whose runs a retained node is still there, where it
            shares its bytes; None: it has them for itself.
    """

    node: str
    offset_bytes: int
    size_bytes: int
    extents: tuple[int, ...]
    start: tuple[int, ...]
    retained: bool
    scratch_offset_bytes: int = 0
    scratch_bytes: int = 0
    donor: str = ""
    through: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PlanReason:
    """What retaining a node takes, and what it saves a run, all else as it is."""

    node: str
    size_bytes: int
    saves_ns: float


@dataclass(frozen=True)
class SearchRecord:
    """How a plan was found, as far as another search can go on from it.

    Fields:
        mode: greedy, search or exact.
        seed, steps: where the search stands; steps of all calls together.
        stop: why it stopped.
        best_ns: mean run of the replayed trace, and
        warm_up_ns: its first run, which finds nothing.
        modelled_ns: mean run in the tabulated model, which `bound_ns` is about.
        greedy_ns: what `best_ns` was for the greedy plan.
        bound_ns: no plan of the tabulated model within the budget has a faster mean run.
        history: (step, best_ns) whenever a better plan was found.
    """

    mode: str
    seed: int
    steps: int
    stop: str
    best_ns: float
    modelled_ns: float
    warm_up_ns: float
    greedy_ns: float
    bound_ns: float
    history: tuple[tuple[int, float], ...] = ()

    @property
    def gap(self) -> float:
        """How far the plan may be from the best one in the model, as a share of the bound."""
        return max(self.modelled_ns / self.bound_ns - 1.0, 0.0) if self.bound_ns else math.inf


@dataclass(frozen=True)
class PlanBucket:
    """One class that the plan was made for, how often it came, and where it was last seen."""

    changed: tuple[tuple[str, tuple[tuple[tuple[int | None, int], ...], ...]], ...]
    demand: tuple[tuple[str, tuple[tuple[tuple[int | None, int], ...], ...]], ...]
    bounds: tuple[int, ...]
    weight: float
    origin: tuple[int, ...]


Classes: TypeAlias = "dict[BucketClass, tuple[float, tuple[int, ...]]]"  # weight, last origin


@dataclass(frozen=True)
class Decisions:
    """A plan over the nodes of a graph at hand.

    Fields:
        anatomy: with the schedule that was chosen.
        retention: over turns of `classes`.
        dropped: nodes whose earlier values are read again, but which are not kept throughout.
        expected_ns: the modelled mean run.
        worth: (bytes, nanoseconds saved a run) of retaining a node, where weighed.
        price_ns: what one more byte of memory would save a run, at the margin.
    """

    anatomy: Anatomy
    placement: Placement
    retention: Retention
    dropped: tuple[Node, ...]
    cut: Cut
    classes: Classes
    expected_ns: float
    worth: Mapping[Node, tuple[int, float]] = field(default_factory=dict)
    price_ns: float = 0.0
    search: SearchRecord | None = None

    @property
    def retained(self) -> tuple[Node, ...]:
        """What is kept after the runs of some class, in graph order."""
        return tuple(sorted(self.retention.nodes, key=lambda node: node.index))


@dataclass(frozen=True)
class Plan:
    """Retention, cut, memory map and buckets of a session.

    Fields:
        graph: fingerprint of the (simplified) graph.
        device: what it was planned for.
        schedule: names of the executable nodes, in order.
        slots: the memory map.
        retained: the chosen nodes, by name.
        dropped: nodes whose earlier values runs need again, but which are not retained.
        cut: (input, dimension, parts) of the planned splitting; parts 1 means none.
        size_bytes, kept_bytes, bound_bytes: the arena, its fixed part, the packing's lower bound.
        expected_ns: the modelled mean run.
        buckets: what it was planned for.
        turns: which runs the retention tells apart, by positions in `buckets`.
        reasons, price_ns: what retaining each candidate takes and saves; see `explain`.
        search: how it was found; None for a plan that was made to get going.
        exact: "bitwise" if slices are made of whole tiles (see `grains`); None otherwise.
        machine: where it was made; plans may move between machines.
    """

    graph: str
    device: str
    schedule: tuple[str, ...]
    slots: tuple[PlanSlot, ...]
    retained: tuple[str, ...]
    dropped: tuple[str, ...]
    cut: tuple[str, int, int]
    size_bytes: int
    kept_bytes: int
    bound_bytes: int
    bound_step: int
    expected_ns: float
    budget_bytes: int | None
    buckets: tuple[PlanBucket, ...] = ()
    turns: tuple[Turn, ...] = ANY
    machine: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[PlanReason, ...] = ()
    price_ns: float = 0.0
    search: SearchRecord | None = None
    exact: str | None = None
    version: int = VERSION

    @staticmethod
    def of(
        graph: Graph,
        made: Decisions,
        device: str,
        budget_bytes: int | None,
        exact: str | None = None,
    ) -> Plan:
        """Decisions over a graph's nodes, by name."""
        placement, cut = made.placement, made.cut
        slots = tuple(
            _plan_slot(node, placement, made.retention)
            for node in sorted(placement.slots, key=lambda n: n.index)
        )
        buckets = tuple(
            PlanBucket(kind.changed, kind.demand, kind.bounds, weight, origin)
            for kind, (weight, origin) in made.classes.items()
        )
        return Plan(
            graph.fingerprint,
            device,
            tuple(node.name for node in made.anatomy.schedule),
            slots,
            tuple(node.name for node in made.retained),
            tuple(node.name for node in made.dropped),
            (cut.input, cut.axis, cut.parts),
            placement.size_bytes,
            placement.kept_bytes,
            placement.bound_bytes,
            placement.bound_step,
            made.expected_ns,
            budget_bytes,
            buckets,
            made.retention.turns,
            machine(),
            tuple(PlanReason(node.name, *worth) for node, worth in made.worth.items()),
            made.price_ns,
            made.search,
            exact,
        )

    def explain(
        self, node: str, graph: Graph | None = None, exactness: Exactness | None = None
    ) -> Explanation:
        """Why a node is or is not retained, and what would change that; see `explain.explain`.

        Raises PlanError for an unknown node, with the names nearest to it.
        """
        return explain(self, node, graph, exactness)

    def diff(self, other: Plan) -> PlanDiff:
        """What the other plan decides otherwise; false if nothing, and it prints."""
        return PlanDiff(self, other)

    def to_json(self) -> str:
        """The same plan gives the same text, byte for byte."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def save(self, path: str | Path) -> None:
        """Write atomically: a reader sees the old file or the new one."""
        with atomic_path(path) as temporary:
            temporary.write_text(self.to_json())

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read and check a plan file; raises PlanError naming the file, the field and the mend."""
        try:
            text = bounded_text(path)
        except (OSError, ValueError) as error:
            raise PlanError(f"{path}: {_unread(error)}") from error
        try:
            return Plan.from_json(text)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error

    @staticmethod
    def from_json(text: str) -> Plan:
        def refuse(fault: str) -> PlanError:
            cause = f"damaged ({fault}); restore a copy, or delete it to plan anew"
            return PlanError(cause if text.lstrip().startswith("{") else NO_PLAN)

        data = parsed(text, refuse)
        return _Reader(data).plan()

    def placement_for(self, graph: Graph, device: str) -> Decisions:
        """The plan's decisions over this graph's nodes.

        Raises PlanError for another graph, and for a map in which live values would overlap.
        """
        if self.graph != graph.fingerprint:
            raise PlanError(
                f"the plan is for graph {self.graph[:12]}, this is {graph.fingerprint[:12]}; "
                "use the graph it was made for, or delete the plan to make another"
            )
        if self.device.split(":")[0] != device.split(":")[0]:
            raise PlanError(f"the plan is for {self.device}, the session runs on {device}")
        nodes = {node.name: node for node in graph.nodes}
        anatomy = Anatomy.of(graph, _order(self.schedule, nodes, graph))
        after: dict[Node, frozenset[int]] = {}
        slots, scratch, donors = {}, {}, {}
        for slot in self.slots:
            node = _known(nodes, slot.node)
            if node in slots:
                raise PlanError(f"slots: {slot.node} is there twice")
            if len(slot.extents) != node.rank or len(slot.start) != node.rank:
                raise PlanError(f"slots.{slot.node}: rank {len(slot.extents)} is not {node.rank}")
            slots[node] = Slot(slot.offset_bytes, slot.extents, slot.start, anatomy.order(node))
            if slot.size_bytes != slots[node].elements * node.type.itemsize:
                raise PlanError(f"slots.{slot.node}.size_bytes: not what its extents take")
            if slot.scratch_bytes:
                scratch[node] = Scratch(slot.scratch_offset_bytes, slot.scratch_bytes)
            if slot.donor:
                donors[node] = _known(nodes, slot.donor)
            if slot.retained and not node.is_leaf:
                through = range(len(self.turns)) if slot.through is None else slot.through
                after[node] = frozenset(through)
        keep = frozenset(_known(nodes, slot.node) for slot in self.slots if slot.retained)
        placement = Placement(
            slots, keep, scratch, donors, self.size_bytes, self.kept_bytes,
            self.bound_bytes, self.bound_step, (),
        )  # fmt: skip
        check_placement(placement, anatomy)
        _check_cut(self.cut, graph)
        for i, bucket in enumerate(self.buckets):
            _check_bucket(bucket, graph, f"buckets[{i}]")
        classes = {
            BucketClass(b.changed, b.demand, b.bounds): (b.weight, b.origin) for b in self.buckets
        }
        shared = frozenset(_known(nodes, s.node) for s in self.slots if s.through is not None)
        for name in self.retained:
            if _known(nodes, name, "retained") not in after:
                raise PlanError(f"retained: {shorten(name)} has no slot that is")
        return Decisions(
            anatomy,
            placement,
            Retention(after, self.turns, shared),
            tuple(_known(nodes, name, "dropped") for name in self.dropped),
            Cut(*self.cut),
            classes,
            self.expected_ns,
            {_known(nodes, r.node, "reasons"): (r.size_bytes, r.saves_ns) for r in self.reasons},
            self.price_ns,
            self.search,
        )

    def __str__(self) -> str:
        lines = [
            f"plan for {self.graph[:12]} on {self.device}: {format_bytes(self.size_bytes)} "
            f"(bound {format_bytes(self.bound_bytes)}), "
            f"{counted(len(self.retained), 'node')} retained in {format_bytes(self.kept_bytes)}, "
            f"expected {format_time(self.expected_ns)} a run"
        ]
        if self.cut[2] > 1:
            lines.append(f"  large runs cut in {self.cut[2]} along {self.cut[0]}[{self.cut[1]}]")
        if self.dropped:
            names = ", ".join(self.dropped[:6]) + (" …" if len(self.dropped) > 6 else "")
            dropped = counted(len(self.dropped), "node")
            lines.append(f"  computed again when needed, {dropped}: {names}")
        for bucket in self.buckets:
            kind = BucketClass(bucket.changed, bucket.demand, bucket.bounds)
            lines.append(f"  {bucket.weight:8g} × {kind}")
        return "\n".join(lines)

    __repr__ = __str__


def _known(nodes: Mapping[str, Node], name: str, where: str = "slots") -> Node:
    if name not in nodes:
        raise PlanError(
            f"{where}: the graph has no node {shorten(name)}; delete the plan to plan anew"
        )
    return nodes[name]


def _order(schedule: Sequence[str], nodes: Mapping[str, Node], graph: Graph) -> tuple[Node, ...]:
    """A schedule's nodes; raises PlanError unless it is an order of this graph's."""
    order = tuple(_known(nodes, name, "schedule") for name in schedule)
    if set(order) != set(Anatomy.of(graph).schedule) or len(set(order)) != len(order):
        raise PlanError("schedule: not the graph's nodes; delete the plan to plan anew")
    position = {node: i for i, node in enumerate(order)}
    for node in order:
        for parent in node.inputs:
            if position.get(parent, -1) > position[node]:
                raise PlanError(
                    f"schedule: {node.name} comes before {parent.name}, which it reads; "
                    "delete the plan to plan anew"
                )
    return order


def _plan_slot(node: Node, placement: Placement, retention: Retention) -> PlanSlot:
    slot, scratch = placement.slots[node], placement.scratch.get(node)
    donor = placement.donors.get(node)
    partial = node in retention.after and retention.is_partial(node)
    return PlanSlot(
        node.name,
        slot.offset_bytes,
        placement.size_of(node),
        slot.extents,
        slot.start,
        node in placement.retained,
        scratch.offset_bytes if scratch is not None else 0,
        scratch.size_bytes if scratch is not None else 0,
        donor.name if donor is not None else "",
        tuple(sorted(retention.after[node])) if partial else None,
    )


def machine() -> dict[str, str]:
    """What a plan remembers of where it was made."""
    return {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
    }


def check_placement(placement: Placement, anatomy: Anatomy) -> None:
    """Raise PlanError if a map is unsafe: the planner's own rules, checked the slow way."""
    ends = [s.offset_bytes + aligned(placement.size_of(n)) for n, s in placement.slots.items()]
    ends += [s.offset_bytes + aligned(s.size_bytes) for s in placement.scratch.values()]
    if placement.size_bytes > max(ends, default=0) or placement.kept_bytes > placement.size_bytes:
        raise PlanError(f"size_bytes: {placement.size_bytes} is not what the slots reach up to")
    for node, scratch in placement.scratch.items():
        reaches = scratch.offset_bytes + scratch.size_bytes <= placement.size_bytes
        if not reaches or scratch.offset_bytes % ALIGNMENT or node not in anatomy.live:
            raise PlanError(f"slots.{node.name}.scratch_offset_bytes: no scratch can be there")
    for node, slot in placement.slots.items():
        if node not in anatomy.live and node not in anatomy.kept:
            raise PlanError(f"slots.{node.name}: not a node with bytes")
        if slot.offset_bytes < 0 or slot.offset_bytes % node.type.itemsize:
            raise PlanError(f"slots.{node.name}.offset_bytes: {slot.offset_bytes} is not usable")
        if slot.offset_bytes + placement.size_of(node) > placement.size_bytes:
            raise PlanError(
                f"slots.{node.name}: reaches past the arena's {placement.size_bytes} bytes"
            )
        for axis, (first, extent, size) in enumerate(
            zip(slot.start, slot.extents, node.shape, strict=True)
        ):
            if extent < 1 or first < 0 or first + extent > size:
                raise PlanError(f"slots.{node.name}.extents[{axis}]: {extent} does not fit {size}")
        if node.is_leaf and slot.extents != node.shape:
            raise PlanError(f"slots.{node.name}.extents: inputs are kept whole")
        donor = placement.donors.get(node)
        if donor is not None:
            _check_donor(node, donor, placement, anatomy)
    for leaf in anatomy.kept:
        if leaf not in placement.slots or leaf not in placement.retained:
            raise PlanError(f"slots.{leaf.name}: missing; inputs are always kept")
    clash = first_clash(placement, anatomy)
    if clash is not None:
        raise PlanError(f"slots: {clash[0]} and {clash[1]} share bytes while both are live")


def _check_donor(node: Node, donor: Node, placement: Placement, anatomy: Anatomy) -> None:
    legal = (
        donor in placement.slots
        and node not in placement.retained
        and donor not in placement.retained
        and donor.type == node.type
        and any(node.inputs[i] is donor for i in OPS[node.op].inplace)
        and anatomy.live[donor].stop == anatomy.position[node] + 1
        and placement.slots[donor] == placement.slots[node]
    )
    if not legal:
        raise PlanError(f"slots.{node.name}.donor: {donor.name} cannot give its bytes to it")


def first_clash(placement: Placement, anatomy: Anatomy) -> tuple[str, str] | None:
    """Two things that are live at one step and share bytes, or None. Every pair is looked at."""
    end = len(anatomy.schedule) + 1
    spans: list[tuple[int, int, int, int, str, Node]] = []
    for node, slot in placement.slots.items():
        span = anatomy.live.get(node)
        always = span is None or slot.offset_bytes < placement.kept_bytes
        live = (0, end) if always or span is None else (span.start, span.stop)
        stop = slot.offset_bytes + aligned(placement.size_of(node))
        spans.append((slot.offset_bytes, stop, *live, node.name, placement.group(node)))
    for node, scratch in placement.scratch.items():
        step = anatomy.position[node]
        stop = scratch.offset_bytes + scratch.size_bytes
        name = f"{node.name} (scratch)"
        spans.append((scratch.offset_bytes, stop, step, step + 1, name, node))
    spans.sort(key=lambda span: span[0])
    for i, (_, stop, begin, end_, name, group) in enumerate(spans):
        for low, _, other_begin, other_end, other, other_group in spans[i + 1 :]:
            if low >= stop:
                break
            together = begin < other_end and other_begin < end_
            scratch_pair = name.endswith("(scratch)") or other.endswith("(scratch)")
            if together and (scratch_pair or group is not other_group):
                return name, other
    return None


def _check_cut(cut: tuple[str, int, int], graph: Graph) -> None:
    name, axis, parts = cut
    leaf = graph.inputs.get(name)
    fits = leaf is not None and axis < leaf.rank and 2 <= parts <= leaf.shape[axis]
    if not fits and cut != (WHOLE.input, WHOLE.axis, WHOLE.parts):
        raise PlanError(f"cut: {shorten(list(cut))} cuts no input of this graph")


def _check_bucket(bucket: PlanBucket, graph: Graph, where: str) -> None:
    """Raise PlanError unless a class of runs is one that this graph can have."""
    if len(bucket.origin) != len(bucket.bounds):
        raise PlanError(f"{where}.origin: {len(bucket.origin)} numbers for {len(bucket.bounds)}")
    if any(at > bound for at, bound in zip(bucket.origin, bucket.bounds, strict=True)):
        raise PlanError(f"{where}.origin: {shorten(bucket.origin)} passes its bounds")
    sides = (("changed", {**graph.inputs, **graph.states}), ("demand", dict(graph.outputs)))
    for key, nodes in sides:
        seen: set[str] = set()
        for name, boxes in getattr(bucket, key):
            node = nodes.get(name)
            if node is None or name in seen or not boxes:
                raise PlanError(f"{where}.{key}: {shorten(name)} is not one of {', '.join(nodes)}")
            seen.add(name)
            if not all(_is_inside(box, node, bucket.bounds) for box in boxes):
                raise PlanError(f"{where}.{key}: a box of {name} is not inside {node.type}")


def _is_inside(box: Sequence[Span], node: Node, bounds: Sequence[int]) -> bool:
    return len(box) == node.rank and all(
        extent + (0 if symbol is None else bounds[symbol]) <= size
        for (symbol, extent), size in zip(box, node.shape, strict=True)
    )


NO_PLAN = "not a plan; pass a file that `session.save_plan` wrote"


def _unread(error: OSError | ValueError) -> str:
    """Why a file cannot be read, and the mend that fits."""
    match error:
        case FileNotFoundError():
            return "there is no such file; check the path, or write one with `session.save_plan`"
        case UnicodeDecodeError():
            return NO_PLAN
        case IsADirectoryError():
            return "a directory; pass the file in it that `session.save_plan` wrote"
        case OSError():
            return f"cannot be read ({error.strerror}); check who may read it, and the disk"
        case _:
            return f"{error}: {NO_PLAN}"


class _Reader:
    """Field by field, with the path of the field in every message."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise PlanError(NO_PLAN)
        self.data = data

    def plan(self) -> Plan:
        version = self.data.get("version")
        if version is None:
            raise PlanError(f"without a version this is {NO_PLAN}")
        if type(version) is not int or version != VERSION:
            raise PlanError(
                f"version: {shorten(version)} is not {VERSION}; plan anew with this release"
            )
        self._object(self.data, "", Plan)
        budget, turns = self.data["budget_bytes"], self._turns()
        return Plan(
            graph=self._text(self.data, "graph", ""),
            device=self._text(self.data, "device", ""),
            schedule=tuple(self._strings("schedule")),
            slots=tuple(
                self._slot(item, f"slots[{i}]")
                for i, item in enumerate(self._list(self.data, "slots", ""))
            ),
            retained=tuple(self._strings("retained")),
            dropped=tuple(self._strings("dropped")),
            cut=self._cut(),
            size_bytes=self._count(self.data, "size_bytes", ""),
            kept_bytes=self._count(self.data, "kept_bytes", ""),
            bound_bytes=self._count(self.data, "bound_bytes", ""),
            bound_step=self._count(self.data, "bound_step", ""),
            expected_ns=self._real(self.data, "expected_ns", ""),
            budget_bytes=None if budget is None else self._count(self.data, "budget_bytes", ""),
            buckets=tuple(
                self._bucket(item, f"buckets[{i}]")
                for i, item in enumerate(self._list(self.data, "buckets", ""))
            ),
            turns=turns,
            machine=self._machine(),
            reasons=tuple(
                self._reason(item, f"reasons[{i}]")
                for i, item in enumerate(self._list(self.data, "reasons", ""))
            ),
            price_ns=self._real(self.data, "price_ns", ""),
            search=self._search(),
            exact=self._exact(),
        )

    def _exact(self) -> str | None:
        found = self.data["exact"]
        if found not in (None, "bitwise"):
            raise PlanError(f'exact: {shorten(found)} is not null or "bitwise"')
        return None if found is None else "bitwise"

    def _turns(self) -> tuple[Turn, ...]:
        found = []
        count = max(len(self._list(self.data, "buckets", "")), 1)
        for i, item in enumerate(self._list(self.data, "turns", "")):
            where = f"turns[{i}]"
            self._object(item, where, Turn)
            before = None if item["before"] is None else self._count(item, "before", where)
            turn = Turn(self._count(item, "of", where), before)
            if max(turn.of, turn.before or 0) >= count or turn in found:
                raise PlanError(f"{where}: {shorten(item)} is not a new one of {count} buckets")
            found.append(turn)
        if not found:
            raise PlanError("turns: there are none; delete the plan to plan anew")
        return tuple(found)

    def _machine(self) -> dict[str, str]:
        found = self.data["machine"]
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise PlanError(f"machine: {shorten(found)} is not an object of texts")
        return dict(found)

    def _slot(self, item: Any, where: str) -> PlanSlot:
        self._object(item, where, PlanSlot)
        retained = item["retained"]
        if not isinstance(retained, bool):
            raise PlanError(f"{where}.retained: {shorten(retained)} is not true or false")
        return PlanSlot(
            self._text(item, "node", where),
            self._count(item, "offset_bytes", where),
            self._count(item, "size_bytes", where),
            self._counts(item, "extents", where),
            self._counts(item, "start", where),
            retained,
            self._count(item, "scratch_offset_bytes", where),
            self._count(item, "scratch_bytes", where),
            self._text(item, "donor", where),
            self._through(item, where),
        )

    def _through(self, item: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
        """Positions of turns, or None where a node does not share its bytes."""
        if item["through"] is None:
            return None
        found = self._counts(item, "through", where)
        count = len(self._list(self.data, "turns", ""))
        if not found or max(found) >= count or not item["retained"]:
            raise PlanError(
                f"{where}.through: {shorten(list(found))} is not some of {count} turns after "
                "which a retained node is there; delete the plan to plan anew"
            )
        return found

    def _reason(self, item: Any, where: str) -> PlanReason:
        self._object(item, where, PlanReason)
        return PlanReason(
            self._text(item, "node", where),
            self._count(item, "size_bytes", where),
            self._real(item, "saves_ns", where),
        )

    def _search(self) -> SearchRecord | None:
        item, where = self.data["search"], "search"
        if item is None:
            return None
        self._object(item, where, SearchRecord)
        history = self._list(item, "history", where)
        for i, entry in enumerate(history):
            if not isinstance(entry, list) or len(entry) != 2 or not _is_count(entry[0]):
                raise PlanError(f"{where}.history[{i}]: {shorten(entry)} is not [step, best_ns]")
        return SearchRecord(
            mode=self._text(item, "mode", where),
            seed=self._count(item, "seed", where),
            steps=self._count(item, "steps", where),
            stop=self._text(item, "stop", where),
            best_ns=self._real(item, "best_ns", where),
            modelled_ns=self._real(item, "modelled_ns", where),
            warm_up_ns=self._real(item, "warm_up_ns", where),
            greedy_ns=self._real(item, "greedy_ns", where),
            bound_ns=self._real(item, "bound_ns", where),
            history=tuple(
                (entry[0], self._real({"ns": entry[1]}, "ns", f"{where}.history[{i}]"))
                for i, entry in enumerate(history)
            ),
        )

    def _bucket(self, item: Any, where: str) -> PlanBucket:
        self._object(item, where, PlanBucket)
        return PlanBucket(
            self._sides(item, "changed", where),
            self._sides(item, "demand", where),
            self._counts(item, "bounds", where),
            self._real(item, "weight", where),
            self._counts(item, "origin", where),
        )

    def _sides(self, item: Mapping[str, Any], key: str, where: str) -> Any:
        symbols = len(self._counts(item, "bounds", where))
        result = []
        for side in self._list(item, key, where):
            is_pair = isinstance(side, list) and len(side) == 2
            if not (is_pair and isinstance(side[0], str) and isinstance(side[1], list) and side[1]):
                raise PlanError(f"{where}.{key}: {shorten(side)} is not [name, boxes]")
            result.append(
                (side[0], tuple(self._box(box, symbols, f"{where}.{key}") for box in side[1]))
            )
        return tuple(result)

    def _box(self, box: Any, symbols: int, where: str) -> tuple[tuple[int | None, int], ...]:
        spans = []
        for span in box if isinstance(box, list) else [box]:
            symbol, extent = span if isinstance(span, list) and len(span) == 2 else (-1, -1)
            is_symbol = symbol is None or (_is_count(symbol) and symbol < symbols)
            if not (is_symbol and _is_count(extent) and extent > 0):
                raise PlanError(f"{where}: {shorten(span)} is not [symbol or null, extent]")
            spans.append((symbol, extent))
        return tuple(spans)

    def _cut(self) -> tuple[str, int, int]:
        cut = self._list(self.data, "cut", "")
        if len(cut) != 3 or not isinstance(cut[0], str) or not all(map(_is_count, cut[1:])):
            raise PlanError(f"cut: {shorten(cut)} is not [input, dimension, parts]")
        return cut[0], cut[1], cut[2]

    def _strings(self, key: str) -> list[str]:
        found = self._list(self.data, key, "")
        if not all(isinstance(item, str) for item in found):
            raise PlanError(f"{key}: holds something that is not a name")
        return found

    @staticmethod
    def _object(item: Any, where: str, kind: type) -> None:
        """Exactly the fields of a dataclass."""
        if not isinstance(item, dict):
            raise PlanError(f"{where}: {shorten(item)} is not an object")
        names = [field.name for field in fields(kind)]
        for name in [*names, *item]:
            if name not in item:
                raise PlanError(f"{_path(where, name)}: missing; delete the plan to plan anew")
            if name not in names:
                raise PlanError(f"{_path(where, shorten(name))}: not a field of a plan")

    @staticmethod
    def _list(item: Mapping[str, Any], key: str, where: str) -> list[Any]:
        value = item.get(key)
        if not isinstance(value, list):
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not a list")
        return value

    @staticmethod
    def _text(item: Mapping[str, Any], key: str, where: str) -> str:
        value = item.get(key)
        if not isinstance(value, str):
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not text")
        return value

    @staticmethod
    def _count(item: Mapping[str, Any], key: str, where: str) -> int:
        value = item.get(key)
        if not _is_count(value):
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not a whole number ≥ 0")
        return int(value)  # type: ignore[arg-type]

    @staticmethod
    def _real(item: Mapping[str, Any], key: str, where: str) -> float:
        value = item.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not a number ≥ 0")
        return float(value)

    def _counts(self, item: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
        found = self._list(item, key, where)
        if not all(map(_is_count, found)):
            raise PlanError(f"{_path(where, key)}: {shorten(found)} holds more than counts")
        return tuple(found)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
