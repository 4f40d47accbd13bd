"""The record database: what goes in comes out, by many processes; damage is told and mended."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from tgbench.base.errors import RecordsError, UnreadableRecordsError
from tgbench.base.machine import Machine
from tgbench.costs.records import (
    MOST_SAMPLES,
    SCHEMA_VERSION,
    Record,
    Records,
    TilingRecord,
    merged,
    thinned,
)

MACHINE = Machine("cpu", "a chip", "AVX9", 2, 4, "Linux x86_64", (("torch", "9"),))


def record(kernel: str = "k", signature: str = "s", samples: tuple[int, ...] = (3, 1, 2)) -> Record:
    return Record(
        kernel, "aa", signature, MACHINE.fingerprint, samples, None, 1e-7, 64, 10.0, 20, 5.0, 1.5
    )


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records.db")


def test_what_goes_in_comes_out(records: Records) -> None:
    failed = replace(record("bad"), samples_ns=(), failure="ValueError: no")
    records.add([record(), failed], MACHINE)
    assert records.all() == (failed, record())
    assert records.find(record().key) == record()
    assert records.find(("k", "other source", "s", MACHINE.fingerprint)) is None
    assert records.all(fingerprint="another machine") == ()
    assert records.machines() == {MACHINE.fingerprint: MACHINE}
    assert Records(records.name).all(kernel="bad") == (failed,)


def test_a_set_is_added_once_and_sets_of_a_key_are_merged(records: Records) -> None:
    later = replace(record(), samples_ns=(9, 8), measured_at=2.0, workspace_bytes=99)
    records.add([record()])
    records.add([record(), later])
    assert len(records) == 2
    (found,) = records.all()
    assert found.samples_ns == (3, 1, 2, 9, 8)
    assert (found.workspace_bytes, found.measured_at) == (99, 2.0)


RECORDS = st.builds(
    Record,
    st.sampled_from("ab"),
    st.just("aa"),
    st.sampled_from("st"),
    st.just("f"),
    st.lists(st.integers(1, 1 << 40), max_size=3).map(tuple),
    st.none() | st.text(max_size=3),
    st.none() | st.floats(0, 1),
    st.integers(0, 9),
    measured_at=st.floats(0, 9),
)


@given(st.lists(RECORDS, max_size=8))
def test_merging_keeps_every_sample_and_the_worst_findings(sets: list[Record]) -> None:
    found = {r.key: r for r in merged(sets)}
    assert set(found) == {r.key for r in sets}
    for key, one in found.items():
        mine = [r for r in sets if r.key == key]
        assert sorted(one.samples_ns) == sorted(n for r in mine for n in r.samples_ns)
        errors = [r.max_relative_error for r in mine if r.max_relative_error is not None]
        assert one.max_relative_error == (max(errors) if errors else None)
        assert one.workspace_bytes == max(r.workspace_bytes for r in mine)
        assert one.measured_at == max(r.measured_at for r in mine)


def test_median_and_spread() -> None:
    assert record(samples=(5, 1, 2, 4, 3)).median_ns == 3
    assert record(samples=(5, 1, 2, 4, 3)).spread_ns == 2
    assert record(samples=(7,)).spread_ns == 0
    with pytest.raises(RecordsError, match="no samples: broken"):
        _ = replace(record(), samples_ns=(), failure="broken").median_ns


@given(st.integers(0, 5 * MOST_SAMPLES))
def test_thinning_keeps_few_from_everywhere(count: int) -> None:
    kept = thinned(range(count))
    assert len(kept) <= MOST_SAMPLES
    assert set(kept) <= set(range(count))
    assert len(kept) == count or (kept[0] == 0 and count - kept[-1] <= count / 2)


def _write(job: tuple[str, int]) -> int:
    torch.set_num_threads(1)
    records = Records(job[0])
    for i in range(10):
        records.add([record(f"k{job[1]}", f"s{i}")], MACHINE)
    return len(records.all(kernel=f"k{job[1]}"))


def _create(paths: Sequence[str]) -> int:
    return sum(len(Records(path)) for path in paths)


def test_many_processes_create_the_same_databases(tmp_path: Path) -> None:
    """SQLite refuses, without waiting, two that would have a new file written ahead of."""
    paths = [str(tmp_path / f"{i}.db") for i in range(60)]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_create, [paths] * 4) == [0] * 4


def test_who_never_lets_go_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordsError, match="database is locked; another process"):
            Records(path, timeout_s=0.1)


def test_many_processes_create_and_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_write, [(str(path), i) for i in range(4)]) == [10] * 4
    assert len(Records(path)) == 40
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_interrupted_writer_leaves_the_database_whole(records: Records) -> None:
    """A second statement fails: nothing of the first one stays."""
    with pytest.raises(RecordsError, match="modelled_ns"):
        records.add([record(), replace(record("b"), modelled_ns=float("nan"))])
    assert records.all() == ()


def test_databases_are_put_together(records: Records, tmp_path: Path) -> None:
    other = Records(tmp_path / "other.db")
    other.add([record("a"), record("b")], MACHINE)
    records.add([record("b")])
    assert records.include(other) == 1
    assert records.include(other) == 0
    assert [r.kernel for r in records.all()] == ["a", "b"]
    assert records.machines() == other.machines()


def tiling(signature: str = "s", tile: tuple[int, ...] = (8, 6)) -> TilingRecord:
    return TilingRecord(
        "k", "aa", signature, MACHINE.fingerprint, tile, (40, 6), False, 104, 2, 1.5
    )


def test_tilings_go_in_and_come_out(records: Records, tmp_path: Path) -> None:
    single = replace(tiling("of a number"), tile=(), chunk=(), copied=True)
    records.add_tilings([tiling(), single], MACHINE)
    records.add_tilings([tiling(tile=(16, 6))])  # what is there stays
    assert records.tilings() == (single, tiling())
    assert records.tilings("another machine") == ()
    assert records.tilings(MACHINE.fingerprint) == records.tilings()
    assert records.machines() == {MACHINE.fingerprint: MACHINE}
    assert records.all() == ()
    assert "k in tiles of [8, 6] at s: 104 boxes" in str(tiling())
    other = Records(tmp_path / "other.db")
    other.include(records)
    assert other.tilings() == records.tilings()


def test_it_travels_to_other_processes(records: Records) -> None:
    records.add([record()])
    assert pickle.loads(pickle.dumps(records)).all() == records.all()


def test_it_prints(records: Records) -> None:
    records.add([record(), replace(record("b"), samples_ns=(), failure="no")], MACHINE)
    assert "2 signatures of 2 kernels, 1 failed" in str(records)
    assert "a chip (AVX9, 2 threads; torch 9)" in str(records)
    frame = records.to_frame()
    assert frame.loc[frame.kernel == "k", "median_us"].item() == 0.002
    assert frame.failure.isna().tolist() == [False, True]
    assert str(record()) == "k at s: 0.002 µs ± 0.0005"


# --- bad databases --------------------------------------------------------------------------------


def _change(statement: str) -> Callable[[Path], Any]:
    def run(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)

    return run


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"no database " * 500), "not a database; the file is dam"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "malformed; the file is damaged"),
        (_change("DROP TABLE tgbench_schema"), "holds tables of something else"),
        (_change("UPDATE tgbench_schema SET version = 1"), "has schema 1, .* reads 2; delete it"),
        (
            _change("UPDATE tgbench_schema SET version = 7"),
            "has schema 7, .* reads 2; update tgbench",
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(
    damage: Callable[[Path], Any], message: str, records: Records, tmp_path: Path
) -> None:
    records.add([record(f"k{i}") for i in range(100)], MACHINE)
    path = tmp_path / "records.db"
    _change("PRAGMA wal_checkpoint(TRUNCATE)")(path)
    damage(path)
    with pytest.raises(RecordsError, match=message) as error:
        Records(path).all()
    assert str(path) in str(error.value)


@pytest.mark.parametrize("size_bytes", [3, 64, 4096])
def test_whatever_is_overwritten_is_told_as_damage(
    records: Records, tmp_path: Path, size_bytes: int
) -> None:
    """Or does no harm; a page of letters is no version 120."""
    records.add([record(f"k{i}") for i in range(100)], MACHINE)
    path = tmp_path / "records.db"
    _change("PRAGMA wal_checkpoint(TRUNCATE)")(path)
    whole = path.read_bytes()
    for at in (*range(0, len(whole), 1531), *range(4096 * 3 - 64, 4096 * 3, 7)):
        path.write_bytes(whole[:at] + b"x" * size_bytes + whole[at + size_bytes :])
        with suppress(UnreadableRecordsError):
            Records(path).all()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("samples_ns", "[1, NaN]"),
        ("samples_ns", "[1, Infinity]"),
        ("samples_ns", "[]"),
        ("samples_ns", "[-3]"),
        ("samples_ns", "[0]"),
        ("samples_ns", "[1.5]"),
        ("samples_ns", '["a"]'),
        ("samples_ns", "__import__('os')"),
        ("samples_ns", "{}"),
        ("samples_ns", b"\x80\x04."),
        ("modelled_ns", "inf"),
        ("modelled_ns", -1.0),
        ("modelled_ns", 1e-320),
        ("modelled_ns", 1e300),
        ("flops", 1e-320),
        ("max_relative_error", "a"),
        ("flops", 9e999),
        ("workspace_bytes", -4),
        ("kernel", b"\x00"),
    ],
)
def test_a_wrong_value_is_refused_with_its_row(
    column: str, value: Any, records: Records, tmp_path: Path
) -> None:
    records.add([record()])
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.execute(f"UPDATE tgbench_records SET {column} = ?", (value,))
    with pytest.raises(RecordsError, match=f"{column} of record .*DELETE FROM tgbench_records"):
        records.all()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"samples_ns": ()}, "k has neither a sample nor a failure; measure it again"),
        ({"samples_ns": (0,)}, "a sample of k is no positive number"),
        ({"modelled_ns": 1e-320}, "modelled_ns of k is 1e-320; measure it again"),
    ],
)
def test_what_would_be_refused_is_not_written(
    what: dict[str, Any], told: str, records: Records
) -> None:
    with pytest.raises(RecordsError, match=told):
        records.add([replace(record(), **what)])
    assert not records.all()


@pytest.mark.parametrize("name", ["x' OR '1'='1", "'; DROP TABLE tgbench_records; --", "x" * 10**6])
def test_no_statement_is_made_of_what_a_file_holds(
    name: str, records: Records, tmp_path: Path
) -> None:
    """The mend that is told may be pasted into a shell."""
    records.add([record()])
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.execute("UPDATE tgbench_records SET id = ?, samples_ns = '[0]'", (name,))
    with pytest.raises(RecordsError, match="delete the file and profile again") as caught:
        records.all()
    assert "DELETE" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tile", "[0, 6]"),
        ("tile", "[8.0, 6]"),
        ("tile", '["8", 6]'),
        ("tile", "nothing"),
        ("chunk", "[40]"),
        ("chunk", "{}"),
        ("copied", 2),
        ("copied", "yes"),
        ("passed", 0),
        ("refused", -1),
        ("found_at", "inf"),
        ("signature", b"\x00"),
    ],
)
def test_a_wrong_tiling_is_refused_with_its_row(
    column: str, value: Any, records: Records, tmp_path: Path
) -> None:
    records.add_tilings([tiling()])
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.execute(f"UPDATE tgbench_grains SET {column} = ?", (value,))
    with pytest.raises(RecordsError, match=f"{column} of record .*DELETE FROM tgbench_grains"):
        records.tilings()


def test_a_wrong_machine_is_refused(records: Records) -> None:
    records.add([record()], MACHINE)
    for text in ("no json", "[1]", json.dumps({"versions": 3}), json.dumps({"versions": []})):
        _change(f"UPDATE tgbench_machines SET machine = '{text}'")(Path(records.name))
        with pytest.raises(RecordsError, match="no description of a machine"):
            records.machines()


def test_a_locked_database_says_so(records: Records) -> None:
    quick = Records(records.name, timeout_s=0.05)
    blocker = sqlite3.connect(records.name, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordsError, match="locked; another process has been writing"):
        quick.add([record()])
    assert quick.all() == ()  # reading goes on
    blocker.execute("ROLLBACK")
    quick.add([record()])
    blocker.close()


def test_the_notes_say_the_version_of_the_tables() -> None:
    told = (ROOT / "docs/records.md").read_text(encoding="utf-8")
    assert f"holds the version of the tables, {SCHEMA_VERSION}." in told


def test_a_file_needs_no_sqlalchemy(tmp_path: Path) -> None:
    """A third of a second, in every session."""
    asked = "from tgbench.costs.records import Records; import sys; Records(sys.argv[1]).all()"
    done = subprocess.run(
        [sys.executable, "-c", f"{asked}; assert 'sqlalchemy' not in sys.modules",
         str(tmp_path / "records.db")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert not done.returncode, done.stderr


def test_other_places(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="check that the folder exists"):
        Records(tmp_path / "missing" / "records.db")
    with pytest.raises(RecordsError, match="'mysql'"):
        Records("mysql://host/database")
    (tmp_path / "empty.db").write_bytes(b"")
    assert len(Records(tmp_path / "empty.db")) == 0
    assert len(Records(f"sqlite:///{tmp_path}/empty.db")) == 0


# --- the machine ----------------------------------------------------------------------------------


def test_a_machine_is_told_apart() -> None:
    here = Machine.here()
    assert here == Machine.from_json(here.to_json())
    packages = {"numpy", "numba", "onednn-cpu-gomp"}
    assert {"python", "torch", *packages} == {name for name, _ in here.versions}
    assert replace(here, threads=here.threads + 1).fingerprint != here.fingerprint
    assert replace(here, processor="other").fingerprint != here.fingerprint
    assert Machine.here().fingerprint == here.fingerprint
