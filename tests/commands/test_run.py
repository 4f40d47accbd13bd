"""`tgbench run`, `report` and `export`: files in, files and words out."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from places import DATA

import tgbench as tg
from tgbench.base.errors import DemandError
from tgbench.base.safetensors import Weights, save
from tgbench.commands.cli import main
from tgbench.commands.run import wanted

WEIGHT = np.arange(16, dtype=np.float32).reshape(4, 4) % 5


def graph() -> tg.Graph:
    g = tg.GraphBuilder()
    x, scale = g.input("x", (8, 4)), g.input("scale", ())
    g.output("y", x @ g.parameter("w", (4, 4)) + scale)
    g.output("total", tg.ops.sum_(x))
    return g.build()


def expected(x: np.ndarray, scale: float) -> np.ndarray:
    return x @ WEIGHT + np.float32(scale)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graph, its weights, and three runs: everything, one row, and another scale."""
    tg.save_graph(graph(), tmp_path / "model.json")
    save({"w": WEIGHT}, tmp_path / "w.safetensors")
    first, second = values()
    save(
        {
            "0.input.x": first, "0.input.scale": np.float32([1]).reshape(()), "1.input.x": second,
            "2.input.scale": np.float32([3]).reshape(()),
        },
        tmp_path / "inputs.safetensors",
    )  # fmt: skip
    return tmp_path


def values() -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(32, dtype=np.float32).reshape(8, 4) % 7
    second = first.copy()
    second[5] = 2
    return first, second


def ran(folder: Path, *words: str) -> int:
    files = {"--weights": "w.safetensors", "--inputs": "inputs.safetensors"}
    given = [word for flag, name in files.items() for word in (flag, str(folder / name))]
    return main(["run", str(folder / "model.json"), *given, *words])


