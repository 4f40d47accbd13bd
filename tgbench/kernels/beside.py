"""Machine code that another process compiles beside, once on a machine.

Loops for few rows and panels of weights are compiled where they are first needed: half a minute for
the first model on a machine, which is a hundred times what its first answer takes with what
libraries have ready. So the first session that finds none of this code starts a process that
compiles all of it, and `candidates` leaves these kernels out until that is done.

    a mark is there ───────────────────────────────────────→ THERE
    none ──→ a process compiles beside ──→ AWAITED ──→ it ended → THERE   whoever planned plans anew
    nobody may wait, no folder, no process ────────────────→ THERE        compiled when first bound

The mark is a file beside the code (`numba.marking`). The process goes on when the one that
started it ends, at a lower priority: what short scripts begin would never be done else.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tgbench.base.locks import is_locked, locked
from tgbench.base.processes import environment, python
from tgbench.base.switches import compiling

COMMAND = python("-m", "tgbench", "compile")


class _Code:
    """What this process knows of it.

    Fields:
        is_there: whether kernels that compile may be taken.
        is_urgent: whether somebody could not wait.
        mark: the file that says that everything is compiled.
        process: that compiles; None where none was started, or another one's did.
    """

    def __init__(self) -> None:
        self.is_there, self.is_urgent = True, False
        self.mark: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()


_CODE = _Code()


def is_there() -> bool:
    """Whether kernels may be taken that compile when they are first bound."""
    return _CODE.is_there


def awaits(mark: Path | None) -> bool:
    """Whether kernels are compiled beside; begun, where nobody did before. No mark is of code that
    nobody keeps.
    """
    with _CODE.lock:
        may_begin = compiling() == "beside" and not _CODE.is_urgent and _CODE.process is None
        if may_begin and mark is not None:
            _CODE.mark = mark
            _begin(mark)
        return not _CODE.is_there


def has_come() -> bool:
    """Whether they are there by now; what could not be compiled beside is when it is bound."""
    with _CODE.lock:
        if _CODE.process is not None:
            _CODE.is_there |= _CODE.process.poll() is not None
        elif not _CODE.is_there and _CODE.mark is not None:
            _begin(_CODE.mark)
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


def _begin(mark: Path) -> None:
    """Have it compiled, unless it is by now, or another process's does."""
    _CODE.is_there = mark.exists()
    if _CODE.is_there or _is_held(mark):
        return
    try:
        _CODE.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),  # another copy of the package has another mark
        )
    except OSError:  # no process can be started
        _CODE.is_there = True


@contextmanager
def alone(mark: Path) -> Iterator[None]:
    """One process at a time compiles; another one waits, and finds it done."""
    with _opened(mark) as held, locked(held):
        yield


def _is_held(mark: Path) -> bool:
    """Whether some process is at it."""
    try:
        with _opened(mark) as held:
            return is_locked(held)
    except OSError:
        return False


def _opened(mark: Path) -> IO[str]:
    """What is locked: it lies beside the mark."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    return (mark.parent / "compiling").open("a")


def be_modest() -> None:
    """Leave the processor to others, where the system knows how."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(10)
