"""A library's kernels for calls so small that they are not worth it; and other processors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tgbench.kernels.onednn.library import library, multiplies
from tgbench.kernels.registry import KERNELS, Kernel

NEEDS_LIBRARY = pytest.mark.skipif(library is None, reason="the extra `onednn` is not installed")
ROUNDS = library is not None and multiplies("bfloat16")
NEEDS_ROUNDING = pytest.mark.skipif(
    not ROUNDS, reason="no library here that multiplies bfloat16 numbers on this processor"
)


@pytest.fixture
def by_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library computes what it can, as on processors for which it has code of its own."""
    monkeypatch.setattr("tgbench.kernels.numba.panels.is_taken", lambda site: False)


def passes_with(instructions: str, files: Sequence[str], which: str) -> int:
    """How many tests of these files pass on a processor that has no more than such instructions.

    The library asks the environment, once, before it asks the processor.
    """
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:nbval", "-n", "0", "-k", which]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *options],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": instructions},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split(" passed")[0].split()[-1])


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
