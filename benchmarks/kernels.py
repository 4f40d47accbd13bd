"""Each kernel of one op beside the others, at the shapes of Gemma 3 270M and MiniLM on the CPU.

    python -m benchmarks.kernels [--seconds 2]

Kernels take turns, one short burst each, so that a machine that slows down slows them all. The
lower quartile is the time of an undisturbed call, the mean is what the load of the moment made of
it: a kernel with two threads that wait for each other loses far more there. Weights rotate through
more bytes than the last cache holds, as they do in a model. Prints a table, and writes it as JSON.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.measure import Command
from tgbench.base.regions import Box
from tgbench.commands.progress import say
from tgbench.graph import ops
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.kernels import Kernel, Site, View, candidates, dense
from tgbench.kernels.registry import Host
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.rules import Rules

CACHE_BYTES = 128_000_000  # weights rotate through at least this much
BURST_NS = 50_000

Run = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One kernel at one shape.

    Fields:
        case: what is computed.
        kernel: its name.
        quartile_us, mean_us: of one call.
        ratio, mean_ratio: to those of the torch kernel with the best quartile.
        modelled_us: what the cost model says.
        chosen: whether the cost model puts it first.
    """

    case: str
    kernel: str
    quartile_us: float
    mean_us: float
    ratio: float
    mean_ratio: float
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
    "attention 1 row, 130 keys": lambda g: attend(g, 4, 1, 256, 1, 130),
    "attention 1 row, 512 keys": lambda g: attend(g, 4, 1, 256, 1, 512),
    "attention 4 rows, 130 keys": lambda g: attend(g, 4, 1, 256, 4, 130),
    "attention 16 rows, 130 keys": lambda g: attend(g, 4, 1, 256, 16, 130),
    "attention 1 row, 130 keys, 12 heads of 32": lambda g: attend(g, 12, 12, 32, 1, 130),
    "linear 1 × 1536 × 384, bias": lambda g: linear(g, 1, 1536, 384, True),
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
}
for _n, _k in ((256, 640), (1024, 640), (640, 1024), (2048, 640), (640, 2048), (262_144, 640)):
    for _rows in (1, 2, 4, 8, 16, 64) if (_n, _k) == (2048, 640) else (1, 4):
        CASES[f"linear {_rows} × {_n} × {_k}"] = partial(linear, rows=_rows, n=_n, k=_k)
for _rows in (1, 2, 4, 16):
    CASES[f"gated {_rows} × 2048 × 640"] = partial(gated, rows=_rows)
QUICK = ("attention 1 row, 130 keys", "layer_norm 1 × 384", "mul 1 × 640 by a number")


# --- binding -------------------------------------------------------------------------------------


class Memory:
    """Tensors behind views: one buffer per leaf and copy, the output, and scratch.

    A buffer is made when a call is bound to it: to ask what a call would cost takes no memory.
    """

    def __init__(self) -> None:
        self.sizes: dict[Any, int] = {}
        self.buffers: dict[Any, torch.Tensor] = {}

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, Host):
            return self.argument(argument.view).numpy()
        if not isinstance(argument, View):
            return argument
        shape: Any = (argument.shape, argument.strides, argument.offset)
        return self.buffer(argument.buffer, argument.dtype).as_strided(*shape)

    def buffer(self, key: Any, dtype: str) -> torch.Tensor:
        """Floats are random, integers 0."""
        if (key, dtype) not in self.buffers:
            size, kind = self.sizes[key, dtype], getattr(torch, dtype)
            make = torch.randn if kind.is_floating_point else torch.zeros
            self.buffers[key, dtype] = make(size, dtype=kind)
        return self.buffers[key, dtype]

    def view(self, key: Any, shape: Sequence[Any], dtype: str) -> View:
        """A row-major view of a whole buffer."""
        plain = dense(shape, dtype)
        self.sizes[key, dtype] = max(plain.elements, 1)
        return View(key, dtype, plain.shape, plain.strides, 0)


def scheduled_of(node: Node) -> ScheduledGraph:
    """Which leaves the inputs of the node are views of."""
    node.builder.output("y", node)
    return ScheduledGraph.of(node.builder.build())


def shown(node: Node, scheduled: ScheduledGraph, memory: Memory, copy: int) -> View:
    """An operand as it looks at its leaf; a weight at the given copy of it."""
    base, mapped = scheduled.base[node], scheduled.maps[node]
    whole = memory.view((base.name, copy if base.op == "parameter" else 0), base.shape, base.dtype)
    strides = tuple(0 if to is None else whole.strides[to[0]] * to[1] for to in mapped.dims)
    first = sum((a * b for a, b in zip(mapped.start, whole.strides, strict=True)), start=0)
    return replace(whole, shape=node.shape, strides=strides, offset=first)


