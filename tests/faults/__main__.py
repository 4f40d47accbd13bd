"""Look for harm that faults do: `make fuzz-faults SECONDS=600`."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import torch
from hostile.kinds import decoder, values_of
from looking import Looked, add, look, parser

from faults.files import FILES, Harmed, check_all, session, sizes, write_all
from tgbench.base.errors import TgbenchError
from tgbench.graph.reference import evaluate
from tgbench.plans.background.process import BackgroundSearch
from tgbench.runs.trace import TraceWarning

LONGEST_S = 0.25  # until a writer is killed
LARGEST_BYTES = 60_000  # that a file may have where a disk is full
HARM, TYPED = 3, 4  # how a writer ends
Fault = Callable[[Path, Random], str]


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


def killed(folder: Path, random: Random) -> str:
    """A process is killed while it writes."""
    child = _writer(folder, None)
    time.sleep(random.random() * LONGEST_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "killed"


def full_disk(folder: Path, random: Random) -> str:
    """No file can be longer than so many bytes."""
    before = set(folder.iterdir())  # strays of those that were killed stay for an hour
    child = _writer(folder, int(random.random() ** 3 * LARGEST_BYTES))
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended not in (0, TYPED):
        raise Harmed(f"writer: ended with {ended} where a disk was full")
    strays = [p.name for p in {*folder.iterdir()} - before if p.suffix == ".tmp"]
    if strays:
        raise Harmed(f"strays: {strays}")
    return "written all the same" if ended == 0 else "refused"


def locked(folder: Path, random: Random) -> str:
    """Somebody holds the database of records."""
    number, path = random.randrange(1 << 30), folder / "records.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute(random.choice(("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE")))
    records = next(file for file in FILES if file.name == path.name)
    try:
        records.write(path, number)
        raise Harmed("records.db: written while it was locked")
    except TgbenchError:
        pass
    finally:
        holder.execute(random.choice(("COMMIT", "ROLLBACK")))
        holder.close()
    records.write(path, number)
    return "refused"


def lost_worker(folder: Path, random: Random) -> str:
    """The process of a search is killed; the session has the best plan so far, or is told."""
    with session().search(seed=random.randrange(100)) as search:
        search.start(seconds=30)
        _await(search, random.random())
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


FAULTS: dict[str, Fault] = {
    "killed": killed, "full disk": full_disk, "locked": locked, "lost worker": lost_worker,
}  # fmt: skip
OFTEN = ("killed", "full disk", "locked")
EVERY = 25  # one fault in so many is a lost worker, whose process takes seconds to begin


def fault_of(seed: int) -> str:
    return "lost worker" if seed % EVERY == EVERY - 1 else OFTEN[seed % len(OFTEN)]


def one(seed: int, folder: Path) -> str:
    """The fault of a seed, on files that are there; raises `Harmed`."""
    warnings.simplefilter("ignore", TraceWarning)  # a torn line is told, and is no harm
    before = sizes(folder)
    found = FAULTS[fault_of(seed)](folder, Random(seed))
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


def main() -> int:
    """A fault a seed, on one folder; what came of each at the end."""
    made = parser("fuzz-faults", __doc__, Path(), 0)
    options = made.parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    failures: Counter[str] = Counter()

    def tried(seed: int) -> None:
        kind = fault_of(seed)
        try:
            counts[kind, one(seed, folder)] += 1
        except Harmed as harm:
            counts[kind, "harmed"] += 1
            failures[f"{kind}: {harm}"] += 1
            print(f"\nseed {seed}: {kind}: {harm}", flush=True)
            for path in folder.iterdir():
                path.unlink()
            begin(folder)

    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name  # programs are signed with a key that lies there
        folder = Path(name, "files")
        folder.mkdir()
        begin(folder)
        found = look(options, tried, lambda found: _summary(counts, found))
    for (kind, what), count in sorted(counts.items()):
        print(f"  {kind:12} {what:22} {count:,}")
    totals = Counter(kind for kind, _ in counts.elements())
    harmed = sum(failures.values())
    add(options.results, "faults", found, {**totals, "faults": found.cases, "harmed": harmed})
    return 1 if failures else 0


def _summary(counts: Counter[tuple[str, str]], found: Looked) -> str:
    kinds = Counter(kind for kind, _ in counts.elements())
    harmed = sum(count for (_, what), count in counts.items() if what == "harmed")
    shown = "  ".join(f"{kinds[kind]:,} {kind}" for kind in FAULTS)
    return f"{found.seconds:6.0f} s  {found.cases:,} faults  {shown}  {harmed} did harm"


if __name__ == "__main__":
    raise SystemExit(main())
