"""What a run costs beside its calls, by the processor's clock.

    whole run  =  its calls  +  the fixed cost: arguments, comparing, finding the program,
                                pointing it, results, counting, the trace

Small graphs show it best: there it is most of a run. Each run is told apart by whether one at that
place was there before, and runs that make something are left out. Of models whose calls read much
memory, the caches that these leave behind are part of what is measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.decode import QUICK, TOY, Size, checkpoint
from benchmarks.histories import HISTORIES, SUBJECTS
from benchmarks.measure import run_models, threads
from tgbench.commands.progress import note, say, table
from tgbench.graph import ops
from tgbench.graph.graph import GraphBuilder
from tgbench.programs.program import Program
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.torch import from_torch

Step: TypeAlias = "tuple[Any, Any]"  # inputs, and what is wanted
Opens: TypeAlias = Callable[[Any, Path], GraphSession]  # given `making`, and where weights are kept
WARM = 50  # runs that count for nothing
MAKING = ("always", "measured")
AGAIN, NEW = "again", "never seen"  # of places


@dataclass(frozen=True)
class Small:
    """A graph and what happens to it.

    Fields:
        opens: a session.
        steps: its history, without an end.
    """

    opens: Opens
    steps: Callable[[], Iterator[Step]]


# --- graphs ---------------------------------------------------------------------------------------


def _products(making: Any, _: Path) -> GraphSession:
    """Two products with a maximum in between, 16 rows of 32 numbers."""
    g = GraphBuilder()
    w = g.parameter("w", (32, 32))
    g.output("y", ops.linear(ops.relu(ops.linear(g.input("x", (16, 32)), w)), w))
    weights = {"w": np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)}
    return GraphSession(g.build(), weights=weights, making=making)


def _rows(where: Callable[[int], int]) -> Iterator[Step]:
    x = np.zeros((16, 32), np.float32)
    for number in range(1, sys.maxsize):
        at = where(number)
        x[at] = number % 1000
        yield {"x": x}, {"y": np.s_[at]}


def _decoder(size: Size) -> Small:
    """A token behind the other, from the prompt again where the positions end."""

    def opens(making: Any, cache: Path) -> GraphSession:
        graph = gemma3(size.config, size.tokens)
        weights = checkpoint(size, cache)
        return GraphSession(graph, weights=weights, memory=size.memory, making=making)

    def steps() -> Iterator[Step]:
        random, ids = np.random.default_rng(0), np.zeros((1, size.tokens), np.int64)
        vocab = int(size.config["vocab_size"])
        while True:
            ids[0, : size.prompt] = random.integers(0, vocab, size.prompt)
            ids[0, size.prompt :] = 0
            for at in range(size.prompt - 1, size.tokens):
                ids[0, at] = random.integers(vocab)
                yield {"ids": ids}, {"logits": np.s_[0, at]}

    return Small(opens, steps)


def _history(subject: str, name: str) -> Small:
    """One of `histories`."""
    module, start = SUBJECTS[subject].make()

    def opens(making: Any, _: Path) -> GraphSession:
        return GraphSession(from_torch(module, (torch.from_numpy(start),)), making=making)

    return Small(opens, lambda: HISTORIES[name](start, np.random.default_rng(7)))


GRAPHS: Mapping[str, Callable[[], Small]] = {
    "two products, one row": lambda: Small(_products, lambda: _rows(lambda number: 3)),
    "two products, any row": lambda: Small(_products, lambda: _rows(lambda n: 7 * n % 16)),
    "gemma3-tiny, a token": lambda: _decoder(TOY),
    "reduced GPT-2, one edit": lambda: _history("GPT2Model", "one edit"),
    "reduced ModernBERT, insertion": lambda: _history("ModernBertModel", "insertion"),
    "GPT-2, 6 × 256, one edit": lambda: _history("GPT-2, 6 × 256, 128 tokens", "one edit"),
    "GPT-2, 6 × 256, typing": lambda: _history("GPT-2, 6 × 256, 128 tokens", "typing"),
}  # fmt: skip
SMALLEST: Mapping[str, Callable[[], Small]] = {
    "two products, any row": GRAPHS["two products, any row"],
    "a token": lambda: _decoder(QUICK),
}


# --- measuring ------------------------------------------------------------------------------------


class TimedCalls(list[Any]):
    """A program's calls, which note how long it takes from the first to the end of the last."""

    took_ns = 0

    def __iter__(self) -> Iterator[Any]:
        began_ns = time.thread_time_ns()
        yield from super().__iter__()
        self.took_ns = time.thread_time_ns() - began_ns


def _calls_of(program: Program) -> TimedCalls:
    """Its calls, timed from the next run on."""
    calls = program.calls
    if not isinstance(calls, TimedCalls):
        calls = program.calls = TimedCalls(calls)
    return calls


def runs_of(session: GraphSession, steps: Iterator[Step], runs: int) -> dict[str, list[list[int]]]:
    """Whole runs and their calls, of those that made nothing: at a place again, or never seen."""
    found: dict[str, list[list[int]]] = {AGAIN: [], NEW: []}
    seen = set()
    for number in range(WARM + runs):
        inputs, want = next(steps)
        made = session.counters.specialised, session.counters.planned
        began_ns = time.thread_time_ns()
        session.run(inputs, want)
        took_ns = time.thread_time_ns() - began_ns
        finished = session.runner.finished
        assert finished is not None
        program, bucket = finished.served.program, finished.bucket
        kind, is_timed = (
            "again" if bucket in seen else "never seen",
            type(program.calls) is not list,
        )
        seen.add(bucket)
        calls = _calls_of(program)
        is_plain = made == (session.counters.specialised, session.counters.planned)
        if number >= WARM and is_timed and is_plain and calls.took_ns:
            found[kind].append([took_ns, calls.took_ns])
        calls.took_ns = 0  # a run that tries a kernel goes through its calls one by one
    return found


def _medians(samples: list[list[int]]) -> dict[str, Any]:
    """In microseconds."""
    whole, calls = zip(*samples, strict=True)
    fixed = [a - b for a, b in samples]
    times = {"run": whole, "calls": calls, "fixed": fixed}
    return {f"{name}_us": statistics.median(times_ns) / 1e3 for name, times_ns in times.items()}


def measure(small: Callable[[], Small], runs: int, cache: Path) -> dict[str, Any]:
    """One graph, by when programs are made."""
    made, found, rows = small(), dict[str, Any](), []
    with threads(1):
        for making in MAKING:
            note(f"programs made: {making}")
            for kind, samples in runs_of(made.opens(making, cache), made.steps(), runs).items():
                if not samples:
                    continue
                medians = _medians(samples)
                whole, calls = map(list, zip(*samples, strict=True))
                taken = {"runs": len(samples), "run_ns": whole, "calls_ns": calls}
                found[f"{making}; {kind}"] = medians | taken
                row = [f"{value:.1f}" for value in medians.values()]
                rows.append([making, kind, str(len(samples)), *row])
    say("\n" + table(["programs made", "place", "runs", "run, µs", "its calls", "fixed"], rows))
    return found


def main(argv: Any = None) -> int:
    def each(graphs: Mapping[str, Callable[[], Small]], runs: int) -> dict[str, Any]:
        return {
            name: lambda cache, small=small: measure(small, runs, cache)
            for name, small in graphs.items()
        }

    description = "What a run costs beside its calls."
    return run_models("fixed", description, argv, each(SMALLEST, 60), each(GRAPHS, 1_000))


if __name__ == "__main__":
    sys.exit(main())
