"""What one run of a class does to every node: made again, used as it was, stale, or destroyed.

changed input ─→ dirty ─→ needed?  yes: recomputed, or extended where the rest is still there
                 clean ─→ needed?  yes: reused       dirty and not needed: stale
and what was there may be destroyed by what is computed on the same bytes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tgbench.base.coords import standing
from tgbench.base.errors import WidgetError
from tgbench.base.regions import Region
from tgbench.graph.graph import Node
from tgbench.plans.decisions import Decisions
from tgbench.plans.explain import after, kinds
from tgbench.plans.plan import Plan
from tgbench.programs.held import State
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.specialiser import Specialiser
from tgbench.runs.buckets import Boxes, Bucket, BucketClass
from tgbench.runs.propagate import Step, changes
from tgbench.runs.rules import Rules

Origins: TypeAlias = Mapping[BucketClass, tuple[int, ...]]  # where classes were seen last
Fate: TypeAlias = Literal[
    "untouched", "changed", "recomputed", "extended", "reused", "stale", "destroyed"
]
ONLY = "only "  # and the name of what alone is new
FATES: tuple[Fate, ...] = get_args(Fate)


@dataclass(frozen=True)
class Place:
    """Where a class of runs is looked at: an append to a long text has earlier rows to use.

    Fields:
        origin: the positions.
        why: in words.
    """

    origin: tuple[int, ...]
    why: str = ""

    @staticmethod
    def of(kind: BucketClass, seen: Origins) -> Place:
        """Where it was seen last; in the middle if it was not seen."""
        if kind in seen:
            return Place(seen[kind], "as it ran last")
        half = kind.inside(tuple(bound // 2 for bound in kind.bounds))
        return Place(half, "halfway, as no run of it was seen")

    def __str__(self) -> str:
        """`at u0 = 130, as it ran last`; nothing for a class that is always in one place."""
        at = ", ".join(f"u{i} = {start}" for i, start in enumerate(self.origin))
        return ", ".join(filter(None, (f"at {at}", self.why))) if at else ""


def classes_of(plan: Plan, seen: Origins) -> dict[str, BucketClass]:
    """What can be looked at: the classes that a plan was made for, and those that ran."""
    return {str(kind): kind for kind in (*kinds(plan), *seen)}


@dataclass(frozen=True)
class ClassRun:
    """One run, as far as nodes with bytes are concerned.

    Fields:
        bucket: the class, in words.
        place: where it is looked at, in words; "" if it is always in one place.
        changed: inputs and states that are new.
        recomputed: nodes of which something is computed.
        reused: nodes of which something that was there is read.
        stale: nodes that are dirty somewhere and not made right again.
        destroyed: node → those computed over bytes of it that held something.
        elements: node → how many elements are computed.
    """

    bucket: str
    place: str
    changed: frozenset[str]
    recomputed: frozenset[str]
    reused: frozenset[str]
    stale: frozenset[str]
    destroyed: dict[str, tuple[str, ...]]
    elements: dict[str, int]

    def fate(self, name: str) -> Fate:
        """What a reader has to know first of a node."""
        if name in self.changed:
            return "changed"
        if name in self.recomputed:
            return "extended" if name in self.reused else "recomputed"
        if name in self.reused:
            return "reused"
        if name in self.destroyed:
            return "destroyed"
        return "stale" if name in self.stale else "untouched"


def run_of(
    made: Decisions,
    bucket: str,
    seen: Origins,
    rules: Rules | None = None,
    device: str = "cpu",
) -> ClassRun:
    """A class's run in the state that an earlier run of it leaves, where it was seen last.

    A class that was not seen is looked at halfway, where earlier rows are there to be used.

    `only NAME` is the run in which all of that input or state is new and nothing else; what is
    asked for is what the most frequent class asks for, and everything was made before. Raises
    WidgetError for another text, and for a run that the map cannot hold.
    """
    found = {str(kind): (kind, Place.of(kind, seen)) for kind in (*made.classes, *seen)}
    alone = {f"{ONLY}{leaf.name}": leaf for leaf in made.scheduled.kept}
    specialiser = Specialiser(
        made.scheduled, made.placement, made.cut, rules or Rules(), device, classes=made.classes
    )
    if bucket in found:
        kind, place = found[bucket]
        runs = [(kind, place.origin)] * 2
    elif bucket in alone:
        kind = max(made.classes, key=lambda kind: made.classes[kind][0])
        place = Place.of(kind, seen)
        demand = kind.bucket(place.origin).demand
        runs = [_whole(made, leaves, demand) for leaves in (made.scheduled.kept, [alone[bucket]])]
    else:
        raise WidgetError(f"{bucket!r} is not one of {', '.join([*found, *alone])}")
    held: State = {}
    try:
        for kind, origin in runs:
            before, run = held, specialiser.specialise(held, kind, origin)
            held = run.after
    except DoesNotFit as error:
        raise WidgetError(f"{bucket}: this map cannot hold such a run ({error})") from error
    with standing(origin):
        changed = changes(made.scheduled.graph, kind, kind.symbols)
        dirty = specialiser.propagator.forward(changed)
        steps = [step for step, _ in run.pieces]
        return _summed(bucket, str(place), made, before, steps, held, dirty)


def _whole(
    made: Decisions, leaves: Iterable[Node], demand: Boxes
) -> tuple[BucketClass, tuple[int, ...]]:
    """The run in which all of these are new."""
    changed = {leaf.name: Region.full(leaf.shape) for leaf in leaves}
    return Bucket.of(changed, dict(demand)).classify(made.scheduled.graph)


def _summed(
    bucket: str,
    place: str,
    made: Decisions,
    before: State,
    steps: list[Step],
    after: State,
    differ: Iterable[Node],
) -> ClassRun:
    slots, overlaps = made.placement.slots, made.placement.overlaps
    computed: dict[Node, int] = {}
    for step in steps:
        for node, region in step.compute.items():
            if node in slots:
                computed[node] = computed.get(node, 0) + region.elements
    written = set(computed) | {node for step in steps for node in step.filled}
    dirty = [node for node in differ if node in slots]
    destroyed = {
        node.name: tuple(other.name for other in overlaps.get(node, ()) if other in written)
        for node in before
        if node not in after or after[node].valid.elements < before[node].valid.elements
    }
    return ClassRun(
        bucket,
        place,
        frozenset(node.name for node in dirty if node.is_leaf),
        frozenset(node.name for node in computed),
        frozenset(node.name for step in steps for node in step.reused if node in slots),
        frozenset(node.name for node in dirty if not node.is_leaf and node not in computed),
        {name: others for name, others in destroyed.items() if others},
        {node.name: count for node, count in computed.items()},
    )


def fates(run: ClassRun) -> dict[str, Fate]:
    """What becomes of every node that the run touches."""
    touched = {*run.changed, *run.recomputed, *run.reused, *run.stale, *run.destroyed}
    return {name: run.fate(name) for name in sorted(touched)}


def ripple(run: ClassRun) -> str:
    """What a run does, in one line."""
    counts = Counter(fates(run).values())
    where = f"{run.bucket} {run.place}".rstrip()
    return f"{where}: " + ", ".join(f"{counts[fate]} {fate}" for fate in FATES if counts[fate])


def kept_after(plan: Plan, bucket: str) -> dict[str, Fate]:
    """What a plan alone says of a class: which values are there after its runs, and which may not.

    What is computed, the graph would tell.
    """
    slots = [slot for slot in plan.slots if slot.retained]
    return {slot.node: "reused" if bucket in after(plan, slot) else "destroyed" for slot in slots}
