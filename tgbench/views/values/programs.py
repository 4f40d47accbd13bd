"""A program as a list: what is computed, by which kernel, in which memory, for how long.

#  node          box                kernel          expected   offset  scratch
0  gather        [0:1, 19:20, 0:64] gather_numba      1.9 µs        0        -
1  layer_0.k     [0:1, 19:20, 0:32] linear_numba      2.3 µs     4096        -
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgbench.base.words import counted, format_bytes, format_time
from tgbench.memory.placement import told_offset
from tgbench.programs.program import Instruction, Program
from tgbench.session.session import GraphSession
from tgbench.views.draw.tables import TextTable

MOST_LISTED = 400  # rows of the static table

InstructionCost = Callable[[Instruction, tuple[int, ...]], float]


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction at its origin.

    Fields:
        expected_ns: by the cost model, or None.
        offset_bytes: of its node's bytes in the arena, or None.
    """

    node: str
    op: str
    box: str
    kernel: str
    elements: int
    expected_ns: float | None
    offset_bytes: int | None
    scratch_bytes: int


@dataclass(frozen=True)
class ProgramLines:
    """A program's lines, in the order they run."""

    title: str
    lines: tuple[Line, ...]

    @property
    def expected_ns(self) -> float:
        """All lines together."""
        return sum(line.expected_ns or 0.0 for line in self.lines)

    def columns(self) -> dict[str, Any]:
        """Plain columns for a script."""
        lines = self.lines
        return {
            "node": [line.node for line in lines],
            "op": [line.op for line in lines],
            "box": [line.box for line in lines],
            "kernel": [line.kernel for line in lines],
            "expected": np.array([line.expected_ns or 0.0 for line in lines], np.float64),
            "offset": np.array(
                [-1 if line.offset_bytes is None else line.offset_bytes for line in lines],
                np.float64,
            ),
            "scratch": np.array([line.scratch_bytes for line in lines], np.float64),
        }

    def table(self) -> TextTable:
        """The first lines as a table; how many are left out stands in its caption.

        A column of which nothing is known is left out.
        """
        shown = self.lines[:MOST_LISTED]
        rest = len(self.lines) - len(shown)
        caption = str(self) + (f"; the last {rest} are left out" if rest else "")
        rows = [_cells(i, line) for i, line in enumerate(shown)]
        told = [i for i in range(len(HEADER)) if any(row[i] != "-" for row in rows) or not rows]
        return TextTable(
            caption, [HEADER[i] for i in told], tuple(tuple(row[i] for i in told) for row in rows)
        )

    def __str__(self) -> str:
        calls = counted(len(self.lines), "call")
        if all(line.expected_ns is None for line in self.lines):
            return f"{self.title}: {calls}"
        return f"{self.title}: {calls}, expected {format_time(self.expected_ns)}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.table().bundle()


HEADER = ("#", "node", "box", "kernel", "expected", "offset", "scratch")


def listing(
    program: Program,
    title: str = "program",
    cost: InstructionCost | None = None,
    offsets: dict[str, int] | None = None,
) -> ProgramLines:
    """A program's lines at the origin that it stands at."""
    origin = program.origin or program.made_at
    known = offsets or {}
    return ProgramLines(
        title, tuple(_line(made, origin, cost, known) for made in program.instructions)
    )


def listing_of_session(session: GraphSession) -> ProgramLines:
    """The program of the last run; empty before the first."""
    last = session.last
    if last is None:
        return ProgramLines("no run yet", ())
    offsets = {node.name: slot.offset_bytes for node, slot in session.placement.slots.items()}

    def cost(made: Instruction, origin: tuple[int, ...]) -> float:
        if made.site is None:
            return 0.0
        return session.costs.time_ns(made.node.call, made.box.at(origin))

    return listing(last.program, str(last.bucket), cost, offsets)


def _line(
    made: Instruction,
    origin: tuple[int, ...],
    cost: InstructionCost | None,
    offsets: dict[str, int],
) -> Line:
    box = made.box.at(origin) if origin else made.box
    return Line(
        made.node.name,
        made.node.op,
        str(box),
        made.how,
        box.elements,
        None if cost is None else cost(made, origin),
        offsets.get(made.node.name),
        made.scratch_bytes,
    )


def _cells(number: int, line: Line) -> Sequence[str]:
    return (
        str(number),
        line.node,
        line.box,
        line.kernel,
        "-" if line.expected_ns is None else format_time(line.expected_ns),
        "-" if line.offset_bytes is None else told_offset(line.offset_bytes),
        format_bytes(line.scratch_bytes) if line.scratch_bytes else "-",
    )
