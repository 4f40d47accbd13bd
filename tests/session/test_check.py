"""Checking against pairs: verdicts, edits, files, bad input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from session.test_session import share_of_examples, stateful
from strategies import Maker, graphs

import tgbench.graph.ops as ops
from tgbench.base.errors import CheckError, InputError, WeightsError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.safetensors import save
from tgbench.commands import cli
from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.graph_file import save_graph
from tgbench.graph.op_table import numpy_dtype
from tgbench.graph.reference import evaluate
from tgbench.kernels.registry import KERNELS
from tgbench.runs.difference import difference as what_differs
from tgbench.session import arguments as reader
from tgbench.session.check import Pair, check, load_pairs, save_pairs
from tgbench.session.check.compare import difference
from tgbench.session.check.report import Cause, CheckReport
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_pt2

Array = np.ndarray[Any, Any]
ROWS, WIDTH, LAYERS = 6, 8, 4


class Mlp(torch.nn.Module):
    """A few layers, the last two outputs of which are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
            for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return x, x.mean(0)


def module() -> Mlp:
    torch.manual_seed(3)
    return Mlp().eval()


def graph_of(scale: float = 1.0) -> Graph:
    """The same by hand; another `scale` of layer 2 is a mistake in the graph."""
    g = GraphBuilder()
    x = g.input("x", (ROWS, WIDTH))
    for i in range(LAYERS):
        with g.scope(f"layers.{i}.0"):
            bias = g.parameter(f"layers.{i}.0.bias", (WIDTH,))
            x = ops.linear(x, g.parameter(f"layers.{i}.0.weight", (WIDTH, WIDTH))) + bias
        with g.scope(f"layers.{i}.1"):
            x = ops.tanh(x * scale if i == 2 and scale != 1.0 else x)
    g.output("y", x)
    g.output("mean", ops.mean(x, (0,)))
    return g.build()


def session_of(scale: float = 1.0, **options: Any) -> GraphSession:
    weights = {name: p.detach() for name, p in module().named_parameters()}
    return GraphSession(graph_of(scale), weights=weights, **options)


def pairs_of(count: int = 3) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rng, made = np.random.default_rng(0), []
    for _ in range(count):
        x = rng.standard_normal((ROWS, WIDTH)).astype("float32")
        with torch.no_grad():
            y, mean = module()(torch.from_numpy(x))
        made.append(({"x": x}, {"y": y, "mean": mean.numpy()}))
    return made


# --- what is right --------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [None, 2000])
def test_a_right_session_passes(memory: int | None) -> None:
    session = session_of(memory=memory)
    report = check(session, pairs_of(), edits=40)
    assert report.passed
    assert report.rows.passed.all()
    assert list(report.rows.pair) == [0, 0, 1, 1, 2, 2]
    assert report.rows.relative.max() < 1e-6
    assert "6 of 6 outputs are right\n40 edits: every run equals" in str(report)
    assert report.verdict is None
    report.assert_passed()


def test_nothing_of_the_session_is_disturbed() -> None:
    session = GraphSession(stateful(0))
    x = np.ones(4, "float32")
    session.run({"x": x})
    states = {name: session.state_value(name) for name in session.graph.states}
    plan, runs = session.plan, session.counters.runs
    check(session, [({"x": x * 2}, {"seen": x})], edits=5)
    assert session.counters.runs == runs == len(session.trace)
    assert session.plan == plan
    for name, value in states.items():
        assert np.array_equal(session.state_value(name), value)


@share_of_examples(4)
@given(graphs(most_ops=6), st.integers(0, 9))
def test_any_graph_passes_on_its_own_reference(case: tuple[Graph, Maker], seed: int) -> None:
    graph, make = case
    values = make(seed)
    inputs = {name: values[name] for name in graph.inputs}
    weights = {name: values[name] for name in graph.parameters}
    report = check(
        GraphSession(graph, weights=weights),
        [(inputs, evaluate(graph, values))],
        edits=6,
        seed=seed,
    )
    assert report.passed, str(report)


