"""The progress bar that the commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def bar() -> Iterator[Callable[[int, int, str], None]]:
    """Something to call with (done, of, what); drawn on terminals only."""
    with tqdm(file=sys.stderr, disable=None, leave=False) as drawn:

        def progress(done: int, of: int, what: str) -> None:
            drawn.total = of
            drawn.set_postfix_str(what, refresh=False)
            drawn.update(done - drawn.n)

        yield progress
