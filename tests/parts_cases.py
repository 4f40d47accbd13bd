"""Decoders that compute query, key and value as one product, and look at it in slices.

fused       by hand, over small whole numbers: what each layer hands on is kept between −3 and 3
Fused       the same in PyTorch, with a real attention, as GPT-2 has it
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.ops.layout import split

Array = np.ndarray[Any, Any]


def fused(layers: int = 3, rows: int = 16, wide: int = 8, axis: int = 1) -> Graph:
    """Layers of `qkv{i}`, cut along an axis, and `out{i}`."""
    g = GraphBuilder()
    x = g.input("x", (rows, wide))
    causal = g.constant(np.tri(rows, dtype=bool))
    for i in range(layers):
        product = x @ g.parameter(f"w{i}", (wide, 3 * wide))
        if not axis:
            product = product.reshape(rows, 3, wide).permute(1, 0, 2)
        qkv = g.name(small(product), f"qkv{i}")
        q, k, v = split(qkv, [qkv.shape[axis] // 3] * 3, axis)
        k, v = g.name(k, f"k{i}"), g.name(v, f"v{i}")
        q, k, v = (part.reshape(rows, wide) for part in (q, k, v))
        seen = ops.where(causal, q @ k.transpose(), 0.0) @ v
        x = g.name(small(x + small(seen)), f"out{i}")
    g.output("y", x @ g.parameter("head", (wide, 2 * wide)))
    return g.build()


def small(x: Node) -> Node:
    return ops.minimum(ops.maximum(x, -3.0), 3.0)


def values_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Small whole numbers."""
    random = np.random.default_rng(seed)
    leaves = {**graph.inputs, **graph.parameters}
    return {n: random.integers(-1, 2, leaf.shape).astype(leaf.dtype) for n, leaf in leaves.items()}


class Fused(nn.Module):
    """A small GPT-2: words to a row of logits each."""

    def __init__(self, layers: int = 2, wide: int = 16, heads: int = 2, words: int = 32) -> None:
        super().__init__()
        self.heads, self.wide = heads, wide
        self.words = nn.Embedding(words, wide)
        self.qkv = nn.ModuleList(nn.Linear(wide, 3 * wide) for _ in range(layers))
        self.back = nn.ModuleList(nn.Linear(wide, wide) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(wide) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for qkv, back, norm in zip(self.qkv, self.back, self.norms, strict=True):
            shape = (*x.shape[:2], self.heads, self.wide // self.heads)
            q, k, v = (
                part.view(shape).transpose(1, 2) for part in qkv(norm(x)).split(self.wide, 2)
            )
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + back(seen.transpose(1, 2).reshape(x.shape))
        found: torch.Tensor = x @ self.words.weight.T
        return found
