"""Validity as patterns that do not mention positions."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tgbench.base import swept
from tgbench.base.coords import Coord, Moving, at, origin_symbol
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.programs.held import Held
from tgbench.programs.states import EMPTY_STATE, States, ValidityPattern, describe
from tgbench.runs.buckets import Bucket, BucketClass, Spot

SIZE = 12


def graph() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (SIZE, 4))
    g.output("y", g.name(x * 2.0, "k") + 1.0)
    return g.build()


GRAPH = graph()
K = GRAPH.node("k")


def append(t: int) -> tuple[BucketClass, tuple[int, ...]]:
    row = Region((Box(((t, t + 1), (0, 4))),))
    return Bucket.of({"x": row}, {"y": row}).classify(GRAPH)


def after_append() -> dict[Node, Held]:
    """Rows [0, t + 1) of k are valid, as a run at t writes it."""
    u = origin_symbol(0)
    return {K: Held(Region((Box(((0, u + 1), (0, 4))),)), (0, 0))}


def rows(pattern: ValidityPattern, origin: tuple[int, ...]) -> tuple[int, int]:
    ((start, stop), _) = pattern.state[K].valid.hull()
    return at(start, origin), at(stop, origin)


def test_equal_patterns_have_one_number_and_the_empty_one_is_0() -> None:
    states = States()
    assert states.number(EMPTY_STATE) == 0
    one = states.number(ValidityPattern.of(after_append()))
    assert states.number(ValidityPattern.of(dict(after_append()))) == one == 1
    assert len(states) == 2


def test_what_stays_keeps_its_number_and_no_other_gets_one_that_is_gone() -> None:
    def prefix(stop: Coord) -> ValidityPattern:
        return ValidityPattern.of({K: Held(Region((Box(((0, stop), (0, 4))),)), (0, 0))})

    states = States()
    first, gone, last = (states.number(prefix(stop)) for stop in (1, 2, origin_symbol(0)))
    kind, origin = append(3)
    moved = states.moved(last, Spot(kind, (2,)), Spot(kind, origin))
    states.forget_others([first, last, -1])
    assert set(states.patterns) == {0, first, last}
    assert states.size_bytes == prefix(1).size_bytes + prefix(origin_symbol(0)).size_bytes
    assert states.number(prefix(1)) == first
    assert states.number(prefix(origin_symbol(0))) == last
    again = states.moved(last, Spot(kind, (2,)), Spot(kind, origin))  # nothing is remembered of it
    assert rows(states.patterns[again], origin) == (0, 2)
    assert not {again, states.number(prefix(2))} & {first, gone, last, moved}


@given(st.integers(0, SIZE), st.integers(0, SIZE - 1), st.integers(0, 3))
def test_how_far_back_a_state_is_there(valid: int, start: int, less: int) -> None:
    """Of one that counts on all rows before a start, but for the last few."""
    states, u = States(), origin_symbol(0)
    there = {K: Held(Region((Box(((0, valid), (0, 4))),)), (0, 0))} if valid else {}
    counted = {K: Held(Region((Box(((0, u - less), (0, 4))),)), (0, 0))}
    number, wanted = (states.number(ValidityPattern.of(one)) for one in (there, counted))

    def is_there(start: int) -> bool:
        return states.are_there(wanted, (start,), number, ())

    expected = max((at for at in range(start + 1) if is_there(at)), default=None)
    assert states.reach(wanted, lambda at: (at,), start, number, ()) == expected


PLACES = 6


def table(numbers: list[int]) -> Coord:
    """A number for each place, as a run that is swept has them."""
    number = swept.table(0, np.array(numbers))
    assert number is not None
    return Moving(0, ((number, 1),))


edges = st.one_of(
    st.integers(0, 3),
    st.integers(-1, 2).map(lambda further: origin_symbol(0) + further),
    st.lists(st.integers(0, 4), min_size=PLACES, max_size=PLACES).map(table),
)
intervals = st.tuples(edges, st.tuples(edges, st.integers(1, 3)).map(lambda e: e[0] + e[1])).filter(
    lambda side: not all(isinstance(end, int) for end in side) or side[0] < side[1]
)


@given(st.lists(intervals, min_size=1, max_size=2), intervals, st.randoms())
def test_what_is_there_is_known_at_places_never_seen(
    held: list[tuple[Coord, Coord]], wanted: tuple[Coord, Coord], random: Random
) -> None:
    """One session's states, asked at one place after the other, beside elements counted one by one.

    Two nodes hold the same, as equal layers do; boxes that are empty somewhere hold nothing there,
    and who counts on an empty one finds it nowhere.
    """
    states = States()

    def number(boxes: list[tuple[Coord, Coord]]) -> int:
        region = Region(tuple(Box((side, (0, 4))) for side in boxes))
        region = region if region.moves else Region.of(*region)
        nodes = K, GRAPH.node("x")
        return states.number(ValidityPattern.of({n: Held(region, (0, 0)) for n in nodes}))

    there, counted = number(held), number([wanted])
    places = list(product(range(PLACES), repeat=2))
    random.shuffle(places)
    for origin, last in places:
        rows_held = {row for a, b in held for row in range(at(a, (last,)), at(b, (last,)))}
        first, stop = (at(side, (origin,)) for side in wanted)
        expected = first < stop and rows_held.issuperset(range(first, stop))
        assert states.are_there(counted, (origin,), there, (last,)) == expected


def test_a_state_moves_with_the_runs_of_its_class() -> None:
    states = States()
    number = states.number(ValidityPattern.of(after_append()))
    moved = states.moved(number, append(3), append(4))
    assert rows(states.patterns[moved], (4,)) == (0, 4)
    assert states.moved(number, append(8), append(9)) == moved
    back = states.moved(number, append(8), append(2))
    assert rows(states.patterns[back], (2,)) == (0, 9)
    assert states.moved(0, append(3), append(9)) == 0
    assert states.moved(number, append(3), append(3)) == number


def test_what_a_run_anywhere_left_is_numbers_for_the_next_one() -> None:
    """Tables are over places of its own; the next one of its class lies elsewhere."""
    states = States()
    left = {K: Held(Region((Box(((0, table([3, 9, 5])), (0, 4))),)), (0, 0))}
    number = states.number(ValidityPattern.of(left))
    for place, last in enumerate((3, 9, 5)):
        moved = states.moved(number, append(place), append(1))
        assert rows(states.patterns[moved], (1,)) == (0, last)


def test_a_state_of_another_class_is_written_over_the_new_origin() -> None:
    states = States()
    number = states.number(ValidityPattern.of(after_append()))
    ask = Bucket.of({}, {"y": Region((Box(((4, 6), (0, 4))),))}).classify(GRAPH)
    moved = states.moved(number, append(3), ask)
    assert rows(states.patterns[moved], ask[1]) == (0, 4)
    (_, region, _) = states.patterns[moved].entries[0]
    assert region.boxes[0][0][1] == origin_symbol(0), (
        "4 is the origin of the new run, and written as that"
    )


@given(st.lists(st.tuples(st.integers(0, SIZE - 2), st.booleans()), min_size=2, max_size=8))
def test_wherever_runs_go_the_numbers_stay(path: list[tuple[int, bool]]) -> None:
    """However often it is rewritten, a state says the same of every element."""
    states = States()
    first = path[0][0]
    number, before = states.number(ValidityPattern.of(after_append())), append(first)
    for t, same_class in path[1:]:
        row = Region((Box(((t, t + 1), (0, 4))),))
        now = append(t) if same_class else Bucket.of({}, {"y": row}).classify(GRAPH)
        number, before = states.moved(number, before, now), now
        assert rows(states.patterns[number], now[1]) == (0, first + 1)


def block(start: int, size: int) -> Spot:
    rows = Region((Box(((start, start + size), (0, 4))),))
    return Bucket.of({"x": rows}, {"y": rows}).classify(GRAPH, "sized")


def after_block(more: int = 0) -> dict[Node, Held]:
    """Rows up to the end of a block are valid, and some that lie further on."""
    u, size = origin_symbol(0), origin_symbol(1)
    boxes = [Box(((0, u + size), (0, 4)))]
    boxes += [Box(((u + size + 1, u + size + more), (0, 4)))] if more else []
    return {K: Held(Region(tuple(boxes)), (0, 0))}


def test_block_after_block_finds_the_same_state_whatever_their_sizes() -> None:
    states = States()
    number = states.number(ValidityPattern.of(after_block()))
    runs = [block(0, 3), block(3, 1), block(4, 5), block(9, 2)]
    moved = [states.moved(number, before, now) for before, now in pairwise(runs)]
    assert len(set(moved)) == 1
    ((_, region, _),) = states.patterns[moved[0]].entries
    assert region.boxes[0][0] == (0, origin_symbol(0))


def test_what_lies_further_on_does_not_go_with_the_runs() -> None:
    states = States()
    number = states.number(ValidityPattern.of(after_block(more=6)))
    first = states.moved(number, block(1, 2), block(3, 1))
    assert states.patterns[first].entries[0][1].boxes[1][0] == (origin_symbol(0) + 1, 9)
    # one row further on follows: it is in reach of the next run
    near = states.number(ValidityPattern.of(after_append()))
    again = states.moved(states.moved(near, append(5), append(4)), append(4), append(5))
    assert again == states.moved(near, append(5), append(5)) == near


@given(
    st.lists(st.tuples(st.integers(0, SIZE - 3), st.integers(1, 3)), min_size=2, max_size=8),
    st.integers(0, 5),
)
def test_wherever_blocks_go_the_numbers_stay(path: list[tuple[int, int]], more: int) -> None:
    """The same of runs of any size, and of what lies further on than they do."""
    states, before = States(), block(*path[0])
    number = states.number(ValidityPattern.of(after_block(more + 2 if more else 0)))
    end = sum(path[0])
    expected = {*range(end), *(range(end + 1, end + more + 2) if more else ())}
    for start, size in path[1:]:
        now = block(start, size)
        number, before = states.moved(number, before, now), now
        valid = states.patterns[number].state[K].valid.at(now.origin)
        rows = [row for box in valid for row in range(*box[0])]
        assert sorted(rows) == sorted(expected)


def test_ways_of_moving_are_not_mistaken_for_each_other() -> None:
    """A state is remembered by how far a run of its class moves it, and by another run's place."""
    states = States()
    number = states.number(ValidityPattern.of(after_append()))
    whole = Bucket.of({"x": Region.full((SIZE, 4))}, {"y": Region.full((SIZE, 4))})
    moved = [
        states.moved(number, append(2), append(4)),
        states.moved(number, append(2), whole.classify(GRAPH)),
    ]
    assert [rows(states.patterns[n], at)[1] for n, at in zip(moved, ((4,), ()), strict=True)] == [
        3, 3
    ]  # fmt: skip


def test_a_pattern_gives_back_the_forms_it_was_made_of() -> None:
    state = after_append()
    again = ValidityPattern.of(state).state
    assert again[K].valid == state[K].valid
    (start, stop), _ = again[K].valid.hull()
    assert start == 0
    assert isinstance(stop, Moving)
    assert at(stop, (9,)) == 10


def test_a_state_reads_well() -> None:
    assert describe(after_append()) == "k: {[0:u0+1, 0:4]}"
