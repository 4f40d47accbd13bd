"""What an import gives: a graph, its weights by name, and what was decided on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tgbench.base.words import format_bytes
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import OPS

MOST_NAMED = 12  # inputs, outputs or states in words


@dataclass(frozen=True)
class Imported:
    """A graph with the weights of the module that it was made of.

    Fields:
        graph: inputs, outputs, parameters and states under the module's names.
        weights: by parameter name, tied ones once; sessions read them where they lie.
        specialised: inputs that became constants of the graph, and their values.
        unused: inputs that no output depends on; the graph does not have them.
        shared: whether the weights are the module's own tensors; sessions then watch them.
    """

    graph: Graph
    weights: Mapping[str, torch.Tensor]
    specialised: Mapping[str, Any]
    unused: tuple[str, ...] = ()
    shared: bool = False

    @property
    def parameter_bytes(self) -> int:
        return sum(w.numel() * w.element_size() for w in self.weights.values())

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say, as pairs of words; weights are counted, never printed."""
        graph = self.graph
        ops = Counter(node.op for node in graph.nodes if not node.is_leaf)
        fused = [f"{count} {op}" for op, count in ops.most_common() if OPS[op].decompose]
        return [
            ("nodes", f"{len(graph)}, {ops.total()} of them computed"),
            ("parameters", f"{len(self.weights)}, {format_bytes(self.parameter_bytes)}"),
            ("fused ops", ", ".join(fused) or "none found"),
            *_typed("input", graph.inputs),
            *_typed("output", graph.outputs),
            *_typed("state", graph.states),
            *((f"fixed {name}", _brief(value)) for name, value in self.specialised.items()),
            *((f"unused {name}", "no output depends on it") for name in self.unused),
        ]

    def __str__(self) -> str:
        lines = (f"{what}: {told}" for what, told in self.rows())
        return "\n".join(["imported module", *lines])

    __repr__ = __str__


def _typed(what: str, nodes: Mapping[str, Node]) -> list[tuple[str, str]]:
    """A row each; of many, as caches of a deep model are, how many there are."""
    rows = [(f"{what} {name}", str(node.type)) for name, node in nodes.items()]
    rest = len(rows) - MOST_NAMED
    return [*rows[:MOST_NAMED], (f"{what}s", f"{rest} more")] if rest > 0 else rows


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')}{list(value.shape)} tensor"
    return repr(value)
