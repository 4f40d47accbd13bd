"""`tgbench report`: a plan as a page that needs no server.

$ tgbench report decode.plan.json --graph model.json --output decode.html
decode.html: plan for e777a14e2ca4 on cpu: 80.56 KiB (bound 80.56 KiB), 4 nodes retained …
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tgbench.base.safetensors import atomic_path
from tgbench.commands.model import add_graph, graph_of
from tgbench.plans.plan import Plan
from tgbench.views.pages.plan_report import page_of_plan


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", type=Path, help="a plan file (`session.save_plan`)")
    add_graph(parser, "the map then shows when a value is last read")
    add("--output", type=Path, default=Path("report.html"), help="the page (report.html)")


def run(arguments: argparse.Namespace) -> int:
    """0: the page is written. Raises PlanError for a damaged plan, or one for another graph."""
    plan = Plan.load(arguments.plan)
    text = page_of_plan(plan, graph_of(arguments))
    with atomic_path(arguments.output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"{arguments.output}: {str(plan).splitlines()[0]}")
    return 0
