"""Random graphs, budgets and histories: a session gives what full recomputation gives, bit for bit.

Every run is checked twice over (`session_cases`): the results against the references, and every
element that the session holds to be valid, asked for or not. Memory is poisoned before every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from session_cases import (
    HUGE,
    CheckedSession,
    PoisonedSession,
    Wrong,
    region_of,
    smallest_budget,
)
from strategies import Array, Maker, boxes, changes, edited, graphs

from tgbench import ops
from tgbench.base.errors import BudgetError, DemandError, PlanError, TraceError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import numpy_dtype
from tgbench.graph.reference import evaluate
from tgbench.kernels.registry import Unnamed
from tgbench.memory.arena import Arena
from tgbench.plans.plan import Plan
from tgbench.programs import specialiser
from tgbench.runs import rules
from tgbench.runs.buckets import BucketSpace
from tgbench.session.session import GraphSession

NANS = b"\xff"  # NaN in every float dtype, −1 in every integer one
Case = tuple[Graph, Maker]


def share_of_examples(part: int) -> settings:
    """Fewer examples than the profile's, for tests whose cases take long."""
    return settings(max_examples=max(settings().max_examples // part, 5))


# --- what may be asked, and in what order ---------------------------------------------------------


@st.composite
def wants(draw: Any, graph: Graph) -> Any:
    """None, or for some outputs a region, an index, or a list of indices."""
    if not draw(st.integers(0, 3)):
        return None
    names = st.lists(st.sampled_from(list(graph.outputs)), min_size=1, unique=True)
    return {name: draw(_indices(graph.outputs[name].shape)) for name in draw(names)}


@st.composite
def _indices(draw: Any, shape: tuple[int, ...]) -> Any:
    some = draw(st.lists(boxes(shape), min_size=1, max_size=2))
    kind = draw(st.sampled_from(["region", "slices", "list", "integers"]))
    if kind == "region":
        return Region.of(*some)
    if kind == "list":  # from the end, and of the first dimensions alone: NumPy's shorthand
        shown = draw(st.integers(0, len(shape)))
        return [
            tuple(int(start) - size for (start, _), size in zip(box, shape, strict=True))[:shown]
            for box in some
        ]
    if kind == "integers":
        return tuple(int(start) for start in some[0].starts)
    return some[0].slices()


@st.composite
def histories(draw: Any, graph: Graph, most: int = 6) -> list[tuple[Any, Any, str]]:
    """Runs: what changes (nothing: a repeat), what is asked for, how the session learns of it."""
    usual = draw(wants(graph))
    runs = []
    for _ in range(draw(st.integers(1, most))):
        change = draw(st.one_of(st.just({}), changes(graph)))
        want = draw(st.one_of(st.just(usual), wants(graph)))
        runs.append((change, want, draw(st.sampled_from(["compare", "hint", "partial"]))))
    return runs


def play(
    session: CheckedSession, make: Maker, history: list[tuple[Any, Any, str]]
) -> CheckedSession:
    """A history; where a run fits no budget the session says so, and goes on as before."""
    for i, (change, want, how) in enumerate(history):
        new = edited(session.values, change, make(i))
        given = {name: new[name] for name in session.graph.inputs}
        options: dict[str, Any] = {}
        if how == "hint":
            options = {"changed": change, "check": True}
        elif how == "partial" and i:
            given = {name: given[name] for name in change}
        try:
            session.run(given, want, **options)
        except BudgetError as error:
            if error.needed_bytes <= (session.session.budget_bytes or 0):
                raise Wrong("a budget that works is refused") from error
            if session.session.counters.runs == 0:
                return session
    return session


def most_plans(session: GraphSession) -> int:
    """A class is planned for when it comes and does not fit; never again and again."""
    return len(session.planning.classes) + 1


# --- the properties -------------------------------------------------------------------------------


@given(graphs(most_ops=8), st.data(), st.sampled_from([HUGE, NANS]), st.booleans())
def test_every_run_is_a_full_recomputation(
    case: Case, data: Any, poison: bytes, keep_all: bool
) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0), poison=poison, retain="all" if keep_all else "auto")
    play(session, make, data.draw(histories(graph)))
    assert session.session.counters.planned <= most_plans(session.session)


