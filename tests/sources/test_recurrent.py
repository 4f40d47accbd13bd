"""Recurrent layers of PyTorch: the same results after any edits, in a few ops, and what re-runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tgbench as tg
from tgbench.graph.ops.recurrent import FEWEST_STEPS, MOST_PARTS, parts_of

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
@settings(max_examples=8)
@given(data=st.data())
def test_any_layers_are_those_of_pytorch_after_any_edits(kind: str, data: st.DataObject) -> None:
    options = {
        "num_layers": data.draw(st.integers(1, 2)), "bias": data.draw(st.booleans()),
        "batch_first": data.draw(st.booleans()), "bidirectional": data.draw(st.booleans()),
    }  # fmt: skip
    if kind == "RNN":
        options["nonlinearity"] = data.draw(st.sampled_from(["tanh", "relu"]))
    steps, samples = data.draw(st.sampled_from([1, 3, 16, 17, 40])), data.draw(st.integers(1, 3))
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
    session = tg.GraphSession(imported)
    names = list(imported.graph.inputs)
    for _ in range(4):
        assert_equal(module, session.run(dict(zip(names, inputs, strict=True))), *inputs)
        which = data.draw(st.integers(0, len(inputs) - 1))
        edited = inputs[which] = inputs[which].copy()
        at = tuple(data.draw(st.integers(0, size - 1)) for size in edited.shape[:2])
        edited[at] = random.standard_normal(edited.shape[-1])


def steps_run(session: tg.GraphSession) -> list[str]:
    assert session.last is not None
    return [made.node.name for made in session.last.program.instructions if made.node.op == "lstm"]


@pytest.mark.parametrize("edited", [0, 15, 16, 40, 69])
def test_what_comes_before_a_change_is_not_computed_again(edited: int) -> None:
    """Of 70 steps in five ops, those from the one of the change on; all are kept, wherever the
    first runs were.
    """
    module = seeded("LSTM", batch_first=True)
    x = np.random.default_rng(0).standard_normal((1, 70, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    session = tg.GraphSession(imported)
    session.run(x)
    assert len(steps_run(session)) == 5
    for _ in range(2):  # the first edit also finds out what is there
        x = x.copy()
        x[0, edited] += 1.0
        assert_equal(module, session.run(x), x)
    assert len(steps_run(session)) == 5 - edited // FEWEST_STEPS
    y, *_ = imported.graph.outputs
    x = x.copy()
    x[0, edited] += 1.0
    found = session.run(x, want={y: np.s_[:, edited]})
    assert len(steps_run(session)) == 1
    with torch.inference_mode():
        expected = module(torch.tensor(x))[0][:, edited].numpy()
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
    assert session.last is not None
    boxes = [m.box for m in session.last.program.instructions if m.node.op == "gru"]
    assert boxes
    assert all(stop - start == 1 for _, (start, stop), _ in boxes)


@given(st.integers(1, 2000), st.booleans())
def test_a_layer_is_cut_into_few_ops_of_a_few_steps(steps: int, reverse: bool) -> None:
    parts = parts_of(steps, reverse)
    assert len(parts) <= MOST_PARTS
    assert sorted(t for part in parts for t in range(*part)) == list(range(steps))
    assert (sorted(parts) == parts) is (not reverse or len(parts) == 1)
    assert len({stop - start for start, stop in sorted(parts)[:-1]}) <= 1


def test_a_projected_lstm_is_computed_by_pytorch() -> None:
    module = seeded("LSTM", proj_size=2, batch_first=True)
    x = np.random.default_rng(0).standard_normal((1, 9, FEATURES), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    assert "opaque" in {node.op for node in imported.graph.nodes}
    assert_equal(module, tg.GraphSession(imported).run(x), x)


def test_a_long_layer_is_imported_in_few_nodes() -> None:
    module = seeded("GRU", num_layers=2, bidirectional=True)
    imported = tg.from_torch(module, (torch.zeros(100, 1, FEATURES),))
    assert len(imported.graph.nodes) < 400
