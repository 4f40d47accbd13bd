"""Models whose loops an export writes out: state spaces, linear recurrences, cells over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tgbench as tg
from tgbench.base.regions import Box

STEPS = 24


class Text(nn.Module):
    """What a model of `transformers` says of each word."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, use_cache=False)[0]
        return found


SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2}
TEXTS: dict[str, Callable[[], nn.Module]] = {
    "Mamba": lambda: transformers.MambaModel(transformers.MambaConfig(**SIZES, state_size=4)),
    "FalconMamba": lambda: transformers.FalconMambaModel(
        transformers.FalconMambaConfig(**SIZES, state_size=4)
    ),
    "RecurrentGemma": lambda: transformers.RecurrentGemmaModel(
        transformers.RecurrentGemmaConfig(
            **SIZES, num_attention_heads=2, intermediate_size=32, lru_width=16, head_dim=8,
            attention_window_size=8,
        )
    ),
}  # fmt: skip


class Gated(nn.Module):
    """A recurrence of the user's own, from the last step to the first; and what it ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros(x.shape[0], x.shape[1], 4)
        for t in reversed(range(x.shape[1])):
            gate = torch.sigmoid(self.gate(x[:, t]))
            h = gate * h + (1 - gate) * self.value(x[:, t])
            found[:, t] = torch.tanh(h)
        return found, h


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    return make().eval()


@cache
def text(name: str) -> tuple[nn.Module, tg.Imported]:
    module = seeded(lambda: Text(TEXTS[name]()))
    return module, tg.from_torch(module, (torch.zeros(1, STEPS, dtype=torch.int64),))


def ops_of(imported: tg.Imported) -> Counter[str]:
    return Counter(node.op for node in imported.graph.nodes)


def rows_run(session: tg.GraphSession) -> list[Box]:
    """Of recurrences, in the last run."""
    assert session.last is not None
    program = session.last.program
    made = (m for m in program.instructions if m.node.op == "linear_recurrence")
    return [one.box.at(program.origin or ()) for one in made]


def expected(module: nn.Module, *inputs: Any) -> Any:
    with torch.inference_mode():
        return module(*map(torch.tensor, inputs))


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=5)
@given(data=st.data())
def test_texts_are_those_of_transformers_after_any_edits(name: str, data: st.DataObject) -> None:
    module, imported = text(name)
    assert ops_of(imported)["linear_recurrence"] == 2
    session = tg.GraphSession(imported, making=data.draw(st.sampled_from(["always", "measured"])))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    ids = random.integers(3, 60, (1, STEPS))
    for _ in range(6):
        ids = ids.copy()
        ids[0, data.draw(st.integers(0, STEPS - 1))] = random.integers(3, 60)
        row = data.draw(st.integers(0, STEPS - 1))
        want = data.draw(st.sampled_from([None, np.s_[:, row]]))
        [found] = session.run(ids, want=want).values()
        theirs = expected(module, ids).numpy()
        np.testing.assert_allclose(
            found, theirs if want is None else theirs[want], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", TEXTS)
def test_a_word_behind_the_text_is_one_row(name: str) -> None:
    module, imported = text(name)
    session = tg.GraphSession(imported, making="always")
    ids, made = np.full((1, STEPS), 3), []
    for t in range(STEPS):
        ids = ids.copy()
        ids[0, t] = 7 + t
        [found] = session.run(ids, want=np.s_[:, t]).values()
        np.testing.assert_allclose(found, expected(module, ids)[:, t].numpy(), rtol=1e-4, atol=1e-5)
        made.append(session.counters.specialised)
        if t > 8:
            assert [box[0] for box in rows_run(session)] == [(t, t + 1)] * 2
    assert made[-1] - made[12] <= 1


def test_nothing_before_an_edit_is_computed_again() -> None:
    module, imported = text("Mamba")
    session = tg.GraphSession(imported, making="always")
    ids = np.random.default_rng(0).integers(3, 60, (1, STEPS))
    session.run(ids)
    for t in (20, 9):
        for _ in range(2):
            ids = ids.copy()
            ids[0, t] = ids[0, t] % 50 + 4
            [found] = session.run(ids).values()
            np.testing.assert_allclose(found, expected(module, ids).numpy(), rtol=1e-4, atol=1e-5)
        assert [box[0] for box in rows_run(session)] == [(t, STEPS)] * 2


def test_a_program_for_an_edit_is_right_at_other_places() -> None:
    """No kernel of its lines of one channel per group is code for one length."""
    module, imported = text("Mamba")
    session = tg.GraphSession(imported, making="always")
    ids = np.random.default_rng(0).integers(3, 60, (1, STEPS))
    session.run(ids)
    for t in (11, 8):
        ids = ids.copy()
        ids[0, t] = ids[0, t] % 50 + 4
        [found] = session.run(ids).values()
        np.testing.assert_allclose(found, expected(module, ids).numpy(), rtol=1e-4, atol=1e-5)
        assert session.last is not None
        assert not [*session.last.program.domain.fixed]


@settings(max_examples=8)
@given(data=st.data())
def test_a_loop_of_ones_own_in_bits_and_budgets(data: st.DataObject) -> None:
    module = seeded(Gated)
    steps, samples = data.draw(st.integers(4, 20)), data.draw(st.integers(1, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random.standard_normal((samples, steps, 5), np.float32)
    h = random.standard_normal((samples, 4), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x), torch.tensor(h)))
    assert ops_of(imported)["linear_recurrence"] == 1
    assert ops_of(imported)["linear"] == 2
    with pytest.raises(tg.BudgetError) as error:
        tg.GraphSession(imported, memory=1).run({"x": x, "h": h})
    least = error.value.needed_bytes
    more = tg.estimate_memory(imported.graph).keep_all_bytes
    share = data.draw(st.sampled_from([0.0, 0.5, 1.5]))
    sessions = [
        tg.GraphSession(imported, memory=int(least + share * max(more - least, 0))),
        tg.GraphSession(imported, exact="bitwise"),
    ]
    for _ in range(4):
        for session in sessions:
            found = session.run({"x": x, "h": h})
            for mine, theirs in zip(found.values(), expected(module, x, h), strict=True):
                np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)
        anew = tg.GraphSession(imported, exact="bitwise").run({"x": x, "h": h})
        assert all(np.array_equal(found[name], anew[name]) for name in found)
        x, h = x.copy(), h.copy()
        x[data.draw(st.integers(0, samples - 1)), data.draw(st.integers(0, steps - 1))] += 1.0
        if data.draw(st.booleans()):
            h[data.draw(st.integers(0, samples - 1))] -= 1.0


def test_a_long_loop_is_few_nodes() -> None:
    module = seeded(Gated)
    imported = tg.from_torch(module, (torch.zeros(1, 150, 5), torch.zeros(1, 4)))
    assert len(imported.graph.nodes) < 40


class Cells(nn.Module):
    """Layers of cells over time, all steps of both in one loop."""

    def __init__(self, kind: str, layers: int, backwards: bool, **options: Any) -> None:
        super().__init__()
        make = getattr(nn, kind)
        self.cells = nn.ModuleList(make(5 if i == 0 else 4, 4, **options) for i in range(layers))
        self.is_pair, self.backwards = kind == "LSTMCell", backwards

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(*x.shape[1:-1], 4)
        states: list[Any] = [(zeros, zeros) if self.is_pair else zeros for _ in self.cells]
        found, order = [], range(len(x))
        for t in reversed(order) if self.backwards else order:
            row = x[t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(row, states[i])
                row = states[i][0] if self.is_pair else states[i]
            found.append(row)
        last = states[0][1] if self.is_pair else states[0]
        return torch.stack(found[::-1] if self.backwards else found), last


CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTMCell", {}), "gru": ("GRUCell", {}), "rnn": ("RNNCell", {}),
    "rnn of relu": ("RNNCell", {"nonlinearity": "relu"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
@settings(max_examples=6)
@given(data=st.data())
def test_cells_in_a_loop_are_layers(name: str, data: st.DataObject) -> None:
    kind, options = CELLS[name]
    layers, backwards = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    bias, samples = data.draw(st.booleans()), data.draw(st.sampled_from([(), (1,), (3,)]))
    module = seeded(lambda: Cells(kind, layers, backwards, bias=bias, **options))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random.standard_normal((data.draw(st.integers(4, 12)), *samples, 5), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    op = name.split()[0]
    assert ops_of(imported)[op] == layers
    assert ops_of(imported)["linear"] == layers
    assert "concat" not in ops_of(imported) or op == "lstm"  # of its two states
    session = tg.GraphSession(imported, making=data.draw(st.sampled_from(["always", "measured"])))
    for _ in range(4):
        found = session.run(x)
        for mine, theirs in zip(found.values(), expected(module, x), strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)
        x = x.copy()
        x[data.draw(st.integers(0, len(x) - 1))] += 0.5


class Peephole(nn.Module):
    """Not PyTorch's: the gates look at what the cell holds, too."""

    def __init__(self) -> None:
        super().__init__()
        self.of_x, self.of_h = nn.Linear(5, 16), nn.Linear(4, 16)
        self.looks = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h, c, found = torch.zeros(2, 4), torch.zeros(2, 4), []
        for row in x:
            i, f, g, o = (self.of_h(h) + self.of_x(row)).chunk(4, -1)
            c = torch.sigmoid(f + self.looks * c) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found)


def test_a_cell_of_another_kind_stays_as_it_is() -> None:
    module = seeded(Peephole)
    x = np.random.default_rng(0).standard_normal((7, 2, 5), np.float32)
    imported = tg.from_torch(module, (torch.tensor(x),))
    assert not {"lstm", "gru", "rnn", "linear_recurrence"} & set(ops_of(imported))
    [found] = tg.GraphSession(imported).run(x).values()
    np.testing.assert_allclose(found, expected(module, x).numpy(), rtol=1e-5, atol=1e-6)