@share_of_examples(2)
@given(graphs(most_ops=8), st.data(), st.floats(0, 1))
def test_under_any_budget_too(case: Case, data: Any, share: float) -> None:
    graph, make = case
    history = data.draw(histories(graph))
    first = history[0][1]
    low = smallest_budget(graph, make(0), first)
    roomy = CheckedSession(graph, make(0))
    roomy.run(want=first)
    room = max(roomy.session.placement.size_bytes - low, 0)
    tight = CheckedSession(graph, make(0), memory=low + int(share * room))
    play(tight, make, history)
    assert tight.session.counters.runs, "the budget that the error names does not work"
    assert tight.session.placement.size_bytes <= low + int(share * room)
    assert tight.session.counters.planned <= most_plans(tight.session)


@given(graphs(most_ops=6), st.data(), st.sampled_from(["pow2", "full"]))
def test_rounding_changes_no_answer(case: Case, data: Any, rounding: Any) -> None:
    graph, make = case
    space = BucketSpace(dict.fromkeys(graph.inputs, rounding))
    play(CheckedSession(graph, make(0), buckets=space), make, data.draw(histories(graph)))


@given(graphs(most_ops=6), st.data(), st.integers(1, 3))
def test_regions_of_fewer_boxes_change_no_answer(case: Case, data: Any, most: int) -> None:
    graph, make = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "MOST_BOXES", most)
        play(CheckedSession(graph, make(0)), make, data.draw(histories(graph)))


def test_a_grid_that_a_change_reaches_is_a_few_boxes() -> None:
    """Every other row of what is multiplied with itself: a call for each of 1,326 boxes, else."""
    b = GraphBuilder()
    x = b.input("x", (101, 4))
    b.output("y", ops.maximum(x @ x.transpose(0, 1), 0.0) @ x)
    session = CheckedSession(b.build(), {"x": np.ones((101, 4), np.float32)})
    session.run()
    rows = [Box(((i, i + 1), (0, 4))) for i in range(0, 101, 2)]
    changed = {session.session.graph.inputs["x"]: Region.of(*rows)}
    dirty = session.session.planning.scheduled.propagator(rules.Rules(), ()).forward(changed)
    assert max(map(len, dirty.values())) <= rules.MOST_BOXES
    for _ in range(2):
        values = {"x": session.values["x"].copy()}
        values["x"][::2] += 1
        session.run(values)


@given(graphs(most_ops=6), st.data())
def test_a_tiny_program_store_evicts_and_changes_no_answer(case: Case, data: Any) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0), program_bytes=1)
    play(session, make, data.draw(histories(graph)) * 2)
    assert len(session.session.programs) <= 1


# --- masks ----------------------------------------------------------------------------------------

FULLY = 1  # a row that sees nothing


def shared(x: Node, form: str) -> Node:
    """A softmax over the last dimension, as one op or in small ones, or attention by it."""
    if form == "fused":
        return ops.softmax(x)
    weights = ops.exp(x - ops.max_(x, -1, keepdims=True))
    return weights / ops.sum_(weights, -1, keepdims=True)


def masked(form: str, value: float, dtype: str, seed: int) -> Graph:
    """Weights of scores under an additive mask, handed out, and what is made of them."""
    rng, g = np.random.default_rng(seed), GraphBuilder()
    is_open = rng.random((5, 6)) < 0.5
    is_open[:, 2] = True
    is_open[FULLY] = bool(np.isinf(value)) and is_open[FULLY]  # of −inf alone comes no number
    x, v = g.input("x", (5, 6), dtype), g.input("v", (6, 3), dtype)
    mask = g.constant(np.where(is_open, 0, value).astype(numpy_dtype(dtype))).cast(dtype)
    parts = [x * 0.5 + mask, x + mask] if seed % 2 else [x + mask]
    weights = shared(parts[0] + mask if seed % 3 else parts[0], form)
    g.output("weights", weights)
    g.output("mixed", weights @ v)
    g.output("greatest", ops.max_(parts[-1], -1))
    return g.build()


@pytest.mark.parametrize("form", ["fused", "atomic"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", -1e30),
        ("float32", -3.4028234663852886e38),
        ("float32", -np.inf),
        ("float64", -1e30),
        ("float16", -65504.0),
        ("bfloat16", -3.3895313892515355e38),
    ],
)
def test_masked_elements_stay_masked(form: str, dtype: str, value: float) -> None:
    tolerance = {"float16": 2e-2, "bfloat16": 5e-2}.get(dtype, 1e-5)
    for seed in range(3):
        graph, rng = masked(form, value, dtype, seed), np.random.default_rng(seed)
        session = PoisonedSession(graph)
        given = {n: rng.integers(-3, 8, m.shape).astype(numpy_dtype(dtype))
                 for n, m in graph.inputs.items()}  # fmt: skip
        for step in range(8):
            want = None if step % 3 else {"weights": np.s_[1:4, 1:5]}
            found, right = session.run(given, want), evaluate(graph, given)
            for name, part in found.items():
                expected = right[name] if want is None else right[name][want[name]]
                np.testing.assert_allclose(part, expected, rtol=tolerance, atol=tolerance)
            name = ("x", "x", "v")[step % 3]
            given = given | {name: given[name].copy()}
            row, column = (int(rng.integers(size)) for size in given[name].shape)
            given[name][row, : column + 1 : 2] = rng.integers(-3, 8)


