"""Weights held in less than the graph's dtype: the same values, half or a quarter of the bytes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from session_cases import PoisonedSession

import tgbench
import tgbench.kernels
from tgbench import ops
from tgbench.base.errors import ExactnessError, PlanError, ProgramsError, WeightsError
from tgbench.base.safetensors import Weights, save
from tgbench.commands.cli import main
from tgbench.costs.signature import Signature
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import save_graph
from tgbench.kernels.registry import KERNELS
from tgbench.programs.weights import rounded_rows
from tgbench.session.check.check import check
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

Array = np.ndarray[Any, Any]
HALVES = (torch.bfloat16, torch.float16)


def layer(rows: int, width: int, outputs: int, bias: bool, gated: bool = False) -> Graph:
    g = GraphBuilder()
    x, w = g.input("x", (rows, width)), g.parameter("w", (outputs, width))
    if gated:
        g.output("y", ops.gated_linear(x, w, g.parameter("u", (outputs, width))))
    else:
        g.output("y", ops.linear(x, w, g.parameter("b", (outputs,)) if bias else None))
    return g.build()


def drawn(
    graph: Graph, seed: int, integers: bool = False, dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    """Weights in half floats; some products of integers are exact."""
    generator = torch.Generator().manual_seed(seed)
    make = {name: torch.randn(node.shape, generator=generator) for name, node in
            graph.parameters.items()}  # fmt: skip
    return {n: ((2 * t).round() if integers else t).to(dtype) for n, t in make.items()}


def wide(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.float() for name, weight in weights.items()}


def session(graph: Graph, weights: Any, **options: Any) -> GraphSession:
    return PoisonedSession(graph, weights, calibrate=False, **options)


def kernels_of(one: GraphSession) -> set[str]:
    assert one.last is not None
    return {made.kernel for made in one.last.program.instructions}


@pytest.fixture(params=["numba", "torch"])
def without_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without the kernels of numba."""
    if request.param == "torch":
        for op, kernels in KERNELS.items():
            kept = [kernel for kernel in kernels if not kernel.name.endswith("_numba")]
            monkeypatch.setitem(KERNELS, op, kept)
    else:
        pytest.importorskip("numba")
    return request.param == "torch"


# --- the same values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 9, 40])
def test_products_are_those_of_widened_weights(
    rows: int, gated: bool, dtype: torch.dtype, without_loops: bool
) -> None:
    graph = layer(rows, 100, 67, True, gated)
    weights = drawn(graph, rows, dtype=dtype)
    x = np.random.default_rng(rows).normal(size=(rows, 100)).astype("float32")
    less, more = session(graph, weights), session(graph, wide(weights))
    found, expected = less.run({"x": x})["y"], more.run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert any(name.startswith("widening_linear") for name in kernels_of(less))
    assert less.pool.parameter_bytes < 0.55 * more.pool.parameter_bytes


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    width=st.sampled_from([1, 3, 15, 16, 17, 64, 130, 257]),
    outputs=st.sampled_from([1, 2, 3, 4, 5, 31, 66]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(HALVES),
)
def test_integers_are_equal_in_every_bit(
    rows: int, width: int, outputs: int, bias: bool, seed: int, dtype: torch.dtype
) -> None:
    graph = layer(rows, width, outputs, bias)
    weights = drawn(graph, seed, integers=True, dtype=dtype)
    x = np.random.default_rng(seed).integers(-4, 5, (rows, width)).astype("float32")
    found = session(graph, weights).run({"x": x})["y"]
    expected = x @ weights["w"].float().numpy().T
    if bias:
        expected = expected + weights["b"].float().numpy()
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("columns", [3, 300])
def test_blocks_cover_a_weight_larger_than_one(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tgbench.kernels.widening, "BLOCK_ELEMENTS", 700)
    monkeypatch.setattr(tgbench.kernels.widening, "LEAST_ROWS", 2)
    monkeypatch.setitem(
        KERNELS, "widening_linear",
        [k for k in KERNELS["widening_linear"] if k.name == "widening_linear_blocks"],
    )  # fmt: skip
    graph = layer(5, 100, columns, True)
    weights = drawn(graph, 0)
    x = np.ones((5, 100), np.float32)
    found = session(graph, weights).run({"x": x})["y"]
    right = torch.from_numpy(x).double() @ weights["w"].double().T + weights["b"].double()
    np.testing.assert_allclose(found, right.numpy(), rtol=0, atol=1e-4)


# --- models from files ----------------------------------------------------------------------------


