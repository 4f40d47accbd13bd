"""Some faults on every run of the tests; each kind is among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.__main__ import FAULTS, begin, fault_of, one
from faults.files import FILES, Harmed, check_all, sizes

SEEDS = (*range(9), 24)


def test_faults_do_no_harm(tmp_path: Path) -> None:
    begin(tmp_path)
    assert {fault_of(seed) for seed in SEEDS} == set(FAULTS)
    for seed in SEEDS:
        one(seed, tmp_path)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_harm_is_noticed(file: object, tmp_path: Path) -> None:
    """A check that nothing fails proves nothing."""
    begin(tmp_path)
    before, path = sizes(tmp_path), tmp_path / file.name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(Harmed, match=path.stem):
        check_all(tmp_path, before)