def test_a_masked_element_is_put_there_masked() -> None:
    g = GraphBuilder()
    mask = g.constant(np.array([0, -1e30, 0], np.float32))
    g.output("y", ops.softmax(g.input("x", (3,)) + mask))
    session = GraphSession(g.build())
    for middle in (5, 6):
        found = session.run({"x": np.array([1, middle, 1], np.float32)})["y"]
    assert found.tolist() == [0.5, 0, 0.5]


# --- one class at many origins --------------------------------------------------------------------


def causal(rows: int = 12, window: int | None = None) -> Graph:
    """Two layers of what attention does, without the exp: exact on small integers."""
    g = GraphBuilder()
    x = g.input("x", (rows, 2))
    i, j = np.indices((rows, rows))
    mask = g.constant((j <= i) & (j > i - (window or rows)))
    for layer in range(2):
        w = g.parameter(f"w{layer}", (2, 2))
        k = g.name(x @ w, f"k{layer}")
        scores = ops.where(mask, x @ k.transpose(), 0.0)
        x = g.name(ops.minimum(ops.maximum(scores @ x, -3.0), 3.0), f"out{layer}")
    g.output("y", x)
    return g.build()


def causal_values(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    leaves = {**graph.inputs, **graph.parameters}
    return {n: rng.integers(-1, 2, node.shape).astype("float32") for n, node in leaves.items()}


@share_of_examples(4)
@given(
    st.sampled_from([None, 3]),
    st.sampled_from(["auto", "all"]),
    st.lists(
        st.tuples(st.sampled_from(["append", "append", "append", "edit", "repeat", "jump"]),
                  st.integers(0, 11)),
        min_size=3, max_size=12,
    ),
    st.floats(0, 1),
)  # fmt: skip
def test_a_moved_program_gives_what_a_fresh_one_gives(
    window: int | None, retain: str, steps: list[tuple[str, int]], share: float
) -> None:
    graph = causal(window=window)
    values = causal_values(graph, 0)
    low = smallest_budget(graph, values, {"y": np.s_[0]})
    roomy = CheckedSession(graph, values)
    roomy.run(want={"y": np.s_[0]})
    room = max(roomy.session.placement.size_bytes - low, 0)
    session = CheckedSession(graph, values, memory=low + int(share * room), retain=retain)
    at = 0
    for i, (kind, where) in enumerate([("append", 0), *steps]):
        fresh, x = causal_values(graph, i + 1)["x"], session.values["x"].copy()
        if kind == "append":
            at = (at + 1) % 12
            x[at] = fresh[at]
        elif kind == "edit":
            x[where % (at + 1)] = fresh[where % (at + 1)]
        elif kind == "jump":
            at = where
        with_room(session, {"x": x}, {"y": np.s_[at]})


def with_room(session: CheckedSession, inputs: Mapping[str, Array], want: Any) -> None:
    try:
        session.run(inputs, want)
    except BudgetError:
        assert session.session.counters.runs or session.session.retain == "all"


def test_appending_uses_one_program_for_all_positions() -> None:
    graph = causal(rows=40)
    session = CheckedSession(graph, causal_values(graph, 0))
    session.run(want={"y": np.s_[4]})
    moved = []
    for t in range(5, 40):
        x = session.values["x"].copy()
        x[t] = [2, -2]  # both numbers change
        session.run({"x": x}, {"y": np.s_[t]})
        moved.append(session.session.last.moved)  # type: ignore[union-attr]
    assert sum(moved) >= 30, moved
    assert session.session.counters.specialised <= 5
    assert session.session.counters.moved == sum(moved)


def test_programs_are_found_again_only_where_their_guards_hold() -> None:
    """Forward and back over the edges where a window fills and the text ends."""
    graph = causal(rows=16, window=4)
    session = CheckedSession(graph, causal_values(graph, 0))
    session.run(want={"y": np.s_[0]})
    order = [*range(16), *reversed(range(16)), *range(0, 16, 3), *range(15, -1, -5)]
    for i, t in enumerate(order):
        x = session.values["x"].copy()
        x[t] = causal_values(graph, i)["x"][t]
        session.run({"x": x}, {"y": np.s_[t]})


# --- runs in pieces -------------------------------------------------------------------------------


def deep(rows: int = 64) -> Graph:
    """Wide scratch per row, a narrow retained part: large runs are worth cutting."""
    g = GraphBuilder()
    x = g.input("x", (rows, 4))
    i, j = np.indices((rows, rows))
    mask = g.constant(j <= i)
    k = g.name(ops.minimum((x @ g.parameter("wk", (4, 16))).reshape(rows, 16), 3.0), "k")
    wide = g.name(ops.where(mask, k @ k.transpose(), 0.0), "wide")
    g.output("y", g.name(wide @ k, "mixed"))
    return g.build()


def test_a_tight_budget_cuts_large_runs() -> None:
    graph = deep()
    values = causal_values(graph, 0)
    want = {"y": np.s_[63]}
    roomy = CheckedSession(graph, values)
    roomy.run(want=want)
    low, most = smallest_budget(graph, values, want), roomy.session.placement.size_bytes
    assert low < most
    tight = CheckedSession(graph, values, memory=(low + 3 * most) // 4)  # less: nothing is retained
    tight.run(want=want)
    assert tight.session.plan.cut[2] > 1
    assert len(tight.session.last.program.steps) > 1  # type: ignore[union-attr]
    for t in (3, 62, 63):
        x = tight.values["x"].copy()
        x[t] = [1, 1, -1, 0]
        tight.run({"x": x}, want)


# --- plans that have to change --------------------------------------------------------------------


def test_a_run_that_does_not_fit_is_planned_for_once() -> None:
    graph = causal(rows=16)
    session = CheckedSession(graph, causal_values(graph, 0))
    session.run(want={"y": np.s_[3]})
    assert session.session.counters.planned == 1
    session.run(want=None)
    again = session.session.counters.planned
    assert again == 2
    for seed in range(3):
        session.run({"x": causal_values(graph, seed)["x"]})
        session.run({"x": causal_values(graph, seed)["x"]}, {"y": np.s_[seed]})
    assert session.session.counters.planned == again


def test_no_cut_is_tried_where_the_last_piece_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned for anew."""
    graph = deep()
    values = causal_values(graph, 0)
    session = CheckedSession(graph, values, memory="15KiB")
    session.run(want={"y": np.s_[3]})
    monkeypatch.setattr(specialiser, "cuts", lambda propagator: pytest.fail("cuts are tried"))
    session.run({"x": values["x"] + 1}, {"y": np.s_[32:64]})
    assert session.session.counters.planned == 2


def test_a_run_that_no_budget_allows_leaves_the_plan_as_it_was() -> None:
    g = GraphBuilder()
    x = g.input("x", (16,))
    g.output("small", x * 2.0)
    g.output("large", x.reshape(16, 1) * x)
    graph, values = g.build(), {"x": np.arange(16, dtype="float32")}
    want = {"small": np.s_[:]}
    session = CheckedSession(graph, values, memory=smallest_budget(graph, values, want))
    session.run(want=want)
    before = session.session.plan.to_json()
    for _ in range(2):
        with pytest.raises(BudgetError, match="mul_1 1 KiB"):
            session.run(want={"large": np.s_[:]})
        assert session.session.plan.to_json() == before
    session.run({"x": values["x"] + 1}, want)
    session.run({"x": values["x"]}, {"small": np.s_[3:5]})
    assert session.session.counters.planned == 1


def filters(channels: int, made: int, size: int) -> tuple[Graph, dict[str, Array]]:
    """A convolution of which kernels may want a part's operands copied, but not the whole's."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", (1, channels, 16))
    g.output("y", ops.conv(x, g.parameter("w", (made, channels, size)), padding=size // 2))
    graph = g.build()
    leaves = {**graph.inputs, **graph.parameters}
    return graph, {n: integers(rng, m.shape) for n, m in leaves.items()}


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("channels", "made", "size"), [(1, 4, 3), (4, 4, 3), (8, 2, 3), (8, 8, 1), (2, 6, 2)]
)
def test_a_part_of_a_demand_needs_no_more_memory_than_all_of_it(
    channels: int, made: int, size: int
) -> None:
    graph, values = filters(channels, made, size)
    budget = smallest_budget(graph, values, calibrate=False)
    session = CheckedSession(graph, values, memory=budget, calibrate=False)
    session.run()
    for part in (np.s_[..., 0:15], np.s_[..., 3:4], np.s_[:, 1:2, 2:7], np.s_[..., 1:16]):
        x = session.values["x"].copy()
        x[..., 4:6] += 1
        session.run({"x": x}, {"y": part})
        session.run({"x": x})
    assert session.session.placement.size_bytes <= budget


@pytest.mark.parametrize(("channels", "made", "size"), [(1, 4, 3), (8, 2, 3), (2, 6, 2)])
def test_what_fits_only_from_nothing_is_planned_for_once(
    channels: int, made: int, size: int
) -> None:
    """Wherever the change is, its run is computed afresh in the map that is there."""
    graph, values = filters(channels, made, size)
    budget = smallest_budget(graph, values, calibrate=False)
    session = CheckedSession(graph, values, memory=budget, calibrate=False)
    session.run()
    planned = []
    for at in range(1, 7):
        x = session.values["x"].copy()
        x[..., at] += 1
        session.run({"x": x}, {"y": np.s_[..., 0:15]})
        planned.append(session.session.counters.planned)
    assert len(set(planned)) == 1


@share_of_examples(4)
@given(graphs(most_ops=6), st.data())
def test_the_budget_that_is_named_serves_every_part_of_what_it_was_named_for(
    case: Case, data: Any
) -> None:
    graph, make = case
    want = data.draw(wants(graph))
    budget = smallest_budget(graph, make(0), want, calibrate=False)
    session = CheckedSession(graph, make(0), memory=budget, calibrate=False)
    session.run(want=want)
    for i in range(3):
        change = data.draw(changes(graph))
        asked = {name: data.draw(_parts_of(graph, want, name)) for name in want or graph.outputs}
        session.run(edited(session.values, change, make(i)), asked)


@st.composite
def _parts_of(draw: Any, graph: Graph, want: Any, name: str) -> Region:
    """A part of what is asked for of an output."""
    shape = graph.outputs[name].shape
    whole = Region.full(shape) if want is None else region_of(want[name], shape)
    return whole.intersect(Region((draw(boxes(shape)),))) or Region(whole.boxes[:1])


def test_a_plan_that_failed_leaves_the_session_as_it_was() -> None:
    """What was asked for in vain counts in no later plan."""
    g = GraphBuilder()
    x = g.input("x", (16,))
    g.output("small", x * 2.0)
    g.output("other", x + 1.0)
    g.output("large", x.reshape(16, 1) * x)
    graph, values = g.build(), {"x": np.arange(16, dtype="float32")}
    budget = smallest_budget(graph, values, {"small": ..., "other": ...})
    session = CheckedSession(graph, values, memory=budget)
    session.run(want={"small": ...})
    with pytest.raises(BudgetError):
        session.run(want={"large": ...})
    with pytest.raises(BudgetError):
        session.session.optimize("greedy", budget=1)
    session.run(want={"other": ...})  # there is no place for it yet
    assert session.session.counters.planned == 2


def test_optimize_plans_from_what_happened() -> None:
    graph = causal(rows=16)
    session = CheckedSession(graph, causal_values(graph, 0))
    for t in range(4, 9):
        x = session.values["x"].copy()
        x[t] = [1, -1]
        session.run({"x": x}, {"y": np.s_[t]})
    plan = session.session.optimize()
    assert any(bucket.weight > 1 for bucket in plan.buckets)
    session.run(want={"y": np.s_[8]})
    assert session.session.last.recomputed > 0  # type: ignore[union-attr]


def test_optimize_keeps_everything_of_what_happened_and_writes_that(tmp_path: Path) -> None:
    graph = causal(rows=8)
    values = causal_values(graph, 0)
    weights = {name: values[name] for name in graph.parameters}
    file, trace = tmp_path / "plan.json", tmp_path / "trace.jsonl"
    first = GraphSession(graph, weights, retain="all", memory=64, trace=trace)
    with pytest.raises(TraceError, match="empty"):
        first.optimize()
    with pytest.raises(PlanError, match="no runs"):
        first.plan_for([])
    first.budget_bytes = None
    first.run({name: values[name] for name in graph.inputs})
    first.trace.close()
    second = GraphSession(graph, weights, retain="all", plan=file, trace=trace)
    assert second.optimize().buckets
    assert Plan.load(file) == second.plan


def test_a_run_that_needs_a_plan_is_logged_as_it_came() -> None:
    """The plan moves what is held, so the run computes all of it; what changed is in the trace."""
    graph = causal(rows=16)
    session = CheckedSession(graph, causal_values(graph, 0))
    session.run(want={"y": np.s_[3]})
    x = session.values["x"].copy()
    x[5] += 1
    session.run({"x": x})
    assert session.session.counters.planned == 2
    last = session.session.trace.calls[-1].bucket
    assert dict(last.changed) == {"x": Region((Box(((5, 6), (0, x.shape[1]))),))}


# --- states ---------------------------------------------------------------------------------------


def stateful(seed: int) -> Graph:
    """An accumulator, a ring of the last values, a swap, a clock that changes by itself."""
    g = GraphBuilder()
    x = g.input("x", (4,))
    total, ring = g.state("total", (4,)), g.state("ring", (3, 4))
    a, b, clock = g.state("a", (4,)), g.state("b", (4,)), g.state("clock", ())
    g.update(total, total + x)
    g.update(ring, ops.concat([ring[1:], x.reshape(1, 4)], 0))
    pairs = [(a, b), (b, ops.maximum(a, x))]
    for state, value in pairs if seed % 2 else reversed(pairs):
        g.update(state, value)
    g.update(clock, clock + 1.0)
    g.output("mean", ops.sum_(ring, (0,)) + total)
    g.output("seen", a - b + clock)
    return g.build()


def simulate(states: dict[str, Any], x: Array) -> dict[str, Array]:
    """One run in plain Python: the outputs, and the states moved on."""
    out = {
        "mean": states["ring"].sum(0) + states["total"],
        "seen": states["a"] - states["b"] + states["clock"],
    }
    a, b = states["a"], states["b"]
    states |= {
        "total": states["total"] + x,
        "ring": np.concatenate([states["ring"][1:], x[None]]),
        "a": b,
        "b": np.maximum(a, x),
        "clock": states["clock"] + 1,
    }
    return out


@given(
    st.integers(0, 1),
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, 3), st.sampled_from(["mean", "seen", None])),
        min_size=1, max_size=8,
    ),
)  # fmt: skip
def test_states_follow_a_plain_simulation(seed: int, edits: list[tuple[int, int, Any]]) -> None:
    session = CheckedSession(stateful(seed), {"x": np.zeros(4, "float32")})
    states: dict[str, Any] = {name: np.zeros(4) for name in ("total", "a", "b")}
    states |= {"ring": np.zeros((3, 4)), "clock": np.zeros(())}
    for value, at, name in edits:
        x = session.values["x"].copy()
        x[at] = value
        expected = simulate(states, x)
        want = None if name is None else {name: np.s_[1:3]}
        found = session.run({"x": x}, want)
        for output, numbers in found.items():
            right = expected[output] if name is None else expected[output][1:3]
            assert np.array_equal(numbers, right), output


