"""Masks of the words that are there, inputs beside a causal one: earlier rows stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tgbench as tg
from tgbench.graph.graph import fact_of

LENGTH, START, WORDS = 24, 6, 50


class Attending(nn.Module):
    """One causal attention, whose mask is made of flags in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.inner, self.outer = way, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        mask = causal & there[:, None, :].bool()
        q, k, v = self.inner(x).chunk(3, -1)
        if self.way == "given":
            return self.outer(functional.scaled_dot_product_attention(q, k, v, mask))
        scores = q @ k.transpose(1, 2) / 8**0.5
        if self.way == "filled":
            scores = scores.masked_fill(~mask, float("-inf"))
        elif self.way == "chosen":
            scores = torch.where(mask, scores, float("-inf"))
        else:
            scores = scores + torch.where(mask, 0.0, float("-inf"))
        return self.outer(scores.softmax(-1) @ v)


@pytest.mark.parametrize("making", ["always", "measured"])
@pytest.mark.parametrize("way", ["given", "filled", "chosen", "added"])
def test_a_word_more_computes_its_own_row(way: str, making: Any) -> None:
    torch.manual_seed(0)
    module = Attending(way).eval()
    x, there = torch.randn(1, LENGTH, 8), torch.zeros(1, LENGTH, dtype=torch.int64)
    there[:, :START] = 1
    session = tg.GraphSession(tg.from_torch(module, (x, there)), making=making)
    session.run({"x": x, "there": there}, want=np.s_[0, :START])
    for at in range(START, LENGTH):
        x[0, at], there[0, at] = torch.randn(8), 1
        found = session.run({"x": x, "there": there}, want=np.s_[0, at])["output"]
        with torch.no_grad():
            torch.testing.assert_close(found, module(x, there)[0, at], atol=1e-5, rtol=1e-5)
        if making == "always":
            computed = session.last.compute
            rows = {region.hull()[-2] for name, region in computed.items() if "linear" in name}
            assert rows == {(at, at + 1)}


def test_a_word_taken_away_computes_the_rows_that_saw_it() -> None:
    torch.manual_seed(0)
    module = Attending("given").eval()
    x, there = torch.randn(1, LENGTH, 8), torch.ones(1, LENGTH, dtype=torch.int64)
    session = tg.GraphSession(tg.from_torch(module, (x, there)), making="always")
    session.run({"x": x, "there": there})
    for at in (LENGTH - 2, 9, 1):
        there[0, at] = 0
        found = session.run({"x": x, "there": there})["output"]
        with torch.no_grad():
            torch.testing.assert_close(found, module(x, there), atol=1e-5, rtol=1e-5)
        changed = [region.hull()[-2] for name, region in session.last.dirty.items()
                   if name.endswith("outer") or name == "output"]  # fmt: skip
        assert all(rows == (at, LENGTH) for rows in changed)


def test_rows_that_see_nothing_are_what_pytorch_makes_of_them() -> None:
    """Words in front that are not there: their rows see none, and none sees theirs."""
    torch.manual_seed(0)
    module = Attending("given").eval()
    x, there = torch.randn(2, LENGTH, 8), torch.ones(2, LENGTH, dtype=torch.int64)
    there[0, :5] = 0
    session = tg.GraphSession(tg.from_torch(module, (x, there)), making="always")
    for at in (LENGTH - 1, 7, 4, 2, 0):
        there[1, at] = 0
        x[:, at] = torch.randn(2, 8)
        found = session.run({"x": x, "there": there})["output"]
        with torch.no_grad():
            torch.testing.assert_close(found, module(x, there), atol=1e-5, rtol=1e-5)


