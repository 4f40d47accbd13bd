"""The best path that is found, beside other systems in full runs, and in decoding.

Full runs (`benchmarks.forward`): PyTorch, `torch.compile` with freezing and ONNX Runtime, in turns;
with the calls that the path is expected to take longest for. Decoding, a token at a time:

    given          the graph as it is built, its fused ops and measured kernels
    path           the fastest other graph that computes the same, by whole runs
    within 0.01    the first path whose error, measured beside float64, is within that

All have the same weights and are fed the same text. Reading the weights once is the floor: what a
path can save is what lies above it, unless it reads less. One thread; the processor's clock counts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import decode, forward
from benchmarks.decode import READ, WARM, Follower, Mine, Size, Text, checkpoint, local, reading
from benchmarks.measure import Clocked, both_clocks, run_models, threads
from benchmarks.peers import processes
from tgbench.commands.progress import note, say, table
from tgbench.costs.records import Records
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.plans.paths.paths import Path as GraphPath
from tgbench.session.paths import SessionPaths
from tgbench.sources.models.checkpoints import gemma3_reduced

Results = dict[str, Any]
GIVEN = "given"
LARGE = replace(decode.LARGE, tokens=128, prompt=64, repetitions=5, threads=(1,))
SMALL = replace(
    LARGE, name="gemma3-width-512", memory="16MiB",
    config=gemma3_reduced(hidden_size=512, intermediate_size=2048, num_hidden_layers=4),
)  # fmt: skip


@dataclass(frozen=True)
class LookedFor:
    """How a path is looked for.

    Fields:
        tolerances: the largest error of a path; None for one that only rounds.
        paths: whose kernels are measured, and that are run beside each other.
        seconds: for measuring kernels, with each tolerance.
        nodes: e-nodes to stop at.
    """

    tolerances: Sequence[float | None]
    paths: int
    seconds: float
    nodes: int


def main(argv: Sequence[str] | None = None) -> int:
    """Measure."""
    full = {
        "decode within": partial(decoded, SMALL, LookedFor((None, 1e-6, 1e-2), 3, 15.0, 6_000)),
        "encoder": partial(beside, "encoder"),
        "resnet50": partial(beside, "resnet50"),
        "decode": partial(decoded, LARGE, LookedFor((None,), 3, 60.0, 20_000)),
    }
    quick = {"decode": partial(decoded, decode.QUICK, LookedFor((None, 1e-2), 1, 1.0, 600))}
    with threads(1):
        return run_models("best_path", "The best path that is found.", argv, quick, full)


def beside(name: str, cache: Path) -> Results:
    """Full runs of a model by its best path, in turns with other systems."""
    peers = [one for one in processes.FORWARD if one.name.startswith("onnxruntime")]
    amount = forward.Amount((1,), paths=True, peers=peers)
    (case,) = forward.measure(name, *forward.MODELS[name](), amount, cache / "peers")
    found = case.to_dict()
    return {key: found[key] for key in ("path", "peers", "summary", "loads")}


def decoded(size: Size, tried: LookedFor, cache: Path) -> Results:
    """A model: a token by each path, what each path is, and what it reads at least."""
    folder = checkpoint(size, cache)
    mine = Mine(size, folder)
    text = mine.rehearse()
    sessions, paths = {GIVEN: mine}, dict[str, Results]()
    with TemporaryDirectory() as kept:
        records = Records(Path(kept) / "records.db")
        for tolerance in tried.tolerances:
            name = "path" if tolerance is None else f"within {tolerance:g}"
            note(f"{size.name}: looking for {name}")
            sessions[name] = Mine(size, folder)
            paths[name] = taken(sessions[name], text, tolerance, tried, records)
    for name in paths:
        sessions[name].rehearse()
    followers = {
        name: Follower(local(one.follow(text)), text, size.prompt) for name, one in sessions.items()
    }
    systems: dict[str, Clocked | Follower] = {READ: reading(folder), **followers}
    wall, cpu = both_clocks(
        systems, size.repetitions, size.steps, WARM, burst=size.burst, tell=note
    )
    read, given = cpu.median(READ), cpu.median(GIVEN)
    found: Results = {
        "read_ns": round(read),
        "loads": wall.loads,
        "systems": {
            name: {
                **paths.get(name, {}),
                "wall_ns": round(wall.median(name)),
                "cpu_ns": round(cpu.median(name)),
                "of_given": round(cpu.median(name) / given, 3),
                "above_read_of_given": round((cpu.median(name) - read) / (given - read), 3),
                **counted(one),
                "logits_off": followers[name].worst,
                "other_choices": followers[name].missed,
            }
            for name, one in sessions.items()
        },
    }
    show(size, found)
    return found


def taken(
    mine: Mine, text: Text, tolerance: float | None, tried: LookedFor, records: Records
) -> Results:
    """Let a session decode by the best path that is found; what is said of it."""
    session, at = mine.session, text.prompt
    session.plan_for([({"ids": np.s_[0, at]}, {"logits": np.s_[0, at]})])
    limits = SaturationLimits(nodes=tried.nodes, seconds=60)
    paths = SessionPaths.of(session, tolerance, [{"ids": text.ids}], limits=limits)
    swept = paths.sweep(records, tried.paths, tried.seconds)
    if tolerance is None:
        own = paths.graph.fingerprint
        first = paths.paths.different(tried.paths).values()
        others = [path for path in first if path.graph.fingerprint != own]
    else:
        others = [paths.fastest()]
    raced = paths.race([*others, paths.given])
    best = others[min(range(len(others)), key=raced.__getitem__)] if others else paths.given
    paths.take(best)
    return {
        **described(best, paths.given),
        "kernels_measured": swept.measured,
        "raced": [round(one / raced[-1], 3) for one in raced],
        "error": None if tolerance is None else paths.error(best),
    }


def described(path: GraphPath, given: GraphPath) -> Results:
    """What a path is, and what is expected of it."""
    return {
        "rules": list(path.rules),
        "expected": round(path.time_ns / given.time_ns, 3),
        "measured_share": round(path.estimate.share("measured"), 3),
    }


def counted(mine: Mine) -> Mapping[str, int]:
    """Instructions of a token, and the calls that execute them."""
    report = mine.session.last
    assert report is not None
    return {"instructions": report.instructions, "calls": report.calls}


def show(size: Size, found: Results) -> None:
    """The table on the screen."""
    rows = [
        [
            name, f"{one['cpu_ns'] / 1e6:.3f}", f"{one['of_given']:.3f}",
            f"{one['above_read_of_given']:.3f}", str(one["instructions"]), str(one["calls"]),
            f"{one.get('error') or one['logits_off']:.0e}", ", ".join(one.get("rules", ()))[:60],
        ]
        for name, one in found["systems"].items()
    ]  # fmt: skip
    header = ["decoding by", "ms of the processor", "of given", "above reading", "instructions",
              "calls", "error", "rules"]  # fmt: skip
    say(f"\n{size.name}: weights are read in {found['read_ns'] / 1e6:.3f} ms")
    say(table(header, rows))


if __name__ == "__main__":
    sys.exit(main())
