"""A search that a notebook goes on beside: start, watch, stop, resume, fork; and its picture.

    run = session.optimize_async(seconds=60)     returns at once
    run.stop()                                   the best plan so far, in force
    run.resume(seconds=60)                       goes on from it
    plan = await run                             or wait for the end

The search has a process of its own (`search.process`). A task on the notebook's event loop looks
after it ten times a second: no thread changes anything here, and no cell has to block.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tgbench.base.errors import BudgetError, PlanError, SearchError, TgbenchError
from tgbench.base.stopping import StopReason
from tgbench.base.words import format_time
from tgbench.plans.background.messages import Event
from tgbench.plans.background.process import BackgroundSearch
from tgbench.plans.decisions import SearchRecord
from tgbench.plans.plan import Plan
from tgbench.plans.planner import IN_PIECES
from tgbench.plans.search.effort import Mode
from tgbench.plans.search.layouts import SAMPLED
from tgbench.plans.search.plan_search import LaidOut
from tgbench.plans.search.rounds import Neighbourhood
from tgbench.session.session import GraphSession
from tgbench.views.draw.curves import Axis, Series, chart

POLL_S = 0.1
GRACE_S = 0.3  # what a search has to answer a stop; then its process ends, and its best plan counts
IDLE_S = 120.0  # how long a process waits for `resume`
MOST_TRIED, MOST_WINDOWS = 200, 40  # plans and windows that are remembered
MOST_POINTS = 4000  # of a history; past that, every second one goes


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a search stood.

    Fields:
        seconds: since the first start, without the time between stop and resume.
        best_ns, bound_ns: mean run of the best plan, and what none is faster than; 0: none so far.
    """

    seconds: float
    step: int
    best_ns: float
    bound_ns: float
    message: str = ""

    @property
    def gap(self) -> float:
        """How far the best may be from the optimum, as a share of the bound."""
        return max(self.best_ns / self.bound_ns - 1.0, 0.0) if self.bound_ns else math.inf


