"""Coordinates that may move: integers, or linear forms of a bucket's origin.

A decode step at position 130 and one at 131 run the same program, one row further. To find that
out without running the planner twice, the planner runs *once* on coordinates that are linear forms
of the origin: `Moving(0, ((0, 1),))` is 0 + 1·u0. Arithmetic keeps the form; what a form is in
numbers depends on where one *stands*, and every comparison made there is written down as a
*guard*, a linear inequality over the origin that says for which other origins it comes out the
same. What the planner returns is then valid, by construction, at every origin that satisfies the
guards. A form itself says nothing of any place, so what was found out at one is found again at
every other where its guards hold (`memo.Memo`).

    u0 = 130:   max(0, u0 - 511)  →  0          guard   511 - u0 ≥ 0
                u0 + 1 ≤ 512      →  True       guard   511 - u0 ≥ 0

A stride divides: `u0 // 2` is the form `(u0 - 1) / 2` where u0 is odd, and a *congruence* guard
keeps it there, `u0 - 1 ≡ 0 (mod 2)`. So a patch that moves over an image has one program for each
residue of its position by the strides of the network, not one for each position. Where an entry is
*swept*, what is not linear is a table over its places (`swept`), and one program serves all of
them: comparisons that come out the same everywhere need no guard, `larger` and `smaller` are tables
where neither is, and so is a quotient.

The method is concolic execution (Godefroid, Klarlund, Sen: DART, PLDI 2005) with linear forms as
the only symbolic values; whatever is not linear is pinned to its number by two guards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd, lcm, prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.base import swept
from tgbench.base.swept import FIRST, Entries, Numbers, Terms, is_swept

FAR = 1 << 62  # terms: (origin index or table, coefficient), by index, no zeros


class Guard(NamedTuple):
    """The condition `const + Σ coefficient · origin[index] ≥ 0`, or ≡ 0 (mod `modulus`)."""

    const: int
    terms: Terms
    modulus: int = 0

    def holds(self, origin: Sequence[int]) -> bool:
        total = self.const
        for index, coefficient in self.terms:
            total += coefficient * origin[index]
        return total % self.modulus == 0 if self.modulus else total >= 0


class _Standing(threading.local):
    """Where a thread stands, and the guards that comparisons write to; None if nobody listens."""

    origin: Sequence[int] = ()
    guards: set[Guard] | None = None


STANDING = _Standing()


class Moving:
    """A form `(const + Σ coefficient · origin[index]) / per`: an integer wherever one stands.

    In place of an entry of the origin there may be a table over its values.
    """

    __slots__ = ("_hash", "const", "per", "terms")

    def __init__(self, const: int, terms: Terms, per: int = 1) -> None:
        self.const = const
        self.terms = terms
        self.per = per
        self._hash = 0  # not asked yet

    def at(self, origin: Entries) -> int:
        """The number this form takes at an origin."""
        return total_at(self.const, self.terms, origin) // self.per

    def fixed(self, numbers: Mapping[int, int]) -> Coord:
        """The same form where these entries of the origin are numbers, and stand."""
        stand = [(i, k) for i, k in self.terms if swept.base(i) in numbers]
        const = self.const + sum(k * swept.entry(numbers, i) for i, k in stand)
        terms = tuple([term for term in self.terms if term not in stand])
        return _form(const, terms, self.per)

    def pin(self) -> int:
        """Its number here, with guards that hold the form to it."""
        value = value_of(self)
        _require(self - value)
        _require(value - self)
        return value

    def __add__(self, other: Coord) -> Coord:
        if type(other) is int:
            return Moving(self.const + other * self.per, self.terms, self.per)
        if isinstance(other, Moving):
            return _sum(self, other, 1)
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Coord:
        return Moving(-self.const, _negated(self.terms), self.per)

    def __sub__(self, other: Coord) -> Coord:
        if type(other) is int:
            return Moving(self.const - other * self.per, self.terms, self.per)
        if isinstance(other, Moving):
            if self.terms == other.terms and self.per == other.per:
                return (self.const - other.const) // self.per
            return _sum(self, other, -1)
        return NotImplemented

    def __rsub__(self, other: int) -> Coord:
        return -self + other

    def __mul__(self, other: Coord) -> Coord:
        factor = other.pin() if isinstance(other, Moving) else other
        if factor == 0:
            return 0
        return _form(self.const * factor, tuple((i, k * factor) for i, k in self.terms), self.per)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Coord:
        if is_swept(self.terms):
            found = _everywhere(self)
            quotient = None if found is None else _tabled(found[0], found[1] // other)
            if quotient is not None:
                return quotient
        rest, per = self % other, self.per * other
        return _form(self.const - rest * self.per, self.terms, per)

    def __mod__(self, other: int) -> int:
        rest, per = value_of(self) % other, self.per * other
        if STANDING.guards is None or not any(k % per for _, k in self.terms):
            return rest
        if not is_swept(self.terms):
            STANDING.guards.add(Guard(self.const - rest * self.per, self.terms, per))
            return rest
        found = _everywhere(self)
        _hold(self.terms, None if found is None else found[1] % other == rest)
        return rest

    def __lt__(self, other: Coord) -> bool:
        return _is_below(self, other) if type(other) is int else _is_negative(self - other)

    def __gt__(self, other: Coord) -> bool:
        return _is_above(self, other) if type(other) is int else _is_negative(other - self)

    def __le__(self, other: Coord) -> bool:
        return not self > other

    def __ge__(self, other: Coord) -> bool:
        return not self < other

    def __eq__(self, other: object) -> bool:
        """Structural: the same form, so that forms can be dictionary keys. See `same`."""
        return self is other or (
            type(other) is Moving
            and self.const == other.const
            and self.terms == other.terms
            and self.per == other.per
        )

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash((self.const, self.terms, self.per))
        return self._hash

    def __bool__(self) -> bool:
        return self.pin() != 0

    def __index__(self) -> int:
        return self.pin()

    __int__ = __index__

    def __repr__(self) -> str:
        form = " + ".join(f"u{i}" if k == 1 else f"{k}·u{i}" for i, k in self.terms)
        form = f"{form}{self.const:+d}" if self.const else form
        return form if self.per == 1 else f"({form})/{self.per}"


Coord: TypeAlias = "int | Moving"


def _sum(left: Moving, right: Moving, sign: int) -> Coord:
    per = left.per if left.per == right.per else lcm(left.per, right.per)
    mine, other = per // left.per, sign * (per // right.per)
    total = {index: coefficient * mine for index, coefficient in left.terms}
    for index, coefficient in right.terms:
        total[index] = total.get(index, 0) + coefficient * other
    terms = tuple(sorted((i, k) for i, k in total.items() if k))
    const = left.const * mine + right.const * other
    if is_swept(terms):
        spread = swept.spread(terms)
        if spread is not None and spread[0] == spread[1]:
            return (const + spread[0]) // per
    return _form(const, terms, per)


def _form(const: int, terms: Terms, per: int) -> Coord:
    """A form in lowest terms, so that equal ones are equal keys; a number where nothing moves."""
    if not terms:
        return const // per
    if per > 1:
        common = gcd(per, const, *(k for _, k in terms))
        if common > 1:
            const, per = const // common, per // common
            terms = tuple((i, k // common) for i, k in terms)
    return Moving(const, terms, per)


@lru_cache(4096)
def _negated(terms: Terms) -> Terms:
    return tuple((i, -k) for i, k in terms)


def _require(form: Coord) -> None:
    """Record `form ≥ 0`."""
    if STANDING.guards is not None and type(form) is Moving:
        _guard(STANDING.guards, form.const, form.terms)


def _guard(guards: set[Guard], const: int, terms: Terms) -> None:
    """Record `const + Σ coefficient · origin[index] ≥ 0`, which holds here."""
    if terms[-1][0] < FIRST:
        guards.add(Guard(const, terms))
        return
    spread = swept.spread(terms)
    if spread is not None and const + spread[0] >= 0:
        return
    alone = swept.alone(terms)
    _hold(terms, None if alone is None else const + alone[1] >= 0)


def _hold(terms: Terms, is_so: NDArray[np.bool_] | None) -> None:
    """Record that the entry that swept terms go with is among places about this one where
    something is as it is here; without these, that all entries are as they are here.
    """
    origin, guards = STANDING.origin, STANDING.guards
    if guards is None or (is_so is not None and is_so.all()):
        return
    for index in swept.bases(terms):
        at = origin[index]
        low, high = (at, at) if is_so is None else swept.around(is_so, at)
        guards.add(Guard(-low, ((index, 1),)))
        guards.add(Guard(high, ((index, -1),)))


def _everywhere(form: Moving) -> tuple[int, Numbers] | None:
    """The entry that a swept form goes with, and what the form is at each of its places; None where
    it goes with several.
    """
    alone = swept.alone(form.terms)
    return None if alone is None else (alone[0], (alone[1] + form.const) // form.per)


def _tabled(index: int, numbers: Numbers) -> Coord | None:
    """The coordinate that is this at each place; None where there are too many tables."""
    first = int(numbers[0])
    if (numbers == first).all():
        return first
    number = swept.table(index, numbers - first)
    return None if number is None else Moving(first, ((number, 1),))


def _is_negative(form: Coord) -> bool:
    return _is_below(form, 0) if type(form) is Moving else form < 0


def _here(total: int, terms: Terms) -> int:
    """`total` and what the terms come to here."""
    return total_at(total, terms, STANDING.origin)


def total_at(const: int, terms: Terms, origin: Entries) -> int:
    """const + Σ coefficient · origin[index]."""
    total = const
    try:
        for index, coefficient in terms:
            total += coefficient * origin[index]
    except IndexError:  # no entry has the number of a table
        return swept.total(const, terms, origin)
    return total


def _is_below(form: Moving, number: int) -> bool:
    """form < number: the commonest question by far, so nothing but a guard is made for it."""
    rest = form.const - number * form.per
    is_so, guards = _here(rest, form.terms) < 0, STANDING.guards
    if guards is not None:
        if is_so:
            _guard(guards, -rest - form.per, _negated(form.terms))
        else:
            _guard(guards, rest, form.terms)
    return is_so


def _is_above(form: Moving, number: int) -> bool:
    """form > number."""
    rest = form.const - number * form.per
    is_so, guards = _here(rest, form.terms) > 0, STANDING.guards
    if guards is not None:
        if is_so:
            _guard(guards, rest - form.per, form.terms)
        else:
            _guard(guards, -rest, _negated(form.terms))
    return is_so


def larger(a: Coord, b: Coord) -> Coord:
    """The larger one of two coordinates; a table where each is at some places of a sweep."""
    if type(a) is int and type(b) is int:
        return a if b <= a else b
    found = _either(a, b, np.maximum) if moves_freely(a) or moves_freely(b) else None
    return found if found is not None else a if b <= a else b


def smaller(a: Coord, b: Coord) -> Coord:
    """The smaller one of two coordinates; a table where each is at some places of a sweep."""
    if type(a) is int and type(b) is int:
        return a if a <= b else b
    found = _either(a, b, np.minimum) if moves_freely(a) or moves_freely(b) else None
    return found if found is not None else a if a <= b else b


def highest(a: Coord, b: Coord) -> Coord:
    """No less than either of two coordinates: the larger one, or what neither exceeds anywhere,
    where they go with several entries of a sweep.
    """
    apart = _apart(a, b) if moves_freely(a) or moves_freely(b) else None
    return larger(a, b) if apart is None else max(high for _, high in apart)


def lowest(a: Coord, b: Coord) -> Coord:
    """No more than either of two coordinates; see `highest`."""
    apart = _apart(a, b) if moves_freely(a) or moves_freely(b) else None
    return smaller(a, b) if apart is None else min(low for low, _ in apart)


def _apart(a: Coord, b: Coord) -> list[tuple[int, int]] | None:
    """Between which numbers two coordinates lie that go with several entries of a sweep."""
    difference = _swept_difference(a, b)
    if difference is None or _everywhere(difference) is not None:
        return None
    spread = _spread(difference)
    if spread is not None and not spread[0] < 0 < spread[1]:
        return None
    found = [_spread(a), _spread(b)]
    return None if None in found else found  # type: ignore[return-value]


def _swept_difference(a: Coord, b: Coord) -> Moving | None:
    """a − b, where that goes with places of a sweep."""
    found = a - b
    return found if isinstance(found, Moving) and is_swept(found.terms) else None


def _spread(coord: Coord) -> tuple[int, int] | None:
    """The least and the largest number that a coordinate is at any place of a sweep."""
    if not isinstance(coord, Moving):
        return coord, coord
    found = swept.spread(coord.terms)
    if found is None:
        return None
    return (coord.const + found[0]) // coord.per, (coord.const + found[1]) // coord.per


def _either(a: Coord, b: Coord, pick: np.ufunc) -> Coord | None:
    """One of two coordinates at each place of a sweep; None of others, and where they go with
    several entries.
    """
    difference = _swept_difference(a, b)
    if difference is None:
        return None
    spread = _spread(difference)
    if spread is not None and (spread[0] >= 0 or spread[1] <= 0):
        return a if (spread[0] >= 0) is (pick is np.maximum) else b
    both, mine, other = _everywhere(difference), _numbers(a), _numbers(b)
    if both is None or mine is None or other is None:
        return None
    index, _ = both
    picked = pick(mine, other)
    if (picked == mine).all():
        return a
    return b if (picked == other).all() else _tabled(index, picked)


def _numbers(coord: Coord) -> Numbers | int | None:
    """What a coordinate is at each place of a sweep; None where it goes with several entries."""
    if not isinstance(coord, Moving):
        return coord
    found = _everywhere(coord)
    return None if found is None else found[1]


def swept_symbol(index: int, bound: int) -> Coord:
    """The coordinate that is the origin's entry `index`, swept over 0 … bound."""
    if bound >= swept.MOST_PLACES:
        return origin_symbol(index)
    number = swept.table(index, np.arange(bound + 1))
    return origin_symbol(index) if number is None else Moving(0, ((number, 1),))


