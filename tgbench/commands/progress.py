"""What commands print: lines, tables, and a bar while they work."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from tgbench.base.words import Progress, ruled


@contextmanager
def bar() -> Iterator[Progress]:
    """Somebody to tell of progress; drawn on terminals only."""
    with tqdm(file=sys.stderr, disable=None, leave=False) as drawn:

        def progress(done: int, of: int, what: str) -> None:
            drawn.total = of
            drawn.set_postfix_str(what, refresh=False)
            drawn.update(done - drawn.n)

        yield progress


def say(text: str = "") -> None:
    print(text, flush=True)


def note(text: str) -> None:
    """What is going on; on standard error, so that results can be piped."""
    print(f"  … {text}", file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, numbers to the right.

    >>> print(table(["what", "ms"], [["a", "1.5"], ["long", "10"]]))
    what   ms
    ────  ───
    a     1.5
    long   10
    """
    return ruled(header, rows, range(1, len(header)))
