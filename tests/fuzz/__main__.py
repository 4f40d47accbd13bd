"""Look for cases that fail, for so many seconds: `make fuzz SECONDS=600 SEED=0`."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

import torch
from looking import Looked, add, look, parser

from fuzz.case import Json, save
from fuzz.coverage import coverage
from fuzz.history import random_case
from fuzz.printing import python_test
from fuzz.replay import Failure, Tally, replay
from fuzz.shrinking import shrunk

CASES = Path(__file__).parent / "cases"


def main() -> int:
    """Draw and replay; shrink and print what fails; tables at the end."""
    options = parser("fuzz", __doc__, CASES, 60).parse_args()
    torch.set_num_threads(1)
    tally, failures = Tally(), Counter[tuple[str, str]]()

    def one(seed: int) -> None:
        case = random_case(seed)
        failure = replay(case, tally)
        if failure is None:
            return
        failures[failure.kind, failure.what] += 1
        if failures[failure.kind, failure.what] == 1:
            _show(case, failure, options)
        else:
            print(f"\nseed {seed}: {failure.kind}: {failure.what}, once more", flush=True)

    found = look(options, one, lambda found: _progress(tally, failures, found))
    print(coverage(tally, found.cases))
    for (kind, what), count in failures.most_common():
        print(f"{count:6} {kind}: {what}")
    add(options.results, "runs", found, _counts(tally, failures) | {"graphs": found.cases})
    return 1 if failures else 0


def _counts(tally: Tally, failures: Counter[tuple[str, str]]) -> dict[str, int]:
    kinds = Counter[str]()
    for (kind, _), count in failures.items():
        kinds[kind] += count
    elements = {f"elements {how}": count for how, count in tally.elements.items()}
    return {
        "runs": tally.events["run"], "over budget": tally.events["refused BudgetError"],
        **{kind: kinds[kind] for kind in ("wrong", "raised", "refused")}, **elements,
    }  # fmt: skip


def _progress(tally: Tally, failures: Counter[tuple[str, str]], found: Looked) -> str:
    counts = _counts(tally, failures)
    runs = counts["runs"]
    return (
        f"{found.seconds:6.0f} s  {found.cases:,} graphs  {runs:,} runs "
        f"({runs / found.seconds:.0f}/s)  {counts['wrong']} wrong  {counts['raised']} raised  "
        f"{counts['refused']} refused  ({counts['over budget']:,} runs did not fit their budget)"
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
