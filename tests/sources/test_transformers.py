"""A few models of the zoo bench, edited at two budgets; no time is asserted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tgbench as tg
from benchmarks.zoo_models import MODELS, QUICK, TOLERANCE, edited, measured, row, totals

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", QUICK)
def test_a_model_is_pytorchs_after_edits_at_two_budgets(name: str) -> None:
    found = measured(MODELS[name], edits=2)
    assert found["worst_error"] <= TOLERANCE
    assert found["nodes"] > 10
    ample, tight = found["budgets"]["ample"], found["budgets"]["tight"]
    assert tight["memory_bytes"] <= ample["memory_bytes"]
    assert 0 < ample["recomputed"] <= 1


def test_there_are_at_least_forty_models() -> None:
    assert len(MODELS) >= 40
    assert all(name == model.name for name, model in MODELS.items())


@pytest.mark.parametrize(
    ("shape", "dtype", "changed"),
    [
        ((1, 16), "int64", 1),
        ((1, 3, 32, 32), "float32", 3 * 8 * 8),
        ((1, 1600), "float32", 200),
        ((1, 64, 32), "float32", 8 * 32),
    ],
)
def test_an_edit_is_a_token_a_patch_or_a_stretch(
    shape: tuple[int, ...], dtype: str, changed: int
) -> None:
    before = {"x": np.zeros(shape, dtype)}
    after = edited(before, np.random.default_rng(0))
    assert np.count_nonzero(after["x"]) == changed
    assert not before["x"].any()


def test_a_model_that_fails_loses_nothing() -> None:
    budget: Any = {"recomputed": 0.5, "run_ns": 1e6, "eager_ns": 2e6}
    good: Any = {
        "nodes": 3, "opaque": 0, "worst_error": 1e-7, "budgets": {"ample": budget, "tight": budget}
    }  # fmt: skip
    wrong = {**good, "opaque": 1, "worst_error": 1.0}
    results = {"a": good, "b": wrong, "c": {"error": "ImporterError: no\nmore"}}
    assert totals(results) == {"models": 3, "imported": 2, "equal": 1, "native": 1}
    widths = {len(row(name, found)) for name, found in results.items()}
    assert widths == {9}
    assert row("b", wrong)[-1] == "differs"
    assert row("c", results["c"])[-1] == "ImporterError: no"


MIXTURES: dict[str, Any] = {
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 12, "head_dim": 8},
    "Mixtral": {"num_local_experts": 4},
    "Olmoe": {"num_experts": 4, "pad_token_id": 0},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts_row_by_row(name: str) -> None:
    """A word behind the text is a row of every expert layer, wherever the others were sent."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_experts_per_tok=2, intermediate_size=12, **MIXTURES[name],
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(config).eval()
    before = config._experts_implementation

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.model(input_ids=ids, use_cache=False)[0]
            return found

    module, ids = Text().eval(), np.random.default_rng(0).integers(3, 60, (1, 12))
    imported = tg.from_torch(module, (torch.tensor(ids),))
    assert config._experts_implementation == before
    assert sum(node.op == "gather_linear" for node in imported.graph.nodes) == 4
    session = tg.GraphSession(imported, making="always")
    session.run(ids)
    for t in (3, 9, 11, 10, 4):
        ids = ids.copy()
        ids[0, t] = ids[0, t] % 50 + 4
        [found] = session.run(ids).values()
        with torch.inference_mode():
            expected = module(torch.tensor(ids)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert session.last is not None
        program = session.last.program
        rows = [made.box.at(program.origin or ())[0] for made in program.instructions
                if made.node.op == "gather_linear"]  # fmt: skip
        assert set(rows) == {(2 * t, 24)}
