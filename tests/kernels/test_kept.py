"""The folder of written loops: bounded, the least used go, and several processes share it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

pytest.importorskip("numba")

from tgbench.kernels.numba import kept as store
from tgbench.kernels.numba import written
from tgbench.kernels.numba.chain import loop
from tgbench.kernels.passes import row_passes

KINDS = ("float32", "int", "int", "float32", "int", "int", "float32", "int", "int", "int")


def names_in(folder: Path) -> set[str]:
    return set(store.loops_of(folder))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def fill(folder: Path, name: str, used_s: int, size: int = 100) -> None:
    """A loop with machine code of some bytes, used some time ago or in time to come."""
    file = store.kept(folder, name, "x")
    code = folder / "__pycache__" / f"{name}.rowwise-1.py311.nbi"
    code.parent.mkdir(exist_ok=True)
    code.write_bytes(b"0" * (size - 1))
    for one in (file, code):
        os.utime(one, (used_s, used_s))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 1_000)


def test_the_least_used_go_with_their_machine_code(small: None, tmp_path: Path) -> None:
    for i in range(10):
        fill(tmp_path, f"loop{i}", used_s=1_000 + i)
    store.kept(tmp_path, "loop0", "x")  # that was the oldest
    store.kept(tmp_path, "new", "y")
    assert names_in(tmp_path) == {
        "new",
        "loop0",
        "loop9",
        "loop8",
        "loop7",
        "loop6",
        "loop5",
        "loop4",
    }
    assert size_of(tmp_path) <= store.LEFT * store.MOST_BYTES
    left = {file.name.split(".")[0] for file in (tmp_path / "__pycache__").iterdir()}
    assert left == names_in(tmp_path) - {"new"}


def test_nothing_goes_while_there_is_room(small: None, tmp_path: Path) -> None:
    for i in range(9):
        fill(tmp_path, f"loop{i}", used_s=1_000 + i)
    store.kept(tmp_path, "new", "y")
    assert len(names_in(tmp_path)) == 10


def test_machine_code_without_a_source_goes_by_its_age(small: None, tmp_path: Path) -> None:
    for i in range(9):
        fill(tmp_path, f"loop{i}", used_s=1_000 + i)
    (tmp_path / "loop3.py").unlink()
    (tmp_path / "loop8.py").unlink()
    store.kept(tmp_path, "new", "y" * 200)
    assert names_in(tmp_path) == {"new", "loop4", "loop5", "loop6", "loop7", "loop8"}


def test_a_use_leaves_when_a_file_was_changed(tmp_path: Path) -> None:
    file = store.kept(tmp_path, "loop", "x")
    os.utime(file, (1_000, 2_000))
    assert store.kept(tmp_path, "loop", "x") == file
    found = file.stat()
    assert found.st_mtime == 2_000
    assert found.st_atime > 1e9


def test_a_larger_loop_than_the_bound_is_kept_alone(small: None, tmp_path: Path) -> None:
    fill(tmp_path, "old", used_s=1_000)
    store.kept(tmp_path, "new", "y" * 5_000)
    assert names_in(tmp_path) == {"new"}


@pytest.mark.parametrize("blocked", ["a file", "nothing may be written"])
def test_without_a_folder_there_is_nothing_kept(
    blocked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rowwise"
    if blocked == "a file":
        folder.write_text("")
    else:

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError

        monkeypatch.setattr(Path, "mkdir", refuse)
    assert not store.kept(folder, "loop", "x").exists()


# --- loops ----------------------------------------------------------------------------------------


def doubled(factor: float) -> Any:
    """Numba's function for x · factor, made anew."""
    rows = row_passes((("number", factor), ("mul", 0, 1)), (True,))
    assert rows is not None
    return written.function.__wrapped__(rows)


def computes(function: Any, factor: float) -> bool:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    spare = np.zeros(8, np.float32)
    function(x, 0, 0, y, 0, 0, spare, 1, 1, 8)
    return bool((y == x * np.float32(factor)).all())


def test_machine_code_is_found_again_after_a_use() -> None:
    first, second = doubled(1.5), doubled(1.5)
    loop(first, KINDS)
    loop(second, KINDS)
    assert sum(first.stats.cache_misses.values()) == 1
    assert sum(second.stats.cache_hits.values()) == 1
    assert computes(second, 1.5)


def test_a_source_that_is_cleared_away_meanwhile_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*given: Any, **options: Any) -> Any:
        raise FileNotFoundError("the source")

    plain, calls = written.loops.plain, []

    def cleared(function: Any) -> Any:
        calls.append(function.__code__.co_filename)
        return plain(function) if calls[-1] == "<rowwise>" else gone()

    monkeypatch.setattr(written.loops, "plain", cleared)
    assert computes(doubled(2.5), 2.5)
    assert calls[-1] == "<rowwise>"


MANY = """
import sys
from kernels.test_kept import computes, doubled
from tgbench.kernels.numba import kept
kept.MOST_BYTES = 60_000
for turn in range(2):
    for i in range(3):
        factor = 3.0 + i
        assert computes(doubled(factor), factor), factor
"""


def test_processes_that_clear_away_beside_each_other_compute_what_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one compiles while the other clears away comes on top, until the next source."""
    environment = {
        **os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, "-c", MANY], cwd=ROOT, env=environment, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()[-2000:]
    folder = tmp_path / "tgbench" / "rowwise"
    monkeypatch.setattr(store, "MOST_BYTES", 60_000)
    store.kept(folder, "next", "")
    assert "next" in names_in(folder)
    assert len(names_in(folder)) < 4
    assert size_of(folder) <= 60_000
