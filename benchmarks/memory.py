"""Memory that stays: what a process holds while sessions go on, and after they are dropped.

    edits      random edits, answers asked for anywhere, every run a program of its own that is
               forgotten at once (`program_bytes=1`)
    runs       the same with the options that users get
    sessions   made, run a few times, and dropped

Each in a process of its own. Resident memory is what the system says, collected or not: nothing is
tidied up before it is read. It is counted from when everything that is loaded late was loaded, and
what sessions remember has its bounds.

    python -m benchmarks.memory
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Command, threads
from tgbench.base.machine import cache_folder
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

TOKENS, MIB = 64, 1 << 20
LOOKS = 20  # how often memory is looked at


@dataclass(frozen=True)
class Course:
    """Something that is done again and again.

    Fields:
        times: how often.
        warm: how often before memory counts.
        limit_bytes: that it may grow by from then on.
        steps: does it once each time that it is asked for more, and says what is remembered.
    """

    times: int
    warm: int
    limit_bytes: int
    steps: Callable[[Path], Iterator[Mapping[str, int]]]


def _session(folder: Path, **options: Any) -> GraphSession:
    graph = gemma3(gemma3_reduced(), TOKENS)
    return GraphSession(graph, folder, calibrate=False, **options)


def _edited(session: GraphSession) -> Iterator[Mapping[str, int]]:
    """One to four tokens anywhere become others; the logits of some rows in a row are asked for."""
    random, ids = np.random.default_rng(0), np.zeros((1, TOKENS), np.int64)
    while True:
        count = int(random.integers(1, 5))
        ids[0, random.integers(0, TOKENS, count)] = random.integers(0, 100, count)
        first = int(random.integers(TOKENS))
        stop = int(random.integers(first, TOKENS)) + 1
        session.run({"ids": ids}, {"logits": np.s_[0, first:stop]})
        yield session.remembered


def _edits(folder: Path) -> Iterator[Mapping[str, int]]:
    return _edited(_session(folder, program_bytes=1, making="always"))


def _runs(folder: Path) -> Iterator[Mapping[str, int]]:
    return _edited(_session(folder))


def _sessions(folder: Path) -> Iterator[Mapping[str, int]]:
    while True:
        runs = _edited(_session(folder))
        for _ in range(4):
            next(runs)
        yield {}


COURSES = {
    "edits": Course(10_000, 1_000, 50 * MIB, _edits),
    "runs": Course(20_000, 1_000, 32 * MIB, _runs),
    "sessions": Course(200, 10, 5 * MIB, _sessions),
}


def resident_bytes() -> int:
    """Of this process, as Linux counts them."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _followed(name: str, share: float, folder: Path, found: Any) -> None:
    """In a process of its own: memory now and then, and what is remembered in the end."""
    course = COURSES[name]
    times, warm = (max(round(count * share), 2) for count in (course.times, course.warm))
    seen: list[tuple[int, int]] = []
    with threads(1):
        for number, held in enumerate(course.steps(folder), 1):
            remembered = dict(held)
            is_due = number % max(times // LOOKS, 1) == 0
            if number == warm or (is_due and number > warm) or number >= times:
                seen.append((number, resident_bytes()))
            if number >= times:
                break
    found.put({
        "times": times, "warm": warm, "limit_bytes": course.limit_bytes, "resident_bytes": seen,
        "grown_bytes": max(size for _, size in seen) - seen[0][1], "remembered": remembered,
    })  # fmt: skip


def followed(name: str, share: float, folder: Path) -> dict[str, Any]:
    """A course, or a share of it."""
    note(name)
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=_followed, args=(name, share, folder, found))
    process.start()
    result: dict[str, Any] = found.get()
    process.join()
    return result


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("memory", "What a process holds while sessions go on.")
    command.add_argument("--only", choices=list(COURSES), action="append", help="some alone")
    command.add_argument("--cache", type=Path, default=cache_folder(), help="keeps random weights")
    options, record = command.begin(argv)
    folder = gemma3_checkpoint(options.cache / "gemma3-reduced", gemma3_reduced())
    share = 0.002 if options.quick else 1.0
    found = {name: followed(name, share, folder) for name in options.only or COURSES}
    rows = [
        [name, f"{one['times']:,}", f"{one['resident_bytes'][0][1] / MIB:.0f}",
         f"{one['grown_bytes'] / MIB:.1f}", f"{one['limit_bytes'] / MIB:.0f}",
         f"{sum(one['remembered'].values()) / MIB:.1f}"]
        for name, one in found.items()
    ]  # fmt: skip
    say(table(["", "times", "resident, MiB", "grown by", "allowed", "remembered"], rows))
    record.write({"courses": found}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
