"""Peaks of live bytes, in the order of the graph and in the one that a search finds.

decoders     18 layers of a Gemma 3 with everything computed once: a chain of blocks
U-Nets       skips, and wide values on the side
inception    modules of branches, one behind the other
random       wide graphs without any structure; nothing is known of their best order
chain        a long one, with a detour in every link

Bytes are those of the graph's own values, rounded up to 64; nothing is retained.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Command
from tgbench.base.words import format_bytes
from tgbench.commands.progress import note, say, table
from tgbench.graph import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.memory.placement import aligned
from tgbench.memory.schedule import lowest_peak
from tgbench.memory.storage import ScheduledGraph
from tgbench.sources.models import gemma3

GEMMA = {
    "model_type": "gemma3_text", "vocab_size": 512, "hidden_size": 640,
    "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
    "max_position_embeddings": 2048,
}  # fmt: skip


def column(x: Node, size: int, value: int) -> Node:
    """A vector that no kernel can make in place."""
    return ops.concat([x, x.builder.constant(np.full(size - x.shape[0], value, "float32"))], 0)


def decoder() -> Graph:
    return gemma3(GEMMA, 512)


def u_net(depth: int = 8) -> Graph:
    g = GraphBuilder()
    value = column(g.input("x", (1,)), 1 << 14, 0)
    skips, sides = [], []
    for level in range(depth):
        sides.append(column(value, 1 << 15, level))
        skips.append(value)
        value = ops.max_(value.reshape(-1, 2), 1)
    totals = [ops.sum_(side, 0, keepdims=True) for side in sides]
    for skip in reversed(skips):
        value = ops.concat([value, value], 0) * skip
    g.output("y", value)
    g.output("z", ops.concat(totals, 0))
    return g.build()


def inception(modules: int = 20, branches: int = 6) -> Graph:
    g, rng = GraphBuilder(), random.Random(0)
    x = g.input("x", (64,))
    for _ in range(modules):
        wide = [column(x, 256 * rng.randint(1, 8), i) for i in range(branches)]
        ends = [ops.max_(value.reshape(-1, 64), 0) for value in wide]
        x = ops.max_(ops.concat(ends, 0).reshape(-1, 64), 0)
    g.output("y", x)
    return g.build()


def wide(count: int, width: int, fan: int, seed: int = 0) -> Graph:
    """Joins of random earlier values, sizes from 64 bytes to 4 KiB."""
    g, rng = GraphBuilder(), random.Random(seed)
    made = [g.input("x", (1,))]

    def join(parents: Sequence[Node]) -> Node:
        narrow = ops.concat([parent[:1] for parent in dict.fromkeys(parents)], 0)
        return column(narrow, 16 * rng.choice([1, 2, 4, 8, 16, 64]), len(g.nodes))

    for _ in range(count):
        made.append(join([rng.choice(made[-width:]) for _ in range(rng.randint(1, fan))]))
    read = {node.inputs[0] for node in g.nodes if node.op == "slice"}
    ends = [node for node in made if node not in read]
    while len(ends) > 1:
        ends.append(join([ends.pop(rng.randrange(len(ends))) for _ in range(2)]))
    g.output("y", ends[0])
    return g.build()


def chain(links: int) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (64,))
    for i in range(links):
        sides = [column(x, 256, 2 * i), column(x, 512, 2 * i + 1)]
        x = ops.max_(
            ops.concat([ops.max_(s.reshape(-1, 64), 0) for s in sides], 0).reshape(4, 32), 0
        )
        x = ops.concat([x, x], 0)
    g.output("y", x)
    return g.build()


CASES: dict[str, Callable[[], Graph]] = {
    "gemma, 18 layers": decoder,
    "u-net, 8 levels": u_net,
    "inception, 20 modules": inception,
    "random, 250 joins": lambda: wide(250, 1000, 3),
    "random, 250 joins of the last 40": lambda: wide(250, 40, 3),
    "random, 500 joins": lambda: wide(500, 1000, 2),
    "chain, 2,000 links": lambda: chain(2000),
}
QUICK = ("u-net, 8 levels", "inception, 20 modules")


def measure(graph: Graph, max_steps: int) -> dict[str, Any]:
    """One search: what it found, and its time on the processor."""
    scheduled = ScheduledGraph.of(graph)
    sizes = {node: aligned(node.type.size_bytes) for node in scheduled.stored}
    began = time.process_time()
    found = lowest_peak(graph, sizes, max_steps=max_steps)
    return {
        "nodes": len(graph.nodes),
        "executable": len(scheduled.schedule),
        "given_bytes": found.given_bytes,
        "peak_bytes": found.peak_bytes,
        "bound_bytes": found.bound_bytes,
        "stop": found.stop,
        "steps": found.steps,
        "cpu_s": round(time.process_time() - began, 3),
    }


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    sizes = [format_bytes(found[f"{key}_bytes"]) for key in ("given", "peak", "bound")]
    return [name, str(found["executable"]), *sizes, found["stop"], f"{found['cpu_s']:.2f}"]


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("schedule", __doc__)
    command.add_argument("--steps", type=int, default=5_000_000, help="computations to try")
    options, record = command.begin(argv)
    results = {}
    for name in QUICK if options.quick else CASES:
        note(name)
        results[name] = measure(CASES[name](), options.steps)
    header = ["graph", "nodes", "given", "found", "bound", "stop", "CPU s"]
    say(table(header, [row(name, found) for name, found in results.items()]))
    record.write({"cases": results}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
