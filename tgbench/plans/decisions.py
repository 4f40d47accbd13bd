"""What a plan decides: over the nodes of a graph, and by names as a file holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tgbench.base.machine import Machine
from tgbench.base.stopping import StopReason
from tgbench.graph.graph import Node
from tgbench.memory.placement import ANY, Placement, Retention, Turn
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.buckets import BucketClass
from tgbench.runs.split import Cut

VERSION = 4


@dataclass(frozen=True)
class PlanSlot:
    """One node's bytes, as in `placement.Slot`.

    Fields:
        size_bytes: what the extents take.
        retained: laid out in absolute coordinates, and kept between runs.
        through: positions of the turns after whose runs a retained node is still there, where it
            shares its bytes; None: it has them for itself.
        slides: the dimension along which a window is all that is kept of a retained node; None for
            all of it. A file may leave it out.
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
    slides: int | None = None


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
        modelled_ns: mean run in the tabulated model.
        greedy_ns: what `best_ns` was for the greedy plan.
        bound_ns: no plan of the tabulated model within the budget has a faster mean run, and no
            replay of the search had; 0 where that is not known.
        history: (step, best_ns) whenever a better plan was found.
        bound_of: digest of the tables and the budget that `bound_ns` holds for: another search
            over the same need not prove it again; "" where nothing is proven.
    """

    mode: str
    seed: int
    steps: int
    stop: StopReason
    best_ns: float
    modelled_ns: float
    warm_up_ns: float
    greedy_ns: float
    bound_ns: float
    history: tuple[tuple[int, float], ...] = ()
    bound_of: str = ""

    @property
    def gap(self) -> float:
        """How far the plan may be from the best one, as a share of the bound."""
        return max(self.best_ns / self.bound_ns - 1.0, 0.0) if self.bound_ns else math.inf


@dataclass(frozen=True)
class PlanBucket:
    """One class that the plan was made for, how often it came, and where it was last seen."""

    changed: tuple[tuple[str, tuple[tuple[tuple[int | None, int], ...], ...]], ...]
    demand: tuple[tuple[str, tuple[tuple[tuple[int | None, int], ...], ...]], ...]
    bounds: tuple[int, ...]
    weight: float
    origin: tuple[int, ...]


@dataclass(frozen=True)
class PlanPath:
    """Another graph that computes what the session's does, which the plan is about.

    Fields:
        given: fingerprint of the session's own graph.
        graph: the other one, as the text of a graph file.
        rules: names of those by which the two are the same (`graph.rewrite`).
        kernels: (signature without layouts, kernel) of calls that do not take the fastest one.
        tolerance: the largest relative error that was allowed; None where nothing is in less than
            its dtype.
    """

    given: str
    graph: str
    rules: tuple[str, ...]
    kernels: tuple[tuple[str, str], ...] = ()
    tolerance: float | None = None


Classes: TypeAlias = "dict[BucketClass, tuple[float, tuple[int, ...]]]"  # weight, last origin


@dataclass(frozen=True)
class Decisions:
    """A plan over the nodes of a graph at hand.

    Fields:
        scheduled: with the schedule that was chosen.
        retention: over turns of `classes`.
        dropped: nodes whose earlier values are read again, but which are not kept throughout.
        expected_ns: the modelled mean run.
        worth: (bytes, nanoseconds saved a run) of retaining a node, where weighed.
        price_ns: what one more byte of memory would save a run, at the margin.
        machine: the one that these times are expected on (`Machine.facts`).
        records: the measurements that they stand on (`CostModel.basis`); "" for models alone.
        instead: where large runs are in pieces, the best plan in which none is; where none is, the
            best of those that keep all that is read again, and compute large runs in pieces.
    """

    scheduled: ScheduledGraph
    placement: Placement
    retention: Retention
    dropped: tuple[Node, ...]
    cut: Cut
    classes: Classes
    expected_ns: float
    worth: Mapping[Node, tuple[int, float]] = field(default_factory=dict)
    price_ns: float = 0.0
    search: SearchRecord | None = None
    machine: Mapping[str, str] = field(default_factory=lambda: Machine.here().facts)
    records: str = ""
    instead: Instead | None = None

    @property
    def retained(self) -> tuple[Node, ...]:
        """What is kept after the runs of some class, in graph order."""
        return tuple(sorted(self.retention.nodes, key=lambda node: node.index))


@dataclass(frozen=True)
class Instead:
    """A plan that competed with another one, one of which computes large runs in pieces.

    Fields:
        decisions: that plan.
        share: what computing everything is expected to take where it is whole, of what that takes
            in pieces.
        hopes: what warm runs of a class are expected to take at most under the plan with pieces,
            wherever they are.
    """

    decisions: Decisions
    share: float
    hopes: Mapping[BucketClass, float]


@dataclass(frozen=True)
class PlanFields:
    """What a plan file holds: retention, cut, memory map and buckets of a session.

    Fields:
        graph: fingerprint of the (simplified) graph that runs.
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
        exact: "bitwise" if slices are made of whole tiles (see `tilings`); None otherwise.
        machine: where it was made, and what its times are expected on; plans may move between
            machines, and say that until they are made anew.
        copied: views that have bytes of their own, so that they can be kept without the rest of
            what they show; in graph order. A file may leave it out.
        records: the measurements that its times stand on: how many, and their digest; "" for
            models alone. A file may leave it out.
        path: how `graph` comes of the session's own; None where that is it.
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
    copied: tuple[str, ...] = ()
    records: str = ""
    path: PlanPath | None = None
    version: int = VERSION
