"""All that is promised, one slice after the other: `make trust SECONDS=3600`.

    runs        random graphs, edits and options beside an evaluator of its own
    files       damaged files of every kind
    bits        bit-exact mode over every op and hostile numbers
    interrupts  points of three runs at which something is raised
    faults      kills, a full disk, a locked database, a lost worker

Each slice is a fuzzer in a process of its own, which adds what it counted to the results, with the
revision of the sources. Whoever is furthest from what is wanted goes on next. It can be stopped at
any time (Ctrl-C) and started again: seeds that were counted do not come again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bits.histories import TABLE
from looking import HERE, counted

from benchmarks.measure import RESULTS, dumped, machine, versions

OUTPUT = HERE.parent / RESULTS / "trust.json"


@dataclass(frozen=True)
class Part:
    """A fuzzer, and how much of it is wanted.

    Fields:
        name: in the results; module: that looks.
        count: what is counted of it; wanted: how many of these, or the count that says so.
        faults: counts that have to be 0.
    """

    name: str
    module: str
    count: str
    wanted: int | str
    faults: tuple[str, ...]

    def done(self, found: Mapping[str, Any]) -> int:
        return int(found["counts"].get(self.count, 0))

    def of(self, found: Mapping[str, Any]) -> int:
        """How many are wanted; some, until that was counted."""
        if isinstance(self.wanted, int):
            return self.wanted
        return int(found["counts"].get(self.wanted, 1))

    def failed(self, found: Mapping[str, Any]) -> int:
        return sum(int(found["counts"].get(fault, 0)) for fault in self.faults)


PARTS = (
    Part("runs", "fuzz", "runs", 100_000, ("wrong", "raised", "refused")),
    Part("files", "hostile", "files", 10_000, ("wrong", "untyped", "memory", "time")),
    Part("bits", "bits", "histories", TABLE + 1_000, ("differing", "raised")),
    Part("interrupts", "interrupts", "visited", "most to visit", ("harmed",)),
    Part("faults", "faults", "faults", 1_000, ("harmed",)),
)  # fmt: skip


def begin(path: Path) -> None:
    """A file of results without any, if there is none yet."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {
        "bench": "trust", "command": "make trust",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(), "versions": versions(),
    }  # fmt: skip
    path.write_text(dumped(head) + "\n")


def next_part(path: Path) -> Part | None:
    """The one that is furthest from what is wanted; None when all is done."""
    found = {part: counted(path, part.name) for part in PARTS}
    shares = {part: part.done(one) / part.of(one) for part, one in found.items()}
    part = min(shares, key=lambda part: shares[part])
    return part if shares[part] < 1 else None


def look(part: Part, path: Path, seconds: float, folder: Path) -> int:
    """A slice of it; its exit status."""
    first = max((stop for _, stop in counted(path, part.name)["seeds"]), default=0)
    words = [f"--seconds={seconds:.0f}", f"--seed={first}", f"--results={path}"]
    print(f"== {part.name}: {' '.join(words[:2])}", flush=True)
    command = [sys.executable, "-W", "ignore", "-m", part.module, *words, f"--folder={folder}"]
    paths = os.pathsep.join((str(HERE), str(HERE.parent)))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
    if part.name == "interrupts":  # what is checked besides is no part of a run
        environment.pop("TGBENCH_CHECK", None)
    return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode


def summary(path: Path) -> str:
    """How much was done of everything, and how much of it failed."""
    found = {part: counted(path, part.name) for part in PARTS}
    return "\n".join(
        f"{part.done(one):9,} of {part.of(one):9,} {part.count:9} {part.failed(one):3} failed  "
        f"{part.name}"
        for part, one in found.items()
    )


def main() -> int:
    """Slices until the time is over, everything is done, or somebody stops it."""
    parser = argparse.ArgumentParser(prog="trust", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--slice", type=float, default=120, help="seconds of one part at a time")
    parser.add_argument("--results", type=Path, default=OUTPUT, help="a JSON file that is added to")
    parser.add_argument("--folder", type=Path, default=HERE / "trust", help="where failures go")
    options = parser.parse_args()
    path, end = options.results.resolve(), time.monotonic() + options.seconds
    begin(path)
    try:
        while (left := end - time.monotonic()) > 0 and (part := next_part(path)):
            look(part, path, min(options.slice, left), options.folder.resolve())
    except KeyboardInterrupt:
        print("stopped")
    print(summary(path))
    return 1 if any(part.failed(counted(path, part.name)) for part in PARTS) else 0


if __name__ == "__main__":
    raise SystemExit(main())
