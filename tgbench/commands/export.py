"""`tgbench export`: a plan, a graph or a trace in a form that other programs read.

$ tgbench export model.pt2 --to model.json
model.json: graph as json

    plan  (.json)          json, svg   the memory map;  html   the screen, without a server
    graph (.json, .pt2)    json        a graph file;    dot    Graphviz;  svg   its layers
                           png, pdf    every node, as Graphviz lays them out
    trace (.jsonl)         csv         how often each class of runs came, and its mean time
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import ExportError
from tgbench.base.strict_json import parsed, read_text
from tgbench.commands.model import add_graph, graph_of
from tgbench.commands.targets import require_apart
from tgbench.graph.graph import Graph
from tgbench.graph.graph_file import graph_to_json, load_graph
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace
from tgbench.sources.torch import from_pt2
from tgbench.views.draw.rendering import rendered
from tgbench.views.pages.screen_page import page
from tgbench.views.values import graphs, timeline
from tgbench.views.values.timeline import Timeline, timeline_from_plan, timeline_of_plan


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "file", type=Path, help="a plan or graph (.json), exported program (.pt2) or trace (.jsonl)"
    )
    add("--to", type=Path, help="the file to write: its suffix is the form")
    add("--page", action="store_true", help="a plan as a page beside it: PLAN.html")
    add("--against", type=Path, help="another plan, to compare the page's with")
    add_graph(parser, "what a trace is of; checks a plan against it")


def run(arguments: argparse.Namespace) -> int:
    """0: the file is written. Raises ExportError for what is not in the table above."""
    target = arguments.to or arguments.file.with_suffix(".html" if arguments.page else "")
    require_apart(ExportError, [target], arguments.file, arguments.graph, arguments.against)
    kind, form = kind_of(arguments.file), target.suffix.removeprefix(".")
    forms = FORMS[kind]
    if form not in forms:
        names = " or ".join(f".{known}" for known in forms)
        if arguments.to is None:
            raise ExportError(f"{arguments.file}: a {kind}; say with --to what to write ({names})")
        raise ExportError(f"--to {target}: a {kind} has no form {form!r}; end the name in {names}")
    _check_page(arguments, target, form)
    if kind == "graph":
        _check_alone(arguments)
    read, graph = READERS[kind](arguments.file), graph_of(arguments)
    if form == "html":
        made: str | bytes = page(read, graph, arguments.against)
    else:
        made = forms[form](read, graph)
    with atomic_path(target) as temporary:
        temporary.write_bytes(made if isinstance(made, bytes) else made.encode())
    print(f"{target}: {kind} as {form}")
    return 0


def _check_page(arguments: argparse.Namespace, target: Path, form: str) -> None:
    if form == "html":
        return
    if arguments.page:
        raise ExportError(f"--page writes .html; end --to {target} in .html, or leave out --page")
    if arguments.against is not None:
        raise ExportError(f"--against compares on a page; end --to {target} in .html")


def _check_alone(arguments: argparse.Namespace) -> None:
    """A graph is written as it is: what is said of a plan's or a trace's changes nothing of it."""
    for name in ("graph", "weights", "weights_dtype", "arithmetic", "bind"):
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise ExportError(
                f"{option} is for a plan or a trace; {arguments.file} is a graph, which is "
                f"written as it is: leave {option} out"
            )


def kind_of(path: Path) -> str:
    """plan, graph or trace, by the suffix and, where two share it, the fields."""
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    fields = _fields(path) if path.suffix == ".json" else ()
    kind = next((kind for field, kind in FIELDS.items() if field in fields), None)
    if kind is None:
        raise ExportError(
            f"{path}: is no plan or graph (.json), exported program (.pt2) or trace (.jsonl); "
            "write one with `save_plan`, `save_graph` or `tgbench run --trace`"
        )
    return kind


def _fields(path: Path) -> tuple[str, ...]:
    def refuse(fault: str) -> ExportError:
        return ExportError(f"{path}: cannot be read ({fault}); check the path, or restore the file")

    data = parsed(read_text(path, refuse), refuse)
    return tuple(data) if isinstance(data, dict) else ()


def _map(plan: Plan, graph: Graph | None) -> Timeline:
    return timeline_from_plan(plan) if graph is None else timeline_of_plan(plan, graph)


def _classes(trace: Trace, graph: Graph | None) -> str:
    if graph is None:
        raise ExportError(
            f"{trace.path}: the classes of a trace depend on its graph; pass --graph model.json"
        )
    return str(trace.classes(graph).to_csv(index=False))


SUFFIXES = {".jsonl": "trace", ".pt2": "graph"}
FIELDS = {"slots": "plan", "nodes": "graph"}
READERS: Mapping[str, Callable[[Path], Any]] = {
    "plan": Plan.load,
    "graph": lambda path: from_pt2(path).graph if path.suffix == ".pt2" else load_graph(path),
    "trace": Trace.load,
}
FORMS: Mapping[str, Mapping[str, Callable[[Any, Graph | None], str | bytes]]] = {
    "plan": {
        "json": lambda plan, graph: json.dumps(_map(plan, graph).payload()) + "\n",
        "svg": lambda plan, graph: timeline.to_svg(_map(plan, graph)),
        "html": page,
    },
    "graph": {
        "json": lambda found, _: graph_to_json(found),
        "dot": lambda found, _: found.to_dot() + "\n",
        "svg": lambda found, _: graphs.to_svg(graphs.picture(found)),
        "png": lambda found, _: rendered(found, "png"),
        "pdf": lambda found, _: rendered(found, "pdf"),
    },
    "trace": {"csv": _classes},
}