def test_states_begin_at_0_and_follow_the_pairs() -> None:
    graph, pairs = stateful(0), []
    states: dict[str, Array] = {}
    for i in range(4):
        x = np.full(4, i, "float32")
        names = {name: node.name for name, node in graph.updates.items()}
        found = evaluate(graph, {"x": x, **states}, nodes=names.values())
        pairs.append(({"x": x}, {name: found[name] for name in graph.outputs}))
        states = {name: found[node] for name, node in names.items()}
    session = GraphSession(graph)
    session.run({"x": np.ones(4, "float32")})
    assert check(session, pairs, edits=20).passed
    pairs[2][1]["seen"] = pairs[2][1]["seen"] + 1
    report = check(session, pairs)
    assert [row.passed for row in report.outputs if row.pair == 2] == [True, False]
    assert report.verdict is not None
    assert (report.verdict.pair, report.verdict.cause) == (2, Cause.GRAPH)


# --- verdicts -------------------------------------------------------------------------------------


def broken(monkeypatch: pytest.MonkeyPatch, op: str, wrong: Callable[[Any], Any]) -> None:
    """Kernels of an op whose function is followed by something wrong, at sites it picks."""

    def spoilt(kernel: Any) -> Any:
        def bind(site: Any, scratch: Any) -> Any:
            function, arguments = kernel.bind(site, scratch)
            change = wrong(site)
            if change is None:
                return function, arguments

            def run(*given: Any) -> None:
                function(*given[:-1])
                change(given[-1])

            return run, (*arguments, site.out)

        return replace(kernel, bind=bind, name=f"{kernel.name}_spoilt")

    monkeypatch.setitem(KERNELS, op, [spoilt(kernel) for kernel in KERNELS[op]])


def test_a_wrong_kernel_is_found_where_it_first_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tanh of one row count are wrong, by little; everything behind the first is off."""
    broken(monkeypatch, "tanh", lambda site: lambda out: out.narrow(0, 0, 1).mul_(1.0002))
    report = check(session_of(), pairs_of())
    assert not report.passed
    assert report.verdict is not None
    assert report.verdict.cause is Cause.KERNEL
    node = report.verdict.node
    assert node is not None
    assert (node.name, node.op) == ("layers.0.1.tanh", "tanh")
    assert node.own == pytest.approx(2e-4, rel=0.5)
    assert node.kernels[0].endswith("_spoilt")
    assert str(node.box) == "[0:1, 0:8]"
    wrong = report.node_rows[report.node_rows.own > report.node_rows.tolerance]
    assert list(wrong.op.unique()) == ["tanh"], "what only got wrong inputs is not to blame"
    with pytest.raises(CheckError, match=r"(?s)the check failed.*→ layers.0.1.tanh"):
        report.assert_passed()


def chaotic(steps: int) -> Graph:
    """h ← 3.9 h (1 − h): each step is exact to the last bit, and errors double all the same."""
    g = GraphBuilder()
    h = g.input("x", (5,))
    for _ in range(steps):
        h = 3.9 * h * (1.0 - h)
    g.output("y", h)
    return g.build()


def wide(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs in float64."""

    def make(builder: GraphBuilder, node: Node, given: tuple[Node, ...]) -> Node:
        if node.op == "input":
            return builder.input(node.name, node.shape, "float64")
        if node.op == "constant":
            return builder.constant(node.attrs["data"].array.astype("float64"))
        return builder.apply(node.op, *given, **node.attrs)

    return evaluate(graph.rebuild(make), {n: a.astype("float64") for n, a in inputs.items()})


def test_errors_that_grow_are_nobodys_fault() -> None:
    graph = chaotic(40)
    inputs = {"x": np.linspace(0.1, 0.8, 5).astype("float32")}
    report = check(GraphSession(graph), [(inputs, wide(graph, inputs))])
    assert report.verdict is not None
    assert report.verdict.cause is Cause.GROWTH
    assert report.verdict.node is not None
    assert max(node.own for node in report.nodes) < 1e-6
    totals = [node.total for node in report.nodes if node.op == "mul"]
    assert totals[5] < 1e-5 < totals[-1], "the first that is off lies in between"


def test_sums_that_cancel_are_not_called_wrong() -> None:
    g = GraphBuilder()
    x = g.input("x", (3, 4000))
    g.output("y", ops.sum_(x, (1,)) * 1.0)
    rng = np.random.default_rng(0)
    half = rng.standard_normal((3, 2000)).astype("float32")
    x_ = np.concatenate([half, -half], 1)[:, rng.permutation(4000)]
    report = check(GraphSession(g.build()), [({"x": x_}, {"y": np.ones(3, "float32")})])
    assert report.verdict is not None
    assert report.verdict.cause is Cause.GRAPH


