"""`tgbench sweep model`: measure the ways to compute a model, the cheapest first.

$ tgbench sweep gemma/ --seconds 60
38 kernels measured, 50 paths known; records: ~/.cache/tgbench/records.db
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tgbench.base.errors import PlanError
from tgbench.base.words import format_time
from tgbench.commands.model import add_dtype, dtypes_of
from tgbench.commands.numbers import MOST_TOKENS, seconds, tolerance, whole
from tgbench.commands.profile import opened
from tgbench.commands.progress import bar, say
from tgbench.costs.records import Records
from tgbench.costs.users_records import users_records
from tgbench.graph.rewrite.saturate import USUAL
from tgbench.session.paths import SessionPaths
from tgbench.views.values.ways import ways_of

SHOWN = 10  # paths, when it is over


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tgbench sweep`."""
    add = parser.add_argument
    add("model", type=Path, help="a checkpoint folder, or its config.json (random weights then)")
    add("--tokens", type=whole(1, MOST_TOKENS), default=128, help="positions of the graph (128)")
    add("--count", type=whole(), default=50, help="how many of the first paths (50)")
    add("--seconds", type=seconds, help="stop after about so long; goes on next time")
    add(
        "--tolerance",
        type=tolerance(),
        help="largest relative error: also paths in less than the dtype",
    )
    add("--records", help="an SQLite file or a postgresql:// URL (the user's own database)")
    add("--plan", type=Path, help="a plan file: measure for the runs that it is for")
    add("--device", default="cpu", help="cpu or cuda:0 (cpu)")
    add(
        "--nodes",
        type=whole(1),
        default=USUAL.nodes,
        help=f"how far to look, in e-nodes ({USUAL.nodes})",
    )
    add("--dask", metavar="ADDRESS", help="have a Dask cluster's workers measure")
    add("--json", action="store_true", help="say it as JSON")
    add_dtype(parser)


def run(arguments: argparse.Namespace) -> int:
    """0: all are measured, or as many as there was time for. Ctrl-C keeps what is measured."""
    records = Records(arguments.records) if arguments.records else users_records()
    session = opened(
        arguments.model, arguments.tokens, None, arguments.device, arguments.plan,
        **dtypes_of(arguments),
    )  # fmt: skip
    with ExitStack() as stack:
        spread = stack.enter_context(cluster(arguments.dask)) if arguments.dask else {}
        progress = stack.enter_context(bar())
        paths = SessionPaths.of(
            session, arguments.tolerance, limits=replace(USUAL, nodes=arguments.nodes),
            progress=progress,
        )  # fmt: skip
        found = paths.sweep(records, arguments.count, arguments.seconds, progress, **spread)
        ways = "" if arguments.json else shown(paths)  # what was measured may put them anew
    if arguments.json:
        say(json.dumps(asdict(found), indent=1))
        return 0
    say(ways)
    say(f"\n{found}; records: {records.name}")
    return 0


@contextmanager
def cluster(address: str) -> Iterator[dict[str, Any]]:
    """A Dask cluster as what a sweep is spread over.

    Raises PlanError where Dask is not installed, or nobody answers.
    """
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise PlanError("Dask is not installed; pip install 'tgbench[cluster]'") from error
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise PlanError(f"no Dask scheduler answers at {address} ({error})") from error
    with client:
        yield {"executor": client, "workers": max(len(client.scheduler_info()["workers"]), 1)}


def shown(paths: SessionPaths) -> str:
    """The cheapest path of each of the first graphs, and what the given one takes."""
    return f"{ways_of(paths, SHOWN)}\nas given: {format_time(paths.given.time_ns)} a run"
