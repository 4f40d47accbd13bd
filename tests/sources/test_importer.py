"""The importer: every entry of its table against PyTorch, names, weights, states, and errors."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from importer_cases import FAMILIES, Case
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tgbench.base.errors import (
    GraphError,
    ImporterError,
    InputError,
    UnsupportedOpError,
    WeightsError,
)
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import load_graph, save_graph
from tgbench.graph.reference import evaluate
from tgbench.memory.estimate import estimate_memory
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, Support, from_pt2, from_torch, supported
from tgbench.sources.torch.build import Builder
from tgbench.sources.torch.exporting import lowered
from tgbench.sources.torch.table import RULES


class Family(nn.Module):
    """Many small functions of the same inputs."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, **inputs: Tensor) -> dict[str, Any]:
        return {name: case(**inputs) for name, case in self.cases.items()}


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def of(function: Callable[..., Any], **buffers: Tensor) -> nn.Module:
    return Of(function, **buffers).eval()


X = torch.randn(2, 3)


# --- the table ------------------------------------------------------------------------------------


@cache
def family_of(name: str) -> tuple[Graph, frozenset[str]]:
    """The graph of a family, and the ops that PyTorch exported it as."""
    inputs, cases = FAMILIES[name]
    exported = torch.export.export(Family(cases).eval(), (), inputs)
    built = Builder(lowered(exported, ())).run()
    Support.of(built).check()
    assert not built.whole, "an entry does not take a call, which is opaque then"
    return built.build(), frozenset(built.counts)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_is_pytorchs(family: str) -> None:
    inputs, cases = FAMILIES[family]
    graph, _ = family_of(family)
    given = {name: inputs[name].numpy() for name in graph.inputs}
    found, expected = evaluate(graph, given), Family(cases)(**inputs)
    assert list(found) == list(cases)
    for name, right in expected.items():
        assert str(found[name].dtype) == str(right.dtype).removeprefix("torch."), name
        assert np.allclose(found[name], right, rtol=2e-5, atol=2e-6, equal_nan=True), name


def test_every_entry_has_a_case() -> None:
    used: set[str] = set().union(*(family_of(name)[1] for name in FAMILIES))
    assert set(RULES) <= used


# --- names ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Named:
    logits: Tensor


class Nested(nn.Module):
    def forward(self, batch: dict[str, Tensor], states: list[Tensor], *, scale: Tensor) -> Any:
        total = batch["ids"] * scale + states[0] - states[1]
        return Pair(total, {"deep": [total + 1, total + 2]})


def test_nested_inputs_and_outputs_are_called_by_their_paths() -> None:
    args = ({"ids": X.clone()}, [X.clone(), X.clone()])
    imported = from_torch(Nested().eval(), args, kwargs={"scale": X.clone()})
    assert set(imported.graph.inputs) == {"batch.ids", "states[0]", "states[1]", "scale"}
    assert list(imported.graph.outputs) == ["first", "second.deep[0]", "second.deep[1]"]


def test_one_output_is_called_output_and_several_by_number() -> None:
    assert list(from_torch(of(lambda m, x: x + 1), (X,)).graph.outputs) == ["output"]
    several = from_torch(of(lambda m, x: (x + 1, x * 2)), (X,))
    assert list(several.graph.outputs) == ["output[0]", "output[1]"]


def test_a_compiled_module_is_the_one_that_it_compiles() -> None:
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    imported = from_torch(torch.compile(module), (x,))
    assert list(imported.graph.inputs) == ["input"]
    assert set(imported.weights) == {"weight", "bias"}


class Bits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ((x & 12) | (x >> 1)) ^ (x << 2)


def test_operators_on_bits_are_computed_whole() -> None:
    x = torch.arange(-6, 6)
    session = GraphSession(from_torch(Bits().eval(), (x,)))
    assert session.run(x)["output"].tolist() == Bits()(x).tolist()
    x = x + 5
    assert session.run(x)["output"].tolist() == Bits()(x).tolist()


def test_names_rename_both_ends() -> None:
    imported = from_torch(nn.ReLU().eval(), (X,), names={"input": "image", "output": "features"})
    assert list(imported.graph.inputs) == ["image"]
    assert list(imported.graph.outputs) == ["features"]
    with pytest.raises(ImporterError, match=r"no such input or output; there are input, output"):
        from_torch(nn.ReLU().eval(), (X,), names={"x": "image"})


def test_nodes_are_called_by_their_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    graph = from_torch(model, (X,)).graph
    assert graph.node("0.linear").op == "linear"
    assert set(graph.parameters) == set(model.state_dict())


# --- weights, constants, states -------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.register_buffer("steps", torch.arange(3.0), persistent=False)
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, ids: Tensor) -> Any:
        hidden = self.table(ids) * self.scale + self.steps
        return self.head(hidden[..., self.order])


def test_tied_weights_are_one_parameter_and_copied_once_or_shared() -> None:
    module = Tied().eval()
    copied, shared = (from_torch(module, (torch.tensor([1, 4]),), share=s) for s in (False, True))
    for imported in (copied, shared):
        assert set(imported.weights) == {"table.weight", "scale"}
        own = [place(GraphSession(imported).pool.buffers["table.weight", "float32"]) for _ in "ab"]
        assert own == [place(imported.weights["table.weight"])] * 2, "sessions copy no more"
    assert place(shared.weights["table.weight"]) == place(module.head.weight)
    assert place(copied.weights["table.weight"]) != place(module.head.weight)


def place(tensor: Tensor) -> int:
    return tensor.data_ptr()