def number(coord: Coord) -> Coord:
    """An integer, with guards that hold a form to it; a table stays one."""
    return coord if moves_freely(coord) else int(coord)


def moves_freely(coord: Coord) -> bool:
    """Whether a coordinate is a table, or made of some."""
    return type(coord) is Moving and coord.terms[-1][0] >= FIRST  # terms are in order


def steady(start: Coord, stop: Coord, size: int) -> tuple[Coord, Coord]:
    """An interval around another one that is as long wherever it is, within 0 … size.

    >>> u = swept_symbol(0, 6)
    >>> start, stop = steady(u // 2, (u + 3) // 2, 4)  # 0:1, 0:2, 1:2, 1:3, …
    >>> stop - start, [at(start, [place]) for place in range(7)]
    (2, [0, 0, 1, 1, 2, 2, 2])
    """
    if not (moves_freely(start) or moves_freely(stop)):
        return start, stop
    first, last, extent = _numbers(start), _numbers(stop), stop - start
    form = extent if isinstance(extent, Moving) else start
    entry = _everywhere(form) if isinstance(form, Moving) else None
    if entry is None or first is None or last is None:
        return start, stop  # they go with several entries: what is as long is not known
    longest = int(np.max(last - first))
    if longest >= size:
        return 0, size
    begins = _tabled(entry[0], np.clip(first, 0, size - longest) + np.zeros_like(entry[1]))
    return (start, stop) if begins is None else (begins, begins + longest)


