"""Retention as an integer program: the optimum of the tabulated model, or a bound on it.

    keep[k, n]      1: node n is kept after every run of turn k
    level[s, n, i]  1: situation s asks for level i of n, or a higher one
    afresh[s, n, i] 1: that level of n is asked for, and what was there before is not there

    minimise        Σ weight · time of what is computed
    so that         afresh ≥ level − keep of the turn before
                    a level computed asks for the levels that it reads
                    what is kept after a turn was there before it, or is made where it begins
                    at every step of every turn after another: kept + live slices + inputs ≤ budget

Given `keep`, everything else is decided by propagation, so only `keep` has to be integer. The
relaxation in which it is not gives a bound that no retention of the model can beat.

Source: the formulation is ours; Jain et al., "Checkmate" (MLSys 2020), plan one run in this manner.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.model import Keep, Model
from tgbench.plans.retention.solver import Linear, SolverLimits, solve
from tgbench.plans.retention.tables import Floats, NodeTable

TIE = 2e-5  # weight of a tie-breaker, as a share of the time with nothing retained


@dataclass(frozen=True)
class Relaxed:
    """What the program says.

    Fields:
        keep: the best retention found, [1, turn, node]; None if time ran out before one was.
        share: [turn, node] how much of a node is kept where `keep` need not be integer.
        bound_ns: no retention of the model within the budget is faster; 0 where limits came first.
        is_optimal: whether `keep` was proven to be within the tolerance of the bound.
        seconds, work: how long it took, and what of its limit.
    """

    keep: Keep | None
    share: Floats
    bound_ns: float
    is_optimal: bool
    seconds: float
    work: float = 0.0


@dataclass(frozen=True)
class HeldAnswers:
    """What is decided already: [turn, node] where, and how."""

    nodes: NDArray[np.bool_]
    keep: NDArray[np.bool_]


@dataclass(frozen=True)
class IntegerProgram:
    """The integer program of one model under one budget; written out when it is first solved.

    Fields:
        has_slices: False leaves out the memory of what is not kept. What then bounds whole runs
            bounds them however they are cut.
    """

    model: Model
    budget_bytes: int
    has_slices: bool = True

    def __reduce__(self) -> tuple[type[IntegerProgram], tuple[Model, int, bool]]:
        """Another process writes it out again."""
        return IntegerProgram, (self.model, self.budget_bytes, self.has_slices)

    @cached_property
    def packed(self) -> bytes:
        """As it is sent to another process."""
        return pickle.dumps(self)

    @cached_property
    def _written(self) -> _Written:
        return _Writer(self.model, self.budget_bytes, self.has_slices).written()

    def solve(
        self,
        limits: SolverLimits | None = None,
        *,
        integer: bool = True,
        held: HeldAnswers | None = None,
    ) -> Relaxed:
        """Minimise; with `integer` False, only the bound and the shares; what is held stays."""
        began, written = time.monotonic(), self._written
        shape = self.model.turns, self.model.nodes
        keep, cost, integers = shape[0] * shape[1], written.cost.copy(), written.cost * 0
        if integer:  # of equally fast ones, the retention that keeps the least
            cost[:keep] += TIE * written.slowest_ns / max(keep, 1)
            integers[:keep] = 1
        program = Linear(cost, *written.limits(held), written.matrix, written.low, integers)
        solved = solve(program, limits or SolverLimits())
        bound_ns = max(solved.bound - TIE * written.slowest_ns * integer, 0.0)
        share, found = np.zeros(shape), solved.values is not None
        if solved.values is not None:
            share = solved.values[:keep].reshape(shape)
        return Relaxed(
            (share > 0.5)[None] if integer and found else None,
            share,
            bound_ns,
            solved.is_optimal and (integer or not found),
            time.monotonic() - began,
            solved.work,
        )


@dataclass(frozen=True)
class _Written:
    """A program as the solver takes it: the least cost · x, 0 ≤ x ≤ high, matrix · x ≥ low."""

    cost: Floats
    high: Floats
    matrix: Any
    low: Floats
    slowest_ns: float

    def limits(self, held: HeldAnswers | None) -> tuple[Floats, Floats]:
        """Of all variables, the least and the most; what is held is both."""
        low, high = np.zeros_like(self.high), self.high.copy()
        if held is not None:
            at = np.flatnonzero(held.nodes)
            low[at] = high[at] = held.keep.reshape(-1)[at]
        return low, high


class _Writer:
    """Writes a program out: its variables, and a constraint after the other."""

    def __init__(self, model: Model, budget_bytes: int, has_slices: bool) -> None:
        self.model = model
        self.budget_bytes = budget_bytes
        self.slots = model.least_slots if has_slices else np.zeros_like(model.least_slots)
        self._rows = _Constraints()
        self._level: dict[tuple[int, int, int], int] = {}
        self._afresh: dict[tuple[int, int, int], int] = {}
        self._cost = [0.0] * (model.turns * model.nodes)
        self._high = [float(w) for _ in range(model.turns) for w in model.tables.worthwhile]

    def written(self) -> _Written:
        self._build()
        matrix, low = self._rows.matrix(len(self._cost))
        slowest_ns = float(self.model.score(self.model.none()).time_ns[0])
        return _Written(np.array(self._cost), np.array(self._high), matrix, low, slowest_ns)

    # --- variables -------------------------------------------------------------------------------

    def _keep(self, k: int, n: int) -> int:
        return k * self.model.nodes + n

    def _variable(self, cost: float = 0.0, high: float = 1.0) -> int:
        self._cost.append(cost)
        self._high.append(high)
        return len(self._cost) - 1

    # --- constraints -----------------------------------------------------------------------------

    def _build(self) -> None:
        tables = self.model.tables
        weighed = [s for s, situation in enumerate(tables.situations) if situation.weight > 0]
        for s in weighed:
            self._situation(s)
        self._made()
        kept = [self._kept(k) for k in range(self.model.turns)]
        for k, rows in self.model.passages:
            self._memory(k, rows.tolist(), kept[k])
        self._memory_of_slices()

    def _situation(self, s: int) -> None:
        tables, nodes = self.model.tables, range(self.model.nodes)
        reached = self._reached(s)
        for n in nodes:
            for i, extra in enumerate(
                zip(*_increments(tables.table[n], s, reached[n]), strict=True)
            ):
                self._node_level(s, n, i + 1, *extra)
        for n in nodes:
            if reached[n]:
                self._asks(s, n, tables.table[n], reached)

    def _reached(self, s: int) -> list[int]:
        """The highest level that anything may ask of each node."""
        tables = self.model.tables
        reached = [0] * self.model.nodes
        for n in range(self.model.nodes - 1, -1, -1):
            table = tables.table[n]
            reached[n] = max(reached[n], int(table.demanded[s]))
            k = table.levels
            codes = [*range(1, reached[n] + 1), *range(k + 1, k + reached[n] + 1)]
            for parent, asks in table.asks:
                reached[parent] = max(reached[parent], int(asks[s, codes].max(initial=0)))
        return reached

    def _node_level(
        self, s: int, n: int, i: int, either_ns: float, afresh_ns: float, there_ns: float
    ) -> None:
        situation, table = self.model.tables.situations[s], self.model.tables.table[n]
        level = self._level[s, n, i] = self._variable(situation.weight * either_ns)
        if i > 1:
            self._rows.add([(self._level[s, n, i - 1], 1.0), (level, -1.0)], 0.0)
        if int(table.demanded[s]) >= i:
            self._rows.add([(level, 1.0)], 1.0)
        new = self._afresh[s, n, i] = self._variable(situation.weight * afresh_ns)
        keep = self._keep(situation.before, n)
        self._rows.add([(new, 1.0), (level, -1.0), (keep, 1.0)], 0.0)
        if there_ns:  # many small boxes may take longer than all of it
            there = self._variable(situation.weight * there_ns)
            self._rows.add([(there, 1.0), (level, -1.0), (keep, -1.0)], -1.0)

    def _asks(self, s: int, n: int, table: NodeTable, reached: Sequence[int]) -> None:
        for parent, asks in table.asks:
            before = 0
            for i in range(1, reached[n] + 1):
                there, new = int(asks[s, i]), int(asks[s, table.levels + i])
                if there > before:
                    self._implies(self._level[s, n, i], self._level[s, parent, there])
                if new > there:
                    self._implies(self._afresh[s, n, i], self._level[s, parent, new])
                before = there

    def _implies(self, one: int, other: int) -> None:
        self._rows.add([(other, 1.0), (one, -1.0)], 0.0)

    def _made(self) -> None:
        """What is kept after a turn was there before its first run, or is made by it."""
        situations = self.model.tables.situations
        for k in range(self.model.turns):
            runs = [(s, situations[s]) for s in self.model.entering[k].tolist()]
            total = sum(run.weight for _, run in runs)
            for n in map(int, np.flatnonzero(self.model.tables.worthwhile)):
                terms = {self._keep(k, n): -total}
                for s, run in runs:
                    for source in (self._afresh.get((s, n, 1)), self._keep(run.before, n)):
                        if source is not None:
                            terms[source] = terms.get(source, 0.0) + run.weight
                self._rows.add(list(terms.items()), 0.0)

    def _kept(self, k: int) -> list[int]:
        """What is kept after a turn and has ended by itself, at each step; all of it fits."""
        model, unit = self.model, float(max(self.budget_bytes, 1))
        sizes = model.tables.kept_bytes / unit
        worthwhile = np.flatnonzero(model.tables.worthwhile).tolist()
        found: list[int] = []
        upto = -1
        for step in (*(members[-1] for members in model.live_sets), model.nodes):
            ended = [
                (self._keep(k, n), sizes[n]) for n in worthwhile if upto < model.ends[n] <= step
            ]
            found.append(self._sum(ended, dict.fromkeys(found[-1:], 1.0)))
            upto = step
        self._rows.add([(found[-1], -1.0)], (model.tables.base_bytes - self.budget_bytes) / unit)
        return found

    def _memory(self, k: int, rows: Sequence[int], kept: Sequence[int]) -> None:
        """At each step of these runs: what is live from the start, from its step, and for good."""
        model, unit = self.model, float(max(self.budget_bytes, 1))
        sizes = model.tables.kept_bytes / unit
        room = (self.budget_bytes - model.tables.base_bytes) / unit
        worthwhile = np.flatnonzero(model.tables.worthwhile).tolist()
        early = {n: self._early(k, n, rows) for n in worthwhile}
        within = {n: self._within(k, n, rows, early.get(n)) for n in range(model.nodes)}
        first, first_from = self._sum([(early[n], sizes[n]) for n in worthwhile], {}), -1
        for members, ended in zip(model.live_sets, kept, strict=False):
            step = members[-1]
            begun = [n for n in worthwhile if first_from < n <= step]
            first = self._sum([(early[n], -sizes[n]) for n in begun], {first: 1.0})
            first_from = step
            live: list[tuple[int, float]] = []
            for n in members:
                variable, least = within[n], self.slots[n] / unit
                if variable is not None:
                    live.append((variable, -least))
                if n in early:
                    live.append((early[n], least - sizes[n]))
            self._rows.add([(ended, -1.0), (first, -1.0), *live], -room)

    def _sum(self, terms: Sequence[tuple[int, float]], before: Mapping[int, float]) -> int:
        """A variable that is at least a sum."""
        total = self._variable(high=np.inf)
        parts = [*terms, *before.items()]
        self._rows.add([(total, 1.0), *((v, -float(c)) for v, c in parts)], 0.0)
        return total

    def _early(self, k: int, n: int, rows: Sequence[int]) -> int:
        """1 where a node is live from the first step of a turn's runs."""
        variable, situations = self._variable(), self.model.tables.situations
        sources = {situations[s].before for s in rows if self.model.tables.left[s, n]}
        for j in sources:
            through = [(self._keep(j, n), -1.0), (self._keep(k, n), -1.0)]
            bound = -1.0 if j != k else 0.0
            self._rows.add([(variable, 1.0), *(through if j != k else through[:1])], bound)
        for s in rows:
            level = self._level.get((s, n, 1))
            if level is not None and self.model.tables.left[s, n]:
                read = [(self._keep(situations[s].before, n), -1.0), (level, -1.0)]
                self._rows.add([(variable, 1.0), *read], -1.0)
        return variable

    def _within(self, k: int, n: int, rows: Sequence[int], early: int | None) -> int | None:
        """1 where a node is live over its range in the schedule; None if it never is."""
        levels = [(s, self._level[s, n, 1]) for s in rows if (s, n, 1) in self._level]
        if early is None and not levels:
            return None
        variable = self._variable()
        for s, level in levels:
            afresh = self._afresh[s, n, 1]
            made = level if self._computes(s, n) else afresh
            self._rows.add([(variable, 1.0), (made, -1.0)], 0.0)
        if early is not None:
            self._rows.add([(variable, 1.0), (early, -1.0)], 0.0)
        return variable

    def _computes(self, s: int, n: int) -> bool:
        """Whether something is computed of a node even where its earlier value is there."""
        return bool(self.model.tables.table[n].size_bytes[s, 1] > 0)

    def _memory_of_slices(self) -> None:
        """Every slice of the plan, once: what no turn may ever let overlap."""
        model, unit = self.model, float(max(self.budget_bytes, 1))
        tables = model.tables
        always: dict[int, int] = {}
        stacked = tables.worthwhile & ~model.shareable
        for n in map(int, np.flatnonzero(stacked)):
            variable = always[n] = self._variable()
            terms = [(self._keep(k, n), -1.0) for k in range(model.turns)]
            self._rows.add([(variable, 1.0), *terms], 1.0 - model.turns)
        total = self._variable()
        sizes = [(v, -float(tables.kept_bytes[n]) / unit) for n, v in always.items()]
        self._rows.add([(total, 1.0), *sizes], 0.0)
        room = (self.budget_bytes - tables.base_bytes) / unit
        for members in self.model.live_sets:
            terms, fixed = [(total, -1.0)], 0.0
            for n in members:
                size = float(self.slots[n]) / unit
                fixed += size
                if size and n in always:
                    terms.append((always[n], size))
            self._rows.add(terms, fixed - room)


