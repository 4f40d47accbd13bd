"""Sweeps: the first paths measured; stopped and gone on with, here, by workers, by a command."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from plans.paths.test_chosen import LIMITS, inputs, session_of
from plans.paths.test_paths import layers
from search_cases import loaded_once

from tgbench.base.errors import PlanError
from tgbench.base.machine import Machine
from tgbench.commands import cli
from tgbench.commands.sweep import cluster
from tgbench.costs.records import Records
from tgbench.plans.paths.paths import Path, Paths
from tgbench.session.paths import SessionPaths
from tgbench.session.sweeping import Sweep
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

COUNT = 4


@pytest.fixture
def paths() -> SessionPaths:
    session = session_of(layers(1))
    session.run(inputs())
    return session.paths(limits=LIMITS)


@pytest.fixture
def records(tmp_path: pathlib.Path) -> Records:
    return Records(tmp_path / "records.db")


class Stops:
    """As `progress`: an interrupt, the second time that it is told of something."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def __call__(self, done: int, of: int, text: str) -> None:
        self.told.append((done, of))
        if len(self.told) == 2:
            raise KeyboardInterrupt


def test_a_sweep_that_is_stopped_goes_on(paths: SessionPaths, records: Records) -> None:
    """What was measured is not measured again, and in the end every path stands on it."""
    assert paths.sweep(records, COUNT, seconds=0.0).stopped == "time"
    stops = Stops()
    first = paths.sweep(records, COUNT, progress=stops)
    assert first.stopped == "interrupt"
    assert 0 < first.measured == len(records.all())
    assert first.paths < COUNT
    again = session_of(layers(1), records=records)
    again.run(inputs())
    goes_on = again.paths(limits=LIMITS)
    second = goes_on.sweep(records, COUNT)
    assert not second.stopped
    assert second.paths == COUNT
    assert first.measured + second.measured == len(records.all())
    assert goes_on.sweep(records, COUNT).measured == 0


def test_looking_for_paths_is_part_of_the_time(
    paths: SessionPaths, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes slowly is not waited for; something is measured in each call all the same."""
    really, asked = Paths.__iter__, list[int]()

    def slowly(of: Paths) -> Iterator[Path]:
        for number, path in enumerate(really(of)):
            asked.append(number)
            time.sleep(0.1)
            yield path

    monkeypatch.setattr(Paths, "__iter__", slowly)
    first = paths.sweep(records, 20, seconds=0.01)
    assert (first.stopped, asked) == ("time", [0])
    assert first.measured == len(records.all()) > 0
    second = paths.sweep(records, 20, seconds=0.01)
    assert second.measured == len(records.all()) - first.measured > 0
    monkeypatch.undo()
    assert paths.sweep(records, 20).stopped == ""


def test_no_paths_are_measured_at_once(
    paths: SessionPaths, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Paths, "__init__", lambda *_: pytest.fail("was asked for paths"))
    assert paths.sweep(records, 0) == Sweep(0, 0)


class Here:
    """An executor that does what it is asked at once."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
        self.tasks += arguments
        future = Future[Any]()
        future.set_result(function(*arguments))
        return future


def test_workers_measure_what_is_not_measured_twice(paths: SessionPaths, records: Records) -> None:
    here = Here()
    swept = paths.sweep(records, COUNT, executor=here, workers=2)
    assert swept.paths == COUNT
    assert not swept.stopped
    assert here.tasks
    assert paths[0].estimate.share("measured") > 0.5
    assert {row.fingerprint for row in records.all()} == {Machine.here().fingerprint}
    assert paths.sweep(records, COUNT).measured == 0


class Lost:
    def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_exception(OSError("connection lost"))
        return future


def test_lost_workers_end_a_sweep(paths: SessionPaths, records: Records) -> None:
    assert paths.sweep(records, COUNT, executor=Lost()).stopped == "workers lost"


def test_processes_measure(paths: SessionPaths, records: Records) -> None:
    loaded_once()
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        assert paths.sweep(records, 2, executor=pool).paths == 2
    assert records.all()


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="needs `pip install tgbench[cluster]`")
    dask = pytest.importorskip("dask")
    loaded_once()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(
            processes=True, n_workers=1, threads_per_worker=1, dashboard_address=None
        ) as local,
    ):
        yield local.scheduler_address


def test_a_cluster_measures(paths: SessionPaths, records: Records, scheduler: str) -> None:
    with cluster(scheduler) as spread:
        assert spread["workers"] == 1
        assert paths.sweep(records, 2, **spread).paths == 2
    assert records.all()


def test_an_address_where_nobody_answers_is_refused() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(PlanError, match="no Dask scheduler answers"), cluster("nowhere://x"):
        pass


def test_the_command_stops_and_goes_on(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gemma3_checkpoint(str(tmp_path / "model"), gemma3_reduced())
    command = ["sweep", str(model), "--tokens", "16", "--count", "3", "--nodes", "800", "--json",
               "--records", str(tmp_path / "records.db")]  # fmt: skip
    assert cli.main([*command, "--seconds", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == "time"
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] > 0
    assert (found["paths"], found["stopped"]) == (3, "")
    assert cli.main(command[:-3] + command[-2:]) == 0
    shown = capsys.readouterr().out
    assert "as given" in shown
    assert "0 kernels measured, 3 paths known" in shown
