"""Numbers that go with a place, worked out together: as each says of itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tgbench.base.coords import Moving, larger, origin_symbol, record, smaller, swept_symbol
from tgbench.base.forms import MANY, Forms

BOUND = 9
kinds = st.tuples(st.integers(0, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9))


def _form(kind: tuple[int, int, int, int], symbols: Any) -> Any:
    which, times, more, const = kind
    (u, v), (s, t) = symbols
    return [
        times * u + more * v + const,
        (3 * u + const) // 2 + more * t,
        larger((times * s + const) // 2, more) + s,
        smaller(s // 3 + more, t) - times * t,
    ][which]


@given(st.lists(kinds, max_size=4 * MANY), st.lists(st.tuples(*[st.integers(0, BOUND)] * 4)))
def test_forms_together_are_what_each_is(found: Any, places: Any) -> None:
    """Linear ones, floors of them and tables; few, or many; numbered once, and some more later."""
    symbols = (origin_symbol(0), origin_symbol(1)), (swept_symbol(2, BOUND), swept_symbol(3, BOUND))
    with record((0, 0, 0, 0)):
        made = [one for kind in found if isinstance(one := _form(kind, symbols), Moving)]
    forms = Forms()
    for some in (made[: len(made) // 2], made):
        numbers = [forms.number(one) for one in some]
        assert len(forms) == len(set(some))
        for place in places:
            at = forms.at(place)
            assert [at[i] for i in numbers] == [one.at(place) for one in some]
            assert all(type(number) is int for number in at)
