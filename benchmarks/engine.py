"""What the engine costs beside its kernels, on the graph of a Gemma 3.

hot loop       the calls as a session executes them, as a bare loop, and as straight-line Python
one run        where the time of a whole `run` goes
specialising   a pair of (state, bucket) never seen before: decide, lower, bind
moving         a class seen at another position: tensors re-pointed
planning       for several budgets
allocations    of a warm run, counted by torch's profiler; scratch of each kernel
counts         instructions by kernel
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tgbench.session.running as running
from benchmarks.decode import LARGE, QUICK, TOY, Size, checkpoint
from benchmarks.measure import Samples, Stopwatch, ms, run_models, take_turns, timed
from tgbench.base.errors import BudgetError
from tgbench.base.words import format_bytes
from tgbench.commands.progress import note, say, table
from tgbench.memory.estimate import parse_bytes
from tgbench.plans.plan import Plan
from tgbench.programs.lowering import Lowerer
from tgbench.programs.program import Program
from tgbench.programs.states import States, ValidityPattern
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import Propagator
from tgbench.runs.rules import Rules
from tgbench.session.arguments import ArgumentReader
from tgbench.session.library import Library
from tgbench.session.memory import Memory
from tgbench.session.report import Report
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3

Ids = npt.NDArray[np.int64]
WARM_CALLS = 20  # Python specialises new code in its first calls
Results = dict[str, Any]

PHASES: dict[str, tuple[Any, str]] = {
    "step": (Propagator, "stepping"),
    "lower": (Lowerer, "lowering"),
    "bind": (Program, "binding"),
    "state": (ValidityPattern, "of"),
    "whole": (Memory, "specialising"),
}
CPU = "whole, cpu"  # time on the processor alone
PARTS: dict[str, tuple[Any, str]] = {
    "check the inputs": (ArgumentReader, "arrays"),
    "read the demand": (ArgumentReader, "wanted"),
    "compare with the last inputs": (ArgumentReader, "differences"),
    "classify": (Bucket, "classify"),
    "number the state": (States, "moved"),
    "look up the program": (Library, "find"),
    "move it": (Program, "move_to"),
    "write the inputs": (Memory, "write"),
    "copy the outputs": (running, "gather"),
    "finish, trace": (running.Runner, "finish"),
}


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Fields:
        model: what is decoded.
        budgets: of the arena, to plan for.
        repetitions, steps: of everything that is repeated.
        cold: times that everything is forgotten.
    """

    model: Size
    budgets: tuple[str | None, ...]
    repetitions: int
    steps: int
    cold: int


FULL = Effort(LARGE, (None, "64MiB", "32MiB", "24MiB", "20MiB"), 7, 8, 3)
SMALL = Effort(TOY, (None,), 7, 32, 3)
TINY = Effort(QUICK, (None, "96KiB"), 2, 4, 1)


class Decoder:
    """A session that decodes ids that do not matter."""

    def __init__(self, effort: Effort, folder: Path, records: Path | None = None) -> None:
        size = effort.model
        graph = gemma3(size.config, size.tokens)
        self.session = GraphSession(
            graph, weights=folder, memory=size.memory, making="always", records=records
        )
        self.ids: Ids = np.zeros((1, size.tokens), np.int64)
        self.random = np.random.default_rng(0)
        self.vocab = int(size.config["vocab_size"])
        self.ids[0, : size.prompt] = self.random.integers(0, self.vocab, size.prompt)
        self.first = size.prompt
        self.at = size.prompt - 1

    @property
    def last(self) -> Report:
        """What the last run did."""
        report = self.session.last
        assert report is not None
        return report

    def run(self, at: int) -> Report:
        self.session.run({"ids": self.ids}, want={"logits": np.s_[0, at]})
        return self.last

    def start_over(self, plan: Plan | None = None) -> None:
        """As a new session over the same weights: no plan or this one, nothing remembered."""
        session = self.session
        session.release()
        session.rules = session.planning.rules = Rules()
        session.planning.classes.clear()
        session.planning.places.clear()
        if plan is not None:
            session.adopt(plan)

    def prefill(self) -> Report:
        self.session.forget()
        self.at = self.first - 1
        return self.run(self.at)

    def decode(self, advance: int = 1) -> Report:
        """The next id; from the prompt again where the positions end."""
        if self.at + advance >= self.ids.shape[1]:
            self.prefill()
            self.decode()
        for _ in range(advance):
            self.at += 1
            self.ids[0, self.at] = self.random.integers(self.vocab)
        return self.run(self.at)

    def edit(self, at: int) -> Report:
        """Another id in the middle; the last row is asked for again."""
        self.ids[0, at] = (self.ids[0, at] + 1) % self.vocab
        return self.run(self.at)

    def warm(self, tokens: int = 4) -> None:
        self.prefill()
        for _ in range(tokens):
            self.decode()


