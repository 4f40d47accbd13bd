"""Buckets against brute force: masks of booleans, and every origin that a class allows."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import islice, product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tgbench import ops  # registers the op table
from tgbench.base.coords import Moving, standing
from tgbench.base.errors import DemandError, GraphError
from tgbench.base.memo import Allowance
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.runs.buckets import (
    SIZED,
    Bucket,
    BucketClass,
    BucketSpace,
    Classifier,
    Extents,
    region_of_index,
)
from tgbench.runs.difference import MOST_BOXES, Scattered, compared, difference, hull_of
from tgbench.runs.raster import as_one, onwards

Mask = NDArray[np.bool_]
untimed = settings(deadline=None)
shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)


def mask_of(region: Region, shape: tuple[int, ...]) -> Mask:
    mask = np.zeros(shape, bool)
    for box in region:
        assert not mask[box.slices()].any(), "boxes overlap"
        mask[box.slices()] = True
    return mask


def canonical(region: Region) -> bool:
    return Region.of(*region.boxes).boxes == region.boxes


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> Mask:
    """Few boxes, scattered elements, or both."""
    shape = draw(shapes) if shape is None else shape
    mask = np.zeros(shape, bool)
    for _ in range(draw(st.integers(0, 4))):
        corners = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
        mask[tuple(slice(a, b) for a, b in corners)] = True
    if draw(st.booleans()):
        seed = draw(st.integers(0, 2**32 - 1))
        mask ^= np.random.default_rng(seed).random(shape) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    return mask


def boxes_of(mask: Mask | np.bool_) -> Region:
    """Where flags are true: where they differ from none."""
    return difference(np.zeros_like(mask), np.asarray(mask))


# --- what differs -------------------------------------------------------------------------------


@untimed
@given(masks())
def test_boxes_cover_every_true_element_with_few_boxes(mask: Mask) -> None:
    region = boxes_of(mask)
    exact = Region.of(*(Box((i, i + 1) for i in at) for at in np.argwhere(mask).tolist()))
    covered = mask_of(region, mask.shape)
    assert (covered >= mask).all()
    assert len(region) <= MOST_BOXES
    assert canonical(region)
    if len(exact) <= MOST_BOXES:
        assert region == exact
    else:
        assert exact.hull().contains(region.hull())


@untimed
@given(masks())
def test_a_hull_is_the_smallest_box(mask: Mask) -> None:
    at = np.argwhere(mask)
    sides = zip(at.min(axis=0).tolist(), at.max(axis=0).tolist(), strict=True) if len(at) else ()
    assert hull_of(mask) == (Box((a, b + 1) for a, b in sides) if len(at) else None)


@untimed
@given(st.integers(0, 69), st.integers(0, 69), st.integers(1, 3), st.integers(1, 3))
def test_slices_that_are_alike_are_one_box(a: int, b: int, width: int, depth: int) -> None:
    """However many: where they end is found by doubling and halving."""
    mask = np.zeros((2, 70, 4, depth), bool)
    mask[1, min(a, b) : max(a, b) + 1, 1 : 1 + width] = True
    box = Box(((1, 2), (min(a, b), max(a, b) + 1), (1, 1 + width), (0, depth)))
    assert boxes_of(mask) == Region((box,))


def test_a_cross_is_not_its_hull() -> None:
    mask = np.zeros((5, 5), bool)
    mask[2], mask[:, 3] = True, True
    assert str(boxes_of(mask)) == "{[0:2, 3:4], [2:3, 0:5], [3:5, 3:4]}"


def test_beyond_the_most_boxes_the_widest_gaps_stay_open() -> None:
    mask = np.zeros(100, bool)
    mask[[0, 10, 12, 30, 40, 50, 60, 70, 80, 99]] = True  # ten; two gaps must close
    assert str(boxes_of(mask)) == (
        "{[0:1], [10:13], [30:31], [40:41], [50:51], [60:61], [70:81], [99:100]}"
    )


@untimed
@given(st.integers(0, 2**32 - 1), st.sampled_from([(40,), (1, 40), (40, 3), (2, 40, 2)]))
def test_slices_in_a_row_are_covered_by_as_few_elements_as_can_be(
    seed: int, shape: tuple[int, ...]
) -> None:
    random, axis = np.random.default_rng(seed), shape.index(40)
    mask = np.zeros(shape, bool)
    chosen = np.sort(random.choice(40, size=int(random.integers(9, 25)), replace=False))
    mask[(slice(None),) * axis + (chosen,)] = True
    gaps = sorted(np.diff(chosen)[np.diff(chosen) > 1] - 1, reverse=True)
    covered = chosen[-1] - chosen[0] + 1 - sum(gaps[: MOST_BOXES - 1])
    assert boxes_of(mask).elements == covered * mask.size // 40


def greedily(mask: Mask) -> set[tuple[Box, ...]]:
    """Every way to cut a hull where that saves most, while the boxes stay few; slow, obvious."""
    found: set[tuple[Box, ...]] = set()
    seen: set[tuple[Box, ...]] = set()
    todo = [(within(mask, Box.full(mask.shape)),)]
    while todo:
        boxes = todo.pop()
        assume(len(seen) < 500)
        finer: dict[tuple[Box, ...], int] = {}
        for box in boxes:
            for halves in cuts(mask, box):
                saved = box.elements - sum(half.elements for half in halves)
                others = [other for other in boxes if other is not box]
                finer[tuple(sorted([*others, *halves]))] = saved
        most = max(finer.values(), default=0)
        best = [finer_boxes for finer_boxes, saved in finer.items() if saved == most > 0]
        for finer_boxes in best:
            if len(Region.of(*finer_boxes)) <= MOST_BOXES and finer_boxes not in seen:
                seen.add(finer_boxes)
                todo.append(finer_boxes)
        if not best or any(len(Region.of(*some)) > MOST_BOXES for some in best):
            found.add(Region.of(*boxes).boxes)
    return found


def cuts(mask: Mask, box: Box) -> Iterator[tuple[Box, Box]]:
    """The hulls of the two sides of every cut through a box."""
    for axis, (start, stop) in enumerate(box):
        for at in range(int(start) + 1, int(stop)):
            sides = (start, at), (at, stop)
            halves = [Box((*box[:axis], side, *box[axis + 1 :])) for side in sides]
            yield within(mask, halves[0]), within(mask, halves[1])


def within(mask: Mask, box: Box) -> Box:
    """The smallest box around what is true inside one."""
    alone = np.zeros_like(mask)
    alone[box.slices()] = mask[box.slices()]
    hull = hull_of(alone)
    return Box((start, start) for start, _ in box) if hull is None else hull


@settings(untimed, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(12, 9), (1, 7, 8), (3, 4, 6)]))
def test_scattered_elements_are_cut_where_that_saves_most(
    seed: int, shape: tuple[int, ...]
) -> None:
    """Of cuts that save as much, any may come first."""
    random = np.random.default_rng(seed)
    mask = np.zeros(shape, bool)
    chosen = random.choice(mask.size, size=int(random.integers(9, 16)), replace=False)
    mask.reshape(-1)[chosen] = True
    exact = Region.of(*(Box((i, i + 1) for i in at) for at in np.argwhere(mask).tolist()))
    assume(len(exact) > MOST_BOXES)
    assert boxes_of(mask).boxes in greedily(mask)


def test_two_noisy_patches_are_two_boxes() -> None:
    noise = np.random.default_rng(0).random((12, 12)) < 0.5
    noise[[0, -1], :] = noise[:, [0, -1]] = True
    mask = np.zeros((64, 64), bool)
    mask[3:15, 4:16] = mask[40:52, 41:53] = noise
    region = boxes_of(mask)
    assert region.hull() == Box(((3, 52), (4, 53)))
    assert region.elements <= 2 * noise.size


def test_a_megapixel_of_noise_takes_no_quadratic_time() -> None:
    mask = np.random.default_rng(0).random((3, 512, 512)) < 0.5
    region = boxes_of(mask)
    assert len(region) <= MOST_BOXES
    assert (mask_of(region, mask.shape) >= mask).all()


DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@untimed
@given(st.data(), st.sampled_from(DTYPES), masks())
def test_difference_is_where_bits_differ(data: st.DataObject, dtype: str, mask: Mask) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    old = generator.integers(0, 2, mask.shape).astype(dtype)
    new = np.where(mask, 1 - old.astype("int8"), old).astype(dtype)
    assert difference(old, new) == boxes_of(mask)
    assert difference(new.T, old.T) == boxes_of(mask.T)
    assert difference(old, old.copy()) == EMPTY
    found = compared(old, new)
    if isinstance(found, Scattered):  # until somebody asks, slices side by side
        at = np.flatnonzero(mask)
        assert found.around == _slices_from(at[0], at[-1], mask)
        assert found.boxes == difference(old, new)
    else:
        assert found == difference(old, new)


def _slices_from(first: int, last: int, mask: Mask) -> Region:
    """Of all slices that hold both, by as many indices as may be, those from one to the other."""
    indices = np.array(np.unravel_index([first, last], mask.shape)).T
    same = next(i for i, (a, b) in enumerate(zip(*indices, strict=True)) if a != b)
    sides = [(int(i), int(i) + 1) for i in indices[0][:same]]
    sides.append((int(indices[0][same]), int(indices[1][same]) + 1))
    return Region((Box([*sides, *((0, size) for size in mask.shape[same + 1 :])]),))


def test_floats_differ_by_their_bits() -> None:
    nan, other_nan = np.float32("nan"), np.array([0x7FC00001], "u4").view("f4")[0]
    old = np.array([0.0, nan, nan, 1.0, np.inf, 0.0], "f4")
    new = np.array([-0.0, nan, other_nan, 1.0, -np.inf, 1e-45], "f4")
    assert str(difference(old, new)) == "{[0:1], [2:3], [4:6]}"


def test_arrays_without_dimensions_or_elements() -> None:
    one = Region((Box(()),))
    assert difference(np.array(1.0), np.array(2.0)) == one
    assert difference(np.array(1.0), np.array(1.0)) == EMPTY
    assert boxes_of(np.array(True)) == one
    assert boxes_of(np.array(False)) == EMPTY
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))) == EMPTY


# --- what is asked for --------------------------------------------------------------------------


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """What NumPy also takes: integers, slices inside the shape, one `...`, fewer than all."""

    def part(size: int) -> Any:
        bound = st.none() | st.integers(-size, size)
        whole = st.builds(slice, bound, bound, st.sampled_from([None, 1]))
        return draw(st.integers(-size, size - 1) | whole)

    count = draw(st.integers(0, len(shape)))
    if not draw(st.booleans()):
        return tuple(part(size) for size in shape[:count])
    front = draw(st.integers(0, count))
    back = shape[len(shape) - (count - front) :]
    return (*(part(size) for size in shape[:front]), ..., *(part(size) for size in back))


@untimed
@given(st.data(), shapes)
def test_an_index_is_the_region_numpy_reads(data: st.DataObject, shape: tuple[int, ...]) -> None:
    parts = data.draw(st.lists(indices(shape), min_size=1, max_size=3))
    expected = np.zeros(shape, bool)
    for index in parts:
        alone = np.zeros(shape, bool)
        alone[index] = True
        assert (mask_of(region_of_index(index, shape, "y"), shape) == alone).all()
        expected |= alone
    region = region_of_index(parts, shape, "y")
    assert (mask_of(region, shape) == expected).all()
    assert canonical(region)
    assert region_of_index(region, shape, "y") is region


def test_numpy_integers_and_bare_indices() -> None:
    assert region_of_index(np.int64(2), (4,), "y") == Region((Box(((2, 3),)),))
    assert region_of_index(np.s_[np.int64(1) :], (4,), "y") == Region((Box(((1, 4),)),))
    assert region_of_index(..., (), "y") == region_of_index((), (), "y") == Region((Box(()),))
    assert region_of_index([], (4,), "y") == EMPTY


BAD_INDICES: list[Any] = [
    5,
    -6,
    np.s_[:6],
    np.s_[-6:],
    np.s_[::2],
    np.s_[::-1],
    np.s_[0, 0, 0],
    np.s_[..., 0, 0, 0],
    np.s_[..., ...],
    np.s_[0, ..., ...],
    None,
    True,
    1.0,
    "a",
    np.s_[1.0:2.0],
    np.s_["a":"b"],
    np.array([1, 2]),
    [0, 7],
    {"a": 1},
    Region((Box(((0, 6), (0, 3))),)),
    Region((Box(((0, 1),)),)),
    Region((Box(()),)),
]


@pytest.mark.parametrize("index", BAD_INDICES, ids=repr)
def test_an_index_outside_or_of_another_kind_is_named(index: Any) -> None:
    with pytest.raises(DemandError, match="logits"):
        region_of_index(index, (5, 3), "logits")


# --- classes ------------------------------------------------------------------------------------


def graph_of(shape: tuple[int, ...], out: tuple[int, ...]) -> Graph:
    g = GraphBuilder()
    state = g.state("h", shape)
    g.update(state, state + g.input("x", shape))
    g.output("y", g.input("z", out) * 2.0)
    return g.build()


@st.composite
def buckets(draw: st.DrawFn) -> tuple[Graph, Bucket]:
    shape, out = draw(shapes), draw(shapes)
    graph = graph_of(shape, out)
    changed = {name: boxes_of(draw(masks(shape))) for name in ("x", "h")}
    changed["z"] = boxes_of(draw(masks(out)))
    return graph, Bucket.of(changed, {"y": boxes_of(draw(masks(out)))})


def test_a_bucket_is_sorted_and_holds_nothing_empty() -> None:
    box = Region((Box(((0, 1),)),))
    bucket = Bucket.of({"b": box, "a": box, "c": EMPTY}, {"y": EMPTY})
    assert bucket.changed == (("a", box), ("b", box))
    assert bucket.demand == ()
    assert str(bucket) == "a[0:1], b[0:1] → nothing"


@untimed
@given(buckets(), st.sampled_from(get_args(Extents)))
def test_class_and_origin_make_the_bucket(case: tuple[Graph, Bucket], extents: Extents) -> None:
    graph, bucket = case
    kind, origin = bucket.classify(graph, extents)
    assert kind.bucket(origin) == bucket
    assert len(origin) == len(kind.bounds)
    assert len(origin) == len(set(origin)) or kind.sized or kind.is_swept
    assert kind.inside(origin) == origin
    assert all(0 <= start <= bound for start, bound in zip(origin, kind.bounds, strict=True))
    assert hash(kind) == hash(Bucket(bucket.changed, bucket.demand).classify(graph, extents)[0])


def shapes_by_name(graph: Graph) -> dict[str, tuple[int, ...]]:
    leaves = {**graph.inputs, **graph.states, **graph.outputs}
    return {name: node.shape for name, node in leaves.items()}


def fits(graph: Graph, bucket: Bucket) -> bool:
    shape = shapes_by_name(graph)
    return all(
        Region.full(shape[name]).contains(region)
        for name, region in (*bucket.changed, *bucket.demand)
    )


@untimed
@given(buckets())
def test_the_bounds_are_the_last_origins_inside_the_shapes(case: tuple[Graph, Bucket]) -> None:
    graph, bucket = case
    kind, origin = bucket.classify(graph)
    corners = kind.corners(origin)
    assert corners[0] == origin
    assert (0,) * len(origin) in corners
    assert kind.bounds in corners
    assert len(set(corners)) == len(corners)
    for corner in corners:
        assert fits(graph, kind.bucket(corner))
    for i in range(len(origin)):
        beyond = [*origin[:i], kind.bounds[i] + 1, *origin[i + 1 :]]
        assert not fits(graph, kind.bucket(beyond))


@untimed
@given(buckets())
def test_every_origin_of_a_class_has_that_class(case: tuple[Graph, Bucket]) -> None:
    """As long as starts that differ stay different, and boxes of one region do not meet."""
    graph, bucket = case
    single = [(name, Region(region.boxes[:1])) for name, region in bucket.changed]
    kind, _ = Bucket.of(dict(single), {}).classify(graph)
    for origin in islice(product(*(range(bound + 1) for bound in kind.bounds)), 200):
        if len(set(origin)) == len(origin):
            assert kind.bucket(origin).classify(graph) == (kind, origin)


@untimed
@given(buckets())
def test_symbols_give_the_regions_of_the_origin(case: tuple[Graph, Bucket]) -> None:
    graph, bucket = case
    kind, origin = bucket.classify(graph)
    symbols = kind.symbols
    assert all(isinstance(symbol, Moving) for symbol in symbols)
    with standing(origin):
        changed, demand = (kind.regions(part, symbols) for part in ("changed", "demand"))
    assert {n: r.at(origin) for n, r in changed.items()} == dict(bucket.changed)
    assert {n: r.at(origin) for n, r in demand.items()} == dict(bucket.demand)


@untimed
@given(buckets())
def test_changes_that_go_on_to_the_end_do_so_at_every_origin(case: tuple[Graph, Bucket]) -> None:
    graph, bucket = case
    shape = shapes_by_name(graph)
    changed = {name: onwards(region, shape[name]) for name, region in bucket.changed}
    for (_, all_of_it), (_, region) in zip(changed.items(), bucket.changed, strict=True):
        assert all_of_it.contains(region)
    kind, origin = Bucket.of(changed, dict(bucket.demand)).classify(graph, "onwards")
    for corner in kind.corners(origin):
        there = kind.bucket(corner)
        assert fits(graph, there)
        for name, region in there.changed:
            assert region == onwards(region, shape[name])


def test_a_change_from_anywhere_to_the_end_is_one_class() -> None:
    graph = graph_of((9,), (9,))
    row = Region((Box(((8, 9),)),))
    buckets = [Bucket.of({"x": Region((Box(((at, 9),)),))}, {"y": row}) for at in range(1, 8)]
    assert {str(one.classify(graph, "onwards").kind) for one in buckets} == {"x[u0:] → y[u1:+1]"}
    assert len({one.classify(graph, "onwards").kind for one in buckets}) == 1
    assert len({one.classify(graph).kind for one in buckets}) == 7


@untimed
@given(buckets(), buckets())
def test_a_run_within_another_changes_and_asks_for_no_more(
    one: tuple[Graph, Bucket], other: tuple[Graph, Bucket]
) -> None:
    def elements(bucket: Bucket) -> set[Any]:
        parts = (
            (i, *item) for i, part in enumerate((bucket.changed, bucket.demand)) for item in part
        )
        return {
            (i, name, at)
            for i, name, region in parts
            for box in region
            for at in product(*(range(*side) for side in box))
        }

    a, b = one[1], other[1]
    ranks = [{(i, n): len(r.boxes[0]) for i, p in enumerate((x.changed, x.demand)) for n, r in p}
             for x in (a, b)]  # fmt: skip
    if all(ranks[1].get(key, rank) == rank for key, rank in ranks[0].items()):
        assert a.is_within(b) == (elements(a) <= elements(b))
    assert a.is_within(a)


@pytest.mark.parametrize("extents", get_args(Extents))
@untimed
@given(st.data())
def test_a_class_is_around_a_bucket_between_the_first_and_the_last_origin_that_hold_it(
    extents: Extents, data: st.DataObject
) -> None:
    """Beside every origin there is. What has any size is as small there as it can be."""
    shape, out = data.draw(shapes), data.draw(shapes)
    graph = graph_of(shape, out)

    def drawn() -> Bucket:
        changed = {"x": boxes_of(data.draw(masks(shape))), "z": boxes_of(data.draw(masks(out)))}
        return Bucket.of(changed, {"y": boxes_of(data.draw(masks(out)))})

    bucket, (kind, _) = drawn(), drawn().classify(graph, extents)
    assume(all(len(boxes) == 1 for _, boxes in (*kind.changed, *kind.demand)))
    assume(np.prod(np.add(kind.bounds, 1)) <= 2_000)
    every = product(*(range(bound + 1) for bound in kind.bounds))
    right = [
        origin
        for origin in every
        if kind.inside(origin) == origin and bucket.is_within(kind.bucket(origin))
    ]
    between = kind.around(bucket)
    assert (between is None) == (not right)
    if between is not None:
        assert fits(graph, kind.bucket(between[1]))
        assert between[1] in right
        assert kind.sized or between == (min(right), max(right))


def test_classes_of_several_boxes_are_around_nothing() -> None:
    two = Region((Box(((0, 1),)), Box(((4, 5),))))
    kind, origin = Bucket.of({"x": two}, {}).classify(graph_of((9,), (9,)))
    assert kind.around(kind.bucket(origin)) is None


def test_classes_that_change_about_as_much_in_the_same_way_have_one_form() -> None:
    graph = graph_of((40,), (40,))
    forms = [
        Bucket.of({"x": Region((Box(((4, 4 + extent),)),))}, {}).classify(graph).kind.form
        for extent in (1, 3, 4, 15, 16)
    ]
    assert forms[0] == forms[1] != forms[2] == forms[3] != forms[4]


@given(st.data(), shapes)
def test_what_is_made_one_box_is_the_least_that_holds_it(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    region = boxes_of(data.draw(masks(shape)))
    found = as_one(region, shape)
    assert len(found) == bool(region.boxes)
    assert found.contains(region)
    for axis, (start, stop) in enumerate(found.hull() if found.boxes else ()):
        sides = [box[axis] for box in region]
        assert (start, stop) == (min(a for a, _ in sides), max(b for _, b in sides))


def rows(start: int, stop: int) -> Region:
    return Region((Box(((0, 1), (start, stop))),))


@pytest.mark.parametrize("extents", ["onwards", "sized"])
@given(st.data(), st.integers(1, 38))
def test_a_run_that_begins_earlier_does_all_of_it(
    extents: Extents, data: st.DataObject, start: int
) -> None:
    assume(start != 7)  # what is asked for begins there, and would move along
    graph = graph_of((1, 40), (1, 40))
    stop = 40 if extents == "onwards" else data.draw(st.integers(start + 1, 39))
    run = Bucket.of({"x": rows(start, stop)}, {"y": rows(7, 9)})
    kind, origin = run.classify(graph, extents)
    first = data.draw(st.integers(0, start))
    there = kind.bucket(kind.earlier(origin, first))
    assert there.changed == (("x", rows(first, stop)),)
    assert there.demand == run.demand
    assert fits(graph, kind.bucket(kind.ahead(origin)))


def test_blocks_of_any_size_are_one_class() -> None:
    graph = graph_of((1, 40), (1, 40))
    runs = [(a, a + count) for a in range(0, 30, 3) for count in range(1, 9)]
    spots = [
        Bucket.of({"x": rows(*run)}, {"y": rows(*run)}).classify(graph, "sized") for run in runs
    ]
    assert {str(kind) for kind, _ in spots} == {"x[:, u0:+u1] → y[:, u0:+u1]"}
    assert [origin for _, origin in spots] == [(a, b - a) for a, b in runs]
    for origin in spots[0].kind.corners(spots[0].origin):
        assert fits(graph, spots[0].kind.bucket(origin))


@given(st.integers(0, 38), st.integers(1, 40), st.integers(0, 38), st.integers(1, 40))
def test_a_class_of_any_size_holds_what_changed_and_what_is_asked_for(
    first: int, count: int, other: int, more: int
) -> None:
    """One origin does, and no smaller one where both have to be the same rows."""
    graph = graph_of((1, 40), (1, 40))
    kind = Bucket.of({"x": rows(3, 5)}, {"y": rows(3, 5)}).classify(graph, "sized").kind
    sides = (first, min(first + count, 40)), (other, min(other + more, 40))
    run = Bucket.of(*({name: rows(*side)} for name, side in zip("xy", sides, strict=True)))
    between = kind.around(run)
    assert between is not None
    (low, high), there = between, kind.bucket(between[1])
    assert low == high
    assert run.is_within(there)
    assert there.changed[0][1] == rows(min(sides)[0], max(stop for _, stop in sides))


@pytest.mark.parametrize("extents", get_args(Extents))
@untimed
@given(buckets(), st.integers(0, 4))
def test_what_goes_further_stays_inside(
    extents: Extents, case: tuple[Graph, Bucket], count: int
) -> None:
    graph, bucket = case
    kind, origin = bucket.classify(graph, extents)
    found = kind.further(origin, count)
    assert found is not None or count
    if found is not None:
        assert fits(graph, kind.bucket(found))
        assert kind.bucket(found).sizes == bucket.sizes or extents == "onwards"
    assert fits(graph, kind.bucket(kind.farthest))


def test_a_row_further_is_as_large_where_it_fits() -> None:
    kind, origin = Bucket.of({"x": rows(4, 6)}, {}).classify(graph_of((1, 8), (1,)), "sized")
    assert [kind.further(origin, count) for count in range(4)] == [(4, 2), (5, 2), (6, 2), None]


def test_what_nobody_asks_for_has_a_size_that_it_can_have() -> None:
    """One that ends beyond its dimension once pointed tensors at memory of others."""
    graph, asked = graph_of((1, 40), (1, 9)), {"y": rows(2, 4)}
    kind = Bucket.of({"x": rows(3, 5)}, asked).classify(graph, "sized").kind
    for run in (Bucket.of({"x": rows(7, 9)}, {}), Bucket.of({}, asked), Bucket.of({}, {})):
        between = kind.around(run)
        assert between is not None
        assert all(fits(graph, kind.bucket(origin)) for origin in between)
        assert run.is_within(kind.bucket(between[1]))


def test_a_size_that_one_of_its_boxes_cannot_have_is_none() -> None:
    graph = graph_of((1, 40), (1, 9))
    kind = Bucket.of({"x": rows(3, 5)}, {"y": rows(3, 5)}).classify(graph, "sized").kind
    assert kind.around(Bucket.of({"x": rows(5, 9)}, {})) == ((5, 4), (5, 4))
    assert kind.around(Bucket.of({"x": rows(5, 10)}, {})) is None


def appended(at: int) -> Bucket:
    row = Region((Box(((0, 1), (at, at + 1))),))
    return Bucket.of({"x": row}, {"y": row})


def test_appending_is_one_class_at_all_positions() -> None:
    graph = graph_of((1, 9), (1, 5))
    kinds = {appended(at).classify(graph) for at in range(5)}
    assert {kind for kind, _ in kinds} == {
        BucketClass((("x", (((None, 1), (0, 1)),)),), (("y", (((None, 1), (0, 1)),)),), (4,))
    }
    assert {origin for _, origin in kinds} == {(at,) for at in range(5)}
    kind = appended(3).classify(graph)[0]
    assert str(kind) == "x[:, u0:+1] → y[:, u0:+1]"
    assert kind.corners((3,)) == [(3,), (0,), (4,)]


def test_two_positions_are_two_symbols() -> None:
    graph = graph_of((9,), (9,))
    bucket = Bucket.of({"x": Region((Box(((2, 4),)),))}, {"y": Region((Box(((5, 6),)),))})
    kind, origin = bucket.classify(graph)
    assert str(kind) == "x[u0:+2] → y[u1:+1]"
    assert (origin, kind.bounds) == ((2, 5), (7, 8))
    assert kind.corners(origin) == [(2, 5), (0, 0), (7, 8), (0, 8)]
    assert str(Bucket.of({}, {}).classify(graph)[0]) == "nothing → nothing"


# --- rounding -----------------------------------------------------------------------------------


@untimed
@given(st.data(), masks())
def test_rounding_covers_and_stays_inside(data: st.DataObject, mask: Mask) -> None:
    words = st.sampled_from(["exact", "pow2", "full"])
    how = data.draw(words | st.tuples(*[words] * mask.ndim))
    region = boxes_of(mask)
    rounded = BucketSpace({"x": how}).round("x", region, mask.shape)
    assert Region.full(mask.shape).contains(rounded)
    assert rounded.contains(region)
    assert canonical(rounded)
    per_axis = [how] * mask.ndim if isinstance(how, str) else how
    cells = [_cells(size, word) for size, word in zip(mask.shape, per_axis, strict=True)]
    expected = np.zeros(mask.shape, bool)
    for box in region:
        snug = [_snuggest(a, b, cell) for (a, b), cell in zip(box, cells, strict=True)]
        expected[tuple(slice(a, b) for a, b in snug)] = True
    assert (mask_of(rounded, mask.shape) == expected).all()


def _cells(size: int, word: str) -> list[tuple[int, int]]:
    """Every interval that a word allows, brute force."""
    if word == "exact":
        return [(a, b) for a in range(size) for b in range(a + 1, size + 1)]
    widths = [2**k for k in range(6)] if word == "pow2" else [size]
    return [(a, min(a + w, size)) for w in widths for a in range(0, size, w)]


def _snuggest(start: int, stop: int, cells: list[tuple[int, int]]) -> tuple[int, int]:
    return min((b - a, a, b) for a, b in cells if a <= start and stop <= b)[1:]


@example(0, 1, 1)
@example(7, 9, 16)
@given(st.integers(0, 99), st.integers(1, 100), st.integers(1, 100))
def test_pow2_gives_few_classes(start: int, stop: int, size: int) -> None:
    assume(start < stop <= size)
    space = BucketSpace({"x": "pow2"})
    ((first, last),) = space.round("x", Region((Box(((start, stop),)),)), (size,)).boxes[0]
    width = 1 << (last - first - 1).bit_length()
    assert first % width == 0
    assert last == min(first + width, size)


def test_other_inputs_stay_exact() -> None:
    region = Region((Box(((3, 4),)),))
    assert BucketSpace({"x": "full"}).round("y", region, (9,)) == region
    assert BucketSpace({}).round("x", EMPTY, (9,)) == EMPTY


def test_bad_roundings_are_named() -> None:
    region = Region((Box(((3, 4), (0, 1))),))
    with pytest.raises(GraphError, match="x has 2 dimensions, its rounding names 1"):
        BucketSpace({"x": ["full"]}).round("x", region, (9, 2))
    with pytest.raises(GraphError, match="x='tiles' is not known; use one of exact, pow2, full"):
        BucketSpace({"x": "tiles"})  # type: ignore[dict-item]
    with pytest.raises(GraphError, match="z='pow3' is not known"):
        BucketSpace({"z": ["full", "pow3"]})  # type: ignore[list-item]


def test_half_way_all_goes_on_together_as_large_as_it_is() -> None:
    row, block = ("x", (((0, 1),),)), ("x", (((0, SIZED),),))
    looked_at = ("y", (((1, 1),),))
    both = BucketClass((row,), (looked_at,), (9, 9))
    assert [both.half_way(at) for at in ((1, 0), (4, 7), (9, 9))] == [(5, 4), (5, 8), None]
    sized = BucketClass((block,), (("y", (((0, SIZED),),)),), (9, 10))
    assert [sized.half_way(at) for at in ((0, 4), (2, 8))] == [(3, 4), None]
    assert BucketClass((("x", (((None, 10),),)),), (), ()).half_way(()) is None


def test_elsewhere_is_far_from_where_one_is() -> None:
    graph = graph_of((9,), (9,))
    row, last = Region((Box(((2, 3),)),)), Region((Box(((8, 9),)),))
    kind, origin = Bucket.of({"x": row}, {"y": last}).classify(graph)
    assert (origin, kind.elsewhere(origin)) == ((2, 8), (4, 4))
    assert kind.elsewhere((4, 5)) == (2, 2)


def test_buckets_and_classes_are_found_again_in_another_process() -> None:
    """Names have other hashes there."""
    g = GraphBuilder()
    g.output("y", g.input("x", (4,)) * 2.0)
    bucket = Bucket.of({"x": Region((Box(((1, 2),)),))}, {"y": Region.full((4,))})
    found = bucket, bucket.classify(g.build()).kind
    assert {found} == {pickle.loads(pickle.dumps(found))}
    code = (
        "import pickle, sys\n"
        "from tgbench.runs.buckets import Bucket, BucketClass\n"
        "bucket, kind = pickle.load(sys.stdin.buffer)\n"
        "assert bucket in {Bucket(bucket.changed, bucket.demand)}\n"
        "assert kind in {BucketClass(kind.changed, kind.demand, kind.bounds)}\n"
    )
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        given = pickle.dumps(found)
        subprocess.run([sys.executable, "-c", code], input=given, check=True, env=environment)


def test_a_bucket_is_of_the_class_that_its_own_classifier_says() -> None:
    """One of another graph, with the same names, finds another class in the same bucket."""

    def classifier(rows: int) -> Classifier:
        g = GraphBuilder()
        g.output("y", ops.relu(g.input("x", (rows, 3))))
        return Classifier(g.build(), Allowance())

    few, many = classifier(4), classifier(5)
    parts = (("x", Region.of(Box(((0, 4), (0, 3))))),), (("y", Region.of(Box(((2, 3), (0, 3))))),)
    bucket = few.bucket(*parts)
    assert few.bucket(*parts) is bucket
    for one in (few, many, few):
        for extents in get_args(Extents):
            assert one.spot(bucket, extents) == bucket.classify(one.graph, extents)
    assert few.spot(bucket) is few.spot(bucket)
    graph = weakref.ref(few.graph)
    del few, one  # a trace has the bucket still
    gc.collect()
    assert graph() is None
    assert bucket.spot is not None
