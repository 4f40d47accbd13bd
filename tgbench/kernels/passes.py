"""Rowwise ops as passes over rows: what a kernel written from steps computes, in no language yet.

    e / Σ e of e = exp(x − max x)      pass 0    x                → its largest
                                            1    x, x − max, e    → the sum of e; e is kept
                                            2    e, e / Σ e       → the result

A reduction ends a pass. What a later pass reads again of an earlier one is kept, where there is
room for it, or computed again; inputs are read again. Writers (`numba.written`, `triton.written`)
make source of it, each in its own language, and of the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from tgbench.base.coords import same
from tgbench.graph.ops.rowwise import LOGICAL, NUMBER, REDUCTIONS, Step, reduces
from tgbench.kernels.registry import Site, View, once_a_site
from tgbench.kernels.views import inputs, is_complete, merged

READ, AGAIN = "read", "again"  # lines that are no step: of an input, of what an earlier pass kept


@dataclass(frozen=True, slots=True)
class RowValue:
    """A value: one a row, or one a column.

    Fields:
        value: its number, as steps count.
        name: `READ`, `AGAIN`, `NUMBER`, or the op that gives it.
        operands: numbers of values; of `NUMBER`, the number.
        is_kept: whether a later pass reads it again.
    """

    value: int
    name: str
    operands: tuple[int | float, ...] = ()
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the columns of a row.

    Fields:
        row: what is one number a row and known before it, what reductions gave among that.
        columns: what is computed at each column.
        folds: the reductions that it ends with, each of a value of the columns.
        result: the value that is written at each column; None for all passes but the last.
    """

    row: tuple[RowValue, ...]
    columns: tuple[RowValue, ...]
    folds: tuple[RowValue, ...]
    result: int | None


@dataclass(frozen=True)
class RowPasses:
    """Steps over inputs as passes over a row.

    Fields:
        wide: for each input, whether it has a number for each column; one for a row otherwise.
        is_wide: the same of each value.
        passes: in order.
        kept: values that an earlier pass keeps for a later one.
    """

    wide: tuple[bool, ...]
    is_wide: tuple[bool, ...]
    passes: tuple[Pass, ...]
    kept: tuple[int, ...]


@cache
def row_passes(
    steps: tuple[Step, ...], wide: tuple[bool, ...], keeps: bool = True
) -> RowPasses | None:
    """Steps as passes; None where a reduction, or the result, is of one number a row.

    Args:
        wide: for each input, whether it has a number for each column; one for a row otherwise.
        keeps: whether there is room for what a later pass reads again; computed again otherwise.

    >>> found = row_passes((("max", 0), ("sub", 0, 1)), (True,))
    >>> [[line.name for line in one.columns] for one in found.passes]
    [['read'], ['read', 'sub']]
    """
    maker = _PassMaker(steps, wide, keeps)
    reduced = (step[1] for step in steps if step[0] in REDUCTIONS)
    if not all(maker.is_wide[i] for i in (*reduced, maker.last)):
        return None
    passes = tuple(map(maker.made, range(maker.level[maker.last] + 1)))
    return RowPasses(wide, tuple(maker.is_wide), passes, tuple(maker.kept))


