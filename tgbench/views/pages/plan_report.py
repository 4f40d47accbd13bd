"""A plan as a page: what it keeps and why, for which runs, where, and how that was found.

page_of_plan(plan, graph) → HTML that needs no network and no other file
"""

from __future__ import annotations

from tgbench.base.words import format_bytes, format_time
from tgbench.graph.graph import Graph
from tgbench.plans.decisions import PlanSlot, SearchRecord
from tgbench.plans.explain import Weighed, after, kind_of, weighed
from tgbench.plans.plan import Plan
from tgbench.views.draw.tables import TextTable
from tgbench.views.pages.report import MOST_LISTED, Study, page
from tgbench.views.values.search import history_of, to_svg
from tgbench.views.values.timeline import timeline_from_plan, timeline_of_plan


def page_of_plan(plan: Plan, graph: Graph | None = None) -> str:
    """The plan as one HTML document.

    Args:
        graph: the one that runs; with it the map shows when a slice is last read.

    Raises PlanError if the plan is for another graph.
    """
    return page("tgbench plan", [study_of_plan(plan, graph)], plan.machine)


def study_of_plan(plan: Plan, graph: Graph | None = None) -> Study:
    """What the page tells of a plan."""
    record = plan.search
    return Study(
        name=f"Graph {plan.graph[:12]}",
        words=str(plan).splitlines()[0],
        other="",
        runs=(),
        medians=(),
        sizes=_sizes(plan),
        plan="",
        timeline=timeline_from_plan(plan) if graph is None else timeline_of_plan(plan, graph),
        tables=(_decisions(plan), _classes(plan), *([] if record is None else [_search(record)])),
        figures=() if record is None else (("The search", to_svg(history_of(record), "steps")),),
    )


def _sizes(plan: Plan) -> tuple[tuple[str, int, str], ...]:
    rows = [
        ("arena", plan.size_bytes, f"on {plan.device}"),
        ("kept between runs", plan.kept_bytes, "inputs, states and retained values"),
        ("bound", plan.bound_bytes, "no packing of these values is smaller"),
    ]
    if plan.budget_bytes is not None:
        rows.append(("budget", plan.budget_bytes, "what was allowed"))
    return tuple(rows)


def _decisions(plan: Plan) -> TextTable:
    """Nodes that could be retained, those that save most first."""
    slots = {slot.node: slot for slot in plan.slots}
    weights = {reason.node: weighed(plan, reason.node) for reason in plan.reasons}
    names = list(dict.fromkeys([*plan.retained, *plan.dropped, *weights]))
    names.sort(key=lambda name: _saving(weights.get(name)), reverse=True)
    rows = [
        (name, _decided(plan, slots.get(name), name), *_weight(weights.get(name)))
        for name in names[:MOST_LISTED]
    ]
    rest = f" (the first {MOST_LISTED} of {len(names)})" if len(names) > MOST_LISTED else ""
    header = ("node", "decided", "bytes to retain it", "saves a run", "against the price of memory")
    return TextTable(f"Decisions{rest}", header, tuple(rows))


def _saving(found: Weighed | None) -> float:
    return found.saves_ns if found is not None else 0.0


def _decided(plan: Plan, slot: PlanSlot | None, name: str) -> str:
    if slot is not None and slot.retained:
        runs = "every run" if slot.through is None else "; ".join(after(plan, slot))
        return f"retained after {runs}"
    return "computed again when needed" if name in plan.dropped else "not retained"


def _weight(found: Weighed | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "-"
    times = f"{found.times:.3g} ×" if found.price_ns else "-"
    return format_bytes(found.size_bytes), format_time(found.saves_ns), times


def _classes(plan: Plan) -> TextTable:
    rows = [(str(kind_of(b)), f"{b.weight:g}", str(list(b.origin))) for b in plan.buckets]
    title = "Runs that it was made for"
    if plan.cut[2] > 1:
        title += f"; large ones are cut in {plan.cut[2]} along {plan.cut[0]}[{plan.cut[1]}]"
    return TextTable(title, ("bucket class", "times", "last at"), tuple(rows))


def _search(record: SearchRecord) -> TextTable:
    bound = (
        ("mean run in the tabulated model", format_time(record.modelled_ns)),
        ("bound of that model", format_time(record.bound_ns)),
        ("gap between these two", f"{record.gap:.2%}"),
    )
    rows = (
        ("mode, seed", f"{record.mode}, {record.seed}"),
        ("steps", f"{record.steps:,}"),
        ("why it stopped", record.stop),
        ("mean run", format_time(record.best_ns)),
        ("first run", format_time(record.warm_up_ns)),
        ("mean run of the greedy plan", format_time(record.greedy_ns)),
        *(bound if record.bound_ns else ()),
    )
    return TextTable("How it was found", ("", "modelled"), rows)
