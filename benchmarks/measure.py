"""What the benches share: systems in turns, medians, the machine, and the file of the numbers.

    repetition 1   A B C │ B C A │ C A B │ …     every system takes the same step, one after the
    repetition 2   B C A │ …                     other, and the one that goes first changes

    samples  ─→  a median per system and repetition  ─→  ratios within a repetition

Other work on a machine slows everything that runs in the same seconds, so only what was measured
within one repetition is compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.child import clocked
from tgbench.base.atomic import atomic_path
from tgbench.base.machine import cache_folder, processor_name
from tgbench.base.switches import COMPILING
from tgbench.commands.progress import say

Step: TypeAlias = "Callable[[], int]"  # does one step; answers with the nanoseconds that count
Tell: TypeAlias = "Callable[[str], None]"
PACKAGES = ("tgbench", "torch", "numpy", "numba", "transformers")
RESULTS = Path("docs/results")
ELSEWHERE = "elsewhere"  # folders of what was measured on machines of other kinds


def timed(step: Callable[[], Any]) -> tuple[Any, int]:
    """What a step returns, and how many nanoseconds it took."""
    began = time.perf_counter_ns()
    result = step()
    return result, time.perf_counter_ns() - began


# --- systems in turns -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Nanoseconds of every step.

    Fields:
        times: system → repetition → steps.
        loads: the machine's load average (one minute) after each repetition.

    >>> samples = Samples({"a": ((10, 30, 20), (40,)), "b": ((10, 10, 10), (20,))}, (0.5, 0.5))
    >>> samples.medians("a"), samples.ratios("a", "b"), samples.always_faster("b", "a")
    ([20, 40], [2.0, 2.0], True)
    """

    times: Mapping[str, Sequence[Sequence[int]]]
    loads: Sequence[float] = ()

    def medians(self, name: str) -> list[float]:
        """The median step of each repetition."""
        return [statistics.median(repetition) for repetition in self.times[name]]

    def median(self, name: str) -> float:
        """The median of the repetitions' medians."""
        return statistics.median(self.medians(name))

    def ratios(self, name: str, base: str) -> list[float]:
        """For each repetition, the median over the base's."""
        pairs = zip(self.medians(name), self.medians(base), strict=True)
        return [mine / other for mine, other in pairs]

    def always_faster(self, name: str, other: str) -> bool:
        """Whether the median is smaller in every repetition."""
        return all(ratio < 1 for ratio in self.ratios(name, other))

    def above(self, name: str, other: str, floor: str) -> list[float]:
        """For each repetition, the time above the floor over the other's time above it."""
        return [
            (mine - least) / max(theirs - least, 1)
            for mine, theirs, least in zip(
                self.medians(name), self.medians(other), self.medians(floor), strict=True
            )
        ]


