"""The time and memory of whole populations of retentions, by table lookup.

A retention is a boolean array [turn, node]: node n is kept after every run of turn k, and so is
there when the next one begins.

    time    weighted mean over the transitions, each node's time by its code (see `tables`)
    memory  the largest, over all steps of the runs of a turn after each other one, of: inputs, and
            the values that are live.
            A value is live from the first step if it was kept and is read, or is kept on; else
            from where it is computed. It is live to the last step if it is kept, else to its last
            read. What is kept after all turns stacks below, on bytes of its own. So does, of what
            every run computes something of, whatever is kept after some and of use in the next: it
            has one place, and meets all others before its last read, or behind where it is made.

Both leave out what offsets add: holes in the packing cost memory, and values that nobody happens to
write over save time. `replay` sees both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.tables import ALWAYS, Bytes, Floats, NodeTable, Tables

Keep = NDArray[np.bool_]  # [population, turn, node]
HALF = 0.5 * (1 - 1e-12)  # less what rounding may make of it
MOST_PASSES = 3  # to find out what is really there, where not all that is kept is also made


@dataclass(frozen=True)
class Scores:
    """One number per member of a population.

    Fields:
        time_ns: modelled mean time of a run.
        size_bytes: modelled arena.
    """

    time_ns: Floats
    size_bytes: NDArray[np.int64]

    def best(self, budget_bytes: float) -> int | None:
        """The fastest member that fits; None if none does. The smaller one of equals."""
        fits = np.flatnonzero(self.size_bytes <= budget_bytes)
        if not fits.size:
            return None
        order = np.lexsort((self.size_bytes[fits], self.time_ns[fits]))
        return int(fits[order[0]])


@dataclass(frozen=True)
class ScoredRetention:
    """A retention that fits, and what the model says of it."""

    keep: NDArray[np.bool_]  # [turn, node]
    time_ns: float
    size_bytes: int

    @property
    def key(self) -> tuple[float, int]:
        """Faster first, then smaller."""
        return self.time_ns, self.size_bytes


@dataclass(frozen=True)
class _Used:
    """What a population computes.

    Fields:
        made: [node, situation, population] whether anything of it is computed.
        there: [node, situation, population] whether its earlier value is available.
        asked: [node, situation, population] whether anything of it is needed.
        slots: [population, node] bytes of its largest slice in runs from nothing, and
        typical: in the weighed ones, where that is asked for.
    """

    made: NDArray[np.bool_]
    there: NDArray[np.bool_]
    asked: NDArray[np.bool_]
    slots: NDArray[np.int64]
    typical: NDArray[np.int64]


@dataclass(frozen=True)
class _Node:
    """A node's table, flattened as [situation, is absent, level].

    Fields:
        demanded, wished: [situation, 1]; None where they are zero throughout.
        asks: of each node read, by position.
    """

    times: Floats
    sizes: NDArray[np.int64]
    makes: NDArray[np.bool_]
    demanded: Bytes | None
    wished: Bytes | None
    asks: tuple[tuple[int, Bytes], ...]


class _Lookup:
    """One pass over tables, from the last node to the first."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.weights = np.array([s.weight for s in tables.situations])
        self._most = max([table.levels for table in tables.table], default=0)
        self._nodes = [self._flattened(table) for table in tables.table]
        self._rows = 2 * (self._most + 1) * np.arange(len(tables.situations))[:, None]
        self._weighed, self._cold = (_as_slice(self.weights > 0), _as_slice(self.weights == 0))

    def _flattened(self, table: NodeTable) -> _Node:
        def flat(array: NDArray[Any]) -> NDArray[Any]:
            there, absent = array[:, : table.levels + 1], array[:, table.levels + 1 :]
            wide = np.zeros((len(array), 2, self._most + 1), array.dtype)
            wide[:, 0, : table.levels + 1], wide[:, 1, 1 : table.levels + 1] = there, absent
            wide[:, 1, 0] = there[:, 0]
            return wide.reshape(-1)

        return _Node(
            flat(table.cost_ns * self.weights[:, None]),
            flat(table.size_bytes),
            flat(table.size_bytes > 0),
            table.demanded[:, None] if table.demanded.any() else None,
            table.wished[:, None] if table.wished.any() else None,
            tuple([(parent, flat(asks)) for parent, asks in table.asks]),
        )

    def run(self, keep: Keep, *, typical: bool = False) -> tuple[Floats, _Used]:
        """[situation, population] weighed times, of those that are weighed, and what is computed.

        Args:
            typical: whether to say how large slices of weighed runs are.
        """
        nodes, population, situations = len(self._nodes), len(keep), len(self.weights)
        by_node = np.ascontiguousarray(keep.transpose(2, 1, 0))  # [node, turn, population]
        always: NDArray[np.bool_] = np.all(by_node, axis=1)
        there = self._there(by_node, always)
        absent = (~there).view(np.uint8) * np.uint8(self._most + 1)
        made = np.zeros((nodes, situations, population), bool)
        level = np.zeros((nodes, situations, population), np.uint8)
        took = np.zeros((len(self.weights[self._weighed]), population))
        slots, usual = np.zeros((2, nodes, population), np.int64)
        for n in range(nodes - 1, -1, -1):
            node, mine = self._nodes[n], level[n]
            if node.demanded is not None:
                np.maximum(mine, node.demanded, out=mine)
            if node.wished is not None:
                np.maximum(mine, node.wished * always[n], out=mine)
            if not mine.any():
                continue
            place = (mine + absent[n]) + self._rows
            took += node.times.take(place[self._weighed])
            node.makes.take(place, out=made[n], mode="clip")
            node.sizes.take(place[self._cold]).max(axis=0, initial=0, out=slots[n])
            if typical:
                node.sizes.take(place[self._weighed]).max(axis=0, initial=0, out=usual[n])
            for parent, asks in node.asks:
                np.maximum(level[parent], asks.take(place), out=level[parent])
        return took, _Used(made, there, level > 0, _turned(slots), _turned(usual))

    def one(self, s: int, there: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
        """A single situation: times of all members, and [node, population] what they compute.

        Args:
            there: [node, population] whose earlier values are really there.
        """
        nodes, population = there.shape
        made = np.zeros((nodes, population), bool)
        level = np.zeros((nodes, population), np.uint8)
        time = np.zeros(population)
        for n in range(nodes - 1, -1, -1):
            table, mine = self.tables.table[n], level[n]
            if table.demanded[s]:
                np.maximum(mine, table.demanded[s], out=mine)
            if not mine.any():
                continue
            code = mine + np.where(there[n], 0, table.levels) * (mine > 0)
            time += table.cost_ns[s][code]
            made[n] = table.size_bytes[s][code] > 0
            for parent, asks in table.asks:
                np.maximum(level[parent], asks[s][code], out=level[parent])
        return time, made

    def _there(self, by_node: NDArray[np.bool_], always: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[node, situation, population] whether the earlier value is available."""
        nodes, _, population = by_node.shape
        found = np.zeros((nodes, len(self.tables.situations), population), bool)
        for s, situation in enumerate(self.tables.situations):
            if situation.before >= 0:
                found[:, s] = by_node[:, situation.before]
            elif situation.before == ALWAYS:
                found[:, s] = always
        return found


def _turned(array: NDArray[Any]) -> NDArray[Any]:
    """[node, population] as [population, node], side by side: sums go along nodes."""
    return np.ascontiguousarray(array.T)


def _as_slice(chosen: NDArray[np.bool_]) -> Any:
    """An index of some situations, which mostly lie side by side."""
    where = np.flatnonzero(chosen)
    if where.size and where[-1] - where[0] + 1 == where.size:
        return slice(int(where[0]), int(where[-1]) + 1)
    return where


class Model:
    """Scores retentions over the tables of one workload.

    Args:
        tables: of whole runs.
        pieces: of runs in pieces, where large runs are cut: they say how large slices are.
        whole: where large runs are cut, the weighed ones are not: slices hold those too.

    Where no run is cut, a node that is kept after all turns, but of which some turn leaves
    nothing, shares its bytes too: they are free until that turn's runs compute it.
    """

    def __init__(self, tables: Tables, pieces: Tables | None = None, whole: bool = False) -> None:
        self.tables, self.pieces, self.whole = tables, pieces, whole
        self._whole = _Lookup(tables)
        self._cut = _Lookup(pieces) if pieces is not None else None
        self.weights = self._whole.weights
        self.of = np.array([s.of for s in tables.situations])

    def __reduce__(self) -> tuple[type[Model], tuple[Tables, Tables | None, bool]]:
        """What it was made of: another process finds the rest out."""
        return Model, (self.tables, self.pieces, self.whole)

    @property
    def nodes(self) -> int:
        return len(self.tables.table)

    @property
    def turns(self) -> int:
        return self.tables.turns

    def none(self) -> Keep:
        """Nothing retained: a population of one."""
        return np.zeros((1, self.turns, self.nodes), bool)

    def score(self, keep: Keep) -> Scores:
        """Time and memory of every member of a population."""
        took, used = self._run(keep)
        return Scores(took.sum(axis=0), self._memory(keep, used))

    def scored(self, keep: NDArray[np.bool_], budget_bytes: int) -> ScoredRetention | None:
        """One retention [turn, node]; None where it does not fit."""
        scores = self.score(keep[None])
        if scores.size_bytes[0] > budget_bytes:
            return None
        return ScoredRetention(keep, float(scores.time_ns[0]), int(scores.size_bytes[0]))

    # --- time ------------------------------------------------------------------------------------

    def walked_ns(self, keep: Keep) -> Floats:
        """Mean times over the trace, where a value is there only since a run has made it.

        The score takes what most runs of a turn leave for what all of them do; here every call
        finds what the ones before it left. Nothing is there at first, and the first call does not
        count. Calls of one situation that find the same are looked at once.
        """
        by_turn = np.ascontiguousarray(keep.transpose(1, 2, 0))  # [turn, node, population]
        there = np.zeros(by_turn.shape[1:], bool)
        total = np.zeros(len(keep))
        known: dict[tuple[int, bytes], tuple[Floats, NDArray[np.bool_]]] = {}
        for i, s in enumerate(self.tables.walk.tolist()):
            found_there = s, there.tobytes()
            if found_there not in known:
                time, made = self._whole.one(s, there)
                left = made | (there & self.tables.left[s][:, None])
                known[found_there] = time, by_turn[self.of[s]] & left
            time, there = known[found_there]
            total += time * (i > 0)
        found: Floats = total / max(len(self.tables.walk) - 1, 1)
        return found

    def called_ns(self, keep: NDArray[np.bool_]) -> Floats:
        """What the score has each call of the trace take, of one retention [turn, node]."""
        weighed = self.weights > 0
        each = np.zeros(len(self.weights))
        each[weighed] = self._run(keep[None])[0][:, 0] / self.weights[weighed]
        found: Floats = each[self.tables.walk]
        return found

    def _run(self, keep: Keep) -> tuple[Floats, _Used]:
        """[situation, population] weighed times; and what is computed where, and how large."""
        there = keep
        for _ in range(MOST_PASSES):
            took, used = self._whole.run(there, typical=self.whole)
            lost = self._lost(there, used.there, used.made)
            if not lost.any():
                break
            there = there & ~lost
        if self._cut is not None:
            slots = self._cut.run(keep)[1].slots
            used = replace(used, slots=np.maximum(slots, used.typical) if self.whole else slots)
        return took, used

    def _lost(self, keep: Keep, there: NDArray[np.bool_], made: NDArray[np.bool_]) -> Keep:
        """What is kept in name only: most runs a turn begins with neither leave nor make it."""
        has = (there & self.tables.left.T[:, :, None]) | made
        lost = np.zeros_like(keep)
        for k in range(self.turns):
            rows = self.entering[k]
            if rows.size:
                share = (has[:, rows] * self.weights[rows, None]).sum(axis=1)
                lost[:, k] = keep[:, k] & (share < HALF * self.weights[rows].sum()).T
        return lost

    # --- memory ----------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> list[NDArray[np.int64]]:
        """For each turn, its weighed situations."""
        weighed = self.weights > 0
        return [np.flatnonzero((self.of == k) & weighed) for k in range(self.turns)]

    @cached_property
    def entering(self) -> list[NDArray[np.int64]]:
        """For each turn, its weighed situations after another turn; all, where there are none.

        What a turn's own runs find of each other is what the first of them left.
        """
        before = np.array([s.before for s in self.tables.situations])
        others = [rows[before[rows] != k] for k, rows in enumerate(self.rows)]
        return [one if one.size else rows for one, rows in zip(others, self.rows, strict=True)]

    @cached_property
    def passages(self) -> list[tuple[int, NDArray[np.int64]]]:
        """For each turn after each other one: the turn, and its weighed situations."""
        pairs: dict[tuple[int, int], list[int]] = {}
        for s, one in enumerate(self.tables.situations):
            if one.weight > 0:
                pairs.setdefault((one.of, one.before), []).append(s)
        return [(of, np.array(pairs[of, before], np.int64)) for of, before in sorted(pairs)]

    @cached_property
    def _never_entered(self) -> list[int]:
        """Turns that only a trace begins with: what they leave has to fit."""
        return [k for k, rows in enumerate(self.rows) if not rows.size]

    @cached_property
    def shareable(self) -> NDArray[np.bool_]:
        """[node] whether some turn leaves nothing of an earlier value, so that bytes are free."""
        if self.pieces is not None:
            return np.zeros(self.nodes, bool)
        left = [self.tables.left[rows].any(axis=0) for rows in self.rows if rows.size]
        found: NDArray[np.bool_] = ~np.all(left, axis=0) if left else np.zeros(self.nodes, bool)
        return found

    def _memory(self, keep: Keep, used: _Used) -> NDArray[np.int64]:
        tables = self.tables
        some, stacked = keep.any(axis=1), keep.all(axis=1) & ~self.shareable
        slots = np.where(some, tables.kept_bytes, used.slots)
        peak = self._stacked_peak(stacked, slots, slots > 0)
        if (some & ~stacked).any():
            met = stacked.copy()
            for k, rows in self.passages:
                from_start = self._from_start(keep[:, k], used, rows)
                made = _turned(np.any(used.made[:, rows], axis=1))
                live = slots * (from_start | made)
                peak = np.maximum(peak, self._peak(live, made, from_start, keep[:, k]))
                if self.is_entered(rows):
                    met |= from_start & self.always_made
            peak = np.maximum(peak, self._stacked_peak(met, slots, (slots > 0) & self.always_made))
            for k in self._never_entered:
                peak = np.maximum(peak, (slots * keep[:, k]).sum(axis=1))
        found: NDArray[np.int64] = tables.base_bytes + peak
        return found

    @cached_property
    def always_made(self) -> NDArray[np.bool_]:
        """[node] whether every weighed run computes something of it, even if everything is kept."""
        made = self._whole.run(~self.none())[1].made
        every: NDArray[np.bool_] = np.all(made[:, self.weights > 0, 0], axis=1)
        return every

    def is_entered(self, rows: NDArray[np.int64]) -> bool:
        """Whether the turn before these situations follows weighed runs as well."""
        return bool(self.rows[self.tables.situations[int(rows[0])].before].size)

    def _stacked_peak(
        self, stacked: NDArray[np.bool_], slots: NDArray[np.int64], beside: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """What is stacked, and the most of others that is live at one step; [population, node]."""
        moving, never = beside & ~stacked, np.zeros_like(stacked)
        peak = self._peak(slots * moving, beside, never, never)
        found: NDArray[np.int64] = peak + (stacked * self.tables.kept_bytes).sum(axis=1)
        return found

    def _from_start(
        self, kept: NDArray[np.bool_], used: _Used, rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """[population, node] what some runs of one turn begin with, and read or keep on."""
        usable = used.there[:, rows] & self.tables.left[rows].T[:, :, None]
        read = _turned(np.any(usable & used.asked[:, rows], axis=1))
        return read | (_turned(np.any(usable, axis=1)) & kept)

    def _peak(
        self,
        sizes: NDArray[np.int64],
        runs: NDArray[np.bool_],
        from_start: NDArray[np.bool_],
        to_end: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """The most bytes live at one step; arrays are [population, node].

        A node is live over its range in the schedule, or from the first step, or to the last.
        """
        at_first = sizes * from_start
        begun = (sizes - at_first).cumsum(axis=1)
        ended = np.zeros((len(sizes), self.nodes + 1), np.int64)
        np.cumsum((sizes * ~to_end).take(self._by_stop, axis=1), axis=1, out=ended[:, 1:])
        live = begun - ended.take(self._ended_before, axis=1)
        if self._wants_scratch:
            live += runs * self.tables.scratch_bytes
        found: NDArray[np.int64] = at_first.sum(axis=1) + live.max(axis=1, initial=0)
        return found

    @cached_property
    def _wants_scratch(self) -> bool:
        return bool(self.tables.scratch_bytes.any())

    @cached_property
    def _by_stop(self) -> NDArray[np.int64]:
        return np.argsort(self.tables.stop, kind="stable")

    @cached_property
    def _ended_before(self) -> NDArray[np.int64]:
        """For each node, how many live ranges have ended when it is defined."""
        ordered = self.tables.stop[self._by_stop]
        found: NDArray[np.int64] = np.searchsorted(ordered, self.tables.start, side="right")
        return found

    @cached_property
    def least_slots(self) -> NDArray[np.int64]:
        """[node] bytes of the slice that a node needs whatever is retained."""
        used = [self._run(keep)[1] for keep in (self.none(), ~self.none())]
        least = np.minimum(*(one.slots[0] for one in used))
        found: NDArray[np.int64] = np.minimum(least, self.tables.kept_bytes)
        return found

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """[node] the first node that is defined after its live range."""
        found: NDArray[np.int64] = np.searchsorted(self.tables.start, self.tables.stop)
        return found

    @cached_property
    def live_sets(self) -> list[list[int]]:
        """Nodes live together, at the steps where no larger set is."""
        found: list[list[int]] = []
        live: list[int] = []
        grew = False
        for n in range(self.nodes):
            gone = [m for m in live if self.tables.stop[m] <= self.tables.start[n]]
            if gone and grew:
                found.append(live)
                grew = False
            live = [m for m in live if m not in gone] + [n]
            grew = True
        return [*found, live] if live else found
