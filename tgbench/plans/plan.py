"""The plan: everything decided for a session, as JSON that any process can start from.

A plan carries no code and no weights: names, numbers and the graph's fingerprint; where it is about
another graph that computes the same, that graph (`paths.chosen`). The schema is
`schemas/plan-4.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import PlanError
from tgbench.base.machine import Machine
from tgbench.base.stopping import StopReason
from tgbench.base.words import counted, cut, format_bytes, format_time, shorten
from tgbench.graph.graph import Graph, Node
from tgbench.memory.placement import (
    Placement,
    Retention,
    Scratch,
    Slot,
)
from tgbench.plans.checks import (
    check_bucket,
    check_cut,
    check_placement,
    node_of,
    scheduled_of,
)
from tgbench.plans.decisions import (
    Decisions,
    PlanBucket,
    PlanFields,
    PlanPath,
    PlanReason,
    PlanSlot,
)
from tgbench.plans.diff import PlanDiff
from tgbench.plans.explain import Explanation, explain
from tgbench.plans.reader import parse, read
from tgbench.runs.buckets import BucketClass
from tgbench.runs.split import Cut

if TYPE_CHECKING:
    from tgbench.programs.exact.findings import Exactness

MOST_CLASSES = 30  # of the text, which is to fit a screen
LONGEST_LINE = 240  # characters


@dataclass(frozen=True)
class Plan(PlanFields):
    """What a session starts from: the fields of its file, and what they say of a graph at hand."""

    @staticmethod
    def of(
        graph: Graph,
        made: Decisions,
        device: str,
        budget_bytes: int | None,
        exact: str | None = None,
        path: PlanPath | None = None,
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
            tuple(node.name for node in made.scheduled.schedule),
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
            made.machine,
            tuple(PlanReason(node.name, *worth) for node, worth in made.worth.items()),
            made.price_ns,
            made.search,
            exact,
            tuple(node.name for node in graph.nodes if node in made.scheduled.copied),
            made.records,
            path,
        )

    def explain(
        self, node: str, graph: Graph | None = None, exactness: Exactness | None = None
    ) -> Explanation:
        """Why a node is or is not retained, and what would change that; see `explain.explain`.

        Raises PlanError for an unknown node, with the names nearest to it.
        """
        return explain(self, node, graph, exactness)

    def diff(self, other: Plan) -> PlanDiff:
        """What the other plan decides otherwise; false if nothing, and it prints.

        Raises PlanError for what is no plan.
        """
        if not isinstance(other, Plan):
            raise PlanError(f"{shorten(other)} is no plan; read a file by Plan.load(path)")
        return PlanDiff(self, other)

    def to_json(self) -> str:
        """The same plan gives the same text, byte for byte."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @property
    def digest(self) -> str:
        """A hash of what programs are made for: where everything lies, and when it is computed."""
        decided = (
            self.graph, self.device, self.exact, self.schedule, self.slots, self.cut,
            self.size_bytes, self.kept_bytes, self.copied,
        )  # fmt: skip
        return hashlib.sha256(repr(decided).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write atomically: a reader sees the old file or the new one."""
        with atomic_path(path) as temporary:
            temporary.write_text(self.to_json())

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read and check a plan file; raises PlanError naming the file, the field and the mend."""
        return Plan(**vars(read(path)))

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan of a file's text; raises PlanError naming the field and the mend."""
        return Plan(**vars(parse(text)))

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
        scheduled = scheduled_of(self, graph)
        nodes = {node.name: node for node in scheduled.graph.nodes}
        after: dict[Node, frozenset[int]] = {}
        slots, scratch, donors, sliding = {}, {}, {}, {}
        for slot in self.slots:
            node = node_of(nodes, slot.node)
            if node in slots:
                raise PlanError(f"slots: {slot.node} is there twice")
            for field, numbers in (("extents", slot.extents), ("start", slot.start)):
                if len(numbers) != node.rank:
                    raise PlanError(
                        f"slots.{slot.node}.{field}: {len(numbers)} numbers for {node.rank} "
                        "dimensions; delete the plan to plan anew"
                    )
            slots[node] = Slot(slot.offset_bytes, slot.extents, slot.start, scheduled.order(node))
            if slot.size_bytes != slots[node].elements * node.type.itemsize:
                raise PlanError(f"slots.{slot.node}.size_bytes: not what its extents take")
            if slot.scratch_bytes:
                scratch[node] = Scratch(slot.scratch_offset_bytes, slot.scratch_bytes)
            if slot.donor:
                donors[node] = node_of(nodes, slot.donor)
            if slot.slides is not None:
                sliding[node] = slot.slides
            if slot.retained and not node.is_leaf:
                through = range(len(self.turns)) if slot.through is None else slot.through
                after[node] = frozenset(through)
        keep = frozenset(node_of(nodes, slot.node) for slot in self.slots if slot.retained)
        keep = keep.difference(sliding)
        placement = Placement(
            slots, keep, scratch, donors, self.size_bytes, self.kept_bytes,
            self.bound_bytes, self.bound_step, (), sliding,
        )  # fmt: skip
        check_placement(placement, scheduled)
        check_cut(self.cut, graph)
        for i, bucket in enumerate(self.buckets):
            check_bucket(bucket, graph, f"buckets[{i}]")
        classes = {
            BucketClass(b.changed, b.demand, b.bounds): (b.weight, b.origin) for b in self.buckets
        }
        shared = frozenset(node_of(nodes, s.node) for s in self.slots if s.through is not None)
        for name in self.retained:
            if node_of(nodes, name, "retained") not in after:
                raise PlanError(f"retained: {shorten(name)} has no slot that is")
        return Decisions(
            scheduled,
            placement,
            Retention(after, self.turns, shared, frozenset(sliding)),
            tuple(node_of(nodes, name, "dropped") for name in self.dropped),
            Cut(*self.cut),
            classes,
            self.expected_ns,
            {node_of(nodes, r.node, "reasons"): (r.size_bytes, r.saves_ns) for r in self.reasons},
            self.price_ns,
            self.search,
            self.machine,
            self.records,
        )

    @property
    def retained_bytes(self) -> int:
        """What the slots of retained nodes take; inputs and states are kept besides."""
        names = set(self.retained)
        return sum(slot.size_bytes for slot in self.slots if slot.node in names)

    @property
    def elsewhere(self) -> dict[str, str]:
        """What differs of the machine that its times are expected on; nothing for this one."""
        here = Machine.here().facts
        return {name: text for name, text in self.machine.items() if here.get(name) != text}

    def __str__(self) -> str:
        lines = [
            f"plan for {self.graph[:12]} on {self.device}: {format_bytes(self.size_bytes)} "
            f"(bound {format_bytes(self.bound_bytes)}), "
            f"{counted(len(self.retained), 'node')} retained in "
            f"{format_bytes(self.retained_bytes)}, "
            f"expected {format_time(self.expected_ns)} a run"
        ]
        if self.path is not None:
            lines.append(f"  computed otherwise: {_some(self.path.rules)}")
        if self.elsewhere:
            told = ", ".join(f"{name} {text}" for name, text in self.elsewhere.items())
            lines[0] += f" elsewhere ({shorten(told)})"
        if self.records:
            lines[0] += f", by {shorten(self.records)[1:-1]}"
        if self.cut[2] > 1:
            lines.append(f"  large runs cut in {self.cut[2]} along {self.cut[0]}[{self.cut[1]}]")
        if self.copied:
            copied = counted(len(self.copied), "view")
            lines.append(f"  bytes of their own, {copied}: {_some(self.copied)}")
        slides = [slot.node for slot in self.slots if slot.slides is not None]
        if slides:
            nodes = counted(len(slides), "node")
            lines.append(f"  in windows that move along, {nodes}: {_some(slides)}")
        if self.dropped:
            dropped = counted(len(self.dropped), "node")
            lines.append(f"  computed again when needed, {dropped}: {_some(self.dropped)}")
        if self.unsearched:
            lines.append(f"  {self.unsearched}")
        return "\n".join([*(cut(line, LONGEST_LINE) for line in lines), *self._runs()])

    @property
    def unsearched(self) -> str:
        """Why a search that was asked for had nothing to choose, and what it can be given; "" where
        it searched, and where none was asked for.
        """
        if self.search is None or self.search.stop != StopReason.FITS:
            return ""
        size = format_bytes(self.size_bytes)
        return (
            "nothing to search: without a budget everything fits; "
            f"give one below {size} by memory= (--memory)"
        )

    def _runs(self) -> list[str]:
        """The classes of runs, the most frequent ones first, on what a screen has room for."""
        order = sorted(self.buckets, key=lambda bucket: -bucket.weight)
        lines = [
            cut(
                f"  {one.weight:8g} × {BucketClass(one.changed, one.demand, one.bounds)}",
                LONGEST_LINE,
            )
            for one in order[:MOST_CLASSES]
        ]
        rest, total = order[MOST_CLASSES:], sum(one.weight for one in order)
        if rest:
            share = sum(one.weight for one in rest) / total if total else 0
            lines.append(f"  … and {counted(len(rest), 'more class')}, {share:.0%} of the runs")
        return lines

    __repr__ = __str__


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (" …" if len(names) > 6 else "")


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
        node in placement.lasting,
        scratch.offset_bytes if scratch is not None else 0,
        scratch.size_bytes if scratch is not None else 0,
        donor.name if donor is not None else "",
        tuple(sorted(retention.after[node])) if partial else None,
        placement.sliding.get(node),
    )
