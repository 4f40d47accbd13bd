"""Each kernel of one op beside the others, at the shapes of Gemma 3 270M and MiniLM on the CPU.

    python -m tgbench.bench.kernels [--rounds 15] [--out docs/results/kernels.json]

Kernels take turns, a burst each, in every round; a ratio is the median over rounds of the quotient
inside one round, so that a machine that slows down slows both. Weights rotate through more bytes
than the last cache holds, as they do in a model. Prints a table, and writes the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tgbench import ops
from tgbench.graph import GraphBuilder, Node
from tgbench.kernels import Kernel, Site, View, candidates, dense
from tgbench.kernels.registry import Host
from tgbench.regions import Box
from tgbench.rules import Rules

CACHE_BYTES = 128_000_000  # weights rotate through at least this much
BURST_NS = 3_000_000

Run = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One kernel at one shape.

    Fields:
        case: what is computed.
        kernel: its name.
        median_us: of one call.
        ratio: of its time to that of the first torch kernel in the order of the cost model.
        modelled_us: what the cost model says.
        chosen: whether the cost model puts it first.
    """

    case: str
    kernel: str
    median_us: float
    ratio: float
    modelled_us: float
    chosen: bool


def linear(g: GraphBuilder, rows: int, n: int, k: int, bias: bool = False) -> Node:
    vector = g.parameter("b", (n,)) if bias else None
    return ops.linear(g.input("x", (rows, k)), g.parameter("w", (n, k)), vector)


def gated(g: GraphBuilder, rows: int) -> Node:
    gate, up = g.parameter("w", (2048, 640)), g.parameter("u", (2048, 640))
    return ops.gated_linear(g.input("x", (rows, 640)), gate, up, "gelu_tanh")


def attend(g: GraphBuilder, heads: int, shared: int, depth: int, rows: int, keys: int) -> Node:
    q = g.input("q", (1, rows, heads, depth)).permute(0, 2, 1, 3)
    k = g.input("k", (1, keys, shared, depth)).permute(0, 2, 1, 3)
    v = g.input("v", (1, keys, shared, depth)).permute(0, 2, 1, 3)
    return ops.attention(q, k, v)


def norm(g: GraphBuilder, *shape: int) -> Node:
    return ops.rms_norm(g.input("x", shape), g.parameter("w", shape[-1:]))


def layer_norm(g: GraphBuilder, *shape: int) -> Node:
    weight, bias = g.parameter("w", shape[-1:]), g.parameter("b", shape[-1:])
    return ops.layer_norm(g.input("x", shape), weight, bias)


def rope(g: GraphBuilder, rows: int) -> Node:
    table = [g.input(name, (rows, 1, 256)) for name in ("cos", "sin")]
    return ops.rope(g.input("x", (1, rows, 4, 256)), *table)


CASES: dict[str, Callable[[GraphBuilder], Node]] = {
    **{
        f"linear {rows} × {n} × {k}": lambda g, r=rows, n=n, k=k: linear(g, r, n, k)
        for n, k in ((1024, 640), (256, 640), (640, 1024), (640, 2048))
        for rows in (1, 4)
    },
    **{f"head {rows} × 262144 × 640": lambda g, r=rows: linear(g, r, 262_144, 640) for rows in (1, 4)},
    **{f"linear {rows} × 2048 × 640": lambda g, r=rows: linear(g, r, 2048, 640) for rows in (8, 16, 64)},
    "linear 1 × 1536 × 384, bias": lambda g: linear(g, 1, 1536, 384, True),
    **{f"gated {rows} × 2048 × 640": lambda g, r=rows: gated(g, r) for rows in (1, 4, 16)},
    **{
        f"attention 1 row, {keys} keys": lambda g, s=keys: attend(g, 4, 1, 256, 1, s)
        for keys in (130, 512)
    },
    "attention 4 rows, 130 keys": lambda g: attend(g, 4, 1, 256, 4, 130),
    "attention 1 row, 130 keys, 12 heads of 32": lambda g: attend(g, 12, 12, 32, 1, 130),
    "rms_norm 1 × 640": lambda g: norm(g, 1, 640),
    "rms_norm 4 × 256": lambda g: norm(g, 1, 1, 4, 256),
    "rms_norm 16 × 640": lambda g: norm(g, 16, 640),
    "layer_norm 1 × 384": lambda g: layer_norm(g, 1, 384),
    "layer_norm 16 × 384": lambda g: layer_norm(g, 16, 384),
    "rope 1 row": lambda g: rope(g, 1),
    "rope 16 rows": lambda g: rope(g, 16),
    "softmax 4 × 130": lambda g: ops.softmax(g.input("x", (4, 130))),
    "add 1 × 640": lambda g: g.input("x", (1, 640)) + g.input("y", (1, 640)),
    "add 16 × 640": lambda g: g.input("x", (16, 640)) + g.input("y", (16, 640)),
    "mul 1 × 640 by a number": lambda g: g.input("x", (1, 640)) * g.parameter("s", ()),
    "gelu 1 × 1536": lambda g: ops.gelu(g.input("x", (1, 1536))),
    "gelu_tanh 1 × 2048": lambda g: ops.gelu(g.input("x", (1, 2048)), "tanh"),
    "silu 1 × 2048": lambda g: ops.silu(g.input("x", (1, 2048))),
    "embedding 1 of 262144 × 640": lambda g: ops.embedding(
        g.parameter("w", (262_144, 640)), g.input("ids", (1,), "int64")
    ),
}  # fmt: skip


