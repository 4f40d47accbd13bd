"""Coordinates that are known at all places, beside what they are at each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgbench.base import swept
from tgbench.base.coords import (
    Coord,
    Domain,
    at,
    highest,
    larger,
    lowest,
    record,
    same,
    smaller,
    steady,
    swept_symbol,
)
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around, is_free, steadied

BOUND = 12
PLACES = [(u, v) for u in range(BOUND + 1) for v in range(BOUND + 1)]
Made = tuple[Coord, Callable[[int, int], int]]


@st.composite
def forms(draw: st.DrawFn, depth: int = 4) -> Made:
    """A coordinate made by arithmetic, and the same arithmetic on numbers."""
    if depth == 0 or draw(st.booleans()):
        which = draw(st.sampled_from("uvn"))
        if which == "n":
            n = draw(st.integers(-5, 15))
            return n, lambda u, v: n
        entry = "uv".index(which)
        return swept_symbol(entry, BOUND), lambda u, v: (u, v)[entry]
    a, of_a = draw(forms(depth - 1))
    op, n = draw(st.sampled_from("+-*/<>")), draw(st.integers(1, 4))
    if op == "*":
        return a * n, lambda u, v: of_a(u, v) * n
    if op == "/":
        return a // n, lambda u, v: of_a(u, v) // n
    b, of_b = draw(forms(depth - 1))
    if op == "+":
        return a + b, lambda u, v: of_a(u, v) + of_b(u, v)
    if op == "-":
        return a - b, lambda u, v: of_a(u, v) - of_b(u, v)
    pick, picks = (smaller, min) if op == "<" else (larger, max)
    return pick(a, b), lambda u, v: picks(of_a(u, v), of_b(u, v))


@given(st.data(), st.sampled_from(PLACES))
def test_arithmetic_is_right_wherever_its_guards_hold(data: Any, here: tuple[int, int]) -> None:
    with record(here) as guards:
        form, numbers = data.draw(forms())
        less, number = form < 5, same(form, 3)
        rest = form % 3
    domain = Domain(guards)
    assert domain.holds(here)
    for place in filter(domain.holds, PLACES):
        right = numbers(*place)
        assert at(form, place) == right
        assert (right < 5, right == 3, right % 3) == (less, number, rest)


@given(st.data(), st.sampled_from(PLACES))
def test_what_goes_with_one_entry_needs_no_guards(data: Any, here: tuple[int, int]) -> None:
    """Neither a quotient nor what is larger: only what is decided."""
    u = swept_symbol(0, BOUND)
    with record(here) as guards:
        form = smaller(larger(u * 3 - 7, 0) // 2, 9) + u
    assert not guards
    with record(here) as guards:
        decided = form < 30
    assert decided
    assert not guards
    with record(here) as guards:
        assert (form < 8) is (at(form, here) < 8)
    assert guards


@given(st.data(), st.sampled_from(PLACES))
def test_bounds_are_bounds_everywhere(data: Any, here: tuple[int, int]) -> None:
    with record(here) as guards:
        (a, of_a), (b, of_b) = data.draw(forms()), data.draw(forms())
        low, high = lowest(a, b), highest(a, b)
    for place in filter(Domain(guards).holds, PLACES):
        both = of_a(*place), of_b(*place)
        assert at(low, place) <= min(both)
        assert max(both) <= at(high, place)


@given(st.integers(-8, 8), st.integers(1, 4), st.integers(1, 6), st.integers(8, 20))
def test_a_steady_interval_is_as_long_everywhere_and_inside(
    first: int, stride: int, length: int, size: int
) -> None:
    u = swept_symbol(0, BOUND)
    start = smaller(larger((u + first) // stride, 0), size - 1)
    stop = smaller(larger((u + first + length) // stride + 1, start + 1), size)
    found = steady(start, stop, size)
    lengths = {at(found[1], place) - at(found[0], place) for place in PLACES}
    longest = max(at(stop, place) - at(start, place) for place in PLACES)
    assert lengths == {longest}
    for place in PLACES:
        assert 0 <= at(found[0], place) <= at(start, place)
        assert at(stop, place) <= at(found[1], place) <= size


def test_regions_of_a_sweep() -> None:
    u, v = swept_symbol(0, BOUND), swept_symbol(1, BOUND)
    dirty = Region((Box(((0, 1), (u // 2, (u + 3) // 2))),))
    assert is_free(dirty)
    found = steadied(dirty, (1, 8))
    (box,) = found.boxes
    assert box.extents == (1, 2)
    assert steadied(found, (1, 8)) == found
    other = Region((Box(((0, 1), (u // 2 + 1, u // 2 + 3))),))
    assert around(*dirty, *other).boxes == (Box(((0, 1), (u // 2, u // 2 + 3))),)
    image = Region((Box(((1, 2), (v, v + 1))),))
    assert len(around(*dirty, *image)) == 2
    assert not is_free(Region((Box(((0, 1), (0, 3))),)))
    assert steadied(Region((Box(((0, 1), (0, 3))),)), (1, 8)) == Region((Box(((0, 1), (0, 3))),))


@given(st.permutations(range(5)))
def test_windows_around_one_another_are_the_widest(order: list[int]) -> None:
    """Clipped at both ends, as of layers one behind the other; nothing is asked of a place."""
    u, v = swept_symbol(0, BOUND), swept_symbol(1, BOUND)

    def around(at: Coord, by: int) -> tuple[Coord, Coord]:
        return larger(at - by, 0), smaller(at + 1 + by, BOUND + 1)

    boxes = [Box(((0, 4), around(u, by), around(v, by))) for by in order]
    with record([0, 5]) as guards:  # at a border, where some are alike
        assert Region.of(*boxes).boxes == (boxes[order.index(4)],)
        found = reduce(Region.union, [Region((box,)) for box in boxes])
        assert found.boxes == (boxes[order.index(4)],)
    assert not guards


@given(st.data())
def test_windows_that_meet_are_right_wherever_they_were_joined(data: st.DataObject) -> None:
    u = swept_symbol(0, BOUND)
    ends = st.tuples(st.integers(-3, 3), st.integers(1, 4))
    boxes = [
        Box((sides, (larger(u + start, 0), smaller(u + start + size, BOUND + 4))))
        for start, size in data.draw(st.lists(ends, min_size=1, max_size=4))
        for sides in ((0, size), (u, u + size))
    ]
    place = data.draw(st.integers(0, BOUND))
    with record([place]) as guards:
        found = Region.of(*boxes)
    domain = Domain(guards)
    assert domain.holds([place])
    for here in range(BOUND + 1):
        if domain.holds([here]):
            joined = Region.of(*(box for box in (one.at([here]) for one in boxes) if is_there(box)))
            assert Region.of(*(box for box in found.at([here]) if is_there(box))) == joined


def is_there(box: Box) -> bool:
    return all(start < stop for start, stop in box)


def test_equal_tables_are_one() -> None:
    one = swept.table(0, np.arange(5) * 2)
    assert one == swept.table(0, np.arange(5) * 2)
    assert one != swept.table(1, np.arange(5) * 2)


def test_without_room_for_tables_a_form_is_held_to_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    u = swept_symbol(0, BOUND)
    monkeypatch.setattr(swept, "MOST_NUMBERS", 0)
    with record([5, 0]) as guards:
        found = (u * 5 + 1) // 11
    domain = Domain(guards)
    right = [place for place in range(BOUND + 1) if domain.holds([place, 0])]
    assert 5 in right
    assert all(at(found, [place, 0]) == (place * 5 + 1) // 11 for place in right)


ends = st.tuples(st.sampled_from(["u // 2", "(u + 1) // 2", "v", "v // 3"]), st.integers(0, 3))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), ends, ends), min_size=1, max_size=8)
)
def test_around_boxes_of_a_sweep_are_boxes_that_lie_apart_at_every_place(sides: Any) -> None:
    """Strips of channels and windows in them, that lie one over the other in any way; no guard."""

    def end(kind: tuple[str, int], u: Any, v: Any) -> Any:
        name, shift = kind
        return {"u // 2": u // 2, "(u + 1) // 2": (u + 1) // 2, "v": v, "v // 3": v // 3}[
            name
        ] + shift

    def boxes(u: Any, v: Any) -> list[Box]:
        return [
            Box(((first, first + count), (end(low, u, v), end(low, u, v) + 2 + end(high, u, v))))
            for first, count, low, high in sides
        ]

    with record((0, 0)) as guards:
        found = around(*boxes(swept_symbol(0, BOUND), swept_symbol(1, BOUND)))
    assert not guards
    channels = [set(range(a, b)) for (a, b), _ in found]
    assert sum(map(len, channels)) == len(set().union(*channels))
    for place in PLACES:
        assert found.at(place).contains(Region.of(*boxes(*place)))
