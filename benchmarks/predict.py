"""Predicted against measured time of whole programs, bucket by bucket, as a new user gets it.

    a session that knows nothing of the machine ─→ it times kernels ─→ plan ─→ predicted times
    its programs, at positions that were and were not timed         ─→ measured times

A repetition opens a session with a database of its own, and then measures all programs in turns:
other work on the machine slows both alike. What is predicted and measured is the bare loop over a
program's calls; comparing inputs and copying results out come on top (see `bench.engine`). On one
thread the processor's own clock decides: it leaves out what other processes took. The calls of
every program are clocked one by one as well, and those whose prediction is furthest off are named.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode import LARGE, QUICK, TOY, Size, checkpoint
from benchmarks.engine import Decoder, Effort, bare
from benchmarks.measure import Clocked, both_clocks, ms, run_models
from tgbench.base.words import counted
from tgbench.commands.progress import note, say, table
from tgbench.costs.model import CostModel, Estimate
from tgbench.programs.program import Program
from tgbench.session.profile import ProfiledCall, clocked, expect, predict, survey

Results = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """How much is measured.

    Fields:
        size: the model.
        repetitions: each opens a session that knows nothing of the machine.
        steps: runs of every program in a repetition.
        burst: runs of a program in a turn; a tiny program is slower after another one.
        threads: that compute.
    """

    size: Size
    repetitions: int
    steps: int
    burst: int
    threads: int = 1

    @property
    def name(self) -> str:
        return f"{self.size.name}, {counted(self.threads, 'thread')}"


FULL, SMALL, TINY = Amount(LARGE, 3, 6, 1), Amount(TOY, 3, 128, 16), Amount(QUICK, 1, 4, 2)
SHARED = replace(FULL, threads=2)
CLOSE = 0.15  # a prediction that is no further off is called close
APART = 5  # loops whose calls are clocked one by one
NAMED = 3  # calls that are named for being off


@dataclass(frozen=True)
class Bucket:
    """A program whose time is predicted."""

    name: str
    program: Program


def buckets(decoder: Decoder) -> list[Bucket]:
    """Prompts, a token, an edit and several tokens, after two prompts of different length."""
    found: list[Bucket] = []
    first = decoder.first
    for prompt, edited, more in ((first, first // 2, 4), (first * 3 // 4, first // 4, 6)):
        decoder.first = prompt
        decoder.session.programs.clear()  # one made for other positions is moved, not made anew
        found += [_bucket(decoder, *named) for named in _runs(decoder, prompt, edited, more)]
    decoder.first = first
    return found


def _runs(
    decoder: Decoder, prompt: int, edited: int, more: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield f"prompt of {prompt}", decoder.prefill
    yield f"token after {prompt}", lambda: (decoder.decode(), decoder.decode())
    yield f"edit at {edited} of {prompt}", lambda: decoder.edit(edited)
    yield f"{more} tokens after {prompt}", lambda: decoder.decode(more)


def _bucket(decoder: Decoder, name: str, run: Callable[[], Any]) -> Bucket:
    run()
    return Bucket(name, decoder.last.program)


@dataclass(frozen=True)
class Found:
    """One repetition of one bucket.

    Fields:
        instructions, planner: predicted, over its instructions and as a planner sees it.
        wall, cpu: nanoseconds of each run by both clocks.
        calls: predicted and measured nanoseconds of its calls, the furthest off first.
    """

    name: str
    count: int
    instructions: Estimate
    planner: Estimate
    wall: Sequence[int]
    cpu: Sequence[int]
    calls: Sequence[Results]

    def ratio(self, which: str) -> float:
        """Predicted over measured: on one thread by the processor's clock."""
        measured = self.cpu if torch.get_num_threads() == 1 else self.wall
        predicted: Estimate = getattr(self, which)
        return predicted.time_ns / statistics.median(measured)


def repetition(amount: Amount, folder: Path) -> list[Found]:
    """A session that nothing is known of: calibrated, planned, predicted, measured in turns."""
    with tempfile.TemporaryDirectory() as known:
        effort = Effort(amount.size, (None,), 0, 0, 0)
        decoder = Decoder(effort, folder, Path(known) / "records.db")
        for _ in range(2):  # at first some runs may need another plan, and other programs with it
            everything = buckets(decoder)
        clocks = {one.name: Clocked(partial(bare, one.program)) for one in everything}
        wall, cpu = both_clocks(clocks, 1, amount.steps, amount.burst, burst=amount.burst)
        return [
            _found(decoder, one, wall.times[one.name][0], cpu.times[one.name][0])
            for one in everything
        ]


