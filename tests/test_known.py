"""Patterns of known elements against brute force, and their guards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array, boxes, mask_of, random_box, regions

from tgbench import known
from tgbench.coords import Domain, at, origin_symbol, record
from tgbench.known import ConstantData, Fact, Pattern, constant_fact, pattern_fact
from tgbench.regions import Box, Region

T = 7


def _masks() -> dict[str, Array]:
    i, j = np.indices((T, T))
    rng = np.random.default_rng(1)
    blocks = np.kron(np.eye(3, dtype=int), np.ones((2, 3), dtype=int)) > 0
    causal = j <= i
    return {
        "causal": causal,
        "strictly upper": j > i,
        "window": causal & (i - j < 3),
        "encoder window": abs(i - j) < 2,
        "padded": np.broadcast_to(j < 5, (T, T)),
        "padded narrow": (np.arange(T) < 5)[None],
        "rows": (np.arange(T) < 4)[:, None],
        "blocks": blocks,
        "random": rng.integers(0, 3, (T, T)) > 0,
        "sparse": rng.integers(0, 4, (T, T)) > 2,
        "line": rng.integers(0, 2, T) > 0,
        "line with a gap": np.array([1, 1, 0, 0, 1, 1, 0], dtype=bool),
        "volume": rng.integers(0, 3, (3, 4, 5)) > 0,
        "padded causal": causal[None] & (np.arange(T) < np.array([3, 7])[:, None])[:, None],
        "open": np.ones((3, 3), dtype=bool),
        "closed": np.zeros((3, 3), dtype=bool),
        "scalar": np.array(True),
    }


MASKS = _masks()
SHAPES = {
    "padded narrow": (T, T),
    "rows": (T, T),
}  # others: their own shape


def cases() -> Any:
    return pytest.mark.parametrize("name", MASKS)


def tensor_of(name: str) -> tuple[Array, Pattern]:
    mask = MASKS[name]
    full = np.broadcast_to(mask, SHAPES.get(name, mask.shape))
    return full, Pattern.of(mask)


@cases()
@given(data=st.data())
def test_support(name: str, data: st.DataObject) -> None:
    full, pattern = tensor_of(name)
    box = data.draw(boxes(full.shape))
    for axis in range(full.ndim):
        others = tuple(a for a in range(full.ndim) if a != axis)
        inside = np.zeros(full.shape, dtype=bool)
        inside[box.slices()] = full[box.slices()]
        expected = inside.any(axis=others)
        found = np.zeros(full.shape[axis], dtype=bool)
        intervals = pattern.support(box, axis)
        for start, stop in intervals:
            assert start < stop
            found[start:stop] = True
        assert np.array_equal(found, expected)
        assert intervals == sorted(intervals)


@cases()
@given(data=st.data())
def test_all_open(name: str, data: st.DataObject) -> None:
    full, pattern = tensor_of(name)
    box = data.draw(boxes(full.shape))
    assert pattern.all_open(box) == bool(full[box.slices()].all())


@cases()
@given(data=st.data())
def test_trim_keeps_what_is_open_and_no_closed_margin(name: str, data: st.DataObject) -> None:
    full, pattern = tensor_of(name)
    region = data.draw(regions(full.shape))
    trimmed = pattern.trim(region)
    before, after = mask_of(region, full.shape), mask_of(trimmed, full.shape)
    assert not (after & ~before).any()
    assert not (before & full & ~after).any()
    if len(region) == 1:
        for axis in range(full.ndim):  # every index left is open somewhere
            others = tuple(a for a in range(full.ndim) if a != axis)
            used = after.any(axis=others)
            assert np.array_equal(used, (before & full).any(axis=others))


@pytest.mark.parametrize("name", ["random", "sparse", "blocks", "causal", "line", "padded"])
@given(data=st.data())
def test_trim_of_one_row_or_column_is_exact(name: str, data: st.DataObject) -> None:
    full, pattern = tensor_of(name)
    box = list(data.draw(boxes(full.shape)))
    axis = data.draw(st.integers(0, full.ndim - 1))
    box[axis] = (box[axis][0], box[axis][0] + 1)
    if full.ndim == 1:
        box = list(data.draw(boxes(full.shape)))
    before = mask_of(Region((Box(box),)), full.shape)
    after = mask_of(pattern.trim(Region((Box(box),))), full.shape)
    assert np.array_equal(after, before & full)


def test_trim_gives_up_on_too_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = Pattern.of(np.arange(9) % 2 == 0)
    assert len(pattern.trim(Region.full((9,)))) == 5
    monkeypatch.setattr(known, "MOST_PIECES", 2)
    assert pattern.trim(Region.of(Box(((1, 8),)))) == Region.of(Box(((2, 7),)))


@cases()
@given(data=st.data())
def test_answers_hold_at_every_origin_the_guards_allow(name: str, data: st.DataObject) -> None:
    full, pattern = tensor_of(name)
    seed = data.draw(st.integers(0, 10**6))
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=full.ndim, max_size=full.ndim))
    grows = data.draw(st.booleans())

    def ask(u: Any) -> Any:
        rng = np.random.default_rng(seed)
        fixed = random_box(rng, full.shape)
        box = []
        for axis, interval in enumerate(fixed):
            kind = int(rng.integers(3))
            if kind == 0:
                box.append(interval)
            elif kind == 1 and grows:
                box.append((0, u + 1))
            else:
                box.append((u, u + lengths[axis]))
        if any(full.shape[axis] < b for axis, (_, b) in enumerate(box)):
            return None
        found = Box(box)
        return (
            [pattern.support(found, axis) for axis in range(full.ndim)],
            pattern.trim(Region((found,))),
            pattern.all_open(found),
        )

    present = data.draw(st.integers(0, T - 1))
    with record() as guards:
        answer = ask(origin_symbol(0, present))
    assert Domain(guards).holds([present])
    for origin in range(T):
        if not Domain(guards).holds([origin]):
            continue
        direct = ask(origin)
        if answer is None or direct is None:
            assert answer is direct
            continue
        supports, trimmed, is_open = answer
        moved = [[(at(a, [origin]), at(b, [origin])) for a, b in part] for part in supports]
        assert (moved, trimmed.at([origin]), is_open) == direct


@pytest.mark.parametrize("name", ["causal", "strictly upper", "window", "padded"])
def test_bands_keep_their_form(name: str) -> None:
    """A row of a band at a moving position is one answer for many positions."""
    _, pattern = tensor_of(name)
    with record() as guards:
        u = origin_symbol(0, 4)
        pattern.trim(Region.of(Box(((u, u + 1), (0, T)))))
    assert sum(Domain(guards).holds([i]) for i in range(T)) >= 2


def test_patterns_compare_by_content_in_narrowest_form() -> None:
    wide, narrow = tensor_of("padded")[1], tensor_of("padded narrow")[1]
    assert wide == narrow
    assert hash(wide) == hash(narrow)
    assert wide.array.shape == (1, T)
    assert wide != tensor_of("causal")[1]
    assert Pattern.of(np.ones((2, 3), dtype=bool)).is_all_open


def test_constant_data_compares_by_content() -> None:
    a, b = ConstantData(np.arange(6).reshape(2, 3)), ConstantData(np.arange(6).reshape(2, 3))
    assert a == b
    assert hash(a) == hash(b)
    for other in (np.arange(6), np.arange(6).reshape(2, 3).astype(np.int32)):
        assert a != ConstantData(other)
    assert ConstantData(np.array(3.0)).array.shape == ()
    with pytest.raises(ValueError, match="read-only"):
        a.array[0, 0] = 1


def test_facts() -> None:
    assert pattern_fact(0.0, np.ones((2, 2), dtype=bool)) is None
    fact = pattern_fact(0.0, np.eye(2, dtype=bool))
    assert fact is not None
    assert fact.closes_with(0.0)
    assert not fact.closes_with(1.0)
    soft = Fact(-np.inf, fact.open, hard=False)
    assert not soft.closes_with(-np.inf)
    assert soft.closes_with(-np.inf, hard=False)
    whole = constant_fact(ConstantData(np.arange(3)))
    assert not whole.open.array.any()
