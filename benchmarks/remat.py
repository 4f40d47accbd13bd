"""Extra compute of online eviction policies and of the planner, over one run of known graphs.

training chain    forward values, and gradients that read them in the opposite order
training U-Net    with skips; sizes halve and costs stay with each level down
transformer       blocks of norms, projections, attention and a feed-forward part, with gradients
layered           random layers with edges that skip some, the kind that policies find hard

Budgets are shares of the peak without rematerialisation. A policy has the better of it: its
memory is the sum of live bytes, without fragmentation; the planner's recipe is packed and replayed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import TypeAlias

from benchmarks.measure import Command
from tgbench.base.errors import BudgetError
from tgbench.commands.progress import note, say, table
from tgbench.memory.remat import (
    POLICIES,
    Rematerialisation,
    Schedule,
    Value,
    least_bytes,
    rematerialise,
    replay,
    simulate,
)
from tgbench.memory.remat.tape import record

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
        extra: of the planner's recipe; None where it found none.
        needed_share: where it found none, the share of the peak that it found to work.
        height: of the packed recipe over the budget.
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
    stages: int | None = None
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
    recipe = found.recipe
    wrong = replay(recipe, row.budget_bytes)
    assert not wrong, f"{row.graph} at {row.share}: {wrong[0]}"
    return Row(
        **{
            **vars(row),
            "extra": recipe.extra,
            "height": recipe.height_bytes / row.budget_bytes,
            "peak": recipe.peak_bytes / row.budget_bytes,
            "computations": len(recipe.sequence),
            "stages": len(recipe.stages),
            "steps": found.steps,
            "cpu_s": round(cpu_s, 2),
        }
    )


def percent(extra: float | None) -> str:
    return "oom" if extra is None else f"{extra:.2%}"


def cells(row: Row) -> list[str]:
    found = [f"{row.graph} at {row.share:.0%}"]
    if not row.possible:
        return [*found, *("–" for p in POLICIES.values() if p.online), "impossible", "–", "–"]
    height = "–" if row.height is None else f"{row.height:.3f}"
    return [*found, *map(percent, row.online.values()), percent(row.extra), height, f"{row.cpu_s}"]


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
    made.write({"rows": [asdict(row) for row in rows]}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
