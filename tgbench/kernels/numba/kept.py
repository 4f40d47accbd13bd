"""Sources that machine code is kept by: a folder in the user's cache, bounded in bytes.

    rowwise/             64c209ff….py                          a loop
            __pycache__/ 64c209ff….rowwise-1.py311.nbi, ….nbc    what numba made of it

Numba finds machine code by the source's file, by when it was changed and what is in it. When a file
was last read is set here, and says when a loop was used last; a file that is gone is written again,
and numba compiles what is not there. So who clears away needs nobody's leave: another process loses
at most the time to compile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import WeightsError

MOST_BYTES = 64 << 20  # of a folder: a thousand loops
LEFT = 0.75  # of that, once something is cleared away: not each new loop looks at all files


@dataclass
class KeptLoop:
    """The files of a loop: its source, and machine code for each kind of arguments.

    Fields:
        used_ns: when a process took it up last.
    """

    files: list[Path] = field(default_factory=list)
    size_bytes: int = 0
    used_ns: int = 0

    def add(self, file: Path) -> None:
        with suppress(FileNotFoundError):
            found = file.stat()
            self.files.append(file)
            self.size_bytes += found.st_size
            is_source = file.suffix == ".py"
            self.used_ns = max(self.used_ns, found.st_atime_ns if is_source else found.st_mtime_ns)

    def remove(self) -> None:
        for file in self.files:
            with suppress(OSError):
                file.unlink()


def kept(folder: Path, name: str, source: str) -> Path:
    """The file of a source, marked as used; it need not be there, where no folder can be written.

    Of a folder that gets another source, what was not used for longest goes, until the rest is
    within its bound.
    """
    file = folder / f"{name}.py"
    with suppress(OSError, WeightsError):
        if file.exists():
            _mark(file)
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            temporary.write_text(source, encoding="utf-8")
        _clear(folder, name)
    return file


def _mark(file: Path) -> None:
    """Set when a file was read; when it was changed stays."""
    os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))


def _clear(folder: Path, new: str) -> None:
    """Remove what was not used for longest, if there is too much."""
    loops = loops_of(folder)
    size_bytes = sum(one.size_bytes for one in loops.values())
    if size_bytes <= MOST_BYTES:
        return
    for name, one in sorted(loops.items(), key=lambda item: item[1].used_ns):
        if size_bytes <= LEFT * MOST_BYTES:
            return
        if name != new:
            one.remove()
            size_bytes -= one.size_bytes


def loops_of(folder: Path) -> dict[str, KeptLoop]:
    """What a folder holds, by name."""
    found: dict[str, KeptLoop] = {}
    for file in _files(folder):
        found.setdefault(file.name.split(".")[0], KeptLoop()).add(file)
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Sources first, so that nobody finds one whose machine code is being removed."""
    yield from folder.glob("[!.]*.py")
    yield from folder.glob("__pycache__/[!.]*.nb*")