def largest(coord: Coord) -> Coord:
    """The largest number at any place of a sweep; of what is not swept, the coordinate itself.

    >>> largest(smaller(swept_symbol(0, 6) // 2, 2))
    2
    """
    spread = _spread(coord)
    return coord if spread is None else spread[1]


def same(a: Coord, b: Coord) -> bool:
    """Whether two coordinates are the same number here (guarded, unlike `==`)."""
    if type(a) is int and type(b) is int:
        return a == b
    return not a < b and not b < a


def same_anywhere(a: Coord, b: Coord) -> bool:
    """Whether two coordinates are the same number; in a sweep, at all places, without a guard."""
    return (a - b) == 0 if moves_freely(a) or moves_freely(b) else same(a, b)


def value_of(coord: Coord) -> int:
    """The number where one stands, unguarded: for costs and drawings, never for regions."""
    return coord.at(STANDING.origin) if isinstance(coord, Moving) else coord


def at(coord: Coord, origin: Entries) -> int:
    """The number at an origin."""
    return coord.at(origin) if isinstance(coord, Moving) else coord


def fixed(coord: Coord, numbers: Mapping[int, int]) -> Coord:
    """A coordinate where these entries of the origin are numbers; see `Moving.fixed`."""
    return coord.fixed(numbers) if isinstance(coord, Moving) else coord


