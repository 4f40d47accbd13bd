"""The benches run, agree and write what they say; no time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import benchmarks
from benchmarks import decode, engine, kernels, measure, specialise
from benchmarks.measure import (
    ELSEWHERE,
    Record,
    Samples,
    Stopwatch,
    busy,
    dumped,
    measured_apart,
    measured_here,
    rotated,
    take_turns,
)
from benchmarks.occlusion import Sweep
from tgbench.commands.progress import table
from tgbench.graph.graph import GraphBuilder

NO_BENCH = {"readme"}  # it measures nothing: it writes what others found into the README
MODULES = {module.name for module in iter_modules(benchmarks.__path__)} - NO_BENCH
BENCHES = [name for name in MODULES if hasattr(import_module(f"benchmarks.{name}"), "main")]
IN_A_BROWSER = {"widgets"}  # see tests/browser
QUICK_TESTS = {"decode", "engine"}  # below, with what they wrote


def test_turns_rotate_and_count() -> None:
    order: list[str] = []

    def step(name: str) -> measure.Step:
        def run() -> int:
            order.append(name)
            return len(order)

        return run

    samples = take_turns({name: step(name) for name in "abc"}, 2, 4, burst=2)
    assert "".join(order) == "aabbcc" + "bbccaa" + "ccaabb" + "aabbcc"
    assert [len(repetition) for repetition in samples.times["b"]] == [4, 4]
    assert samples.times["a"] == [[1, 2, 11, 12], [15, 16, 19, 20]]
    assert len(samples.loads) == 2
    assert rotated(["a", "b", "c"], 4) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("work", "limit_s", "expected"),
    [
        (partial(dict, seen=1), 60.0, {"seen": 1}),
        (partial(int, "no"), 60.0, {"error": "ValueError: invalid literal for int()"}),
        (partial(os._exit, 3), 60.0, {"error": "the process ended with 3"}),
        (partial(time.sleep, 60), 0.5, {"error": "not done in 0.5 s"}),
    ],
    ids=["done", "raises", "ends", "late"],
)
def test_a_process_says_what_it_measured_or_why_nothing(
    work: Any, limit_s: float, expected: dict[str, Any]
) -> None:
    found = measured_apart(work, limit_s, ("benchmarks.measure",))
    assert found.keys() == expected.keys()
    assert all(str(found[key]).startswith(str(value)) for key, value in expected.items())


def test_ratios_are_within_repetitions() -> None:
    samples = Samples({"floor": [[10], [20]], "mine": [[15], [30]], "other": [[20, 99, 20], [60]]})
    assert samples.medians("other") == [20, 60]
    assert samples.median("floor") == 15
    assert samples.ratios("other", "floor") == [2.0, 3.0]
    assert samples.above("mine", "other", "floor") == [0.5, 0.25]
    assert samples.always_faster("mine", "other")
    assert not samples.always_faster("mine", "mine")


class Worker:
    """Functions to watch."""

    def outer(self) -> str:
        return self.inner() + self.fixed("c")

    def inner(self) -> str:
        return "b"

    @staticmethod
    def fixed(text: str) -> str:
        return text


def test_stopwatch_counts_and_leaves_no_trace() -> None:
    before = dict(vars(Worker))
    functions = {name: (Worker, name) for name in ("outer", "inner", "fixed")}
    with Stopwatch(functions) as watch:
        Worker().inner()
        assert Worker().outer() == "bc"
    assert watch.calls == {"outer": 1, "inner": 2, "fixed": 1}
    assert watch.times_ns["outer"] >= 0 < watch.calls["outer"]
    with Stopwatch(functions, within="outer") as watch:
        Worker().inner()
        Worker().outer()
    assert watch.calls == {"outer": 1, "inner": 1, "fixed": 1}
    assert dict(vars(Worker)) == before


def test_stopwatch_lets_errors_through() -> None:
    worker = SimpleNamespace(fail=lambda: 1 / 0)
    with Stopwatch({"fail": (worker, "fail")}) as watch, pytest.raises(ZeroDivisionError):
        worker.fail()
    assert watch.calls == {"fail": 1}


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with measure.threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "value", [{}, [], {"a": [1, 2.5, None], "b": {"c": [[1], []]}}, [[{"é": "x"}], True]]
)
def test_dumped_is_json(value: Any) -> None:
    assert json.loads(dumped(value)) == value


def test_table_is_aligned() -> None:
    lines = table(["what", "ms"], [["a", "1.5"], ["long name", "10"]]).splitlines()
    assert {len(line) for line in lines} == {len("long name  1.5")}


def test_record_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    Record("decode", ["--only", "a b"]).write({"cases": [1]}, path)
    found = json.loads(path.read_text())
    assert found["command"] == "python -m benchmarks.decode --only 'a b'"
    assert found["cases"] == [1]
    assert len(found["load_average"]["before"]) == len(found["load_average"]["after"]) == 3
    assert found["machine"]["processor"]
    assert found["machine"]["threads"] >= 1
    assert found["versions"]["torch"]
    assert found["versions"]["tgbench"]
    Record("decode", []).write({}, None)
    assert list(tmp_path.iterdir()) == [path.parent]


def test_what_another_machine_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decode.json"
    for instructions, case in (("AVX2", 1), ("AVX2", 2), ("AVX512", 3), ("AVX512", 4)):
        known = {"processor": "One (R)", "instructions": instructions, "cores": 2}
        monkeypatch.setattr(measure, "machine", lambda known=known: known)
        assert measured_here(path).get("cases") == (None if case % 2 else [case - 1])
        Record("decode", []).write({"cases": [case]}, path)
    kept = tmp_path / ELSEWHERE / "one-r-avx2" / "decode.json"
    assert json.loads(path.read_text())["cases"] == [4]
    assert json.loads(kept.read_text())["cases"] == [2]
    monkeypatch.setattr(measure, "machine", lambda: known | {"instructions": "AVX2"})
    Record("decode", []).write({"cases": [5]}, path)
    assert [one.parent.name for one in tmp_path.rglob("decode.json")] == [
        tmp_path.name,
        "one-r-avx512",
    ]


def test_others_are_busy_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    really = subprocess.Popen

    def start(*arguments: Any) -> subprocess.Popen[bytes]:
        started.append(really(*arguments))
        return started[-1]

    monkeypatch.setattr(measure.subprocess, "Popen", start)
    with busy(2):
        assert [one.poll() for one in started] == [None, None]
    assert all(one.poll() is not None for one in started)


@pytest.mark.parametrize("name", sorted({*BENCHES} - IN_A_BROWSER - QUICK_TESTS))
def test_every_bench_has_a_smallest_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--quick` runs to its end within seconds, and writes nothing but what is asked for."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    bench = import_module(f"benchmarks.{name}")
    assert bench.main(["--quick", "--output", str(tmp_path / "found.json")]) == 0
    assert json.loads((tmp_path / "found.json").read_text())["bench"] == name
    assert not any(Path().iterdir())


def test_only_a_quick_run_without_an_output_writes_nothing() -> None:
    command = measure.Command("decode", "A bench.")
    assert command.begin([])[0].output == Path("docs/results/decode.json")
    assert command.begin(["--quick"])[0].output is None
    assert command.begin(["--quick", "--output", "a.json"])[0].output == Path("a.json")


@pytest.mark.parametrize("name", kernels.CASES)
def test_every_case_of_the_kernels_is_a_site(name: str) -> None:
    """Operands may be any view of a leaf; nothing of their size is allocated to see that."""
    node = kernels.CASES[name](GraphBuilder())
    memory = kernels.Memory()
    site = kernels.site_of(node, kernels.scheduled_of(node), memory, 0)
    assert [view.shape for view in site.ins if view] == [parent.shape for parent in node.inputs]
    assert kernels.candidates(site)
    assert not memory.buffers


def test_decode_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "decode.json"
    assert decode.main(["--quick", "--cache", str(tmp_path), "--output", str(path)]) == 0
    (case,) = json.loads(path.read_text())["cases"]
    size = decode.QUICK
    for times in case["samples_ns"].values():
        assert [len(repetition) for repetition in times] == [size.steps] * size.repetitions
    summary = case["summary"]
    assert set(summary["median_ms"]) == set(decode.LABELS)
    assert summary["agrees"]
    assert min(summary["logits_compared"].values()) > 0
    assert case["weight_matrices"] == 7 * size.config["num_hidden_layers"] + 1
    assert 0 < case["arena_bytes"] <= 1 << 20
    assert "tgbench" in capsys.readouterr().out


def test_decode_counts_what_differs() -> None:
    """A system with other logits is found out."""
    ids = torch.arange(4)[None].numpy()
    logits = torch.nn.functional.one_hot(torch.arange(4), 4).float()
    text = decode.Text(ids, 0, {0: logits[1].numpy(), 1: logits[2].numpy()})
    right = decode.Follower(decode.local(lambda at: lambda: logits[at + 1]), text, 0)
    wrong = decode.Follower(decode.local(lambda at: lambda: logits[at]), text, 0)
    for follower in (right, wrong):
        assert follower() >= 0
        assert follower() >= 0
    assert (right.missed, right.worst, right.checked) == (0, 0.0, 2)
    assert (wrong.missed, wrong.worst) == (2, 1.0)


def test_decode_refuses_more_tokens_than_there_are() -> None:
    with pytest.raises(SystemExit, match="use fewer"):
        decode.main(["--quick", "--repetitions", "99"])


def test_engine_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "engine.json"
    assert engine.main(["--quick", "--cache", str(tmp_path), "--output", str(path)]) == 0
    (found,) = json.loads(path.read_text())["models"].values()
    token = found["counts"]["token"]
    assert token["instructions"] == sum(token["kernels"].values()) > 0
    assert found["allocations"]["run"]["tensors"] == 0
    assert set(found["moving"]) == {"auto", "all"}
    assert found["moving"]["auto"]["moving_views"] < found["moving"]["all"]["moving_views"]
    assert found["specialising"]["samples_ns"]
    assert found["planning"]
    assert "hot loop" in capsys.readouterr().out


def test_straight_makes_the_same_calls() -> None:
    seen: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> None:
        seen.append(arguments)

    program: Any = SimpleNamespace(calls=[(note, (1, "a")), (note, ())])
    engine.bare(program)
    engine.straight(program)()
    assert seen == [(1, "a"), ()] * 2


def small_convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 3, 2, 1), torch.nn.Flatten(), torch.nn.Linear(2 * 16 * 16, 3)
    )


@pytest.mark.parametrize("at_once", specialise.AT_ONCE)
def test_specialise_counts_programs(at_once: int) -> None:
    found = specialise.measured("small", small_convolutions, Sweep(32, 8, at_once=at_once))
    assert 0 < found["programs"] <= found["runs"] == 16 // at_once
    assert len(found["samples_ms"]) == found["programs"]
    assert min(found["samples_ms"]) > 0
