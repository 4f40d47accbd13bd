"""Model files, as commands take them: a graph or an exported program, weights, a session."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tgbench.base.errors import GraphError
from tgbench.graph.graph import Graph
from tgbench.graph.graph_file import load_graph
from tgbench.graph.simplify import simplify
from tgbench.memory.estimate import Budget
from tgbench.programs.settled import Settling
from tgbench.programs.weights import source_of
from tgbench.session.opening import ARITHMETIC, WEIGHTS_DTYPES, held_in, multiplied_in
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, from_pt2

Size: TypeAlias = "tuple[str, int]"  # of a symbolic dimension, by its name


def add_model(parser: argparse.ArgumentParser) -> None:
    """The arguments of `session_of`."""
    add = parser.add_argument
    add("model", type=Path, help="a graph (`save_graph`: .json) or exported program (.pt2)")
    add("--weights", type=Path, help="safetensors file or checkpoint; a .pt2 has its own")
    add("--memory", type=memory, help="budget of the arena, such as 64MiB (what is needed)")
    add("--device", default="cpu", help="cpu or cuda:0 (cpu)")
    add_dtype(parser)
    add_bind(parser)


def add_graph(parser: argparse.ArgumentParser, purpose: str) -> None:
    """The arguments of `graph_of`."""
    parser.add_argument("--graph", type=Path, help=f"graph or .pt2 file: {purpose}")
    parser.add_argument("--weights", type=Path, help="of the graph, if they are held in less")
    add_dtype(parser)
    add_bind(parser)


def memory(text: str) -> str:
    """Reads a budget, as sessions take it.

    >>> memory("64MiB")
    '64MiB'
    """
    try:
        Budget.parse(text)
    except GraphError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is no size; write 268435456, 256MiB or auto"
        ) from error
    return text


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """What weights are held in, and products are of; `weights_dtype`, `arithmetic` of a session."""
    parser.add_argument(
        "--weights-dtype", choices=WEIGHTS_DTYPES, help="what weights are held in (as stored)"
    )
    parser.add_argument(
        "--arithmetic", choices=ARITHMETIC, help="what factors of products may be rounded to"
    )


def add_bind(parser: argparse.ArgumentParser) -> None:
    """Sizes of symbolic dimensions."""
    parser.add_argument(
        "--bind",
        type=_size,
        action="append",
        default=[],
        metavar="T=128",
        help="a symbolic dimension's size",
    )


def session_of(arguments: argparse.Namespace, **more: Any) -> GraphSession:
    """A session of a model file; `more` goes to `GraphSession`."""
    model = _read(arguments.model, arguments.bind)
    more |= dtypes_of(arguments)
    return GraphSession(model, arguments.weights, arguments.memory, arguments.device, **more)


def graph_at(path: Path, bind: Sequence[Size] = ()) -> Graph:
    """The graph that a session of a model file would run."""
    model = _read(path, bind)
    return Settling(simplify(model.graph if isinstance(model, Imported) else model)).graph


def dtypes_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_dtype` asks for, as a session takes it."""
    return {"weights_dtype": arguments.weights_dtype, "arithmetic": arguments.arithmetic}


def graph_of(arguments: argparse.Namespace) -> Graph | None:
    """The graph that a session of `--graph` would run; None if no file is named.

    Raises GraphError for options that would be of a graph, or of weights, that are not given.
    """
    if arguments.graph is None:
        for name in ("weights", "weights_dtype", "arithmetic", "bind"):
            if getattr(arguments, name):
                option = f"--{name.replace('_', '-')}"
                raise GraphError(f"{option} is of a graph; give its file with --graph")
        return None
    has_weights = arguments.weights is not None or arguments.graph.suffix == ".pt2"
    if arguments.weights_dtype is not None and not has_weights:
        raise GraphError(
            f"--weights-dtype {arguments.weights_dtype} is of weights; give their file with "
            "--weights"
        )
    model = _read(arguments.graph, arguments.bind)
    simple = simplify(model.graph if isinstance(model, Imported) else model)
    stored = model.weights if isinstance(model, Imported) else arguments.weights
    held = held_in(simple, source_of(stored, "cpu"), arguments.weights_dtype).graph
    return Settling(multiplied_in(held, arguments.arithmetic)).graph


def _read(path: Path, bind: Sequence[Size]) -> Graph | Imported:
    kind = path.suffix
    if kind not in READERS:
        raise GraphError(
            f"{path}: {kind or 'no suffix'} is no kind of model; give a graph file "
            "(.json) or an exported program (.pt2)"
        )
    return READERS[kind](path, bind)


def _bound(path: Path, bind: Sequence[Size]) -> Graph:
    graph, sizes = load_graph(path), dict(bind)
    for name, size in bind:
        if sizes[name] != size:
            raise GraphError(f"--bind {name}={size} and {name}={sizes[name]}: give one size")
    missing = [str(symbol) for symbol in graph.symbols if str(symbol) not in sizes]
    if missing:
        raise GraphError(f"{path}: pass --bind {missing[0]}=… for that dimension")
    return graph.bind(**sizes) if sizes else graph


def _exported(path: Path, bind: Sequence[Size]) -> Imported:
    if bind:
        raise GraphError(f"{path}: the sizes of an exported program are known; leave --bind out")
    return from_pt2(path)


def _size(text: str) -> Size:
    name, _, size = text.partition("=")
    if not name or not size.isascii() or not size.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no name and size, such as T=128")
    return name, int(size)


READERS: Mapping[str, Callable[[Path, Sequence[Size]], Graph | Imported]] = {
    ".json": _bound,
    ".pt2": _exported,
}
