"""`tgbench profile model`: measure the kernels that a model's runs use, into a record database."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError, PlanError
from tgbench.base.files import is_there
from tgbench.base.machine import Machine
from tgbench.commands.holding import least_bytes, require_memory
from tgbench.commands.model import add_dtype, dtypes_of, memory
from tgbench.commands.numbers import MOST_TOKENS, seconds, whole
from tgbench.commands.progress import bar, say, table
from tgbench.costs.records import Record, Records
from tgbench.costs.users_records import users_records
from tgbench.graph.graph import Graph
from tgbench.session.drawing import random_weights
from tgbench.session.profile import Profile, profile
from tgbench.session.session import GraphSession
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.config import load_config

BUILDERS: Mapping[str, Callable[..., Graph]] = {"bert": bert, "gemma3_text": gemma3}


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tgbench profile`."""
    parser.add_argument(
        "model", type=Path, help="a checkpoint folder, or its config.json (random weights then)"
    )
    parser.add_argument(
        "--tokens", type=whole(1, MOST_TOKENS), default=128, help="positions of the graph (128)"
    )
    parser.add_argument(
        "--records", help="an SQLite file or a postgresql:// URL (the user's own database)"
    )
    parser.add_argument("--plan", type=Path, help="a plan file: measure the classes it plans for")
    parser.add_argument("--memory", type=memory, help="budget of the arena (what is needed)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0 (cpu)")
    add_dtype(parser)
    parser.add_argument(
        "--seconds", type=seconds, help="stop after about so long; goes on next time"
    )
    parser.add_argument(
        "--chosen", action="store_true", help="only kernels that the plan uses, no alternatives"
    )


def run(arguments: argparse.Namespace) -> int:
    """`tgbench profile`; returns the exit status."""
    records = Records(arguments.records) if arguments.records else users_records()
    session = opened(
        arguments.model, arguments.tokens, arguments.memory, arguments.device, arguments.plan,
        **dtypes_of(arguments),
    )  # fmt: skip
    made = session.prepare()
    say(f"{Machine.here(arguments.device)}")
    say(f"{len(session.programs)} programs, {made} made ahead")
    with bar() as progress:
        found = profile(
            session, records, arguments.seconds, progress, alternatives=not arguments.chosen
        )
    say(shown(found, records.all(Machine.here(arguments.device).fingerprint)))
    say(f"\n{found}; records: {records.name}")
    if found.stopped:
        say("the same command goes on from here")
    return 0


def opened(
    model: Path, tokens: int, memory: str | None, device: str, plan: Path | None = None,
    **dtypes: Any,
) -> GraphSession:  # fmt: skip
    """A session over a checkpoint, or over random weights of its configuration, with a plan.

    Without a plan file it is run once: everything new, the last position asked for. Raises
    GraphError for a model that there is no builder for.
    """
    if plan is not None and not is_there(plan):
        raise PlanError(f"{plan}: there is no such file; check --plan, or leave it out")
    graph = built(model, tokens)
    require_memory(least_bytes(graph), device, "ask for fewer --tokens")
    folder = model if model.is_dir() else model.parent
    weights: Any = folder if list(folder.glob("*.safetensors")) else random_weights(graph)
    session = GraphSession(
        graph, weights=weights, memory=memory, device=device, plan=plan, **dtypes
    )
    if plan is None:
        inputs = {
            name: np.zeros(node.shape, "float32" if node.dtype == "bfloat16" else node.dtype)
            for name, node in graph.inputs.items()
        }
        session.run(
            inputs, want={name: _last(node.shape, tokens) for name, node in _outputs(graph)}
        )
    return session


def built(model: Path, tokens: int) -> Graph:
    """The graph of a configuration, by its model type."""
    kind = str(load_config(model).get("model_type"))
    if kind not in BUILDERS:
        raise GraphError(
            f"{model}: model_type is {kind!r}; there are builders for {', '.join(BUILDERS)}"
        )
    return BUILDERS[kind](model, tokens)


def _outputs(graph: Graph) -> list[tuple[str, Any]]:
    return list(graph.outputs.items())


def _last(shape: tuple[int, ...], tokens: int) -> Any:
    """The last position of an output that has one for each token; else all of it."""
    return np.s_[:, -1] if len(shape) > 1 and shape[1] == tokens else np.s_[:]


def shown(found: Profile, records: Sequence[Record]) -> str:
    """A line a kernel: signatures, samples, the range of medians, where they come from."""
    names = sorted({name for name, _ in {*found.measured, *found.known}})
    rows = [_line(found, name, [r for r in records if r.kernel == name]) for name in names]
    return table(["kernel", "signatures", "samples", "medians, µs", "spread", "source"], rows)


def _line(found: Profile, name: str, records: Sequence[Record]) -> list[str]:
    ran = [record for record in records if record.samples_ns]
    medians = [record.median_ns / 1e3 for record in ran]
    spread = statistics.median(record.spread_ns / record.median_ns for record in ran) if ran else 0
    return [
        name,
        str(len(records)),
        str(sum(len(record.samples_ns) for record in ran)),
        f"{min(medians):.3g} … {max(medians):.3g}" if ran else "-",
        f"{spread:.0%}",
        _sources(found, name, records),
    ]


def _sources(found: Profile, name: str, records: Sequence[Record]) -> str:
    failed = sum(not record.samples_ns for record in records)
    now = sum((name, record.signature) in found.measured for record in records) - failed
    counts = {"measured": now, "known before": len(records) - now - failed, "failed": failed}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count > 0)
