"""Who lays the weights of a call out: one kind of kernels, whichever takes less for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tgbench.graph.ops as ops
from tgbench.base.machine import Machine
from tgbench.base.regions import Box
from tgbench.costs.model import CODE_NS, ONE_SIZE, SOME, CostModel
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import Signature, source_hash
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.kernels.registry import KERNELS, Kernel, Site, candidates
from tgbench.session.session import GraphSession

ROWS, DEPTH = 48, 128


def product() -> Node:
    g = GraphBuilder()
    return ops.linear(g.input("x", (ROWS, DEPTH)), g.parameter("w", (DEPTH, DEPTH)))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """One that takes weights as they are, and three that lay them out in one of two ways."""
    plain = next(one for one in KERNELS["linear"] if one.name == "linear_rows")
    plain = replace(plain, name="plain", cost_ns=lambda site: 1e6)
    found = [
        plain,
        replace(plain, name="panels", layout="panels", cost_ns=lambda site: 2e6),
        replace(plain, name="library", layout="library", by_size=True, cost_ns=lambda site: 1e6),
        replace(plain, name="library, small", layout="library", cost_ns=lambda site: 3e6),
    ]
    monkeypatch.setitem(KERNELS, "linear", found)
    return found


def record(site: Site, kernel: Kernel, time_ns: float, streams: bool = True) -> Record:
    signature = Signature.of(site, streams=streams)
    return Record(
        kernel.name, source_hash(kernel), signature.text, Machine.here().fingerprint,
        (round(time_ns),) * 3, flops=signature.flops, size_bytes=signature.size_bytes,
        modelled_ns=1_000.0,
    )  # fmt: skip


def knowing(node: Node, box: Box, kernels: Iterable[Kernel], times: Mapping[str, float]) -> Any:
    model = CostModel()
    site = model.site(node.call, box)
    return [record(site, one, times[one.name]) for one in kernels if one.name in times]


PART = Box(((3, 20), (0, DEPTH)))


def names(found: Iterable[Kernel]) -> set[str]:
    return {one.name for one in found}


@pytest.mark.parametrize(
    ("panels_ns", "library_ns", "expected"),
    [
        (1e5, 2e5, "panels"),
        (9e5, 8e5, "library"),
        (1e5, 1e5 - CODE_NS / SOME / 2, "panels"),
        (1e8, 1e8 / ONE_SIZE * 1.01, "panels"),
        (1e8, 1e8 / ONE_SIZE * 0.99, "library"),
    ],
)
def test_what_takes_less_for_a_whole_call_has_its_weights(
    kernels: list[Kernel], panels_ns: float, library_ns: float, expected: str
) -> None:
    """Whatever was measured of a part; of two that are level, the one that is for any size."""
    node, model = product(), CostModel()
    whole, part = Box.full(node.shape), model.site(node.call, PART)
    assert names(model.competing(part)) == names(model.suiting(part)) == {
        "plain", "library", "library, small"
    }, "by their models"  # fmt: skip
    assert names(model.competing(model.site(node.call, whole))) == names(kernels)
    known = {"panels": panels_ns, "library": library_ns}
    model.learn(knowing(node, whole, kernels, known))
    model.learn(knowing(node, PART, kernels, {"panels": 7e4, "library": 7e4}))
    one_kind = {k.name for k in kernels if k.layout == expected} | {"plain"}
    for box in (whole, PART):
        site = model.site(node.call, box)
        assert names(model.suiting(site)) == names(model.kernels(site)) == one_kind
        assert {kernel.name for kernel, _ in model.ranked(site)} == one_kind
    assert model.kernels(part)[0].layout == expected
    assert model.serves_any_size(node.call) is (expected == "panels")
    again = CostModel(model.table())
    assert names(again.suiting(part)) == one_kind, "in a process beside, too"


def test_what_raised_has_no_weights(kernels: list[Kernel]) -> None:
    node, model = product(), CostModel()
    whole = Box.full(node.shape)
    found = knowing(node, whole, kernels, {"library": 1.0, "library, small": 1.0, "panels": 1e5})
    model.learn([
        one if one.kernel == "panels" else replace(one, samples_ns=(), failure="it raised")
        for one in found
    ])  # fmt: skip
    assert names(model.suiting(model.site(node.call, PART))) == {"plain", "panels"}


def test_weights_that_nobody_lays_out_are_for_one_size() -> None:
    """Windows of many groups, which have code of PyTorch's."""
    g = GraphBuilder()
    node = ops.conv(g.input("x", (1, 8, 6, 6)), g.parameter("w", (16, 1, 3, 3)), groups=8)
    assert not CostModel().serves_any_size(node.call)


