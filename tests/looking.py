"""What the fuzzers share: a command line, cases from one seed after another, and what came of them.

    look   seed, seed + 1, …   until the time is over, or somebody stops it
    add    the counts of one look to those of others, in a file: seeds that were counted are not
           counted again; `counted` reads it

A fuzzer says what one case is, and how it is counted: `make fuzz`, `make fuzz-bits`,
`make fuzz-files`, `make fuzz-interrupts` and `make fuzz-faults`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import time
from collections.abc import Callable
from operator import add as add_up
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TELL_S = 10.0  # how often progress is told


def parser(prog: str, doc: str | None, cases: Path, shrink_s: float) -> argparse.ArgumentParser:
    """The options that all fuzzers have."""
    made = argparse.ArgumentParser(prog=prog, description=doc)
    made.add_argument("--seconds", type=float, default=600)
    made.add_argument("--seed", type=int, default=0, help="of the first case; then one more each")
    made.add_argument("--stop", type=int, default=1 << 60, help="the seed to stop before")
    made.add_argument("--shrink", type=float, default=shrink_s, help="seconds for each failure")
    made.add_argument("--folder", type=Path, default=cases, help="where failures are written")
    made.add_argument("--results", type=Path, help="a JSON file that counts are added to")
    return made


class Looked:
    """How far a look got.

    Fields:
        seed: the next one.
        seconds: since it began.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.first = self.seed = options.seed
        self._began = time.monotonic()

    @property
    def cases(self) -> int:
        return self.seed - self.first

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._began, 1e-9)


def look(
    options: argparse.Namespace,
    one: Callable[[int], None],
    told: Callable[[Looked], str],
) -> Looked:
    """Do the cases of one seed after another; `told` is a line on how it stands."""
    found, spoken = Looked(options), 0.0
    try:
        while found.seconds < options.seconds and found.seed < options.stop:
            one(found.seed)
            found.seed += 1
            if found.seconds - spoken > TELL_S:
                spoken = found.seconds
                print(told(found), flush=True)
    except KeyboardInterrupt:
        print("stopped")
    print(told(found))
    return found


def add(path: Path | None, name: str, found: Looked, counts: dict[str, int]) -> None:
    """Add what a look counted to what others did, by revision of the sources.

    Counts are added up; of those that begin with "most" the larger one stays. Raises ValueError
    for seeds that were counted.
    """
    if path is None or not found.cases:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        everything: dict[str, Any] = json.loads(file.read() or "{}")
        before = everything.get(name, NOTHING)
        span = [found.first, found.seed]
        if any(a < span[1] and span[0] < b for a, b in before["seeds"]):
            raise ValueError(f"seeds {span} were counted already; begin with another --seed")
        of = revision()
        everything[name] = {
            "seeds": _together([*before["seeds"], span]),
            "seconds": round(before["seconds"] + found.seconds),
            "revisions": before["revisions"] | {of: before["revisions"].get(of, 0) + found.cases},
            "counts": {
                key: (max if key.startswith("most") else add_up)(
                    before["counts"].get(key, 0), counts.get(key, 0)
                )
                for key in sorted({*before["counts"], *counts})
            },
        }
        file.truncate(0)
        file.write(json.dumps(everything, indent=1) + "\n")


NOTHING: dict[str, Any] = {"seeds": [], "seconds": 0, "revisions": {}, "counts": {}}


def counted(path: Path, name: str) -> dict[str, Any]:
    """What was counted of a kind so far."""
    found = json.loads(path.read_text() or "{}") if path.exists() else {}
    return dict(found.get(name, NOTHING))


def _together(spans: list[list[int]]) -> list[list[int]]:
    """Spans in order; those that go on where another one ends are one."""
    found: list[list[int]] = []
    for first, stop in sorted(spans):
        if found and found[-1][1] == first:
            found[-1][1] = stop
        else:
            found.append([first, stop])
    return found


def revision() -> str:
    """Of the sources: the commit, and whether anything differs from it."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=HERE)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
