"""Whether paths that run side by side, on the same inputs, give the same results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tgbench.graph.graph import Graph
from tgbench.session.check.compare import largest, tolerance_of

Array = np.ndarray[Any, Any]
ROUNDING = 1e-3  # of an output's largest magnitude: sums in another order are off by far less


def allowed_by(graph: Graph, tolerance: float | None) -> float:
    """What results of a graph's paths may differ by, over the largest magnitude."""
    dtypes = (n.attrs.get("arithmetic", n.dtype) for n in graph.nodes if not n.is_leaf)
    rounding = max((tolerance_of(dtype, None) for dtype in dtypes), default=0.0)
    return max(ROUNDING, rounding, tolerance or 0.0)


class Agreement:
    """What results are off by, beside those of one of the paths.

    An output's largest magnitude is that of all runs: one that asks for a row may find little.

    Args:
        count: how many paths.
        right: the place of the one that others are compared with.
    """

    def __init__(self, count: int, right: int) -> None:
        self.right = right
        self._apart: list[dict[str, float]] = [{} for _ in range(count)]
        self._largest: dict[str, float] = {}

    def compare(self, results: Mapping[int, Mapping[str, Any]]) -> None:
        """Take one run of each path into account, by its place."""
        for name, wanted in results[self.right].items():
            right = list(_arrays(wanted))
            most = max(map(largest, right), default=0.0)
            self._largest[name] = max(self._largest.get(name, 0.0), most)
            for place, found in results.items():
                pairs = zip(_arrays(found[name]), right, strict=True)
                apart = max((_apart(one, other) for one, other in pairs), default=0.0)
                known = self._apart[place]
                known[name] = max(known.get(name, 0.0), apart)

    def is_off(self, place: int, allowed: float) -> bool:
        """Whether some output of a path differs by more than that share of its magnitude."""
        return any(
            apart > allowed * (self._largest[name] or 1.0)
            for name, apart in self._apart[place].items()
        )


def _arrays(found: Any) -> Iterator[Array]:
    """The parts of an output that were asked for."""
    parts: Sequence[Any] = found if isinstance(found, list) else [found]
    return (np.asarray(part, np.float64) for part in parts)


def _apart(found: Array, right: Array) -> float:
    """The largest difference where the right one is a number; infinite where the other is none."""
    with np.errstate(invalid="ignore"):
        apart = np.asarray(np.abs(found - right))
    apart[np.isnan(apart)] = np.inf
    return float(np.max(apart, where=np.isfinite(right), initial=0.0))