def test_a_huge_number_chosen_by_an_input_closes_nothing() -> None:
    """A row of nothing else is a row of equal scores, the ones to come among them."""

    class Added(Attending):
        def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
            causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
            least = torch.finfo(torch.float32).min
            mask = torch.where(causal & there[:, None, :].bool(), 0.0, least)
            q, k, v = self.inner(x).chunk(3, -1)
            return (q @ k.transpose(1, 2) + mask).softmax(-1) @ v

    torch.manual_seed(0)
    module = Added("added").eval()
    x, there = torch.randn(1, LENGTH, 8), torch.ones(1, LENGTH, dtype=torch.int64)
    there[0, :5] = 0
    session = tg.GraphSession(tg.from_torch(module, (x, there)), making="always")
    for at in (LENGTH - 1, 7, 4, 2, 0):
        x[0, at] = torch.randn(8)
        found = session.run({"x": x, "there": there})["output"]
        with torch.no_grad():
            torch.testing.assert_close(found, module(x, there), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("names", [("attention_mask",), ("position_ids",),
                                   ("attention_mask", "position_ids")])  # fmt: skip
def test_decoding_with_what_hugging_face_takes_besides(names: tuple[str, ...]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    given = {
        "input_ids": torch.randint(0, WORDS, (1, LENGTH)),
        "attention_mask": (torch.arange(LENGTH) < START)[None].long(),
        "position_ids": torch.arange(LENGTH)[None],
    }
    given = {name: given[name] for name in ("input_ids", *names)}
    session = tg.GraphSession(tg.from_torch(model, (), kwargs=given), making="always")
    session.run(given, want={"logits": np.s_[0, START - 1]})
    for at in range(START, LENGTH):
        given["input_ids"][0, at] = int(torch.randint(0, WORDS, ()))
        if "attention_mask" in names:
            given["attention_mask"][0, at] = 1
        found = session.run(given, want={"logits": np.s_[0, at]})["logits"]
        with torch.no_grad():
            torch.testing.assert_close(found, model(**given).logits[0, at], atol=1e-4, rtol=1e-4)
        rows = {r.hull()[1] for n, r in session.last.compute.items() if n.endswith("down_proj")}
        assert rows <= {(at, at + 1)}


def test_what_is_known_of_flags_is_kept() -> None:
    g = tg.GraphBuilder()
    flags = g.input("there", (1, 4), "bool") & g.constant(np.tri(4, dtype=bool))
    fact = fact_of(flags)
    assert fact is not None
    assert fact.closes_with(0.0)
    assert np.array_equal(fact.open.array, np.tri(4, dtype=bool))


class Open(nn.Module):
    """Attention with a mask of which some is open whatever is given: at its beginning, at its end,
    or by the diagonal.
    """

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self.register_buffer("known", known)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask | self.known)


KEYS = torch.arange(6)
OPEN = {
    "a diagonal": torch.eye(5, 6, dtype=torch.bool),
    "the first": (KEYS < 1).expand(5, 6),
    "the last": (KEYS > 3).expand(5, 6),
    "a band": (KEYS - torch.arange(5)[:, None]).abs() < 2,
}


@pytest.mark.parametrize("known", OPEN)
@pytest.mark.parametrize("making", ["always", None])
def test_what_a_mask_opens_is_read(known: str, making: Any) -> None:
    torch.manual_seed(1)
    module = Open(OPEN[known].clone()).eval()
    mask = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    mask[..., 3] = True
    given = {"q": torch.randn(2, 2, 5, 4), "k": torch.randn(2, 2, 6, 4),
             "v": torch.randn(2, 2, 6, 4), "mask": mask}  # fmt: skip
    imported = tg.from_torch(module, (), kwargs=given)
    wanted = [np.s_[:, 0, 0], np.s_[0, 0, 4], np.s_[:, 0, 1], np.s_[:, :, 0:2], np.s_[:]]
    session = tg.GraphSession(imported, making=making, calibrate=False)
    for turn in range(12):
        want = wanted[turn % len(wanted)]
        first = tg.GraphSession(imported, making=making, calibrate=False)
        right = module(**given)[want].detach().numpy()
        for one in (first, session):
            found = one.run(given, want={"output": want})["output"]
            np.testing.assert_allclose(found, right, atol=1e-6)
        given["mask"] = given["mask"].clone()
        given["mask"][turn % 2, 0, 0, turn % 6] ^= True
