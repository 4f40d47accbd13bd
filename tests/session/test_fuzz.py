"""The fuzzer: some of its cases on every run of the tests, cases that once failed, and itself."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.__main__ import CASES
from fuzz.bounded import add, cast, compared, div, exact, matmul, mul_number, softmax, total
from fuzz.case import build, load
from fuzz.drawing import Drawing
from fuzz.history import random_case
from fuzz.printing import python_test
from fuzz.replay import replay
from fuzz.shrinking import shrunk
from fuzz.table import PATTERNS, TABLE, Unfit
from hypothesis import settings

import tgbench.session.arguments
from tgbench.base.regions import Region
from tgbench.graph.op_table import OPS
from tgbench.runs.difference import difference


@pytest.mark.parametrize("seed", range(settings().max_examples))
def test_random_cases(seed: int) -> None:
    failure = replay(random_case(seed))
    assert failure is None, f"seed {seed}: {failure.kind}: {failure.what}\n{failure.message}"


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_cases_that_failed_once(path: Path) -> None:
    failure = replay(load(path))
    assert failure is None, f"{failure.kind}: {failure.what}\n{failure.message}"


# --- what is drawn --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TABLE, *PATTERNS])
def test_every_entry_can_be_drawn(name: str) -> None:
    entry = TABLE.get(name) or PATTERNS[name]
    for seed in range(60):
        drawing = Drawing(Random(seed))
        drawing.leaf([2, 3], kind="input")
        try:
            entry.draw(drawing)
        except Unfit:
            continue
        return
    pytest.fail(f"{name} cannot be drawn")


def test_the_same_seed_draws_the_same_case() -> None:
    assert random_case(3) == random_case(3)
    assert random_case(3) != random_case(4)


def test_the_entries_reach_the_whole_table_of_the_engine() -> None:
    reached = {op for name in [*TABLE, *PATTERNS] for seed in range(4) for op in _ops(name, seed)}
    ours = {name for name, op in OPS.items() if op.reference.__module__.startswith("tgbench.")}
    assert reached >= ours - {"opaque", "rowwise"}  # which only the importer and paths make


def _ops(name: str, seed: int) -> set[str]:
    """The engine's ops in a graph with an instance of an entry."""
    entry, drawing = TABLE.get(name) or PATTERNS[name], Drawing(Random(seed))
    drawing.leaf([2, 3], kind="input")
    try:
        last = entry.draw(drawing)
    except Unfit:
        return set()
    case = {"nodes": drawing.nodes, "outputs": {"y": last}, "updates": []}
    return {node.op for node in build(case).nodes}


# --- a planted fault ------------------------------------------------------------------------------


def test_a_change_that_is_overlooked_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlooking(old: Any, new: Any, rows: Any) -> Region:
        found = difference(old, new)
        return Region(found.boxes[:-1]) if len(found.boxes) > 1 else found

    monkeypatch.setattr(tgbench.session.arguments, "compared", overlooking)
    failures = ((case, replay(case)) for case in map(random_case, range(100)))
    case, failure = next((c, f) for c, f in failures if f is not None)
    assert failure.kind == "wrong"
    small, found = shrunk(case, failure, seconds=20)
    assert found.is_like(failure)
    assert len(small["nodes"]) <= len(case["nodes"])
    assert len(small["steps"]) <= 4
    compile(python_test(small), "case", "exec")


# --- numbers with bounds --------------------------------------------------------------------------


def test_sums_of_small_integers_are_exact() -> None:
    x = exact([[1.0, 2, 3], [4, 5, 6]], "float32")
    assert total(x, (1,), False).is_exact
    assert matmul(x, exact(np.ones((3, 2)), "float32")).is_exact
    assert not mul_number(x, 0.1).is_exact


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_bounds_hold_for_what_torch_computes(dtype: str) -> None:
    kind = getattr(torch, dtype)
    for seed in range(20):
        torch.manual_seed(seed)
        a, b = torch.randn(4, 5).to(kind), torch.randn(5, 3).to(kind)
        found = softmax(matmul(exact(a, dtype), exact(b, dtype)), -1)
        native = torch.softmax(a @ b, -1).to(torch.float64)
        assert ((native - found.value).abs() <= found.error).all()
        assert found.error.median() < 0.3


def test_what_a_rounding_can_flip_is_left_out() -> None:
    x = mul_number(exact([1.0, 2.0], "float32"), 0.1)
    sure = compared(torch.lt, x, exact([0.1, 5.0], "float32"))
    assert sure.error[0] > 0
    assert sure.error[1] == 0


def test_soft_masks_absorb_what_is_added() -> None:
    least = torch.finfo(torch.float32).min
    found = add(exact([0.3, 0.7], "float32"), exact([least, 0.0], "float32"))
    assert found.error[0] == 0
    assert softmax(found, -1).value.tolist() == [0, 1]


def test_overflow_and_division_by_zero_are_beyond_saying() -> None:
    assert cast(exact([1e30], "float32"), "float16").error[0] == float("inf")
    assert div(exact([1.0], "float32"), exact([0.0], "float32")).error[0] == float("inf")
