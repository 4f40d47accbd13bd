"""What a fuzzing session exercised, so that nobody believes in one that draws nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fuzz.replay import Tally
from fuzz.table import TABLE
from tgbench.graph.op_table import OPS


def coverage(tally: Tally, cases: int) -> str:
    """Tables: steps and options, ops of the engine, entries of the fuzzer, compared elements."""
    parts = [
        _listed("steps, options, refusals", tally.events.items()),
        _listed("runs with an op of the engine", _of(tally.ops, OPS)),
        _listed("cases with an entry of the fuzzer", _of(tally.entries, TABLE)),
        _listed("elements compared", tally.elements.items()),
        f"{cases} cases, {tally.events['run']} runs",
    ]
    return "\n\n".join(parts)


def _of(counts: Counter[str], names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, counts[name]) for name in names]


def _listed(title: str, counts: Iterable[tuple[str, int]], columns: int = 4) -> str:
    cells = [f"{name} {count:,}" for name, count in sorted(counts, key=lambda item: -item[1])]
    wide = max(map(len, cells), default=0) + 2
    columns = max(1, min(columns, 110 // wide))
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    lines = ["  ".join(cell.ljust(wide) for cell in row).rstrip() for row in rows]
    return "\n".join([title, *(f"  {line}" for line in lines)])
