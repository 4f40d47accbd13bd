"""A retention of other turns, carried over to those of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tgbench.memory.placement import Retention, Turn
from tgbench.plans.decisions import Decisions
from tgbench.plans.retention.workload import Workload
from tgbench.runs.buckets import BucketClass

# A turn by its classes, and whether the first one ran last.
Named: TypeAlias = "tuple[BucketClass | None, BucketClass | None, bool | None]"


def told_anew(start: Decisions, workload: Workload) -> Retention:
    """A plan's retention over a workload's turns: what it keeps after all that a turn may be."""
    old, kinds = start.retention, list(start.classes)
    theirs = [_named(turn, kinds) for turn in old.turns]
    alike = [
        frozenset(k for k, their in enumerate(theirs) if _alike(own, their))
        for own in (_named(turn, workload.kinds) for turn in workload.turns)
    ]
    everything = frozenset(range(len(workload.turns)))
    after = {
        node: frozenset(t for t, same in enumerate(alike) if same and same <= turns)
        for node, turns in old.after.items()
    }
    after |= {node: everything for node, turns in old.after.items() if len(turns) == len(theirs)}
    there = {n: t for n, t in after.items() if t}
    return Retention(there, workload.turns, old.shared, old.may_slide)


def _named(turn: Turn, kinds: Sequence[BucketClass]) -> Named:
    of = kinds[turn.of] if turn.of < len(kinds) else None
    return of, None if turn.before is None else kinds[turn.before], turn.again


def _alike(one: Named, other: Named) -> bool:
    """Whether a run may be of both turns."""
    pairs = zip(one[1:], other[1:], strict=True)
    may_be = all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)
    return one[0] is not None and one[0] == other[0] and may_be
