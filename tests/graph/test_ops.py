"""Every op: its reference, its shape, its checks; and its region rules against probing.

Probing: change one input element, run the reference, see which outputs move. What moves over many
tries is what depends. Where a rule is tight it equals that; everywhere it contains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from op_cases import CASES, OpCase
from strategies import Array, closed_of, garbage, mask_of, random_box

import tgbench.graph.ops as ops
import tgbench.graph.ops.layout as layout
from tgbench.base.errors import GraphError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import GraphBuilder, fact_of
from tgbench.graph.op_table import OPS, numpy_dtype
from tgbench.graph.ops.layout import MOST_RUNS
from tgbench.graph.reference import evaluate
from tgbench.runs.rules import Rules

TAKING = [name for name, case in CASES.items() if case.node.inputs]
each = pytest.mark.parametrize("name", TAKING)
ROUNDS = 10
RULES = Rules()
SHIPPED = set(OPS)  # examples in the documentation register more


def test_every_op_has_a_case() -> None:
    assert {case.node.op for case in CASES.values()} == SHIPPED


@pytest.mark.parametrize("name", CASES)
def test_reference_has_the_inferred_type(name: str) -> None:
    case = CASES[name]
    result = case.run(case.inputs(np.random.default_rng(0)))
    assert result.shape == case.node.shape
    assert result.dtype == numpy_dtype(case.node.dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.independent])
def test_reference_against_another_library(name: str) -> None:
    case = CASES[name]
    assert case.independent is not None
    for seed in range(5):
        arrays = case.inputs(np.random.default_rng(seed))
        expected = np.asarray(case.independent(case.call.attrs, *arrays))
        found = case.run(arrays)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.call.op.is_fused])
def test_decomposition_computes_the_same(name: str) -> None:
    case = CASES[name]
    g = GraphBuilder()
    arrays = case.inputs(np.random.default_rng(0))
    inputs = [g.input(f"in{i}", t.shape, t.dtype) for i, t in enumerate(case.call.inputs)]
    assert case.call.op.decompose is not None
    g.output("out", case.call.op.decompose(case.call.attrs, *inputs))
    found = evaluate(g.build(), {n.name: a for n, a in zip(inputs, arrays, strict=True)})["out"]
    np.testing.assert_allclose(found, case.run(arrays), rtol=1e-5, atol=1e-6)


# --- facts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_what_is_known_is_so(name: str) -> None:
    case = CASES[name]
    fact = fact_of(case.node)
    if fact is None or not fact.hard or (fact.value is None and fact.constant is None):
        return
    for seed in range(5):
        result = case.run(case.inputs(np.random.default_rng(seed)))
        if fact.constant is not None:
            assert np.array_equal(result, fact.constant.array)
            continue
        closed = closed_of(fact, result.shape)
        assert closed.any()
        assert (result[closed] == fact.value).all()


def test_facts_that_matter_are_found() -> None:
    """Known elements of the ops that masks go through, by how many are known."""
    known = {
        name: int(closed_of(case.call.fact, case.node.shape).sum())
        for name, case in CASES.items()
        if name.endswith("band")
    }
    for name in ("exp of −inf", "tanh of 0", "mul by 0", "mul by mask", "div 0", "add −inf",
                 "softmax of −inf", "reshape of 0", "permute of 0", "cast of 0"):  # fmt: skip
        assert known[f"{name} band"] == 6, name
    assert closed_of(CASES["all zeros"].call.fact, (4, 2)).all()
    assert closed_of(CASES["sum of 0 gaps"].call.fact, (4,)).sum() == 0
    assert closed_of(CASES["pad"].call.fact, (3, 5)).sum() == 9


# --- probing --------------------------------------------------------------------------------------


def changed(before: Array, after: Array) -> Array:
    """Which elements differ; two NaNs do not."""
    differ = before != after
    if np.issubdtype(before.dtype, np.floating):
        differ &= ~(np.isnan(before) & np.isnan(after))
    return np.asarray(differ)


def free_elements(case: OpCase, i: int) -> Array:
    """The elements of an input that can vary: not known, not constant."""
    fact = fact_of(case.node.inputs[i])
    shape = case.call.inputs[i].shape
    if fact is not None and fact.constant is not None:
        return np.zeros(shape, dtype=bool)
    return ~closed_of(fact, shape)


def replacements(case: OpCase, array: Array, rng: np.random.Generator) -> list[Any]:
    if array.dtype == bool:
        return [False, True]
    if case.below and np.issubdtype(array.dtype, np.integer):
        return list(range(case.below))
    if case.low > 0:
        return [case.low, case.high, int(rng.integers(case.low, 3 * case.high))]
    return [900, -900, 0.25, *range(case.low, case.high)]


@cache
def dependencies(name: str) -> list[Array]:
    """Per input: out.size × in.size booleans, whether that output can move with that input."""
    case = CASES[name]
    tries = 60 if case.below else 6 if sum(t.elements for t in case.call.inputs) < 60 else 2
    found = [np.zeros((case.node.type.elements, t.elements), dtype=bool) for t in case.call.inputs]
    for seed in range(tries):
        rng = np.random.default_rng(seed)
        arrays = case.inputs(rng)
        before = case.run(arrays)
        for i, array in enumerate(arrays):
            for e in np.flatnonzero(free_elements(case, i)):
                for value in replacements(case, array, rng):
                    altered = array.copy()
                    altered.flat[e] = value
                    after = case.run([*arrays[:i], altered, *arrays[i + 1 :]])
                    found[i][:, e] |= changed(before, after).ravel()
    return found


def rounds(name: str) -> Iterator[tuple[OpCase, np.random.Generator]]:
    """The case, with a generator of its own for every round."""
    for seed in range(ROUNDS):
        yield CASES[name], np.random.default_rng(seed)


def random_region(rng: np.random.Generator, shape: Sequence[int]) -> Region:
    return Region.of(*(random_box(rng, shape) for _ in range(int(rng.integers(0, 3)))))


@each
def test_dirty_contains_what_moves_and_is_tight(name: str) -> None:
    depends = dependencies(name)
    for case, rng in rounds(name):
        shape, parts = case.node.shape, []
        expected = np.zeros(shape, dtype=bool)
        for i, type_ in enumerate(case.call.inputs):
            free = free_elements(case, i)
            use = free.any() and rng.integers(2)
            parts.append(Region.of(random_box(rng, type_.shape)) if use else EMPTY)
            moved = mask_of(parts[i], type_.shape) & free
            expected |= depends[i][:, moved.ravel()].any(axis=1).reshape(shape)
        found = mask_of(RULES.dirty(case.call, tuple(parts)), shape)
        assert not (expected & ~found).any(), parts
        if case.exact:
            assert np.array_equal(found, expected), parts


@each
def test_needed_contains_what_matters_and_is_tight(name: str) -> None:
    depends = dependencies(name)
    for case, rng in rounds(name):
        shape = case.node.shape
        box = random_box(rng, shape)
        inside = mask_of(Region((box,)), shape) & ~closed_of(case.call.fact, shape)
        found = RULES.needed(case.call, Region((box,)))
        for i, (part, type_) in enumerate(zip(found, case.call.inputs, strict=True)):
            expected = depends[i][inside.ravel()].any(axis=0).reshape(type_.shape)
            mask = mask_of(part, type_.shape)
            assert not (expected & ~mask).any(), box
            if case.exact and free_elements(case, i).all():
                assert np.array_equal(mask, expected), box


@each
def test_several_edits_at_once(name: str) -> None:
    """Random regions of every input change together; only dirty outputs move."""
    for case, rng in rounds(name):
        arrays, fresh = case.inputs(rng), case.inputs(rng)
        parts = tuple(random_region(rng, t.shape) for t in case.call.inputs)
        altered = [
            np.where(mask_of(part, old.shape), new, old)
            for part, old, new in zip(parts, arrays, fresh, strict=True)
        ]
        moved = changed(case.run(arrays), case.run(altered))
        dirty = mask_of(RULES.dirty(case.call, parts), case.node.shape)
        assert not (moved & ~dirty).any(), parts


@each
def test_garbage_outside_the_needed_region_is_harmless(name: str) -> None:
    """Bit for bit; what is known holds its value, all else that is not needed holds garbage."""
    for case, rng in rounds(name):
        arrays = case.inputs(rng)
        region = random_region(rng, case.node.shape)
        spoiled = []
        for i, part in enumerate(RULES.needed(case.call, region)):
            keep = mask_of(part, arrays[i].shape) | ~free_elements(case, i)
            noise = garbage(rng, arrays[i].shape, case.call.inputs[i].dtype)
            spoiled.append(np.where(keep, arrays[i], noise.astype(arrays[i].dtype)))
        asked = mask_of(region, case.node.shape) & ~closed_of(case.call.fact, case.node.shape)
        assert not (changed(case.run(arrays), case.run(spoiled)) & asked).any(), region


@each
def test_reads_cover_what_is_needed(name: str) -> None:
    for case, rng in rounds(name):
        box = random_box(rng, case.node.shape)
        needed = RULES.needed_beside(case.call, Region((box,)))
        reads = RULES.reads(case.call, box)
        for i, (part, read) in enumerate(zip(needed, reads, strict=True)):
            assert read is not None or (part.is_empty and i not in case.call.op.aligned)
            if read is not None:
                assert Region((read,)).contains(part)
                assert Region.full(case.call.inputs[i].shape).contains(Region((read,)))


LINES = ("sum", "mean", "max", "min", "prod", "matmul", "softmax")


@pytest.mark.parametrize("name", [n for n in TAKING if CASES[n].node.op in LINES])
def test_a_kernel_that_sees_only_what_it_reads_is_right(name: str) -> None:
    """Known elements that are not the op's identity (the 0 of a max) have to be in the read."""
    for case, rng in rounds(name):
        arrays = case.inputs(rng)
        box = random_box(rng, case.node.shape)
        if case.node.op == "softmax":  # always whole lines
            axis = case.call.attrs["axis"]
            box = Box([*box[:axis], (0, case.node.shape[axis]), *box[axis + 1 :]])
        reads, parts = RULES.reads(case.call, box), RULES.needed(case.call, Region((box,)))
        if any(read is None for read in reads):
            assert closed_of(case.call.fact, case.node.shape)[box.slices()].all()
            continue
        seen = []
        for i, (array, read, part) in enumerate(zip(arrays, reads, parts, strict=True)):
            keep = mask_of(part, array.shape) | ~free_elements(case, i)
            noise = garbage(rng, array.shape, case.call.inputs[i].dtype)
            seen.append(np.where(keep, array, noise.astype(array.dtype))[read.slices()])
        with np.errstate(all="ignore"):
            whole, found = case.run(arrays), case.call.op.reference(case.call.attrs, *seen)
        assert np.array_equal(found, whole[box.slices()], equal_nan=True), box


