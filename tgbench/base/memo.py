"""Answers that are remembered, within bytes that were granted for them.

    Memo         results of a pure function on coordinates, each with the guards it stands on
    Allowance    the bytes that the memos of one session share
    once_each    what follows from one object is remembered there
    Latest       the entries of a dictionary that were written last, so many of them
    bytes_of     what a value takes that others hold parts of: its share

A memo has two generations. What is new or asked for is young; when the young ones of all memos
together take half of what is allowed, they become the old ones, and what was old is let go. So what
is asked for stays, whichever memo it is in, and letting go costs nothing an entry.

    young  a b c d │ half is full      young  c' e f      asked for again, c is young again
    old            │               →   old    a b   d     gone with the next change

Source of the two halves: the clock approximation of "least recently used" (Corbató 1968) with one
bit, moved from pages to dictionaries.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol, TypeVar, TypeVarTuple

from tgbench.base.coords import STANDING, Guard, record

R = TypeVar("R")
Key = TypeVar("Key")
T = TypeVar("T")
V = TypeVar("V")
MOST_ENTRIES = 200_000  # of a memo
ELSEWHERE = 8  # results of one key that a memo looks through
MEMO_BYTES = 32 << 20  # that the memos of a session share
SOONEST, SAMPLED = 8, 256  # the 8th entry of a memo is measured, the 16th after that, … 256th
SLOT_BYTES = 100  # of an entry in a dictionary that grows
HEADER_BYTES = 16  # before an object that the collector looks at
SMALLEST_SHARE = 1 / 32  # of what others hold more of, nothing is counted
MOST_PARTS = 16  # of an object, that are looked at; up to twice as many


class Allowance:
    """Bytes that memos share; see the module's first lines.

    Args:
        limit_bytes: for all of them together; None for no limit.
    """

    def __init__(self, limit_bytes: int | None = MEMO_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.each_bytes = 0.0  # of an entry of any memo, about
        self._young_bytes = 0.0
        self._memos: weakref.WeakSet[Memo] = weakref.WeakSet()

    @property
    def size_bytes(self) -> int:
        """What the memos hold now."""
        return round(sum(memo.size_bytes for memo in list(self._memos)))

    def __len__(self) -> int:
        """How many entries that is."""
        return sum(len(memo) for memo in list(self._memos))

    def memo(self, most: int = MOST_ENTRIES) -> Memo:
        """A memo of its own, which shares the bytes."""
        made = Memo(most, self)
        self._memos.add(made)
        return made

    @contextmanager
    def raised(self, limit_bytes: int) -> Iterator[None]:
        """More bytes while a block runs, which asks what it asked before again and again."""
        before = self.limit_bytes
        if before is not None:
            self.limit_bytes = max(before, limit_bytes)
        try:
            yield
        finally:
            self.limit_bytes = before
            if before is not None and self.size_bytes > before:
                self._young_bytes = 0.0
                for memo in [*self._memos, *self._memos]:  # what is old goes, and what is young
                    memo.age()

    def measured(self, size_bytes: float) -> None:
        """An entry of some memo takes so much."""
        self.each_bytes = _lately(self.each_bytes, size_bytes)

    def take(self, size_bytes: float) -> None:
        """A memo has grown."""
        self._young_bytes += size_bytes
        if self.limit_bytes is not None and self._young_bytes > self.limit_bytes / 2:
            self._young_bytes = 0.0
            for memo in list(self._memos):
                memo.age()


_NONE: dict[Hashable, Any] = {}


class Memo:
    """Results of pure functions on coordinates, each with the guards it was computed under.

    One key may have several results, each right where its guards hold. A hit adds those guards to
    whoever records now, so that a remembered answer restricts the origin exactly as the computation
    would have. What depends on where one stands by `value_of` has those numbers in its key.

    Args:
        most: results of a generation.
        allowance: pays for them; None for nobody.
    """

    __slots__ = (
        "__weakref__", "_due", "_gap", "allowance", "each_bytes", "entries", "most", "older", "size"
    )  # fmt: skip

    def __init__(self, most: int = MOST_ENTRIES, allowance: Allowance | None = None) -> None:
        self.entries: dict[Hashable, Any] = {}
        self.older = _NONE  # nothing is ever put there
        self.most, self.allowance = most, allowance
        self.size, self.each_bytes = 0, 0.0 if allowance is None else allowance.each_bytes
        self._due = self._gap = SOONEST  # entries until one is measured

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it begins with nothing."""
        return Memo, (self.most,)

    @property
    def size_bytes(self) -> float:
        """Zero where nobody pays."""
        return len(self) * self.each_bytes

    def __len__(self) -> int:
        return len(self.entries) + len(self.older)

    def get(self, key: Hashable, compute: Callable[..., R], *args: Any) -> R:
        found: Any = self.entries.get(key, self)
        if found is self:  # which is no result of anything: the key is not among the young
            found = self._again(key)
        result: R
        if found is self:
            result = self._computed(key, compute, args)
        elif type(found) is not _Guarded:
            result = found
        else:
            result = self._guarded(found, key, compute, args)
        return result

    def _again(self, key: Hashable) -> Any:
        """What is old and asked for again is young; the memo itself where there is nothing."""
        found = self.older.pop(key, self)
        if found is not self:
            self._put(key, found)
        return found

    def age(self) -> None:
        """What is young is old, and what was old is gone."""
        self.older, self.entries, self.size = self.entries, {}, 0

    def _guarded(
        self, found: _Guarded, key: Hashable, compute: Callable[..., R], args: tuple[Any, ...]
    ) -> R:
        here, origin = STANDING.guards, STANDING.origin
        result: R
        for guards, result in found.results:
            if here is not None and guards <= here:
                return result
            for guard in guards:
                if not guard.holds(origin):
                    break
            else:
                if here is not None:
                    here |= guards
                return result
        return self._computed(key, compute, args)

    def _computed(self, key: Hashable, compute: Callable[..., R], args: tuple[Any, ...]) -> R:
        with record(STANDING.origin) as guards:
            result = compute(*args)
        before = self.entries.get(key)
        others = before.results[: ELSEWHERE - 1] if type(before) is _Guarded else ()
        known = _Guarded(((frozenset(guards), result), *others)) if guards else result
        self._put(key, known)
        return result

    def _put(self, key: Hashable, known: Any) -> None:
        if self.size >= self.most:
            self.age()
        self.entries[key] = known
        self.size += 1
        if self.allowance is not None:
            self._due -= 1
            if not self._due or not self.each_bytes:
                self._due = self._gap = min(2 * self._gap, SAMPLED)
                found = SLOT_BYTES + bytes_of(key) + bytes_of(known)
                self.each_bytes = _lately(self.each_bytes, found)
                self.allowance.measured(found)
            self.allowance.take(self.each_bytes)


