"""Decoding one token at a time, in turns with transformers and with the least there is to do.

    mv          every weight matrix of the model once through `torch.mv(out=)`: the floor
    read        the same bytes, read once as fast as two threads can
    tgbench     a whole `GraphSession.run`: the inputs compared, the logits copied out
    bf16, int8  the same with weights rounded to these when the session opens
    dynamic     transformers with a DynamicCache, a forward call a token
    static      transformers with a StaticCache of as many positions as tgbench has

All are given the same weights, mapped from one file, and are fed the same text: what tgbench
decodes greedily in a rehearsal. Finding the next token from the logits is outside every timer, and
so is the check that the greedy choice of each system in float32 is the text's next token.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measure import Command, Samples, Step, ms, take_turns, threads, timed
from tgbench.base.machine import cache_folder
from tgbench.base.words import format_bytes
from tgbench.commands.demo import is_checkpoint, transformers_version
from tgbench.commands.progress import note, say, table
from tgbench.kernels.numba.second_core import shared
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
CLOSE = 1e-4  # largest difference between logits, over the largest logit
CHUNK = 1 << 18  # integers of 8 bytes that a thread reads before it takes the next chunk
FLOOR, READ, MINE, DYNAMIC, STATIC = "mv", "read", "tgbench", "dynamic", "static"
LESS = ("bf16", "int8")


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
    """The ids that everybody decodes, and tgbench's logits at some positions."""

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


@dataclass
class Follower:
    """A system on its way through the text; a call is one step and gives its nanoseconds.

    Fields:
        prepare: position → the step to time.
        worst: largest difference to tgbench's logits so far, over the largest logit.
        missed: steps whose greedy choice was not the text's next id.
    """

    prepare: Callable[[int], Callable[[], Any]]
    text: Text
    at: int
    worst: float = 0.0
    missed: int = 0
    checked: int = 0

    def __call__(self) -> int:
        at, ids = self.at, self.text.ids[0]
        logits, took = timed(self.prepare(at))
        found: Floats = np.asarray(logits)
        if at + 1 < len(ids):
            self.missed += int(found.argmax()) != int(ids[at + 1])
        expected = self.text.logits.get(at)
        if expected is not None:
            largest = max(float(np.abs(expected).max()), 1e-30)
            self.worst = max(self.worst, float(np.abs(found - expected).max()) / largest)
            self.checked += 1
        self.at += 1
        return took


# --- the least there is to do ---------------------------------------------------------------------


def matrices(session: GraphSession) -> list[torch.Tensor]:
    """Every weight matrix, as the session has it mapped; a tied one once."""
    found = []
    for name, node in session.graph.parameters.items():
        tensor = session.pool.buffers[name, node.dtype]
        if tensor.dim() == 2:
            found.append(tensor)
    return found


def products(weights: Sequence[torch.Tensor]) -> Step:
    """Each matrix times a vector."""
    outs = {size: torch.empty(size) for size in {int(w.shape[0]) for w in weights}}
    vectors = {size: torch.randn(size) for size in {int(w.shape[1]) for w in weights}}
    calls = [(w, vectors[int(w.shape[1])], outs[int(w.shape[0])]) for w in weights]

    def run() -> None:
        for weight, vector, out in calls:
            torch.mv(weight, vector, out=out)

    return lambda: timed(run)[1]


def reading(folder: Path) -> Step:
    """Every byte of the weight file once; with numba two threads sum integers, else torch does."""
    path = folder / "model.safetensors"
    count = path.stat().st_size // 8
    numbers = torch.from_file(str(path), shared=True, size=count, dtype=torch.int64)
    if numba is None:
        floats = numbers.view(torch.float32)
        return lambda: timed(floats.sum)[1]
    turns, data, sums = _sum_turns(), numbers.numpy(), np.zeros(1, np.int64)
    return lambda: timed(lambda: shared(turns, data, sums, CHUNK))[1]