def test_states_outlive_a_new_plan() -> None:
    session = CheckedSession(stateful(0), {"x": np.ones(4, "float32")})
    for want in ({"seen": np.s_[0]}, {"seen": np.s_[:]}, None, {"mean": np.s_[3]}):
        session.run(want=want)
    assert session.session.counters.planned > 1
    session.session.optimize()
    session.run()
    session.session.forget()
    session.run()


def test_a_state_that_nothing_reads_is_no_error() -> None:
    g = GraphBuilder()
    x = g.input("x", (2,))
    g.update(g.state("log", (2,)), x * 2.0)
    g.output("y", x + 1.0)
    session = CheckedSession(g.build(), {"x": np.ones(2, "float32")})
    assert session.run()["y"].tolist() == [2, 2]


# --- odd graphs -----------------------------------------------------------------------------------


def test_inputs_and_weights_that_nothing_depends_on_are_taken_and_let_go() -> None:
    g = GraphBuilder()
    x, y = g.input("x", (2,)), g.input("y", (2,))
    w = g.parameter("w[0]", (2,))
    always = g.constant(np.array([True, True]))
    g.output("z", ops.where(always, x, y + w))
    ones = np.ones(2, "float32")
    session = GraphSession(g.build(), weights={"w[0]": ones})
    assert session.run({"x": ones, "y": ones}, changed=None)["z"].tolist() == [1, 1]
    assert session.run({"x": ones * 2, "y": ones * 3})["z"].tolist() == [2, 2]
    hint = {"x": np.s_[:], "y": np.s_[:]}
    assert session.run({"x": ones}, changed=hint)["z"].tolist() == [1, 1]


