"""Decoding one token at a time, in turns with transformers and with the least there is to do.

    mv          every weight matrix of the model once through `torch.mv(out=)`: the floor
    read        the same bytes, read once as fast as two threads can
    tgbench     a whole `GraphSession.run`: the inputs compared, the logits copied out
    bf16, int8  the same with weights rounded to these when the session opens
    dynamic     transformers with a DynamicCache, a forward call a token
    static      transformers with a StaticCache of as many positions as tgbench has
    others      each in a process of its own (`benchmarks.peers`), which times its own step

All are given the same weights and are fed the same text: what tgbench decodes greedily in a
rehearsal. Finding the next token from the logits is outside every timer, and so are the checks: the
logits beside PyTorch's at some positions, and the greedy choice beside the text's next token.
With one thread, what counts is the processor's time: it leaves out what other processes took.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measure import Clocked, Command, both_clocks, busy, middle, threads, timed
from benchmarks.peers import processes
from benchmarks.peers.child import clocked
from benchmarks.peers.compared import LESS, MINE, Compared
from benchmarks.peers.processes import CLOSE, Opened, Peer, Process
from tgbench.base.machine import cache_folder
from tgbench.base.words import format_bytes
from tgbench.commands.demo import is_checkpoint, transformers_version
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import (
    GEMMA3_270M,
    Config,
    gemma3_checkpoint,
    gemma3_reduced,
)

try:
    import numba
except ImportError:
    numba = None  # type: ignore[assignment]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
CHUNK = 1 << 18  # integers of 8 bytes that a thread reads before it takes the next chunk
FLOOR, READ, DYNAMIC, STATIC = "mv", "read", "dynamic", "static"
SHARE = {"fp32": 1.0, "bf16": 0.5, "int8": 0.25}  # of the bytes in float32


@dataclass(frozen=True)
class Size:
    """A model and how much of it is measured.

    Fields:
        tokens: positions of the graph, and of the static cache.
        prompt: ids before the first that is decoded.
        memory: budget of tgbench's arena.
        repetitions, steps: tokens are decoded `repetitions` × `steps` times by each system.
        burst: tokens that a system decodes before the next one has its turn.
        threads: what torch is held to, one measurement each; 0 for what it takes by itself.
    """

    name: str
    config: Config
    tokens: int
    prompt: int
    memory: str
    repetitions: int
    steps: int
    burst: int
    threads: tuple[int, ...]

    @property
    def decoded(self) -> int:
        """Tokens of all measurements, with those that warm up."""
        return len(self.threads) * (WARM + self.repetitions * self.steps)


WARM = 4
PAUSE_S = 0.004  # threads of OpenMP spin for about this long
LARGE = Size("gemma3-270m", GEMMA3_270M, 512, 128, "64MiB", 7, 8, 1, (0, 1))
TOY = Size("gemma3-tiny", gemma3_reduced(), 512, 128, "4MiB", 7, 16, 8, (0, 1))
QUICK = Size("gemma3-tiny", gemma3_reduced(), 64, 16, "1MiB", 2, 4, 2, (0,))


def checkpoint(size: Size, cache: Path) -> Path:
    """Random weights of this size, made once."""
    folder = cache / f"{size.name}-random"
    if not is_checkpoint(folder, size.config):
        note(f"writing random weights to {folder}")
        gemma3_checkpoint(folder, size.config, seed=0)
    return folder


# --- the systems ----------------------------------------------------------------------------------


@dataclass
class Text:
    """The ids that everybody decodes, and the logits at some positions: PyTorch's, or our own."""

    ids: Ids
    prompt: int
    logits: dict[int, Floats] = field(default_factory=dict)


