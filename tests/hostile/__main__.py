"""Look for files that hang, fill the machine or fail untyped: `make fuzz-files SECONDS=600`."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections import Counter
from pathlib import Path

from hostile.kinds import KINDS
from hostile.mutating import mutated
from hostile.reading import Outcome, Reader
from hostile.shrinking import shrunk

CASES = Path(__file__).parent / "cases"


def main() -> int:
    """Change, read, shrink what fails; a summary at the end."""
    arguments = _parser().parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, Outcome]] = Counter()
    kinds = arguments.kind or list(KINDS)
    began = spoken = time.monotonic()
    seed, slowest = arguments.seed, 0.0
    with tempfile.TemporaryDirectory() as cache, Reader() as reader:
        os.environ["XDG_CACHE_HOME"] = cache  # programs are signed with a key that lies there
        reader.read("graph", b"{}")  # starts it
        try:
            while time.monotonic() - began < arguments.seconds and seed < arguments.stop:
                kind = kinds[seed % len(kinds)]
                data = mutated(kind, KINDS[kind].samples(), seed)
                since = time.monotonic()
                found = reader.read(kind, data)
                slowest = max(slowest, time.monotonic() - since)
                counts[kind, found.outcome] += 1
                if not found.is_good:
                    short = Outcome(found.outcome, found.what)
                    failures[kind, short] += 1
                    if failures[kind, short] == 1:
                        _keep(reader, kind, data, found, seed, arguments)
                seed += 1
                if time.monotonic() - spoken > 10:
                    spoken = time.monotonic()
                    print(_summary(counts, began, slowest), flush=True)
        except KeyboardInterrupt:
            print("stopped")
    print(_summary(counts, began, slowest))
    for kind in kinds:
        told = ", ".join(f"{n} {what}" for (k, what), n in sorted(counts.items()) if k == kind)
        print(f"  {kind:10} {told}")
    for (kind, outcome), count in failures.most_common():
        print(f"{count:6} {kind}: {outcome.outcome}: {outcome.what}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz-files", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0, help="of the first file; then one more each")
    parser.add_argument("--stop", type=int, default=1 << 60, help="the seed to stop before")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of files; all by default")
    parser.add_argument("--shrink", type=float, default=30, help="seconds a failure is shrunk for")
    parser.add_argument("--folder", type=Path, default=CASES, help="where failures are written")
    return parser


def _summary(counts: Counter[tuple[str, str]], began: float, slowest: float) -> str:
    found: Counter[str] = Counter()
    for (_, outcome), count in counts.items():
        found[outcome] += count
    seconds = time.monotonic() - began
    return (
        f"{seconds:6.0f} s  {found.total():,} files ({found.total() / seconds:.0f}/s)  "
        f"{found['refused']:,} refused  {found['fine']:,} right  {found['wrong']} wrong  "
        f"{found['untyped']} untyped  {found['memory']} over 1 GB  {found['time']} over 5 s  "
        f"(slowest {slowest:.1f} s)"
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
