"""Region rules that are derived: masks through attention, softmax, norms; memory of answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from strategies import Array, garbage, mask_of, random_box

import tgbench.graph.ops as ops
from tgbench.base.coords import Domain, origin_symbol, record
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.reference import evaluate
from tgbench.runs.rules import Rules

T, S, D = 6, 6, 2
_I, _J = np.indices((T, S))
_rng = np.random.default_rng(3)
OPEN: dict[str, Array] = {
    "causal": _J <= _I,
    "window": (_J <= _I) & (_I - _J < 3),
    "encoder window": abs(_I - _J) < 2,
    "padded": np.broadcast_to(_J < 4, (T, S)),
    "padding with a hole": np.broadcast_to((_J < 2) | (_J == 4), (T, S)),
    "blocks": _I // 2 == _J // 2,
    "random": (_rng.integers(0, 3, (T, S)) == 0) | (_I == _J),
    "open": np.ones((T, S), dtype=bool),
}  # fmt: skip


def as_bool(is_open: Array) -> Array:
    return is_open


def added(value: float) -> Callable[[Array], Array]:
    return lambda is_open: np.where(is_open, 0, value).astype(np.float32)


KINDS: dict[str, Callable[[Array], Array]] = {
    "bool": as_bool,
    "-inf": added(-np.inf),
    "finfo.min": added(float(np.finfo(np.float32).min)),
}


def fused(mask: Array | None, heads: int = 1, shared: int = 1) -> Graph:
    g = GraphBuilder()
    q = g.input("q", (1, heads, T, D))
    k, v = g.input("k", (1, shared, S, D)), g.input("v", (1, shared, S, D))
    g.output("out", ops.attention(q, k, v, None if mask is None else g.constant(mask)))
    return g.build()


def atomic(mask: Array) -> Graph:
    """The same, written out: every op of it stands in the graph."""
    g = GraphBuilder()
    q = g.input("q", (1, 1, T, D))
    k, v = g.input("k", (1, 1, S, D)), g.input("v", (1, 1, S, D))
    scores = (q @ k.transpose()) * D**-0.5
    seen = g.constant(mask)
    scores = ops.where(seen, scores, -np.inf) if mask.dtype == bool else scores + seen
    g.output("out", ops.softmax(scores) @ v)
    return g.build()


def rows_of(region: Region, length: int) -> list[int]:
    """Which indices of dimension 2 a region touches."""
    return sorted({i for box in region for i in range(*box[2])} & set(range(length)))


def slab(shape: tuple[int, ...], start: int, stop: int, heads: tuple[int, int] = (0, 1)) -> Region:
    return Region.of(Box(((0, 1), heads, (start, stop), (0, shape[-1]))))


def backward(graph: Graph, wanted: Region) -> dict[str, Region]:
    """What of each input a part of the output needs, through every node."""
    rules, needed = Rules(), {graph.outputs["out"]: wanted}
    for node in reversed(graph.nodes):
        if not node.is_leaf and node in needed:
            for parent, part in zip(
                node.inputs, rules.needed(node.call, needed[node]), strict=True
            ):
                needed[parent] = needed.get(parent, EMPTY).union(part)
    return {name: needed.get(node, EMPTY) for name, node in graph.inputs.items()}


def forward(graph: Graph, edit: dict[str, Region]) -> Region:
    rules = Rules()
    dirty: dict[Node, Region] = {graph.inputs[name]: part for name, part in edit.items()}
    for node in graph.nodes:
        if not node.is_leaf:
            parents = tuple(dirty.get(parent, EMPTY) for parent in node.inputs)
            dirty[node] = rules.dirty(node.call, parents)
    return dirty[graph.outputs["out"]]


ranges = [(a, b) for a in range(S) for b in range(a + 1, S + 1)]


@pytest.mark.parametrize("build", [fused, atomic])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPEN)
def test_dirty_rows_are_those_whose_support_meets_the_edit(
    name: str, kind: str, build: Callable[[Array], Graph]
) -> None:
    """K or V rows C change: the output rows {i : S(i) ∩ C ≠ ∅} do."""
    is_open = OPEN[name]
    graph = build(KINDS[kind](is_open))
    for start, stop in ranges:
        expected = [i for i in range(T) if is_open[i, start:stop].any()]
        for changed in ("k", "v"):
            found = forward(graph, {changed: slab((D,), start, stop)})
            assert rows_of(found, T) == expected, (changed, start, stop)
    assert rows_of(forward(graph, {"q": slab((D,), 2, 4)}), T) == [2, 3]


@pytest.mark.parametrize("build", [fused, atomic])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPEN)
def test_needed_rows_are_the_union_of_supports(
    name: str, kind: str, build: Callable[[Array], Graph]
) -> None:
    """Output rows R need the K and V rows ∪ S(i)."""
    is_open = OPEN[name]
    graph = build(KINDS[kind](is_open))
    for start, stop in ranges:
        needed = backward(graph, slab((D,), start, stop))
        expected = [j for j in range(S) if is_open[start:stop, j].any()]
        for asked in ("k", "v"):
            assert rows_of(needed[asked], S) == expected, (asked, start, stop)
        assert rows_of(needed["q"], T) == list(range(start, stop))


@pytest.mark.parametrize("build", [fused, atomic])
def test_a_mask_that_does_not_underflow_hides_nothing(build: Callable[[Array], Graph]) -> None:
    """−10,000 is finite enough to matter: e.g. float16 masks of old checkpoints."""
    graph = build(added(-1e4)(OPEN["causal"]))
    assert rows_of(forward(graph, {"k": slab((D,), 5, 6)}), T) == list(range(T))
    assert rows_of(backward(graph, slab((D,), 0, 1))["v"], S) == list(range(S))


@pytest.mark.parametrize("build", [fused, atomic])
def test_a_row_masked_whole_by_a_finite_number_sees_everything(
    build: Callable[[Array], Graph],
) -> None:
    is_open = OPEN["causal"].copy()
    is_open[2] = False
    graph = build(added(float(np.finfo(np.float32).min))(is_open))
    for j in range(S):
        expected = [i for i in range(T) if i == 2 or is_open[i, j]]
        assert rows_of(forward(graph, {"k": slab((D,), j, j + 1)}), T) == expected
    assert rows_of(backward(graph, slab((D,), 2, 3))["k"], S) == list(range(S))
    assert rows_of(backward(graph, slab((D,), 1, 2))["k"], S) == [0, 1]


def test_heads_that_share_keys_change_together() -> None:
    graph = fused(OPEN["causal"], heads=4, shared=2)
    second = Region.of(Box(((0, 1), (1, 2), (3, 4), (0, D))))
    assert forward(graph, {"k": second}) == Region.of(Box(((0, 1), (2, 4), (3, T), (0, D))))
    needed = backward(graph, Region.of(Box(((0, 1), (1, 2), (2, 3), (0, D)))))
    assert needed["v"] == Region.of(Box(((0, 1), (0, 1), (0, 3), (0, D))))


def test_masks_of_each_batch_are_kept_apart() -> None:
    """Right padding: batch 0 has 2 tokens, batch 1 has 5."""
    g = GraphBuilder()
    is_open = np.arange(S) < np.array([2, 5])[:, None]
    q, k, v = (g.input(n, (2, 1, S, D)) for n in "qkv")
    g.output("out", ops.attention(q, k, v, g.constant(is_open[:, None, None])))
    graph = g.build()
    for batch, length in ((0, 2), (1, 5)):
        for j in range(S):
            edit = Region.of(Box(((batch, batch + 1), (0, 1), (j, j + 1), (0, D))))
            found = forward(graph, {"k": edit})
            hit = Region.of(Box(((batch, batch + 1), (0, 1), (0, S), (0, D))))
            assert found == (hit if j < length else EMPTY)


@pytest.mark.parametrize("kind", [*KINDS, "-1e4", "none"])
@pytest.mark.parametrize("name", OPEN)
def test_rules_are_sound_on_numbers(name: str, kind: str) -> None:
    """Edits move nothing outside the dirty region; garbage outside the needed one does no harm."""
    make = {**KINDS, "-1e4": added(-1e4)}
    graph = fused(None if kind == "none" else make[kind](OPEN[name]), heads=2, shared=1)
    out = graph.outputs["out"]
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=node.shape).astype(np.float32) for n, node in graph.inputs.items()}
    before = evaluate(graph, values)["out"]
    for _ in range(12):
        edit = {n: Region.of(random_box(rng, node.shape)) for n, node in graph.inputs.items()}
        edit[["q", "k", "v"][rng.integers(3)]] = EMPTY
        noise = {n: garbage(rng, v.shape, "float32") * np.float32(1e-3) for n, v in values.items()}
        after = evaluate(
            graph,
            {n: np.where(mask_of(edit[n], v.shape), noise[n], v) for n, v in values.items()},
        )["out"]
        assert not ((before != after) & ~mask_of(forward(graph, edit), out.shape)).any()
        wanted = Region.of(random_box(rng, out.shape))
        keep = backward(graph, wanted)
        spoiled = {n: np.where(mask_of(keep[n], v.shape), v, noise[n]) for n, v in values.items()}
        after = evaluate(graph, spoiled)["out"]
        assert np.array_equal(after[mask_of(wanted, out.shape)], before[mask_of(wanted, out.shape)])


def test_softmax_of_masked_scores_is_known_zero() -> None:
    g = GraphBuilder()
    weights = ops.softmax(ops.where(g.constant(OPEN["causal"]), g.input("x", (T, S)), -np.inf))
    fact = weights.call.fact
    assert fact is not None
    assert fact.value == 0
    assert np.array_equal(fact.open.array, OPEN["causal"])


def test_bfloat16_masks_are_understood() -> None:
    """bfloat16 scalars are cast constants; they mask as their float32 originals do."""
    g = GraphBuilder()
    x = g.input("x", (T, S), "bfloat16")
    masked = ops.where(g.constant(OPEN["causal"]), x, -np.inf)
    soft = x + g.constant(added(-3e38)(OPEN["causal"])).cast("bfloat16")
    for node in (ops.softmax(masked), ops.softmax(soft)):
        assert node.call.fact is not None
        assert np.array_equal(node.call.fact.open.array, OPEN["causal"])


def test_norms_work_on_whole_rows() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (4, 6)), g.parameter("w", (6,))
    call = ops.rms_norm(x, w).call
    cell = Region.of(Box(((1, 2), (3, 4))))
    assert Rules().dirty(call, (cell, EMPTY)) == Region.of(Box(((1, 2), (0, 6))))
    assert Rules().needed(call, cell) == (
        Region.of(Box(((1, 2), (0, 6)))),
        Region.of(Box(((3, 4),))),
    )
    assert Rules().dirty(call, (EMPTY, Region.of(Box(((2, 3),))))) == Region.of(
        Box(((0, 4), (2, 3)))
    )


def test_zeros_are_part_of_a_norm() -> None:
    """The mean counts them, so a norm of a padded row is never cut to the open columns."""
    g = GraphBuilder()
    x = ops.pad(g.input("x", (4, 3)), (0, 2), (0, 1))
    call = ops.rms_norm(x, g.parameter("w", (6,))).call
    row = Region.of(Box(((1, 2), (0, 6))))
    assert Rules().dirty(call, (Region.of(Box(((1, 2), (2, 3)))), EMPTY)) == row


def test_a_mean_reads_its_zeros_and_a_sum_does_not() -> None:
    """A kernel divides by the length of what it reads, so a mean's line is never cut."""
    g = GraphBuilder()
    x = ops.pad(g.input("x", (4, 3)), (0, 2), (0, 1))
    row, rules = Box(((1, 2),)), Rules()
    assert rules.reads(ops.mean(x, 1).call, row) == (Box(((1, 2), (0, 6))),)
    assert rules.reads(ops.sum_(x, 1).call, row) == (Box(((1, 2), (2, 5))),)


