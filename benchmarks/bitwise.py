"""Bit-exact mode after many edits: bits that differ, and what it takes beside the normal mode.

    edits     200 of each model, one after the other, in a session with a past
    compared  every output, bit for bit, with a run from nothing in a session made for it
    beside    the same for the normal mode, whose last bits follow from the slices that were run

Times are of the processor, the two modes in turns. They hold all that a run does, the deciding of
runs at places never seen before included; what executing takes is told apart, by the wall clock.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Command, ms
from tgbench.base.machine import cache_folder
from tgbench.commands.progress import note, say, table
from tgbench.graph.graph import Graph
from tgbench.session.session import GraphSession
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import find_minilm, gemma3_checkpoint, gemma3_reduced

Array = NDArray[Any]
MODES = {"bitwise": "bitwise", "normal": None}
IGNORED = ["pooler.*", "embeddings.position_ids"]


@dataclass(frozen=True)
class Case:
    """A model, and edits of its inputs.

    Fields:
        edits: inputs and what is asked for, one after the other, without end.
    """

    graph: Graph
    weights: Any
    edits: Callable[[np.random.Generator], Iterator[tuple[dict[str, Array], Any]]]
    ignored: Sequence[str] = ()

    def session(self, exact: str | None) -> GraphSession:
        return GraphSession(
            self.graph, self.weights, exact=exact, ignore_weights=self.ignored, making="always"
        )


def minilm(tokens: int = 64, texts: int = 2) -> Case:
    """all-MiniLM-L6-v2: up to five tokens of one of two texts."""

    def edits(rng: np.random.Generator) -> Iterator[tuple[dict[str, Array], Any]]:
        ids = rng.integers(1000, 20000, (texts, tokens))
        mask = np.ones((texts, tokens), np.int64)
        mask[-1, tokens // 2 :] = 0
        while True:
            yield {"ids": ids, "mask": mask}, None
            ids = ids.copy()
            count = int(rng.integers(1, 6))
            start = int(rng.integers(0, tokens - count))
            ids[int(rng.integers(0, texts)), start : start + count] = rng.integers(
                1000, 20000, count
            )

    path = find_minilm()
    return Case(bert(path, tokens, batch=texts), path, edits, IGNORED)


def gemma(tokens: int = 128, layers: int = 2) -> Case:
    """A small Gemma 3: tokens appended, earlier ones edited, jumps to other places."""
    config = gemma3_reduced(num_hidden_layers=layers)
    folder = gemma3_checkpoint(cache_folder() / f"gemma3-reduced-{layers}", config)

    def edits(rng: np.random.Generator) -> Iterator[tuple[dict[str, Array], Any]]:
        ids, at = rng.integers(0, config["vocab_size"], (1, tokens)), tokens // 4
        while True:
            yield {"ids": ids}, {"logits": np.s_[:, at]}
            ids, kind = ids.copy(), int(rng.integers(0, 4))
            at = int(rng.integers(0, tokens)) if kind == 3 else (at + (kind < 2)) % tokens
            where = int(rng.integers(0, at + 1)) if kind == 2 else at
            ids[0, where] = rng.integers(0, config["vocab_size"])

    return Case(gemma3(folder, tokens), folder, edits)


def resnet18(size: int = 64) -> Case:
    """ResNet-18 with random weights: a square patch of a small image."""
    import torch
    import transformers

    from tgbench.sources.torch import from_torch

    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        layer_type="basic",
    )  # fmt: skip
    torch.manual_seed(0)
    imported = from_torch(transformers.ResNetModel(config).eval(), (torch.zeros(1, 3, size, size),))
    (name,) = imported.graph.inputs

    def edits(rng: np.random.Generator) -> Iterator[tuple[dict[str, Array], Any]]:
        image, side = rng.standard_normal((1, 3, size, size)).astype("float32"), size // 8
        while True:
            yield {name: image}, None
            image = image.copy()
            y, x = rng.integers(0, size - side, 2)
            image[:, :, y : y + side, x : x + side] = rng.standard_normal((3, side, side))

    return Case(imported.graph, imported.weights, edits)


QUICK = {"Gemma 3, reduced": partial(gemma, 16, 1)}
CASES: dict[str, Callable[[], Case]] = {
    "MiniLM": minilm,
    "Gemma 3, reduced": gemma,
    "ResNet-18": resnet18,
}


def measure(case: Case, count: int) -> dict[str, Any]:
    """All edits of a case, in both modes: runs that differ, and times."""
    began = time.process_time()
    sessions = {mode: case.session(exact) for mode, exact in MODES.items()}
    made_s = time.process_time() - began
    times: dict[str, list[int]] = {mode: [] for mode in MODES}
    executing: dict[str, list[int]] = {mode: [] for mode in MODES}
    differ = dict.fromkeys(MODES, 0)
    worst = dict.fromkeys(MODES, 0.0)
    edits = case.edits(np.random.default_rng(0))
    for i, (inputs, want) in zip(range(count), edits, strict=False):
        if i % 20 == 0:
            note(f"edit {i}")
        for mode in (list(MODES), list(reversed(MODES)))[i % 2]:
            start = time.process_time_ns()
            found = sessions[mode].run(inputs, want)
            times[mode].append(time.process_time_ns() - start)
            executing[mode].append(executing_ns(sessions[mode]))
            right = case.session(MODES[mode]).run(inputs)
            apart = [
                _apart(array, right[name] if want is None else right[name][want[name]])
                for name, array in found.items()
            ]
            differ[mode] += any(bits for bits, _ in apart)
            worst[mode] = max([worst[mode], *(size for _, size in apart)])
    exactness = sessions["bitwise"].exactness
    assert exactness is not None
    return {
        "edits": count,
        "differing_runs": differ,
        "largest_difference": worst,
        "median_ms": {mode: statistics.median(some) / 1e6 for mode, some in times.items()},
        "first_ms": {mode: some[0] / 1e6 for mode, some in times.items()},
        "median_ratio": ratio(times),
        "executing_ratio": ratio(executing),
        "specialised": {mode: session.counters.specialised for mode, session in sessions.items()},
        "total_ratio": sum(times["bitwise"]) / sum(times["normal"]),
        "made_s": made_s,
        "calls": len(exactness.tilings),
        "spread": list(exactness.spread),
        "tilings": str(exactness).splitlines(),
    }


def executing_ns(session: GraphSession) -> int:
    """What the last run took for its calls alone."""
    assert session.last is not None
    return session.last.execute_ns


def ratio(times: Mapping[str, Sequence[int]]) -> float:
    """The median of bitwise over normal, run by run."""
    pairs = zip(times["bitwise"], times["normal"], strict=True)
    return statistics.median(bitwise / normal for bitwise, normal in pairs)


def _apart(found: Array, right: Array) -> tuple[bool, float]:
    """Whether any bit differs, and the largest difference over the largest magnitude."""
    largest = float(np.abs(right).max()) or 1.0
    return found.tobytes() != np.ascontiguousarray(right).tobytes(), float(
        np.abs(found - right).max() / largest
    )


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    return [
        name,
        *(f"{found['differing_runs'][mode]} of {found['edits']}" for mode in MODES),
        *(ms(found["median_ms"][mode] * 1e6) for mode in MODES),
        f"{found['median_ratio']:.2f}",
        f"{found['executing_ratio']:.2f}",
        f"{found['made_s']:.1f}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("bitwise", __doc__)
    command.add_argument("--edits", type=int, default=200)
    command.add_argument("--only", choices=list(CASES), help="one model alone")
    options, record = command.begin(argv)
    results = {}
    for name, make in (QUICK if options.quick else CASES).items():
        if options.only in (None, name):
            note(name)
            results[name] = measure(make(), 2 if options.quick else options.edits)
    header = [
        "model", "differ: bitwise", "normal", "ms: bitwise", "normal", "ratio", "executing",
        "made, s",
    ]  # fmt: skip
    say(table(header, [row(name, found) for name, found in results.items()]))
    record.write({"models": results}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
