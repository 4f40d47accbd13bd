"""Decoding with a graph imported from PyTorch, in turns with the one built by hand.

    by hand     `models.gemma3` of the checkpoint's config.json
    imported    transformers' module, exported, fused ops found by `recognise`
    atomic      the same without `recognise`

All have the same weights, arena budget and text. What counts is the processor's time of a whole
`GraphSession.run`, so that other work on the machine does not.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.decode import Floats, Ids, Size, checkpoint, load_theirs
from benchmarks.measure import Command, Samples, ms, take_turns
from tgbench.base.machine import cache_folder
from tgbench.commands.progress import note, say, table
from tgbench.graph.graph import Graph
from tgbench.graph.recognise import recognise
from tgbench.graph.simplify import simplify
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import GEMMA3_270M, gemma3_reduced
from tgbench.sources.torch.build import Builder
from tgbench.sources.torch.exporting import exported_program, lowered
from tgbench.sources.torch.imported import Imported

HAND, IMPORTED, ATOMIC = "by hand", "imported", "atomic"
COUNTED = ("linear", "gated_linear", "attention", "rms_norm", "rope", "gather")
TOY = Size("gemma3-tiny", gemma3_reduced(), 512, 128, "4MiB", 7, 32, 8, (0,))
LARGE = Size("gemma3-270m", GEMMA3_270M, 256, 32, "64MiB", 5, 8, 2, (0,))
QUICK = Size("gemma3-tiny", gemma3_reduced(num_hidden_layers=1), 64, 16, "1MiB", 2, 4, 2, (0,))
WARM = 4  # tokens before the first that counts


@dataclass
class System:
    """One session on its way through the text; a call decodes a token and gives its CPU time.

    Fields:
        recognised_ms: CPU time of `recognise`.
        logits: of the last token.
    """

    session: GraphSession
    input: str
    ids: Ids
    at: int
    recognised_ms: float = 0.0
    logits: Floats | None = None

    def __call__(self) -> int:
        shown = self.ids.copy()
        shown[:, self.at + 1 :] = 0
        began = time.process_time_ns()
        found = self.session.run({self.input: shown}, want={"logits": np.s_[0, self.at]})
        took = time.process_time_ns() - began
        self.logits = found["logits"]
        self.at += 1
        return took

    def facts(self) -> dict[str, Any]:
        graph, report = self.session.graph, self.session.last
        assert report is not None
        counts = Counter(node.op for node in graph.nodes)
        return {
            "nodes": len(graph.nodes),
            "counts": {op: counts[op] for op in COUNTED},
            "instructions": report.instructions,
            "arena_bytes": self.session.estimate_memory()["cpu"].arena_bytes,
            "recognised_ms": self.recognised_ms,
        }


def systems(size: Size, cache: Path, with_atomic: bool) -> dict[str, System]:
    """The sessions, each with the prompt behind it."""
    folder = checkpoint(size, cache)
    random = np.random.default_rng(0)
    ids = random.integers(0, size.config["vocab_size"], (1, size.tokens))
    note(f"{size.name}: the graph built by hand")
    by_hand = GraphSession(gemma3(size.config, size.tokens), weights=folder, memory=size.memory)
    made = {HAND: System(by_hand, "ids", ids, size.prompt)}
    note(f"{size.name}: exporting transformers' module")
    zeros = torch.zeros(1, size.tokens, dtype=torch.int64)
    exported = exported_program(load_theirs(folder), (zeros,), {"use_cache": False})
    built = Builder(lowered(exported, ())).run()
    atomic = simplify(built.build())
    began = time.process_time_ns()
    graph = recognise(atomic)
    took_ms = (time.process_time_ns() - began) / 1e6

    def system(graph: Graph) -> System:
        weights = {name: built.weights[name] for name in graph.parameters}
        session = GraphSession(Imported(graph, weights, {}), memory=size.memory)
        return System(session, "input_ids", ids, size.prompt)

    made[IMPORTED] = system(graph)
    made[IMPORTED].recognised_ms = took_ms
    if with_atomic:
        made[ATOMIC] = system(atomic)
    for one in made.values():
        one.at -= 1
        for _ in range(WARM + 1):
            one()
    return made


@dataclass(frozen=True)
class Case:
    """One model, measured."""

    size: Size
    samples: Samples
    facts: Mapping[str, Mapping[str, Any]]
    difference: float  # largest between logits, over the largest logit

    @property
    def ratio(self) -> float:
        """CPU time of the imported graph over that of the hand-built one, a median."""
        return float(np.median(self.samples.ratios(IMPORTED, HAND)))

    def to_dict(self) -> dict[str, Any]:
        s = self.samples
        return {
            "tokens": self.size.tokens,
            "memory": self.size.memory,
            "median_cpu_ms": {name: s.median(name) / 1e6 for name in s.times},
            "over_by_hand": {name: s.ratios(name, HAND) for name in s.times},
            "ratio": self.ratio,
            "largest_difference": self.difference,
            "systems": self.facts,
            "loads": s.loads,
            "samples_ns": s.times,
        }

    def __str__(self) -> str:
        header = ["graph", "ms a token", "÷ by hand", "instructions", *COUNTED]
        rows = [
            [
                name,
                ms(self.samples.median(name)),
                f"{np.median(self.samples.ratios(name, HAND)):.2f}",
                str(facts["instructions"]),
                *(str(facts["counts"][op]) for op in COUNTED),
            ]
            for name, facts in self.facts.items()
        ]
        title = f"{self.size.name}, {self.size.tokens} positions, CPU time"
        note = f"logits differ by {self.difference:.1e} of the largest"
        return "\n".join([title, table(header, rows), note])


def measure(size: Size, cache: Path, with_atomic: bool) -> Case:
    made = systems(size, cache, with_atomic)
    steps: dict[str, Callable[[], int]] = dict(made)
    samples = take_turns(
        steps, size.repetitions, size.steps, burst=size.burst, pause_s=0.004, tell=note
    )
    logits = [one.logits for one in made.values() if one.logits is not None]
    worst = max(float(np.abs(found - logits[0]).max()) for found in logits)
    largest = float(np.abs(logits[0]).max())
    facts = {name: one.facts() for name, one in made.items()}
    return Case(size, samples, facts, worst / largest)


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("imported", __doc__)
    command.add_argument("--only", choices=(TOY.name, LARGE.name), help="one model alone")
    command.add_argument("--atomic", action="store_true", help="the graph without fused ops too")
    command.add_argument("--cache", type=Path, default=cache_folder(), help="keeps random weights")
    options, record = command.begin(argv)
    sizes = [QUICK] if options.quick else [TOY, LARGE]
    cases = [
        measure(size, options.cache, options.atomic)
        for size in sizes
        if options.only in (None, size.name)
    ]
    for case in cases:
        say(f"{case}\n")
    record.write({"models": {case.size.name: case.to_dict() for case in cases}}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
