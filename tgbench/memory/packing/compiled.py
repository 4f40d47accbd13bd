"""How the loops of the packers are compiled: by numba, each once, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def _jit(**options: Any) -> Callable[[Any], Any]:
    njit: Any = numba.njit

    def decorate(function: Any) -> Any:
        try:
            return njit(error_model="numpy", **options)(function)
        except RuntimeError:  # no folder to keep the compiled code in
            return njit(error_model="numpy")(function)

    return decorate


inner = _jit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
outer = _jit(cache=True, no_cfunc_wrapper=True)
