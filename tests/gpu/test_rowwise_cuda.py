"""Kernels written in Triton's language, compiled for the GPU that is here. Skipped without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rowwise_cases import NORM

from tgbench import ops
from tgbench.base.machine import Machine
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import source_hash
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels import candidates
from tgbench.session.session import GraphSession

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def graph_of(columns: int, dtype: str = "float32") -> Graph:
    g = GraphBuilder()
    g.output("y", ops.rowwise(NORM, g.input("x", (6, columns), dtype)))
    return g.build()


@pytest.mark.parametrize("columns", [2, 301, 4096, 10_000])
def test_a_gpu_computes_what_the_cpu_does(columns: int) -> None:
    graph = graph_of(columns)
    here, there = (GraphSession(graph, device=device) for device in ("cpu", "cuda:0"))
    x = np.random.default_rng(0).normal(size=(6, columns)).astype(np.float32)
    for row in (None, 3, 5):
        if row is not None:
            x[row] += 0.5
        expected, found = here.run({"x": x})["y"], there.run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("quick", ["rowwise", "rowwise_triton"])
def test_what_was_measured_decides_what_computes_it(quick: str, tmp_path: Path) -> None:
    graph, records = graph_of(4096), Records(tmp_path / "absurd.db")
    x = np.random.default_rng(0).normal(size=(6, 4096)).astype(np.float32)
    plain = GraphSession(graph, device="cuda:0", calibrate=False)
    plain.run({"x": x})
    assert plain.last is not None
    (site,) = [one.site for one in plain.last.program.instructions if one.site is not None]
    found = candidates(site)
    assert {kernel.name for kernel in found} == {"rowwise", "rowwise_triton"}
    signature = plain.costs.signature(site)
    records.add(
        Record(
            kernel.name, source_hash(kernel), signature.text,
            Machine.here("cuda:0").fingerprint, (1_000 if kernel.name == quick else 10**9,) * 3,
            flops=signature.flops, size_bytes=signature.size_bytes, modelled_ns=1000.0,
        )
        for kernel in found
    )  # fmt: skip
    told = GraphSession(graph, device="cuda:0", records=records, calibrate=False)
    told.run({"x": x})
    assert told.last is not None
    assert [one.kernel for one in told.last.program.instructions] == [quick]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats(dtype: str) -> None:
    session = GraphSession(graph_of(301, dtype), device="cuda:0")
    x = torch.randn(6, 301, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    found = session.run({"x": x})["y"].float().cpu()
    wide = GraphSession(graph_of(301)).run({"x": x.float().numpy()})["y"]
    np.testing.assert_allclose(found.numpy(), wide, 2e-2, 2e-2)
