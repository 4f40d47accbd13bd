"""Opaque ops: which operators may stand in one, what is computed together, and what a file says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tgbench import ops
from tgbench.base.errors import GraphError, UnsupportedOpError
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.graph_file import load_graph, save_graph
from tgbench.graph.ops.opaque.aten import refusal
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, from_pt2, from_torch, supported

aten = torch.ops.aten
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    """A function as a module, with a complex weight and a real one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        random = torch.Generator().manual_seed(1)
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64, generator=random))
        self.mixed = nn.Parameter(torch.randn(4, 4, generator=random))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def of(function: Callable[..., Any]) -> nn.Module:
    return Of(function).eval()


def kinds(imported: Imported) -> Counter[str]:
    return Counter(node.op for node in imported.graph.nodes if not node.is_leaf)


def check_edits(module: nn.Module, imported: Imported, **options: Any) -> GraphSession:
    """Four runs, each with another row changed, beside PyTorch."""
    session, x = GraphSession(imported, **options), X.clone()
    for row in range(4):
        found = session.run({"x": x.numpy()})
        with torch.no_grad():
            right = module(x)
        for array, expected in zip(
            found.values(), right if isinstance(right, tuple) else (right,), strict=True
        ):
            assert torch.allclose(torch.as_tensor(array), expected, atol=1e-5)
        x[row] += 1
    return session


# --- what is computed together --------------------------------------------------------------------


def test_an_op_without_an_entry_is_computed_whole() -> None:
    module = of(lambda m, x: torch.linalg.svdvals(x.relu()) * 2)
    imported = from_torch(module, (X,))
    assert kinds(imported) == {"relu": 1, "opaque": 1, "mul": 1}
    session = check_edits(module, imported)
    assert session.last is not None
    assert str(session.last.program).splitlines()[:2] == [
        "root.relu[u0:u0+1, 0:6] ← relu_numba",
        "root.linalg_svdvals[0:4] ← opaque",
    ]


def test_several_results_of_one_dtype_are_one_op() -> None:
    module = of(lambda m, x: torch.linalg.svd(x, full_matrices=False)[1:])
    assert kinds(from_torch(module, (X,)))["opaque"] == 1
    both = of(lambda m, x: tuple(torch.cummax(x, 1)))
    imported = from_torch(both, (X,))
    assert kinds(imported)["opaque"] == 2  # of floats, and of integers
    check_edits(both, imported)


REGIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "one end": (lambda m, x: torch.fft.irfft(torch.fft.rfft(x) * m.filter, n=6), 1),
    "two ends": (lambda m, x: (lambda f: (f.real, f.imag.relu()))(torch.fft.rfft(x)), 1),
    "an end that another waits for": (
        lambda m, x: (lambda f: torch.fft.irfft(f * (f.abs() @ m.mixed), n=6))(torch.fft.rfft(x)),
        2,
    ),
    "a complex constant": (lambda m, x: (torch.complex(x, x) * 2j).real, 1),
    "picks": (lambda m, x: (torch.fft.rfft(x).unbind(1)[2] * 1j).abs(), 1),
    "shape alone": (lambda m, x: torch.zeros_like(torch.fft.rfft(x)).real + x[:, :4], 0),
    "written in place": (
        lambda m, x: (lambda f: f.mul_(2).abs())(torch.fft.rfft(x).add_(1.0)), 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REGIONS)
def test_no_value_of_a_graph_is_complex(name: str) -> None:
    function, count = REGIONS[name]
    module = of(function)
    imported = from_torch(module, (X,))
    assert kinds(imported)["opaque"] == count
    check_edits(module, imported)
    check_edits(module, imported, exact="bitwise")


def test_what_pytorch_writes_in_others_stays_whole_where_one_has_no_entry() -> None:
    grid = torch.rand(1, 2, 2, 2)
    module = of(lambda m, x: nn.functional.grid_sample(x[None, None], grid, align_corners=True))
    support = supported(module, (X,))
    assert [row.op for row in support.opaque] == ["aten.grid_sampler.default"]


