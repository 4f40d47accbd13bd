"""Measured beats modelled: records choose kernels, and what nothing is known of is timed first."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sqlite3
import statistics
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tgbench as tg
from benchmarks.measure import threads
from tgbench import ops
from tgbench.base.errors import RecordsWarning
from tgbench.base.machine import Machine
from tgbench.costs.model import CostModel
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import source_hash
from tgbench.costs.users_records import default_records, users_records
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.numba import rows as numba_rows
from tgbench.kernels.numba.chain import is_part
from tgbench.kernels.onednn.library import library
from tgbench.kernels.registry import KERNELS, Kernel, Site, View
from tgbench.kernels.views import Bound
from tgbench.kernels.waiting import Contention
from tgbench.plans.retention.workload import frequent
from tgbench.programs import calibrate
from tgbench.programs.calibrate import (
    LEAST_TURNS,
    MOST_IN_A_ROW,
    MOST_TURNS,
    Race,
    Task,
    heaviest,
    rows_of,
)
from tgbench.session.session import GraphSession

LINEAR = tuple(KERNELS["linear"])
really_disturbed = calibrate._is_disturbed
DEPTH, COLUMNS, LAYERS = 512, 1024, 3  # 2 MiB a layer: some 60 µs a row


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache folder of its own, and a machine with nothing else to do, or time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "SECONDS", 600.0)
    monkeypatch.setattr(calibrate, "_is_disturbed", lambda device, is_contended: False)


def layers(columns: int = COLUMNS) -> Graph:
    """A few equal products, of which a run computes one row."""
    g = GraphBuilder()
    x = g.input("x", (4, DEPTH))
    for i in range(LAYERS):
        wide = ops.linear(x, g.parameter(f"up{i}", (columns, DEPTH)))
        x = ops.linear(wide, g.parameter(f"down{i}", (DEPTH, columns)))
    g.output("y", x)
    return g.build()


def weights(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(-1, 2, node.shape).astype(np.float32) / 8
        for name, node in graph.parameters.items()
    }


def session(graph: Graph, **options: object) -> GraphSession:
    return GraphSession(graph, weights(graph), packed_bytes=0, **options)  # type: ignore[arg-type]


def rows(run: GraphSession, value: float) -> set[str]:
    """The kernels of a run that changes one row and asks for it."""
    x = np.zeros((4, DEPTH), np.float32)
    x[1] = value
    run.run({"x": x}, want={"y": np.s_[1]})
    assert run.last is not None
    return {made.kernel for made in run.last.program.instructions}


def one_row(run: GraphSession) -> set[str]:
    """The kernels of a warm run."""
    rows(run, 1.0)
    return rows(run, 2.0)


def sites(run: GraphSession) -> list[Site]:
    """One for each kind of product in a warm run."""
    planner = run.planning.planner(run.scheduled)
    found = planner.survey(planner.scenarios(run.planning.classes))
    return list({run.costs.signature(s).text: s for some in found for s in some}.values())


def told(run: GraphSession, site: Site, times: dict[str, float]) -> list[Record]:
    """Records of a machine on which kernels take what we say."""
    signature = run.costs.signature(site)
    names = {kernel.name: kernel for kernel in KERNELS[site.call.op.name]}
    return [
        Record(
            name, source_hash(names[name]), signature.text, Machine.here().fingerprint,
            (round(took),) * 3, flops=signature.flops, size_bytes=signature.size_bytes,
            modelled_ns=1000.0,
        )
        for name, took in times.items() if name in names
    ]  # fmt: skip


UNUSUAL = "linear_rows"  # which no model would choose for one row


def absurd(graph: Graph, folder: Path) -> Records:
    """Records of a machine on which every kernel but one takes a second."""
    plain, records = session(graph, calibrate=False), Records(folder / "absurd.db")
    one_row(plain)
    for site in sites(plain):
        names = [kernel.name for kernel, _ in plain.costs.ranked(site)]
        records.add(told(plain, site, dict.fromkeys(names, 1e9) | {UNUSUAL: 2_400.0}))
    return records


# --- records choose ------------------------------------------------------------------------------


def test_absurd_records_change_the_program(tmp_path: Path) -> None:
    graph = layers()
    assert UNUSUAL not in one_row(session(graph, calibrate=False))
    records = absurd(graph, tmp_path)
    assert one_row(session(graph, records=records, calibrate=False)) == {UNUSUAL}


@pytest.mark.skipif(numba_rows.loops is None, reason="numba is not installed")
def test_absurd_records_say_what_is_in_a_chain(tmp_path: Path) -> None:
    graph, records = layers(), Records(tmp_path / "chains.db")
    plain = session(graph, calibrate=False)
    one_row(plain)
    assert (report := plain.last) is not None
    assert (report.instructions, report.calls) == (2 * LAYERS, 1)
    for site, quick in zip(sites(plain), (UNUSUAL, "linear_numba"), strict=True):
        names = [kernel.name for kernel, _ in plain.costs.ranked(site)]
        records.add(told(plain, site, dict.fromkeys(names, 1e9) | {quick: 2_400.0}))
    run = session(graph, records=records, calibrate=False)
    assert one_row(run) == {UNUSUAL, "linear_numba"}
    assert (report := run.last) is not None
    assert (report.instructions, report.calls) == (2 * LAYERS, 2 * LAYERS)


def test_planner_and_lowerer_take_the_same_kernel(tmp_path: Path) -> None:
    graph = layers()
    records = absurd(graph, tmp_path)
    run = session(graph, records=records, calibrate=False)
    assert one_row(run) == {"linear_rows"}
    assert run.last is not None
    for made in run.last.program.instructions:
        estimate = run.costs.estimate(made.node.call, made.box.at(run.last.origin))
        assert (estimate.kernel, estimate.time_ns) == (made.kernel, 2_400.0)


def test_a_search_in_another_process_ranks_alike(tmp_path: Path) -> None:
    graph = layers()
    records = absurd(graph, tmp_path)
    run = session(graph, records=records, calibrate=False)
    one_row(run)
    elsewhere = tg.CostModel(run.costs.table())
    for site in sites(run):
        assert [k.name for k in elsewhere.kernels(site)] == [
            k.name for k in run.costs.kernels(site)
        ]


# --- the clock ------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture
def two_threads(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That gain nothing as a team: a library's are what is timed."""
    torch.set_num_threads(2)
    monkeypatch.setattr(numba_rows, "gain", lambda threads: 1.0, raising=False)


