"""Region algebra against boolean arrays, its canonical form, and moving coordinates."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import boxes, mask_of, regions

from tgbench.base import regions as module
from tgbench.base.coords import Domain, Moving, origin_symbol, record, swept_symbol
from tgbench.base.regions import EMPTY, Box, Left, Region, coarsened, listed_region, union

SHAPES = ((), (6,), (4, 5), (3, 4, 3))
shapes = st.sampled_from(SHAPES)
pairs = shapes.flatmap(lambda s: st.tuples(st.just(s), regions(s), regions(s)))
box_pairs = shapes.flatmap(lambda s: st.tuples(st.just(s), boxes(s), boxes(s)))


@pytest.fixture(params=[module.MANY, 1], autouse=True, scope="module")
def _many(request: pytest.FixtureRequest) -> Iterator[None]:
    """From how many boxes on a region looks for those that lie near another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY", request.param)
        yield


def assert_proper(region: Region) -> None:
    """Disjoint, none empty, and the same boxes however the elements are given."""
    for box in region:
        assert all(start < stop for start, stop in box)
    for a, b in itertools.combinations(region, 2):
        assert a.intersect(b) is None
    if region.boxes and region.boxes[0]:
        points = [
            Box((i, i + 1) for i in point)
            for box in region
            for point in itertools.product(*(range(a, b) for a, b in box))
        ]
        assert Region.of(*points[::2], *points[1::2]) == region


@given(pairs)
def test_algebra(pair: Any) -> None:
    shape, a, b = pair
    left, right = mask_of(a, shape), mask_of(b, shape)
    for region, expected in (
        (a.union(b), left | right),
        (a.intersect(b), left & right),
        (a.subtract(b), left & ~right),
    ):
        assert np.array_equal(mask_of(region, shape), expected)
        assert region.elements == expected.sum()
        assert region.is_empty == (not expected.any())
        assert_proper(region)
    assert a.contains(b) == bool((left | ~right).all())
    assert a.intersects(b) == bool((left & right).any())


@given(shapes.flatmap(lambda s: st.lists(boxes(s), min_size=1, max_size=5)))
def test_what_a_file_lists_is_the_union_of_disjoint_boxes(listed: list[Box]) -> None:
    disjoint = not any(a.intersect(b) for a, b in itertools.combinations(listed, 2))
    if listed[0]:  # those of a scalar are empty tuples, and all the same
        assert listed_region(listed) == (Region.of(*listed) if disjoint else None)


@given(shapes.flatmap(lambda s: st.tuples(st.just(s), *[regions(s)] * 3)))
def test_what_is_left_answers_as_the_difference_does(case: Any) -> None:
    _, valid, dirty, region = case
    left, there = Left(valid, dirty), valid.subtract(dirty)
    assert left.region == there
    assert left.lacking(region) == region.subtract(there)
    assert left.joined(region) == there.union(region)
    assert left.intersects(region) == there.intersects(region)
    for found in (left.lacking(region), left.joined(region)):
        assert_proper(found)


@given(pairs)
def test_equal_sets_are_equal_boxes(pair: Any) -> None:
    _, a, b = pair
    one = a.union(b)
    other = a.subtract(b).union(b.subtract(a)).union(a.intersect(b))
    assert one == other
    assert hash(one) == hash(other)
    assert one.boxes == union([b, a]).boxes


@given(pairs, st.integers(1, 4))
def test_a_coarser_region_is_around_it_and_as_small_as_that(pair: Any, most: int) -> None:
    _, a, b = pair
    region = a.union(b)
    found = coarsened(region, most)
    assert len(found) <= most
    assert not region.boxes or found.contains(region)
    if len(region) <= most:
        assert found == region
    else:
        assert region.hull().contains(found.hull())


@given(pairs)
def test_hull_is_the_smallest_box(pair: Any) -> None:
    shape, a, b = pair
    both = a.union(b)
    if both.is_empty:
        return
    where = np.argwhere(mask_of(both, shape))
    expected = Box((int(i.min()), int(i.max()) + 1) for i in where.T)
    assert both.hull() == expected


@given(box_pairs)
def test_boxes(pair: Any) -> None:
    shape, a, b = pair
    left, right = (mask_of(Region((box,)), shape) for box in (a, b))
    left_of = a.subtract(b)
    assert np.array_equal(mask_of(Region(tuple(left_of)), shape), left & ~right)
    assert sum(box.elements for box in left_of) == (left & ~right).sum()
    assert (a.intersect(b) is None) == (not (left & right).any())
    assert a.contains(b) == bool((left | ~right).all())
    assert a.hull(b).contains(a)
    assert a.hull(b).contains(b)
    assert a.extents == tuple(stop - start for start, stop in a)
    assert a.starts == tuple(start for start, _ in a)