def take_turns(
    systems: Mapping[str, Step],
    repetitions: int,
    steps: int,
    *,
    burst: int = 1,
    pause_s: float = 0.0,
    tell: Tell = lambda line: None,
) -> Samples:
    """Let every system take `repetitions` × `steps` steps, `burst` of them in a turn.

    A system that waits for `pause_s` before each turn is not disturbed by threads of the one
    before that are still spinning. `steps` is a multiple of `burst`.
    """
    names = list(systems)
    times: dict[str, list[list[int]]] = {name: [] for name in names}
    loads = []
    turn = 0
    for repetition in range(repetitions):
        for name in names:
            times[name].append([])
        for _ in range(steps // burst):
            for name in rotated(names, turn):
                time.sleep(pause_s)
                times[name][-1] += [systems[name]() for _ in range(burst)]
            turn += 1
        loads.append(os.getloadavg()[0])
        shown = (f"{name} {statistics.median(times[name][-1]) / 1e6:.3g}" for name in names)
        tell(f"repetition {repetition + 1} of {repetitions}, ms: {', '.join(shown)}")
    return Samples(times, loads)


@dataclass
class Clocked:
    """Work as a step, whose processor time is kept: that of all threads of the process."""

    work: Callable[[], Any]
    cpu: list[int] = field(default_factory=list)

    def __call__(self) -> int:
        _, clocks = clocked(self.work)
        self.cpu.append(clocks["cpu_ns"])
        return clocks["wall_ns"]


class KeepsCpu(Protocol):
    """A step that keeps its processor time."""

    cpu: list[int]

    def __call__(self) -> int: ...


def both_clocks(
    systems: Mapping[str, KeepsCpu], repetitions: int, steps: int, warm: int, **turns: Any
) -> tuple[Samples, Samples]:
    """`take_turns` after `warm` steps of each: by the wall's clock and by the processor's."""
    take_turns(systems, 1, warm, burst=warm)
    for system in systems.values():
        system.cpu.clear()
    wall = take_turns(systems, repetitions, steps, **turns)
    begins = range(0, repetitions * steps, steps)
    cpu = {name: [one.cpu[i : i + steps] for i in begins] for name, one in systems.items()}
    return wall, Samples(cpu, wall.loads)


def middle(ratios: Sequence[float]) -> float:
    """Their median.

    >>> middle([3.0, 1.0, 2.0])
    2.0
    """
    return float(statistics.median(ratios))


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The same names, another one first."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Hold torch, and tgbench with it, to so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- time spent inside named functions ------------------------------------------------------------


@dataclass
class Stopwatch:
    """Time and calls inside some functions, while the block runs; the callees' time included.

    Fields:
        functions: name → (class or module, attribute).
        within: the name of one of them, if the others count only while that one runs.
        times_ns, cpu_ns: by name, of the clock and of the processor. A busy machine stretches the
            former alone.

    >>> watch = Stopwatch({"text": (Samples, "median")})
    >>> with watch:
    ...     _ = Samples({"a": ((1, 2),)}).median("a")
    >>> watch.calls
    {'text': 1}
    """

    functions: Mapping[str, tuple[Any, str]]
    within: str | None = None
    times_ns: dict[str, int] = field(default_factory=dict)
    cpu_ns: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _originals: dict[str, Any] = field(default_factory=dict)
    _is_open: bool = True

    def __enter__(self) -> Stopwatch:
        self.times_ns = dict.fromkeys(self.functions, 0)
        self.cpu_ns = dict.fromkeys(self.functions, 0)
        self.calls = dict.fromkeys(self.functions, 0)
        self._is_open = self.within is None
        for name, (owner, attribute) in self.functions.items():
            original = self._originals[name] = owner.__dict__[attribute]
            watched: Any = self._watched(name, getattr(owner, attribute))
            if isinstance(original, staticmethod):
                watched = staticmethod(watched)
            setattr(owner, attribute, watched)
        return self

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            with self._timed(name) as counts:
                self.calls[name] += counts
                found = function(*arguments, **named)
            return self._resumed(name, found) if isinstance(found, Generator) else found

        return run

    @contextmanager
    def _timed(self, name: str) -> Iterator[bool]:
        """Whether it counts, what goes on inside."""
        before = self._is_open
        counts = self._is_open = before or name == self.within
        cpu, began = time.thread_time_ns(), time.perf_counter_ns()
        try:
            yield counts
        finally:
            self.times_ns[name] += (time.perf_counter_ns() - began) * counts
            self.cpu_ns[name] += (time.thread_time_ns() - cpu) * counts
            self._is_open = before

    def _resumed(self, name: str, work: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Work that pauses, less its pauses."""
        while True:
            with self._timed(name):
                try:
                    paused = next(work)
                except StopIteration as done:
                    return done.value
            yield paused

    def __exit__(self, *_: object) -> None:
        for name, (owner, attribute) in self.functions.items():
            setattr(owner, attribute, self._originals.pop(name))


# --- the machine, and the file of the numbers -----------------------------------------------------


def machine() -> dict[str, Any]:
    """What the times depend on."""
    return {
        "processor": processor_name("cpu family", "model"),  # of one name there are many kinds
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "environment": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }


_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not POSIX
        return None


def versions() -> dict[str, str | None]:
    """Python and the packages that the numbers depend on; None for one that is absent."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["tgbench"] = found["tgbench"] or _own_version()
    return found


def _own_version() -> str:
    from tgbench import __version__

    return __version__


@dataclass
class Record:
    """One call of a bench: how it was made, where, and what came out.

    Fields:
        arguments: of the command line.
        load_before: load averages over 1, 5 and 15 minutes when it began.
    """

    name: str
    arguments: Sequence[str]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    load_before: Sequence[float] = field(default_factory=os.getloadavg)

    def to_json(self, results: Mapping[str, Any]) -> str:
        words = ["python", "-m", f"benchmarks.{self.name}", *self.arguments]
        took = datetime.now(UTC) - self.began
        record = {
            "bench": self.name,
            "command": shlex.join(words),
            "date": self.began.isoformat(timespec="seconds"),
            "took_s": round(took.total_seconds(), 1),
            "load_average": {"before": self.load_before, "after": os.getloadavg()},
            "machine": machine(),
            "versions": versions(),
            **results,
        }
        return dumped(record) + "\n"

    def write(self, results: Mapping[str, Any], path: Path | None) -> None:
        """Write the file, whole or not at all; without a path, nothing.

        What was measured on another machine is kept beside it, in a folder of its own.
        """
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._put_aside(path)
        with atomic_path(path) as temporary:
            temporary.write_text(self.to_json(results), encoding="utf-8")
        say(f"\nwritten: {path}")

    @staticmethod
    def _put_aside(path: Path) -> None:
        """Move what was measured on a machine of another kind; of each there is one file."""
        here, kept = kind_of(machine()), path.parent / ELSEWHERE
        (kept / here / path.name).unlink(missing_ok=True)
        if not path.exists():
            return
        there = kind_of(json.loads(path.read_text(encoding="utf-8"))["machine"])
        if there != here:
            (kept / there).mkdir(parents=True, exist_ok=True)
            path.replace(kept / there / path.name)


def measured_here(path: Path | None) -> dict[str, Any]:
    """What a file has that was written on a machine of this kind; nothing without one."""
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found if kind_of(found["machine"]) == kind_of(machine()) else {}


def largest_error(found: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> float:
    """The largest difference, over the largest magnitude of the output that it is in."""
    return max(
        float(np.abs(array - right[name]).max() / (np.abs(right[name]).max() or 1.0))
        for name, array in found.items()
    )


def measured_apart(
    measure: Callable[[], Mapping[str, Any]], limit_s: float, preloaded: Sequence[str] = ()
) -> dict[str, Any]:
    """What is measured in a process of its own within some seconds, or {"error": why nothing is}.

    `preloaded`: modules that every process would load for itself; without any it begins with
    nothing of this one but its environment.
    """
    context: Any = multiprocessing.get_context("forkserver" if preloaded else "spawn")
    if preloaded:
        context.set_forkserver_preload(list(preloaded))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_told, args=(theirs, measure))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return {"error": f"not done in {limit_s:g} s"}
        found = dict(ours.recv())
        process.join(limit_s)
        return found
    except EOFError:
        process.join()
        return {"error": f"the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _told(to: Any, measure: Callable[[], Mapping[str, Any]]) -> None:
    torch.set_num_threads(1)
    try:
        to.send(measure())
    except Exception as error:
        told = re.sub(r"/\S*/site-packages/", "", str(error))  # the same on every machine
        to.send({"error": f"{type(error).__name__}: {told}"})


def kind_of(machine: Mapping[str, Any]) -> str:
    """A name for machines of one kind, for folders.

    >>> kind_of({"processor": "AMD EPYC, cpu family 26, model 2", "instructions": "AVX512"})
    'amd-epyc-cpu-family-26-model-2-avx512'
    """
    words = f"{machine['processor']} {machine.get('instructions', '')}".lower()
    return "-".join(re.findall("[a-z0-9]+", words))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many other processes that compute all the time, as long as the block lasts."""
    code = "while True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


class Command(argparse.ArgumentParser):
    """The command line of a bench: its own arguments, beside `--quick` and `--output`.

    With `--quick` every bench measures the smallest thing it can, within seconds, and writes no
    file that was not asked for: that shows that it still runs, not what anything takes.

    >>> options, record = Command("decode", "Decode a token at a time.").begin(["--quick"])
    >>> options.output, record.arguments
    (None, ['--quick'])
    >>> Command("decode", "Decode a token at a time.").begin([])[0].output
    PosixPath('docs/results/decode.json')
    """

    def __init__(self, name: str, description: str, results: str = "") -> None:
        super().__init__(prog=f"python -m benchmarks.{name}", description=description)
        self.bench, self.results = name, RESULTS / f"{results or name}.json"
        self.add_argument("--quick", action="store_true", help="the smallest size; no file")
        self.add_argument("--output", type=Path, help=f"the JSON file ({self.results})")

    def begin(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, Record]:
        """What was asked for, `output` settled, and the record that begins now.

        Times are of compiled kernels, in processes that this one starts too.
        """
        os.environ.setdefault(COMPILING, "first")
        words = list(sys.argv[1:] if argv is None else argv)
        options = self.parse_args(words)
        options.output = options.output or (None if options.quick else self.results)
        return options, Record(self.bench, words)


def run_models(
    name: str,
    description: str,
    argv: Sequence[str] | None,
    quick: Mapping[str, Callable[[Path], Any]],
    full: Mapping[str, Callable[[Path], Any]],
) -> int:
    """The command of a bench that measures models one by one; returns its exit status.

    `quick` and `full` measure a model, by name, given the folder that keeps random weights. The
    file is written after each: what was measured stays if the command is stopped.
    """
    command = Command(name, description)
    command.add_argument("--only", choices=list(full), help="one model alone")
    command.add_argument("--cache", type=Path, default=cache_folder(), help="keeps random weights")
    options, record = command.begin(argv)
    chosen = quick if options.quick else full
    results: dict[str, Any] = {}
    for model, measure in chosen.items():
        if options.only in (None, model):
            results[model] = measure(options.cache)
            record.write({"models": results}, options.output)
    return 0


def dumped(value: Any, indent: str = "") -> str:
    """JSON with an item a line, but lists of plain values on one.

    >>> print(dumped({"a": [1, 2], "b": [[3], [4]]}))
    {
     "a": [1, 2],
     "b": [
      [3],
      [4]
     ]
    }
    """
    inner = indent + " "
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(str(k))}: {dumped(item, inner)}" for k, item in value.items()]
        ends = "{}"
    elif isinstance(value, (list, tuple)) and any(map(_is_nested, value)):
        items = [dumped(item, inner) for item in value]
        ends = "[]"
    else:
        return json.dumps(value)
    lines = ",\n".join(f"{inner}{item}" for item in items)
    return f"{ends[0]}\n{lines}\n{indent}{ends[1]}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple))


# --- the screen -----------------------------------------------------------------------------------


def ms(time_ns: float) -> str:
    """Milliseconds, three digits that count.

    >>> ms(33_512_000), ms(1_234_000), ms(4_567)
    ('33.5', '1.23', '0.00457')
    """
    return f"{time_ns / 1e6:.3g}" if time_ns < 1e9 else f"{time_ns / 1e6:.0f}"
