"""`tgbench run`: a graph on one set of inputs, or on one after the other.

$ tgbench run model.json --weights model.safetensors --inputs edits.safetensors
run 0: scale[], x[:, :] → total[], y[:, :]
100.0% of what a run from nothing computes; 3 calls, 128 multiply–adds, 353 ms
run 1: x[u0:+1, :] → total[], y[:, :]
21.2% of what a run from nothing computes; 3 calls, 16 multiply–adds, 2.2 ms
programs made: 2; plans made: 1; arena 448 B

Tensor `1.input.x` is what `x` becomes before run 1; what a run leaves out keeps its value. Names
without a number are one run's inputs. Outputs are written as they were asked for, run 1's `y` as
`1.output.y`, or as `y` where there is one run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from tqdm import tqdm

from tgbench.base.errors import DemandError, InputError, PlanError, ProgramsError
from tgbench.base.files import is_there
from tgbench.base.safetensors import Weights, save
from tgbench.base.words import counted, format_bytes
from tgbench.commands.model import add_model, session_of
from tgbench.commands.numbers import whole
from tgbench.commands.progress import bar, note
from tgbench.commands.targets import require_apart, require_writable
from tgbench.programs.program_file import require_programs
from tgbench.session.check.pairs import SIDES, Array, as_array, load_pairs
from tgbench.session.report import Report
from tgbench.session.session import GraphSession

Index: TypeAlias = "int | slice | EllipsisType"
Sequels: TypeAlias = "Mapping[str, Mapping[str, Array]]"  # what outputs' names begin with → inputs
MOST_BOUNDS = 3  # start:stop:step


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add("--inputs", type=Path, required=True, help="safetensors: x, or 0.input.x, 1.input.x, …")
    add("--want", action="append", metavar="y[0,2:4]", help="a part of an output (all of them)")
    add("--plan", type=Path, help="plan file: used if it is there, else written")
    add("--programs", type=Path, help="programs for this plan: used if they are there; written")
    add("--trace", type=Path, help="a trace (.jsonl) that every run is added to")
    add("--repeat", type=whole(1), default=1, help="how often to go through the inputs (1)")
    add("--output", type=Path, help="safetensors file for the last outputs of each run")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: everything has run. Raises what `GraphSession.run` does, and for files."""
    if arguments.programs is not None and arguments.plan is None:
        raise PlanError("--programs are of a plan; give its file with --plan")
    is_new = arguments.plan is not None and not is_there(arguments.plan)
    written = arguments.output, arguments.programs, arguments.plan if is_new else None
    require_writable(*written)
    require_apart(
        InputError, (*written, arguments.trace), arguments.model, arguments.weights,
        arguments.inputs, None if is_new else arguments.plan,
    )  # fmt: skip
    if arguments.programs is not None and is_there(arguments.programs):
        require_programs(arguments.programs)
    want, inputs = wanted(arguments.want or ()), read_inputs(arguments.inputs)
    session = session_of(arguments, plan=arguments.plan, trace=arguments.trace)
    if arguments.programs is not None and session.is_planned and is_there(arguments.programs):
        _take_programs(session, arguments.programs)
    outputs: dict[str, Array] = {}
    reports = []
    with closing(session.trace):
        for number, prefix in enumerate(_order(inputs, arguments.repeat)):
            found = _results(session, inputs[prefix], want, f"{arguments.inputs}, run {number}")
            outputs |= {f"{prefix}{name}": np.asarray(value) for name, value in found.items()}
            reports.append(_told(session.report(), number, quiet=arguments.json))
    if is_new:
        session.save_plan()
    if arguments.programs is not None:
        session.save_programs(arguments.programs)
    if arguments.output is not None:
        save(outputs, arguments.output)
    facts = _facts(session)
    print(json.dumps({"runs": reports, **facts}, indent=1) if arguments.json else _summed(facts))
    return 0


def _take_programs(session: GraphSession, path: Path) -> None:
    """Use programs of an earlier call; those that do not fit this one are made anew, and said."""
    try:
        note(f"{counted(session.load_programs(path), 'program')} from {path}")
    except ProgramsError as error:
        note(str(error))


def _order(inputs: Sequels, repeat: int) -> Iterator[str]:
    with bar() as progress:
        total = repeat * len(inputs)
        for number in range(total):
            yield list(inputs)[number % len(inputs)]
            progress(number + 1, total, "runs")


def _results(
    session: GraphSession, inputs: Mapping[str, Array], want: dict[str, Any] | None, where: str
) -> dict[str, Any]:
    try:
        return session.run(inputs, want)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _told(report: Report, number: int, *, quiet: bool) -> dict[str, Any]:
    """What a run did; unless `quiet`, said at once, above the bar."""
    if not quiet:
        tqdm.write(f"run {number}: {report}")
    return {
        "class": str(report.kind), "recomputed": report.recomputed, "calls": report.calls,
        "multiply_adds": report.multiply_adds, "specialised": report.specialised,
        "decide_ns": report.decide_ns, "execute_ns": report.execute_ns,
        "total_ns": report.total_ns,
    }  # fmt: skip


def _facts(session: GraphSession) -> dict[str, Any]:
    counters = session.counters
    return {
        "specialised": counters.specialised, "planned": counters.planned,
        "arena_bytes": session.placement.size_bytes,
    }  # fmt: skip


def _summed(facts: Mapping[str, Any]) -> str:
    return (
        f"programs made: {facts['specialised']}; plans made: {facts['planned']}; "
        f"arena {format_bytes(facts['arena_bytes'])}"
    )


def read_inputs(path: Path) -> Sequels:
    """Inputs of each run, by what its outputs' names begin with.

    Raises WeightsError for a damaged file, InputError for a gap in the numbers.
    """
    with Weights(path) as file:
        if not any(_is_numbered(name) for name in file.names()):
            return {"": {n: as_array(file.tensor(n, file.info(n).dtype)) for n in file.names()}}
    return {f"{i}.output.": pair.inputs for i, pair in enumerate(load_pairs(path))}


def _is_numbered(name: str) -> bool:
    number, _, rest = name.partition(".")
    return number.isdigit() and rest.partition(".")[0] in SIDES


def wanted(texts: Sequence[str]) -> dict[str, Any] | None:
    """Parts of outputs, as `GraphSession.run` takes them; None for all of every output.

    Raises DemandError for what is no name with NumPy's basic indices.

    >>> wanted(["logits[0,-1]", "y[2:4, ...]", "z"])
    {'logits': (0, -1), 'y': (slice(2, 4, None), Ellipsis), 'z': Ellipsis}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, index = _part(text)
        if name in found:
            raise DemandError(f"--want {text}: {name} is wanted twice; give one part that has both")
        found[name] = index
    return found or None


def _part(text: str) -> tuple[str, Any]:
    name, bracket, rest = text.partition("[")
    if not bracket:
        return name, ...
    try:
        if not rest.endswith("]"):
            raise ValueError("a bracket is open")
        return name, tuple(map(_index, rest[:-1].split(",")))
    except ValueError as error:
        raise DemandError(
            f"--want {text}: {error}; write a name and its indices, such as logits[0,-1] or y[2:4]"
        ) from error


def _index(text: str) -> Index:
    if text.strip() == "...":
        return ...
    bounds = [int(bound) if bound.strip() else None for bound in text.split(":")]
    if len(bounds) > MOST_BOUNDS:
        raise ValueError(f"{text} has more than start:stop:step")
    return slice(*bounds) if len(bounds) > 1 else int(text)
