"""How long a program takes to make, for places of an image that were never covered before.

    groups of a sweep, in a drawn order │ first quarter: memos fill │ the rest: measured │

An occlusion sweep at 224² needs a program for nearly every place: borders clip what is reached, and
strides tell places apart. Making one is deciding, lowering and binding; its time is the
processor's, so that other work on the machine counts little.

    python -m benchmarks.specialise
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from benchmarks.measure import Command, Stopwatch, threads
from benchmarks.occlusion import TINY, Sweep
from tgbench.commands.apps.cnn import NETWORKS, seeded
from tgbench.commands.apps.occlusion import Place, grouped, plan, run_clean, run_covered, session_of
from tgbench.commands.progress import note, say, table
from tgbench.session.memory import Memory
from tgbench.session.session import GraphSession

SEED, AT_ONCE = 0, (1, 4)
QUICK = Sweep(32, 8)


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("specialise", "Programs for places that were never covered before.")
    command.add_argument("--only", choices=list(NETWORKS), help="one network alone")
    options, record = command.begin(argv)
    sweep = QUICK if options.quick else Sweep()
    with threads(1):
        found = {
            name: {
                str(rows): measured(name, make, replace(sweep, at_once=rows)) for rows in AT_ONCE
            }
            for name, make in (TINY if options.quick else NETWORKS).items()
            if options.only in (None, name)
        }
        say(table(
            ["network", "rows", "calls", "CPU ms: memos fill", "then", "mean", "a place"],
            [_row(name, rows, facts) for name, of in found.items() for rows, facts in of.items()],
        ))  # fmt: skip
        record.write({"networks": found}, options.output)
    return 0


def _row(name: str, rows: str, facts: dict[str, Any]) -> list[str]:
    fills, then, mean = (facts[key] for key in ("filling_ms", "median_ms", "mean_ms"))
    per_place = then / facts["at_once"]
    return [
        name, rows, str(facts["instructions"]), *(f"{n:.1f}" for n in (fills, then, mean)),
        f"{per_place:.2f}",
    ]  # fmt: skip


def measured(name: str, make: Callable[[], nn.Module], sweep: Sweep) -> dict[str, Any]:
    """One network, with so many places in a run."""
    shape, at_once = (1, 3, sweep.size, sweep.size), sweep.at_once
    image = np.random.default_rng(SEED).normal(size=shape).astype(np.float32)
    session = session_of(seeded(make()), image, at_once, "always")
    starts = range(0, sweep.size - sweep.patch + 1, sweep.patch)
    groups = [g for g in grouped(starts, starts, sweep.patch, at_once) if len(g) == at_once]
    random.Random(SEED).shuffle(groups)
    plan(session, groups)
    run_clean(session, image)
    note(f"{name}, {at_once} at once: planned")
    made = [_made(session, image, group) for group in groups]
    made = [(cpu_ns, count) for cpu_ns, count in made if cpu_ns]  # the others had a program
    first = len(made) // 4
    times = [cpu_ns / 1e6 for cpu_ns, _ in made]
    return {
        "at_once": at_once, "runs": len(groups), "programs": len(made),
        "instructions": statistics.median_high(count for _, count in made),
        "filling_ms": statistics.median(times[:first]),
        "median_ms": statistics.median(times[first:]), "mean_ms": statistics.mean(times[first:]),
        "samples_ms": times,
    }  # fmt: skip


def _made(
    session: GraphSession, image: np.ndarray[Any, Any], places: Sequence[Place]
) -> tuple[int, int]:
    """Nanoseconds on the processor to make the program of a run, and how many calls it has."""
    watch = Stopwatch({"whole": (Memory, "specialising")})
    with watch:
        run_covered(session, image, tuple(places), 0, 0.0)
    return watch.cpu_ns["whole"], session.report().instructions


if __name__ == "__main__":
    sys.exit(main())