def model(folder: Path, dtype: str, tokens: int = 24) -> tuple[Graph, Path]:
    """A Gemma 3 with a tied head."""
    config = gemma3_reduced()
    return gemma3(config, tokens), gemma3_checkpoint(folder, config, 0, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_checkpoint_in_half_floats_is_mapped_and_never_widened(
    tmp_path: Path, dtype: str
) -> None:
    graph, folder = model(tmp_path, "bfloat16")
    if dtype == "float16":
        halves = {name: Weights(folder).tensor(name).half() for name in Weights(folder).names()}
        folder = tmp_path / "halves.safetensors"
        save(halves, folder)
    stored = Weights(folder)
    less = session(graph, folder)
    more = session(graph, {name: stored.tensor(name).float() for name in stored.names()})
    vectors = sum(4 * n.type.elements for n in graph.parameters.values() if n.rank == 1)
    constants = more.pool.owned_bytes - more.pool.parameter_bytes
    assert less.pool.owned_bytes == vectors + constants
    assert less.pool.packed_bytes == 0
    assert less.estimate_memory()["cpu"].parameter_bytes == less.pool.parameter_bytes
    assert ("model.embed_tokens.weight", dtype) in less.pool.buffers
    assert ("model.embed_tokens.weight", "float32") not in less.pool.buffers
    ids = np.random.default_rng(0).integers(0, 256, (1, 24))
    for t in (5, 6, 23, 0):
        ids[0, t] = (ids[0, t] + 1) % 256
        want = {"logits": np.s_[0, t]}
        found, right = (one.run({"ids": ids}, want=want)["logits"] for one in (less, more))
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("weights_dtype", [None, "int8"])
def test_incremental_runs_equal_full_ones(tmp_path: Path, weights_dtype: Any) -> None:
    graph, folder = model(tmp_path, "bfloat16")
    kept = session(graph, folder, weights_dtype=weights_dtype)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 256, (1, 24))
    for _ in range(4):
        ids[0, rng.integers(24)] = rng.integers(256)
        found = kept.run({"ids": ids})["logits"]
        fresh = session(graph, folder, weights_dtype=weights_dtype).run({"ids": ids})["logits"]
        np.testing.assert_allclose(found, fresh, rtol=0, atol=2e-6 * np.abs(fresh).max())


def test_what_another_op_reads_is_converted(tmp_path: Path) -> None:
    g = GraphBuilder()
    x, w = g.input("x", (1, 6)), g.parameter("w", (6, 6))
    g.output("y", ops.linear(x, w) + ops.softmax(w)[0])
    weight = torch.randn(6, 6).to(torch.bfloat16)
    save({"w": weight}, tmp_path / "w.safetensors")
    one = session(g.build(), tmp_path / "w.safetensors")
    assert one.graph.parameters["w"].dtype == "float32"
    found = one.run({"x": np.ones((1, 6), np.float32)})["y"]
    right = weight.double().sum(1) + weight.double().softmax(1)[0]
    np.testing.assert_allclose(found[0], right.numpy(), rtol=1e-5)


@pytest.mark.parametrize("options", [{"exact": "bitwise"}, {"weights_dtype": "fp32"}])
def test_weights_are_converted_for_bits_and_on_demand(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    graph, folder = model(tmp_path, "bfloat16", 8)
    one = session(graph, folder, **options)
    assert {node.dtype for node in one.graph.parameters.values()} == {"float32"}


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids).logits


def test_a_hugging_face_model_reads_its_bfloat16_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=99, use_cache=False,
    )  # fmt: skip
    module = Logits(transformers.LlamaForCausalLM(config).bfloat16().float()).eval()
    ids = torch.randint(0, 99, (1, 12))
    imported = tgbench.from_torch(module, (ids,))
    stored = {name: imported.weights[name].bfloat16() for name in imported.graph.parameters}
    save(stored, tmp_path / "model.safetensors")
    one = session(imported.graph, tmp_path / "model.safetensors")
    held = {name for name, node in one.graph.parameters.items() if node.dtype == "bfloat16"}
    assert held == {name for name, node in imported.graph.parameters.items() if node.rank == 2}
    (name,), (output,) = one.graph.inputs, one.graph.outputs
    with torch.no_grad():
        right = module(ids).numpy()
    found = one.run({name: ids.numpy()})[output]
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_times_are_of_the_dtype_that_is_read() -> None:
    x = {"x": np.ones((1, 16), np.float32)}
    said = set()
    for dtype in (None, "fp16", "bf16", "int8"):
        graph = layer(1, 16, 16, False)
        one = session(graph, wide(drawn(graph, 0)), weights_dtype=dtype)
        one.run(x)
        assert one.last is not None
        sites = [made.site for made in one.last.program.instructions]
        said |= {str(Signature.of(site)) for site in sites if site and site.call.op.multiplies}
    assert len(said) == 4


def test_commands_see_the_graph_that_a_session_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = layer(1, 16, 16, False)
    weights, plan = str(tmp_path / "w.safetensors"), str(tmp_path / "p.plan.json")
    save(drawn(graph, 0), weights)
    model = str(save_graph(graph, tmp_path / "g.json"))
    for dtype in ([], ["--weights-dtype", "int8"]):
        one = session(graph, weights, weights_dtype=dtype[-1] if dtype else None)
        one.run({"x": np.ones((1, 16), np.float32)})
        one.save_plan(plan)
        assert main(["plan", plan, "--graph", model, "--weights", weights, *dtype]) == 0
        assert main(["plan", plan, "--graph", model]) != 0
        capsys.readouterr()


