"""Ways of cutting large runs, each with its model: what a search chooses between first.

uncut · 2 parts · 4 parts … along each input dimension, as long as slices shrink

Of each, values are kept after all turns or not at all, or it is decided turn by turn. The first is
a small program, and what it finds mostly packs. A value has one place in a map: what is kept after
some turns only shares its bytes with nothing that is there in these, and may share them with
nothing at all, where the model has all of them take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tgbench.base.coords import value_of
from tgbench.graph.graph import Node
from tgbench.memory.placement import Placement, Retention, aligned
from tgbench.plans.planner import IN_PIECES
from tgbench.plans.retention.exact import IntegerProgram, Relaxed
from tgbench.plans.retention.ladder import Ladder
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.neighbourhoods import FIRST, LEAST
from tgbench.plans.retention.tables import Tables, tabulate_pieces
from tgbench.plans.search.judge import Judge
from tgbench.runs.split import WHOLE, Cut

MOST_PARTS = 32  # of a cut run
MOST_AXES = 3  # input dimensions along which runs may be cut
ABOUT = IN_PIECES**0.5  # times a promise: about the same, as pieces take longer than they promise
SHRINKS = 0.97  # of what slices took in half as many parts: more is no reason for more parts


@dataclass(eq=False)
class Arm:
    """One way of cutting large runs, and the model of it.

    Fields:
        ladder: what its retentions let go of first.
        freer: the same where it is decided turn by turn what is kept; None: here it is, or there is
            one turn only.
        relaxed: what bounds it, where that is known.
        optimum_ns: of its integer program, where that packed at once.
        is_settled: nothing in the model is better than what was laid out, as far as it goes.
        spare_bytes: what packing took beyond the model, so far.
        examined_s: what its integer programs could take when they were solved; 0: they were not.
        tried: retentions that were laid out.
        size: values in the next window.
    """

    cut: Cut
    model: Model
    ladder: Ladder
    budget_bytes: int
    freer: Arm | None = None
    relaxed: Relaxed | None = None
    optimum_ns: float = math.inf
    is_settled: bool = False
    spare_bytes: int = 0
    examined_s: float = 0.0
    tried: set[bytes] = field(default_factory=set)
    size: float = FIRST
    _programs: dict[int, IntegerProgram] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """What a retention may take in the model, so that it packs."""
        return self.budget_bytes - self.spare_bytes

    @property
    def is_throughout(self) -> bool:
        """Whether what is kept is kept after all turns."""
        return self.freer is not None or self.model.turns == 1

    @property
    def bound_ns(self) -> float:
        """No retention is faster; 0 as long as that is not known."""
        if self.freer is not None:
            return self.freer.bound_ns
        return 0.0 if self.relaxed is None else self.relaxed.bound_ns

    @property
    def promise_ns(self) -> float:
        """What the ladder comes to; infinite where nothing fits."""
        keep = self.ladder.within(self.room)
        return math.inf if keep is None else float(self.model.score(keep[None]).time_ns[0])

    def program(self, budget_bytes: int) -> IntegerProgram:
        """The latest one is remembered: it takes longer to write out than to solve a window of."""
        if budget_bytes not in self._programs:
            self._programs.clear()
            self._programs[budget_bytes] = IntegerProgram(
                self.model, budget_bytes, throughout=self.freer is not None
            )
        return self._programs[budget_bytes]


class Arms:
    """All ways of cutting within one budget.

    Args:
        judge: of plans without a cut.
        everything: all that is read again retained, laid out uncut.
        opened: arms of searches before this one.
    """

    def __init__(
        self,
        judge: Judge,
        budget_bytes: int,
        everything: Placement,
        frontier: tuple[Node, ...],
        opened: dict[tuple[int, Cut, bool], Arm],
    ) -> None:
        self.judge, self.budget_bytes, self.frontier = judge, budget_bytes, frontier
        self._opened = opened
        self._sliced: dict[Cut, int] = {}
        self._scratch: dict[Cut, Mapping[Node, int]] = {WHOLE: _scratch(everything)}
        self._pieces: dict[Cut, Tables | None] = {WHOLE: None}

    def of(self, cut: Cut) -> Iterator[Arm]:
        """The ways of going by a cut, with what is kept kept throughout; what was bounded before
        is not bounded again.
        """
        judge = self.judge
        for whole in (False,) if cut == WHOLE else (True, False):
            key = self.budget_bytes, cut, whole
            if key not in self._opened:
                judge.planner.tell(f"weighing {cut}")
                model = Model(self._tables(cut), self._pieces_of(cut), whole)
                ladder, half = judge.ladder.over(model), len(judge.ladder.order) / 2
                size = min(FIRST, max(half, LEAST))  # all of them is what is asked of the program
                by_turn = Arm(cut, model, ladder, self.budget_bytes, size=size)
                self._opened[key] = by_turn
                if model.turns > 1:
                    self._opened[key] = replace(by_turn, freer=by_turn, _programs={})
            yield self._opened[key]

    @cached_property
    def least_ns(self) -> float:
        """What the ladder would come to however finely runs are cut: nothing but what is kept takes
        memory.
        """
        tables = self._without_scratch
        small = [replace(one, size_bytes=np.minimum(one.size_bytes, 1)) for one in tables.table]
        return self._promised(Model(replace(tables, table=tuple(small))))

    def hoped_ns(self, cut: Cut) -> float:
        """What it would come to under a cut if kernels wanted no scratch memory: how much they do
        takes a layout to find out.
        """
        return self._promised(Model(self._without_scratch, self._pieces_of(cut)))

    def _promised(self, model: Model) -> float:
        return Arm(WHOLE, model, self.judge.ladder.over(model), self.budget_bytes).promise_ns

    @property
    def _without_scratch(self) -> Tables:
        tables = self.judge.uncut.tables
        return replace(tables, scratch_bytes=np.zeros_like(tables.scratch_bytes))

    def _pieces_of(self, cut: Cut) -> Tables | None:
        """How large slices are in pieces of runs; None of whole ones."""
        if cut not in self._pieces:
            judge = self.judge
            self._pieces[cut] = tabulate_pieces(
                judge.scheduled, judge.rules, judge.workload, cut, self.frontier
            )
        return self._pieces[cut]

    def cuts(self, own: Cut = WHOLE) -> Iterator[Cut]:
        """Uncut, a cut that comes next, and along each dimension as long as slices shrink."""
        yield WHOLE
        if own != WHOLE:
            yield own
        axes = [
            (name, axis, size)
            for name, node in self.judge.scheduled.graph.inputs.items()
            for axis, size in enumerate(node.shape)
            if size > 1
        ]
        for name, axis, size in sorted(axes, key=lambda a: -a[2])[:MOST_AXES]:
            parts, last = 2, self._slices_of(WHOLE)
            while parts <= min(size, MOST_PARTS):
                cut = Cut(name, axis, parts)
                bytes_now = self._slices_of(cut)
                if bytes_now > SHRINKS * last:
                    break
                if cut != own:
                    yield cut
                parts, last = parts * 2, bytes_now

    def _tables(self, cut: Cut) -> Tables:
        """The model's tables, with the scratch memory that kernels want under this cut."""
        judge = self.judge
        if cut not in self._scratch:
            everything = Retention.always(self.frontier)
            self._scratch[cut] = _scratch(
                judge.planner.lay_out(
                    everything, judge.scenarios, cut, budget_bytes=self.budget_bytes
                )
            )
        known = self._scratch[cut]
        scratch = [aligned(known.get(node, 0)) for node in judge.scheduled.stored]
        return replace(judge.uncut.tables, scratch_bytes=np.array(scratch, np.int64))

    def _slices_of(self, cut: Cut) -> int:
        """The largest slices when everything that is read again is retained."""
        if cut not in self._sliced:
            self._sliced[cut] = self._largest_slices(cut)
        return self._sliced[cut]

    def _largest_slices(self, cut: Cut) -> int:
        total: dict[Node, int] = {}
        cold = [s for s in self.judge.scenarios if s.cold]
        retention = Retention.always(self.frontier)
        for _, steps in self.judge.planner.runs.under(retention, cold, cut):
            for step in steps:
                for node, region in step.compute.items():
                    if node not in retention.after:
                        size = value_of(region.hull().elements) * node.type.itemsize
                        total[node] = max(total.get(node, 0), size)
        return sum(total.values())


def by_promise(arms: Iterable[Arm], off_by: Callable[[Cut], float]) -> list[Arm]:
    """What ladders come to first, times what cuts are known to be off by; of what comes to about
    the same, coarser cuts: fewer pieces compute less twice, which no ladder knows of, and are
    replayed sooner. A U-Net that promises 2.03 ms in 32 pieces and 2.12 in 8 takes 3.0 and 2.34.
    """
    promised = [(arm.promise_ns * off_by(arm.cut), arm) for arm in arms]
    left = sorted(promised, key=lambda pair: pair[0])
    found: list[Arm] = []
    while left:
        most_ns = left[0][0] * ABOUT
        level = sum(1 for promise_ns, _ in left if promise_ns <= most_ns)
        found += sorted((arm for _, arm in left[:level]), key=lambda arm: arm.cut.parts)
        left = left[level:]
    return found


def _scratch(placed: Placement) -> dict[Node, int]:
    """Bytes that kernels want in this budget."""
    return {node: room.size_bytes for node, room in placed.scratch.items()}
