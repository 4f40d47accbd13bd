"""Work that may pause: a generator that yields wherever it may, and returns what it was for.

Deciding and lowering a run takes as long as some runs do. What wants to go on with other things in
between takes it as work that pauses; whoever does not runs it at once. Functions named by a gerund
(`stepping`, `lowering`, `binding`) pause, those that are not (`step`, `lower`, `bind`) do not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeAlias, TypeVar

from tgbench.base.coords import Footing

R = TypeVar("R")
Pausing: TypeAlias = Generator[None, None, R]


def at_once(work: Pausing[R]) -> R:
    """The result, without a pause."""
    with Footing.here():  # if something stops it in this very line, too
        try:
            while True:
                next(work)
        except StopIteration as done:
            result: R = done.value
            return result


class Paused(Generic[R]):
    """Work that is begun, and stands where it stood when it paused.

    Fields:
        result: there when it `is_done`.
    """

    result: R

    def __init__(self, work: Pausing[R]) -> None:
        self._work, self._footing = work, Footing()
        self.is_done = False

    def go_on(self, enough: Callable[[], bool]) -> bool:
        """Go on until it is done, or it was enough at a pause; whether it is done.

        Whatever stops it elsewhere ends it: it cannot go on.
        """
        with self._footing:
            try:
                while True:
                    next(self._work)
                    if enough():
                        return False
            except StopIteration as done:
                self.is_done, self.result = True, done.value
                return True
