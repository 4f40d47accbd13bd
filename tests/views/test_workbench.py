"""The workbench without a browser: one selection, plans put in force, gestures as Python."""

from __future__ import annotations

import numpy as np
import pytest
from places import DATA

import tgbench as tg
from tgbench.base.errors import PlanError

pytest.importorskip("anywidget")


def session_of() -> tg.GraphSession:
    g = tg.GraphBuilder()
    x = g.input("x", (8, 4))
    up = g.name(tg.ops.tanh(x), "up")
    g.output("y", tg.ops.softmax(up @ g.parameter("w", (4, 8)) @ up))
    session = tg.GraphSession(g.build(), weights={"w": np.ones((4, 8), np.float32)})
    for row in range(3):
        value = np.zeros((8, 4), np.float32)
        value[row] = 1
        session.run({"x": value}, want={"y": np.s_[row]})
    return session


def test_one_selection_for_all() -> None:
    bench = session_of().explore()
    bench.memory.selected = ["up"]
    for view in (bench.graph, bench.regions, bench.program, bench.alias):
        assert view.selected == ["up"]
    assert bench.regions.facts["node"] == "up"
    kind = str(next(iter(bench.regions._classes())))
    bench.transitions.bucket = kind
    assert bench.regions.facts["run"] == bench.alias.bucket == kind


def test_gestures_are_code_that_does_the_same() -> None:
    session = session_of()
    bench = session.explore()
    assert "up" in session.plan.retained
    assert bench.memory._drop({"node": "up"})["is_valid"]
    bench.plan_bar._use({})
    assert "up" not in session.plan.retained
    assert bench.plan_bar.plan == session.plan == bench.memory.plan
    other = session_of()
    exec(bench.plan_bar._code({}), {"session": other})
    assert other.plan.slots == session.plan.slots


def test_an_exported_plan_is_the_plan() -> None:
    bench = session_of().explore()
    assert tg.Plan.from_json(bench.plan_bar._json({})["text"]) == bench.session.plan


def test_a_plan_opens_without_its_model() -> None:
    from tgbench.views import explore

    bench = explore(DATA / "decode.plan.json")
    data, _ = bench._repr_mimebundle_()
    assert data["image/svg+xml"].startswith("<svg")
    with pytest.raises(PlanError, match=r"none\.json"):
        explore(DATA / "none.json")


def test_nothing_ran_yet() -> None:
    g = tg.GraphBuilder()
    g.output("y", tg.ops.exp(g.input("x", (2,))))
    with pytest.raises(PlanError, match="nothing is planned yet"):
        tg.GraphSession(g.build()).explore()
