"""One function a panel: from what a screen is about, and what is chosen, to what a script draws.

    PARTS["inspector"].build(subject, chosen) → columns, and small values beside them

A panel says what it hears: it is built again when one of these changed, and at no other time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np

from tgbench.base.errors import GraphError, KernelError, PlanError, WidgetError
from tgbench.base.regions import Box, Region
from tgbench.base.words import counted, format_bytes, format_time
from tgbench.graph.graph import Graph
from tgbench.graph.op_table import OPS
from tgbench.memory.placement import is_elsewhere
from tgbench.plans.diff import Kept
from tgbench.plans.plan import Plan
from tgbench.runs.propagate import rough_ns
from tgbench.session.report import Report
from tgbench.session.session import GraphSession
from tgbench.views.draw.columns import pack
from tgbench.views.panels.subject import Chosen, Subject
from tgbench.views.values import regions as drawn
from tgbench.views.values.graphs import picture
from tgbench.views.values.paths import kernels_of
from tgbench.views.values.programs import listing_of_session
from tgbench.views.values.runs import FATES, fates, kept_after, ripple
from tgbench.views.values.search import History, history_of, phase_of, words_of_window
from tgbench.views.values.timeline import Timeline
from tgbench.views.values.transitions import Matrix, matrix, matrix_of_plan, words_of
from tgbench.views.values.ways import summary

What: TypeAlias = Literal[
    "plan", "proposal", "run", "search", "curve", "fold", "nodes", "step", "bucket", "paths"
]
Payload: TypeAlias = "tuple[dict[str, Any], dict[str, Any]]"  # columns; small values
MOST_FATES = 8  # classes whose fate of a node is told
MOST_KERNELS = 6
UNSEARCHED = "not searched"  # made for classes one by one: searches replay what happened
MOST_LINES = 2_000  # calls of a program
SLOW_NODES = 3_000  # past that, only the class at hand is worked out for the inspector


@dataclass(frozen=True)
class PanelOf:
    """A panel: how it is built, or None where the subject has nothing for it, and what it hears."""

    build: Callable[[Subject, Chosen], Payload | None]
    hears: frozenset[What]


def payload(name: str, subject: Subject, chosen: Chosen) -> bytes:
    """A panel's buffer; empty where there is nothing to show."""
    found = PARTS[name].build(subject, chosen)
    if found is None:
        return b""
    columns, facts = found
    return pack({**columns, "facts": [json.dumps(facts)]})


# --- header ---------------------------------------------------------------------------------------


def header(subject: Subject, _: Chosen) -> Payload | None:
    """How fast and how large, in force or proposed; what can be done with it."""
    plan, proposal = subject.shown, subject.proposal
    if plan is None:
        return None if subject.session is None else ({}, _unplanned(subject))
    before = subject.plan if proposal is not None else None
    faster = _change(subject.before_ns, plan.expected_ns, format_time, "as fast") if before else ""
    smaller = (
        _change(before.size_bytes, plan.size_bytes, format_bytes, "as large") if before else ""
    )
    return {}, {
        "time": format_time(plan.expected_ns),
        "size": size_words(plan),
        "gap": gap_words(plan),
        "is_unsearched": plan.search is None,
        "state": proposal.origin if proposal is not None else subject.standing,
        "is_proposal": proposal is not None,
        "faster": faster,
        "smaller": smaller,
        "can_use": subject.is_live and subject.session is not None,
        "is_live": subject.is_live,
        "can_undo": proposal.what is not None if proposal else subject.replaced is not None,
        "can_change": subject.is_live and subject.graph is not None,
        "words": str(plan),
        "stale": _elsewhere(plan),
    }


def _unplanned(subject: Subject) -> dict[str, Any]:
    """What the header says of a session without a plan."""
    no = ("is_proposal", "can_use", "can_undo", "can_change")
    return {
        **dict.fromkeys(no, False), "time": "", "size": "", "gap": "", "faster": "", "smaller": "",
        "state": "no plan in force", "words": "the next run makes a plan", "stale": "",
        "is_live": subject.is_live, "is_unsearched": False,
    }  # fmt: skip


def size_words(plan: Plan) -> str:
    """`12.9 of 14 KiB`; the arena alone where no budget is set."""
    if plan.budget_bytes is None:
        return format_bytes(plan.size_bytes)
    size, budget = format_bytes(plan.size_bytes), format_bytes(plan.budget_bytes)
    number, unit = size.split()
    return f"{number if budget.endswith(unit) else size} of {budget}"


