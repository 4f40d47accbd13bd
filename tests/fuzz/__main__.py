"""Look for cases that fail, for so many seconds: `make fuzz SECONDS=600 SEED=0`."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path

import torch

from fuzz.case import Json, save
from fuzz.coverage import coverage
from fuzz.history import random_case
from fuzz.printing import python_test
from fuzz.replay import Failure, Tally, replay
from fuzz.shrinking import shrunk

CASES = Path(__file__).parent / "cases"


def main() -> int:
    """Draw and replay; shrink and print what fails; tables at the end."""
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    tally, failures = Tally(), Counter[tuple[str, str]]()
    began, spoken, seed = time.monotonic(), 0.0, arguments.seed
    try:
        while time.monotonic() - began < arguments.seconds and seed < arguments.stop:
            case = random_case(seed)
            failure = replay(case, tally)
            if failure is not None:
                failures[failure.kind, failure.what] += 1
                if failures[failure.kind, failure.what] == 1:
                    _show(case, failure, arguments)
                else:
                    print(f"\nseed {seed}: {failure.kind}: {failure.what}, once more", flush=True)
            seed += 1
            if time.monotonic() - spoken > 10:
                spoken = time.monotonic()
                print(_progress(tally, failures, seed - arguments.seed, began), flush=True)
    except KeyboardInterrupt:
        print("stopped")
    print(coverage(tally, seed - arguments.seed))
    print(_progress(tally, failures, seed - arguments.seed, began))
    for (kind, what), count in failures.most_common():
        print(f"{count:6} {kind}: {what}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; then one more each")
    parser.add_argument("--stop", type=int, default=1 << 60, help="the seed to stop before")
    parser.add_argument("--shrink", type=float, default=60, help="seconds a failure is shrunk for")
    parser.add_argument("--folder", type=Path, default=CASES, help="where failures are written")
    return parser


def _progress(tally: Tally, failures: Counter[tuple[str, str]], cases: int, began: float) -> str:
    kinds = Counter[str]()
    for (kind, _), count in failures.items():
        kinds[kind] += count
    runs, seconds = tally.events["run"], time.monotonic() - began
    refused = tally.events["refused BudgetError"]
    return (
        f"{seconds:6.0f} s  {cases:,} graphs  {runs:,} runs ({runs / max(seconds, 1e-9):.0f}/s)  "
        f"{kinds['wrong']} wrong  {kinds['raised']} raised  {kinds['refused']} refused  "
        f"({refused:,} runs did not fit their budget)"
    )


def _show(case: Json, failure: Failure, arguments: argparse.Namespace) -> None:
    """A failure, as small as it gets: its test, its data, and what it says."""
    print(f"\nseed {case['seed']}: {failure.kind}: {failure.what}; shrinking", flush=True)
    small, found = shrunk(case, failure, arguments.shrink)
    words = "".join(c if c.isalnum() else "_" for c in f"{found.kind} {found.what}".lower())
    path = arguments.folder / f"{words}_{case['seed']}.json"
    save(small, path)
    print(f"{found.message}\n{python_test(small)}\n{os.path.relpath(path)}\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