def _increments(table: NodeTable, s: int, reached: int) -> tuple[Floats, Floats, Floats]:
    """Time per level that is reached: in any case, more where nothing is there, more where it is.

    Rounded down to rise with the level, as a sum of increments has to.
    """
    k = table.levels
    there = table.cost_ns[s, 1 : reached + 1]
    afresh = table.cost_ns[s, k + 1 : k + reached + 1]
    either = np.minimum(there, afresh)
    return _rising(either), _rising(afresh - either), _rising(there - either)


def _rising(values: Floats) -> Floats:
    least = np.minimum.accumulate(values[::-1])[::-1]
    found: Floats = np.diff(least, prepend=0.0)
    return found


class _Constraints:
    """Sparse constraints: Σ coefficient · variable ≥ low."""

    def __init__(self) -> None:
        self._low: list[float] = []
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []

    def add(self, terms: Sequence[tuple[int, float]], low: float) -> None:
        number = len(self._low)
        self._low.append(low)
        for column, value in terms:
            self._row.append(number)
            self._column.append(column)
            self._value.append(value)

    def matrix(self, columns: int) -> tuple[Any, Floats]:
        from scipy.sparse import csc_array

        shape = (len(self._low), columns)
        return csc_array((self._value, (self._row, self._column)), shape=shape), np.array(self._low)
