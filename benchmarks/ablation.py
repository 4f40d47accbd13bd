"""What each part of the search is worth: ways to choose what to keep, for equally long.

    model × memory × seed ─→ each way in turn, on the same tables ─→ modelled time ÷ relaxed bound

    ladder     what is let go of first, weighed again as others go; it takes no longer than that
    random     the ladder, then values of random parts put back in random orders, while they fit
    polish     the ladder, then small changes judged by a walk over the trace
    integer    the integer program of all values at once
    windows    the ladder, then the integer program over a part of the values, the others held
    relaxed windows   the same; first those values are free that the relaxed program, which is
               solved within the time, decides otherwise

Memory is a share of the way from what runs take that keep nothing to what they take that lose
nothing. Ways take turns, each for as much of the processor's time.

    python -m benchmarks.ablation [--only NAME …] [--seconds S]
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import Command
from benchmarks.workloads import Workload, adversarial, box, decoding, prefill_decode, unet_like
from tgbench.commands.apps.cnn import NETWORKS
from tgbench.commands.progress import say, table
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention import workload as search_workload
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.ladder import Ladder
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.neighbourhoods import Neighbourhoods
from tgbench.plans.retention.polish import polished
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import Floats, tabulate
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import GEMMA3_270M
from tgbench.sources.torch import from_torch

SHARES, SECONDS, SEEDS, BOUND_S = (0.15, 0.3, 0.5), 8.0, 3, 60.0
PATCHES = 20
Kept = NDArray[np.bool_]  # [turn, node]


@dataclass
class Problem:
    """One model within one budget, and what bounds it."""

    model: Model
    ladder: Ladder
    budget_bytes: int
    bound_ns: float

    def time_ns(self, keep: Kept | None) -> float:
        """Infinite for what does not fit."""
        if keep is None:
            return float("inf")
        scores = self.model.score(keep[None])
        fits = scores.size_bytes[0] <= self.budget_bytes
        return float(scores.time_ns[0]) if fits else float("inf")


Way = Callable[[Problem, float, int], Kept | None]


# --- the ways -------------------------------------------------------------------------------------


def of_ladder(problem: Problem, seconds: float, seed: int) -> Kept | None:
    return problem.ladder.within(problem.budget_bytes)


def of_random(problem: Problem, seconds: float, seed: int) -> Kept | None:
    """Of a random part of the values, in a random order, as many as fit beside the others."""
    end, random = time.process_time() + seconds, np.random.default_rng(seed)
    model, best = problem.model, problem.ladder.within(problem.budget_bytes)
    values = np.flatnonzero(model.tables.worthwhile)
    while best is not None and time.process_time() < end:
        part = random.permutation(values)[: 1 + int(random.integers(len(values)))]
        members = np.repeat(best[None], len(part) + 1, axis=0)
        for i in range(len(part) + 1):
            members[i][:, part[i:]] = False
            members[i][:, part[:i]] = True
        scores = model.score(members)
        at = scores.best(problem.budget_bytes)
        if at is not None and scores.time_ns[at] < problem.time_ns(best):
            best = members[at]
    return best


def of_polish(problem: Problem, seconds: float, seed: int) -> Kept | None:
    end, best = time.process_time() + seconds, problem.ladder.within(problem.budget_bytes)
    number = 0
    while best is not None and time.process_time() < end:
        number += 1
        found = polished(problem.model, problem.budget_bytes, best, (seed, number))
        if found is not None and problem.time_ns(found.keep) < problem.time_ns(best):
            best = found.keep
    return best


def of_integer(problem: Problem, seconds: float, seed: int) -> Kept | None:
    end, less = time.process_time() + seconds, 0
    while (left := end - time.process_time()) > 0:
        program = IntegerProgram(problem.model, problem.budget_bytes - less)
        found = program.solve(SolverLimits(max(left, 0.1))).keep
        if found is None:
            return None
        over = int(problem.model.score(found).size_bytes[0]) - problem.budget_bytes
        if over <= 0:
            return found[0]
        less += over
    return None


def of_windows(problem: Problem, seconds: float, seed: int) -> Kept | None:
    program = IntegerProgram(problem.model, problem.budget_bytes)
    share = problem.ladder.share(problem.budget_bytes)
    return _windows(problem, program, share, time.process_time() + seconds, seed)


def of_relaxed_windows(problem: Problem, seconds: float, seed: int) -> Kept | None:
    end = time.process_time() + seconds
    program = IntegerProgram(problem.model, problem.budget_bytes)
    relaxed = program.solve(SolverLimits(max(end - time.process_time(), 0.1)), integer=False)
    return _windows(problem, program, relaxed.share, end, seed)


def _windows(
    problem: Problem, program: IntegerProgram, share: Floats, end: float, seed: int
) -> Kept | None:
    first = problem.ladder.within(problem.budget_bytes)
    best = None if first is None else problem.model.scored(first, problem.budget_bytes)
    near = Neighbourhoods(program, share, np.random.default_rng(seed))
    while best is not None and (left := end - time.process_time()) > 0:
        best = near.step(best, SolverLimits(left)).after
    return None if best is None else best.keep


WAYS: Mapping[str, Way] = {
    "ladder": of_ladder,
    "random": of_random,
    "polish": of_polish,
    "integer": of_integer,
    "windows": of_windows,
    "relaxed windows": of_relaxed_windows,
}


# --- the models -----------------------------------------------------------------------------------


def gemma_270m() -> Workload:
    """A prompt, decoding with every fifth call an edit, and a second prompt halfway."""
    return decoding("Gemma 3 270M", gemma3(GEMMA3_270M, 256), calls=60, prompts=2, edits=0.2)


def resnet50() -> Workload:
    """A patch of a fourteenth of the width and height, anywhere."""
    module = NETWORKS["resnet50"]().eval()
    graph = simplify(from_torch(module, (torch.zeros(1, 3, 224, 224),)).graph)
    outputs = {name: box(*((0, size) for size in o.shape)) for name, o in graph.outputs.items()}

    def trace() -> Iterator[Bucket]:
        random = np.random.default_rng(0)
        [name] = graph.inputs
        yield Bucket.of({name: box(*((0, size) for size in graph.inputs[name].shape))}, outputs)
        for _ in range(PATCHES):
            i, j = (int(at) for at in random.integers(0, 224 - 16, 2))
            yield Bucket.of({name: box((0, 1), (0, 3), (i, i + 16), (j, j + 16))}, outputs)

    return Workload("ResNet-50, 224²", graph, tuple(trace()))


MODELS: Mapping[str, Callable[[], Workload]] = {
    "skip graph": partial(adversarial, "bench"),
    "U-Net": partial(unet_like, "bench"),
    "Gemma 3, 6 layers": partial(prefill_decode, "bench", edits=0.2),
    "Gemma 3 270M": gemma_270m,
    "ResNet-50, 224²": resnet50,
}


# --- the command ----------------------------------------------------------------------------------


def problems(workload: Workload) -> Iterator[tuple[float, Problem]]:
    """A model within shares of its memory, each bounded once for all ways."""
    scheduled, rules = ScheduledGraph.of(workload.graph), Rules()
    told = search_workload.Workload.of(scheduled, rules, workload.buckets)
    model = Model(tabulate(scheduled, rules, told, rough_ns))
    ladder = Ladder.of(model)
    least, most = int(model.score(model.none()).size_bytes[0]), ladder.lossless_bytes
    for share in SHARES:
        budget_bytes = int(least + share * (most - least))
        program = IntegerProgram(model, budget_bytes)
        relaxed = program.solve(SolverLimits(BOUND_S), integer=False)
        yield share, Problem(model, ladder, budget_bytes, relaxed.bound_ns)


def measured(name: str, seconds: float, seeds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for share, problem in problems(MODELS[name]()):
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        spent: dict[str, list[float]] = {way: [] for way in WAYS}
        for seed in range(seeds):
            for way, choose in WAYS.items():
                began = time.process_time()
                keep = choose(problem, seconds, seed)
                spent[way].append(time.process_time() - began)
                found[way].append(problem.time_ns(keep) / problem.bound_ns)
        rows.append({
            "model": name, "share": share, "budget_bytes": problem.budget_bytes,
            "bound_ns": problem.bound_ns, "nodes": problem.model.nodes,
            "over_bound": {way: _finite(fmean(each)) for way, each in found.items()},
            "samples": {way: [_finite(one) for one in each] for way, each in found.items()},
            "processor_s": {way: fmean(each) for way, each in spent.items()},
        })  # fmt: skip
        say(table(["model", "memory", *WAYS], [row(rows[-1])]))
    return rows


def _finite(ratio: float) -> float | None:
    """None where some seed found nothing that fits."""
    return ratio if math.isfinite(ratio) else None


def row(found: Mapping[str, Any]) -> list[str]:
    ratios = found["over_bound"]
    return [
        found["model"],
        f"{found['share']:.0%}",
        *("none" if ratios[way] is None else f"{ratios[way]:.4f}" for way in WAYS),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("ablation", __doc__)
    command.add_argument("--only", nargs="*", default=list(MODELS), help="names of models")
    command.add_argument("--seconds", type=float, default=SECONDS, help="for each way")
    command.add_argument("--seeds", type=int, default=SEEDS)
    options, record = command.begin(argv)
    names = ["skip graph"] if options.quick else options.only
    seconds, seeds = (0.2, 1) if options.quick else (options.seconds, options.seeds)
    rows = [one for name in names for one in measured(name, seconds, seeds)]
    say(table(["model", "memory", *WAYS], [row(one) for one in rows]))
    finite = [one for one in rows if None not in one["over_bound"].values()]
    means = {way: fmean([one["over_bound"][way] for one in finite] or [math.nan]) for way in WAYS}
    means = {way: _finite(mean) for way, mean in means.items()}
    record.write({"seconds": seconds, "seeds": seeds, "means": means, "rows": rows}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
