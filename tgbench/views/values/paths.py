"""Alternatives with their costs, the best first: kernels at one node, plans, ways to cut.

#  alternative    expected      source         memory
0  linear_numba    0.8 µs ±50%  modelled            -   ← chosen
1  linear          2.3 µs ±50%  modelled            -
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box
from tgbench.base.words import format_bytes, format_time
from tgbench.session.session import GraphSession
from tgbench.views.draw.tables import TextTable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Alternative:
    """One way, and what it costs.

    Fields:
        source: where the time comes from: measured, interpolated or modelled.
        spread: relative uncertainty of the time.
        more: further columns, by heading.
    """

    name: str
    time_ns: float
    source: str = ""
    spread: float = 0.0
    size_bytes: int | None = None
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PathTable:
    """Alternatives for one thing, in the order in which they would be taken.

    The expected fastest is not always the first: a kernel that raised comes last, and what noise
    alone tells apart is in the models' order.

    >>> print(PathTable.of("y", [Alternative("quick", 2e3, "measured"), Alternative("slow", 9e3)]))
    alternatives for y
    #  alternative  expected  source    memory
    0  quick            2 µs  measured       -
    1  slow             9 µs                 -
    """

    title: str
    alternatives: tuple[Alternative, ...]

    @staticmethod
    def of(what: str, alternatives: Iterable[Alternative]) -> PathTable:
        """What would be taken first comes first."""
        return PathTable(f"alternatives for {what}", tuple(alternatives))

    def to_frame(self) -> pd.DataFrame:
        """One row an alternative: name, time_ns, source, spread, size_bytes, and what is more."""
        import pandas as pd

        rows = [
            {
                "name": one.name, "time_ns": one.time_ns, "source": one.source,
                "spread": one.spread, "size_bytes": one.size_bytes, **one.more,
            }
            for one in self.alternatives
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def table(self) -> TextTable:
        """As text."""
        more = tuple(dict.fromkeys(name for one in self.alternatives for name in one.more))
        header = ("#", "alternative", "expected", "source", "memory", *more)
        rows = tuple(
            (
                str(i),
                one.name,
                format_time(one.time_ns) + (f" ±{one.spread:.0%}" if one.spread else ""),
                one.source,
                "-" if one.size_bytes is None else format_bytes(one.size_bytes),
                *(one.more.get(name, "") for name in more),
            )
            for i, one in enumerate(self.alternatives)
        )
        return TextTable(self.title, header, rows)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.table().bundle()


def kernels_of(session: GraphSession, name: str, box: Box | None = None) -> PathTable:
    """Every kernel that could compute a box of a node, the whole of it if none is given.

    Operands are taken to lie as in `CostModel.site`. Raises GraphError for an unknown name, and for
    a leaf.
    """
    node = session.graph.node(name)
    if node.is_leaf:
        raise GraphError(f"{name} is a leaf ({node.op}); no kernel computes it")
    whole = Box.full(node.shape) if box is None else box
    site = session.costs.site(node.call, whole)
    return PathTable.of(
        f"{name}{whole}",
        (
            Alternative(
                kernel.name,
                found.time_ns,
                found.source,
                found.spread,
                more={"rounds to": kernel.rounds} if kernel.rounds else {},
            )
            for kernel, found in session.costs.ranked(site)
        ),
    )
