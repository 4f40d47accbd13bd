"""The last word on a plan's speed: its trace again, decided run by run as the session would.

Every run is propagated and lowered over the real memory map, so values that survive in shared bytes
count, and so do holes, fills and runs in pieces. Times are what the kernels that runs take are
expected to, operands lying as they do in this map.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tgbench.base.coords import Guard
from tgbench.base.errors import TgbenchError
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.walk import Walk
from tgbench.programs.appraising import Appraisals, Appraiser
from tgbench.programs.held import State
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Instruction
from tgbench.programs.specialiser import Specialiser, holds_alone
from tgbench.runs.buckets import BucketClass, Spot
from tgbench.runs.redeciding import Before
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut

RunCost: TypeAlias = Callable[[Spot, tuple[Instruction, ...]], float]  # ns

MOST_DECIDED = 64  # each takes milliseconds
FEWEST = 3  # calls after the first that are walked, however late it is


class Misfit(TgbenchError):  # noqa: N818  (a signal to plan for it)
    """A call of the trace that a map has no room for, even from nothing.

    Attributes:
        kind, origin: which one, and where.
    """

    def __init__(self, kind: BucketClass, origin: tuple[int, ...]) -> None:
        super().__init__(f"{kind} does not fit at {origin}")
        self.kind = kind
        self.origin = origin


@dataclass(frozen=True)
class Replayed:
    """What each call of a trace costs under a plan.

    Fields:
        times_ns: per call, in order.
        instructions: per call, how many it runs.
        decided: how many different situations there were.
        runs: those that differ, the first of each.
        is_whole: whether the trace was walked to its end.
        cramped: what had to run in pieces although no run is to be cut.
    """

    times_ns: tuple[float, ...]
    instructions: tuple[int, ...]
    decided: int
    runs: tuple[tuple[Spot, tuple[Instruction, ...]], ...]
    is_whole: bool
    cramped: tuple[Spot, ...] = ()

    @property
    def warm_up_ns(self) -> float:
        """The first call, which finds nothing."""
        return self.times_ns[0]

    @property
    def mean_ns(self) -> float:
        """The mean of all calls after the first."""
        later = self.times_ns[1:]
        return sum(later) / len(later) if later else self.times_ns[0]


def replay(
    scheduled: ScheduledGraph,
    rules: Rules,
    placement: Placement,
    cut: Cut,
    calls: Sequence[tuple[BucketClass, tuple[int, ...]]],
    cost: RunCost,
    device: str,
    known: Appraisals,
    before: Before,
    alone: Collection[BucketClass],
    classes: Mapping[BucketClass, tuple[float, tuple[int, ...]]] | None = None,
    most: int | None = None,
    stop: Callable[[Sequence[float]], bool] = lambda times_ns: False,
) -> Replayed:
    """Walk a trace over a memory map; no further than `MOST_DECIDED` situations.

    Where what is there makes a run too large for the map, the run goes from nothing.

    Args:
        known: what earlier replays found out about kernels.
        before: how runs were decided over other maps.
        alone: classes whose decisions held nowhere else: they are decided for numbers, and so are
            those that turn out to be so over this map. Over another they may hold elsewhere.
        most: how many calls are walked; None for all.
        stop: asked after each call but the first few, given what all took so far; True ends it.

    Raises Misfit for a call that the map cannot hold.
    """
    appraiser = Appraiser(scheduled, placement, rules, device, known)
    specialiser = Specialiser(
        scheduled,
        placement,
        cut,
        rules,
        device,
        classes=classes,
        lowerer=appraiser,
        before=before,
    )
    cramped, fixed = list[Spot](), set(alone)

    def decide(
        held: State, kind: BucketClass, origin: tuple[int, ...]
    ) -> tuple[tuple[Instruction, ...], State, frozenset[Guard]]:
        for there in (held, {}):
            try:
                made = specialiser.specialise(there, kind, origin, is_fixed=kind in fixed)
            except DoesNotFit:
                continue
            if holds_alone(made.guards, origin):
                fixed.add(kind)
            if cut == WHOLE and len(made.pieces) > 1:
                cramped.append(Spot(kind, origin))
            return made.instructions, made.after, made.guards
        raise Misfit(kind, origin)

    walk = Walk(decide, known.states)
    times, counts = list[float](), list[int]()
    runs: dict[int, tuple[Spot, tuple[Instruction, ...]]] = {}
    for kind, origin in calls[:most]:
        if walk.decided >= MOST_DECIDED or (len(times) > FEWEST and stop(times)):
            break
        instructions = walk.step(kind, origin)
        times.append(cost(Spot(kind, origin), instructions))
        counts.append(len(instructions))
        runs.setdefault(id(instructions), (Spot(kind, origin), instructions))
    is_whole, found = len(times) == len(calls), tuple(runs.values())
    return Replayed(tuple(times), tuple(counts), walk.decided, found, is_whole, tuple(cramped))