def test_a_session_takes_the_module_with_its_weights() -> None:
    module, ids = Tied().eval(), torch.tensor([1, 4, 0])
    session = GraphSession(from_torch(module, (ids,)))
    for _ in range(3):
        found = session.run({"ids": ids})["output"]
        assert torch.allclose(found, module(ids).detach(), atol=1e-6)
        ids = (ids * 2 + 1) % 5


def normed() -> nn.Sequential:
    """Folded batch norms, and layers whose weights kernels lay out anew."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 4),
    ).eval()  # fmt: skip
    assert isinstance(made[1], nn.BatchNorm2d)
    assert made[1].running_mean is not None
    made[1].running_mean += 0.25
    return made


WRITES: dict[str, Any] = {
    "mul_": lambda net: net[4].weight.mul_(2),
    "data.zero_": lambda net: net[6].weight.data.zero_(),
    "one element": lambda net: net[0].weight.data[1, 2].fill_(9),
    "NumPy": lambda net: net[4].bias.detach().numpy().fill(5),
    "batch norm": lambda net: net[1].running_mean.add_(1),
    "load_state_dict": lambda net: net.load_state_dict(normed().apply(flat).state_dict()),
}
UNCOUNTED = ("data.zero_", "one element", "NumPy")


def flat(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        part.weight.data.fill_(0.1)


@pytest.mark.parametrize("write", WRITES)
@torch.no_grad()
def test_a_session_answers_for_the_weights_it_was_made_with(write: str) -> None:
    net, image = normed(), torch.rand(2, 3, 4, 4)
    session, right = GraphSession(from_torch(net, (image,))), normed()
    session.run({"input": image})
    WRITES[write](net)
    for row in range(4):
        image[row % 2, :, row] += 1
        found = session.run({"input": image})["output"]
        assert torch.allclose(found, right(image), atol=1e-5)
        assert not torch.allclose(found, net(image), atol=1e-3)


def test_writes_into_what_was_rounded_are_noticed() -> None:
    net, x = torch.nn.Linear(4, 3).eval(), torch.rand(2, 4)
    session = GraphSession(from_torch(net, (x,), share=True), weights_dtype="int8")
    session.run({"input": x})
    with torch.no_grad():
        net.weight.mul_(2)
    with pytest.raises(WeightsError, match="'weight'; import the module again"):
        session.run({"input": x + 1})


@pytest.mark.parametrize("write", [write for write in WRITES if write not in UNCOUNTED])
@torch.no_grad()
def test_a_session_that_shares_its_weights_notices_writes(write: str) -> None:
    net, image = normed(), torch.rand(2, 3, 4, 4)
    session = GraphSession(from_torch(net, (image,), share=True))
    session.run({"input": image})
    image[0, 0] += 1
    assert torch.allclose(session.run({"input": image})["output"], net(image), atol=1e-5)
    WRITES[write](net)
    with pytest.raises(
        WeightsError, match=r"changed in place.*import the module again, or without"
    ):
        session.run({"input": image})


def test_arrays_given_as_weights_are_copied_and_equal_ones_once() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 2))
    g.output("y", (x @ g.parameter("a", (2, 2))) @ g.parameter("b", (2, 2)))
    both, x_ = np.eye(2, dtype="float32"), np.ones((1, 2), "float32")
    session = GraphSession(g.build(), {"a": both, "b": both})
    assert session.run(x_)["y"].tolist() == [[1, 1]]
    both *= 3
    assert session.run(x_ * 2)["y"].tolist() == [[2, 2]]
    assert len({place(session.pool.buffers[name, "float32"]) for name in "ab"}) == 1


def test_masks_and_tables_become_constants() -> None:
    def masked(module: Any, x: Tensor) -> Tensor:
        mask = torch.triu(torch.full((2, 2), torch.finfo(torch.float32).min), diagonal=1)
        return (x @ x.mT + mask).softmax(-1) + module.bias

    bias = torch.tensor([0.0, -torch.inf])
    imported = from_torch(of(masked, bias=bias), (X,))
    assert not imported.graph.parameters  # a mask in a buffer is no weight
    assert [n.shape for n in imported.graph.nodes if n.op == "constant"] == [(2, 2), (2,)]


CAUSAL = torch.ones(6, 6, dtype=torch.bool).triu(1)
ADDED = nn.Transformer.generate_square_subsequent_mask(6).clamp(min=-1e9)


class Attending(nn.Module):
    """Layers of PyTorch's own transformers, with masks that nothing says to be causal."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        other = nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(other, 1)
        self.both = nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True)
        self.register_buffer("causal", CAUSAL)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        made = nn.Transformer.generate_square_subsequent_mask(6)
        return (
            self.encoder(x, mask=made),
            self.encoder(x, mask=self.causal),
            self.encoder(x, mask=mask),
            self.decoder(x, x.flip(1), tgt_mask=made),
            self.both(x, x.flip(1), tgt_mask=made),
        )


