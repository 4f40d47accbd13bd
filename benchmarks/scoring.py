"""How fast retentions are scored, and how fast their optimum is bounded, at a size that matters.

    python -m benchmarks.scoring      Gemma 3 at 29 layers, 8 classes of runs → scoring.json

Times are CPU times of one thread, medians of repetitions.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from benchmarks.measure import Command, dumped
from tgbench.base.regions import Box, Region
from tgbench.commands.progress import say
from tgbench.graph.graph import Graph
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import tabulate
from tgbench.plans.retention.workload import Workload
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import GEMMA3_270M

TOKENS, LAYERS, CALLS, POPULATION, REPEATS = 256, 29, 120, 256, 5
SHARES = (0.25, 0.5, 0.75)  # of the way from keeping nothing to all that is worth keeping
Made = TypeVar("Made")


def trace(graph: Graph, calls: int) -> Iterator[Bucket]:
    """A prompt, tokens one and several at a time, edits of several lengths: 8 classes."""
    vocabulary = graph.outputs["logits"].shape[-1]

    def call(start: int, stop: int, asked: int) -> Bucket:
        rows = Box(((0, 1), (asked, asked + 1), (0, vocabulary)))
        return Bucket.of(
            {"ids": Region((Box(((0, 1), (start, stop))),))}, {"logits": Region((rows,))}
        )

    written = 64
    yield call(0, TOKENS, written - 1)
    for i in range(calls):
        if i % 6 == 5:
            length = 4 + i // 6 % 4  # an edit of four to seven tokens
            yield call(i % 40, i % 40 + length, written - 1)
        else:
            length = 2 if i % 6 == 2 else 3 if i % 6 == 4 else 1
            if written + length >= TOKENS:
                return
            yield call(written, written + length, written + length - 1)
            written += length


def timed(function: Callable[[], Made]) -> tuple[Made, float]:
    """A result and its CPU seconds."""
    began = time.process_time()
    return function(), time.process_time() - began


def measure(layers: int, calls: int) -> dict[str, object]:
    kinds = [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(layers)]
    deep = GEMMA3_270M | {"num_hidden_layers": layers, "layer_types": kinds}
    graph = simplify(gemma3(deep, TOKENS))
    scheduled, rules = ScheduledGraph.of(graph), Rules()
    workload, reading = timed(lambda: Workload.of(scheduled, rules, trace(graph, calls)))
    tables, tabulating = timed(lambda: tabulate(scheduled, rules, workload, rough_ns))
    model = Model(tables)
    random = np.random.default_rng(0)
    population = random.random((POPULATION, model.turns, model.nodes)) < 0.3
    scoring = [timed(lambda: model.score(population))[1] for _ in range(REPEATS)]
    worthwhile = int(tables.worthwhile.sum())
    least = int(model.score(model.none()).size_bytes[0])
    free = IntegerProgram(model, int(model.score(~model.none()).size_bytes[0])).solve(
        SolverLimits(gap=1e-3)
    )
    assert free.keep is not None
    most = int(model.score(free.keep).size_bytes[0])
    programs = [program(model, int(least + share * (most - least)), share) for share in SHARES]
    return {
        "nodes": len(graph.nodes),
        "stored": model.nodes,
        "worthwhile": worthwhile,
        "turns": model.turns,
        "situations": len(tables.situations),
        "reading_the_trace_s": reading,
        "tabulating_s": tabulating,
        "scored_per_s": POPULATION / statistics.median(scoring),
        "samples_s": scoring,
        "programs": programs,
    }


def program(model: Model, budget_bytes: int, share: float) -> dict[str, object]:
    """The relaxed and the integer program at one budget."""
    made = IntegerProgram(model, budget_bytes)
    relaxed, relaxing = timed(lambda: made.solve(integer=False))
    solved, solving = timed(lambda: made.solve(SolverLimits(seconds=60.0, gap=1e-3)))
    found = None if solved.keep is None else float(model.score(solved.keep).time_ns[0])
    return {
        "budget_share": share,
        "budget_bytes": budget_bytes,
        "relaxed_ns": relaxed.bound_ns,
        "relaxed_s": relaxing,
        "bound_ns": solved.bound_ns,
        "found_ns": found,
        "gap": None if found is None else found / solved.bound_ns - 1,
        "integer_s": solving,
    }


def main(argv: Sequence[str] | None = None) -> int:
    options, record = Command("scoring", __doc__).begin(argv)
    found = measure(1, 12) if options.quick else measure(LAYERS, CALLS)
    say(dumped(found))
    record.write(found, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
