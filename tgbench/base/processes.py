"""Other processes of ours: a Python that imports this copy of the package.

A folder that somebody stands in may have files named as modules are; what is imported here may lie
where no other process looks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parents[2]  # where the package lies


def python(*arguments: str) -> list[str]:
    """The command of such a process; it imports nothing of the current folder.

    >>> python("-m", "tgbench")[1:]
    ['-P', '-m', 'tgbench']
    """
    return [sys.executable, "-P", *arguments]


def environment() -> dict[str, str]:
    """Its variables."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
