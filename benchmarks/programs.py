"""Programs that survive: a session that makes its programs beside one that loads them.

    first process    plans, follows a history, saves plan and programs
    then, in turns   the plan is loaded; the history: every program is made
                     plan and programs are loaded; the history: none is made

Each turn is a process of its own, so that nothing is remembered. Times are the processor's.

    python -m benchmarks.programs
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.decode import LARGE, QUICK, TOY, Size, checkpoint
from benchmarks.histories import HISTORIES, SUBJECTS
from benchmarks.measure import Command, threads
from tgbench.base.machine import cache_folder
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.torch import from_torch

Runs: TypeAlias = "Iterator[tuple[Any, Any]]"  # inputs, and what is wanted
Facts: TypeAlias = "dict[str, float]"
TURNS, STEPS = 3, 8


@dataclass(frozen=True)
class Subject:
    """A model, and what is asked of it.

    Fields:
        make: given the options of a session: one that has no plan yet.
        runs: that follow each other.
    """

    make: Callable[..., GraphSession]
    runs: Callable[[], Runs]


def _decoder(size: Size, **options: Any) -> GraphSession:
    folder = checkpoint(size, cache_folder())
    return GraphSession(gemma3(size.config, size.tokens), folder, memory=size.memory, **options)


def _decoding(size: Size) -> Runs:
    """A prompt, tokens, an edit in it, a token, two at once, another row."""
    ids = np.zeros((1, size.tokens), np.int64)
    ids[0, : size.prompt] = np.arange(size.prompt) % 50
    last = size.prompt - 1
    for at in (*range(last, last + 4), last // 2, last + 4, (last + 5, last + 6)):
        ids[0, at] = 7
        last = max(last, np.max(at))
        yield {"ids": ids.copy()}, {"logits": np.s_[0, last]}
    yield {"ids": ids.copy()}, {"logits": np.s_[0, last - 3]}


def _module(name: str, **options: Any) -> GraphSession:
    module, start = SUBJECTS[name].make()
    return GraphSession(from_torch(module, (torch.from_numpy(start),)), **options)


def _edits(name: str, history: str) -> Runs:
    _, start = SUBJECTS[name].make()
    return islice(HISTORIES[history](start, np.random.default_rng(7)), STEPS)


def _decodes(size: Size) -> Subject:
    return Subject(partial(_decoder, size), partial(_decoding, size))


def _follows(name: str, history: str) -> Subject:
    return Subject(partial(_module, name), partial(_edits, name, history))


FULL: Mapping[str, Subject] = {
    "Gemma 3 270M: decoding": _decodes(LARGE),
    "Gemma 3, reduced: decoding": _decodes(TOY),
    "GPT-2, 6 × 256: typing": _follows("GPT-2, 6 × 256, 128 tokens", "typing"),
    "GPT-2, 6 × 256: edits, one row": _follows("GPT-2, 6 × 256, 128 tokens", "one edit, one row"),
    "ResNet-18, 224²: patches": _follows("ResNet-18, 224²", "patch"),
}
SMALLEST = {"Gemma 3, reduced: decoding": _decodes(QUICK)}


def followed(subject: Subject, plan: Path, programs: Path, how: str) -> Facts:
    """One process: the history, once programs were loaded if that is asked for."""
    with threads(1):
        session = subject.make(plan=plan, making="always")
        began = time.process_time()
        loaded = session.load_programs(programs) if how == "load" else 0
        load_s = time.process_time() - began
        began = time.process_time()
        for inputs, want in subject.runs():
            session.run(inputs, want)
        all_s = time.process_time() - began
        if how == "save":
            session.save_plan()
            session.save_programs(programs)
        calls = max(len(program) for _, _, program in session.programs)
        return {
            "loaded": loaded, "made": session.counters.specialised, "calls": calls,
            "load_ms": 1e3 * load_s, "runs_ms": 1e3 * all_s,
            "deciding_ms": session.counters.deciding_ns / 1e6,
        }  # fmt: skip


def measured(subject: Subject, turns: int, call: Callable[..., Facts]) -> dict[str, Any]:
    """A subject in turns, each by `call`."""
    with tempfile.TemporaryDirectory() as folder:
        plan, programs = Path(folder) / "plan.json", Path(folder) / "programs"
        call(followed, subject, plan, programs, "save")
        found: dict[str, list[Facts]] = {"make": [], "load": []}
        for _ in range(turns):
            for how, samples in found.items():
                samples.append(call(followed, subject, plan, programs, how))
        return {"size_bytes": programs.stat().st_size, "samples": found}


def _apart(function: Callable[..., Facts], *arguments: Any) -> Facts:
    """In a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: Facts = pool.apply(function, arguments)
        return found


def _here(function: Callable[..., Facts], *arguments: Any) -> Facts:
    return function(*arguments)


def _row(name: str, facts: Mapping[str, Any]) -> list[str]:
    def median(how: str, what: str) -> float:
        return statistics.median(sample[what] for sample in facts["samples"][how])

    def least(how: str, what: str) -> str:
        return f"{min(sample[what] for sample in facts['samples'][how]):.0f}"

    return [
        name, f"{median('load', 'calls'):.0f}", f"{median('load', 'loaded'):.0f}",
        f"{facts['size_bytes'] / 1024:.0f}", least("load", "load_ms"),
        least("load", "deciding_ms"), least("make", "deciding_ms"),
        f"{median('load', 'made'):.0f}, {median('make', 'made'):.0f}",
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("programs", "Programs that are loaded, beside programs that are made.")
    options, record = command.begin(argv)
    found = {}
    for name, subject in (SMALLEST if options.quick else FULL).items():
        turns, call = (1, _here) if options.quick else (TURNS, _apart)
        found[name] = measured(subject, turns, call)
        note(f"{name}: done")
    header = ["", "calls", "programs", "KiB", "load, ms", "then deciding", "making", "made"]
    say(table(header, [_row(name, facts) for name, facts in found.items()]))
    record.write({"subjects": found}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