@pytest.mark.parametrize("mask", [CAUSAL, CAUSAL.flip(0) & ~torch.eye(6, dtype=torch.bool), ADDED])
def test_transformers_of_pytorch_take_masks_as_they_are(mask: Tensor) -> None:
    torch.manual_seed(0)
    module, x = Attending().eval(), torch.randn(1, 6, 8)
    detect = nn.modules.transformer._detect_is_causal_mask
    session = GraphSession(from_torch(module, (x, mask)))
    assert nn.modules.transformer._detect_is_causal_mask is detect
    for row in (0, 5, 2):
        x[0, row] = torch.randn(8)
        found = session.run({"x": x, "mask": mask}).values()
        for one, right in zip(found, module(x, mask), strict=True):
            torch.testing.assert_close(one, right, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_rows_are_what_the_layers_compute() -> None:
    """As PyTorch gives them with gradients; without, it leaves zeros there."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    module, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)
    padding = torch.arange(5) >= torch.tensor([[4], [5]])
    imported = from_torch(module, (x,), kwargs={"src_key_padding_mask": padding})
    found = GraphSession(imported).run({"src": x, "src_key_padding_mask": padding})["output"]
    right = module(x, src_key_padding_mask=padding).detach()
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        fast = module(x, src_key_padding_mask=padding)
    assert not fast[padding].any()
    torch.testing.assert_close(found[~padding], fast[~padding], atol=1e-5, rtol=1e-5)


def _of_rows(module: Any, x: Tensor) -> Any:
    rows = torch.vmap(lambda row: (row @ module.weight).tanh())(x)
    return rows, torch.vmap(torch.vmap(lambda a, b: a * b, (None, 0)), (0, None))(x[0], x[1])


def test_functions_of_a_batch_are_those_of_its_elements() -> None:
    module, x = of(_of_rows, weight=torch.randn(3, 2)), X.clone()
    session = GraphSession(from_torch(module, (x,)))
    for row in (0, 1):
        x[row] = torch.randn(3)
        for found, right in zip(session.run(x).values(), module(x), strict=True):
            torch.testing.assert_close(found, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("diagonal", [-9, -1, 0, 2, 9])
def test_triangles_are_pytorchs_to_the_bit(dtype: torch.dtype, diagonal: int) -> None:
    """Also where what lies outside is no number; and PyTorch need not write them in other ops."""

    def triangles(module: Any, x: Tensor) -> Any:
        y = x + x / x.relu() if x.is_floating_point() else x
        return y.tril(diagonal), y.triu(diagonal)

    x = (torch.arange(40).reshape(2, 4, 5) % 7 - 3).to(dtype)
    program = torch.export.export(of(triangles), (x,))
    assert lowered(program, ()).graph is program.graph
    found, right = GraphSession(from_torch(program)).run(x).values(), program.module()(x)
    torch.testing.assert_close(tuple(found), right, rtol=0, atol=0, equal_nan=True)
    for one, other in zip(found, right, strict=True):
        assert one.nan_to_num().signbit().equal(other.nan_to_num().signbit())


def test_what_a_triangle_hides_is_not_read() -> None:
    session, x = GraphSession(from_torch(of(lambda m, x: x.tril().exp()), (X,))), X.clone()
    session.run(x)
    x[0, 1:] = 5
    torch.testing.assert_close(session.run(x)["output"], x.tril().exp())
    assert session.last.recomputed == 0


class Registers(nn.Module):
    """Tokens in front of others, as many as a configuration says."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(1, count, 3))
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(torch.cat([self.tokens.expand(2, -1, -1), x], 1))
        return found


@pytest.mark.parametrize("count", [0, 2])
def test_a_parameter_may_be_empty(count: int) -> None:
    module, x = Registers(count).eval(), torch.randn(2, 4, 3)
    imported = from_torch(module, (x,))
    assert ("tokens" in imported.weights) is bool(count)
    found = GraphSession(imported).run({"x": x})["output"]
    assert torch.allclose(found, module(x), atol=1e-6)


def test_zeros_below_keep_their_sign() -> None:
    """In margins and constants, and where they are added."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Any:
            margin = F.pad(x, (1, 1), value=-0.0)
            return (
                margin,
                margin + torch.full((6,), -0.0),
                torch.full_like(x, -0.0),
                x + 0.0,
                x - 0.0,
            )

    x = torch.tensor([-0.0, 0.0, 1.0, -1.0])
    found = GraphSession(from_torch(Net().eval(), (x,)), calibrate=False).run({"x": x})
    for name, right in zip(found, Net()(x), strict=True):
        assert np.array_equal(np.signbit(np.asarray(found[name])), right.signbit().numpy()), name


def test_buffers_that_forward_writes_become_states() -> None:
    def counted(module: Any, x: Tensor) -> Tensor:
        module.total.add_(x.sum(0))
        module.calls += 1
        return x * module.total / module.calls

    module = of(counted, total=torch.zeros(3), calls=torch.tensor(2.0))
    imported = from_torch(module, (X,))
    assert set(imported.graph.states) == {"total", "calls", "calls.is_written"}
    session = GraphSession(imported)
    for _ in range(3):
        expected = module(X)
        assert torch.allclose(session.run({"inputs_0": X})["output"], expected, atol=1e-6)


@pytest.mark.parametrize("runs", [0, 2])
def test_a_state_that_is_set_counts_from_the_next_run_on(runs: int) -> None:
    """Also before it was ever written, where a buffer does not begin at 0."""

    def counted(module: Any, x: Tensor) -> Tensor:
        module.total.add_(x.sum(0))
        return x * module.total

    module = of(counted, total=torch.full((3,), 5.0))
    session = GraphSession(from_torch(module, (X,)), calibrate=False)
    begun = torch.full((3,), 5.0)
    assert np.array_equal(session.state_value("total"), begun)
    for again in range(2):
        for _ in range(runs):
            assert torch.allclose(session.run({"inputs_0": X})["output"], module(X), atol=1e-6)
        assert np.allclose(session.state_value("total"), module.total)
        session.set_state("total", np.full(3, 7.0 + again, np.float32))
        module.total.fill_(7.0 + again)
        assert np.array_equal(session.state_value("total"), module.total)
        assert torch.allclose(session.run({"inputs_0": X})["output"], module(X), atol=1e-6)
        assert np.allclose(session.state_value("total"), module.total)
        session.reset_states()
        module.total.copy_(begun)
        assert np.array_equal(session.state_value("total"), begun)


def test_parameters_that_forward_writes_become_states() -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.ones(3), requires_grad=False)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean.copy_(self.mean * 0.5 + x.mean(0))
            return self.mean * self.calls

    module, x = Averaged().eval(), X.clone()
    imported = from_torch(module, (x,))
    assert set(imported.graph.states) == {"mean", "mean.is_written", "calls"}
    session = GraphSession(imported)
    for row in (0, 1, 0):
        expected = module(x)
        assert torch.allclose(session.run({"x": x})["output"], expected, atol=1e-6)
        x[row] += 1


def test_what_forward_writes_has_one_name() -> None:
    def written(module: Any, x: Tensor) -> Tensor:
        module.total.add_(x.sum(0))
        return x * module.seen

    total = torch.zeros(2, 3)
    with pytest.raises(ImporterError, match="total, which shares its bytes with seen; clone one"):
        from_torch(of(written, total=total[0], seen=total[1]), (X,))


def test_python_values_and_fixed_tensors_are_constants_and_told() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, scale: float, flag: bool = True) -> Tensor:
            return torch.where(mask, x * scale if flag else x, 0.0)

    mask = torch.tensor([True, False, True])
    module = Masked().eval()
    imported = from_torch(module, (X, mask, 3.0), kwargs={"flag": True}, fixed=["mask"])
    assert set(imported.graph.inputs) == {"x"}
    assert set(imported.specialised) == {"mask", "scale", "flag"}
    found = evaluate(imported.graph, {"x": X.numpy()})["output"]
    assert np.array_equal(found, module(X, mask, 3.0))
    with pytest.raises(ImporterError, match="fixed='masks': no such input; there are x, mask"):
        from_torch(module, (X, mask, 3.0), fixed=["masks"])


def test_inputs_that_nothing_needs_are_told() -> None:
    imported = from_torch(of(lambda m, x, y: x + 1), (X, X + 1))
    assert imported.unused == ("inputs_1",)


def test_float64_and_bfloat16_run() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        module = nn.Sequential(nn.Linear(3, 4), nn.GELU()).eval().to(dtype)
        x = X.to(dtype)
        found = GraphSession(from_torch(module, (x,))).run({"input": x})["output"]
        assert found.dtype == dtype
        assert torch.allclose(found, module(x).detach(), rtol=0.02)


def test_printing_says_what_there_is() -> None:
    imported = from_torch(nn.Linear(3, 2).eval(), (X,))
    assert isinstance(imported, Imported)
    assert str(imported) == (
        "imported module\nnodes: 4, 1 of them computed\nparameters: 2, 32 B\n"
        "fused ops: 1 linear\ninput input: float32[2, 3]\noutput output: float32[2, 2]"
    )


def test_an_exported_program_is_imported_too() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)).eval()
    program = torch.export.export(module, (X,))
    assert from_torch(program).graph.fingerprint == from_torch(module, (X,)).graph.fingerprint
    with pytest.raises(ImporterError, match="leave example_inputs out"):
        from_torch(program, (X,))


# --- ops without an entry -------------------------------------------------------------------------


class Transformed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bernoulli(x.sigmoid()) * torch.fft.rfft(x).abs().sum()


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Transformed()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x @ x.mT) + torch.rand(1)


def test_all_missing_ops_are_named_with_place_and_mend() -> None:
    with pytest.raises(UnsupportedOpError) as error:
        from_torch(Unknown().eval(), (X,))
    text = str(error.value)
    assert set(error.value.ops) == {"aten.rand.default"}
    for part in (
        "sources/test_importer.py",
        "'inner'",
        "torch.bernoulli(x",
        "is random; call `module.eval",
    ):
        assert part in text


def test_supported_lists_every_op_once() -> None:
    support = supported(Unknown().eval(), (X,))
    assert isinstance(support, Support)
    rows = {row.op: row for row in support.ops}
    assert rows["aten.matmul.default"].is_supported
    assert rows["aten.rand.default"].count == 2
    assert not rows["aten.rand.default"].is_supported
    assert rows["aten.fft_rfft.default"].answer == "opaque: recomputed whole"
    assert {row.op for row in support.opaque} == {"aten.fft_rfft.default", "aten.abs.default"}
    assert str(support).splitlines()[0].split() == ["op", "calls", "supported", "first", "place"]


# --- errors ---------------------------------------------------------------------------------------


def data_dependent(module: Any, x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def writes_input(module: Any, x: Tensor) -> Tensor:
    return x.add_(1.0)


def complex_result(module: Any, x: Tensor) -> Tensor:
    return torch.complex(x, x) * 2


def slope(module: Any, x: Tensor) -> Any:
    return torch.func.grad(lambda x: (x**3).sum())(x)


def exported_slope() -> Any:
    if torch.__version__.startswith("2.11."):
        pytest.skip("PyTorch 2.11 does not export it at all")
    return torch.export.export(of(slope), (X,))


def back_from_spectrum(module: Any, x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    return torch.istft(torch.stft(x, 16, window=window, return_complex=True), 16, window=window)


def writes_where_values_say(module: Any, x: Tensor) -> Tensor:
    module.ring[module.at % 5] = x[0]
    return module.ring + x[1]


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "no tuple": (lambda: from_torch(nn.ReLU().eval(), X), r"pass a tuple .*\(x,\)"),
    "arrays": (
        lambda: from_torch(nn.ReLU().eval(), (X.numpy(),)), r"example_inputs\[0\] is a ndarray",
    ),
    "not contiguous": (lambda: from_torch(nn.ReLU().eval(), (X.t(),)), "not contiguous; pass"),
    "shared": (lambda: from_torch(of(lambda m, x, y: x + y), (X, X)), "share their bytes"),
    "empty": (lambda: from_torch(nn.ReLU().eval(), (X[:0],)), "is empty"),
    "complex": (lambda: from_torch(nn.ReLU().eval(), (X + 1j,)), "complex64; pass real"),
    "complex result": (lambda: from_torch(of(complex_result), (X,)), "torch.view_as_real"),
    "training": (lambda: from_torch(nn.Sequential(nn.Dropout()), (X,)), r"call `module.eval\(\)`"),
    "part of it training": (
        lambda: from_torch(nn.Sequential(nn.Dropout()).eval().append(nn.Dropout()), (X,)),
        "^1 is in training mode",
    ),
    "no module": (lambda: from_torch(F.relu, (X,)), "not a torch.nn.Module"),  # type: ignore[arg-type]
    "device": (
        lambda: from_torch(nn.Linear(3, 2, device="meta").eval(), (X,)),
        "inputs are on cpu, the module on meta",
    ),
    "branches on values": (lambda: from_torch(of(data_dependent), (X,)), r"torch\.where"),
    "writes into an input": (lambda: from_torch(of(writes_input), (X.clone(),)), "clone it first"),
    "no tensor": (lambda: from_torch(of(lambda m, x: 3), (X,)), "returns no tensor"),
    "shape from values": (
        lambda: from_torch(of(lambda m, x: x[x > 0]), (X,)), "depends on values, .* torch.where"
    ),
    "branches at a line": (
        lambda: from_torch(of(data_dependent), (X,)),
        r"test_importer.py:\d+: return x \+ 1 if x.sum\(\) > 0[^(]*",
    ),
    "writes where values say": (
        lambda: from_torch(
            of(writes_where_values_say, ring=torch.zeros(5, 3), at=torch.tensor(0)), (X,)
        ),
        r"test_importer.py:\d+: module.ring\[.*follows from values.*`buffer.index_copy_\(",
    ),
    "differentiates": (
        lambda: from_torch(of(slope), (X,)), "by torch.func, .*use torch.autograd.grad"
    ),
    "differentiates, as a table": (
        lambda: supported(of(slope), (X,)), "by torch.func, .*use torch.autograd.grad"
    ),
    "differentiates, as a program": (
        lambda: from_torch(exported_slope()), "by torch.func"
    ),
    "looks at values": (
        lambda: from_torch(of(back_from_spectrum), (torch.randn(1, 64),)),
        "istft.default looks at values, by aten.equal.default, .*: compute it outside",
    ),
    "empty output": (
        lambda: from_torch(of(lambda m, x: (x + 1, x[:0].amax(1))), (X,)),
        r"output 'output\[1\]' is empty, by aten.amax.default at .*test_importer.py",
    ),
    "dynamic": (
        lambda: from_torch(
            torch.export.export(
                nn.ReLU().eval(), (X,), dynamic_shapes=({0: torch.export.Dim("n")},)
            )
        ),
        "dynamic shape .* export without dynamic_shapes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_says_what_is_wrong_and_the_mend(
    case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    call, message = ERRORS[case]
    with pytest.raises(ImporterError, match=message):
        call()
    assert not any(capfd.readouterr())  # and PyTorch says nothing besides


# --- files ----------------------------------------------------------------------------------------


class Saved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(4)
        self.register_buffer("steps", torch.arange(4.0), persistent=False)

    def forward(self, x: Tensor, *, more: dict[str, Any]) -> Any:
        left, right = (self.first(x) + self.steps).split([1, 3], -1)
        values, places = self.second(more["y"]).topk(2, -1)
        return {"joined": self.norm(torch.cat([left, right], -1)), "best": [values, places]}


def saved(path: Path, **options: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    module, more = Saved().eval(), {"y": torch.randn(2, 3), "flag": None}
    torch.export.save(torch.export.export(module, (X,), {"more": more}), path, **options)
    return module, more


def test_a_file_gives_the_same_graph_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, more = saved(tmp_path / "m.pt2")
    right = from_torch(module, (X,), kwargs={"more": more})

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a file was executed")

    for place in ("torch.load", "pickle.loads", "sympy.sympify", "torch.export.load"):
        monkeypatch.setattr(place, forbidden)
    found = from_pt2(tmp_path / "m.pt2")
    assert found.graph.fingerprint == right.graph.fingerprint
    assert found.specialised == {"more.flag": None}
    for name, weight in right.weights.items():
        assert torch.equal(found.weights[name], weight)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.up(x)) + x  # this line


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).softmax(-1)  # and this one


def sources_of(graph: Graph) -> dict[str, str]:
    return {node.name: node.source for node in graph.nodes if not node.is_leaf}


def test_nodes_know_the_line_that_they_come_from(tmp_path: Path) -> None:
    """Through recognising, files, sessions and plans; the way to the file is nobody's business."""
    imported = from_torch(Layers().eval(), (X,))
    found = sources_of(imported.graph)
    assert len(found) == 7
    for name, source in found.items():
        line = "this line" if "." in name and not name.startswith("root") else "and this one"
        assert source.startswith("sources/test_importer.py:"), (name, source)
        assert source.endswith(f"# {line}"), (name, source)
    assert ", second: return" in found["second.add"]
    again = load_graph(save_graph(imported.graph, tmp_path / "g.json"))
    assert sources_of(again) == found
    session = GraphSession(imported, calibrate=False)
    session.run(np.zeros(tuple(X.shape), "float32"))
    assert set(sources_of(session.graph).values()) == set(found.values())
    told = str(session.plan.explain("second.add", session.graph))
    assert f"from {found['second.add']}" in told
    assert "from" not in str(session.plan.explain("second.add"))


def test_a_line_that_a_file_names_is_shown_as_it_is(tmp_path: Path) -> None:
    """Whoever wrote a file wrote its stack traces."""
    torch.export.save(torch.export.export(Layers().eval(), (X,)), tmp_path / "m.pt2")
    evil = rewritten(
        tmp_path / "m.pt2", tmp_path / "evil.pt2", "model.json",
        lambda raw: raw.replace(b"# this line", b"\\u001b[2J\\u202e<b>" + b"x" * 9000),
    )  # fmt: skip
    graph = from_pt2(evil).graph
    assert graph.fingerprint == from_pt2(tmp_path / "m.pt2").graph.fingerprint
    shown = [source for source in sources_of(graph).values() if "<b>" in source]
    assert shown
    for source in shown:
        assert source.isprintable()
        assert len(source) <= 300
    assert "\\x1b[2J" in shown[0]


def rewritten(source: Path, target: Path, member: str, change: Callable[[bytes], bytes]) -> Path:
    """A copy of an archive with one member changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith(member) else data)
    return target


HOSTILE: dict[str, tuple[str, bytes, bytes, str]] = {  # member, old, new, message
    "foreign call": ("model.json", b"torch.ops.aten.linear.default", b"torch.hub.load", "hub.load"),
    "another op library": ("model.json", b"torch.ops.aten.add", b"torch.ops.mine.add", "no entry"),
    "in place": ("model.json", b"aten.add.Tensor", b"aten.add_.Tensor", "run_decompositions"),
    "pickled weight": ("weights_config.json", b'"use_pickle": false', b'"use_pickle": true',
                       "could run code"),
    "expression for a size": ("model.json", b'{"as_int": 2}', b'{"as_expr": {"expr_str": "f()"}}',
                              "dynamic"),
    "another schema": ("model.json", b'"major": 8', b'"major": 9', "schema"),
    "size beyond the bytes": ("weights_config.json", b'{"as_int": 4}', b'{"as_int": 4000}',
                              "damaged"),
    "no JSON": ("model.json", b"{", b"", "is not JSON"),
    "unknown name": ("model.json", b'{"name": "x"}', b'{"name": "z"}', "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    member, old, new, message = HOSTILE[case]
    saved(tmp_path / "m.pt2")
    bad = rewritten(
        tmp_path / "m.pt2", tmp_path / "bad.pt2", member, lambda raw: raw.replace(old, new)
    )
    with pytest.raises(ImporterError, match=message):
        from_pt2(bad)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"something else")
    with pytest.raises(ImporterError, match="cannot be read"):
        from_pt2(tmp_path / "m.pt2")
    with pytest.raises(ImporterError, match="cannot be read"):
        from_pt2(tmp_path / "none.pt2")


# --- an import where a graph is taken -------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_import_is_taken_where_its_graph_is(tmp_path: Path, dtype: torch.dtype) -> None:
    module = nn.Linear(3, 4).eval().to(dtype)
    imported = from_torch(module, (X.to(dtype),))
    assert estimate_memory(imported) == estimate_memory(imported.graph)
    saved = load_graph(save_graph(imported, tmp_path / "graph.json"))
    assert saved.fingerprint == imported.graph.fingerprint
    found = evaluate(imported, {"input": X.to(dtype).float().numpy()})["output"]
    np.testing.assert_allclose(found, module.float()(X.to(dtype).float()).detach(), atol=0.02)
    bias = np.zeros(4, np.float32)
    moved = evaluate(imported, {"input": X.to(dtype).float().numpy(), "bias": bias})["output"]
    np.testing.assert_allclose(found - moved, np.tile(module.bias.detach(), (2, 1)), atol=0.02)


@pytest.mark.parametrize(
    "use", [estimate_memory, lambda g: evaluate(g, {}), lambda g: save_graph(g, "graph.json")]
)
def test_what_is_no_graph_is_named(use: Callable[[Any], Any]) -> None:
    with pytest.raises(GraphError, match=r"the graph is a Linear; pass .*`tg\.from_torch"):
        use(nn.Linear(3, 4))


def test_a_given_program_stays_as_it_was() -> None:
    """Calls that write over their operand are written apart in a copy of it."""

    class Over(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu_().mul_(2.0)

    program = torch.export.export(Over().eval(), (X,))
    graph, text = program.graph, str(program.graph)
    assert "relu_" in text
    for _ in range(2):
        assert "relu" in {node.op for node in from_torch(program).graph.nodes}
        assert program.graph is graph
        assert str(program.graph) == text
    supported(program)
    assert str(program.graph) == text


def test_a_module_keeps_nothing_of_its_export() -> None:
    """Some keep what they computed last: of an export, that would be a tensor without numbers."""

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", None, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.bias is None:
                self.register_buffer("bias", torch.arange(x.shape[-1]) * 0.5, persistent=False)
            return x * 2.0 + self.bias

    module = Remembers().eval()
    with pytest.raises(ImporterError, match="call the module once before"):
        from_torch(module, (X,))
    assert module.bias is None
    right = module(X).numpy()
    kept = module.bias
    found = GraphSession(from_torch(module, (X,))).run({"x": X.numpy()})["output"]
    assert module.bias is kept
    np.testing.assert_array_equal(found, right)


class Applied(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: torch.zeros(1, torch.nonzero(x[0] > 0).shape[0]) + 1,
    ],
)
def test_numbers_that_follow_from_values_are_refused_by_name(function: Any) -> None:
    with pytest.raises(UnsupportedOpError, match="a number that depends on values"):
        from_torch(Applied(function).eval(), (torch.randn(2, 8),))


@pytest.mark.parametrize("like", [torch.zeros_like, torch.ones_like])
def test_what_is_made_like_a_transposed_value_lies_like_it(like: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(1, 6, 8) + like(x.transpose(1, 2)).transpose(1, 2).view(1, 6, 8)

    module, x = Applied(function).eval(), torch.randn(1, 6, 2, 4)
    found = GraphSession(from_torch(module, (x,))).run(x.numpy())
    np.testing.assert_array_equal(next(iter(found.values())), module(x).numpy())


class Remembering(torch.nn.Module):
    """Adds what it was given last, kept as an attribute like any other."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads, self.last = reads, torch.zeros(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x + self.last if self.reads else x * 2
        self.last = x
        return result


def test_an_attribute_that_the_next_forward_reads_is_refused() -> None:
    module = torch.nn.Sequential(Remembering(reads=True)).eval()
    before = module[0].last
    with pytest.raises(ImporterError, match=r"0\.last.*self\.0\.register_buffer\('last'"):
        from_torch(module, (X,))
    assert module[0].last is before


def test_an_attribute_that_nothing_reads_is_left_as_it_was() -> None:
    module = Remembering(reads=False).eval()
    before = module.last
    found = GraphSession(from_torch(module, (X,))).run({"x": X})["output"]
    assert module.last is before
    torch.testing.assert_close(found, X * 2)


class Writing(torch.nn.Module):
    """Writes rows into a table that is a plain attribute, and maybe a buffer of another name."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        self.__dict__["table"] = torch.arange(12.0).view(4, 3)
        if is_buffer:
            self.register_buffer("held", self.table, persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.table.index_copy_(0, at, x)
        self.table[1:3].mul_(0.5)
        return self.table.cumsum(0)


@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("is_program", [True, False])
def test_an_attribute_that_is_written_is_one_state(is_buffer: bool, is_program: bool) -> None:
    module, given = Writing(is_buffer).eval(), (torch.zeros(1, 3), torch.tensor([0]))
    program = torch.export.export(module, given, strict=False)
    before = list(program.graph_signature.input_specs), dict(program.constants)
    imported = from_torch(program) if is_program else from_torch(module, given)
    assert (program.graph_signature.input_specs, program.constants) == before
    assert torch.equal(module.table, torch.arange(12.0).view(4, 3))
    assert {name.split(".")[0] for name in imported.graph.states} == {
        "held" if is_buffer else "table"
    }
    session = GraphSession(imported, making="always")
    for step in range(6):
        x, at = torch.randn(1, 3), torch.tensor([step % 4])
        found = session.run({"x": x, "at": at})["output"]
        torch.testing.assert_close(found, module(x, at))


def test_a_static_cache_of_hugging_face_is_states() -> None:
    llama = pytest.importorskip("transformers.models.llama")
    executorch = pytest.importorskip("transformers.integrations.executorch")
    torch.manual_seed(0)
    config = llama.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    model = llama.LlamaForCausalLM(config).eval()
    model.generation_config.cache_implementation = "static"
    module = executorch.TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=12)
    first = {"input_ids": torch.zeros(1, 1, dtype=torch.long), "cache_position": torch.tensor([0])}
    session = GraphSession(from_torch(module.eval(), kwargs=first))
    ids = torch.randint(0, 50, (1, 12))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    for t in range(12):
        word = {"input_ids": ids[:, t : t + 1], "cache_position": torch.tensor([t])}
        found = session.run(word)["output"]
        torch.testing.assert_close(found[:, 0], expected[:, t], atol=1e-5, rtol=1e-5)


class Branching(torch.nn.Module):
    """Branches inside of a branch, of several results and on flags of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x.sin(), (x,))

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        y, z = torch.cond(
            flag, lambda x: (self.a(x), x.sum()), lambda x: (self.b(x) - 1, x.max()), (x,)
        )
        return torch.cond(x.sum() > 0, self.inner, lambda y: y / 3, (y,)) + z


