"""Loops written from passes over rows: the source of one function, compiled once and kept.

    passes    x → max │ x, x − max, e → Σ e │ e, e / Σ e
    source    for each row:
                  for i:  key = max(key, order of x)
                  top = the number of this key
                  for i:  keep e = exp(x − top); total += e
                  for i:  y = e / total

What is kept lies in a row of scratch memory. Nothing but sums may be reordered, so a number has the
bits that it has in any other row, and NaN, infinities and zeros mean what they mean in the op's
definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tgbench.base.machine import cache_folder
from tgbench.graph.ops.rowwise import NUMBER
from tgbench.kernels.numba import loops, scalars
from tgbench.kernels.numba.kept import kept
from tgbench.kernels.passes import AGAIN, READ, Pass, RowPasses, RowValue

FORMULAS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
    "abs": "abs({})", "floor": "np.floor({})", "ceil": "np.ceil({})", "sqrt": "np.sqrt({})",
    "rsqrt": "F(1) / np.sqrt({})", "reciprocal": "F(1) / {}", "exp": "full_exp32({})",
    "erf": "(erf32({0}) if {0} != F(0) else {0})", "tanh": "tanh32({})", "log": "log32({})",
    "sigmoid": "F(1) / (F(1) + exp32(-{}))",
    "maximum": "larger({}, {})", "minimum": "smaller({}, {})", "less": "{} < {}",
    "less_equal": "{} <= {}", "greater": "{} > {}", "greater_equal": "{} >= {}",
    "where": "({1} if {0} else {2})",
}  # fmt: skip
FOLDS = {  # of a reduction: the first value, what an element does to it, what is made of the last
    "sum": ("F(0)", "plus({}, {})", "{}"),
    "mean": ("F(0)", "plus({}, {})", "{} / F(n)"),
    "max": ("LOWEST", "max({}, place({}))", "number({})"),
    "min": ("LOWEST", "max({}, place(-{}))", "-number({})"),
}
NOT_FINITE = {"inf": "F(np.inf)", "-inf": "F(-np.inf)", "nan": "F(np.nan)"}


# --- writing --------------------------------------------------------------------------------------


def text(rows: RowPasses) -> str:
    """The source of the function."""
    count = len(rows.wide)
    arrays = [f"a{i}, a{i}_outer, a{i}_inner" for i in range(count)]
    ends = "y, y_outer, y_inner, spare, outer, inner, n"
    lines = [f"def rowwise({', '.join((*arrays, ends))}):"]
    lines += ["    for r in range(U(outer)):", "        for s in range(U(inner)):"]
    for name in (*(f"a{i}" for i in range(count)), "y"):
        lines.append(f"            p_{name} = r * U({name}_outer) + s * U({name}_inner)")
    lines += [f"            {line}" for one in rows.passes for line in _pass(one, rows)]
    return "\n".join((*lines, ""))


def _pass(one: Pass, rows: RowPasses) -> Iterator[str]:
    for line in one.row:
        yield f"v{line.value} = {_number(line)}"
    for fold in one.folds:
        yield f"r{fold.value} = {FOLDS[fold.name][0]}"
    yield "for i in range(U(n)):"
    for line in one.columns:
        kept = (
            f"spare[U({rows.kept.index(line.value)}) * U(n) + i]" if line.value in rows.kept else ""
        )
        yield f"    v{line.value} = {_column(line, kept)}"
        if line.is_kept:
            yield f"    {kept} = v{line.value}"
    for fold in one.folds:
        yield f"    r{fold.value} = {_folded(fold)}"
    if one.result is not None:
        yield f"    y[p_y + i] = v{one.result}"


def _number(line: RowValue) -> str:
    """What is one number a row."""
    if line.name == READ:
        return f"a{line.value}[p_a{line.value}]"
    if line.name == NUMBER:
        return _literal(line.operands[0])
    if line.name in FOLDS:
        return FOLDS[line.name][2].format(f"r{line.value}")
    return _formula(line)


def _column(line: RowValue, kept: str) -> str:
    if line.name == READ:
        return f"a{line.value}[p_a{line.value} + i]"
    return kept if line.name == AGAIN else _formula(line)


def _folded(fold: RowValue) -> str:
    return FOLDS[fold.name][1].format(f"r{fold.value}", f"v{fold.operands[0]}")


def _formula(line: RowValue) -> str:
    return FORMULAS[line.name].format(*(f"v{i}" for i in line.operands))


def _literal(value: float) -> str:
    return f"F({value!r})" if np.isfinite(value) else NOT_FINITE[str(value)]


# --- compiling ------------------------------------------------------------------------------------


@cache
def function(rows: RowPasses) -> Any:
    """numba's function of a loop: made of its text, whose machine code is kept by that."""
    source = text(rows)
    parts = (Path(one).read_text(encoding="utf-8") for one in (loops.__file__, scalars.__file__))
    name = hashlib.sha256("\n".join((source, *parts)).encode()).hexdigest()[:16]
    file = kept(cache_folder() / "rowwise", name, source)
    try:
        return _made(source, file)
    except OSError:  # cleared away meanwhile: compiled, and not kept
        return _made(source, "<rowwise>")


def _made(source: str, file: str | Path) -> Any:
    names = dict(vars(scalars))
    exec(compile(source, file, "exec"), names)
    return loops.plain(names["rowwise"])
