"""What retaining a value saves a run, all others as they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.retention.model import Model
from tgbench.plans.retention.tables import Floats

TOGETHER = 64  # values that are weighed at once


def worth_ns(model: Model, keep: NDArray[np.bool_]) -> Floats:
    """[node] what retaining each node through all turns saves a run, the others as they are."""
    found = np.zeros(model.nodes)
    candidates = np.flatnonzero(model.tables.worthwhile)
    for part in np.array_split(candidates, max(len(candidates) // TOGETHER, 1)):
        if not len(part):
            continue
        members = np.repeat(keep[None], 2 * len(part), axis=0)
        members[np.arange(len(part)), :, part] = True
        members[len(part) + np.arange(len(part)), :, part] = False
        time = model.score(members).time_ns
        found[part] = time[len(part) :] - time[: len(part)]
    return np.maximum(found, 0.0)
