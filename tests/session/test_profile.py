"""Profiles: what is measured, that it resumes, and that a session never notices. No time counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tgbench as tg
import tgbench.session.profile as profiler
from benchmarks import predict as bench
from tgbench.commands import cli
from tgbench.costs.model import CostModel
from tgbench.costs.records import Records
from tgbench.costs.signature import Signature
from tgbench.kernels.registry import KERNELS, Kernel
from tgbench.programs import folding
from tgbench.session.profile import FILL, Profile, clocked, expect, predict, profile, survey
from tgbench.session.session import GraphSession
from tgbench.sources.models.checkpoints import gemma3_reduced


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(profiler, "MOST_ROUNDS", 2)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records.db")


X = np.linspace(-1, 1, 48, dtype="float32").reshape(6, 8)


def made(**options: Any) -> GraphSession:
    """Two equal layers, and a softmax over a state."""
    g = tg.GraphBuilder()
    x = g.input("x", (6, 8))
    total = g.state("total", (6, 8))
    for i in range(2):
        x = tg.ops.relu(tg.ops.linear(x, g.parameter(f"w{i}", (8, 8))))
    g.update(total, total + x)
    g.output("y", tg.ops.softmax(x, -1))
    g.output("total", total + x)
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((8, 8)).astype("float32") for i in range(2)}
    return GraphSession(g.build(), weights=weights, **options)


def opened() -> GraphSession:
    """The same with programs for the first run and a change."""
    session = made()
    session.run({"x": X})
    changed = X.copy()
    changed[2] += 1
    session.run({"x": changed}, want={"y": np.s_[2]})
    return session


def keys(session: GraphSession) -> set[tuple[str, str]]:
    return {place.key for _, _, program in session.programs for place in survey(session, program)}


def test_a_survey_is_the_program(records: Records) -> None:
    session = opened()
    for _, _, program in session.programs:
        places = survey(session, program)
        assert [p.kernel.name for p in places] == [i.kernel for i in program.instructions]
        for place, made in zip(places, program.instructions, strict=True):
            assert place.signature == Signature.of(place.site, streams=False)
            assert place.site.out_box == made.box.at(program.origin)
            assert place.kernel is FILL or place.site.call is made.node.call


def test_everything_is_measured_once(records: Records) -> None:
    session = opened()
    found = profile(session, records, alternatives=False)
    assert set(found.measured) == keys(session)
    assert not found.failed
    assert not found.stopped
    for record in records.all():
        assert record.samples_ns
        assert record.modelled_ns > 0
        assert record.kernel == FILL.name or record.max_relative_error is not None
    times = {(one.kernel, one.signature): one.median_ns for one in records.all()}
    assert found.median_ns == times
    again = profile(session, records, alternatives=False)
    assert (again.measured, again.programs, again.known) == ({}, 0, frozenset(keys(session)))
    assert again.median_ns == times, "what was known before has its time, too"


def test_alternatives_are_measured_too(records: Records) -> None:
    session = opened()
    found = profile(session, records)
    assert set(found.measured) > keys(session)
    assert profile(session, records).programs == 0


def test_a_session_does_not_notice(records: Records) -> None:
    session, twin = opened(), opened()
    profile(session, records)
    for row in (2, 4, 4):
        x = X * row
        for name in ("y", "total"):
            here, there = (s.run({"x": x}, want={name: np.s_[row]})[name] for s in (session, twin))
            assert (here == there).all()
        assert session.last.specialised == twin.last.specialised


def test_programs_of_a_session_that_never_ran_look_up_nothing_that_is_not_there(
    records: Records,
) -> None:
    """An arena begins with any bytes: no indices, perhaps."""
    g = tg.GraphBuilder()
    rows = tg.ops.embedding(g.parameter("table", (5, 8)), g.input("ids", (4,), "int64"))
    g.output("y", rows * 2.0)
    session = GraphSession(g.build(), {"table": np.ones((5, 8), "float32")}, calibrate=False)
    assert session.prepare()
    session.memory.arena.fill_(0x7F)
    assert profile(session, records).measured
    assert bool((session.memory.arena == 0x7F).all())


def test_programs_that_were_loaded_and_never_ran_are_measured(
    records: Records, tmp_path: Path
) -> None:
    first = opened()
    programs = first.save_programs(tmp_path / "saved.programs")
    second = made(plan=first.plan)
    assert second.load_programs(programs)
    assert profile(second, records).measured


def test_an_interrupt_keeps_what_is_done_and_the_next_call_goes_on(records: Records) -> None:
    session = opened()

    def stop(done: int, count: int, text: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    first = profile(session, records, progress=stop, alternatives=False)
    assert first.stopped == "interrupt"
    assert 0 < len(first.measured) < len(keys(session))
    assert {(r.kernel, r.signature) for r in records.all()} == set(first.measured)
    rest = profile(session, records, alternatives=False)
    assert set(rest.measured) == keys(session) - set(first.measured)
    assert str(first).startswith(f"{len(first.measured)} measured in 1 program, stopped by inter")


def test_time_runs_out(records: Records) -> None:
    found = profile(opened(), records, seconds=0)
    assert (found.stopped, len(records)) == ("time", 0)


def test_a_failing_kernel_is_a_record(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(folding, "does_besides", lambda op, other: False)  # a call of its own
    bad = Kernel("bad", "relu", lambda s: True, lambda s: 900.0, lambda s, _: (fail, ()))
    monkeypatch.setitem(KERNELS, "relu", [*KERNELS["relu"], bad])
    session = opened()
    found = profile(session, records)
    assert {name for name, _ in found.failed} == {"bad"}
    failures = {r.failure for r in records.all(kernel="bad")}
    assert failures == {"ValueError: no such luck"}
    assert "bad" not in {point.kernel for point in CostModel(records).table().points}


def test_scratch_and_allocations_are_counted(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(x: torch.Tensor, room: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.zeros(1000, dtype=torch.uint8).view(torch.float32)[0])

    monkeypatch.setattr(folding, "does_besides", lambda op, other: False)  # a call of its own
    greedy = Kernel(
        "greedy",
        "relu",
        lambda s: True,
        lambda s: 900.0,
        lambda s, scratch: (run, (s.operand(0), *scratch, s.out)),
        lambda s: (((10,), "float32"),),
    )
    monkeypatch.setitem(KERNELS, "relu", [*KERNELS["relu"], greedy])
    profile(opened(), records)
    assert {r.workspace_bytes for r in records.all(kernel="greedy")} == {1040}
    assert {r.workspace_bytes for r in records.all(kernel="relu")} == {0}


def test_predictions_say_where_they_come_from(records: Records) -> None:
    session = opened()
    _, _, program = next(iter(session.programs))
    places = survey(session, program)
    assert predict(places, CostModel(records, streams=False)).source == "modelled"
    profile(session, records, alternatives=False)
    model = CostModel(records, streams=False)
    found = predict(places, model)
    assert found.source == "measured"
    assert found.time_ns == sum(model.of_site(p.site, p.kernel).time_ns for p in places)
    planned = expect(program, model)
    assert planned.share("measured") > 0
    assert planned.time_ns <= found.time_ns


def test_the_clock_has_one_reading_a_call() -> None:
    ran: list[int] = []
    times = clocked([(ran.append, (i,)) for i in range(5)])
    assert ran == [0, 1, 2, 3, 4]
    assert len(times) == 5
    assert all(time_ns > 0 for time_ns in times)


def test_profiles_print() -> None:
    found = replace(Profile(), known=frozenset({("a", "b")}), failed=frozenset({("c", "d")}))
    assert str(found) == "0 measured in 0 programs, 1 known before, 1 failed, 0.0 s"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    small = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    config.write_text(json.dumps(gemma3_reduced() | small))
    database = str(tmp_path / "records.db")
    words = ["profile", str(config), "--tokens", "8", "--records", database, "--chosen"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "linear" in shown
    assert "1 measured" in shown
    assert len(Records(database)) > 10
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "known before" in shown
    assert "\n0 measured in 0 programs" in shown


def test_the_command_refuses_what_it_cannot_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    words = ["profile", str(tmp_path), "--records", str(tmp_path / "records.db")]
    assert cli.main(words) == 1
    assert "model_type is 'abacus'; there are builders for bert, gemma3" in capsys.readouterr().err


def test_the_bench_writes_its_file(tmp_path: Path) -> None:
    output = tmp_path / "predict.json"
    words = ["--quick", "--output", str(output), "--cache", str(tmp_path)]
    assert bench.main(words) == 0
    (model,) = json.loads(output.read_text())["models"].values()
    assert len(model["buckets"]) == model["close"]["of"] == 8
    assert model["worst"] in {bucket["name"] for bucket in model["buckets"]}
    for bucket in model["buckets"]:
        assert bucket["instructions"]["ratio"] > 0
        assert sum(call["calls"] for call in bucket["calls"]) <= bucket["instructions_count"]
