"""Code in another process, which has loaded the package and done nothing else with it."""

from __future__ import annotations

import contextlib
import io
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

from search_cases import loaded_once


def printed(code: str, *arguments: str) -> str:
    """What a program prints, as `python -c code …` would; raises EOFError where that raises."""
    loaded_once()
    context = get_context("forkserver")
    hears, told = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(code, arguments, told))
    process.start()
    told.close()
    found: str = hears.recv()
    process.join()
    return found


def _run(code: str, arguments: tuple[str, ...], told: Connection) -> None:
    sys.argv = ["-c", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {"__name__": "__main__"})
    told.send(output.getvalue())
