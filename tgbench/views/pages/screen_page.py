"""A plan on the screen as one file: no server, no kernel, no network, no model and no weights.

page(plan) → HTML        scripts, buffers, and what depends on the choice: a buffer for each node
                         and for each class of runs
"""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import Any

from tgbench.base.words import format_bytes, format_time
from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.views.pages.report import embedded
from tgbench.views.panels.parts import PARTS, payload
from tgbench.views.panels.scripts import module, style
from tgbench.views.panels.subject import Chosen, Subject
from tgbench.views.values.pareto import Curve, Point

MOST_NODES = 2_000  # whose inspector is written down; the largest


def page(
    shown: GraphSession | Plan | str | Path,
    graph: Graph | None = None,
    against: Plan | str | Path | None = None,
) -> str:
    """The screen as one HTML document.

    Args:
        graph: what a plan is for: with it live ranges and fates are exact, and the graph is there.
        against: another plan, shown as what is proposed.

    Raises PlanError for a damaged plan, one for another graph, or to compare with one of another
    model, WidgetError for what is no plan and has none.
    """
    subject = Subject.of(shown, graph)
    subject.is_live, plans = False, [subject.known_plan]
    if against is not None:
        subject.compare(against)
        assert subject.shown is not None
        plans.append(subject.shown)
    points = [Point(p.budget_bytes or p.size_bytes, p) for p in plans]
    subject.curve = Curve(tuple(sorted(points, key=lambda point: point.plan.size_bytes)))
    made = {name: payload(name, subject, Chosen()) for name in PARTS}
    words = str(subject.shown).splitlines()[0]
    state = {
        "panels": [name for name in made if made[name]], "label": words, "table": {},
        "selected": [], "step": -1, "bucket": "", "remark": "",
        "buffers": {name: _text(data) for name, data in made.items()},
    }  # fmt: skip
    written = {
        "state": state, "nodes": _by_node(subject), "classes": _by_class(subject),
        "answers": {"json": {"name": "plan.json", "text": _json(subject)}},
    }  # fmt: skip
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{escape(_title(subject))}</title>",
            f"<style>{style()}html,body{{margin:0}}</style></head>",
            f'<body><div id="screen"></div><noscript>{escape(words)}</noscript>',
            f'<script type="application/json" id="written">{embedded(written)}</script>',
            f'<script type="module">{module("page.js")}</script></body></html>\n',
        ]
    )


def _title(subject: Subject) -> str:
    """As much as a browser shows of it: what is told of a plan is longer."""
    plan = subject.shown
    if plan is None:
        return "tgbench"
    return f"tgbench: {format_time(plan.expected_ns)} a run in {format_bytes(plan.size_bytes)}"


def _json(subject: Subject) -> str:
    return subject.shown.to_json() if subject.shown is not None else ""


def _by_node(subject: Subject) -> dict[str, dict[str, str]]:
    """The inspector of every node with bytes, and of none."""
    slots = subject.shown.slots if subject.shown is not None else ()
    largest = sorted(slots, key=lambda slot: -slot.size_bytes)[:MOST_NODES]
    chosen = [Chosen(), *(Chosen((slot.node,)) for slot in largest)]
    return {one.node: _panels(subject, one, "nodes") for one in chosen}


def _by_class(subject: Subject) -> dict[str, dict[str, str]]:
    """What depends on the class of runs, but for the inspector, which is about a node too."""
    names = [*subject.classes(), *subject.alone()]
    found = {name: _panels(subject, Chosen(bucket=name), "bucket") for name in names}
    return {
        n: {p: text for p, text in made.items() if p != "inspector"} for n, made in found.items()
    }


def _panels(subject: Subject, chosen: Chosen, what: Any) -> dict[str, str]:
    return {
        name: _text(payload(name, subject, chosen))
        for name, part in PARTS.items()
        if what in part.hears
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
