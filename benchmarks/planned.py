"""Plans at real sizes: what the search finds within shares of a model's memory, modelled and run.

    model × share ─→ greedy plan, then a search from it ─→ expected time a run, and its bound
                     online policies in ideal memory    ─→ the same, of the same trace and costs
                     sessions under each plan, and one that keeps everything, in turns ─→ measured

Memory is a share of the arena in which a session keeps every value. A history is run in one, which
is the trace that is planned for, and then again and again under each plan, every run by a program
of its own, and from nothing each time around: as the trace is replayed that a plan is judged by.
What counts is computing, by the clock of the thread that does it, which stands still while others
have the processor: of each run the median of all rounds but the first, and of these the mean, as
is expected. Where nothing fits, that is said, and nothing is measured.

    python -m benchmarks.planned [--only NAME …] [--seconds S]
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.histories import HISTORIES, SUBJECTS, _fresh
from benchmarks.measure import Command, measured_here, ms
from benchmarks.policies import ONLINE, simulate
from benchmarks.runs import Runs
from tgbench.base.collector import lasting, unseen
from tgbench.base.errors import BudgetError
from tgbench.base.words import format_bytes
from tgbench.commands.apps.tcn import Wavenet
from tgbench.commands.progress import note, say, table
from tgbench.plans.plan import Plan
from tgbench.plans.search.carried import told_anew
from tgbench.plans.search.effort import Effort
from tgbench.plans.search.optimiser import REMEMBERED_BYTES
from tgbench.runs.trace import LoggedCall, Trace
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import GEMMA3_270M, gemma3_checkpoint
from tgbench.sources.torch import from_torch

SHARES, SECONDS = (0.15, 0.3, 0.5, 0.8), 10.0
ROUNDS = 4  # in the first one programs are made
RUNS = 24  # of a history
WARM, NEIGHBOURS = 8, 32  # plans that are judged before it counts, and then
MOST_LEARNT = 6  # plans that are made while more is measured
BERT, RESNET = "MiniLM's size, 6 × 384, 128 tokens", "ResNet-50, 224²"
Made = Callable[..., GraphSession]  # a session of the model, by its own settings
Given = tuple[Any, Any]  # what a run is given, and what is wanted of it


@dataclass(frozen=True)
class Case:
    """A model with its history."""

    session: Made
    given: Sequence[Given]


# --- the models -----------------------------------------------------------------------------------


class Unet(nn.Module):
    """Two levels down and up again, with skips; it keeps the size of an image."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        wide = [channels, 2 * channels, 4 * channels]
        self.enter = _convolved(3, wide[0])
        self.down = nn.ModuleList(_convolved(a, b) for a, b in pairwise(wide))
        self.up = nn.ModuleList(_convolved(a + b, a) for a, b in pairwise(wide))
        self.leave = nn.Conv2d(wide[0], 3, 1)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.enter(x)]
        for block in self.down:
            levels.append(block(nn.functional.max_pool2d(levels[-1], 2)))
        found = levels.pop()
        for block in reversed(self.up):
            grown = nn.functional.interpolate(found, scale_factor=2.0, mode="nearest")
            found = block(torch.cat([levels.pop(), grown], 1))
        left: torch.Tensor = self.leave(found)
        return left


def _convolved(given: int, made: int) -> nn.Sequential:
    both = (nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1))
    return nn.Sequential(both[0], nn.ReLU(), both[1], nn.ReLU())


def _of(module: nn.Module, given: Sequence[Given]) -> Case:
    imported = from_torch(module, (torch.from_numpy(given[0][0]),))
    return Case(partial(GraphSession, imported), given)


def minilm() -> Case:
    """Eight documents; a word of one changes, and the next edit is likely to be in the same one."""
    module, ids = SUBJECTS[BERT].make()
    random = np.random.default_rng(7)
    x, document, given = np.tile(ids[:, :64], (8, 1)), 0, list[Given]()
    for _ in range(RUNS):
        given.append((x, None))
        x, document = x.copy(), int(random.integers(8)) if random.random() < 0.4 else document
        at = int(random.integers(64))
        x[document, at] = _fresh(x[document, at], random)
    return _of(module, given)


def resnet() -> Case:
    """A patch covers one place after the other; what it covered before is there again."""
    module, image = SUBJECTS[RESNET].make()
    random, given = np.random.default_rng(7), [(image, None)]
    for _ in range(RUNS - 1):
        covered = image.copy()
        i, j = (16 * int(at) for at in random.integers(14, size=2))
        covered[..., i : i + 16, j : j + 16] = 0
        given.append((covered, None))
    return _of(module, given)


def unet() -> Case:
    """A patch of an image gets other noise, and is looked at."""
    image = np.random.default_rng(1).standard_normal((1, 3, 128, 128)).astype(np.float32)
    steps = HISTORIES["patch"](image, np.random.default_rng(7))
    return _of(Unet(), [(image, None), *(next(steps) for _ in range(RUNS - 1))])


