"""Occlusion sweeps of CNNs at 224²: what they compute and how long they take, beside PyTorch.

    repetition   run 1: sweep | full forward | batch │ run 2: full forward | batch | sweep │ …

A run of the sweep covers several places, each in its own row of a batch; a place's time is the
run's, divided by its places. Beside it stand a full forward of one image, and one of a batch of as
many covered images, each the faster of contiguous and channels_last, eager, in inference mode.
Multiply–adds are those that the patches reach, each by itself; that they are the exact ones is for
`tests/commands/test_apps.py` to say. A run may execute some more, where it joins boxes to save
calls.

    python -m benchmarks.occlusion
"""

from __future__ import annotations

import copy
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measure import Command, Step, ms, take_turns, threads
from tgbench.base.regions import Box, Region
from tgbench.commands.apps.cnn import NETWORKS, Basic, ResNet, seeded
from tgbench.commands.apps.occlusion import (
    AT_ONCE,
    Floats,
    Place,
    covered,
    full_multiply_adds,
    grouped,
    plan,
    run_clean,
    run_covered,
    session_of,
)
from tgbench.commands.progress import note, say, table
from tgbench.session.report import flops
from tgbench.session.session import GraphSession

THREADS, REPETITIONS = 2, 3


@dataclass(frozen=True)
class Sweep:
    """What is covered: square patches of square images, side by side.

    Fields:
        every: a run of so many is measured.
        at_once: places per run.
    """

    size: int = 224
    patch: int = 16
    every: int = 1
    at_once: int = AT_ONCE


QUICK = Sweep(16, 8, at_once=2)
TINY: dict[str, Callable[[], nn.Module]] = {"tiny": lambda: ResNet(Basic, (1, 1, 1, 1), 4, 10)}


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("occlusion", "Occlusion sweeps of CNNs at 224², beside PyTorch.")
    command.add_argument("--only", choices=list(NETWORKS), help="one network alone")
    command.add_argument("--threads", type=int, default=THREADS, help=f"({THREADS})")
    command.add_argument("--every", type=int, default=1, help="measure a run of so many (1: all)")
    command.add_argument("--at-once", type=int, default=AT_ONCE, help=f"places per run ({AT_ONCE})")
    options, record = command.begin(argv)
    sweep = QUICK if options.quick else Sweep(every=options.every, at_once=options.at_once)
    with threads(options.threads):
        found = {
            name: measured(name, make, sweep)
            for name, make in (TINY if options.quick else NETWORKS).items()
            if options.only in (None, name)
        }
        say(table(["network", "full, ms", "of a batch", "a place", "time", "multiply–adds", "share",
                   "beside a batch", "first, ms"],
                  [_row(name, facts) for name, facts in found.items()]))  # fmt: skip
        record.write({"at_once": sweep.at_once, "networks": found}, options.output)
    return 0


def _row(name: str, facts: dict[str, Any]) -> list[str]:
    return [
        name, ms(facts["full_ns"]), ms(facts["batch_ns"]), ms(facts["place_ns"]),
        f"{facts['time_ratio']:.2f} ×", f"{facts['multiply_add_ratio']:.2f} ×",
        f"{facts['share']:.2f}", f"{facts['batch_time_ratio']:.2f} ×", ms(facts["first_place_ns"]),
    ]  # fmt: skip


