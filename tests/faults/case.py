"""Faults as data, and what is done of them: drawn from a seed, kept as JSON, done again.

{"kind": "killed", "after_ms": 100}                     a process that writes
{"kind": "full disk", "limit_bytes": 4096}              no file can be longer
{"kind": "locked", "how": "EXCLUSIVE", "end": "COMMIT"}  somebody holds the database
{"kind": "lost worker", "after_ms": 500}                the process of a search is killed
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
from hostile.kinds import decoder, values_of

from faults.files import FILES, Harmed, check_all, session, sizes, write_all
from tgbench.base.errors import TgbenchError
from tgbench.graph.reference import evaluate
from tgbench.plans.background.process import BackgroundSearch
from tgbench.runs.trace import TraceWarning

Json: TypeAlias = "dict[str, Any]"
LONGEST_MS = 250  # until a writer is killed
LARGEST_BYTES = 60_000  # that a file may have where a disk is full
HARM, TYPED = 3, 4  # how a writer ends


def _writer(folder: Path, limit_bytes: int | None) -> int:
    """Fork a process that writes, and writes again; it ends with what came of it."""
    child = os.fork()
    if child:
        return child
    ended = HARM
    try:
        if limit_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        for number in range(1, 2 if limit_bytes is not None else 1_000_000):
            if list(write_all(folder, number)):
                ended = TYPED
        ended = 0 if ended == HARM else ended
    finally:
        os._exit(ended)


def killed(folder: Path, after_ms: int) -> str:
    """A process is killed while it writes."""
    child = _writer(folder, None)
    time.sleep(after_ms / 1e3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "killed"


def full_disk(folder: Path, limit_bytes: int) -> str:
    """No file can be longer than so many bytes."""
    before = set(folder.iterdir())  # strays of those that were killed stay for an hour
    child = _writer(folder, limit_bytes)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended not in (0, TYPED):
        raise Harmed(f"writer: ended with {ended} where a disk was full")
    strays = [p.name for p in {*folder.iterdir()} - before if p.suffix == ".tmp"]
    if strays:
        raise Harmed(f"strays: {strays}")
    return "written all the same" if ended == 0 else "refused"


def locked(folder: Path, how: str, end: str) -> str:
    """Somebody holds the database of records."""
    path = folder / "records.db"
    number = time.monotonic_ns()  # no record that is there
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute(f"BEGIN {how}")
    records = next(file for file in FILES if file.name == path.name)
    try:
        records.write(path, number)
        raise Harmed("records.db: written while it was locked")
    except TgbenchError:
        pass
    finally:
        holder.execute(end)
        holder.close()
    records.write(path, number)
    return "refused"


def lost_worker(folder: Path, after_ms: int) -> str:
    """The process of a search is killed; the session has the best plan so far, or is told."""
    with session().search() as search:
        search.start(seconds=30)
        _await(search, after_ms / 1e3)
        os.kill(search._child.process.pid, signal.SIGKILL)
        search.wait(20)
        try:
            session().adopt(search.result())
        except TgbenchError:
            return "told"
    return "best so far"


def _await(search: BackgroundSearch, seconds: float) -> None:
    """A process that has begun."""
    end = time.monotonic() + 20
    while search._child is None and time.monotonic() < end:
        time.sleep(0.01)
    search.wait(seconds)


FAULTS: dict[str, Callable[..., str]] = {
    "killed": killed, "full disk": full_disk, "locked": locked, "lost worker": lost_worker,
}  # fmt: skip
DRAWN: dict[str, Callable[[Random], Json]] = {
    "killed": lambda random: {"after_ms": random.randrange(LONGEST_MS)},
    "full disk": lambda random: {"limit_bytes": int(random.random() ** 3 * LARGEST_BYTES)},
    "locked": lambda random: {
        "how": random.choice(("IMMEDIATE", "EXCLUSIVE")),
        "end": random.choice(("COMMIT", "ROLLBACK")),
    },
    "lost worker": lambda random: {"after_ms": random.randrange(1000)},
}
OFTEN = ("killed", "full disk", "locked")
EVERY = 25  # one fault in so many is a lost worker, whose process takes seconds to begin


def fault_of(seed: int) -> Json:
    kind = "lost worker" if seed % EVERY == EVERY - 1 else OFTEN[seed % len(OFTEN)]
    return {"kind": kind, **DRAWN[kind](Random(seed))}


def one(fault: Json, folder: Path) -> str:
    """A fault, on files that are there; raises `Harmed`."""
    warnings.simplefilter("ignore", TraceWarning)  # a torn line is told, and is no harm
    before = sizes(folder)
    found = FAULTS[fault["kind"]](folder, **{k: v for k, v in fault.items() if k != "kind"})
    check_all(folder, before)
    harmed = list(write_all(folder, 0))
    if harmed:
        raise Harmed(f"{harmed[0]}: cannot be written any more")
    _check_session()
    return found


def _check_session() -> None:
    """It goes on, and is right."""
    values, made = values_of(decoder()), session()
    kept = {name: made.state_value(name) for name in made.graph.states}
    inputs = {name: values[name] for name in decoder().inputs}
    right = evaluate(decoder(), {**values, **kept})
    found = made.run(inputs)
    if not all(np.allclose(found[n], right[n], rtol=1e-2, atol=1e-3) for n in right):
        raise Harmed("session: differs from the reference")


def begin(folder: Path) -> None:
    """All files, written once."""
    failed = list(write_all(folder, 0))
    assert not failed, failed


def harm_of(faults: Sequence[Json]) -> str | None:
    """What faults in a row do to files of their own; None for no harm."""
    with tempfile.TemporaryDirectory() as folder:
        begin(Path(folder))
        try:
            for fault in faults:
                one(fault, Path(folder))
        except Harmed as harm:
            return str(harm)
    return None
