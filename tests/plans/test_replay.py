"""What a trace takes over a map: as sessions would lower it, whatever was looked at before."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from plans.test_search import judge, optimiser, traces
from strategies import graphs
from torch import Tensor, nn
from torch.nn import functional

from tgbench import ops
from tgbench.base.regions import Box, Region
from tgbench.costs.model import position_free
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.simplify import simplify
from tgbench.kernels.numba import panels
from tgbench.kernels.registry import Site
from tgbench.memory.placement import Placement
from tgbench.plans.retention.walk import Walk
from tgbench.plans.search import judge as module
from tgbench.plans.search.effort import Effort, Spending
from tgbench.plans.search.judge import Candidate, Judge
from tgbench.plans.search.plan_search import Asked, Findings, PlanSearch
from tgbench.plans.search.replay import FEWEST
from tgbench.programs import sizing
from tgbench.programs.choices import BoundKernel, Option, Takes
from tgbench.programs.held import Held
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.specialiser import Specialised, Specialiser
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut, cuts
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch


def lowered_ns(judge_: Judge, placement: Placement, cut: Cut = WHOLE) -> list[float] | None:
    """Times of the calls that a session would bind, by one who knows of nothing else."""
    specialiser = Specialiser(
        judge_.scheduled, placement, cut, Rules(), "cpu", classes=judge_.classes
    )

    def decide(held: dict[object, Held], kind: object, origin: object) -> tuple[object, ...]:
        for there in (held, {}):
            try:
                made: Specialised = specialiser.specialise(there, kind, origin)  # type: ignore
            except DoesNotFit:
                continue
            return made.instructions, made.after, made.guards
        raise DoesNotFit(judge_.scheduled.stored[0], "all of it", "nothing")

    walk = Walk(decide)  # type: ignore[arg-type]
    try:
        return [
            math.fsum(map(partial(judge_.instruction_ns, origin=origin), walk.step(kind, origin)))
            for kind, origin in judge_.workload.circle
        ]
    except DoesNotFit:
        return None


def as_they_lie(site: Site, kernel: str) -> float:
    """Nonsense that tells apart which kernel is taken, and how its operands lie."""
    return float(zlib.crc32(repr((kernel, position_free(site))).encode()) % 100_000)


@pytest.mark.parametrize("takes", [None, as_they_lie])
@given(data=st.data())
def test_a_replay_after_others_says_what_sessions_lower(
    takes: Takes | None, data: st.DataObject
) -> None:
    """Kernels are looked up by how operands lie, over whichever map that was asked first."""
    graph, _ = data.draw(graphs(most_ops=7))
    assume(graph.inputs)
    simple = simplify(graph)
    judge_ = judge(simple, data.draw(traces(simple, most=5)))
    judge_.planner.choices.takes = takes
    shape = judge_.uncut.turns, judge_.uncut.nodes
    for seed in data.draw(st.lists(st.integers(0, 99), min_size=2, max_size=3)):
        keep = np.random.default_rng(seed).random(shape) < 0.5
        retention = judge_.retention(keep)
        placement = judge_.planner.lay_out(
            retention, judge_.scenarios, WHOLE, budget_bytes=data.draw(st.integers(0, 10_000))
        )
        found = judge_.candidate(retention, WHOLE, placement, modelled=False)
        expected = lowered_ns(judge_, placement)
        assert (found is None) == (expected is None)
        assert found is None or list(found.replayed.times_ns) == expected


@pytest.mark.parametrize("takes", [None, as_they_lie])
@given(data=st.data())
def test_replays_of_retentions_that_differ_by_one_value_say_what_sessions_lower(
    takes: Takes | None, data: st.DataObject
) -> None:
    """Runs are decided and lowered from how they were over the maps before, whole or in pieces."""
    graph, _ = data.draw(graphs(most_ops=9))
    assume(graph.inputs)
    simple = simplify(graph)
    judge_ = judge(simple, data.draw(traces(simple, most=4)))
    judge_.planner.choices.takes = takes
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    keep = random.random((judge_.uncut.turns, judge_.uncut.nodes)) < 0.5
    ways = [WHOLE, *islice(cuts(judge_.planner.runs.propagator(())), 2)]
    for _ in range(data.draw(st.integers(2, 4))):
        retention = judge_.retention(keep)
        cut = data.draw(st.sampled_from(ways))
        placement = judge_.planner.lay_out(
            retention, judge_.scenarios, cut, budget_bytes=data.draw(st.integers(0, 10_000))
        )
        found = judge_.candidate(retention, cut, placement, modelled=False)
        expected = lowered_ns(judge_, placement, cut)
        assert (found is None) == (expected is None)
        assert found is None or list(found.replayed.times_ns) == expected
        if keep.size:
            turn, node = random.integers(keep.shape[0]), random.integers(keep.shape[1])
            keep[turn, node] ^= True


def test_planning_binds_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the first time: making what a kernel is called with takes longer than choosing."""

    def bind(option: Option, site: Site) -> BoundKernel:
        raise AssertionError(f"{option.kernel.name} is bound, and nobody calls it")

    monkeypatch.setattr(Option, "bound_at", bind)
    graph = convolutions(16)
    whole = {"image": Region.full((1, 3, 16, 16))}
    patch = {"image": Region((Box(((0, 1), (0, 3), (4, 8), (4, 8))),))}
    outputs = {name: Region.full(node.shape) for name, node in graph.outputs.items()}
    buckets = [Bucket.of(changed, outputs) for changed in (whole, patch, whole)]
    made = optimiser(graph, buckets, None).run("greedy", Effort(steps=0))
    assert made.search is not None
    assert made.search.best_ns > 0