# --- the hot loop ---------------------------------------------------------------------------------


def bare(program: Program) -> None:
    """The session's loop, and nothing else."""
    for function, arguments in program.calls:
        function(*arguments)


def straight(program: Program) -> Callable[[], None]:
    """The same calls as straight-line Python: no loop, no argument tuples."""
    names: dict[str, Any] = {}
    lines = []
    for i, (function, arguments) in enumerate(program.calls):
        names |= {f"f{i}": function} | {f"a{i}_{j}": a for j, a in enumerate(arguments)}
        given = ", ".join(f"a{i}_{j}" for j in range(len(arguments)))
        lines.append(f"    f{i}({given})")
    source = "def run():\n" + "\n".join(lines or ["    pass"])
    exec(compile(source, "<straight>", "exec"), names)
    run: Callable[[], None] = names["run"]
    return run


def hot_loop(decoder: Decoder, effort: Effort) -> Results:
    """A whole run, its execution, the bare loop and the straight calls, in turns."""
    decoder.warm()
    executed: list[list[int]] = []

    def whole() -> int:
        report, took = timed(decoder.decode)
        executed[-1].append(report.execute_ns)
        return took

    def loop() -> int:
        return timed(partial(bare, decoder.last.program))[1]

    lines = straight(decoder.last.program)
    for _ in range(WARM_CALLS):
        lines()
    fixed = {"straight": lambda: timed(lines)[1], "loop": loop}
    note("straight-line calls beside the bare loop")
    unrolled = take_turns(
        fixed, effort.repetitions, effort.steps, burst=min(effort.steps, 4), tell=note
    )
    note("whole runs beside the bare loop")
    parts = []
    for _ in range(effort.repetitions):
        executed.append([])
        parts.append(take_turns({"run": whole, "loop": loop}, 1, effort.steps))
    samples = Samples(
        {
            "run": [part.times["run"][0] for part in parts],
            "execute": executed,
            "loop": [part.times["loop"][0] for part in parts],
        },
        [load for part in parts for load in part.loads],
    )
    over = {name: statistics.median(samples.ratios(name, "loop")) for name in samples.times}
    over["straight"] = statistics.median(unrolled.ratios("straight", "loop"))
    rows = [
        ["straight-line calls", ms(unrolled.median("straight")), f"{over['straight']:.3f}"],
        ["bare loop over the calls", ms(samples.median("loop")), "1.000"],
        ["session: write, loop, copy out", ms(samples.median("execute")), f"{over['execute']:.3f}"],
        ["session: whole run", ms(samples.median("run")), f"{over['run']:.3f}"],
    ]
    say("\n" + table(["hot loop", "ms", "÷ bare loop"], rows))
    return {
        "over_loop": over,
        "loop_over_straight": statistics.median(unrolled.ratios("loop", "straight")),
        "session": _sampled(samples),
        "unrolled": _sampled(unrolled),
    }


def _sampled(samples: Samples) -> Results:
    return {
        "median_ms": {name: samples.median(name) / 1e6 for name in samples.times},
        "samples_ns": samples.times,
        "loads": samples.loads,
    }


def one_run(decoder: Decoder, effort: Effort) -> Results:
    """Where the time of a warm run goes, part by part, besides the loop."""
    decoder.warm()
    parts: dict[str, list[int]] = {name: [] for name in PARTS}
    totals: dict[str, list[int]] = {"outside": [], "run": []}
    for _ in range(effort.repetitions * effort.steps):
        watch = Stopwatch(PARTS)
        with watch:
            report, took = timed(decoder.decode)
        if report.specialised:
            continue
        loop = timed(partial(bare, report.program))[1]
        for name, spent in watch.times_ns.items():
            parts[name].append(spent)
        totals["outside"].append(took - loop)
        totals["run"].append(took)
    rows = [[name, ms(statistics.median(times))] for name, times in parts.items()]
    rows.append(["whole run less its bare loop", ms(statistics.median(totals["outside"]))])
    say("\n" + table(["one run, part by part", "ms"], rows))
    return {
        "median_ms": {name: statistics.median(t) / 1e6 for name, t in (parts | totals).items()},
        "samples_ns": parts | totals,
    }


# --- making programs ------------------------------------------------------------------------------