def test_bits_do_not_depend_on_what_ran_before() -> None:
    module = of(lambda m, x: torch.linalg.inv(x[:, :4].T @ x[:, :4] + torch.eye(4)).softmax(-1))
    imported = from_torch(module, (X,))
    edited = check_edits(module, imported, exact="bitwise")
    x = X.clone()
    x[3] -= 2
    fresh = GraphSession(imported, exact="bitwise").run({"x": x.numpy()})
    again = edited.run({"x": x.numpy()})
    assert all(np.array_equal(fresh[name], again[name]) for name in fresh)


def test_bits_of_what_random_operands_do_not_suit() -> None:
    """The trial of a kernel has no positive definite matrix; the run has."""
    module = of(lambda m, x: torch.linalg.cholesky(x).tril())
    start = X @ X.T + torch.eye(4)
    imported = from_torch(module, (start,))
    session = GraphSession(imported, exact="bitwise")
    for scale in (1.0, 2.0, 1.0):
        given = (start * scale).numpy()
        found = session.run({"x": given})["output"]
        assert np.array_equal(found, GraphSession(imported).run({"x": given})["output"])
        assert np.allclose(found @ found.T, given, atol=1e-4)


# --- what may not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: nn.functional.dropout(x, 0.5, training=True),
        lambda m, x: x + torch.rand_like(x),
        lambda m, x: torch.bernoulli(x.sigmoid()),
        lambda m, x: torch.multinomial(x.exp(), 2),
        lambda m, x: nn.functional.gumbel_softmax(x),
    ],
)
def test_what_is_random_is_refused_with_the_mend(function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"random; call `module\.eval\(\)`"):
        from_torch(of(function), (X,))


REFUSED = {
    "writes": aten.add_.Tensor,
    "draws": aten.rand_like.default,
    "reads a file": aten.from_file.default,
    "memory that nobody wrote": aten.new_empty.default,
    "memory around": aten.as_strided.default,
    "keeps statistics": aten.batch_norm.default,
    "gives no tensor": aten.equal.default,
    "takes no tensor": aten.hann_window.default,
    "a helper of TorchScript": torch.ops.aten.save.default,
    "no operator": print,
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_may_not_stand_in_a_graph(name: str) -> None:
    assert refusal(REFUSED[name])


def test_a_flag_decides_whether_an_operator_draws() -> None:
    x = torch.zeros(3)
    assert "random" in refusal(aten.rrelu.default, (x, 0.1, 0.3, True))
    assert not refusal(aten.rrelu.default, (x, 0.1, 0.3, False))


# --- files ----------------------------------------------------------------------------------------


@cache
def spectrum() -> Imported:
    return from_torch(of(lambda m, x: (torch.fft.rfft(x) * m.filter).abs()), (X,))


def saved(tmp_path: Path) -> Path:
    return save_graph(spectrum().graph, tmp_path / "graph.json")


def test_a_graph_file_holds_calls_as_data(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (record,) = [n for n in json.loads(path.read_text())["nodes"] if n["op"] == "opaque"]
    assert record["attrs"]["calls"][0] == ["fft_rfft.default", [["input", 0]], []]
    assert save_graph(load_graph(path), tmp_path / "again.json").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("add_.Tensor", "writes into what it is given"),
        ("save.default", "does not make tensors"),
        ("from_file.default", "does not make tensors"),
        ("new_empty.default", "memory"),
        ("rand_like.default", "random"),
        ("nonzero.default", "does not take these arguments"),
        ("__class__.mro", "no operator"),
        ("fft_rfft.default.__call__", "no operator"),
        ("_dispatch.x", "no operator"),
    ],
)
def test_a_foreign_file_names_no_other_operator(tmp_path: Path, name: str, message: str) -> None:
    path = saved(tmp_path)
    path.write_text(path.read_text().replace("fft_rfft.default", name))
    with pytest.raises(GraphError, match=message):
        load_graph(path)


