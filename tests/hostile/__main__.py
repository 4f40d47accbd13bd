"""Look for files that hang, fill the machine or fail untyped: `make fuzz-files SECONDS=600`."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from looking import Looked, add, look, parser

from hostile.kinds import KINDS
from hostile.mutating import mutated
from hostile.reading import OUTCOMES, Outcome, Reader
from hostile.shrinking import shrunk

CASES = Path(__file__).parent / "cases"


def main() -> int:
    """Change, read, shrink what fails; a summary at the end."""
    made = parser("fuzz-files", __doc__, CASES, 30)
    made.add_argument("--kind", action="append", choices=KINDS, help="of files; all by default")
    options = made.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, Outcome]] = Counter()
    kinds = options.kind or list(KINDS)
    slowest, largest = 0.0, 0

    def one(seed: int) -> None:
        nonlocal slowest, largest
        kind = kinds[seed % len(kinds)]
        data = mutated(kind, KINDS[kind].samples(), seed)
        found = reader.read(kind, data)
        slowest = max(slowest, found.took_s)
        largest = max(largest, found.taken_bytes)
        counts[kind, found.outcome] += 1
        if not found.is_good:
            short = Outcome(found.outcome, found.what)
            failures[kind, short] += 1
            if failures[kind, short] == 1:
                _keep(reader, kind, data, found, seed, options)

    with tempfile.TemporaryDirectory() as cache, Reader() as reader:
        os.environ["XDG_CACHE_HOME"] = cache  # programs are signed with a key that lies there
        reader.read("graph", b"{}")  # starts it
        found = look(options, one, lambda found: _summary(_totals(counts), found, slowest))
    for kind in kinds:
        told = ", ".join(f"{n} {what}" for (k, what), n in sorted(counts.items()) if k == kind)
        print(f"  {kind:10} {told}")
    for (kind, outcome), count in failures.most_common():
        print(f"{count:6} {kind}: {outcome.outcome}: {outcome.what}")
    by_kind = {f"of {kind}": sum(n for (k, _), n in counts.items() if k == kind) for kind in kinds}
    most = {"most ms": round(slowest * 1e3), "most bytes": largest}
    add(options.results, "files", found, _totals(counts) | by_kind | most)
    return 1 if failures else 0


def _totals(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    found = dict.fromkeys(OUTCOMES, 0)
    for (_, outcome), count in counts.items():
        found[outcome] += count
    return {"files": counts.total(), **found}


def _summary(totals: dict[str, int], found: Looked, slowest: float) -> str:
    return (
        f"{found.seconds:6.0f} s  {totals['files']:,} files "
        f"({totals['files'] / found.seconds:.0f}/s)  {totals['refused']:,} refused  "
        f"{totals['fine']:,} right  {totals['wrong']} wrong  {totals['untyped']} untyped  "
        f"{totals['memory']} over 1 GB  {totals['time']} over 5 s  (slowest {slowest:.1f} s)"
    )


def _keep(
    reader: Reader, kind: str, data: bytes, found: Outcome, seed: int, options: argparse.Namespace
) -> None:
    """Show a failure, and write its file as small as it gets."""
    print(f"\nseed {seed}: {kind}: {found.outcome}: {found.what}\n{found.told}", flush=True)
    data = shrunk(reader, kind, data, found, options.shrink)
    words = re.sub(r"\W+", "_", f"{found.outcome} {found.what}").strip("_").lower()[:60]
    path = options.folder / f"{kind}-{words}-{seed}{KINDS[kind].suffix}"
    path.write_bytes(data)
    print(f"{len(data)} bytes in {path}\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
