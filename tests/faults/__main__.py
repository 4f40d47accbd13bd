"""Look for harm that faults do: `make fuzz-faults SECONDS=600`."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import torch
from looking import Looked, add, look, parser

from faults.case import FAULTS, Json, begin, fault_of, one
from faults.files import Harmed
from faults.shrinking import shrunk

CASES = Path(__file__).parent / "cases"


def main() -> int:
    """A fault a seed, on one folder; harm is shrunk and kept; what came of each at the end."""
    options = parser("fuzz-faults", __doc__, CASES, 60).parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    since: list[Json] = []  # what was done to these files so far

    def tried(seed: int) -> None:
        fault = fault_of(seed)
        since.append(fault)
        try:
            counts[fault["kind"], one(fault, folder)] += 1
        except Harmed as harm:
            counts[fault["kind"], "harmed"] += 1
            print(f"\nseed {seed}: {fault}: {harm}; shrinking", flush=True)
            _keep(shrunk(since, str(harm), options.shrink), seed, options.folder)
            for path in folder.iterdir():
                path.unlink()
            begin(folder)
            since.clear()

    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name  # programs are signed with a key that lies there
        folder = Path(name, "files")
        folder.mkdir()
        begin(folder)
        found = look(options, tried, lambda found: _summary(counts, found))
    for (kind, what), count in sorted(counts.items()):
        print(f"  {kind:12} {what:22} {count:,}")
    totals = Counter(kind for kind, _ in counts.elements())
    harmed = _harmed(counts)
    add(options.results, "faults", found, {**totals, "faults": found.cases, "harmed": harmed})
    return 1 if harmed else 0


def _keep(faults: list[Json], seed: int, folder: Path) -> None:
    """Show what did harm, and write it down."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{faults[-1]['kind'].replace(' ', '_')}-{seed}.json"
    path.write_text("".join(f"{json.dumps(fault)}\n" for fault in faults))
    print(f"{path.read_text()}in {path}\n", flush=True)


def _harmed(counts: Counter[tuple[str, str]]) -> int:
    return sum(count for (_, what), count in counts.items() if what == "harmed")


def _summary(counts: Counter[tuple[str, str]], found: Looked) -> str:
    kinds = Counter(kind for kind, _ in counts.elements())
    shown = "  ".join(f"{kinds[kind]:,} {kind}" for kind in FAULTS)
    return f"{found.seconds:6.0f} s  {found.cases:,} faults  {shown}  {_harmed(counts)} did harm"


if __name__ == "__main__":
    raise SystemExit(main())