def _sum_turns() -> Callable[..., int]:
    """As `loops.linear_turns`: threads take chunks until none are left."""
    from tgbench.kernels.numba import loops

    add: Any = loops._add

    @numba.njit(nogil=True)
    def run(turn, data, sums, chunk):  # type: ignore[no-untyped-def]
        chunks = (data.size + chunk - 1) // chunk
        while True:
            mine = add(turn, 0, 1)
            if mine >= chunks:
                return chunks
            total = 0
            for i in range(np.uint64(mine * chunk), np.uint64(min(data.size, (mine + 1) * chunk))):
                total += data[i]
            add(sums, 0, total)
            add(turn, 1, 1)

    compiled: Callable[..., int] = run
    return compiled


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One model with one number of threads, measured."""

    size: Size
    threads: int
    samples: Samples
    followers: Mapping[str, Follower]
    facts: Mapping[str, Any]

    @property
    def agrees(self) -> bool:
        whole = [f for name, f in self.followers.items() if name not in LESS]
        return all(f.missed == 0 and f.worst <= CLOSE for f in whole)

    @property
    def others(self) -> list[str]:
        return [name for name in (DYNAMIC, STATIC) if name in self.samples.times]

    def summary(self) -> dict[str, Any]:
        s = self.samples
        names = list(s.times)
        return {
            "median_ms": {name: s.median(name) / 1e6 for name in names},
            "repetition_medians_ms": {n: [t / 1e6 for t in s.medians(n)] for n in names},
            "over_mv": {name: _middle(s.ratios(name, FLOOR)) for name in names},
            "over_read": {name: _middle(s.ratios(name, READ)) for name in names},
            "times_faster": {name: _middle(s.ratios(name, MINE)) for name in self.others},
            "faster_in_every_repetition": {n: s.always_faster(MINE, n) for n in self.others},
            "time_above_mv_over_theirs": {n: _middle(s.above(MINE, n, FLOOR)) for n in self.others},
            "time_above_read_over_theirs": {
                n: _middle(s.above(MINE, n, READ)) for n in self.others
            },
            "largest_difference": {name: f.worst for name, f in self.followers.items()},
            "logits_compared": {name: f.checked for name, f in self.followers.items()},
            "choices_that_differ": {name: f.missed for name, f in self.followers.items()},
            "agrees": self.agrees,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": {**asdict(self.size), "threads": self.threads},
            **self.facts,
            "summary": self.summary(),
            "loads": self.samples.loads,
            "samples_ns": self.samples.times,
        }

    def __str__(self) -> str:
        s, size = self.samples, self.size
        rows = []
        for name in s.times:
            over = s.ratios(name, FLOOR)
            rows.append([
                LABELS[name],
                ms(s.median(name)),
                f"{_middle(over):.2f}",
                f"{min(over):.2f}–{max(over):.2f}",
                f"{_middle(s.ratios(name, READ)):.2f}",
                f"{s.median(name) / s.median(MINE):.2f}",
            ])  # fmt: skip
        lines = [
            f"{size.name}, fp32, {size.tokens} positions, prompt {size.prompt}, {self.threads} "
            f"thread{'s' * (self.threads > 1)}: {size.repetitions} repetitions of {size.steps} "
            f"tokens, in turns",
            table(["system", "ms a token", "÷ mv", "range", "÷ read", "÷ tgbench"], rows),
        ]
        lines += [self._compared(other) for other in self.others]
        lines += [
            f"{LABELS[dtype]}: logits differ by {self.followers[dtype].worst:.1e} of the largest "
            f"at most, {self.followers[dtype].missed} greedy choices differ"
            for dtype in LESS
        ]
        return "\n".join(lines)

    def _compared(self, other: str) -> str:
        s, follower = self.samples, self.followers[other]
        wins = [ratio < 1 for ratio in s.ratios(MINE, other)]
        above = (_middle(s.above(MINE, other, floor)) for floor in (FLOOR, READ))
        return (
            f"beside {LABELS[other]}:\n"
            f"  {_middle(s.ratios(other, MINE)):.2f} × faster, "
            f"in {sum(wins)} of {len(wins)} repetitions\n"
            "  time above mv {:.2f}, above read {:.2f} of theirs (< 0: below it)\n".format(*above)
            + f"  logits differ by {follower.worst:.1e} of the largest at most, "
            f"{follower.missed} greedy choices differ"
        )


LABELS = {
    FLOOR: "mv: every matrix once",
    READ: "read: every byte once",
    MINE: "tgbench",
    **{dtype: f"tgbench, weights in {dtype}" for dtype in LESS},
    DYNAMIC: "transformers, dynamic cache",
    STATIC: "transformers, static cache",
}


def _middle(ratios: Sequence[float]) -> float:
    return float(np.median(ratios))


def measure(size: Size, cache: Path, with_theirs: bool) -> list[Case]:
    """All systems of one model, with each number of threads."""
    folder = checkpoint(size, cache)
    note(f"{size.name}: opening, planning, rehearsing {size.decoded} tokens")
    mine, opened_ns = timed(lambda: Mine(size, folder))
    text = mine.rehearse()
    weights = matrices(mine.session)
    followers = {MINE: Follower(mine.follow(text), text, size.prompt)}
    for dtype in LESS:
        rounded = Mine(size, folder, dtype)
        rounded.rehearse()
        followers[dtype] = Follower(rounded.follow(text), text, size.prompt)
    if with_theirs:
        note(f"{size.name}: loading transformers")
        model = load_theirs(folder)
        for kind in (DYNAMIC, STATIC):
            them = Theirs(model, size, kind)
            followers[kind] = Follower(them.follow(text), text, size.prompt)
    systems: dict[str, Step] = {FLOOR: products(weights), READ: reading(folder), **followers}
    report, estimate = mine.session.last, mine.session.estimate_memory()["cpu"]
    assert report is not None
    facts = {
        "weight_bytes": sum(w.numel() * w.element_size() for w in weights),
        "weight_matrices": len(weights),
        "read_by": "torch.sum" if numba is None else "numba",
        "arena_bytes": estimate.arena_bytes,
        "retained_bytes": mine.session.placement.kept_bytes,
        "instructions": report.instructions,
        "opened_ms": opened_ns / 1e6,
    }
    cases = []
    for count in size.threads:
        with threads(count or torch.get_num_threads()):
            held = torch.get_num_threads()
            note(f"{size.name}: {held} thread(s)")
            take_turns(systems, 1, WARM, burst=WARM)
            samples = take_turns(
                systems,
                size.repetitions,
                size.steps,
                burst=size.burst,
                pause_s=PAUSE_S,
                tell=note,
            )
        cases.append(Case(size, held, samples, followers, facts))
        say(f"\n{cases[-1]}")
    say(
        f"weights {format_bytes(facts['weight_bytes'])} in {len(weights)} matrices; arena "
        f"{format_bytes(estimate.arena_bytes or 0)} of {size.memory}; "
        f"{report.instructions} instructions a token"
    )
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if the systems do not agree on the logits."""
    command = Command("decode", "Decode a token at a time, in turns.")
    command.add_argument("--repetitions", type=int, help="of each measurement")
    command.add_argument("--only", choices=[LARGE.name, TOY.name], help="one model alone")
    command.add_argument("--cache", type=Path, default=cache_folder(), help="keeps random weights")
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
        cases += measure(sized, options.cache, with_theirs)
    record.write({"cases": [case.to_dict() for case in cases]}, options.output)
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