class _PassMaker:
    """What is found of steps: for each value, how wide it is, and behind how many reductions."""

    def __init__(self, steps: tuple[Step, ...], wide: tuple[bool, ...], keeps: bool) -> None:
        self.steps, self.count = steps, len(wide)
        self.is_wide, self.level = list(wide), [0] * len(wide)
        for name, *operands in steps:
            given = [] if name == NUMBER else operands
            level = max((self.level[i] for i in given), default=0)
            self.level.append(level + (name in REDUCTIONS))
            self.is_wide.append(name not in REDUCTIONS and any(self.is_wide[i] for i in given))
        self.last = len(self.level) - 1
        self.kept: dict[int, None] = {}
        self._first: dict[int, int] = {}  # the pass that computes a value first
        for at in range(self.level[self.last] + 1 if keeps else 0):
            for root in self._roots(at):
                self._keep(root, at)

    def made(self, at: int) -> Pass:
        columns: dict[int, RowValue] = {}
        for root in self._roots(at):
            self._compute(root, at, columns)
        result = self.last if at == self.level[self.last] else None
        return Pass(tuple(self._row(at)), tuple(columns.values()), tuple(self._folds(at)), result)

    def _step(self, value: int) -> Step:
        return self.steps[value - self.count]

    def _line(self, value: int, is_kept: bool = False) -> RowValue:
        name, *operands = self._step(value)
        return RowValue(value, name, tuple(operands), is_kept)

    def _folds(self, at: int) -> Iterator[RowValue]:
        for value, step in enumerate(self.steps, self.count):
            if step[0] in REDUCTIONS and self.level[value] == at + 1:
                yield self._line(value)

    def _roots(self, at: int) -> list[int]:
        """The values for whose sake there is a pass: what it reduces, and the result."""
        found = [self._step(line.value)[1] for line in self._folds(at)]
        return [*found, self.last] if at == self.level[self.last] else found

    def _row(self, at: int) -> Iterator[RowValue]:
        if at == 0:
            for value in range(self.count):
                if not self.is_wide[value]:
                    yield RowValue(value, READ)
        for value in range(self.count, self.last + 1):
            if not self.is_wide[value] and self.level[value] == at:
                yield self._line(value)

    def _keep(self, value: int, at: int) -> None:
        """Find what has to be kept for a pass."""
        if value < self.count or not self.is_wide[value]:
            return
        if self._first.setdefault(value, at) < at and self._step(value)[0] not in LOGICAL:
            self.kept[value] = None
            return
        for operand in self._step(value)[1:]:
            self._keep(operand, at)

    def _compute(self, value: int, at: int, there: dict[int, RowValue]) -> None:
        """What a pass needs for a value at one column, that included."""
        if value in there or not self.is_wide[value]:
            return
        if value < self.count:
            there[value] = RowValue(value, READ)
        elif value in self.kept and self._first[value] < at:
            there[value] = RowValue(value, AGAIN)
        else:
            for operand in self._step(value)[1:]:
                self._compute(operand, at, there)
            there[value] = self._line(value, value in self.kept)


# --- where the rows lie ---------------------------------------------------------------------------


def passes_of(site: Site, keeps: bool = True) -> RowPasses | None:
    """The passes of a rowwise op; None where a row is one number."""
    width = site.call.out.shape[-1] if site.call.out.shape else 1
    if width == 1:
        return None
    wide = tuple(type_.rank > 0 and type_.shape[-1] == width for type_ in site.call.inputs)
    return row_passes(site.call.attrs["calls"], wide, keeps)


@once_a_site
def planes(site: Site, dtypes: tuple[str, ...]) -> tuple[View, ...] | None:
    """Inputs and out as [outer, inner, columns]; None where they cannot be seen so."""
    wanted = passes_of(site) if site.out.dtype in dtypes and is_complete(site) else None
    if wanted is None or any(view.dtype not in (site.out.dtype, "bool") for view in site.read):
        return None
    views = [view.expand(*site.out.shape) for view in (*inputs(site), site.out)]
    if reduces(site.call):
        leads = merged([view.select(-1, 0) for view in views], 2)
        found = tuple(map(_with_columns, leads, views))
    else:
        found = merged(views)
    if found[0].rank != 3:
        return None
    narrow = (view for view, wide in zip(found, wanted.wide, strict=False) if not wide)
    return found if all(same(view.strides[-1], 0) for view in narrow) else None


def _with_columns(lead: View, of: View) -> View:
    """Rows of a view, as they were merged, and their columns."""
    shape, strides = (*lead.shape, of.shape[-1]), (*lead.strides, of.strides[-1])
    return replace(lead, shape=shape, strides=strides)
