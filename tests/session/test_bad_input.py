"""What goes in wrong comes out as a typed error that names the fault and the mend."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from session.test_session import causal, causal_values, share_of_examples
from session_cases import CheckedSession, Wrong
from strategies import Array
from torch._subclasses.fake_tensor import FakeTensorMode

from tgbench import ops
from tgbench.base import safetensors
from tgbench.base.errors import (
    BudgetError,
    DemandError,
    ExactnessError,
    GraphError,
    HintError,
    InputError,
    KernelError,
    PlanError,
    RecordsError,
    SearchError,
    TgbenchError,
    TraceError,
    WeightsError,
)
from tgbench.base.regions import Region
from tgbench.graph.dims import dim
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.ops import embedding
from tgbench.plans.plan import Plan
from tgbench.programs.program import Program
from tgbench.runs.trace import Trace, TraceWarning
from tgbench.session.session import GraphSession
from tgbench.sources.torch.imported import Imported

ROWS = 8


@pytest.fixture
def session() -> CheckedSession:
    graph = causal(ROWS)
    return CheckedSession(graph, causal_values(graph, 0))


def float_x(value: float = 1.0) -> Array:
    return np.full((ROWS, 2), value, "float32")


# --- inputs ---------------------------------------------------------------------------------------

BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "shape": ({"x": np.zeros((ROWS, 3), "float32")}, r"shape \[8, 3\].*float32\[8, 2\]"),
    "rank": ({"x": np.zeros(ROWS * 2, "float32")}, r"shape \[16\]"),
    "dtype": ({"x": np.zeros((ROWS, 2))}, r"float64.*astype\('float32'\)"),
    "torch dtype": ({"x": torch.zeros(ROWS, 2, dtype=torch.float64)}, "float64.*convert it"),
    "not an array": ({"x": "text"}, "convert it"),
    "nothing": ({"x": None}, "x is None, which is no number; pass an array"),
    "holes": ({"x": [[None, 1.0]] * ROWS}, "x holds None, which is no number"),
    "complex": ({"x": float_x() * 1j}, r"complex64.*convert it"),
    "name": ({"x": float_x(), "z": float_x()}, "unknown input 'z'.*takes x"),
    "missing": ({}, "'x'.*no value yet; pass it"),
    "NaN": ({"x": float_x(np.nan)}, r"nan at \(0, 0\).*finite: mend"),
    "infinity": ({"x": float_x(np.inf)}, "is inf at .*finite: mend"),
    "closed": ({"x": float_x(-np.inf)}, r"-inf at .*closes a mask, np\.finfo\('float32'\)\.min"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_a_wrong_input_is_named(session: CheckedSession, case: str) -> None:
    inputs, message = BAD_INPUTS[case]
    with pytest.raises(InputError, match=message):
        session.session.run(inputs)
    session.run({"x": float_x()})


def test_a_wrong_input_changes_nothing(session: CheckedSession) -> None:
    session.run(want={"y": np.s_[3]})
    with pytest.raises(InputError):
        session.session.run({"x": float_x(np.nan)}, {"y": np.s_[3]})
    session.run(want={"y": np.s_[3]})
    assert not session.session.last.instructions  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", [-1, 5])
def test_an_id_outside_the_table_is_named(bad: int) -> None:
    g = GraphBuilder()
    ids = g.input("ids", (2, 3), "int64")
    g.output("y", embedding(g.parameter("table", (5, 2)), ids))
    session = GraphSession(g.build(), {"table": np.zeros((5, 2), "float32")})
    ids = np.zeros((2, 3), np.int64)
    ids[1, 2] = bad
    with pytest.raises(InputError, match=r"ids holds .*table with 5; values must be in 0..4"):
        session.run({"ids": ids})


# --- forms that an input may have -----------------------------------------------------------------

THREE = np.array([3, 1, 2])
IDS: dict[str, Any] = {
    "int64": THREE,
    "int32": THREE.astype("int32"),
    "uint8": THREE.astype("uint8"),
    "big-endian": THREE.astype(">i8"),
    "read-only": np.broadcast_to(THREE, (3,)),
    "every other one": np.repeat(THREE, 2)[::2],
    "backwards": THREE[::-1].copy()[::-1],
    "list": [3, 1, 2],
    "tuple of NumPy scalars": tuple(THREE),
    "list of tensors": [torch.tensor(i) for i in THREE],
    "torch int64": torch.tensor(THREE),
    "torch int32": torch.tensor(THREE, dtype=torch.int32),
    "torch, every other one": torch.tensor(THREE).repeat_interleave(2)[::2],
}
FLOATS: dict[str, Any] = {
    "float32": THREE.astype("float32"),
    "float16": THREE.astype("float16"),
    "int16": THREE.astype("int16"),
    "bool and more": [3.0, True, 2],
    "big-endian": THREE.astype(">f4"),
    "list": [3.0, 1, 2],
    "torch float32": torch.tensor(THREE, dtype=torch.float32),
    "torch bfloat16": torch.tensor(THREE, dtype=torch.bfloat16),
    "parameter": torch.nn.Parameter(torch.tensor(THREE, dtype=torch.float32)),
}


def one_input(dtype: str, shape: tuple[int, ...] = (3,)) -> GraphSession:
    """One input, and one output of the same numbers as float32."""
    g = GraphBuilder()
    g.output("y", g.input("x", shape, dtype).cast("float32") * 2.0)
    return GraphSession(g.build())


@pytest.mark.parametrize(
    ("dtype", "form"),
    [("int64", form) for form in IDS] + [("float32", form) for form in FLOATS],
)
def test_what_loses_no_value_is_taken(dtype: str, form: str) -> None:
    value = (IDS if dtype == "int64" else FLOATS)[form]
    session = one_input(dtype)
    for inputs in (value, {"x": value}):
        found = session.run(inputs)["y"]
        assert isinstance(found, torch.Tensor) == isinstance(value, torch.Tensor)
        assert found.tolist() == [6, 2, 4]
    assert session.counters.runs == 2
    assert not session.last.instructions, "nothing changed"  # type: ignore[union-attr]


def test_single_numbers_and_flags_are_taken() -> None:
    scalar = one_input("float32", ())
    for value in (0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), np.array(0.5, ">f4")):
        assert scalar.run(value)["y"] == 1
    assert one_input("int32", ()).run(np.int64(7))["y"] == 14
    assert one_input("bool", (2,)).run([True, False])["y"].tolist() == [2, 0]
    assert one_input("bfloat16", (2,)).run(torch.tensor([1, 2], dtype=torch.int8))[
        "y"
    ].tolist() == [2, 4]


def test_what_only_says_that_it_is_negative_is_resolved() -> None:
    value = torch.tensor([1 - 3j, 2 - 1j, 0 - 2j]).conj().imag
    assert value.is_neg()
    assert one_input("float32").run(value)["y"].tolist() == [6, 2, 4]


def quietly(make: Callable[..., Any], *given: Any) -> Any:
    """What PyTorch makes with a warning."""
    with warnings.catch_warnings(action="ignore"):
        return make(*given)


ONES = torch.ones(3)
LOSSY: dict[str, tuple[str, Any, str]] = {
    "float64": ("float32", THREE / 2, r"x is float64.*`x\.astype\('float32'\)`"),
    "torch float64": ("float32", torch.tensor(THREE / 2), r"float64.*`x\.to\(torch\.float32\)`"),
    "float ids": ("int64", [1.0, 2, 3], r"float64.*`np\.asarray\(x\)\.astype\('int64'\)`"),
    "long ids": ("int32", THREE, r"int64.*astype\('int32'\)"),
    "a large integer": ("float32", [2**24 + 1, 0, 0], "int64"),
    "an integer past 53 bits": ("float32", [2**60 + 1, 0, 0], "int64"),
    "an integer past 63 bits": ("float32", [2**63 + 1] * 3, "uint64"),
    "the largest integer": ("float64", [2**63 - 1, 0, 0], "int64"),
    "a larger integer": ("int64", [2**70, 0, 0], "object"),
    "an integer too large": ("int32", [2**31, 0, 0], "int64"),
    "a float too large": ("float32", [1e300, 0, 0], r"inf at \(0,\)"),
    "numbers as flags": ("bool", [1, 0, 1], "int64"),
    "complex": ("float32", THREE + 1j, "complex128"),
    "dates": ("int64", THREE.astype("M8[s]"), "datetime64"),
    "text": ("int64", ["3", "1", "2"], "str"),
    "ragged": ("int64", [[3], [1, 2]], "no array.*nested lists of numbers"),
    "sparse": ("int64", torch.tensor(THREE).to_sparse(), "no array.*to_dense"),
    "without bytes": ("int64", torch.tensor(THREE, device="meta"), "no array"),
    "masked": ("int64", np.ma.masked_array(THREE, [0, 0, 1]), "masked.*filled"),
    "a masked tensor": ("float32", quietly(torch.masked.masked_tensor, ONES, ONES > 0), "no array"),
    "nested": ("float32", quietly(torch.nested.nested_tensor, [ONES] * 2), "no array"),
    "structures": ("int64", np.zeros(3, [("a", "i8")]), "void"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@pytest.mark.parametrize("form", LOSSY)
def test_what_loses_values_is_refused_with_the_mend(form: str) -> None:
    dtype, value, message = LOSSY[form]
    session = one_input(dtype)
    with pytest.raises(InputError, match=message):
        session.run(value)
    session.run(np.zeros(3, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_mask_given_as_an_input_closes_with_the_least_number(dtype: str) -> None:
    """As the error for −inf says: the same weights, exactly, in every run."""
    g = GraphBuilder()
    mask, scores = g.input("mask", (1, 6), dtype), g.input("scores", (6, 6), dtype)
    g.output("y", ops.softmax(scores + mask).cast("float32"))
    session, rng = GraphSession(g.build()), np.random.default_rng(0)
    kind: torch.dtype = getattr(torch, dtype)
    values = torch.from_numpy(rng.standard_normal((6, 6)) * 9).to(kind)
    for closed in (1, 4, 0, 5):
        given = torch.zeros(1, 6, dtype=kind)
        given[0, closed] = -torch.inf
        with pytest.raises(
            InputError, match=r"mask is -inf at \(0, \d\).*finfo.*min gives the same"
        ):
            session.run({"mask": given, "scores": values})
        found = session.run({"mask": given.clamp_min(torch.finfo(kind).min), "scores": values})["y"]
        right = torch.softmax((values + given).double(), -1)
        assert not found[:, closed].any()
        assert torch.allclose(found.double(), right, atol=0.01 if "16" in dtype else 1e-6)
        values[closed] += 1


def test_names_may_be_left_out_where_there_is_one() -> None:
    graph = causal(ROWS)
    session = GraphSession(graph, weights())
    x = float_x()
    whole = session.run(x)["y"]
    for want in (3, np.s_[3], np.int64(3), np.s_[-5], [np.s_[3]], Region.full((ROWS, 2))):
        found = session.run(x, want)["y"]
        assert np.array_equal(np.squeeze(found), whole if isinstance(want, Region) else whole[3])
    x[5] = 0
    right = session.run(x.copy(), keep=False)["y"]
    assert np.array_equal(session.run(x, changed=np.s_[5], check=True)["y"], right)


def test_names_have_to_be_there_where_there_are_several() -> None:
    g = GraphBuilder()
    x, z = g.input("x", (2,)), g.input("z", (2,))
    g.output("y", x + z)
    g.output("d", x - z)
    session = GraphSession(g.build())
    values = {"x": np.ones(2, "float32"), "z": np.ones(2, "float32")}
    with pytest.raises(
        InputError, match=r"inputs is a ndarray.*has x, z; pass it by name: \{'x': …"
    ):
        session.run(values["x"])
    with pytest.raises(DemandError, match=r"want is an int.*has y, d; pass it by name: \{'y': …"):
        session.run(values, 1)
    with pytest.raises(DemandError, match="want is a str"):
        session.run(values, "y")
    with pytest.raises(HintError, match=r"changed is an int, .*has x, z"):
        session.run(values, changed=1)
    session.run(values)


def test_what_is_no_graph_and_what_is_symbolic_is_named() -> None:
    g = GraphBuilder()
    g.output("y", g.input("x", (dim("T", max=8), 2)) * 2.0)
    with pytest.raises(
        GraphError, match=r"graph is a GraphBuilder; pass what `GraphBuilder\.build`"
    ):
        GraphSession(g)  # type: ignore[arg-type]
    for graph in (g.build(), Imported(g.build(), {}, {})):
        with pytest.raises(GraphError, match=r"symbolic.*graph\.bind\(T=…\)"):
            GraphSession(graph)


# --- demands and hints ----------------------------------------------------------------------------

BAD_DEMANDS: dict[str, tuple[Any, str]] = {
    "name": ({"z": np.s_[0]}, "unknown output 'z'.*gives y"),
    "index": ({"y": np.s_[ROWS]}, r"index 8 is outside 0..7; give .* from the end, -8..-1"),
    "slice": ({"y": np.s_[0:9]}, "9 is outside 0..8; end slices where it ends"),
    "step": ({"y": np.s_[::2]}, "step 2 is not 1; ask for the enclosing range"),
    "rank": ({"y": np.s_[0, 0, 0]}, "3 indices for 2 dimensions; leave out 1"),
    "mask": ({"y": np.ones(ROWS, bool)}, "not an integer or a slice .*and a list of such"),
    "many": ({"y": np.ones((50, 50))}, r"array\(\[\[1\., .*\.\.\. is not an integer or a slice"),
    "fraction": ({"y": np.s_[1.5:]}, "1.5 is not an integer; give slices of integers"),
    "region": ({"y": Region.full((9, 9))}, r"lies outside \[8, 2\]; intersect it"),
    "nothing": ({"y": np.s_[3:3]}, r"y\[3:3\] asks for nothing; leave it out"),
    "nothing of two": ({"y": np.s_[2:, ..., 1:1:1]}, r"y\[2:, ..., 1:1:1\] asks for nothing"),
    "nothing in a list": ({"y": [np.s_[0], np.s_[1, 2:2]]}, r"y\[1, 2:2\] asks for nothing"),
}


@pytest.mark.parametrize("case", BAD_DEMANDS)
def test_a_wrong_demand_is_named(session: CheckedSession, case: str) -> None:
    want, message = BAD_DEMANDS[case]
    with pytest.raises(DemandError, match=message) as caught:
        session.session.run(session.values, want)
    assert "\n" not in str(caught.value)
    session.run()


BAD_CHOICES: dict[str, tuple[dict[str, Any], type[TgbenchError], str]] = {
    "retain": ({"retain": "al"}, PlanError, "retain='al' is not known; use one of auto, all"),
    "exact": ({"exact": "bit"}, ExactnessError, "exact='bit' is not known; pass 'bitwise'"),
    "device": ({"device": "cud"}, GraphError, "no device 'cud'; use 'cpu' or 'cuda:0'"),
    "rounding": ({"buckets": {"x": "pow3"}}, GraphError, "x='pow3' is not known; use one of exact"),
    "rounded input": ({"buckets": {"z": "pow2"}}, GraphError, "buckets='z' is not known.*one of x"),
    "dimensions": ({"buckets": {"x": ["full"]}}, GraphError, "x has 2 dim.*its rounding names 1"),
}


@pytest.mark.parametrize("case", BAD_CHOICES)
def test_an_option_that_is_not_known_names_the_choices(case: str) -> None:
    options, error, message = BAD_CHOICES[case]
    graph = causal(ROWS)
    with pytest.raises(error, match=message):
        GraphSession(graph, causal_values(graph, 0), ignore_weights="x", **options)


@pytest.mark.parametrize("method", ["optimize", "search"])
def test_a_search_that_is_not_known_names_the_choices(session: CheckedSession, method: str) -> None:
    session.run({"x": float_x()})
    with pytest.raises(PlanError, match="mode='best' is not known; use one of greedy, search"):
        getattr(session.session, method)("best")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"seconds": "5"}, "seconds='5' is not a number of at least 0"),
        ({"seconds": float("nan")}, "seconds=nan is not a number"),
        ({"steps": -3}, "steps=-3 is not an integer of at least 0"),
        ({"steps": 1.5}, "steps=1.5 is not an integer"),
        ({"steps": 1, "workers": 0}, "workers=0 is not an integer of at least 1"),
        ({"steps": 10**30}, "steps=1000.* is not an integer of at least 0 that 64 bits hold"),
        ({"seed": -1}, "seed=-1 is not an integer of at least 0"),
        ({"seed": 1 << 63}, "seed=9223372036854775808 is not an integer .* that 64 bits hold"),
        ({"seed": None}, "seed=None is not an integer"),
        ({"seed": "a"}, "seed='a' is not an integer"),
    ],
)
def test_an_effort_that_is_none_is_named(session: CheckedSession, how: Any, message: str) -> None:
    session.run()
    before = session.session.plan
    with pytest.raises(PlanError, match=message):
        session.session.optimize("search", **how)
    assert session.session.plan == before


def test_a_search_in_the_background_asks_for_a_seed_as_well(session: CheckedSession) -> None:
    session.run()
    with pytest.raises(PlanError, match="seed=-1 is not an integer of at least 0"):
        session.session.search(seed=-1)


@pytest.mark.parametrize("how", [{"seconds": -1}, {"seconds": float("nan")}, {"steps": 1.5}])
def test_an_effort_that_is_none_starts_no_process(session: CheckedSession, how: Any) -> None:
    session.run()
    with session.session.search() as search:
        with pytest.raises(PlanError, match=f"{next(iter(how))}=.* is not a"):
            search.start(**how)
        assert not search.is_running


def test_what_is_no_function_and_no_file_is_named(session: CheckedSession) -> None:
    session.run()
    with pytest.raises(PlanError, match="stop=3 is no function; pass one that is asked"):
        session.session.optimize("search", stop=3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="executor=3 has no `submit`; pass a process pool"):
        session.session.optimize("search", executor=3)  # type: ignore[arg-type]
    for method in ("save_plan", "save_programs", "load_programs"):
        with pytest.raises(PlanError, match="path=3 is an int; pass the path of a file"):
            getattr(session.session, method)(3)


def test_what_is_no_plan_and_no_path_is_named(session: CheckedSession) -> None:
    session.run()
    with pytest.raises(PlanError, match="plan=5 is no plan; pass a Plan or a path"):
        GraphSession(causal(ROWS), weights(), plan=5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="None is no path"):
        Plan.load(None)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="None is no path"):
        Trace.load(None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="5 is no plan; read a file"):
        session.session.plan.diff(5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="5 is no name of a node"):
        session.session.plan.explain(5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="seconds='a' is not a number"):
        session.session.prepare("a")  # type: ignore[arg-type]


def test_a_tolerance_that_is_none_is_named(session: CheckedSession) -> None:
    with pytest.raises(PlanError, match="tolerance='x' is not a number of at least 0"):
        GraphSession(causal(ROWS), weights(), tolerance="x")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="tolerance='x' is not a number of at least 0"):
        session.session.paths(tolerance="x")


@pytest.mark.parametrize("runs", [3, [3], [({"x": np.s_[0]}, None, 1)]])
def test_runs_to_plan_for_are_pairs(session: CheckedSession, runs: Any) -> None:
    with pytest.raises(PlanError, match=r"no pairs .*; pass \[\(changed, want\), …\]"):
        session.session.plan_for(runs)


TAKES = [copy.copy, copy.deepcopy, pickle.dumps]


@pytest.mark.parametrize("take", TAKES)
def test_a_session_is_not_copied(session: CheckedSession, take: Callable[[Any], Any]) -> None:
    with pytest.raises(PlanError, match=r"cannot be copied or pickled; make another one"):
        take(session.session)


@pytest.mark.parametrize("take", TAKES)
def test_nor_is_what_shares_its_memory_and_its_files(
    session: CheckedSession, tmp_path: Path, take: Callable[[Any], Any]
) -> None:
    """Two owners of one memory would write over each other's, and close each other's files."""
    session.run()
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "w.safetensors")
    trace = Trace(tmp_path / "trace.jsonl")
    with safetensors.Weights(tmp_path / "w.safetensors") as opened:
        for whole, error, mend in (
            (session.session.arena, PlanError, "make another one"),
            (session.session.report(), PlanError, r"keep str\(report\)"),
            (session.session.search(), SearchError, "begin another one"),
            (opened, WeightsError, "open the files again"),
            (trace, TraceError, "read the file"),
        ):
            with pytest.raises(error, match=f"cannot be copied or pickled.*{mend}"):
                take(whole)


def test_a_trace_in_memory_is_copied(session: CheckedSession) -> None:
    session.run()
    found = pickle.loads(pickle.dumps(session.session.trace))
    assert found.calls == session.session.trace.calls


def test_a_hint_that_leaves_out_a_change_is_found(session: CheckedSession) -> None:
    session.run()
    x = session.values["x"].copy()
    x[[2, 5]] += 1
    with pytest.raises(HintError, match=r"x changed at .*5:6.*widen it"):
        session.run({"x": x}, changed={"x": np.s_[2]}, check=True)
    session.run({"x": x}, changed={"x": [np.s_[2], np.s_[5]]}, check=True)


def test_a_hint_of_many_boxes_is_checked_as_it_is() -> None:
    """More than what differs is told by: ten elements, exactly those that differ."""
    g = GraphBuilder()
    g.output("y", g.input("x", (6, 6)) * 2.0)
    session, x = GraphSession(g.build(), calibrate=False), np.zeros((6, 6), np.float32)
    session.run(x)
    where = [(i, j) for i in range(4) for j in range(6) if (i + j) % 2 == 0][:10]
    for at in where:
        x[at] = 1
    with pytest.raises(HintError, match=r"x changed at \{\[3:4, 1:2\]\}, which"):
        session.run(x, changed=where[:-1], check=True)
    np.testing.assert_array_equal(session.run(x, changed=where, check=True)["y"], 2 * x)


def test_arguments_of_another_kind_are_named() -> None:
    g = GraphBuilder()
    g.output("y", g.input("x", (2,)) * 2.0)
    graph = g.build()
    with pytest.raises(PlanError, match="program_bytes='x'"):
        GraphSession(graph, program_bytes="x")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="program_bytes=-1"):
        GraphSession(graph, program_bytes=-1)
    GraphSession(graph, {"extra": np.zeros(2, np.float32)}, ignore_weights="extra")
    session = GraphSession(graph)
    with pytest.raises(PlanError, match="3 is no plan; pass a Plan"):
        session.adopt(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="path=3 is an int"):
        session.take(3)  # type: ignore[arg-type]
    paths = session.paths()
    for number in (-1, "a"):
        with pytest.raises(PlanError, match="names no path; they are counted from 0"):
            paths[number]  # type: ignore[index]
    assert paths[0] is not None


def test_a_hint_for_what_is_not_there_is_named(session: CheckedSession) -> None:
    session.run()
    with pytest.raises(InputError, match="unknown input 'z'"):
        session.session.run(session.values, changed={"z": np.s_[0]})
    with pytest.raises(HintError, match="changed x"):
        session.session.run(session.values, changed={"x": np.s_[ROWS]})


# --- weights --------------------------------------------------------------------------------------

Weights = dict[str, Array]


def weights() -> Weights:
    values = causal_values(causal(ROWS), 0)
    return {name: values[name] for name in ("w0", "w1")}


def nan_weight(found: Weights) -> None:
    found["w1"][0, 1] = np.nan


BAD_WEIGHTS: dict[str, tuple[Any, str]] = {
    "NaN": (nan_weight, "'w1' holds NaN or infinity"),
    "missing": (lambda found: found.pop("w0"), "1 weight missing, 'w0'; there are 'w1': pass"),
    "extra": (lambda found: found.update(w2=found["w0"]), r"'w2'.*ignore_weights=\['w2'\]"),
    "shape": (lambda found: found.update(w0=np.zeros((2, 3), "float32")), r"'w0'.*\[2, 3\]"),
}


@pytest.mark.parametrize("source", ["arrays", "file"])
@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_wrong_weights_are_named(case: str, source: str, tmp_path: Path) -> None:
    damage, message = BAD_WEIGHTS[case]
    found: Any = weights()
    damage(found)
    if source == "file":
        save_file(found, tmp_path / "w.safetensors")
        found, message = tmp_path / "w.safetensors", message.split(" holds")[0]
    with pytest.raises(WeightsError, match=message):
        GraphSession(causal(ROWS), found)


def header(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


BAD_FILES = {
    "empty": b"",
    "truncated length": b"\x10\x00",
    "huge length": header(b"{}", 1 << 62),
    "not JSON": header(b"\x80\x04pickle"),
    "a list": header(b"[]"),
    "offsets backwards": header(b'{"w0":{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}}'),
    "past the end": header(b'{"w0":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'),
    "negative shape": header(b'{"w0":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}}')
    + bytes(16),
    "deep": header(b"[" * 100_000),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_weight_file_is_named(case: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(BAD_FILES[case])
    with pytest.raises(WeightsError, match=r"w\.safetensors"):
        GraphSession(causal(ROWS), path)


def test_a_weight_file_cut_anywhere_is_named(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "w.safetensors")
    whole = (tmp_path / "w.safetensors").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=r"cut\.safetensors"):
            GraphSession(causal(ROWS), tmp_path / "cut.safetensors")


# --- traces ---------------------------------------------------------------------------------------


def test_a_torn_trace_is_mended_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    graph = causal(ROWS)
    with Trace(path) as trace:
        session = GraphSession(graph, weights(), trace=trace)
        for t in range(3):
            session.run({"x": float_x(t)}, {"y": np.s_[t]})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-9])
    with pytest.warns(TraceWarning, match="torn last line"):
        session = GraphSession(graph, weights(), trace=path)
    assert len(session.trace) == 2
    session.optimize()
    session.trace.close()
    path.write_bytes(lines[0] + b"{}\n" + lines[1])
    with pytest.raises(TraceError, match="line 2"):
        GraphSession(graph, weights(), trace=path)


KINDS: dict[str, tuple[dict[str, Any], type[TgbenchError], str]] = {
    "trace": ({"trace": 5}, TraceError, "trace=5 is an int; pass a Trace or a path"),
    "arena": ({"arena": 5}, GraphError, "arena=5 is an int; pass a tgbench.Arena"),
    "path": ({"path": "fast"}, PlanError, "path='fast' is a str; pass what"),
    "buckets": ({"buckets": 5}, GraphError, "buckets=5 is an int; pass a rounding by input"),
    "weights": ({"weights": [np.zeros(3)]}, WeightsError, "weights are a list; pass"),
    "device": ({"device": 0}, GraphError, "no device '0'; use 'cpu' or 'cuda:0'"),
    "records": ({"records": 5}, RecordsError, "records=5 is an int; pass a path or a URL"),
    "ignored": ({"ignore_weights": 5}, WeightsError, "ignore_weights=5 names no weights; pass"),
    "ignored name": ({"ignore_weights": [5]}, WeightsError, "holds 5, which is no name; pass"),
    "tolerance": ({"tolerance": 0}, PlanError, "tolerance=0 allows nothing; pass a number above"),
    "packed": ({"packed_bytes": "x"}, GraphError, "packed_bytes='x' is not a size; write"),
    "progress": ({"progress": 3}, PlanError, "progress=3 is no function; pass one that is told"),
    "calibrate": ({"calibrate": "no"}, PlanError, "calibrate='no' is a str; pass True or False"),
    "weights_copy": ({"weights_copy": 1}, PlanError, "weights_copy=1 is an int; pass True or"),
    "memory": ({"memory": {"gpu": "1MiB"}}, GraphError, "memory names 'gpu', where the graph"),
}


@pytest.mark.parametrize("case", KINDS)
def test_an_argument_of_another_kind_is_named_with_what_to_pass(case: str) -> None:
    arguments, error, message = KINDS[case]
    with pytest.raises(error, match=re.escape(message)):
        GraphSession(causal(ROWS), **{"weights": weights(), **arguments})


def test_a_device_of_pytorch_is_taken() -> None:
    session = GraphSession(causal(ROWS), weights(), device=torch.device("cpu"))
    assert session.device == "cpu"


# --- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "memory",
    [
        "12 parsecs",
        -1,
        0.5,
        1.5,
        "MiB",
        True,
        "1.5.2 MB",
        10**40,
        "9e9GiB",
        "99999999999999 GiB",
        float("nan"),
        float("inf"),
    ],
)
def test_a_size_that_is_none_is_named(memory: Any) -> None:
    with pytest.raises(GraphError, match="is not a size; write 268435456, '256MiB' or 'auto'"):
        GraphSession(causal(ROWS), weights(), memory=memory)


def test_a_budget_too_small_names_one_that_works() -> None:
    graph = causal(ROWS)
    small = CheckedSession(graph, causal_values(graph, 0), memory=100)
    with pytest.raises(BudgetError) as caught:
        small.run(want={"y": np.s_[4]})
    error, text = caught.value, str(caught.value)
    assert error.budget_bytes == 100
    assert 100 < error.lower_bound_bytes <= error.needed_bytes
    assert error.nodes
    assert sum(size for _, size in error.nodes) >= error.lower_bound_bytes
    assert f"step {error.step}" in text
    assert all(name in text for name, _ in error.nodes[:4])
    assert f"memory={error.needed_bytes} or more" in text
    enough = CheckedSession(graph, causal_values(graph, 0), memory=error.needed_bytes)
    enough.run(want={"y": np.s_[4]})
    assert enough.session.placement.size_bytes <= error.needed_bytes
    x = enough.values["x"].copy()
    x[5] += 1
    enough.run({"x": x}, {"y": np.s_[5]})


# --- plans ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved() -> str:
    """A plan that holds everything a plan can hold."""
    graph = causal(ROWS)
    session = CheckedSession(graph, causal_values(graph, 0), memory=1500)
    for t in (4, 5, 6):
        x = session.values["x"].copy()
        x[t] = [2, -2]
        session.run({"x": x}, {"y": np.s_[t]})
    return session.session.plan.to_json()


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [path] * bool(path) + [p for key, part in inner for p in paths_of(part, (*path, key))]


def replaced(data: Any, path: tuple[Any, ...], value: Any, drop: bool) -> Any:
    copy = json.loads(json.dumps(data))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


STRANGE = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.just([]), st.just({}), st.just([[]]),
    st.floats(), st.integers(-(2**70), 2**70), st.integers(-2, 70),
    st.sampled_from(["w0", "k0", "y", "x", "out1", "constant", 64, 128, 256, 1 << 40]),
)  # fmt: skip


@given(st.data())
def test_a_damaged_plan_is_refused_or_still_right(saved: str, data: Any) -> None:
    """Whatever is in the file: a PlanError, or a session whose runs are full recomputations."""
    plan = json.loads(saved)
    for _ in range(data.draw(st.integers(1, 2))):
        places = paths_of(plan)
        path = data.draw(st.sampled_from(places))
        plan = replaced(plan, path, data.draw(STRANGE), drop=data.draw(st.integers(0, 4)) == 0)
    graph = causal(ROWS)
    try:
        loaded = Plan.from_json(json.dumps(plan))
        session = CheckedSession(graph, causal_values(graph, 0), plan=loaded)
    except PlanError as error:
        if len(str(error)) > 600:
            raise Wrong("a message is not a dump") from error
        return
    for t in (2, 3, 3, 7):
        x = session.values["x"].copy()
        x[t] = [2, -1]
        session.run({"x": x}, {"y": np.s_[t]})
    session.run()


@share_of_examples(2)
@given(st.data())
def test_every_field_of_a_plan_is_checked_by_name(saved: str, data: Any) -> None:
    plan = json.loads(saved)
    field = data.draw(st.sampled_from(sorted(set(plan) - {"machine"})))
    with pytest.raises(PlanError, match=field):
        Plan.from_json(json.dumps(replaced(plan, (field,), {"strange": 1}, drop=False)))
    if field not in ("budget_bytes", "copied", "path", "records"):  # these may be left out
        with pytest.raises(PlanError, match=field):
            Plan.from_json(json.dumps(replaced(plan, (field,), None, drop=True)))


def test_a_plan_file_that_cannot_be_used_names_file_and_mend(saved: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for content in ("", "null", saved[: len(saved) // 2], "[" * 100_000, "\ud800", '{"a": NaN}'):
        path.write_bytes(content.encode(errors="surrogatepass"))
        with pytest.raises(PlanError, match=r"plan\.json: "):
            GraphSession(causal(ROWS), weights(), plan=path)
    path.write_text(saved)
    with pytest.raises(PlanError, match=r"plan\.json: .* is for graph .*delete the plan to make"):
        GraphSession(causal(ROWS + 1), weights(), plan=path)
    with pytest.raises(PlanError, match=r"plan\.json: .* the budget is 100; raise memory="):
        GraphSession(causal(ROWS), weights(), plan=path, memory=100)
    with pytest.raises(PlanError, match="directory"):
        GraphSession(causal(ROWS), weights(), plan=tmp_path)


def test_a_plan_that_lets_live_values_overlap_is_refused(saved: str) -> None:
    plan = json.loads(saved)
    slots = {slot["node"]: slot for slot in plan["slots"]}
    slots["matmul_1"]["offset_bytes"] = slots["where"]["offset_bytes"] = 64  # where k0 lies
    with pytest.raises(PlanError, match="share bytes while both are live"):
        GraphSession(causal(ROWS), weights(), plan=Plan.from_json(json.dumps(plan)))


def test_a_session_without_a_plan_says_so() -> None:
    session = GraphSession(causal(ROWS), weights())
    with pytest.raises(PlanError, match="call `run` or `optimize` first"):
        print(session.plan)
    with pytest.raises(TraceError, match="run something first"):
        session.optimize()
    with pytest.raises(PlanError, match="use one of greedy, search, exact"):
        session.optimize(mode="psychic")
    session.run({"x": float_x()})
    with pytest.raises(PlanError, match="plan=path"):
        session.save_plan()


# --- faults inside a run --------------------------------------------------------------------------


def failing(program: Program, at: int, error: BaseException) -> None:
    """Make instruction number `at` of a program raise."""
    program.calls = program.each

    def fail(*_: Any) -> None:
        raise error

    program.calls[at] = fail, ()


FAULTS = [
    KeyboardInterrupt(), SystemExit(), RuntimeError("kernel"), ValueError("kernel"),
    IndexError("kernel"), ZeroDivisionError("kernel"), MemoryError("kernel"),
]  # fmt: skip


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_fault_in_a_kernel_leaves_the_session_usable(
    session: CheckedSession, error: BaseException, at: int
) -> None:
    want = {"y": np.s_[5]}
    session.run(want=want)
    x = session.values["x"].copy()
    x[5] = [2, -2]
    session.run({"x": x}, want)
    x = x.copy()
    x[5] = [-2, 2]
    session.run({"x": x}, want)
    program = session.session.last.program  # type: ignore[union-attr]
    kept = program.calls
    failing(program, at, error)
    x = x.copy()
    x[5] = [3, -3]
    expected = type(error) if not isinstance(error, Exception) else KernelError
    with pytest.raises(expected) as caught:
        session.session.run({"x": x}, want)
    if expected is KernelError:
        assert "the session is usable" in str(caught.value)
        assert caught.value.__cause__ is error
    program.calls = kept
    session.run({}, want)  # inputs left out keep their last value: that of the last good run
    session.run({"x": x}, want)
    session.run()


def test_an_interrupt_while_a_program_is_moved_leaves_the_session_usable(
    session: CheckedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for t in (3, 4, 5):
        x = session.values["x"].copy()
        x[t] = [2, -2]
        session.run({"x": x}, {"y": np.s_[t]})
    original = torch.Tensor.as_strided_
    left = [2]

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(torch.Tensor, "as_strided_", interrupted)
    moved = session.values["x"].copy()
    moved[6] = [2, -2]
    with pytest.raises(KeyboardInterrupt):
        session.session.run({"x": moved}, {"y": np.s_[6]})
    monkeypatch.undo()
    session.run({"x": x}, {"y": np.s_[5]})
    x = x.copy()
    x[5] = [-2, 2]
    session.run({"x": x}, {"y": np.s_[5]})
    session.run({"x": moved}, {"y": np.s_[6]})


def test_a_fault_keeps_the_states(session: CheckedSession) -> None:
    g = GraphBuilder()
    x, total = g.input("x", (2,)), g.state("total", (2,))
    g.update(total, total + x)
    g.output("y", total * 2.0)
    checked = CheckedSession(g.build(), {"x": np.ones(2, "float32")})
    for _ in range(3):
        checked.run()
    program = checked.session.last.program  # type: ignore[union-attr]
    kept = program.calls
    failing(program, -1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        checked.session.run(checked.values)
    program.calls = kept
    assert checked.run()["y"].tolist() == [6, 6]


def test_the_checks_of_these_tests_see_a_wrong_number(session: CheckedSession) -> None:
    """A session that forgets to compute would be found."""
    session.run(want={"y": np.s_[5]})
    kept = session.session.placement.slots[session.session.graph.node("k0")]
    session.session.memory.arena[kept.offset_bytes :] = 1
    x = session.values["x"].copy()
    x[7] += 1
    with pytest.raises(Wrong):
        session.run({"x": x}, {"y": np.s_[5]})


def test_an_index_that_equals_one_asked_for_before_is_read_anew_where_it_is_another() -> None:
    """1 == True == 1.0, and to a dictionary they are the same; only one of them is an index."""
    g = GraphBuilder()
    g.output("y", ops.relu(g.input("x", (3,))))
    session, x = GraphSession(g.build(), {}), np.arange(3, dtype=np.float32)
    assert session.run(x, want=1)["y"] == 1.0
    assert session.run(x, want=np.s_[1:2])["y"].tolist() == [1.0]
    for index in (True, 1.0, (True,), np.s_[1.0:2]):
        with pytest.raises(DemandError):
            session.run(x, want=index)


NO_ARRAYS: dict[str, Any] = {
    "masked": lambda: np.ma.masked_array(np.ones((2, 2), "float32"), [[1, 0], [0, 0]]),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "compressed": lambda: torch.eye(2).to_sparse_csr(),
    "meta": lambda: torch.ones((2, 2), device="meta"),
    "meta of integers": lambda: torch.ones((2, 2), device="meta", dtype=torch.int64),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8),
    "complex": lambda: np.ones((2, 2), complex),
    "objects": lambda: np.array([[1, None], [2, 3]], object),
    "texts": lambda: np.array([["a", "b"], ["c", "d"]]),
    "times": lambda: np.zeros((2, 2), "M8[s]"),
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "nothing": lambda: None,
    "none with numbers": lambda: FakeTensorMode().from_tensor(torch.ones(2, 2)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", NO_ARRAYS)
def test_what_is_no_array_is_no_weight_no_constant_and_no_state(form: str) -> None:
    """A mask and an imaginary part were dropped, and the rest came as errors of libraries."""
    value = NO_ARRAYS[form]()
    g = GraphBuilder()
    state = g.state("s", (2, 2))
    g.update(state, state + g.input("x", (2, 2)))
    g.output("y", state * g.parameter("w", (2, 2)))
    with pytest.raises(GraphError, match="constant"):
        g.constant(value)
    with pytest.raises(WeightsError, match=r"'w' is a .* that is no array"):
        GraphSession(g.build(), {"w": value}, calibrate=False)
    session = GraphSession(g.build(), {"w": np.ones((2, 2), "float32")}, calibrate=False)
    with pytest.raises(InputError):
        session.set_state("s", value)
    with pytest.raises(InputError):
        session.run({"x": value})


@pytest.mark.parametrize(
    ("dtype", "stored", "value"),
    [("float32", "float64", 1e39), ("float16", "float32", 7e4), ("bfloat16", "float32", 3.4e38),
     ("int64", "float32", 1.5), ("int8", "int64", 300), ("bool", "int64", 2),
     ("float16", "int64", 70_000)],
)  # fmt: skip
def test_weights_that_the_dtype_of_the_graph_does_not_hold_are_refused(
    dtype: str, stored: str, value: float, tmp_path: Path
) -> None:
    g = GraphBuilder()
    g.output(
        "y",
        g.input("x", (2,), dtype).cast("float32") + g.parameter("w", (2,), dtype).cast("float32"),
    )
    good, bad = (np.array([1, one], stored) for one in (1, value))
    GraphSession(g.build(), {"w": good}, calibrate=False)
    with pytest.raises(WeightsError, match="does not hold its values"):
        GraphSession(g.build(), {"w": bad}, calibrate=False)
    if dtype in ("float32", "float16", "bfloat16") and stored != "int64":
        save_file({"w": bad}, tmp_path / "w.safetensors")
        with pytest.raises(WeightsError, match="does not hold its values"):
            GraphSession(g.build(), tmp_path / "w.safetensors", calibrate=False)


def test_what_bfloat16_rounds_to_infinity_is_not_finite() -> None:
    g = GraphBuilder()
    g.output("y", ops.exp(g.input("x", (2,), "bfloat16")))
    session = GraphSession(g.build(), calibrate=False)
    largest = float(torch.finfo(torch.bfloat16).max)
    assert session.run(np.array([0.0, -largest], "float32"))["y"][0] == 1
    for value in (3.4e38, -3.4e38, 2.0**127 * (2 - 2.0**-8)):
        with pytest.raises(InputError, match="inputs must be finite"):
            session.run(np.array([0.0, value], "float32"))


def _of_file(path: Path, **options: Any) -> GraphSession:
    save_file({"w": np.full((64, 64), 2.0, "float32")}, path)
    g = GraphBuilder()
    g.output("y", g.input("x", (64, 64)) * g.parameter("w", (64, 64)))
    return GraphSession(g.build(), path, calibrate=False, **options)


def test_a_weight_file_that_changes_is_noticed(tmp_path: Path) -> None:
    """Reading what was cut off would end the process."""
    path, x = tmp_path / "w.safetensors", np.ones((64, 64), "float32")
    for harm in (
        lambda: os.truncate(path, 100), lambda: os.utime(path, (1, 1)),
        lambda: path.open("ab").write(b"x") and None, lambda: path.write_bytes(b""),
    ):  # fmt: skip
        session = _of_file(path)
        assert (session.run(x)["y"] == 2).all()
        harm()
        with pytest.raises(WeightsError, match="was changed while it was in use"):
            session.run(x + 1)
        path.unlink()


def test_a_weight_file_that_is_replaced_or_copied_may_go(tmp_path: Path) -> None:
    path, x = tmp_path / "w.safetensors", np.ones((64, 64), "float32")
    session = _of_file(path)
    save_file({"w": np.zeros((64, 64), "float32")}, tmp_path / "new")
    os.replace(tmp_path / "new", path)
    assert (session.run(x)["y"] == 2).all()
    copied = _of_file(path, weights_copy=True)
    os.truncate(path, 0)
    assert (copied.run(x)["y"] == 2).all()
    assert copied.pool.owned_bytes == copied.pool.parameter_bytes