@pytest.mark.parametrize(
    "change",
    [
        ('["input", 0]', '["import", "os"]'),
        ('["input", 0]', '["dtype", "load"]'),
        ('["input", 0]', '["input", 7]'),
        ('["result", 0, 0]', '["result", 9, 0]'),
        ('"shape": [4, 4]', '"shape": [4, 5]'),
    ],
)
def test_a_damaged_file_is_a_graph_error(tmp_path: Path, change: tuple[str, str]) -> None:
    path = saved(tmp_path)
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(GraphError):
        load_graph(path)


def test_pt2_files_hold_opaque_ops_too(tmp_path: Path) -> None:
    module = of(lambda m, x: torch.linalg.det(x @ x.T))
    torch.export.save(torch.export.export(module, (X,)), tmp_path / "det.pt2")
    assert kinds(from_pt2(tmp_path / "det.pt2"))["opaque"] == 1


def test_the_builder_takes_calls() -> None:
    g = GraphBuilder()
    x = g.input("x", (3, 3))
    (determinant,) = ops.opaque([x], (("linalg_det.default", (("input", 0),), ()),), ((0, 0),))
    assert (determinant.shape, determinant.name) == ((), "linalg_det")
    with pytest.raises(GraphError, match="random"):
        ops.opaque([x], (("rand_like.default", (("input", 0),), ()),), ((0, 0),))


# --- models ---------------------------------------------------------------------------------------

IDS = torch.randint(0, 60, (1, 6), generator=torch.Generator().manual_seed(2))
WIDTHS: dict[str, Any] = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2}


def fnet(transformers: Any) -> nn.Module:
    config = transformers.FNetConfig(**WIDTHS, intermediate_size=32, max_position_embeddings=8)
    return transformers.FNetModel(config)


def rwkv(transformers: Any) -> nn.Module:
    config = transformers.RwkvConfig(**WIDTHS, attention_hidden_size=16, context_length=8)
    model = transformers.RwkvModel(config).eval()
    model(IDS, use_cache=False)  # the first call rescales weights for good
    return model


def mixtral(transformers: Any) -> nn.Module:
    config = transformers.MixtralConfig(
        **WIDTHS, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=8,
    )  # fmt: skip
    model: nn.Module = transformers.MixtralForCausalLM(config).eval()
    return model


@pytest.mark.parametrize(("make", "opaque"), [(fnet, 2), (rwkv, 0), (mixtral, 0)])
def test_models_stay_right_after_edits(make: Callable[[Any], nn.Module], opaque: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    model, ids = make(transformers).eval(), IDS.clone()
    options = {} if make is fnet else {"use_cache": False}
    imported = from_torch(model, (ids,), kwargs=options)
    assert kinds(imported)["opaque"] == opaque
    (name,), session = imported.graph.inputs, GraphSession(imported)
    for place in (0, 4, 2):
        found = session.run({name: ids.numpy()})
        with torch.no_grad():
            right = model(ids, **options)
        for output, array in found.items():
            expected = getattr(right, output)
            assert np.abs(array - expected.numpy()).max() <= 1e-5 * float(expected.abs().max())
        ids[0, place] = (ids[0, place] + 7) % 60


class Strided(nn.Module):
    """Every second row's first element is set: PyTorch writes where that stops as the largest
    integer there is.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y[::2, 0] = 0.0
        return y


def test_the_largest_integers_are_read_back(tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    imported = from_torch(Strided().eval(), (x,))
    save_graph(imported.graph, tmp_path / "graph.json")
    found = GraphSession(load_graph(tmp_path / "graph.json")).run({"x": x})["output"]
    np.testing.assert_array_equal(found, Strided()(x).numpy())
