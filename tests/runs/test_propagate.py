"""Runs decided by propagation: exactly what is computed, and that it is enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import GOLDEN
from strategies import (
    Memory,
    boxes,
    changes,
    demands,
    edited,
    frozen_nodes,
    graphs,
    maker,
    mask_of,
    storages,
    view_bases,
)

import tgbench.graph.ops as ops
import tgbench.runs.propagate as propagate
from tgbench.base.coords import Domain, origin_symbol, record
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.reference import evaluate
from tgbench.runs.propagate import Propagator, Step, Storage, covered, rough_ns
from tgbench.runs.rules import Rules

# --- two attention layers, written out in atomic ops: the listings --------------------------------


def attention_layers(tokens: int, window: int = 0, layers: int = 2, width: int = 16) -> Graph:
    """ids → embedding → `layers` × (x + softmax(mask(q·kᵀ))·v·wo) → logits, one head."""
    g = GraphBuilder()
    mask = np.tril(np.ones((tokens, tokens), dtype=bool))
    if window:
        mask &= ~np.tril(np.ones_like(mask), -window)
    seen = g.constant(mask)
    x = ops.embedding(g.parameter("E", (50, width)), g.input("ids", (tokens,), "int64"))
    for i in range(layers):
        with g.scope(f"layer{i}"):
            q, k, v, o = (g.parameter(f"w{n}{i}", (width, width)) for n in "qkvo")
            queries, keys, values = (g.name(x @ w, n) for w, n in ((q, "q"), (k, "k"), (v, "v")))
            scores = g.name((queries @ keys.transpose()) * 0.25, "scores")
            masked = g.name(ops.where(seen, scores, -np.inf), "masked")
            weights = ops.exp(masked - ops.max_(masked, -1, keepdims=True))
            weights = g.name(weights / ops.sum_(weights, -1, keepdims=True), "weights")
            context = g.name(weights @ values, "context")
            x = g.name(x + context @ o, "x")
    g.output("logits", ops.linear(x, g.parameter("out", (50, width))))
    return g.build()


def everything(graph: Graph) -> Storage:
    """Views as views, every other node retained."""
    frozen = frozen_nodes(graph)
    views = view_bases(graph, frozen)
    stored = {node for node in graph.nodes if not node.is_leaf} - set(views) - frozen
    return Storage(views, frozen, frozenset(stored))


def rows(start: Any, stop: Any, width: int | None = None) -> Region:
    return Region.of(Box(((start, stop),) if width is None else ((start, stop), (0, width))))


def listing(step: Step) -> str:
    return "".join(f"{node.name} {region}\n" for node, region in step.compute.items())


def first_then(graph: Graph, first: Region, wanted: Region, edit: Region, then: Region) -> Step:
    """Run once from nothing for `wanted`, then with an edit for `then`; returns the second step."""
    decide = Propagator(graph, everything(graph), Rules())
    ids, logits = graph.inputs["ids"], graph.outputs["logits"]
    before = decide.step({}, {ids: first}, {logits: wanted})
    return decide.step(before.valid, {ids: edit}, {logits: then})


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("t", [1, 3, 6])
def test_append_computes_one_row(t: int, window: int) -> None:
    graph = attention_layers(7, window)
    step = first_then(graph, rows(0, 7), rows(t - 1, t, 50), rows(t, t + 1), rows(t, t + 1, 50))
    start = max(0, t - window + 1) if window else 0
    row = rows(t, t + 1, 16)
    expected = {
        "gather": row, "q": row, "k": row, "v": row, "context": row, "x": row,
        "scores": Region.of(Box(((t, t + 1), (start, t + 1)))),
        "masked": Region.of(Box(((t, t + 1), (start, t + 1)))),
        "weights": Region.of(Box(((t, t + 1), (start, t + 1)))),
        "max": Region.of(Box(((t, t + 1), (0, 1)))),
        "linear": rows(t, t + 1, 50),
    }  # fmt: skip
    for node, region in step.compute.items():
        name = node.name.split(".")[-1]
        if name in expected:
            assert region == expected[name], node.name
    assert [n.name for n in step.compute].count("layer1.scores") == 1
    assert step.unusable == ()


@pytest.mark.parametrize("window", [0, 3])
def test_golden_listings(window: int) -> None:
    graph = attention_layers(7, window)
    append = first_then(graph, rows(0, 7), rows(3, 4, 50), rows(4, 5), rows(4, 5, 50))
    edit = first_then(graph, rows(0, 7), rows(6, 7, 50), rows(2, 3), rows(6, 7, 50))
    text = f"append token 4\n{listing(append)}\nedit token 2 of 7\n{listing(edit)}"
    golden = GOLDEN / f"attention_window_{window}.txt"
    assert text == golden.read_text()


def test_nothing_changed_computes_nothing() -> None:
    graph = attention_layers(7)
    step = first_then(graph, rows(0, 7), rows(6, 7, 50), EMPTY, rows(6, 7, 50))
    assert dict(step.compute) == {}
    assert list(step.reused) == [graph.outputs["logits"]]


def test_stale_is_remembered() -> None:
    """An edit that no demand asks for is computed when one does."""
    graph = attention_layers(7)
    decide = Propagator(graph, everything(graph), Rules())
    ids, logits = graph.inputs["ids"], graph.outputs["logits"]
    first = decide.step({}, {ids: rows(0, 7)}, {logits: rows(0, 7, 50)})
    unseen = decide.step(first.valid, {ids: rows(5, 6)}, {logits: rows(2, 3, 50)})
    assert dict(unseen.compute) == {}
    later = decide.step(unseen.valid, {}, {logits: rows(5, 6, 50)})
    assert later.compute[graph.node("gather")] == rows(5, 6, 16)
    assert later.compute[logits] == rows(5, 6, 50)


def test_an_overlapping_write_makes_a_cached_value_unusable() -> None:
    """a and c share bytes; b needs a after c is computed, so a cached a does not help."""
    g = GraphBuilder()
    x, y = g.input("x", (4,)), g.input("y", (4,))
    a = g.name(x + x, "a")
    b = g.name(a * 3.0, "b")
    c = g.name(y + y, "c")
    d = g.name(c + b, "d")
    g.output("d", d)
    graph = g.build()
    schedule = [a, c, b, d]
    storage = Storage(overlaps={a: (c,), c: (a,), b: (), d: ()})
    decide = Propagator(graph, storage, Rules(), schedule)
    valid = {a: rows(0, 4)}
    step = decide.step(valid, {y: rows(0, 4)}, {d: rows(0, 4)})
    assert step.unusable == (a,)
    assert a in step.compute
    assert a not in step.valid  # c was written after it


# --- random graphs, random runs -------------------------------------------------------------------


def check_run(
    memory: Memory, decide: Propagator, valid: Any, changed: Any, demand: Any, values: Any
) -> Step:
    """Decide, execute on poisoned memory, compare what was asked for, bit for bit."""
    step = decide.step(valid, changed, demand)
    memory.load(values)
    memory.run(step)
    graph = decide.graph
    expected = evaluate(graph, values, [n.name for n in graph.nodes if not n.is_leaf])
    for node, region in demand.items():
        mask = mask_of(region, node.shape)
        found = memory.read(node)
        assert np.array_equal(found[mask], expected[node.name][mask], equal_nan=True), node
    for node, region in step.valid.items():
        mask = mask_of(region, node.shape)
        found = memory.read(node)
        assert np.array_equal(found[mask], expected[node.name][mask], equal_nan=True), node
    return step


def check_runs(graph: Graph, make: Any, data: st.DataObject, most: int) -> None:
    """Everything, then up to so many edits and looks, over a random storage."""
    storage = data.draw(storages(graph))
    decide = Propagator(graph, storage, Rules())
    memory = Memory(graph, storage)
    values = make(0)
    changed = {node: Region.full(node.shape) for node in graph.inputs.values()}
    step = check_run(memory, decide, {}, changed, data.draw(demands(graph)), values)
    for run in range(1, data.draw(st.integers(1, most)) + 1):
        change = data.draw(changes(graph))
        values = edited(values, change, make(run))
        moved = {graph.inputs[name]: region for name, region in change.items()}
        demand = data.draw(demands(graph))
        step = check_run(memory, decide, step.valid, moved, demand, values)


@given(st.data())
def test_random_runs_equal_full_recomputation(data: st.DataObject) -> None:
    check_runs(*data.draw(graphs()), data, most=4)


@st.composite
def recurrent(draw: Any) -> tuple[Graph, Any]:
    """Two layers whose rows go on from those before, and what is done in between."""
    g = GraphBuilder()
    steps, samples, units = draw(st.tuples(*(st.integers(1, most) for most in (5, 3, 2))))
    x, weights = g.input("x", (steps, samples, units)), g.parameter("w", (units, units))
    bias, first = g.parameter("b", (units,)), g.input("s", (1, samples, units))

    is_linear = draw(st.booleans())

    def layer(gates: Node) -> Node:
        if is_linear:
            return ops.linear_recurrence(weights[:1], gates, first)
        return g.apply("rnn", gates, weights, bias, first, activation="relu")

    rows = layer(x)
    between = draw(st.sampled_from([rows, rows * 2.0, ops.flip(rows, 0), rows - x]))
    g.output("y", layer(between))
    if draw(st.booleans()):
        g.output("rows", rows)
    graph = g.build()
    return graph, maker(graph, {})


@given(st.data())
def test_rows_that_go_on_equal_full_recomputation(data: st.DataObject) -> None:
    check_runs(*data.draw(recurrent()), data, most=5)


def test_rows_go_on_where_one_is_there_and_begin_where_none_is() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (9, 1, 2)), g.parameter("w", (2, 2))
    bias, first = g.parameter("b", (2,)), g.parameter("s", (1, 1, 2))
    y = g.apply("rnn", x, w, bias, first, activation="relu")
    g.output("y", y)
    graph = g.build()

    def rows(start: int, stop: int) -> Region:
        return Region.of(Box(((start, stop), (0, 1), (0, 2))))

    def computed(valid: Region, changed: Region, asked: Region, *kept: Node) -> Region | None:
        decide = Propagator(graph, Storage(retained=frozenset(kept)), Rules())
        return decide.step({y: valid}, {x: changed}, {y: asked}).compute.get(y)

    whole = rows(0, 9)
    assert computed(whole, rows(4, 5), whole, y) == rows(4, 9)
    assert computed(whole, rows(4, 5), rows(4, 6), y) == rows(4, 6)
    assert computed(whole, rows(4, 5), rows(2, 3), y) is None
    assert computed(whole, rows(4, 5), rows(7, 8), y) == rows(4, 8), "what lies between is stale"
    assert computed(rows(3, 4), rows(4, 5), rows(4, 6), y) == rows(4, 6), "one row is enough"
    assert computed(rows(2, 3), rows(4, 5), rows(4, 6), y) == rows(3, 6), "also one further back"
    two = rows(1, 2).union(rows(3, 4))
    assert computed(two, rows(6, 7), rows(6, 8), y) == rows(4, 8), "the last one of them"
    half = Region.of(Box(((3, 4), (0, 1), (0, 1))))
    assert computed(half, rows(4, 5), rows(4, 6), y) == rows(0, 6), "half a row is none"
    assert computed(whole, rows(0, 1), rows(0, 1), y) == rows(0, 1)
    assert computed(whole, rows(4, 5), whole) == whole, "nothing is kept"


@given(st.data())
def test_what_becomes_of_a_value_is_known_node_by_node(data: st.DataObject) -> None:
    """After other changes than a run was decided for, as long as it counts on nothing: what is said
    to be there is, bit for bit, and where nothing lies over a node, nothing more could be said.
    """
    graph, make = data.draw(graphs())
    storage = data.draw(storages(graph))
    decide, memory, values = Propagator(graph, storage, Rules()), Memory(graph, storage), make(0)
    full = {node: Region.full(node.shape) for node in graph.inputs.values()}
    before = check_run(memory, decide, {}, full, data.draw(demands(graph)), values)
    step = decide.step({}, full, data.draw(demands(graph)))
    change = data.draw(changes(graph))
    values = edited(values, change, make(1))
    dirty = decide.forward({graph.inputs[name]: region for name, region in change.items()})
    memory.load(values)
    memory.run(step)
    expected = evaluate(graph, values, [n.name for n in graph.nodes if not n.is_leaf])
    for node in storage.retained:
        there = before.valid.get(node, EMPTY)
        left = decide.fate(node, dirty.get(node, EMPTY), [step]).after(there)
        mask, found = mask_of(left, node.shape), memory.read(node)
        assert np.array_equal(found[mask], expected[node.name][mask], equal_nan=True), node
        if not storage.overlaps.get(node):
            clean = there.subtract(dirty.get(node, EMPTY))
            assert left == clean.union(step.compute.get(node, EMPTY)), node


def test_a_masked_softmax_row_is_one_box() -> None:
    """Fused softmax of a masked row: one box, gap included; of its input, only what is open."""
    g = GraphBuilder()
    mask = np.array([[1, 0, 0, 1, 0], [1, 1, 1, 1, 0]], dtype=bool)
    x = g.input("x", (2, 5))
    g.output("y", ops.softmax(ops.where(g.constant(mask), x, -np.inf)))
    graph = g.build()
    decide = Propagator(graph, Storage(), Rules())
    step = decide.step({}, {x: rows(0, 2, 5)}, {graph.outputs["y"]: rows(0, 1, 5)})
    y, line = graph.outputs["y"], Box(((0, 1), (0, 4)))
    opened = Region.of(Box(((0, 1), (0, 1))), Box(((0, 1), (3, 4))))
    assert step.compute[y] == Region.of(line)
    assert decide.rules.reads(y.call, line) == (line,)
    assert step.needed[graph.node("where")] == opened
    assert step.needed[x] == opened


# --- cost decides what is merged, and only that ---------------------------------------------------


@given(st.data())
def test_covering_keeps_every_element_and_touches_no_valid_one(data: st.DataObject) -> None:
    g = GraphBuilder()
    shape = (6, 6)
    node = g.input("x", shape) + 1.0
    found = data.draw(st.lists(boxes(shape), min_size=1, max_size=4))
    keep = Region.of(*data.draw(st.lists(boxes(shape), max_size=2)))
    region = Region.of(*found).subtract(keep)
    if region.is_empty:
        return
    wide = covered(node.call, region, keep)
    assert wide.contains(region)
    assert not wide.intersects(keep)
    assert len(wide) <= len(region)


def layer(rows: int, width: int) -> Node:
    g = GraphBuilder()
    return ops.linear(g.input("x", (rows, width)), g.parameter("w", (width, width)))


@given(st.tuples(st.integers(0, 254), st.integers(1, 255)), st.integers(0, 255))
@settings(max_examples=60)
def test_what_is_joined_pays_wherever_it_serves(first: tuple[int, int], other: int) -> None:
    """Two rows that lie near at one place are far apart at another one."""
    node, rows = layer(256, 64), sorted({*first})
    if len(rows) < 2:
        return
    u = [origin_symbol(i) for i in range(2)]
    with record(rows) as guards:
        found = covered(node.call, Region(tuple(Box(((i, i + 1), (0, 64))) for i in u)), EMPTY)
    served = Domain(guards)
    assert served.holds(rows)
    for at in ([a, other] for a in range(other) if served.holds([a, other])):
        apart = [Box(((row, row + 1), (0, 64))) for row in at]
        least = min(
            sum(rough_ns(node.call, one) for one in some)
            for some in (apart, [apart[0].hull(apart[1])])
        )
        assert sum(rough_ns(node.call, box) for box in found.at(at)) <= 2 * least


def test_only_what_is_multiplied_by_is_read_whole() -> None:
    g = GraphBuilder()
    x = g.input("x", (512, 64))
    product = ops.linear(x, g.parameter("w", (64, 64)))
    for node, read in ((ops.relu(x), ()), (ops.softmax(x), ()), (product, (1,))):
        assert node.call.op.streams(node.call) == read


# --- coordinates that move ------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [False, True])
@given(data=st.data())
@settings(max_examples=40)
def test_a_step_holds_at_every_origin_its_guards_allow(merge: bool, data: st.DataObject) -> None:
    """Two runs on moving coordinates equal the same runs on numbers, wherever the guards hold.

    Merging by cost looks at most sizes without guards, so with it on, the moved step is executed
    and checked for what it promises rather than compared.
    """
    graph, make = data.draw(graphs(most_ops=8))
    inputs = [node for node in graph.inputs.values() if node.rank]
    outputs = [node for node in graph.outputs.values() if node.rank]
    if not inputs or not outputs:
        return
    storage = data.draw(storages(graph))
    x, y = data.draw(st.sampled_from(inputs)), data.draw(st.sampled_from(outputs))
    seed = data.draw(st.integers(0, 99))

    def two_steps(u: Any) -> tuple[Step, Step]:
        rng = np.random.default_rng(seed)
        decide = Propagator(graph, storage, Rules())
        full = {node: Region.full(node.shape) for node in graph.inputs.values()}
        first = decide.step({}, full, {y: slab(rng, y, u)})
        return first, decide.step(first.valid, {x: slab(rng, x, u)}, {y: slab(rng, y, u)})

    def slab(rng: np.random.Generator, node: Node, u: Any) -> Region:
        axis = int(rng.integers(node.rank))
        others = [(0, size) for size in node.shape]
        others[axis] = (u, u + 1)
        return Region.of(Box(others))

    with pytest.MonkeyPatch.context() as patch:
        if not merge:
            patch.setattr(propagate, "covered", lambda call, region, keep: region)
        most = min(min(x.shape), min(y.shape))
        present = data.draw(st.integers(0, most - 1))
        with record([present]) as guards:
            templates = two_steps(origin_symbol(0))
        assert Domain(guards).holds([present])
        for origin in range(most):
            if not Domain(guards).holds([origin]):
                continue
            moved = [_at(step, origin) for step in templates]
            if merge:
                _execute(graph, storage, make, moved, x, y)
            else:
                for here, direct in zip(moved, two_steps(origin), strict=True):
                    assert here.compute == direct.compute
                    assert here.needed == direct.needed
                    assert here.valid == direct.valid


def _at(step: Step, origin: int) -> Step:
    def placed(regions: Any) -> dict[Node, Region]:
        return {node: region.at([origin]) for node, region in regions.items()}

    return Step(
        placed(step.dirty), placed(step.needed), placed(step.compute), placed(step.reused),
        placed(step.valid), step.unusable,
    )  # fmt: skip


def _execute(
    graph: Graph, storage: Storage, make: Any, steps: list[Step], x: Node, y: Node
) -> None:
    memory = Memory(graph, storage)
    values = make(0)
    for run, step in enumerate(steps):
        if run:
            values = edited(values, {x.name: step.dirty[x]}, make(run))
        memory.load(values)
        memory.run(step)
        expected = evaluate(graph, values, [y.name])[y.name]
        mask = mask_of(step.needed[y], y.shape)
        assert np.array_equal(memory.read(y)[mask], expected[mask], equal_nan=True)


def test_decode_rows_share_one_template() -> None:
    """The step for token 3, decided once on moving coordinates, is the step for token 4."""
    graph = attention_layers(7)
    ids, logits = graph.inputs["ids"], graph.outputs["logits"]
    decide = Propagator(graph, everything(graph), Rules())
    full = {node: Region.full(node.shape) for node in decide.schedule}
    valid = {node: region for node, region in full.items() if node not in decide.storage.views}
    u = origin_symbol(0)
    with record([3]) as guards:
        template = decide.step(valid, {ids: rows(u, u + 1)}, {logits: rows(u, u + 1, 50)})
    assert Domain(guards).holds([4])
    direct = decide.step(valid, {ids: rows(4, 5)}, {logits: rows(4, 5, 50)})
    assert {n: r.at([4]) for n, r in template.compute.items()} == dict(direct.compute)


@given(st.data())
def test_what_nothing_valid_depends_on_decides_nothing(data: st.DataObject) -> None:
    graph, _ = data.draw(graphs())
    decide = Propagator(graph, data.draw(storages(graph)), Rules())
    full = {node: Region.full(node.shape) for node in graph.inputs.values()}
    before = decide.step({}, full, data.draw(demands(graph)))
    changed = {graph.inputs[name]: region for name, region in data.draw(changes(graph)).items()}
    felt, demand = decide.felt(changed, before.valid), data.draw(demands(graph))
    assert felt.items() <= changed.items()
    one, other = (decide.step(before.valid, those, demand) for those in (changed, felt))
    for name in ("needed", "compute", "reused", "valid", "unusable", "filled"):
        assert getattr(one, name) == getattr(other, name), name
    for node, there in before.valid.items():
        dirty = (step.dirty.get(node, EMPTY).intersect(there) for step in (one, other))
        assert there.subtract(next(dirty)) == there.subtract(next(dirty)), node


def test_an_append_is_one_decision_from_the_window_to_the_end() -> None:
    """How far a token reaches through windows, and where the text ends, is nothing to it."""
    tokens, window = 40, 4
    graph = attention_layers(tokens, window, layers=3)
    kept = [node for node in graph.nodes if node.name.split(".")[-1] in "kv"]
    storage = Storage(view_bases(graph, frozen_nodes(graph)), frozen_nodes(graph), frozenset(kept))
    decide = Propagator(graph, storage, Rules())
    ids, logits, u = graph.inputs["ids"], graph.outputs["logits"], origin_symbol(0)

    def right(feels: bool) -> list[int]:
        """Where the decision is right that is made at 10."""
        with record([10]) as guards:
            valid = {node: rows(0, u, 16) for node in kept}
            changed = {ids: rows(u, u + 1)}
            changed = dict(decide.felt(changed, valid)) if feels else changed
            step = decide.step(valid, changed, {logits: rows(u, u + 1, 50)})
        assert step.compute[kept[-1]] == rows(u, u + 1, 16)
        return [at for at in range(tokens) if Domain(guards).holds([at])]

    assert right(feels=True) == list(range(window - 1, tokens))
    assert right(feels=False)[-1] < tokens - window
