"""What of PyTorch can be imported, and whether it stays right after edits: its ops, one by one.

    python -m benchmarks.zoo [--only NAME …]      some hundred modules of one op each (`zoo_ops`)

A module is *native* if every op of it became ops with region rules, *opaque* if PyTorch computes a
part of it whole whenever anything changes there, *refused*, or *wrong*.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.measure import Command
from benchmarks.zoo_ops import OPS
from benchmarks.zoo_trial import Outcome, outcome
from tgbench.commands.progress import note, say, table

QUICK = ("Conv2d", "cholesky")
KINDS = ("native", "opaque", "refused", "wrong")


def ops(only: Sequence[str]) -> dict[str, Any]:
    """Every module of one op, or those whose name or family holds one of these words."""
    chosen = [
        case
        for case in OPS.values()
        if not only or any(word in f"{case.family}: {case.name}" for word in only)
    ]
    found = []
    for i, case in enumerate(chosen):
        if i % 20 == 0:
            note(f"{i} of {len(chosen)}: {case.name}")
        found.append(outcome(case))
    say(table(["family", *KINDS], [_row(*item) for item in _families(found).items()]))
    for kind in KINDS[1:]:
        _tell(kind, found)
    return {"totals": _count(found), "ops": {one.name: one.to_json() for one in found}}


def _families(found: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    families: dict[str, list[Outcome]] = {}
    for one in found:
        families.setdefault(one.family, []).append(one)
    return families | {"all": [one for rows in families.values() for one in rows]}


def _row(family: str, found: Sequence[Outcome]) -> list[str]:
    return [family, *(str(count) for count in _count(found).values())]


def _count(found: Iterable[Outcome]) -> dict[str, int]:
    counts = Counter(one.how for one in found)
    return {kind: counts[kind] for kind in KINDS}


def _tell(kind: str, found: Iterable[Outcome]) -> None:
    chosen = [one for one in found if one.how == kind]
    say(f"\n{kind}: {len(chosen)}" * bool(chosen))
    for one in chosen:
        say(f"  {one.name}: {' '.join(one.whole)} {one.reason}".rstrip())


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("zoo", __doc__, "zoo-ops")
    command.add_argument("--only", nargs="+", default=(), help="names or families")
    options, record = command.begin(argv)
    logging.getLogger("torch").setLevel(logging.ERROR)
    found = ops(QUICK if options.quick else options.only)
    is_part = options.only and options.output == command.results  # the file is of all of them
    record.write(found, None if is_part else options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
