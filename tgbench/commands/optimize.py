"""`tgbench optimize`: the best plan for a model's trace under a budget, as a file.

$ tgbench optimize model.json --trace runs.jsonl --memory 64MiB --seconds 60 --plan plan.json
plan for 34fb00d3ab0c on cpu: 63.9 MiB (bound 63.9 MiB), 36 nodes retained …
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from tgbench.base.errors import PlanError
from tgbench.commands.model import add_dtype, dtypes_of
from tgbench.commands.plan import summary
from tgbench.graph.graph_file import load_graph
from tgbench.plans.search.effort import MODES
from tgbench.session.session import GraphSession


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("graph", type=Path, help="a graph file (`save_graph`: .json)")
    add("--weights", type=Path, required=True, help="safetensors file or checkpoint")
    add("--trace", type=Path, required=True, help="the runs to be fast at (`trace=`: .jsonl)")
    add("--plan", type=Path, required=True, help="plan file; if it is there, the search goes on")
    add("--memory", help="budget of the arena, such as 64MiB (what is needed)")
    add("--device", default="cpu", help="cpu or cuda:0 (cpu)")
    add_dtype(parser)
    add("--records", help="measured times: a file or a database URL (the user's own)")
    add("--mode", choices=MODES, default="search", help="how to search (search)")
    add("--seconds", type=float, help="when to stop (30)")
    add("--steps", type=int, help="windows after which to stop")
    add("--seed", type=int, default=0, help="of the search (0)")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: the plan is written. Ctrl-C keeps the best one found."""
    if not arguments.trace.exists():
        raise PlanError(f"{arguments.trace}: there is no such trace; run a session with trace=")
    with tqdm(file=sys.stderr, disable=None, leave=False, bar_format="{desc} {elapsed}") as bar:
        session = GraphSession(
            load_graph(arguments.graph), arguments.weights, arguments.memory, arguments.device,
            arguments.plan, arguments.trace, records=arguments.records,
            progress=lambda message: bar.set_description_str(message),
            **dtypes_of(arguments),
        )  # fmt: skip
        plan = session.optimize(
            arguments.mode, arguments.seconds, steps=arguments.steps, seed=arguments.seed
        )
    print(json.dumps(summary(plan), indent=1) if arguments.json else plan)
    return 0
