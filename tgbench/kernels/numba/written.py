"""Loops written from steps: a rowwise op as the source of one function, compiled once and kept.

    e / Σ e of e = exp(x − max x)        for each row:
                                           for i:  key = max(key, order of x)      pass 0
                                           top = the number of this key
                                           for i:  keep e = exp(x − top); total += e     1
                                           for i:  y = e / total                         2

A reduction ends a pass. What a later pass reads again of an earlier one is kept in a row of scratch
memory, and inputs are read again. Nothing but sums may be reordered, so a number has the bits that
it has in any other row, and NaN, infinities and zeros mean what they mean in the op's definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import WeightsError
from tgbench.base.machine import cache_folder
from tgbench.graph.ops.rowwise import NUMBER, REDUCTIONS, Step
from tgbench.kernels.numba import loops, scalars

FORMULAS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
    "abs": "abs({})", "floor": "np.floor({})", "ceil": "np.ceil({})", "sqrt": "np.sqrt({})",
    "rsqrt": "F(1) / np.sqrt({})", "reciprocal": "F(1) / {}", "exp": "exp32({})",
    "erf": "(erf32({0}) if {0} != F(0) else {0})", "tanh": "tanh32({})", "log": "log32({})",
    "sigmoid": "F(1) / (F(1) + exp32(-{}))",
    "maximum": "larger({}, {})", "minimum": "smaller({}, {})", "less": "{} < {}",
    "less_equal": "{} <= {}", "greater": "{} > {}", "greater_equal": "{} >= {}",
    "where": "({1} if {0} else {2})",
}  # fmt: skip
BOOLEAN = ("less", "less_equal", "greater", "greater_equal")
FOLDS = {  # of a reduction: the first value, what an element does to it, what is made of the last
    "sum": ("F(0)", "plus({}, {})", "{}"),
    "mean": ("F(0)", "plus({}, {})", "{} / F(n)"),
    "max": ("LOWEST", "max({}, place({}))", "number({})"),
    "min": ("LOWEST", "max({}, place(-{}))", "-number({})"),
}
NOT_FINITE = {"inf": "F(np.inf)", "-inf": "F(-np.inf)", "nan": "F(np.nan)"}


# --- writing --------------------------------------------------------------------------------------


@dataclass
class RowLoop:
    """Steps over inputs, as the body of a loop over rows.

    Fields:
        steps: as the attribute of the op has them.
        wide: for each input, whether it has a number for each column; one for a row otherwise.
        logical: for each input, whether it is of bools.
    """

    steps: Sequence[Step]
    wide: tuple[bool, ...]
    logical: tuple[bool, ...]
    kept: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = len(self.wide)
        self.is_wide, self.level = list(self.wide), [0] * self.count
        for name, *operands in self.steps:
            given = [] if name == NUMBER else operands
            level = max((self.level[i] for i in given), default=0)
            self.level.append(level + (name in REDUCTIONS))
            wide = name not in REDUCTIONS and any(self.is_wide[i] for i in given)
            self.is_wide.append(wide)
        self.last = len(self.level) - 1
        self._computed: dict[int, int] = {}
        for at in range(self.passes):
            for root in self._roots(at):
                self._plan(root, at)

    @property
    def passes(self) -> int:
        return self.level[self.last] + 1

    def _step(self, value: int) -> Step:
        return self.steps[value - self.count]

    def _roots(self, at: int) -> list[int]:
        """The values for whose sake there is a pass: what it reduces, and the result."""
        found = [
            step[1]
            for value, step in enumerate(self.steps, self.count)
            if step[0] in REDUCTIONS and self.level[value] == at + 1
        ]
        return [*found, self.last] if at == self.passes - 1 else found

    def _plan(self, value: int, at: int) -> None:
        """Find what has to be kept for this pass."""
        if value < self.count or not self.is_wide[value]:
            return
        if self._computed.setdefault(value, at) < at and not self._is_logical(value):
            if value not in self.kept:
                self.kept.append(value)
            return
        for operand in self._step(value)[1:]:
            self._plan(operand, at)

    def _is_logical(self, value: int) -> bool:
        return self.logical[value] if value < self.count else self._step(value)[0] in BOOLEAN

    # --- text ---

    @cached_property
    def text(self) -> str:
        """The source of the function."""
        arrays = [f"a{i}, a{i}_outer, a{i}_inner" for i in range(self.count)]
        ends = "y, y_outer, y_inner, spare, outer, inner, n"
        lines = [f"def rowwise({', '.join((*arrays, ends))}):"]
        lines += ["    for r in range(U(outer)):", "        for s in range(U(inner)):"]
        lines += [f"            {line}" for line in self._row()]
        return "\n".join((*lines, ""))

    def _row(self) -> Iterator[str]:
        for name in (*(f"a{i}" for i in range(self.count)), "y"):
            yield f"p_{name} = r * U({name}_outer) + s * U({name}_inner)"
        for value in range(self.count):
            if not self.wide[value]:
                yield f"v{value} = a{value}[p_a{value}]"
        for at in range(self.passes):
            yield from self._numbers(at)
            yield from self._pass(at)

    def _numbers(self, at: int) -> Iterator[str]:
        """What is one number a row, and known before a pass."""
        for value in range(self.count, self.last + 1):
            name, *operands = self._step(value)
            if self.is_wide[value] or self.level[value] != at:
                continue
            if name == NUMBER:
                yield f"v{value} = {_literal(operands[0])}"
            elif name in REDUCTIONS:
                yield f"v{value} = {FOLDS[name][2].format(f'r{value}')}"
            else:
                yield f"v{value} = {self._formula(value)}"

    def _pass(self, at: int) -> Iterator[str]:
        folds = {
            value: step
            for value, step in enumerate(self.steps, self.count)
            if step[0] in REDUCTIONS and self.level[value] == at + 1
        }
        for value, (name, _) in folds.items():
            yield f"r{value} = {FOLDS[name][0]}"
        yield "for i in range(U(n)):"
        there: set[int] = set()
        for root in self._roots(at):
            for line in self._computing(root, at, there):
                yield f"    {line}"
        for value, (name, operand) in folds.items():
            yield f"    r{value} = {FOLDS[name][1].format(f'r{value}', f'v{operand}')}"
        if at == self.passes - 1:
            yield f"    y[p_y + i] = v{self.last}"

    def _computing(self, value: int, at: int, there: set[int]) -> Iterator[str]:
        """What a pass needs for a value at one column, that included."""
        if value in there or not self.is_wide[value]:
            return
        there.add(value)
        if value < self.count:
            yield f"v{value} = a{value}[p_a{value} + i]"
            return
        kept = f"spare[U({self.kept.index(value)}) * U(n) + i]" if value in self.kept else ""
        if kept and self._computed[value] < at:
            yield f"v{value} = {kept}"
            return
        for operand in self._step(value)[1:]:
            yield from self._computing(operand, at, there)
        yield f"v{value} = {self._formula(value)}"
        if kept:
            yield f"{kept} = v{value}"

    def _formula(self, value: int) -> str:
        name, *operands = self._step(value)
        return FORMULAS[name].format(*(f"v{i}" for i in operands))


def _literal(value: float) -> str:
    return f"F({value!r})" if np.isfinite(value) else NOT_FINITE[str(value)]


# --- compiling ------------------------------------------------------------------------------------


@cache
def row_loop(steps: tuple[Step, ...], wide: tuple[bool, ...], logical: tuple[bool, ...]) -> RowLoop:
    """The same steps are written once."""
    return RowLoop(steps, wide, logical)


@cache
def function(steps: tuple[Step, ...], wide: tuple[bool, ...], logical: tuple[bool, ...]) -> Any:
    """numba's function of a loop: made of its text, whose machine code is kept by that."""
    text = row_loop(steps, wide, logical).text
    parts = (Path(one).read_text(encoding="utf-8") for one in (loops.__file__, scalars.__file__))
    name = hashlib.sha256("\n".join((text, *parts)).encode()).hexdigest()[:16]
    file = cache_folder() / "rowwise" / f"{name}.py"
    with suppress(OSError, WeightsError):  # no folder to keep it in: it is compiled every time
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(file) as temporary:
                temporary.write_text(text, encoding="utf-8")
    names = dict(vars(scalars))
    exec(compile(text, file, "exec"), names)
    return scalars.plain(names["rowwise"])
