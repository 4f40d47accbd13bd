"""Everything computed: models in full runs, in turns with PyTorch and with other runtimes.

    tgbench     a session that forgets, then runs; with packed weights, without, and with weights
                and arithmetic in bfloat16, which is what OpenVINO means by it
    path        one that computes by the fastest of some paths (`benchmarks.best_path` asks for it)
    edit        the same session where one element of the input changed
    eager       the module itself
    compiled    `torch.compile` with freezing: weights are constants, in the layout that is wanted
    others      each in a process of its own (`benchmarks.peers`), which times its own runs

With `--busy` so many other processes compute meanwhile, and PyTorch has a process of its own as
well: how threads wait for each other is decided for a whole process (`tgbench.kernels.waiting`).

Outputs are compared with PyTorch's. With one thread, what counts is the processor's time.

    python -m benchmarks.forward
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Clocked, Command, both_clocks, busy, threads
from benchmarks.peers import processes
from benchmarks.peers.compared import MINE, Compared
from benchmarks.peers.processes import CLOSE, Peer, Process
from tgbench.base.machine import cache_folder
from tgbench.commands.apps.cnn import NETWORKS, seeded
from tgbench.commands.progress import note, say, table
from tgbench.costs.records import Records
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.session.paths import SessionPaths
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

Inputs: TypeAlias = dict[str, np.ndarray[Any, Any]]
Array: TypeAlias = np.ndarray[Any, Any]
THREADS, REPETITIONS, STEPS, WARM, PAUSE_S = (2, 1), 5, 3, 2, 0.004
EAGER, EDIT, PATH = "eager", "edit", "path"
PATHS, KERNELS_S, LIMITS = 6, 30.0, SaturationLimits(nodes=6_000, seconds=60)
LABELS = {
    MINE: "tgbench",
    "unpacked": "tgbench, packed_bytes=0",
    "bf16": "tgbench, weights and arithmetic",
    PATH: "tgbench, fastest path",
    EDIT: "tgbench, one element changed",
    EAGER: "PyTorch",
    "compiled": "torch.compile, freezing",
}
MODELS: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "encoder": lambda: encoder(6, 4096),
    "resnet50": lambda: image("resnet50"),
    "vgg16": lambda: image("vgg16"),
}
QUICK = {"encoder": lambda: encoder(1, 256)}


@dataclass(frozen=True)
class Amount:
    """How much is measured, and beside whom."""

    threads: Sequence[int] = THREADS
    repetitions: int = REPETITIONS
    steps: int = STEPS
    eager: bool = True
    compiled: bool = True
    paths: bool = False
    peers: Sequence[Peer] = processes.FORWARD


SMALLEST = Amount((1,), 1, 1, compiled=False, peers=())


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if outputs in float32 differ."""
    command = Command("forward", "Everything computed, beside other systems.")
    command.add_argument("--only", choices=list(MODELS), help="one model alone")
    command.add_argument("--alone", action="store_true", help="without systems of .venv-peers")
    command.add_argument(
        "--cache", type=Path, default=cache_folder(), help="keeps what is converted"
    )
    command.add_argument("--threads", type=int, nargs="+", default=THREADS, help="(2 1)")
    command.add_argument("--busy", type=int, default=0, help="others that compute meanwhile")
    options, record = command.begin(argv)
    is_quiet = not options.busy
    others = processes.FORWARD if is_quiet else processes.BESIDE_OTHERS
    amount = SMALLEST if options.quick else Amount(
        options.threads, eager=is_quiet, compiled=is_quiet, peers=() if options.alone else others
    )  # fmt: skip
    models = {name: make for name, make in MODELS.items() if options.only in (None, name)}
    with busy(options.busy):
        cases = [
            case
            for name, make in (QUICK if options.quick else models).items()
            for case in measure(name, *make(), amount, options.cache / "peers")
        ]
    found = {"busy": options.busy, "cases": [case.to_dict() for case in cases]}
    record.write(found, options.output)
    if not all(case.agrees for case in cases):
        say("error: the outputs are not equal, see above")
        return 1
    return 0