def gap_words(plan: Plan) -> str:
    """How far from the best plan; of one that no search weighed, that."""
    record = plan.search
    if record is None:
        return UNSEARCHED
    if record.stop == "everything fits":  # which proves nothing
        return "everything fits"
    if record.stop == "optimal":
        return "proved optimal"
    return f"gap {history_of(record).last.gap:.1%}" if record.bound_ns else "no bound yet"


def _change(before: float, after: float, words: Callable[[Any], str], equal: str) -> str:
    if before == after:
        return equal
    sign = "+" if after > before else "−"
    return f"{sign}{words(abs(after - before))}"


def _elsewhere(plan: Plan) -> str:
    return "" if plan.records else "modelled times"


# --- memory ---------------------------------------------------------------------------------------


def memory(subject: Subject, _: Chosen) -> Payload | None:
    """The map that is shown; the one in force behind it, where another one is proposed."""
    plan = subject.shown
    if plan is None:
        return None if subject.timeline is None else map_payload(subject.timeline, subject)
    columns, facts = map_payload(subject.map_of(plan), subject)
    if subject.proposal is not None and subject.plan is not None:
        old = [
            (s.node, s.offset_bytes, s.size_bytes)
            for s in subject.plan.slots
            if not is_elsewhere(s.offset_bytes)
        ]
        columns["ghost"] = [name for name, _, _ in old]
        columns["ghost_offset"] = np.array([at for _, at, _ in old], np.float64)
        columns["ghost_size"] = np.array([size for _, _, size in old], np.float64)
        facts["ghost_bytes"] = subject.plan.size_bytes
        facts["ghost_words"] = subject.plan_words
    return columns, facts


def map_payload(shown: Timeline, subject: Subject) -> Payload:
    """A map with its layers and what its steps take."""
    layers = list(_layers(shown.schedule))
    others = [r.offset_bytes for r in shown.rectangles if not r.retained]
    kept = max((r.offset_bytes + r.size_bytes for r in shown.rectangles if r.retained), default=0)
    columns = {
        **shown.columns(),
        "layer": [name for name, _, _ in layers],
        "layer_start": np.array([start for _, start, _ in layers], np.int32),
        "layer_stop": np.array([stop for _, _, stop in layers], np.int32),
        "cost": np.array(_step_times(shown.schedule, subject), np.float64),
    }
    facts = {
        **shown.facts(), "can_change": subject.is_live and subject.graph is not None,
        "kept_bytes": min([kept, *others]), "label": f"memory: {shown}",
    }  # fmt: skip
    return columns, facts