def slowed(monkeypatch: pytest.MonkeyPatch, kernel: str, seconds: float) -> None:
    """Let the thread stand still in a kernel, as it does where others have the processor."""

    def bind(k: Kernel, site: Site, scratch: tuple[View, ...]) -> Bound:
        function, arguments = k.bind(site, scratch)

        def waits(*given: object) -> None:
            time.sleep(seconds)
            function(*given)

        return waits, arguments

    kernels = [replace(k, bind=partial(bind, k)) if k.name == kernel else k for k in LINEAR]
    monkeypatch.setitem(KERNELS, "linear", kernels)


def kept(kernel: str) -> list[int]:
    """All times of a kernel that the user's database holds."""
    found = Records(default_records()).all(kernel=kernel)
    return [n for record in found for n in record.samples_ns]


def test_what_others_take_is_not_timed(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    (first,) = one_row(session(layers(), calibrate=False))
    slowed(monkeypatch, first, 0.02)
    one_row(session(layers()))
    assert kept(first)
    assert statistics.median(kept(first)) < 10e6


def test_several_threads_are_timed_by_the_wall(
    monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    (first,) = one_row(session(layers(), calibrate=False))
    slowed(monkeypatch, first, 0.02)
    one_row(session(layers()))
    assert kept(first)
    assert min(kept(first)) > 20e6


def test_most_turns_may_be_disturbed(monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    """Slices that others get are in the wall's time of most calls, whoever computes them."""
    slices, really = itertools.cycle((0, 9, 7, 12, 0, 8, 11)), Race.call

    def call(self: Race, name: str) -> int:
        really(self, name)
        self.spent_ns = 0  # of what they say
        return (400_000 if name == "linear_rows" else 500_000) + next(slices) * 1_000_000

    monkeypatch.setattr(Race, "call", call)
    assert one_row(session(layers())) == {"linear_rows"}
    assert max(kept("linear_rows")) < 1_000_000


@pytest.mark.parametrize("step", [0, -1_000_000])
def test_a_clock_that_stands_still_or_goes_back_says_nothing(
    monkeypatch: pytest.MonkeyPatch, one_thread: None, step: int
) -> None:
    (chosen,) = one_row(session(layers(), calibrate=False))
    clock = itertools.count(1 << 40, step)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", lambda: next(clock))
    assert one_row(session(layers())) == {chosen}
    assert not default_records().exists() or not Records(default_records()).all()


def test_a_clock_that_jumps_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """Every fifth reading is an hour early or late; the fastest is taken all the same."""
    took = {"linear_rows": 100_000}
    now, jumps, calls = 1 << 50, itertools.cycle((0, 0, 0, 0, 1, 0, 0, 0, 0, -1)), []
    really = Race.call

    def clock() -> int:
        return now + next(jumps) * 3_600_000_000_000

    def call(self: Race, name: str) -> int:
        nonlocal now
        calls.append(name)
        began = clock()
        really(self, name)
        now += took.get(name, 1_000_000)
        return clock() - began

    monkeypatch.setattr(Race, "call", call)
    assert one_row(session(layers())) == {"linear_rows"}
    samples = [n for record in Records(default_records()).all() for n in record.samples_ns]
    assert min(samples) > 0


@pytest.mark.skipif(library is None, reason="oneDNN is not installed")
@pytest.mark.parametrize("sides", ["left", "right", "both"])
def test_a_sum_in_the_same_call_is_timed_wherever_what_is_added_lies(sides: str) -> None:
    """It lies in the arena, and is timed in a buffer of its own; whatever side of the sum it is on,
    which of equal layers may be another.
    """
    g = GraphBuilder()
    x = ops.relu(g.input("x", (64, DEPTH)))
    for i in range(LAYERS):
        product = ops.linear(ops.gelu(x), g.parameter(f"w{i}", (DEPTH, DEPTH)))
        is_left = sides == "left" or (sides == "both" and i % 2 == 0)
        x = x + product if is_left else product + x
    g.output("y", x)
    graph = g.build()
    GraphSession(graph, weights(graph)).run({"x": np.ones((64, DEPTH), np.float32)})
    found = Records(default_records()).all()
    assert not [record.failure for record in found if record.failure]
    assert [one for one in found if "; then add" in one.signature and one.samples_ns]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away here")
def test_a_core_that_is_taken_away(monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    """The machine is the same; what two threads take on one core is not kept."""
    cores, machine = os.sched_getaffinity(0), Machine.here()
    monkeypatch.setattr(calibrate, "_is_disturbed", really_disturbed)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    really, calls = Race.call, []

    def call(self: Race, name: str) -> int:
        calls.append(name)
        if len(calls) == 5:
            os.sched_setaffinity(0, {min(cores)})
        return really(self, name)

    monkeypatch.setattr(Race, "call", call)
    run = session(layers())
    try:
        one_row(run)
        assert Machine.here() == machine
    finally:
        os.sched_setaffinity(0, cores)
    assert not Records(default_records()).all()
    y = run.run({"x": np.ones((4, DEPTH), np.float32)})["y"]
    assert np.isfinite(y).all()


def test_a_load_disturbs_the_wall_alone(monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    monkeypatch.setattr(calibrate, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not really_disturbed("cpu", False)
    assert really_disturbed("cpu", True)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert really_disturbed("cpu", False)
    torch.set_num_threads(1)
    assert not really_disturbed("cpu", True)


def test_what_was_timed_while_threads_waited_for_processors_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    monkeypatch.setattr(calibrate, "_is_disturbed", really_disturbed)
    monkeypatch.setattr(calibrate, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    for is_there in (True, False):
        noted = list[bool]()  # whether threads are to sleep from then on
        monkeypatch.setattr(Contention, "is_there", is_there)
        monkeypatch.setattr(calibrate, "waiting", lambda to=noted: SimpleNamespace(note=to.append))
        run = session(layers())
        one_row(run)
        calibrator = run.planning.calibrator
        assert calibrator is not None
        assert set(noted) == {is_there}
        assert bool(calibrator.doubtful) is is_there
        assert bool(len(Records(default_records()))) is not is_there


# --- what nothing is known of is timed ------------------------------------------------------------


def pretend(monkeypatch: pytest.MonkeyPatch, *fastest: str) -> list[str]:
    """Let some kernels look fastest when they are timed; returns who was called, in order."""
    called: list[str] = []
    really = Race.call

    def call(self: Race, name: str) -> int:
        called.append(name)
        really(self, name)
        return 1_000 + fastest.index(name) if name in fastest else 1_000_000

    monkeypatch.setattr(Race, "call", call)
    return called


def test_the_first_plan_times_what_is_heavy_and_takes_the_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "linear_rows")
    run = session(layers())
    assert one_row(run) == {"linear_rows"}
    found = Records(default_records()).all(Machine.here().fingerprint)
    assert {record.kernel for record in found} >= {"linear_rows", "linear_row"}


def test_the_next_session_times_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    called = pretend(monkeypatch, "linear_rows")
    one_row(session(layers()))
    assert called
    called.clear()
    assert one_row(session(layers())) == {"linear_rows"}
    assert not called


def test_an_adopted_plan_is_lowered_by_what_was_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph, path = layers(), tmp_path / "plan.json"
    first = session(graph, calibrate=False)
    one_row(first)
    first.save_plan(path)
    pretend(monkeypatch, "linear_rows")
    second = session(graph, plan=path)
    assert one_row(second) == {"linear_rows"}
    assert second.counters.planned == 0


def test_a_call_that_one_kernel_alone_computes_is_timed(tmp_path: Path) -> None:
    """What it takes is weighed against the memory that keeping its result does."""
    g = GraphBuilder()
    image = ops.relu(g.input("x", (1, 64, 8, 16, 32)))
    g.output("y", ops.upsample(image, scale=1.7, mode="linear"))  # no call of PyTorch does that
    records = Records(tmp_path / "records.db")
    x = np.ones((1, 64, 8, 16, 32), np.float32)
    GraphSession(g.build(), records=records).run({"x": x})
    found = [one for one in records.all() if one.signature.startswith("upsample(")]
    assert found
    assert {one.kernel for one in found} == {"upsample_slice"}
    assert all(len(one.samples_ns) >= LEAST_TURNS for one in found)


def test_what_happened_is_timed_before_a_plan_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fits the plan in force needed none, and what it computes was not timed for one."""
    pretend(monkeypatch, "linear_rows")
    run = session(layers(), making="always")
    x = np.zeros((4, DEPTH), np.float32)
    run.run({"x": x})
    x[1:3] = 1.0
    run.run({"x": x}, want={"y": np.s_[1:3]})
    assert run.counters.planned == 1
    happened = frequent(run.graph, run.runner.happened)
    assert len(happened) == 2
    assert not happened.keys() <= run.planning.calibrated.keys()
    run.optimize(steps=0)
    assert happened.keys() <= run.planning.calibrated.keys()


def test_no_calibration_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    called = pretend(monkeypatch, "linear_rows")
    one_row(session(layers(), calibrate=False))
    assert not called
    assert not default_records().exists()


def test_a_light_graph_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = pretend(monkeypatch, "linear_rows")
    one_row(session(layers(columns=8)))
    assert not called
    assert not default_records().exists()


def test_what_was_timed_on_a_busy_machine_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_is_disturbed", lambda device, is_contended: True)
    pretend(monkeypatch, "linear_rows")
    assert one_row(session(layers())) == {"linear_rows"}
    assert len(Records(default_records())) == 0


def test_a_cache_that_cannot_be_written_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    pretend(monkeypatch, "linear_rows")
    with pytest.warns(RecordsWarning, match=r"are not kept: .*calibrate=False"):
        assert one_row(session(layers())) == {"linear_rows"}


def test_a_database_that_another_process_writes_is_hardly_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One warning, whatever else is timed."""
    with sqlite3.connect(users_records().name, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(calibrate, "WAIT_S", 0.1)
        pretend(monkeypatch, "linear_rows")
        run = session(layers())
        with pytest.warns(RecordsWarning, match=r"are not kept: .* locked") as told:
            rows(run, 1.0)
        run.run({"x": np.ones((4, DEPTH), np.float32)}, want={"y": np.s_[2:4]})
        assert len(told) == 1
    other.close()


def test_a_damaged_database_is_put_aside_and_the_next_session_times_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    default_records().parent.mkdir(parents=True)
    default_records().write_bytes(b"no database " * 500)
    called = pretend(monkeypatch, "linear_rows")
    with pytest.warns(RecordsWarning, match="a new one begins"):
        assert one_row(session(layers())) == {"linear_rows"}
    called.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one_row(session(layers())) == {"linear_rows"}
    assert not called


def _calibrated(number: int) -> bool:
    """Whether a session in another process gives what the reference does."""
    torch.set_num_threads(1)
    graph = layers()
    values = weights(graph)
    x = np.full((4, DEPTH), number, np.float32)
    expected: np.ndarray = x
    for i in range(LAYERS):
        expected = expected @ values[f"up{i}"].T @ values[f"down{i}"].T
    found = GraphSession(graph, values).run({"x": x})["y"]
    return bool(np.allclose(found, expected, rtol=1e-4, atol=1e-2))


def test_two_processes_calibrate_at_once(one_thread: None) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_calibrated, (1, 2), chunksize=1) == [True, True]
    found = users_records().all(Machine.here().fingerprint)
    assert found
    assert all(sample > 0 for record in found for sample in record.samples_ns)
    with closing(sqlite3.connect(default_records())) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_an_interrupt_keeps_what_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    really, calls = Race.call, []

    def call(self: Race, name: str) -> int:
        calls.append(name)
        if len(calls) > 30:
            raise KeyboardInterrupt
        return really(self, name)

    monkeypatch.setattr(Race, "call", call)
    run = session(layers())
    with pytest.raises(KeyboardInterrupt):
        one_row(run)
    assert len(Records(default_records()).all()) > 0
    monkeypatch.setattr(Race, "call", really)
    y = run.run({"x": np.ones((4, DEPTH), np.float32)})["y"]
    assert np.isfinite(y).all()


def test_memory_is_given_back_when_nothing_timed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    races, left = list[weakref.ref[Race]](), list[int]()
    make = Race.__init__

    def made(self: Race, *arguments: Any) -> None:
        races.append(weakref.ref(self))
        make(self, *arguments)

    monkeypatch.setattr(Race, "__init__", made)
    monkeypatch.setattr(
        calibrate, "give_back_freed", lambda: left.append(sum(one() is not None for one in races))
    )
    one_row(session(layers()))
    assert races
    assert left
    assert not any(left)


def fail_at(monkeypatch: pytest.MonkeyPatch, kernel: str, where: str) -> list[str]:
    """Let a kernel raise; returns when it was tried."""
    tried: list[str] = []

    def fails(*arguments: object) -> None:
        tried.append(where)
        if where != "a later turn" or len(tried) > LAYERS:
            raise ValueError("no such luck")

    def bind(site: Site, scratch: tuple[View, ...]) -> tuple[Any, tuple[Any, ...]]:
        if where == "bind":
            fails()
        return fails, ()

    kernels = [replace(k, bind=bind) if k.name == kernel else k for k in KERNELS["linear"]]
    monkeypatch.setitem(KERNELS, "linear", kernels)
    return tried


@pytest.mark.parametrize("where", ["bind", "its first call", "a later turn"])
def test_a_kernel_that_raises_is_out_and_the_plan_goes_on(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (first,) = one_row(session(layers(), calibrate=False))
    tried = fail_at(monkeypatch, first, where)
    assert first not in one_row(session(layers()))
    records = Records(default_records())
    failures = {record.failure for record in records.all(kernel=first)}
    assert tried
    assert failures == {"ValueError: no such luck"}
    tried.clear()
    assert first not in one_row(session(layers(), records=records))
    assert not tried


def test_a_planned_kernel_that_raises_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan names it again and again, as long as nothing else takes the call."""
    run = session(layers(), making="always")
    one_row(run)
    tried = list[str]()

    def fails(self: Race, name: str) -> int:
        tried.append(name)
        raise ValueError("no such luck")

    monkeypatch.setattr(Race, "call", fails)
    monkeypatch.setattr(CostModel, "has_timed", lambda self, text, kernel: False)
    run.optimize("greedy")
    assert tried
    tried.clear()
    version = run.costs.version
    run.optimize("greedy")
    assert not tried
    assert run.costs.version == version


def test_kernels_that_all_raise_leave_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Race, name: str) -> int:
        raise ValueError("no such luck")

    monkeypatch.setattr(Race, "call", fails)
    assert len(one_row(session(layers()))) == 1


def test_a_clear_loser_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    called = pretend(monkeypatch, "linear_rows", "linear_columns")
    monkeypatch.setattr(calibrate, "LONG_S", 0.0)
    one_row(session(layers()))
    kinds = 2  # up and down
    assert called.count("linear_row") <= 2 * kinds < called.count("linear_rows")


def test_turns_go_over_the_weights_of_all_equal_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, set[int]] = {}
    really = Race.call

    def call(self: Race, name: str) -> int:
        calls = self._calls[name]
        _, arguments = calls[self._turn % len(calls)]
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.numel() == DEPTH * COLUMNS:
                read.setdefault(str(self.task), set()).add(argument.data_ptr())
        return really(self, name)

    monkeypatch.setattr(Race, "call", call)
    monkeypatch.setattr(calibrate, "ROW_NS", 0.0)  # one call at a time
    one_row(session(layers()))
    assert read
    assert all(len(places) == LAYERS for places in read.values())


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_rows_of_short_calls_go_over_all_of_them_too(count: int) -> None:
    made = list[int]()
    calls = [(made.append, (i,)) for i in range(6)]
    rows = rows_of(calls, count)
    for function, arguments in rows:
        before = len(made)
        function(*arguments)
        assert len(made) - before == count
    assert made == [i % 6 for i in range(len(made))]
    assert len(made) >= min(6, count * (6 // count))


def test_loops_in_a_row_are_one_call_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs execute them: what Python takes to call one is no part of what is measured."""
    pytest.importorskip("numba")
    rows = dict[str, Any]()
    really = Race.bind

    def bind(self: Race, kernel: Kernel) -> None:
        really(self, kernel)
        rows[kernel.name] = self._calls[kernel.name][0]

    monkeypatch.setattr(Race, "bind", bind)
    monkeypatch.setattr(calibrate, "ROW_NS", 1e9)
    one_row(session(layers()))
    loops = [call for name, call in rows.items() if name == "linear_numba"]
    assert loops
    assert all(is_part(call) and call[1] == (0, MOST_IN_A_ROW) for call in loops)
    assert any(not is_part(call) for call in rows.values())


def test_a_row_says_what_one_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = session(layers(), calibrate=False)
    one_row(run)
    planner = run.planning.planner(run.scheduled)
    task = heaviest(planner.survey(planner.scenarios(run.planning.classes)), run.costs)[0]
    task.expected_ns = calibrate.ROW_NS / 10
    one = Race(task, run.pool, "cpu")
    one.bind(task.kernels[0])
    clock = iter((0, 5_000))
    one._clock = lambda: next(clock)
    assert task.in_a_row == 10
    assert one.call(task.kernels[0].name) == 500


@pytest.mark.parametrize("is_small", [False, True])
def test_calls_in_a_row_find_weights_where_a_run_does(
    is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of them where the second cache does not hold all; nobody keeps those afterwards."""
    run = session(layers(), calibrate=False)
    one_row(run)
    planner = run.planning.planner(run.scheduled)
    task = heaviest(planner.survey(planner.scenarios(run.planning.classes)), run.costs)[0]
    task.expected_ns, task.sites = calibrate.ROW_NS / 8, task.sites[:1]
    own = sum(view.size_bytes for view in task.sites[0].read if isinstance(view.buffer, str))
    room = 5 * own // 2 if is_small else 1 << 30
    monkeypatch.setattr(calibrate, "cache_bytes", lambda level: room)
    one = Race(task, run.pool, "cpu")
    copies = {name for name, _ in one._buffers if "copy" in str(name)}
    assert len(copies) == (2 if is_small else 0)
    for kernel in task.kernels:
        one.bind(kernel)
        for turn in range(3):
            one.take_turn(kernel.name, counts=turn > 0)
    assert not one.failures
    for (name, dtype), tensor in one._buffers.items():
        if name in copies:
            own = run.pool.buffers[name.partition(",")[0], dtype]
            assert torch.equal(tensor, own)
            assert tensor.data_ptr() != own.data_ptr()
    calibrator = calibrate.Calibrator(run.pool, run.costs, None, "cpu", None)
    calibrator._hold(one)
    assert not any("copy" in str(one.view.buffer) for one in run.pool._prepared)


def test_what_is_timed_carries_the_run() -> None:
    """The calls that are left out make up less than a fiftieth of every run, or are short."""
    run = session(layers(), calibrate=False)
    one_row(run)
    planner = run.planning.planner(run.scheduled)
    runs = planner.survey(planner.scenarios(run.planning.classes))
    tasks = heaviest(runs, run.costs)
    chosen = {task.signature for task in tasks}
    for some in runs:
        times = {run.costs.signature(s).text: 0.0 for s in some}
        for s in some:
            times[run.costs.signature(s).text] += run.costs.ranked(s)[0][1].time_ns
        rest = sum(time for text, time in times.items() if text not in chosen)
        assert rest <= calibrate.REST * sum(times.values())


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    one_row(session(layers(), progress=said.append))
    assert any("timing the kernels of" in line for line in said)


def test_compiling_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are turns enough, however long it takes to bind kernels."""
    said: list[str] = []
    now = time.monotonic()
    really = Race.bind

    def bind(self: Race, kernel: Kernel) -> None:
        nonlocal now
        assert said[-1].endswith(f"compiling or loading {kernel.name}")
        now += 10 * calibrate.SECONDS
        really(self, kernel)

    monkeypatch.setattr(Race, "bind", bind)
    monkeypatch.setattr(calibrate.time, "monotonic", lambda: now)
    one_row(session(layers(), progress=said.append))
    assert any(line.endswith(f": turn {calibrate.LEAST_TURNS}") for line in said)


def test_a_terminal_is_told_of_compiling_first(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Bar(calibrate.tqdm):  # type: ignore[misc]
        def update(self, n: float = 1) -> None:
            told.append(self.desc)

    monkeypatch.setattr(calibrate, "tqdm", Bar)
    monkeypatch.setattr(calibrate.Calibrator, "_bar", False)
    one_row(session(layers()))
    kinds = list(dict.fromkeys(text.split(" of ")[0].rstrip(": ") for text in told))
    assert kinds == ["compiling or loading kernels", "timing the kernels"]


def test_right_results_whatever_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are tried on operands of their own: nothing of the session is written."""
    graph = layers()
    values = weights(graph)
    run = GraphSession(graph, values)
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (4, DEPTH)).astype(np.float32)
    for row in range(4):
        x[row] = rng.integers(-2, 3, DEPTH)
        expected: np.ndarray = x
        for i in range(LAYERS):
            expected = expected @ values[f"up{i}"].T @ values[f"down{i}"].T
        np.testing.assert_allclose(run.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-2)


def test_all_turns_are_bounded() -> None:
    run = session(layers(), calibrate=False)
    one_row(run)
    planner = run.planning.planner(run.scheduled)
    tasks = heaviest(planner.survey(planner.scenarios(run.planning.classes)), run.costs)
    races: Sequence[Race] = [Race(task, run.pool, "cpu") for task in tasks]
    for one in races:
        for kernel in one.task.kernels:
            one.bind(kernel)
    turns = list(calibrate.race(races, []))
    assert turns[-1] <= MOST_TURNS
    assert all(one.racing for one in races)


def of_many_sizes() -> Graph:
    """Products that take different times each: a task a product."""
    g = GraphBuilder()
    x = g.input("x", (4, DEPTH))
    for i in range(5):
        up = g.parameter(f"up{i}", (DEPTH + 512 * i, DEPTH))
        x = ops.linear(ops.linear(x, up), g.parameter(f"down{i}", (DEPTH, DEPTH + 512 * i)))
    g.output("y", x)
    return g.build()


def raced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Which tasks take turns together, from now on."""
    really, found = calibrate.Calibrator._race, list[list[str]]()

    def race(self: Any, tasks: Sequence[Task], *given: Any) -> Any:
        found.append([task.signature for task in tasks])
        return really(self, tasks, *given)

    monkeypatch.setattr(calibrate.Calibrator, "_race", race)
    return found


def test_only_so_much_is_prepared_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = raced(monkeypatch)
    one_row(session(of_many_sizes()))
    every = {one for tasks in together for one in tasks}
    assert max(map(len, together)) > 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(calibrate, "MOST_BYTES", 1)
    together.clear()
    one_row(session(of_many_sizes()))
    assert set(map(len, together)) == {1}
    assert {one for [one] in together} == every


def test_what_there_is_no_time_for_is_for_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heaviest first: a large model's first answer does not wait for all the others."""
    together = raced(monkeypatch)
    one_row(session(of_many_sizes()))
    (first, *_), every = together[0], {one for tasks in together for one in tasks}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(calibrate, "SECONDS", 1e-6)
    together.clear()
    for plans in (1, 2):
        one_row(session(of_many_sizes()))
        assert len(together) == plans * calibrate.MOST_ROUNDS
    timed = [one for [one] in together]
    assert timed[0] == first
    assert len(set(timed)) == len(timed)
    assert set(timed) < every


def test_no_warning_where_all_is_well() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one_row(session(layers()))


@pytest.mark.skipif(library is None, reason="the extra `onednn` is not installed")
def test_what_one_kernel_does_at_once_is_timed_as_often_as_others(tmp_path: Path) -> None:
    """Its only rival is one call after the other, which has signatures of its own."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    h, given = g.input("x", (64, 256)), {}
    for i in range(3):
        given[f"w{i}"] = rng.normal(size=(256, 256)).astype(np.float32)
        h = ops.relu(ops.linear(h, g.parameter(f"w{i}", (256, 256))))
    g.output("y", h)
    records = Records(tmp_path / "records.db")
    session = GraphSession(g.build(), given, records=records)
    session.run({"x": rng.normal(size=(64, 256)).astype(np.float32)})
    fingerprint = Machine.here().fingerprint
    found = [one for one in records.all(fingerprint) if "; then relu(" in one.signature]
    assert found
    assert all(len(one.samples_ns) >= LEAST_TURNS for one in found if not one.failure)
