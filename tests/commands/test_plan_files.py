"""`tgbench plan` and `tgbench optimize`: files in, a plan out."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from places import DATA

import tgbench as tg
from tgbench.commands.cli import main


def test_a_plan_is_shown_as_text_json_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = DATA / "decode.plan.json", tmp_path / "plan.html"
    assert main(["plan", str(path)]) == 0
    plan = tg.Plan.load(path)
    assert capsys.readouterr().out == f"{plan}\n"
    assert main(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == plan.size_bytes
    plan.save(tmp_path / "plan.json")
    assert main(["export", "--page", str(tmp_path / "plan.json")]) == 0
    HTMLParser().feed(text := page.read_text())
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_damaged_plan_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    assert main(["plan", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_a_trace_is_optimised_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = tg.GraphBuilder()
    x = g.input("x", (8, 4))
    g.output("y", tg.ops.softmax(x @ g.parameter("w", (4, 4))))
    graph = g.build()
    tg.save_graph(graph, tmp_path / "graph.json")
    weights = {"w": np.eye(4, dtype=np.float32)}
    from safetensors.numpy import save_file

    save_file(weights, tmp_path / "w.safetensors")
    with tg.Trace(tmp_path / "runs.jsonl") as trace:
        session = tg.GraphSession(graph, weights, trace=trace)
        for row in range(3):
            value = np.zeros((8, 4), np.float32)
            value[row] = 1
            session.run({"x": value}, want={"y": np.s_[row]})
    words = [
        "optimize", str(tmp_path / "graph.json"), "--weights", str(tmp_path / "w.safetensors"),
        "--trace", str(tmp_path / "runs.jsonl"), "--plan", str(tmp_path / "plan.json"),
        "--steps", "4", "--json",
    ]  # fmt: skip
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert tg.Plan.load(tmp_path / "plan.json").size_bytes == told["size_bytes"]
    words[5] = str(tmp_path / "none.jsonl")
    assert main(words) == 1
    assert "none.jsonl" in capsys.readouterr().err
