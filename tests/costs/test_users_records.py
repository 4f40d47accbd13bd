"""The user's own database mends itself; whatever lies there, sessions start."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tgbench.base.errors import RecordsError, RecordsWarning, UnreadableRecordsError
from tgbench.base.locks import locked
from tgbench.base.machine import Machine
from tgbench.costs.records import Record, Records
from tgbench.costs.users_records import asked_users, default_records, users_records

MACHINE = Machine("cpu", "a chip", "AVX9", 2, 4, "Linux x86_64", (("torch", "9"),))
HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def record(kernel: str = "k", samples: tuple[int, ...] = (3, 1, 2)) -> Record:
    return Record(kernel, "aa", "s", MACHINE.fingerprint, samples, modelled_ns=5.0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a database with some records, in a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    users_records().add([record(f"k{i}") for i in range(100)], MACHINE)
    with sqlite3.connect(default_records()) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return default_records()


@pytest.fixture
def held(path: Path) -> Iterator[Path]:
    """The same while another process is writing."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield path
        other.communicate("")


def stored(records: Records) -> int:
    records.add([record("new")], MACHINE)
    return len(records.all(MACHINE.fingerprint))


def change(statement: str) -> Callable[[Path], Any]:
    def run(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)

    return run


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no database": lambda path: path.write_bytes(b"no database " * 500),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "foreign": change("DROP TABLE tgbench_schema"),
    "no table": change("DROP TABLE tgbench_records"),
    "renamed": change("ALTER TABLE tgbench_records RENAME COLUMN flops TO flips"),
    "older": change("UPDATE tgbench_schema SET version = 1"),
    "wrong row": change("UPDATE tgbench_records SET samples_ns = '[0]' WHERE kernel = 'k7'"),
    "no text": change("UPDATE tgbench_records SET kernel = CAST(x'ff' AS TEXT)"),
    "one letter": lambda path: path.write_bytes(letters(path.read_bytes())),
}


def letters(whole: bytes) -> bytes:
    """The page that says the version, overwritten."""
    return whole[: 4096 + 8] + b"x" * (2 * 4096 - 8) + whole[3 * 4096 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_read_is_put_aside_once(path: Path, damage: str) -> None:
    DAMAGES[damage](path)
    before = path.read_bytes()
    with pytest.warns(RecordsWarning, match=r"unreadable-\w+ from now on, and a new one begins"):
        assert asked_users(stored) == 1
    (aside,) = (p for p in path.parent.glob("*unreadable-*") if p.suffix[-3:] not in ("wal", "shm"))
    assert aside.read_bytes() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asked_users(stored) == 1
        users_records()


def test_a_named_database_is_never_touched(path: Path) -> None:
    DAMAGES["no database"](path)
    before = path.read_bytes()
    with pytest.raises(UnreadableRecordsError, match="delete it, or restore a copy"):
        Records(path)
    assert path.read_bytes() == before


def test_what_a_newer_release_wrote_stays(path: Path) -> None:
    change("UPDATE tgbench_schema SET version = 7")(path)
    with pytest.raises(RecordsError, match=r"has schema 7, .*update tgbench"):
        asked_users(stored)
    assert not list(path.parent.glob("*unreadable*"))


def test_a_database_that_is_written_to_is_waited_for_and_stays(held: Path) -> None:
    assert len(asked_users(lambda records: records.all(), timeout_s=0.1)) == 100
    with pytest.raises(RecordsError, match="locked"):
        asked_users(stored, timeout_s=0.1)
    assert not list(held.parent.glob("*unreadable*"))


def test_a_folder_that_cannot_be_written(path: Path) -> None:
    """Whoever may not write may read nothing either: SQLite keeps a file beside an open one."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    path.parent.chmod(0o500)
    try:
        with pytest.raises((OSError, RecordsError), match=r"check that the folder|ermission"):
            asked_users(stored)
    finally:
        path.parent.chmod(0o700)


def _stored(number: int) -> int:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return asked_users(lambda records: records.add([record(f"new{number}")], MACHINE)) or 1
        except RecordsError:  # it was put aside under its hands
            return 0


def test_many_processes_mend_it_at_once(path: Path) -> None:
    for _ in range(3):
        DAMAGES["no database"](path)
        with multiprocessing.get_context("fork").Pool(4) as pool:
            done = pool.map(_stored, range(8))
        assert any(done)
        assert all(r == replace(record(r.kernel), measured_at=r.measured_at)
                   for r in users_records().all())  # fmt: skip


def test_another_process_that_mends_it_is_waited_for(path: Path) -> None:
    DAMAGES["no database"](path)
    with ThreadPoolExecutor(1) as threads:
        with path.with_name("records.db.mending").open("a") as held, locked(held):
            asked = threads.submit(asked_users, stored)
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.3)
            path.unlink()
            Records(path).add([record("theirs")], MACHINE)  # as another process does
        assert asked.result(timeout=60) == 2
    assert not list(path.parent.glob("*unreadable*"))


def test_what_lies_beside_it_may_be_gone_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DAMAGES["no database"](path)
    Path(f"{path}-wal").write_bytes(b"left by one that was killed")
    rename = Path.rename

    def late(self: Path, target: str) -> Path:
        if self.name.endswith("-wal"):
            self.unlink()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.warns(RecordsWarning):
        assert asked_users(stored) == 1
