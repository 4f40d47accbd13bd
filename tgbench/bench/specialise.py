"""How long a program takes to make, for places of an image that were never covered before.

    groups of a sweep, in a drawn order │ first quarter: memos fill │ the rest: measured │

An occlusion sweep at 224² needs a program for nearly every place: borders clip what is reached, and
strides tell places apart. Making one is deciding, lowering and binding; its time is the
processor's, so that other work on the machine counts little.

    python -m tgbench.bench.specialise
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tgbench.apps.cnn import NETWORKS, seeded
from tgbench.apps.occlusion import Place, grouped, plan, run_clean, run_covered, session_of
from tgbench.bench.measure import RESULTS, Record, Stopwatch, progress, say, table, threads
from tgbench.memory import Memory
from tgbench.session import GraphSession

PATCH, SIZE, SEED, AT_ONCE = 16, 224, 0, (1, 4)
QUICK_GROUPS = 12


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m tgbench.bench.specialise")
    parser.add_argument("--quick", action="store_true", help="resnet18, few places, no file")
    parser.add_argument("--only", choices=list(NETWORKS), help="one network alone")
    parser.add_argument("--output", type=Path, help="the JSON file (docs/results/specialise.json)")
    options = parser.parse_args(words)
    record = Record("specialise", words)
    names = [options.only] if options.only else ["resnet18"] if options.quick else list(NETWORKS)
    with threads(1):
        found = {
            name: {str(rows): measured(name, rows, options.quick) for rows in AT_ONCE}
            for name in names
        }
        say(table(
            ["network", "rows", "calls", "CPU ms: memos fill", "then", "mean", "a place"],
            [_row(name, rows, facts) for name, of in found.items() for rows, facts in of.items()],
        ))  # fmt: skip
        output = options.output or (None if options.quick else RESULTS / "specialise.json")
        record.write({"networks": found}, output)
    return 0


def _row(name: str, rows: str, facts: dict[str, Any]) -> list[str]:
    fills, then, mean = (facts[key] for key in ("filling_ms", "median_ms", "mean_ms"))
    per_place = then / facts["at_once"]
    return [
        name, rows, str(facts["instructions"]), *(f"{n:.1f}" for n in (fills, then, mean)),
        f"{per_place:.2f}",
    ]  # fmt: skip


def measured(name: str, at_once: int, quick: bool) -> dict[str, Any]:
    """One network, with so many places in a run."""
    image = np.random.default_rng(SEED).normal(size=(1, 3, SIZE, SIZE)).astype(np.float32)
    session = session_of(seeded(NETWORKS[name]()), image, at_once)
    starts = range(0, SIZE - PATCH + 1, PATCH)
    groups = [g for g in grouped(starts, starts, PATCH, at_once) if len(g) == at_once]
    random.Random(SEED).shuffle(groups)
    groups = groups[:QUICK_GROUPS] if quick else groups
    plan(session, groups)
    run_clean(session, image)
    progress(f"{name}, {at_once} at once: planned")
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
    watch = Stopwatch({"whole": (Memory, "specialise")})
    with watch:
        run_covered(session, image, tuple(places), 0, 0.0)
    return watch.cpu_ns["whole"], session.report().instructions


if __name__ == "__main__":
    sys.exit(main())
