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

NO_STATES: dict[int, None] = {}
NO_PROGRAMS: list[Program] = []
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


class Library:
    """Programs by (state, bucket class), bounded in bytes; the least used go first.

    Fields:
        changes: how often a program came or went.
        continuing: how many shelves are of programs that count on something.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.changes = 0
        self.size_bytes = 0
        self.evicted = 0
        self._shelves: OrderedDict[tuple[int, BucketClass], list[Program]] = OrderedDict()
        self._states: dict[BucketClass, dict[int, None]] = {}  # with a shelf
        self._latest: Program | None = None  # of the last shelf
        self.continuing = 0
        self._sizes = Sizes()

    def find(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> Program | None:
        """A program that is right at this origin, if one is there."""
        key = state, kind
        for program in self._shelves.get(key, NO_PROGRAMS):
            if program.domain.holds(origin):
                if program is not self._latest:
                    self._shelves.move_to_end(key)
                    self._latest = program
                return program
        return None

    def kinds(self, most: int) -> Iterable[BucketClass]:
        """The classes of the programs that were used last, that one first."""
        return dict.fromkeys(kind for _, kind in islice(reversed(self._shelves), most))

    def origins(self, kind: BucketClass, first: Place, last: Place) -> Iterator[Place]:
        """Between two origins, where programs of a class may be right: the last, so that changes
        start together; and where programs were made that are not right there.
        """
        found = dict.fromkeys([last])
        for state in self.states(kind):
            for program in self._shelves.get((state, kind), NO_PROGRAMS):  # none: stopped there
                at = program.made_at
                between = all(a <= b <= c for a, b, c in zip(first, at, last, strict=True))
                if between and not program.domain.holds(last):
                    found[at] = None
        return iter(found)

    def states(self, kind: BucketClass) -> dict[int, None]:
        """From which states programs of a class start, the last one last."""
        return self._states.get(kind, NO_STATES)

    def add(self, state: int, kind: BucketClass, program: Program) -> None:
        key = state, kind
        self.changes += 1
        self._states.setdefault(kind, {})[state] = None
        self.continuing += state != NOTHING and key not in self._shelves
        self._shelves[key] = [program, *self._shelves.get(key, ())]  # no shelf is ever empty
        self._shelves.move_to_end(key)
        self._latest = program
        program.size_bytes = self._sizes.of(program)
        self.size_bytes += program.size_bytes
        while self.size_bytes > self.limit_bytes and len(self) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, (*rest, oldest) = next(iter(self._shelves.items()))
        self.size_bytes -= oldest.size_bytes
        self.evicted += 1
        self._latest = None
        if rest:
            self._shelves[key] = rest
        else:
            del self._shelves[key]
            state, kind = key
            self.continuing -= state != NOTHING
            del self._states[kind][state]
            if not self._states[kind]:
                del self._states[kind]

    def clear(self) -> None:
        self.changes += 1
        self._shelves.clear()
        self._states.clear()
        self.size_bytes = self.continuing = 0
        self._latest = None

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    def __iter__(self) -> Any:
        return (
            (state, kind, program)
            for (state, kind), shelf in self._shelves.items()
            for program in shelf
        )
