"""What finding the ways to compute a model takes, and their expected against their measured time.

    paths, cheapest first ─→ their kernels measured, call by call ─→ what each is expected to take
    a session for each    ─→ whole runs of all, in turns          ─→ what each takes

    first     the first graphs that differ in time: often by less than any clock tells apart
    apart     such as decide one thing otherwise than the given graph does, equal layers alike

    space     what a large model's e-graph, choices, first path and first thousand paths take

And the given one, each by its fastest kernels. What is said is how well the order is foretold
(Spearman's rank correlation), and whether what is expected to be gained over the given graph is
gained. The processor's clock counts: one thread.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import decode
from benchmarks.measure import Clocked, both_clocks, run_models, threads
from tgbench.commands.progress import note, say, table
from tgbench.costs.records import Records
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.graph.rewrite.ways import ways
from tgbench.plans.paths.paths import Path as GraphPath
from tgbench.plans.paths.paths import Paths, Space
from tgbench.session.drawing import random_inputs
from tgbench.session.paths import SessionPaths, runs_of
from tgbench.session.session import GraphSession
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import (
    bert_reduced,
    find_minilm,
    gemma3_checkpoint,
    gemma3_reduced,
)

Results = dict[str, Any]
SEED = 0
UNUSED = ("embeddings.position_ids", "pooler.*")  # of MiniLM's checkpoint


@dataclass(frozen=True)
class Amount:
    """How much is measured.

    Fields:
        paths: of each kind.
        seconds: for measuring kernels.
        repetitions, steps: of whole runs, in turns.
        nodes: e-nodes to stop at.
    """

    paths: int
    seconds: float
    repetitions: int
    steps: int
    nodes: int


FULL, TINY = Amount(10, 100.0, 5, 6, 6_000), Amount(2, 1.0, 1, 1, 300)
LOOKED_AT = 300  # ways of each decision
MANY = 1_000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure."""
    full = {
        "space": partial(enumerated, decoder, 20_000),
        "minilm": partial(measured, minilm, FULL),
        "gemma": partial(measured, gemma, FULL),
    }
    quick = {"space": partial(enumerated, reduced, 300), "bert": partial(measured, reduced, TINY)}
    with threads(1):
        return run_models("paths", "Expected against measured time of paths.", argv, quick, full)


def minilm(cache: Path) -> GraphSession:
    """Two texts of 64 tokens."""
    folder = find_minilm()
    graph = bert(folder, tokens=64, batch=2)
    return GraphSession(graph, folder, ignore_weights=UNUSED, calibrate=False)


def gemma(cache: Path) -> GraphSession:
    """Four layers of width 256, 64 tokens."""
    config = gemma3_reduced(hidden_size=256, intermediate_size=1024, num_hidden_layers=4)
    folder = gemma3_checkpoint(cache / "gemma3-paths", config)
    return GraphSession(gemma3(config, tokens=64), folder, calibrate=False)


def decoder(cache: Path) -> GraphSession:
    """Gemma 3 270M, 18 layers, for the next token of 512."""
    size = decode.LARGE
    folder = decode.checkpoint(size, cache)
    session = GraphSession(gemma3(folder, size.tokens), folder, size.memory, calibrate=False)
    session.plan_for([({"ids": np.s_[0, size.prompt]}, {"logits": np.s_[0, size.prompt]})])
    return session


def reduced(cache: Path) -> GraphSession:
    """A graph of random weights, for `--quick`."""
    graph = bert(bert_reduced(), tokens=8)
    rng = np.random.default_rng(SEED)
    weights = {
        name: rng.normal(0, 0.1, node.shape).astype(node.dtype)
        for name, node in graph.parameters.items()
    }
    return GraphSession(graph, weights=weights, calibrate=False)


def enumerated(make: Callable[[Path], GraphSession], nodes: int, cache: Path) -> Results:
    """What it takes to have the paths of a graph, in seconds of the processor."""
    session = make(cache)
    clock = Laps()
    space = Space.of(
        session.ground.held, session.rules, runs_of(session),
        limits=SaturationLimits(nodes=nodes, seconds=600),
    )  # fmt: skip
    clock.lap("space_s")
    paths = Paths(space, session.costs)
    first = paths[0]
    clock.lap("first_path_s")
    count = len(paths.first(MANY))
    clock.lap("many_paths_s")
    graphs = paths.count_graphs()
    found = {
        "nodes": len(session.ground.held.nodes),
        "saturation": str(space.saturation),
        "e_nodes": space.saturation.iterations[-1].nodes,
        **clock.laps,
        "many_paths": count,
        "graphs": None if graphs is None else f"{graphs:.3e}",
        "gap": round(paths.gap, 4),
        "expected": round(first.time_ns / paths.given.time_ns, 4),
    }
    say(found["saturation"])
    say(f"e-graph {found['space_s']} s, first path {found['first_path_s']} s, {count} paths "
        f"{found['many_paths_s']} s of the processor")  # fmt: skip
    return found


