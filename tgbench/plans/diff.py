"""How two plans differ, from the plans alone.

before ─┐                retained     + k1 (64 B, saves 0.01 ms a run)
        ├─→ PlanDiff ─→  retained     − h (128 B)
after  ─┘                cut          none → ids[0] in 4
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tgbench.base.words import format_bytes, format_time, listed
from tgbench.plans.decisions import PlanFields, PlanSlot
from tgbench.plans.explain import after, kind_of, kinds, weighed
from tgbench.runs.buckets import BucketClass

T = TypeVar("T")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Kept:
    """A node that a plan retains.

    Fields:
        size_bytes: its bytes in the arena.
        saves_ns: of the mean run, all else as it is; None where that was not weighed.
        after: the runs after which it is there, if it shares its bytes; None: it has them
            for itself, and is always there.
    """

    node: str
    size_bytes: int
    saves_ns: float | None = None
    after: frozenset[str] | None = None

    def __str__(self) -> str:
        saves = f", saves {format_time(self.saves_ns)} a run" if self.saves_ns is not None else ""
        partly = "" if self.after is None else f" after {self.classes}"
        return f"{self.node} ({format_bytes(self.size_bytes)}{saves}){partly}"

    @property
    def classes(self) -> str:
        """After whose runs, in words."""
        return "every run" if self.after is None else listed(sorted(self.after))


@dataclass(frozen=True, repr=False)
class PlanDiff:
    """What one plan decides otherwise than another; false if nothing, and it prints.

    How the plans were found (by which search, where, what was weighed) is not compared.
    """

    before: PlanFields
    after: PlanFields

    @cached_property
    def gained(self) -> tuple[Kept, ...]:
        """Retained by the second plan only."""
        return _but(_kept(self.after), _kept(self.before))

    @cached_property
    def lost(self) -> tuple[Kept, ...]:
        """Retained by the first plan only."""
        return _but(_kept(self.before), _kept(self.after))

    @cached_property
    def rearranged(self) -> tuple[tuple[Kept, Kept], ...]:
        """Retained by both, but not after the runs of the same classes."""
        before, now = _kept(self.before), _kept(self.after)
        both = ((kept, now[name]) for name, kept in before.items() if name in now)
        return tuple((a, b) for a, b in both if a.after != b.after)

    @cached_property
    def copied(self) -> tuple[str, ...]:
        """Views that have bytes of their own in the second plan only."""
        return _without(self.after.copied, self.before.copied)

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """Views that have bytes of their own in the first plan only."""
        return _without(self.before.copied, self.after.copied)

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """Nodes at another offset."""
        return self._otherwise(lambda slot: slot.offset_bytes)

    @cached_property
    def resized(self) -> tuple[str, ...]:
        """Nodes whose slots hold more, fewer or other elements."""
        return self._otherwise(lambda slot: (slot.extents, slot.start))

    @cached_property
    def reused(self) -> tuple[str, ...]:
        """Nodes with other scratch memory, or that take over another operand's bytes."""
        return self._otherwise(lambda s: (s.donor, s.scratch_bytes, s.scratch_offset_bytes))

    def _otherwise(self, of: Callable[[PlanSlot], object]) -> tuple[str, ...]:
        before = {slot.node: of(slot) for slot in self.before.slots}
        return tuple(s.node for s in self.after.slots if of(s) != before.get(s.node, of(s)))

    @cached_property
    def removed(self) -> tuple[str, ...]:
        """Nodes with bytes in the first plan only."""
        return _without(_placed(self.before), _placed(self.after))

    @cached_property
    def added(self) -> tuple[str, ...]:
        """Nodes with bytes in the second plan only."""
        return _without(_placed(self.after), _placed(self.before))

    @cached_property
    def reordered(self) -> tuple[str, ...]:
        """The fewest nodes to put elsewhere, in or out, to make one schedule of the other."""
        place = {name: i for i, name in enumerate(self.before.schedule)}
        stays = _longest_rise([place[name] for name in self.after.schedule if name in place])
        moved = [name for name in self.after.schedule if place.get(name) not in stays]
        return (*moved, *_without(self.before.schedule, self.after.schedule))

    @cached_property
    def fewer(self) -> tuple[BucketClass, ...]:
        """Classes that only the first plan is for."""
        return _without(kinds(self.before), kinds(self.after))

    @cached_property
    def further(self) -> tuple[BucketClass, ...]:
        """Classes that only the second plan is for."""
        return _without(kinds(self.after), kinds(self.before))

    @cached_property
    def reweighted(self) -> tuple[BucketClass, ...]:
        """Classes that came more often, or less, or were seen last at another origin."""
        before = {kind_of(b): (b.weight, b.origin) for b in self.before.buckets}
        now = {kind_of(b): (b.weight, b.origin) for b in self.after.buckets}
        return tuple(kind for kind, seen in now.items() if before.get(kind, seen) != seen)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __str__(self) -> str:
        if self:
            return "\n".join(f"{head:12}  {line}" for head, line in self._lines)
        same = self.before == self.after
        return "no difference" + ("" if same else ", but in how the plans were found")

    __repr__ = __str__

    @cached_property
    def _lines(self) -> list[tuple[str, str]]:
        a, b = self.before, self.after
        return [
            *_change("graph", a.graph[:12], b.graph[:12]),
            *_change("device", a.device, b.device),
            *_change("budget", _budget(a), _budget(b)),
            *_amount("arena", a.size_bytes, b.size_bytes, format_bytes),
            *_amount("fixed part", a.kept_bytes, b.kept_bytes, format_bytes),
            *_amount("arena bound", a.bound_bytes, b.bound_bytes, format_bytes),
            *_amount("mean run", a.expected_ns, b.expected_ns, format_time),
            *_amount("time bound", _bound_ns(a), _bound_ns(b), _time_or_none),
            *_change("cut", _cut(a), _cut(b)),
            *(("retained", f"+ {kept}") for kept in self.gained),
            *(("retained", f"− {kept}") for kept in self.lost),
            *(("retained", _otherwise_kept(*pair)) for pair in self.rearranged),
            *_count("views", self.copied, "with bytes of their own now"),
            *_count("views", self.shown, "without bytes of their own now"),
            *_count("schedule", self.reordered, "in another place"),
            *_count("memory map", self.moved, "at another offset"),
            *_count("memory map", self.resized, "with another extent"),
            *_count("memory map", self.reused, "with other scratch memory or in-place operand"),
            *_count("memory map", self.removed, "no longer there"),
            *_count("memory map", self.added, "new there"),
            *(("runs", f"+ {kind}") for kind in self.further),
            *(("runs", f"− {kind}") for kind in self.fewer),
            *_count("runs", self.reweighted, "of another weight or origin"),
        ]