@pytest.mark.parametrize("name", [buffer.value for buffer in Unnamed])
@pytest.mark.parametrize("exact", [None, "bitwise"])
def test_a_weight_may_have_any_name(name: str, exact: Literal["bitwise"] | None) -> None:
    """What is no weight is told apart by what it is: the arena, scratch memory, a result."""
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal((n, 8)).astype("float32") for n in (4, 8))
    g = GraphBuilder()
    w = g.parameter(name, (8, 8))
    g.output("y", ops.softmax(g.input("x", (4, 8)) @ w @ ops.softmax(w)))
    session = GraphSession(g.build(), {name: weight}, exact=exact)
    for row in range(4):
        x[row] = rng.standard_normal(8)
        found = session.run({"x": x})["y"]
        right = evaluate(session.graph, {"x": x, name: weight})["y"]
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_an_output_without_inputs_runs() -> None:
    g = GraphBuilder()
    w = g.parameter("w", (3,))
    g.output("y", w * 2.0)
    session = GraphSession(g.build(), weights={"w": np.arange(3, dtype="float32")})
    assert session.run({})["y"].tolist() == [0, 2, 4]
    assert session.run({}, want={"y": np.s_[1]})["y"].tolist() == 2


def test_two_outputs_may_be_one_node_and_an_input_an_output() -> None:
    g = GraphBuilder()
    x = g.input("x", (4,))
    y = x * 2.0
    g.output("a", y)
    g.output("b", y)
    g.output("c", x)
    graph = g.build()
    session = CheckedSession(graph, {"x": np.arange(4, dtype="float32")})
    session.run(want={"a": np.s_[0:2], "b": np.s_[2:4], "c": np.s_[1]})
    session.run({"x": np.ones(4, "float32")}, {"b": np.s_[3]})
    session.run()