def origin_symbol(index: int) -> Moving:
    """The coordinate that *is* the origin's entry `index`."""
    return Moving(0, ((index, 1),))


def here() -> Sequence[int]:
    """The origin where one stands."""
    return STANDING.origin


class standing:  # noqa: N801  (read as a clause: `with standing(origin)`)
    """Stand at an origin inside the block: forms are the numbers that they take there."""

    __slots__ = ("before", "origin")

    def __init__(self, origin: Sequence[int]) -> None:
        self.origin = origin

    def __enter__(self) -> None:
        self.before, STANDING.origin = STANDING.origin, self.origin

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not GeneratorExit:  # work that is given up where it paused stands nowhere
            STANDING.origin = self.before


class record:  # noqa: N801  (read as a verb: `with record(origin) as guards`)
    """Stand at an origin, and collect the guards of every comparison made inside the block.

    >>> u = origin_symbol(0)
    >>> with record([5]) as guards:
    ...     smaller = u < 7
    >>> smaller, guards
    (True, {Guard(const=6, terms=((0, -1),), modulus=0)})
    """

    __slots__ = ("before", "guards", "origin", "outer")

    def __init__(self, origin: Sequence[int]) -> None:
        self.origin = origin

    def __enter__(self) -> set[Guard]:
        here = STANDING
        self.before, self.outer = here.origin, here.guards
        self.guards: set[Guard] = set()
        here.origin, here.guards = self.origin, self.guards
        return self.guards

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is GeneratorExit:  # as above
            return
        STANDING.origin, STANDING.guards = self.before, self.outer
        if self.outer is not None:
            self.outer |= self.guards


