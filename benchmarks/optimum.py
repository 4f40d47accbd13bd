"""What the search finds, beside the exact optimum of the process that it decides about.

A small graph of values with times and sizes; classes of runs that follow each other at random, each
with values that it makes stale and values that it asks for. After every run, what is there may be
kept. That is a Markov decision process, and small enough it is solved exactly:

    state      class that ran last, set of values kept
    action     what to keep of what is there after the run, as far as it fits at every step
    optimum    least mean time of a run in the long run   (relative value iteration)

The search decides less: what is kept after each *turn* (a class after another, in the first run or
a later one in a row), and that once and for all. So it can be behind; how far is measured here.
Nothing is packed: sizes just add up.

Source of the method: White, "Dynamic programming, Markov chains, and the method of successive
approximations", J. Math. Anal. Appl. 6 (1963).

    python -m benchmarks.optimum      240 processes → optimum.json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.measure import Command
from tgbench.commands.progress import say, table
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.polish import polished
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import NOTHING, Floats, NodeTable, Situation, Tables
from tgbench.plans.search.chain import Chain

BUDGETS: Sequence[float] = (0.15, 0.3, 0.5)  # of keeping everything
STEPS = 8  # windows
SMALLER = (0.75, 0.5)  # of the memory: what the program keeps in less of it is a start as well
POLISHED = 4  # of what it found
TRACE = 400  # runs
CLOSE = 1e-7  # value iteration stops when a mean is known this well
Turns = tuple[tuple[int, int, bool], ...]  # (other class before, class, whether it ran last)


@dataclass(frozen=True)
class Process:
    """Runs of a graph, one after the other; sets of values are bit masks.

    Fields:
        parents: for each value, the values it is computed from.
        cost_ns, size_bytes: of each value.
        dirty, demand: for each class, what it makes stale and what it asks for.
        follows: [class, class] probability of the next class.
    """

    parents: tuple[tuple[int, ...], ...]
    cost_ns: Floats
    size_bytes: NDArray[np.int64]
    dirty: tuple[int, ...]
    demand: tuple[int, ...]
    follows: Floats

    @property
    def count(self) -> int:
        return len(self.parents)

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """The parents of each value, as a mask."""
        return tuple(sum(1 << p for p in set(parents)) for parents in self.parents)

    @cached_property
    def turns(self) -> Turns:
        """Every class after every other that it may follow, and again; alone, without another."""
        pairs = [(int(j), int(k)) for j, k in np.argwhere(self.follows > 0) if j != k]
        stays = self.follows.diagonal() > 0
        found = [
            (j, k, again) for j, k in pairs for again in (False, True) if stays[k] or not again
        ]
        return tuple(found) or ((0, 0, True),)

    @cached_property
    def passages(self) -> tuple[tuple[int, int, int, float], ...]:
        """(turn, the next turn, its class, probability)."""
        number = {turn: t for t, turn in enumerate(self.turns)}
        return tuple(
            (t, number[(j, k, True) if of == k else (k, of, False)], of, float(share))
            for t, (j, k, _) in enumerate(self.turns)
            for of, share in enumerate(self.follows[k])
            if share > 0
        )

    def after(self, turn: int) -> Iterator[tuple[int, int, float]]:
        """What may follow a turn: (turn, its class, probability)."""
        return ((t, of, share) for before, t, of, share in self.passages if before == turn)

    def computed(self, of: int, there: int) -> int:
        """What a run of a class computes, where these earlier values are there."""
        needed, found, usable = self.demand[of], 0, there & ~self.dirty[of]
        for i in range(self.count - 1, -1, -1):
            if needed >> i & 1 and not usable >> i & 1:
                found |= 1 << i
                needed |= self.masks[i]
        return found

    def read(self, of: int, there: int) -> int:
        """Which earlier values a run of a class looks at."""
        made = self.computed(of, there)
        asked = self.demand[of]
        for i in range(self.count):
            if made >> i & 1:
                asked |= self.masks[i]
        return asked & there & ~self.dirty[of]

    def peak_bytes(self, of: int, there: int, kept: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """The most bytes live at a step of a run, values in order, for what is kept after it.

        An earlier value that is read or kept on is live from the first step; what is kept, to the
        last; others at their own step, where they count nothing unless they were there.
        """
        early = (there & ~self.dirty[of] & kept) | self.read(of, there)
        peak = self.sizes[kept]
        for step in range(self.count):
            upto = (2 << step) - 1
            peak = np.maximum(peak, self.sizes[(kept & upto) | (early & ~(upto >> 1))])
        return np.asarray(peak)

    def time_ns(self, values: int) -> float:
        return float(sum(self.cost_ns[i] for i in range(self.count) if values >> i & 1))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """[mask] bytes of every set of values."""
        found = np.zeros(1 << self.count, np.int64)
        for i, size in enumerate(self.size_bytes):
            found[1 << i : 2 << i] = found[: 1 << i] + size
        return found


def processes(kind: str, seed: int, count: int, classes: int) -> Process:
    """A random process.

    Args:
        kind: sticky (a class mostly follows itself), mixed (any follows any), adversarial (few
            values are large or slow, and what follows what is anything), branchy (values have many
            readers, far away).
    """
    random = np.random.default_rng([seed, count, classes])
    reach = count if kind == "branchy" else 5
    most = 4 if kind == "branchy" else 3
    parents: list[tuple[int, ...]] = []
    for i in range(count):
        readers = random.integers(1, most) if i > 1 else 0
        drawn = random.integers(max(0, i - reach), max(i, 1), size=readers)
        parents.append(tuple(sorted({int(p) for p in drawn})))
    cost = random.integers(1, 100, count).astype(float)
    size = random.integers(1, 20, count) * 64
    stay = {"sticky": 0.7, "branchy": 0.5}.get(kind, 1 / classes)
    follows = np.full((classes, classes), (1 - stay) / max(classes - 1, 1))
    np.fill_diagonal(follows, stay)
    if kind == "adversarial":
        cost = np.where(random.random(count) < 0.3, 1000.0, 1.0)
        size = np.where(random.random(count) < 0.3, 20, 1) * 64
        follows = random.dirichlet(np.ones(classes) * 0.5, size=classes)
    dirty, demand = [], []
    for _ in range(classes):
        stale = {int(i) for i in random.choice(count, size=max(1, count // 6), replace=False)}
        for i in range(count):
            if stale.intersection(parents[i]):
                stale.add(i)
        dirty.append(sum(1 << i for i in stale))
        asked = random.choice(np.arange(count // 2, count), size=2, replace=False)
        demand.append(sum(1 << int(i) for i in asked))
    return Process(
        tuple(parents), cost, size.astype(np.int64), tuple(dirty), tuple(demand), follows
    )


# --- the optimum ----------------------------------------------------------------------------------


def optimum_ns(process: Process, budget_bytes: int) -> float:
    """The least mean time of a run that any policy reaches, by relative value iteration.

    Takes memory for the square of the sets that fit; 2¹² of them are no trouble.
    """
    classes, every = len(process.follows), np.arange(1 << process.count)
    kept = every[process.sizes <= budget_bytes]
    rows = [[_Choices.of(process, k, int(s), kept, budget_bytes) for s in kept]
            for k in range(classes)]  # fmt: skip
    value = np.zeros((classes, len(kept)))
    while True:
        after = np.array([[row.best_ns(value[k]) for row in rows[k]] for k in range(classes)])
        new = process.follows @ after
        change = new - value
        low, high = float(change.min()), float(change.max())
        if high - low <= CLOSE * max(high, 1.0):
            return (low + high) / 2
        # Half a step: chains that swing between states would not settle otherwise.
        value = (value + new) / 2
        value -= value[0, 0]


@dataclass(frozen=True)
class _Choices:
    """What a run of a class takes, and which sets (by position) may be kept after it."""

    time_ns: float
    sets: NDArray[np.int64]

    @staticmethod
    def of(
        process: Process, of: int, there: int, kept: NDArray[np.int64], budget_bytes: int
    ) -> _Choices:
        made = process.computed(of, there)
        left = (there & ~process.dirty[of]) | made
        sets = np.flatnonzero((kept & ~left) == 0)
        fits = process.peak_bytes(of, there, kept[sets]) <= budget_bytes
        return _Choices(process.time_ns(made), sets[fits])

    def best_ns(self, value: Floats) -> float:
        return self.time_ns + float(value[self.sets].min()) if self.sets.size else np.inf


# --- what the search knows ------------------------------------------------------------------------


def steady(process: Process, keep: Sequence[int] | None = None) -> dict[tuple[int, int], float]:
    """How often (turn, values there afterwards) happens in the long run.

    Args:
        keep: for each turn, what of what is there is kept; None: everything.
    """
    number: dict[tuple[int, int], int] = {}
    steps: list[tuple[int, int, float]] = []
    first = (0, 0)
    todo = [first]
    number[first] = 0
    while todo:
        state = todo.pop()
        turn, there = state
        for t, k, probability in process.after(turn):
            left = (there & ~process.dirty[k]) | process.computed(k, there)
            after = (t, left if keep is None else left & keep[t])
            if after not in number:
                number[after] = len(number)
                todo.append(after)
            steps.append((number[state], number[after], probability))
    chain = np.zeros((len(number), len(number)))
    for a, b, probability in steps:
        chain[a, b] += probability
    share = np.full(len(number), 1 / len(number))
    for _ in range(10_000):
        new = (share + share @ chain) / 2
        if np.abs(new - share).max() < 1e-13:
            break
        share = new
    return {state: float(share[i]) for state, i in number.items()}


def mean_ns(process: Process, keep: Sequence[int], budget_bytes: int) -> float:
    """The exact mean time of a run, this kept after each turn; infinite where it does not fit."""
    mean = 0.0
    for (turn, there), share in steady(process, keep).items():
        for t, k, probability in process.after(turn):
            made = process.computed(k, there)
            left = (there & ~process.dirty[k]) | made
            if process.peak_bytes(k, there, left & keep[t]) > budget_bytes:
                return np.inf
            mean += share * probability * process.time_ns(made)
    return mean


def tables(process: Process) -> Tables:
    """The process as the search sees it: what would be there, were everything kept."""
    turns = process.turns
    found: dict[tuple[int, int, int], float] = {}
    for (turn, values), share in steady(process).items():
        for t, k, probability in process.after(turn):
            key = (turn, t, values & ~process.dirty[k])
            found[key] = found.get(key, 0.0) + share * probability
    often = sorted(((share, key) for key, share in found.items() if share > 1e-9), reverse=True)
    situations = [Situation(before, of, share) for share, (before, of, _) in often]
    left = [values for _, (_, _, values) in often]
    for t in range(len(turns)):
        situations.append(Situation(NOTHING, t, 0.0))
        left.append(0)
    there = np.array([[bool(v >> i & 1) for i in range(process.count)] for v in left])
    rows = range(process.count)
    return Tables(
        tuple(f"v{i}" for i in rows),
        tuple(_table(process, i, situations, there) for i in rows),
        tuple(situations),
        len(turns),
        np.arange(process.count),
        np.arange(1, process.count + 1),
        process.size_bytes,
        np.zeros(process.count, np.int64),
        0,
        np.ones(process.count, bool),
        there,
        _happened(process, {key: s for s, (_, key) in enumerate(often)}),
    )


def _happened(process: Process, number: Mapping[tuple[int, int, int], int]) -> NDArray[np.int64]:
    """A trace of the process, as situations."""
    random = np.random.default_rng(0)
    turn, there, found = 0, 0, []
    for _ in range(TRACE):
        of = int(random.choice(len(process.follows), p=process.follows[process.turns[turn][1]]))
        after = next(t for t, k, _ in process.after(turn) if k == of)
        found.append(number.get((turn, after, there & ~process.dirty[of]), -1))
        there = (there & ~process.dirty[of]) | process.computed(of, there)
        turn = after
    return np.array([s for s in found if s >= 0], np.int64)


def _table(
    process: Process, i: int, situations: Sequence[Situation], there: NDArray[np.bool_]
) -> NodeTable:
    """One level: all of the value. Code 1: what is missing beside its earlier value; 2: all."""
    count = len(situations)
    missing = ~there[:, i]
    does = np.stack([np.zeros(count, bool), missing, np.ones(count, bool)], axis=1)
    classes = [process.turns[situation.of][1] for situation in situations]
    demanded = np.array([process.demand[k] >> i & 1 for k in classes], np.uint8)
    asks = tuple((p, does.astype(np.uint8)) for p in process.parents[i])
    nothing = np.zeros(count, np.uint8)
    return NodeTable(1, does * process.cost_ns[i], does.astype(np.int64), demanded, nothing, asks)


# --- one process ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """What was found for one process and budget; times are means of a run.

    Fields:
        found_ns: exact, of the retention that the search found.
        seconds: CPU time of the search.
    """

    kind: str
    seed: int
    budget: float
    optimum_ns: float
    found_ns: float
    bound_ns: float
    seconds: float

    @property
    def ratio(self) -> float:
        """How far behind the optimum; 1 where nothing has to be computed."""
        return self.found_ns / self.optimum_ns if self.optimum_ns > 1e-6 else 1.0


def compare(kind: str, seed: int, budget: float, count: int = 11, classes: int = 3) -> Compared:
    """Search one process, and solve it exactly."""
    process = processes(kind, seed, count, classes)
    budget_bytes = int(budget * process.size_bytes.sum()) // 64 * 64
    began = time.process_time()
    model = Model(tables(process))
    # A value's slice while it is computed counts as one byte in these tables.
    room = budget_bytes + count
    programs = [IntegerProgram(model, int(share * room)) for share in (1.0, *SMALLER)]
    relaxed = programs[0].solve(integer=False)
    solved = [program.solve(SolverLimits(nodes=2_000)).keep for program in programs]
    starts = [keep[0] for keep in solved if keep is not None]
    chain = Chain(programs[0], relaxed.share, tuple(starts), (seed,), STEPS)
    keeps = [*starts, *(one.keep for one in chain.run().found)]
    times = model.walked_ns(np.stack([np.zeros_like(relaxed.share, bool), *keeps]))[1:]
    order = times.argsort(kind="stable")[:POLISHED].tolist()
    near = [polished(model, room, keeps[i], (seed, n)) for n, i in enumerate(order)]
    keeps += [one.keep for one in near if one is not None]
    masks = {_masks(keep) for keep in keeps} | {(0,) * model.turns}
    found = min(mean_ns(process, keep, budget_bytes) for keep in masks)
    seconds = time.process_time() - began
    best = optimum_ns(process, budget_bytes)
    return Compared(kind, seed, budget, best, found, relaxed.bound_ns, seconds)


def _masks(keep: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(sum(1 << int(i) for i in np.flatnonzero(row)) for row in keep)


# --- the command ----------------------------------------------------------------------------------


def summary(rows: Iterable[Compared]) -> Iterator[dict[str, Any]]:
    """One line for each kind and budget."""
    groups: dict[tuple[str, float], list[Compared]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.budget), []).append(row)
    for (kind, budget), group in groups.items():
        ratios = sorted(row.ratio for row in group)
        yield {
            "kind": kind,
            "budget": budget,
            "processes": len(group),
            "mean_ratio": statistics.geometric_mean(ratios),
            "worst_ratio": ratios[-1],
            "within_1_percent": sum(ratio <= 1.01 for ratio in ratios) / len(ratios),
            "seconds": statistics.median(row.seconds for row in group),
        }


KINDS: Sequence[str] = ("sticky", "mixed", "branchy", "adversarial")


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("optimum", __doc__)
    command.add_argument("--seeds", type=int, default=20)
    command.add_argument("--count", type=int, default=11, help="values in a graph")
    command.add_argument("--classes", type=int, default=3)
    options, record = command.begin(argv)
    kinds, budgets, seeds = KINDS, BUDGETS, options.seeds
    if options.quick:
        kinds, budgets, seeds = KINDS[:1], BUDGETS[:1], 1
    rows = [
        compare(kind, seed, budget, 5 if options.quick else options.count, options.classes)
        for kind, budget, seed in tqdm(list(product(kinds, budgets, range(seeds))), "processes")
    ]
    lines = list(summary(rows))
    cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()]
             for line in lines]  # fmt: skip
    say(table(list(lines[0]), cells))
    worst = max(rows, key=lambda row: row.ratio)
    record.write({"summary": lines, "worst": asdict(worst)}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
