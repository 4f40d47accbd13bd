"""The screen: all panels of a session in one widget, or some of a plan, a graph, a map.

┌ 17.3 µs · 12.9 of 14 KiB · gap 2.9 %   in force ──────────┐
│ frontier │ memory through time, layers      │ inspector   │   what is chosen in one
│ search   │  (graph, program, comparison)    │             │   is chosen in all
│ tree     ├──────────────────────────────────┤             │
│          │ classes of runs                  │             │
└──────────┴──────────────────────────────────┴─────────────┘

    Python                                    browser
    Screen.memory, fates, … (bytes) ──────→    a panel each draws
    Screen.selected, step, bucket   ←─────→    clicks, keys
    Screen.answers[what](request)   ←─ ask ─   the reply goes back, in words

JavaScript draws and Python decides. A panel's buffer is built again when something changed that it
hears (`parts.PARTS`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tgbench.base.errors import (
    BudgetError,
    SearchError,
    TgbenchError,
    WidgetError,
    check_choice,
)
from tgbench.base.words import format_bytes, format_time, shorten
from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.views.draw.tables import TextTable
from tgbench.views.panels.board import LOOKING, PathsBoard
from tgbench.views.panels.parts import PARTS, What, payload
from tgbench.views.panels.scripts import module, style
from tgbench.views.panels.subject import Chosen, Proposal, Replaced, Shown, Subject
from tgbench.views.values import graphs, pareto, timeline
from tgbench.views.values.pareto import Curve, curve_async
from tgbench.views.values.runs import fates
from tgbench.views.values.search import SearchRun, optimize_async

if TYPE_CHECKING:
    import pandas as pd

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise WidgetError(
        f"interactive views need {error.name}; install them with: pip install 'tgbench[lab]'"
    ) from error

SECONDS = 30.0  # of a leg of the search, unless the screen is told otherwise
MOST_STATIC = 600  # rectangles in the picture that every notebook with the screen carries
MOST_ROWS = 400  # of the text alternative
MOST_DOT = 20_000  # nodes of a graph that is copied as Graphviz source
SCRIPT = "screen.js"


def _buffer() -> Any:
    return traitlets.Bytes(b"").tag(sync=True)


class Screen(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
    """See the module's first lines.

    Args:
        shown: a session, a plan or its file, a graph, a memory map, a search, a curve.
        graph: what a plan is for; without it, no changes, and live ranges as far as a plan tells.
        against: another plan, or its file, to compare with.
        panels: which; None for all that there is something to show in.
        seconds: of a leg of the search that is started here.

    Traits:
        selected, step, bucket: nodes, a schedule step or −1, a class of runs in words or "".
        remark: the line that says what came of the last gesture.

    Raises PlanError for a session that nothing ran in, a damaged plan, a plan of another graph or
    model, WidgetError for what cannot be shown and for a panel that there is not.
    """

    _esm: ClassVar[str] = module(SCRIPT)
    _css: ClassVar[str] = style()
    answers: ClassVar[Mapping[str, str]] = {
        "move": "_move", "pin": "_pin", "drop": "_drop", "undo": "_undo", "use": "_use",
        "dismiss": "_dismiss", "point": "_point", "candidate": "_candidate", "budgets": "_budgets",
        "start": "_start", "stop": "_stop", "fork": "_fork", "budget": "_budget", "json": "_json",
        "code": "_code", "fold": "_fold", "dot": "_dot", "ways": "_ways", "more_ways": "_more_ways",
        "way": "_way", "measure": "_measure", "halt": "_halt", "take": "_take", "beside": "_beside",
    }  # fmt: skip

    panels: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    header: Any = _buffer()
    memory: Any = _buffer()
    fates: Any = _buffer()
    graph: Any = _buffer()
    program: Any = _buffer()
    paths: Any = _buffer()
    compare: Any = _buffer()
    frontier: Any = _buffer()
    inspector: Any = _buffer()
    classes: Any = _buffer()
    label: Any = traitlets.Unicode("").tag(sync=True)
    table: Any = traitlets.Dict().tag(sync=True)
    selected: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    step: Any = traitlets.Int(-1).tag(sync=True)
    bucket: Any = traitlets.Unicode("").tag(sync=True)
    remark: Any = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        shown: Shown,
        graph: Graph | None = None,
        *,
        against: Any = None,
        panels: Sequence[str] | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self.subject = Subject.of(shown, graph)
        if against is not None:
            self.subject.compare(against)
        self.seconds, self.gestures = seconds, list[str]()
        self._trying: asyncio.Task[None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._seen = self._standing()
        made = {name: payload(name, self.subject, Chosen()) for name in _named(panels)}
        super().__init__(
            panels=[name for name in made if made[name] or self._may_come(name)], **made,
            **self._alternative(),
        )  # fmt: skip
        self.observe(lambda _: self.tell("nodes"), "selected")
        self.observe(lambda _: self.tell("bucket"), "bucket")
        self.on_msg(self._asked)
        if self.subject.search is not None:
            self._follow(self.subject.search)
        _after_every_cell(self)

    # --- what is shown ---------------------------------------------------------------------------

    @property
    def session(self) -> GraphSession:
        """Raises WidgetError where there is none to steer."""
        if self.subject.session is None:
            raise WidgetError("this is a plan alone: there is no session to steer")
        return self.subject.session

    def _may_come(self, name: str) -> bool:
        """Whether a panel that is empty now may have something to show later."""
        subject = self.subject
        return subject.graph is not None and subject.plan is not None and name == "compare"

    @property
    def chosen(self) -> Chosen:
        return Chosen(tuple(self.selected), self.step, self.bucket)

    @property
    def search(self) -> SearchRun | None:
        """The search that is watched here."""
        return self.subject.search

    def tell(self, *what: What) -> None:
        """Something changed: the panels that hear it are built again."""
        changed = {n: p for n, p in PARTS.items() if n in self.panels and p.hears & set(what)}
        with self.hold_sync():
            for name in changed:
                setattr(self, name, payload(name, self.subject, self.chosen))
            if not {"plan", "proposal"}.isdisjoint(what):
                for name, value in self._alternative().items():
                    setattr(self, name, value)

    def refresh(self, replaced: Replaced | None = None) -> None:
        """Look whether the session ran, or has another plan; after every cell this is called.

        `replaced` is what was in force before, where that plan was put in force here.
        """
        before, now = self._seen, self._standing()
        is_planned_anew = before[0] is not now[0]  # to compare all of two plans takes long
        if not is_planned_anew and before[1] == now[1]:
            return
        self._seen = now
        self.subject.forget()
        what: list[What] = ["run"] if before[1] != now[1] else []
        if is_planned_anew:
            self.subject.proposal, self.subject.replaced = None, replaced
            what += ["plan", "proposal"]
        self.tell(*what)

    def _standing(self) -> tuple[Any, int]:
        session = self.subject.session
        if session is None or not session.is_planned:
            return None, 0
        return session.memory.decisions, session.counters.runs

    def to_frame(self) -> pd.DataFrame:
        """One row a chosen node with bytes: where they lie, from when to when, and its fate."""
        import pandas as pd

        shown = self.subject.shown
        found = self.subject.map_of(shown) if shown is not None else self.subject.timeline
        run = self.subject.run(self.subject.class_at_hand(self.chosen))
        told, names = fates(run) if run is not None else {}, set(self.selected)
        rows = [
            {
                "node": r.name, "kind": r.kind, "offset_bytes": r.offset_bytes,
                "size_bytes": r.size_bytes, "start": r.start, "stop": r.stop,
                "fate": told.get(r.name, "untouched"), "detail": r.detail,
            }
            for r in (found.rectangles if found is not None else ())
            if r.name in names
        ]  # fmt: skip
        columns = ("node", "kind", "offset_bytes", "size_bytes", "start", "stop", "fate", "detail")
        return pd.DataFrame(rows, columns=list(columns))

    def beside(self, anchor: str = "split-right") -> None:
        """Show this screen outside its cell, so that it stays in sight while cells are written.

        Args:
            anchor: where in JupyterLab: "split-right", "tab-after", "right" (the side bar), ….

        Raises WidgetError without the package `sidecar`.
        """
        try:
            from sidecar import Sidecar
        except ModuleNotFoundError as error:
            raise WidgetError(
                "a place beside the notebook needs sidecar; install it with: "
                "pip install 'tgbench[lab]', then load the page again"
            ) from error
        Sidecar(title="tgbench", anchor=anchor).append_display_data(self)

    def _beside(self, _: Mapping[str, Any]) -> str:
        self.beside()
        return "beside the notebook"

    def code(self) -> str:
        """What was done here, as Python that does it to `session`."""
        lines = list(dict.fromkeys(self.gestures))
        lines += [f"session.plan.explain({name!r})" for name in self.selected[:1]]
        return "\n".join(lines) or "session.plan"

    # --- proposals -------------------------------------------------------------------------------

    def propose(self, proposal: Proposal | None) -> str:
        """Show a plan that is not in force, beside the one that is."""
        self.subject.proposal = proposal
        self.tell("proposal")
        again = f"{self.subject.plan_words} again"
        return again if proposal is None else f"proposed: {proposal.origin}"

    def use(self, plan: Plan, code: Sequence[str] = ()) -> str:
        """Put a plan in force, and show it."""
        session, before = self.session, self.subject.plan
        done = tuple(self.gestures)
        replaced = Replaced(before, session.budget_bytes, done) if before is not None else None
        if session.budget_bytes is not None and plan.size_bytes > session.budget_bytes:
            session.budget_bytes = plan.budget_bytes
        session.adopt(plan)
        self.gestures += code
        self.refresh(replaced)
        return f"in force: {format_time(plan.expected_ns)} in {format_bytes(plan.size_bytes)}"

    def _use(self, _: Mapping[str, Any]) -> str:
        proposal = self.subject.proposal
        if proposal is None:
            raise WidgetError("nothing is proposed; click a point, a candidate, or change the map")
        return self.use(proposal.plan, proposal.code)

    def _dismiss(self, _: Mapping[str, Any]) -> str:
        return self.propose(None)

    def _point(self, request: Mapping[str, Any]) -> str:
        """The plan of a budget that was tried."""
        points, number = self.subject.curve.points, int(request["number"])
        if not 0 <= number < len(points):
            raise WidgetError(f"there are {len(points)} points, no point {number}")
        plan, record = points[number].plan, points[number].plan.search
        mode, seed = ("greedy", 0) if record is None else (record.mode, record.seed)
        code = f"session.optimize({mode!r}, budget={plan.budget_bytes}, steps=32, seed={seed})"
        origin = f"the plan for {format_bytes(points[number].budget_bytes)}"
        return self.propose(Proposal(plan, origin, (code,)))

    def _candidate(self, request: Mapping[str, Any]) -> str:
        """A plan that the search laid out."""
        found, number = self._searched().candidates, int(request["number"])
        if not 0 <= number < len(found):
            raise WidgetError(f"there are {len(found)} candidates, no candidate {number}")
        plan = replace(Plan.from_json(found[number].plan_json), records=self._searched().records)
        return self.propose(Proposal(plan, f"candidate {number}", ("# a candidate of the search",)))

    # --- changes by hand -------------------------------------------------------------------------

    def _move(self, request: Mapping[str, Any]) -> dict[str, Any]:
        node, at = str(request["node"]), int(request["offset_bytes"])
        return self._judged(self.subject.ground.moved(node, at))

    def _pin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._judged(self.subject.ground.retained(str(request["node"])))

    def _drop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._judged(self.subject.ground.dropped(str(request["node"])))

    def _undo(self, _: Mapping[str, Any]) -> dict[str, Any] | str:
        """Take the last change back; where none is proposed, the plan that was used."""
        replaced = self.subject.replaced
        if self.subject.proposal is None and replaced is not None:
            self.session.adopt(replaced.plan)
            self.session.budget_bytes = replaced.budget_bytes
            self.gestures = list(replaced.gestures)
            self.refresh()
            return f"in force again: {format_time(replaced.plan.expected_ns)}"
        if not self.subject.ground.changes:
            raise WidgetError("nothing was changed yet")
        return self._judged(self.subject.ground.undone())

    def _judged(self, what: Any) -> dict[str, Any]:
        """The verdict; a change that is valid is proposed, another leaves everything as it was."""
        verdict = what.verdict()
        if verdict.is_valid and not what.changes:
            self.propose(None)
        elif verdict.is_valid:
            imported = "from tgbench.session.what_if import WhatIf"
            code = (imported, f"session.adopt({what.code()})")
            self.propose(Proposal(what.plan, "changed by hand", code, what))
        return {"is_valid": verdict.is_valid, "words": str(verdict)}

    # --- search and frontier ---------------------------------------------------------------------

    def try_budgets(self, seconds: float | None = None) -> None:
        """Find the curve of time by memory in the background; greedy plans if no time is given."""
        loop = asyncio.get_running_loop()
        self._trying = loop.create_task(self._try_budgets(seconds))
        self._trying.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _try_budgets(self, seconds: float | None) -> None:
        mode: Any = "greedy" if seconds is None else "search"
        try:
            self._told(await curve_async(self.session, mode, seconds=seconds, told=self._told))
        except TgbenchError as error:
            self.remark = str(error)

    def _told(self, curve: Curve) -> None:
        self.subject.curve = curve
        self.tell("curve")

    def _budgets(self, _: Mapping[str, Any]) -> str:
        self.try_budgets(self.seconds / pareto.POINTS)
        return "trying budgets, one after the other, in a process of its own"

    def _follow(self, run: SearchRun) -> None:
        self._unwatch()
        self.subject.search, self._unwatch = run, run.watch(self._searching)
        self._searching()

    def _searching(self) -> None:
        run = self._searched()
        if not run.is_running:
            self.remark = str(run)
            if run.plan is not None and run.plan.search is not None and run.failure is None:
                found, budget = run.plan.search, run.plan.budget_bytes
                self.gestures.append(
                    f"session.optimize({found.mode!r}, steps={found.steps}, budget={budget}, "
                    f"seed={run.seed})"
                )
            self.refresh()
        self.tell("search")

    def _searched(self) -> SearchRun:
        if self.subject.search is None:
            raise SearchError("nothing is searched yet; start it first")
        return self.subject.search

    def _start(self, _: Mapping[str, Any]) -> str:
        """Start, or go on."""
        if self.subject.search is None:
            self._follow(optimize_async(self.session, seconds=self.seconds))
        else:
            self._searched().resume(self.seconds)
        return "searching"

    def _stop(self, _: Mapping[str, Any]) -> str:
        run = self._searched()
        with suppress(SearchError):  # it found no plan yet, which is what it says then
            run.stop()
        return str(run)

    def _fork(self, _: Mapping[str, Any]) -> str:
        """Leave this search as it is, and go on from its plan with another seed."""
        before = self._searched()
        if before.is_running:
            before.stop()
        made = before.fork()
        made.start(self.seconds)
        self._follow(made)
        before.close()
        return f"searching with seed {made.seed}"

    def _budget(self, request: Mapping[str, Any]) -> str:
        """Search within another budget; what is known to be impossible is not searched."""
        budget_bytes, before = int(request["bytes"]), self.session.budget_bytes
        run, curve = self.subject.search, self.subject.curve
        refused = max(curve.refused_bytes, run.refused_bytes if run is not None else 0)
        if budget_bytes <= refused:
            mend = curve.least_bytes or refused
            raise WidgetError(
                f"nothing fits in {format_bytes(budget_bytes)}; {format_bytes(mend)} is the least "
                "that was found to work"
            )
        if run is not None:
            run.close()
        try:
            self._follow(optimize_async(self.session, seconds=self.seconds, budget=budget_bytes))
        except BudgetError:
            self.session.budget_bytes = before
            raise
        return f"searching within {format_bytes(budget_bytes)}"

    # --- other ways to compute it ----------------------------------------------------------------

    @property
    def board(self) -> PathsBoard:
        """Raises WidgetError without a session."""
        if self.subject.board is None:
            raise WidgetError("this is a plan alone: there is no session to compute otherwise")
        return self.subject.board

    def _ways(self, _: Mapping[str, Any]) -> str:
        self._behind(LOOKING, self.board.find)
        return str(self.remark)

    def _measure(self, _: Mapping[str, Any]) -> str:
        self.board.known()
        self._behind("measuring", self.board.measure)
        return str(self.remark)

    def _behind(self, doing: str, work: Callable[[Callable[[str], None]], str]) -> None:
        """Do something that takes long in a thread, and say what comes of it."""
        board = self.board
        if board.doing:
            raise WidgetError(f"{board.doing}; wait for it, or stop it")

        def begun(words: str) -> None:
            board.doing = self.remark = words
            self.tell("paths")

        def ended(told: str) -> None:
            board.doing, self.remark = "", told
            self.tell("paths")

        async def run() -> None:
            loop = asyncio.get_running_loop()

            def tell(words: str) -> None:
                loop.call_soon_threadsafe(begun, words)

            try:
                ended(await asyncio.to_thread(work, tell))
            except TgbenchError as error:
                ended(str(error))

        begun(doing)
        try:
            self._working = asyncio.get_running_loop().create_task(run())
        except RuntimeError:  # a script has no loop
            ended(work(begun))

    def _more_ways(self, _: Mapping[str, Any]) -> str:
        told = self.board.grow()
        self.tell("paths")
        return told

    def _way(self, request: Mapping[str, Any]) -> str:
        told = self.board.choose(int(request["place"]))
        self.tell("paths")
        return told

    def _halt(self, _: Mapping[str, Any]) -> str:
        return self.board.stop()

    def _take(self, _: Mapping[str, Any]) -> str:
        """Compute by the path that is chosen, and plan with it."""
        self.board.known()
        told = self.board.take()
        self.gestures += [
            f"session.paths().take(session.paths().graph_at({self.board.chosen}))",
            "session.optimize('greedy')",
        ]
        self.refresh()
        self.tell("paths")
        return told

    # --- as files and text -----------------------------------------------------------------------

    def _json(self, _: Mapping[str, Any]) -> dict[str, str]:
        plan = self.subject.shown
        if plan is None:
            raise WidgetError("there is no plan to export")
        return {"name": "plan.json", "text": plan.to_json()}

    def _code(self, _: Mapping[str, Any]) -> str:
        return self.code()

    def _fold(self, _: Mapping[str, Any]) -> str:
        """Draw equal layers once, or each for itself."""
        self.subject.fold = not self.subject.fold
        self.tell("fold")
        return "equal layers once" if self.subject.fold else "every layer"

    def _dot(self, _: Mapping[str, Any]) -> str:
        shown = self.subject.graph
        if shown is None or len(shown) > MOST_DOT:
            raise WidgetError("too many nodes to copy; write graph.to_dot() to a file")
        return shown.to_dot()

    # --- questions from the script ---------------------------------------------------------------

    def _asked(self, _: Any, content: Any, buffers: Any) -> None:
        """Answer one question; a fault that tgbench foresees is an answer too."""
        number = content.get("ask") if isinstance(content, dict) else None
        if not isinstance(number, int):
            return
        try:
            what = content.get("what")
            if what not in self.answers:
                raise WidgetError(f"{what!r} is not one of {', '.join(self.answers)}")
            answer = getattr(self, self.answers[what])(content.get("with") or {})
            self.send({"reply": number, "answer": answer})
        except (TgbenchError, KeyError, TypeError, ValueError, RuntimeError) as error:
            self.send({"reply": number, "error": str(error)})

    # --- without a script ------------------------------------------------------------------------

    def _alternative(self) -> dict[str, Any]:
        """What a screen reader says first, and the picture as a table."""
        subject = self.subject
        if subject.shown is None and subject.timeline is None:
            words = str(graphs.picture(subject.graph)) if subject.graph is not None else "a search"
            return {"label": words, "table": {}}
        plan = subject.shown
        found = subject.map_of(plan) if plan is not None else subject.timeline
        assert found is not None
        rows = sorted(found.rectangles, key=lambda r: -r.size_bytes)[:MOST_ROWS]
        table = {
            "header": ["node", "kind", "bytes", "offset", "when", "detail"],
            "rows": [
                [r.label, r.kind, format_bytes(r.size_bytes), str(r.offset_bytes), r.when, r.detail]
                for r in rows
            ],
        }
        told = str(plan).splitlines()[0] if plan is not None else str(found)
        return {"label": told, "table": table}

    def static(self) -> dict[str, str]:
        """What stands where no script runs: text by MIME type."""
        subject = self.subject
        plan = subject.shown
        if plan is not None and "memory" in self.panels:
            found = subject.map_of(plan)
            return {
                "image/svg+xml": timeline.to_svg(found, most=MOST_STATIC), "text/plain": str(found)
            }  # fmt: skip
        if subject.timeline is not None:
            shown = timeline.to_svg(subject.timeline, most=MOST_STATIC)
            return {"image/svg+xml": shown, "text/plain": str(subject.timeline)}
        if subject.search is not None:
            drawn = subject.search.history._repr_mimebundle_()
            return drawn | {"text/plain": str(subject.search)}
        if subject.curve.points:
            return {"image/svg+xml": pareto.to_svg(subject.curve), "text/plain": str(subject.curve)}
        if subject.graph is not None:
            return graphs.picture(subject.graph)._repr_mimebundle_()
        return TextTable(self.label, ("",), ()).bundle()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, and its static form beside it for exported notebooks."""
        found = super()._repr_mimebundle_(**kwargs)
        data, metadata = found if isinstance(found, tuple) else (found or {}, {})
        if "frontier" in self.panels and self.subject.session is not None and self._trying is None:
            with suppress(RuntimeError):  # a script has no loop to try them in
                self.try_budgets()
        return {**data, **self.static()}, metadata

    def __repr__(self) -> str:
        return f"<Screen: {self.label}>"