@dataclass
class Made:
    """Programs that had to be made, and how long each phase took.

    Fields:
        rows: (what was asked for, what was remembered, phase → ns, instructions).
    """

    rows: list[tuple[str, str, dict[str, int], int]] = field(default_factory=list)

    def watch(self, what: str, remembered: str, run: Callable[[], Report]) -> None:
        """Time one run that makes a program; one that finds its program is left out."""
        watch = Stopwatch(PHASES, within="whole")
        with watch:
            report = run()
        if report.specialised:
            times = {**watch.times_ns, CPU: watch.cpu_ns["whole"]}
            self.rows.append((what, remembered, times, report.instructions))

    def median(self, what: str, remembered: str, phase: str) -> float:
        return statistics.median(
            times[phase] for w, r, times, _ in self.rows if (w, r) == (what, remembered)
        )

    def kinds(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((what, remembered) for what, remembered, _, _ in self.rows))


REMAINS = "rules remembered from planning"
AGAIN = "all remembered, program dropped"
NOTHING = "nothing remembered (plan loaded)"


def specialising(decoder: Decoder, effort: Effort) -> Results:
    """Programs for pairs never seen before, with more and less remembered."""
    made = Made()
    for _ in range(effort.cold):
        decoder.start_over()
        _story(decoder, made, REMAINS)
        decoder.start_over(Plan.from_json(decoder.session.plan.to_json()))
        _story(decoder, made, NOTHING)
        decoder.session.programs.clear()
        _story(decoder, made, AGAIN)
    phases = [*PHASES, CPU]
    rows = [
        [what, remembered, *(ms(made.median(what, remembered, phase)) for phase in phases)]
        for what, remembered in made.kinds()
    ]
    say("\n" + table(["a program is made for; ms", "with", *phases], rows))
    return {
        "median_ms": {
            f"{what}; {remembered}": {p: made.median(what, remembered, p) / 1e6 for p in phases}
            for what, remembered in made.kinds()
        },
        "samples_ns": [
            {"what": what, "with": remembered, "instructions": count, **times}
            for what, remembered, times, count in made.rows
        ],
    }


