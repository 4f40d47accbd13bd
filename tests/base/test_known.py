"""Patterns of known elements against brute force, and their guards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array, boxes, mask_of, random_box, regions

from tgbench import ops
from tgbench.base import known
from tgbench.base.coords import Domain, at, origin_symbol, record
from tgbench.base.known import ConstantData, Fact, SparsityPattern, constant_fact, pattern_fact
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.reference import evaluate

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


def tensor_of(name: str) -> tuple[Array, SparsityPattern]:
    mask = MASKS[name]
    full = np.broadcast_to(mask, SHAPES.get(name, mask.shape))
    return full, SparsityPattern.of(mask)


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
    pattern = SparsityPattern.of(np.arange(9) % 2 == 0)
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
    with record([present]) as guards:
        answer = ask(origin_symbol(0))
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
    with record([4]) as guards:
        u = origin_symbol(0)
        pattern.trim(Region.of(Box(((u, u + 1), (0, T)))))
    assert sum(Domain(guards).holds([i]) for i in range(T)) >= 2


def test_patterns_compare_by_content_in_narrowest_form() -> None:
    wide, narrow = tensor_of("padded")[1], tensor_of("padded narrow")[1]
    assert wide == narrow
    assert hash(wide) == hash(narrow)
    assert wide.array.shape == (1, T)
    assert wide != tensor_of("causal")[1]
    assert SparsityPattern.of(np.ones((2, 3), dtype=bool)).is_all_open


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
    soft = Fact(-1e30, fact.open, hard=False)
    assert not soft.closes_with(-1e30)
    assert soft.is_mask
    assert Fact(-np.inf, fact.open).is_mask
    assert not fact.is_mask
    whole = constant_fact(ConstantData(np.arange(3)))
    assert not whole.open.array.any()


# --- what rules claim, against what NumPy computes ------------------------------------------------


def _masked_graph(rng: np.random.Generator) -> GraphBuilder:
    """A few ops one after the other, masks and zeros among them."""
    g = GraphBuilder()
    nodes = [g.input("x", (3, 4)), g.input("y", (3, 4)), g.input("z", (1, 4))]

    def flags() -> Array:
        found = rng.random((3, 4)[int(rng.integers(2)) :]) < 0.6
        return found if rng.integers(3) else found & (np.arange(found.shape[-1]) > 1)

    def pick() -> Node:
        return nodes[int(rng.integers(max(0, len(nodes) - 4), len(nodes)))]

    def masked(x: Node) -> Node:
        value = rng.choice([-np.inf, -1e30, -3.4e38])
        return x + g.constant(np.where(flags(), 0, value).astype(np.float32))

    def chosen(x: Node) -> Node:
        other = [pick(), 0.0, -np.inf, -1e30, np.inf][int(rng.integers(5))]
        return ops.where(g.constant(flags()), x, other)

    def unary(x: Node) -> Node:
        return g.apply(str(rng.choice(UNARY)), x)

    def binary(x: Node) -> Node:
        return g.apply(str(rng.choice(BINARY)), *((x, pick()) if rng.integers(2) else (pick(), x)))

    def by_constant(x: Node) -> Node:
        numbers = g.constant(rng.choice([0, 1, 1, 2, 0.25, -1, 1e30], (1, 4)).astype(np.float32))
        return g.apply(str(rng.choice(["add", "sub", "mul", "div"])), x, numbers)

    def reduced(x: Node) -> Node:
        axis = int(rng.integers(2))
        return g.apply(
            str(rng.choice(["max", "min", "sum", "mean"])), x, axes=(axis,), keepdims=True
        )

    def shifted(x: Node) -> Node:
        return x - ops.max_(x, int(rng.integers(2)), keepdims=True)

    def shared(x: Node) -> Node:
        return x / ops.sum_(x, int(rng.integers(2)), keepdims=True)

    def moved(x: Node) -> Node:
        kind, size = int(rng.integers(4)), x.shape[-1]
        if kind == 0:
            return ops.concat([x, pick().expand(3, 4)[: x.shape[0]]], -1)[:, -size:]
        if kind == 1:
            return ops.pad(x, (0, 1), (0, 0), float(rng.choice([0, -np.inf, -1e30])))[:, :size]
        return x[::-1] if kind == 2 else x.reshape(*x.shape[::-1]).reshape(*x.shape)

    makers = [masked, chosen, unary, binary, by_constant, reduced, shifted, shared, moved, ops.exp]
    for _ in range(8):
        nodes.append(makers[int(rng.integers(len(makers)))](pick()))
    g.output("out", nodes[-1])
    for i, node in enumerate(nodes[3:-1]):
        g.output(f"n{i}", node + 0.0)
    return g


UNARY = ("neg", "abs", "sign", "exp", "sqrt", "reciprocal", "rsqrt", "log", "tanh", "cos", "floor")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "arctan2", "mod", "floordiv")
NUMBERS = np.array([0.0, -0.0, 1, -1, 2, -3, 40, -40], np.float32)


def _is_out_of_bounds(values: Array, fact: Fact | None) -> bool:
    """Whether what nothing is known of is infinite, or as huge as a mask, all the same."""
    if fact is not None and (fact.wild or fact.constant is not None):
        return bool(np.isnan(values).any())
    unknown = values if fact is None else values[np.broadcast_to(fact.open.array, values.shape)]
    return not bool((abs(unknown) < 1e20).all())


@pytest.mark.parametrize("seed", range(200))
def test_what_rules_claim_is_so(seed: int) -> None:
    """Of numbers and signed zeros; a mask is at least half of what it is claimed to be.

    What infinities make of it that come of numbers (1/0, overflows) is out of bounds (note 0010).
    """
    rng = np.random.default_rng(seed)
    graph = _masked_graph(rng).build()
    nodes = [node for node in graph.nodes if not node.is_leaf]
    for _ in range(3):
        given = {name: rng.choice(NUMBERS, node.shape) for name, node in graph.inputs.items()}
        with np.errstate(all="ignore"):
            found = evaluate(graph, given, [node.name for node in nodes])
        for node in nodes:
            values, fact = found[node.name], node.call.fact
            if fact is not None and fact.value is not None:
                closed = values[~np.broadcast_to(fact.open.array, node.shape)]
                assert (closed == fact.value if fact.hard else closed <= fact.value / 2).all()
            if _is_out_of_bounds(values, fact):
                break
