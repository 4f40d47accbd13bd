"""The mark that says that everything is compiled for this processor.

Numba keeps machine code of these sources, for a processor and a version of its own. The mark lies
beside that code, and its name is a digest of the same.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

try:
    import numba
    from llvmlite import binding

    from tgbench.kernels.numba import loops, sources
except ImportError:
    loops = None  # type: ignore[assignment]


@cache
def mark() -> Path | None:
    """A file, there or not; None where nothing is kept, or compiled at all."""
    folder = None if loops is None else loops.folder()
    if folder is None:
        return None
    changed = [file.stat().st_mtime_ns for file in sources.files()]  # what older numba goes by
    found = (
        sys.version_info[:2], numba.__version__, binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(), sources.digest(), changed,
    )  # fmt: skip
    return folder / f"compiled-{hashlib.sha256(repr(found).encode()).hexdigest()[:16]}"