@dataclass(frozen=True)
class History:
    """What a search told, in order."""

    moments: tuple[Moment, ...]

    @property
    def last(self) -> Moment:
        return self.moments[-1] if self.moments else Moment(0.0, 0, 0.0, 0.0)

    @property
    def steps_per_second(self) -> float:
        """Over the last ten seconds that it told of."""
        told = [m for m in self.moments if m.seconds >= self.last.seconds - 10.0]
        span = told[-1].seconds - told[0].seconds if told else 0.0
        return (told[-1].step - told[0].step) / span if span > 0 else 0.0

    def columns(self) -> dict[str, Any]:
        """Plain columns for a script; moments before there was a plan are left out."""
        known = [m for m in self.moments if m.best_ns]
        return {
            "seconds": np.array([m.seconds for m in known], np.float64),
            "step": np.array([m.step for m in known], np.float64),
            "best": np.array([m.best_ns for m in known], np.float64),
            "bound": np.array([m.bound_ns for m in known], np.float64),
        }

    def __str__(self) -> str:
        last = self.last
        if not last.best_ns:
            return last.message or "no plan yet"
        bound = f", bound {format_time(last.bound_ns)}, gap {last.gap:.1%}" if last.bound_ns else ""
        return f"step {last.step}, best {format_time(last.best_ns)}{bound}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """As long as there is no plan there is nothing to draw."""
        picture = {"image/svg+xml": to_svg(self)} if self.last.best_ns else {}
        return {**picture, "text/plain": str(self)}


@dataclass(frozen=True)
class Listed:
    """A plan in the list of those that were laid out.

    Fields:
        number: among the candidates; −1 where none of them decides what the best plan does.
        is_best: it is the best plan, with the numbers that are known of it now.
        why: why another one counts as better though this is faster; "" where it is not.
    """

    laid_out: LaidOut
    number: int
    is_best: bool = False
    why: str = ""

    @staticmethod
    def all_of(candidates: Sequence[LaidOut], best: LaidOut | None, same: int) -> list[Listed]:
        """`same` is which of them the best plan is; −1 if it is none."""
        if best is None:
            return [Listed(one, i) for i, one in enumerate(candidates)]
        others = [
            Listed(one, i, why=passed_over(one, best))
            for i, one in enumerate(candidates)
            if i != same
        ]
        return sorted(
            [*others, Listed(best, same, is_best=True)], key=lambda row: row.laid_out.time_ns
        )


def passed_over(one: LaidOut, best: LaidOut) -> str:
    """Why the best plan counts as better than one that is faster; see `plan_search`, `judge`.

    What passes between parts is not modelled, and examples of runs may be off from all of them. The
    best plan was replayed on more runs, and more of its kernels were timed, than when it was found.

    >>> passed_over(LaidOut(95.0, 64, 2, 8), LaidOut(100.0, 64, 2, 4))
    'in more parts, and not 20 % faster'
    >>> passed_over(LaidOut(99.9, 128, 2, 1), LaidOut(100.0, 64, 2, 1))
    'larger, and not 0.2 % faster'
    """
    if one.time_ns >= best.time_ns:
        return ""
    if one.parts > best.parts and one.time_ns * IN_PIECES >= best.time_ns:
        return f"in more parts, and not {100 * (IN_PIECES - 1):.0f} % faster"
    if one.size_bytes > best.size_bytes and best.time_ns <= one.time_ns * (1 + SAMPLED):
        return f"larger, and not {100 * SAMPLED:.1f} % faster"
    return "its time stands on fewer runs or kernels than the best one's"


def _numbers(plan_json: str) -> LaidOut:
    """A plan as those in the list."""
    plan = Plan.from_json(plan_json)
    kept = {*plan.retained, *(slot.node for slot in plan.slots if slot.through is not None)}
    return LaidOut(plan.expected_ns, plan.size_bytes, len(kept), plan.cut[2], plan_json)


def _decided(plan_json: str) -> Any:
    """What a plan keeps and where it cuts; where that lies may be packed in several ways."""
    plan = Plan.from_json(plan_json)
    return plan.retained, plan.cut, [(slot.node, slot.through) for slot in plan.slots]


PHASES = (  # how what is told begins, and what is going on then
    ("bounding", "bound"), ("integer program", "bound"), ("step", "search"),
    ("retention", "search"), ("no plan", "spawn"), ("starting", "spawn"), ("", "weigh"),
)  # fmt: skip


def phase_of(message: str) -> str:
    """What a search does when it says this: spawn, weigh, bound or search.

    >>> phase_of("weighing 1/14 gather"), phase_of("bounding uncut runs"), phase_of("step 16: best")
    ('weigh', 'bound', 'search')
    """
    if not message:
        return "spawn"
    return next(phase for words, phase in PHASES if message.startswith(words))


def words_of_window(window: Neighbourhood) -> str:
    """Which values were decided anew, and what that gained.

    >>> words_of_window(Neighbourhood(7, ("a", "b", "c"), ("a",), ("c",), 100.0, 95.0, True))
    'step 7: 3 values from a to c decided anew: 5.0 % faster, a kept, c dropped'
    """
    values, gain = window.values, 1 - window.after_ns / window.before_ns
    which = f"{len(values)} values from {values[0]} to {values[-1]}" if values else "no values"
    if gain <= 0:
        found = "nothing faster" if window.is_optimal else "nothing faster within its limits"
        return f"step {window.step}: {which} decided anew: {found}"
    changes = [(window.kept, "kept"), (window.dropped, "dropped")]
    told = [f"{', '.join(v[:3])}{' …' * (len(v) > 3)} {what}" for v, what in changes if v]
    found = ", ".join([f"{100 * gain:.1f} % faster", *told])
    return f"step {window.step}: {which} decided anew: {found}"


def history_of(record: SearchRecord) -> History:
    """What a plan says of the search that found it; its steps stand for seconds."""
    told = [*record.history, (record.steps, record.best_ns)]
    moments = (Moment(float(s), s, ns, record.bound_ns, "step") for s, ns in told)
    return History(tuple(moments))


def to_svg(shown: History, across: str = "seconds") -> str:
    """Best so far and bound over time as one SVG."""
    known = [m for m in shown.moments if m.best_ns]
    better = [
        (m.seconds, m.best_ns, format_time(m.best_ns) if is_new else "")
        for m, is_new in zip(known, _news(known), strict=True)
    ]
    series = [Series("best plan so far", better, is_stepped=True)]
    bounds = [(m.seconds, m.bound_ns, "") for m in known if m.bound_ns]
    if bounds:
        series.append(
            Series("bound: no plan is faster", bounds, "b", is_dashed=True, is_stepped=True)
        )
    seconds = Axis(across, lambda value: f"{value:.4g}", has_zero=True)
    return chart(str(shown), series, seconds, Axis("mean run", format_time))


def _news(moments: Sequence[Moment]) -> list[bool]:
    before = [math.inf, *(m.best_ns for m in moments)]
    return [m.best_ns < old for m, old in zip(moments, before, strict=False)]


class SearchRun:
    """A search of `session`, watched from the event loop; see the module's first lines.

    Nothing in it blocks but `stop`, for a third of a second. What it finds is put in force when
    a leg of it is over. Await it for the plan, or read `plan` at any time.
    """

    def __init__(
        self,
        session: GraphSession,
        mode: Mode = "search",
        *,
        seed: int = 0,
        workers: int = 1,
        start: Plan | None = None,
    ) -> None:
        self.session, self.mode, self.seed, self.workers = session, mode, seed, workers
        made = session.search(mode, seed=seed, workers=workers)
        task = replace(made.task, start_json=start.to_json()) if start is not None else made.task
        if _is_too_large(session, start):
            task = replace(task, start_json=None)
        self._search = BackgroundSearch(task, mode, seed, workers)
        self._moments: list[Moment] = []
        self._watchers: list[Callable[[], None]] = []
        self._watch: asyncio.Task[Plan] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spent_s, self._began, self._is_stopped = 0.0, 0.0, False
        self._plan: Plan | None = None
        self._best: LaidOut | None = None
        self._as_best: dict[LaidOut, bool] = {}  # whether one decides what the best plan does
        self._tried: deque[LaidOut] = deque(maxlen=MOST_TRIED)
        self._windows: deque[Neighbourhood] = deque(maxlen=MOST_WINDOWS)
        self.failure: TgbenchError | None = None
        self.otherwise_bytes = session.budget_bytes  # the budget again, if nothing is found

    # --- what it is doing ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Until what it found is in force, or what is wrong is known."""
        return self._search.is_running or self._began > 0.0

    @property
    def history(self) -> History:
        """All that it told so far, of every leg."""
        return History(tuple(self._moments))

    @property
    def candidates(self) -> tuple[LaidOut, ...]:
        """Plans that were laid out and replayed, the fastest first."""
        told = {(one.time_ns, one.size_bytes, one.kept, one.parts): one for one in self._tried}
        return tuple(sorted(told.values(), key=lambda one: (one.time_ns, one.size_bytes)))

    @property
    def listed(self) -> list[Listed]:
        """The candidates, the fastest first, with the best plan among them."""
        found, best = self.candidates, self._best
        if best is None:
            return Listed.all_of(found, None, -1)
        alike = [i for i, one in enumerate(found) if one.parts == best.parts]
        decided = _decided(best.plan_json)
        self._as_best = {
            found[i]: self._as_best[found[i]]
            if found[i] in self._as_best
            else _decided(found[i].plan_json) == decided
            for i in alike
        }
        same = [i for i in alike if self._as_best[found[i]]]
        nearest = min(same, key=lambda i: abs(found[i].size_bytes - best.size_bytes), default=-1)
        return Listed.all_of(found, best, nearest)

    @property
    def windows(self) -> tuple[Neighbourhood, ...]:
        """What was decided anew, in order; the last ones."""
        return tuple(self._windows)

    @property
    def refused_bytes(self) -> int:
        """The budget within which nothing fits, if that is how it ended; else 0."""
        return self.failure.budget_bytes if isinstance(self.failure, BudgetError) else 0

    @property
    def records(self) -> str:
        """The measurements that its times stand on; see `Plan`."""
        return self._search.task.costs.basis

    @property
    def plan(self) -> Plan | None:
        """What the last leg found; None before the first is over."""
        return self._plan

    def watch(self, seen: Callable[[], None]) -> Callable[[], None]:
        """Call `seen` when something changes; returns what ends that."""
        self._watchers.append(seen)
        return lambda: self._watchers.remove(seen)

    # --- what it is told -------------------------------------------------------------------------

    def start(self, seconds: float | None = None, steps: int | None = None) -> SearchRun:
        """Search, from the best plan so far; returns at once.

        Raises SearchError where no event loop runs, and while it is running.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise SearchError(
                "no event loop runs here, so nothing would look after the search; in a script "
                "call `session.optimize`, or `await` inside `asyncio.run`"
            ) from error
        self._search.start(seconds, steps)
        self._sleep_never()
        self._began, self.failure, self._is_stopped = time.monotonic(), None, False
        self._loop = loop
        self._watch = loop.create_task(self._look_after())
        self._watch.add_done_callback(_look_at_failure)
        self._tell()
        return self

    def resume(self, seconds: float | None = None, steps: int | None = None) -> SearchRun:
        """Go on from the best plan so far: another name of `start`."""
        return self.start(seconds, steps)

    def stop(self) -> Plan:
        """End the search and put its best plan in force; the plan.

        Raises SearchError if it found none so far.
        """
        if not self.is_running and self._plan is not None:
            return self._plan
        self._is_stopped = True
        with suppress(TgbenchError):  # `_end` tells what is wrong
            self._search.stop(GRACE_S)
        return self._end()

    def fork(self, seed: int | None = None) -> SearchRun:
        """Another search from the best plan so far, with another seed; not started yet."""
        return SearchRun(
            self.session,
            self.mode,
            seed=self.seed + 1 if seed is None else seed,
            workers=self.workers,
            start=self._plan,
        )

    def close(self) -> None:
        """End the process; what was found stays."""
        self._sleep_never()
        if self._watch is not None and not self._watch.done():
            self._watch.cancel()
        self._began = 0.0
        self._search.close()

    def __await__(self) -> Generator[Any, None, Plan]:
        if self._watch is None:
            raise SearchError("this search was not started; call `start` first")
        return asyncio.shield(self._watch).__await__()

    # --- looking after it ------------------------------------------------------------------------

    async def _look_after(self) -> Plan:
        while self._search.is_running:
            if self._take(self._search.poll()):
                self._tell()
            await asyncio.sleep(POLL_S)
        return self._end()

    def _take(self, events: Sequence[Event]) -> bool:
        now = self._spent_s + time.monotonic() - self._began
        for event in events:
            self._moments.append(
                Moment(now, event.step, event.best_ns, event.bound_ns, event.message)
            )
            self._tried.extend(event.tried)
            self._windows.extend(event.windows)
            if event.plan_json is not None:
                self._best_is(event.plan_json)
        if len(self._moments) > MOST_POINTS:
            self._moments = [*self._moments[:-1:2], self._moments[-1]]
        return bool(events)

    def _end(self) -> Plan:
        """The leg is over: its plan, in force. Whoever comes first, stop or watch, does it."""
        if self._began:
            self._take(self._search.poll())
            self._spent_s += time.monotonic() - self._began
            self._began = 0.0
            self._sleep_later()
            try:
                self._plan = self._search.result()
                self._conclude(self._plan)
                if self._plan != self._in_force():
                    self.session.adopt(self._plan)
            except TgbenchError as error:
                self.failure = error
                self.session.budget_bytes = self.otherwise_bytes
            self._tell()
        if self.failure is not None:
            raise self.failure
        assert self._plan is not None
        return self._plan

    def _best_is(self, plan_json: str) -> None:
        self._best, self._as_best = _numbers(plan_json), {}

    def _conclude(self, plan: Plan) -> None:
        """What a leg proved after the last time that it told of itself counts."""
        self._best_is(plan.to_json())
        if plan.search is not None:
            found = plan.search
            self._moments.append(
                Moment(self._spent_s, found.steps, found.best_ns, found.bound_ns, "step")
            )

    def _in_force(self) -> Plan | None:
        return self.session.plan if self.session.is_planned else None

    def _sleep_later(self) -> None:
        """Nobody resumes for long: the process goes, and a later `resume` starts another."""
        if self._loop is not None and not self._loop.is_closed():
            self._idle = self._loop.call_later(IDLE_S, self._search.close)

    def _sleep_never(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _tell(self) -> None:
        for seen in tuple(self._watchers):
            seen()

    def __str__(self) -> str:
        if not self.is_running and self._is_stopped and self._plan is None:
            return "stopped before there was a plan"
        state = "searching" if self.is_running else f"ended: {self._why()}"
        return f"{state}; {self.history}"

    def _why(self) -> str:
        if self.failure is not None:
            return str(self.failure)
        if self._plan is not None and self._plan.unsearched:
            return self._plan.unsearched
        record = self._plan.search if self._plan is not None else None
        return ended(record) if record is not None else "not started"


ENDS = {  # what does not explain itself
    StopReason.STEPS: "all steps taken",
    StopReason.SECONDS: "time is over",
}


def ended(record: SearchRecord) -> str:
    """Why a search was over, for people."""
    return ENDS.get(record.stop, str(record.stop))


def _look_at_failure(watch: asyncio.Task[Plan]) -> None:
    """Nobody may ever await it: `failure` tells all the same."""
    if not watch.cancelled():
        watch.exception()


def _is_too_large(session: GraphSession, start: Plan | None) -> bool:
    """Whether a search cannot go on from the plan at hand, as the budget is smaller now."""
    begin = start if start is not None else (session.plan if session.is_planned else None)
    budget_bytes = session.budget_bytes
    return begin is not None and budget_bytes is not None and begin.size_bytes > budget_bytes


def optimize_async(
    session: GraphSession,
    mode: Mode = "search",
    seconds: float | None = None,
    budget: int | str | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    workers: int = 1,
) -> SearchRun:
    """`session.optimize` in a process of its own, watched from the notebook; returns at once.

    Args:
        mode, seconds, budget, steps, seed, workers: as in `session.optimize`.

    Raises SearchError where no event loop runs; what `session.search` raises.
    """
    before = session.budget_bytes
    if session.retain == "all":
        raise PlanError("retain='all' leaves nothing to search; make the session without it")
    with session.budgeted(budget):
        run = SearchRun(session, mode, seed=seed, workers=workers)
        run.otherwise_bytes = before
        return run.start(seconds, steps)
