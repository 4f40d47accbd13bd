"""Files that a command writes: what cannot be one is said before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tgbench.base.errors import InputError, TgbenchError


def require_writable(*targets: Path | None) -> None:
    """Raises InputError for what is no file, and for one in a folder that takes none.

    >>> require_writable(None, Path("/dev/null/plan.json"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tgbench.base.errors.InputError: /dev/null/plan.json cannot be written: /dev/null is no folder...
    """
    for target in targets:
        if target is None:
            continue
        folder = Path(os.path.realpath(target)).parent  # a link stays one
        if os.path.exists(target) and not os.path.isfile(target):
            fault = "it is no file"
        elif not os.path.isdir(folder):
            fault = f"{folder} is no folder"
        elif not os.access(folder, os.W_OK):
            fault = f"{folder} may not be written to"
        else:
            continue
        raise InputError(f"{target} cannot be written: {fault}; check the path")


def require_apart(
    error: type[TgbenchError], targets: Iterable[Path | None], *sources: Path | None
) -> None:
    """Raises an error for a target that is one of the files that are read, or another target, under
    whatever name; whether they are there yet or not. Of a folder every file is read.
    """
    read = [path for path in sources if path is not None]
    written: list[Path] = []
    for target in targets:
        if target is None:
            continue
        if any(_is_same(target, path) or _is_file_of(path, target) for path in read):
            raise error(f"{target} is the file that is read; give another name")
        if any(_is_same(target, path) for path in written):
            raise error(f"{target} is to be two files at once; give each a name of its own")
        written.append(target)


def _is_file_of(folder: Path, target: Path) -> bool:
    return os.path.isfile(target) and _is_same(Path(os.path.realpath(target)).parent, folder)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other)
