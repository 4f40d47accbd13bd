"""Values for a graph where none are given: seeded, and of a size that models are used to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.costs.probe import drawn
from tgbench.graph.graph import Graph
from tgbench.graph.op_table import FLOATS, TensorType
from tgbench.session.arguments import index_limits
from tgbench.session.check.pairs import as_array

Array = np.ndarray[Any, Any]
SEED = 0
ROWS = 2  # of every table, or less where it has less


def random_inputs(graph: Graph, count: int) -> list[dict[str, Array]]:
    """Normal numbers, small ids, masks that are mostly open."""
    rng, limits = np.random.default_rng(SEED), index_limits(graph)
    tables = {
        name: TensorType((min(limits.get(name, ROWS), ROWS),), "int64") for name in graph.inputs
    }
    return [
        {name: as_array(drawn(node.type, tables[name], rng)) for name, node in graph.inputs.items()}
        for _ in range(count)
    ]


def random_weights(graph: Graph) -> dict[str, torch.Tensor]:
    """Small normal weights: times do not depend on their values, as long as none is denormal."""
    generator = torch.Generator().manual_seed(SEED)
    found = {}
    for name, node in graph.parameters.items():
        if node.dtype in FLOATS:
            values = torch.empty(node.shape, dtype=torch.float32).normal_(
                0, 0.02, generator=generator
            )
        else:
            values = torch.zeros(node.shape)
        found[name] = values.to(TORCH_DTYPES[node.dtype])
    return found
