"""What states begin with: 0, or what a `where` puts in their place until they are written once.

where(total.is_written, total, first)    total.is_written ← True, with every run
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tgbench.graph.graph import Graph, Node


def flag_named(state: str) -> str:
    """The name of the state that tells whether one that does not begin at 0 was written."""
    return f"{state}.is_written"


def flag_of(graph: Graph, state: str) -> Node | None:
    """That state; None for one that begins at 0."""
    return graph.states.get(flag_named(state))


def first_value(graph: Graph, state: str) -> NDArray[Any] | None:
    """What stands for a state until it is written; None for one that begins at 0."""
    flag, node = flag_of(graph, state), graph.states[state]
    if flag is None:
        return None
    for reader in graph.consumers[flag]:
        if reader.op == "where" and reader.inputs[:2] == (flag, node):
            data = reader.inputs[2].attrs.get("data")
            return None if data is None else data.array
    return None
