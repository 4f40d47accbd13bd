"""How much memory a graph takes, before anything runs; symbolic where its dimensions are."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tgbench.base.errors import MOST_INTEGER, GraphError
from tgbench.base.words import format_bytes, shorten
from tgbench.graph.dims import expanded
from tgbench.graph.graph import Graph, Weighted, graph_of
from tgbench.graph.op_table import OPS

UNMEASURED_COMPUTE_BYTES = 1 << 30  # left free for compute peaks while none has been measured

_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d{1,99}(?:\.\d+)?)\s*([a-z]*)")
_OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device; numbers, or sympy expressions of unbound dimensions.

    Fields:
        parameter_bytes: weights, tied ones once.
        constant_bytes: constants of the graph, and what follows from weights alone.
        input_bytes: inputs and states, always kept.
        keep_all_bytes: the arena, if every value were retained.
        arena_bytes: what the plan in force takes of the arena, or None.
        budget_bytes: what it may take, or None.
        fixed_bytes: of `arena_bytes`, what the session holds between runs, or None. The rest is
            shared with the other sessions of its arena.
        others_bytes: what the other sessions of its arena hold between runs.
        packed_bytes: weights that kernels keep a second time, in another layout, at most.
    """

    parameter_bytes: Any
    constant_bytes: Any
    input_bytes: Any
    keep_all_bytes: Any
    arena_bytes: int | None = None
    budget_bytes: int | None = None
    fixed_bytes: int | None = None
    others_bytes: int = 0
    packed_bytes: int = 0

    @property
    def total_bytes(self) -> Any:
        """Parameters, constants, packed weights and the arena (planned, or keeping everything)."""
        arena = self.keep_all_bytes if self.arena_bytes is None else self.arena_bytes
        return self.parameter_bytes + self.constant_bytes + self.packed_bytes + arena

    def rows(self) -> list[tuple[str, str]]:
        """What takes how much, in words."""
        fixed, arena = self.fixed_bytes, self.arena_bytes
        common = arena - fixed if arena is not None and fixed is not None else None
        found = (
            ("parameters", self.parameter_bytes),
            ("  packed, at most", self.packed_bytes or None),
            ("constants", self.constant_bytes),
            ("keep everything", self.keep_all_bytes),
            ("arena (planned)", arena),
            ("  fixed part", None if common is None else fixed),
            ("  common part", common),
            ("others' fixed", self.others_bytes or None),
            ("budget", self.budget_bytes),
        )
        return [(what, _size(size)) for what, size in found if size is not None]

    def __str__(self) -> str:
        return "\n".join(f"{what:15} {size}" for what, size in self.rows())


def _size(size: Any) -> str:
    return format_bytes(size) if isinstance(size, int) else f"{size} B"


def estimate_memory(
    graph: Graph | Weighted,
    arena_bytes: int | None = None,
    budget_bytes: int | None = None,
    fixed_bytes: int | None = None,
    others_bytes: int = 0,
    packed_bytes: int = 0,
) -> MemoryEstimate:
    """Bytes by kind; for a graph with symbolic dimensions, expressions in them.

    Args:
        graph: or an imported module.
        arena_bytes, …: as the fields of `MemoryEstimate`.

    Raises GraphError for anything else.

    >>> from tgbench.graph.dims import dim
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (dim("T"), 8)); g.output("y", x * 2.0)
    >>> estimate_memory(g.build()).keep_all_bytes
    64*T
    """
    sizes: dict[str, Any] = {"parameter": 0, "constant": 0, "input": 0, "state": 0, "value": 0}
    graph = graph_of(graph)
    for node in graph.nodes:
        if not node.is_leaf and OPS[node.op].view is not None:
            continue
        if node.type.device:
            continue
        kind = node.op if node.is_leaf else "constant" if node in graph.frozen else "value"
        sizes[kind] = sizes[kind] + node.type.size_bytes
    kept = sizes["input"] + sizes["state"]
    return MemoryEstimate(
        expanded(sizes["parameter"]),
        expanded(sizes["constant"]),
        expanded(kept),
        expanded(kept + sizes["value"]),
        arena_bytes,
        budget_bytes,
        fixed_bytes,
        others_bytes,
        packed_bytes,
    )


