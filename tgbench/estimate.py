"""How much memory a graph takes, before anything runs; symbolic where its dimensions are."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from tgbench.errors import GraphError
from tgbench.graph import Graph
from tgbench.packing import format_bytes

UNMEASURED_COMPUTE_BYTES = 1 << 30  # left free for compute peaks while none has been measured

_UNITS = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
}  # fmt: skip


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device; numbers, or sympy expressions of unbound dimensions.

    Fields:
        parameter_bytes: weights, tied ones once.
        constant_bytes: constants of the graph.
        input_bytes: inputs and states, always kept.
        keep_all_bytes: the arena, if every value were retained.
        arena_bytes: the arena of the plan in force, or None.
        budget_bytes: what the arena may take, or None.
    """

    parameter_bytes: Any
    constant_bytes: Any
    input_bytes: Any
    keep_all_bytes: Any
    arena_bytes: int | None = None
    budget_bytes: int | None = None

    @property
    def total_bytes(self) -> Any:
        """Parameters, constants and the arena (planned, or with everything kept)."""
        arena = self.keep_all_bytes if self.arena_bytes is None else self.arena_bytes
        return self.parameter_bytes + self.constant_bytes + arena

    def __str__(self) -> str:
        def show(size: Any) -> str:
            return format_bytes(size) if isinstance(size, int) else f"{size} B"

        lines = [
            f"parameters      {show(self.parameter_bytes)}",
            f"constants       {show(self.constant_bytes)}",
            f"keep everything {show(self.keep_all_bytes)}",
        ]
        if self.arena_bytes is not None:
            lines.append(f"arena (planned) {show(self.arena_bytes)}")
        if self.budget_bytes is not None:
            lines.append(f"budget          {show(self.budget_bytes)}")
        return "\n".join(lines)


def estimate_memory(
    graph: Graph, arena_bytes: int | None = None, budget_bytes: int | None = None
) -> MemoryEstimate:
    """Bytes by kind; for a graph with symbolic dimensions, expressions in them.

    >>> from tgbench.graph import GraphBuilder, dim
    >>> g = GraphBuilder(); x = g.input("x", (dim("T"), 8)); g.output("y", x * 2.0)
    >>> estimate_memory(g.build()).keep_all_bytes
    64*T
    """
    sizes: dict[str, Any] = {"parameter": 0, "constant": 0, "input": 0, "state": 0, "value": 0}
    for node in graph.nodes:
        if node.op in ("reshape", "permute", "slice", "expand"):
            continue
        kind = node.op if node.is_leaf else "value"
        sizes[kind] = sizes[kind] + node.type.size_bytes
    kept = sizes["input"] + sizes["state"]
    return MemoryEstimate(
        _number(sizes["parameter"]),
        _number(sizes["constant"]),
        _number(kept),
        _number(kept + sizes["value"]),
        arena_bytes,
        budget_bytes,
    )


def _number(size: Any) -> Any:
    expanded = sympy.expand(size) if isinstance(size, sympy.Expr) else size
    return int(expanded) if isinstance(expanded, (int, sympy.Integer)) else expanded


def parse_bytes(memory: int | str | None, graph: Graph, device: str) -> int | None:
    """A budget as bytes: 268435456, "256MiB", "1.5 GB", "auto" or None (no limit).

    "auto" is what the device has in all, less the weights and room for compute peaks.
    """
    if memory is None:
        return None
    if isinstance(memory, str) and memory.strip().lower() == "auto":
        weights = sum(int(node.type.size_bytes) for node in graph.parameters.values())
        return max(total_bytes(device) - weights - UNMEASURED_COMPUTE_BYTES, 0)
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", memory, re.IGNORECASE)
        if found is None or found[2].upper() not in _UNITS:
            raise GraphError(
                f"memory={memory!r} is not a size; write 268435456, '256MiB' or 'auto'"
            )
        return int(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(memory, bool) or memory < 0:
        raise GraphError(f"memory={memory!r} is not a size; write 268435456, '256MiB' or 'auto'")
    return int(memory)


def total_bytes(device: str) -> int:
    """All memory of a device."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