def tcn() -> Case:
    """A sample after the other is written, and its output looked at."""
    random, window, module = np.random.default_rng(7), 4096, Wavenet()
    x, given = np.zeros((1, 1, window), np.float32), list[Given]()
    x[..., : module.reach] = random.standard_normal(module.reach)
    for at in range(module.reach, module.reach + RUNS):
        given.append((x, np.s_[..., at - 1 : at]))
        x = x.copy()
        x[..., at] = random.standard_normal()
    return _of(module, given)


def gemma() -> Case:
    """A prompt, tokens with an edit now and then, and another prompt halfway."""
    folder = Path(tempfile.gettempdir()) / "tgbench-gemma3-270m"
    if not (folder / "config.json").exists():
        gemma3_checkpoint(folder, GEMMA3_270M)
    random, ids, at = np.random.default_rng(7), np.zeros((1, 256), np.int64), 0
    given = list[Given]()
    for i in range(RUNS):
        ids = ids.copy()
        if i % (RUNS // 2) == 0:
            at = 64 if i else 96
            ids[0], ids[0, :at] = 0, random.integers(1000, size=at)
        elif i % 5 == 4:
            ids[0, int(random.integers(at // 2, at))] = int(random.integers(1000))
        else:
            ids[0, at], at = int(random.integers(1000)), at + 1
        given.append(({"ids": ids}, {"logits": np.s_[0, at - 1]}))
    return Case(partial(GraphSession, gemma3(GEMMA3_270M, tokens=256), weights=folder), given)


def small() -> Case:
    """For `--quick`."""
    image = np.ones((1, 3, 16, 16), np.float32)
    steps = HISTORIES["patch"](image, np.random.default_rng(7))
    return _of(Unet(2), [next(steps) for _ in range(4)])


CASES: Mapping[str, Callable[[], Case]] = {
    "TCN, a stream": tcn,
    "U-Net, 128², a patch": unet,
    "MiniLM's size, 8 × 64 tokens, edits": minilm,
    "ResNet-50, 224², occlusion": resnet,
    "Gemma 3 270M, two prompts, edits": gemma,
}


# --- measuring ------------------------------------------------------------------------------------


def measured(case: Case, shares: Sequence[float], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each share of memory, the least first."""
    everything = case.session(retain="all", making="always")
    happened = _happened(everything, case.given)
    most = everything.placement.size_bytes
    calls = [call.bucket for call in happened]

    def online(session: GraphSession, budget_bytes: int) -> dict[str, float | None]:
        ideal = Runs(session.scheduled, session.rules, (*calls, calls[0]), session.costs.time_ns)
        return {one.name: _finite(simulate(ideal, one, budget_bytes).mean_ns) for one in ONLINE}

    for share in shares:
        budget_bytes = int(share * most)
        row: dict[str, Any] = {"share": share, "budget_bytes": budget_bytes}
        try:
            session = case.session(memory=budget_bytes, making="always", trace=_trace(happened))
            plans = _plans(session, seconds)
        except BudgetError as error:
            row["online_ns"] = online(everything, budget_bytes)
            yield row | {"infeasible": True, "least_bytes": error.lower_bound_bytes}
            continue
        row["online_ns"] = online(session, budget_bytes)
        row["exact_a_second"] = exact_a_second(session)
        row["replayed_ns"] = {mode: replayed_ns(session, plan) for mode, plan in plans.items()}
        yield row | _under(case, plans, everything)


def _plans(session: GraphSession, seconds: float) -> dict[str, Plan]:
    """A greedy plan and a search's, once what kernels take is known: plans are made again until two
    in a row expect the same, as each measures some kernels first.
    """
    expected: list[float] = []
    while len(expected) < MOST_LEARNT and len(expected) == len(set(expected)):
        greedy = session.optimize("greedy", seconds)
        assert greedy.search is not None
        expected.append(greedy.search.best_ns)
    return {"greedy": greedy, "search": session.optimize("search", seconds)}


def replayed_ns(session: GraphSession, plan: Plan) -> float | None:
    """What the whole trace takes under a plan, as online policies are judged, whose values lie
    nowhere: every call as where operands lie plainly, by what is known of kernels now. None where
    runs are served as larger ones.
    """
    judge = session.planning.task(session.runner.happened, None).optimiser().judge
    made = plan.placement_for(judge.scheduled.graph, session.device)
    with judge.rules.allowance.raised(REMEMBERED_BYTES), lasting():
        judge = judge.over(made.scheduled)
        judge.planner.choices.takes = None
        retention = told_anew(made, judge.workload)
        found = judge.candidate(retention, made.cut, made.placement, modelled=False)
    return None if found is None else found.time_ns


def exact_a_second(session: GraphSession) -> float:
    """Plans laid out and replayed in a second of the processor, those that do not fit included."""
    optimiser = session.planning.task(session.runner.happened, None).optimiser()
    judge, budget_bytes = optimiser.judge, optimiser.budget_bytes
    random = np.random.default_rng(7)
    made = optimiser.run("greedy", Effort(steps=0))
    with judge.rules.allowance.raised(REMEMBERED_BYTES), unseen():
        if made.scheduled is not judge.scheduled:
            judge = judge.over(made.scheduled)
        worth = np.flatnonzero(judge.uncut.tables.worthwhile)
        began_ns = 0
        for i in range(WARM + NEIGHBOURS):
            if i == WARM:
                began_ns = time.process_time_ns()
            keep = judge.bits(made.retention)
            keep[random.integers(len(keep)), random.choice(worth)] ^= True
            retention = judge.retention(keep)
            placement = judge.planner.lay_out(
                retention, judge.scenarios, made.cut, budget_bytes=budget_bytes
            )
            if budget_bytes is None or placement.size_bytes <= budget_bytes:
                judge.candidate(retention, made.cut, placement, modelled=False)
        return NEIGHBOURS / ((time.process_time_ns() - began_ns) * 1e-9)


def _under(case: Case, plans: Mapping[str, Plan], everything: GraphSession) -> dict[str, Any]:
    """What runs take under each plan, in turns."""
    sessions = {m: case.session(plan=plan, making="always") for m, plan in plans.items()}
    sessions["all"] = everything
    rounds = [_in_turns(sessions, case.given) for _ in range(ROUNDS)]
    took_ns = {of: _mean_run([one[of] for one in rounds[1:]]) for of in sessions}
    found = {}
    for mode, plan in plans.items():
        search = plan.search
        assert search is not None
        found[mode] = {
            "expected_ns": search.best_ns, "modelled_ns": search.modelled_ns,
            "bound_ns": search.bound_ns, "greedy_ns": search.greedy_ns, "stop": search.stop,
            "steps": search.steps, "size_bytes": plan.size_bytes, "took_ns": took_ns[mode],
        }  # fmt: skip
    return {"plans": found, "all_ns": took_ns["all"]}


def _happened(session: GraphSession, given: Sequence[Given]) -> Sequence[LoggedCall]:
    """The calls of a history; the second time around, so that none of them needs a plan: what
    comes after one finds nothing, and is logged so.
    """
    for _ in range(2):
        session.forget()
        for x, want in given:
            session.run(x, want=want)
    return list(session.trace)[-len(given) :]


def _trace(calls: Iterable[LoggedCall]) -> Trace:
    found = Trace()
    for call in calls:
        found.append(call)
    return found


def _in_turns(
    sessions: Mapping[str, GraphSession], given: Sequence[Given]
) -> Mapping[str, Sequence[int]]:
    """Once through the history, from nothing; what computing takes, deciding and making apart."""
    names, took = list(sessions), {of: list[int]() for of in sessions}
    for session in sessions.values():
        session.forget()
    for i, (x, want) in enumerate(given):
        for j in range(len(names)):
            counters = sessions[of := names[(i + j) % len(names)]].counters
            before_ns = counters.working_ns
            sessions[of].run(x, want=want)
            took[of].append(counters.working_ns - before_ns)
    return took


def _mean_run(rounds: Sequence[Sequence[int]]) -> float:
    """What a run takes in the mean; of each the median of all rounds."""
    return statistics.fmean(statistics.median(times) for times in zip(*rounds, strict=True))


def _finite(time_ns: float) -> float | None:
    return time_ns if math.isfinite(time_ns) else None


# --- the command ----------------------------------------------------------------------------------

HEADER = ["model", "memory", "exact a second", "greedy, ms", "search", "bound", "online",
          "measured: greedy", "search", "all kept"]  # fmt: skip


def line(name: str, row: Mapping[str, Any]) -> list[str]:
    shown = [name, f"{row['share']:.0%} ({format_bytes(row['budget_bytes'])})"]
    if "infeasible" in row:
        return [*shown, f"at least {format_bytes(row['least_bytes'])}", *[""] * 7]
    greedy, search = (row["plans"][mode] for mode in ("greedy", "search"))
    online = [time_ns for time_ns in row["online_ns"].values() if time_ns is not None]
    return [
        *shown, f"{row['exact_a_second']:.1f}" if "exact_a_second" in row else "",
        *("–" if ns is None else ms(ns) for ns in row["replayed_ns"].values()),
        ms(search["bound_ns"]), ms(min(online)) if online else "none",
        *map(ms, (greedy["took_ns"], search["took_ns"], row["all_ns"])),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all models; what is in the file already, and not asked for, stays there."""
    command = Command("planned", __doc__)
    command.add_argument("--only", nargs="*", default=list(CASES), help="names of models")
    command.add_argument("--seconds", type=float, default=SECONDS, help=f"a plan ({SECONDS})")
    options, record = command.begin(argv)
    torch.set_num_threads(1)
    cases = {"small": small} if options.quick else {name: CASES[name] for name in options.only}
    shares, seconds = (SHARES[-1:], 0.5) if options.quick else (SHARES, options.seconds)
    path = options.output
    found = measured_here(path).get("models", {})
    for name, make in cases.items():
        found[name] = []
        for row in measured(make(), shares, seconds):
            found[name].append(row)
            note(" · ".join(line(name, row)))
        record.write({"seconds": seconds, "models": found}, path)
    say(table(HEADER, [line(name, row) for name, rows in found.items() for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
