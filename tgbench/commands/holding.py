"""Graphs that no memory here holds, refused before anything of them is made."""

from __future__ import annotations

from tgbench.base.errors import InputError
from tgbench.base.words import format_bytes
from tgbench.graph.graph import Graph
from tgbench.memory.estimate import estimate_memory, total_bytes


def least_bytes(graph: Graph) -> int:
    """What no run of everything does without: weights, and the largest value.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); g.output("y", g.input("x", (2,)) * 2.0)
    >>> least_bytes(g.build())
    8
    """
    values = (node.type.size_bytes for node in graph.nodes if not node.is_leaf)
    return int(estimate_memory(graph).parameter_bytes) + max(values, default=0)


def require_memory(needed_bytes: int, device: str, mend: str) -> None:
    """Raises InputError for more than all memory of the processor.

    A GPU says itself what it does not have.
    """
    if device == "cpu" and needed_bytes > (there := total_bytes(device)):
        raise InputError(
            f"this takes {format_bytes(needed_bytes)}, and there are {format_bytes(there)} of "
            f"memory; {mend}"
        )
