"""Programs that a session keeps: by (state, bucket class), bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tgbench.base.memo import bytes_of
from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING
from tgbench.runs.buckets import BucketClass
from tgbench.runs.work import Place

CALL_BYTES = 3_500.0  # of a call, about, before any was measured
SAMPLED = 16


class Sizes:
    """What keeping programs takes: some are measured, and others taken for such by their calls.

    The first, second, fourth … is measured, and every sixteenth: to look at all that one holds
    takes as long as a tenth of making it.
    """

    def __init__(self) -> None:
        self._asked, self._call_bytes = 0, CALL_BYTES

    def of(self, program: Program) -> int:
        calls = 1 + len(program)
        if program.binds is not None:  # read from a file, and bound by its first run
            return round(self._call_bytes * calls)
        self._asked += 1
        if self._asked % SAMPLED and self._asked & (self._asked - 1):
            return round(self._call_bytes * calls)
        found = bytes_of(program)
        self._call_bytes = found / calls
        return round(found)


class Shelf:
    """Programs of a class from a state, the youngest first; there is always one.

    Equal to itself alone, which takes no Python: an interrupt in the hash of a class, called by an
    ordered dictionary, is taken for a key that is not there.
    """

    def __init__(self, state: int, kind: BucketClass) -> None:
        self.state, self.kind = state, kind
        self.programs: list[Program] = []


NO_SHELVES: dict[int, Shelf] = {}


class Library:
    """Programs by (state, bucket class), bounded in bytes; the least used go first.

    Fields:
        changes: how often a program came or went.
        continuing: shelves of programs that count on something.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.changes = 0
        self.size_bytes = 0
        self.evicted = 0
        self._shelves: dict[BucketClass, dict[int, Shelf]] = {}
        self._used: OrderedDict[Shelf, None] = OrderedDict()  # or never found, after an interrupt
        self._latest: Shelf | None = None  # of those in use
        self.continuing: set[Shelf] = set()
        self._sizes = Sizes()

    def find(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> Program | None:
        """A program that is right at this origin, if one is there."""
        shelf = self.states(kind).get(state)
        if shelf is None:
            return None
        for program in shelf.programs:
            if program.domain.holds(origin):
                if shelf is not self._latest:
                    self._used.move_to_end(shelf)
                    self._latest = shelf
                return program
        return None

    def kinds(self, most: int) -> Iterable[BucketClass]:
        """The classes of the programs that were used last, that one first."""
        return dict.fromkeys(shelf.kind for shelf in islice(reversed(self._used), most))

    def origins(self, kind: BucketClass, first: Place, last: Place) -> Iterator[Place]:
        """Between two origins, where programs of a class may be right: the last, so that changes
        start together; and where programs were made that are not right there.
        """
        found = dict.fromkeys([last])
        for shelf in self.states(kind).values():
            for program in shelf.programs:
                at = program.made_at
                between = all(a <= b <= c for a, b, c in zip(first, at, last, strict=True))
                if between and not program.domain.holds(last):
                    found[at] = None
        return iter(found)

    def states(self, kind: BucketClass) -> dict[int, Shelf]:
        """From which states programs of a class start, the last one last."""
        return self._shelves.get(kind, NO_SHELVES)

    def add(self, state: int, kind: BucketClass, program: Program) -> None:
        self.changes += 1
        program.size_bytes = self._sizes.of(program)
        shelf = self.states(kind).get(state) or Shelf(state, kind)
        shelf.programs = [program, *shelf.programs]
        self._used[shelf] = None
        self._used.move_to_end(shelf)
        self._latest = shelf
        if state != NOTHING:
            self.continuing.add(shelf)
        self.size_bytes += program.size_bytes
        self._shelves.setdefault(kind, {})[state] = shelf
        while self.size_bytes > self.limit_bytes and len(self) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        shelf = next(iter(self._used))
        *rest, oldest = shelf.programs
        self.size_bytes -= oldest.size_bytes
        self.evicted += 1
        if rest:
            shelf.programs = rest
        else:
            self._drop(shelf)

    def _drop(self, shelf: Shelf) -> None:
        """It is found no more, and then it goes: what is found has to be there."""
        there = self._shelves.get(shelf.kind, {})
        if there.get(shelf.state) is shelf:
            del there[shelf.state]
        if not there:
            self._shelves.pop(shelf.kind, None)
        self.continuing.discard(shelf)
        if self._latest is shelf:
            self._latest = None
        del self._used[shelf]

    def clear(self) -> None:
        self.changes += 1
        self._shelves.clear()
        self._used.clear()
        self.continuing.clear()
        self._latest, self.size_bytes = None, 0

    def __len__(self) -> int:
        return sum(len(shelf.programs) for shelf in self._used)

    def __iter__(self) -> Any:
        return (
            (shelf.state, shelf.kind, program) for shelf in self._used for program in shelf.programs
        )
