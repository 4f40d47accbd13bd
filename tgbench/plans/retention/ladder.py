"""What to let go of first, where not all can be kept: one order of values for every budget.

    all that is worth keeping ─→ what do runs take longer without each, for its bytes?
        ↑                                             │
        └──── weighed again ←── the cheapest are let go of, as long as they do not need each other

Values are worth what the others leave to them: of two that are only useful together, the second is
worth nothing once the first is gone; and what a value is computed from becomes worth keeping when
the value is not. So all are weighed again after each rung. Those of a rung go together: what they
lose only adds up.

The order does not depend on the budget, so what more memory keeps holds what less memory keeps, but
for what is put back where there is room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.model import Keep, Model
from tgbench.plans.retention.tables import Floats

ADDED_UP = 1.02  # what letting go of several may lose, beside the sum of what each alone loses
NOTHING = 1e-6  # a loss that counts as none, as a share of the time
MOST_BACK = 32  # values that are put back where there is room


@dataclass(frozen=True)
class Ladder:
    """Values in the order in which they are let go of; kept until then after all turns.

    Fields:
        model: says what a retention takes.
        rungs: positions of the nodes that go together.
    """

    model: Model
    rungs: tuple[NDArray[np.int64], ...]

    @staticmethod
    def of(model: Model) -> Ladder:
        """Begins with all that is worth keeping; ends with nothing."""
        kept, rungs = model.tables.worthwhile.copy(), []
        while kept.any():
            rungs.append(_rung(model, kept))
            kept[rungs[-1]] = False
        return Ladder(model, tuple(rungs))

    def over(self, model: Model) -> Ladder:
        """The same for a model of the same times, whose sizes differ."""
        return Ladder(model, self.rungs)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """All that is worth keeping, the first to go first."""
        return np.concatenate([*self.rungs, np.zeros(0, np.int64)]).astype(np.int64)

    @cached_property
    def _prefixes(self) -> tuple[Floats, NDArray[np.int64]]:
        """Times and sizes with the first 0, 1, 2 … of the order let go of."""
        scores = [self.model.score(part) for part in np.array_split(self._members, _parts(self))]
        times = np.concatenate([one.time_ns for one in scores])
        return times, np.concatenate([one.size_bytes for one in scores])

    @property
    def _members(self) -> Keep:
        found = np.repeat(self.model.none(), len(self.order) + 1, axis=0)
        for i, node in enumerate(self.order):
            found[: i + 1, :, node] = True
        return found

    def within(self, budget_bytes: int) -> NDArray[np.bool_] | None:
        """[turn, node] the fastest that fits, and what there is room for; None if nothing fits."""
        if budget_bytes not in self._found:
            self._found[budget_bytes] = self._within(budget_bytes)
        return self._found[budget_bytes]

    @cached_property
    def _found(self) -> dict[int, NDArray[np.bool_] | None]:
        return {}

    def _within(self, budget_bytes: int) -> NDArray[np.bool_] | None:
        times, sizes = self._prefixes
        fits = np.flatnonzero(sizes <= budget_bytes)
        if not fits.size:
            return None
        gone = int(fits[np.argmin(times[fits])])
        keep = self.model.none()[0]
        keep[:, self.order[gone:]] = True
        return _with_more(self.model, keep, float(times[gone]), budget_bytes)

    @property
    def lossless_bytes(self) -> int:
        """What is enough to lose nothing."""
        times, sizes = self._prefixes
        return int(sizes[np.flatnonzero(times <= times[0] * (1 + NOTHING))].min())

    def share(self, budget_bytes: int) -> Floats:
        """[turn, node] from 0 for what goes first to 1 for what goes last; 0.5: now it fits."""
        fits = np.flatnonzero(self._prefixes[1] <= budget_bytes)
        gone = int(fits[0]) if fits.size else len(self.order)
        place = np.arange(len(self.order)) + 0.5
        left = np.minimum(place / max(gone, 1), 1.0) / 2
        right = np.maximum(place - gone, 0.0) / max(len(self.order) - gone, 1) / 2
        found = np.zeros((self.model.turns, self.model.nodes))
        found[:, self.order] = left + right
        return found


def _parts(ladder: Ladder) -> int:
    return max(len(ladder.order) // 64, 1)


def _rung(model: Model, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Those that lose least for their bytes; as many of them as do not need each other."""
    nodes = np.flatnonzero(kept)
    now_ns = float(model.score(_throughout(model, kept[None])).time_ns[0])
    alone = np.maximum(_without(model, kept, nodes[:, None]) - now_ns, 0.0)
    sizes = model.tables.kept_bytes[nodes]
    lost = np.divide(alone, sizes, out=np.full_like(alone, np.inf), where=sizes > 0)
    order = np.argsort(lost, kind="stable")
    counts = [1 << i for i in range(len(nodes).bit_length())]
    together = _without(model, kept, [nodes[order[:count]] for count in counts]) - now_ns
    summed = np.cumsum(alone[order])[np.array(counts) - 1]
    fine = np.flatnonzero(together <= ADDED_UP * summed + NOTHING * now_ns)
    found: NDArray[np.int64] = nodes[order[: counts[int(fine.max(initial=0))]]]
    return found


def _without(model: Model, kept: NDArray[np.bool_], groups: Iterable[NDArray[np.int64]]) -> Floats:
    """Times where each of some groups of nodes is let go of."""
    members = np.array([_less(kept, group) for group in groups])
    return model.score(_throughout(model, members)).time_ns


def _less(kept: NDArray[np.bool_], group: NDArray[np.int64]) -> NDArray[np.bool_]:
    found = kept.copy()
    found[group] = False
    return found


def _throughout(model: Model, kept: NDArray[np.bool_]) -> Keep:
    """[population, node] as retentions through all turns."""
    return np.repeat(kept[:, None, :], model.turns, axis=1)


def _with_more(
    model: Model, keep: NDArray[np.bool_], now_ns: float, budget_bytes: int
) -> NDArray[np.bool_]:
    """What was let go of and still fits, the best for its bytes first."""
    for _ in range(MOST_BACK):
        nodes = np.flatnonzero(model.tables.worthwhile & ~keep.all(axis=0))
        if not nodes.size:
            break
        members = np.repeat(keep[None], len(nodes), axis=0)
        members[np.arange(len(nodes)), :, nodes] = True
        scores = model.score(members)
        gain = np.where(scores.size_bytes <= budget_bytes, now_ns - scores.time_ns, 0.0)
        best = int((gain / model.tables.kept_bytes[nodes]).argmax())
        if gain[best] <= NOTHING * now_ns:
            break
        keep, now_ns = members[best], float(scores.time_ns[best])
    return keep
