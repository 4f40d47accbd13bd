"""Occlusion sweeps of CNNs at 224²: what they compute and how long they take, beside PyTorch.

    repetition   place 1: sweep | full forward │ place 2: full forward | sweep │ …

That the multiply–adds are the exact ones is for `tests/test_apps.py` to say. The full
forward is the faster of contiguous and channels_last, eager, in inference mode.

    python -m tgbench.bench.occlusion
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tgbench.apps.cnn import NETWORKS, seeded
from tgbench.apps.occlusion import multiply_adds_from_nothing, plan, run_covered, session_of
from tgbench.bench.measure import RESULTS, Record, ms, progress, say, table, take_turns, threads

PATCH, SIZE, THREADS, REPETITIONS = 16, 224, 2, 3


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m tgbench.bench.occlusion")
    parser.add_argument("--quick", action="store_true", help="resnet18, few places, no file")
    parser.add_argument("--only", choices=list(NETWORKS), help="one network alone")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"({THREADS})")
    parser.add_argument("--every", type=int, default=1, help="of the rows and columns (1: all)")
    parser.add_argument("--output", type=Path, help="the JSON file (docs/results/occlusion.json)")
    options = parser.parse_args(words)
    record = Record("occlusion", words)
    names = [options.only] if options.only else ["resnet18"] if options.quick else list(NETWORKS)
    every = 5 if options.quick else options.every
    with threads(options.threads):
        found = {name: measured(name, every) for name in names}
        say(table(["network", "full, ms", "a place, ms", "time", "multiply–adds", "first, ms"],
                  [_row(name, facts) for name, facts in found.items()]))  # fmt: skip
        output = options.output or (None if options.quick else RESULTS / "occlusion.json")
        record.write({"networks": found}, output)
    return 0


def _row(name: str, facts: dict[str, Any]) -> list[str]:
    return [
        name, ms(facts["full_ns"]), ms(facts["place_ns"]), f"{facts['time_ratio']:.2f} ×",
        f"{facts['multiply_add_ratio']:.2f} ×", ms(facts["first_place_ns"]),
    ]  # fmt: skip


def measured(name: str, every: int) -> dict[str, Any]:
    """One network: a sweep that makes the programs, then sweeps in turns with full forwards."""
    module = seeded(NETWORKS[name]())
    image = np.random.default_rng(0).normal(size=(1, 3, SIZE, SIZE)).astype(np.float32)
    session = session_of(module, image)
    starts = list(range(0, SIZE - PATCH + 1, PATCH))
    began = time.perf_counter_ns()
    plan(session, PATCH, starts, starts)
    planned = time.perf_counter_ns() - began
    (input_name,) = session.graph.inputs
    session.run({input_name: image})
    full = multiply_adds_from_nothing(session, input_name, image)
    places = [(top, top + PATCH, left, left + PATCH)
              for top in starts[::every] for left in starts[::every]]  # fmt: skip
    first = [run_covered(session, image, place, 0, 0.0) for place in places]
    progress(f"{name}: programs made")
    at = iter(places * REPETITIONS)

    def place() -> int:
        return run_covered(session, image, next(at), 0, 0.0).time_ns

    systems = {"place": place} | {kind: _forward(module, image, kind) for kind in FORMATS}
    samples = take_turns(systems, REPETITIONS, len(places), tell=progress)
    means = {kind: [statistics.mean(times) for times in samples.times[kind]] for kind in systems}
    best = min(FORMATS, key=lambda kind: statistics.median(means[kind]))
    ratios = [a / b for a, b in zip(means[best], means["place"], strict=True)]
    counts = [one.multiply_adds for one in first]
    return {
        "places": len(places), "multiply_adds_full": full,
        "multiply_adds_places": counts,
        "multiply_add_ratio": full * len(counts) / sum(counts),
        "mean_of_ratios": statistics.mean(full / count for count in counts),
        "place_ns": statistics.median(means["place"]), "full_ns": statistics.median(means[best]),
        "full_format": best, "means_ns": means, "time_ratios": ratios,
        "time_ratio": statistics.median(ratios),
        "plan_ns": planned,
        "first_place_ns": statistics.mean(one.time_ns for one in first),
        "programs": sum(one.specialised for one in first),
        "arena_bytes": session.placement.size_bytes, "loads": list(samples.loads),
    }  # fmt: skip


FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def _forward(module: torch.nn.Module, image: Any, kind: str) -> Any:
    """A full forward over a copy of the weights in one memory format."""
    import copy

    made = copy.deepcopy(module).to(memory_format=FORMATS[kind])  # type: ignore[call-overload]
    x = torch.from_numpy(image).contiguous(memory_format=FORMATS[kind])

    def forward() -> int:
        with torch.inference_mode():
            began = time.perf_counter_ns()
            made(x)
            return time.perf_counter_ns() - began

    forward()
    return forward


if __name__ == "__main__":
    sys.exit(main())
