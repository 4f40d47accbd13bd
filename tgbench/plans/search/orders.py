"""Other ways to lay the same runs out: parts of nodes, other orders, some nodes computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgbench.base.words import format_bytes
from tgbench.memory.placement import Retention, aligned
from tgbench.memory.schedule import lowest_peak
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Decisions
from tgbench.plans.scenarios import Scenario
from tgbench.plans.search.judge import Judge
from tgbench.runs.split import WHOLE

LOWER = 0.99  # what another order of the graph has to save to be taken
ORDER_STEPS = 500_000  # of the search for one


def is_plain(scheduled: ScheduledGraph) -> bool:
    """Whether nothing is computed more than once, and no views are copied."""
    return scheduled is scheduled.once.copying(())


def others(judge: Judge, budget_bytes: int | None) -> Iterator[Judge]:
    """Where not all fits: the same with parts of nodes, and in another order.

    What a plan chose, its order and the views that it copies, is kept, and so is what it would
    be without: it may not have to compute nodes more than once any more, nor to divide them.
    """
    if not is_plain(judge.scheduled):
        as_given = judge.over(judge.scheduled.once.copying(()))
        known = judge.scheduled.schedule, judge.scheduled.copied
        for one in (as_given, *others(as_given, budget_bytes)):
            if (one.scheduled.schedule, one.scheduled.copied) != known:
                yield one
        return
    if budget_bytes is None:
        return
    scenarios = judge.planner.scenarios(judge.classes)
    divided = judge.planner.in_parts(scenarios)
    begun = [judge, *([] if divided is None else [judge.over(divided.scheduled)])]
    yield from begun[1:]
    for one in begun:
        other = _reordered(one, scenarios)
        if other is not None:
            yield other


def planned(judge: Judge, budget_bytes: int) -> Decisions:
    """The planner's plan, in whichever order fits: perhaps one that computes nodes again.

    Raises BudgetError naming the least that was found to work.
    """
    planner = judge.planner.over(judge.scheduled.once.copying(()))
    return planner.plan(planner.scenarios(judge.classes), budget_bytes)


def _reordered(judge: Judge, scenarios: Sequence[Scenario]) -> Judge | None:
    """The same in another order of the graph, if slices then take less.

    Only the graph's own order is improved on: a plan's was chosen already.
    """
    graph, copied = judge.scheduled.graph, judge.scheduled.copied
    if judge.scheduled.schedule != ScheduledGraph.of(graph).schedule:
        return None
    everything = Retention.always(judge.planner.frontier(scenarios))
    placed = judge.planner.lay_out(everything, scenarios, WHOLE)
    slices = [node for node in placed.slots if node not in placed.retained]
    found = lowest_peak(
        graph,
        {node: aligned(placed.size_of(node)) for node in slices},
        scratch={node: aligned(room.size_bytes) for node, room in placed.scratch.items()},
        max_steps=ORDER_STEPS,
        copied=copied,
    )
    if found.peak_bytes > LOWER * found.given_bytes:
        return None
    other = judge.over(ScheduledGraph.of(graph, found.schedule, copied))
    packed = other.planner.lay_out(everything, scenarios, WHOLE)
    if packed.size_bytes > LOWER * placed.size_bytes:
        return None
    judge.planner.tell(
        f"another order: {format_bytes(placed.size_bytes)} → {format_bytes(packed.size_bytes)}"
    )
    return other
