"""Offset packing: minimalloc's problems, look-alikes, and the buffers of layered networks.

    instances   a folder of minimalloc's CSV files, named NAME.CAPACITY.csv
    unseen      the same after their buffers were shrunk and grown at random inside a packing of
                them: lifetimes and sizes of the same kind, and a packing that is known to exist;
                tight ones, of which nearly every step is full, and loose ones, which keep as much
                free as the shrinking left
    cuts        rectangles of capacity × time cut into buffers: a perfect packing exists
    layered     activations of networks with residual connections and scratch memory
                ┌─ op ─ op ─ op ─┐        most live for a few steps, some until much later
                └── residual ────┘        sizes: multiples of powers of two, and odd ones

    trained     a pass forward and one backward through equal layers: activations wait for their
                gradients, so lifetimes nest
    scattered   buffers that begin anywhere, most of them small and short

Every solution is checked by `validate`. Times and limits are of the process's CPU, compilation
apart. CP-SAT (`NoOverlap2D`) runs beside it where the package `ortools` is installed.

minimalloc's own times are not measured here: 1.2 to 11 s for each of its eleven challenging
problems, by the authors' C++ solver (Moffitt, "MiniMalloc", ASPLOS 2023, and its repository,
github.com/google/minimalloc, where the CSV files are too).
"""

from __future__ import annotations

import csv
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.measure import Command
from tgbench.commands.progress import note, say, table
from tgbench.memory.check import OutOfBounds, validate
from tgbench.memory.packing import PACKERS, Buffer, Problem, Solution, pack, read_minimalloc

Box: TypeAlias = tuple[int, int, int, int]  # start, stop, low, high
MINIMALLOC_S = (1.2, 11.0)  # published range for each problem
GROUPS = ("instances", "to_the_bound", "unseen", "unseen_loose", "cuts", "layered", "others")
CUT_SHAPES = ((80, 150, 0.0), (100, 200, 0.05), (150, 300, 0.05))  # steps, pieces, left out


@dataclass(frozen=True)
class Row:
    """One problem.

    Fields:
        heuristics: height over the bound, by heuristic, one pass each.
        default: of `pack` without search, with its CPU time.
        ratio, steps, cpu_s, stop_reason: of the search.
        packer, turns: who of the race found it, and the steps of each.
        cp_sat: what CP-SAT says after `cp_sat_s`; None where it was not run.
    """

    name: str
    buffers: int
    capacity_bytes: int | None
    bound_bytes: int
    heuristics: dict[str, float]
    default_ratio: float
    default_cpu_s: float
    ratio: float
    steps: int
    cpu_s: float
    stop_reason: str
    fits: bool
    packer: str
    turns: dict[str, int]
    cp_sat: str | None = None
    cp_sat_s: float | None = None


# --- problems -------------------------------------------------------------------------------------


def instances(folder: Path) -> Iterator[tuple[str, Problem]]:
    """The CSV files of a folder; the capacity is the number before the last dot of each name."""
    for path in sorted(folder.glob("*.*.csv")):
        name, capacity = path.name.split(".")[:2]
        yield name, read_minimalloc(path, int(capacity))


def cut(
    steps: int,
    pieces: int,
    left_out: float,
    seed: int,
    capacity: int = 1024,
    divide: Callable[[Box, random.Random], list[Box]] | None = None,
) -> Problem:
    """A rectangle cut into buffers, some left out; it fits exactly into the capacity.

    `divide` makes pieces of one box; by default two `halves`.

    >>> from tgbench.memory.packing import lower_bound
    >>> lower_bound(cut(40, 30, 0.0, seed=1)).size_bytes
    1024
    """
    chance = random.Random(seed)
    boxes = [(0, steps, 0, capacity)]
    while len(boxes) < pieces:
        tries = [chance.randrange(len(boxes)) for _ in range(3)]
        box = boxes.pop(max(tries, key=lambda i: _area(boxes[i])))
        boxes += (divide or halves)(box, chance)
    kept = [box for box in boxes if chance.random() >= left_out]
    chance.shuffle(kept)
    buffers = (Buffer(str(i), h - w, s, e) for i, (s, e, w, h) in enumerate(kept))
    return Problem(tuple(buffers), capacity, alignment=1)


