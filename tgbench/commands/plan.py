"""`tgbench plan`: check a plan file and show what it decides.

$ tgbench plan decode.plan.json
plan for 34fb00d3ab0c on cpu: 127.9 KiB (bound 127.9 KiB), 16 nodes retained …
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tgbench.commands.model import add_graph, graph_of
from tgbench.plans.plan import Plan


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", type=Path, help="a plan file (`session.save_plan`)")
    add_graph(parser, "checks the memory map against it")
    add("--explain", metavar="NODE", help="why a node is or is not retained")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: the plan is whole, and for the graph if one is named. Raises PlanError otherwise."""
    plan = Plan.load(arguments.plan)
    graph = graph_of(arguments)
    if graph is not None:
        plan.placement_for(graph, plan.device)
    why = None if arguments.explain is None else plan.explain(arguments.explain, graph)
    if arguments.json:
        facts = summary(plan) | ({} if why is None else {"explanation": str(why)})
        print(json.dumps(facts, indent=1))
    else:
        print(plan if why is None else why)
    return 0


def summary(plan: Plan) -> dict[str, object]:
    """What a script wants to know of a plan."""
    record = plan.search
    return {
        "graph": plan.graph, "device": plan.device, "size_bytes": plan.size_bytes,
        "kept_bytes": plan.kept_bytes, "bound_bytes": plan.bound_bytes,
        "budget_bytes": plan.budget_bytes, "expected_ns": plan.expected_ns,
        "retained": list(plan.retained), "dropped": list(plan.dropped), "exact": plan.exact,
        "search": None if record is None else {
            "mode": record.mode, "steps": record.steps, "stop": record.stop,
            "best_ns": record.best_ns, "bound_ns": record.bound_ns, "seed": record.seed,
        },
    }  # fmt: skip
