"""Sessions that keep parts of nodes: views with bytes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph.test_unfold import sequences
from hypothesis import given
from hypothesis import strategies as st
from parts_cases import Array, Fused, fused, values_of
from session.test_session import histories, play, share_of_examples
from session_cases import CheckedSession, smallest_budget
from strategies import KINDS, Maker, graphs

import tgbench as tg
from tgbench.base.errors import PlanError
from tgbench.graph.graph import Graph
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.plan import Plan
from tgbench.plans.planner import Planner
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession
from tgbench.session.what_if import WhatIf

LAYERS, ROWS, WIDE = 4, 48, 64
KEPT = [f"{part}{i}" for i in range(LAYERS) for part in "kv"]
MANY_VIEWS = (*KINDS, "slice", "slice", "slice", "reshape", "permute")


@cache
def decoder() -> Graph:
    return fused(LAYERS, ROWS, WIDE)


@cache
def roomy() -> int:
    """What keeping everything takes."""
    session = GraphSession(decoder(), {n: values()[n] for n in decoder().parameters})
    session.run({"x": values()["x"]}, {"y": np.s_[ROWS - 1]})
    assert not session.plan.copied
    assert session.plan.retained == tuple(f"qkv{i}" for i in range(LAYERS))
    return session.placement.size_bytes


@cache
def values() -> dict[str, Array]:
    return values_of(decoder())


def tight(share: float = 0.85, **options: Any) -> CheckedSession:
    """In a part of that; it has computed a prompt, and its last row."""
    session = CheckedSession(decoder(), values(), memory=int(share * roomy()), **options)
    session.run(want={"y": np.s_[ROWS - 1]})
    return session


def edited_at(session: CheckedSession, row: int) -> dict[str, Array]:
    x = session.values["x"].copy()
    x[row] = np.random.default_rng(session.session.counters.runs).integers(-1, 2, WIDE)
    return {"x": x}


# --- what is kept, and what re-runs ---------------------------------------------------------------


def test_keys_and_values_are_kept_without_queries() -> None:
    plan = tight().session.plan
    assert [*plan.retained] == [*plan.copied] == KEPT
    assert not plan.dropped
    assert plan.cut[2] == 1
    slots = {slot.node: slot for slot in plan.slots}
    whole, *_ = (slot.size_bytes for slot in slots.values() if slot.node == "x")
    assert sum(slots[name].size_bytes for name in KEPT) == 2 * LAYERS * whole  # of 3 × LAYERS
    assert not slots["qkv0"].retained


def test_an_appended_row_computes_one_row() -> None:
    """Every row of the product is computed once, copied, and gone."""
    session = tight(poison=np.float32(np.nan).tobytes())
    for row in (ROWS - 1, ROWS - 2, ROWS - 1):
        session.run(edited_at(session, row), {"y": np.s_[row]})
        compute = session.session.last.compute
        for i in range(LAYERS):
            for name in (f"qkv{i}", f"k{i}", f"v{i}", f"out{i}"):
                rows = {box[0] for box in compute[name]}
                assert rows == {(row, row + 1)}, name
        assert session.session.counters.planned == 1


def test_an_edited_row_computes_what_lies_behind_it() -> None:
    session = tight()
    session.run(edited_at(session, ROWS - 5), {"y": np.s_[ROWS - 1]})
    compute = session.session.last.compute
    assert [box[0] for box in compute["k0"]] == [(ROWS - 5, ROWS - 4)]
    for i in range(1, LAYERS):
        assert [box[0] for box in compute[f"k{i}"]] == [(ROWS - 5, ROWS)]


def test_more_memory_keeps_everything_again() -> None:
    session = tight()
    session.session.budget_bytes = None
    session.session.plan_for([({"x": np.s_[0]}, None)])
    assert not session.session.plan.copied
    session.run(edited_at(session, 3))


def words(ids: Array) -> Iterator[tuple[Array, Any]]:
    random = np.random.default_rng(0)
    for at in (12, 13, 20, 14, 40, 47):
        ids = ids.copy()
        ids[0, at] = random.integers(1, 32)
        yield ids, np.s_[:, at]


def test_an_imported_decoder_keeps_keys_and_values() -> None:
    torch.manual_seed(0)
    model = Fused(layers=4, wide=128).eval()
    ids = np.random.default_rng(1).integers(1, 32, (1, 48))
    imported = tg.from_torch(model, (torch.from_numpy(ids),))
    everything = GraphSession(imported, calibrate=False)
    everything.run(ids, want=np.s_[:, -1])
    size = everything.placement.size_bytes
    session = GraphSession(imported, memory=int(0.75 * size), calibrate=False)
    session.run(ids, want=np.s_[:, -1])
    assert len(session.plan.copied) == len(session.plan.retained) == 8
    assert 3 * retained_bytes(session) == 2 * retained_bytes(everything)
    for changed, want in words(ids):
        (found,) = session.run(changed, want=want).values()
        with torch.inference_mode():
            right = model(torch.from_numpy(changed)).numpy()
        np.testing.assert_allclose(found, right[want], 1e-5, 1e-5)
    assert session.counters.planned == 1


def retained_bytes(session: GraphSession) -> int:
    placement = session.placement
    return sum(placement.size_of(node) for node in placement.retained if not node.is_leaf)


def test_bits_are_those_of_a_full_run() -> None:
    torch.manual_seed(0)
    model = Fused(layers=2).eval()
    ids = np.random.default_rng(1).integers(1, 32, (1, 48))
    imported = tg.from_torch(model, (torch.from_numpy(ids),))

    def session() -> GraphSession:
        return GraphSession(imported, exact="bitwise")

    one = session()
    one.run(ids)
    views = [n.name for n in one.graph.nodes if n.op == "slice" and n not in one.graph.frozen]
    one.adopt(by_hand(one, *views))
    assert len(one.plan.copied) == len(views) == 6
    for changed, _ in words(ids):
        (found,), (right,) = one.run(changed).values(), session().run(changed).values()
        assert found.tobytes() == right.tobytes()
    assert one.counters.planned == 1


# --- by hand --------------------------------------------------------------------------------------


def by_hand(session: GraphSession, *views: str) -> Plan:
    what = WhatIf.of(session)
    for view in views:
        what = what.retained(view)
    return what.plan


def test_a_view_that_is_retained_by_hand_gets_bytes() -> None:
    session = CheckedSession(decoder(), values())
    session.run(want={"y": np.s_[ROWS - 1]})
    what = WhatIf.of(session.session).retained("k0").retained("v0").dropped("qkv0")
    assert what.plan.copied == ("k0", "v0")
    assert {"k0", "v0"} <= set(what.plan.retained)
    assert what.code().endswith(".retained('k0').retained('v0').dropped('qkv0').plan")
    session.session.adopt(what.plan)
    for row in (7, ROWS - 1):
        session.run(edited_at(session, row), {"y": np.s_[ROWS - 1]})
    for name in ("qkv0", "k0", "qkv1"):
        assert [box[0] for box in session.session.last.compute[name]] == [(ROWS - 1, ROWS)]
    gone = WhatIf.of(session.session).dropped("k0").dropped("v0").retained("qkv0").plan
    assert not gone.copied
    assert gone.retained == tuple(f"qkv{i}" for i in range(LAYERS))
    assert what.undone().plan.retained[0] == "qkv0"


def test_what_shows_no_computed_bytes_cannot_be_retained() -> None:
    g = tg.GraphBuilder()
    x, weight = g.input("x", (4, 6)), g.parameter("weight", (4, 6))
    left = g.name(x[:, :3], "left")
    frozen = g.name((weight * 2.0)[:, :3], "frozen")
    g.output("y", left + frozen)
    g.output("z", x * weight)
    session = GraphSession(g.build(), {"weight": np.ones((4, 6), np.float32)})
    session.run({"x": np.ones((4, 6), np.float32)})
    for name in ("frozen", "weight", "x"):
        with pytest.raises(PlanError, match="no bytes that can be given"):
            WhatIf.of(session).retained(name)
    assert by_hand(session, "left").copied == ("left",)  # a part of an input may be kept as well


@share_of_examples(2)
@given(graphs(most_ops=10, kinds=MANY_VIEWS), st.data(), st.floats(0, 1))
def test_any_views_with_bytes_change_no_value(
    case: tuple[Graph, Maker], data: Any, share: float
) -> None:
    """In a budget, where a plan divides nodes itself, and with any others by hand."""
    graph, make = case
    low = smallest_budget(graph, make(0))
    room = CheckedSession(graph, make(0))
    room.run()
    budget = low + int(share * max(room.session.placement.size_bytes - low, 0))
    limit = data.draw(st.sampled_from([None, budget]))
    session = CheckedSession(graph, make(0), memory=limit)
    play(session, make, data.draw(histories(graph, most=3)))
    if not session.session.is_planned:
        return
    there = views(session.session)
    for name in data.draw(st.lists(st.sampled_from(there), unique=True)) if there else ():
        retain_by_hand(session.session, name)
    play(session, make, data.draw(histories(graph)))


def retain_by_hand(session: GraphSession, view: str) -> None:
    """If there is room for it, and planned runs look at it."""
    with suppress(PlanError):
        session.adopt(by_hand(session, view))
        assert view in session.plan.copied


def views(session: GraphSession) -> list[str]:
    scheduled = session.scheduled
    return [node.name for node in scheduled.schedule if node in scheduled.views]


@share_of_examples(2)
@given(graphs(most_ops=8, kinds=MANY_VIEWS), st.data())
def test_any_order_with_any_views_copied(case: tuple[Graph, Maker], data: Any) -> None:
    """Views that are computed more than once in a run are copied each time."""
    graph, make = case
    first = CheckedSession(graph, make(0))
    runs = first.session.graph
    shown = [n for n in ScheduledGraph.of(runs).views if n not in runs.frozen]
    copied = data.draw(st.sets(st.sampled_from(shown)) if shown else st.just(set()))
    scheduled = ScheduledGraph.of(runs, data.draw(sequences(runs)), copied)
    assert {node.call for node in copied} <= {node.call for node in scheduled.stored}
    planner = Planner(scheduled, Rules(), "cpu")
    kind, origin = first.session.planning.afresh().classify(runs)
    made = planner.plan_once(planner.scenarios({kind: (1.0, origin)}), None)
    plan = Plan.from_json(Plan.of(runs, made, "cpu", None).to_json())
    assert set(plan.copied) == {node.name for node in copied}
    session = CheckedSession(graph, make(0), plan=plan)
    play(session, make, data.draw(histories(graph)))


# --- files ----------------------------------------------------------------------------------------


def test_plans_and_programs_start_a_session(tmp_path: Path) -> None:
    one = tight()
    one.run(edited_at(one, ROWS - 1), {"y": np.s_[ROWS - 1]})
    path = one.session.save_plan(tmp_path / "plan.json")
    assert Plan.load(path) == one.session.plan
    one.session.save_programs(tmp_path / "programs")
    other = CheckedSession(decoder(), values(), plan=path)
    assert other.session.load_programs(tmp_path / "programs") == len(one.session.programs)
    other.run(want={"y": np.s_[ROWS - 1]})
    other.run(edited_at(other, ROWS - 1), {"y": np.s_[ROWS - 1]})
    assert other.session.counters.planned == other.session.counters.specialised == 0
    assert tight().session.plan.to_json() == path.read_text()


def test_a_plan_of_before_copies_nothing() -> None:
    session = CheckedSession(decoder(), values())
    session.run()
    fields = json.loads(session.session.plan.to_json())
    assert fields.pop("copied") == []
    assert Plan.from_json(json.dumps(fields)) == session.session.plan


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nobody"], "copied: the graph has no node 'nobody'"),
        (["qkv0"], "copied: 'qkv0' is not a view of a run"),
        (["x"], "copied: 'x' is not a view of a run"),
        (["k0", "k0"], "copied: a view is there twice"),
        ([3], "copied: holds something that is not a name"),
        ("k0", "copied: 'k0' is not a list"),
        ([], "slots.k0: not a node with bytes"),
    ],
)
def test_views_that_are_none_are_refused(names: Any, message: str) -> None:
    session = tight().session
    fields = json.loads(session.plan.to_json())
    with pytest.raises(PlanError, match=message):
        session.adopt(Plan.from_json(json.dumps({**fields, "copied": names})))


def test_what_is_said_of_it() -> None:
    everything = CheckedSession(decoder(), values())
    everything.run(want={"y": np.s_[ROWS - 1]})
    session = tight().session
    assert "bytes of their own, 8 views: k0, v0, k1, v1, k2, v2 …" in str(session.plan)
    told = str(session.plan.explain("k0", session.graph))
    assert "retained through every run" in told
    assert "a view that has bytes of its own" in told
    assert session.plan.explain("slice", session.graph).role == "view"
    change = str(everything.session.plan.diff(session.plan))
    assert "8 with bytes of their own now: k0" in change
    assert "8 without bytes of their own now" in str(session.plan.diff(everything.session.plan))
    assert session.estimate_memory()["cpu"].arena_bytes == session.placement.size_bytes


# --- searches -------------------------------------------------------------------------------------


def test_a_search_goes_on_with_the_views_of_its_plan() -> None:
    """By what calls are modelled to take: by the clock, copies that lie well may be worth it."""
    session = tight(calibrate=False)
    session.run(edited_at(session, ROWS - 1), {"y": np.s_[ROWS - 1]})
    before = session.session.plan
    found = session.session.optimize("search", steps=4)
    assert found.copied == before.copied
    session.run(edited_at(session, 5), {"y": np.s_[ROWS - 1]})
    assert not session.session.optimize("greedy", budget=2 * roomy()).copied
    session.run(edited_at(session, 6), {"y": np.s_[ROWS - 1]})


def test_a_search_divides_nodes_where_that_is_quicker() -> None:
    session = CheckedSession(decoder(), values())
    for row in (ROWS - 3, ROWS - 2, ROWS - 1):
        session.run(edited_at(session, row), {"y": np.s_[row]})
    found = session.session.optimize("greedy", budget=int(0.85 * roomy()), steps=0)
    assert found.copied == tuple(KEPT)
    for _ in range(2):
        session.run(edited_at(session, ROWS - 1), {"y": np.s_[ROWS - 1]})
    assert session.session.last.compute["k0"].elements == WIDE


def test_a_search_elsewhere_finds_the_same() -> None:
    session = tight()
    session.run(edited_at(session, ROWS - 1), {"y": np.s_[ROWS - 1]})
    task = session.session.search("greedy").task
    optimiser = task.optimiser()
    assert {node.name for node in optimiser.judge.scheduled.copied} == set(KEPT)
    start = Plan.from_json(task.start_json or "").placement_for(
        optimiser.judge.scheduled.folded, optimiser.judge.device
    )
    made = optimiser.run("greedy", start=start)
    session.session.adopt(Plan.of(optimiser.judge.scheduled.folded, made, "cpu", task.budget_bytes))
    assert session.session.plan.copied == tuple(KEPT)
    session.run(edited_at(session, 5), {"y": np.s_[ROWS - 1]})
