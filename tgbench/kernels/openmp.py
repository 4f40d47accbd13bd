"""The OpenMP of this process, if it is GNU's, as PyTorch's is on Linux."""

from __future__ import annotations

import threading
from ctypes import CDLL, CFUNCTYPE, c_void_p
from functools import cache
from pathlib import Path

import torch

RUNTIME = "libgomp"


@cache
def runtime() -> CDLL | None:
    """GNU's OpenMP; None where this process has another one, or several."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    files = {line.split(maxsplit=5)[-1] for line in lines if f"/{RUNTIME}" in line}
    return CDLL(files.pop()) if len(files) == 1 else None


def workers() -> frozenset[int]:
    """Threads of the runtime that compute with the calling one, by the system's numbers."""
    library, found = runtime(), set[int]()
    if library is not None:
        tell = CFUNCTYPE(None, c_void_p)(lambda _: found.add(threading.get_native_id()))
        library.GOMP_parallel(tell, None, torch.get_num_threads(), 0)
    return frozenset(found - {threading.get_native_id()})
