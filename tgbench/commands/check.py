"""`tgbench check`: a model file beside pairs from another framework.

$ tgbench check model.json pairs.safetensors --weights model.safetensors --edits 200
pair  output          absolute  relative  allowed
────  ──────────────  ────────  ────────  ───────
0     logits: float32 1.91e-06  2.31e-07  1e-05
1 of 1 output is right
200 edits: every run equals one that computes everything
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tgbench.commands.model import add_model, session_of
from tgbench.commands.numbers import tolerance, whole
from tgbench.commands.progress import bar
from tgbench.session.check.check import check
from tgbench.session.check.report import CheckReport

FAILED = 1  # exit status: an output differs, or an edit goes wrong


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add("pairs", type=Path, help="inputs and right outputs (`save_pairs`: .safetensors)")
    add("--tolerance", type=tolerance(0), help="largest relative error (by dtype; float32: 1e-5)")
    add("--edits", type=whole(), default=0, help="random edits to try besides (0)")
    add("--seed", type=whole(), default=0, help="of the edits (0)")
    add("--no-bisect", action="store_true", help="do not look for the node to blame")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: everything is right; `FAILED`: something differs."""
    session = session_of(arguments)
    with bar() as progress:
        report = check(
            session,
            arguments.pairs,
            tolerance=arguments.tolerance,
            bisect=not arguments.no_bisect,
            edits=arguments.edits,
            seed=arguments.seed,
            progress=progress,
        )
    print(_as_json(report) if arguments.json else report)
    return 0 if report.passed else FAILED


def _as_json(report: CheckReport) -> str:
    """Infinite errors are null: JSON has no word for them."""
    return json.dumps(_finite(report.to_dict()), indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and abs(value) == float("inf") else value