def _named(panels: Sequence[str] | None) -> Iterable[str]:
    """The panels that are asked for; raises WidgetError for others."""
    if isinstance(panels, str) or not isinstance(panels, Sequence | None):
        raise WidgetError(f"panels={shorten(panels)} is no list; pass one, as ['memory']")
    for name in panels or ():
        check_choice(WidgetError, "panel", name, PARTS)
    return panels or PARTS


def _after_every_cell(screen: Screen) -> None:
    """Look for what another cell did to the session, as long as the screen is there."""
    shell = _shell()
    if shell is None or screen.subject.session is None:
        return
    held = weakref.ref(screen)

    def look(*_: Any) -> None:
        found = held()
        if found is None or found.comm is None:
            shell.events.unregister("post_run_cell", look)
        else:
            found.refresh()

    shell.events.register("post_run_cell", look)


def _shell() -> Any:
    """The notebook's shell; None elsewhere."""
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return None
    return get_ipython()


def explore(shown: Shown, graph: Graph | None = None, **more: Any) -> Screen:
    """The screen of a session; or of a plan or its file, which needs no model and no weights.

    `more` is what `Screen` takes. Raises PlanError for a session that nothing ran in, and for a
    damaged plan, WidgetError for what cannot be shown.
    """
    return Screen(shown, graph, **more)