def unguarded() -> Footing:
    """Nobody listens inside: what only costs anything decides nothing of what is right."""
    return Footing(STANDING.origin)


class Footing:
    """Where some work stands and records that is done bit by bit: `with footing` goes on there."""

    __slots__ = ("guards", "origin")

    def __init__(self, origin: Sequence[int] = (), guards: set[Guard] | None = None) -> None:
        self.origin, self.guards = origin, guards

    @staticmethod
    def here() -> Footing:
        """Inside, one stands as outside, and outside as before, whatever happens inside."""
        return Footing(STANDING.origin, STANDING.guards)

    def _change(self) -> None:
        here = STANDING
        here.origin, self.origin = self.origin, here.origin
        here.guards, self.guards = self.guards, here.guards

    def __enter__(self) -> None:
        self._change()

    def __exit__(self, *_: object) -> None:
        self._change()


class Table:
    """An integer table with its straight pieces found, so that a moving index can look things up.

    For each step `values[i] → values[i + 1]`, `first[i]` and `last[i]` are the ends of the longest
    run of equal steps around it, as indices of values.
    """

    __slots__ = ("array", "first", "last", "slope", "values")

    def __init__(self, values: Sequence[int] | NDArray[np.int64]) -> None:
        array = np.asarray(values, dtype=np.int64)
        self.array = array
        self.values: list[int] = array.tolist()
        steps = np.diff(array)
        self.slope: list[int] = steps.tolist()
        starts = np.flatnonzero(np.concatenate(([True], steps[1:] != steps[:-1])))[: len(steps)]
        run = np.searchsorted(starts, np.arange(len(steps)), side="right") - 1
        self.first: list[int] = starts[run].tolist() if len(steps) else []
        stops = np.append(starts[1:], len(steps))
        self.last: list[int] = stops[run].tolist() if len(steps) else []

    def __len__(self) -> int:
        return len(self.values)


