"""Why a plan keeps a node, or does not, and what would change that: from the plan alone.

    saves per byte  │ ● k0        retained while it saves more than a byte is worth
                    │  ● v0
    price of memory ├──────────
                    │    ○ h      not retained: its bytes save more elsewhere

Retaining a node is weighed to first order. What it saves is modelled with all else as it is; two
nodes that only help together save nothing one by one. The price of memory is what the next few
bytes would save, from the relaxed program in which nodes may be kept in part. Far from the plan at
hand both are other numbers, so the line above is a guide: what was decided may lie a little off it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf
from typing import Literal, TypeAlias

from tgbench.base.errors import PlanError
from tgbench.base.stopping import StopReason
from tgbench.base.words import counted, format_bytes, format_time, listed, shorten
from tgbench.graph.graph import Graph
from tgbench.graph.unfold import AGAIN
from tgbench.memory.placement import aligned, told_offset
from tgbench.plans.checks import scheduled_of
from tgbench.plans.decisions import PlanBucket, PlanFields, PlanSlot
from tgbench.programs.exact.findings import Exactness
from tgbench.runs.buckets import BucketClass

Role: TypeAlias = Literal[
    "input", "retained", "partial", "slice", "unplaced", "view", "weight", "frozen"
]
OWN_BYTES = "a view that has bytes of its own, to be kept without the rest of what it shows"
UNNAMED = " (weights, and what depends on them alone, need graph=session.graph)"
FIRST_ORDER = (
    "(to first order: the saving is modelled with all else as it is; the price is that of the next "
    "few bytes, as if nodes could be kept in part)"
)


# --- one node ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weighed:
    """What retaining a node through every run saves, against what its bytes are worth elsewhere.

    Fields:
        saves_ns: of the mean run, all else as it is.
        size_bytes: what that takes.
        price_ns: what one more byte of memory would save a run, at the margin.
        spare_bytes: what the plan leaves of its budget.
    """

    saves_ns: float
    size_bytes: int
    price_ns: float
    spare_bytes: int = 0

    @property
    def density_ns(self) -> float:
        """Saved per byte and run; the price of memory at which retaining it breaks even."""
        return self.saves_ns / max(self.size_bytes, 1)

    @property
    def times(self) -> float:
        """How many times more a byte saves here than elsewhere; 1 breaks even."""
        return self.density_ns / self.price_ns if self.price_ns else inf

    @property
    def more_bytes(self) -> int:
        """With so much more memory it fits beside all else; less may do."""
        return max(self.size_bytes - self.spare_bytes, 0)


@dataclass(frozen=True)
class Explanation:
    """What a plan decided for one node, and what would change that; `print` it.

    Fields:
        role: input (or state), retained (on bytes of its own), partial (retained after the runs of
            some classes, on bytes that it shares), slice (not retained), unplaced (a view, or
            never computed), and with the graph at hand: view, weight (parameter or constant),
            frozen.
        size_bytes, offset_bytes: its bytes in the arena.
        after, gone: runs after which it is there, and those that may write over it.
        aliases: others that use some of its bytes, when it does not.
        donor, takers: whose bytes it takes over in place, and who takes over its own.
        weighed: what retaining it saves and takes; None where that was not weighed.
        remark: what else is to be said of it.
        source: the line of the user's code that it comes from, where the graph knows it.
        tile: what it computes together so that its bits are the same in every run, in words.
        window: how much of it is retained, where that is a window that moves along, in words.
    """

    node: str
    role: Role
    size_bytes: int = 0
    offset_bytes: int = 0
    after: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    donor: str = ""
    takers: tuple[str, ...] = ()
    weighed: Weighed | None = None
    remark: str = ""
    tile: str = ""
    source: str = ""
    window: str = ""

    def __str__(self) -> str:
        lines = [f"{self.node}: {_HEADS[self.role](self)}", *_classes(self), *_sharers(self)]
        lines += [f"from {self.source}"] if self.source else []
        lines += [line for line in (self.tile, self.remark) if line]
        if self.weighed is not None:
            lines += [_balance(self.weighed, self.role), _FLIPS[self.role](self.weighed)]
            lines.append(FIRST_ORDER)
        return "\n  ".join(lines)


def explain(
    plan: PlanFields, node: str, graph: Graph | None = None, exactness: Exactness | None = None
) -> Explanation:
    """Why a node is, or is not, retained.

    Args:
        graph: the one that runs (`session.graph`): with it, views, weights and nodes that depend
            on weights alone are told apart. A plan by itself knows only what is scheduled.
        exactness: `session.exactness`, to be told in what tiles a node is computed.

    Raises PlanError for a node that is not in the plan, and for another graph.
    """
    if not isinstance(node, str):
        raise PlanError(
            f"{shorten(node)} is no name of a node; pass one, as plan.retained has them"
        )
    found = replace(_explained(plan, node, graph), source=_source(node, graph))
    return found if exactness is None else replace(found, tile=exactness.told(node))


def _source(name: str, graph: Graph | None) -> str:
    """Of a node, or of the one that it computes again."""
    again = AGAIN.fullmatch(name)
    names = {name, again[1] if again else name}
    nodes = graph.nodes if graph is not None else ()
    return next((node.source for node in nodes if node.name in names and node.source), "")


def _explained(plan: PlanFields, node: str, graph: Graph | None) -> Explanation:
    slot = next((slot for slot in plan.slots if slot.node == node), None)
    if slot is None:
        return _without_bytes(plan, node, graph)
    takers = tuple(other.node for other in plan.slots if other.donor == node)
    beside = {node, slot.donor, *takers}
    role = _role(plan, slot)
    found = weighed(plan, node) if role in _FLIPS else None
    remarks = _own(plan, node), "" if found is not None else _unweighed(plan, slot)
    return Explanation(
        node,
        role,
        slot.size_bytes,
        slot.offset_bytes,
        after(plan, slot),
        gone(plan, slot),
        tuple(name for name in _sharing(plan, slot) if name not in beside),
        slot.donor,
        takers,
        found,
        "\n  ".join(filter(None, remarks)),
        window=_window(slot),
    )


def _window(slot: PlanSlot) -> str:
    if slot.slides is None:
        return ""
    extent = counted(slot.extents[slot.slides], "element")
    return f"a window of {extent} along dimension {slot.slides} that moves with them, "


def _role(plan: PlanFields, slot: PlanSlot) -> Role:
    if not slot.retained:
        return "slice"
    if slot.node not in plan.schedule:
        return "input"
    return "retained" if slot.through is None else "partial"


def weighed(plan: PlanFields, node: str) -> Weighed | None:
    """What the plan says that retaining a node saves; None if it does not."""
    spare = plan.budget_bytes - plan.size_bytes if plan.budget_bytes is not None else 0
    return next(
        (
            Weighed(reason.saves_ns, reason.size_bytes, plan.price_ns, max(spare, 0))
            for reason in plan.reasons
            if reason.node == node
        ),
        None,
    )


def _own(plan: PlanFields, node: str) -> str:
    """What is said of a view that has bytes, whenever it is computed."""
    again = AGAIN.fullmatch(node)
    return OWN_BYTES if not {node, again and again[1]}.isdisjoint(plan.copied) else ""


def _unweighed(plan: PlanFields, slot: PlanSlot) -> str:
    """Why the plan does not say what retaining a node saves."""
    role = _role(plan, slot)
    if role == "input":
        return ""
    if plan.reasons:
        return "retaining it saves nothing beside what else is retained"
    if role == "slice" and slot.node not in plan.dropped:
        return "no planned run reads its earlier values, if what is read is retained"
    if plan.search is not None and plan.search.stop == StopReason.RUNNING:
        return "what it saves was not weighed: a search laid this plan out on its way"
    if role == "retained" and not plan.dropped:
        return "what it saves was not weighed: everything that is read again is retained"
    if plan.search is not None and plan.search.bound_ns:
        return "what it saves was not weighed: no bound was sought for runs cut in this way"
    return "what it saves was not weighed: `optimize(mode='search')` does that"


def _without_bytes(plan: PlanFields, node: str, graph: Graph | None) -> Explanation:
    """A node that has no slot: a view, a weight, or one that is never computed."""
    if graph is None:
        if node not in plan.schedule:
            raise _unknown(node, _names(plan), UNNAMED)
        return Explanation(node, "unplaced")
    if plan.graph != graph.fingerprint:
        raise PlanError(
            f"the plan is for graph {plan.graph[:12]}, this is {graph.fingerprint[:12]}; "
            "pass session.graph, the simplified graph that runs"
        )
    scheduled = scheduled_of(plan, graph)
    nodes = {n.name: n for n in scheduled.graph.nodes}
    if node not in nodes:
        raise _unknown(node, nodes)
    base = scheduled.base[nodes[node]]
    if nodes[node].is_leaf:
        return Explanation(node, "weight")
    if nodes[node] in scheduled.frozen:
        return Explanation(node, "frozen")
    if base is not nodes[node]:
        return Explanation(node, "view", remark=f"it shows the bytes of {base.name}")
    return Explanation(node, "unplaced")


def _unknown(node: str, names: Iterable[str], hint: str = "") -> PlanError:
    near = ", ".join(get_close_matches(node, list(names), n=3))
    meant = f"did you mean {near}?" if near else "nodes are named as in session.graph"
    return PlanError(f"the plan has no node {shorten(node)}; {meant}{hint}")


def _names(plan: PlanFields) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*plan.schedule, *(slot.node for slot in plan.slots)]))


def kinds(plan: PlanFields) -> tuple[BucketClass, ...]:
    """The classes that a plan was made for."""
    return tuple(map(kind_of, plan.buckets))


def kind_of(bucket: PlanBucket) -> BucketClass:
    return BucketClass(bucket.changed, bucket.demand, bucket.bounds)


def after(plan: PlanFields, slot: PlanSlot) -> tuple[str, ...]:
    """The runs after which a node is there."""
    if not slot.retained:
        return ()
    return tuple(map(str, kinds(plan))) if slot.through is None else said(plan, slot.through)


def gone(plan: PlanFields, slot: PlanSlot) -> tuple[str, ...]:
    """The runs that may write over it."""
    if not slot.retained:
        return tuple(map(str, kinds(plan)))
    everything = range(len(plan.turns))
    return () if slot.through is None else said(plan, set(everything) - set(slot.through))


def said(plan: PlanFields, turns: Collection[int]) -> tuple[str, ...]:
    """Turns in words; the class alone where all of its turns are among them."""
    found, classes = [], kinds(plan)
    for of in dict.fromkeys(turn.of for turn in plan.turns):
        mine = [k for k, turn in enumerate(plan.turns) if turn.of == of]
        chosen = [k for k in mine if k in turns]
        if chosen == mine:
            found.append(str(classes[of]))
        else:
            found += [plan.turns[k].named(classes) for k in chosen]
    return tuple(found)


def _sharing(plan: PlanFields, slot: PlanSlot) -> list[str]:
    """Whatever else lies on a node's bytes, in the order of the slots."""
    low, high = slot.offset_bytes, slot.offset_bytes + aligned(slot.size_bytes)
    found: list[str] = []
    for other in plan.slots:
        reach = other.offset_bytes + aligned(other.size_bytes)
        if other is not slot and other.offset_bytes < high and low < reach:
            found.append(other.node)
        room = other.scratch_offset_bytes
        if other.scratch_bytes and room < high and low < room + other.scratch_bytes:
            found.append(f"{other.node} (scratch)")
    return found


