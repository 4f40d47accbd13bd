"""Look for bits that a past changes: `make fuzz-bits SECONDS=600 SEED=0`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from looking import Looked, add, look, parser

from bits.histories import TABLE, history, played


def main() -> int:
    """A history a seed; what differed, was refused or raised is told as it comes."""
    options = parser("fuzz-bits", __doc__, Path(), 0).parse_args()
    torch.set_num_threads(1)
    counts = Counter[str]()

    def one(seed: int) -> None:
        played_one = history(seed)
        outcome = played(played_one)
        counts.update({
            "of the table": int(seed < TABLE), "runs": outcome.runs,
            "differing": outcome.differing, "moved": outcome.moved,
            "not finite, refused": outcome.not_finite, "refused": int(bool(outcome.refused)),
            "raised": int(bool(outcome.raised)),
        })  # fmt: skip
        if outcome.fault or outcome.refused:
            print(f"\n{played_one.label}: {outcome.fault or outcome.refused}", flush=True)

    found = look(options, one, lambda found: _summary(counts, found))
    add(options.results, "bits", found, dict(counts) | {"histories": found.cases})
    return 1 if counts["differing"] or counts["raised"] else 0


def _summary(counts: Counter[str], found: Looked) -> str:
    return (
        f"{found.seconds:6.0f} s  {found.cases:,} histories  {counts['of the table']} of "
        f"{TABLE} of the table  {counts['runs']:,} runs  {counts['moved']:,} by a moved program  "
        f"{counts['differing']} differ  {counts['raised']} raised  {counts['refused']} refused"
    )


if __name__ == "__main__":
    raise SystemExit(main())
