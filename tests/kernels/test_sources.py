"""Machine code that was compiled of other sources is not taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from tgbench.kernels.numba import sources

OF_OTHERS = "tiles.wait-270.py311.nbi", "tiles.wait-270.py311.1.nbc", "compiled-0", "sources-0"


def _filled(folder: Path, *names: str) -> set[str]:
    for name in (*names, "loops.cpython-311.pyc", "compiling"):
        (folder / name).touch()
    return _names(folder)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_code_of_other_sources_is_removed(tmp_path: Path) -> None:
    """And nothing else that lies there."""
    _filled(tmp_path, *OF_OTHERS)
    sources.remove_code_of_others(tmp_path)
    mark = f"sources-{sources.digest()}"
    assert _names(tmp_path) == {"loops.cpython-311.pyc", "compiling", mark}


def test_code_of_these_sources_stays(tmp_path: Path) -> None:
    sources.remove_code_of_others(tmp_path)
    there = _filled(tmp_path, *OF_OTHERS)
    sources.remove_code_of_others(tmp_path)
    assert _names(tmp_path) == there


def test_a_folder_that_is_not_there_is_left_alone(tmp_path: Path) -> None:
    sources.remove_code_of_others(tmp_path / "none")
    assert not _names(tmp_path)


@pytest.mark.parametrize("change", ["a line", "a file"])
def test_each_source_counts(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that changed is another one than that of the code which it is compiled into."""
    for name in ("loops.py", "tiles.py"):
        (tmp_path / name).write_text("one = 1\n", encoding="utf-8")
    monkeypatch.setattr(sources, "SOURCES", tmp_path)
    before = sources.digest.__wrapped__()
    assert sources.digest.__wrapped__() == before
    changed = "loops.py" if change == "a line" else "other.py"
    (tmp_path / changed).write_text("one = 2\n", encoding="utf-8")
    assert sources.digest.__wrapped__() != before


def test_it_is_removed_before_any_is_taken(tmp_path: Path) -> None:
    """By the import that every loop needs."""
    where = "from tgbench.kernels.numba import loops; print(loops.folder())"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def asked() -> Path:
        command = [sys.executable, "-c", where]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return Path(done.stdout.strip())

    folder = asked()
    assert tmp_path in folder.parents
    (folder / f"sources-{sources.digest()}").unlink()
    _filled(folder, *OF_OTHERS)
    assert asked() == folder
    assert not set(OF_OTHERS) & _names(folder)