# --- binding ---------------------------------------------------------------------------------------


class Memory:
    """Tensors behind views: one buffer per input and copy, the output, and scratch."""

    def __init__(self) -> None:
        self.buffers: dict[Any, torch.Tensor] = {}

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, Host):
            return self.argument(argument.view).numpy()
        if not isinstance(argument, View):
            return argument
        key = argument.buffer, argument.dtype
        shape: Any = (argument.shape, argument.strides, argument.offset)
        return self.buffers[key].as_strided(*shape)

    def view(self, key: Any, shape: Sequence[Any], dtype: str) -> View:
        """A row-major view of a new buffer; floats are random, integers 0."""
        plain = dense(shape, dtype)
        size, kind = max(plain.elements, 1), getattr(torch, dtype)
        if (key, dtype) not in self.buffers:
            is_float = kind.is_floating_point
            self.buffers[key, dtype] = (
                torch.randn(size, dtype=kind) if is_float else torch.zeros(size, dtype=kind)
            )
        return View(key, dtype, plain.shape, plain.strides, 0)


def leaf_of(node: Node) -> tuple[Node, tuple[int, ...] | None]:
    """The leaf that a permuted input is a view of, and the permutation."""
    if node.is_leaf:
        return node, None
    return node.inputs[0], tuple(node.attrs["axes"])


def site_of(node: Node, memory: Memory, copy: int) -> Site:
    """The whole node, its weights taken from the given copy."""
    ins = []
    for parent in node.inputs:
        leaf, axes = leaf_of(parent)
        key = (leaf.name, copy if leaf.op == "parameter" else 0)
        view = memory.view(key, leaf.shape, leaf.dtype)
        ins.append(view if axes is None else view.permute(*axes))
    box = Box.full(node.shape)
    if node.op == "attention":  # stored as [batch, rows, heads, depth]
        batch, heads, rows, depth = node.shape
        out = memory.view("out", (batch, rows, heads, depth), node.dtype).permute(0, 2, 1, 3)
    else:
        out = memory.view("out", node.shape, node.dtype)
    return Site(node.call, box, Rules().reads(node.call, box), out, tuple(ins), "cpu")


def copies_of(node: Node) -> int:
    size = sum(parent.type.size_bytes for parent in node.inputs if parent.op == "parameter")
    streams = node.op in ("linear", "gated_linear")
    return max(1, min(64, CACHE_BYTES // size)) if streams else 1


def runs_of(node: Node) -> dict[str, list[Run]]:
    """By kernel, in the order of the cost model: the bound calls, one for each copy of the weights."""
    memory = Memory()
    sites = [site_of(node, memory, copy) for copy in range(copies_of(node))]
    return {
        kernel.name: [bound(kernel, site, memory) for site in sites]
        for kernel in candidates(sites[0])
    }


def bound(kernel: Kernel, site: Site, memory: Memory) -> Run:
    scratch = tuple(
        memory.view(("scratch", kernel.name, i), shape, dtype)
        for i, (shape, dtype) in enumerate(kernel.scratch(site))
    )
    function, arguments = kernel.bind(site, scratch)
    values = tuple(map(memory.argument, arguments))
    return lambda: function(*values)


# --- measuring -------------------------------------------------------------------------------------


def burst(runs: list[Run], repeats: int) -> float:
    """Nanoseconds a call."""
    start = time.perf_counter_ns()
    for _ in range(repeats):
        for run in runs:
            run()
    return (time.perf_counter_ns() - start) / (repeats * len(runs))


def measure(name: str, rounds: int) -> list[Row]:
    g = GraphBuilder()
    node = CASES[name](g)
    runs = runs_of(node)
    repeats = {k: max(1, int(BURST_NS / (burst(r, 1) * len(r)))) for k, r in runs.items()}
    times: dict[str, list[float]] = {kernel: [] for kernel in runs}
    for _ in range(rounds):
        for kernel, calls in runs.items():
            times[kernel].append(burst(calls, repeats[kernel]))
    base = next(kernel for kernel in runs if not kernel.endswith("_numba"))
    modelled = {
        k.name: k.cost_ns(site_of(node, Memory(), 0))
        for k in candidates(site_of(node, Memory(), 0))
    }
    rows = []
    for i, (kernel, samples) in enumerate(times.items()):
        ratio = statistics.median(a / b for a, b in zip(samples, times[base], strict=True))
        median = statistics.median(samples) / 1000
        rows.append(
            Row(
                name,
                kernel,
                round(median, 2),
                round(ratio, 3),
                round(modelled[kernel] / 1000, 2),
                i == 0,
            )
        )
    return rows


def print_rows(rows: list[Row]) -> None:
    for row in rows:
        mark = "→" if row.chosen else " "
        print(
            f"{mark} {row.case:42} {row.kernel:26} {row.median_us:10.2f} µs "
            f"{row.ratio:7.3f} × torch   model {row.modelled_us:10.2f} µs",
            flush=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("docs/results/kernels.json"))
    options = parser.parse_args()
    rows: list[Row] = []
    with torch.inference_mode():
        for name in CASES:
            if options.only in name:
                found = measure(name, options.rounds)
                print_rows(found)
                rows += found
    report = {
        "command": f"python -m tgbench.bench.kernels --rounds {options.rounds}",
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [asdict(row) for row in rows],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