def test_boxes_that_lie_apart_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with few others: an image cut into windows changes in hundreds of boxes."""
    rows, compared = 128, 0

    def row(at: int) -> Region:
        return Region((Box(((0, 1), (at, at + 1), (0, 8))),))

    def counting(self: Box, other: Box, found: Any = Box.intersect) -> Box | None:
        nonlocal compared
        compared += 1
        result: Box | None = found(self, other)
        return result

    monkeypatch.setattr(Box, "intersect", counting)
    odd, others = (union(row(4 * i + start) for i in range(rows)) for start in (1, 3))
    odd.union(others)
    odd.subtract(others)
    assert not odd.intersects(others)
    assert odd.contains(row(5))
    assert compared < 32 * rows


def test_a_cross_is_three_bands() -> None:
    cross = Region.of(Box(((2, 3), (0, 5))), Box(((0, 5), (3, 4))))
    assert repr(cross) == "{[0:2, 3:4], [2:3, 0:5], [3:5, 3:4]}"


def test_full_and_empty() -> None:
    assert Region.full((2, 3)).elements == 6
    assert Region.full(()).elements == 1
    assert Region.full((2, 0)) == EMPTY
    assert Region.of() == EMPTY
    assert EMPTY.contains(EMPTY)
    assert not EMPTY.intersects(Region.full((2,)))


# --- coordinates that move ------------------------------------------------------------------------

SIZE = 8
ends = st.tuples(st.sampled_from(["number", "u", "v", "2u"]), st.integers(-2, 3))


def coordinate(kind: tuple[str, int], u: Any, v: Any) -> Any:
    base, shift = kind
    return {"number": 3, "u": u, "v": v, "2u": 2 * u}[base] + shift


def build(spec: Any, u: Any, v: Any, rank: int) -> Region:
    """The union of boxes whose ends follow the origin; empty ones are left out, guarded."""
    found = []
    for intervals in spec:
        box = [
            (coordinate(start, u, v), coordinate(stop, u, v)) for start, stop in intervals[:rank]
        ]
        if all(start < stop for start, stop in box):
            found.append(Box(box))
    return Region.of(*found)


specs = st.lists(st.lists(st.tuples(ends, ends), min_size=2, max_size=2), min_size=1, max_size=3)


@pytest.mark.parametrize("rank", [1, 2])
@given(specs, specs, st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))
def test_algebra_holds_at_every_origin_the_guards_allow(
    rank: int, left: Any, right: Any, u: int, v: int
) -> None:
    def compute(u: Any, v: Any) -> list[Any]:
        a, b = build(left, u, v, rank), build(right, u, v, rank)
        results: list[Any] = [a, b, a.union(b), a.intersect(b), a.subtract(b)]
        if a.boxes:
            results.append(Region((a.hull(),)))
        rest = Left(Region.full((SIZE,) * rank), a)
        results += [rest.lacking(b), rest.joined(b), rest.intersects(b)]
        return [*results, a.contains(b), a.intersects(b)]

    with record((u, v)) as guards:
        found = compute(origin_symbol(0), origin_symbol(1))
    assert Domain(guards).holds((u, v))
    for origin in itertools.product(range(SIZE), repeat=2):
        if Domain(guards).holds(origin):
            placed = [r.at(origin) if isinstance(r, Region) else r for r in found]
            assert placed == compute(*origin)


def swept(kind: tuple[str, int], u: Any, v: Any) -> Any:
    """Ends of a part that may stand anywhere: behind strides, and at borders."""
    base, shift = kind
    return {"number": 3, "u": u // 2, "v": v, "2u": (u + 1) // 2}[base] + shift


@pytest.mark.parametrize("rank", [1, 2])
@given(specs, specs, st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))
def test_algebra_of_a_sweep_holds_at_every_place_the_guards_allow(
    rank: int, left: Any, right: Any, u: int, v: int
) -> None:
    """The same elements, in boxes none of which is empty or meets another."""

    def made(spec: Any, u: Any, v: Any) -> list[Box]:
        sides = [[tuple(swept(end, u, v) for end in side) for side in box[:rank]] for box in spec]
        return [Box(box) for box in sides if all(start < stop for start, stop in box)]

    def compute(u: Any, v: Any) -> list[Region]:
        a, b = Region.of(*made(left, u, v)), Region.of(*made(right, u, v))
        return [a, b, a.union(b), a.intersect(b), a.subtract(b)]

    with record((u, v)) as guards:
        found = compute(swept_symbol(0, SIZE - 1), swept_symbol(1, SIZE - 1))
    for origin in itertools.product(range(SIZE), repeat=2):
        if Domain(guards).holds(origin):
            for region, expected in zip(found, compute(*origin), strict=True):
                placed = region.at(origin)
                assert all(start < stop for box in placed for start, stop in box)
                assert placed.elements == expected.elements
                assert placed.contains(expected)


def test_many_ends_that_move_are_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n rows and n columns that meet each other, n · log n questions and not n³."""
    n, asked = 24, 0

    def counting(self: Moving, other: Any, found: Any = Moving.__sub__) -> Any:
        nonlocal asked
        asked += 1
        return found(self, other)

    monkeypatch.setattr(Moving, "__sub__", counting)
    with record((5,)):
        starts = [origin_symbol(0) + 4 * i for i in range(n)]
        rows = [Box(((at, at + 1), (0, 1000))) for at in starts]
        columns = [Box(((0, 1000), (at, at + 1))) for at in starts]
        cross = Region.of(*rows, *columns)
        assert len(cross) == (n + 1) * n + n
        assert cross.union(Region.full((1000, 1000))) == Region.full((1000, 1000))
        assert len(Region.full((1000, 1000)).subtract(cross)) == (n + 1) ** 2
    assert asked < 10 * n**2


def test_examples() -> None:
    assert doctest.testmod(module).failed == 0
