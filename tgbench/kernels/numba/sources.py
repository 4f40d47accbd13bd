"""Machine code that numba keeps is of these sources, all of them.

Numba takes a function's kept code as long as the file it is written in is the same. What it calls
is compiled into it: a product that changed in one file would go on as it was in a team's loops in
another, and a row by itself would have other bits than among many. So code that was kept for other
sources is removed before any is taken.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent


def files() -> list[Path]:
    """The modules that are compiled."""
    return sorted(SOURCES.glob("*.py"))


@cache
def digest() -> str:
    """Of what is written in them."""
    made = hashlib.sha256()
    for file in files():
        made.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return made.hexdigest()[:16]


def remove_code_of_others(folder: Path) -> None:
    """Remove what numba keeps in a folder, unless it was kept for these sources.

    Another process that works meanwhile compiles again at most what it has not loaded.
    """
    here = folder / f"sources-{digest()}"
    with suppress(OSError):  # a folder that nobody may write to
        if here.exists():
            return
        for pattern in ("*.nb[ic]", "compiled-*", "sources-*"):
            for file in folder.glob(pattern):
                file.unlink(missing_ok=True)
        here.touch()