@pytest.mark.parametrize("name", TAKING)
def test_everything_dirty_is_everything_open(name: str) -> None:
    """Shape inference and the rule are one function: full inputs give the full output."""
    case = CASES[name]
    full = tuple(Region.full(t.shape) for t in case.call.inputs)
    found = mask_of(RULES.dirty(case.call, full), case.node.shape)
    assert (found | closed_of(case.call.fact, case.node.shape)).all()


def test_regions_that_cut_into_too_many_pieces_are_covered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reshape and strided slices fall back to a hull; still sound, and never more than one box."""
    assert MOST_RUNS >= 16
    monkeypatch.setattr(layout, "MOST_RUNS", 2)
    g = GraphBuilder()
    x = g.input("x", (4, 5))
    flat, strided = x.reshape(20).call, x[:, ::2].call
    rules = Rules()
    column = Region.of(Box(((0, 4), (1, 2))))
    assert rules.dirty(flat, (column,)) == Region.of(Box(((1, 17),)))
    assert rules.needed(strided, Region.full((4, 3))) == (Region.full((4, 5)),)
    monkeypatch.setattr(layout, "MOST_RUNS", 4)
    assert len(Rules().dirty(flat, (column,))) == 4
    assert len(Rules().needed(strided, Region.full((4, 3)))[0]) == 12 // 4


# --- checks ---------------------------------------------------------------------------------------

X = ("x", (2, 3), "float32")
STEPS = [("x", (4, 1, 6), "float32"), ("w", (6, 6), "float32"), ("b", (6,), "float32"),
         ("s", (1, 1, 6), "float32")]  # fmt: skip
BAD: dict[str, list[tuple[str, list[tuple[Any, ...]], dict[str, Any]]]] = {
    "arity": [
        *[(op, [X], {}) for op in ("add", "matmul", "where", "gather", "linear", "rms_norm")],
        *[(op, [X, X, X], {}) for op in ("exp", "neg", "relu", "silu", "softmax", "matmul")],
        ("sum", [X, X], {"axes": (0,), "keepdims": False}),
        ("reshape", [X, X], {"shape": (6,)}),
        ("permute", [], {"axes": ()}),
        ("expand", [X, X], {"shape": (2, 3)}),
        ("pad", [], {"low": (), "high": (), "value": 0.0}),
        ("slice", [X, X], {"starts": (0, 0), "stops": (2, 3), "steps": (1, 1)}),
        ("cast", [X, X], {"dtype": "int32"}),
        ("update", [X], {"start": (0, 0)}),
        ("concat", [], {"axis": 0}),
        ("iota", [X], {"shape": (2,), "axis": 0, "dtype": "int64"}),
        ("attention", [X, X], {"scale": 1.0}),
    ],
    "dtype": [
        ("add", [X, ("y", (2, 3), "int32")], {}),
        ("concat", [X, ("y", (2, 3), "int32")], {"axis": 0}),
        ("where", [X, X, X], {}),
        ("exp", [("y", (2,), "int32")], {}),
        ("linear_recurrence", [("y", (1, 2), "int32")] * 3, {}),
        ("neg", [("y", (2,), "bool")], {}),
        ("sum", [("y", (2,), "bool")], {"axes": (0,), "keepdims": False}),
        ("mean", [("y", (2,), "int32")], {"axes": (0,), "keepdims": False}),
        ("gather", [X, X], {"axis": 0}),
        ("cast", [X], {"dtype": "float8"}),
        ("pad", [("y", (2,), "int32")], {"low": (1,), "high": (0,), "value": 0.5}),
        ("pad", [("y", (2,), "int32")], {"low": (1,), "high": (0,), "value": -np.inf}),
        ("full", [], {"shape": (2,), "value": 1, "dtype": "int4"}),
        ("update", [X, ("y", (1, 1), "int32")], {"start": (0, 0)}),
    ],
    "shape": [
        ("lstm", STEPS, {}),
        ("gru", STEPS[:3], {}),
        ("rnn", [X, *STEPS[1:]], {"activation": "tanh"}),
        ("linear_recurrence", [X, X], {}),
        ("linear_recurrence", [X, X, X], {}),
        ("add", [X, ("y", (2,), "float32")], {}),
        ("matmul", [X, X], {}),
        ("matmul", [X, ("y", (3,), "float32")], {}),
        ("matmul", [("a", (2, 2, 3), "float32"), ("b", (3, 3, 2), "float32")], {}),
        ("concat", [X, ("y", (2, 4), "float32")], {"axis": 0}),
        ("concat", [X, X], {"axis": 2}),
        ("reshape", [X], {"shape": (5,)}),
        ("permute", [X], {"axes": (0, 0)}),
        ("expand", [X], {"shape": (4, 3)}),
        ("expand", [X], {"shape": (3,)}),
        ("slice", [X], {"starts": (0,), "stops": (1,), "steps": (1,)}),
        ("slice", [X], {"starts": (0, 0), "stops": (1, 4), "steps": (1, 1)}),
        ("slice", [X], {"starts": (1, 0), "stops": (1, 3), "steps": (1, 1)}),
        ("slice", [X], {"starts": (0, 0), "stops": (1, 3), "steps": (0, 1)}),
        ("pad", [X], {"low": (1,), "high": (0, 0), "value": 0.0}),
        ("pad", [X], {"low": (-1, 0), "high": (0, 0), "value": 0.0}),
        ("sum", [X], {"axes": (2,), "keepdims": False}),
        ("sum", [X], {"axes": (), "keepdims": False}),
        ("sum", [X], {"axes": (0, 0), "keepdims": False}),
        ("gather", [X, ("i", (2,), "int64")], {"axis": 2}),
        ("scatter", [X, ("i", (1,), "int64"), ("v", (1, 4), "float32")], {"axis": 0}),
        ("update", [X, ("v", (2, 3), "float32")], {"start": (1, 0)}),
        ("update", [X, ("v", (2,), "float32")], {"start": (0,)}),
        ("linear", [X, ("w", (4, 4), "float32")], {}),
        ("gated_linear", [X, ("a", (2, 3), "float32"), ("b", (4, 3), "float32")],
         {"activation": "silu"}),
        ("layer_norm", [X, ("w", (2,), "float32"), ("b", (3,), "float32")], {"eps": 1e-5}),
        ("rope", [X, X, X], {}),
        ("attention", [X, X, X], {"scale": 1.0}),
        ("attention", [("q", (1, 3, 2, 2), "float32"), *[("k", (1, 2, 2, 2), "float32")] * 2],
         {"scale": 1.0}),
    ],
    "attribute": [
        ("rnn", STEPS, {"activation": "gelu"}),
        ("gelu", [X], {"approximate": "sigmoid"}),
        ("gated_linear", [X, X, X], {"activation": "swish"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [row for rows in BAD.values() for row in rows],
    ids=[f"{kind}-{row[0]}-{i}" for kind, rows in BAD.items() for i, row in enumerate(rows)],
)
def test_bad_types_are_graph_errors(op: str, inputs: Any, attrs: Any) -> None:
    g = GraphBuilder()
    nodes = [g.input(f"{name}{shape}{dtype}", shape, dtype) for name, shape, dtype in inputs]
    with pytest.raises(GraphError):
        g.apply(op, *nodes, **attrs)


def test_helpers_refuse_with_the_mend() -> None:
    g = GraphBuilder()
    x = g.input("x", (4,))
    with pytest.raises(GraphError, match="sum to 3"):
        ops.split(x, [1, 2])
    with pytest.raises(GraphError, match="at least one node"):
        ops.concat([])
    with pytest.raises(GraphError, match="matrix"):
        ops.tril(x)