# --- in words ------------------------------------------------------------------------------------


def _where(e: Explanation) -> str:
    return f"{format_bytes(e.size_bytes)} at offset {told_offset(e.offset_bytes)}"


_HEADS: Mapping[Role, Callable[[Explanation], str]] = {
    "input": lambda e: f"an input or a state, {_where(e)}: always kept",
    "retained": lambda e: f"retained through every run, {e.window}{_where(e)}",
    "partial": lambda e: f"retained after {_how_many(e)}, {_where(e)}",
    "slice": lambda e: f"not retained, {_where(e)}: room for the largest run's part",
    "unplaced": lambda e: "no bytes: a view, or not computed by any planned run",
    "view": lambda e: "a view: no bytes of its own, valid where what it shows is",
    "weight": lambda e: "a parameter or a constant: in the pool, not in the arena",
    "frozen": lambda e: "depends on parameters and constants alone: computed once, in the pool",
}


def _how_many(e: Explanation) -> str:
    if not e.gone:
        return "every run, on bytes that it shares until it is computed"
    return f"{len(e.after)} of {len(e.after) + len(e.gone)} kinds of runs"


def _classes(e: Explanation) -> list[str]:
    if e.role != "partial" or not e.gone:
        return []
    return [f"there after {listed(e.after)}", f"may be gone after {listed(e.gone)}"]


