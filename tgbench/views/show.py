"""Results show themselves in a notebook: one entry a type, attached when tgbench is imported.

    Graph, Plan, Program, … ── _repr_mimebundle_ ──→ the entry's function ──→ SVG or HTML, and text

The engine knows nothing of views: the methods are put on its classes from here, and a view's module
is imported when something is shown for the first time. What is shown needs no script, no widget
package and no network; in a terminal it is text.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tgbench.base.regions import Box, Region
from tgbench.base.surroundings import plainly
from tgbench.base.words import counted, format_bytes, format_time
from tgbench.costs.records import Records
from tgbench.graph.graph import Graph
from tgbench.memory.estimate import MemoryEstimate
from tgbench.memory.placement import Placement, told_offset
from tgbench.plans.explain import Explanation
from tgbench.plans.paths.paths import Paths
from tgbench.plans.plan import Plan
from tgbench.programs.program import Program
from tgbench.runs.trace import Trace
from tgbench.session.check import CheckReport
from tgbench.session.paths import SessionPaths
from tgbench.session.profile import Profile
from tgbench.session.report import Report
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, Support
from tgbench.views.draw.tables import TextTable
from tgbench.views.values.search import SearchRun

Bundle: TypeAlias = dict[str, str]  # MIME type → text
MOST_ROWS = 50  # of a table; how many are left out is said


def attach() -> None:
    """Give every type of the table its notebook form; sessions their workbench, paths a picture."""
    for kind, show in SHOWN.items():
        kind._repr_mimebundle_ = _method(show)
    for kind, panels in LIVE.items():
        kind._repr_mimebundle_ = _live_method(SHOWN[kind], panels)
    for name, act in ACTS.items():
        setattr(GraphSession, name, act)
    SessionPaths.draw_frontier = drawn_frontier  # type: ignore[attr-defined]


def _method(show: Callable[[Any], Bundle]) -> Callable[..., Any]:
    def bundle(self: Any, **_: Any) -> Any:
        return show(self)

    return bundle


def _live_method(show: Callable[[Any], Bundle], panels: tuple[str, ...]) -> Callable[..., Any]:
    """The screen with some panels where a notebook's kernel listens; a picture elsewhere."""

    def bundle(self: Any, **more: Any) -> Any:
        if not _has_kernel():
            return show(self)
        from tgbench.base.errors import WidgetError

        try:
            from tgbench.views.panels.screen import Screen
        except WidgetError:
            return show(self)
        data, metadata = Screen(self, panels=panels)._repr_mimebundle_(**more)
        return {**data, **show(self)}, metadata

    return bundle


