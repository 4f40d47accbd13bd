"""Paths in plans: what is written runs again; what is not a path of the graph is refused."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hostile.kinds import decoder, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plans.paths.test_paths import layers, paths_of, weights_of
from strategies import Maker, graphs

from tgbench.base.errors import GraphError, PlanError
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.graph_file import graph_from_json, graph_to_json
from tgbench.graph.reference import evaluate
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.plans.decisions import PlanPath
from tgbench.plans.paths import chosen as module
from tgbench.plans.paths.chosen import are_equal, described, opened
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession

LIMITS = SaturationLimits(nodes=1_000)
OLD = pathlib.Path(__file__).parents[1] / "plan_of_version_3.json"


def session_of(graph: Graph, **options: Any) -> GraphSession:
    return GraphSession(graph, weights_of(graph), calibrate=False, **options)


def inputs(seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=(8, 16)).astype("float32")}


@cache
def chosen(tolerance: float | None = None) -> PlanPath:
    """q, k and v at once; with a tolerance, something in less."""
    session = session_of(layers())
    session.run(inputs())
    paths = session.paths(tolerance=tolerance, limits=LIMITS).paths
    if tolerance is not None:
        return next(path for path in paths.graphs() if path.is_rounded).chosen(tolerance)
    return next(p for p in paths.graphs() if "products together" in p.rules).chosen()


@cache
def plan_text() -> str:
    """The plan of a session along a path."""
    session = session_of(layers(), path=chosen())
    session.run(inputs())
    return session.plan.to_json()


# --- what is written runs again -------------------------------------------------------------------


@given(case=graphs(most_ops=6))
@settings(max_examples=20)
def test_paths_of_any_graph_are_shown_to_be_equal(case: tuple[Graph, Maker]) -> None:
    graph, make = case
    values = make(1)
    for path in islice(paths_of(graph).graphs(), 3):
        again = opened(path.chosen(), graph)
        assert again.fingerprint == path.graph.fingerprint
        right = evaluate(graph, values)
        for name, value in evaluate(again, values).items():
            np.testing.assert_allclose(value, right[name], rtol=1e-3, atol=1e-3)


def test_every_path_of_a_layer_is_shown_to_be_equal() -> None:
    """Whatever names its nodes have: those of one kind once hid a rule from the e-graph."""
    graph = layers(1)
    for path in islice(paths_of(graph).graphs(), 40):
        assert opened(path.chosen(), graph).fingerprint == path.graph.fingerprint


def test_a_plan_brings_its_path(tmp_path: pathlib.Path) -> None:
    (file := tmp_path / "plan.json").write_text(plan_text())
    plain, session = session_of(layers()), session_of(layers(), plan=file)
    assert session.path == chosen()
    assert session.graph.fingerprint == Plan.load(file).graph != plain.graph.fingerprint
    assert session.is_planned
    for seed in range(3):
        found, right = session.run(inputs(seed))["y"], plain.run(inputs(seed))["y"]
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    assert session.counters.planned == 0
    assert session.save_plan().read_text()
    assert Plan.load(file).path == chosen()
    rules = ", ".join(chosen().rules)
    assert "products together" in rules
    assert f"computed otherwise: {rules}" in str(session.plan)


def test_pinned_kernels_come_back() -> None:
    session = session_of(layers())
    session.run(inputs())
    paths = session.paths(limits=SaturationLimits(nodes=300), within=50.0)
    path = next(paths.filtered(lambda path: len(path.kernels) == 1))
    again = session_of(layers(), path=path.chosen())
    again.run(inputs())
    plan = Plan.from_json(again.plan.to_json())
    opened_again = session_of(layers(), plan=plan)
    opened_again.run(inputs())
    (name,) = path.kernels.values()
    assert dict(plan.path.kernels) == path.kernels if plan.path else False
    assert name in {made.kernel for made in opened_again.last.program.instructions}


def test_a_session_takes_another_path_and_goes_on() -> None:
    """Inputs and states are what they were; so are the classes that it plans for."""
    graph, values = decoder(), values_of(decoder())
    weights = {name: values.pop(name) for name in graph.parameters}
    session, plain = (GraphSession(graph, weights, calibrate=False) for _ in range(2))
    paths = session.paths(limits=LIMITS).paths
    for turn, path in enumerate([*islice(paths.graphs(), 4), None]):
        values["ids"] = np.roll(values["ids"], 1)
        for one in (session, plain):
            one.run({"ids": values["ids"]} if turn else values)
        classes = session.planning.classes.keys()
        session.take(None if path is None else path.chosen())
        assert session.planning.classes.keys() == classes
        found, right = session.run({}), plain.run({})
        for name, value in right.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
        state = session.state_value("seen")
        np.testing.assert_allclose(state, plain.state_value("seen"), rtol=1e-4, atol=1e-5)
    assert session.graph.fingerprint == plain.graph.fingerprint
    assert session.path is None


def test_a_plan_of_before_paths_is_read() -> None:
    plan = Plan.load(OLD)
    assert json.loads(OLD.read_text())["version"] == 3
    assert plan.path is None
    assert plan.version == 4
    graph, values = decoder(), values_of(decoder())
    weights = {name: values.pop(name) for name in graph.parameters}
    session = GraphSession(graph, weights, "1MiB", plan=OLD, calibrate=False)
    assert session.is_planned
    found, right = session.run(values), evaluate(graph, {**values, **weights})
    np.testing.assert_allclose(found["y"], right["y"], rtol=1e-3, atol=1e-4)


# --- what is refused ------------------------------------------------------------------------------


def _other() -> PlanPath:
    """Of another graph, which computes something else from the same inputs."""
    g = GraphBuilder()
    x = g.input("x", (8, 16))
    g.output("y", x * 2.0)
    return described(g.build(), g.build(), ())


def _wrong(make: Callable[[GraphBuilder, Any], Any], shape: tuple[int, ...] = (8, 16)) -> PlanPath:
    """A path that says to be one of the layers, and is not."""
    g = GraphBuilder()
    g.output("y", make(g, g.input("x", shape)))
    return replace(chosen(), graph=graph_to_json(g.build()))


REFUSED: dict[str, tuple[Callable[[], PlanPath], str]] = {
    "of another graph": (_other, r"path.given: the path is for graph .*, this is"),
    "that computes something else": (lambda: _wrong(lambda g, x: x * 2.0), "do not show it"),
    "of other inputs": (
        lambda: _wrong(lambda g, x: x[:8] + g.input("z", (8, 16)), (9, 16)), "do not show it",
    ),
    "by no rules": (lambda: replace(chosen(), rules=()), "do not show it to compute"),
    "by rules of its own": (lambda: replace(chosen(), rules=("os.system",)), "system' is no rule"),
    "in less, unasked": (lambda: chosen(1e-2), "tolerance=0.01 if that is right"),
    "in less, said not to be": (
        lambda: replace(chosen(1e-2), tolerance=None), "is no rule|do not show",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_path_of_the_graph_is_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(PlanError, match=message):
        session_of(layers(), path=make())


def test_what_is_in_less_runs_where_it_is_allowed() -> None:
    session = session_of(layers(), path=chosen(1e-2), tolerance=1e-2)
    right = session_of(layers()).run(inputs())["y"]
    found = session.run(inputs())["y"]
    assert 0 < np.abs(found - right).max() <= 5e-2 * np.abs(right).max()
    with pytest.raises(PlanError, match=r"tolerance=0.01"):
        session_of(layers(), path=chosen(1e-2), tolerance=1e-3)


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "no text": ("graph", 7, "path.graph: 7 is not the text of a graph file"),
    "no graph": ("graph", "{}", "path.graph: version: None"),
    "half a graph": ("graph", None, "path.graph: not JSON"),
    "kernels": ("kernels", [["a"]], r"path.kernels\[0\]: .* is not \[signature, kernel\]"),
    "kernels of none": ("kernels", {}, "path.kernels: {} is not a list"),
    "rules": ("rules", [3], "path.rules: holds something that is not a name"),
    "tolerance": ("tolerance", -1, "path.tolerance: -1 is not a number"),
    "given": ("given", 3, "path.given: 3 is not text"),
    "more": ("code", "import os", "path.'code': not a field of a plan"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_path_is_named(case: str) -> None:
    field, value, message = DAMAGE[case]
    plan = json.loads(plan_text())
    text = plan["path"]["graph"]
    plan["path"][field] = text[: len(text) // 2] if value is None else value
    with pytest.raises(PlanError, match=message):
        Plan.from_json(json.dumps(plan))


def test_a_plan_whose_path_is_another_graph_is_refused() -> None:
    plan = json.loads(plan_text())
    plan["path"]["graph"] = _other().graph
    with pytest.raises(PlanError, match=r"path.graph: this is .*, the plan is for"):
        Plan.from_json(json.dumps(plan))


@given(st.data())
def test_whatever_is_changed_in_a_path_the_session_computes_the_same(data: Any) -> None:
    """Either it is refused, or results are right."""
    path = opened(chosen(), session_of(layers()).graph)
    changed = data.draw(st.sampled_from([n for n in path.nodes if not n.is_leaf]))
    kind = data.draw(st.sampled_from(["another", "doubled", "turned", "the same"]))

    def make(builder: GraphBuilder, node: Node, new: tuple[Node, ...]) -> Node:
        if node is not changed or kind == "the same":
            return copy_node(builder, node, new)
        if kind == "turned":
            return copy_node(builder, node, new[::-1])
        made = copy_node(builder, node, new)
        if kind == "doubled":
            return made + made
        others = [n for n in builder.nodes if n.type == made.type and n is not made]
        return data.draw(st.sampled_from(others)) if others else made

    try:
        other = path.rebuild(make)
        session = session_of(layers(), path=replace(chosen(), graph=graph_to_json(other)))
    except (GraphError, PlanError):
        return
    np.testing.assert_allclose(session.run(inputs())["y"], _right(), rtol=1e-3, atol=1e-4)


@cache
def _right() -> Any:
    return session_of(layers()).run(inputs())["y"].copy()


def test_equal_graphs_need_equal_leaves_and_ends() -> None:
    def of(name: str, out: str) -> Graph:
        g = GraphBuilder()
        g.output(out, g.input(name, (2,)) * 2.0)
        return g.build()

    assert are_equal(of("x", "y"), of("x", "y"), ())
    assert not are_equal(of("x", "y"), of("z", "y"), ())
    assert not are_equal(of("x", "y"), of("x", "z"), ())


def test_rules_are_left_out_for_no_longer_than_that_is_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each proof without some of them has what is left of the time, and no more."""
    path, graph = chosen(), layers()  # which is shown with all the time there is
    given_s, really = list[float](), module.saturate

    def saturate(egraph: Any, rules: Any, limits: SaturationLimits, until: Any) -> Any:
        given_s.append(limits.seconds)
        return really(egraph, rules, limits, until)

    monkeypatch.setattr(module, "saturate", saturate)
    names = tuple(rule.name for rule in module.RULES)
    found = module._fewer(graph, graph_from_json(path.graph), names)
    assert set(path.rules) & set(found)
    assert given_s == sorted(given_s, reverse=True)
    assert 0 < given_s[-1] <= given_s[0] <= module.LONGEST
