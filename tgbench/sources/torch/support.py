"""Which ops of a module the importer knows: all at once, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from tgbench.base.errors import UnsupportedOpError
from tgbench.sources.torch.build import Builder
from tgbench.sources.torch.place import SourceLine
from tgbench.sources.torch.rows.whole import is_pick


@dataclass(frozen=True, slots=True)
class OpSupport:
    """One PyTorch op of a module.

    Fields:
        count: calls that depend on an input.
        opaque: those of them that PyTorch computes whole whenever anything changes.
        reason: why it is not supported; of opaque calls why they are, "" if there is no entry.
    """

    op: str
    count: int
    opaque: int
    reason: str
    first: SourceLine
    is_supported: bool

    @property
    def answer(self) -> str:
        if not self.is_supported:
            return "no"
        if not self.opaque:
            return "yes"
        return "opaque: recomputed whole" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Support:
    """Every op of a module that is no constant, the unsupported ones first."""

    ops: tuple[OpSupport, ...]

    @staticmethod
    def of(built: Builder) -> Support:
        """Counts and gaps of a builder that has run."""
        gaps = {gap.op: gap for gap in reversed(built.gaps)}
        whole = _by_op(built.whole)
        rows = []
        for op, count in built.counts.items():
            gap, reasons = gaps.get(op), whole.get(op, [])
            reason = gap.reason if gap else next(filter(None, reasons), "")
            place = gap.place if gap else built.places[op]
            rows.append(OpSupport(op, count, len(reasons), reason, place, gap is None))
        return Support(tuple(sorted(rows, key=lambda row: (row.is_supported, row.op))))

    @property
    def opaque(self) -> tuple[OpSupport, ...]:
        """The ops of which some calls are computed whole."""
        return tuple(row for row in self.ops if row.opaque)

    @property
    def missing(self) -> tuple[OpSupport, ...]:
        return tuple(row for row in self.ops if not row.is_supported)

    def check(self) -> None:
        """Raise UnsupportedOpError, naming the op, its place and the mend, if one is missing."""
        if not self.missing:
            return
        rows = [f"{row.op} ({row.count} ×) at {row.first}: {row.reason}" for row in self.missing]
        raise UnsupportedOpError("\n".join(rows), tuple(row.op for row in self.missing))

    def __str__(self) -> str:
        width = max((len(row.op) for row in self.ops), default=2)
        wide = max((len(row.answer) for row in self.ops), default=9)
        lines = [f"{'op':{width}}  calls  {'supported':{wide}}  first place"]
        for row in self.ops:
            lines.append(f"{row.op:{width}}  {row.count:5}  {row.answer:{wide}}  {row.first}")
        return "\n".join(lines)


def _by_op(whole: Mapping[fx.Node, str]) -> dict[str, list[str]]:
    """Why calls are opaque, by op."""
    found: dict[str, list[str]] = {}
    for node, reason in whole.items():
        if not is_pick(node):
            found.setdefault(str(node.target), []).append(reason)
    return found
