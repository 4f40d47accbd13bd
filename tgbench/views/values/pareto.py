"""How fast the best plan is as the memory it may use grows: a point per budget, each with its plan.

time │ ●──┐
     │    ●──┐
     │       │
     │       ●─────●
     └──────────────────→ bytes of the arena
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tgbench.base import words
from tgbench.base.errors import BudgetError, PlanError, WidgetError, check_number
from tgbench.base.words import counted, format_bytes, format_time, shorten
from tgbench.plans.background.process import BackgroundSearch
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.plans.search.effort import Effort, Mode
from tgbench.session.session import GraphSession
from tgbench.views.draw.curves import Axis, Series, chart

POLL_S = 0.05
POINTS = 6  # budgets that are tried where none are named
NEAR = 1.06  # times: how near the least budget is looked for
STEPS = 32  # of the search for each


Made = TypeVar("Made", Decisions, Plan)
Unit: TypeAlias = tuple[float, str]
TIME_UNITS: Sequence[Unit] = (*words.UNITS, (1.0, "ns"))
BYTE_UNITS: Sequence[Unit] = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def _unit(values: npt.NDArray[np.float64], units: Sequence[Unit]) -> Unit:
    """The largest unit that the largest value reaches."""
    most = values.max(initial=0.0)
    return next((unit for unit in units if most >= unit[0]), units[-1])


@dataclass(frozen=True)
class Point:
    """The best plan that was found for one budget."""

    budget_bytes: int
    plan: Plan

    @property
    def time_ns(self) -> float:
        """The expected mean run."""
        return self.plan.expected_ns

    @property
    def bound_ns(self) -> float:
        """No plan within the budget is modelled faster; 0 where nothing is known."""
        record = self.plan.search
        return 0.0 if record is None else record.bound_ns

    def __str__(self) -> str:
        kept = counted(len(self.plan.retained), "node")
        return (
            f"within {format_bytes(self.budget_bytes)}: {format_time(self.time_ns)} a run in "
            f"{format_bytes(self.plan.size_bytes)}, {kept} retained"
        )


@dataclass(frozen=True)
class Curve:
    """Points in order of their budgets.

    Fields:
        least_bytes: the smallest budget that was found to work.
        refused_bytes: the largest one that was tried in vain.
    """

    points: tuple[Point, ...]
    least_bytes: int = 0
    refused_bytes: int = 0

    @property
    def bounds(self) -> list[tuple[int, float]]:
        """(budget, nanoseconds) of a line that no plan is below: what is proved of a budget holds
        for all smaller ones, down to the next of which something is known.
        """
        known = [(p.budget_bytes, p.bound_ns) for p in self.points if p.bound_ns]
        falls = [(size, ns) for (size, _), (_, ns) in pairwise(known)]
        return [known[0], *chain.from_iterable(zip(falls, known[1:], strict=True))] if known else []

    def columns(self) -> dict[str, Any]:
        """Plain columns for a script."""
        return {
            "budget": np.array([p.budget_bytes for p in self.points], np.float64),
            "size": np.array([p.plan.size_bytes for p in self.points], np.float64),
            "time": np.array([p.time_ns for p in self.points], np.float64),
            "bound": np.array([p.bound_ns for p in self.points], np.float64),
            "words": [str(p) for p in self.points],
        }

    def rows(self) -> list[list[str]]:
        """A row a point: the text alternative."""
        return [
            [
                format_bytes(p.budget_bytes), format_bytes(p.plan.size_bytes),
                format_time(p.time_ns), str(len(p.plan.retained)),
            ]
            for p in self.points
        ]  # fmt: skip

    def to_plotly(self) -> Any:
        """The curve as a figure of Plotly, to zoom and to lay beside others.

        Raises WidgetError where plotly is not installed.

        >>> Curve(()).to_plotly().layout.yaxis.title.text
        'mean run, ns'
        """
        try:
            from plotly import graph_objects
        except ModuleNotFoundError as error:
            raise WidgetError(
                f"the figure needs {error.name}; install it with: pip install 'tgbench[lab]'"
            ) from error
        columns = self.columns()
        byte, size_unit = _unit(columns["size"], BYTE_UNITS)
        ns, time_unit = _unit(columns["time"], TIME_UNITS)
        figure = graph_objects.Figure()
        lines = (("best plan", "size", "time", "solid"), ("bound", "budget", "bound", "dash"))
        for name, across, key, dash in lines:
            known = np.where(columns[key] > 0, columns[key], np.nan)
            if np.isfinite(known).any():
                figure.add_scatter(
                    x=columns[across] / byte, y=known / ns, name=name, text=columns["words"],
                    mode="lines+markers", line_dash=dash,
                )  # fmt: skip
        figure.update_layout(
            xaxis_title=f"memory, {size_unit}", yaxis_title=f"mean run, {time_unit}"
        )
        return figure

    def __str__(self) -> str:
        budgets = counted(len(self.points), "budget")
        lines = [f"{budgets}; the least is {format_bytes(self.least_bytes)}"]
        return "\n".join([*lines, *(f"  {point}" for point in self.points)])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self), "text/plain": str(self)}


def curve(
    session: GraphSession,
    budgets: Iterable[int] | None = None,
    mode: Mode = "search",
    *,
    seconds: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Curve:
    """The best plan for each budget; the session stays as it is.

    A plan for less memory is where the search for more begins, so that time never rises.

    Args:
        budgets: in bytes; from the least one to what keeps everything, if none are named.
        mode, seed: as in `session.optimize`.
        seconds, steps: of each budget; 32 steps if neither is given.

    Raises TraceError for a session that nothing ran in, BudgetError if no budget works, PlanError
    for budgets that are none.
    """
    given = None if budgets is None else _checked(budgets)
    say = progress or (lambda message: None)
    task = session.search(mode, seed=seed).task
    optimiser = replace(task, start_json=None, budget_bytes=None).optimiser()
    effort = _effort(seconds, steps)

    def best(
        budget_bytes: int | None, less: Decisions | None = None, mode: Mode = mode
    ) -> Decisions:
        optimiser.budget_bytes = budget_bytes
        start = None if less is None else replace(less, search=None)
        return optimiser.run(mode, effort, seed, start)

    greedy = partial(best, mode="greedy")
    floor = Floor(greedy(None).placement.size_bytes)
    most = floor.works_bytes
    while given is None and (budget_bytes := floor.next_bytes) is not None:
        try:
            floor.told(budget_bytes, greedy(budget_bytes).placement.size_bytes)
        except BudgetError:
            floor.told(budget_bytes, None)
    wanted = given if given is not None else _spaced(floor.works_bytes, most)
    found, made = [], None
    for i, budget_bytes in enumerate(wanted):
        say(f"{i + 1}/{len(wanted)} {format_bytes(budget_bytes)}")
        try:
            made = _no_slower(best(budget_bytes, made), made)
        except BudgetError as error:
            floor.refused_bytes, refused = max(floor.refused_bytes, budget_bytes), error
            continue
        plan = Plan.of(
            session.graph, made, session.device, budget_bytes, session.exact, session.path
        )
        found.append(Point(budget_bytes, plan))
    if not found:
        raise refused
    return Curve(tuple(found), found[0].plan.size_bytes, floor.refused_bytes)


def _checked(budgets: Iterable[int]) -> list[int]:
    """In order, at least one; raises PlanError otherwise."""
    mend = "pass some numbers of bytes, or None for some from the least to what keeps everything"
    found = list(budgets) if isinstance(budgets, Iterable) else []
    if isinstance(budgets, str) or not found:
        raise PlanError(f"budgets={shorten(budgets)} names no budget; {mend}")
    for budget_bytes in found:
        check_number(PlanError, "a budget", budget_bytes, 1, whole=True, optional=False)
    return sorted(found)


def _no_slower(found: Made, less: Made | None) -> Made:
    """What was found, unless the plan for less memory is faster: it fits as well. A search by the
    clock may not have had the time to walk the whole trace with either.
    """
    if less is None or found.expected_ns <= less.expected_ns:
        return found
    if less.search is None or found.search is None:
        return less
    return replace(less, search=replace(less.search, bound_ns=found.search.bound_ns))


@dataclass
class Floor:
    """Where budgets begin to work: halves until one does not, then closes in on a factor of NEAR.

    What an error calls the smallest budget that works is the smallest of what it tried; with runs
    cut in more parts a smaller one may.

    Fields:
        works_bytes: the smallest budget that worked.
        refused_bytes: the largest that did not; 0 as long as all did.
    """

    works_bytes: int
    refused_bytes: int = 0

    @property
    def next_bytes(self) -> int | None:
        """The budget to try next; None where that is known well enough."""
        if not self.refused_bytes:
            return self.works_bytes // 2 or None
        if self.works_bytes <= NEAR * self.refused_bytes:
            return None
        return int(math.sqrt(self.works_bytes * self.refused_bytes))

    def told(self, budget_bytes: int, size_bytes: int | None) -> None:
        """A budget was tried: how large its plan is, or None."""
        if size_bytes is None:
            self.refused_bytes = budget_bytes
        else:
            self.works_bytes = min(size_bytes, budget_bytes)


def _effort(seconds: float | None, steps: int | None) -> Effort:
    return Effort(seconds, STEPS if seconds is None and steps is None else steps)


def _spaced(least: int, most: int) -> list[int]:
    ratio = (most / least) ** (1 / (POINTS - 1))
    return sorted({*(math.ceil(least * ratio**i) for i in range(POINTS - 1)), most})


async def curve_async(
    session: GraphSession,
    mode: Mode = "search",
    *,
    seconds: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    told: Callable[[Curve], None] | None = None,
) -> Curve:
    """`curve` in a process of its own, one budget after the other: a notebook goes on beside it.

    `told` is called with every longer curve. Raises what `curve` raises.
    """
    task = replace(session.search(mode, seed=seed).task, start_json=None)
    effort = _effort(seconds, steps)
    with BackgroundSearch(task, mode, seed) as search:

        async def best(
            budget_bytes: int | None, less: Plan | None = None, mode: Mode = mode
        ) -> Plan:
            search.mode = mode
            search.within(budget_bytes, None if less is None else replace(less, search=None))
            search.start(effort.seconds, effort.steps)
            while search.is_running:
                await asyncio.sleep(POLL_S)
            return search.result()

        most = (await best(None, mode="greedy")).size_bytes
        floor = Floor(most)
        while (budget_bytes := floor.next_bytes) is not None:
            try:
                floor.told(budget_bytes, (await best(budget_bytes, mode="greedy")).size_bytes)
            except BudgetError:
                floor.told(budget_bytes, None)
        points: list[Point] = []
        plan = None
        for budget_bytes in _spaced(floor.works_bytes, most):
            plan = _no_slower(await best(budget_bytes, plan), plan)
            points.append(Point(budget_bytes, plan))
            if told is not None:
                told(Curve(tuple(points), floor.works_bytes, floor.refused_bytes))
    return Curve(tuple(points), floor.works_bytes, floor.refused_bytes)


def to_svg(shown: Curve) -> str:
    """The curve as one SVG."""
    points = [(p.plan.size_bytes, p.time_ns, str(p)) for p in shown.points]
    series = [Series("best plan", points, is_stepped=True)]
    proved = {(p.budget_bytes, p.bound_ns) for p in shown.points}
    if bounds := [(*at, _proved(*at) if at in proved else "") for at in shown.bounds]:
        series.append(Series("bound", bounds, "b", is_dashed=True))
    size = Axis("memory", lambda b: format_bytes(int(b)), base=2)
    return chart("expected time by memory", series, size, Axis("mean run", format_time))


def _proved(budget_bytes: int, bound_ns: float) -> str:
    return f"no plan within {format_bytes(budget_bytes)} is below {format_time(bound_ns)} a run"