@pytest.mark.parametrize("index", [np.s_[0:0], [], Region(())], ids=["slice", "list", "region"])
def test_asking_for_nothing_of_an_output_is_an_error(index: Any) -> None:
    graph = causal(rows=8)
    session = CheckedSession(graph, causal_values(graph, 0))
    with pytest.raises(DemandError, match="leave it out of `want`"):
        session.session.run(session.values, want={"y": index})
    assert session.run(want={}) == {}
    session.run(want={"y": np.s_[2]})


# --- results that are not copied ------------------------------------------------------------------


def test_views_without_a_copy_cannot_be_written_through() -> None:
    graph = causal(rows=8)
    values = causal_values(graph, 0)
    session = GraphSession(graph, weights={name: values[name] for name in graph.parameters})
    for index in (np.s_[3], np.s_[:], np.s_[3, 1], [np.s_[2], np.s_[4:6]], region(2, 5)):
        want = {"y": index}
        found, views = (session.run({"x": values["x"]}, want, copy=c)["y"] for c in (True, False))
        for one, view in zip(
            *(v if isinstance(v, list) else [v] for v in (found, views)), strict=True
        ):
            assert np.array_equal(one, view)
            assert one.flags.writeable
            assert not view.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                view[...] = 9
    assert session.arena.shows(views[0])