class Laps:
    """Seconds of the processor since the last lap, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._began = time.process_time()

    def lap(self, name: str) -> None:
        now = time.process_time()
        self.laps[name], self._began = round(now - self._began, 3), now


def measured(make: Callable[[Path], GraphSession], amount: Amount, cache: Path) -> Results:
    """One model: every path's expected and measured time."""
    session = make(cache)
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "records.db")
        limits = SaturationLimits(nodes=amount.nodes, seconds=60)
        paths = SessionPaths.of(session, limits=limits)
        note("measuring kernels")
        count = learned(paths, records, amount)
        chosen = {"first": first(paths, amount.paths), "apart": apart(paths, amount.paths)}
        every = [*chosen["first"], *chosen["apart"], paths.given]
        took = raced(paths, every, amount)
    kinds = [kind for kind, found in chosen.items() for _ in found]
    rows = list(map(row, every, [*kinds, "given"], took))
    found = {
        "paths": rows,
        "kernels_measured": count,
        "rank_correlation": {
            kind: foretold([one for one in rows if one["kind"] in (kind, "given")])
            for kind in chosen
        },
        "best_expected": ratio(rows, min(rows, key=lambda one: one["expected_ns"])),
        "best_measured": ratio(rows, min(rows, key=lambda one: one["cpu_ns"])),
    }
    show(found)
    return found


def first(paths: SessionPaths, count: int) -> list[GraphPath]:
    """The first graphs that differ in time, cheapest first."""
    own = paths.graph.fingerprint
    different = paths.paths.different(count + 1).values()
    return [path for path in different if path.graph.fingerprint != own][:count]


def apart(paths: SessionPaths, count: int) -> list[GraphPath]:
    """Graphs that differ from the given one in one decision, from the cheapest to the dearest."""
    found: dict[tuple[str, ...], GraphPath] = {}
    for group in paths.paths.choices.clusters:
        for priced in islice(ways(group[0]), LOOKED_AT):
            path = paths.given.taking(dict.fromkeys(group, priced.value))
            if path.graph.fingerprint != paths.graph.fingerprint:
                found.setdefault(path.rules, path)
    ordered = sorted(found.values(), key=lambda path: path.time_ns)
    places = {round(i * (len(ordered) - 1) / max(count - 1, 1)) for i in range(count)}
    return [ordered[place] for place in sorted(places)] if ordered else []


def learned(paths: SessionPaths, records: Records, amount: Amount) -> int:
    """Measure what these paths and the given one call; what is learned may bring others first."""
    count, began = 0, time.monotonic()
    tried: set[str] = set()
    while True:
        left = amount.seconds - (time.monotonic() - began)
        known = [paths.given, *first(paths, amount.paths), *apart(paths, amount.paths)]
        new = [one for one in known if one.graph.fingerprint not in tried and one.unmeasured()]
        if left <= 0 or not new:
            return count
        tried.add(new[0].graph.fingerprint)
        count += len(paths.measure(new[0], records, left).measured)


def raced(
    paths: SessionPaths, chosen: Sequence[GraphPath], amount: Amount
) -> list[tuple[float, float]]:
    """Nanoseconds of whole runs of some paths, in turns: of the clock and of the processor."""
    values = random_inputs(paths.graph, 2)
    sessions = [paths.open(path) for path in chosen]
    for session in sessions:
        for given in values:
            session.run(given)
        session.prepare()
    systems = {str(i): Clocked(Alternating(one, values)) for i, one in enumerate(sessions)}
    wall, cpu = both_clocks(systems, amount.repetitions, amount.steps, 2)
    return [(wall.median(name), cpu.median(name)) for name in systems]


class Alternating:
    """Runs of a session in which every input is another one each time."""

    def __init__(self, session: GraphSession, values: Sequence[Mapping[str, Any]]) -> None:
        self.session, self.values, self.turn = session, values, 0

    def __call__(self) -> Any:
        self.turn += 1
        return self.session.run(self.values[self.turn % len(self.values)])


def row(path: GraphPath, kind: str, took: tuple[float, float]) -> Results:
    """What is kept of a path."""
    estimate = path.estimate
    return {
        "kind": kind,
        "rules": list(path.rules),
        "calls": len(path.calls),
        "expected_ns": round(path.time_ns),
        "measured_share": round(estimate.share("measured"), 3),
        "wall_ns": round(took[0]),
        "cpu_ns": round(took[1]),
    }


def ratio(rows: Sequence[Results], one: Results) -> Results:
    """What is expected and measured of a path, over the given graph's."""
    given = rows[-1]
    return {
        "expected": round(one["expected_ns"] / given["expected_ns"], 3),
        "measured": round(one["cpu_ns"] / given["cpu_ns"], 3),
    }


def foretold(rows: Sequence[Results]) -> float | None:
    """How well the order of what rows take is foretold."""
    return correlation([one["expected_ns"] for one in rows], [one["cpu_ns"] for one in rows])


def correlation(expected: Sequence[float], found: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where all are equal.

    >>> correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    one, other = ranks(expected), ranks(found)
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return round(statistics.correlation(one, other), 3)


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each among all; of equal ones, the middle of theirs.

    >>> ranks([5.0, 1.0, 5.0])
    [1.5, 0.0, 1.5]
    """
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def show(found: Results) -> None:
    """The table on the screen."""
    rows = [
        [
            one["kind"], f"{one['expected_ns'] / 1e6:.3f}", f"{one['measured_share']:.0%}",
            f"{one['cpu_ns'] / 1e6:.3f}", str(one["calls"]), ", ".join(one["rules"])[:70],
        ]
        for one in found["paths"]
    ]  # fmt: skip
    say(table(["kind", "expected ms", "measured", "ms of the processor", "calls", "rules"], rows))
    say(f"rank correlation {found['rank_correlation']}; best expected {found['best_expected']}; "
        f"best measured {found['best_measured']}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