def test_who_lays_weights_out_otherwise_is_asked_of_the_whole_call_alone(
    kernels: list[Kernel],
) -> None:
    """And where nobody else takes a part."""
    asked, takes_parts = list[tuple[str, int]](), {"plain", "panels", "library"}

    def noting(kernel: Kernel) -> Kernel:
        def accepts(site: Site) -> bool:
            rows = site.out_box.extents[0]
            asked.append((kernel.name, rows))
            return kernel.accepts(site) and (rows == ROWS or kernel.name in takes_parts)

        return replace(kernel, accepts=accepts)

    kernels[:] = map(noting, kernels)
    node, model = product(), CostModel()
    model.learn(knowing(node, Box.full(node.shape), kernels, {"panels": 1.0, "library": 1e6}))
    part = model.site(node.call, PART)
    rows = part.out_box.extents[0]
    assert names(model.suiting(part)) == {"plain", "panels"}
    assert {name for name, many in asked if many == rows} == {"plain", "panels"}
    assert {name for name, many in asked if many == ROWS} == names(kernels)
    takes_parts -= {"plain", "panels"}
    assert names(model.suiting(part)) == {"library"}


# --- sessions -----------------------------------------------------------------------------------


def graph() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (ROWS, DEPTH))
    for i in range(2):
        x = ops.linear(x, g.parameter(f"w{i}", (DEPTH, DEPTH)))
    g.output("y", x)
    return g.build()


def layouts_here() -> dict[str, Kernel]:
    model, node = CostModel(), product()
    site = model.site(node.call, Box.full(node.shape))
    return {k.layout: k for k in candidates(site) if k.layout}


@pytest.mark.skipif(len(layouts_here()) < 2, reason="one kind of kernels lays weights out here")
@pytest.mark.parametrize("quick", sorted(layouts_here()))
def test_records_say_whose_layout_a_session_has(quick: str, tmp_path: Path) -> None:
    """In full, and of whatever changed; weights are laid out once."""
    made, records = graph(), Records(tmp_path / "records.db")
    model = CostModel()
    for node in (one for one in made.nodes if one.op == "linear"):
        for rows in (ROWS, 40, 29, 17):
            site = model.site(node.call, Box(((0, rows), (0, DEPTH))))
            for kernel in candidates(site):
                takes_ns = 100.0 if kernel.layout == quick else 1e9
                records.add([record(site, kernel, takes_ns, streams=False)])
    rng = np.random.default_rng(0)
    weights = {
        name: rng.integers(-2, 3, node.shape).astype(np.float32)
        for name, node in made.parameters.items()
    }
    session = GraphSession(made, weights, records=records, calibrate=False, making="always")
    x = rng.integers(-2, 3, (ROWS, DEPTH)).astype(np.float32)
    for rows in (ROWS, 40, 29, 17):
        x[:rows] += 1
        found = session.run({"x": x}, want={"y": np.s_[:rows]})["y"]
        expected = x[:rows] @ weights["w0"].T @ weights["w1"].T
        np.testing.assert_array_equal(found, expected)
        assert session.last is not None
        for one in session.last.program.instructions:
            kernel = next(k for k in KERNELS["linear"] if k.name == one.kernel)
            assert kernel.layout == quick
    laid_out = Counter(one.view.buffer for one in session.pool._prepared)
    assert set(laid_out.values()) == {1}
    assert len(laid_out) == len(weights)


@pytest.mark.skipif(len(layouts_here()) < 2, reason="one kind of kernels lays weights out here")
def test_weights_are_laid_out_once_when_compiled_code_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Until then the library computes; loops that take less have the weights afterwards."""
    made, model = graph(), CostModel()
    records = Records(tmp_path / "records.db")
    for node in (one for one in made.nodes if one.op == "linear"):
        site = model.site(node.call, Box.full(node.shape))
        for kernel in candidates(site):
            takes_ns = 100.0 if kernel.layout == "panels" else 1e4 if kernel.layout else 1e6
            records.add([record(site, kernel, takes_ns, streams=False)])
    weights = {n: np.eye(DEPTH, dtype=np.float32) for n in made.parameters}
    code_is_there = [False]
    monkeypatch.setattr("tgbench.kernels.beside.is_there", lambda: code_is_there[0])
    monkeypatch.setattr("tgbench.kernels.beside.has_come", lambda: code_is_there[0])
    session = GraphSession(made, weights, records=records, calibrate=False)

    def layouts(value: float) -> set[str]:
        x = np.full((ROWS, DEPTH), value, np.float32)
        assert (session.run({"x": x})["y"] == value).all()
        assert session.last is not None
        used = {one.kernel for one in session.last.program.instructions}
        laid_out = Counter(one.view.buffer for one in session.pool._prepared)
        assert set(laid_out.values()) == {1}
        return {one.layout for one in KERNELS["linear"] if one.name in used}

    assert layouts(1.0) == layouts_here().keys() - {"panels"}
    code_is_there[0] = True
    assert layouts(2.0) == layouts(3.0) == {"panels"}