def test_branches_on_values_are_computed_both_and_one_is_taken() -> None:
    torch.manual_seed(0)
    module, flags = Branching().eval(), (torch.tensor([True]), torch.tensor([False]))
    program = torch.export.export(module, (X, flags[0]), strict=False)
    before = program.graph_module.print_readable(print_output=False)
    taken = set()
    for imported in (from_torch(module, (X, flags[0])), from_torch(program)):
        session = GraphSession(imported)
        for step in range(12):
            x, flag = torch.randn(2, 3) * (1 + step), flags[step % 2]
            found = session.run({"x": x, "flag": flag})["output"]
            torch.testing.assert_close(found, module(x, flag), atol=1e-5, rtol=1e-5)
            taken.add((step % 2, bool(x.sum() > 0)))
    assert len(taken) == 4
    assert program.graph_module.print_readable(print_output=False) == before


def test_a_loop_of_unknown_length_is_refused_with_the_mend() -> None:
    def rounds(x: torch.Tensor) -> Any:
        zero = torch.tensor(0)
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (zero, x))

    with pytest.raises(UnsupportedOpError, match=r"while_loop .*write a loop of so many rounds"):
        from_torch(Applied(rounds).eval(), (X,))


def test_a_graph_is_sent_to_another_process() -> None:
    """As `multiprocessing` and Dask send it: fused ops are found in the table there."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    sent = pickle.loads(pickle.dumps(from_torch(module.eval(), (X,))))
    assert {node.op for node in sent.graph.nodes} >= {"gelu", "linear"}
    torch.testing.assert_close(GraphSession(sent).run(X)["output"], module(X))


def test_modules_are_imported_by_several_threads() -> None:
    def imported(i: int) -> bool:
        torch.manual_seed(i)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU()).eval()
        found = GraphSession(from_torch(module, (X,))).run(X)["output"]
        return torch.allclose(found, module(X), atol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(imported, range(8)))


@pytest.mark.parametrize("bias", [True, False])
def test_one_of_a_batch_is_computed_alone_where_rows_were_made_one_list(bias: bool) -> None:
    """PyTorch's encoder layers put time in front of the batch, and multiply one list of rows."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True, bias=bias)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(6, 5, 16)
    session = GraphSession(from_torch(module, (x,)), making="always")
    session.run(x)
    for at in (2, 5, 0):
        x[at] = torch.randn(5, 16)
        found = session.run(x)["output"]
        torch.testing.assert_close(found, module(x), atol=1e-5, rtol=1e-5)
        assert session.last.recomputed == pytest.approx(1 / 6, abs=0.01)


