"""What a team takes is timed before a plan, as programs have it, and records choose it or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tgbench import ops
from tgbench.base.machine import Machine
from tgbench.costs.model import CostModel
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import source_hash
from tgbench.costs.users_records import default_records
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.registry import Kernel, Site, by_team
from tgbench.programs import calibrate
from tgbench.programs.calibrate import Race
from tgbench.programs.program import site_at
from tgbench.session.session import GraphSession

pytest.importorskip("numba")

from tgbench.kernels.numba import rows

DEPTH, COLUMNS, LAYERS = 512, 1024, 3  # 2 MiB a layer
BY_TEAM, ALONE = "linear_team_numba", "linear_numba"


@pytest.fixture(autouse=True)
def two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That gain nothing by what is measured of threads: records alone say that a team pays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "SECONDS", 600.0)
    monkeypatch.setattr(calibrate, "_is_disturbed", lambda device, is_contended: False)
    monkeypatch.setattr(rows, "gain", lambda threads: 1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def layers() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (4, DEPTH))
    for i in range(LAYERS):
        wide = ops.linear(x, g.parameter(f"up{i}", (COLUMNS, DEPTH)))
        x = ops.linear(wide, g.parameter(f"down{i}", (DEPTH, COLUMNS)))
    g.output("y", x)
    return g.build()


def session(**options: object) -> GraphSession:
    rng, graph = np.random.default_rng(0), layers()
    weights = {
        name: rng.integers(-1, 2, node.shape).astype(np.float32) / 8
        for name, node in graph.parameters.items()
    }
    return GraphSession(graph, weights, packed_bytes=0, making="always", **options)  # type: ignore[arg-type]


def one_row(run: GraphSession) -> set[str]:
    """The kernels of a warm run that changes one row and asks for it."""
    x = np.zeros((4, DEPTH), np.float32)
    for value in (1.0, 2.0):
        x[1] = value
        run.run({"x": x}, want={"y": np.s_[1]})
    assert run.last is not None
    return {made.kernel for made in run.last.program.instructions}


def sites(run: GraphSession) -> list[Site]:
    planner = run.planning.planner(run.scheduled)
    found = planner.survey(planner.scenarios(run.planning.classes))
    return list({run.costs.signature(s).text: s for some in found for s in some}.values())


def known(folder: Path, team_ns: int, others_ns: int) -> Records:
    """Records of a machine on which a team takes so long, and all others so long."""
    plain, records = session(calibrate=False), Records(folder / f"{team_ns}.db")
    one_row(plain)
    for site in sites(plain):
        team = by_team(site)
        assert team is not None
        times = {kernel: others_ns for kernel, _ in plain.costs.ranked(site)} | {team: team_ns}
        records.add([told(plain.costs, site, kernel, ns) for kernel, ns in times.items()])
    return records


def told(costs: CostModel, site: Site, kernel: Kernel, took_ns: int) -> Record:
    signature = costs.signature(site)
    return Record(
        kernel.name, source_hash(kernel), signature.text, Machine.here().fingerprint,
        (took_ns,) * 3, flops=signature.flops, size_bytes=signature.size_bytes, modelled_ns=1000.0,
    )  # fmt: skip


@pytest.mark.parametrize(("team_ns", "is_taken"), [(40_000, True), (90_000, False)])
def test_records_choose_a_team(team_ns: int, is_taken: bool, tmp_path: Path) -> None:
    run = session(records=known(tmp_path, team_ns, 60_000), calibrate=False)
    assert (BY_TEAM in one_row(run)) is is_taken


def test_plans_expect_what_a_team_takes(tmp_path: Path) -> None:
    """So does a search in another process, whatever threads that has."""
    run = session(records=known(tmp_path, 40_000, 60_000), calibrate=False)
    assert one_row(run) == {BY_TEAM}
    assert run.last is not None
    torch.set_num_threads(1)
    elsewhere = CostModel(run.costs.table())
    for made in run.last.program.instructions:
        asked = made.node.call, made.box.at(run.last.origin)
        assert run.costs.time_ns(*asked) == elsewhere.time_ns(*asked) == 40_000
        assert made.site is not None
        site = site_at(made.site, run.last.origin)
        assert run.costs.takes_ns(site, run.costs.estimate(*asked).kernel) == 0


def test_plans_expect_no_team_where_it_takes_longer(tmp_path: Path) -> None:
    run = session(records=known(tmp_path, 90_000, 60_000), calibrate=False)
    one_row(run)
    for site in sites(run):
        assert run.costs.time_ns(site.call, site.out_box) == 60_000


# --- timing --------------------------------------------------------------------------------------


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who is timed, in order; a team looks quickest."""
    names: list[str] = []
    really = Race.call

    def call(self: Race, name: str) -> int:
        names.append(name)
        really(self, name)
        return 1_000 if name == BY_TEAM else 100_000

    monkeypatch.setattr(Race, "call", call)
    return names


def test_a_first_plan_times_teams_behind_all_others(called: list[str]) -> None:
    assert one_row(session()) == {BY_TEAM}
    first = called.index(BY_TEAM)
    assert ALONE in called[:first]
    assert set(called[first:]) == {BY_TEAM}
    found = Records(default_records()).all(Machine.here().fingerprint, BY_TEAM)
    assert len(found) == 2  # one for each kind of product
    called.clear()
    assert one_row(session()) == {BY_TEAM}
    assert not called


def test_a_team_timed_beside_others_says_nothing(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not timed again either: what threads gain, measured now and then, decides."""
    monkeypatch.setattr(calibrate, "_is_disturbed", lambda device, is_contended: True)
    run = session()
    assert BY_TEAM not in one_row(run)
    assert BY_TEAM in called
    called.clear()
    run.optimize(steps=0)
    assert BY_TEAM not in called
    assert run.costs.version > 0
    for site in sites(run):
        team = by_team(site)
        assert team is not None
        assert run.costs.of_site(site, team).source == "modelled"


def test_one_thread_times_no_team(called: list[str]) -> None:
    torch.set_num_threads(1)
    one_row(session())
    assert called
    assert BY_TEAM not in called