def site_of(node: Node, scheduled: ScheduledGraph, memory: Memory, copy: int) -> Site:
    """The whole node, its weights taken from the given copy."""
    ins = tuple(shown(parent, scheduled, memory, copy) for parent in node.inputs)
    box = Box.full(node.shape)
    if node.op == "attention":  # stored as [batch, rows, heads, depth]
        batch, heads, rows, depth = node.shape
        out = memory.view("out", (batch, rows, heads, depth), node.dtype).permute(0, 2, 1, 3)
    else:
        out = memory.view("out", node.shape, node.dtype)
    return Site(node.call, box, Rules().reads(node.call, box), out, ins, "cpu")


def copies_of(node: Node) -> int:
    size = sum(parent.type.size_bytes for parent in node.inputs if parent.op == "parameter")
    streams = node.op in ("linear", "gated_linear")
    return max(1, min(64, CACHE_BYTES // size)) if streams else 1


def runs_of(node: Node, scheduled: ScheduledGraph) -> dict[str, list[Run]]:
    """By kernel, the modelled fastest first: bound calls, one for each copy of the weights."""
    memory = Memory()
    sites = [site_of(node, scheduled, memory, copy) for copy in range(copies_of(node))]
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


# --- measuring -----------------------------------------------------------------------------------


def burst(runs: list[Run], repeats: int) -> float:
    """Nanoseconds a call."""
    start = time.perf_counter_ns()
    for _ in range(repeats):
        for run in runs:
            run()
    return (time.perf_counter_ns() - start) / (repeats * len(runs))


def measure(name: str, seconds: float) -> list[Row]:
    node = CASES[name](GraphBuilder())
    scheduled = scheduled_of(node)
    runs = runs_of(node, scheduled)
    repeats = {k: max(1, int(BURST_NS / (burst(r, 2) * len(r)))) for k, r in runs.items()}
    times: dict[str, list[float]] = {kernel: [] for kernel in runs}
    for i, calls in enumerate(runs.values()):  # no kernel finds what another one left in the cache
        first = i * len(calls) // len(runs)
        calls[:] = calls[first:] + calls[:first]
    stop = time.monotonic() + seconds
    while time.monotonic() < stop or len(times[next(iter(runs))]) < 8:
        for kernel, calls in runs.items():
            for part in ([call] for call in calls[:8]) if len(calls) > 1 else (calls,):
                times[kernel].append(burst(part, repeats[kernel]))
        for calls in runs.values():
            calls[:] = calls[8:] + calls[:8]
    return rows_of(name, site_of(node, scheduled, Memory(), 0), times)


def rows_of(name: str, site: Site, times: dict[str, list[float]]) -> list[Row]:
    quartile = {kernel: statistics.quantiles(samples)[0] for kernel, samples in times.items()}
    mean = {kernel: statistics.fmean(samples) for kernel, samples in times.items()}
    base = min((k for k in times if not k.endswith("_numba")), key=lambda k: quartile[k])
    modelled = {kernel.name: kernel.cost_ns(site) for kernel in candidates(site)}
    return [
        Row(
            name,
            kernel,
            round(quartile[kernel] / 1000, 2),
            round(mean[kernel] / 1000, 2),
            round(quartile[kernel] / quartile[base], 3),
            round(mean[kernel] / mean[base], 3),
            round(modelled[kernel] / 1000, 2),
            kernel == next(iter(times)),
        )
        for kernel in times
    ]


def print_rows(rows: list[Row]) -> None:
    for row in rows:
        mark = "→" if row.chosen else " "
        say(
            f"{mark} {row.case:41} {row.kernel:25} {row.quartile_us:9.2f} µs, mean "
            f"{row.mean_us:9.2f} µs; {row.ratio:6.3f} and {row.mean_ratio:6.3f} × torch; "
            f"model {row.modelled_us:9.2f} µs"
        )


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("kernels", __doc__)
    command.add_argument("--seconds", type=float, default=2.0, help="for each case")
    command.add_argument("--only", default="", help="cases whose name contains this")
    options, record = command.begin(argv)
    seconds = 0.0 if options.quick else options.seconds
    rows: list[Row] = []
    with torch.inference_mode():
        for name in QUICK if options.quick else CASES:
            if options.only in name:
                found = measure(name, seconds)
                print_rows(found)
                rows += found
    record.write({"rows": [asdict(row) for row in rows]}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
