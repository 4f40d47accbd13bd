"""A path and a plan chosen together: never worse than one after the other, and what runs then."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from plans.paths.test_chosen import LIMITS, inputs, session_of
from plans.paths.test_paths import layers, weights_of

from tgbench.base.regions import Box
from tgbench.costs.model import CostModel
from tgbench.costs.signature import without_layout
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.ops import embedding
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.plans.decisions import PlanPath
from tgbench.plans.plan import Plan
from tgbench.session.agreeing import Agreement, allowed_by
from tgbench.session.paths import JointChoice, PlannedPath
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch


def edited(session: GraphSession, rows: tuple[int, ...] = (3, 5, 2)) -> dict[str, Any]:
    values = inputs()
    session.run(values)
    for row in rows:
        values["x"] = values["x"].copy()
        values["x"][row] += 1
        session.run(values)
    return values


class Remembers(torch.nn.Module):
    """States that begin at 0 and elsewhere, written whole and in part, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
        self.register_buffer("seen", torch.full((16, 32), 3.0))
        self.register_buffer("rows", torch.zeros(16, 32))
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x)) + self.seen + self.rows + self.runs
        self.seen.copy_(self.seen * 0.5 + x)
        self.rows[2:4] = x[:2]
        self.runs.add_(1)
        return y