def _sharers(e: Explanation) -> list[str]:
    lines = []
    if e.donor:
        lines.append(f"takes over the bytes of {e.donor}, in place")
    if e.takers:
        lines.append(f"its bytes are taken over in place by {listed(e.takers)}")
    if e.aliases:
        lines.append(f"shares bytes with {listed(e.aliases)}")
    return lines


_SAVES: Mapping[Role, str] = {
    "retained": "saves {} a run for {} ({})",
    "partial": "through every run it would save {} a run, against through none, for {} ({})",
    "slice": "retained, it would save {} a run for {} ({})",
}


def _balance(w: Weighed, role: Role) -> str:
    saves = _SAVES[role].format(
        format_time(w.saves_ns), format_bytes(w.size_bytes), _rate(w.density_ns)
    )
    return f"{saves}; memory is worth {_rate(w.price_ns)} at the margin"


def _flip_retained(w: Weighed) -> str:
    dearer = f"if memory were worth more than {_rate(w.density_ns)}, as under a tighter budget"
    if not w.saves_ns:
        return "it would be dropped for anything that saves time"
    if not w.price_ns:
        return f"more memory would save nothing now; it would be dropped {dearer}"
    if w.times < 1:
        return (
            "its bytes are worth more than that elsewhere; it stays because nodes are kept whole, "
            "and what would take its place does not fit there or saves less"
        )
    return f"it would be dropped {dearer}, or if the runs that read it were {_times(w.times)} rarer"


