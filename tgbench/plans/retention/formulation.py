"""Retention written as an integer program: what the tabulated model says, in constraints.

    keep[k, n]      1: node n is kept after every run of turn k; `throughout`: one for all turns
    level[s, n, i]  1: situation s asks for level i of n, or a higher one
    afresh[s, n, i] 1: that level of n is asked for, and what was there before is not there

    minimise        Σ weight · time of what is computed
    so that         afresh ≥ level − keep of the turn before
                    a level computed asks for the levels that it reads
                    what is kept after a turn is left, or made, by most runs that it begins with
                    at every step of every turn after another: kept + live slices + inputs ≤ budget
                    of what every run computes: kept after some turn + live slices + inputs ≤ budget

Given `keep`, everything else is decided by propagation, so only `keep` has to be integer. What is
always equal to another variable, or to one less another, is not a variable of its own: most levels
are what one reader asks for, or are asked for in any case.

Source: the formulation is ours; Jain et al., "Checkmate" (MLSys 2020), plan one run in this manner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.model import HALF, Model
from tgbench.plans.retention.tables import Floats, NodeTable, Situation

MOST_SUMS = 4096  # of weights that are looked at for the least that is half of them


def formulated(
    model: Model, budget_bytes: int, *, has_slices: bool, throughout: bool
) -> Formulation:
    """The program of one model within one budget.

    Args:
        has_slices: False leaves out the memory of what is not kept.
        throughout: what is kept is kept after all turns.
    """
    return _Writer(model, budget_bytes, has_slices, throughout).formulation()


@dataclass(frozen=True)
class Formulation:
    """A program as the solver takes it: the least cost · x, 0 ≤ x ≤ high, matrix · x ≥ low.

    Fields:
        turns: of which it is decided what is kept after them: the first variables, turn by turn.
        always_ns: what every solution takes besides.
        slowest_ns: what runs take with nothing retained.
    """

    turns: int
    cost: Floats
    high: Floats
    matrix: Any
    low: Floats
    always_ns: float
    slowest_ns: float


class Affine(NamedTuple):
    """A constant and so much of some variables."""

    terms: tuple[tuple[int, float], ...] = ()
    constant: float = 0.0

    def complement(self) -> Affine:
        """What it is less than one."""
        return Affine(self.times(-1.0).terms, 1.0 - self.constant)

    def times(self, factor: float) -> Affine:
        return Affine(
            tuple([(one, value * factor) for one, value in self.terms]), self.constant * factor
        )


NEVER, ONCE = Affine(), Affine((), 1.0)


class _Writer:
    """Writes a program out: its variables, and a constraint after the other.

    What has to be the larger of some parts and is no more than they are is not a variable where one
    of the parts is always the largest: a level that one reader alone asks for is that reader's.
    """

    def __init__(self, model: Model, budget_bytes: int, has_slices: bool, throughout: bool) -> None:
        self.model, self._turns = model, 1 if throughout else model.turns
        unit = float(max(budget_bytes, 1))  # of bytes
        slots = model.least_slots if has_slices else np.zeros_like(model.least_slots)
        self._room = (budget_bytes - model.tables.base_bytes) / unit
        self._sizes: list[float] = (model.tables.kept_bytes / unit).tolist()
        self._slots: list[float] = (slots / unit).tolist()
        self._rows = _Constraints()
        self._level: dict[tuple[int, int, int], Affine] = {}
        self._afresh: dict[tuple[int, int, int], Affine] = {}
        self._cost = [0.0] * (self._turns * model.nodes)
        self._high = [float(w) for _ in range(self._turns) for w in model.tables.worthwhile]
        self._times: dict[tuple[int, int], list[list[list[float]]]] = {}
        self._met: dict[int, list[Affine]] = {}
        self._always_ns = 0.0

    def formulation(self) -> Formulation:
        self._build()
        matrix, low = self._rows.matrix(len(self._cost))
        slowest_ns = float(self.model.score(self.model.none()).time_ns[0])
        return Formulation(
            self._turns, np.array(self._cost), np.array(self._high), matrix, low,
            self._always_ns, slowest_ns,
        )  # fmt: skip

    # --- variables -------------------------------------------------------------------------------

    def _keep(self, k: int, n: int) -> Affine:
        if not self.model.tables.worthwhile[n]:
            return NEVER
        return Affine(((self._turn(k) * self.model.nodes + n, 1.0),))

    def _turn(self, k: int) -> int:
        """The one that it is decided for what is kept after another one."""
        return min(k, self._turns - 1)

    def _variable(self, high: float = 1.0) -> Affine:
        self._cost.append(0.0)
        self._high.append(high)
        return Affine(((len(self._cost) - 1, 1.0),))

    def _times_ns(self, n: int, reached: int) -> list[list[list[float]]]:
        """As lists, for each of a node's situations, where so many levels are asked for."""
        found = self._times.get((n, reached))
        if found is None:
            table = self.model.tables.table[n]
            found = self._times[n, reached] = _increments(table, reached).tolist()
        return found

    def _costs(self, part: Affine, time_ns: float) -> None:
        for variable, value in part.terms:
            self._cost[variable] += value * time_ns
        self._always_ns += part.constant * time_ns

    def _largest(self, parts: Iterable[Affine]) -> Affine:
        """What is 1 where one of some parts is, each 0 or 1."""
        distinct = [part for part in dict.fromkeys(parts) if part != NEVER]
        if ONCE in distinct or not distinct:
            return ONCE if distinct else NEVER
        if len(distinct) == 1:
            return distinct[0]
        found = self._variable()
        for part in distinct:
            self._rows.add([(found, 1.0), (part, -1.0)], 0.0)
        return found

    def _both(self, one: Affine, other: Affine) -> Affine:
        """What is 1 where two parts are, each 0 or 1."""
        if NEVER in (one, other):
            return NEVER
        if ONCE in (one, other) or one == other:
            return other if one == ONCE else one
        found = self._variable()
        self._rows.add([(found, 1.0), (one, -1.0), (other, -1.0)], -1.0)
        return found

    def _all(self, parts: Sequence[Affine]) -> Affine:
        """What is 1 where each of some parts is."""
        if len(parts) == 1:
            return parts[0]
        found = self._variable()
        self._rows.add([(found, 1.0), *((part, -1.0) for part in parts)], 1.0 - len(parts))
        return found

    # --- constraints -----------------------------------------------------------------------------

    def _build(self) -> None:
        tables = self.model.tables
        for s, situation in enumerate(tables.situations):
            if situation.weight > 0:
                self._situation(s, situation)
        self._made()
        kept = [self._kept(k) for k in range(self._turns)]
        for k, rows in self.model.passages:
            self._memory(k, rows.tolist(), kept[self._turn(k)])
        self._memory_of_slices()

    def _situation(self, s: int, situation: Situation) -> None:
        """What is asked of each node and what is made of it, from the last node to the first."""
        asked: dict[tuple[int, int], list[Affine]] = {}
        for n in range(self.model.nodes - 1, -1, -1):
            table = self.model.tables.table[n]
            demanded = int(table.demanded[s])
            levels = [NEVER] * (table.levels + 2)
            for i in range(table.levels, 0, -1):
                mine = [*asked.pop((n, i), ()), levels[i + 1], *[ONCE] * (i <= demanded)]
                levels[i] = self._largest(mine)
            reached = max([i for i, level in enumerate(levels) if level != NEVER], default=0)
            if reached:
                self._node(s, situation, n, levels[1 : reached + 1], asked)

    def _node(
        self,
        s: int,
        situation: Situation,
        n: int,
        levels: Sequence[Affine],
        asked: dict[tuple[int, int], list[Affine]],
    ) -> None:
        """A node of which so many levels may be asked; adds what it asks of others."""
        table = self.model.tables.table[n]
        keep = self._keep(situation.before, n)
        absent, before = keep.complement(), {parent: 0 for parent, _ in table.asks}
        for i, level in enumerate(levels, 1):
            self._level[s, n, i] = level
            new = self._afresh[s, n, i] = self._both(level, absent)
            either_ns, afresh_ns, there_ns = self._times_ns(n, len(levels))[s][i - 1]
            self._costs(level, situation.weight * either_ns)
            self._costs(new, situation.weight * afresh_ns)
            if there_ns:  # many small boxes may take longer than all of it
                self._costs(self._both(level, keep), situation.weight * there_ns)
            for parent, asks in table.asks:
                there, made = int(asks[s, i]), int(asks[s, table.levels + i])
                if there > before[parent]:
                    asked.setdefault((parent, there), []).append(level)
                if made > there:
                    asked.setdefault((parent, made), []).append(new)
                before[parent] = there

    def _made(self) -> None:
        """What is kept after a turn is left, or made, by most runs that it begins with."""
        situations = self.model.tables.situations
        for k in range(self.model.turns):
            runs = [(s, situations[s]) for s in self.model.entering[k].tolist()]
            enough = _least_half([run.weight for _, run in runs])
            for n in map(int, np.flatnonzero(self.model.tables.worthwhile)):
                terms = [(self._keep(k, n), -enough)]
                for s, run in runs:
                    if self.model.tables.left[s, n]:
                        terms.append((self._keep(run.before, n), run.weight))
                        terms.append((self._afresh.get((s, n, 1), NEVER), run.weight))
                    else:
                        terms.append((self._level.get((s, n, 1), NEVER), run.weight))
                self._rows.add(terms, 0.0)

    def _kept(self, k: int) -> list[Affine]:
        """What is kept after a turn and has ended by itself, at each step; all of it fits."""
        found: list[Affine] = []
        for nodes in self._by_step(self.model.ends):
            ended = [(self._keep(k, n), self._sizes[n]) for n in nodes]
            found.append(self._sum([*ended, *((one, 1.0) for one in found[-1:])]))
        self._rows.add([(found[-1], -1.0)], -self._room)
        return found

    def _memory(self, k: int, rows: Sequence[int], kept: Sequence[Affine]) -> None:
        """At each step of these runs: what is live from the start, from its step, and for good."""
        sizes, least = self._sizes, self._slots
        early = [self._early(k, n, rows) for n in range(self.model.nodes)]
        within = [self._within(n, rows, early[n]) for n in range(self.model.nodes)]
        if self.model.is_entered(np.array(rows)):
            for n in map(int, np.flatnonzero(self.model.always_made)):
                self._met.setdefault(n, []).append(early[n])
        first = self._sum(zip(early, sizes, strict=True))
        begin = self._by_step(np.arange(self.model.nodes))
        for members, begun, ended in zip(self.model.live_sets, begin, kept, strict=False):
            first = self._sum([*((early[n], -sizes[n]) for n in begun), (first, 1.0)])
            live = [(within[n], -least[n]) for n in members]
            live += [(early[n], least[n] - sizes[n]) for n in members]
            self._rows.add([(ended, -1.0), (first, -1.0), *live], -self._room)

    def _by_step(self, at: NDArray[np.int64]) -> list[list[int]]:
        """What is worth keeping by the step that each falls on or before; what is after all: last.

        Args:
            at: [node] where it falls.
        """
        steps = [members[-1] for members in self.model.live_sets]
        found: list[list[int]] = [[] for _ in range(len(steps) + 1)]
        nodes = np.flatnonzero(self.model.tables.worthwhile)
        for n, step in zip(nodes.tolist(), np.searchsorted(steps, at[nodes]).tolist(), strict=True):
            found[step].append(n)
        return found

    def _sum(self, terms: Iterable[tuple[Affine, float]]) -> Affine:
        """A sum that stands in several constraints."""
        parts = [(part, value) for part, value in terms if part != NEVER]
        if len(parts) <= 1:
            return parts[0][0].times(parts[0][1]) if parts else NEVER
        total = self._variable(high=np.inf)
        self._rows.add([(total, 1.0), *((part, -value) for part, value in parts)], 0.0)
        return total

    def _early(self, k: int, n: int, rows: Sequence[int]) -> Affine:
        """1 where a node is live from the first step of runs: kept, and read or kept on."""
        tables = self.model.tables
        left = [s for s in rows if tables.left[s, n]]
        if not left or not tables.worthwhile[n]:
            return NEVER
        [j] = {tables.situations[s].before for s in left}
        kept, levels = self._keep(j, n), [self._level.get((s, n, 1), NEVER) for s in left]
        if self._turn(j) == self._turn(k) or ONCE in levels:
            return kept
        found = self._variable()
        for other in (self._keep(k, n), *levels):
            if other != NEVER:
                self._rows.add([(found, 1.0), (kept, -1.0), (other, -1.0)], -1.0)
        return found

    def _within(self, n: int, rows: Sequence[int], early: Affine) -> Affine:
        """1 where a node is live over its range in the schedule."""
        parts = [early]
        for s in rows:
            level = self._level.get((s, n, 1), NEVER)
            if level != NEVER:
                is_live = self.model.tables.left[s, n] or self._computes(s, n)
                parts.append(level if is_live else self._afresh[s, n, 1])
        return self._largest(parts)

    def _computes(self, s: int, n: int) -> bool:
        """Whether something is computed of a node even where its earlier value is there."""
        return bool(self.model.tables.table[n].size_bytes[s, 1] > 0)

    def _memory_of_slices(self) -> None:
        """Every slice of the plan, once: what no turn may ever let overlap; and what every run
        computes, beside all of it that is kept after some turn.
        """
        always: dict[int, Affine] = {}
        stacked = self.model.tables.worthwhile & ~self.model.shareable
        for n in map(int, np.flatnonzero(stacked)):
            always[n] = self._all([self._keep(k, n) for k in range(self._turns)])
        met = dict(always)
        for n, parts in self._met.items():
            met[n] = self._largest([always.get(n, NEVER), *parts])
        every = self.model.always_made
        if not every.all():
            self._stacked(always, np.ones_like(every))
        self._stacked(met, every)

    def _stacked(self, below: Mapping[int, Affine], beside: NDArray[np.bool_]) -> None:
        """What is stacked, and of others what is live at each step, fit."""
        total = self._sum((part, self._sizes[n]) for n, part in below.items())
        for members in self.model.live_sets:
            others = [n for n in members if beside[n]]
            parts = [(below.get(n, NEVER).complement(), -self._slots[n]) for n in others]
            self._rows.add([(total, -1.0), *parts], -self._room)


