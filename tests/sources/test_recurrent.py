"""Recurrent layers of PyTorch: the same results after any edits, and what re-runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tgbench as tg
from tgbench.base.regions import Box

FEATURES, UNITS = 5, 4
KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}


class Layers(nn.Module):
    """All results of `nn.LSTM` and the like; what it begins with may be an input."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.is_pair = kind == "LSTM"
        self.layers = getattr(nn, kind)(FEATURES, UNITS, **options)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Any:
        first = (h, c) if self.is_pair and h is not None else h
        y, last = self.layers(x, first)
        return (y, *last) if self.is_pair else (y, last)


def seeded(kind: str, **options: Any) -> Layers:
    torch.manual_seed(0)
    return Layers(kind, **options).eval()


def assert_equal(module: nn.Module, found: dict[str, Any], *inputs: np.ndarray) -> None:
    with torch.inference_mode():
        expected = module(*(torch.tensor(one) for one in inputs))
    for mine, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_any_layers_are_those_of_pytorch_after_any_edits(kind: str, data: st.DataObject) -> None:
    options = {
        "num_layers": data.draw(st.integers(1, 2)), "bias": data.draw(st.booleans()),
        "batch_first": data.draw(st.booleans()), "bidirectional": data.draw(st.booleans()),
    }  # fmt: skip
    if kind == "RNN":
        options["nonlinearity"] = data.draw(st.sampled_from(["tanh", "relu"]))
    steps, samples = data.draw(st.sampled_from([1, 2, 9, 20])), data.draw(st.integers(1, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = (samples, steps) if options["batch_first"] else (steps, samples)
    inputs = [random.standard_normal((*shape, FEATURES), np.float32)]
    module = seeded(kind, **options)
    if data.draw(st.booleans()):  # what they begin with
        rows = options["num_layers"] * (1 + options["bidirectional"])
        for _ in range(2 if kind == "LSTM" else 1):
            inputs.append(random.standard_normal((rows, samples, UNITS), np.float32))
    imported = tg.from_torch(module, tuple(map(torch.tensor, inputs)))
    assert KINDS[kind] in {node.op for node in imported.graph.nodes}
    assert "opaque" not in {node.op for node in imported.graph.nodes}
    exact = data.draw(st.sampled_from([None, "bitwise"]))
    session = tg.GraphSession(imported, exact=exact)
    names, outputs = list(imported.graph.inputs), list(imported.graph.outputs)
    for _ in range(5):
        found = session.run(dict(zip(names, inputs, strict=True)))
        assert_equal(module, found, *inputs)
        if exact:
            again = tg.GraphSession(imported, exact=exact)
            anew = again.run(dict(zip(names, inputs, strict=True)))
            assert all(np.array_equal(found[name], anew[name]) for name in outputs)
        for _ in range(data.draw(st.integers(1, 2))):
            which = data.draw(st.integers(0, len(inputs) - 1))
            edited = inputs[which] = inputs[which].copy()
            at = tuple(data.draw(st.integers(0, size - 1)) for size in edited.shape[:2])
            edited[at] = random.standard_normal(edited.shape[-1])
        rows = data.draw(st.integers(0, shape[0] - 1))
        part = session.run(dict(zip(names, inputs, strict=True)), want={outputs[0]: np.s_[rows]})
        with torch.inference_mode():
            expected = module(*map(torch.tensor, inputs))[0][rows].numpy()
        np.testing.assert_allclose(part[outputs[0]], expected, rtol=1e-5, atol=1e-6)


def rows_run(session: tg.GraphSession) -> list[Box]:
    """Of layers, in the last run."""
    assert session.last is not None
    program = session.last.program
    return [
        made.box.at(program.origin or ())
        for made in program.instructions
        if made.node.op in KINDS.values()
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edited", [0, 1, 25, 39])
def test_what_comes_before_a_change_is_not_computed_again(kind: str, edited: int) -> None:
    """Of any layer: it goes on from the row before."""
    module = seeded(kind, batch_first=True, num_layers=2)
    x = np.random.default_rng(0).standard_normal((1, 40, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    session = tg.GraphSession(imported)
    session.run(x)
    assert [box[0] for box in rows_run(session)] == [(0, 40), (0, 40)]
    for _ in range(2):  # the first edit also finds out what is there
        x = x.copy()
        x[0, edited] += 1.0
        assert_equal(module, session.run(x), x)
    assert [box[0] for box in rows_run(session)] == [(edited, 40), (edited, 40)]
    y, *_ = imported.graph.outputs
    x = x.copy()
    x[0, edited] += 1.0
    found = session.run(x, want={y: np.s_[:, edited]})
    assert [box[0] for box in rows_run(session)] == [(edited, edited + 1)] * 2
    with torch.inference_mode():
        expected = module(torch.tensor(x))[0][:, edited].numpy()
    np.testing.assert_allclose(found[y], expected, rtol=1e-5, atol=1e-6)


def test_a_stream_is_one_program_wherever_it_is() -> None:
    module = seeded("LSTM", batch_first=True, num_layers=2)
    x = np.zeros((1, 40, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    y, *_ = imported.graph.outputs
    session, random = tg.GraphSession(imported, making="always"), np.random.default_rng(0)
    made = []
    for t in range(40):
        x = x.copy()
        x[0, t] = random.standard_normal(FEATURES)
        found = session.run(x, want={y: np.s_[:, t]})
        with torch.inference_mode():
            expected = module(torch.tensor(x))[0][:, t].numpy()
        np.testing.assert_allclose(found[y], expected, rtol=1e-5, atol=1e-6)
        made.append(session.counters.specialised)
        if t > 2:
            assert [box[0] for box in rows_run(session)] == [(t, t + 1)] * 2
    assert made[-1] == made[3]


def test_rows_that_are_stale_are_computed_before_those_that_follow() -> None:
    """Looked at far behind a change of which only its own row was looked at."""
    module = seeded("GRU", batch_first=True)
    x = np.random.default_rng(0).standard_normal((1, 30, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    y, *_ = imported.graph.outputs
    session = tg.GraphSession(imported)
    session.run(x)
    for edited, looked in ((5, 5), (20, 25), (12, 12), (3, 29), (9, 2)):
        x = x.copy()
        x[0, edited] += 1.0
        found = session.run(x, want={y: np.s_[:, looked]})
        with torch.inference_mode():
            expected = module(torch.tensor(x))[0][:, looked].numpy()
        np.testing.assert_allclose(found[y], expected, rtol=1e-5, atol=1e-6)


def test_of_a_batch_only_what_changed_is_computed() -> None:
    module = seeded("GRU", batch_first=True)
    x = np.random.default_rng(0).standard_normal((6, 9, FEATURES), np.float32)
    session = tg.GraphSession(tg.from_torch(module, (torch.tensor(x),)))
    session.run(x)
    for sample in (2, 4):
        x = x.copy()
        x[sample, 3] += 1.0
        assert_equal(module, session.run(x), x)
    assert [box[:2] for box in rows_run(session)] == [((3, 9), (4, 5))]


def test_programs_that_go_on_are_read_from_a_file(tmp_path: Any) -> None:
    module = seeded("LSTM", batch_first=True, num_layers=2)
    x = np.random.default_rng(0).standard_normal((1, 20, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    session = tg.GraphSession(imported)
    for t in (3, 9, 12):
        session.run(x)
        x = x.copy()
        x[0, t] += 1.0
    session.run(x)
    session.save_programs(tmp_path / "programs")
    plan = session.plan
    other = tg.GraphSession(imported, plan=plan)
    other.load_programs(tmp_path / "programs")
    assert_equal(module, other.run(x), x)
    x = x.copy()
    x[0, 15] += 1.0
    assert_equal(module, other.run(x), x)
    assert [box[0] for box in rows_run(other)] == [(15, 20)] * 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_layers_under_a_budget(share: float) -> None:
    module = seeded("LSTM", batch_first=True, num_layers=2)
    x = np.random.default_rng(0).standard_normal((2, 60, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    with pytest.raises(tg.BudgetError) as error:
        tg.GraphSession(imported, memory=1).run(x)
    least = error.value.needed_bytes
    more = tg.estimate_memory(imported.graph).keep_all_bytes
    session = tg.GraphSession(imported, memory=int(least + share * max(more - least, 0)))
    for t in (10, 40, 59, 0, 30):
        assert_equal(module, session.run(x), x)
        x = x.copy()
        x[1, t] += 1.0


def test_a_projected_lstm_is_computed_by_pytorch() -> None:
    module = seeded("LSTM", proj_size=2, batch_first=True)
    x = np.random.default_rng(0).standard_normal((1, 9, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    assert "opaque" in {node.op for node in imported.graph.nodes}
    assert_equal(module, tg.GraphSession(imported).run(x), x)


def test_a_long_layer_is_imported_in_few_nodes() -> None:
    module = seeded("GRU", num_layers=2, bidirectional=True)
    imported = tg.from_torch(module, (torch.zeros(100, 1, FEATURES),))
    assert len(imported.graph.nodes) < 60
