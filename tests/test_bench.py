"""The benches run, agree and write what they say; no time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tgbench.bench import decode, engine, measure, specialise
from tgbench.bench.measure import Record, Samples, Stopwatch, dumped, rotated, table, take_turns


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
    assert found["command"] == "python -m tgbench.bench.decode --only 'a b'"
    assert found["cases"] == [1]
    assert len(found["load_average"]["before"]) == len(found["load_average"]["after"]) == 3
    assert found["machine"]["processor"]
    assert found["machine"]["threads"] >= 1
    assert found["versions"]["torch"]
    assert found["versions"]["tgbench"]
    Record("decode", []).write({}, None)
    assert list(tmp_path.iterdir()) == [path.parent]


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
    right = decode.Follower(lambda at: lambda: logits[at + 1], text, 0)
    wrong = decode.Follower(lambda at: lambda: logits[at], text, 0)
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
def test_specialise_counts_programs(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(specialise, "SIZE", 32)
    monkeypatch.setattr(specialise, "PATCH", 8)
    monkeypatch.setitem(specialise.NETWORKS, "small", small_convolutions)
    found = specialise.measured("small", at_once, quick=True)
    assert 0 < found["programs"] <= found["runs"] == min(16 // at_once, specialise.QUICK_GROUPS)
    assert len(found["samples_ms"]) == found["programs"]
    assert min(found["samples_ms"]) > 0