def convolutions(size: int) -> Graph:
    g = GraphBuilder()
    at = g.input("image", (1, 3, size, size))
    random = np.random.default_rng(0)
    for i in range(5):
        weight = random.standard_normal((16, at.shape[1], 3, 3)).astype(np.float32)
        at = ops.relu(ops.conv(at, g.constant(weight), padding=1, stride=2 - i % 2))
    g.output("features", at)
    return simplify(g.build())


@pytest.mark.parametrize("share", [0.8, 1.1])
def test_runs_between_the_extremes_of_a_class_have_room_as_well(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch in the middle is seen by more than one in a corner: its kernels want more scratch."""
    monkeypatch.setattr(panels, "is_taken", lambda site: False)  # they want as much everywhere
    monkeypatch.setattr(sizing, "chains_in", lambda scheduled: ())  # nor what several want
    graph = convolutions(64)
    everything = {"features": Region.full(graph.outputs["features"].shape)}

    def patch(*sides: tuple[int, int]) -> Bucket:
        return Bucket.of({"image": Region((Box(((0, 1), (0, 3), *sides)),))}, everything)

    calls = [patch((0, 64), (0, 64))]
    calls += [patch((i, i + 8), (j, j + 8)) for i in range(1, 56, 11) for j in range(2, 56, 26)]
    roomy = optimiser(graph, calls, None).run("greedy").placement.size_bytes
    one = optimiser(graph, calls, int(share * roomy))
    made = one.run("greedy", Effort(steps=0))
    again = one.judge.candidate(made.retention, made.cut, made.placement, modelled=False)
    assert one.judge.wished
    assert again is not None
    assert not again.replayed.cramped


def patches() -> tuple[Graph, list[Bucket]]:
    """Four convolutions, and an image of which a patch changes."""
    g = GraphBuilder()
    at = g.input("image", (1, 3, 32, 32))
    random = np.random.default_rng(0)
    for _ in range(4):
        weight = random.standard_normal((16, at.shape[1], 3, 3)).astype(np.float32)
        at = ops.relu(ops.conv(at, g.constant(weight), padding=1))
    g.output("features", at)
    everything = {"features": Region.full(at.shape)}

    def patch(*sides: tuple[int, int]) -> Bucket:
        return Bucket.of({"image": Region((Box(((0, 1), (0, 3), *sides)),))}, everything)

    calls = [patch((0, 32), (0, 32)), *[patch((i, i + 4), (12, 16)) for i in range(8, 20)]]
    return simplify(g.build()), calls


def in_pieces() -> tuple[Judge, Candidate]:
    """A plan for patches of an image, in memory that holds no run whole, and all of its replay."""
    one = optimiser(*patches(), 160_000)
    made = one.run("greedy", Effort(steps=0))
    assert made.cut != WHOLE
    found = one.judge.candidate(made.retention, made.cut, made.placement)
    assert found is not None
    assert found.replayed.is_whole
    return one.judge, found


def test_what_was_not_replayed_takes_as_much_longer_than_in_the_model_as_what_was() -> None:
    """The model knows nothing of what pieces compute twice."""
    judge_, whole = in_pieces()
    some = judge_.candidate(whole.retention, whole.cut, whole.placement, most=8)
    assert some is not None
    assert len(some.replayed.times_ns) == 8
    assert some.modelled_ns < 0.85 * whole.time_ns
    assert some.time_ns == pytest.approx(whole.time_ns, rel=0.1)


def test_no_model_is_made_for_what_was_not_replayed() -> None:
    """Tables take longer than replays: where nobody asked for them, what was replayed stands."""
    judge_, whole = in_pieces()
    other = judge_.over(judge_.scheduled)
    found = other.candidate(
        whole.retention, whole.cut, whole.placement, modelled=False, stop=lambda times_ns: True
    )
    assert found is not None
    assert not found.replayed.is_whole
    assert other.tabulated is None
    assert found.time_ns == found.modelled_ns == found.replayed.mean_ns


def test_a_few_calls_are_replayed_however_late_it_is() -> None:
    judge_, whole = in_pieces()
    late = judge_.candidate(whole.retention, whole.cut, whole.placement, stop=lambda times_ns: True)
    assert late is not None
    assert len(late.replayed.times_ns) == 1 + FEWEST
    assert late.time_ns > late.modelled_ns


def test_what_turns_out_worse_than_the_greedy_plan_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first calls may flatter a plan."""
    judge_, greedy = in_pieces()
    search = PlanSearch(Findings(judge_), Asked("search", None), Spending(Effort(), lambda: False))
    search.greedy, best = greedy, replace(greedy, time_ns=0.9 * greedy.time_ns)
    for turns_out, taken in ((1.1, greedy.time_ns), (0.95, 0.95 * greedy.time_ns)):
        further = {id(best): replace(best, time_ns=turns_out * greedy.time_ns)}
        monkeypatch.setattr(
            search.layouts, "replayed_on", lambda one, share, known=further: known.get(id(one), one)
        )
        assert search._last_word(best).time_ns == taken


def test_a_plan_that_only_the_model_knows_does_not_replace_a_faster_replay() -> None:
    graph = convolutions(16)
    everything = {"features": Region.full(graph.outputs["features"].shape)}
    whole = Region.full(graph.inputs["image"].shape)
    judge_ = judge(graph, [Bucket.of({"image": whole}, everything)])
    retention = judge_.retention(judge_.uncut.none()[0])
    placement = judge_.planner.lay_out(retention, judge_.scenarios, WHOLE)
    found = judge_.candidate(retention, WHOLE, placement)
    assert found is not None
    assert found.replayed.is_whole
    replayed = replace(found, time_ns=3.4, modelled_ns=3.6)
    cut_short = replace(found.replayed, is_whole=False)
    for time_ns, is_better in ((3.5, False), (3.3, True)):
        modelled = replace(found, replayed=cut_short, time_ns=time_ns, modelled_ns=time_ns)
        assert modelled.beats(replayed) == is_better
        assert replayed.beats(modelled) != is_better


def test_what_was_appraised_in_one_class_is_asked_about_in_another() -> None:
    """Where bytes begin may be told by symbols of a class that another one has not."""
    torch.manual_seed(0)
    words = torch.randint(0, 200, (2, 40))
    session = GraphSession(from_torch(Words().eval(), (words,)), making="always", calibrate=False)
    edits: list[tuple[list[tuple[int, int]], Any]] = [
        ([], None), ([(0, 7)], np.s_[0:1, 12:23]), ([(0, 7), (1, 5)], None),
        ([(i, j) for i in range(2) for j in range(40)], None), ([(0, 31)], None),
    ]  # fmt: skip
    for places, want in edits:
        for place in places:
            words[place] = (words[place] + 1) % 200
        session.run(words, want=want)
    assert session.optimize("greedy").expected_ns > 0


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(200, 32) * 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return (functional.embedding(ids, self.table) @ self.table.T).log_softmax(-1)


def writing(tokens: int = 96, words: int = 512, width: int = 64) -> tuple[Graph, list[Bucket]]:
    """A decoder of two layers that writes, and edits a word that was written now and then."""
    g = GraphBuilder()
    ids = g.input("ids", (tokens,), "int64")
    table, causal = g.parameter("table", (words, width)), g.constant(np.tri(tokens, dtype=bool))
    x = ops.embedding(table, ids)
    for i in range(2):
        q, k, v = (ops.linear(x, g.parameter(f"{n}{i}", (width, width))) for n in "qkv")
        heads = [node.reshape(1, 1, tokens, width) for node in (q, k, v)]
        seen = ops.attention(*heads, causal).reshape(tokens, width)
        x = x + ops.linear(seen, g.parameter(f"o{i}", (width, width)))
        up = ops.gelu(ops.linear(x, g.parameter(f"up{i}", (4 * width, width))))
        x = x + ops.linear(up, g.parameter(f"down{i}", (width, 4 * width)))
    g.output("logits", ops.linear(x, table))

    def call(first: int, stop: int, asked: int) -> Bucket:
        rows = Region((Box(((asked, asked + 1), (0, words))),))
        return Bucket.of({"ids": Region((Box(((first, stop),)),))}, {"logits": rows})

    calls = [call(0, tokens, tokens // 2)]
    for at in range(tokens // 2 + 1, tokens // 2 + 16):
        calls.append(call(at, at + 1, at))
        if at % 4 == 3:
            calls.append(call(at - 6, at - 5, at))
    return g.build(), calls


def test_what_was_judged_before_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of which a decision holds nowhere else over one map may be moved over another."""
    graph, calls = writing()
    given = {name: np.zeros(node.shape, np.float32) for name, node in graph.parameters.items()}
    session = GraphSession(graph, given, memory=185_000, calibrate=False)
    search, seen = session.planning.task(calls, None).optimiser(), list[Candidate]()
    really = Judge.candidate

    def judged(self: Judge, *asked: Any, **more: Any) -> Candidate | None:
        found = really(self, *asked, **more)
        seen.extend(() if found is None else (found,))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "candidate", judged)
        patch.setattr(module, "IN_PIECES", 1.0)  # cuts of all kinds are laid out
        search.run("search", Effort(steps=400), seed=1)
    assert len(seen) > 3
    for one in {id(each.placement): each for each in seen}.values():
        fresh = search.judge.over(search.judge.scheduled)
        alone = fresh.candidate(one.retention, one.cut, one.placement)
        assert alone is not None
        assert alone.replayed.times_ns == one.replayed.times_ns
