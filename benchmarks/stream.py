"""A causal network fed sample by sample: cost of a block in windows of several lengths.

repetition   block: window 1024 | 4096 | 16384 │ block: 4096 | 16384 | 1024 │ …

python -m benchmarks.stream
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Command, ms, take_turns
from tgbench.commands.apps.streaming import Stream
from tgbench.commands.apps.tcn import Wavenet
from tgbench.commands.progress import note, say, table

WINDOWS, BLOCK, CHANNELS, LAYERS, STEPS, REPETITIONS = (1024, 4096, 16384), 1, 32, 8, 200, 3


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("stream", "A causal network fed sample by sample.")
    command.add_argument("--block", type=int, default=BLOCK, help=f"samples ({BLOCK})")
    options, record = command.begin(argv)
    windows = (64, 128) if options.quick else WINDOWS
    found = measured(windows, 3 if options.quick else LAYERS, 10 if options.quick else STEPS,
                     options.block)  # fmt: skip
    say(table(["window", "block, ms", "multiply–adds", "full forward, ms"], [
        [name, ms(facts["block_ns"]), f"{facts['multiply_adds']:,}", ms(facts["full_ns"])]
        for name, facts in found["windows"].items()]))  # fmt: skip
    record.write(found, options.output)
    return 0


def measured(windows: tuple[int, ...], layers: int, steps: int, block: int) -> dict[str, Any]:
    module = Wavenet(CHANNELS, layers)
    random = np.random.default_rng(0)
    streams = {str(window): Stream.of(module, 1, block, window) for window in windows}
    for name, made in streams.items():
        while made.at < made.reach + 4 * block:
            made.push(random.normal(size=(1, block)).astype(np.float32))
        note(f"window {name}: programs made")
    before = {name: len(made.pushed) for name, made in streams.items()}

    def pusher(made: Stream) -> Callable[[], int]:
        def push() -> int:
            made.push(random.normal(size=(1, block)).astype(np.float32))
            return made.pushed[-1].time_ns

        return push

    samples = take_turns(
        {name: pusher(made) for name, made in streams.items()}, REPETITIONS, steps, tell=note
    )
    rows = {}
    for name, made in streams.items():
        counts = {p.multiply_adds for p in made.pushed[before[name] :] if not p.refilled}
        rows[name] = {
            "block_ns": samples.median(name), "medians_ns": samples.medians(name),
            "multiply_adds": max(counts), "multiply_adds_seen": sorted(counts),
            "full_ns": _full(module, int(name)), "arena_bytes": made.session.placement.size_bytes,
        }  # fmt: skip
    return {"block": block, "channels": CHANNELS, "layers": layers,
            "reach": module.reach, "windows": rows}  # fmt: skip


def _full(module: torch.nn.Module, window: int) -> int:
    """The fastest of three full forwards over the window."""
    x, times = torch.zeros(1, 1, window), []
    with torch.inference_mode():
        for _ in range(3):
            began = time.perf_counter_ns()
            module(x)
            times.append(time.perf_counter_ns() - began)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