def region(*rows: int) -> Region:
    return Region.of(*(Box(((row, row + 1), (0, 2))) for row in rows))


def test_torch_in_torch_out_and_never_a_view() -> None:
    graph = causal(rows=8)
    values = causal_values(graph, 0)
    session = GraphSession(graph, weights={name: values[name] for name in graph.parameters})
    x = torch.from_numpy(values["x"])
    for copy in (True, False):
        found = session.run({"x": x}, {"y": np.s_[3]}, copy=copy)["y"]
        assert isinstance(found, torch.Tensor)
        kept = found.clone()
        found += 1  # no tensor is read-only, so this one is the caller's
        assert torch.equal(session.run({"x": x}, {"y": np.s_[3]})["y"], kept)


def test_a_state_that_is_not_copied_is_what_it_was_in_this_run() -> None:
    g = GraphBuilder()
    x, total = g.input("x", (2,)), g.state("total", (2,))
    g.update(total, total + x)
    g.output("total", total)
    g.output("turned", total.reshape(1, 2).transpose())
    session = GraphSession(g.build())
    for step in range(3):
        found = session.run({"x": np.ones(2, "float32")}, copy=False)
        assert found["total"].tolist() == [step, step]
        assert found["turned"].tolist() == [[step], [step]]


def test_views_that_come_back_as_other_inputs_are_read_before_anything_is_written() -> None:
    g = GraphBuilder()
    x, z = g.input("x", (2,)), g.input("z", (2,))
    g.output("a", x.reshape(1, 2))
    g.output("c", z.reshape(1, 2))
    g.output("d", x - z)
    session = GraphSession(g.build())
    five, one = np.full(2, 5, "float32"), np.full(2, 1, "float32")
    found = session.run({"x": five, "z": one}, copy=False)
    for difference in (-4, 4, -4):
        found = session.run({"x": found["c"][0], "z": found["a"][0]}, copy=False)
        assert found["d"].tolist() == [difference] * 2


