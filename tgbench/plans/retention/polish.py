"""Small changes of a good retention, judged by a walk over the trace.

    keep ─→ neighbours: one decision turned, two exchanged ─→ those that fit ─→ the fastest, again

Windows look far, with a score that takes what most runs of a turn leave for what all of
them do. This looks near, and knows what each run really finds (`Model.walked_ns`).

Source: a first-improvement local search over batches (Aarts and Lenstra, "Local Search in
Combinatorial Optimization", 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.model import Model, ScoredRetention

BATCH = 96  # neighbours that are looked at together
STALE = 3  # batches in a row without a better one
MOST = 12  # batches of one call


def polished(
    model: Model,
    budget_bytes: int,
    keep: NDArray[np.bool_],
    seed: Sequence[int],
    stop: Callable[[], bool] = lambda: False,
) -> ScoredRetention | None:
    """The best retention near one that fits; None where that does not, or has no trace to walk.

    Args:
        stop: asked before every batch.
    """
    if not model.tables.walk.size or model.score(keep[None]).size_bytes[0] > budget_bytes:
        return None
    random = np.random.default_rng(list(seed))
    candidates = np.flatnonzero(model.tables.worthwhile)
    best_ns, stale = float(model.walked_ns(keep[None])[0]), 0
    for _ in range(MOST):
        if stale == STALE or not candidates.size or stop():
            break
        near = _neighbours(keep, candidates, random)
        near = near[model.score(near).size_bytes <= budget_bytes]
        times = model.walked_ns(near)
        at = int(times.argmin()) if len(near) else -1
        stale += 1
        if at >= 0 and times[at] < best_ns * (1 - 1e-9):
            keep, best_ns, stale = near[at], float(times[at]), 0
    return ScoredRetention(keep, best_ns, int(model.score(keep[None]).size_bytes[0]))


def exchanged(
    keep: NDArray[np.bool_], candidates: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.bool_]:
    """Random retentions near one that keeps what it keeps throughout: a third with one node more, a
    third with one less, a third with one or two for one or two others.
    """
    kept, others = candidates[keep[0, candidates]], candidates[~keep[0, candidates]]
    found = np.repeat(keep[None], BATCH, axis=0)
    for i in range(BATCH):
        more, less = (i % 3 != 1) * (1 + i % 2), (i % 3 != 0) * (1 + i // 2 % 2)
        if i % 3 < 2:
            more, less = min(more, 1), min(less, 1)
        found[i][:, random.permutation(others)[:more]] = True
        found[i][:, random.permutation(kept)[:less]] = False
    return found


def _neighbours(
    keep: NDArray[np.bool_], candidates: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.bool_]:
    """Random ones: a third with one decision turned, a third with a node turned throughout, and
    in each of these and the rest two nodes of a turn exchanged.
    """
    turns = keep.shape[0]
    found = np.repeat(keep[None], BATCH, axis=0)
    for i in range(BATCH):
        turn, node = int(random.integers(turns)), int(random.choice(candidates))
        where = slice(None) if i % 3 == 1 else turn
        found[i, where, node] = ~found[i, turn, node]
        if i % 3 == 2:
            others = candidates[found[i, turn, candidates] == found[i, turn, node]]
            others = others[others != node]
            if others.size:
                other = int(random.choice(others))
                found[i, turn, other] = ~found[i, turn, other]
    return found
