"""Plans: the same bytes for the same decisions, a schema that they keep, and adoption."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import GOLDEN
from session.test_bad_input import STRANGE, paths_of, replaced
from session.test_session import causal, causal_values, deep, share_of_examples, stateful
from session_cases import CheckedSession, smallest_budget
from strategies import Maker, graphs

from tgbench import ops
from tgbench.base.errors import PlanError
from tgbench.base.machine import Machine
from tgbench.base.words import format_bytes
from tgbench.costs.records import Records
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.simplify import simplify
from tgbench.memory.placement import Retention
from tgbench.plans.decisions import Decisions, SearchRecord
from tgbench.plans.plan import Plan
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.judge import Judge
from tgbench.runs.propagate import rough_ns
from tgbench.runs.split import WHOLE
from tgbench.session.profile import profile
from tgbench.session.session import GraphSession

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads((resources.files("tgbench") / "schemas" / "plan-4.json").read_text())


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def decoded(rows: int = 8, **options: Any) -> CheckedSession:
    graph = causal(rows)
    session = CheckedSession(graph, causal_values(graph, 0), **options)
    for t in (4, 5, 6):
        x = session.values["x"].copy()
        x[t] = [2, -2]
        session.run({"x": x}, {"y": np.s_[t]})
    return session


@cache
def saved_plan() -> str:
    """A plan that holds everything that a plan can: partly retained nodes, reasons, a search."""
    session = decoded().session
    buckets = [call.bucket for call in session.trace]
    workload = Workload.of(session.scheduled, session.rules, buckets)
    planning = Judge(session.scheduled, session.rules, workload, rough_ns)
    first, *others = (session.graph.node(name) for name in session.plan.retained)
    always = Retention.always(others, workload.turns)
    retention = replace(always, after={**always.after, first: frozenset([0])})
    made = Decisions(
        session.scheduled, planning.planner.lay_out(retention, planning.scenarios, WHOLE),
        retention, (first,), WHOLE, planning.classes, 1e5, dict.fromkeys(others, (64, 1.5e4)), 0.25,
        SearchRecord("search", 7, 40, "steps", 1e5, 1.1e5, 4e5, 2e5, 9e4, ((0, 2e5), (12, 1e5))),
    )  # fmt: skip
    return Plan.of(session.graph, made, "cpu", 4096).to_json()


def plans() -> dict[str, Plan]:
    graph = deep()
    values = causal_values(graph, 0)
    tight = CheckedSession(graph, values, memory=smallest_budget(graph, values))
    tight.run()
    states = CheckedSession(stateful(0), {"x": np.zeros(4, "float32")})
    for _ in range(2):
        states.run(want={"seen": np.s_[1]})
    searched = decoded(memory=1500)
    searched.session.optimize("search", steps=4)
    sessions = {"decoded": decoded(), "everything": decoded(retain="all"), "tight": tight,
                "states": states, "searched": searched}  # fmt: skip
    found = {name: checked.session.plan for name, checked in sessions.items()}
    return {**found, "by hand": Plan.from_json(saved_plan())}


# --- the file -------------------------------------------------------------------------------------


def test_saved_plans_keep_the_schema_and_come_back_equal(validator: Any, tmp_path: Path) -> None:
    for name, plan in plans().items():
        plan.save(tmp_path / f"{name}.json")
        validator.validate(json.loads((tmp_path / f"{name}.json").read_text()))
        loaded = Plan.load(tmp_path / f"{name}.json")
        assert loaded == plan, name
        assert loaded.to_json() == plan.to_json()
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"], "left-over files"


@given(graphs(most_ops=6))
def test_plans_of_any_graph_keep_the_schema(validator: Any, case: tuple[Graph, Maker]) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0), retain="all")
    session.run()
    text = session.session.plan.to_json()
    validator.validate(json.loads(text))
    assert Plan.from_json(text).to_json() == text


@given(st.data())
def test_what_the_schema_rejects_is_no_plan(validator: Any, data: Any) -> None:
    plan = json.loads(saved_plan())
    path = data.draw(st.sampled_from(paths_of(plan)))
    kind = data.draw(st.sampled_from(["replace", "drop", "add"]))
    if kind == "add":
        place = plan
        for key in path[:-1]:
            place = place[key]
        if not isinstance(place, dict):
            return
        place["zzz"] = data.draw(STRANGE)
        changed = plan
    else:
        changed = replaced(plan, path, data.draw(STRANGE), drop=kind == "drop")
    if not validator.is_valid(changed):
        with pytest.raises(PlanError):
            Plan.from_json(json.dumps(changed))


def test_a_file_that_is_no_plan_is_told_with_its_own_mend(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError, match=r"plan.json: there is no such file; check the path"):
        Plan.load(path)
    with pytest.raises(PlanError, match="a directory; pass the file in it"):
        Plan.load(tmp_path)
    for content in (b"\xff\xfe", b"hello", b"[1, 2]", b'{"bucket": 3}', b""):
        path.write_bytes(content)
        with pytest.raises(
            PlanError, match=r"plan.json: (without a version this is )?not a plan; pass a file that"
        ):
            Plan.load(path)
    path.write_text('{"nodes": [], "version": 1}')
    with pytest.raises(PlanError, match=r"a graph, not a plan; pass a file that `session\.save"):
        Plan.load(path)
    path.write_text(saved_plan()[:200])
    with pytest.raises(PlanError, match=r"damaged \(.*\); restore a copy, or delete it"):
        Plan.load(path)


DAMAGE: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "through no turn": (("slots", "k0", "through"), [9], r"through: \[9\] is not some of \d turns"),
    "through nothing": (("slots", "k0", "through"), [], r"through: \[\] is not some of \d turns"),
    "turns of nobody": (("turns", 0, "of"), 9, r"turns\[0\]: .* is not a new one of 2 buckets"),
    "a turn twice": (("turns",), [{"of": 0, "before": 0}] * 2, r"turns\[1\]: .* is not a new one"),
    "after nobody": (("turns", 0, "before"), -1, r"turns\[0\].before: -1 is not a whole number"),
    "no turns": (("turns",), [], "turns: there are none"),
    "through text": (("slots", "k0", "through"), "all", "through: 'all' is not a list"),
    "through half": (("slots", "k0", "through"), [0.5], "through: .* holds more than counts"),
    "through before 0": (("slots", "k0", "through"), [-1], "through: .* holds more than counts"),
    "through, not retained": (("slots", "k0", "retained"), False, "which a retained node is there"),
    "bytes that are not there": (("slots", "k0", "size_bytes"), 128, r"k0\.size_bytes: not what"),
    "start nowhere": (("slots", "k0", "start"), [], r"k0\.start: 0 numbers for 2 dim.*; delete"),
    "reasons for nobody": (("reasons", 0, "node"), "k9", "reasons: the graph has no node 'k9'"),
    "reasons of nothing": (("reasons", 0), None, r"reasons\[0\]: None is not an object"),
    "negative savings": (("reasons", 0, "saves_ns"), -1.0, r"reasons\[0\].saves_ns: -1.0 is not"),
    "half a byte": (("reasons", 0, "size_bytes"), 0.5, r"reasons\[0\].size_bytes: 0.5 is not"),
    "negative price": (("price_ns",), -1, "price_ns: -1 is not a number ≥ 0"),
    "search that is none": (("search",), [], r"search: \[\] is not an object"),
    "seed": (("search", "seed"), -3, "search.seed: -3 is not a whole number"),
    "steps": (("search", "steps"), 1.5, "search.steps: 1.5 is not a whole number"),
    "mode": (("search", "mode"), None, "search.mode: None is not text"),
    "stop": (("search", "stop"), 3, "search.stop: 3 is not text"),
    "another stop": (("search", "stop"), "tired", "search.stop: .*tired.* is not one of greedy, "),
    "best": (("search", "best_ns"), "fast", "search.best_ns: 'fast' is not a number"),
    "bound": (("search", "bound_ns"), True, "search.bound_ns: True is not a number"),
    "history": (("search", "history"), {}, "search.history: {} is not a list"),
    "history of one": (("search", "history", 1), [12], r"history\[1\]: \[12\] is not \[step, best"),
    "history before 0": (("search", "history", 0), [-1, 2.0], r"history\[0\]: .* is not \[step"),
    "history of text": (("search", "history", 0), [0, "2"], r"history\[0\].ns: '2' is not a numb"),
    "a schedule of others": (("schedule", 0), "k9", "schedule: the graph has no node 'k9'"),
    "an input in it": (("schedule", 0), "x", "schedule: not the graph's nodes"),
    "a schedule of one": (("schedule",), ["k0"], "schedule: not the graph's nodes"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_damaged_is_named(case: str) -> None:
    path, value, message = DAMAGE[case]
    plan = json.loads(saved_plan())
    if path[0] == "slots":
        names = [slot["node"] for slot in plan["slots"]]
        path = ("slots", names.index(path[1]), *path[2:])
    with pytest.raises(PlanError, match=message):
        adopted(replaced(plan, path, value, drop=False))


@pytest.mark.parametrize("field", ["mode", "seed", "modelled_ns", "history"])
def test_what_is_missing_of_a_search_is_named(field: str) -> None:
    with pytest.raises(PlanError, match=rf"search\.{field}: missing"):
        adopted(replaced(json.loads(saved_plan()), ("search", field), None, drop=True))


def adopted(plan: Any) -> Decisions:
    return Plan.from_json(json.dumps(plan)).placement_for(simplify(causal(8)), "cpu")


def test_a_plan_with_everything_comes_back_as_it_was() -> None:
    made = adopted(json.loads(saved_plan()))
    nodes = {node.name: node for node in made.retention.after}
    assert made.retention.after[nodes["k0"]] == {0}
    assert made.retention.after[nodes["k1"]] == set(range(len(made.retention.turns)))
    assert made.retention.is_partial(nodes["k0"])
    assert not made.retention.is_partial(nodes["k1"])
    assert made.worth[nodes["k1"]] == (64, 1.5e4)
    assert made.price_ns == 0.25
    assert made.search is not None
    assert made.search.history == ((0, 2e5), (12, 1e5))
    assert made.search.gap == pytest.approx(1e5 / 9e4 - 1)
    slots = {slot.node: slot for slot in Plan.from_json(saved_plan()).slots}
    assert slots["k0"].through == (0,)
    assert slots["k1"].through is None


@pytest.mark.parametrize(
    ("onto", "kept_bytes", "clashes"),
    [
        ("matmul_1", 0, True),  # read to make it
        ("k1", 0, False),  # made when nothing reads k0 any more
        ("matmul_5", 0, False),
        ("matmul_5", 1 << 20, True),  # below kept_bytes nothing is shared
        ("x", 0, True),
    ],
)
def test_what_is_kept_after_some_runs_may_lie_only_on_what_is_live_at_other_steps(
    onto: str, kept_bytes: int, clashes: bool
) -> None:
    """k0 is, and everything else has bytes of its own."""
    plan = json.loads(saved_plan())
    slots = {slot["node"]: slot for slot in plan["slots"]}
    for i, slot in enumerate(plan["slots"]):
        slot |= {"offset_bytes": 512 * i, "donor": "", "scratch_bytes": 0}
    slots["k0"]["offset_bytes"] = slots[onto]["offset_bytes"]
    size_bytes = 512 * len(slots) - 448
    plan |= {"size_bytes": size_bytes, "kept_bytes": min(kept_bytes, size_bytes)}
    if clashes:
        with pytest.raises(PlanError, match="share bytes while both are live"):
            adopted(plan)
    else:
        overlaps = adopted(plan).placement.overlaps
        assert onto in next(
            [other.name for other in others]
            for node, others in overlaps.items()
            if node.name == "k0"
        )


@given(st.data())
def test_a_damaged_plan_with_everything_is_refused_or_still_right(data: Any) -> None:
    plan, graph = json.loads(saved_plan()), causal(8)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(paths_of(plan)))
        plan = replaced(plan, path, data.draw(STRANGE), drop=False)
    try:
        loaded = Plan.from_json(json.dumps(plan))
        session = CheckedSession(graph, causal_values(graph, 0), plan=loaded)
    except PlanError:
        return
    for t in (2, 3, 3, 7):
        x = session.values["x"].copy()
        x[t] = [2, -1]
        session.run({"x": x}, {"y": np.s_[t]})
    for name in [slot.node for slot in loaded.slots]:
        assert str(loaded.explain(name))


# --- the schedule ---------------------------------------------------------------------------------


def branches() -> Graph:
    """Three branches of two nodes each, and their sum: 6! / 2³ orders, and then two."""
    g = GraphBuilder()
    x = g.input("x", (4, 2))
    first, second, third = (
        g.name(ops.maximum(g.name(x * factor, f"in{factor:.0f}"), 0.0), f"out{factor:.0f}")
        for factor in (2.0, 3.0, 4.0)
    )
    g.output("y", g.name(g.name(first + second, "pair") + third, "sum"))
    return g.build()


@cache
def roomy() -> tuple[Plan, Graph]:
    """A plan in which every node has bytes of its own, so that the order alone can be wrong."""
    session = GraphSession(branches(), retain="all")
    session.run({"x": np.zeros((4, 2), "float32")})
    plan = session.plan
    slots = tuple(
        replace(slot, offset_bytes=64 * i, donor="", scratch_bytes=0)
        for i, slot in enumerate(plan.slots)
    )
    return replace(plan, slots=slots, size_bytes=64 * len(slots), kept_bytes=64), session.graph


def inputs_of(name: str) -> list[str]:
    return [parent.name for parent in roomy()[1].node(name).inputs]


def topological(order: Sequence[str]) -> tuple[str, ...]:
    """These names in the same order but where one would come before what it reads."""
    left, found = list(order), []
    while left:
        ready = next(n for n in left if not any(parent in left for parent in inputs_of(n)))
        left.remove(ready)
        found.append(ready)
    return tuple(found)


@given(st.data())
def test_any_order_in_which_nodes_follow_what_they_read_is_a_schedule(data: Any) -> None:
    """And no other."""
    plan, graph = roomy()
    order = tuple(data.draw(st.permutations(plan.schedule)))
    order = topological(order) if data.draw(st.booleans()) else order
    place = {name: step for step, name in enumerate(order)}
    turned = Plan.from_json(replace(plan, schedule=order).to_json())
    if all(place.get(parent, -1) < place[name] for name in order for parent in inputs_of(name)):
        made = turned.placement_for(graph, "cpu")
        assert tuple(node.name for node in made.scheduled.schedule) == order
    else:
        with pytest.raises(PlanError, match=r"schedule: \w+ comes before \w+, which it reads"):
            turned.placement_for(graph, "cpu")


@share_of_examples(2)
@given(st.data())
def test_a_session_runs_in_the_order_of_its_plan(data: Any) -> None:
    plan, _ = roomy()
    order = topological(data.draw(st.permutations(plan.schedule)))
    values = {"x": np.arange(8, dtype="float32").reshape(4, 2)}
    session = CheckedSession(branches(), values, plan=replace(plan, schedule=order))
    session.run()
    ran = [node.name for step in session.session.last.program.steps for node in step.compute]  # type: ignore[union-attr]
    assert ran == list(order)
    assert session.session.plan.schedule == order
    assert session.session.counters.planned == 0


# --- decisions ------------------------------------------------------------------------------------


@share_of_examples(2)
@given(graphs(most_ops=6), st.floats(0, 1))
def test_equal_sessions_make_equal_plans(case: tuple[Graph, Maker], share: float) -> None:
    graph, make = case
    low = smallest_budget(graph, make(0))
    texts = []
    for _ in range(2):
        session = CheckedSession(graph, make(0), memory=low + int(share * 4096))
        session.run()
        texts.append(session.session.plan.to_json())
    assert texts[0] == texts[1]


def test_an_adopted_plan_is_used_as_it_is(tmp_path: Path) -> None:
    first = decoded()
    path = first.session.save_plan(tmp_path / "plan.json")
    graph = causal(8)
    second = CheckedSession(graph, causal_values(graph, 0), plan=path)
    assert second.session.placement.slots.keys()
    assert second.session.plan.to_json() == first.session.plan.to_json()
    for t in (4, 5, 6):
        x = second.values["x"].copy()
        x[t] = [2, -2]
        second.run({"x": x}, {"y": np.s_[t]})
    assert second.session.counters.planned == 0
    second.run()  # a class that the plan does not know, and has no room for
    assert second.session.counters.planned <= 1


def test_prepare_makes_the_programs_that_runs_then_find(tmp_path: Path) -> None:
    path = decoded().session.save_plan(tmp_path / "plan.json")
    graph = causal(8)
    session = CheckedSession(graph, causal_values(graph, 0), plan=path)
    assert session.session.prepare() > 0
    assert session.session.prepare() == 0, "they are there already"
    assert session.session.counters.runs == 0
    session.run(want={"y": np.s_[0]})
    assert session.session.prepare(seconds=0) == 0


def test_a_plan_of_another_machine_says_so_until_it_is_made_anew() -> None:
    first = decoded().session
    assert first.plan.machine == Machine.here().facts
    assert "elsewhere" not in str(first.plan)
    other = replace(first.plan, machine={**first.plan.machine, "threads": "64"}, expected_ns=7e9)
    first.adopt(Plan.from_json(other.to_json()))
    assert (first.plan.machine, first.plan.expected_ns) == (other.machine, 7e9)
    assert "expected 7 s a run elsewhere ('threads 64')" in str(first.plan)
    first.optimize("search", steps=1)
    assert first.plan.machine == Machine.here().facts
    assert first.plan.expected_ns < 7e9


def test_a_plan_names_the_measurements_that_its_times_stand_on(tmp_path: Path) -> None:
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (2, 8)), g.parameter("w", (8, 8))))
    graph, x = g.build(), {"x": np.ones((2, 8), "float32")}
    w = {"w": np.ones((8, 8), "float32")}
    by_models = GraphSession(graph, w, calibrate=False)
    by_models.run(x)
    assert by_models.plan.records == ""
    records = Records(tmp_path / "records.db")
    profile(by_models, records, seconds=5)
    measured = GraphSession(graph, w, records=records, calibrate=False)
    measured.run(x)
    assert measured.plan.records == measured.costs.basis
    assert f" a run, by {measured.plan.records}\n" in str(measured.plan)
    kept = Plan.from_json(measured.plan.to_json())
    assert kept.records == measured.plan.records
    assert Plan.from_json(by_models.plan.to_json()).records == ""
    old = json.loads(measured.plan.to_json())
    del old["records"]
    assert Plan.from_json(json.dumps(old)).records == ""
    old["records"] = 3
    with pytest.raises(PlanError, match="records: 3 is not a text"):
        Plan.from_json(json.dumps(old))


def test_a_plan_reads_well() -> None:
    """But for the graph's hash and the modelled time."""
    text = re.sub(r"for \w{12} |[\d.]+ [nµm]s", "# ", str(decoded().session.plan))
    assert text + "\n" == (GOLDEN / "plan_decoded.txt").read_text()


