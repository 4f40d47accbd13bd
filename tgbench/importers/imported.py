"""What an import gives: a graph, its weights by name, and what was decided on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tgbench.graph import Graph


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

    def __str__(self) -> str:
        graph = self.graph
        size = sum(w.numel() * w.element_size() for w in self.weights.values())
        lines = [f"{sum(not n.is_leaf for n in graph.nodes)} ops, {len(self.weights)} weights, "
                 f"{size / 2**20:.1f} MiB"]  # fmt: skip
        lines += [f"input {name}: {node.type}" for name, node in graph.inputs.items()]
        lines += [f"output {name}: {node.type}" for name, node in graph.outputs.items()]
        lines += [f"state {name}: {node.type}" for name, node in graph.states.items()]
        lines += [f"specialised {name} = {_brief(v)}" for name, v in self.specialised.items()]
        lines += [f"unused {name}" for name in self.unused]
        return "\n".join(lines)


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')}{list(value.shape)} tensor"
    return repr(value)
