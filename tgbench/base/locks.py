"""One process at a time: a file is locked for as long as something is done to it.

Locks are those of `flock`: they end with the process that holds them. Where a file system has none,
or the operating system, nothing is held off.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

if sys.platform != "win32":
    import fcntl


@contextmanager
def locked(file: IO[Any], *, shared: bool = False) -> Iterator[None]:
    """Wait until no other process holds a file's lock, and hold it; readers may share it."""
    if sys.platform == "win32":
        yield
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(file: IO[Any]) -> bool:
    """Whether another process holds a file's lock; where none does, this one holds it then."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
