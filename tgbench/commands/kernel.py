"""`tgbench kernel`: tasks for kernels, and the kernels that were written for them.

$ tgbench kernel task rms_norm model.json --to task
task: read task/TASK.md
$ tgbench kernel admit task/kernel.py
kernel@8c1f…: admitted after 96 cases
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tgbench.base.words import counted
from tgbench.commands.model import add_bind, graph_at
from tgbench.commands.numbers import some_seconds
from tgbench.costs.admission.admit import SECONDS, admit
from tgbench.costs.admission.task import write_task


def configure(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="what", required=True)
    task = below.add_parser("task", help="write a folder for who implements a node's kernel")
    task.add_argument("node", help="the node's name")
    task.add_argument("model", type=Path, help="a graph (`save_graph`: .json) or .pt2 file")
    task.add_argument("--to", type=Path, required=True, help="the folder to write")
    add_bind(task)
    taken = below.add_parser("admit", help="check a kernel, and keep it under its hash")
    taken.add_argument("file", type=Path, help="kernel.py of a task")
    taken.add_argument("--task", type=Path, help="the task's graph (task.json beside the file)")
    taken.add_argument(
        "--seconds", type=some_seconds, default=SECONDS, help="time limit of the checks"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "task":
        graph = graph_at(arguments.model, arguments.bind)
        folder = write_task(graph, arguments.node, arguments.to)
        print(f"task: read {folder / 'TASK.md'}")
        return 0
    found = admit(arguments.file, arguments.task, seconds=arguments.seconds)
    print(f"{found.name}: admitted after {counted(found.cases, 'case')}")
    return 0