def test_bytes_of_the_plan_are_the_bytes_of_the_arena() -> None:
    session = decoded().session
    assert session.memory.arena.numel() == session.plan.size_bytes
    assert session.estimate_memory()["cpu"].arena_bytes == session.plan.size_bytes
    assert session.plan.bound_bytes <= session.plan.size_bytes


def test_a_plan_for_one_graph_is_not_for_another(tmp_path: Path) -> None:
    path = decoded().session.save_plan(tmp_path / "plan.json")
    graph = causal(8, window=2)
    values = causal_values(graph, 0)
    weights = {name: values[name] for name in graph.parameters}
    with pytest.raises(PlanError, match="delete the plan to make another"):
        GraphSession(graph, weights, plan=path)


def test_what_is_said_to_be_retained_is_what_retained_nodes_take() -> None:
    session = decoded()
    plan = session.session.plan
    sizes = {slot.node: slot.size_bytes for slot in plan.slots}
    kept = sum(sizes[name] for name in plan.retained)
    assert 0 < kept == plan.retained_bytes < plan.kept_bytes  # which has inputs as well
    assert f"retained in {format_bytes(kept)}," in str(plan)


def test_the_text_of_a_plan_fits_a_screen() -> None:
    """Whatever there is in it: the most frequent runs are told, and how many others there are."""
    plan = decoded().session.plan
    bucket = plan.buckets[0]
    wide = (*bucket.demand, *((f"y{i}", (((0, 1),),)) for i in range(500)))
    many = [replace(bucket, weight=1.0 + i, bounds=(i,)) for i in range(99)]
    many[3] = replace(many[3], weight=1000.0, demand=wide)
    lines = str(replace(plan, buckets=tuple(many))).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 240
    assert lines[1].startswith("      1000 × ")
    assert lines[2].startswith("        99 × ")
    assert lines[-1] == "  … and 69 more classes, 42% of the runs"


def test_a_search_without_a_budget_says_what_to_give_it() -> None:
    session = decoded().session
    plan = session.optimize("search", steps=8)
    found = f"give one below {format_bytes(plan.size_bytes)} by memory="
    assert found in plan.unsearched
    assert f"  {plan.unsearched}" in str(plan).splitlines()
    assert not session.optimize("greedy").unsearched, "nobody asked for a search"
    assert not session.optimize("search", steps=8, budget=plan.size_bytes).unsearched
