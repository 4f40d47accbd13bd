"""What to keep: the tables, the model, the searches over it, and plans that come of them."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from numpy.typing import NDArray
from search_cases import branching, busy_case, every_retention
from session.test_session import share_of_examples
from session_cases import CheckedSession
from strategies import Maker, changes, graphs, regions

import tgbench as tg
from tgbench import GraphSession, ops
from tgbench.base.errors import BudgetError, PlanError, TraceError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph
from tgbench.graph.simplify import simplify
from tgbench.memory.placement import Retention
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.checks import check_placement
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.retention.model import Model
from tgbench.plans.retention.neighbourhoods import Neighbourhoods
from tgbench.plans.retention.solver import SolverLimits
from tgbench.plans.retention.tables import nested, tabulate, tabulate_pieces
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search import beginning
from tgbench.plans.search.arms import Arm, Arms, by_promise
from tgbench.plans.search.chain import ROUND, Chain
from tgbench.plans.search.effort import Effort, Mode
from tgbench.plans.search.judge import Judge
from tgbench.plans.search.layouts import Layouts
from tgbench.plans.search.optimiser import Optimiser
from tgbench.plans.search.plan_search import LaidOut, Looked
from tgbench.plans.search.rounds import Rounds
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut
from tgbench.sources.models.checkpoints import gemma3_reduced

Case = tuple[Graph, Maker]


def optimiser(graph: Graph, buckets: list[Bucket], budget: int | None, **more: Any) -> Optimiser:
    scheduled, rules = ScheduledGraph.of(graph), Rules()
    workload = Workload.of(scheduled, rules, buckets)
    return Optimiser(scheduled, rules, workload, budget, rough_ns, **more)


def judge(graph: Graph, buckets: list[Bucket]) -> Judge:
    return optimiser(graph, buckets, None).judge


@st.composite
def traces(draw: Any, graph: Graph, *, most: int = 6) -> list[Bucket]:
    """A first run of everything, then random changes and demands."""
    outputs = {name: Region.full(node.shape) for name, node in graph.outputs.items()}
    everything = {name: Region.full(node.shape) for name, node in graph.inputs.items()}
    found = [Bucket.of(everything, outputs)]
    for _ in range(draw(st.integers(1, most))):
        asked = {
            name: draw(regions(node.shape)) if draw(st.booleans()) else Region.full(node.shape)
            for name, node in graph.outputs.items()
        }
        found.append(Bucket.of(draw(changes(graph)), asked))
    return found


# --- plans that come of it -----------------------------------------------------------------------


def replayed_on(session: CheckedSession, buckets: list[Bucket], make: Maker) -> None:
    """Run a trace for real; every run is compared with full recomputation."""
    for seed, bucket in enumerate(buckets):
        new, inputs = make(seed), dict(session.values)
        for name, region in bucket.changed:
            inputs[name] = inputs[name].copy()
            for box in region:
                inputs[name][box.slices()] = new[name][box.slices()]
        session.run(inputs, want=dict(bucket.demand) or None)


@given(st.data())
def test_any_retention_is_laid_out_safely_and_computes_the_same(data: st.DataObject) -> None:
    """Random nodes through random classes: the map is safe, and runs equal full recomputation."""
    graph, make = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    session = CheckedSession(graph, make(0))
    inner = session.session
    buckets = data.draw(traces(inner.graph))
    found = judge(inner.graph, buckets)
    turns = found.workload.turns
    after = {
        node: frozenset(data.draw(st.sets(st.integers(0, len(turns) - 1))))
        for node in inner.scheduled.stored
    }
    retention = Retention({n: k for n, k in after.items() if k}, turns)
    placement = found.planner.lay_out(retention, found.scenarios, WHOLE)
    check_placement(placement, inner.scheduled)
    inner.keeper.install(
        Decisions(inner.scheduled, placement, retention, (), WHOLE, dict(found.classes), 0.0)
    )
    replayed_on(session, buckets * 2, make)


def test_the_collector_rests_while_a_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found out lasts: it would be gone through again and again."""
    found, really = list[bool](), Rounds.run

    def run(self: Rounds, *given: Any) -> Any:
        found.append(gc.isenabled())
        return really(self, *given)

    monkeypatch.setattr(Rounds, "run", run)
    busy_case().plan(64)
    assert found
    assert not any(found)
    assert gc.isenabled()