@pytest.mark.parametrize("budget", [None, "6KiB", "4KiB"])
def test_the_best_path_is_planned_and_runs(budget: str | None, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "plan.json"
    session = session_of(layers(), plan=file)
    values = edited(session)
    found = session.paths(limits=LIMITS).optimize("greedy", steps=1, budget=budget, rounds=0)
    assert found.bought >= 0.0
    assert found.best.planned_ns == min(one.planned_ns for one in found.tried)
    assert session.graph.fingerprint == found.best.path.graph.fingerprint
    assert str(found).count("planned") == len(found.tried)
    values["x"][6] -= 1
    right = session_of(layers()).run(values)["y"]
    np.testing.assert_allclose(session.run(values)["y"], right, rtol=1e-4, atol=1e-5)
    assert Plan.load(file).path == session.path
    again = session_of(layers(), plan=file, memory=budget)
    np.testing.assert_allclose(again.run(values)["y"], right, rtol=1e-4, atol=1e-5)


def test_what_computes_nothing_is_chosen_too() -> None:
    session = session_of(layers())
    edited(session)
    one = PlannedPath(session.paths(limits=LIMITS).given, 0.0, 0)
    found = JointChoice((one,), one, session.plan)
    assert found.bought == 0.0
    assert "0.0% less" in str(found)


def test_inputs_that_are_drawn_pick_rows_that_tables_have() -> None:
    g = GraphBuilder()
    g.output("y", embedding(g.input("table", (1, 3)), g.input("ids", (4,), "int64")))
    session = GraphSession(g.build(), calibrate=False)
    paths = session.paths(limits=LIMITS)
    assert np.isfinite(paths.race([paths.given], 1)).all()


@pytest.mark.parametrize("is_faster", [True, False])
def test_whole_runs_decide(is_faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is expected to be faster and is not, beside the given graph, is not taken."""
    session = session_of(layers())
    edited(session)
    paths, raced = session.paths(limits=LIMITS), list[str]()

    def race(of: Any, rounds: int) -> list[float]:
        raced.extend(path.graph.fingerprint for path in of)
        return [1e5, 2e5] if is_faster else [2e5, 1e5]

    monkeypatch.setattr(paths, "race", race)
    found = paths.optimize("greedy")
    assert raced[1] == paths.graph.fingerprint != raced[0]
    assert session.graph.fingerprint == raced[not is_faster]
    assert found.best.path.graph.fingerprint == raced[not is_faster]
    assert "whole runs beside each other" in str(found)


def test_whole_runs_are_timed_beside_each_other() -> None:
    session = session_of(layers())
    edited(session)
    paths = session.paths(limits=LIMITS)
    first, given = paths.race([paths.graph_at(0), paths.given], rounds=3)
    assert 0 < first < 1e9
    assert 0 < given < 1e9
    assert session.path is None


def test_a_budget_that_nothing_fits_leaves_the_session_as_it_was() -> None:
    from tgbench.base.errors import BudgetError

    session = session_of(layers())
    values = edited(session)
    with pytest.raises(BudgetError):
        session.paths(limits=LIMITS).optimize("greedy", budget=64)
    assert session.budget_bytes is None
    right = session_of(layers()).run(values)["y"]
    np.testing.assert_allclose(session.run(values)["y"], right, rtol=1e-4, atol=1e-5)


def doubled(graph: Graph) -> Graph:
    """A graph whose output is twice as large."""

    def make(builder: GraphBuilder, node: Node, new: tuple[Node, ...]) -> Node:
        made = copy_node(builder, node, new)
        return made + made if node is graph.outputs["y"] else made

    return graph.rebuild(make)


def test_a_path_that_computes_something_else_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(layers())
    values = edited(session)
    right = session.run({}, keep=False)["y"]
    paths = session.paths(limits=LIMITS)
    wrong, other = paths.graph_at(1), paths.graph_at(2)
    vars(wrong)["graph"] = doubled(wrong.graph)
    took = paths.race([wrong, other, paths.given], rounds=2)
    assert np.isinf(took).tolist() == [True, False, False]
    assert np.isinf(paths.race([other, wrong], rounds=1)).tolist() == [False, True]
    planned = {wrong: 1.0, other: 2.0, paths.given: 3.0}
    monkeypatch.setattr(paths, "_planned", lambda path: PlannedPath(path, planned[path], 64))
    monkeypatch.setattr(paths, "allowed", lambda: iter([wrong, other]))
    found = paths.optimize("greedy", rounds=2)
    assert found.best.path in (other, paths.given)
    assert [one.path for one in found.left_out] == [wrong]
    assert found.raced is not None
    assert "left out: whole runs of it give other results than the given graph" in str(found)
    np.testing.assert_allclose(session.run(values)["y"], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "tolerance", "is_off"),
    [
        (lambda y: y * (1 + 1e-5), None, False),
        (lambda y: y * 1.01, None, True),
        (lambda y: y * 1.01, 0.05, False),
        (lambda y: y * 1.2, 0.05, True),
        (lambda y: np.where(y == y.max(), np.nan, y), 0.05, True),
        (lambda y: np.where(y == y.max(), np.inf, y), 0.05, True),
    ],
)
def test_results_are_off_by_more_than_rounding_or_the_tolerance(
    change: Any, tolerance: float | None, is_off: bool
) -> None:
    session = session_of(layers(1))
    y = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
    allowed, agreement = allowed_by(session.graph, tolerance), Agreement(2, right=1)
    agreement.compare({0: {"y": change(y)}, 1: {"y": y}})
    agreement.compare({0: {"y": [y[:1] * 1e-9]}, 1: {"y": [y[:1] * 2e-9]}})  # little, in a row
    assert agreement.is_off(0, allowed) == is_off
    assert not agreement.is_off(1, allowed)


def test_where_the_right_result_is_no_number_anything_may_be() -> None:
    agreement = Agreement(2, right=0)
    agreement.compare({0: {"y": np.array(np.nan), "n": 3}, 1: {"y": np.array(1.0), "n": 3}})
    assert not agreement.is_off(1, 1e-3)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_whatever_stops_it_the_session_is_as_it_was(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budget, path, tolerance, plan, inputs and states; with or without a path in force before."""
    torch.manual_seed(0)
    x = torch.randn(16, 32)
    session = GraphSession(from_torch(Remembers().eval(), (x,)), calibrate=False)
    session.run({"x": x})
    paths = session.paths(tolerance=0.5, limits=LIMITS)
    rounded = next(path for path in paths.paths.graphs() if path.is_rounded)
    monkeypatch.setattr(type(paths), "_planned", lambda _, path: PlannedPath(path, 1.0, 64))
    monkeypatch.setattr(type(paths), "allowed", lambda _: iter([rounded]))
    monkeypatch.setattr(type(paths), "race", lambda *_: [1.0, 2.0])

    def known() -> tuple[Any, ...]:
        states = {name: session.state_value(name).tolist() for name in session.graph.states}
        return (
            session.budget_bytes, session.path, session.tolerance, session.plan.digest, states,
            session.graph.fingerprint, session.costs.pins,
        )  # fmt: skip

    for before in (paths.given, paths.graph_at(1)):
        paths.take(before)
        session.run({"x": x + 1})
        stood = known()
        with monkeypatch.context() as patched:

            def fails(*_: Any, **__: Any) -> Any:
                raise fault

            patched.setattr(GraphSession, "optimize", fails)
            with pytest.raises(fault):
                paths.optimize(budget="1MiB")
        assert known() == stood
        session.run({})
        assert session.plan.digest == stood[3]


def test_a_path_that_is_not_taken_leaves_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what finds it not to be one, nor an interrupt when the one before is gone."""
    session = session_of(layers())
    values = edited(session)
    paths = session.paths(tolerance=0.5, limits=LIMITS)
    rounded = next(path for path in paths.paths.graphs() if path.is_rounded)
    right, plan = session.run({}, keep=False), session.plan.digest
    for where, name in ((PlanPath, "__init__"), (GraphSession, "_start")):
        with monkeypatch.context() as patched:

            def fails(*_: Any, **__: Any) -> None:
                raise KeyboardInterrupt

            patched.setattr(where, name, fails)
            with pytest.raises(KeyboardInterrupt):
                paths.take(rounded)
        assert (session.tolerance, session.path, session.plan.digest) == (None, None, plan)
        np.testing.assert_array_equal(session.run({})["y"], right["y"])
    paths.take(rounded)
    assert session.tolerance == 0.5
    np.testing.assert_allclose(session.run(values)["y"], right["y"], rtol=0.5, atol=0.5)


def test_another_search_is_over_the_paths_of_the_given_graph() -> None:
    session = session_of(layers())
    edited(session)
    first = session.paths(limits=LIMITS).optimize("greedy", rounds=0)
    paths = session.paths(limits=LIMITS)
    assert paths.graph.fingerprint == session_of(layers()).graph.fingerprint
    assert (
        paths.optimize("greedy", rounds=0).best.path.graph.fingerprint
        == first.best.path.graph.fingerprint
    )


def test_looking_for_paths_is_part_of_the_time() -> None:
    """Without any the given graph alone is planned; with enough, others beside it."""
    session = session_of(layers())
    edited(session)
    tried = {
        seconds: session.paths(limits=LIMITS).optimize("greedy", seconds, rounds=0).tried
        for seconds in (0, 1000)
    }
    assert len(tried[0]) == 1
    assert len(tried[1000]) > 1


def test_a_tolerance_lets_a_session_compute_in_less() -> None:
    graph = layers(1, 256)
    session = GraphSession(graph, weights_of(graph), calibrate=False)
    values = {"x": np.random.default_rng(0).normal(size=(8, 256)).astype("float32")}
    session.run(values)
    paths = session.paths(tolerance=0.05, limits=SaturationLimits(nodes=2_000))
    found = paths.optimize("greedy")
    assert paths.error(found.best.path) <= max(0.05, paths.error(paths.given))
    if found.best.path.is_rounded:
        assert session.tolerance == 0.05
        assert session.path is not None
        assert session.path.tolerance == 0.05


def test_errors_are_of_runs_that_find_states_as_they_begin() -> None:
    """References of each sample do; the second sample once found what the first one left."""
    torch.manual_seed(0)
    x = torch.randn(16, 32)
    session = GraphSession(from_torch(Remembers().eval(), (x,)), calibrate=False)
    session.run({"x": x})
    paths = session.paths(tolerance=1e-2, limits=LIMITS)
    assert paths.error(paths.given) < 1e-5
    rounded = next(path for path in paths.paths.graphs() if path.is_rounded)
    assert 1e-5 < paths.error(rounded) < 1e-1


def test_what_runs_happened_weigh() -> None:
    """Ten changes of a row count more than the first run, which computes everything."""
    session = session_of(layers())
    edited(session, (1, 2, 3) * 4)
    many = session.paths(limits=LIMITS)
    shares = sorted(one.weight for one in many.paths.space.occasions)
    assert shares[-1] > 5 * shares[0]
    assert many[0].time_ns < many.paths.space.occasions[0].weight * 1e9


def test_a_search_elsewhere_knows_the_pinned_kernels() -> None:
    session = session_of(layers())
    values = edited(session)
    paths = session.paths(limits=LIMITS, within=50.0)
    path = next(paths.filtered(lambda path: len(path.kernels) == 1))
    ((signature, name),) = path.kernels.items()
    session.take(path.chosen())
    session.run(values)
    task = pickle.loads(pickle.dumps(session.planning.task(session.runner.happened, None)))
    elsewhere = CostModel(task.costs)
    assert elsewhere.pins == session.costs.pins == {signature: name}
    (call,) = {c.node.call: c for c in path.calls if c.signature == signature}.values()
    rows, columns = call.node.shape
    boxes = [Box(((0, many), (0, columns))) for many in (1, rows)]
    sites = [elsewhere.site(call.node.call, box) for box in boxes]
    (site,) = (s for s in sites if without_layout(elsewhere.signature(s).text) == signature)
    assert elsewhere.kernels(site)[0].name == name