def _lately(before: float, now: float) -> float:
    """An average in which the last ones count for most."""
    return (3 * before + now) / 4 if before else now


@dataclass(frozen=True, slots=True)
class _Guarded:
    """Remembered results, each of which holds only where its guards do; the latest first."""

    results: tuple[tuple[frozenset[Guard], Any], ...]


class _Remembers(Protocol):
    @property
    def found(self) -> Memo: ...


Owner = TypeVar("Owner", bound=_Remembers)
Details = TypeVarTuple("Details")


def once_each(find: Callable[[Owner, *Details], R]) -> Callable[[Owner, *Details], R]:
    """What follows from an object, remembered in its `found`: it goes when the object does."""

    @wraps(find)
    def found(owner: Owner, *details: *Details) -> R:
        return owner.found.get((find, *details), find, owner, *details)

    return found


# --- bytes ----------------------------------------------------------------------------------------

_OUTLIVING: set[type] = {BuiltinFunctionType, MethodType, ModuleType, type(None), bool}


def outlives(kind: type[T]) -> type[T]:
    """Instances are there whoever remembers them, so nobody is charged for one."""
    _OUTLIVING.add(kind)
    return kind


class Latest(dict[Key, V]):
    """The entries that were written last, or asked for with a default: so many of them.

    >>> found = Latest(2)
    >>> found["a"], found["b"] = 1, 2
    >>> found.setdefault("a", 7), found.setdefault("c", 3)
    (1, 3)
    >>> found
    {'a': 1, 'c': 3}
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: V) -> None:
        before = len(self)
        super().__setitem__(key, value)
        if len(self) == before:  # it was there, and is the latest from now on
            super().__setitem__(key, self.pop(key))
        elif before >= self.most:
            del self[next(iter(self))]

    def setdefault(self, key: Key, default: V) -> V:
        """The value of a key, which is the latest one from now on."""
        found = self[key] = self.get(key, default)
        return found

    def copy(self) -> Latest[Key, V]:
        made = Latest[Key, V](self.most)
        dict.update(made, self)
        return made


def bytes_of(value: Any) -> float:
    """What holding a value takes: its own bytes, and its share of those that others hold as well.

    An object that three hold is counted by a third, like pages in a process's proportional set
    size; so what all of them take is counted once, to the accuracy of who holds it now. Of what has
    many parts some are looked at, evenly spaced, for all of them.
    """
    size, waiting = float(_own_bytes(value)), _some(value, 1.0)
    while waiting:
        one, share = waiting.pop()
        if type(one) in _OUTLIVING or isinstance(one, type):
            continue
        share /= max(sys.getrefcount(one) - 2, 1)  # less those of this function
        if share < SMALLEST_SHARE:
            continue
        size += share * _own_bytes(one)
        waiting += _some(one, share)
    return size


def _some(one: Any, share: float) -> list[tuple[Any, float]]:
    """Parts of an object, and for how many such shares each of them counts."""
    parts = _parts(one)
    if len(parts) > MOST_PARTS:
        step = len(parts) // MOST_PARTS | 1  # odd: a dictionary's are keys and values in turn
        share *= step
        parts = parts[step // 2 :: step]
    return [(part, share) for part in parts]


def _own_bytes(one: Any) -> int:
    return sys.getsizeof(one) + HEADER_BYTES * gc.is_tracked(one)


def _parts(one: Any) -> Sequence[Any]:
    return (one.__closure__ or ()) if type(one) is FunctionType else gc.get_referents(one)
