"""`tgbench check`: a model file beside pairs from another framework.

$ tgbench check model.json pairs.safetensors --weights model.safetensors --edits 200
pair  output          absolute  relative  allowed
────  ──────────────  ────────  ────────  ───────
0     logits: float32 1.91e-06  2.31e-07  1e-05
1 of 1 outputs are right
200 edits: every run equals one that computes everything
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tgbench.checking.check import Progress, check
from tgbench.checking.original import Original
from tgbench.checking.report import CheckReport
from tgbench.errors import GraphError
from tgbench.graphfile import load_graph
from tgbench.importers import from_pt2
from tgbench.session import GraphSession

FAILED = 1  # exit status: an output differs, or an edit goes wrong


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, help="a graph (`save_graph`: .json) or exported program (.pt2)")
    add("pairs", type=Path, help="inputs and right outputs (`save_pairs`: .safetensors)")
    add("--weights", type=Path, help="safetensors file or checkpoint; a .pt2 has its own")
    add("--memory", help="budget of the arena, such as 64MiB (what is needed)")
    add("--device", default="cpu", help="cpu or cuda:0 (cpu)")
    add("--tolerance", type=float, help="largest relative error (by dtype; float32: 1e-5)")
    add("--edits", type=int, default=0, help="random edits to try besides (0)")
    add("--seed", type=int, default=0, help="of the edits (0)")
    add("--no-bisect", action="store_true", help="do not look for the node to blame")
    add("--bind", action="append", default=[], metavar="T=128", help="a symbolic dimension's size")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: everything is right; `FAILED`: something differs."""
    session, original = opened(arguments)
    with _bar() as progress:
        report = check(
            session,
            arguments.pairs,
            tolerance=arguments.tolerance,
            bisect=not arguments.no_bisect,
            edits=arguments.edits,
            seed=arguments.seed,
            against=original,
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


def opened(arguments: argparse.Namespace) -> tuple[GraphSession, Original | None]:
    """A session of a model file, and the original where the file has one."""
    kind = arguments.model.suffix
    if kind not in MODELS:
        raise GraphError(
            f"{arguments.model}: {kind or 'no suffix'} is no kind of model; give a graph file "
            "(.json) or an exported program (.pt2)"
        )
    graph, weights, original = MODELS[kind](arguments)
    return GraphSession(graph, weights, arguments.memory, arguments.device), original


def _graph_file(arguments: argparse.Namespace) -> tuple[Any, Any, Original | None]:
    graph = load_graph(arguments.model)
    sizes = dict(map(_size, arguments.bind))
    if graph.symbols:
        missing = [str(symbol) for symbol in graph.symbols if str(symbol) not in sizes]
        if missing:
            raise GraphError(f"{arguments.model}: pass --bind {missing[0]}=… for that dimension")
        graph = graph.bind(**sizes)
    return graph, arguments.weights, None


def _exported(arguments: argparse.Namespace) -> tuple[Any, Any, Original | None]:
    """An exported program has its own weights, unless others are named."""
    return from_pt2(arguments.model), arguments.weights, None


def _size(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not size.isascii() or not size.isdigit():
        raise GraphError(f"--bind {text}: give a name and a size, such as T=128")
    return name, int(size)


MODELS: Mapping[str, Callable[[argparse.Namespace], tuple[Any, Any, Original | None]]] = {
    ".json": _graph_file,
    ".pt2": _exported,
}


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar for pairs, then one for nodes or edits."""
    with tqdm(file=sys.stderr, disable=None, leave=False) as bar:

        def progress(done: int, of: int, what: str) -> None:
            bar.total = of
            bar.set_postfix_str(what, refresh=False)
            bar.update(done - bar.n)

        yield progress
