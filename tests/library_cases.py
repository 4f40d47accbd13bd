"""A library's kernels for calls so small that they are not worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tgbench.kernels.registry import KERNELS, Kernel


@contextmanager
def worth_it(are: Callable[[Kernel], object]) -> Iterator[None]:
    """Meanwhile, kernels that `are` so come before all others, however small a call is."""
    kept = dict(KERNELS)
    for op, kernels in kept.items():
        KERNELS[op] = [
            replace(one, cost_ns=lambda site: 1.0) if are(one) else one for one in kernels
        ]
    try:
        yield
    finally:
        KERNELS.update(kept)