def _layers(schedule: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Stretches of the schedule in one scope: a name's part that has a number, else its first."""
    at = 0
    for scope, names in groupby(schedule, _scope):
        count = len(list(names))
        yield scope, at, at + count
        at += count


def _scope(name: str) -> str:
    """The layer of a node, by its name.

    >>> _scope("model.layers.3.mlp.up"), _scope("layer_0.k"), _scope("logits")
    ('model.layers.3', 'layer_0', '')
    """
    parts = name.split(".")[:-1]
    numbered = [i for i, part in enumerate(parts) if part[-1:].isdigit()]
    return ".".join(parts[: numbered[0] + 1] if numbered else parts[:1])


def _step_times(schedule: Sequence[str], subject: Subject) -> list[float]:
    """What computing all of each step's node is modelled to take."""
    if subject.graph is None:
        return []
    nodes = {node.name: node for node in subject.graph.nodes}
    found = []
    for name in schedule:
        node = nodes.get(name)
        plain = node is None or OPS[node.op].view is not None
        found.append(0.0 if plain or node is None else rough_ns(node.call, Box.full(node.shape)))
    return found


AFTER_A_RUN = (
    "after {}: what is kept is there; a plan without its graph does not say what is computed"
)


def fate(subject: Subject, chosen: Chosen) -> Payload | None:
    """What a run of the class at hand does to every value, and who destroys whom."""
    plan, bucket = subject.shown, subject.class_at_hand(chosen)
    if plan is None:
        return None
    if subject.graph is None:
        found, words, by = kept_after(plan, bucket), AFTER_A_RUN.format(bucket), {}
    else:
        try:
            run = subject.run(bucket)
        except WidgetError as error:
            return {"name": []}, {"bucket": bucket, "words": str(error), "destroyed": {}}
        if run is None:
            return None
        found, words, by = fates(run), ripple(run), {n: list(b) for n, b in run.destroyed.items()}
    codes = np.array([FATES.index(fate) for fate in found.values()], np.uint8)
    facts = {"bucket": bucket, "words": words, "destroyed": by, "fates": list(FATES)}
    return {"name": list(found), "fate": codes}, facts


# --- graph, program -------------------------------------------------------------------------------


def graph(subject: Subject, _: Chosen) -> Payload | None:
    """The graph, equal layers once."""
    if subject.graph is None:
        return None
    shown = picture(subject.graph, fold=subject.fold)
    return shown.columns(), {**shown.facts(), "label": str(shown)}


def program(subject: Subject, _: Chosen) -> Payload | None:
    """The calls of the last run."""
    session = subject.session
    if session is None or session.last is None or not session.is_planned:
        return None
    shown = listing_of_session(session)
    return shown.columns(), {"label": str(shown)}


# --- frontier and search --------------------------------------------------------------------------


def frontier(subject: Subject, _: Chosen) -> Payload | None:
    """Time by memory: budgets that were tried, what is in force, what is impossible; the search."""
    if subject.plan is None and not subject.curve.points and subject.search is None:
        return None
    plan, search, curve = subject.plan, subject.search, subject.curve
    proposed = subject.proposal.plan if subject.proposal is not None else None
    record = plan.search if plan is not None else None
    history = search.history if search is not None else History(())
    if search is None and record is not None:
        history = history_of(record)
    listed = search.listed if search is not None else []
    refused = max(curve.refused_bytes, search.refused_bytes if search is not None else 0)
    told = history.columns()
    by = search.records if search is not None else plan.records if plan is not None else ""
    newest = _newest([*_records_of(plan, proposed), *(p.plan.records for p in curve.points), by])
    is_old = bool(by != newest and history.moments)
    columns = {
        **{f"point_{name}": values for name, values in curve.columns().items()},
        "point_old": np.array([p.plan.records != newest for p in curve.points], np.uint8),
        **{f"told_{name}": values for name, values in told.items()},
        **_phases(history),
        "try_size": np.array([row.laid_out.size_bytes for row in listed], np.float64),
        "try_time": np.array([row.laid_out.time_ns for row in listed], np.float64),
        "try_kept": np.array([row.laid_out.kept for row in listed], np.int32),
        "try_parts": np.array([row.laid_out.parts for row in listed], np.int32),
        "try_number": np.array([row.number for row in listed], np.int32),
        "try_best": np.array([row.is_best for row in listed], np.uint8),
        "try_why": [row.why for row in listed],
        **_windows(subject),
    }
    facts = {
        "refused": refused, "least": curve.least_bytes,
        "budget": plan.budget_bytes if plan is not None else None,
        "now": None if plan is None else [plan.size_bytes, subject.before_ns],
        "now_words": subject.plan_words,
        "is_unsearched": _is_unsearched(subject), "proposal": _place(proposed),
        "greedy": _greedy_place(plan) if plan is not None and plan.records == newest else None,
        "is_old": is_old, "bound": 0.0 if is_old else history.last.bound_ns,
        "best": history.last.best_ns, "step": history.last.step,
        "rate": history.steps_per_second, "is_running": search is not None and search.is_running,
        "is_new": search is None or search.plan is None,
        "state": str(search) if search is not None else "",
        "phase": phase_of(history.last.message) if search is not None else "",
        "message": history.last.message, "unit": "steps" if search is None else "s",
        "can_search": subject.is_live and subject.session is not None,
        "label": f"time by memory: {counted(len(curve.points), 'budget')} tried",
    }  # fmt: skip
    return columns, facts


def _is_unsearched(subject: Subject) -> bool:
    """Whether the plan in force takes a mean of other runs than what searches found."""
    plan = subject.plan
    return subject.session is not None and plan is not None and plan.search is None


def _phases(history: History) -> dict[str, Any]:
    """What a search did from when on; only changes are told."""
    told = [(m.seconds, phase_of(m.message)) for m in history.moments]
    first = [next(group) for _, group in groupby(told, lambda one: one[1])]
    starts = [0.0, *(seconds for seconds, _ in first[1:])] if first else []
    return {"phase_from": np.array(starts, np.float64), "phase": [phase for _, phase in first]}


def _place(plan: Plan | None) -> list[float] | None:
    return None if plan is None else [plan.size_bytes, plan.expected_ns]


def _greedy_place(plan: Plan) -> list[float] | None:
    """What the greedy plan for the same budget takes; None where the plan is that one."""
    record = plan.search
    if record is None or record.mode == "greedy" or not record.greedy_ns:
        return None
    return [plan.budget_bytes or plan.size_bytes, record.greedy_ns]


def _records_of(*plans: Plan | None) -> list[str]:
    return [plan.records for plan in plans if plan is not None]


def _newest(records: Iterable[str]) -> str:
    """The measurements that count: more are known later (`CostModel.basis`)."""
    return max(records, key=_measurements)


def _measurements(records: str) -> int:
    """How many these are; a plan's file may say anything.

    >>> _measurements("1,234 measurements 0123456789ab"), _measurements(""), _measurements("x")
    (1234, 0, 0)
    """
    found = re.match(r"([\d,]{1,12}) measurement", records, re.ASCII)
    return int(found[1].replace(",", "") or 0) if found else 0


def _windows(subject: Subject) -> dict[str, Any]:
    """What the search decided anew, a row a window; values are positions among all of them."""
    search, graph = subject.search, subject.graph
    windows = search.windows if search is not None and graph is not None else ()
    freed = {name for window in windows for name in window.values}
    names = [node.name for node in (graph.nodes if graph else ()) if node.name in freed]
    place = {name: i for i, name in enumerate(names)}
    shown = [sorted(place[v] for v in window.values if v in place) for window in windows]
    return {
        "value_name": names,
        "window_value": np.array([i for values in shown for i in values], np.int32),
        "window_end": np.cumsum([len(values) for values in shown], dtype=np.int32),
        "window_gain": np.array([1 - one.after_ns / one.before_ns for one in windows], np.float64),
        "window_words": [words_of_window(one) for one in windows],
    }


# --- paths ----------------------------------------------------------------------------------------


def paths(subject: Subject, _: Chosen) -> Payload | None:
    """Other ways to compute the graph: a table, and decisions as lines on a map."""
    board = subject.board
    if board is None or not subject.is_live:
        return None
    facts: dict[str, Any] = {"doing": board.doing, "is_found": board.paths is not None}
    if board.paths is None:
        return {}, facts | {"label": "other ways to compute the graph"}
    shown = board.map()
    facts |= {
        "label": summary(board.paths), "chosen": board.chosen, "in_force": board.in_force,
        "differs": board.difference(), "decisions": list(shown.decisions),
        "stops": [[stop.column, stop.row, stop.label] for stop in shown.stops],
        "lines": [list(line) for line in shown.lines], "is_all": board.is_all, "end": board.end(),
    }  # fmt: skip
    return dict(board.columns()), facts


# --- inspector ------------------------------------------------------------------------------------


def inspector(subject: Subject, chosen: Chosen) -> Payload | None:
    """Everything about the chosen node; without one, what the last run did and where it spread."""
    if subject.shown is None:
        return None
    bucket = subject.class_at_hand(chosen)
    if not chosen.node:
        return {}, {"node": "", "overview": _overview(subject)}
    name, columns = chosen.node, dict[str, Any]()
    facts = {
        "node": name, "type": _type(subject.graph, name), **_why(subject, name),
        "fates": _fates(subject, name, bucket), "bucket": bucket, "kernels": [], "regions": [],
        "more": list(chosen.nodes[1:4]), "count": len(chosen.nodes),
    }  # fmt: skip
    found = subject.inspection(bucket)
    try:
        shown = found.node(name) if found is not None else None
    except GraphError:
        shown = None
    if shown is not None and found is not None:
        cut = drawn.best_cut(shown.node.shape, shown.regions)
        columns = drawn.columns_of(shown)
        facts |= {
            "regions": [list(row) for row in shown.words()], "kinds": list(drawn.KINDS),
            "meanings": dict(drawn.MEANINGS), "title": found.title, "rows": cut.rows,
            "columns": cut.columns, "at": list(cut.at), "plane": drawn.plane_words(
                shown.node.shape, cut),
            "kernels": _kernels(subject, name, shown, bucket),
            "of": ", of the plan in force" if subject.proposal is not None else "",
        }  # fmt: skip
    return columns, facts


def _overview(subject: Subject) -> list[list[str]]:
    """[what, words, node] of the last run and the plan."""
    rows: list[list[str]] = []
    last = subject.session.last if subject.session is not None else None
    if last is not None:
        rows.append(["last run", words_of(last.kind), ""])
        rows.append(["recomputed", _share(last.recomputed), ""])
        rows.append(["took", format_time(last.total_ns), ""])
        if not last.specialised:  # making a program is no part of what runs take
            besides = format_time(last.total_ns - last.execute_ns)
            rows.append(["beside calls", f"{besides} of it, which plans do not count", ""])
        rows.append(["spreads at", *_spread(last)])
    plan = subject.shown
    if plan is not None:
        nodes = counted(len(plan.retained), "node")
        rows.append(["kept", f"{nodes} in {format_bytes(plan.retained_bytes)}", ""])
        if plan.dropped:
            again = counted(len(plan.dropped), "node")
            rows.append(["not kept", f"{again}, computed again when needed", plan.dropped[0]])
        if plan.price_ns:
            rows.append(["a KiB more", f"would save about {format_time(1024 * plan.price_ns)}", ""])
    return rows


def _share(recomputed: float) -> str:
    """What was computed, beside what a run from nothing computes; in pieces some of it twice.

    >>> _share(0.027), _share(1.0), _share(1.0123)
    ('2.7% of what it takes from nothing', 'everything', 'everything, and 1.2% more than that')
    """
    if recomputed < 0.9995:
        return f"{recomputed:.1%} of what it takes from nothing"
    more = f"{recomputed - 1:.1%}"
    return "everything" if more == "0.0%" else f"everything, and {more} more than that"


def _spread(last: Report) -> tuple[str, str]:
    """Where a part that changed became everything, or why nowhere; and the node."""
    spread = last.spread
    if spread is not None:
        return str(spread), spread.node
    if last.served != "exactly":
        return "not told: a larger run served it", ""
    nodes = [last.propagator.graph.node(name) for name in last.dirty]
    whole = {node for node in nodes if last.dirty[node.name] == Region.full(node.shape)}
    if not nodes:
        return "nowhere: nothing changed", ""
    if whole.issuperset(node for node in nodes if node.is_leaf):
        return "nowhere: what is new is new as a whole from the start", ""
    if whole:
        return "nowhere: only what changed as a whole changed a node as a whole", ""
    return "nowhere: each node changed in part", ""


def _type(graph: Graph | None, name: str) -> str:
    if graph is None:
        return ""
    try:
        node = graph.node(name)
    except GraphError:
        return ""
    return f"{node.op} {node.type}"


def _why(subject: Subject, name: str) -> dict[str, Any]:
    """Why a node is kept or not, a line each, and the line of code that it comes from."""
    assert subject.shown is not None
    try:
        found = subject.shown.explain(name, subject.graph)
    except PlanError as error:
        return {"why": [str(error)], "source": ""}
    told = str(replace(found, source="")).removeprefix(f"{name}: ")
    return {"why": [line.strip() for line in told.splitlines()], "source": found.source}


def _fates(subject: Subject, name: str, bucket: str) -> list[list[str]]:
    """[class, its name for people, fate] of a node, per class."""
    plan, classes = subject.shown, subject.classes()
    assert plan is not None
    names = list(classes)[:MOST_FATES]
    if subject.graph is None:
        there = {of: kept_after(plan, of).get(name, "untouched") for of in names}
        told = {  # that it is there afterwards is all that a plan says
            of: "reused, or computed again" if fate == "reused" else fate
            for of, fate in there.items()
        }
    else:
        if len(subject.graph) > SLOW_NODES:
            names = [bucket]
        told = {}
        for of in names:
            try:
                run = subject.run(of)
            except WidgetError:
                continue
            if run is not None:
                by = ", ".join(run.destroyed.get(name, ())[:2])
                told[of] = run.fate(name) + (f", then destroyed by {by}" if by else "")
    return [[of, words_of(classes[of]) if of in classes else of, fate] for of, fate in told.items()]


def _kernels(subject: Subject, name: str, shown: drawn.NodeRegions, bucket: str) -> list[list[str]]:
    """[kernel, time, source] of what could compute its part of the run; ✓ is what does."""
    region = shown.regions.get("computed")
    if subject.session is None or region is None or shown.node.is_leaf:
        return []
    try:
        ways = kernels_of(subject.session, name, region.boxes[0]).alternatives
    except (GraphError, KernelError):
        return []
    taken = _taken(subject.session, name, bucket) or {way.name for way in ways[:1]}
    return [
        [way.name, format_time(way.time_ns), f"{way.source} ✓" if way.name in taken else way.source]
        for i, way in enumerate(ways)
        if i < MOST_KERNELS or way.name in taken
    ]


def _taken(session: GraphSession, name: str, bucket: str) -> set[str]:
    """Which kernels computed a node in the last run, if that is the one that is shown."""
    last = session.last
    if last is None or str(last.kind) != bucket:
        return set()
    return {made.kernel for made in last.program.instructions if made.node.name == name}


# --- classes, comparison --------------------------------------------------------------------------


def classes(subject: Subject, chosen: Chosen) -> Payload | None:
    """Which class of runs follows which; the one at hand is marked."""
    found: Matrix
    if subject.graph is not None and len(subject.trace):
        found = matrix(subject.trace, subject.graph)
    elif subject.plan is not None:
        found = matrix_of_plan(subject.plan)
    else:
        return None
    facts = {
        "has_order": bool(found.cells), "at_hand": subject.class_at_hand(chosen),
        "alone": subject.alone(), "label": f"classes of runs: {found}",
    }  # fmt: skip
    return found.columns(), facts


def compare(subject: Subject, _: Chosen) -> Payload | None:
    """The plan in force beside the one that is proposed; what differs, by what it costs."""
    if subject.proposal is None or subject.plan is None:
        return None
    before, after = subject.plan, subject.proposal.plan
    sides = {
        f"{side}_{name}": values
        for side, plan in (("before", before), ("after", after))
        for name, values in subject.map_of(plan).columns().items()
        if name in ("name", "kind", "offset", "size", "start", "stop")
    }
    return sides, {
        "sides": [
            [subject.plan_words, format_time(subject.before_ns), size_words(before),
             before.size_bytes],
            [subject.proposal.origin, format_time(after.expected_ns), size_words(after),
             after.size_bytes],
        ],
        "steps": max(len(before.schedule), len(after.schedule)) + 1,
        "rows": differences(before, after),
    }  # fmt: skip


def differences(before: Plan, after: Plan) -> list[list[str]]:
    """[what, words, node, nanoseconds] of what is decided otherwise, the dearest first."""
    found = before.diff(after)

    def row(sign: str, kept: Kept) -> list[str]:
        saves = kept.saves_ns or 0.0
        return [f"{sign} kept", str(kept), kept.node, f"{saves:.0f}"]

    rows = [*(row("+", kept) for kept in found.gained), *(row("−", kept) for kept in found.lost)]
    rows += [["~ kept", f"{b.node}: {a.classes} → {b.classes}", b.node, "0"]
             for a, b in found.rearranged]  # fmt: skip
    rows.sort(key=lambda one: -float(one[3]))
    told = [line.split(maxsplit=1) for line in str(found).splitlines()] if found else []
    rest = [
        [line[:12].strip(), line[12:].strip(), "", "0"]
        for line in str(found).splitlines()
        if told and not line.startswith("retained")
    ]
    return [*rows, *rest]


def _hears(*what: What) -> frozenset[What]:
    return frozenset(what)


PARTS: Mapping[str, PanelOf] = {
    "header": PanelOf(header, _hears("plan", "proposal", "search")),
    "memory": PanelOf(memory, _hears("plan", "proposal")),
    "fates": PanelOf(fate, _hears("plan", "proposal", "run", "bucket")),
    "graph": PanelOf(graph, _hears("fold", "plan")),
    "program": PanelOf(program, _hears("run")),
    "paths": PanelOf(paths, _hears("paths", "plan")),
    "compare": PanelOf(compare, _hears("plan", "proposal")),
    "frontier": PanelOf(frontier, _hears("plan", "proposal", "search", "curve")),
    "inspector": PanelOf(inspector, _hears("plan", "proposal", "run", "nodes", "bucket")),
    "classes": PanelOf(classes, _hears("run", "plan", "bucket")),
}
