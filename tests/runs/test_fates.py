"""What becomes of what is valid, with and without dimensions in which all is alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tgbench.base.coords import Coord, origin_symbol, record
from tgbench.base.regions import EMPTY, Box, Region, common_sides, thinned, widened
from tgbench.runs.propagate import ValueFate

ROWS = 12
HERE = (5,)

edges: st.SearchStrategy[Coord] = st.one_of(
    st.integers(0, ROWS), st.integers(-3, 3).map(lambda more: origin_symbol(0) + more)
)


@st.composite
def sides(draw: st.DrawFn) -> tuple[Coord, Coord]:
    start, stop = draw(edges), draw(edges)
    with record(HERE):
        return (start, stop) if start < stop else (start, start + 1)


rows = st.lists(sides(), max_size=2)


def region(found: list[tuple[Coord, Coord]], columns: tuple[int, int]) -> Region:
    if not found:
        return EMPTY
    with record(HERE):
        return Region.of(*(Box(((0, 3), side, columns)) for side in found))


@given(rows, rows, st.lists(st.tuples(st.booleans(), rows), max_size=2), st.booleans())
def test_dimensions_in_which_all_is_alike_do_not_matter(
    valid: list[tuple[Coord, Coord]],
    dirty: list[tuple[Coord, Coord]],
    steps: list[tuple[bool, list[tuple[Coord, Coord]]]],
    is_whole: bool,
) -> None:
    """Of rows: all columns, or what changed has fewer; beside elements counted one by one."""
    there = region(valid, (0, 4))
    changed = region(dirty, (0, 4) if is_whole else (1, 3))
    fate = ValueFate(changed, tuple((stays, region(found, (0, 4))) for stays, found in steps))
    alike = common_sides((there, *fate.regions))
    with record(HERE):
        thin = fate.thinned(alike)
        found = widened(thin.after(thinned(there, alike)), alike)
        assert thin.after(thinned(there, alike), thin.lost()) == thinned(found, alike)
    left = elements(there) - elements(changed)
    for stays, computed in fate.steps:
        left = (left if stays else set()) | elements(computed)
    assert elements(found) == left
    for one in fate.regions:
        assert widened(thinned(one, alike), alike) == one
    if alike:
        assert alike[0] == (0, 3)


def elements(found: Region) -> set[tuple[int, ...]]:
    counted = set[tuple[int, ...]]()
    for (a, b), (c, d), (e, f) in found.at(HERE):
        counted |= {
            (i, j, k) for i in range(a, b) for j in range(c, d) for k in range(e, f)
        }  # fmt: skip
    return counted
