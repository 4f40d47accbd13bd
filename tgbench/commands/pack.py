"""`tgbench pack`: pack a file of buffers.

$ tgbench pack buffers.csv --capacity 1048576 --output packed.csv
height 1 MiB of 1 MiB; bound 1 MiB, ratio 1.0000; the capacity is met
234 buffers, 2804 steps, 0.05 s
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from tgbench.base.errors import InputError
from tgbench.base.stopping import StopReason
from tgbench.base.words import counted, format_bytes
from tgbench.commands.numbers import some_seconds, whole
from tgbench.commands.targets import require_apart, require_writable
from tgbench.memory.packing.drawing import draw
from tgbench.memory.packing.files import read_minimalloc, write_minimalloc
from tgbench.memory.packing.packer import pack
from tgbench.memory.packing.problem import Problem, Solution

MEANINGS = {
    StopReason.OPTIMAL: "no packing is lower",
    StopReason.FITS: "the capacity is met",
    StopReason.INFEASIBLE: "no packing meets the capacity",
    StopReason.NO_SEARCH: "the heuristics are through, and no search was asked for",
    StopReason.STEPS: "the limit of search steps is reached",
    StopReason.SECONDS: "the time limit is reached",
}
TOO_HIGH = 3  # exit status: a solution was found, and it is above the capacity


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, help="CSV as minimalloc's: id,lower,upper,size and perhaps gaps")
    add("--capacity", type=whole(1), help="bytes to fit into; without it, as low as possible")
    add("--seconds", type=some_seconds, default=60.0, help="for the complete search (default: 60)")
    add("--alignment", type=whole(1), default=1, help="bytes (default: 1)")
    add("--output", type=Path, help="write the file with a column of offsets")
    add("--json", action="store_true", help="say it as JSON")
    add("--draw", action="store_true", help="show the packing as text")


def run(arguments: argparse.Namespace) -> int:
    """0: done, and the capacity is met where there is one; `TOO_HIGH`: it is not."""
    require_writable(arguments.output)
    require_apart(InputError, [arguments.output], arguments.file)
    problem = read_minimalloc(arguments.file, arguments.capacity, arguments.alignment)
    began = time.perf_counter()
    solution = pack(problem, search=True, seconds=arguments.seconds)
    took = time.perf_counter() - began
    if arguments.output is not None:
        write_minimalloc(arguments.output, problem, solution)
    print(_as_json(problem, solution, took) if arguments.json else _said(problem, solution, took))
    if arguments.draw:
        print(draw(problem, solution))
    return 0 if _fits(problem, solution) else TOO_HIGH


def _fits(problem: Problem, solution: Solution) -> bool:
    return problem.capacity_bytes is None or solution.height_bytes <= problem.capacity_bytes


def _said(problem: Problem, solution: Solution, seconds: float) -> str:
    capacity = problem.capacity_bytes
    of = "" if capacity is None else f" of {format_bytes(capacity)} ({capacity} B)"
    reason = MEANINGS[solution.stop_reason] if solution.stop_reason else ""
    return (
        f"height {format_bytes(solution.height_bytes)} ({solution.height_bytes} B){of}; "
        f"bound {solution.bound_bytes} B, ratio {solution.ratio:.4f}\n"
        f"{reason}; {counted(len(problem.buffers), 'buffer')}, "
        f"{counted(solution.steps, 'step')}, {seconds:.3g} s"
    )


def _as_json(problem: Problem, solution: Solution, seconds: float) -> str:
    return json.dumps(
        {
            "buffers": len(problem.buffers),
            "capacity_bytes": problem.capacity_bytes,
            "fits": _fits(problem, solution),
            "height_bytes": solution.height_bytes,
            "bound_bytes": solution.bound_bytes,
            "ratio": round(solution.ratio, 6),
            "is_proven": solution.is_proven,
            "stop_reason": solution.stop_reason.name if solution.stop_reason else None,
            "packer": solution.packer,
            "steps": solution.steps,
            "seconds": round(seconds, 4),
        },
        indent=1,
    )
