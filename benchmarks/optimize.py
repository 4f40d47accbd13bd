"""How much keeping values between runs is worth: expected time of each policy against the budget.

    workload × budget × policy  ─→  one row each: modelled mean time, out of memory, recomputed
    table  ─→  one panel per workload: time over that of keeping everything, against the budget

Budgets are shares of `runs.keep_everything_bytes`. Nothing runs; times are modelled, so the same
arguments give the same table. The trace is walked once, and its first call comes again at the end:
its mean is over everything but the first call, for policies and plans alike.

    python -m benchmarks.optimize [--size bench] [--only NAME …] [--steps 16]
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path
from statistics import fmean

import pandas as pd

from benchmarks.measure import Command, Record, measured_here
from benchmarks.policies import ONLINE, POLICIES, Policy, simulate
from benchmarks.runs import Cost, Runs, keep_everything_bytes, least_bytes
from benchmarks.workloads import Workload, adversarial, workloads
from tgbench.base.errors import BudgetError
from tgbench.commands.progress import say
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.decisions import Decisions
from tgbench.plans.retention import workload as search_workload
from tgbench.plans.search.effort import Effort, Mode
from tgbench.plans.search.optimiser import Optimiser
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules
from tgbench.views.draw.svg import THEME

BUDGETS: Sequence[float] = (0.05, 0.10, 0.25, 0.50, 0.75)  # of keeping everything
# Okabe and Ito (2008) without black and yellow, then again with dashes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, PANEL, LEFT, TOP, IN_A_ROW = 640, 150, 60, 46, 5


def policy_table(
    workload: Workload,
    budgets: Sequence[float] = BUDGETS,
    cost: Cost = rough_ns,
    policies: Iterable[Policy] = POLICIES,
    warmup: int = 1,
) -> pd.DataFrame:
    """One row per budget and policy.

    Columns: workload, budget (share), budget_bytes, least_bytes, policy, sees_future, mean_ns
    (infinite where any call was out of memory), over_all (that over keeping everything),
    warmup_ns, out_of_memory (calls), computed, recomputed (nodes).

    >>> from benchmarks.workloads import random_layered
    >>> table = policy_table(random_layered(), budgets=[1.0])
    >>> set(table.over_all.round(3))
    {1.0}
    """
    runs = Runs(ScheduledGraph.of(workload.graph), Rules(), circle(workload), cost)
    everything, least = keep_everything_bytes(runs), least_bytes(runs)
    all_ns = fmean(run.time_ns for run in runs.ideal[warmup:])
    rows = []
    for budget in budgets:
        budget_bytes = int(budget * everything)
        for policy in policies:
            outcome = simulate(runs, policy, budget_bytes, warmup)
            rows.append({
                "workload": workload.name, "budget": budget, "budget_bytes": budget_bytes,
                "least_bytes": least, "policy": policy.name, "sees_future": policy.sees_future,
                "mean_ns": outcome.mean_ns, "over_all": outcome.mean_ns / all_ns,
                "warmup_ns": outcome.warmup_ns, "out_of_memory": outcome.out_of_memory,
                "computed": outcome.computed, "recomputed": outcome.recomputed,
            })  # fmt: skip
    return pd.DataFrame(rows)


def circle(workload: Workload) -> tuple[Bucket, ...]:
    """The trace, with its first call again at the end."""
    return (*workload.buckets, workload.buckets[0])


def plan_table(
    workload: Workload,
    budgets: Sequence[float] = BUDGETS,
    cost: Cost = rough_ns,
    modes: Sequence[Mode] = ("greedy", "search"),
    steps: int = 16,
    say: Callable[[str], None] = lambda line: None,
) -> pd.DataFrame:
    """One row per budget and mode of the optimiser, with the columns of `policy_table`, and:

    bound_ns (no plan of the model is faster), modelled_ns, size_bytes (after packing), cut (parts),
    retained, partial (nodes kept through some classes), stop, seconds.

    Each search begins with what the one for the next smaller budget found, as a user would who
    gives a session more memory.
    """
    scheduled, rules = ScheduledGraph.of(workload.graph), Rules()
    runs = Runs(scheduled, rules, circle(workload), cost)
    everything, least = keep_everything_bytes(runs), least_bytes(runs)
    all_ns = fmean(run.time_ns for run in runs.ideal[1:])
    told = search_workload.Workload.of(scheduled, rules, workload.buckets)
    rows: list[dict[str, object]] = []
    smaller: dict[Mode, Decisions] = {}
    for budget, mode in product(sorted(budgets), modes):
        budget_bytes, began = int(budget * everything), time.monotonic()
        row: dict[str, object] = {
            "workload": workload.name, "budget": budget, "budget_bytes": budget_bytes,
            "least_bytes": least, "policy": mode, "sees_future": False,
        }  # fmt: skip
        try:
            made = Optimiser(scheduled, rules, told, budget_bytes, cost).run(
                mode, Effort(steps=steps), start=None if mode == "greedy" else smaller.get(mode)
            )
            smaller[mode] = made
        except BudgetError:
            rows.append(row | {"mean_ns": math.inf, "over_all": math.inf})
            continue
        found = made.search
        assert found is not None
        partial = sum(map(made.retention.is_partial, made.retention.after))
        rows.append(row | {
            "mean_ns": found.best_ns, "over_all": found.best_ns / all_ns,
            "warmup_ns": found.warm_up_ns, "bound_ns": found.bound_ns,
            "modelled_ns": found.modelled_ns, "size_bytes": made.placement.size_bytes,
            "cut": made.cut.parts, "retained": len(made.retained), "partial": partial,
            "stop": found.stop, "seconds": round(time.monotonic() - began, 1),
        })  # fmt: skip
        say(f"{workload.name} {budget:.0%} {mode}: {found.best_ns / all_ns:.3f} ({found.stop})")
    return pd.DataFrame(rows)


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """One row per workload and budget: the search, greedy, the best online policy, and who wins."""
    rows = []
    for (name, budget), group in table.groupby(["workload", "budget"], sort=False):
        by = group.set_index("policy").over_all
        online = by[[policy.name for policy in ONLINE]]
        best, search = float(online.min()), float(by["search"])
        rows.append({
            "workload": name, "budget": budget, "search": search, "greedy": float(by["greedy"]),
            "best_online": best, "online_policy": str(online.idxmin()),
            "never_worse": bool(search <= best * (1 + 1e-9) and search <= by["greedy"]),
        })  # fmt: skip
    return pd.DataFrame(rows)


def budget_plot(table: pd.DataFrame) -> str:
    """An SVG with a panel per workload: `over_all` of each policy, against the budget.

    Where a policy was out of memory its line has no point. Rows of other planners are drawn too,
    if they have the columns workload, policy, budget and over_all.
    """
    panels = list(table.groupby("workload", sort=False))
    names = list(dict.fromkeys(table.policy))
    height = TOP + PANEL * len(panels) + 20
    body = [_legend(names)]
    for i, (title, rows) in enumerate(panels):
        body.append(_panel(str(title), rows, names, TOP + PANEL * i))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11" role="img"><title>Expected time against budget'
        f"</title><style>{THEME}.tg-search{{stroke:var(--tg-ink,#444);opacity:.75}}</style>{''.join(body)}</svg>"
    )


def _style(i: int, name: str) -> str:
    """The search stands out; the others differ by colour, then by dashes."""
    if name == "search":
        return 'class="tg-search" fill="none" stroke-width="3"'
    dash = ' stroke-dasharray="5 3"' if i >= len(COLOURS) else ""
    return f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="1.6" fill="none"{dash}'


def _legend(names: Sequence[str]) -> str:
    step = (WIDTH - LEFT) / IN_A_ROW
    places = [
        (LEFT + i % IN_A_ROW * step, 12 + i // IN_A_ROW * 16, i, name)
        for i, name in enumerate(names)
    ]
    return "".join(
        f'<path d="M{x:.0f} {y}h14" {_style(i, name)}/>'
        f'<text x="{x + 17:.0f}" y="{y + 4}" class="tg-text">{escape(name)}</text>'
        for x, y, i, name in places
    )


def _panel(title: str, rows: pd.DataFrame, names: Sequence[str], top: int) -> str:
    """Budget from 0 to 100 % to the right, times from 1 to the largest upwards, logarithmic."""
    finite = [value for value in rows.over_all if math.isfinite(value)]
    low, high = min([1.0, *finite]), max([1.25, *finite])
    bottom, tall = top + PANEL - 22, PANEL - 50

    def x(budget: float) -> float:
        return LEFT + budget * (WIDTH - LEFT - 20)

    def y(value: float) -> float:
        return bottom - math.log(value / low) / math.log(high / low) * tall

    parts = [f'<text x="{LEFT}" y="{top + 18}" class="tg-strong">{escape(title)}</text>']
    for value in sorted({low, 1.0, high}):
        parts.append(
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - 20}" class="tg-grid"/><text x="{LEFT - 6}" '
            f'y="{y(value) + 4:.1f}" text-anchor="end" class="tg-text">{value:.2f} ×</text>'
        )
    for budget in sorted(set(rows.budget)):
        parts.append(
            f'<text x="{x(budget):.1f}" y="{bottom + 14}" text-anchor="middle" class="tg-text">'
            f"{budget:.0%}</text>"
        )
    for i, name in enumerate(names):
        mine = rows[rows.policy == name].sort_values("budget")
        points = [
            (x(budget), y(value))
            for budget, value in zip(mine.budget, mine.over_all, strict=True)
            if math.isfinite(value)
        ]
        if points:
            line = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
            parts.append(f'<path d="M{line}" {_style(i, name)}/>')
    return "".join(parts)


# --- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all workloads; what is there already is not measured again."""
    command = Command("optimize", __doc__)
    command.add_argument("--size", choices=("small", "bench"), default="bench")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--steps", type=int, default=16, help="windows to solve, per budget")
    command.add_argument("--only", nargs="*", default=[], help="names of workloads")
    command.add_argument("--again", action="store_true", help="measure what is there already too")
    options, record = command.begin(argv)
    chosen, budgets = workloads(options.size, options.seed), BUDGETS
    if options.quick:
        chosen, budgets = [adversarial("small", options.seed)], BUDGETS[-1:]
    path = options.output
    known = measured_here(path).get("rows", [])
    for workload in chosen:
        if options.only and workload.name not in options.only:
            continue
        if not options.again and any(row["workload"] == workload.name for row in known):
            continue
        table = pd.concat([
            policy_table(workload, budgets),
            plan_table(workload, budgets, steps=2 if options.quick else options.steps, say=say),
        ])  # fmt: skip
        say(verdicts(table).to_string(index=False))
        rows = json.loads(table.to_json(orient="records", double_precision=15))
        known = [row for row in known if row["workload"] != workload.name] + rows
        if path is not None:
            write(path, known, record)
    return 0


def write(path: Path, rows: Sequence[Mapping[str, object]], record: Record) -> None:
    """The rows as JSON, and their plot beside it; infinite times are null there."""
    table = pd.DataFrame(rows)
    for column in ("mean_ns", "over_all"):
        table[column] = table[column].fillna(math.inf)
    judged = json.loads(verdicts(table).to_json(orient="records"))
    record.write({"verdicts": judged, "rows": list(rows)}, path)
    path.with_suffix(".svg").write_text(budget_plot(table))


if __name__ == "__main__":
    sys.exit(main())