# --- rounded ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights_dtype", "share", "least", "error"),
    [("fp16", 0.51, 2e-5, 1e-3), ("bf16", 0.51, 1e-4, 0.01), ("int8", 0.3, 1e-4, 0.05)],
)
def test_rounded_weights_take_less_and_say_so(
    tmp_path: Path, weights_dtype: Any, share: float, least: float, error: float
) -> None:
    graph, folder = model(tmp_path, "float32")
    less, more = session(graph, folder, weights_dtype=weights_dtype), session(graph, folder)
    assert less.pool.parameter_bytes < share * more.pool.parameter_bytes
    ids = np.random.default_rng(0).integers(0, 256, (1, 24))
    right = more.run({"ids": ids})["logits"]
    report = check(less, [({"ids": ids}, {"logits": right})])
    assert not report.passed
    assert least < report.outputs[0].relative < error
    assert less.rounded == {n.name for n in graph.parameters.values() if n.rank == 2}
    assert report.rounded == len(less.rounded)
    assert f"{report.rounded} weights rounded" in str(report)
    assert "rounded" not in str(check(more, [({"ids": ids}, {"logits": right})]))


def test_rows_of_int8_are_within_half_a_step() -> None:
    weight = torch.randn(50, 33) * torch.logspace(-30, 30, 50)[:, None]
    weight[7], weight[8] = 0, 1e-45
    codes, scales = rounded_rows(weight.shape, weight.split(7))
    error = (codes.double() * scales.double()[:, None] - weight.double()).abs()
    assert bool((error <= 0.5001 * scales.double()[:, None]).all())
    assert int(codes.abs().max()) == 127


def test_arrays_are_rounded_like_files(tmp_path: Path) -> None:
    graph = layer(2, 20, 30, True)
    weights = wide(drawn(graph, 0))
    save(weights, tmp_path / "w.safetensors")
    x = {"x": np.ones((2, 20), np.float32)}
    for dtype in ("fp16", "bf16", "int8"):
        ones = [
            session(graph, w, weights_dtype=dtype)
            for w in (
                weights,
                {n: w.numpy() for n, w in weights.items()},
                tmp_path / "w.safetensors",
            )
        ]
        found = [one.run(x)["y"] for one in ones]
        assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_session_keeps_no_arrays_that_it_copied() -> None:
    weight = np.ones((8, 8), np.float32)
    alive = weakref.ref(weight)
    one = session(layer(1, 8, 8, False), {"w": weight})
    del weight
    gc.collect()
    assert alive() is None
    assert one.run({"x": np.ones((1, 8), np.float32)})["y"].tolist() == [[8.0] * 8]


def test_what_cannot_be_rounded_is_refused() -> None:
    graph = layer(1, 4, 4, False)
    weights = wide(drawn(graph, 0))
    with pytest.raises(WeightsError, match="use one of fp32, fp16, bf16, int8"):
        session(graph, weights, weights_dtype="int4")
    with pytest.raises(ExactnessError, match="leave one of the two out"):
        session(graph, weights, weights_dtype="int8", exact="bitwise")


@pytest.mark.parametrize("is_file", [False, True])
def test_a_weight_that_a_dtype_cannot_hold_is_refused(tmp_path: Path, is_file: bool) -> None:
    graph = layer(1, 4, 4, False)
    weights = {"w": torch.full((4, 4), 1e5)}
    save(weights, tmp_path / "w.safetensors")
    stored: Any = tmp_path / "w.safetensors" if is_file else weights
    with pytest.raises(WeightsError, match=r"'w' is float32, and float16, .* does not hold"):
        session(graph, stored, weights_dtype="fp16")
    x = {"x": np.ones((1, 4), np.float32)}
    found = session(graph, stored, weights_dtype="bf16").run(x)["y"]
    np.testing.assert_allclose(found, 4e5, rtol=4e-3)


def test_plans_and_programs_are_of_one_weights_dtype(tmp_path: Path) -> None:
    graph = layer(4, 16, 16, False)
    weights = wide(drawn(graph, 0))
    x = {"x": np.ones((4, 16), np.float32)}
    one = session(graph, weights, weights_dtype="bf16")
    one.run(x)
    one.save_plan(tmp_path / "p.plan.json")
    one.save_programs(tmp_path / "p.programs")
    session(graph, weights, weights_dtype="bf16", plan=tmp_path / "p.plan.json").run(x)
    for other in (None, "fp16", "int8"):
        with pytest.raises(PlanError):
            session(graph, weights, weights_dtype=other, plan=tmp_path / "p.plan.json")
        apart = session(graph, weights, weights_dtype=other)
        apart.run(x)
        with pytest.raises(ProgramsError):
            apart.load_programs(tmp_path / "p.programs")
