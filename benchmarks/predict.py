"""Predicted against measured time of whole programs, bucket by bucket.

    profile some runs  ─→  records  ─→  cost model  ─→  predicted time of every program
    the same programs and others, at positions that were not profiled  ─→  measured time

A repetition profiles into a database of its own, then measures all programs in turns: other work on
the machine slows both alike. What is predicted and measured is the bare loop over a program's
calls; comparing inputs and copying results out come on top (see `bench.engine`). On one thread the
processor's own clock is compared as well: it leaves out what other processes took in between.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode import LARGE, QUICK, TOY, Size, checkpoint
from benchmarks.engine import Decoder, Effort, bare
from benchmarks.measure import ms, run_models, take_turns, timed
from tgbench.commands.progress import note, say, table
from tgbench.costs.model import CostModel, Estimate
from tgbench.costs.records import Records
from tgbench.costs.signature import streams
from tgbench.programs.program import Program
from tgbench.session.profile import expect, predict, profile, survey

Results = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """How much is measured.

    Fields:
        size: the model.
        repetitions: each profiles anew.
        steps: runs of every program in a repetition.
        burst: runs of a program in a turn; a tiny program is slower after another one.
    """

    size: Size
    repetitions: int
    steps: int
    burst: int


FULL, SMALL, TINY = Amount(LARGE, 5, 8, 1), Amount(TOY, 5, 128, 16), Amount(QUICK, 1, 4, 2)


@dataclass(frozen=True)
class Bucket:
    """A program whose time is predicted.

    Fields:
        profiled: it is among the programs that are profiled; the others are new to the records.
    """

    name: str
    profiled: bool
    state: int
    program: Program


def buckets(decoder: Decoder, profiled: bool) -> list[Bucket]:
    """A prompt, a token, an edit, several tokens: where it is profiled, or at other positions."""
    session, first = decoder.session, decoder.first
    prompt, edited, more = (first, first // 2, 4) if profiled else (first * 3 // 4, first // 4, 6)
    session.programs.clear()  # a program made for other positions is not moved, but made anew
    runs: dict[str, Callable[[], Any]] = {
        f"prompt of {prompt}": decoder.prefill,
        f"token after {prompt}": lambda: (decoder.decode(), decoder.decode()),
        f"edit at {edited} of {prompt}": lambda: decoder.edit(edited),
        f"{more} tokens after {prompt}": lambda: decoder.decode(more),
    }
    decoder.first, found = prompt, []
    for name, run in runs.items():
        run()
        program = decoder.last.program
        state = next(state for state, _, known in session.programs if known is program)
        found.append(Bucket(name, profiled, state, program))
    decoder.first = first
    return found


@dataclass(frozen=True)
class Predicted:
    """Both predictions for one bucket: over its instructions, and as a planner sees it."""

    instructions: Estimate
    planner: Estimate


def predicted(decoder: Decoder, found: Sequence[Bucket], model: CostModel) -> list[Predicted]:
    return [
        Predicted(
            predict(survey(decoder.session, bucket.program), model),
            expect(bucket.program, model),
        )
        for bucket in found
    ]


def repetition(
    decoder: Decoder, seen: Sequence[Bucket], new: Sequence[Bucket], amount: Amount
) -> tuple[list[Predicted], list[list[int]], list[list[int]], float]:
    """Profile anew, predict, and measure all programs in turns."""
    session, programs = decoder.session, [(bucket.state, bucket.program) for bucket in seen]
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "records.db")
        done = profile(session, records, alternatives=False, programs=programs)
        model = CostModel(records, streams=streams(session.pool.parameter_bytes))
    everything = [*seen, *new]
    cpu: list[list[int]] = [[] for _ in everything]
    loops: Mapping[str, Callable[[], int]] = {
        bucket.name: partial(_loop, bucket.program, own)
        for bucket, own in zip(everything, cpu, strict=True)
    }
    samples = take_turns(loops, 1, amount.steps, burst=amount.burst)
    times = [list(samples.times[bucket.name][0]) for bucket in everything]
    return predicted(decoder, everything, model), times, cpu, done.took_s


def _loop(program: Program, cpu: list[int]) -> int:
    began = time.thread_time_ns()
    _, took = timed(partial(bare, program))
    cpu.append(time.thread_time_ns() - began)
    return took


def measure(amount: Amount, cache: Path) -> Results:
    """Every bucket of one model."""
    size = amount.size
    folder = checkpoint(size, cache)
    say(f"\n{size.name}, {size.tokens} positions, prompt {size.prompt}")
    decoder = Decoder(Effort(size, (None,), 0, 0, 0), folder)
    for _ in range(2):  # at first some runs may need another plan, and other programs with it
        new = buckets(decoder, profiled=False)
        seen = buckets(decoder, profiled=True)
    runs = []
    for i in range(amount.repetitions):
        note(f"{size.name}: repetition {i + 1} of {amount.repetitions}")
        runs.append(repetition(decoder, seen, new, amount))
    threads = torch.get_num_threads()
    found = [_summed(bucket, i, runs) for i, bucket in enumerate([*seen, *new])]
    rows = [
        [
            row["name"],
            "yes" if row["profiled"] else "no",
            ms(row["measured_ns"]),
            *(f"{row[which]['ratio']:.3f}" for which in ("instructions", "planner")),
            f"{row['instructions']['cpu_ratio']:.3f}" if threads == 1 else "-",
            f"{row['instructions']['measured_share']:.0%}",
        ]
        for row in found
    ]
    header = [
        "bucket", "profiled", "measured, ms", "predicted ÷", "planner ÷", "÷ cpu",
        "from measurements",
    ]  # fmt: skip
    say("\n" + table(header, rows))
    return {
        "model": asdict(size),
        "threads": threads,
        "profile_s": [took for *_, took in runs],
        "buckets": found,
    }


def _summed(bucket: Bucket, i: int, runs: Sequence[Any]) -> Results:
    """The ratio of a repetition is its prediction over its median; the row has their median."""
    medians = [statistics.median(times[i]) for _, times, _, _ in runs]
    own = [statistics.median(cpu[i]) for _, _, cpu, _ in runs]
    parts = {}
    for which in ("instructions", "planner"):
        estimates: list[Estimate] = [getattr(found[i], which) for found, *_ in runs]
        pairs = zip(estimates, medians, strict=True)
        ratios = [estimate.time_ns / median for estimate, median in pairs]
        parts[which] = {
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "cpu_ratio": statistics.median(
                e.time_ns / median for e, median in zip(estimates, own, strict=True)
            ),
            "predicted_ns": [estimate.time_ns for estimate in estimates],
            "measured_share": statistics.median(e.share("measured") for e in estimates),
        }
    return {
        "name": bucket.name,
        "profiled": bucket.profiled,
        "instructions_count": len(bucket.program),
        "measured_ns": statistics.median(medians),
        "samples_ns": [times[i] for _, times, _, _ in runs],
        "samples_cpu_ns": [cpu[i] for _, _, cpu, _ in runs],
        **parts,
    }


def main(argv: Sequence[str] | None = None) -> int:
    quick, full = (
        {amount.size.name: partial(measure, amount) for amount in amounts}
        for amounts in ([TINY], [FULL, SMALL])
    )
    return run_models("predict", "Predicted against measured time.", argv, quick, full)


if __name__ == "__main__":
    sys.exit(main())