def test_a_graph_that_says_something_else_is_found_beside_the_original() -> None:
    session, pairs = session_of(scale=1.01), pairs_of()
    report = check(session, pairs)
    assert report.verdict is not None
    assert report.verdict.cause is Cause.GRAPH
    assert report.verdict.node is None
    program = torch.export.export(module(), (torch.from_numpy(pairs[0][0]["x"]),))
    for original in (module(), program, {"layers.2.1.tanh": np.zeros((ROWS, WIDTH), "float32")}):
        report = check(session, pairs, against=original)
        assert report.verdict is not None
        assert report.verdict.cause is Cause.ORIGINAL
        assert report.verdict.node is not None
        assert report.verdict.node.name == "layers.2.1.tanh"
    with pytest.raises(InputError, match="no node of the graph has the name"):
        check(session, pairs, against=lambda inputs: {"encoder": inputs["x"]})


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the last row of an input are overlooked."""

    def difference(old: Array, new: Array, rows: Any) -> Region:
        last = Region((Box(((len(old) - 1, len(old)), *((0, n) for n in old.shape[1:]))),))
        return what_differs(old, new).subtract(last)

    monkeypatch.setattr(reader, "compared", difference)


def test_a_run_that_is_wrong_only_incrementally_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgetful(monkeypatch)
    report = check(session_of(), pairs_of())
    assert [row.passed for row in report.outputs[:2]] == [True, True]
    assert report.verdict is not None
    assert (report.verdict.pair, report.verdict.cause) == (1, Cause.INCREMENTAL)


# --- edits ----------------------------------------------------------------------------------------


def test_edits_that_fail_are_shortened_and_shown_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful(monkeypatch)
    session, pairs = session_of(), pairs_of(1)
    report = check(session, pairs, edits=200, seed=1)
    assert not report.passed
    assert all(row.passed for row in report.outputs)
    failure = report.failure
    assert failure is not None
    assert len(failure.edits) <= 2
    assert "differs by" in failure.fault
    names = {"session": session, "inputs": pairs[0][0], "np": np}
    exec(failure.python, names)
    found, right = names["found"], names["right"]
    assert any(difference(found[name], right[name]).relative > 1e-5 for name in found)  # type: ignore[index,attr-defined]
    assert failure.python in str(report).replace("\n    ", "\n")


def test_a_run_that_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(site: Any) -> Any:
        def fail(out: Any) -> None:
            raise RuntimeError("no tiles")

        return fail if site.out.shape[0] == 1 else None

    broken(monkeypatch, "linear", wrong)
    report = check(session_of(), pairs_of(1), edits=100)
    assert report.failure is not None
    assert "the run fails: a kernel failed while running" in report.failure.fault


def test_token_edits_stay_in_the_vocabulary() -> None:
    g = GraphBuilder()
    ids, mask = g.input("ids", (6,), "int64"), g.input("mask", (6, 1), "bool")
    rows = ops.embedding(g.parameter("table", (9, 4)), ids)
    g.output("y", ops.where(mask, rows, 0.0))
    graph = g.build()
    table = np.random.default_rng(0).standard_normal((9, 4)).astype("float32")
    inputs = {"ids": np.array([1, 8, 2, 2, 5, 0]), "mask": np.ones((6, 1), bool)}
    session = GraphSession(graph, weights={"table": table})
    assert check(session, [(inputs, {"y": table[inputs["ids"]]})], edits=80).passed


def test_the_same_seed_tries_the_same_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful(monkeypatch)
    reports = [check(session_of(), pairs_of(1), edits=100, seed=4) for _ in range(2)]
    first, second = (report.failure for report in reports)
    assert first is not None
    assert second is not None
    assert first.python == second.python


# --- files ----------------------------------------------------------------------------------------


@share_of_examples(2)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 3), max_size=2),
            st.dictionaries(st.sampled_from(["y", "a.b", "0"]), st.integers(0, 2), min_size=1),
            st.sampled_from(["float32", "int64", "bool", "float16"]),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_pairs_come_back_from_a_file(tmp_path_factory: Any, drawn: list[Any]) -> None:
    pairs: Any = [
        tuple({name: np.full((rank + 1,) * rank, rank, dtype) for name, rank in side.items()}
              for side in (inputs, outputs))
        for inputs, outputs, dtype in drawn
    ]  # fmt: skip
    path = save_pairs(tmp_path_factory.mktemp("pairs") / "pairs.safetensors", pairs)
    again = load_pairs(path)
    assert len(again) == len(pairs)
    for pair, (inputs, outputs) in zip(again, pairs, strict=True):
        for found, right in ((pair.inputs, inputs), (pair.outputs, outputs)):
            assert found.keys() == right.keys()
            for name in right:
                assert found[name].dtype == right[name].dtype
                assert np.array_equal(found[name], right[name])


def test_a_file_stands_for_its_pairs(tmp_path: Path) -> None:
    path = save_pairs(tmp_path / "pairs.safetensors", pairs_of())
    assert check(session_of(), path).passed
    assert check(session_of(), [Pair(*map(dict, pair)) for pair in load_pairs_raw(path)]).passed


def load_pairs_raw(path: Path) -> list[tuple[Mapping[str, Array], Mapping[str, Array]]]:
    return [(pair.inputs, pair.outputs) for pair in load_pairs(path)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x"], "'x' belongs to no pair; name tensors"),
        (["0.in.x"], "belongs to no pair"),
        (["a.input.x"], "belongs to no pair"),
        (["-1.input.x"], "belongs to no pair"),
        (["0.input."], "belongs to no pair"),
        ([f"{'1' * 900}.input.x"], "belongs to no pair"),
        (["1.input.x", "1.output.y"], r"has pairs \[1\], but no gap"),
    ],
)
def test_other_names_in_a_file_are_refused(names: list[str], message: str, tmp_path: Path) -> None:
    save({name: torch.ones(1) for name in names}, tmp_path / "pairs.safetensors")
    with pytest.raises(InputError, match=message):
        load_pairs(tmp_path / "pairs.safetensors")


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pairs.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(WeightsError, match=r"pairs\.safetensors"):
        check(session_of(), tmp_path / "pairs.safetensors")


# --- the command ----------------------------------------------------------------------------------


def saved(folder: Path, *, right: bool = True) -> list[str]:
    """A graph, its weights and pairs, as arguments of the command."""
    save_graph(graph_of(1.0 if right else 1.05), folder / "graph.json")
    save({name: p.detach() for name, p in module().named_parameters()}, folder / "w.safetensors")
    save_pairs(folder / "pairs.safetensors", pairs_of())
    files = [str(folder / name) for name in ("graph.json", "pairs.safetensors")]
    return ["check", *files, "--weights", str(folder / "w.safetensors")]


@pytest.mark.parametrize("right", [True, False])
def test_the_command_says_what_is_right(
    right: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = saved(tmp_path, right=right)
    assert cli.main([*arguments, "--memory", "16KiB", "--edits", "5"]) == (not right)
    said = capsys.readouterr().out
    assert f"{6 if right else 0} of 6 outputs are right" in said
    assert ("it is not what the pairs came from" in said) == (not right)
    assert cli.main([*arguments, "--json", "--tolerance", "0.9", "--seed", "3"]) == 0
    assert cli.main([*arguments, "--json", "--no-bisect"]) == (not right)
    found = json.loads(capsys.readouterr().out.split("\n}\n")[1] + "}")
    assert found["passed"] == right
    assert len(found["outputs"]) == 6
    assert found["verdict"] is None


def test_the_command_takes_an_exported_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [
        (inputs, {"output_0": out["y"], "output_1": out["mean"]}) for inputs, out in pairs_of()
    ]
    program = torch.export.export(module(), (torch.from_numpy(pairs[0][0]["x"]),))
    torch.export.save(program, tmp_path / "model.pt2")
    graph = from_pt2(tmp_path / "model.pt2").graph
    names = dict(zip(pairs[0][1], graph.outputs, strict=True))
    pairs = [(inputs, {names[n]: a for n, a in out.items()}) for inputs, out in pairs]
    save_pairs(tmp_path / "pairs.safetensors", pairs)
    arguments = [str(tmp_path / name) for name in ("model.pt2", "pairs.safetensors")]
    assert cli.main(["check", *arguments, "--edits", "8"]) == 0
    assert "6 of 6 outputs are right" in capsys.readouterr().out


def test_the_command_names_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = saved(tmp_path)
    assert cli.main(["check", str(tmp_path / "w.safetensors"), arguments[2]]) == 1
    assert "no kind of model; give a graph file" in capsys.readouterr().err
    g = GraphBuilder()
    g.output("y", g.input("x", (dim("T"), 2)) * 2.0)
    save_graph(g.build(), tmp_path / "graph.json")
    x = np.ones((3, 2), "float32")
    save_pairs(tmp_path / "pairs.safetensors", [({"x": x}, {"y": x + x})])
    assert cli.main(arguments[:3]) == 1
    assert "pass --bind T=… for that dimension" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        cli.main([*arguments[:3], "--bind", "T=x"])
    assert left.value.code == 2
    assert cli.main([*arguments[:3], "--bind", "T=3"]) == 0


# --- bad input ------------------------------------------------------------------------------------


def changed(**outputs: Any) -> Any:
    [(inputs, right)] = pairs_of(1)
    return [(inputs, right | outputs)]


X = np.zeros((ROWS, WIDTH), "float32")
BAD: dict[str, tuple[Any, str]] = {
    "no pairs": ([], "there are no pairs"),
    "not a list": ({"x": X}, "pairs are a dict; pass a list of"),
    "three": ([({}, {}, {})], r"pairs\[0\] is no pair; give \(inputs, outputs\)"),
    "no input": ([({}, {"y": X})], r"pairs\[0\] has no input 'x' \(float32\[6, 8\]\); add it"),
    "other input": ([({"x": X, "z": X}, {"y": X})], r"unknown input 'z'; the graph takes x"),
    "no output": ([({"x": X}, {})], "expects no output; give at least one of y, mean"),
    "other output": ([({"x": X}, {"z": X})], "unknown output 'z'; the graph gives y, mean"),
    "output's shape": ([({"x": X}, {"y": X[0]})], r"output 'y' has shape \[8\]"),
    "output's dtype": ([({"x": X}, {"y": X.astype(int)})], "output 'y' is int64, the graph gives"),
    "input's shape": ([({"x": X[:3]}, {"y": X})], r"pairs\[0\]: x has shape \[3, 8\]"),
    "input's dtype": ([({"x": X.astype(float)}, {"y": X})], r"pairs\[0\]: x is float64"),
    "NaN goes in": (
        [({"x": X + np.nan}, {"y": X})],
        r"x is nan at \(0, 0\); inputs must be finite",
    ),
    "NaN comes out": ([({"x": X}, {"y": X + np.nan})], r"output 'y' is NaN at \(0, 0\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_pairs_that_do_not_fit_are_named(case: str) -> None:
    pairs, message = BAD[case]
    with pytest.raises(InputError, match=message):
        check(session_of(), pairs)


def test_arguments_that_make_no_sense_are_refused() -> None:
    for tolerance in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="tolerance"):
            check(session_of(), pairs_of(1), tolerance=tolerance)
    with pytest.raises(InputError, match="edits=-1"):
        check(session_of(), pairs_of(1), edits=-1)
    with pytest.raises(InputError, match="edits='2' is not an integer"):
        check(session_of(), pairs_of(1), edits="2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed=-5 is not an integer of at least 0"):
        check(session_of(), pairs_of(1), edits=1, seed=-5)


# --- comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "right", "relative"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([-np.inf, 2.0], [-np.inf, 2.0], 0.0),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([0.0, 0.5], [0.0, 0.0], 0.5),
        ([5.0, -9.0], [5.0, -10.0], 0.1),
    ],
)
def test_relative_errors(found: list[float], right: list[float], relative: float) -> None:
    assert difference(np.array(found), np.array(right)).relative == pytest.approx(relative)


def test_integers_have_to_be_equal() -> None:
    g = GraphBuilder()
    g.output("y", g.input("x", (3,), "int64") + 1)
    session, x = GraphSession(g.build()), np.arange(3)
    assert check(session, [({"x": x}, {"y": x + 1})], tolerance=1.0).passed
    report = check(session, [({"x": x}, {"y": x + 2})], tolerance=1.0)
    assert not report.passed
    assert report.rows.absolute.tolist() == [1.0]


def test_numpy_knows_no_bfloat16() -> None:
    g = GraphBuilder()
    x = g.input("x", (4, 4), "bfloat16")
    g.output("y", ops.tanh(x @ x))
    right = torch.linspace(-1, 1, 16).reshape(4, 4).bfloat16()
    pairs = [({"x": right}, {"y": torch.tanh(right @ right)})]
    report = check(GraphSession(g.build()), pairs, edits=10)
    assert report.passed, str(report)
    assert numpy_dtype("bfloat16") == np.float32
    pairs[0][1]["y"][1, 2] += 0.5
    report = check(GraphSession(g.build()), pairs)
    assert report.verdict is not None
    assert report.verdict.cause is Cause.GRAPH


def test_a_report_without_nodes_prints() -> None:
    assert not check(session_of(scale=2.0), pairs_of(1), bisect=False).passed
    assert EMPTY.is_empty
    assert str(CheckReport(())).endswith("0 of 0 outputs are right")
