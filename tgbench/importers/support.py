"""Which ops of a module the importer knows: all at once, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from tgbench.errors import UnsupportedOpError
from tgbench.importers.build import NO_ENTRY, Builder
from tgbench.importers.place import Place

HOW = (
    'enter it: `@lowers("{op}")` above a function of (site, *the op\'s arguments) in a module of '
    "tgbench/importers/, as tgbench/importers/table.py shows; or write the line with ops that are "
    "there, as tg.supported(module, example_inputs) lists them"
)


@dataclass(frozen=True, slots=True)
class OpSupport:
    """One PyTorch op of a module.

    Fields:
        count: calls that depend on an input.
        reason: why it is not supported; "" if it is.
    """

    op: str
    count: int
    reason: str
    first: Place

    @property
    def is_supported(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Support:
    """Every op of a module that is no constant, the unsupported ones first."""

    ops: tuple[OpSupport, ...]

    @staticmethod
    def of(built: Builder) -> Support:
        """Counts and gaps of a builder that has run."""
        gaps = {gap.op: gap for gap in reversed(built.gaps)}
        rows = [
            OpSupport(
                op,
                count,
                gaps[op].reason if op in gaps else "",
                gaps[op].place if op in gaps else built.places[op],
            )
            for op, count in built.counts.items()
        ]
        return Support(tuple(sorted(rows, key=lambda row: (row.is_supported, row.op))))

    @property
    def missing(self) -> tuple[OpSupport, ...]:
        return tuple(row for row in self.ops if not row.is_supported)

    def check(self) -> None:
        """Raise UnsupportedOpError, naming the op, its place and the mend, if one is missing."""
        if not self.missing:
            return
        rows = [f"{row.op} ({row.count} ×) at {row.first}: {_why(row)}" for row in self.missing]
        raise UnsupportedOpError("\n".join(rows), tuple(row.op for row in self.missing))

    def __str__(self) -> str:
        width = max((len(row.op) for row in self.ops), default=2)
        lines = [f"{'op':{width}}  calls  supported  first place"]
        for row in self.ops:
            answer = "yes" if row.is_supported else "no"
            lines.append(f"{row.op:{width}}  {row.count:5}  {answer:9}  {row.first}")
        return "\n".join(lines)


def _why(row: OpSupport) -> str:
    if row.reason == NO_ENTRY:
        return f"the importer has no entry for it; {HOW.format(op=row.op)}"
    return row.reason