def lookup(table: Table, index: Coord) -> Coord:
    """`table.values[index]`; stays a linear form where the table is a straight line.

    The guards keep the index inside the longest straight piece around it.
    """
    if not isinstance(index, Moving):
        return table.values[index]
    i, end = value_of(index), len(table.slope)
    right = table.last[i] - i if i < end else 0
    left = i - table.first[i - 1] if i > 0 else 0
    piece = i if right >= left else i - 1
    if not end:
        slope, low, high = 0, i, i
    else:
        slope, low, high = table.slope[piece], table.first[piece], table.last[piece]
    _require(index - low)
    _require(high - index)
    return table.values[i] + (index - i) * slope


def at_least(table: Table, index: Coord, bound: Coord) -> bool:
    """`table.values[index] >= bound`, wherever around here it comes out the same.

    >>> u, ends = origin_symbol(0), Table([2, 3, 4, 5, 5, 5])  # of a band of two, clipped
    >>> with record([2]) as guards:
    ...     so = lookup(ends, u) >= u + 1, Domain(guards).bounds
    >>> so
    (True, [(0, 0, 3)])
    >>> with record([2]) as guards:
    ...     so = at_least(ends, u, u + 1)
    >>> so, guards
    (True, {Guard(const=4, terms=((0, -1),), modulus=0)})
    """
    return _compared(table, index, bound, np.greater_equal)


def at_most(table: Table, index: Coord, bound: Coord) -> bool:
    """`table.values[index] <= bound`; see `at_least`."""
    return _compared(table, index, bound, np.less_equal)


def larger_in(table: Table, index: Coord, bound: Coord) -> Coord:
    """The larger one of `table.values[index]` and a bound, wherever it is that one."""
    if table.values[value_of(index)] <= value_of(bound):
        at_most(table, index, bound)
        return bound
    at_least(table, index, bound)
    return lookup(table, index)


def smaller_in(table: Table, index: Coord, bound: Coord) -> Coord:
    """The smaller one of `table.values[index]` and a bound, wherever it is that one."""
    if table.values[value_of(index)] >= value_of(bound):
        at_least(table, index, bound)
        return bound
    at_most(table, index, bound)
    return lookup(table, index)


def _compared(table: Table, index: Coord, bound: Coord, compare: np.ufunc) -> bool:
    """Over all indices at once where they move with the bound, or that stands."""
    here = bool(compare(table.values[value_of(index)], value_of(bound)))
    if type(index) is int and type(bound) is int:
        return here
    further = bound - index if isinstance(bound, Moving) else 0
    if type(index) is int or type(further) is not int:
        found = lookup(table, index)
        return found >= bound if compare is np.greater_equal else found <= bound
    places = np.arange(len(table))
    bounds = places + further if isinstance(bound, Moving) else bound
    low, high = swept.around(compare(table.array, bounds) == here, value_of(index))
    if low > 0:
        _require(index - low)
    if high < len(table) - 1:
        _require(high - index)
    return here


