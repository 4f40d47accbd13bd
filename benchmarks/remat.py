"""Extra compute of online eviction policies and of the planner, over one run of known graphs;
and the least memory of sessions that compute some nodes again in a run.

training chain    forward values, and gradients that read them in the opposite order
training U-Net    with skips; sizes halve and costs stay with each level down
transformer       blocks of norms, projections, attention and a feed-forward part, with gradients
layered           random layers with edges that skip some, the kind that policies find hard

Budgets are shares of the peak without rematerialisation, and bound the bytes that are live at once.
How high the planner's computations then pack, each with bytes of its own, is a column.

    U-Net of a signal    half as long and twice as deep at each level, which keeps its bytes; sums
    U-Net of an image    half as long and wide and twice as deep; concatenations
    residual             blocks, and a sum with what came before all of them, for more resolution
    dense                every layer reads all before it
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import TypeAlias

import numpy as np

from benchmarks.measure import Command
from tgbench import ops
from tgbench.base.errors import BudgetError
from tgbench.commands.progress import note, say, table
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.memory.packing import Buffer, Problem, pack
from tgbench.memory.remat import (
    POLICIES,
    Rematerialisation,
    Schedule,
    Tape,
    Value,
    least_bytes,
    rematerialise,
    simulate,
)
from tgbench.memory.remat.tape import record
from tgbench.session.session import GraphSession

UNIT = 4096  # bytes
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
GIVEN_UP = 20.0  # times the least cost


# --- graphs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Op:
    """A forward value before its schedule is made: cost in nanoseconds, size in units."""

    cost_ns: float
    size: int
    inputs: tuple[int, ...] = ()


def training(ops: Sequence[Op]) -> Schedule:
    """Forward, and for each value, backwards, what it costs twice as much to differentiate.

    A gradient reads the value, its inputs and the gradients of all its readers.
    """
    readers: list[list[int]] = [[] for _ in ops]
    for position, op in enumerate(ops):
        for read in op.inputs:
            readers[read].append(position)
    last = 2 * len(ops) - 1
    values = [Value(f"v{i}", op.cost_ns, UNIT * op.size, op.inputs) for i, op in enumerate(ops)]
    for i in reversed(range(len(ops))):
        reads = {i, *ops[i].inputs, *(last - reader for reader in readers[i])}
        inputs = tuple(sorted(reads))
        grown = Value(
            f"g{i}", 2 * ops[i].cost_ns, UNIT * ops[i].size, inputs, output=not ops[i].inputs
        )
        values.append(grown)
    return Schedule(tuple(values))


def chain(length: int) -> Schedule:
    return training([Op(100, 16, (i - 1,) if i else ()) for i in range(length)])


def unet(depth: int, convolutions: int = 2) -> Schedule:
    """An encoder, a decoder, and a skip from each level of one to the same level of the other."""
    ops: list[Op] = []

    def add(cost_ns: float, level: int, *inputs: int) -> int:
        ops.append(Op(cost_ns, 1 << (depth - level), inputs))
        return len(ops) - 1

    at = add(100, 0)
    skips = []
    for level in range(depth):
        for _ in range(convolutions):
            at = add(100, level, at)
        skips.append(at)
        at = add(5, level + 1, at)
    for _ in range(convolutions):
        at = add(100, depth, at)
    for level in reversed(range(depth)):
        at = add(20, level, at)
        at = add(200, level, at, skips[level])
        for _ in range(convolutions - 1):
            at = add(100, level, at)
    return training(ops)


def transformer(blocks: int) -> Schedule:
    """Residual blocks: scores are 4 times as large as a row of the model, as is the middle."""
    ops = [Op(10, 4)]

    def add(cost_ns: float, size: int, *inputs: int) -> int:
        ops.append(Op(cost_ns, size, inputs))
        return len(ops) - 1

    at = 0
    for _ in range(blocks):
        norm = add(5, 4, at)
        query, key, value = (add(50, 4, norm) for _ in range(3))
        weights = add(10, 16, add(60, 16, query, key))
        at = add(2, 4, at, add(50, 4, add(60, 4, weights, value)))
        middle = add(10, 16, add(200, 16, add(5, 4, at)))
        at = add(2, 4, at, add(200, 4, middle))
    return training(ops)


def layered(count: int, edges: int, seed: int) -> Schedule:
    """Layers of random width up to the root of the count; edges skip layers now and then.

    Source: the sizes of the random layered graphs of Bartan et al., "Moccasin" (2023).
    """
    random, width = Random(seed), max(2, int(count**0.5))
    inputs: list[set[int]] = []
    layers: list[list[int]] = []
    while len(inputs) < count:
        size = min(random.randint(max(1, width // 2), width), count - len(inputs))
        first = len(inputs)
        inputs += [{random.choice(layers[-1])} if layers else set() for _ in range(size)]
        layers.append(list(range(first, first + size)))
    level = {i: number for number, layer in enumerate(layers) for i in layer}
    missing = edges - sum(map(len, inputs))
    while missing > 0:
        reader = random.randrange(len(layers[0]), count)
        back = min(level[reader], 1 + int(random.expovariate(0.7)))
        read = random.choice(layers[level[reader] - back])
        missing -= read not in inputs[reader]
        inputs[reader].add(read)
    return Schedule(
        tuple(
            Value(
                f"v{i}",
                random.randint(1, 100),
                UNIT * random.randint(1, 100),
                tuple(sorted(reads)),
                output=level[i] == len(layers) - 1,
            )
            for i, reads in enumerate(inputs)
        )
    )


GRAPHS: Mapping[str, Callable[[], Schedule]] = {
    "training chain, 50": partial(chain, 50),
    "training U-Net, 3 levels": partial(unet, 3),
    "training U-Net, 5 levels": partial(unet, 5),
    "transformer, 6 blocks": partial(transformer, 6),
    "layered, 100 values": partial(layered, 100, 236, 0),
    "layered, 250 values": partial(layered, 250, 944, 1),
    "layered, 1,000 values": partial(layered, 1000, 5875, 1),
}
QUICK = {"training chain, 8": partial(chain, 8)}


# --- rows -----------------------------------------------------------------------------------------

Extras: TypeAlias = dict[str, float | None]  # share of extra time; None when out of memory


@dataclass(frozen=True)
class Row:
    """One graph at one budget.

    Fields:
        share: of the peak without rematerialisation.
        possible: the budget is not below what some computation needs.
        online: extra compute of each online policy, by live bytes.
        extra: of the planner's tape; None where it found none.
        needed_share: where it found none, the share of the peak that it found to work.
        height: of the packed tape over the budget.
        peak: most live bytes over the budget.
        cpu_s: processor seconds of the planner.
    """

    graph: str
    values: int
    share: float
    budget_bytes: int
    possible: bool
    online: Extras
    extra: float | None = None
    needed_share: float | None = None
    height: float | None = None
    peak: float | None = None
    computations: int | None = None
    steps: int | None = None
    cpu_s: float | None = None


def online(schedule: Schedule, budget_bytes: int) -> Extras:
    """What each online policy costs beyond the least."""
    limit = GIVEN_UP * schedule.least_cost_ns
    found: Extras = {}
    for name, policy in POLICIES.items():
        if policy.online:
            sequence = simulate(schedule, budget_bytes, policy, limit)
            found[name] = (
                schedule.cost_ns(sequence) / schedule.least_cost_ns - 1 if sequence else None
            )
    return found


def row_of(name: str, schedule: Schedule, share: float, max_steps: int) -> Row:
    peak = record(schedule, schedule.once).peak_bytes
    budget = int(share * peak)
    possible = least_bytes(schedule).size_bytes <= budget
    policies = online(schedule, budget) if possible else {}
    row = Row(name, len(schedule.once), share, budget, possible, policies)
    began = time.process_time()
    try:
        found = rematerialise(schedule, budget, max_steps=max_steps)
    except BudgetError as error:
        spent = time.process_time() - began
        return Row(
            **{**vars(row), "needed_share": error.needed_bytes / peak, "cpu_s": round(spent, 2)}
        )
    return _filled(row, found, time.process_time() - began)


def _filled(row: Row, found: Rematerialisation, cpu_s: float) -> Row:
    tape = found.tape
    return Row(
        **{
            **vars(row),
            "extra": tape.extra,
            "height": packed_bytes(tape) / row.budget_bytes,
            "peak": tape.peak_bytes / row.budget_bytes,
            "computations": len(tape.sequence),
            "steps": found.steps,
            "cpu_s": round(cpu_s, 2),
        }
    )


def packed_bytes(tape: Tape) -> int:
    """How high the results pack, each where it is live."""
    buffers = (
        Buffer(f"{step}", size, step, stop)
        for step, (size, stop) in enumerate(
            zip(tape.size.tolist(), tape.stop.tolist(), strict=True)
        )
    )
    return pack(Problem(tuple(buffers), alignment=tape.schedule.alignment)).height_bytes


def percent(extra: float | None) -> str:
    return "oom" if extra is None else f"{extra:.2%}"


def cells(row: Row) -> list[str]:
    found = [f"{row.graph} at {row.share:.0%}"]
    if not row.possible:
        return [*found, *("–" for p in POLICIES.values() if p.online), "impossible", "–", "–"]
    height = "–" if row.height is None else f"{row.height:.3f}"
    return [*found, *map(percent, row.online.values()), percent(row.extra), height, f"{row.cpu_s}"]


# --- sessions -------------------------------------------------------------------------------------


def convolved(g: GraphBuilder, x: Node, channels: int, kernel: int = 3, stride: int = 1) -> Node:
    shape = (channels, x.shape[1], *[kernel] * (x.rank - 2))
    weight = g.parameter(f"weight{len(g.nodes)}", shape)
    return ops.conv(x, weight, padding=(kernel // 2,) * (x.rank - 2), stride=stride)


def signal_unet(levels: int = 5, wide: int = 8, length: int = 2048) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (1, wide, length))
    skips = []
    for _ in range(levels):
        skips.append(ops.relu(convolved(g, x, x.shape[1])))
        x = convolved(g, skips[-1], 2 * x.shape[1], stride=2)
    for skip in reversed(skips):
        x = ops.relu(convolved(g, x, x.shape[1]))
        x = x.reshape(1, skip.shape[1], skip.shape[2]) + skip
    g.output("y", convolved(g, x, 1))
    return g.build()


def image_unet(levels: int = 3, wide: int = 8, side: int = 64) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (1, 3, side, side))
    skips = []
    for level in range(levels):
        skips.append(ops.relu(convolved(g, x, wide << level)))
        x = convolved(g, skips[-1], wide << level, stride=2)
    for skip in reversed(skips):
        x = ops.concat([ops.upsample(x, size=skip.shape[2:]), skip], axis=1)
        x = ops.relu(convolved(g, x, skip.shape[1]))
    g.output("y", convolved(g, x, 1))
    return g.build()


def residual(blocks: int = 8, wide: int = 16, side: int = 48) -> Graph:
    g = GraphBuilder()
    x = head = convolved(g, g.input("x", (1, 3, side, side)), wide)
    for _ in range(blocks):
        x = x + convolved(g, ops.relu(convolved(g, x, wide)), wide)
    g.output("y", convolved(g, x + head, 12))
    return g.build()


def dense(layers: int = 6, wide: int = 8, side: int = 32) -> Graph:
    g = GraphBuilder()
    x = convolved(g, g.input("x", (1, 3, side, side)), 2 * wide)
    for _ in range(layers):
        x = ops.concat([x, ops.relu(convolved(g, x, wide))], axis=1)
    g.output("y", convolved(g, x, 1))
    return g.build()


NETS: Mapping[str, Callable[[], Graph]] = {
    "U-Net of a signal": signal_unet,
    "U-Net of an image": image_unet,
    "residual": residual,
    "dense": dense,
}
QUICK_NETS = {"residual": partial(residual, 2, 4, 8)}


@dataclass(frozen=True)
class Net:
    """One graph as a session runs it.

    Fields:
        once_bytes: the smallest arena in which every node is computed once.
        again_bytes: the smallest one that the error of a session names.
        bound_bytes: what some node takes with all it reads, and the inputs.
        steps, more: of a run in that arena; how many of them are repetitions.
        ms, roomy_ms: a run on a new input, the median; in it, and where everything is kept.
    """

    net: str
    once_bytes: int
    again_bytes: int
    bound_bytes: int
    steps: int
    more: int
    ms: float
    roomy_ms: float


def net_of(name: str, graph: Graph, runs: int) -> Net:
    rng = np.random.default_rng(0)
    weights = {
        n: rng.normal(0, 0.1, p.shape).astype("float32") for n, p in graph.parameters.items()
    }
    refused = _refused(GraphSession(graph, weights, memory=0, calibrate=False))
    tight = GraphSession(graph, weights, memory=refused.needed_bytes, calibrate=False)
    ms, roomy_ms = _ms(tight, runs), _ms(GraphSession(graph, weights, calibrate=False), runs)
    scheduled = tight.scheduled
    planner = tight.planning.planner(scheduled.once)
    try:
        planner.plan_once(planner.scenarios(tight.planning.classes), 0)
    except BudgetError as error:
        once = error.needed_bytes
    steps = len(scheduled.schedule)
    more = steps - len(scheduled.once.schedule)
    return Net(
        name, once, refused.needed_bytes, refused.lower_bound_bytes, steps, more, ms, roomy_ms
    )


def _refused(session: GraphSession) -> BudgetError:
    try:
        session.run({"x": np.zeros(session.graph.inputs["x"].shape, np.float32)})
    except BudgetError as error:
        return error
    raise AssertionError("nothing fits in no memory")


def _ms(session: GraphSession, runs: int) -> float:
    """The median run on another input throughout, the first apart."""
    rng, shape, times = np.random.default_rng(1), session.graph.inputs["x"].shape, []
    for _ in range(runs + 1):
        x = rng.normal(size=shape).astype(np.float32)
        began = time.perf_counter()
        session.run({"x": x})
        times.append(time.perf_counter() - began)
    return round(1e3 * float(np.median(times[1:])), 3)


def net_cells(net: Net) -> list[str]:
    return [
        net.net,
        f"{net.once_bytes:,}",
        f"{net.again_bytes:,}",
        f"{1 - net.again_bytes / net.once_bytes:.0%}",
        f"{net.bound_bytes:,}",
        f"{net.more} of {net.steps}",
        f"{net.ms / net.roomy_ms:.2f} ×",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("remat", __doc__)
    command.add_argument("--steps", type=int, default=300, help="of the search, for each budget")
    command.add_argument("--only", default="", help="graphs whose name contains this")
    command.add_argument("--shares", default="", help="of the peak, as 0.9,0.7")
    options, made = command.begin(argv)
    shares = tuple(map(float, options.shares.split(","))) if options.shares else SHARES
    steps = 10 if options.quick else options.steps
    rows: list[Row] = []
    for name, graph in (QUICK if options.quick else GRAPHS).items():
        if options.only in name:
            schedule = graph()
            for share in shares:
                note(f"{name} at {share:.0%}")
                rows.append(row_of(name, schedule, share, steps))
    policies = [name for name, policy in POLICIES.items() if policy.online]
    header = ["extra compute", *policies, "planner", "height ÷ budget", "cpu s"]
    say("\n" + table(header, [cells(row) for row in rows]))
    nets = [
        net_of(name, make(), 3 if options.quick else 21)
        for name, make in (QUICK_NETS if options.quick else NETS).items()
        if options.only in name
    ]
    header = ["arena, bytes", "each once", "again", "less", "bound", "repeats", "time"]
    say("\n" + table(header, [net_cells(net) for net in nets]))
    data = {"rows": [asdict(row) for row in rows], "nets": [asdict(net) for net in nets]}
    made.write(data, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