# --- one model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case(Compared):
    """One model with one number of threads, measured.

    Fields:
        differences: largest difference to PyTorch's output, over the largest value.
    """

    labels = LABELS

    name: str
    differences: Mapping[str, float]

    @property
    def agrees(self) -> bool:
        pairs = self.differences.items()
        return all(worst <= CLOSE for name, worst in pairs if self.precisions[name] == "fp32")

    @property
    def others(self) -> list[str]:
        return [
            name for name in self.wall.times if name not in LABELS or name in (EAGER, "compiled")
        ]

    def summary(self) -> dict[str, Any]:
        return {
            **super().summary(), "largest_difference": self.differences, "agrees": self.agrees,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.name, "threads": self.threads, **super().to_dict()}

    def __str__(self) -> str:
        header = [
            "system", "precision", "ms", "of the processor", "÷ tgbench", "tgbench faster in",
            "largest difference",
        ]  # fmt: skip
        lines = [
            f"{self.name}, {self.threads} thread{'s' * (self.threads > 1)}; ratios by the "
            f"{self.clock}'s clock",
            table(header, [self._row(name) for name in self.wall.times]),
        ]
        return "\n".join([*lines, *self.missing])

    def _row(self, name: str) -> list[str]:
        worst = self.differences.get(name)
        off = "" if worst is None else f"{worst:.0e}"
        return [*self.times(name), *self.beside_mine(name), off]


def measure(name: str, module: nn.Module, x: Tensor, amount: Amount, work: Path) -> Iterator[Case]:
    """A model with each number of threads, beside everybody."""
    given = _exported(name, module, x, work) if amount.peers else {}
    for count in amount.threads:
        with threads(count), TemporaryDirectory() as files, torch.no_grad():
            expected = module(x).numpy()
            note(f"{name}: {count} thread(s), opening")
            ours = Ours(module, x, amount.paths)
            job = {"task": "forward", "threads": count, "work": str(work), **given}
            with processes.opened(amount.peers, _first_run, **job) as peers:
                local = ours.works() | _theirs(module, x, amount)
                outputs = {key: np.asarray(work()) for key, work in local.items() if key != EDIT}
                systems: dict[str, Clocked | Distant] = {k: Clocked(w) for k, w in local.items()}
                for one in peers:
                    if one.process:
                        systems[one.peer.name] = Distant(one.process)
                        outputs[one.peer.name] = _output(one.process, Path(files) / "output.npy")
                wall, cpu = both_clocks(
                    systems, amount.repetitions, amount.steps, WARM, pause_s=PAUSE_S, tell=note
                )
            differences = {key: _difference(found, expected) for key, found in outputs.items()}
            case = Case(count, wall, cpu, peers, ours.facts(), name, differences)
            say(f"\n{case}")
            yield case