# --- memory ---------------------------------------------------------------------------------------


def test_answers_are_remembered_for_equal_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder()
    a, b = g.input("a", (4, 4)), g.input("b", (4, 4))
    first, second = ops.softmax(a), ops.softmax(b)
    assert first.call is second.call
    rules, asked = Rules(), []
    find = rules._find_dirty
    monkeypatch.setattr(rules, "_find_dirty", lambda *args: (asked.append(args), find(*args))[1])
    row = (Region.of(Box(((1, 2), (0, 1)))),)
    assert rules.dirty(first.call, row) == rules.dirty(second.call, row)
    assert sum(args[0] is first.call for args in asked) == 1
    assert rules.dirty(first.call, (EMPTY,)) == EMPTY


def test_a_remembered_answer_brings_its_guards() -> None:
    graph = fused(OPEN["window"])
    call, rules = graph.outputs["out"].call, Rules()
    u = origin_symbol(0)
    row = Region.of(Box(((0, 1), (0, 1), (u, u + 1), (0, D))))
    with record([3]) as first:
        answer = rules.needed(call, row)
    with record([3]) as again:
        assert rules.needed(call, row) == answer
    assert first
    assert first == again
    for i in range(T):
        if Domain(first).holds([i]):
            direct = Rules().needed(call, row.at([i]))
            assert tuple(part.at([i]) for part in answer) == direct
    assert Domain(first).holds([4])
