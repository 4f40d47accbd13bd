"""Programs have the threads of a library or those of a team, whichever takes less; never both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tgbench as tg
from benchmarks.measure import threads
from tgbench import ops
from tgbench.base.regions import Box
from tgbench.costs.model import CostModel, Estimate
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.registry import GRAIN, Kernel, Site, by_team, candidates, is_by_team
from tgbench.programs.teamwork import Teamwork

pytest.importorskip("numba")

from tgbench.kernels.numba import rows

Array = np.ndarray
WIDE = 512  # 1 MiB of weights a layer


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


def layers(with_conv: bool = False) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (64, WIDE))
    for i in range(3):
        w, b = g.parameter(f"w{i}", (WIDE, WIDE)), g.parameter(f"b{i}", (WIDE,))
        x = ops.relu(ops.linear(x, w, b))
    if with_conv:
        image = x.reshape(1, 1, 64, WIDE)
        x = ops.conv(image, g.parameter("k", (1, 1, 1, 1))).reshape(64, WIDE)
    g.output("y", x)
    return g.build()


def weights(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(-1, 2, node.shape) * (rng.random(node.shape) < 0.02)).astype(np.float32)
        for name, node in graph.parameters.items()
    }


def session(graph: Graph, **more: object) -> tg.GraphSession:
    return tg.GraphSession(graph, weights=weights(graph), calibrate=False, making="always", **more)


def site_of(op: str, graph: Graph) -> Site:
    node = next(node for node in graph.nodes if node.op == op)
    whole = Box.full(node.shape)
    return CostModel().site(node.call, Box([(3, 4), *whole[1:]]) if node.rank == 2 else whole)


def kernels_of(made: tg.GraphSession) -> list[str]:
    return [call.kernel for _, _, program in made.programs for call in program.instructions]


def test_a_team_is_no_candidate() -> None:
    site = site_of("linear", layers())
    team = by_team(site)
    assert team is not None
    assert team.name == "linear_team_numba"
    assert team not in candidates(site)
    assert is_by_team(site, team.name)


def test_what_meets() -> None:
    product, activation = site_of("linear", layers()), site_of("relu", layers())
    meeting = {kernel.name: kernel.meets(product) for kernel in candidates(product)}
    assert not meeting.pop("linear_numba")
    assert not meeting.pop("linear_row_dots")
    assert meeting["linear_columns"]
    assert all(meeting.values())
    assert not any(kernel.meets(activation) for kernel in candidates(activation))
    g = GraphBuilder()
    large = ops.relu(g.input("x", (GRAIN + 1,)))
    found = CostModel().site(large.call, Box.full(large.shape))
    assert {k.name: k.meets(found) for k in candidates(found)}["relu"]


class Costs(CostModel):
    """Every kernel of a library takes `library_ns`, every other one `alone_ns`."""

    def __init__(self, library_ns: float, alone_ns: float) -> None:
        super().__init__()
        self.library_ns, self.alone_ns = library_ns, alone_ns

    def of_site(self, site: Site, kernel: Kernel) -> Estimate:
        found = super().of_site(site, kernel)
        is_alone = not kernel.meets(site) or site.call.op.name == "relu"
        return replace(found, time_ns=self.alone_ns if is_alone else self.library_ns)


@pytest.mark.parametrize(
    ("gain", "is_taken"), [(1.0, False), (1.6, False), (1.9, True), (2.1, True), (10.0, True)]
)
def test_whichever_takes_less_in_all(gain: float, is_taken: bool) -> None:
    graph = layers()
    calls = [(site_of("linear", graph), "linear_columns"), (site_of("relu", graph), "relu")] * 2
    found = Teamwork(Costs(50.0, 100.0), lambda threads: gain).instead(calls)
    assert (found is not None) == is_taken
    if found is not None:
        assert found[::2] == ["linear_team_numba"] * 2


@pytest.mark.parametrize(("library_ns", "is_taken"), [(98.0, True), (85.0, False)])
def test_threads_do_not_meet_for_little(library_ns: float, is_taken: bool) -> None:
    """Nothing is done by a team: one thread does all, unless several are clearly quicker."""
    site = site_of("linear", layers())
    names = [kernel.name for kernel in candidates(site) if kernel.meets(site)]
    team = Teamwork(Costs(library_ns, 100.0), lambda threads: 0.5)
    found = team.instead([(site, "linear_numba")] * 3 + [(site, names[0])] * 3)
    assert found == (["linear_numba"] * 6 if is_taken else None)
    assert team.instead([(site, "linear_numba")] * 6) is None


def test_not_beside_threads_that_meet() -> None:
    image = site_of("conv", layers(with_conv=True))
    kernel = candidates(image)[0].name
    calls = [(site_of("linear", layers()), "linear_numba"), (image, kernel)]
    assert Teamwork(Costs(1.0, 1.0), lambda threads: 10.0).instead(calls) is None


def test_not_with_one_thread() -> None:
    torch.set_num_threads(1)
    assert not Teamwork(CostModel()).is_there


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", [1.0, 1000.0])
def test_edits_by_a_team_equal_full_runs(gain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "gain", lambda threads: gain)
    graph, rng = layers(), np.random.default_rng(1)
    made, values = session(graph), np.zeros((64, WIDE), np.float32)
    given = weights(graph)
    for _ in range(12):
        row = int(rng.integers(64))
        values[row] = rng.integers(-2, 3, WIDE)
        found = made.run({"x": values}, want={"y": np.s_[row]})["y"]
        expected = values[row]
        for i in range(3):
            expected = np.maximum(expected @ given[f"w{i}"].T + given[f"b{i}"], 0)
        np.testing.assert_array_equal(found, expected)
    assert ("linear_team_numba" in kernels_of(made)) == (gain > 1)


def test_a_program_of_a_team_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "gain", lambda threads: 1000.0)
    graph = layers()
    first, values = session(graph), np.ones((64, WIDE), np.float32)
    expected = [first.run({"x": values}, want={"y": np.s_[5]})["y"]]
    values[5] = 2
    expected.append(first.run({"x": values}, want={"y": np.s_[5]})["y"])
    assert "linear_team_numba" in kernels_of(first)
    first.save_plan(tmp_path / "plan.json")
    first.save_programs(tmp_path / "programs.json")
    second = session(graph, plan=tmp_path / "plan.json")
    assert second.load_programs(tmp_path / "programs.json")
    for value, known in zip((1, 2), expected, strict=True):
        values[5] = value
        np.testing.assert_array_equal(second.run({"x": values}, want={"y": np.s_[5]})["y"], known)


def test_bit_exact_programs_have_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "gain", lambda threads: 1000.0)
    made = session(layers(), exact="bitwise")
    values = np.ones((64, WIDE), np.float32)
    for value in (1, 2):
        values[5] = value
        made.run({"x": values}, want={"y": np.s_[5]})
    assert "linear_team_numba" not in kernels_of(made)
