"""Kernels written from passes over rows: the source of one Triton function, for GPUs.

    rows       │ a program has a few of them; lanes past the last one read and write nothing
    columns    ├─ block ─┼─ block ─┼─ bl·    lanes past a row's end add nothing to what is reduced

A row that fits one block is read once, and what it gives stays in registers: the passes are walked
one behind the other. A longer one is walked block by block in each pass, and what a later pass
wants again is computed again, as memory for a row of each program would be more than that saves;
where nothing is reduced, each block is a program's. Half floats are computed in float32 and rounded
at the end.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tgbench.graph.ops.rowwise import NUMBER
from tgbench.kernels.passes import AGAIN, READ, Pass, RowPasses, RowValue

FORMULAS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "quotient({}, {})",
    "neg": "negative({})", "abs": "tl.abs({})", "floor": "tl.floor({})", "ceil": "tl.ceil({})",
    "sqrt": "tl.sqrt_rn({})", "rsqrt": "reciprocal(tl.sqrt_rn({}))",
    "reciprocal": "reciprocal({})", "exp": "full_exp32({})", "erf": "erf32({})",
    "tanh": "tanh32({})", "log": "log32({})", "sigmoid": "reciprocal(1.0 + exp32(negative({})))",
    "maximum": "larger({}, {})", "minimum": "smaller({}, {})", "less": "{} < {}",
    "less_equal": "{} <= {}", "greater": "{} > {}", "greater_equal": "{} >= {}",
    "where": "tl.where({}, {}, {})",
}  # fmt: skip
TOTALS = "tl.sum({}, 1, keep_dims=True)"
LARGEST = "tl.max({}, 1, keep_dims=True)"
FOLDS = {  # of a reduction: what a lane past the end gives, and what another gives; how two are
    # joined; what is made of a block of them
    "sum": ("0.0", "{}", "{} + {}", TOTALS),
    "mean": (
        "0.0",
        "{}",
        "{} + {}",
        f"quotient({TOTALS}, tl.full([ROWS, 1], 1.0, tl.float32) * n)",
    ),
    "max": ("LOWEST", "place({})", "tl.maximum({}, {})", f"number({LARGEST})"),
    "min": ("LOWEST", "place(negative({}))", "tl.maximum({}, {})", f"negative(number({LARGEST}))"),
}
SIZES = ["outer", "inner", "n"]  # for none of which there is a function of its own


def arguments(count: int) -> list[str]:
    """What a kernel of so many inputs is called with: memory and three strides each, then sizes."""
    places = [
        f"{name}{part}"
        for name in (*(f"a{i}" for i in range(count)), "y")
        for part in ("", "_outer", "_inner", "_column")
    ]
    return [*places, *SIZES]


def text(rows: RowPasses, logical: Sequence[bool], is_whole: bool) -> str:
    """The source of a kernel.

    Args:
        rows: keeping nothing, unless a row is whole.
        logical: for each input, whether it is of bools.
        is_whole: whether no program has more than one block: of all columns of a row, or of some,
            where nothing is reduced.
    """
    lines = [f"def rowwise({', '.join(arguments(len(logical)))}, ROWS: tl.constexpr, "
             "COLUMNS: tl.constexpr, BLOCKS: tl.constexpr):"]  # fmt: skip
    lines += [f"    {line}" for line in _body(rows, logical, is_whole)]
    return "\n".join((*lines, ""))


def _body(rows: RowPasses, logical: Sequence[bool], is_whole: bool) -> Iterator[str]:
    yield "row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)"
    yield "there = (row < outer * inner)[:, None]"
    yield "r, s = (row // inner)[:, None], (row % inner)[:, None]"
    for name in (*(f"a{i}" for i in range(len(logical))), "y"):
        yield f"p_{name} = {name} + r * {name}_outer + s * {name}_inner"
    if is_whole:
        yield from _block("tl.program_id(1) * COLUMNS")
    there: set[int] = set()
    for one in rows.passes:
        yield from _pass(one, logical, there if is_whole else None)


def _block(start: str) -> Iterator[str]:
    """Which columns are at hand, and which of their lanes are there."""
    yield f"i = ({start} + tl.arange(0, COLUMNS).to(tl.int64))[None, :]"
    yield "here = there & (i < n)"


def _pass(one: Pass, logical: Sequence[bool], there: set[int] | None) -> Iterator[str]:
    """A pass: over the block of all columns, where those are `there` that were computed before, or
    block by block.
    """
    for line in one.row:
        yield f"v{line.value} = {_number(line, logical)}"
    if there is not None:
        for line in one.columns:
            if line.value not in there and line.name != AGAIN:
                there.add(line.value)
                yield f"v{line.value} = {_column(line, logical)}"
        for fold in one.folds:
            yield f"r{fold.value} = {_folded(fold)}"
        yield from _result(one)
        return
    for fold in one.folds:
        kind = "tl.int32" if FOLDS[fold.name][0] == "LOWEST" else "tl.float32"
        yield f"r{fold.value} = tl.full([ROWS, COLUMNS], {FOLDS[fold.name][0]}, {kind})"
    yield "for block in range(BLOCKS):"
    for text_line in _looped(one, logical):
        yield f"    {text_line}"


def _looped(one: Pass, logical: Sequence[bool]) -> Iterator[str]:
    yield from _block("block * COLUMNS")
    for line in one.columns:
        yield f"v{line.value} = {_column(line, logical)}"
    for fold in one.folds:
        yield f"r{fold.value} = {FOLDS[fold.name][2].format(f'r{fold.value}', _folded(fold))}"
    yield from _result(one)


def _result(one: Pass) -> Iterator[str]:
    if one.result is not None:
        yield f"tl.store(p_y + i * y_column, v{one.result}, mask=here)"


def _folded(fold: RowValue) -> str:
    """What the columns of a block give to a reduction."""
    empty, given, *_ = FOLDS[fold.name]
    return f"tl.where(here, {given.format(f'v{fold.operands[0]}')}, {empty})"


def _number(line: RowValue, logical: Sequence[bool]) -> str:
    """What is one number a row."""
    if line.name == READ:
        return _load(f"p_a{line.value}", "there", logical[line.value])
    if line.name == NUMBER:
        return f"tl.full([ROWS, 1], {_literal(line.operands[0])}, tl.float32)"
    if line.name in FOLDS:
        return FOLDS[line.name][3].format(f"r{line.value}")
    return _formula(line)


def _column(line: RowValue, logical: Sequence[bool]) -> str:
    if line.name == READ:
        at = f"p_a{line.value} + i * a{line.value}_column"
        return _load(at, "here", logical[line.value])
    return _formula(line)


def _load(place: str, mask: str, is_logical: bool) -> str:
    found = f"tl.load({place}, mask={mask}, other=0)"
    return found if is_logical else f"{found}.to(tl.float32)"


def _formula(line: RowValue) -> str:
    return FORMULAS[line.name].format(*(f"v{i}" for i in line.operands))


def _literal(value: float) -> str:
    return repr(value) if np.isfinite(value) else f'float("{value}")'


# --- compiling ------------------------------------------------------------------------------------


@cache
def function(rows: RowPasses, logical: tuple[bool, ...], is_whole: bool) -> Any:
    """Triton's function of a kernel: made of its text, and compiled by it when it is called."""
    import triton

    from tgbench.kernels.triton import functions

    source = text(rows, logical, is_whole)
    file = f"<rowwise {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {**vars(functions), "__name__": functions.__name__}
    exec(compile(source, file, "exec"), names)
    return triton.jit(names["rowwise"], do_not_specialize=SIZES)