class Mine:
    """tgbench: the whole call, as a user makes it."""

    def __init__(self, size: Size, folder: Path, weights_dtype: Any = None) -> None:
        self.size = size
        graph = gemma3(size.config, size.tokens)
        self.session = GraphSession(
            graph, weights=folder, memory=size.memory, weights_dtype=weights_dtype
        )

    def logits(self, ids: Ids, at: int) -> Floats:
        found: Floats = self.session.run({"ids": ids}, want={"logits": np.s_[0, at]})["logits"]
        return found

    def rehearse(self) -> Text:
        """Decode greedily; every class of run has its program afterwards."""
        size = self.size
        prompt = np.random.default_rng(0).integers(0, size.config["vocab_size"], size.prompt)
        ids = np.zeros((1, size.tokens), np.int64)
        ids[0, : size.prompt] = prompt
        text = Text(ids, size.prompt)
        last = size.prompt + size.decoded - 1
        checked = range(size.prompt, last + 1, max(1, size.decoded // 8))
        for at in range(size.prompt - 1, last + 1):
            found = self.logits(ids, at)
            if at in checked or at == last:
                text.logits[at] = found
            if at < size.tokens - 1:
                ids[0, at + 1] = found.argmax()
        return text

    def follow(self, text: Text) -> Callable[[int], Callable[[], Floats]]:
        self.session.forget()
        ids = np.zeros_like(text.ids)
        ids[:, : text.prompt] = text.ids[:, : text.prompt]
        self.logits(ids, text.prompt - 1)

        def prepare(at: int) -> Callable[[], Floats]:
            ids[0, at] = text.ids[0, at]
            return lambda: self.logits(ids, at)

        return prepare


class Theirs:
    """transformers: the prompt is in the cache, then one id goes in at a time."""

    def __init__(self, model: Any, size: Size, kind: str) -> None:
        from transformers import DynamicCache, StaticCache

        self.model = model
        self.cache: Any = (
            DynamicCache(config=model.config)
            if kind == DYNAMIC
            else StaticCache(config=model.config, max_cache_len=size.tokens)
        )

    def call(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = self.model(
                input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1
            ).logits[0, -1]
            return found

    def follow(self, text: Text) -> Callable[[int], Callable[[], Any]]:
        self.call(torch.from_numpy(text.ids[:, : text.prompt]))

        def prepare(at: int) -> Callable[[], Any]:
            one = torch.from_numpy(text.ids[:, at : at + 1])
            return lambda: self.call(one)

        return prepare


def load_theirs(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).eval()


def expected(model: Any, text: Text) -> dict[int, Floats]:
    """PyTorch's logits at the positions that are compared, of one forward call without a cache."""
    positions = sorted(text.logits)
    ids = torch.from_numpy(text.ids[:, : positions[-1] + 1])
    with torch.inference_mode():
        found = model(input_ids=ids, use_cache=False, logits_to_keep=torch.tensor(positions))
    return dict(zip(positions, found.logits[0].numpy(), strict=True))


@dataclass(frozen=True)
class Taken:
    """One step: its times, its greedy choice, and its logits where they were wanted."""

    wall_ns: int
    cpu_ns: int
    choice: int
    logits: Floats | None


def local(prepare: Callable[[int], Callable[[], Any]]) -> Callable[[int, bool], Taken]:
    """The steps of a system in this process."""

    def step(at: int, wanted: bool) -> Taken:
        found, clocks = clocked(prepare(at))
        logits: Floats = np.asarray(found)
        return Taken(**clocks, choice=int(logits.argmax()), logits=logits if wanted else None)

    return step


def distant(process: Process, text: Text, file: Path) -> Callable[[int, bool], Taken]:
    """The steps of a system in another process, which gives logits in a file."""

    def step(at: int, wanted: bool) -> Taken:
        token, save = int(text.ids[0, at]), str(file) if wanted else None
        found = process.ask("step", token=token, at=at, save=save)
        logits = np.load(file) if wanted else None
        return Taken(found["wall_ns"], found["cpu_ns"], found["choice"], logits)

    return step


@dataclass
class Follower:
    """A system on its way through the text; a call is one step and gives its nanoseconds.

    Fields:
        step: position, whether its logits are wanted → what it took and gave.
        cpu: nanoseconds of the processor, of every step.
        worst: largest difference to the logits expected so far, over the largest logit.
        missed: steps whose greedy choice was not the text's next id.
    """

    step: Callable[[int, bool], Taken]
    text: Text
    at: int
    cpu: list[int] = field(default_factory=list)
    worst: float = 0.0
    missed: int = 0
    checked: int = 0

    def __call__(self) -> int:
        at, ids, expected = self.at, self.text.ids[0], self.text.logits.get(self.at)
        taken = self.step(at, expected is not None)
        self.cpu.append(taken.cpu_ns)
        if at + 1 < len(ids):
            self.missed += taken.choice != int(ids[at + 1])
        if taken.logits is not None and expected is not None:
            largest = max(float(np.abs(expected).max()), 1e-30)
            self.worst = max(self.worst, float(np.abs(taken.logits - expected).max()) / largest)
            self.checked += 1
        self.at += 1
        return taken.wall_ns


# --- the least there is to do ---------------------------------------------------------------------


def matrices(session: GraphSession) -> list[torch.Tensor]:
    """Every weight matrix, as the session has it mapped; a tied one once."""
    found = []
    for name, node in session.graph.parameters.items():
        tensor = session.pool.buffers[name, node.dtype]
        if tensor.dim() == 2:
            found.append(tensor)
    return found


def products(weights: Sequence[torch.Tensor]) -> Clocked:
    """Each matrix times a vector."""
    outs = {size: torch.empty(size) for size in {int(w.shape[0]) for w in weights}}
    vectors = {size: torch.randn(size) for size in {int(w.shape[1]) for w in weights}}
    calls = [(w, vectors[int(w.shape[1])], outs[int(w.shape[0])]) for w in weights]

    def run() -> None:
        for weight, vector, out in calls:
            torch.mv(weight, vector, out=out)

    return Clocked(run)


def reading(folder: Path) -> Clocked:
    """Every byte of the weight file once: 16 parts a thread, whoever is free takes the next."""
    path = folder / "model.safetensors"
    count = path.stat().st_size // 8
    numbers = torch.from_file(str(path), shared=True, size=count, dtype=torch.int64)
    if numba is None:
        return Clocked(numbers.view(torch.float32).sum)
    data, total, pool = numbers.numpy(), _total(), ThreadPoolExecutor(torch.get_num_threads())

    def read() -> None:
        threads = torch.get_num_threads()
        if threads == 1:
            total(data)
        else:
            sum(pool.map(total, np.array_split(data, 16 * threads)))

    return Clocked(read)


def _total() -> Callable[[npt.NDArray[np.int64]], int]:
    """The sum of integers, read at four places a quarter of the array apart."""

    @numba.njit(nogil=True)
    def total(data):  # type: ignore[no-untyped-def]
        quarter = data.size // 4
        a = b = c = d = 0
        for i in range(np.uint64(quarter)):
            a += data[i]
            b += data[i + quarter]
            c += data[i + 2 * quarter]
            d += data[i + 3 * quarter]
        return a + b + c + d

    compiled: Callable[[npt.NDArray[np.int64]], int] = total
    return compiled


# --- measuring ------------------------------------------------------------------------------------


LABELS = {
    FLOOR: "mv: every matrix once",
    READ: "read: every byte once",
    MINE: "tgbench",
    **dict.fromkeys(LESS, "tgbench"),
    DYNAMIC: "transformers, dynamic cache",
    STATIC: "transformers, static cache",
}


@dataclass(frozen=True)
class Case(Compared):
    """One model with one number of threads, measured."""

    labels = LABELS

    size: Size
    followers: Mapping[str, Follower]

    @property
    def agrees(self) -> bool:
        close = {one.peer.name: one.peer.close for one in self.peers}
        return all(
            follower.missed == 0 and follower.worst <= close.get(name, CLOSE)
            for name, follower in self.followers.items()
            if self.precisions[name] == "fp32"
        )

    @property
    def others(self) -> list[str]:
        return [name for name in self.followers if name not in (MINE, *LESS)]

    def over_read(self, name: str) -> float:
        """The time over that of reading all weights once, at the precision of this system."""
        return middle(self.samples.ratios(name, READ)) / SHARE[self.precisions[name]]

    def summary(self) -> dict[str, Any]:
        s, names = self.samples, list(self.samples.times)
        return {
            **super().summary(),
            "repetition_medians_ms": {n: [t / 1e6 for t in s.medians(n)] for n in names},
            "over_mv": {name: middle(s.ratios(name, FLOOR)) for name in names},
            "over_read": {name: self.over_read(name) for name in names},
            "largest_difference": {name: f.worst for name, f in self.followers.items()},
            "logits_compared": {name: f.checked for name, f in self.followers.items()},
            "choices_that_differ": {name: f.missed for name, f in self.followers.items()},
            "agrees": self.agrees,
        }

    def to_dict(self) -> dict[str, Any]:
        return {"model": {**asdict(self.size), "threads": self.threads}, **super().to_dict()}

    def __str__(self) -> str:
        size = self.size
        header = [
            "system", "weights", "ms a token", "of the processor", "÷ read", "÷ tgbench",
            "tgbench faster in", "largest difference", "other choices",
        ]  # fmt: skip
        lines = [
            f"{size.name}, {size.tokens} positions, prompt {size.prompt}, {self.threads} "
            f"thread{'s' * (self.threads > 1)}: {size.repetitions} repetitions of {size.steps} "
            f"tokens, in turns; ratios by the {self.clock}'s clock",
            table(header, [self._row(name) for name in self.samples.times]),
        ]
        return "\n".join([*lines, *self.missing])

    def _row(self, name: str) -> list[str]:
        row = [*self.times(name), f"{self.over_read(name):.2f}"]
        follower = self.followers.get(name)
        if follower is None:
            return [*row, "", "", "", ""]
        return [*row, *self.beside_mine(name), f"{follower.worst:.0e}", str(follower.missed)]


def measure(
    size: Size, cache: Path, with_theirs: bool, peers: Sequence[Peer], work: Path
) -> Iterator[Case]:
    """All systems of one model, opened anew with each number of threads."""
    folder = checkpoint(size, cache)
    for count in size.threads:
        with threads(count or torch.get_num_threads()):
            case = _measured(size, folder, with_theirs, peers, work)
        say(f"\n{case}")
        facts = case.facts
        say(
            f"weights {format_bytes(facts['weight_bytes'])} in {facts['weight_matrices']} "
            f"matrices; arena {format_bytes(facts['arena_bytes'] or 0)} of {size.memory}; "
            f"{facts['instructions']} instructions a token in {facts['calls']} calls"
        )
        yield case


def _measured(
    size: Size, folder: Path, with_theirs: bool, peers: Sequence[Peer], work: Path
) -> Case:
    """All systems of one model, with the threads that torch has now."""
    held = torch.get_num_threads()
    note(f"{size.name}: {held} thread(s): opening, planning, rehearsing {size.decoded} tokens")
    mine, opened_ns = timed(lambda: Mine(size, folder))
    text = mine.rehearse()
    report = mine.session.last
    weights = matrices(mine.session)
    followers = {MINE: Follower(local(mine.follow(text)), text, size.prompt)}
    for dtype in LESS:
        rounded = Mine(size, folder, dtype)
        rounded.rehearse()
        followers[dtype] = Follower(local(rounded.follow(text)), text, size.prompt)
    if with_theirs:
        note(f"{size.name}: loading transformers")
        model = load_theirs(folder)
        text.logits |= expected(model, text)
        for kind in (DYNAMIC, STATIC):
            them = Theirs(model, size, kind)
            followers[kind] = Follower(local(them.follow(text)), text, size.prompt)
    floors = {FLOOR: products(weights), READ: reading(folder)}
    estimate = mine.session.estimate_memory()["cpu"]
    assert report is not None
    facts = {
        "weight_bytes": sum(w.numel() * w.element_size() for w in weights),
        "weight_matrices": len(weights),
        "read_by": "torch.sum" if numba is None else "numba",
        "compared_with": "PyTorch" if with_theirs else "tgbench",
        "arena_bytes": estimate.arena_bytes,
        "retained_bytes": mine.session.placement.kept_bytes,
        "instructions": report.instructions,
        "calls": report.calls,
        "opened_ms": opened_ns / 1e6,
    }
    at = followers[MINE].at
    with others(peers, folder, work, text, at, size, held) as found:
        everybody = followers | found.followers
        wall, cpu = both_clocks(
            floors | everybody,
            size.repetitions,
            size.steps,
            WARM,
            burst=size.burst,
            pause_s=PAUSE_S,
            tell=note,
        )
    return Case(held, wall, cpu, found.opened, facts, size, everybody)


@dataclass(frozen=True)
class Others:
    """The peers of a measurement, and those of them that follow the text."""

    opened: Sequence[Opened]
    followers: Mapping[str, Follower]


@contextmanager
def others(
    peers: Iterable[Peer], folder: Path, work: Path, text: Text, at: int, size: Size, count: int
) -> Iterator[Others]:
    """Peers that have the first `at` ids, as long as the block lasts."""
    ids = text.ids[0, :at].tolist()
    job = {"task": "decode", "threads": count, "tokens": size.tokens}
    with (
        TemporaryDirectory() as files,
        processes.opened(
            peers,
            lambda process: process.ask("prompt", ids=ids),
            model=str(folder),
            work=str(work),
            **job,
        ) as opened,
    ):
        steps = {
            one.peer.name: distant(one.process, text, Path(files) / "logits.npy")
            for one in opened
            if one.process
        }
        followers = {name: Follower(step, text, at) for name, step in steps.items()}
        yield Others(opened, followers)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if the systems do not agree on the logits."""
    command = Command("decode", "Decode a token at a time, in turns.")
    command.add_argument("--repetitions", type=int, help="of each measurement")
    command.add_argument("--only", choices=[LARGE.name, TOY.name], help="one model alone")
    command.add_argument("--cache", type=Path, default=cache_folder(), help="keeps random weights")
    command.add_argument("--alone", action="store_true", help="without systems of .venv-peers")
    command.add_argument(
        "--busy", type=int, default=0, help="others that compute meanwhile; threads as torch has"
    )
    options, record = command.begin(argv)
    sizes = [QUICK] if options.quick else [LARGE, TOY]
    if options.only:
        sizes = [size for size in sizes if size.name == options.only]
    with_theirs = bool(transformers_version())
    if not with_theirs:
        say("transformers is not installed: only tgbench and the floors are measured")
    cases = []
    for size in sizes:
        sized = size if options.repetitions is None else _sized(size, options.repetitions)
        if options.busy:
            sized = replace(sized, threads=(0,))
        peers = processes.DECODE if size is LARGE and not options.alone else ()
        with busy(options.busy):
            cases += measure(sized, options.cache, with_theirs, peers, options.cache / "peers")
    found = {"busy": options.busy, "cases": [case.to_dict() for case in cases]}
    record.write(found, options.output)
    if not all(case.agrees for case in cases):
        say("error: the logits are not equal, see above")
        return 1
    return 0


def _sized(size: Size, repetitions: int) -> Size:
    sized = replace(size, repetitions=repetitions)
    if sized.prompt + sized.decoded > sized.tokens:
        raise SystemExit(
            f"{repetitions} repetitions decode {sized.decoded} tokens after {sized.prompt}, more "
            f"than the {sized.tokens} positions of {sized.name}; use fewer"
        )
    return sized


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
