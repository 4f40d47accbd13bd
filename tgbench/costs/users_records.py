"""The user's own record database, in the cache folder.

Nobody looks after it, so it mends itself: what cannot be read is put aside, under a name that the
warning says, and a new one begins. A database that the user named is never touched.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tgbench.base.errors import RecordsWarning, UnreadableRecordsError
from tgbench.base.locks import locked
from tgbench.base.machine import cache_folder
from tgbench.costs.records import TIMEOUT_S, Records

Answer = TypeVar("Answer")
BESIDE = ("-wal", "-shm")  # files that SQLite keeps beside a database


def default_records() -> Path:
    """Where the user's own database of measured times lies."""
    return cache_folder() / "records.db"


def users_records() -> Records:
    """The user's own database, all of which can be read; errors as in `asked_users`."""

    def readable(records: Records) -> Records:
        records.all()
        return records

    return asked_users(readable)


def asked_users(question: Callable[[Records], Answer], *, timeout_s: float = TIMEOUT_S) -> Answer:
    """What the user's own database answers; one that cannot be read is put aside first.

    Warns with RecordsWarning of what was put aside. Raises OSError or RecordsError for a database
    that cannot be opened, or is locked.
    """
    path = default_records()
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = _file(path)
    try:
        return question(Records(path, timeout_s=timeout_s))
    except UnreadableRecordsError as error:
        with path.with_name(f"{path.name}.mending").open("a") as one, locked(one):
            if seen is not None and _file(path) == seen:  # no other process was quicker
                _put_aside(path, error)
    return question(Records(path, timeout_s=timeout_s))


def _file(path: Path) -> int | None:
    """Which file lies at a path."""
    return path.stat().st_ino if path.exists() else None


def _put_aside(path: Path, error: UnreadableRecordsError) -> None:
    """Rename a database, what SQLite keeps beside it first: the next one must not find that."""
    aside = path.with_name(f"{path.name}.unreadable-{os.urandom(4).hex()}")
    for end in (*BESIDE, ""):
        with suppress(FileNotFoundError):  # SQLite removes what it kept when the last one closes
            Path(f"{path}{end}").rename(f"{aside}{end}")
    fault = str(error).partition(";")[0]
    warnings.warn(
        f"measured times of kernels cannot be read ({fault}); the database is {aside} from now "
        "on, and a new one begins: delete it if you do not need it",
        RecordsWarning,
        stacklevel=2,
    )