@given(st.data())
def test_a_search_keeps_every_run_right(data: st.DataObject) -> None:
    """Any mode, any budget that works: never slower than greedy, never wrong."""
    graph, make = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    session = CheckedSession(graph, make(0))
    buckets = data.draw(traces(session.session.graph))
    replayed_on(session, buckets, make)
    roomy = session.session.placement.size_bytes
    budget = data.draw(st.integers(roomy // 4, roomy))
    try:
        greedy = session.session.optimize("greedy", budget=budget)
    except BudgetError:
        return
    mode = data.draw(st.sampled_from(["search", "exact"]))
    plan = session.session.optimize(mode, steps=4)
    assert plan.size_bytes <= budget
    assert greedy.search is not None
    assert plan.search is not None
    assert plan.search.best_ns <= greedy.search.best_ns
    assert plan.search.modelled_ns >= plan.search.bound_ns * (1 - 1e-9) or not plan.search.bound_ns
    replayed_on(session, buckets * 2, make)


@pytest.mark.parametrize("mode", ["greedy", "exact", "search"])
@pytest.mark.parametrize("budget", [None, 2000])
def test_a_run_that_is_largest_between_its_extremes_is_planned_for(
    mode: Mode, budget: int | None
) -> None:
    """Eight in a row touch one row of m at either end, and two rows where they begin in one."""
    g = tg.GraphBuilder()
    m = g.name(ops.softmax(g.input("x", (6, 8))), "m")
    g.output("y", g.name(m.reshape(48) * 2.0, "y"))
    everything = {"x": Region.full((6, 8))}
    asked = [{"y": Region((Box(((at, at + 8),)),))} for at in (12, 0)]
    buckets = [Bucket.of(everything, want) for want in asked]
    made = optimiser(simplify(g.build()), buckets, budget).run(mode, Effort(steps=2))
    rows = {node.name: slot.extents for node, slot in made.placement.slots.items()}
    assert rows["m"] == (2, 8)


@share_of_examples(8)
@given(st.data())
def test_what_less_memory_allowed_is_a_candidate_for_more(data: st.DataObject) -> None:
    """Any trace fits the plan that is made for it, and time never rises with the budget."""
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    buckets = data.draw(traces(simple))[data.draw(st.integers(0, 1)) :]
    best = optimiser(simple, buckets, None).run("greedy")
    most, before = best.placement.size_bytes, None
    for budget in (most // 2, most * 3 // 4, most):
        try:
            made = optimiser(simple, buckets, budget).run("greedy", start=before)
        except BudgetError:
            continue
        assert made.placement.size_bytes <= budget
        assert before is None or made.expected_ns <= before.expected_ns
        before = made


@share_of_examples(2)
@given(st.data())
def test_ways_of_cutting_are_left_out_only_where_they_would_not_be_taken(
    data: st.DataObject,
) -> None:
    """A first plan is the same as where every way of cutting is laid out before it is weighed."""
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    buckets = data.draw(traces(simple))
    most = optimiser(simple, buckets, None).run("greedy").placement.size_bytes
    budget = data.draw(st.integers(most // 3, most))
    assert first_plan(simple, buckets, budget) == first_of_all(simple, buckets, budget)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_decoder_is_cut_as_where_every_way_is_weighed(share: float) -> None:
    graph, buckets = decoding(3)
    budget = int(share * optimiser(graph, buckets, None).run("greedy").placement.size_bytes)
    assert first_plan(graph, buckets, budget) == first_of_all(graph, buckets, budget)


def test_ways_of_cutting_that_cannot_be_ahead_are_not_laid_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, buckets = decoding(3)
    budget = int(0.5 * optimiser(graph, buckets, None).run("greedy").placement.size_bytes)
    opened, of = set[Cut](), Arms.of

    def told(arms: Arms, cut: Cut) -> Iterator[Arm]:
        opened.add(cut)
        return of(arms, cut)

    monkeypatch.setattr(Arms, "of", told)
    first_plan(graph, buckets, budget)
    assert len(opened) > 1
    opened.clear()
    monkeypatch.setattr(beginning, "FINER", 0.1)
    first_plan(graph, buckets, budget)
    assert opened == {WHOLE}


def promising(**promises_ns: float) -> list[Any]:
    """Ways of cutting in so many parts that come to so much."""
    return [
        SimpleNamespace(cut=Cut("x", 0, int(name[1:])), promise_ns=promise_ns)
        for name, promise_ns in promises_ns.items()
    ]


def test_coarser_cuts_come_first_where_promises_are_about_the_same() -> None:
    arms = promising(p2=3.0, p4=2.3, p8=2.15, p16=2.02, p32=2.0, p64=math.inf)
    assert [arm.cut.parts for arm in by_promise(arms, as_promised)] == [8, 16, 32, 4, 2, 64]
    assert by_promise([], as_promised) == []


def test_cuts_come_by_what_replays_say_of_their_promises() -> None:
    arms = promising(p2=3.0, p4=2.3, p8=2.15)
    longer = {2: 1.0, 4: 1.5, 8: 2.0}
    found = by_promise(arms, lambda cut: longer[cut.parts])
    assert [arm.cut.parts for arm in found] == [2, 4, 8]
    found = by_promise(arms, lambda cut: {**longer, 2: 2.0}[cut.parts])
    assert [arm.cut.parts for arm in found] == [4, 8, 2]


def as_promised(cut: Cut) -> float:
    return 1.0


def test_few_steps_open_few_ways_of_cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of an arm that nobody comes to are none that were searched."""
    graph, buckets = decoding(3)
    budget = int(0.5 * optimiser(graph, buckets, None).run("greedy").placement.size_bytes)

    def opened(steps: int) -> int:
        one = optimiser(graph, buckets, budget)
        cuts, of = set[Cut](), Arms.of
        one.run("greedy", Effort(steps=0))

        def told(arms: Arms, cut: Cut) -> Iterator[Arm]:
            cuts.add(cut)
            return of(arms, cut)

        with monkeypatch.context() as patch:
            patch.setattr(Arms, "of", told)
            one.run("search", Effort(steps=steps))
        return len(cuts)

    assert opened(ROUND) < opened(10 * ROUND)


def first_of_all(graph: Graph, buckets: list[Bucket], budget: int) -> str:
    """The same where every way of cutting is laid out to be weighed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arms, "hoped_ns", lambda arms, cut: 0.0)
        patch.setattr(Arms, "least_ns", 0.0)
        return first_plan(graph, buckets, budget)


def first_plan(graph: Graph, buckets: list[Bucket], budget: int) -> str:
    """A greedy plan as text; what the refusal says where there is none."""
    try:
        made = optimiser(graph, buckets, budget).run("greedy", Effort(steps=0))
    except BudgetError as error:
        return str(error)
    return Plan.of(graph, made, "cpu", budget).to_json()


def least_replayed(search: Optimiser, effort: Effort) -> tuple[Decisions, float]:
    """What a search finds, and the fastest of all the plans that it replayed."""
    found = list[float]()

    def look(one: Looked) -> None:
        if isinstance(one, LaidOut):
            found.append(one.time_ns)

    search._asked = replace(search._asked, look=look)
    return search.run("search", effort), min(found)


@given(st.data())
def test_no_bound_is_above_a_plan_that_was_replayed(data: st.DataObject) -> None:
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    buckets = data.draw(traces(simple))
    most = optimiser(simple, buckets, None).run("greedy").placement.size_bytes
    search = optimiser(simple, buckets, data.draw(st.integers(most // 4, most)))
    try:
        made, least_ns = least_replayed(search, Effort(steps=4))
    except BudgetError:
        return
    assert made.search is not None
    assert made.search.bound_ns <= least_ns * (1 + 1e-9)


def stream() -> tuple[Graph, list[Bucket]]:
    """Sums of rows ever further apart; a row is added, and one of the result is looked at."""
    g = tg.GraphBuilder()
    h = g.input("x", (64, 4))
    for apart in (1, 2, 4, 8):
        h = ops.maximum(h[:-apart] * 0.5 + h[apart:], h[apart:])
    g.output("y", h)

    def row(at: int) -> Region:
        return Region((Box(((at, at + 1), (0, 4))),))

    first = Bucket.of({"x": Region.full((64, 4))}, {"y": row(0)})
    later = [Bucket.of({"x": row(at + 15)}, {"y": row(at)}) for at in range(1, 12)]
    return simplify(g.build()), [first, *later]


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_where_values_survive_in_shared_bytes_a_bound_is_said_that_they_keep_to(
    share: float,
) -> None:
    """The model's is above what replays take: it knows of no value that is there by accident. With
    all the memory that there could be use for, no value needs to be.
    """
    graph, buckets = stream()
    most = optimiser(graph, buckets, None).run("greedy").placement.size_bytes
    search = optimiser(graph, buckets, int(share * most))
    made, least_ns = least_replayed(search, Effort(steps=4))
    assert made.search is not None
    ample, tight = max(search._known.least_ns), search.budget_bytes
    assert search._known.least_ns[tight] > least_ns
    assert 0 < search._known.least_ns[ample] <= made.search.bound_ns <= least_ns


def counted_layouts(search: Optimiser) -> list[Retention]:
    """What is laid out from now on."""
    planner, laid = search.judge.planner, list[Retention]()
    lay_out = planner.lay_out

    def counting(retention: Retention, *arguments: Any, **more: Any) -> Any:
        laid.append(retention)
        return lay_out(retention, *arguments, **more)

    planner.lay_out = counting  # type: ignore[method-assign]
    return laid


def test_a_plan_that_cannot_be_better_is_not_laid_out_again() -> None:
    """Where all is kept nothing is gained, whatever another plan lets go of."""
    case = busy_case()
    best = optimiser(case.graph, [*case.buckets], None).run("greedy")
    start = replace(best, retention=replace(best.retention, after={}), classes={})
    search = optimiser(case.graph, [*case.buckets], None)
    laid = counted_layouts(search)
    made = search.run("greedy", start=start)
    assert laid == [made.retention]
    assert made.expected_ns <= best.expected_ns


def test_what_a_plan_keeps_is_laid_out_again_where_it_is_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its map may no longer be right where what it keeps is."""
    monkeypatch.setattr(Layouts, "as_it_is", lambda *_, **__: None)
    case = busy_case()
    graph, buckets = case.graph, [*case.buckets]
    most = optimiser(graph, buckets, None).run("greedy").placement.size_bytes
    budget = int(0.9 * most)
    greedy = optimiser(graph, buckets, budget).run("greedy")
    found = optimiser(graph, buckets, budget).run("search", Effort(steps=16))
    assert found.expected_ns < greedy.expected_ns
    search = optimiser(graph, buckets, budget)
    made = search.run("greedy", start=found)
    assert made.expected_ns <= found.expected_ns


# --- the model, and searches over it -------------------------------------------------------------


def any_model(data: st.DataObject, most_ops: int) -> Model:
    """Of a graph and a trace of a few runs, whatever they are."""
    return any_judge(data, most_ops).uncut


def any_judge(data: st.DataObject, most_ops: int) -> Judge:
    """The same, who judges maps of it."""
    graph, _ = data.draw(graphs(most_ops=most_ops))
    assume(graph.inputs)
    simple = simplify(graph)
    return judge(simple, data.draw(traces(simple, most=4)))


@given(st.data())
def test_the_integer_program_finds_what_trying_everything_finds(data: st.DataObject) -> None:
    model = any_model(data, most_ops=6)
    assume(model.turns * int(model.tables.worthwhile.sum()) <= 10)
    keep = every_retention(model)
    scores = model.score(keep)
    low, high = int(scores.size_bytes.min()), int(scores.size_bytes.max())
    budget = data.draw(st.integers(low, high))
    best = scores.best(budget)
    assert best is not None
    right = float(scores.time_ns[best])
    relaxed = IntegerProgram(model, budget).solve(integer=False)
    solved = IntegerProgram(model, budget).solve(SolverLimits(gap=1e-9))
    assert relaxed.bound_ns <= solved.bound_ns * (1 + 1e-4) + 1e-3
    assert solved.bound_ns <= right * (1 + 1e-6) + 1e-3
    [found, *_] = Chain(IntegerProgram(model, budget), relaxed.share, (), (1,), steps=2).run().found
    assert found.size_bytes <= budget
    assert found.time_ns <= right * (1 + 1e-4) + 1e-3  # all values are in one window


@given(st.data())
def test_a_window_of_what_is_kept_throughout_finds_the_best_of_that(data: st.DataObject) -> None:
    model = any_model(data, most_ops=8)
    worthwhile = np.flatnonzero(model.tables.worthwhile)
    assume(len(worthwhile) <= 8)
    nodes = np.zeros((1 << len(worthwhile), 1, model.nodes), bool)
    for bit, node in enumerate(worthwhile):
        nodes[:, 0, node] = np.arange(len(nodes)) >> bit & 1
    scores = model.score(np.repeat(nodes, model.turns, axis=1))
    low, high = int(scores.size_bytes.min()), int(scores.size_bytes.max())
    budget = data.draw(st.integers(low, high))
    best = scores.best(budget)
    assert best is not None
    program = IntegerProgram(model, budget, throughout=True)
    share = np.zeros((model.turns, model.nodes))
    [found, *_] = Chain(program, share, (), (1,), steps=2).run().found
    assert found.size_bytes <= budget
    assert (found.keep == found.keep[0]).all()
    assert found.time_ns <= float(scores.time_ns[best]) * (1 + 1e-4) + 1e-3


@given(st.integers(0, 2**32))
def test_what_every_run_computes_meets_what_is_kept_in_every_map(seed: int) -> None:
    """So the model stacks it, and says no more than maps take where all that is kept is of use."""
    found, random = branching_judge(), np.random.default_rng(seed)
    model = found.uncut
    keep = random.random((model.turns, model.nodes)) < random.random(model.nodes)
    keep &= model.tables.worthwhile
    [now_ns] = model.score(keep[None]).time_ns
    for turn, node in np.argwhere(keep).tolist():
        less = keep.copy()
        less[turn, node] = False
        if model.score(less[None]).time_ns[0] <= now_ns:
            keep = less
    size = int(model.score(keep[None]).size_bytes[0])
    attempt = found.planner.attempts.of(found.retention(keep), found.scenarios, WHOLE)
    assert size <= attempt.draft.packed({}).size_bytes


def test_the_model_has_values_that_every_run_computes_take_turns_nowhere() -> None:
    found, random = branching_judge(), np.random.default_rng(0)
    model = found.uncut
    assert model.always_made.all()
    keep = random.random((100, model.turns, model.nodes)) < 0.3
    keep &= model.tables.worthwhile
    sizes = model.score(keep).size_bytes
    with patch.object(Model, "always_made", np.zeros(model.nodes, bool)):
        turn_by_turn = Model(model.tables).score(keep).size_bytes
    assert (turn_by_turn <= sizes).all()
    assert np.median(sizes / turn_by_turn) > 1.1


@cache
def branching_judge() -> Judge:
    case = branching(runs=4)
    return judge(case.graph, list(case.buckets))


def test_what_is_kept_throughout_is_found_where_turns_do_not_pack() -> None:
    """Every run computes something of every value, so what is kept after some only shares no bytes:
    where the model has such take turns, nothing that is better than the greedy plan packs.
    """
    case = branching(runs=4)
    search = Optimiser(case.scheduled, Rules(), case.workload, case.budget_bytes, case.cost)
    made = search.run("search", Effort(steps=8))
    assert made.search is not None
    assert made.search.best_ns < 0.99 * made.search.greedy_ns
    assert not any(map(made.retention.is_partial, made.retention.after))


@given(st.data())
def test_what_was_solved_to_its_optimum_is_not_solved_again(data: st.DataObject) -> None:
    """Nor any part of it; and what is found is what solving all of it again finds."""
    model = any_model(data, most_ops=8)
    assume(model.tables.worthwhile.any())
    [nothing] = model.none()
    scores = model.score(model.none())
    budget = int(scores.size_bytes[0]) + data.draw(st.integers(0, 4096))
    program, seed = IntegerProgram(model, budget), data.draw(st.integers(0, 99))
    start = model.scored(nothing, budget)
    assert start is not None
    near, all_again = (
        Neighbourhoods(program, np.zeros(nothing.shape), np.random.default_rng(seed), 4)
        for _ in range(2)
    )
    best, other, vain = start, start, list[NDArray[np.bool_]]()
    for _ in range(8):
        with patch.object(IntegerProgram, "solve", autospec=True, side_effect=SOLVE) as asked:
            window = near.step(best, SolverLimits())
        again = all_again._solved(other, window.free, SolverLimits())
        assert again.after.time_ns == window.after.time_ns
        is_known = any((window.free <= whole).all() for whole in vain)
        assert asked.called is not is_known
        if window.gains:
            vain.clear()
        if window.is_optimal:
            vain.append(window.free)
        best, other = window.after, again.after


SOLVE = IntegerProgram.solve
TOKENS = 32


@cache
def decoding(layers: int) -> tuple[Graph, list[Bucket]]:
    """A reduced Gemma 3 that writes, with an edit of what is written now and then."""
    kinds = (["sliding_attention", "full_attention"] * layers)[-layers:]
    config = gemma3_reduced(num_hidden_layers=layers, layer_types=kinds)
    graph = simplify(tg.models.gemma3(config, tokens=TOKENS))
    vocabulary = graph.outputs["logits"].shape[-1]

    def call(start: int, stop: int, asked: int) -> Bucket:
        rows = Box(((0, 1), (asked, asked + 1), (0, vocabulary)))
        ids = Box(((0, 1), (start, stop)))
        return Bucket.of({"ids": Region((ids,))}, {"logits": Region((rows,))})

    calls, written = [call(0, TOKENS, 15)], 16
    for i in range(14):
        if i % 7 == 6:
            calls.append(call(3 * i % written, 3 * i % written + 1, written - 1))
        else:
            calls.append(call(written, written + 1, written))
            written += 1
    return graph, calls


@pytest.fixture
def decoder() -> tuple[Graph, list[Bucket]]:
    return decoding(1)


def names_of(nodes: Any) -> set[str]:
    return {node.name for node in nodes}


KV = {f"layer_{i}.{part}" for i in range(2) for part in "kv"}


def kv_bytes(graph: Graph) -> int:
    return sum(node.type.size_bytes for node in graph.nodes if node.name in KV)


@pytest.mark.parametrize(("mode", "layers"), [("greedy", 2), ("search", 1), ("exact", 1)])
def test_k_and_v_are_kept_where_little_else_fits(mode: Any, layers: int) -> None:
    """Nobody says that they exist; the budget is theirs and what one row needs in pieces."""
    graph, calls = decoding(layers)
    budget = (3 if mode == "greedy" else 2) * kv_bytes(graph)
    made = optimiser(graph, calls, budget).run(mode, Effort(steps=16))
    assert names_of(made.retained) >= KV & names_of(graph.nodes)
    assert made.placement.size_bytes <= budget
    assert made.search is not None
    assert made.search.gap < 0.05 or mode == "greedy"


def test_the_model_and_the_replay_of_a_trace_agree(decoder: tuple[Graph, list[Bucket]]) -> None:
    graph, calls = decoder
    found = judge(graph, calls)
    keep = [node for node in found.scheduled.stored if node.name in KV]
    for nodes in (keep, keep[:2], []):
        retention = Retention.always(nodes, found.workload.turns)
        placement = found.planner.lay_out(retention, found.scenarios, WHOLE)
        one = found.candidate(retention, WHOLE, placement)
        assert one is not None
        assert one.time_ns == pytest.approx(one.modelled_ns, rel=0.02)
        model = Model(tabulate(found.scheduled, found.rules, found.workload, rough_ns, {
            node: room.size_bytes for node, room in placement.scratch.items()
        }))  # fmt: skip
        size = int(model.score(found.bits(retention)[None]).size_bytes[0])
        assert size == pytest.approx(placement.size_bytes, rel=0.05)


def test_a_larger_budget_is_never_slower() -> None:
    times = []
    for share in (0.75, 0.85, 1.0):
        plan = replace(busy_case(), share=share).plan(16)
        assert plan.search is not None
        times.append(plan.search.best_ns)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_pieces_need_less_than_whole_runs(decoder: tuple[Graph, list[Bucket]]) -> None:
    graph, calls = decoder
    found = judge(graph, calls)
    keep = found.bits(
        Retention.always([n for n in found.scheduled.stored if n.name in KV], found.workload.turns)
    )[None]
    whole = found.uncut
    kept = [n for n in found.scheduled.stored if n.name in KV]
    eighths = Cut("ids", 1, 8)
    pieces = tabulate_pieces(found.scheduled, found.rules, found.workload, eighths, kept)
    cut = Model(whole.tables, pieces)
    assert cut.score(keep).size_bytes[0] < whole.score(keep).size_bytes[0]
    assert cut.score(keep).time_ns[0] == whole.score(keep).time_ns[0]


def test_levels_are_nested_and_few() -> None:
    rows = [
        Region((Box(((a, a + n),)),)) for a, n in ((3, 1), (0, 4), (2, 2), (6, 1), (5, 4), (0, 9))
    ]
    chain = nested(rows)
    assert len(chain) <= 4
    assert all(wide.contains(narrow) for narrow, wide in pairwise(chain))
    assert all(chain[-1].contains(region) for region in rows)
    assert nested([]) == []


def test_another_order_is_taken_where_it_saves_room() -> None:
    """Two wide branches: one after the other, only one of them is ever there."""
    g = tg.GraphBuilder()
    x = g.input("x", (8, 8))
    wide = [
        g.name(ops.maximum(ops.linear(x, g.parameter(f"w{i}", (256, 8))), 0.0), f"wide{i}")
        for i in range(4)
    ]
    narrow = [ops.linear(w, g.parameter(f"v{i}", (8, 256))) for i, w in enumerate(wide)]
    g.output("y", narrow[0] + narrow[1] + narrow[2] + narrow[3])
    graph = g.build()
    values = {n: np.ones(node.shape, np.float32) for n, node in graph.parameters.items()}
    session = CheckedSession(graph, values | {"x": np.ones((8, 8), np.float32)})
    session.run()
    session.run({"x": np.zeros((8, 8), np.float32)})
    roomy = session.session.placement.size_bytes
    plan = session.session.optimize("search", budget=roomy // 2, steps=16)
    assert plan.size_bytes <= roomy // 2
    assert plan.schedule != tuple(
        node.name for node in ScheduledGraph.of(session.session.graph).schedule
    )
    session.run({"x": np.full((8, 8), 2, np.float32)})
    again = GraphSession(graph, values, plan=tg.Plan.from_json(plan.to_json()))
    assert again.plan.schedule == plan.schedule


# --- bad input -----------------------------------------------------------------------------------


def test_an_empty_trace_is_refused(decoder: tuple[Graph, list[Bucket]]) -> None:
    with pytest.raises(TraceError, match="the trace is empty; run something first"):
        optimiser(decoder[0], [], None)


def test_a_trace_of_another_graph_is_refused(decoder: tuple[Graph, list[Bucket]]) -> None:
    other = Bucket.of({"pixels": Region.full((3,))}, {})
    with pytest.raises(TraceError, match="call 1: the graph has no input 'pixels'"):
        optimiser(decoder[0], [other], None)
    outside = Bucket.of({"ids": Region.full((1, 65))}, {})
    with pytest.raises(TraceError, match=r"outside \[1, 32\]"):
        optimiser(decoder[0], [outside], None)


def test_a_hopeless_budget_names_one_that_works(decoder: tuple[Graph, list[Bucket]]) -> None:
    graph, calls = decoder
    with pytest.raises(BudgetError, match="the smallest budget found to work") as found:
        optimiser(graph, calls, 2_000).run("search", Effort(steps=16))
    made = optimiser(graph, calls, found.value.needed_bytes).run("greedy")
    assert made.placement.size_bytes <= found.value.needed_bytes
    with pytest.raises(BudgetError) as less:
        optimiser(graph, calls, found.value.needed_bytes - 1).run("greedy")
    assert less.value.needed_bytes == found.value.needed_bytes


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_costs_that_are_none_are_refused(decoder: tuple[Graph, list[Bucket]], wrong: float) -> None:
    graph, calls = decoder
    scheduled, rules = ScheduledGraph.of(graph), Rules()
    workload = Workload.of(scheduled, rules, calls)
    with pytest.raises(PlanError, match="is not a time"):
        Optimiser(scheduled, rules, workload, None, lambda call, box: wrong).run("greedy")
