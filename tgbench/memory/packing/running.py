"""How compiled loops are run: loaded where they are needed, and between looks at the limits."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tgbench.base.errors import PackingError
from tgbench.base.stopping import Limits, StopReason


class LimitError(Exception):
    """Ends a search in the middle; `reason` says which limit it was."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def load(name: str) -> Any:
    """A module of compiled loops; raises `PackingError` where LLVM is not installed."""
    try:
        return import_module(f"tgbench.memory.packing.{name}")
    except ModuleNotFoundError as error:
        if error.name != "llvmlite":
            raise
        raise PackingError(
            "the complete packing search needs llvmlite, which is not installed; run "
            "`pip install llvmlite`, or install tgbench with its extra `cpu`, or call pack without "
            "search=True"
        ) from error


def stretches(limits: Limits, limit: int, chunk: int) -> Iterator[int]:
    """How many steps to take next, `limit` in all; raises `LimitError` before what is over."""
    while limit > 0:
        reason = limits.reached()
        if reason is not None:
            raise LimitError(reason)
        steps = limits.left(min(chunk, limit))
        yield steps
        limit -= steps
