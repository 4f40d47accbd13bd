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

from tgbench.base.errors import MOST_INTEGER, PlanError, TraceError
from tgbench.base.files import is_there
from tgbench.commands.model import add_model, session_of
from tgbench.commands.numbers import seconds, whole
from tgbench.commands.plan import summary
from tgbench.commands.targets import require_apart, require_writable
from tgbench.plans.search.effort import MODES

MADE = "make one with `tgbench run --trace`"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model(parser)
    add("--trace", type=Path, required=True, help="the runs to be fast at (`trace=`: .jsonl)")
    add("--plan", type=Path, required=True, help="plan file; if it is there, the search goes on")
    add("--records", help="measured times: a file or a database URL (the user's own)")
    add("--mode", choices=MODES, default="search", help="how to search (search)")
    add("--seconds", type=seconds, help="when to stop (30)")
    add("--steps", type=whole(0, MOST_INTEGER - 1), help="windows after which to stop")
    add("--seed", type=whole(0, MOST_INTEGER - 1), default=0, help="of the search (0)")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: the plan is written. Ctrl-C keeps the best one found."""
    if not is_there(arguments.trace):
        raise PlanError(f"{arguments.trace}: there is no such trace; {MADE}")
    require_writable(arguments.plan)
    is_file = arguments.records is not None and "://" not in arguments.records
    require_apart(
        PlanError, [arguments.plan], arguments.model, arguments.weights, arguments.trace,
        Path(arguments.records) if is_file else None,
    )  # fmt: skip
    with tqdm(file=sys.stderr, disable=None, leave=False, bar_format="{desc} {elapsed}") as bar:
        session = session_of(
            arguments, plan=arguments.plan, trace=arguments.trace, records=arguments.records,
            progress=lambda message: bar.set_description_str(message),
        )  # fmt: skip
        if not len(session.trace):
            raise TraceError(f"{arguments.trace}: the trace is empty; {MADE}")
        plan = session.optimize(
            arguments.mode, arguments.seconds, steps=arguments.steps, seed=arguments.seed
        )
    print(json.dumps(summary(plan), indent=1) if arguments.json else plan)
    return 0