class Ours:
    """Sessions of a module, as `work` to clock."""

    def __init__(self, module: nn.Module, x: Tensor, with_paths: bool) -> None:
        imported = from_torch(module, (x,))
        (self.key,), (self.output,) = imported.graph.inputs, imported.graph.outputs
        self.given: Inputs = {self.key: x.numpy().copy()}
        self.sessions = {
            MINE: GraphSession(imported),
            "unpacked": GraphSession(imported, packed_bytes=0),
            "bf16": GraphSession(imported, arithmetic="bf16", weights_dtype="bf16"),
            EDIT: GraphSession(imported),
        }
        self.path: dict[str, Any] = {}
        if with_paths:
            self.sessions[PATH] = GraphSession(imported)
            self.path = self.fastest_path(self.sessions[PATH])
        changed = self.given[self.key].copy()
        middle = tuple(n // 2 for n in changed.shape)
        changed[middle] = 1 if changed.dtype == np.int64 else -changed[middle]
        self.turns = [self.given, {self.key: changed}]

    def works(self) -> dict[str, Callable[[], Array]]:
        works: dict[str, Callable[[], Array]] = {
            name: lambda session=session: self.full(session)
            for name, session in self.sessions.items()
        }
        return works | {EDIT: self.edit}

    def full(self, session: GraphSession) -> Array:
        session.forget()
        found: Array = session.run(self.given)[self.output]
        return found

    def fastest_path(self, session: GraphSession) -> dict[str, Any]:
        """Let a session compute by the path whose whole runs are the fastest; what is said of it.

        `holds_back` are the calls that it is expected to take longest for.
        """
        session.run(self.given)
        paths = SessionPaths.of(session, limits=LIMITS)
        with TemporaryDirectory() as folder:
            records = Records(Path(folder) / "records.db")
            paths.sweep(records, PATHS, KERNELS_S)
        different = list(paths.paths.different(PATHS).values())
        took = paths.race([*different, paths.given])
        best = min(range(len(took)), key=took.__getitem__)
        path = [*different, paths.given][best]
        paths.take(path)
        calls = sorted(path.calls, key=lambda call: -call.weight * call.kernels[0][1].time_ns)
        return {
            "rules": list(path.rules),
            "raced": [round(one / took[-1], 3) for one in took],
            "expected": round(path.time_ns / paths.given.time_ns, 3),
            "holds_back": [
                {
                    "node": call.node.name, "call": call.lying,
                    "kernel": call.kernels[0][0].name,
                    "share": round(call.weight * call.kernels[0][1].time_ns / path.time_ns, 3),
                }
                for call in calls[:3]
            ],
        }  # fmt: skip

    def edit(self) -> Array:
        """There and back: a run with one element changed each time."""
        self.turns.reverse()
        found: Array = self.sessions[EDIT].run(self.turns[0])[self.output]
        return found

    def facts(self) -> dict[str, Any]:
        pool = self.sessions[MINE].pool
        found = {"packed_bytes": pool.packed_bytes, "parameter_bytes": pool.parameter_bytes}
        return {**found, "path": self.path} if self.path else found


def _theirs(module: nn.Module, x: Tensor, amount: Amount) -> dict[str, Callable[[], Array]]:
    """PyTorch as it is, and compiled for the threads of the moment."""
    works: dict[str, Callable[[], Array]] = {}
    if amount.eager:
        works[EAGER] = lambda: module(x).numpy()
    if amount.compiled:
        from torch._inductor import config

        config.freezing = True
        torch._dynamo.reset()
        compiled = torch.compile(module)
        works["compiled"] = lambda: compiled(x).numpy()
    return works


@dataclass
class Distant:
    """A system in another process; a call is one run and gives its nanoseconds."""

    process: Process
    cpu: list[int] = field(default_factory=list)

    def __call__(self) -> int:
        found = self.process.ask("run")
        self.cpu.append(found["cpu_ns"])
        return int(found["wall_ns"])


def _first_run(process: Process) -> None:
    process.ask("run")


def _output(process: Process, file: Path) -> Array:
    process.ask("run", save=str(file))
    found: Array = np.load(file)
    return found


def _exported(name: str, module: nn.Module, x: Tensor, work: Path) -> dict[str, str]:
    """The files that others read: the module, once, and its input."""
    work.mkdir(parents=True, exist_ok=True)
    model, inputs = work / f"{name}.pt2", work / f"{name}-input.npy"
    if not model.exists():
        with torch.no_grad():
            torch.export.save(torch.export.export(module, (x,)), model)
    np.save(inputs, x.numpy())
    return {"model": str(model), "inputs": str(inputs)}


def _difference(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# --- models ---------------------------------------------------------------------------------------


def image(name: str) -> tuple[nn.Module, Tensor]:
    """A CNN with seeded weights, and an image."""
    pixels = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    return seeded(NETWORKS[name]()), torch.from_numpy(pixels)


class _Encoder(nn.Module):
    """A text encoder of MiniLM's sizes: the last hidden state of a batch of two texts."""

    def __init__(self, layers: int, vocabulary: int) -> None:
        import transformers

        super().__init__()
        config = transformers.BertConfig(
            hidden_size=384, num_hidden_layers=layers, num_attention_heads=12,
            intermediate_size=1536, vocab_size=vocabulary,
        )  # fmt: skip
        torch.manual_seed(0)
        self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.bert(input_ids=ids).last_hidden_state
        return found


def encoder(layers: int, vocabulary: int) -> tuple[nn.Module, Tensor]:
    """The encoder, and two texts of 64 tokens: an edit recomputes one of them."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (2, 64))
    return _Encoder(layers, vocabulary).eval(), torch.from_numpy(ids)


if __name__ == "__main__":
    sys.exit(main())
