"""The same records on a real PostgreSQL server, started for the test; skipped without one."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from costs.test_records import MACHINE, record, tiling

from tgbench.base.errors import RecordsError
from tgbench.costs.records import Records

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'tgbench[cluster]'")


def _program(name: str) -> str | None:
    """A program of the server; Debian keeps them out of the search path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


def _user() -> str | None:
    """Whom to run the server as: it refuses root."""
    if os.geteuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a database; the server listens on a socket in its own folder, and nowhere else."""
    initdb, postgres, ready = map(_program, ("initdb", "postgres", "pg_isready"))
    if initdb is None or postgres is None or ready is None:
        pytest.skip("needs a PostgreSQL server (Debian: apt-get install postgresql)")
    folder, user = Path(tempfile.mkdtemp(prefix="tgbench-pg-")), _user()
    if user is not None:
        shutil.chown(folder, user)
    data = str(folder / "data")
    who = {"user": user, "cwd": folder, "stdin": subprocess.DEVNULL}
    made = subprocess.run(
        [initdb, "-D", data, "-U", "tester", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"],
        capture_output=True,
        text=True,
        **who,
    )
    if made.returncode:
        shutil.rmtree(folder)
        pytest.skip(f"initdb does not work here: {made.stderr.strip()[-200:]}")
    options = ["-c", "listen_addresses=", "-c", "fsync=off", "-k", str(folder)]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([postgres, "-D", data, *options], stdout=log, stderr=log, **who)
    try:
        for _ in range(100):
            if not subprocess.run([ready, "-q", "-h", str(folder), "-t", "1"]).returncode:
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"postgresql://tester@/postgres?host={folder}"
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _write(job: tuple[str, int]) -> int:
    torch.set_num_threads(1)
    records = Records(job[0])
    for i in range(5):
        records.add([record(f"k{job[1]}", f"s{i}")], MACHINE)
    return len(records.all(kernel=f"k{job[1]}"))


def test_many_processes_share_one_server(server: str, tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_write, [(server, i) for i in range(4)]) == [5] * 4
    records = Records(server)
    assert len(records) == 20
    assert records.machines() == {MACHINE.fingerprint: MACHINE}
    assert records.find(record("k1", "s2").key) == record("k1", "s2")
    records.add([record("k1", "s2")], MACHINE)
    assert len(records) == 20
    mine = Records(tmp_path / "mine.db")
    assert mine.include(records) == 20
    assert mine.all() == records.all()
    mine.add([record("new")])
    assert records.include(mine) == 1
    assert "21 sample sets" in str(records)
    records.add_tilings([tiling()])
    records.add_tilings([tiling(), tiling("other")])
    mine.include(records)
    assert mine.tilings() == records.tilings() == (tiling("other"), tiling())


def test_what_the_server_says_is_passed_on(server: str) -> None:
    with pytest.raises(RecordsError, match=r'"nobody_here" does not exist; check the URL'):
        Records(server.replace("tester", "nobody_here"))
    records = Records(server.replace("tester@", "tester:secret@"))
    assert "secret" not in records.name