def _least_half(weights: Sequence[float]) -> float:
    """The least that some of these add up to, if it is half of them or more."""
    half, sums = HALF * sum(weights), {0.0}
    for weight in weights:
        if len(sums) > MOST_SUMS:
            return half
        sums |= {one + weight for one in sums if one < half}
    return min((one for one in sums if one >= half), default=0.0)


def _increments(table: NodeTable, reached: int) -> Floats:
    """[situation, level, 3] time per level: in any case, more if nothing is there, more if it is.

    Rounded down to rise with the level, as a sum of increments has to.
    """
    k = table.levels
    there = table.cost_ns[:, 1 : reached + 1]
    afresh = table.cost_ns[:, k + 1 : k + reached + 1]
    either = np.minimum(there, afresh)
    return np.stack([_rising(part) for part in (either, afresh - either, there - either)], axis=2)


def _rising(values: Floats) -> Floats:
    least = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    found: Floats = np.diff(least, prepend=0.0)
    return found


class _Constraints:
    """Sparse constraints: Σ value · part ≥ low."""

    def __init__(self) -> None:
        self._low: list[float] = []
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []

    def add(self, parts: Iterable[tuple[Affine, float]], low: float) -> None:
        number = len(self._low)
        for part, value in parts:
            low -= part.constant * value
            for column, own in part.terms:
                self._row.append(number)
                self._column.append(column)
                self._value.append(own * value)
        self._low.append(low)

    def matrix(self, columns: int) -> tuple[Any, Floats]:
        from scipy.sparse import csc_array

        shape = (len(self._low), columns)
        return csc_array((self._value, (self._row, self._column)), shape=shape), np.array(self._low)
