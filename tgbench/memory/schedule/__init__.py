"""The order of execution in which the fewest bytes are live at once.

    a ─→ b ─→ f      a, c: 8 bytes; b, d: 1 byte      bytes live while each node runs
    c ─→ d ─→ f
                     given   a  c  b  d  f            8 16 17 10  3
                     found   a  b  c  d  f            8  9  9 10  3

A *state* is the set of nodes that have run. The bytes live in it do not depend on the order in
which they ran, so an order is a path through the states, and its worst step is what counts.

1. A node that can be put off until its only user, because that costs nothing, forms a unit with it.
2. A unit that comes before or after every other one cuts the problem in two.
3. Each part is searched best first; a step that frees as much as it takes and stays below the
   worst one so far is taken at once. If the search ends, its answer is the best there is.
4. Where it does not end: a beam search, then shifts that get a value out of the worst step and
   exact searches of short windows around it, from several orders and after random kicks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tgbench.base.stopping import Limits, StopReason
from tgbench.graph.graph import Graph, Node
from tgbench.memory.schedule.search import OrderSearch, Progress
from tgbench.memory.schedule.tasks import Tasks
from tgbench.memory.schedule.units import units_of
from tgbench.memory.storage import ScheduledGraph

__all__ = ["Order", "Progress", "lowest_peak"]

MAX_STEPS = 5_000_000


@dataclass(frozen=True)
class Order:
    """A schedule, and what the search for it found.

    Fields:
        schedule: executable nodes; the given ones where nothing better was found.
        given_bytes, peak_bytes: the most bytes live at one step, before and after.
        bound_bytes: no order has a lower peak.
        stop: why the search ended: OPTIMAL, the peak is the bound; SETTLED, nothing that is tried
            improves it; or a limit.
        steps: computations of a unit that were tried.
    """

    schedule: tuple[Node, ...]
    given_bytes: int
    peak_bytes: int
    bound_bytes: int
    stop: StopReason
    steps: int
    seed: int


def lowest_peak(
    graph: Graph,
    sizes: Mapping[Node, int],
    *,
    scratch: Mapping[Node, int] | None = None,
    also: Sequence[Mapping[Node, int]] = (),
    max_steps: int = MAX_STEPS,
    seconds: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    copied: Iterable[Node] = (),
) -> Order:
    """An order of execution with a low peak of live bytes, never above that of the graph's own.

    An in-place result takes over the bytes of an operand that dies there, as a placement does.
    The same arguments give the same order, if `seconds` is None.

    Args:
        sizes: bytes of each stored node that comes and goes; what is retained counts nothing.
        scratch: bytes of a node's kernel while it runs.
        also: further maps like `sizes`, of other classes of runs; the highest peak of all counts.
        max_steps: computations of a unit to try.
        seconds: of the clock, after which the best so far is returned.
        copied: views that have bytes of their own.

    Raises:
        ValueError: for a negative size, or a size of a node that has no bytes of its own.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> from tgbench.graph.ops import sum_
    >>> g = GraphBuilder()
    >>> x, y = g.input("x", (8,)), g.input("y", (8,))
    >>> a, c = x * 2.0, y * 2.0
    >>> g.output("f", sum_(a, 0) + sum_(c, 0))
    >>> graph = g.build()
    >>> sizes = {node: node.type.size_bytes for node in graph.nodes if not node.is_leaf}
    >>> found = lowest_peak(graph, sizes)
    >>> found.given_bytes, found.peak_bytes, str(found.stop)
    (68, 40, 'optimal')

    Source: the cuts and the step taken at once rest on the bytes live in a state being a
    submodular function of it; see Liu, "An application of generalized tree pebbling to sparse
    matrix factorization" (1987), and Kayaaslan, Lambert, Marchal, Uçar, "Scheduling
    series-parallel task graphs to minimize peak memory" (2018). Left out: their polynomial
    algorithms for trees and series-parallel graphs.
    """
    scheduled = ScheduledGraph.of(graph, copied=copied)
    tasks = Tasks.of(scheduled, (sizes, *also), scratch or {})
    limits = Limits(seconds, max_steps)
    search = OrderSearch(
        tasks, units_of(tasks), limits, random.Random(seed), progress or (lambda _: None)
    )
    return _improved(scheduled, search, seed)


def _improved(scheduled: ScheduledGraph, search: OrderSearch, seed: int) -> Order:
    """What a search comes to, beside the order that is given."""
    tasks, limits, bound = search.tasks, search.limits, search.bound
    given_bytes = tasks.peak_bytes(range(len(tasks.nodes)))
    if given_bytes > bound:
        search.improve()
        bound = search.bound if tasks.is_regular else bound
    peak = tasks.peak_bytes(search.order)
    best = min(peak, given_bytes)
    stop = StopReason.OPTIMAL if best <= bound else limits.reached() or StopReason.SETTLED
    schedule = scheduled.schedule
    if peak < given_bytes:
        schedule = _with_views(scheduled, tasks, search.order)
    return Order(schedule, given_bytes, best, bound, stop, limits.steps, seed)


def _with_views(scheduled: ScheduledGraph, tasks: Tasks, order: Sequence[int]) -> tuple[Node, ...]:
    """The schedule: each view just before the first node that reads it, or behind its base."""
    views, placed = scheduled.views, set[Node]()
    schedule: list[Node] = []
    waiting: dict[Node, list[Node]] = {}
    executable = set(scheduled.schedule)
    for node in scheduled.schedule:
        if node in views:
            waiting.setdefault(views[node], []).append(node)

    def put(node: Node) -> None:
        missing = [node]
        while missing:
            parents = missing[-1].inputs if missing[-1] in views else ()
            if parents and parents[0] in views and parents[0] not in placed:
                missing.append(parents[0])
                continue
            last = missing.pop()
            if last not in placed and last in executable:
                placed.add(last)
                schedule.append(last)

    used = {parent for node in scheduled.schedule for parent in node.inputs}
    for node in [base for base in waiting if base not in executable]:
        for view in waiting[node]:
            if view not in used:
                put(view)
    for task in order:
        node = tasks.nodes[task]
        for parent in node.inputs:
            if parent in views:
                put(parent)
        put(node)
        for view in waiting.get(node, ()):
            if view not in used:
                put(view)
    return tuple(schedule)
