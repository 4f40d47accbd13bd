"""What if? A plan with changes made by hand, and what comes of them.

    what = WhatIf.of(session).moved("layer_0.k", 4096).dropped("embedded")
    print(what.verdict())
    session.adopt(what.plan)

A *move* gives a buffer another offset and leaves all else where it is. *Retaining* or *dropping* a
node makes a new map for the same schedule. A view that is retained gets bytes of its own, and is
kept without the rest of what it showed until then; dropped, it shows that again. The verdict is
`plan.check_placement`'s, and the time is the trace's, replayed over the new map (`search.replay`).
Nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tgbench.base.errors import PlanError
from tgbench.base.machine import Machine
from tgbench.base.words import format_bytes, format_time
from tgbench.costs.model import CostModel
from tgbench.graph.graph import Graph, Node
from tgbench.graph.unfold import named
from tgbench.memory.arena import check_map
from tgbench.memory.check import Overlap, clashes
from tgbench.memory.placement import ALIGNMENT, Retention
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.checks import check_placement
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.carried import told_anew
from tgbench.plans.search.judge import Judge
from tgbench.programs.choices import Choices
from tgbench.runs.buckets import Bucket

if TYPE_CHECKING:
    from tgbench.session.session import GraphSession

MOST_NAMED = 5  # clashes in a message


@dataclass(frozen=True)
class PlanChange:
    """One gesture: "moved" (to an offset), "retained" or "dropped"."""

    what: str
    node: str
    offset_bytes: int | None = None

    def __str__(self) -> str:
        to = "" if self.offset_bytes is None else f", {self.offset_bytes}"
        return f".{self.what}({self.node!r}{to})"


@dataclass(frozen=True)
class Verdict:
    """What comes of some changes.

    Fields:
        is_valid: whether a session can run the changed plan.
        message: why not, or what it takes.
        clashes: who shares bytes with whom, where that is what is wrong.
        size_bytes: the changed arena.
        before_ns, expected_ns: the mean run of the trace, replayed; None where it is not valid.
    """

    is_valid: bool
    message: str
    clashes: tuple[Overlap, ...] = ()
    size_bytes: int = 0
    before_ns: float | None = None
    expected_ns: float | None = None

    def __str__(self) -> str:
        if self.expected_ns is None or self.before_ns is None:
            return self.message
        now, then = format_time(self.expected_ns), format_time(self.before_ns)
        return f"{self.message}; expected {now} a run, {then} before"


@dataclass(frozen=True)
class Ground:
    """What every change starts from.

    Fields:
        plan: the plan that is changed.
        graph: the one that runs (`session.graph`).
        history: the runs that times are for; empty for the plan's own examples.
        costs: times of kernels; None for modelled ones.
    """

    plan: Plan
    graph: Graph
    history: tuple[Bucket, ...] = ()
    costs: CostModel | None = None

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.decisions.scheduled.graph.nodes}

    @cached_property
    def decisions(self) -> Decisions:
        return self.plan.placement_for(self.graph, self.plan.device)

    @cached_property
    def judge(self) -> Judge:
        """Lays maps out, and replays the history over them.

        Raises PlanError for a bit-exact plan without a session's costs, which know its tiles.
        """
        if self.plan.exact is not None and self.costs is None:
            raise PlanError("changing a bit-exact plan needs its session: WhatIf.of(session)")
        made, costs = self.decisions, self.costs or CostModel(device=self.plan.device)
        buckets = self.history or tuple(
            kind.bucket(origin) for kind, (_, origin) in made.classes.items()
        )
        workload = Workload.of(made.scheduled, costs.rules, buckets)
        return Judge(
            made.scheduled, costs.rules, workload, costs.time_ns, self.plan.device,
            classes=made.classes, choices=Choices.by(costs),
        )  # fmt: skip

    def over(self, scheduled: ScheduledGraph) -> Judge:
        """The same where other views have bytes."""
        if scheduled.copied not in self._over:
            self._over[scheduled.copied] = self.judge.over(scheduled)
        return self._over[scheduled.copied]

    @cached_property
    def _over(self) -> dict[frozenset[Node], Judge]:
        return {self.decisions.scheduled.copied: self.judge}

    @cached_property
    def before_ns(self) -> float | None:
        return self.time_ns(self.decisions)

    def time_ns(self, made: Decisions) -> float | None:
        """The mean run of the history; None if some run does not fit."""
        of = self.over(made.scheduled)
        found = of.candidate(self.told(made), made.cut, made.placement, modelled=False)
        return None if found is None else found.time_ns

    def told(self, made: Decisions) -> Retention:
        """A retention over the turns of the history."""
        return told_anew(made, self.judge.workload)


@dataclass(frozen=True)
class WhatIf:
    """A plan and changes to it; every change gives a new value."""

    ground: Ground
    changes: tuple[PlanChange, ...] = ()

    @staticmethod
    def of(session: GraphSession) -> WhatIf:
        """The plan in force, and the session's trace; raises PlanError before the first run."""
        history = tuple(call.bucket for call in session.trace)
        return WhatIf(Ground(session.plan, session.graph, history, session.costs))

    # --- changes ---------------------------------------------------------------------------------

    def moved(self, node: str, offset_bytes: int) -> WhatIf:
        """A node's buffer, and whatever shares it in place, at another offset.

        Raises PlanError for an unknown node, and for an offset that is not a multiple of 64.
        """
        self._stored(node)
        if offset_bytes < 0 or offset_bytes % ALIGNMENT:
            raise PlanError(
                f"offset {offset_bytes} is not a multiple of {ALIGNMENT}; the nearest is "
                f"{max(round(offset_bytes / ALIGNMENT), 0) * ALIGNMENT}"
            )
        return self._with(PlanChange("moved", node, offset_bytes))

    def retained(self, node: str) -> WhatIf:
        """A node kept through every run; a view as well, on bytes of its own.

        Raises PlanError for one that no planned run computes, or looks at.
        """
        if not self._is_view(node):
            self._stored(node)
        found = self._with(PlanChange("retained", node))
        found._stored(node)
        return found

    def dropped(self, node: str) -> WhatIf:
        """A node not kept between runs; a view that was has no bytes then.

        Raises PlanError for one that has none.
        """
        self._stored(node)
        return self._with(PlanChange("dropped", node))

    def undone(self) -> WhatIf:
        """Without the last change."""
        return replace(self, changes=self.changes[:-1])

    def _with(self, change: PlanChange) -> WhatIf:
        return replace(self, changes=(*self.changes, change))

    def _stored(self, name: str) -> Node:
        node = self.ground.nodes.get(name)
        if node is None:
            raise PlanError(f"the graph has no node {name!r}; nodes are named as in session.graph")
        if node not in self.decisions.placement.slots or node.is_leaf or node.type.device:
            raise PlanError(
                f"{name}: has no bytes that can be given or taken; choose a slot's node"
            )
        return node

    def _is_view(self, name: str) -> bool:
        """Whether it shows bytes of the arena that are computed."""
        scheduled, node = self.decisions.scheduled, self.ground.nodes.get(name)
        return node in scheduled.position and scheduled.base[node] is not node

    # --- what comes of them ----------------------------------------------------------------------

    @cached_property
    def decisions(self) -> Decisions:
        """The changed decisions, checked or not."""
        made = self.ground.decisions
        for change in self.changes:
            made = _CHANGES[change.what](self, made, change)
        return made

    @cached_property
    def plan(self) -> Plan:
        """The changed plan; raises PlanError where the changes leave none that can run."""
        verdict = self.verdict()
        if not verdict.is_valid:
            raise PlanError(verdict.message)
        expected_ns, here = verdict.expected_ns or 0.0, Machine.here().facts
        made = replace(
            self.decisions,
            expected_ns=expected_ns,
            search=None,
            machine=here,
            records="" if self.ground.costs is None else self.ground.costs.basis,
        )
        base = self.ground.plan
        return Plan.of(
            self.ground.graph, made, base.device, base.budget_bytes, base.exact, base.path
        )

    def verdict(self) -> Verdict:
        """Whether the changed plan can run, and how long its runs then take."""
        return self._verdict

    @cached_property
    def _verdict(self) -> Verdict:
        placement = self.decisions.placement
        size = placement.size_bytes
        found = tuple(clashes(placement, self.decisions.scheduled))
        if found:
            names = "; ".join(map(str, found[:MOST_NAMED]))
            more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            return Verdict(False, f"live at once on the same bytes: {names}{more}", found, size)
        try:
            check_placement(placement, self.decisions.scheduled)
            check_map(placement)
        except PlanError as error:
            return Verdict(False, str(error), size_bytes=size)
        budget = self.ground.plan.budget_bytes
        if budget is not None and size > budget:
            over = format_bytes(size - budget)
            return Verdict(
                False, f"takes {format_bytes(size)}, {over} more than the budget", size_bytes=size
            )
        time_ns = self.ground.time_ns(self.decisions)
        if time_ns is None:
            return Verdict(False, "some run of the trace no longer fits this map", size_bytes=size)
        return Verdict(
            True, f"valid: {format_bytes(size)}", (), size, self.ground.before_ns, time_ns
        )

    def code(self, session: str = "session") -> str:
        """The changes as Python."""
        return f"WhatIf.of({session})" + "".join(map(str, self.changes)) + ".plan"

    # --- parts -----------------------------------------------------------------------------------

    def _move(self, made: Decisions, change: PlanChange) -> Decisions:
        placement = made.placement
        first = placement.group(self.ground.nodes[change.node])
        slots = {
            node: replace(slot, offset_bytes=change.offset_bytes or 0)
            if placement.group(node) is first
            else slot
            for node, slot in placement.slots.items()
        }
        moved = replace(placement, slots=slots)
        return replace(made, placement=replace(moved, size_bytes=moved.reach_bytes))

    def _retain(self, made: Decisions, change: PlanChange) -> Decisions:
        old, scheduled = self.ground.told(made), made.scheduled
        everything = frozenset(range(len(old.turns)))
        node = self.ground.nodes[change.node]
        if scheduled.base[node] is not node:
            scheduled = scheduled.copying(scheduled.copied | self._meant(change))
        kept = {n: turns for n, turns in old.after.items() if scheduled.base[n] is n}
        shared = old.shared & kept.keys()  # others look at the bytes that the node has got
        return self._laid_out(
            made,
            scheduled,
            replace(old, after={**kept, node: everything}, shared=shared - {node}),
        )

    def _drop(self, made: Decisions, change: PlanChange) -> Decisions:
        old = self.ground.told(made)
        scheduled = made.scheduled.copying(made.scheduled.copied - self._meant(change))
        nodes = [node for node in old.after if scheduled.base[node] is node]
        gone = {self.ground.nodes[change.node], *(old.after.keys() - nodes)}
        after = {node: old.after[node] for node in nodes if node not in gone}
        return self._laid_out(made, scheduled, replace(old, after=after, shared=old.shared - gone))

    def _meant(self, change: PlanChange) -> set[Node]:
        """The node of the graph as it was given."""
        return set(named(self.ground.graph, [change.node]))

    def _laid_out(
        self, made: Decisions, scheduled: ScheduledGraph, retention: Retention
    ) -> Decisions:
        """A new map for another retention, for the same classes and order."""
        of = self.ground.over(scheduled)
        placement = of.planner.lay_out(retention, of.scenarios, made.cut)
        candidates = {*made.dropped, *made.retention.nodes} | retention.nodes
        kept = {n for n, turns in retention.after.items() if len(turns) == len(retention.turns)}
        dropped = (node for node in candidates - kept if scheduled.base[node] is node)
        return replace(
            made,
            scheduled=scheduled,
            placement=placement,
            retention=retention,
            dropped=tuple(sorted(dropped, key=lambda node: node.index)),
            classes=of.classes,
        )


_CHANGES: Mapping[str, Callable[[WhatIf, Decisions, PlanChange], Decisions]] = {
    "moved": WhatIf._move,
    "retained": WhatIf._retain,
    "dropped": WhatIf._drop,
}