def failed(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """The one line that an error is told in."""
    assert status == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    return said


# --- run ------------------------------------------------------------------------------------------


def test_runs_follow_one_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(folder, "--output", str(folder / "out.safetensors"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    first, second = values()
    with Weights(folder / "out.safetensors") as out:
        assert len(out.names()) == 6
        for i, right in enumerate((expected(first, 1), expected(second, 1), expected(second, 3))):
            assert (out.tensor(f"{i}.output.y").numpy() == right).all()
        assert out.tensor("2.output.total") == second.sum()
    shares = [run["recomputed"] for run in told["runs"]]
    assert shares[0] == 1.0
    assert shares[1] < 0.5
    assert told["arena_bytes"] > 0


def test_what_is_wanted_is_written_as_it_was_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "out.safetensors"
    words = ["--want", "y[-3, 1:3]", "--want", "total", "--repeat", "2", "--output", str(out)]
    assert ran(folder, *words) == 0
    said = capsys.readouterr().out
    assert [line.partition(":")[0] for line in said.splitlines() if line.startswith("run")] == [
        f"run {i}" for i in range(6)
    ]
    session = tg.GraphSession(graph(), {"w": WEIGHT})
    session.run({"x": values()[0], "scale": np.float32(1)}, {"y": np.s_[-3, 1:3], "total": ...})
    assert said.splitlines()[0] == f"run 0: {session.report().kind}"
    with Weights(out) as file:
        assert (file.tensor("1.output.y").numpy() == expected(values()[1], 1)[-3, 1:3]).all()


def test_names_without_a_number_are_one_run(folder: Path) -> None:
    first, _ = values()
    save({"x": first, "scale": np.zeros((), np.float32)}, folder / "inputs.safetensors")
    assert ran(folder, "--output", str(folder / "out.safetensors")) == 0
    with Weights(folder / "out.safetensors") as out:
        assert sorted(out.names()) == ["total", "y"]
        assert (out.tensor("y").numpy() == expected(first, 0)).all()


def test_programs_are_made_once_and_used_from_then_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, programs = folder / "plan.json", folder / "p"
    words = ["--plan", str(plan), "--programs", str(programs), "--memory", "64KiB"]
    assert ran(folder, *words) == 0
    assert "programs made: 0" not in capsys.readouterr().out
    assert ran(folder, *words) == 0
    told = capsys.readouterr()
    assert "programs made: 0" in told.out
    assert f"programs from {programs}" in told.err
    programs.write_bytes(programs.read_bytes()[:-9])
    assert ran(folder, *words) == 0
    told = capsys.readouterr()
    assert f"{programs}: damaged" in told.err
    assert "programs made: 0" not in told.out
    assert ran(folder, *words) == 0
    assert "programs made: 0" in capsys.readouterr().out, "they were written again"


def test_a_plan_is_written_once_and_a_trace_grows(folder: Path) -> None:
    plan, trace = folder / "plan.json", folder / "runs.jsonl"
    words = ["--plan", str(plan), "--trace", str(trace), "--memory", "64KiB"]
    assert ran(folder, *words) == 0
    text = plan.read_text()
    assert ran(folder, *words) == 0
    assert plan.read_text() == text
    assert len(tg.Trace.load(trace)) == 6


def test_an_exported_program_has_its_own_weights(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 2)
    x = torch.ones(3, 4)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    [name] = tg.from_pt2(tmp_path / "m.pt2").graph.inputs
    save({name: x}, tmp_path / "x.safetensors")
    words = ["--inputs", str(tmp_path / "x.safetensors"), "--output", str(tmp_path / "y")]
    assert main(["run", str(tmp_path / "m.pt2"), *words]) == 0
    with Weights(tmp_path / "y") as out:
        [name] = out.names()
        torch.testing.assert_close(out.tensor(name), module(x).detach())
    assert main(["export", str(tmp_path / "m.pt2"), "--to", str(tmp_path / "m.json")]) == 0
    found = tg.load_graph(tmp_path / "m.json")
    assert found.fingerprint == tg.from_pt2(tmp_path / "m.pt2").graph.fingerprint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--want", "z"], "unknown output 'z'"),
        (["--want", "y[8]"], "y"),
        (["--want", "y[a]"], "such as logits[0,-1] or y[2:4]"),
        (["--want", "y", "--want", "y[0]"], "wanted twice"),
        (["--memory", "8"], "budget"),
        (["--weights", "none.safetensors"], "none.safetensors"),
        (["--output", "none/out.safetensors"], "none/out.safetensors"),
    ],
)
def test_what_cannot_run_is_one_line(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failed(capsys, ran(folder, *words))


def test_a_wrong_input_is_named_with_its_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "inputs.safetensors"
    one, other = np.ones((), np.float32), np.ones((), np.float32)
    save({"0.input.x": values()[0], "0.input.scale": one, "1.input.z": other}, path)
    said = failed(capsys, ran(folder))
    assert f"{path}, run 1: " in said
    assert "'z'" in said
    save({"0.input.x": values()[0], "2.input.x": values()[1]}, path)
    assert "no gap is allowed" in failed(capsys, ran(folder))
    path.write_bytes(b"\0" * 20)
    assert str(path) in failed(capsys, ran(folder))


bound = st.none() | st.integers(-9, 9)
index = st.integers(-9, 9) | st.just(...) | st.builds(slice, bound, bound)


@given(st.lists(index, min_size=1, max_size=4))
def test_indices_are_numpy_s(parts: list[int | slice]) -> None:
    def text(part: int | slice) -> str:
        if isinstance(part, slice):
            ends = ("" if end is None else str(end) for end in (part.start, part.stop))
            return ":".join(ends)
        return "..." if part is ... else str(part)

    assert wanted([f"y[{', '.join(map(text, parts))}]", "z"]) == {"y": tuple(parts), "z": ...}


@pytest.mark.parametrize("text", ["y[", "y[]", "y[1", "y[1]]", "y[1:2:3:4]", "y[1][2]"])
def test_other_indices_are_refused(text: str) -> None:
    with pytest.raises(DemandError, match="such as logits"):
        wanted([text])


# --- export -------------------------------------------------------------------------------------


def written(source: Path, target: Path, *words: str) -> str:
    assert main(["export", str(source), "--to", str(target), *words]) == 0
    return target.read_text(encoding="utf-8")


def test_a_plan_is_compared_on_a_page(tmp_path: Path) -> None:
    path = DATA / "decode.plan.json"
    text = written(path, tmp_path / "plan.html", "--against", str(path))
    HTMLParser().feed(text)
    assert '"compare":""' not in text
    assert '"compare":""' in written(path, tmp_path / "alone.html")


def test_plans_of_other_models_are_not_compared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their layers and classes would be mixed as if they were of one."""
    plan, target = folder / "plan.json", tmp_path / "page.html"
    assert ran(folder, "--plan", str(plan)) == 0
    words = [str(plan), "--against", str(DATA / "decode.plan.json"), "--to", str(target)]
    told = failed(capsys, main(["export", *words]))
    assert "decode.plan.json: a plan of another model: it is of inputs ids, this one of" in told
    assert "compare plans of one model, as those for two budgets" in told
    assert not target.exists()


def test_a_plan_is_drawn_with_and_without_its_graph(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, model = folder / "plan.json", folder / "model.json"
    assert ran(folder, "--plan", str(plan)) == 0
    assert '"graph"' in written(plan, folder / "plan.html", "--graph", str(model))
    for words in ([], ["--graph", str(model)]):
        drawn = json.loads(written(plan, folder / "map.json", *words))
        assert {slot.node for slot in tg.Plan.load(plan).slots} <= set(drawn["name"])
        ElementTree.fromstring(written(plan, folder / "map.svg", *words))
    foreign = ["plan", str(DATA / "decode.plan.json"), "--graph", str(model)]
    assert "the plan is for graph" in failed(capsys, main(foreign))


def test_a_graph_is_exported(folder: Path) -> None:
    model = folder / "model.json"
    assert written(model, folder / "again.json") == model.read_text()
    assert written(model, folder / "model.dot") == graph().to_dot() + "\n"
    ElementTree.fromstring(written(model, folder / "model.svg"))


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot on the PATH")
@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_graph_is_rendered_by_graphviz(folder: Path, form: str, magic: bytes) -> None:
    pytest.importorskip("graphviz")
    path = folder / f"model.{form}"
    assert main(["export", str(folder / "model.json"), "--to", str(path)]) == 0
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("missing", "mend"), [("package", "pip install 'tgbench[lab]'"), ("program", "apt install")]
)
def test_rendering_says_what_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    missing: str, mend: str,
) -> None:  # fmt: skip
    if missing == "package":
        monkeypatch.setitem(sys.modules, "graphviz", None)
    else:
        pytest.importorskip("graphviz")
        monkeypatch.setenv("PATH", "")
    words = ["export", str(folder / "model.json"), "--to", str(folder / "none.png")]
    message = failed(capsys, main(words))
    assert mend in message
    assert "or write .svg" in message
    assert not (folder / "none.png").exists()


def test_a_trace_is_exported_by_class(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, model = folder / "runs.jsonl", ["--graph", str(folder / "model.json")]
    assert ran(folder, "--trace", str(trace), "--repeat", "4") == 0
    rows = list(csv.DictReader(written(trace, folder / "runs.csv", *model).splitlines()))
    assert sum(int(row["count"]) for row in rows) == 12
    words = ["export", str(trace), "--to", str(folder / "runs.csv")]
    assert "pass --graph" in failed(capsys, main(words))


@pytest.mark.parametrize(
    ("name", "to", "message"),
    [
        ("model.json", "x.csv", "a graph has no form 'csv'; end the name in .json or .dot or .svg"),
        ("w.safetensors", "x.json", "is no plan or graph"),
        ("none.json", "x.json", "cannot be read"),
        ("list.json", "x.json", "is no plan or graph"),
        ("deep.json", "x.json", "cannot be read"),
        ("model.json", "none/x.json", "cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    name: str, to: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "list.json").write_text("[1]")
    (folder / "deep.json").write_text("[" * 100_000)
    said = failed(capsys, main(["export", str(folder / name), "--to", str(folder / to)]))
    assert message in said


def test_what_to_write_has_to_be_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = failed(capsys, main(["export", str(folder / "model.json")]))
    assert "model.json: a graph; say with --to what to write (.json or .dot or .svg" in said


def test_a_symbolic_graph_is_bound_for_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = tg.GraphBuilder()
    g.output("y", g.input("x", (tg.dim("T"), 2)) * 2.0)
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    tg.save_graph(g.build(), model)
    save({"x": np.ones((3, 2), np.float32)}, tmp_path / "x")
    bind = ["--bind", "T=3"]
    words = ["--inputs", str(tmp_path / "x"), "--plan", str(plan)]
    assert main(["run", str(model), *words, *bind]) == 0
    shown = ["export", str(plan), "--graph", str(model), "--to", str(tmp_path / "r.html")]
    assert main([*shown, *bind]) == 0
    assert main(["plan", str(plan), "--graph", str(model), *bind]) == 0
    assert "pass --bind T=" in failed(capsys, main(shown))
    written(model, tmp_path / "model.svg")
