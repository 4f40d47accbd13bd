"""Plans: the same bytes for the same decisions, a schema that they keep, and adoption."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import CheckedSession, smallest_budget
from strategies import Maker, graphs
from test_bad_input import STRANGE, paths_of, replaced
from test_session import causal, causal_values, deep, share_of_examples, stateful

from tgbench.errors import PlanError
from tgbench.graph import Graph
from tgbench.plan import Plan
from tgbench.session import GraphSession

jsonschema = pytest.importorskip("jsonschema")
GOLDEN = Path(__file__).parent / "golden"
SCHEMA = json.loads((resources.files("tgbench") / "schemas" / "plan-1.json").read_text())


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
    return decoded().session.plan.to_json()


def plans() -> dict[str, Plan]:
    graph = deep()
    values = causal_values(graph, 0)
    tight = CheckedSession(graph, values, memory=smallest_budget(graph, values))
    tight.run()
    states = CheckedSession(stateful(0), {"x": np.zeros(4, "float32")})
    for _ in range(2):
        states.run(want={"seen": np.s_[1]})
    sessions = {"decoded": decoded(), "everything": decoded(retain="all"), "tight": tight,
                "states": states}  # fmt: skip
    return {name: checked.session.plan for name, checked in sessions.items()}


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


def test_a_plan_reads_well() -> None:
    """But for the graph's hash and the modelled time."""
    text = re.sub(r"for \w{12} |[\d.]+ ms", "# ", str(decoded().session.plan))
    assert text + "\n" == (GOLDEN / "plan_decoded.txt").read_text()


def test_bytes_of_the_plan_are_the_bytes_of_the_arena() -> None:
    session = decoded().session
    assert session._memory.arena.numel() == session.plan.size_bytes  # type: ignore[union-attr]
    assert session.estimate_memory()["cpu"].arena_bytes == session.plan.size_bytes
    assert session.plan.bound_bytes <= session.plan.size_bytes


def test_a_plan_for_one_graph_is_not_for_another(tmp_path: Path) -> None:
    path = decoded().session.save_plan(tmp_path / "plan.json")
    graph = causal(8, window=2)
    values = causal_values(graph, 0)
    weights = {name: values[name] for name in graph.parameters}
    with pytest.raises(PlanError, match="delete the plan to make another"):
        GraphSession(graph, weights, plan=path)