def packed(path: Path) -> tuple[Problem, dict[str, int]]:
    """A problem with its capacity, and the offsets of a packing, from one CSV file."""
    with path.open(newline="", encoding="utf-8") as lines:
        offsets = {row["id"]: int(row["offset"]) for row in csv.DictReader(lines)}
    return read_minimalloc(path, int(path.name.split(".")[1])), offsets


def unseen(folder: Path, count: int, is_tight: bool = True) -> Iterator[tuple[str, Problem]]:
    """So many problems like those that are packed in a folder, a seed each."""
    given = [(path.name[0], *packed(path)) for path in sorted(folder.glob("*.*.csv"))]
    for seed in range(count if given else 0):
        name, problem, offsets = given[seed % len(given)]
        kind = "" if is_tight else ", loose"
        yield f"like {name}, {seed}{kind}", reshaped(problem, offsets, seed, is_tight)


def reshaped(
    problem: Problem, offsets: Mapping[str, int], seed: int, is_tight: bool = True
) -> Problem:
    """Half the buffers of a packing lose some of their bytes or steps; all grow as far as they can.

    What comes out fits into the capacity, and leaves hardly anything free. If it need not be
    tight, a quarter of the buffers shrink, and nothing grows.

    >>> from tgbench.memory.packing import lower_bound
    >>> small = Problem((Buffer("a", 6, 0, 4), Buffer("b", 4, 0, 4), Buffer("c", 10, 4, 8)), 10, 1)
    >>> other = reshaped(small, {"a": 0, "b": 6, "c": 0}, seed=1)
    >>> lower_bound(other).size_bytes, other == small
    (10, False)
    """
    chance = random.Random(seed)
    units = (
        _units([(b.start, b.stop) for b in problem.buffers]),
        _units([(offsets[b.name], b.size_bytes) for b in problem.buffers]),
    )
    boxes = [
        [b.start, b.stop, offsets[b.name], offsets[b.name] + b.size_bytes] for b in problem.buffers
    ]
    assert problem.capacity_bytes is not None
    edges = [min(b[0] for b in boxes), max(b[1] for b in boxes), 0, problem.capacity_bytes]
    for box in chance.sample(boxes, len(boxes) // (2 if is_tight else 4)):
        _shrink(box, units, chance)
    for box in chance.sample(boxes, len(boxes) if is_tight else 0):
        for side in chance.sample(range(4), 4):
            box[side] = _reach(box, side, boxes, edges)
    chance.shuffle(boxes)
    buffers = (Buffer(str(i), h - w, s, e) for i, (s, e, w, h) in enumerate(boxes))
    return replace(problem, buffers=tuple(buffers))


def _units(numbers: Sequence[tuple[int, int]]) -> int:
    return math.gcd(*(number for pair in numbers for number in pair))


def _shrink(box: list[int], units: tuple[int, int], chance: random.Random) -> None:
    """Up to half of the steps or of the bytes are cut off at one end."""
    axis = chance.randrange(2)
    low, high = 2 * axis, 2 * axis + 1
    length = (box[high] - box[low]) // units[axis]
    if length > 1:
        by = units[axis] * chance.randrange(1, length // 2 + 1)
        if chance.random() < 0.5:
            box[low] += by
        else:
            box[high] -= by


def _reach(box: list[int], side: int, boxes: Sequence[list[int]], edges: Sequence[int]) -> int:
    """How far one side of a box can go before it meets another box, or the edge of all."""
    low = side - side % 2
    a, b = (2, 3) if low == 0 else (0, 1)
    near = [other for other in boxes if other[a] < box[b] and other[b] > box[a]]
    if side % 2:
        return min([edges[side], *(other[low] for other in near if other[low] >= box[side])])
    return max([edges[side], *(other[low + 1] for other in near if other[low + 1] <= box[side])])


def _area(box: Box) -> int:
    start, stop, low, high = box
    return (stop - start) * (high - low)


def halves(box: Box, chance: random.Random) -> list[Box]:
    """A box cut in two, along the steps or the bytes; itself where it is too small."""
    start, stop, low, high = box
    if stop - start > 1 and (high - low == 1 or chance.random() < 0.4):
        at = chance.randrange(start + 1, stop)
        return [(start, at, low, high), (at, stop, low, high)]
    if high - low > 1:
        at = chance.randrange(low + 1, high)
        return [(start, stop, low, at), (start, stop, at, high)]
    return [box]


WIDTHS = (256, 384, 512, 768, 1024, 1536, 2048)


def layered(count: int, seed: int) -> Problem:
    """Buffers of a network of residual blocks: activations, scratch memory, skips.

    A block has 3 to 8 ops of one width. 85 % of the activations die after a step or two, 12 %
    after 4 to 29 steps, 3 % much later (skips of a U-net, retained keys and values).
    """
    chance = random.Random(seed)
    buffers: list[tuple[int, int, int]] = []
    step = 0
    while len(buffers) < count:
        width, first = chance.choice(WIDTHS) * chance.choice((1, 2, 3, 4, 5, 8)), step
        for _ in range(chance.randrange(3, 9)):
            odd = chance.randrange(1, width) if chance.random() < 0.3 else 0
            size = width * chance.choice((1, 1, 1, 2, 3, 4)) + odd
            buffers.append((size, step, step + 1 + _life(chance, count)))
            if chance.random() < 0.6:
                scratch = chance.choice((64, 100, 1000, 4096, width // 2))
                buffers.append((scratch, step, step + 1))
            step += 1
        buffers.append((width, first, step + 1))
    named = (Buffer(str(i), *shape) for i, shape in enumerate(buffers[:count]))
    return Problem(tuple(named))


def _life(chance: random.Random, count: int) -> int:
    kind = chance.random()
    if kind < 0.85:
        return 1 + int(chance.expovariate(1 / 1.2))
    if kind < 0.97:
        return chance.randrange(4, 30)
    return chance.randrange(50, max(51, count // 3))


def trained(count: int, seed: int) -> Problem:
    """About so many buffers of a pass forward and one backward through equal layers.

    A layer has 6 to 12 ops; the activation of each is read again by its gradient, and three of ten
    ops want scratch memory in either direction.
    """
    chance = random.Random(seed)
    ops = [
        chance.choice(WIDTHS) * chance.choice((1, 1, 2, 4)) for _ in range(chance.randint(6, 12))
    ]
    scratch = [chance.choice(WIDTHS) if chance.random() < 0.3 else 0 for _ in ops]
    layers = max(1, int(count / (2 * len(ops) + 2 * sum(map(bool, scratch)))))
    steps, shapes = layers * len(ops), []
    for step in range(steps):
        back = 2 * steps - 1 - step
        size, extra = ops[step % len(ops)], scratch[step % len(ops)]
        shapes += [(size, step, back + 1), (size, back, back + 2)]
        if extra:
            shapes += [(extra, step, step + 1), (2 * extra, back, back + 1)]
    return Problem(tuple(Buffer(str(i), *shape) for i, shape in enumerate(shapes)))


def scattered(count: int, seed: int) -> Problem:
    """So many buffers that begin anywhere; sizes over three powers of ten, lives exponential."""
    chance = random.Random(seed)
    shapes = []
    for _ in range(count):
        start, life = chance.randrange(count // 4), 1 + int(chance.expovariate(1 / 12))
        shapes.append((int(64 * 10 ** chance.uniform(0, 3)), start, start + life))
    return Problem(tuple(Buffer(str(i), *shape) for i, shape in enumerate(shapes)))


# --- measuring ------------------------------------------------------------------------------------


def cpu_timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    result = call()
    return result, time.process_time() - began


def measured(name: str, problem: Problem, seconds: float, cp_sat_s: float) -> Row:
    """Heuristics, search, and CP-SAT where it is wanted."""
    ratios = {
        key: checked(problem, packer(problem)).height_bytes for key, packer in PACKERS.items()
    }
    plain, plain_s = cpu_timed(lambda: pack(problem))
    found, cpu_s = cpu_timed(lambda: searched(problem, seconds))
    bound = plain.bound_bytes
    row = Row(
        name=name,
        buffers=len(problem.buffers),
        capacity_bytes=problem.capacity_bytes,
        bound_bytes=bound,
        heuristics={key: round(height / bound, 4) for key, height in ratios.items()},
        default_ratio=round(checked(problem, plain).height_bytes / bound, 4),
        default_cpu_s=round(plain_s, 4),
        ratio=round(checked(problem, found).height_bytes / bound, 4),
        steps=found.steps,
        cpu_s=round(cpu_s, 3),
        stop_reason=found.stop_reason.name if found.stop_reason else "",
        fits=problem.capacity_bytes is None or found.height_bytes <= problem.capacity_bytes,
        packer=found.packer,
        turns=found.turns,
    )
    if cp_sat_s <= 0 or not has_cp_sat():
        return row
    status, took = cp_sat(problem, cp_sat_s)
    return replace(row, cp_sat=status, cp_sat_s=round(took, 2))


def searched(problem: Problem, seconds: float) -> Solution:
    """With a limit in seconds of the process's CPU."""
    began = time.process_time()
    return pack(problem, search=True, should_stop=lambda: time.process_time() - began >= seconds)


def checked(problem: Problem, solution: Solution) -> Solution:
    """The solution; raises `AssertionError` when it is wrong in more than its height.

    The checker compares all pairs, so it is given what is live in one window of steps at a time.
    """
    for window in _windows(problem.buffers):
        part = Problem(tuple(window), problem.capacity_bytes, problem.alignment)
        findings = validate(part, Solution.of(part, solution.offsets, solution.packer))
        wrong = [finding for finding in findings if not isinstance(finding, OutOfBounds)]
        assert not wrong, wrong[:3]
    return solution


def _windows(buffers: Sequence[Buffer], steps: int = 64) -> Iterator[list[Buffer]]:
    """The buffers live in each stretch of so many steps; two that meet share one of them."""
    edges = sorted({step for b in buffers for step in (b.start, b.stop)})
    for first in range(0, len(edges), steps):
        begin, end = edges[first], edges[min(first + steps, len(edges) - 1)]
        yield [b for b in buffers if b.start < end and b.stop > begin]


def has_cp_sat() -> bool:
    try:
        import ortools  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def cp_sat(problem: Problem, seconds: float) -> tuple[str, float]:
    """What CP-SAT says of the problem with `NoOverlap2D`, on one worker; and after how long."""
    from ortools.sat.python import cp_model

    capacity = problem.capacity_bytes
    assert capacity is not None
    model = cp_model.CpModel()
    across, upwards = [], []
    for b in problem.buffers:
        low = model.new_int_var(0, capacity - b.size_bytes, b.name)
        upwards.append(model.new_fixed_size_interval_var(low, b.size_bytes, b.name))
        across.append(model.new_fixed_size_interval_var(b.start, b.stop - b.start, b.name))
    model.add_no_overlap_2d(across, upwards)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return str(solver.status_name(status)), float(solver.wall_time)


COLD = """
import time
from tgbench.memory.packing import Buffer, Problem, pack
from benchmarks.packing import cut
problem = cut(40, 60, 0.0, seed=2)
for _ in range(2):
    began = time.process_time()
    pack(problem, search=True, max_steps=30_000)
    print(time.process_time() - began)
"""


def compile_times(processes: int = 3) -> dict[str, float]:
    """CPU seconds of the first search of a process, and of the same again; the least of a few.

    The first loads LLVM and compiles the loops: nothing is kept on disk.
    """
    runs = []
    for _ in range(processes):
        command = [sys.executable, "-c", COLD]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(line) for line in done.stdout.split()])
    cold, again = (round(min(times), 3) for times in zip(*runs, strict=True))
    return {"cold_cpu_s": cold, "again_cpu_s": again}


# --- the command ----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("packing", __doc__)
    add = command.add_argument
    add("--instances", type=Path, default=Path("data/minimalloc"), help="folder of CSV files")
    add("--seconds", type=float, default=30.0, help="of CPU for each search (default: 30)")
    add("--large-seconds", type=float, default=30.0, help="the same, for networks and others (30)")
    add("--cp-sat", type=float, default=20.0, help="seconds for CP-SAT; 0 leaves it out")
    add("--unseen", type=int, default=33, help="problems like those of minimalloc (33)")
    add("--only", nargs="+", choices=GROUPS, help="these groups alone")
    options, record = command.begin(argv)
    if options.quick:
        rows = _rows([("60 pieces", cut(40, 60, 0.0, seed=2))], 1.0, 0)
        record.write({"cuts": [asdict(row) for row in rows]}, options.output)
        return 0
    compiled = compile_times()
    say(f"the loops of the search: compiled in {compiled['cold_cpu_s']} s of CPU, in each process")
    pack(cut(40, 60, 0.0, seed=2), search=True, max_steps=30_000)  # compiles them
    given = list(instances(options.instances))
    if not given:
        say(f"no files NAME.CAPACITY.csv in {options.instances}; minimalloc's repository has them")
    if options.cp_sat > 0 and not has_cp_sat():
        say("CP-SAT is left out: `pip install ortools` to run it")
    packings = options.instances / "packed"
    small, large = options.seconds, options.large_seconds
    makers: dict[str, Callable[[], list[Row]]] = {
        "instances": lambda: _rows(given, small, options.cp_sat),
        "to_the_bound": lambda: _rows(_uncapped(given), small, 0),
        "unseen": lambda: _rows(unseen(packings, options.unseen), small, 0),
        "unseen_loose": lambda: _rows(unseen(packings, options.unseen, False), small, 0),
        "cuts": lambda: _rows(_cuts(), small, options.cp_sat),
        "layered": lambda: _rows(_layered(), large, 0),
        "others": lambda: _rows(_others(), large, 0),
    }
    groups = {name: makers[name]() for name in options.only or makers}
    results = {
        "compile": compiled,
        "minimalloc_published_s": MINIMALLOC_S,
        "minimalloc_source": "Moffitt, MiniMalloc, ASPLOS 2023; github.com/google/minimalloc",
        **{name: [asdict(row) for row in rows] for name, rows in groups.items()},
    }
    for name, rows in groups.items():
        total = sum(row.cpu_s for row in rows)
        say(f"{name}: {sum(row.fits for row in rows)} of {len(rows)} fit; {total:.2f} s of CPU")
    say(f"minimalloc: {MINIMALLOC_S} s for each instance, as published")
    record.write(results, options.output)
    return 0


def _uncapped(given: list[tuple[str, Problem]]) -> list[tuple[str, Problem]]:
    return [(name, replace(problem, capacity_bytes=None)) for name, problem in given]


def _cuts() -> Iterator[tuple[str, Problem]]:
    for steps, pieces, left_out in CUT_SHAPES:
        for seed in range(2):
            yield f"{pieces} pieces, {left_out:.0%} out, {seed}", cut(steps, pieces, left_out, seed)


def _layered() -> Iterator[tuple[str, Problem]]:
    for count, seeds in ((1000, 5), (5000, 2), (20_000, 2)):
        for seed in range(seeds):
            yield f"layered {count}, {seed}", layered(count, seed)


def _others() -> Iterator[tuple[str, Problem]]:
    for kind, count in ((trained, 5_000), (scattered, 20_000)):
        for seed in range(2):
            yield f"{kind.__name__} {count}, {seed}", kind(count, seed)


def _rows(problems: Any, seconds: float, cp_sat_s: float) -> list[Row]:
    rows = []
    for name, problem in problems:
        note(name)
        rows.append(measured(name, problem, seconds, cp_sat_s))
    header = ["problem", "buffers", "best pass", "pack", "search", "steps", "CPU s", "", "CP-SAT"]
    say("\n" + table(header, [_cells(row) for row in rows]))
    return rows


def _cells(row: Row) -> list[str]:
    passes = min(row.heuristics.values())
    ratios = [f"{ratio:.4f}" for ratio in (passes, row.default_ratio, row.ratio)]
    beside = "" if row.cp_sat is None else f"{row.cp_sat} {row.cp_sat_s} s"
    numbers = [str(row.steps), f"{row.cpu_s:.3f}", row.stop_reason, beside]
    return [row.name, str(row.buffers), *ratios, *numbers]


if __name__ == "__main__":
    sys.exit(main())