def _flip_slice(w: Weighed) -> str:
    if not w.saves_ns:
        return "it would be retained only if memory were left over"
    if w.times < 1:
        oftener = f"if the runs that read it came {_times(1 / w.times)} as often"
        return f"it would be retained {oftener}, or {_room(w)}"
    return (
        "that is worth its bytes: it may survive as it is, where nothing happens to write over it, "
        "or fit nowhere beside the others, or the search ended too early; it would be retained by "
        f"a longer search, or {_room(w)}"
    )


def _flip_partial(w: Weighed) -> str:
    return (
        f"it would have bytes of its own {_room(w)}, "
        f"and would not be retained if memory were worth much more than {_rate(w.density_ns)}"
    )


_FLIPS: Mapping[Role, Callable[[Weighed], str]] = {
    "retained": _flip_retained,
    "partial": _flip_partial,
    "slice": _flip_slice,
}


def _room(w: Weighed) -> str:
    if not w.more_bytes:
        return f"in the {format_bytes(w.spare_bytes)} that the budget has left"
    return f"with about {format_bytes(w.more_bytes)} more memory"


def _rate(per_byte_ns: float) -> str:
    return f"{per_byte_ns:.2g} ns/B"


def _times(factor: float) -> str:
    return f"{factor:.2g} ×" if factor < 99.5 else f"{factor:,.0f} ×"