class Masked(nn.Module):
    """A buffer and an argument of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * self.mask * mask


def test_an_input_of_the_name_of_a_buffer_gets_another_one() -> None:
    x, mask = torch.randn(2, 3), torch.tensor([1.0, 0.0, 1.0])
    with pytest.raises(ImporterError, match=r"'mask' is an input and a parameter .*'mask_in'"):
        from_torch(Masked().eval(), (x, mask))
    imported = from_torch(Masked().eval(), (x, mask), names={"mask": "mask_in"})
    assert set(imported.graph.inputs) == {"x", "mask_in"}
    found = GraphSession(imported).run({"x": x, "mask_in": mask})["output"]
    np.testing.assert_allclose(found, Masked()(x, mask).numpy())
    with pytest.raises(ImporterError, match=r"names=\{'x': 'mask_in'\}"):
        from_torch(Masked().eval(), (x, mask), names={"x": "mask", "mask": "m"})


def test_one_name_may_be_fixed_without_a_list() -> None:
    x = torch.randn(2, 3)
    imported = from_torch(Masked().eval(), (x, torch.ones(3)), fixed="mask")
    assert set(imported.graph.inputs) == {"x"}


# --- numbers, and values at the end of what there is ----------------------------------------------

OF_A_NUMBER: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "sort": lambda x: x.sort()[0],
    "argsort": lambda x: x.argsort(),
    "topk": lambda x: x.topk(1)[0],
    "max": lambda x: x.max(0)[1],
    "argmax": lambda x: x.argmax(0, keepdim=True),
    "var": lambda x: torch.var_mean(x, 0, correction=0)[0],
    "gather": lambda x: x.gather(0, torch.tensor(0)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
}


@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_a_number_has_the_dimension_that_pytorch_gives_it(name: str) -> None:
    module, x = of(lambda module, x: OF_A_NUMBER[name](x * 2)), torch.tensor(1.5)
    session = GraphSession(from_torch(module, (x,)), calibrate=False)
    for value in (1.5, -2.0):
        x = torch.tensor(value)
        assert torch.equal(session.run({"inputs_0": x})["output"], module(x))


def test_sums_of_exponentials_are_what_pytorch_says_where_they_are_infinite() -> None:
    def summed(module: Any, x: Tensor) -> tuple[Tensor, ...]:
        hidden, inverse = x.masked_fill(x < 0, -torch.inf), 1 / x
        return hidden.logsumexp(1), inverse.logsumexp(1), hidden.logsumexp((0, 1), True)

    x = torch.tensor([[-1.0, -2.0], [3.0, 0.0], [1.0, 2.0]])
    module = of(summed)
    session = GraphSession(from_torch(module, (x,)), calibrate=False)
    for _ in range(3):
        for mine, theirs in zip(session.run({"inputs_0": x}).values(), module(x), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)
        x = -x.roll(1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_are_cast_may_pick_rows(dtype: torch.dtype) -> None:
    table = torch.arange(30.0).reshape(10, 3)
    module = of(lambda module, x: F.embedding(x.long(), table))
    x = torch.tensor([0.0, 1.5, 3.0, 9.75, -0.5], dtype=dtype)
    session = GraphSession(from_torch(module, (x,)), calibrate=False)
    for _ in range(3):
        assert torch.equal(session.run({"inputs_0": x})["output"], module(x))
        x = x.roll(1)
    for wrong in (10.0, -1.0):
        x[1] = wrong
        with pytest.raises(InputError, match=r"a table with 10; values must be in 0\.\.9"):
            session.run({"inputs_0": x})


def test_a_warning_of_pytorch_about_itself_is_no_error_of_an_import() -> None:
    module, x = of(lambda module, x: F.celu(F.pixel_shuffle(x, 2))), torch.rand(1, 4, 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported = from_torch(module, (x,))
    found = evaluate(imported, {"inputs_0": x.numpy()})["output"]
    np.testing.assert_allclose(found, module(x).numpy(), atol=1e-6)


@pytest.mark.parametrize("share", [False, True])
def test_a_module_that_was_made_in_inference_mode_is_imported_outside_of_it(share: bool) -> None:
    with torch.inference_mode():
        net, image = normed(), torch.rand(2, 3, 4, 4)
        shuffled = nn.Sequential(net[0], nn.PixelShuffle(1), nn.CELU()).eval()
    for module in (net, shuffled):  # one is written in other ops
        session = GraphSession(from_torch(module, (image,), share=share), calibrate=False)
        for _ in range(3):
            with torch.inference_mode():
                image, right = image.flip(2), module(image.flip(2))
            found = session.run({"input": image})["output"]
            assert not found.is_inference()
            assert torch.allclose(found, right, atol=1e-5)


def test_a_first_export_in_a_folder_that_is_gone_is_refused_with_the_mend(tmp_path: Path) -> None:
    """PyTorch loads its compiler then, which asks where it is; in a process that has not yet."""
    code = (
        "import os, sys, torch, tgbench as tg; tg.from_torch; os.rmdir(os.getcwd())\n"
        "try: tg.from_torch(torch.nn.ReLU().eval(), (torch.ones(2),))\n"
        "except tg.ImporterError as error: sys.exit(str(error))"
    )
    folder = tmp_path / "gone"
    folder.mkdir()
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=path
    )
    assert "in a folder that is there; `os.chdir` to one" in found.stderr
