"""Some faults on every run of the tests; each kind is among them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.__main__ import CASES
from faults.case import FAULTS, Json, begin, fault_of, harm_of, one
from faults.files import FILES, Harmed, check_all, sizes
from faults.shrinking import shrunk

SEEDS = (*range(9), 24)


def test_faults_do_no_harm(tmp_path: Path) -> None:
    begin(tmp_path)
    assert {fault_of(seed)["kind"] for seed in SEEDS} == set(FAULTS)
    for seed in SEEDS:
        one(fault_of(seed), tmp_path)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_might_do_harm_in_a_row_does_none(path: Path) -> None:
    assert harm_of([json.loads(line) for line in path.read_text().splitlines()]) is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_harm_is_noticed(file: object, tmp_path: Path) -> None:
    """A check that nothing fails proves nothing."""
    begin(tmp_path)
    before, path = sizes(tmp_path), tmp_path / file.name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(Harmed, match=path.stem):
        check_all(tmp_path, before)


def test_harm_is_shrunk_to_what_does_it() -> None:
    """A disk of less than 900 bytes behind a kill; the rest has no part in it."""

    def harms(faults: Sequence[Json]) -> str | None:
        kinds = [fault["kind"] for fault in faults]
        small = any(fault.get("limit_bytes", 900) < 900 for fault in faults)
        is_so = small and "killed" in kinds[: kinds.index("full disk")]
        return "plan.json: torn" if is_so else "graph.json: another harm"

    faults = [fault_of(seed) for seed in range(40)]
    faults.append({"kind": "full disk", "limit_bytes": 800})
    assert shrunk(faults, "plan.json: cut", 60, harms) == [
        {"kind": "killed", "after_ms": 0}, {"kind": "full disk", "limit_bytes": 0},
    ]  # fmt: skip


def test_harm_itself_is_told() -> None:
    def torn(folder: Path) -> str:
        path = folder / "plan.json"
        path.write_bytes(path.read_bytes()[:100])
        return "torn"

    FAULTS["torn"] = torn
    try:
        assert (harm_of([{"kind": "torn"}]) or "").startswith("plan.json: PlanError")
    finally:
        del FAULTS["torn"]