class Domain:
    """The origins at which every guard holds; bounds on one symbol are folded into an interval."""

    __slots__ = ("bounds", "rest")

    def __init__(self, guards: Iterable[Guard]) -> None:
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        rest: list[Guard] = []
        for guard in guards:
            if len(guard.terms) != 1 or guard.modulus:
                rest.append(guard)
                continue
            index, coefficient = guard.terms[0]
            if coefficient > 0:
                low[index] = max(low.get(index, -FAR), -(guard.const // coefficient))
            else:
                high[index] = min(high.get(index, FAR), guard.const // -coefficient)
        self.bounds = [(i, low.get(i, -FAR), high.get(i, FAR)) for i in sorted({*low, *high})]
        self.rest = rest

    @property
    def fixed(self) -> Iterator[int]:
        """Entries of the origin that have one value wherever the guards hold."""
        return (index for index, low, high in self.bounds if low == high)

    def implies(self, guard: Guard, most: Sequence[int]) -> bool:
        """Whether a guard holds at all these origins whose entries are 0 … `most`; no, where that
        takes more than the bounds of each entry to tell.

        >>> Domain([Guard(9, ((0, -1),))]).implies(Guard(12, ((0, -1),)), (99,))
        True
        >>> Domain([Guard(9, ((0, -1),))]).implies(Guard(-1, ((0, 1),)), (99,))
        False
        """
        if guard in self.rest or guard.modulus:
            return guard in self.rest
        least, bounds = guard.const, {index: (low, high) for index, low, high in self.bounds}
        for index, coefficient in guard.terms:
            if index >= len(most):  # a number of a table
                return False
            low, high = bounds.get(index, (0, most[index]))
            least += coefficient * (max(low, 0) if coefficient > 0 else min(high, most[index]))
        return least >= 0

    def share(self, most: Sequence[int]) -> float:
        """How much it holds of all origins, whose entries are 0 … `most`, as intervals and the
        largest modulus of an entry say.

        >>> Domain([Guard(-6, ((0, 1),)), Guard(0, ((0, 1),), modulus=2)]).share((9, 3))
        0.2
        """
        found, moduli = 1.0, dict[int, int]()
        for index, low, high in self.bounds:
            size = most[index] + 1
            found *= max(min(high + 1, size) - max(low, 0), 0) / size
        for guard in self.rest:
            for index, _ in guard.terms:
                moduli[index] = max(guard.modulus, moduli.get(index, 1))
        return found / prod(moduli.values())

    def holds(self, origin: Sequence[int]) -> bool:
        for index, low, high in self.bounds:
            if not low <= origin[index] <= high:
                return False
        return not self.rest or all(guard.holds(origin) for guard in self.rest)


def all_so(questions: Sequence[Callable[[], bool]]) -> bool:
    """Whether all is so here; if not, only one of what is not has to stay so: the one that does
    furthest on, as what moves mostly moves on.

    >>> u = origin_symbol(0)
    >>> with record([5]) as guards:
    ...     so = all_so([lambda: u > 6, lambda: u > 8])
    >>> so, guards
    (False, {Guard(const=8, terms=((0, -1),), modulus=0)})
    """
    with unguarded():
        failing = [ask for ask in questions if not ask()]
    if not failing:
        return all(ask() for ask in questions)
    guards = STANDING.guards
    if guards is not None:
        guards |= max(map(_guards_of, failing), key=_reach)
    return False


def _guards_of(question: Callable[[], bool]) -> set[Guard]:
    found = set[Guard]()
    with Footing(STANDING.origin, found):
        question()
    return found


def _reach(guards: Iterable[Guard]) -> tuple[int, int, int]:
    """Up to where they hold, and from where on; the fewer go with several entries the better."""
    domain = Domain(guards)
    low = max((low for _, low, _ in domain.bounds), default=-FAR)
    return -len(domain.rest), min((high for _, _, high in domain.bounds), default=FAR), -low