def measured(name: str, make: Callable[[], nn.Module], sweep: Sweep) -> dict[str, Any]:
    """One network: two sweeps by one program for all places; and one that makes a program for each
    run, then sweeps in turns with full forwards.
    """
    module, at_once = seeded(make()), sweep.at_once
    shape = (1, 3, sweep.size, sweep.size)
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    session = session_of(module, image, at_once, "always")
    starts = list(range(0, sweep.size - sweep.patch + 1, sweep.patch))
    everywhere = grouped(starts, starts, sweep.patch, at_once)
    groups = random.Random(0).sample(everywhere, ceil(len(everywhere) / sweep.every))
    began = time.perf_counter_ns()
    plan(session, everywhere)
    planned = time.perf_counter_ns() - began
    run_clean(session, image)
    anywhere = _anywhere(module, image, everywhere, groups)
    note(f"{name}: swept by one program")
    full = full_multiply_adds(session, image)
    first = [run_covered(session, image, places, 0, 0.0) for places in groups]
    note(f"{name}: programs made")
    at = iter(groups * REPETITIONS)

    def place() -> int:
        places = next(at)
        return run_covered(session, image, places, 0, 0.0).time_ns // len(places)

    several = covered(np.repeat(image, at_once, axis=0), groups[0], 0.0)
    batches = {"image": image, "batch": several}
    systems = {"place": place} | {
        f"{what}, {kind}": _forward(module, batch, kind)
        for what, batch in batches.items()
        for kind in FORMATS
    }
    samples = take_turns(systems, REPETITIONS, len(groups), tell=note)
    means = {kind: [statistics.mean(times) for times in samples.times[kind]] for kind in systems}
    best, batch = (
        min(
            (f"{what}, {kind}" for kind in FORMATS), key=lambda kind: statistics.median(means[kind])
        )
        for what in batches
    )
    number, counts = sum(map(len, groups)), reached(session, groups)
    ratio = full * number / sum(counts)
    ratios, batch_ratios = _ratios(means, best), _ratios(means, batch)
    return {
        "places": number, "multiply_adds_full": full,
        "multiply_adds_runs": counts, "multiply_add_ratio": ratio,
        "executed": sum(one.multiply_adds for one in first) / sum(counts),
        "place_ns": statistics.median(means["place"]), "full_ns": statistics.median(means[best]),
        "batch_ns": statistics.median(means[batch]),
        "full_format": best, "batch_format": batch, "means_ns": means, "time_ratios": ratios,
        "time_ratio": statistics.median(ratios), "share": statistics.median(ratios) / ratio,
        "batch_time_ratios": batch_ratios,
        "batch_time_ratio": statistics.median(batch_ratios),
        "batch_share": statistics.median(batch_ratios) / ratio,
        "plan_ns": planned,
        "first_place_ns": sum(one.time_ns for one in first) / number,
        "anywhere_place_ns": anywhere,
        "programs": sum(one.specialised for one in first),
        "plans": session.counters.planned,
        "arena_bytes": session.placement.size_bytes, "loads": list(samples.loads),
    }  # fmt: skip


def _anywhere(
    module: nn.Module, image: Floats, everywhere: Sequence[tuple[Place, ...]],
    groups: Sequence[tuple[Place, ...]],
) -> list[float]:  # fmt: skip
    """What a place takes in the first two sweeps of a session that makes a program for all."""
    session = session_of(module, image, len(everywhere[0]))
    plan(session, everywhere)
    session.prepare()
    run_clean(session, image)
    number = sum(map(len, groups))
    return [
        sum(run_covered(session, image, places, 0, 0.0).time_ns for places in groups) / number
        for _ in range(2)
    ]


def reached(session: GraphSession, groups: Sequence[Sequence[Place]]) -> list[int]:
    """Multiply–adds of what each run's patches reach: with every value kept, nothing is joined."""
    scheduled = session.scheduled
    propagator = scheduled.propagator(session.rules, scheduled.stored)
    (node,), (logits,) = session.graph.inputs.values(), session.graph.outputs.values()
    clean = propagator.step(
        {}, {node: Region.full(node.shape)}, {logits: Region.full(logits.shape)}
    )
    found = []
    for places in groups:
        patches = Region.of(*(
            Box(((row, row + 1), (0, node.shape[1]), (top, bottom), (left, right)))
            for row, (top, bottom, left, right) in enumerate(places)
        ))  # fmt: skip
        rows = Region((Box(((0, len(places)), (0, logits.shape[1]))),))
        step = propagator.step(clean.valid, {node: patches}, {logits: rows})
        found.append(flops([step], (), products=True) // 2)
    return found


def _ratios(means: dict[str, list[float]], kind: str) -> list[float]:
    """For each repetition, a full forward's time over a place's."""
    return [theirs / ours for theirs, ours in zip(means[kind], means["place"], strict=True)]


FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def _forward(module: torch.nn.Module, images: Floats, kind: str) -> Step:
    """A full forward over a copy of the weights in one memory format; its time per image."""
    made = copy.deepcopy(module).to(memory_format=FORMATS[kind])  # type: ignore[call-overload]
    x = torch.from_numpy(images).contiguous(memory_format=FORMATS[kind])

    def forward() -> int:
        with torch.inference_mode():
            began = time.perf_counter_ns()
            made(x)
            return (time.perf_counter_ns() - began) // len(images)

    forward()
    return forward


if __name__ == "__main__":
    sys.exit(main())