def _found(decoder: Decoder, one: Bucket, wall: Sequence[int], cpu: Sequence[int]) -> Found:
    session = decoder.session
    places = survey(session, one.program)
    return Found(
        one.name,
        len(one.program),
        predict(places, session.costs),
        expect(one.program, session.costs),
        wall,
        cpu,
        apart(one.program, places, session.costs)[:NAMED],
    )


def apart(program: Program, places: Sequence[ProfiledCall], model: CostModel) -> list[Results]:
    """Equal calls of a program, predicted and clocked one by one; the furthest off first."""
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    loops = [clocked(program.each, clock=clock) for _ in range(APART)]
    took: dict[tuple[str, str], Results] = {}
    for place, times in zip(places, zip(*loops, strict=True), strict=True):
        estimate = model.of_site(place.site, place.kernel)
        row = took.setdefault(place.key, _row(place, estimate))
        row["calls"] += 1
        row["predicted_ns"] += estimate.time_ns
        row["measured_ns"] += statistics.median(times)
    return sorted(
        took.values(), key=lambda row: -abs(float(row["predicted_ns"] - row["measured_ns"]))
    )


def _row(place: ProfiledCall, estimate: Estimate) -> Results:
    named = {"kernel": place.kernel.name, "signature": place.signature.text}
    return named | {"source": estimate.source, "calls": 0, "predicted_ns": 0.0, "measured_ns": 0.0}


def measure(amount: Amount, cache: Path) -> Results:
    """Every bucket of one model."""
    size = amount.size
    torch.set_num_threads(amount.threads)
    folder = checkpoint(size, cache)
    say(f"\n{amount.name}, {size.tokens} positions, prompt {size.prompt}")
    runs = []
    for i in range(amount.repetitions):
        note(f"{amount.name}: repetition {i + 1} of {amount.repetitions}")
        runs.append(repetition(amount, folder))
    found = [_summed(of_bucket) for of_bucket in zip(*runs, strict=True)]
    close = sum(abs(row["instructions"]["ratio"] - 1) <= CLOSE for row in found)
    header = ["bucket", "measured, ms", "predicted ÷", "planner ÷", "from measurements"]
    say("\n" + table(header, [_shown(row) for row in found]))
    say(f"{close} of {len(found)} within {CLOSE:.0%}")
    worst = max(found, key=lambda row: abs(math.log(row["instructions"]["ratio"])))
    for row in worst["calls"]:
        say(
            f"{worst['name']}: {row['calls']} × {row['kernel']} predicted "
            f"{ms(row['predicted_ns'])} ms, measured {ms(row['measured_ns'])} ms, {row['source']}: "
            f"{row['signature']}"
        )
    return {
        "model": asdict(size),
        "threads": torch.get_num_threads(),
        "close": {"within": CLOSE, "buckets": close, "of": len(found)},
        "worst": worst["name"],
        "buckets": found,
    }


def _shown(row: Results) -> list[str]:
    ratios = (f"{row[which]['ratio']:.3f}" for which in ("instructions", "planner"))
    share = row["instructions"]["measured_share"]
    return [row["name"], ms(row["measured_ns"]), *ratios, f"{share:.0%}"]


def _summed(runs: Sequence[Found]) -> Results:
    """Medians over the repetitions; the calls are those of the last one."""
    last = runs[-1]
    return {
        "name": last.name,
        "instructions_count": last.count,
        "measured_ns": statistics.median(statistics.median(one.wall) for one in runs),
        "measured_cpu_ns": statistics.median(statistics.median(one.cpu) for one in runs),
        "samples_ns": [one.wall for one in runs],
        "samples_cpu_ns": [one.cpu for one in runs],
        "instructions": _part(runs, "instructions"),
        "planner": _part(runs, "planner"),
        "calls": last.calls,
    }


def _part(runs: Sequence[Found], which: str) -> Results:
    estimates: list[Estimate] = [getattr(one, which) for one in runs]
    ratios = [one.ratio(which) for one in runs]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "predicted_ns": [estimate.time_ns for estimate in estimates],
        "measured_share": statistics.median(e.share("measured") for e in estimates),
    }


def main(argv: Sequence[str] | None = None) -> int:
    quick, full = (
        {amount.name: partial(measure, amount) for amount in amounts}
        for amounts in ([TINY], [FULL, SHARED, SMALL])
    )
    return run_models("predict", "Predicted against measured time.", argv, quick, full)


if __name__ == "__main__":
    sys.exit(main())
