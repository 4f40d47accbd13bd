"""What a session writes, over and over, and what must be true of it after a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from costs.test_records import MACHINE
from hostile.kinds import decoder, values_of

import tgbench as tg
from tgbench.base.errors import TgbenchError
from tgbench.base.safetensors import read_header, save
from tgbench.costs.records import Record, Records
from tgbench.graph.graph_file import load_graph, save_graph
from tgbench.memory.packing.files import read_minimalloc, write_minimalloc
from tgbench.memory.packing.problem import Buffer, Problem
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace


class Harmed(AssertionError):  # noqa: N818
    """A fault did harm: the first word says to what."""


@cache
def session() -> tg.GraphSession:
    """One that has run, and is written from."""
    values = values_of(decoder())
    weights = {name: values.pop(name) for name in decoder().parameters}
    made = tg.GraphSession(decoder(), weights, "1MiB", calibrate=False, making="always")
    made.run(values)
    made.run({**values, "ids": np.roll(values["ids"], 1)})
    return made


def _records(path: Path, number: int) -> None:
    key = ("add", f"{number}", "add(…)", MACHINE.fingerprint)
    Records(path, timeout_s=0.2).add([Record(*key, samples_ns=(1200 + number,))], MACHINE)


def _trace(path: Path, number: int) -> None:
    with Trace(path) as trace:
        for call in session().trace.calls:
            trace.append(call)


def _packing(path: Path, number: int) -> None:
    buffers = tuple(Buffer(f"b{at}", 64, at, at + 2) for at in range(200))
    write_minimalloc(path, Problem(buffers))


@dataclass(frozen=True)
class Written:
    """A file: how it is written for the n-th time, and how it is read."""

    name: str
    write: Callable[[Path, int], Any]
    read: Callable[[Path], Any]


FILES = (
    Written("plan.json", lambda path, n: session().save_plan(path), Plan.load),
    Written("plan.programs", lambda path, n: session().save_programs(path),
            lambda path: session().load_programs(path)),
    Written("graph.json", lambda path, n: save_graph(decoder(), path), load_graph),
    Written("w.safetensors", lambda path, n: save({"x": np.full(4096, n, "f")}, path), read_header),
    Written("records.db", _records, lambda path: Records(path, timeout_s=1).all()),
    Written("calls.jsonl", _trace, Trace.load),
    Written("pack.csv", _packing, read_minimalloc),
)  # fmt: skip


def write_all(folder: Path, number: int) -> Iterator[str]:
    """Write every file; the names of those that a typed error stopped."""
    for file in FILES:
        try:
            file.write(folder / file.name, number)
        except TgbenchError:
            yield file.name


def check_all(folder: Path, before: Mapping[str, int]) -> None:
    """Every file that was there is there and whole, and has lost nothing."""
    for file in FILES:
        try:
            found = file.read(folder / file.name)
        except Exception as error:
            raise Harmed(f"{file.name}: {type(error).__name__}: {error}") from error
        if isinstance(found, (tuple, Trace)) and len(found) < before[file.name]:
            raise Harmed(f"{file.name}: {len(found)} of {before[file.name]} are left")


def sizes(folder: Path) -> dict[str, int]:
    """How many records and calls there are."""
    found = {file.name: file.read(folder / file.name) for file in FILES}
    return {n: len(x) if isinstance(x, (tuple, Trace)) else 0 for n, x in found.items()}
