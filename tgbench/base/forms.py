"""Numbers that go with a place, worked out together: in arrays, whatever a program has of them.

entries of the origin, tables ─→ terms, each times its coefficient ─→ sums ─→ forms
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tgbench.base.coords import Moving
from tgbench.base.swept import FIRST, Lookup, Numbers

MANY = 8  # forms, which are quicker in arrays than one by one


class _Arrays(NamedTuple):
    """Forms in arrays.

    Fields:
        lookup: the tables, whose numbers stand behind the entries of an origin.
        which, coefficients: of each term.
        begins: the first term of each form.
        const, per: of each form.
    """

    lookup: Lookup
    which: Numbers
    coefficients: Numbers
    begins: Numbers
    const: Numbers
    per: Numbers


class Forms:
    """Forms over origins of one length, numbered.

    >>> from tgbench.base.coords import origin_symbol
    >>> u, v = origin_symbol(0), origin_symbol(1)
    >>> forms = Forms()
    >>> forms.number(2 * u + v + 1), forms.number(u), forms.number(2 * u + v + 1)
    (0, 1, 0)
    >>> forms.at((10, 3))
    [24, 10]
    """

    def __init__(self) -> None:
        self._numbers: dict[Moving, int] = {}
        self._arrays: _Arrays | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, form: Moving) -> int:
        """Where a form is among what `at` returns."""
        found = self._numbers.get(form)
        if found is None:
            found = self._numbers[form] = len(self._numbers)
            self._arrays = None
        return found

    def at(self, origin: tuple[int, ...]) -> list[int]:
        """What they are at an origin."""
        if len(self._numbers) < MANY:
            return [form.at(origin) for form in self._numbers]
        if self._arrays is None:
            self._arrays = self._in_arrays(len(origin))
        lookup, which, coefficients, begins, const, per = self._arrays
        entries = np.array(origin, np.int64)
        values = np.concatenate([entries, lookup.at(entries)])
        sums = np.add.reduceat(values[which] * coefficients, begins)
        found: list[int] = ((sums + const) // per).tolist()
        return found

    def _in_arrays(self, count: int) -> _Arrays:
        tables: dict[int, int] = {}
        terms = [
            (index if index < FIRST else tables.setdefault(index, count + len(tables)), times)
            for form in self._numbers
            for index, times in form.terms
        ]
        which, coefficients = np.array(terms, np.int64).T
        begins = np.cumsum([0, *(len(form.terms) for form in self._numbers)])[:-1]
        const, per = np.array([(one.const, one.per) for one in self._numbers], np.int64).T
        return _Arrays(Lookup(tables), which, coefficients, begins, const, per)