def _story(decoder: Decoder, made: Made, remembered: str) -> None:
    """Runs of kinds that follow each other in use."""
    decoder.session.forget()
    steps: list[tuple[str, Callable[[], Report]]] = [
        ("the prompt", decoder.prefill),
        ("a token after the prompt", decoder.decode),
        ("a token after a token", decoder.decode),
        ("an edit in the middle", lambda: decoder.edit(decoder.first // 2)),
        ("a token after an edit", decoder.decode),
        ("two tokens at once", lambda: decoder.decode(2)),
        ("another row, nothing changed", lambda: decoder.run(decoder.at - 3)),
    ]
    for what, run in steps:
        made.watch(what, remembered, run)


def moving(decoder: Decoder, effort: Effort) -> Results:
    """A class at another position, with what is retained by default and with everything."""
    session, budget = decoder.session, decoder.session.budget_bytes
    found: Results = {}
    rows = []
    for retain in ("auto", "all"):
        session.retain, session.budget_bytes = retain, budget if retain == "auto" else None
        decoder.start_over()
        decoder.warm()
        samples: list[int] = []
        cpu: list[int] = []
        for _ in range(effort.repetitions * effort.steps):
            watch = Stopwatch({"move": (Program, "move_to")})
            with watch:
                report = decoder.decode()
            if report.moved:
                samples.append(watch.times_ns["move"])
                cpu.append(watch.cpu_ns["move"])
        retained, views = session.placement.kept_bytes, decoder.last.program.moving_views
        medians = [statistics.median(times) for times in (samples, cpu)]
        rows.append([retain, format_bytes(retained), str(views), *map(ms, medians)])
        found[retain] = {
            "median_ms": medians[0] / 1e6,
            "median_cpu_ms": medians[1] / 1e6,
            "moving_views": views,
            "retained_bytes": retained,
            "instructions": decoder.last.instructions,
            "samples_ns": samples,
            "samples_cpu_ns": cpu,
        }
    session.retain, session.budget_bytes = "auto", budget
    decoder.start_over()
    say("\n" + table(["moving, retain=", "retained", "views", "ms", "cpu ms"], rows))
    return found


def planning(decoder: Decoder, effort: Effort) -> Results:
    """The plan that the first run makes, for several budgets; too small ones say what would do."""
    session, budget = decoder.session, decoder.session.budget_bytes
    rows, found = [], {}
    for memory in effort.budgets:
        name = memory or "what it takes"
        note(f"planning for {name}")
        session.budget_bytes = parse_bytes(memory, session.graph, session.device)
        decoder.start_over()
        watch = Stopwatch({"plan": (running.Runner, "plan")})
        with watch:
            outcome = _planned(decoder)
        took = watch.times_ns["plan"]
        rows.append([name, ms(took), outcome])
        found[name] = {"plan_ms": took / 1e6, "outcome": outcome}
    session.budget_bytes = budget
    decoder.start_over()
    say("\n" + table(["planning for", "ms", "outcome"], rows))
    return found


def _planned(decoder: Decoder) -> str:
    """Run the prompt; what the plan came out as, in a line."""
    try:
        decoder.prefill()
    except BudgetError as error:
        return str(error)
    plan = decoder.session.plan
    parts = [format_bytes(plan.size_bytes), f"{len(plan.retained)} retained"]
    parts += [f"cut in {plan.cut[2]}"] if plan.cut[2] > 1 else []
    parts += [f"{len(plan.dropped)} dropped"] if plan.dropped else []
    return ", ".join(parts)


# --- memory and counts ----------------------------------------------------------------------------


def allocations(decoder: Decoder) -> Results:
    """Tensors and bytes that a warm run takes from torch's allocator, and the loop's own share."""
    decoder.warm()
    run = _allocated(decoder.decode)
    report = decoder.decode()
    loop = _allocated(partial(bare, report.program))
    tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    bare(report.program)
    python_peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    rows = [
        ["whole run (logits are copied out)", f"{run[0]:,}", f"{run[1]:,}"],
        ["bare loop", f"{loop[0]:,}", f"{loop[1]:,}"],
    ]
    say("\n" + table(["allocations of a warm run", "tensors", "bytes"], rows))
    say(f"the loop's peak of Python and NumPy memory: {python_peak:,} bytes")
    return {
        "run": {"tensors": run[0], "bytes": run[1]},
        "loop": {"tensors": loop[0], "bytes": loop[1], "python_peak_bytes": python_peak},
    }


def _allocated(action: Callable[[], Any]) -> tuple[int, int]:
    """Allocations of torch on the CPU while something runs, and their bytes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    results = profiled.profiler.kineto_results
    sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
    taken = [size for size in sizes if size > 0]
    return len(taken), sum(taken)


def counts(decoder: Decoder) -> Results:
    """Instructions by kernel; scratch from the arena, and what kernels say that they allocate."""
    decoder.warm()
    runs: Mapping[str, Callable[[], Report]] = {
        "prompt": decoder.prefill,
        "token": lambda: (decoder.decode(), decoder.decode())[1],
    }
    found: Results = {}
    for name, run in runs.items():
        instructions = run().program.instructions
        kernels = Counter(i.kernel for i in instructions)
        scratch, allocates = Counter[str](), Counter[str]()
        for made in instructions:
            scratch[made.kernel] = max(scratch[made.kernel], made.scratch_bytes)
            allocates[made.kernel] += made.allocates
        rows = [
            [kernel, str(count), f"{scratch[kernel]:,}", f"{allocates[kernel]:,}"]
            for kernel, count in kernels.most_common()
        ]
        rows.append(["all", str(len(instructions)), "", f"{sum(allocates.values()):,}"])
        header = [
            f"instructions of a {name}",
            "count",
            "largest scratch, bytes",
            "allocates, bytes",
        ]
        say("\n" + table(header, rows))
        found[name] = {
            "instructions": len(instructions),
            "kernels": dict(kernels.most_common()),
            "scratch_bytes": {kernel: size for kernel, size in scratch.items() if size},
            "allocates_bytes": {kernel: size for kernel, size in allocates.items() if size},
        }
    return found


# --- all of it ------------------------------------------------------------------------------------


def measure(effort: Effort, cache: Path) -> Results:
    """Every section for one model."""
    size = effort.model
    folder = checkpoint(size, cache)
    say(f"\n{size.name}, {size.tokens} positions, prompt {size.prompt}, memory {size.memory}")
    began = time.perf_counter()
    note("opening the session")
    decoder, opened = timed(lambda: Decoder(effort, folder))
    decoder.warm()
    found: Results = {"model": asdict(size), "open_ms": opened / 1e6}
    sections: dict[str, Callable[[], Results]] = {
        "hot_loop": lambda: hot_loop(decoder, effort),
        "one_run": lambda: one_run(decoder, effort),
        "specialising": lambda: specialising(decoder, effort),
        "moving": lambda: moving(decoder, effort),
        "planning": lambda: planning(decoder, effort),
        "allocations": lambda: allocations(decoder),
        "counts": lambda: counts(decoder),
    }
    for name, section in sections.items():
        note(f"{size.name}: {name} ({time.perf_counter() - began:.0f} s)")
        found[name] = section()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    quick, full = (
        {effort.model.name: partial(measure, effort) for effort in efforts}
        for efforts in ([TINY], [FULL, SMALL])
    )
    return run_models("engine", "What the engine costs.", argv, quick, full)


if __name__ == "__main__":
    sys.exit(main())