def _has_kernel() -> bool:
    """Whether this is a notebook: a script and a terminal have nobody to send a widget to."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


# --- what sessions can do in a notebook -----------------------------------------------------------


@plainly
def explore(session: GraphSession, **more: Any) -> Any:
    """All of this session on one screen; see `views.panels.screen`.

    Raises PlanError before the first run, WidgetError without the widget packages.
    """
    from tgbench.views.panels.screen import explore as open_screen

    return open_screen(session, **more)


@plainly
def timeline(session: GraphSession) -> Any:
    """The memory map of this session alone, to look at and to change by hand.

    Raises PlanError before the first run, WidgetError without the widget packages.
    """
    return explore(session, panels=("header", "memory", "fates"))


def optimize_async(session: GraphSession, *arguments: Any, **more: Any) -> Any:
    """`optimize` in a process of its own, watched from the notebook; see `views.search`."""
    from tgbench.views.values.search import optimize_async as begin

    return begin(session, *arguments, **more)


@plainly
def paths(session: GraphSession, tolerance: float | None = None, **more: Any) -> SessionPaths:
    """Every way to compute this graph, cheapest first, for the runs that are planned for.

    `for path in session.paths(): …` goes on as long as you ask; nothing is run for it.

    Args:
        tolerance: how far results may be off, relatively; products may then be computed in
            bfloat16, and by weights in float16, bfloat16 or int8. None for rounding alone.
        more: `samples`, `within`, `limits`, `progress`; see `session.paths.SessionPaths.of`.

    Raises PlanError for a tolerance that is not above 0.
    """
    return SessionPaths.of(session, tolerance, **more)


def drawn_frontier(paths: SessionPaths, count: int = 32) -> Any:
    """The frontier of time, error and memory as a picture; see `SessionPaths.frontier`."""
    from tgbench.views.values.errors import ErrorFrontier

    return ErrorFrontier.of(paths, count)


ACTS = {
    "explore": explore, "timeline": timeline, "optimize_async": optimize_async, "paths": paths,
}  # fmt: skip


# --- one function a type --------------------------------------------------------------------------


def _graph(graph: Graph) -> Bundle:
    from tgbench.views.values.graphs import picture

    return picture(graph)._repr_mimebundle_()


def _region(region: Region) -> Bundle:
    from tgbench.views.draw.boxes import to_svg

    svg = to_svg(region)
    return {"text/plain": repr(region)} | ({"image/svg+xml": svg} if svg else {})


def _box(box: Box) -> Bundle:
    return _region(Region((box,))) | {"text/plain": repr(box)}


def _trace(trace: Trace) -> Bundle:
    buckets = Counter(str(call.bucket) for call in trace)
    times: dict[str, int] = {}
    for call in trace:
        times[str(call.bucket)] = times.get(str(call.bucket), 0) + call.duration_ns
    rows = [
        (bucket, str(count), format_time(times[bucket] / count))
        for bucket, count in buckets.most_common()
    ]
    return _table(str(trace), ("bucket", "count", "mean"), rows) | {"text/plain": str(trace)}


def _plan(plan: Plan) -> Bundle:
    from tgbench.views.values.timeline import timeline_from_plan, to_svg

    return {"image/svg+xml": to_svg(timeline_from_plan(plan)), "text/plain": str(plan)}


def _placement(placement: Placement) -> Bundle:
    rows = [
        (
            node.name, "kept" if node in placement.lasting else "slice",
            told_offset(slot.offset_bytes), format_bytes(placement.size_of(node)),
            str(list(slot.extents)),
        )
        for node, slot in sorted(placement.slots.items(), key=lambda item: item[1].offset_bytes)
    ]  # fmt: skip
    caption = (
        f"memory map: {counted(len(rows), 'slot')} in {format_bytes(placement.size_bytes)} "
        f"(bound {format_bytes(placement.bound_bytes)})"
    )
    return _table(caption, ("node", "kind", "offset", "size", "extents"), rows)


def _search(run: SearchRun) -> Bundle:
    return run.history._repr_mimebundle_() | {"text/plain": str(run)}


def _program(program: Program) -> Bundle:
    from tgbench.views.values.programs import listing

    return listing(program).table().bundle()


def _records(records: Records) -> Bundle:
    rows = [
        (
            record.kernel, format_time(record.median_ns) if record.samples_ns else "-",
            str(len(record.samples_ns)), record.failure or "", record.signature,
        )
        for record in records.all()
    ]  # fmt: skip
    header = ("kernel", "median", "samples", "failure", "signature")
    return _table(str(records), header, rows) | {"text/plain": str(records)}


def _check(report: CheckReport) -> Bundle:
    rows = [
        (
            str(o.pair), f"{o.output}: {o.dtype}", f"{o.absolute:.2e}", f"{o.relative:.2e}",
            f"{o.tolerance:.0e}", "yes" if o.passed else "no",
        )
        for o in report.outputs
    ]  # fmt: skip
    caption = "the check passed" if report.passed else f"the check failed: {report.verdict or ''}"
    header = ("pair", "output", "absolute", "relative", "allowed", "right")
    return _table(caption, header, rows) | {"text/plain": str(report)}


def _explanation(explanation: Explanation) -> Bundle:
    head, *rest = str(explanation).splitlines()
    rows = [(line.strip(),) for line in rest]
    return _table(head, ("and",), rows) | {"text/plain": str(explanation)}


def _estimate(estimate: MemoryEstimate) -> Bundle:
    return _table("memory", ("what", "size"), estimate.rows()) | {"text/plain": str(estimate)}


def _profile(profile: Profile) -> Bundle:
    found = {key: str(samples) for key, samples in profile.measured.items()}
    found |= dict.fromkeys(profile.known, "known before") | dict.fromkeys(profile.failed, "failed")
    times = {key: format_time(ns) for key, ns in profile.median_ns.items()}
    rows = [
        (key[0], times.get(key, "-"), samples, key[1]) for key, samples in sorted(found.items())
    ]
    header = ("kernel", "median", "samples", "signature")
    return _table(str(profile), header, rows) | {"text/plain": str(profile)}


def _support(support: Support) -> Bundle:
    rows = [(row.op, str(row.count), row.answer, str(row.first)) for row in support.ops]
    header = ("op", "calls", "supported", "first place")
    return _table("what the importer knows of this module", header, rows) | {
        "text/plain": str(support)
    }


def _imported(imported: Imported) -> Bundle:
    return _table("imported module", ("what", "value"), imported.rows())


def _report(report: Report) -> Bundle:
    rows = [
        ("class", str(report.kind)), ("bucket", str(report.bucket)),
        ("recomputed", f"{report.recomputed:.1%} of a run from nothing"),
        ("instructions", f"{report.instructions} in {counted(report.calls, 'call')}"),
        ("time", f"{format_time(report.total_ns)}, {format_time(report.decide_ns)} to decide"),
        ("program", "made in this run" if report.specialised else "known"),
    ]  # fmt: skip
    if report.spread is not None:
        rows.append(("the change spreads to everything at", str(report.spread)))
    return _table("the last run", ("what", "value"), rows) | {"text/plain": str(report)}


def _session(session: GraphSession) -> Bundle:
    graph, counters = session.graph, session.counters
    made = counted(counters.specialised, "program")
    rows = [
        ("inputs", ", ".join(f"{n.name}: {n.type}" for n in graph.inputs.values())),
        ("outputs", ", ".join(f"{name}: {n.type}" for name, n in graph.outputs.items())),
        ("nodes", f"{len(graph)}, {format_bytes(session.pool.parameter_bytes)} of weights"),
        ("device", session.device),
        ("budget", "none" if session.budget_bytes is None else format_bytes(session.budget_bytes)),
        ("plan", str(session.plan).splitlines()[0] if session.is_planned else "none yet"),
        ("runs", f"{counters.runs}, {made} made, {counters.moved} moved"),
    ]
    if session.last is not None:
        last = session.last
        rows.append(("last run", f"{last.kind}: {format_time(last.total_ns)}"))
    return _table("session", ("what", "value"), rows)


def _paths(paths: SessionPaths) -> Bundle:
    from tgbench.views.values.ways import ways_of

    return ways_of(paths)._repr_mimebundle_()


def _classes(paths: Paths) -> Bundle:
    from tgbench.views.values.classes import ClassPicture

    return ClassPicture.of(paths)._repr_mimebundle_()


def _table(caption: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Bundle:
    rest = len(rows) - MOST_ROWS
    told = f"{caption}; {counted(rest, 'more row')}" if rest > 0 else caption
    return TextTable(told, header, rows[:MOST_ROWS]).bundle()


SHOWN: Mapping[Any, Callable[[Any], Bundle]] = {
    Box: _box,
    CheckReport: _check,
    Explanation: _explanation,
    Graph: _graph,
    GraphSession: _session,
    Imported: _imported,
    MemoryEstimate: _estimate,
    Placement: _placement,
    Plan: _plan,
    Profile: _profile,
    Program: _program,
    Records: _records,
    Region: _region,
    Report: _report,
    Support: _support,
    SearchRun: _search,
    SessionPaths: _paths,
    Paths: _classes,
    Trace: _trace,
}
LIVE: Mapping[Any, tuple[str, ...]] = {
    Graph: ("graph",),
    Plan: ("header", "memory", "fates"),
    SearchRun: ("header", "frontier"),
}
