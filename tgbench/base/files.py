"""Files that somebody else may have put there: regular ones, and no more of them than is wanted.

A pipe waits for a writer that never comes, a device has no end, and a size that a file states
about itself may be any number. What is opened here is a regular file, or a link to one; it is asked
for its kind after it was opened, so that nobody can put another in its place in between.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from os import PathLike

# Opening a pipe for reading does not wait then; a regular file is read as ever.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_TERMINAL = getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


PART_BYTES = 1 << 24  # of one read


class IrregularFileError(OSError):
    """A path leads to a pipe, a device, a socket or a folder."""


def open_regular(path: str | PathLike[str]) -> io.FileIO:
    """A regular file, open for reading and unbuffered: what is not asked for is not read.

    Raises OSError, IrregularFileError among them, and ValueError for a path that cannot be one.

    >>> open_regular("/dev/null")
    Traceback (most recent call last):
    tgbench.base.files.IrregularFileError: not a regular file
    """
    if not isinstance(path, (str, PathLike)):
        raise ValueError(f"{path!r} is no path")  # as for text that cannot be one
    descriptor = os.open(path, _FLAGS | _NO_TERMINAL)
    try:
        require_regular(os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(mode: int) -> None:
    """Raises OSError unless a mode, as `stat` gives it, is that of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise IrregularFileError("not a regular file")


def is_there(path: str | PathLike[str]) -> bool:
    r"""Whether anything lies at a path; at one that cannot be, nothing does.

    >>> is_there("/dev/null"), is_there("a\0b"), is_there("x" * 5000)
    (True, False, False)
    """
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


def read_bytes(path: str | PathLike[str], most_bytes: int) -> bytes:
    """What a regular file holds; raises OSError, and ValueError for a longer one."""
    with open_regular(path) as file:
        parts, left = [], most_bytes + 1
        if os.fstat(file.fileno()).st_size > most_bytes:
            left = 0
        while left and (part := file.read(min(left, PART_BYTES))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise ValueError(f"it has more than {most_bytes} bytes")
    return b"".join(parts)
