"""Files that are written as a whole or not at all: beside their place, then put there."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tgbench.base.errors import WeightsError
from tgbench.base.files import require_regular

STRAY_S = 3600.0  # after which a temporary file is nobody's


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new empty file beside `path` that takes its place, synced, when the block ends well.

    Raises `WeightsError` for what the file system refuses, and for what is no file: a device or a
    pipe that was replaced would be gone for everybody. What was there is then unchanged.
    """
    target = Path(path)
    if not _is_name(os.fspath(path)) or not target.name:
        raise WeightsError(f"{str(path)!r} names no file; give the path of a file")
    with _explained(path):
        if target.is_symlink():  # a link stays one: what it leads to is replaced
            target = target.resolve()
        mode = _mode(target)
    temporary = target.parent / f".tgbench-{secrets.token_hex(8)}.tmp"
    try:
        with _explained(path):
            _clear_strays(target.parent)
            temporary.open("xb").close()
            if mode is not None:  # who could not read the old one cannot read this one
                temporary.chmod(mode)
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
            _sync_directory(target.parent)
    finally:
        with suppress(OSError, ValueError):
            temporary.unlink()


def _is_name(path: str) -> bool:
    """Whether a file system can have a file of that name."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _mode(target: Path) -> int | None:
    """Who may do what with the file that is there; None if there is none."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    require_regular(found)
    return stat.S_IMODE(found)


def _clear_strays(folder: Path) -> None:
    """Remove what writers left that were killed: nobody has written into it for long."""
    for stray in folder.glob(".tgbench-*.tmp"):
        with suppress(OSError):
            if time.time() - stray.stat().st_mtime > STRAY_S:
                stray.unlink()


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        raise WeightsError(
            f"{path}: cannot be written ({error}); check the folder, its rights and free space"
        ) from error


def _sync_directory(directory: Path) -> None:
    if os.name == "posix":  # elsewhere a directory cannot be opened
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