def _kept(plan: PlanFields) -> dict[str, Kept]:
    """What a plan chose to retain, in graph order; inputs and states always are."""
    scheduled, found = set(plan.schedule), {}
    for slot in plan.slots:
        if slot.retained and slot.node in scheduled:
            worth = weighed(plan, slot.node)
            classes = None if slot.through is None else frozenset(after(plan, slot))
            saves = worth.saves_ns if worth is not None else None
            found[slot.node] = Kept(slot.node, slot.size_bytes, saves, classes)
    return found


def _but(these: Mapping[str, Kept], those: Mapping[str, Kept]) -> tuple[Kept, ...]:
    return tuple(kept for name, kept in these.items() if name not in those)


def _without(these: Iterable[T], those: Collection[T]) -> tuple[T, ...]:
    there = set(those)
    return tuple(item for item in these if item not in there)


# --- plans of other models ------------------------------------------------------------------------


def foreign(plan: PlanFields, other: PlanFields) -> str:
    """Why nothing can be said of another plan beside one, in words; "" where something can.

    Plans of one graph can be compared, and those of its paths; so can those of a model with more
    tokens, another dtype or other weights, as names are the same: of inputs and states, and of at
    least half of what has bytes in the plan that has less.
    """
    if _given(plan) == _given(other):
        return ""
    mine, yours = _inputs(plan), _inputs(other)
    if mine != yours:
        return f"it is of inputs {listed(sorted(yours))}, this one of {listed(sorted(mine))}"
    ranks, theirs = _ranks(plan), _ranks(other)
    both = ranks.items() & theirs.items()
    if 2 * len(both) < min(len(ranks), len(theirs)):
        return f"{len(both)} of its {len(theirs)} values have the names of this one's {len(ranks)}"
    return ""


def _given(plan: PlanFields) -> str:
    """The fingerprint of the graph that was given, whichever path the plan is along."""
    return plan.graph if plan.path is None else plan.path.given


def _inputs(plan: PlanFields) -> set[str]:
    """Inputs and states: what has bytes and is computed by nobody."""
    return {slot.node for slot in plan.slots}.difference(plan.schedule)


def _ranks(plan: PlanFields) -> dict[str, int]:
    return {slot.node: len(slot.extents) for slot in plan.slots}


def _placed(plan: PlanFields) -> list[str]:
    return [slot.node for slot in plan.slots]


def _longest_rise(values: Sequence[int]) -> set[int]:
    """A longest increasing subsequence of distinct numbers (patience sorting, Fredman 1975)."""
    tops: list[int] = []  # the last number of the best rise of each length
    before: dict[int, int | None] = {}
    for value in values:
        length = bisect_left(tops, value)
        before[value] = tops[length - 1] if length else None
        tops[length : length + 1] = [value]
    found: set[int] = set()
    at = tops[-1] if tops else None
    while at is not None:
        found.add(at)
        at = before[at]
    return found


def _budget(plan: PlanFields) -> str:
    return "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)


def _bound_ns(plan: PlanFields) -> float:
    """0 where no bound was found."""
    return plan.search.bound_ns if plan.search is not None else 0.0


def _time_or_none(time_ns: float) -> str:
    return format_time(time_ns) if time_ns else "none"


def _otherwise_kept(before: Kept, now: Kept) -> str:
    return f"~ {now.node} is there after {now.classes}; before, after {before.classes}"


def _cut(plan: PlanFields) -> str:
    name, axis, parts = plan.cut
    return f"{name}[{axis}] in {parts}" if parts > 1 else "none"


def _change(head: str, before: str, after: str) -> list[tuple[str, str]]:
    return [(head, f"{before} → {after}")] if before != after else []


def _amount(
    head: str, before: Number, after: Number, words: Callable[[Number], str]
) -> list[tuple[str, str]]:
    if before == after:
        return []
    share = f" ({after / before - 1:+.1%})".replace("-", "−") if before and after else ""
    return [(head, f"{words(before)} → {words(after)}{share}")]


def _count(head: str, what: Sequence[object], words: str) -> list[tuple[str, str]]:
    names = [str(item) for item in what]
    return [(head, f"{len(names)} {words}: {listed(names)}")] if names else []
