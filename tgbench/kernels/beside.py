"""Machine code that another process compiles beside, once on a machine.

Loops for few rows and panels of weights are compiled where they are first needed: half a minute for
the first model on a machine, which is a hundred times what its first answer takes with what
libraries have ready. So the first session that finds none of this code starts a process that
compiles all of it, and `candidates` leaves these kernels out until that is done.

    a mark is there ───────────────────────────────────────→ THERE
    none ──→ a process compiles beside ──→ AWAITED ──→ it ended → THERE   whoever planned plans anew
    nobody may wait, no folder, no process ────────────────→ THERE        compiled when first bound

Numba keeps machine code by the sources' files, for a processor and a version of its own; the mark
lies beside that code, and its name is a digest of the same. The process goes on when the one that
started it ends, at a lower priority: what short scripts begin would never be done else.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from tgbench.base.switches import compiling

if sys.platform != "win32":
    import fcntl

try:
    import numba
    from llvmlite import binding

    from tgbench.kernels.numba import loops
except ImportError:
    loops = None  # type: ignore[assignment]

COMMAND = (sys.executable, "-P", "-m", "tgbench", "compile")  # -P: nothing of the current folder


class _Code:
    """What this process knows of it.

    Fields:
        is_there: whether kernels that compile may be taken.
        is_urgent: whether somebody could not wait.
        process: that compiles; None where none was started, or another one's did.
    """

    def __init__(self) -> None:
        self.is_there, self.is_urgent = True, False
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()


_CODE = _Code()


def is_there() -> bool:
    """Whether kernels may be taken that compile when they are first bound."""
    return _CODE.is_there


def awaits() -> bool:
    """Whether kernels are compiled beside; begun, where nobody did before."""
    with _CODE.lock:
        may_begin = compiling() == "beside" and not _CODE.is_urgent and _CODE.process is None
        file = mark() if may_begin else None
        if file is not None:
            _begin(file)
        return not _CODE.is_there


def has_come() -> bool:
    """Whether they are there by now; what could not be compiled beside is when it is bound."""
    with _CODE.lock:
        process, file = _CODE.process, mark()
        if process is not None:
            _CODE.is_there |= process.poll() is not None
        elif not _CODE.is_there and file is not None:
            _begin(file)
        return _CODE.is_there


def insist() -> None:
    """Compile what is not there when it is first bound: bits have to agree from the first run on,
    and other kernels have others.
    """
    with _CODE.lock:
        _CODE.is_there = _CODE.is_urgent = True


def agree(is_there: bool) -> None:
    """Take the kernels that another process takes, for which this one works."""
    with _CODE.lock:
        _CODE.is_there = is_there


def _begin(file: Path) -> None:
    """Have it compiled, unless it is by now, or another process's does."""
    _CODE.is_there = file.exists()
    if _CODE.is_there or _is_held(file):
        return
    try:
        _CODE.process = subprocess.Popen(
            COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:  # no process can be started
        _CODE.is_there = True


@cache
def mark() -> Path | None:
    """The file that says that everything is compiled; None where nothing is kept, or needed."""
    folder = None if loops is None else loops.linear.stats.cache_path
    if folder is None:
        return None
    files = sorted(Path(loops.__file__).parent.glob("*.py"))
    stats = [(file.name, file.stat()) for file in files]
    found = (
        sys.version_info[:2], numba.__version__, binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats],
    )  # fmt: skip
    digest = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
    return Path(folder) / f"compiled-{digest}"


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One process at a time compiles; another one waits, and finds it done."""
    with _opened(file) as held:
        if sys.platform != "win32":
            with suppress(OSError):  # a file system without locks: both compile
                fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _is_held(file: Path) -> bool:
    """Whether some process is at it."""
    if sys.platform == "win32":
        return False
    try:
        with _opened(file) as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _opened(file: Path) -> IO[str]:
    """What is locked: it lies beside the mark."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return (file.parent / "compiling").open("a")


def be_modest() -> None:
    """Leave the processor to others, where the system knows how."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(10)
