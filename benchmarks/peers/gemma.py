"""Gemma 3, one token at a time, as a PyTorch module that other runtimes convert.

    id, position, what is kept of the earlier tokens  ─→  logits, and the rows to keep

The cache has the static shape of all positions. A step reads it and returns the new token's rows;
whoever calls writes these into the cache, which is bound once and never copied. Attention is over
the earlier rows and the new one side by side, so nothing of the cache's size is made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.child import Array, Job

HEAD = "model.embed_tokens.weight"


class Config:
    """What a step needs to know of `config.json`."""

    def __init__(self, folder: Path, tokens: int) -> None:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.raw, self.tokens = found, tokens
        self.hidden = int(found["hidden_size"])
        self.heads, self.shared = found["num_attention_heads"], found["num_key_value_heads"]
        self.depth, self.eps = int(found["head_dim"]), float(found["rms_norm_eps"])
        self.kinds: list[str] = found["layer_types"]
        self.window = int(found["sliding_window"])
        self.scale = float(found["query_pre_attn_scalar"]) ** -0.5
        self.ropes = {kind: found["rope_parameters"][kind]["rope_theta"] for kind in self.kinds}

    @property
    def cache(self) -> tuple[int, int, int, int]:
        """Shape of all keys, and of all values."""
        return len(self.kinds), self.shared, self.tokens, self.depth


def weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint; norms with the 1 that Gemma adds to them."""
    found = load_file(folder / "model.safetensors")
    return {name: w + 1 if "norm" in name else w for name, w in found.items()}


def angles(config: Config, kind: str) -> tuple[Tensor, Tensor]:
    """cos and sin of every position."""
    exponents = torch.arange(0, config.depth, 2, dtype=torch.float32) / config.depth
    rows = torch.arange(config.tokens, dtype=torch.float32)[:, None]
    angle = rows * (1.0 / config.ropes[kind] ** exponents)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


class Step(nn.Module):
    """One token: `forward(id, at, key of layer 0, value of layer 0, …)`."""

    def __init__(self, config: Config, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(tensors[HEAD], requires_grad=False)
        self.norm = nn.Parameter(tensors["model.norm.weight"], requires_grad=False)
        self.layers = nn.ModuleList(
            Layer(config, kind, tensors, f"model.layers.{i}.")
            for i, kind in enumerate(config.kinds)
        )

    def forward(self, token: Tensor, at: Tensor, *kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = functional.embedding(token, self.embedding) * self.config.hidden**0.5
        keys, values = [], []
        for layer, key, value in zip(self.layers, kept[0::2], kept[1::2], strict=True):
            x, key, value = layer(x, at, key, value)
            keys.append(key)
            values.append(value)
        x = rms(x, self.norm, self.config.eps)
        logits = functional.linear(x, self.embedding)
        return logits, torch.stack(keys), torch.stack(values)


class Layer(nn.Module):
    """x ─→ attention ─→ + x ─→ gated products ─→ +, each between two norms."""

    def __init__(self, config: Config, kind: str, tensors: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.config = config
        self.window = config.window if kind == "sliding_attention" else config.tokens
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                short = name.removeprefix(prefix).removesuffix(".weight").replace(".", "_")
                self.register_parameter(short, nn.Parameter(tensor, requires_grad=False))
        cos, sin = angles(config, kind)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor, at: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        eps = self.config.eps
        mixed, key, value = self.attention(rms(x, self.input_layernorm, eps), at, key, value)
        x = x + rms(mixed, self.post_attention_layernorm, eps)
        inner = rms(x, self.pre_feedforward_layernorm, eps)
        gate = functional.gelu(functional.linear(inner, self.mlp_gate_proj), approximate="tanh")
        inner = gate * functional.linear(inner, self.mlp_up_proj)
        out = rms(
            functional.linear(inner, self.mlp_down_proj), self.post_feedforward_layernorm, eps
        )
        return x + out, key, value

    def attention(self, x: Tensor, at: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        c = self.config
        q = functional.linear(x, self.self_attn_q_proj).view(c.shared, -1, c.depth)
        k = functional.linear(x, self.self_attn_k_proj).view(c.shared, 1, c.depth)
        v = functional.linear(x, self.self_attn_v_proj).view(c.shared, 1, c.depth)
        q = self.turned(rms(q, self.self_attn_q_norm, c.eps), at) * c.scale
        k = self.turned(rms(k, self.self_attn_k_norm, c.eps), at)
        old, new = torch.matmul(q, key.transpose(1, 2)), (q * k).sum(-1, keepdim=True)
        share = torch.softmax(torch.cat([old, new], -1), -1)
        mixed = torch.matmul(share[..., :-1], value) + share[..., -1:] * v
        return functional.linear(mixed.reshape(1, -1), self.self_attn_o_proj), k, v

    def turned(self, x: Tensor, at: Tensor) -> Tensor:
        cos, sin = self.cos[at], self.sin[at]
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin


def prompted(job: Job, ids: Sequence[int]) -> tuple[Array, Array]:
    """Keys and values after some ids, by `transformers`, as the step keeps them; made once."""
    digest = hashlib.sha256(np.asarray([job.tokens, *ids], np.int64).tobytes()).hexdigest()[:16]
    file = job.work / f"{job.model.stem}-prompt-{digest}.npy"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, _prompted(job, ids))
    keys, values = np.load(file)
    return keys, values


def _prompted(job: Job, ids: Sequence[int]) -> Array:
    from transformers import AutoModelForCausalLM, DynamicCache

    config = Config(job.model, job.tokens)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    cache = DynamicCache()
    with torch.inference_mode():
        model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    kept = np.zeros((2, *config.cache), np.float32)
    for i, layer in enumerate(cache.layers):
        kept[0, i, :, : len(ids)] = layer.keys[0].numpy()
        kept[1, i, :, : len(ids)] = layer.values[0].numpy()
    return kept


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def step(folder: Path, tokens: int) -> tuple[Step, tuple[Tensor, ...]]:
    """The module, and arguments of the right shapes."""
    config = Config(folder, tokens)
    kept = [torch.zeros(config.cache[1:]) for _ in range(2 * len(config.kinds))]
    given = (torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), *kept)
    return Step(config, weights(folder)).eval(), given