@pytest.mark.parametrize("memory", [None, 1 << 10])
def test_histories_that_feed_views_back_equal_full_recomputation(memory: int | None) -> None:
    """Views of inputs, of kept and of passing values, whole and in part, among new arrays."""
    rng = np.random.default_rng(0)
    checked = CheckedSession(mixing(), {n: small(rng) for n in "xyz"}, memory=memory)
    views: list[Array] = [small(rng)]
    for step in range(40):
        names = [name for name in "xyz" if rng.integers(3)] if step else "xyz"
        given = {name: views[rng.integers(len(views))] for name in names}
        right = {name: array.copy() for name, array in (checked.values | given).items()}
        want = None if rng.integers(2) else {"a": np.s_[:], "c": np.s_[:], "p": np.s_[1:3]}
        found = checked.session.run(given, want, copy=False)
        expected = evaluate(checked.graph, right)
        for name, array in found.items():
            assert np.array_equal(
                array, expected[name][1:3] if array.shape != SQUARE else expected[name]
            )
        checked.values = right
        whole = [array for array in found.values() if array.shape == SQUARE]
        views = [*whole, *(array[::-1, ::-1] for array in whole), small(rng)]


SQUARE = (4, 4)


def small(rng: np.random.Generator) -> Array:
    return rng.integers(-2, 3, SQUARE).astype("float32")


def mixing() -> Graph:
    g = GraphBuilder()
    x, y, z = (g.input(name, SQUARE) for name in "xyz")
    g.output("a", x.transpose())
    g.output("c", y)
    kept = ops.minimum(ops.maximum(x @ y, -3.0), 3.0)
    g.output("p", kept)
    g.output("s", ops.minimum(ops.maximum(kept - z, -3.0), 3.0))
    return g.build()


def test_a_view_of_one_session_goes_into_another_one_of_the_arena() -> None:
    arena = Arena("cpu", "4KiB")
    first, second = (GraphSession(mixing(), arena=arena) for _ in range(2))
    rng = np.random.default_rng(1)
    values = {name: small(rng) for name in "xyz"}
    for _ in range(4):
        views = first.run(values, copy=False)
        given = {"x": views["s"], "y": views["p"], "z": views["a"]}
        right = evaluate(mixing(), {name: array.copy() for name, array in given.items()})
        found = second.run(given)
        assert all(np.array_equal(found[name], right[name]) for name in found)
        values["y"] = small(rng)


def test_the_caller_may_reuse_the_arrays() -> None:
    graph = causal(rows=8)
    session = CheckedSession(graph, causal_values(graph, 0))
    x = session.values["x"].copy()
    session.run({"x": x}, {"y": np.s_[5]})
    x[2] = [1, 0]
    session.run({"x": x.copy()}, {"y": np.s_[5]})
    given = x.copy()
    given.setflags(write=False)
    session.run({"x": given[::-1]}, {"y": np.s_[5]})


def test_a_closed_column_counts_nothing_though_its_key_is_a_constant() -> None:
    """Constants are read whole, what a mask closes is not read: the two need not match."""
    g = GraphBuilder()
    q = g.constant(np.float32([-3, 1, -3]).reshape(1, 1, 3, 1))
    v = g.input("v", (1, 1, 3, 1))
    mask = g.constant(np.array([[True, True, False]]))
    g.output("y", ops.attention(q, q, v, mask, scale=1.0))
    values = np.float32([0, -1, 3])
    found = GraphSession(g.build()).run({"v": values.reshape(1, 1, 3, 1)})["y"]
    keys = np.float32([-3, 1])
    weights = np.exp(np.outer([-3, 1, -3], keys))
    expected = weights @ values[:2] / weights.sum(1)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-5)
