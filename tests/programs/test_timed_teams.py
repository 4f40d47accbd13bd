"""What a team takes is timed before a plan, as programs have it, and records choose it or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from programs import test_calibrate
from programs.test_calibrate import layers, one_row, sites, told

from benchmarks.measure import threads
from tgbench.base.machine import Machine
from tgbench.costs.model import CostModel
from tgbench.costs.records import Records
from tgbench.costs.users_records import default_records
from tgbench.kernels.registry import by_team
from tgbench.programs import calibrate
from tgbench.programs.calibrate import Race
from tgbench.programs.program import site_at
from tgbench.session.session import GraphSession

pytest.importorskip("numba")

from tgbench.kernels.numba import rows

BY_TEAM, ALONE = "linear_team_numba", "linear_numba"
own_cache = test_calibrate.own_cache  # a fixture for every test


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That gain nothing by what is measured of threads: records alone say that a team pays."""
    monkeypatch.setattr(rows, "gain", lambda threads: 1.0)
    with threads(2):
        yield


def session(**options: object) -> GraphSession:
    return test_calibrate.session(layers(), making="always", **options)


def known(folder: Path, team_ns: int, others_ns: int, alone_ns: int | None = None) -> Records:
    """Records of a machine on which a team takes so long, and all others so long; or not who
    computes alone as it does.
    """
    plain, records = session(calibrate=False), Records(folder / f"{team_ns}.db")
    one_row(plain)
    for site in sites(plain):
        names = [kernel.name for kernel, _ in plain.costs.ranked(site)]
        times = dict.fromkeys(names, float(others_ns)) | {BY_TEAM: float(team_ns)}
        times[ALONE] = float(others_ns if alone_ns is None else alone_ns)
        records.add(told(plain, site, times))
    return records


@pytest.mark.parametrize(
    ("team_ns", "alone_ns", "is_taken"),
    [
        (40_000, 60_000, True),
        (90_000, 80_000, False),  # another kernel takes 60
        (90_000, 60_000, True),  # timed beside others, it may be; helpers rest if it is so
    ],
)
def test_records_choose_a_team(team_ns: int, alone_ns: int, is_taken: bool, tmp_path: Path) -> None:
    run = session(records=known(tmp_path, team_ns, 60_000, alone_ns), calibrate=False)
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