@dataclass(frozen=True)
class Budget:
    """What `memory=` or the size of an arena asks for.

    Fields:
        limit_bytes: never more than this, or None.
        auto: nor more than what the device has left.
    """

    limit_bytes: int | None
    auto: bool = False

    @staticmethod
    def parse(memory: int | str | None, what: str = "memory") -> Budget:
        """268435456, "256MiB", "1.5 GB", "auto", "auto:4GiB", or None for no limit.

        Raises GraphError for anything else, by the name of the argument.

        >>> Budget.parse("auto:1KiB")
        Budget(limit_bytes=1024, auto=True)
        """
        if memory is None:
            return Budget(None)
        if isinstance(memory, str):
            text = memory.strip().lower()
            size = _SIZE.fullmatch(text.removeprefix("auto:"))
            if text == "auto":
                return Budget(None, auto=True)
            if size is not None and size[2] in _UNITS:
                count = int(float(size[1]) * _UNITS[size[2]])
                if count < MOST_INTEGER:
                    return Budget(count, text.startswith("auto:"))
        elif isinstance(memory, Real) and not isinstance(memory, bool) and _is_count(memory):
            return Budget(int(memory))
        raise GraphError(
            f"{what}={shorten(memory)} is not a size; write 268435456, '256MiB' or 'auto'"
        )

    def bytes(self, device: str, weights_bytes: int, peak_bytes: int | None) -> int | None:
        """The budget on a device; the arguments as of `left_bytes`."""
        if not self.auto:
            return self.limit_bytes
        left = left_bytes(device, weights_bytes, peak_bytes)
        return left if self.limit_bytes is None else min(self.limit_bytes, left)


Sizes: TypeAlias = "int | str | Mapping[str, int | str | None] | None"


def by_device(memory: Sizes, device: str) -> tuple[int | str | None, dict[str, int]]:
    """The budget of a session's device as it was written, and what others may give, in bytes.

    Raises GraphError for a size that is none, and for "auto" elsewhere.

    >>> by_device({"cpu": "1MiB", "cuda:0": "2KiB"}, "cpu")
    ('1MiB', {'cuda:0': 2048})
    """
    if not isinstance(memory, Mapping):
        Budget.parse(memory)
        return memory, {}
    others = {}
    for name, size in memory.items():
        budget = Budget.parse(size)
        if name != device and budget.auto:
            raise GraphError(f"memory of {name} is {size!r}; write how much, or leave it out")
        if name != device and budget.limit_bytes is not None:
            others[name] = budget.limit_bytes
    return memory.get(device), others


def _is_count(size: Real) -> bool:
    """Whether it is a whole number of bytes, not a share of something."""
    return 0 <= float(size) < MOST_INTEGER and float(size).is_integer()


def parse_bytes(
    memory: int | str | None,
    graph: Graph,
    device: str,
    peak_bytes: int | None = None,
    packed_bytes: int = 0,
) -> int | None:
    """The budget of a session's arena, as `Budget.parse` reads it.

    "auto" is what the device has in all, less weights, packed ones again, constants and
    `peak_bytes`.
    """
    found = estimate_memory(graph)
    weights = int(found.parameter_bytes + found.constant_bytes) + packed_bytes
    return Budget.parse(memory).bytes(device, weights, peak_bytes)


def left_bytes(device: str, weights_bytes: int, peak_bytes: int | None) -> int:
    """What a device has left for an arena.

    `peak_bytes` is the most that was in use beside weights and arena (`Arena.compute_peak_bytes`);
    1 GiB stands for it while nothing is measured.
    """
    peak = UNMEASURED_COMPUTE_BYTES if peak_bytes is None else peak_bytes
    return max(total_bytes(device) - weights_bytes - peak, 0)


def total_bytes(device: str) -> int:
    """All memory of a device, or what the container that this runs in may take of it."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *container_limits()])


def container_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = _OWN_GROUPS) -> list[int]:
    """The memory limits of the control groups that this process is in, in bytes.

    A group's limit holds for the groups inside it, so those further out count too. Version 2 has
    `memory.max`, version 1 `memory/**/memory.limit_in_bytes` (Linux, *Control Group v2* and
    *Memory Resource Controller*).
    """
    limits = []
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            file = folder / name
            text = file.read_text().strip() if file.exists() else "max"
            limits += [int(text)] if text.isdigit() else []
            if folder == top:
                break
    return limits


def resident_bytes(device: str) -> int:
    """What is in use now: of a GPU by everybody, of the main memory at most by this process."""
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)
