"""Runs in little memory: what a change takes at budgets from the least to ample ones.

    model × history × budget ─→ runs of   ours     a session at that budget
                                          full     one that forgets everything before each run
                                          free     the same without a budget

The three take turns, run by run. What counts is the processor's time of all runs but the first few.
The least budget is what an error names where there is too little for anything; the largest is what
a session takes that has no budget. Between them they grow by equal factors.
With `--only`, other cases that were measured on a machine of this kind stay as they are.

    python -m benchmarks.budgets [--only NAME …] [--runs N] [--budgets N]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.histories import HISTORIES, SUBJECTS, Array, Step, _fresh, _only, _timed
from benchmarks.measure import Command, measured_here, ms
from tgbench.base.errors import BudgetError
from tgbench.base.words import format_bytes
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

RUNS, BUDGETS, FIRST, TOLERANCE = 60, 8, 10, 1e-4
GPT2, RESNET = "GPT-2, 6 × 256, 128 tokens", "ResNet-18, 224²"
GEMMA = "Gemma 3, 6 × 256, windows of 32, 256 tokens"


def _decode(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """One token further each time; its row is looked at."""
    at = x.shape[1] // 4
    while True:
        x = x.copy()
        x[0, at] = _fresh(x[0, at], random)
        yield x, np.s_[:, at]
        at = at + 1 if at + 1 < x.shape[1] else x.shape[1] // 4


CASES: Mapping[str, tuple[str, Callable[[Array, np.random.Generator], Iterator[Step]]]] = {
    "GPT-2, decode": (GPT2, _decode),
    "GPT-2, one edit": (GPT2, HISTORIES["one edit"]),
    "GPT-2, chat": (GPT2, HISTORIES["chat"]),
    "Gemma 3 with windows, decode": (GEMMA, _decode),
    "ResNet-18, patch": (RESNET, HISTORIES["patch"]),
    "toy GPT-2, decode": ("GPT2Model", _decode),
}
QUICK = "toy GPT-2, decode"


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("budgets", "Runs at budgets from the least to ample ones.")
    command.add_argument("--only", nargs="+", default=[name for name in CASES if name != QUICK])
    command.add_argument("--runs", type=int, default=RUNS, help=f"at each budget ({RUNS})")
    command.add_argument("--budgets", type=int, default=BUDGETS, help=f"how many ({BUDGETS})")
    options, record = command.begin(argv)
    torch.set_num_threads(1)
    names = [QUICK] if options.quick else options.only
    runs, budgets = (FIRST + 4, 2) if options.quick else (options.runs, options.budgets)
    found = {} if options.quick else dict(measured_here(options.output).get("cases", {}))
    found |= {name: measured(name, runs, budgets) for name in names}
    found = {name: found[name] for name in CASES if name in found}
    say(table(["case", "budget", "ours, ms", "full", "free", "÷ full", "÷ free", "recomputed",
               "made", "plans"],
              [_row(name, one) for name, case in found.items() for one in case]))  # fmt: skip
    record.write({"cases": found, "totals": totals(found)}, options.output)
    return 0


def totals(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The worst ratios of all budgets."""
    every = [one for case in found.values() for one in case]
    return {
        "budgets": len(every),
        "equal": sum(one["worst_error"] <= TOLERANCE for one in every),
        "worst_over_full": max(one["over_full"] for one in every),
        "worst_over_free": max(one["over_free"] for one in every),
    }


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    times = [ms(one["median_ns"][of]) for of in ("ours", "full", "free")]
    return [
        name, format_bytes(one["budget_bytes"]), *times,
        f"{one['over_full']:.2f}", f"{one['over_free']:.2f}", f"{one['recomputed']:.0%}",
        str(one["made"]), str(one["plans"]),
    ]  # fmt: skip


def measured(name: str, runs: int, budgets: int) -> list[dict[str, Any]]:
    """One case at all its budgets, the least first."""
    subject, history = CASES[name]
    module, start = SUBJECTS[subject].make()
    imported = from_torch(module, (torch.from_numpy(start),))
    steps = history(start, np.random.default_rng(7))
    given = [next(steps) for _ in range(runs)]
    least, ample = _least(imported, given), _ample(imported, given)
    found = []
    for budget_bytes in sorted({int(b) for b in np.geomspace(least, max(ample, least), budgets)}):
        note(f"{name}: {format_bytes(budget_bytes)}")
        found.append(_at(imported, given, budget_bytes))
    return found


def _least(imported: Any, given: Sequence[Step]) -> int:
    """The smallest budget that the first two runs are not refused at, and what asks for most."""
    budget_bytes, tried = 1, [*given[:2], max(given, key=_asked)]
    while True:
        session = GraphSession(imported, memory=budget_bytes)
        try:
            for x, want in tried:
                session.run(x, want=want)
        except BudgetError as error:
            budget_bytes = max(error.needed_bytes, budget_bytes + 1)
        else:
            return budget_bytes


def _asked(step: Step) -> float:
    """How much is asked for: of a text, how many words."""
    x, want = step
    return float("inf") if want is None else np.empty(x.shape[:2])[want].size


def _ample(imported: Any, given: Sequence[Step]) -> int:
    """What a session without a budget takes."""
    session = GraphSession(imported)
    for x, want in given[:FIRST]:
        session.run(x, want=want)
    return session.placement.size_bytes


def _at(imported: Any, given: Sequence[Step], budget_bytes: int) -> dict[str, Any]:
    """One budget."""
    session = GraphSession(imported, memory=budget_bytes)
    full = GraphSession(imported, memory=budget_bytes, making="always")
    free = GraphSession(imported, making="always")

    def afresh(of: GraphSession, x: Array, want: Any) -> Array:
        of.forget()
        return _only(of.run(x, want=want))

    def ours(x: Array, want: Any) -> Array:
        return _only(session.run(x, want=want))

    systems = {"ours": ours, "full": partial(afresh, full), "free": partial(afresh, free)}
    took: dict[str, list[int]] = {of: [] for of in systems}
    shares, worst = [], 0.0
    for i, (x, want) in enumerate(given):
        results = {}
        for j in range(len(systems)):
            of = list(systems)[(i + j) % len(systems)]
            results[of], took_ns = _timed(partial(systems[of], x, want))
            took[of].append(took_ns)
        shares.append(session.report().recomputed)
        scale = float(np.abs(results["free"]).max()) or 1.0
        worst = max(worst, float(np.abs(results["ours"] - results["free"]).max()) / scale)
    late = {of: values[FIRST:] for of, values in took.items()}
    total = {of: sum(values) for of, values in late.items()}
    return {
        "budget_bytes": budget_bytes, "size_bytes": session.placement.size_bytes,
        "median_ns": {of: statistics.median(values) for of, values in late.items()},
        "over_full": total["ours"] / total["full"], "over_free": total["ours"] / total["free"],
        "longest_ns": max(late["ours"]), "recomputed": statistics.mean(shares[FIRST:]),
        "made": session.counters.specialised, "plans": session.counters.planned,
        "worst_error": worst,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
