"""What the model says of retentions, beside loops over every run, node and step."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import assume, given
from plans.test_search import judge, traces
from strategies import graphs

from tgbench.graph.simplify import simplify
from tgbench.plans.retention.model import MOST_PASSES, Model
from tgbench.plans.retention.tables import ALWAYS, Tables, tabulate_pieces
from tgbench.runs.split import WHOLE, cuts


class Looked:
    """One retention, [turn, node], in loops over situations and nodes."""

    def __init__(self, tables: Tables, keep: np.ndarray) -> None:
        self.time_ns = 0.0
        count, runs = len(tables.table), range(len(tables.situations))
        self.made = [[False] * count for _ in runs]
        self.asked = [[False] * count for _ in runs]
        self.there = [[False] * count for _ in runs]
        self.sizes = [[0] * count for _ in runs]
        for s, situation in enumerate(tables.situations):
            levels = [0] * count
            for n in reversed(range(count)):
                table = tables.table[n]
                always = bool(keep[:, n].all())
                before = situation.before
                there = bool(keep[before, n]) if before >= 0 else before == ALWAYS and always
                level = max(levels[n], int(table.demanded[s]), int(table.wished[s]) * always)
                code = level if there or not level else level + table.levels
                self.there[s][n], self.asked[s][n] = there, level > 0
                self.sizes[s][n] = int(table.size_bytes[s, code])
                self.made[s][n] = self.sizes[s][n] > 0
                self.time_ns += situation.weight * float(table.cost_ns[s, code])
                for parent, asks in table.asks:
                    levels[parent] = max(levels[parent], int(asks[s, code]))


def looked(model: Model, keep: np.ndarray) -> Looked:
    """Once more without what is kept in name only."""
    tables = model.tables
    for _ in range(MOST_PASSES):
        found, lost = Looked(tables, keep), np.zeros_like(keep)
        for k, n in np.argwhere(keep).tolist():
            of_turn = [s for s, one in enumerate(tables.situations) if one.of == k and one.weight]
            begins = [s for s in of_turn if tables.situations[s].before != k]
            of_turn = begins or of_turn
            total = sum(tables.situations[s].weight for s in of_turn)
            has = [s for s in of_turn if found.there[s][n] or found.made[s][n]]
            share = sum(tables.situations[s].weight for s in has)
            lost[k, n] = bool(of_turn) and share < total / 2 - 1e-9
        if not lost.any():
            break
        keep = keep & ~lost
    return found


def size_bytes(model: Model, keep: np.ndarray, found: Looked) -> int:
    """The most that is live at a step of the schedule, and of the runs of a turn after another."""
    tables, runs = model.tables, range(len(model.tables.situations))
    cut = Looked(model.pieces, keep) if model.pieces is not None else None
    cold = [s for s in runs if not tables.situations[s].weight]
    nodes = range(len(tables.table))

    def slot(n: int) -> int:
        if keep[:, n].any():
            return int(tables.kept_bytes[n])
        whole = max((found.sizes[s][n] for s in cold), default=0)
        if cut is None:
            return whole
        small = max((sizes[n] for sizes in cut.sizes), default=0)
        weighed = max((found.sizes[s][n] for s in runs if s not in cold), default=0)
        return max(small, weighed) if model.whole else small

    stacked = [bool(keep[:, n].all()) and not model.shareable[n] for n in nodes]
    below = sum(int(tables.kept_bytes[n]) for n in nodes if stacked[n])

    def peak(live: dict[int, tuple[int, int]], makes: set[int]) -> int:
        def at(step: int) -> int:
            held = sum(slot(n) for n, (start, stop) in live.items() if start <= step < stop)
            own = [n for n in makes if tables.start[n] == step]
            return held + sum(int(tables.scratch_bytes[n]) for n in own)

        return max(map(at, [-1, *map(int, tables.start)]), default=0)

    moving = {n: (int(tables.start[n]), int(tables.stop[n])) for n in nodes if not stacked[n]}
    moving = {n: span for n, span in moving.items() if slot(n)}
    most = below + peak(moving, {n for n in nodes if slot(n)})
    if any(keep[:, n].any() and not stacked[n] for n in nodes):
        pairs = [(tables.situations[s].before, tables.situations[s].of) for s in runs]
        least = Looked(tables, np.ones_like(keep))
        every = [n for n in nodes if all(least.made[s][n] for s in runs if s not in cold)]
        met = {n for n in nodes if stacked[n]}
        for before, k in {pair for s, pair in enumerate(pairs) if s not in cold}:
            alike = [s for s in runs if pairs[s] == (before, k) and s not in cold]
            live, makes = dict[int, tuple[int, int]](), set[int]()
            for n in nodes:
                usable = [s for s in alike if found.there[s][n] and tables.left[s, n]]
                read = any(found.asked[s][n] for s in usable)
                early = read or (bool(usable) and bool(keep[k, n]))
                if (
                    early
                    and n in every
                    and any(pairs[s][1] == before for s in runs if s not in cold)
                ):
                    met.add(n)
                if any(found.made[s][n] for s in alike):
                    makes.add(n)
                elif not early:
                    continue
                start = -1 if early else int(tables.start[n])
                live[n] = start, 1 << 40 if keep[k, n] else int(tables.stop[n])
            most = max(most, peak(live, makes))
        others = {n: (int(tables.start[n]), int(tables.stop[n])) for n in every if n not in met}
        others = {n: span for n, span in others.items() if slot(n)}
        below = sum(int(tables.kept_bytes[n]) for n in met)
        most = max(most, below + peak(others, {n for n in every if slot(n)}))
    return tables.base_bytes + most


@given(st.data())
def test_scores_of_populations_are_those_of_loops(data: st.DataObject) -> None:
    graph, _ = data.draw(graphs(most_ops=6))
    assume(graph.inputs)
    simple = simplify(graph)
    judge_ = judge(simple, data.draw(traces(simple, most=4)))
    stored = judge_.scheduled.stored
    ways = list(cuts(judge_.planner.runs.propagator(stored)))[:1]
    cut = data.draw(st.sampled_from([WHOLE, *ways]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    scratch = random.integers(3, size=len(stored)) * 64
    tables = replace(judge_.uncut.tables, scratch_bytes=scratch)
    pieces = None
    if cut != WHOLE:
        pieces = tabulate_pieces(judge_.scheduled, judge_.rules, judge_.workload, cut, stored)
    model = Model(tables, pieces, data.draw(st.booleans()))
    keep = random.random((5, model.turns, model.nodes)) < random.random((5, 1, 1))
    scores = model.score(keep)
    for member, time_ns, size in zip(keep, scores.time_ns, scores.size_bytes, strict=True):
        found = looked(model, member)
        assert np.isclose(time_ns, found.time_ns, rtol=1e-12)
        assert size == size_bytes(model, member, found)
