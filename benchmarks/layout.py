"""Time to lay a graph out, by its size: layers folded, and every node for itself.

random       edges to nodes at most 40 back, two a node
transformer  Gemma 3 of so many layers, as a session simplifies it

Times are of the process alone (CPU), the least of some repetitions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Command
from tgbench.commands.progress import say, table
from tgbench.graph.graph import Graph
from tgbench.graph.simplify import simplify
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_reduced
from tgbench.views.draw.folding import folded, unfolded
from tgbench.views.draw.layering import Ints, layout

SIZES, LAYERS = (1_000, 10_402, 100_000), (18, 240)
QUICK_SIZES, QUICK_LAYERS = (200,), (2,)
REPEATS = 3


def random_edges(count: int) -> Ints:
    """Two edges a node, from at most 40 nodes back."""
    rng = np.random.default_rng(0)
    back = rng.integers(1, 41, (count, 2))
    after = np.repeat(np.arange(count), 2)
    before = after - back.ravel()
    return np.stack([before, after], axis=1)[before >= 0]


def transformer(layers: int) -> Graph:
    config = gemma3_reduced() | {
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
    }
    return simplify(gemma3(config, tokens=64))


def least_ns(call: Callable[[], Any]) -> int:
    """The least CPU time of some repetitions."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time_ns()
        call()
        times.append(time.process_time_ns() - began)
    return min(times)


def results(sizes: Sequence[int], depths: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"random": [], "transformer": []}
    for count in sizes:
        edges = random_edges(count)
        found["random"].append(
            {"nodes": count, "edges": len(edges), "ns": least_ns(lambda: layout(count, edges))}  # noqa: B023
        )
    for layers in depths:
        graph = transformer(layers)
        once, every = folded(graph), unfolded(graph)
        found["transformer"].append(
            {
                "layers": layers, "nodes": len(graph), "folded_nodes": len(once),
                "fold_ns": least_ns(lambda: folded(graph)),  # noqa: B023
                "folded_ns": least_ns(lambda: layout(len(once), once.edges)),  # noqa: B023
                "unfolded_ns": least_ns(lambda: layout(len(every), every.edges)),  # noqa: B023
            }
        )  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options, record = Command("layout", __doc__).begin(argv)
    found = results(QUICK_SIZES, QUICK_LAYERS) if options.quick else results(SIZES, LAYERS)
    rows = [[str(r["nodes"]), f"{r['ns'] / 1e6:.1f} ms"] for r in found["random"]]
    rows += [
        [f"{r['nodes']} ({r['layers']} layers)", f"{r['unfolded_ns'] / 1e6:.1f} ms"]
        for r in found["transformer"]
    ]
    say(table(["nodes", "layout"], rows))
    record.write(found, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
